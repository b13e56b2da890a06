//! Opening a database: whose it is, which version, which mode, and that nobody else writes it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::APPLICATION_ID;
use crate::{OpenError, Options, SimulatedFiles};

/// Numbered from 1; `user_version` says how many were applied. A migration is never changed once
/// released, only followed by another.
const MIGRATIONS: &[&str] = &[include_str!("0001_books.sql")];

/// The name, among the books' own data, under which stands where they were moved to.
pub(super) const MARK_MOVED: &str = "moved";

/// As [`MARK_MOVED`], for a copy that is not anybody's books yet.
pub(super) const MARK_ARRIVING: &str = "arriving";

/// SQLite's own default, which its write-ahead log counts in.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// The writer's cache, in KiB since it is negative. The pages that random keys fall into should stay
/// in memory; but SQLite looks through its whole cache after every commit that moved pages about, so
/// that a larger one costs more than the pages it spares (which the system has in memory anyway).
pub(crate) const CACHE_SIZE: i64 = -16 * 1024;

/// What of [`Options`] concerns the file.
#[derive(Clone, Debug)]
pub(crate) struct SqliteOptions {
    mode: String,
    epoch: String,
    max_bytes: Option<u64>,
    pub(crate) files: Option<SimulatedFiles>,
    pub(crate) wal_soft_pages: u64,
    pub(crate) wal_hard_pages: u64,
}

impl SqliteOptions {
    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// For a copy of other books.
    pub(crate) fn copy(mode: &str, epoch: &str) -> Self {
        let nobody = std::sync::Arc::new(|| earnest_core::time::Timestamp::UNIX_EPOCH);
        let options = Options::file("", mode, nobody);
        Self { epoch: epoch.to_owned(), ..Self::of(&options) }
    }

    pub(crate) fn of(options: &Options) -> Self {
        let pages = |bytes: u64| (bytes / PAGE_BYTES).max(1);
        Self {
            mode: options.mode.clone(),
            epoch: options.epoch.clone(),
            max_bytes: options.max_bytes,
            files: options.files.clone(),
            wal_soft_pages: pages(options.wal_soft_bytes),
            wal_hard_pages: pages(options.wal_hard_bytes.max(options.wal_soft_bytes)),
        }
    }
}

/// Takes the writer's place; it is held as long as the file is open.
pub(crate) fn take_lock(path: &Path) -> Result<File, OpenError> {
    let failed =
        |why: std::io::Error| OpenError::Failed { path: path.to_owned(), why: why.to_string() };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        make_private_folder(folder).map_err(failed)?;
    }
    let lock = make_private_file(&beside(path, ".lock")).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
        Err(TryLockError::Error(why)) => Err(failed(why)),
    }
}

/// The file whose name is longer by `end`.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

/// Opens the writer's connection, making the database where there is none. Gives the epoch too.
pub(crate) fn open_writer(
    path: &Path,
    options: &SqliteOptions,
) -> Result<(Connection, String), OpenError> {
    let (conn, epoch, arriving) = open_marked(path, options)?;
    if arriving { Err(OpenError::Arriving(path.to_owned())) } else { Ok((conn, epoch)) }
}

/// As [`open_writer`], for a place that books are to be moved to; whether a copy is arriving there.
pub(super) fn open_marked(
    path: &Path,
    options: &SqliteOptions,
) -> Result<(Connection, String, bool), OpenError> {
    let failed = |why: String| OpenError::Failed { path: path.to_owned(), why };
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if options.files.is_none() {
        refuse_others(path)?;
    }
    let log = beside(path, "-wal");
    let rewritten = match &options.files {
        None => rewrite(&log),
        Some(files) => (files.rewrite)(&log),
    };
    rewritten.map_err(|why| failed(format!("its log cannot be written again: {why}")))?;
    match &options.files {
        // Made here, so that SQLite does not make it readable to everybody; its companions follow
        // it.
        None => drop(make_private_file(path).map_err(|why| failed(why.to_string()))?),
        Some(_) => flags |= OpenFlags::SQLITE_OPEN_CREATE,
    }
    let conn = open_in(options.files.as_ref(), path, flags);
    let mut conn = conn.map_err(|why| failed(why.to_string()))?;
    check_ours(&conn, path)?;
    prepare(&conn, options).map_err(|why| failed(why.to_string()))?;
    migrate(&mut conn, path, options)?;
    let epoch = check_mode(&conn, path, options)?;
    if let Some(to) = mark(&conn, path, MARK_MOVED)? {
        return Err(OpenError::Moved { place: path.to_owned(), to });
    }
    let arriving = mark(&conn, path, MARK_ARRIVING)?.is_some();
    Ok((conn, epoch, arriving))
}

