//! What a seller's report comes to: every fate, in every state of the purchase, for the voucher
//! issued last and for an earlier one.

use earnest_core::admin::Pausable;
use earnest_core::ledger::{Account, HoldState};
use earnest_core::policy::{Limits, PolicySubject};
use earnest_core::problem::Code;
use earnest_core::purchase::{Purchase, PurchaseState};
use earnest_core::quote::{Price, Quote};
use earnest_core::report::{LATE_SECONDS, Step, Tick};
use earnest_core::time::{Timestamp, after};
use earnest_core::voucher::{Claims, Fate, ReportOutcome};

use crate::world::{Buyer, Shop, World, each, each_with, hours, impatient, in_memory, micros};

const ID: &str = "the-one";
const PRICE: i64 = 300_000;

/// Brings a purchase into a state; gives the claims of its first voucher and of its last.
type Setup = fn(&World, Buyer, &Shop, &mut Quote) -> (Claims, Claims);

fn claimed(world: &World, buyer: Buyer, quote: &Quote) -> Claims {
    world.claims(&world.buy_as(buyer, ID, quote))
}

fn held(world: &World, buyer: Buyer, _: &Shop, quote: &mut Quote) -> (Claims, Claims) {
    let claims = claimed(world, buyer, quote);
    (claims.clone(), claims)
}

fn reissued(world: &World, buyer: Buyer, _: &Shop, quote: &mut Quote) -> (Claims, Claims) {
    let first = claimed(world, buyer, quote);
    world.pass(120);
    (first, claimed(world, buyer, quote))
}

fn after_report(world: &World, buyer: Buyer, quote: &Quote, fate: Fate) -> (Claims, Claims) {
    let first = claimed(world, buyer, quote);
    world.pass(120);
    let last = claimed(world, buyer, quote);
    world.report(&world.told(&last, fate));
    (first, last)
}

fn billed(world: &World, buyer: Buyer, _: &Shop, quote: &mut Quote) -> (Claims, Claims) {
    after_report(world, buyer, quote, Fate::Redeemed)
}

fn released(world: &World, buyer: Buyer, _: &Shop, quote: &mut Quote) -> (Claims, Claims) {
    after_report(world, buyer, quote, Fate::Failed)
}

fn expired(world: &World, buyer: Buyer, _: &Shop, quote: &mut Quote) -> (Claims, Claims) {
    let first = claimed(world, buyer, quote);
    world.pass(120);
    let last = claimed(world, buyer, quote);
    world.outlive();
    assert!(world.expire(last.sub));
    quote.expires_at = after(world.now(), 600);
    (first, last)
}

/// Expired, then bought again: the earlier voucher was for a hold that is gone.
fn held_anew(world: &World, buyer: Buyer, shop: &Shop, quote: &mut Quote) -> (Claims, Claims) {
    let (_, first) = expired(world, buyer, shop, quote);
    (first, claimed(world, buyer, quote))
}

/// Expired, then asked for again and refused.
fn denied(world: &World, buyer: Buyer, shop: &Shop, quote: &mut Quote) -> (Claims, Claims) {
    let (first, last) = expired(world, buyer, shop, quote);
    let limits = Limits { per_call_cap_micros: Some(micros(1)), ..Limits::default() };
    world.limit(PolicySubject::Agent(buyer.agent), buyer.owner, limits);
    assert_eq!(world.word(buyer, ID, quote), "policy_denied/per_call_cap");
    (first, last)
}

/// Expired, then asked for again and put to the owner.
fn waiting(world: &World, buyer: Buyer, shop: &Shop, quote: &mut Quote) -> (Claims, Claims) {
    let (first, last) = expired(world, buyer, shop, quote);
    let limits = Limits { approve_above_micros: Some(micros(1)), ..Limits::default() };
    world.limit(PolicySubject::Agent(buyer.agent), buyer.owner, limits);
    assert_eq!(world.word(buyer, ID, quote), "waiting");
    (first, last)
}

