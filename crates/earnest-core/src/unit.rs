//! The one shape of a write: a value that names its key and what it touches, and carries a pure
//! `decide`.
//!
//! The engine loads what a unit [touches](Unit::touches), asks it to [decide](Unit::decide), and
//! records the [`Effects`] in the same transaction: ledger operations, rows, events and the
//! idempotency key, all or nothing. There is no other way to write, so flows are written once for
//! memory, SQLite and PostgreSQL, and no network call can sit inside a transaction.
//!
//! `touches` is asked again after every load until it names nothing new, and what is new is loaded
//! lowest [rank](Record::RANK) first: a row may so name rows of a later rank (an owner its open
//! tab, a hold its accounts), never of an earlier one. That order is the lock order.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::id::TransferId;
use crate::ledger::{AccountId, Hold, Op, Totals};
use crate::problem::Refusal;
use crate::time::Timestamp;

/// A kind of row: its name on disk, its place in the lock order, the lists it stands in.
pub trait Record: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    /// The name of the kind, as stored.
    const KIND: &'static str;
    /// Place in the lock order; see [`rank`].
    const RANK: u8;

    /// The id under which the row is stored; unique within its kind.
    fn id(&self) -> String;

    /// The lists this row stands in now. The engine keeps them equal to this answer.
    fn lists(&self) -> Vec<ListEntry> {
        Vec::new()
    }
}

/// Places in the lock order.
pub mod rank {
    /// Read by many, rarely written: seller, system, policies. PostgreSQL reads them without a lock
    /// and again under the head row.
    pub const SHARED: u8 = 0;
    /// The guard row of an owner.
    pub const OWNER: u8 = 10;
    /// The guard row of an agent.
    pub const AGENT: u8 = 11;
    /// The guard row of a tab.
    pub const TAB: u8 = 12;
    /// Every other typed row.
    pub const ROW: u8 = 20;
    /// Rows that are named by rows of [`ROW`].
    pub const ROW_LATER: u8 = 21;
    /// Holds.
    pub const HOLD: u8 = 30;
    /// Accounts, last but for the head of the log.
    pub const ACCOUNT: u8 = 40;
}

/// Where a row stands in a list: `(list, scope)` names the list, `at` orders it and is unique in
/// it together with the row's id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListEntry {
    /// The name of the list, such as `purchases`.
    pub list: &'static str,
    /// Whose list, such as an owner's id; empty for everybody's.
    pub scope: String,
    /// The sort key within the list, compared as text; ids sort after every other text.
    pub at: String,
}

impl ListEntry {
    /// An entry; see the fields.
    pub fn new(list: &'static str, scope: impl fmt::Display, at: impl fmt::Display) -> Self {
        Self { list, scope: scope.to_string(), at: at.to_string() }
    }

    /// An entry sorted by time. A timestamp's usual text drops zeros at its end and so does not
    /// sort as the times do; this one keeps all six places.
    pub fn timed(list: &'static str, scope: impl fmt::Display, at: Timestamp) -> Self {
        Self::new(list, scope, format_args!("{at:.6}"))
    }
}

/// The address of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// [`Record::KIND`].
    pub kind: &'static str,
    /// [`Record::id`].
    pub id: String,
}

impl fmt::Display for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.id)
    }
}

/// A decoded row, shared between the engine's cache and the views it hands out.
pub type Loaded = Arc<dyn Any + Send + Sync>;

/// A row that a unit touches, and how to read it from its stored bytes.
#[derive(Clone)]
pub struct RowTouch {
    /// Which row.
    pub key: RowKey,
    /// Its place in the lock order.
    pub rank: u8,
    /// Reads the stored bytes.
    pub decode: fn(&[u8]) -> Result<Loaded, serde_json::Error>,
}

/// What a unit touches, as far as it knows yet.
#[derive(Clone, Default)]
pub struct Touches {
    /// Rows.
    pub rows: Vec<RowTouch>,
    /// Holds.
    pub holds: Vec<TransferId>,
    /// Accounts.
    pub accounts: Vec<AccountId>,
}

