//! Answering questions on a phone: once, several at once, bounded, too late.

use super::*;

#[tokio::test]
async fn two_taps_from_the_link_to_approved() {
    let world = World::ready().await;
    world.spend(100_000, "before").await;
    let mut browser = Browser::of(&world, "owner").await;
    let waiting = world.authorize(world.quote("/dear", DEAR), "a").await.expect(202);
    let id = waiting["approval_id"].as_str().unwrap().to_owned();
    let url = waiting["approval_url"].as_str().unwrap();

    // One: what is asked, why, spent, usual, until when.
    let page = browser.get(url).await.expect(200);
    assert_eq!(page.title(), "Approve $0.25?");
    for part in [
        "Simulated money",
        "dev agent",
        "dev seller",
        "GET /dear",
        "GET http://127.0.0.1:9/dear</code>",
        "first time",
        "$0.25 is above the $0.20 that passes without the owner.",
        "datetime=\"2026-11-30T09:15:00Z\"",
        "2026-11-30 09:15 UTC",
        "in 15 minutes",
        "Today (UTC), all agents",
        "<td class=\"n\">$0.10</td><td class=\"n\">$10.00</td>",
        "<td class=\"n\">$0.10</td><td class=\"n\">$5.00</td>",
        "<td class=\"n\">$0.10</td><td class=\"n\">$20.00</td>",
    ] {
        assert!(page.html.contains(part), "no {part}: {}", page.html);
    }
    assert!(!page.html.contains("no room"));
    // Two.
    let before = world.money();
    let (form, version) = (page.field("form"), page.field("version"));
    let path = format!("/approvals/{id}");
    let fields = [("form", &*form), ("version", &*version), ("decision", "approve")];
    let tapped = browser.post(&path, &fields).await.expect(303);
    assert_eq!(tapped.headers["location"], path);
    let page = browser.get(&path).await.expect(200);
    assert_eq!(page.title(), "Approved: $0.25");
    assert!(page.html.contains("Nothing is charged yet"));
    assert_eq!(world.money(), before, "approving booked something");
    assert_eq!(world.authorize(world.quote("/dear", DEAR), "a").await.status, 201);
    let page = browser.get(&path).await.expect(200);
    assert_eq!(page.title(), "Approved and used: $0.25");
    // Afterwards it is what is usually paid.
    let voucher = world.authorize(world.quote("/dear", DEAR), "a").await.expect(201);
    world.report(voucher["voucher"].as_str().unwrap(), "redeemed").await;
    let again = world.authorize(world.quote("/dear", DEAR + 100), "b").await.expect(202);
    let again = again["approval_id"].as_str().unwrap();
    let page = browser.get(&format!("/approvals/{again}")).await.expect(200);
    assert!(page.html.contains("$0.25 (once before)"), "{}", page.html);
    assert_eq!(page.title(), "Approve $0.2501?");
    world.assert_sound();
}

/// The same button twice, one after the other or at once: one yes, and the second is told so.
#[tokio::test]
async fn a_double_tap_approves_once() {
    let world = World::ready().await;
    let mut browser = Browser::of(&world, "owner").await;
    let id = question(&world, "a", DEAR).await;
    let path = format!("/approvals/{id}");
    let page = browser.get(&path).await.expect(200);
    let (form, version) = (page.field("form"), page.field("version"));
    let fields = [("form", &*form), ("version", &*version), ("decision", "approve")];
    let taps = join_all((0..6).map(|_| {
        let mut copy = Browser { world: &world, cookies: browser.cookies.clone() };
        let path = &path;
        async move { copy.post(path, &fields).await }
    }))
    .await;
    let first = taps.iter().filter(|tap| tap.status == 303).count();
    let told = taps.iter().filter(|tap| tap.status == 409).count();
    assert_eq!((first, told), (1, 5));
    let second = taps.iter().find(|tap| tap.status == 409).unwrap();
    assert_eq!(second.title(), "Approved: $0.25");
    assert!(second.html.contains("It was already approved at 2026-11-30 09:00 UTC"));
    // Another answer after the first does not count either.
    let late = [("form", &*form), ("version", &*version), ("decision", "deny")];
    browser.post(&path, &late).await.expect(409);
    assert_eq!(status_of(&world, &id).await, "approved");
}

