//! What was recorded, for whoever asks: rows, lists, accounts, holds, the log.
//!
//! Readers never wait for the writer and never hold the write-ahead log: a [`Snapshot`] lives for
//! a few statements. Reads block the thread for as long as they take; keep `limit`s small in async
//! code, or use `spawn_blocking`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use earnest_core::entry::{Entry, KeyLine};
use earnest_core::id::TransferId;
use earnest_core::ledger::{AccountId, Cause, Hold, HoldState, Leg, Op, Totals};
use earnest_core::money::{Currency, Micros};
use earnest_core::time::Timestamp;
use earnest_core::unit::{Event, Record};

use crate::backend::KeyAddress;
use crate::memory::Tables;
use crate::postgres;
use crate::sqlite::Pool;
use crate::{Head, ReadError};

/// An entry of the log with what the store keeps beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// What the unit recorded.
    pub entry: Entry,
    /// The hash of the chain up to and including it.
    pub hash: [u8; 32],
    /// The accounts it changed, each with the entry that changed it before; 0 for none.
    pub accounts: Vec<(AccountId, u64)>,
}

/// An account and where its history ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountRow {
    /// Its number, from 1 in the order of first use.
    pub no: u64,
    /// The account.
    pub id: AccountId,
    /// Its totals.
    pub totals: Totals,
    /// The last entry that changed it.
    pub last_seq: u64,
}

/// A chain of transfers and its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRow {
    /// Its id.
    pub id: TransferId,
    /// Its legs and state.
    pub hold: Hold,
    /// The entry that made it.
    pub opened: u64,
    /// The entry that posted or voided it; `None` while it is pending, and for what moved at once.
    pub resolved: Option<u64>,
}

/// An idempotency key and the entry that bound it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    /// The key, its fingerprint, and what it is bound to.
    pub key: KeyLine,
    /// The entry.
    pub seq: u64,
}

/// A place in a list: after (or before) the row with this sort key and id. As text, `at~id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The sort key.
    pub at: String,
    /// The row's id.
    pub id: String,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}~{}", self.at, self.id)
    }
}

impl FromStr for Cursor {
    type Err = ReadError;
    fn from_str(text: &str) -> Result<Self, ReadError> {
        let (at, id) = text.rsplit_once('~').ok_or_else(|| ReadError::damaged("not a cursor"))?;
        Ok(Self { at: at.to_owned(), id: id.to_owned() })
    }
}

/// Some of a list, and where the rest begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T, C = Cursor> {
    /// In the order asked for.
    pub items: Vec<T>,
    /// Give this to get what follows; `None` at the end.
    pub next: Option<C>,
}

/// An event and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventAt {
    /// The entry it stands in.
    pub seq: u64,
    /// Its place among that entry's events, from 0.
    pub index: usize,
    /// Whether it is that entry's last.
    pub last: bool,
    /// When.
    pub at: Timestamp,
    /// What happened.
    pub event: Event,
}

/// Events in order, and how far was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPage {
    /// The events of the entries read: all, or those one may see.
    pub events: Vec<EventAt>,
    /// The last entry read: where to go on.
    pub after: u64,
}

/// What an operation did to a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Moved at once.
    Moved,
    /// Reserved.
    Held,
    /// Made final; the amounts are those posted.
    Posted,
    /// Released; the amounts are those that were reserved.
    Voided,
}

/// A leg as it moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedLeg {
    /// The account debited.
    pub debit: AccountId,
    /// The account credited.
    pub credit: AccountId,
    /// How much; 0 for a leg that a post released.
    pub amount: Micros,
}

/// One operation with its legs resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The entry.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
    /// The unit's name.
    pub unit: String,
    /// The chain.
    pub id: TransferId,
    /// Why.
    pub cause: Cause,
    /// What happened to it.
    pub step: Step,
    /// Its legs.
    pub legs: Vec<MovedLeg>,
}

/// The sum of all accounts of a currency; memo accounts apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialLine {
    /// The currency.
    pub currency: Currency,
    /// Whether this is the sum of the memo accounts.
    pub memo: bool,
    /// Debits less credits, pending; 0 in books that are right.
    pub pending: i128,
    /// Debits less credits, posted; 0 in books that are right.
    pub posted: i128,
    /// All debits posted.
    pub debits_posted: i128,
    /// All debits pending.
    pub debits_pending: i128,
}

