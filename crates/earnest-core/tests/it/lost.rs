//! Books that were restored: what they may not do, and what the life that was lost left at PayPal and
//! with sellers.

use earnest_core::answer::Verdict;
use earnest_core::cash::{CashKind, VoidCash};
use earnest_core::id::{IntentId, OwnerId, PurchaseId, Seed, SettlementId, TabId, VoucherId};
use earnest_core::intent::{Fate, Intent, IntentState};
use earnest_core::ledger::Account;
use earnest_core::lost::{
    BookLost, ClearLost, DecideLost, Found, KeepLost, LineState, LostCapture, LostLine, LostState,
    Marks,
};
use earnest_core::party::Owner;
use earnest_core::policy::Limits;
use earnest_core::purchase::{Purchase, PurchaseState, mark};
use earnest_core::quarantine::{
    Backup, BeginQuarantine, DoubtCalls, Import, KeepImport, Lift, PauseRestored, Quarantine,
};
use earnest_core::report::{Step, Told};
use earnest_core::settlement::{Settled, Settlement, SettlementState};
use earnest_core::suspense::Suspended;
use earnest_core::tab::Tab;
use earnest_core::voucher::{self, ReportOutcome};
use earnest_store::SubmitError;

use crate::cash;
use crate::world::{Buyer, Shop, World, each, marker, micros, said};

fn backup(world: &World) -> Backup {
    let (taken_at, seq, hash) = (world.now(), world.head(), "00".repeat(32));
    Backup { taken_at, seq, hash, epoch: "e1".to_owned() }
}

/// Puts the books in quarantine, as if they had been restored from a copy of this very moment.
pub fn restored(world: &World) -> Quarantine {
    let backup = backup(world);
    world.pass(60);
    world.run(BeginQuarantine { backup, epoch: "e2".to_owned(), replaced: Vec::new() }).unwrap()
}

/// Restored books in which a tab owes so much.
fn owing_to(world: &World, amount: i64) -> (Buyer, TabId, Shop) {
    let (buyer, shop) = (world.buyer(), world.shop());
    world.spend(buyer, &shop, amount);
    let tab = world.open_tab(buyer);
    restored(world);
    (buyer, tab, shop)
}

fn owing(world: &World, amount: i64) -> (Buyer, TabId) {
    let (buyer, tab, _) = owing_to(world, amount);
    (buyer, tab)
}

/// PayPal's records were read to the end, and the operator lifts.
fn lifted(world: &World) {
    let import = Import { complete_at: Some(world.now()), ..Import::default() };
    world.run(KeepImport { epoch: "e2".to_owned(), import }).unwrap();
    world.run(Lift { gap: None }).unwrap();
}

pub fn code<T: std::fmt::Debug>(done: Result<T, SubmitError>) -> String {
    match done {
        Err(SubmitError::Refused(refusal)) => said(&refusal),
        other => panic!("{other:?}"),
    }
}

/// A capture of the lost life for settlement `n` of a tab.
fn marks(world: &World, owner: OwnerId, tab: TabId, n: u64) -> Marks {
    let settlement = SettlementId::new(world.seed());
    marked(world, (owner, tab, n), settlement, &format!("LOST-{n}"))
}

/// The same, of a settlement and under an id of PayPal's.
fn marked(
    world: &World,
    (owner, tab, n): (OwnerId, TabId, u64),
    settlement: SettlementId,
    capture: &str,
) -> Marks {
    let (intent, custom) = (IntentId::new(world.seed()), format!("{settlement}.{owner}"));
    let (marker, any) = (marker(), micros(1));
    let invoice = marker.invoice("e1", (tab, n), intent, &custom, any);
    let marks = Marks::read(capture, &invoice, Some(&custom), any, &marker).unwrap();
    Marks { pays: Some(tab), ..marks }
}

fn book(world: &World, marks: &Marks, owner: OwnerId, found: Found) -> bool {
    let (marks, evidence) = (marks.clone(), world.evidence("import"));
    let owner = marks.pays.map(|_| owner);
    world.run(BookLost { marks, owner, found, evidence }).unwrap()
}

fn captured(world: &World, marks: &Marks, owner: OwnerId, amount: i64) -> bool {
    let charge = world.charge(&marks.capture, amount);
    book(world, marks, owner, Found::Done(charge))
}

/// Pays with what is left of a capture what its tab owes; how much that was.
fn clear(world: &World, capture: &str) -> i64 {
    let row: LostCapture = world.row(capture);
    let cleared = world.store.reader().row::<Suspended>(capture).unwrap();
    let unit = ClearLost {
        owner: row.owner.unwrap(),
        tab: row.marks.pays.unwrap(),
        capture: capture.to_owned(),
        settlement: row.marks.settlement,
        cleared: cleared.map_or(0, |row| row.times_paid),
    };
    world.run(unit).unwrap().get()
}

