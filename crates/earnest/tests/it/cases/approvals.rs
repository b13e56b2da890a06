//! Limits and approvals: what an agent may not decide, and what one yes is good for.

use earnest_core::admin::{NewLimits, SetPolicy};
use earnest_core::money::Micros;
use earnest_core::policy::{Limits, PolicySubject};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use super::finish;
use crate::cli::{Stand, run};
use crate::pages::Browser;
use crate::policies::bare_agent;
use crate::world::{Answer, World, fresh_id};

impl World {
    /// Limits far above everything but the threshold of approval.
    async fn generous(&self) {
        let limits = json!({
            "per_call_cap_micros": 10_000_000, "session_cap_micros": 20_000_000,
            "day_cap_micros": 20_000_000, "approve_above_micros": 200_000,
            "tab_limit_micros": 20_000_000,
        });
        self.policy("owner", limits).await;
    }

    async fn waits(&self, quote: Value, request_id: &str) -> String {
        let waiting = self.authorize(quote, request_id).await.expect(202);
        waiting["approval_id"].as_str().unwrap().to_owned()
    }

    async fn yes(&self, approval: &str) -> Answer {
        let path = format!("/v1/approvals/{approval}/decision");
        let body = json!({ "decision": "approve" });
        self.call_with("owner", Method::POST, &path, Some(body), &[("if-match", "\"1\"")]).await
    }

    /// A seller whose origin counts.
    async fn seller_at(&self, name: &str, origin: &str) -> String {
        let made = self.post("operator", "/v1/sellers", json!({ "name": name })).await.expect(201);
        let id = made["id"].as_str().unwrap().to_owned();
        let unit = earnest_core::admin::PutOrigin {
            seller: id.parse().unwrap(),
            origin: origin.to_owned(),
            proved: true,
        };
        self.earnest.app.store.submit(unit).await.unwrap();
        id
    }
}

#[tokio::test]
async fn poli_01_no_argument_of_an_agents_lifts_a_cap() {
    let world = World::ready().await;
    world.generous().await;
    world.policy("owner", json!({ "per_call_cap_micros": 2_000_000 })).await;
    let money = world.money();
    let refused = world.authorize(world.quote("/dear", 9_000_000), "a").await;
    assert_eq!((refused.status.as_u16(), &*refused.refusal()), (403, "policy_denied/per_call_cap"));
    assert_eq!(world.money(), money, "entries in the books");
    let listed = world.get("owner", "/v1/purchases").await.expect(200);
    assert_eq!(listed["data"][0]["status"], "denied");
    assert_eq!(listed["data"][0]["refusal"]["reason"], "per_call_cap");
    // What a cap refuses is asked of nobody.
    let waiting = world.get("owner", "/v1/approvals?status=waiting").await.expect(200);
    assert_eq!(waiting["data"], json!([]));
    // Relatives: the agent's own words about its limit, and its key on the routes that set one.
    for max in [json!(9_000_000), json!("$9.00"), json!(9_007_199_254_740_991_i64)] {
        let body = json!({
            "quote": world.quote("/dear", 9_000_000), "max_price": max, "request_id": fresh_id("m"),
        });
        let refused = world.post("agent", "/v1/authorize", body).await;
        assert!(["policy_denied", "amount_out_of_range"].contains(&refused.code()));
    }
    let path = format!("/v1/policies/{}", world.agent_id());
    let body = json!({ "per_call_cap_micros": 9_000_000 });
    let own =
        world.call_with("agent", Method::PUT, &path, Some(body), &[("if-match", "\"1\"")]).await;
    assert_eq!(own.status, 404);
    assert_eq!(world.money(), money);
    finish(&world).await;
}

