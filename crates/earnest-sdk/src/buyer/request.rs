//! One thing to buy, under one id.

use std::time::Duration;

use bytes::Bytes;
use earnest_core::authorize::{Authorized, is_request_id};
use earnest_core::id::PurchaseId;
use earnest_core::money::Micros;
use earnest_core::problem::{Code, Refusal};
use earnest_core::quote::{Quote, QuoteBody, Resource, body_digest, canonical_url, is_loopback};
use earnest_core::time::Timestamp;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use http::{Method, StatusCode};
use url::Url;

use super::{Answer, Asked, BuyError, Buyer, Decision, OnApproval, PaidFor, Patience};
use crate::problem::Problem;
use crate::seller::read_price;
use crate::setup::{read_answer, seed};
use crate::wire::{SCHEME, is_tab, quote_in};

/// The longest body of a 402 that is read, and for how long, before its connection is given up.
const DRAIN_BYTES: u64 = 64 * 1024;
const DRAIN_WITHIN: Duration = Duration::from_secs(1);

/// A request that may be paid for. Sending it again is sending the *same* thing again: its
/// `request_id` stays, so it is charged at most once.
#[derive(Clone)]
#[must_use]
pub struct BuyRequest {
    buyer: Buyer,
    method: Method,
    url: String,
    headers: HeaderMap,
    body: Bytes,
    request_id: Result<String, Refusal>,
    max_price: Result<Micros, Refusal>,
    on_approval: OnApproval,
    /// The first thing wrong with what the caller set.
    wrong: Option<Refusal>,
}

impl std::fmt::Debug for BuyRequest {
    /// Without the values of headers and the body: credentials of the caller's stand there.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuyRequest")
            .field("method", &self.method)
            .field("url", &self.url)
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("request_id", &self.request_id)
            .field("max_price", &self.max_price)
            .finish_non_exhaustive()
    }
}

/// A request that was found fit to be sent.
struct Fit<'a> {
    request: &'a BuyRequest,
    url: Url,
    resource: Resource,
    request_id: &'a str,
    max_price: Micros,
}

impl BuyRequest {
    pub(super) fn new(buyer: Buyer, method: Method, url: &str) -> Self {
        let generated = seed().map(|seed| format!("req_{:032x}", random_bits(seed)));
        let no_randomness = |_| Refusal::new(Code::Internal, "no randomness for a request_id");
        let (max_price, on_approval) = (buyer.0.max_price, buyer.0.on_approval);
        Self {
            buyer,
            method,
            url: url.to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            request_id: generated.map_err(no_randomness),
            max_price: Ok(max_price),
            on_approval,
            wrong: None,
        }
    }

    /// The caller's name for the one thing it wants: 1 to 128 visible ASCII characters. Reuse it
    /// for every retry of that thing, also after a restart, and never for another.
    pub fn request_id(mut self, id: &str) -> Self {
        self.request_id = Ok(id.to_owned());
        self
    }

    /// The id this request goes by.
    pub fn id(&self) -> Option<&str> {
        self.request_id.as_deref().ok()
    }

    /// The most this one may cost, such as `"$0.10"`.
    pub fn max_price(mut self, price: &str) -> Self {
        let read = read_price(price).map_err(|error| {
            Refusal::new(Code::AmountInvalid, format!("max_price is not an amount: {error}"))
        });
        self.max_price = read;
        self
    }

    /// What to do when the owner has to answer first.
    pub const fn on_approval(mut self, on_approval: OnApproval) -> Self {
        self.on_approval = on_approval;
        self
    }

