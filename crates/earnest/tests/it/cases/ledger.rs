//! A chain of transfers stands or falls as one.

use earnest_core::id::{Seed, TransferId};
use earnest_core::ledger::{Account, Cause, Leg, Op};
use earnest_core::money::Micros;
use earnest_core::time::Timestamp;
use earnest_core::unit::{Effects, Stop, Touches, Unit, View};
use earnest_store::audit::Audit;
use serde_json::json;

use super::{nothing_secret, transfers};
use crate::world::{ORIGIN, World};

/// Moves an amount to an account that then has no room for much more.
struct Fill {
    id: u128,
    amount: Micros,
}

impl Unit for Fill {
    type Answer = ();
    fn name(&self) -> &'static str {
        "test.fill"
    }
    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.hold(TransferId::new(Seed { unix_ms: 1, random: self.id }));
        touches.account(Account::OperatorFunds.usd());
        touches.account(Account::PlatformRevenue.usd());
        touches
    }
    fn decide(&self, _: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let (from, to) = (Account::OperatorFunds.usd(), Account::PlatformRevenue.usd());
        let legs = vec![Leg::new(from, to, self.amount)];
        let id = TransferId::new(Seed { unix_ms: 1, random: self.id });
        let mut effects = Effects::answer(());
        effects.op(Op::Move { id, cause: Cause::Deposit, legs });
        Ok(effects)
    }
}

/// A seller of whose prices the platform keeps a tenth; a voucher for one dollar of it.
async fn with_commission(world: &World, request_id: &str) -> (String, String) {
    let seller = json!({ "name": "with commission", "commission_ppm": 100_000 });
    let seller = world.post("operator", "/v1/sellers", seller).await.expect(201);
    let seller = seller["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sellers/{seller}/keys");
    let key = world.post("operator", &path, json!({ "label": "test" })).await.expect(201);
    let key = key["key"].as_str().unwrap().to_owned();
    let unit = earnest_core::admin::PutOrigin {
        seller: seller.parse().unwrap(),
        origin: ORIGIN.to_owned(),
        proved: true,
    };
    world.earnest.app.store.submit(unit).await.unwrap();
    world.policy("owner", json!({})).await;
    let mut quote = world.quote("/weather", 1_000_000);
    quote["seller"] = seller.as_str().into();
    let voucher = world.authorize(quote, request_id).await.expect(201);
    (key, voucher["voucher"].as_str().unwrap().to_owned())
}

/// The second leg of the line, the commission, does not fit its account: the first is not booked
/// either, the answer says so, and the report is as good as never made.
#[tokio::test]
async fn ledg_11_a_report_whose_second_leg_fails_books_nothing() {
    let world = World::ready().await;
    let (seller, voucher) = with_commission(&world, "dear").await;
    let nearly_all = Micros::new(Micros::MAX.get() - 1_000).unwrap();
    world.earnest.app.store.submit(Fill { id: 1, amount: nearly_all }).await.unwrap();

    let before = (transfers(&world).await, world.get("operator", "/v1/accounts").await.body);
    let report = json!({ "voucher": voucher, "fate": "redeemed", "claimed_at": world.clock.now() });
    let body = json!({ "reports": [report] });
    for _ in 0..2 {
        let answer = world.post(&seller, "/v1/vouchers/report", body.clone()).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (500, "ledger_rejected"));
        assert!(!answer.body.to_string().contains("platform_revenue"), "{}", answer.body);
    }
    let after = (transfers(&world).await, world.get("operator", "/v1/accounts").await.body);
    assert_eq!(after, before, "no entries, balances unchanged");
    let purchase = &world.get("owner", "/v1/purchases").await.expect(200)["data"][0];
    assert_eq!(purchase["status"], "held");

    // Only these two answers were broken, and the seller may still be told no.
    assert_eq!(world.broken().len(), 2);
    world.assert_balanced().await;
    assert_eq!(Audit::new().run(world.reader()).unwrap(), Vec::new());
    nothing_secret(&world).await;
    let report = json!({ "voucher": voucher, "fate": "failed", "claimed_at": world.clock.now() });
    let body = json!({ "reports": [report] });
    let answer = world.post(&seller, "/v1/vouchers/report", body).await.expect(200);
    assert_eq!(answer["results"][0]["outcome"], "released");
}

/// One report of a batch that cannot be booked: the seller is told which, and finds on repeating that
/// none was booked twice.
#[tokio::test]
async fn ledg_11_a_batch_with_one_such_report_can_be_repeated() {
    let world = World::ready().await;
    let (seller, dear) = with_commission(&world, "dear").await;
    let mut free = world.quote("/weather", 9);
    free["seller"] = world.get(&seller, "/v1/sellers/me").await.expect(200)["id"].clone();
    // A tenth of nine millionths is nothing: this line has one leg only.
    let cheap = world.authorize(free, "cheap").await.expect(201)["voucher"].clone();
    let nearly_all = Micros::new(Micros::MAX.get() - 1_000).unwrap();
    world.earnest.app.store.submit(Fill { id: 1, amount: nearly_all }).await.unwrap();

    let report = |voucher: serde_json::Value| json!({ "voucher": voucher, "fate": "redeemed", "claimed_at": world.clock.now() });
    let both = json!({ "reports": [report(cheap.clone()), report(dear.into())] });
    let answer = world.post(&seller, "/v1/vouchers/report", both).await;
    let results = answer.expect(200)["results"].clone();
    assert_eq!(
        (&results[0]["outcome"], &results[1]["outcome"]),
        (&json!("billed"), &json!("again"))
    );
    assert_eq!(results[1]["code"], "ledger_rejected");
    let alone = json!({ "reports": [report(cheap)] });
    let answer = world.post(&seller, "/v1/vouchers/report", alone).await.expect(200);
    let outcome = answer["results"][0]["outcome"].as_str().unwrap();
    assert!(["billed", "already_billed"].contains(&outcome), "{answer}");
    assert_eq!(world.tab().await["owed_micros"], 9);
    world.assert_balanced().await;
    assert_eq!(Audit::new().run(world.reader()).unwrap(), Vec::new());
}
