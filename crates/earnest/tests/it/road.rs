//! The road from a 402 to one capture.

use earnest::config::Config;
use earnest_core::settings::Settings;
use earnest_core::settlement::Settlement;
use paypal_sim::SimConfig;
use reqwest::Method;
use serde_json::json;

use crate::judge::all;
use crate::world::{Change, World, unchanged};

#[tokio::test]
async fn lines_are_captured_in_one_settlement_and_signed() {
    let world = World::ready().await;
    for n in 0..7 {
        world.spend(100_000, &format!("call-{n}")).await;
    }
    let tab = world.tab().await;
    assert_eq!(tab["owed_micros"], 700_000);
    let path = format!("/v1/tabs/{}/close", tab["id"].as_str().unwrap());
    world.call("owner", Method::POST, &path, None).await.expect(202);
    world.settle_down().await;
    let path = format!("/v1/tabs/{}/settlements", tab["id"].as_str().unwrap());
    let settlements = world.get("owner", &path).await.expect(200);
    let settlement = &settlements["data"][0];
    assert_eq!(settlement["status"], "captured", "{settlement}");
    assert_eq!(settlement["captured_micros"], 700_000);
    assert_eq!(settlement["fee_micros"], 510_000);
    let url = settlement["receipt_url"].as_str().unwrap();
    let path = url.strip_prefix(&world.earnest.url()).unwrap();
    let receipt = world.get("", path).await.expect(200);
    assert_eq!(receipt["claims"]["captured_micros"], 700_000);
    world.assert_balanced().await;
    assert!(world.sim().violations().is_empty(), "{:?}", world.sim().violations());
}

/// Forty paid calls at a price: how many captures, and what was captured.
async fn forty_calls(settings: Settings, price: i64) -> (usize, i64) {
    let config = Config { settings, ..Config::simulated() };
    let world = World::with(config, SimConfig::default()).await;
    world.prove_origin().await;
    world.vault().await;
    world.policy("owner", json!({})).await;
    for n in 0..40 {
        world.spend(price, &format!("call-{n}")).await;
        world.jobs().await;
        world.advance(20);
    }
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    world.settle_down().await;
    world.mail().await;
    world.assert_at_rest();
    world.assert_balanced().await;

    let settlements = all::<Settlement>(world.reader());
    let sum = |amounts: &mut dyn Iterator<Item = i64>| amounts.sum::<i64>();
    let captured = sum(&mut settlements.iter().map(|it| it.captured_micros.unwrap().get()));
    let lines = sum(&mut settlements.iter().map(|it| it.lines_micros.get()));
    assert_eq!(lines, 40 * price);
    let carried = world.tab().await["carry_micros"].as_i64().unwrap();
    assert_eq!(captured, lines - carried);
    assert!(carried < 10_000, "{carried}");
    let at_paypal = world.sim().books().balances[0].captured.minor * 10_000;
    assert_eq!(captured, at_paypal);
    (settlements.len(), captured)
}

#[tokio::test]
async fn forty_paid_calls_settle_in_at_most_three_captures() {
    for settings in [Settings::default(), Settings::simulated()] {
        // The seller of these tests is paid out nowhere.
        let settings = Settings { sellers_need_recipient: false, ..settings };
        // Below every threshold; a rest below a cent is carried.
        assert_eq!(forty_calls(settings.clone(), 20_300).await, (1, 810_000));
        // Past the amount that is settled at, twice, and the end.
        let (captures, captured) = forty_calls(settings, 1_001_500).await;
        assert_eq!(captured, 40_060_000);
        assert!(captures <= 3, "{captures}");
    }
}

/// The operator bears the fee, so a wish for less than the minimum is granted twice a day; after that
/// the answer names the fee, and a tab that is closed is carried.
#[tokio::test]
async fn a_wish_below_the_minimum_is_granted_seldom_and_names_the_fee() {
    let simulated = Settings::simulated();
    let min = Settings::default().min_settlement_micros;
    let config = Config {
        settings: Settings { min_settlement_micros: min, ..simulated },
        ..Config::simulated()
    };
    let world = World::with(config, SimConfig::default()).await;
    world.prove_origin().await;
    world.vault().await;
    for n in 0..3 {
        world.spend(10_000, &format!("a-{n}")).await;
        let tab = world.tab().await["id"].as_str().unwrap().to_owned();
        let (path, key) = (format!("/v1/tabs/{tab}/settle"), format!("s-{n}"));
        let headers = [("idempotency-key", key.as_str())];
        let answer = world.call_with("owner", Method::POST, &path, None, &headers).await;
        if n < 2 {
            answer.expect(202);
            world.settle_down().await;
            continue;
        }
        assert_eq!((answer.status.as_u16(), answer.code()), (409, "state_conflict"));
        assert_eq!(answer.body["owed_micros"], 10_000, "{}", answer.body);
        assert_eq!(answer.body["fee_predicted_micros"], 490_000);
        let path = format!("/v1/tabs/{tab}/close");
        let closing = world.call("owner", Method::POST, &path, None).await.expect(202);
        let why = closing["treasurer"].as_str().unwrap();
        assert!(why.starts_with("carrying $0.01") && why.contains("cost $0.49"), "{why}");
        world.settle_down().await;
        let fees = world.totals("paypal_fees").await;
        assert_eq!(fees, "0/980/0/0", "two fees, and no third");
        // Its rest is on the next tab.
        world.advance(1);
        world.spend(10_000, "next").await;
        assert_eq!(world.tab().await["owed_micros"], 20_000);
    }
    world.assert_balanced().await;
}

#[tokio::test]
async fn one_request_id_buys_once_and_a_refusal_leaves_it_free() {
    request_ids(unchanged()).await;
}

/// The suite behind it, which a planted bug must not pass.
pub async fn request_ids(change: Change) {
    let world = World::ready_but(&change).await;
    let quote = world.quote("/weather", 100_000);
    let first = world.authorize(quote.clone(), "once").await.expect(201);
    for _ in 0..3 {
        let again = world.authorize(quote.clone(), "once").await;
        assert_eq!(again.headers["idempotent-replayed"], "true");
        assert_eq!(again.expect(201), first);
    }
    assert_eq!(world.tab().await["held_micros"], 100_000);
    let other = world.authorize(world.quote("/weather", 90_000), "once").await;
    assert_eq!((other.status.as_u16(), other.code()), (422, "idempotency_conflict"));

    // Neither does a refusal that is no decision of policy.
    let stale = world.quote("/weather", 50_000);
    world.advance(301);
    let expired = world.authorize(stale, "late").await;
    assert_eq!((expired.status.as_u16(), expired.code()), (402, "quote_expired"));
    world.authorize(world.quote("/weather", 50_000), "late").await.expect(201);

    let dear = world.quote("/weather", 1_500_000);
    let denied = world.authorize(dear.clone(), "dear").await;
    assert_eq!(denied.refusal(), "policy_denied/per_call_cap");
    world.policy("owner", json!({})).await;
    world.authorize(dear, "dear").await.expect(201);
    assert_eq!(world.tab().await["held_micros"], 1_650_000);
    world.assert_sound();
}
