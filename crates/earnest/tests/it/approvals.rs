//! Questions put to an owner, through HTTP: approve once, bounded grant, deny, deny and pause; what
//! collapses, expires, goes stale, and what an answer never does by itself.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::world::{Answer, World};

/// Above what passes without a question (20 cents), under every cap (a dollar a call).
const DEAR: i64 = 250_000;

impl World {
    async fn buy_dear(&self, request_id: &str) -> Answer {
        self.authorize(self.quote("/dear", DEAR), request_id).await
    }

    /// Asks, and gives the approval's id.
    async fn ask(&self, request_id: &str) -> String {
        let answer = self.buy_dear(request_id).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        answer.body["approval_id"].as_str().unwrap().to_owned()
    }

    async fn decide_at(&self, approval: &str, version: u64, decision: Value) -> Answer {
        let path = format!("/v1/approvals/{approval}/decision");
        let version = format!("\"{version}\"");
        let headers = [("if-match", version.as_str())];
        self.call_with("owner", Method::POST, &path, Some(decision), &headers).await
    }

    async fn decide(&self, approval: &str, decision: Value) -> Value {
        self.decide_at(approval, 1, decision).await.expect(200)
    }

    async fn approve(&self, approval: &str) {
        let answered = self.decide(approval, json!({ "decision": "approve" })).await;
        assert_eq!(answered["status"], "approved");
    }

    async fn approval(&self, id: &str) -> Value {
        self.get("owner", &format!("/v1/approvals/{id}")).await.expect(200)
    }

    async fn purchases(&self) -> Vec<Value> {
        let list = self.get("owner", "/v1/purchases?limit=500").await.expect(200);
        list["data"].as_array().unwrap().clone()
    }
}

/// What a purchase draws on is in the money accounts only once it is held.
#[tokio::test]
async fn approving_books_nothing_and_works_once() {
    let world = World::ready().await;
    let before = world.money();
    let asked = world.buy_dear("a").await;
    assert_eq!(asked.status, 202);
    let approval = asked.body["approval_id"].as_str().unwrap().to_owned();
    assert_eq!(asked.headers["location"], format!("/v1/approvals/{approval}"));
    let wait: i64 = asked.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert_eq!(asked.body["retry_after_s"], wait);
    assert!((1..=5).contains(&wait));
    assert!(asked.body["approval_url"].as_str().unwrap().starts_with(&world.earnest.url()));
    assert_eq!(asked.body["status"], "approval_required");
    assert_eq!(asked.headers["cache-control"], "no-store");

    // The question says who wants what for how much, and why it waits.
    let question = world.approval(&approval).await;
    assert_eq!(question["amount_micros"], DEAR);
    assert_eq!(question["url"], world.quote("/dear", DEAR)["url"]);
    assert_eq!(question["status"], "waiting");
    assert!(question["why"].as_str().unwrap().contains("$0.25"));
    // Its agent may look; asking again shows the same question and makes no other.
    let agents = world.get("agent", &format!("/v1/approvals/{approval}")).await.expect(200);
    assert_eq!(agents, question);
    let again = world.buy_dear("a").await;
    assert_eq!((again.status.as_u16(), &again.body["approval_id"]), (202, &json!(approval)));
    assert_eq!(again.headers["idempotent-replayed"], "true");

    world.approve(&approval).await;
    assert_eq!(world.money(), before, "approving booked something");
    let held = world.buy_dear("a").await.expect(201);
    assert_eq!(held["amount_micros"], DEAR);
    assert_eq!(world.approval(&approval).await["status"], "consumed");
    // Used up: an equal purchase under another id is asked about anew.
    let other = world.ask("b").await;
    assert_ne!(other, approval);
    // And the answer cannot be given again, or taken back.
    for decision in ["approve", "deny", "deny_and_pause"] {
        let late = world.decide_at(&approval, 3, json!({ "decision": decision })).await;
        assert_eq!((late.status.as_u16(), late.code()), (410, "approval_consumed"), "{decision}");
    }
}

