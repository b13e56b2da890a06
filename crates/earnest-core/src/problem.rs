//! The one table of errors: what HTTP, MCP and the command line answer when the answer is no.
//!
//! Clients switch on [`Code`]; texts may change. A [`Refusal`] is the business saying no: safe to
//! show to an agent, with the numbers behind it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::money::{AmountError, Micros};

macro_rules! codes {
    ($($status:literal { $($name:ident = $text:literal, $title:literal;)* })*) => {
        /// A stable error code. The table is the design's section 11.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Code {
            $($(#[doc = $title] #[serde(rename = $text)] $name,)*)*
        }

        impl Code {
            /// Every code, in the table's order.
            pub const ALL: &'static [Self] = &[$($(Self::$name,)*)*];

            /// The code as clients read it.
            pub const fn as_str(self) -> &'static str {
                match self { $($(Self::$name => $text,)*)* }
            }

            /// One sentence for people; the same for every use of the code.
            pub const fn title(self) -> &'static str {
                match self { $($(Self::$name => $title,)*)* }
            }

            /// The HTTP status.
            pub const fn status(self) -> u16 {
                match self { $($(Self::$name => $status,)*)* }
            }
        }
    };
}

codes! {
    400 {
        AmountInvalid = "amount_invalid", "The amount is not a plain decimal with at most six places";
        AmountNotPositive = "amount_not_positive", "The amount must be above zero";
        AmountOutOfRange = "amount_out_of_range", "The amount is above the allowed maximum";
        CurrencyUnsupported = "currency_unsupported", "The currency is not supported";
        IdempotencyKeyRequired = "idempotency_key_required", "This route needs an idempotency key";
        NameInvalid = "name_invalid", "The name is not allowed";
        RequestMalformed = "request_malformed", "The request could not be read";
        SchemaUnsupported = "schema_unsupported", "The schema cannot be published";
        UrlInvalid = "url_invalid", "The URL is not allowed";
    }
    401 {
        Unauthenticated = "unauthenticated", "The credential is missing, unknown or revoked";
        WebhookSignatureInvalid = "webhook_signature_invalid", "The webhook's signature does not verify";
    }
    404 {
        NotFound = "not_found", "There is no such thing here";
    }
    402 {
        PaymentRequired = "payment_required", "This resource has a price";
        QuoteExpired = "quote_expired", "The quote has expired";
        VoucherExpired = "voucher_expired", "The voucher has expired";
        VoucherInvalid = "voucher_invalid", "The voucher does not verify";
        VoucherScopeMismatch = "voucher_scope_mismatch", "The voucher is for something else";
        InsufficientCredit = "insufficient_credit", "There is not enough prepaid credit";
    }
    403 {
        PolicyDenied = "policy_denied", "The owner's policy refuses this purchase";
        ApprovalDenied = "approval_denied", "The owner refused this purchase";
        TargetForbidden = "target_forbidden", "That address may not be called";
    }
    405 { MethodNotAllowed = "method_not_allowed", "The method is not allowed here"; }
    406 { NotAcceptable = "not_acceptable", "None of the accepted media types can be produced"; }
    408 { RequestTimeout = "request_timeout", "The request took too long to arrive"; }
    413 { BodyTooLarge = "body_too_large", "The body is too large"; }
    415 { MediaTypeUnsupported = "media_type_unsupported", "The media type is not supported"; }
    409 {
        VoucherAlreadyUsed = "voucher_already_used", "The voucher was used before";
        IdempotencyInFlight = "idempotency_in_flight", "The first request with this key is still running";
        StateConflict = "state_conflict", "That is not possible from the present state";
        OrderNotOurs = "order_not_ours", "The PayPal order belongs to something else";
        ApprovalAlreadyDecided = "approval_already_decided", "The approval was answered before";
        ApprovalStale = "approval_stale", "The approval is for something else";
        CapturePending = "capture_pending", "A capture is still pending";
        AccountInDebt = "account_in_debt", "The account is in debt";
    }
    410 {
        ApprovalExpired = "approval_expired", "The approval has expired";
        ApprovalConsumed = "approval_consumed", "The approval was used before";
    }
    412 { VersionConflict = "version_conflict", "It was changed by somebody else in between"; }
    428 { PreconditionRequired = "precondition_required", "This change needs an If-Match header"; }
    422 {
        IdempotencyConflict = "idempotency_conflict", "The key was used for other arguments";
        ValidationFailed = "validation_failed", "A value is not acceptable";
        CaptureExceedsAuthorization = "capture_exceeds_authorization", "The capture is above the authorization";
        RefundExceedsCaptured = "refund_exceeds_captured", "The refund is above what was captured";
        PaypalDeclined = "paypal_declined", "PayPal declined the payment";
    }
    429 { RateLimited = "rate_limited", "Too many requests"; }
    500 {
        Internal = "internal", "Something broke";
        LedgerRejected = "ledger_rejected", "The ledger refused the entry; nothing was booked";
    }
    502 {
        UpstreamFailed = "upstream_failed", "The upstream failed; nothing was charged";
        UpstreamUnreachable = "upstream_unreachable", "The upstream cannot be reached";
        UpstreamRedirect = "upstream_redirect", "The upstream answered with a redirect";
        UsageInvalid = "usage_invalid", "The upstream's usage report cannot be used";
    }
    503 {
        PaymentOutcomeUnknown = "payment_outcome_unknown", "The outcome of the payment is not known yet";
        VoucherCheckUnavailable = "voucher_check_unavailable", "Vouchers cannot be checked right now";
        PolicyUnavailable = "policy_unavailable", "The policy cannot be read right now";
        PaypalAuthFailed = "paypal_auth_failed", "PayPal refuses our credentials";
        Overloaded = "overloaded", "The queue is full";
        DatabaseUnavailable = "database_unavailable", "The database cannot be reached";
        Quarantined = "quarantined", "This installation was restored and is quarantined";
    }
    504 { UpstreamTimeout = "upstream_timeout", "The upstream took too long; nothing was charged"; }
}

