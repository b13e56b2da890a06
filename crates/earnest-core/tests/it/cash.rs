//! What the operator does with PayPal's balance by hand: deposits, withdrawals, debts, suspense.

use earnest_core::cash::{CashKind, RecordCash};
use earnest_core::debt::ForgiveDebt;
use earnest_core::id::{OwnerId, TransferId};
use earnest_core::intent::{Fate, Intent};
use earnest_core::ledger::{Account, Cause, Leg, Op};
use earnest_core::party::Owner;
use earnest_core::reconcile::{Begin, BookOpening};
use earnest_core::reversal::{Book, Note};
use earnest_core::settlement::{Settlement, SettlementState};
use earnest_core::suspense::{BookUnasked, Clear, Place, SpokenOf, Suspended};
use earnest_core::tab::{Tab, TabState};
use earnest_core::time::Timestamp;
use earnest_core::unit::{Effects, Fingerprint, Key, Stop, Touches, Unit, View};
use earnest_core::vault;
use earnest_store::SubmitError;

use crate::world::{Buyer, Shop, World, each, hours, micros, said};

pub fn key(name: &str, print: &str) -> Key {
    let fingerprint = Fingerprint::of(&[print.as_bytes()]);
    Key { scope: "operator".to_owned(), family: "cash", name: name.to_owned(), fingerprint }
}

pub fn entry(kind: CashKind, id: &str, amount: i64, owner: Option<OwnerId>) -> RecordCash {
    RecordCash {
        paypal_id: id.to_owned(),
        kind,
        owner,
        amount: micros(amount),
        fee: micros(0),
        key: key(id, &format!("{kind:?} {amount} {owner:?}")),
    }
}

pub fn refusal<T: std::fmt::Debug>(done: Result<T, SubmitError>) -> String {
    match done {
        Err(SubmitError::Refused(refusal)) => said(&refusal),
        other => panic!("{other:?}"),
    }
}

pub fn cash(world: &World) -> String {
    world.thousandths(Account::PaypalCash)
}

/// A settlement of $0.40, of which `back` was given back.
pub fn in_debt(world: &World, back: i64) -> (Buyer, Shop, Settlement) {
    let (buyer, shop) = (world.buyer(), world.shop());
    world.spend(buyer, &shop, 400_000);
    let settlement = world.settle(buyer.owner, world.open_tab(buyer));
    let charge = world.charge("CAP", 400_000);
    let settlement = world.outcome(&settlement, Fate::Done(charge)).unwrap();
    assert!(world.give_back(&settlement, "R1", back));
    (buyer, shop, settlement)
}

pub fn unasked(world: &World, capture: &str, amount: i64) {
    let unit = BookUnasked {
        capture: capture.to_owned(),
        amount: micros(amount),
        fee: micros(0),
        invoice_id: None,
        claims: None,
    };
    world.run(unit).unwrap();
}

fn clear(
    world: &World,
    owner: OwnerId,
    to: Place,
    amount: Option<i64>,
    name: &str,
) -> Result<Suspended, SubmitError> {
    clear_of(world, "STRANGER", owner, to, amount, name)
}

fn clear_of(
    world: &World,
    capture: &str,
    owner: OwnerId,
    to: Place,
    amount: Option<i64>,
    name: &str,
) -> Result<Suspended, SubmitError> {
    let print = format!("{to:?} {amount:?}");
    let speaks_of = world.row::<Suspended>(capture).settlement.map(|id| {
        let row: Settlement = world.row(id);
        SpokenOf { settlement: row.id, tab: row.tab, owner: row.owner }
    });
    world.run(Clear {
        capture: capture.to_owned(),
        to,
        owner,
        speaks_of,
        amount: amount.map(micros),
        chain: TransferId::new(world.seed()),
        key: Key { family: "suspense", ..key(name, &print) },
    })
}

