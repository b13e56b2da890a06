//! A paid API in one file: fixed prices, a price that depends on the work, and a free route.
//!
//! ```text
//! EARNEST_URL=http://127.0.0.1:4020 \
//! EARNEST_SELLER_ID=sel_… EARNEST_SELLER_KEY_FILE=./seller.key \
//! cargo run -p earnest-sdk --example paid_api -- 127.0.0.1:8080
//! ```
//!
//! `PUBLIC_ORIGIN` is how buyers spell the address; on loopback it defaults to the listener's own.
//! `earnest up` writes an id and a key for trying this out to `earnest-data/dev-keys.json`. Then:
//!
//! ```text
//! earnest seller origin prove http://127.0.0.1:8080
//! earnest pay http://127.0.0.1:8080/weather/delft --max-price '$0.25' --request-id delft-1
//! ```

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
    let key = std::fs::read_to_string(setting("EARNEST_SELLER_KEY_FILE")?)?;
    let nonces = env::var("NONCE_FILE").unwrap_or_else(|_| "./paid-api-nonces.db".to_owned());
    let id = setting("EARNEST_SELLER_ID")?;
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

fn setting(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("{name} is not set"))
}
