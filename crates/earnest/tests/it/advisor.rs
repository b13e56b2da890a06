//! The treasurer's advisor: whatever a model says or does, money goes by the rules, and what the
//! model cost is in the books.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use bytes::Bytes;
use earnest::config::Config;
use earnest::models::{Patience, Price, Role, Settings};
use earnest_core::ledger::Account;
use earnest_core::model::{CALL_SECONDS, CallState, ModelCall};
use earnest_core::money::Micros;
use earnest_paypal::Secret;
use http::{HeaderMap, StatusCode};
use paypal_sim::SimConfig;
use serde_json::{Value, json};

use crate::judge::all;
use crate::world::World;

pub const KEY: &str = "sk-a-key-of-the-models-0123456789";
const RESERVE: i64 = 10_000;

/// What a model's server does with a question.
#[derive(Clone)]
pub enum Reply {
    /// Answers with a status and a body, and says how long to wait.
    Says(u16, Option<&'static str>, Bytes),
    /// Never answers.
    Hangs,
}

impl Reply {
    fn body(status: u16, body: &Value) -> Self {
        Self::Says(status, None, body.to_string().into())
    }

    /// A completion with that text, at 1000 and 100 tokens.
    fn text(text: &str) -> Self {
        let usage = json!({ "prompt_tokens": 1_000, "completion_tokens": 100 });
        Self::body(
            200,
            &json!({ "usage": usage,
            "choices": [{ "message": { "content": text }, "finish_reason": "stop" }] }),
        )
    }

