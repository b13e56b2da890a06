//! Money that arrives when the books had given it up: PayPal runs a charge after it was proved not
//! to have happened, or after it was refused.

use earnest::config::Config;
use earnest_core::intent::{Intent, IntentState};
use earnest_core::settlement::{Settlement, SettlementState};
use earnest_core::vault::Vault;
use paypal_sim::{Effect, Ending, Fault, SimConfig};
use reqwest::Method;
use serde_json::json;

use crate::judge::all;
use crate::world::World;

/// One settlement of $0.95 whose only attempt is proved not charged, its lines not yet attempted
/// again.
async fn given_up(unique_invoices: bool) -> (World, Settlement) {
    let sim = SimConfig { unique_invoices, ..SimConfig::default() };
    let world = World::with(Config::simulated(), sim).await;
    world.prove_origin().await;
    world.vault().await;
    world.policy("owner", json!({})).await;
    world.spend(950_000, "line").await;
    world.sim().set_faults(vec![Fault::on("orders.create", Effect::DropBefore).always()]).unwrap();
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    for _ in 0..60 {
        earnest::jobs::treasurer(&world.earnest.app).await.unwrap();
        let settlement = all::<Settlement>(world.reader()).remove(0);
        if settlement.state == SettlementState::NotCharged {
            return (world, settlement);
        }
        earnest::jobs::intents(&world.earnest.app).await.unwrap();
        let settlement = all::<Settlement>(world.reader()).remove(0);
        if settlement.state == SettlementState::NotCharged {
            return (world, settlement);
        }
        world.advance(900);
    }
    panic!("never proved: {:#?}", all::<Intent>(world.reader()));
}

/// The charge happens after all: the very request that was given up is carried out at PayPal.
async fn happens_after_all(world: &World, settlement: &Settlement) {
    charge(world, &settlement.invoice_id, Some(format!("{}.{}", settlement.id, settlement.owner)))
        .await;
}

/// A charge of $0.95 at PayPal that Earnest did not make.
async fn charge(world: &World, invoice_id: &str, custom_id: Option<String>) {
    world.sim().set_faults(Vec::new()).unwrap();
    charge_of(world, "0.95", invoice_id, custom_id).await;
}

/// A charge at PayPal that Earnest did not make, as the faults that are set have it; its capture.
async fn charge_of(
    world: &World,
    value: &str,
    invoice_id: &str,
    custom_id: Option<String>,
) -> String {
    let vault = all::<Vault>(world.reader()).remove(0).payment_token.unwrap();
    let amount = json!({ "currency_code": "USD", "value": value });
    let mut unit = json!({ "amount": amount, "invoice_id": invoice_id });
    if let Some(custom_id) = custom_id {
        unit["custom_id"] = custom_id.into();
    }
    let stored = json!({ "payment_initiator": "MERCHANT", "usage": "SUBSEQUENT" });
    let order = json!({
        "intent": "CAPTURE",
        "purchase_units": [unit],
        "payment_source": { "paypal": { "vault_id": vault, "stored_credential": stored } },
    });
    let key = format!("late {value}");
    let order = world.at_paypal("/v2/checkout/orders", &key, order).await.expect(201);
    order["purchase_units"][0]["payments"]["captures"][0]["id"].as_str().unwrap().to_owned()
}

fn alarms(world: &World) -> Vec<String> {
    let events = world.reader().events(0, 1_000_000).unwrap().events;
    let kinds = events.into_iter().map(|it| it.event.kind);
    kinds.filter(|kind| kind.starts_with("alarm.")).collect()
}

#[tokio::test]
async fn a_charge_that_happens_after_its_proof_is_kept_in_suspense_and_finds_its_place() {
    let (world, settlement) = given_up(true).await;
    let owed = format!("tab:{}:owed", settlement.tab);
    assert_eq!(world.totals(&owed).await, "0/950/0/0");
    happens_after_all(&world, &settlement).await;
    // The webhook makes Earnest read; the attempt is closed, so the money waits for its place.
    world.mail().await;
    assert_eq!(world.totals("suspense").await, "0/0/0/950");
    assert_eq!(world.totals("paypal_cash").await, "0/950/0/520");
    assert_eq!(world.totals(&owed).await, "0/950/0/0");
    assert_eq!(alarms(&world), ["alarm.capture_of_closed_intent"]);
    world.assert_sound();

    // The next attempt, under the same invoice, is refused as a duplicate and then found.
    for _ in 0..40 {
        world.settle_down().await;
        world.advance(900);
    }
    world.mail().await;
    let settled = all::<Settlement>(world.reader()).remove(0);
    assert_eq!((settled.state, settled.attempt), (SettlementState::Captured, 2));
    assert_eq!(world.totals("suspense").await, "0/950/0/950");
    assert_eq!(world.totals(&owed).await, "0/950/0/950");
    let charges = world.sim().books();
    assert_eq!(charges.balances[0].captured.minor, 95, "charged once");
    world.assert_at_rest();
    world.assert_balanced().await;
}

