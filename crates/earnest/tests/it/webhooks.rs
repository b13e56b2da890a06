//! Webhooks from the simulator to a running Earnest: each is only ever a reason to read.

use earnest::app::WebhookCheck;
use earnest::config::Config;
use earnest_core::intent::{Intent, IntentState};
use earnest_core::settlement::Settlement;
use earnest_core::vault::Vault;
use paypal_sim::{Effect, Ending, Fault};
use reqwest::Method;
use serde_json::json;

use crate::forge::Tap;
use crate::judge::all;
use crate::world::{Change, World, unchanged};

/// Closes the tab with one line of $0.95 on it; the charge stays pending at PayPal.
pub async fn pending_settlement(world: &World) -> (String, String) {
    world.policy("owner", json!({})).await;
    world.spend(950_000, "line").await;
    let pending = Effect::Pending { reason: None, then: Ending::Completed, after_seconds: None };
    world.sim().add_fault(Fault::on("orders.create", pending)).unwrap();
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/tabs/{tab}/close");
    world.call("owner", Method::POST, &path, None).await.expect(202);
    world.jobs().await;
    let intent = charge_intent(world);
    assert_eq!(intent.state, IntentState::Pending);
    (tab, intent.paypal_capture.unwrap())
}

fn charge_intent(world: &World) -> Intent {
    let mut intents = all::<Intent>(world.reader());
    intents.retain(|intent| intent.amount_micros.is_some());
    assert_eq!(intents.len(), 1);
    intents.remove(0)
}

/// How often PayPal was asked for a capture.
fn reads(world: &World) -> usize {
    let journal = world.sim().journal();
    journal.iter().filter(|entry| entry.operation == Some("captures.get")).count()
}

#[tokio::test]
async fn a_pending_capture_is_completed_by_its_webhook() {
    let world = World::ready().await;
    let (tab, capture) = pending_settlement(&world).await;
    world.mail().await;
    assert_eq!(world.totals(&format!("tab:{tab}:owed")).await, "0/950/950/0");
    assert_eq!(world.totals("paypal_cash").await, "950/0/0/0");
    assert!(world.sim().end_pending(&capture, Ending::Completed));
    world.mail().await;
    // No job had a turn: the webhook alone made Earnest read.
    assert_eq!(world.totals(&format!("tab:{tab}:owed")).await, "0/950/0/950");
    assert_eq!(world.totals("paypal_cash").await, "0/950/0/520");
    world.settle_down().await;
    world.assert_at_rest();
    world.assert_balanced().await;
}

#[tokio::test]
async fn a_pending_capture_that_is_denied_freezes_the_tab() {
    let world = World::ready().await;
    let (tab, capture) = pending_settlement(&world).await;
    assert!(world.sim().end_pending(&capture, Ending::Declined));
    world.mail().await;
    assert_eq!(world.totals(&format!("tab:{tab}:owed")).await, "0/950/0/0");
    assert_eq!(world.totals("paypal_cash").await, "0/0/0/0");
    assert_eq!(world.tab().await["status"], "frozen");
    world.settle_down().await;
    world.assert_at_rest();
    world.assert_balanced().await;
}

#[tokio::test]
async fn a_forged_body_that_verifies_moves_no_money() {
    forged_body(unchanged()).await;
}

/// The suite behind it, which a planted bug must not pass.
pub async fn forged_body(change: Change) {
    let (world, tap) = Tap::world(Config::simulated(), &change).await;
    let (tab, capture) = pending_settlement(&world).await;
    let honest = tap.heard("PAYMENT.CAPTURE.PENDING").await;
    let before = reads(&world);
    let forged = honest.forged(|event| {
        event["id"] = "WH-FORGED".into();
        event["event_type"] = "PAYMENT.CAPTURE.COMPLETED".into();
        event["resource"]["status"] = "COMPLETED".into();
        event["resource"]["amount"]["value"] = "9999.00".into();
    });
    assert_eq!(forged.event_type(), "PAYMENT.CAPTURE.COMPLETED");
    assert_ne!(forged.body, honest.body);
    world.deliver(&forged).await.expect(200);
    // Taken for a hint, and read: PayPal still decides.
    assert_eq!(reads(&world), before + 1);
    assert_eq!(world.totals(&format!("tab:{tab}:owed")).await, "0/950/950/0");
    assert_eq!(world.totals("paypal_cash").await, "950/0/0/0");
    assert_eq!(charge_intent(&world).state, IntentState::Pending);

    // The same about a capture that does not exist, and about one that is somebody else's.
    for id in ["NOSUCHCAPTURE0000", "../../v1/oauth2/token", ""] {
        let forged = honest.forged(|event| {
            event["id"] = format!("WH-{id}").into();
            event["event_type"] = "PAYMENT.CAPTURE.COMPLETED".into();
            event["resource"]["id"] = id.into();
            event["resource"]["supplementary_data"] = json!({});
            event["resource"]["links"] = json!([]);
        });
        world.deliver(&forged).await.expect(200);
    }
    assert_eq!(world.totals("paypal_cash").await, "950/0/0/0");
    world.assert_sound();

    // The truth is read all the same.
    assert!(world.sim().end_pending(&capture, Ending::Completed));
    world.advance(60);
    world.settle_down().await;
    world.assert_at_rest();
    world.assert_balanced().await;
}

