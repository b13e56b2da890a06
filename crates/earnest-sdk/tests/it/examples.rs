//! The two examples, as a reader would run them.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::earnest::{AGENT_KEY, Earnest, SELLER, SELLER_KEY};
use crate::shop::bind;

/// Kills and reaps the child also when the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ended_before = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Built beside this test, unless somebody built the test alone.
fn example(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let path = test.parent()?.parent()?.join("examples").join(name);
    if !path.exists() {
        eprintln!("skipped: {} was not built", path.display());
        return None;
    }
    Some(path)
}

struct Stage {
    earnest: Earnest,
    folder: tempfile::TempDir,
    origin: String,
    _api: Killed,
}

async fn stage(api: PathBuf) -> Stage {
    let earnest = Earnest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("seller.key"), format!("{SELLER_KEY}\n")).unwrap();
    std::fs::write(file("agent.key"), format!("{AGENT_KEY}\n")).unwrap();
    let mut child = Killed(
        Command::new(api)
            .arg("127.0.0.1:0")
            .env("EARNEST_URL", &earnest.url)
            .env("EARNEST_SELLER_ID", SELLER)
            .env("EARNEST_SELLER_KEY_FILE", file("seller.key"))
            .env("NONCE_FILE", file("nonces.db"))
            .env_remove("PUBLIC_ORIGIN")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut line = String::new();
    BufReader::new(child.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let origin = line.split([' ', ',']).find(|word| word.starts_with("http://"));
    let origin = origin.unwrap_or_else(|| panic!("no origin in {line:?}")).to_owned();
    Stage { earnest, folder, origin, _api: child }
}

impl Stage {
    async fn agent(&self, agent: &PathBuf, more: &[(&str, &str)]) -> String {
        let mut command = Command::new(agent);
        command
            .args([self.origin.as_str(), "how is Delft?"])
            .env("EARNEST_URL", &self.earnest.url)
            .env("EARNEST_AGENT_KEY_FILE", self.folder.path().join("agent.key"))
            .env("MAX_PRICE", "$1.00")
            .env_remove("OPENAI_BASE_URL")
            .env_remove("EARNEST_MODEL")
            .envs(more.iter().copied());
        let run = tokio::task::spawn_blocking(move || command.output());
        let output = run.await.unwrap().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scripted_agent_buys_from_the_paid_api() {
    let (Some(api), Some(agent)) = (example("paid_api"), example("research_agent")) else { return };
    let stage = stage(api).await;
    let said = stage.agent(&agent, &[]).await;
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("/weather/delft: 200 OK, paid $0.10: {"), "{said}");
    assert!(lines[2].starts_with("/report/delft: 200 OK, paid $0.25: {"), "{said}");
    assert!(lines[3].starts_with("/archive: not bought (price_above_max)"), "{said}");
    stage.earnest.until("three lines", |books| books.outstanding() == 450_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_drives_the_agent_through_one_tool() {
    let (Some(api), Some(agent)) = (example("paid_api"), example("research_agent")) else { return };
    let stage = stage(api).await;
    let turn = Arc::new(AtomicUsize::new(0));
    let turns = Arc::clone(&turn);
    let chat = move |Json(body): Json<Value>| async move {
        let messages = body["messages"].as_array().unwrap().clone();
        let call = |path: &str| {
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": "call_1",
                "type": "function", "function": {"name": "buy", "arguments": path}}]})
        };
        let message = match turns.fetch_add(1, Ordering::SeqCst) {
            0 => call(r#"{"path":"/weather/delft"}"#),
            1 => call("this is no JSON"),
            _ => {
                let told: Vec<_> = messages.iter().filter(|m| m["role"] == "tool").collect();
                assert!(told[0]["content"].as_str().unwrap().contains("paid $0.10"));
                assert!(told[1]["content"].as_str().unwrap().contains("needs a `path`"));
                json!({"role": "assistant", "content": "It is clear in Delft."})
            }
        };
        Json(json!({"choices": [{"message": message}]}))
    };
    let (listener, origin) = bind().await;
    let app = Router::new().route("/v1/chat/completions", post(chat));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let base = format!("{origin}/v1");
    let more = [("OPENAI_BASE_URL", base.as_str()), ("EARNEST_MODEL", "any")];
    assert_eq!(stage.agent(&agent, &more).await, "It is clear in Delft.\n");
    assert_eq!(turn.load(Ordering::SeqCst), 3);
    stage.earnest.until("one line", |books| books.outstanding() == 100_000).await;
}
