//! The writer's connection: a savepoint a unit, a commit a batch, and what to make of errors.

use std::collections::hash_map::Entry;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use earnest_core::entry::KeyLine;
use earnest_core::id::TransferId;
use earnest_core::ledger::{AccountId, Hold, HoldState, Op, Totals};
use earnest_core::unit::{ListEntry, RowKey};
use foldhash::HashMap;
use rusqlite::{CachedStatement, Connection, Error, Params};

use super::is_of_the_place;
use super::open::{MARK_MOVED, SqliteOptions, open_writer, take_lock};
use super::pool::Pool;
use super::read::{Connected, sql_number};
use crate::backend::{
    Backend, Begun, CommitFault, Dirty, Fault, Foreign, KeyAddress, Recorded, Recovered,
};
use crate::codec::{Numbers, Packed, encode, state_number};
use crate::layer::{DirtyRow, Slot};
use crate::moving::Raw;
use crate::read::{Reader, Shelf, Snapshot, Source};
use crate::{Head, OpenError, ReadError};

/// How long a fold of the write-ahead log may wait for readers, once it has grown past its bound.
const PATIENCE: Duration = Duration::from_millis(200);

/// How long anything else waits for somebody outside who has the database locked.
const BUSY: Duration = Duration::from_secs(5);

/// The backend.
pub(crate) struct Sqlite {
    path: PathBuf,
    options: SqliteOptions,
    epoch: String,
    /// `None` after a COMMIT failed, until the books are read again.
    writer: Option<Connected>,
    wal: Wal,
    ends: Ends,
    /// Whether the running transaction wrote anything, perhaps words.
    wrote: bool,
    /// Held as long as this lives; a simulated file has no other writer.
    _lock: Option<File>,
}

/// The highest ids that were ever written. Ids begin with the time they were made, so a new one is
/// nearly always past them, and then is known to be absent without looking for it.
#[derive(Default)]
struct Ends {
    hold: Option<TransferId>,
    /// Of every kind that was written or looked for, among its ids of the usual form.
    rows: HashMap<&'static str, Option<Packed>>,
}

impl Ends {
    fn saw_hold(&mut self, id: TransferId) {
        self.hold = self.hold.max(Some(id));
    }

    /// Only raises an end that is known; one that is not will be read when it is needed.
    fn saw_row(&mut self, key: &RowKey) {
        if let Some(end) = self.rows.get_mut(key.kind)
            && let id @ Packed::Id(_) = Packed::new(&key.id)
            && end.as_ref().is_none_or(|end| *end < id)
        {
            *end = Some(id);
        }
    }

    /// Whether no row of this kind can have this id.
    fn is_past(&mut self, writer: &Connected, key: &RowKey) -> Result<bool, ReadError> {
        let id @ Packed::Id(_) = Packed::new(&key.id) else { return Ok(false) };
        let end = match self.rows.entry(key.kind) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(writer.last_id(key.kind)?),
        };
        Ok(end.as_ref().is_none_or(|end| *end < id))
    }
}

/// How long the write-ahead log is, in pages.
struct Wal {
    /// As the last commit left it.
    pages: Arc<AtomicU64>,
    /// Fold it from here on.
    fold_at: u64,
}

impl Sqlite {
    pub(crate) fn open(path: PathBuf, options: SqliteOptions) -> Result<Self, OpenError> {
        let lock = options.files.is_none().then(|| take_lock(&path)).transpose()?;
        let wal = Wal { pages: Arc::default(), fold_at: options.wal_soft_pages };
        let (writer, epoch) = connect(&path, &options, &wal)?;
        Ok(Self {
            path,
            options,
            epoch,
            writer: Some(writer),
            wal,
            ends: Ends::default(),
            wrote: false,
            _lock: lock,
        })
    }

    pub(crate) fn reader(&self) -> Reader {
        Reader(Arc::new(Shelf::Sqlite(Pool::on(self.options.files.clone(), self.path.clone()))))
    }

    pub(crate) fn epoch(&self) -> &str {
        &self.epoch
    }

    fn writer(&self) -> Result<&Connected, Fault> {
        self.writer.as_ref().ok_or_else(|| Fault::Whole("the connection was lost".to_owned()))
    }

    /// What an error of the writer's connection means for the batch.
    fn fault(&self, error: &Error) -> Fault {
        let why = error.to_string();
        // Disk full, an interrupt and the like may end the whole transaction, not the statement.
        let ended = self.writer.as_ref().is_none_or(|writer| writer.conn.is_autocommit());
        #[cfg(feature = "planted")]
        if crate::planted::on(crate::planted::Bug::IgnoreRollback) {
            return Fault::Unit(why);
        }
        if ended || is_of_the_place(error) { Fault::Whole(why) } else { Fault::Unit(why) }
    }

