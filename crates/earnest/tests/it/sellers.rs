//! What sellers report, and what they cannot: a voucher is what Earnest signed, for them, and a
//! report resolves a purchase once.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use earnest_core::id::PurchaseId;
use earnest_core::jws::{Purpose, Signer};
use earnest_core::purchase::Purchase;
use earnest_core::time::{Timestamp, after};
use earnest_core::unit::{Effects, Stop, Touches, Unit, View};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::World;

impl World {
    async fn tell(&self, role: &str, reports: Value) -> Value {
        let body = json!({ "reports": reports });
        self.post(role, "/v1/vouchers/report", body).await.expect(200)["results"].clone()
    }

    async fn tell_one(
        &self,
        voucher: &str,
        fate: &str,
        claimed_at: Timestamp,
        amount: Option<i64>,
    ) -> Value {
        let mut report = json!({ "voucher": voucher, "fate": fate, "claimed_at": claimed_at });
        if let Some(amount) = amount {
            report["amount_micros"] = json!(amount);
        }
        self.tell("seller", json!([report])).await[0].clone()
    }

    async fn other_seller(&self) -> (String, String) {
        let made =
            self.post("operator", "/v1/sellers", json!({ "name": "Other" })).await.expect(201);
        let id = made["id"].as_str().unwrap().to_owned();
        let path = format!("/v1/sellers/{id}/keys");
        let key = self.post("operator", &path, json!({})).await.expect(201);
        (id, key["key"].as_str().unwrap().to_owned())
    }
}

fn decoded(part: &str) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

