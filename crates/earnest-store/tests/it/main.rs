//! The store, seen from outside: one suite for every engine, faults, crashes, audits.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unreachable,
    reason = "a test that panics has failed, which is what it is for"
)]

mod audits;
mod cases;
mod conformance;
mod crash;
mod failover;
mod files;
mod keys;
mod moving;
#[cfg(feature = "planted")]
mod planted;
mod postgres;
mod reading;
mod stops;
mod world;
