//! Fault switches: what goes wrong, for which operation or event, and how often.

use serde::{Deserialize, Serialize};

/// One fault. It fires on the calls (or events) it matches, after letting `skip` of them pass,
/// `count` times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// An operation (`orders.create`), a family (`orders.*`) or `*`. Not looked at by the
    /// `webhook_*` kinds.
    #[serde(default = "anything")]
    pub operation: String,
    /// For the `webhook_*` kinds: an event type, a family (`PAYMENT.CAPTURE.*`) or `*`.
    #[serde(default = "anything")]
    pub event: String,
    /// Fires only if path, query or body (for events: the event body) contain this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contains: Option<String>,
    /// Matching calls that pass unharmed first.
    #[serde(default)]
    pub skip: u32,
    /// How often it fires; `null` means until it is removed.
    #[serde(default = "once")]
    pub count: Option<u32>,
    /// What happens.
    #[serde(flatten)]
    pub effect: Effect,
}

fn anything() -> String {
    "*".to_owned()
}

// Serde asks for the field's own type.
#[allow(clippy::unnecessary_wraps, reason = "serde wants a function of the field's type")]
const fn once() -> Option<u32> {
    Some(1)
}

impl Fault {
    /// `effect`, once, on the next call of `operation`.
    #[must_use]
    pub fn on(operation: &str, effect: Effect) -> Self {
        Self {
            operation: operation.to_owned(),
            event: anything(),
            contains: None,
            skip: 0,
            count: once(),
            effect,
        }
    }

    /// A webhook `effect`, once, on the next event of this type.
    #[must_use]
    pub fn on_event(event: &str, effect: Effect) -> Self {
        Self { event: event.to_owned(), ..Self::on("*", effect) }
    }

    /// The same, `count` times.
    #[must_use]
    pub fn times(mut self, count: u32) -> Self {
        self.count = Some(count);
        self
    }

    /// The same, until it is removed.
    #[must_use]
    pub fn always(mut self) -> Self {
        self.count = None;
        self
    }

    /// The same, after `skip` matching calls.
    #[must_use]
    pub fn after(mut self, skip: u32) -> Self {
        self.skip = skip;
        self
    }
}

/// How a pending payment ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Ending {
    /// The money arrives.
    Completed,
    /// It does not: `DECLINED`, `DENIED` or `FAILED`, as the resource calls it.
    Declined,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Effect {
    /// The connection closes and nothing happened.
    DropBefore,
    /// The effect happens, then the connection closes without an answer.
    DropAfter,
    /// The answer is late; the effect happens before (`after`) or after the wait.
    Delay {
        /// Real milliseconds.
        milliseconds: u64,
        /// Wait after the effect instead of before it.
        #[serde(default)]
        after: bool,
    },
    /// An HTTP error instead of the answer.
    Status {
        /// 429, 500, 503, 504 or any other error status.
        status: u16,
        /// `Retry-After` in seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_seconds: Option<u64>,
        /// The effect happened all the same.
        #[serde(default)]
        after: bool,
    },
    /// The effect happens; the answer is a success whose body is not JSON.
    BadBody,
    /// 401 `invalid_token`; the token presented is dead from now on.
    DeadToken,
    /// 403 `NOT_AUTHORIZED`, as with a token issued before a feature was switched on.
    MissingScope,
    /// The business refuses with this issue.
    Issue {
        /// `INSTRUMENT_DECLINED`, for example.
        issue: String,
    },
    /// The capture, authorization or refund stays pending.
    Pending {
        /// `status_details.reason`; `PENDING_REVIEW` (refunds: `ECHECK`) unless given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// How it ends.
        then: Ending,
        /// When, by the simulator's clock; left out: only by a control call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after_seconds: Option<u32>,
    },
    /// The call succeeds, but the capture in it is `DECLINED` (authorization `DENIED`, refund
    /// `FAILED`).
    Denied,
    /// A vaulted order answers `PAYER_ACTION_REQUIRED` instead of being captured; a capture or
    /// authorize call is refused with that issue.
    PayerAction,
    /// PayPal keeps something else than its schedule says.
    Fee {
        /// Millionths of the gross amount.
        rate_ppm: i64,
        /// Millionths of a currency unit.
        fixed_micros: i64,
    },
    /// Reports lie further behind than usual.
    ReportLag {
        /// Seconds instead of the configured ones.
        seconds: u32,
    },
    /// The event is recorded but never delivered by itself.
    WebhookNever,
    /// The event is delivered this many times, at once.
    WebhookDuplicate {
        /// Deliveries in all.
        copies: u32,
    },
    /// The event is held back until a later one was delivered (or `POST /_sim/webhooks/flush`).
    WebhookReorder,
    /// The event is delivered before the call that caused it is answered.
    WebhookBeforeAnswer,
    /// The signature does not fit the body.
    WebhookWrongSignature,
    /// The event is signed with a new key under a new certificate URL, and so are later ones.
    WebhookRotatedCertificate,
}

/// At which moment of a call a fault acts. Each moment takes at most one fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Before the request is looked at.
    Front,
    /// A wait before processing.
    WaitBefore,
    /// A refusal by the business.
    Refusal,
    /// How a payment turns out.
    Outcome,
    /// The fee of a capture.
    Fee,
    /// After processing.
    Back,
    /// A wait after processing.
    WaitAfter,
    /// The age of reports.
    Lag,
    /// Delivery of an event.
    Webhook,
}

