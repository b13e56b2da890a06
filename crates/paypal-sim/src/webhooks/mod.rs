//! Webhooks: who is told, what was said, and what still has to be delivered.

pub(crate) mod deliver;
pub(crate) mod manage;
pub(crate) mod sign;

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::clock::{plus_seconds, rfc3339, rfc3339_millis};
use crate::faults::Effect;
use crate::ids;
use crate::world::World;

/// An event type with what its envelope says.
pub(crate) struct EventType {
    pub(crate) name: &'static str,
    pub(crate) resource_type: &'static str,
    pub(crate) resource_version: &'static str,
    pub(crate) description: &'static str,
}

const fn kind(
    name: &'static str,
    resource_type: &'static str,
    resource_version: &'static str,
    description: &'static str,
) -> EventType {
    EventType { name, resource_type, resource_version, description }
}

/// Everything that can be subscribed to.
#[rustfmt::skip]
pub(crate) static EVENT_TYPES: &[EventType] = &[
    kind("CHECKOUT.ORDER.APPROVED", "checkout-order", "2.0", "A payer approved an order"),
    kind("CHECKOUT.ORDER.COMPLETED", "checkout-order", "2.0", "An order was completed"),
    kind("CHECKOUT.PAYMENT-APPROVAL.REVERSED", "checkout-order", "2.0", "An approved order was not captured in time"),
    kind("CUSTOMER.DISPUTE.CREATED", "dispute", "1.0", "A dispute was opened"),
    kind("CUSTOMER.DISPUTE.RESOLVED", "dispute", "1.0", "A dispute was resolved"),
    kind("CUSTOMER.DISPUTE.UPDATED", "dispute", "1.0", "A dispute was updated"),
    kind("PAYMENT.AUTHORIZATION.CREATED", "authorization", "2.0", "A payment was authorized"),
    kind("PAYMENT.AUTHORIZATION.DENIED", "authorization", "2.0", "An authorization was denied"),
    kind("PAYMENT.AUTHORIZATION.VOIDED", "authorization", "2.0", "An authorization was voided"),
    kind("PAYMENT.CAPTURE.COMPLETED", "capture", "2.0", "A capture was completed"),
    kind("PAYMENT.CAPTURE.DECLINED", "capture", "2.0", "A capture was declined"),
    kind("PAYMENT.CAPTURE.DENIED", "capture", "2.0", "A pending capture was denied"),
    kind("PAYMENT.CAPTURE.PENDING", "capture", "2.0", "A capture is pending"),
    kind("PAYMENT.CAPTURE.REFUNDED", "refund", "2.0", "A capture was refunded by the merchant"),
    kind("PAYMENT.CAPTURE.REVERSED", "refund", "2.0", "A capture was reversed by PayPal"),
    kind("PAYMENT.REFUND.FAILED", "refund", "2.0", "A refund failed"),
    kind("PAYMENT.REFUND.PENDING", "refund", "2.0", "A refund is pending"),
    kind("VAULT.PAYMENT-TOKEN.CREATED", "payment_token", "3.0", "A payment method was saved"),
    kind("VAULT.PAYMENT-TOKEN.DELETED", "payment_token", "3.0", "A saved payment method was removed"),
];

/// A URL that wants events.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) id: String,
    pub(crate) url: String,
    /// `*` or names.
    pub(crate) event_types: Vec<String>,
}

impl Registration {
    fn wants(&self, event_type: &str) -> bool {
        self.event_types.iter().any(|wanted| wanted == "*" || wanted == event_type)
    }
}

/// Something that happened, in the exact bytes every delivery of it carries.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) event_type: String,
    pub(crate) body: Bytes,
    pub(crate) created: Timestamp,
}

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// To be sent when it is due.
    Waiting,
    /// Held back so that a later event overtakes it.
    Held,
    /// On its way.
    Sending,
    /// Answered with 2xx.
    Delivered,
    /// Given up after 25 attempts.
    Failed,
    /// Never sent by itself.
    Suppressed,
}

