//! Somebody keeps the database from its work: whoever asks is told within a bounded time, nothing is lost
//! or done twice, and the figures and an alarm name who it is.

use earnest::config::Config;
use earnest::flow::strain::{Bounds, look_beyond};
use earnest::serve::{Running, Start};
use pg_cluster::{Cluster, Schema};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::engine::url;
use crate::world::{PATIENCE, client};

/// Books on a server of this test's own, since who else uses a server is told apart by name alone.
struct Held {
    running: Running,
    place: Schema,
    cluster: Cluster,
    _data: tempfile::TempDir,
}

impl Held {
    async fn begin() -> Self {
        let cluster = Cluster::careless();
        let (place, data) = (Schema::of(&cluster), tempfile::tempdir().unwrap());
        let (database, folder) = (Some(url(&place)), Some(data.path().to_owned()));
        let config = Config { data: folder, database, ..Config::simulated() };
        let start = Start { jobs: false, vault_dev_owner: false, ..Start::default() };
        let running = Running::start(config, start).await.unwrap();
        Self { running, place, cluster, _data: data }
    }

    async fn call(&self, method: Method, path: &str) -> Response {
        let operator = self.running.dev.as_ref().unwrap().operator.key.expose();
        let request = client().request(method.clone(), format!("{}{path}", self.running.url()));
        let mut request = request.bearer_auth(operator);
        if method == Method::POST {
            request = request.header("idempotency-key", "one").json(&json!({ "name": "One" }));
        }
        request.send().await.unwrap()
    }

    async fn owners(&self) -> usize {
        let listed: Value = self.call(Method::GET, "/v1/owners").await.json().await.unwrap();
        listed["data"].as_array().unwrap().len()
    }

    /// What a figure is.
    async fn figure(&self, name: &str) -> f64 {
        let figures = self.call(Method::GET, "/metrics").await.text().await.unwrap();
        let line = figures.lines().find(|line| line.starts_with(name));
        line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a session of this name is in this state.
    fn wait_for(&self, name: &str, state: &str, many: &str) {
        let counted = "SELECT count(*) FROM pg_stat_activity WHERE application_name =";
        let asked = format!("{counted} '{name}' AND state = '{state}' AND now() > xact_start");
        self.cluster.wait_for(&asked, many);
    }

    /// What the watch tells, where anything beyond nothing is too long.
    async fn alarms(&self) -> Vec<(String, String)> {
        let bounds = Bounds { longest_seconds: 0, idle_seconds: 0, log_bytes: u64::MAX };
        look_beyond(&self.running.app, bounds).await.unwrap();
        let events = self.running.app.store.reader().events(0, 100_000).unwrap().events;
        let told = events.into_iter().filter(|event| event.event.kind.contains(".database_"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        told.map(|it| (it.event.kind.clone(), text(&it.event.data["by"]))).collect()
    }
}

/// Somebody locked the log and went to lunch.
#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_transaction_stops_writers_with_a_word_and_loses_nothing() {
    let held = Held::begin().await;
    let before = held.owners().await;
    let mut lunch = held.place.session("lunch");
    lunch.say("BEGIN; SELECT * FROM earnest_head FOR UPDATE;");
    held.wait_for("lunch", "idle in transaction", "1");
    let refused = held.call(Method::POST, "/v1/owners").await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    let why: Value = refused.json().await.unwrap();
    assert_eq!(why["code"], "database_unavailable");
    assert!(why["retryable"] == true && !why.to_string().contains("lunch"), "{why}");
    // Readers go on, and the figures say what it is.
    assert_eq!(held.owners().await, before);
    assert!(held.figure("earnest_database_idle_transaction_seconds").await >= 1.0);
    assert!(held.figure("earnest_database_oldest_transaction_seconds").await >= 1.0);
    drop(lunch);
    held.wait_for("lunch", "idle in transaction", "0");
    for _ in 0..2 {
        assert_eq!(held.call(Method::POST, "/v1/owners").await.status(), 201);
    }
    assert_eq!(held.owners().await, before + 1, "what was refused was not done, and then once");
    // Figures are looked up now and then.
    let over =
        async { while held.figure("earnest_database_idle_transaction_seconds").await > 0.0 {} };
    tokio::time::timeout(PATIENCE, over).await.expect("it is over");
    held.running.stop().await;
}

/// A transaction that is open and locks nothing, and a statement that reads for ever: nobody waits for
/// either, both hold back what the server clears away, and both are named.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_holds_a_snapshot_stops_nobody_and_is_named() {
    let held = Held::begin().await;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM earnest_log;";
    let mut idler = held.place.session("idler");
    idler.say(begin);
    held.wait_for("idler", "idle in transaction", "1");
    let mut reader = held.place.session("reader");
    reader.say(begin);
    reader.say("SELECT pg_sleep(600);");
    held.wait_for("reader", "active", "1");
    let before = held.owners().await;
    assert_eq!(held.call(Method::POST, "/v1/owners").await.status(), 201);
    assert_eq!(held.owners().await, before + 1);
    // Ages are told in whole seconds.
    let a_second = "SELECT count(*) FROM pg_stat_activity WHERE application_name IN \
                    ('idler', 'reader') AND now() > xact_start + interval '1.5 s'";
    held.cluster.wait_for(a_second, "2");
    assert!(held.figure("earnest_database_oldest_transaction_seconds").await >= 1.0);
    let told = held.alarms().await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].0, "alarm.database_held");
    // Whichever is older; they began in one second.
    assert!(["`idler`", "`reader`"].iter().any(|who| told[0].1.contains(who)), "{told:?}");
    // Said once while it lasts, whoever it is.
    drop(idler);
    held.wait_for("idler", "idle in transaction", "0");
    assert!(held.figure("earnest_database_oldest_transaction_seconds").await >= 1.0);
    assert_eq!(held.alarms().await.len(), 1);
    drop(reader);
    let gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'reader'";
    held.place.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                    WHERE application_name = 'reader'",
    );
    held.cluster.wait_for(gone, "0");
    let told = held.alarms().await;
    assert_eq!(told.last().unwrap().0, "notice.database_free", "{told:?}");
    held.running.stop().await;
}
