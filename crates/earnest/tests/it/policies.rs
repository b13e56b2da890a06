//! Policies through HTTP: versions, history, revert; what is unreadable denies; which of two
//! reasons is told; windows that outlive a change of the cap or of the zone.

use earnest_core::admin::{NewLimits, SetPolicy};
use earnest_core::id::OwnerId;
use earnest_core::policy::{Policy, PolicySubject};
use earnest_core::time::Timestamp;
use earnest_core::unit::{Effects, Stop, Touches, Unit, View};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::{Answer, World};

impl World {
    async fn put_policy(&self, subject: &str, etag: &str, limits: Value) -> Answer {
        let path = format!("/v1/policies/{subject}");
        self.call_with("owner", Method::PUT, &path, Some(limits), &[("if-match", etag)]).await
    }

    async fn cheap(&self, amount: i64, request_id: &str) -> Answer {
        self.authorize(self.quote("/weather", amount), request_id).await
    }
}

#[tokio::test]
async fn a_policy_changes_only_from_the_version_that_was_read() {
    let world = World::ready().await;
    for subject in ["owner".to_owned(), world.owner_id(), world.agent_id()] {
        let path = format!("/v1/policies/{subject}");
        let read = world.get("owner", &path).await;
        let version = read.body["version"].as_u64().unwrap();
        assert_eq!(read.headers["etag"], format!("\"{version}\""));
        let mark = world.mark();
        let body = json!({ "per_call_cap_micros": "$0.50" });
        let none = world.call("owner", Method::PUT, &path, Some(body.clone())).await;
        assert_eq!((none.status.as_u16(), none.code()), (428, "precondition_required"));
        for etag in ["\"0\"", "\"999\"", "*", "W/\"1\"", "1", "", "\"x\"", "\"-1\"", "\"1\",\"2\""]
        {
            let answer = world.put_policy(&subject, etag, body.clone()).await;
            assert_eq!(
                (answer.status.as_u16(), answer.code()),
                (412, "version_conflict"),
                "{etag}"
            );
        }
        world.assert_untouched(mark, "a change from nowhere");
        let set = world.put_policy(&subject, &format!("\"{version}\""), body).await;
        assert_eq!(set.headers["etag"], format!("\"{}\"", version + 1));
        assert_eq!(set.expect(200)["limits"], json!({ "per_call_cap_micros": 500_000 }));
        // Sixteen at once from one version: one wins.
        let etag = format!("\"{}\"", version + 1);
        let answers = join_all((0..16).map(|n| {
            let (world, etag, subject) = (&world, &etag, &subject);
            async move {
                world.put_policy(subject, etag, json!({ "day_cap_micros": 1_000_000 + n })).await
            }
        }))
        .await;
        assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 1);
        assert!(answers.iter().all(|answer| [200, 412].contains(&answer.status.as_u16())));
        let lost = answers.iter().find(|answer| answer.status == 412).unwrap();
        assert_eq!(lost.body["version"], version + 2);
    }
}

#[tokio::test]
async fn every_version_is_kept_and_can_come_back() {
    let world = World::ready().await;
    let first = world.get("owner", "/v1/policies/owner").await.expect(200);
    for n in 2..=5 {
        let etag = format!("\"{}\"", n - 1);
        world.advance(60);
        world
            .put_policy("owner", &etag, json!({ "day_cap_micros": n * 1_000_000 }))
            .await
            .expect(200);
    }
    let revert = |etag: &'static str, version: Value| {
        let world = &world;
        async move {
            let body = Some(json!({ "version": version }));
            let path = "/v1/policies/owner/revert";
            world.call_with("owner", Method::POST, path, body, &[("if-match", etag)]).await
        }
    };
    assert_eq!(revert("\"4\"", json!(1)).await.refusal(), "version_conflict");
    for none in [0u64, 6, 99, u64::MAX] {
        assert_eq!(revert("\"5\"", json!(none)).await.refusal(), "not_found", "{none}");
    }
    for odd in [json!(-1), json!("1"), json!(1.0), json!(null)] {
        assert_eq!(revert("\"5\"", odd).await.refusal(), "request_malformed");
    }
    let back = revert("\"5\"", json!(1)).await.expect(200);
    assert_eq!((&back["version"], &back["limits"]), (&json!(6), &first["limits"]));
    let history = world.get("owner", "/v1/policies/owner/versions").await.expect(200);
    let versions: Vec<u64> = history["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["version"].as_u64().unwrap())
        .collect();
    assert_eq!(versions, [6, 5, 4, 3, 2, 1]);
    assert_eq!(history["data"][1]["limits"], json!({ "day_cap_micros": 5_000_000 }));
    // Page by page it is the same.
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/policies/owner/versions?limit=2{cursor}");
        let page = world.get("owner", &path).await.expect(200);
        seen.extend(
            page["data"].as_array().unwrap().iter().map(|row| row["version"].as_u64().unwrap()),
        );
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, versions);
    // What came back is in force.
    assert_eq!(world.cheap(1_000_001, "a").await.refusal(), "policy_denied/per_call_cap");
}

