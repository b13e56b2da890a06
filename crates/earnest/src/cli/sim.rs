//! `earnest sim paypal`.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use paypal_sim::{Sim, SimConfig};
use serde_json::json;

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

/// Runs the command.
pub async fn run(command: SimCommand, style: &Style) -> ExitCode {
    let SimCommand::Paypal(Paypal { listen }) = command;
    let config = SimConfig { listen, relaxed_webhook_urls: true, ..SimConfig::default() };
    let sim = match Sim::start(config).await {
        Ok(sim) => sim,
        Err(why) => {
            eprintln!("earnest: {why}");
            return ExitCode::from(1);
        }
    };
    if style.json {
        println!("{}", json!({ "url": sim.base_url() }));
    } else {
        println!("{}", sim.base_url());
    }
    if !style.quiet {
        eprintln!("simulated PayPal at {}; client id sim, secret sim", sim.base_url());
    }
    asked_to_stop().await;
    sim.shutdown().await;
    ExitCode::SUCCESS
}
