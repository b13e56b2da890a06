//! What the tools give: flat objects with a `status`, and for people (and clients that show nothing
//! else) one plain sentence with the amount and the next step.

use earnest_core::money::Micros;
use rmcp::model::{CallToolResult, ContentBlock, Resource};
use schemars::JsonSchema;
use serde::Serialize;

// The names of the variants say what they mean; a description at each would turn the plain `enum`
// of the schema into a list of alternatives.

/// How a `paid_fetch` stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum FetchStatus {
    Paid,
    ApprovalRequired,
    Denied,
    InProgress,
    FailedNotCharged,
    OutcomeUnknown,
}

/// What a `paid_fetch` gives.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Fetched {
    /// paid: it was bought, and delivered says whether the answer is here (a free answer costs 0).
    /// approval_required: the owner has
    /// to answer at approval_url first. denied: the owner's limits or your max_price say no.
    /// in_progress: ask again with the same request_id. failed_not_charged: not delivered, nothing
    /// is owed. outcome_unknown: ask again with the same request_id, never with another.
    pub(super) status: FetchStatus,
    /// The id it was asked under.
    pub(super) request_id: String,
    /// The price in millionths of a dollar; the ceiling where up_to is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) amount_micros: Option<i64>,
    /// The currency of the price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) currency: Option<String>,
    /// Whether the price is a ceiling: what was used is billed, at most this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) up_to: Option<bool>,
    /// The purchase, pur_…
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) purchase: Option<String>,
    /// Beside paid: whether the seller's answer stands in this result. False where it was bought
    /// under this request_id before and no copy is left: a seller delivers once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) delivered: Option<bool>,
    /// The HTTP status of the seller's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) http_status: Option<u16>,
    /// The media type of the seller's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content_type: Option<String>,
    /// The seller's answer, where it is text of at most 64 kB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body: Option<String>,
    /// The seller's answer in base64, where it is not text and at most 64 kB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body_base64: Option<String>,
    /// Where a larger answer is read, with resources/read; kept for 15 minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body_uri: Option<String>,
    /// SHA-256 of the answer, in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body_sha256: Option<String>,
    /// The size of the answer in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body_bytes: Option<u64>,
    /// The question put to the owner, apr_…
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) approval_id: Option<String>,
    /// Where the owner answers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) approval_url: Option<String>,
    /// When the question expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<String>,
    /// How many seconds to wait before asking again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_s: Option<i64>,
    /// Why not: a stable code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    /// Beside policy_denied: which limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// Why not, in a sentence with the numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<String>,
    /// The sentence.
    #[serde(skip)]
    pub(super) text: String,
}

impl Fetched {
    pub(super) fn new(status: FetchStatus, request_id: &str, text: String) -> Self {
        Self {
            status,
            request_id: request_id.to_owned(),
            amount_micros: None,
            currency: None,
            up_to: None,
            purchase: None,
            delivered: None,
            http_status: None,
            content_type: None,
            body: None,
            body_base64: None,
            body_uri: None,
            body_sha256: None,
            body_bytes: None,
            approval_id: None,
            approval_url: None,
            expires_at: None,
            retry_after_s: None,
            code: None,
            reason: None,
            detail: None,
            text,
        }
    }

    /// Still under way when its call ended.
    pub(super) fn in_progress(request_id: &str) -> Self {
        let text =
            "Still under way: call paid_fetch again with the same request_id and arguments to \
                    get the answer."
                .to_owned();
        let fetched = Self::new(FetchStatus::InProgress, request_id, text);
        Self { retry_after_s: Some(1), ..fetched }
    }

    pub(super) fn price(mut self, amount: Micros) -> Self {
        self.amount_micros = Some(amount.get());
        self.currency = Some("USD".to_owned());
        self
    }

    pub(super) fn why(mut self, code: &str, reason: Option<&str>, detail: &str) -> Self {
        self.code = Some(code.to_owned());
        self.reason = reason.map(str::to_owned);
        self.detail = Some(detail.to_owned());
        self
    }
}

/// What a `quote` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum QuoteStatus {
    Priced,
    Free,
    Failed,
}

/// What a `quote` gives.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct Quoted {
    /// priced: this is what it costs. free: it was served without payment; fetch it with paid_fetch.
    /// failed: no price could be had, which does not mean that it is free.
    pub(super) status: QuoteStatus,
    /// The price in millionths of a dollar; the ceiling where up_to is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) amount_micros: Option<i64>,
    /// The currency of the price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) currency: Option<String>,
    /// Whether the price is a ceiling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) up_to: Option<bool>,
    /// Who is paid, sel_…
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seller: Option<String>,
    /// What the seller calls the thing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) listing: Option<String>,
    /// Until when the seller keeps to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<String>,
    /// The HTTP status of an answer that named no price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) http_status: Option<u16>,
    /// How many seconds to wait before asking again, where that may help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_s: Option<i64>,
    /// Why there is no price: a stable code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    /// Why there is no price, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<String>,
    /// The sentence.
    #[serde(skip)]
    pub(super) text: String,
}

