//! The books on disk: one writer, group commit, a hash chain; the only SQL.
//!
//! A [`Store`] takes [`Unit`](earnest_core::unit::Unit)s, the one shape of a write, and a
//! [`Reader`] shows what they recorded. The engine between them is written once, over a small
//! backend: memory, SQLite and PostgreSQL. It knows units, rows, holds and accounts, never a noun of
//! the business.
//!
//! ```
//! use std::sync::Arc;
//! use earnest_core::time::Timestamp;
//! use earnest_store::{Options, Store};
//!
//! let clock = Arc::new(|| Timestamp::UNIX_EPOCH);
//! let store = Store::open(Options::memory("simulated", clock)).unwrap();
//! assert_eq!(store.reader().head().unwrap().seq, 0);
//! ```
//!
//! What holds, whatever fails:
//! - an answer is given after the commit that holds it, or not at all;
//! - a unit that stops, panics or breaks a rule of the engine leaves nothing behind, and the units
//!   beside it do not notice;
//! - what is in memory is what is on disk: a lost batch drops its layer, a failed COMMIT drops the
//!   memory and reads it again.
#![forbid(unsafe_code)]

pub mod audit;
mod backend;
#[cfg(feature = "bench")]
pub mod bench;
mod cache;
mod codec;
mod engine;
mod error;
mod layer;
mod memory;
mod moving;
#[cfg(feature = "planted")]
pub mod planted;
mod postgres;
mod read;
mod sqlite;
mod store;
mod sums;
mod url;
mod watches;

pub use error::{MoveError, OpenError, ReadError, SubmitError};
pub use memory::Shared;
pub use moving::Copied;
pub use postgres::Apart;
pub use read::{
    AccountRow, Cursor, EventAt, EventPage, HoldRow, KeyRow, LogEntry, Moved, MovedLeg, Page,
    Reader, Snapshot, Step, Strain, TrialLine,
};
pub use sqlite::{About, about, copy, copy_private, hold_place, moved_away, renew_epoch, schema};
pub use store::{Clock, Options, Place, Rewrite, SimulatedFiles, Store, WriterLoad, arrive};
pub use sums::{Net, Sums};
pub use url::Url;
pub use watches::Changes;

/// The end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The last place taken; 0 before the first unit.
    pub seq: u64,
    /// When it was taken.
    pub at: earnest_core::time::Timestamp,
    /// The hash of the chain up to there.
    pub hash: [u8; 32],
}

impl Head {
    /// Before the first entry.
    pub const GENESIS: Self = Self {
        seq: 0,
        at: earnest_core::time::Timestamp::UNIX_EPOCH,
        hash: earnest_core::entry::GENESIS,
    };
}
