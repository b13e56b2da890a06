//! `request_id`: what the same id means, with the same and with other arguments, in every state.

use earnest_core::admin::{Pausable, Proof, RecordProof, RevokeKey};
use earnest_core::answer::{RevokeGrant, Verdict};
use earnest_core::authorize::{Authorize, Outcome};
use earnest_core::id::{KeyId, SellerId};
use earnest_core::party::{Agent, ApiKey, Principal, RateWindow, Seller};
use earnest_core::policy::{Limits, PolicySubject};
use earnest_core::purchase::{Purchase, PurchaseState};
use earnest_core::quote::{Price, Quote};
use earnest_core::report::Step;
use earnest_core::tab::TabState;
use earnest_core::voucher::{Fate, ReportOutcome};
use earnest_store::SubmitError;

use crate::world::{Buyer, Shop, World, each, each_with, hours, impatient, micros};

const ID: &str = "the-one";

/// Brings the purchase `ID` into a state; gives the quote it was asked for with.
type Setup = fn(&World, Buyer, &Shop) -> Quote;

fn denied(world: &World, buyer: Buyer, shop: &Shop) -> Quote {
    let quote = world.fixed(shop, 900_000);
    let limits = Limits { per_call_cap_micros: Some(micros(100_000)), ..Limits::default() };
    world.limit(PolicySubject::Agent(buyer.agent), buyer.owner, limits);
    assert_eq!(world.word(buyer, ID, &quote), "policy_denied/per_call_cap");
    world.limit(PolicySubject::Agent(buyer.agent), buyer.owner, Limits::default());
    quote
}

fn asked(world: &World, buyer: Buyer, shop: &Shop) -> Quote {
    let limits = Limits { approve_above_micros: Some(micros(200_000)), ..Limits::default() };
    world.limit(PolicySubject::Agent(buyer.agent), buyer.owner, limits);
    let quote = world.fixed(shop, 300_000);
    world.ask(buyer, ID, &quote);
    quote
}

fn answered(world: &World, buyer: Buyer, shop: &Shop, verdict: Verdict) -> Quote {
    let quote = asked(world, buyer, shop);
    let (_, approval) = world.ask(buyer, ID, &quote);
    world.answer(&approval, verdict).unwrap();
    quote
}

fn approved(world: &World, buyer: Buyer, shop: &Shop) -> Quote {
    answered(world, buyer, shop, Verdict::Approve)
}

fn refused(world: &World, buyer: Buyer, shop: &Shop) -> Quote {
    answered(world, buyer, shop, Verdict::Deny)
}

fn asked_long_ago(world: &World, buyer: Buyer, shop: &Shop) -> Quote {
    let mut quote = asked(world, buyer, shop);
    world.pass(15 * 60);
    quote.expires_at = earnest_core::time::after(world.now(), 600);
    quote
}

fn held(world: &World, buyer: Buyer, shop: &Shop) -> Quote {
    let quote = world.fixed(shop, 300_000);
    world.buy_as(buyer, ID, &quote);
    quote
}

fn held_long_ago(world: &World, buyer: Buyer, shop: &Shop) -> Quote {
    let quote = held(world, buyer, shop);
    world.pass(121);
    quote
}

fn reported(world: &World, buyer: Buyer, shop: &Shop, fate: Fate) -> Quote {
    let quote = held(world, buyer, shop);
    let purchase = world.buy_as(buyer, ID, &quote);
    world.report(&world.told(&world.claims(&purchase), fate));
    quote
}

fn billed(world: &World, buyer: Buyer, shop: &Shop) -> Quote {
    reported(world, buyer, shop, Fate::Redeemed)
}

fn released(world: &World, buyer: Buyer, shop: &Shop) -> Quote {
    reported(world, buyer, shop, Fate::Failed)
}

fn expired(world: &World, buyer: Buyer, shop: &Shop) -> Quote {
    let mut quote = held(world, buyer, shop);
    let purchase = world.buy_as(buyer, ID, &quote);
    world.outlive();
    assert!(world.expire(purchase.id));
    quote.expires_at = earnest_core::time::after(world.now(), 600);
    quote
}

fn unbilled(world: &World, buyer: Buyer, shop: &Shop) -> Quote {
    let quote = expired(world, buyer, shop);
    let purchase: Purchase = world.all().pop().unwrap();
    world.pause(Pausable::Owner(buyer.owner), true);
    let step = world.redeem(&world.claims(&purchase));
    assert_eq!(step, Step::Done(ReportOutcome::LateUnbilled, None));
    world.pause(Pausable::Owner(buyer.owner), false);
    quote
}

