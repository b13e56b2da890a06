//! Cases from public reports, named by their ids.

use earnest_core::ledger::{Cause, Leg, Op};
use earnest_core::problem::Code;
use earnest_core::unit::{Effects, Touches};
use earnest_store::{Store, SubmitError};

use crate::world::{self, Buy, Deposit, Guard, Script, chain, credit, earned, memo, micros};

/// LEDG-11 (half-written): a leg that could not be covered was skipped while the row was stored as
/// applied. Here: `ledger_rejected`, no entries, balances unchanged, whichever leg or op it is.
#[test]
fn ledg_11_a_leg_that_fails_takes_everything_with_it() {
    let folder = tempfile::tempdir().unwrap();
    ledg_11(&world::memory());
    ledg_11(&world::sqlite(folder.path()));
}

fn ledg_11(store: &Store) {
    store.submit_blocking(Deposit { id: chain(900), owner: 1, amount: 100 }).unwrap();
    store.submit_blocking(Buy::new(1, 1, 40)).unwrap();
    let (head, accounts) = (store.reader().head().unwrap(), all_accounts(store));
    // Settling 40 where the second leg can give only 39; then a good op before a bad one.
    let post = Op::Post { id: chain(1), amounts: vec![micros(40), micros(41)] };
    let legs =
        vec![Leg::new(credit(1), memo(), micros(5)), Leg::new(credit(2), earned(1), micros(1))];
    let second_leg = Op::Move { id: chain(50), cause: Cause::Refund, legs };
    let good = Op::Post { id: chain(1), amounts: vec![micros(40), micros(40)] };
    for ops in [vec![post], vec![second_leg.clone()], vec![good, second_leg]] {
        let touch = |_: &earnest_core::unit::View| {
            let mut touches = Touches::new();
            touches.row::<Guard>(world::owner(1));
            touches.hold(chain(1));
            touches.hold(chain(50));
            for account in [credit(1), credit(2), earned(1), memo(), world::cap(1)] {
                touches.account(account);
            }
            touches
        };
        let script = Script::new(touch, move |_| {
            let mut effects = Effects::answer("settled".to_owned());
            effects.put(Guard { owner: world::owner(1), purchases: 99, last: None })?;
            ops.iter().cloned().for_each(|op| effects.op(op));
            effects.bind("settled");
            Ok(effects)
        });
        let answer = store.submit_blocking(script.keyed("settle", "1"));
        let Err(why @ SubmitError::LedgerRejected(_)) = answer else { panic!("{answer:?}") };
        assert_eq!(why.code(), Code::LedgerRejected);
        assert_eq!(why.code().status(), 500);
        assert_eq!(store.reader().head().unwrap(), head);
        assert_eq!(all_accounts(store), accounts);
        assert_eq!(store.reader().key("me", "script", "settle").unwrap(), None);
        let guard = store.reader().row::<Guard>(world::owner(1)).unwrap().unwrap();
        assert_eq!(guard.purchases, 1);
        world::audit(store).unwrap();
    }
}

fn all_accounts(store: &Store) -> Vec<earnest_store::AccountRow> {
    store.reader().accounts("", None, 1000).unwrap()
}
