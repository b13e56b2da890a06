//! Reports reach Earnest, whatever happens in between, and are acknowledged once.

use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use earnest_core::voucher::Fate;
use earnest_sdk::{NonceStore, Seller, price};

use crate::earnest::{Earnest, PATIENCE};
use crate::shop::{Shop, bind, config};

fn app(seller: &Seller) -> Router {
    let weather = get(|| async { "sunny" }).layer(price("$0.02"));
    Router::new().route("/weather", weather).layer(seller.layer())
}

async fn durable(earnest: &Earnest, path: &Path) -> Shop {
    let (listener, origin) = bind().await;
    let seller = Seller::new(config(earnest, &origin, NonceStore::open(path).unwrap())).unwrap();
    Shop::serve(listener, seller, app)
}

async fn buy(earnest: &Earnest, shop: &Shop) -> String {
    let voucher = earnest.voucher(&shop.url("/weather"), 20_000);
    assert_eq!(shop.get("/weather", Some(&voucher)).await.status, 200);
    voucher
}

#[tokio::test]
async fn a_report_is_repeated_until_it_is_acknowledged() {
    let earnest = Earnest::start().await;
    let faults = [
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::UNAUTHORIZED,
        StatusCode::NOT_FOUND,
        StatusCode::OK,
    ];
    earnest.books(|books| books.report_faults.extend(faults));
    let shop = Shop::open(&earnest, app).await;
    buy(&earnest, &shop).await;
    earnest.until("billed", |books| books.outstanding() == 20_000).await;
    assert!(shop.seller.flush(PATIENCE).await);
    let mut watch = shop.seller.watch();
    let status = watch.wait_for(|status| status.acknowledged == 1).await.unwrap().clone();
    assert_eq!((status.unreported, status.failures, status.last_error), (0, 0, None));
    assert_eq!(status.epoch.as_deref(), Some("e1"));
    earnest.books(|books| assert_eq!(books.fates(), [Fate::Redeemed]));
}

#[tokio::test]
async fn an_outage_shows_in_the_status_and_survives_a_restart() {
    let earnest = Earnest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nonces.db");
    let shop = durable(&earnest, &path).await;
    earnest.books(|books| books.report_faults.extend([StatusCode::BAD_GATEWAY; 10_000]));
    let vouchers = [buy(&earnest, &shop).await, buy(&earnest, &shop).await];
    let mut watch = shop.seller.watch();
    let failing = watch.wait_for(|status| status.failures > 1 && status.unreported == 2).await;
    assert!(failing.unwrap().last_error.as_ref().unwrap().contains("502"));
    assert!(!shop.seller.shutdown(Duration::from_millis(100)).await, "not everything is told");
    earnest.books(|books| assert!(books.reports.is_empty()));

    earnest.books(|books| books.report_faults.clear());
    let again = durable(&earnest, &path).await;
    earnest.until("both lines", |books| books.outstanding() == 40_000).await;
    // A new process knows the old vouchers: this one is for the old port, so ask by its own URL.
    for voucher in vouchers {
        assert!(earnest.books(|books| books.reports.iter().any(|r| r.voucher == voucher)));
    }
    assert!(again.seller.shutdown(PATIENCE).await);
}

#[tokio::test]
async fn when_the_epoch_changes_everything_kept_is_said_again_and_billed_once() {
    let earnest = Earnest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let shop = durable(&earnest, &folder.path().join("nonces.db")).await;
    for _ in 0..3 {
        buy(&earnest, &shop).await;
    }
    assert!(shop.seller.flush(PATIENCE).await);
    earnest.books(|books| {
        assert_eq!(books.reports.len(), 3);
        books.reports.clear();
        // Restored from a backup that knows only one of the lines.
        while books.billed.len() > 1 {
            books.billed.pop_last();
        }
        books.epoch = "e2".to_owned();
    });
    buy(&earnest, &shop).await;
    earnest.until("all of them", |books| books.outstanding() == 80_000).await;
    assert!(shop.seller.flush(PATIENCE).await);
    earnest
        .books(|books| assert_eq!(books.reports.len(), 4, "the new one, then the three before it"));
    buy(&earnest, &shop).await;
    assert!(shop.seller.shutdown(PATIENCE).await);
    earnest.books(|books| assert_eq!(books.reports.len(), 5, "not again without a reason"));
}

