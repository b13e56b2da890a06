//! L0: the ledger against a naive model that knows nothing of its code.
//!
//! The model keeps unbounded numbers, applies an operation to a copy of everything and then asks
//! whether the result is allowed. Both must take and refuse the same operations and count alike.

use std::collections::BTreeMap;

use earnest_core::id::{OwnerId, SellerId, SessionId, TabId, TransferId};
use earnest_core::ledger::{
    Account, AccountId, Books, Cause, Hold, HoldState, Leg, Op, Rejection, Subject, Totals, Window,
    apply,
};
use earnest_core::money::{MAX_JSON_INTEGER, Micros};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const MAX: i128 = MAX_JSON_INTEGER as i128;

fn accounts() -> [AccountId; 6] {
    let owner = OwnerId::from_value(1);
    [
        Account::PaypalCash.usd(),
        Account::Memo.usd(),
        Account::OwnerCredit(owner).usd(),
        Account::SellerAccrued(SellerId::from_value(1)).usd(),
        Account::TabOwed(TabId::from_value(1)).usd(),
        Account::Limit(Subject::Owner(owner), Window::Session(SessionId::from_value(1))).usd(),
    ]
}

/// The books as the ledger sees them.
#[derive(Clone, Default, PartialEq, Debug)]
struct Real {
    totals: BTreeMap<AccountId, Totals>,
    holds: BTreeMap<TransferId, Hold>,
}

