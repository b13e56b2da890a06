//! The HTTP API. Handlers parse at the edge, call a flow, and show what came of it; they decide
//! nothing. `openapi()` describes exactly the routes that are served.

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use earnest_core::id::TraceId;
use earnest_core::problem::{Code, Refusal};
use http::{HeaderValue, StatusCode, header};
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument as _;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;

pub mod approvals;
pub mod auth;
pub mod csv;
pub mod error;
pub mod ledger;
pub mod methods;
pub mod parties;
pub mod paypal;
pub mod policies;
pub mod purchases;
pub mod read;
pub mod receipts;
pub mod sellers;
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

fn described() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Description::openapi())
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
        .routes(routes!(parties::create_owner, parties::owners))
        .routes(routes!(parties::owner))
        .routes(routes!(parties::pause_owner))
        .routes(routes!(parties::resume_owner))
        .routes(routes!(parties::set_zone))
        .routes(routes!(parties::set_credit))
        .routes(routes!(parties::add_owner_key))
        .routes(routes!(parties::create_agent, parties::agents))
        .routes(routes!(parties::agent))
        .routes(routes!(parties::pause_agent))
        .routes(routes!(parties::resume_agent))
        .routes(routes!(parties::add_agent_key, parties::agent_keys))
        .routes(routes!(parties::revoke_agent_key))
        .routes(routes!(policies::get, policies::set))
        .routes(routes!(policies::versions))
        .routes(routes!(policies::revert))
        .routes(routes!(sellers::create, sellers::list))
        .routes(routes!(sellers::get))
        .routes(routes!(sellers::add_key))
        .routes(routes!(sellers::put_origin))
        .routes(routes!(sellers::prove_origin))
        .routes(routes!(sellers::lines))
        .routes(routes!(ledger::accounts))
        .routes(routes!(ledger::transfers))
        .routes(routes!(ledger::trial_balance))
        .routes(routes!(paypal::trail))
        .routes(routes!(paypal::intents))
        .routes(routes!(paypal::confirm_not_charged))
        .routes(routes!(receipts::show))
        .routes(routes!(receipts::verify))
        .routes(routes!(wellknown::jwks))
        .routes(routes!(wellknown::healthz))
        .routes(routes!(wellknown::readyz))
        .routes(routes!(wellknown::problem))
}

/// The OpenAPI 3.1 description of every JSON route.
pub fn openapi() -> utoipa::openapi::OpenApi {
    described().into_openapi()
}

/// Everything that is served.
pub fn router(app: App) -> Router {
    let (api, description) = described().split_for_parts();
    let description = std::sync::Arc::new(description.to_json().unwrap_or_default());
    let show = move || {
        let description = description.as_str().to_owned();
        async move { ([(header::CONTENT_TYPE, "application/json")], description) }
    };
    api.route("/openapi.json", axum::routing::get(show))
        .route("/webhooks/paypal", axum::routing::post(paypal::webhook))
        .route("/vault/return", axum::routing::get(methods::payer_returned))
        .route("/vault/cancel", axum::routing::get(methods::payer_cancelled))
        .route("/approvals/{id}", axum::routing::get(approvals::hint))
        .fallback(|| async { error::refuse(Code::NotFound, "there is no such route") })
        .method_not_allowed_fallback(|| async {
            error::refuse(Code::MethodNotAllowed, "the method is not allowed here")
        })
        .layer(CatchPanicLayer::custom(|_: Box<dyn std::any::Any + Send>| {
            error::refuse(Code::Internal, "the request was not carried out").into_response()
        }))
        .layer(from_fn_with_state(app.clone(), trace))
        .with_state(app)
}

/// Names the exchange, and writes a refused answer as a problem document that carries the name.
async fn trace(State(app): State<App>, request: Request, next: Next) -> Response {
    let trace = TraceId::new(app.seed()).to_string();
    let span =
        tracing::info_span!("http", trace, method = %request.method(), path = request.uri().path());
    let mut response = next.run(request).instrument(span).await;
    if let Some(refused) = response.extensions_mut().remove::<error::Refused>() {
        let headers = std::mem::take(response.headers_mut());
        response = error::render(&refused.0, &trace);
        // What a handler added beside its refusal, such as `Idempotent-Replayed`.
        for (name, value) in &headers {
            if name.as_str().starts_with("idempotent") || name == header::ALLOW {
                response.headers_mut().insert(name, value.clone());
            }
        }
    } else if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        let allow = response.headers().get(header::ALLOW).cloned();
        let refusal = Refusal::new(Code::MethodNotAllowed, "the method is not allowed here");
        response = error::render(&refusal, &trace);
        if let Some(allow) = allow {
            response.headers_mut().insert(header::ALLOW, allow);
        }
    }
    let headers = response.headers_mut();
    headers.insert("earnest-version", HeaderValue::from_static(VERSION));
    if let Ok(trace) = HeaderValue::from_str(&trace) {
        headers.insert("trace-id", trace);
    }
    response
}