#[tokio::test]
async fn a_repeat_with_another_body_is_refused() {
    let (world, tap) = Tap::world(Config::simulated(), &unchanged()).await;
    let (_, capture) = pending_settlement(&world).await;
    let honest = tap.heard("PAYMENT.CAPTURE.PENDING").await;
    for _ in 0..3 {
        world.deliver(&honest).await.expect(200);
    }
    let head = world.reader().head().unwrap().seq;
    let forged = honest.forged(|event| event["resource"]["status"] = "COMPLETED".into());
    let refused = world.deliver(&forged).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (401, "webhook_signature_invalid"));
    assert_eq!(world.reader().head().unwrap().seq, head, "a refusal records nothing");
    world.deliver(&honest).await.expect(200);
    assert!(world.sim().end_pending(&capture, Ending::Completed));
    world.deliver(&tap.heard("PAYMENT.CAPTURE.COMPLETED").await).await.expect(200);
    world.settle_down().await;
    world.assert_at_rest();
    world.assert_balanced().await;
}

/// Whoever comes first with an event's id keeps PayPal's own from being taken in; the jobs read
/// what PayPal decided all the same.
#[tokio::test]
async fn a_forgery_that_comes_first_only_costs_the_hint() {
    let (world, tap) = Tap::world(Config::simulated(), &unchanged()).await;
    let (_, capture) = pending_settlement(&world).await;
    assert!(world.sim().end_pending(&capture, Ending::Completed));
    let honest = tap.heard("PAYMENT.CAPTURE.COMPLETED").await;
    let forged = honest.forged(|event| event["resource"]["id"] = "NOSUCHCAPTURE0000".into());
    world.deliver(&forged).await.expect(200);
    assert_eq!(world.deliver(&honest).await.status, 401);
    world.advance(60);
    world.settle_down().await;
    world.assert_at_rest();
}

#[tokio::test]
async fn events_of_unknown_types_are_taken_in_and_change_nothing() {
    let (world, tap) = Tap::world(Config::simulated(), &unchanged()).await;
    pending_settlement(&world).await;
    let honest = tap.heard("PAYMENT.CAPTURE.PENDING").await;
    let before = (world.totals("paypal_cash").await, reads(&world));
    for kind in ["SOMETHING.NEW", "PAYMENT.REFUND.FAILED", "CUSTOMER.DISPUTE.CREATED", ""] {
        let event = honest.forged(|event| {
            event["id"] = format!("WH-{kind}").into();
            event["event_type"] = kind.into();
        });
        world.deliver(&event).await.expect(200);
    }
    // Signed, but no event at all.
    let nothing = honest.forged(|event| *event = json!({"hello": "world"}));
    world.deliver(&nothing).await.expect(200);
    assert_eq!((world.totals("paypal_cash").await, reads(&world)), before);
    world.assert_sound();
}

#[tokio::test]
async fn a_consent_that_was_taken_back_freezes_the_tab() {
    let world = World::ready().await;
    world.spend(100_000, "before").await;
    let token = all::<Vault>(world.reader()).remove(0).payment_token.unwrap();
    assert!(world.sim().revoke(&token));
    world.mail().await;
    assert_eq!(world.tab().await["status"], "frozen");
    let refused = world.authorize(world.quote("/weather", 10_000), "after").await;
    assert_eq!(refused.refusal(), "policy_denied/tab_frozen");
    assert_eq!(world.tab().await["owed_micros"], 100_000);

    // Another way to pay and the owner's wish, and the debt is collected.
    world.advance(1);
    world.vault().await;
    let path = format!("/v1/tabs/{}/settle", world.tab().await["id"].as_str().unwrap());
    let headers = [("idempotency-key", "again")];
    world.call_with("owner", Method::POST, &path, None, &headers).await.expect(202);
    world.settle_down().await;
    world.mail().await;
    assert_eq!(world.tab().await["status"], "open");
    world.authorize(world.quote("/weather", 10_000), "after").await.expect(201);
    world.assert_at_rest();
    world.assert_balanced().await;
}

