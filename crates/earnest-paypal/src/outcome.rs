//! What became of a call: the one place that turns status, body and issue codes into meaning.
//!
//! The rule behind every branch: money may have moved unless PayPal said in so many words that it
//! did not. What cannot be read as an answer is [`Outcome::Unknown`], and so is an answer that
//! speaks of an earlier call ([`Outcome::AlreadyDone`]) until the resource has been read.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::orders::{Order, OrderStatus};
use crate::payments::{
    Authorization, AuthorizationStatus, Capture, CaptureStatus, Refund, RefundStatus,
};
use crate::request::Operation;
use crate::resource::Resource;

/// What the payer, or whoever helps them, can do about a decline.
///
/// In order of precedence when an answer lists several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decline {
    /// The vaulted method is gone; its owner must vault another.
    MethodGone,
    /// The hold or order is gone; a new approval is needed.
    HoldGone,
    /// Final; tell the payer.
    Final,
    /// The payer can mend it on PayPal's page.
    PayerCanFix,
    /// An issue that was not known when this was written: a decline, never a panic.
    Unlisted,
}

/// Why a call did not run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// 429.
    RateLimited,
    /// An earlier call with the same key, or on the same resource, is still running.
    InProgress,
    /// The resource is not ready for it (pending capture, honor period, merchant's balance).
    NotYet,
    /// PayPal dropped the token and gave no new one.
    NoToken,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// It ran. Of a read: this is the resource now, whatever its status.
    Done {
        /// What PayPal answered.
        resource: Resource,
    },
    /// It ran and is under review: poll without deadline, start no other attempt.
    Pending {
        /// PayPal's reason (`PENDING_REVIEW`, `ECHECK`, …) or status.
        reason: String,
        /// What PayPal answered.
        resource: Resource,
    },
    /// Refused on the payer's side; no money moved.
    Declined {
        /// What can be done.
        kind: Decline,
        /// PayPal's issue code.
        issue: String,
        /// PayPal's words.
        description: String,
        /// What PayPal answered, when it was a resource.
        resource: Option<Resource>,
    },
    /// Refused on ours: credentials, scopes, arithmetic, the merchant's account. Alarm.
    Refused {
        /// PayPal's issue code.
        issue: String,
        /// PayPal's words.
        description: String,
    },
    /// PayPal speaks of an earlier call (`ORDER_ALREADY_CAPTURED`, `DUPLICATE_INVOICE_ID`, …):
    /// unknown until the resource is read.
    AlreadyDone {
        /// PayPal's issue code.
        issue: String,
        /// PayPal's words.
        description: String,
    },
    /// This send did not run: repeat later with the *same* key. Says nothing about earlier sends.
    Retry {
        /// Why.
        wait: Wait,
        /// `Retry-After`, in seconds, where given.
        after_seconds: Option<u64>,
        /// PayPal's issue code.
        issue: String,
    },
    /// There is no such thing.
    NotFound {
        /// PayPal's issue code.
        issue: String,
        /// PayPal's words.
        description: String,
    },
    /// Lost answer, time-out, 5xx, or an answer that cannot be read.
    Unknown {
        /// What happened, for people.
        why: String,
        /// `false` only when nothing of this request left: the connection was never made.
        sent: bool,
        /// What could be read, to start reading back from.
        resource: Option<Resource>,
    },
}

impl Outcome {
    /// A stable word for logs and rows.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Done { .. } => "done",
            Self::Pending { .. } => "pending",
            Self::Declined { .. } => "declined",
            Self::Refused { .. } => "refused",
            Self::AlreadyDone { .. } => "already_done",
            Self::Retry { .. } => "retry",
            Self::NotFound { .. } => "not_found",
            Self::Unknown { .. } => "unknown",
        }
    }

    /// The resource, where the answer held one.
    pub fn resource(&self) -> Option<&Resource> {
        match self {
            Self::Done { resource } | Self::Pending { resource, .. } => Some(resource),
            Self::Declined { resource, .. } | Self::Unknown { resource, .. } => resource.as_ref(),
            _ => None,
        }
    }

    /// PayPal's issue code, where there is one.
    pub fn issue(&self) -> Option<&str> {
        match self {
            Self::Declined { issue, .. }
            | Self::Refused { issue, .. }
            | Self::AlreadyDone { issue, .. }
            | Self::Retry { issue, .. }
            | Self::NotFound { issue, .. } => Some(issue),
            _ => None,
        }
    }

    pub(crate) fn lost(why: impl Into<String>) -> Self {
        Self::Unknown { why: why.into(), sent: true, resource: None }
    }

    pub(crate) fn unsent(why: impl Into<String>) -> Self {
        Self::Unknown { why: why.into(), sent: false, resource: None }
    }
}

