//! How long a call lasts, how many purchases are under way, how they end with their server; and what
//! is said where an answer does not come or cannot be read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::get;
use earnest::config::Config;
use earnest::limits::Limits;
use earnest::mcp::{Caller, Door, Lifetime, Server};
use earnest::outbound::Reach;
use earnest::serve::{Running, Start};
use paypal_sim::{Effect, Fault};
use reqwest::Method;
use rmcp::ServiceExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines};
use tokio::io::{ReadHalf, WriteHalf, split};
use tokio::net::TcpListener;

use super::{LEGACY, Mcp, sound};
use crate::shop::Shop;
use crate::world::{PATIENCE, World, until};

/// A door of its own, and the client behind it.
struct Line {
    input: WriteHalf<DuplexStream>,
    output: Lines<BufReader<ReadHalf<DuplexStream>>>,
}

impl Line {
    /// A door to the Earnest at that address, for whoever has the key.
    async fn open(earnest: &str, key: &str, limits: &Limits) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let lifetime = Lifetime {
            tasks: Default::default(),
            stopping: Default::default(),
            drain: Duration::ZERO,
        };
        let door = Door::guarded(earnest, Reach::Loopback, limits, lifetime).unwrap();
        let server = Server::of(Arc::new(door), Caller::new("self", "self", key));
        tokio::spawn(async move { server.serve(split(theirs)).await.unwrap().waiting().await });
        let (output, input) = split(ours);
        let mut line = Self { input, output: BufReader::new(output).lines() };
        let hello = json!({
            "protocolVersion": LEGACY, "capabilities": {},
            "clientInfo": { "name": "test", "version": "0" },
        });
        line.send(json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello }))
            .await;
        line.next().await;
        line.send(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        line
    }

    async fn send(&mut self, message: Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.output.next_line()).await;
        serde_json::from_str(&line.expect("an answer in time").unwrap().unwrap()).unwrap()
    }

    /// Calls several tools at once; their objects, in the order of the calls.
    async fn calls(&mut self, calls: &[(&str, Value)]) -> Vec<Value> {
        for (n, (name, arguments)) in calls.iter().enumerate() {
            let params = json!({ "name": name, "arguments": arguments });
            let call =
                json!({ "jsonrpc": "2.0", "id": n, "method": "tools/call", "params": params });
            self.send(call).await;
        }
        let mut objects = vec![Value::Null; calls.len()];
        for _ in calls {
            let answer = self.next().await;
            let n = usize::try_from(answer["id"].as_u64().unwrap()).unwrap();
            objects[n] = sound(calls[n].0, &answer)["structuredContent"].clone();
        }
        objects
    }

    async fn call(&mut self, name: &str, arguments: Value) -> Value {
        self.calls(&[(name, arguments)]).await.remove(0)
    }
}

/// An address that takes connections and never says a word.
async fn silent() -> (String, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (format!("http://{}", listener.local_addr().unwrap()), listener)
}

