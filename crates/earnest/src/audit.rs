//! The audit of a whole installation: what the store promises, the places of every kind of row in
//! its lists, and every invariant of the business.
//!
//! ```
//! # use std::sync::Arc;
//! # use earnest_core::time::Timestamp;
//! # use earnest_store::{Options, Store};
//! let store = Store::open(Options::memory("simulated", Arc::new(|| Timestamp::UNIX_EPOCH))).unwrap();
//! let (auditor, seen) = earnest::audit::auditor();
//! assert_eq!(auditor.run(store.reader()).unwrap(), []);
//! assert_eq!(seen.get().entries, 0);
//! ```

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use earnest_core::admin::OriginHolders;
use earnest_core::approval::{Approval, Grant};
use earnest_core::cash::CashEntry;
use earnest_core::dispute::{Disputed, Withheld};
use earnest_core::hook::{Delivery, Hook, HookCount, HookCursor};
use earnest_core::intent::Intent;
use earnest_core::invariant::{Fold, INVARIANTS, Invariant, Rows};
use earnest_core::lease::Lease;
use earnest_core::lost::{LostCapture, LostLine};
use earnest_core::model::ModelCall;
use earnest_core::party::{Agent, ApiKey, Owner, RateWindow, Seller};
use earnest_core::payer::Payer;
use earnest_core::policy::{Policy, PolicyVersion};
use earnest_core::purchase::{Purchase, ReportClock};
use earnest_core::quarantine::Quarantine;
use earnest_core::receipt::Receipt;
use earnest_core::reconcile::{Acknowledged, Reconciliation};
use earnest_core::reversal::Reversal;
use earnest_core::settlement::Settlement;
use earnest_core::sign_in::{LoginLink, SignIn, SignIns};
use earnest_core::signing::SealedKey;
use earnest_core::strain::Strained;
use earnest_core::suspense::Suspended;
use earnest_core::tab::Tab;
use earnest_core::time::Timestamp;
use earnest_core::unit::Record;
use earnest_core::vault::Vault;
use earnest_store::audit::{Audit, Check};
use earnest_store::{LogEntry, ReadError, Snapshot};

use crate::flow::scan::Scanned;
use crate::flow::webhook::WebhookEvent;

/// How much an audit went through, for the sentence at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Entries of the log.
    pub entries: u64,
    /// Accounts that ever moved.
    pub accounts: usize,
    /// Purchases, the refused ones included.
    pub purchases: usize,
    /// Settlements.
    pub settlements: usize,
    /// Up to when PayPal's records were compared with the books, if they ever were.
    pub reconciled: Option<Timestamp>,
    /// Whether PayPal's balance was among what was compared.
    pub with_balance: bool,
    /// How many lines the last comparison left unexplained.
    pub unexplained_lines: u64,
    /// What the books are ahead of PayPal by those lines.
    pub unexplained_micros: i64,
}

/// An audit of everything, to be run on a store or on a file; and what it will have gone through.
///
/// It keeps the whole ledger and all rows of the business in memory while it runs. Shares nothing
/// between threads: make it where it is run.
pub fn auditor() -> (Audit, Rc<Cell<Seen>>) {
    let books = Rc::new(RefCell::new(Books::default()));
    let seen = Rc::new(Cell::new(Seen::default()));
    let mut audit = Audit::new()
        .kind::<Owner>()
        .kind::<Payer>()
        .kind::<Agent>()
        .kind::<RateWindow>()
        .kind::<Seller>()
        .kind::<OriginHolders>()
        .kind::<ApiKey>()
        .kind::<LoginLink>()
        .kind::<SignIn>()
        .kind::<SignIns>()
        .kind::<Vault>()
        .kind::<Policy>()
        .kind::<PolicyVersion>()
        .kind::<Approval>()
        .kind::<Grant>()
        .kind::<Tab>()
        .kind::<Purchase>()
        .kind::<ReportClock>()
        .kind::<Settlement>()
        .kind::<Reversal>()
        .kind::<Suspended>()
        .kind::<CashEntry>()
        .kind::<Withheld>()
        .kind::<Disputed>()
        .kind::<Acknowledged>()
        .kind::<Reconciliation>()
        .kind::<Scanned>()
        .kind::<Strained>()
        .kind::<Lease>()
        .kind::<Quarantine>()
        .kind::<LostCapture>()
        .kind::<LostLine>()
        .kind::<Intent>()
        .kind::<ModelCall>()
        .kind::<Receipt>()
        .kind::<WebhookEvent>()
        .kind::<Hook>()
        .kind::<HookCount>()
        .kind::<HookCursor>()
        .kind::<Delivery>()
        .kind::<SealedKey>()
        .check(Gather { books: Rc::clone(&books), seen: Rc::clone(&seen) });
    for (name, holds) in INVARIANTS {
        audit = audit.check(Holds { name, holds: *holds, books: Rc::clone(&books) });
    }
    (audit, seen)
}

/// What the invariants look at.
#[derive(Default)]
struct Books {
    fold: Fold,
    rows: Rows,
}

/// Collects, ahead of the invariants, what they look at.
struct Gather {
    books: Rc<RefCell<Books>>,
    seen: Rc<Cell<Seen>>,
}

