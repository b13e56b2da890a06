//! One planted bug at a time, for tests of tests; see [`earnest_core::planted`].
//!
//! A bug belongs to a thread: [`Options::planted`](crate::Options) plants it in the writer's.

use std::cell::RefCell;
use std::collections::BTreeMap;

use earnest_core::entry::KeyLine;
use earnest_core::unit::Effects;

use crate::backend::{Changed, KeyAddress};

pub use earnest_core::planted::{Bug, on, plant};

/// [`Bug::RefusalAsResult`]: binds the key to the refusal, so that it can never succeed.
pub(crate) fn refusal_as_result(mut nothing: Effects<()>) -> Effects<()> {
    if on(Bug::RefusalAsResult) {
        nothing.bind("refused");
    }
    nothing
}

/// [`Bug::NoSync`]: leaves it to the system when what is written reaches the disk.
pub(crate) fn synchronous(wanted: &'static str) -> &'static str {
    if on(Bug::NoSync) { "OFF" } else { wanted }
}

thread_local! {
    static CLAIMED: RefCell<BTreeMap<KeyAddress, KeyLine>> = const { RefCell::new(BTreeMap::new()) };
}

/// A new process remembers nothing.
pub(crate) fn forget() {
    CLAIMED.with_borrow_mut(BTreeMap::clear);
}

/// [`Bug::KeyBeforeWrite`]: the key is used from here on, whatever becomes of its batch.
pub(crate) fn claim(address: KeyAddress, line: &KeyLine) {
    if on(Bug::KeyBeforeWrite) {
        CLAIMED.with_borrow_mut(|claimed| claimed.insert(address, line.clone()));
    }
}

/// [`Bug::KeyBeforeWrite`]: what the key was used for.
pub(crate) fn claimed(address: KeyAddress) -> Option<KeyLine> {
    CLAIMED
        .with_borrow(|claimed| claimed.get(&address).filter(|_| on(Bug::KeyBeforeWrite)).cloned())
}

/// [`Bug::IgnoreForeign`]: what others wrote into rows is not looked at.
pub(crate) fn unseen(changed: Changed) -> Changed {
    if on(Bug::IgnoreForeign) {
        return Changed { rows: Vec::new(), ..changed };
    }
    changed
}
