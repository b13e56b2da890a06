//! A copy of the books in a folder of its own, taken while Earnest runs, and checked before it counts.
//!
//! The folder appears under its name only when it is whole: the copy is audited from its first entry,
//! and a manifest names every file with its hash. A copy that was cut off leaves a folder whose name
//! ends in `.partial`, which is worth nothing and in nobody's way.
//!
//! Signing keys and webhook secrets are in it as they rest in the books: sealed. The key file that
//! opens them is not: whoever finds the copy gets no key with it, and whoever restores it needs the
//! key file from somewhere else.

use std::path::{Path, PathBuf};

use earnest_core::invariant::EXPLAINED;
use earnest_core::time::Timestamp;
use earnest_store::audit::AuditError;
use earnest_store::{About, Place, ReadError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::audit::auditor;
use crate::sealed::{SealError, Sealer};
use crate::source::random_token;

/// The manifest's name.
pub const MANIFEST: &str = "manifest.json";
/// The books' name, in a data folder and in a backup.
pub const BOOKS: &str = "earnest.db";
/// The version of the manifest.
const FORMAT: u32 = 1;

/// Why there is no backup, or why one does not count.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// A file cannot be read or written.
    #[error("`{}`: {why}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// Nothing is overwritten.
    #[error("`{}` exists already", .0.display())]
    Exists(PathBuf),
    /// The books cannot be copied.
    #[error("the books cannot be copied: {0}")]
    Copy(#[from] ReadError),
    /// The books cannot be opened or audited.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The copy is not right, or not what its manifest says.
    #[error("`{}` is damaged: {why}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The key file cannot be read.
    #[error(transparent)]
    Key(#[from] SealError),
}

impl BackupError {
    pub(crate) fn file(path: &Path, why: impl std::fmt::Display) -> Self {
        Self::File { path: path.to_owned(), why: why.to_string() }
    }

    pub(crate) fn damaged(path: &Path, why: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), why: why.into() }
    }
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// Its name in the folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256, in hex.
    pub sha256: String,
}

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this form.
    pub format: u32,
    /// The version of Earnest that wrote it.
    pub written_by: String,
    /// When it was begun: everything answered before is in it.
    pub taken_at: Timestamp,
    /// `simulated`, `sandbox` or `live`.
    pub mode: String,
    /// The hash of the first entry of the log, in hex: the same for this installation for ever.
    pub installation: String,
    /// The installation's epoch.
    pub epoch: String,
    /// The version of the schema.
    pub schema: i64,
    /// The last entry of the log.
    pub seq: u64,
    /// The hash of the chain up to there, in hex.
    pub hash: String,
    /// Tells which key file opens what is sealed; empty where it was not at hand.
    pub seal_key: String,
    /// What is secret in it, for whoever finds it.
    pub contains: String,
    /// The files.
    pub files: Vec<Piece>,
}

/// What is secret in a backup.
const CONTAINS: &str = "Who bought what, from whom and for how much, and references to payers' \
    accounts at PayPal: keep it as you keep the books. Keys of parties are hashed; signing keys, \
    webhook secrets and nothing else are sealed with the key file, which is not in here.";

/// A copy that was taken.
#[derive(Debug)]
pub struct Taken {
    /// What it says of itself.
    pub manifest: Manifest,
    /// What the copied books do not explain of PayPal's records: no damage, and no reason to go without
    /// a backup; somebody has to look.
    pub differs: Vec<String>,
}

/// Copies books, running or not, in a file or a database, to a new folder.
///
/// # Errors
/// [`BackupError`]; nothing is left under the new folder's name then.
pub fn take(
    books: &Place,
    key_file: Option<&Path>,
    to: &Path,
    now: Timestamp,
) -> Result<Taken, BackupError> {
    if let Place::File(path) = books
        && !path.exists()
    {
        return Err(BackupError::file(path, "there are no books"));
    }
    if to.exists() {
        return Err(BackupError::Exists(to.to_owned()));
    }
    let partial = partial_of(to);
    make_folder(&partial)?;
    let made = fill(books, key_file, &partial, now).and_then(|taken| {
        std::fs::rename(&partial, to).map_err(|why| BackupError::file(to, why))?;
        sync_folder(to.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
        Ok(taken)
    });
    if made.is_err() {
        // What is left of a copy that failed is worth nothing; if it stays it is only untidy.
        let _ = std::fs::remove_dir_all(&partial);
    }
    made
}

/// A name beside a folder for what is not whole yet.
pub(crate) fn partial_of(to: &Path) -> PathBuf {
    let mark: String = random_token().chars().take(8).collect();
    let mut partial = to.as_os_str().to_owned();
    partial.push(format!(".{mark}.partial"));
    PathBuf::from(partial)
}

pub(crate) fn make_folder(path: &Path) -> Result<(), BackupError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|why| BackupError::file(path, why))
}

