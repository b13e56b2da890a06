//! Money that goes back at PayPal without us: refunds in PayPal's own pages, and reversals.

use earnest::config::Config;
use earnest_core::reversal::Reversal;
use earnest_core::settlement::{Settlement, SettlementState};
use paypal_sim::{Effect, Ending, Fault, SimConfig};
use reqwest::Method;
use serde_json::{Value, json};

use crate::judge::all;
use crate::lost_lives::pays;
use crate::world::World;

/// Ready to spend in large pieces.
async fn ready() -> World {
    let world = World::with(Config::simulated(), SimConfig::default()).await;
    world.prove_origin().await;
    world.vault().await;
    world.policy("owner", json!({})).await;
    world
}

/// One tab of $0.95, captured.
async fn captured() -> (World, String) {
    let world = ready().await;
    world.spend(950_000, "line").await;
    let capture = settle(&world).await;
    (world, capture)
}

/// Closes the tab and gives PayPal's id of the capture that settled it.
async fn settle(world: &World) -> String {
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    world.settle_down().await;
    world.mail().await;
    let path = format!("/v1/tabs/{tab}/settlements");
    let settlements = world.get("owner", &path).await.expect(200);
    settlements["data"][0]["paypal_capture"].as_str().unwrap().to_owned()
}

/// Webhooks arrive, and what they speak of is read.
async fn hear(world: &World) {
    world.mail().await;
    world.settle_down().await;
}

async fn debt(world: &World) -> String {
    world.totals(&format!("owner:{}:debt", world.owner_id())).await
}

async fn refundable(world: &World) -> String {
    let settlement = all::<Settlement>(world.reader()).remove(0);
    world.totals(&format!("capture:{}:refundable", settlement.intent)).await
}

async fn owner(world: &World) -> Value {
    world.get("owner", "/v1/owners/me").await.expect(200)
}

async fn reversal(world: &World) -> Value {
    world.get("operator", "/v1/reversals").await.expect(200)["data"][0].clone()
}

#[tokio::test]
async fn a_refund_in_paypals_pages_is_the_owners_debt() {
    let (world, capture) = captured().await;
    world.advance(1);
    world.authorize(world.quote("/weather", 10_000), "still").await.expect(201);

    world.refund(&capture, None).await.expect(201);
    hear(&world).await;
    assert_eq!(debt(&world).await, "0/950/0/0");
    assert_eq!(world.totals("paypal_cash").await, "0/950/0/1470");
    assert_eq!(refundable(&world).await, "0/950/0/950");
    let settlement = all::<Settlement>(world.reader()).remove(0);
    assert_eq!(settlement.state, SettlementState::Captured);
    assert_eq!(settlement.given_back_micros.get(), 950_000);
    let row = reversal(&world).await;
    assert_eq!((&row["open"], &row["named"]), (&json!(false), &json!([])), "{row}");
    assert_eq!(row["booked"][0]["amount_micros"], 950_000);

    // What counted as settled is gone, so the line that grew with it is too.
    let read = world.reader().row::<earnest_core::party::Owner>(world.owner_id());
    assert_eq!(read.unwrap().unwrap().settled_micros.get(), 0);
    assert!(owner(&world).await["frozen"].is_string());
    let refused = world.authorize(world.quote("/weather", 10_000), "after").await;
    assert_eq!(refused.refusal(), "policy_denied/owner_frozen");
    world.assert_sound();
    world.assert_balanced().await;
}

/// The same webhook many times, and beside it the jobs: one refund, one effect.
#[tokio::test]
async fn a_refund_is_booked_once_however_often_it_is_told() {
    let (world, capture) = captured().await;
    let five = Effect::WebhookDuplicate { copies: 5 };
    world.sim().set_faults(vec![Fault::on_event("*", five).always()]).unwrap();
    world.refund(&capture, Some(30)).await.expect(201);
    for _ in 0..3 {
        tokio::join!(hear(&world), world.jobs());
        world.advance(120);
    }
    assert_eq!(debt(&world).await, "0/300/0/0");
    assert_eq!(world.totals("paypal_cash").await, "0/950/0/820");

    // A second refund of the same capture is another movement.
    world.sim().set_faults(Vec::new()).unwrap();
    world.refund(&capture, Some(65)).await.expect(201);
    hear(&world).await;
    assert_eq!(debt(&world).await, "0/950/0/0");
    assert_eq!(refundable(&world).await, "0/950/0/950");
    assert_eq!(all::<Reversal>(world.reader()).remove(0).booked.len(), 2);
    world.assert_sound();
}

