//! Taking back what was recorded by hand: once, only while what it brought is there, and then PayPal's
//! record may be booked as what it is.

use earnest_core::admin::SetCredit;
use earnest_core::cash::{CashEntry, CashKind, LookedCash, RecordCash, VoidCash};
use earnest_core::id::OwnerId;
use earnest_core::intent::Fate;
use earnest_core::ledger::Account;
use earnest_core::party::Owner;
use earnest_core::reconcile::{self, Begin, Keep, Movement, Reconciliation, Report, Sources};
use earnest_core::reversal::Reversal;
use earnest_core::settlement::{Settlement, SettlementState};
use earnest_core::time::Timestamp;
use earnest_core::unit::Key;
use earnest_store::SubmitError;

use crate::cash::{cash, entry, in_debt, key, refusal, unasked};
use crate::world::{World, each, micros};

fn void(world: &World, id: &str, name: &str) -> Result<CashEntry, SubmitError> {
    let row = world.store.reader().row::<CashEntry>(id).unwrap();
    world.run(VoidCash {
        paypal_id: id.to_owned(),
        owner: row.as_ref().and_then(|row| row.owner),
        gave_back: row.and_then(|row| row.gave_back),
        reason: "it was something else".to_owned(),
        went_back: false,
        key: Key { family: "cash_void", ..key(name, id) },
    })
}

fn deposit(world: &World, id: &str, amount: i64) {
    world.run(entry(CashKind::Deposit, id, amount, None)).unwrap();
}

/// The same once more, by another wish.
fn again(kind: CashKind, id: &str, amount: i64, owner: Option<OwnerId>) -> RecordCash {
    RecordCash { key: key(&format!("{id} again"), "x"), ..entry(kind, id, amount, owner) }
}

/// What the comparison with PayPal's records takes from our side.
fn movements(world: &World) -> Vec<Movement> {
    let rows = world.rows();
    reconcile::ours(Sources {
        settlements: &mut rows.settlements.values(),
        suspended: &mut rows.suspended.values(),
        reversals: &mut rows.reversals.values(),
        entries: &mut rows.cash_entries.values(),
        withheld: &mut rows.withheld.values(),
    })
}

/// How many voided entries PayPal is still asked about.
fn asked_about(world: &World) -> usize {
    let list = "cash_entries.voided";
    world.store.reader().list::<CashEntry>(list, "", None, 10, false).unwrap().items.len()
}

#[test]
fn a_cash_entry_is_voided_once() {
    each(|world| {
        deposit(world, "OTHER", 2_000_000);
        let fee = micros(250_000);
        let made = RecordCash { fee, ..entry(CashKind::Deposit, "DEP", 5_000_000, None) };
        world.run(made).unwrap();
        assert_eq!(cash(world), "0/7000/0/250");
        assert_eq!(refusal(void(world, "NONE", "none")), "not_found");
        let row = void(world, "DEP", "a").unwrap();
        assert_eq!(row.voided.as_ref().unwrap().reason, "it was something else");
        assert_eq!(void(world, "DEP", "a").unwrap(), row, "a repeat is the same");
        assert_eq!(refusal(void(world, "DEP", "b")), "state_conflict");
        assert_eq!(cash(world), "0/7250/0/5250");
        assert_eq!(world.thousandths(Account::OperatorFunds), "0/5000/0/7000");
        assert_eq!(world.thousandths(Account::PaypalFees), "0/250/0/250");
        let known = movements(world).into_iter().map(|one| one.id);
        assert_eq!(known.collect::<Vec<_>>(), ["OTHER"]);
        world.check();
    });
}