#[tokio::test]
async fn an_approved_purchase_is_held_once_under_parallel_repeats() {
    let world = World::ready().await;
    let approval = world.ask("a").await;
    world.approve(&approval).await;
    let answers = join_all((0..32).map(|_| world.buy_dear("a"))).await;
    let mut vouchers: Vec<&str> =
        answers.iter().map(|answer| answer.body["voucher"].as_str().unwrap()).collect();
    assert!(answers.iter().all(|answer| answer.status == 201));
    vouchers.sort_unstable();
    vouchers.dedup();
    assert_eq!(vouchers.len(), 1, "one purchase, one voucher");
    let fresh = answers.iter().filter(|answer| !answer.headers.contains_key("idempotent-replayed"));
    assert_eq!(fresh.count(), 1);
    assert_eq!(world.tab().await["held_micros"], DEAR);

    // One yes, and 32 equal purchases under ids of their own: the yes is for the one that asked.
    let approval = world.ask("b").await;
    world.approve(&approval).await;
    let ids: Vec<String> =
        (0..32).map(|n| if n == 7 { "b".to_owned() } else { format!("x-{n}") }).collect();
    let answers = join_all(ids.iter().map(|id| world.buy_dear(id))).await;
    let held: Vec<&String> = ids
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| answer.status == 201)
        .map(|(id, _)| id)
        .collect();
    assert_eq!(held, ["b"]);
    assert_eq!(world.tab().await["held_micros"], 2 * DEAR);
    world.assert_balanced().await;
}

/// Equal questions are one question: whichever of them repeats first uses the answer.
#[tokio::test]
async fn equal_questions_collapse() {
    let world = World::ready().await;
    let answers = join_all((0..16).map(|n| {
        let world = &world;
        async move { world.ask(&format!("eq-{n}")).await }
    }))
    .await;
    let first = answers[0].clone();
    assert!(answers.iter().all(|id| *id == first), "{answers:?}");
    let waiting = world.get("owner", "/v1/approvals?status=waiting").await.expect(200);
    assert_eq!(waiting["data"].as_array().unwrap().len(), 1);
    // Another amount, URL, method, body or listing is another question.
    let mut changed = Vec::new();
    for (name, value) in [
        ("amount_micros", json!(DEAR + 1)),
        ("url", json!("http://127.0.0.1:9/dear?x")),
        ("method", json!("POST")),
        ("listing", json!("GET /dearest")),
        ("body_sha256", json!("0".repeat(64))),
    ] {
        let mut quote = world.quote("/dear", DEAR);
        quote[name] = value;
        let answer = world.authorize(quote, &format!("other-{name}")).await.expect(202);
        changed.push(answer["approval_id"].as_str().unwrap().to_owned());
    }
    changed.push(first.clone());
    changed.sort();
    changed.dedup();
    assert_eq!(changed.len(), 6);

    world.approve(&first).await;
    // Exactly one of the sixteen is held; the others ask anew, as one.
    let answers = join_all((0..16).map(|n| {
        let world = &world;
        async move { world.buy_dear(&format!("eq-{n}")).await }
    }))
    .await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
    assert_eq!(answers.iter().filter(|answer| answer.status == 202).count(), 15);
    assert_eq!(world.tab().await["held_micros"], DEAR);
}

#[tokio::test]
async fn at_most_20_questions_wait() {
    let world = World::ready().await;
    let ask = |n: i64| {
        let world = &world;
        async move { world.authorize(world.quote("/dear", DEAR + n), &format!("w-{n}")).await }
    };
    for n in 0..20 {
        assert_eq!(ask(n).await.status, 202, "{n}");
    }
    let refused = ask(20).await;
    assert_eq!(refused.refusal(), "policy_denied/rate_limit");
    assert!(refused.headers.contains_key("retry-after"));
    assert!(refused.body["detail"].as_str().unwrap().contains("20"));
    // One answered makes room for one; so does one that expired.
    let list = world.get("owner", "/v1/approvals?status=waiting&limit=500").await.expect(200);
    assert_eq!(list["data"].as_array().unwrap().len(), 20);
    let some = list["data"][0]["id"].as_str().unwrap().to_owned();
    world.decide(&some, json!({ "decision": "deny" })).await;
    assert_eq!(ask(20).await.status, 202);
    assert_eq!(ask(21).await.refusal(), "policy_denied/rate_limit");
    world.advance(15 * 60);
    let answer = world.authorize(world.quote("/dear", DEAR + 22), "w-22").await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let list = world.get("owner", "/v1/approvals?status=waiting&limit=500").await.expect(200);
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "expired ones wait no longer");
}