/// One event on its way to one URL.
#[derive(Debug, Clone, Serialize)]
pub struct Delivery {
    /// Counts from 1.
    pub seq: u64,
    /// `WH-…`.
    pub event_id: String,
    /// The event's type.
    pub event_type: String,
    /// The registration it goes to.
    pub webhook_id: String,
    /// Where it goes.
    pub url: String,
    /// Where it stands.
    pub state: DeliveryState,
    /// The HTTP status of each attempt; 0 if there was none.
    pub attempts: Vec<u16>,
    #[serde(skip)]
    pub(crate) next: Timestamp,
    #[serde(skip)]
    pub(crate) before_answer: bool,
    #[serde(skip)]
    pub(crate) wrong_signature: bool,
    #[serde(skip)]
    pub(crate) generation: usize,
}

/// The post office.
#[derive(Debug, Default)]
pub(crate) struct Post {
    pub(crate) registrations: Vec<Registration>,
    pub(crate) events: Vec<Event>,
    pub(crate) deliveries: Vec<Delivery>,
    /// Which signing certificate is in use.
    pub(crate) generation: usize,
    next_seq: u64,
}

/// Attempts before PayPal gives up, over about three days.
const MOST_ATTEMPTS: usize = 25;

impl Post {
    pub(crate) fn new(urls: &[String]) -> Self {
        let registrations = urls
            .iter()
            .map(|url| Registration {
                id: ids::webhook(),
                url: url.clone(),
                event_types: vec!["*".to_owned()],
            })
            .collect();
        Self { registrations, ..Self::default() }
    }

    /// Puts an event in the post for one registration.
    pub(crate) fn enqueue(
        &mut self,
        event: &Event,
        to: &Registration,
        effects: &[Effect],
        at: Timestamp,
    ) {
        let state = if effects.contains(&Effect::WebhookNever) {
            DeliveryState::Suppressed
        } else if effects.contains(&Effect::WebhookReorder) {
            DeliveryState::Held
        } else {
            DeliveryState::Waiting
        };
        let copies = effects.iter().find_map(|effect| match effect {
            Effect::WebhookDuplicate { copies } => Some(*copies),
            _ => None,
        });
        for _ in 0..copies.unwrap_or(1) {
            self.next_seq += 1;
            self.deliveries.push(Delivery {
                seq: self.next_seq,
                event_id: event.id.clone(),
                event_type: event.event_type.clone(),
                webhook_id: to.id.clone(),
                url: to.url.clone(),
                state,
                attempts: Vec::new(),
                next: at,
                before_answer: effects.contains(&Effect::WebhookBeforeAnswer),
                wrong_signature: effects.contains(&Effect::WebhookWrongSignature),
                generation: self.generation,
            });
        }
    }

    /// Takes what must arrive before the current call is answered.
    pub(crate) fn take_early(&mut self, now: Timestamp) -> Vec<Delivery> {
        self.deliveries
            .iter_mut()
            .filter(|it| it.state == DeliveryState::Waiting && it.before_answer && it.next <= now)
            .map(|delivery| {
                delivery.state = DeliveryState::Sending;
                delivery.clone()
            })
            .collect()
    }

    /// Takes what is due, oldest first, and marks it as being sent. A receiver gets one event at
    /// a time (its copies together), so that events only overtake each other when a fault says
    /// so.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Vec<Delivery> {
        let mut busy: BTreeMap<String, String> = self
            .deliveries
            .iter()
            .filter(|delivery| delivery.state == DeliveryState::Sending)
            .map(|delivery| (delivery.webhook_id.clone(), delivery.event_id.clone()))
            .collect();
        let mut taken = Vec::new();
        for delivery in &mut self.deliveries {
            if delivery.state != DeliveryState::Waiting || delivery.next > now {
                continue;
            }
            let current = busy
                .entry(delivery.webhook_id.clone())
                .or_insert_with(|| delivery.event_id.clone());
            if *current == delivery.event_id {
                delivery.state = DeliveryState::Sending;
                taken.push(delivery.clone());
            }
        }
        taken
    }

    /// When the next delivery is due.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.deliveries
            .iter()
            .filter(|delivery| delivery.state == DeliveryState::Waiting)
            .map(|delivery| delivery.next)
            .min()
    }

    /// Books the result of an attempt; events held back follow the first one delivered.
    pub(crate) fn attempted(&mut self, seq: u64, status: u16, now: Timestamp) {
        let Some(delivery) = self.deliveries.iter_mut().find(|it| it.seq == seq) else {
            return;
        };
        delivery.attempts.push(status);
        delivery.before_answer = false;
        let tries = delivery.attempts.len();
        if (200..300).contains(&status) {
            delivery.state = DeliveryState::Delivered;
            let event_id = delivery.event_id.clone();
            self.release_held(Some(&event_id), now);
        } else if tries >= MOST_ATTEMPTS {
            delivery.state = DeliveryState::Failed;
        } else {
            delivery.state = DeliveryState::Waiting;
            delivery.next = plus_seconds(now, backoff_seconds(tries));
        }
    }

    /// Lets go of events that were held back, except this one.
    pub(crate) fn release_held(&mut self, except: Option<&str>, now: Timestamp) {
        for delivery in &mut self.deliveries {
            if delivery.state == DeliveryState::Held && except != Some(delivery.event_id.as_str()) {
                delivery.state = DeliveryState::Waiting;
                delivery.next = now;
            }
        }
    }

    pub(crate) fn event(&self, id: &str) -> Option<&Event> {
        self.events.iter().find(|event| event.id == id)
    }
}

