//! Where PayPal is and who we are there.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::{Host, Url};
use zeroize::Zeroizing;

/// Which PayPal this is. The three never share a database, and no host serves two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A simulator by URL; loopback may speak plain HTTP.
    Simulated,
    /// PayPal's sandbox: real API, play money.
    Sandbox,
    /// Real money.
    Live,
}

impl Mode {
    /// The word used in settings and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Simulated => "simulated",
            Self::Sandbox => "sandbox",
            Self::Live => "live",
        }
    }

    /// PayPal's address in this mode; a simulator has none of its own.
    pub const fn base_url(self) -> Option<&'static str> {
        match self {
            Self::Simulated => None,
            Self::Sandbox => Some("https://api-m.sandbox.paypal.com"),
            Self::Live => Some("https://api-m.paypal.com"),
        }
    }

    /// The hosts of PayPal's own that belong to this mode: for the API and for certificates.
    pub const fn hosts(self) -> &'static [&'static str] {
        match self {
            Self::Simulated => &[],
            Self::Sandbox => &["api-m.sandbox.paypal.com", "api.sandbox.paypal.com"],
            Self::Live => &["api-m.paypal.com", "api.paypal.com"],
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A secret that never shows itself and is wiped when dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Keeps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(Zeroizing::new(secret.into()))
    }

    /// The secret itself, for whoever has to send it or write it into a file of its own.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// How long to wait. PayPal publishes no figures; these are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To open a connection.
    pub connect: Duration,
    /// For a whole read, a token call or a verification.
    pub read: Duration,
    /// For a whole POST that moves money: longer, since giving up makes the outcome unknown.
    pub money: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            read: Duration::from_secs(15),
            money: Duration::from_secs(50),
        }
    }
}

/// What a [`crate::Client`] is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which PayPal.
    pub mode: Mode,
    /// Scheme and host, without a path.
    pub base_url: Url,
    /// The REST app's client id.
    pub client_id: String,
    /// The REST app's secret.
    pub secret: Secret,
    /// How long to wait.
    pub timeouts: Timeouts,
    /// Further `host:port` values, exact, that webhook certificates may come from.
    /// Refused unless the mode is simulated.
    pub webhook_cert_hosts: Vec<String>,
    /// The root certificate (PEM) that webhook certificates chain to, in place of the public
    /// roots. Refused unless the mode is simulated.
    pub webhook_root_pem: Option<String>,
}

/// Why a configuration is refused. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Client id or secret is empty or not printable ASCII.
    #[error("PayPal client id and secret must be set and printable")]
    Credentials,
    /// Not an absolute `https` URL without path, query or user (plain `http` is for a simulator on
    /// loopback only).
    #[error("`{0}` is not usable as PayPal's address: https, a host, nothing after it")]
    BaseUrl(String),
    /// A host that does not belong to the mode, such as the live host in sandbox mode.
    #[error("host `{host}` is not PayPal's in {mode} mode")]
    Host {
        /// The host that was given.
        host: String,
        /// The mode it was given for.
        mode: Mode,
    },
    /// Certificate hosts or a root of our own outside simulated mode, or unreadable ones.
    #[error("webhook certificate hosts and roots of our own are for simulated mode only")]
    WebhookTrust,
    /// The HTTP client could not be built.
    #[error("HTTP client: {0}")]
    Http(String),
}

impl Config {
    /// PayPal itself, with default time-outs. Refuses [`Mode::Simulated`], which needs a URL.
    pub fn paypal(mode: Mode, client_id: &str, secret: Secret) -> Result<Self, ConfigError> {
        let base = mode.base_url().unwrap_or_default();
        let base_url = Url::parse(base).map_err(|_| ConfigError::BaseUrl(base.to_owned()))?;
        Ok(Self::at(mode, base_url, client_id, secret))
    }

    /// A simulator at `base_url`.
    pub fn simulated(base_url: Url, client_id: &str, secret: Secret) -> Self {
        Self::at(Mode::Simulated, base_url, client_id, secret)
    }