/// Opens a connection that can only read.
pub(crate) fn open_reader(
    files: Option<&SimulatedFiles>,
    path: &Path,
) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = open_in(files, path, flags)?;
    conn.pragma_update(None, "trusted_schema", false)?;
    conn.set_prepared_statement_cache_capacity(64);
    Ok(conn)
}

/// Opens a connection to a file of the system's, or of another file system of SQLite's.
fn open_in(
    files: Option<&SimulatedFiles>,
    path: &Path,
    flags: OpenFlags,
) -> rusqlite::Result<Connection> {
    match files {
        None => Connection::open_with_flags(path, flags),
        Some(files) => Connection::open_with_flags_and_vfs(path, flags, files.vfs.as_str()),
    }
}

/// Writes a file again as it reads, and syncs it; nothing where there is none.
///
/// A sync that failed has told the system to forget what it was to write: it still reads as
/// written, and no later sync writes it. Whoever finds a write-ahead log cannot know whether that
/// happened to it, in this process or in one that ended, and would build on what is not there.
// INVARIANT: what_is_read_at_the_start_is_on_the_disk
fn rewrite(path: &Path) -> std::io::Result<()> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    let mut file = match opened {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let mut piece = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut piece)?;
        let Some(piece) = piece.get(..read).filter(|piece| !piece.is_empty()) else { break };
        file.seek_relative(-i64::try_from(read).unwrap_or(0))?;
        file.write_all(piece)?;
    }
    file.sync_all()
}

/// The latest schema that this version reads.
pub(crate) fn known_schema() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// Refuses somebody else's database before anything of it is written. What cannot be told from here is
/// told once it is open to be written.
fn refuse_others(path: &Path) -> Result<(), OpenError> {
    if !fs::metadata(path).is_ok_and(|file| file.len() > 0) {
        return Ok(());
    }
    let checked = open_reader(None, path).map(|conn| check_ours(&conn, path));
    match checked {
        Ok(Err(refused @ OpenError::NotOurs(_))) => Err(refused),
        _ => Ok(()),
    }
}

/// Opens somebody's database to read it, if it is one of ours.
pub(crate) fn open_existing(path: &Path) -> Result<Connection, OpenError> {
    let failed = |why: String| OpenError::Failed { path: path.to_owned(), why };
    let conn = open_reader(None, path).map_err(|why| failed(why.to_string()))?;
    if check_ours(&conn, path)? { Ok(conn) } else { Err(OpenError::NotOurs(path.to_owned())) }
}

/// `Ok(false)` for an empty file, which may become ours.
fn check_ours(conn: &Connection, path: &Path) -> Result<bool, OpenError> {
    let number = |pragma: &str| conn.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let found = number("application_id").and_then(|id| Ok((id, number("user_version")?)));
    let (id, version) = match found {
        Ok(found) => found,
        Err(why) if why.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => {
            return Err(OpenError::NotOurs(path.to_owned()));
        }
        Err(why) => {
            return Err(OpenError::Failed { path: path.to_owned(), why: why.to_string() });
        }
    };
    let tables = "SELECT count(*) FROM sqlite_schema";
    let empty = conn.query_row(tables, [], |row| row.get::<_, i64>(0)).is_ok_and(|n| n == 0);
    if id != APPLICATION_ID && !(id == 0 && empty) {
        return Err(OpenError::NotOurs(path.to_owned()));
    }
    let known = known_schema();
    if version > known {
        return Err(OpenError::TooNew { path: path.to_owned(), found: version, known });
    }
    Ok(id == APPLICATION_ID)
}