#[tokio::test]
async fn limits_that_make_no_sense_are_refused_at_the_edge() {
    let world = World::ready().await;
    let mark = world.mark();
    let long = |n: usize| (0..n).map(|n| format!("x{n}")).collect::<Vec<_>>();
    for (body, code) in [
        (json!({ "per_call_cap": "$1.00" }), "request_malformed"),
        (json!({ "per_call_cap_micro": 1 }), "request_malformed"),
        (json!({ "per_call_cap_micros": 1, "Day_cap_micros": 1 }), "request_malformed"),
        (json!({ "max_price_micros": 1 }), "request_malformed"),
        (json!({ "rate": { "count": 1 } }), "request_malformed"),
        (json!({ "rate": { "count": 1, "per_seconds": 1, "burst": 1 } }), "request_malformed"),
        (json!({ "rate": [1, 60] }), "request_malformed"),
        (json!({ "rate": { "count": 4_294_967_296u64, "per_seconds": 1 } }), "request_malformed"),
        (json!({ "rate": { "count": 0, "per_seconds": 60 } }), "validation_failed"),
        (json!({ "rate": { "count": 1001, "per_seconds": 60 } }), "validation_failed"),
        (json!({ "rate": { "count": 1, "per_seconds": 0 } }), "validation_failed"),
        (json!({ "rate": { "count": 1, "per_seconds": -60 } }), "validation_failed"),
        (json!({ "rate": { "count": 1, "per_seconds": 86_401 } }), "validation_failed"),
        (json!({ "rate": { "count": 1, "per_seconds": i64::MAX } }), "validation_failed"),
        (json!({ "sellers": ["x"] }), "validation_failed"),
        (json!({ "sellers": [""] }), "validation_failed"),
        (json!({ "sellers": [world.owner_id()] }), "validation_failed"),
        (json!({ "listings": long(1001) }), "validation_failed"),
        (json!({ "sellers": vec![world.seller_id(); 1001] }), "validation_failed"),
    ] {
        let answer = world.put_policy("owner", "\"1\"", body.clone()).await;
        let shown: String = body.to_string().chars().take(80).collect();
        assert_eq!(answer.refusal(), code, "{shown}: {}", answer.body);
    }
    // A tab is the owner's, so its limit is too.
    let agent = world.agent_id();
    let answer = world.put_policy(&agent, "\"1\"", json!({ "tab_limit_micros": 1 })).await;
    assert_eq!(answer.refusal(), "validation_failed");
    world.assert_untouched(mark, "limits that make no sense");
    // Nothing at all is no limit for an owner, and everything inherited for an agent.
    world.put_policy("owner", "\"1\"", json!({})).await.expect(200);
    world.put_policy(&agent, "\"1\"", json!({})).await.expect(200);
    world.cheap(2_000_000, "a").await.expect(201);
}

/// Writes a policy row past the edge, as a later version of the program could have.
struct Write {
    owner: OwnerId,
    subject: PolicySubject,
    limits: Value,
}

impl Unit for Write {
    type Answer = ();
    fn name(&self) -> &'static str {
        "test.write_policy"
    }
    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Policy>(self.subject);
        touches
    }
    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let version = view.row::<Policy>(self.subject)?.map_or(1, |row| row.version + 1);
        let mut effects = Effects::answer(());
        effects.put(Policy {
            subject: self.subject,
            owner: self.owner,
            version,
            set_at: now,
            limits: self.limits.clone(),
            read: Default::default(),
        })?;
        Ok(effects)
    }
}

