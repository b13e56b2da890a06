//! Books on PostgreSQL: the same suite, several nodes, and what goes wrong between them and it.

use earnest_store::{Changes, OpenError, Options, Shared, Store, SubmitError};
use pg_cluster::{Cluster, Schema};

use crate::conformance::{run, shown, suite_of};
use crate::world::{self, Bought, Buy, Deposit};

#[test]
fn memory_and_postgres_agree_byte_for_byte() {
    for seed in 1..=3 {
        let place = Schema::fresh();
        suite_of(seed, || world::server(place.url()), |_| {}).unwrap();
    }
}

#[test]
fn loading_all_at_once_gives_the_same_books_there_too() {
    let place = Schema::fresh();
    let change = |options: &mut Options| {
        options.check_lock_order = false;
        options.cached = 1;
    };
    suite_of(7, || world::server(place.url()), change).unwrap();
}

/// Two nodes take turns; both show the same books, and what one remembers is never stale.
#[test]
fn two_nodes_write_one_log() {
    let (place, shared) = (Schema::fresh(), Shared::default());
    for options in
        [world::server(place.url()), Options::shared(&shared, "simulated", world::clock())]
    {
        write_one_log([options.clone(), options].map(|options| Store::open(options).unwrap()));
    }
}

fn write_one_log(nodes: [Store; 2]) {
    let memory = world::memory();
    for seed in 1..=6_u64 {
        let node = &nodes[usize::try_from(seed % 2).unwrap()];
        assert_eq!(run(node, seed, 60), run(&memory, seed, 60), "seed {seed}");
    }
    for node in &nodes {
        world::audit(node).unwrap();
        assert!(shown(node) == shown(&memory), "the books differ");
        // What a node keeps in memory follows what the other wrote, without being asked to write.
        let mut head = node.watch_head();
        while *head.borrow_and_update() < memory.reader().head().unwrap().seq {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(node.sums(), memory.sums());
    }
}

/// Whoever keeps something of the books in memory knows that it changed before a unit that came after
/// the change is answered, whichever node made it.
#[test]
fn a_change_is_counted_before_what_comes_after_it_is_answered() {
    let (place, shared) = (Schema::fresh(), Shared::default());
    for options in
        [world::server(place.url()), Options::shared(&shared, "simulated", world::clock())]
    {
        let [one, other] = [options.clone(), options].map(|options| Store::open(options).unwrap());
        assert!(one.is_shared() && other.is_shared() && !world::memory().is_shared());
        let seen = [&one, &other].map(|node| node.changes_of::<Bought>());
        let counts = || seen.each_ref().map(Changes::count);
        one.submit_blocking(Deposit { id: world::chain(1), owner: 1, amount: 10_000 }).unwrap();
        let mut before = counts();
        for n in 0..50 {
            // Only looks: nothing is written for it, and it comes after what the other bought.
            let look = Buy::new(1_000 + n, 1, 30);
            one.submit_blocking(look.clone()).unwrap();
            assert!(!other.submit_blocking(look).unwrap().first);
            let after = counts();
            assert!(after[0] > before[0] && after[1] > before[1], "{n}: {before:?} {after:?}");
            before = after;
        }
        one.submit_blocking(Deposit { id: world::chain(2), owner: 1, amount: 1 }).unwrap();
        assert_eq!(counts()[0], before[0], "rows of other kinds do not count");
    }
}

/// Whoever asks which node, a cap is one cap.
#[test]
fn a_cap_holds_across_nodes() {
    let place = Schema::fresh();
    let nodes = [0, 1].map(|_| Store::open(world::server(place.url())).unwrap());
    nodes[0].submit_blocking(Deposit { id: world::chain(1), owner: 1, amount: 10_000 }).unwrap();
    let granted: usize = std::thread::scope(|scope| {
        let one = |n: u128| {
            let node = &nodes[usize::try_from(n % 2).unwrap()];
            scope.spawn(move || {
                let mut buy = Buy::new(1000 + n, 1, 30);
                buy.cap = 100;
                usize::from(node.submit_blocking(buy).is_ok_and(|bought| bought.first))
            })
        };
        let asked: Vec<_> = (0..64).map(one).collect();
        asked.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(granted, 3);
    world::audit(&nodes[1]).unwrap();
}

#[test]
fn whose_books_they_are_is_asked_at_the_door() {
    let place = Schema::fresh();
    drop(Store::open(world::server(place.url())).unwrap());
    let mut other = world::server(place.url());
    other.mode = "live".to_owned();
    assert!(matches!(Store::open(other), Err(OpenError::OtherMode { .. })));
    place.sql("INSERT INTO earnest_schema VALUES (99)");
    let newer = Store::open(world::server(place.url()));
    assert!(matches!(newer, Err(OpenError::NewerSchema { found: 99, .. })));
    for wrong in ["postgres://h/d?sslmode=prefer", "mysql://h/d", "postgres://h:x/d"] {
        let open = Store::open(world::server(wrong));
        assert!(matches!(open, Err(OpenError::Address(_))), "{wrong}");
    }
}

/// Nodes that start at once make the schema once.
#[test]
fn many_may_open_new_books_at_once() {
    let place = Schema::fresh();
    let epochs: Vec<String> = std::thread::scope(|scope| {
        let open = |n: u32| {
            let mut options = world::server(place.url());
            options.epoch = format!("e{n}");
            scope.spawn(move || Store::open(options).unwrap().epoch().to_owned())
        };
        let opened: Vec<_> = (0..8).map(open).collect();
        opened.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(epochs.iter().all(|epoch| *epoch == epochs[0]), "{epochs:?}");
}

/// A server that stops and comes back: what was answered is there, what was not can be repeated.
#[test]
fn a_server_that_restarts_loses_no_answer() {
    let mut cluster = Cluster::start(&[]);
    let place = Schema::of(&cluster);
    let node = Store::open(world::server(place.url())).unwrap();
    node.submit_blocking(Deposit { id: world::chain(1), owner: 1, amount: 10_000 }).unwrap();
    let buy = |n: u128| Buy::new(1000 + n, 1, 30);
    assert!(node.submit_blocking(buy(1)).unwrap().first);
    let before = node.reader().head().unwrap();
    cluster.kill();
    let down = node.submit_blocking(buy(2));
    assert!(matches!(down, Err(SubmitError::Unavailable(_))), "{down:?}");
    node.reader().head().unwrap_err();
    cluster.rise();
    assert_eq!(node.reader().head().unwrap(), before);
    assert!(!node.submit_blocking(buy(1)).unwrap().first);
    assert!(node.submit_blocking(buy(2)).unwrap().first);
    world::audit(&node).unwrap();
}

/// A certificate is always verified, and to a server that wants TLS nothing goes in the clear.
#[test]
fn tls_is_verified() {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let cluster = Cluster::secure(&made.cert.pem(), &made.signing_key.serialize_pem());
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.crt");
    std::fs::write(&root, made.cert.pem()).unwrap();
    let url = cluster.url("postgres");
    let refused = |query: &str| {
        let refused = Store::open(world::server(&format!("{url}?{query}"))).err().unwrap();
        refused.to_string()
    };
    let plain = refused("sslmode=disable");
    assert!(plain.contains("pg_hba.conf"), "{plain}");
    let unknown = refused("sslmode=verify-full");
    assert!(unknown.contains("UnknownIssuer"), "{unknown}");
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let wrong = folder.path().join("wrong.crt");
    std::fs::write(&wrong, other.cert.pem()).unwrap();
    let wrong = refused(&format!("sslmode=require&sslrootcert={}", wrong.display()));
    assert!(wrong.contains("certificate"), "{wrong}");
    let secure = format!("{url}?sslmode=verify-full&sslrootcert={}", root.display());
    let node = Store::open(world::server(&secure)).unwrap();
    node.submit_blocking(Deposit { id: world::chain(1), owner: 1, amount: 1 }).unwrap();
    assert_eq!(node.reader().head().unwrap().seq, 1);
}
