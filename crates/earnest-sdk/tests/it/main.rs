//! The SDK through real HTTP on loopback: sellers in axum, a buyer, and an Earnest that signs
//! vouchers and keeps a list of what it is told.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as expected"
)]

mod authz;
mod earnest;
mod shop;

mod buyer;
mod examples;
mod paying;
mod proxy;
mod reissued;
mod reports;
mod restart;
mod seller;
mod streams;
mod tricks;
mod vouchers;