/// In each state: what the same request says, and what another request under the same id says.
#[test]
fn the_same_id_means_the_same_thing_in_every_state() {
    let table: [(&str, Setup, &str, &str); 11] = [
        ("denied", denied, "held", "idempotency_conflict"),
        ("waiting", asked, "again waiting", "approval_stale"),
        ("approved", approved, "held", "approval_stale"),
        ("refused", refused, "again approval_denied", "idempotency_conflict"),
        ("waited too long", asked_long_ago, "waiting", "idempotency_conflict"),
        ("held", held, "again held", "idempotency_conflict"),
        ("held, voucher over", held_long_ago, "held", "idempotency_conflict"),
        ("billed", billed, "again resolved", "idempotency_conflict"),
        ("released", released, "held", "idempotency_conflict"),
        ("expired", expired, "held", "idempotency_conflict"),
        ("unbilled", unbilled, "again resolved", "idempotency_conflict"),
    ];
    each_with(&impatient(), |world| {
        for (state, setup, same, other) in &table {
            let (buyer, shop) = (world.buyer(), world.shop());
            let quote = setup(world, buyer, &shop);
            let known: Vec<Purchase> =
                world.all().into_iter().filter(|p: &Purchase| p.agent == buyer.agent).collect();
            let head = world.head();

            let dearer = Quote { price: Price::Fixed(micros(300_001)), ..quote.clone() };
            assert_eq!(world.word(buyer, ID, &dearer), *other, "{state}: another price");
            let elsewhere =
                Quote { request: world.quote(&shop, "/x", quote.price).request, ..quote.clone() };
            assert_eq!(world.word(buyer, ID, &elsewhere), *other, "{state}: another resource");
            let up_to = Quote { price: Price::UpTo(quote.price.most()), ..quote.clone() };
            assert_eq!(world.word(buyer, ID, &up_to), *other, "{state}: a ceiling");
            assert_eq!(world.head(), head, "{state}: other arguments change nothing");

            // The quote's id and expiry and the caller's own ceiling are not what was bought.
            let fresh = Quote { id: world.fixed(&shop, 1).id, ..quote.clone() };
            assert_eq!(world.word(buyer, ID, &fresh), *same, "{state}");
            let found: Vec<Purchase> =
                world.all().into_iter().filter(|p: &Purchase| p.agent == buyer.agent).collect();
            assert_eq!(found.len(), 1, "{state}: one id, one purchase");
            assert_eq!(found[0].id, known[0].id, "{state}");
            if same.starts_with("again") {
                assert_eq!(found, known, "{state}: a repeat only shows");
                assert_eq!(world.head(), head, "{state}: a repeat only shows");
            }
        }
    });
}

#[test]
fn another_agents_id_is_another_id() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let other = world.agent(buyer.owner);
        let quote = world.fixed(&shop, 10_000);
        let first = world.buy_as(buyer, ID, &quote);
        let second = world.buy_as(other, ID, &quote);
        assert_ne!(first.id, second.id);
    });
}

#[test]
fn a_repeat_shows_the_same_voucher_while_it_lives_and_another_on_the_same_hold_afterwards() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let quote = world.fixed(&shop, 10_000);
        let first = world.buy_as(buyer, ID, &quote);
        world.pass(119);
        assert_eq!(world.buy_as(buyer, ID, &quote), first);
        world.pass(1);
        let second = world.buy_as(buyer, ID, &quote);
        assert_eq!((second.id, second.hold), (first.id, first.hold));
        assert_ne!(second.voucher, first.voucher);
        assert_eq!(second.first_expires_at, first.first_expires_at);
        assert_eq!(world.claims(&second).exp, world.claims(&first).exp + 120);
        // Either voucher posts the one hold, once.
        assert_eq!(
            world.redeem(&world.claims(&first)),
            Step::Done(ReportOutcome::Billed, Some(micros(10_000)))
        );
        assert_eq!(
            world.redeem(&world.claims(&second)),
            Step::Done(ReportOutcome::AlreadyBilled, Some(micros(10_000)))
        );
    });
}

