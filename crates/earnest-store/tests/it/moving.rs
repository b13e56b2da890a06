//! Books that move to another place and back: the same books, and nobody writes the old ones.

use std::path::Path;

use earnest_store::{MoveError, OpenError, Options, Store, SubmitError, arrive};
use pg_cluster::{Cluster, Schema};

use crate::conformance::{run, shown};
use crate::world::{self, Buy, Deposit};

fn file(folder: &Path, name: &str) -> Options {
    Options::file(folder.join(name), "simulated", world::clock())
}

fn with_epoch(mut options: Options, epoch: &str) -> Options {
    options.epoch = epoch.to_owned();
    options
}

#[test]
fn there_and_back_they_are_the_same_books() {
    let folder = tempfile::tempdir().unwrap();
    let (first, place) = (tempfile::tempdir().unwrap(), Schema::fresh());
    let store = Store::open(file(first.path(), "books.db")).unwrap();
    run(&store, 3, 300);
    let before = shown(&store);
    let copied = store.move_to(&with_epoch(world::server(place.url()), "e2")).unwrap();
    assert_eq!(copied.entries, store.reader().head().unwrap().seq);
    let gone = store.submit_blocking(Buy::new(1 << 40, 1, 1)).unwrap_err();
    let SubmitError::Unavailable(why) = &gone else { panic!("{gone:?}") };
    assert!(why.contains("moved to postgres://"), "{why}");
    assert_eq!(store.stopped().as_deref(), Some(why.as_str()));
    drop(store);
    let again = Store::open(file(first.path(), "books.db")).err().unwrap();
    assert!(matches!(again, OpenError::Moved { .. }), "{again}");

    let server = Store::open(world::server(place.url())).unwrap();
    assert_eq!(server.epoch(), "e2");
    assert!(shown(&server) == before, "the books differ");
    world::audit(&server).unwrap();
    run(&server, 4, 100);
    let before = shown(&server);
    // Another node, which is told of it when it wants to write.
    let other = Store::open(world::server(place.url())).unwrap();
    let idle = Store::open(world::server(place.url())).unwrap();
    server.move_to(&with_epoch(file(folder.path(), "back.db"), "e3")).unwrap();
    // Or just looks: what it would show is kept elsewhere by now.
    while idle.stopped().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let gone = other.submit_blocking(Buy::new(1 << 41, 1, 1)).unwrap_err();
    assert!(gone.to_string().contains("moved to"), "{gone}");
    assert!(matches!(Store::open(world::server(place.url())), Err(OpenError::Moved { .. })));

    let back = Store::open(file(folder.path(), "back.db")).unwrap();
    assert_eq!(back.epoch(), "e3");
    assert!(shown(&back) == before, "the books differ");
    world::audit(&back).unwrap();
    // Words that came after the move have numbers of their own.
    run(&back, 5, 100);
    world::audit(&back).unwrap();
}

#[test]
fn books_are_moved_only_to_where_there_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let place = Schema::fresh();
    let theirs = Store::open(world::server(place.url())).unwrap();
    theirs.submit_blocking(Deposit { id: world::chain(9), owner: 1, amount: 5 }).unwrap();
    let before = shown(&theirs);
    let store = Store::open(file(folder.path(), "books.db")).unwrap();
    run(&store, 3, 50);
    let refused = store.move_to(&world::server(place.url())).unwrap_err();
    assert!(matches!(refused, MoveError::Open(OpenError::NotEmpty(_))), "{refused}");
    let mut live = world::server(place.url());
    live.mode = "live".to_owned();
    let refused = store.move_to(&live).unwrap_err();
    assert!(matches!(refused, MoveError::Open(OpenError::OtherMode { .. })), "{refused}");
    assert!(shown(&theirs) == before, "somebody's books changed");
    // Nothing happened to those that were to be moved.
    assert!(store.stopped().is_none());
    store.submit_blocking(Deposit { id: world::chain(9), owner: 1, amount: 5 }).unwrap();
}

/// Cut off before the old books were marked: they are the books, and moving starts over. Cut off
/// after: the copy is the books, once its mark is taken off.
#[test]
fn a_move_that_was_cut_off_is_ended_or_starts_over() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::careless();
    let place = Schema::of(&cluster);
    let store = Store::open(file(folder.path(), "books.db")).unwrap();
    run(&store, 3, 100);
    let before = shown(&store);
    // What a copy leaves that was committed, and whose books were not marked.
    drop(Store::open(world::server(place.url())).unwrap());
    place.sql("INSERT INTO earnest_meta VALUES ('arriving', 'yes')");
    place.sql("INSERT INTO earnest_words VALUES (1, 'left'), (2, 'over')");
    place.sql("UPDATE earnest_head SET seq = 7");
    let arriving = Store::open(world::server(place.url())).err().unwrap();
    assert!(matches!(arriving, OpenError::Arriving(_)), "{arriving}");
    store.move_to(&world::server(place.url())).unwrap();
    // As if the last step had not come.
    place.sql("INSERT INTO earnest_meta VALUES ('arriving', 'yes')");
    assert!(matches!(Store::open(world::server(place.url())), Err(OpenError::Arriving(_))));
    arrive(&world::server(place.url())).unwrap();
    let server = Store::open(world::server(place.url())).unwrap();
    assert!(shown(&server) == before, "the books differ");
}

/// A server that goes away in the middle leaves the old books as they were.
#[test]
fn a_server_that_ends_meanwhile_leaves_the_old_books_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::careless();
    let place = Schema::of(&cluster);
    let store = Store::open(file(folder.path(), "books.db")).unwrap();
    run(&store, 3, 100);
    drop(Store::open(world::server(place.url())).unwrap());
    // Whatever is written to the log's table ends the session that writes it.
    place.sql(
        "CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END'",
    );
    place.sql(
        "CREATE TRIGGER gone BEFORE INSERT ON earnest_log FOR EACH ROW EXECUTE FUNCTION gone()",
    );
    let failed = store.move_to(&world::server(place.url())).unwrap_err();
    assert!(matches!(failed, MoveError::Failed(_)), "{failed}");
    assert!(store.stopped().is_none());
    store.submit_blocking(Deposit { id: world::chain(1 << 90), owner: 1, amount: 5 }).unwrap();
    place.sql("DROP TRIGGER gone ON earnest_log");
    store.move_to(&world::server(place.url())).unwrap();
    cluster.kill();
}
