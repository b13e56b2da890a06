//! What PayPal does, and what is made of it.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use earnest::app::WebhookCheck;
use earnest::config::Config;
use earnest_core::settlement::{Settlement, SettlementState};
use paypal_sim::{Effect, Entry, Fault};
use reqwest::Method;
use serde_json::json;
use tokio::net::TcpListener;

use super::{finish, transfers};
use crate::forge::{Overheard, Tap};
use crate::judge::all;
use crate::webhooks::pending_settlement;
use crate::world::{World, unchanged};

/// Buys for one dollar, closes the tab, and lets everything happen.
async fn settle_a_dollar(world: &World, faults: Vec<Fault>) -> String {
    world.policy("owner", json!({})).await;
    world.spend(1_000_000, "line").await;
    world.sim().set_faults(faults).unwrap();
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    world.settle_down().await;
    world.mail().await;
    tab
}

fn calls(world: &World, operation: &str) -> Vec<Entry> {
    let mut journal = world.sim().journal();
    journal.retain(|entry| entry.operation == Some(operation));
    journal
}

fn keys(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(|entry| entry.headers["paypal-request-id"].to_string()).collect()
}

#[tokio::test]
async fn ppal_16_a_token_that_dies_early_is_renewed_once_and_the_charge_repeated_once() {
    let world = World::ready().await;
    let tokens = calls(&world, "oauth.token").len();
    let dead = Fault::on("orders.create", Effect::DeadToken);
    settle_a_dollar(&world, vec![dead]).await;
    let charges = calls(&world, "orders.create");
    assert_eq!(charges.iter().map(|it| it.status).collect::<Vec<_>>(), [Some(401), Some(201)]);
    let keys = keys(&charges);
    assert_eq!(keys[0], keys[1], "the same call, under the same key");
    assert_eq!(charges[0].body, charges[1].body);
    assert_eq!(calls(&world, "oauth.token").len(), tokens + 1);
    assert_eq!(all::<Settlement>(world.reader())[0].state, SettlementState::Captured);
    world.assert_at_rest();
    finish(&world).await;
}

#[tokio::test]
async fn ppal_16_tokens_that_were_forgotten_or_ran_out_are_renewed_once() {
    let world = World::ready().await;
    for (n, end) in ["forgotten", "ran out"].into_iter().enumerate() {
        let tokens = calls(&world, "oauth.token").len();
        match end {
            "forgotten" => world.sim().drop_tokens(),
            _ => world.advance(9 * 3600),
        }
        world.spend(50_000, &format!("line-{n}")).await;
        let tab = world.tab().await["id"].as_str().unwrap().to_owned();
        let close = format!("/v1/tabs/{tab}/close");
        world.call("owner", Method::POST, &close, None).await.expect(202);
        world.settle_down().await;
        assert_eq!(calls(&world, "oauth.token").len(), tokens + 1, "{end}");
        world.advance(1);
    }
    world.mail().await;
    world.assert_at_rest();
    finish(&world).await;
}

/// Eight at once find the token dead: one asks for another, the others wait for it.
#[tokio::test]
async fn ppal_16_many_calls_under_a_dead_token_renew_it_once() {
    let world = World::ready().await;
    let tokens = calls(&world, "oauth.token").len();
    world.sim().drop_tokens();
    let begin = (0..8).map(|_| world.call("owner", Method::POST, "/v1/payment-methods", None));
    for answer in futures_util::future::join_all(begin).await {
        answer.expect(201);
    }
    assert_eq!(calls(&world, "oauth.token").len(), tokens + 1);
    finish(&world).await;
}

#[tokio::test]
async fn ppal_18_a_declined_settlement_freezes_the_tab_and_keeps_the_debt() {
    let world = World::ready().await;
    let declined = Effect::Issue { issue: "INSTRUMENT_DECLINED".to_owned() };
    let tab = settle_a_dollar(&world, vec![Fault::on("orders.create", declined)]).await;
    let path = format!("/v1/tabs/{tab}/settlements");
    let settlement = world.get("owner", &path).await.expect(200)["data"][0].clone();
    assert_eq!(settlement["status"], "declined");
    assert_eq!(settlement["issue"], "INSTRUMENT_DECLINED");
    let shown = world.tab().await;
    assert_eq!(shown["status"], "frozen");
    assert_eq!((&shown["owed_micros"], &shown["captured_micros"]), (&json!(1_000_000), &json!(0)));
    let refused = world.authorize(world.quote("/weather", 10_000), "more").await;
    assert_eq!(
        (refused.status.as_u16(), refused.refusal()),
        (403, "policy_denied/tab_frozen".to_owned())
    );

    // Not charged for ever: nothing is tried again until the owner asks.
    for _ in 0..5 {
        world.advance(3600);
        world.settle_down().await;
    }
    assert_eq!(calls(&world, "orders.create").len(), 1);
    world.assert_at_rest();

    // And not forgotten: with another way to pay, the whole debt is collected, once.
    world.vault().await;
    let headers = [("idempotency-key", "again")];
    let path = format!("/v1/tabs/{tab}/settle");
    world.call_with("owner", Method::POST, &path, None, &headers).await.expect(202);
    world.settle_down().await;
    world.mail().await;
    let charges = calls(&world, "orders.create");
    assert_eq!(charges.len(), 2);
    let keys = keys(&charges);
    assert_ne!(keys[0], keys[1], "a decline is not replayed");
    assert_eq!(world.totals(&format!("tab:{tab}:owed")).await, "0/1000/0/1000");
    world.assert_at_rest();
    finish(&world).await;
}

