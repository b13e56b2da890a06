//! `paid_fetch` and `quote`: the steps of buying, and what each way it can end means to an agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use earnest_core::authorize::ApprovalNeeded;
use earnest_core::id::PurchaseId;
use earnest_core::money::Micros;
use earnest_core::problem::{Code, LocalCode, Refusal};
use earnest_core::quote::{Price, Quote, body_digest};
use earnest_sdk::{Answer, Asked as Priced, BuyError, BuyRequest, PaidFor, Payment};
use futures_util::StreamExt as _;
use http::{HeaderName, Method, StatusCode, header};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, timeout_at};

use super::INLINE_BYTES;
use super::door::{Caller, Door};
use super::jobs::{Bounds, JobKey, NotBegun};
use super::read::money;
use super::result::{AnswerState, FetchStatus, Fetched, QuoteStatus, Quoted};
use super::tools::{AskQuote, PaidFetch};
use crate::api::view::{ApprovalView, PurchaseView};
use crate::outbound;

/// The headers that an agent may set. What names the connection, the hop or another host is not
/// among them, nor is anything that passes for a proxy's word.
static HEADERS: [HeaderName; 14] = [
    header::ACCEPT,
    header::ACCEPT_LANGUAGE,
    header::AUTHORIZATION,
    header::CONTENT_LANGUAGE,
    header::CONTENT_TYPE,
    header::IF_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_NONE_MATCH,
    header::RANGE,
    header::USER_AGENT,
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("prefer"),
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-request-id"),
];

/// A request to a seller, as the two tools name it.
struct Asked<'a> {
    url: &'a str,
    method: Option<&'a str>,
    headers: Option<&'a BTreeMap<String, String>>,
    body: Option<&'a str>,
}

impl Asked<'_> {
    fn method(&self) -> Result<Method, Refusal> {
        let usual = if self.body.is_some() { "POST" } else { "GET" };
        let method = self.method.unwrap_or(usual);
        method.parse().map_err(|_| {
            Refusal::new(Code::RequestMalformed, format!("`{method}` is not a method"))
        })
    }

    /// Puts the request together; nothing is sent.
    fn request(&self, door: &Door, caller: &Caller) -> Result<BuyRequest, Refusal> {
        let mut request = door.buyer(caller, self.url)?.request(self.method()?, self.url);
        let mut typed = false;
        for (name, value) in self.headers.into_iter().flatten() {
            let allowed =
                HEADERS.iter().find(|allowed| name.eq_ignore_ascii_case(allowed.as_str()));
            let Some(allowed) = allowed else {
                let why = format!("the header `{name}` may not be set here");
                return Err(Refusal::new(Code::RequestMalformed, why));
            };
            typed |= *allowed == header::CONTENT_TYPE;
            request = request.header(allowed.as_str(), value);
        }
        if let Some(body) = self.body {
            if !typed {
                let json = serde_json::from_str::<serde::de::IgnoredAny>(body).is_ok();
                let kind = if json { "application/json" } else { "text/plain; charset=utf-8" };
                request = request.header("content-type", kind);
            }
            request = request.body(body.to_owned());
        }
        Ok(request)
    }
}

impl PaidFetch {
    fn asked(&self) -> Asked<'_> {
        Asked {
            url: &self.url,
            method: self.method.as_deref(),
            headers: self.headers.as_ref(),
            body: self.body.as_deref(),
        }
    }

    /// What is bought: the same request gives the same bytes. How much it may cost and how long to
    /// wait are not part of it.
    fn fingerprint(&self) -> [u8; 32] {
        let parts = (&self.url, &self.method, &self.headers, &self.body);
        // Strings and maps of strings can always be written.
        Sha256::digest(serde_json::to_vec(&parts).unwrap_or_default()).into()
    }
}

/// A purchase as an agent asks for it, and how far it has waited.
pub(super) struct Purchase {
    door: Arc<Door>,
    caller: Caller,
    args: PaidFetch,
    key: JobKey,
    until: Instant,
}

impl Purchase {
    pub(super) fn new(door: &Arc<Door>, caller: &Caller, args: PaidFetch, until: Instant) -> Self {
        let key = (Arc::clone(&caller.agent), args.request_id.clone());
        Self { door: Arc::clone(door), caller: caller.clone(), args, key, until }
    }