fn unbilled(world: &World, buyer: Buyer, shop: &Shop, quote: &mut Quote) -> (Claims, Claims) {
    let (first, last) = expired(world, buyer, shop, quote);
    world.pause(Pausable::Owner(buyer.owner), true);
    assert_eq!(world.redeem(&first), Step::Done(ReportOutcome::LateUnbilled, None));
    world.pause(Pausable::Owner(buyer.owner), false);
    (first, last)
}

fn word(step: &Step) -> String {
    match step {
        Step::Done(outcome, Some(amount)) => format!("{outcome:?} {}", amount.get()),
        Step::Done(outcome, None) => format!("{outcome:?}"),
        other => format!("{other:?}"),
    }
}

/// What the four fates say for the last voucher and for an earlier one.
struct Case {
    name: &'static str,
    setup: Setup,
    /// Redeemed, failed, serving, redeemed at nothing.
    last: [&'static str; 4],
    earlier: [&'static str; 4],
}

const BILLED: &str = "Billed 300000";
const LATE: &str = "LateBilled 300000";
const ALREADY: &str = "AlreadyBilled 300000";
const FREE: &str = "Released";
const SERVING: &str = "Serving";
const LOST: &str = "LateUnbilled";

#[test]
fn a_report_resolves_the_purchase_once() {
    let table = [
        Case {
            name: "held",
            setup: held,
            last: [BILLED, FREE, SERVING, FREE],
            earlier: [BILLED, FREE, SERVING, FREE],
        },
        Case {
            name: "re-issued",
            setup: reissued,
            last: [BILLED, FREE, SERVING, FREE],
            earlier: [BILLED, FREE, SERVING, FREE],
        },
        Case { name: "billed", setup: billed, last: [ALREADY; 4], earlier: [ALREADY; 4] },
        Case {
            name: "released",
            setup: released,
            // Failed is final for that voucher; an earlier one may still have been served.
            last: [FREE; 4],
            earlier: [LATE, FREE, SERVING, FREE],
        },
        Case {
            name: "expired",
            setup: expired,
            last: [LATE, FREE, SERVING, FREE],
            earlier: [LATE, FREE, SERVING, FREE],
        },
        Case {
            name: "held anew",
            setup: held_anew,
            last: [BILLED, FREE, SERVING, FREE],
            earlier: [BILLED, FREE, SERVING, FREE],
        },
        Case {
            name: "denied",
            setup: denied,
            last: [LATE, FREE, SERVING, FREE],
            earlier: [LATE, FREE, SERVING, FREE],
        },
        Case {
            name: "waiting",
            setup: waiting,
            last: [LATE, FREE, SERVING, FREE],
            earlier: [LATE, FREE, SERVING, FREE],
        },
        Case { name: "unbilled", setup: unbilled, last: [LOST; 4], earlier: [LOST; 4] },
    ];
    each_with(&impatient(), |world| {
        for case in &table {
            for (latest, expect) in [(true, case.last), (false, case.earlier)] {
                for (place, expect) in expect.iter().enumerate() {
                    let context = format!("{} latest {latest} fate {place}", case.name);
                    report_one(world, case, latest, place, expect, &context);
                }
            }
        }
    });
}

fn report_one(world: &World, case: &Case, latest: bool, place: usize, expect: &str, context: &str) {
    let (buyer, shop) = (world.buyer(), world.shop());
    let mut quote = world.quote(&shop, "/", Price::UpTo(micros(PRICE)));
    let (first, last) = (case.setup)(world, buyer, &shop, &mut quote);
    let before: Purchase = world.row(last.sub);
    let claims = if latest { &last } else { &first };
    let fate = [Fate::Redeemed, Fate::Failed, Fate::Serving, Fate::Redeemed][place];
    let mut told = world.told(claims, fate);
    told.amount = (place == 3).then_some(micros(0));
    assert_eq!(word(&world.report(&told)), expect, "{context}");
    // The same report again says the same or *already*, and posts nothing more.
    let again = word(&world.report(&told));
    let settled = expect == BILLED || expect == LATE;
    assert_eq!(again, if settled { ALREADY } else { expect }, "{context} again");
    let purchase: Purchase = world.row(last.sub);
    let lines = world.tab(purchase.tab.unwrap()).lines;
    let one = u64::from(purchase.state == PurchaseState::Billed);
    assert_eq!(lines, one, "{context}");
    let untouched = !settled && expect != SERVING && before.state != PurchaseState::Held;
    if untouched {
        assert_eq!(purchase.state, before.state, "{context}");
    }
    // An earlier voucher's failure leaves the hold of the last one.
    if before.state == PurchaseState::Held && !latest && first != last && expect == FREE {
        assert_eq!(purchase.state, PurchaseState::Held, "{context}");
    }
}

#[test]
fn posted_at_most_what_was_held_and_the_rest_is_released() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop_with(100_000));
        let quote = world.quote(&shop, "/", Price::UpTo(micros(PRICE)));
        let claims = claimed(world, buyer, &quote);
        let mut told = world.told(&claims, Fate::Redeemed);
        told.amount = Some(micros(PRICE + 1));
        assert_eq!(world.report(&told), Step::Rejected(Code::AmountOutOfRange));
        told.amount = Some(micros(123_456));
        assert_eq!(world.report(&told), Step::Done(ReportOutcome::Billed, Some(micros(123_456))));
        let tab = world.totals(Account::TabOwed(world.open_tab(buyer)).usd());
        assert_eq!((tab.debits_pending.get(), tab.debits_posted.get()), (0, 123_456));
        let kept = world.totals(Account::PlatformRevenue.usd()).credits_posted;
        assert_eq!(kept, micros(12_345));
        // A fixed price is that price.
        let fixed = world.fixed(&shop, PRICE);
        let claims = world.claims(&world.buy_as(buyer, "fixed", &fixed));
        let mut told = world.told(&claims, Fate::Redeemed);
        told.amount = Some(micros(PRICE - 1));
        assert_eq!(world.report(&told), Step::Rejected(Code::AmountInvalid));
        told.amount = Some(micros(PRICE));
        assert_eq!(world.report(&told), Step::Done(ReportOutcome::Billed, Some(micros(PRICE))));
    });
}

