//! The books, followed entry by entry: rows as last written, the ledger folded.

use std::collections::BTreeMap;

use earnest_core::approval::{Approval, Grant};
use earnest_core::dispute::Disputed;
use earnest_core::intent::Intent;
use earnest_core::invariant::{self, Fold, Rows};
use earnest_core::ledger::{AccountId, Totals};
use earnest_core::party::{Agent, Owner};
use earnest_core::purchase::{Purchase, PurchaseState};
use earnest_core::reversal::Reversal;
use earnest_core::settlement::Settlement;
use earnest_core::suspense::Suspended;
use earnest_core::tab::Tab;
use earnest_core::unit::Record;
use earnest_store::{LogEntry, Reader};

use crate::world::World;

/// What was seen of the books so far.
#[derive(Default)]
pub(crate) struct Followed {
    pub(crate) rows: Rows,
    pub(crate) fold: Fold,
    seq: u64,
    hash: Option<[u8; 32]>,
}

/// What came since, read as a whole before any of it counts: a reader may be broken off.
#[derive(Default)]
struct New {
    entries: Vec<LogEntry>,
    totals: Vec<(AccountId, Totals)>,
    rows: Rows,
}

fn take<K: Ord, R: Record>(
    rows: &mut BTreeMap<K, R>,
    world: &World,
    id: &str,
    key: impl Fn(&R) -> K,
) {
    let row: R = world.row(id);
    rows.insert(key(&row), row);
}

impl New {
    fn read(world: &World, after: u64) -> Self {
        let entries = world.read(|reader| reader.log(after, 1_000_000));
        let mut new = Self { entries, ..Self::default() };
        let mut puts: Vec<(&str, &str)> = Vec::new();
        for logged in &new.entries {
            let lines = logged.entry.puts.iter();
            puts.extend(lines.map(|put| (put.kind.as_ref(), put.id.as_str())));
            for (account, _) in &logged.accounts {
                new.totals.push((*account, world.totals(*account)));
            }
        }
        puts.sort_unstable();
        puts.dedup();
        for (kind, id) in puts {
            read_row(&mut new.rows, world, kind, id);
        }
        new
    }
}

fn read_row(rows: &mut Rows, world: &World, kind: &str, id: &str) {
    match kind {
        Owner::KIND => take(&mut rows.owners, world, id, |row: &Owner| row.id),
        Agent::KIND => take(&mut rows.agents, world, id, |row: &Agent| row.id),
        Tab::KIND => take(&mut rows.tabs, world, id, |row: &Tab| row.id),
        Purchase::KIND => take(&mut rows.purchases, world, id, |row: &Purchase| row.id),
        Approval::KIND => take(&mut rows.approvals, world, id, |row: &Approval| row.id),
        Grant::KIND => take(&mut rows.grants, world, id, |row: &Grant| row.id),
        Settlement::KIND => take(&mut rows.settlements, world, id, |row: &Settlement| row.id),
        Intent::KIND => take(&mut rows.intents, world, id, |row: &Intent| row.id),
        Reversal::KIND => {
            take(&mut rows.reversals, world, id, |row: &Reversal| row.capture.clone());
        }
        Suspended::KIND => {
            take(&mut rows.suspended, world, id, |row: &Suspended| row.capture.clone());
        }
        Disputed::KIND => {
            take(&mut rows.disputed, world, id, |row: &Disputed| row.capture.clone());
        }
        _ => {}
    }
}

impl Followed {
    /// Reads what was recorded since, and checks every invariant.
    pub(crate) fn catch_up(&mut self, world: &World) {
        let new = New::read(world, self.seq);
        if new.entries.is_empty() {
            return;
        }
        for logged in &new.entries {
            let entry = &logged.entry;
            assert_eq!(entry.seq, self.seq + 1, "the log has no gaps");
            (self.seq, self.hash) = (entry.seq, Some(logged.hash));
            entry.ops.iter().for_each(|op| self.fold.take(op));
        }
        let (rows, more) = (&mut self.rows, new.rows);
        rows.owners.extend(more.owners);
        rows.agents.extend(more.agents);
        rows.tabs.extend(more.tabs);
        rows.purchases.extend(more.purchases);
        rows.approvals.extend(more.approvals);
        rows.grants.extend(more.grants);
        rows.settlements.extend(more.settlements);
        rows.intents.extend(more.intents);
        rows.reversals.extend(more.reversals);
        rows.suspended.extend(more.suspended);
        rows.disputed.extend(more.disputed);
        for (account, totals) in new.totals {
            let sums = self.fold.sums(account);
            assert!(sums.agrees(&totals), "`{account}`: {sums:?} folded, {totals:?} stored");
        }
        let breaches = invariant::check(&self.rows, &self.fold);
        assert!(breaches.is_empty(), "{breaches:#?}");
    }

    /// After a stop: what was acknowledged or shown is there, byte for byte, and beyond it at most
    /// what nobody had an answer for.
    pub(crate) fn survived(&self, world: &World) {
        let head = world.read(Reader::head);
        let promised = world.place.promised().max(self.seq);
        assert!(
            head.seq >= promised,
            "the log ends at {}, and {promised} entries were acknowledged or shown",
            head.seq,
        );
        let most = promised + world.place.in_flight();
        assert!(head.seq <= most, "the log ends at {}, and nobody asked past {most}", head.seq);
        let stood = world.read(|reader| reader.entry(self.seq)).map(|logged| logged.hash);
        assert_eq!(stood, self.hash, "entry {} is another one", self.seq);
        world.place.seen(head.seq);
    }

    /// What is stored is what was followed, row by row.
    pub(crate) fn is_all(&self, world: &World) {
        let rows = world.rows();
        assert_eq!(rows.owners, self.rows.owners);
        assert_eq!(rows.agents, self.rows.agents);
        assert_eq!(rows.tabs, self.rows.tabs);
        assert_eq!(rows.purchases, self.rows.purchases);
        assert_eq!(rows.approvals, self.rows.approvals);
        assert_eq!(rows.grants, self.rows.grants);
        assert_eq!(rows.settlements, self.rows.settlements);
        assert_eq!(rows.intents, self.rows.intents);
        assert_eq!(rows.reversals, self.rows.reversals);
        assert_eq!(rows.suspended, self.rows.suspended);
        assert_eq!(rows.disputed, self.rows.disputed);
        let breaches = world.breaches_of(&self.fold);
        assert!(breaches.is_empty(), "{breaches:#?}");
    }

    /// What was bought of everything that fits, held and billed, told from the purchases alone.
    pub(crate) fn spent(&self, fits: impl Fn(&Purchase) -> bool) -> i64 {
        let amount = |p: &Purchase| match p.state {
            PurchaseState::Held => p.price_micros.get(),
            PurchaseState::Billed => p.billed_micros.unwrap().get(),
            _ => 0,
        };
        self.rows.purchases.values().filter(|p| fits(p)).map(amount).sum()
    }
}