    /// Buys, or joins the purchase of that id that is under way. `true` beside a question to the
    /// owner that the agent was not told of before: that is said at once, since the agent has to
    /// pass it on. One it knows is waited for.
    pub(super) async fn run(&self) -> (Arc<Fetched>, bool) {
        loop {
            let fetched = self.once().await;
            let Some(approval) = &fetched.approval_id else { return (fetched, false) };
            if fetched.status != FetchStatus::ApprovalRequired {
                return (fetched, false);
            }
            if self.door.jobs.tell(&self.key, approval) {
                return (fetched, true);
            }
            let answered = self.door.answered(&self.caller, approval, self.until);
            // The question as it was asked is still true of one that cannot be read now.
            match timeout_at(self.until, answered).await {
                Ok(Ok(seen)) if seen.state != AnswerState::Waiting => {}
                _ => return (fetched, false),
            }
        }
    }

    /// The same purchase, with longer to wait.
    pub(super) fn waiting(mut self, wait: Duration) -> Self {
        let now = Instant::now();
        self.until = now.checked_add(wait).unwrap_or(now);
        self
    }

    /// How long there is left to wait.
    pub(super) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    async fn once(&self) -> Arc<Fetched> {
        let id = &self.args.request_id;
        let start = || buy(Arc::clone(&self.door), self.caller.clone(), self.args.clone());
        let (door, print) = (&self.door, self.args.fingerprint());
        let bounds = Bounds {
            owner: Arc::clone(&self.caller.owner),
            agent: door.calls_per_agent,
            owners: door.purchases_per_owner,
        };
        let full = |most: usize, whose: &str| {
            let why = format!("{most} purchases of {whose} are under way, as many as may be");
            Arc::new(busy(id, &why))
        };
        let waiting = match door.jobs.join(&self.key, print, &bounds, start) {
            Ok(waiting) => waiting,
            Err(NotBegun::Conflict) => {
                let why = "another request is being bought under this request_id";
                let text =
                    format!("Nothing was charged: {why}; use a new request_id for this one.");
                let fetched = Fetched::new(FetchStatus::FailedNotCharged, id, text);
                return Arc::new(fetched.why(Code::IdempotencyConflict.as_str(), None, why));
            }
            Err(NotBegun::TooMany) => return full(bounds.agent, "this agent"),
            Err(NotBegun::OwnerBusy) => return full(bounds.owners, "this owner's agents"),
            Err(NotBegun::AllBusy) => return full(door.purchases, "all agents"),
        };
        match timeout_at(self.until, waiting.ended()).await {
            Ok(fetched) => {
                self.door.jobs.said(&self.key, &fetched);
                fetched
            }
            Err(_) => Arc::new(Fetched::in_progress(id)),
        }
    }
}

/// No place for another purchase.
fn busy(id: &str, why: &str) -> Fetched {
    let text = format!("Nothing was charged: {why}; try again in a few seconds.");
    let fetched = Fetched::new(FetchStatus::FailedNotCharged, id, text);
    Fetched { retry_after_s: Some(5), ..fetched.why(Code::RateLimited.as_str(), None, why) }
}

impl Door {
    /// A purchase as it stands; none where that cannot be read.
    async fn purchase(&self, caller: &Caller, id: PurchaseId) -> Option<PurchaseView> {
        self.get(caller, &format!("/v1/purchases/{id}")).await.ok()
    }
}

/// Buys one thing, from the first request to what came of it.
async fn buy(door: Arc<Door>, caller: Caller, args: PaidFetch) -> Fetched {
    let id = args.request_id.clone();
    let request = args.asked().request(&door, &caller).and_then(|request| {
        let most = args.max_price.price(Micros::MAX)?;
        Ok((request.request_id(&id).max_price(&most.to_string()), most))
    });
    let (request, most) = match request {
        Ok(request) => request,
        Err(refusal) => return refused(&id, &refusal),
    };
    match request.send().await {
        Ok(answer) => deliver(&door, &caller, &id, answer).await,
        Err(error) => failed(&door, &caller, &id, most, error).await,
    }
}