#[test]
fn one_paypal_id_one_effect() {
    each(|world| {
        in_debt(world, 100_000);
        unasked(world, "STRANGER", 950_000);
        let before = cash(world);
        for taken in ["CAP", "R1", "STRANGER"] {
            let done = world.run(entry(CashKind::Deposit, taken, 1_000, None));
            assert_eq!(refusal(done), "state_conflict", "{taken}");
        }
        assert_eq!(cash(world), before);
        let deposit = || world.run(entry(CashKind::Deposit, "DEP", 10_000_000, None));
        assert_eq!(deposit().unwrap(), deposit().unwrap(), "a repeat is the same");
        // Under another key it is another wish for the same thing.
        let again = RecordCash {
            key: key("other", "x"),
            ..entry(CashKind::Deposit, "DEP", 10_000_000, None)
        };
        assert_eq!(refusal(world.run(again)), "state_conflict");
        assert_eq!(world.thousandths(Account::OperatorFunds), "0/0/0/10000");
        // What was recorded by hand is no payment of a stranger's.
        unasked(world, "DEP", 10_000_000);
        assert_eq!(world.thousandths(Account::Suspense), "0/0/0/950");
    });
}

/// What the operator recorded by hand is not booked again when PayPal is read after all.
#[test]
fn what_was_recorded_by_hand_has_no_second_effect() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 400_000);
        let first = world.settle(buyer.owner, world.open_tab(buyer));
        let charge = Fate::Done(world.charge("CAP", 400_000));
        let first = world.outcome(&first, charge).unwrap();
        world.run(entry(CashKind::Deposit, "OWN", 5_000_000, None)).unwrap();
        world.run(entry(CashKind::Withdrawal, "R1", 150_000, None)).unwrap();
        let before = cash(world);
        assert!(world.give_back(&first, "R1", 150_000));
        assert_eq!(cash(world), before);
        assert_eq!(world.thousandths(Account::OwnerDebt(buyer.owner)), "0/0/0/0");
        // A capture of ours that was taken for a deposit stays unknown: only a person can tell.
        let shop = world.shop();
        let other = world.buyer();
        world.spend(other, &shop, 400_000);
        let second = world.settle(other.owner, world.open_tab(other));
        world.run(entry(CashKind::Deposit, "CAP2", 400_000, None)).unwrap();
        let before = cash(world);
        let charge = Fate::Done(world.charge("CAP2", 400_000));
        assert_eq!(world.outcome(&second, charge).unwrap().state, SettlementState::Open);
        assert_eq!(cash(world).split('/').nth(1), before.split('/').nth(1));
        assert_eq!(world.breaches(), []);
    });
}

/// Money of the operator's that is on its way out, as a payout will be.
struct Moving {
    chain: TransferId,
    amount: i64,
}

impl Unit for Moving {
    type Answer = ();

    fn name(&self) -> &'static str {
        "test.moving"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.hold(self.chain);
        touches.account(Account::OperatorFunds.usd());
        touches.account(Account::PaypalCash.usd());
        touches
    }

    fn decide(&self, _: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let (funds, cash) = (Account::OperatorFunds.usd(), Account::PaypalCash.usd());
        let legs = vec![Leg::new(funds, cash, micros(self.amount))];
        let mut effects = Effects::answer(());
        effects.op(Op::Hold { id: self.chain, cause: Cause::Withdrawal, legs });
        Ok(effects)
    }
}

#[test]
fn a_withdrawal_leaves_what_is_pending() {
    each(|world| {
        world.run(entry(CashKind::Deposit, "DEP", 1_500_000, None)).unwrap();
        let out = |id: &str, amount| world.run(entry(CashKind::Withdrawal, id, amount, None));
        // Half a dollar is on its way out.
        let chain = TransferId::new(world.seed());
        world.run(Moving { chain, amount: 500_000 }).unwrap();
        assert_eq!(cash(world), "0/1500/500/0");
        assert_eq!(refusal(out("W1", 1_001_000)), "state_conflict");
        let fee =
            RecordCash { fee: micros(1_000), ..entry(CashKind::Withdrawal, "W2", 1_000_000, None) };
        assert_eq!(refusal(world.run(fee)), "state_conflict", "the fee is taken too");
        let fee =
            RecordCash { fee: micros(1_000), ..entry(CashKind::Withdrawal, "W3", 600_000, None) };
        world.run(fee).unwrap();
        assert_eq!(cash(world), "0/1500/500/601");
        assert_eq!(world.thousandths(Account::OperatorFunds), "500/600/0/1500");
        out("W4", 399_000).unwrap();
        assert_eq!(refusal(out("W5", 1_000)), "state_conflict");
    });
}

