//! The 402 layer: what it answers, what the handler sees, what is reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Redirect;
use axum::routing::{any, get, post};
use earnest_core::quote::{Quote, body_digest};
use earnest_core::voucher::Fate;
use earnest_sdk::{
    ChargeError, ORIGIN_PROOF_PATH, Paid, PaymentReceipt, price, price_up_to, quote_in,
};

use crate::earnest::{Earnest, PATIENCE, SELLER, seller_id};
use crate::shop::{Shop, client, raw, read};

fn varies(headers: &HeaderMap) -> bool {
    let values = headers.get_all("vary").iter().map(|value| value.to_str().unwrap());
    values.flat_map(|text| text.split(',')).any(|name| name.trim() == "Authorization")
}

#[tokio::test]
async fn tabp_15_a_402_is_not_stored_and_preflight_and_head_cost_nothing() {
    let earnest = Earnest::start().await;
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let handler = move || async move { counted.fetch_add(1, Ordering::SeqCst).to_string() };
    let shop = Shop::open(&earnest, |seller| {
        Router::new()
            .route("/weather", any(handler).layer(price("$0.02").listing("weather of today")))
            .layer(seller.layer())
    })
    .await;
    let url = shop.url("/weather?city=Delft");
    let reply = shop.get("/weather?city=Delft", None).await;
    assert_eq!(reply.is(), (402, "payment_required".to_owned()));
    assert_eq!(reply.header("cache-control"), "no-store");
    assert_eq!(reply.header("content-type"), "application/problem+json");
    assert!(varies(&reply.headers));
    let body = reply.json();
    for member in ["type", "title", "status", "detail", "trace_id", "retryable", "next", "quote"] {
        assert!(!body[member].is_null(), "{member}");
    }
    let quote = quote_in(&reply.headers).unwrap().unwrap();
    assert_eq!(serde_json::to_value(&quote).unwrap(), body["quote"]);
    let quote: Quote = quote.try_into().unwrap();
    assert_eq!((quote.seller, quote.listing.as_str()), (seller_id(), "weather of today"));
    assert_eq!((quote.request.method.as_str(), &quote.request.url), ("GET", &url));
    assert_eq!(quote.request.body_sha256, body_digest(b""));
    assert_eq!(quote.price.most().get(), 20_000);

    let send = |method, voucher: Option<String>| {
        let mut request = client().request(method, &url);
        if let Some(voucher) = voucher {
            request = request.header("authorization", format!("Tab {voucher}"));
        }
        async move { read(request.send().await.unwrap()).await }
    };
    let preflight = send(reqwest::Method::OPTIONS, None).await;
    assert_eq!(preflight.status, 204);
    assert!(varies(&preflight.headers));
    let mut for_head = earnest.claims(&url, 20_000);
    for_head.method = "HEAD".to_owned();
    for voucher in [None, Some(earnest.voucher(&url, 20_000)), Some(earnest.sign(&for_head))] {
        let head = send(reqwest::Method::HEAD, voucher).await;
        assert_eq!((head.status, head.header("cache-control")), (402, "no-store"));
        assert_eq!(head.header("www-authenticate"), "", "nobody pays for a HEAD");
        assert!(varies(&head.headers));
    }
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    assert!(shop.seller.shutdown(PATIENCE).await);
    earnest.books(|books| assert!(books.reports.is_empty()));
}