#[tokio::test]
async fn questions_and_unused_answers_expire() {
    let world = World::ready().await;
    let question = world.ask("a").await;
    let yes = world.authorize(world.quote("/dear", DEAR + 1), "b").await.expect(202);
    let yes = yes["approval_id"].as_str().unwrap().to_owned();
    world.advance(15 * 60 - 1);
    world.decide(&yes, json!({ "decision": "approve" })).await;
    world.advance(1);
    assert_eq!(world.approval(&question).await["status"], "expired");
    let late = world.decide_at(&question, 1, json!({ "decision": "approve" })).await;
    assert_eq!((late.status.as_u16(), late.code()), (410, "approval_expired"));
    for row in world.purchases().await {
        assert_eq!(
            (&row["status"], &row["refusal"]["code"]),
            (&json!("denied"), &json!("approval_expired"))
        );
    }
    // The yes that nobody used in time is worth nothing; the purchase is asked about anew.
    assert_eq!(world.approval(&yes).await["status"], "expired");
    let answer = world.authorize(world.quote("/dear", DEAR + 1), "b").await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    assert_ne!(answer.body["approval_id"], json!(yes));
    let answer = world.buy_dear("a").await;
    assert_eq!(answer.status, 202);
    assert_ne!(answer.body["approval_id"], json!(question));
    assert!(!world.money().contains("owed"), "nothing was held");
}

#[tokio::test]
async fn an_answer_needs_the_version_that_was_read() {
    let world = World::ready().await;
    let id = world.ask("a").await;
    let read = world.get("owner", &format!("/v1/approvals/{id}")).await;
    assert_eq!(read.headers["etag"], "\"1\"");
    let path = format!("/v1/approvals/{id}/decision");
    let yes = || Some(json!({ "decision": "approve" }));
    let mark = world.mark();
    let none = world.call("owner", Method::POST, &path, yes()).await;
    assert_eq!((none.status.as_u16(), none.code()), (428, "precondition_required"));
    for etag in [
        "\"0\"",
        "\"2\"",
        "\"01x\"",
        "1",
        "*",
        "W/\"1\"",
        "\"\"",
        "",
        "\"1\", \"2\"",
        "\"+1\"",
        "\"18446744073709551616\"",
    ] {
        let headers = [("if-match", etag)];
        let answer = world.call_with("owner", Method::POST, &path, yes(), &headers).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (412, "version_conflict"), "{etag}");
    }
    let twice = [("if-match", "\"1\""), ("if-match", "\"1\"")];
    let answer = world.call_with("owner", Method::POST, &path, yes(), &twice).await;
    assert_eq!(answer.refusal(), "request_malformed");
    assert!(world.recorded_since(mark).is_empty());
    // Two owners' screens at once: one answers, the other is told.
    let decisions = ["approve", "deny", "deny_and_pause", "approve"];
    let answers = join_all(
        decisions.map(|decision| world.decide_at(&id, 1, json!({ "decision": decision }))),
    )
    .await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 1);
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        assert!(
            ["approval_already_decided", "version_conflict"].contains(&answer.code()),
            "{}",
            answer.body
        );
    }
}

#[tokio::test]
async fn odd_decisions_are_refused() {
    let world = World::ready().await;
    let id = world.ask("a").await;
    let mark = world.mark();
    for body in [
        json!({ "decision": "" }),
        json!({ "decision": "APPROVE" }),
        json!({ "decision": "approved" }),
        json!({ "decision": "approve", "cap": "$1.00" }),
        json!({ "decision": "deny", "for_seconds": 1 }),
        json!({ "decision": "grant" }),
        json!({ "decision": "grant", "cap": "$1.00" }),
        json!({ "decision": "grant", "for_seconds": 60 }),
        json!({ "decision": "grant", "cap": "$1.00", "for_seconds": 0 }),
        json!({ "decision": "grant", "cap": "$1.00", "for_seconds": -1 }),
        json!({ "decision": "grant", "cap": "$1.00", "for_seconds": 30 * 24 * 3600 + 1 }),
        json!({ "decision": "grant", "cap": "$1.00", "for_seconds": i64::MAX }),
        // Smaller than the purchase that asked.
        json!({ "decision": "grant", "cap": DEAR - 1, "for_seconds": 60 }),
    ] {
        let answer = world.decide_at(&id, 1, body.clone()).await;
        assert_eq!(answer.refusal(), "validation_failed", "{body}: {}", answer.body);
    }
    world.assert_untouched(mark, "an odd decision");
    assert_eq!(world.approval(&id).await["status"], "waiting");
}

