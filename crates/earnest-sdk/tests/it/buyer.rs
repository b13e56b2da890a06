//! The buyer: pays for what it asked for, once, and goes nowhere else with a voucher.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use earnest_core::quote::{Price, body_digest};
use earnest_core::time::{Timestamp, after};
use earnest_core::voucher::Fate;
use earnest_sdk::{Asked, BuyError, Buyer, OnApproval, Payment, price, wrap};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::earnest::{AGENT_KEY, Earnest, PATIENCE, SELLER, problem};
use crate::shop::{Shop, bind, config};

pub fn buyer(earnest: &Earnest) -> Buyer {
    buyer_over(earnest, reqwest::Client::builder())
}

fn buyer_over(earnest: &Earnest, client: reqwest::ClientBuilder) -> Buyer {
    wrap(client.no_proxy())
        .earnest_url(&earnest.url)
        .agent_key(AGENT_KEY)
        .max_price("$0.25")
        .build()
        .unwrap()
}

async fn weather(earnest: &Earnest) -> Shop {
    Shop::open(earnest, |seller| {
        let echo = |body: Bytes| async move { body };
        Router::new()
            .route("/weather", get(|| async { r#"{"sky":"blue"}"# }).layer(price("$0.02")))
            .route("/text", get(|| async { "not JSON" }).layer(price("$0.02")))
            .route("/echo", post(echo).layer(price("$0.02")))
            .route("/free", get(|| async { "free" }))
            .layer(seller.layer())
    })
    .await
}

#[tokio::test]
async fn buys_once_and_hands_over_the_answer_and_its_receipt() {
    let earnest = Earnest::start().await;
    let shop = weather(&earnest).await;
    let buyer = buyer(&earnest);
    let answer = buyer.get(&shop.url("/weather")).request_id("w-1").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.paid()), (200, Payment::Yes));
    let receipt = answer.receipt().unwrap();
    assert_eq!(answer.paid_for().unwrap().purchase, receipt.purchase);
    assert_eq!(answer.json::<Value>().await.unwrap(), json!({"sky": "blue"}));
    let answer = buyer.post(&shop.url("/echo")).body("hello").send().await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "hello");
    let answer = buyer.get(&shop.url("/free")).send().await.unwrap();
    assert_eq!((answer.paid(), answer.receipt()), (Payment::No, None));
    earnest.until("two lines", |books| books.outstanding() == 40_000).await;
    earnest.books(|books| {
        let ids: Vec<_> = books.authorizes.iter().map(|a| a.request_id.clone().unwrap()).collect();
        assert_eq!((ids.len(), ids[0].as_str()), (2, "w-1"));
        assert!(earnest_core::authorize::is_request_id(&ids[1]), "an id of its own");
    });
}

/// Passes connections on to a shop, but swallows answers to paid requests once they are whole.
async fn swallowing(listener: TcpListener, shop: std::net::SocketAddr, swallow: Arc<AtomicU32>) {
    while let Ok((mut outside, _)) = listener.accept().await {
        let swallow = Arc::clone(&swallow);
        tokio::spawn(async move {
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
            let swallowed =
                paid && swallow.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok();
            if !swallowed {
                outside.write_all(&answer).await.unwrap();
            }
        });
    }
}

#[tokio::test]
async fn tabp_07_a_lost_answer_is_not_paid_again() {
    let earnest = Earnest::start().await;
    let (front, origin) = bind().await;
    let (back, _) = bind().await;
    let nonces = earnest_sdk::NonceStore::in_memory().unwrap();
    let seller = earnest_sdk::Seller::new(config(&earnest, &origin, nonces)).unwrap();
    let shop = Shop::serve(back, seller, |seller| {
        let app = Router::new().route("/weather", get(|| async { "sunny" }).layer(price("$0.02")));
        app.layer(seller.layer())
    });
    tokio::spawn(swallowing(front, shop.address, Arc::new(AtomicU32::new(1))));
    let buyer = buyer(&earnest);
    let request = buyer.get(&format!("{origin}/weather")).request_id("w-1");
    let lost = request.send().await.unwrap_err();
    assert!(matches!(lost, BuyError::AnswerLost { .. }), "{lost}");
    assert_eq!(lost.paid(), Payment::Unknown);
    assert!(lost.to_string().contains("paid: unknown"), "{lost}");
    earnest.until("one line", |books| books.outstanding() == 20_000).await;
    // The same call again, by the same object and by another with the same id.
    for again in [request.clone(), buyer.get(&format!("{origin}/weather")).request_id("w-1")] {
        let used = again.send().await.unwrap_err();
        assert!(matches!(used, BuyError::AlreadyUsed { .. }), "{used}");
        assert_eq!((used.purchase(), used.exit_code()), (lost.purchase(), 7));
    }
    assert!(shop.seller.shutdown(PATIENCE).await);
    earnest.books(|books| {
        assert_eq!(books.outstanding(), 20_000);
        let ids = books.authorizes.iter().map(|a| a.request_id.as_deref().unwrap());
        assert!(ids.eq(["w-1"; 3]), "same key is reused");
        assert_eq!(books.purchases.len(), 1);
    });
}

