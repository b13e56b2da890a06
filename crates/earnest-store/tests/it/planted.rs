//! Every planted bug of the ledger and the engine is caught by a suite that passes without it.
//!
//! `cargo nextest run -p earnest-store --features planted planted`

use std::panic::{AssertUnwindSafe, catch_unwind};

use earnest_store::planted::Bug;
use earnest_store::{Options, Store};

use crate::{conformance, crash, keys, stops, world};

/// What a suite says; one that panics says no as well.
fn verdict(suite: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(suite)).unwrap_or_else(|_| Err("panicked".to_owned()))
}

fn conformance(bug: Option<Bug>) -> Result<(), String> {
    (1..=4).try_for_each(|seed| conformance::suite(seed, |options| options.planted = bug))
}

fn keys_on_both(bug: Option<Bug>) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    for options in [Options::memory("simulated", world::clock()), world::options(folder.path())] {
        keys::suite(&Store::open(Options { planted: bug, ..options }).unwrap())?;
    }
    Ok(())
}

fn disk_full(bug: Option<Bug>) -> Result<(), String> {
    stops::disk_full(|options| options.planted = bug)
}

fn failed_commit(bug: Option<Bug>) -> Result<(), String> {
    stops::failed_commit(|options| options.planted = bug)
}

fn killed(bug: Option<Bug>) -> Result<(), String> {
    crash::suite(12, 42, bug.map(Bug::as_str))
}

type Suite = (&'static str, fn(Option<Bug>) -> Result<(), String>);

#[test]
fn every_planted_bug_is_caught() {
    const CONFORMANCE: Suite = ("conformance", conformance);
    const KEYS: Suite = ("keys", keys_on_both);
    const DISK_FULL: Suite = ("disk full", disk_full);
    const FAILED_COMMIT: Suite = ("failed commit", failed_commit);
    const KILLED: Suite = ("kill -9", killed);
    let caught_by: [(Bug, &[Suite]); 6] = [
        (Bug::ResolveTwice, &[CONFORMANCE]),
        (Bug::PostAboveHold, &[CONFORMANCE]),
        (Bug::SkipKeyInsert, &[KEYS, CONFORMANCE]),
        (Bug::AnswerBeforeCommit, &[FAILED_COMMIT, KILLED]),
        (Bug::IgnoreRollback, &[DISK_FULL]),
        (Bug::RefusalAsResult, &[KEYS, CONFORMANCE]),
    ];
    assert_eq!(caught_by.map(|(bug, _)| bug), Bug::ALL);
    for (name, suite) in [CONFORMANCE, KEYS, DISK_FULL, FAILED_COMMIT, KILLED] {
        assert_eq!(verdict(|| suite(None)), Ok(()), "{name} without a bug");
    }
    for (bug, suites) in caught_by {
        for (name, suite) in suites {
            let said = verdict(|| suite(Some(bug)));
            let why = said.expect_err(&format!("{name} did not catch {}", bug.as_str()));
            println!("{} caught by {name}: {why}", bug.as_str());
        }
    }
}