fn row(world: &World, tab: TabId, shop: &Shop, expect: [&str; 5]) {
    let accounts = [
        Account::TabOwed(tab),
        Account::PaypalCash,
        Account::PaypalFees,
        Account::SellerAccrued(shop.id),
        Account::Suspense,
    ];
    let found = accounts.map(|account| world.thousandths(account));
    assert_eq!(found, expect.map(str::to_owned));
}

#[test]
fn walk_e_restored_imported_and_the_held_line_reported_again() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        for _ in 0..3 {
            world.spend(buyer, &shop, 100_000);
        }
        let held = world.buy(buyer, &shop, 100_000);
        let tab = world.open_tab(buyer);
        row(world, tab, &shop, ["100/300/0/0", "0/0/0/0", "0/0/0/0", "0/0/100/300", "0/0/0/0"]);
        restored(world);
        let (first, second) =
            (marks(world, buyer.owner, tab, 1), marks(world, buyer.owner, tab, 2));
        assert!(captured(world, &first, buyer.owner, 950_000));
        assert!(captured(world, &second, buyer.owner, 500_000));
        let imported =
            ["100/300/0/300", "0/1450/0/1030", "0/1030/0/0", "0/0/100/300", "0/0/0/1150"];
        row(world, tab, &shop, imported);
        world.check();
        // Read again, after whatever cut the first reading off: nothing more is booked.
        assert!(!captured(world, &first, buyer.owner, 950_000));
        assert!(!captured(world, &second, buyer.owner, 500_000));
        row(world, tab, &shop, imported);
        let settlements: Vec<(u64, SettlementState, i64)> = world
            .all::<Settlement>()
            .iter()
            .map(|one| (one.n, one.state, one.lost_micros.get()))
            .collect();
        let state = SettlementState::Restored;
        assert_eq!(settlements, [(1, state, 650_000), (2, state, 500_000)]);

        // Reports are taken in while all else waits.
        let step = world.redeem(&world.claims(&held));
        assert_eq!(step, Step::Done(ReportOutcome::Billed, Some(micros(100_000))));
        assert_eq!(clear(world, "LOST-1"), 100_000);
        let reported = ["0/400/0/400", "0/1450/0/1030", "0/1030/0/0", "0/0/0/400", "0/100/0/1150"];
        row(world, tab, &shop, reported);
        assert_eq!(clear(world, "LOST-1"), 0, "nothing is owed");
        world.check();
        // And what is bought in the new life is paid by the rest first, before a capture.
        lifted(world);
        world.spend(buyer, &shop, 1_200_000);
        let settled = world.treasure(buyer.owner, tab, true);
        assert!(matches!(settled, Settled::Waited(_)), "{settled:?}");
        assert_eq!((clear(world, "LOST-1"), clear(world, "LOST-2")), (550_000, 500_000));
        assert_eq!(world.tab(tab).lost, Vec::<String>::new());
        let settlement = world.settle(buyer.owner, tab);
        assert_eq!((settlement.n, settlement.amount_micros), (3, micros(150_000)));
        world.capture(&settlement);
        assert_eq!(world.thousandths(Account::TabOwed(tab)), "0/1600/0/1600");
    });
}

#[test]
fn a_quarantine_lets_nothing_out() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 500_000);
        let held = world.buy_as(buyer, "held", &world.fixed(&shop, 100_000));
        let tab = world.open_tab(buyer);
        world.live(0);
        let planned = world.settle(buyer.owner, tab);
        let seq = world.head();
        restored(world);
        let expect = "quarantined";
        assert_eq!(world.word(buyer, "new", &world.fixed(&shop, 1_000)), expect);
        assert_eq!(world.word(buyer, "held", &world.fixed(&shop, 100_000)), expect);
        assert_eq!(code(world.claim(planned.intent)), expect, "nothing is sent");
        world.look(planned.intent);
        assert_eq!(code(world.write_off(buyer.owner, tab)), expect);
        assert_eq!(code(world.open(buyer.owner)), expect, "it would carry debts away");
        // No time passes for reports, so that no hold is given up.
        world.live(120 + 15 * 60 + 60);
        assert!(!world.expire(held.id));
        assert_eq!(world.row::<Purchase>(held.id).state, PurchaseState::Held);
        // Reports are taken in.
        let step = world.redeem(&world.claims(&held));
        assert_eq!(step, Step::Done(ReportOutcome::Billed, Some(micros(100_000))));
        let kinds = world.events_since(seq);
        assert!(kinds.iter().all(|kind| kind != "purchase.held" && kind != "purchase.expired"));
        // Not before PayPal's records are complete, or somebody bears the gap.
        assert_eq!(code(world.run(Lift { gap: None })), "state_conflict");
        let gap = "the report is down since Monday".to_owned();
        let row = world.run(Lift { gap: Some(gap.clone()) }).unwrap();
        assert_eq!(row.lifted.unwrap().gap, Some(gap));
        assert_eq!(world.word(buyer, "new", &world.fixed(&shop, 1_000)), "held");
        // Lifting again changes nothing.
        let head = world.head();
        let again = world.run(Lift { gap: None }).unwrap();
        assert!(!again.holds() && again.lifted.unwrap().gap.is_some());
        assert_eq!(
            world.store.reader().row::<Quarantine>(Quarantine::ID).unwrap().unwrap().epoch,
            "e2"
        );
        assert!(world.events_since(head).is_empty());
    });
}

