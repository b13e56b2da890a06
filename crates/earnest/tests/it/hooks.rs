//! Outgoing webhooks, as a receiver meets them.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use reqwest::Method;
use ring::signature::{ED25519, UnparsedPublicKey};
use serde_json::{Value, json};

use earnest_core::hook::{CreateHook, Delivery, Hook, HookState, Scheme};
use earnest_core::id::{HookId, OwnerId};
use earnest_core::party::Principal;
use earnest_core::settings::Settings;

use crate::world::World;

/// A receiver: what it got, and what it answers next; 200 when nothing is left to say.
#[derive(Clone, Default)]
pub(crate) struct Receiver {
    got: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    says: Arc<Mutex<Vec<u16>>>,
    pub(crate) url: String,
}

impl Receiver {
    pub(crate) async fn begin(says: &[u16]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let says = says.iter().rev().copied().collect::<Vec<_>>();
        let receiver = Self { url, says: Arc::new(Mutex::new(says)), ..Self::default() };
        let router = Router::new().route("/hook", post(take)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    pub(crate) fn got(&self) -> Vec<(HeaderMap, Bytes)> {
        self.got.lock().unwrap().clone()
    }

    fn kinds(&self) -> Vec<String> {
        let kind = |body: &Bytes| serde_json::from_slice::<Value>(body).unwrap()["type"].clone();
        let kinds =
            self.got().into_iter().map(|(_, body)| kind(&body).as_str().unwrap().to_owned());
        // Many are under way at once, so they come in any order.
        let mut kinds: Vec<String> = kinds.collect();
        kinds.sort();
        kinds
    }
}

async fn take(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    receiver.got.lock().unwrap().push((headers, body));
    let says = receiver.says.lock().unwrap().pop().unwrap_or(200);
    StatusCode::from_u16(says).unwrap()
}

pub(crate) async fn hook(world: &World, role: &str, body: Value) -> Value {
    world.post(role, "/v1/webhooks", body).await.expect(201)
}

async fn deliveries(world: &World, role: &str, hook: &Value) -> Vec<Value> {
    let path = format!("/v1/webhooks/{}/deliveries", hook["id"].as_str().unwrap());
    world.get(role, &path).await.expect(200)["data"].as_array().unwrap().clone()
}

/// Asks for a pause and takes it back: two events of the owner's.
async fn two_events(world: &World) {
    world.call("owner", Method::POST, "/v1/owners/me/pause", None).await.expect(204);
    world.call("owner", Method::POST, "/v1/owners/me/resume", None).await.expect(204);
}

/// What was signed, by the header's own account.
fn signed(headers: &HeaderMap, body: &[u8]) -> (Vec<u8>, String) {
    let header = |name: &str| headers[name].to_str().unwrap();
    let text = format!("{}.{}.", header("webhook-id"), header("webhook-timestamp"));
    ([text.as_bytes(), body].concat(), header("webhook-signature").to_owned())
}

#[tokio::test]
async fn a_receiver_can_tell_what_is_ours() {
    let world = World::ready().await;
    let receiver = Receiver::begin(&[]).await;
    let made = hook(&world, "owner", json!({ "url": receiver.url })).await;
    assert_eq!(made["secret"], Value::Null);
    two_events(&world).await;
    world.settle_down().await;
    assert_eq!(receiver.kinds(), ["owner.paused", "owner.resumed", "webhook.created"]);
    let key = made["public_key"].as_str().unwrap().strip_prefix("whpk_").unwrap().to_owned();
    let key = UnparsedPublicKey::new(&ED25519, STANDARD.decode(key).unwrap());
    for (headers, body) in receiver.got() {
        let (message, signature) = signed(&headers, &body);
        let signature = STANDARD.decode(signature.strip_prefix("v1a,").unwrap()).unwrap();
        key.verify(&message, &signature).unwrap();
        assert!(key.verify(&[message.as_slice(), b" "].concat(), &signature).is_err());
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert!(body["timestamp"].is_string() && body["data"].is_object(), "{body}");
    }
    // A shared secret, for receivers that have no Ed25519.
    let shared = Receiver::begin(&[]).await;
    let made = hook(&world, "owner", json!({ "url": shared.url, "scheme": "v1" })).await;
    let secret = made["secret"].as_str().unwrap().strip_prefix("whsec_").unwrap().to_owned();
    world.settle_down().await;
    let (headers, body) = shared.got().remove(0);
    let (message, signature) = signed(&headers, &body);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &STANDARD.decode(secret).unwrap());
    let signature = STANDARD.decode(signature.strip_prefix("v1,").unwrap()).unwrap();
    ring::hmac::verify(&key, &message, &signature).unwrap();
    let again = world.get("owner", "/v1/webhooks").await.expect(200);
    assert!(!again.to_string().contains("whsec_"), "it is shown once");
    world.assert_sound();
}

#[tokio::test]
async fn what_is_not_taken_comes_again_as_it_was() {
    let world = World::ready().await;
    let receiver = Receiver::begin(&[500, 302, 200]).await;
    let body = json!({ "url": receiver.url, "kinds": ["owner.paused"] });
    let made = hook(&world, "owner", body).await;
    two_events(&world).await;
    world.settle_down().await;
    world.settle_down().await;
    assert_eq!(receiver.got().len(), 1, "not before its time");
    world.advance(5);
    world.settle_down().await;
    world.advance(300);
    world.settle_down().await;
    world.advance(100_000);
    world.settle_down().await;
    let got = receiver.got();
    assert_eq!(got.len(), 3, "and no more once it is taken");
    assert!(got.iter().all(|(headers, body)| {
        headers["webhook-id"] == got[0].0["webhook-id"] && *body == got[0].1
    }));
    let row = deliveries(&world, "owner", &made).await.remove(0);
    let answers: Vec<_> =
        row["attempts"].as_array().unwrap().iter().map(|it| it["status"].clone()).collect();
    assert_eq!(
        (row["status"].as_str(), answers),
        (Some("delivered"), vec![json!(500), json!(302), json!(200)])
    );
    world.assert_sound();
}

#[tokio::test]
async fn a_receiver_that_is_gone_is_told_nothing_more() {
    let world = World::ready().await;
    let receiver = Receiver::begin(&[410]).await;
    let made = hook(&world, "owner", json!({ "url": receiver.url, "kinds": ["owner.*"] })).await;
    let path = format!("/v1/webhooks/{}", made["id"].as_str().unwrap());
    world.call("owner", Method::POST, "/v1/owners/me/pause", None).await.expect(204);
    world.settle_down().await;
    let now = world.get("owner", &path).await.expect(200);
    assert_eq!(now["status"], "disabled");
    assert!(now["reason"].as_str().unwrap().contains("410"));
    world.call("owner", Method::POST, "/v1/owners/me/resume", None).await.expect(204);
    world.advance(100_000);
    world.settle_down().await;
    assert_eq!(receiver.got().len(), 1);
    let failed = deliveries(&world, "owner", &made).await.pop().unwrap();
    let resend = format!("{path}/deliveries/{}/resend", failed["id"].as_str().unwrap());
    let refused = world.call("owner", Method::POST, &resend, None).await;
    assert_eq!(refused.code(), "state_conflict");
    // Enabled again, one click sends it.
    world.call("owner", Method::POST, &format!("{path}/enable"), None).await.expect(200);
    world.call("owner", Method::POST, &resend, None).await.expect(202);
    world.settle_down().await;
    assert_eq!(receiver.got().len(), 2);
    assert_eq!(receiver.got()[0].0["webhook-id"], receiver.got()[1].0["webhook-id"]);
    // Removed, it is not there.
    world.call("owner", Method::DELETE, &path, None).await.expect(200);
    two_events(&world).await;
    world.settle_down().await;
    assert_eq!(receiver.got().len(), 2);
    assert_eq!(world.get("owner", &path).await.code(), "not_found");
    assert_eq!(world.call("owner", Method::POST, &resend, None).await.code(), "not_found");
}

/// Nobody answers for three days: it is disabled, and its owner is told by an event.
#[tokio::test]
async fn an_endpoint_that_never_answers_is_disabled_in_the_end() {
    let world = World::ready().await;
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", closed.local_addr().unwrap());
    drop(closed);
    let made = hook(&world, "owner", json!({ "url": url, "kinds": ["owner.paused"] })).await;
    world.call("owner", Method::POST, "/v1/owners/me/pause", None).await.expect(204);
    for _ in 0..12 {
        world.settle_down().await;
        world.advance(86_400);
    }
    let row = deliveries(&world, "owner", &made).await.remove(0);
    assert_eq!(
        (row["status"].as_str(), row["attempts"].as_array().unwrap().len()),
        (Some("failed"), 10)
    );
    assert!(row["attempts"][0]["error"].is_string(), "{row}");
    let path = format!("/v1/webhooks/{}", made["id"].as_str().unwrap());
    assert_eq!(world.get("owner", &path).await.expect(200)["status"], "disabled");
    let events = world.reader().events(0, 1_000_000).unwrap().events;
    assert!(events.iter().any(|it| it.event.kind == "webhook.disabled"));
}

#[tokio::test]
async fn endpoints_are_their_holders_own_and_lead_to_the_public_internet() {
    let world = World::ready().await;
    let receiver = Receiver::begin(&[]).await;
    let made = hook(&world, "seller", json!({ "url": receiver.url })).await;
    let path = format!("/v1/webhooks/{}", made["id"].as_str().unwrap());
    assert_eq!(world.get("owner", &path).await.code(), "not_found");
    assert_eq!(world.call("owner", Method::DELETE, &path, None).await.code(), "not_found");
    let agents = world.post("agent", "/v1/webhooks", json!({ "url": receiver.url })).await;
    assert_eq!(agents.code(), "not_found");
    // What concerns the owner is not the seller's.
    two_events(&world).await;
    world.settle_down().await;
    assert_eq!(receiver.kinds(), ["webhook.created"]);
    let check = async |body: Value, code: &str| {
        let refused = world.post("owner", "/v1/webhooks", body.clone()).await;
        assert_eq!(refused.code(), code, "{body}");
    };
    for url in [
        "https://10.0.0.1/",
        "https://169.254.169.254/",
        "https://[fd00::1]/",
        "https://a.internal/",
    ] {
        check(json!({ "url": url }), "target_forbidden").await;
    }
    for url in ["ftp://a.example/", "http://a.example/", "x", ""] {
        check(json!({ "url": url }), "url_invalid").await;
    }
    check(json!({ "url": "https://a.example/", "kinds": ["A"] }), "validation_failed").await;
    for _ in 0..10 {
        hook(&world, "owner", json!({ "url": "https://a.example/" })).await;
    }
    check(json!({ "url": "https://a.example/" }), "state_conflict").await;
}

/// An endpoint that takes requests and never answers, and the requests it holds.
async fn stalled() -> (String, Arc<Mutex<Vec<tokio::net::TcpStream>>>) {
    let stalled = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", stalled.local_addr().unwrap());
    let holding = Arc::new(Mutex::new(Vec::new()));
    let held = holding.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = stalled.accept().await {
            held.lock().unwrap().push(stream);
        }
    });
    (url, holding)
}

