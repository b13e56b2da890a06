//! What readers see: pages without holes, histories that walk back, events in order.

use earnest_core::ledger::Account;
use earnest_store::{Cursor, ReadError, Step, Store};

use crate::world::{self, Bought, Buy, Deposit, Finish, chain, credit, earned, micros};

fn both(check: impl Fn(&Store)) {
    let folder = tempfile::tempdir().unwrap();
    check(&world::memory());
    check(&world::sqlite(folder.path()));
}

fn fill(store: &Store) {
    store.submit_blocking(Deposit { id: chain(900), owner: 1, amount: 1_000 }).unwrap();
    store.submit_blocking(Deposit { id: chain(901), owner: 2, amount: 1_000 }).unwrap();
    for id in 1..=10 {
        store.submit_blocking(Buy::new(id, 1 + id % 2, 10)).unwrap();
    }
    store.submit_blocking(Finish { buy: Buy::new(1, 2, 10), amount: 7 }).unwrap();
    store.submit_blocking(Finish { buy: Buy::new(2, 1, 10), amount: 0 }).unwrap();
}

#[test]
fn lists_page_without_holes_in_both_directions() {
    both(|store| {
        fill(store);
        for newest_first in [false, true] {
            let (mut seen, mut after) = (Vec::new(), None::<Cursor>);
            loop {
                let page =
                    store.reader().list::<Bought>("bought", "", after.as_ref(), 3, newest_first);
                let page = page.unwrap();
                seen.extend(page.items.into_iter().map(|row| row.id));
                let Some(next) = page.next else { break };
                after = Some(next.to_string().parse().unwrap());
            }
            let mut expected: Vec<String> = (1..=10).map(|id| format!("pur-{id:08}")).collect();
            if newest_first {
                expected.reverse();
            }
            assert_eq!(seen, expected);
        }
        let own = world::owner(2).to_string();
        let page = store.reader().list::<Bought>("bought", &own, None, 100, false).unwrap();
        assert_eq!(page.items.len(), 5);
        assert_eq!(page.next, None);
        assert!(page.items.iter().all(|row| row.owner == world::owner(2)));
    });
}

#[test]
fn a_row_stands_only_in_the_lists_it_names_now() {
    both(|store| {
        fill(store);
        let in_state = |state: &str| {
            let page = store.reader().list::<Bought>("bought_by_state", state, None, 100, false);
            page.unwrap().items.len()
        };
        assert_eq!((in_state("held"), in_state("posted"), in_state("voided")), (8, 1, 1));
        assert_eq!(in_state(""), 0);
    });
}

#[test]
fn histories_walk_back() {
    both(|store| {
        fill(store);
        let reader = store.reader();
        let (mut all, mut from) = (Vec::new(), None);
        loop {
            let page = reader.account_history(&credit(2), from, 2).unwrap();
            all.extend(page.items);
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        assert!(all.is_sorted_by(|newer, older| newer.seq > older.seq));
        let steps: Vec<Step> = all.iter().map(|moved| moved.step).collect();
        use Step::{Held, Moved, Posted};
        assert_eq!(steps, [Posted, Held, Held, Held, Held, Held, Moved]);
        assert_eq!(all[0].legs[0].amount, micros(7));
        assert!(
            all.iter()
                .flat_map(|m| &m.legs)
                .all(|leg| [leg.debit, leg.credit].contains(&credit(2)))
        );
        let unknown = reader.account_history(&Account::Losses.usd(), None, 5).unwrap();
        assert_eq!((unknown.items.len(), unknown.next), (0, None));
        let hold = reader.hold(chain(2)).unwrap().unwrap();
        assert_eq!((hold.opened, hold.resolved), (4, Some(14)));
        let moved = reader.moved(12, 100).unwrap();
        assert_eq!(moved.items.len(), 2);
        assert_eq!(moved.next, None);
    });
}

#[test]
fn accounts_are_found_by_the_beginning_of_their_names() {
    both(|store| {
        fill(store);
        let reader = store.reader();
        let names = |prefix: &str| -> Vec<String> {
            let rows = reader.accounts(prefix, None, 100).unwrap();
            rows.iter().map(|row| row.id.to_string()).collect()
        };
        assert_eq!(names("USD owner:"), [credit(1).to_string(), credit(2).to_string()]);
        assert_eq!(names("USD seller:"), [earned(1).to_string()]);
        assert_eq!(names("EUR"), [""; 0]);
        let all = names("");
        let (mut paged, mut after) = (Vec::new(), None);
        while let Some(row) = reader.accounts("", after.as_ref(), 1).unwrap().pop() {
            paged.push(row.id.to_string());
            after = Some(row.id);
        }
        assert_eq!(paged, all);
        assert!(all.is_sorted());
        let cash = reader.account(&Account::PaypalCash.usd()).unwrap().unwrap();
        assert_eq!(cash.totals.debits_posted, micros(2_000));
        assert_eq!(reader.totals(&Account::Losses.usd()).unwrap(), Default::default());
        let lines = reader.trial_balance().unwrap();
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| (line.pending, line.posted) == (0, 0)));
        assert_eq!(lines[0].debits_posted, 2_007);
    });
}

