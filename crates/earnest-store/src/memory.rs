//! Books in memory, for simulations and tests: the same tables without a disk.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use earnest_core::entry::KeyLine;
use earnest_core::id::TransferId;
use earnest_core::ledger::{AccountId, Hold, HoldState, Op};
use earnest_core::unit::RowKey;

use crate::backend::{
    Backend, Begun, Changed, CommitFault, Dirty, Fault, Foreign, KeyAddress, Recorded, Recovered,
};
use crate::codec::Packed;
use crate::layer::Slot;
use crate::read::{AccountRow, ChainRow, Cursor, ListQuery, ListRow, LogEntry, Shelf};
use crate::read::{Reader, Snapshot, Source};
use crate::{Head, ReadError};

type ListKey = (String, String, String, Packed, Packed);

/// How often a store that has nothing to do looks at what others wrote.
const FOLLOW: Duration = Duration::from_millis(20);

/// Everything that is stored.
#[derive(Default)]
pub(crate) struct Tables {
    accounts: Vec<AccountRow>,
    names: BTreeMap<String, usize>,
    chains: BTreeMap<TransferId, ChainRow>,
    rows: BTreeMap<String, BTreeMap<Packed, Vec<u8>>>,
    lists: BTreeSet<ListKey>,
    keys: HashMap<KeyAddress, u64>,
    log: Vec<LogEntry>,
}

/// Books in memory that several stores write, as nodes write one database: for simulations of
/// several nodes.
#[derive(Clone, Default)]
pub struct Shared(Arc<Common>);

#[derive(Default)]
struct Common {
    tables: Arc<RwLock<Tables>>,
    /// Whether somebody runs a batch, which is everybody's turn to wait.
    taken: Mutex<bool>,
    given_back: Condvar,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Shared {}

/// The backend: what a batch recorded waits here for its commit.
pub(crate) struct Memory {
    tables: Arc<RwLock<Tables>>,
    shared: Option<Arc<Common>>,
    has_turn: bool,
    pending: Vec<(LogEntry, Option<KeyAddress>)>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self { tables: Arc::default(), shared: None, has_turn: false, pending: Vec::new() }
    }

    pub(crate) fn shared(with: &Shared) -> Self {
        let shared = Some(with.0.clone());
        Self { tables: with.0.tables.clone(), shared, has_turn: false, pending: Vec::new() }
    }

    fn take_turn(&mut self) {
        let Some(common) = self.shared.as_ref().filter(|_| !self.has_turn) else { return };
        let taken = common.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = common.given_back.wait_while(taken, |taken| *taken);
        *wait.unwrap_or_else(PoisonError::into_inner) = true;
        self.has_turn = true;
    }

    fn give_turn_back(&mut self) {
        let Some(common) = self.shared.as_ref().filter(|_| self.has_turn) else { return };
        *common.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        common.given_back.notify_one();
        self.has_turn = false;
    }

    /// What was appended since `known`.
    fn foreign(&self, known: &Head) -> Result<Foreign, Fault> {
        let tables = self.read();
        let new = Source::entries(&*tables, known.seq, usize::MAX).map_err(unit_fault)?;
        if new.is_empty() {
            return Ok(Foreign::None);
        }
        let mut changed = Changed::default();
        for found in &new {
            for (id, _) in &found.accounts {
                let row = Source::account(&*tables, id).map_err(unit_fault)?;
                changed.accounts.extend(row.map(|row| slot_of(&row)));
            }
            let puts = found.entry.puts.iter();
            changed.rows.extend(puts.map(|put| (put.kind.clone(), put.id.clone())));
            changed.holds.extend(found.entry.ops.iter().map(Op::id));
        }
        Ok(Foreign::Some(changed))
    }

    pub(crate) fn reader(&self) -> Reader {
        Reader(Arc::new(Shelf::Memory(self.tables.clone())))
    }

    fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unit_fault(why: ReadError) -> Fault {
    Fault::Unit(why.to_string())
}

impl Backend for Memory {
    fn key(&mut self, address: KeyAddress) -> Result<Option<KeyLine>, Fault> {
        let tables = self.read();
        let Some(seq) = tables.key(address).map_err(unit_fault)? else { return Ok(None) };
        Ok(tables.entry(seq).map_err(unit_fault)?.and_then(|found| found.entry.key))
    }

    fn row(&mut self, key: &RowKey) -> Result<Option<Vec<u8>>, Fault> {
        Source::row(&*self.read(), key.kind, &key.id).map_err(unit_fault)
    }

    fn hold(&mut self, id: TransferId) -> Result<Option<Hold>, Fault> {
        let tables = self.read();
        let found = Snapshot(&*tables).hold(id).map_err(unit_fault)?;
        Ok(found.map(|row| row.hold))
    }