/// Whoever has many endpoints that hang, and many events for each, has its share of what is under way
/// and no more: another principal is told meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn one_principal_does_not_hold_up_another() {
    let mut config = earnest::config::Config::simulated();
    config.limits.webhook_calls = 4;
    config.limits.webhook_calls_per_endpoint = 2;
    config.limits.webhook_calls_per_principal = 3;
    config.limits.check().unwrap();
    let world = World::real_time(config).await;
    let mut holding = Vec::new();
    for _ in 0..3 {
        let (url, held) = stalled().await;
        hook(&world, "owner", json!({ "url": url })).await;
        holding.push(held);
    }
    for _ in 0..5 {
        two_events(&world).await;
    }
    let held = || holding.iter().map(|held| held.lock().unwrap().len()).sum::<usize>();
    crate::world::until("the owner has its share", || held() == 3).await;
    let begun = std::time::Instant::now();
    let good = Receiver::begin(&[]).await;
    hook(&world, "operator", json!({ "url": good.url, "kinds": ["owner.*"] })).await;
    for round in 1..=3 {
        two_events(&world).await;
        crate::world::until("the other is told", || good.got().len() == 2 * round).await;
    }
    assert!(begun.elapsed() < world.earnest.app.limits.webhook_timeout());
    assert_eq!(held(), 3);
    let each = |held: &Arc<Mutex<Vec<_>>>| held.lock().unwrap().len() <= 2;
    assert!(holding.iter().all(each), "an endpoint has more than its share");
}

