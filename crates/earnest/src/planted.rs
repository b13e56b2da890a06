//! One planted bug at a time: a suite that does not catch it proves nothing.
//!
//! Compiled under the feature `planted` only. These bugs live in the flows, between the books and
//! PayPal; those of the ledger and the engine are [`earnest_core::planted`]'s. A bug belongs to one
//! [`App`], so that tests beside each other do not meet.

use earnest_core::intent::{Charge, Evidence, Fate, Intent, Purpose};
use earnest_core::settlement::Settlement;
use earnest_paypal::{BuildError, Request};

use crate::app::App;
use crate::flow::paypal::{FlowError, claim};
use crate::flow::settle;
use crate::flow::webhook::WebhookEvent;

/// The bugs that live in the flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowBug {
    /// A pending capture is booked as if the money had arrived.
    CreditOnPending,
    /// An unknown outcome is taken for a refusal: the pending transfer is released.
    ReleaseOnUnknown,
    /// *Not charged* is concluded from a report that is not complete yet.
    NotChargedTooEarly,
    /// The request is posted again after PayPal has forgotten its key.
    RepostAfterRetention,
    /// A repeat goes out under a key of its own.
    FreshKeyForRepeat,
    /// What a webhook says is booked without reading the resource.
    BookFromWebhook,
    /// The fee that was predicted is booked, not the one that PayPal took.
    PredictedFee,
}

impl FlowBug {
    /// Every bug.
    pub const ALL: [Self; 7] = [
        Self::CreditOnPending,
        Self::ReleaseOnUnknown,
        Self::NotChargedTooEarly,
        Self::RepostAfterRetention,
        Self::FreshKeyForRepeat,
        Self::BookFromWebhook,
        Self::PredictedFee,
    ];
}

/// What is planted where.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planted {
    /// In the flows.
    pub flow: Option<FlowBug>,
    /// In the ledger or the engine.
    pub engine: Option<earnest_core::planted::Bug>,
}

/// What is recorded instead of what was learnt.
pub(crate) fn twisted(app: &App, settlement: &Settlement, fate: Fate<Charge>) -> Fate<Charge> {
    match (app.planted.flow, fate) {
        (
            Some(FlowBug::CreditOnPending),
            Fate::Pending { paypal_order, paypal_capture: Some(id) },
        ) => Fate::Done(as_asked(settlement, paypal_order, id)),
        (Some(FlowBug::ReleaseOnUnknown), Fate::Unknown) => {
            Fate::Refused { issue: "LOST".to_owned() }
        }
        (Some(FlowBug::NotChargedTooEarly), Fate::NotYet { .. }) => Fate::NotCharged,
        (Some(FlowBug::PredictedFee), Fate::Done(charge)) => {
            Fate::Done(Charge { fee: settlement.fee_predicted_micros, ..charge })
        }
        (_, fate) => fate,
    }
}

/// A charge that is only believed to have happened.
fn as_asked(
    settlement: &Settlement,
    paypal_order: Option<String>,
    paypal_capture: String,
) -> Charge {
    Charge {
        paypal_order,
        paypal_capture,
        amount: settlement.amount_micros,
        fee: settlement.fee_predicted_micros,
        given_back: false,
    }
}

/// The request as it goes out: under another key each time, if that is planted.
pub(crate) fn rekeyed(
    app: &App,
    intent: &Intent,
    request: Request,
    write: impl FnOnce(&str) -> Result<Request, BuildError>,
) -> Result<Request, BuildError> {
    if app.planted.flow == Some(FlowBug::FreshKeyForRepeat) && intent.sends > 0 {
        return write(&format!("{}:{}", intent.key, intent.sends));
    }
    Ok(request)
}

/// Posts once more what may only be read, if that is planted.
pub(crate) async fn repost(app: &App, intent: &Intent) {
    let wanted = app.planted.flow == Some(FlowBug::RepostAfterRetention);
    let request =
        intent.request.as_ref().filter(|_| wanted && !crate::flow::paypal::may_send(app, intent));
    if let Some(Ok(request)) = request.map(|text| serde_json::from_str::<Request>(text)) {
        app.paypal.send(&request).await;
    }
}

/// Books what a webhook says, if that is planted.
pub(crate) async fn believe(app: &App, event: &WebhookEvent) -> Result<(), FlowError> {
    let wanted = app.planted.flow == Some(FlowBug::BookFromWebhook);
    if !wanted || event.event_type != "PAYMENT.CAPTURE.COMPLETED" {
        return Ok(());
    }
    let reader = app.store.reader();
    let invoice = event.invoice.as_deref().unwrap_or_default();
    let page = reader.list::<Intent>("intents.invoice", invoice, None, 1, true)?;
    let Some(intent) = page.items.first().filter(|intent| intent.state.is_open()) else {
        return Ok(());
    };
    let Purpose::Settlement(id) = intent.purpose else { return Ok(()) };
    let Some(settlement) = reader.row::<Settlement>(id)? else { return Ok(()) };
    let claimed = claim(app, intent.id).await?;
    let capture = event.resource.clone().unwrap_or_default();
    let fate = Fate::Done(as_asked(&settlement, None, capture));
    let said = serde_json::json!({ "said": "a webhook" });
    let how = Evidence { at: app.now(), how: "webhook".to_owned(), said };
    settle::record(app, &settlement, &claimed, fate, how).await
}
