//! Whether a delivery is PayPal's: locally with its certificate, or by asking PayPal.
//!
//! Both look at the received bytes and nothing else. A delivery that is not PayPal's is
//! [`Verification::Invalid`] (401); one that cannot be judged now is
//! [`Verification::CannotTell`] (503), and PayPal sends it again.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earnest_core::time::{Timestamp, seconds_between};
use serde::de::IgnoredAny;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::cert::CertStore;
use crate::client::Client;
use crate::outcome::Outcome;
use crate::request::{Operation, Request};
use crate::resource::Resource;
use crate::wire;

/// The largest delivery that is looked at. PayPal's are a few kilobytes.
pub const MAX_BODY: usize = 512 * 1024;
/// PayPal retries for 3 days; an older transmission is somebody's recording.
pub const MAX_TRANSMISSION_AGE_SECONDS: i64 = 3 * 24 * 3600;
/// The longest of the five headers that is read.
const MAX_HEADER: usize = 1024;

/// The five headers and the body of a delivery, as received. The headers are secrets: whoever
/// holds a valid set can write another body that verifies, so they never show in logs.
#[derive(Clone)]
pub struct Delivery {
    transmission_id: String,
    transmission_time: String,
    transmission_sig: String,
    cert_url: String,
    auth_algo: String,
    body: Vec<u8>,
}

/// What a delivery turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// PayPal signed these headers and the CRC of this body.
    Valid,
    /// Not PayPal's: answer 401.
    Invalid(Invalid),
    /// Cannot be judged now: answer 503, PayPal sends again.
    CannotTell(String),
}

/// Why a delivery is not PayPal's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A header is missing, doubled, empty, too long or not ASCII.
    #[error("a signature header is missing or malformed")]
    Headers,
    /// Another algorithm than `SHA256withRSA`.
    #[error("the signature algorithm is not SHA256withRSA")]
    Algorithm,
    /// The body is larger than [`MAX_BODY`].
    #[error("the body is too large")]
    BodyTooLarge,
    /// The body is not one JSON value.
    #[error("the body is not JSON")]
    NotJson,
    /// Sent more than 3 days ago.
    #[error("the transmission is older than PayPal's retries")]
    TooOld,
    /// The certificate's address is not PayPal's.
    #[error("the certificate is not at an address of PayPal's")]
    CertUrl,
    /// The certificate is not valid now, not PayPal's, or does not chain to a trusted root.
    #[error("the certificate is not PayPal's")]
    Certificate,
    /// The signature does not match.
    #[error("the signature does not match")]
    Signature,
    /// PayPal says it is not its own.
    #[error("PayPal does not know this delivery")]
    NotPaypals,
}

impl Delivery {
    /// Takes the headers (by case-insensitive name, each with all its values) and the raw body.
    pub fn new<'a, V>(
        mut values: impl FnMut(&'static str) -> V,
        body: impl Into<Vec<u8>>,
    ) -> Result<Self, Invalid>
    where
        V: IntoIterator<Item = &'a [u8]>,
    {
        let mut one = |name| {
            let mut all = values(name).into_iter();
            let (Some(value), None) = (all.next(), all.next()) else {
                return Err(Invalid::Headers);
            };
            let printable = value.iter().all(u8::is_ascii_graphic);
            if value.is_empty() || value.len() > MAX_HEADER || !printable {
                return Err(Invalid::Headers);
            }
            String::from_utf8(value.to_vec()).map_err(|_| Invalid::Headers)
        };
        let delivery = Self {
            transmission_id: one("paypal-transmission-id")?,
            transmission_time: one("paypal-transmission-time")?,
            transmission_sig: one("paypal-transmission-sig")?,
            cert_url: one("paypal-cert-url")?,
            auth_algo: one("paypal-auth-algo")?,
            body: body.into(),
        };
        if delivery.body.len() > MAX_BODY {
            return Err(Invalid::BodyTooLarge);
        }
        Ok(delivery)
    }

    /// PayPal's id of this transmission; a retry of an event may have another.
    pub fn transmission_id(&self) -> &str {
        &self.transmission_id
    }

    /// The body as received.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// SHA-256 of the body: a repeat of the transmission or event with another one is a forgery.
    pub fn body_sha256(&self) -> [u8; 32] {
        Sha256::digest(&self.body).into()
    }