#[test]
fn a_reissue_is_refused_while_paused_frozen_closing_or_too_old() {
    type Change = fn(&World, Buyer);
    let table: [(&str, Change); 5] = [
        ("policy_denied/agent_paused", |world, buyer| {
            world.pause(Pausable::Agent(buyer.owner, buyer.agent), true);
        }),
        ("policy_denied/owner_paused", |world, buyer| {
            world.pause(Pausable::Owner(buyer.owner), true);
        }),
        ("policy_denied/tab_closed", |world, buyer| {
            world.close(buyer.owner, world.open_tab(buyer)).unwrap();
        }),
        ("policy_denied/tab_frozen", |world, buyer| {
            let vault = world.owned(buyer).funding.unwrap().vault;
            world.run(earnest_core::vault::Remove { owner: buyer.owner, vault }).unwrap();
        }),
        ("policy_denied/tab_closed", |world, _| world.pass(hours(24))),
    ];
    each(|world| {
        for (expect, change) in &table {
            let (buyer, shop) = (world.buyer(), world.shop());
            let mut quote = world.fixed(&shop, 10_000);
            let first = world.buy_as(buyer, ID, &quote);
            world.pass(120);
            change(world, buyer);
            quote.expires_at = earnest_core::time::after(world.now(), 600);
            let head = world.head();
            assert_eq!(world.word(buyer, ID, &quote), *expect);
            assert_eq!(world.head(), head, "a refused re-issue writes nothing");
            // The hold is there all the same, and its report still counts.
            assert_eq!(
                world.redeem(&world.claims(&first)),
                Step::Done(ReportOutcome::Billed, Some(micros(10_000)))
            );
        }
    });
}

/// The money is reserved, so no cap is asked again; but who may buy, from whom, and for how much is.
#[test]
fn a_reissue_asks_again_what_can_have_changed() {
    type Change = fn(&World, Buyer, &Shop, &mut Authorize);
    fn limit(world: &World, buyer: Buyer, limits: Limits) {
        world.limit(PolicySubject::Agent(buyer.agent), buyer.owner, limits);
    }
    let table: [(&str, Change); 7] = [
        ("held", |world, buyer, _, _| {
            let limits = Limits { day_cap_micros: Some(micros(1)), ..Limits::default() };
            limit(world, buyer, limits);
        }),
        ("policy_denied/merchant_not_allowed", |world, buyer, _, _| {
            limit(world, buyer, Limits { sellers: Some(Vec::new()), ..Limits::default() });
        }),
        ("policy_denied/tool_not_allowed", |world, buyer, _, _| {
            limit(world, buyer, Limits { listings: Some(Vec::new()), ..Limits::default() });
        }),
        ("policy_denied/price_above_max", |_, _, _, unit| unit.max_price = micros(9_999)),
        ("policy_denied/merchant_not_allowed", |world, _, shop, _| {
            lists(world, shop.id, &shop.origin, &[]);
        }),
        ("policy_denied/merchant_not_allowed", |world, buyer, shop, _| {
            let recipient = world.row::<Seller>(shop.id).payout_recipient;
            world.fund_by(buyer.owner, None, recipient.as_deref());
        }),
        ("unauthenticated", |_, _, _, unit| unit.api_key = KeyId::from_value(7)),
    ];
    each(|world| {
        for (expect, change) in &table {
            let (buyer, shop) = (world.buyer(), world.shop());
            let mut quote = world.fixed(&shop, 10_000);
            world.buy_as(buyer, ID, &quote);
            world.pass(120);
            quote.expires_at = earnest_core::time::after(world.now(), 600);
            let mut unit = world.unit(buyer, ID, &quote);
            change(world, buyer, &shop, &mut unit);
            let head = world.head();
            match world.run(unit) {
                Ok(answer) => {
                    assert!(matches!(answer.outcome, Outcome::Held(_)), "{answer:?}");
                    assert_eq!(*expect, "held");
                }
                Err(SubmitError::Refused(refusal)) => {
                    assert_eq!(crate::world::said(&refusal), *expect);
                    assert_eq!(world.head(), head, "a refused re-issue writes nothing");
                }
                Err(other) => panic!("{other}"),
            }
        }
    });
}