impl Books for Real {
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

/// Debits pending and posted, credits pending and posted.
type Four = [i128; 4];

#[derive(Clone, Default)]
struct Model {
    totals: BTreeMap<AccountId, Four>,
    holds: BTreeMap<TransferId, (Vec<Leg>, HoldState)>,
}

impl Model {
    /// The books after the operation, or `None` where the rules do not allow it.
    fn after(&self, op: &Op) -> Option<Self> {
        let mut next = self.clone();
        let mut touched = Vec::new();
        let mut count = |next: &mut Self, leg: &Leg, pending: i128, posted: i128| {
            for (account, side) in [(leg.debit, 0), (leg.credit, 2)] {
                let four = next.totals.entry(account).or_default();
                four[side] += pending;
                four[side + 1] += posted;
                touched.push(account);
            }
        };
        match op {
            Op::Move { id, legs, .. } | Op::Hold { id, legs, .. } => {
                let held = matches!(op, Op::Hold { .. });
                if legs.is_empty() || self.holds.contains_key(id) {
                    return None;
                }
                for leg in legs {
                    let amount = i128::from(leg.amount.get());
                    if amount == 0 || leg.debit == leg.credit {
                        return None;
                    }
                    let (pending, posted) = if held { (amount, 0) } else { (0, amount) };
                    count(&mut next, leg, pending, posted);
                }
                for leg in legs {
                    let [dp, dr, _, cr] = next.totals[&leg.debit];
                    if let Some(room) = leg.room
                        && (dp + dr > MAX || dp + dr > cr + i128::from(room.get()))
                    {
                        return None;
                    }
                }
                let state = if held { HoldState::Pending } else { HoldState::Posted };
                next.holds.insert(*id, (legs.clone(), state));
            }
            Op::Post { id, amounts } => {
                let (legs, state) = self.holds.get(id)?;
                let fits = amounts.len() == legs.len()
                    && amounts.iter().any(|amount| amount.get() > 0)
                    && legs.iter().zip(amounts).all(|(leg, amount)| *amount <= leg.amount);
                if *state != HoldState::Pending || !fits {
                    return None;
                }
                for (leg, amount) in legs.iter().zip(amounts) {
                    let posted = i128::from(amount.get());
                    count(&mut next, leg, -i128::from(leg.amount.get()), posted);
                }
                next.holds.get_mut(id)?.1 = HoldState::Posted;
            }
            Op::Void { id } => {
                let (legs, state) = self.holds.get(id)?;
                if *state != HoldState::Pending {
                    return None;
                }
                for leg in legs {
                    count(&mut next, leg, -i128::from(leg.amount.get()), 0);
                }
                next.holds.get_mut(id)?.1 = HoldState::Voided;
            }
        }
        touched.iter().all(|account| allowed(account, &next.totals[account])).then_some(next)
    }
}

/// What must hold of an account at rest, in the words of the design's table.
fn allowed(account: &AccountId, [dp, dr, cp, cr]: &Four) -> bool {
    let countable = [dp, dr, cp, cr].iter().all(|total| (0..=MAX).contains(*total));
    countable
        && match account.account {
            Account::OwnerCredit(_) | Account::SellerAccrued(_) => dp + dr <= *cr,
            Account::TabOwed(_) => cp + cr <= *dr,
            _ => true,
        }
}

fn amount() -> impl Strategy<Value = Micros> {
    let edge = prop_oneof![
        6 => 1..40_i64,
        1 => Just(0_i64),
        1 => Just(MAX_JSON_INTEGER),
        1 => MAX_JSON_INTEGER - 40..MAX_JSON_INTEGER,
        1 => MAX_JSON_INTEGER / 2 - 3..MAX_JSON_INTEGER / 2 + 3,
    ];
    edge.prop_map(|micros| Micros::new(micros).unwrap())
}

fn leg() -> impl Strategy<Value = Leg> {
    let account = || (0..6_usize).prop_map(|place| accounts()[place]);
    (account(), account(), amount(), prop::option::weighted(0.3, amount()))
        .prop_map(|(debit, credit, amount, room)| Leg { room, ..Leg::new(debit, credit, amount) })
}

/// Operations over few ids, so that repeats, second resolutions and strangers are common.
fn op() -> impl Strategy<Value = Op> {
    let id = || (0..16_u128).prop_map(TransferId::from_value);
    let legs = || prop::collection::vec(leg(), 0..4);
    let moved = (id(), legs());
    let held = (id(), legs());
    let posted = (id(), prop::collection::vec(amount(), 0..4));
    let cause = Cause::TabLine;
    prop_oneof![
        3 => moved.prop_map(move |(id, legs)| Op::Move { id, cause, legs }),
        4 => held.prop_map(move |(id, legs)| Op::Hold { id, cause, legs }),
        3 => posted.prop_map(|(id, amounts)| Op::Post { id, amounts }),
        2 => id().prop_map(|id| Op::Void { id }),
    ]
}

/// A post that fits its hold is rare among random ones: this turns some of them into one.
fn aim(op: Op, real: &Real, fit: u8) -> Op {
    let Op::Post { id, amounts } = op else { return op };
    let Some(hold) = real.hold(id).filter(|_| fit > 0) else { return Op::Post { id, amounts } };
    let share = |leg: &Leg| match fit {
        1 => leg.amount,
        2 => Micros::new(leg.amount.get() / 2).unwrap(),
        _ => Micros::new(leg.amount.get().saturating_add(1)).unwrap_or(leg.amount),
    };
    Op::Post { id, amounts: hold.legs.iter().map(share).collect() }
}

fn check(ops: Vec<(Op, u8)>) -> Result<(), TestCaseError> {
    let (mut real, mut model) = (Real::default(), Model::default());
    for (op, fit) in ops {
        let op = aim(op, &real, fit);
        let before = real.clone();
        let said = apply(&mut real, &op);
        match (&said, model.after(&op)) {
            (Ok(()), Some(next)) => model = next,
            (Err(_), None) => prop_assert_eq!(&real, &before, "a refusal changed something"),
            (said, next) => {
                let expected = if next.is_some() { "taken" } else { "refused" };
                return Err(TestCaseError::fail(format!("{op:?} gives {said:?}, not {expected}")));
            }
        }
        for (account, four) in &model.totals {
            let t = real.totals(account);
            let counted = [t.debits_pending, t.debits_posted, t.credits_pending, t.credits_posted];
            prop_assert_eq!(&counted.map(|total| i128::from(total.get())), four, "{}", account);
        }
        // INVARIANT: debits_equal_credits
        let sum = |side: usize| model.totals.values().map(|four| four[side]).sum::<i128>();
        prop_assert_eq!((sum(0), sum(1)), (sum(2), sum(3)));
        for (id, (legs, state)) in &model.holds {
            let hold = real.hold(*id).unwrap();
            prop_assert_eq!((&hold.legs, hold.state), (legs, *state));
        }
    }
    Ok(())
}

/// The suite: so many random runs, shrunk to the shortest that fails.
fn suite(cases: u32) -> Result<(), String> {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let ops = prop::collection::vec((op(), 0..4_u8), 1..60);
    runner.run(&ops, check).map_err(|why| why.to_string())
}

#[test]
fn the_ledger_counts_as_a_naive_model_does() {
    // 256 unless PROPTEST_CASES says otherwise: a long run is the same test with more.
    suite(Config::default().cases * 24).unwrap();
}

#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_caught() {
    use earnest_core::planted::{Bug, plant};
    suite(500).unwrap();
    for bug in [Bug::ResolveTwice, Bug::PostAboveHold] {
        plant(Some(bug));
        let said = suite(2_000);
        plant(None);
        println!("{}: {}", bug.as_str(), said.expect_err(bug.as_str()));
    }
}