#[test]
fn a_debt_is_repaid_or_borne_and_never_below_nothing() {
    each(|world| {
        let (buyer, _, _) = in_debt(world, 300_000);
        let owner = buyer.owner;
        let debt = || world.thousandths(Account::OwnerDebt(owner));
        let repay = |id: &str, amount, who| world.run(entry(CashKind::Repayment, id, amount, who));
        assert_eq!(refusal(repay("P1", 300_001, Some(owner))), "state_conflict");
        assert_eq!(refusal(repay("P1b", 1_000, None)), "validation_failed");
        let theirs = entry(CashKind::Deposit, "P1c", 1_000, Some(owner));
        assert_eq!(refusal(world.run(theirs)), "validation_failed");
        repay("P2", 100_000, Some(owner)).unwrap();
        assert_eq!(debt(), "0/300/0/100");
        let forgive = |name: &str| {
            let chain = TransferId::new(world.seed());
            let key = Key { family: "forgive_debt", ..key(name, "own") };
            world.run(ForgiveDebt { owner, chain, key }).map(|(_, amount)| amount.get())
        };
        assert_eq!(forgive("one").unwrap(), 200_000);
        assert_eq!(forgive("one").unwrap(), 200_000, "a repeat shows what came of it");
        assert_eq!(refusal(forgive("two")), "state_conflict");
        assert_eq!(debt(), "0/300/0/300");
        assert_eq!(world.thousandths(Account::Losses), "0/200/0/0");
        assert!(world.row::<Owner>(owner).frozen.is_some(), "lifted by a word of its own only");
    });
}

/// Once the freeze is lifted, what went back counts like an earlier tab.
#[test]
fn a_debt_takes_from_the_room_of_a_tab() {
    each(|world| {
        let (buyer, shop, _) = in_debt(world, 400_000);
        let unfreeze = |line: i64| {
            let line = Some(Some(micros(line)));
            let owner = buyer.owner;
            world.run(earnest_core::admin::SetCredit { owner, line, unfreeze: true }).unwrap();
        };
        unfreeze(1_000_000);
        world.spend(buyer, &shop, 500_000);
        let refused = world.word(buyer, "more", &world.fixed(&shop, 100_001));
        assert_eq!(refused, "policy_denied/tab_limit");
        world.spend(buyer, &shop, 100_000);
        world.run(entry(CashKind::Repayment, "P", 400_000, Some(buyer.owner))).unwrap();
        world.spend(buyer, &shop, 400_000);
    });
}

#[test]
fn suspense_is_cleared_to_where_it_belongs() {
    each(|world| {
        let (buyer, _, _) = in_debt(world, 300_000);
        let owner = buyer.owner;
        unasked(world, "STRANGER", 950_000);
        let debt = Place::Debt(owner);
        assert_eq!(refusal(clear(world, owner, debt, Some(300_001), "a")), "state_conflict");
        // As much as is owed, unless said.
        let row = clear(world, owner, debt, None, "b").unwrap();
        assert_eq!(row.left_micros, micros(650_000));
        let again = clear(world, owner, debt, None, "b").unwrap();
        assert_eq!(again.left_micros, micros(650_000), "a repeat clears nothing more");
        assert_eq!(refusal(clear(world, owner, debt, None, "c")), "state_conflict");
        assert_eq!(world.thousandths(Account::OwnerDebt(owner)), "0/300/0/300");
        let credit = Place::Credit(owner);
        assert_eq!(refusal(clear(world, owner, credit, Some(650_001), "d")), "state_conflict");
        clear(world, owner, credit, None, "e").unwrap();
        assert_eq!(world.thousandths(Account::OwnerCredit(owner)), "0/0/0/650");
        assert_eq!(world.thousandths(Account::Suspense), "0/950/0/950");
    });
}