#[test]
fn nobody_elses_report_and_none_claimed_too_late_counts() {
    each(|world| {
        let (buyer, shop, other) = (world.buyer(), world.shop(), world.shop());
        let claims = claimed(world, buyer, &world.fixed(&shop, PRICE));
        let mut told = world.told(&claims, Fate::Redeemed);
        told.seller = other.id;
        assert_eq!(world.report(&told), Step::Rejected(Code::NotFound));
        let mut forged = world.told(&claims, Fate::Redeemed);
        forged.claims.aud = other.id;
        forged.seller = other.id;
        assert_eq!(world.report(&forged), Step::Rejected(Code::NotFound));
        let mut late = world.told(&claims, Fate::Redeemed);
        late.claimed_at = Timestamp::from_second(claims.exp + 1).unwrap();
        assert_eq!(world.report(&late), Step::Rejected(Code::VoucherExpired));
        late.claimed_at = Timestamp::from_second(claims.exp).unwrap();
        assert_eq!(world.report(&late), Step::Done(ReportOutcome::Billed, Some(micros(PRICE))));
    });
}

#[test]
fn only_report_clock_gives_a_hold_up() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.run(Tick).unwrap();
        let purchase = world.buy(buyer, &shop, PRICE);
        // We were away for a week: one tick counts ten seconds of it.
        world.pass(hours(24 * 7));
        assert_eq!(world.run(Tick).unwrap(), 10_000);
        assert!(!world.expire(purchase.id));
        world.live(120 + 15 * 60 - 11);
        assert!(!world.expire(purchase.id));
        world.live(1);
        assert!(world.expire(purchase.id));
        assert!(!world.expire(purchase.id), "once");
        let purchase: Purchase = world.row(purchase.id);
        assert_eq!(purchase.state, PurchaseState::Expired);
        let hold = world.store.reader().hold(purchase.hold.unwrap()).unwrap().unwrap();
        assert_eq!(hold.hold.state, HoldState::Voided);
    });
}