#[tokio::test]
async fn a_paid_answer_says_where_its_receipt_is_and_the_handler_never_sees_the_voucher() {
    let earnest = Earnest::start().await;
    let handler = |headers: HeaderMap, paid: Paid| async move {
        let seen: Vec<_> = headers.get_all("authorization").iter().collect();
        let seen = format!("{seen:?} {} {}", paid.purchase(), paid.held());
        ([("payment-receipt", "forged"), ("payment-anything", "x"), ("vary", "Accept")], seen)
    };
    let shop = Shop::open(&earnest, |seller| {
        Router::new().route("/weather", get(handler).layer(price("$0.02"))).layer(seller.layer())
    })
    .await;
    let claims = earnest.claims(&shop.url("/weather"), 20_000);
    let request = client()
        .get(shop.url("/weather"))
        .header("authorization", "Bearer of-the-shop")
        .header("authorization", format!("tab {}", earnest.sign(&claims)));
    let reply = read(request.send().await.unwrap()).await;
    assert_eq!(reply.status, 200);
    let expect = format!("[\"Bearer of-the-shop\"] {} $0.02", claims.sub);
    assert_eq!(String::from_utf8_lossy(&reply.body), expect);
    let receipt = PaymentReceipt::read(&reply.headers).unwrap();
    assert_eq!(receipt.purchase, claims.sub);
    assert_eq!(receipt.url, format!("{}/v1/purchases/{}/receipt", earnest.url, claims.sub));
    assert_eq!(reply.headers.get_all("payment-receipt").iter().count(), 1);
    assert_eq!(reply.header("payment-anything"), "");
    assert!(varies(&reply.headers));
    earnest.until("billed", |books| books.outstanding() == 20_000).await;
}

#[tokio::test]
async fn only_2xx_is_billed() {
    let earnest = Earnest::start().await;
    let shop = Shop::open(&earnest, |seller| {
        let priced = Router::new()
            .route("/404", get(|| async { StatusCode::NOT_FOUND }))
            .route("/500", get(|| async { (StatusCode::INTERNAL_SERVER_ERROR, "oh") }))
            .route("/302", get(|| async { Redirect::to("/elsewhere") }))
            .route("/304", get(|| async { StatusCode::NOT_MODIFIED }))
            .route("/204", get(|| async { StatusCode::NO_CONTENT }))
            .route("/206", get(|| async { (StatusCode::PARTIAL_CONTENT, "part") }));
        priced.layer(price("$0.02")).layer(seller.layer())
    })
    .await;
    for (path, status, fate) in [
        ("/404", 404, Fate::Failed),
        ("/500", 500, Fate::Failed),
        ("/302", 303, Fate::Failed),
        ("/304", 304, Fate::Failed),
        ("/204", 204, Fate::Redeemed),
        ("/206", 206, Fate::Redeemed),
    ] {
        let voucher = earnest.voucher(&shop.url(path), 20_000);
        let reply = shop.get(path, Some(&voucher)).await;
        assert_eq!(reply.status, status);
        assert_eq!(reply.header("payment-receipt").is_empty(), fate == Fate::Failed, "{path}");
        assert!(varies(&reply.headers));
        let reported = |books: &crate::earnest::Books| {
            books.reports.iter().any(|report| report.voucher == voucher && report.fate == fate)
        };
        earnest.until(path, reported).await;
    }
    earnest.books(|books| assert_eq!(books.outstanding(), 40_000));
}

#[tokio::test]
async fn what_was_named_is_charged_and_what_was_not_is_not() {
    let earnest = Earnest::start().await;
    let handler = |paid: Paid| async move {
        assert!(matches!(paid.charge("$0.51"), Err(ChargeError::AboveCeiling { .. })));
        assert!(matches!(paid.charge("0"), Err(ChargeError::Amount(_))));
        paid.charge("$0.40").unwrap();
        paid.charge("$0.12").unwrap();
        "translated"
    };
    let too_much = |paid: Paid| async move {
        paid.charge("$0.51")?;
        Ok::<_, ChargeError>("never")
    };
    let fixed = |paid: Paid| async move {
        assert_eq!(paid.charge("$0.01"), Err(ChargeError::FixedPrice));
        "fixed"
    };
    let shop = Shop::open(&earnest, |seller| {
        Router::new()
            .route("/named", get(handler).layer(price_up_to("$0.50")))
            .route("/unnamed", get(|| async { "nothing" }).layer(price_up_to("$0.50")))
            .route("/too-much", get(too_much).layer(price_up_to("$0.50")))
            .route("/fixed", get(fixed).layer(price("$0.50")))
            .layer(seller.layer())
    })
    .await;
    let quote = shop.get("/named", None).await.json()["quote"].clone();
    assert_eq!(quote["max_micros"], 500_000);
    assert!(quote["amount_micros"].is_null());
    for (path, status, fate, amount) in [
        ("/named", 200, Fate::Redeemed, Some(120_000)),
        ("/unnamed", 200, Fate::Failed, None),
        ("/too-much", 500, Fate::Failed, None),
    ] {
        let voucher = earnest.voucher_up_to(&shop.url(path), 500_000);
        assert_eq!(shop.get(path, Some(&voucher)).await.status, status);
        earnest.until(path, |books| books.reports.iter().any(|r| r.voucher == voucher)).await;
        let report = earnest.books(|books| books.reports.last().unwrap().clone());
        assert_eq!((report.fate, report.amount_micros.map(|a| a.get())), (fate, amount));
    }
    let voucher = earnest.voucher(&shop.url("/fixed"), 500_000);
    assert_eq!(shop.get("/fixed", Some(&voucher)).await.body, b"fixed");
    // A ceiling is not a fixed price, nor the other way round.
    let voucher = earnest.voucher(&shop.url("/named"), 500_000);
    let reply = shop.get("/named", Some(&voucher)).await;
    assert_eq!(reply.is(), (402, "voucher_scope_mismatch".to_owned()));
}