#[test]
fn what_a_lost_life_may_have_sent_is_only_read() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 500_000);
        let tab = world.open_tab(buyer);
        let planned = world.settle(buyer.owner, tab);
        let other = world.buyer();
        world.spend(other, &shop, 700_000);
        let sent = world.settle(other.owner, world.open_tab(other));
        world.outcome(&sent, Fate::Unknown).unwrap();
        let row = restored(world);
        let intents = vec![planned.intent, sent.intent];
        world.run(DoubtCalls { intents: intents.clone() }).unwrap();
        world.run(DoubtCalls { intents }).unwrap();
        lifted(world);
        for settlement in [&planned, &sent] {
            let intent: Intent = world.row(settlement.intent);
            assert_eq!(intent.state, IntentState::Unknown);
            let (first, last) = intent.sent_between().unwrap();
            assert!(first <= intent.created_at && last == row.restored_at);
            assert_eq!(code(world.claim(settlement.intent)), "state_conflict");
        }
        // One turns out to have been captured, the other not; only then is it attempted again, under
        // the invoice that PayPal takes once, and under a key that no other life used.
        let charge = world.charge("CAPTURED", 500_000);
        let done = world.learnt(&planned, Fate::Done(charge)).unwrap();
        assert_eq!(done.state, SettlementState::Captured);
        let void = world.learnt(&sent, Fate::NotCharged).unwrap();
        assert_eq!(void.state, SettlementState::NotCharged);
        world.check();
        let again = world.treasure_in(other.owner, sent.tab, "e2");
        assert_eq!(again.invoice_id, sent.invoice_id);
        assert!(world.key_of(&again).starts_with("e2:"), "{}", world.key_of(&again));
        world.capture(&again);
    });
}

#[test]
fn agents_return_paused() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        restored(world);
        world.run(PauseRestored { agents: vec![buyer.agent] }).unwrap();
        lifted(world);
        let word = world.word(buyer, "new", &world.fixed(&shop, 1_000));
        assert_eq!(word, "policy_denied/agent_paused");
        world.pause(earnest_core::admin::Pausable::Agent(buyer.owner, buyer.agent), false);
        assert_eq!(world.word(buyer, "new", &world.fixed(&shop, 1_000)), "held");
    });
}

/// Below a cent stays on the tab, whoever captured the rest.
#[test]
fn a_lost_capture_leaves_what_it_did_not_reach() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        for _ in 0..3 {
            world.spend(buyer, &shop, 101_500);
        }
        let tab = world.open_tab(buyer);
        restored(world);
        let marks = marks(world, buyer.owner, tab, 1);
        captured(world, &marks, buyer.owner, 300_000);
        let row: Tab = world.tab(tab);
        assert_eq!((row.carry_micros, row.settlements), (micros(4_500), 1));
        assert_eq!(world.totals(Account::TabOwed(tab).usd()).collectible(), micros(4_500));
        assert!(row.lost.is_empty());
        world.check();
        lifted(world);
        world.spend(buyer, &shop, 5_500);
        let settlement = world.settle(buyer.owner, tab);
        assert_eq!((settlement.carry_in_micros, settlement.n), (micros(4_500), 2));
        world.capture(&settlement);
    });
}

#[test]
fn a_lost_capture_is_booked_once() {
    each(|world| {
        let (buyer, tab) = owing(world, 300_000);
        let marks = marks(world, buyer.owner, tab, 1);
        assert!(captured(world, &marks, buyer.owner, 300_000));
        let head = world.head();
        for amount in [300_000, 950_000] {
            assert!(!captured(world, &marks, buyer.owner, amount));
        }
        for found in [Found::Pending, Found::Gone] {
            assert!(!book(world, &marks, buyer.owner, found));
        }
        assert!(world.events_since(head).is_empty());
        assert_eq!(world.thousandths(Account::PaypalCash), "0/300/0/500");
    });
}