fn real(credit: i64) -> (Real, Op) {
    let mut real = Real::default();
    let [cash, _, owner, ..] = accounts();
    let legs = vec![Leg::new(cash, owner, Micros::new(credit).unwrap())];
    let deposit = Op::Move { id: TransferId::from_value(1), cause: Cause::Deposit, legs };
    apply(&mut real, &deposit).unwrap();
    (real, deposit)
}

fn held(id: u128, amount: i64) -> Op {
    let [_, _, owner, seller, ..] = accounts();
    let legs = vec![Leg::new(owner, seller, Micros::new(amount).unwrap())];
    Op::Hold { id: TransferId::from_value(id), cause: Cause::TabLine, legs }
}

/// INVARIANT: hold_resolves_once
#[test]
fn hold_resolves_once() {
    let (mut books, _) = real(10);
    let id = TransferId::from_value(2);
    apply(&mut books, &held(2, 4)).unwrap();
    // Another hold on the same accounts, so that the sums alone would allow a second time.
    apply(&mut books, &held(3, 4)).unwrap();
    apply(&mut books, &Op::Void { id }).unwrap();
    let after = books.clone();
    let post = Op::Post { id, amounts: vec![Micros::constant(4)] };
    for again in [Op::Void { id }, post] {
        assert_eq!(apply(&mut books, &again), Err(Rejection::Resolved(id)));
        assert_eq!(books, after);
    }
    assert_eq!(apply(&mut books, &held(2, 1)), Err(Rejection::IdUsed(id)));
}

/// INVARIANT: posted_at_most_held
#[test]
fn posted_at_most_held() {
    let (mut books, _) = real(10);
    let id = TransferId::from_value(2);
    apply(&mut books, &held(2, 4)).unwrap();
    let post = |amount| Op::Post { id, amounts: vec![Micros::constant(amount)] };
    assert_eq!(apply(&mut books, &post(5)), Err(Rejection::AboveHold(id)));
    assert_eq!(apply(&mut books, &post(0)), Err(Rejection::Amounts(id)));
    apply(&mut books, &post(4)).unwrap();
}

/// INVARIANT: covered_accounts_stay_covered
#[test]
fn covered_accounts_stay_covered() {
    let (mut books, _) = real(10);
    apply(&mut books, &held(2, 6)).unwrap();
    let [_, _, owner, ..] = accounts();
    assert_eq!(apply(&mut books, &held(3, 5)), Err(Rejection::NotCovered(owner)));
    apply(&mut books, &held(3, 4)).unwrap();
}

/// INVARIANT: no_use_of_room_leaves_an_account_past_it
#[test]
fn no_use_of_room_leaves_an_account_past_it() {
    let mut books = Real::default();
    let [_, memo, _, _, _, limit] = accounts();
    let mut next = 0;
    let mut hold = |books: &mut Real, amount: i64, room: i64| {
        next += 1;
        let leg = Leg::new(limit, memo, Micros::constant(amount)).within(Micros::constant(room));
        let id = TransferId::from_value(next);
        apply(books, &Op::Hold { id, cause: Cause::TabLine, legs: vec![leg] })
    };
    hold(&mut books, 6, 10).unwrap();
    let (used, room) = (Micros::constant(11), Micros::constant(10));
    let refused = Rejection::NoRoom { account: limit, used, room };
    assert_eq!(hold(&mut books, 5, 10), Err(refused));
    hold(&mut books, 4, 10).unwrap();
    // A cap lowered below use means no room, and a cap of everything is room for anything.
    assert!(hold(&mut books, 1, 3).is_err());
    hold(&mut books, 1, MAX_JSON_INTEGER).unwrap();
}