#[tokio::test]
async fn a_refused_purchase_stays_refused() {
    let world = World::ready().await;
    let id = world.ask("a").await;
    let answered = world.decide(&id, json!({ "decision": "deny" })).await;
    assert_eq!(answered["status"], "denied");
    for _ in 0..2 {
        let answer = world.buy_dear("a").await;
        assert_eq!((answer.status.as_u16(), answer.refusal().as_str()), (403, "approval_denied"));
    }
    let again = world.decide_at(&id, 2, json!({ "decision": "approve" })).await;
    assert_eq!((again.status.as_u16(), again.code()), (409, "approval_already_decided"));
    // Its row says so, to owner and agent, in the list and alone.
    let rows = world.purchases().await;
    let path = format!("/v1/purchases/{}", rows[0]["id"].as_str().unwrap());
    for row in [&rows[0], &world.get("agent", &path).await.expect(200)] {
        assert_eq!(
            (&row["status"], &row["refusal"]["code"]),
            (&json!("denied"), &json!("approval_denied"))
        );
    }
    // Other purchases go on, another of the same kind asks anew.
    world.buy(10_000, "cheap").await;
    assert_ne!(world.ask("b").await, id);
    // Long after, the no still stands.
    world.advance(3600);
    let answer = world.authorize(world.quote("/dear", DEAR), "a").await;
    assert_eq!(answer.refusal(), "approval_denied");
}

#[tokio::test]
async fn deny_and_pause_stops_the_agent() {
    let world = World::ready().await;
    let id = world.ask("a").await;
    let other = world.authorize(world.quote("/dear", DEAR + 1), "b").await.expect(202);
    let other = other["approval_id"].as_str().unwrap().to_owned();
    let voucher = world.buy(10_000, "held").await;
    world.decide(&id, json!({ "decision": "deny_and_pause" })).await;
    let agent = world.get("owner", &format!("/v1/agents/{}", world.agent_id())).await.expect(200);
    assert_eq!(agent["paused"], true);
    let refused = world.authorize(world.quote("/weather", 10_000), "c").await;
    assert_eq!(refused.refusal(), "policy_denied/agent_paused");
    // A yes given meanwhile does not get past the pause, nor does an earlier hold stop.
    world.approve(&other).await;
    let refused = world.authorize(world.quote("/dear", DEAR + 1), "b").await;
    assert_eq!(refused.refusal(), "policy_denied/agent_paused");
    assert_eq!(world.report(&voucher, "redeemed").await["outcome"], "billed");
    let path = format!("/v1/agents/{}/resume", world.agent_id());
    world.call("owner", Method::POST, &path, None).await.expect(204);
    world.authorize(world.quote("/dear", DEAR + 1), "b").await.expect(201);
}