async fn served(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

const APPROVAL: &str = "apr_00000000000000000000000001";
const PURCHASE: &str = "pur_00000000000000000000000001";

/// One bound stands around every tool, whoever does not answer: a seller or Earnest.
#[tokio::test]
async fn no_call_outlasts_its_bound_whatever_is_slow() {
    let limits = Limits { mcp_call_seconds: 1, ..Limits::default() };
    let ((earnest, _keep), (shop, _kept)) = (silent().await, silent().await);
    let mut line = Line::open(&earnest, "ek_agent_0", &limits).await;
    let begun = Instant::now();
    let answers = line
        .calls(&[
            ("quote", json!({ "url": shop })),
            ("tab_status", json!({})),
            ("approval_status", json!({ "approval_id": APPROVAL, "wait_s": 25 })),
            ("verify_receipt", json!({ "purchase": PURCHASE })),
            ("verify_receipt", json!({ "receipt": "a.b.c" })),
            ("verify_receipt", json!({ "url": "https://earnest.example/r/abc" })),
            ("paid_fetch", json!({ "url": shop, "max_price": "$1", "request_id": "a" })),
        ])
        .await;
    // Far from what each of them waits for by itself.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let (fetched, asked) = answers.split_last().unwrap();
    assert_eq!((&fetched["status"], &fetched["retry_after_s"]), (&json!("in_progress"), &json!(1)));
    for (n, answer) in asked.iter().enumerate() {
        assert_eq!((&answer["status"], &answer["retry_after_s"]), (&json!("failed"), &json!(5)));
        let code = if n == 0 { "seller_unreachable" } else { "earnest_unreachable" };
        assert_eq!(answer["code"], code, "{answer}");
        assert!(answer["detail"].as_str().unwrap().ends_with("did not answer within 1 s"));
    }
}

/// Only what was served is free: what is not there, broken, moved, or asks for another kind of money
/// says nothing of its price.
#[tokio::test]
async fn what_names_no_price_is_free_only_if_it_was_served() {
    let world = World::in_real_time().await;
    let mcp = Mcp::new(&world);
    let foreign = || async {
        let challenge = [("www-authenticate", "Payment realm=\"another\"")];
        (StatusCode::PAYMENT_REQUIRED, challenge).into_response()
    };
    let shop = served(
        Router::new()
            .route("/free", get(|| async { "free" }))
            .route("/broken", get(|| async { StatusCode::INTERNAL_SERVER_ERROR }))
            .route("/moved", get(|| async { Redirect::to("/free") }))
            .route("/foreign", get(foreign)),
    )
    .await;
    for (path, status, http_status) in [
        ("/free", "free", 200),
        ("/gone", "failed", 404),
        ("/broken", "failed", 500),
        ("/moved", "failed", 303),
        ("/foreign", "failed", 402),
    ] {
        let quote = mcp.call("quote", json!({ "url": format!("{shop}{path}") })).await;
        assert_eq!(
            (&quote["status"], &quote["http_status"]),
            (&json!(status), &json!(http_status)),
            "{path}: {quote}"
        );
        let free = status == "free";
        assert_eq!(quote["amount_micros"] == 0, free, "{quote}");
        assert_eq!(quote["code"] == "upstream_failed", !free, "{quote}");
    }
}

/// A purchase keeps its place until it has ended, though its call is long over, and so many places
/// are all there are, however many agents there are.
#[tokio::test(flavor = "multi_thread")]
async fn all_agents_together_have_so_many_purchases_under_way() {
    let limits = Limits { mcp_purchases: 2, ..Limits::default() };
    let config = Config { limits, ..Config::simulated() };
    let shop = Shop::in_world(World::real_time(config).await).await;
    let mcp = Mcp::new(&shop.world);
    let other = Mcp { key: super::another_agent(&shop).await, ..Mcp::new(&shop.world) };
    let ask = |id: &str| json!({ "url": shop.url("/slow"), "max_price": "$1", "request_id": id, "wait_s": 0 });
    for id in ["a", "b"] {
        assert_eq!(mcp.call("paid_fetch", ask(id)).await["status"], "in_progress");
    }
    until("both are at the seller", || shop.served() == 2).await;
    let refused = other.call("paid_fetch", ask("c")).await;
    assert_eq!(
        (&refused["status"], &refused["code"]),
        (&json!("failed_not_charged"), &json!("rate_limited"))
    );
    assert!(refused["detail"].as_str().unwrap().contains("2 purchases of all agents"), "{refused}");
    // One that is under way is found again all the same.
    assert_eq!(mcp.call("paid_fetch", ask("a")).await["status"], "in_progress");
    shop.gate.add_permits(3);
    for id in ["a", "b"] {
        assert_eq!(mcp.fetch(&shop.url("/slow"), id, "$1").await["status"], "paid");
    }
    assert_eq!(other.fetch(&shop.url("/slow"), "c", "$1").await["status"], "paid");
    assert_eq!(shop.close().await, (60_000, 0));
}

/// Which bound refused a call is said: an agent that is alone can wait for itself, one that is not
/// cannot.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_too_many_is_told_whose_bound_it_met() {
    let limits = Limits { mcp_calls: 1, mcp_calls_per_agent: 1, ..Limits::default() };
    let config = Config { limits, ..Config::simulated() };
    let shop = Shop::in_world(World::real_time(config).await).await;
    let (key, url) = (super::another_agent(&shop).await, shop.url("/slow"));
    let (mcp, other) = (Mcp::new(&shop.world), Mcp { key, ..Mcp::new(&shop.world) });
    let slow = mcp.fetch(&url, "a", "$1");
    let busy = async {
        until("it is at the seller", || shop.served() == 1).await;
        let own = mcp.error("tab_status", json!({})).await;
        assert!(own["message"].as_str().unwrap().contains("this agent has 1 calls"), "{own}");
        let all = other.error("tab_status", json!({})).await;
        assert!(all["message"].as_str().unwrap().contains("all agents together"), "{all}");
        shop.gate.add_permits(1);
    };
    assert_eq!(tokio::join!(slow, busy).0["status"], "paid");
}