    fn read<T>(&self, read: impl FnOnce(&Connected) -> Result<T, ReadError>) -> Result<T, Fault> {
        let writer = self.writer()?;
        read(writer).map_err(|why| match why {
            ReadError::Damaged(why) => Fault::Unit(why),
            // Nothing but the place can make a read by key fail.
            ReadError::Unavailable(why) => Fault::Whole(why),
        })
    }

    /// Folds the write-ahead log into the database. It starts anew only when no reader is inside.
    fn fold(&mut self, how: &str, patience: Duration) -> Result<(), String> {
        let Some(writer) = &self.writer else { return Ok(()) };
        let conn = &writer.conn;
        conn.busy_timeout(patience).map_err(|why| why.to_string())?;
        let folded = conn.query_row(&format!("PRAGMA wal_checkpoint({how})"), [], |row| {
            Ok((row.get::<_, bool>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
        });
        conn.busy_timeout(BUSY).map_err(|why| why.to_string())?;
        let (busy, pages, done) = folded.map_err(|why| why.to_string())?;
        let pages = u64::try_from(pages).unwrap_or(0);
        let whole = !busy && u64::try_from(done).unwrap_or(0) >= pages;
        let left = if whole { 0 } else { pages };
        self.wal.pages.store(left, Ordering::Relaxed);
        // Where a reader keeps it from being whole, do not try again at every batch.
        self.wal.fold_at = left.saturating_add(self.options.wal_soft_pages);
        Ok(())
    }
}

fn connect(
    path: &std::path::Path,
    options: &SqliteOptions,
    wal: &Wal,
) -> Result<(Connected, String), OpenError> {
    let (mut conn, epoch) = open_writer(path, options)?;
    let pages = wal.pages.clone();
    let hook = move |_: &mut rusqlite::hooks::Wal, now: std::ffi::c_int| {
        pages.store(u64::try_from(now).unwrap_or(0), Ordering::Relaxed);
        Ok(())
    };
    conn.wal_hook(Some(hook))
        .map_err(|why| OpenError::Failed { path: path.to_owned(), why: why.to_string() })?;
    Ok((Connected::new(conn), epoch))
}

impl Connected {
    fn write(&self, sql: &str, params: impl Params) -> rusqlite::Result<()> {
        self.conn.prepare_cached(sql)?.execute(params)?;
        Ok(())
    }

    /// Commits something that changes nothing, after a COMMIT that failed.
    ///
    /// What failed may stand in the write-ahead log all the same, where connections that stayed
    /// open do not see it and those of the next process will. Written over, it is gone for good.
    // INVARIANT: a_failed_commit_is_settled_before_anything_is_shown
    fn settle(&self) -> rusqlite::Result<()> {
        // Not a row: SQLite does not write one that stays as it is.
        let name = "user_version";
        let version: i64 = self.conn.pragma_query_value(None, name, |row| row.get(0))?;
        self.conn.pragma_update(None, name, version)
    }

    fn record(&self, unit: &Recorded<'_>) -> rusqlite::Result<()> {
        let body = encode(unit.entry, unit.accounts, &mut Numbering(self))?;
        let entry = unit.entry;
        let seq = sql_number(entry.seq);
        let sql = "INSERT INTO log (seq, at, hash, body) VALUES (?1, ?2, ?3, ?4)";
        self.write(sql, (seq, entry.at.as_microsecond(), unit.hash, body))?;
        if let Some(KeyAddress(address)) = unit.key {
            let sql = "INSERT INTO keys (address, seq) VALUES (?1, ?2) \
                       ON CONFLICT (address) DO UPDATE SET seq = excluded.seq";
            self.write(sql, (address, seq))?;
        }
        for op in &entry.ops {
            self.record_chain(op, seq)?;
        }
        Ok(())
    }

    fn record_chain(&self, op: &Op, seq: i64) -> rusqlite::Result<()> {
        let id = op.id().value().to_be_bytes();
        let open = "INSERT INTO holds (id, state, opened) VALUES (?1, ?2, ?3)";
        let resolve = "UPDATE holds SET state = ?2, resolved = ?3 WHERE id = ?1";
        let (sql, state) = match op {
            Op::Move { .. } => (open, HoldState::Posted),
            Op::Hold { .. } => (open, HoldState::Pending),
            Op::Post { .. } => (resolve, HoldState::Posted),
            Op::Void { .. } => (resolve, HoldState::Voided),
        };
        self.write(sql, (id, state_number(state), seq))
    }

    fn write_dirty(&self, dirty: &Dirty<'_>) -> rusqlite::Result<()> {
        // In the order of the tables, which touches each page once.
        let mut accounts: Vec<(&AccountId, &Slot)> = dirty.accounts.iter().collect();
        accounts.sort_unstable_by_key(|(_, slot)| slot.no);
        let mut statements = AccountStatements::prepare(&self.conn)?;
        for (id, slot) in accounts {
            statements.write(id, slot)?;
        }
        let mut rows: Vec<(&RowKey, &DirtyRow)> = dirty.rows.iter().collect();
        rows.sort_unstable_by_key(|(key, _)| *key);
        let mut statements = RowStatements::prepare(self)?;
        for (key, row) in rows {
            statements.write(key, row)?;
        }
        Ok(())
    }
}

/// Looking a statement up costs as much as running it, so a batch does so once.
struct AccountStatements<'a> {
    update: CachedStatement<'a>,
    insert: CachedStatement<'a>,
}

impl<'a> AccountStatements<'a> {
    fn prepare(conn: &'a Connection) -> rusqlite::Result<Self> {
        let update = "UPDATE accounts SET debits_pending = ?2, debits_posted = ?3, \
                      credits_pending = ?4, credits_posted = ?5, last_seq = ?6 WHERE no = ?1";
        let insert = "INSERT INTO accounts (no, debits_pending, debits_posted, \
                      credits_pending, credits_posted, last_seq, name) \
                      VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        Ok(Self { update: conn.prepare_cached(update)?, insert: conn.prepare_cached(insert)? })
    }