impl Touches {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Touches a row; naming it twice is naming it once.
    pub fn row<R: Record>(&mut self, id: impl fmt::Display) {
        let key = RowKey { kind: R::KIND, id: id.to_string() };
        if self.rows.iter().all(|touch| touch.key != key) {
            self.rows.push(RowTouch { key, rank: R::RANK, decode: decode::<R> });
        }
    }

    /// Touches a hold.
    pub fn hold(&mut self, id: TransferId) {
        if !self.holds.contains(&id) {
            self.holds.push(id);
        }
    }

    /// Touches an account.
    pub fn account(&mut self, id: AccountId) {
        if !self.accounts.contains(&id) {
            self.accounts.push(id);
        }
    }

    /// Touches a hold and, once it is known, the accounts of its legs.
    pub fn hold_and_accounts(&mut self, id: TransferId, view: &View) {
        self.hold(id);
        if let Some(hold) = view.peek_hold(id) {
            for leg in &hold.legs {
                self.account(leg.debit);
                self.account(leg.credit);
            }
        }
    }
}

fn decode<R: Record>(bytes: &[u8]) -> Result<Loaded, serde_json::Error> {
    Ok(Arc::new(serde_json::from_slice::<R>(bytes)?))
}

/// The client's name for one thing it wants, and what it was used for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The principal (not the credential): an agent's id, say.
    pub scope: String,
    /// What kind of thing: `purchase`, `agent`, `settlement` …
    pub family: &'static str,
    /// The `request_id` or `Idempotency-Key`.
    pub name: String,
    /// Of the business arguments; bound at first use, for ever.
    pub fingerprint: Fingerprint,
}

/// SHA-256 of the business arguments of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Of parts that are each as they are; their lengths are hashed too, so that no two lists of
    /// parts run into each other.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            put(&mut hash, part);
        }
        Self(hash.finalize().into())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// What is known of a unit's key before it decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// The unit has no key.
    None,
    /// Never used.
    Fresh,
    /// Used before with the same arguments.
    Same {
        /// The id that an earlier use was bound to, if any was.
        bound: Option<String>,
    },
    /// Used before with other arguments.
    Other {
        /// The id that an earlier use was bound to, if any was.
        bound: Option<String>,
    },
}

impl KeyUse {
    /// The id that an earlier use was bound to.
    pub fn bound(&self) -> Option<&str> {
        match self {
            Self::Same { bound } | Self::Other { bound } => bound.as_deref(),
            Self::None | Self::Fresh => None,
        }
    }
}

/// What a unit may see: exactly what it touches, as it stands when the unit takes its place.
pub struct View {
    key: KeyUse,
    rows: Vec<(RowKey, Option<Loaded>)>,
    holds: Vec<(TransferId, Option<Hold>)>,
    accounts: Vec<(AccountId, Totals)>,
}

impl View {
    /// An empty view; the engine fills it.
    pub const fn new(key: KeyUse) -> Self {
        Self { key, rows: Vec::new(), holds: Vec::new(), accounts: Vec::new() }
    }

    /// For the engine: adds a row, absent or present.
    pub fn load_row(&mut self, key: RowKey, row: Option<Loaded>) {
        self.rows.push((key, row));
    }

    /// For the engine: adds a hold.
    pub fn load_hold(&mut self, id: TransferId, hold: Option<Hold>) {
        self.holds.push((id, hold));
    }

    /// For the engine: adds an account.
    pub fn load_account(&mut self, id: AccountId, totals: Totals) {
        self.accounts.push((id, totals));
    }

    /// For the engine: whether a row was loaded.
    pub fn has_row(&self, key: &RowKey) -> bool {
        self.rows.iter().any(|(k, _)| k == key)
    }

    /// For the engine: whether a hold was loaded.
    pub fn has_hold(&self, id: TransferId) -> bool {
        self.holds.iter().any(|(k, _)| *k == id)
    }

    /// For the engine: whether an account was loaded.
    pub fn has_account(&self, id: AccountId) -> bool {
        self.accounts.iter().any(|(k, _)| *k == id)
    }

    /// The row as loaded, whatever its type; `None` where it was not touched or does not exist.
    pub fn loaded(&self, key: &RowKey) -> Option<&Loaded> {
        self.rows.iter().find(|(k, _)| k == key).and_then(|(_, row)| row.as_ref())
    }

