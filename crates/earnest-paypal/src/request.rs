//! A call to PayPal as a value, so that an intent can store it and repeat exactly the same bytes.
//!
//! Only the builders of the API modules make requests; a stored one is read back with serde.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::money::MoneyError;

/// The longest key we send: PayPal's own limits start at 108.
const MAX_KEY: usize = 100;
/// The longest `invoice_id`, `custom_id` and order description.
pub(crate) const MAX_REFERENCE: usize = 127;
/// The longest `note_to_payer`.
pub(crate) const MAX_NOTE: usize = 255;
const HOUR: Duration = Duration::from_secs(3600);
const DAYS_45: Duration = Duration::from_secs(45 * 24 * 3600);

/// How an operation is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Writes.
    Post,
    /// Removals.
    Delete,
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $method:ident, $kind:ident;)*) => {
        /// One call of PayPal's APIs.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub enum Operation {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl Operation {
            /// Every operation.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable name, as stored and logged.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// How it is sent.
            pub const fn method(self) -> Method {
                match self { $(Self::$name => Method::$method,)* }
            }

            const fn kind(self) -> Kind {
                match self { $(Self::$name => Kind::$kind,)* }
            }
        }
    };
}

/// What follows from what an operation does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    /// Orders: keys are kept 6 hours.
    Order,
    /// Payments: keys are kept 45 days.
    Payment,
    /// Vault: keys are kept 3 hours.
    Vault,
    /// Repeating it changes nothing more.
    Harmless,
}

operations! {
    /// An order that its payer must approve; moves nothing.
    OrderCreate = "order_create", Post, Order;
    /// An order on a vaulted method, captured at once: this charges.
    OrderChargeVaulted = "order_charge_vaulted", Post, Order;
    /// The order as it is now, payments included.
    OrderGet = "order_get", Get, Read;
    /// Places the hold of an approved order.
    OrderAuthorize = "order_authorize", Post, Order;
    /// Captures an approved order.
    OrderCapture = "order_capture", Post, Order;
    /// The authorization as it is now.
    AuthorizationGet = "authorization_get", Get, Read;
    /// Captures from an authorization.
    AuthorizationCapture = "authorization_capture", Post, Payment;
    /// Releases what an authorization still holds.
    AuthorizationVoid = "authorization_void", Post, Payment;
    /// Renews an authorization under a new id.
    AuthorizationReauthorize = "authorization_reauthorize", Post, Payment;
    /// The capture as it is now.
    CaptureGet = "capture_get", Get, Read;
    /// Gives money of a capture back.
    CaptureRefund = "capture_refund", Post, Payment;
    /// The refund as it is now.
    RefundGet = "refund_get", Get, Read;
    /// Starts vaulting; the payer must approve.
    SetupTokenCreate = "setup_token_create", Post, Vault;
    /// The setup token as it is now.
    SetupTokenGet = "setup_token_get", Get, Read;
    /// Turns an approved setup token into a vaulted method.
    PaymentTokenCreate = "payment_token_create", Post, Vault;
    /// One vaulted method.
    PaymentTokenGet = "payment_token_get", Get, Read;
    /// Forgets a vaulted method.
    PaymentTokenDelete = "payment_token_delete", Delete, Harmless;
    /// One page of Transaction Search.
    TransactionSearch = "transaction_search", Get, Read;
    /// Our balances, up to 3 hours old.
    Balances = "balances", Get, Read;
    /// One dispute.
    DisputeGet = "dispute_get", Get, Read;
    /// The disputes of one capture.
    DisputeList = "dispute_list", Get, Read;
    /// Registers a webhook; PayPal refuses a second one for the same URL.
    WebhookCreate = "webhook_create", Post, Harmless;
    /// Our webhooks.
    WebhookList = "webhook_list", Get, Read;
    /// One webhook.
    WebhookGet = "webhook_get", Get, Read;
    /// Removes a webhook.
    WebhookDelete = "webhook_delete", Delete, Harmless;
    /// Asks PayPal whether a delivery is its own.
    WebhookVerify = "webhook_verify", Post, Harmless;
}

impl Operation {
    /// How long PayPal remembers the key, where there is one.
    pub const fn key_retention(self) -> Option<Duration> {
        match self.kind() {
            Kind::Order => Some(Duration::from_secs(6 * HOUR.as_secs())),
            Kind::Payment => Some(DAYS_45),
            Kind::Vault => Some(Duration::from_secs(3 * HOUR.as_secs())),
            Kind::Read | Kind::Harmless => None,
        }
    }

    /// Whether it only reads.
    pub fn is_read(self) -> bool {
        self.kind() == Kind::Read
    }

    /// Whether the longer time-out of money calls applies.
    pub(crate) fn moves_money(self) -> bool {
        self.key_retention().is_some()
    }

