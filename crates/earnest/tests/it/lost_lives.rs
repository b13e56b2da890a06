//! Lives that a restore lost, in the order that hurts: read while PayPal stumbles, lost twice from one
//! backup, sold to whoever the backup knew as waiting. And every door while the books are quarantined.

use std::collections::BTreeSet;

use earnest_core::lost::LostCapture;
use earnest_core::purchase::{Purchase, PurchaseState};
use earnest_core::settlement::Settlement;
use earnest_core::tab::Tab;
use earnest_core::vault::Vault;
use paypal_sim::{Effect, Ending, Fault, SimConfig};
use reqwest::Method;
use serde_json::{Value, json};

use crate::bad_input::samples;
use crate::hooks::{Receiver, hook};
use crate::judge::{all, breaches, captures_by_invoice, differences};
use crate::openapi::OPERATIONS;
use crate::reconcile::happening;
use crate::restore::{
    Kept, at_paypal, back_up, import, lift, lose_and_restore, outcomes, put_back, say_again,
    settle, world, world_with,
};
use crate::world::World;

async fn status(world: &World) -> Value {
    world.get("operator", "/v1/restore").await.expect(200)
}

async fn reads(world: &World, seconds: i64) -> Value {
    world.advance(seconds);
    world.settle_down().await;
    status(world).await
}

#[track_caller]
fn assert_once(world: &World, cents: i64) {
    assert_eq!(at_paypal(world), cents);
    let twice = captures_by_invoice(&world.sim().books()).into_iter().find(|(_, n)| *n != 1);
    assert_eq!(twice, None);
    assert_eq!(differences(world.reader(), &world.sim().books()), Vec::<String>::new());
    assert_eq!(breaches(world.reader()), Vec::<String>::new());
}

/// PayPal answers 503 to one read, or not at all: what was not read may have been charged.
#[tokio::test]
async fn an_import_is_complete_when_all_of_it_has_its_place() {
    let down = Effect::Status { status: 503, retry_after_seconds: None, after: false };
    for effect in [down, Effect::DropBefore] {
        let (mut world, kept) = world().await;
        world.spend(1_000_000, "before").await;
        back_up(&world, kept.path("backup")).await.unwrap();
        settle(&world).await;
        let capture = world.sim().books().rows[0].transaction_id.clone();
        lose_and_restore(&mut world, &kept, "backup").await;
        world.jobs().await;
        world.sim().set_faults(vec![Fault::on("captures.get", effect).always()]).unwrap();
        let row = reads(&world, 6 * 3600 + 60).await;
        world.sim().set_faults(Vec::new()).unwrap();
        assert_eq!((&row["import_complete"], &row["unexplained"]), (&json!(false), &json!(1)));
        let record = &row["unexplained_records"][0];
        assert_eq!(
            (&record["paypal_id"], &record["amount_micros"]),
            (&json!(capture), &json!(1_000_000))
        );
        assert!(record["why"].as_str().unwrap().contains("could not be read"), "{record}");
        let refused = world.post("operator", "/v1/restore/lift", json!({})).await;
        assert_eq!(refused.code(), "state_conflict");
        let row = reads(&world, 601).await;
        assert_eq!(
            (&row["import_complete"], &row["unexplained"]),
            (&json!(true), &json!(0)),
            "{row}"
        );
        assert_eq!(row["unexplained_records"], json!([]));
        lift(&world).await;
        world.settle_down().await;
        assert_once(&world, 100);
        world.assert_at_rest();
    }
}

/// What PayPal withheld of a lost charge, and released, has its place in the books: it does not keep
/// them quarantined.
#[tokio::test]
async fn a_dispute_about_a_lost_charge_has_its_place() {
    let (mut world, kept) = world().await;
    world.spend(1_000_000, "before").await;
    back_up(&world, kept.path("backup")).await.unwrap();
    settle(&world).await;
    let capture = world.sim().books().rows[0].transaction_id.clone();
    for (code, minor) in [("T1110", -100), ("T1111", 100)] {
        world.sim().happen(&happening(code, minor, Some(&capture))).unwrap();
    }
    lose_and_restore(&mut world, &kept, "backup").await;
    world.jobs().await;
    let row = reads(&world, 6 * 3600 + 60).await;
    assert_eq!((&row["import_complete"], &row["unexplained"]), (&json!(true), &json!(0)), "{row}");
    assert_eq!(world.totals("disputes").await, "0/1000/0/1000");
    lift(&world).await;
    world.settle_down().await;
    assert_eq!(at_paypal(&world), 100);
    assert_eq!(breaches(world.reader()), Vec::<String>::new());
}

