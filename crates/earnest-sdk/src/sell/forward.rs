//! Takes a request to the upstream and its answer back, changing neither more than a proxy must.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use earnest_core::problem::{Code, Refusal};
use earnest_core::quote::canonical_url;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    WWW_AUTHENTICATE,
};
use http::{Request, StatusCode};
use http_body::Body as _;
use url::Url;

use super::told;
use crate::gate::strip_payment_headers;
use crate::problem::Problem;
use crate::setup::{SetupError, install_tls};
use crate::wire::is_tab_challenge;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// RFC 9110 section 7.6.1, and what names this hop.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What a client must not tell the upstream: who asks and for which host (ours to say), how long the
/// body is (said anew, from the body itself); and another path or method than the one that was judged
/// and paid for, which [`told`] knows.
const NOT_THE_CLIENTS: [HeaderName; 6] = [
    HOST,
    EXPECT,
    FORWARDED,
    CONTENT_LENGTH,
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-host"),
];
/// The same for whole families of names.
const NOT_THE_CLIENTS_FAMILIES: [&str; 3] = ["x-forwarded-", "x-accel-", "x-sendfile-"];

/// The server behind the proxy.
pub(super) struct Upstream {
    /// For requests without a body, over connections that are kept.
    client: reqwest::Client,
    /// For requests with one, each over a connection of its own. A server that does not read a body
    /// takes it for the next request on a connection that is kept: whoever sent it would choose what
    /// the next buyer gets, and ask for what was never judged here (RFC 9112, section 11.2).
    alone: reqwest::Client,
    base: Url,
    within: Duration,
    proto: HeaderValue,
    host: HeaderValue,
}

impl Upstream {
    pub(super) fn new(base: &str, within: Duration, origin: &str) -> Result<Self, SetupError> {
        let setting = "upstream";
        let wrong = |why: String| SetupError::Url { setting, why };
        let base = canonical_url(base).map_err(|refusal| wrong(refusal.detail))?;
        if base.query().is_some() {
            return Err(wrong("a base URL has no query".to_owned()));
        }
        let (proto, host) = origin.split_once("://").unwrap_or(("https", origin));
        let value = |text: &str| HeaderValue::from_str(text).map_err(|e| wrong(e.to_string()));
        install_tls();
        let client = || {
            reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .referer(false)
                .no_proxy()
                .no_gzip()
                .no_brotli()
                .no_zstd()
                .no_deflate()
                .connect_timeout(CONNECT_WITHIN)
        };
        let alone = client().pool_max_idle_per_host(0).build()?;
        let client = client().build()?;
        Ok(Self { client, alone, base, within, proto: value(proto)?, host: value(host)? })
    }

    /// Where a request for a public URL goes: the path that was judged, to the letter.
    pub(super) fn target(&self, public: &Url) -> Result<Url, Refusal> {
        let path = format!("{}{}", self.base.path().trim_end_matches('/'), public.path());
        let mut target = self.base.clone();
        target.set_path(&path);
        target.set_query(public.query());
        if target.path() != path || target.query() != public.query() {
            return Err(Refusal::new(Code::UrlInvalid, "the path cannot be forwarded as it is"));
        }
        Ok(target)
    }

    /// The upstream's answer, or a problem that says why there is none.
    pub(super) async fn forward(
        &self,
        request: Request<Body>,
        target: Url,
        peer: SocketAddr,
    ) -> Response {
        let (parts, body) = request.into_parts();
        let mut headers = parts.headers;
        let said_length = headers.contains_key(CONTENT_LENGTH);
        self.prepare(&mut headers, peer);
        // INVARIANT: what_the_upstream_reads_is_what_was_judged
        if let Some(length) = body.size_hint().exact()
            && (length > 0 || said_length)
        {
            headers.insert(CONTENT_LENGTH, length.into());
        }
        // INVARIANT: no_body_becomes_a_request
        let client = if body.is_end_stream() { &self.client } else { &self.alone };
        let mut builder = client.request(parts.method, target).headers(headers);
        if !body.is_end_stream() {
            builder = builder.body(reqwest::Body::wrap_stream(body.into_data_stream()));
        }
        let answer = match tokio::time::timeout(self.within, builder.send()).await {
            Ok(Ok(answer)) if answer.status() != StatusCode::SWITCHING_PROTOCOLS => answer,
            Ok(Ok(_)) => return problem(Code::UpstreamFailed, "the upstream changed the protocol"),
            Ok(Err(error)) => return unanswered(&error),
            Err(_) => return problem(Code::UpstreamTimeout, "the upstream did not answer in time"),
        };
        let (mut parts, body) = http::Response::<reqwest::Body>::from(answer).into_parts();
        strip_hop_by_hop(&mut parts.headers);
        strip_payment_headers(&mut parts.headers);
        strip_tab_challenges(&mut parts.headers);
        Response::from_parts(parts, Body::new(body))
    }

    fn prepare(&self, headers: &mut HeaderMap, peer: SocketAddr) {
        strip_hop_by_hop(headers);
        strip_payment_headers(headers);
        let names: Vec<HeaderName> =
            headers.keys().filter(|n| is_not_the_clients(n)).cloned().collect();
        for name in names {
            headers.remove(name);
        }
        if let Ok(address) = HeaderValue::from_str(&peer.ip().to_string()) {
            headers.insert(X_FORWARDED_FOR, address);
        }
        headers.insert(X_FORWARDED_PROTO, self.proto.clone());
        headers.insert(X_FORWARDED_HOST, self.host.clone());
    }
}

fn is_not_the_clients(name: &HeaderName) -> bool {
    let name = told::spelt(name);
    let is = |own: &HeaderName| own.as_str() == name;
    NOT_THE_CLIENTS.iter().any(is)
        || HOP_BY_HOP.iter().any(is)
        || told::is_another_request(&name)
        || NOT_THE_CLIENTS_FAMILIES.iter().any(|family| name.starts_with(family))
}

fn unanswered(error: &reqwest::Error) -> Response {
    tracing::warn!(%error, "the upstream gave no answer");
    if error.is_connect() {
        problem(Code::UpstreamUnreachable, "the upstream cannot be reached; nothing was charged")
    } else {
        problem(Code::UpstreamFailed, "the upstream broke off; nothing was charged")
    }
}

fn problem(code: Code, detail: &str) -> Response {
    Problem::from(&Refusal::new(code, detail)).into_response()
}

/// Also what `Connection` names.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let named: Vec<HeaderName> = named
        .flat_map(|text| text.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// A challenge of the upstream's own would be for another URL than the client asked for.
fn strip_tab_challenges(headers: &mut HeaderMap) {
    let kept: Vec<HeaderValue> = headers
        .get_all(WWW_AUTHENTICATE)
        .iter()
        .filter(|value| !is_tab_challenge(value))
        .cloned()
        .collect();
    headers.remove(WWW_AUTHENTICATE);
    for value in kept {
        headers.append(WWW_AUTHENTICATE, value);
    }
}
