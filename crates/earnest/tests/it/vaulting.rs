//! Vaulting a way to pay, with a PayPal that loses answers, kills in between, and jobs beside it.

use earnest::config::Config;
use earnest_core::id::{IntentId, VaultId};
use earnest_core::intent::Intent;
use earnest_core::vault::{Vault, VaultState};
use paypal_sim::{Effect, Fault, SimConfig};
use reqwest::Method;

use crate::judge::all;
use crate::world::{World, unchanged};

fn lost() -> [Effect; 7] {
    let status = |status, after| Effect::Status { status, retry_after_seconds: None, after };
    [
        Effect::DropBefore,
        Effect::DropAfter,
        status(503, false),
        status(500, true),
        status(429, false),
        Effect::BadBody,
        Effect::DeadToken,
    ]
}

async fn begin(world: &World) -> String {
    let begun = world.call("owner", Method::POST, "/v1/payment-methods", None).await.expect(201);
    begun["id"].as_str().unwrap().to_owned()
}

fn the_vault(world: &World) -> Vault {
    let mut vaults = all::<Vault>(world.reader());
    assert_eq!(vaults.len(), 1);
    vaults.remove(0)
}

/// Jobs and time until the vault is as expected.
async fn until(world: &World, state: VaultState) {
    for _ in 0..20 {
        if the_vault(world).state == state {
            return;
        }
        world.advance(30);
        world.jobs().await;
    }
    panic!("never {state:?}: {:?} {:#?}", the_vault(world), all::<Intent>(world.reader()));
}

/// The payer consents, the owner confirms, and one token comes of it, whatever was lost.
async fn finish(world: &World, id: &str) {
    let token = the_vault(world).setup_token.unwrap();
    world.sim().approve(&token, None).unwrap();
    let path = format!("/v1/payment-methods/{id}/confirm");
    world.call("owner", Method::POST, &path, None).await.expect(200);
    until(world, VaultState::Active).await;
    one_token(world);
}

/// Every call for the lasting token was one call to PayPal: the same key, and no second token.
fn one_token(world: &World) {
    let journal = world.sim().journal();
    let created = journal.iter().filter(|entry| entry.operation == Some("payment-tokens.create"));
    let mut keys: Vec<_> =
        created.map(|entry| entry.headers["paypal-request-id"].to_string()).collect();
    keys.dedup();
    assert_eq!(keys.len(), 1);
    assert!(all::<Intent>(world.reader()).iter().all(|intent| !intent.state.is_open()));
    world.assert_sound();
}

#[tokio::test]
async fn a_lost_answer_while_vaulting_costs_time_and_nothing_else() {
    for operation in ["setup-tokens.create", "payment-tokens.create"] {
        for effect in lost() {
            let world = World::new().await;
            world.sim().add_fault(Fault::on(operation, effect)).unwrap();
            let id = begin(&world).await;
            until(&world, VaultState::AwaitingPayer).await;
            finish(&world, &id).await;
        }
    }
}

#[tokio::test]
async fn a_kill_while_vaulting_leaves_one_way_to_pay() {
    for operation in ["setup-tokens.create", "payment-tokens.create"] {
        let mut world =
            World::mortal(Config::simulated(), SimConfig::default(), &unchanged()).await;
        let late = Effect::Delay { milliseconds: 300, after: true };
        world.sim().add_fault(Fault::on(operation, late)).unwrap();
        let called = |world: &World| {
            let journal = world.sim().journal();
            journal.iter().any(|entry| entry.operation == Some(operation))
        };
        let url = format!("{}/v1/payment-methods", world.earnest.url());
        let (http, key) = (world.http.clone(), world.key("owner"));
        if operation == "setup-tokens.create" {
            // Nobody hears the answer: Earnest is killed while PayPal works.
            let asking = tokio::spawn(http.post(url).bearer_auth(key).send());
            at_paypal(&world).await;
            world.kill().await;
            assert!(asking.await.unwrap().is_err());
        } else {
            let id = begin(&world).await;
            let token = the_vault(&world).setup_token.unwrap();
            world.sim().approve(&token, None).unwrap();
            let asking = http.post(format!("{url}/{id}/confirm")).bearer_auth(key).send();
            let asking = tokio::spawn(asking);
            at_paypal(&world).await;
            world.kill().await;
            assert!(asking.await.unwrap().is_err());
        }
        crate::world::until("PayPal is through", || called(&world)).await;
        if operation == "setup-tokens.create" {
            until(&world, VaultState::AwaitingPayer).await;
            let id = the_vault(&world).id.to_string();
            finish(&world, &id).await;
        } else {
            until(&world, VaultState::Active).await;
            one_token(&world);
        }
    }
}

/// Waits until the call that is kept at PayPal is there.
async fn at_paypal(world: &World) {
    crate::faults::fired(world, |faults| faults.iter().all(|fault| fault["fired"] == 1)).await;
}

/// Somebody waits for the page, and whoever asked makes the call at once: the jobs, which look at
/// every open intent, take it up only when that came to nothing. Two calls at once would each see
/// the other's, and the page would not be there.
#[tokio::test]
async fn the_jobs_leave_alone_what_somebody_waits_for() {
    let world = World::new().await;
    let app = &world.earnest.app;
    let unit = earnest_core::vault::Begin {
        owner: world.owner_id().parse().unwrap(),
        vault: VaultId::new(app.seed()),
        intent: IntentId::new(app.seed()),
        epoch: app.store.epoch().to_owned(),
        return_url: format!("{}/vault/return", app.public_url),
        cancel_url: format!("{}/vault/cancel", app.public_url),
    };
    app.store.submit(unit).await.unwrap();
    let calls = || {
        let journal = world.sim().journal();
        journal.iter().filter(|entry| entry.operation == Some("setup-tokens.create")).count()
    };
    world.jobs().await;
    assert_eq!(calls(), 0, "whoever began it is about to call");
    // Whoever began it has died.
    world.advance(10);
    world.jobs().await;
    assert_eq!(calls(), 1);
    assert_eq!(the_vault(&world).state, VaultState::AwaitingPayer);
}

/// The payer comes back and the owner confirms at the same moment, several times.
#[tokio::test]
async fn confirming_at_once_confirms_once() {
    let world = World::new().await;
    let id = begin(&world).await;
    let token = the_vault(&world).setup_token.unwrap();
    world.sim().approve(&token, None).unwrap();
    let confirm = format!("/v1/payment-methods/{id}/confirm");
    let back = format!("/vault/return?method={id}");
    let confirms = (0..4).map(|_| world.call("owner", Method::POST, &confirm, None));
    let returns = (0..4).map(|_| world.get("", &back));
    let (confirmed, returned) = tokio::join!(
        futures_util::future::join_all(confirms),
        futures_util::future::join_all(returns)
    );
    for answer in confirmed.into_iter().chain(returned) {
        assert_eq!(answer.status.as_u16(), 200, "{}", answer.body);
    }
    until(&world, VaultState::Active).await;
    one_token(&world);
}
