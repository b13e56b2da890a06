//! PayPal's webhooks: verified over the raw bytes, kept by event id, and only ever a reason to read.
//!
//! The signature covers only a CRC of the body, so a body that verifies may still be forged by
//! whoever has seen one delivery. That is why nothing here moves money: an event names a resource,
//! and the resource is read from PayPal.

use earnest_core::intent::stamp;
use earnest_core::problem::{Code, Refusal};
use earnest_core::time::{Timestamp, after};
use earnest_core::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};
use earnest_paypal::webhooks::{self as api, Delivery, Verification};
use serde::{Deserialize, Serialize};

use super::paypal::{FlowError, unless_taken};
use super::{dispute, reversal, settle, vault};
use crate::app::{App, WebhookCheck};

/// An event as it was received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookEvent {
    /// PayPal's id of the event.
    pub id: String,
    /// What it says happened.
    pub event_type: String,
    /// The first transmission it came with.
    pub transmission_id: String,
    /// SHA-256 of the body, in hex: a repeat with another body is a forgery.
    pub body_sha256: String,
    /// How it was found to be PayPal's; unknown of those kept before that was written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<WebhookCheck>,
    /// The resource it names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The capture it names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture: Option<String>,
    /// The invoice it names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invoice: Option<String>,
    /// When it first came.
    pub received_at: Timestamp,
    /// How often it came.
    pub deliveries: u64,
    /// Whether what it speaks of still has to be read.
    pub open: bool,
    /// How often reading failed.
    pub tries: u32,
    /// When to read it next, while it is open.
    pub next_at: Timestamp,
}

/// How long the process that took a delivery in has to follow it up before a job does.
const FIRST_TRY_SECONDS: i64 = 60;
/// After how many tries an event is left alone: about three days, as long as PayPal repeats it.
const MAX_TRIES: u32 = 80;

impl Record for WebhookEvent {
    const KIND: &'static str = "webhook_event";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.id.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let at = self.received_at.as_millisecond();
        let mut lists = vec![ListEntry::new("webhook_events", "", at)];
        for name in [&self.resource, &self.capture, &self.invoice].into_iter().flatten() {
            let entry = ListEntry::new("webhook_events.about", name, at);
            if !lists.contains(&entry) {
                lists.push(entry);
            }
        }
        if self.open {
            lists.push(ListEntry::new("webhook_events.open", "", stamp(self.next_at)));
        }
        lists
    }
}

struct Keep(WebhookEvent);

impl Unit for Keep {
    /// Whether it came for the first time.
    type Answer = bool;

    fn name(&self) -> &'static str {
        "webhook.keep"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<WebhookEvent>(&self.0.id);
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<bool>, Stop> {
        let known = view.row::<WebhookEvent>(&self.0.id)?;
        let mut effects = Effects::answer(known.is_none());
        match known {
            None => effects.put(self.0.clone())?,
            Some(known) if known.body_sha256 != self.0.body_sha256 => {
                let why = "this event was received before with another body";
                return Err(Refusal::new(Code::WebhookSignatureInvalid, why).into());
            }
            Some(known) => {
                let deliveries = known.deliveries.saturating_add(1);
                effects.put(WebhookEvent { deliveries, ..known.clone() })?;
            }
        }
        Ok(effects)
    }
}

