//! What must hold of the books after every test: they add up, every invariant holds, and they say
//! of PayPal what the simulator's own records say.

use std::collections::BTreeMap;

use earnest_core::intent::{Intent, IntentState};
use earnest_core::ledger::Account;
use earnest_core::money::Micros;
use earnest_core::reconcile::Reconciliation;
use earnest_core::settlement::Settlement;
use earnest_core::unit::Record;
use earnest_store::Reader;
use paypal_sim::{BooksView, RowKind, RowStatus};

use crate::world::World;

const MICROS_PER_CENT: i64 = 10_000;

/// Every row of one kind.
pub fn all<R: Record>(reader: &Reader) -> Vec<R> {
    let page = reader.all::<R>(None, 1_000_000).unwrap();
    assert_eq!(page.next, None);
    page.items
}

/// Everything that is wrong with the books, in words: what `earnest audit` says.
pub fn breaches(reader: &Reader) -> Vec<String> {
    let known = reader.head().unwrap().seq;
    let (audit, seen) = earnest::audit::auditor();
    let found = audit.run(reader).unwrap();
    assert!(seen.get().entries >= known, "it looked at every entry");
    found.iter().map(ToString::to_string).collect()
}

/// The balance that the books began with, once it is in them.
pub fn opening(reader: &Reader) -> i64 {
    let row = reader.row::<Reconciliation>(Reconciliation::ID).unwrap();
    row.and_then(|row| row.opening_micros).unwrap_or(0)
}

/// What differs between our books and PayPal's once nothing is under way, in words. `books` are the
/// simulator's.
pub fn differences(reader: &Reader, books: &BooksView) -> Vec<String> {
    let mut found = Vec::new();
    let cents = |minor: i64| minor * MICROS_PER_CENT;
    let [balance] = books.balances.as_slice() else { panic!("one currency: {books:?}") };
    let cash = reader.totals(&Account::PaypalCash.usd()).unwrap();
    let moved = cash.debits_posted.get() - cash.credits_posted.get() - opening(reader);
    compare(&mut found, "cash", moved, cents(balance.balance.minor - balance.opening.minor));
    let under_way = cash.debits_pending.get() + cash.credits_pending.get();
    compare(&mut found, "cash under way", under_way, 0);
    let fees = reader.totals(&Account::PaypalFees.usd()).unwrap();
    compare(&mut found, "fees", fees.debits_posted.get(), cents(balance.fees.minor));
    let settlements = all::<Settlement>(reader);
    let captured = settlements.iter().filter_map(|row| row.captured_micros);
    let captured: i64 = captured.map(|amount| amount.get()).sum();
    compare(&mut found, "captured", captured, cents(balance.captured.minor));
    differing_captures(&mut found, &settlements, books);
    found
}

/// Line by line: each capture of PayPal's is one settlement of ours, under the same invoice.
fn differing_captures(found: &mut Vec<String>, settlements: &[Settlement], books: &BooksView) {
    let cents = |minor: i64| minor * MICROS_PER_CENT;
    for row in books.rows.iter().filter(|row| row.kind == RowKind::Capture) {
        let id = &row.transaction_id;
        let ours: Vec<&Settlement> =
            settlements.iter().filter(|it| it.paypal_capture.as_ref() == Some(id)).collect();
        let captured = row.status == RowStatus::Success;
        match ours.as_slice() {
            [] if captured => found.push(format!("{id}: captured, not in our books")),
            [] => {}
            [known] if captured => {
                let micros = |amount: Option<Micros>| amount.map_or(0, Micros::get);
                compare(found, id, micros(known.captured_micros), cents(row.gross.minor));
                let fee = row.fee.map_or(0, |fee| fee.minor);
                compare(found, id, micros(known.fee_micros), cents(fee));
                if row.invoice_id.as_ref() != Some(&known.invoice_id) {
                    found.push(format!("{id}: booked under invoice {}", known.invoice_id));
                }
            }
            [known] if known.is_captured() => found.push(format!("{id}: booked, not captured")),
            [_] => {}
            _ => found.push(format!("{id}: booked {} times", ours.len())),
        }
    }
}

fn compare(found: &mut Vec<String>, what: &str, ours: i64, theirs: i64) {
    if ours != theirs {
        found.push(format!("{what}: {ours} in our books, {theirs} at PayPal"));
    }
}

/// How often money was taken under each invoice id, at PayPal.
pub fn captures_by_invoice(books: &BooksView) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let captured = |row: &&paypal_sim::RowView| {
        row.kind == RowKind::Capture && row.status == RowStatus::Success
    };
    for row in books.rows.iter().filter(captured) {
        *counts.entry(row.invoice_id.clone().unwrap_or_default()).or_default() += 1;
    }
    counts
}

impl World {
    pub fn reader(&self) -> &Reader {
        self.earnest.app.store.reader()
    }

    /// Everything that is wrong, whatever is still under way.
    pub fn wrongs(&self) -> Vec<String> {
        let mut wrongs = breaches(self.reader());
        for (invoice, count) in captures_by_invoice(&self.sim().books()) {
            if count > 1 {
                wrongs.push(format!("invoice {invoice} was captured {count} times"));
            }
        }
        let violations = self.sim().violations();
        wrongs.extend(violations.iter().map(|it| format!("{}: {}", it.code, it.detail)));
        wrongs
    }

    /// Everything that is wrong once all should have come to rest: also what is still open, and
    /// what differs from PayPal's records.
    pub fn wrongs_at_rest(&self) -> Vec<String> {
        let mut wrongs = self.wrongs();
        wrongs.extend(differences(self.reader(), &self.sim().books()));
        for intent in all::<Intent>(self.reader()) {
            if intent.state.is_open() {
                wrongs.push(format!("intent {} is still {:?}", intent.id, intent.state));
            }
            if intent.state == IntentState::Unknown {
                wrongs.push(format!("intent {} is unknown", intent.id));
            }
        }
        let suspense = self.reader().totals(&Account::Suspense.usd()).unwrap();
        if suspense.credits_posted != suspense.debits_posted {
            wrongs.push(format!("{suspense:?} in suspense"));
        }
        wrongs
    }

    /// As [`World::assert_sound`], in a world whose PayPal breaks one of its own rules.
    #[track_caller]
    pub fn assert_sound_but(&self, forgiven: &str) {
        let mut wrongs = self.wrongs();
        wrongs.retain(|wrong| !wrong.starts_with(forgiven));
        assert!(wrongs.is_empty(), "{wrongs:#?}");
    }

    /// As [`World::assert_at_rest`], in a world whose PayPal breaks one of its own rules.
    #[track_caller]
    pub fn assert_at_rest_but(&self, forgiven: &str) {
        let mut wrongs = self.wrongs_at_rest();
        wrongs.retain(|wrong| !wrong.starts_with(forgiven));
        assert!(wrongs.is_empty(), "{wrongs:#?}");
    }

    /// Books that add up, invariants that hold, nothing at PayPal that a careful client avoids.
    #[track_caller]
    pub fn assert_sound(&self) {
        let wrongs = self.wrongs();
        assert!(wrongs.is_empty(), "{wrongs:#?}");
    }

    /// The same, with nothing left under way and PayPal's records agreeing line by line.
    #[track_caller]
    pub fn assert_at_rest(&self) {
        let wrongs = self.wrongs_at_rest();
        assert!(wrongs.is_empty(), "{wrongs:#?}");
    }
}