#[test]
fn serving_keeps_a_hold_but_not_for_ever() {
    in_memory(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.run(Tick).unwrap();
        let purchase = world.buy(buyer, &shop, PRICE);
        let claims = world.claims(&purchase);
        let serving = |world: &World| world.report(&world.told(&claims, Fate::Serving));
        world.live(120 + 15 * 60 - 1);
        assert_eq!(serving(world), Step::Done(ReportOutcome::Serving, None));
        world.live(15 * 60 - 1);
        assert!(!world.expire(purchase.id));
        assert_eq!(serving(world), Step::Done(ReportOutcome::Serving, None));
        // Near the end of a day past the first voucher's end only the rest of the day is given.
        let bound = after(Timestamp::from_second(claims.exp).unwrap(), hours(24));
        let left = (bound.as_second() - world.now().as_second()) - 60;
        for _ in 0..left / 600 {
            world.live(600);
            serving(world);
        }
        world.live(left % 600);
        serving(world);
        assert!(!world.expire(purchase.id));
        world.live(60);
        serving(world);
        assert!(world.expire(purchase.id));
    });
}

/// Gives up a hold and changes something; then its seller reports.
fn late(world: &World, change: impl FnOnce(&World, Buyer, &Shop), wait: i64) -> (Buyer, Step) {
    let (buyer, shop) = (world.buyer(), world.shop());
    let purchase = world.buy(buyer, &shop, PRICE);
    let claims = world.claims(&purchase);
    let told = world.told(&claims, Fate::Redeemed);
    world.outlive();
    assert!(world.expire(purchase.id));
    change(world, buyer, &shop);
    world.pass(claims.exp + wait - world.now().as_second());
    (buyer, world.report(&told))
}

#[test]
fn a_late_line_is_booked_where_today_has_room_for_it() {
    type Change = fn(&World, Buyer, &Shop);
    let half_an_hour = 1_800;
    let policy: Change = |world, buyer, _| {
        let limits = Limits { session_cap_micros: Some(micros(PRICE - 1)), ..Limits::default() };
        world.limit(PolicySubject::Owner(buyer.owner), buyer.owner, limits);
    };
    let table: [(&str, Change, i64, &str); 12] = [
        ("nothing changed", |_, _, _| (), half_an_hour, LATE),
        ("a day later", |_, _, _| (), LATE_SECONDS, LATE),
        ("more than a day later", |_, _, _| (), LATE_SECONDS + 1, LOST),
        ("no room under a cap", policy, half_an_hour, LOST),
        (
            "the seller left the list",
            |world, buyer, _| {
                let limits = Limits { sellers: Some(Vec::new()), ..Limits::default() };
                world.limit(PolicySubject::Owner(buyer.owner), buyer.owner, limits);
            },
            half_an_hour,
            // It was allowed when it was bought.
            LATE,
        ),
        (
            "owner paused",
            |world, buyer, _| world.pause(Pausable::Owner(buyer.owner), true),
            half_an_hour,
            LOST,
        ),
        (
            "agent paused",
            |world, buyer, _| world.pause(Pausable::Agent(buyer.owner, buyer.agent), true),
            half_an_hour,
            LOST,
        ),
        (
            "tab closing",
            |world, buyer, _| {
                world.close(buyer.owner, world.open_tab(buyer)).unwrap();
            },
            half_an_hour,
            LOST,
        ),
        (
            "tab ended, none open",
            |world, buyer, _| {
                let tab = world.open_tab(buyer);
                world.close(buyer.owner, tab).unwrap();
                world.treasure(buyer.owner, tab, false);
                assert_eq!(world.owned(buyer).open_tab, None);
            },
            half_an_hour,
            LOST,
        ),
        (
            "tab ended, another open",
            |world, buyer, _| {
                let tab = world.open_tab(buyer);
                world.close(buyer.owner, tab).unwrap();
                world.treasure(buyer.owner, tab, false);
                world.open(buyer.owner).unwrap();
                assert_ne!(world.open_tab(buyer), tab);
            },
            half_an_hour,
            LATE,
        ),
        (
            "tab frozen",
            |world, buyer, shop| {
                world.spend(buyer, shop, 100_000);
                world.decline(&world.settle(buyer.owner, world.open_tab(buyer)));
            },
            half_an_hour,
            LOST,
        ),
        (
            "tab written off",
            |world, buyer, shop| {
                world.spend(buyer, shop, 100_000);
                let tab = world.open_tab(buyer);
                world.decline(&world.settle(buyer.owner, tab));
                world.write_off(buyer.owner, tab).unwrap();
            },
            half_an_hour,
            LOST,
        ),
    ];
    each_with(&impatient(), |world| {
        for (name, change, wait, expect) in &table {
            let (buyer, step) = late(world, change, *wait);
            assert_eq!(word(&step), *expect, "{name}");
            let purchase = world
                .all::<Purchase>()
                .into_iter()
                .find(|p| p.agent == buyer.agent && p.price_micros == micros(PRICE))
                .unwrap();
            let billed = *expect == LATE;
            assert_eq!(purchase.state == PurchaseState::Billed, billed, "{name}");
            if billed {
                assert_eq!(purchase.tab, Some(world.open_tab(buyer)), "{name}");
            }
            world.pause(Pausable::Owner(buyer.owner), false);
        }
    });
}