/// One exchange with PayPal, as it is kept for the trail. Times are the caller's.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// What was asked.
    pub operation: Operation,
    /// HTTP status of the last answer.
    pub status: Option<u16>,
    /// PayPal's id of the exchange; its support asks for it.
    pub debug_id: Option<String>,
    /// The answer's body as it came, capped; empty where none was read.
    pub body: String,
    /// How often the request was sent: 2 after a token was renewed, 0 when it never left.
    pub sends: u32,
    /// Whether the answer was longer than is read: a smaller page may not be.
    #[serde(default)]
    pub too_long: bool,
    /// From the call to its last answer, the token's renewal included.
    pub took: std::time::Duration,
    /// What it means.
    pub outcome: Outcome,
}

earnest_core::shows_only!(Exchange: operation, status, debug_id, sends, outcome);

impl Exchange {
    /// The resource, where the answer held one.
    pub fn resource(&self) -> Option<&Resource> {
        self.outcome.resource()
    }

    /// Whether this answer to a *repeat* also tells what became of earlier sends with its key.
    ///
    /// A refusal at the door (credentials, scopes, syntax, 404, 415) is given before PayPal looks
    /// the key up: it says that this send did not run and nothing about an earlier one, which may
    /// have moved money. Void an intent that was sent before only on an answer that settles.
    pub fn settles_earlier_sends(&self) -> bool {
        match self.outcome {
            Outcome::Done { .. } | Outcome::Pending { .. } => true,
            Outcome::Declined { .. } | Outcome::Refused { .. } => {
                self.status == Some(422)
                    || self.status.is_some_and(|status| (200..300).contains(&status))
            }
            _ => false,
        }
    }
}

/// The class of an issue code, in order of precedence when an answer lists several: whatever may
/// have moved money comes first, what is known comes before what is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    AlreadyDone,
    Refused,
    Wait(Wait),
    Declined(Decline),
}