impl Quoted {
    pub(super) const fn new(status: QuoteStatus, text: String) -> Self {
        Self {
            status,
            amount_micros: None,
            currency: None,
            up_to: None,
            seller: None,
            listing: None,
            expires_at: None,
            http_status: None,
            retry_after_s: None,
            code: None,
            detail: None,
            text,
        }
    }

    /// No price.
    pub(super) fn failed(code: &str, detail: &str) -> Self {
        let (code, why) = (Some(code.to_owned()), Some(detail.to_owned()));
        let text = format!("There is no price: {detail}.");
        Self { code, detail: why, ..Self::new(QuoteStatus::Failed, text) }
    }
}

/// What a `tab_status` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum TabState {
    Open,
    NoOpenTab,
    Failed,
}

/// What a `tab_status` gives.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct TabStatus {
    /// open: the owner has a tab that is being bought on. no_open_tab: the next purchase opens one.
    /// failed: it could not be read.
    pub(super) status: TabState,
    /// The open tab, tab_…
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tab: Option<String>,
    /// The currency of every amount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) currency: Option<String>,
    /// Bought on the open tab and not settled yet, in millionths of a dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) owed_micros: Option<i64>,
    /// Held for purchases under way, in millionths of a dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held_micros: Option<i64>,
    /// Settled on the open tab so far, in millionths of a dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) captured_micros: Option<i64>,
    /// The request_ids of your own purchases that wait for the owner, among your latest 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waiting_request_ids: Option<Vec<String>>,
    /// The approvals they wait for, in the same order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waiting_approval_ids: Option<Vec<String>>,
    /// The request_ids of your own purchases that are under way, among your latest 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held_request_ids: Option<Vec<String>>,
    /// How many seconds to wait before asking again, where that may help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_s: Option<i64>,
    /// Why it could not be read: a stable code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    /// Why it could not be read, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<String>,
    /// The sentence.
    #[serde(skip)]
    pub(super) text: String,
}

impl TabStatus {
    pub(super) const fn new(status: TabState, text: String) -> Self {
        Self {
            status,
            tab: None,
            currency: None,
            owed_micros: None,
            held_micros: None,
            captured_micros: None,
            waiting_request_ids: None,
            waiting_approval_ids: None,
            held_request_ids: None,
            retry_after_s: None,
            code: None,
            detail: None,
            text,
        }
    }

    /// It could not be read.
    pub(super) fn failed(code: &str, detail: &str) -> Self {
        let (code, why) = (Some(code.to_owned()), Some(detail.to_owned()));
        let text = format!("The tab could not be read: {detail}.");
        Self { code, detail: why, ..Self::new(TabState::Failed, text) }
    }
}

/// What an `approval_status` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum AnswerState {
    Waiting,
    Approved,
    Denied,
    Consumed,
    Expired,
    Failed,
}

/// What an `approval_status` gives.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ApprovalStatus {
    /// waiting: not answered yet. approved: call paid_fetch again with the same request_id.
    /// denied: do not buy it. consumed: it was bought already. expired: nobody answered in time.
    /// failed: it could not be read.
    pub(super) status: AnswerState,
    /// The question, apr_…
    pub(super) approval_id: String,
    /// The price in millionths of a dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) amount_micros: Option<i64>,
    /// The currency of the price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) currency: Option<String>,
    /// What would be bought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) url: Option<String>,
    /// When the question, and an unused yes, stop counting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<String>,
    /// How many seconds to wait before asking again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_s: Option<i64>,
    /// Why it waits, or could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<String>,
    /// Why it could not be read: a stable code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    /// The sentence.
    #[serde(skip)]
    pub(super) text: String,
}

impl ApprovalStatus {
    pub(super) fn new(status: AnswerState, approval_id: &str, text: String) -> Self {
        Self {
            status,
            approval_id: approval_id.to_owned(),
            amount_micros: None,
            currency: None,
            url: None,
            expires_at: None,
            retry_after_s: None,
            detail: None,
            code: None,
            text,
        }
    }

    /// It could not be read.
    pub(super) fn failed(approval_id: &str, code: &str, detail: &str) -> Self {
        let (code, why) = (Some(code.to_owned()), Some(detail.to_owned()));
        let text = format!("The approval could not be read: {detail}.");
        Self { code, detail: why, ..Self::new(AnswerState::Failed, approval_id, text) }
    }
}

