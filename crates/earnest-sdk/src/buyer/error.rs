//! Why something was not bought, and whether money may have moved.

use earnest_core::authorize::ApprovalNeeded;
use earnest_core::id::PurchaseId;
use earnest_core::money::Micros;
use earnest_core::problem::{Code, LocalCode, Refusal};

use crate::problem::Problem;

/// Whether the thing was paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payment {
    /// Nothing is charged.
    No,
    /// It is on the tab. Do not buy it again.
    Yes,
    /// A voucher went out and the answer was lost. Repeat with the same `request_id`, never with
    /// another.
    Unknown,
}

/// Why a purchase gave no answer. [`BuyError::paid`] says whether money may have moved,
/// [`BuyError::code`] is what programs switch on.
#[derive(Debug, thiserror::Error)]
pub enum BuyError {
    /// The request itself cannot be bought: its URL, method, headers or id. Nothing was sent.
    #[error("{0}")]
    Request(Box<Refusal>),
    /// The request, without a voucher, got no answer.
    #[error("no answer from the seller: {0}")]
    Send(reqwest::Error),
    /// The resource wants money over plain `http`.
    #[error("`{url}` asks for payment over plain http; nothing was paid")]
    InsecureResource {
        /// What was asked for.
        url: String,
    },
    /// The quote cannot be read, or is for something else than what was asked for.
    #[error("the seller's quote does not fit the request: {0}")]
    Quote(Box<Refusal>),
    /// The price is above the maximum. Earnest was not asked.
    #[error("the price {price} is above the maximum of {max}")]
    PriceAboveMax {
        /// What the seller asks, or its ceiling.
        price: Micros,
        /// What the caller would pay.
        max: Micros,
    },
    /// The owner has to answer first. Nothing is held; repeat with the same id.
    #[error("the owner has to approve this purchase at {}: {}", .0.approval_url, .0.detail)]
    ApprovalNeeded(Box<ApprovalNeeded>),
    /// The owner, or the owner's policy, says no; the problem has the reason and the numbers.
    #[error("{problem}")]
    Denied {
        /// The id it was asked under.
        request_id: String,
        /// What Earnest answered.
        problem: Box<Problem>,
    },
    /// Earnest does not know yet what became of an earlier attempt under this id.
    #[error("{problem}")]
    OutcomeUnknown {
        /// Repeat with this id.
        request_id: String,
        /// What Earnest answered.
        problem: Box<Problem>,
    },
    /// Earnest refused for another reason.
    #[error("{problem}")]
    Refused {
        /// The id it was asked under.
        request_id: String,
        /// What Earnest answered.
        problem: Box<Problem>,
    },
    /// Nobody answered for Earnest, or nothing readable. A hold may exist, but no voucher went
    /// out.
    #[error("no answer from Earnest: {why}")]
    EarnestUnreachable {
        /// Repeat with this id.
        request_id: String,
        /// What went wrong.
        why: String,
    },
    /// The voucher went to the seller and no answer came back.
    #[error("paid: unknown; the answer to purchase {purchase} was lost: {source}")]
    AnswerLost {
        /// Repeat with this id.
        request_id: String,
        /// What was to be bought.
        purchase: PurchaseId,
        /// What went wrong.
        source: reqwest::Error,
    },
    /// The voucher could not even be sent.
    #[error("the seller could not be reached with the voucher of purchase {purchase}: {source}")]
    NotSent {
        /// Repeat with this id.
        request_id: String,
        /// What was to be bought.
        purchase: PurchaseId,
        /// What went wrong.
        source: reqwest::Error,
    },
    /// The seller answered the paid request with a redirect. The voucher did not follow it.
    #[error("the seller redirects the paid request to `{location}`; the voucher did not follow")]
    RedirectRefused {
        /// What was to be bought.
        purchase: PurchaseId,
        /// Where it pointed to.
        location: String,
    },
    /// The voucher of this id was used before: what was bought has been served, or is being.
    #[error("this was bought before under the same request_id; it is not charged again")]
    AlreadyUsed {
        /// The id it was bought under.
        request_id: String,
        /// What was bought.
        purchase: Option<PurchaseId>,
    },
    /// The seller does not accept the voucher, also after a fresh quote.
    #[error("the seller refuses the payment: {problem}")]
    PaymentRefused {
        /// What was to be bought.
        purchase: PurchaseId,
        /// What the seller answered.
        problem: Box<Problem>,
    },
    /// The body broke off.
    #[error("the body broke off: {source}")]
    Broken {
        /// Unknown when it was to be paid for.
        payment: Payment,
        /// Repeat with this id.
        request_id: String,
        /// What went wrong.
        source: reqwest::Error,
    },
    /// The body arrived whole but is not what the caller expected.
    #[error("the body cannot be read: {source}")]
    Unreadable {
        /// Yes when it was paid for.
        payment: Payment,
        /// The id it was bought under.
        request_id: String,
        /// What went wrong.
        source: serde_json::Error,
    },
    /// The answer could not be passed on.
    #[error("the answer could not be written: {source}")]
    Output {
        /// Unknown when it was to be paid for.
        payment: Payment,
        /// The id it was bought under.
        request_id: String,
        /// What went wrong.
        source: std::io::Error,
    },
}