/// Whatever the payer's side says no with, and however it says it.
#[tokio::test]
async fn ppal_18_every_refusal_of_the_payers_side_freezes() {
    let issue = |issue: &str| Effect::Issue { issue: issue.to_owned() };
    let effects = [
        issue("PAYER_CANNOT_PAY"),
        issue("TRANSACTION_REFUSED"),
        issue("PAYER_ACCOUNT_RESTRICTED"),
        issue("AGREEMENT_ALREADY_CANCELLED"),
        issue("TOKEN_ID_NOT_FOUND"),
        issue("SOME_ISSUE_NOBODY_KNEW_OF"),
        Effect::Denied,
        Effect::PayerAction,
    ];
    for effect in effects {
        let world = World::ready().await;
        let name = format!("{effect:?}");
        let tab = settle_a_dollar(&world, vec![Fault::on("orders.create", effect)]).await;
        assert_eq!(world.tab().await["status"], "frozen", "{name}");
        assert_eq!(world.totals(&format!("tab:{tab}:owed")).await, "0/1000/0/0", "{name}");
        assert_eq!(world.totals("paypal_cash").await, "0/0/0/0", "{name}");
        world.assert_at_rest();
        finish(&world).await;
    }
}

/// What is wrong on our side is no reason to freeze an owner: it voids, alarms, and is tried again.
#[tokio::test]
async fn ppal_18_a_refusal_of_our_side_freezes_nobody() {
    for issue in ["PAYEE_ACCOUNT_RESTRICTED", "AMOUNT_MISMATCH", "PAYEE_ACCOUNT_LOCKED_OR_CLOSED"] {
        let world = World::ready().await;
        let refused = Effect::Issue { issue: issue.to_owned() };
        let tab = settle_a_dollar(&world, vec![Fault::on("orders.create", refused)]).await;
        assert_ne!(world.tab().await["status"], "frozen", "{issue}");
        assert_eq!(world.totals(&format!("tab:{tab}:owed")).await, "0/1000/0/0", "{issue}");
        let events = world.reader().events(0, 1_000_000).unwrap().events;
        let alarmed = events.iter().any(|it| it.event.kind.starts_with("alarm."));
        assert!(alarmed, "{issue}");
        world.advance(60);
        world.settle_down().await;
        world.mail().await;
        assert_eq!(world.totals(&format!("tab:{tab}:owed")).await, "0/1000/0/1000", "{issue}");
        world.assert_at_rest();
        finish(&world).await;
    }
}

/// A PayPal that only gives tokens and verifies signatures, and keeps the bytes it was asked with.
#[derive(Clone, Default)]
struct Verifier(Arc<Mutex<Vec<Vec<u8>>>>);

impl Verifier {
    async fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let verifier = Self::default();
        let token = r#"{"access_token":"t","token_type":"Bearer","expires_in":32400,"scope":"x"}"#;
        let json = [("content-type", "application/json")];
        let app = Router::new()
            .route("/v1/oauth2/token", post(move || async move { (json, token) }))
            .route("/v1/notifications/verify-webhook-signature", post(verify))
            .with_state(verifier.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (verifier, url)
    }
}

async fn verify(State(verifier): State<Verifier>, body: Bytes) -> axum::Json<serde_json::Value> {
    verifier.0.lock().unwrap().push(body.to_vec());
    axum::Json(json!({ "verification_status": "SUCCESS" }))
}

