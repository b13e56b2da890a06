//! Which vouchers open a door.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use earnest_core::time::Timestamp;
use earnest_core::voucher::Fate;
use earnest_sdk::price;
use serde_json::{Value, json};

use crate::earnest::Earnest;
use crate::shop::{Shop, bind, client, config, get as fetch, read};

fn weather(runs: &Arc<AtomicU32>) -> Router {
    let (cheap, export) = (Arc::clone(runs), Arc::clone(runs));
    let cheap = move || async move {
        cheap.fetch_add(1, Ordering::SeqCst);
        "sunny"
    };
    let export = move || async move {
        export.fetch_add(1, Ordering::SeqCst);
        "everything"
    };
    Router::new()
        .route("/weather", get(cheap).layer(price("$0.02")))
        .route("/export", get(export).layer(price("$9.00")))
}

async fn open() -> (Earnest, Shop, Arc<AtomicU32>) {
    let earnest = Earnest::start().await;
    let runs = Arc::new(AtomicU32::new(0));
    let shop = Shop::open(&earnest, |seller| weather(&runs).layer(seller.layer())).await;
    (earnest, shop, runs)
}

#[tokio::test]
async fn tabp_01_the_same_voucher_twice_is_served_and_billed_once() {
    let (earnest, shop, runs) = open().await;
    let voucher = earnest.voucher(&shop.url("/weather"), 20_000);
    let first = shop.get("/weather", Some(&voucher)).await;
    assert_eq!((first.status, first.body.as_slice()), (200, b"sunny".as_slice()));
    let second = shop.get("/weather", Some(&voucher)).await;
    assert_eq!(second.is(), (409, "voucher_already_used".to_owned()));
    assert_eq!(second.header("payment-receipt"), "");
    assert_eq!(second.header("www-authenticate"), "", "a 409 must not ask to pay again");
    earnest.until("one line", |books| books.outstanding() == 20_000).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert!(shop.seller.shutdown(crate::earnest::PATIENCE).await);
    earnest.books(|books| assert_eq!(books.fates(), [Fate::Redeemed]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tabp_02_ten_in_parallel_with_one_voucher_are_served_once() {
    let earnest = Earnest::start().await;
    let runs = Arc::new(AtomicU32::new(0));
    let folder = tempfile::tempdir().unwrap();
    let (listener, origin) = bind().await;
    let nonces = earnest_sdk::NonceStore::open(folder.path().join("nonces.db")).unwrap();
    let seller = earnest_sdk::Seller::new(config(&earnest, &origin, nonces)).unwrap();
    let shop = Shop::serve(listener, seller, |seller| weather(&runs).layer(seller.layer()));
    for _ in 0..5 {
        let url = shop.url("/weather");
        let voucher = earnest.voucher(&url, 20_000);
        let tries = (0..10).map(|_| {
            let (url, voucher) = (url.clone(), voucher.clone());
            tokio::spawn(async move { fetch(&url, Some(&voucher)).await.is() })
        });
        let mut seen = Vec::new();
        for one in tries.collect::<Vec<_>>() {
            seen.push(one.await.unwrap());
        }
        seen.sort();
        let mut expect = vec![(409, "voucher_already_used".to_owned()); 10];
        expect[0] = (200, String::new());
        assert_eq!(seen, expect);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 5);
    earnest.until("five lines", |books| books.outstanding() == 100_000).await;
    assert!(shop.seller.shutdown(crate::earnest::PATIENCE).await);
}

#[tokio::test]
async fn tabp_04_a_voucher_for_a_cheap_thing_does_not_open_another() {
    let (earnest, shop, runs) = open().await;
    let cheap = earnest.voucher(&shop.url("/weather"), 20_000);
    // The same door at the wrong price, for another seller, method or body, or of another kind.
    let url = shop.url("/export");
    let mut claims = earnest.claims(&url, 20_000);
    let mut bad = vec![cheap, earnest.sign(&claims), earnest.voucher_up_to(&url, 9_000_000)];
    claims = earnest.claims(&url, 9_000_000);
    claims.aud = "sel_00000000000000000000000002".parse().unwrap();
    bad.push(earnest.sign(&claims));
    claims = earnest.claims(&url, 9_000_000);
    claims.method = "POST".to_owned();
    bad.push(earnest.sign(&claims));
    claims = earnest.claims(&url, 9_000_000);
    claims.body = earnest_core::quote::body_digest(b"x");
    bad.push(earnest.sign(&claims));
    // What its owner allowed by that name is something else.
    claims = earnest.claims(&url, 9_000_000);
    claims.listing = "GET /weather".to_owned();
    bad.push(earnest.sign(&claims));
    bad.push(earnest.voucher(&format!("{url}?all=1"), 9_000_000));
    bad.push(earnest.voucher("http://elsewhere.example/export", 9_000_000));
    for voucher in &bad {
        let reply = shop.get("/export", Some(voucher)).await;
        assert_eq!(reply.is(), (402, "voucher_scope_mismatch".to_owned()));
        assert_eq!(reply.json()["quote"]["amount_micros"], 9_000_000);
        assert!(reply.header("www-authenticate").starts_with("Tab "));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 0, "handler not run");
    // Refused at one door, it still opens its own.
    assert_eq!(shop.get("/weather", Some(&bad[0])).await.status, 200);
}

/// What became of presenting a token that is no good.
async fn refused(shop: &Shop, token: &str) -> (u16, String) {
    let reply = shop.get("/weather", Some(token)).await;
    assert!(reply.header("www-authenticate").starts_with("Tab "), "a fresh quote");
    assert_eq!(reply.json()["quote"]["url"], shop.url("/weather"));
    reply.is()
}

fn invalid() -> (u16, String) {
    (402, "voucher_invalid".to_owned())
}

fn token(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{}", part(header), part(claims), URL_SAFE_NO_PAD.encode(signature))
}

#[tokio::test]
async fn rcpt_01_no_algorithm_is_no_signature() {
    let (earnest, shop, runs) = open().await;
    let claims = serde_json::to_value(earnest.claims(&shop.url("/weather"), 20_000)).unwrap();
    for alg in ["none", "None", "NONE", "nOnE"] {
        let header = json!({"alg": alg, "typ": "earnest-voucher+jwt", "kid": earnest.signer.kid()});
        assert_eq!(refused(&shop, &token(&header, &claims, b"")).await, invalid());
    }
    for nothing in ["x", "..", "a.b", "a.b.c", "a.b.c.d"] {
        assert_eq!(refused(&shop, nothing).await, invalid(), "{nothing}");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn rcpt_02_the_token_does_not_choose_how_it_is_checked() {
    let (earnest, shop, runs) = open().await;
    let attacker = earnest_core::jws::Signer::new(earnest_core::jws::Purpose::Voucher, &[66; 32]);
    let good = earnest.claims(&shop.url("/weather"), 20_000);
    let claims = serde_json::to_value(&good).unwrap();
    let kid = earnest.signer.kid();
    let typ = "earnest-voucher+jwt";
    let good_signature = earnest.sign(&good).rsplit('.').next().map(str::to_owned).unwrap();
    let good_signature = URL_SAFE_NO_PAD.decode(good_signature).unwrap();
    // A first, honest voucher makes the seller fetch the keys, once.
    assert_eq!(shop.get("/weather", Some(&earnest.sign(&good))).await.status, 200);
    for header in [
        json!({"alg": "HS256", "typ": typ, "kid": kid}),
        json!({"alg": "ES256", "typ": typ, "kid": kid}),
        json!({"alg": "EdDSA", "typ": typ, "kid": kid, "jwk": attacker.jwk()}),
        json!({"alg": "EdDSA", "typ": typ, "kid": kid, "jku": format!("{}/jwks", earnest.url)}),
        json!({"alg": "EdDSA", "typ": typ, "kid": kid, "crit": ["exp"]}),
        json!({"alg": "EdDSA", "typ": "earnest-receipt+jwt", "kid": kid}),
        json!({"alg": "EdDSA", "typ": typ}),
    ] {
        assert_eq!(refused(&shop, &token(&header, &claims, &good_signature)).await, invalid());
    }
    // An unknown key is looked up, but not again and again.
    for _ in 0..20 {
        assert_eq!(refused(&shop, &attacker.sign(&good).unwrap()).await, invalid());
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    earnest.books(|books| assert_eq!(books.key_fetches, 1));
}

#[tokio::test]
async fn rcpt_04_a_changed_signature_does_not_verify() {
    /// The group order of Ed25519, little-endian.
    const ORDER: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde,
        0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let (earnest, shop, runs) = open().await;
    let good = earnest.voucher(&shop.url("/weather"), 20_000);
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let mut bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
    let mut carry = 0_u16;
    for place in 0..32 {
        let sum = u16::from(bytes[32 + place]) + u16::from(ORDER[place]) + carry;
        bytes[32 + place] = sum.to_le_bytes()[0];
        carry = sum >> 8;
    }
    let malleated = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(bytes));
    assert_eq!(refused(&shop, &malleated).await, invalid());
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    assert_eq!(shop.get("/weather", Some(&good)).await.status, 200);
}

#[tokio::test]
async fn rcpt_06_every_voucher_expires_and_soon() {
    let (earnest, shop, runs) = open().await;
    let good = earnest.claims(&shop.url("/weather"), 20_000);
    let now = Timestamp::now().as_second();
    let mut without = serde_json::to_value(&good).unwrap();
    without.as_object_mut().unwrap().remove("exp");
    let without = earnest.signer.sign(&without).unwrap();
    assert_eq!(refused(&shop, &without).await, invalid());
    let with = |iat: i64, exp: i64| {
        let mut claims = good.clone();
        (claims.iat, claims.exp) = (iat, exp);
        earnest.sign(&claims)
    };
    let expired = (402, "voucher_expired".to_owned());
    assert_eq!(refused(&shop, &with(now - 60, now - 6)).await, expired);
    assert_eq!(refused(&shop, &with(now - 60, now - 1)).await, expired, "no leeway on expiry");
    assert_eq!(refused(&shop, &with(now, now + 121)).await, invalid(), "a life over 120 s");
    assert_eq!(refused(&shop, &with(now + 30, now + 90)).await, invalid(), "from the future");
    assert_eq!(refused(&shop, &with(now, now)).await, invalid(), "no life");
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    assert_eq!(shop.get("/weather", Some(&with(now + 3, now + 100))).await.status, 200);
}

#[tokio::test]
async fn rcpt_12_a_claim_written_twice_counts_for_nothing() {
    let (earnest, shop, runs) = open().await;
    let claims = earnest.claims(&shop.url("/weather"), 20_000);
    let text = serde_json::to_string(&claims).unwrap();
    let twice = text.replacen('{', "{\"amount_micros\":100,", 1);
    let twice: Box<serde_json::value::RawValue> = serde_json::from_str(&twice).unwrap();
    assert_eq!(refused(&shop, &earnest.signer.sign(&twice).unwrap()).await, invalid());
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_used_voucher_is_409_even_after_it_expired_because_402_says_that_paying_again_is_safe() {
    let (earnest, shop, _) = open().await;
    let mut claims = earnest.claims(&shop.url("/weather"), 20_000);
    claims.exp = claims.iat + 4;
    let voucher = earnest.sign(&claims);
    assert_eq!(shop.get("/weather", Some(&voucher)).await.status, 200);
    while !claims.is_expired(Timestamp::now()) {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let reply = shop.get("/weather", Some(&voucher)).await;
    assert_eq!(reply.is(), (409, "voucher_already_used".to_owned()));
}

#[tokio::test]
async fn several_vouchers_are_not_one() {
    let (earnest, shop, runs) = open().await;
    let url = shop.url("/weather");
    let voucher = |_| format!("Tab {}", earnest.voucher(&url, 20_000));
    let (first, second) = (voucher(1), voucher(2));
    let request = client().get(&url).header("authorization", first).header("authorization", second);
    assert_eq!(read(request.send().await.unwrap()).await.is(), invalid());
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}