    fn at(mode: Mode, base_url: Url, client_id: &str, secret: Secret) -> Self {
        Self {
            mode,
            base_url,
            client_id: client_id.to_owned(),
            secret,
            timeouts: Timeouts::default(),
            webhook_cert_hosts: Vec::new(),
            webhook_root_pem: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let printable =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        // A colon in the id would move the border between id and secret in the Basic header.
        if !printable(&self.client_id)
            || self.client_id.contains(':')
            || !printable(self.secret.expose())
        {
            return Err(ConfigError::Credentials);
        }
        self.check_base_url()?;
        let own_trust = !self.webhook_cert_hosts.is_empty() || self.webhook_root_pem.is_some();
        if own_trust && self.mode != Mode::Simulated {
            return Err(ConfigError::WebhookTrust);
        }
        Ok(())
    }

    fn check_base_url(&self) -> Result<(), ConfigError> {
        let url = &self.base_url;
        let bad = || ConfigError::BaseUrl(url.to_string());
        let bare = matches!(url.path(), "" | "/")
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none();
        let host = url.host_str().ok_or_else(bad)?;
        if !bare {
            return Err(bad());
        }
        let plain_is_fine = self.mode == Mode::Simulated && is_loopback(url);
        if url.scheme() != "https" && !(url.scheme() == "http" && plain_is_fine) {
            return Err(bad());
        }
        let wrong_host = match self.mode {
            // A simulated database must not meet real money.
            Mode::Simulated => host == "paypal.com" || host.ends_with(".paypal.com"),
            mode => !mode.hosts().contains(&host) || url.port().is_some(),
        };
        if wrong_host {
            return Err(ConfigError::Host { host: host.to_owned(), mode: self.mode });
        }
        Ok(())
    }
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => IpAddr::V4(ip).is_loopback(),
        Some(Host::Ipv6(ip)) => IpAddr::V6(ip).is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mode: Mode, url: &str, good: bool) {
        let config = Config::at(mode, Url::parse(url).unwrap(), "id", Secret::new("secret"));
        assert_eq!(config.check().is_ok(), good, "{mode} {url}");
    }

    #[test]
    fn each_mode_has_its_own_hosts() {
        check(Mode::Live, "https://api-m.paypal.com", true);
        check(Mode::Live, "https://api.paypal.com", true);
        check(Mode::Sandbox, "https://api-m.sandbox.paypal.com/", true);
        check(Mode::Live, "https://api-m.sandbox.paypal.com", false);
        check(Mode::Sandbox, "https://api-m.paypal.com", false);
        check(Mode::Simulated, "https://api-m.paypal.com", false);
        check(Mode::Simulated, "http://127.0.0.1:4021", true);
        check(Mode::Simulated, "http://[::1]:4021", true);
        check(Mode::Simulated, "https://sim.example", true);
        check(Mode::Simulated, "http://sim.example", false);
        check(Mode::Live, "http://api-m.paypal.com", false);
        check(Mode::Live, "https://api-m.paypal.com:8443", false);
        check(Mode::Live, "https://api-m.paypal.com.evil.example", false);
        check(Mode::Live, "https://u@api-m.paypal.com", false);
        check(Mode::Live, "https://api-m.paypal.com/v2", false);
        check(Mode::Live, "http://127.0.0.1:1", false);
    }

    #[test]
    fn own_webhook_trust_is_for_a_simulator_only() {
        let mut config = Config::paypal(Mode::Sandbox, "id", Secret::new("secret")).unwrap();
        config.webhook_cert_hosts.push("127.0.0.1:4021".to_owned());
        assert_eq!(config.check(), Err(ConfigError::WebhookTrust));
    }

    #[test]
    fn a_secret_never_shows_itself() {
        let config = Config::paypal(Mode::Live, "id", Secret::new("hunter2")).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
        assert!(Config::paypal(Mode::Simulated, "id", Secret::new("s")).is_err());
    }
}