/// A row that cannot be read whole is not half-obeyed: nothing is bought until somebody sets it.
#[tokio::test]
async fn a_policy_that_cannot_be_read_denies() {
    let world = World::ready().await;
    let owner: OwnerId = world.owner_id().parse().unwrap();
    let agent = PolicySubject::Agent(world.agent_id().parse().unwrap());
    let money = world.money();
    for (n, limits) in [
        json!({ "weekly_cap_micros": 1 }),
        json!({ "per_call_cap_micros": 1_000_000, "new": null }),
        json!({ "per_call_cap_micros": "1.00" }),
        json!({ "per_call_cap_micros": -1 }),
        json!({ "per_call_cap_micros": 1.0 }),
        json!({ "rate": { "count": 1, "per_seconds": 1, "burst": 2 } }),
        json!({ "sellers": "sel_x" }),
        json!("x"),
        json!(1),
        Value::Null,
    ]
    .into_iter()
    .enumerate()
    {
        for subject in [PolicySubject::Owner(owner), agent] {
            let unit = Write { owner, subject, limits: limits.clone() };
            world.earnest.app.store.submit(unit).await.unwrap();
            let answer = world.cheap(10_000, &format!("{n}-{subject}")).await;
            assert_eq!(answer.refusal(), "policy_denied/policy_invalid", "{limits} of {subject}");
            // What it said is not told to the agent.
            assert!(!answer.body.to_string().contains("cap"), "{}", answer.body);
            // Its owner sees it as it is, and sets it right.
            let path = format!("/v1/policies/{subject}");
            let read = world.get("owner", &path).await;
            let etag = read.headers["etag"].to_str().unwrap().to_owned();
            assert_eq!(read.body["limits"], limits);
            world.put_policy(&subject.to_string(), &etag, json!({})).await.expect(200);
        }
    }
    assert_eq!(world.money(), money);
    world.cheap(10_000, "after").await.expect(201);
}

/// An agent that some other program wrote without its policy, and its key.
pub async fn bare_agent(world: &World) -> (earnest_core::id::AgentId, String) {
    let owner: OwnerId = world.owner_id().parse().unwrap();
    struct Bare(earnest_core::party::Agent, earnest_core::party::ApiKey);
    impl Unit for Bare {
        type Answer = ();
        fn name(&self) -> &'static str {
            "test.bare_agent"
        }
        fn touches(&self, _: &View, _: Timestamp) -> Touches {
            let mut touches = Touches::new();
            touches.row::<earnest_core::party::Agent>(self.0.id);
            touches.row::<earnest_core::party::ApiKey>(&self.1.hash);
            touches
        }
        fn decide(&self, _: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
            let mut effects = Effects::answer(());
            effects.put(self.0.clone())?;
            effects.put(self.1.clone())?;
            Ok(effects)
        }
    }
    let app = &world.earnest.app;
    let id = earnest_core::id::AgentId::new(app.seed());
    let mut agent = earnest_core::party::Agent::new(id, owner, "bare", app.now());
    let key = earnest::flow::party::draw(app, earnest_core::party::Principal::Agent(id), "bare");
    agent.keys.push(key.row.id);
    app.store.submit(Bare(agent, key.row)).await.unwrap();
    (id, key.secret.expose().to_owned())
}

/// Without a row nothing may be bought: absence is never permission.
#[tokio::test]
async fn a_missing_policy_denies() {
    let world = World::ready().await;
    let owner: OwnerId = world.owner_id().parse().unwrap();
    let (id, key) = bare_agent(&world).await;
    let app = &world.earnest.app;
    let body = json!({ "quote": world.quote("/weather", 1), "max_price": 1, "request_id": "a" });
    let answer = world.post(&key, "/v1/authorize", body).await;
    assert_eq!(answer.refusal(), "policy_denied/policy_missing");
    assert!(!world.money().contains("owed"));
    // And nobody can set what is not there.
    let answer = world.put_policy(&id.to_string(), "\"1\"", json!({})).await;
    assert_eq!(answer.refusal(), "not_found");
    let unit = SetPolicy {
        owner,
        subject: PolicySubject::Agent(id),
        version: 0,
        limits: NewLimits::Version(0),
    };
    assert!(app.store.submit(unit).await.is_err());
}