#[tokio::test]
async fn tabp_08_an_answer_that_cannot_be_read_is_still_paid_for() {
    let earnest = Earnest::start().await;
    let shop = weather(&earnest).await;
    let request = buyer(&earnest).get(&shop.url("/text"));
    let id = request.id().unwrap().to_owned();
    let error = request.send().await.unwrap().json::<Value>().await.unwrap_err();
    assert!(matches!(error, BuyError::Unreadable { .. }));
    assert_eq!(error.paid(), Payment::Yes);
    earnest.until("one line", |books| books.outstanding() == 20_000).await;
    let again = request.send().await.unwrap_err();
    assert!(matches!(again, BuyError::AlreadyUsed { .. }), "{again}");
    assert_eq!(request.id(), Some(id.as_str()), "one object, one id");
    assert!(shop.seller.shutdown(PATIENCE).await);
    earnest.books(|books| assert_eq!(books.outstanding(), 20_000));
}

/// A server that counts what it is asked and remembers every Authorization header.
async fn elsewhere() -> (String, Arc<AtomicU32>) {
    let (listener, origin) = bind().await;
    let hits = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&hits);
    let app = Router::new().fallback(move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
        "elsewhere"
    });
    tokio::spawn(async move { axum::serve(listener, app).await });
    (origin, hits)
}

#[tokio::test]
async fn tabp_13_a_voucher_follows_no_redirect() {
    let earnest = Earnest::start().await;
    let (other, hits) = elsewhere().await;
    let target = format!("{other}/x");
    let shop = Shop::open(&earnest, |seller| {
        let redirect = move || async move { Redirect::temporary(&target) };
        Router::new().route("/moved", get(redirect).layer(price("$0.02"))).layer(seller.layer())
    })
    .await;
    // Also when the program that embeds the buyer would follow redirects.
    let follows = reqwest::Client::builder().redirect(reqwest::redirect::Policy::limited(5));
    let buyer = buyer_over(&earnest, follows);
    let error = buyer.get(&shop.url("/moved")).send().await.unwrap_err();
    assert_eq!(error.code(), "redirect_refused");
    assert!(
        matches!(&error, BuyError::RedirectRefused { location, .. } if *location == format!("{other}/x"))
    );
    assert_eq!(hits.load(Ordering::SeqCst), 0, "nothing reaches the other host");
    earnest.until("reported failed", |books| books.fates() == [Fate::Failed]).await;
    earnest.books(|books| assert_eq!((books.outstanding(), books.released.len()), (0, 1)));
}

#[tokio::test]
async fn tabp_17_asking_for_a_price_pays_nothing() {
    let earnest = Earnest::start().await;
    let shop = weather(&earnest).await;
    let buyer = buyer(&earnest);
    let asked = buyer.get(&shop.url("/weather")).quote().await.unwrap();
    let quote = asked.quote().unwrap();
    assert_eq!(quote.price.most().get(), 20_000);
    assert_eq!(quote.request.url, shop.url("/weather"));
    assert!(!asked.is_free());
    let free = buyer.get(&shop.url("/free")).quote().await.unwrap();
    assert_eq!((&free, free.is_free()), (&Asked::Unpriced(StatusCode::OK), true));
    // What is not there is not free.
    let gone = buyer.get(&shop.url("/nothing-there")).quote().await.unwrap();
    assert_eq!((&gone, gone.is_free()), (&Asked::Unpriced(StatusCode::NOT_FOUND), false));
    assert!(shop.seller.shutdown(PATIENCE).await);
    earnest.books(|books| {
        assert!(books.authorizes.is_empty() && books.reports.is_empty() && books.billed.is_empty());
    });
}

