//! Webhooks: their registration, and what PayPal sends.
//!
//! An event is a hint to read a resource again, never a fact to book: its signature covers only a
//! 32-bit CRC of the body, so whoever holds one valid set of headers can write another body that
//! still verifies. Whoever receives deliveries therefore also keeps (transmission id, event id,
//! SHA-256 of the body) and refuses a repeat with another hash.

mod cert;
mod verify;

use earnest_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use cert::CertStore;
pub use verify::{
    Delivery, Invalid, MAX_BODY, MAX_TRANSMISSION_AGE_SECONDS, Verification, signed_message,
    verify_local, verify_postback,
};

use crate::request::{BuildError, Operation, Request, canonical, path_id};
use crate::wire::{self, Link};

const WEBHOOKS: &str = "/v1/notifications/webhooks";

/// A webhook as PayPal keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// PayPal's id: part of what is signed. It differs per URL and per environment.
    pub id: String,
    /// Where events go.
    pub url: String,
    /// Which events.
    pub event_types: Vec<String>,
}

/// Our webhooks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhooks {
    /// Each of them.
    pub webhooks: Vec<Webhook>,
}

/// What an event points at. Hints only: read the resource before acting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// PayPal's id; a repeat has the same one.
    pub id: String,
    /// `PAYMENT.CAPTURE.COMPLETED`, …: branch on this alone.
    pub event_type: String,
    /// When it was made.
    pub create_time: Option<Timestamp>,
    /// The id of the resource inside: an order, capture, *refund*, authorization, payment token,
    /// dispute.
    pub resource_id: Option<String>,
    /// The order it belongs to.
    pub order_id: Option<String>,
    /// The authorization it belongs to.
    pub authorization_id: Option<String>,
    /// The capture it belongs to; of a refund, only its `up` link says; of a dispute, the first of the
    /// transactions that it names.
    pub capture_id: Option<String>,
    /// Our reference.
    pub invoice_id: Option<String>,
    /// Our second reference.
    pub custom_id: Option<String>,
}

/// Registers a webhook for every event. PayPal wants a public `https` URL on port 443.
///
/// All of them (`*`): an event only ever makes us read again, and what we learn to read later then
/// needs no new registration.
pub fn create(url: &str) -> Result<Request, BuildError> {
    if url.is_empty() || url.len() > 2048 {
        return Err(BuildError::Text { field: "url" });
    }
    let body = canonical(&json!({"url": url, "event_types": [{"name": "*"}]}))?;
    Ok(Request::write_raw(Operation::WebhookCreate, WEBHOOKS, body))
}

/// Lists our webhooks.
pub fn list() -> Request {
    Request::read(Operation::WebhookList, WEBHOOKS.to_owned())
}

/// Reads a webhook.
pub fn get(id: &str) -> Result<Request, BuildError> {
    let id = path_id("webhook id", id)?;
    Ok(Request::read(Operation::WebhookGet, format!("{WEBHOOKS}/{id}")))
}

/// Removes a webhook.
pub fn delete(id: &str) -> Result<Request, BuildError> {
    let id = path_id("webhook id", id)?;
    Ok(Request::read(Operation::WebhookDelete, format!("{WEBHOOKS}/{id}")))
}

#[derive(Deserialize)]
struct WireWebhook {
    id: String,
    #[serde(default)]
    url: String,
    #[serde(default)]
    event_types: Vec<WireEventType>,
}

#[derive(Deserialize)]
struct WireEventType {
    name: String,
}

#[derive(Deserialize)]
struct WireWebhooks {
    #[serde(default)]
    webhooks: Vec<WireWebhook>,
}

#[derive(Deserialize)]
struct WireEvent {
    id: String,
    event_type: String,
    #[serde(default, deserialize_with = "wire::time")]
    create_time: Option<Timestamp>,
    #[serde(default)]
    resource: serde_json::Value,
}

/// The parts of a resource that name others. Each may be missing or of another shape.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireResource {
    id: Option<String>,
    invoice_id: Option<String>,
    custom_id: Option<String>,
    supplementary_data: Option<WireSupplementary>,
    purchase_units: Vec<WireUnit>,
    links: Vec<Link>,
    dispute_id: Option<String>,
    disputed_transactions: Vec<WireDisputed>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireDisputed {
    seller_transaction_id: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireSupplementary {
    related_ids: WireRelated,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireRelated {
    order_id: Option<String>,
    authorization_id: Option<String>,
    capture_id: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireUnit {
    invoice_id: Option<String>,
    custom_id: Option<String>,
}

#[derive(Deserialize)]
struct WireVerification {
    verification_status: String,
}

impl Webhook {
    /// Reads a webhook; `None` when its id cannot be read.
    pub fn parse(body: &[u8]) -> Option<Self> {
        serde_json::from_slice::<WireWebhook>(body).ok().map(Self::from)
    }
}

impl From<WireWebhook> for Webhook {
    fn from(wire: WireWebhook) -> Self {
        let event_types = wire.event_types.into_iter().map(|kind| kind.name).collect();
        Self { id: wire.id, url: wire.url, event_types }
    }
}

impl Webhooks {
    /// Reads the list; `None` when it cannot be read.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let wire: WireWebhooks = serde_json::from_slice(body).ok()?;
        Some(Self { webhooks: wire.webhooks.into_iter().map(Webhook::from).collect() })
    }
}

impl Event {
    /// Reads an event; `None` when its id or type cannot be read. A resource of an unknown shape
    /// is no reason to refuse it: then nothing is named and everything must be polled.
    pub fn parse(body: &[u8]) -> Option<Self> {
        serde_json::from_slice::<WireEvent>(body).ok().map(Self::from)
    }
}

impl From<WireEvent> for Event {
    fn from(wire: WireEvent) -> Self {
        let resource = WireResource::deserialize(&wire.resource).unwrap_or_default();
        let related = resource.supplementary_data.unwrap_or_default().related_ids;
        let unit = resource.purchase_units.into_iter().next().unwrap_or_default();
        let mut disputed = resource.disputed_transactions.into_iter();
        let disputed = disputed.find_map(|one| one.seller_transaction_id);
        let up = |collection| wire::up_id(&resource.links, collection);
        Self {
            id: wire.id,
            event_type: wire.event_type,
            create_time: wire.create_time,
            order_id: related.order_id.or_else(|| up("/orders")),
            authorization_id: related.authorization_id.or_else(|| up("/authorizations")),
            capture_id: related.capture_id.or_else(|| up("/captures")).or(disputed),
            resource_id: resource.id.or(resource.dispute_id),
            invoice_id: resource.invoice_id.or(unit.invoice_id),
            custom_id: resource.custom_id.or(unit.custom_id),
        }
    }
}

/// PayPal's word on a signature; `None` when it is neither of the two.
pub(crate) fn parse_verification(body: &[u8]) -> Option<bool> {
    let wire: WireVerification = serde_json::from_slice(body).ok()?;
    match wire.verification_status.as_str() {
        "SUCCESS" => Some(true),
        "FAILURE" => Some(false),
        _ => None,
    }
}
