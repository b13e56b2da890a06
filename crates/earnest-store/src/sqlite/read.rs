//! Reading the tables, for the writer and the readers alike.

use std::borrow::Cow;
use std::cell::RefCell;

use earnest_core::id::TransferId;
use earnest_core::ledger::{AccountId, Totals};
use earnest_core::money::Micros;
use earnest_core::time::Timestamp;
use foldhash::HashMap;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Params, Row};

use crate::backend::KeyAddress;
use crate::codec::{Names, Packed, decode, state_of};
use crate::moving::{Raw, RawEntry, RawPlace, RawRow};
use crate::read::{AccountRow, ChainRow, Cursor, ListQuery, ListRow, LogEntry, Source};
use crate::{Head, ReadError};

/// A connection and what its numbers mean.
pub(super) struct Connected {
    pub(super) conn: Connection,
    pub(super) names: RefCell<NameCache>,
}

/// Words and account numbers never change their meaning once committed, so they are remembered.
#[derive(Default)]
pub(super) struct NameCache {
    pub(super) words: HashMap<u64, Cow<'static, str>>,
    pub(super) numbers: HashMap<String, u64>,
    accounts: HashMap<u64, AccountId>,
}

/// How many accounts a connection remembers before it forgets them all.
const MOST_ACCOUNTS: usize = 50_000;

impl Connected {
    pub(super) fn new(conn: Connection) -> Self {
        Self { conn, names: RefCell::default() }
    }

    /// Forgets what numbers mean, since some of it was rolled back.
    pub(super) fn forget_names(&self) {
        *self.names.borrow_mut() = NameCache::default();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.conn.is_autocommit()
    }

    /// Runs reads in one short transaction.
    pub(super) fn at_one_moment<T>(
        &self,
        read: impl FnOnce(&dyn Source) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        self.run("BEGIN", [])?;
        let answer = read(self);
        self.run("COMMIT", [])?;
        answer
    }

    fn run(&self, sql: &str, params: impl Params) -> Result<(), ReadError> {
        self.conn.prepare_cached(sql).and_then(|mut s| s.execute(params)).map_err(unavailable)?;
        Ok(())
    }

    fn one<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, ReadError> {
        let mut statement = self.conn.prepare_cached(sql).map_err(unavailable)?;
        statement.query_row(params, read).optional().map_err(unavailable)
    }

    fn many<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, ReadError> {
        let mut statement = self.conn.prepare_cached(sql).map_err(unavailable)?;
        let found = statement.query_map(params, read).map_err(unavailable)?;
        found.collect::<rusqlite::Result<_>>().map_err(unavailable)
    }

    /// The number of a word; `None` where it was never used.
    pub(super) fn number_of(&self, word: &str) -> Result<Option<u64>, ReadError> {
        if let Some(no) = self.names.borrow().numbers.get(word) {
            return Ok(Some(*no));
        }
        let sql = "SELECT no FROM words WHERE text = ?1";
        let no = self.one(sql, [word], |row| number(row, 0))?;
        if let Some(no) = no {
            self.names.borrow_mut().numbers.insert(word.to_owned(), no);
        }
        Ok(no)
    }

    pub(super) fn word(&self, no: u64) -> Result<Cow<'static, str>, ReadError> {
        if let Some(word) = self.names.borrow().words.get(&no) {
            return Ok(word.clone());
        }
        let sql = "SELECT text FROM words WHERE no = ?1";
        let word: Option<String> = self.one(sql, [sql_number(no)], |row| row.get(0))?;
        let word = word.ok_or_else(|| ReadError::damaged(format!("no word {no}")))?;
        self.names.borrow_mut().words.insert(no, word.clone().into());
        Ok(word.into())
    }

    fn account_of(&self, no: u64) -> Result<AccountId, ReadError> {
        if let Some(id) = self.names.borrow().accounts.get(&no) {
            return Ok(*id);
        }
        let sql = "SELECT name FROM accounts WHERE no = ?1";
        let name: Option<String> = self.one(sql, [sql_number(no)], |row| row.get(0))?;
        let name = name.ok_or_else(|| ReadError::damaged(format!("no account {no}")))?;
        let id = name.parse().map_err(ReadError::damaged)?;
        let mut names = self.names.borrow_mut();
        if names.accounts.len() >= MOST_ACCOUNTS {
            names.accounts.clear();
        }
        names.accounts.insert(no, id);
        Ok(id)
    }

    /// The highest id of the usual form among the rows of a kind.
    pub(super) fn last_id(&self, kind: &str) -> Result<Option<Packed>, ReadError> {
        let Some(kind) = self.number_of(kind)? else { return Ok(None) };
        // Ids of the usual form sort after all others, so the last row has it if any has.
        let sql = "SELECT id FROM rows WHERE kind = ?1 ORDER BY id DESC LIMIT 1";
        let last = self.one(sql, [sql_number(kind)], |row| row.get::<_, Packed>(0))?;
        Ok(last.filter(|id| matches!(id, Packed::Id(_))))
    }

    /// The highest id among all chains.
    pub(super) fn last_hold(&self) -> Result<Option<TransferId>, ReadError> {
        let sql = "SELECT id FROM holds ORDER BY id DESC LIMIT 1";
        let last = self.one(sql, [], |row| row.get::<_, [u8; 16]>(0))?;
        Ok(last.map(|id| TransferId::from_value(u128::from_be_bytes(id))))
    }

    fn decode(&self, raw: RawEntry) -> Result<LogEntry, ReadError> {
        let at = Timestamp::from_microsecond(raw.at).map_err(ReadError::damaged)?;
        let mut lookup = Lookup { books: self, failed: None };
        let decoded = decode(raw.seq, at, raw.hash, &raw.body, &mut lookup);
        // What the disk did not give says nothing of the entry.
        decoded.map_err(|why| lookup.failed.unwrap_or_else(|| ReadError::damaged(why)))
    }
}

