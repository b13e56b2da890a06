//! Prints the engine's own figures: `cargo run --release -p earnest-store --features bench
//! --example engine [folder]`.

use std::path::PathBuf;

use earnest_store::bench::{
    BenchError, Comparison, Round, engine_against_bare, hot_against_spread,
};

fn main() -> Result<(), BenchError> {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = folder.join(format!("earnest-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    show("engine / bare SQLite", &engine_against_bare(&folder, 5, 50_000, 1_000)?);
    show("one hot account / 10,000", &hot_against_spread(&folder, 5, 50_000, 1_000)?);
    std::fs::remove_dir_all(&folder)?;
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
