//! The books, followed entry by entry: rows as last written, the ledger folded.

use std::collections::BTreeMap;

use earnest_core::approval::{Approval, Grant};
use earnest_core::dispute::Disputed;
use earnest_core::intent::Intent;
use earnest_core::invariant::{self, Fold, Rows};
use earnest_core::party::{Agent, Owner};
use earnest_core::purchase::{Purchase, PurchaseState};
use earnest_core::reversal::Reversal;
use earnest_core::settlement::Settlement;
use earnest_core::suspense::Suspended;
use earnest_core::tab::Tab;
use earnest_core::unit::Record;

use crate::world::World;

/// What was seen of the books so far.
#[derive(Default)]
pub struct Followed {
    pub rows: Rows,
    pub fold: Fold,
    seq: u64,
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

impl Followed {
    /// Reads what was recorded since, and checks every invariant.
    pub fn catch_up(&mut self, world: &World) {
        let entries = world.store.reader().log(self.seq, 1_000_000).unwrap();
        for logged in &entries {
            let entry = &logged.entry;
            self.seq = entry.seq;
            for op in &entry.ops {
                self.fold.take(op);
            }
            for put in &entry.puts {
                self.row(world, &put.kind, &put.id);
            }
        }
        for (account, _) in entries.iter().flat_map(|logged| &logged.accounts) {
            let (sums, totals) = (self.fold.sums(*account), world.totals(*account));
            assert!(sums.agrees(&totals), "`{account}`: {sums:?} folded, {totals:?} stored");
        }
        let breaches = invariant::check(&self.rows, &self.fold);
        assert!(breaches.is_empty(), "{breaches:#?}");
    }

    fn row(&mut self, world: &World, kind: &str, id: &str) {
        let rows = &mut self.rows;
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

    /// What was bought of everything that fits, held and billed, told from the purchases alone.
    pub fn spent(&self, fits: impl Fn(&Purchase) -> bool) -> i64 {
        let amount = |p: &Purchase| match p.state {
            PurchaseState::Held => p.price_micros.get(),
            PurchaseState::Billed => p.billed_micros.unwrap().get(),
            _ => 0,
        };
        self.rows.purchases.values().filter(|p| fits(p)).map(amount).sum()
    }
}
