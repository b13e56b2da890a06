//! What was asked and answered, and what a client did that a careful client would not.
//!
//! The journal never holds a credential: `Authorization` is reduced to its scheme, tokens,
//! secrets and webhook signatures are blanked wherever they stand.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::clock::rfc3339;

/// Something a careful client does not do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// `key_body_mismatch`, `key_after_retention`, `missing_request_id`, `capture_above_hold`,
    /// `token_fetched_too_often`.
    pub code: &'static str,
    /// The journal entry it happened in.
    pub entry: u64,
    /// What exactly.
    pub detail: String,
}

/// One request to the PayPal API.
#[derive(Debug, Clone, Serialize)]
pub struct Entry {
    /// Counts from 1.
    pub seq: u64,
    /// The simulator's time.
    pub at: String,
    /// The operation's name, as in the fault switches; absent for unknown paths.
    pub operation: Option<&'static str>,
    /// `GET`, `POST`, …
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// Query as sent.
    pub query: String,
    /// Headers that matter, lower-case names, no credentials.
    pub headers: Map<String, Value>,
    /// The body: JSON if it was JSON, else text; null if empty.
    pub body: Value,
    /// The status that was decided, even if the answer was then dropped; absent if the request
    /// was dropped unread.
    pub status: Option<u16>,
    /// Content type of the answer.
    pub answer_type: Option<String>,
    /// The answer's body.
    pub answer: Value,
    /// `Paypal-Debug-Id`.
    pub debug_id: String,
    /// The answer repeats an earlier request with the same key.
    pub replayed: bool,
    /// No answer reached the client.
    pub dropped: bool,
    /// Names of the faults that acted.
    pub faults: Vec<String>,
    /// What was wrong about it.
    pub violations: Vec<&'static str>,
}

/// The last requests, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    entries: VecDeque<Entry>,
    violations: Vec<Violation>,
    next: u64,
    limit: usize,
}

impl Journal {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), ..Self::default() }
    }

    /// The number the next entry will have.
    pub(crate) fn next_seq(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn record(&mut self, entry: Entry) {
        if self.entries.len() >= self.limit {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    pub(crate) fn note(&mut self, entry: u64, code: &'static str, detail: String) {
        self.violations.push(Violation { code, entry, detail });
    }

    pub(crate) fn codes_of(&self, entry: u64) -> Vec<&'static str> {
        self.violations
            .iter()
            .filter(|violation| violation.entry == entry)
            .map(|violation| violation.code)
            .collect()
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.entries.iter().cloned().collect()
    }

    pub(crate) fn violations(&self) -> &[Violation] {
        &self.violations
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.violations.clear();
    }
}

/// Headers worth keeping, credentials reduced to their scheme.
pub(crate) fn headers_of_interest(headers: &http::HeaderMap) -> Map<String, Value> {
    const KEPT: &[&str] = &[
        "content-type",
        "prefer",
        "paypal-request-id",
        "paypal-mock-response",
        "paypal-partner-attribution-id",
        "paypal-client-metadata-id",
        "user-agent",
    ];
    let mut kept = Map::new();
    for &name in KEPT {
        if let Some(value) = headers.get(name) {
            let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            kept.insert(name.to_owned(), json!(text));
        }
    }
    if headers.contains_key("paypal-auth-assertion") {
        kept.insert("paypal-auth-assertion".into(), json!("[redacted]"));
    }
    if let Some(value) = headers.get("authorization") {
        let text = String::from_utf8_lossy(value.as_bytes());
        let scheme = text.split(' ').next().unwrap_or_default();
        let known =
            ["Basic", "Bearer"].into_iter().find(|known| known.eq_ignore_ascii_case(scheme));
        let shown = known.map_or("[redacted]".to_owned(), |known| format!("{known} [redacted]"));
        kept.insert("authorization".into(), json!(shown));
    }
    kept
}

/// Members whose values are secrets.
const SECRET_MEMBERS: &[&str] = &[
    "access_token",
    "client_secret",
    "refresh_token",
    "id_token",
    "transmission_sig",
    "number",
    "security_code",
];

/// `value` with every secret member blanked.
pub(crate) fn redacted(mut value: Value) -> Value {
    blank(&mut value);
    value
}

fn blank(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                if SECRET_MEMBERS.contains(&name.as_str()) {
                    *member = json!("[redacted]");
                } else {
                    blank(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(blank),
        _ => {}
    }
}

/// A body as the journal keeps it.
pub(crate) fn body_value(bytes: &[u8], content_type: &str) -> Value {
    if bytes.is_empty() {
        return Value::Null;
    }
    if let Ok(value) = serde_json::from_slice(bytes) {
        return redacted(value);
    }
    if content_type.starts_with("application/x-www-form-urlencoded") {
        let form = url::form_urlencoded::parse(bytes)
            .map(|(name, value)| (name.into_owned(), json!(value)))
            .collect();
        return redacted(Value::Object(form));
    }
    json!(String::from_utf8_lossy(bytes))
}

/// The time column of an entry.
pub(crate) fn stamp(at: Timestamp) -> String {
    rfc3339(at)
}