/// A chain's row as stored, without its legs: those stand in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainRow {
    pub(crate) id: TransferId,
    pub(crate) state: HoldState,
    pub(crate) opened: u64,
    pub(crate) resolved: Option<u64>,
}

/// A stored place in a list.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ListRow {
    pub(crate) list: String,
    pub(crate) kind: String,
    pub(crate) scope: String,
    pub(crate) at: String,
    pub(crate) id: String,
}

/// Which list, and from where.
pub(crate) struct ListQuery<'a> {
    pub(crate) list: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) scope: &'a str,
    pub(crate) after: Option<&'a Cursor>,
    pub(crate) limit: usize,
    pub(crate) newest_first: bool,
}

type Read<T> = Result<T, ReadError>;

/// The tables, as memory and SQLite keep them.
pub(crate) trait Source {
    fn head(&self) -> Read<Head>;
    fn entry(&self, seq: u64) -> Read<Option<LogEntry>>;
    fn entries(&self, after: u64, limit: usize) -> Read<Vec<LogEntry>>;
    fn account(&self, id: &AccountId) -> Read<Option<AccountRow>>;
    /// By number.
    fn accounts(&self, after: u64, limit: usize) -> Read<Vec<AccountRow>>;
    /// By name, those that begin with `prefix`.
    fn accounts_named(&self, prefix: &str, after: &str, limit: usize) -> Read<Vec<AccountRow>>;
    fn chain(&self, id: TransferId) -> Read<Option<ChainRow>>;
    fn chains(&self, after: Option<TransferId>, limit: usize) -> Read<Vec<ChainRow>>;
    fn row(&self, kind: &str, id: &str) -> Read<Option<Vec<u8>>>;
    fn rows(&self, kind: &str, after: Option<&str>, limit: usize) -> Read<Vec<(String, Vec<u8>)>>;
    fn kinds(&self) -> Read<Vec<String>>;
    fn list(&self, query: &ListQuery<'_>) -> Read<Vec<Cursor>>;
    /// Every list entry, in no particular order.
    fn list_rows(&self) -> Read<Vec<ListRow>>;
    fn key(&self, address: KeyAddress) -> Read<Option<u64>>;
    /// Every key's address and entry, in no particular order.
    fn keys(&self) -> Read<Vec<(KeyAddress, u64)>>;
}

/// The books at one moment. Every read fails with [`ReadError::Unavailable`] when the database does
/// not answer, and with [`ReadError::Damaged`] when what is stored cannot be understood.
pub struct Snapshot<'a>(pub(crate) &'a dyn Source);