#[tokio::test]
async fn webh_04_paypal_is_asked_with_the_very_bytes_that_came() {
    let (verifier, url) = Verifier::start().await;
    let config = Config {
        simulator_url: Some(url.clone()),
        webhook_check: WebhookCheck::Postback,
        webhook_id: Some("HOOK".to_owned()),
        ..Config::simulated()
    };
    let world = World::with(config, paypal_sim::SimConfig::default()).await;
    let mut headers = reqwest::header::HeaderMap::new();
    let certificate = format!("{url}/v1/notifications/certs/CERT-1");
    let time = world.clock.now().to_string();
    for (name, value) in [
        ("paypal-transmission-id", "tr-1"),
        ("paypal-transmission-time", &time),
        ("paypal-transmission-sig", "c2ln"),
        ("paypal-cert-url", &certificate),
        ("paypal-auth-algo", "SHA256withRSA"),
    ] {
        headers.insert(name, value.parse().unwrap());
    }
    let bodies = [
        "{ \"id\":\"WH-1\" ,\n\t\"event_type\": \"X\", \"z\":1.0, \"a\":{}, \"n\":1e2,\"e\":\"\\/\\u00e9\"}\r\n",
        "{\"event_type\":\"X\",\"id\":\"WH-2\",\"amount\":100.00,\"big\":12345678901234567890,\"s\":\"\u{e9}\"}",
        " {\"id\":\"WH-3\",\"event_type\":\"X\",\"resource\":{\"amount\":{\"breakdown\":{}}},\"list\":[ ]} ",
    ];
    for body in bodies {
        let delivery = Overheard { headers: headers.clone(), body: body.as_bytes().to_vec() };
        world.deliver(&delivery).await.expect(200);
        let asked = verifier.0.lock().unwrap().pop().unwrap();
        let asked = String::from_utf8(asked).unwrap();
        let end = format!("\"webhook_event\":{body}}}");
        assert!(asked.ends_with(&end), "{asked}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&asked).unwrap()["webhook_id"],
            "HOOK"
        );
    }
    world.assert_balanced().await;
    assert_eq!(world.broken(), Vec::<String>::new());
}

/// The same with the certificate: bytes that say the same in other words were never signed.
#[tokio::test]
async fn webh_04_a_body_written_again_is_not_the_one_that_was_signed() {
    let (world, tap) = Tap::world(Config::simulated(), &unchanged()).await;
    pending_settlement(&world).await;
    let honest = tap.heard("CHECKOUT.ORDER.COMPLETED").await;
    let rewritten = honest.with_body(honest.json().to_string().into_bytes());
    assert_ne!(rewritten.body, honest.body);
    let mut spaced = honest.body.clone();
    spaced.push(b' ');
    let head = world.reader().head().unwrap().seq;
    for other in [rewritten, honest.with_body(spaced)] {
        let refused = world.deliver(&other).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (401, "webhook_signature_invalid"));
    }
    assert_eq!(world.reader().head().unwrap().seq, head);
    assert!(String::from_utf8_lossy(&honest.body).contains("\"breakdown\":{}"));
    world.deliver(&honest).await.expect(200);
    finish(&world).await;
}

#[tokio::test]
async fn webh_12_a_certificate_of_the_senders_choice_is_not_even_fetched() {
    let (world, tap) = Tap::world(Config::simulated(), &unchanged()).await;
    pending_settlement(&world).await;
    let honest = tap.heard("PAYMENT.CAPTURE.PENDING").await;
    // Somebody's server that waits to be asked for a certificate.
    let evil = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = evil.local_addr().unwrap();
    let sim = world.sim().base_url().trim_start_matches("http://").to_owned();
    let path = "/v1/notifications/certs/CERT-1";
    let before = (transfers(&world).await, world.reader().head().unwrap().seq);
    for url in [
        "https://cert.evil.example/c.pem".to_owned(),
        format!("http://{address}/c.pem"),
        format!("http://{address}{path}"),
        format!("http://{sim}@{address}{path}"),
        format!("http://{address}{path}?{sim}"),
        format!("http://{address}{path}#{sim}"),
        format!("http://{sim}.evil.example{path}"),
        format!("//{address}{path}"),
        format!("http://{sim}\\@{address}{path}"),
        "https://api.paypal.com.evil.example/v1/notifications/certs/CERT-1".to_owned(),
        "file:///etc/passwd".to_owned(),
        String::new(),
    ] {
        let Ok(_) = url.parse::<reqwest::header::HeaderValue>() else { continue };
        let refused = world.deliver(&honest.with_header("paypal-cert-url", &url)).await;
        let said = (refused.status.as_u16(), refused.code());
        assert_eq!(said, (401, "webhook_signature_invalid"), "{url}");
    }
    let asked = tokio::time::timeout(std::time::Duration::from_millis(50), evil.accept()).await;
    assert!(asked.is_err(), "somebody asked the sender's server");
    let after = (transfers(&world).await, world.reader().head().unwrap().seq);
    assert_eq!(after, before);
    world.deliver(&honest).await.expect(200);
    finish(&world).await;
}