    /// Adds a header. `Authorization: Tab` is refused: vouchers are this client's business.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        match (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            (Ok(name), Ok(value)) => {
                if name == AUTHORIZATION && is_tab(value.as_bytes()) {
                    self.is_wrong("a voucher must not be set by hand");
                }
                self.headers.append(name, value);
            }
            _ => self.is_wrong(&format!("`{name}` is not a header that can be sent")),
        }
        self
    }

    /// The body. It is part of what is bought.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// A JSON body.
    pub fn json(mut self, body: &impl serde::Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(bytes) => self.body = bytes.into(),
            Err(error) => self.is_wrong(&format!("the body cannot be written as JSON: {error}")),
        }
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self
    }

    fn is_wrong(&mut self, why: &str) {
        self.wrong.get_or_insert_with(|| Refusal::new(Code::RequestMalformed, why));
    }

    /// Asks for the price and pays nothing. What names no price was answered: [`Asked::is_free`]
    /// says whether it was served.
    ///
    /// # Errors
    /// When there was no answer, or its quote does not fit the request.
    pub async fn quote(&self) -> Result<Asked, BuyError> {
        let fit = self.fit()?;
        let response = fit.transmit(None).await.map_err(BuyError::Send)?;
        let Some(quote) = fit.challenge_of(&response) else {
            return Ok(Asked::Unpriced(response.status()));
        };
        Ok(Asked::Priced(Box::new(fit.read_quote(quote?)?)))
    }

    /// Sends the request, and pays for it if it must be paid.
    ///
    /// # Errors
    /// [`BuyError`]; whatever it is, sending the same request again never charges twice.
    pub async fn send(&self) -> Result<Answer, BuyError> {
        let fit = self.fit()?;
        let patience = Patience::new(self.on_approval);
        let mut fresh_quotes = 0_u8;
        loop {
            let response = fit.transmit(None).await.map_err(BuyError::Send)?;
            let Some(quote) = fit.challenge_of(&response) else {
                return Ok(Answer::new(response, fit.request_id.to_owned(), None));
            };
            let quote = fit.acceptable(quote?)?;
            drain(response).await;
            match fit.authorize(quote).await? {
                Decision::Granted(voucher) => return fit.redeem(voucher).await,
                Decision::Waits(waiting) => {
                    if !patience.wait(waiting.retry_after_s).await {
                        return Err(BuyError::ApprovalNeeded(Box::new(waiting)));
                    }
                }
                Decision::QuoteExpired(problem) => {
                    fresh_quotes = fresh_quotes.saturating_add(1);
                    if fresh_quotes > 1 {
                        let request_id = fit.request_id.to_owned();
                        return Err(BuyError::Refused { request_id, problem });
                    }
                }
            }
        }
    }

    fn fit(&self) -> Result<Fit<'_>, BuyError> {
        if let Some(refusal) = &self.wrong {
            return Err(BuyError::request(refusal.clone()));
        }
        let refuse = BuyError::request;
        let url = canonical_url(&self.url).map_err(refuse)?;
        let resource =
            Resource::new(self.method.as_str(), url.as_str(), &self.body).map_err(refuse)?;
        let request_id = self.request_id.as_deref().map_err(|r| refuse(r.clone()))?;
        if !is_request_id(request_id) {
            let why = "a request_id has 1 to 128 visible ASCII characters";
            return Err(refuse(Refusal::new(Code::RequestMalformed, why)));
        }
        let max_price = self.max_price.clone().map_err(refuse)?;
        Ok(Fit { request: self, url, resource, request_id, max_price })
    }
}