#[tokio::test]
async fn poli_04_two_clicks_are_one_yes() {
    let world = World::ready().await;
    world.generous().await;
    let id = world.waits(world.quote("/dear", 3_000_000), "a").await;
    let mut answers = join_all((0..2).map(|_| world.yes(&id))).await;
    answers.sort_by_key(|answer| answer.status.as_u16());
    assert_eq!(answers[0].status, 200);
    let said = (answers[1].status.as_u16(), answers[1].code());
    assert_eq!(said, (409, "approval_already_decided"));
    let bought = world.authorize(world.quote("/dear", 3_000_000), "a").await.expect(201);
    world.report(bought["voucher"].as_str().unwrap(), "redeemed").await;
    assert_eq!(world.tab().await["owed_micros"], 3_000_000);
    // The yes is used up, by whatever way it is given again.
    assert_eq!(world.yes(&id).await.code(), "approval_consumed");
    world.waits(world.quote("/dear", 3_000_000), "b").await;
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    world.settle_down().await;
    // PayPal tells of it too; what follows up is waited for, and signs.
    world.mail().await;
    world.settle_down().await;
    let list = world.get("owner", &format!("/v1/tabs/{tab}/settlements")).await.expect(200);
    let receipts =
        list["data"].as_array().unwrap().iter().filter(|row| row["receipt_url"].is_string());
    assert_eq!(receipts.count(), 1, "{list}");
    // The same two clicks on the page.
    let second = world.waits(world.quote("/dearer", 3_100_000), "c").await;
    let mut browser = Browser::of(&world, "owner").await;
    let page = browser.get(&format!("/approvals/{second}")).await.expect(200);
    let form = page.field("form");
    let fields = [("form", &*form), ("version", "1"), ("decision", "approve")];
    let clicks = join_all((0..2).map(|_| {
        let mut copy = Browser { world: &world, cookies: browser.cookies.clone() };
        let (fields, path) = (&fields, format!("/approvals/{second}"));
        async move { copy.post(&path, fields).await.status.as_u16() }
    }));
    let mut clicks = clicks.await;
    clicks.sort_unstable();
    assert_eq!(clicks, [303, 409]);
    finish(&world).await;
}

#[tokio::test]
async fn poli_07_a_yes_is_for_what_was_asked() {
    let world = World::ready().await;
    world.generous().await;
    let other = world.seller_at("B", "https://b.example").await;
    let id = world.waits(world.quote("/dear", 3_000_000), "a").await;
    assert_eq!(world.yes(&id).await.status, 200);
    let money = world.money();
    let dearer = world.authorize(world.quote("/dear", 3_500_000), "a").await;
    let mut elsewhere = world.quote("/dear", 3_000_000);
    elsewhere["seller"] = json!(other);
    elsewhere["url"] = json!("https://b.example/dear");
    let elsewhere = world.authorize(elsewhere, "a").await;
    for refused in [&dearer, &elsewhere] {
        assert_eq!((refused.status.as_u16(), refused.code()), (409, "approval_stale"));
    }
    assert_eq!(world.money(), money, "entries in the books");
    // For what was asked it still counts.
    world.authorize(world.quote("/dear", 3_000_000), "a").await.expect(201);
    finish(&world).await;
}

#[tokio::test]
async fn poli_09_a_yes_after_the_deadline_is_none() {
    let world = World::ready().await;
    let id = world.waits(world.quote("/dear", 250_000), "a").await;
    let other = world.waits(world.quote("/other", 250_000), "b").await;
    assert_eq!(world.yes(&other).await.status, 200);
    let money = world.money();
    world.advance(901);
    let late = world.yes(&id).await;
    assert_eq!((late.status.as_u16(), late.code()), (410, "approval_expired"));
    // A yes that was given in time and not used ends with it.
    let again = world.authorize(world.quote("/other", 250_000), "b").await;
    assert_ne!(again.status, 201, "an old yes still works: {}", again.body);
    assert_eq!(world.money(), money, "entries in the books");
    finish(&world).await;
}