fn quote_of(method: &str, url: &str, body: &[u8]) -> Value {
    json!({"v": 1, "id": "qte_00000000000000000000000001", "seller": SELLER, "listing": "x",
        "method": method, "url": url, "body_sha256": body_digest(body), "amount_micros": 20_000,
        "currency": "USD", "expires_at": after(Timestamp::now(), 600).to_string()})
}

fn challenge(quote: &Value) -> Response {
    let quote = URL_SAFE_NO_PAD.encode(quote.to_string());
    let value = format!("Tab realm=\"x\", quote=\"{quote}\"");
    (StatusCode::PAYMENT_REQUIRED, [("www-authenticate", value)]).into_response()
}

/// A seller that answers 402 with whatever `quote` makes of its own URL, and counts vouchers.
async fn dishonest(
    quote: impl Fn(&str) -> Response + Clone + Send + Sync + 'static,
) -> (String, Arc<AtomicU32>) {
    let (listener, origin) = bind().await;
    let vouchers = Arc::new(AtomicU32::new(0));
    let (counted, own) = (Arc::clone(&vouchers), origin.clone());
    let app = Router::new().fallback(move |headers: HeaderMap, request: Request| async move {
        if headers.get("authorization").is_some() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        quote(&format!("{own}{}", request.uri()))
    });
    tokio::spawn(async move { axum::serve(listener, app).await });
    (origin, vouchers)
}

#[tokio::test]
async fn a_client_pays_only_for_the_request_it_made() {
    let earnest = Earnest::start().await;
    let buyer = buyer(&earnest);
    type Change = fn(&mut Value, &str);
    let changes: [(&str, Change); 8] = [
        ("another URL", |q, url| q["url"] = json!(format!("{url}/more"))),
        ("another origin", |q, _| q["url"] = json!("http://127.0.0.1:1/thing")),
        ("another method", |q, _| q["method"] = json!("POST")),
        ("another body", |q, _| q["body_sha256"] = json!(body_digest(b"x"))),
        ("another currency", |q, _| q["currency"] = json!("JPY")),
        ("two prices", |q, _| q["max_micros"] = json!(1)),
        ("no price", |q, _| q["amount_micros"] = Value::Null),
        ("expired", |q, _| q["expires_at"] = json!("2026-01-01T00:00:00Z")),
    ];
    for (what, change) in changes {
        let (origin, _) = dishonest(move |url| {
            let mut quote = quote_of("GET", url, b"");
            change(&mut quote, url);
            challenge(&quote)
        })
        .await;
        let error = buyer.get(&format!("{origin}/thing")).send().await.unwrap_err();
        assert!(matches!(error, BuyError::Quote(_)), "{what}: {error}");
        assert_eq!((error.code(), error.paid()), ("quote_mismatch", Payment::No));
        if what == "another origin" {
            let told = format!("the quote is for http://127.0.0.1:1, and {origin} was asked");
            assert!(error.to_string().contains(&told), "{error}");
        }
    }
    let (origin, _) = dishonest(|url| {
        let mut quote = quote_of("GET", url, b"");
        quote["amount_micros"] = json!(250_001);
        challenge(&quote)
    })
    .await;
    let error = buyer.get(&format!("{origin}/thing")).send().await.unwrap_err();
    assert!(matches!(error, BuyError::PriceAboveMax { .. }), "{error}");
    earnest.books(|books| assert!(books.authorizes.is_empty(), "Earnest was not asked"));
    // The same with a higher maximum is bought.
    let dear = buyer.get(&format!("{origin}/thing")).max_price("$0.26").send().await;
    assert!(matches!(dear, Err(BuyError::PaymentRefused { .. })));
    earnest.books(|books| assert_eq!(books.purchases.len(), 1));
}