/// The operator took it for a deposit: it is booked as what it is once that is taken back.
#[test]
fn a_lost_capture_that_was_recorded_by_hand_has_one_effect() {
    each(|world| {
        let (buyer, tab) = owing(world, 300_000);
        let marks = marks(world, buyer.owner, tab, 1);
        world.run(cash::entry(CashKind::Deposit, &marks.capture, 300_000, None)).unwrap();
        assert!(!captured(world, &marks, buyer.owner, 300_000));
        assert_eq!(world.thousandths(Account::PaypalCash), "0/300/0/0");
        let void = VoidCash {
            paypal_id: marks.capture.clone(),
            owner: None,
            gave_back: None,
            reason: "it was a capture of ours".to_owned(),
            went_back: false,
            key: cash::key("void", "x"),
        };
        world.run(void).unwrap();
        assert!(captured(world, &marks, buyer.owner, 300_000));
        assert!(!captured(world, &marks, buyer.owner, 300_000));
        assert_eq!(world.thousandths(Account::TabOwed(tab)), "0/300/0/300");
        world.check();
    });
}

#[test]
fn what_a_lost_life_captured_pays_first() {
    each(|world| {
        let (buyer, tab, shop) = owing_to(world, 300_000);
        let marks = marks(world, buyer.owner, tab, 1);
        captured(world, &marks, buyer.owner, 950_000);
        lifted(world);
        world.spend(buyer, &shop, 600_000);
        for asked in [true, false] {
            let settled = world.treasure(buyer.owner, tab, asked);
            assert!(matches!(settled, Settled::Waited(_)), "{settled:?}");
        }
        assert_eq!(clear(world, &marks.capture), 600_000);
        // A tab that ends takes its rest nowhere while something of it is still to be paid that way.
        world.spend(buyer, &shop, 4_000);
        world.close(buyer.owner, tab).unwrap();
        assert!(matches!(world.treasure(buyer.owner, tab, false), Settled::Waited(_)));
        assert_eq!(clear(world, &marks.capture), 4_000);
        let settled = world.treasure(buyer.owner, tab, false);
        assert!(matches!(settled, Settled::Carried(_)), "{settled:?}");
        assert!(world.tab(tab).finished);
        assert_ne!(world.open(buyer.owner).unwrap().id, tab);
    });
}

/// PayPal still decides about a capture of the lost life: its tab waits, and nothing is charged
/// beside it.
#[test]
fn a_lost_capture_that_is_pending_keeps_its_tab_waiting() {
    each(|world| {
        for ends in [true, false] {
            let (buyer, shop) = (world.buyer(), world.shop());
            world.spend(buyer, &shop, 950_000);
            let tab = world.open_tab(buyer);
            if ends {
                restored(world);
            }
            let mut marks = marks(world, buyer.owner, tab, 1);
            marks.capture = format!("PENDING-{ends}");
            assert!(book(world, &marks, buyer.owner, Found::Pending));
            if ends {
                lifted(world);
            }
            let settled = world.treasure(buyer.owner, tab, true);
            assert!(matches!(settled, Settled::Waited(_)), "{settled:?}");
            assert_eq!(clear(world, &marks.capture), 0);
            if ends {
                assert!(captured(world, &marks, buyer.owner, 950_000));
                assert_eq!(world.thousandths(Account::TabOwed(tab)), "0/950/0/950");
                continue;
            }
            assert!(book(world, &marks, buyer.owner, Found::Gone));
            assert_eq!(world.row::<LostCapture>(&marks.capture).state, LostState::Gone);
            let settlement = world.settle(buyer.owner, tab);
            assert_eq!(settlement.amount_micros, micros(950_000));
            world.capture(&settlement);
        }
    });
}

/// Nobody of these books is meant: it waits in suspense, and can be given back.
#[test]
fn a_lost_capture_without_a_tab_is_in_suspense() {
    each(|world| {
        let buyer = world.buyer();
        restored(world);
        let gone = TabId::new(world.seed());
        let marks = Marks { pays: None, ..marks(world, buyer.owner, gone, 1) };
        assert!(captured(world, &marks, buyer.owner, 950_000));
        assert!(!captured(world, &marks, buyer.owner, 950_000));
        assert_eq!(world.thousandths(Account::Suspense), "0/0/0/950");
        let row: Suspended = world.row(&marks.capture);
        assert_eq!(row.invoice_id, Some(marks.invoice_id.clone()));
    });
}