/// Stops a shop's Earnest, with a purchase under way whose call is over.
async fn stop_under_way(
    drain_seconds: u64,
) -> (Shop, tokio::task::JoinHandle<()>, earnest::app::App) {
    let limits = Limits { drain_seconds, ..Limits::default() };
    let config = Config { limits, ..Config::simulated() };
    let mut shop = Shop::in_world(World::real_time(config).await).await;
    let ask = json!({
        "url": shop.url("/slow"), "max_price": "$1", "request_id": "a", "wait_s": 0,
    });
    let begun = Mcp::new(&shop.world).call("paid_fetch", ask).await;
    assert_eq!(begun["status"], "in_progress");
    until("it is at the seller", || shop.served() == 1).await;
    let another = Running::start(Config::simulated(), Start::default()).await.unwrap();
    let earnest = std::mem::replace(&mut shop.world.earnest, another);
    let app = earnest.app.clone();
    let stopped = tokio::spawn(earnest.stop());
    (shop, stopped, app)
}

/// The server waits for what it buys, before it closes the books.
#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_under_way_is_waited_for_when_the_server_stops() {
    let (shop, stopped, app) = stop_under_way(600).await;
    until("it stops", || app.tasks.is_closed()).await;
    assert_eq!((app.tasks.len(), stopped.is_finished()), (1, false));
    shop.gate.add_permits(1);
    tokio::time::timeout(PATIENCE, stopped).await.expect("it ends in time").unwrap();
    assert!(app.tasks.is_empty());
}

/// But not for ever: a seller cannot keep the server from stopping.
#[tokio::test(flavor = "multi_thread")]
async fn a_seller_that_never_answers_does_not_keep_the_server() {
    let (shop, stopped, app) = stop_under_way(1).await;
    tokio::time::timeout(PATIENCE, stopped).await.expect("it ends in time").unwrap();
    assert!(app.tasks.is_empty());
    assert_eq!(shop.served(), 1);
}