/// PayPal's issue codes that mean something to us, of a 422. Anything else is a decline.
const ISSUES: &[(Class, &[&str])] = &[
    // An earlier call did it, or may have: read.
    (
        Class::AlreadyDone,
        &[
            "ORDER_ALREADY_CAPTURED",
            "ORDER_ALREADY_AUTHORIZED",
            "ORDER_ALREADY_COMPLETED",
            // Completed *or* voided: which of them, only the order says.
            "ORDER_COMPLETED_OR_VOIDED",
            "AUTHORIZATION_ALREADY_CAPTURED",
            "PREVIOUSLY_VOIDED",
            "PREVIOUSLY_CAPTURED",
            "CAPTURE_FULLY_REFUNDED",
            "DUPLICATE_INVOICE_ID",
        ],
    ),
    (
        Class::Wait(Wait::InProgress),
        &["PREVIOUS_REQUEST_IN_PROGRESS", "ORDER_COMPLETION_IN_PROGRESS"],
    ),
    (
        Class::Wait(Wait::NotYet),
        &["PENDING_CAPTURE", "REFUND_FAILED_INSUFFICIENT_FUNDS", "REAUTHORIZATION_TOO_SOON"],
    ),
    // The merchant's account.
    (
        Class::Refused,
        &[
            "PAYEE_ACCOUNT_RESTRICTED",
            "PAYEE_ACCOUNT_LOCKED_OR_CLOSED",
            "PAYEE_ACCOUNT_INVALID",
            "AUTH_CAPTURE_NOT_ENABLED",
            "PERMISSION_DENIED",
            "CONSENT_NEEDED",
            "TRANSACTION_RECEIVING_LIMIT_EXCEEDED",
            "NOT_ENABLED_TO_VAULT_PAYMENT_SOURCE",
        ],
    ),
    // Our arithmetic and our use of the API.
    (
        Class::Refused,
        &[
            "AMOUNT_MISMATCH",
            "ITEM_TOTAL_MISMATCH",
            "ITEM_TOTAL_REQUIRED",
            "TAX_TOTAL_MISMATCH",
            "TAX_TOTAL_REQUIRED",
            "DECIMAL_PRECISION",
            "DECIMALS_NOT_SUPPORTED",
            "INVALID_CURRENCY_CODE",
            "CANNOT_BE_ZERO_OR_NEGATIVE",
            "CANNOT_BE_NEGATIVE",
            "MAX_VALUE_EXCEEDED",
            "MULTI_CURRENCY_ORDER",
            "UNSUPPORTED_INTENT",
            "ACTION_DOES_NOT_MATCH_INTENT",
            "DUPLICATE_REFERENCE_ID",
            "PAYPAL_REQUEST_ID_REQUIRED",
            "MALFORMED_REQUEST_JSON",
            "MAX_AUTHORIZATION_COUNT_EXCEEDED",
            "AUTHORIZATION_AMOUNT_EXCEEDED",
            "AUTHORIZATION_CURRENCY_MISMATCH",
            "AUTH_CURRENCY_MISMATCH",
            "MAX_CAPTURE_AMOUNT_EXCEEDED",
            "MAX_CAPTURE_COUNT_EXCEEDED",
            "AUTH_CAPTURE_CURRENCY_MISMATCH",
            "CANNOT_BE_VOIDED",
            "REAUTHORIZATION_NOT_SUPPORTED",
        ],
    ),
    // Refunds: the payer has no part in them, so none of it is a decline.
    (
        Class::Refused,
        &[
            "REFUND_AMOUNT_EXCEEDED",
            "REFUND_CAPTURE_CURRENCY_MISMATCH",
            "CURRENCY_MISMATCH",
            "REFUND_AMOUNT_TOO_LOW",
            "REFUND_NOT_ALLOWED",
            "REFUND_TIME_LIMIT_EXCEEDED",
            "REFUND_NOT_PERMITTED_DUE_TO_CHARGEBACK",
            "REFUND_IS_RESTRICTED",
            "PARTIAL_REFUND_NOT_ALLOWED",
            "MAX_NUMBER_OF_REFUNDS_EXCEEDED",
            "TRANSACTION_DISPUTED",
        ],
    ),
    (
        Class::Declined(Decline::MethodGone),
        &[
            "TOKEN_ID_NOT_FOUND",
            "AGREEMENT_ALREADY_CANCELLED",
            "BILLING_AGREEMENT_NOT_FOUND",
            "TOKEN_EXPIRED",
            "MISMATCHED_VAULT_ID_TO_PAYMENT_SOURCE",
        ],
    ),
    (
        Class::Declined(Decline::HoldGone),
        &["AUTHORIZATION_VOIDED", "AUTHORIZATION_EXPIRED", "ORDER_EXPIRED", "INVALID_RESOURCE_ID"],
    ),
    (
        Class::Declined(Decline::Final),
        &[
            "PAYER_CANNOT_PAY",
            "PAYER_ACCOUNT_RESTRICTED",
            "PAYER_ACCOUNT_LOCKED_OR_CLOSED",
            "TRANSACTION_REFUSED",
            "COMPLIANCE_VIOLATION",
            "TRANSACTION_LIMIT_EXCEEDED",
            "TRANSACTION_BLOCKED_BY_PAYEE",
            "PAYEE_BLOCKED_TRANSACTION",
            "PAYMENT_SOURCE_DECLINED_BY_PROCESSOR",
            "MAX_NUMBER_OF_PAYMENT_ATTEMPTS_EXCEEDED",
            "AUTHORIZATION_DENIED",
        ],
    ),
    (
        Class::Declined(Decline::PayerCanFix),
        &[
            "INSTRUMENT_DECLINED",
            "PAYER_ACTION_REQUIRED",
            "REDIRECT_PAYER_FOR_ALTERNATE_FUNDING",
            "ORDER_NOT_APPROVED",
        ],
    ),
];

/// How issues of the merchant's or our own making begin, the ones that PayPal adds later included:
/// a decline freezes a tab, so what is not the payer's doing must not look like one.
const REFUSED_BEGINNINGS: &[&str] = &[
    "PAYEE_",
    "NOT_ENABLED_",
    "PLATFORM_FEE",
    "INVALID_PLATFORM_FEES",
    "MERCHANT_INITIATED_",
    "INVALID_PARAMETER",
    "INVALID_STRING_",
    "INVALID_ARRAY_",
    "MISSING_REQUIRED_",
];