/// However many deliveries of one principal wait, those of another are found.
#[tokio::test]
async fn what_is_due_is_listed_in_turn() {
    let world = World::ready().await;
    let receiver = Receiver::begin(&[]).await;
    let many = hook(&world, "owner", json!({ "url": receiver.url, "kinds": ["owner.*"] })).await;
    let few = json!({ "url": receiver.url, "kinds": ["owner.paused"] });
    let few = hook(&world, "operator", few).await;
    for _ in 0..20 {
        two_events(&world).await;
    }
    let app = &world.earnest.app;
    world.lead().await;
    earnest::flow::hook::fan_out(app, &mut None).await.unwrap();
    let due = earnest::flow::hook::due(app).unwrap();
    let of = |made: &Value| {
        let id = made["id"].as_str().unwrap();
        due.iter().filter(|delivery| delivery.hook.to_string() == id).count()
    };
    let each = app.limits.webhook_calls_per_endpoint;
    assert_eq!((of(&many), of(&few), due.len()), (each, each, 2 * each));
    // One of each by turns.
    let first: Vec<_> = due.iter().take(2).map(|delivery| delivery.hook).collect();
    assert_ne!(first[0], first[1]);
    while !earnest::flow::hook::due(app).unwrap().is_empty() {
        world.jobs().await;
    }
    assert_eq!(receiver.got().len(), 60);
    world.assert_sound();
}