/// The same where no webhook tells: the next attempt finds it by itself.
#[tokio::test]
async fn a_charge_that_happens_after_its_proof_is_found_without_a_webhook() {
    let (world, settlement) = given_up(true).await;
    happens_after_all(&world, &settlement).await;
    let silent = Fault::on_event("*", Effect::WebhookNever).always();
    world.sim().set_faults(vec![silent]).unwrap();
    for _ in 0..40 {
        world.settle_down().await;
        world.advance(900);
    }
    let settled = all::<Settlement>(world.reader()).remove(0);
    assert_eq!((settled.state, settled.attempt), (SettlementState::Captured, 2));
    let first = world.reader().row::<Intent>(settlement.intent).unwrap().unwrap();
    assert_eq!(first.state, IntentState::NotCharged);
    assert_eq!(world.totals("paypal_cash").await, "0/950/0/520");
    world.assert_at_rest();
    world.assert_balanced().await;
}

/// Where the account does not block it, the second attempt is a second charge: it cannot be undone
/// here, so it is in suspense, seen, and nobody is billed for it.
#[tokio::test]
async fn a_second_charge_under_one_invoice_is_seen_and_billed_to_nobody() {
    let (world, settlement) = given_up(false).await;
    world.sim().set_faults(Vec::new()).unwrap();
    world.settle_down().await;
    world.mail().await;
    let settled = all::<Settlement>(world.reader()).remove(0);
    assert_eq!(settled.state, SettlementState::Captured);
    // Then the first one happens after all, under the same invoice, which this account allows.
    let owed = format!("tab:{}:owed", settlement.tab);
    assert_eq!(world.totals(&owed).await, "0/950/0/950");
    happens_after_all(&world, &settlement).await;
    world.mail().await;
    assert_eq!(world.totals(&owed).await, "0/950/0/950");
    assert_eq!(world.totals("suspense").await, "0/0/0/950");
    assert_eq!(world.totals("paypal_cash").await, "0/1900/0/1040");
    assert_eq!(alarms(&world), ["alarm.payment_unasked"]);
    let wrongs = world.wrongs();
    let expected = format!("invoice {} was captured 2 times", settlement.invoice_id);
    assert_eq!(wrongs, [expected], "nothing else is wrong");
    world.assert_balanced().await;
}

/// Somebody else's payment under our invoice: it pays for nothing of ours, it is in suspense, and our
/// own charge is made under another invoice once it is proved not to have happened.
#[tokio::test]
async fn a_payment_under_our_invoice_pays_for_nothing_and_blocks_nothing() {
    let (world, settlement) = given_up(true).await;
    charge(&world, &settlement.invoice_id, None).await;
    world.mail().await;
    assert_eq!(world.totals("suspense").await, "0/0/0/950");
    for _ in 0..60 {
        world.settle_down().await;
        world.advance(900);
    }
    world.mail().await;
    let settled = all::<Settlement>(world.reader()).remove(0);
    assert_eq!((settled.state, settled.attempt), (SettlementState::Captured, 3));
    assert_ne!(settled.invoice_id, settlement.invoice_id);
    let owed = format!("tab:{}:owed", settlement.tab);
    assert_eq!(world.totals(&owed).await, "0/950/0/950");
    assert_eq!(world.totals("suspense").await, "0/0/0/950", "the stranger's money stays apart");
    assert_eq!(world.totals("paypal_cash").await, "0/1900/0/1040");
    assert_eq!(alarms(&world), ["alarm.payment_unasked"]);
    let listed = world.get("operator", "/v1/suspense").await.expect(200);
    let (why, left) = (&listed["data"][0]["why"], &listed["data"][0]["left_micros"]);
    assert_eq!((why, left), (&json!("unasked"), &json!(950_000)), "{listed}");
    world.assert_sound();

    // The operator gives it back in PayPal's pages: it leaves suspense, and nobody is frozen.
    let capture = listed["data"][0]["paypal_capture"].as_str().unwrap().to_owned();
    world.refund(&capture, None).await.expect(201);
    world.mail().await;
    world.settle_down().await;
    assert_eq!(world.totals("suspense").await, "0/950/0/950");
    assert_eq!(world.totals("paypal_cash").await, "0/1900/0/1990");
    let listed = world.get("operator", "/v1/suspense").await.expect(200);
    assert_eq!(listed["data"], json!([]));
    assert!(world.get("owner", "/v1/owners/me").await.expect(200)["frozen"].is_null());
    world.assert_sound();
    world.assert_balanced().await;
}