impl Snapshot<'_> {
    /// The end of the log.
    pub fn head(&self) -> Read<Head> {
        self.0.head()
    }

    /// A row.
    pub fn row<R: Record>(&self, id: impl fmt::Display) -> Read<Option<R>> {
        let id = id.to_string();
        let bytes = self.0.row(R::KIND, &id)?;
        bytes.map(|bytes| decode(&id, &bytes)).transpose()
    }

    /// The rows of these ids that exist, in the same order.
    pub fn rows<R: Record>(&self, ids: &[impl fmt::Display]) -> Read<Vec<R>> {
        ids.iter().filter_map(|id| self.row(id).transpose()).collect()
    }

    /// Every row of a kind by id, `limit` at a time, after the given id.
    pub fn all<R: Record>(&self, after: Option<&str>, limit: usize) -> Read<Page<R, String>> {
        let found = self.0.rows(R::KIND, after, limit)?;
        let next = if found.len() < limit { None } else { found.last().map(|(id, _)| id.clone()) };
        let items = found.iter().map(|(id, bytes)| decode(id, bytes)).collect::<Read<_>>()?;
        Ok(Page { items, next })
    }

    /// Every row of a kind by id, all of them in memory: for what looks at the whole books, on a thread
    /// that may take its time.
    pub fn every<R: Record>(&self) -> Read<Vec<R>> {
        page_by_page(|after| self.all(after, EVERY))
    }

    /// The stored bytes of a row of any kind.
    pub fn bytes(&self, kind: &str, id: &str) -> Read<Option<Vec<u8>>> {
        self.0.row(kind, id)
    }

    /// The rows of kind `R` in a list, by its sort key.
    pub fn list<R: Record>(
        &self,
        list: &str,
        scope: &str,
        after: Option<&Cursor>,
        limit: usize,
        newest_first: bool,
    ) -> Read<Page<R>> {
        let query = ListQuery { list, kind: R::KIND, scope, after, limit, newest_first };
        let places = self.0.list(&query)?;
        let next = if places.len() < limit { None } else { places.last().cloned() };
        let mut items = Vec::with_capacity(places.len());
        for place in &places {
            let missing = || ReadError::damaged(format!("row {}/{} is missing", R::KIND, place.id));
            items.push(self.row(&place.id)?.ok_or_else(missing)?);
        }
        Ok(Page { items, next })
    }

    /// An account; `None` where it never moved.
    pub fn account(&self, id: &AccountId) -> Read<Option<AccountRow>> {
        self.0.account(id)
    }

    /// The totals of an account; zeros where it never moved.
    pub fn totals(&self, id: &AccountId) -> Read<Totals> {
        Ok(self.account(id)?.map(|row| row.totals).unwrap_or_default())
    }

    /// The accounts whose text begins with `prefix` (`USD tab:`), by text, after the one given.
    pub fn accounts(
        &self,
        prefix: &str,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Read<Vec<AccountRow>> {
        let after = after.map(ToString::to_string).unwrap_or_default();
        self.0.accounts_named(prefix, &after, limit)
    }

    /// The sums of all accounts, memo accounts apart.
    pub fn trial_balance(&self) -> Read<Vec<TrialLine>> {
        let mut lines: Vec<TrialLine> = Vec::new();
        self.each_account(|row| {
            let (currency, memo) = (row.id.currency, row.id.account.is_memo());
            let known = lines.iter().position(|l| (l.currency, l.memo) == (currency, memo));
            let place = known.unwrap_or(lines.len());
            if known.is_none() {
                lines.push(TrialLine {
                    currency,
                    memo,
                    pending: 0,
                    posted: 0,
                    debits_posted: 0,
                    debits_pending: 0,
                });
            }
            let Some(line) = lines.get_mut(place) else { return };
            let wide = |micros: Micros| i128::from(micros.get());
            line.debits_pending += wide(row.totals.debits_pending);
            line.debits_posted += wide(row.totals.debits_posted);
            line.pending += wide(row.totals.debits_pending) - wide(row.totals.credits_pending);
            line.posted += wide(row.totals.debits_posted) - wide(row.totals.credits_posted);
        })?;
        lines.sort_by_key(|line| (line.currency, line.memo));
        Ok(lines)
    }

    /// Every account, by number.
    pub fn each_account(&self, mut each: impl FnMut(&AccountRow)) -> Read<()> {
        const MANY: usize = 4096;
        let mut after = 0;
        loop {
            let rows = self.0.accounts(after, MANY)?;
            rows.iter().for_each(&mut each);
            match rows.last() {
                Some(last) if rows.len() == MANY => after = last.no,
                _ => return Ok(()),
            }
        }
    }

    /// A chain, if its id was ever used.
    pub fn hold(&self, id: TransferId) -> Read<Option<HoldRow>> {
        let Some(row) = self.0.chain(id)? else { return Ok(None) };
        self.hold_row(row).map(Some)
    }

    /// Chains by id, `limit` at a time, after the given id.
    pub fn holds(&self, after: Option<TransferId>, limit: usize) -> Read<Vec<HoldRow>> {
        self.0.chains(after, limit)?.into_iter().map(|row| self.hold_row(row)).collect()
    }

    fn hold_row(&self, row: ChainRow) -> Read<HoldRow> {
        let ChainRow { id, state, opened, resolved } = row;
        let missing = || ReadError::damaged(format!("hold {id} is not in entry {opened}"));
        let entry = self.0.entry(opened)?.ok_or_else(missing)?;
        let (cause, legs) = opening(&entry.entry, id).ok_or_else(missing)?;
        let hold = Hold { cause, legs: legs.to_vec(), state };
        Ok(HoldRow { id, hold, opened, resolved })
    }

    /// An entry of the log.
    pub fn entry(&self, seq: u64) -> Read<Option<LogEntry>> {
        self.0.entry(seq)
    }

    /// Entries of the log after a place, in order.
    pub fn log(&self, after: u64, limit: usize) -> Read<Vec<LogEntry>> {
        self.0.entries(after, limit)
    }

    /// The events of the next `limit` entries after a place, in order.
    pub fn events(&self, after: u64, limit: usize) -> Read<EventPage> {
        self.events_seen_by(after, limit, None)
    }

    /// The same, of them only what somebody may see, where one is named: the others are not even
    /// decoded.
    pub fn events_seen_by(&self, after: u64, limit: usize, who: Option<&str>) -> Read<EventPage> {
        let entries = self.0.entries(after, limit)?;
        let mut events = Vec::new();
        for LogEntry { entry, .. } in &entries {
            let end = entry.events.len();
            for (index, line) in entry.events.iter().enumerate() {
                if who.is_some_and(|who| !line.audience.iter().any(|one| one == who)) {
                    continue;
                }
                let event = line.event().map_err(ReadError::damaged)?;
                let last = index.saturating_add(1) == end;
                events.push(EventAt { seq: entry.seq, index, last, at: entry.at, event });
            }
        }
        let after = entries.last().map_or(after, |last| last.entry.seq);
        Ok(EventPage { events, after })
    }

    /// What an entry did, with the legs of every post and void.
    pub fn moved(&self, entry: &Entry) -> Read<Vec<Moved>> {
        let mut all = Vec::with_capacity(entry.ops.len());
        for op in &entry.ops {
            let (step, cause, legs) = match op {
                Op::Move { cause, legs, .. } => (Step::Moved, *cause, whole(legs)),
                Op::Hold { cause, legs, .. } => (Step::Held, *cause, whole(legs)),
                Op::Post { id, amounts } => {
                    let hold = self.held(*id)?;
                    let mut legs = whole(&hold.legs);
                    for (leg, amount) in legs.iter_mut().zip(amounts) {
                        leg.amount = *amount;
                    }
                    (Step::Posted, hold.cause, legs)
                }
                Op::Void { id } => {
                    let hold = self.held(*id)?;
                    (Step::Voided, hold.cause, whole(&hold.legs))
                }
            };
            let unit = entry.name.clone().into_owned();
            all.push(Moved { seq: entry.seq, at: entry.at, unit, id: op.id(), cause, step, legs });
        }
        Ok(all)
    }

    fn held(&self, id: TransferId) -> Read<Hold> {
        let row = self.hold(id)?;
        row.map(|row| row.hold).ok_or_else(|| ReadError::damaged(format!("no hold {id}")))
    }

    /// What happened on an account, newest first: its last entries, or those from `from` on, which
    /// is the `next` of the page before. An entry is never split, so a page may be a little longer
    /// than `limit`.
    pub fn account_history(
        &self,
        id: &AccountId,
        from: Option<u64>,
        limit: usize,
    ) -> Read<Page<Moved, u64>> {
        let mut next = match from {
            Some(seq) => Some(seq),
            None => self.0.account(id)?.map(|row| row.last_seq),
        };
        let mut items = Vec::new();
        while let Some(seq) = next.filter(|_| items.len() < limit) {
            let missing = || ReadError::damaged(format!("entry {seq} is not of `{id}`"));
            let LogEntry { entry, accounts, .. } = self.0.entry(seq)?.ok_or_else(missing)?;
            let mut moved = self.moved(&entry)?;
            for op in &mut moved {
                op.legs.retain(|leg| leg.debit == *id || leg.credit == *id);
            }
            items.extend(moved.into_iter().rev().filter(|op| !op.legs.is_empty()));
            let (_, before) =
                accounts.iter().find(|(account, _)| account == id).ok_or_else(missing)?;
            next = Some(*before).filter(|seq| *seq > 0);
        }
        Ok(Page { items, next })
    }

    /// An idempotency key, if it was ever used.
    pub fn key(&self, scope: &str, family: &str, name: &str) -> Read<Option<KeyRow>> {
        let Some(seq) = self.0.key(KeyAddress::new(scope, family, name))? else { return Ok(None) };
        let missing = || ReadError::damaged(format!("entry {seq} has no key"));
        let entry = self.0.entry(seq)?.ok_or_else(missing)?;
        let key = entry.entry.key.ok_or_else(missing)?;
        Ok(Some(KeyRow { key, seq }))
    }
}

