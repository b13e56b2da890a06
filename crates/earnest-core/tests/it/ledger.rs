//! What the ledger refuses of the business itself; the random runs are in `ledger_model`.

use std::collections::BTreeMap;

use earnest_core::id::{IntentId, OwnerId, SellerId, SessionId, TabId, TransferId};
use earnest_core::ledger::{
    Account, AccountId, Books, Cause, Hold, Leg, Op, Rejection, Subject, Totals, Window, apply,
};

use crate::world::micros;

/// Books in two maps.
#[derive(Clone, Default, PartialEq, Debug)]
struct Plain {
    totals: BTreeMap<AccountId, Totals>,
    holds: BTreeMap<TransferId, Hold>,
}

impl Books for Plain {
    fn totals(&self, account: &AccountId) -> Totals {
        self.totals.get(account).copied().unwrap_or_default()
    }
    fn hold(&self, id: TransferId) -> Option<Hold> {
        self.holds.get(&id).cloned()
    }
    fn set_totals(&mut self, account: AccountId, totals: Totals) {
        self.totals.insert(account, totals);
    }
    fn set_hold(&mut self, id: TransferId, hold: Hold) {
        self.holds.insert(id, hold);
    }
}

fn trf(id: u128) -> TransferId {
    TransferId::from_value(id)
}

fn tab(n: u128) -> AccountId {
    Account::TabOwed(TabId::from_value(n)).usd()
}

fn seller() -> AccountId {
    Account::SellerAccrued(SellerId::from_value(1)).usd()
}

fn line(id: u128, amount: i64, room: i64) -> Op {
    let leg = Leg::new(tab(1), seller(), micros(amount)).within(micros(room));
    Op::Hold { id: trf(id), cause: Cause::TabLine, legs: vec![leg] }
}

fn moved(id: u128, debit: AccountId, credit: AccountId, amount: i64) -> Op {
    let legs = vec![Leg::new(debit, credit, micros(amount))];
    Op::Move { id: trf(id), cause: Cause::Carry, legs }
}

#[test]
fn nothing_is_captured_of_what_is_only_held_nor_twice_of_what_is_owed() {
    let mut books = Plain::default();
    let capture = |id, amount| {
        let leg = Leg::new(Account::PaypalCash.usd(), tab(1), micros(amount));
        Op::Hold { id: trf(id), cause: Cause::Settlement, legs: vec![leg] }
    };
    apply(&mut books, &line(1, 10, 100)).unwrap();
    assert_eq!(apply(&mut books, &capture(2, 1)), Err(Rejection::NotCovered(tab(1))));
    apply(&mut books, &Op::Post { id: trf(1), amounts: vec![micros(10)] }).unwrap();
    apply(&mut books, &capture(2, 10)).unwrap();
    assert_eq!(apply(&mut books, &capture(3, 1)), Err(Rejection::NotCovered(tab(1))));
    apply(&mut books, &Op::Void { id: trf(2) }).unwrap();
    apply(&mut books, &capture(3, 10)).unwrap();
}

#[test]
fn nothing_is_given_back_of_a_capture_that_it_did_not_bring() {
    let mut books = Plain::default();
    let (memo, refundable) =
        (Account::Memo.usd(), Account::CaptureRefundable(IntentId::from_value(1)).usd());
    let give = |id, amount| moved(id, refundable, memo, amount);
    let short = Err(Rejection::NotCovered(refundable));
    assert_eq!(apply(&mut books, &give(1, 1)), short);
    apply(&mut books, &moved(2, memo, refundable, 10)).unwrap();
    apply(&mut books, &give(3, 10)).unwrap();
    assert_eq!(apply(&mut books, &give(4, 1)), short);
}

#[test]
fn a_carry_may_leave_a_tab_past_its_room_and_the_next_line_finds_none() {
    let mut books = Plain::default();
    apply(&mut books, &moved(1, tab(2), seller(), 90)).unwrap();
    apply(&mut books, &line(2, 20, 100)).unwrap();
    apply(&mut books, &moved(3, tab(1), tab(2), 90)).unwrap();
    assert!(matches!(apply(&mut books, &line(4, 1, 100)), Err(Rejection::NoRoom { .. })));
}

#[test]
fn legs_that_use_the_same_room_use_it_together() {
    let mut books = Plain::default();
    let legs = vec![Leg::new(tab(1), seller(), micros(60)).within(micros(100)); 2];
    let both = Op::Hold { id: trf(1), cause: Cause::TabLine, legs };
    assert!(matches!(apply(&mut books, &both), Err(Rejection::NoRoom { .. })));
    assert_eq!(books, Plain::default());
}

/// LEDG-11: no leg is applied without the others.
#[test]
fn a_chain_that_fails_in_its_last_leg_moves_nothing() {
    let session = Window::Session(SessionId::from_value(1));
    let limit = Account::Limit(Subject::Owner(OwnerId::from_value(1)), session).usd();
    let mut books = Plain::default();
    let legs = vec![
        Leg::new(tab(1), seller(), micros(5)).within(micros(100)),
        Leg::new(limit, Account::Memo.usd(), micros(5)).within(micros(4)),
    ];
    let chain = Op::Hold { id: trf(1), cause: Cause::TabLine, legs };
    assert!(matches!(apply(&mut books, &chain), Err(Rejection::NoRoom { .. })));
    assert_eq!(books, Plain::default());
}
