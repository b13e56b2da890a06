//! Lives from seeds.

use earnest_sim::{Arrangement, Lived, Plan, run};

/// A life that must end well.
fn lives(plan: &Plan) -> Lived {
    run(plan).unwrap_or_else(|fallen| {
        let last = fallen.trace.len().saturating_sub(40);
        let (seed, arrangement) = (plan.seed, plan.arrangement);
        panic!(
            "{}\n{}\n`earnest sim run --seed {seed} --arrangement {arrangement}` replays it",
            fallen.trace[last..].join("\n"),
            fallen.why
        )
    })
}

/// Lives of a range of seeds, of which every second is this process's.
fn half(seeds: std::ops::RangeInclusive<u64>, odd: bool) {
    for seed in seeds.filter(|seed| (seed % 2 == 1) == odd) {
        lives(&Plan::new(seed));
    }
}

#[test]
fn what_is_acknowledged_survives_in_every_odd_seed() {
    half(1..=60, true);
}

#[test]
fn what_is_acknowledged_survives_in_every_even_seed() {
    half(1..=60, false);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let mut digests = Vec::new();
    for arrangement in Arrangement::ALL {
        for seed in [3, 4] {
            let plan = Plan { arrangement, steps: 150, ..Plan::new(seed) };
            let (once, again) = (lives(&plan), lives(&plan));
            assert_eq!(once.trace, again.trace);
            assert_eq!(once, again);
            digests.push(once.digest);
        }
    }
    let told = digests.len();
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), told, "other seeds are other runs");
}

/// What a run is for: something has to go wrong in it.
#[test]
fn power_goes_processes_end_and_disks_fail() {
    let disk = lives(&Plan { arrangement: Arrangement::Disk, ..Plan::new(1) });
    assert!(disk.power_cuts > 2 && disk.deaths > 0 && disk.troubles > 2, "{disk:?}");
    let nodes = lives(&Plan { arrangement: Arrangement::Nodes, ..Plan::new(2) });
    assert!(nodes.deaths > 0, "{nodes:?}");
}
