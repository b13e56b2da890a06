//! A paid API in one file: fixed prices, a price that depends on the work, and a free route.
//!
//! Beside an `earnest up` that was just started in the same folder:
//!
//! ```text
//! cargo run -p earnest-sdk --example paid_api
//! earnest seller origin prove http://127.0.0.1:8080
//! earnest pay http://127.0.0.1:8080/weather/delft --max-price '$0.25' --request-id delft-1
//! ```
//!
//! Elsewhere `EARNEST_URL`, `EARNEST_SELLER_ID` and `EARNEST_SELLER_KEY_FILE` say who sells, an
//! argument where to listen, and `PUBLIC_ORIGIN` how buyers spell the address (on loopback, as it
//! listens).

use std::env;
use std::error::Error;
use std::time::Duration;

use axum::extract::Path;
use axum::routing::{get, post};
use axum::{Json, Router};
use earnest_sdk::earnest_core::money::Micros;
use earnest_sdk::{ChargeError, Paid, Seller, SellerConfig, price, price_up_to};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Where `earnest up` keeps the keys it makes in simulated mode.
const DEV_KEYS: &str = "earnest-data/dev-keys.json";

/// Always the same price, whatever the city.
async fn weather(Path(city): Path<String>) -> Json<Value> {
    // A forecast made of the city's letters, so that the example needs nothing from outside.
    let degrees = city.bytes().fold(0_u32, |sum, byte| sum.wrapping_add(u32::from(byte))) % 30;
    Json(json!({"city": city, "sky": "clear", "degrees": degrees}))
}

/// A report worth more than a look at the sky.
async fn report(Path(city): Path<String>) -> Json<Value> {
    Json(json!({"city": city, "outlook": ["clear", "rain", "clear"], "pages": 12}))
}

/// $0.001 a word, at most $0.50: the buyer's hold covers the ceiling, the tab gets what was named.
async fn count(paid: Paid, text: String) -> Result<Json<Value>, ChargeError> {
    let words = text.split_whitespace().count();
    if words > 0 {
        let micros = i64::try_from(words).unwrap_or(i64::MAX).saturating_mul(1_000);
        paid.charge_micros(Micros::new(micros)?)?;
    }
    Ok(Json(json!({"words": words})))
}

fn routes(seller: &Seller) -> Router {
    Router::new()
        .route("/weather/{city}", get(weather).layer(price("$0.10")))
        .route("/report/{city}", get(report).layer(price("$0.25")))
        .route("/archive", get(|| async { "everything" }).layer(price("$9.00")))
        .route("/count", post(count).layer(price_up_to("$0.50")))
        .route("/health", get(|| async { "ok" }))
        .layer(seller.layer())
        .merge(seller.origin_proof())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(&address).await?;
    let origin = match env::var("PUBLIC_ORIGIN") {
        Ok(origin) => origin,
        Err(_) => format!("http://{}", listener.local_addr()?),
    };
    let earnest = env::var("EARNEST_URL").unwrap_or_else(|_| "http://127.0.0.1:4020".to_owned());
    let (id, key) = seller()?;
    let nonces = env::var("NONCE_FILE").unwrap_or_else(|_| "./paid-api-nonces.db".to_owned());
    let seller =
        Seller::new(SellerConfig::with_nonce_file(&earnest, &id, key.trim(), &origin, nonces)?)?;
    eprintln!("selling at {origin}, once it is proved: earnest seller origin prove {origin}");
    axum::serve(listener, routes(&seller))
        .with_graceful_shutdown(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
        .await?;
    if !seller.shutdown(Duration::from_secs(10)).await {
        eprintln!("some sales are not reported yet; they will be after the next start");
    }
    Ok(())
}

/// The seller's id and key: those of the environment, or those that `earnest up` makes for trying
/// things out.
fn seller() -> Result<(String, String), Box<dyn Error>> {
    if let (Ok(id), Ok(file)) = (env::var("EARNEST_SELLER_ID"), env::var("EARNEST_SELLER_KEY_FILE"))
    {
        return Ok((id, std::fs::read_to_string(file)?));
    }
    let text = std::fs::read_to_string(DEV_KEYS).map_err(|why| {
        format!("EARNEST_SELLER_ID and EARNEST_SELLER_KEY_FILE are not set, and {DEV_KEYS}: {why}")
    })?;
    let keys: Value = serde_json::from_str(&text)?;
    let of = |name: &str| keys.pointer(&format!("/seller/{name}"))?.as_str().map(str::to_owned);
    of("id").zip(of("key")).ok_or_else(|| format!("{DEV_KEYS} has no seller").into())
}