impl Effect {
    const fn moment(&self) -> Moment {
        match self {
            Self::DropBefore
            | Self::Status { after: false, .. }
            | Self::DeadToken
            | Self::MissingScope => Moment::Front,
            Self::Delay { after: false, .. } => Moment::WaitBefore,
            Self::Delay { after: true, .. } => Moment::WaitAfter,
            Self::Issue { .. } => Moment::Refusal,
            Self::Pending { .. } | Self::Denied | Self::PayerAction => Moment::Outcome,
            Self::Fee { .. } => Moment::Fee,
            Self::DropAfter | Self::Status { after: true, .. } | Self::BadBody => Moment::Back,
            Self::ReportLag { .. } => Moment::Lag,
            Self::WebhookNever
            | Self::WebhookDuplicate { .. }
            | Self::WebhookReorder
            | Self::WebhookBeforeAnswer
            | Self::WebhookWrongSignature
            | Self::WebhookRotatedCertificate => Moment::Webhook,
        }
    }

    /// Whether this can happen to calls of `operation` at all. A fault that could never fire
    /// would let a test pass for nothing.
    pub(crate) fn applies_to(&self, operation: &str) -> bool {
        let one_of = |names: &[&str]| names.contains(&operation);
        match self {
            Self::Pending { .. } | Self::Denied => one_of(&[
                "orders.create",
                "orders.authorize",
                "orders.capture",
                "authorizations.capture",
                "captures.refund",
            ]),
            Self::PayerAction => one_of(&["orders.create", "orders.authorize", "orders.capture"]),
            Self::Fee { .. } => {
                one_of(&["orders.create", "orders.capture", "authorizations.capture"])
            }
            Self::ReportLag { .. } => one_of(&["search.get", "balances.get"]),
            Self::Issue { .. } => ISSUE_FAMILIES.iter().any(|family| operation.starts_with(family)),
            Self::MissingScope | Self::DeadToken => {
                operation != "oauth.token" && operation != "certs.get"
            }
            _ => true,
        }
    }
}

/// The operations whose refusals carry issue codes; the v1 webhook APIs speak in prose.
const ISSUE_FAMILIES: &[&str] = &[
    "orders.",
    "authorizations.",
    "captures.",
    "refunds.",
    "setup-tokens.",
    "payment-tokens.",
    "customer.",
    "search.",
    "balances.",
];

/// A fault and what it did so far.
#[derive(Debug, Clone, Serialize)]
pub struct ActiveFault {
    /// As it was set.
    #[serde(flatten)]
    pub fault: Fault,
    /// How often it has fired.
    pub fired: u32,
    #[serde(skip)]
    passed: u32,
}

impl ActiveFault {
    fn is_spent(&self) -> bool {
        self.fault.count.is_some_and(|count| self.fired >= count)
    }

    /// Counts a matching call; true if the fault acts on it.
    fn fires(&mut self) -> bool {
        if self.passed < self.fault.skip {
            self.passed += 1;
            return false;
        }
        self.fired += 1;
        true
    }
}

/// The faults that are switched on.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    active: Vec<ActiveFault>,
}

impl Faults {
    pub(crate) fn replace(&mut self, faults: Vec<Fault>) {
        self.active.clear();
        for fault in faults {
            self.add(fault);
        }
    }

    pub(crate) fn add(&mut self, fault: Fault) {
        self.active.push(ActiveFault { fault, fired: 0, passed: 0 });
    }

    pub(crate) fn list(&self) -> &[ActiveFault] {
        &self.active
    }

    /// The first fault of this moment that acts on a call of `operation`.
    pub(crate) fn on_call(
        &mut self,
        moment: Moment,
        operation: &str,
        text: &str,
    ) -> Option<Effect> {
        self.active
            .iter_mut()
            .filter(|active| active.fault.effect.moment() == moment && !active.is_spent())
            .filter(|active| matches(&active.fault.operation, operation))
            .filter(|active| active.fault.effect.applies_to(operation))
            .filter(|active| contains(active.fault.contains.as_deref(), text))
            .find_map(|active| active.fires().then(|| active.fault.effect.clone()))
    }

    /// Every webhook fault that acts on this event.
    pub(crate) fn on_event(&mut self, event_type: &str, text: &str) -> Vec<Effect> {
        self.active
            .iter_mut()
            .filter(|active| active.fault.effect.moment() == Moment::Webhook && !active.is_spent())
            .filter(|active| matches(&active.fault.event, event_type))
            .filter(|active| contains(active.fault.contains.as_deref(), text))
            .filter_map(|active| active.fires().then(|| active.fault.effect.clone()))
            .collect()
    }
}

fn contains(wanted: Option<&str>, text: &str) -> bool {
    wanted.is_none_or(|wanted| text.contains(wanted))
}

/// `orders.*` matches `orders.create`; `*` matches everything.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_fires_as_often_as_it_says() {
        let mut faults = Faults::default();
        faults.add(Fault::on("orders.*", Effect::DropAfter).after(1).times(2));
        let mut fired = || faults.on_call(Moment::Back, "orders.create", "").is_some();
        assert_eq!([fired(), fired(), fired(), fired()], [false, true, true, false]);
        assert!(faults.on_call(Moment::Back, "captures.get", "").is_none());
    }

    #[test]
    fn faults_are_written_flat() {
        let fault: Fault = serde_json::from_str(
            r#"{"operation":"orders.create","kind":"status","status":503,"retry_after_seconds":2}"#,
        )
        .unwrap();
        assert_eq!(fault.count, Some(1));
        let forever: Fault =
            serde_json::from_str(r#"{"kind":"webhook_never","count":null}"#).unwrap();
        assert_eq!(forever.count, None);
    }
}
