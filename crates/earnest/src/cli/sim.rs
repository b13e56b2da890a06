//! `earnest sim paypal`.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use earnest_core::problem::LocalCode;
use paypal_sim::{Sim, SimConfig};
use serde_json::json;

use super::failure::{Ended, Failure};
use super::{Style, asked_to_stop};

/// Simulators.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// A simulated PayPal: client id `sim`, secret `sim`.
    Paypal(Paypal),
}

/// Runs a simulated PayPal until it is asked to stop.
#[derive(Debug, Args)]
pub struct Paypal {
    /// Where to listen; port 0 picks a free one.
    #[arg(long, default_value = "127.0.0.1:4021", value_name = "ADDRESS")]
    pub listen: SocketAddr,
}

/// Runs the command. The address is written to stdout once it serves.
pub async fn run(command: SimCommand, style: &Style) -> Ended {
    let SimCommand::Paypal(Paypal { listen }) = command;
    let config = SimConfig { listen, relaxed_webhook_urls: true, ..SimConfig::default() };
    let sim = Sim::start(config).await;
    let sim = sim.map_err(|why| {
        let why = format!("cannot listen on {listen}: {why}");
        Failure::local(LocalCode::StartFailed, 1, why).next(super::up::ELSEWHERE)
    })?;
    let url = sim.base_url().to_owned();
    let said = style.object(&json!({ "url": url }), || url.clone());
    style.talk(&format!("simulated PayPal at {url}; client id sim, secret sim"));
    if said.is_ok() {
        asked_to_stop().await;
    }
    sim.shutdown().await;
    said.map(|()| ExitCode::SUCCESS)
}