/// PayPal speaks of a payment under our invoice, and no search shows one: a contradiction, which only
/// a person's word ends.
#[tokio::test]
async fn a_payment_that_paypal_speaks_of_and_no_search_shows_waits_for_a_person() {
    let (world, settlement) = given_up(true).await;
    let issue = Effect::Issue { issue: "DUPLICATE_INVOICE_ID".to_owned() };
    world.sim().set_faults(vec![Fault::on("orders.create", issue)]).unwrap();
    for _ in 0..60 {
        world.settle_down().await;
        world.advance(900);
    }
    let now = || all::<Settlement>(world.reader()).remove(0);
    assert_eq!((now().state, now().attempt), (SettlementState::Open, 2));
    let intent = now().intent;
    world
        .post("operator", &format!("/v1/intents/{intent}/confirm-not-charged"), json!({}))
        .await
        .expect(200);
    for _ in 0..20 {
        world.settle_down().await;
        world.advance(900);
    }
    world.mail().await;
    assert_eq!((now().state, now().attempt), (SettlementState::Captured, 3));
    assert_eq!(now().invoice_id, settlement.invoice_id);
    world.assert_at_rest();
}

/// A charge that was found in suspense is refunded: it is the owner's debt like any other.
#[tokio::test]
async fn a_refund_of_a_charge_that_was_found_in_suspense_is_booked() {
    let (world, settlement) = given_up(true).await;
    happens_after_all(&world, &settlement).await;
    world.mail().await;
    for _ in 0..40 {
        world.settle_down().await;
        world.advance(900);
    }
    let settled = all::<Settlement>(world.reader()).remove(0);
    assert_eq!((settled.state, settled.attempt), (SettlementState::Captured, 2));
    world.refund(&settled.paypal_capture.unwrap(), None).await.expect(201);
    world.mail().await;
    for _ in 0..4 {
        world.settle_down().await;
        world.advance(1_800);
    }
    let debt = format!("owner:{}:debt", world.owner_id());
    assert_eq!(world.totals(&debt).await, "0/950/0/0");
    world.assert_sound();
}

/// The operator gives back, wholly or in part, what is in suspense for a closed attempt: the next
/// attempt is not stuck on it, and asks under an invoice of its own.
#[tokio::test]
async fn a_refund_out_of_suspense_does_not_jam_the_settlement() {
    for cents in [None, Some(25)] {
        let (world, settlement) = given_up(true).await;
        happens_after_all(&world, &settlement).await;
        world.mail().await;
        let listed = world.get("operator", "/v1/suspense").await.expect(200);
        let capture = listed["data"][0]["paypal_capture"].as_str().unwrap().to_owned();
        world.refund(&capture, cents).await.expect(201);
        world.mail().await;
        for _ in 0..60 {
            world.settle_down().await;
            world.advance(900);
        }
        world.mail().await;
        let now = all::<Settlement>(world.reader()).remove(0);
        assert_eq!((now.state, now.attempt), (SettlementState::Captured, 3), "{cents:?}");
        assert_ne!(now.paypal_capture.as_deref(), Some(capture.as_str()));
        let left = if cents.is_some() { "0/250/0/950" } else { "0/950/0/950" };
        assert_eq!(world.totals("suspense").await, left);
        world.assert_sound();
    }
}

/// While our own capture is pending, another one under our ids closes nothing.
#[tokio::test]
async fn another_capture_under_our_ids_closes_no_pending_charge() {
    let sim = SimConfig { unique_invoices: false, ..SimConfig::default() };
    let world = World::with(Config::simulated(), sim).await;
    world.prove_origin().await;
    world.vault().await;
    world.policy("owner", json!({})).await;
    world.spend(950_000, "line").await;
    let wait = Effect::Pending { reason: None, then: Ending::Completed, after_seconds: None };
    world.sim().set_faults(vec![Fault::on("orders.create", wait)]).unwrap();
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    earnest::jobs::treasurer(&world.earnest.app).await.unwrap();
    earnest::jobs::intents(&world.earnest.app).await.unwrap();
    world.mail().await;
    let settlement = all::<Settlement>(world.reader()).remove(0);
    let now = || world.reader().row::<Intent>(settlement.intent).unwrap().unwrap();
    let own = now().paypal_capture;
    assert!(own.is_some());
    happens_after_all(&world, &settlement).await;
    world.mail().await;
    assert_eq!((now().state, now().paypal_capture), (IntentState::Pending, own));
    assert_eq!(world.totals("suspense").await, "0/0/0/950");
    world.assert_balanced().await;
}