/// What is more than may wait for an endpoint is listed with the reason, and goes by hand.
#[tokio::test]
async fn what_is_too_much_is_kept_and_not_sent() {
    let mut config = earnest::config::Config::simulated();
    config.settings.webhook_waiting = 3;
    let world = World::with(config, paypal_sim::SimConfig::default()).await;
    let receiver = Receiver::begin(&[]).await;
    let made = hook(&world, "owner", json!({ "url": receiver.url, "kinds": ["owner.*"] })).await;
    for _ in 0..2 {
        two_events(&world).await;
    }
    world.settle_down().await;
    assert_eq!(receiver.got().len(), 3);
    let rows = deliveries(&world, "owner", &made).await;
    let left: Vec<&Value> = rows.iter().filter(|row| row["status"] == "failed").collect();
    assert_eq!(left.len(), 1, "{rows:?}");
    assert!(left[0]["attempts"][0]["error"].as_str().unwrap().contains("3 deliveries"));
    let path = format!("/v1/webhooks/{}", made["id"].as_str().unwrap());
    let resend = format!("{path}/deliveries/{}/resend", left[0]["id"].as_str().unwrap());
    world.call("owner", Method::POST, &resend, None).await.expect(202);
    world.settle_down().await;
    assert_eq!(receiver.got().len(), 4);
}

/// An endpoint that takes the request and never answers holds up its own deliveries only.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_endpoint_holds_up_no_other() {
    let world = World::in_real_time().await;
    let (url, holding) = stalled().await;
    let good = Receiver::begin(&[]).await;
    hook(&world, "owner", json!({ "url": url })).await;
    hook(&world, "owner", json!({ "url": good.url, "kinds": ["owner.*"] })).await;
    let limits = &world.earnest.app.limits;
    let begun = std::time::Instant::now();
    for round in 1..=4 {
        two_events(&world).await;
        crate::world::until("the other endpoint is told", || good.got().len() == 2 * round).await;
    }
    // By then the first request of the stalled one has not even timed out.
    assert!(begun.elapsed() < limits.webhook_timeout());
    // And it has no more of them than it may.
    let open = holding.lock().unwrap().len();
    assert!((1..=limits.webhook_calls_per_endpoint).contains(&open), "{open}");
}

/// Whoever lost the answer asks again under the same key, and gets the same endpoint and secret.
#[tokio::test]
async fn a_webhook_is_made_once_under_an_idempotency_key() {
    let world = World::new().await;
    let body = json!({ "url": "https://a.example/", "scheme": "v1" });
    let make = async |body: &Value| {
        let headers = [("idempotency-key", "once")];
        world.call_with("owner", Method::POST, "/v1/webhooks", Some(body.clone()), &headers).await
    };
    let first = make(&body).await.expect(201);
    assert!(first["secret"].as_str().unwrap().starts_with("whsec_"));
    assert_eq!(make(&body).await.expect(201), first);
    let other = make(&json!({ "url": "https://b.example/" })).await;
    assert_eq!(other.refusal(), "idempotency_conflict");
    let listed = world.get("owner", "/v1/webhooks").await.expect(200);
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
}