#[tokio::test]
async fn deny_and_deny_and_pause() {
    let world = World::ready().await;
    let mut browser = Browser::of(&world, "owner").await;
    let id = question(&world, "a", DEAR).await;
    browser.tap(&id, "deny").await.expect(303);
    let page = browser.get(&format!("/approvals/{id}")).await.expect(200);
    assert_eq!(page.title(), "Denied: $0.25");
    assert!(!page.html.contains("paused"));
    let refused = world.authorize(world.quote("/dear-a", DEAR), "a").await;
    assert_eq!(refused.refusal(), "approval_denied");

    let id = question(&world, "b", DEAR).await;
    browser.tap(&id, "deny_and_pause").await.expect(303);
    let page = browser.get(&format!("/approvals/{id}")).await.expect(200);
    assert!(page.html.contains("is paused and buys nothing more"));
    let paused = world.authorize(world.quote("/weather", 10_000), "c").await;
    assert_eq!(paused.refusal(), "policy_denied/agent_paused");
    world.assert_balanced().await;
}

#[tokio::test]
async fn a_grant_is_read_back_before_it_is_given() {
    let world = World::ready().await;
    let mut browser = Browser::of(&world, "owner").await;
    let id = question(&world, "a", DEAR).await;
    let path = format!("/approvals/{id}");
    for (bad, why) in [
        ("cap=&for=3600", "decimal"),
        ("cap=1.2345678&for=3600", "decimal"),
        ("cap=-1&for=3600", "decimal"),
        ("cap=0.10&for=3600", "the grant must be $0.25 or more"),
        ("cap=99999999&for=3600", "range"),
        ("cap=5&for=0", "from 1 to"),
        ("cap=5&for=2592001", "from 1 to"),
        ("cap=5&for=ever", "for how long"),
    ] {
        let page = browser.get(&format!("{path}/grant?version=1&{bad}")).await.expect(422);
        assert!(page.html.contains("role=\"alert\""), "{bad}: {}", page.html);
        assert!(
            page.html.to_lowercase().contains(why) || why == "range" || why == "decimal",
            "{bad}"
        );
        assert!(page.html.contains("aria-invalid"), "{bad}");
    }
    let review = browser.get(&format!("{path}/grant?version=1&cap=%245.00&for=86400")).await;
    let review = review.expect(200);
    assert_eq!(review.title(), "Grant $5.00?");
    assert!(review.html.contains("2026-12-01 09:00 UTC"));
    assert_eq!(status_of(&world, &id).await, "waiting", "a GET gave it");

    let names = ["form", "version", "cap", "for"];
    let fields: Vec<(&str, String)> = names.map(|name| (name, review.field(name))).to_vec();
    let mut fields: Vec<(&str, &str)> = fields.iter().map(|(k, v)| (*k, v.as_str())).collect();
    fields.push(("decision", "grant"));
    browser.post(&path, &fields).await.expect(303);
    let page = browser.get(&path).await.expect(200);
    assert!(page.html.contains("may spend up to $5.00 at dev seller without asking"));
    let grants = world.get("owner", "/v1/grants").await.expect(200);
    assert_eq!(grants["data"][0]["cap_micros"], 5_000_000);
    assert_eq!(world.authorize(world.quote("/dear-x", DEAR), "x").await.status, 201);
    browser.post(&path, &fields).await.expect(409);
    let late = browser.get(&format!("{path}/grant?version=1&cap=5&for=3600")).await;
    late.expect(409);
}