/// A payment under an invoice of our form that nobody here is meant by is a stranger's: it is in suspense,
/// counted apart, and keeps nothing shut.
#[tokio::test]
async fn what_is_in_suspense_keeps_nothing_shut() {
    let (mut world, kept) = world().await;
    back_up(&world, kept.path("backup")).await.unwrap();
    // An owner who came after the backup, as far as the invoice tells.
    stranger(&world, "e77:tab_00000000000000000000000007:1:mark0001").await;
    lose_and_restore(&mut world, &kept, "backup").await;
    world.jobs().await;
    let row = reads(&world, 6 * 3600 + 60).await;
    assert_eq!((&row["import_complete"], &row["unexplained"]), (&json!(true), &json!(0)), "{row}");
    assert_eq!((&row["in_suspense"], &row["records"]), (&json!(1), &json!(1)));
    lift(&world).await;
    assert_eq!(world.totals("suspense").await, "0/0/0/3000");
    world.assert_sound();
}

/// A payment that PayPal does not let us read keeps the books shut; borne by its id it does not, with who
/// bore it and why, while another one still does. One that the operator recorded by hand needs no reading.
#[tokio::test]
async fn single_records_are_borne_by_their_id() {
    let (mut world, kept) = world().await;
    back_up(&world, kept.path("backup")).await.unwrap();
    let mut odd = Vec::new();
    for dollars in ["3.00", "4.00", "5.00"] {
        pays(&world, &format!("x-{dollars}"), None, dollars).await;
        odd.push(world.sim().books().rows.last().unwrap().transaction_id.clone());
    }
    lose_and_restore(&mut world, &kept, "backup").await;
    world.jobs().await;
    let down = Effect::Status { status: 404, retry_after_seconds: None, after: false };
    world.sim().set_faults(vec![Fault::on("captures.get", down).always()]).unwrap();
    let by_hand = json!({ "kind": "deposit", "amount": "$5.00", "fee": "$0.66",
        "paypal_id": odd[2] });
    let headers = [("idempotency-key", "by-hand")];
    world
        .call_with("operator", Method::POST, "/v1/cash-entries", Some(by_hand), &headers)
        .await
        .expect(201);
    let row = reads(&world, 6 * 3600 + 60).await;
    assert_eq!((&row["read_to_the_end"], &row["unexplained"]), (&json!(true), &json!(2)), "{row}");
    let accept = async |ids: &[&str]| {
        let body = json!({ "records": ids, "reason": "a shop of ours" });
        world.post("operator", "/v1/restore/accept", body).await
    };
    assert_eq!(accept(&["NOBODY"]).await.code(), "state_conflict");
    assert_eq!(accept(&[]).await.code(), "validation_failed");
    let row = accept(&[&odd[0]]).await.expect(200);
    assert_eq!((&row["import_complete"], &row["unexplained"]), (&json!(false), &json!(1)));
    let lift_now = async || world.post("operator", "/v1/restore/lift", json!({})).await;
    assert_eq!(lift_now().await.code(), "state_conflict");
    // Read again, what is borne is not found anew.
    let row = reads(&world, 601).await;
    assert_eq!(row["unexplained"], json!(1), "{row}");
    let row = accept(&[&odd[0], &odd[1]]).await.expect(200);
    assert_eq!((&row["import_complete"], &row["unexplained"]), (&json!(true), &json!(0)));
    let borne = row["accepted_records"].as_array().unwrap();
    assert_eq!(borne.len(), 2);
    for (one, id) in borne.iter().zip(&odd) {
        assert_eq!(
            (&one["record"]["paypal_id"], &one["reason"]),
            (&json!(id), &json!("a shop of ours"))
        );
        assert!(one["by"].as_str().unwrap().starts_with("key_"), "{one}");
    }
    let row = lift_now().await.expect(200);
    assert_eq!((&row["status"], &row["gap"]), (&json!("lifted"), &Value::Null));
    assert_eq!(world.totals("suspense").await, "0/0/0/0");
    world.assert_sound();
}

