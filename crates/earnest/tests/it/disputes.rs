//! What a payer disputes at PayPal: its owner is frozen before any money goes back.

use earnest::config::Config;
use earnest_core::settlement::Settlement;
use paypal_sim::{ALL_SCOPES, Effect, Fault, Favour, SimConfig};
use reqwest::Method;
use serde_json::{Value, json};

use crate::judge::all;
use crate::lost_lives::pays;
use crate::world::World;

/// One tab of $0.95, captured: PayPal's id of that.
async fn captured() -> (World, String) {
    let world = World::with(Config::simulated(), SimConfig::default()).await;
    world.prove_origin().await;
    world.vault().await;
    world.policy("owner", json!({})).await;
    world.spend(950_000, "line").await;
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    world.settle_down().await;
    world.mail().await;
    let capture = all::<Settlement>(world.reader()).remove(0).paypal_capture.unwrap();
    (world, capture)
}

/// Webhooks arrive, and what they speak of is read.
async fn hear(world: &World) {
    world.mail().await;
    world.settle_down().await;
}

async fn hours(world: &World, hours: i64) {
    for _ in 0..hours * 2 {
        world.advance(1_800);
        world.settle_down().await;
    }
}

/// Whether the owner is frozen, and what counts against him.
async fn owner(world: &World) -> (bool, i64) {
    let owner = world.get("owner", "/v1/owners/me").await.expect(200);
    (owner["frozen"].is_string(), owner["disputed_micros"].as_i64().unwrap())
}

async fn dispute(world: &World) -> Value {
    world.get("operator", "/v1/disputes").await.expect(200)["data"][0].clone()
}

async fn thaw(world: &World) {
    let path = format!("/v1/owners/{}/credit", world.owner_id());
    let body = Some(json!({ "unfreeze": true }));
    world.call("operator", Method::PUT, &path, body).await.expect(200);
}

fn alarms(world: &World, kind: &str) -> Vec<Value> {
    let events = world.reader().events(0, 100_000).unwrap().events;
    let of = events.into_iter().filter(|event| event.event.kind == kind);
    of.map(|event| event.event.data).collect()
}

#[tokio::test]
async fn a_dispute_freezes_its_owner_at_once_and_counts_while_it_lasts() {
    let (world, capture) = captured().await;
    let case = world.sim().dispute(&capture, Some(60), true).unwrap();
    hear(&world).await;
    assert_eq!(owner(&world).await, (true, 600_000));
    let refused = world.authorize(world.quote("/weather", 10_000), "after").await;
    assert_eq!(refused.refusal(), "policy_denied/owner_frozen");
    let told = &alarms(&world, "alarm.dispute_opened")[0];
    assert_eq!(
        (&told["owner"], &told["amount_micros"]),
        (&json!(world.owner_id()), &json!(600_000))
    );
    let row = dispute(&world).await;
    assert_eq!(
        (&row["disputes"][0]["id"], &row["at_risk_micros"]),
        (&json!(case), &json!(600_000))
    );

    // Lifted by the operator while it lasts, it counts against what the owner may owe; PayPal's
    // records of the hold tell nothing new.
    thaw(&world).await;
    world.policy("owner", json!({ "tab_limit_micros": 1_000_000 })).await;
    hours(&world, 8).await;
    assert_eq!(owner(&world).await, (false, 600_000));
    assert_eq!(world.totals("disputes").await, "0/600/0/0");
    let quote = |name: &str| world.quote(name, 500_000);
    let refused = world.authorize(quote("/a"), "too-much").await;
    assert_eq!(refused.refusal(), "policy_denied/tab_limit");

    // Won: it comes back with PayPal's records, and what was refused passes.
    assert!(world.sim().resolve(&case, Favour::Seller));
    hear(&world).await;
    hours(&world, 8).await;
    assert_eq!(owner(&world).await, (false, 0));
    assert_eq!(dispute(&world).await["disputes"][0]["stage"], "won");
    assert_eq!(world.totals("disputes").await, "0/600/0/600");
    world.authorize(quote("/a"), "again").await.expect(201);
    world.assert_sound();
}