/// A reversal is no refund object: only Transaction Search shows what went, hours later. Until then
/// it is open, and the owner frozen.
#[tokio::test]
async fn a_reversal_is_booked_once_the_report_shows_it() {
    let (world, capture) = captured().await;
    assert!(world.sim().reverse(&capture, Some(40)));
    hear(&world).await;
    assert!(owner(&world).await["frozen"].is_string());
    assert_eq!(debt(&world).await, "0/0/0/0", "nothing is booked on a webhook's word");
    assert_eq!(reversal(&world).await["open"], true);
    for _ in 0..8 {
        world.advance(1_800);
        world.settle_down().await;
    }
    assert_eq!(debt(&world).await, "0/400/0/0");
    assert_eq!(world.totals("paypal_cash").await, "0/950/0/920");
    assert_eq!(reversal(&world).await["open"], false);
    world.assert_sound();
}

/// A refund that waits for a bank is no money yet; one that fails never is.
#[tokio::test]
async fn a_refund_counts_when_it_is_final() {
    let (world, capture) = captured().await;
    let pending = |then| Effect::Pending { reason: None, then, after_seconds: None };
    let fault = Fault::on("captures.refund", pending(Ending::Declined));
    world.sim().set_faults(vec![fault]).unwrap();
    let failed = world.refund(&capture, Some(10)).await.expect(201);
    let fault = Fault::on("captures.refund", pending(Ending::Completed));
    world.sim().set_faults(vec![fault]).unwrap();
    let done = world.refund(&capture, Some(20)).await.expect(201);
    hear(&world).await;
    assert_eq!(world.totals("paypal_cash").await, "0/950/0/520");
    assert!(world.sim().end_pending(failed["id"].as_str().unwrap(), Ending::Declined));
    hear(&world).await;
    assert_eq!(debt(&world).await, "0/0/0/0");
    assert!(world.sim().end_pending(done["id"].as_str().unwrap(), Ending::Completed));
    hear(&world).await;
    assert_eq!(debt(&world).await, "0/200/0/0");
    assert_eq!(world.totals("paypal_cash").await, "0/950/0/720");
    world.assert_sound();
}

/// The charge's answer is lost and it is refunded before anybody read it: it is booked for what it
/// was, and then for what went back.
#[tokio::test]
async fn a_capture_that_was_given_back_before_it_was_read_is_booked_both_ways() {
    let world = ready().await;
    world.spend(950_000, "line").await;
    let silent = Fault::on_event("*", Effect::WebhookNever).always();
    let lost = Fault::on("orders.create", Effect::DropAfter);
    world.sim().set_faults(vec![lost, silent]).unwrap();
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    earnest::jobs::treasurer(&world.earnest.app).await.unwrap();
    earnest::jobs::intents(&world.earnest.app).await.unwrap();
    let capture = world.sim().books().rows[0].transaction_id.clone();
    world.refund(&capture, Some(25)).await.expect(201);
    for _ in 0..4 {
        world.advance(60);
        world.settle_down().await;
    }
    let settlement = all::<Settlement>(world.reader()).remove(0);
    assert_eq!(settlement.captured_micros.unwrap().get(), 950_000);
    assert_eq!(settlement.given_back_micros.get(), 250_000);
    assert_eq!(world.totals("paypal_cash").await, "0/950/0/770");
    assert_eq!(debt(&world).await, "0/250/0/0");
    assert!(owner(&world).await["frozen"].is_string());
    world.assert_at_rest();
}

