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
fn hash_chain_is_intact() {
    let breach = "hash_chain_is_intact";
    check("UPDATE log SET at = at + 1 WHERE seq = 3", breach);
    check("UPDATE log SET hash = zeroblob(32) WHERE seq = 7", breach);
    // The last byte of the first purchase's event.
    let event = "CAST(substr(body, 1, length(body) - 1) || x'5d' AS BLOB)";
    check(&format!("UPDATE log SET body = {event} WHERE seq = 2"), breach);
}

#[test]
fn log_time_rises() {
    check("UPDATE log SET at = 0 WHERE seq = 2", "log_time_rises");
}

#[test]
fn log_has_no_gap() {
    check("DELETE FROM log WHERE seq = 4", "log_has_no_gap");
    check("DELETE FROM log WHERE seq = 1", "log_has_no_gap");
    check("UPDATE log SET seq = 9 WHERE seq = 7", "log_has_no_gap");
}

#[test]
fn stored_data_can_be_read() {
    let breach = "stored_data_can_be_read";
    check("UPDATE log SET body = substr(body, 1, 40) WHERE seq = 5", breach);
    check("DELETE FROM words WHERE text = 'buy'", breach);
}

#[test]
fn totals_are_the_fold_of_the_log() {
    let breach = "totals_are_the_fold_of_the_log";
    check("UPDATE accounts SET debits_posted = debits_posted + 1 WHERE name = 'USD memo'", breach);
    check("UPDATE accounts SET last_seq = 1", breach);
    // The log's end is cut off: what is stored is then more than it says.
    check("DELETE FROM log WHERE seq = 7", breach);
}

/// Stored totals that still add up are one breach, those that do not are two.
#[test]
fn debits_equal_credits() {
    let breaches = |change: &str| -> Vec<&str> {
        let folder = tempfile::tempdir().unwrap();
        let path = books(folder.path());
        let raw = rusqlite::Connection::open(&path).unwrap();
        raw.execute_batch(&format!("UPDATE accounts SET {change} WHERE name = 'USD memo'"))
            .unwrap();
        let found = Audit::new().run_file(&path).unwrap();
        found.into_iter().map(|finding| finding.invariant).collect()
    };
    let fold = "totals_are_the_fold_of_the_log";
    let (debit, credit) =
        ("debits_posted = debits_posted + 1", "credits_posted = credits_posted + 1");
    assert_eq!(breaches(&format!("{debit}, {credit}")), [fold]);
    assert_eq!(breaches(credit), [fold, "debits_equal_credits"]);
}

/// Every entry names the accounts it changed and the entries that changed them before.
#[test]
fn history_is_linked() {
    // The third purchase's entry says how far back each account changed: one entry. The byte
    // after the key's id and the count of accounts is the first account's number.
    let folder = tempfile::tempdir().unwrap();
    let path = books(folder.path());
    let raw = rusqlite::Connection::open(&path).unwrap();
    let body: Vec<u8> =
        raw.query_row("SELECT body FROM log WHERE seq = 7", [], |row| row.get(0)).unwrap();
    // A void without a key: form, name, no key, four accounts, then number and distance of each.
    assert_eq!(&body[2..4], &[0, 4], "{body:?}");
    for (place, other) in [(4, body[6]), (5, body[5] + 1)] {
        let mut changed = body.clone();
        changed[place] = other;
        raw.execute("UPDATE log SET body = ?1 WHERE seq = 7", [&changed]).unwrap();
        assert_eq!(first(&path).as_deref(), Some("history_is_linked"), "byte {place}");
    }
}

#[test]
fn holds_keys_and_places_are_what_the_log_says() {
    check("DELETE FROM holds WHERE state = 2", "hold_resolves_once");
    check("UPDATE holds SET state = 0, resolved = NULL WHERE state = 2", "hold_resolves_once");
    check("DELETE FROM keys WHERE seq = 3", "every_key_is_kept");
    check("UPDATE keys SET seq = 2 WHERE seq = 3", "every_key_is_kept");
    let lists = "lists_are_what_the_rows_say";
    check("DELETE FROM lists WHERE id = 'pur-00000003' AND scope = 'held'", lists);
    check("UPDATE lists SET scope = 'held' WHERE scope = 'voided'", lists);
}

#[test]
fn rows_are_what_the_log_says() {
    let breach = "rows_are_what_the_log_says";
    let replaced = "CAST(replace(CAST(body AS TEXT), 'voided', 'posted') AS BLOB)";
    check(&format!("UPDATE rows SET body = {replaced}"), breach);
    check("DELETE FROM rows WHERE id = 'pur-00000003'", breach);
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