#[test]
fn a_reissue_needs_the_grant_that_allowed_it() {
    each(|world| {
        let limits = Limits { approve_above_micros: Some(micros(1_000)), ..Limits::default() };
        let (buyer, shop) = (world.buyer_with(limits), world.shop());
        let fresh = |mut quote: Quote| {
            quote.expires_at = earnest_core::time::after(world.now(), 600);
            quote
        };
        for ended in [true, false] {
            let id = if ended { "ended" } else { "taken back" };
            let quote = fresh(world.fixed(&shop, 10_000));
            let (_, approval) = world.ask(buyer, id, &quote);
            let grant = world.grant(&approval, 10_000, 300);
            world.buy_as(buyer, id, &quote);
            world.pass(120);
            assert_eq!(world.word(buyer, id, &fresh(quote.clone())), "held", "the grant lives");
            if ended {
                world.pass(300);
            } else {
                world.pass(120);
                let (owner, agent) = (buyer.owner, buyer.agent);
                world.run(RevokeGrant { owner, agent, grant }).unwrap();
            }
            let again = world.word(buyer, id, &fresh(quote));
            assert_eq!(again, "policy_denied/grant_exhausted", "{id}");
        }
    });
}

/// What an origin said when it was asked.
fn lists(world: &World, seller: SellerId, origin: &str, listed: &[SellerId]) {
    let proof = Proof::Lists(listed.to_vec());
    world.run(RecordProof { seller, origin: origin.to_owned(), proof }).unwrap();
}

#[test]
fn a_proof_of_an_origin_is_renewed_or_counts_no_more() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let ask = |id: &str| world.word(buyer, id, &world.fixed(&shop, 1_000));
        let day = hours(24);
        world.pass(7 * day);
        assert_eq!(ask("a"), "held");
        world.pass(1);
        assert_eq!(ask("b"), "policy_denied/merchant_not_allowed");
        // Silence renews nothing; its own list does.
        let silent =
            RecordProof { seller: shop.id, origin: shop.origin.clone(), proof: Proof::Silent };
        let row = world.run(silent).unwrap();
        let next = row.origins[0].next_check_at.unwrap();
        assert_eq!(next, earnest_core::time::after(world.now(), 3600), "and is asked again soon");
        assert_eq!(ask("b"), "policy_denied/merchant_not_allowed");
        lists(world, shop.id, &shop.origin, &[shop.id]);
        assert_eq!(ask("b"), "held");
        // An answer without the seller ends it at once, and is told.
        let mark = world.head();
        lists(world, shop.id, &shop.origin, &[]);
        assert_eq!(ask("c"), "policy_denied/merchant_not_allowed");
        assert!(world.events_since(mark).contains(&"alarm.origin_lost".to_owned()));
        assert_eq!(world.row::<Seller>(shop.id).origins[0].next_check_at, None);
    });
}

#[test]
fn two_sellers_who_claim_one_origin_are_both_stopped() {
    each(|world| {
        let (buyer, shop, other) = (world.buyer(), world.shop(), world.shop());
        let also = Shop { id: other.id, origin: shop.origin.clone() };
        let ask = |shop: &Shop, id: &str| world.word(buyer, id, &world.fixed(shop, 1_000));
        // One list that names both is a market with two stalls.
        lists(world, other.id, &shop.origin, &[shop.id, other.id]);
        assert_eq!((ask(&shop, "a"), ask(&also, "b")), ("held".to_owned(), "held".to_owned()));
        // One that names the newcomer alone: who is right is not for us to say.
        let mark = world.head();
        lists(world, other.id, &shop.origin, &[other.id]);
        for (shop, id) in [(&shop, "c"), (&also, "d")] {
            assert_eq!(ask(shop, id), "policy_denied/merchant_not_allowed");
        }
        let alarms = world.events_since(mark);
        assert_eq!(alarms.iter().filter(|kind| *kind == "alarm.origin_contested").count(), 1);
        // Asked for the other, the origin says the same: it is lost, and the rest goes on.
        lists(world, shop.id, &shop.origin, &[other.id]);
        assert_eq!(ask(&shop, "c"), "policy_denied/merchant_not_allowed");
        assert_eq!(ask(&also, "d"), "held");
    });
}

