//! The same wish twice: one id for one thing, whoever carries it, however often, however many at
//! once.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::{Answer, World};

impl World {
    /// Authorizes with the id in the header, the body, or both.
    async fn authorize_as(&self, header: Option<&str>, body: Option<&str>, amount: i64) -> Answer {
        let mut wish = json!({ "quote": self.quote("/weather", amount), "max_price": amount });
        if let Some(id) = body {
            wish["request_id"] = json!(id);
        }
        let headers: Vec<(&str, &str)> = header.iter().map(|id| ("idempotency-key", *id)).collect();
        self.call_with("agent", Method::POST, "/v1/authorize", Some(wish), &headers).await
    }

    async fn keyed(&self, role: &str, path: &str, key: &str) -> Answer {
        self.call_with(role, Method::POST, path, None, &[("idempotency-key", key)]).await
    }
}

/// Sixty-four at once under one id: one purchase, one hold, one voucher, byte for byte.
#[tokio::test]
async fn parallel_repeats_are_one_purchase() {
    let world = World::ready().await;
    let quote = world.quote("/weather", 30_000);
    for round in 0..5 {
        let id = format!("same-{round}");
        let answers = join_all((0..64).map(|_| world.authorize(quote.clone(), &id))).await;
        let bodies: BTreeSet<String> =
            answers.iter().map(|answer| answer.body.to_string()).collect();
        assert_eq!(bodies.len(), 1, "{bodies:?}");
        assert!(answers.iter().all(|answer| answer.status == 201));
        let fresh =
            answers.iter().filter(|answer| !answer.headers.contains_key("idempotent-replayed"));
        assert_eq!(fresh.count(), 1);
        assert_eq!(world.tab().await["held_micros"], (round + 1) * 30_000);
    }
    let list = world.get("owner", "/v1/purchases?limit=500").await.expect(200);
    assert_eq!(list["data"].as_array().unwrap().len(), 5);
    world.assert_balanced().await;
}

/// Header and body name the same wish.
#[tokio::test]
async fn header_and_body_are_one_id() {
    let world = World::ready().await;
    let first = world.authorize_as(Some("a"), None, 10_000).await.expect(201);
    for (header, body) in [(None, Some("a")), (Some("a"), Some("a")), (Some("a"), None)] {
        let again = world.authorize_as(header, body, 10_000).await;
        assert_eq!(again.headers["idempotent-replayed"], "true", "{header:?} {body:?}");
        assert_eq!(again.expect(201), first);
    }
    let mixed = world.authorize_as(Some("a"), Some("b"), 10_000).await;
    assert_eq!(mixed.refusal(), "request_malformed");
    // Ids are compared as they are.
    let other = world.authorize_as(Some("A"), None, 10_000).await.expect(201);
    assert_ne!(other["purchase"], first["purchase"]);
    assert_eq!(world.tab().await["held_micros"], 20_000);
}

/// Another thing under a used id is refused, whatever became of the first; quote id, expiry and
/// `max_price` are not part of the thing.
#[tokio::test]
async fn other_arguments_are_a_conflict() {
    let world = World::ready().await;
    let voucher = world.buy(10_000, "held").await;
    world.spend(10_000, "billed").await;
    let released = world.buy(10_000, "released").await;
    world.report(&released, "failed").await;
    world.authorize(world.quote("/weather", 9_000_000), "denied").await.expect(403);
    let money = world.money();
    for id in ["held", "billed", "released", "denied"] {
        for (name, value) in [
            ("amount_micros", json!(10_001)),
            ("url", json!("http://127.0.0.1:9/other")),
            ("method", json!("POST")),
            ("listing", json!("other")),
            ("body_sha256", json!("0".repeat(64))),
        ] {
            let mut quote = world.quote("/weather", 10_000);
            quote[name] = value;
            let answer = world.authorize(quote, id).await;
            assert_eq!(
                (answer.status.as_u16(), answer.code()),
                (422, "idempotency_conflict"),
                "{id} {name}"
            );
        }
    }
    assert_eq!(world.money(), money);
    // The same thing: another quote id, expiry and most.
    let mut quote = world.quote("/weather", 10_000);
    quote["expires_at"] = json!(earnest_core::time::after(world.clock.now(), 60));
    let body = json!({ "quote": quote, "max_price": "$500", "request_id": "held" });
    let again = world.post("agent", "/v1/authorize", body).await.expect(201);
    assert_eq!(again["voucher"], json!(voucher));
}