fn unavailable(why: rusqlite::Error) -> ReadError {
    match why {
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..) => ReadError::damaged(why),
        _ => ReadError::Unavailable(why.to_string()),
    }
}

struct Lookup<'a> {
    books: &'a Connected,
    /// Why a name could not be looked up.
    failed: Option<ReadError>,
}

impl Lookup<'_> {
    fn keep<T>(&mut self, found: Result<T, ReadError>) -> Result<T, String> {
        found.map_err(|why| self.failed.insert(why).to_string())
    }
}

impl Names for Lookup<'_> {
    fn word(&mut self, no: u64) -> Result<Cow<'static, str>, String> {
        self.keep(self.books.word(no))
    }

    fn account(&mut self, no: u64) -> Result<AccountId, String> {
        self.keep(self.books.account_of(no))
    }
}

fn raw_entry(row: &Row<'_>) -> rusqlite::Result<RawEntry> {
    Ok(RawEntry { seq: number(row, 0)?, at: row.get(1)?, hash: row.get(2)?, body: row.get(3)? })
}

/// SQLite's integers are signed; ours here count from 0 and never come near the end.
pub(super) fn sql_number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn number(row: &Row<'_>, place: usize) -> rusqlite::Result<u64> {
    let found: i64 = row.get(place)?;
    u64::try_from(found).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(place, found))
}

fn optional_number(row: &Row<'_>, place: usize) -> rusqlite::Result<Option<u64>> {
    let found: Option<i64> = row.get(place)?;
    found.map(|_| number(row, place)).transpose()
}

fn micros(row: &Row<'_>, place: usize) -> rusqlite::Result<Micros> {
    let found: i64 = row.get(place)?;
    Micros::new(found).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(place, found))
}

fn conversion(why: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(why))
}

fn account_row(row: &Row<'_>) -> rusqlite::Result<AccountRow> {
    let name: String = row.get(1)?;
    let totals = Totals {
        debits_pending: micros(row, 2)?,
        debits_posted: micros(row, 3)?,
        credits_pending: micros(row, 4)?,
        credits_posted: micros(row, 5)?,
    };
    let id = name.parse().map_err(conversion)?;
    Ok(AccountRow { no: number(row, 0)?, id, totals, last_seq: number(row, 6)? })
}

fn chain_row(row: &Row<'_>) -> rusqlite::Result<ChainRow> {
    let id: [u8; 16] = row.get(0)?;
    let state: i64 = row.get(1)?;
    let unknown = || rusqlite::Error::IntegralValueOutOfRange(1, state);
    let state = state_of(state).ok_or_else(unknown)?;
    let id = TransferId::from_value(u128::from_be_bytes(id));
    Ok(ChainRow { id, state, opened: number(row, 2)?, resolved: optional_number(row, 3)? })
}