    /// What is known of the unit's key.
    pub const fn key(&self) -> &KeyUse {
        &self.key
    }

    /// For `touches`: the row if it was loaded already and exists.
    pub fn peek<R: Record>(&self, id: impl fmt::Display) -> Option<&R> {
        self.find::<R>(&id)?.as_ref()?.downcast_ref()
    }

    /// The row of a kind and an id, absent or present; `None` where it was not touched.
    fn find<R: Record>(&self, id: &impl fmt::Display) -> Option<&Option<Loaded>> {
        let id = IdText::new(id);
        let found = self.rows.iter().find(|(k, _)| k.kind == R::KIND && id.is(&k.id));
        found.map(|(_, row)| row)
    }

    /// For `touches`: the hold if it was loaded already and exists.
    pub fn peek_hold(&self, id: TransferId) -> Option<&Hold> {
        self.holds.iter().find(|(k, _)| *k == id).and_then(|(_, hold)| hold.as_ref())
    }

    /// A row, if it exists.
    ///
    /// # Errors
    /// [`Stop::Bug`] when the unit did not declare that it touches it.
    pub fn row<R: Record>(&self, id: impl fmt::Display) -> Result<Option<&R>, Stop> {
        match self.find::<R>(&id).ok_or_else(|| Stop::undeclared(R::KIND, &id))? {
            None => Ok(None),
            Some(row) => {
                let row = row.downcast_ref();
                row.map(Some)
                    .ok_or_else(|| Stop::Bug(format!("row {}/{id} has another type", R::KIND)))
            }
        }
    }

    /// A row that must exist for the unit to make sense.
    ///
    /// # Errors
    /// [`Stop::Bug`] when it does not, or was not declared.
    pub fn need<R: Record>(&self, id: impl fmt::Display) -> Result<&R, Stop> {
        let row = self.row::<R>(&id)?;
        row.ok_or_else(|| Stop::Bug(format!("row {}/{id} is missing", R::KIND)))
    }

    /// A hold, if its id was ever used.
    ///
    /// # Errors
    /// [`Stop::Bug`] when the unit did not declare that it touches it.
    pub fn hold(&self, id: TransferId) -> Result<Option<&Hold>, Stop> {
        let found = self.holds.iter().find(|(k, _)| *k == id);
        found.map(|(_, hold)| hold.as_ref()).ok_or_else(|| Stop::undeclared("hold", id))
    }

    /// The totals of an account.
    ///
    /// # Errors
    /// [`Stop::Bug`] when the unit did not declare that it touches it.
    pub fn totals(&self, id: AccountId) -> Result<Totals, Stop> {
        let found = self.accounts.iter().find(|(k, _)| *k == id);
        found.map(|(_, totals)| *totals).ok_or_else(|| Stop::undeclared("account", id))
    }
}

/// An id's text while it is looked for: views are asked dozens of times a unit, and nearly every id
/// fits without a place on the heap.
struct IdText {
    short: [u8; 64],
    length: usize,
    long: String,
}

impl IdText {
    fn new(id: &impl fmt::Display) -> Self {
        let mut text = Self { short: [0; 64], length: 0, long: String::new() };
        if fmt::Write::write_fmt(&mut text, format_args!("{id}")).is_err() {
            text.long = id.to_string();
        }
        text
    }

    fn is(&self, id: &str) -> bool {
        let short = self.short.get(..self.length).filter(|_| self.long.is_empty());
        short.unwrap_or(self.long.as_bytes()) == id.as_bytes()
    }
}

impl fmt::Write for IdText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let end = self.length.saturating_add(part.len());
        let room = self.short.get_mut(self.length..end).ok_or(fmt::Error)?;
        room.copy_from_slice(part.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Why a unit records nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// The business says no. Only the key's fingerprint is recorded.
    Refused(Box<Refusal>),
    /// Whoever asks may not ask at all: nothing is recorded, so that a credential that counts no more
    /// uses up no id of its principal's.
    Unheard(Box<Refusal>),
    /// The unit is wrong: it used what it did not declare, or a row it relies on is missing.
    Bug(String),
}