#[test]
fn a_refund_of_a_lost_capture_comes_out_of_what_waits() {
    each(|world| {
        let (buyer, tab) = owing(world, 300_000);
        let marks = marks(world, buyer.owner, tab, 1);
        captured(world, &marks, buyer.owner, 950_000);
        let settlement: Settlement = world.row(marks.settlement);
        assert!(world.give_back(&settlement, "REFUND-1", 600_000));
        assert_eq!(world.thousandths(Account::Suspense), "0/600/0/650");
        world.check();
        // What is left pays on; more than that does not.
        lifted(world);
        assert!(world.give_back(&settlement, "REFUND-2", 50_000));
        assert_eq!(clear(world, &marks.capture), 0);
        assert!(world.tab(tab).lost.is_empty());
    });
}

/// A report of a purchase that only the seller's voucher still knows.
fn told_of_lost(world: &World, shop: &Shop, buyer: Buyer, request_id: &str, price: i64) -> Told {
    let seed = Seed { random: mark(buyer.agent, request_id), ..world.seed() };
    let quote = world.fixed(shop, price);
    let iat = world.now().as_second();
    let claims = voucher::Claims {
        iss: "https://earnest.example".to_owned(),
        aud: shop.id,
        sub: PurchaseId::new(seed),
        jti: VoucherId::new(world.seed()),
        iat,
        exp: iat + voucher::LIFE_SECONDS,
        amount_micros: micros(price),
        max_micros: None,
        currency: quote.currency,
        quote: quote.id,
        listing: quote.listing,
        method: quote.request.method,
        resource: quote.request.url,
        body: quote.request.body_sha256,
    };
    world.told(&claims, voucher::Fate::Redeemed)
}

#[test]
fn a_lost_purchase_is_not_bought_again_under_its_id() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop_with(100_000));
        world.spend(buyer, &shop, 300_000);
        let tab = world.open_tab(buyer);
        let early = told_of_lost(world, &shop, buyer, "early", 1_000);
        world.pass(1);
        let keep = |told: &Told| world.run(KeepLost { told: told.clone() }).unwrap();
        let rejected = Step::Rejected(earnest_core::problem::Code::NotFound);
        assert_eq!(keep(&early), rejected, "never restored");
        let told: Vec<Told> =
            ["a", "b", "c", "d"].map(|id| told_of_lost(world, &shop, buyer, id, 100_000)).into();
        restored(world);
        assert_eq!(keep(&early), rejected, "the backup would know it");
        let kept = Step::Done(ReportOutcome::Kept, Some(micros(100_000)));
        for told in &told[..3] {
            assert_eq!(keep(told), kept);
            assert_eq!(keep(told), kept);
        }
        let failed = Told { fate: voucher::Fate::Failed, ..told[3].clone() };
        assert_eq!(keep(&failed), Step::Done(ReportOutcome::Released, None));
        let stranger = Told { seller: world.shop().id, ..told[3].clone() };
        assert_eq!(keep(&stranger), rejected);
        assert_eq!(world.all::<LostLine>().len(), 3);

        let marks = marks(world, buyer.owner, tab, 1);
        captured(world, &marks, buyer.owner, 450_000);
        let decide = |told: &Told, state: LineState| {
            world.run(DecideLost { purchase: told.claims.sub, seller: shop.id, state })
        };
        let suspense = || LineState::PaidFromSuspense { capture: marks.capture.clone() };
        decide(&told[0], suspense()).unwrap();
        decide(&told[0], suspense()).unwrap();
        assert_eq!(code(decide(&told[0], LineState::PaidByOperator)), "state_conflict");
        assert_eq!(code(decide(&told[1], suspense())), "state_conflict", "0.05 is left");
        decide(&told[1], LineState::PaidByOperator).unwrap();
        decide(&told[2], LineState::Refused).unwrap();
        assert_eq!(world.thousandths(Account::SellerAccrued(shop.id)), "0/0/0/450");
        assert_eq!(world.thousandths(Account::PlatformRevenue), "0/0/0/50");
        assert_eq!(world.thousandths(Account::Losses), "0/100/0/0");
        assert_eq!(world.thousandths(Account::Suspense), "0/100/0/150");
        let billed = Step::Done(ReportOutcome::AlreadyBilled, Some(micros(100_000)));
        assert_eq!((keep(&told[0]), keep(&told[1])), (billed.clone(), billed));
        assert_eq!(keep(&told[2]), Step::Done(ReportOutcome::LateUnbilled, None));

        lifted(world);
        let word = |id: &str| {
            let mut unit = world.unit(buyer, id, &world.fixed(&shop, 100_000));
            let seed = Seed { random: mark(buyer.agent, id), ..world.seed() };
            unit.ids.purchase = PurchaseId::new(seed);
            match world.run(unit) {
                Ok(answer) => format!("{:?}", answer.outcome).split('(').next().unwrap().to_owned(),
                Err(SubmitError::Refused(refusal)) => said(&refusal),
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!((word("a").as_str(), word("b").as_str()), ("state_conflict", "state_conflict"));
        // Nobody paid for it, or nobody reported it: it may be bought.
        assert_eq!((word("c").as_str(), word("d").as_str()), ("Held", "Held"));
        let other = world.agent(buyer.owner);
        assert_eq!(world.word(other, "a", &world.fixed(&shop, 100_000)), "held");
    });
}

