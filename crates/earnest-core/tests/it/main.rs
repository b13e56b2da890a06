//! The rules, seen from outside.
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

mod ledger_model;
