//! One binary of integration tests: through HTTP, against the simulator, a fresh database each; and
//! what has to hold of the tree itself.

#![allow(missing_docs, unreachable_pub, reason = "tests are read, not linked against")]

mod caps;
mod cases;
mod crash;
mod dice;
mod faults;
mod forge;
mod judge;
mod pairs;
#[cfg(feature = "planted")]
mod planted;
mod process;
mod road;
mod shop;
mod tidy;
mod walks;
mod webhooks;
mod world;