fn class_of(issue: &str, operation: Operation) -> Class {
    // The same word is used of orders, authorizations and vaulted methods.
    if operation == Operation::OrderChargeVaulted && issue == "INVALID_RESOURCE_ID" {
        return Class::Declined(Decline::MethodGone);
    }
    if let Some((class, _)) = ISSUES.iter().find(|(_, issues)| issues.contains(&issue)) {
        return *class;
    }
    if REFUSED_BEGINNINGS.iter().any(|beginning| issue.starts_with(beginning)) {
        return Class::Refused;
    }
    Class::Declined(Decline::Unlisted)
}

/// An error body, of any of PayPal's three shapes.
#[derive(Debug, Default, Deserialize)]
struct ErrorBody {
    name: Option<String>,
    message: Option<String>,
    debug_id: Option<String>,
    #[serde(default)]
    details: Vec<ErrorDetail>,
    /// OAuth's shape.
    error: Option<String>,
    error_description: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ErrorDetail {
    issue: Option<String>,
    description: Option<String>,
}

/// The name of an error body (`NOT_AUTHORIZED`, `invalid_token`), where it is one.
pub(crate) fn error_name(body: &[u8]) -> Option<String> {
    let body: ErrorBody = serde_json::from_slice(body).ok()?;
    body.name.or(body.error)
}

/// The debug id of an error body.
pub(crate) fn body_debug_id(body: &[u8]) -> Option<String> {
    serde_json::from_slice::<ErrorBody>(body).ok()?.debug_id
}

/// What an answer means. Pure: the table of `paypal.md` section 4.
///
/// `retry_after_seconds` is the header, where it was a number.
pub fn classify(
    operation: Operation,
    status: u16,
    body: &[u8],
    retry_after_seconds: Option<u64>,
) -> Outcome {
    match status {
        200..=299 => match Resource::parse(operation, body) {
            Some(resource) => of_resource(operation, resource),
            None => Outcome::lost(format!("status {status} with a body that cannot be read")),
        },
        400..=499 => of_refusal(operation, status, body, retry_after_seconds),
        _ => Outcome::lost(format!("status {status}")),
    }
}

/// What a readable 2xx answer means.
fn of_resource(operation: Operation, resource: Resource) -> Outcome {
    use Operation as Op;
    match (operation, &resource) {
        (Op::OrderChargeVaulted | Op::OrderCapture, Resource::Order(order)) => {
            let verdict = of_charge(order, operation);
            verdict.outcome(resource)
        }
        (Op::OrderAuthorize, Resource::Order(order)) => {
            let verdict = match order.authorizations.last() {
                Some(authorization) => of_authorization(authorization),
                None => of_unpaid_order(order, operation),
            };
            verdict.outcome(resource)
        }
        (Op::AuthorizationCapture, Resource::Capture(capture)) => {
            of_capture(capture).outcome(resource)
        }
        (Op::AuthorizationReauthorize, Resource::Authorization(authorization)) => {
            of_authorization(authorization).outcome(resource)
        }
        (Op::AuthorizationVoid, Resource::Authorization(authorization))
            if authorization.status != AuthorizationStatus::Voided =>
        {
            let why = format!("voided, but its status is {}", authorization.status);
            Verdict::Unclear(why).outcome(resource)
        }
        (Op::CaptureRefund, Resource::Refund(refund)) => of_refund(refund).outcome(resource),
        _ => Outcome::Done { resource },
    }
}

/// An outcome that still lacks its resource.
enum Verdict {
    Done,
    Pending(String),
    Declined(Decline, String),
    Refused(String),
    Unclear(String),
}

impl Verdict {
    fn outcome(self, resource: Resource) -> Outcome {
        match self {
            Self::Done => Outcome::Done { resource },
            Self::Pending(reason) => Outcome::Pending { reason, resource },
            Self::Declined(kind, issue) => Outcome::Declined {
                kind,
                description: String::new(),
                issue,
                resource: Some(resource),
            },
            Self::Refused(issue) => Outcome::Refused { issue, description: String::new() },
            Self::Unclear(why) => Outcome::Unknown { why, sent: true, resource: Some(resource) },
        }
    }
}

fn of_charge(order: &Order, operation: Operation) -> Verdict {
    match order.captures.first() {
        Some(capture) => of_capture(capture),
        None => of_unpaid_order(order, operation),
    }
}

/// An order that should hold a payment and shows none.
fn of_unpaid_order(order: &Order, operation: Operation) -> Verdict {
    match order.status {
        // Nobody is there to act on a vaulted charge: it is declined, and that order is never
        // captured later.
        OrderStatus::PayerActionRequired => {
            Verdict::Declined(Decline::PayerCanFix, "PAYER_ACTION_REQUIRED".to_owned())
        }
        OrderStatus::Voided => Verdict::Declined(Decline::HoldGone, "ORDER_VOIDED".to_owned()),
        ref status => Verdict::Unclear(format!("{operation} answered {status} without a payment")),
    }
}

fn of_capture(capture: &Capture) -> Verdict {
    let because = || capture.reason.clone().unwrap_or_else(|| capture.status.to_string());
    match capture.status {
        // Refunds come after the money: it was captured.
        CaptureStatus::Completed | CaptureStatus::PartiallyRefunded | CaptureStatus::Refunded => {
            Verdict::Done
        }
        CaptureStatus::Pending => Verdict::Pending(because()),
        CaptureStatus::Declined | CaptureStatus::Failed => {
            Verdict::Declined(Decline::Final, because())
        }
        CaptureStatus::Other(_) => Verdict::Unclear(format!("capture is {}", capture.status)),
    }
}

fn of_authorization(authorization: &Authorization) -> Verdict {
    let because =
        || authorization.reason.clone().unwrap_or_else(|| authorization.status.to_string());
    match authorization.status {
        AuthorizationStatus::Created
        | AuthorizationStatus::PartiallyCaptured
        | AuthorizationStatus::Captured => Verdict::Done,
        AuthorizationStatus::Pending => Verdict::Pending(because()),
        AuthorizationStatus::Denied => Verdict::Declined(Decline::Final, because()),
        AuthorizationStatus::Voided => Verdict::Declined(Decline::HoldGone, because()),
        AuthorizationStatus::Other(_) => {
            Verdict::Unclear(format!("authorization is {}", authorization.status))
        }
    }
}

fn of_refund(refund: &Refund) -> Verdict {
    let because = || refund.reason.clone().unwrap_or_else(|| refund.status.to_string());
    match refund.status {
        RefundStatus::Completed => Verdict::Done,
        RefundStatus::Pending => Verdict::Pending(because()),
        // The payer has no part in it.
        RefundStatus::Failed | RefundStatus::Cancelled => Verdict::Refused(because()),
        RefundStatus::Other(_) => Verdict::Unclear(format!("refund is {}", refund.status)),
    }
}

impl Capture {
    /// What a capture that was read back says about the call that should have made it.
    pub fn outcome(&self) -> Outcome {
        of_capture(self).outcome(Resource::Capture(Box::new(self.clone())))
    }
}

impl Refund {
    /// What a refund that was read back says about the call that should have made it.
    pub fn outcome(&self) -> Outcome {
        of_refund(self).outcome(Resource::Refund(Box::new(self.clone())))
    }
}

impl Authorization {
    /// What an authorization that was read back says about the call that should have made it.
    pub fn outcome(&self) -> Outcome {
        of_authorization(self).outcome(Resource::Authorization(Box::new(self.clone())))
    }
}

/// What a 4xx answer means.
fn of_refusal(
    operation: Operation,
    status: u16,
    body: &[u8],
    retry_after_seconds: Option<u64>,
) -> Outcome {
    let readable: Option<ErrorBody> = serde_json::from_slice(body).ok();
    let readable = readable.filter(|body| body.name.is_some() || body.error.is_some());
    let known = readable.is_some();
    let error = readable.unwrap_or_default();
    let (issue, description) = error.headline(status);
    let retry =
        |wait| Outcome::Retry { wait, after_seconds: retry_after_seconds, issue: issue.clone() };
    match status {
        429 => retry(Wait::RateLimited),
        409 if known => retry(Wait::InProgress),
        // Refused at the door. Whoever wrote the page, a read then tells nothing.
        401 | 403 | 405 | 406 | 413 | 415 if known || !operation.moves_money() => {
            Outcome::Refused { issue, description }
        }
        // Not PayPal's words: something on the way answered, perhaps a proxy that let the request
        // through and did not like the answer. What PayPal did is unknown.
        _ if !known => Outcome::lost(format!("status {status} with a body that cannot be read")),
        404 if operation == Operation::OrderChargeVaulted => {
            Outcome::Declined { kind: Decline::MethodGone, issue, description, resource: None }
        }
        404 => Outcome::NotFound { issue, description },
        422 => of_issues(operation, &error, retry_after_seconds),
        400 => match error.strongest(operation) {
            // Some answers come as 400 in one API and as 422 in another.
            (Class::AlreadyDone, issue, description) => Outcome::AlreadyDone { issue, description },
            _ => Outcome::Refused { issue, description },
        },
        408 => Outcome::lost("status 408"),
        _ => Outcome::Refused { issue, description },
    }
}

fn of_issues(operation: Operation, error: &ErrorBody, retry_after_seconds: Option<u64>) -> Outcome {
    let (class, issue, description) = error.strongest(operation);
    match class {
        Class::AlreadyDone => Outcome::AlreadyDone { issue, description },
        Class::Refused => Outcome::Refused { issue, description },
        Class::Wait(wait) => Outcome::Retry { wait, after_seconds: retry_after_seconds, issue },
        Class::Declined(kind) => Outcome::Declined { kind, issue, description, resource: None },
    }
}

impl ErrorBody {
    /// Each detail's issue and description; the body's own name where there are none.
    fn issues(&self) -> Vec<(String, String)> {
        let issues: Vec<_> = self
            .details
            .iter()
            .filter_map(|detail| {
                let issue = detail.issue.clone()?;
                Some((issue, detail.description.clone().unwrap_or_default()))
            })
            .collect();
        if !issues.is_empty() {
            return issues;
        }
        let name = self.name.clone().or_else(|| self.error.clone()).unwrap_or_default();
        let words = self.message.clone().or_else(|| self.error_description.clone());
        vec![(name, words.unwrap_or_default())]
    }

