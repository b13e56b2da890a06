//! What the engine makes of a place that fails, with a place that fails on demand.

use std::sync::{Arc, Mutex};

use earnest_core::entry::KeyLine;
use earnest_core::id::TransferId;
use earnest_core::ledger::{Account, Cause, Hold, Leg, Op};
use earnest_core::money::Micros;
use earnest_core::time::Timestamp;
use earnest_core::unit::{Effects, Fingerprint, Key, KeyUse, RowKey, Stop, Touches, View};

use super::{Engine, Settings, Task};
use crate::backend::{Backend, Begun, CommitFault, Dirty, Fault, KeyAddress, Recorded, Recovered};
use crate::memory::Memory;
use crate::{Head, Reader, SubmitError};

/// What goes wrong next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Nothing,
    /// `begin` fails.
    Begin,
    /// A read fails, and the transaction is gone.
    ReadWhole,
    /// A read fails for this unit alone.
    ReadUnit,
    /// The second record fails, and the transaction is gone.
    RecordWhole,
    /// Whatever batch holds an entry of this name cannot be written.
    Poison(&'static str),
    /// The disk is full at the end of the batch.
    CommitWhole,
    /// COMMIT fails, and nothing is on disk.
    CommitLost,
    /// COMMIT fails, and everything is on disk all the same.
    CommitKept,
    /// Recovery fails too.
    Recover,
    /// The place panics.
    Panic,
}

struct Failing {
    inner: Memory,
    next: Arc<Mutex<Next>>,
    names: Vec<String>,
}

impl Failing {
    fn next(&self) -> Next {
        *self.next.lock().unwrap()
    }
}

impl Backend for Failing {
    fn key(&mut self, address: KeyAddress) -> Result<Option<KeyLine>, Fault> {
        match self.next() {
            Next::ReadWhole => Err(Fault::Whole("gone".into())),
            Next::ReadUnit => Err(Fault::Unit("unreadable".into())),
            _ => self.inner.key(address),
        }
    }
    fn row(&mut self, key: &RowKey) -> Result<Option<Vec<u8>>, Fault> {
        self.inner.row(key)
    }
    fn hold(&mut self, id: TransferId) -> Result<Option<Hold>, Fault> {
        self.inner.hold(id)
    }
    fn ready(&mut self) -> Result<(), String> {
        self.inner.ready()
    }
    fn begin(&mut self, known: &Head) -> Result<Begun, Fault> {
        self.names.clear();
        match self.next() {
            Next::Begin => Err(Fault::Whole("no transaction".into())),
            _ => self.inner.begin(known),
        }
    }
    fn record(&mut self, unit: &Recorded<'_>) -> Result<(), Fault> {
        self.names.push(unit.entry.name.to_string());
        match self.next() {
            Next::RecordWhole if self.names.len() == 2 => Err(Fault::Whole("full".into())),
            Next::Panic => panic!("the place panics"),
            _ => self.inner.record(unit),
        }
    }
    fn commit(&mut self, dirty: &Dirty<'_>) -> Result<(), CommitFault> {
        let rolled_back = |inner: &mut Memory| inner.rollback();
        match self.next() {
            Next::Poison(name) if self.names.iter().any(|known| known == name) => {
                rolled_back(&mut self.inner);
                Err(CommitFault::Poison("poison".into()))
            }
            Next::CommitWhole => {
                rolled_back(&mut self.inner);
                Err(CommitFault::Whole("full".into()))
            }
            Next::CommitLost | Next::Recover => {
                rolled_back(&mut self.inner);
                Err(CommitFault::Unknown("who knows".into()))
            }
            Next::CommitKept => {
                self.inner.commit(dirty)?;
                Err(CommitFault::Unknown("who knows".into()))
            }
            _ => self.inner.commit(dirty),
        }
    }
    fn rollback(&mut self) {
        self.inner.rollback();
    }
    fn recover(&mut self) -> Result<Recovered, String> {
        match self.next() {
            Next::Recover => Err("the disk is gone".into()),
            _ => self.inner.recover(),
        }
    }
    fn close(&mut self) {}
}

type Said = Arc<Mutex<Option<Result<bool, SubmitError>>>>;

/// Takes one from the operator's funds under a key; answers whether it was the first time.
struct Take {
    name: &'static str,
    id: u128,
    first: bool,
    said: Said,
}

impl Task for Take {
    fn name(&self) -> &'static str {
        self.name
    }
    fn key(&self) -> Option<Key> {
        let (name, fingerprint) = (self.id.to_string(), Fingerprint::of(&[]));
        Some(Key { scope: String::new(), family: "take", name, fingerprint })
    }
    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.hold(TransferId::from_value(self.id));
        touches.account(Account::PaypalCash.usd());
        touches.account(Account::OperatorFunds.usd());
        touches
    }
    fn decide(&mut self, view: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        self.first = *view.key() == KeyUse::Fresh;
        if self.first {
            let (cash, funds) = (Account::PaypalCash.usd(), Account::OperatorFunds.usd());
            let legs = vec![Leg::new(cash, funds, Micros::constant(1))];
            let id = TransferId::from_value(self.id);
            effects.op(Op::Move { id, cause: Cause::Deposit, legs });
            effects.bind(self.id);
        }
        Ok(effects)
    }
    fn settle(&mut self, end: Result<(), SubmitError>) {
        self.said.lock().unwrap().get_or_insert(end.map(|()| self.first));
    }
}

struct Bench {
    engine: Engine<Failing>,
    reader: Reader,
    next: Arc<Mutex<Next>>,
}

