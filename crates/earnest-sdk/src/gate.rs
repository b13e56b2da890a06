//! The door of a priced route: who may pass, and what is said of it afterwards.
//!
//! Checks, in this order: signature, audience, scope (method, resource, body, own listing and price),
//! whether the voucher or its purchase was seen, expiry. Then it is claimed durably, and only then
//! served. 402 is answered only when paying (again) is safe: a used voucher is 409, and when vouchers
//! cannot be checked the answer is 503.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;

use axum::BoxError;
use axum::body::Body;
use axum::extract::OriginalUri;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use earnest_core::id::{PurchaseId, QuoteId};
use earnest_core::jws::{BadToken, KeySet, Purpose};
use earnest_core::money::Currency;
use earnest_core::problem::{Code, Refusal};
use earnest_core::quote::{MAX_LISTING_BYTES, Price, Quote, Resource, canonical_url};
use earnest_core::time::{Timestamp, after, to_millisecond};
use earnest_core::voucher::{self, Claims};
use futures_util::FutureExt as _;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use http::header::{TRANSFER_ENCODING, VARY, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{Method, Request, StatusCode};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use tower::Service;

use crate::body::WatchedBody;
use crate::nonce::{Claim, StoreDown};
use crate::paid::{Paid, Ticket};
use crate::problem::Problem;
use crate::seller::Seller;
use crate::setup::{Secret, join, seed};
use crate::wire::{PAYMENT_RECEIPT, PaymentReceipt, Presented, challenge, take_voucher};

/// How long a quote may be accepted.
const QUOTE_LIFE_SECONDS: i64 = 10 * 60;
/// Seconds after which a check that was not possible may be.
const CHECK_AGAIN_SECONDS: i64 = 5;

/// What only caches in between look at, ahead of `Cache-Control` (RFC 9213).
const FOR_SHARED_CACHES: [&str; 4] =
    ["cdn-cache-control", "cloudflare-cdn-cache-control", "surrogate-control", "x-accel-expires"];

/// What is for sale.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) price: Price,
    /// What the seller calls it; cut to what a quote may hold.
    pub(crate) listing: String,
}

/// A request that may be served, once.
struct Admitted {
    request: Request<Body>,
    ticket: Ticket,
    receipt: PaymentReceipt,
}

