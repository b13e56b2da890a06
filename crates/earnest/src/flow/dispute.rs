//! Reading disputes from PayPal: a webhook or a hold in its records says that there is one, and what
//! it is, how much it is about and how it ended is read.
//!
//! An open one is read again until it is over, since no webhook has to come. Answering a dispute is a
//! person's work, in PayPal's own pages.

use earnest_core::dispute::{Case, Concerned, Disputed, LookedDisputed, Stage, TellCase};
use earnest_core::intent::{Intent, Purpose};
use earnest_core::money::{Currency, Micros};
use earnest_core::reversal::Captured;
use earnest_core::settlement::Settlement;
use earnest_core::suspense::Suspended;
use earnest_paypal::disputes::{self, Dispute, DisputeOutcome, DisputeStatus};
use earnest_paypal::{Outcome, Resource};
use earnest_store::ReadError;

use super::paypal::FlowError;
use super::{cash, lost, reversal};
use crate::app::App;

/// How many disputed captures one turn reads again.
const MANY: usize = 100;

/// The settlement that a capture of ours paid, and its owner, by a plain read.
///
/// # Errors
/// When the books cannot be read.
pub(super) fn captured(app: &App, capture: &str) -> Result<Option<Captured>, ReadError> {
    let page = app.store.reader().list::<Intent>("intents.capture", capture, None, 1, true)?;
    Ok(page.items.first().and_then(|intent| match intent.purpose {
        Purpose::Settlement(settlement) => {
            Some(Captured { intent: intent.id, settlement, owner: intent.owner })
        }
        _ => None,
    }))
}

/// Whose a capture is; `None` where the books do not know it.
///
/// # Errors
/// When the books cannot be read.
pub(super) fn concerned(app: &App, capture: &str) -> Result<Option<Concerned>, ReadError> {
    let of = captured(app, capture)?;
    let suspended = app.store.reader().row::<Suspended>(capture)?;
    let repaid = cash::repayment(app, capture)?;
    if of.is_none() && suspended.is_none() && repaid.is_none() {
        return Ok(None);
    }
    let cleared = suspended.iter().flat_map(|row| &row.cleared).map(|one| one.owner);
    let repaid_by = repaid.and_then(|entry| entry.owner);
    Ok(Some(Concerned { of, paid_by: cleared.chain(repaid_by).collect() }))
}

/// The disputed capture of ours that a hold or its release refers to: by its own id, or by that of the
/// hold which it releases.
///
/// # Errors
/// When the books cannot be read.
pub(super) fn referred(
    app: &App,
    reference: Option<&str>,
) -> Result<Option<(String, Concerned)>, ReadError> {
    let Some(reference) = reference else { return Ok(None) };
    let held = app.store.reader().row::<earnest_core::dispute::Withheld>(reference)?;
    let capture = held.and_then(|held| held.reference).unwrap_or_else(|| reference.to_owned());
    Ok(concerned(app, &capture)?.map(|whose| (capture, whose)))
}

/// A webhook named a dispute. Reads it, and freezes whoever disputes a payment of his.
///
/// # Errors
/// [`FlowError`]; where PayPal does not let us read disputes its records tell, hours later.
pub async fn hinted(app: &App, id: &str) -> Result<(), FlowError> {
    // An id that cannot be one of PayPal's is not asked for.
    let Ok(request) = disputes::get(id) else { return Ok(()) };
    match app.paypal.send(&request).await.outcome {
        Outcome::Done { resource: Resource::Dispute(dispute) } => take(app, &dispute).await,
        Outcome::NotFound { .. } => Ok(()),
        other => {
            let issue = other.issue().unwrap_or(other.as_str()).to_owned();
            Err(FlowError::Broken(format!("dispute {id} could not be read: {issue}")))
        }
    }
}