#[tokio::test]
async fn a_402_without_a_challenge_is_never_paid() {
    let earnest = Earnest::start().await;
    let (origin, _) = dishonest(|url| {
        let body = json!({"code": "payment_required", "quote": quote_of("GET", url, b"")});
        (StatusCode::PAYMENT_REQUIRED, axum::Json(body)).into_response()
    })
    .await;
    let answer = buyer(&earnest).get(&format!("{origin}/x")).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.paid()), (402, Payment::No));
    // Nor is a challenge that comes with another status.
    let (origin, _) = dishonest(|url| {
        let mut response = challenge(&quote_of("GET", url, b""));
        *response.status_mut() = StatusCode::UNAUTHORIZED;
        response
    })
    .await;
    let answer = buyer(&earnest).get(&format!("{origin}/x")).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 401);
    earnest.books(|books| assert!(books.authorizes.is_empty()));
}

#[tokio::test]
async fn a_seller_that_always_wants_more_gets_one_more_voucher_at_most() {
    let earnest = Earnest::start().await;
    let (origin, vouchers) = dishonest(|url| challenge(&quote_of("GET", url, b""))).await;
    let error = buyer(&earnest).get(&format!("{origin}/x")).request_id("x").send().await;
    let error = error.unwrap_err();
    assert!(matches!(error, BuyError::PaymentRefused { .. }), "{error}");
    assert_eq!((error.paid(), error.exit_code()), (Payment::No, 5));
    // Earnest gave the same voucher again, so there was no point in presenting it again.
    assert_eq!(vouchers.load(Ordering::SeqCst), 1);
    earnest.books(|books| {
        assert!(books.authorizes.iter().all(|a| a.request_id.as_deref() == Some("x")));
        assert_eq!((books.authorizes.len(), books.purchases.len()), (2, 1));
    });
}

#[tokio::test]
async fn a_voucher_that_expired_on_the_way_is_replaced_under_the_same_id() {
    let earnest = Earnest::start().await;
    let shop = weather(&earnest).await;
    let mut expired = earnest.claims(&shop.url("/weather"), 20_000);
    (expired.iat, expired.exp) = (expired.iat - 120, expired.iat - 1);
    let stale = json!({"purchase": expired.sub, "voucher": earnest.sign(&expired),
        "expires_at": "2026-01-01T00:00:00Z", "amount_micros": 20_000, "currency": "USD"});
    earnest.books(|books| books.scripted.push_back((StatusCode::CREATED, stale)));
    let answer = buyer(&earnest).get(&shop.url("/weather")).request_id("w").send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    earnest.books(|books| {
        assert!(books.authorizes.iter().all(|a| a.request_id.as_deref() == Some("w")));
        assert_eq!(books.authorizes.len(), 2);
    });
    earnest.until("one line", |books| books.outstanding() == 20_000).await;
}

#[tokio::test]
async fn plain_http_is_paid_on_this_machine_only() {
    let earnest = Earnest::start().await;
    let (listener, _) = bind().await;
    let address = listener.local_addr().unwrap();
    let url = format!("http://shop.example:{}/x", address.port());
    let quoted = url.clone();
    let app =
        Router::new().fallback(move || async move { challenge(&quote_of("GET", &quoted, b"")) });
    tokio::spawn(async move { axum::serve(listener, app).await });
    let client = reqwest::Client::builder().resolve("shop.example", address);
    let error = buyer_over(&earnest, client).get(&url).send().await.unwrap_err();
    assert_eq!(error.code(), "insecure_resource");
    let shop = weather(&earnest).await;
    let strict = wrap(reqwest::Client::builder().no_proxy())
        .earnest_url(&earnest.url)
        .agent_key(AGENT_KEY)
        .max_price("$0.25")
        .loopback_http(false)
        .build()
        .unwrap();
    let error = strict.get(&shop.url("/weather")).send().await.unwrap_err();
    assert_eq!(error.code(), "insecure_resource");
    earnest.books(|books| assert!(books.authorizes.is_empty()));
}

fn waiting() -> (StatusCode, Value) {
    let body = json!({"status": "approval_required", "purchase": "pur_00000000000000000000000001",
        "approval_id": "apr_00000000000000000000000001", "approval_url": "http://x/approvals/1",
        "expires_at": "2026-12-01T00:00:00Z", "retry_after_s": 0, "detail": "above $0.01"});
    (StatusCode::ACCEPTED, body)
}

