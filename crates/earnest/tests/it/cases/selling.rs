//! Buying from a real seller: the SDK's layer and wrapper around a real Earnest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use earnest_sdk::{BuyError, Payment};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{finish, transfers};
use crate::shop::Shop;
use crate::world::answer;

#[tokio::test]
async fn tabp_01_one_voucher_opens_the_door_once() {
    let shop = Shop::open().await;
    let voucher = shop.voucher("/weather", "w-1").await;
    shop.get("/weather", Some(&voucher)).await.expect(200);
    for _ in 0..3 {
        let again = shop.get("/weather", Some(&voucher)).await;
        assert_eq!((again.status.as_u16(), again.code()), (409, "voucher_already_used"));
    }
    assert_eq!(shop.served(), 1);
    assert_eq!(shop.close().await, (20_000, 0));
    // A seller that reports the same voucher again, and again as failed, changes nothing.
    for fate in ["redeemed", "redeemed", "failed"] {
        let said = shop.world.report(&voucher, fate).await;
        assert_eq!(said["outcome"], "already_billed", "{said}");
    }
    assert_eq!(shop.world.tab().await["owed_micros"], 20_000);
    finish(&shop.world).await;
}

#[tokio::test]
async fn tabp_02_ten_at_once_with_one_voucher_are_served_once() {
    let shop = Shop::open().await;
    let voucher = shop.voucher("/weather", "w-1").await;
    let asking = (0..10).map(|_| shop.get("/weather", Some(&voucher)));
    let answers = futures_util::future::join_all(asking).await;
    let with = |status: u16| answers.iter().filter(|it| it.status.as_u16() == status).count();
    assert_eq!((with(200), with(409)), (1, 9));
    let codes = answers.iter().filter(|it| it.status == 409).map(|it| it.code());
    assert!(codes.into_iter().all(|code| code == "voucher_already_used"));
    assert_eq!(shop.served(), 1);
    assert_eq!(shop.close().await, (20_000, 0));
    finish(&shop.world).await;
}

#[tokio::test]
async fn tabp_04_a_voucher_opens_nothing_but_what_it_was_bought_for() {
    let shop = Shop::open().await;
    let cheap = shop.voucher("/cheap", "cheap").await;
    // Dearer, as dear, another method, another query, another body.
    for path in ["/export", "/weather", "/cheap?more=1"] {
        let refused = shop.get(path, Some(&cheap)).await;
        let said = (refused.status.as_u16(), refused.code());
        assert_eq!(said, (402, "voucher_scope_mismatch"), "{path}");
        assert!(refused.headers.contains_key("www-authenticate"), "a fresh quote comes with it");
    }
    let post = shop.world.http.post(shop.url("/echo")).body("hello");
    let refused = answer(post.header("authorization", format!("Tab {cheap}"))).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (402, "voucher_scope_mismatch"));
    assert_eq!(shop.served(), 0, "no handler ran");
    // It was not used up by being shown at the wrong doors.
    shop.get("/cheap", Some(&cheap)).await.expect(200);
    assert_eq!(shop.close().await, (20_000, 0));
    finish(&shop.world).await;
}

/// Stands before a shop: passes on, but swallows the first answers to paid requests.
fn swallowing(times: u32) -> impl FnOnce(std::net::SocketAddr) -> Option<String> {
    move |shop| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let listener = TcpListener::from_std(listener).unwrap();
        let left = Arc::new(AtomicU32::new(times));
        tokio::spawn(async move {
            while let Ok((outside, _)) = listener.accept().await {
                tokio::spawn(pass_on(outside, shop, Arc::clone(&left)));
            }
        });
        Some(origin)
    }
}

async fn pass_on(mut outside: TcpStream, shop: std::net::SocketAddr, left: Arc<AtomicU32>) {
    let mut head = vec![0; 16 * 1024];
    let length = outside.read(&mut head).await.unwrap();
    let text = String::from_utf8_lossy(&head[..length]).into_owned();
    let mut inside = TcpStream::connect(shop).await.unwrap();
    let close = text.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    inside.write_all(close.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    inside.read_to_end(&mut answer).await.unwrap();
    let paid = text.to_lowercase().contains("authorization: tab ");
    let one_less = |left: u32| left.checked_sub(1);
    if paid && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
        return;
    }
    outside.write_all(&answer).await.unwrap();
}

#[tokio::test]
async fn tabp_07_a_paid_answer_that_was_lost_is_not_paid_again() {
    let shop = Shop::with(swallowing(1), crate::shop::ELSEWHERE).await;
    let buyer = shop.buyer();
    let request = buyer.get(&shop.url("/weather")).request_id("w-1");
    let lost = request.send().await.unwrap_err();
    assert!(matches!(lost, BuyError::AnswerLost { .. }), "{lost}");
    assert_eq!(lost.paid(), Payment::Unknown);
    for again in [request.clone(), shop.buyer().get(&shop.url("/weather")).request_id("w-1")] {
        let used = again.send().await.unwrap_err();
        assert!(matches!(used, BuyError::AlreadyUsed { .. }), "{used}");
    }
    assert_eq!(shop.close().await, (20_000, 0));
    assert_eq!(shop.served(), 1);
    let purchases = shop.world.get("agent", "/v1/purchases").await.expect(200);
    assert_eq!(purchases["data"].as_array().unwrap().len(), 1, "one id, one purchase");
    finish(&shop.world).await;
}