/// A yes is for exactly what was asked: policy runs again, with the limits of now.
#[tokio::test]
async fn policy_runs_again_after_the_yes() {
    for (limits, reason) in [
        (
            json!({ "per_call_cap_micros": DEAR - 1, "approve_above_micros": 200_000 }),
            "per_call_cap",
        ),
        (json!({ "session_cap_micros": DEAR - 1, "approve_above_micros": 200_000 }), "session_cap"),
        (json!({ "day_cap_micros": DEAR - 1, "approve_above_micros": 200_000 }), "daily_cap"),
        (json!({ "tab_limit_micros": DEAR - 1, "approve_above_micros": 200_000 }), "tab_limit"),
        (json!({ "sellers": [], "approve_above_micros": 200_000 }), "merchant_not_allowed"),
        (json!({ "listings": ["x"], "approve_above_micros": 200_000 }), "tool_not_allowed"),
    ] {
        let world = World::ready().await;
        let id = world.ask("a").await;
        world.approve(&id).await;
        world.policy("owner", limits).await;
        let answer = world.buy_dear("a").await;
        assert_eq!(answer.refusal(), format!("policy_denied/{reason}"));
        assert!(!world.money().contains("owed"), "{reason}: something is held");
        // Raised again before the yes expires, it counts.
        world.policy("owner", json!({ "approve_above_micros": 200_000 })).await;
        world.buy_dear("a").await.expect(201);
    }
    // Paused in between, by agent or all of them; and with the key revoked.
    let world = World::ready().await;
    let id = world.ask("a").await;
    world.approve(&id).await;
    for (path, back, reason) in [
        (format!("/v1/agents/{}/pause", world.agent_id()), "resume", "agent_paused"),
        ("/v1/owners/me/pause".to_owned(), "resume", "owner_paused"),
    ] {
        world.call("owner", Method::POST, &path, None).await.expect(204);
        let answer = world.buy_dear("a").await;
        assert_eq!(answer.refusal(), format!("policy_denied/{reason}"));
        let path = path.replace("pause", back);
        world.call("owner", Method::POST, &path, None).await.expect(204);
    }
    world.buy_dear("a").await.expect(201);
}

/// Another amount, thing or place under an id that waits is not what the owner is asked about.
#[tokio::test]
async fn another_number_is_stale() {
    let world = World::ready().await;
    let id = world.ask("a").await;
    let stale = |quote: Value| {
        let world = &world;
        async move {
            let answer = world.authorize(quote, "a").await;
            assert_eq!(
                (answer.status.as_u16(), answer.code()),
                (409, "approval_stale"),
                "{}",
                answer.body
            );
        }
    };
    let changes = || {
        let mut all = Vec::new();
        for (name, value) in [
            ("amount_micros", json!(DEAR + 1)),
            ("amount_micros", json!(DEAR - 1)),
            ("amount_micros", json!(1)),
            ("url", json!("http://127.0.0.1:9/other")),
            ("method", json!("DELETE")),
            ("listing", json!("other")),
            ("body_sha256", json!("f".repeat(64))),
        ] {
            let mut quote = world.quote("/dear", DEAR);
            quote[name] = value;
            all.push(quote);
        }
        let mut ceiling = world.quote("/dear", DEAR);
        ceiling.as_object_mut().unwrap().remove("amount_micros");
        ceiling["max_micros"] = json!(DEAR);
        all.push(ceiling);
        all
    };
    let money = world.money();
    for quote in changes() {
        stale(quote).await;
    }
    world.approve(&id).await;
    for quote in changes() {
        stale(quote).await;
    }
    assert_eq!(world.money(), money);
    // The same offer with another quote id and expiry is the same thing.
    let mut same = world.quote("/dear", DEAR);
    same["expires_at"] = json!(earnest_core::time::after(world.clock.now(), 30));
    world.authorize(same, "a").await.expect(201);
    // Used: from here on it is an ordinary id used for something else.
    for quote in changes() {
        let answer = world.authorize(quote, "a").await;
        assert_eq!((answer.status.as_u16(), answer.code()), (422, "idempotency_conflict"));
    }
}

