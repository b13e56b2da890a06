//! Sends requests and reads answers. Never follows a redirect, never uses a proxy, never repeats
//! on its own but once after renewing a token, with the same `PayPal-Request-Id`.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earnest_core::time::SignedDuration;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use reqwest::redirect;
use url::Url;
use zeroize::Zeroizing;

use crate::auth::{AuthError, Stale, Token, Tokens};
use crate::clock::{Clock, ClockUnknown, Heard};
use crate::config::{Config, ConfigError, Mode, Timeouts};
use crate::outcome::{self, Exchange, Outcome, Wait};
use crate::request::{Method, Request};

/// The largest answer that is read; a page of reports is the largest there is.
pub const MAX_PAGE: usize = 8 * 1024 * 1024;
/// The largest answer of everything else.
const MAX_ANSWER: usize = 1024 * 1024;

/// One app at one PayPal. Cheap to clone; clones share the token.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    watch: Option<Watch>,
}

/// Who is told of every exchange.
type Watch = Arc<dyn Fn(&Exchange) + Send + Sync>;

struct Inner {
    mode: Mode,
    base_url: Url,
    client_id: String,
    timeouts: Timeouts,
    http: reqwest::Client,
    tokens: Tokens,
    heard: Arc<Heard>,
}

/// One answer, before it means anything.
struct Answer {
    status: u16,
    debug_id: Option<String>,
    retry_after: Option<u64>,
    body: Result<Vec<u8>, Failure>,
}

/// Why there is no answer.
pub(crate) struct Failure {
    pub(crate) why: String,
    /// Whether anything may have left.
    pub(crate) sent: bool,
    /// Whether there was one, longer than is read.
    pub(crate) too_long: bool,
}

impl Failure {
    pub(crate) fn of(error: reqwest::Error) -> Self {
        // Without a connection not one byte of the request was written.
        let sent = !(error.is_connect() || error.is_builder());
        let error = error.without_url();
        let mut why = error.to_string();
        let mut source = error.source();
        while let Some(deeper) = source {
            let words = deeper.to_string();
            if !why.contains(&words) {
                why.push_str(": ");
                why.push_str(&words);
            }
            source = deeper.source();
        }
        if error.is_timeout() {
            why = format!("timed out: {why}");
        }
        Self { why, sent, too_long: false }
    }
}

/// The HTTP client of everything that talks to PayPal.
pub(crate) fn http_client(timeouts: &Timeouts) -> Result<reqwest::Client, ConfigError> {
    // Already installed is as good as installed by us.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let roots = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect::<rustls::RootCertStore>();
    let tls = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .connect_timeout(timeouts.connect)
        .build()
        .map_err(|error| ConfigError::Http(error.to_string()))
}