fn encoded(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

#[tokio::test]
async fn forged_vouchers_are_rejected_and_move_nothing() {
    let world = World::ready().await;
    let voucher = world.buy(50_000, "a").await;
    let other = world.buy(60_000, "b").await;
    let parts: Vec<&str> = voucher.split('.').collect();
    let [head, claims, signature] = parts.as_slice() else { panic!("{voucher}") };
    let with_claims = |change: &dyn Fn(&mut Value)| {
        let mut claims = decoded(claims);
        change(&mut claims);
        claims
    };
    let with_head = |name: &str, value: Value| {
        let mut head = decoded(head);
        head[name] = value;
        format!("{}.{claims}.{signature}", encoded(&head))
    };
    let ours = Signer::new(Purpose::Voucher, &[7; 32]);
    let sign = |claims: &Value| ours.sign(claims).unwrap();
    let jwk = ours.jwk();
    let now = world.clock.now().as_second();
    // Signed with a key of ours, under the id of theirs.
    let borrowed = {
        let token = sign(&decoded(claims));
        let mut parts = token.split('.');
        let mut own = decoded(parts.next().unwrap());
        own["kid"] = decoded(head)["kid"].clone();
        format!("{}.{}.{}", encoded(&own), parts.next().unwrap(), parts.next().unwrap())
    };
    let bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
    let flipped = |n: usize| {
        let mut bytes = bytes.clone();
        bytes[n] ^= 1;
        format!("{head}.{claims}.{}", URL_SAFE_NO_PAD.encode(bytes))
    };
    // The same signature in another form: s + L is the same point to careless verifiers.
    let malleable = {
        const ORDER: [u8; 32] = [
            0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9,
            0xde, 0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
        ];
        let mut bytes = bytes.clone();
        let mut carry = 0_u16;
        for (byte, add) in bytes[32..].iter_mut().zip(ORDER) {
            let sum = u16::from(*byte) + u16::from(add) + carry;
            *byte = sum.to_le_bytes()[0];
            carry = sum >> 8;
        }
        format!("{head}.{claims}.{}", URL_SAFE_NO_PAD.encode(bytes))
    };
    let mut padded = voucher.clone();
    padded.push('=');
    let forged = [
        String::new(),
        " ".to_owned(),
        ".".to_owned(),
        "..".to_owned(),
        "a.b.c".to_owned(),
        "\u{0}".to_owned(),
        "x".repeat(100_000),
        format!("{head}.{claims}"),
        format!("{head}.{claims}."),
        format!("{head}.{claims}.{signature}.{signature}"),
        format!("{head}..{signature}"),
        format!(" {voucher}"),
        format!("{voucher}\n"),
        padded,
        voucher.replace('.', ":"),
        voucher.to_uppercase(),
        with_head("alg", json!("none")),
        with_head("alg", json!("HS256")),
        with_head("alg", json!("eddsa")),
        with_head("typ", json!("JWT")),
        with_head("typ", json!("earnest-receipt+jws")),
        with_head("kid", json!("")),
        with_head("kid", json!("../../keys")),
        with_head("kid", json!(jwk.kid)),
        with_head("jwk", json!(jwk)),
        with_head("crit", json!(["x"])),
        format!("{}.{claims}.", encoded(&json!({ "alg": "none", "typ": "earnest-voucher+jwt" }))),
        // Of another purchase, or with another amount, under this signature.
        format!("{head}.{}.{signature}", other.split('.').nth(1).unwrap()),
        format!(
            "{head}.{}.{signature}",
            encoded(&with_claims(&|claims| claims["amount_micros"] = json!(1)))
        ),
        format!("{head}.{claims}.{}", other.split('.').nth(2).unwrap()),
        sign(&decoded(claims)),
        borrowed,
        flipped(0),
        flipped(31),
        flipped(63),
        malleable,
        format!("{head}.{claims}.{}", URL_SAFE_NO_PAD.encode([0; 64])),
        format!("{head}.{claims}.{}", URL_SAFE_NO_PAD.encode([0; 63])),
        sign(&with_claims(&|claims| claims["exp"] = json!(now + 1_000_000))),
    ];
    let mark = world.mark();
    let money = world.money();
    for token in &forged {
        for fate in ["redeemed", "failed", "serving"] {
            let result = world.tell_one(token, fate, world.clock.now(), None).await;
            let shown: String = token.chars().take(60).collect();
            assert_eq!(result["outcome"], "rejected", "{shown}");
            assert_eq!(result["code"], "voucher_invalid", "{shown}");
            assert!(result.get("purchase").is_none() && result.get("jti").is_none());
        }
    }
    // All at once, with a good one in the middle: each stands alone.
    let mut reports: Vec<Value> = forged
        .iter()
        .map(|token| json!({ "voucher": token, "fate": "redeemed", "claimed_at": world.clock.now() }))
        .collect();
    world.assert_untouched(mark, "a forged voucher");
    assert_eq!(world.money(), money);
    reports.insert(
        5,
        json!({ "voucher": voucher, "fate": "redeemed", "claimed_at": world.clock.now() }),
    );
    let results = world.tell("seller", json!(reports)).await;
    for (n, result) in results.as_array().unwrap().iter().enumerate() {
        let expected = if n == 5 { "billed" } else { "rejected" };
        assert_eq!(result["outcome"], expected, "{n}");
    }
    assert_eq!(world.tab().await["owed_micros"], 50_000);
}

/// A receipt is signed by Earnest too, and opens nothing.
#[tokio::test]
async fn a_receipt_is_no_voucher() {
    let world = World::ready().await;
    world.spend(100_000, "a").await;
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    world.settle_down().await;
    let purchase = world.get("owner", "/v1/purchases").await.expect(200)["data"][0]["id"].clone();
    let path = format!("/v1/purchases/{}/receipt", purchase.as_str().unwrap());
    let location = world.get("owner", &path).await.headers["location"].to_str().unwrap().to_owned();
    let receipt =
        world.get("", &location).await.expect(200)["receipt"].as_str().unwrap().to_owned();
    let result = world.tell_one(&receipt, "redeemed", world.clock.now(), None).await;
    assert_eq!(
        (&result["outcome"], &result["code"]),
        (&json!("rejected"), &json!("voucher_invalid"))
    );
    // And a voucher is no receipt.
    let voucher = world.buy(10_000, "b").await;
    let verdict =
        world.post("", "/v1/receipts/verify", json!({ "receipt": voucher })).await.expect(200);
    assert_eq!(verdict["valid"], false);
    let verdict =
        world.post("", "/v1/receipts/verify", json!({ "receipt": receipt })).await.expect(200);
    assert_eq!(verdict["valid"], true);
    for altered in
        [format!("{receipt}x"), receipt[1..].to_owned(), receipt.replace('.', ".."), String::new()]
    {
        let verdict =
            world.post("", "/v1/receipts/verify", json!({ "receipt": altered })).await.expect(200);
        assert_eq!((&verdict["valid"], &verdict["claims"]), (&json!(false), &Value::Null));
    }
}

/// What a buyer bought elsewhere is nothing to a seller: of a receipt it gets its own lines, signed
/// and bound to the receipt, and nobody else gets anything.
#[tokio::test]
async fn a_seller_sees_its_own_lines_of_a_receipt() {
    let world = World::ready().await;
    world.spend(30_000, "a").await;
    world.spend(20_000, "b").await;
    let (other, other_key) = world.other_seller().await;
    let mut quote = world.quote("/secret", 50_000);
    quote["seller"] = json!(other);
    quote["url"] = json!("https://elsewhere.example/secret");
    let unit = earnest_core::admin::PutOrigin {
        seller: other.parse().unwrap(),
        origin: "https://elsewhere.example".to_owned(),
        proved: true,
    };
    world.earnest.app.store.submit(unit).await.unwrap();
    let held = world.authorize(quote, "c").await.expect(201);
    let (voucher, at) = (held["voucher"].clone(), world.clock.now());
    let report = json!([{ "voucher": voucher, "fate": "redeemed", "claimed_at": at }]);
    assert_eq!(world.tell(&other_key, report).await[0]["outcome"], "billed");
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    world.settle_down().await;
    let all = world.get("owner", "/v1/purchases").await.expect(200)["data"].clone();
    let own = |seller: &str| -> Vec<String> {
        let rows = all.as_array().unwrap().iter().filter(|row| row["seller"] == seller);
        rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    };
    let (mine, elsewhere) = (own(&world.seller_id()), own(&other));
    assert_eq!((mine.len(), elsewhere.len()), (2, 1));
    let path = format!("/v1/purchases/{}/receipt", mine[0]);
    for role in ["owner", "agent", "operator"] {
        assert_eq!(world.get(role, &path).await.status, 303, "{role}");
    }
    assert_eq!(world.get("", &path).await.code(), "unauthenticated");
    assert_eq!(world.get(&other_key, &path).await.code(), "not_found");
    let shown = world.get("seller", &path).await.expect(200);
    let claims = &shown["claims"];
    let listed: Vec<&str> = claims["lines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["purchase"].as_str().unwrap())
        .collect();
    assert!(listed.len() == 2 && mine.iter().all(|id| listed.contains(&id.as_str())), "{claims}");
    assert_eq!(claims["lines_micros"], 50_000);
    assert!(!shown.to_string().contains(&elsewhere[0]) && !shown.to_string().contains(&other));
    assert!(!shown.to_string().contains("/r/"), "it does not lead to the others: {shown}");
    // Anybody checks them, and whoever is shown the receipt sees that they are all there are.
    let lines = shown["lines"].as_str().unwrap().to_owned();
    let verdict =
        world.post("", "/v1/receipts/verify", json!({ "receipt": lines })).await.expect(200);
    assert_eq!((&verdict["valid"], &verdict["claims"]), (&json!(true), claims));
    let location = world.get("owner", &path).await.headers["location"].to_str().unwrap().to_owned();
    let receipt =
        world.get("", &location).await.expect(200)["receipt"].as_str().unwrap().to_owned();
    let keys = &world.earnest.app.keys().set;
    let receipt_claims = earnest_core::receipt::verify(&receipt, keys).unwrap().claims;
    let taken = earnest_core::receipt::verify_lines(&lines, keys).unwrap().claims;
    assert_eq!(receipt_claims.lines.len(), 3);
    assert!(taken.is_taken_of(&receipt, &receipt_claims));
}

/// Only the seller a voucher is for reports it; to others there is no such purchase.
#[tokio::test]
async fn another_sellers_voucher_cannot_be_reported() {
    let world = World::ready().await;
    let voucher = world.buy(50_000, "a").await;
    let (_, other) = world.other_seller().await;
    let money = world.money();
    for fate in ["redeemed", "failed", "serving"] {
        let report = json!([{ "voucher": voucher, "fate": fate, "claimed_at": world.clock.now() }]);
        let result = world.tell(&other, report).await[0].clone();
        assert_eq!(
            (&result["outcome"], &result["code"]),
            (&json!("rejected"), &json!("not_found")),
            "{fate}"
        );
        assert!(result.get("amount_micros").is_none());
    }
    assert_eq!(world.money(), money);
    for role in ["owner", "agent", "operator"] {
        let body = json!({ "reports": [{ "voucher": voucher, "fate": "failed", "claimed_at": world.clock.now() }] });
        assert_eq!(
            world.post(role, "/v1/vouchers/report", body).await.refusal(),
            "not_found",
            "{role}"
        );
    }
    assert_eq!(world.report(&voucher, "redeemed").await["outcome"], "billed");
}

/// When it was claimed decides, to the second; and what a report may say of the amount.
#[tokio::test]
async fn a_claim_after_the_end_is_expired() {
    let world = World::ready().await;
    let begun = world.clock.now();
    let voucher = world.buy(50_000, "a").await;
    let money = world.money();
    for late in [121, 122, 3600, 1_000_000] {
        let result = world.tell_one(&voucher, "redeemed", after(begun, late), None).await;
        assert_eq!(
            (&result["outcome"], &result["code"]),
            (&json!("rejected"), &json!("voucher_expired")),
            "{late}"
        );
    }
    // A fixed price is the price.
    for other in [1, 49_999, 50_001, 9_000_000] {
        let result = world.tell_one(&voucher, "redeemed", begun, Some(other)).await;
        let code = if other > 50_000 { "amount_out_of_range" } else { "amount_invalid" };
        assert_eq!(
            (&result["outcome"], &result["code"]),
            (&json!("rejected"), &json!(code)),
            "{other}"
        );
    }
    assert_eq!(world.money(), money);
    let result = world.tell_one(&voucher, "redeemed", after(begun, 120), Some(50_000)).await;
    assert_eq!(result["outcome"], "billed");
    for odd in ["", "yesterday", "2026-11-30", "1764493200", "2026-11-30T09:00:00"] {
        let body =
            json!({ "reports": [{ "voucher": voucher, "fate": "redeemed", "claimed_at": odd }] });
        assert_eq!(
            world.post("seller", "/v1/vouchers/report", body).await.refusal(),
            "request_malformed"
        );
    }
}

#[tokio::test]
async fn a_batch_holds_at_most_500() {
    let world = World::ready().await;
    let voucher = world.buy(50_000, "a").await;
    let report = json!({ "voucher": voucher, "fate": "redeemed", "claimed_at": world.clock.now() });
    let batch = |n: usize| json!({ "reports": vec![report.clone(); n] });
    let mark = world.mark();
    let answer = world.post("seller", "/v1/vouchers/report", batch(501)).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (422, "validation_failed"));
    assert_eq!(answer.body["limit"], 500);
    world.assert_untouched(mark, "501 reports");
    // The same one five hundred times: billed once.
    let answer = world.post("seller", "/v1/vouchers/report", batch(500)).await.expect(200);
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 500);
    let count =
        |outcome: &str| results.iter().filter(|result| result["outcome"] == outcome).count();
    assert_eq!((count("billed"), count("already_billed")), (1, 499));
    assert_eq!(world.tab().await["owed_micros"], 50_000);
    let none =
        world.post("seller", "/v1/vouchers/report", json!({ "reports": [] })).await.expect(200);
    assert_eq!(none["results"], json!([]));
    assert!(none["epoch"].as_str().is_some_and(|epoch| !epoch.is_empty()));
}

