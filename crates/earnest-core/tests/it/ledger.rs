//! `apply` against a naive model in wide integers: random mixes of operations at the limits, with
//! ids used twice, holds resolved twice and amounts at the end of what can be counted.

use std::collections::BTreeMap;

use earnest_core::id::{AgentId, IntentId, OwnerId, SellerId, SessionId, TabId, TransferId};
use earnest_core::ledger::{
    Account, AccountId, Books, Cause, Hold, HoldState, Leg, Op, Rejection, Subject, Totals, Window,
    apply,
};
use earnest_core::money::Micros;
use proptest::prelude::*;

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

/// Debits pending, debits posted, credits pending, credits posted.
type Four = [i128; 4];

/// The rules told again, in the plainest way there is.
#[derive(Clone, Default)]
struct Model {
    totals: BTreeMap<AccountId, Four>,
    holds: BTreeMap<TransferId, (Vec<Leg>, HoldState)>,
}

impl Model {
    /// Applies an operation if the rules allow it.
    fn take(&mut self, op: &Op) -> bool {
        let mut next = self.clone();
        let fits = next.change(op) && next.holds_together(op);
        if fits {
            *self = next;
        }
        fits
    }

    fn change(&mut self, op: &Op) -> bool {
        match op {
            Op::Move { id, legs, .. } => self.open(*id, legs, HoldState::Posted),
            Op::Hold { id, legs, .. } => self.open(*id, legs, HoldState::Pending),
            Op::Post { id, amounts } => {
                let some = amounts.iter().any(|amount| amount.get() > 0);
                some && self.resolve(*id, amounts, HoldState::Posted)
            }
            Op::Void { id } => {
                let legs = self.holds.get(id).map_or(0, |(legs, _)| legs.len());
                self.resolve(*id, &vec![Micros::ZERO; legs], HoldState::Voided)
            }
        }
    }

    fn open(&mut self, id: TransferId, legs: &[Leg], state: HoldState) -> bool {
        let place = usize::from(state == HoldState::Posted);
        for leg in legs {
            let amount = i128::from(leg.amount.get());
            self.totals.entry(leg.debit).or_default()[place] += amount;
            self.totals.entry(leg.credit).or_default()[2 + place] += amount;
        }
        let sound = legs.iter().all(|leg| leg.amount.get() > 0 && leg.debit != leg.credit);
        !legs.is_empty() && sound && self.holds.insert(id, (legs.to_vec(), state)).is_none()
    }

    fn resolve(&mut self, id: TransferId, amounts: &[Micros], to: HoldState) -> bool {
        let Some((legs, state)) = self.holds.get_mut(&id) else { return false };
        if *state != HoldState::Pending || legs.len() != amounts.len() {
            return false;
        }
        *state = to;
        for (leg, amount) in legs.iter().zip(amounts) {
            if amount > &leg.amount {
                return false;
            }
            for (account, side) in [(leg.debit, 0), (leg.credit, 2)] {
                let totals = self.totals.entry(account).or_default();
                totals[side] -= i128::from(leg.amount.get());
                totals[side + 1] += i128::from(amount.get());
            }
        }
        true
    }

    fn holds_together(&self, op: &Op) -> bool {
        let most = i128::from(Micros::MAX.get());
        let counted = |four: &Four| four.iter().all(|total| (0..=most).contains(total));
        let legs = &self.holds[&op.id()].0;
        let touched = legs.iter().flat_map(|leg| [leg.debit, leg.credit]);
        // Where a rule needs the sum of a side, that has to be countable too.
        let covered = |account: AccountId| {
            let [dp, d, cp, c] = self.totals[&account];
            match account.account {
                Account::SellerAccrued(_) | Account::CaptureRefundable(_) => dp + d <= c,
                Account::TabOwed(_) => cp + c <= d && cp + c <= most,
                _ => true,
            }
        };
        let resolves = matches!(op, Op::Void { .. });
        let opens = matches!(op, Op::Move { .. } | Op::Hold { .. });
        let within = |leg: &Leg| {
            let [dp, d, _, c] = self.totals[&leg.debit];
            leg.room.is_none_or(|room| dp + d <= (c + i128::from(room.get())).min(most))
        };
        self.totals.values().all(counted)
            && (resolves || touched.into_iter().all(covered))
            && (!opens || legs.iter().all(within))
    }
}