/// An owner pays a debt, and disputes that payment: frozen as for any other, before anything goes back.
#[tokio::test]
async fn a_dispute_about_a_repayment_freezes_who_repaid() {
    for readable in [true, false] {
        let (world, capture) = captured().await;
        world.refund(&capture, None).await.expect(201);
        hear(&world).await;
        let silent = Fault::on_event("*", Effect::WebhookNever).always();
        world.sim().set_faults(vec![silent]).unwrap();
        pays(&world, "repays", None, "0.95").await;
        let rows = world.sim().books().rows;
        let paid = rows.iter().rfind(|row| row.event_code == "T0003").unwrap();
        let paid = paid.transaction_id.clone();
        let body = json!({ "kind": "repayment", "owner": world.owner_id(), "amount": "$0.95",
            "fee": "$0.52", "paypal_id": paid });
        let headers = [("idempotency-key", "repaid")];
        let path = "/v1/cash-entries";
        world.call_with("operator", Method::POST, path, Some(body), &headers).await.expect(201);
        thaw(&world).await;
        if readable {
            world.sim().set_faults(Vec::new()).unwrap();
        }
        let case = world.sim().dispute(&paid, None, true).unwrap();
        hear(&world).await;
        if !readable {
            // Only PayPal's records tell what it withholds.
            hours(&world, 8).await;
        }
        assert!(owner(&world).await.0, "readable: {readable}");
        assert!(world.sim().resolve(&case, Favour::Buyer));
        hear(&world).await;
        hours(&world, 12).await;
        let debt = format!("owner:{}:debt", world.owner_id());
        assert_eq!(world.totals(&debt).await, "0/1900/0/950", "readable: {readable}");
        world.assert_sound();
    }
}

/// Doubled and turned round, and one that was never PayPal's: one alarm, and what is true is read.
#[tokio::test]
async fn webhooks_of_a_dispute_are_only_hints() {
    let (world, capture) = captured().await;
    let faults = [Effect::WebhookDuplicate { copies: 3 }, Effect::WebhookReorder];
    let faults = faults.map(|effect| Fault::on_event("CUSTOMER.DISPUTE.*", effect).always());
    world.sim().set_faults(faults.to_vec()).unwrap();
    let case = world.sim().dispute(&capture, None, false).unwrap();
    assert!(world.sim().touch_dispute(&case));
    assert!(world.sim().resolve(&case, Favour::Canceled));
    world.sim().set_faults(Vec::new()).unwrap();
    let other = world.sim().dispute(&capture, None, false).unwrap();
    for _ in 0..3 {
        tokio::join!(hear(&world), world.jobs());
        world.advance(120);
    }
    assert_eq!(owner(&world).await, (true, 950_000));
    assert_eq!(alarms(&world, "alarm.dispute_opened").len(), 1, "{other}");
    earnest::flow::dispute::hinted(&world.earnest.app, "PP-D-00000-00000").await.unwrap();
    earnest::flow::dispute::hinted(&world.earnest.app, "../../oauth2").await.unwrap();
    assert_eq!(alarms(&world, "alarm.dispute_opened").len(), 1);
    world.assert_sound();
}

/// No webhook ever comes: the hold in PayPal's records freezes, its dispute is found, and so is its end.
#[tokio::test]
async fn a_dispute_that_no_webhook_told_is_found() {
    let (world, capture) = captured().await;
    let silent = Fault::on_event("*", Effect::WebhookNever).always();
    world.sim().set_faults(vec![silent]).unwrap();
    let case = world.sim().dispute(&capture, None, true).unwrap();
    hours(&world, 8).await;
    assert_eq!(owner(&world).await, (true, 950_000));
    assert_eq!(alarms(&world, "alarm.dispute_money_withheld")[0]["owner"], json!(world.owner_id()));
    assert_eq!(dispute(&world).await["disputes"][0]["id"], json!(case));
    assert!(world.sim().resolve(&case, Favour::Buyer));
    hours(&world, 10).await;
    assert_eq!(dispute(&world).await["disputes"][0]["stage"], "lost");
    // What went back is the owner's debt, and counts once.
    assert_eq!(owner(&world).await, (true, 0));
    let debt = world.totals(&format!("owner:{}:debt", world.owner_id())).await;
    assert_eq!(debt, "0/950/0/0");
    assert_eq!(world.totals("disputes").await, "0/950/0/950");
    world.assert_sound();
    world.assert_balanced().await;
}

/// An app that may not read disputes learns of one by PayPal's records.
#[tokio::test]
async fn where_disputes_cannot_be_read_the_hold_freezes() {
    let (world, capture) = captured().await;
    let may = ALL_SCOPES.iter().filter(|scope| !scope.contains("disputes"));
    world.sim().set_scopes(may.map(|scope| (*scope).to_owned()).collect());
    world.sim().drop_tokens();
    world.sim().dispute(&capture, None, true).unwrap();
    hear(&world).await;
    assert_eq!(owner(&world).await, (false, 0));
    hours(&world, 8).await;
    assert_eq!(owner(&world).await, (true, 950_000));
    world.assert_sound();
}
