//! What is in our PayPal balance, and whether PayPal says so too.

use std::collections::BTreeMap;

use super::{Fold, Rows, wide};
use crate::chain::{self, ChainKind};
use crate::ledger::{Account, Leg};
use crate::money::Currency;
use crate::reconcile::{self, Covered, Sources};

fn debited(leg: &Leg) -> Account {
    leg.debit.account
}

fn credited(leg: &Leg) -> Account {
    leg.credit.account
}

/// What moved under an id, without the fee and as the fee; money in is positive.
type Moved = (i128, i128);

/// INVARIANT: each_paypal_id_moves_cash_once
///
/// Posted `paypal_cash` is the opening balance and what each of PayPal's ids moved: every id once,
/// gross and fee as its row says, and nothing beside.
pub(super) fn each_paypal_id_moves_cash_once(rows: &Rows, fold: &Fold, breaches: &mut Vec<String>) {
    let mut listed: BTreeMap<String, Moved> = BTreeMap::new();
    let ours = reconcile::ours(Sources {
        settlements: &mut rows.settlements.values(),
        suspended: &mut rows.suspended.values(),
        reversals: &mut rows.reversals.values(),
        entries: &mut rows.cash_entries.values(),
        withheld: &mut rows.withheld.values(),
    });
    for movement in ours {
        let moved = (i128::from(movement.gross_micros), i128::from(movement.fee_micros));
        if listed.insert(movement.id.clone(), moved).is_some() {
            breaches.push(format!("{} stands for two movements", movement.id));
        }
    }
    let booked = in_the_ledger(rows, fold);
    let mut sum = of_chain(fold, reconcile::opening_chain()).0;
    for (id, moved) in &booked {
        sum = sum.saturating_add(moved.0).saturating_add(moved.1);
        // What was recorded by hand, and taken back, moved nothing.
        if listed.get(id).unwrap_or(&(0, 0)) != moved {
            let row = listed.get(id);
            breaches.push(format!("{id} moved {moved:?} in the ledger, and its row says {row:?}"));
        }
    }
    if let Some(id) = listed.keys().find(|id| !booked.contains_key(*id)) {
        breaches.push(format!("{id} is listed and not booked"));
    }
    let sums = fold.sums(Account::PaypalCash.usd());
    let cash = sums.debits_posted.saturating_sub(sums.credits_posted);
    if cash != sum {
        breaches.push(format!("paypal_cash is {cash}, and its movements are {sum}"));
    }
}

/// What the ledger moved under each id that a row names.
fn in_the_ledger(rows: &Rows, fold: &Fold) -> BTreeMap<String, Moved> {
    let mut booked: BTreeMap<String, Moved> = BTreeMap::new();
    let mut add = |id: &str, (gross, fee): Moved| {
        let known = booked.entry(id.to_owned()).or_default();
        *known = (known.0.saturating_add(gross), known.1.saturating_add(fee));
    };
    let chain = |kind, id: &str| of_chain(fold, chain::chain_of(kind, id));
    let mut captures: BTreeMap<&str, i128> = BTreeMap::new();
    for row in rows.suspended.values() {
        captures.entry(&row.capture).or_default();
    }
    for one in rows.settlements.values().filter(|one| one.is_captured()) {
        let Some(capture) = &one.paypal_capture else { continue };
        let posted = of_chain(fold, one.hold).0;
        let known = captures.entry(capture).or_default();
        *known = known.saturating_add(posted);
    }
    for (capture, posted) in captures {
        add(capture, (posted, 0));
        add(capture, chain(ChainKind::Suspense, capture));
        add(capture, chain(ChainKind::Fee, capture));
    }
    for one in rows.reversals.values().flat_map(|row| &row.booked) {
        add(&one.id, chain(ChainKind::GivenBack, &one.id));
        add(&one.id, chain(ChainKind::FeeGivenBack, &one.id));
    }
    for entry in rows.cash_entries.values() {
        entry.chains().for_each(|id| add(&entry.paypal_id, of_chain(fold, id)));
    }
    for row in rows.withheld.values() {
        add(&row.paypal_id, chain(ChainKind::Withheld, &row.paypal_id));
    }
    booked
}

/// What a chain posted on `paypal_cash`: against the fees, and against everything else.
fn of_chain(fold: &Fold, id: crate::id::TransferId) -> Moved {
    let Some(chain) = fold.chains.get(&id) else { return (0, 0) };
    let side = |other: fn(&Leg) -> Account, own: fn(&Leg) -> Account, fee: bool| -> i128 {
        let legs = chain.legs.iter().zip(&chain.posted);
        let own = legs.filter(|(leg, _)| own(leg) == Account::PaypalCash);
        let wanted = own.filter(|(leg, _)| (other(leg) == Account::PaypalFees) == fee);
        wanted.map(|(_, amount)| wide(*amount)).sum()
    };
    let net = |fee| side(credited, debited, fee).saturating_sub(side(debited, credited, fee));
    (net(false), net(true))
}

/// INVARIANT: an_acknowledgement_covers_no_money_of_ours
///
/// What the operator acknowledged is no money of these books, with a reason.
pub(super) fn an_acknowledgement_covers_no_money_of_ours(
    rows: &Rows,
    _: &Fold,
    breaches: &mut Vec<String>,
) {
    for row in rows.acknowledged.values() {
        let ours = |line: &Covered| line.currency == Currency::Usd.code();
        if row.reason.trim().is_empty() || row.lines.is_empty() || row.lines.iter().any(ours) {
            breaches.push(format!("{} is acknowledged, and cannot be", row.paypal_id));
        }
    }
}

/// INVARIANT: every_difference_is_explained
///
/// The last comparison with PayPal's records left no line unexplained, and no rest in the balance. Books
/// that were never compared claim nothing. The worst line comes first.
pub(super) fn every_difference_is_explained(rows: &Rows, _: &Fold, breaches: &mut Vec<String>) {
    let Some(report) = rows.reconciliation.as_ref().and_then(|row| row.last.as_ref()) else {
        return;
    };
    breaches.extend(report.unexplained.iter().map(ToString::to_string));
    let kept = u64::try_from(report.unexplained.len()).unwrap_or(u64::MAX);
    let more = report.unexplained_lines.saturating_sub(kept);
    if more > 0 {
        breaches.push(format!("{more} lines more, none of them worse, are not explained"));
    }
    if let Some(rest) = report.difference_micros().filter(|rest| *rest != 0) {
        let (books, paypal) = (report.books_micros, report.paypal_micros.unwrap_or(0));
        breaches.push(format!(
            "paypal_cash was {books} and PayPal's balance {paypal}: {rest} is in no line"
        ));
    }
}