/// A tab whose settlement of $0.95 was sent once and got no answer; `effect` says whether it happened.
async fn unanswered(effect: Effect, unique_invoices: bool) -> (World, Settlement) {
    let sim = SimConfig { unique_invoices, ..SimConfig::default() };
    let world = World::with(Config::simulated(), sim).await;
    world.prove_origin().await;
    world.vault().await;
    world.policy("owner", json!({})).await;
    world.spend(950_000, "line").await;
    // What PayPal would tell is held back, so that others are heard first.
    let silence = Fault::on_event("*", Effect::WebhookReorder).always();
    world.sim().set_faults(vec![Fault::on("orders.create", effect), silence]).unwrap();
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    earnest::jobs::treasurer(&world.earnest.app).await.unwrap();
    earnest::jobs::intents(&world.earnest.app).await.unwrap();
    let settlement = all::<Settlement>(world.reader()).remove(0);
    let intent = world.reader().row::<Intent>(settlement.intent).unwrap().unwrap();
    assert_eq!((intent.state, intent.paypal_capture), (IntentState::Unknown, None));
    (world, settlement)
}

/// Whoever knows our ids pays a cent under them while the answer to our own charge is lost, or lets
/// such a payment be declined or wait: the settlement ends on our own charge, and the owner is
/// charged once.
#[tokio::test]
async fn a_settlement_ends_only_on_what_was_asked() {
    let pending = Effect::Pending { reason: None, then: Ending::Declined, after_seconds: Some(60) };
    let tricks = [(None, "0.01"), (Some(Effect::Denied), "0.95"), (Some(pending), "0.95")];
    for (fault, value) in tricks {
        let (world, settlement) = unanswered(Effect::DropAfter, false).await;
        world
            .sim()
            .set_faults(fault.map(|it| Fault::on("orders.create", it)).into_iter().collect())
            .unwrap();
        let strange = charge_of(
            &world,
            value,
            &settlement.invoice_id,
            Some(format!("{}.{}", settlement.id, settlement.owner)),
        )
        .await;
        // The webhook of the stranger's payment overtakes that of ours.
        earnest::flow::settle::capture_hinted(&world.earnest.app, &strange).await.unwrap();
        let stands = || all::<Settlement>(world.reader()).remove(0);
        assert!(
            stands().state == SettlementState::Open
                || stands().captured_micros == Some(settlement.amount_micros),
            "{:?}",
            stands()
        );
        world.sim().set_faults(Vec::new()).unwrap();
        for _ in 0..40 {
            world.settle_down().await;
            world.advance(900);
        }
        world.mail().await;
        assert_eq!((stands().state, stands().attempt), (SettlementState::Captured, 1), "{value}");
        assert_eq!(stands().captured_micros, Some(settlement.amount_micros));
        let owed = format!("tab:{}:owed", settlement.tab);
        assert_eq!(world.totals(&owed).await, "0/950/0/950");
        let strange = if value == "0.01" { "0/0/0/10" } else { "0/0/0/0" };
        assert_eq!(world.totals("suspense").await, strange);
        let twice = format!("invoice {} was captured 2 times", settlement.invoice_id);
        let expected = if value == "0.01" { vec![twice] } else { Vec::new() };
        assert_eq!(world.wrongs(), expected, "nothing else is wrong");
        world.assert_balanced().await;
    }
}

