//! Looking through PayPal's own records for what moved without a word: a webhook that never came, or
//! was never registered. What is found is read and booked as if a webhook had named it.
//!
//! The report lags, so this sees the past: everything up to six hours ago, each hour once more. What
//! was looked through whole is then compared with the books, line by line ([`super::reconcile`]).

use earnest_core::cash::CashEntry;
use earnest_core::intent::Intent;
use earnest_core::suspense::Suspended;
use earnest_core::time::{Timestamp, after};
use earnest_core::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};
use earnest_paypal::evidence::{Evidence, movements};
use earnest_paypal::reporting::TransactionRow;
use serde::{Deserialize, Serialize};

use super::paypal::{FlowError, unless_taken};
use super::{reconcile, reversal, settle};
use crate::app::App;

/// Up to when PayPal's records were looked through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scanned {
    /// Everything before was seen.
    pub until: Timestamp,
    /// When to look next.
    pub next_at: Timestamp,
}

impl Scanned {
    const ID: &'static str = "paypal";
}

impl Record for Scanned {
    const KIND: &'static str = "scanned";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        Self::ID.to_owned()
    }
    fn lists(&self) -> Vec<ListEntry> {
        Vec::new()
    }
}

/// Remembers how far it was; only ever forward.
struct Keep {
    until: Timestamp,
    /// How often to look.
    every_seconds: i64,
}

impl Unit for Keep {
    type Answer = ();

    fn name(&self) -> &'static str {
        "paypal.scanned"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Scanned>(Scanned::ID);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let known = view.row::<Scanned>(Scanned::ID)?.map(|row| row.until);
        let until = known.map_or(self.until, |known| known.max(self.until));
        let mut effects = Effects::answer(());
        effects.put(Scanned { until, next_at: after(now, self.every_seconds) })?;
        Ok(effects)
    }
}

/// Looks through what PayPal recorded since the last time, if it is time.
///
/// # Errors
/// [`FlowError`] when the books cannot be read or written; a report that is not complete is asked
/// again at the next turn that is due.
pub async fn look(app: &App) -> Result<(), FlowError> {
    let (now, every_seconds) = (app.now(), app.limits.paypal_scan_seconds);
    let Some(row) = app.store.reader().row::<Scanned>(Scanned::ID)? else {
        // What moved before the books began is in the opening balance.
        let until = reconcile::begin(app).await?;
        return Ok(app.store.submit(Keep { until, every_seconds }).await?);
    };
    let until = reconcile::horizon(now);
    if now < row.next_at || until <= row.until {
        return Ok(());
    }
    let (rows, complete) = match movements(&app.paypal, row.until, until, now).await {
        Evidence::Found { rows, complete } => (rows, complete),
        Evidence::Absent(_) => (Vec::new(), true),
        Evidence::NotYet { .. } => (Vec::new(), false),
        Evidence::Unreadable { why } => {
            tracing::warn!(why, "PayPal's records could not be looked through");
            (Vec::new(), false)
        }
    };
    let mut all_seen = complete;
    // A search looks an hour around what it is asked for; what was there when the books began is in
    // the opening balance.
    let began = reconcile::begin(app).await?;
    let since = |row: &&TransactionRow| row.initiated.is_none_or(|at| at > began);
    for found in rows.iter().filter(since) {
        if let Err(error) = take(app, found).await {
            tracing::error!(transaction = %found.transaction_id, code = %found.event_code, %error,
                "a movement at PayPal is not explained");
            // What cannot be read now is looked at again, but holds up nothing for ever: the window
            // overlaps the one before by an hour on each side.
            all_seen &= !matches!(error, FlowError::Submit(_) | FlowError::Read(_));
        }
    }
    let until = if all_seen { until } else { row.until };
    app.store.submit(Keep { until, every_seconds }).await?;
    if complete && let reconcile::Reconciled::NotYet(why) = reconcile::run(app).await? {
        tracing::warn!(why, "the books could not be compared with PayPal's records");
    }
    Ok(())
}

/// Books what one of PayPal's records says, where it is not in the books yet.
pub(super) async fn take(app: &App, row: &TransactionRow) -> Result<(), FlowError> {
    let reader = app.store.reader();
    let ours = |capture: &str| -> Result<bool, FlowError> {
        let known = reader.list::<Intent>("intents.capture", capture, None, 1, true)?;
        Ok(!known.items.is_empty() || reader.row::<Suspended>(capture)?.is_some())
    };
    if let (true, Some(capture)) = (row.gave_back(), &row.reference_id) {
        if ours(capture)? {
            reversal::hinted(app, capture, Some(&row.transaction_id)).await?;
        }
        return Ok(());
    }
    if !row.came_in()
        && let Some(capture) = &row.reference_id
        && ours(capture)?
    {
        let what = format!("it takes from capture {capture}, and is no refund or reversal");
        return Err(FlowError::Broken(what));
    }
    // A call of ours whose outcome is still open has a road of its own to its evidence.
    let open = match &row.invoice_id {
        Some(invoice) => {
            let calls = reader.list::<Intent>("intents.invoice", invoice, None, 100, true)?;
            calls.items.iter().any(|intent| intent.state.is_open())
        }
        None => false,
    };
    let entry = reader.row::<CashEntry>(&row.transaction_id)?;
    let recorded = entry.is_some_and(|entry| entry.voided.is_none());
    let money = row.came_in() && row.status.as_deref() == Some("S") && !recorded;
    if !open && money && !ours(&row.transaction_id)? {
        unless_taken(settle::capture_hinted(app, &row.transaction_id).await)?;
    }
    Ok(())
}