#[test]
fn a_shown_voucher_needs_no_policy_but_a_live_key() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let quote = world.fixed(&shop, 10_000);
        world.buy_as(buyer, ID, &quote);
        world.pause(Pausable::Owner(buyer.owner), true);
        // It is out already and lives at most two minutes: showing it again issues nothing.
        assert_eq!(world.word(buyer, ID, &quote), "again held");
        let key: ApiKey = world.all::<ApiKey>().into_iter().find(|k| k.id == buyer.key).unwrap();
        let principal = Principal::Agent(buyer.agent);
        world.run(RevokeKey { principal, hash: key.hash, owner: Some(buyer.owner) }).unwrap();
        assert_eq!(world.word(buyer, ID, &quote), "unauthenticated");
        let head = world.head();
        assert_eq!(world.word(buyer, "fresh", &quote), "unauthenticated");
        assert_eq!(world.head(), head, "a dead key's request leaves nothing, not even its id");
        assert_eq!(world.all::<Purchase>().len(), 1);
        let other = Buyer { key: world.add_key(principal, Some(buyer.owner)).id, ..buyer };
        world.pause(Pausable::Owner(buyer.owner), false);
        let another = world.fixed(&shop, 20_000);
        assert_eq!(world.word(other, "fresh", &another), "held", "the id was left free");
        assert_eq!(world.word(other, ID, &quote), "again held");
    });
}

#[test]
fn a_key_of_another_agent_or_owner_buys_nothing() {
    each(|world| {
        let (buyer, stranger, shop) = (world.buyer(), world.buyer(), world.shop());
        let quote = world.fixed(&shop, 10_000);
        let wrong_key = Buyer { key: stranger.key, ..buyer };
        assert_eq!(world.word(wrong_key, ID, &quote), "unauthenticated");
        let wrong_owner = Buyer { owner: stranger.owner, ..buyer };
        assert_eq!(world.word(wrong_owner, ID, &quote), "unauthenticated");
        assert_eq!(world.all::<Purchase>().len(), 0);
    });
}

#[test]
fn what_is_refused_leaves_the_row_the_event_and_the_key_and_nothing_else() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let limits = Limits { day_cap_micros: Some(micros(5_000)), ..Limits::default() };
        world.limit(PolicySubject::Owner(buyer.owner), buyer.owner, limits);
        let head = world.head();
        let quote = world.fixed(&shop, 10_000);
        assert_eq!(world.word(buyer, ID, &quote), "policy_denied/daily_cap");
        let entries = world.store.reader().log(head, 10).unwrap();
        assert_eq!(entries.len(), 1);
        let entry = &entries[0].entry;
        assert!(entry.ops.is_empty());
        let puts: Vec<_> = entry.puts.iter().map(|put| put.kind.to_string()).collect();
        assert_eq!(puts, ["purchase"]);
        assert!(entry.key.is_some());
        // No seller hears of an owner's limits.
        let shop_id = shop.id.to_string();
        assert!(entry.events.iter().all(|event| !event.audience.contains(&shop_id)));
        let purchase: Purchase = world.all().pop().unwrap();
        assert_eq!(purchase.state, PurchaseState::Denied);
        let refusal = purchase.refusal.unwrap();
        assert_eq!(refusal.numbers["limit_micros"], 5_000);
        assert_eq!(refusal.numbers["price_micros"], 10_000);
        assert_eq!(refusal.numbers["used_micros"], 0);
        assert_eq!(world.owned(buyer).open_tab, None, "a refusal opens no tab");
    });
}

#[test]
fn an_expired_quote_is_refused_and_a_fresh_one_goes_on_under_the_same_id() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let mut quote = world.fixed(&shop, 10_000);
        world.pass(600);
        assert_eq!(world.word(buyer, ID, &quote), "quote_expired");
        assert_eq!(world.all::<Purchase>().len(), 0);
        // The refusal bound the fingerprint, for ever.
        let other = Quote { price: Price::Fixed(micros(1)), ..quote.clone() };
        assert_eq!(world.word(buyer, ID, &other), "idempotency_conflict");
        quote.expires_at = earnest_core::time::after(world.now(), 1);
        assert_eq!(world.word(buyer, ID, &quote), "held");
    });
}

#[test]
fn a_purchase_asked_for_again_after_its_hold_was_given_up_posts_once() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let quote = expired(world, buyer, &shop);
        let first: Purchase = world.all().pop().unwrap();
        let second = world.buy_as(buyer, ID, &quote);
        assert_eq!(second.id, first.id);
        assert_ne!(second.hold, first.hold);
        assert_ne!(second.first_expires_at, first.first_expires_at);
        // The first voucher was served after all: it posts the hold that is pending now.
        assert_eq!(
            world.redeem(&world.claims(&first)),
            Step::Done(ReportOutcome::Billed, Some(micros(300_000)))
        );
        assert_eq!(
            world.redeem(&world.claims(&second)),
            Step::Done(ReportOutcome::AlreadyBilled, Some(micros(300_000)))
        );
        assert_eq!(world.tab(world.open_tab(buyer)).lines, 1);
    });
}