impl BuyError {
    pub(super) fn request(refusal: Refusal) -> Self {
        Self::Request(Box::new(refusal))
    }

    pub(super) fn quote(refusal: Refusal) -> Self {
        Self::Quote(Box::new(refusal))
    }

    /// Whether money may have moved.
    pub const fn paid(&self) -> Payment {
        match self {
            Self::Broken { payment, .. }
            | Self::Unreadable { payment, .. }
            | Self::Output { payment, .. } => *payment,
            Self::AnswerLost { .. } | Self::OutcomeUnknown { .. } | Self::AlreadyUsed { .. } => {
                Payment::Unknown
            }
            // Only a 2xx commits: a seller that answered otherwise reports the voucher as failed.
            _ => Payment::No,
        }
    }

    /// What programs switch on: a code of the error table, or one of
    /// [`LocalCode`]'s.
    pub fn code(&self) -> &str {
        match self {
            Self::Request(refusal) => refusal.code.as_str(),
            Self::Send(_) | Self::NotSent { .. } => LocalCode::SellerUnreachable.as_str(),
            Self::InsecureResource { .. } => LocalCode::InsecureResource.as_str(),
            Self::Quote(_) => LocalCode::QuoteMismatch.as_str(),
            Self::PriceAboveMax { .. } => LocalCode::PriceAboveMax.as_str(),
            Self::ApprovalNeeded(_) => LocalCode::ApprovalRequired.as_str(),
            Self::Denied { problem, .. }
            | Self::OutcomeUnknown { problem, .. }
            | Self::Refused { problem, .. } => &problem.code,
            Self::PaymentRefused { problem, .. } => &problem.code,
            Self::EarnestUnreachable { .. } => LocalCode::EarnestUnreachable.as_str(),
            Self::AnswerLost { .. } => LocalCode::AnswerLost.as_str(),
            Self::RedirectRefused { .. } => LocalCode::RedirectRefused.as_str(),
            Self::AlreadyUsed { .. } => Code::VoucherAlreadyUsed.as_str(),
            Self::Broken { .. } => LocalCode::AnswerBroken.as_str(),
            Self::Unreadable { .. } => LocalCode::AnswerUnreadable.as_str(),
            Self::Output { .. } => LocalCode::OutputFailed.as_str(),
        }
    }

    /// The purchase, where there is one.
    pub const fn purchase(&self) -> Option<PurchaseId> {
        match self {
            Self::AnswerLost { purchase, .. }
            | Self::NotSent { purchase, .. }
            | Self::RedirectRefused { purchase, .. }
            | Self::PaymentRefused { purchase, .. } => Some(*purchase),
            Self::AlreadyUsed { purchase, .. } => *purchase,
            Self::ApprovalNeeded(waiting) => Some(waiting.purchase),
            _ => None,
        }
    }

    /// The problem document behind it, where somebody sent one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Denied { problem, .. }
            | Self::OutcomeUnknown { problem, .. }
            | Self::Refused { problem, .. }
            | Self::PaymentRefused { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// The exit code of the command line: 2 usage, 5 denied, 6 approval needed, 7 conflict,
    /// 8 upstream, 11 outcome unknown, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Request(_) => 2,
            Self::ApprovalNeeded(_) => 6,
            Self::InsecureResource { .. }
            | Self::Quote(_)
            | Self::PriceAboveMax { .. }
            | Self::RedirectRefused { .. }
            | Self::PaymentRefused { .. } => 5,
            Self::AlreadyUsed { .. } => 7,
            Self::Send(_) | Self::NotSent { .. } | Self::EarnestUnreachable { .. } => 8,
            Self::AnswerLost { .. } | Self::OutcomeUnknown { .. } => 11,
            Self::Broken { payment, .. } => match payment {
                Payment::Unknown => 11,
                Payment::No | Payment::Yes => 8,
            },
            Self::Denied { problem, .. } | Self::Refused { problem, .. } => {
                problem.known_code().map_or(1, Code::exit_code)
            }
            Self::Unreadable { .. } | Self::Output { .. } => 1,
        }
    }
}