/// Our charge did not happen, and a cent was paid under our ids: only a person can say that it is not
/// ours, and then the next attempt has an invoice of its own.
#[tokio::test]
async fn a_payment_with_all_our_ids_and_another_amount_waits_for_a_person() {
    let (world, settlement) = unanswered(Effect::DropBefore, true).await;
    let ids = (&settlement.invoice_id, format!("{}.{}", settlement.id, settlement.owner));
    let strange = charge_of(&world, "0.01", ids.0, Some(ids.1)).await;
    earnest::flow::settle::capture_hinted(&world.earnest.app, &strange).await.unwrap();
    world.sim().set_faults(Vec::new()).unwrap();
    world.mail().await;
    let listed = world.get("operator", "/v1/suspense").await.expect(200);
    assert_eq!(listed["data"][0]["why"], "doubtful", "{listed}");
    let days = |count: u32| {
        let world = &world;
        async move {
            for _ in 0..count {
                world.settle_down().await;
                world.advance(900);
            }
        }
    };
    days(60).await;
    let now = || all::<Settlement>(world.reader()).remove(0);
    assert_eq!((now().state, now().attempt), (SettlementState::Open, 1));
    assert_eq!(world.totals("suspense").await, "0/0/0/10");
    let path = format!("/v1/intents/{}/confirm-not-charged", now().intent);
    world.post("operator", &path, json!({})).await.expect(200);
    days(40).await;
    world.mail().await;
    assert_eq!((now().state, now().attempt), (SettlementState::Captured, 2));
    assert_ne!(now().invoice_id, settlement.invoice_id);
    assert_eq!(now().captured_micros, Some(settlement.amount_micros));
    assert_eq!(world.totals("suspense").await, "0/0/0/10");
    world.assert_sound();
    world.assert_balanced().await;
}

/// An agent is not shown what one pays us under.
#[tokio::test]
async fn an_agent_does_not_see_the_invoice_of_a_settlement() {
    let (world, settlement) = unanswered(Effect::DropBefore, true).await;
    let one = format!("/v1/settlements/{}", settlement.id);
    let all = format!("/v1/tabs/{}/settlements", settlement.tab);
    let mine = world.get("owner", &one).await.expect(200);
    assert_eq!(mine["invoice_id"], settlement.invoice_id.as_str());
    for path in [one, all] {
        let seen = world.get("agent", &path).await.expect(200).to_string();
        assert!(seen.contains(&settlement.id.to_string()));
        assert!(!seen.contains(&settlement.invoice_id), "{seen}");
    }
}

/// Where invoices need not be unique, whoever saw a receipt pays a cent under its ids, and has it taken
/// back: that is a payment of nobody's, and no owner is frozen for it.
#[tokio::test]
async fn a_settlement_answers_for_its_own_capture_only() {
    for reversed in [false, true] {
        let (world, settlement) = given_up(false).await;
        world.sim().set_faults(Vec::new()).unwrap();
        world.settle_down().await;
        world.mail().await;
        let before = all::<Settlement>(world.reader()).remove(0);
        assert_eq!(before.state, SettlementState::Captured);
        let ids = format!("{}.{}", settlement.id, settlement.owner);
        let trick = charge_of(&world, "0.01", &settlement.invoice_id, Some(ids)).await;
        // Heard of before it is taken back, or only then.
        if reversed {
            world.mail().await;
        }
        assert!(world.sim().reverse(&trick, None));
        world.mail().await;
        for _ in 0..20 {
            world.settle_down().await;
            world.advance(1_800);
        }
        assert_eq!(world.totals("suspense").await, "0/10/0/10", "{reversed}");
        let owner = world.get("owner", "/v1/owners/me").await.expect(200);
        assert!(owner["frozen"].is_null(), "{reversed}: {owner}");
        assert_eq!(world.totals(&format!("owner:{}:debt", settlement.owner)).await, "0/0/0/0");
        assert_eq!(all::<Settlement>(world.reader()).remove(0), before, "{reversed}");
        world.assert_balanced().await;
    }
}

/// The owner took its payment method away, so nothing is attempted any more: what came late for the
/// settlement is cleared to where it belongs.
#[tokio::test]
async fn what_waits_for_an_owner_without_a_payment_method_is_cleared() {
    let (world, settlement) = given_up(true).await;
    happens_after_all(&world, &settlement).await;
    world.mail().await;
    let listed = world.get("operator", "/v1/suspense").await.expect(200);
    let capture = listed["data"][0]["paypal_capture"].as_str().unwrap();
    let path = format!("/v1/suspense/{capture}/clear");
    let clear = |key: &'static str| {
        let body = json!({ "to": "credit", "id": settlement.owner.to_string() });
        let (world, path) = (&world, &path);
        async move {
            let headers = [("idempotency-key", key)];
            world.call_with("operator", Method::POST, path, Some(body), &headers).await
        }
    };
    assert_eq!(clear("early").await.refusal(), "state_conflict");
    let methods = world.get("owner", "/v1/payment-methods").await.expect(200);
    let method = methods["data"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/payment-methods/{method}");
    world.call("owner", Method::DELETE, &path, None).await.expect(200);
    assert_eq!(clear("late").await.expect(200)["left_micros"], 0);
    assert_eq!(world.totals("suspense").await, "0/950/0/950");
    assert_eq!(world.totals(&format!("owner:{}:credit", settlement.owner)).await, "0/0/0/950");
    world.assert_sound();
}
