//! The hand-worked walks of the proof through HTTP and the simulator, every total as given: debits
//! pending, debits posted, credits pending, credits posted, in thousandths of a dollar.

use earnest_core::intent::{Intent, IntentState};
use earnest_core::settlement::{Settlement, SettlementState};
use paypal_sim::{Effect, Fault};
use reqwest::Method;
use serde_json::json;

use crate::judge;
use crate::world::{Change, World, unchanged};

const HOUR: i64 = 3600;

/// One row of the table: the tab's account, cash, fees, the seller's earnings.
async fn row(world: &World, tab: &str, expect: [&str; 4]) {
    let accounts = [
        format!("tab:{tab}:owed"),
        "paypal_cash".to_owned(),
        "paypal_fees".to_owned(),
        format!("seller:{}:accrued", world.seller_id()),
    ];
    let mut found = Vec::new();
    for account in &accounts {
        found.push(world.totals(account).await);
    }
    assert_eq!(found, expect, "{accounts:?}");
}

/// The one account of what may be refunded of a capture.
async fn refundable(world: &World) -> String {
    let body = world.get("operator", "/v1/accounts?prefix=capture:").await.expect(200);
    let rows = body["data"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{body}");
    world.totals(rows[0]["name"].as_str().unwrap()).await
}

async fn close(world: &World, tab: &str) {
    let path = format!("/v1/tabs/{tab}/close");
    world.call("owner", Method::POST, &path, None).await.expect(202);
}

async fn open_tab(world: &World) -> String {
    let tab = world.call("owner", Method::POST, "/v1/tabs", None).await.expect(201);
    tab["id"].as_str().unwrap().to_owned()
}

/// The step between the treasurer's plan and the call.
async fn plan(world: &World) {
    earnest::jobs::treasurer(&world.earnest.app).await.unwrap();
}

async fn carry_out(world: &World) {
    earnest::jobs::intents(&world.earnest.app).await.unwrap();
}

fn always(effect: Effect) -> Fault {
    Fault::on("orders.create", effect).always()
}

fn the_intent(world: &World) -> Intent {
    let mut intents = judge::all::<Intent>(world.reader());
    intents.retain(|intent| intent.amount_micros.is_some());
    intents.sort_by_key(|intent| intent.id);
    intents.pop().unwrap()
}

#[tokio::test]
async fn walk_a_nine_holds_one_expires_one_capture() {
    let world = World::ready().await;
    world.policy("owner", json!({})).await;
    // The first tick only starts the report clock.
    world.live(1).await;
    let mut vouchers = Vec::new();
    for (n, price) in [100, 100, 100, 100, 100, 100, 100, 250, 100].into_iter().enumerate() {
        vouchers.push(world.buy(price * 1_000, &format!("a-{n}")).await);
    }
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    row(&world, &tab, ["1050/0/0/0", "0/0/0/0", "0/0/0/0", "0/0/1050/0"]).await;

    for voucher in &vouchers[..8] {
        assert_eq!(world.report(voucher, "redeemed").await["outcome"], "billed");
    }
    // The ninth is given up a quarter of an hour of report clock after its voucher ended, no sooner.
    world.live(120 + 15 * 60 - 10).await;
    world.jobs().await;
    row(&world, &tab, ["100/950/0/0", "0/0/0/0", "0/0/0/0", "0/0/100/950"]).await;
    world.live(10).await;
    world.jobs().await;
    row(&world, &tab, ["0/950/0/0", "0/0/0/0", "0/0/0/0", "0/0/0/950"]).await;

    close(&world, &tab).await;
    world.settle_down().await;
    row(&world, &tab, ["0/950/0/950", "0/950/0/520", "0/520/0/0", "0/0/0/950"]).await;
    assert_eq!(refundable(&world).await, "0/0/0/950");
    world.mail().await;
    world.assert_at_rest();
    world.assert_balanced().await;
}

/// Below-cent rest carried, the next settlement declined, written off.
#[tokio::test]
async fn walk_b_a_rest_is_carried_declined_and_written_off() {
    let world = World::ready().await;
    for n in 0..3 {
        world.spend(15_000, &format!("a-{n}")).await;
    }
    let a = world.tab().await["id"].as_str().unwrap().to_owned();
    close(&world, &a).await;
    world.settle_down().await;
    world.advance(1);
    let b = open_tab(&world).await;
    assert_ne!(a, b);
    row(&world, &a, ["0/45/0/45", "0/40/0/490", "0/490/0/0", "0/0/0/45"]).await;
    assert_eq!(world.totals(&format!("tab:{b}:owed")).await, "0/5/0/0");

    for n in 0..3 {
        world.spend(15_000, &format!("b-{n}")).await;
    }
    close(&world, &b).await;
    plan(&world).await;
    let sent = ["0/50/50/0", "50/40/0/490", "0/490/0/0", "0/0/0/90"];
    row(&world, &b, sent).await;
    // Sent, and nothing heard: the same totals.
    world.sim().add_fault(Fault::on("orders.create", Effect::DropBefore)).unwrap();
    carry_out(&world).await;
    assert_eq!(the_intent(&world).state, IntentState::Unknown);
    row(&world, &b, sent).await;

    let declined = Effect::Issue { issue: "INSTRUMENT_DECLINED".to_owned() };
    world.sim().add_fault(Fault::on("orders.create", declined)).unwrap();
    world.advance(10);
    carry_out(&world).await;
    row(&world, &b, ["0/50/0/0", "0/40/0/490", "0/490/0/0", "0/0/0/90"]).await;
    assert_eq!(world.tab().await["status"], "frozen");
    let refused = world.authorize(world.quote("/weather", 10_000), "c-0").await;
    assert_eq!(refused.refusal(), "policy_denied/tab_frozen");

    let path = format!("/v1/tabs/{b}/write-off");
    let headers = [("idempotency-key", "w-1")];
    world.call_with("operator", Method::POST, &path, None, &headers).await.expect(200);
    row(&world, &b, ["0/50/0/50", "0/40/0/490", "0/490/0/0", "0/0/0/90"]).await;
    assert_eq!(world.totals("losses").await, "0/50/0/0");
    let refused = world.authorize(world.quote("/weather", 10_000), "d-0").await;
    assert_eq!(refused.refusal(), "policy_denied/owner_frozen");
    world.mail().await;
    world.assert_at_rest();
    world.assert_balanced().await;
}

/// Walk c up to eight hours of not knowing; `lost` is what happens to every send.
async fn unknown_for_eight_hours(lost: Effect, change: &Change) -> (World, String) {
    let world = World::ready_but(change).await;
    world.policy("owner", json!({})).await;
    for n in 0..19 {
        world.spend(50_000, &format!("c-{n}")).await;
    }
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    // No webhook tells either: with one, nothing would be unknown for long.
    world.sim().add_fault(Fault::on_event("*", Effect::WebhookNever).always()).unwrap();
    world.sim().add_fault(always(lost)).unwrap();
    let path = format!("/v1/tabs/{tab}/settle");
    let headers = [("idempotency-key", "s-1")];
    world.call_with("owner", Method::POST, &path, None, &headers).await.expect(202);
    let begun = world.clock.now();
    for n in 0..3 {
        pass_two_hours(&world).await;
        world.spend(100_000, &format!("later-{n}")).await;
    }
    pass_two_hours(&world).await;
    let elapsed = world.clock.now().duration_since(begun).as_secs();
    assert_eq!(elapsed, 8 * HOUR);
    let intent = the_intent(&world);
    assert_eq!(intent.state, IntentState::Unknown);
    row(&world, &tab, ["0/1250/950/0", "950/0/0/0", "0/0/0/0", "0/0/0/1250"]).await;

    // Nothing new starts meanwhile, whoever asks; and the key was not sent past its retention.
    let headers = [("idempotency-key", "s-2")];
    let again = world.call_with("owner", Method::POST, &path, None, &headers).await;
    assert_eq!((again.status.as_u16(), again.code()), (409, "state_conflict"));
    let last_sent = intent.last_sent_at.unwrap().duration_since(begun).as_secs();
    assert!((5 * HOUR..=5 * HOUR + 1_800).contains(&last_sent), "{last_sent}");
    assert!(intent.sends > 10, "{}", intent.sends);
    world.assert_sound();
    (world, tab)
}

/// Two hours in steps that let the jobs do all they would.
async fn pass_two_hours(world: &World) {
    for _ in 0..24 {
        world.jobs().await;
        world.advance(300);
    }
}

fn first_settlement(world: &World) -> Settlement {
    let mut all = judge::all::<Settlement>(world.reader());
    all.retain(|settlement| settlement.n == 1);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[tokio::test]
async fn walk_c_an_unknown_settlement_is_proved_charged() {
    proved_charged(unchanged()).await;
}

/// The suite behind it, which a planted bug must not pass.
pub async fn proved_charged(change: Change) {
    let (world, tab) = unknown_for_eight_hours(Effect::DropAfter, &change).await;
    world.sim().set_faults(Vec::new()).unwrap();
    world.advance(HOUR);
    carry_out(&world).await;
    row(&world, &tab, ["0/1250/0/950", "0/950/0/520", "0/520/0/0", "0/0/0/1250"]).await;
    assert_eq!(first_settlement(&world).state, SettlementState::Captured);
    assert_eq!(refundable(&world).await, "0/0/0/950");
    world.assert_sound();

    // What came later is settled on its own.
    world.settle_down().await;
    world.mail().await;
    assert_eq!(world.totals(&format!("tab:{tab}:owed")).await, "0/1250/0/1250");
    world.assert_at_rest();
    world.assert_balanced().await;
}

#[tokio::test]
async fn walk_c_an_unknown_settlement_is_proved_not_charged() {
    proved_not_charged(unchanged()).await;
}

/// The suite behind it, which a planted bug must not pass.
pub async fn proved_not_charged(change: Change) {
    let (world, tab) = unknown_for_eight_hours(Effect::DropBefore, &change).await;
    world.sim().set_faults(Vec::new()).unwrap();
    // Reports lie three hours behind, and have to reach three hours past the last send.
    let last = the_intent(&world).last_sent_at.unwrap();
    let mut since = 0;
    while the_intent(&world).state == IntentState::Unknown {
        row(&world, &tab, ["0/1250/950/0", "950/0/0/0", "0/0/0/0", "0/0/0/1250"]).await;
        world.advance(300);
        since = world.clock.now().duration_since(last).as_secs();
        assert!(since < 7 * HOUR, "no proof was ever found");
        carry_out(&world).await;
    }
    assert!(since >= 6 * HOUR, "too early for a proof: {since} s");
    row(&world, &tab, ["0/1250/0/0", "0/0/0/0", "0/0/0/0", "0/0/0/1250"]).await;
    let first = first_settlement(&world);
    assert_eq!(first.state, SettlementState::NotCharged);
    let intent = world.reader().row::<Intent>(first.intent).unwrap().unwrap();
    let proof = intent.evidence.iter().find(|piece| piece.said["evidence"] == "absent");
    assert_eq!(proof.unwrap().said["sought"], *first.invoice_id, "{intent:?}");
    world.assert_sound();

    // The same settlement is attempted again: same number, lines and invoice, a new key.
    world.settle_down().await;
    world.mail().await;
    let again = first_settlement(&world);
    assert_eq!((again.state, again.attempt), (SettlementState::Captured, 2));
    assert_eq!(again.invoice_id, first.invoice_id);
    assert_eq!(again.amount_micros, first.amount_micros);
    assert_eq!(world.totals(&format!("tab:{tab}:owed")).await, "0/1250/0/1250");
    world.assert_at_rest();
    world.assert_balanced().await;
}