#[tokio::test]
async fn an_owner_who_has_to_answer_is_waited_for_or_not() {
    let earnest = Earnest::start().await;
    let shop = weather(&earnest).await;
    let buyer = buyer(&earnest);
    let url = shop.url("/weather");
    earnest.books(|books| books.scripted.push_back(waiting()));
    let error = buyer.get(&url).request_id("a").send().await.unwrap_err();
    assert!(
        matches!(&error, BuyError::ApprovalNeeded(w) if w.approval_url == "http://x/approvals/1")
    );
    assert_eq!((error.paid(), error.exit_code()), (Payment::No, 6));
    // Approved meanwhile: the same id is asked again and served.
    earnest.books(|books| books.scripted.extend([waiting(), waiting()]));
    let patient = buyer.get(&url).request_id("b").on_approval(OnApproval::Wait(PATIENCE));
    assert_eq!(patient.send().await.unwrap().paid(), Payment::Yes);
    earnest.books(|books| {
        let asked = books.authorizes.iter().filter(|a| a.request_id.as_deref() == Some("b"));
        assert_eq!(asked.count(), 3);
    });
    // Refused meanwhile.
    earnest.books(|books| books.scripted.extend([waiting(), problem(403, "approval_denied")]));
    let error = patient.clone().request_id("c").send().await.unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("approval_denied", 5));
    // Never answered: patience ends.
    earnest.books(|books| books.scripted.extend(vec![waiting(); 50]));
    let short = OnApproval::Wait(Duration::from_millis(450));
    let error = buyer.get(&url).request_id("d").on_approval(short).send().await.unwrap_err();
    assert!(matches!(error, BuyError::ApprovalNeeded(_)));
}

#[tokio::test]
async fn refusals_keep_their_code_and_numbers() {
    let earnest = Earnest::start().await;
    let shop = weather(&earnest).await;
    let buyer = buyer(&earnest);
    let ask = |id: &'static str| {
        let request = buyer.get(&shop.url("/weather")).request_id(id);
        async move { request.send().await.unwrap_err() }
    };
    let (status, mut body) = problem(403, "policy_denied");
    body["reason"] = json!("daily_cap");
    body["limit_micros"] = json!(1_000_000);
    earnest.books(|books| books.scripted.push_back((status, body)));
    let error = ask("a").await;
    let BuyError::Denied { problem: denied, .. } = &error else { panic!("{error}") };
    assert_eq!(denied.reason.as_deref(), Some("daily_cap"));
    assert_eq!(denied.more["limit_micros"], 1_000_000);
    assert_eq!((error.exit_code(), error.paid()), (5, Payment::No));

    earnest.books(|books| books.scripted.push_back(problem(503, "payment_outcome_unknown")));
    let error = ask("b").await;
    assert!(matches!(&error, BuyError::OutcomeUnknown { request_id, .. } if request_id == "b"));
    assert_eq!((error.exit_code(), error.paid()), (11, Payment::Unknown));

    earnest.books(|books| books.scripted.push_back(problem(422, "idempotency_conflict")));
    assert_eq!(ask("c").await.code(), "idempotency_conflict");

    let (status, body) = (StatusCode::OK, json!({"purchase": "pur_00000000000000000000000001"}));
    earnest.books(|books| books.scripted.push_back((status, body)));
    assert!(matches!(ask("d").await, BuyError::AlreadyUsed { .. }));

    earnest.books(|books| assert!(books.purchases.is_empty()));
    // What may pass is repeated, under the same id.
    let passing = [problem(503, "overloaded"), problem(409, "idempotency_in_flight")];
    earnest.books(|books| {
        let retryable = |(status, mut body): (StatusCode, Value)| {
            body["retryable"] = json!(true);
            (status, body)
        };
        books.scripted.extend(passing.map(retryable));
    });
    let answer = buyer.get(&shop.url("/weather")).request_id("e").send().await.unwrap();
    assert_eq!(answer.paid(), Payment::Yes);
}

#[tokio::test]
async fn an_earnest_that_is_gone_is_named() {
    let earnest = Earnest::start().await;
    let shop = weather(&earnest).await;
    let (nowhere, gone) = bind().await;
    drop(nowhere);
    let mut other = earnest.clone();
    other.url = gone;
    let error = buyer(&other).get(&shop.url("/weather")).send().await.unwrap_err();
    assert!(matches!(error, BuyError::EarnestUnreachable { .. }), "{error}");
    assert_eq!((error.paid(), error.exit_code()), (Payment::No, 8));
    let error = buyer(&earnest).get(&other.url).send().await.unwrap_err();
    assert_eq!(error.code(), "seller_unreachable");
}