#[tokio::test]
async fn a_consent_that_is_only_said_to_be_gone_stays() {
    let (world, tap) = Tap::world(Config::simulated(), &unchanged()).await;
    world.spend(100_000, "before").await;
    let token = all::<Vault>(world.reader()).remove(0).payment_token.unwrap();
    let honest = tap.heard("VAULT.PAYMENT-TOKEN.CREATED").await;
    let forged = honest.forged(|event| {
        event["id"] = "WH-FORGED".into();
        event["event_type"] = "VAULT.PAYMENT-TOKEN.DELETED".into();
    });
    assert_eq!(forged.json()["resource"]["id"], *token);
    world.deliver(&forged).await.expect(200);
    assert_eq!(world.tab().await["status"], "open");
    world.authorize(world.quote("/weather", 10_000), "after").await.expect(201);
}

/// With PayPal to be asked for every signature and PayPal down, nobody can tell: sent again.
#[tokio::test]
async fn a_webhook_that_cannot_be_checked_now_is_asked_for_again() {
    let config = Config { webhook_check: WebhookCheck::Postback, ..Config::simulated() };
    let (world, tap) = Tap::world(config, &unchanged()).await;
    pending_settlement(&world).await;
    let honest = tap.heard("PAYMENT.CAPTURE.PENDING").await;
    let verify = "verify-webhook-signature.post";
    let down = Effect::Status { status: 503, retry_after_seconds: None, after: false };
    for effect in [down, Effect::DropBefore, Effect::DropAfter, Effect::BadBody] {
        world.sim().set_faults(vec![Fault::on(verify, effect)]).unwrap();
        let answer = world.deliver(&honest).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (503, "paypal_auth_failed"));
        assert!(answer.headers.contains_key("retry-after"));
    }
    let head = world.reader().head().unwrap().seq;
    let stranger = honest.with_body(br#"{"id":"WH-1","event_type":"X"}"#.to_vec());
    assert_eq!(world.deliver(&stranger).await.code(), "webhook_signature_invalid");
    assert_eq!(world.reader().head().unwrap().seq, head);
    world.deliver(&honest).await.expect(200);
    world.assert_sound();
}

/// What PayPal sends about a settlement that the books know to be over changes nothing; and a capture
/// of something else at the same merchant account pays for nothing: it is in our balance, so it is
/// in suspense, once.
#[tokio::test]
async fn late_and_strange_events_pay_for_nothing() {
    let (world, tap) = Tap::world(Config::simulated(), &unchanged()).await;
    let (_, capture) = pending_settlement(&world).await;
    assert!(world.sim().end_pending(&capture, Ending::Completed));
    world.advance(60);
    world.settle_down().await;
    let trial = world.get("operator", "/v1/trial-balance").await.expect(200);
    for kind in ["PAYMENT.CAPTURE.COMPLETED", "PAYMENT.CAPTURE.PENDING"] {
        world.deliver(&tap.heard(kind).await).await.expect(200);
    }
    assert_eq!(world.get("operator", "/v1/trial-balance").await.expect(200), trial);
    // An order of somebody else's program on the same account, paid and announced.
    let stranger = stranger_order(&world).await;
    let honest = tap.heard("PAYMENT.CAPTURE.COMPLETED").await;
    let about = honest.forged(|event| {
        event["id"] = "WH-OTHER".into();
        event["resource"]["id"] = stranger.as_str().into();
    });
    world.deliver(&about).await.expect(200);
    world.mail().await;
    assert_eq!(world.totals("suspense").await, "0/0/0/5000");
    assert_eq!(all::<Settlement>(world.reader()).len(), 1);
    world.assert_sound();
}

/// A capture that is none of ours; its id.
async fn stranger_order(world: &World) -> String {
    let base = world.sim().base_url();
    let token = world
        .http
        .post(format!("{base}/v1/oauth2/token"))
        .basic_auth("sim", Some("sim"))
        .form(&[("grant_type", "client_credentials")])
        .send()
        .await
        .unwrap();
    let token: serde_json::Value = token.json().await.unwrap();
    let token = token["access_token"].as_str().unwrap().to_owned();
    let post = |path: String, body: serde_json::Value, key: &'static str| {
        let request = world.http.post(format!("{base}{path}")).bearer_auth(&token);
        request.header("PayPal-Request-Id", key).json(&body).send()
    };
    let unit = json!({"amount": {"currency_code": "USD", "value": "5.00"}, "invoice_id": "x-1"});
    let order = json!({"intent": "CAPTURE", "purchase_units": [unit]});
    let order = post("/v2/checkout/orders".to_owned(), order, "x-create").await.unwrap();
    let order: serde_json::Value = order.json().await.unwrap();
    let id = order["id"].as_str().unwrap();
    world.sim().approve(id, Some("stranger@example.com")).unwrap();
    let path = format!("/v2/checkout/orders/{id}/capture");
    let paid = post(path, json!({}), "x-capture").await.unwrap();
    assert_eq!(paid.status(), 201);
    let rows = world.sim().books().rows;
    let ours = rows.into_iter().find(|row| row.invoice_id.as_deref() == Some("x-1"));
    ours.unwrap().transaction_id
}
