//! Checks that the books are right: the log folded from its first entry, against what is stored.
//!
//! Everything is read within one snapshot, so a database may be audited while it is written; on a
//! large one take a copy ([`Store::backup_to`](crate::Store::backup_to)), since a snapshot keeps
//! the write-ahead log from being folded. What only the business knows (settlements within their
//! lines, refunds within their capture) joins as a [`Check`].

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use crate::backend::KeyAddress;
use crate::postgres::snapshot_of_server;
use crate::read::{ListRow, Snapshot};
use crate::sqlite::snapshot_of_file;
use crate::{Head, LogEntry, OpenError, Place, ReadError, Reader};
use earnest_core::entry::{Entry, digest};
use earnest_core::id::TransferId;
use earnest_core::ledger::{self, AccountId, Books, Hold, HoldState, Op, Rejection, Totals};
use earnest_core::unit::{Fingerprint, ListEntry, Record};

/// Something that must hold, and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of what is breached.
    pub invariant: &'static str,
    /// What was found, with ids and figures.
    pub detail: String,
    /// The entry of the log where it shows, if it is one.
    pub seq: Option<u64>,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.seq {
            Some(seq) => write!(f, "{} at entry {seq}: {}", self.invariant, self.detail),
            None => write!(f, "{}: {}", self.invariant, self.detail),
        }
    }
}

/// Why no audit could be made.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The database cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The database does not answer.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// An invariant that only the business knows.
pub trait Check {
    /// The name of what is checked.
    fn invariant(&self) -> &'static str;

    /// Sees every entry of the log, in order.
    fn entry(&mut self, entry: &LogEntry) {
        let _ = entry;
    }

    /// Looks at the books, at the same moment, and says what is wrong with them.
    ///
    /// # Errors
    /// What the books' reads return.
    fn finish(&mut self, books: &Snapshot<'_>) -> Result<Vec<String>, ReadError>;
}

type ListsOf = fn(&[u8]) -> Result<Vec<ListEntry>, serde_json::Error>;

/// An audit to be made.
pub struct Audit {
    kinds: HashMap<&'static str, ListsOf>,
    checks: Vec<Box<dyn Check>>,
    most: usize,
}

impl Default for Audit {
    fn default() -> Self {
        Self { kinds: HashMap::new(), checks: Vec::new(), most: 20 }
    }
}

fn lists_of<R: Record>(bytes: &[u8]) -> Result<Vec<ListEntry>, serde_json::Error> {
    Ok(serde_json::from_slice::<R>(bytes)?.lists())
}

impl Audit {
    /// An audit of what the store itself promises, but for lists: those need [`Audit::kind`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a kind of row known. As soon as one is, lists are checked, and a row of a kind that
    /// is not known is a finding.
    #[must_use]
    pub fn kind<R: Record>(mut self) -> Self {
        self.kinds.insert(R::KIND, lists_of::<R>);
        self
    }

    /// Adds an invariant of the business.
    #[must_use]
    pub fn check(mut self, check: impl Check + 'static) -> Self {
        self.checks.push(Box::new(check));
        self
    }

    /// Stops at so many findings; 20 unless said otherwise. The first is the one to look at, the
    /// others may follow from it.
    #[must_use]
    pub const fn most(mut self, findings: usize) -> Self {
        self.most = findings;
        self
    }

    /// Audits the books behind a reader. No finding is the good answer.
    ///
    /// # Errors
    /// See [`AuditError`].
    pub fn run(self, reader: &Reader) -> Result<Vec<Finding>, AuditError> {
        Ok(reader.snapshot(|books| self.of(books))?)
    }

    /// Audits a database by its path, running or copied, without writing to it.
    ///
    /// # Errors
    /// See [`AuditError`].
    pub fn run_file(self, path: impl AsRef<Path>) -> Result<Vec<Finding>, AuditError> {
        let path = path.as_ref();
        let mut first = Vec::new();
        let found = snapshot_of_file(path, |books, damage| {
            first.extend(damage.into_iter().map(|what| finding("database_is_sound", what)));
            self.of(&Snapshot(books))
        })?;
        first.extend(found);
        Ok(first)
    }

    /// Audits books where they are, running or not, without writing to them.
    ///
    /// # Errors
    /// See [`AuditError`]; [`OpenError::NoBooks`] where they are in memory.
    pub fn run_at(self, place: &Place) -> Result<Vec<Finding>, AuditError> {
        match place {
            Place::File(path) => self.run_file(path),
            Place::Server(url) => snapshot_of_server(url, |books| self.of(&Snapshot(books))),
            Place::Memory | Place::Shared(_) => Err(OpenError::NoBooks(place.to_string()).into()),
        }
    }

