//! What both sides need before they start: settings read once, clients with safe defaults, ids.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use earnest_core::id::Seed;
use earnest_core::money::AmountError;
use earnest_core::problem::Refusal;
use earnest_core::quote::{canonical_url, is_loopback};
use url::Url;

use crate::nonce::NonceError;

/// The longest answer of Earnest's that is read into memory.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A setting that cannot be used. Everything is checked before the first request.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A URL or origin that is not one.
    #[error("{setting}: {why}")]
    Url {
        /// Which setting.
        setting: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Plain `http` to another machine would show a key to everybody in between.
    #[error("{setting}: plain http is only allowed to this machine, use https")]
    Insecure {
        /// Which setting.
        setting: &'static str,
    },
    /// A price that is no amount.
    #[error("price `{text}`: {why}")]
    Price {
        /// As it was given.
        text: String,
        /// What is wrong with it.
        why: AmountError,
    },
    /// A value that is missing or has another form.
    #[error("{setting}: {why}")]
    Value {
        /// Which setting.
        setting: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The nonce file cannot be used.
    #[error(transparent)]
    Nonces(#[from] NonceError),
    /// The HTTP client cannot be built.
    #[error("the HTTP client cannot be built: {0}")]
    Client(#[from] reqwest::Error),
}

/// A key or a voucher: never shows in logs.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn read(setting: &'static str, text: &str) -> Result<Self, SetupError> {
        let usable = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        if !usable {
            let why = "a key has at least one character and no white space".to_owned();
            return Err(SetupError::Value { setting, why });
        }
        Ok(Self(text.to_owned()))
    }

    pub(crate) const fn of(text: String) -> Self {
        Self(text)
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// The base URL of an Earnest: `https`, or `http` on this machine.
pub(crate) fn base_url(setting: &'static str, text: &str) -> Result<Url, SetupError> {
    let url = own_base_url(setting, text)?;
    if url.scheme() != "https" && !is_loopback(&url) {
        return Err(SetupError::Insecure { setting });
    }
    Ok(url)
}

/// The base URL of an Earnest that runs in this very process, whatever address it listens on.
pub(crate) fn own_base_url(setting: &'static str, text: &str) -> Result<Url, SetupError> {
    let refuse = |refusal: Refusal| SetupError::Url { setting, why: refusal.detail };
    let mut url = canonical_url(text).map_err(refuse)?;
    if url.query().is_some() {
        let why = "a base URL has no query".to_owned();
        return Err(SetupError::Url { setting, why });
    }
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    Ok(url)
}

/// `https://host:port`, without a path: what buyers see and a seller registers.
pub(crate) fn origin(setting: &'static str, text: &str) -> Result<String, SetupError> {
    let url = base_url(setting, text)?;
    if url.path() != "/" {
        let why = "an origin has no path".to_owned();
        return Err(SetupError::Url { setting, why });
    }
    Ok(url.origin().ascii_serialization())
}

/// `base` followed by a path of ours.
pub(crate) fn join(base: &Url, path: &str) -> String {
    format!("{}{path}", base.as_str().trim_end_matches('/'))
}

/// The client that talks to Earnest: no redirects, bounded in time; a proxy of the environment is
/// used except for this machine, which `own` says of an address that does not look like it.
pub(crate) fn earnest_client(base: &Url, own: bool) -> Result<reqwest::Client, SetupError> {
    install_tls();
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .connect_timeout(CONNECT_WITHIN)
        .timeout(ANSWER_WITHIN);
    if own || is_loopback(base) {
        builder = builder.no_proxy();
    }
    Ok(builder.build()?)
}

/// Makes ring the provider of TLS unless the program chose another before.
pub(crate) fn install_tls() {
    let _chosen_before = rustls::crypto::ring::default_provider().install_default();
}

/// Why an answer of Earnest's could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("{0}")]
    Transport(#[from] reqwest::Error),
    #[error("the answer is larger than 4 MiB")]
    TooLarge,
}

/// The whole body of an answer, at most 4 MiB.
pub(crate) async fn read_answer(mut response: reqwest::Response) -> Result<Vec<u8>, AnswerError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if bytes.len().saturating_add(chunk.len()) > MAX_ANSWER_BYTES {
            return Err(AnswerError::TooLarge);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The seconds a `Retry-After` names; a date is left out.
pub(crate) fn retry_after(headers: &http::HeaderMap) -> Option<u64> {
    headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

/// What a new id is made of.
///
/// # Errors
/// When the operating system gives no randomness.
pub(crate) fn seed() -> Result<Seed, getrandom::Error> {
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random)?;
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_ms = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
    Ok(Seed { unix_ms, random: u128::from_le_bytes(random) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_https_or_this_machine_and_have_no_path() {
        assert_eq!(origin("o", "https://api.example").unwrap(), "https://api.example");
        assert_eq!(origin("o", "http://127.0.0.1:80/").unwrap(), "http://127.0.0.1");
        assert!(matches!(origin("o", "http://api.example"), Err(SetupError::Insecure { .. })));
        for bad in ["https://api.example/v1", "https://api.example/?x", "api.example", ""] {
            assert!(origin("o", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_base_may_have_a_path() {
        let base = base_url("b", "https://example.com/earnest/").unwrap();
        assert_eq!(join(&base, "/v1/authorize"), "https://example.com/earnest/v1/authorize");
        let base = base_url("b", "http://localhost:4020").unwrap();
        assert_eq!(join(&base, "/v1/authorize"), "http://localhost:4020/v1/authorize");
    }

    #[test]
    fn keys_do_not_show() {
        assert_eq!(format!("{:?}", Secret::read("k", "ek_agent_x").unwrap()), "[secret]");
        assert!(Secret::read("k", "ek agent").is_err());
    }
}
