//! The settlement layer for AI agents.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use earnest::cli::{parse, run};
use tracing_subscriber::EnvFilter;

/// Requests are freed by another thread than made them (the writer's), which the system's allocator
/// pays for with locks: about a seventh of all processor time under load.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let filter = EnvFilter::try_from_env("EARNEST_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colors = !no_color && std::io::stderr().is_terminal();
    // stdout is data; what the program says about itself goes to stderr.
    let format = earnest::cli::log_format(&cli);
    let log = earnest::watch::subscriber(format, filter, colors, std::io::stderr);
    // It is the first, so that it is installed.
    let _ = tracing::subscriber::set_global_default(log);
    // Whoever embeds this may have installed one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(why) => {
            eprintln!("earnest: {why}");
            return ExitCode::from(1);
        }
    };
    let code = runtime.block_on(run(cli));
    // Whoever was asked and did not answer may still sit before the question.
    runtime.shutdown_background();
    code
}