pub(crate) fn sync_folder(path: &Path) -> Result<(), BackupError> {
    let synced = std::fs::File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(|why| BackupError::file(path, why))
}

fn fill(
    books: &Place,
    key_file: Option<&Path>,
    folder: &Path,
    now: Timestamp,
) -> Result<Taken, BackupError> {
    let copy = folder.join(BOOKS);
    earnest_store::copy(books, &copy)?;
    let (about, differs) = check(&copy)?;
    let seal_key = match key_file.filter(|path| path.exists()) {
        Some(path) => Sealer::existing(path)?.print().to_owned(),
        None => String::new(),
    };
    let manifest = Manifest {
        format: FORMAT,
        written_by: env!("CARGO_PKG_VERSION").to_owned(),
        taken_at: now,
        mode: about.mode,
        installation: about.first.map(hex::encode).unwrap_or_default(),
        epoch: about.epoch,
        schema: about.schema,
        seq: about.head.seq,
        hash: hex::encode(about.head.hash),
        seal_key,
        contains: CONTAINS.to_owned(),
        files: vec![piece(&copy, BOOKS)?],
    };
    let path = folder.join(MANIFEST);
    let text = serde_json::to_string_pretty(&manifest);
    let text = text.map_err(|why| BackupError::file(&path, why))?;
    write_private(&path, &text)?;
    sync_folder(folder)?;
    Ok(Taken { manifest, differs })
}

/// Audits a copy: every invariant, from its first entry on. What it does not explain of PayPal's records
/// is given back: those are the days when a backup is wanted most.
fn check(copy: &Path) -> Result<(About, Vec<String>), BackupError> {
    let (audit, _) = auditor();
    let (differs, damage): (Vec<_>, Vec<_>) =
        audit.run_file(copy)?.into_iter().partition(|found| found.invariant == EXPLAINED);
    if let Some(first) = damage.first() {
        return Err(BackupError::damaged(copy, first.to_string()));
    }
    let differs = differs.into_iter().map(|found| found.detail).collect();
    Ok((earnest_store::about(copy)?, differs))
}

fn piece(path: &Path, name: &str) -> Result<Piece, BackupError> {
    let failed = |why: std::io::Error| BackupError::file(path, why);
    let mut hash = Sha256::new();
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let (mut bytes, mut some) = (0_u64, vec![0; 64 * 1024]);
    loop {
        let read = std::io::Read::read(&mut file, &mut some).map_err(failed)?;
        let Some(found) = some.get(..read).filter(|found| !found.is_empty()) else { break };
        hash.update(found);
        bytes = bytes.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
    }
    let sha256 = hex::encode(hash.finalize());
    Ok(Piece { name: name.to_owned(), bytes, sha256 })
}

fn write_private(path: &Path, text: &str) -> Result<(), BackupError> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    });
    written.map_err(|why| BackupError::file(path, why))
}

/// Reads a backup's manifest and checks everything in it: the hashes, the audit, and that both speak
/// of the same books.
///
/// # Errors
/// [`BackupError::Damaged`] names the file.
pub fn verify(from: &Path) -> Result<Manifest, BackupError> {
    let path = from.join(MANIFEST);
    let text = std::fs::read_to_string(&path).map_err(|why| BackupError::file(&path, why))?;
    let manifest: Manifest =
        serde_json::from_str(&text).map_err(|why| BackupError::damaged(&path, why.to_string()))?;
    if manifest.format != FORMAT {
        return Err(BackupError::damaged(&path, "its form is of another version"));
    }
    if manifest.files.iter().map(|piece| piece.name.as_str()).ne([BOOKS]) {
        return Err(BackupError::damaged(&path, "it does not name the books"));
    }
    for told in &manifest.files {
        let path = from.join(&told.name);
        if piece(&path, &told.name)? != *told {
            return Err(BackupError::damaged(&path, "it is not the file that was written"));
        }
    }
    let copy = from.join(BOOKS);
    // The schema first: what a later version wrote is not audited as if it were known.
    earnest_store::about(&copy)?;
    let (about, _) = check(&copy)?;
    let told = (&manifest.mode, &manifest.epoch, manifest.schema, manifest.seq, &manifest.hash);
    let found =
        (&about.mode, &about.epoch, about.schema, about.head.seq, &hex::encode(about.head.hash));
    if told != found {
        return Err(BackupError::damaged(&path, "it speaks of other books"));
    }
    Ok(manifest)
}