/// An owner whose tab froze pays by hand: the payment clears the tab whole, and the owner goes on.
#[test]
fn suspense_pays_a_frozen_tab_whole() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 400_000);
        let tab = world.open_tab(buyer);
        unasked(world, "STRANGER", 405_000);
        let to = Place::Tab(tab);
        assert_eq!(refusal(clear(world, buyer.owner, to, None, "open")), "state_conflict");
        let settlement = world.settle(buyer.owner, tab);
        world.outcome(&settlement, Fate::Declined { issue: "NO".to_owned() }).unwrap();
        assert_eq!(refusal(clear(world, buyer.owner, to, Some(399_000), "part")), "state_conflict");
        let row = clear(world, buyer.owner, to, None, "whole").unwrap();
        assert_eq!(row.left_micros, micros(5_000));
        let tab: Tab = world.row(tab);
        assert_eq!((tab.state, tab.finished), (TabState::PaidOff, true));
        let owner: Owner = world.row(buyer.owner);
        assert_eq!((owner.frozen_tab, owner.settled_micros), (None, micros(400_000)));
        assert_eq!(world.breaches(), []);
        world.spend(buyer, &shop, 100_000);
    });
}

/// A settlement of $0.40 that came to nothing, and then PayPal ran its charge after all: `FOUND` is in
/// suspense for it.
fn found_late(world: &World) -> (Buyer, Settlement) {
    let (buyer, shop) = (world.buyer(), world.shop());
    world.spend(buyer, &shop, 400_000);
    let tab = world.open_tab(buyer);
    world.close(buyer.owner, tab).unwrap();
    let settlement = world.settle(buyer.owner, tab);
    let fence = world.claim(settlement.intent).unwrap().fence;
    let refused = Fate::Refused { issue: "NO".to_owned() };
    let refused = world.record(&settlement, settlement.intent, fence, refused).unwrap();
    assert_eq!(refused.state, SettlementState::Refused);
    let late = Fate::Done(world.charge("FOUND", 400_000));
    world.record(&settlement, settlement.intent, fence, late).unwrap();
    assert_eq!(world.thousandths(Account::Suspense), "0/0/0/400");
    (buyer, refused)
}

/// Its tab is written off: nothing is attempted any more, and the money has somewhere to go.
#[test]
fn what_no_settlement_can_take_any_more_is_cleared() {
    each(|world| {
        let (buyer, settlement) = found_late(world);
        let to = Place::Credit(buyer.owner);
        let found = |name: &str| clear_of(world, "FOUND", buyer.owner, to, None, name);
        assert_eq!(refusal(found("early")), "state_conflict", "it is attempted again");
        world.write_off(buyer.owner, settlement.tab).unwrap();
        let row = found("over").unwrap();
        assert_eq!((row.left_micros, row.cleared.len()), (micros(0), 1));
        assert_eq!(world.thousandths(Account::OwnerCredit(buyer.owner)), "0/0/0/400");
        assert_eq!(world.thousandths(Account::Losses), "0/400/0/0");
        // What PayPal tells of it again moves nothing.
        let fence = world.row::<Intent>(settlement.intent).fence;
        let again = Fate::Done(world.charge("FOUND", 400_000));
        world.record(&settlement, settlement.intent, fence, again).unwrap();
        assert_eq!(world.thousandths(Account::Suspense), "0/400/0/400");
        world.check();
    });
}

/// The same for a tab that was paid out of suspense by another payment.
#[test]
fn what_came_late_for_a_tab_that_was_paid_otherwise_is_cleared() {
    each(|world| {
        let (buyer, settlement) = found_late(world);
        unasked(world, "STRANGER", 400_000);
        clear(world, buyer.owner, Place::Tab(settlement.tab), None, "paid").unwrap();
        clear_of(world, "FOUND", buyer.owner, Place::Credit(buyer.owner), None, "b").unwrap();
        assert_eq!(world.thousandths(Account::Suspense), "0/800/0/800");
        world.check();
    });
}