impl Client {
    /// Checks the configuration and makes a client. Sends nothing.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        config.check()?;
        let http = http_client(&config.timeouts)?;
        let pair = Zeroizing::new(format!("{}:{}", config.client_id, config.secret.expose()));
        let basic = Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes())));
        let mut basic = HeaderValue::from_str(&basic).map_err(|_| ConfigError::Credentials)?;
        basic.set_sensitive(true);
        let token_url = place(&config.base_url, "/v1/oauth2/token");
        let heard = Arc::new(Heard::default());
        let timeout = config.timeouts.read;
        let tokens = Tokens::new(http.clone(), token_url, basic, timeout, Arc::clone(&heard));
        Ok(Self {
            inner: Arc::new(Inner {
                mode: config.mode,
                base_url: config.base_url.clone(),
                client_id: config.client_id.clone(),
                timeouts: config.timeouts,
                http,
                tokens,
                heard,
            }),
            watch: None,
        })
    }

    /// Has somebody told of every exchange once it ended, for counting. It must not block.
    #[must_use]
    pub fn watched(self, watch: impl Fn(&Exchange) + Send + Sync + 'static) -> Self {
        Self { watch: Some(Arc::new(watch)), ..self }
    }

    /// Compares PayPal's clock with this one from now on; without, they count as the same.
    #[must_use]
    pub fn beside(self, clock: Clock) -> Self {
        self.inner.heard.go_by(clock);
        self
    }

    /// How far PayPal's clock is ahead of ours, as its last answer told; `None` where none did.
    pub fn ahead(&self) -> Option<SignedDuration> {
        self.inner.heard.ahead()
    }

    /// As [`Client::ahead`]; asks PayPal first where it told nothing so far, or our clock was set
    /// since. `None` where it never told.
    ///
    /// # Errors
    /// [`ClockUnknown`] where our clock was set and PayPal does not tell the time now.
    pub async fn ask_ahead(&self) -> Result<Option<SignedDuration>, ClockUnknown> {
        if self.inner.heard.is_stale() {
            // Whatever it answers, it says when.
            self.inner.tokens.again().await;
        }
        self.inner.heard.sure()
    }

    /// Which PayPal this is.
    pub fn mode(&self) -> Mode {
        self.inner.mode
    }

    /// Where it is.
    pub fn base_url(&self) -> &Url {
        &self.inner.base_url
    }

    /// Our app's id there.
    pub fn client_id(&self) -> &str {
        &self.inner.client_id
    }

    /// Makes sure that a token is at hand, so that a [`Client::send`] that follows at once writes
    /// its request without a token call in between (for the lease check just before writing).
    pub async fn prepare(&self) -> Result<(), AuthError> {
        self.inner.tokens.get().await.map(|_| ())
    }

    /// The scopes of the current token; fetches one if there is none.
    pub async fn scopes(&self) -> Result<BTreeSet<String>, AuthError> {
        self.inner.tokens.scopes().await
    }

    /// Sends a request once and says what became of it.
    ///
    /// Only a refused token makes it send again: 401, or 403 `NOT_AUTHORIZED`, each at most once a
    /// call, with the same `PayPal-Request-Id`. Never fails: what went wrong is an [`Outcome`].
    pub async fn send(&self, request: &Request) -> Exchange {
        self.send_while(request, || true).await
    }

    /// As [`Client::send`], for a right to send that ends: `may` is asked just before the request is
    /// written, a token at hand, and each time it is. Where it says no, this request is not sent.
    pub async fn send_while(&self, request: &Request, may: impl Fn() -> bool) -> Exchange {
        let begun = std::time::Instant::now();
        let mut exchange = self.exchange(request, may).await;
        exchange.took = begun.elapsed();
        if let Some(watch) = &self.watch {
            watch(&exchange);
        }
        tracing::info!(
            operation = exchange.operation.as_str(),
            key = request.key(),
            status = exchange.status,
            debug_id = exchange.debug_id.as_deref(),
            outcome = exchange.outcome.as_str(),
            issue = exchange.outcome.issue(),
            sends = exchange.sends,
            took_ms = u64::try_from(exchange.took.as_millis()).unwrap_or(u64::MAX),
            "paypal call"
        );
        exchange
    }

    async fn exchange(&self, request: &Request, may: impl Fn() -> bool) -> Exchange {
        let mut exchange = Exchange {
            operation: request.operation(),
            status: None,
            debug_id: None,
            body: String::new(),
            sends: 0,
            too_long: false,
            took: std::time::Duration::ZERO,
            outcome: Outcome::unsent("not sent"),
        };
        let tokens = &self.inner.tokens;
        let mut token = match tokens.get().await {
            Ok(token) => token,
            Err(error) => {
                exchange.outcome = without_token(error, exchange.sends);
                return exchange;
            }
        };
        loop {
            if !may() {
                exchange.outcome = not_sent("the right to send has ended", exchange.sends);
                return exchange;
            }
            exchange.sends = exchange.sends.saturating_add(1);
            let answer = self.once(request, &token).await;
            let stale = answer.as_ref().ok().and_then(Answer::stale);
            let first_answer = exchange.sends == 1;
            exchange.take(answer);
            let Some(why) = stale.filter(|_| first_answer) else { return exchange };
            match tokens.renew(&token, why).await {
                Some(Ok(fresh)) => token = fresh,
                Some(Err(error)) => {
                    exchange.outcome = without_token(error, exchange.sends);
                    return exchange;
                }
                None => return exchange,
            }
        }
    }

    async fn once(&self, request: &Request, token: &Token) -> Result<Answer, Failure> {
        let operation = request.operation();
        let url = place(&self.inner.base_url, request.path());
        let method = match operation.method() {
            Method::Get => reqwest::Method::GET,
            Method::Post => reqwest::Method::POST,
            Method::Delete => reqwest::Method::DELETE,
        };
        let timeouts = &self.inner.timeouts;
        let timeout = if operation.moves_money() { timeouts.money } else { timeouts.read };
        let mut call = self
            .inner
            .http
            .request(method, url)
            .timeout(timeout)
            .header(AUTHORIZATION, token.bearer.clone())
            .header(USER_AGENT, concat!("earnest/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "application/json");
        if let Some(key) = request.key() {
            call = call.header("PayPal-Request-Id", key);
        }
        if operation.wants_representation() {
            call = call.header("Prefer", "return=representation");
        }
        if operation.method() == Method::Post {
            call = call.header(CONTENT_TYPE, "application/json").body(request.body().to_vec());
        }
        let answer = call.send().await.map_err(Failure::of)?;
        self.inner.heard.hear(answer.headers());
        let header = |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok());
        let status = answer.status().as_u16();
        let debug_id = header("paypal-debug-id").map(str::to_owned);
        let retry_after = outcome::retry_after(header("retry-after"));
        let cap = if operation.is_read() { MAX_PAGE } else { MAX_ANSWER };
        let body = read_capped(answer, cap).await;
        Ok(Answer { status, debug_id, retry_after, body })
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("mode", &self.inner.mode)
            .field("base_url", &self.inner.base_url.as_str())
            .finish_non_exhaustive()
    }
}

