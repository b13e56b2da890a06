//! `earnest mcp`: the program itself, its stdin and stdout.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{LEGACY, sound};
use crate::shop::Shop;
use crate::world::PATIENCE;

/// A client at the other end.
struct Pipe {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Pipe {
    /// Starts the program and shakes hands; `able` is what the client says it can do.
    async fn open(shop: &Shop, able: Value) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_earnest"));
        command
            .arg("mcp")
            .env_remove("EARNEST_AGENT_KEY_FILE")
            .env("EARNEST_URL", shop.world.earnest.url())
            .env("EARNEST_AGENT_KEY", shop.world.key("agent"));
        Self::start(command, able).await
    }

    async fn start(mut command: Command, able: Value) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut pipe = Self { child, input, output };
        let hello = json!({
            "protocolVersion": LEGACY, "capabilities": able,
            "clientInfo": { "name": "test", "version": "0" },
        });
        let answer = pipe.ask(1, "initialize", hello).await;
        assert_eq!(answer["result"]["serverInfo"]["name"], "earnest");
        pipe.send(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        pipe
    }

    async fn send(&mut self, message: Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.output.next_line()).await;
        serde_json::from_str(&line.expect("an answer in time").unwrap().unwrap()).unwrap()
    }

    async fn ask(&mut self, id: u32, method: &str, params: Value) -> Value {
        self.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        let answer = self.next().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    async fn fetch(&mut self, id: u32, url: &str, request_id: &str) -> Value {
        let arguments = json!({ "url": url, "max_price": "$1", "request_id": request_id });
        let params = json!({ "name": "paid_fetch", "arguments": arguments });
        let answer = self.ask(id, "tools/call", params).await;
        sound("paid_fetch", &answer)["structuredContent"].clone()
    }

    /// The client hangs up; the program ends by itself.
    async fn close(self) {
        let Self { mut child, input, output } = self;
        drop((input, output));
        let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
        assert!(ended.expect("it ends in time").unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_buys_over_a_pipe_and_waits_for_its_owner() {
    let shop = Shop::open().await;
    let mut pipe = Pipe::open(&shop, json!({})).await;
    let bought = pipe.fetch(2, &shop.url("/weather"), "w").await;
    assert_eq!((&bought["status"], &bought["body"]), (&json!("paid"), &json!(r#"{"sky":"blue"}"#)));
    let asked = pipe.fetch(3, &shop.url("/dear"), "d").await;
    assert_eq!(asked["status"], "approval_required", "{asked}");
    let approval = asked["approval_id"].as_str().unwrap().to_owned();
    shop.world.answer_approval(&approval, "approve").await;
    assert_eq!(pipe.fetch(4, &shop.url("/dear"), "d").await["status"], "paid");
    let big = pipe.fetch(5, &shop.url("/big"), "b").await;
    let read = pipe.ask(6, "resources/read", json!({ "uri": big["body_uri"] })).await;
    let text = read["result"]["contents"][0]["text"].as_str().unwrap();
    assert_eq!(earnest_core::quote::body_digest(text.as_bytes()), big["body_sha256"]);
    pipe.close().await;
    assert_eq!(shop.close().await, (340_000, 0));
}

/// A client of the era with a handshake that can open addresses is asked to, over the pipe.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_a_handshake_is_asked_to_open_the_address() {
    let shop = Shop::open().await;
    let mut pipe = Pipe::open(&shop, json!({ "elicitation": { "form": {}, "url": {} } })).await;
    let arguments = json!({ "url": shop.url("/dear"), "max_price": "$1", "request_id": "d" });
    let params = json!({ "name": "paid_fetch", "arguments": arguments });
    let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params });
    pipe.send(call).await;
    let question = pipe.next().await;
    assert_eq!(question["method"], "elicitation/create", "{question}");
    assert_eq!(question["params"]["mode"], "url");
    let approval = question["params"]["elicitationId"].as_str().unwrap();
    assert!(question["params"]["url"].as_str().unwrap().ends_with(approval));
    shop.world.answer_approval(approval, "approve").await;
    let answer =
        json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept" } });
    pipe.send(answer).await;
    let bought = sound("paid_fetch", &pipe.next().await);
    assert_eq!(bought["structuredContent"]["status"], "paid");
    pipe.close().await;
    assert_eq!(shop.close().await, (300_000, 0));
}

/// What a client reads in the block: a command, its arguments, its environment.
fn server_in(client: &str, block: &str) -> Value {
    let (block, servers): (Value, _) = match client {
        "codex" => {
            (serde_json::to_value(block.parse::<toml::Table>().unwrap()).unwrap(), "mcp_servers")
        }
        _ => (serde_json::from_str(block).unwrap(), "mcpServers"),
    };
    block[servers]["earnest"].clone()
}

/// `earnest mcp config`, run in a folder with a key in `agent.key`.
async fn config(folder: &Path, url: &str, words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_earnest"));
    command.args(["mcp", "config"]).args(words).current_dir(folder).kill_on_drop(true);
    command.env_remove("EARNEST_AGENT_KEY_FILE").env("EARNEST_URL", url).stdin(Stdio::null());
    let ended = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (ended.status.code(), text(ended.stdout), text(ended.stderr))
}

/// The block works where it is pasted, from any folder and without a search path; it names where the
/// key is and not the key.
#[tokio::test(flavor = "multi_thread")]
async fn the_printed_block_is_started_as_it_stands_and_buys() {
    let shop = Shop::open().await;
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let key = shop.world.key("agent");
    std::fs::write(folder.path().join("agent.key"), format!("{key}\n")).unwrap();
    let url = shop.world.earnest.url();
    for client in ["claude", "codex", "cursor"] {
        let words = ["--client", client, "--key-file", "agent.key"];
        let (code, block, talk) = config(folder.path(), &url, &words).await;
        assert_eq!(code, Some(0), "{talk}");
        assert!(!block.contains(&key) && !talk.contains(&key));
        let server = server_in(client, &block);
        let mut command = Command::new(server["command"].as_str().unwrap());
        command.args(server["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()));
        command.env_clear().current_dir(elsewhere.path());
        for (name, value) in server["env"].as_object().unwrap() {
            command.env(name, value.as_str().unwrap());
        }
        let mut pipe = Pipe::start(command, json!({})).await;
        assert_eq!(pipe.fetch(2, &shop.url("/weather"), client).await["status"], "paid");
        pipe.close().await;

        // Over HTTP the client's own environment holds the key.
        let (code, block, _) = config(folder.path(), &url, &["--client", client, "--http"]).await;
        assert_eq!(code, Some(0));
        assert_eq!(server_in(client, &block)["url"], format!("{url}/mcp"));
    }
    assert_eq!(shop.close().await, (60_000, 0));
}

/// A block that would not work is not printed.
#[tokio::test]
async fn without_the_key_of_an_agent_there_is_no_block() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("owner.key"), "ek_owner_0").unwrap();
    let url = "http://127.0.0.1:4020";
    for (more, code, said) in [
        (&[][..], 2, "earnest agent create NAME --key-file FILE"),
        (&["--key-file", "none.key"], 1, "none.key"),
        (&["--key-file", "owner.key"], 2, "does not hold the key of an agent"),
    ] {
        let words = [&["--client", "claude"][..], more].concat();
        let (ended, block, talk) = config(folder.path(), url, &words).await;
        assert_eq!((ended, block.as_str()), (Some(code), ""), "{talk}");
        assert!(talk.contains(said) && !talk.contains("ek_owner_0"), "{talk}");
    }
}