#[tokio::test]
async fn the_body_is_part_of_what_is_bought_and_has_a_limit() {
    let earnest = Earnest::start().await;
    let echo = |body: Bytes| async move { body };
    let shop = Shop::open_with(
        &earnest,
        |config| config.max_body_bytes(1000),
        |seller| {
            Router::new().route("/echo", post(echo).layer(price("$0.02"))).layer(seller.layer())
        },
    )
    .await;
    let url = shop.url("/echo");
    let send = |body: &'static [u8], voucher: Option<String>| {
        let mut request = client().post(&url).body(body);
        if let Some(voucher) = voucher {
            request = request.header("authorization", format!("Tab {voucher}"));
        }
        async move { read(request.send().await.unwrap()).await }
    };
    let unpaid = send(b"hello", None).await.json();
    assert_eq!(unpaid["quote"]["body_sha256"], body_digest(b"hello"));
    let mut claims = earnest.claims(&url, 20_000);
    claims.method = "POST".to_owned();
    claims.listing = "POST /echo".to_owned();
    claims.body = body_digest(b"hello");
    let voucher = earnest.sign(&claims);
    let other = send(b"hallo", Some(voucher.clone())).await;
    assert_eq!(other.is(), (402, "voucher_scope_mismatch".to_owned()));
    assert_eq!(send(b"hello", Some(voucher)).await.body, b"hello");
    assert_eq!(send(&[0; 1001], None).await.is(), (413, "body_too_large".to_owned()));
    assert_eq!(send(&[0; 1000], None).await.status, 402);
}

#[tokio::test]
async fn the_origin_is_configured_and_a_path_has_one_spelling() {
    let earnest = Earnest::start().await;
    let shop = Shop::open(&earnest, |seller| {
        let app = Router::new().route("/{*any}", get(|| async { "served" }).layer(price("$0.02")));
        app.layer(seller.layer())
    })
    .await;
    let ask = |target: &str, more: &str| {
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: evil.example\r\n{more}Connection: close\r\n\r\n"
        );
        let address = shop.address;
        async move { raw(address, &request).await }
    };
    let answer = ask("/weather", "X-Forwarded-Host: evil.example\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 402"), "{answer}");
    assert!(answer.contains(&shop.url("/weather")) && !answer.contains("evil.example"));
    let answer = ask("http://evil.example/weather", "").await;
    assert!(answer.contains(&shop.url("/weather")) && !answer.contains("evil.example"));
    for odd in ["/a/../weather", "/a/%2e%2E/weather", "/a/./b", "/a\\b"] {
        let answer = ask(odd, "").await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{odd}: {answer}");
        assert!(!answer.to_lowercase().contains("www-authenticate"));
    }
    // Spellings that mean the same are quoted under the canonical one.
    let answer = ask("/it's?q='x'", "").await;
    assert!(answer.contains(&shop.url("/it's?q=%27x%27")), "{answer}");
}

