//! A clock of ours that is wrong, and one that was wrong and is set: nothing is charged twice for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use earnest::serve::Start;
use earnest_core::intent::{Intent, IntentState};
use earnest_core::settlement::{Settlement, SettlementState};
use earnest_core::time::{after, seconds_between};
use paypal_sim::{Effect, Fault};
use reqwest::Method;

use crate::judge::all;
use crate::world::{Change, World};

const HOUR: i64 = 3_600;

/// How far our clock is from PayPal's, in seconds.
type Off = Arc<AtomicI64>;

fn off() -> (Off, Change) {
    let off = Off::default();
    let by = Arc::clone(&off);
    let change: Change = Arc::new(move |start: &mut Start| {
        let (clock, by) = (start.clock.clone(), Arc::clone(&by));
        start.clock = Arc::new(move || after(clock(), by.load(Ordering::SeqCst)));
    });
    (off, change)
}

fn settlement_intent(world: &World) -> Intent {
    let mut intents = all::<Intent>(world.reader());
    intents.retain(|intent| intent.amount_micros.is_some());
    assert_eq!(intents.len(), 1, "one attempt");
    intents.remove(0)
}

/// A settlement whose every send is lost in this way, by a clock that is off by so much; no webhook
/// tells of it.
async fn lost(world: &World, off: &Off, by: i64, effect: Effect) {
    world.policy("owner", serde_json::json!({})).await;
    world.spend(950_000, "one").await;
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.sim().add_fault(Fault::on_event("*", Effect::WebhookNever).always()).unwrap();
    world.sim().add_fault(Fault::on("orders.create", effect).always()).unwrap();
    off.store(by, Ordering::SeqCst);
    let path = format!("/v1/tabs/{tab}/settle");
    let headers = [("idempotency-key", "s-1")];
    world.call_with("owner", Method::POST, &path, None, &headers).await.expect(202);
    earnest::jobs::intents(&world.earnest.app).await.unwrap();
    assert_eq!(settlement_intent(world).state, IntentState::Unknown);
}

/// Passes time until the fate is known, a day at most.
async fn until_known(world: &World) {
    for _ in 0..24 * 12 {
        if settlement_intent(world).state != IntentState::Unknown {
            return;
        }
        world.advance(300);
        earnest::jobs::intents(&world.earnest.app).await.unwrap();
    }
    panic!("nobody ever knew: {:?}", settlement_intent(world));
}

/// However wrong the clock is, and whenever it is set, a charge that happened is found: the records of
/// the hour that our clock names would prove that it did not.
#[tokio::test]
async fn a_wrong_clock_proves_no_charge_absent() {
    for by in [2 * HOUR, -2 * HOUR, 30 * 24 * HOUR] {
        for set_again in [true, false] {
            let (off, change) = off();
            let world = World::ready_but(&change).await;
            lost(&world, &off, by, Effect::DropAfter).await;
            if set_again {
                off.store(0, Ordering::SeqCst);
            } else if by > 24 * HOUR {
                // It waits for as long as it is wrong.
                for _ in 0..24 {
                    world.advance(HOUR);
                    earnest::jobs::intents(&world.earnest.app).await.unwrap();
                }
                assert_eq!(settlement_intent(&world).state, IntentState::Unknown);
                continue;
            }
            let waits = if set_again && by > 24 * HOUR { by } else { 0 };
            world.advance(waits);
            until_known(&world).await;
            let states: Vec<SettlementState> =
                all::<Settlement>(world.reader()).iter().map(|row| row.state).collect();
            assert_eq!(states, [SettlementState::Captured], "{by} {set_again}");
            let charged = world.sim().books().rows;
            let charged = charged.iter().filter(|row| row.event_code == "T0003").count();
            assert_eq!(charged, 1, "{by} {set_again}");
            off.store(0, Ordering::SeqCst);
            world.assert_balanced().await;
        }
    }
}

/// Our clock was set, and PayPal tells nobody the time: nothing is charged before it does, though the
/// token at hand would still do.
#[tokio::test]
async fn nothing_is_charged_while_paypals_time_is_not_known() {
    let (off, change) = off();
    let world = World::ready_but(&change).await;
    world.policy("owner", serde_json::json!({})).await;
    world.spend(950_000, "one").await;
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.sim().add_fault(Fault::on("oauth.token", Effect::DropBefore).always()).unwrap();
    off.store(2 * HOUR, Ordering::SeqCst);
    let path = format!("/v1/tabs/{tab}/settle");
    let headers = [("idempotency-key", "s-1")];
    world.call_with("owner", Method::POST, &path, None, &headers).await.expect(202);
    let asked = |world: &World, operation: &str| {
        let calls = world.sim().journal();
        calls.iter().filter(|call| call.operation == Some(operation)).count()
    };
    let before = asked(&world, "oauth.token");
    for _ in 0..3 {
        earnest::jobs::intents(&world.earnest.app).await.unwrap();
        world.advance(600);
    }
    assert_eq!(asked(&world, "orders.create"), 0);
    assert!(asked(&world, "oauth.token") > before, "it was asked");
    world.sim().set_faults(Vec::new()).unwrap();
    until_known(&world).await;
    world.settle_down().await;
    let states: Vec<SettlementState> =
        all::<Settlement>(world.reader()).iter().map(|row| row.state).collect();
    assert_eq!((states, asked(&world, "orders.create")), (vec![SettlementState::Captured], 1));
    world.assert_sound();
}

/// PayPal keeps a key for six hours of its own. By a clock that was ahead when it was sent first, and
/// was set back, it would look younger than it is.
#[tokio::test]
async fn a_clock_that_was_set_back_repeats_no_key_that_paypal_forgot() {
    let (off, change) = off();
    let world = World::ready_but(&change).await;
    let first = world.clock.now();
    lost(&world, &off, 3 * HOUR, Effect::DropBefore).await;
    off.store(0, Ordering::SeqCst);
    until_known(&world).await;
    let calls = world.sim().journal();
    let sent: Vec<i64> = calls
        .iter()
        .filter(|call| call.operation == Some("orders.create"))
        .map(|call| seconds_between(first, call.at.parse().unwrap()))
        .collect();
    assert!(sent.len() > 1 && sent.iter().all(|after| *after < 6 * HOUR), "{sent:?}");
    let states: Vec<SettlementState> =
        all::<Settlement>(world.reader()).iter().map(|row| row.state).collect();
    assert_eq!(states, [SettlementState::NotCharged]);
    world.assert_sound();
}
