//! The road from a 402 to one capture, and walk b of the proof.

use reqwest::Method;

use crate::world::World;

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

/// Walk b: below-cent rest carried, the next settlement declined, written off.
#[tokio::test]
async fn walk_b() {
    let world = World::ready().await;
    for n in 0..3 {
        world.spend(15_000, &format!("a-{n}")).await;
    }
    let a = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{a}/close"), None).await.expect(202);
    world.settle_down().await;
    let owed = |tab: &str| format!("tab:{tab}:owed");
    let accrued = format!("seller:{}:accrued", world.seller_id());

    world.advance(1);
    // A settled; its rest is carried by the unit that opens B, here with B's first line held.
    let voucher = world.buy(45_000, "b-0").await;
    let b = world.tab().await["id"].as_str().unwrap().to_owned();
    assert_ne!(a, b);
    assert_eq!(world.totals(&owed(&a)).await, "0/45/0/45");
    assert_eq!(world.totals(&owed(&b)).await, "45/5/0/0");
    assert_eq!(world.totals("paypal_cash").await, "0/40/0/490");
    assert_eq!(world.totals("paypal_fees").await, "0/490/0/0");

    assert_eq!(world.report(&voucher, "redeemed").await["outcome"], "billed");
    use paypal_sim::{Effect, Fault};
    world
        .sim()
        .add_fault(Fault::on(
            "orders.create",
            Effect::Issue { issue: "INSTRUMENT_DECLINED".to_owned() },
        ))
        .unwrap();
    world.call("owner", Method::POST, &format!("/v1/tabs/{b}/close"), None).await.expect(202);
    world.settle_down().await;
    assert_eq!(world.totals(&owed(&b)).await, "0/50/0/0");
    assert_eq!(world.totals("paypal_cash").await, "0/40/0/490");
    assert_eq!(world.totals(&accrued).await, "0/0/0/90");
    assert_eq!(world.tab().await["status"], "frozen");
    let refused = world.authorize(world.quote("/weather", 10_000), "c-0").await;
    assert_eq!(refused.refusal(), "policy_denied/tab_frozen");

    let path = format!("/v1/tabs/{b}/write-off");
    let headers = [("idempotency-key", "w-1")];
    world.call_with("operator", Method::POST, &path, None, &headers).await.expect(200);
    assert_eq!(world.totals(&owed(&b)).await, "0/50/0/50");
    assert_eq!(world.totals("losses").await, "0/50/0/0");
    world.assert_balanced().await;
}
