//! What anybody may ask: keys, health, explanations of codes.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use earnest_core::problem::Code;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use super::error::{ApiResult, refuse};
use super::view::Problem;
use crate::app::App;

/// The public keys of vouchers and receipts, retired ones included.
#[utoipa::path(get, path = "/.well-known/jwks.json", tag = "receipt",
    responses((status = 200, description = "A JSON Web Key Set", body = serde_json::Value)))]
pub async fn jwks(State(app): State<App>) -> Response {
    let mut response = axum::Json(&app.keys.jwks).into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=300"));
    response
}

/// The process runs.
#[utoipa::path(get, path = "/healthz", tag = "operations",
    responses((status = 200, description = "It runs", body = serde_json::Value)))]
pub async fn healthz() -> axum::Json<Value> {
    axum::Json(json!({ "status": "ok" }))
}

/// The books can be read, and PayPal's mode.
#[utoipa::path(get, path = "/readyz", tag = "operations",
    responses((status = 200, description = "Ready", body = serde_json::Value),
        (status = 503, description = "Not ready", body = Problem, content_type = "application/problem+json")))]
pub async fn readyz(State(app): State<App>) -> ApiResult<axum::Json<Value>> {
    let head = app.store.reader().head()?;
    Ok(axum::Json(json!({
        "status": "ready",
        "mode": app.store.mode(),
        "epoch": app.store.epoch(),
        "seq": head.seq,
    })))
}

/// What a code means.
#[utoipa::path(get, path = "/problems/{code}", tag = "operations",
    params(("code" = String, Path, description = "Such as policy_denied")),
    responses((status = 200, description = "The code explained", body = serde_json::Value),
        (status = 404, description = "No such code", body = Problem, content_type = "application/problem+json")))]
pub async fn problem(Path(text): Path<String>) -> ApiResult<(StatusCode, axum::Json<Value>)> {
    let code = Code::parse(&text).ok_or_else(|| refuse(Code::NotFound, "there is no such code"))?;
    let body = json!({
        "code": code.as_str(),
        "title": code.title(),
        "status": code.status(),
        "retryable": code.retryable(),
    });
    Ok((StatusCode::OK, axum::Json(body)))
}
