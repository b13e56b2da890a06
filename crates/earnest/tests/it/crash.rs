//! A real process under 64 connections is killed with `kill -9` at random, over and over, and has
//! to agree with its clients' own history: what was acknowledged is there once, what was refused
//! moved nothing, what was not answered is there once or not at all, and its id tells which.
//!
//! `EARNEST_SEED` repeats a run's choices (not its timing), `EARNEST_KILLS` makes it longer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use earnest::first::DevKeys;
use earnest_core::time::{Timestamp, after};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::dice::{Dice, seed_of_run};
use crate::process::Installation;
use crate::world::{PATIENCE, client, fresh_id};

/// How many buy and report at once.
const CONNECTIONS: u64 = 64;
/// Above this the policy says no.
const PER_CALL_CAP: i64 = 100_000;

/// What a client knows of one purchase.
#[derive(Clone, Debug)]
struct Known {
    id: String,
    price: i64,
    /// Status and body of the answer, if one came.
    answer: Option<(u16, Value)>,
    /// What was reported, and what Earnest made of it, if it said so.
    report: Option<(&'static str, Option<String>)>,
}

/// Who buys and sells there.
#[derive(Clone)]
struct Parties {
    http: Client,
    url: String,
    keys: Arc<DevKeys>,
    origin: String,
}

/// An answer, or none: the connection was refused or broke.
type Answered = Option<(u16, Value)>;

impl Parties {
    async fn call(&self, key: &str, method: Method, path: &str, body: Option<&Value>) -> Answered {
        let request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(key);
        let request = request.timeout(PATIENCE).header("idempotency-key", fresh_name(body));
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let answer = request.send().await.ok()?;
        let status = answer.status().as_u16();
        let bytes = answer.bytes().await.ok()?;
        Some((status, serde_json::from_slice(&bytes).unwrap_or_default()))
    }

    /// As [`Parties::call`] where Earnest is up and says yes.
    async fn must(&self, key: &str, method: Method, path: &str, body: Option<Value>) -> Value {
        let answer = self.call(key, method, path, body.as_ref()).await;
        let (status, body) = answer.unwrap_or_else(|| panic!("no answer from {path}"));
        assert!((200..300).contains(&status), "{path}: {status} {body}");
        body
    }

    async fn authorize(&self, id: &str, price: i64) -> Answered {
        let quote = json!({
            "v": 1,
            "id": fresh_id("qte"),
            "seller": self.keys.seller.id,
            "listing": "GET /weather",
            "method": "GET",
            "url": format!("{}/weather", self.origin),
            "body_sha256": earnest_core::quote::body_digest(b""),
            "amount_micros": price,
            "currency": "USD",
            "expires_at": after(Timestamp::now(), 300),
        });
        let body = json!({ "quote": quote, "max_price": price, "request_id": id });
        self.call(self.keys.agent.key.expose(), Method::POST, "/v1/authorize", Some(&body)).await
    }

    /// Reports one voucher; what Earnest made of it.
    async fn report(&self, voucher: &str, fate: &str) -> Option<String> {
        let report = json!({ "voucher": voucher, "fate": fate, "claimed_at": Timestamp::now() });
        let body = json!({ "reports": [report] });
        let key = self.keys.seller.key.expose();
        match self.call(key, Method::POST, "/v1/vouchers/report", Some(&body)).await? {
            (200, body) => Some(body["results"][0]["outcome"].as_str().unwrap().to_owned()),
            (503, _) => None,
            (status, body) => panic!("{status} {body}"),
        }
    }