/// Which reason is told when several apply: in the order of the design.
#[tokio::test]
async fn reasons_have_an_order() {
    let world = World::ready().await;
    let agent = world.agent_id();
    let everything = json!({
        "per_call_cap_micros": 20_000, "session_cap_micros": 20_000, "day_cap_micros": 20_000,
        "approve_above_micros": 1_000, "tab_limit_micros": 20_000, "listings": ["x"], "sellers": [],
        "rate": { "count": 1, "per_seconds": 60 },
    });
    world.spend(10_000, "first").await;
    world.policy("owner", everything.clone()).await;
    let change = |name: &'static str, value: Value| {
        let world = &world;
        async move {
            let mut limits =
                world.get("owner", "/v1/policies/owner").await.expect(200)["limits"].clone();
            match value {
                Value::Null => drop(limits.as_object_mut().unwrap().remove(name)),
                value => limits[name] = value,
            }
            world.policy("owner", limits).await;
        }
    };
    let asked = |max: i64| {
        let world = &world;
        async move {
            let body = json!({ "quote": world.quote("/weather", 30_000), "max_price": max, "request_id": "many" });
            world.post("agent", "/v1/authorize", body).await.refusal()
        }
    };
    let post = |path: String| {
        let world = &world;
        async move { world.call("owner", Method::POST, &path, None).await.expect(204) }
    };
    post("/v1/owners/me/pause".to_owned()).await;
    post(format!("/v1/agents/{agent}/pause")).await;
    assert_eq!(asked(1).await, "policy_denied/owner_paused");
    post("/v1/owners/me/resume".to_owned()).await;
    assert_eq!(asked(1).await, "policy_denied/agent_paused");
    post(format!("/v1/agents/{agent}/resume")).await;
    assert_eq!(asked(1).await, "policy_denied/merchant_not_allowed");
    change("sellers", Value::Null).await;
    assert_eq!(asked(1).await, "policy_denied/tool_not_allowed");
    change("listings", Value::Null).await;
    assert_eq!(asked(1).await, "policy_denied/price_above_max");
    assert_eq!(asked(30_000).await, "policy_denied/per_call_cap");
    change("per_call_cap_micros", Value::Null).await;
    // One attempt more counts, so that the rate is full.
    assert_eq!(asked(30_000).await, "policy_denied/rate_limit");
    change("rate", Value::Null).await;
    assert_eq!(asked(30_000).await, "policy_denied/session_cap");
    change("session_cap_micros", Value::Null).await;
    assert_eq!(asked(30_000).await, "policy_denied/daily_cap");
    change("day_cap_micros", Value::Null).await;
    assert_eq!(asked(30_000).await, "policy_denied/tab_limit");
    change("tab_limit_micros", Value::Null).await;
    let body = json!({ "quote": world.quote("/weather", 30_000), "max_price": 30_000, "request_id": "many" });
    let answer = world.post("agent", "/v1/authorize", body).await;
    assert_eq!(answer.status, 202, "at last its owner is asked");
}

/// The owner's own cap binds all agents together, whatever an agent's policy says.
#[tokio::test]
async fn an_agents_policy_overrides_a_default_and_never_the_owners_sum() {
    let world = World::ready().await;
    let agent = world.agent_id();
    world.policy("owner", json!({ "per_call_cap_micros": 10_000, "day_cap_micros": 50_000 })).await;
    world
        .policy(&agent, json!({ "per_call_cap_micros": 40_000, "day_cap_micros": 1_000_000 }))
        .await;
    world.cheap(40_000, "a").await.expect(201);
    let refused = world.cheap(20_000, "b").await;
    assert_eq!(refused.refusal(), "policy_denied/daily_cap");
    assert!(refused.body["detail"].as_str().unwrap().contains("owner"));
    assert_eq!(
        (&refused.body["limit_micros"], &refused.body["used_micros"]),
        (&json!(50_000), &json!(40_000))
    );
    // The other agent inherits the smaller cap of a call.
    let sister = world.post("owner", "/v1/agents", json!({ "name": "Sister" })).await.expect(201);
    let path = format!("/v1/agents/{}/keys", sister["id"].as_str().unwrap());
    let key =
        world.post("owner", &path, json!({})).await.expect(201)["key"].as_str().unwrap().to_owned();
    let ask = |amount: i64, id: &'static str| {
        let body = json!({ "quote": world.quote("/weather", amount), "max_price": amount, "request_id": id });
        let (world, key) = (&world, &key);
        async move { world.post(key, "/v1/authorize", body).await }
    };
    assert_eq!(ask(10_001, "c").await.refusal(), "policy_denied/per_call_cap");
    ask(10_000, "d").await.expect(201);
    assert_eq!(ask(1, "e").await.refusal(), "policy_denied/daily_cap");
    // An agent's list overrides the owner's, as every field does; null inherits it.
    world.policy("owner", json!({ "sellers": [] })).await;
    assert_eq!(world.cheap(1, "f").await.refusal(), "policy_denied/merchant_not_allowed");
    world.policy(&agent, json!({ "sellers": [world.seller_id()] })).await;
    world.cheap(1, "f").await.expect(201);
}

