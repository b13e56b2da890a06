//! The rules, run as they run for everybody: units through the store, in memory and on SQLite.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unreachable,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test that panics has failed, which is what it is for; threads and seeds from the \
              environment are the test's, not the rules'"
)]

mod approvals;
mod authorize;
mod budgets;
mod caps;
mod cash;
mod disputes;
mod hooks;
mod invariants;
mod leases;
mod ledger;
mod ledger_model;
mod lost;
mod models;
mod owners;
#[cfg(feature = "planted")]
mod planted;
mod quarantine;
mod reconcile;
mod reports;
mod reversals;
mod settlements;
mod sim;
mod strain;
mod treasurer;
mod voids;
mod walks;
mod windows;
mod world;
