//! What was recorded by hand and taken back, read again: PayPal is asked what it is, and that is booked.
//!
//! A capture that a settlement waits for, and a refund that an open reversal names, are read by roads
//! of their own; this is for what nobody else would look at again.
//!
//! A repayment that PayPal took back is taken back here too, by itself: whether it was before or after
//! it was recorded.

use earnest_core::cash::{CashEntry, CashKind, LookedCash, VoidCash};
use earnest_core::problem::Code;
use earnest_core::time::after;
use earnest_core::unit::{Fingerprint, Key};
use earnest_paypal::evidence::{Evidence, movements, refer_to};
use earnest_paypal::reporting::TransactionRow;
use earnest_store::{ReadError, SubmitError};

use super::paypal::{FlowError, unless_taken};
use super::{reconcile, reversal, scan, settle};
use crate::app::App;

/// How long after it happened something is recorded by hand, at most as far as it is looked for: 31 days,
/// which is one search.
const RECORDED_LATE_SECONDS: i64 = 31 * 86_400;
/// How many entries one turn asks about.
const MANY: usize = 100;
/// How often a repayment is tried to be taken back while somebody else changes it.
const ATTEMPTS: usize = 3;

/// A payment that is in the books as a repayment which was recorded by hand; `None` once it is taken
/// back, and for everything else.
pub(super) fn repayment(app: &App, paypal_id: &str) -> Result<Option<CashEntry>, ReadError> {
    let entry = app.store.reader().row::<CashEntry>(paypal_id)?;
    Ok(entry.filter(|it| it.kind == CashKind::Repayment && it.voided.is_none()))
}

/// Some of such a payment went back: the debt stands again and its owner is frozen. The payment, and
/// what went back of it, are in suspense as PayPal has them; what stayed the operator clears again.
///
/// # Errors
/// As those of [`VoidCash`], and when the books cannot be read.
pub(super) async fn repayment_went_back(app: &App, paypal_id: &str) -> Result<(), FlowError> {
    // Whoever takes it back meanwhile, or records it anew, does so in a read of its own: the entry is
    // read again, and is void then or another one.
    let mut attempts = 0..ATTEMPTS;
    while let Some(entry) = repayment(app, paypal_id)? {
        if attempts.next().is_none() {
            return Err(FlowError::NotNow(format!("{paypal_id} changes all the time")));
        }
        tracing::error!(id = paypal_id, owner = ?entry.owner, "a repayment went back at PayPal");
        match app.store.submit(take_back(entry)).await {
            Ok(_) => break,
            Err(SubmitError::Refused(refusal)) if refusal.code == Code::StateConflict => {}
            Err(error) => return Err(error.into()),
        }
    }
    // What cannot be read now is read by the jobs.
    if let Err(error) = settle::capture_hinted(app, paypal_id).await {
        tracing::info!(id = paypal_id, %error, "what went back is not read so far");
    }
    app.wake.notify();
    Ok(())
}

fn take_back(entry: CashEntry) -> VoidCash {
    // Recorded, taken back and recorded once more it is another entry.
    let n = entry.earlier.len();
    let key = Key {
        scope: "paypal".to_owned(),
        family: "repayment_went_back",
        name: format!("{}:{n}", entry.paypal_id),
        fingerprint: Fingerprint::of(&[entry.paypal_id.as_bytes()]),
    };
    VoidCash {
        paypal_id: entry.paypal_id,
        owner: entry.owner,
        gave_back: entry.gave_back,
        reason: "it went back at PayPal".to_owned(),
        went_back: true,
        key,
    }
}

/// Asks PayPal about repayments that were recorded since: what went back before they were is told by
/// nobody else.
///
/// # Errors
/// When the books cannot be read or written.
pub async fn read_recorded(app: &App) -> Result<(), FlowError> {
    let now = app.now();
    let reader = app.store.reader();
    let page = reader.list::<CashEntry>("cash_entries.unread", "", None, MANY, false)?;
    let due = |row: &CashEntry| row.check.is_some_and(|check| check.next_at <= now);
    for row in page.items.into_iter().take_while(due) {
        let known = went_back(app, &row).await.unwrap_or_else(|error| {
            tracing::info!(id = %row.paypal_id, %error, "a repayment is not read so far");
            false
        });
        app.store.submit(LookedCash { paypal_id: row.paypal_id, known }).await?;
    }
    Ok(())
}

/// Takes a repayment back if some of it went back; whether that is known. What is no capture is looked
/// for in PayPal's records.
async fn went_back(app: &App, entry: &CashEntry) -> Result<bool, FlowError> {
    let id = entry.paypal_id.as_str();
    match reversal::hinted(app, id, None).await {
        Err(FlowError::Broken(_)) => {}
        done => return done.map(|()| true),
    }
    let now = app.now();
    let made = after(entry.known_at(), RECORDED_LATE_SECONDS.saturating_neg());
    match refer_to(&app.paypal, id, made, entry.at, now).await {
        Evidence::Found { rows, complete } => {
            if rows.iter().any(TransactionRow::gave_back) {
                repayment_went_back(app, id).await?;
                return Ok(true);
            }
            Ok(complete)
        }
        Evidence::Absent(_) => Ok(true),
        Evidence::NotYet { .. } | Evidence::Unreadable { .. } => Ok(false),
    }
}

/// Asks PayPal about entries that were taken back.
///
/// # Errors
/// When the books cannot be read or written.
pub async fn read_voided(app: &App) -> Result<(), FlowError> {
    let now = app.now();
    let reader = app.store.reader();
    let page = reader.list::<CashEntry>("cash_entries.voided", "", None, MANY, false)?;
    let due = |row: &CashEntry| {
        row.voided.as_ref().and_then(|voided| voided.next_at).is_some_and(|at| at <= now)
    };
    for row in page.items.into_iter().take_while(due) {
        let known = match unless_taken(settle::capture_hinted(app, &row.paypal_id).await) {
            Ok(_) => true,
            // Most of what is recorded by hand is no capture: PayPal's records tell what it is.
            Err(_) => find(app, &row).await.unwrap_or_else(|error| {
                tracing::info!(id = %row.paypal_id, %error, "what was taken back is not read so far");
                false
            }),
        };
        app.store.submit(LookedCash { paypal_id: row.paypal_id, known }).await?;
    }
    Ok(())
}

/// Looks for an entry in PayPal's records around the time it was recorded, and books it as what they say
/// it is; whether it was there.
async fn find(app: &App, entry: &CashEntry) -> Result<bool, FlowError> {
    let now = app.now();
    let from = after(entry.known_at(), RECORDED_LATE_SECONDS.saturating_neg());
    let to = reconcile::horizon(now);
    if to <= from {
        return Ok(false);
    }
    let to = to.min(after(entry.at, RECORDED_LATE_SECONDS));
    let Evidence::Found { rows, .. } = movements(&app.paypal, from, to, now).await else {
        return Ok(false);
    };
    let of = |row: &&TransactionRow| row.transaction_id == entry.paypal_id;
    let Some(row) = rows.iter().find(of) else { return Ok(false) };
    scan::take(app, row).await?;
    Ok(true)
}