    fn write(&mut self, id: &AccountId, slot: &Slot) -> rusqlite::Result<()> {
        let no = sql_number(slot.no);
        let Totals { debits_pending, debits_posted, credits_pending, credits_posted } = slot.totals;
        let (dp, dr) = (debits_pending.get(), debits_posted.get());
        let (cp, cr) = (credits_pending.get(), credits_posted.get());
        let last = sql_number(slot.last_seq);
        if self.update.execute((no, dp, dr, cp, cr, last))? == 0 {
            self.insert.execute((no, dp, dr, cp, cr, last, id.to_string()))?;
        }
        Ok(())
    }
}

struct RowStatements<'a> {
    writer: &'a Connected,
    row: CachedStatement<'a>,
    unlist: CachedStatement<'a>,
    list: CachedStatement<'a>,
}

impl<'a> RowStatements<'a> {
    fn prepare(writer: &'a Connected) -> rusqlite::Result<Self> {
        let row = "INSERT INTO rows (kind, id, body) VALUES (?1, ?2, ?3) \
                   ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body";
        let unlist = "DELETE FROM lists \
                      WHERE list = ?1 AND kind = ?2 AND scope = ?3 AND at = ?4 AND id = ?5";
        let list = "INSERT INTO lists (list, kind, scope, at, id) VALUES (?1, ?2, ?3, ?4, ?5)";
        let conn = &writer.conn;
        let (row, unlist) = (conn.prepare_cached(row)?, conn.prepare_cached(unlist)?);
        Ok(Self { writer, row, unlist, list: conn.prepare_cached(list)? })
    }

    fn write(&mut self, key: &RowKey, row: &DirtyRow) -> rusqlite::Result<()> {
        let mut words = Numbering(self.writer);
        let kind = sql_number(words.word(key.kind)?);
        let id = Packed::new(&key.id);
        self.row.execute((kind, &id, &row.bytes))?;
        let (gone, new) = row.moves();
        for ListEntry { list, scope, at } in gone {
            let list = sql_number(words.word(list)?);
            self.unlist.execute((list, kind, Packed::new(scope), Packed::new(at), &id))?;
        }
        for ListEntry { list, scope, at } in new {
            let list = sql_number(words.word(list)?);
            self.list.execute((list, kind, Packed::new(scope), Packed::new(at), &id))?;
        }
        Ok(())
    }
}

/// Gives words their numbers, new ones within the running transaction.
struct Numbering<'a>(&'a Connected);

impl Numbers for Numbering<'_> {
    type Error = Error;

    fn word(&mut self, text: &str) -> rusqlite::Result<u64> {
        if let Some(no) = self.0.names.borrow().numbers.get(text) {
            return Ok(*no);
        }
        let conn = &self.0.conn;
        let insert = "INSERT INTO words (text) VALUES (?1) ON CONFLICT (text) DO NOTHING";
        conn.prepare_cached(insert)?.execute([text])?;
        let find = "SELECT no FROM words WHERE text = ?1";
        let no: i64 = conn.prepare_cached(find)?.query_row([text], |row| row.get(0))?;
        let no = u64::try_from(no).map_err(|_| Error::IntegralValueOutOfRange(0, no))?;
        self.0.names.borrow_mut().numbers.insert(text.to_owned(), no);
        Ok(no)
    }
}

