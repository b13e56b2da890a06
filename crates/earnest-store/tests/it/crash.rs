//! `kill -9` at random: what was acknowledged is there once, what was refused is not, and a retry
//! with the same id tells what became of the rest.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;

use earnest_store::{Options, Store, SubmitError};

use crate::world::{self, Bought, Buy, Deposit, Dice, Guard, chain, ensure};

const FOLDER: &str = "EARNEST_TEST_CHILD_FOLDER";

/// The folder to work in, when this process is somebody's child; else the test has nothing to do.
pub fn as_child() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Runs one test of this binary in a process of its own.
pub fn child(test: &str, folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What a child says: its lines that begin with `> `.
pub fn lines(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let said = BufReader::new(child.stdout.take().unwrap()).lines();
    said.map_while(Result::ok).filter_map(|line| line.strip_prefix("> ").map(str::to_owned))
}

/// Where books are, for a child: a folder, or a server's URL.
pub fn options_at(place: &Path) -> Options {
    match place.to_str().filter(|place| place.starts_with("postgres://")) {
        Some(url) => world::server(url),
        None => world::options(place),
    }
}

/// The child: several threads buy and say what they were told, until somebody kills them.
#[test]
fn buys_until_killed() {
    let Some(place) = as_child() else { return };
    let options = options_at(&place);
    #[cfg(feature = "planted")]
    let options = earnest_store::Options {
        planted: std::env::var("EARNEST_TEST_PLANTED")
            .ok()
            .and_then(|name| earnest_store::planted::Bug::parse(&name)),
        ..options
    };
    let store = Store::open(options).unwrap();
    // The test harness leaves its own line open.
    println!();
    let round: u128 = store.reader().head().unwrap().seq.into();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let n = u128::from(next.fetch_add(1, Ordering::Relaxed));
                    let id = (round << 32) + n;
                    // Every third is for an owner without credit.
                    let buy = Buy::new(id, 1 + n % 3, 1);
                    println!("> asked {id} {}", buy.owner);
                    let said = match store.submit_blocking(buy) {
                        Ok(answer) => format!("bought {}", answer.first),
                        Err(SubmitError::Refused(_)) => "refused".to_owned(),
                        Err(why) => format!("failed {why}"),
                    };
                    println!("> told {id} {said}");
                }
            });
        }
    });
}

/// The suite: kills the child again and again, each time after another while, and checks its
/// history against the books.
pub fn suite(kills: u64, seed: u64, planted: Option<&str>) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    suite_at(folder.path(), kills, seed, planted)
}

/// As [`suite`], with the books anywhere.
pub fn suite_at(place: &Path, kills: u64, seed: u64, planted: Option<&str>) -> Result<(), String> {
    let store = Store::open(options_at(place)).unwrap();
    for owner in [1, 2] {
        let deposit = Deposit { id: chain(owner), owner, amount: 1 << 40 };
        store.submit_blocking(deposit).map_err(|why| why.to_string())?;
    }
    drop(store);
    let mut dice = Dice(seed);
    let mut asked: BTreeMap<u128, u128> = BTreeMap::new();
    let mut told: BTreeMap<u128, String> = BTreeMap::new();
    for _ in 0..kills {
        let mut process = match planted {
            None => child("crash::buys_until_killed", place),
            Some(bug) => Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "crash::buys_until_killed", "--nocapture"])
                .env(FOLDER, place)
                .env("EARNEST_TEST_PLANTED", bug)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        };
        let said = lines(&mut process);
        let (send, heard) = channel();
        let listener = std::thread::spawn(move || said.for_each(|line| send.send(line).unwrap()));
        let until = 20 + dice.roll(400);
        let hear = |line: String, asked: &mut BTreeMap<_, _>, told: &mut BTreeMap<_, _>| {
            let mut words = line.splitn(3, ' ');
            let (verb, id) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
            let rest = words.next().unwrap();
            match verb {
                "asked" => drop(asked.insert(id, rest.parse::<u128>().unwrap())),
                _ => drop(told.insert(id, rest.to_owned())),
            }
        };
        for line in heard.iter().take(usize::try_from(until).unwrap()) {
            hear(line, &mut asked, &mut told);
        }
        process.kill().unwrap();
        process.wait().unwrap();
        listener.join().unwrap();
        heard.iter().for_each(|line| hear(line, &mut asked, &mut told));
        check(place, &asked, &mut told)?;
    }
    ensure(told.len() > 20, || format!("only {} were told anything", told.len()))
}

fn check(
    place: &Path,
    asked: &BTreeMap<u128, u128>,
    told: &mut BTreeMap<u128, String>,
) -> Result<(), String> {
    let store = Store::open(options_at(place)).unwrap();
    world::audit(&store)?;
    let mut counted: BTreeMap<u128, u64> = BTreeMap::new();
    for (id, owner) in asked {
        let buy = Buy::new(*id, *owner, 1);
        let there = store.reader().row::<Bought>(buy.row()).map_err(|why| why.to_string())?;
        let said = told.get(id).cloned();
        match said.as_deref() {
            Some("bought true" | "bought false") => {
                ensure(there.is_some(), || format!("{id} was acknowledged and is gone"))?;
            }
            Some("refused") => {
                ensure(there.is_none(), || format!("{id} was refused and is there"))?;
            }
            Some(other) => return Err(format!("{id}: {other}")),
            // Never answered: there once or not at all, and a retry tells which.
            None => {
                let first = match store.submit_blocking(buy.clone()) {
                    Ok(answer) => Some(answer.first),
                    Err(SubmitError::Refused(_)) => None,
                    Err(why) => return Err(format!("{id} again: {why}")),
                };
                let fits = match first {
                    Some(first) => first == there.is_none(),
                    None => there.is_none(),
                };
                ensure(fits, || format!("{id} again: first {first:?}, there {there:?}"))?;
                let now = if first.is_some() { "bought false" } else { "refused" };
                told.insert(*id, now.to_owned());
            }
        }
        if told.get(id).is_some_and(|said| said.starts_with("bought")) {
            *counted.entry(*owner).or_default() += 1;
        }
    }
    for (owner, bought) in counted {
        let guard = store.reader().row::<Guard>(world::owner(owner));
        let purchases = guard.map_err(|why| why.to_string())?.map_or(0, |guard| guard.purchases);
        ensure(purchases == bought, || format!("{bought} bought, {purchases} on the books"))?;
    }
    world::audit(&store)
}

#[test]
fn acknowledged_once_refused_never_after_kill_9() {
    suite(12, 42, None).unwrap();
}