/// Whoever took the webhook in died before reading: the jobs read.
#[tokio::test]
async fn a_webhook_that_was_kept_and_not_followed_up_is_followed_up_by_the_jobs() {
    let (world, capture) = captured().await;
    world.refund(&capture, Some(25)).await.expect(201);
    // PayPal cannot be read while the webhook is acted upon.
    let down = Effect::Status { status: 503, retry_after_seconds: None, after: false };
    world.sim().set_faults(vec![Fault::on("captures.get", down).always()]).unwrap();
    world.mail().await;
    world.settle_down().await;
    assert!(owner(&world).await["frozen"].is_null());
    world.sim().set_faults(Vec::new()).unwrap();
    for _ in 0..4 {
        world.advance(120);
        world.settle_down().await;
    }
    assert_eq!(debt(&world).await, "0/250/0/0");
    world.assert_sound();
}

/// A repeat that is declined because the method is gone says nothing about the charge before it: only
/// the search does.
#[tokio::test]
async fn a_decline_of_a_repeat_for_a_missing_method_waits_for_the_search() {
    let world = ready().await;
    world.spend(950_000, "line").await;
    let silent = Fault::on_event("*", Effect::WebhookNever).always();
    let lost = Fault::on("orders.create", Effect::DropBefore);
    world.sim().set_faults(vec![lost, silent.clone()]).unwrap();
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    earnest::jobs::treasurer(&world.earnest.app).await.unwrap();
    earnest::jobs::intents(&world.earnest.app).await.unwrap();
    let gone = Effect::Issue { issue: "TOKEN_ID_NOT_FOUND".to_owned() };
    world.sim().set_faults(vec![Fault::on("orders.create", gone).always(), silent]).unwrap();
    world.advance(10);
    world.settle_down().await;
    let now = || all::<Settlement>(world.reader()).remove(0).state;
    assert_eq!(now(), SettlementState::Open);
    for _ in 0..40 {
        world.advance(900);
        world.settle_down().await;
    }
    assert_eq!(now(), SettlementState::Declined);
    assert_eq!(world.sim().books().balances[0].captured.minor, 0);
    world.assert_at_rest();
}