#[tokio::test]
async fn poli_11_a_host_that_looks_alike_is_another() {
    let world = World::ready().await;
    let acme = world.seller_at("Acme", "https://api.acme.example").await;
    world.policy("owner", json!({ "sellers": [acme] })).await;
    let quote = |url: &str| {
        let mut quote = world.quote("/x", 10_000);
        quote["seller"] = json!(acme);
        quote["url"] = json!(url);
        quote
    };
    world.authorize(quote("https://api.acme.example/x"), "right").await.expect(201);
    // Cyrillic а, as it looks and as it is resolved; other hosts that contain the name.
    let puny = url::Url::parse("https://api.\u{430}cme.example/x").unwrap();
    assert!(puny.as_str().starts_with("https://api.xn--"));
    for (n, other) in [
        puny.as_str(),
        "https://api.acme.example.evil.example/x",
        "https://evilapi.acme.example/x",
        "https://acme.example/x",
        "https://api.acme.example:8443/x",
    ]
    .into_iter()
    .enumerate()
    {
        let refused = world.authorize(quote(other), &format!("other-{n}")).await;
        assert_eq!(refused.refusal(), "policy_denied/merchant_not_allowed", "{other}");
        assert_eq!(refused.status, 403);
    }
    // The same host in another spelling is refused as a spelling, before any list is looked at.
    for (n, spelt) in [
        "https://api.\u{430}cme.example/x",
        "https://API.acme.example/x",
        "https://api.acme.example:443/x",
        "https://user@api.acme.example/x",
        "https://api.acme.example/a/../x",
    ]
    .into_iter()
    .enumerate()
    {
        let refused = world.authorize(quote(spelt), &format!("spelt-{n}")).await;
        assert_eq!(refused.code(), "url_invalid", "{spelt}: {}", refused.body);
    }
    finish(&world).await;
}

#[tokio::test]
async fn poli_14_two_bursts_over_the_edge_of_a_minute_are_one() {
    let world = World::ready().await;
    world.policy("owner", json!({ "rate": { "count": 10, "per_seconds": 60 } })).await;
    // 09:00:59.900, then 09:01:00.100.
    world.clock.advance_ms(59_900);
    for n in 0..10 {
        world.authorize(world.quote("/weather", 1_000), &format!("first-{n}")).await.expect(201);
    }
    world.clock.advance_ms(200);
    let refused = world.authorize(world.quote("/weather", 1_000), "second").await;
    assert_eq!((refused.status.as_u16(), &*refused.refusal()), (403, "policy_denied/rate_limit"));
    let wait: i64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((59..=60).contains(&wait), "{wait}");
    world.clock.advance_ms(59_700);
    let early = world.authorize(world.quote("/weather", 1_000), "second").await;
    assert_eq!(early.refusal(), "policy_denied/rate_limit");
    world.clock.advance_ms(100);
    world.authorize(world.quote("/weather", 1_000), "second").await.expect(201);
    finish(&world).await;
}

#[tokio::test]
async fn poli_17_what_is_absent_is_no_permission() {
    let world = World::ready().await;
    let agent = world.agent_id();
    world.policy("owner", json!({ "day_cap_micros": 1_000_000 })).await;
    // Null inherits the owner's: room, and no more than that.
    world.policy(&agent, json!({ "day_cap_micros": null })).await;
    world.authorize(world.quote("/weather", 900_000), "null").await.expect(201);
    let beyond = world.authorize(world.quote("/weather", 200_000), "beyond").await;
    assert_eq!(beyond.refusal(), "policy_denied/daily_cap");
    // Zero is a cap like any other: nothing. The API takes none, since an owner pauses instead; a
    // row that holds it all the same is not read as no limit.
    let path = format!("/v1/policies/{agent}");
    let body = json!({ "day_cap_micros": 0 });
    let refused =
        world.call_with("owner", Method::PUT, &path, Some(body), &[("if-match", "\"2\"")]);
    assert_eq!(refused.await.code(), "amount_not_positive");
    let limits = Limits { day_cap_micros: Some(Micros::ZERO), ..Limits::default() };
    let unit = SetPolicy {
        owner: world.owner_id().parse().unwrap(),
        subject: PolicySubject::Agent(agent.parse().unwrap()),
        version: 2,
        limits: NewLimits::Written(Box::new(limits)),
    };
    world.earnest.app.store.submit(unit).await.unwrap();
    let zero = world.authorize(world.quote("/weather", 1), "zero").await;
    assert_eq!((zero.status.as_u16(), &*zero.refusal()), (403, "policy_denied/daily_cap"));
    // No row at all.
    let (_, key) = bare_agent(&world).await;
    let body = json!({ "quote": world.quote("/weather", 1), "max_price": 1, "request_id": "none" });
    let none = world.post(&key, "/v1/authorize", body).await;
    assert_eq!((none.status.as_u16(), &*none.refusal()), (403, "policy_denied/policy_missing"));
    finish(&world).await;
}

