//! What a batch writes, as statements: one a table, whatever the number of rows.

use std::collections::BTreeMap;

use earnest_core::id::TransferId;
use earnest_core::ledger::{AccountId, HoldState, Op};
use earnest_core::unit::{ListEntry, RowKey};
use foldhash::HashMap;
use tokio_postgres::types::{ToSql, Type};

use super::read::{packed, sql_number};
use crate::Head;
use crate::backend::{Dirty, KeyAddress};
use crate::codec::state_number;
use crate::layer::{DirtyRow, Slot};
use crate::moving::RawEntry;
use crate::read::{AccountRow, ChainRow};

/// What a batch is going to write.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) words: Vec<(u64, String)>,
    pub(super) log: Vec<RawEntry>,
    pub(super) keys: HashMap<KeyAddress, i64>,
    pub(super) opened: BTreeMap<TransferId, ChainRow>,
    pub(super) resolved: BTreeMap<TransferId, (HoldState, i64)>,
    pub(super) head: Option<Head>,
}

/// A statement and its parameters.
pub(super) struct Statement {
    sql: &'static str,
    params: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

impl Statement {
    pub(super) fn new(sql: &'static str) -> Self {
        Self { sql, params: Vec::new() }
    }

    pub(super) fn with(mut self, param: impl ToSql + Sync + Send + 'static, of: Type) -> Self {
        self.params.push((Box::new(param), of));
        self
    }

    pub(super) fn sql(&self) -> &'static str {
        self.sql
    }

    pub(super) fn typed(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        let mut typed: Vec<(&(dyn ToSql + Sync), Type)> = Vec::with_capacity(self.params.len());
        for (param, of) in &self.params {
            typed.push((param.as_ref(), of.clone()));
        }
        typed
    }
}

impl Pending {
    pub(super) fn statements(&self) -> Vec<Statement> {
        let mut all = Vec::new();
        if !self.words.is_empty() {
            all.push(insert_words(&self.words));
        }
        all.push(insert_log(&self.log));
        if !self.keys.is_empty() {
            let (address, seq): (Vec<Vec<u8>>, Vec<i64>) =
                self.keys.iter().map(|(address, seq)| (address.0.to_vec(), *seq)).unzip();
            let sql = "INSERT INTO earnest_keys (address, seq) SELECT * FROM unnest($1, $2) \
                       ON CONFLICT (address) DO UPDATE SET seq = excluded.seq";
            let keys = Statement::new(sql).with(address, Type::BYTEA_ARRAY);
            all.push(keys.with(seq, Type::INT8_ARRAY));
        }
        all.extend(self.hold_statements());
        all
    }

    fn hold_statements(&self) -> Vec<Statement> {
        let mut all = Vec::new();
        if !self.opened.is_empty() {
            all.push(insert_chains(&self.opened.values().collect::<Vec<_>>()));
        }
        if !self.resolved.is_empty() {
            let ids: Vec<Vec<u8>> = self.resolved.keys().map(|id| id_bytes(*id)).collect();
            let states: Vec<i16> = self.resolved.values().map(|(to, _)| small_state(*to)).collect();
            let seqs: Vec<i64> = self.resolved.values().map(|(_, seq)| *seq).collect();
            let sql = "UPDATE earnest_holds h SET state = n.state, resolved = n.resolved \
                       FROM unnest($1, $2, $3) AS n (id, state, resolved) WHERE h.id = n.id";
            let holds = Statement::new(sql).with(ids, Type::BYTEA_ARRAY);
            all.push(holds.with(states, Type::INT2_ARRAY).with(seqs, Type::INT8_ARRAY));
        }
        all
    }

    pub(super) fn head_statement(&self, words: u64) -> Option<Statement> {
        let head = self.head?;
        let taken = u64::try_from(self.words.len()).unwrap_or(u64::MAX);
        let sql = "UPDATE earnest_head SET seq = $1, at = $2, hash = $3, words = $4 WHERE one = 1";
        let statement = Statement::new(sql).with(sql_number(head.seq), Type::INT8);
        let statement = statement.with(head.at.as_microsecond(), Type::INT8);
        let statement = statement.with(head.hash.to_vec(), Type::BYTEA);
        Some(statement.with(sql_number(words.saturating_add(taken)), Type::INT8))
    }

