//! `pay`: one thing, written out as it comes.

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::{get, post};
use earnest_sdk::pay::{PayRequest, pay};
use earnest_sdk::{BuyError, Payment, price};

use crate::buyer::buyer;
use crate::earnest::Earnest;
use crate::shop::{Shop, broken};

#[tokio::test]
async fn pays_and_writes_the_body_out() {
    let earnest = Earnest::start().await;
    let echo = |headers: HeaderMap, body: Bytes| async move {
        [headers["x-city"].as_bytes(), b" ", &body].concat()
    };
    let shop = Shop::open(&earnest, |seller| {
        Router::new()
            .route("/echo", post(echo).layer(price("$0.02")))
            .route("/broken", get(|| async { broken() }).layer(price("$0.02")))
            .route(
                "/missing",
                get(|| async { axum::http::StatusCode::NOT_FOUND }).layer(price("$0.02")),
            )
            .layer(seller.layer())
    })
    .await;
    let buyer = buyer(&earnest);
    let mut request = PayRequest::get(&shop.url("/echo"), "echo-1");
    request.method = reqwest::Method::POST;
    request.headers.push(("x-city".to_owned(), "Delft".to_owned()));
    request.data = Bytes::from_static(b"rain");
    let mut out = Vec::new();
    let paying = pay(&buyer, &request, &mut out).await.unwrap();
    assert_eq!(out, b"Delft rain");
    assert_eq!((paying.status.as_u16(), paying.paid, paying.bytes), (200, Payment::Yes, 10));
    assert_eq!(paying.receipt.unwrap().purchase, paying.paid_for.unwrap().purchase);
    earnest.until("one line", |books| books.outstanding() == 20_000).await;

    request.max_price = Some("$0.01".to_owned());
    request.request_id = "echo-2".to_owned();
    let error = pay(&buyer, &request, &mut Vec::new()).await.unwrap_err();
    assert!(matches!(error, BuyError::PriceAboveMax { .. }));

    let mut out = Vec::new();
    let missing = PayRequest::get(&shop.url("/missing"), "missing-1");
    let paying = pay(&buyer, &missing, &mut out).await.unwrap();
    assert_eq!((paying.status.as_u16(), paying.paid), (404, Payment::No));

    let broken = PayRequest::get(&shop.url("/broken"), "broken-1");
    let error = pay(&buyer, &broken, &mut out).await.unwrap_err();
    assert_eq!(
        (error.code(), error.paid(), error.exit_code()),
        ("answer_broken", Payment::Unknown, 11)
    );
    assert!(out.starts_with(b"half"));
    earnest.books(|books| assert_eq!(books.outstanding(), 20_000));
}