#[tokio::test]
async fn poli_18_a_cap_binds_before_anything_was_spent() {
    for (cap, reason) in [("per_call_cap_micros", "per_call_cap"), ("day_cap_micros", "daily_cap")]
    {
        let world = World::ready().await;
        world.policy("owner", json!({ cap: 10_000 })).await;
        let money = world.money();
        let refused = world.authorize(world.quote("/weather", 20_000), "first-ever").await;
        let said = (refused.status.as_u16(), refused.refusal());
        assert_eq!(said, (403, format!("policy_denied/{reason}")));
        assert_eq!(world.money(), money);
        world.authorize(world.quote("/weather", 10_000), "fits").await.expect(201);
        finish(&world).await;
    }
}

#[tokio::test]
async fn cons_01_what_others_wrote_is_no_formula() {
    let world = World::ready().await;
    let evil = "=HYPERLINK(\"http://x.example\",\"y\")";
    let mut quote = world.quote("/weather", 1_500_000);
    quote["listing"] = json!(evil);
    world.authorize(quote, "a").await.expect(403);
    let csv = world.get("owner", "/v1/purchases?format=csv").await;
    let text = String::from_utf8(csv.bytes).unwrap();
    assert!(text.contains(",\"'=HYPERLINK(\"\"http://x.example\"\",\"\"y\"\")\","), "{text}");
    // A number is no formula; that a negative one is none either stands beside `quote`.
    assert!(text.contains(",1500000,"), "{text}");
    finish(&world).await;
}

/// In the inbox and on the page of one question; what else shows names comes with its own.
#[tokio::test]
async fn cons_03_a_name_is_text_in_the_inbox() {
    let world = World::ready().await;
    let evil = "<img src=x onerror=alert(1)>";
    let mut quote = world.quote("/dear", 250_000);
    quote["listing"] = json!(evil);
    let id = world.waits(quote, "a").await;
    let mut browser = Browser::of(&world, "owner").await;
    for path in ["/approvals".to_owned(), format!("/approvals/{id}")] {
        let page = browser.get(&path).await.expect(200);
        assert!(page.html.contains("&#60;img src=x onerror=alert(1)&#62;"), "{}", page.html);
        assert!(!page.html.contains("<img"), "{}", page.html);
        let policy = page.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe-inline"));
    }
    // As JSON it is what it is; no browser takes that for a page.
    let row = world.get("owner", &format!("/v1/approvals/{id}")).await;
    assert_eq!(row.body["listing"], evil);
    assert_eq!(row.headers["content-type"], "application/json");
    assert_eq!(row.headers["x-content-type-options"], "nosniff");
    finish(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cli_01_a_wrong_key_is_no_success() {
    let stand = Stand::start().await;
    let id = |prefix: &str| format!("{prefix}_{}", "0".repeat(26));
    let (own, agt, tab, apr) = (id("own"), id("agt"), id("tab"), id("apr"));
    let commands: &[&[&str]] = &[
        &["owner", "show"],
        &["owner", "list"],
        &["owner", "create", "X"],
        &["owner", "pause"],
        &["owner", "credit", &own, "--line", "$5"],
        &["owner", "login"],
        &["owner", "sign-ins"],
        &["owner", "logout"],
        &["agent", "list"],
        &["agent", "create", "X"],
        &["agent", "pause", &agt],
        &["seller", "list"],
        &["policy", "show"],
        &["policy", "set", "--per-call", "$1"],
        &["method", "list"],
        &["tab", "list"],
        &["tab", "status", &tab],
        &["purchases"],
        &["approvals", "list"],
        &["approvals", "show", &apr],
        &["approvals", "approve", &apr],
        &["approvals", "deny", &apr],
        &["accounts"],
        &["transfers"],
        &["trial-balance"],
    ];
    for words in commands {
        for json in [true, false] {
            let mut command = stand.command(words);
            for role in ["OPERATOR", "OWNER", "AGENT", "SELLER"] {
                let wrong = format!("ek_{}_{}", role.to_lowercase(), "0".repeat(64));
                command.env(format!("EARNEST_{role}_KEY"), wrong);
            }
            if json {
                command.arg("--json");
            }
            let ran = run(command).await;
            assert_eq!((ran.code, &*ran.out), (4, ""), "{words:?}: {}", ran.err);
            match json {
                true => assert_eq!(ran.refusal(), "unauthenticated", "{words:?}"),
                false => assert!(!ran.err.trim().is_empty(), "{words:?}"),
            }
        }
    }
}