    /// Every purchase by the agent's name for it; two of one name are a finding.
    async fn purchases(&self) -> BTreeMap<String, Value> {
        let (mut all, mut cursor) = (BTreeMap::new(), String::new());
        loop {
            let path = format!("/v1/purchases?limit=500{cursor}");
            let page = self.must(self.keys.agent.key.expose(), Method::GET, &path, None).await;
            for row in page["data"].as_array().unwrap() {
                let name = row["request_id"].as_str().unwrap().to_owned();
                let twice = all.insert(name, row.clone());
                assert!(twice.is_none(), "two purchases of one name: {row}");
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }

    /// A proved origin, a way to pay, room, and a cap for some purchases to break.
    async fn set_up(&self, sim: &str) {
        let DevKeys { operator, owner, seller, .. } = &*self.keys;
        let origin = Some(json!({ "origin": self.origin }));
        self.must(seller.key.expose(), Method::POST, "/v1/sellers/me/origins/prove", origin).await;
        let begun = self.must(owner.key.expose(), Method::POST, "/v1/payment-methods", None).await;
        let url = begun["approve_url"].as_str().unwrap();
        let token = json!({ "token": url.split("approval_session_id=").nth(1).unwrap() });
        let approved = self.http.post(format!("{sim}/_sim/approve")).json(&token).send().await;
        assert!(approved.unwrap().status().is_success());
        let path = format!("/v1/payment-methods/{}/confirm", begun["id"].as_str().unwrap());
        self.must(owner.key.expose(), Method::POST, &path, None).await;
        let path = format!("/v1/owners/{}/credit", owner.id);
        let line = Some(json!({ "line": "$9000.00" }));
        self.must(operator.key.expose(), Method::PUT, &path, line).await;
        let request = self.http.put(format!("{}/v1/policies/owner", self.url));
        let request = request.bearer_auth(owner.key.expose()).header("if-match", "\"1\"");
        let set = request.json(&json!({ "per_call_cap_micros": PER_CALL_CAP })).send().await;
        assert!(set.unwrap().status().is_success());
    }
}

/// A key for calls that want one and have no other name.
fn fresh_name(body: Option<&Value>) -> String {
    let named = body.and_then(|body| body["request_id"].as_str());
    named.map_or_else(|| fresh_id("key"), str::to_owned)
}

/// Buys and reports until told to stop, whether anybody answers or not; what it knows then.
async fn client_life(parties: Parties, seed: u64, me: u64, stop: Arc<AtomicBool>) -> Vec<Known> {
    let mut dice = Dice::new(seed ^ (me << 32));
    let mut history = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let dear = dice.below(100) < 5;
        let price = if dear { PER_CALL_CAP + 1 } else { 1_000 + dice.below(5_000) as i64 };
        let id = format!("c{me}-{}", history.len());
        let mut known = Known { id, price, answer: None, report: None };
        // Some give up at once, the others ask again under the same name until somebody answers.
        let patient = dice.below(100) < 70;
        loop {
            known.answer = parties.authorize(&known.id, price).await.filter(|it| it.0 != 503);
            if known.answer.is_some() || !patient || stop.load(Ordering::SeqCst) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if let Some((201, body)) = &known.answer {
            let voucher = body["voucher"].as_str().unwrap();
            let fate = match dice.below(10) {
                0..=6 => Some("redeemed"),
                7 => Some("failed"),
                _ => None,
            };
            if let Some(fate) = fate {
                let mut outcome = parties.report(voucher, fate).await;
                if outcome.is_none() && dice.below(100) < 50 && !stop.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    outcome = parties.report(voucher, fate).await;
                }
                known.report = Some((fate, outcome));
            }
        }
        history.push(known);
    }
    history
}

/// One entry of a client's history against what Earnest has on record.
fn check(known: &Known, row: Option<&Value>) {
    let status = row.map(|row| row["status"].as_str().unwrap());
    match &known.answer {
        Some((201, body)) => {
            let row = row.unwrap_or_else(|| panic!("acknowledged and lost: {known:?}"));
            assert_eq!(row["id"], body["purchase"], "{known:?}");
            assert_eq!(row["amount_micros"], known.price, "{known:?}");
        }
        Some((403, _)) => {
            assert_eq!(status, Some("denied"), "{known:?}");
            assert_eq!(row.unwrap()["tab"], Value::Null, "{known:?}");
        }
        Some((status, body)) => panic!("{status} {body}: {known:?}"),
        None => assert!(matches!(status, None | Some("held" | "denied")), "{status:?}: {known:?}"),
    }
    let after = match &known.report {
        None => return,
        Some((_, Some(outcome))) => match outcome.as_str() {
            "billed" | "already_billed" => vec!["billed"],
            "released" => vec!["released"],
            other => panic!("{other}: {known:?}"),
        },
        Some(("redeemed", None)) => vec!["held", "billed"],
        Some((_, None)) => vec!["held", "released"],
    };
    assert!(after.contains(&status.unwrap()), "{status:?} instead of {after:?}: {known:?}");
}

/// What was not answered is asked again under its name; the answer has to fit what is on record.
async fn ask_again(parties: &Parties, known: &Known, row: Option<&Value>) {
    let (status, body) = parties.authorize(&known.id, known.price).await.expect("it is up");
    match row.map(|row| row["status"].as_str().unwrap()) {
        Some("held") => assert_eq!((status, &body["purchase"]), (201, &row.unwrap()["id"])),
        None if known.price <= PER_CALL_CAP => assert_eq!(status, 201, "{body}"),
        _ => assert_eq!(status, 403, "{body}"),
    }
}

async fn sum_of(purchases: &BTreeMap<String, Value>, status: &str, amount: &str) -> i64 {
    let rows = purchases.values().filter(|row| row["status"] == status);
    rows.map(|row| row[amount].as_i64().unwrap()).sum()
}

/// The open tab owes what was billed, and holds what was held.
async fn tab_agrees(parties: &Parties) -> (String, i64) {
    let purchases = parties.purchases().await;
    let tabs = parties.must(parties.keys.owner.key.expose(), Method::GET, "/v1/tabs", None).await;
    assert_eq!(tabs["data"].as_array().unwrap().len(), 1);
    let tab = &tabs["data"][0];
    let billed = sum_of(&purchases, "billed", "billed_micros").await;
    assert_eq!(tab["owed_micros"], billed);
    assert_eq!(tab["held_micros"], sum_of(&purchases, "held", "amount_micros").await);
    (tab["id"].as_str().unwrap().to_owned(), billed)
}

/// Everything that is still held is given back, the tab is closed and settled, and PayPal's records
/// say the same.
async fn settle(parties: &Parties, history: &[Known], sim: &str) {
    for known in history {
        let voucher = known.answer.as_ref().and_then(|(_, body)| body["voucher"].as_str());
        if let Some(voucher) = voucher {
            parties.report(voucher, "failed").await.expect("it is up");
        }
    }
    // Those that nobody heard of are asked for once more: the same voucher comes.
    for (id, row) in parties.purchases().await.iter().filter(|(_, row)| row["status"] == "held") {
        let price = row["amount_micros"].as_i64().unwrap();
        let (_, body) = parties.authorize(id, price).await.expect("it is up");
        parties.report(body["voucher"].as_str().unwrap(), "failed").await.expect("it is up");
    }
    let (tab, billed) = tab_agrees(parties).await;
    let owner = parties.keys.owner.key.expose();
    parties.must(owner, Method::POST, &format!("/v1/tabs/{tab}/close"), None).await;
    let path = format!("/v1/tabs/{tab}/settlements");
    let settled = async {
        loop {
            let page = parties.must(owner, Method::GET, &path, None).await;
            if page["data"][0]["status"] == "captured" {
                return page["data"][0].clone();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let settlement = tokio::time::timeout(PATIENCE, settled).await.expect("the tab is settled");
    assert_eq!(settlement["lines_micros"], billed);
    let captured = settlement["captured_micros"].as_i64().unwrap();
    assert_eq!(captured, billed - billed % 10_000);

    let books: Value =
        parties.http.get(format!("{sim}/_sim/books")).send().await.unwrap().json().await.unwrap();
    let rows = books["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "one capture: {books}");
    assert_eq!(rows[0]["invoice_id"], settlement["invoice_id"]);
    let dollars = format!("{}.{:02}", captured / 1_000_000, captured / 10_000 % 100);
    assert_eq!(books["balances"][0]["captured"], dollars, "{books}");
    let journal: Value =
        parties.http.get(format!("{sim}/_sim/journal")).send().await.unwrap().json().await.unwrap();
    assert_eq!(journal["violations"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_what_was_acknowledged_survives_kills() {
    let seed = seed_of_run("kill -9");
    let mut dice = Dice::new(seed);
    let kills = std::env::var("EARNEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(8);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    // Nothing settles by itself, so that no lease of a dead process has to run out first.
    let mut place = Installation::begin("settle_at_micros = 9000000000").await;
    let keys = Arc::new(place.keys());
    let proof = keys.seller.id.clone();
    let app = Router::new().route("/.well-known/earnest-origin", get(|| async { proof }));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let parties = Parties { http: client(), url: place.url(), keys, origin };
    let sim = place.sim.url();
    parties.set_up(&sim).await;

    let stop = Arc::new(AtomicBool::new(false));
    let mut lives = JoinSet::new();
    for me in 0..CONNECTIONS {
        lives.spawn(client_life(parties.clone(), seed, me, Arc::clone(&stop)));
    }
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(200 + dice.below(1_800))).await;
        place.kill().await;
        tokio::time::sleep(Duration::from_millis(dice.below(200))).await;
        place.start().await;
    }
    stop.store(true, Ordering::SeqCst);
    let history: Vec<Known> = lives.join_all().await.into_iter().flatten().collect();

    let purchases = parties.purchases().await;
    let unanswered: Vec<&Known> = history.iter().filter(|it| it.answer.is_none()).collect();
    println!("{} purchases, {} unanswered, {kills} kills", history.len(), unanswered.len());
    assert!(history.len() > 100 && !unanswered.is_empty(), "too little happened to prove anything");
    for known in &history {
        check(known, purchases.get(&known.id));
    }
    tab_agrees(&parties).await;
    for known in unanswered {
        ask_again(&parties, known, purchases.get(&known.id)).await;
    }
    tab_agrees(&parties).await;
    settle(&parties, &history, &sim).await;

    assert_eq!(place.audit().await, Some(0), "while it runs");
    assert_eq!(place.earnest.take().unwrap().stop().await, Some(0));
    assert_eq!(place.audit().await, Some(0), "when it has stopped");
    let talk = place.talk();
    for secret in ["panicked", "ek_agent_", "ek_owner_", "ek_seller_", "ek_operator_", "A21AA"] {
        assert!(!talk.contains(secret), "`{secret}` in what it says about itself:\n{talk}");
    }
}