impl Code {
    /// Whether the same request may succeed later without being changed.
    pub const fn retryable(self) -> bool {
        matches!(self.status(), 408 | 429 | 502..=504) || matches!(self, Self::IdempotencyInFlight)
    }

    /// Reads a code as clients see it.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }

    /// The exit code of the command line: 4 auth, 5 denied, 6 approval needed, 7 conflict,
    /// 8 upstream, 11 outcome unknown; 3 not found, 2 usage, 1 otherwise.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::PaymentOutcomeUnknown => 11,
            Self::NotFound => 3,
            Self::PolicyDenied
            | Self::ApprovalDenied
            | Self::InsufficientCredit
            | Self::PaypalDeclined => 5,
            _ => match self.status() {
                400 | 413 | 415 | 422 => 2,
                401 => 4,
                402 | 403 => 5,
                409 | 410 | 412 | 428 => 7,
                429 | 502..=504 => 8,
                _ => 1,
            },
        }
    }
}

macro_rules! local_codes {
    ($($name:ident = $text:literal, $title:literal;)*) => {
        /// A code that no Earnest answers: what its own clients, the SDK's buyer, the command line and
        /// the MCP tools, say of what never got there or came back broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum LocalCode {
            $(#[doc = $title] $name,)*
        }

        impl LocalCode {
            /// Every code, in the table's order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code as programs read it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// One sentence for people; the same for every use of the code.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

local_codes! {
    Usage = "usage", "The command was not given what it needs";
    Declined = "declined", "The person who was asked said no";
    Interrupted = "interrupted", "The command was interrupted";
    FileUnusable = "file_unusable", "A file cannot be read or written";
    OutputFailed = "output_failed", "The answer could not be written";
    SetupFailed = "setup_failed", "The client could not be set up";
    StartFailed = "start_failed", "The server could not be started";
    ListenerFailed = "listener_failed", "The address cannot be listened on";
    NoncesUnusable = "nonces_unusable", "What was sold before cannot be read or written";
    EarnestUnreachable = "earnest_unreachable", "No Earnest answered";
    NotEarnest = "not_earnest", "What answered is no Earnest";
    SellerUnreachable = "seller_unreachable", "The seller did not answer";
    PaypalUnreachable = "paypal_unreachable", "PayPal did not answer";
    WebhookRefused = "webhook_refused", "PayPal did not register the webhook";
    InsecureResource = "insecure_resource", "What is to be bought is not behind TLS";
    QuoteMismatch = "quote_mismatch", "The quote is not for what was asked";
    PriceAboveMax = "price_above_max", "The price is above what may be paid";
    ApprovalRequired = "approval_required", "The owner has to answer first";
    RedirectRefused = "redirect_refused", "The seller redirects what was paid for";
    AnswerLost = "answer_lost", "It was paid for, and no answer came";
    AnswerBroken = "answer_broken", "The answer broke off";
    AnswerUnreadable = "answer_unreadable", "The answer is not what was expected";
    ReceiptInvalid = "receipt_invalid", "The receipt does not verify";
    VerificationFailed = "verification_failed", "The receipt does not verify with those keys";
    BooksUnbalanced = "books_unbalanced", "The books do not add up";
    BreachFound = "breach_found", "The simulation found what must not be";
    Exists = "exists", "Something is there already";
    Damaged = "damaged", "The backup is not what was written";
    InUse = "in_use", "The data is in use";
    OtherMode = "other_mode", "It belongs to another mode";
    KeyFile = "key_file_unusable", "The key that seals keys cannot be used";
}

impl fmt::Display for LocalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The reason beside `policy_denied`, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No policy row.
    PolicyMissing,
    /// A policy that cannot be read, or names an unknown field.
    PolicyInvalid,
    /// The owner paused everything.
    OwnerPaused,
    /// The owner is frozen (debt, write-off).
    OwnerFrozen,
    /// The owner paused this agent.
    AgentPaused,
    /// A settlement was declined or consent revoked.
    TabFrozen,
    /// The tab takes no more purchases.
    TabClosed,
    /// The seller is not on the list, or the quote names somebody else's origin.
    MerchantNotAllowed,
    /// The listing or tool is not on the list.
    ToolNotAllowed,
    /// The arguments do not fit the schema in the policy.
    ArgumentsNotAllowed,
    /// Above what the caller said it would pay.
    PriceAboveMax,
    /// Above the cap for one purchase.
    PerCallCap,
    /// Too many purchases in a short time.
    RateLimit,
    /// Above the cap of the session.
    SessionCap,
    /// Above the cap of the day.
    DailyCap,
    /// Above what one seller may be paid in a day, week or month.
    SellerBudget,
    /// A constraint of the policy is not met, or not known.
    Constraint,
    /// Above what the tab may owe.
    TabLimit,
    /// The bounded grant is used up.
    GrantExhausted,
    /// No way to pay is on file.
    FundingMissing,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 20] = [
        Self::PolicyMissing,
        Self::PolicyInvalid,
        Self::OwnerPaused,
        Self::OwnerFrozen,
        Self::AgentPaused,
        Self::TabFrozen,
        Self::TabClosed,
        Self::MerchantNotAllowed,
        Self::ToolNotAllowed,
        Self::ArgumentsNotAllowed,
        Self::PriceAboveMax,
        Self::PerCallCap,
        Self::RateLimit,
        Self::SessionCap,
        Self::DailyCap,
        Self::SellerBudget,
        Self::Constraint,
        Self::TabLimit,
        Self::GrantExhausted,
        Self::FundingMissing,
    ];

    /// The reason as clients read it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PolicyMissing => "policy_missing",
            Self::PolicyInvalid => "policy_invalid",
            Self::OwnerPaused => "owner_paused",
            Self::OwnerFrozen => "owner_frozen",
            Self::AgentPaused => "agent_paused",
            Self::TabFrozen => "tab_frozen",
            Self::TabClosed => "tab_closed",
            Self::MerchantNotAllowed => "merchant_not_allowed",
            Self::ToolNotAllowed => "tool_not_allowed",
            Self::ArgumentsNotAllowed => "arguments_not_allowed",
            Self::PriceAboveMax => "price_above_max",
            Self::PerCallCap => "per_call_cap",
            Self::RateLimit => "rate_limit",
            Self::SessionCap => "session_cap",
            Self::DailyCap => "daily_cap",
            Self::SellerBudget => "seller_budget",
            Self::Constraint => "constraint",
            Self::TabLimit => "tab_limit",
            Self::GrantExhausted => "grant_exhausted",
            Self::FundingMissing => "funding_missing",
        }
    }
}

