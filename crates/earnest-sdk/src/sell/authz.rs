//! `earnest sell --authz`: a priced front for a gateway that is there already. The gateway asks for
//! each request whether it is paid for, and serves it itself.
//!
//! | asked at | by | method and URL from |
//! |---|---|---|
//! | `/authz` | Traefik's `forwardAuth`, Caddy's `forward_auth` | `X-Forwarded-Method`, `X-Forwarded-Uri` |
//! | `/authz?for=nginx` | nginx's `auth_request` | `X-Original-Method`, `X-Original-URI` |
//! | `/authz/…` | Envoy's `ext_authz` over HTTP, with `path_prefix: /authz` | the request itself |
//!
//! Where it is asked is the gateway's own configuration, so a client cannot choose which headers
//! count. Headers in which a client names another path or method are refused: a server behind that
//! believes them would serve what was not judged. Some gateways append the client's query to where
//! they ask: what comes with the headers of another gateway is therefore refused at
//! `/authz?for=nginx`, and any other query says nothing. Only addresses that were named may ask at
//! all. 200 means: serve it, once. Everything else is the answer for the client, for nginx in the
//! only words it knows: 401 for 402, 403 for any other no, with the true status in `Earnest-Status`
//! and the code in `Earnest-Code`.
//!
//! The voucher is claimed durably before the 200 is given. What the gateway then answers it does not
//! tell by itself: a request that was let through counts as served, at once or after
//! [`super::SellConfig::outcome_within`]; until then `/outcome?purchase=ID` says that it was not, and
//! nothing is charged.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use earnest_core::id::PurchaseId;
use earnest_core::problem::{Code, Refusal};
use earnest_core::quote::{Price, canonical_url};
use http::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, HeaderMap, HeaderName};
use http::header::{HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, StatusCode, Uri};
use http_body::Body as HttpBody;
use ipnet::IpNet;

use super::rules::{Rules, Verdict};
use super::told;
use crate::gate::{Offer, check_framing, unpaid_head};
use crate::paid::Ticket;
use crate::problem::{Coded, Problem};
use crate::seller::Seller;
use crate::wire::PAYMENT_RECEIPT;

/// Where a gateway asks.
const ASK: &str = "/authz";
/// Where it says that what it was allowed came to nothing.
const OUTCOME: &str = "/outcome";
/// The true status, for gateways that know few.
const STATUS: HeaderName = HeaderName::from_static("earnest-status");
/// The code of a refusal.
const CODE: HeaderName = HeaderName::from_static("earnest-code");
/// The purchase that a request was let through for.
const PURCHASE: HeaderName = HeaderName::from_static("earnest-purchase");

/// What a gateway may be told, and by whom.
#[derive(Clone, Debug)]
pub(super) struct AuthzConfig {
    /// Who may ask.
    pub gateways: Vec<IpNet>,
    /// How long after a request was let through it may still be said that it failed.
    pub outcome_within: Duration,
}

/// The desk at which gateways ask.
pub(super) struct Desk {
    seller: Seller,
    config: AuthzConfig,
    /// By the handle that only the gateway was told.
    let_through: Arc<Mutex<HashMap<String, Ticket>>>,
}

/// The original request.
struct Asked {
    method: Method,
    target: Uri,
}

impl Desk {
    pub(super) fn new(seller: Seller, config: AuthzConfig) -> Self {
        Self { seller, config, let_through: Arc::default() }
    }

