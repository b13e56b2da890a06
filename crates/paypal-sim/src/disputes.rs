//! Disputes: a payer who wants money back, what PayPal withholds meanwhile, and how it ends.
//!
//! Only what a seller reads is here; a seller's answers (evidence, offers, claims accepted) are not.
//! While a dispute is open the capture shows as refunded in part, though nothing was refunded, as
//! PayPal has been seen to do.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::answer::{Detail, Outcome, Problem};
use crate::books::{Row, RowKind, RowStatus};
use crate::call::Call;
use crate::clock::rfc3339_millis;
use crate::money::Money;
use crate::world::{CaptureStatus, World};
use crate::{ids, refunds};

/// In whose favour a dispute ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Favour {
    /// The payer gets the money back: a reversal follows at once.
    Buyer,
    /// The merchant keeps it.
    Seller,
    /// The payer called it off.
    Canceled,
}

impl Favour {
    const fn outcome(self) -> &'static str {
        match self {
            Self::Buyer => "RESOLVED_BUYER_FAVOUR",
            Self::Seller => "RESOLVED_SELLER_FAVOUR",
            Self::Canceled => "CANCELED_BY_BUYER",
        }
    }
}

/// A payer's claim on a capture.
#[derive(Debug, Clone)]
pub(crate) struct Dispute {
    pub(crate) id: String,
    pub(crate) capture_id: String,
    pub(crate) amount: Money,
    /// How it ended, once it did.
    pub(crate) ended: Option<Favour>,
    /// Whether PayPal withholds the amount.
    pub(crate) withheld: bool,
    pub(crate) created: Timestamp,
    pub(crate) updated: Timestamp,
}

/// A payer disputes a capture: `minor` of it, or everything; PayPal withholds that at once where
/// `withhold` says so. Its id; `None` where there is no such finished capture or not so much of it.
pub(crate) fn open(
    world: &mut World,
    capture_id: &str,
    minor: Option<i64>,
    withhold: bool,
    at: Timestamp,
) -> Option<String> {
    let capture = world.captures.get(capture_id)?;
    let disputed: i64 = world
        .disputes
        .values()
        .filter(|it| it.capture_id == capture_id && it.ended.is_none())
        .map(|it| it.amount.minor)
        .sum();
    let left = refunds::left_of(world, capture) - disputed;
    let amount = capture.amount.with_minor(minor.unwrap_or(left));
    if amount.minor <= 0 || amount.minor > left || capture.fee.is_none() {
        return None;
    }
    let id = ids::dispute();
    if withhold {
        withheld(world, capture_id, "T1110", amount.with_minor(-amount.minor), at);
    }
    let dispute = Dispute {
        id: id.clone(),
        capture_id: capture_id.to_owned(),
        amount,
        ended: None,
        withheld: withhold,
        created: at,
        updated: at,
    };
    world.disputes.insert(id.clone(), dispute);
    shown_as_refunded(world, capture_id, at);
    announce(world, "CUSTOMER.DISPUTE.CREATED", &id, at);
    Some(id)
}

/// Something happens in an open dispute that changes nothing of the money; false if it is not open.
pub(crate) fn touch(world: &mut World, id: &str, at: Timestamp) -> bool {
    let Some(dispute) = world.disputes.get_mut(id).filter(|it| it.ended.is_none()) else {
        return false;
    };
    dispute.updated = at;
    announce(world, "CUSTOMER.DISPUTE.UPDATED", id, at);
    true
}

/// Ends a dispute; false if it is not open. What was withheld is released, and goes to the payer by a
/// reversal where it ended so.
pub(crate) fn resolve(world: &mut World, id: &str, favour: Favour, at: Timestamp) -> bool {
    let Some(dispute) = world.disputes.get_mut(id).filter(|it| it.ended.is_none()) else {
        return false;
    };
    dispute.ended = Some(favour);
    dispute.updated = at;
    let dispute = dispute.clone();
    if dispute.withheld {
        withheld(world, &dispute.capture_id, "T1111", dispute.amount, at);
    }
    refunds::restate_capture(world, &dispute.capture_id, at);
    if favour == Favour::Buyer {
        refunds::reverse(world, &dispute.capture_id, Some(dispute.amount.minor), at);
    }
    shown_as_refunded(world, &dispute.capture_id, at);
    announce(world, "CUSTOMER.DISPUTE.RESOLVED", id, at);
    true
}

fn withheld(world: &mut World, capture_id: &str, code: &'static str, amount: Money, at: Timestamp) {
    let owner = world.config.merchant.merchant_id.clone();
    let (id, none) = (ids::transaction(), amount.with_minor(0));
    let mut row = Row::new(id, RowKind::Other, code, owner, amount, none, RowStatus::Success, at);
    row.reference_id = Some(capture_id.to_owned());
    world.books.post(row);
}

