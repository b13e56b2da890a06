//! OAuth 2 client credentials: one token, fetched by one caller while the others wait.
//!
//! A token can die early (401) and it freezes the scopes of the moment it was issued (403), so
//! both are answered by fetching a fresh one once. A fetch that failed answers everybody who was
//! waiting for it: a PayPal that is down gets one request, not one per waiting caller.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::Url;

use crate::client::{Failure, read_capped};
use crate::clock::Heard;
use crate::outcome;

/// How long before its end a token is renewed.
const EARLY: Duration = Duration::from_secs(300);
/// How long after a failed early renewal the old token serves before the next try.
const RENEWAL_PAUSE: Duration = Duration::from_secs(30);
/// How long a 403 under a token that was fetched because of a 403 is taken at its word.
const SCOPES_SETTLED: Duration = Duration::from_secs(15 * 60);
/// The largest token answer that is read.
const MAX_ANSWER: usize = 64 * 1024;

/// Why there is no token. Nothing but the token call was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// PayPal refused the credentials.
    #[error("PayPal refused our credentials: {error} (status {status})")]
    Rejected {
        /// HTTP status.
        status: u16,
        /// `invalid_client`, `unsupported_grant_type`, …
        error: String,
    },
    /// PayPal wants fewer token calls.
    #[error("PayPal limits token calls")]
    RateLimited {
        /// `Retry-After`, where given.
        after_seconds: Option<u64>,
    },
    /// No usable answer.
    #[error("no token: {0}")]
    Unavailable(String),
}

/// A token as it was issued.
pub(crate) struct Token {
    pub(crate) bearer: HeaderValue,
    scopes: BTreeSet<String>,
    generation: u64,
    issued: Instant,
    renew_after: Duration,
    lives: Duration,
}

impl Token {
    fn is_fresh(&self) -> bool {
        self.issued.elapsed() < self.renew_after
    }

    fn is_alive(&self) -> bool {
        self.issued.elapsed() < self.lives
    }
}

/// Why a fresh token is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stale {
    /// 401: PayPal dropped it.
    Dead,
    /// 403 `NOT_AUTHORIZED`: its scopes may be old.
    Scopes,
}

/// The tokens of one app at one host.
pub(crate) struct Tokens {
    http: reqwest::Client,
    url: Url,
    basic: HeaderValue,
    timeout: Duration,
    heard: Arc<Heard>,
    current: RwLock<Option<Arc<Token>>>,
    /// Counts finished fetches, good or bad: tells a waiter that somebody fetched meanwhile.
    fetches: AtomicU64,
    fetching: Mutex<Fetching>,
}

#[derive(Default)]
struct Fetching {
    last_error: Option<AuthError>,
    /// The token under which a 403 is final, and since when.
    scopes_settled: Option<(u64, Instant)>,
}

#[derive(Deserialize)]
struct Answer {
    access_token: String,
    #[serde(default)]
    scope: String,
    expires_in: u64,
}

impl Tokens {
    pub(crate) fn new(
        http: reqwest::Client,
        url: Url,
        basic: HeaderValue,
        timeout: Duration,
        heard: Arc<Heard>,
    ) -> Self {
        Self {
            http,
            url,
            basic,
            timeout,
            heard,
            current: RwLock::new(None),
            fetches: AtomicU64::new(0),
            fetching: Mutex::new(Fetching::default()),
        }
    }

    /// A token that may be used now.
    pub(crate) async fn get(&self) -> Result<Arc<Token>, AuthError> {
        if let Some(token) = self.current().filter(|token| token.is_fresh()) {
            return Ok(token);
        }
        let seen = self.fetches.load(Ordering::Acquire);
        let mut fetching = self.fetching.lock().await;
        if let Some(token) = self.current().filter(|token| token.is_fresh()) {
            return Ok(token);
        }
        if self.fetches.load(Ordering::Acquire) != seen
            && let Some(error) = &fetching.last_error
        {
            return Err(error.clone());
        }
        self.fetch(&mut fetching).await
    }

    /// A token other than `old`, after PayPal refused it. `None` where a fresh one would be
    /// refused for the same reason.
    pub(crate) async fn renew(
        &self,
        old: &Token,
        why: Stale,
    ) -> Option<Result<Arc<Token>, AuthError>> {
        let seen = self.fetches.load(Ordering::Acquire);
        let mut fetching = self.fetching.lock().await;
        if let Some(token) = self.current()
            && token.generation != old.generation
        {
            // Somebody renewed it meanwhile: one dead token costs one token call.
            return Some(Ok(token));
        }
        if why == Stale::Scopes
            && let Some((generation, since)) = fetching.scopes_settled
            && generation == old.generation
            && since.elapsed() < SCOPES_SETTLED
        {
            return None;
        }
        if self.fetches.load(Ordering::Acquire) != seen
            && let Some(error) = &fetching.last_error
        {
            return Some(Err(error.clone()));
        }
        self.set(None);
        let fetched = self.fetch(&mut fetching).await;
        if let (Ok(token), Stale::Scopes) = (&fetched, why) {
            fetching.scopes_settled = Some((token.generation, Instant::now()));
        }
        Some(fetched)
    }