    pub(super) async fn answer<B>(
        &self,
        rules: &Rules,
        request: Request<B>,
        peer: IpAddr,
    ) -> Response
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let peer = peer.to_canonical();
        if !self.config.gateways.iter().any(|known| known.contains(&peer)) {
            return refuse(Code::NotFound, "only the gateways of this shop may ask here");
        }
        let (parts, body) = request.into_parts();
        if parts.uri.path() == OUTCOME {
            return self.failed(&parts);
        }
        let nginx = is_nginx(&parts.uri);
        let answer = match asked(&parts) {
            Ok(asked) => self.decide(rules, asked, parts.headers, body).await,
            Err(refusal) => Problem::from(&refusal).into_response(),
        };
        worded(answer, nginx)
    }

    async fn decide<B>(&self, rules: &Rules, asked: Asked, headers: HeaderMap, body: B) -> Response
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let Asked { method, target } = asked;
        let mut request = Request::new(());
        *request.method_mut() = method.clone();
        *request.uri_mut() = target;
        let (mut parts, ()) = request.into_parts();
        let judged = check_framing(&headers).and_then(|()| {
            let url = canonical_url(&self.seller.resource_url(&parts)?)?;
            rules.judge(&method, url.path())
        });
        let offer = match judged {
            Ok(Verdict::Priced(price, listing)) => Offer { price: Price::Fixed(price), listing },
            Ok(Verdict::Free) => return StatusCode::OK.into_response(),
            Ok(Verdict::Unlisted) => {
                return refuse(Code::NotFound, "nothing is sold or free at this path");
            }
            Err(refusal) => return Problem::from(&refusal).into_response(),
        };
        match method {
            // Who lets 2xx through would have the upstream do its work for nothing.
            Method::OPTIONS => {
                let why = "the gateway answers preflights itself: this path has a price";
                let mut response = refuse(Code::MethodNotAllowed, why);
                let served = rules.served_methods(parts.uri.path()).join(", ");
                response.headers_mut().extend(HeaderValue::from_str(&served).map(|it| (ALLOW, it)));
                return response;
            }
            // Its meaning may be in a body that nobody judged.
            _ if told::hides_a_body(&headers) => {
                let why = "a request with a body is sold only where its gateway shows the body";
                return refuse(Code::RequestMalformed, why);
            }
            Method::GET | Method::HEAD | Method::DELETE => {}
            // What is paid for is a request with its body; a body that is not shown may be any.
            _ if body.size_hint().exact() == Some(0) => {
                let why = "a request with a body is sold only where its gateway shows the body";
                return refuse(Code::RequestMalformed, why);
            }
            _ => {}
        }
        if method == Method::HEAD {
            return unpaid_head();
        }
        for name in [AUTHORIZATION, CONTENT_LENGTH, TRANSFER_ENCODING] {
            let values: Vec<HeaderValue> = headers.get_all(&name).iter().cloned().collect();
            for value in values {
                parts.headers.append(name.clone(), value);
            }
        }
        match self.seller.grant(&offer, Request::from_parts(parts, body)).await {
            Ok((purchase, ticket, receipt)) => {
                let handle = match handle(purchase) {
                    Ok(handle) => handle,
                    // Nothing was let through, so nothing is charged.
                    Err(_) => return refuse(Code::Internal, "no randomness for a handle"),
                };
                self.let_through(handle.clone(), ticket);
                let mut response = StatusCode::OK.into_response();
                let headers = response.headers_mut();
                headers.extend(receipt.map(|receipt| (PAYMENT_RECEIPT, receipt)));
                let id = HeaderValue::from_str(&handle).ok();
                headers.extend(id.map(|id| (PURCHASE, id)));
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("private"));
                response
            }
            Err(refused) => refused,
        }
    }

    /// It counts as served unless somebody says otherwise in time. If this process ends before, the
    /// next one finds a claim without an end, which counts as failed.
    fn let_through(&self, handle: String, ticket: Ticket) {
        let within = self.config.outcome_within;
        if within.is_zero() {
            return ticket.redeem();
        }
        self.lock().insert(handle.clone(), ticket);
        let waiting = self.let_through.clone();
        tokio::spawn(async move {
            tokio::time::sleep(within).await;
            let ticket = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle);
            if let Some(ticket) = ticket {
                ticket.redeem();
            }
        });
    }

    /// The gateway says that the upstream failed.
    fn failed(&self, parts: &Parts) -> Response {
        let purchase = parts.uri.query().and_then(|query| query.strip_prefix("purchase="));
        let Some(handle) = purchase.filter(|text| is_handle(text)) else {
            let why = "name the purchase as Earnest-Purchase did: /outcome?purchase=pur_…";
            return refuse(Code::RequestMalformed, why);
        };
        match self.lock().remove(handle) {
            Some(ticket) => {
                drop(ticket);
                refuse(Code::UpstreamFailed, "the seller failed; nothing was charged")
            }
            // Said too late, or twice: what it says to the client must not promise anything.
            None => refuse(Code::UpstreamUnreachable, "the seller failed to answer"),
        }
    }

    /// Whatever still waits counts as served: the gateway had its answer.
    pub(super) fn close(&self) {
        for (_, ticket) in self.lock().drain() {
            ticket.redeem();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Ticket>> {
        self.let_through.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a gateway calls one delivery by: the purchase, which its buyer knows, and a secret of this
/// delivery's, which nobody but the gateway does. A buyer that gets somebody near to ask for it cannot
/// have its delivery called off, and no timer of an earlier delivery ends a later one.
fn handle(purchase: PurchaseId) -> Result<String, getrandom::Error> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret)?;
    Ok(format!("{purchase}.{}", hex::encode(secret)))
}

fn is_handle(text: &str) -> bool {
    text.split_once('.').is_some_and(|(purchase, secret)| {
        purchase.parse::<PurchaseId>().is_ok() && secret.len() == 32
    })
}

/// Whether it is nginx that asks, by its own configuration.
fn is_nginx(uri: &Uri) -> bool {
    uri.path() == ASK && uri.query() == Some("for=nginx")
}

/// What the client asked the gateway for.
fn asked(parts: &Parts) -> Result<Asked, Refusal> {
    let path = parts.uri.path();
    if path == ASK {
        let nginx = is_nginx(&parts.uri);
        let forwarded @ [method, uri] = ["x-forwarded-method", "x-forwarded-uri"];
        // INVARIANT: no_query_of_a_client_chooses_which_headers_are_believed
        if nginx && forwarded.iter().any(|name| parts.headers.contains_key(*name)) {
            return Err(malformed("nginx says it in X-Original-…, and must clear X-Forwarded-…"));
        }
        let (method, uri) =
            if nginx { ("x-original-method", "x-original-uri") } else { (method, uri) };
        let [length, encoding] = told::HIDDEN_BODY;
        let own: &[&str] = if nginx { &[method, uri, length, encoding] } else { &[method, uri] };
        told::no_other_request(&parts.headers, own)?;
        let method = one(&parts.headers, method)?.parse::<Method>();
        let method = method.map_err(|_| malformed("the original method cannot be read"))?;
        return Ok(Asked { method, target: target(one(&parts.headers, uri)?)? });
    }
    let whole = parts.uri.path_and_query().map_or("", PathAndQuery::as_str);
    match whole.strip_prefix(ASK) {
        Some(original) if original.starts_with('/') => {
            told::no_other_request(&parts.headers, &[])?;
            Ok(Asked { method: parts.method.clone(), target: target(original)? })
        }
        _ => Err(Refusal::new(Code::NotFound, "gateways ask at /authz")),
    }
}

/// A path with its query, as clients write it in the first line of a request.
fn target(text: &str) -> Result<Uri, Refusal> {
    let read = text.starts_with('/').then(|| text.parse::<PathAndQuery>().ok()).flatten();
    let exact = read.filter(|read| read.as_str() == text);
    exact.map(Uri::from).ok_or_else(|| malformed("the original URL cannot be read"))
}

/// The only value of a header that the gateway sets.
fn one<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next().map(HeaderValue::to_str), values.next()) {
        (Some(Ok(value)), None) => Ok(value),
        _ => Err(malformed("the gateway must say once what was asked for").with("header", name)),
    }
}