/// The same backup brings the books back twice. What the second life captured bears an epoch that is in
/// no books that are left; with the folder still there it is known by name.
#[tokio::test]
async fn no_life_that_was_lost_is_a_stranger() {
    for replaced in [false, true] {
        if replaced && crate::engine::not_about_files("nothing is restored over books") {
            return;
        }
        let (mut world, kept) = world().await;
        world.spend(300_000, "before").await;
        back_up(&world, kept.path("backup")).await.unwrap();
        let first = lose_and_restore(&mut world, &kept, "backup").await.quarantine;
        import(&world).await;
        lift(&world).await;
        settle(&world).await;
        assert_once(&world, 30);
        world.advance(60);
        let second = match replaced {
            false => lose_and_restore(&mut world, &kept, "backup").await.quarantine,
            true => over(&mut world, &kept).await,
        };
        assert_eq!(second.ended.contains(&first.epoch), replaced, "{:?}", second.ended);
        import(&world).await;
        let captures = all::<LostCapture>(world.reader());
        assert_eq!(captures.len(), 1);
        assert_eq!(captures[0].marks.epoch(), first.epoch);
        assert_eq!(captures[0].placed_micros, captures[0].amount_micros);
        lift(&world).await;
        world.spend(200_000, "after").await;
        settle(&world).await;
        assert_once(&world, 30 + 20);
        world.assert_at_rest();
    }
}

/// Restored over and over from one copy: of every life in between, which is in no books that are left, the
/// epoch is known.
#[tokio::test]
async fn every_epoch_of_the_books_that_are_replaced_is_known() {
    if crate::engine::not_about_files("no database is ever replaced") {
        return;
    }
    let (mut world, kept) = world().await;
    back_up(&world, kept.path("backup")).await.unwrap();
    let first = lose_and_restore(&mut world, &kept, "backup").await.quarantine;
    let second = over(&mut world, &kept).await;
    let third = over(&mut world, &kept).await;
    for epoch in [&first.epoch, &second.epoch] {
        assert!(third.ended.contains(epoch), "{epoch} {:?}", third.ended);
    }
    assert!(!third.ended.contains(&third.epoch));
}

/// Restores over books that are still there.
async fn over(world: &mut World, kept: &Kept) -> earnest_core::quarantine::Quarantine {
    world.die().await;
    let restored = put_back(world, kept.path("backup"), None, true, "simulated").await.unwrap();
    let aside = restored.aside.unwrap();
    std::fs::copy(aside.join("dev-keys.json"), world.data().join("dev-keys.json")).unwrap();
    std::fs::remove_dir_all(aside).unwrap();
    world.rise().await;
    restored.quarantine
}

/// A payment that no life of these books asked for.
async fn stranger(world: &World, invoice: &str) {
    pays(world, invoice, None, "3.00").await;
}

/// Somebody pays us under these ids.
pub async fn pays(world: &World, invoice: &str, custom: Option<&str>, dollars: &str) {
    let vault = all::<Vault>(world.reader()).remove(0).payment_token;
    let stored = json!({ "payment_initiator": "MERCHANT", "usage": "SUBSEQUENT" });
    let amount = json!({ "currency_code": "USD", "value": dollars });
    let mut unit = json!({ "amount": amount, "invoice_id": invoice });
    if let Some(custom) = custom {
        unit["custom_id"] = json!(custom);
    }
    let order = json!({
        "intent": "CAPTURE",
        "purchase_units": [unit],
        "payment_source": { "paypal": { "vault_id": vault, "stored_credential": stored } },
    });
    world.at_paypal("/v2/checkout/orders", &format!("stranger {invoice}"), order).await.expect(201);
}