    fn ready(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn begin(&mut self, known: &Head) -> Result<Begun, Fault> {
        self.pending.clear();
        self.take_turn();
        let foreign = if self.shared.is_some() { self.foreign(known)? } else { Foreign::None };
        let head = Source::head(&*self.read()).map_err(unit_fault)?;
        Ok(Begun { now: None, head, foreign })
    }

    fn record(&mut self, unit: &Recorded<'_>) -> Result<(), Fault> {
        let accounts = unit.accounts.iter().map(|(id, _, before)| (*id, *before)).collect();
        let entry = LogEntry { entry: unit.entry.clone(), hash: unit.hash, accounts };
        self.pending.push((entry, unit.key));
        Ok(())
    }

    fn commit(&mut self, dirty: &Dirty<'_>) -> Result<(), CommitFault> {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        for (entry, key) in self.pending.drain(..) {
            tables.append(entry, key);
        }
        tables.write(dirty);
        drop(tables);
        self.give_turn_back();
        Ok(())
    }

    fn rollback(&mut self) {
        self.pending.clear();
        self.give_turn_back();
    }

    fn follow_every(&self) -> Option<Duration> {
        self.shared.as_ref().map(|_| FOLLOW)
    }

    fn end(&mut self) -> Result<u64, Fault> {
        Ok(Source::head(&*self.read()).map_err(unit_fault)?.seq)
    }

    fn recover(&mut self) -> Result<Recovered, String> {
        // Whatever it was inside of is worth nothing.
        self.rollback();
        let tables = self.read();
        let accounts = tables.accounts.iter().map(slot_of).collect();
        let head = tables.head().map_err(|why| why.to_string())?;
        Ok(Recovered { accounts, head })
    }

    fn close(&mut self) {
        self.rollback();
    }
}

fn slot_of(row: &AccountRow) -> (AccountId, Slot) {
    (row.id, Slot { no: row.no, totals: row.totals, last_seq: row.last_seq })
}

impl Tables {
    fn append(&mut self, entry: LogEntry, key: Option<KeyAddress>) {
        let seq = entry.entry.seq;
        for op in &entry.entry.ops {
            let id = op.id();
            let (state, opened) = match op {
                Op::Move { .. } => (HoldState::Posted, true),
                Op::Hold { .. } => (HoldState::Pending, true),
                Op::Post { .. } => (HoldState::Posted, false),
                Op::Void { .. } => (HoldState::Voided, false),
            };
            if opened {
                self.chains.insert(id, ChainRow { id, state, opened: seq, resolved: None });
            } else if let Some(chain) = self.chains.get_mut(&id) {
                (chain.state, chain.resolved) = (state, Some(seq));
            }
        }
        if let Some(address) = key {
            self.keys.insert(address, seq);
        }
        self.log.push(entry);
    }

    fn write(&mut self, dirty: &Dirty<'_>) {
        let mut changed: Vec<(&AccountId, &Slot)> = dirty.accounts.iter().collect();
        changed.sort_by_key(|(_, slot)| slot.no);
        for (id, slot) in changed {
            let row =
                AccountRow { no: slot.no, id: *id, totals: slot.totals, last_seq: slot.last_seq };
            let place = usize::try_from(slot.no.saturating_sub(1)).unwrap_or(usize::MAX);
            match self.accounts.get_mut(place) {
                Some(old) => *old = row,
                None => {
                    self.names.insert(id.to_string(), self.accounts.len());
                    self.accounts.push(row);
                }
            }
        }
        for (key, row) in dirty.rows {
            let kind = self.rows.entry(key.kind.to_owned()).or_default();
            kind.insert(Packed::new(&key.id), row.bytes.clone());
            let (gone, new) = row.moves();
            let place = |entry: &earnest_core::unit::ListEntry| {
                let (list, kind) = (entry.list.to_owned(), key.kind.to_owned());
                (list, kind, entry.scope.clone(), Packed::new(&entry.at), Packed::new(&key.id))
            };
            for entry in gone {
                self.lists.remove(&place(entry));
            }
            for entry in new {
                self.lists.insert(place(entry));
            }
        }
    }
}

type Read<T> = Result<T, ReadError>;

fn place(seq: u64) -> usize {
    usize::try_from(seq.saturating_sub(1)).unwrap_or(usize::MAX)
}

impl Source for Tables {
    fn head(&self) -> Read<Head> {
        let last = self.log.last();
        Ok(last.map_or(Head::GENESIS, |last| Head {
            seq: last.entry.seq,
            at: last.entry.at,
            hash: last.hash,
        }))
    }