fn malformed(why: &str) -> Refusal {
    Refusal::new(Code::RequestMalformed, why)
}

fn refuse(code: Code, why: &str) -> Response {
    Problem::from(&Refusal::new(code, why)).into_response()
}

/// The answer in words that its gateway knows.
fn worded(mut response: Response, nginx: bool) -> Response {
    crate::gate::vary_by_authorization(response.headers_mut());
    let status = response.status();
    if status.is_success() {
        return response;
    }
    let code = response.extensions().get::<Coded>().map(|coded| coded.0.clone());
    let headers = response.headers_mut();
    headers.insert(STATUS, HeaderValue::from(status.as_u16()));
    headers
        .extend(code.and_then(|code| HeaderValue::from_str(&code).ok()).map(|code| (CODE, code)));
    if nginx {
        *response.status_mut() = match status {
            StatusCode::PAYMENT_REQUIRED => StatusCode::UNAUTHORIZED,
            _ => StatusCode::FORBIDDEN,
        };
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(uri: &str, headers: &[(&str, &str)]) -> Result<String, Code> {
        let mut request = Request::post(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let asked = asked(&parts).map_err(|refusal| refusal.code)?;
        Ok(format!("{} {} {}", asked.method, asked.target, is_nginx(&parts.uri)))
    }

    #[test]
    fn no_query_of_a_client_chooses_which_headers_are_believed() {
        let forwarded = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/a?b=%20")];
        let original = [("x-original-method", "DELETE"), ("x-original-uri", "/c?for=nginx")];
        let both: Vec<_> = forwarded.into_iter().chain(original).collect();
        assert_eq!(read("/authz", &forwarded), Ok("GET /a?b=%20 false".to_owned()));
        // The words of the other gateway would reach the server.
        assert_eq!(read("/authz", &both), Err(Code::RequestMalformed));
        assert_eq!(read("/authz?for=nginx", &original), Ok("DELETE /c?for=nginx true".to_owned()));
        // A gateway of the other kind appended its client's query.
        assert_eq!(read("/authz?for=nginx", &both), Err(Code::RequestMalformed));
        for appended in ["/authz?", "/authz?b=%20", "/authz?for=nginx&x=1", "/authz?for=envoy"] {
            assert_eq!(
                read(appended, &forwarded),
                Ok("GET /a?b=%20 false".to_owned()),
                "{appended}"
            );
        }
        assert_eq!(read("/authz/c?for=nginx", &[]), Ok("POST /c?for=nginx false".to_owned()));
        assert_eq!(read("/authz/", &[]), Ok("POST / false".to_owned()));
        assert_eq!(read("/authz/c", &forwarded), Err(Code::RequestMalformed));
        // What is not said, twice said, or no path.
        assert_eq!(read("/authz", &original), Err(Code::RequestMalformed));
        assert_eq!(read("/authz?for=nginx", &forwarded), Err(Code::RequestMalformed));
        for uri in ["", "x", "//host/free", "http://elsewhere/free", "*", "/a b", "/a#b"] {
            let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", uri)];
            let read = read("/authz", &headers);
            // `//host/free` is a path here, and the rules refuse it for its empty segment.
            let fine = uri == "//host/free";
            assert_eq!(read.is_ok(), fine, "{uri}: {read:?}");
        }
        let twice = [forwarded[0], forwarded[1], ("x-forwarded-uri", "/free")];
        assert_eq!(read("/authz", &twice), Err(Code::RequestMalformed));
        for elsewhere in ["/authzx", "/", "/weather"] {
            assert_eq!(read(elsewhere, &both), Err(Code::NotFound), "{elsewhere}");
        }
    }
}
