//! `earnest mcp`: the program itself, its stdin and stdout.

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
        let mut child = Command::new(env!("CARGO_BIN_EXE_earnest"))
            .arg("mcp")
            .env_remove("EARNEST_AGENT_KEY_FILE")
            .env("EARNEST_URL", shop.world.earnest.url())
            .env("EARNEST_AGENT_KEY", shop.world.key("agent"))
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

#[tokio::test]
async fn the_configuration_names_where_the_key_is_and_not_the_key() {
    for client in ["claude", "codex", "cursor"] {
        for more in [&[][..], &["--http"]] {
            let words = [&["mcp", "config", "--client", client][..], more].concat();
            let (code, said, _) = crate::process::run(&words).await;
            assert_eq!(code, Some(0), "{words:?}");
            assert!(said.contains("earnest") && !said.contains("ek_"), "{said}");
        }
    }
}
