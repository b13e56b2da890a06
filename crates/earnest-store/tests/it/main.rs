//! The store, seen from outside: one suite for every engine, faults, crashes, audits.
#![allow(missing_docs, unreachable_pub, clippy::arithmetic_side_effects)]

mod audits;
mod cases;
mod conformance;
mod crash;
mod files;
mod keys;
#[cfg(feature = "planted")]
mod planted;
mod reading;
mod stops;
mod world;
