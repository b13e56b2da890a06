//! Signing keys and the key file are replaced while sellers and receipts go on, and whatever is cut
//! off goes on where it was.

use std::collections::BTreeSet;

use earnest::config::Config;
use earnest::reseal::{Until, reseal};
use earnest::restore::SEAL_KEY;
use earnest::sealed::next_file;
use earnest_core::jws::{Jwks, KeySet};
use earnest_core::receipt;
use paypal_sim::SimConfig;
use reqwest::Method;
use serde_json::{Value, json};

use crate::shop::Shop;
use crate::world::{PATIENCE, World, unchanged};

pub async fn rotate(
    world: &World,
    purpose: &str,
    at_once: bool,
    key: &str,
) -> crate::world::Answer {
    let body = json!({ "for": purpose, "at_once": at_once });
    let path = "/v1/signing-keys/rotate";
    let headers = [("idempotency-key", key)];
    world.call_with("operator", Method::POST, path, Some(body), &headers).await
}

async fn published(world: &World) -> Jwks {
    let set = world.get("", "/.well-known/jwks.json").await.expect(200);
    serde_json::from_value(set).unwrap()
}

/// The key that a token names.
pub fn kid(token: &str) -> String {
    use base64::Engine as _;
    let header = token.split('.').next().unwrap();
    let header = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(header).unwrap();
    let header: Value = serde_json::from_slice(&header).unwrap();
    header["kid"].as_str().unwrap().to_owned()
}

async fn statuses(world: &World, purpose: &str) -> Vec<String> {
    let rows = world.get("operator", "/v1/signing-keys").await.expect(200);
    let rows = rows["data"].as_array().unwrap().clone();
    let own = rows.iter().filter(|row| row["for"] == purpose);
    own.map(|row| row["status"].as_str().unwrap().to_owned()).collect()
}

async fn receipt_of(world: &World) -> String {
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/tabs/{tab}/settle");
    let key = crate::world::fresh_id("settle");
    let headers = [("idempotency-key", key.as_str())];
    world.call_with("owner", Method::POST, &path, None, &headers).await.expect(202);
    world.settle_down().await;
    let rows = crate::judge::all::<receipt::Receipt>(world.reader());
    rows.into_iter().last().unwrap().jws
}

#[tokio::test]
async fn a_new_key_is_published_before_it_signs_and_the_old_one_for_ever() {
    let mut world = World::mortal(Config::simulated(), SimConfig::default(), &unchanged()).await;
    world.prove_origin().await;
    world.vault().await;
    let first = world.buy(100_000, "first").await;
    assert_eq!(world.report(&first, "redeemed").await["outcome"], "billed");
    let early = receipt_of(&world).await;

    let made = rotate(&world, "voucher", false, "wish-1").await.expect(200);
    assert_eq!(made["status"], "published");
    assert_eq!(rotate(&world, "voucher", false, "wish-1").await.expect(200), made, "one wish");
    assert_eq!(rotate(&world, "voucher", false, "wish-2").await.code(), "state_conflict");
    assert_eq!(rotate(&world, "receipt", false, "wish-1").await.code(), "idempotency_conflict");
    rotate(&world, "receipt", false, "wish-3").await.expect(200);
    assert_eq!(published(&world).await.keys.len(), 4);
    assert_eq!(statuses(&world, "voucher").await, ["published", "signing"]);

    // Stopped right behind the commit, before anything in memory knew: it is as good as done.
    world.kill().await;
    assert_eq!(published(&world).await.keys.len(), 4);
    world.advance(599);
    let old = world.buy(20_000, "old").await;
    assert_eq!(kid(&old), kid(&first), "ten minutes for everybody to hear of it");
    world.advance(1);
    let quote = world.quote("/weather", 20_000);
    let again = world.authorize(quote, "old").await.expect(201)["voucher"].clone();
    assert_eq!(again, old.as_str(), "the same voucher, byte for byte, though its key is retired");
    let new = world.buy(20_000, "new").await;
    assert_eq!(Value::from(kid(&new)), made["kid"]);
    assert_eq!(statuses(&world, "voucher").await, ["signing", "retired"]);
    for voucher in [&old, &new] {
        assert_eq!(world.report(voucher, "redeemed").await["outcome"], "billed");
    }
    let late = receipt_of(&world).await;
    assert_ne!(kid(&late), kid(&early));
    let rotated = rotate(&world, "voucher", false, "wish-4").await.expect(200);
    assert_ne!(rotated["kid"], made["kid"]);

    // Years later, and after another start: both receipts verify by what is published.
    world.advance(3600 * 24 * 30);
    world.kill().await;
    let keys = KeySet::new(&published(&world).await);
    for jws in [&early, &late] {
        receipt::verify(jws, &keys).unwrap();
        let said =
            world.post("", "/v1/receipts/verify", json!({ "receipt": jws })).await.expect(200);
        assert_eq!(said["valid"], true, "{said}");
    }
    world.assert_sound();
}