impl ToSql for Packed {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Id(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl FromSql for Packed {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Text(_) => Ok(Self::Text(value.as_str()?.to_owned())),
            ValueRef::Blob(bytes) => Self::of_bytes(bytes).ok_or(FromSqlError::InvalidType),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}

fn packed_text(row: &Row<'_>, place: usize) -> rusqlite::Result<String> {
    Ok(row.get::<_, Packed>(place)?.text())
}

type Read<T> = Result<T, ReadError>;

fn limit_number(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

const ACCOUNT: &str = "SELECT no, name, debits_pending, debits_posted, credits_pending, \
                       credits_posted, last_seq FROM accounts";

impl Source for Connected {
    fn head(&self) -> Read<Head> {
        let sql = "SELECT seq, at, hash FROM log ORDER BY seq DESC LIMIT 1";
        let found = self.one(sql, [], |row| {
            Ok((number(row, 0)?, row.get::<_, i64>(1)?, row.get::<_, [u8; 32]>(2)?))
        })?;
        let Some((seq, at, hash)) = found else { return Ok(Head::GENESIS) };
        let at = Timestamp::from_microsecond(at).map_err(ReadError::damaged)?;
        Ok(Head { seq, at, hash })
    }

    fn entry(&self, seq: u64) -> Read<Option<LogEntry>> {
        let sql = "SELECT seq, at, hash, body FROM log WHERE seq = ?1";
        let raw = self.one(sql, [sql_number(seq)], raw_entry)?;
        raw.map(|raw| self.decode(raw)).transpose()
    }

    fn entries(&self, after: u64, limit: usize) -> Read<Vec<LogEntry>> {
        let sql = "SELECT seq, at, hash, body FROM log WHERE seq > ?1 ORDER BY seq LIMIT ?2";
        let raw = self.many(sql, (sql_number(after), limit_number(limit)), raw_entry)?;
        raw.into_iter().map(|raw| self.decode(raw)).collect()
    }

    fn account(&self, id: &AccountId) -> Read<Option<AccountRow>> {
        self.one(&format!("{ACCOUNT} WHERE name = ?1"), [id.to_string()], account_row)
    }

    fn accounts(&self, after: u64, limit: usize) -> Read<Vec<AccountRow>> {
        let sql = format!("{ACCOUNT} WHERE no > ?1 ORDER BY no LIMIT ?2");
        self.many(&sql, (sql_number(after), limit_number(limit)), account_row)
    }

    fn accounts_named(&self, prefix: &str, after: &str, limit: usize) -> Read<Vec<AccountRow>> {
        // No account's text has a letter above `z`, so this ends what begins with the prefix.
        let sql = format!(
            "{ACCOUNT} WHERE name >= ?1 AND name < ?1 || '~' AND name > ?2 ORDER BY name LIMIT ?3"
        );
        self.many(&sql, (prefix, after, limit_number(limit)), account_row)
    }

    fn chain(&self, id: TransferId) -> Read<Option<ChainRow>> {
        let sql = "SELECT id, state, opened, resolved FROM holds WHERE id = ?1";
        self.one(sql, [id.value().to_be_bytes()], chain_row)
    }

    fn chains(&self, after: Option<TransferId>, limit: usize) -> Read<Vec<ChainRow>> {
        let sql =
            "SELECT id, state, opened, resolved FROM holds WHERE id > ?1 ORDER BY id LIMIT ?2";
        let after = after.map(|id| id.value().to_be_bytes().to_vec()).unwrap_or_default();
        self.many(sql, (after, limit_number(limit)), chain_row)
    }

    fn row(&self, kind: &str, id: &str) -> Read<Option<Vec<u8>>> {
        let Some(kind) = self.number_of(kind)? else { return Ok(None) };
        let sql = "SELECT body FROM rows WHERE kind = ?1 AND id = ?2";
        self.one(sql, (sql_number(kind), Packed::new(id)), |row| row.get(0))
    }

    fn rows(&self, kind: &str, after: Option<&str>, limit: usize) -> Read<Vec<(String, Vec<u8>)>> {
        let Some(kind) = self.number_of(kind)? else { return Ok(Vec::new()) };
        let sql = "SELECT id, body FROM rows WHERE kind = ?1 AND (?2 IS NULL OR id > ?2) \
                   ORDER BY id LIMIT ?3";
        let params = (sql_number(kind), after.map(Packed::new), limit_number(limit));
        self.many(sql, params, |row| Ok((packed_text(row, 0)?, row.get(1)?)))
    }

    fn kinds(&self) -> Read<Vec<String>> {
        let sql = "SELECT text FROM words WHERE EXISTS (SELECT 1 FROM rows WHERE kind = words.no) \
                   ORDER BY text";
        self.many(sql, [], |row| row.get(0))
    }

    fn list(&self, query: &ListQuery<'_>) -> Read<Vec<Cursor>> {
        let (Some(list), Some(kind)) = (self.number_of(query.list)?, self.number_of(query.kind)?)
        else {
            return Ok(Vec::new());
        };
        let (compare, order) = if query.newest_first { ("<", "DESC") } else { (">", "ASC") };
        let beyond = match query.after {
            Some(_) => format!("AND (at, id) {compare} (?4, ?5)"),
            None => "AND ?4 IS NULL AND ?5 IS NULL".to_owned(),
        };
        let sql = format!(
            "SELECT at, id FROM lists WHERE list = ?1 AND kind = ?2 AND scope = ?3 {beyond} \
             ORDER BY at {order}, id {order} LIMIT ?6"
        );
        let at = query.after.map(|cursor| Packed::new(&cursor.at));
        let id = query.after.map(|cursor| Packed::new(&cursor.id));
        let scope = Packed::new(query.scope);
        let limit = limit_number(query.limit);
        let params = (sql_number(list), sql_number(kind), scope, at, id, limit);
        self.many(&sql, params, |row| {
            Ok(Cursor { at: packed_text(row, 0)?, id: packed_text(row, 1)? })
        })
    }

    fn list_rows(&self) -> Read<Vec<ListRow>> {
        let sql = "SELECT l.text, k.text, scope, at, id FROM lists \
                   JOIN words l ON l.no = list JOIN words k ON k.no = kind";
        self.many(sql, [], |row| {
            Ok(ListRow {
                list: row.get(0)?,
                kind: row.get(1)?,
                scope: packed_text(row, 2)?,
                at: packed_text(row, 3)?,
                id: packed_text(row, 4)?,
            })
        })
    }

    fn key(&self, address: KeyAddress) -> Read<Option<u64>> {
        self.one("SELECT seq FROM keys WHERE address = ?1", [address.0], |row| number(row, 0))
    }

    fn keys(&self) -> Read<Vec<(KeyAddress, u64)>> {
        let sql = "SELECT address, seq FROM keys";
        self.many(sql, [], |row| Ok((KeyAddress(row.get(0)?), number(row, 1)?)))
    }
}

impl Raw for Connected {
    fn words(&self, after: u64, limit: usize) -> Read<Vec<(u64, String)>> {
        let sql = "SELECT no, text FROM words WHERE no > ?1 ORDER BY no LIMIT ?2";
        let params = (sql_number(after), limit_number(limit));
        self.many(sql, params, |row| Ok((number(row, 0)?, row.get(1)?)))
    }

    fn raw_entries(&self, after: u64, limit: usize) -> Read<Vec<RawEntry>> {
        let sql = "SELECT seq, at, hash, body FROM log WHERE seq > ?1 ORDER BY seq LIMIT ?2";
        self.many(sql, (sql_number(after), limit_number(limit)), raw_entry)
    }

    fn raw_rows(&self, after: Option<&RawRow>, limit: usize) -> Read<Vec<RawRow>> {
        let sql = "SELECT kind, id, body FROM rows WHERE (kind, id) > (?1, ?2) \
                   ORDER BY kind, id LIMIT ?3";
        let kind = after.map_or(0, |row| sql_number(row.kind));
        let id = Packed::new(after.map_or("", |row| &row.id));
        self.many(sql, (kind, id, limit_number(limit)), |row| {
            Ok(RawRow { kind: number(row, 0)?, id: packed_text(row, 1)?, body: row.get(2)? })
        })
    }

    fn raw_places(&self, after: Option<&RawPlace>, limit: usize) -> Read<Vec<RawPlace>> {
        let sql = "SELECT list, kind, scope, at, id FROM lists \
                   WHERE (list, kind, scope, at, id) > (?1, ?2, ?3, ?4, ?5) \
                   ORDER BY list, kind, scope, at, id LIMIT ?6";
        let (list, kind) = after.map_or((0, 0), |p| (sql_number(p.list), sql_number(p.kind)));
        let text = |of: fn(&RawPlace) -> &str| Packed::new(after.map_or("", of));
        let (scope, at, id) = (text(|p| &p.scope), text(|p| &p.at), text(|p| &p.id));
        self.many(sql, (list, kind, scope, at, id, limit_number(limit)), |row| {
            Ok(RawPlace {
                list: number(row, 0)?,
                kind: number(row, 1)?,
                scope: packed_text(row, 2)?,
                at: packed_text(row, 3)?,
                id: packed_text(row, 4)?,
            })
        })
    }

    fn raw_keys(&self, after: Option<KeyAddress>, limit: usize) -> Read<Vec<(KeyAddress, u64)>> {
        let sql = "SELECT address, seq FROM keys WHERE address > ?1 ORDER BY address LIMIT ?2";
        let after = after.map(|address| address.0.to_vec()).unwrap_or_default();
        self.many(sql, (after, limit_number(limit)), |row| {
            Ok((KeyAddress(row.get(0)?), number(row, 1)?))
        })
    }
}