    fn of(mut self, books: &Snapshot<'_>) -> Result<Vec<Finding>, ReadError> {
        let mut found = Vec::new();
        // What cannot be understood is a finding; only silence is an error.
        match self.walk(books, &mut found) {
            Err(ReadError::Damaged(why)) => found.push(finding("stored_data_can_be_read", why)),
            other => other?,
        }
        found.truncate(self.most.max(1));
        Ok(found)
    }

    fn walk(&mut self, books: &Snapshot<'_>, found: &mut Vec<Finding>) -> Result<(), ReadError> {
        const MANY: usize = 1024;
        let mut fold = Fold::default();
        loop {
            let entries = books.log(fold.head.seq, MANY)?;
            for entry in &entries {
                fold.take(entry, found);
                for check in &mut self.checks {
                    check.entry(entry);
                }
                if found.len() >= self.most {
                    return Ok(());
                }
            }
            if entries.len() < MANY {
                break;
            }
        }
        if books.head()? != fold.head {
            found.push(finding("log_has_no_gap", "the log does not reach its head".to_owned()));
        }
        check_accounts(&fold, books, found)?;
        check_balance(books, found)?;
        check_chains(&fold, books, found)?;
        check_keys(&fold, books, found)?;
        self.check_rows(&fold, books, found)?;
        for check in &mut self.checks {
            let invariant = check.invariant();
            for detail in check.finish(books)? {
                found.push(finding(invariant, detail));
            }
        }
        Ok(())
    }

    fn check_rows(
        &self,
        fold: &Fold,
        books: &Snapshot<'_>,
        found: &mut Vec<Finding>,
    ) -> Result<(), ReadError> {
        const MANY: usize = 1024;
        let mut places: HashSet<ListRow> = HashSet::new();
        if !self.kinds.is_empty() {
            places.extend(books.0.list_rows()?);
        }
        let mut seen = 0;
        for kind in books.0.kinds()? {
            let mut after: Option<String> = None;
            loop {
                let rows = books.0.rows(&kind, after.as_deref(), MANY)?;
                for (id, bytes) in &rows {
                    seen += 1;
                    // INVARIANT: rows_are_what_the_log_says
                    if fold.rows.get(&row_name(&kind, id)) != Some(&digest(bytes)) {
                        let what = format!("row {kind}/{id} is not what the log says");
                        found.push(finding("rows_are_what_the_log_says", what));
                    }
                    self.check_lists(&kind, id, bytes, &mut places, found);
                }
                if rows.len() < MANY {
                    break;
                }
                after = rows.last().map(|(id, _)| id.clone());
            }
        }
        if seen != fold.rows.len() {
            let what = format!("{seen} rows, the log has {}", fold.rows.len());
            found.push(finding("rows_are_what_the_log_says", what));
        }
        for place in places {
            let what = format!("{place:?} stands in no row");
            found.push(finding("lists_are_what_the_rows_say", what));
        }
        Ok(())
    }

