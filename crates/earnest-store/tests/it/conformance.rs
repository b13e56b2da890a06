//! The same operations give the same outcomes, the same rows and the same chain on every engine.

use earnest_core::unit::Unit;
use earnest_store::{Options, Store, SubmitError};

use crate::world::{self, Bought, Buy, Deposit, Dice, Finish, Guard, ensure};

/// A seeded mix of purchases, repeats, posts and voids, many of them wrong; what each answered.
pub fn run(store: &Store, seed: u64, steps: u64) -> Vec<String> {
    let mut dice = Dice(seed);
    let mut outcomes = Vec::new();
    let mut bought: Vec<Buy> = Vec::new();
    for step in 0..u128::from(steps) {
        let owner = u128::from(dice.roll(3));
        let outcome = match dice.roll(10) {
            0 => submit(
                store,
                Deposit {
                    id: world::chain(1 << 100 | u128::from(dice.roll(steps))),
                    owner,
                    amount: i64::try_from(dice.roll(500)).unwrap(),
                },
            ),
            1..5 => {
                let mut buy = Buy::new(step, owner, i64::try_from(dice.roll(60)).unwrap());
                buy.seller = u128::from(dice.roll(2));
                buy.cap = 700;
                bought.push(buy.clone());
                submit(store, buy)
            }
            roll if bought.is_empty() => format!("nothing for {roll}"),
            roll => {
                let place = usize::try_from(dice.roll(bought.len() as u64)).unwrap();
                let mut buy = bought[place].clone();
                match roll {
                    5 => submit(store, buy),
                    6 => {
                        buy.amount += 1;
                        submit(store, buy)
                    }
                    _ => {
                        let amount = i64::try_from(dice.roll(70)).unwrap();
                        submit(store, Finish { buy, amount })
                    }
                }
            }
        };
        outcomes.push(outcome);
    }
    outcomes
}

fn submit<U: Unit>(store: &Store, unit: U) -> String
where
    U::Answer: std::fmt::Debug,
{
    match store.submit_blocking(unit) {
        Ok(answer) => format!("{answer:?}"),
        Err(SubmitError::Refused(refusal)) => format!("refused {refusal} {:?}", refusal.numbers),
        Err(other) => other.to_string(),
    }
}

/// All that can be read, as text.
pub fn shown(store: &Store) -> String {
    let reader = store.reader();
    let mut text = format!("{:?}\n{:?}\n", reader.head().unwrap(), reader.trial_balance().unwrap());
    for row in reader.accounts("", None, 1000).unwrap() {
        text += &format!("{row:?}\n");
        let history = reader.account_history(&row.id, None, 10_000).unwrap();
        text += &format!("{:?}\n", history.items);
    }
    for entry in reader.log(0, 100_000).unwrap() {
        text += &format!("{entry:?}\n");
    }
    text += &format!("{:?}\n", reader.all::<Guard>(None, 1000).unwrap());
    text += &format!("{:?}\n", reader.all::<Bought>(None, 100_000).unwrap());
    for scope in ["held", "posted", "voided"] {
        for newest in [false, true] {
            let page = reader.list::<Bought>("bought_by_state", scope, None, 100_000, newest);
            text += &format!("{:?}\n", page.unwrap());
        }
    }
    text += &format!("{:?}\n", reader.events(0, 100_000).unwrap());
    for hold in reader.snapshot(|books| books.holds(None, 100_000)).unwrap() {
        text += &format!("{hold:?}\n");
    }
    text
}

/// Runs the suite over a file and over memory and compares all that both answered and kept.
pub fn suite(seed: u64, change: impl Fn(&mut Options)) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    suite_of(seed, || world::options(folder.path()), change)
}