fn account(place: usize) -> AccountId {
    let session = Window::Session(SessionId::from_value(1));
    let all = [
        Account::PaypalCash,
        Account::TabOwed(TabId::from_value(1)),
        Account::TabOwed(TabId::from_value(2)),
        Account::SellerAccrued(SellerId::from_value(1)),
        Account::PlatformRevenue,
        Account::Memo,
        Account::Limit(Subject::Owner(OwnerId::from_value(1)), session),
        Account::Limit(Subject::Agent(AgentId::from_value(1)), session),
        Account::CaptureRefundable(IntentId::from_value(1)),
        Account::Losses,
    ];
    all[place % all.len()].usd()
}

fn amount() -> impl Strategy<Value = Micros> + Clone {
    let most = Micros::MAX.get();
    prop_oneof![
        8 => 1..20i64,
        1 => Just(0),
        1 => (most - 20)..=most,
        1 => (most / 2 - 5)..(most / 2 + 5),
    ]
    .prop_map(micros)
}

fn leg() -> impl Strategy<Value = Leg> + Clone {
    // Mostly the movements of the business, sometimes any at all.
    let pair = prop_oneof![
        6 => prop::sample::select(vec![(1, 3), (1, 4), (2, 3), (6, 5), (7, 5), (0, 1), (0, 2), (2, 1), (9, 1), (5, 8), (8, 5), (3, 0)]),
        1 => (0..10usize, 0..10usize),
    ];
    let room = prop_oneof![2 => Just(None), 2 => (0..60i64).prop_map(|room| Some(micros(room))), 1 => Just(Some(Micros::MAX))];
    (pair, amount(), room).prop_map(|((debit, credit), amount, room)| Leg {
        debit: account(debit),
        credit: account(credit),
        amount,
        room,
    })
}

fn op() -> impl Strategy<Value = Op> {
    // Few ids, so that they meet.
    let id = (0..12u128).prop_map(TransferId::from_value);
    let legs = prop::collection::vec(leg(), 0..4);
    prop_oneof![
        2 => (id.clone(), legs.clone()).prop_map(|(id, legs)| Op::Move { id, cause: Cause::Carry, legs }),
        4 => (id.clone(), legs).prop_map(|(id, legs)| Op::Hold { id, cause: Cause::TabLine, legs }),
        3 => (id.clone(), prop::collection::vec(amount(), 0..4)).prop_map(|(id, amounts)| Op::Post { id, amounts }),
        1 => id.prop_map(|id| Op::Void { id }),
    ]
}

/// Posts name their amounts blindly; most should fit the hold they are for.
fn fit(op: Op, books: &Plain) -> Op {
    let Op::Post { id, mut amounts } = op else { return op };
    if let Some(hold) = books.hold(id)
        && amounts.len() < 3
    {
        amounts.resize(hold.legs.len(), micros(1));
        for (amount, leg) in amounts.iter_mut().zip(&hold.legs) {
            *amount = (*amount).min(leg.amount);
        }
    }
    Op::Post { id, amounts }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn apply_agrees_with_a_naive_model(ops in prop::collection::vec(op(), 1..60)) {
        let (mut books, mut model) = (Plain::default(), Model::default());
        for op in ops {
            let op = fit(op, &books);
            let before = books.clone();
            let done = apply(&mut books, &op);
            let expect = model.take(&op);
            prop_assert_eq!(done.is_ok(), expect, "{:?}: {:?}", op, done);
            if done.is_err() {
                prop_assert_eq!(&books, &before, "a refusal changes nothing");
            }
            for (account, four) in &model.totals {
                let t = books.totals(account);
                let found = [t.debits_pending, t.debits_posted, t.credits_pending, t.credits_posted];
                prop_assert_eq!(found.map(|m| i128::from(m.get())), *four, "{}", account);
            }
        }
    }
}

fn trf(id: u128) -> TransferId {
    TransferId::from_value(id)
}

fn line(id: u128, amount: i64, room: i64) -> Op {
    let leg = Leg::new(account(1), account(3), micros(amount)).within(micros(room));
    Op::Hold { id: trf(id), cause: Cause::TabLine, legs: vec![leg] }
}

fn post(id: u128, amount: i64) -> Op {
    Op::Post { id: trf(id), amounts: vec![micros(amount)] }
}

#[test]
fn posted_at_most_held() {
    let mut books = Plain::default();
    apply(&mut books, &line(1, 10, 100)).unwrap();
    assert_eq!(apply(&mut books, &post(1, 11)), Err(Rejection::AboveHold(trf(1))));
    assert_eq!(apply(&mut books, &post(1, 0)), Err(Rejection::Amounts(trf(1))));
    let two = Op::Post { id: trf(1), amounts: vec![micros(1), micros(1)] };
    assert_eq!(apply(&mut books, &two), Err(Rejection::Amounts(trf(1))));
    apply(&mut books, &post(1, 10)).unwrap();
}