/// What it brought is still there; and whatever is recorded again under the id keeps its history.
#[test]
fn what_a_voided_entry_brought_must_still_be_there() {
    each(|world| {
        deposit(world, "DEP", 1_000_000);
        world.run(entry(CashKind::Withdrawal, "OUT", 600_000, None)).unwrap();
        let before = cash(world);
        assert_eq!(refusal(void(world, "DEP", "early")), "state_conflict");
        assert_eq!((cash(world), asked_about(world)), (before, 0));
        // First what took it out; then the key that was refused may be used again.
        void(world, "OUT", "out").unwrap();
        void(world, "DEP", "early").unwrap();
        assert_eq!(cash(world), "0/1600/0/1600");
        world.check();
        // As it should have been.
        world.pass(60);
        let right = world.run(again(CashKind::Deposit, "DEP", 900_000, None)).unwrap();
        assert_eq!((right.earlier.len(), &right.voided), (1, &None));
        assert_eq!(right.earlier[0].amount_micros, micros(1_000_000));
        assert!(right.earlier[0].voided.is_some());
        assert_eq!(movements(world)[0].at, right.earlier[0].at, "known since then");
        assert_eq!(cash(world), "0/2500/0/1600");
        world.check();
        // And that may be taken back as well.
        let row = void(world, "DEP", "second").unwrap();
        assert!(row.voided.is_some() && row.earlier.len() == 1);
        assert_eq!(cash(world), "0/2500/0/2500");
        world.check();
    });
}

/// The debt stands again, and its owner, whoever lifted the freeze meanwhile, is frozen.
#[test]
fn a_voided_repayment_is_owed_again() {
    each(|world| {
        deposit(world, "FEES", 2_000_000);
        let (buyer, shop, _) = in_debt(world, 300_000);
        let owner = buyer.owner;
        let debt = || world.totals(Account::OwnerDebt(owner).usd()).collectible().get();
        world.run(entry(CashKind::Repayment, "PAID", 300_000, Some(owner))).unwrap();
        let line = Some(Some(micros(1_000_000)));
        world.run(SetCredit { owner, line, unfreeze: true }).unwrap();
        world.spend(buyer, &shop, 100_000);
        assert_eq!(debt(), 0);
        void(world, "PAID", "a").unwrap();
        assert_eq!(debt(), 300_000);
        assert!(world.row::<Owner>(owner).frozen.is_some());
        let refused = world.word(buyer, "more", &world.fixed(&shop, 1_000));
        assert_eq!(refused, "policy_denied/owner_frozen");
        // Somebody else's debt, as it should have been; never below nothing.
        let other = in_debt_as(world, "CAP2", "R2", 200_000);
        let to = |amount| again(CashKind::Repayment, "PAID", amount, Some(other));
        assert_eq!(refusal(world.run(to(200_001))), "state_conflict");
        let row = world.run(to(200_000)).unwrap();
        assert_eq!((row.owner, row.earlier[0].owner), (Some(other), Some(owner)));
        world.check();
    });
}

/// A repayment whose cash was taken out cannot be taken back before that is.
#[test]
fn a_void_takes_no_cash_that_is_not_there() {
    each(|world| {
        let (buyer, _, _) = in_debt(world, 400_000);
        let owner = Some(buyer.owner);
        deposit(world, "FEES", 520_000);
        world.run(entry(CashKind::Repayment, "PAID", 400_000, owner)).unwrap();
        world.run(entry(CashKind::Withdrawal, "OUT", 400_000, None)).unwrap();
        assert_eq!(refusal(void(world, "PAID", "a")), "state_conflict");
        assert_eq!(refusal(void(world, "FEES", "b")), "state_conflict");
        world.check();
    });
}

/// What PayPal took back is no wish: it is taken back though the cash is gone, once, whoever does it.
#[test]
fn a_repayment_that_went_back_waits_for_no_cash() {
    each(|world| {
        let (buyer, _, _) = in_debt(world, 400_000);
        let owner = Some(buyer.owner);
        let debt = || world.totals(Account::OwnerDebt(buyer.owner).usd()).collectible().get();
        deposit(world, "FEES", 520_000);
        world.run(entry(CashKind::Repayment, "PAID", 400_000, owner)).unwrap();
        world.run(entry(CashKind::Withdrawal, "OUT", 400_000, None)).unwrap();
        assert_eq!(debt(), 0);
        let back = |name: &str| VoidCash {
            paypal_id: "PAID".to_owned(),
            owner,
            gave_back: None,
            reason: "it went back at PayPal".to_owned(),
            went_back: true,
            key: Key { family: "cash_void", ..key(name, "PAID") },
        };
        world.run(back("a")).unwrap();
        assert_eq!(debt(), 400_000);
        assert!(world.row::<Owner>(buyer.owner).frozen.is_some());
        assert_eq!(refusal(world.run(back("b"))), "state_conflict");
        assert_eq!(refusal(void(world, "PAID", "c")), "state_conflict");
        assert_eq!(debt(), 400_000);
        world.check();
    });
}