/// Runs the suite over any place and over memory.
pub fn suite_of(
    seed: u64,
    place: impl Fn() -> Options,
    change: impl Fn(&mut Options),
) -> Result<(), String> {
    const STEPS: u64 = 400;
    let memory = world::memory();
    let mut options = place();
    change(&mut options);
    let file = Store::open(options).unwrap();
    let (in_memory, on_disk) = (run(&memory, seed, STEPS), run(&file, seed, STEPS));
    for (step, (memory, disk)) in in_memory.iter().zip(&on_disk).enumerate() {
        ensure(memory == disk, || format!("step {step}: `{memory}` in memory, `{disk}` on disk"))?;
    }
    ensure(shown(&memory) == shown(&file), || "the books differ".to_owned())?;
    world::audit(&memory)?;
    world::audit(&file)?;
    // Closed and opened again, nothing has changed.
    let before = shown(&file);
    file.close();
    drop(file);
    let again = Store::open(place()).unwrap();
    ensure(shown(&again) == before, || "reopening changed something".to_owned())
}

#[test]
fn memory_and_sqlite_agree_byte_for_byte() {
    for seed in 1..=4 {
        suite(seed, |_| {}).unwrap();
    }
}

#[test]
fn loading_all_at_once_gives_the_same_books() {
    suite(7, |options| {
        options.check_lock_order = false;
        options.cached = 1;
    })
    .unwrap();
}

#[test]
fn the_mix_meets_every_kind_of_outcome() {
    let store = world::memory();
    let outcomes: String = run(&store, 1, 400).join("\n");
    for kind in [
        "first: true",
        "first: false",
        "daily_cap",
        "insufficient_credit",
        "idempotency_conflict",
        "was resolved before",
        "above its hold",
        "leg at zero",
        "exists already",
    ] {
        assert!(outcomes.contains(kind), "no `{kind}` among\n{outcomes}");
    }
}

/// INVARIANT: replay_gives_the_same_state. The naive fold knows nothing of the ledger's code.
#[test]
fn replay_gives_the_same_state() {
    use earnest_core::ledger::{HoldState, Op};
    use std::collections::BTreeMap;
    let folder = tempfile::tempdir().unwrap();
    let store = world::sqlite(folder.path());
    run(&store, 11, 600);
    let mut totals: BTreeMap<String, [i128; 4]> = BTreeMap::new();
    let mut holds = BTreeMap::new();
    let mut states = BTreeMap::new();
    for logged in store.reader().log(0, 10_000).unwrap() {
        for op in logged.entry.ops {
            let id = op.id();
            let (moves, state): (Vec<_>, _) = match op {
                Op::Move { legs, .. } => {
                    (legs.iter().map(|leg| (*leg, 0, leg.amount)).collect(), HoldState::Posted)
                }
                Op::Hold { legs, .. } => {
                    holds.insert(id, legs.clone());
                    let zero = world::micros(0);
                    (
                        legs.iter().map(|l| (*l, i128::from(l.amount.get()), zero)).collect(),
                        HoldState::Pending,
                    )
                }
                Op::Post { amounts, .. } => {
                    let legs = &holds[&id];
                    let held = legs.iter().zip(amounts);
                    (
                        held.map(|(l, a)| (*l, -i128::from(l.amount.get()), a)).collect(),
                        HoldState::Posted,
                    )
                }
                Op::Void { .. } => {
                    let zero = world::micros(0);
                    let legs = &holds[&id];
                    (
                        legs.iter().map(|l| (*l, -i128::from(l.amount.get()), zero)).collect(),
                        HoldState::Voided,
                    )
                }
            };
            for (leg, pending, posted) in moves {
                let posted = i128::from(posted.get());
                let debit = totals.entry(leg.debit.to_string()).or_default();
                debit[0] += pending;
                debit[1] += posted;
                let credit = totals.entry(leg.credit.to_string()).or_default();
                credit[2] += pending;
                credit[3] += posted;
            }
            states.insert(id, state);
        }
    }
    let stored: BTreeMap<String, [i128; 4]> = store
        .reader()
        .accounts("", None, 1000)
        .unwrap()
        .into_iter()
        .map(|row| {
            let t = row.totals;
            let four = [t.debits_pending, t.debits_posted, t.credits_pending, t.credits_posted];
            (row.id.to_string(), four.map(|total| i128::from(total.get())))
        })
        .collect();
    assert!(stored.len() > 5);
    assert_eq!(stored, totals);
    let kept = store.reader().snapshot(|books| books.holds(None, 10_000)).unwrap();
    assert_eq!(kept.len(), states.len());
    assert!(kept.iter().all(|row| states[&row.id] == row.hold.state));
}