/// Takes in a delivery: verified and kept when this returns. Acting on it is [`act`].
///
/// # Errors
/// `webhook_signature_invalid` for what is not PayPal's; 503 where that cannot be told now, so that
/// PayPal sends it again.
pub async fn take_in(app: &App, delivery: &Delivery) -> Result<Option<WebhookEvent>, Refusal> {
    let invalid = |why: String| Refusal::new(Code::WebhookSignatureInvalid, why);
    let cannot_tell = |why: &str| Refusal::new(Code::PaypalAuthFailed, why).retry_after(30);
    let Some(webhook_id) = app.webhook_id() else {
        return Err(cannot_tell("no webhook is registered yet"));
    };
    let now = app.now();
    let verified = match app.webhook_check {
        WebhookCheck::Local => api::verify_local(delivery, &webhook_id, &app.certs, now).await,
        WebhookCheck::Postback => {
            api::verify_postback(&app.paypal, delivery, &webhook_id, &app.certs, now).await
        }
    };
    match verified {
        Verification::Valid => {}
        Verification::Invalid(why) => return Err(invalid(why.to_string())),
        Verification::CannotTell(why) => {
            tracing::warn!(%why, "a webhook cannot be verified now");
            return Err(cannot_tell("the signature cannot be checked right now"));
        }
    }
    let Some(event) = api::Event::parse(delivery.body()) else {
        // PayPal's, but nothing we know how to read: a repeat would not be better.
        tracing::warn!("a verified webhook is not an event");
        return Ok(None);
    };
    let row = WebhookEvent {
        id: event.id,
        event_type: event.event_type,
        transmission_id: delivery.transmission_id().to_owned(),
        body_sha256: hex::encode(delivery.body_sha256()),
        check: Some(app.webhook_check),
        resource: event.resource_id,
        capture: event.capture_id,
        invoice: event.invoice_id,
        received_at: now,
        deliveries: 1,
        open: true,
        tries: 0,
        next_at: after(now, FIRST_TRY_SECONDS),
    };
    let first = app
        .store
        .submit(Keep(row.clone()))
        .await
        .map_err(earnest_store::SubmitError::into_refusal)?;
    // A repeat is acted upon too: the first may have died between keeping and acting, and acting
    // only reads.
    tracing::info!(event = %row.id, kind = %row.event_type, first, "webhook kept");
    Ok(Some(row))
}

/// Records that an event was followed up, or that it was not.
struct FollowedUp {
    event: String,
    done: bool,
}

impl Unit for FollowedUp {
    type Answer = ();

    fn name(&self) -> &'static str {
        "webhook.followed_up"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<WebhookEvent>(&self.event);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let mut row = view.need::<WebhookEvent>(&self.event)?.clone();
        let mut effects = Effects::answer(());
        row.tries = row.tries.saturating_add(1);
        // A minute, two … an hour.
        let minutes = 1i64.checked_shl(row.tries.min(6)).unwrap_or(60).min(60);
        row.next_at = after(now, minutes.saturating_mul(60));
        let given_up = !self.done && row.tries >= MAX_TRIES;
        row.open &= !self.done && !given_up;
        if given_up {
            let data = serde_json::json!({ "event": row.id, "event_type": row.event_type,
                "resource": row.resource });
            effects.event("alarm.webhook_not_followed_up", &[], data);
        }
        effects.put(row)?;
        Ok(effects)
    }
}

/// Reads what an event is about, and records whether that worked; where it did not, the jobs try
/// again.
pub async fn follow_up(app: &App, event: &WebhookEvent) {
    let acted = act(app, event).await;
    if let Err(error) = &acted {
        tracing::warn!(event = %event.id, %error, "a webhook could not be followed up");
    }
    let unit = FollowedUp { event: event.id.clone(), done: acted.is_ok() };
    if let Err(error) = app.store.submit(unit).await {
        tracing::warn!(event = %event.id, %error, "a webhook stays open");
    }
}

/// Reads what an event is about.
///
/// # Errors
/// [`FlowError`]; the jobs look at every open intent anyway.
pub async fn act(app: &App, event: &WebhookEvent) -> Result<(), FlowError> {
    #[cfg(feature = "planted")]
    crate::planted::believe(app, event).await?;
    match event.event_type.as_str() {
        "PAYMENT.CAPTURE.COMPLETED"
        | "PAYMENT.CAPTURE.PENDING"
        | "PAYMENT.CAPTURE.DENIED"
        | "PAYMENT.CAPTURE.DECLINED" => {
            if let Some(id) = event.capture.as_ref().or(event.resource.as_ref()) {
                unless_taken(settle::capture_hinted(app, id).await)?;
            }
        }
        "PAYMENT.CAPTURE.REFUNDED" | "PAYMENT.CAPTURE.REVERSED" => {
            // The resource is a refund; the capture stands only in its `up` link.
            if let Some(id) = event.capture.as_ref().or(event.resource.as_ref()) {
                reversal::hinted(app, id, event.resource.as_deref()).await?;
            }
        }
        "CUSTOMER.DISPUTE.CREATED" | "CUSTOMER.DISPUTE.UPDATED" | "CUSTOMER.DISPUTE.RESOLVED" => {
            if let Some(id) = &event.resource {
                dispute::hinted(app, id).await?;
            }
        }
        "VAULT.PAYMENT-TOKEN.DELETED" | "VAULT.PAYMENT-TOKEN.DELETION-INITIATED" => {
            if let Some(token) = &event.resource {
                vault::removal_hinted(app, token).await?;
            }
        }
        _ => {}
    }
    Ok(())
}