#[tokio::test]
async fn what_cannot_be_bought_is_refused_before_anything_is_sent() {
    let earnest = Earnest::start().await;
    let buyer = buyer(&earnest);
    let url = "http://127.0.0.1:1/";
    for (what, request) in [
        ("scheme", buyer.get("ftp://x/")),
        ("credentials", buyer.get("http://u:p@127.0.0.1:1/")),
        ("fragment", buyer.get("http://127.0.0.1:1/#x")),
        ("id", buyer.get(url).request_id("two words")),
        ("empty id", buyer.get(url).request_id("")),
        ("price", buyer.get(url).max_price("a lot")),
        ("no price", buyer.get(url).max_price("0")),
        ("voucher", buyer.get(url).header("authorization", "Tab x")),
        ("header", buyer.get(url).header("bad name", "x")),
    ] {
        let error = request.send().await.unwrap_err();
        assert!(matches!(error, BuyError::Request(_)), "{what}: {error}");
        assert_eq!(error.exit_code(), 2);
    }
    for builder in [
        wrap(reqwest::Client::builder()),
        wrap(reqwest::Client::builder())
            .earnest_url("http://earnest.example")
            .agent_key("k")
            .max_price("1"),
        wrap(reqwest::Client::builder())
            .earnest_url("http://127.0.0.1:1")
            .agent_key("")
            .max_price("1"),
        wrap(reqwest::Client::builder())
            .earnest_url("http://127.0.0.1:1")
            .agent_key("k")
            .max_price(""),
    ] {
        assert!(builder.build().is_err());
    }
}

#[tokio::test]
async fn a_price_up_to_is_bought_with_its_ceiling() {
    let earnest = Earnest::start().await;
    let shop = Shop::open(&earnest, |seller| {
        let handler = |paid: earnest_sdk::Paid| async move {
            paid.charge("$0.12").unwrap();
            "twelve"
        };
        let app = Router::new().route("/x", get(handler).layer(earnest_sdk::price_up_to("$0.20")));
        app.layer(seller.layer())
    })
    .await;
    let buyer = buyer(&earnest);
    let asked = buyer.get(&shop.url("/x")).quote().await.unwrap();
    assert!(matches!(asked.quote().unwrap().price, Price::UpTo(_)));
    let answer = buyer.get(&shop.url("/x")).send().await.unwrap();
    assert_eq!(answer.paid_for().unwrap().held.get(), 200_000);
    earnest.until("what was named", |books| books.outstanding() == 120_000).await;
}

#[tokio::test]
async fn nothing_that_opens_a_door_shows_in_a_log() {
    let earnest = Earnest::start().await;
    let shop = weather(&earnest).await;
    let buyer = buyer(&earnest);
    let url = shop.url("/weather");
    let request = buyer.post(&url).header("authorization", "Bearer s3cret").body("s3cret");
    let mut paying = earnest_sdk::pay::PayRequest::get(&url, "id-1");
    paying.headers.push(("x-api-key".to_owned(), "s3cret".to_owned()));
    paying.data = Bytes::from_static(b"s3cret");
    let nonces = earnest_sdk::NonceStore::in_memory().unwrap();
    let config =
        earnest_sdk::SellerConfig::new(&earnest.url, SELLER, "s3cret", &shop.origin, nonces);
    let config = config.unwrap();
    let proxy = earnest_sdk::sell::SellConfig::new(config.clone(), "http://127.0.0.1:1");
    for shown in [
        format!("{buyer:?}"),
        format!("{request:?}"),
        format!("{paying:?}"),
        format!("{config:?}"),
        format!("{proxy:?}"),
        format!("{:?}", shop.seller),
    ] {
        assert!(!shown.contains("s3cret") && !shown.contains(AGENT_KEY), "{shown}");
        // Neither as bytes.
        assert!(!shown.contains("115, 51, 99"), "{shown}");
    }
    for by_hand in ["Tab x", "tab\tx", "Tab"] {
        let refused = buyer.get(&url).header("authorization", by_hand).send().await.unwrap_err();
        assert_eq!(refused.code(), "request_malformed", "{by_hand:?}");
    }
}