/// What a `verify_receipt` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ReceiptState {
    Valid,
    Invalid,
    Pending,
    None,
    Failed,
}

/// What a `verify_receipt` gives.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ReceiptStatus {
    /// valid: signed by this Earnest, and its figures add up. invalid: it does not count. pending:
    /// the purchase is not settled yet; ask again later. none: nothing is captured for the purchase,
    /// so no receipt comes. failed: there is no such receipt, or it could not be read.
    pub(super) status: ReceiptState,
    /// The receipt, rcp_…
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) receipt_id: Option<String>,
    /// Who signed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) issuer: Option<String>,
    /// simulated, sandbox or live: whether real money moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mode: Option<String>,
    /// The tab that was settled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tab: Option<String>,
    /// What PayPal captured, in millionths of a dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) captured_micros: Option<i64>,
    /// The currency of every amount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) currency: Option<String>,
    /// PayPal's name for the capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) paypal_capture: Option<String>,
    /// The purchases on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) purchases: Option<Vec<String>>,
    /// How many seconds to wait before asking again, where that may help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_s: Option<i64>,
    /// Why it does not count, or could not be read: a stable code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    /// Why it does not count, or could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<String>,
    /// The sentence.
    #[serde(skip)]
    pub(super) text: String,
}

impl ReceiptStatus {
    pub(super) const fn new(status: ReceiptState, text: String) -> Self {
        Self {
            status,
            receipt_id: None,
            issuer: None,
            mode: None,
            tab: None,
            captured_micros: None,
            currency: None,
            paypal_capture: None,
            purchases: None,
            retry_after_s: None,
            code: None,
            detail: None,
            text,
        }
    }

    /// No receipt to rely on.
    pub(super) fn no(status: ReceiptState, code: &str, detail: &str) -> Self {
        let (code, why) = (Some(code.to_owned()), Some(detail.to_owned()));
        let text = format!("There is no receipt to rely on: {detail}.");
        Self { code, detail: why, ..Self::new(status, text) }
    }

    /// It could not be had.
    pub(super) fn failed(code: &str, detail: &str) -> Self {
        Self::no(ReceiptState::Failed, code, detail)
    }
}

/// A result: the object, its sentence, whether a model should see it as an error to act on, and
/// what stands beside the sentence for clients that read no objects.
pub(super) trait Shown: Serialize {
    fn text(&self) -> &str;
    fn is_error(&self) -> bool;
    fn beside(&self) -> Option<ContentBlock> {
        None
    }
}

/// As the protocol has it.
pub(super) fn show(result: &impl Shown) -> Result<CallToolResult, rmcp::ErrorData> {
    let value = serde_json::to_value(result)
        .map_err(|why| rmcp::ErrorData::internal_error(why.to_string(), None))?;
    let mut shown = match result.is_error() {
        true => CallToolResult::structured_error(value),
        false => CallToolResult::structured(value),
    };
    shown.content = vec![ContentBlock::text(result.text())];
    shown.content.extend(result.beside());
    Ok(shown)
}

impl Shown for Fetched {
    fn text(&self) -> &str {
        &self.text
    }
    fn is_error(&self) -> bool {
        use FetchStatus::{Denied, FailedNotCharged, OutcomeUnknown};
        matches!(self.status, Denied | FailedNotCharged | OutcomeUnknown)
    }
    fn beside(&self) -> Option<ContentBlock> {
        if let Some(uri) = &self.body_uri {
            let mut link = Resource::new(uri.clone(), "body").with_title("The seller's answer");
            link.mime_type.clone_from(&self.content_type);
            if let Some(size) = self.body_bytes {
                link = link.with_size(size);
            }
            return Some(ContentBlock::resource_link(link));
        }
        self.body.clone().filter(|body| !body.is_empty()).map(ContentBlock::text)
    }
}

impl Shown for Quoted {
    fn text(&self) -> &str {
        &self.text
    }
    fn is_error(&self) -> bool {
        self.status == QuoteStatus::Failed
    }
}

impl Shown for TabStatus {
    fn text(&self) -> &str {
        &self.text
    }
    fn is_error(&self) -> bool {
        self.status == TabState::Failed
    }
}

impl Shown for ApprovalStatus {
    fn text(&self) -> &str {
        &self.text
    }
    fn is_error(&self) -> bool {
        self.status == AnswerState::Failed
    }
}

impl Shown for ReceiptStatus {
    fn text(&self) -> &str {
        &self.text
    }
    fn is_error(&self) -> bool {
        self.status == ReceiptState::Failed
    }
}
