//! The rules of Earnest: everything that decides where money goes.
//!
//! Pure by construction: no IO, no clock (`now` is a parameter), no randomness (ids are handed
//! in), no floating point, no unchecked arithmetic. `clippy.toml` beside this crate and the
//! attributes below keep it so. A write is a [`unit::Unit`]: it names what it touches and carries
//! a pure `decide`; [`ledger`] is the state machine every movement of money passes through.
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::float_arithmetic,
    clippy::disallowed_types,
    clippy::disallowed_methods
)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::as_conversions))]
#![forbid(unsafe_code)]

pub mod admin;
pub mod alarm;
pub mod answer;
pub mod approval;
pub mod authorize;
pub mod cash;
pub mod chain;
pub mod debt;
pub mod dispute;
pub mod entry;
pub mod fee;
pub mod hook;
pub mod id;
pub mod intent;
pub mod invariant;
pub mod job;
pub mod jws;
pub mod lease;
pub mod ledger;
pub mod lost;
pub mod model;
pub mod money;
pub mod party;
pub mod payer;
#[cfg(feature = "planted")]
pub mod planted;
pub mod policy;
pub mod problem;
pub mod purchase;
pub mod quarantine;
pub mod quote;
pub mod receipt;
pub mod reconcile;
pub mod replay;
pub mod report;
pub mod reversal;
pub mod settings;
pub mod settlement;
mod shown;
pub mod sign_in;
pub mod signing;
pub mod strain;
pub mod suspense;
pub mod tab;
pub mod time;
pub mod tool_name;
pub mod treasurer;
pub mod unit;
pub mod vault;
pub mod voucher;