impl Answer {
    /// Whether the token may be to blame.
    fn stale(&self) -> Option<Stale> {
        let name = || self.body.as_ref().ok().and_then(|body| outcome::error_name(body));
        match self.status {
            401 => Some(Stale::Dead),
            403 if name().as_deref() == Some("NOT_AUTHORIZED") => Some(Stale::Scopes),
            _ => None,
        }
    }
}

impl Exchange {
    fn take(&mut self, answer: Result<Answer, Failure>) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => {
                // A repeat that found no connection was still preceded by a send that was refused.
                let sent = failure.sent;
                self.outcome = Outcome::Unknown { why: failure.why, sent, resource: None };
                if !sent {
                    self.sends = self.sends.saturating_sub(1);
                }
                return;
            }
        };
        self.status = Some(answer.status);
        self.debug_id = answer.debug_id;
        match answer.body {
            Ok(body) => {
                self.debug_id = self.debug_id.take().or_else(|| outcome::body_debug_id(&body));
                self.outcome =
                    outcome::classify(self.operation, answer.status, &body, answer.retry_after);
                self.body = String::from_utf8_lossy(&body).into_owned();
            }
            Err(failure) => {
                self.too_long = failure.too_long;
                self.outcome = Outcome::lost(format!("status {}: {}", answer.status, failure.why));
            }
        }
    }
}

/// What it means that there is no token, before (`sends` 0) or after a send was refused for it.
fn without_token(error: AuthError, sends: u32) -> Outcome {
    match error {
        AuthError::Rejected { status, error } => Outcome::Refused {
            issue: error,
            description: format!("PayPal refused our credentials (status {status})"),
        },
        AuthError::RateLimited { after_seconds } => Outcome::Retry {
            wait: Wait::RateLimited,
            after_seconds,
            issue: "RATE_LIMIT_REACHED".to_owned(),
        },
        AuthError::Unavailable(why) => not_sent(&format!("no token: {why}"), sends),
    }
}

/// What it means that nothing is sent, at first or after a send was refused for its token.
fn not_sent(why: &str, sends: u32) -> Outcome {
    if sends == 0 {
        return Outcome::unsent(why);
    }
    // The send itself was refused at the door: it did not run.
    let issue = "invalid_token".to_owned();
    Outcome::Retry { wait: Wait::NoToken, after_seconds: None, issue }
}

/// The path of a request on the configured host. Path and query are set, never joined, so that
/// nothing in them can name another host.
fn place(base: &Url, path_and_query: &str) -> Url {
    let (path, query) = match path_and_query.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path_and_query, None),
    };
    let mut url = base.clone();
    url.set_path(path);
    url.set_query(query);
    url
}

/// Reads a body up to `cap` bytes; a longer one is a failure.
pub(crate) async fn read_capped(
    mut answer: reqwest::Response,
    cap: usize,
) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(Failure::of)? {
        if body.len().saturating_add(chunk.len()) > cap {
            let why = format!("the answer is longer than {cap} bytes");
            return Err(Failure { why, sent: true, too_long: true });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_name_another_host() {
        let base = Url::parse("http://127.0.0.1:4021").unwrap();
        for path in ["//evil.example/x", "@evil.example/x", "https://evil.example", "\\\\evil"] {
            let url = place(&base, path);
            assert_eq!(url.host_str(), Some("127.0.0.1"), "{path} -> {url}");
            assert_eq!(url.port(), Some(4021));
        }
    }
}
