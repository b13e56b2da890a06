//! PayPal's signing certificates: where they may come from, and what makes one PayPal's.
//!
//! The sender chooses the address in `PAYPAL-CERT-URL`; only exact hosts of PayPal's are ever
//! asked, and what comes back still has to chain to a trusted root and be named under
//! `.paypal.com`. A chain is checked against the clock at every use, so an expired one is fetched
//! anew and nothing else needs to be remembered of it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use earnest_core::time::Timestamp;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use url::Url;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::verify::{Invalid, Verification};
use crate::client::{Failure, http_client, read_capped};
use crate::config::{Config, ConfigError, Mode, is_loopback};

/// Where PayPal keeps certificates.
const CERT_PATH: &str = "/v1/notifications/certs/";
/// The largest certificate file that is read.
const MAX_PEM: usize = 64 * 1024;
/// The most certificates of a file, leaf included.
const MAX_CHAIN: usize = 8;
/// The most chains that are kept.
const MAX_KEPT: usize = 8;
/// The most fetches within [`FETCH_SPAN`]: strangers choose addresses, PayPal has a few.
const MAX_FETCHES: usize = 20;
const FETCH_SPAN: Duration = Duration::from_secs(60);
/// What every name of PayPal's ends in.
const NAME_ENDING: &str = ".paypal.com";

/// A leaf and the certificates above it, as fetched.
type Chain = std::sync::Arc<Vec<CertificateDer<'static>>>;

/// Fetches, checks and keeps certificates.
pub struct CertStore {
    http: reqwest::Client,
    timeout: Duration,
    /// Exact `host` (default port, https) or, for a simulator, exact `host:port`.
    hosts: &'static [&'static str],
    own_hosts: Vec<String>,
    anchors: Vec<TrustAnchor<'static>>,
    kept: Mutex<Vec<(String, Chain)>>,
    fetched: Mutex<Vec<Instant>>,
    fetching: Semaphore,
}

/// Why a chain is not at hand.
enum NoChain {
    Invalid(Invalid),
    CannotTell(String),
}