/// While a charge has no outcome its method stays: a repeat under its key could not be told from a
/// first send without it.
#[tokio::test]
async fn a_method_stays_while_a_settlement_is_under_way() {
    let world = ready().await;
    world.spend(950_000, "line").await;
    let lost = Fault::on("orders.create", Effect::DropAfter).always();
    // No webhook tells either: with one, the outcome may be known before the method is removed.
    let silent = Fault::on_event("*", Effect::WebhookNever).always();
    world.sim().set_faults(vec![lost, silent]).unwrap();
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    earnest::jobs::treasurer(&world.earnest.app).await.unwrap();
    earnest::jobs::intents(&world.earnest.app).await.unwrap();
    let methods = world.get("owner", "/v1/payment-methods").await.expect(200);
    let method = methods["data"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/payment-methods/{method}");
    let refused = world.call("owner", Method::DELETE, &path, None).await;
    assert_eq!(refused.code(), "state_conflict");
    world.sim().set_faults(Vec::new()).unwrap();
    world.advance(60);
    world.settle_down().await;
    world.mail().await;
    world.call("owner", Method::DELETE, &path, None).await.expect(200);
    world.assert_at_rest();
}

/// No webhook ever comes: what moved at PayPal is found in its records, hours later, once.
#[tokio::test]
async fn what_no_webhook_told_is_found_in_paypals_records() {
    let (world, capture) = captured().await;
    let silent = Fault::on_event("*", Effect::WebhookNever).always();
    world.sim().set_faults(vec![silent]).unwrap();
    world.refund(&capture, Some(25)).await.expect(201);
    pays(&world, "x", None, "3.00").await;
    for _ in 0..20 {
        world.advance(1_800);
        world.settle_down().await;
    }
    assert_eq!(debt(&world).await, "0/250/0/0");
    assert_eq!(world.totals("suspense").await, "0/0/0/3000");
    let cash = world.totals("paypal_cash").await;
    for _ in 0..20 {
        world.advance(1_800);
        world.settle_down().await;
    }
    assert_eq!(world.totals("paypal_cash").await, cash, "found once");
    world.assert_sound();
    world.assert_balanced().await;
}

/// PayPal's records show a payment that nobody told of, and PayPal does not answer for it for hours: it was
/// not seen, and is asked for again, however long that lasts.
#[tokio::test]
async fn what_could_not_be_asked_is_asked_again() {
    let world = ready().await;
    let silent = Fault::on_event("*", Effect::WebhookNever).always();
    let down = Effect::Status { status: 503, retry_after_seconds: None, after: false };
    world.sim().set_faults(vec![silent, Fault::on("captures.get", down).always()]).unwrap();
    pays(&world, "x", None, "3.00").await;
    for _ in 0..24 {
        world.advance(1_800);
        world.settle_down().await;
    }
    assert_eq!(world.totals("suspense").await, "0/0/0/0");
    world.sim().set_faults(Vec::new()).unwrap();
    for _ in 0..4 {
        world.advance(1_800);
        world.settle_down().await;
    }
    assert_eq!(world.totals("suspense").await, "0/0/0/3000");
    world.assert_sound();
}

/// PayPal tells of the refund before it tells of the payment: both end in the books.
#[tokio::test]
async fn a_payment_that_went_back_before_it_was_heard_of_leaves_suspense_again() {
    let world = ready().await;
    world.sim().set_faults(vec![Fault::on_event("*", Effect::WebhookNever).always()]).unwrap();
    let unit =
        json!({ "amount": { "currency_code": "USD", "value": "5.00" }, "invoice_id": "x-1" });
    let order = json!({ "intent": "CAPTURE", "purchase_units": [unit] });
    let order = world.at_paypal("/v2/checkout/orders", "x-create", order).await.expect(201);
    let id = order["id"].as_str().unwrap().to_owned();
    world.sim().approve(&id, Some("stranger@example.com")).unwrap();
    let path = format!("/v2/checkout/orders/{id}/capture");
    world.at_paypal(&path, "x-capture", json!({})).await.expect(201);
    let capture = world.sim().books().rows[0].transaction_id.clone();
    world.refund(&capture, None).await.expect(201);
    let app = &world.earnest.app;
    earnest::flow::reversal::hinted(app, &capture, None).await.unwrap();
    earnest::flow::settle::capture_hinted(app, &capture).await.unwrap();
    for _ in 0..4 {
        world.advance(60);
        world.settle_down().await;
    }
    assert_eq!(world.totals("suspense").await, "0/5000/0/5000");
    world.assert_sound();
}

/// An owner in debt pays at PayPal, told by no webhook: PayPal's id of the payment.
async fn owner_in_debt_pays() -> (World, String) {
    let (world, capture) = captured().await;
    world.refund(&capture, None).await.expect(201);
    hear(&world).await;
    assert_eq!(debt(&world).await, "0/950/0/0");
    world.sim().set_faults(silent()).unwrap();
    pays(&world, "repays", None, "0.95").await;
    let rows = world.sim().books().rows;
    let paid = rows.iter().rfind(|row| row.event_code == "T0003").unwrap();
    (world, paid.transaction_id.clone())
}

fn silent() -> Vec<Fault> {
    vec![Fault::on_event("*", Effect::WebhookNever).always()]
}

/// The operator records a payment of $0.95 as a repayment, and trusts the owner again.
async fn record_repayment(world: &World, paid: &str, key: &str) {
    let body = json!({ "kind": "repayment", "owner": world.owner_id(), "amount": "$0.95",
        "fee": "$0.52", "paypal_id": paid });
    enter(world, body, key).await;
    let path = format!("/v1/owners/{}/credit", world.owner_id());
    let body = Some(json!({ "unfreeze": true }));
    world.call("operator", Method::PUT, &path, body).await.expect(200);
}

async fn enter(world: &World, body: Value, key: &str) {
    let headers = [("idempotency-key", key)];
    let path = "/v1/cash-entries";
    world.call_with("operator", Method::POST, path, Some(body), &headers).await.expect(201);
}

async fn void(world: &World, paid: &str, key: &str) -> crate::world::Answer {
    let path = format!("/v1/cash-entries/{paid}/void");
    let body = Some(json!({ "reason": "it was a mistake" }));
    let headers = [("idempotency-key", key)];
    world.call_with("operator", Method::POST, &path, body, &headers).await
}

async fn half_days(world: &World, many: usize) {
    for _ in 0..many * 24 {
        world.advance(1_800);
        world.settle_down().await;
    }
}

/// How each entry that was recorded by hand ended.
async fn voided(world: &World) -> Value {
    let entries = world.get("operator", "/v1/cash-entries").await.expect(200);
    entries["data"][0]["void_reason"].clone()
}

/// An owner pays a debt by a payment that the operator records by hand, and has it back from PayPal: the
/// debt stands again, whoever tells of it first, and whatever the books hold by then.
#[tokio::test]
async fn a_repayment_that_went_back_is_a_debt_again() {
    for (told, cents) in [(true, None), (false, None), (true, Some(40))] {
        let (world, paid) = owner_in_debt_pays().await;
        record_repayment(&world, &paid, "repaid").await;
        assert_eq!(debt(&world).await, "0/950/0/950");
        half_days(&world, 1).await;
        assert!(owner(&world).await["frozen"].is_null(), "it is still there");
        world.sim().set_faults(if told { Vec::new() } else { silent() }).unwrap();
        world.refund(&paid, cents).await.expect(201);
        hear(&world).await;
        half_days(&world, 1).await;
        assert_eq!(debt(&world).await, "0/1900/0/950", "told: {told}, {cents:?}");
        assert!(owner(&world).await["frozen"].is_string());
        let back = cents.unwrap_or(95) * 10;
        assert_eq!(world.totals("suspense").await, format!("0/{back}/0/950"));
        assert_eq!(voided(&world).await, "it went back at PayPal");
        world.assert_sound();
        world.assert_balanced().await;
    }
}

/// The books hold less than it brought: what PayPal took back is taken back all the same.
#[tokio::test]
async fn a_repayment_that_went_back_waits_for_no_cash() {
    let (world, paid) = owner_in_debt_pays().await;
    record_repayment(&world, &paid, "repaid").await;
    assert_eq!(world.totals("paypal_cash").await, "0/1900/0/1990");
    world.sim().set_faults(Vec::new()).unwrap();
    world.refund(&paid, None).await.expect(201);
    hear(&world).await;
    assert_eq!(debt(&world).await, "0/1900/0/950");
    assert!(owner(&world).await["frozen"].is_string());
    assert_eq!(voided(&world).await, "it went back at PayPal");
    world.assert_sound();
}

/// It went back, told by nobody, before anybody recorded it: PayPal is asked as soon as it is.
#[tokio::test]
async fn a_repayment_that_was_gone_when_it_was_recorded_is_a_debt_again() {
    let (world, paid) = owner_in_debt_pays().await;
    world.refund(&paid, None).await.expect(201);
    record_repayment(&world, &paid, "repaid").await;
    assert_eq!(debt(&world).await, "0/950/0/950");
    world.settle_down().await;
    assert_eq!(debt(&world).await, "0/1900/0/950");
    assert!(owner(&world).await["frozen"].is_string());
    assert_eq!(voided(&world).await, "it went back at PayPal");
    world.assert_sound();
}

/// Taken back by hand and recorded once more, while PayPal has it; then it goes back. An operator who
/// takes it back as well comes too late, and is told so.
#[tokio::test]
async fn a_repayment_recorded_once_more_goes_back_once() {
    let (world, paid) = owner_in_debt_pays().await;
    record_repayment(&world, &paid, "repaid").await;
    half_days(&world, 1).await;
    void(&world, &paid, "v1").await.expect(200);
    record_repayment(&world, &paid, "repaid-again").await;
    assert_eq!(debt(&world).await, "0/1900/0/1900");
    world.sim().set_faults(Vec::new()).unwrap();
    world.refund(&paid, None).await.expect(201);
    hear(&world).await;
    half_days(&world, 1).await;
    assert_eq!(debt(&world).await, "0/2850/0/1900");
    assert_eq!(voided(&world).await, "it went back at PayPal");
    assert_eq!(void(&world, &paid, "v2").await.refusal(), "state_conflict");
    // In suspense it is a payment like any other, and no repayment once more.
    let body = json!({ "kind": "repayment", "owner": world.owner_id(), "amount": "$0.95",
        "paypal_id": paid });
    let headers = [("idempotency-key", "third")];
    let path = "/v1/cash-entries";
    let again = world.call_with("operator", Method::POST, path, Some(body), &headers).await;
    assert_eq!(again.refusal(), "state_conflict");
    world.assert_sound();
}
