//! L4: what goes wrong between nodes, the way to the server, and the server. Whatever does,
//! acknowledged operations are there once, and a retry tells the truth.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use earnest_store::{Store, SubmitError};
use pg_cluster::{Bouncer, Cluster, Schema};

use crate::crash;
use crate::world::{self, Bought, Buy, Deposit};

fn node(url: &str) -> Store {
    Store::open(world::server(url)).unwrap()
}

/// Gives owner 1 enough for everything.
fn fund(store: &Store) {
    store
        .submit_blocking(Deposit { id: world::chain(1), owner: 1, amount: 1_000_000_000 })
        .unwrap();
}

/// Asks with the same key until there is an answer. How often it was not told.
fn insist(store: &Store, buy: &Buy) -> usize {
    let until = Instant::now() + Duration::from_secs(60);
    for tries in 0.. {
        match store.submit_blocking(buy.clone()) {
            Ok(_) => return tries,
            Err(SubmitError::Unavailable(_)) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(why) => panic!("purchase {}: {why}", buy.id),
        }
    }
    unreachable!()
}

/// Every purchase is there once, and nothing else is.
fn assert_exactly(store: &Store, expected: &[u128]) {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for row in store.reader().all::<Bought>(None, 100_000).unwrap().items {
        *found.entry(row.id).or_default() += 1;
    }
    let mut entries: BTreeMap<String, usize> = BTreeMap::new();
    for logged in store.reader().log(0, 100_000).unwrap() {
        if logged.entry.name == "buy" {
            for put in logged.entry.puts.iter().filter(|put| put.kind == "bought") {
                *entries.entry(put.id.clone()).or_default() += 1;
            }
        }
    }
    assert_eq!(found.len(), expected.len());
    assert!(found.values().chain(entries.values()).all(|times| *times == 1), "{entries:?}");
    assert_eq!(found.keys().collect::<Vec<_>>(), entries.keys().collect::<Vec<_>>());
    world::audit(store).unwrap();
}