impl CertStore {
    /// A store for one mode: its hosts and the public roots, or a simulator's own.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        config.check()?;
        let mut anchors = Vec::new();
        match &config.webhook_root_pem {
            Some(pem) => {
                for root in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                    let root = root.map_err(|_| ConfigError::WebhookTrust)?;
                    let anchor =
                        anchor_from_trusted_cert(&root).map_err(|_| ConfigError::WebhookTrust)?;
                    anchors.push(anchor.to_owned());
                }
                if anchors.is_empty() {
                    return Err(ConfigError::WebhookTrust);
                }
            }
            None if config.mode == Mode::Simulated => {}
            None => anchors.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        }
        Ok(Self {
            http: http_client(&config.timeouts)?,
            timeout: config.timeouts.read,
            hosts: config.mode.hosts(),
            own_hosts: config.webhook_cert_hosts.clone(),
            anchors,
            kept: Mutex::new(Vec::new()),
            fetched: Mutex::new(Vec::new()),
            fetching: Semaphore::new(1),
        })
    }

    /// Whether a certificate may be fetched from there at all.
    // INVARIANT: no_certificate_is_fetched_from_a_host_that_is_not_paypals_in_this_mode
    pub(crate) fn check_url(&self, text: &str) -> Result<Url, Invalid> {
        let url = Url::parse(text).map_err(|_| Invalid::CertUrl)?;
        // What was parsed must be what was written: no tabs, backslashes, dots or encodings that
        // somebody else would read differently.
        let plain = url.as_str() == text
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none();
        let name = url.path().strip_prefix(CERT_PATH).unwrap_or_default();
        let letter = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        let named =
            (1..=128).contains(&name.len()) && name.bytes().all(letter) && !name.starts_with('.');
        let host = url.host_str().unwrap_or_default();
        let paypals = url.scheme() == "https" && url.port().is_none() && self.hosts.contains(&host);
        // A simulator is named with its port, and may speak plain HTTP on loopback.
        let own = url.port_or_known_default().is_some_and(|port| {
            let secure = url.scheme() == "https" || (url.scheme() == "http" && is_loopback(&url));
            secure && self.own_hosts.contains(&format!("{host}:{port}"))
        });
        if plain && named && (paypals || own) { Ok(url) } else { Err(Invalid::CertUrl) }
    }

    /// Checks a signature with the certificate at `url`.
    pub(crate) async fn verify(
        &self,
        url: &str,
        message: &[u8],
        signature: &[u8],
        now: Timestamp,
    ) -> Verification {
        let chain = match self.chain(url, now).await {
            Ok(chain) => chain,
            Err(NoChain::Invalid(why)) => return Verification::Invalid(why),
            Err(NoChain::CannotTell(why)) => return Verification::CannotTell(why),
        };
        let signed = chain.first().is_some_and(|leaf| {
            EndEntityCert::try_from(leaf).is_ok_and(|leaf| {
                leaf.verify_signature(webpki::ring::RSA_PKCS1_2048_8192_SHA256, message, signature)
                    .is_ok()
            })
        });
        if signed { Verification::Valid } else { Verification::Invalid(Invalid::Signature) }
    }

    /// A trusted chain from `url`: kept, or fetched by one caller at a time.
    async fn chain(&self, url: &str, now: Timestamp) -> Result<Chain, NoChain> {
        let address = self.check_url(url).map_err(NoChain::Invalid)?;
        if let Some(chain) = self.kept_chain(url, now) {
            return Ok(chain);
        }
        let cannot = |why: &str| NoChain::CannotTell(why.to_owned());
        let _turn = self.fetching.acquire().await.map_err(|_| cannot("closed"))?;
        if let Some(chain) = self.kept_chain(url, now) {
            return Ok(chain);
        }
        if !self.may_fetch() {
            return Err(cannot("too many certificates were asked for"));
        }
        let pem = self.fetch(address).await.map_err(|failure| {
            NoChain::CannotTell(format!("certificate not fetched: {}", failure.why))
        })?;
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem)
            .take(MAX_CHAIN)
            .collect::<Result<_, _>>()
            .map_err(|_| cannot("the certificate is not PEM"))?;
        if chain.is_empty() {
            return Err(cannot("the certificate is not PEM"));
        }
        if !self.trusts(&chain, now) {
            return Err(NoChain::Invalid(Invalid::Certificate));
        }
        let chain = Chain::new(chain);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(other, _)| other != url);
        if kept.len() >= MAX_KEPT {
            kept.remove(0);
        }
        kept.push((url.to_owned(), Chain::clone(&chain)));
        Ok(chain)
    }

    fn kept_chain(&self, url: &str, now: Timestamp) -> Option<Chain> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let chain = kept.iter().find(|(other, _)| other == url).map(|(_, c)| Chain::clone(c))?;
        drop(kept);
        self.trusts(&chain, now).then_some(chain)
    }

    fn may_fetch(&self) -> bool {
        let mut fetched = self.fetched.lock().unwrap_or_else(PoisonError::into_inner);
        fetched.retain(|at| at.elapsed() < FETCH_SPAN);
        let free = fetched.len() < MAX_FETCHES;
        if free {
            fetched.push(Instant::now());
        }
        free
    }

    async fn fetch(&self, url: Url) -> Result<Vec<u8>, Failure> {
        let sent = self.http.get(url).timeout(self.timeout).send().await;
        let answer = sent.map_err(Failure::of)?;
        if answer.status() != reqwest::StatusCode::OK {
            let why = format!("status {}", answer.status().as_u16());
            return Err(Failure { why, sent: true, too_long: false });
        }
        read_capped(answer, MAX_PEM).await
    }

    /// Valid now, chains to a root, and named under `.paypal.com`.
    fn trusts(&self, chain: &[CertificateDer<'static>], now: Timestamp) -> bool {
        let Some((leaf, above)) = chain.split_first() else { return false };
        let Ok(seconds) = u64::try_from(now.as_second()) else { return false };
        let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let Ok(leaf) = EndEntityCert::try_from(leaf) else { return false };
        let chained = leaf.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &self.anchors,
            above,
            time,
            // PayPal's signing certificates are TLS server certificates.
            KeyUsage::server_auth(),
            None,
            None,
        );
        chained.is_ok() && common_name_is_paypals(leaf.subject())
    }
}

impl std::fmt::Debug for CertStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertStore")
            .field("hosts", &self.hosts)
            .field("own_hosts", &self.own_hosts)
            .finish_non_exhaustive()
    }
}

/// Whether a subject has a common name and every one of them ends in `.paypal.com`.
///
/// The chain has been verified before, so these bytes were written by a trusted authority; what
/// does not read as plain DER is nevertheless refused.
fn common_name_is_paypals(subject: &[u8]) -> bool {
    common_names(subject).is_some_and(|names| {
        !names.is_empty()
            && names
                .iter()
                .all(|name| name.is_ascii() && name.to_ascii_lowercase().ends_with(NAME_ENDING))
    })
}

/// `id-at-commonName`, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const OID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

/// The common names of an X.501 name: a sequence of sets of (type, value).
fn common_names(subject: &[u8]) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut sets = subject;
    while !sets.is_empty() {
        let mut attributes = take(&mut sets, SET)?;
        while !attributes.is_empty() {
            let mut attribute = take(&mut attributes, SEQUENCE)?;
            if take(&mut attribute, OID)? != COMMON_NAME {
                continue;
            }
            let tag = *attribute.first()?;
            if ![UTF8_STRING, PRINTABLE_STRING, IA5_STRING].contains(&tag) {
                return None;
            }
            let value = take(&mut attribute, tag)?;
            names.push(String::from_utf8(value.to_vec()).ok()?);
        }
    }
    Some(names)
}

