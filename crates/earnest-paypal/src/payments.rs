//! Payments v2: captures, refunds and authorizations.

use earnest_core::money::{Currency, Micros};
use earnest_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::money::CurrencyCode;
use crate::orders::amount_object;
use crate::request::{
    BuildError, MAX_NOTE, Operation, Request, custom_id, invoice_id, path_id, prose,
};
use crate::wire::{self, Link, Money};

wire::statuses! {
    /// Where a capture is. Only `COMPLETED` is money.
    CaptureStatus {
        /// The money is ours.
        Completed = "COMPLETED",
        /// Refused.
        Declined = "DECLINED",
        /// Under review or waiting for a bank; may still be refused.
        Pending = "PENDING",
        /// Broke on the way; nothing moved.
        Failed = "FAILED",
        /// Was completed; part was given back (or is disputed: derive refunds from refunds).
        PartiallyRefunded = "PARTIALLY_REFUNDED",
        /// Was completed; all was given back.
        Refunded = "REFUNDED",
    }
}

wire::statuses! {
    /// Where a refund is. Only `COMPLETED` is final.
    RefundStatus {
        /// The payer has it.
        Completed = "COMPLETED",
        /// Waiting for a bank.
        Pending = "PENDING",
        /// Did not happen.
        Failed = "FAILED",
        /// Was called off.
        Cancelled = "CANCELLED",
    }
}

wire::statuses! {
    /// Where an authorization is. Expiry shows as `VOIDED`.
    AuthorizationStatus {
        /// Held, nothing taken.
        Created = "CREATED",
        /// Under review.
        Pending = "PENDING",
        /// Something was taken; says nothing about whether the rest is still held.
        PartiallyCaptured = "PARTIALLY_CAPTURED",
        /// Taken.
        Captured = "CAPTURED",
        /// Released or expired.
        Voided = "VOIDED",
        /// Refused.
        Denied = "DENIED",
    }
}

/// Who receives the money.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payee {
    /// The merchant's account, 13 characters.
    pub merchant_id: Option<String>,
    /// The merchant's address.
    pub email: Option<String>,
}

impl Payee {
    pub(crate) fn fill_from(&mut self, other: &Self) {
        self.merchant_id = self.merchant_id.take().or_else(|| other.merchant_id.clone());
        self.email = self.email.take().or_else(|| other.email.clone());
    }
}

/// A capture as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    /// PayPal's id, 17 characters; also its transaction id in reports.
    pub id: String,
    /// Where it is.
    pub status: CaptureStatus,
    /// Why, while it is pending or refused (`PENDING_REVIEW`, `ECHECK`, …).
    pub reason: Option<String>,
    /// What was taken, gross.
    pub amount: Micros,
    /// Its currency: compare before booking.
    pub currency: CurrencyCode,
    /// What PayPal kept. Unknown (not zero) while pending or when charged in another currency.
    pub fee: Option<Micros>,
    /// What arrived.
    pub net: Option<Micros>,
    /// Our reference.
    pub invoice_id: Option<String>,
    /// Our second reference.
    pub custom_id: Option<String>,
    /// The order it belongs to.
    pub order_id: Option<String>,
    /// The authorization it was taken from.
    pub authorization_id: Option<String>,
    /// Who received it.
    pub payee: Payee,
    /// Whether the rest of the hold was released with it.
    pub final_capture: Option<bool>,
    /// When it was made.
    pub create_time: Option<Timestamp>,
}

/// A refund as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refund {
    /// PayPal's id.
    pub id: String,
    /// Where it is.
    pub status: RefundStatus,
    /// Why, while it is pending or failed.
    pub reason: Option<String>,
    /// What goes back to the payer; absent in minimal answers.
    pub amount: Option<Micros>,
    /// Its currency.
    pub currency: Option<CurrencyCode>,
    /// What PayPal gave back of its fee (expect nothing).
    pub fee_returned: Option<Micros>,
    /// What left our balance.
    pub net: Option<Micros>,
    /// Our reference.
    pub invoice_id: Option<String>,
    /// Our second reference.
    pub custom_id: Option<String>,
    /// The capture it belongs to; only in its `up` link.
    pub capture_id: Option<String>,
    /// When it was made.
    pub create_time: Option<Timestamp>,
}

/// An authorization as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorization {
    /// PayPal's id; a reauthorization has one of its own.
    pub id: String,
    /// Where it is.
    pub status: AuthorizationStatus,
    /// Why, while it is pending.
    pub reason: Option<String>,
    /// What is held; absent in minimal answers.
    pub amount: Option<Micros>,
    /// Its currency.
    pub currency: Option<CurrencyCode>,
    /// Our reference.
    pub invoice_id: Option<String>,
    /// Our second reference.
    pub custom_id: Option<String>,
    /// When it ends by itself, about 29 days on.
    pub expiration_time: Option<Timestamp>,
    /// When it was made.
    pub create_time: Option<Timestamp>,
}

