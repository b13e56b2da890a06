//! Earnest on a PostgreSQL database: what nodes must have in common, what stops one, what is shown of
//! the address, and what commands leave behind.

use earnest::config::Config;
use earnest::serve::{Running, Start, StartError};
use earnest_core::party::Owner;
use earnest_paypal::{Mode, Secret};
use earnest_store::Url;
use pg_cluster::Schema;
use serde_json::Value;

use crate::cli::{earnest, run};
use crate::engine::url;
use crate::world::{PATIENCE, client};

fn start() -> Start {
    Start { jobs: false, vault_dev_owner: false, ..Start::default() }
}

fn config(place: &Schema, data: &std::path::Path) -> Config {
    let (data, database) = (Some(data.to_owned()), Some(url(place)));
    Config { data, database, ..Config::simulated() }
}

async fn ask(running: &Running, path: &str, key: &str) -> (u16, Value) {
    let request = client().get(format!("{}{path}", running.url())).bearer_auth(key);
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_need_the_key_file_of_the_first() {
    let (place, dir) = (Schema::fresh(), tempfile::tempdir().unwrap());
    let [first, second] = ["first", "second"].map(|name| dir.path().join(name));
    let one = Running::start(config(&place, &first), start()).await.unwrap();
    let refused = async |data: &std::path::Path| {
        let failed = Running::start(config(&place, data), start()).await;
        let why = failed.err().expect("it has no key that opens anything");
        assert!(matches!(why, StartError::SharedKey { .. }), "{why}");
        why.to_string()
    };
    let missing = refused(&second).await;
    assert!(missing.contains("second/seal.key` is missing"), "{missing}");
    assert!(!second.join("seal.key").exists(), "none was made");
    earnest::sealed::make_key_file(&second.join("seal.key")).unwrap();
    assert!(refused(&second).await.contains("is not the key file of these books"));

    std::fs::copy(first.join("seal.key"), second.join("seal.key")).unwrap();
    let two = Running::start(config(&place, &second), start()).await.unwrap();
    assert!(two.dev.is_none(), "the first node's keys count here, too");
    assert!(!second.join("dev-keys.json").exists());
    let key = one.dev.as_ref().unwrap().operator.key.expose().to_owned();
    for node in [&one, &two] {
        assert_eq!(ask(node, "/v1/owners", &key).await.0, 200);
    }
    let jwks = async |node: &Running| ask(node, "/.well-known/jwks.json", "").await.1;
    assert_eq!(jwks(&one).await, jwks(&two).await);
    assert_eq!(one.app.store.epoch(), two.app.store.epoch());
    assert_eq!(one.app.store.reader().every::<Owner>().unwrap().len(), 1);
    one.stop().await;
    two.stop().await;
}

/// Of several nodes that begin at once with one key file, one makes the signing keys.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_begin_at_once_have_one_set_of_keys() {
    let (place, dir) = (Schema::fresh(), tempfile::tempdir().unwrap());
    let key_file = dir.path().join("seal.key");
    earnest::sealed::make_key_file(&key_file).unwrap();
    let node = |name: &str| {
        let config =
            Config { key_file: Some(key_file.clone()), ..config(&place, &dir.path().join(name)) };
        Running::start(config, start())
    };
    let (one, two, three) = tokio::join!(node("one"), node("two"), node("three"));
    for node in [one, two, three] {
        let node = node.unwrap();
        assert_eq!(node.app.keys().jwks.keys.len(), 2, "a voucher's and a receipt's");
        node.stop().await;
    }
}

