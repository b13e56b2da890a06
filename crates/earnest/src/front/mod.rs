//! What stands before everything: whose address a request counts for, and how many it may send.
//!
//! Nothing here decides about money; it keeps strangers from costing anything. An address is counted
//! before a credential is looked at, a credential after it was found good, so that nobody can use up
//! the share of a key that they do not hold. Both answers are `rate_limited` with `Retry-After`.

use std::net::IpAddr;

use axum::extract::Request;
use earnest_core::problem::{Code, Refusal};
use serde::{Deserialize, Serialize};

use self::address::{Hops, Networks};
use self::limit::{Beat, Limit};
use crate::listen::Peer;
use crate::source::Clock;

pub mod address;
pub mod limit;

/// `[front]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct FrontFile {
    /// Whose `forwarded_header` is believed: addresses or networks.
    pub trusted_proxies: Option<Networks>,
    /// `x-forwarded-for` unless said, or `forwarded`.
    pub forwarded_header: Option<ForwardedHeader>,
    /// How many requests one address may send in a minute; 0 for any number.
    pub address_per_minute: Option<u32>,
    /// How many requests one key or signed-in browser may send in a minute; 0 for any number.
    pub credential_per_minute: Option<u32>,
    /// Connections whose address is not counted.
    pub uncounted: Option<Networks>,
}

/// Which header names the hops. Only one is read: a proxy writes one and passes the other through,
/// as whoever asks wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardedHeader {
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

/// The settings, complete.
#[derive(Clone, Debug)]
pub struct FrontConfig {
    /// Who is in front of this Earnest, and where it says who asks.
    pub hops: Hops,
    /// How many requests one address may send in a minute.
    pub address_per_minute: u32,
    /// How many requests one credential may send in a minute.
    pub credential_per_minute: u32,
    /// Connections whose address is not counted.
    pub uncounted: Networks,
}

/// Requests of one address in a minute, unless set: fifty a second, for an office behind one address.
const ADDRESS_PER_MINUTE: u32 = 3_000;
/// Requests of one credential in a minute, unless set: a hundred a second.
const CREDENTIAL_PER_MINUTE: u32 = 6_000;

impl FrontConfig {
    /// Nobody is counted: for demonstrations and tests on loopback, where nobody else can ask.
    pub fn open() -> Self {
        Self {
            hops: Hops::default(),
            address_per_minute: 0,
            credential_per_minute: 0,
            uncounted: Networks::default(),
        }
    }
}

impl From<FrontFile> for FrontConfig {
    fn from(file: FrontFile) -> Self {
        Self {
            hops: Hops {
                trusted: file.trusted_proxies.unwrap_or_default(),
                header: file.forwarded_header.unwrap_or_default(),
            },
            address_per_minute: file.address_per_minute.unwrap_or(ADDRESS_PER_MINUTE),
            credential_per_minute: file.credential_per_minute.unwrap_or(CREDENTIAL_PER_MINUTE),
            uncounted: file.uncounted.unwrap_or_else(Networks::loopback),
        }
    }
}

/// Every setting as a file would say it.
impl From<FrontConfig> for FrontFile {
    fn from(config: FrontConfig) -> Self {
        Self {
            trusted_proxies: Some(config.hops.trusted),
            forwarded_header: Some(config.hops.header),
            address_per_minute: Some(config.address_per_minute),
            credential_per_minute: Some(config.credential_per_minute),
            uncounted: Some(config.uncounted),
        }
    }
}

/// The front of a running Earnest.
pub struct Front {
    hops: Hops,
    uncounted: Networks,
    addresses: Limit<IpAddr>,
    credentials: Limit<[u8; 32]>,
}

/// Whose request it is, as far as the configured proxies can be believed. Beside every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress(pub IpAddr);

/// Marks a request whose credential was counted: one is counted once, however often it is looked up.
#[derive(Clone, Copy, Debug)]
struct Counted;

impl Front {
    /// The front for these settings; `own` is an address more that is not counted.
    pub fn new(config: &FrontConfig, clock: &Clock, own: Option<IpAddr>) -> Self {
        let beat = Beat::new(clock.clone());
        let mut uncounted = config.uncounted.clone();
        uncounted.extend(own);
        Self {
            hops: config.hops.clone(),
            uncounted,
            addresses: Limit::per_minute(config.address_per_minute, beat.clone()),
            credentials: Limit::per_minute(config.credential_per_minute, beat),
        }
    }

    /// Counts a request for its address, before anything else looks at it, and puts [`ClientAddress`]
    /// beside it.
    ///
    /// # Errors
    /// `rate_limited`.
    pub fn enter(&self, request: &mut Request) -> Result<(), Refusal> {
        // None where no listener stands before the router, as in a test of it.
        let Some(Peer(peer)) = request.extensions().get::<Peer>().copied() else { return Ok(()) };
        let client = self.hops.client(peer, request.headers());
        // A proxy on an uncounted address still has its clients counted.
        if client != peer.to_canonical() || !self.uncounted.contains(peer) {
            self.addresses.count(address::household(client), "address").map_err(too_many)?;
        }
        request.extensions_mut().insert(ClientAddress(client));
        Ok(())
    }

    /// Counts a request for a credential that was found good.
    ///
    /// # Errors
    /// `rate_limited`.
    pub fn credential(
        &self,
        hash: [u8; 32],
        extensions: &mut http::Extensions,
    ) -> Result<(), Refusal> {
        if extensions.insert(Counted).is_some() {
            return Ok(());
        }
        self.credentials.count(hash, "key").map_err(too_many)
    }

    /// How many addresses and credentials are remembered.
    pub fn remembered(&self) -> (usize, usize) {
        (self.addresses.remembered(), self.credentials.remembered())
    }
}

fn too_many(full: limit::Full) -> Refusal {
    let why = format!("too many requests from this {}", full.what);
    Refusal::new(Code::RateLimited, why)
        .with("limit_per_minute", full.per_minute)
        .retry_after(full.retry_after_seconds)
}
