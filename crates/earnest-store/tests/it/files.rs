//! The file: whose it is, who may write it, how large its write-ahead log becomes, its copy.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use earnest_store::{OpenError, Options, Store, SubmitError};

use crate::world::{self, Buy, Deposit, Guard, chain};

fn refused(options: Options) -> OpenError {
    match Store::open(options) {
        Ok(_) => panic!("opened"),
        Err(why) => why,
    }
}

#[test]
fn another_mode_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(Options { epoch: "e7".into(), ..world::options(folder.path()) });
    let store = store.unwrap();
    store.submit_blocking(Deposit { id: chain(1), owner: 1, amount: 5 }).unwrap();
    drop(store);
    let live = Options { mode: "live".into(), ..world::options(folder.path()) };
    let why = refused(live).to_string();
    assert!(why.ends_with("holds the books of mode `simulated`, not `live`"), "{why}");
    // The books keep the epoch they were made with.
    let again = world::sqlite(folder.path());
    assert_eq!((again.epoch(), again.mode()), ("e7", "simulated"));
    assert_eq!(again.reader().head().unwrap().seq, 1);
}

/// Holds the lock in another process: see `files::holds_the_lock`.
#[test]
fn a_second_writer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = world::sqlite(folder.path());
    assert!(matches!(refused(world::options(folder.path())), OpenError::InUse(_)));
    let mut child = crate::crash::child("files::opens_in_a_child", folder.path());
    let said = crate::crash::lines(&mut child).next().unwrap();
    assert!(said.ends_with("is in use by another process"), "{said}");
    child.wait().unwrap();
    drop(store);
    let mut child = crate::crash::child("files::opens_in_a_child", folder.path());
    assert_eq!(crate::crash::lines(&mut child).next().unwrap(), "opened");
    child.wait().unwrap();
}

#[test]
fn opens_in_a_child() {
    let Some(folder) = crate::crash::as_child() else { return };
    match Store::open(world::options(&folder)) {
        Ok(_) => println!("\n> opened"),
        Err(why) => println!("\n> {why}"),
    }
}

#[test]
fn a_file_of_something_else_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("books.db");
    fs::write(&path, vec![b'x'; 5000]).unwrap();
    assert!(matches!(refused(world::options(folder.path())), OpenError::NotOurs(_)));
    assert_eq!(fs::read(&path).unwrap(), vec![b'x'; 5000]);
    fs::remove_file(&path).unwrap();
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute_batch("CREATE TABLE theirs (x)").unwrap();
    assert!(matches!(refused(world::options(folder.path())), OpenError::NotOurs(_)));
    let mode: String = raw.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "delete");
}

/// One that is in use: its log is not even written again as it is, which its owner may be writing.
#[test]
fn a_log_of_something_else_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("books.db");
    let theirs = rusqlite::Connection::open(&path).unwrap();
    theirs.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())).unwrap();
    theirs.execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)").unwrap();
    let log = folder.path().join("books.db-wal");
    let long_ago = std::time::UNIX_EPOCH;
    let written = || [&path, &log].map(|path| fs::metadata(path).unwrap().modified().unwrap());
    for path in [&path, &log] {
        fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
    }
    let bytes = || [&path, &log].map(|path| fs::read(path).unwrap());
    let before = bytes();
    assert!(matches!(refused(world::options(folder.path())), OpenError::NotOurs(_)));
    assert_eq!(written(), [long_ago; 2]);
    assert!(bytes() == before);
    let count: i64 = theirs.query_row("SELECT count(*) FROM theirs", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 1);
}

#[test]
fn a_later_schema_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(world::sqlite(folder.path()));
    let raw = rusqlite::Connection::open(folder.path().join("books.db")).unwrap();
    raw.pragma_update(None, "user_version", 1000).unwrap();
    let why = refused(world::options(folder.path()));
    assert!(matches!(why, OpenError::TooNew { found: 1000, .. }), "{why}");
}