/// Takes one element with this tag off the front; lengths up to two bytes.
fn take<'a>(input: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (found, rest) = input.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81 => {
            let (length, rest) = rest.split_first()?;
            (usize::from(*length), rest)
        }
        0x82 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    *input = rest;
    (*found == tag).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    #[test]
    fn no_certificate_is_fetched_from_a_host_that_is_not_paypals_in_this_mode() {
        let live = Config::paypal(Mode::Live, "id", Secret::new("s")).unwrap();
        let live = CertStore::new(&live).unwrap();
        let good = "https://api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-1d93a270";
        assert!(live.check_url(good).is_ok());
        assert!(live.check_url(&good.replace("api.", "api-m.")).is_ok());
        for bad in [
            "https://cert.evil.example/c.pem",
            "https://api.sandbox.paypal.com/v1/notifications/certs/CERT-1",
            "http://api.paypal.com/v1/notifications/certs/CERT-1",
            "https://api.paypal.com:8443/v1/notifications/certs/CERT-1",
            "https://api.paypal.com:443/v1/notifications/certs/CERT-1",
            "https://api.paypal.com.evil.example/v1/notifications/certs/CERT-1",
            "https://evil.example/api.paypal.com/v1/notifications/certs/CERT-1",
            "https://api.paypal.com@evil.example/v1/notifications/certs/CERT-1",
            "https://user@api.paypal.com/v1/notifications/certs/CERT-1",
            "https://API.PAYPAL.COM/v1/notifications/certs/CERT-1",
            "https://xapi.paypal.com/v1/notifications/certs/CERT-1",
            "https://api.paypal.com./v1/notifications/certs/CERT-1",
            "https://api.paypal.com/v1/notifications/certs/",
            "https://api.paypal.com/v1/notifications/certs/../../x",
            "https://api.paypal.com/v1/notifications/certs/%2e%2e/x",
            "https://api.paypal.com/v1/notifications/certs/..",
            "https://api.paypal.com/v1/notifications/certs/C?x=1",
            "https://api.paypal.com/v1/notifications/certs/C#x",
            "https://api.paypal.com/v1/other/CERT-1",
            "https://api.paypal.com\\@evil.example/v1/notifications/certs/CERT-1",
            "file:///v1/notifications/certs/CERT-1",
            "http://127.0.0.1/v1/notifications/certs/CERT-1",
            "",
        ] {
            assert_eq!(live.check_url(bad).err(), Some(Invalid::CertUrl), "{bad}");
        }
    }

    #[test]
    fn a_simulator_is_named_with_its_port_and_is_all_that_is_trusted() {
        let url = Url::parse("http://127.0.0.1:4021").unwrap();
        let mut config = Config::simulated(url, "sim", Secret::new("sim"));
        config.webhook_cert_hosts.push("127.0.0.1:4021".to_owned());
        let store = CertStore::new(&config).unwrap();
        assert!(store.check_url("http://127.0.0.1:4021/v1/notifications/certs/CERT-1").is_ok());
        assert!(store.check_url("http://127.0.0.1:4022/v1/notifications/certs/CERT-1").is_err());
        assert!(store.check_url("http://localhost:4021/v1/notifications/certs/CERT-1").is_err());
        assert!(store.check_url("https://api.paypal.com/v1/notifications/certs/CERT-1").is_err());
        assert!(store.anchors.is_empty());
    }

    #[test]
    fn every_common_name_must_be_paypals() {
        let name = |text: &str, oid: u8| {
            let length = u8::try_from(text.len()).unwrap();
            let mut inner = vec![OID, 3, 0x55, 0x04, oid, UTF8_STRING, length];
            inner.extend_from_slice(text.as_bytes());
            let mut out = vec![SET, length + 9, SEQUENCE, length + 7];
            out.extend_from_slice(&inner);
            out
        };
        let paypal = name("messageverificationcerts.paypal.com", 3);
        let other_kind = name("PayPal, Inc.", 10);
        let evil = name("paypal.com.evil.example", 3);
        let close = name("evilpaypal.com", 3);
        assert!(common_name_is_paypals(&paypal));
        assert!(common_name_is_paypals(&[other_kind.clone(), paypal.clone()].concat()));
        assert!(!common_name_is_paypals(&evil));
        assert!(!common_name_is_paypals(&close));
        assert!(!common_name_is_paypals(&other_kind));
        assert!(!common_name_is_paypals(&[paypal.clone(), evil].concat()));
        assert!(!common_name_is_paypals(&paypal[..paypal.len() - 1]));
        assert!(!common_name_is_paypals(&[]));
    }
}