    pub(super) fn chain(&mut self, op: &Op, seq: u64) {
        let (state, opens) = match op {
            Op::Move { .. } => (HoldState::Posted, true),
            Op::Hold { .. } => (HoldState::Pending, true),
            Op::Post { .. } => (HoldState::Posted, false),
            Op::Void { .. } => (HoldState::Voided, false),
        };
        let id = op.id();
        if opens {
            self.opened.insert(id, ChainRow { id, state, opened: seq, resolved: None });
        } else if let Some(chain) = self.opened.get_mut(&id) {
            (chain.state, chain.resolved) = (state, Some(seq));
        } else {
            self.resolved.insert(id, (state, sql_number(seq)));
        }
    }
}

/// What writes the accounts that a batch changed.
pub(super) fn accounts_statement(dirty: &Dirty<'_>) -> Option<Statement> {
    let row = |(id, slot): (&AccountId, &Slot)| AccountRow {
        no: slot.no,
        id: *id,
        totals: slot.totals,
        last_seq: slot.last_seq,
    };
    let mut rows: Vec<AccountRow> = dirty.accounts.iter().map(row).collect();
    rows.sort_unstable_by_key(|row| row.no);
    (!rows.is_empty()).then(|| insert_accounts(&rows.iter().collect::<Vec<_>>()))
}

/// Writes words that are not there.
pub(super) fn insert_words(words: &[(u64, String)]) -> Statement {
    let (no, text): (Vec<i64>, Vec<String>) =
        words.iter().map(|(no, text)| (sql_number(*no), text.clone())).unzip();
    let sql = "INSERT INTO earnest_words (no, text) SELECT * FROM unnest($1, $2)";
    Statement::new(sql).with(no, Type::INT8_ARRAY).with(text, Type::TEXT_ARRAY)
}

/// Writes entries of the log.
pub(super) fn insert_log(entries: &[RawEntry]) -> Statement {
    let seq: Vec<i64> = entries.iter().map(|entry| sql_number(entry.seq)).collect();
    let at: Vec<i64> = entries.iter().map(|entry| entry.at).collect();
    let hash: Vec<Vec<u8>> = entries.iter().map(|entry| entry.hash.to_vec()).collect();
    let body: Vec<Vec<u8>> = entries.iter().map(|entry| entry.body.clone()).collect();
    let sql = "INSERT INTO earnest_log (seq, at, hash, body) SELECT * FROM unnest($1, $2, $3, $4)";
    let log = Statement::new(sql).with(seq, Type::INT8_ARRAY).with(at, Type::INT8_ARRAY);
    log.with(hash, Type::BYTEA_ARRAY).with(body, Type::BYTEA_ARRAY)
}

/// Writes accounts, new ones and those that are there.
pub(super) fn insert_accounts(rows: &[&AccountRow]) -> Statement {
    let column = |of: fn(&AccountRow) -> i64| -> Vec<i64> { rows.iter().map(|r| of(r)).collect() };
    let names: Vec<String> = rows.iter().map(|row| row.id.to_string()).collect();
    let sql = "INSERT INTO earnest_accounts (no, name, debits_pending, debits_posted, \
               credits_pending, credits_posted, last_seq) \
               SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7) \
               ON CONFLICT (no) DO UPDATE SET debits_pending = excluded.debits_pending, \
               debits_posted = excluded.debits_posted, credits_pending = excluded.credits_pending, \
               credits_posted = excluded.credits_posted, last_seq = excluded.last_seq";
    Statement::new(sql)
        .with(column(|row| sql_number(row.no)), Type::INT8_ARRAY)
        .with(names, Type::TEXT_ARRAY)
        .with(column(|row| row.totals.debits_pending.get()), Type::INT8_ARRAY)
        .with(column(|row| row.totals.debits_posted.get()), Type::INT8_ARRAY)
        .with(column(|row| row.totals.credits_pending.get()), Type::INT8_ARRAY)
        .with(column(|row| row.totals.credits_posted.get()), Type::INT8_ARRAY)
        .with(column(|row| sql_number(row.last_seq)), Type::INT8_ARRAY)
}