impl Seller {
    /// Serves a request if it is paid for; answers for itself otherwise. The inner service never
    /// sees a voucher.
    ///
    /// `OPTIONS` is answered here and free, and never reaches the inner service, which might do
    /// its work for nothing. `HEAD` costs nothing: it is answered 402 without a challenge, so no
    /// client pays for it.
    pub(crate) async fn sell<B, S, R>(
        &self,
        offer: &Offer,
        request: Request<B>,
        inner: S,
    ) -> Result<Response, S::Error>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        S: Service<Request<Body>, Response = Response<R>>,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let mut response = match *request.method() {
            Method::OPTIONS => preflight(),
            Method::HEAD => unpaid_head(),
            _ => match self.admit(offer, request).await {
                Ok(admitted) => self.serve(admitted, inner).await?,
                Err(refused) => refused.into_response(),
            },
        };
        vary_by_authorization(response.headers_mut());
        Ok(response)
    }

    /// Claims the voucher of a request that somebody else serves: the purchase, the right to say what
    /// became of it, and what stands in the answer.
    pub(crate) async fn grant<B>(
        &self,
        offer: &Offer,
        request: Request<B>,
    ) -> Result<(PurchaseId, Ticket, Option<HeaderValue>), Response>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        match self.admit(offer, request).await {
            Ok(Admitted { ticket, receipt, .. }) => {
                Ok((receipt.purchase, ticket, receipt.to_value()))
            }
            Err(refused) => Err(refused.into_response()),
        }
    }

    async fn admit<B>(&self, offer: &Offer, request: Request<B>) -> Result<Admitted, Answer>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (mut parts, body) = request.into_parts();
        let presented = take_voucher(&mut parts.headers);
        strip_payment_headers(&mut parts.headers);
        check_framing(&parts.headers)?;
        let url = self.resource_url(&parts)?;
        let body = self.read_body(body).await?;
        let resource = Resource::new(parts.method.as_str(), &url, &body)?;
        let token = match presented {
            Presented::Voucher(token) => token,
            Presented::Nothing => {
                let detail = format!("this costs {}", price_in_words(offer.price));
                let refusal = Refusal::new(Code::PaymentRequired, detail);
                return Err(self.ask_for_payment(refusal, offer, resource));
            }
            Presented::Unreadable => {
                let refusal = Refusal::new(Code::VoucherInvalid, "send exactly one voucher");
                return Err(self.ask_for_payment(refusal, offer, resource));
            }
        };
        let now = Timestamp::now();
        let checked = self.check(token.expose(), offer, &resource, now).await;
        let claims = checked.map_err(|refusal| match refusal.code.status() {
            402 => self.ask_for_payment(refusal, offer, resource.clone()),
            _ => refusal.into(),
        })?;
        let paid = Paid::new(&claims);
        let ticket = self.claim(token, &claims, &paid, now).await?;
        parts.extensions.insert(paid);
        Ok(Admitted {
            request: Request::from_parts(parts, Body::from(body)),
            ticket,
            receipt: PaymentReceipt {
                purchase: claims.sub,
                url: self.public_url(&format!("/v1/purchases/{}/receipt", claims.sub)),
            },
        })
    }

    /// INVARIANT: a_used_voucher_is_409_even_after_it_expired_because_402_says_that_paying_again_is_safe
    async fn check(
        &self,
        token: &str,
        offer: &Offer,
        resource: &Resource,
        now: Timestamp,
    ) -> Result<Claims, Refusal> {
        let claims = self.read_voucher(token, now).await?;
        let listing = cut(&offer.listing);
        claims.check_scope(self.0.config.seller, &listing, resource, offer.price)?;
        if claims.is_expired(now) {
            let seen = self.0.config.nonces.seen(claims.jti, claims.sub).await;
            if seen.map_err(unavailable)? {
                return Err(used(&claims));
            }
            return Err(Refusal::new(Code::VoucherExpired, "the voucher has expired"));
        }
        Ok(claims)
    }

    async fn read_voucher(&self, token: &str, now: Timestamp) -> Result<Claims, Refusal> {
        let no_keys = |_| unavailable(StoreDown);
        let keys = self.0.keys.current().await.map_err(no_keys)?;
        match voucher::read(token, &keys, now) {
            Err(_) if is_of_unknown_key(token, &keys) => {
                let keys = self.0.keys.renewed(&keys).await.map_err(no_keys)?;
                voucher::read(token, &keys, now)
            }
            read => read,
        }
    }

    async fn claim(
        &self,
        voucher: Secret,
        claims: &Claims,
        paid: &Paid,
        at: Timestamp,
    ) -> Result<Ticket, Answer> {
        let nonces = &self.0.config.nonces;
        let token = nonces.token();
        let ticket = Ticket::new(nonces.clone(), claims.jti, token, paid.clone());
        let at = to_millisecond(at);
        let (jti, purchase) = (claims.jti, claims.sub);
        let first = nonces.claim(Claim { jti, purchase, token, voucher, at }).await;
        // Dropping the ticket ends this attempt's claim, if it was written, and no other's.
        if first.map_err(unavailable)? { Ok(ticket) } else { Err(used(claims).into()) }
    }

    async fn serve<S, R>(&self, admitted: Admitted, mut inner: S) -> Result<Response, S::Error>
    where
        S: Service<Request<Body>, Response = Response<R>>,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let Admitted { request, ticket, receipt } = admitted;
        let limit = self.0.config.limits.answer_within;
        let answering = AssertUnwindSafe(async move { inner.call(request).await }).catch_unwind();
        let refusal = match tokio::time::timeout(limit, answering).await {
            Ok(Ok(answer)) => return Ok(watched(answer?, ticket, &receipt)),
            Ok(Err(_panic)) => {
                tracing::error!(purchase = %receipt.purchase, "the handler of a paid request panicked");
                Refusal::new(Code::Internal, "the seller failed; nothing was charged")
            }
            Err(_elapsed) => {
                Refusal::new(Code::UpstreamTimeout, "no answer in time; nothing was charged")
            }
        };
        drop(ticket);
        Ok(Problem::from(&refusal).into_response())
    }

    /// The URL that is sold: the configured origin and what was asked for under it.
    ///
    /// Refused: a path whose canonical spelling means something else (dot segments, back slashes),
    /// since what is billed and what is served must be one thing.
    pub(crate) fn resource_url(&self, parts: &Parts) -> Result<String, Refusal> {
        let uri = parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |original| &original.0);
        let asked = uri.path_and_query().map_or("/", |asked| asked.as_str());
        let url = canonical_url(&format!("{}{asked}", self.0.config.origin))?;
        let canonical = url.as_str().strip_prefix(&self.0.config.origin).unwrap_or_default();
        if decoded(canonical) != decoded(asked) {
            let detail = "the URL is not in its canonical spelling";
            return Err(Refusal::new(Code::UrlInvalid, detail).with("canonical", url.as_str()));
        }
        Ok(url.into())
    }

    async fn read_body<B>(&self, body: B) -> Result<Bytes, Refusal>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let limits = &self.0.config.limits;
        let reading = std::pin::pin!(Limited::new(body, limits.body_bytes).collect());
        match tokio::time::timeout(limits.body_within, reading).await {
            Ok(Ok(whole)) => Ok(whole.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                let detail = format!("at most {} bytes are accepted", limits.body_bytes);
                Err(Refusal::new(Code::BodyTooLarge, detail))
            }
            Ok(Err(_)) => Err(Refusal::new(Code::RequestMalformed, "the body could not be read")),
            Err(_) => Err(Refusal::new(Code::RequestTimeout, "the body took too long to arrive")),
        }
    }

    fn ask_for_payment(&self, refusal: Refusal, offer: &Offer, resource: Resource) -> Answer {
        match self.quote(offer, resource) {
            Ok(quote) => {
                Answer { problem: self.asking(refusal, &quote), quote: self.value(&quote) }
            }
            Err(error) => {
                tracing::error!(%error, "no randomness for the id of a quote");
                unavailable(StoreDown).into()
            }
        }
    }

    fn quote(&self, offer: &Offer, request: Resource) -> Result<Quote, getrandom::Error> {
        Ok(Quote {
            id: QuoteId::new(seed()?),
            seller: self.0.config.seller,
            listing: cut(&offer.listing).into_owned(),
            request,
            price: offer.price,
            currency: Currency::Usd,
            expires_at: to_millisecond(after(Timestamp::now(), QUOTE_LIFE_SECONDS)),
        })
    }

    fn asking(&self, refusal: Refusal, quote: &Quote) -> Problem {
        let next = format!(
            "POST the quote, your max_price and a request_id to {}, then repeat this request with \
             `Authorization: Tab <voucher>`",
            self.public_url("/v1/authorize"),
        );
        let mut problem = Problem::from(&refusal.next(next));
        problem.kind = self.public_url(&problem.kind);
        let quote = serde_json::to_value(quote).unwrap_or(Value::Null);
        problem.more.insert("quote".to_owned(), quote);
        problem
    }

    fn value(&self, quote: &Quote) -> Option<HeaderValue> {
        challenge(self.0.config.public_earnest.as_str(), quote)
    }

    fn public_url(&self, path: &str) -> String {
        join(&self.0.config.public_earnest, path)
    }
}