fn shown_as_refunded(world: &mut World, capture_id: &str, at: Timestamp) {
    let open = world.disputes.values().any(|it| it.capture_id == capture_id && it.ended.is_none());
    let capture = world.captures.get_mut(capture_id).filter(|_| open);
    if let Some(capture) = capture.filter(|it| it.status == CaptureStatus::Completed) {
        capture.status = CaptureStatus::PartiallyRefunded;
        capture.updated = at;
    }
}

fn announce(world: &mut World, event: &'static str, id: &str, at: Timestamp) {
    if let Some(body) = world.disputes.get(id).map(|it| whole(world, it)) {
        world.emit(event, body, at);
    }
}

/// What a list shows of a dispute.
fn brief(world: &World, it: &Dispute) -> Map<String, Value> {
    let path = format!("/v1/customer/disputes/{}", it.id);
    let (status, state) = match it.ended {
        None => ("WAITING_FOR_SELLER_RESPONSE", "REQUIRED_ACTION"),
        Some(_) => ("RESOLVED", "RESOLVED"),
    };
    let mut map = Map::new();
    map.insert("dispute_id".into(), json!(it.id));
    map.insert("create_time".into(), json!(rfc3339_millis(it.created)));
    map.insert("update_time".into(), json!(rfc3339_millis(it.updated)));
    map.insert("reason".into(), json!("MERCHANDISE_OR_SERVICE_NOT_RECEIVED"));
    map.insert("status".into(), json!(status));
    map.insert("dispute_state".into(), json!(state));
    map.insert("dispute_amount".into(), it.amount.json());
    map.insert("dispute_life_cycle_stage".into(), json!("CHARGEBACK"));
    map.insert("dispute_channel".into(), json!("INTERNAL"));
    let own = json!({"href": world.href(&path), "rel": "self", "method": "GET"});
    map.insert("links".into(), json!([own]));
    map
}

fn whole(world: &World, it: &Dispute) -> Value {
    let mut map = brief(world, it);
    map.remove("dispute_state");
    let mut transaction = Map::new();
    transaction.insert("seller_transaction_id".into(), json!(it.capture_id));
    if let Some(capture) = world.captures.get(&it.capture_id) {
        transaction.insert("create_time".into(), json!(rfc3339_millis(capture.created)));
        transaction.insert("transaction_status".into(), json!(capture.status.name()));
        transaction.insert("gross_amount".into(), capture.amount.json());
        if let Some(invoice) = &capture.invoice_id {
            // Narrower than an invoice id: what does not fit is left out.
            let fits = |letter: char| letter.is_ascii_alphanumeric() || ":-|".contains(letter);
            if invoice.chars().all(fits) {
                transaction.insert("invoice_number".into(), json!(invoice));
            }
        }
    }
    map.insert("disputed_transactions".into(), json!([transaction]));
    if let Some(favour) = it.ended {
        let mut outcome = Map::new();
        outcome.insert("outcome_code".into(), json!(favour.outcome()));
        if favour == Favour::Buyer {
            outcome.insert("amount_refunded".into(), it.amount.json());
        }
        map.insert("dispute_outcome".into(), Value::Object(outcome));
    }
    Value::Object(map)
}

fn unknown() -> Problem {
    Problem::classic(
        404,
        "RESOURCE_NOT_FOUND",
        "The specified resource does not exist.",
        Vec::new(),
    )
}

/// `GET /v1/customer/disputes/{id}`.
pub(crate) fn get(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let id = call.id();
    let dispute = call.world.disputes.get(&id).cloned().ok_or_else(unknown)?;
    call.refusal()?;
    Ok(Outcome::Json { status: 200, body: whole(call.world, &dispute) })
}

/// `GET /v1/customer/disputes`, of one transaction or since a time; everything on one page.
pub(crate) fn list(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let transaction = call.request.parameter("disputed_transaction_id");
    let since = call.request.parameter("start_time");
    if transaction.is_some() && since.is_some() {
        let detail = Detail {
            issue: "Only one of start_time and disputed_transaction_id is allowed".to_owned(),
            field: Some("start_time".to_owned()),
            location: Some("query"),
            ..Detail::default()
        };
        let message = "Invalid data provided";
        return Err(Problem::classic(400, "VALIDATION_ERROR", message, vec![detail]));
    }
    let since = since.and_then(|text| text.parse::<Timestamp>().ok());
    call.refusal()?;
    let of = |it: &&Dispute| {
        transaction.as_ref().is_none_or(|id| it.capture_id == *id)
            && since.is_none_or(|since| it.created >= since)
    };
    let mut found: Vec<&Dispute> = call.world.disputes.values().filter(of).collect();
    found.sort_by_key(|it| std::cmp::Reverse(it.created));
    let items: Vec<Value> =
        found.into_iter().map(|it| Value::Object(brief(call.world, it))).collect();
    let mut body = Map::new();
    // PayPal's schema wants at least one entry, so an empty list is left out.
    if !items.is_empty() {
        body.insert("items".into(), Value::Array(items));
    }
    let own = call.world.href("/v1/customer/disputes");
    body.insert("links".into(), json!([{"href": own, "rel": "self", "method": "GET"}]));
    Ok(Outcome::Json { status: 200, body: Value::Object(body) })
}