/// Somebody who saw a receipt pays cents under marks of our form in the time that is lost: one that stays
/// pending, one that is reversed, one under the very invoice of a settlement of the lost life. Each is a
/// stranger's payment: nobody is named or frozen by it, and no tab waits for it.
#[tokio::test]
async fn a_mark_that_is_not_proved_is_a_strangers() {
    let (mut world, kept) = unrestricted().await;
    world.spend(1_000_000, "before").await;
    back_up(&world, kept.path("backup")).await.unwrap();
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    settle(&world).await;
    let real = all::<Settlement>(world.reader()).remove(0);
    assert_eq!(real.mark(), format!("{}.{}", real.id, world.owner_id()));
    let forged = |n: u32| format!("e0f1:{tab}:{n}:mark000{n}{}", "0".repeat(20));
    let mark = format!("set_0000000000000000000000000{}.{}", 9, world.owner_id());
    let waits = Effect::Pending { reason: None, then: Ending::Completed, after_seconds: None };
    world.sim().set_faults(vec![Fault::on("orders.create", waits)]).unwrap();
    pays(&world, &forged(2), Some(&mark), "0.01").await;
    pays(&world, &forged(3), Some(&mark), "0.01").await;
    let reversed = world.sim().books().rows.last().unwrap().transaction_id.clone();
    assert!(world.sim().reverse(&reversed, None));
    pays(&world, &real.invoice_id, Some(&real.mark()), "0.01").await;

    lose_and_restore(&mut world, &kept, "backup").await;
    import(&world).await;
    assert_eq!(all::<LostCapture>(world.reader()).len(), 1, "the one that we made");
    let owner = world.get("owner", "/v1/owners/me").await.expect(200);
    assert_eq!(owner["frozen"], Value::Null);
    lift(&world).await;
    // The tab settles while the cent is pending.
    world.spend(500_000, "after").await;
    settle(&world).await;
    assert_eq!(at_paypal(&world), 100 + 50 + 2);
    assert!(all::<Tab>(world.reader()).iter().all(|tab| tab.lost.is_empty()));
    assert_eq!(breaches(world.reader()), Vec::<String>::new());
}

/// Whose PayPal does not refuse an invoice that was used before.
async fn unrestricted() -> (World, Kept) {
    let (world, kept) =
        world_with(SimConfig { unique_invoices: false, ..SimConfig::default() }).await;
    (world, kept)
}

async fn approve(world: &World, approval: &str) {
    let path = format!("/v1/approvals/{approval}/decision");
    let headers = [("if-match", "\"1\"")];
    let body = Some(json!({ "decision": "approve" }));
    world.call_with("owner", Method::POST, &path, body, &headers).await.expect(200);
}

/// A purchase waited for its owner when the backup was taken, and was approved, bought, delivered and
/// settled afterwards.
#[tokio::test]
async fn what_a_lost_life_sold_is_never_final_here() {
    let (mut world, kept) = world().await;
    let limits = json!({ "approve_above_micros": 200_000, "per_call_cap_micros": "$1.00" });
    world.policy("owner", limits).await;
    world.spend(100_000, "small").await;
    let quote = world.quote("/dear", 300_000);
    let waits = world.authorize(quote.clone(), "dear").await.expect(202);
    back_up(&world, kept.path("backup")).await.unwrap();
    world.advance(1);
    approve(&world, waits["approval_id"].as_str().unwrap()).await;
    let bought = world.authorize(quote, "dear").await.expect(201);
    let voucher = bought["voucher"].as_str().unwrap().to_owned();
    assert_eq!(world.report(&voucher, "redeemed").await["outcome"], "billed");
    let lost = [(voucher, world.clock.now())];
    settle(&world).await;
    assert_eq!(at_paypal(&world), 40);
    world.advance(60);

    lose_and_restore(&mut world, &kept, "backup").await;
    for _ in 0..2 {
        assert_eq!(outcomes(&say_again(&world, &lost).await), BTreeSet::from(["kept"]));
    }
    import(&world).await;
    assert_eq!(outcomes(&say_again(&world, &lost).await), BTreeSet::from(["kept"]));
    lift(&world).await;
    let again = world.authorize(world.quote("/dear", 300_000), "dear").await;
    assert_eq!(again.code(), "state_conflict", "delivered before: {}", again.body);
    let capture = world.sim().books().rows[0].transaction_id.clone();
    let lines = world.get("operator", "/v1/restore/lines").await.expect(200);
    let path = format!("/v1/restore/lines/{}", lines["data"][0]["purchase"].as_str().unwrap());
    let body = json!({ "paid_by": "suspense", "paypal_capture": capture });
    world.post("operator", &path, body).await.expect(200);
    assert_eq!(outcomes(&say_again(&world, &lost).await), BTreeSet::from(["already_billed"]));
    assert_eq!(world.totals("suspense").await, "0/300/0/300");
    let accrued = format!("seller:{}:accrued", world.seller_id());
    assert_eq!(world.totals(&accrued).await, "0/0/0/400", "its seller has every cent");
    world.settle_down().await;
    assert_once(&world, 40);
    world.assert_sound();
}

