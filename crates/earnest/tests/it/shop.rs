//! A real seller: an axum server with the SDK's layer in front of a real Earnest, on the machine's
//! clock, its origin proved over HTTP.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Redirect;
use axum::routing::{MethodRouter, get, post};
use earnest_sdk::{Buyer, NonceStore, Seller, SellerConfig, price, quote_in, wrap};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::world::{Answer, PATIENCE, World, answer};

/// A world with a shop in it.
pub struct Shop {
    pub world: World,
    pub seller: Seller,
    /// As it is registered: where buyers go.
    pub origin: String,
    /// How often a priced handler has run.
    pub served: Arc<AtomicU32>,
    /// Lets one answer of `/slow` through for each permit.
    pub gate: Arc<Semaphore>,
}

/// What `/big` answers with.
pub const BIG_BYTES: usize = 200_000;

/// What the shop's redirect points to.
pub const ELSEWHERE: &str = "https://other.example/x";

fn routes(
    seller: &Seller,
    served: &Arc<AtomicU32>,
    gate: &Arc<Semaphore>,
    elsewhere: String,
) -> Router {
    // What is priced counts how often it was served.
    let counted = Arc::clone(served);
    let count = axum::middleware::from_fn(move |request: Request, next: Next| {
        counted.fetch_add(1, Ordering::SeqCst);
        next.run(request)
    });
    let priced = |route: MethodRouter, cost: &str| {
        route.layer::<_, Infallible>(count.clone()).layer::<_, Infallible>(price(cost))
    };
    let fails = || async { (StatusCode::INTERNAL_SERVER_ERROR, "no luck") };
    let moved = move || async move { Redirect::to(&elsewhere) };
    let gate = Arc::clone(gate);
    let slow = move || async move {
        gate.acquire().await.unwrap().forget();
        "at last"
    };
    Router::new()
        .route("/slow", priced(get(slow), "$0.02"))
        .route("/dear", priced(get(|| async { "dear" }), "$0.30"))
        .route("/big", priced(get(|| async { "x".repeat(BIG_BYTES) }), "$0.02"))
        .route("/bytes", priced(get(|| async { vec![0xff_u8, 0x00, 0xfe] }), "$0.02"))
        .route("/weather", priced(get(|| async { r#"{"sky":"blue"}"# }), "$0.02"))
        .route("/cheap", priced(get(|| async { "cheap" }), "$0.02"))
        .route("/export", priced(get(|| async { "everything" }), "$9.00"))
        .route("/text", priced(get(|| async { "not JSON" }), "$0.02"))
        .route("/moved", priced(get(moved), "$0.02"))
        .route("/fails", priced(get(fails), "$0.02"))
        .route("/echo", priced(post(|body: String| async { body }), "$0.02"))
        .route("/free", get(|| async { "free" }))
        .layer(seller.layer())
        .merge(seller.origin_proof())
}

impl Shop {
    pub async fn open() -> Self {
        Self::with(|_| None, ELSEWHERE).await
    }

    /// A shop in a world on the machine's clock.
    pub async fn in_world(world: World) -> Self {
        Self::set_up(world, |_| None, ELSEWHERE).await
    }

    /// A shop behind something that listens at its public origin; `front` starts it, given the
    /// address of the server, and gives the origin.
    pub async fn with(
        front: impl FnOnce(std::net::SocketAddr) -> Option<String>,
        elsewhere: &str,
    ) -> Self {
        Self::set_up(World::in_real_time().await, front, elsewhere).await
    }

    async fn set_up(
        world: World,
        front: impl FnOnce(std::net::SocketAddr) -> Option<String>,
        elsewhere: &str,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let behind = listener.local_addr().unwrap();
        let origin = front(behind).unwrap_or_else(|| format!("http://{behind}"));
        let quick = Duration::from_millis(20);
        let nonces = NonceStore::in_memory().unwrap();
        let (url, id, key) = (world.earnest.url(), world.seller_id(), world.key("seller"));
        let config = SellerConfig::new(&url, &id, &key, &origin, nonces).unwrap();
        let seller = Seller::new(config.report_backoff(quick, quick * 10)).unwrap();
        let served = Arc::new(AtomicU32::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let app = routes(&seller, &served, &gate, elsewhere.to_owned());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let shop = Self { world, seller, origin, served, gate };
        let body = json!({ "origin": shop.origin });
        shop.world.post("seller", "/v1/sellers/me/origins/prove", body).await.expect(200);
        shop.world.vault().await;
        shop
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.origin)
    }

    pub async fn get(&self, path: &str, voucher: Option<&str>) -> Answer {
        let mut request = self.world.http.get(self.url(path));
        if let Some(voucher) = voucher {
            request = request.header("authorization", format!("Tab {voucher}"));
        }
        answer(request).await
    }

    /// The quote of a 402.
    pub async fn quote(&self, path: &str) -> Value {
        let asked = self.get(path, None).await;
        assert_eq!(asked.status, 402, "{}", asked.body);
        json!(quote_in(&asked.headers).unwrap().unwrap())
    }

    /// A voucher for what a path costs.
    pub async fn voucher(&self, path: &str, request_id: &str) -> String {
        let quote = self.quote(path).await;
        let body = self.world.authorize(quote, request_id).await.expect(201);
        body["voucher"].as_str().unwrap().to_owned()
    }

    pub fn served(&self) -> u32 {
        self.served.load(Ordering::SeqCst)
    }

    pub fn buyer(&self) -> Buyer {
        wrap(reqwest::Client::builder().no_proxy())
            .earnest_url(&self.world.earnest.url())
            .agent_key(&self.world.key("agent"))
            .max_price("$0.25")
            .build()
            .unwrap()
    }

    /// Ends the seller: everything is reported when this returns. What the owner then owes, and
    /// what is still held.
    pub async fn close(&self) -> (i64, i64) {
        assert!(self.seller.shutdown(PATIENCE).await, "everything is reported");
        let tabs = self.world.get("owner", "/v1/tabs").await.expect(200);
        let sum = |name: &str| {
            let tabs = tabs["data"].as_array().unwrap().iter();
            tabs.map(|tab| tab[name].as_i64().unwrap()).sum()
        };
        (sum("owed_micros"), sum("held_micros"))
    }
}