#[test]
fn heavy_backends_that_end_at_random_lose_no_answer() {
    const EACH: u128 = 60;
    let cluster = Cluster::careless();
    let place = Schema::of(&cluster);
    let nodes = [node(place.url()), node(place.url())];
    fund(&nodes[0]);
    let over = AtomicBool::new(false);
    let unanswered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE \
                       application_name = 'earnest' ORDER BY random() LIMIT 1";
            let mut ended = 0;
            while !over.load(Ordering::Relaxed) {
                ended += cluster.sql(end).len();
                std::thread::sleep(Duration::from_millis(15));
            }
            ended
        });
        let buyers: Vec<_> = (0..4_u128)
            .map(|buyer| {
                let node = &nodes[usize::try_from(buyer % 2).unwrap()];
                let unanswered = &unanswered;
                scope.spawn(move || {
                    for n in 0..EACH {
                        let tries = insist(node, &Buy::new(1000 * (buyer + 1) + n, 1, 1));
                        unanswered.fetch_add(tries, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        buyers.into_iter().for_each(|buyer| buyer.join().unwrap());
        over.store(true, Ordering::Relaxed);
        assert!(killer.join().unwrap() > 10, "too few were ended to mean anything");
    });
    let all: Vec<u128> =
        (1..=4).flat_map(|buyer| (0..EACH).map(move |n| 1000 * buyer + n)).collect();
    assert_exactly(&nodes[1], &all);
}

#[test]
fn heavy_a_node_killed_in_the_middle_loses_no_answer() {
    let cluster = Cluster::careless();
    let place = Schema::of(&cluster);
    crash::suite_at(Path::new(place.url()), 8, 7, None).unwrap();
}

/// A node that stands still, perhaps in the middle of its turn, stops the others for no longer than
/// they wait; when it goes on, it tells the truth.
#[test]
fn heavy_a_node_that_pauses_stops_nobody_for_long() {
    pauses(6, Duration::ZERO);
}

/// The same for as long as leases, locks and idle transactions last, and longer.
#[test]
fn a_node_that_pauses_for_half_a_minute_comes_back() {
    pauses(1, Duration::from_secs(30));
}

/// A node stands still so many times, for so long after the other bought.
fn pauses(times: u128, still: Duration) {
    let cluster = Cluster::careless();
    let place = Schema::of(&cluster);
    let node = node(place.url());
    fund(&node);
    let mut other = crash::child("crash::buys_until_killed", Path::new(place.url()));
    let (send, heard) = std::sync::mpsc::channel();
    let said = crash::lines(&mut other);
    std::thread::spawn(move || said.for_each(|line| drop(send.send(line))));
    let mut told = Vec::new();
    let mut bought = 0_u32;
    for round in 0..times {
        told.extend(heard.iter().take(30 + 7 * usize::try_from(round).unwrap()));
        signal(&other, "STOP");
        for n in 0..5 {
            // One may be told that it waited in vain: then the server ended the other's session.
            insist(&node, &Buy::new(((round + 1) << 64) + n, 1, 1));
            bought += 1;
        }
        std::thread::sleep(still);
        signal(&other, "CONT");
    }
    told.extend(heard.iter().take(300));
    other.kill().unwrap();
    other.wait().unwrap();
    told.extend(heard.iter());
    assert_eq!(u128::from(bought), 5 * times);
    let mut acknowledged = 0;
    for line in told {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let &["told", id, verb, ..] = words.as_slice() else { continue };
        let row = Buy::new(id.parse().unwrap(), 1, 1).row();
        let there = node.reader().row::<Bought>(row).unwrap().is_some();
        match verb {
            "bought" => {
                assert!(there, "{id} was acknowledged and is gone");
                acknowledged += 1;
            }
            "refused" => assert!(!there, "{id} was refused and is there"),
            // Told that it is not known: both may be.
            _ => {}
        }
    }
    assert!(acknowledged > 50, "{acknowledged}");
    world::audit(&node).unwrap();
}

fn signal(child: &std::process::Child, name: &str) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
}

/// Where a cut falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    No,
    /// COMMIT does not reach the server.
    Before,
    /// The server's answer does not reach us.
    After,
}

/// A way to the server that can be cut at the next COMMIT.
struct Way {
    port: u16,
    cut: Arc<std::sync::Mutex<Cut>>,
    cuts: Arc<AtomicUsize>,
}

impl Way {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Self {
            port: listener.local_addr().unwrap().port(),
            cut: Arc::new(std::sync::Mutex::new(Cut::No)),
            cuts: Arc::default(),
        };
        let (cut, cuts) = (way.cut.clone(), way.cuts.clone());
        std::thread::spawn(move || {
            for from in listener.incoming() {
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(("127.0.0.1", port))) else {
                    continue;
                };
                let (cut, cuts) = (cut.clone(), cuts.clone());
                let (back_from, back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
                let muted = Arc::new(AtomicBool::new(false));
                let mute = muted.clone();
                std::thread::spawn(move || {
                    forward(from, to, |bytes| {
                        if !bytes.windows(7).any(|part| part == b"COMMIT\0") {
                            return Pass::On;
                        }
                        let mut next = cut.lock().unwrap();
                        let now = std::mem::replace(&mut *next, Cut::No);
                        if now != Cut::No {
                            cuts.fetch_add(1, Ordering::Relaxed);
                        }
                        match now {
                            Cut::No => Pass::On,
                            Cut::Before => Pass::End,
                            Cut::After => {
                                mute.store(true, Ordering::SeqCst);
                                Pass::On
                            }
                        }
                    })
                });
                std::thread::spawn(move || {
                    forward(back_from, back_to, |_| match muted.load(Ordering::SeqCst) {
                        true => Pass::End,
                        false => Pass::On,
                    });
                });
            }
        });
        way
    }

    fn cut_next(&self, cut: Cut) {
        *self.cut.lock().unwrap() = cut;
    }
}

enum Pass {
    On,
    End,
}

