//! Does a seller control the origin it registers? Its server says so itself: under
//! `/.well-known/earnest-origin` it lists the ids of the sellers it serves, one a line.
//!
//! The address comes from a stranger, so the one request made here is guarded: https (http on
//! loopback where the operator allows it), no address of a private network, no redirect, little
//! time, little data, no headers of ours.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use earnest_core::admin::{Proof, PutOrigin, RecordProof};
use earnest_core::id::SellerId;
use earnest_core::party::Seller;
use earnest_core::problem::{Code, Refusal};
use earnest_core::quote::{canonical_url, is_loopback};
use earnest_store::SubmitError;
use futures_util::StreamExt as _;
use url::{Host, Url};

use crate::api::error::{ApiResult, refuse};
use crate::app::App;

/// Where a server lists the sellers it serves.
pub const PROOF_PATH: &str = "/.well-known/earnest-origin";
/// The most that is read of the list.
const MAX_PROOF_BYTES: usize = 16 * 1024;
/// How long the server may take.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);

/// The origin of a URL in its one spelling, if Earnest may call there at all.
///
/// # Errors
/// `url_invalid`; `target_forbidden` for addresses of private networks in any spelling.
pub fn check_origin(app: &App, text: &str) -> ApiResult<String> {
    let url = canonical_url(text)?;
    if url.path() != "/" || url.query().is_some() {
        return Err(refuse(Code::UrlInvalid, "an origin has no path: https://host[:port]"));
    }
    let loopback = is_loopback(&url);
    if url.scheme() != "https" && !(loopback && app.allow_loopback) {
        return Err(refuse(Code::UrlInvalid, "an origin begins with https://"));
    }
    let literal = match url.host() {
        Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
        Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
        _ => None,
    };
    let named_loopback = matches!(url.host(), Some(Host::Domain(name)) if is_local_name(name));
    let forbidden = literal.is_some_and(is_forbidden) || named_loopback;
    if forbidden && !(loopback && app.allow_loopback) {
        return Err(refuse(Code::TargetForbidden, "that address is not on the public internet"));
    }
    Ok(url.origin().ascii_serialization())
}

fn is_local_name(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    name == "localhost"
        || name.ends_with(".localhost")
        || name.ends_with(".local")
        || name.ends_with(".internal")
}

/// Addresses that are nobody's on the public internet, in every wrapping of IPv4 inside IPv6.
fn is_forbidden(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_forbidden_v4(address),
        IpAddr::V6(address) => is_forbidden_v6(address),
    }
}

fn is_forbidden_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && (c == 0 || c == 2))
        || (a == 198 && (b == 18 || b == 19))
        || (a == 198 && b == 51 && c == 100)
        || (a == 203 && b == 0 && c == 113)
}

fn is_forbidden_v6(address: Ipv6Addr) -> bool {
    let [a, b, _, _, _, _, g, h] = address.segments();
    let embedded = |high: u16, low: u16| {
        let [x, y] = high.to_be_bytes();
        let [z, w] = low.to_be_bytes();
        is_forbidden_v4(Ipv4Addr::new(x, y, z, w))
    };
    if let Some(mapped) = address.to_ipv4_mapped() {
        return is_forbidden_v4(mapped);
    }
    match (a, b) {
        // NAT64 and 6to4 carry an IPv4 address inside.
        (0x64, 0xff9b) => true,
        (0x2002, high) => {
            let [_, _, low, ..] = address.segments();
            embedded(high, low)
        }
        (0x2001, 0) => true,
        (0x2001, 0xdb8) => true,
        (0, 0) => address.is_loopback() || address.is_unspecified() || embedded(g, h),
        _ => {
            address.is_multicast()
                || (a & 0xfe00) == 0xfc00
                || (a & 0xffc0) == 0xfe80
                || (a & 0xffc0) == 0xfec0
        }
    }
}

/// Registers an origin; quotes under it count once it is proved.
///
/// # Errors
/// See [`check_origin`].
pub async fn register(app: &App, seller: SellerId, origin: &str) -> ApiResult<Seller> {
    let origin = check_origin(app, origin)?;
    Ok(app.store.submit(PutOrigin { seller, origin, proved: false }).await?)
}