    /// Whether to ask for the whole resource; without it PayPal answers with id and status only.
    pub(crate) fn wants_representation(self) -> bool {
        matches!(self.kind(), Kind::Order | Kind::Payment)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a request cannot be built. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// An amount that PayPal cannot move.
    #[error("{0}")]
    Money(#[from] MoneyError),
    /// A text that PayPal would refuse: too long, empty, or letters outside its alphabet.
    #[error("`{field}` is empty, too long or has characters that PayPal refuses")]
    Text {
        /// The field.
        field: &'static str,
    },
    /// A span of time that PayPal would refuse: empty, reversed, or over 31 days.
    #[error("a search covers more than nothing and at most 31 days")]
    Window,
}

/// A call to PayPal: operation, key, path and canonical body.
///
/// Serialized by an intent before the first send, read back for a repeat, never rebuilt.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    operation: Operation,
    /// `PayPal-Request-Id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Path and query.
    path: String,
    /// Canonical JSON (RFC 8785); absent where PayPal wants no body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<String>,
}

earnest_core::shows_only!(Request: operation, key);

impl Request {
    /// What it does.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The `PayPal-Request-Id`; every POST that moves money has one.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Path and query, without host.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The body's bytes; empty where there is none.
    pub fn body(&self) -> &[u8] {
        self.body.as_deref().unwrap_or_default().as_bytes()
    }

    /// SHA-256 of the body's bytes: same key, other hash is our bug and is refused locally.
    pub fn body_sha256(&self) -> [u8; 32] {
        Sha256::digest(self.body()).into()
    }

    pub(crate) fn read(operation: Operation, path: String) -> Self {
        Self { operation, key: None, path, body: None }
    }

    pub(crate) fn write(
        operation: Operation,
        key: &str,
        path: String,
        body: Option<&Value>,
    ) -> Result<Self, BuildError> {
        check_key(key)?;
        let body = body.map(canonical).transpose()?;
        Ok(Self { operation, key: Some(key.to_owned()), path, body })
    }

    /// A write without a key, with a body that is already JSON text.
    pub(crate) fn write_raw(operation: Operation, path: &str, body: String) -> Self {
        Self { operation, key: None, path: path.to_owned(), body: Some(body) }
    }
}

/// RFC 8785: sorted keys, no spaces, one spelling; the same value always gives the same bytes.
pub(crate) fn canonical(value: &Value) -> Result<String, BuildError> {
    serde_json_canonicalizer::to_string(value).map_err(|_| BuildError::Text { field: "body" })
}

fn check_key(key: &str) -> Result<(), BuildError> {
    let good = (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
    if good { Ok(()) } else { Err(BuildError::Text { field: "PayPal-Request-Id" }) }
}

/// An id of PayPal's that goes into a path: nothing that could leave its segment.
pub(crate) fn path_id<'a>(field: &'static str, id: &'a str) -> Result<&'a str, BuildError> {
    let letter = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if (1..=64).contains(&id.len()) && id.bytes().all(letter) {
        Ok(id)
    } else {
        Err(BuildError::Text { field })
    }
}

/// `invoice_id`: ASCII without spaces, at most 127, so that reports show it as it was sent.
pub(crate) fn invoice_id(text: &str) -> Result<Value, BuildError> {
    reference("invoice_id", text, b"-_.,:")
}

/// `custom_id`: narrower still, since refunds type it so and reports show it in a limited alphabet.
pub(crate) fn custom_id(text: &str) -> Result<Value, BuildError> {
    reference("custom_id", text, b"-_.,")
}

fn reference(field: &'static str, text: &str, marks: &[u8]) -> Result<Value, BuildError> {
    let letter = |b: u8| b.is_ascii_alphanumeric() || marks.contains(&b);
    if (1..=MAX_REFERENCE).contains(&text.len()) && text.bytes().all(letter) {
        Ok(Value::from(text))
    } else {
        Err(BuildError::Text { field })
    }
}

/// A description or note, cut to `limit` bytes on a character boundary: a text for people never
/// stops a payment (PayPal answers 400 for one letter too many). Control characters become spaces.
pub(crate) fn prose(text: &str, limit: usize) -> Option<Value> {
    let mut cut: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    cut.truncate(cut.floor_char_boundary(limit));
    let cut = cut.trim();
    (!cut.is_empty()).then(|| Value::from(cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_cut_on_a_character_boundary() {
        assert_eq!(prose("héllo", 2), Some(Value::from("h")));
        assert_eq!(prose("a\nb", 9), Some(Value::from("a b")));
        assert_eq!(prose(" \t", 9), None);
        assert_eq!(prose(&"é".repeat(200), 255).unwrap().as_str().unwrap().len(), 254);
    }

    #[test]
    fn ids_cannot_leave_their_path_segment() {
        for bad in ["", "a/b", "..", "a?b", "a%2f", "a b", "é", &"x".repeat(65)] {
            assert!(path_id("id", bad).is_err(), "{bad:?}");
        }
        assert!(path_id("id", "5O190127TN364715T").is_ok());
    }

    #[test]
    fn names_of_operations_are_stable_and_unique() {
        for operation in Operation::ALL {
            let text = serde_json::to_string(operation).unwrap();
            assert_eq!(text, format!("\"{operation}\""));
            assert_eq!(serde_json::from_str::<Operation>(&text).unwrap(), *operation);
        }
        let names: std::collections::BTreeSet<_> =
            Operation::ALL.iter().map(|operation| operation.as_str()).collect();
        assert_eq!(names.len(), Operation::ALL.len());
    }
}
