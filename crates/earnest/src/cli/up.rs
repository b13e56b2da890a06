//! `earnest up`.

use std::process::ExitCode;

use clap::Args;
use earnest_core::problem::LocalCode;
use serde_json::json;

use super::failure::{Ended, Failure};
use super::{Style, Where, asked_to_stop};
use crate::config::Config;
use crate::serve::{Running, Start, StartError};
use crate::watch::LogFormat;

/// What to do about an address that is taken.
pub const ELSEWHERE: &str = "--listen with another address, or stop what listens on that one";

/// Runs Earnest until it is asked to stop.
#[derive(Debug, Args)]
pub struct Up {
    /// Where and with what.
    #[command(flatten)]
    pub place: Where,
    /// How the log is written [default: text].
    #[arg(long, env = "EARNEST_LOG_FORMAT", value_enum, value_name = "FORMAT")]
    pub log: Option<LogFormat>,
}

/// Runs the command. The address is written to stdout once it serves.
pub async fn run(command: Up, style: &Style) -> Ended {
    let config = Config::load(command.place.overrides()?)?;
    let (data, database) = (config.data.clone(), config.database.clone());
    let running = Running::start(config, Start::default()).await;
    let running = running.map_err(|why| {
        let failure = Failure::local(LocalCode::StartFailed, 1, why.to_string());
        match why {
            StartError::Listen { .. } => failure.next(ELSEWHERE),
            _ => failure,
        }
    })?;
    let simulator = running.sim.as_ref().map(paypal_sim::Sim::base_url);
    let row = json!({
        "url": running.url(),
        "mode": running.app.store.mode(),
        "simulator": simulator,
    });
    let said = style.object(&row, || running.url());
    style.talk(&format!("earnest is up in {} mode at {}", running.app.store.mode(), running.url()));
    if let Some(simulator) = simulator {
        style.talk(&format!("  simulated PayPal   {simulator}"));
    }
    if let (Some(_), Some(dir)) = (&running.dev, &data) {
        style.talk(&format!("  development keys   {}", dir.join("dev-keys.json").display()));
    }
    if let Some(database) = database {
        style.talk(&format!("  books              {database}"));
        if simulator.is_some() {
            style.talk(
                "                     more nodes on them need one PayPal: set `simulator_url`",
            );
        }
    }
    if let Some(figures) = running.figures_address {
        style.talk(&format!("  figures            http://{figures}/metrics"));
    }
    style.next("earnest sell --upstream http://127.0.0.1:8000 --price 'GET /*=$0.02'");
    if said.is_ok() {
        asked_to_stop().await;
    }
    style.talk("stopping");
    running.stop().await;
    said.map(|()| ExitCode::SUCCESS)
}
