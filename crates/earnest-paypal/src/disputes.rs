//! Disputes, for reading: what a payer claims of a capture, and how it ended. Answering one is a
//! person's work, in PayPal's own pages.

use earnest_core::money::Micros;
use serde::{Deserialize, Serialize};

use crate::money::CurrencyCode;
use crate::request::{BuildError, Operation, Request, path_id};
use crate::wire::{self, Money};

const DISPUTES: &str = "/v1/customer/disputes";

wire::statuses! {
    /// Where a dispute stands.
    DisputeStatus {
        /// Just opened.
        Open = "OPEN",
        /// The payer is asked.
        WaitingForBuyer = "WAITING_FOR_BUYER_RESPONSE",
        /// We are asked: not to answer loses it.
        WaitingForSeller = "WAITING_FOR_SELLER_RESPONSE",
        /// PayPal, or a bank, decides.
        UnderReview = "UNDER_REVIEW",
        /// It is over.
        Resolved = "RESOLVED",
    }
}

wire::statuses! {
    /// How a dispute ended.
    DisputeOutcome {
        /// The payer gets the money back.
        BuyerFavour = "RESOLVED_BUYER_FAVOUR",
        /// We keep it.
        SellerFavour = "RESOLVED_SELLER_FAVOUR",
        /// PayPal pays the payer, and we keep it.
        WithPayout = "RESOLVED_WITH_PAYOUT",
        /// The payer called it off.
        CanceledByBuyer = "CANCELED_BY_BUYER",
        /// We gave in.
        Accepted = "ACCEPTED",
        /// PayPal did not take it up.
        Denied = "DENIED",
        /// Not decided.
        NotDecided = "NONE",
    }
}

/// A dispute as PayPal has it now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispute {
    /// PayPal's id.
    pub id: String,
    /// Where it stands.
    pub status: DisputeStatus,
    /// How it ended, once it did.
    pub outcome: Option<DisputeOutcome>,
    /// Why the payer opened it, as PayPal writes it.
    pub reason: Option<String>,
    /// What is disputed, where PayPal says.
    pub amount: Option<Micros>,
    /// Its currency.
    pub currency: Option<CurrencyCode>,
    /// The captures it is about: their ids as a seller sees them.
    pub captures: Vec<String>,
}

/// The disputes of one transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disputes {
    /// PayPal's ids of them, the newest first.
    pub ids: Vec<String>,
}

/// Reads a dispute.
pub fn get(id: &str) -> Result<Request, BuildError> {
    let id = path_id("dispute id", id)?;
    Ok(Request::read(Operation::DisputeGet, format!("{DISPUTES}/{id}")))
}

/// Lists the disputes of a capture. A transaction has a few at most, so that one page holds them.
pub fn of_capture(capture: &str) -> Result<Request, BuildError> {
    let id = path_id("capture id", capture)?;
    let path = format!("{DISPUTES}?disputed_transaction_id={id}&page_size=50");
    Ok(Request::read(Operation::DisputeList, path))
}

#[derive(Deserialize)]
struct WireDispute {
    dispute_id: String,
    status: DisputeStatus,
    reason: Option<String>,
    #[serde(default, deserialize_with = "wire::lenient")]
    dispute_amount: Option<Money>,
    dispute_outcome: Option<WireOutcome>,
    #[serde(default)]
    disputed_transactions: Vec<WireTransaction>,
}

#[derive(Deserialize)]
struct WireOutcome {
    outcome_code: Option<DisputeOutcome>,
}

#[derive(Deserialize)]
struct WireTransaction {
    seller_transaction_id: Option<String>,
}

#[derive(Deserialize)]
struct WireList {
    #[serde(default)]
    items: Vec<WireItem>,
}

#[derive(Deserialize)]
struct WireItem {
    dispute_id: String,
}

impl Dispute {
    /// Reads a dispute; `None` when its id or status cannot be read.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let wire: WireDispute = serde_json::from_slice(body).ok()?;
        let transactions = wire.disputed_transactions.into_iter();
        Some(Self {
            id: wire.dispute_id,
            status: wire.status,
            outcome: wire.dispute_outcome.and_then(|outcome| outcome.outcome_code),
            reason: wire.reason,
            amount: wire.dispute_amount.and_then(Money::amount),
            currency: wire.dispute_amount.map(|money| money.currency),
            captures: transactions.filter_map(|one| one.seller_transaction_id).collect(),
        })
    }
}

impl Disputes {
    /// Reads a list; `None` when it cannot be read.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let wire: WireList = serde_json::from_slice(body).ok()?;
        Some(Self { ids: wire.items.into_iter().map(|item| item.dispute_id).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_of_a_dispute_is_absent_and_an_unknown_word_is_kept() {
        let read = Dispute::parse(br#"{"dispute_id":"PP-D-1","status":"SLEEPING"}"#).unwrap();
        assert_eq!(read.status.as_str(), "SLEEPING");
        assert_eq!((read.amount, read.captures.len()), (None, 0));
        assert_eq!(Dispute::parse(br#"{"status":"OPEN"}"#), None);
        assert_eq!(Disputes::parse(b"{}"), Some(Disputes { ids: Vec::new() }));
    }
}