impl Backend for Sqlite {
    fn key(&mut self, address: KeyAddress) -> Result<Option<KeyLine>, Fault> {
        self.read(|writer| {
            let Some(seq) = Source::key(writer, address)? else { return Ok(None) };
            Ok(writer.entry(seq)?.and_then(|found| found.entry.key))
        })
    }

    fn row(&mut self, key: &RowKey) -> Result<Option<Vec<u8>>, Fault> {
        let mut ends = std::mem::take(&mut self.ends);
        let found = self.read(|writer| {
            if ends.is_past(writer, key)? {
                return Ok(None);
            }
            Source::row(writer, key.kind, &key.id)
        });
        self.ends = ends;
        found
    }

    fn hold(&mut self, id: TransferId) -> Result<Option<Hold>, Fault> {
        if self.ends.hold < Some(id) {
            return Ok(None);
        }
        self.read(|writer| Ok(Snapshot(writer).hold(id)?.map(|row| row.hold)))
    }

    fn ready(&mut self) -> Result<(), String> {
        let pages = self.wal.pages.load(Ordering::Relaxed);
        let hard = self.options.wal_hard_pages;
        if pages < self.wal.fold_at && pages <= hard {
            return Ok(());
        }
        if let Err(why) = self.fold("PASSIVE", Duration::ZERO) {
            tracing::warn!(why, "the write-ahead log was not folded");
        }
        if self.wal.pages.load(Ordering::Relaxed) <= hard {
            return Ok(());
        }
        // Longer than it may be: wait for whoever reads, and take nothing more until they end.
        self.fold("RESTART", PATIENCE)?;
        if self.wal.pages.load(Ordering::Relaxed) > hard {
            return Err("a reader keeps the write-ahead log from being folded".to_owned());
        }
        Ok(())
    }

    fn begin(&mut self, known: &Head) -> Result<Begun, Fault> {
        self.writer()?.write("BEGIN IMMEDIATE", []).map_err(|why| self.fault(&why))?;
        Ok(Begun { now: None, head: *known, foreign: Foreign::None })
    }

    fn record(&mut self, unit: &Recorded<'_>) -> Result<(), Fault> {
        // Before writing: an end that turns out too high only costs a look.
        unit.entry.ops.iter().for_each(|op| self.ends.saw_hold(op.id()));
        self.wrote = true;
        let writer = self.writer()?;
        let recorded = writer
            .write("SAVEPOINT unit", [])
            .and_then(|()| writer.record(unit))
            .and_then(|()| writer.write("RELEASE unit", []));
        let Err(why) = recorded else { return Ok(()) };
        let fault = self.fault(&why);
        writer.forget_names();
        if let Fault::Unit(_) = fault {
            let undone = writer
                .write("ROLLBACK TO unit", [])
                .and_then(|()| writer.write("RELEASE unit", []));
            #[cfg(feature = "planted")]
            if crate::planted::on(crate::planted::Bug::IgnoreRollback) {
                return Err(fault);
            }
            if let Err(why) = undone {
                return Err(Fault::Whole(why.to_string()));
            }
        }
        Err(fault)
    }

    fn commit(&mut self, dirty: &Dirty<'_>) -> Result<(), CommitFault> {
        let lost = |fault: Fault| match fault {
            Fault::Unit(why) => CommitFault::Poison(why),
            whole => CommitFault::Whole(whole.why()),
        };
        dirty.rows.keys().for_each(|key| self.ends.saw_row(key));
        let writer = self.writer().map_err(lost)?;
        if let Err(why) = writer.write_dirty(dirty) {
            let fault = self.fault(&why);
            self.rollback();
            return Err(lost(fault));
        }
        let committed = writer.write("COMMIT", []);
        #[cfg(feature = "planted")]
        if crate::planted::on(crate::planted::Bug::IgnoreRollback) {
            return Ok(());
        }
        match committed {
            Ok(()) => {
                self.wrote = false;
                Ok(())
            }
            Err(why) => {
                // It may have reached the disk or not; only the disk can tell.
                self.writer = None;
                Err(CommitFault::Unknown(why.to_string()))
            }
        }
    }

    fn rollback(&mut self) {
        let Some(writer) = &self.writer else { return };
        if std::mem::take(&mut self.wrote) {
            writer.forget_names();
        }
        if !writer.conn.is_autocommit()
            && let Err(why) = writer.write("ROLLBACK", [])
        {
            tracing::error!(%why, "a rollback failed; the connection is given up");
            self.writer = None;
        }
    }

