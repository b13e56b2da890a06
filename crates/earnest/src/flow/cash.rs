//! What was recorded by hand and taken back, read again: PayPal is asked what it is, and that is booked.
//!
//! A capture that a settlement waits for, and a refund that an open reversal names, are read by roads
//! of their own; this is for what nobody else would look at again.
//!
//! A repayment that PayPal took back is taken back here too, by itself.

use earnest_core::cash::{CashEntry, CashKind, LookedVoided, VoidCash};
use earnest_core::time::after;
use earnest_core::unit::{Fingerprint, Key};
use earnest_paypal::evidence::{Evidence, movements};
use earnest_paypal::reporting::TransactionRow;
use earnest_store::ReadError;

use super::paypal::{FlowError, unless_taken};
use super::{reconcile, scan, settle};
use crate::app::App;

/// How long after it happened something is recorded by hand, at most as far as it is looked for: 31 days,
/// which is one search.
const RECORDED_LATE_SECONDS: i64 = 31 * 86_400;

/// Whether a payment is in the books as a repayment that was recorded by hand.
pub(super) fn is_repayment(app: &App, paypal_id: &str) -> Result<bool, ReadError> {
    let entry = app.store.reader().row::<CashEntry>(paypal_id)?;
    Ok(entry.is_some_and(|it| it.kind == CashKind::Repayment && it.voided.is_none()))
}

/// Some of such a payment went back: the debt stands again and its owner is frozen. The payment, and
/// what went back of it, are in suspense as PayPal has them; what stayed the operator clears again.
///
/// # Errors
/// As those of [`VoidCash`], and when the books cannot be read.
pub(super) async fn repayment_went_back(app: &App, paypal_id: &str) -> Result<(), FlowError> {
    let Some(entry) = app.store.reader().row::<CashEntry>(paypal_id)? else { return Ok(()) };
    tracing::error!(id = paypal_id, owner = ?entry.owner, "a repayment went back at PayPal");
    // Recorded, taken back and recorded once more it is another entry.
    let n = entry.earlier.len().to_string();
    let key = Key {
        scope: "paypal".to_owned(),
        family: "repayment_went_back",
        name: format!("{paypal_id}:{n}"),
        fingerprint: Fingerprint::of(&[paypal_id.as_bytes()]),
    };
    let unit = VoidCash {
        paypal_id: paypal_id.to_owned(),
        owner: entry.owner,
        gave_back: entry.gave_back,
        reason: "it went back at PayPal".to_owned(),
        key,
    };
    app.store.submit(unit).await?;
    // What cannot be read now is read by the jobs.
    if let Err(error) = settle::capture_hinted(app, paypal_id).await {
        tracing::info!(id = paypal_id, %error, "what went back is not read so far");
    }
    app.wake.notify();
    Ok(())
}

/// Asks PayPal about entries that were taken back.
///
/// # Errors
/// When the books cannot be read or written.
pub async fn read_voided(app: &App) -> Result<(), FlowError> {
    let now = app.now();
    let reader = app.store.reader();
    let page = reader.list::<CashEntry>("cash_entries.voided", "", None, 100, false)?;
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
        app.store.submit(LookedVoided { paypal_id: row.paypal_id, known }).await?;
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