#[test]
fn commission_is_the_floor_and_no_leg_is_zero() {
    each(|world| {
        let buyer = world.buyer();
        for (price, ppm, commission) in [
            (10_000, 25_000, 250),
            (1, 25_000, 0),
            (39, 25_000, 0),
            (40, 25_000, 1),
            (3, 500_000, 1),
        ] {
            let shop = world.shop_with(ppm);
            let before = world.totals(earnest_core::ledger::Account::PlatformRevenue.usd());
            world.spend(buyer, &shop, price);
            let after = world.totals(earnest_core::ledger::Account::PlatformRevenue.usd());
            let earned = world.totals(earnest_core::ledger::Account::SellerAccrued(shop.id).usd());
            let kept = after.credits_posted.get() - before.credits_posted.get();
            assert_eq!((kept, earned.credits_posted.get()), (commission, price - commission));
        }
    });
}

#[test]
fn the_window_of_a_rate_slides_and_refusals_do_not_fill_it() {
    each(|world| {
        let rate = earnest_core::policy::Rate { count: 3, per_seconds: 60 };
        let buyer = world.buyer_with(Limits { rate: Some(rate), ..Limits::default() });
        let shop = world.shop();
        for second in 0..3 {
            world.buy(buyer, &shop, 1_000);
            world.pass(10);
            let window: RateWindow = world.row(buyer.agent);
            assert_eq!(window.times.len(), second + 1);
        }
        // Asked at 0, 10 and 20; now it is 30.
        for _ in 0..5 {
            let Ok(answer) = world.authorize(buyer, "fourth", &world.fixed(&shop, 1_000)) else {
                panic!("a refusal by policy is an answer");
            };
            let Outcome::Denied(_, refusal) = answer.outcome else { panic!("over the rate") };
            assert_eq!(refusal.retry_after_seconds, Some(30));
        }
        world.pass(29);
        assert_eq!(
            world.word(buyer, "fourth", &world.fixed(&shop, 1_000)),
            "policy_denied/rate_limit"
        );
        world.pass(1);
        assert_eq!(world.word(buyer, "fourth", &world.fixed(&shop, 1_000)), "held");
        // A failing loop is limited too: what a cap refuses counts.
        let limits =
            Limits { rate: Some(rate), per_call_cap_micros: Some(micros(1)), ..Limits::default() };
        world.limit(PolicySubject::Owner(buyer.owner), buyer.owner, limits);
        world.pass(60);
        let asked = |n: i32| world.word(buyer, &format!("loop{n}"), &world.fixed(&shop, 1_000));
        let words: Vec<_> = (0..5).map(asked).collect();
        assert_eq!(words[..3], ["policy_denied/per_call_cap"; 3]);
        // The cap comes before the rate, so the reason stays the cap's.
        assert_eq!(words[3..], ["policy_denied/per_call_cap"; 2]);
        let window: RateWindow = world.row(buyer.agent);
        assert_eq!(window.times.len(), 3, "never more than the limit counts");
    });
}

#[test]
fn a_closing_tab_takes_nothing_and_the_next_one_opens_when_it_is_settled() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let pending = world.buy(buyer, &shop, 100_000);
        let tab = world.open_tab(buyer);
        world.close(buyer.owner, tab).unwrap();
        assert_eq!(world.word(buyer, ID, &world.fixed(&shop, 1_000)), "policy_denied/tab_closed");
        let waited = world.treasure(buyer.owner, tab, false);
        assert!(matches!(waited, earnest_core::settlement::Settled::Waited(_)), "a hold is open");
        world.redeem(&world.claims(&pending));
        let settlement = world.settle(buyer.owner, tab);
        assert_eq!(world.tab(tab).state, TabState::Closed);
        // The debt of the closed tab counts against the room of the next, but a purchase passes.
        assert_eq!(world.word(buyer, ID, &world.fixed(&shop, 1_000)), "held");
        assert_ne!(world.open_tab(buyer), tab);
        world.capture(&settlement);
        assert!(world.tab(tab).finished);
    });
}

#[test]
fn a_unit_that_is_refused_early_does_not_touch_the_agent() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let before: Agent = world.row(buyer.agent);
        let stale = world.fixed(&shop, 1_000);
        world.pass(600);
        let refused = world.authorize(buyer, ID, &stale);
        assert!(matches!(refused, Err(SubmitError::Refused(_))));
        assert_eq!(world.row::<Agent>(buyer.agent), before);
    });
}