    fn recover(&mut self) -> Result<Recovered, String> {
        // A connection that was inside something is worth nothing.
        self.writer = self.writer.take().filter(Connected::is_idle);
        if self.writer.is_none() {
            let (writer, _) =
                connect(&self.path, &self.options, &self.wal).map_err(|why| why.to_string())?;
            writer.settle().map_err(|why| format!("what was in doubt stays so: {why}"))?;
            self.writer = Some(writer);
        }
        let writer = self.writer().map_err(|_| "no connection".to_owned())?;
        let mut accounts = Vec::new();
        let mut last = 0;
        let head = writer.at_one_moment(|books| {
            let snapshot = Snapshot(books);
            snapshot.each_account(|row| {
                last = row.no;
                let slot = Slot { no: row.no, totals: row.totals, last_seq: row.last_seq };
                accounts.push((row.id, slot));
            })?;
            snapshot.head()
        });
        let head = head.map_err(|why| why.to_string())?;
        let hold = writer.last_hold().map_err(|why| why.to_string())?;
        self.ends = Ends { hold, rows: HashMap::default() };
        if usize::try_from(last) != Ok(accounts.len()) {
            return Err("the accounts' numbers have gaps".to_owned());
        }
        Ok(Recovered { accounts, head })
    }

    fn raw(&mut self) -> Result<&dyn Raw, Fault> {
        let writer = self.writer()?;
        Ok(writer)
    }

    fn mark_moved(&mut self, to: &str) -> Result<(), Fault> {
        let writer = self.writer()?;
        let sql = "INSERT INTO meta (name, value) VALUES (?1, ?2)";
        let marked = writer.write(sql, [MARK_MOVED, to]).and_then(|()| writer.write("COMMIT", []));
        marked.map_err(|why| {
            let fault = self.fault(&why);
            // As after any COMMIT that failed.
            self.writer = None;
            fault
        })
    }

    fn close(&mut self) {
        if let Err(why) = self.fold("TRUNCATE", PATIENCE) {
            tracing::warn!(why, "the write-ahead log was not folded at the end");
        }
        self.writer = None;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed, which is what it is for")]
mod tests {
    use std::fs;
    use std::io::{Seek, SeekFrom, Write};
    use std::path::Path;

    use super::super::open::open_reader;
    use super::*;

    fn put(conn: &Connection, name: &str) {
        conn.execute("INSERT INTO meta (name, value) VALUES (?1, '')", [name]).unwrap();
    }

    fn has(conn: &Connection, name: &str) -> bool {
        let sql = "SELECT count(*) FROM meta WHERE name = ?1";
        conn.query_row(sql, [name], |row| row.get::<_, i64>(0)).unwrap() > 0
    }

    fn log_of(path: &Path) -> PathBuf {
        path.with_extension("db-wal")
    }

    /// What a process that starts on these files finds.
    fn copied(from: &Path, to: &Path) -> Connection {
        fs::copy(from, to).unwrap();
        fs::copy(log_of(from), log_of(to)).unwrap();
        Connection::open(to).unwrap()
    }

    /// A COMMIT whose sync failed is one whose frames are in the log while no open connection's
    /// index knows them; here they are written there by hand.
    #[test]
    fn a_failed_commit_is_settled_before_anything_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let path = at("books.db");
        let mut books = Sqlite::open(path.clone(), SqliteOptions::copy("m", "e")).unwrap();
        put(&books.writer.as_ref().unwrap().conn, "acknowledged");
        // Somebody reads all the time, so that the log stays when the writer goes.
        let reader = open_reader(None, &path).unwrap();
        assert!(has(&reader, "acknowledged"));
        let elsewhere = copied(&path, &at("twin.db"));
        put(&elsewhere, "failed");
        let (log, longer) = (log_of(&path), fs::read(log_of(&at("twin.db"))).unwrap());
        let length = usize::try_from(fs::metadata(&log).unwrap().len()).unwrap();
        let mut file = fs::OpenOptions::new().write(true).open(&log).unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(longer.get(length..).unwrap()).unwrap();
        assert!(has(&copied(&path, &at("before.db")), "failed"), "nothing is in doubt");

        books.writer = None;
        books.recover().unwrap();
        assert!(!has(&reader, "failed"));
        let next = copied(&path, &at("after.db"));
        assert!(has(&next, "acknowledged"));
        assert!(!has(&next, "failed"), "it was not shown, and comes back all the same");
    }
}