/// 10 s, 20 s, 40 s … up to 4 h 40 min: 24 waits come to just under three days.
fn backoff_seconds(tries: usize) -> i64 {
    let doubled = u32::try_from(tries.saturating_sub(1)).unwrap_or(u32::MAX);
    10_i64.saturating_mul(2_i64.saturating_pow(doubled)).min(16_800)
}

impl World {
    /// Records that something happened and tells everyone who subscribed to it.
    pub(crate) fn emit(&mut self, event_type: &'static str, resource: Value, at: Timestamp) {
        let Some(known) = EVENT_TYPES.iter().find(|it| it.name == event_type) else {
            return;
        };
        let event = self.compose(known, &resource, at);
        let text = String::from_utf8_lossy(&event.body).into_owned();
        let effects = self.faults.on_event(event_type, &text);
        if effects.contains(&Effect::WebhookRotatedCertificate) {
            self.post.generation += 1;
        }
        let wanting: Vec<Registration> = self
            .post
            .registrations
            .iter()
            .filter(|registration| registration.wants(event_type))
            .cloned()
            .collect();
        for registration in &wanting {
            self.post.enqueue(&event, registration, &effects, at);
        }
        self.post.events.push(event);
    }

    /// Writes the envelope. Its members are in PayPal's order, not in any library's, so that a
    /// receiver who parses and writes it again gets other bytes.
    pub(crate) fn compose(&self, known: &EventType, resource: &Value, at: Timestamp) -> Event {
        let id = ids::event();
        let path = format!("/v1/notifications/webhooks-events/{id}");
        let links = json!([
            {"href": self.href(&path), "rel": "self", "method": "GET"},
            {"href": self.href(&format!("{path}/resend")), "rel": "resend", "method": "POST"},
        ]);
        let body = format!(
            r#"{{"id":{id},"event_version":"1.0","create_time":{created},"resource_type":{kind},"resource_version":{version},"event_type":{name},"summary":{summary},"resource":{resource},"links":{links}}}"#,
            id = json!(id),
            created = json!(rfc3339_millis(at)),
            kind = json!(known.resource_type),
            version = json!(known.resource_version),
            name = json!(known.name),
            summary = json!(summary(known, resource)),
        );
        Event { id, event_type: known.name.to_owned(), body: Bytes::from(body), created: at }
    }
}

fn summary(known: &EventType, resource: &Value) -> String {
    let text = |name: &str| resource.pointer(name).and_then(Value::as_str);
    match (text("/amount/value"), text("/amount/currency_code")) {
        (Some(value), Some(code)) => format!("{} for $ {value} {code}", known.description),
        _ => format!("{}.", known.description),
    }
}

/// An event as the API lists it.
pub(crate) fn event_json(event: &Event) -> Value {
    serde_json::from_slice(&event.body)
        .unwrap_or_else(|_| json!({"id": event.id, "create_time": rfc3339(event.created)}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_span_three_days() {
        let total: i64 = (1..MOST_ATTEMPTS).map(backoff_seconds).sum();
        assert!((2 * 86_400..=3 * 86_400).contains(&total), "{total}");
    }
}
