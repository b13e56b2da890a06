//! What an operation answers: a resource to render, plain JSON, nothing, or a refusal in one of
//! PayPal's three error envelopes.

use serde_json::{Map, Value, json};

use crate::issues;

/// A resource that can be rendered as it is at any later moment. Replaying an idempotency key
/// renders it again, so the answer shows its latest state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resource {
    Order(String),
    Authorization(String),
    Capture(String),
    Refund(String),
    SetupToken(String),
    PaymentToken(String),
    /// A void answers 204, or the authorization when a representation is preferred.
    Void(String),
}

/// The result of an operation that was carried out.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// A resource; `created` makes the difference between 201 and 200.
    Resource { resource: Resource, created: bool },
    /// Any other JSON.
    Json { status: u16, body: Value },
    /// A body that is not JSON: pages and certificates.
    Text { status: u16, content_type: &'static str, body: String },
    /// 204.
    Empty,
}

/// One entry of `details`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Detail {
    pub(crate) issue: String,
    pub(crate) field: Option<String>,
    pub(crate) value: Option<String>,
    pub(crate) location: Option<&'static str>,
    /// Set where the catalogue has no text of its own.
    pub(crate) description: Option<String>,
}

impl Detail {
    /// Something wrong at `field` of the body, an RFC 6901 pointer.
    pub(crate) fn body(issue: &str, field: impl Into<String>) -> Self {
        Self {
            issue: issue.to_owned(),
            field: Some(field.into()),
            location: Some("body"),
            ..Self::default()
        }
    }

    /// The offending value, printed in the answer.
    pub(crate) fn value(mut self, value: impl Into<String>) -> Self {
        self.value = Some(value.into());
        self
    }

    fn json(&self, operation: &str) -> Value {
        let mut map = Map::new();
        if let Some(field) = &self.field {
            map.insert("field".into(), json!(field));
        }
        if let Some(value) = &self.value {
            map.insert("value".into(), json!(value));
        }
        if let Some(location) = self.location {
            map.insert("location".into(), json!(location));
        }
        map.insert("issue".into(), json!(self.issue));
        let text =
            self.description.as_deref().or_else(|| issues::description(&self.issue, operation));
        if let Some(text) = text {
            map.insert("description".into(), json!(text));
        }
        Value::Object(map)
    }
}

/// Which envelope an error wears.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Envelope {
    /// Orders, Payments, Vault, Transaction Search.
    Modern,
    /// Webhooks and the other v1 APIs: an `information_link` and prose issues.
    Classic,
    /// `{"error", "error_description"}`.
    OAuth,
}

/// A refusal as PayPal words it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: u16,
    pub(crate) name: String,
    pub(crate) message: String,
    pub(crate) details: Vec<Detail>,
    pub(crate) retry_after: Option<u64>,
    envelope: Envelope,
}

impl Problem {
    fn modern(status: u16, details: Vec<Detail>) -> Self {
        let (name, message) = standing(status);
        Self {
            status,
            name: name.to_owned(),
            message: message.to_owned(),
            details,
            retry_after: None,
            envelope: Envelope::Modern,
        }
    }

    /// 400 `INVALID_REQUEST`: the request breaks the schema.
    pub(crate) fn invalid(details: Vec<Detail>) -> Self {
        Self::modern(400, details)
    }

    /// 422 with one issue and no field.
    pub(crate) fn business(issue: &str) -> Self {
        Self::modern(422, vec![Detail { issue: issue.to_owned(), ..Detail::default() }])
    }

    /// 422 with details.
    pub(crate) fn unprocessable(details: Vec<Detail>) -> Self {
        Self::modern(422, details)
    }

    /// The status the catalogue gives this issue for this operation.
    pub(crate) fn by_issue(issue: &str, operation: &str) -> Self {
        let status = match issue {
            "INTERNAL_SERVER_ERROR" => 500,
            "SERVICE_UNAVAILABLE" => 503,
            "RATE_LIMIT_REACHED" => 429,
            _ => issues::status(issue, operation),
        };
        if status >= 429 {
            return Self::modern(status, Vec::new());
        }
        Self::modern(status, vec![Detail { issue: issue.to_owned(), ..Detail::default() }])
    }