#[tokio::test]
async fn one_report_that_cannot_be_read_does_not_hold_up_the_others() {
    let earnest = Earnest::start().await;
    let shop = Shop::open(&earnest, app).await;
    earnest.books(|books| books.report_faults.extend([StatusCode::BAD_GATEWAY; 10_000]));
    let bad = buy(&earnest, &shop).await;
    for _ in 0..6 {
        buy(&earnest, &shop).await;
    }
    earnest.books(|books| {
        books.poison = Some(bad.clone());
        books.report_faults.clear();
    });
    earnest.until("the six others", |books| books.outstanding() == 120_000).await;
    assert!(!shop.seller.flush(Duration::from_millis(50)).await);
    earnest.books(|books| books.poison = None);
    earnest.until("that one too", |books| books.outstanding() == 140_000).await;
    assert!(shop.seller.shutdown(PATIENCE).await);
}

#[tokio::test]
async fn a_rejected_report_is_counted_and_not_repeated() {
    let earnest = Earnest::start().await;
    let shop = Shop::open(&earnest, app).await;
    let voucher = earnest.voucher(&shop.url("/weather"), 20_000);
    earnest.books(|books| books.reject = Some(voucher.clone()));
    assert_eq!(shop.get("/weather", Some(&voucher)).await.status, 200);
    let mut watch = shop.seller.watch();
    watch.wait_for(|status| status.rejected == 1 && status.unreported == 0).await.unwrap();
    buy(&earnest, &shop).await;
    assert!(shop.seller.shutdown(PATIENCE).await);
    earnest.books(|books| assert_eq!(books.reports.len(), 2));
}

#[tokio::test]
async fn a_report_that_was_not_taken_in_is_sent_again_and_holds_up_no_other() {
    let earnest = Earnest::start().await;
    let shop = Shop::open(&earnest, app).await;
    let voucher = earnest.voucher(&shop.url("/weather"), 20_000);
    earnest.books(|books| books.again = Some(voucher.clone()));
    assert_eq!(shop.get("/weather", Some(&voucher)).await.status, 200);
    earnest.until("the first attempt", |books| !books.reports.is_empty()).await;
    buy(&earnest, &shop).await;
    earnest.until("the other one", |books| books.outstanding() == 20_000).await;
    let sent = |books: &crate::earnest::Books| {
        books.reports.iter().filter(|report| report.voucher == voucher).count()
    };
    earnest.until("another attempt", |books| sent(books) > 1).await;
    earnest.books(|books| books.again = None);
    earnest.until("both", |books| books.outstanding() == 40_000).await;
    assert!(shop.seller.shutdown(PATIENCE).await);
    assert_eq!(shop.seller.status().rejected, 0);
}

#[tokio::test]
async fn many_reports_go_in_batches_of_at_most_500() {
    let earnest = Earnest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let shop = durable(&earnest, &folder.path().join("nonces.db")).await;
    earnest.books(|books| books.report_faults.extend([StatusCode::BAD_GATEWAY; 100_000]));
    let url = shop.url("/weather");
    let client = crate::shop::client();
    for _ in 0..20 {
        let buyers = (0..30).map(|_| {
            let voucher = format!("Tab {}", earnest.voucher(&url, 20_000));
            let request = client.get(&url).header("authorization", voucher);
            async move { request.send().await.unwrap().status() }
        });
        for status in futures_util::future::join_all(buyers).await {
            assert_eq!(status, 200);
        }
    }
    earnest.books(|books| {
        books.report_faults.clear();
        books.report_batches.clear();
    });
    earnest.until("all lines", |books| books.billed.len() == 600).await;
    assert!(shop.seller.shutdown(PATIENCE).await);
    earnest.books(|books| {
        assert!(books.report_batches.iter().all(|size| *size <= 500));
        assert!(books.report_batches.len() < 10, "{:?}", books.report_batches);
    });
}
