//! `application/problem+json` (RFC 9457), as sellers answer it and buyers read it.

use std::collections::BTreeMap;
use std::fmt;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use earnest_core::id::TraceId;
use earnest_core::problem::{Code, Refusal};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The media type.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// An answer that is a no. Clients switch on `code`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A URL that explains the code.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// One sentence, the same for every use of the code.
    #[serde(default)]
    pub title: String,
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// One sentence about this case.
    #[serde(default)]
    pub detail: String,
    /// The stable code of the error table; empty when the answer was no problem of ours.
    #[serde(default)]
    pub code: String,
    /// Beside `policy_denied`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The server's name for the exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// Whether the same request may succeed later unchanged.
    #[serde(default)]
    pub retryable: bool,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// From the header `Retry-After`, in seconds.
    #[serde(skip)]
    pub retry_after_seconds: Option<u64>,
    /// Everything else: the numbers, the quote.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

impl From<&Refusal> for Problem {
    fn from(refusal: &Refusal) -> Self {
        let trace_id = crate::setup::seed().ok().map(|seed| TraceId::new(seed).to_string());
        Self {
            kind: format!("/problems/{}", refusal.code),
            title: refusal.code.title().to_owned(),
            status: refusal.code.status(),
            detail: refusal.detail.clone(),
            code: refusal.code.as_str().to_owned(),
            reason: refusal.reason.map(|reason| reason.as_str().to_owned()),
            trace_id,
            retryable: refusal.code.retryable(),
            next: refusal.next.clone(),
            retry_after_seconds: refusal.retry_after_seconds.and_then(|s| u64::try_from(s).ok()),
            more: refusal.numbers.clone(),
        }
    }
}

impl Problem {
    /// Reads an answer that is not a success. What is no problem document becomes one without a
    /// code.
    pub(crate) fn read(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let read: Option<Self> = serde_json::from_slice(body).ok();
        let mut problem = read.unwrap_or_else(|| Self {
            kind: "about:blank".to_owned(),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: 0,
            detail: format!("answered {status} without a problem document"),
            code: String::new(),
            reason: None,
            trace_id: None,
            retryable: false,
            next: None,
            retry_after_seconds: None,
            more: BTreeMap::new(),
        });
        problem.status = status.as_u16();
        problem.retry_after_seconds = crate::setup::retry_after(headers);
        problem
    }

    /// The code, if it is one of the table's.
    pub fn known_code(&self) -> Option<Code> {
        Code::parse(&self.code)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code.as_str(), &self.reason) {
            ("", _) => write!(f, "{}: {}", self.status, self.detail),
            (code, Some(reason)) => write!(f, "{code}/{reason}: {}", self.detail),
            (code, None) => write!(f, "{code}: {}", self.detail),
        }
    }
}

impl std::error::Error for Problem {}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(Coded(self.code));
        response
    }
}

/// Beside an answer that is a problem document: its code.
#[derive(Clone, Debug)]
pub(crate) struct Coded(pub(crate) String);