#[test]
fn hold_resolves_once() {
    let void = Op::Void { id: trf(1) };
    for first in [post(1, 4), void.clone()] {
        let mut books = Plain::default();
        assert_eq!(apply(&mut books, &first), Err(Rejection::NoHold(trf(1))));
        apply(&mut books, &line(1, 10, 100)).unwrap();
        apply(&mut books, &first).unwrap();
        for second in [post(1, 4), void.clone()] {
            assert_eq!(apply(&mut books, &second), Err(Rejection::Resolved(trf(1))));
        }
        assert_eq!(apply(&mut books, &line(1, 10, 100)), Err(Rejection::IdUsed(trf(1))));
    }
}

#[test]
fn no_use_of_room_leaves_an_account_past_it() {
    let mut books = Plain::default();
    apply(&mut books, &line(1, 60, 100)).unwrap();
    let full = apply(&mut books, &line(2, 41, 100));
    let no_room = Rejection::NoRoom { account: account(1), used: micros(101), room: micros(100) };
    assert_eq!(full, Err(no_room));
    apply(&mut books, &line(2, 40, 100)).unwrap();
    // A lowered limit or a carry may leave it past, with no room.
    assert!(apply(&mut books, &line(3, 1, 50)).is_err());
    let carry = Leg::new(account(1), account(2), micros(30));
    let carry = Op::Move { id: trf(4), cause: Cause::Carry, legs: vec![carry] };
    assert!(matches!(apply(&mut books, &carry), Err(Rejection::NotCovered(_))));
    let owed = Leg::new(account(2), account(3), micros(30));
    apply(&mut books, &Op::Move { id: trf(5), cause: Cause::TabLine, legs: vec![owed] }).unwrap();
    apply(&mut books, &carry).unwrap();
    assert!(apply(&mut books, &line(6, 1, 100)).is_err());
    // Two legs that use the same room use it together.
    let mut books = Plain::default();
    let legs = vec![Leg::new(account(1), account(3), micros(60)).within(micros(100)); 2];
    let both = Op::Hold { id: trf(1), cause: Cause::TabLine, legs };
    assert!(matches!(apply(&mut books, &both), Err(Rejection::NoRoom { .. })));
    assert_eq!(books, Plain::default());
}

#[test]
fn covered_accounts_stay_covered() {
    let mut books = Plain::default();
    let capture = |id, amount| {
        let leg = Leg::new(account(0), account(1), micros(amount));
        Op::Hold { id: trf(id), cause: Cause::Settlement, legs: vec![leg] }
    };
    // Nothing is captured for what is only held, nor twice for what is posted.
    apply(&mut books, &line(1, 10, 100)).unwrap();
    assert_eq!(apply(&mut books, &capture(2, 1)), Err(Rejection::NotCovered(account(1))));
    apply(&mut books, &post(1, 10)).unwrap();
    apply(&mut books, &capture(2, 10)).unwrap();
    assert_eq!(apply(&mut books, &capture(3, 1)), Err(Rejection::NotCovered(account(1))));
    apply(&mut books, &Op::Void { id: trf(2) }).unwrap();
    apply(&mut books, &capture(3, 10)).unwrap();
    // Nothing is given back of a capture that it did not bring.
    let give = |id, amount| {
        let leg = Leg::new(account(8), account(5), micros(amount));
        Op::Move { id: trf(id), cause: Cause::Refund, legs: vec![leg] }
    };
    assert_eq!(apply(&mut books, &give(4, 1)), Err(Rejection::NotCovered(account(8))));
    let brought = Leg::new(account(5), account(8), micros(10));
    apply(&mut books, &Op::Move { id: trf(5), cause: Cause::Refundable, legs: vec![brought] })
        .unwrap();
    apply(&mut books, &give(6, 10)).unwrap();
    assert_eq!(apply(&mut books, &give(7, 1)), Err(Rejection::NotCovered(account(8))));
}

#[test]
fn a_chain_that_fails_in_its_last_leg_moves_nothing() {
    let mut books = Plain::default();
    let legs = vec![
        Leg::new(account(1), account(3), micros(5)).within(micros(100)),
        Leg::new(account(6), account(5), micros(5)).within(micros(4)),
    ];
    let chain = Op::Hold { id: trf(1), cause: Cause::TabLine, legs };
    assert!(matches!(apply(&mut books, &chain), Err(Rejection::NoRoom { .. })));
    assert_eq!(books, Plain::default());
}
