//! `earnest migrate`: moves books from a file to a database, and back.
//!
//! The books are audited where they are, then moved whole and compared row by row, and audited where
//! they arrived. The old ones say from then on where they went: nothing is written there or sent from
//! there any more. Cut off at any point, the same command again goes on or starts over.

use std::path::{Path, PathBuf};

use earnest_core::invariant::EXPLAINED;
use earnest_core::time::Timestamp;
use earnest_store::audit::{AuditError, Finding};
use earnest_store::{Clock, Copied, MoveError, OpenError, Options, Place, Store, arrive};

use crate::audit::auditor;
use crate::source::random_bytes;

/// Why books were not moved, or what is left to do.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The other place cannot be opened, is somebody's, or copying failed.
    #[error(transparent)]
    Move(#[from] MoveError),
    /// Books that do not add up are not carried on.
    #[error("the books ({place}) do not pass their audit: {first}")]
    Breach {
        /// Where.
        place: String,
        /// The first breach.
        first: String,
    },
    /// They could not be audited.
    #[error("the books ({place}) could not be audited: {why}")]
    Audit {
        /// Where.
        place: String,
        /// What went wrong.
        why: AuditError,
    },
    /// The old file in the way could not be moved aside.
    #[error("cannot move `{}` aside: {why}", path.display())]
    Aside {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        why: std::io::Error,
    },
}

impl From<OpenError> for MigrateError {
    fn from(why: OpenError) -> Self {
        Self::Move(why.into())
    }
}

/// What was moved.
#[derive(Clone, Debug)]
pub struct Migrated {
    /// What was copied; nothing where only the last step of an earlier move was left.
    pub copied: Copied,
    /// The installation's epoch from now on.
    pub epoch: String,
    /// Where a file of books that had been moved away before stands now.
    pub aside: Option<PathBuf>,
}

/// Where the books are to be.
fn target(to: &Place, mode: &str, clock: Clock) -> Options {
    let options = Options::new(to.clone(), mode, clock);
    // Another one, so that sellers send again what they keep and nobody takes up a stream of events
    // in the middle of books that were read elsewhere.
    Options { epoch: format!("e{}", hex::encode(random_bytes::<4>())), ..options }
}

/// Moves the books of a store, which nobody else may have open for writing but nodes of the same
/// database: these learn of it with their next write. Waits for the writer and for the database.
///
/// # Errors
/// [`MigrateError`]. [`MigrateError::Breach`] of the old books, and every [`MigrateError::Move`],
/// leave them where they were.
pub fn migrate(store: &Store, to: &Place, clock: Clock) -> Result<Migrated, MigrateError> {
    let (audit, _) = auditor();
    clean("these books", audit.run(store.reader()))?;
    let aside = match to {
        Place::File(path) => make_way(path, (clock)())?,
        _ => None,
    };
    let options = target(to, store.mode(), clock);
    let copied = store.move_to(&options)?;
    audited(to)?;
    Ok(Migrated { copied, epoch: options.epoch, aside })
}

/// Ends a move that was cut off after the old books had said where they went.
///
/// # Errors
/// [`MigrateError`].
pub fn finish(to: &Place, mode: &str, clock: Clock) -> Result<Migrated, MigrateError> {
    let options = target(to, mode, clock.clone());
    arrive(&options)?;
    audited(to)?;
    let store = Store::open(Options::new(to.clone(), mode, clock))?;
    let epoch = store.epoch().to_owned();
    store.close();
    Ok(Migrated { copied: Copied::default(), epoch, aside: None })
}

fn audited(place: &Place) -> Result<(), MigrateError> {
    let (audit, _) = auditor();
    clean(&place.to_string(), audit.run_at(place))
}

fn clean(place: &str, found: Result<Vec<Finding>, AuditError>) -> Result<(), MigrateError> {
    let place = place.to_owned();
    match found {
        // What PayPal's records do not explain is no damage, and moves along.
        Ok(found) => match found.iter().find(|found| found.invariant != EXPLAINED) {
            Some(first) => Err(MigrateError::Breach { place, first: first.to_string() }),
            None => Ok(()),
        },
        Err(why) => Err(MigrateError::Audit { place, why }),
    }
}

/// Moves a file aside whose books were moved away before: it holds nothing that is not elsewhere.
fn make_way(file: &Path, now: Timestamp) -> Result<Option<PathBuf>, MigrateError> {
    // Anybody's books are found, and left alone, when the move begins.
    if !file.exists() || earnest_store::moved_away(file)?.is_none() {
        return Ok(None);
    }
    // Not while the Earnest still runs that had it open.
    let _held = earnest_store::hold_place(file)?;
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".moved-{}", now.as_second()));
    let aside = PathBuf::from(name);
    let moved = std::fs::rename(file, &aside);
    moved.map_err(|why| MigrateError::Aside { path: file.to_owned(), why })?;
    for end in ["-wal", "-shm"] {
        let mut left = file.as_os_str().to_owned();
        left.push(end);
        match std::fs::remove_file(&left) {
            Ok(()) => {}
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => {}
            Err(why) => return Err(MigrateError::Aside { path: left.into(), why }),
        }
    }
    Ok(Some(aside))
}