/// A grant is bounded in money, in time and to its seller, and can be taken back.
#[tokio::test]
async fn a_grant_is_bounded() {
    let world = World::ready().await;
    let id = world.ask("g-0").await;
    let body = json!({ "decision": "grant", "cap": "$0.80", "for_seconds": 600 });
    let answered = world.decide(&id, body).await;
    let grant = answered["grant"].as_str().unwrap().to_owned();
    let left = |used: i64| {
        let world = &world;
        async move {
            let grants = world.get("owner", "/v1/grants").await.expect(200);
            assert_eq!(grants["data"][0]["used_micros"], used, "{grants}");
        }
    };
    left(0).await;
    // The one that asked, and others of that seller's, in parallel: no more than the sum.
    let answers = join_all((0..12).map(|n| {
        let world = &world;
        async move { world.buy_dear(&format!("g-{n}")).await }
    }))
    .await;
    let held = answers.iter().filter(|answer| answer.status == 201).count();
    assert_eq!(held, 3, "3 x $0.25 of $0.80");
    assert!(answers.iter().all(|answer| [201, 202].contains(&answer.status.as_u16())));
    left(3 * DEAR).await;
    // What is too dear for the rest of it is asked about, and the question says so.
    let asked = answers.iter().find(|answer| answer.status == 202).unwrap();
    assert!(
        asked.body["detail"].as_str().unwrap().contains("grant has $0.05 left"),
        "{}",
        asked.body
    );
    // What needs no question draws nothing from it.
    world.buy(100_000, "cheap").await;
    left(3 * DEAR).await;
    // A hold that is released gives its room back.
    let voucher =
        answers.iter().find(|answer| answer.status == 201).unwrap().body["voucher"].clone();
    world.report(voucher.as_str().unwrap(), "failed").await;
    left(2 * DEAR).await;
    world.buy_dear("g-after").await.expect(201);

    // Another seller is not covered.
    let other = world.post("operator", "/v1/sellers", json!({ "name": "Other" })).await.expect(201);
    let unit = earnest_core::admin::PutOrigin {
        seller: other["id"].as_str().unwrap().parse().unwrap(),
        origin: "https://other.example".to_owned(),
        proved: true,
    };
    world.earnest.app.store.submit(unit).await.unwrap();
    let id =
        world.authorize(world.quote("/dear", DEAR + 7), "new").await.expect(202)["approval_id"]
            .clone();
    let body = json!({ "decision": "grant", "cap": "$2.00", "for_seconds": 60 });
    world.decide(id.as_str().unwrap(), body).await;
    let mut quote = world.quote("/dear", DEAR);
    quote["seller"] = other["id"].clone();
    quote["url"] = json!("https://other.example/dear");
    assert_eq!(world.authorize(quote, "elsewhere").await.status, 202);
    // Its time ends; then it is taken back by hand.
    world.authorize(world.quote("/dear", DEAR + 7), "new").await.expect(201);
    world.advance(60);
    let answer = world.authorize(world.quote("/dear", DEAR + 8), "late").await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let path = format!("/v1/grants/{grant}");
    let revoked = world.call("owner", Method::DELETE, &path, None).await.expect(200);
    assert!(revoked["revoked_at"].is_string());
    let again = world.call("owner", Method::DELETE, &path, None).await.expect(200);
    assert_eq!(again["revoked_at"], revoked["revoked_at"]);
    world.assert_balanced().await;
}

/// A grant taken back before it was used takes the yes back with it.
#[tokio::test]
async fn a_grant_taken_back_takes_the_yes_back() {
    let world = World::ready().await;
    let id = world.ask("a").await;
    let body = json!({ "decision": "grant", "cap": "$5.00", "for_seconds": 600 });
    let grant = world.decide(&id, body).await["grant"].as_str().unwrap().to_owned();
    world.call("owner", Method::DELETE, &format!("/v1/grants/{grant}"), None).await.expect(200);
    assert_eq!(world.buy_dear("a").await.status, 202);
    assert!(!world.money().contains("owed"));
}

/// What a hard cap refuses is never put to a human.
#[tokio::test]
async fn what_a_cap_refuses_is_never_asked() {
    let world = World::ready().await;
    let refused = world.authorize(world.quote("/dearest", 9_000_000), "a").await;
    assert_eq!(refused.refusal(), "policy_denied/per_call_cap");
    assert_eq!(refused.body["price_micros"], 9_000_000);
    assert_eq!(refused.body["limit_micros"], 1_000_000);
    let list = world.get("owner", "/v1/approvals").await.expect(200);
    assert_eq!(list["data"], json!([]));
    // Denied purchases are rows with their reason and numbers.
    let row = &world.purchases().await[0];
    assert_eq!(
        (&row["status"], &row["refusal"]["reason"]),
        (&json!("denied"), &json!("per_call_cap"))
    );
    assert_eq!(row["refusal"]["numbers"]["limit_micros"], 1_000_000);
}