fn decode<R: Record>(id: &str, bytes: &[u8]) -> Read<R> {
    serde_json::from_slice(bytes)
        .map_err(|why| ReadError::damaged(format!("row {}/{id}: {why}", R::KIND)))
}

fn whole(legs: &[Leg]) -> Vec<MovedLeg> {
    let moved = |leg: &Leg| MovedLeg { debit: leg.debit, credit: leg.credit, amount: leg.amount };
    legs.iter().map(moved).collect()
}

/// The operation of an entry that made a chain.
pub(crate) fn opening(entry: &Entry, chain: TransferId) -> Option<(Cause, &[Leg])> {
    entry.ops.iter().find_map(|op| match op {
        Op::Move { id, cause, legs } | Op::Hold { id, cause, legs } if *id == chain => {
            Some((*cause, legs.as_slice()))
        }
        _ => None,
    })
}

/// How many rows are read at once where all of a kind are wanted.
const EVERY: usize = 1_000;

/// Everything that pages give, one after another.
fn page_by_page<R>(page: impl Fn(Option<&str>) -> Read<Page<R, String>>) -> Read<Vec<R>> {
    let (mut found, mut after) = (Vec::new(), None::<String>);
    loop {
        let next = page(after.as_deref())?;
        found.extend(next.items);
        after = next.next;
        if after.is_none() {
            return Ok(found);
        }
    }
}