/// Records a dispute with each capture of ours that it is about.
async fn take(app: &App, dispute: &Dispute) -> Result<(), FlowError> {
    for capture in &dispute.captures {
        let Some(whose) = concerned(app, capture)? else {
            if lost::in_force(app)? {
                let why = format!("capture {capture} is disputed, and not in the books yet");
                return Err(FlowError::Broken(why));
            }
            continue;
        };
        let stage = stage(dispute);
        let case = Case {
            id: dispute.id.clone(),
            stage,
            amount_micros: amount(app, dispute, &whose)?,
            reason: dispute.reason.clone(),
        };
        let unit = TellCase { capture: capture.clone(), whose: whose.clone(), case };
        if app.store.submit(unit).await? {
            let owner = whose.of.map(|of| of.owner);
            tracing::error!(dispute = %dispute.id, capture, ?owner, ?stage, "a payment is disputed");
        }
        if stage == Stage::Lost {
            // The webhook of the reversal need not come.
            reversal::hinted(app, capture, None).await?;
        }
    }
    Ok(())
}

/// Everything that ends without the money going to the payer by our hand is won; what nobody here
/// knows is not over.
fn stage(dispute: &Dispute) -> Stage {
    if dispute.status != DisputeStatus::Resolved {
        return Stage::Open;
    }
    match dispute.outcome {
        Some(
            DisputeOutcome::SellerFavour
            | DisputeOutcome::WithPayout
            | DisputeOutcome::CanceledByBuyer
            | DisputeOutcome::Denied,
        ) => Stage::Won,
        Some(DisputeOutcome::BuyerFavour | DisputeOutcome::Accepted) => Stage::Lost,
        _ => Stage::Open,
    }
}

/// What is disputed; all of the payment where PayPal does not say so in a way that can be read.
fn amount(app: &App, dispute: &Dispute, whose: &Concerned) -> Result<Micros, ReadError> {
    let dollars = dispute.currency.is_some_and(|it| it.as_str() == Currency::Usd.code());
    if let Some(amount) = dispute.amount.filter(|_| dollars && dispute.captures.len() == 1) {
        return Ok(amount);
    }
    let Some(of) = whose.of else { return Ok(Micros::ZERO) };
    let settlement = app.store.reader().row::<Settlement>(of.settlement)?;
    let captured = settlement.map(|row| row.captured_micros.unwrap_or(row.amount_micros));
    Ok(captured.unwrap_or(Micros::ZERO))
}

/// Reads again what is disputed and not over.
///
/// # Errors
/// When the books cannot be read or written.
pub async fn read_open(app: &App) -> Result<(), FlowError> {
    let now = app.now();
    let page = app.store.reader().list::<Disputed>("disputes.open", "", None, MANY, false)?;
    for row in page.items.iter().take_while(|row| row.next_at <= now) {
        if let Err(error) = look_at(app, row).await {
            tracing::warn!(capture = %row.capture, %error, "a dispute could not be read");
        }
        app.store.submit(LookedDisputed { capture: row.capture.clone() }).await?;
    }
    Ok(())
}

async fn look_at(app: &App, row: &Disputed) -> Result<(), FlowError> {
    for case in row.cases.iter().filter(|case| case.stage == Stage::Open) {
        hinted(app, &case.id).await?;
    }
    if !row.lacks_a_case() {
        return Ok(());
    }
    // Something was withheld for a dispute that no webhook told of.
    let Ok(request) = disputes::of_capture(&row.capture) else { return Ok(()) };
    match app.paypal.send(&request).await.outcome {
        Outcome::Done { resource: Resource::Disputes(found) } => {
            for id in found.ids.iter().filter(|id| row.cases.iter().all(|case| case.id != **id)) {
                hinted(app, id).await?;
            }
            Ok(())
        }
        other => {
            let issue = other.issue().unwrap_or(other.as_str()).to_owned();
            Err(FlowError::Broken(format!("its disputes could not be listed: {issue}")))
        }
    }
}
