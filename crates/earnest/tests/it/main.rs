//! One binary of integration tests: through HTTP, against the simulator, a fresh database each; and
//! what has to hold of the tree itself.

#![allow(missing_docs, unreachable_pub, reason = "tests are read, not linked against")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as expected"
)]

mod cli;
mod road;
mod tidy;
mod world;