/// Reads the books; cheap to clone.
#[derive(Clone)]
pub struct Reader(pub(crate) Arc<Shelf>);

/// Where a reader reads.
pub(crate) enum Shelf {
    Memory(Arc<RwLock<Tables>>),
    Sqlite(Pool),
    Postgres(Box<postgres::Pool>),
}

/// What others do to the database that the writer may have to wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strain {
    /// How long the oldest transaction of anybody on the server is open, in seconds. While it is,
    /// nothing that was written since can be cleared away.
    pub oldest_seconds: u64,
    /// How long the longest of those sessions has been idle that have a transaction open and do
    /// nothing, in seconds: what they locked stays locked.
    pub idle_seconds: u64,
    /// How many sessions wait for a lock.
    pub waiting: u64,
    /// Whose the oldest transaction is, in words; empty where there is none.
    pub who: String,
    /// How long the write-ahead log of an SQLite file is, in bytes. It grows while anybody reads an
    /// old state of the books.
    pub log_bytes: u64,
}

impl Reader {
    /// Runs several reads against the books at one moment. Keep it short: while it runs, the
    /// write-ahead log cannot be folded, and books in memory cannot be written at all. Do not ask
    /// the reader again from inside.
    ///
    /// # Errors
    /// What `read` returns, and [`ReadError::Unavailable`] when the database does not answer.
    pub fn snapshot<T>(&self, read: impl FnOnce(&Snapshot<'_>) -> Read<T>) -> Read<T> {
        match self.0.as_ref() {
            Shelf::Memory(tables) => {
                let tables = tables.read().unwrap_or_else(PoisonError::into_inner);
                read(&Snapshot(&*tables))
            }
            Shelf::Sqlite(pool) => pool.snapshot(|source| read(&Snapshot(source))),
            Shelf::Postgres(pool) => pool.snapshot(|source| read(&Snapshot(source))),
        }
    }

    /// How many reads are under way now, and how many were begun so far. Books in memory, which lend
    /// nothing, say zero.
    pub fn lending(&self) -> (usize, u64) {
        match self.0.as_ref() {
            Shelf::Memory(_) => (0, 0),
            Shelf::Sqlite(pool) => pool.lending(),
            Shelf::Postgres(pool) => pool.lending(),
        }
    }

    /// What others do to the database that the writer may have to wait for. Books in memory have no
    /// others.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`] when the database does not say.
    pub fn strain(&self) -> Read<Strain> {
        match self.0.as_ref() {
            Shelf::Memory(_) => Ok(Strain::default()),
            Shelf::Sqlite(pool) => pool.strain(),
            Shelf::Postgres(pool) => pool.strain(),
        }
    }

    /// As [`Snapshot::head`].
    pub fn head(&self) -> Read<Head> {
        self.snapshot(|books| books.head())
    }

    /// As [`Snapshot::row`].
    pub fn row<R: Record>(&self, id: impl fmt::Display) -> Read<Option<R>> {
        self.snapshot(|books| books.row(id))
    }

    /// As [`Snapshot::rows`].
    pub fn rows<R: Record>(&self, ids: &[impl fmt::Display]) -> Read<Vec<R>> {
        self.snapshot(|books| books.rows(ids))
    }

    /// As [`Snapshot::all`].
    pub fn all<R: Record>(&self, after: Option<&str>, limit: usize) -> Read<Page<R, String>> {
        self.snapshot(|books| books.all(after, limit))
    }

    /// Every row of a kind by id, read a page at a time: what is written meanwhile may be among them
    /// or not.
    pub fn every<R: Record>(&self) -> Read<Vec<R>> {
        page_by_page(|after| self.all(after, EVERY))
    }

    /// As [`Snapshot::list`].
    pub fn list<R: Record>(
        &self,
        list: &str,
        scope: &str,
        after: Option<&Cursor>,
        limit: usize,
        newest_first: bool,
    ) -> Read<Page<R>> {
        self.snapshot(|books| books.list(list, scope, after, limit, newest_first))
    }

    /// As [`Snapshot::account`].
    pub fn account(&self, id: &AccountId) -> Read<Option<AccountRow>> {
        self.snapshot(|books| books.account(id))
    }

    /// As [`Snapshot::totals`].
    pub fn totals(&self, id: &AccountId) -> Read<Totals> {
        self.snapshot(|books| books.totals(id))
    }

    /// As [`Snapshot::accounts`].
    pub fn accounts(
        &self,
        prefix: &str,
        after: Option<&AccountId>,
        limit: usize,
    ) -> Read<Vec<AccountRow>> {
        self.snapshot(|books| books.accounts(prefix, after, limit))
    }

    /// As [`Snapshot::trial_balance`].
    pub fn trial_balance(&self) -> Read<Vec<TrialLine>> {
        self.snapshot(|books| books.trial_balance())
    }

    /// As [`Snapshot::hold`].
    pub fn hold(&self, id: TransferId) -> Read<Option<HoldRow>> {
        self.snapshot(|books| books.hold(id))
    }

    /// As [`Snapshot::entry`].
    pub fn entry(&self, seq: u64) -> Read<Option<LogEntry>> {
        self.snapshot(|books| books.entry(seq))
    }

    /// As [`Snapshot::log`].
    pub fn log(&self, after: u64, limit: usize) -> Read<Vec<LogEntry>> {
        self.snapshot(|books| books.log(after, limit))
    }

    /// As [`Snapshot::events`].
    pub fn events(&self, after: u64, limit: usize) -> Read<EventPage> {
        self.snapshot(|books| books.events(after, limit))
    }

    /// As [`Snapshot::events_seen_by`].
    pub fn events_seen_by(&self, after: u64, limit: usize, who: Option<&str>) -> Read<EventPage> {
        self.snapshot(|books| books.events_seen_by(after, limit, who))
    }

    /// What the next `limit` entries after a place did to chains: all transfers, in order.
    pub fn moved(&self, after: u64, limit: usize) -> Read<Page<Moved, u64>> {
        self.snapshot(|books| {
            let entries = books.log(after, limit)?;
            let next = entries.last().filter(|_| entries.len() == limit).map(|e| e.entry.seq);
            let mut items = Vec::new();
            for LogEntry { entry, .. } in &entries {
                items.extend(books.moved(entry)?);
            }
            Ok(Page { items, next })
        })
    }

    /// As [`Snapshot::account_history`].
    pub fn account_history(
        &self,
        id: &AccountId,
        from: Option<u64>,
        limit: usize,
    ) -> Read<Page<Moved, u64>> {
        self.snapshot(|books| books.account_history(id, from, limit))
    }

    /// As [`Snapshot::key`].
    pub fn key(&self, scope: &str, family: &str, name: &str) -> Read<Option<KeyRow>> {
        self.snapshot(|books| books.key(scope, family, name))
    }

    pub(crate) fn backup_to(&self, path: &Path) -> Read<()> {
        match self.0.as_ref() {
            Shelf::Memory(_) => {
                Err(ReadError::Unavailable("books in memory cannot be copied".to_owned()))
            }
            Shelf::Sqlite(pool) => pool.backup_to(path),
            Shelf::Postgres(_) => {
                Err(ReadError::Unavailable("books on a server are copied by a backup".to_owned()))
            }
        }
    }
}
