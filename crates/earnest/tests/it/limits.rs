//! A limit that is set is the limit that counts.

use std::time::{Duration, Instant};

use earnest::config::Config;
use earnest::limits::Limits;
use earnest_core::settings::Settings;
use paypal_sim::SimConfig;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::world::World;

async fn world(change: impl FnOnce(&mut Limits, &mut Settings)) -> World {
    let mut config = Config::simulated();
    change(&mut config.limits, &mut config.settings);
    config.limits.check().unwrap();
    config.settings.check().unwrap();
    World::with(config, SimConfig::default()).await
}

#[tokio::test]
async fn a_head_has_as_long_as_is_set() {
    let world = world(|limits, _| limits.head_seconds = 1).await;
    let mut slow = TcpStream::connect(world.earnest.address).await.unwrap();
    let begun = Instant::now();
    slow.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    let mut all = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), slow.read_to_end(&mut all)).await;
    let _ = ended.expect("before the usual 15 seconds");
    assert!(begun.elapsed() >= Duration::from_millis(900));
}

#[tokio::test]
async fn as_many_connections_are_served_as_are_set() {
    let world = world(|limits, _| limits.connections = 1).await;
    let head = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut first = TcpStream::connect(world.earnest.address).await.unwrap();
    first.write_all(head.as_bytes()).await.unwrap();
    let mut bytes = [0; 16];
    first.read_exact(&mut bytes).await.unwrap();
    // The first is kept alive, so the second waits; it is served when the first goes.
    let mut second = TcpStream::connect(world.earnest.address).await.unwrap();
    second.write_all(head.as_bytes()).await.unwrap();
    let waiting = second.read_exact(&mut bytes);
    let waited = tokio::time::timeout(Duration::from_millis(500), waiting).await;
    assert!(waited.is_err(), "a second connection was served");
    drop(first);
    let served = tokio::time::timeout(Duration::from_secs(10), second.read_exact(&mut bytes));
    served.await.expect("it is served").unwrap();
}

#[tokio::test]
async fn an_address_has_as_many_tries_as_are_set() {
    let world = world(|limits, _| {
        limits.sign_in_attempts = 2;
        limits.sign_in_attempt_seconds = 50;
    })
    .await;
    let url = format!("{}/login?token=x", world.earnest.url());
    let attempt = async || world.http.get(&url).send().await.unwrap();
    assert_eq!(attempt().await.status(), 401);
    assert_eq!(attempt().await.status(), 401);
    let refused = attempt().await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "50");
    world.clock.advance(50);
    assert_eq!(attempt().await.status(), 401);
}

#[tokio::test]
async fn bodies_endpoints_and_links_are_as_many_as_are_set() {
    let world = world(|limits, settings| {
        limits.body_bytes = 20_000;
        settings.webhook_endpoints = 1;
        settings.sign_in_links = 1;
        settings.sign_in_link_seconds = 30;
    })
    .await;
    let endpoint = |path: &str| json!({ "url": format!("{}{path}", world.earnest.url()) });
    world.post("owner", "/v1/webhooks", endpoint("/a")).await.expect(201);
    let second = world.post("owner", "/v1/webhooks", endpoint("/b")).await;
    assert_eq!(second.refusal(), "state_conflict");
    assert!(second.body["detail"].as_str().unwrap().contains("there are 1 webhooks already"));

    let links = "/v1/owners/me/login-links";
    world.post("owner", links, json!({})).await.expect(201);
    let second = world.post("owner", links, json!({})).await;
    assert_eq!(
        (second.refusal().as_str(), &second.body["retry_after_s"]),
        ("rate_limited", &json!(30))
    );

    let long =
        world.post("", "/v1/receipts/verify", json!({ "receipt": "x".repeat(20_000) })).await;
    assert_eq!(long.refusal(), "body_too_large");
    assert_eq!(long.body["limit_bytes"], 20_000);
}