/// Asks the origin itself and records its answer.
///
/// # Errors
/// `validation_failed` when the origin does not list the seller; `upstream_unreachable` when it
/// gives no usable answer.
pub async fn prove(app: &App, seller: SellerId, origin: &str) -> ApiResult<Seller> {
    let origin = check_origin(app, origin)?;
    let listed = listed(&fetch(app, &origin).await?);
    if !listed.contains(&seller) {
        let why = format!("{origin}{PROOF_PATH} does not list {seller}");
        return Err(Refusal::new(Code::ValidationFailed, why).into());
    }
    Ok(app.store.submit(RecordProof { seller, origin, proof: Proof::Lists(listed) }).await?)
}

/// The sellers that a list names, one a line in the one spelling of an id; what is none is passed
/// over.
fn listed(text: &str) -> Vec<SellerId> {
    let read = |line: &str| line.parse().ok().filter(|id: &SellerId| id.to_string() == line);
    text.lines().map(str::trim).filter_map(read).collect()
}

/// Asks an origin again that was proved before. One that answers without listing the seller is lost;
/// one that does not answer is asked again later.
///
/// # Errors
/// When the books cannot take the answer.
pub async fn check(app: &App, seller: SellerId, origin: &str) -> Result<(), SubmitError> {
    let proof = match fetch(app, origin).await {
        Ok(text) => Proof::Lists(listed(&text)),
        Err(why) => {
            tracing::warn!(%seller, origin, why = %why.0.detail, "an origin does not answer");
            Proof::Silent
        }
    };
    let unit = RecordProof { seller, origin: origin.to_owned(), proof };
    app.store.submit(unit).await.map(|_| ())
}

async fn fetch(app: &App, origin: &str) -> ApiResult<String> {
    let unreachable =
        |why: &str| Refusal::new(Code::UpstreamUnreachable, format!("{origin}{PROOF_PATH}: {why}"));
    let url = Url::parse(&format!("{origin}{PROOF_PATH}"));
    let url = url.map_err(|_| refuse(Code::UrlInvalid, "an origin is https://host[:port]"))?;
    let (host, addresses) = resolve(app, &url).await?;
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .timeout(PROOF_TIMEOUT)
        // Only the addresses that were looked at: the name must not resolve to another one now.
        .resolve_to_addrs(&host, &addresses)
        .build()
        .map_err(|_| refuse(Code::Internal, "no client"))?;
    let answer = client.get(url).send().await.map_err(|_| unreachable("no answer"))?;
    if answer.status() != http::StatusCode::OK {
        return Err(unreachable(&format!("answered {}", answer.status().as_u16())).into());
    }
    let mut body = Vec::new();
    let mut chunks = answer.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        body.extend_from_slice(&chunk.map_err(|_| unreachable("the answer broke off"))?);
        if body.len() > MAX_PROOF_BYTES {
            return Err(unreachable("the answer is too large").into());
        }
    }
    String::from_utf8(body).map_err(|_| unreachable("the answer is not text").into())
}

async fn resolve(app: &App, url: &Url) -> ApiResult<(String, Vec<SocketAddr>)> {
    let unreachable = || refuse(Code::UpstreamUnreachable, "the origin's name does not resolve");
    let host = url.host_str().ok_or_else(unreachable)?.to_owned();
    let port = url.port_or_known_default().ok_or_else(unreachable)?;
    let plain = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let found = tokio::time::timeout(PROOF_TIMEOUT, tokio::net::lookup_host((plain, port))).await;
    let found = found.map_err(|_| unreachable())?.map_err(|_| unreachable())?;
    let allowed = |address: &SocketAddr| {
        !is_forbidden(address.ip()) || (app.allow_loopback && address.ip().is_loopback())
    };
    let addresses: Vec<SocketAddr> = found.collect();
    if addresses.is_empty() || !addresses.iter().all(allowed) {
        return Err(refuse(
            Code::TargetForbidden,
            "that name does not lead to the public internet",
        ));
    }
    Ok((host, addresses))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_nobodys_are_forbidden_in_every_wrapping() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "fc00::1",
            "fe80::1",
            "ff02::1",
            "::127.0.0.1",
        ] {
            assert!(is_forbidden(text.parse().unwrap()), "{text}");
        }
        for text in ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "2002:808:808::"] {
            assert!(!is_forbidden(text.parse().unwrap()), "{text}");
        }
    }
}
