//! Looking through PayPal's own records for what moved without a word: a webhook that never came, or
//! was never registered. What is found is read and booked as if a webhook had named it.
//!
//! The report lags, so this sees the past: everything up to six hours ago, each hour once more. What
//! was looked through whole is then compared with the books, line by line ([`super::reconcile`]).

use earnest_core::cash::CashEntry;
use earnest_core::intent::Intent;
use earnest_core::reconcile::{Acknowledged, RowStatus};
use earnest_core::suspense::Suspended;
use earnest_core::time::{Timestamp, after, seconds_between};
use earnest_core::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};
use earnest_paypal::evidence::{Evidence, movements};
use earnest_paypal::reporting::TransactionRow;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::paypal::{FlowError, unless_taken};
use super::{cash, reconcile, reversal, settle};
use crate::app::App;

/// Up to when PayPal's records were looked through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scanned {
    /// Everything before was seen.
    pub until: Timestamp,
    /// When to look next.
    pub next_at: Timestamp,
    /// When a look last ended with everything seen; none before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_at: Option<Timestamp>,
    /// Why the last look saw not everything, where it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<String>,
    /// Whether it was alarmed that no look saw everything for too long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overdue: bool,
}

impl Scanned {
    /// There is one.
    pub const ID: &'static str = "paypal";

    /// Since when nothing was seen whole: the last complete look, else what was known before any.
    pub fn seen_at(&self) -> Timestamp {
        self.complete_at.unwrap_or(self.until)
    }
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

/// Remembers how far a look came; only ever forward. Alarms once when none was complete for too long.
struct Keep {
    until: Timestamp,
    /// Why not everything was seen; none where it was, and before the first look.
    missed: Option<String>,
    /// Whether this is no look but the beginning.
    first: bool,
    /// How often to look.
    every_seconds: i64,
    /// How old the last complete look may be.
    overdue_seconds: i64,
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
        let known = view.row::<Scanned>(Scanned::ID)?;
        let complete_at = match self.missed {
            None if !self.first => Some(now),
            _ => known.and_then(|row| row.complete_at),
        };
        let mut row = Scanned {
            until: known.map_or(self.until, |known| known.until.max(self.until)),
            next_at: after(now, self.every_seconds),
            complete_at,
            missed: self.missed.clone(),
            overdue: false,
        };
        let mut effects = Effects::answer(());
        row.overdue = seconds_between(row.seen_at(), now) > self.overdue_seconds;
        if row.overdue && !known.is_some_and(|row| row.overdue) {
            let data = json!({ "seen_at": row.seen_at(), "why": row.missed });
            effects.event("alarm.paypal_look_overdue", &[], data);
        }
        effects.put(row)?;
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
    let overdue_seconds = app.limits.paypal_scan_overdue_seconds;
    let Some(row) = app.store.reader().row::<Scanned>(Scanned::ID)? else {
        // What moved before the books began is in the opening balance.
        let until = reconcile::begin(app).await?;
        let first = true;
        let keep = Keep { until, missed: None, first, every_seconds, overdue_seconds };
        return Ok(app.store.submit(keep).await?);
    };
    let until = reconcile::horizon(now);
    if now < row.next_at || until <= row.until {
        return Ok(());
    }
    let late = || "PayPal's records are not complete yet".to_owned();
    let (rows, mut missed) = match movements(&app.paypal, row.until, until, now).await {
        Evidence::Found { rows, complete } => (rows, (!complete).then(late)),
        Evidence::Absent(_) => (Vec::new(), None),
        Evidence::NotYet { .. } => (Vec::new(), Some(late())),
        Evidence::Unreadable { why } => {
            tracing::warn!(why, "PayPal's records could not be looked through");
            (Vec::new(), Some(format!("PayPal's records cannot be read: {why}")))
        }
    };
    let complete = missed.is_none();
    // What was there when the books began is in the opening balance.
    let began = reconcile::begin(app).await?;
    for found in rows.iter().filter(|row| row.began_after(began)) {
        if let Err(error) = take(app, found).await {
            tracing::error!(transaction = %found.transaction_id, code = %found.event_code, %error,
                "a movement at PayPal is not explained");
            // What PayPal answers for, and is not explained, holds up nothing for ever: the window
            // overlaps the one before by an hour on each side. What could not be asked or booked was
            // not seen.
            if !matches!(error, FlowError::Broken(_) | FlowError::Build(_)) {
                missed = Some(format!("{} could not be booked: {error}", found.transaction_id));
            }
        }
    }
    let until = if missed.is_none() { until } else { row.until };
    let keep = Keep { until, missed, first: false, every_seconds, overdue_seconds };
    app.store.submit(keep).await?;
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
        // It may be no capture, which could be read: the record is enough.
        if row.state() == RowStatus::Success && cash::repayment(app, capture)?.is_some() {
            cash::repayment_went_back(app, capture).await?;
        }
        if ours(capture)? {
            reversal::hinted(app, capture, Some(&row.transaction_id)).await?;
        }
        return Ok(());
    }
    if is_known(app, row)? || reconcile::take_withheld(app, row).await? {
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
    let money = row.came_in() && row.state() == RowStatus::Success;
    if !open && money && !ours(&row.transaction_id)? {
        unless_taken(settle::capture_hinted(app, &row.transaction_id).await)?;
    }
    Ok(())
}

/// Whether the operator said what a record is: recorded by hand, or acknowledged.
pub(super) fn is_known(app: &App, row: &TransactionRow) -> Result<bool, FlowError> {
    let reader = app.store.reader();
    let entry = reader.row::<CashEntry>(&row.transaction_id)?;
    if entry.is_some_and(|entry| entry.voided.is_none()) {
        return Ok(true);
    }
    let acknowledged = reader.row::<Acknowledged>(&row.transaction_id)?;
    Ok(acknowledged.is_some_and(|known| known.covers(&reconcile::row_of(row))))
}
