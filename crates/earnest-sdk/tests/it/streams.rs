//! Answers that take their time, or break: only a clean end is billed.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use earnest_core::voucher::Fate;
use earnest_sdk::{Paid, price, price_up_to};
use futures_util::{StreamExt as _, stream};
use tokio::sync::{mpsc, oneshot};

use crate::earnest::{Earnest, PATIENCE};
use crate::shop::{Shop, client, raw};

type Events = mpsc::UnboundedReceiver<Result<&'static str, std::io::Error>>;

/// A body that is fed from outside.
fn fed(mut events: Events) -> Body {
    Body::from_stream(stream::poll_fn(move |context| events.poll_recv(context)))
}

/// A shop whose one route answers with the body given, once.
async fn streaming(earnest: &Earnest, body: Body) -> Shop {
    let body = std::sync::Arc::new(std::sync::Mutex::new(Some(body)));
    let handler = move || async move {
        let body = body.lock().unwrap().take().unwrap();
        ([("content-type", "text/event-stream")], body).into_response()
    };
    let quick = Duration::from_millis(50);
    Shop::open_with(
        earnest,
        |config| config.report_serving_every(quick),
        |seller| {
            let app = Router::new().route("/stream", get(handler).layer(price("$0.02")));
            app.layer(seller.layer())
        },
    )
    .await
}

async fn send(earnest: &Earnest, shop: &Shop, path: &str) -> reqwest::Result<reqwest::Response> {
    let voucher = earnest.voucher(&shop.url(path), 20_000);
    let request = client().get(shop.url(path)).header("authorization", format!("Tab {voucher}"));
    request.send().await
}

async fn request(earnest: &Earnest, shop: &Shop, path: &str) -> reqwest::Response {
    send(earnest, shop, path).await.unwrap()
}

/// The whole body; an answer that breaks off at once may not even begin.
async fn whole(earnest: &Earnest, shop: &Shop, path: &str) -> reqwest::Result<Bytes> {
    send(earnest, shop, path).await?.bytes().await
}

#[tokio::test]
async fn an_event_stream_passes_unbuffered_keeps_its_hold_and_is_billed_at_its_end() {
    let earnest = Earnest::start().await;
    let (events, receiver) = mpsc::unbounded_channel();
    let shop = streaming(&earnest, fed(receiver)).await;
    let mut response = request(&earnest, &shop, "/stream").await;
    assert!(response.headers().contains_key("payment-receipt"));
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        events.send(Ok(event)).unwrap();
        // The next is sent only once this one arrived.
        let chunk = tokio::time::timeout(PATIENCE, response.chunk()).await.unwrap().unwrap();
        assert_eq!(chunk.unwrap(), event);
    }
    let serving = |books: &crate::earnest::Books| {
        books.fates().iter().filter(|fate| **fate == Fate::Serving).count() >= 2
    };
    earnest.until("reported as being served, again and again", serving).await;
    earnest.books(|books| {
        assert_eq!(books.outstanding(), 0);
        assert!(!books.fates().contains(&Fate::Redeemed));
    });
    drop(events);
    assert!(response.chunk().await.unwrap().is_none());
    earnest.until("billed", |books| books.outstanding() == 20_000).await;
}

#[tokio::test]
async fn a_body_that_breaks_midway_is_not_billed() {
    let earnest = Earnest::start().await;
    let (events, receiver) = mpsc::unbounded_channel();
    let shop = streaming(&earnest, fed(receiver)).await;
    let mut response = request(&earnest, &shop, "/stream").await;
    events.send(Ok("half")).unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "half");
    events.send(Err(std::io::Error::other("the disk is gone"))).unwrap();
    assert!(response.chunk().await.is_err(), "the client sees that it broke");
    earnest.until("released", |books| books.fates().contains(&Fate::Failed)).await;
    earnest.books(|books| assert_eq!(books.outstanding(), 0));
}

#[tokio::test]
async fn a_buyer_that_hangs_up_is_not_billed() {
    let earnest = Earnest::start().await;
    let (events, receiver) = mpsc::unbounded_channel();
    let shop = streaming(&earnest, fed(receiver)).await;
    let mut response = request(&earnest, &shop, "/stream").await;
    events.send(Ok("half")).unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "half");
    drop(response);
    earnest.until("released", |books| books.fates().contains(&Fate::Failed)).await;
    assert!(events.is_closed());
}

#[tokio::test]
async fn a_buyer_that_hangs_up_before_the_answer_is_not_billed() {
    let earnest = Earnest::start().await;
    let (started, start) = oneshot::channel();
    let started = std::sync::Arc::new(std::sync::Mutex::new(Some(started)));
    let handler = move || async move {
        started.lock().unwrap().take().unwrap().send(()).unwrap();
        std::future::pending::<&'static str>().await
    };
    let shop = Shop::open(&earnest, |seller| {
        Router::new().route("/slow", get(handler).layer(price("$0.02"))).layer(seller.layer())
    })
    .await;
    let voucher = earnest.voucher(&shop.url("/slow"), 20_000);
    let request = client().get(shop.url("/slow")).header("authorization", format!("Tab {voucher}"));
    let buyer = tokio::spawn(request.send());
    start.await.unwrap();
    buyer.abort();
    earnest.until("released", |books| books.fates() == [Fate::Failed]).await;
}