    /// Takes a row's places out of those stored; one that is missing is a finding.
    fn check_lists(
        &self,
        kind: &str,
        id: &str,
        bytes: &[u8],
        places: &mut HashSet<ListRow>,
        found: &mut Vec<Finding>,
    ) {
        const LISTS: &str = "lists_are_what_the_rows_say";
        if self.kinds.is_empty() {
            return;
        }
        let lists = match self.kinds.get(kind).map(|lists| lists(bytes)) {
            Some(Ok(lists)) => lists,
            Some(Err(why)) => return found.push(finding(LISTS, format!("row {kind}/{id}: {why}"))),
            None => {
                return found.push(finding(LISTS, format!("row {kind}/{id} has no known kind")));
            }
        };
        let unique: HashSet<ListEntry> = lists.into_iter().collect();
        for ListEntry { list, scope, at } in unique {
            let (list, kind, id) = (list.to_owned(), kind.to_owned(), id.to_owned());
            let place = ListRow { list, kind, scope, at, id };
            if !places.remove(&place) {
                found.push(finding(LISTS, format!("{place:?} is missing")));
            }
        }
    }
}

/// Reads a database by its path at one moment, running or copied, without writing to it: for what
/// looks at the books from outside the program that keeps them.
///
/// # Errors
/// See [`AuditError`].
pub fn look<T>(
    place: &Place,
    read: impl FnOnce(&Snapshot<'_>) -> Result<T, ReadError>,
) -> Result<T, AuditError> {
    match place {
        Place::File(path) => snapshot_of_file(path, |books, _| read(&Snapshot(books))),
        Place::Server(url) => snapshot_of_server(url, |books| read(&Snapshot(books))),
        Place::Memory | Place::Shared(_) => Err(OpenError::NoBooks(place.to_string()).into()),
    }
}

const fn finding(invariant: &'static str, detail: String) -> Finding {
    Finding { invariant, detail, seq: None }
}

/// A row's name in 16 bytes, so that the names of millions fit into memory.
fn row_name(kind: &str, id: &str) -> [u8; 16] {
    let KeyAddress(name) = KeyAddress::new("row", kind, id);
    name
}

/// What the log adds up to.
struct Fold {
    head: Head,
    accounts: HashMap<AccountId, (Totals, u64)>,
    /// Chains, with their legs only while they are pending.
    chains: HashMap<TransferId, (Hold, u64, Option<u64>)>,
    rows: HashMap<[u8; 16], [u8; 32]>,
    keys: HashMap<KeyAddress, (Fingerprint, u64)>,
    /// The accounts that the entry at hand changed.
    changed: BTreeSet<AccountId>,
}

impl Default for Fold {
    fn default() -> Self {
        Self {
            head: Head::GENESIS,
            accounts: HashMap::new(),
            chains: HashMap::new(),
            rows: HashMap::new(),
            keys: HashMap::new(),
            changed: BTreeSet::new(),
        }
    }
}

impl Books for Fold {
    fn totals(&self, account: &AccountId) -> Totals {
        self.accounts.get(account).map(|(totals, _)| *totals).unwrap_or_default()
    }

    fn hold(&self, id: TransferId) -> Option<Hold> {
        self.chains.get(&id).map(|(hold, ..)| hold.clone())
    }

    fn set_totals(&mut self, account: AccountId, totals: Totals) {
        let last = self.head.seq;
        self.accounts.insert(account, (totals, last));
        self.changed.insert(account);
    }

    fn set_hold(&mut self, id: TransferId, mut hold: Hold) {
        let seq = self.head.seq;
        if hold.state != HoldState::Pending {
            hold.legs = Vec::new();
        }
        match self.chains.get_mut(&id) {
            Some((old, _, resolved)) => (*old, *resolved) = (hold, Some(seq)),
            None => {
                self.chains.insert(id, (hold, seq, None));
            }
        }
    }
}

impl Fold {
    fn take(&mut self, stored: &LogEntry, found: &mut Vec<Finding>) {
        let LogEntry { entry, hash, accounts } = stored;
        let at = |invariant, detail| Finding { invariant, detail, seq: Some(entry.seq) };
        // INVARIANT: log_has_no_gap
        if entry.seq != self.head.seq.saturating_add(1) {
            found.push(at("log_has_no_gap", format!("follows entry {}", self.head.seq)));
        }
        // INVARIANT: log_time_rises
        if self.head.seq > 0 && entry.at <= self.head.at {
            found.push(at("log_time_rises", format!("{} after {}", entry.at, self.head.at)));
        }
        // INVARIANT: hash_chain_is_intact
        if entry.hash(&self.head.hash) != *hash {
            found.push(at("hash_chain_is_intact", "not the hash of what is stored".to_owned()));
        }
        self.changed.clear();
        let before: Vec<(AccountId, u64)> = accounts
            .iter()
            .map(|(id, _)| (*id, self.accounts.get(id).map_or(0, |(_, last)| *last)))
            .collect();
        self.head = Head { seq: entry.seq, at: entry.at, hash: *hash };
        for op in &entry.ops {
            if let Err(why) = ledger::apply(self, op) {
                found.push(at(rule(&why), format!("{}: {why}", describe(op))));
            }
        }
        // INVARIANT: history_is_linked
        let listed: BTreeSet<AccountId> = accounts.iter().map(|(id, _)| *id).collect();
        if *accounts != before || listed != self.changed || listed.len() != accounts.len() {
            let what = format!("says {accounts:?}, changed {:?} after {before:?}", self.changed);
            found.push(at("history_is_linked", what));
        }
        self.take_key(entry, found);
        for put in &entry.puts {
            self.rows.insert(row_name(&put.kind, &put.id), put.digest);
        }
    }

    fn take_key(&mut self, entry: &Entry, found: &mut Vec<Finding>) {
        let Some(key) = &entry.key else { return };
        let bound = self.keys.insert(KeyAddress::of_line(key), (key.fingerprint, entry.seq));
        // INVARIANT: one_id_one_fingerprint
        if bound.is_some_and(|(fingerprint, _)| fingerprint != key.fingerprint) {
            let detail = format!("{}/{}/{}", key.scope, key.family, key.name);
            let invariant = "one_id_one_fingerprint";
            found.push(Finding { invariant, detail, seq: Some(entry.seq) });
        }
    }
}

fn describe(op: &Op) -> String {
    let verb = match op {
        Op::Move { .. } => "move",
        Op::Hold { .. } => "hold",
        Op::Post { .. } => "post",
        Op::Void { .. } => "void",
    };
    format!("{verb} {}", op.id())
}

const fn rule(why: &Rejection) -> &'static str {
    match why {
        Rejection::NoHold(_) | Rejection::Resolved(_) => "hold_resolves_once",
        Rejection::AboveHold(_) | Rejection::Amounts(_) => "posted_at_most_held",
        Rejection::NoRoom { .. } => "no_use_of_room_leaves_an_account_past_it",
        Rejection::NotCovered(_) => "covered_accounts_stay_covered",
        Rejection::IdUsed(_) => "one_id_one_chain",
        Rejection::Empty(_)
        | Rejection::ZeroLeg(_)
        | Rejection::BadLeg(..)
        | Rejection::Overflow(_) => "chains_are_well_formed",
    }
}

fn check_accounts(
    fold: &Fold,
    books: &Snapshot<'_>,
    found: &mut Vec<Finding>,
) -> Result<(), ReadError> {
    let mut seen = 0;
    books.each_account(|row| {
        seen += 1;
        let (totals, last) = fold.accounts.get(&row.id).copied().unwrap_or_default();
        // INVARIANT: totals_are_the_fold_of_the_log
        if totals != row.totals || last != row.last_seq {
            let what = format!("`{}` stored {:?}, folded {totals:?}", row.id, row.totals);
            found.push(finding("totals_are_the_fold_of_the_log", what));
        }
    })?;
    if seen != fold.accounts.len() {
        let what = format!("{seen} accounts, the log has {}", fold.accounts.len());
        found.push(finding("totals_are_the_fold_of_the_log", what));
    }
    Ok(())
}

fn check_balance(books: &Snapshot<'_>, found: &mut Vec<Finding>) -> Result<(), ReadError> {
    for line in books.trial_balance()? {
        if (line.pending, line.posted) != (0, 0) {
            let what = format!(
                "{}{}: debits less credits {} pending, {} posted",
                line.currency,
                if line.memo { " memo" } else { "" },
                line.pending,
                line.posted
            );
            found.push(finding("debits_equal_credits", what));
        }
    }
    Ok(())
}

fn check_chains(
    fold: &Fold,
    books: &Snapshot<'_>,
    found: &mut Vec<Finding>,
) -> Result<(), ReadError> {
    const MANY: usize = 4096;
    let (mut seen, mut after) = (0, None);
    loop {
        let rows = books.0.chains(after, MANY)?;
        for row in &rows {
            seen += 1;
            let known = fold.chains.get(&row.id);
            let same = known.is_some_and(|(hold, opened, resolved)| {
                (hold.state, *opened, *resolved) == (row.state, row.opened, row.resolved)
            });
            if !same {
                let what = format!("{row:?} is not what the log says");
                found.push(finding("hold_resolves_once", what));
            }
        }
        if rows.len() < MANY {
            break;
        }
        after = rows.last().map(|row| row.id);
    }
    if seen != fold.chains.len() {
        let what = format!("{seen} chains, the log has {}", fold.chains.len());
        found.push(finding("hold_resolves_once", what));
    }
    Ok(())
}

fn check_keys(
    fold: &Fold,
    books: &Snapshot<'_>,
    found: &mut Vec<Finding>,
) -> Result<(), ReadError> {
    let stored = books.0.keys()?;
    let wrong = stored
        .iter()
        .filter(|(address, seq)| fold.keys.get(address).is_none_or(|(_, last)| last != seq))
        .count();
    if wrong > 0 || stored.len() != fold.keys.len() {
        let what = format!(
            "{} keys, {wrong} of them wrong, the log has {}",
            stored.len(),
            fold.keys.len()
        );
        found.push(finding("every_key_is_kept", what));
    }
    Ok(())
}