fn forward(mut from: TcpStream, mut to: TcpStream, mut pass: impl FnMut(&[u8]) -> Pass) {
    let mut bytes = vec![0; 1 << 20];
    while let Ok(length) = from.read(&mut bytes) {
        if length == 0 || matches!(pass(&bytes[..length]), Pass::End) {
            break;
        }
        if to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// What became of a COMMIT whose answer was lost is looked up, so the client is told the truth at
/// once, and nothing happens twice.
#[test]
fn a_connection_lost_at_commit_is_resolved() {
    let cluster = Cluster::careless();
    let place = Schema::of(&cluster);
    let way = Way::to(cluster.port());
    let through = place.url().replace(&cluster.port().to_string(), &way.port.to_string());
    let node = node(&through);
    fund(&node);
    let mut bought = Vec::new();
    for (n, cut) in (0..12).zip([Cut::Before, Cut::After, Cut::No].into_iter().cycle()) {
        way.cut_next(cut);
        let answer = node.submit_blocking(Buy::new(1000 + n, 1, 1)).unwrap();
        assert!(answer.first, "{cut:?}");
        // The same again is known, whatever happened to the first.
        assert!(!node.submit_blocking(Buy::new(1000 + n, 1, 1)).unwrap().first, "{cut:?}");
        bought.push(1000 + n);
    }
    assert_eq!(way.cuts.load(Ordering::Relaxed), 8);
    assert_exactly(&node, &bought);
}

/// Somebody's forgotten transaction holds the log: the wait is bounded, the error names who.
#[test]
fn an_idle_transaction_stops_nobody_silently() {
    let cluster = Cluster::careless();
    let place = Schema::of(&cluster);
    let node = node(place.url());
    fund(&node);
    let mut idle = place.session("forgotten");
    idle.say("BEGIN; SELECT * FROM earnest_head FOR UPDATE;");
    cluster.wait_for(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'forgotten' \
         AND state = 'idle in transaction'",
        "1",
    );
    let refused = node.submit_blocking(Buy::new(1001, 1, 1)).unwrap_err();
    let SubmitError::Unavailable(why) = &refused else { panic!("{refused:?}") };
    assert!(why.contains("`forgotten`, idle in transaction"), "{why}");
    // Reading goes on meanwhile, and says who it is; a batch was waited for, so seconds have passed.
    node.reader().head().unwrap();
    let strain = node.reader().strain().unwrap();
    assert!(strain.idle_seconds >= 1 && strain.oldest_seconds >= strain.idle_seconds, "{strain:?}");
    assert!(strain.who.contains("`forgotten`, idle in transaction"), "{strain:?}");
    drop(idle);
    cluster.wait_for(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'forgotten'",
        "0",
    );
    let strain = node.reader().strain().unwrap();
    assert!(strain.idle_seconds == 0 && strain.who.is_empty(), "{strain:?}");
    assert!(node.submit_blocking(Buy::new(1001, 1, 1)).unwrap().first);
    assert_exactly(&node, &[1001]);
}

/// Through a pooler that gives every transaction another session: nothing that we rely on is kept
/// in one.
#[test]
fn a_pooler_in_transaction_mode_may_stand_between() {
    let cluster = Cluster::careless();
    cluster.sql("CREATE DATABASE books");
    let bouncer = Bouncer::before(&cluster, 3);
    let nodes = [0, 1].map(|_| node(&bouncer.url("books")));
    fund(&nodes[0]);
    std::thread::scope(|scope| {
        for buyer in 0..6_u128 {
            let node = &nodes[usize::try_from(buyer % 2).unwrap()];
            scope.spawn(move || {
                for n in 0..20 {
                    let tries = insist(node, &Buy::new(1000 * (buyer + 1) + n, 1, 1));
                    assert_eq!(tries, 0);
                    node.reader().all::<Bought>(None, 10).unwrap();
                }
            });
        }
    });
    let all: Vec<u128> = (1..=6).flat_map(|buyer| (0..20).map(move |n| 1000 * buyer + n)).collect();
    assert_exactly(&nodes[1], &all);
}

const SYNCHRONOUS: &[(&str, &str)] = &[
    ("synchronous_standby_names", "standby"),
    ("synchronous_commit", "remote_apply"),
    ("wal_level", "replica"),
];

/// A pair of servers by one URL: whichever takes writes is the one.
fn either(place: &Schema, first: &Cluster, second: &Cluster) -> String {
    let one = format!("127.0.0.1:{}", first.port());
    let both = format!("{one},127.0.0.1:{}", second.port());
    format!("{}&target_session_attrs=read-write", place.url().replace(&one, &both))
}

#[test]
fn heavy_a_promoted_synchronous_standby_has_every_answer() {
    let mut primary = Cluster::start(&[("wal_level", "replica")]);
    let standby = primary.standby(&[("hot_standby", "on")]);
    primary.wait_for("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", "1");
    for (name, value) in SYNCHRONOUS.iter().take(2) {
        primary.sql(&format!("ALTER SYSTEM SET {name} = '{value}'"));
    }
    primary.sql("SELECT pg_reload_conf()");
    primary.wait_for("SELECT sync_state FROM pg_stat_replication", "sync");
    let place = Schema::of(&primary);
    let nodes = [0, 1].map(|_| node(&either(&place, &primary, &standby)));
    fund(&nodes[0]);
    let promoted = AtomicBool::new(false);
    let acknowledged = std::thread::scope(|scope| {
        let buyers: Vec<_> = (0..2_u128)
            .map(|buyer| {
                let (node, promoted) = (&nodes[usize::try_from(buyer).unwrap()], &promoted);
                scope.spawn(move || {
                    let mut after = 0;
                    let mut n = 0;
                    while after < 20 {
                        let _ = insist(node, &Buy::new(10_000 * (buyer + 1) + n, 1, 1));
                        n += 1;
                        after += u32::from(promoted.load(Ordering::Relaxed));
                    }
                    (0..n).map(|n| 10_000 * (buyer + 1) + n).collect::<Vec<_>>()
                })
            })
            .collect();
        while nodes[0].reader().head().map_or(0, |head| head.seq) < 50 {
            std::thread::sleep(Duration::from_millis(10));
        }
        primary.kill();
        // The new primary has no standby, and its settings do not ask for one.
        standby.promote();
        promoted.store(true, Ordering::Relaxed);
        buyers.into_iter().flat_map(|buyer| buyer.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(acknowledged.len() > 50);
    assert_exactly(&nodes[0], &acknowledged);
    assert!(nodes.iter().all(|node| node.stopped().is_none()));
}

/// What an asynchronous standby had not received was acknowledged and is gone: nobody may go on as
/// if it had never been.
#[test]
fn a_standby_that_lost_commits_is_refused() {
    let mut primary = Cluster::start(&[("wal_level", "replica")]);
    let mut standby = primary.standby(&[("hot_standby", "on")]);
    let place = Schema::of(&primary);
    let node = node(&either(&place, &primary, &standby));
    fund(&node);
    assert!(node.submit_blocking(Buy::new(1001, 1, 1)).unwrap().first);
    let behind = primary.sql("SELECT pg_current_wal_lsn()").remove(0);
    let same = format!("SELECT pg_last_wal_replay_lsn() >= '{behind}'");
    standby.wait_for(&same, "t");
    standby.kill();
    assert!(node.submit_blocking(Buy::new(1002, 1, 1)).unwrap().first);
    primary.kill();
    standby.rise();
    standby.promote();
    let refused = node.submit_blocking(Buy::new(1003, 1, 1)).unwrap_err();
    let SubmitError::Unavailable(why) = &refused else { panic!("{refused:?}") };
    assert!(why.contains("lost what it had acknowledged"), "{why}");
    assert_eq!(node.stopped().as_deref(), Some(why.as_str()));
    // For good: a repeat is not run either.
    assert!(matches!(node.submit_blocking(Buy::new(1002, 1, 1)), Err(SubmitError::Unavailable(_))));
}