/// Its owner has no payment method any more: the payment may go where it belongs. Where the owner
/// puts another on file, the settlement is attempted under an invoice of its own, and takes nothing of
/// what went elsewhere.
#[test]
fn what_waits_for_an_owner_without_a_payment_method_is_cleared() {
    for (amount, left) in [(None, 0), (Some(100_000), 300)] {
        each(|world| {
            let (buyer, settlement) = found_late(world);
            let funding = world.row::<Owner>(buyer.owner).funding.unwrap();
            world.run(vault::Remove { owner: buyer.owner, vault: funding.vault }).unwrap();
            let to = Place::Credit(buyer.owner);
            clear_of(world, "FOUND", buyer.owner, to, amount, "gone").unwrap();
            world.fund(buyer.owner);
            world.pass(hours(1));
            let again = world.settle(buyer.owner, settlement.tab);
            assert_eq!((again.attempt, &again.invoice_id), (2, &settlement.invoice_id));
            // Under way again: nothing more of it may go anywhere.
            if amount.is_some() {
                let more = clear_of(world, "FOUND", buyer.owner, to, None, "more");
                assert_eq!(refusal(more), "state_conflict");
            }
            // PayPal takes no second payment under the invoice, and the search finds the first.
            let taken = Fate::AlreadyDone { issue: "DUPLICATE_INVOICE_ID".to_owned() };
            world.outcome(&again, taken).unwrap();
            world.pass(hours(7));
            let found = Fate::Done(world.charge("FOUND", 400_000));
            let void = world.learnt(&again, found).unwrap();
            assert_eq!(void.state, SettlementState::NotCharged);
            let last = world.settle(buyer.owner, settlement.tab);
            assert_ne!(last.invoice_id, settlement.invoice_id);
            world.capture(&last);
            let owed = world.thousandths(Account::TabOwed(settlement.tab));
            assert_eq!(owed, "0/400/0/400");
            let suspended: Suspended = world.row("FOUND");
            assert_eq!(suspended.left_micros, micros(left * 1_000));
            world.check();
        });
    }
}

/// What was cleared of a settlement's excess falls on whoever had it when PayPal gives it back, and
/// the rest on the settlement's owner; both, where they are one.
#[test]
fn an_excess_that_was_cleared_falls_on_whoever_had_it() {
    let debts = [(50_000, [0, 0]), (80_000, [30, 0]), (450_000, [400, 0])];
    for (back, [own, other]) in debts {
        each(|world| {
            let (buyer, shop) = (world.buyer(), world.shop());
            world.spend(buyer, &shop, 400_000);
            let settlement = world.settle(buyer.owner, world.open_tab(buyer));
            let charge = Fate::Done(world.charge("CAP", 450_000));
            let settlement = world.outcome(&settlement, charge).unwrap();
            let to = world.buyer().owner;
            clear_of(world, "CAP", to, Place::Credit(to), None, "a").unwrap();
            assert!(world.give_back(&settlement, "R1", back));
            let debt = |owner| world.totals(Account::OwnerDebt(owner).usd()).collectible().get();
            assert_eq!((debt(buyer.owner), debt(to)), (own * 1_000, other), "{back}");
            let credit = world.thousandths(Account::OwnerCredit(to));
            assert_eq!(credit, "0/50/0/50", "{back}");
            let owners = [buyer.owner, to].map(|owner| world.row::<Owner>(owner));
            assert!(owners.iter().all(|owner| owner.frozen.is_some()));
            assert_eq!(owners[0].settled_micros.get(), 400_000 - own * 1_000);
            world.check();
        });
    }
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 400_000);
        let settlement = world.settle(buyer.owner, world.open_tab(buyer));
        let charge = Fate::Done(world.charge("CAP", 450_000));
        let settlement = world.outcome(&settlement, charge).unwrap();
        clear_of(world, "CAP", buyer.owner, Place::Credit(buyer.owner), None, "a").unwrap();
        assert!(world.give_back(&settlement, "R1", 450_000));
        assert!(!world.give_back(&settlement, "R2", 1));
        assert_eq!(world.thousandths(Account::OwnerCredit(buyer.owner)), "0/50/0/50");
        assert_eq!(world.thousandths(Account::OwnerDebt(buyer.owner)), "0/400/0/0");
        assert_eq!(world.row::<Owner>(buyer.owner).settled_micros, micros(0));
        world.check();
    });
}