/// What a repeat shows is the purchase as it is now.
#[tokio::test]
async fn a_repeat_shows_how_it_stands() {
    let world = World::ready().await;
    let first = world.authorize(world.quote("/weather", 10_000), "a").await.expect(201);
    let voucher = first["voucher"].as_str().unwrap();
    assert_eq!(world.report(voucher, "redeemed").await["outcome"], "billed");
    // While the voucher lives it is shown, used or not: the seller is who tells.
    let again = world.authorize(world.quote("/weather", 10_000), "a").await;
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert_eq!(again.expect(201)["voucher"], json!(voucher));
    world.advance(120);
    let again = world.authorize(world.quote("/weather", 10_000), "a").await;
    assert_eq!(again.headers["idempotent-replayed"], "true");
    let again = again.expect(200);
    assert_eq!((&again["status"], &again["id"]), (&json!("billed"), &first["purchase"]));
    // Even where its quote has expired since, or the agent was paused: it costs nothing any more.
    world.advance(600);
    let mut old = world.quote("/weather", 10_000);
    old["expires_at"] = json!(earnest_core::time::after(world.clock.now(), -1));
    assert_eq!(world.authorize(old, "a").await.status, 200);
    // A voucher that ended unreported is issued anew, on the same hold.
    let first = world.authorize(world.quote("/weather", 10_000), "b").await.expect(201);
    let held = world.tab().await["held_micros"].clone();
    world.advance(121);
    let next = world.authorize(world.quote("/weather", 10_000), "b").await;
    assert!(!next.headers.contains_key("idempotent-replayed"));
    let next = next.expect(201);
    assert_eq!(next["purchase"], first["purchase"]);
    assert_ne!(next["voucher"], first["voucher"]);
    assert_eq!(world.tab().await["held_micros"], held);
    // A refusal leaves the id free: the same id buys once the reason is gone.
    world.policy("owner", json!({ "per_call_cap_micros": 1 })).await;
    let denied = world.authorize(world.quote("/weather", 10_000), "c").await;
    assert_eq!(denied.refusal(), "policy_denied/per_call_cap");
    world.policy("owner", json!({})).await;
    world.authorize(world.quote("/weather", 10_000), "c").await.expect(201);
}

/// Ids belong to whoever sends them: another agent's are its own.
#[tokio::test]
async fn an_id_is_its_agents_own() {
    let world = World::ready().await;
    let sister = world.post("owner", "/v1/agents", json!({ "name": "Sister" })).await.expect(201);
    let path = format!("/v1/agents/{}/keys", sister["id"].as_str().unwrap());
    let key =
        world.post("owner", &path, json!({})).await.expect(201)["key"].as_str().unwrap().to_owned();
    let second =
        world.post("owner", &format!("/v1/agents/{}/keys", world.agent_id()), json!({})).await;
    let second = second.expect(201)["key"].as_str().unwrap().to_owned();
    let wish = |amount: i64| json!({ "quote": world.quote("/weather", amount), "max_price": amount, "request_id": "a" });
    let first = world.post("agent", "/v1/authorize", wish(10_000)).await.expect(201);
    let other = world.post(&key, "/v1/authorize", wish(20_000)).await.expect(201);
    assert_ne!(first["purchase"], other["purchase"]);
    // Another key of the same agent is the same agent.
    let again = world.post(&second, "/v1/authorize", wish(10_000)).await.expect(201);
    assert_eq!(again, first);
    assert_eq!(
        world.post(&second, "/v1/authorize", wish(1)).await.refusal(),
        "idempotency_conflict"
    );
}

