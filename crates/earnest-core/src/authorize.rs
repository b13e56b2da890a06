//! `POST /v1/authorize`: what an agent sends to buy, and what it gets back.

use serde::{Deserialize, Serialize};

use crate::id::{ApprovalId, PurchaseId};
use crate::money::{AmountInput, Currency, Micros};
use crate::quote::QuoteBody;
use crate::time::Timestamp;

/// The longest `request_id`.
pub const MAX_REQUEST_ID_BYTES: usize = 128;

/// The body of `POST /v1/authorize`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuthorizeRequest {
    /// The seller's quote, exactly as the 402 held it.
    pub quote: QuoteBody,
    /// The most the caller wants to pay: `"$0.25"` or micro-units.
    pub max_price: AmountInput,
    /// The caller's name for the one thing it wants; reused for every retry of that thing. The
    /// header `Idempotency-Key` may stand in for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// 201: the hold exists, here is the voucher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorized {
    /// The purchase that holds the money.
    pub purchase: PurchaseId,
    /// What the seller wants to see: `Authorization: Tab <voucher>`.
    pub voucher: String,
    /// When the voucher stops being accepted.
    pub expires_at: Timestamp,
    /// What is held.
    pub amount_micros: Micros,
    /// In which currency.
    pub currency: Currency,
}

/// 202: the owner has to answer first. Nothing is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalNeeded {
    /// Always `approval_required`.
    pub status: String,
    /// The waiting purchase.
    pub purchase: PurchaseId,
    /// The question put to the owner.
    pub approval_id: ApprovalId,
    /// Where the owner answers it. Not pre-authenticated.
    pub approval_url: String,
    /// When the question expires.
    pub expires_at: Timestamp,
    /// How long to wait before repeating with the same `request_id`.
    pub retry_after_s: i64,
    /// Why it waits, in one sentence.
    pub detail: String,
}

/// A `request_id` that may be used: 1 to 128 visible ASCII characters.
pub fn is_request_id(text: &str) -> bool {
    (1..=MAX_REQUEST_ID_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}