#[tokio::test]
async fn a_price_without_a_seller_is_closed() {
    let earnest = Earnest::start().await;
    let shop = Shop::open(&earnest, |_| {
        Router::new().route("/weather", get(|| async { "sunny" }).layer(price("$0.02")))
    })
    .await;
    assert_eq!(shop.get("/weather", None).await.is(), (500, "internal".to_owned()));
}

#[tokio::test]
async fn a_router_inside_another_sells_the_url_that_was_asked_for() {
    let earnest = Earnest::start().await;
    let shop = Shop::open(&earnest, |seller| {
        let inner = Router::new()
            .route("/weather", get(|paid: Paid| async move { paid.held().to_string() }))
            .layer(seller.price("$0.02").unwrap());
        Router::new().nest("/v2", inner)
    })
    .await;
    let voucher = earnest.voucher(&shop.url("/v2/weather"), 20_000);
    assert_eq!(shop.get("/v2/weather", Some(&voucher)).await.body, b"$0.02");
}

#[tokio::test]
async fn nothing_is_served_on_a_guess() {
    let earnest = Earnest::start().await;
    let app = |seller: &earnest_sdk::Seller| {
        let served = get(|| async { "sunny" }).layer(price("$0.02"));
        Router::new().route("/weather", served).layer(seller.layer())
    };
    let unavailable = (503, "voucher_check_unavailable".to_owned());
    // The memory is gone.
    let shop = Shop::open(&earnest, app).await;
    assert!(shop.seller.shutdown(PATIENCE).await);
    let voucher = earnest.voucher(&shop.url("/weather"), 20_000);
    let reply = shop.get("/weather", Some(&voucher)).await;
    assert_eq!(reply.is(), unavailable);
    assert_ne!(reply.header("retry-after"), "");
    assert_eq!(reply.header("www-authenticate"), "", "paying again would not help");
    // The keys cannot be had.
    let (listener, origin) = crate::shop::bind().await;
    let (nowhere, gone) = crate::shop::bind().await;
    drop(nowhere);
    let nonces = earnest_sdk::NonceStore::in_memory().unwrap();
    let (id, key) = (crate::earnest::SELLER, crate::earnest::SELLER_KEY);
    let config = earnest_sdk::SellerConfig::new(&gone, id, key, &origin, nonces).unwrap();
    let shop = Shop::serve(listener, earnest_sdk::Seller::new(config).unwrap(), app);
    let voucher = earnest.voucher(&shop.url("/weather"), 20_000);
    assert_eq!(shop.get("/weather", Some(&voucher)).await.is(), unavailable);
    assert_eq!(shop.get("/weather", None).await.status, 402);
}

#[tokio::test]
async fn a_slow_handler_and_a_slow_body_are_given_up() {
    let earnest = Earnest::start().await;
    let soon = Duration::from_millis(50);
    let shop = Shop::open_with(
        &earnest,
        |config| config.answer_within(soon).body_within(soon),
        |seller| {
            let never = || async { std::future::pending::<&'static str>().await };
            let app = Router::new().route("/slow", any(never).layer(price("$0.02")));
            app.layer(seller.layer())
        },
    )
    .await;
    let voucher = earnest.voucher(&shop.url("/slow"), 20_000);
    let reply = shop.get("/slow", Some(&voucher)).await;
    assert_eq!(reply.is(), (504, "upstream_timeout".to_owned()));
    earnest.until("released", |books| books.fates() == [Fate::Failed]).await;
    let head =
        "POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nConnection: close\r\n\r\nabc";
    let answer = raw(shop.address, head).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test]
async fn an_embedder_proves_its_origin_beside_its_routes() {
    let earnest = Earnest::start().await;
    let shop = Shop::open(&earnest, |seller| {
        let priced =
            Router::new().route("/weather", get(|| async { "sunny" }).layer(price("$0.02")));
        priced.layer(seller.layer()).merge(seller.origin_proof())
    })
    .await;
    let reply = shop.get(ORIGIN_PROOF_PATH, None).await;
    assert_eq!((reply.status, reply.body), (200, format!("{SELLER}\n").into_bytes()));
    assert_eq!(shop.get("/weather", None).await.status, 402);
}