/// Settling twice under one key is one settlement; sixteen at once, too; the key is for that tab.
#[tokio::test]
async fn a_settlement_is_asked_for_once() {
    let world = World::ready().await;
    world.spend(100_000, "a").await;
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/tabs/{tab}/settle");
    let answers = join_all((0..16).map(|_| world.keyed("owner", &path, "s-1"))).await;
    let ids: BTreeSet<String> = answers
        .iter()
        .filter(|answer| answer.status == 202)
        .map(|answer| answer.body["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), 1, "{:?}", answers.iter().map(|answer| &answer.body).collect::<Vec<_>>());
    assert!(answers.iter().all(|answer| [202, 409].contains(&answer.status.as_u16())));
    world.settle_down().await;
    let captures = || {
        let journal = world.sim().journal();
        journal.iter().filter(|entry| entry.operation == Some("orders.create")).count()
    };
    assert_eq!(captures(), 1);
    // Later the same key still shows the same settlement, as it is now.
    world.spend(100_000, "b").await;
    world.advance(60);
    let again = world.keyed("owner", &path, "s-1").await;
    assert_eq!(again.status, 202, "{}", again.body);
    assert_eq!(again.body["id"], json!(ids.first().unwrap()));
    assert_eq!(again.body["status"], "captured");
    world.settle_down().await;
    assert_eq!(captures(), 1, "no second capture came of the repeat");
    // Another key is another wish.
    let tab_now = world.tab().await["id"].as_str().unwrap().to_owned();
    let other = world.keyed("owner", &format!("/v1/tabs/{tab_now}/settle"), "s-2").await;
    assert_eq!(other.status, 202, "{}", other.body);
    world.settle_down().await;
    assert_eq!(captures(), 2);
    world.assert_balanced().await;
}

/// A key of one tab does not serve for another.
#[tokio::test]
async fn a_key_is_bound_to_its_tab() {
    let world = World::ready().await;
    world.spend(100_000, "a").await;
    let first = world.tab().await["id"].as_str().unwrap().to_owned();
    world.keyed("owner", &format!("/v1/tabs/{first}/settle"), "k").await.expect(202);
    world.settle_down().await;
    world.call("owner", Method::POST, &format!("/v1/tabs/{first}/close"), None).await.expect(202);
    world.settle_down().await;
    world.advance(1);
    world.spend(100_000, "b").await;
    let second = world.tab().await["id"].as_str().unwrap().to_owned();
    assert_ne!(first, second);
    let answer = world.keyed("owner", &format!("/v1/tabs/{second}/settle"), "k").await;
    assert_eq!((answer.status.as_u16(), answer.code()), (422, "idempotency_conflict"));
    // The operator's keys are the operator's: the same word is another key.
    use paypal_sim::{Effect, Fault};
    let declined = Effect::Issue { issue: "INSTRUMENT_DECLINED".to_owned() };
    world.sim().add_fault(Fault::on("orders.create", declined)).unwrap();
    world.keyed("owner", &format!("/v1/tabs/{second}/settle"), "k-2").await.expect(202);
    world.settle_down().await;
    assert_eq!(world.tab().await["status"], "frozen");
    let path = format!("/v1/tabs/{second}/write-off");
    let answers = join_all((0..16).map(|_| world.keyed("operator", &path, "k"))).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{:?}", answers[0].body);
    assert_eq!(world.totals("losses").await, "0/100/0/0", "written off once");
    let path = format!("/v1/tabs/{first}/write-off");
    assert_eq!(world.keyed("operator", &path, "k").await.refusal(), "idempotency_conflict");
    world.assert_balanced().await;
}

/// Creating something twice under one key makes one of it.
#[tokio::test]
async fn one_key_makes_one_thing() {
    let world = World::new().await;
    for (role, path, other) in [
        ("operator", "/v1/owners", json!({ "name": "Same", "zone": "Asia/Tokyo" })),
        ("operator", "/v1/sellers", json!({ "name": "Same", "commission_ppm": 1 })),
        ("owner", "/v1/agents", json!({ "name": "Other" })),
    ] {
        let make = |body: Value, key: &'static str| {
            let world = &world;
            async move {
                world
                    .call_with(role, Method::POST, path, Some(body), &[("idempotency-key", key)])
                    .await
            }
        };
        let answers = join_all((0..16).map(|_| make(json!({ "name": "Same" }), "k"))).await;
        let made: BTreeSet<String> =
            answers.iter().map(|answer| answer.body["id"].as_str().unwrap().to_owned()).collect();
        assert_eq!(made.len(), 1, "{path}");
        assert!(answers.iter().all(|answer| answer.status == 201));
        assert_eq!(make(other, "k").await.refusal(), "idempotency_conflict", "{path}");
        let second = make(json!({ "name": "Same" }), "k-2").await.expect(201);
        assert!(!made.contains(second["id"].as_str().unwrap()));
    }
}
