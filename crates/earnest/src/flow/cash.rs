//! What was recorded by hand and taken back, read again: PayPal is asked what it is, and that is booked.
//!
//! A capture that a settlement waits for, and a refund that an open reversal names, are read by roads
//! of their own; this is for what nobody else would look at again.

use earnest_core::cash::{CashEntry, LookedVoided};
use earnest_core::time::after;
use earnest_paypal::evidence::{Evidence, movements};
use earnest_paypal::reporting::TransactionRow;

use super::paypal::{FlowError, unless_taken};
use super::{reconcile, scan, settle};
use crate::app::App;

/// How long after it happened something is recorded by hand, at most as far as it is looked for: 31 days,
/// which is one search.
const RECORDED_LATE_SECONDS: i64 = 31 * 86_400;

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