#[test]
fn books_that_do_not_add_up_are_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let store = world::sqlite(folder.path());
    store.submit_blocking(Deposit { id: chain(1), owner: 1, amount: 5 }).unwrap();
    drop(store);
    let raw = rusqlite::Connection::open(folder.path().join("books.db")).unwrap();
    raw.execute_batch("UPDATE accounts SET debits_posted = 6 WHERE debits_posted = 5").unwrap();
    let why = refused(world::options(folder.path()));
    assert!(matches!(why, OpenError::Damaged(_)), "{why}");
}

#[test]
fn only_the_owner_may_read_the_files() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("deep").join("data");
    let store = world::sqlite(&folder);
    store.submit_blocking(Deposit { id: chain(1), owner: 1, amount: 5 }).unwrap();
    store.backup_to(folder.join("copy.db")).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let mut seen = 0;
    for file in fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        seen += 1;
    }
    // The database, its write-ahead log and shared memory, the lock, the copy.
    assert_eq!(seen, 5);
}

#[test]
fn the_write_ahead_log_stays_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        wal_soft_bytes: 64 << 10,
        wal_hard_bytes: 1 << 20,
        ..world::options(folder.path())
    };
    let store = Store::open(options).unwrap();
    let wal = folder.path().join("books.db-wal");
    store.submit_blocking(Deposit { id: chain(1 << 90), owner: 1, amount: 1 << 30 }).unwrap();
    let mut next = 1_u128;
    let mut work = |times: u32| -> Result<u64, SubmitError> {
        let mut longest = 0;
        for _ in 0..times {
            store.submit_blocking(Buy::new(next, 1, 1))?;
            next += 1;
            longest = longest.max(fs::metadata(&wal).unwrap().len());
        }
        Ok(longest)
    };
    // Left alone it is folded soon after the soft bound.
    let longest = work(300).unwrap();
    assert!(longest < 256 << 10, "{longest} bytes");
    // Somebody outside reads and does not end: work goes on up to the hard bound, then stops.
    let reader = rusqlite::Connection::open(folder.path().join("books.db")).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM log;").unwrap();
    let stopped = work(2_000).unwrap_err();
    assert!(matches!(&stopped, SubmitError::Unavailable(why) if why.contains("a reader keeps")));
    let length = fs::metadata(&wal).unwrap().len();
    assert!(length < (1 << 20) + (256 << 10), "{length} bytes");
    assert_eq!(store.reader().strain().unwrap().log_bytes, length, "it is seen how long it is");
    // Reading goes on; and when they end, so does writing.
    assert!(store.reader().row::<Guard>(world::owner(1)).unwrap().is_some());
    reader.execute_batch("COMMIT").unwrap();
    work(50).unwrap();
    world::audit(&store).unwrap();
}

#[test]
fn a_copy_is_whole_and_opens() {
    let folder = tempfile::tempdir().unwrap();
    let store = world::sqlite(folder.path());
    store.submit_blocking(Deposit { id: chain(900), owner: 1, amount: 100 }).unwrap();
    store.submit_blocking(Buy::new(1, 1, 5)).unwrap();
    let copy = folder.path().join("copies").join("one.db");
    assert!(store.backup_to(&copy).is_err(), "no such folder");
    fs::create_dir(copy.parent().unwrap()).unwrap();
    store.backup_to(&copy).unwrap();
    assert!(store.backup_to(&copy).is_err(), "a copy is never overwritten");
    let head = store.reader().head().unwrap();
    store.submit_blocking(Buy::new(2, 1, 5)).unwrap();
    let audit = earnest_store::audit::Audit::new().run_file(&copy).unwrap();
    assert_eq!(audit, vec![]);
    let copied = Store::open(Options::file(&copy, "simulated", world::clock())).unwrap();
    assert_eq!(copied.reader().head().unwrap(), head);
    copied.submit_blocking(Buy::new(3, 1, 5)).unwrap();
    let left: Vec<_> = fs::read_dir(copy.parent().unwrap()).unwrap().collect();
    assert!(left.iter().all(|f| !f.as_ref().unwrap().path().ends_with("one.db.partial")));
}