#[tokio::test]
async fn several_at_once() {
    let world = World::ready().await;
    let mut browser = Browser::of(&world, "owner").await;
    let page = browser.get("/approvals").await.expect(200);
    assert_eq!(page.title(), "Nothing waits for you");
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(question(&world, &format!("q{n}"), DEAR + n).await);
    }
    let page = browser.get("/approvals").await.expect(200);
    assert_eq!(page.title(), "4 purchases wait for you");
    let form = page.field("form");
    let pick = |id: &String| format!("{id}.1");
    let picks: Vec<String> = ids.iter().map(pick).collect();
    for pick in &picks {
        assert!(page.html.contains(&format!("name=\"pick\" value=\"{pick}\"")));
    }
    let none = [("form", &*form), ("decision", "approve")];
    let page = browser.post("/approvals", &none).await.expect(422);
    assert!(page.html.contains("Choose at least one"));
    // The first was answered elsewhere in between: told, and the others count.
    browser.tap(&ids[0], "deny").await.expect(303);
    let mut fields = vec![("form", &*form), ("decision", "approve")];
    fields.extend(picks[..3].iter().map(|pick| ("pick", pick.as_str())));
    let page = browser.post("/approvals", &fields).await.expect(200);
    assert_eq!(page.title(), "2 approved, 1 not");
    let states = ["denied", "approved", "approved", "waiting"];
    for (id, state) in ids.iter().zip(states) {
        assert_eq!(status_of(&world, id).await, state);
    }
    let rest = [("form", &*form), ("decision", "deny"), ("pick", &*picks[3])];
    assert_eq!(browser.post("/approvals", &rest).await.expect(200).title(), "1 denied");
    browser.post("/approvals", &[("form", &*form), ("decision", "x")]).await.expect(422);
}

#[tokio::test]
async fn expired_is_gone_and_stale_shows_how_it_stands() {
    let world = World::ready().await;
    let mut browser = Browser::of(&world, "owner").await;
    let id = question(&world, "a", DEAR).await;
    let path = format!("/approvals/{id}");
    let page = browser.get(&path).await.expect(200);
    let form = page.field("form");
    let stale = [("form", &*form), ("version", "7"), ("decision", "approve")];
    let page = browser.post(&path, &stale).await.expect(412);
    assert!(page.html.contains("version 1 now"), "{}", page.html);
    assert_eq!(page.title(), "Approve $0.25?");
    let unsaid = [("form", &*form), ("decision", "approve")];
    browser.post(&path, &unsaid).await.expect(428);
    let odd = [("form", &*form), ("version", "1"), ("decision", "yes")];
    browser.post(&path, &odd).await.expect(422);
    assert_eq!(status_of(&world, &id).await, "waiting");
    world.advance(900);
    let page = browser.get(&path).await.expect(410);
    assert_eq!(page.title(), "Expired: $0.25");
    assert!(page.html.contains("asks again") && !page.html.contains("decision"));
    let late = [("form", &*form), ("version", "1"), ("decision", "approve")];
    let page = browser.post(&path, &late).await.expect(410);
    assert!(page.html.contains("expired before you answered"));
    assert_eq!(browser.get("/approvals").await.expect(200).title(), "Nothing waits for you");
}

/// A failure in the middle hides nothing of what counted before and after it.
#[tokio::test]
async fn of_several_each_has_an_outcome_of_its_own() {
    let world = World::ready().await;
    let mut browser = Browser::of(&world, "owner").await;
    let (first, last) = (question(&world, "a", DEAR).await, question(&world, "b", DEAR).await);
    let unseen = question(&world, "c", DEAR).await;
    let form = browser.get("/approvals").await.expect(200).field("form");
    let picks = [
        format!("{first}.1"),
        "apr_1.1".to_owned(),
        "apr_00000000000000000000000001.1".to_owned(),
        unseen.clone(),
        format!("{last}.1"),
    ];
    let mut fields = vec![("form", &*form), ("decision", "approve")];
    fields.extend(picks.iter().map(|pick| ("pick", pick.as_str())));
    let page = browser.post("/approvals", &fields).await.expect(200);
    assert_eq!(page.title(), "2 approved, 3 not");
    assert_eq!(page.html.matches("not changed").count(), 3, "{}", page.html);
    for (id, status) in [(&first, "approved"), (&unseen, "waiting"), (&last, "approved")] {
        assert_eq!(status_of(&world, id).await, status);
    }
}