    /// 404 for an id nobody has.
    pub(crate) fn unknown_id() -> Self {
        Self::by_issue("INVALID_RESOURCE_ID", "")
    }

    /// 403 for a feature or resource that is not this account's.
    pub(crate) fn forbidden() -> Self {
        Self::by_issue("PERMISSION_DENIED", "")
    }

    /// A bare status: 404 for an unknown path, 405, 415, 429, 5xx.
    pub(crate) fn status(status: u16) -> Self {
        Self::modern(status, Vec::new())
    }

    /// 401 with the token failures' own shape.
    pub(crate) fn oauth(status: u16, error: &str, description: &str) -> Self {
        Self {
            status,
            name: error.to_owned(),
            message: description.to_owned(),
            details: Vec::new(),
            retry_after: None,
            envelope: Envelope::OAuth,
        }
    }

    /// An error of the v1 APIs, where `name` is often the specific code.
    pub(crate) fn classic(status: u16, name: &str, message: &str, details: Vec<Detail>) -> Self {
        Self {
            status,
            name: name.to_owned(),
            message: message.to_owned(),
            details,
            retry_after: None,
            envelope: Envelope::Classic,
        }
    }

    /// The JSON body, for an answer of `operation`.
    pub(crate) fn json(&self, operation: &str, debug_id: &str) -> Value {
        if self.envelope == Envelope::OAuth {
            return json!({"error": self.name, "error_description": self.message});
        }
        let mut map = Map::new();
        map.insert("name".into(), json!(self.name));
        map.insert("message".into(), json!(self.message));
        map.insert("debug_id".into(), json!(debug_id));
        let about = self.details.first().map_or(self.name.as_str(), |detail| detail.issue.as_str());
        if self.envelope == Envelope::Classic {
            let href = format!("https://developer.paypal.com/docs/api/webhooks/v1/#error-{about}");
            map.insert("information_link".into(), json!(href.replace(' ', "-")));
        } else {
            let api = api_name(operation);
            let href = format!("https://developer.paypal.com/docs/api/{api}/#error-{about}");
            let links = json!([{"href": href, "rel": "information_link", "method": "GET"}]);
            map.insert("links".into(), links);
        }
        if !self.details.is_empty() {
            let details = self.details.iter().map(|detail| detail.json(operation));
            map.insert("details".into(), details.collect());
        }
        Value::Object(map)
    }
}

fn api_name(operation: &str) -> &'static str {
    match operation.split('.').next().unwrap_or_default() {
        "authorizations" | "captures" | "refunds" => "payments/v2",
        "setup-tokens" | "payment-tokens" | "customer" => "payment-tokens/v3",
        "search" | "balances" => "transaction-search/v1",
        _ => "orders/v2",
    }
}

/// The `name` and `message` that go with each HTTP status.
fn standing(status: u16) -> (&'static str, &'static str) {
    match status {
        400 => (
            "INVALID_REQUEST",
            "Request is not well-formed, syntactically incorrect, or violates schema.",
        ),
        401 => (
            "AUTHENTICATION_FAILURE",
            "Authentication failed due to missing authorization header, or invalid authentication credentials.",
        ),
        403 => ("NOT_AUTHORIZED", "Authorization failed due to insufficient permissions."),
        404 => ("RESOURCE_NOT_FOUND", "The specified resource does not exist."),
        405 => ("METHOD_NOT_SUPPORTED", "The server does not implement the requested HTTP method."),
        409 => (
            "RESOURCE_CONFLICT",
            "The server has detected a conflict while processing this request.",
        ),
        413 => ("REQUEST_ENTITY_TOO_LARGE", "The request body is larger than the server accepts."),
        415 => (
            "UNSUPPORTED_MEDIA_TYPE",
            "The server does not support the request payload's media type.",
        ),
        422 => (
            "UNPROCESSABLE_ENTITY",
            "The requested action could not be performed, semantically incorrect, or failed business validation.",
        ),
        429 => ("RATE_LIMIT_REACHED", "Too many requests. Blocked due to rate limiting."),
        503 => ("SERVICE_UNAVAILABLE", "Service Unavailable."),
        504 => ("REQUEST_TIMEOUT_EXCEEDED", "The request timed out."),
        _ => ("INTERNAL_SERVER_ERROR", "An internal server error occurred."),
    }
}