/// Vouchers that were issued between the copy and the restore, for purchases that the copy knew: of
/// whatever they are to the books, nothing is final, and the same is not sold again.
#[test]
fn what_a_lost_life_sold_is_never_final_here() {
    each(|world| {
        let limits = Limits { approve_above_micros: Some(micros(200_000)), ..Limits::default() };
        let (buyer, shop) = (world.buyer_with(limits), world.shop());
        let small = world.fixed(&shop, 100_000);
        let expired = world.buy_as(buyer, "expired", &small);
        world.outlive();
        assert!(world.expire(expired.id));
        let (waiting, approval) = world.ask(buyer, "waiting", &world.fixed(&shop, 300_000));
        let released = world.buy_as(buyer, "released", &world.fixed(&shop, 100_000));
        world.report(&world.told(&world.claims(&released), voucher::Fate::Failed));
        let held = world.buy_as(buyer, "held", &world.fixed(&shop, 100_000));
        let early = world.claims(&world.row(expired.id));
        world.pass(1);
        let lost = |purchase: PurchaseId, price: i64| {
            let told = told_of_lost(world, &shop, buyer, "x", price);
            Told { claims: voucher::Claims { sub: purchase, ..told.claims }, ..told }
        };
        let told = [(waiting.id, 300_000), (expired.id, 100_000), (released.id, 100_000)]
            .map(|(purchase, price)| lost(purchase, price));
        let of_held = lost(held.id, 100_000);
        restored(world);
        world.run(PauseRestored { agents: vec![buyer.agent] }).unwrap();
        // What the copy itself sold waits for a decision, too: its agent is paused.
        let early = world.told(&early, voucher::Fate::Redeemed);
        assert_eq!(world.report(&early), Step::Wait);
        for told in &told {
            let kept = Step::Done(ReportOutcome::Kept, Some(told.claims.amount_micros));
            assert_eq!((world.report(told), world.report(told)), (kept.clone(), kept));
        }
        let failed = Told { fate: voucher::Fate::Failed, ..told[0].clone() };
        assert_eq!(world.report(&failed), Step::Done(ReportOutcome::Released, None));
        // One purchase posts once, for any of its vouchers.
        let billed = Step::Done(ReportOutcome::Billed, Some(micros(100_000)));
        assert_eq!(world.report(&of_held), billed);
        assert_eq!(world.all::<LostLine>().len(), 3);
        lifted(world);
        world.pause(earnest_core::admin::Pausable::Agent(buyer.owner, buyer.agent), false);
        world.answer(&approval, Verdict::Approve).unwrap();
        for (id, price) in [("waiting", 300_000), ("expired", 100_000), ("released", 100_000)] {
            let quote = world.fixed(&shop, price);
            assert_eq!(world.word(buyer, id, &quote), "state_conflict", "{id}");
        }
        let refused = LineState::Refused;
        let (purchase, seller) = (released.id, shop.id);
        world.run(DecideLost { purchase, seller, state: refused }).unwrap();
        assert_eq!(world.word(buyer, "released", &world.fixed(&shop, 100_000)), "held");
        world.check();
    });
}

/// The same id was sold again before its first seller's report came: the line of today is not taken
/// for the delivery of the lost life.
#[test]
fn a_hold_of_this_life_is_not_posted_for_a_voucher_of_another() {
    each(|world| {
        let limits = Limits { approve_above_micros: Some(micros(200_000)), ..Limits::default() };
        let (buyer, shop) = (world.buyer_with(limits), world.shop());
        let (waiting, approval) = world.ask(buyer, "dear", &world.fixed(&shop, 300_000));
        world.pass(1);
        let told = told_of_lost(world, &shop, buyer, "dear", 300_000);
        let told = Told { claims: voucher::Claims { sub: waiting.id, ..told.claims }, ..told };
        restored(world);
        lifted(world);
        world.pass(1);
        world.answer(&approval, Verdict::Approve).unwrap();
        let sold = world.buy_as(buyer, "dear", &world.fixed(&shop, 300_000));
        let kept = Step::Done(ReportOutcome::Kept, Some(micros(300_000)));
        assert_eq!(world.report(&told), kept);
        let billed = Step::Done(ReportOutcome::Billed, Some(micros(300_000)));
        assert_eq!(world.redeem(&world.claims(&sold)), billed);
        assert_eq!(world.report(&told), kept);
        world.check();
    });
}

