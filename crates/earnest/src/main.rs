//! The settlement layer for AI agents.

use std::process::ExitCode;

use clap::Parser as _;
use earnest::cli::{Cli, run};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("EARNEST_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    // stdout is data; what the program says about itself goes to stderr.
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    // Whoever embeds this may have installed one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(why) => {
            eprintln!("earnest: {why}");
            return ExitCode::from(1);
        }
    };
    runtime.block_on(run(cli))
}