    /// Fetches one though there may be a good one: for what the answer says besides.
    pub(crate) async fn again(&self) {
        let seen = self.fetches.load(Ordering::Acquire);
        let mut fetching = self.fetching.lock().await;
        if self.fetches.load(Ordering::Acquire) == seen {
            // Whoever needs a token hears of what failed.
            let _ = self.fetch(&mut fetching).await;
        }
    }

    /// What the current token may do; fetches one if there is none.
    pub(crate) async fn scopes(&self) -> Result<BTreeSet<String>, AuthError> {
        Ok(self.get().await?.scopes.clone())
    }

    fn current(&self) -> Option<Arc<Token>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, token: Option<Arc<Token>>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = token;
    }

    async fn fetch(&self, fetching: &mut Fetching) -> Result<Arc<Token>, AuthError> {
        let generation = self.fetches.load(Ordering::Acquire).wrapping_add(1);
        let fetched = self.request(generation).await;
        self.fetches.store(generation, Ordering::Release);
        match fetched {
            Ok(token) => {
                let token = Arc::new(token);
                tracing::debug!(lives_seconds = token.lives.as_secs(), "paypal token fetched");
                self.set(Some(Arc::clone(&token)));
                fetching.last_error = None;
                Ok(token)
            }
            Err(error) => {
                tracing::warn!(%error, "paypal token not fetched");
                match self.current().filter(|token| token.is_alive()) {
                    // Renewal is early on purpose: the old one still serves, for a while unasked.
                    Some(old) => {
                        let renew_after =
                            old.issued.elapsed().saturating_add(RENEWAL_PAUSE).min(old.lives);
                        let old = Arc::new(Token {
                            bearer: old.bearer.clone(),
                            scopes: old.scopes.clone(),
                            renew_after,
                            ..*old
                        });
                        self.set(Some(Arc::clone(&old)));
                        fetching.last_error = None;
                        Ok(old)
                    }
                    None => {
                        fetching.last_error = Some(error.clone());
                        Err(error)
                    }
                }
            }
        }
    }

    async fn request(&self, generation: u64) -> Result<Token, AuthError> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, self.basic.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        let issued = Instant::now();
        let sent = self
            .http
            .post(self.url.clone())
            .headers(headers)
            .body("grant_type=client_credentials")
            .timeout(self.timeout)
            .send()
            .await
            .map_err(|error| AuthError::Unavailable(Failure::of(error).why))?;
        self.heard.hear(sent.headers());
        let status = sent.status().as_u16();
        let after = sent.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let after_seconds = outcome::retry_after(after);
        let body = read_capped(sent, MAX_ANSWER)
            .await
            .map_err(|failure| AuthError::Unavailable(failure.why))?;
        match status {
            200 => self.token(&body, generation, issued),
            429 => Err(AuthError::RateLimited { after_seconds }),
            400..=499 => Err(AuthError::Rejected {
                status,
                error: outcome::error_name(&body).unwrap_or_else(|| format!("HTTP_{status}")),
            }),
            _ => Err(AuthError::Unavailable(format!("status {status}"))),
        }
    }

    fn token(&self, body: &[u8], generation: u64, issued: Instant) -> Result<Token, AuthError> {
        let unreadable = || AuthError::Unavailable("the answer cannot be read".to_owned());
        let answer: Answer = serde_json::from_slice(body).map_err(|_| unreadable())?;
        let bearer = format!("Bearer {}", answer.access_token);
        let mut bearer = HeaderValue::from_str(&bearer).map_err(|_| unreadable())?;
        bearer.set_sensitive(true);
        let lives = Duration::from_secs(answer.expires_in);
        Ok(Token {
            bearer,
            scopes: answer.scope.split_ascii_whitespace().map(str::to_owned).collect(),
            generation,
            issued,
            renew_after: renew_after(lives, answer.access_token.as_bytes()),
            lives,
        })
    }
}

/// When to renew: 5 to 6 minutes before the end, or at half of a short life. The jitter is drawn
/// from the token itself, so that nodes with tokens of one moment do not renew in one moment.
fn renew_after(lives: Duration, token: &[u8]) -> Duration {
    let digest: [u8; 32] = Sha256::digest(token).into();
    let jitter = Duration::from_secs(u64::from(digest.first().copied().unwrap_or(0) % 60));
    let early = lives.saturating_sub(EARLY).saturating_sub(jitter);
    early.max(lives.checked_div(2).unwrap_or(lives))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_before_its_end() {
        let nine_hours = Duration::from_secs(32_400);
        let after = renew_after(nine_hours, b"A21AA");
        assert!(after <= nine_hours - EARLY && after >= nine_hours - EARLY * 2);
        assert_eq!(renew_after(Duration::from_secs(60), b"A21AA"), Duration::from_secs(30));
        assert_eq!(renew_after(Duration::ZERO, b"A21AA"), Duration::ZERO);
    }
}