/// PayPal is asked about a repayment until it is known whether it still has it; about nothing else.
#[test]
fn a_repayment_is_asked_about_since_it_was_recorded() {
    each(|world| {
        let (buyer, _, _) = in_debt(world, 400_000);
        let owner = Some(buyer.owner);
        let asked = || {
            let list = "cash_entries.unread";
            let page = world.store.reader().list::<CashEntry>(list, "", None, 10, false).unwrap();
            page.items.into_iter().map(|row| row.paypal_id).collect::<Vec<_>>()
        };
        deposit(world, "FEES", 520_000);
        world.run(entry(CashKind::Repayment, "ONE", 100_000, owner)).unwrap();
        world.run(entry(CashKind::Repayment, "TWO", 100_000, owner)).unwrap();
        assert_eq!(asked(), ["ONE", "TWO"]);
        let looked = |id: &str, known| LookedCash { paypal_id: id.to_owned(), known };
        world.run(looked("ONE", true)).unwrap();
        world.run(looked("TWO", false)).unwrap();
        assert_eq!(asked(), ["TWO"]);
        for _ in 0..40 {
            world.run(looked("TWO", false)).unwrap();
        }
        assert_eq!(asked(), [""; 0]);
        world.check();
    });
}

/// A capture of ours that was taken for a deposit: its settlement waits, and ends on it once the
/// deposit is taken back; never on both.
#[test]
fn what_was_voided_is_booked_as_what_it_is() {
    each(|world| {
        let settlement = open(world);
        deposit(world, "CAP2", 400_000);
        let recorded = world.row::<CashEntry>("CAP2").at;
        let charge = || Fate::Done(world.charge("CAP2", 400_000));
        for _ in 0..2 {
            assert_eq!(world.outcome(&settlement, charge()).unwrap().state, SettlementState::Open);
        }
        unasked(world, "CAP2", 400_000);
        assert_eq!(cash(world), "400/400/0/0");
        world.pass(3_600);
        void(world, "CAP2", "a").unwrap();
        assert_eq!((cash(world).as_str(), asked_about(world)), ("400/400/0/400", 1));
        world.check();
        let done = world.outcome(&settlement, charge()).unwrap();
        assert_eq!(done.state, SettlementState::Captured);
        world.check();
        let after = cash(world);
        // One effect still: neither by hand again, nor as a stranger's, nor taken back twice.
        let more = again(CashKind::Deposit, "CAP2", 400_000, None);
        assert_eq!(refusal(world.run(more)), "state_conflict");
        assert_eq!(refusal(void(world, "CAP2", "b")), "state_conflict");
        unasked(world, "CAP2", 400_000);
        assert_eq!(cash(world), after);
        let known = movements(world);
        assert_eq!((known.len(), known[0].at), (1, recorded), "known since it was recorded");
        assert!(world.row::<CashEntry>("CAP2").voided.is_some(), "the history stays");
        // Asked about until it is known what it is.
        let paypal_id = "CAP2".to_owned();
        world.run(LookedCash { paypal_id, known: true }).unwrap();
        assert_eq!(asked_about(world), 0);
    });
}

/// A stranger's payment that was taken for a deposit goes to suspense.
#[test]
fn a_strangers_payment_is_booked_after_the_void_and_only_then() {
    each(|world| {
        deposit(world, "STRANGER", 950_000);
        unasked(world, "STRANGER", 950_000);
        assert_eq!(world.thousandths(Account::Suspense), "0/0/0/0");
        void(world, "STRANGER", "a").unwrap();
        unasked(world, "STRANGER", 950_000);
        unasked(world, "STRANGER", 950_000);
        assert_eq!(world.thousandths(Account::Suspense), "0/0/0/950");
        world.check();
        // PayPal is asked for a day, then no more.
        let mut looks = 0;
        while asked_about(world) > 0 {
            let paypal_id = "STRANGER".to_owned();
            world.run(LookedCash { paypal_id, known: false }).unwrap();
            looks += 1;
            assert!(looks <= 40);
        }
        assert!(looks >= 24);
    });
}