/// A late line that the lost life may have found room for is the operator's, not nobody's.
#[test]
fn a_late_line_of_before_the_copy_is_not_given_up_for_a_pause() {
    each(|world| {
        for (again, expect) in [(false, ReportOutcome::Kept), (true, ReportOutcome::LateBilled)] {
            let (buyer, shop) = (world.buyer(), world.shop());
            world.spend(buyer, &shop, 100_000);
            let late = world.buy(buyer, &shop, 100_000);
            world.outlive();
            assert!(world.expire(late.id));
            restored(world);
            world.run(PauseRestored { agents: vec![buyer.agent] }).unwrap();
            let told = world.told(&world.claims(&late), voucher::Fate::Redeemed);
            assert_eq!(world.report(&told), Step::Wait);
            assert_eq!(world.row::<Purchase>(late.id).state, PurchaseState::Expired);
            world.run(Lift { gap: Some("a test".to_owned()) }).unwrap();
            if again {
                let agent = earnest_core::admin::Pausable::Agent(buyer.owner, buyer.agent);
                world.pause(agent, false);
            }
            assert_eq!(world.report(&told), Step::Done(expect, Some(micros(100_000))));
        }
    });
}

#[test]
fn an_import_is_complete_when_all_of_it_has_its_place() {
    each(|world| {
        restored(world);
        let complete_at = Some(world.now());
        let import = Import { complete_at, unexplained: 1, ..Import::default() };
        world.run(KeepImport { epoch: "e2".to_owned(), import }).unwrap();
        assert_eq!(code(world.run(Lift { gap: None })), "state_conflict");
        lifted(world);
    });
}

#[test]
fn every_entry_has_the_epoch_that_it_was_written_in() {
    each(|world| {
        let begin = |epoch: &str, next: &str, replaced: &[&str]| {
            let (taken_at, seq) = (world.now(), world.head());
            let backup = Backup { taken_at, seq, hash: "00".repeat(32), epoch: epoch.to_owned() };
            world.pass(60);
            let replaced = replaced.iter().map(|epoch| (*epoch).to_owned()).collect();
            world.run(BeginQuarantine { backup, epoch: next.to_owned(), replaced }).unwrap()
        };
        world.buyer();
        let first = begin("e1", "e2", &[]);
        world.pass(600);
        let second = begin("e2", "e3", &["e9", "e2", "e3"]);
        assert_eq!(second.ended, ["e1", "e2", "e9"]);
        let epochs = [1, first.backup.seq, first.backup.seq + 1, second.backup.seq, world.head()];
        assert_eq!(epochs.map(|seq| second.epoch_of(seq)), ["e1", "e1", "e2", "e2", "e3"]);
        let second_of = |row: &Quarantine| row.restored_at.as_second();
        assert_eq!(second.lost_at(second_of(&first)), Some(first.restored_at));
        assert_eq!(second.lost_at(second_of(&first) + 1).is_some(), first.holds());
        assert_eq!(second.lost_at(second_of(&second)), Some(second.restored_at));
        assert_eq!(second.lost_at(second_of(&second) + 1), None);
        assert!(second.is_unsure_at(None) && second.is_unsure_at(Some(first.backup.taken_at)));
        assert!(!second.is_unsure_at(Some(earnest_core::time::after(world.now(), 3_601))));
    });
}

/// Whoever writes our marks on a cent of his own pays a cent: a declined tab stays frozen as long as it
/// owes, what it owes stays as old as it is, and no number that is claimed uses up the count.
#[test]
fn a_cent_under_our_marks_thaws_nothing() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 500_000);
        let tab = world.open_tab(buyer);
        let declined = world.settle(buyer.owner, tab);
        world.decline(&declined);
        let before: Tab = world.row(tab);
        restored(world);
        let settlement = SettlementId::new(world.seed());
        let forged = marked(world, (buyer.owner, tab, u64::MAX), settlement, "CENT");
        assert!(captured(world, &forged, buyer.owner, 10_000));
        let (after, owner): (Tab, Owner) = (world.row(tab), world.row(buyer.owner));
        assert_eq!((after.state, owner.frozen_tab), (before.state, Some(tab)));
        assert_eq!(after.unsettled_since, before.unsettled_since);
        assert_eq!(after.settlements, before.settlements + 1);
    });
}

