//! A file as the place books are moved to.

use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, Params};

use super::open::{MARK_ARRIVING, SqliteOptions, open_marked, take_lock};
use super::read::{Connected, sql_number};
use crate::codec::{Packed, state_number};
use crate::moving::{Part, Raw, Sink};
use crate::read::Source;
use crate::{Head, OpenError};

/// A connection that holds a transaction open until the copy is whole, and the writer's place.
pub(crate) struct SqliteSink {
    connected: Connected,
    path: PathBuf,
    _lock: File,
}

impl SqliteSink {
    /// Empties what is left of a copy that was cut off. Refuses books that are anybody's.
    pub(crate) fn begin(path: &Path, options: &SqliteOptions) -> Result<Self, OpenError> {
        let (sink, arriving) = Self::open(path, options)?;
        let empty = sink.connected.head().is_ok_and(|head| head.seq == 0);
        if !empty && !arriving {
            return Err(OpenError::NotEmpty(path.display().to_string()));
        }
        let failed = |why: rusqlite::Error| OpenError::Failed {
            path: path.to_owned(),
            why: why.to_string(),
        };
        let conn = &sink.connected.conn;
        conn.execute_batch("BEGIN IMMEDIATE").map_err(failed)?;
        for table in ["words", "accounts", "log", "holds", "rows", "lists", "keys"] {
            conn.execute(&format!("DELETE FROM {table}"), []).map_err(failed)?;
        }
        let sql = "INSERT OR REPLACE INTO meta (name, value) VALUES (?1, ?2)";
        for (name, value) in [("epoch", options.epoch()), (MARK_ARRIVING, "yes")] {
            conn.execute(sql, [name, value]).map_err(failed)?;
        }
        Ok(sink)
    }

    /// As [`SqliteSink::begin`], for a copy that is whole and has only its mark left.
    pub(crate) fn resume(path: &Path, options: &SqliteOptions) -> Result<Self, OpenError> {
        Self::open(path, options).map(|(sink, _)| sink)
    }

    fn open(path: &Path, options: &SqliteOptions) -> Result<(Self, bool), OpenError> {
        let lock = take_lock(path)?;
        let (conn, _, arriving) = open_marked(path, options)?;
        let connected = Connected::new(conn);
        Ok((Self { connected, path: path.to_owned(), _lock: lock }, arriving))
    }

    fn conn(&self) -> &Connection {
        &self.connected.conn
    }

    fn each<P: Params>(
        &self,
        sql: &str,
        rows: impl IntoIterator<Item = P>,
    ) -> rusqlite::Result<()> {
        let mut statement = self.conn().prepare_cached(sql)?;
        rows.into_iter().try_for_each(|row| statement.execute(row).map(drop))
    }

    fn write_part(&self, part: &Part) -> rusqlite::Result<()> {
        match part {
            Part::Words(of) => self.each(
                "INSERT INTO words (no, text) VALUES (?1, ?2)",
                of.iter().map(|(no, text)| (sql_number(*no), text)),
            ),
            Part::Accounts(of) => self.each(
                "INSERT INTO accounts (no, name, debits_pending, debits_posted, \
                 credits_pending, credits_posted, last_seq) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                of.iter().map(|row| {
                    let of = row.totals;
                    let (dp, dr) = (of.debits_pending.get(), of.debits_posted.get());
                    let (cp, cr) = (of.credits_pending.get(), of.credits_posted.get());
                    let last = sql_number(row.last_seq);
                    (sql_number(row.no), row.id.to_string(), dp, dr, cp, cr, last)
                }),
            ),
            Part::Log(of) => self.each(
                "INSERT INTO log (seq, at, hash, body) VALUES (?1, ?2, ?3, ?4)",
                of.iter().map(|entry| (sql_number(entry.seq), entry.at, entry.hash, &entry.body)),
            ),
            Part::Chains(of) => self.each(
                "INSERT INTO holds (id, state, opened, resolved) VALUES (?1, ?2, ?3, ?4)",
                of.iter().map(|row| {
                    let (id, state) = (row.id.value().to_be_bytes(), state_number(row.state));
                    (id, state, sql_number(row.opened), row.resolved.map(sql_number))
                }),
            ),
            Part::Rows(of) => self.each(
                "INSERT INTO rows (kind, id, body) VALUES (?1, ?2, ?3)",
                of.iter().map(|row| (sql_number(row.kind), Packed::new(&row.id), &row.body)),
            ),
            Part::Places(of) => self.each(
                "INSERT INTO lists (list, kind, scope, at, id) VALUES (?1, ?2, ?3, ?4, ?5)",
                of.iter().map(|place| {
                    let (scope, at) = (Packed::new(&place.scope), Packed::new(&place.at));
                    let id = Packed::new(&place.id);
                    (sql_number(place.list), sql_number(place.kind), scope, at, id)
                }),
            ),
            Part::Keys(of) => self.each(
                "INSERT INTO keys (address, seq) VALUES (?1, ?2)",
                of.iter().map(|(address, seq)| (address.0, sql_number(*seq))),
            ),
        }
    }
}

impl Sink for SqliteSink {
    fn write(&mut self, part: &Part) -> Result<(), String> {
        self.write_part(part).map_err(|why| why.to_string())
    }

    fn commit(&mut self, _: &Head, _: u64) -> Result<(), String> {
        self.conn().execute_batch("COMMIT").map_err(|why| why.to_string())
    }

    fn copied(&self) -> &dyn Raw {
        &self.connected
    }

    fn arrive(&mut self) -> Result<(), String> {
        let gone = self.conn().execute("DELETE FROM meta WHERE name = ?1", [MARK_ARRIVING]);
        gone.map_err(|why| format!("{}: {why}", self.path.display()))?;
        // Whoever opens it next should not find a write-ahead log as long as the books.
        let folded = self.conn().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
        folded.map_err(|why| why.to_string())
    }
}