/// A problem, and the challenge that makes a 402 payable.
pub(crate) struct Answer {
    problem: Problem,
    quote: Option<HeaderValue>,
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        Self { problem: Problem::from(&refusal), quote: None }
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let mut response = self.problem.into_response();
        if let Some(quote) = self.quote {
            response.headers_mut().insert(WWW_AUTHENTICATE, quote);
        }
        response
    }
}

/// A 2xx is paid for once its body has ended; everything else is not, and says so by having no
/// receipt.
fn watched<R>(answer: Response<R>, ticket: Ticket, receipt: &PaymentReceipt) -> Response
where
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let (mut parts, body) = answer.into_parts();
    strip_payment_headers(&mut parts.headers);
    if !parts.status.is_success() {
        drop(ticket);
        return Response::from_parts(parts, Body::new(body));
    }
    if let Some(value) = receipt.to_value() {
        parts.headers.insert(PAYMENT_RECEIPT, value);
    }
    keep_from_shared_caches(&mut parts.headers);
    let announced = parts.headers.get(CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse().ok());
    let body = WatchedBody::new(Body::new(body), announced, ticket);
    Response::from_parts(parts, Body::new(body))
}

/// Nobody but this layer says that something was paid.
pub(crate) fn strip_payment_headers(headers: &mut HeaderMap) {
    let ours = |name: &&HeaderName| name.as_str().replace('_', "-").starts_with("payment-");
    let names: Vec<HeaderName> = headers.keys().filter(ours).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// What was paid for is for who paid: a cache between buyers and this server that kept it would give
/// it away, and not every such cache looks at `Vary`. A buyer's own may keep it (RFC 9111 section
/// 5.2.2.7).
fn keep_from_shared_caches(headers: &mut HeaderMap) {
    let is_for_all = |directive: &&str| {
        let name = directive.split('=').next().unwrap_or(directive).trim();
        name.eq_ignore_ascii_case("public") || name.eq_ignore_ascii_case("s-maxage")
    };
    let is_private = |directive: &&str| {
        directive.eq_ignore_ascii_case("private") || directive.eq_ignore_ascii_case("no-store")
    };
    let said = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let said = said.flat_map(|text| text.split(',')).map(str::trim);
    let mut kept: Vec<&str> = said.filter(|d| !d.is_empty() && !is_for_all(d)).collect();
    if !kept.iter().any(is_private) {
        kept.push("private");
    }
    let value = HeaderValue::from_str(&kept.join(", "));
    headers.insert(CACHE_CONTROL, value.unwrap_or(HeaderValue::from_static("private")));
    for name in FOR_SHARED_CACHES {
        headers.remove(name);
    }
}

/// Where a request ends must be said once. Two readers of a request that says it twice, or in a way
/// that one of them does not know, may find two requests in it (RFC 9112 section 6.1): one that was
/// paid for, and one that was not.
///
/// # Errors
/// `request_malformed`.
pub(crate) fn check_framing(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let once = match (encodings.next(), encodings.next()) {
        (None, _) => headers.get_all(CONTENT_LENGTH).iter().count() <= 1,
        (Some(encoding), None) => {
            encoding.as_bytes().eq_ignore_ascii_case(b"chunked")
                && !headers.contains_key(CONTENT_LENGTH)
        }
        (Some(_), Some(_)) => false,
    };
    let why = "say where the body ends once: `Content-Length`, or `Transfer-Encoding: chunked`";
    if once { Ok(()) } else { Err(Refusal::new(Code::RequestMalformed, why)) }
}

pub(crate) fn vary_by_authorization(headers: &mut HeaderMap) {
    let varies = headers.get_all(VARY).iter().filter_map(|value| value.to_str().ok());
    let mut names = varies.flat_map(|text| text.split(','));
    if !names.any(|name| name.trim().eq_ignore_ascii_case("authorization")) {
        headers.append(VARY, HeaderValue::from_static("Authorization"));
    }
}

fn preflight() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

pub(crate) fn unpaid_head() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::PAYMENT_REQUIRED;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn used(claims: &Claims) -> Refusal {
    let why = "a purchase is served once, and this voucher or another of it was used";
    Refusal::new(Code::VoucherAlreadyUsed, why)
        .with("purchase", claims.sub.to_string())
        .next("do not pay again: ask Earnest what became of the purchase")
}

fn unavailable(_: StoreDown) -> Refusal {
    Refusal::new(Code::VoucherCheckUnavailable, "nothing was charged; try again with this voucher")
        .retry_after(CHECK_AGAIN_SECONDS)
}

/// Only a token of the right kind may cause a look-up of keys.
fn is_of_unknown_key(token: &str, keys: &KeySet) -> bool {
    let read = keys.read::<serde::de::IgnoredAny>(Purpose::Voucher, token);
    matches!(read, Err(BadToken::UnknownKey))
}

fn decoded(text: &str) -> Vec<u8> {
    percent_decode_str(text).collect()
}

fn price_in_words(price: Price) -> String {
    match price {
        Price::Fixed(amount) => amount.to_string(),
        Price::UpTo(ceiling) => format!("up to {ceiling}"),
    }
}

/// The longest beginning of a listing that a quote may hold.
fn cut(listing: &str) -> Cow<'_, str> {
    if listing.is_empty() {
        return Cow::Borrowed("unnamed");
    }
    let mut end = listing.len().min(MAX_LISTING_BYTES);
    while !listing.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    Cow::Borrowed(listing.get(..end).unwrap_or("unnamed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_paid_for_is_kept_by_nobody_in_between() {
        let kept = |said: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in said {
                headers.append(CACHE_CONTROL, HeaderValue::from_static(value));
            }
            headers.insert("cdn-cache-control", HeaderValue::from_static("max-age=9"));
            keep_from_shared_caches(&mut headers);
            assert!(!headers.contains_key("cdn-cache-control"));
            let values = headers.get_all(CACHE_CONTROL).iter();
            values.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&[]), ["private"]);
        assert_eq!(kept(&["public, max-age=60, S-MaxAge=90"]), ["max-age=60, private"]);
        assert_eq!(kept(&["Public", "immutable"]), ["immutable, private"]);
        assert_eq!(kept(&["no-store"]), ["no-store"]);
        assert_eq!(kept(&["Private, max-age=60"]), ["Private, max-age=60"]);
    }

    #[test]
    fn where_a_body_ends_is_said_once() {
        let check = |lines: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, HeaderValue::from_static(value));
            }
            check_framing(&headers).is_ok()
        };
        let (length, encoding) = ("content-length", "transfer-encoding");
        assert!(check(&[]));
        assert!(check(&[(length, "5")]));
        assert!(check(&[(encoding, "Chunked")]));
        for lines in [
            [(length, "5"), (encoding, "chunked")],
            [(encoding, "chunked"), (length, "5")],
            [(length, "5"), (length, "6")],
            [(encoding, "chunked"), (encoding, "chunked")],
        ] {
            assert!(!check(&lines), "{lines:?}");
        }
        for odd in ["gzip, chunked", "chunked, identity", "identity", "xchunked", "\"chunked\""] {
            assert!(!check(&[(encoding, odd)]), "{odd}");
        }
    }
}
