//! `earnest up`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::{Style, Where, asked_to_stop};
use crate::config::Config;
use crate::serve::{Running, Start};

/// Runs Earnest until it is asked to stop.
#[derive(Debug, Args)]
pub struct Up {
    /// Where and with what.
    #[command(flatten)]
    pub place: Where,
}

/// Runs the command.
pub async fn run(command: Up, style: &Style) -> ExitCode {
    let config = command.place.overrides().and_then(Config::load);
    let config = match config {
        Ok(config) => config,
        Err(why) => {
            eprintln!("earnest: {why}");
            return ExitCode::from(2);
        }
    };
    let data = config.data.clone();
    let running = match Running::start(config, Start::default()).await {
        Ok(running) => running,
        Err(why) => {
            eprintln!("earnest: {why}");
            return ExitCode::from(1);
        }
    };
    if style.json {
        let simulator = running.sim.as_ref().map(paypal_sim::Sim::base_url);
        println!(
            "{}",
            json!({ "url": running.url(), "mode": running.app.store.mode(), "simulator": simulator })
        );
    } else {
        println!("{}", running.url());
    }
    if !style.quiet {
        eprintln!("earnest is up in {} mode at {}", running.app.store.mode(), running.url());
        if let Some(sim) = &running.sim {
            eprintln!("  simulated PayPal   {}", sim.base_url());
        }
        if let (Some(_), Some(dir)) = (&running.dev, &data) {
            eprintln!("  development keys   {}", dir.join("dev-keys.json").display());
        }
        eprintln!("next: earnest tab status");
    }
    asked_to_stop().await;
    if !style.quiet {
        eprintln!("stopping");
    }
    running.stop().await;
    ExitCode::SUCCESS
}