    /// What can be told without asking anybody.
    fn check(&self, certs: &CertStore, now: Timestamp) -> Result<(), Invalid> {
        if self.auth_algo != "SHA256withRSA" {
            return Err(Invalid::Algorithm);
        }
        let sent = wire::parse_time(&self.transmission_time).ok_or(Invalid::Headers)?;
        if seconds_between(sent, now) > MAX_TRANSMISSION_AGE_SECONDS {
            return Err(Invalid::TooOld);
        }
        if serde_json::from_slice::<IgnoredAny>(&self.body).is_err() {
            return Err(Invalid::NotJson);
        }
        certs.check_url(&self.cert_url).map(|_| ())
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("transmission_id", &self.transmission_id)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// The text that PayPal signs: header strings verbatim, then CRC-32 (IEEE) of the raw body as an
/// unsigned decimal.
pub fn signed_message(
    transmission_id: &str,
    transmission_time: &str,
    webhook_id: &str,
    body: &[u8],
) -> String {
    let crc = crc32fast::hash(body);
    format!("{transmission_id}|{transmission_time}|{webhook_id}|{crc}")
}

/// Verifies with PayPal's certificate, fetched from an address of PayPal's alone and kept.
///
/// `webhook_id` is the configured one, never one from the request.
pub async fn verify_local(
    delivery: &Delivery,
    webhook_id: &str,
    certs: &CertStore,
    now: Timestamp,
) -> Verification {
    if let Err(why) = delivery.check(certs, now) {
        return Verification::Invalid(why);
    }
    let Ok(signature) = STANDARD.decode(&delivery.transmission_sig) else {
        return Verification::Invalid(Invalid::Headers);
    };
    let message = signed_message(
        &delivery.transmission_id,
        &delivery.transmission_time,
        webhook_id,
        &delivery.body,
    );
    certs.verify(&delivery.cert_url, message.as_bytes(), &signature, now).await
}

/// Asks PayPal. Needs a token and a round trip; when PayPal is down, nobody can tell.
pub async fn verify_postback(
    client: &Client,
    delivery: &Delivery,
    webhook_id: &str,
    certs: &CertStore,
    now: Timestamp,
) -> Verification {
    if let Err(why) = delivery.check(certs, now) {
        return Verification::Invalid(why);
    }
    let Some(body) = postback_body(delivery, webhook_id) else {
        return Verification::Invalid(Invalid::NotJson);
    };
    let path = "/v1/notifications/verify-webhook-signature";
    let request = Request::write_raw(Operation::WebhookVerify, path, body);
    match client.send(&request).await.outcome {
        Outcome::Done { resource: Resource::Verification(true) } => Verification::Valid,
        Outcome::Done { resource: Resource::Verification(false) } => {
            Verification::Invalid(Invalid::NotPaypals)
        }
        other => {
            let issue = other.issue().unwrap_or("no answer");
            Verification::CannotTell(format!("PayPal could not verify: {issue}"))
        }
    }
}

/// The question, with the received bytes spliced in verbatim: parsing and writing them again
/// would turn `1.0` into `1` or reorder keys, and PayPal would call its own event a forgery.
fn postback_body(delivery: &Delivery, webhook_id: &str) -> Option<String> {
    let event = std::str::from_utf8(&delivery.body).ok()?;
    let quoted = |text: &str| Value::from(text).to_string();
    Some(format!(
        r#"{{"auth_algo":{},"cert_url":{},"transmission_id":{},"transmission_sig":{},"transmission_time":{},"webhook_id":{},"webhook_event":{event}}}"#,
        quoted(&delivery.auth_algo),
        quoted(&delivery.cert_url),
        quoted(&delivery.transmission_id),
        quoted(&delivery.transmission_sig),
        quoted(&delivery.transmission_time),
        quoted(webhook_id),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crc_of(body: &str) -> String {
        signed_message("id", "time", "hook", body.as_bytes())
    }

    #[test]
    fn the_crc_is_unsigned_decimal_over_the_raw_bytes() {
        let body =
            r#"{"id":"WH-1","event_type":"PAYMENT.CAPTURE.COMPLETED","resource":{"breakdown":{}}}"#;
        assert_eq!(crc_of(body), "id|time|hook|934900949");
        assert_ne!(crc_of(&body.replace("{}", "[]")), crc_of(body));
    }

    #[test]
    fn another_body_can_have_the_same_crc() {
        // Which is why a repeat with another SHA-256 is refused and no event moves money.
        let honest = r#"{"id":"WH-1","event_type":"PAYMENT.CAPTURE.COMPLETED","amount":"4.50"}"#;
        let forged = r#"{"id":"WH-1","event_type":"PAYMENT.CAPTURE.COMPLETED","amount":"9999.00","x":"caacaacccaaacacccaccaaaacaacaaacaaaaaaaa"}"#;
        assert_eq!(crc_of(honest), "id|time|hook|1526065767");
        assert_eq!(crc_of(honest), crc_of(forged));
        let hash = |body: &str| delivery(body).body_sha256();
        assert_ne!(hash(honest), hash(forged));
    }

    fn delivery(body: &str) -> Delivery {
        Delivery::new(|_| [b"x".as_slice()], body).unwrap()
    }

    #[test]
    fn the_received_bytes_are_spliced_in_verbatim() {
        let body = "{ \"b\":1.0,\n \"a\":{},\"c\":\"\\/\\u00e9\" , \"b2\":1e2}\r\n";
        let question = postback_body(&delivery(body), "HOOK").unwrap();
        assert!(question.ends_with(&format!(r#""webhook_id":"HOOK","webhook_event":{body}}}"#)));
        assert!(serde_json::from_str::<Value>(&question).is_ok());
    }

    #[test]
    fn headers_are_secrets_and_each_comes_once() {
        assert!(!format!("{:?}", delivery("{}")).contains("sig"));
        let one = [b"x".as_slice()].to_vec();
        let doubled = Delivery::new(
            |name| {
                if name == "paypal-cert-url" {
                    [b"x".as_slice(), b"y"].to_vec()
                } else {
                    one.clone()
                }
            },
            "{}",
        );
        assert_eq!(doubled.err(), Some(Invalid::Headers));
        let missing = Delivery::new(|_| Vec::<&[u8]>::new(), "{}");
        assert_eq!(missing.err(), Some(Invalid::Headers));
        let huge = Delivery::new(|_| [b"x".as_slice()], vec![b' '; MAX_BODY + 1]);
        assert_eq!(huge.err(), Some(Invalid::BodyTooLarge));
    }
}