/// A second capture for one settlement is a stranger's, and no fault: it waits under a reason of its own,
/// freezes nobody and keeps no tab waiting, pending or not.
#[test]
fn a_settlement_is_restored_from_one_capture() {
    each(|world| {
        let (buyer, tab) = owing(world, 500_000);
        let settlement = SettlementId::new(world.seed());
        let marks = |name: &str| marked(world, (buyer.owner, tab, 1), settlement, name);
        let (first, second) = (marks("FIRST"), marks("SECOND"));
        assert!(book(world, &second, buyer.owner, Found::Pending));
        assert!(captured(world, &first, buyer.owner, 200_000));
        for again in [true, false] {
            let charge = earnest_core::intent::Charge {
                given_back: true,
                ..world.charge("SECOND", 200_000)
            };
            assert_eq!(book(world, &second, buyer.owner, Found::Done(charge)), again);
        }
        let row: Suspended = world.row("SECOND");
        let why = earnest_core::suspense::Why::SettledAlready;
        assert_eq!((row.why, row.settlement, row.intent), (why, None, None));
        assert_eq!(world.thousandths(Account::Suspense), "0/0/0/200");
        assert!(world.row::<Owner>(buyer.owner).frozen.is_none());
        assert!(world.row::<Tab>(tab).lost.is_empty());
        assert_eq!(world.breaches(), []);
    });
}

/// What a lost life captured pays for lines that wait; a settlement that is only to be tried again is
/// not kept waiting by what is left of it.
#[test]
fn a_settlement_to_be_tried_again_does_not_wait_for_what_cannot_pay_it() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 500_000);
        let tab = world.open_tab(buyer);
        let refused = world.settle(buyer.owner, tab);
        world.outcome(&refused, Fate::Refused { issue: "PAYEE".to_owned() }).unwrap();
        restored(world);
        let lost = marks(world, buyer.owner, tab, 2);
        assert!(captured(world, &lost, buyer.owner, 300_000));
        assert_eq!(world.row::<Tab>(tab).lost, ["LOST-2"]);
        lifted(world);
        world.pass(7 * 86_400);
        let settled = world.treasure(buyer.owner, tab, true);
        let Settled::Planned(settlement) = settled else { panic!("{settled:?}") };
        assert_eq!((settlement.id, settlement.attempt), (refused.id, 2));
    });
}

/// The same was asked for in two lives that were lost: two purchases under one mark, each with its seller's
/// report, and each is kept and decided.
#[test]
fn no_lost_purchase_is_swallowed_by_another() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop_with(100_000));
        let other = world.shop();
        let backup = backup(world);
        let first = told_of_lost(world, &shop, buyer, "a", 100_000);
        world.pass(1);
        let again = told_of_lost(world, &shop, buyer, "a", 200_000);
        world.pass(1);
        let elsewhere = told_of_lost(world, &other, buyer, "a", 300_000);
        let told = [&first, &again, &elsewhere];
        let marks = told.map(|told| LostLine::id_of(told.claims.sub));
        assert!(marks.iter().all(|mark| *mark == marks[0]));
        let epoch = "e2".to_owned();
        world.run(BeginQuarantine { backup, epoch, replaced: Vec::new() }).unwrap();
        let keep = |told: &Told| world.run(KeepLost { told: told.clone() }).unwrap();
        for told in told {
            let kept = Step::Done(ReportOutcome::Kept, Some(told.claims.amount_micros));
            assert_eq!((keep(told), keep(told)), (kept.clone(), kept));
        }
        assert_eq!(world.all::<LostLine>().len(), 3);
        let stranger = Told { seller: other.id, ..again.clone() };
        assert_eq!(keep(&stranger), Step::Rejected(earnest_core::problem::Code::NotFound));
        for told in [&again, &elsewhere] {
            let (purchase, seller) = (told.claims.sub, told.seller);
            world.run(DecideLost { purchase, seller, state: LineState::PaidByOperator }).unwrap();
            let billed = Step::Done(ReportOutcome::AlreadyBilled, Some(told.claims.amount_micros));
            assert_eq!(keep(told), billed);
        }
        assert_eq!(world.thousandths(Account::Losses), "0/500/0/0");
        // The first one refused, the others were delivered all the same.
        let (purchase, seller) = (first.claims.sub, shop.id);
        world.run(DecideLost { purchase, seller, state: LineState::Refused }).unwrap();
        lifted(world);
        let mut unit = world.unit(buyer, "a", &world.fixed(&shop, 100_000));
        unit.ids.purchase =
            PurchaseId::new(Seed { random: mark(buyer.agent, "a"), ..world.seed() });
        assert_eq!(code(world.run(unit)), "state_conflict");
        assert_eq!(world.breaches(), []);
    });
}