/// Writes chains that are not there.
pub(super) fn insert_chains(rows: &[&ChainRow]) -> Statement {
    let ids: Vec<Vec<u8>> = rows.iter().map(|row| id_bytes(row.id)).collect();
    let states: Vec<i16> = rows.iter().map(|row| small_state(row.state)).collect();
    let opened: Vec<i64> = rows.iter().map(|row| sql_number(row.opened)).collect();
    let resolved: Vec<Option<i64>> = rows.iter().map(|row| row.resolved.map(sql_number)).collect();
    let sql = "INSERT INTO earnest_holds (id, state, opened, resolved) \
               SELECT * FROM unnest($1, $2, $3, $4)";
    let holds = Statement::new(sql).with(ids, Type::BYTEA_ARRAY);
    let holds = holds.with(states, Type::INT2_ARRAY).with(opened, Type::INT8_ARRAY);
    holds.with(resolved, Type::INT8_ARRAY)
}

fn id_bytes(id: TransferId) -> Vec<u8> {
    id.value().to_be_bytes().to_vec()
}

fn small_state(state: HoldState) -> i16 {
    i16::try_from(state_number(state)).unwrap_or(i16::MAX)
}

/// Places in lists, column by column.
#[derive(Default)]
struct Places {
    list: Vec<i64>,
    kind: Vec<i64>,
    scope: Vec<Vec<u8>>,
    at: Vec<Vec<u8>>,
    id: Vec<Vec<u8>>,
}

impl Places {
    fn push(&mut self, list: i64, kind: i64, entry: &ListEntry, id: &[u8]) {
        self.list.push(list);
        self.kind.push(kind);
        self.scope.push(packed(&entry.scope));
        self.at.push(packed(&entry.at));
        self.id.push(id.to_vec());
    }

    fn statement(self, sql: &'static str) -> Option<Statement> {
        if self.id.is_empty() {
            return None;
        }
        let statement = Statement::new(sql).with(self.list, Type::INT8_ARRAY);
        let statement = statement.with(self.kind, Type::INT8_ARRAY);
        let statement = statement.with(self.scope, Type::BYTEA_ARRAY);
        Some(statement.with(self.at, Type::BYTEA_ARRAY).with(self.id, Type::BYTEA_ARRAY))
    }
}

/// What writes the rows that a batch changed, and their places in lists; `number_of` knows every
/// word of theirs.
pub(super) fn rows_statements(
    dirty: &Dirty<'_>,
    number_of: impl Fn(&str) -> i64,
) -> Vec<Statement> {
    let mut rows: Vec<(&RowKey, &DirtyRow)> = dirty.rows.iter().collect();
    rows.sort_unstable_by_key(|(key, _)| *key);
    let (mut kinds, mut ids, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
    let (mut gone, mut new) = (Places::default(), Places::default());
    for (key, row) in rows {
        let (kind, id) = (number_of(key.kind), packed(&key.id));
        let (left, entered) = row.moves();
        for entry in left {
            gone.push(number_of(entry.list), kind, entry, &id);
        }
        for entry in entered {
            new.push(number_of(entry.list), kind, entry, &id);
        }
        kinds.push(kind);
        ids.push(id);
        bodies.push(row.bytes.clone());
    }
    let mut all = Vec::new();
    if !ids.is_empty() {
        let sql = "INSERT INTO earnest_rows (kind, id, body) SELECT * FROM unnest($1, $2, $3) \
                   ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body";
        let rows = Statement::new(sql).with(kinds, Type::INT8_ARRAY);
        all.push(rows.with(ids, Type::BYTEA_ARRAY).with(bodies, Type::BYTEA_ARRAY));
    }
    all.extend(gone.statement(
        "DELETE FROM earnest_lists l USING unnest($1, $2, $3, $4, $5) \
         AS n (list, kind, scope, at, id) WHERE l.list = n.list AND l.kind = n.kind \
         AND l.scope = n.scope AND l.at = n.at AND l.id = n.id",
    ));
    all.extend(new.statement(
        "INSERT INTO earnest_lists (list, kind, scope, at, id) \
         SELECT * FROM unnest($1, $2, $3, $4, $5)",
    ));
    all
}
