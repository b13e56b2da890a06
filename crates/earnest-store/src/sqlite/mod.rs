//! Books in an SQLite file: opening it, and its readers.
//!
//! One connection writes ([`write`]), many read ([`read`]). The write-ahead log is synced at every
//! commit (`synchronous = FULL`). A lock file beside the database keeps a second writer out; the
//! system releases it when the process ends, however it ends.

mod copy;
mod open;
mod pool;
mod read;
mod sink;
mod write;

pub use copy::{About, about, copy, copy_private, hold_place, moved_away, renew_epoch, schema};
#[cfg(feature = "bench")]
pub(crate) use open::CACHE_SIZE;
pub(crate) use open::SqliteOptions;
pub(crate) use pool::Pool;
pub(crate) use sink::SqliteSink;
pub(crate) use write::Sqlite;

use std::path::Path;

use rusqlite::Error;
use rusqlite::ErrorCode as Code;

use crate::audit::AuditError;
use crate::read::Source;
use crate::{OpenError, ReadError};

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

/// Reads a database by its path at one moment, running or not, with what SQLite itself finds
/// wrong with the file.
pub(crate) fn snapshot_of_file<T>(
    path: &Path,
    read: impl FnOnce(&dyn Source, Vec<String>) -> Result<T, ReadError>,
) -> Result<T, AuditError> {
    let conn = open::open_existing(path)?;
    let failed = |why: Error| {
        AuditError::Open(OpenError::Failed { path: path.to_owned(), why: why.to_string() })
    };
    let mut damage = Vec::new();
    conn.pragma_query(None, "quick_check", |row| {
        let line: String = row.get(0)?;
        if line != "ok" {
            damage.push(line);
        }
        Ok(())
    })
    .map_err(failed)?;
    Ok(read::Connected::new(conn).at_one_moment(|source| read(source, damage))?)
}
