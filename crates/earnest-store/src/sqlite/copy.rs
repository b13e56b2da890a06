//! Copies of a database by its path, and what stands in one: for backups and restores, which work
//! from outside the program that keeps the books.

use std::path::Path;

use rusqlite::Connection;

use super::open::{self, known_schema, make_private_file, sync_folder_of};
use super::{Pool, read};
use crate::audit::AuditError;
use crate::{Head, OpenError, Place, ReadError};

/// What a database says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// `simulated`, `sandbox` or `live`.
    pub mode: String,
    /// The epoch of the installation.
    pub epoch: String,
    /// The version of its schema.
    pub schema: i64,
    /// The end of its log.
    pub head: Head,
    /// The hash of the first entry, the same in every copy for ever; `None` of an empty log.
    pub first: Option<[u8; 32]>,
}

/// The latest schema that this version reads.
pub fn schema() -> i64 {
    known_schema()
}

/// What the database at `path` says of itself, running or copied.
///
/// # Errors
/// [`AuditError::Open`] where it is none of ours, or of a later version.
pub fn about(path: impl AsRef<Path>) -> Result<About, AuditError> {
    let path = path.as_ref();
    let conn = open::open_existing(path)?;
    let failed = |why: String| AuditError::Open(OpenError::Failed { path: path.to_owned(), why });
    let meta = |conn: &Connection, name: &str| {
        let sql = "SELECT value FROM meta WHERE name = ?1";
        conn.query_row(sql, [name], |row| row.get::<_, String>(0))
    };
    let mode = meta(&conn, "mode").map_err(|why| failed(why.to_string()))?;
    let epoch = meta(&conn, "epoch").map_err(|why| failed(why.to_string()))?;
    let schema = conn.pragma_query_value(None, "user_version", |row| row.get(0));
    let schema = schema.map_err(|why| failed(why.to_string()))?;
    let (head, first) = read::Connected::new(conn).at_one_moment(|books| {
        let first = books.entries(0, 1)?.first().map(|entry| entry.hash);
        Ok((books.head()?, first))
    })?;
    Ok(About { mode, epoch, schema, head, first })
}

/// Where the books in a file were moved to, if they were.
///
/// # Errors
/// [`OpenError`] where it is no database of ours.
pub fn moved_away(path: impl AsRef<Path>) -> Result<Option<String>, OpenError> {
    let path = path.as_ref();
    open::mark(&open::open_existing(path)?, path, open::MARK_MOVED)
}

/// Copies books, as they stand and while they are written, to a new SQLite file.
///
/// # Errors
/// [`ReadError::Unavailable`] when `to` exists or cannot be written, `from` cannot be read or is
/// memory.
pub fn copy(from: &Place, to: impl AsRef<Path>) -> Result<(), ReadError> {
    match from {
        Place::File(path) => Pool::new(path.clone()).backup_to(to.as_ref()),
        Place::Server(url) => crate::postgres::copy_of_server(url, to.as_ref()),
        Place::Memory | Place::Shared(_) => {
            Err(ReadError::Unavailable("books in memory cannot be copied".to_owned()))
        }
    }
}

/// Gives a database that nobody has open another epoch, after it was restored.
///
/// # Errors
/// [`OpenError`], such as [`OpenError::InUse`].
pub fn renew_epoch(path: impl AsRef<Path>, epoch: &str) -> Result<(), OpenError> {
    let path = path.as_ref();
    let _lock = open::take_lock(path)?;
    open::open_existing(path)?;
    let failed = |why: String| OpenError::Failed { path: path.to_owned(), why };
    let conn = Connection::open(path).map_err(|why| failed(why.to_string()))?;
    conn.pragma_update(None, "synchronous", "FULL").map_err(|why| failed(why.to_string()))?;
    let sql = "UPDATE meta SET value = ?1 WHERE name = 'epoch'";
    let changed = conn.execute(sql, [epoch]).map_err(|why| failed(why.to_string()))?;
    if changed == 1 { Ok(()) } else { Err(OpenError::Damaged("`epoch` is missing".to_owned())) }
}

/// Takes the place of the one process that writes the database at `path`, and holds it until what
/// is given back is dropped. The database need not exist; its folder is made.
///
/// # Errors
/// [`OpenError::InUse`] when another has it.
pub fn hold_place(path: impl AsRef<Path>) -> Result<impl Send + Sync + 'static, OpenError> {
    open::take_lock(path.as_ref())
}

/// Copies a file's bytes to a new one that only its owner reads, synced with its folder.
///
/// # Errors
/// What the system says; [`std::io::ErrorKind::AlreadyExists`] when `to` is there.
pub fn copy_private(from: impl AsRef<Path>, to: impl AsRef<Path>) -> std::io::Result<()> {
    let to = to.as_ref();
    if to.exists() {
        return Err(std::io::ErrorKind::AlreadyExists.into());
    }
    let mut target = make_private_file(to)?;
    std::io::copy(&mut std::fs::File::open(from)?, &mut target)?;
    target.sync_all()?;
    sync_folder_of(to)
}