#[tokio::test]
async fn what_stands_in_the_way_is_said_before_the_answer() {
    let world = World::ready().await;
    let mut browser = Browser::of(&world, "owner").await;
    let id = question(&world, "a", DEAR).await;
    let path = format!("/approvals/{id}");
    let limits = json!({
        "per_call_cap_micros": 1_000_000, "session_cap_micros": 5_000_000,
        "day_cap_micros": 200_000, "approve_above_micros": 200_000, "tab_limit_micros": 20_000_000,
    });
    world.policy("owner", limits).await;
    let before = world.money();
    let page = browser.get(&path).await.expect(200);
    for part in ["a yes will not make it buy", "cap of $0.20 for today has $0.20 left", "(no room)"]
    {
        assert!(page.html.contains(part), "no {part}: {}", page.html);
    }
    assert_eq!(world.money(), before, "looking booked something");
    world.call("owner", Method::POST, "/v1/owners/me/pause", None).await.expect(204);
    assert!(browser.get(&path).await.expect(200).html.contains("The owner paused all agents."));
    // Once it is answered there is nothing to say of a yes.
    browser.tap(&id, "deny").await.expect(303);
    assert!(!browser.get(&path).await.expect(200).html.contains("will not make it buy"));
}

/// Whatever the reason: what the page says before the yes is what the repeat is told after it.
#[tokio::test]
async fn what_the_page_foresees_is_what_the_repeat_is_told() {
    let usual = json!({
        "per_call_cap_micros": 1_000_000, "session_cap_micros": 5_000_000,
        "day_cap_micros": 10_000_000, "approve_above_micros": 200_000,
        "tab_limit_micros": 20_000_000,
    });
    let with = |name: &str, value: Value| {
        let mut limits = usual.clone();
        limits[name] = value;
        limits
    };
    let stranger = "sel_00000000000000000000000001";
    let week = json!([{ "seller": "OWN", "every": "week", "cap_micros": 100_000 }]);
    let once = json!([{ "type": "payment.agent_recurrence", "frequency": "ON_DEMAND",
        "max_occurrences": 0 }]);
    let cheap = json!([{ "type": "payment.amount_range", "currency": "USD", "max": 10 }]);
    for (limits, reason) in [
        (with("per_call_cap_micros", json!(100_000)), "per_call_cap"),
        (with("session_cap_micros", json!(100_000)), "session_cap"),
        (with("day_cap_micros", json!(100_000)), "daily_cap"),
        (with("tab_limit_micros", json!(100_000)), "tab_limit"),
        (with("sellers", json!([stranger])), "merchant_not_allowed"),
        (with("listings", json!(["another"])), "tool_not_allowed"),
        (with("rate", json!({ "count": 1, "per_seconds": 60 })), "rate_limit"),
        (with("seller_budgets", week), "seller_budget"),
        (with("constraints", cheap), "constraint"),
        (with("constraints", once), "constraint"),
        (with("constraints", json!([{ "type": "payment.unheard_of" }])), "constraint"),
        (usual.clone(), "tab_closed"),
        (usual.clone(), ""),
    ] {
        let world = World::ready().await;
        let text = limits.to_string().replace("OWN", &world.seller_id());
        let limits: Value = serde_json::from_str(&text).unwrap();
        // The rate counts the question itself, if it is there by then.
        if reason == "rate_limit" {
            world.policy("owner", limits.clone()).await;
        }
        let id = question(&world, "a", DEAR).await;
        world.policy("owner", limits).await;
        if reason == "tab_closed" {
            world.buy(10_000, "under-way").await;
            let tab = world.tab().await["id"].as_str().unwrap().to_owned();
            let path = format!("/v1/tabs/{tab}/close");
            world.call("owner", Method::POST, &path, None).await.expect(202);
        }
        let mut browser = Browser::of(&world, "owner").await;
        let page = browser.get(&format!("/approvals/{id}")).await.expect(200);
        browser.tap(&id, "approve").await.expect(303);
        let repeat = world.authorize(world.quote("/dear-a", DEAR), "a").await;
        if reason.is_empty() {
            assert_eq!(repeat.status, 201);
            assert!(!page.html.contains("will not make it buy"), "{}", page.html);
            continue;
        }
        assert_eq!(repeat.refusal(), format!("policy_denied/{reason}"), "{}", repeat.body);
        let told = &repeat.body["detail"].as_str().unwrap()[1..];
        let shown = page.html.replace("&#39;", "'");
        assert!(shown.contains("will not make it buy"), "{reason}: {shown}");
        assert!(shown.contains(told), "{reason}: no {told}: {shown}");
    }
}