impl Bench {
    fn new() -> Self {
        let inner = Memory::new();
        let reader = inner.reader();
        let next = Arc::new(Mutex::new(Next::Nothing));
        let clock = Arc::new(|| Timestamp::UNIX_EPOCH);
        let backend = Failing { inner, next: next.clone(), names: Vec::new() };
        let watches = Arc::default();
        let settings = Settings { clock, cached: 10, check_lock_order: true, watches };
        Self { engine: Engine::new(backend, settings).unwrap(), reader, next }
    }

    /// Runs one batch while something goes wrong, and says what each unit was told.
    fn batch(&mut self, next: Next, units: &[(&'static str, u128)]) -> Vec<Said> {
        *self.next.lock().unwrap() = next;
        let said: Vec<Said> = units.iter().map(|_| Said::default()).collect();
        let task = |((name, id), said): (&(&'static str, u128), &Said)| {
            let said = said.clone();
            Box::new(Take { name, id: *id, first: false, said }) as Box<dyn Task>
        };
        let mut tasks: Vec<_> = units.iter().zip(&said).map(task).collect();
        self.engine.run(&mut tasks);
        *self.next.lock().unwrap() = Next::Nothing;
        said
    }

    fn told(&mut self, next: Next, units: &[(&'static str, u128)]) -> Vec<String> {
        let said = self.batch(next, units);
        let text = |said: &Said| match said.lock().unwrap().clone() {
            Some(Ok(first)) => if first { "first" } else { "again" }.to_owned(),
            Some(Err(why)) => why.to_string(),
            None => "nothing".to_owned(),
        };
        said.iter().map(text).collect()
    }

    /// What is in memory is what is kept, and adds up.
    fn check(&self, seq: u64) {
        assert_eq!(self.engine.head(), self.reader.head().unwrap());
        assert_eq!(self.engine.head().seq, seq);
        let found = crate::audit::Audit::new().run(&self.reader).unwrap();
        assert_eq!(found, vec![]);
        let cash = Account::PaypalCash.usd();
        let known = self.engine.accounts.get(&cash).map(|slot| slot.totals).unwrap_or_default();
        assert_eq!(known, self.reader.totals(&cash).unwrap());
    }
}

const THREE: [(&str, u128); 3] = [("a", 1), ("b", 2), ("c", 3)];

#[test]
fn a_place_that_fails_loses_the_whole_batch() {
    for next in [Next::Begin, Next::ReadWhole, Next::RecordWhole, Next::CommitWhole] {
        let mut bench = Bench::new();
        let told = bench.told(next, &THREE);
        assert!(told.iter().all(|told| told.contains("unavailable")), "{next:?}: {told:?}");
        bench.check(0);
        assert_eq!(bench.told(Next::Nothing, &THREE), ["first"; 3], "{next:?}");
        bench.check(3);
    }
}

#[test]
fn a_fault_of_one_unit_ends_that_unit() {
    let mut bench = Bench::new();
    let told = bench.told(Next::ReadUnit, &THREE[..1]);
    assert_eq!(told, ["the unit failed: unreadable"]);
    bench.check(0);
}

#[test]
fn a_poisoned_batch_is_run_again_in_halves() {
    for size in 1..9_u128 {
        for bad in 0..size {
            let mut bench = Bench::new();
            let units: Vec<(&'static str, u128)> =
                (0..size).map(|id| (if id == bad { "bad" } else { "good" }, id + 1)).collect();
            let told = bench.told(Next::Poison("bad"), &units);
            for (id, told) in (0..size).zip(&told) {
                let expect = if id == bad { "the unit failed: poison" } else { "first" };
                assert_eq!(told, expect, "{id} of {size}");
            }
            bench.check(u64::try_from(size).unwrap() - 1);
        }
    }
}

/// The batch may be on disk or not: all are told `unavailable`, and a repeat tells which.
#[test]
fn a_failed_commit_is_told_apart_by_repeating() {
    for (next, kept) in [(Next::CommitLost, false), (Next::CommitKept, true)] {
        let mut bench = Bench::new();
        let told = bench.told(next, &THREE);
        assert!(told.iter().all(|told| told.contains("unavailable")), "{told:?}");
        let expect = if kept { "again" } else { "first" };
        assert_eq!(bench.told(Next::Nothing, &THREE), [expect; 3]);
        bench.check(3);
    }
}

#[test]
fn nothing_is_served_until_the_books_were_read_again() {
    let mut bench = Bench::new();
    assert_eq!(bench.told(Next::Nothing, &THREE[..1]), ["first"]);
    bench.batch(Next::CommitLost, &THREE);
    let told = bench.told(Next::Recover, &THREE);
    assert_eq!(told, ["the database is unavailable: the disk is gone"; 3]);
    assert_eq!(bench.told(Next::Nothing, &THREE), ["again", "first", "first"]);
    bench.check(3);
}

#[test]
fn a_panic_of_the_engine_itself_is_followed_by_reading_again() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let mut bench = Bench::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| bench.batch(Next::Panic, &THREE)));
    assert!(panicked.is_err());
    // What the writer's thread does then.
    bench.engine.distrust("panicked");
    assert_eq!(bench.told(Next::Nothing, &THREE), ["first"; 3]);
    bench.check(3);
}

#[test]
fn the_log_s_time_rises_under_a_clock_that_stands() {
    let mut bench = Bench::new();
    bench.batch(Next::Nothing, &THREE);
    let at: Vec<i64> = bench
        .reader
        .log(0, 10)
        .unwrap()
        .iter()
        .map(|logged| logged.entry.at.as_microsecond())
        .collect();
    assert_eq!(at, [0, 1, 2]);
}