/// Everything that writes, asked by everybody whom it may be for.
#[tokio::test]
async fn no_door_lets_anything_out_of_a_quarantine() {
    let (mut world, kept) = world().await;
    let limits = json!({ "approve_above_micros": 200_000, "per_call_cap_micros": "$1.00" });
    world.policy("owner", limits).await;
    let samples = samples(&world).await;
    // A tab that ended below a cent: a new one would carry its rest away.
    world.spend(104_000, "rest").await;
    let voucher = world.authorize(world.quote("/weather", 10_000), "sample-voucher").await;
    let voucher = voucher.expect(201)["voucher"].as_str().unwrap().to_owned();
    world.report(&voucher, "redeemed").await;
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    world.settle_down().await;
    back_up(&world, kept.path("backup")).await.unwrap();
    lose_and_restore(&mut world, &kept, "backup").await;
    world.settle_down().await;

    let id = |list: Value| list["data"][0]["id"].as_str().unwrap().to_owned();
    let method = id(world.get("owner", "/v1/payment-methods").await.expect(200));
    let ids = [
        ("tab_", tab.clone()),
        ("vlt_", method.clone()),
        ("apr_", id(world.get("owner", "/v1/approvals").await.expect(200))),
        ("pur_", id(world.get("owner", "/v1/purchases").await.expect(200))),
        ("own_", world.owner_id()),
        ("agt_", world.agent_id()),
        ("sel_", world.seller_id()),
        ("PayPal's id of the capture", "STRANGER1".to_owned()),
    ];
    let before = Doors::see(&world);
    assert!(before.tabs.iter().any(|tab| tab.contains("Closed") && tab.contains("carried: None")));
    let mut refused = BTreeSet::new();
    let dangerous = [
        (
            "operator",
            Method::POST,
            "/v1/suspense/STRANGER1/clear".to_owned(),
            Some(json!({ "to": "tab", "id": tab })),
        ),
        ("operator", Method::POST, format!("/v1/tabs/{tab}/write-off"), None),
        ("owner", Method::POST, "/v1/tabs".to_owned(), None),
        ("owner", Method::DELETE, format!("/v1/payment-methods/{method}"), None),
    ];
    for (role, verb, path, body) in dangerous {
        let headers = [("idempotency-key", "dangerous")];
        let answer = world.call_with(role, verb, &path, body, &headers).await;
        assert_eq!(answer.code(), "quarantined", "{path}: {}", answer.body);
        assert_eq!(Doors::see(&world), before, "{path}");
    }
    for sample in samples.iter().filter(|sample| !sample.path.contains("/restore/lift")) {
        let answer = sample.send(&world, sample.body.to_string()).await;
        if answer.code() == "quarantined" {
            refused.insert(sample.path.clone());
        }
        assert_eq!(Doors::see(&world), before, "{} {}", sample.method, sample.path);
    }
    for operation in OPERATIONS.iter().filter(|it| it.method != Method::GET && it.needs_key()) {
        if operation.body().is_some() || operation.path.contains("/restore/lift") {
            continue;
        }
        let path = operation.filled(|parameter| {
            let said = parameter["description"].as_str().unwrap_or_default();
            let known = ids.iter().find(|(what, _)| said.contains(what));
            known.map_or_else(|| "int_00000000000000000000000001".to_owned(), |(_, id)| id.clone())
        });
        for role in ["owner", "agent", "seller", "operator"] {
            let headers = [("idempotency-key", "door"), ("if-match", "\"1\"")];
            let answer =
                world.call_with(role, operation.method.clone(), &path, None, &headers).await;
            if answer.code() == "quarantined" {
                refused.insert(path.clone());
            }
            assert_eq!(Doors::see(&world), before, "{} {path}", operation.method);
        }
    }
    world.settle_down().await;
    assert_eq!(Doors::see(&world), before);
    assert!(refused.contains("/v1/authorize") && refused.len() >= 6, "{refused:?}");
    world.assert_sound();
}

