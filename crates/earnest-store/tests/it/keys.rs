//! Idempotency keys: one id, one fingerprint, for ever; a refusal leaves the id free.

use earnest_core::problem::Code;
use earnest_core::unit::{Effects, KeyUse, Stop, Touches, View};
use earnest_store::{Store, SubmitError};

use crate::world::{self, Bought, Buy, Deposit, Guard, Script, chain, ensure};

/// The suite, so that planted bugs can be shown to fail it.
pub fn suite(store: &Store) -> Result<(), String> {
    let text = |why: SubmitError| why.to_string();
    // Refused for want of credit: the arguments are bound, the id stays free.
    let buy = Buy::new(1, 1, 20);
    match store.submit_blocking(buy.clone()) {
        Err(SubmitError::Refused(why)) if why.code == Code::InsufficientCredit => {}
        other => return Err(format!("without credit: {other:?}")),
    }
    let mut other = buy.clone();
    other.amount = 21;
    let conflict = |store: &Store, other: Buy| match store.submit_blocking(other) {
        Err(SubmitError::Refused(why)) if why.code == Code::IdempotencyConflict => Ok(()),
        answer => Err(format!("other arguments: {answer:?}")),
    };
    conflict(store, other.clone())?;
    store.submit_blocking(Deposit { id: chain(900), owner: 1, amount: 100 }).map_err(text)?;
    conflict(store, other.clone())?;
    let first = store.submit_blocking(buy.clone()).map_err(text)?;
    ensure(first.first, || "the first success is taken for a repeat".to_owned())?;
    // Repeated, under new ids for everything the server draws.
    let before = store.reader().head().map_err(|why| why.to_string())?;
    for id in 10..13 {
        let again = store.submit_blocking(Buy { id, ..buy.clone() }).map_err(text)?;
        ensure(again == world::Answer { first: false, ..first.clone() }, || {
            format!("a repeat answers {again:?}")
        })?;
    }
    conflict(store, Buy { id: 20, ..other })?;
    let after = store.reader().head().map_err(|why| why.to_string())?;
    ensure(before == after, || "a repeat changed something".to_owned())?;
    let guard = store.reader().row::<Guard>(world::owner(1)).map_err(|why| why.to_string())?;
    ensure(guard.is_some_and(|guard| guard.purchases == 1), || "bought twice".to_owned())?;
    // Another principal's key of the same name is another key.
    store.submit_blocking(Deposit { id: chain(901), owner: 2, amount: 100 }).map_err(text)?;
    let theirs = Buy { id: 30, owner: 2, ..buy };
    let theirs = store.submit_blocking(theirs).map_err(text)?;
    ensure(theirs.first, || "keys of two principals meet".to_owned())?;
    world::audit(store)
}

/// INVARIANT: one_id_one_fingerprint
#[test]
fn one_id_one_fingerprint() {
    let folder = tempfile::tempdir().unwrap();
    suite(&world::memory()).unwrap();
    suite(&world::sqlite(folder.path())).unwrap();
}

#[test]
fn keys_outlive_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let store = world::sqlite(folder.path());
    store.submit_blocking(Deposit { id: chain(900), owner: 1, amount: 100 }).unwrap();
    let first = store.submit_blocking(Buy::new(1, 1, 20)).unwrap();
    drop(store);
    let store = world::sqlite(folder.path());
    let again = store.submit_blocking(Buy { id: 2, ..Buy::new(1, 1, 20) }).unwrap();
    assert_eq!(again, world::Answer { first: false, ..first.clone() });
    let buyer = earnest_core::id::AgentId::from_value(1).to_string();
    let key = store.reader().key(&buyer, "purchase", "request-1").unwrap().unwrap();
    assert_eq!((key.seq, key.key.bound), (2, Some(first.row)));
}

/// INVARIANT: other_arguments_change_nothing
#[test]
fn other_arguments_change_nothing() {
    let touch = |_: &View| {
        let mut touches = Touches::new();
        touches.row::<Bought>("x");
        touches
    };
    let bind = |view: &View| -> Result<Effects<String>, Stop> {
        let mut effects = Effects::answer(format!("{:?}", view.key()));
        effects.bind("x");
        Ok(effects)
    };
    let store = world::memory();
    let first = store.submit_blocking(Script::new(touch, bind).keyed("k", "1"));
    assert_eq!(first.unwrap(), "Fresh");
    let other = store.submit_blocking(Script::new(touch, bind).keyed("k", "2"));
    assert!(matches!(other, Err(SubmitError::Internal(why)) if why.contains("under a key")));
    let shown = Script::new(touch, |view| Ok(Effects::answer(format!("{:?}", view.key()))));
    let shown = store.submit_blocking(shown.keyed("k", "2")).unwrap();
    assert_eq!(shown, format!("{:?}", KeyUse::Other { bound: Some("x".into()) }));
    assert_eq!(store.reader().head().unwrap().seq, 1);
}

#[test]
fn a_key_may_be_bound_later_and_again() {
    let bind = |to: &'static str| {
        Script::new(
            |_| Touches::new(),
            move |view| {
                let mut effects = Effects::answer(view.key().bound().unwrap_or("-").to_owned());
                if !to.is_empty() {
                    effects.bind(to);
                }
                Ok(effects)
            },
        )
        .keyed("k", "1")
    };
    let folder = tempfile::tempdir().unwrap();
    for store in [world::memory(), world::sqlite(folder.path())] {
        let seen: Vec<String> = ["", "", "a", "a", "", "b", ""]
            .into_iter()
            .map(|to| store.submit_blocking(bind(to)).unwrap())
            .collect();
        assert_eq!(seen, ["-", "-", "-", "a", "a", "a", "b"]);
        // Fresh, bound, bound again: the rest said nothing new.
        assert_eq!(store.reader().head().unwrap().seq, 3);
        world::audit(&store).unwrap();
    }
}