/// A refund that was taken for a withdrawal falls on the owner once that is taken back.
#[test]
fn a_refund_is_booked_after_the_void_and_only_then() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 400_000);
        let settlement = world.settle(buyer.owner, world.open_tab(buyer));
        let settlement = world.capture(&settlement);
        deposit(world, "OWN", 5_000_000);
        world.run(entry(CashKind::Withdrawal, "R1", 150_000, None)).unwrap();
        for _ in 0..2 {
            assert!(world.give_back(&settlement, "R1", 150_000));
        }
        let debt = || world.totals(Account::OwnerDebt(buyer.owner).usd()).collectible().get();
        assert_eq!(debt(), 0);
        let capture = settlement.paypal_capture.clone().unwrap();
        // Read before the refund was known to be one: something else stands there by now.
        let stale = VoidCash {
            paypal_id: "R1".to_owned(),
            owner: None,
            gave_back: None,
            reason: "stale".to_owned(),
            went_back: false,
            key: Key { family: "cash_void", ..key("stale", "R1") },
        };
        assert_eq!(refusal(world.run(stale)), "state_conflict");
        void(world, "R1", "a").unwrap();
        let row: Reversal = world.row(&capture);
        assert!(row.open && row.by_hand.is_empty());
        assert_eq!(row.named, ["R1"]);
        world.check();
        for _ in 0..2 {
            assert!(world.give_back(&settlement, "R1", 150_000));
        }
        assert_eq!(debt(), 150_000);
        let more = again(CashKind::Withdrawal, "R1", 150_000, None);
        assert_eq!(refusal(world.run(more)), "state_conflict");
        let settled: Settlement = world.row(settlement.id);
        assert_eq!(settled.given_back_micros, micros(150_000));
        world.check();
    });
}

/// A settlement of $0.40, its call committed.
fn open(world: &World) -> Settlement {
    let (buyer, shop) = (world.buyer(), world.shop());
    world.spend(buyer, &shop, 400_000);
    world.settle(buyer.owner, world.open_tab(buyer))
}

/// An owner in debt for a refund of so much.
fn in_debt_as(world: &World, capture: &str, refund: &str, back: i64) -> OwnerId {
    let settlement = open(world);
    let charge = Fate::Done(world.charge(capture, 400_000));
    let settlement = world.outcome(&settlement, charge).unwrap();
    assert!(world.give_back(&settlement, refund, back));
    settlement.owner
}

/// Books of an earlier version hold entries without a word about voids, and repayments as deposits.
#[test]
fn an_entry_of_an_earlier_version_is_read() {
    let stored = r#"{ "paypal_id": "D", "kind": "repayment", "owner": null, "amount_micros": 5000,
        "fee_micros": 0, "at": "2026-01-02T03:04:05Z" }"#;
    let row: CashEntry = serde_json::from_str(stored).unwrap();
    assert_eq!((&row.voided, &row.gave_back, row.earlier.len()), (&None, &None, 0));
    assert_eq!(row.known_at(), row.at);
    assert_eq!(row.movement().unwrap().gross_micros, 5_000);
}

/// A comparison that found nothing.
fn nothing(at: Timestamp) -> Report {
    Report {
        from: at,
        horizon: at,
        books_micros: 0,
        paypal_micros: None,
        in_transit_micros: 0,
        unexplained_micros: 0,
        matched: 0,
        netted_lines: 0,
        acknowledged_lines: 0,
        in_transit_lines: 0,
        in_transit: Vec::new(),
        unexplained_lines: 0,
        unexplained: Vec::new(),
    }
}

/// What was taken back may lie behind what comparisons look at: they look back again, as far as PayPal
/// answers, so that it is named until it is booked as what it is.
#[test]
fn what_is_taken_back_is_looked_for_again() {
    each(|world| {
        let began = world.now();
        world.run(Begin { began }).unwrap();
        let state = || world.row::<Reconciliation>(Reconciliation::ID);
        for days in [60, 4 * 365] {
            world.pass(days * 86_400);
            let (report, before, next_from) = (nothing(began), state().at, world.now());
            let (unexplained, next_earlier) = (Vec::new(), Vec::new());
            world.run(Keep { report, unexplained, before, next_from, next_earlier }).unwrap();
            assert_eq!(state().from, next_from);
            let id = format!("DEP{days}");
            deposit(world, &id, 500_000);
            void(world, &id, &id).unwrap();
            let from = state().from;
            // PayPal answers three years back, and no further.
            assert_eq!((from == began, from < next_from), (days == 60, true), "{from}");
        }
    });
}
