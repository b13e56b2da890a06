//! Runs a simulator until it is interrupted. Prints one line of JSON:
//! `{"base_url": "http://127.0.0.1:PORT"}`.
//!
//! The first argument is the address to listen on; a free loopback port unless given.

use paypal_sim::{Sim, SimConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = SimConfig::default();
    if let Some(address) = std::env::args().nth(1) {
        config.listen = address.parse()?;
    }
    let sim = Sim::start(config).await?;
    println!("{}", serde_json::json!({"base_url": sim.base_url()}));
    tokio::signal::ctrl_c().await?;
    sim.shutdown().await;
    Ok(())
}
