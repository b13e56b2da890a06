//! A purchase may have several vouchers, one after another on the same hold: it is served once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use earnest_core::time::Timestamp;
use earnest_core::voucher::{Claims, Fate};
use earnest_sdk::sell::{SellConfig, serve};
use earnest_sdk::{NonceStore, Seller, price};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};

use crate::earnest::{Earnest, PATIENCE};
use crate::shop::{Reply, Shop, bind, config, get as fetch};

/// A handler that works until it is let go, and fails as often as it is told to.
#[derive(Clone)]
struct Work {
    runs: Arc<AtomicU32>,
    failures: Arc<AtomicU32>,
    begun: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl Work {
    fn new(failures: u32) -> Self {
        Self {
            runs: Arc::default(),
            failures: Arc::new(AtomicU32::new(failures)),
            begun: Arc::new(Semaphore::new(0)),
            go: Arc::new(Semaphore::new(0)),
        }
    }

    async fn answer(self) -> Response {
        self.runs.fetch_add(1, Ordering::SeqCst);
        self.begun.add_permits(1);
        let go = tokio::time::timeout(PATIENCE, self.go.acquire());
        go.await.unwrap().unwrap().forget();
        let fails = self
            .failures
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match fails {
            Ok(_) => StatusCode::BAD_GATEWAY.into_response(),
            Err(_) => "sunny".into_response(),
        }
    }

    fn route(&self) -> axum::routing::MethodRouter {
        let work = self.clone();
        get(move || work.clone().answer())
    }

    async fn has_begun(&self) {
        let begun = tokio::time::timeout(PATIENCE, self.begun.acquire());
        begun.await.unwrap().unwrap().forget();
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

fn used() -> (u16, String) {
    (409, "voucher_already_used".to_owned())
}

fn present(
    earnest: &Earnest,
    claims: &Claims,
) -> impl Future<Output = Reply> + Send + 'static + use<> {
    let (url, voucher) = (claims.resource.clone(), earnest.sign(claims));
    async move { fetch(&url, Some(&voucher)).await }
}

/// What a buyer tries at a door behind which `work` waits: another voucher while the first is being
/// served, afterwards, and after it ran out.
async fn tries(earnest: &Earnest, url: &str, work: &Work) {
    let first = earnest.claims(url, 20_000);
    let serving = tokio::spawn(present(earnest, &first));
    work.has_begun().await;
    let second = earnest.reissued(&first);
    let reply = present(earnest, &second).await;
    assert_eq!(reply.is(), used(), "while the first is being served");
    assert_eq!(reply.header("www-authenticate"), "", "a 409 must not ask to pay again");
    assert_eq!(reply.json()["purchase"], first.sub.to_string());
    work.go.add_permits(1);
    assert_eq!(serving.await.unwrap().status, 200);
    earnest.until("billed", |books| books.outstanding() == 20_000).await;
    assert_eq!(present(earnest, &second).await.is(), used(), "after it was billed");
    let now = Timestamp::now().as_second();
    let expired = Claims { iat: now - 60, exp: now - 1, ..earnest.reissued(&first) };
    assert_eq!(present(earnest, &expired).await.is(), used(), "402 says that paying is safe");
    assert_eq!(work.runs(), 1);
}

#[tokio::test]
async fn one_purchase_is_served_once_whatever_vouchers_it_has() {
    let earnest = Earnest::start().await;
    let work = Work::new(0);
    let route = work.route().layer(price("$0.02"));
    let app = |seller: &Seller| Router::new().route("/weather", route).layer(seller.layer());
    let shop = Shop::open(&earnest, app).await;
    tries(&earnest, &shop.url("/weather"), &work).await;
    assert!(shop.seller.shutdown(PATIENCE).await);
    earnest.books(|books| assert_eq!(books.fates(), [Fate::Redeemed]));
}

#[tokio::test]
async fn the_proxy_serves_a_purchase_once_whatever_vouchers_it_has() {
    let earnest = Earnest::start().await;
    let work = Work::new(0);
    let (upstream, upstream_origin) = bind().await;
    let app = Router::new().route("/weather", work.route());
    tokio::spawn(async move { axum::serve(upstream, app).await });
    let (listener, origin) = bind().await;
    let seller = config(&earnest, &origin, NonceStore::in_memory().unwrap());
    let proxy = SellConfig::new(seller, &upstream_origin).price("GET /weather=$0.02").unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { stopped.await.unwrap_or_default() };
    let serving = tokio::spawn(async move { serve(proxy, listener, stopped).await.unwrap() });
    tries(&earnest, &format!("{origin}/weather"), &work).await;
    stop.send(()).unwrap();
    assert!(serving.await.unwrap());
    earnest.books(|books| assert_eq!(books.fates(), [Fate::Redeemed]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_vouchers_of_one_purchase_at_once_are_served_once() {
    let earnest = Earnest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let (listener, origin) = bind().await;
    let nonces = NonceStore::open(folder.path().join("nonces.db")).unwrap();
    let seller = Seller::new(config(&earnest, &origin, nonces)).unwrap();
    let work = Work::new(0);
    work.go.add_permits(100);
    let route = work.route().layer(price("$0.02"));
    let app = |seller: &Seller| Router::new().route("/weather", route).layer(seller.layer());
    let shop = Shop::serve(listener, seller, app);
    for _ in 0..5 {
        let first = earnest.claims(&shop.url("/weather"), 20_000);
        let vouchers = (0..10).map(|_| earnest.reissued(&first));
        let tries = vouchers.map(|claims| tokio::spawn(present(&earnest, &claims)));
        let mut seen = Vec::new();
        for one in tries.collect::<Vec<_>>() {
            seen.push(one.await.unwrap().is());
        }
        seen.sort();
        let mut expect = vec![used(); 10];
        expect[0] = (200, String::new());
        assert_eq!(seen, expect);
    }
    assert_eq!(work.runs(), 5);
    earnest.until("five lines", |books| books.outstanding() == 100_000).await;
    assert!(shop.seller.shutdown(PATIENCE).await);
}

#[tokio::test]
async fn a_failed_delivery_leaves_the_purchase_to_its_next_voucher() {
    let earnest = Earnest::start().await;
    let work = Work::new(1);
    work.go.add_permits(100);
    let route = work.route().layer(price("$0.02"));
    let app = |seller: &Seller| Router::new().route("/weather", route).layer(seller.layer());
    let shop = Shop::open(&earnest, app).await;
    let first = earnest.claims(&shop.url("/weather"), 20_000);
    assert_eq!(present(&earnest, &first).await.status, 502);
    earnest.until("released", |books| books.released == [first.sub]).await;
    assert_eq!(present(&earnest, &first).await.is(), used(), "a voucher that failed stays used");
    assert_eq!(present(&earnest, &earnest.reissued(&first)).await.status, 200);
    assert_eq!(present(&earnest, &earnest.reissued(&first)).await.is(), used());
    assert_eq!(work.runs(), 2);
    assert!(shop.seller.shutdown(PATIENCE).await);
    earnest.books(|books| assert_eq!(books.fates(), [Fate::Failed, Fate::Redeemed]));
}

#[tokio::test]
async fn a_restart_of_the_seller_serves_no_purchase_again() {
    let earnest = Earnest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nonces.db");
    let (listener, origin) = bind().await;
    let address = listener.local_addr().unwrap();
    let open = |listener: TcpListener, work: &Work| {
        let nonces = NonceStore::open(&path).unwrap();
        let seller = Seller::new(config(&earnest, &origin, nonces)).unwrap();
        let route = work.route().layer(price("$0.02"));
        Shop::serve(listener, seller, |seller| {
            Router::new().route("/weather", route).layer(seller.layer())
        })
    };
    let work = Work::new(0);
    // Nothing is reported before the restart: Earnest would issue another voucher.
    earnest.books(|books| books.report_faults.extend([StatusCode::BAD_GATEWAY; 10_000]));
    let shop = open(listener, &work);
    let served = earnest.claims(&shop.url("/weather"), 20_000);
    work.go.add_permits(1);
    assert_eq!(present(&earnest, &served).await.status, 200);
    assert!(!shop.seller.shutdown(std::time::Duration::from_millis(50)).await);
    shop.stop().await;

    let shop = open(TcpListener::bind(address).await.unwrap(), &work);
    assert_eq!(present(&earnest, &earnest.reissued(&served)).await.is(), used());
    assert_eq!(work.runs(), 1);
    earnest.books(|books| books.report_faults.clear());
    earnest.until("billed", |books| books.outstanding() == 20_000).await;
    assert!(shop.seller.shutdown(PATIENCE).await);
}
