//! The command line. stdout is data, stderr is talk; exit codes are those of the design.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::Overrides;

pub mod bench;
pub mod demo;
pub mod sim;
pub mod up;

/// The settlement layer for AI agents.
#[derive(Debug, Parser)]
#[command(name = "earnest", version, about, propagate_version = true)]
pub struct Cli {
    /// How answers are written and people are asked.
    #[command(flatten)]
    pub style: Style,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How answers are written and people are asked; every command has these.
#[derive(Clone, Debug, Default, Args)]
pub struct Style {
    /// Write data as JSON; errors as problem JSON on stderr.
    #[arg(long, global = true)]
    pub json: bool,
    /// Say nothing but data and errors.
    #[arg(long, global = true)]
    pub quiet: bool,
    /// Never ask; fail instead.
    #[arg(long, global = true)]
    pub no_input: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs Earnest: API, jobs, and a simulated PayPal unless another is configured.
    Up(up::Up),
    /// Measures this build on this machine, as ratios against calibrations in the same run.
    Bench(bench::Bench),
    /// Shows the main job, offline, with nothing to configure.
    Demo(demo::Demo),
    /// Runs a simulated PayPal alone, for anyone's PayPal SDK.
    #[command(subcommand)]
    Sim(sim::SimCommand),
}

/// Settings that flags and the environment may give; they come before every file.
#[derive(Clone, Debug, Default, Args)]
pub struct Where {
    /// A settings file instead of ./earnest.toml.
    #[arg(long, env = "EARNEST_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to listen [default: 127.0.0.1:4020].
    #[arg(long, env = "EARNEST_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Where people and sellers reach this Earnest.
    #[arg(long, env = "EARNEST_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<String>,
    /// Where the books are [default: ./earnest-data].
    #[arg(long, env = "EARNEST_DATA", value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// The key-encryption key of secrets at rest.
    #[arg(long, env = "EARNEST_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// PayPal's REST client id.
    #[arg(long, env = "EARNEST_PAYPAL_CLIENT_ID", value_name = "ID")]
    pub paypal_client_id: Option<String>,
}

impl Where {
    /// What they say; the secret comes from its environment variable or file, never from a flag.
    pub fn overrides(self) -> Result<Overrides, crate::config::ConfigError> {
        let secret = match std::env::var_os("EARNEST_PAYPAL_SECRET_FILE") {
            Some(path) => Some(crate::config::read_secret(&PathBuf::from(path))?),
            None => std::env::var("EARNEST_PAYPAL_SECRET").ok(),
        };
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let user_dir = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
        Ok(Overrides {
            file: self.config,
            listen: self.listen,
            public_url: self.public_url,
            data: self.data,
            key_file: self.key_file,
            client_id: self.paypal_client_id,
            secret,
            user_dir: user_dir
                .or(home.map(|home| home.join(".config")))
                .map(|dir| dir.join("earnest")),
        })
    }
}

/// Runs a command and gives its exit code.
pub async fn run(cli: Cli) -> ExitCode {
    let style = cli.style;
    match cli.command {
        Command::Up(command) => up::run(command, &style).await,
        Command::Bench(command) => bench::run(command, &style).await,
        Command::Demo(command) => demo::run(command, &style).await,
        Command::Sim(command) => sim::run(command, &style).await,
    }
}

/// Completes when the process is asked to stop.
pub async fn asked_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = term.recv() => {}
    }
}