/// A database that lost what it had acknowledged, or whose books went elsewhere: nothing of it is
/// served, and `/readyz` says why.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_books_lost_is_not_served() {
    let cut = "DELETE FROM earnest_log WHERE seq = (SELECT seq FROM earnest_head); \
               UPDATE earnest_head SET (seq, at, hash) = \
               (SELECT seq, at, hash FROM earnest_log ORDER BY seq DESC LIMIT 1)";
    let moved = "INSERT INTO earnest_meta VALUES ('moved', 'postgres://elsewhere:5432/books')";
    for (done, why) in [(cut, "lost what it had acknowledged"), (moved, "moved to")] {
        let (place, dir) = (Schema::fresh(), tempfile::tempdir().unwrap());
        let running = Running::start(config(&place, dir.path()), start()).await.unwrap();
        let key = running.dev.as_ref().unwrap().operator.key.expose().to_owned();
        assert_eq!(ask(&running, "/readyz", "").await.0, 200);
        place.sql(done);
        let said = async {
            loop {
                let (status, body) = ask(&running, "/readyz", "").await;
                let detail = body["detail"].as_str().unwrap_or_default().to_owned();
                if status == 503 && detail.contains(why) {
                    return body;
                }
            }
        };
        let body = tokio::time::timeout(PATIENCE, said).await.expect("it notices");
        assert_eq!(body["code"], "database_unavailable");
        let (status, body) = ask(&running, "/v1/owners", &key).await;
        assert_eq!((status, &body["code"]), (503, &"database_unavailable".into()));
        assert_eq!(ask(&running, "/healthz", "").await.0, 200, "the process is well");
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn books_of_one_mode_are_no_others() {
    let (place, dir) = (Schema::fresh(), tempfile::tempdir().unwrap());
    Running::start(config(&place, dir.path()), start()).await.unwrap().stop().await;
    let config = Config {
        mode: Mode::Sandbox,
        client_id: Some("id".to_owned()),
        secret: Some(Secret::new("secret")),
        ..config(&place, dir.path())
    };
    let why = Running::start(config, start()).await.err().unwrap().to_string();
    assert!(why.contains("holds the books of mode `simulated`, not `sandbox`"), "{why}");
}

/// The password is in no output of ours, whatever is wrong with the rest.
#[tokio::test(flavor = "multi_thread")]
async fn the_password_of_a_database_is_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let with = |words: &[&str], address: &str| {
        let mut command = earnest(dir.path());
        command.args(words).env("EARNEST_DATABASE", address);
        run(command)
    };
    let good = "postgres://books:hunter2@127.0.0.1:1/books?application_name=x";
    for (words, address) in [
        (&["config", "show", "--origin"] as &[&str], good),
        (&["up", "--help"], good),
        (&["up", "--listen", "127.0.0.1:0"], good),
        (&["audit", "--json"], good),
        (&["backup", "copy"], good),
        (&["demo", "--fast"], good),
        (&["audit"], "postgres://books:hunter2@127.0.0.1:port/books"),
        (&["audit"], "mysql://books:hunter2@127.0.0.1/books"),
        (&["audit"], "postgres://h/books?port=hunter2"),
        (&["audit"], "postgres://127.0.0.1:1/books?password=hunter2"),
    ] {
        let ran = with(words, address).await;
        assert!(!ran.out.contains("hunter2") && !ran.err.contains("hunter2"), "{words:?} {ran:?}");
        assert!(!ran.out.is_empty() || !ran.err.is_empty(), "{words:?}: nothing was said");
    }
    let shown = with(&["config", "show", "--origin"], good).await.expect(0).out;
    let line = shown.lines().find(|line| line.contains("data.database")).unwrap();
    assert!(line.contains("books:[not shown]@") && line.contains("EARNEST_DATABASE"), "{line}");

    // In a settings file it has no place: it has a file of its own.
    let file = |text: &str| std::fs::write(dir.path().join("earnest.toml"), text).unwrap();
    let show = || {
        let mut command = earnest(dir.path());
        command.args(["config", "show"]);
        run(command)
    };
    file("[data]\ndatabase = \"postgres://books:hunter2@h/books\"\n");
    let refused = show().await.expect(2);
    assert!(refused.err.contains("database_password_file"), "{}", refused.err);
    assert!(!refused.err.contains("hunter2"), "{}", refused.err);
    std::fs::write(dir.path().join("password"), "hunter2\n").unwrap();
    file(
        "[data]\ndatabase = \"postgres://books@h/books\"\ndatabase_password_file = \"password\"\n",
    );
    let shown = show().await.expect(0);
    assert!(shown.out.contains("postgres://books@h/books") && !shown.out.contains("hunter2"));
}

/// A password that stands in a file of its own is the one that is used.
#[test]
fn a_password_of_its_own_file_joins_the_address() {
    let dir = tempfile::tempdir().unwrap();
    let [settings, password] = ["earnest.toml", "password"].map(|name| dir.path().join(name));
    std::fs::write(&password, "pass word\n").unwrap();
    let text = format!(
        "[data]\ndatabase = \"postgres://books@h/books\"\ndatabase_password_file = {:?}\n",
        password.display()
    );
    std::fs::write(&settings, text).unwrap();
    let overrides = earnest::config::Overrides {
        file: Some(settings),
        ..earnest::config::Overrides::default()
    };
    let config = Config::load(overrides.clone()).unwrap();
    assert_eq!(config.database.unwrap().expose(), "postgres://books:pass%20word@h/books");
    // What a flag says comes first.
    let flag = Url::parse("postgres://other:word@i/books").unwrap();
    let overrides = earnest::config::Overrides { database: Some(flag.clone()), ..overrides };
    assert_eq!(Config::load(overrides).unwrap().database, Some(flag));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demonstration_leaves_no_schema_behind() {
    let place = Schema::fresh();
    let dir = tempfile::tempdir().unwrap();
    let mut command = earnest(dir.path());
    command.args(["demo", "--fast", "--json", "--database", place.url()]).env("TMPDIR", dir.path());
    let ran = run(command).await.expect(0);
    assert_eq!(ran.json()["tab"]["captured"], "0.95");
    let schemas = place.sql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'earnest_demo%'");
    assert!(schemas.is_empty(), "{schemas:?}");
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()";
    assert_eq!(place.sql(tables), ["0"], "and nothing in ours");
}

/// What looks at books from outside makes none.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_database_stays_empty() {
    let place = Schema::fresh();
    let dir = tempfile::tempdir().unwrap();
    for words in [&["audit", "--json"] as &[&str], &["treasurer", "replay", "--books", "--json"]] {
        let mut command = earnest(dir.path());
        command.args(words).env("EARNEST_DATABASE", place.url());
        let ran = run(command).await.expect(3);
        assert_eq!(ran.refusal(), "not_found", "{words:?}");
    }
    let mut command = earnest(dir.path());
    command.args(["backup", "copy", "--json"]).env("EARNEST_DATABASE", place.url());
    assert!(run(command).await.expect(1).err.contains("there are no books"));
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()";
    assert_eq!(place.sql(tables), ["0"]);
}
