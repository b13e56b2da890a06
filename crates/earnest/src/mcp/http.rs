//! `/mcp`: Streamable HTTP without sessions. What is asked of every request before the protocol is
//! spoken stands here: from where, by whom, in which form.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts as _, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use earnest_core::problem::Code;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::Value;
use url::{Host, Url};

use super::door::Caller;
use super::envelope::{self, Malformed};
use super::server::Server;
use crate::api::auth::AsAgent;
use crate::api::error::{ApiResult, Verbatim, refuse};
use crate::api::{accept, read};
use crate::app::App;

/// The largest message.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;

/// Beside a request whose client reads no event stream: it gets its answer and nothing before.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonOnly;

/// Where a server reaches itself: the address it listens at, this very machine where that is every
/// address.
pub fn own_url(listens: SocketAddr) -> String {
    let ip = match listens.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, listens.port()))
}

/// The route, for the API's router.
pub fn routes(app: &App) -> Router<App> {
    // Hosts and origins are judged by the guard, before the key; Accept and the rest after it.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MAX_MESSAGE_BYTES)
        .disable_allowed_hosts()
        .disable_allowed_origins();
    let door = Arc::clone(&app.mcp);
    let server = move || Ok(Server::of_requests(Arc::clone(&door)));
    let service =
        StreamableHttpService::new(server, Arc::new(NeverSessionManager::default()), config);
    let service =
        tower::ServiceBuilder::new().layer(from_fn_with_state(app.clone(), guard)).service(service);
    Router::new().route_service("/mcp", service)
}

/// What a request has to be before the protocol is spoken with it.
async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let asked = request.method() == Method::POST;
    let admitted = match admit(&app, request).await {
        Ok(admitted) => admitted,
        Err(response) => return response,
    };
    let (request, message) = admitted;
    let mut response = next.run(request).await;
    if asked && response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        // The envelope was sound and the content type too: it is the message that nobody knows.
        response = malformed(Malformed::unreadable(&message));
    }
    // These are this protocol's own words; a problem document would say less to its clients.
    response.extensions_mut().insert(Verbatim);
    response
}

async fn admit(app: &App, request: Request) -> Result<(Request, Value), Response> {
    let (mut parts, body) = request.into_parts();
    let no = |refused: crate::api::error::ApiError| refused.into_response();
    is_ours(app, &parts).map_err(no)?;
    let agent = AsAgent::from_request_parts(&mut parts, app).await;
    let agent = agent.map_err(|why| match why.0.code {
        // Whoever holds a key of another role is nobody here.
        Code::NotFound => no(refuse(Code::Unauthenticated, "an agent's key is needed: ek_agent_…")),
        _ => no(why),
    })?;
    if parts.method != Method::POST {
        return Ok((Request::from_parts(parts, body), Value::Null));
    }
    let streams = accept::weight(&parts.headers, "text", "event-stream") > 0;
    if accept::weight(&parts.headers, "application", "json") == 0 {
        return Err(no(refuse(Code::NotAcceptable, "answers are application/json")));
    }
    if !parts.headers.get(header::CONTENT_TYPE).is_some_and(is_json) {
        let why = "the body must be application/json";
        return Err(no(refuse(Code::MediaTypeUnsupported, why)));
    }
    let key = bearer(&parts.headers);
    let bytes = read::body(Request::from_parts(parts.clone(), body), MAX_MESSAGE_BYTES).await;
    let bytes = bytes.map_err(no)?;
    let message = envelope::read(&bytes).map_err(malformed)?;
    let both = HeaderValue::from_static("application/json, text/event-stream");
    parts.headers.insert(header::ACCEPT, both);
    let caller = Caller::new(&agent.agent.to_string(), &agent.owner.to_string(), &key);
    parts.extensions.insert(caller);
    if !streams {
        parts.extensions.insert(JsonOnly);
    }
    // Sessions are none of ours: one from another life means nothing. The key has done its work.
    parts.headers.remove("mcp-session-id");
    parts.headers.remove(header::AUTHORIZATION);
    Ok((Request::from_parts(parts, Body::from(bytes)), message))
}

/// The key, as [`AsAgent`] has already found it to be one.
fn bearer(headers: &HeaderMap) -> String {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let key = value.and_then(|value| value.split_once(' ')).map(|(_, key)| key.trim());
    key.unwrap_or_default().to_owned()
}

fn is_json(value: &HeaderValue) -> bool {
    let essence = value.to_str().ok().and_then(|kind| kind.split(';').next());
    essence.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

fn malformed(why: Malformed) -> Response {
    let mut response = (Malformed::STATUS, axum::Json(why.0)).into_response();
    response.extensions_mut().insert(Verbatim);
    response
}

/// Against pages that make a browser call this server under another name (DNS rebinding): the host
/// asked for is the public one or this machine, and so is the page that asks, if it is a page.
fn is_ours(app: &App, parts: &Parts) -> ApiResult<()> {
    let public = Url::parse(&app.public_url).ok();
    let public = public.as_ref();
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let asked = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok(),
        (None, _) => parts.uri.authority().map(|authority| authority.as_str()),
        // Whichever was believed, somebody in between may have believed the other.
        (Some(_), Some(_)) => None,
    };
    let asked = asked.and_then(|host| Url::parse(&format!("http://{host}/")).ok());
    let same_host = |url: &Url| public.is_some_and(|public| public.host() == url.host());
    if !asked.is_some_and(|url| is_this_machine(&url) || same_host(&url)) {
        return Err(forbidden("this host is not served here"));
    }
    let mut origins = parts.headers.get_all(header::ORIGIN).iter();
    let (Some(origin), None) = (origins.next(), origins.next()) else {
        return match parts.headers.contains_key(header::ORIGIN) {
            true => Err(forbidden("this origin may not call here")),
            false => Ok(()),
        };
    };
    let origin = origin.to_str().ok().and_then(|origin| Url::parse(origin).ok());
    let same_origin = |url: &Url| public.is_some_and(|public| public.origin() == url.origin());
    match origin.is_some_and(|url| is_this_machine(&url) || same_origin(&url)) {
        true => Ok(()),
        false => Err(forbidden("this origin may not call here")),
    }
}

fn is_this_machine(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
        && match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(ip)) => ip.is_loopback(),
            Some(Host::Ipv6(ip)) => ip.is_loopback(),
            None => false,
        }
}

fn forbidden(why: &str) -> crate::api::error::ApiError {
    refuse(Code::TargetForbidden, why)
}
