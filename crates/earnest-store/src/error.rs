//! What can go wrong, apart by who has to do what about it.

use std::path::PathBuf;

use earnest_core::problem::{Code, Refusal};

/// Why the books could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another store of this one, writes these books.
    #[error("`{}` is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The books belong to another mode; simulated, sandbox and live never share a database.
    #[error("`{}` holds the books of mode `{found}`, not `{asked}`", path.display())]
    OtherMode {
        /// The database.
        path: PathBuf,
        /// Its mode.
        found: String,
        /// The mode that was asked for.
        asked: String,
    },
    /// A file of something else.
    #[error("`{}` is not a database of earnest", .0.display())]
    NotOurs(PathBuf),
    /// Written by a later version.
    #[error("`{}` has schema {found}, this version knows {known}", path.display())]
    TooNew {
        /// The database.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The latest schema this version knows.
        known: i64,
    },
    /// A server's schema was made by a later version.
    #[error("the books at {place} have schema {found}, this version knows {known}")]
    NewerSchema {
        /// The server and database.
        place: String,
        /// Its schema.
        found: i64,
        /// The latest schema this version knows.
        known: i64,
    },
    /// The books were moved away: nothing is written here any more.
    #[error("the books at `{}` were moved to {to}", place.display())]
    Moved {
        /// Where they were.
        place: PathBuf,
        /// Where they are.
        to: String,
    },
    /// A copy of somebody's books that is not whole, or was not declared to be the books.
    #[error("`{}` holds a copy in the making; `earnest migrate` ends or repeats it", .0.display())]
    Arriving(PathBuf),
    /// Nobody keeps books there.
    #[error("there are no books at {0}")]
    NoBooks(String),
    /// Books are only moved to where there are none.
    #[error("there are books at `{0}` already")]
    NotEmpty(String),
    /// A database's address cannot be read.
    #[error("not the address of a database: {0}")]
    Address(String),
    /// A server cannot be reached, or refuses.
    #[error("the database at {place}: {why}")]
    Database {
        /// The server and database, without who and with what password.
        place: String,
        /// What it says.
        why: String,
    },
    /// The stored state contradicts itself.
    #[error("the books do not add up: {0}")]
    Damaged(String),
    /// The file or its folder cannot be read or written.
    #[error("cannot open `{}`: {why}", path.display())]
    Failed {
        /// The database.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
}

/// Why books were not moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The other place cannot be opened, or is somebody's.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Copying failed; what was copied is worth nothing.
    #[error("the books were not moved: {0}")]
    Failed(String),
}

/// Why a unit has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The business says no; only the key's fingerprint was recorded.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// The ledger refused an entry; nothing was booked, the key is free.
    #[error("the ledger refused: {0}")]
    LedgerRejected(String),
    /// The unit is wrong or panicked; nothing was booked, the key is free.
    #[error("the unit failed: {0}")]
    Internal(String),
    /// The queue is full; the unit was not looked at.
    #[error("the queue is full")]
    Overloaded,
    /// The batch was lost, or may have been: repeating with the same key tells which.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// The writer has ended.
    #[error("the store was closed")]
    Stopped,
}

impl SubmitError {
    /// The code clients see.
    pub fn code(&self) -> Code {
        match self {
            Self::Refused(refusal) => refusal.code,
            Self::LedgerRejected(_) => Code::LedgerRejected,
            Self::Internal(_) => Code::Internal,
            Self::Overloaded => Code::Overloaded,
            Self::Unavailable(_) | Self::Stopped => Code::DatabaseUnavailable,
        }
    }

    /// As a refusal that may be shown: what broke inside is logged, not told.
    pub fn into_refusal(self) -> Refusal {
        let code = self.code();
        match self {
            Self::Refused(refusal) => *refusal,
            Self::Overloaded | Self::Unavailable(_) | Self::Stopped => {
                Refusal::new(code, "nothing was lost; repeat with the same key").retry_after(1)
            }
            Self::LedgerRejected(_) | Self::Internal(_) => {
                Refusal::new(code, "the request was not carried out")
            }
        }
    }
}

/// Why something could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The database does not answer.
    #[error("the database is unavailable: {0}")]
    Unavailable(String),
    /// What is stored cannot be understood.
    #[error("stored data cannot be read: {0}")]
    Damaged(String),
}

impl ReadError {
    pub(crate) fn damaged(why: impl std::fmt::Display) -> Self {
        Self::Damaged(why.to_string())
    }
}