fn prepare(conn: &Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    let synchronous = "FULL";
    #[cfg(feature = "planted")]
    let synchronous = crate::planted::synchronous(synchronous);
    conn.pragma_update(None, "synchronous", synchronous)?;
    conn.pragma_update(None, "fullfsync", true)?;
    conn.pragma_update(None, "checkpoint_fullfsync", true)?;
    // The writer folds the log itself, between batches; see `Sqlite::ready`.
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    let most = i64::try_from(options.wal_soft_pages.saturating_mul(PAGE_BYTES));
    conn.pragma_update_and_check(None, "journal_size_limit", most.unwrap_or(-1), |_| Ok(()))?;
    // A savepoint keeps the pages it may have to restore in one piece of memory, and in a file only
    // past 64 KiB; with MEMORY it is many small pieces, which costs more than all else it does.
    conn.pragma_update(None, "temp_store", "FILE")?;
    conn.pragma_update(None, "trusted_schema", false)?;
    conn.pragma_update(None, "cache_size", CACHE_SIZE)?;
    if let Some(bytes) = options.max_bytes {
        let pages = i64::try_from(bytes / PAGE_BYTES).unwrap_or(i64::MAX);
        conn.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    conn.set_prepared_statement_cache_capacity(64);
    Ok(())
}

fn migrate(conn: &mut Connection, path: &Path, options: &SqliteOptions) -> Result<(), OpenError> {
    let failed =
        |why: rusqlite::Error| OpenError::Failed { path: path.to_owned(), why: why.to_string() };
    let version: i64 =
        conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    let applied = usize::try_from(version).unwrap_or(0);
    for (place, sql) in MIGRATIONS.iter().enumerate().skip(applied) {
        let step = conn.transaction().map_err(failed)?;
        step.execute_batch(sql).map_err(failed)?;
        if place == 0 {
            let meta = "INSERT INTO meta (name, value) VALUES (?1, ?2)";
            step.execute(meta, ["mode", &options.mode]).map_err(failed)?;
            step.execute(meta, ["epoch", &options.epoch]).map_err(failed)?;
            step.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
        }
        let version = i64::try_from(place.saturating_add(1)).unwrap_or(i64::MAX);
        step.pragma_update(None, "user_version", version).map_err(failed)?;
        step.commit().map_err(failed)?;
    }
    Ok(())
}

fn check_mode(
    conn: &Connection,
    path: &Path,
    options: &SqliteOptions,
) -> Result<String, OpenError> {
    let meta = |name: &str| {
        let sql = "SELECT value FROM meta WHERE name = ?1";
        let value = conn.query_row(sql, [name], |row| row.get::<_, String>(0)).optional();
        let missing = || OpenError::Damaged(format!("`{name}` is missing"));
        value.map_err(|why| OpenError::Damaged(why.to_string()))?.ok_or_else(missing)
    };
    let found = meta("mode")?;
    if found != options.mode {
        let (path, asked) = (path.to_owned(), options.mode.clone());
        return Err(OpenError::OtherMode { path, found, asked });
    }
    meta("epoch")
}

/// What stands under a name that is not always there.
pub(super) fn mark(
    conn: &Connection,
    path: &Path,
    name: &str,
) -> Result<Option<String>, OpenError> {
    let sql = "SELECT value FROM meta WHERE name = ?1";
    let value = conn.query_row(sql, [name], |row| row.get::<_, String>(0)).optional();
    value.map_err(|why| OpenError::Failed { path: path.to_owned(), why: why.to_string() })
}

fn make_private_folder(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Opens a file, making it readable and writable to its owner only; what is in it stays.
pub(crate) fn make_private_file(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Syncs a folder, so that names made in it survive a power cut.
pub(crate) fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.map_or_else(|| PathBuf::from("."), Path::to_owned))?.sync_all()
}