impl Check for Gather {
    fn invariant(&self) -> &'static str {
        "rows_of_the_business_can_be_read"
    }

    fn entry(&mut self, entry: &LogEntry) {
        let mut books = self.books.borrow_mut();
        for op in &entry.entry.ops {
            books.fold.take(op);
        }
        let seen = self.seen.get();
        self.seen.set(Seen { entries: seen.entries.saturating_add(1), ..seen });
    }

    fn finish(&mut self, snapshot: &Snapshot<'_>) -> Result<Vec<String>, ReadError> {
        let rows = Rows {
            owners: all(snapshot, |row: &Owner| row.id)?,
            agents: all(snapshot, |row: &Agent| row.id)?,
            tabs: all(snapshot, |row: &Tab| row.id)?,
            purchases: all(snapshot, |row: &Purchase| row.id)?,
            approvals: all(snapshot, |row: &Approval| row.id)?,
            grants: all(snapshot, |row: &Grant| row.id)?,
            settlements: all(snapshot, |row: &Settlement| row.id)?,
            intents: all(snapshot, |row: &Intent| row.id)?,
            reversals: all(snapshot, |row: &Reversal| row.capture.clone())?,
            suspended: all(snapshot, |row: &Suspended| row.capture.clone())?,
            cash_entries: all(snapshot, |row: &CashEntry| row.paypal_id.clone())?,
            withheld: all(snapshot, |row: &Withheld| row.paypal_id.clone())?,
            disputed: all(snapshot, |row: &Disputed| row.capture.clone())?,
            acknowledged: all(snapshot, |row: &Acknowledged| row.paypal_id.clone())?,
            reconciliation: snapshot.row::<Reconciliation>(Reconciliation::ID)?,
            model_calls: all(snapshot, |row: &ModelCall| row.id)?,
        };
        let mut books = self.books.borrow_mut();
        let last = rows.reconciliation.as_ref().and_then(|row| row.last.as_ref());
        self.seen.set(Seen {
            entries: self.seen.get().entries,
            accounts: books.fold.accounts.len(),
            purchases: rows.purchases.len(),
            settlements: rows.settlements.len(),
            reconciled: last.map(|report| report.horizon),
            with_balance: last.is_some_and(|report| report.paypal_micros.is_some()),
            unexplained_lines: last.map_or(0, |report| report.unexplained_lines),
            unexplained_micros: last.map_or(0, |report| report.unexplained_micros),
        });
        books.rows = rows;
        Ok(Vec::new())
    }
}

/// Every row of a kind by its id.
fn all<R: Record, Id: Ord>(
    snapshot: &Snapshot<'_>,
    id: impl Fn(&R) -> Id,
) -> Result<BTreeMap<Id, R>, ReadError> {
    Ok(snapshot.every::<R>()?.into_iter().map(|row| (id(&row), row)).collect())
}

/// One invariant of the business.
struct Holds {
    name: &'static str,
    holds: Invariant,
    books: Rc<RefCell<Books>>,
}

impl Check for Holds {
    fn invariant(&self) -> &'static str {
        self.name
    }

    fn finish(&mut self, _: &Snapshot<'_>) -> Result<Vec<String>, ReadError> {
        let books = self.books.borrow();
        let mut breaches = Vec::new();
        (self.holds)(&books.rows, &books.fold, &mut breaches);
        Ok(breaches)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use earnest_core::admin::{CreateOwner, Creation};
    use earnest_core::id::{OwnerId, Seed, TabId};
    use earnest_core::party::Principal;
    use earnest_core::time::Zone;
    use earnest_core::unit::{Effects, Stop, Touches, Unit, View};
    use earnest_store::{Options, Store};

    use super::*;

    /// A unit with a bug: an owner is told of a tab that is not there.
    struct Spoil(OwnerId);

    impl Unit for Spoil {
        type Answer = ();
        fn name(&self) -> &'static str {
            "owner.spoil"
        }
        fn touches(&self, _: &View, _: Timestamp) -> Touches {
            let mut touches = Touches::new();
            touches.row::<Owner>(self.0);
            touches
        }
        fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
            let mut owner = view.need::<Owner>(self.0)?.clone();
            owner.open_tab = Some(TabId::new(Seed { unix_ms: 1, random: 2 }));
            let mut effects = Effects::answer(());
            effects.put(owner)?;
            Ok(effects)
        }
    }

    #[test]
    fn what_only_the_business_knows_is_audited_under_its_own_name() {
        let clock = Arc::new(|| Timestamp::UNIX_EPOCH);
        let store = Store::open(Options::memory("simulated", clock)).unwrap();
        let creation = Creation { by: Principal::Operator, name: "a".to_owned(), key: None };
        let id = OwnerId::new(Seed { unix_ms: 1, random: 1 });
        store.submit_blocking(CreateOwner { creation, id, zone: Zone::utc() }).unwrap();
        let first = || {
            let findings = auditor().0.run(store.reader()).unwrap();
            findings.first().map(|finding| finding.invariant)
        };
        assert_eq!(first(), None);
        store.submit_blocking(Spoil(id)).unwrap();
        assert_eq!(first(), Some("an_owner_knows_its_tabs"));
    }
}