/// A delivery that ended is shown as long as it is kept, and is not told again afterwards.
#[tokio::test]
async fn deliveries_are_cleared_away_after_their_time() {
    let mut config = earnest::config::Config::simulated();
    config.settings.webhook_keep_seconds = 100;
    let world = World::with(config, paypal_sim::SimConfig::default()).await;
    let receiver = Receiver::begin(&[]).await;
    let made = hook(&world, "owner", json!({ "url": receiver.url, "kinds": ["owner.*"] })).await;
    two_events(&world).await;
    world.jobs().await;
    assert_eq!((receiver.got().len(), deliveries(&world, "owner", &made).await.len()), (2, 2));
    world.advance(99);
    world.jobs().await;
    assert_eq!(deliveries(&world, "owner", &made).await.len(), 2);
    world.advance(1);
    world.jobs().await;
    assert!(deliveries(&world, "owner", &made).await.is_empty());
    world.jobs().await;
    assert_eq!(receiver.got().len(), 2);
}

/// An endpoint straight in the books.
async fn made(world: &World, owner: OwnerId, url: &str, sealed: &str) -> Hook {
    let app = &world.earnest.app;
    let hook = Hook {
        id: HookId::new(app.seed()),
        of: Principal::Owner(owner),
        url: url.to_owned(),
        kinds: vec!["owner.paused".to_owned()],
        scheme: Scheme::V1a,
        sealed: sealed.to_owned(),
        public_key: None,
        state: HookState::Active,
        since: world.mark(),
        waiting: 0,
        silent: 0,
        rests_until: None,
        created_at: app.now(),
    };
    let settings = Settings { webhook_endpoints: 10_000, ..Settings::default() };
    let unit = CreateHook { hook, key: None, settings: settings.into() };
    app.store.submit(unit).await.unwrap()
}

/// A secret that does not open is our own failure: the receiver is asked nothing, so that nothing is
/// held against it, however often that happens.
#[tokio::test]
async fn what_is_wrong_here_is_not_held_against_a_receiver() {
    let world = World::ready().await;
    let receiver = Receiver::begin(&[]).await;
    let owner = world.owner_id().parse().unwrap();
    let row = made(&world, owner, &receiver.url, "not sealed by us").await;
    world.call("owner", Method::POST, "/v1/owners/me/pause", None).await.expect(204);
    for _ in 0..12 {
        world.jobs().await;
        world.advance(86_400);
    }
    assert_eq!(receiver.got().len(), 0);
    let shown = json!({ "id": row.id.to_string() });
    let delivery = deliveries(&world, "owner", &shown).await.remove(0);
    assert_eq!((&delivery["status"], &delivery["attempts"]), (&json!("waiting"), &json!([])));
    let kept = world.reader().row::<Delivery>(delivery["id"].as_str().unwrap()).unwrap().unwrap();
    assert_eq!(kept.tries, 0, "its schedule is still whole");
    let path = format!("/v1/webhooks/{}", row.id);
    assert_eq!(world.get("owner", &path).await.expect(200)["status"], "active");
    world.assert_sound();
}

/// More endpoints than one page of a list: each is told.
#[tokio::test]
async fn every_endpoint_is_told_however_many_there_are() {
    let world = World::ready().await;
    let owner = world.owner_id().parse().unwrap();
    for _ in 0..501 {
        made(&world, owner, "http://127.0.0.1:9/hook", "x").await;
    }
    world.call("owner", Method::POST, "/v1/owners/me/pause", None).await.expect(204);
    world.lead().await;
    earnest::flow::hook::fan_out(&world.earnest.app, &mut None).await.unwrap();
    let page = world.reader().all::<Delivery>(None, 1_000);
    let told: std::collections::BTreeSet<HookId> =
        page.unwrap().items.iter().map(|row| row.hook).collect();
    assert_eq!(told.len(), 501);
}

/// Whoever follows the log sees what becomes of endpoints, once each.
#[tokio::test]
async fn enabling_and_removing_are_events() {
    let world = World::ready().await;
    let receiver = Receiver::begin(&[410]).await;
    let made = hook(&world, "owner", json!({ "url": receiver.url })).await;
    world.settle_down().await;
    let path = format!("/v1/webhooks/{}", made["id"].as_str().unwrap());
    let enable = format!("{path}/enable");
    for _ in 0..2 {
        world.call("owner", Method::POST, &enable, None).await.expect(200);
    }
    world.call("owner", Method::DELETE, &path, None).await.expect(200);
    let events = world.reader().events(0, 1_000_000).unwrap().events;
    let kinds = events.iter().filter(|it| it.event.data["webhook"] == made["id"]);
    let kinds: Vec<&str> = kinds.map(|it| it.event.kind.as_str()).collect();
    let all = ["webhook.created", "webhook.disabled", "webhook.enabled", "webhook.removed"];
    assert_eq!(kinds, all);
}