    fn entry(&self, seq: u64) -> Read<Option<LogEntry>> {
        Ok(if seq == 0 { None } else { self.log.get(place(seq)).cloned() })
    }

    fn entries(&self, after: u64, limit: usize) -> Read<Vec<LogEntry>> {
        let skip = usize::try_from(after).unwrap_or(usize::MAX);
        Ok(self.log.iter().skip(skip).take(limit).cloned().collect())
    }

    fn account(&self, id: &AccountId) -> Read<Option<AccountRow>> {
        let place = self.names.get(&id.to_string());
        Ok(place.and_then(|place| self.accounts.get(*place)).copied())
    }

    fn accounts(&self, after: u64, limit: usize) -> Read<Vec<AccountRow>> {
        let skip = usize::try_from(after).unwrap_or(usize::MAX);
        Ok(self.accounts.iter().skip(skip).take(limit).copied().collect())
    }

    fn accounts_named(&self, prefix: &str, after: &str, limit: usize) -> Read<Vec<AccountRow>> {
        let from = if after.is_empty() {
            Bound::Included(prefix)
        } else {
            Bound::Excluded(after.max(prefix))
        };
        let named = self.names.range::<str, _>((from, Bound::Unbounded));
        let begun = named.take_while(|(name, _)| name.starts_with(prefix)).take(limit);
        Ok(begun.filter_map(|(_, place)| self.accounts.get(*place)).copied().collect())
    }

    fn chain(&self, id: TransferId) -> Read<Option<ChainRow>> {
        Ok(self.chains.get(&id).copied())
    }

    fn chains(&self, after: Option<TransferId>, limit: usize) -> Read<Vec<ChainRow>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(self.chains.range((from, Bound::Unbounded)).take(limit).map(|(_, row)| *row).collect())
    }

    fn row(&self, kind: &str, id: &str) -> Read<Option<Vec<u8>>> {
        Ok(self.rows.get(kind).and_then(|rows| rows.get(&Packed::new(id))).cloned())
    }

    fn rows(&self, kind: &str, after: Option<&str>, limit: usize) -> Read<Vec<(String, Vec<u8>)>> {
        let Some(rows) = self.rows.get(kind) else { return Ok(Vec::new()) };
        let from = after.map_or(Bound::Unbounded, |id| Bound::Excluded(Packed::new(id)));
        let found = rows.range((from, Bound::Unbounded)).take(limit);
        Ok(found.map(|(id, bytes)| (id.text(), bytes.clone())).collect())
    }

    fn kinds(&self) -> Read<Vec<String>> {
        Ok(self.rows.keys().cloned().collect())
    }

    fn list(&self, query: &ListQuery<'_>) -> Read<Vec<Cursor>> {
        let ListQuery { list, kind, scope, after, limit, newest_first } = *query;
        let key = |at: &str, id: Packed| -> ListKey {
            (list.to_owned(), kind.to_owned(), scope.to_owned(), Packed::new(at), id)
        };
        let inside = |found: &&ListKey| found.0 == list && found.1 == kind && found.2 == scope;
        let cursor = |found: &ListKey| Cursor { at: found.3.text(), id: found.4.text() };
        let after = after.map(|cursor| key(&cursor.at, Packed::new(&cursor.id)));
        if newest_first {
            // Nothing of this list sorts after an empty id of the next possible scope.
            let end = (list.to_owned(), kind.to_owned(), format!("{scope}\0"));
            let end = (end.0, end.1, end.2, Packed::new(""), Packed::new(""));
            let to = Bound::Excluded(after.unwrap_or(end));
            let found = self.lists.range((Bound::Unbounded, to)).rev();
            return Ok(found.take_while(inside).take(limit).map(cursor).collect());
        }
        let from = after.map_or_else(|| Bound::Included(key("", Packed::new(""))), Bound::Excluded);
        let found = self.lists.range((from, Bound::Unbounded));
        Ok(found.take_while(inside).take(limit).map(cursor).collect())
    }

    fn list_rows(&self) -> Read<Vec<ListRow>> {
        let row = |(list, kind, scope, at, id): &ListKey| ListRow {
            list: list.clone(),
            kind: kind.clone(),
            scope: scope.clone(),
            at: at.text(),
            id: id.text(),
        };
        Ok(self.lists.iter().map(row).collect())
    }

    fn key(&self, address: KeyAddress) -> Read<Option<u64>> {
        Ok(self.keys.get(&address).copied())
    }

    fn keys(&self) -> Read<Vec<(KeyAddress, u64)>> {
        Ok(self.keys.iter().map(|(address, seq)| (*address, *seq)).collect())
    }
}