/// An Earnest that answers in ways that it does not: nothing of it is read as an amount or as a
/// state.
#[tokio::test]
async fn what_cannot_be_read_is_a_failure_and_never_an_amount() {
    async fn answer(uri: axum::http::Uri) -> axum::response::Response {
        let list = |row: Value| json!({ "data": [row], "next_cursor": null });
        let approval = json!({
            "id": APPROVAL, "agent": "agt_1", "purchase": PURCHASE, "seller": "sel_1",
            "listing": "x", "method": "GET", "url": "https://a.example/", "amount_micros": 5,
            "currency": "USD", "why": "it is dear", "status": "pondering",
            "created_at": "", "expires_at": "", "decided_at": null, "grant": null, "version": 1,
        });
        let body = match uri.path() {
            // No amounts.
            "/v1/tabs" => list(json!({ "id": "tab_1", "status": "open" })),
            "/v1/purchases" => json!({ "data": [], "next_cursor": null }),
            path if path.starts_with("/v1/approvals/") => approval,
            "/v1/receipts/verify" => json!({ "valid": true, "claims": { "mode": "live" } }),
            _ => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        };
        axum::Json(body).into_response()
    }
    let earnest = served(Router::new().fallback(answer)).await;
    let mut line = Line::open(&earnest, "ek_agent_0", &Limits::default()).await;
    let answers = line
        .calls(&[
            ("tab_status", json!({})),
            ("approval_status", json!({ "approval_id": APPROVAL })),
            ("verify_receipt", json!({ "receipt": "a.b.c" })),
            // Nobody says that it is not signed yet.
            ("verify_receipt", json!({ "purchase": PURCHASE })),
        ])
        .await;
    for answer in &answers {
        assert_eq!(answer["status"], "failed", "{answer}");
        for name in ["owed_micros", "held_micros", "amount_micros", "captured_micros"] {
            assert!(answer[name].is_null(), "{answer}");
        }
    }
}

/// What was bought before and is not here any more is paid, and said to be not delivered.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_bought_before_is_paid_and_not_delivered_again() {
    let shop = Shop::open().await;
    let url = shop.url("/weather");
    let bought = Mcp::new(&shop.world).fetch(&url, "w", "$1").await;
    assert_eq!((&bought["status"], &bought["delivered"]), (&json!("paid"), &json!(true)));
    // Reported, so that it is known to be billed.
    assert_eq!(shop.close().await, (20_000, 0));
    // A door that remembers nothing, as after a restart.
    let (earnest, key) = (shop.world.earnest.url(), shop.world.key("agent"));
    let mut line = Line::open(&earnest, &key, &Limits::default()).await;
    let ask = json!({ "url": url, "max_price": "$1", "request_id": "w" });
    // The seller, which stopped, says 503: nothing was charged for this voucher. It was for one before.
    let again = line.call("paid_fetch", ask).await;
    assert_eq!(again["http_status"], 503, "{again}");
    assert_eq!((&again["status"], &again["delivered"]), (&json!("paid"), &json!(false)), "{again}");
    assert_eq!((&again["amount_micros"], &again["body"]), (&json!(20_000), &Value::Null));
    assert_eq!(shop.served(), 1);
}

/// Nothing was charged, so none will come: that is another answer than *not yet*.
#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_that_cost_nothing_gets_no_receipt() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    let asked = mcp.fetch(&shop.url("/dear"), "dear", "$1").await;
    let by_purchase = |of: &Value| json!({ "purchase": of["purchase"] });
    let waits = mcp.call("verify_receipt", by_purchase(&asked)).await;
    assert_eq!(waits["status"], "pending", "{waits}");
    shop.world.answer_approval(asked["approval_id"].as_str().unwrap(), "deny").await;
    let released = mcp.fetch(&shop.url("/fails"), "fails", "$1").await;
    assert_eq!(shop.close().await, (0, 0));
    for (purchase, word) in [(&asked, "denied"), (&released, "released")] {
        let none = mcp.call("verify_receipt", by_purchase(purchase)).await;
        assert_eq!(none["status"], "none", "{none}");
        let result = mcp.tool("verify_receipt", by_purchase(purchase)).await;
        assert!(result["content"][0]["text"].as_str().unwrap().contains(word), "{result}");
    }
    let unknown = mcp.call("verify_receipt", json!({ "purchase": PURCHASE })).await;
    assert_eq!((&unknown["status"], &unknown["code"]), (&json!("failed"), &json!("not_found")));
}