/// A request that is not fit to be sent.
fn refused(id: &str, refusal: &Refusal) -> Fetched {
    let text = format!("Nothing was sent or charged: {}.", refusal.detail);
    let fetched = Fetched::new(FetchStatus::FailedNotCharged, id, text);
    fetched.why(refusal.code.as_str(), None, &refusal.detail)
}

/// The seller answered: reads the answer to its end.
async fn deliver(door: &Door, caller: &Caller, id: &str, answer: Answer) -> Fetched {
    let (status, paid, paid_for) = (answer.status(), answer.paid(), answer.paid_for());
    let kind = answer.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let bytes = match read(answer, door.answer_bytes).await {
        Ok(bytes) => bytes,
        Err(why) if paid == Payment::No => {
            let text = format!("Nothing was charged: {why}.");
            let fetched = Fetched::new(FetchStatus::FailedNotCharged, id, text);
            return fetched.why(Code::UpstreamFailed.as_str(), None, &why);
        }
        Err(why) => {
            let purchase = paid_for.map(|paid_for| paid_for.purchase);
            return unknown(door, caller, id, purchase, LocalCode::AnswerBroken.as_str(), &why)
                .await;
        }
    };
    if let (Some(paid_for), false) = (paid_for, status.is_success())
        && let Some(before) = bought_before(door, caller, id, paid_for.purchase).await
    {
        return Fetched { http_status: Some(status.as_u16()), ..before };
    }
    let mut fetched = match (paid_for, status.is_success()) {
        (_, false) => {
            let why = format!("the seller answered {status}");
            let text = format!("Nothing was charged: {why}; read its answer before trying again.");
            let fetched = Fetched::new(FetchStatus::FailedNotCharged, id, text);
            fetched.why(Code::UpstreamFailed.as_str(), None, &why)
        }
        (None, true) => {
            let text = "It was free: nothing was charged.".to_owned();
            Fetched::new(FetchStatus::Paid, id, text).price(Micros::ZERO)
        }
        (Some(paid_for), true) => bought(door, caller, id, paid_for).await,
    };
    fetched.delivered = (fetched.status == FetchStatus::Paid).then_some(true);
    fetched.purchase = paid_for.map(|paid_for| paid_for.purchase.to_string());
    fetched.http_status = Some(status.as_u16());
    fetched.content_type = kind;
    place(door, caller, &mut fetched, bytes);
    fetched
}

async fn bought(door: &Door, caller: &Caller, id: &str, paid_for: PaidFor) -> Fetched {
    let PaidFor { purchase, held } = paid_for;
    // Where that cannot be read, what was held is a ceiling at least.
    let up_to = door.purchase(caller, purchase).await.map(|view| view.up_to);
    let at_most = if up_to.unwrap_or(true) { "at most " } else { "" };
    let text = format!("Paid {at_most}{held} for it; nothing more to do.");
    Fetched { up_to, ..Fetched::new(FetchStatus::Paid, id, text).price(held) }
}