/// The business says no: a code, perhaps a reason, the numbers behind it, the next step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What clients switch on.
    pub code: Code,
    /// Beside `policy_denied`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// One sentence about this case, without secrets.
    pub detail: String,
    /// What to do next, if anything helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Seconds after which a repeat may do better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<i64>,
    /// The numbers: limit, used, asked; amounts in micro-units under names that say so.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<String, Value>,
}

impl Refusal {
    /// A refusal with one sentence about the case.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            reason: None,
            detail: detail.into(),
            next: None,
            retry_after_seconds: None,
            numbers: BTreeMap::new(),
        }
    }

    /// `policy_denied` for a reason.
    pub fn denied(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason: Some(reason), ..Self::new(Code::PolicyDenied, detail) }
    }

    /// The same refusal with an amount beside it.
    #[must_use]
    pub fn amount(mut self, name: &str, amount: Micros) -> Self {
        self.numbers.insert(format!("{name}_micros"), amount.get().into());
        self
    }

    /// The same refusal with another figure or name beside it.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.numbers.insert(name.to_owned(), value.into());
        self
    }

    /// The same refusal with the next step.
    #[must_use]
    pub fn next(mut self, step: impl Into<String>) -> Self {
        self.next = Some(step.into());
        self
    }

    /// The same refusal with the time after which a repeat may do better.
    #[must_use]
    pub const fn retry_after(mut self, seconds: i64) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Some(reason) => write!(f, "{}/{}: {}", self.code, reason.as_str(), self.detail),
            None => write!(f, "{}: {}", self.code, self.detail),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<AmountError> for Refusal {
    fn from(error: AmountError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_code_reads_back_and_stands_once() {
        let names = Code::ALL.iter().map(|code| code.as_str());
        let names: BTreeSet<_> = names.chain(LocalCode::ALL.iter().map(|c| c.as_str())).collect();
        assert_eq!(names.len(), Code::ALL.len() + LocalCode::ALL.len());
        for code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), Some(*code));
            let json = serde_json::to_value(code).unwrap();
            assert_eq!(json, code.as_str());
            assert!(code.exit_code() != 0 && !code.title().is_empty());
        }
    }

    #[test]
    fn every_reason_is_on_the_list_once() {
        let names: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        // A reason that is added does not compile until it has its words, which stand here.
        let source = include_str!("problem.rs");
        let words = source.split("impl Reason {").nth(1).unwrap().split("\n}\n").next().unwrap();
        assert_eq!(words.matches(" => \"").count(), Reason::ALL.len());
    }

    #[test]
    fn what_helps_a_client_follows_from_the_code() {
        let check = |code: Code, status: u16, retryable: bool, exit: u8| {
            let found = (code.status(), code.retryable(), code.exit_code());
            assert_eq!(found, (status, retryable, exit), "{code}");
        };
        check(Code::RequestMalformed, 400, false, 2);
        check(Code::Unauthenticated, 401, false, 4);
        check(Code::QuoteExpired, 402, false, 5);
        check(Code::PolicyDenied, 403, false, 5);
        check(Code::ApprovalDenied, 403, false, 5);
        check(Code::NotFound, 404, false, 3);
        check(Code::IdempotencyInFlight, 409, true, 7);
        check(Code::IdempotencyConflict, 422, false, 2);
        check(Code::ApprovalExpired, 410, false, 7);
        check(Code::PaypalDeclined, 422, false, 5);
        check(Code::RateLimited, 429, true, 8);
        check(Code::LedgerRejected, 500, false, 1);
        check(Code::UpstreamFailed, 502, true, 8);
        check(Code::PaymentOutcomeUnknown, 503, true, 11);
        check(Code::Overloaded, 503, true, 8);
    }
}
