//! Random choices that a seed repeats.

pub use earnest_sim::Random as Dice;

/// The seed of this run: `EARNEST_SEED`, or what the clock says. Printed, so that a failure can be
/// repeated.
pub fn seed_of_run(what: &str) -> u64 {
    let told = std::env::var("EARNEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = told.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::from(now.unwrap().subsec_nanos())
    });
    println!("{what}: EARNEST_SEED={seed}");
    seed
}
