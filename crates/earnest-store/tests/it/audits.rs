//! The audit finds what was tampered with: one change of the file each, each with its finding.

use std::path::{Path, PathBuf};

use earnest_core::unit::{ListEntry, Record, rank};
use earnest_store::audit::{Audit, Check};
use earnest_store::{LogEntry, ReadError, Snapshot};
use serde::{Deserialize, Serialize};

use crate::world::{self, Bought, Buy, Deposit, Finish, Guard, chain};

fn books(folder: &Path) -> PathBuf {
    let store = world::sqlite(folder);
    store.submit_blocking(Deposit { id: chain(900), owner: 1, amount: 1_000 }).unwrap();
    for id in 1..=4 {
        store.submit_blocking(Buy::new(id, 1, 10)).unwrap();
    }
    store.submit_blocking(Finish { buy: Buy::new(1, 1, 10), amount: 7 }).unwrap();
    store.submit_blocking(Finish { buy: Buy::new(2, 1, 10), amount: 0 }).unwrap();
    store.close();
    folder.join("books.db")
}

fn first(path: &Path) -> Option<String> {
    let found = Audit::new().kind::<Guard>().kind::<Bought>().run_file(path).unwrap();
    found.first().map(|finding| finding.invariant.to_owned())
}

/// Changes a fresh database by SQL and expects the finding.
fn check(sql: &str, expect: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = books(folder.path());
    assert_eq!(first(&path), None);
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch(sql).unwrap();
    assert_eq!(first(&path).as_deref(), Some(expect), "{sql}");
}

#[test]
fn every_kind_of_tampering_is_found() {
    for (sql, expect) in [
        ("UPDATE log SET at = at + 1 WHERE seq = 3", "hash_chain_is_intact"),
        ("UPDATE log SET hash = zeroblob(32) WHERE seq = 7", "hash_chain_is_intact"),
        ("UPDATE log SET at = 0 WHERE seq = 2", "log_time_rises"),
        ("DELETE FROM log WHERE seq = 4", "log_has_no_gap"),
        ("DELETE FROM log WHERE seq = 7", "totals_are_the_fold_of_the_log"),
        ("UPDATE log SET body = substr(body, 1, 40) WHERE seq = 5", "stored_data_can_be_read"),
        // The last byte of the first purchase's event.
        (
            "UPDATE log SET body = CAST(substr(body, 1, length(body) - 1) || x'5d' AS BLOB) WHERE seq = 2",
            "hash_chain_is_intact",
        ),
        (
            "UPDATE accounts SET debits_posted = debits_posted + 1 WHERE name = 'USD memo'",
            "totals_are_the_fold_of_the_log",
        ),
        ("UPDATE accounts SET last_seq = 1", "totals_are_the_fold_of_the_log"),
        ("DELETE FROM holds WHERE state = 2", "hold_resolves_once"),
        ("UPDATE holds SET state = 0, resolved = NULL WHERE state = 2", "hold_resolves_once"),
        ("DELETE FROM keys WHERE seq = 3", "every_key_is_kept"),
        ("UPDATE keys SET seq = 2 WHERE seq = 3", "every_key_is_kept"),
        (
            "UPDATE rows SET body = CAST(replace(CAST(body AS TEXT), 'voided', 'posted') AS BLOB)",
            "rows_are_what_the_log_says",
        ),
        ("DELETE FROM rows WHERE id = 'pur-00000003'", "rows_are_what_the_log_says"),
        (
            "DELETE FROM lists WHERE id = 'pur-00000003' AND scope = 'held'",
            "lists_are_what_the_rows_say",
        ),
        ("UPDATE lists SET scope = 'held' WHERE scope = 'voided'", "lists_are_what_the_rows_say"),
    ] {
        check(sql, expect);
    }
}

#[test]
fn tampering_that_keeps_the_sums_is_found_in_the_log() {
    // Two units of money change hands in two entries' bodies; every total stays a plausible one.
    let folder = tempfile::tempdir().unwrap();
    let path = books(folder.path());
    let raw = rusqlite::Connection::open(&path).unwrap();
    let body: Vec<u8> =
        raw.query_row("SELECT body FROM log WHERE seq = 6", [], |row| row.get(0)).unwrap();
    let mut changed = 0;
    for place in 0..body.len() {
        let mut other = body.clone();
        other[place] ^= 1;
        raw.execute("UPDATE log SET body = ?1 WHERE seq = 6", [&other]).unwrap();
        let found = first(&path);
        assert!(found.is_some(), "byte {place} of {} changed unseen", body.len());
        changed += 1;
    }
    assert!(changed > 50);
    raw.execute("UPDATE log SET body = ?1 WHERE seq = 6", [&body]).unwrap();
    assert_eq!(first(&path), None);
}

#[test]
fn a_running_database_is_audited_without_disturbing_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = world::sqlite(folder.path());
    store.submit_blocking(Deposit { id: chain(900), owner: 1, amount: 1_000 }).unwrap();
    for id in 1..30 {
        store.submit_blocking(Buy::new(id, 1, 10)).unwrap();
        assert_eq!(first(&folder.path().join("books.db")), None);
    }
    world::audit(&store).unwrap();
}

#[test]
fn what_is_no_database_of_ours_cannot_be_audited() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Audit::new().run_file(folder.path().join("none.db")).is_err());
    let path = folder.path().join("theirs.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE x (y)").unwrap();
    assert!(Audit::new().run_file(&path).is_err());
}

/// No more than three purchases, says this business.
#[derive(Default)]
struct AtMostThree(usize);

impl Check for AtMostThree {
    fn invariant(&self) -> &'static str {
        "at_most_three_purchases"
    }
    fn entry(&mut self, entry: &LogEntry) {
        self.0 += usize::from(entry.entry.name == "buy");
    }
    fn finish(&mut self, books: &Snapshot<'_>) -> Result<Vec<String>, ReadError> {
        let rows = books.all::<Bought>(None, 100)?.items.len();
        assert_eq!(rows, self.0);
        Ok(if rows > 3 { vec![format!("{rows} purchases")] } else { Vec::new() })
    }
}

#[test]
fn a_business_adds_its_own_invariants() {
    let folder = tempfile::tempdir().unwrap();
    let path = books(folder.path());
    let found = Audit::new().check(AtMostThree::default()).run_file(&path).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].to_string(), "at_most_three_purchases: 4 purchases");
}

/// A kind that only claims to be known.
#[derive(Clone, Serialize, Deserialize)]
struct Stranger;

impl Record for Stranger {
    const KIND: &'static str = "stranger";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        String::new()
    }
    fn lists(&self) -> Vec<ListEntry> {
        Vec::new()
    }
}

#[test]
fn a_row_of_an_unknown_kind_is_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    let path = books(folder.path());
    let found = Audit::new().kind::<Stranger>().run_file(&path).unwrap();
    assert!(found[0].detail.ends_with("has no known kind"), "{}", found[0]);
}