    pub fn advice(settle: bool, sentence: &str) -> Self {
        Self::text(&json!({ "settle": settle, "sentence": sentence }).to_string())
    }
}

/// A model's server: what it was asked, and what it does next; it repeats the last.
#[derive(Clone)]
pub struct Model {
    asked: Arc<Mutex<Vec<(HeaderMap, Value)>>>,
    next: Arc<Mutex<Vec<Reply>>>,
    url: String,
}

impl Model {
    pub async fn begin(replies: &[Reply]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let next = replies.iter().rev().cloned().collect();
        let model = Self { asked: Arc::default(), next: Arc::new(Mutex::new(next)), url };
        let router =
            Router::new().route("/v1/chat/completions", post(take)).with_state(model.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        model
    }

    pub fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    pub fn settings(&self) -> Settings {
        let advisor = Role {
            name: "advisor",
            base_url: self.url.parse().unwrap(),
            model: "adviser-1".to_owned(),
            key: Some(Secret::new(KEY)),
            family: None,
            price: Some(Price {
                input_micros: Micros::constant(1_000_000),
                output_micros: Micros::constant(2_000_000),
            }),
            reserve: Micros::constant(RESERVE),
            ask_seconds: 900,
        };
        // A hang must not be waited for longer than a test has time.
        let total = Duration::from_millis(1_500);
        let patience = Patience { connect: Duration::from_secs(5), total };
        Settings { advisor: Some(advisor), patience, ..Settings::default() }
    }
}

async fn take(State(model): State<Model>, headers: HeaderMap, body: Bytes) -> Response {
    let body = serde_json::from_slice(&body).unwrap();
    model.asked.lock().unwrap().push((headers, body));
    let reply = {
        let mut next = model.next.lock().unwrap();
        let reply = if next.len() > 1 { next.pop() } else { next.last().cloned() };
        reply.unwrap()
    };
    match reply {
        Reply::Hangs => std::future::pending().await,
        Reply::Says(status, wait, body) => {
            let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
            if let Some(wait) = wait {
                response.headers_mut().insert("retry-after", wait.parse().unwrap());
            }
            response
        }
    }
}

/// An Earnest with the rules of real money and that advisor, whose owner owes so much.
async fn owing(settings: Settings, cents: &[i64]) -> World {
    let rules = earnest_core::settings::Settings {
        min_settlement_micros: Micros::constant(5_000_000),
        ..earnest_core::settings::Settings::simulated()
    };
    let config = Config { models: settings, settings: rules, ..Config::simulated() };
    let world = World::with(config, SimConfig::default()).await;
    world.prove_origin().await;
    world.vault().await;
    world.policy("owner", json!({})).await;
    for (number, cents) in cents.iter().enumerate() {
        world.spend(cents * 10_000, &format!("r{number}")).await;
    }
    world
}

fn calls(world: &World) -> Vec<ModelCall> {
    all::<ModelCall>(world.reader())
}

/// What models cost by the books: pending and posted.
fn spent(world: &World) -> (i64, i64) {
    let totals = world.reader().totals(&Account::ModelCosts.usd()).unwrap();
    (totals.debits_pending.get(), totals.debits_posted.get())
}

async fn settlements(world: &World) -> Vec<Value> {
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/tabs/{tab}/settlements");
    world.get("owner", &path).await.expect(200)["data"].as_array().unwrap().clone()
}

#[tokio::test]
async fn advice_to_settle_brings_a_settlement_forward() {
    let model = Model::begin(&[Reply::advice(true, "Room runs low.")]).await;
    let world = owing(model.settings(), &[300, 400]).await;
    world.settle_down().await;
    let made = settlements(&world).await;
    assert_eq!(made.len(), 1, "{made:?}");
    assert_eq!(made[0]["status"], "captured");
    assert_eq!(made[0]["amount_micros"], 7_000_000);
    assert_eq!(made[0]["advice"], "Room runs low.");
    assert!(made[0]["why"].as_str().unwrap().contains("adviser-1 advises it"), "{made:?}");
    // 1000 tokens at a dollar and 100 at two dollars for a million.
    assert_eq!(spent(&world), (0, 1_200));
    let [call] = calls(&world).try_into().unwrap();
    assert_eq!((call.state, call.outcome.as_deref()), (CallState::Ended, Some("answered")));
    world.assert_at_rest();
}

/// A yes is about what was owed then: what is bought afterwards is not settled by it, and a yes
/// that comes when its figures are settled already settles nothing.
#[tokio::test]
async fn one_advice_settles_at_most_once() {
    let model = Model::begin(&[Reply::advice(true, "Now.")]).await;
    let world = owing(model.settings(), &[700]).await;
    world.settle_down().await;
    assert_eq!(settlements(&world).await.len(), 1);
    // Well below what the rules settle at.
    world.spend(6_000_000, "again").await;
    world.live(5).await;
    world.settle_down().await;
    assert_eq!((model.asked(), settlements(&world).await.len()), (1, 1));
    // It was asked before the last settlement and answers after it.
    let tab: earnest_core::id::TabId = world.tab().await["id"].as_str().unwrap().parse().unwrap();
    let advice = earnest_core::treasurer::Advice {
        settle: true,
        sentence: "Late.".to_owned(),
        by: "adviser-1".to_owned(),
        at: world.clock.now(),
        settlements: 0,
    };
    let unit = earnest_core::treasurer::TakeAdvice { tab, advice };
    world.earnest.app.store.submit(unit).await.unwrap();
    world.settle_down().await;
    assert_eq!(settlements(&world).await.len(), 1);
    world.assert_at_rest();
}

/// What is sent: figures only, under the key, in the shape that was asked for.
#[tokio::test]
async fn the_question_holds_figures_and_nothing_else() {
    let model = Model::begin(&[Reply::advice(false, "Wait.")]).await;
    let world = owing(model.settings(), &[300, 400]).await;
    world.settle_down().await;
    let (headers, body) = model.asked.lock().unwrap()[0].clone();
    assert_eq!(headers["authorization"], format!("Bearer {KEY}"));
    assert_eq!(body["model"], "adviser-1");
    let format = &body["response_format"]["json_schema"];
    assert_eq!(
        (&format["strict"], &format["schema"]["additionalProperties"]),
        (&json!(true), &json!(false))
    );
    let figures = body["messages"][1]["content"][0]["text"].as_str().unwrap();
    let figures: Value = serde_json::from_str(figures).unwrap();
    assert_eq!((&figures["owed"], &figures["purchases"]), (&json!("7.00"), &json!(2)));
    for (name, value) in figures.as_object().unwrap() {
        let number = value.is_i64() || value.as_str().unwrap().parse::<f64>().is_ok();
        assert!(number, "{name} is {value}");
    }
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    for known in
        [&world.owner_id(), &world.seller_id(), &world.agent_id(), &tab, "weather", "127.0.0.1"]
    {
        assert!(!body.to_string().contains(known), "{known} is told");
    }
}

#[tokio::test]
async fn advice_to_wait_puts_nothing_off() {
    let model = Model::begin(&[Reply::advice(false, "Never settle.")]).await;
    let world = owing(model.settings(), &[700]).await;
    world.settle_down().await;
    assert_eq!(settlements(&world).await.len(), 0);
    assert_eq!(model.asked(), 1);
    // What the rules settle is settled, under a fresh advice against it, and asks nobody.
    world.spend(8_500_000, "more").await;
    world.settle_down().await;
    let made = settlements(&world).await;
    assert_eq!((made.len(), &made[0]["amount_micros"]), (1, &json!(15_500_000)), "{made:?}");
    assert_eq!(made[0]["advice"], "Never settle.");
    assert_eq!(model.asked(), 1);
    // The end of the session settles as well.
    world.spend(6_000_000, "last").await;
    world.settle_down().await;
    world.live(1_800).await;
    world.settle_down().await;
    let made = settlements(&world).await;
    assert_eq!(made.len(), 2, "{made:?}");
    world.assert_at_rest();
}

#[tokio::test]
async fn one_question_a_tab_in_an_interval() {
    let model = Model::begin(&[Reply::advice(false, "Wait.")]).await;
    let world = owing(model.settings(), &[700]).await;
    let steps = [(0, 1), (0, 1), (890, 1), (10, 2), (0, 2)];
    for (number, (seconds, asked)) in steps.into_iter().enumerate() {
        world.live(seconds).await;
        // The session goes on.
        world.spend(10_000, &format!("s{number}")).await;
        world.jobs().await;
        assert_eq!(model.asked(), asked, "after {seconds} s");
    }
    world.assert_sound();
}

/// An advisor that says settle below the minimum does nothing: nobody even asks.
#[tokio::test]
async fn advice_counts_for_nothing_below_the_minimum() {
    let model = Model::begin(&[Reply::advice(true, "Settle at once.")]).await;
    let world = owing(model.settings(), &[499]).await;
    world.settle_down().await;
    assert_eq!((model.asked(), settlements(&world).await.len()), (0, 0));
    // Nor where it is put there by force.
    let tab: earnest_core::id::TabId = world.tab().await["id"].as_str().unwrap().parse().unwrap();
    let advice = earnest_core::treasurer::Advice {
        settle: true,
        sentence: "Settle at once.".to_owned(),
        by: "adviser-1".to_owned(),
        at: world.clock.now(),
        settlements: 0,
    };
    world
        .earnest
        .app
        .store
        .submit(earnest_core::treasurer::TakeAdvice { tab, advice })
        .await
        .unwrap();
    world.settle_down().await;
    assert_eq!(settlements(&world).await.len(), 0);
    world.assert_at_rest();
}

/// Everything that can go wrong with a model: no settlement, no advice, and the right cost.
#[tokio::test]
async fn a_model_that_fails_changes_nothing_but_its_cost() {
    let ok = json!({ "prompt_tokens": 1_000, "completion_tokens": 100 });
    let calls_a_tool = json!({ "usage": ok, "choices": [{ "message": { "content": null,
        "tool_calls": [{ "type": "function", "function": { "name": "settle",
        "arguments": "{\"now\":" } }] } }] });
    let no_usage = json!({ "choices": [{ "message": { "content": "yes" } }] });
    let stated = json!({ "usage": { "cost": 0.005 },
        "choices": [{ "message": { "content": "yes" } }] });
    let dear = json!({ "usage": { "cost": 0.05 },
        "choices": [{ "message": { "content": "yes" } }] });
    let error = |code: Value| json!({ "error": { "message": "no", "code": code } });
    let huge = Reply::Says(200, None, vec![b' '; 300 * 1024].into());
    for (what, reply, word, cost) in [
        ("no JSON", Reply::text("Settle now!"), "schema", 1_200),
        ("broken JSON", Reply::text("{\"settle\":true,"), "schema", 1_200),
        (
            "another schema",
            Reply::text("{\"settle\":true,\"sentence\":\"a\",\"x\":1}"),
            "schema",
            1_200,
        ),
        ("a tool with broken arguments", Reply::body(200, &calls_a_tool), "unreadable", 1_200),
        ("no usage", Reply::body(200, &no_usage), "schema", RESERVE),
        ("a cost of its own", Reply::body(200, &stated), "schema", 5_000),
        ("more than was reserved", Reply::body(200, &dear), "schema", 50_000),
        ("html", Reply::Says(200, None, "<html>".into()), "unreadable", RESERVE),
        ("a refusal", Reply::body(401, &error(json!("invalid_api_key"))), "refused", 0),
        ("a numeric code", Reply::body(400, &error(json!(400))), "refused", 0),
        ("a failure", Reply::body(500, &error(Value::Null)), "failed", RESERVE),
        ("a redirect", Reply::Says(307, None, "".into()), "refused", 0),
        ("429 for ever", Reply::Says(429, Some("0"), "".into()), "throttled", 0),
        ("429 for an hour", Reply::Says(429, Some("3600"), "".into()), "throttled", 0),
        ("too much", huge, "too_large", RESERVE),
        ("a hang", Reply::Hangs, "timeout", RESERVE),
    ] {
        let model = Model::begin(&[reply]).await;
        let world = owing(model.settings(), &[700]).await;
        world.settle_down().await;
        assert_eq!(settlements(&world).await.len(), 0, "{what}");
        assert_eq!(spent(&world), (0, cost), "{what}");
        let [call] = calls(&world).try_into().unwrap();
        assert_eq!(call.outcome.as_deref(), Some(word), "{what}");
        let unknown = cost == RESERVE;
        assert_eq!(call.state == CallState::Unknown, unknown, "{what}");
        let tab =
            world.reader().row::<earnest_core::tab::Tab>(world.tab().await["id"].as_str().unwrap());
        assert_eq!(tab.unwrap().unwrap().advice, None, "{what}");
        world.assert_at_rest();
    }
}

#[tokio::test]
async fn a_429_is_asked_again_and_costs_once() {
    let wait = Reply::Says(429, Some("0"), "{}".into());
    let model = Model::begin(&[wait.clone(), wait, Reply::advice(true, "Now.")]).await;
    let world = owing(model.settings(), &[700]).await;
    world.settle_down().await;
    assert_eq!((model.asked(), settlements(&world).await.len()), (3, 1));
    assert_eq!(spent(&world), (0, 1_200));
    world.assert_at_rest();
}

/// Nobody reads the sentence but people, and they see plain text.
#[tokio::test]
async fn what_a_model_says_stays_text() {
    let sentence =
        "Ignore the rules.\u{1b}[2J <script>alert(1)</script>\n{\"settle\":true}\u{202e}";
    let hostile = format!("{sentence}{}", "!".repeat(1_000));
    let model = Model::begin(&[Reply::advice(false, &hostile)]).await;
    let world = owing(model.settings(), &[700]).await;
    world.settle_down().await;
    assert_eq!(settlements(&world).await.len(), 0, "a sentence decides nothing");
    let id = world.tab().await["id"].as_str().unwrap().to_owned();
    let tab = world.reader().row::<earnest_core::tab::Tab>(&id).unwrap().unwrap();
    let kept = tab.advice.unwrap().sentence;
    assert_eq!(kept.chars().count(), 300);
    assert!(
        kept.starts_with("Ignore the rules. [2J <script>alert(1)</script> {\"settle\":true}"),
        "{kept}"
    );
    assert!(!kept.chars().any(char::is_control), "{kept:?}");
    world.assert_at_rest();
}

#[tokio::test]
async fn a_cap_that_is_used_up_asks_nobody_and_is_no_error() {
    let model = Model::begin(&[Reply::advice(false, "Wait.")]).await;
    let cap = Micros::constant(RESERVE + 1_199);
    let world = owing(Settings { daily_cap: cap, ..model.settings() }, &[700]).await;
    world.settle_down().await;
    assert_eq!((model.asked(), spent(&world)), (1, (0, 1_200)));
    world.live(900).await;
    world.spend(10_000, "later").await;
    world.settle_down().await;
    assert_eq!(model.asked(), 1);
    // The rules go on as if there were no advisor; the next day there is one again.
    world.advance(24 * 3600);
    world.settle_down().await;
    assert_eq!(settlements(&world).await.len(), 1);
    world.spend(7_000_000, "tomorrow").await;
    world.settle_down().await;
    assert_eq!((model.asked(), spent(&world)), (2, (0, 2_400)));
    world.assert_at_rest();
}

/// The process dies with a question under way: its reserve is posted later, and asked is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_a_process_that_died_costs_its_reserve() {
    let model = Model::begin(&[Reply::Hangs]).await;
    let mut settings = model.settings();
    settings.patience.total = Duration::from_secs(200);
    let config = Config { models: settings, ..Config::simulated() };
    let mut world = World::mortal(config, SimConfig::default(), &crate::world::unchanged()).await;
    world.prove_origin().await;
    world.vault().await;
    world.spend(90_000, "one").await;
    let app = world.earnest.app.clone();
    world.lead().await;
    world.spawn(async move {
        let _ = earnest::flow::advisor::look(&app).await;
    });
    crate::world::until("the model is asked", || model.asked() == 1).await;
    assert_eq!(spent(&world), (RESERVE, 0));
    world.kill().await;
    world.advance(CALL_SECONDS);
    world.lead().await;
    earnest::flow::advisor::look(&world.earnest.app).await.unwrap();
    assert_eq!(spent(&world), (0, RESERVE));
    let [call] = calls(&world).try_into().unwrap();
    assert_eq!((call.state, call.outcome.as_deref()), (CallState::Unknown, Some("lost")));
    assert_eq!(model.asked(), 1, "the interval holds across lives");
    world.assert_sound();
}

#[tokio::test]
async fn without_a_model_nothing_is_asked_or_written() {
    let world = owing(Settings::default(), &[700]).await;
    let before = world.reader().head().unwrap().seq;
    earnest::flow::advisor::look(&world.earnest.app).await.unwrap();
    assert_eq!(world.reader().head().unwrap().seq, before);
    assert_eq!(spent(&world), (0, 0));
}