impl Stop {
    fn undeclared(kind: &str, id: impl fmt::Display) -> Self {
        Self::Bug(format!("undeclared use of {kind} {id}"))
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

/// A row to be written, whole, in place of the one with its key.
#[derive(Clone)]
pub struct Put {
    /// Which row.
    pub key: RowKey,
    /// The new content.
    pub row: Loaded,
    /// Its stored form.
    pub bytes: Vec<u8>,
    /// The lists it stands in from now on.
    pub lists: Vec<ListEntry>,
    /// The lists that an earlier content of the same kind stood in.
    pub lists_of: fn(&Loaded) -> Vec<ListEntry>,
}

fn lists_of<R: Record>(row: &Loaded) -> Vec<ListEntry> {
    row.downcast_ref::<R>().map(Record::lists).unwrap_or_default()
}

/// Something that happened, for those who listen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// What happened, such as `purchase.held`.
    pub kind: String,
    /// The principals who may see it: ids of owners, agents and sellers. The operator sees all.
    pub audience: Vec<String>,
    /// The facts.
    pub data: serde_json::Value,
}

/// Everything a unit changes, and its answer.
pub struct Effects<A> {
    /// Ledger operations, in order.
    pub ops: Vec<Op>,
    /// Rows.
    pub puts: Vec<Put>,
    /// Events.
    pub events: Vec<Event>,
    /// What the unit's key means from now on.
    pub bind: Option<String>,
    /// What the caller gets.
    pub answer: A,
}

impl<A> Effects<A> {
    /// No change yet, only an answer.
    pub const fn answer(answer: A) -> Self {
        Self { ops: Vec::new(), puts: Vec::new(), events: Vec::new(), bind: None, answer }
    }

    /// Adds a ledger operation.
    pub fn op(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// Writes a row; a later write of the same row in the same unit replaces an earlier one.
    ///
    /// # Errors
    /// [`Stop::Bug`] when the row cannot be written as JSON.
    pub fn put<R: Record>(&mut self, row: R) -> Result<(), Stop> {
        let key = RowKey { kind: R::KIND, id: row.id() };
        // Most rows fit, so that writing one does not move it several times.
        let mut bytes = Vec::with_capacity(1024);
        serde_json::to_writer(&mut bytes, &row)
            .map_err(|why| Stop::Bug(format!("row {key}: {why}")))?;
        self.puts.retain(|put| put.key != key);
        let lists = row.lists();
        self.puts.push(Put { key, row: Arc::new(row), bytes, lists, lists_of: lists_of::<R> });
        Ok(())
    }

    /// Adds an event.
    pub fn event(&mut self, kind: &str, audience: &[&dyn fmt::Display], data: serde_json::Value) {
        let audience = audience.iter().map(ToString::to_string).collect();
        self.events.push(Event { kind: kind.to_owned(), audience, data });
    }

    /// Binds the unit's key to an id: what a repeat will find.
    pub fn bind(&mut self, id: impl fmt::Display) {
        self.bind = Some(id.to_string());
    }

    /// The same effects with another answer.
    pub fn map<B>(self, change: impl FnOnce(A) -> B) -> Effects<B> {
        let Self { ops, puts, events, bind, answer } = self;
        Effects { ops, puts, events, bind, answer: change(answer) }
    }
}

/// A write.
pub trait Unit: Send + 'static {
    /// What the caller gets.
    type Answer: Send + 'static;

    /// The unit's name, kept in the log.
    fn name(&self) -> &'static str;

    /// The idempotency key, if the client gave one.
    fn key(&self) -> Option<Key> {
        None
    }

    /// What it touches, as far as `view` lets it know. Pure; asked several times.
    fn touches(&self, view: &View, now: Timestamp) -> Touches;

    /// The decision. Pure; may be run again. It sees only what it touches, and never its own place
    /// in the log.
    ///
    /// # Errors
    /// [`Stop::Refused`] when the business says no; then only the key's fingerprint is recorded.
    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Self::Answer>, Stop>;
}

fn put(hash: &mut Sha256, part: &[u8]) {
    hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
    hash.update(part);
}
