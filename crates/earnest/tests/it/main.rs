//! One binary of integration tests: through HTTP, against the simulator, a fresh database each; and
//! what has to hold of the tree itself.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is what it is for"
)]

mod caps;
mod cli;
mod faults;
mod forge;
mod judge;
mod openapi;
mod pairs;
#[cfg(feature = "planted")]
mod planted;
mod road;
mod tidy;
mod walks;
mod webhooks;
mod world;
