//! Every planted bug of the rules is caught by the seeded run, which passes without it.
//!
//! `cargo nextest run -p earnest-core --features planted planted`

use std::panic::{AssertUnwindSafe, catch_unwind};

use earnest_core::planted::Bug;

use crate::sim;

/// The first seed whose life ends badly.
fn caught(bug: Option<Bug>, seeds: std::ops::RangeInclusive<u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let life = || sim::live(seed, 300, |options| options.planted = bug);
        let panic = catch_unwind(AssertUnwindSafe(life)).err()?;
        let text = panic.downcast_ref::<String>().cloned();
        Some((seed, text.unwrap_or_else(|| "panicked".to_owned())))
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
