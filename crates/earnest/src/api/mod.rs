//! The HTTP API. Handlers parse at the edge, call a flow, and show what came of it; they decide
//! nothing. `openapi()` describes exactly the routes that are served.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use earnest_core::id::TraceId;
use earnest_core::problem::{Code, Refusal};
use http::{HeaderValue, StatusCode, header};
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument as _;
use utoipa::OpenApi;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::pages;

pub(crate) mod accept;
pub mod acknowledgements;
pub mod approvals;
pub mod auth;
pub mod cash;
pub mod cookie;
pub mod csv;
pub mod error;
pub mod events;
mod exact;
pub mod hooks;
pub mod keys;
pub mod ledger;
pub mod methods;
pub mod metrics;
pub mod migrate;
pub mod parties;
pub mod paypal;
pub mod policies;
pub mod purchases;
pub mod read;
pub mod receipts;
pub mod restore;
pub mod sellers;
pub mod sign_ins;
pub mod tabs;
pub mod view;
pub mod wellknown;

/// The version of the API, in the header `Earnest-Version`.
pub const VERSION: &str = "2026-11-30";

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Earnest",
        description = "The settlement layer for AI agents: an agent spends only inside limits that \
            its owner set, and pays only for what was delivered. Errors are RFC 9457 problem \
            documents; clients switch on `code`.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    modifiers(&Security),
    components(schemas(view::Problem)),
)]
struct Description;

struct Security;

impl utoipa::Modify for Security {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
        let bearer =
            HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("ek_…").build();
        let components = openapi.components.get_or_insert_with(Default::default);
        components.add_security_scheme("key", SecurityScheme::Http(bearer));
    }
}

/// Every route, described.
fn described() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Description::openapi())
        .merge(buying())
        .merge(taking_part())
        .merge(operating())
        .merge(telling())
}

/// What an agent buys, what stands in its way, and what is owed for it.
fn buying() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(purchases::authorize))
        .routes(routes!(purchases::list))
        .routes(routes!(purchases::get))
        .routes(routes!(purchases::receipt))
        .routes(routes!(sellers::report))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::get))
        .routes(routes!(approvals::decide))
        .routes(routes!(approvals::grants))
        .routes(routes!(approvals::revoke_grant))
        .routes(routes!(tabs::open, tabs::list))
        .routes(routes!(tabs::get))
        .routes(routes!(tabs::close))
        .routes(routes!(tabs::settle))
        .routes(routes!(tabs::write_off))
        .routes(routes!(tabs::settlements))
        .routes(routes!(tabs::settlement))
        .routes(routes!(methods::begin, methods::list))
        .routes(routes!(methods::get, methods::remove))
        .routes(routes!(methods::confirm))
        .routes(routes!(methods::payer_returned))
        .routes(routes!(methods::payer_cancelled))
}

/// Owners, agents, sellers, and what each of them allows.
fn taking_part() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(parties::create_owner, parties::owners))
        .routes(routes!(parties::owner))
        .routes(routes!(parties::pause_owner))
        .routes(routes!(parties::resume_owner))
        .routes(routes!(parties::set_zone))
        .routes(routes!(parties::set_credit))
        .routes(routes!(parties::add_owner_key))
        .routes(routes!(sign_ins::ask))
        .routes(routes!(sign_ins::list, sign_ins::end))
        .routes(routes!(parties::create_agent, parties::agents))
        .routes(routes!(parties::agent))
        .routes(routes!(parties::pause_agent))
        .routes(routes!(parties::resume_agent))
        .routes(routes!(parties::add_agent_key, parties::agent_keys))
        .routes(routes!(parties::revoke_agent_key))
        .routes(routes!(policies::get, policies::set))
        .routes(routes!(policies::versions))
        .routes(routes!(policies::revert))
        .routes(routes!(policies::dry_run))
        .routes(routes!(sellers::create, sellers::list))
        .routes(routes!(sellers::get))
        .routes(routes!(sellers::add_key))
        .routes(routes!(sellers::put_origin))
        .routes(routes!(sellers::prove_origin))
        .routes(routes!(sellers::lines))
}

/// What the operator sees and decides: books, PayPal, what was lost, keys.
fn operating() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(ledger::accounts))
        .routes(routes!(ledger::transfers))
        .routes(routes!(ledger::trial_balance))
        .routes(routes!(paypal::trail))
        .routes(routes!(paypal::intents))
        .routes(routes!(paypal::confirm_not_charged))
        .routes(routes!(paypal::suspense))
        .routes(routes!(cash::clear))
        .routes(routes!(cash::reconciliation, cash::reconcile))
        .routes(routes!(acknowledgements::acknowledgements, acknowledgements::acknowledge))
        .routes(routes!(cash::record, cash::entries))
        .routes(routes!(cash::void))
        .routes(routes!(cash::forgive))
        .routes(routes!(paypal::reversals))
        .routes(routes!(paypal::disputes))
        .routes(routes!(restore::status))
        .routes(routes!(restore::lift))
        .routes(routes!(restore::accept))
        .routes(routes!(restore::captures))
        .routes(routes!(restore::lines))
        .routes(routes!(restore::decide))
        .routes(routes!(migrate::begin))
        .routes(routes!(keys::list))
        .routes(routes!(keys::rotate))
        .routes(routes!(metrics::show))
        .routes(routes!(paypal::webhook))
}

