//! What a unit and a batch changed, above what is committed.
//!
//! A unit writes into a layer of its own, which is merged into its batch's when it succeeds and
//! dropped when it does not; the batch's is merged into memory after the commit.

use foldhash::HashMap;
use foldhash::fast::RandomState;
use std::cell::RefCell;

use earnest_core::entry::KeyLine;
use earnest_core::id::TransferId;
use earnest_core::ledger::{AccountId, Books, Hold, Totals};
use earnest_core::unit::{ListEntry, Loaded, RowKey, View};

use crate::Head;
use crate::backend::KeyAddress;

/// An account as kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Its number in the log.
    pub(crate) no: u64,
    pub(crate) totals: Totals,
    /// The last entry that changed it.
    pub(crate) last_seq: u64,
}

/// A row changed by a batch.
pub(crate) struct DirtyRow {
    pub(crate) row: Loaded,
    pub(crate) bytes: Vec<u8>,
    pub(crate) lists: Vec<ListEntry>,
    /// The lists it stands in on disk.
    pub(crate) before: Vec<ListEntry>,
}

impl DirtyRow {
    /// The list entries to remove and to add.
    pub(crate) fn moves(&self) -> (Vec<&ListEntry>, Vec<&ListEntry>) {
        let gone = self.before.iter().filter(|entry| !self.lists.contains(entry));
        let new = self.lists.iter().filter(|entry| !self.before.contains(entry));
        (gone.collect(), new.collect())
    }
}

/// What the units of a batch changed.
pub(crate) struct Batch {
    pub(crate) accounts: HashMap<AccountId, Slot>,
    pub(crate) holds: HashMap<TransferId, Hold>,
    pub(crate) rows: HashMap<RowKey, DirtyRow>,
    pub(crate) keys: HashMap<KeyAddress, KeyLine>,
    pub(crate) head: Head,
    /// How many accounts have a number.
    pub(crate) numbered: u64,
}

impl Batch {
    /// An empty layer for so many units.
    pub(crate) fn new(head: Head, numbered: u64, units: usize) -> Self {
        let hasher = RandomState::default;
        Self {
            accounts: HashMap::with_capacity_and_hasher(units.saturating_mul(4), hasher()),
            holds: HashMap::with_capacity_and_hasher(units, hasher()),
            rows: HashMap::with_capacity_and_hasher(units.saturating_mul(2), hasher()),
            keys: HashMap::with_capacity_and_hasher(units, hasher()),
            head,
            numbered,
        }
    }
}

/// The layer of one unit, for [`earnest_core::ledger::apply`]: what it changed, above its view.
///
/// It sees only what the unit declared; asking for anything else is noted and fails the unit.
pub(crate) struct UnitBooks<'a> {
    view: &'a View,
    pub(crate) accounts: Vec<(AccountId, Totals)>,
    pub(crate) holds: Vec<(TransferId, Hold)>,
    undeclared: RefCell<Option<String>>,
}

impl<'a> UnitBooks<'a> {
    pub(crate) const fn new(view: &'a View) -> Self {
        Self { view, accounts: Vec::new(), holds: Vec::new(), undeclared: RefCell::new(None) }
    }

    /// The first thing that was used without having been declared.
    pub(crate) fn undeclared(&self) -> Option<String> {
        self.undeclared.borrow().clone()
    }

    fn note(&self, what: String) {
        self.undeclared.borrow_mut().get_or_insert(what);
    }
}

impl Books for UnitBooks<'_> {
    fn totals(&self, account: &AccountId) -> Totals {
        if let Some((_, totals)) = self.accounts.iter().find(|(id, _)| id == account) {
            return *totals;
        }
        self.view.totals(*account).unwrap_or_else(|_| {
            self.note(format!("account {account}"));
            Totals::default()
        })
    }

    fn hold(&self, id: TransferId) -> Option<Hold> {
        if let Some((_, hold)) = self.holds.iter().find(|(known, _)| *known == id) {
            return Some(hold.clone());
        }
        self.view.hold(id).map_or_else(
            |_| {
                self.note(format!("hold {id}"));
                None
            },
            |hold| hold.cloned(),
        )
    }

    fn set_totals(&mut self, account: AccountId, totals: Totals) {
        match self.accounts.iter_mut().find(|(id, _)| *id == account) {
            Some((_, old)) => *old = totals,
            None => self.accounts.push((account, totals)),
        }
    }

    fn set_hold(&mut self, id: TransferId, hold: Hold) {
        match self.holds.iter_mut().find(|(known, _)| *known == id) {
            Some((_, old)) => *old = hold,
            None => self.holds.push((id, hold)),
        }
    }
}