    /// The first issue; the status where the body says nothing.
    fn headline(&self, status: u16) -> (String, String) {
        match self.issues().into_iter().next() {
            Some((issue, description)) if !issue.is_empty() => (issue, description),
            _ => (format!("HTTP_{status}"), String::new()),
        }
    }

    /// The issue that decides when there are several.
    fn strongest(&self, operation: Operation) -> (Class, String, String) {
        self.issues()
            .into_iter()
            .map(|(issue, description)| (class_of(&issue, operation), issue, description))
            .min_by_key(|(class, _, _)| *class)
            .unwrap_or((Class::Declined(Decline::Unlisted), String::new(), String::new()))
    }
}

/// `Retry-After` as seconds, at most a day; dates are not understood and count as absent.
pub(crate) fn retry_after(header: Option<&str>) -> Option<u64> {
    let seconds: u64 = header?.trim().parse().ok()?;
    Some(seconds.min(Duration::from_secs(24 * 3600).as_secs()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use serde_json::Value;

    use super::*;

    /// Issue codes of an OpenAPI file: objects whose properties hold `issue.enum`.
    fn collect(value: &Value, into: &mut BTreeSet<String>) {
        if let Some(codes) = value.pointer("/properties/issue/enum").and_then(Value::as_array) {
            into.extend(codes.iter().filter_map(Value::as_str).map(str::to_owned));
        }
        match value {
            Value::Object(fields) => fields.values().for_each(|field| collect(field, into)),
            Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
            _ => {}
        }
    }

    #[test]
    fn every_issue_in_the_table_is_one_that_paypal_publishes() {
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let shared = std::env::var_os("EARNEST_SHARED").map(PathBuf::from).or_else(|| {
            let siblings = here.ancestors().map(|up| up.join("shared"));
            siblings.into_iter().find(|path| path.join("paypal-openapi").is_dir())
        });
        let Some(shared) = shared else {
            println!("skipped: no ../shared with PayPal's OpenAPI files");
            return;
        };
        let mut published = BTreeSet::new();
        for file in ["checkout_orders_v2.json", "payments_payment_v2.json"] {
            let text = std::fs::read_to_string(shared.join("paypal-openapi").join(file)).unwrap();
            collect(&serde_json::from_str(&text).unwrap(), &mut published);
        }
        // Newer than the files.
        published.insert("REAUTHORIZATION_TOO_SOON".to_owned());
        let unknown: Vec<_> = ISSUES
            .iter()
            .flat_map(|(_, issues)| issues.iter())
            .filter(|issue| !published.contains(**issue))
            .collect();
        assert!(unknown.is_empty(), "misspelt or invented: {unknown:?}");
        // Each stands in one row only, or the first would silently win.
        let all: Vec<_> = ISSUES.iter().flat_map(|(_, issues)| issues.iter()).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }
}