impl Fit<'_> {
    async fn transmit(&self, voucher: Option<&str>) -> reqwest::Result<reqwest::Response> {
        let request = self.request;
        let mut headers = request.headers.clone();
        if let Some(voucher) = voucher {
            // A voucher that cannot stand in a header cannot be accepted either: the seller's 402
            // says so.
            if let Ok(mut value) = HeaderValue::from_str(&format!("{SCHEME} {voucher}")) {
                value.set_sensitive(true);
                headers.append(AUTHORIZATION, value);
            }
        }
        let client = &request.buyer.0.client;
        let mut builder = client.request(request.method.clone(), self.url.clone()).headers(headers);
        if !request.body.is_empty() {
            builder = builder.body(request.body.clone());
        }
        builder.send().await
    }

    /// The quote of a 402 that is a challenge. A 402 without one is an answer like any other.
    fn challenge_of(&self, response: &reqwest::Response) -> Option<Result<QuoteBody, BuyError>> {
        if response.status() != StatusCode::PAYMENT_REQUIRED {
            return None;
        }
        Some(quote_in(response.headers())?.map_err(BuyError::quote))
    }

    /// INVARIANT: a_client_pays_only_for_the_request_it_made
    fn read_quote(&self, body: QuoteBody) -> Result<Quote, BuyError> {
        let quote = body.read(Micros::MAX).map_err(BuyError::quote)?;
        let asked = &self.resource;
        let mismatch = |what: &str| {
            let detail = format!("the quote is for another {what}");
            Err(BuyError::quote(Refusal::new(Code::VoucherScopeMismatch, detail)))
        };
        if quote.request.origin() != asked.origin() {
            // `localhost` and `127.0.0.1` are two origins; a voucher counts at one.
            let detail = format!(
                "the quote is for {}, and {} was asked: use the address that the seller names",
                quote.request.origin(),
                asked.origin()
            );
            return Err(BuyError::quote(Refusal::new(Code::VoucherScopeMismatch, detail)));
        }
        if quote.request.url != asked.url {
            return mismatch("URL");
        }
        if quote.request.method != asked.method {
            return mismatch("method");
        }
        if quote.request.body_sha256 != body_digest(&self.request.body) {
            return mismatch("body");
        }
        Ok(quote)
    }

    /// The quote again, if it may be put to Earnest at all.
    fn acceptable(&self, body: QuoteBody) -> Result<QuoteBody, BuyError> {
        let loopback = self.request.buyer.0.loopback_http && is_loopback(&self.url);
        if self.url.scheme() != "https" && !loopback {
            return Err(BuyError::InsecureResource { url: self.url.to_string() });
        }
        let quote = self.read_quote(body.clone())?;
        if quote.price.most() > self.max_price {
            return Err(BuyError::PriceAboveMax { price: quote.price.most(), max: self.max_price });
        }
        if quote.expires_at <= Timestamp::now() {
            let detail = "the seller's quote has expired already";
            return Err(BuyError::quote(Refusal::new(Code::QuoteExpired, detail)));
        }
        Ok(body)
    }

    async fn authorize(&self, quote: QuoteBody) -> Result<Decision, BuyError> {
        self.request.buyer.authorize(quote, self.max_price, self.request_id).await
    }

    /// Repeats the request with a voucher. A seller may ask once for another, with a fresh quote;
    /// it is fetched under the same id, so it is the same purchase.
    async fn redeem(&self, first: Authorized) -> Result<Answer, BuyError> {
        let response = self.present(&first).await?;
        let Some(quote) = self.challenge_of(&response) else {
            return self.take(response, &first).await;
        };
        let problem = problem_of(response).await;
        let purchase = first.purchase;
        let refused = BuyError::PaymentRefused { purchase, problem };
        match self.authorize(self.acceptable(quote?)?).await? {
            Decision::Granted(second) if second.voucher != first.voucher => {
                let response = self.present(&second).await?;
                self.take(response, &second).await
            }
            Decision::Waits(waiting) => Err(BuyError::ApprovalNeeded(Box::new(waiting))),
            Decision::Granted(_) | Decision::QuoteExpired(_) => Err(refused),
        }
    }

    async fn present(&self, voucher: &Authorized) -> Result<reqwest::Response, BuyError> {
        self.transmit(Some(&voucher.voucher)).await.map_err(|source| {
            let (request_id, purchase) = (self.request_id.to_owned(), voucher.purchase);
            if source.is_connect() || source.is_builder() {
                BuyError::NotSent { request_id, purchase, source }
            } else {
                BuyError::AnswerLost { request_id, purchase, source }
            }
        })
    }

    /// The answer to a paid request.
    async fn take(
        &self,
        response: reqwest::Response,
        voucher: &Authorized,
    ) -> Result<Answer, BuyError> {
        let purchase = voucher.purchase;
        let status = response.status();
        if status.is_redirection() {
            let location = response.headers().get(LOCATION);
            let location = location.and_then(|value| value.to_str().ok()).unwrap_or("nowhere");
            return Err(BuyError::RedirectRefused { purchase, location: location.to_owned() });
        }
        if status == StatusCode::PAYMENT_REQUIRED {
            let problem = problem_of(response).await;
            return Err(BuyError::PaymentRefused { purchase, problem });
        }
        if status == StatusCode::CONFLICT {
            return self.take_conflict(response, voucher).await;
        }
        let paid_for = PaidFor { purchase, held: voucher.amount_micros };
        Ok(Answer::new(response, self.request_id.to_owned(), Some(paid_for)))
    }

    /// A 409 is the seller's own answer unless it says that the voucher was used.
    async fn take_conflict(
        &self,
        response: reqwest::Response,
        voucher: &Authorized,
    ) -> Result<Answer, BuyError> {
        let purchase: PurchaseId = voucher.purchase;
        let (status, headers) = (response.status(), response.headers().clone());
        let request_id = self.request_id.to_owned();
        let body = read_answer(response).await.unwrap_or_default();
        let problem = Problem::read(status, &headers, &body);
        if problem.known_code() == Some(Code::VoucherAlreadyUsed) {
            return Err(BuyError::AlreadyUsed { request_id, purchase: Some(purchase) });
        }
        let mut rebuilt = http::Response::new(body);
        *rebuilt.status_mut() = status;
        *rebuilt.headers_mut() = headers;
        let paid_for = PaidFor { purchase, held: voucher.amount_micros };
        Ok(Answer::new(rebuilt.into(), request_id, Some(paid_for)))
    }
}

/// Reads a small body to its end, so that its connection can be used for the paid request too.
async fn drain(response: reqwest::Response) {
    if response.content_length().is_some_and(|length| length <= DRAIN_BYTES) {
        let _closed_instead = tokio::time::timeout(DRAIN_WITHIN, response.bytes()).await;
    }
}

async fn problem_of(response: reqwest::Response) -> Box<Problem> {
    let (status, headers) = (response.status(), response.headers().clone());
    let body = read_answer(response).await.unwrap_or_default();
    Box::new(Problem::read(status, &headers, &body))
}

/// Time and chance in one number, for an id that sorts by when it was made.
fn random_bits(seed: earnest_core::id::Seed) -> u128 {
    earnest_core::id::PurchaseId::new(seed).value()
}
