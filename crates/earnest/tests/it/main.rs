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

mod advisor;
mod amounts;
mod approvals;
mod bad_input;
mod caps;
mod cases;
mod cli;
mod clocks;
mod codes;
mod crash;
mod csv;
mod database;
mod debugs;
mod dice;
mod disputes;
mod edge;
mod engine;
mod events;
mod faults;
mod figures;
mod forge;
mod held;
mod hooks;
mod jobs;
mod judge;
mod late;
mod limits;
mod logs;
mod lost_lives;
mod mcp;
mod nodes;
mod openapi;
mod origins;
mod pages;
mod pairs;
#[cfg(feature = "planted")]
mod planted;
mod policies;
mod process;
mod reconcile;
mod repeats;
mod restore;
mod reversals;
mod road;
mod rotation;
mod secrets;
mod sellers;
mod shop;
mod starting;
mod tenants;
mod tidy;
mod vaulting;
mod walks;
mod webhooks;
mod wire;
mod world;
