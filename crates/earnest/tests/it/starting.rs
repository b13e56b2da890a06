//! A start that fails leaves nothing behind: no listener, no open books, no key that nobody has.

use earnest::config::Config;
use earnest::first::DevKeys;
use earnest::serve::{Running, Start};
use earnest_paypal::{Mode, Secret};
use reqwest::Method;
use tokio::net::TcpListener;

use crate::world::{PATIENCE, answer, client, own_address};

/// Starts where a file of keys cannot be written, then where it can; `whose` is asked with what the
/// file then holds.
async fn keys_that_cannot_be_written(mode: Mode, file: &str, key_in: fn(&str) -> String) {
    let dir = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = Config {
        mode,
        data: Some(dir.path().to_owned()),
        listen: port.local_addr().unwrap(),
        client_id: Some("id".to_owned()),
        secret: Some(Secret::new("secret")),
        ..Config::simulated()
    };
    drop(port);
    let start = || Start { jobs: false, vault_dev_owner: false, ..Start::default() };
    let path = dir.path().join(file);
    // What stands in the way of the file before it gets its name; then of the name.
    for blocked in [path.with_extension("new"), path.clone()] {
        std::fs::create_dir(&blocked).unwrap();
        let failed = Running::start(config.clone(), start()).await;
        let why = failed.err().expect("no start without its keys").to_string();
        assert!(why.contains(&*path.display().to_string()), "{why}");
        // Nobody listens, and the books are closed: the next start finds both free.
        TcpListener::bind(config.listen).await.expect("the address is free again");
        std::fs::remove_dir(&blocked).unwrap();
    }
    let running = Running::start(config.clone(), start()).await.unwrap();
    let ask = async |running: &Running, key: &str| {
        let url = format!("{}/v1/owners", running.url());
        answer(client().request(Method::GET, url).bearer_auth(key)).await.status
    };
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(ask(&running, &key_in(&text)).await, 200, "{text}");
    running.stop().await;

    // Written, and then the power went: the next start makes that very key count.
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("earnest.db") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    let running = Running::start(config.clone(), start()).await.unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    assert_eq!(ask(&running, &key_in(&text)).await, 200);
    running.stop().await;
}

#[tokio::test]
async fn the_first_operator_key_is_lost_by_no_failed_start() {
    let whole = |text: &str| text.trim().to_owned();
    keys_that_cannot_be_written(Mode::Sandbox, "operator.key", whole).await;
}

#[tokio::test]
async fn development_keys_are_lost_by_no_failed_start() {
    let operator = |text: &str| {
        let keys: serde_json::Value = serde_json::from_str(text).unwrap();
        keys["operator"]["key"].as_str().unwrap().to_owned()
    };
    keys_that_cannot_be_written(Mode::Simulated, "dev-keys.json", operator).await;
}

/// Whoever is told that it is ready may ask: every key of `dev-keys.json` counts by then.
#[tokio::test]
async fn ready_means_that_keys_count() {
    let dir = tempfile::tempdir().unwrap();
    // An address of its own, so that nobody takes the port between our look and its own.
    let free = std::net::TcpListener::bind(own_address()).unwrap();
    let (data, address) = (dir.path().join("data"), free.local_addr().unwrap());
    drop(free);
    let mut earnest = tokio::process::Command::new(env!("CARGO_BIN_EXE_earnest"))
        .args(["up", "--data", data.to_str().unwrap(), "--listen", &address.to_string()])
        .env_remove("EARNEST_CONFIG")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (http, url) = (client(), format!("http://{address}"));
    let ready = async {
        loop {
            let answer = http.get(format!("{url}/readyz")).send().await;
            if answer.is_ok_and(|answer| answer.status() == 200) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, ready).await.expect("it is ready in time");
    let keys = std::fs::read_to_string(data.join("dev-keys.json")).unwrap();
    let keys: DevKeys = serde_json::from_str(&keys).unwrap();
    for key in [&keys.operator, &keys.owner, &keys.agent, &keys.seller] {
        let path = if key.id.starts_with("sel_") { "/v1/purchases" } else { "/v1/tabs" };
        let asked = http.get(format!("{url}{path}")).bearer_auth(key.key.expose()).send().await;
        assert_ne!(asked.unwrap().status(), 401, "{}", key.id);
    }
    earnest.kill().await.unwrap();
}
