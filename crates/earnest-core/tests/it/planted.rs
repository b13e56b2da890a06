//! Every planted bug of the rules is caught by the seeded run, which passes without it.
//!
//! `cargo nextest run -p earnest-core --features planted planted`

use earnest_core::planted::Bug;
use earnest_sim::{Plan, run};

use crate::sim;

/// The first seed whose life ends badly.
fn caught(planted: Option<Bug>, mut seeds: std::ops::RangeInclusive<u64>) -> Option<(u64, String)> {
    seeds.find_map(|seed| {
        let fallen = run(&Plan { planted, ..sim::quiet(seed) }).err()?;
        Some((seed, fallen.why))
    })
}

#[test]
fn every_planted_bug_of_the_rules_is_caught() {
    assert_eq!(caught(None, 1..=6), None);
    for bug in Bug::RULES {
        let (seed, why) =
            caught(Some(*bug), 1..=60).unwrap_or_else(|| panic!("{} lives", bug.as_str()));
        let first: String = why.chars().take(300).collect();
        println!("{} by seed {seed}: {first}", bug.as_str());
    }
}