/// What a settlement may still take is kept for it; once that is over, it may go anywhere.
#[test]
fn what_a_settlement_may_take_is_not_cleared() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 400_000);
        let settlement = world.settle(buyer.owner, world.open_tab(buyer));
        let unit = BookUnasked {
            capture: "STRANGER".to_owned(),
            amount: micros(10_000),
            fee: micros(0),
            invoice_id: Some(settlement.invoice_id.clone()),
            claims: Some((settlement.id, settlement.intent)),
        };
        world.run(unit).unwrap();
        let to = Place::Credit(buyer.owner);
        assert_eq!(refusal(clear(world, buyer.owner, to, None, "a")), "state_conflict");
        world.outcome(&settlement, Fate::Done(world.charge("CAP", 400_000))).unwrap();
        clear(world, buyer.owner, to, None, "b").unwrap();
    });
}

#[test]
fn the_opening_balance_is_booked_once() {
    each(|world| {
        world.run(Begin { began: world.now() }).unwrap();
        world.run(BookOpening { balance: Err("no scope".to_owned()) }).unwrap();
        assert_eq!(cash(world), "0/0/0/0");
        for balance in [1_000_000, 2_000_000] {
            world.run(BookOpening { balance: Ok(balance) }).unwrap();
        }
        assert_eq!(cash(world), "0/1000/0/0");
        assert_eq!(world.thousandths(Account::OperatorFunds), "0/0/0/1000");
    });
    each(|world| {
        world.run(Begin { began: world.now() }).unwrap();
        world.run(BookOpening { balance: Ok(-250_000) }).unwrap();
        assert_eq!(cash(world), "0/0/0/250", "an account may begin overdrawn");
    });
    // Money had moved before anybody asked: a balance would explain away whatever differs.
    each(|world| {
        in_debt(world, 100_000);
        let before = cash(world);
        world.run(Begin { began: world.now() }).unwrap();
        world.run(BookOpening { balance: Ok(1_000_000) }).unwrap();
        assert_eq!(cash(world), before);
    });
}

/// What was cleared and goes back at PayPal falls on the owner it was cleared for: credit first, then
/// debt; and never more than came.
#[test]
fn what_was_cleared_and_goes_back_falls_on_its_owner() {
    each(|world| {
        let (buyer, _) = (world.buyer(), world.shop());
        let owner = buyer.owner;
        unasked(world, "STRANGER", 900_000);
        clear(world, owner, Place::Credit(owner), Some(500_000), "a").unwrap();
        let back = |id: &str, amount| {
            let capture = "STRANGER".to_owned();
            let note = Note { capture: capture.clone(), of: None, named: Some(id.to_owned()) };
            world.run(note).unwrap();
            let (amount, fee_returned) = (micros(amount), micros(0));
            let (id, cleared_for) = (id.to_owned(), vec![owner]);
            world.run(Book { capture, of: None, id, amount, fee_returned, cleared_for }).unwrap()
        };
        assert!(back("R1", 600_000));
        assert_eq!(world.thousandths(Account::Suspense), "0/900/0/900");
        assert_eq!(world.thousandths(Account::OwnerCredit(owner)), "0/200/0/500");
        assert!(back("R2", 300_000));
        assert!(!back("R3", 1), "all of it went back");
        assert_eq!(world.thousandths(Account::OwnerCredit(owner)), "0/500/0/500");
        assert_eq!(world.thousandths(Account::OwnerDebt(owner)), "0/0/0/0");
        assert!(world.row::<Owner>(owner).frozen.is_some(), "who had the money is frozen");
        assert_eq!(world.breaches(), []);
    });
    // Nothing is left of the credit: it is owed.
    each(|world| {
        let (buyer, _, _) = in_debt(world, 300_000);
        let owner = buyer.owner;
        unasked(world, "STRANGER", 300_000);
        clear(world, owner, Place::Debt(owner), None, "a").unwrap();
        let capture = "STRANGER".to_owned();
        world.run(Note { capture: capture.clone(), of: None, named: None }).unwrap();
        let (amount, fee_returned) = (micros(300_000), micros(0));
        let (id, cleared_for) = ("R9".to_owned(), vec![owner]);
        let unit = Book { capture, of: None, id, amount, fee_returned, cleared_for };
        assert!(world.run(unit).unwrap());
        assert_eq!(world.thousandths(Account::OwnerDebt(owner)), "0/600/0/300");
    });
}
