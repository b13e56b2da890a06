//! The road from a 402 to one capture.

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
