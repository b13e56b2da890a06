//! What was recorded by hand and taken back, read again: PayPal is asked what it is, and that is booked.
//!
//! A capture that a settlement waits for, and a refund that an open reversal names, are read by roads
//! of their own; this is for what nobody else would look at again.

use earnest_core::cash::{CashEntry, LookedVoided};

use super::paypal::{FlowError, unless_taken};
use super::settle;
use crate::app::App;

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
        let read = unless_taken(settle::capture_hinted(app, &row.paypal_id).await);
        // Most of what is recorded by hand is no capture; then it cannot be read, now or later.
        if let Err(error) = &read {
            tracing::info!(id = %row.paypal_id, %error, "what was taken back is no capture so far");
        }
        let known = read.is_ok();
        app.store.submit(LookedVoided { paypal_id: row.paypal_id, known }).await?;
    }
    Ok(())
}
