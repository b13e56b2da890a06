//! What a life that a restore lost did at PayPal, read and booked; and the door that stays closed
//! until it is known.

use earnest_core::chain::{ChainKind, chain_of};
use earnest_core::id::{OwnerId, SettlementId, TabId};
use earnest_core::intent::{Charge, Evidence, Fate};
use earnest_core::lost::{BookLost, ClearLost, Found, LostCapture, LostState, Marks};
use earnest_core::money::Currency;
use earnest_core::party::Owner;
use earnest_core::quarantine::{self, Quarantine};
use earnest_core::settlement::Settlement;
use earnest_core::suspense::Suspended;
use earnest_core::tab::Tab;
use earnest_paypal::payments::Capture;
use earnest_store::{ReadError, SubmitError};

use super::paypal::{FlowError, unless_taken};
use super::settle;
use crate::app::App;

/// Whether the books are quarantined, by a plain read; units that matter ask again.
///
/// # Errors
/// When the books cannot be read.
pub fn in_force(app: &App) -> Result<bool, ReadError> {
    Ok(app.store.reader().row::<Quarantine>(Quarantine::ID)?.is_some_and(|row| row.holds()))
}

/// Refuses what would be begun in quarantine only to wait.
///
/// # Errors
/// `quarantined`.
pub fn refuse_quarantined(app: &App) -> Result<(), FlowError> {
    if !in_force(app)? {
        return Ok(());
    }
    Err(FlowError::Submit(SubmitError::Refused(Box::new(quarantine::refusal()))))
}

/// Takes in a capture that no settlement of these books asked for, if a life that was lost did.
/// Gives back whether it did.
///
/// # Errors
/// [`FlowError`].
pub async fn take_in(
    app: &App,
    capture: &Capture,
    fate: Fate<Charge>,
    evidence: Evidence,
) -> Result<bool, FlowError> {
    let Some(restored) = app.store.reader().row::<Quarantine>(Quarantine::ID)? else {
        return Ok(false);
    };
    if capture.currency.as_str() != Currency::Usd.code() {
        return Ok(false);
    }
    let known = app.store.reader().row::<LostCapture>(&capture.id)?;
    let (marks, owner) = match known {
        Some(row) => (row.marks, row.owner),
        None => match marks_of(app, capture, &restored)? {
            Some(found) => found,
            None => return Ok(false),
        },
    };
    let found = match fate {
        Fate::Done(charge) => Found::Done(charge),
        Fate::Declined { .. } => Found::Gone,
        _ => Found::Pending,
    };
    let id = capture.id.clone();
    let is = match &found {
        Found::Done(_) => "captured",
        Found::Gone => "declined",
        Found::Pending => "pending",
    };
    if app.store.submit(BookLost { marks, owner, found, evidence }).await? {
        tracing::warn!(capture = %id, is, "a capture of the life that was lost");
        app.wake.notify();
    }
    Ok(true)
}

/// Our marks on a capture, and whose tab it pays here.
///
/// Every epoch but the present one counts: the present life asked for nothing that it does not know.
/// What bears an epoch that nobody heard of came from a life which began with another restore, where it
/// names a tab or an owner of these books and the time fits.
// INVARIANT: no_life_that_was_lost_is_a_stranger
fn marks_of(
    app: &App,
    capture: &Capture,
    restored: &Quarantine,
) -> Result<Option<(Marks, Option<OwnerId>)>, FlowError> {
    let reader = app.store.reader();
    let Some(invoice) = &capture.invoice_id else { return Ok(None) };
    let (custom, keys) = (capture.custom_id.as_deref(), app.keys());
    let marks = Marks::read(&capture.id, invoice, custom, capture.amount, &keys.marker);
    let Some(mut marks) = marks.filter(|marks| marks.epoch() != restored.epoch) else {
        return Ok(None);
    };
    let named = reader.row::<Tab>(marks.tab)?;
    let owner = match marks.owner {
        Some(owner) => reader.row::<Owner>(owner)?,
        None => match &named {
            Some(tab) => reader.row::<Owner>(tab.owner)?,
            None => None,
        },
    };
    let heard_of = restored.ended.iter().any(|epoch| epoch == marks.epoch());
    let known = heard_of || named.is_some() || owner.is_some();
    if !known || !restored.is_unsure_at(capture.create_time) {
        return Ok(None);
    }
    marks.pays = match (&named, &owner) {
        // Marks that contradict each other are none of ours.
        (Some(tab), Some(owner)) if tab.owner != owner.id => return Ok(None),
        (Some(tab), Some(_)) => Some(tab.id),
        (None, Some(owner)) => stands_for(app, owner)?,
        (_, None) => None,
    };
    // An attempt that these books know came to nothing, and the lost life tried again under another
    // invoice. One that is captured already has no second capture.
    if reader.row::<Settlement>(marks.settlement)?.is_some_and(|row| !row.is_captured()) {
        let own = chain_of(ChainKind::LostSettlement, &capture.id).value();
        marks.settlement = SettlementId::from_value(own);
    }
    let owner = owner.map(|owner| owner.id).filter(|_| marks.pays.is_some());
    Ok(Some((marks, owner)))
}

/// The tab of these books that stands for one which was opened after the backup: what the older one
/// owed was carried to it, or settled under the older one's own name.
fn stands_for(app: &App, owner: &Owner) -> Result<Option<TabId>, FlowError> {
    let tabs = owner.earlier_tabs.iter().rev().chain(&owner.open_tab);
    let mut open = None;
    for id in tabs {
        let Some(tab) = app.store.reader().row::<Tab>(id)? else { continue };
        let owes = app.store.reader().totals(&tab.owed())?.collectible();
        if !owes.is_zero() {
            return Ok(Some(*id));
        }
        open = Some(*id);
    }
    Ok(owner.open_tab.or(open))
}

/// Reads captures again that PayPal was still deciding about.
///
/// # Errors
/// When the books cannot be read.
pub async fn read_pending(app: &App) -> Result<(), FlowError> {
    let page =
        app.store.reader().list::<LostCapture>("lost_captures.open", "", None, 100, false)?;
    for row in page.items.iter().take_while(|row| row.next_at <= app.now()) {
        let capture = &row.marks.capture;
        if let Err(error) = unless_taken(settle::capture_hinted(app, capture).await) {
            tracing::error!(%capture, %error, "a capture of the life that was lost is not read");
        }
    }
    Ok(())
}

/// Pays what a tab owes with what a life that was lost captured for it.
///
/// # Errors
/// [`FlowError`].
pub async fn clear(app: &App, tab: &Tab) -> Result<(), FlowError> {
    let reader = app.store.reader();
    for capture in &tab.lost {
        let Some(row) = reader.row::<LostCapture>(capture)? else { continue };
        let suspended = reader.row::<Suspended>(capture)?;
        let left = suspended.as_ref().is_some_and(|row| !row.left_micros.is_zero());
        let owes = !reader.totals(&tab.owed())?.collectible().is_zero();
        if row.state == LostState::Pending || (left && !owes) {
            continue;
        }
        let unit = ClearLost {
            owner: tab.owner,
            tab: tab.id,
            capture: capture.clone(),
            settlement: row.marks.settlement,
            cleared: suspended.map_or(0, |row| row.times_paid),
        };
        app.store.submit(unit).await?;
    }
    Ok(())
}
