//! Who is counted: a header that anybody can send decides nothing.

use std::net::IpAddr;

use axum::body::Body;
use earnest::config::Config;
use earnest::front::address::{Hops, Networks};
use earnest::front::{ForwardedHeader, FrontConfig};
use earnest::listen::Peer;
use http::{Request, StatusCode};
use paypal_sim::SimConfig;
use reqwest::Method;
use tower::ServiceExt as _;

use crate::world::World;

/// Ten a minute for an address, for everybody who is not behind these proxies.
fn front(trusted: &[&str]) -> FrontConfig {
    let trusted = Networks::parse(trusted.iter().copied()).unwrap();
    FrontConfig {
        hops: Hops { trusted, header: ForwardedHeader::XForwardedFor },
        address_per_minute: 10,
        uncounted: Networks::default(),
        ..FrontConfig::open()
    }
}

async fn world(front: FrontConfig) -> World {
    World::with(Config { front, ..Config::simulated() }, SimConfig::default()).await
}

/// An address that nobody else has.
fn made_up(n: u32) -> String {
    IpAddr::from((0xcb00_7100 + n).to_be_bytes()).to_string()
}

/// The status for a request that comes over a connection from `peer`.
async fn from(world: &World, peer: &str, forwarded: Option<&str>) -> StatusCode {
    let mut request = Request::get("/healthz");
    if let Some(forwarded) = forwarded {
        request = request.header("x-forwarded-for", forwarded);
    }
    let mut request = request.body(Body::empty()).unwrap();
    request.extensions_mut().insert(Peer(peer.parse().unwrap()));
    let router = earnest::api::router(world.earnest.app.clone());
    router.oneshot(request).await.unwrap().status()
}

#[tokio::test]
async fn prox_01_a_made_up_address_gives_no_fresh_limit() {
    let world = world(front(&[])).await;
    for n in 0..10 {
        let forwarded = made_up(n);
        let headers = [("x-forwarded-for", forwarded.as_str())];
        let answer = world.call_with("owner", Method::GET, "/v1/tabs", None, &headers).await;
        answer.expect(200);
    }
    for spoofed in ["x-forwarded-for", "forwarded", "x-real-ip", "true-client-ip"] {
        let headers = [(spoofed, "203.0.113.250")];
        let answer = world.call_with("owner", Method::GET, "/v1/tabs", None, &headers).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (429, "rate_limited"), "{spoofed}");
        assert_eq!(answer.headers["retry-after"], "6");
        assert_eq!(answer.headers["content-type"], "application/problem+json");
    }
    // Before anything is looked at: also what would be refused, and what does not exist.
    assert_eq!(world.get("", "/v1/tabs").await.status, 429);
    let nowhere = world.http.get(format!("{}/nowhere", world.earnest.url())).send().await.unwrap();
    assert_eq!(nowhere.status(), 429);
    world.clock.advance(60);
    world.assert_sound();
    assert_eq!(world.broken(), Vec::<String>::new(), "answers with a 5xx");
}

#[tokio::test]
async fn prox_02_the_last_hop_that_is_no_proxy_is_counted() {
    let world = world(front(&["10.0.0.1"])).await;
    for n in 0..10 {
        let forwarded = format!("{}, 203.0.113.7", made_up(n + 100));
        assert_eq!(from(&world, "10.0.0.1", Some(&forwarded)).await, 200, "{n}");
    }
    let eleventh = from(&world, "10.0.0.1", Some("198.51.100.9, 203.0.113.7")).await;
    assert_eq!(eleventh, 429);
    // Who was only named is not limited: through the proxy, or as a neighbour of it.
    assert_eq!(from(&world, "10.0.0.1", Some("198.51.100.9")).await, 200);
    assert_eq!(from(&world, "198.51.100.9", None).await, 200);
    // The one who is limited stays so, whatever it says, and without the proxy too.
    assert_eq!(from(&world, "203.0.113.7", Some("198.51.100.9")).await, 429);
    assert_eq!(from(&world, "10.0.0.1", Some("203.0.113.7:1234")).await, 429);
    // The proxy itself is not.
    assert_eq!(from(&world, "10.0.0.1", None).await, 200);
}

/// As many addresses as one likes, in one network.
#[tokio::test]
async fn a_network_of_ipv6_is_one_address() {
    let world = world(front(&[])).await;
    for n in 0..10 {
        assert_eq!(from(&world, &format!("2001:db8:1:2:{n}::1"), None).await, 200);
    }
    assert_eq!(from(&world, "2001:db8:1:2:ffff::1", None).await, 429);
    assert_eq!(from(&world, "2001:db8:1:3::1", None).await, 200);
    // An IPv4 address is itself, however it is written.
    for n in 0..5 {
        assert_eq!(from(&world, "198.51.100.1", None).await, 200, "{n}");
        assert_eq!(from(&world, "::ffff:198.51.100.1", None).await, 200, "{n}");
    }
    assert_eq!(from(&world, "198.51.100.1", None).await, 429);
}

/// A key has its own share, wherever it comes from; one that is not good uses up nobody's.
#[tokio::test]
async fn a_key_is_counted_once_it_is_found_good() {
    let front = FrontConfig { credential_per_minute: 10, ..FrontConfig::open() };
    let world = world(front).await;
    for _ in 0..30 {
        world.get(&format!("{}x", world.key("owner")), "/v1/tabs").await.expect(401);
    }
    assert_eq!(world.earnest.app.front.remembered(), (0, 0));
    for _ in 0..10 {
        world.get("owner", "/v1/tabs").await.expect(200);
    }
    let full = world.get("owner", "/v1/tabs").await;
    assert_eq!((full.status.as_u16(), full.code()), (429, "rate_limited"));
    assert_eq!(full.headers["retry-after"], "6");
    // Not by address: another key from here is served.
    world.get("operator", "/v1/owners").await.expect(200);
    world.clock.advance(6);
    world.get("owner", "/v1/tabs").await.expect(200);
    assert_eq!(world.get("owner", "/v1/tabs").await.status, 429);
    world.clock.advance(60);
}

/// Whom the limiter of sign-in links counts is whom a trusted proxy names.
#[tokio::test]
async fn attempts_to_sign_in_count_for_the_client_behind_the_proxy() {
    let trusted = Networks::parse(["127.0.0.1"]).unwrap();
    let hops = Hops { trusted, header: ForwardedHeader::XForwardedFor };
    let world = world(FrontConfig { hops, ..FrontConfig::open() }).await;
    let try_as = async |client: &str| {
        let token = "0123456789abcdef0123456789abcdef";
        let url = format!("{}/login?token={token}", world.earnest.url());
        let request = world.http.get(url).header("x-forwarded-for", client);
        request.send().await.unwrap().status()
    };
    let mut refused = 0;
    for n in 0..40 {
        let status = try_as(&format!("{}, 203.0.113.7", made_up(n))).await;
        refused += u32::from(status == 429);
    }
    assert_eq!(refused, 10);
    assert_eq!(try_as("203.0.113.8").await, 401);
}
