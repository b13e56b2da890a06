//! The client: one address, one model, one question at a time.
//!
//! `https` only (`http` to this machine), no redirects, no proxy, bounded time and size. Only a 429
//! is asked again, after the time it names, and only while that is within our patience: every other
//! failure is the caller's to live with, since an answer may have been paid for.

use std::time::Duration;

use futures_util::StreamExt as _;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;
use url::Url;

use super::answer::{self, ModelError, Spend};
use super::settings::Role;
use crate::outbound;

/// The most of an answer that is read.
const MAX_ANSWER_BYTES: usize = 256 * 1024;
/// How often a question is asked again after a 429.
const MOST_REPEATS: u32 = 2;
/// How long to wait after a 429 that does not say, the first time.
const WAIT: Duration = Duration::from_secs(1);

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For a connection.
    pub connect: Duration,
    /// For an answer, repeats and the waits between them included.
    pub total: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), total: Duration::from_secs(25) }
    }
}

/// Why there is no client for a model.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] reqwest::Error),
    /// The key cannot be sent: it holds what no header may.
    #[error("the key of [models.{0}] is no key: it has to be one line of printable characters")]
    Key(&'static str),
}

/// A question, and the shape of its answer.
#[derive(Clone, Debug)]
pub struct Question {
    /// What the model is to do.
    pub task: String,
    /// What it is to look at.
    pub about: String,
    /// What the schema is called.
    pub schema_name: &'static str,
    /// The JSON Schema of the answer: strict, so every member is required and no other allowed.
    pub schema: Value,
    /// The most tokens of the answer.
    pub max_tokens: u32,
}

/// What came of a question.
#[derive(Debug)]
pub struct Asked {
    /// The text, not looked at yet.
    pub said: Result<String, ModelError>,
    /// What it cost.
    pub spend: Spend,
}

/// A client of one model. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    client: reqwest::Client,
    endpoint: Url,
    key: Option<HeaderValue>,
    patience: Patience,
    role: Role,
}

impl Gateway {
    /// A client for a role.
    ///
    /// # Errors
    /// When TLS cannot be set up, or the key is none that could be sent.
    pub fn new(role: Role, patience: Patience) -> Result<Self, GatewayError> {
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .connect_timeout(patience.connect)
            .build()?;
        let mut endpoint = role.base_url.clone();
        let path = format!("{}/chat/completions", endpoint.path().trim_end_matches('/'));
        endpoint.set_path(&path);
        let key = match &role.key {
            None => None,
            Some(key) => {
                let value = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
                let mut value = value.map_err(|_| GatewayError::Key(role.name))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Self { client, endpoint, key, patience, role })
    }

    /// What it is asked as, and what that may cost.
    pub const fn role(&self) -> &Role {
        &self.role
    }

    /// How long a question may take.
    pub const fn patience(&self) -> Duration {
        self.patience.total
    }

    /// Asks one question.
    pub async fn ask(&self, question: &Question) -> Asked {
        let body = self.body(question);
        let deadline = Instant::now() + self.patience.total;
        let mut repeats = 0;
        loop {
            let error = match self.send(&body, deadline).await {
                Ok(Reply { status, body, .. }) if status.is_success() => {
                    let (said, spend) = answer::completion(&body, self.role.price);
                    return Asked { said, spend };
                }
                Ok(Reply { status: StatusCode::TOO_MANY_REQUESTS, headers, .. }) => {
                    let wait = retry_after(&headers).unwrap_or(WAIT * 2_u32.pow(repeats));
                    if repeats < MOST_REPEATS && Instant::now() + wait < deadline {
                        repeats += 1;
                        tokio::time::sleep(wait).await;
                        continue;
                    }
                    ModelError::RateLimited
                }
                Ok(Reply { status, body, .. }) => {
                    let code = answer::error_code(&body);
                    let unsure = status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT;
                    match unsure {
                        true => ModelError::Failed(status, code),
                        false => ModelError::Refused(status, code),
                    }
                }
                Err(error) => error,
            };
            let spend = Spend::of_error(&error);
            return Asked { said: Err(error), spend };
        }
    }

    fn body(&self, question: &Question) -> Value {
        json!({
            "model": self.role.model,
            "messages": [
                { "role": "system", "content": question.task },
                { "role": "user", "content": [{ "type": "text", "text": question.about }] },
            ],
            "response_format": { "type": "json_schema", "json_schema": {
                "name": question.schema_name, "strict": true, "schema": question.schema,
            } },
            "max_completion_tokens": question.max_tokens,
            "stream": false,
        })
    }

    async fn send(&self, body: &Value, deadline: Instant) -> Result<Reply, ModelError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut request = self.client.post(self.endpoint.clone()).json(body).timeout(left);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.clone());
        }
        let answer = request.send().await.map_err(|error| outbound::failed(&error))?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let mut body = Vec::new();
        let mut chunks = answer.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            body.extend_from_slice(&chunk.map_err(|error| outbound::failed(&error))?);
            if body.len() > MAX_ANSWER_BYTES {
                return Err(ModelError::TooLarge(MAX_ANSWER_BYTES));
            }
        }
        Ok(Reply { status, headers, body })
    }
}

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// How long a 429 says to wait: `Retry-After` in seconds, broken ones among them, or the finer
/// `retry-after-ms`. A date is not worth reading a clock for.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
    let text = |name: &HeaderName| headers.get(name)?.to_str().ok();
    if let Some(ms) = text(&RETRY_AFTER_MS).and_then(|ms| ms.trim().parse::<u32>().ok()) {
        return Some(Duration::from_millis(ms.into()));
    }
    let text = text(&RETRY_AFTER)?.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: u32 = whole.parse().ok()?;
    // A part of a second is a second: too late is polite, too early is not.
    let more = fraction.bytes().any(|digit| digit != b'0');
    Some(Duration::from_secs(u64::from(seconds) + u64::from(more)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_429_says_how_long_to_wait() {
        let wait = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            retry_after(&headers).map(|wait| wait.as_millis())
        };
        assert_eq!(wait("retry-after", "2"), Some(2_000));
        assert_eq!(wait("retry-after", "0"), Some(0));
        assert_eq!(wait("retry-after", "0.25"), Some(1_000));
        assert_eq!(wait("retry-after-ms", "250"), Some(250));
        assert_eq!(wait("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT"), None);
        assert_eq!(wait("retry-after", "-1"), None);
        assert_eq!(wait("retry-after", "99999999999999"), None);
    }

    #[test]
    fn a_key_that_cannot_be_sent_is_refused() {
        // Whoever embeds this may have installed one already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let role = |key: &str| Role {
            name: "advisor",
            base_url: "https://m.example/v1".parse().unwrap(),
            model: "m".to_owned(),
            key: Some(earnest_paypal::Secret::new(key)),
            family: None,
            price: None,
            reserve: earnest_core::money::Micros::constant(1),
            ask_seconds: 60,
        };
        assert!(Gateway::new(role("sk-0123"), Patience::default()).is_ok());
        for key in ["sk-0123\nsk-4567", "sk\u{7f}", "sk\0"] {
            let refused = Gateway::new(role(key), Patience::default()).err().unwrap();
            assert!(matches!(refused, GatewayError::Key("advisor")));
            assert!(!refused.to_string().contains("sk"), "{refused}");
        }
    }
}