/// What may not change while the books are quarantined.
#[derive(Debug, PartialEq, Eq)]
struct Doors {
    /// Calls of PayPal that are more than a look.
    writes: Vec<String>,
    /// Tabs, and whether they ended.
    tabs: Vec<String>,
    held: usize,
}

impl Doors {
    fn see(world: &World) -> Self {
        let journal = world.sim().journal();
        let writes =
            journal.iter().filter(|row| row.method != "GET" && !row.path.contains("oauth2"));
        let tabs = all::<Tab>(world.reader()).into_iter().map(|tab| {
            let owed = world.reader().totals(&tab.owed()).unwrap().collectible();
            format!(
                "{} {:?} finished: {} carried: {:?} owes {owed:?} {:?}",
                tab.id, tab.state, tab.finished, tab.carried_to, tab.open_settlement
            )
        });
        let held = |purchase: &Purchase| purchase.state == PurchaseState::Held;
        Self {
            writes: writes.map(|row| format!("{} {}", row.method, row.path)).collect(),
            tabs: tabs.collect(),
            held: all::<Purchase>(world.reader()).into_iter().filter(held).count(),
        }
    }
}

/// The restored books write other events under the numbers that the lost life used.
#[tokio::test]
async fn no_two_events_share_a_webhook_id() {
    let (mut world, kept) = world().await;
    let receiver = Receiver::begin(&[]).await;
    hook(&world, "owner", json!({ "url": receiver.url })).await;
    world.settle_down().await;
    back_up(&world, kept.path("backup")).await.unwrap();
    for n in 0..5 {
        world.spend(10_000, &format!("lost-{n}")).await;
    }
    world.settle_down().await;
    let lost = world.earnest.app.store.epoch().to_owned();
    let restored = lose_and_restore(&mut world, &kept, "backup").await;
    world.settle_down().await;
    let path = format!("/v1/agents/{}/resume", world.agent_id());
    for _ in 0..5 {
        world.call("owner", Method::POST, &path, None).await.expect(204);
        let path = format!("/v1/agents/{}/pause", world.agent_id());
        world.call("owner", Method::POST, &path, None).await.expect(204);
    }
    world.settle_down().await;
    let mut told = std::collections::BTreeMap::<String, (String, u64, String)>::new();
    let mut numbers = std::collections::BTreeMap::<u64, BTreeSet<String>>::new();
    for (headers, body) in receiver.got() {
        let id = headers["webhook-id"].to_str().unwrap().to_owned();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let epoch = body["epoch"].as_str().unwrap().to_owned();
        let (seq, kind) =
            (body["seq"].as_u64().unwrap(), body["type"].as_str().unwrap().to_owned());
        numbers.entry(seq).or_default().insert(epoch.clone());
        let event = (epoch, seq, kind);
        assert_eq!(told.entry(id).or_insert_with(|| event.clone()), &event);
    }
    let both = BTreeSet::from([lost, restored.quarantine.epoch.clone()]);
    assert!(numbers.values().any(|epochs| *epochs == both), "no number came twice: {numbers:?}");
    // What the backup knew as told is not told again under another name.
    let created = told.values().filter(|(_, _, kind)| kind == "webhook.created");
    assert_eq!(created.count(), 1);
}