#[test]
fn a_late_line_uses_todays_room_and_refuses_what_is_one_micro_too_much() {
    each_with(&impatient(), |world| {
        for (over, expect) in [(0, LATE), (1, LOST)] {
            let (_, step) = late(
                world,
                |world, buyer, shop| {
                    world.spend(buyer, shop, 100_000 + over);
                    let limits = Limits {
                        day_cap_micros: Some(micros(PRICE + 100_000)),
                        ..Limits::default()
                    };
                    world.limit(PolicySubject::Agent(buyer.agent), buyer.owner, limits);
                },
                1_800,
            );
            assert_eq!(word(&step), expect);
        }
    });
}

#[test]
fn a_posting_hold_never_fails_on_pause_freeze_or_a_lowered_cap() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 100_000);
        let purchase = world.buy(buyer, &shop, PRICE);
        let tab = world.open_tab(buyer);
        world.decline(&world.settle(buyer.owner, tab));
        world.pause(Pausable::Owner(buyer.owner), true);
        let limits = Limits {
            day_cap_micros: Some(micros(1)),
            session_cap_micros: Some(micros(1)),
            tab_limit_micros: Some(micros(1)),
            ..Limits::default()
        };
        world.limit(PolicySubject::Owner(buyer.owner), buyer.owner, limits);
        assert_eq!(
            world.redeem(&world.claims(&purchase)),
            Step::Done(ReportOutcome::Billed, Some(micros(PRICE)))
        );
        assert_eq!(world.thousandths(Account::TabOwed(tab)), "0/400/0/0");
    });
}

/// Every voucher that was reported as failed stays so, not only the one that failed last.
#[test]
fn a_failed_voucher_stays_failed_after_others_failed() {
    in_memory(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let quote = world.fixed(&shop, PRICE);
        let mut failed = Vec::new();
        for _ in 0..3 {
            let claims = claimed(world, buyer, &quote);
            let step = world.report(&world.told(&claims, Fate::Failed));
            assert_eq!(step, Step::Done(ReportOutcome::Released, None));
            failed.push(claims);
        }
        for claims in &failed {
            let step = world.report(&world.told(claims, Fate::Redeemed));
            assert_eq!(step, Step::Done(ReportOutcome::Released, None));
        }
        let purchase = world.row::<Purchase>(failed[0].sub);
        assert_eq!(purchase.state, PurchaseState::Released);
    });
}

/// Another voucher on the same hold, while the seller still serves the last, would be delivered
/// twice for one price.
#[test]
fn nothing_is_reissued_while_the_seller_serves() {
    in_memory(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let quote = world.fixed(&shop, PRICE);
        let claims = claimed(world, buyer, &quote);
        world.report(&world.told(&claims, Fate::Serving));
        world.pass(121);
        assert_eq!(world.word(buyer, ID, &quote), "idempotency_in_flight");
        let step = world.report(&world.told(&claims, Fate::Redeemed));
        assert_eq!(step, Step::Done(ReportOutcome::Billed, Some(micros(PRICE))));
    });
}
