//! Many seeds, each a whole life; that a seed is a run; and that what it must catch, it catches.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that panics has failed, which is what it is for"
)]

mod lives;
#[cfg(feature = "planted")]
mod planted;
