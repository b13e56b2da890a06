//! The one place where a refusal or a breakdown becomes an HTTP answer: `application/problem+json`
//! (RFC 9457), with the codes of [`earnest_core::problem`].

use axum::response::{IntoResponse, Response};
use earnest_core::problem::{Code, Refusal};
use earnest_store::{ReadError, SubmitError};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};

/// An answer that is not what was asked for.
#[derive(Debug)]
pub struct ApiError(pub Box<Refusal>);

/// What a handler gives.
pub type ApiResult<T> = Result<T, ApiError>;

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self(Box::new(refusal))
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        if !matches!(error, SubmitError::Refused(_) | SubmitError::Overloaded) {
            tracing::error!(%error, "a unit was not recorded");
        }
        error.into_refusal().into()
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        tracing::error!(%error, "the books cannot be read");
        let why = "the books cannot be read right now";
        Refusal::new(Code::DatabaseUnavailable, why).retry_after(1).into()
    }
}

/// A refusal with one sentence.
pub fn refuse(code: Code, detail: &str) -> ApiError {
    Refusal::new(code, detail).into()
}

/// The problem document of a refusal. `trace_id` names the exchange in the logs.
pub fn problem(refusal: &Refusal, trace_id: &str) -> Value {
    let code = refusal.code;
    let mut body = Map::new();
    body.insert("type".to_owned(), format!("/problems/{code}").into());
    body.insert("title".to_owned(), code.title().into());
    body.insert("status".to_owned(), code.status().into());
    body.insert("detail".to_owned(), refusal.detail.clone().into());
    body.insert("code".to_owned(), code.as_str().into());
    if let Some(reason) = refusal.reason {
        body.insert("reason".to_owned(), reason.as_str().into());
    }
    body.insert("trace_id".to_owned(), trace_id.into());
    body.insert("retryable".to_owned(), code.retryable().into());
    body.insert("next".to_owned(), json!(refusal.next));
    if let Some(seconds) = refusal.retry_after_seconds {
        body.insert("retry_after_s".to_owned(), seconds.into());
    }
    for (name, value) in &refusal.numbers {
        body.entry(name.clone()).or_insert_with(|| value.clone());
    }
    Value::Object(body)
}

/// Carries a refusal from a handler to [`super::trace`], which knows the trace id.
#[derive(Clone)]
pub struct Refused(pub Box<Refusal>);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        response.extensions_mut().insert(Refused(self.0));
        response
    }
}

/// Beside an answer of another protocol's, whose errors are not problem documents.
#[derive(Clone, Copy, Debug)]
pub struct Verbatim;

/// Writes the problem document of a refused answer.
pub fn render(refusal: &Refusal, trace_id: &str) -> Response {
    let status = StatusCode::from_u16(refusal.code.status());
    let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = problem(refusal, trace_id).to_string();
    let kind = [(header::CONTENT_TYPE, "application/problem+json")];
    let mut response = (status, kind, body).into_response();
    let headers = response.headers_mut();
    let seconds = refusal.retry_after_seconds.or(match refusal.code.status() {
        429 | 503 => Some(1),
        _ => None,
    });
    if let Some(seconds) = seconds {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(0).unsigned_abs()));
    }
    if refusal.code == Code::Unauthenticated {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