/// A cap lowered below what is used means no room, never an error; what is held stays held.
#[tokio::test]
async fn a_cap_lowered_in_mid_window_leaves_no_room() {
    let world = World::ready().await;
    let voucher = world.buy(100_000, "a").await;
    world.spend(100_000, "b").await;
    for (cap, reason) in [
        ("day_cap_micros", "daily_cap"),
        ("session_cap_micros", "session_cap"),
        ("tab_limit_micros", "tab_limit"),
    ] {
        world.policy("owner", json!({ cap: 50_000 })).await;
        let refused = world.cheap(1, &format!("c-{cap}")).await;
        assert_eq!(refused.refusal(), format!("policy_denied/{reason}"), "{}", refused.body);
        assert_eq!(refused.body["used_micros"], 200_000);
        // The voucher that is out is still shown, its hold still billed.
        assert_eq!(world.cheap(100_000, "a").await.status, 201);
    }
    assert_eq!(world.report(&voucher, "redeemed").await["outcome"], "billed");
    assert_eq!(world.tab().await["owed_micros"], 200_000);
    world.policy("owner", json!({ "day_cap_micros": 200_001 })).await;
    world.cheap(1, "d").await.expect(201);
    assert_eq!(world.cheap(1, "e").await.refusal(), "policy_denied/daily_cap");
    world.assert_balanced().await;
}

/// A change of the zone counts from the next day on; the day that runs keeps its end.
#[tokio::test]
async fn a_new_zone_counts_from_the_next_day() {
    let world = World::ready().await;
    world.policy("owner", json!({ "day_cap_micros": 100_000 })).await;
    world.cheap(100_000, "a").await.expect(201);
    let refused = world.cheap(1, "b").await;
    assert_eq!(refused.refusal(), "policy_denied/daily_cap");
    // Nine in the morning, UTC: the day ends in fifteen hours.
    let refused = world.cheap(1, "c").await;
    let wait: i64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert_eq!(wait, 15 * 3600);
    assert_eq!(refused.body["resets_at"], "2026-12-01T00:00:00Z");
    // In Tokyo it is six in the evening: a new day there would begin in six hours. It does not help.
    world
        .call("owner", Method::PUT, "/v1/owners/me/zone", Some(json!({ "zone": "Asia/Tokyo" })))
        .await
        .expect(200);
    world.advance(7 * 3600);
    assert_eq!(world.cheap(1, "d").await.refusal(), "policy_denied/daily_cap");
    world.advance(8 * 3600 - 1);
    assert_eq!(world.cheap(1, "e").await.refusal(), "policy_denied/daily_cap");
    world.advance(1);
    world.cheap(1, "f").await.expect(201);
    // From here days are Tokyo's: the next begins at 15:00 UTC.
    let owner = world.get("owner", "/v1/owners/me").await.expect(200);
    assert_eq!((&owner["zone"], &owner["next_zone"]), (&json!("Asia/Tokyo"), &Value::Null));
    world.cheap(100_000 - 1, "g").await.expect(201);
    let refused = world.cheap(1, "h").await;
    assert_eq!(refused.refusal(), "policy_denied/daily_cap");
    assert_eq!(refused.body["resets_at"], "2026-12-01T15:00:00Z");
    for odd in
        ["", "Mars/Base", "utc ", "+01:00", "Europe/Amsterdam\u{0}", "../../etc/passwd", "UTC+25"]
    {
        let answer = world
            .call("owner", Method::PUT, "/v1/owners/me/zone", Some(json!({ "zone": odd })))
            .await;
        assert_eq!(answer.refusal(), "validation_failed", "{odd:?}");
    }
}