/// Part or all of a capture, given back.
#[derive(Clone, Debug)]
pub struct NewRefund<'a> {
    /// The capture.
    pub capture_id: &'a str,
    /// Whole cents, above zero.
    pub amount: Micros,
    /// The capture's currency.
    pub currency: Currency,
    /// Unique, also against the invoice ids of orders.
    pub invoice_id: &'a str,
    /// At most 127 of `[A-Za-z0-9-_.,]`.
    pub custom_id: Option<&'a str>,
    /// Shown to the payer; cut to 255 bytes.
    pub note: &'a str,
}

/// Part or all of a hold, taken.
#[derive(Clone, Debug)]
pub struct NewCapture<'a> {
    /// The authorization.
    pub authorization_id: &'a str,
    /// Whole cents, above zero; never above what is held, whatever PayPal allows.
    pub amount: Micros,
    /// The authorization's currency.
    pub currency: Currency,
    /// Unique.
    pub invoice_id: &'a str,
    /// Releases the rest. PayPal's default is *false*, which keeps the rest on hold.
    pub final_capture: bool,
    /// Shown to the payer; cut to 255 bytes.
    pub note: &'a str,
}

/// Gives money of a capture back.
pub fn refund(refund: &NewRefund<'_>, key: &str) -> Result<Request, BuildError> {
    let path =
        format!("/v2/payments/captures/{}/refund", path_id("capture id", refund.capture_id)?);
    let mut body = Map::new();
    body.insert("amount".to_owned(), amount_object(refund.amount, refund.currency)?);
    body.insert("invoice_id".to_owned(), invoice_id(refund.invoice_id)?);
    if let Some(custom) = refund.custom_id {
        body.insert("custom_id".to_owned(), custom_id(custom)?);
    }
    if let Some(note) = prose(refund.note, MAX_NOTE) {
        body.insert("note_to_payer".to_owned(), note);
    }
    Request::write(Operation::CaptureRefund, key, path, Some(&Value::Object(body)))
}

/// Takes part or all of a hold.
pub fn capture(capture: &NewCapture<'_>, key: &str) -> Result<Request, BuildError> {
    let id = path_id("authorization id", capture.authorization_id)?;
    let mut body = json!({
        "amount": amount_object(capture.amount, capture.currency)?,
        "invoice_id": invoice_id(capture.invoice_id)?,
        "final_capture": capture.final_capture,
    });
    if let (Some(note), Some(fields)) = (prose(capture.note, MAX_NOTE), body.as_object_mut()) {
        fields.insert("note_to_payer".to_owned(), note);
    }
    let path = format!("/v2/payments/authorizations/{id}/capture");
    Request::write(Operation::AuthorizationCapture, key, path, Some(&body))
}

/// Releases what an authorization still holds; captures stand.
pub fn void(authorization_id: &str, key: &str) -> Result<Request, BuildError> {
    let id = path_id("authorization id", authorization_id)?;
    let path = format!("/v2/payments/authorizations/{id}/void");
    Request::write(Operation::AuthorizationVoid, key, path, None)
}

/// Renews an authorization, from its fourth day on. The answer has a new id; capture that one.
pub fn reauthorize(
    authorization_id: &str,
    amount: Micros,
    currency: Currency,
    key: &str,
) -> Result<Request, BuildError> {
    let id = path_id("authorization id", authorization_id)?;
    let body = json!({"amount": amount_object(amount, currency)?});
    let path = format!("/v2/payments/authorizations/{id}/reauthorize");
    Request::write(Operation::AuthorizationReauthorize, key, path, Some(&body))
}

/// Reads a capture.
pub fn get_capture(id: &str) -> Result<Request, BuildError> {
    let id = path_id("capture id", id)?;
    Ok(Request::read(Operation::CaptureGet, format!("/v2/payments/captures/{id}")))
}

/// Reads a refund.
pub fn get_refund(id: &str) -> Result<Request, BuildError> {
    let id = path_id("refund id", id)?;
    Ok(Request::read(Operation::RefundGet, format!("/v2/payments/refunds/{id}")))
}

/// Reads an authorization.
pub fn get_authorization(id: &str) -> Result<Request, BuildError> {
    let id = path_id("authorization id", id)?;
    Ok(Request::read(Operation::AuthorizationGet, format!("/v2/payments/authorizations/{id}")))
}

#[derive(Deserialize)]
pub(crate) struct WirePayee {
    merchant_id: Option<String>,
    email_address: Option<String>,
}

impl From<WirePayee> for Payee {
    fn from(wire: WirePayee) -> Self {
        Self { merchant_id: wire.merchant_id, email: wire.email_address }
    }
}

#[derive(Deserialize)]
struct StatusDetails {
    reason: Option<String>,
}

#[derive(Deserialize)]
struct Breakdown {
    paypal_fee: Option<Money>,
    net_amount: Option<Money>,
}

impl Breakdown {
    /// Fee and net, where they are in the currency of the payment itself.
    fn read(breakdown: Option<Self>, currency: CurrencyCode) -> (Option<Micros>, Option<Micros>) {
        let same = |money: Option<Money>| money.filter(|m| m.currency == currency)?.amount();
        match breakdown {
            Some(breakdown) => (same(breakdown.paypal_fee), same(breakdown.net_amount)),
            None => (None, None),
        }
    }
}

