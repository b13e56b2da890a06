//! Replacing the key that seals secrets, on books that nobody has open.
//!
//! The next key waits beside the old one until every secret is sealed with it; then the old one gets
//! a name of its own, since older backups need it, and the next one takes its place. Earnest starts at
//! any point in between, with both; running this again goes on where it ended.

use std::path::{Path, PathBuf};

use earnest_core::hook::Hook;
use earnest_core::lease::Lease;
use earnest_core::signing::{Change, Reseal, Sealed, SealedKey};
use earnest_core::time::Timestamp;
use earnest_core::unit::Record;
use earnest_store::{OpenError, Options, Place, ReadError, Store};

use crate::sealed::{SealError, Sealer, make_key_file, next_file};
use crate::source::Clock;

/// How many secrets one unit seals anew.
const MOST: usize = 200;

/// Why secrets are not all sealed anew.
#[derive(Debug, thiserror::Error)]
pub enum ResealError {
    /// The books are in use, or cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A node works on the database, and would not open what is sealed anew.
    #[error("a node runs on these books: it holds `{name}` until {until}")]
    Running {
        /// What it does.
        name: String,
        /// Until when it says so.
        until: Timestamp,
    },
    /// A key file cannot be read, or does not open a secret.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// A key file cannot be put in its place.
    #[error("`{}`: {why}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// The books cannot be read or written.
    #[error("{0}")]
    Books(String),
}

/// Where to stop, for tests that cut a replacement off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The next key is made.
    Made,
    /// Every secret is sealed with it.
    Sealed,
    /// The old key has a name of its own.
    Kept,
    /// The next key took its place.
    Done,
}

/// What was done.
#[derive(Debug)]
pub struct Resealed {
    /// How many secrets were sealed anew.
    pub secrets: usize,
    /// Where the old key file is now.
    pub old: PathBuf,
}

/// Replaces the key file of books that nobody has open. Books in a file are held meanwhile; a database
/// cannot be, and it is refused while any node there holds a lease.
///
/// # Errors
/// [`ResealError`]; running it again goes on.
pub fn reseal(
    books: &Place,
    mode: &str,
    key_file: &Path,
    clock: Clock,
    until: Until,
) -> Result<Resealed, ResealError> {
    let failed = |path: &Path, why: std::io::Error| ResealError::File {
        path: path.to_owned(),
        why: why.to_string(),
    };
    let now = clock();
    let store = Store::open(Options::new(books.clone(), mode, clock))?;
    if let Place::Server(_) = books {
        let leases = store.reader().every::<Lease>();
        let leases = leases.map_err(|why| ResealError::Books(why.to_string()))?;
        if let Some(lease) = leases.into_iter().find(|lease| lease.until > now) {
            return Err(ResealError::Running { name: lease.name, until: lease.until });
        }
    }
    let next = next_file(key_file);
    let old = kept_name(key_file)?;
    if !next.exists() {
        make_key_file(&next).map_err(|why| failed(&next, why))?;
    }
    let mut done = Resealed { secrets: 0, old };
    if until != Until::Made {
        let sealed = seal_all(&store, &Sealer::existing(key_file)?);
        store.close();
        done.secrets = sealed?;
    }
    if matches!(until, Until::Kept | Until::Done) && !done.old.exists() {
        std::fs::hard_link(key_file, &done.old).map_err(|why| failed(&done.old, why))?;
    }
    if until == Until::Done {
        std::fs::rename(&next, key_file).map_err(|why| failed(key_file, why))?;
        let folder = key_file.parent().filter(|it| !it.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|why| failed(folder, why))?;
    }
    Ok(done)
}

/// The old key's own name: by what tells it from others.
fn kept_name(key_file: &Path) -> Result<PathBuf, ResealError> {
    let print = Sealer::alone(key_file)?.print().to_owned();
    let mut old = key_file.as_os_str().to_owned();
    old.push(format!(".{print}"));
    Ok(PathBuf::from(old))
}

fn seal_all(store: &Store, sealer: &Sealer) -> Result<usize, ResealError> {
    let books = |why: ReadError| ResealError::Books(why.to_string());
    let keys = store.reader().every::<SealedKey>().map_err(books)?;
    let hooks = store.reader().every::<Hook>().map_err(books)?;
    let stale = |id: &str, sealed: &str| !sealer.is_fresh(id, sealed);
    let fresh = |id: &str, sealed: &str| -> Result<(String, String), SealError> {
        let secret = sealer.open_secret(id, sealed)?;
        Ok((sealed.to_owned(), sealer.seal(id, &secret)?))
    };
    let mut changes = Vec::new();
    for row in keys.iter().filter(|row| stale(&row.jwk.kid, &row.sealed)) {
        changes.push(Change {
            kind: Sealed::Key,
            id: row.id(),
            to: fresh(&row.jwk.kid, &row.sealed)?,
        });
    }
    for row in hooks.iter().filter(|row| stale(&row.id.to_string(), &row.sealed)) {
        let to = fresh(&row.id.to_string(), &row.sealed)?;
        changes.push(Change { kind: Sealed::Hook, id: Record::id(row), to });
    }
    let count = changes.len();
    for some in changes.chunks(MOST) {
        let done = store.submit_blocking(Reseal(some.to_vec()));
        done.map_err(|why| ResealError::Books(why.to_string()))?;
    }
    Ok(count)
}