/// What is told: events, receipts, this description.
fn telling() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(events::stream))
        .routes(routes!(hooks::create, hooks::list))
        .routes(routes!(hooks::get, hooks::remove))
        .routes(routes!(hooks::enable))
        .routes(routes!(hooks::deliveries))
        .routes(routes!(hooks::resend))
        .routes(routes!(receipts::show))
        .routes(routes!(receipts::verify))
        .routes(routes!(wellknown::jwks))
        .routes(routes!(wellknown::healthz))
        .routes(routes!(wellknown::readyz))
        .routes(routes!(wellknown::problem))
        .routes(routes!(describe))
}

/// The OpenAPI 3.1 description of every route.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut description = described().into_openapi();
    complete(&mut description);
    description
}

/// What holds of every operation and is so written once: a name of its own (handlers are called
/// `get` and `list` in more than one module), and how it is refused or breaks.
fn complete(description: &mut utoipa::openapi::OpenApi) {
    for (path, item) in &mut description.paths.paths {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let words = path.chars().map(plain).collect::<String>();
        let words: Vec<&str> = words.split('_').filter(|word| !word.is_empty()).collect();
        let operations = [
            ("get", &mut item.get),
            ("put", &mut item.put),
            ("post", &mut item.post),
            ("delete", &mut item.delete),
            ("patch", &mut item.patch),
        ];
        for (method, operation) in operations {
            let Some(operation) = operation else { continue };
            operation.operation_id = Some(format!("{method}_{}", words.join("_")));
            let responses = &mut operation.responses.responses;
            for (status, why) in [("4XX", "Refused"), ("5XX", "Not carried out")] {
                responses.entry(status.to_owned()).or_insert_with(|| problem_response(why));
            }
            for response in responses.values_mut() {
                if let RefOr::T(response) = response
                    && response.description.is_empty()
                {
                    response.description = "As asked for".to_owned();
                }
            }
        }
    }
}

fn problem_response(why: &str) -> RefOr<utoipa::openapi::Response> {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let response = ResponseBuilder::new().description(why);
    RefOr::T(response.content("application/problem+json", content).build())
}

/// This description.
#[utoipa::path(get, path = "/openapi.json", tag = "operations",
    responses((status = 200, description = "OpenAPI 3.1", body = serde_json::Value)))]
async fn describe() -> Response {
    static TEXT: LazyLock<String> = LazyLock::new(|| openapi().to_json().unwrap_or_default());
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}

/// Everything that is served.
pub fn router(app: App) -> Router {
    let (routes, _) = described().split_for_parts();
    let mcp = crate::mcp::http::routes(&app);
    dress(routes.merge(pages::routes()).merge(mcp), app)
}

/// What every route has around it: one form for whatever is refused, a panic too.
fn dress(routes: Router<App>, app: App) -> Router {
    routes
        .fallback(|| async { error::refuse(Code::NotFound, "there is no such route") })
        .method_not_allowed_fallback(|| async {
            error::refuse(Code::MethodNotAllowed, "the method is not allowed here")
        })
        // As one layer: each by itself is copied and boxed anew for every request.
        .layer((
            from_fn_with_state(app.clone(), edge),
            CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| {
                error::refuse(Code::Internal, "the request was not carried out").into_response()
            }),
        ))
        .with_state(app)
}