#[tokio::test]
async fn tabp_08_an_answer_that_cannot_be_read_is_paid_for_once() {
    let shop = Shop::open().await;
    let request = shop.buyer().get(&shop.url("/text")).request_id("t-1");
    let unreadable = request.send().await.unwrap().json::<serde_json::Value>().await.unwrap_err();
    assert!(matches!(unreadable, BuyError::Unreadable { .. }), "{unreadable}");
    assert_eq!(unreadable.paid(), Payment::Yes);
    let again = request.send().await.unwrap_err();
    assert!(matches!(again, BuyError::AlreadyUsed { .. }), "{again}");
    assert_eq!(shop.close().await, (20_000, 0));
    finish(&shop.world).await;
}

/// A handler that fails is paid for by nobody, and the id can be used again.
#[tokio::test]
async fn tabp_08_an_answer_that_failed_is_not_paid_for() {
    let shop = Shop::open().await;
    let answer = shop.buyer().get(&shop.url("/fails")).request_id("f-1").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.paid()), (500, Payment::No));
    assert_eq!(shop.close().await, (0, 0));
    let purchase = &shop.world.get("agent", "/v1/purchases").await.expect(200)["data"][0];
    assert_eq!(purchase["status"], "released");
    finish(&shop.world).await;
}

#[tokio::test]
async fn tabp_13_a_voucher_follows_no_redirect() {
    // Somebody else's server, on this machine, that nobody may ask.
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = format!("http://{}/x", other.local_addr().unwrap());
    for elsewhere in [crate::shop::ELSEWHERE, &elsewhere] {
        let shop = Shop::with(|_| None, elsewhere).await;
        let refused = shop.buyer().get(&shop.url("/moved")).send().await.unwrap_err();
        assert!(matches!(refused, BuyError::RedirectRefused { .. }), "{refused}");
        assert_eq!(refused.code(), "redirect_refused");
        assert_eq!(shop.close().await, (0, 0), "reported failed, hold voided");
        finish(&shop.world).await;
    }
    let asked = tokio::time::timeout(std::time::Duration::from_millis(50), other.accept()).await;
    assert!(asked.is_err(), "the voucher went to another host");
}

#[tokio::test]
async fn tabp_15_a_402_is_not_stored_and_looking_costs_nothing() {
    let shop = Shop::open().await;
    let unpaid = shop.get("/weather", None).await;
    assert_eq!(unpaid.status, 402);
    let header = |name: &str| unpaid.headers[name].to_str().unwrap().to_lowercase();
    assert!(header("cache-control").contains("no-store"));
    assert!(header("vary").contains("authorization"));
    // Nor is anything that was paid for, or refused.
    let voucher = shop.voucher("/weather", "w-1").await;
    for status in [200, 409] {
        let answer = shop.get("/weather", Some(&voucher)).await;
        assert_eq!(answer.status.as_u16(), status);
        let vary = answer.headers["vary"].to_str().unwrap().to_lowercase();
        assert!(vary.contains("authorization"), "{status}");
    }
    // A browser's preflight and a HEAD cost nothing.
    let before = shop.world.reader().head().unwrap().seq;
    for method in [Method::OPTIONS, Method::HEAD] {
        let request = shop.world.http.request(method.clone(), shop.url("/weather"));
        let answer = answer(request.header("origin", "https://page.example")).await;
        assert!(answer.status.as_u16() < 500, "{method}");
    }
    assert_eq!(shop.served(), 1);
    assert_eq!(shop.close().await, (20_000, 0));
    let purchases = shop.world.get("agent", "/v1/purchases").await.expect(200);
    assert_eq!(purchases["data"].as_array().unwrap().len(), 1);
    assert!(shop.world.reader().head().unwrap().seq >= before);
    finish(&shop.world).await;
}

#[tokio::test]
async fn tabp_17_asking_for_a_price_pays_nothing() {
    let shop = Shop::open().await;
    let before = (transfers(&shop.world).await, shop.world.reader().head().unwrap().seq);
    for _ in 0..3 {
        let quote = shop.quote("/weather").await;
        assert_eq!((&quote["amount_micros"], &quote["currency"]), (&json!(20_000), &json!("USD")));
        assert_eq!(quote["url"], shop.url("/weather"));
    }
    // The jobs may have looked, but nothing about money was written.
    assert_eq!(transfers(&shop.world).await, before.0);
    let kinds = shop.world.reader().events(before.1, 1_000).unwrap().events;
    assert!(kinds.is_empty(), "no event either");
    assert_eq!(shop.served(), 0);
    assert_eq!(shop.close().await, (0, 0));
    finish(&shop.world).await;
}