/// A unit with a bug: a purchase that is held by nothing.
struct Unhold(PurchaseId);

impl Unit for Unhold {
    type Answer = ();
    fn name(&self) -> &'static str {
        "purchase.unhold"
    }
    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Purchase>(self.0);
        touches
    }
    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut purchase = view.need::<Purchase>(self.0)?.clone();
        purchase.hold = None;
        let mut effects = Effects::answer(());
        effects.put(purchase)?;
        Ok(effects)
    }
}

/// One report that fails here is that one's failure: the others are acknowledged.
#[tokio::test]
async fn a_report_that_fails_inside_holds_up_no_other() {
    let world = World::ready().await;
    let mut vouchers = Vec::new();
    for n in 0..3 {
        vouchers.push(world.buy(10_000, &format!("a-{n}")).await);
    }
    let path = "/v1/purchases";
    let rows = world.get("owner", path).await.expect(200)["data"].clone();
    let row = rows.as_array().unwrap().iter().find(|row| row["request_id"] == "a-1").unwrap();
    let broken: PurchaseId = row["id"].as_str().unwrap().parse().unwrap();
    world.earnest.app.store.submit(Unhold(broken)).await.unwrap();
    let now = world.clock.now();
    let reports: Vec<Value> = vouchers
        .iter()
        .map(|voucher| json!({ "voucher": voucher, "fate": "redeemed", "claimed_at": now }))
        .collect();
    let results = world.tell("seller", json!(reports)).await;
    let outcomes: Vec<_> = (0..3).map(|n| results[n]["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["billed", "again", "billed"]);
    assert_eq!(results[1]["code"], "internal");
    // Where none was taken in, the answer as a whole says so.
    let body = json!({ "reports": [reports[1]] });
    let alone = world.post("seller", "/v1/vouchers/report", body).await;
    assert_eq!((alone.status.as_u16(), alone.code()), (500, "internal"));
    assert_eq!(world.tab().await["owed_micros"], 20_000);
    // With nothing that takes reports in, the batch as a whole is to be sent again.
    world.earnest.app.store.close();
    let body = json!({ "reports": reports });
    let answer = world.post("seller", "/v1/vouchers/report", body).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (503, "database_unavailable"));
}

/// Good news and bad news of one voucher at once: it ends one way, and stays so.
#[tokio::test]
async fn contradicting_reports_resolve_once() {
    let world = World::ready().await;
    let mut owed = 0;
    for round in 0..6 {
        let voucher = world.buy(10_000, &format!("r-{round}")).await;
        let fates = [
            "redeemed", "failed", "serving", "redeemed", "failed", "redeemed", "failed", "serving",
        ];
        let results = join_all(fates.map(|fate| world.report(&voucher, fate))).await;
        let billed = results.iter().any(|result| result["outcome"] == "billed");
        let released = results.iter().any(|result| result["outcome"] == "released");
        assert!(billed != released || billed, "{results:?}");
        let ended: Vec<Value> =
            join_all(["redeemed", "failed"].map(|fate| world.report(&voucher, fate))).await;
        let path = format!("/v1/purchases/{}", ended[0]["purchase"].as_str().unwrap());
        let shown = world.get("owner", &path).await.expect(200);
        match shown["status"].as_str().unwrap() {
            "billed" => {
                owed += 10_000;
                assert!(
                    ended.iter().all(|result| result["outcome"] == "already_billed"),
                    "{ended:?}"
                );
            }
            "released" => {
                assert!(ended.iter().all(|result| result["outcome"] == "released"), "{ended:?}");
            }
            other => panic!("{other}: {results:?}"),
        }
    }
    let tab = world.tab().await;
    assert_eq!((&tab["owed_micros"], &tab["held_micros"]), (&json!(owed), &json!(0)));
    world.assert_balanced().await;
}
