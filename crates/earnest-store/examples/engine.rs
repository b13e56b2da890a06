//! Prints the engine's own figures: `cargo run --release -p earnest-store --features bench
//! --example engine [folder | postgres://…]`.

use std::path::PathBuf;

use earnest_store::bench::{
    BenchError, Comparison, Round, engine_against_bare, hot_against_spread, server,
};

fn main() -> Result<(), BenchError> {
    let place = std::env::args().nth(1);
    if let Some(url) = place.as_ref().filter(|place| place.starts_with("postgres")) {
        return on_a_server(url);
    }
    let folder = place.map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = folder.join(format!("earnest-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    show("engine / bare SQLite", &engine_against_bare(&folder, 5, 50_000, 1_000)?);
    show("one hot account / 10,000", &hot_against_spread(&folder, 5, 50_000, 1_000)?);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn on_a_server(url: &str) -> Result<(), BenchError> {
    let plan = server::Plan { rounds: 5, units: 50_000, calls: 2_000, in_flight: 1_000 };
    show("batches / calls, 10,000 accounts", &server::batched_against_calls(url, plan, false)?);
    show("batches / calls, one hot account", &server::batched_against_calls(url, plan, true)?);
    show("one hot account / 10,000", &server::hot_against_spread(url, plan)?);
    show("two nodes / one", &server::two_nodes_against_one(url, plan)?);
    Ok(())
}

fn show(name: &str, comparison: &Comparison) {
    println!("{name}: {:.2}", comparison.ratio());
    for (ours, other) in &comparison.rounds {
        println!("  {}   {}", line(ours), line(other));
    }
}

fn line(round: &Round) -> String {
    let cpu = round.cpu_micros().unwrap_or(f64::NAN);
    format!("{:7.0}/s {cpu:5.1} us cpu {:4.0} B", round.rate(), round.bytes_per_unit())
}