/// The whole answer, if it is not too large.
async fn read(answer: Answer, most: usize) -> Result<Bytes, String> {
    let mut body = Vec::new();
    let mut stream = answer.into_stream();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| "the seller's answer broke off".to_owned())?;
        if body.len().saturating_add(chunk.len()) > most {
            return Err(format!("the seller's answer is larger than {most} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.into())
}

/// Puts an answer where the agent finds it.
fn place(door: &Door, caller: &Caller, fetched: &mut Fetched, bytes: Bytes) {
    fetched.body_sha256 = Some(body_digest(&bytes));
    fetched.body_bytes = u64::try_from(bytes.len()).ok();
    if bytes.len() > INLINE_BYTES {
        let kind = fetched.content_type.clone();
        fetched.body_uri = Some(door.bodies.keep(&caller.agent, bytes, kind));
        return;
    }
    match String::from_utf8(bytes.into()) {
        Ok(text) => fetched.body = Some(text),
        Err(binary) => fetched.body_base64 = Some(STANDARD.encode(binary.as_bytes())),
    }
}

/// Nothing was delivered.
async fn failed(door: &Door, caller: &Caller, id: &str, most: Micros, error: BuyError) -> Fetched {
    let code = error.code().to_owned();
    let reason = error.problem().and_then(|problem| problem.reason.clone());
    let detail = detail_of(&error);
    let why = |status, text| Fetched::new(status, id, text).why(&code, reason.as_deref(), &detail);
    let purchase = error.purchase();
    // That a voucher did not arrive or was refused says nothing of one before it.
    if let (Some(purchase), Payment::No) = (purchase, error.paid())
        && let Some(before) = bought_before(door, caller, id, purchase).await
    {
        return before.why(&code, reason.as_deref(), &detail);
    }
    let mut fetched = match error {
        BuyError::ApprovalNeeded(waiting) => return asked(door, caller, id, &waiting).await,
        BuyError::Denied { problem, .. } => {
            let next = problem.next.map(|next| format!("; {next}")).unwrap_or_default();
            why(FetchStatus::Denied, format!("Denied, nothing was charged: {detail}{next}."))
        }
        BuyError::PriceAboveMax { price, .. } => {
            let text = format!(
                "Not bought: it costs {price}, above your max_price of {most}; to accept that, call \
                 again with the same request_id and a higher max_price."
            );
            why(FetchStatus::Denied, text).price(price)
        }
        error if error.paid() != Payment::No => {
            return unknown(door, caller, id, purchase, &code, &detail).await;
        }
        BuyError::Send(source) => {
            let refusal = Refusal::from(outbound::failed(&source));
            return refused(id, &refusal);
        }
        BuyError::EarnestUnreachable { .. } => {
            let text = format!(
                "Nothing was bought: {detail}; try again with the same request_id in a moment."
            );
            why(FetchStatus::FailedNotCharged, text)
        }
        _ => why(FetchStatus::FailedNotCharged, format!("Nothing was charged: {detail}.")),
    };
    fetched.purchase = purchase.map(|purchase| purchase.to_string());
    fetched
}

/// Without the code in front, which stands beside it.
fn detail_of(error: &BuyError) -> String {
    match error.problem() {
        Some(problem) if !problem.detail.is_empty() => problem.detail.clone(),
        _ => error.to_string(),
    }
}

/// The owner has to answer first.
async fn asked(door: &Door, caller: &Caller, id: &str, waiting: &ApprovalNeeded) -> Fetched {
    let approval = waiting.approval_id.to_string();
    let view = door.get::<ApprovalView>(caller, &format!("/v1/approvals/{approval}")).await.ok();
    let amount = view.and_then(|view| money(view.amount_micros).ok());
    let of = amount.map(|amount| format!(" of {amount}")).unwrap_or_default();
    let text = format!(
        "Nothing is charged yet: the owner has to approve this purchase{of} at {}; show them that \
         address, then call paid_fetch again with the same request_id.",
        waiting.approval_url
    );
    let fetched = Fetched::new(FetchStatus::ApprovalRequired, id, text);
    let mut fetched = match amount {
        Some(amount) => fetched.price(amount),
        None => fetched,
    };
    fetched.purchase = Some(waiting.purchase.to_string());
    fetched.approval_id = Some(approval);
    fetched.approval_url = Some(waiting.approval_url.clone());
    fetched.expires_at = Some(waiting.expires_at.to_string());
    fetched.retry_after_s = Some(waiting.retry_after_s);
    fetched.detail = Some(waiting.detail.clone());
    fetched
}

/// The purchase was made under this id before, and paid for: what a seller says now of a voucher of it
/// changes nothing. None where it was not, or that cannot be read.
async fn bought_before(
    door: &Door,
    caller: &Caller,
    id: &str,
    purchase: PurchaseId,
) -> Option<Fetched> {
    billed(id, &door.purchase(caller, purchase).await?)
}

/// A purchase that is paid for, and whose answer is not here.
fn billed(id: &str, view: &PurchaseView) -> Option<Fetched> {
    let billed = view.billed_micros.filter(|_| view.status == "billed")?;
    let billed = money(billed).ok()?;
    let text = format!(
        "It was bought under this request_id for {billed} and is not charged again; the seller \
         delivers it once, and this result holds no copy."
    );
    let fetched = Fetched::new(FetchStatus::Paid, id, text).price(billed);
    Some(Fetched { delivered: Some(false), purchase: Some(view.id.clone()), ..fetched })
}

/// A voucher went out and the answer is not here. Earnest may know already what became of it; what
/// it does not know stays unknown.
async fn unknown(
    door: &Door,
    caller: &Caller,
    id: &str,
    purchase: Option<PurchaseId>,
    code: &str,
    detail: &str,
) -> Fetched {
    let view = match purchase {
        Some(purchase) => door.purchase(caller, purchase).await,
        None => None,
    };
    if let Some(before) = view.as_ref().and_then(|view| billed(id, view)) {
        return before.why(code, None, detail);
    }
    let mut fetched = match view.as_ref().map(|view| view.status.as_str()) {
        Some("released" | "expired" | "unbilled") => {
            let text = format!("Nothing was charged: {detail}; use a new request_id to buy it.");
            Fetched::new(FetchStatus::FailedNotCharged, id, text)
        }
        _ => {
            let text =
                "It is not known yet whether this was delivered and charged: call again with \
                        the same request_id, never with another."
                    .to_owned();
            let mut fetched = Fetched::new(FetchStatus::OutcomeUnknown, id, text);
            fetched.retry_after_s = Some(5);
            fetched
        }
    };
    fetched.purchase = purchase.map(|purchase| purchase.to_string());
    fetched.why(code, None, detail)
}

/// Asks for a price.
pub(super) async fn quote(door: &Door, caller: &Caller, args: &AskQuote) -> Quoted {
    let asked = Asked {
        url: &args.url,
        method: args.method.as_deref(),
        headers: args.headers.as_ref(),
        body: args.body.as_deref(),
    };
    // A price is asked for with what has no effect where there turns out to be none.
    if asked
        .method()
        .is_ok_and(|method| ![Method::GET, Method::HEAD, Method::POST].contains(&method))
    {
        let why = "quote asks with GET, HEAD or POST";
        return Quoted::failed(Code::MethodNotAllowed.as_str(), why);
    }
    let request = match asked.request(door, caller) {
        Ok(request) => request,
        Err(refusal) => return Quoted::failed(refusal.code.as_str(), &refusal.detail),
    };
    match request.quote().await {
        Ok(Priced::Priced(quote)) => priced(&quote),
        Ok(Priced::Unpriced(status)) => unpriced(status),
        Err(BuyError::Send(source)) => {
            let refusal = Refusal::from(outbound::failed(&source));
            Quoted::failed(refusal.code.as_str(), &refusal.detail)
        }
        Err(error) => Quoted::failed(error.code(), &detail_of(&error)),
    }
}

fn priced(quote: &Quote) -> Quoted {
    let (up_to, most) = (matches!(quote.price, Price::UpTo(_)), quote.price.most());
    let at_most = if up_to { "at most " } else { "" };
    let text = format!(
        "It costs {at_most}{most}; to buy it, call paid_fetch with a max_price of at least {most} and \
         a request_id of your own."
    );
    Quoted {
        amount_micros: Some(most.get()),
        currency: Some(quote.currency.to_string()),
        up_to: Some(up_to),
        seller: Some(quote.seller.to_string()),
        listing: Some(quote.listing.clone()),
        expires_at: Some(quote.expires_at.to_string()),
        ..Quoted::new(QuoteStatus::Priced, text)
    }
}

/// An answer without a price: only what was served is free.
fn unpriced(status: StatusCode) -> Quoted {
    let http_status = Some(status.as_u16());
    if status.is_success() {
        let text = "It is free; fetch it with paid_fetch.".to_owned();
        let free = Quoted::new(QuoteStatus::Free, text);
        return Quoted { amount_micros: Some(0), http_status, ..free };
    }
    let why = match status {
        StatusCode::PAYMENT_REQUIRED => {
            "the seller answered 402 without a price that can be paid here".to_owned()
        }
        status => format!("the seller answered {status}, and named no price"),
    };
    Quoted { http_status, ..Quoted::failed(Code::UpstreamFailed.as_str(), &why) }
}