/// What somebody signs with a key after its end counts for nothing.
#[tokio::test]
async fn a_retired_key_signs_nothing_any_more() {
    let world = World::ready().await;
    let stolen = world.earnest.app.keys();
    let honest = world.buy(20_000, "honest").await;
    rotate(&world, "voucher", true, "wish-1").await.expect(200);
    assert_eq!(statuses(&world, "voucher").await, ["signing", "retired"]);
    world.advance(1);
    let claims = {
        use base64::Engine as _;
        let part = honest.split('.').nth(1).unwrap();
        let part = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).unwrap();
        let mut claims: Value = serde_json::from_slice(&part).unwrap();
        let now = world.clock.now().as_second();
        (claims["iat"], claims["exp"]) = (now.into(), (now + 120).into());
        claims
    };
    let old = stolen.signer(earnest_core::jws::Purpose::Voucher, 0).unwrap();
    let forged = old.sign(&claims).unwrap();
    assert_eq!(world.report(&forged, "redeemed").await["code"], "voucher_invalid");
    let next = world.buy(20_000, "next").await;
    assert_ne!(kid(&next), kid(&forged));
    world.assert_sound();
}

/// A key that is ended at once: the shop meets a key that it never heard of, looks it up, and sells
/// on without a restart.
#[tokio::test]
async fn a_shop_looks_up_a_key_that_it_never_heard_of() {
    let shop = Shop::open().await;
    let voucher = shop.voucher("/weather", "before").await;
    shop.get("/weather", Some(&voucher)).await.expect(200);
    rotate(&shop.world, "voucher", true, "wish-1").await.expect(200);
    let began = tokio::time::Instant::now();
    let mut tries = 0;
    let served = loop {
        // It looks up at most every ten seconds; meanwhile paying again is safe, and it says so.
        let next = shop.voucher("/weather", &format!("after-{tries}")).await;
        assert_ne!(kid(&next), kid(&voucher));
        let answer = shop.get("/weather", Some(&next)).await;
        if answer.status.as_u16() == 200 {
            break shop.served();
        }
        assert_eq!((answer.status.as_u16(), answer.code()), (402, "voucher_invalid"));
        assert!(began.elapsed() < PATIENCE, "never looked up");
        tries += 1;
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    };
    assert_eq!(served, 2);
}

/// The key file is replaced; stopped behind any step, Earnest starts, and the same again goes on.
#[tokio::test]
async fn the_key_file_is_replaced_however_often_that_is_cut_off() {
    for until in [Until::Made, Until::Sealed, Until::Kept, Until::Done] {
        let mut world =
            World::mortal(Config::simulated(), SimConfig::default(), &unchanged()).await;
        world.prove_origin().await;
        world.vault().await;
        let hook = json!({ "url": "http://127.0.0.1:9/hook", "kinds": ["alarm.*"] });
        world.post("operator", "/v1/webhooks", hook).await.expect(201);
        let voucher = world.buy(20_000, "before").await;
        let key_file = world.data().join(SEAL_KEY);
        let old = std::fs::read_to_string(&key_file).unwrap();
        let run = |world: &World, until: Until| {
            let (books, clock) = (world.books(), world.clock.clone());
            let key_file = world.data().join(SEAL_KEY);
            let run = move || {
                let clock = std::sync::Arc::new(move || clock.now());
                reseal(&books, "simulated", &key_file, clock, until)
            };
            tokio::task::spawn_blocking(run)
        };
        // Not while Earnest runs, as far as that shows from outside: a file is held.
        if !crate::engine::on_postgres() {
            assert!(run(&world, Until::Done).await.unwrap().is_err());
        }
        assert_eq!(std::fs::read_to_string(&key_file).unwrap(), old);
        world.die().await;
        let cut_off = run(&world, until).await.unwrap().unwrap();
        let secrets = if until == Until::Made { 0 } else { 3 };
        assert_eq!(cut_off.secrets, secrets, "two signing keys and one endpoint's");
        world.rise().await;
        assert_eq!(world.report(&voucher, "redeemed").await["outcome"], "billed");
        world.die().await;
        let ended = run(&world, Until::Done).await.unwrap().unwrap();
        world.rise().await;
        assert_ne!(std::fs::read_to_string(&key_file).unwrap(), old, "{until:?}");
        assert!(!next_file(&key_file).exists());
        // What was sealed with the first key is in older backups, so that it is kept.
        let kept: BTreeSet<String> = std::fs::read_dir(world.data())
            .unwrap()
            .filter_map(|entry| std::fs::read_to_string(entry.unwrap().path()).ok())
            .collect();
        assert!(kept.contains(&old), "{ended:?}");
        let voucher = world.buy(20_000, "after").await;
        assert_eq!(world.report(&voucher, "redeemed").await["outcome"], "billed");
        world.assert_sound();
    }
}