/// Names the exchange, counts it for its address, and writes a refused answer as a problem document
/// that carries the name.
async fn edge(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let trace = TraceId::new(app.seed()).to_string();
    let begun = std::time::Instant::now();
    let method = request.method().clone();
    // The pattern: a path may hold what opens something, such as the token of a receipt.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let shown = route.as_ref().map_or("none", MatchedPath::as_str);
    // At every level, so that whatever is logged within says which request it belongs to.
    let span = tracing::error_span!("http", trace, %method, route = shown);
    let within = span.clone();
    let page = pages::page_at(request.uri().path());
    // With a key nothing is kept by caches anyway (RFC 9111, 3.5); with a cookie it may be.
    let by_cookie = request.headers().contains_key(header::COOKIE);
    let mut response = if !acceptable(&request) {
        error::refuse(Code::NotAcceptable, "this API answers in JSON, lists in CSV too")
            .into_response()
    } else if stands_on_books(request.uri().path()) && app.store.stopped().is_some() {
        let why = "this node serves nothing any more; its /readyz says why";
        error::refuse(Code::DatabaseUnavailable, why).into_response()
    } else if let Err(refusal) = app.front.enter(&mut request) {
        error::ApiError::from(refusal).into_response()
    } else {
        next.run(request).instrument(span).await
    };
    if let Some(refusal) = refused(&mut response) {
        let headers = std::mem::take(response.headers_mut());
        response = match page {
            Some(asked) => pages::refusal(&app, asked, &refusal, &trace),
            None => error::render(&refusal, &trace),
        };
        // What a handler added beside its refusal, such as `Idempotent-Replayed`.
        for (name, value) in &headers {
            if name.as_str().starts_with("idempotent") || name == header::ALLOW {
                response.headers_mut().insert(name, value.clone());
            }
        }
    }
    app.figures.answered(&method, route.as_ref().map(MatchedPath::as_str), response.status());
    within.in_scope(|| {
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(status = response.status().as_u16(), took_ms, "answered");
    });
    let headers = response.headers_mut();
    if page.is_some() {
        pages::protect(headers);
    } else if by_cookie {
        let no_store = HeaderValue::from_static("no-store");
        headers.entry(header::CACHE_CONTROL).or_insert(no_store);
    }
    headers.insert("earnest-version", HeaderValue::from_static(VERSION));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(trace) = HeaderValue::from_str(&trace) {
        headers.insert("trace-id", trace);
    }
    response
}

/// Whether an answer there may come from the books: nothing is served of what the database has lost,
/// or what is kept elsewhere by now.
fn stands_on_books(path: &str) -> bool {
    let of_the_node = ["/healthz", "/readyz", "/metrics", "/openapi.json"];
    !of_the_node.contains(&path) && !path.starts_with("/problems/")
}

/// Whether the client takes what the API gives. Asked before anything is done: an answer that
/// cannot be read would leave the client not knowing what it bought.
fn acceptable(request: &Request) -> bool {
    let (path, headers) = (request.uri().path(), request.headers());
    let stream = path == "/v1/events" && accept::weight(headers, "text", "event-stream") > 0;
    stream || !path.starts_with("/v1/") || accept::anything(headers)
}

/// The refusal behind an answer. What the framework refused by itself becomes one of ours, so that
/// clients meet one form of errors only.
fn refused(response: &mut Response) -> Option<Refusal> {
    if response.extensions_mut().remove::<error::Verbatim>().is_some() {
        return None;
    }
    if let Some(refused) = response.extensions_mut().remove::<error::Refused>() {
        return Some(*refused.0);
    }
    if response.extensions().get::<pages::Said>().is_some() {
        return None;
    }
    let (code, detail) = match response.status() {
        StatusCode::METHOD_NOT_ALLOWED => {
            (Code::MethodNotAllowed, "the method is not allowed here")
        }
        StatusCode::NOT_FOUND => (Code::NotFound, "there is no such thing"),
        StatusCode::REQUEST_TIMEOUT => (Code::RequestTimeout, "the request took too long"),
        StatusCode::PAYLOAD_TOO_LARGE => (Code::BodyTooLarge, "the body is too large"),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            (Code::MediaTypeUnsupported, "the body must be application/json")
        }
        status if status.is_client_error() => {
            (Code::RequestMalformed, "the request could not be read")
        }
        status if status.is_server_error() => (Code::Internal, "the request was not carried out"),
        _ => return None,
    };
    Some(Refusal::new(code, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::serve::{Running, Start};
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    /// A handler that panics, and one whose answer is the framework's own refusal, are answered
    /// like everything else, and the next request is served.
    #[tokio::test]
    async fn a_panic_is_answered_as_a_problem() {
        let start = Start { jobs: false, ..Start::default() };
        let running = Running::start(Config::simulated(), start).await.unwrap();
        async fn panics() -> StatusCode {
            panic!("as planned")
        }
        let routes = Router::new()
            .route("/panics", axum::routing::get(panics))
            .route("/teapot", axum::routing::get(|| async { StatusCode::IM_A_TEAPOT }))
            .route("/healthz", axum::routing::get(wellknown::healthz));
        let router = dress(routes, running.app.clone());
        let get = |path: &str| {
            let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
            router.clone().oneshot(request)
        };
        for (path, status, code) in
            [("/panics", 500, "internal"), ("/teapot", 400, "request_malformed")]
        {
            let response = get(path).await.unwrap();
            assert_eq!(response.status(), status, "{path}");
            assert_eq!(response.headers()["content-type"], "application/problem+json");
            let trace = response.headers()["trace-id"].to_str().unwrap().to_owned();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["code"], code);
            assert_eq!(body["trace_id"], trace);
            assert!(!body.to_string().contains("as planned"), "{body}");
        }
        assert_eq!(get("/healthz").await.unwrap().status(), 200);
        running.stop().await;
    }
}
