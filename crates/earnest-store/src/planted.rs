//! One planted bug at a time, for tests of tests; see [`earnest_core::planted`].
//!
//! A bug belongs to a thread: [`Options::planted`](crate::Options) plants it in the writer's.

use earnest_core::unit::Effects;

pub use earnest_core::planted::{Bug, on, plant};

/// [`Bug::RefusalAsResult`]: binds the key to the refusal, so that it can never succeed.
pub(crate) fn refusal_as_result(mut nothing: Effects<()>) -> Effects<()> {
    if on(Bug::RefusalAsResult) {
        nothing.bind("refused");
    }
    nothing
}