#[derive(Deserialize)]
struct Supplementary {
    related_ids: Option<RelatedIds>,
}

#[derive(Default, Deserialize)]
struct RelatedIds {
    order_id: Option<String>,
    authorization_id: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct WireCapture {
    id: String,
    status: CaptureStatus,
    status_details: Option<StatusDetails>,
    amount: Money,
    invoice_id: Option<String>,
    custom_id: Option<String>,
    final_capture: Option<bool>,
    seller_receivable_breakdown: Option<Breakdown>,
    supplementary_data: Option<Supplementary>,
    payee: Option<WirePayee>,
    #[serde(default, deserialize_with = "wire::time")]
    create_time: Option<Timestamp>,
    #[serde(default)]
    links: Vec<Link>,
}

impl Capture {
    /// Reads a capture; `None` when id, status or amount cannot be read.
    pub fn parse(body: &[u8]) -> Option<Self> {
        Self::from_wire(serde_json::from_slice(body).ok()?)
    }

    pub(crate) fn from_wire(wire: WireCapture) -> Option<Self> {
        let related = wire.supplementary_data.and_then(|data| data.related_ids).unwrap_or_default();
        let (fee, net) = match wire.status {
            // While pending the fee is unknown, whatever a draft breakdown may say.
            CaptureStatus::Pending => (None, None),
            _ => Breakdown::read(wire.seller_receivable_breakdown, wire.amount.currency),
        };
        (!wire.id.is_empty()).then_some(())?;
        Some(Self {
            id: wire.id,
            status: wire.status,
            reason: wire.status_details.and_then(|details| details.reason),
            amount: wire.amount.amount()?,
            currency: wire.amount.currency,
            fee,
            net,
            invoice_id: wire.invoice_id,
            custom_id: wire.custom_id,
            order_id: related.order_id.or_else(|| wire::up_id(&wire.links, "/orders")),
            authorization_id: related
                .authorization_id
                .or_else(|| wire::up_id(&wire.links, "/authorizations")),
            payee: wire.payee.map(Payee::from).unwrap_or_default(),
            final_capture: wire.final_capture,
            create_time: wire.create_time,
        })
    }
}

#[derive(Deserialize)]
pub(crate) struct WireRefund {
    id: String,
    status: RefundStatus,
    status_details: Option<StatusDetails>,
    amount: Option<Money>,
    invoice_id: Option<String>,
    custom_id: Option<String>,
    seller_payable_breakdown: Option<Breakdown>,
    #[serde(default, deserialize_with = "wire::time")]
    create_time: Option<Timestamp>,
    #[serde(default)]
    links: Vec<Link>,
}

impl Refund {
    /// Reads a refund; `None` when id, status or amount cannot be read.
    pub fn parse(body: &[u8]) -> Option<Self> {
        Self::from_wire(serde_json::from_slice(body).ok()?)
    }

    pub(crate) fn from_wire(wire: WireRefund) -> Option<Self> {
        let (fee_returned, net) = match wire.amount {
            Some(money) => Breakdown::read(wire.seller_payable_breakdown, money.currency),
            None => (None, None),
        };
        (!wire.id.is_empty()).then_some(())?;
        Some(Self {
            id: wire.id,
            status: wire.status,
            reason: wire.status_details.and_then(|details| details.reason),
            amount: readable(wire.amount)?,
            currency: wire.amount.map(|money| money.currency),
            fee_returned,
            net,
            invoice_id: wire.invoice_id,
            custom_id: wire.custom_id,
            capture_id: wire::up_id(&wire.links, "/captures"),
            create_time: wire.create_time,
        })
    }
}

#[derive(Deserialize)]
pub(crate) struct WireAuthorization {
    id: String,
    status: AuthorizationStatus,
    status_details: Option<StatusDetails>,
    amount: Option<Money>,
    invoice_id: Option<String>,
    custom_id: Option<String>,
    #[serde(default, deserialize_with = "wire::time")]
    expiration_time: Option<Timestamp>,
    #[serde(default, deserialize_with = "wire::time")]
    create_time: Option<Timestamp>,
}

impl Authorization {
    /// Reads an authorization; `None` when id, status or amount cannot be read.
    pub fn parse(body: &[u8]) -> Option<Self> {
        Self::from_wire(serde_json::from_slice(body).ok()?)
    }

    pub(crate) fn from_wire(wire: WireAuthorization) -> Option<Self> {
        (!wire.id.is_empty()).then_some(())?;
        Some(Self {
            id: wire.id,
            status: wire.status,
            reason: wire.status_details.and_then(|details| details.reason),
            amount: readable(wire.amount)?,
            currency: wire.amount.map(|money| money.currency),
            invoice_id: wire.invoice_id,
            custom_id: wire.custom_id,
            expiration_time: wire.expiration_time,
            create_time: wire.create_time,
        })
    }
}

/// An absent amount is fine; a negative one makes the answer unreadable.
fn readable(money: Option<Money>) -> Option<Option<Micros>> {
    match money {
        None => Some(None),
        Some(money) => money.amount().map(Some),
    }
}
