//! Books in an SQLite file: opening it, and its readers.
//!
//! One connection writes ([`write`]), many read ([`read`]). The write-ahead log is synced at every
//! commit (`synchronous = FULL`). A lock file beside the database keeps a second writer out; the
//! system releases it when the process ends, however it ends.

mod open;
mod pool;
mod read;
mod write;

pub(crate) use open::SqliteOptions;
pub(crate) use pool::Pool;
pub(crate) use write::Sqlite;

use rusqlite::Error;
use rusqlite::ErrorCode as Code;

/// `EARN`, so that `file` and we can tell these databases from others.
pub(crate) const APPLICATION_ID: i64 = 0x4541_524e;

/// Whether an error is the place's, not the statement's: nothing else will go better in this
/// transaction.
fn is_of_the_place(error: &Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            Code::DiskFull
                | Code::SystemIoFailure
                | Code::OutOfMemory
                | Code::OperationInterrupted
                | Code::DatabaseBusy
                | Code::DatabaseLocked
                | Code::DatabaseCorrupt
                | Code::NotADatabase
                | Code::CannotOpen
                | Code::ReadOnly
                | Code::FileLockingProtocolFailed
        )
    )
}
