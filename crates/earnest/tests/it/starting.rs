//! A start that fails leaves nothing behind: no listener, no open books, no key that nobody has.

use earnest::config::Config;
use earnest::serve::{Running, Start};
use earnest_paypal::{Mode, Secret};
use reqwest::Method;
use tokio::net::TcpListener;

use crate::world::{answer, client};

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
