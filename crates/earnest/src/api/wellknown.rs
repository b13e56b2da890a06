//! What anybody may ask: keys, health, explanations of codes.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use earnest_core::problem::Code;
use earnest_core::time::Timestamp;
use earnest_core::unit::{Effects, Stop, Touches, Unit, View};
use http::{HeaderValue, header};
use serde::Serialize;
use utoipa::ToSchema;

use super::error::{ApiResult, refuse};
use super::read::Path;
use super::view::Problem;
use crate::app::App;
use crate::flow::lost::in_force as quarantined;

/// The public keys of vouchers and receipts, retired ones included.
#[utoipa::path(get, path = "/.well-known/jwks.json", tag = "receipt",
    responses((status = 200, description = "A JSON Web Key Set", body = serde_json::Value)))]
pub async fn jwks(State(app): State<App>) -> Response {
    let mut response = axum::Json(&app.keys().jwks).into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=300"));
    response
}

/// The process runs.
#[utoipa::path(get, path = "/healthz", tag = "operations",
    responses((status = 200, description = "It runs", body = Health)))]
pub async fn healthz() -> axum::Json<Health> {
    axum::Json(Health { status: "ok" })
}

/// A unit that touches and records nothing: answered only by a writer that still writes.
struct Probe;

impl Unit for Probe {
    type Answer = ();
    fn name(&self) -> &'static str {
        "readiness"
    }
    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        Touches::new()
    }
    fn decide(&self, _: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        Ok(Effects::answer(()))
    }
}

/// How long the writer may take to answer the probe.
const PROBE: Duration = Duration::from_secs(2);

/// Ready for requests.
#[derive(Serialize, ToSchema)]
pub struct Ready {
    /// `ready`; `degraded`: requests are served, but a job keeps dying; or `quarantined`: restored,
    /// and nothing is sold or settled yet.
    status: &'static str,
    /// The jobs that keep dying, by name.
    failing: Vec<&'static str>,
    /// `simulated`, `sandbox` or `live`.
    mode: String,
    /// Of this installation; another one after a restore.
    epoch: String,
    /// How many units are recorded.
    seq: u64,
}

/// The start is over, and the books can be read and written. 200 says that requests are served, also while a job keeps dying:
/// `status` and `failing` say that.
#[utoipa::path(get, path = "/readyz", tag = "operations",
    responses((status = 200, description = "Ready", body = Ready),
        (status = 503, description = "Not ready", body = Problem, content_type = "application/problem+json")))]
pub async fn readyz(State(app): State<App>) -> ApiResult<axum::Json<Ready>> {
    if !app.is_furnished() {
        return Err(refuse(Code::Overloaded, "it is starting: not all of its keys count yet"));
    }
    if let Some(why) = app.store.stopped() {
        let why = format!("nothing is served any more: {why}");
        return Err(refuse(Code::DatabaseUnavailable, &why));
    }
    let head = app.store.reader().head()?;
    match tokio::time::timeout(PROBE, app.store.submit(Probe)).await {
        Ok(written) => written?,
        Err(_) => return Err(refuse(Code::Overloaded, "the books take too long to write")),
    }
    let failing = app.health.failing(tokio::time::Instant::now());
    let status = match (quarantined(&app)?, failing.is_empty()) {
        (true, _) => "quarantined",
        (false, true) => "ready",
        (false, false) => "degraded",
    };
    Ok(axum::Json(Ready {
        status,
        failing,
        mode: app.store.mode().to_owned(),
        epoch: app.store.epoch().to_owned(),
        seq: head.seq,
    }))
}

/// It runs.
#[derive(Serialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    status: &'static str,
}

/// A code of the one table of errors.
#[derive(Serialize, ToSchema)]
pub struct CodeView {
    /// What clients switch on.
    code: &'static str,
    /// One sentence.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// Whether the same request may succeed later.
    retryable: bool,
}

/// What a code means.
#[utoipa::path(get, path = "/problems/{code}", tag = "operations",
    params(("code" = String, Path, description = "Such as policy_denied")),
    responses((status = 200, description = "The code explained", body = CodeView),
        (status = 404, description = "No such code", body = Problem, content_type = "application/problem+json")))]
pub async fn problem(Path(text): Path<String>) -> ApiResult<axum::Json<CodeView>> {
    let code = Code::parse(&text).ok_or_else(|| refuse(Code::NotFound, "there is no such code"))?;
    Ok(axum::Json(CodeView {
        code: code.as_str(),
        title: code.title(),
        status: code.status(),
        retryable: code.retryable(),
    }))
}