#[tokio::test]
async fn the_rate_is_a_sliding_window_with_an_exact_wait() {
    let world = World::ready().await;
    world.policy("owner", json!({ "rate": { "count": 3, "per_seconds": 60 } })).await;
    for n in 0..3 {
        world.cheap(1_000, &format!("r-{n}")).await.expect(201);
        world.advance(10);
    }
    let refused = world.cheap(1_000, "r-3").await;
    assert_eq!(refused.refusal(), "policy_denied/rate_limit");
    assert_eq!(refused.headers["retry-after"], "30");
    // A loop of refusals does not push the end away.
    for _ in 0..20 {
        assert_eq!(world.cheap(1_000, "r-3").await.refusal(), "policy_denied/rate_limit");
    }
    world.advance(29);
    assert_eq!(world.cheap(1_000, "r-3").await.refusal(), "policy_denied/rate_limit");
    world.advance(1);
    world.cheap(1_000, "r-3").await.expect(201);
    // Replays are no attempts.
    for _ in 0..5 {
        assert_eq!(world.cheap(1_000, "r-3").await.status, 201);
    }
}

/// What is tried is what would have happened: the dry run of other limits tells the numbers that the
/// limits themselves then bring about for the same purchases.
#[tokio::test]
async fn a_dry_run_says_what_the_limits_would_have_said() {
    let world = World::ready().await;
    world.policy("owner", json!({})).await;
    world.policy(&world.agent_id(), json!({})).await;
    for n in 0..6 {
        world.spend(300_000, &format!("bought-{n}")).await;
    }
    world.cheap(40_000, "held").await.expect(201);
    let path = "/v1/policies/owner/dry-run";
    let ask = |limits: Value| {
        let world = &world;
        async move { world.post("owner", path, limits).await.expect(200) }
    };
    let mark = world.mark();
    let same = ask(json!({})).await;
    assert_eq!((&same["purchases"], &same["changed"]), (&json!(7), &json!(0)), "{same}");
    assert_eq!(same["was"], same["would"]);
    assert_eq!(same["would"]["spent_micros"], 1_840_000);

    let day = ask(json!({ "day_cap_micros": "$1.00" })).await;
    assert_eq!(day["would"]["allowed"], 4, "three of $0.30 and the one of $0.04: {day}");
    assert_eq!(day["would"]["denied"], json!({ "daily_cap": 3 }));
    assert_eq!(day["would"]["spent_micros"], 940_000);
    assert_eq!(day["changed"], 3);
    assert_eq!(day["changes"][0]["would"], "daily_cap");

    let asked = ask(json!({ "approve_above_micros": "$0.05" })).await;
    assert_eq!(asked["would"]["waiting"], 6, "{asked}");
    let rate = ask(json!({ "rate": { "count": 2, "per_seconds": 86_400 } })).await;
    assert_eq!(rate["would"]["denied"], json!({ "rate_limit": 5 }), "{rate}");
    let often = json!({ "type": "payment.agent_recurrence", "frequency": "DAILY" });
    let often = ask(json!({ "constraints": [often] })).await;
    assert_eq!(often["would"]["allowed"], 1, "{often}");
    let budget = json!({ "seller": world.seller_id(), "every": "week", "cap_micros": "$0.65" });
    let budget = ask(json!({ "seller_budgets": [budget] })).await;
    assert_eq!(budget["would"]["denied"], json!({ "seller_budget": 4 }), "{budget}");
    world.assert_untouched(mark, "a dry run");

    // Agents learn nothing from it, and nobody tries what could not be set.
    assert_eq!(world.post("agent", path, json!({})).await.refusal(), "not_found");
    for (path, body) in [
        (format!("{path}?days=0"), json!({})),
        (format!("{path}?days=31"), json!({})),
        (path.to_owned(), json!({ "settle": { "every": "year", "hour": 0 } })),
        (
            path.to_owned(),
            json!({ "seller_budgets": [{ "seller": "x", "every": "day",
            "cap_micros": 1 }] }),
        ),
    ] {
        assert_eq!(world.post("owner", &path, body).await.refusal(), "validation_failed", "{path}");
    }
    // A month later nothing is left to try.
    world.advance(31 * 86_400);
    assert_eq!(ask(json!({})).await["purchases"], 0);
}

/// A constraint nobody here obeys is kept, said, and denies.
#[tokio::test]
async fn a_constraint_that_is_not_obeyed_is_said_and_denies() {
    let world = World::ready().await;
    let set = json!({ "constraints": [{ "type": "payment.colour", "is": "green" }] });
    world.policy("owner", set).await;
    let read = world.get("owner", "/v1/policies/owner").await.expect(200);
    assert_eq!(read["not_obeyed"], json!(["`payment.colour`: its type is not obeyed here"]));
    let denied = world.cheap(10_000, "any").await;
    assert_eq!(denied.refusal(), "policy_denied/constraint");
    world.policy("owner", json!({})).await;
    world.cheap(10_000, "again").await.expect(201);
}