#[tokio::test]
async fn a_panic_is_a_500_and_not_billed() {
    let earnest = Earnest::start().await;
    let panics = || async {
        if true {
            panic!("as planned");
        }
    };
    let midway = || async {
        let chunks = stream::iter([0, 1]).map(|n| {
            assert_eq!(n, 0, "as planned");
            Ok::<_, Infallible>("half")
        });
        Body::from_stream(chunks)
    };
    let shop = Shop::open(&earnest, |seller| {
        Router::new()
            .route("/panics", get(panics).layer(price("$0.02")))
            .route("/midway", get(midway).layer(price("$0.02")))
            .layer(seller.layer())
    })
    .await;
    let voucher = earnest.voucher(&shop.url("/panics"), 20_000);
    let reply = shop.get("/panics", Some(&voucher)).await;
    assert_eq!(reply.is(), (500, "internal".to_owned()));
    assert!(!String::from_utf8_lossy(&reply.body).contains("planned"));
    earnest.until("released", |books| books.fates() == [Fate::Failed]).await;
    // It still is a used voucher.
    assert_eq!(shop.get("/panics", Some(&voucher)).await.status, 409);
    assert!(whole(&earnest, &shop, "/midway").await.is_err());
    earnest.until("released", |books| books.fates() == [Fate::Failed, Fate::Failed]).await;
}

/// A body that announces a length and keeps it, or not.
fn announced(length: &'static str, chunks: &'static [&'static str]) -> Response {
    let chunks =
        chunks.iter().map(|chunk| Ok::<_, Infallible>(Bytes::from_static(chunk.as_bytes())));
    ([("content-length", length)], Body::from_stream(stream::iter(chunks))).into_response()
}

#[tokio::test]
async fn an_announced_length_is_kept_or_nothing_is_billed() {
    let earnest = Earnest::start().await;
    let shop = Shop::open(&earnest, |seller| {
        Router::new()
            .route("/whole", get(|| async { announced("8", &["half", "half"]) }))
            .route("/short", get(|| async { announced("8", &["half"]) }))
            .route("/long", get(|| async { announced("6", &["half", "half"]) }))
            .layer(price("$0.02"))
            .layer(seller.layer())
    })
    .await;
    for (path, fate) in
        [("/whole", Fate::Redeemed), ("/short", Fate::Failed), ("/long", Fate::Failed)]
    {
        assert_eq!(whole(&earnest, &shop, path).await.is_ok(), path != "/short");
        earnest.until(path, |books| books.fates().last() == Some(&fate)).await;
        earnest.books(|books| books.reports.clear());
    }
    earnest.books(|books| assert_eq!(books.outstanding(), 20_000));
}

#[tokio::test]
async fn what_a_stream_costs_may_be_named_while_it_runs() {
    let earnest = Earnest::start().await;
    let handler = |paid: Paid| async move {
        let words = ["one ", "two ", "three"];
        let priced = stream::iter(words.into_iter().zip(1_i64..)).map(move |(word, count)| {
            paid.charge(&format!("0.0{count}")).unwrap();
            Ok::<_, Infallible>(word)
        });
        Body::from_stream(priced)
    };
    let shop = Shop::open(&earnest, |seller| {
        let app = Router::new().route("/words", get(handler).layer(price_up_to("$0.50")));
        app.layer(seller.layer())
    })
    .await;
    let voucher = earnest.voucher_up_to(&shop.url("/words"), 500_000);
    assert_eq!(shop.get("/words", Some(&voucher)).await.body, b"one two three");
    earnest.until("billed", |books| books.outstanding() == 30_000).await;
}

#[tokio::test]
async fn a_second_request_on_the_same_connection_is_a_purchase_of_its_own() {
    let earnest = Earnest::start().await;
    let shop = Shop::open(&earnest, |seller| {
        let app = Router::new().route("/a", get(|| async { "a" }).layer(price("$0.02")));
        app.layer(seller.layer())
    })
    .await;
    let url = shop.url("/a");
    let line = |more: &str| {
        let voucher = earnest.voucher(&url, 20_000);
        format!("GET /a HTTP/1.1\r\nHost: x\r\nAuthorization: Tab {voucher}\r\n{more}\r\n")
    };
    let answer = raw(shop.address, &(line("") + &line("Connection: close\r\n"))).await;
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 2, "{answer}");
    earnest.until("two lines", |books| books.outstanding() == 40_000).await;
}