/// A tab that is written off is captured no more: *pending* would have an agent ask for ever.
#[tokio::test]
async fn a_purchase_of_a_tab_that_was_written_off_gets_no_receipt() {
    let world = World::ready().await;
    world.spend(150_000, "w").await;
    let mcp = Mcp::new(&world);
    let bought = world.get("owner", "/v1/purchases").await.expect(200)["data"][0].clone();
    assert_eq!(bought["status"], "billed", "{bought}");
    let by_purchase = json!({ "purchase": bought["id"] });
    assert_eq!(mcp.call("verify_receipt", by_purchase.clone()).await["status"], "pending");

    let declined = Effect::Issue { issue: "INSTRUMENT_DECLINED".to_owned() };
    world.sim().add_fault(Fault::on("orders.create", declined)).unwrap();
    let tab = format!("/v1/tabs/{}", bought["tab"].as_str().unwrap());
    let asked = |key: &'static str| [("idempotency-key", key)];
    let settle = format!("{tab}/settle");
    world.call_with("owner", Method::POST, &settle, None, &asked("s")).await.expect(202);
    world.settle_down().await;
    let write_off = format!("{tab}/write-off");
    world.call_with("operator", Method::POST, &write_off, None, &asked("o")).await.expect(200);

    let none = mcp.tool("verify_receipt", by_purchase).await;
    assert_eq!(none["structuredContent"]["status"], "none", "{none}");
    assert!(none["content"][0]["text"].as_str().unwrap().contains("written off"), "{none}");
}

/// Whoever makes many agents has no more than one owner's share of what there is.
#[tokio::test(flavor = "multi_thread")]
async fn agents_of_one_owner_share_what_there_is_for_one() {
    let limits = Limits { mcp_purchases_per_owner: 1, mcp_calls_per_owner: 1, ..Limits::default() };
    let limits = Limits { mcp_calls_per_agent: 1, ..limits };
    let config = Config { limits, ..Config::simulated() };
    let shop = Shop::in_world(World::real_time(config).await).await;
    let mcp = Mcp::new(&shop.world);
    let second = Mcp { key: super::another_agent(&shop).await, ..Mcp::new(&shop.world) };
    let strangers = crate::pages::stranger(&shop.world).await;
    let strangers = super::agent_of(&shop.world, &strangers).await;
    let strangers = Mcp { key: strangers, ..Mcp::new(&shop.world) };
    let ask = |id: &str, wait_s: u64| json!({ "url": shop.url("/slow"), "max_price": "$1", "request_id": id, "wait_s": wait_s });
    assert_eq!(mcp.call("paid_fetch", ask("a", 0)).await["status"], "in_progress");
    until("it is at the seller", || shop.served() == 1).await;
    let refused = second.call("paid_fetch", ask("b", 0)).await;
    assert_eq!(refused["code"], "rate_limited", "{refused}");
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("1 purchases of this owner's agents"), "{refused}");

    // The calls, too; another owner's agent is met by neither.
    let waiting = async {
        // The other's may have the one place for a moment.
        loop {
            let params = json!({ "name": "paid_fetch", "arguments": ask("a", 20) });
            let answer = mcp.rpc("tools/call", params).await.expect(200);
            if answer.get("error").is_none() {
                break super::sound("paid_fetch", &answer)["structuredContent"].clone();
            }
        }
    };
    let busy = async {
        let refused = loop {
            let answer = second.rpc("tools/call", json!({ "name": "tab_status", "arguments": {} }));
            let answer = answer.await.body;
            if answer.get("error").is_some() {
                break answer;
            }
            tokio::task::yield_now().await;
        };
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("this owner's agents together have 1 calls"), "{refused}");
        strangers.call("tab_status", json!({})).await;
        // It has no tab, which is said because it was let in.
        let denied = strangers.call("paid_fetch", ask("c", 20)).await;
        assert_eq!(denied["status"], "denied", "{denied}");
        shop.gate.add_permits(1);
    };
    assert_eq!(tokio::join!(waiting, busy).0["status"], "paid");
}
