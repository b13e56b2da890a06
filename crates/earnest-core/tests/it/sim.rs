//! The rules, lived: the seeded simulation with books in memory, where nothing goes wrong but
//! PayPal. Disks and nodes are `earnest-sim`'s own tests.
//!
//! `earnest sim run --seed 7 --arrangement quiet` replays one seed.

use earnest_sim::{Arrangement, Plan, run};

/// The run of a seed in memory.
pub fn quiet(seed: u64) -> Plan {
    Plan { arrangement: Arrangement::Quiet, disputes: false, ..Plan::new(seed) }
}

fn lives(plan: &Plan) {
    if let Err(fallen) = run(plan) {
        let last = fallen.trace.len().saturating_sub(40);
        panic!("seed {}: {}\n{}", plan.seed, fallen.why, fallen.trace[last..].join("\n"));
    }
}

#[test]
fn every_invariant_holds_after_every_step_of_many_lives() {
    for seed in 1..=24 {
        lives(&quiet(seed));
    }
}

/// Owners are frozen and let off, and what is disputed counts against them and does not, in whatever order
/// PayPal says so.
#[test]
fn every_invariant_holds_while_payers_dispute() {
    for seed in 1..=12 {
        lives(&Plan { disputes: true, ..quiet(seed) });
    }
}