#[test]
fn events_are_followed_by_their_place() {
    both(|store| {
        let mut head = store.watch_head();
        assert_eq!(*head.borrow_and_update(), 0);
        fill(store);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(head.wait_for(|seq| *seq == 14)).unwrap();
        let (mut seen, mut after) = (Vec::new(), 0);
        loop {
            let page = store.reader().events(after, 4).unwrap();
            if page.after == after {
                break;
            }
            after = page.after;
            seen.extend(page.events);
        }
        assert_eq!(seen.len(), 10);
        assert_eq!(after, 14);
        assert!(seen.is_sorted_by_key(|event| (event.seq, event.index)));
        assert_eq!(seen[0].event.kind, "bought.held");
        assert_eq!(seen[0].event.audience, [world::owner(2).to_string()]);
        assert_eq!(seen[9].event.data["n"], 5);
    });
}

#[test]
fn a_snapshot_does_not_move() {
    both(|store| {
        fill(store);
        store
            .reader()
            .snapshot(|books| {
                let before = books.head()?;
                // Memory cannot write while somebody reads, so only the file is written to.
                if store.backup_to("/dev/null/nowhere").is_err() && store.epoch().is_empty() {
                    unreachable!();
                }
                assert_eq!(books.head()?, before);
                assert_eq!(books.rows::<Bought>(&["pur-00000003", "none"])?.len(), 1);
                Ok(())
            })
            .unwrap();
    });
    let folder = tempfile::tempdir().unwrap();
    let store = world::sqlite(folder.path());
    fill(&store);
    let seen = store.reader().snapshot(|books| {
        let before = books.head()?;
        store.submit_blocking(Buy::new(50, 1, 1)).unwrap();
        assert_eq!(store.reader().head()?.seq, before.seq + 1);
        Ok((before, books.head()?))
    });
    let (before, after) = seen.unwrap();
    assert_eq!(before, after);
}

/// What is kept up with every commit is what the books hold, after a restart too.
#[test]
fn sums_and_load_are_those_of_the_books() {
    let folder = tempfile::tempdir().unwrap();
    let check = |store: &Store| {
        let (mut posted, mut pending) = (0, 0);
        let all = store.reader().snapshot(|books| {
            let mut all = std::collections::BTreeMap::new();
            books.each_account(|row| {
                let wide = |micros: earnest_core::money::Micros| i128::from(micros.get());
                let sum: &mut (i128, i128) = all.entry(row.id.account.class()).or_default();
                sum.0 += wide(row.totals.debits_posted) - wide(row.totals.credits_posted);
                sum.1 += wide(row.totals.debits_pending) - wide(row.totals.credits_pending);
            })?;
            Ok(all)
        });
        let all = all.unwrap();
        assert!(all.len() > 2, "{all:?}");
        let sums = store.sums();
        for (_, class, net) in sums.classes() {
            assert_eq!((net.posted, net.pending), all[class], "{class}");
            posted += net.posted;
            pending += net.pending;
        }
        assert_eq!((sums.classes().count(), sums.imbalance()), (all.len(), 0));
        assert_eq!((posted, pending), (0, 0));
    };
    let memory = world::memory();
    fill(&memory);
    check(&memory);
    let load = memory.load();
    assert_eq!((load.queued, load.units), (0, 14));
    // One after the other, so each was a batch of its own.
    assert_eq!(load.batches[0], (1, 14));
    assert_eq!(load.batches.iter().map(|(_, batches)| batches).sum::<u64>(), 14);
    let sqlite = world::sqlite(folder.path());
    fill(&sqlite);
    check(&sqlite);
    sqlite.close();
    check(&world::sqlite(folder.path()));
}

/// A name that the disk does not give says nothing of the entry that has it: the whole place is in
/// trouble, and the unit that asked may ask again. A missing table stands for the failing disk.
#[test]
fn a_name_that_cannot_be_read_is_no_damage_of_the_entry() {
    let folder = tempfile::tempdir().unwrap();
    let options = world::options(folder.path());
    let earnest_store::Place::File(path) = options.place.clone() else { unreachable!() };
    let store = Store::open(options).unwrap();
    fill(&store);
    for table in ["words", "accounts"] {
        let rename = |from: &str, to: &str| {
            let conn = rusqlite::Connection::open(&path).unwrap();
            conn.execute_batch(&format!("ALTER TABLE {from} RENAME TO {to}")).unwrap();
        };
        rename(table, "away");
        let read = store.reader().entry(5);
        assert!(matches!(read, Err(ReadError::Unavailable(_))), "{table}: {read:?}");
        rename("away", table);
    }
    assert_eq!(store.reader().entry(5).unwrap().unwrap().entry.seq, 5);
}
