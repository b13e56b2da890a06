//! Units that stop half-way, break the engine's rules, or meet a failing disk: nothing is left
//! behind, and the units beside them do not notice.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};

use earnest_core::ledger::{Cause, Leg, Op};
use earnest_core::problem::Code;
use earnest_core::unit::{Effects, RowKey, Stop, Touches};
use earnest_store::{Options, Store, SubmitError};

use crate::world::{self, Bought, Buy, Deposit, Finish, Guard, Script, chain, ensure, micros};

fn nothing(_: &earnest_core::unit::View) -> Touches {
    Touches::new()
}

fn failed(store: &Store, script: Script) -> String {
    match store.submit_blocking(script) {
        Err(SubmitError::Internal(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn both(check: impl Fn(&Store)) {
    let folder = tempfile::tempdir().unwrap();
    check(&world::memory());
    check(&world::sqlite(folder.path()));
}

#[test]
fn a_panic_rolls_its_unit_back_and_no_other() {
    both(|store| {
        let in_decide = Script::new(nothing, |_| panic!("decided to panic"));
        assert_eq!(failed(store, in_decide.keyed("p", "1")), "panicked: decided to panic");
        let in_touches = Script::new(|_| panic!("touched a nerve"), |_| unreachable!());
        assert_eq!(failed(store, in_touches), "panicked: touched a nerve");
        assert_eq!(store.reader().head().unwrap().seq, 0);
        assert_eq!(store.reader().key("me", "script", "p").unwrap(), None);
        store.submit_blocking(Deposit { id: chain(1), owner: 1, amount: 5 }).unwrap();
        assert_eq!(store.reader().head().unwrap().seq, 1);
    });
}

/// INVARIANT: rows_are_named_in_lock_order
#[test]
fn rows_are_named_in_lock_order() {
    let bought = |id: &str| RowKey { kind: "bought", id: id.to_owned() };
    let touch = move |view: &earnest_core::unit::View| {
        let mut touches = Touches::new();
        touches.row::<Bought>("a");
        if view.has_row(&bought("a")) {
            touches.row::<Guard>(world::owner(1));
        }
        touches
    };
    let folder = tempfile::tempdir().unwrap();
    for place in [Options::memory("m", world::clock()), world::options(folder.path())] {
        let options = Options { check_lock_order: true, ..place };
        let store = Store::open(options).unwrap();
        let why = failed(&store, Script::new(touch, |_| Ok(Effects::answer(String::new()))));
        assert!(why.contains("row guard/own_"), "{why}");
        assert!(why.contains("(rank 10) named after rank 20"), "{why}");
    }
}

#[test]
fn a_unit_that_never_stops_naming_is_ended() {
    let endless = |view: &earnest_core::unit::View| {
        let mut touches = Touches::new();
        let mut n = 0;
        while view.has_row(&RowKey { kind: "bought", id: n.to_string() }) {
            n += 1;
        }
        touches.row::<Bought>(n);
        touches
    };
    both(|store| {
        let why = failed(store, Script::new(endless, |_| Ok(Effects::answer(String::new()))));
        assert!(why.contains("still names something new"), "{why}");
    });
}

#[test]
fn what_was_not_declared_may_not_be_used() {
    let guard = Guard { owner: world::owner(1), purchases: 0, last: None };
    let legs = || vec![Leg::new(world::memo(), world::credit(1), micros(1))];
    let op = move |id| Op::Move { id: chain(id), cause: Cause::Deposit, legs: legs() };
    both(|store| {
        let guard = guard.clone();
        let write = Script::new(nothing, move |_| {
            let mut effects = Effects::answer(String::new());
            effects.put(guard.clone())?;
            Ok(effects)
        });
        assert!(failed(store, write).starts_with("undeclared write of row guard/"));
        let read = Script::new(nothing, |view| {
            view.row::<Guard>(world::owner(1))?;
            Ok(Effects::answer(String::new()))
        });
        assert!(failed(store, read).starts_with("undeclared use of guard"));
        let id = Script::new(nothing, move |_| {
            let mut effects = Effects::answer(String::new());
            effects.op(op(1));
            Ok(effects)
        });
        assert_eq!(failed(store, id), format!("undeclared use of hold {}", chain(1)));
        let declared = |_: &earnest_core::unit::View| {
            let mut touches = Touches::new();
            touches.hold(chain(1));
            touches.account(world::memo());
            touches
        };
        let account = Script::new(declared, move |_| {
            let mut effects = Effects::answer(String::new());
            effects.op(op(1));
            Ok(effects)
        });
        let why = failed(store, account);
        assert_eq!(why, format!("undeclared use of account {}", world::credit(1)));
        assert_eq!(store.reader().head().unwrap().seq, 0);
    });
}

#[test]
fn the_accounts_of_a_hold_must_be_declared_too() {
    both(|store| {
        store.submit_blocking(Deposit { id: chain(900), owner: 1, amount: 50 }).unwrap();
        let buy = Buy::new(1, 1, 20);
        store.submit_blocking(buy.clone()).unwrap();
        let only_hold = move |_: &earnest_core::unit::View| {
            let mut touches = Touches::new();
            touches.hold(chain(1));
            touches
        };
        let void = Script::new(only_hold, |_| {
            let mut effects = Effects::answer(String::new());
            effects.op(Op::Void { id: chain(1) });
            Ok(effects)
        });
        let why = failed(store, void);
        assert!(why.starts_with("undeclared use of account"), "{why}");
        store.submit_blocking(Finish { buy, amount: 0 }).unwrap();
    });
}

/// Fills the writer's hands with a unit that waits, so that what follows is one batch.
struct Gate {
    opened: SyncSender<()>,
    held: std::thread::JoinHandle<()>,
}

impl Gate {
    fn close(store: &Store) -> Self {
        let (opened, waits) = sync_channel(1);
        let (entered, inside) = channel();
        let waits = Mutex::new(waits);
        let entered = Mutex::new(entered);
        let script = Script::new(
            move |_| {
                entered.lock().unwrap().send(()).ok();
                waits.lock().unwrap().recv().ok();
                Touches::new()
            },
            |_| Ok(Effects::answer(String::new())),
        );
        let store = store.clone();
        let held = std::thread::spawn(move || {
            store.submit_blocking(script).unwrap();
        });
        inside.recv().unwrap();
        Self { opened, held }
    }

    fn open(self) {
        self.opened.send(()).unwrap();
        self.held.join().unwrap();
    }
}

/// Submits units so that they are one batch, in order, and gives their answers in order.
pub fn one_batch(store: &Store, buys: Vec<Buy>) -> Vec<Result<world::Answer, SubmitError>> {
    let gate = Gate::close(store);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let submitting = async {
        let mut tasks = Vec::new();
        for buy in buys {
            let store = store.clone();
            tasks.push(tokio::task::spawn_local(async move { store.submit(buy).await }));
            // Its first poll puts it into the queue.
            tokio::task::yield_now().await;
        }
        tokio::task::spawn_blocking(move || gate.open()).await.unwrap();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        answers
    };
    runtime.block_on(tokio::task::LocalSet::new().run_until(submitting))
}

#[test]
fn a_full_queue_is_said_at_once_and_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Options { queue: 2, ..world::options(folder.path()) }).unwrap();
    let answers = one_batch(&store, (1..=5).map(|id| Buy::new(id, 1, 0)).collect());
    let full = answers.iter().filter(|a| **a == Err(SubmitError::Overloaded)).count();
    assert_eq!(full, 3, "{answers:?}");
    assert_eq!(SubmitError::Overloaded.code(), Code::Overloaded);
    store.submit_blocking(Deposit { id: chain(9), owner: 1, amount: 1 }).unwrap();
}

#[test]
fn a_batch_is_carried_out_in_order_and_sees_itself() {
    both(|store| {
        store.submit_blocking(Deposit { id: chain(900), owner: 1, amount: 50 }).unwrap();
        // The same request twice in one batch, a panic between, and credit for two of three.
        let mut again = Buy::new(1, 1, 20);
        again.id = 77;
        again.request = Some("request-1".into());
        let buys = vec![Buy::new(1, 1, 20), again, Buy::new(2, 1, 20), Buy::new(3, 1, 20)];
        let answers = one_batch(store, buys);
        let first = answers[0].clone().unwrap();
        assert!(first.first);
        assert_eq!(answers[1], Ok(world::Answer { first: false, ..first }));
        assert!(answers[2].clone().unwrap().first);
        assert!(matches!(&answers[3], Err(SubmitError::Refused(why))
            if why.code == Code::InsufficientCredit));
        let guard = store.reader().row::<Guard>(world::owner(1)).unwrap().unwrap();
        assert_eq!(guard.purchases, 2);
        world::audit(store).unwrap();
    });
}

/// Fills a database with a bound until it is full: whole batches are then unavailable, what was
/// answered stays, reading goes on, and with more room it works again.
pub fn disk_full(change: impl Fn(&mut Options)) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options { max_bytes: Some(400 << 10), ..world::options(folder.path()) };
    change(&mut options);
    let store = Store::open(options).unwrap();
    store.submit_blocking(Deposit { id: chain(900), owner: 1, amount: 1_000_000 }).unwrap();
    let (mut kept, mut lost, mut next) = (Vec::new(), Vec::new(), 1);
    let mut odd = None;
    while lost.len() < 40 && next < 5_000 {
        let buys: Vec<Buy> = (next..next + 20).map(|id| Buy::new(id, 1, 1)).collect();
        next += 20;
        for (buy, answer) in buys.clone().into_iter().zip(one_batch(&store, buys)) {
            match answer {
                Ok(_) => kept.push(buy),
                Err(why) => {
                    if !matches!(why, SubmitError::Unavailable(_)) {
                        odd.get_or_insert(why);
                    }
                    lost.push(buy);
                }
            }
        }
    }
    ensure(lost.len() >= 40, || "the disk never filled".to_owned())?;
    ensure(!kept.is_empty(), || "nothing fitted".to_owned())?;
    let check = |store: &Store| -> Result<(), String> {
        let guard = store.reader().row::<Guard>(world::owner(1)).map_err(|w| w.to_string())?;
        let counted = guard.map_or(0, |guard| guard.purchases);
        let expected = kept.len() as u64;
        ensure(counted == expected, || format!("{counted} purchases, {expected} acknowledged"))?;
        for buy in &kept {
            let there = store.reader().row::<Bought>(buy.row()).map_err(|why| why.to_string())?;
            ensure(there.is_some(), || format!("{} was acknowledged and is gone", buy.row()))?;
        }
        for buy in &lost {
            let there = store.reader().row::<Bought>(buy.row()).map_err(|why| why.to_string())?;
            ensure(there.is_none(), || format!("{} was unavailable and is there", buy.row()))?;
        }
        world::audit(store)
    };
    check(&store)?;
    ensure(odd.is_none(), || format!("a full disk gives {odd:?}"))?;
    store.close();
    drop(store);
    // More room: what was lost can be repeated with the same keys.
    let mut options = Options { max_bytes: None, ..world::options(folder.path()) };
    change(&mut options);
    let store = Store::open(options).map_err(|why| why.to_string())?;
    check(&store)?;
    for buy in lost.clone() {
        let answer = store.submit_blocking(buy).map_err(|why| why.to_string())?;
        ensure(answer.first, || format!("{} was done already", answer.row))?;
    }
    world::audit(&store)
}

#[test]
fn a_full_disk_loses_whole_batches_and_nothing_else() {
    disk_full(|_| {}).unwrap();
}

#[test]
fn a_row_that_cannot_be_written_costs_only_its_unit() {
    // SQLite refuses texts of more than a thousand million bytes; a trigger stands in for them.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("books.db");
    drop(world::sqlite(folder.path()));
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch(
        "CREATE TRIGGER poison BEFORE INSERT ON rows WHEN new.body LIKE '%pur-00000003%'
         BEGIN SELECT RAISE(ABORT, 'poison'); END;
         CREATE TRIGGER poison_log BEFORE INSERT ON log WHEN new.seq = 6
         BEGIN SELECT RAISE(ABORT, 'poisoned place'); END;",
    )
    .unwrap();
    drop(raw);
    let store = world::sqlite(folder.path());
    store.submit_blocking(Deposit { id: chain(900), owner: 1, amount: 1_000 }).unwrap();
    let answers = one_batch(&store, (1..=4).map(|id| Buy::new(id, 1, 1)).collect());
    // The guard row names the purchase too, so the third unit alone fails, at the batch's end.
    for (place, answer) in answers.iter().enumerate() {
        match (place, answer) {
            (2, Err(SubmitError::Internal(why))) => assert!(why.contains("poison"), "{why}"),
            (2, other) => panic!("{other:?}"),
            (_, answer) => assert!(answer.as_ref().unwrap().first),
        }
    }
    world::audit(&store).unwrap();
    // Place 6 cannot be taken: the unit's savepoint is rolled back, and the next one tries again.
    store.submit_blocking(Deposit { id: chain(901), owner: 1, amount: 1 }).unwrap();
    let stuck = store.submit_blocking(Deposit { id: chain(902), owner: 1, amount: 1 });
    assert!(matches!(stuck, Err(SubmitError::Internal(why)) if why.contains("poisoned place")));
    world::audit(&store).unwrap();
}

#[test]
fn a_refusal_moves_nothing_and_a_stop_leaves_the_key_free() {
    both(|store| {
        let stopped = Script::new(nothing, |_| Err(Stop::Bug("no".into()))).keyed("k", "1");
        assert_eq!(failed(store, stopped), "no");
        assert_eq!(store.reader().key("me", "script", "k").unwrap(), None);
        let buy = Buy::new(1, 1, 5);
        let refused = store.submit_blocking(buy.clone());
        assert!(matches!(refused, Err(SubmitError::Refused(_))));
        let head = store.reader().head().unwrap();
        assert_eq!(head.seq, 1);
        let entry = store.reader().entry(1).unwrap().unwrap();
        assert!(entry.entry.ops.is_empty() && entry.entry.puts.is_empty());
        assert_eq!(entry.entry.key.unwrap().bound, None);
        assert_eq!(store.reader().accounts("", None, 10).unwrap(), vec![]);
        // Known already: a second refusal records nothing at all.
        assert!(store.submit_blocking(buy).is_err());
        assert_eq!(store.reader().head().unwrap(), head);
    });
}

#[test]
fn the_answer_comes_after_the_commit() {
    let folder = tempfile::tempdir().unwrap();
    let store = world::sqlite(folder.path());
    store.submit_blocking(Deposit { id: chain(900), owner: 1, amount: 1_000 }).unwrap();
    for id in 1..50 {
        let answer = store.submit_blocking(Buy::new(id, 1, 1)).unwrap();
        assert!(store.reader().row::<Bought>(&answer.row).unwrap().is_some());
    }
}

#[test]
fn closing_carries_out_what_is_queued_and_then_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = world::sqlite(folder.path());
    let done = Arc::new(AtomicU32::new(0));
    let gate = Gate::close(&store);
    let queued: Vec<_> = (1..=10)
        .map(|id| {
            let (store, done) = (store.clone(), done.clone());
            std::thread::spawn(move || {
                let deposit = Deposit { id: chain(id), owner: 1, amount: 1 };
                if store.submit_blocking(deposit).is_ok() {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    gate.open();
    for thread in queued {
        thread.join().unwrap();
    }
    store.close();
    let late = store.submit_blocking(Deposit { id: chain(99), owner: 1, amount: 1 });
    assert_eq!(late, Err(SubmitError::Stopped));
    assert_eq!(done.load(Ordering::Relaxed), 10);
    drop(store);
    assert_eq!(world::sqlite(folder.path()).reader().head().unwrap().seq, 10);
}

/// A COMMIT that fails leaves it open whether the batch is on disk: unavailable, until memory was
/// read again.
pub fn failed_commit(change: impl Fn(&mut Options)) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("books.db");
    drop(world::sqlite(folder.path()));
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch(
        "CREATE TABLE parent (id INTEGER PRIMARY KEY);
         CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
         CREATE TRIGGER late AFTER INSERT ON log WHEN new.seq >= 3
         BEGIN INSERT INTO child VALUES (99); END;",
    )
    .unwrap();
    let mut options = world::options(folder.path());
    change(&mut options);
    let store = Store::open(options).unwrap();
    let seq = |store: &Store| store.reader().head().unwrap().seq;
    for id in [900, 901] {
        store.submit_blocking(Deposit { id: chain(id), owner: 1, amount: 100 }).unwrap();
    }
    for _ in 0..3 {
        let answer = store.submit_blocking(Buy::new(1, 1, 5));
        let unavailable = matches!(&answer, Err(SubmitError::Unavailable(why))
            if why.contains("FOREIGN KEY"));
        ensure(unavailable, || format!("a failed COMMIT gives {answer:?}"))?;
        ensure(seq(&store) == 2, || "it is there".to_owned())?;
        world::audit(&store)?;
    }
    raw.execute_batch("DROP TRIGGER late").unwrap();
    let answer = store.submit_blocking(Buy::new(1, 1, 5)).map_err(|why| why.to_string())?;
    ensure(answer.first && seq(&store) == 3, || format!("a repeat gives {answer:?}"))?;
    world::audit(&store)
}

#[test]
fn a_failed_commit_is_unavailable_and_recovers_from_disk() {
    failed_commit(|_| {}).unwrap();
}
