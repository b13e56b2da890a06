//! Signing a browser in and out, and what the API lets it do.

use super::*;

#[tokio::test]
async fn a_link_signs_in_once() {
    let world = World::ready().await;
    let link = login_link(&world, "owner").await;
    let token = link.split("token=").nth(1).unwrap();
    assert_eq!(token.len(), 32, "128 bits in hex");

    // Opening it, as a preview does, uses nothing; each browser gets a form of its own.
    for _ in 0..3 {
        let page = Browser::new(&world).get(&link).await.expect(200);
        assert_eq!(page.title(), "Sign in as dev owner?");
        assert!(!page.html.contains(&world.owner_id()));
    }
    let mut browser = Browser::new(&world);
    let form = browser.get(&link).await.expect(200).field("form");
    let fields = [("form", &*form), ("token", token)];
    // Not for a browser that was not shown the page, nor from another site.
    let other = Browser::new(&world).post("/login", &fields).await.expect(401);
    assert!(other.headers.get("set-cookie").is_none());
    let cross = [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")];
    browser.post_from("/login", &fields, &cross).await.expect(401);
    browser.post("/login", &[("token", token)]).await.expect(401);

    let signed_in = browser.post("/login", &fields).await.expect(303);
    assert_eq!(signed_in.headers["location"], "/approvals");
    let cookie = signed_in.headers["set-cookie"].to_str().unwrap();
    for part in ["HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=604800"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    browser.get("/approvals").await.expect(200);

    // Used up, for everybody but a second tap of the same browser.
    let late = Browser::new(&world).get(&link).await.expect(401);
    assert!(late.html.contains("was used, has expired, or never was one"));
    let first = browser.cookies.clone();
    browser.post("/login", &fields).await.expect(303);
    browser.get("/approvals").await.expect(200);
    let mut before = Browser { world: &world, cookies: first };
    before.get("/approvals").await.expect(401);
    world.advance(60);
    browser.post("/login", &fields).await.expect(401);
    browser.get("/approvals").await.expect(200);
    // Signing out ends the second tap, too.
    let rows = world.get("owner", "/v1/owners/me/sign-ins").await.expect(200);
    let live = rows["data"].as_array().unwrap().iter().filter(|row| row["status"] == "live");
    assert_eq!(live.count(), 1, "{rows}");
}

/// Two taps from a question's address to its answer, for a browser that has to be signed in first:
/// the sign-in leads on to it. It leads to questions of that owner and nowhere else.
#[tokio::test]
async fn a_sign_in_leads_on_to_the_question_that_was_asked_for() {
    let world = World::ready().await;
    let id = question(&world, "a", DEAR).await;
    let path = format!("/approvals/{id}");
    async fn place_after(browser: &mut Browser<'_>, owner: &str) -> String {
        let link = login_link(browser.world, owner).await;
        let page = browser.get(&link).await.expect(200);
        let (form, token) = (page.field("form"), page.field("token"));
        let fields = [("form", &*form), ("token", &*token)];
        let signed_in = browser.post("/login", &fields).await.expect(303);
        signed_in.headers["location"].to_str().unwrap().to_owned()
    }
    let mut browser = Browser::new(&world);
    let page = browser.get(&path).await.expect(401);
    assert!(page.html.contains("leads on to the question"), "{}", page.html);
    let cookie = page.headers["set-cookie"].to_str().unwrap();
    assert!(cookie.contains("HttpOnly; SameSite=Lax"), "{cookie}");
    assert_eq!(place_after(&mut browser, "owner").await, path);
    assert_eq!(browser.get(&path).await.expect(200).title(), "Approve $0.25?");
    browser.tap(&id, "approve").await.expect(303);
    // Once only.
    assert_eq!(place_after(&mut browser, "owner").await, "/approvals");

    // Somebody else's question, one that is none, and what a cookie could be made to hold.
    let mut other = Browser::new(&world);
    other.get(&path).await.expect(401);
    let stranger = stranger(&world).await;
    assert_eq!(place_after(&mut other, &stranger).await, "/approvals");
    for odd in ["//evil.example", "https://evil.example", "apr_1", "../login", "apr_x/../../v1"] {
        let mut browser = Browser::new(&world);
        browser.cookies.push(("earnest-next".to_owned(), odd.to_owned()));
        assert_eq!(place_after(&mut browser, "owner").await, "/approvals", "{odd}");
    }
    let mut browser = Browser::new(&world);
    let page = browser.get("/approvals/apr_1").await;
    assert!(page.headers.get("set-cookie").is_none(), "it is no id");
}

#[tokio::test]
async fn a_link_used_by_many_at_once_signs_one_in() {
    let world = World::ready().await;
    let link = login_link(&world, "owner").await;
    let token = link.split("token=").nth(1).unwrap();
    let tries = join_all((0..8).map(|_| {
        let (world, link) = (&world, &link);
        async move {
            let mut browser = Browser::new(world);
            let form = browser.get(link).await.field("form");
            let page = browser.post("/login", &[("form", &form), ("token", token)]).await;
            page.status.as_u16()
        }
    }));
    // Some may come too late for the page itself, which is as good.
    let outcomes: Vec<u16> = match tokio::time::timeout(crate::world::PATIENCE, tries).await {
        Ok(outcomes) => outcomes,
        Err(_) => panic!("signing in takes too long"),
    };
    assert_eq!(outcomes.iter().filter(|status| **status == 303).count(), 1, "{outcomes:?}");
}

#[tokio::test]
async fn a_link_expires_and_links_are_bounded() {
    let world = World::ready().await;
    let link = login_link(&world, "owner").await;
    let mut browser = Browser::new(&world);
    let form = browser.get(&link).await.expect(200).field("form");
    let token = link.split("token=").nth(1).unwrap().to_owned();
    world.advance(600);
    browser.get(&link).await.expect(401);
    browser.post("/login", &[("form", &form), ("token", &token)]).await.expect(401);

    let ask = || world.call("owner", Method::POST, "/v1/owners/me/login-links", None);
    for n in 0..10 {
        assert_eq!(ask().await.status, 201, "{n}");
    }
    let refused = ask().await;
    assert_eq!(refused.code(), "rate_limited");
    assert_eq!(refused.headers["retry-after"], "600");
    // The operator asks for the same owner, and goes past no limit.
    let path = format!("/v1/owners/{}/login-links", world.owner_id());
    let operator = world.call("operator", Method::POST, &path, None).await;
    assert_eq!(operator.code(), "rate_limited");
    world.advance(600);
    let link = world.call("operator", Method::POST, &path, None).await.expect(201);
    let mut browser = Browser::new(&world);
    let page = browser.get(link["url"].as_str().unwrap()).await.expect(200);
    let (form, token) = (page.field("form"), page.field("token"));
    browser.post("/login", &[("form", &form), ("token", &token)]).await.expect(303);
    let rows = world.get("owner", "/v1/owners/me/sign-ins").await.expect(200);
    assert_eq!(rows["data"][0]["asked_by"], "operator");
}

#[tokio::test]
async fn an_address_that_guesses_is_refused_for_a_while() {
    let world = World::ready().await;
    let mut browser = Browser::new(&world);
    let good = login_link(&world, "owner").await;
    let form = browser.get(&good).await.expect(200).field("form");
    for n in 0..30_u32 {
        let token = format!("{n:032x}");
        let page = match n % 2 {
            0 => browser.get(&format!("/login?token={token}")).await,
            _ => browser.post("/login", &[("form", &form), ("token", &token)]).await,
        };
        page.expect(401);
    }
    let refused = browser.get(&good).await.expect(429);
    assert!(refused.headers.contains_key("retry-after"));
    let token = good.split("token=").nth(1).unwrap();
    browser.post("/login", &[("form", &form), ("token", token)]).await.expect(429);
    world.advance(599);
    browser.get(&good).await.expect(429);
    world.advance(1);
    let fresh = login_link(&world, "owner").await;
    browser.get(&fresh).await.expect(200);
}

#[tokio::test]
async fn a_sign_in_ends_idle_old_and_at_its_owners_word() {
    let world = World::ready().await;
    let settings = &world.earnest.app.settings;
    let (idle, most) = (settings.sign_in_idle_seconds, settings.sign_in_most_seconds);
    let mut idles = Browser::of(&world, "owner").await;
    let mut used = Browser::of(&world, "owner").await;
    world.clock.advance(idle - 1);
    used.get("/approvals").await.expect(200);
    world.clock.advance(1);
    used.get("/approvals").await.expect(200);
    idles.get("/approvals").await.expect(401);
    let mut passed = idle;
    while passed + idle / 2 < most {
        world.clock.advance(idle / 2);
        passed += idle / 2;
        used.get("/approvals").await.expect(200);
    }
    world.clock.advance(most - passed);
    used.get("/approvals").await.expect(401);

    // Signing out ends this one; everywhere ends all, and the links that are out.
    let mut one = Browser::of(&world, "owner").await;
    let mut two = Browser::of(&world, "owner").await;
    let mut three = Browser::of(&world, "owner").await;
    let kept = one.cookies.clone();
    let form = one.get("/approvals").await.field("form");
    one.post("/sign-out", &[]).await.expect(401);
    one.get("/approvals").await.expect(200);
    assert_eq!(one.post("/sign-out", &[("form", &form)]).await.expect(200).title(), "Signed out");
    one.cookies = kept;
    one.get("/approvals").await.expect(401);
    two.get("/approvals").await.expect(200);
    let link = login_link(&world, "owner").await;
    let form = two.get("/approvals").await.field("form");
    two.post("/sign-out", &[("form", &form), ("everywhere", "yes")]).await.expect(200);
    three.get("/approvals").await.expect(401);
    Browser::new(&world).get(&link).await.expect(401);
    // The same by key, for who lost the phone.
    let mut four = Browser::of(&world, "owner").await;
    world.call("owner", Method::DELETE, "/v1/owners/me/sign-ins", None).await.expect(204);
    four.get("/approvals").await.expect(401);
    world.assert_sound();
}

#[tokio::test]
async fn signing_in_anew_ends_what_the_browser_was_before() {
    let world = World::ready().await;
    let other = stranger(&world).await;
    let mut browser = Browser::of(&world, "owner").await;
    let mut copy = Browser { world: &world, cookies: browser.cookies.clone() };
    let link = login_link(&world, &other).await;
    let page = browser.get(&link).await.expect(200);
    let (form, token) = (page.field("form"), page.field("token"));
    browser.post("/login", &[("form", &form), ("token", &token)]).await.expect(303);
    assert!(browser.get("/approvals").await.expect(200).html.contains("Stranger"));
    copy.get("/approvals").await.expect(401);
    // Of one owner at most twenty browsers are signed in; one more ends the oldest.
    let mut all = Vec::new();
    for n in 0..21 {
        all.push(Browser::of(&world, "owner").await);
        if n % 9 == 8 {
            world.advance(600);
        }
    }
    all[0].get("/approvals").await.expect(401);
    all[1].get("/approvals").await.expect(200);
    all[20].get("/approvals").await.expect(200);
}

#[tokio::test]
async fn https_has_host_cookies() {
    let config =
        Config { public_url: Some("https://earnest.example/".to_owned()), ..Config::simulated() };
    let world = World::with(config, SimConfig::default()).await;
    let link = login_link(&world, "owner").await;
    let path = link.strip_prefix("https://earnest.example").unwrap();
    let mut browser = Browser::new(&world);
    let page = browser.get(path).await.expect(200);
    let (form, token) = (page.field("form"), page.field("token"));
    let fields = [("form", &*form), ("token", &*token)];
    // An old browser that says no more than its origin.
    let evil = [("origin", "https://earnest.example.evil.example")];
    browser.post_from("/login", &fields, &evil).await.expect(401);
    let own = [("origin", "https://earnest.example")];
    let signed_in = browser.post_from("/login", &fields, &own).await.expect(303);
    for set in [&page.headers["set-cookie"], &signed_in.headers["set-cookie"]] {
        let set = set.to_str().unwrap();
        assert!(set.starts_with("__Host-earnest"), "{set}");
        assert!(set.contains("; Secure") && set.contains("; Path=/;") && !set.contains("Domain"));
    }
    browser.get("/approvals").await.expect(200);
    // A cookie that somebody else set beside ours makes neither count.
    let ours = browser.cookies.clone();
    browser.cookies.push(("__Host-earnest".to_owned(), "x".repeat(64)));
    browser.get("/approvals").await.expect(401);
    browser.cookies = ours;
    browser.cookies.retain(|(name, _)| name == "__Host-earnest");
    browser.cookies[0].0 = "earnest".to_owned();
    browser.get("/approvals").await.expect(401);
}

/// The API takes the cookie on the owner's own routes, for changes only with a sign of intent, and
/// never where another role is asked for or a lasting credential is made.
#[tokio::test]
async fn the_api_knows_the_browser_as_its_owner_only() {
    let world = World::ready().await;
    let browser = Browser::of(&world, "owner").await;
    let cookies: Vec<String> = browser.cookies.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let cookie = cookies.join("; ");
    let call = |method: Method, path: &str, body: Option<Value>, more: &[(&'static str, &str)]| {
        let mut headers: Vec<(&'static str, String)> = vec![("cookie", cookie.clone())];
        headers.extend(more.iter().map(|(k, v)| (*k, (*v).to_owned())));
        let (world, path) = (&world, path.to_owned());
        async move {
            let headers: Vec<(&str, &str)> = headers.iter().map(|(k, v)| (*k, &**v)).collect();
            world.call_with("", method, &path, body, &headers).await
        }
    };
    let read = call(Method::GET, "/v1/approvals", None, &[]).await;
    assert_eq!(
        (read.status.as_u16(), &read.headers["cache-control"]),
        (200, &"no-store".parse().unwrap())
    );
    let id = question(&world, "a", DEAR).await;
    let path = format!("/v1/approvals/{id}/decision");
    let yes = || Some(json!({ "decision": "approve" }));
    let version = ("if-match", "\"1\"");
    for wrong in [
        vec![version],
        vec![version, ("sec-fetch-site", "cross-site"), ("earnest-csrf", "1")],
        vec![version, ("origin", "https://evil.example"), ("earnest-csrf", "1")],
        vec![version, ("sec-fetch-site", "same-site")],
    ] {
        let refused = call(Method::POST, &path, yes(), &wrong).await;
        assert_eq!(
            (refused.status.as_u16(), refused.code()),
            (401, "unauthenticated"),
            "{wrong:?}"
        );
    }
    assert_eq!(status_of(&world, &id).await, "waiting");
    let counts = call(Method::POST, &path, yes(), &[version, ("earnest-csrf", "1")]).await;
    assert_eq!(counts.status, 200, "{}", counts.body);
    let here = [("sec-fetch-site", "same-origin")];
    assert_eq!(call(Method::POST, "/v1/owners/me/pause", None, &here).await.status, 204);
    // Other roles' routes are not there; a key beside the cookie counts alone.
    for path in ["/v1/owners", "/v1/intents/unknown", "/v1/sellers"] {
        assert_eq!(call(Method::GET, path, None, &here).await.status, 404, "{path}");
    }
    let quote = json!({ "quote": world.quote("/weather", 1), "max_price": 1, "request_id": "x" });
    assert_eq!(call(Method::POST, "/v1/authorize", Some(quote), &here).await.status, 404);
    let bearer = format!("Bearer {}x", world.key("owner"));
    let both = [("authorization", bearer.as_str())];
    assert_eq!(call(Method::GET, "/v1/approvals", None, &both).await.status, 401);
    // Nothing that would outlive the sign-in.
    let agent_keys = format!("/v1/agents/{}/keys", world.agent_id());
    let hook = json!({ "url": "https://receiver.example/" });
    for (path, body) in [
        ("/v1/owners/me/keys", Some(json!({}))),
        ("/v1/owners/me/login-links", None),
        (agent_keys.as_str(), Some(json!({}))),
        ("/v1/webhooks", Some(hook)),
    ] {
        let refused = call(Method::POST, path, body, &here).await;
        assert_eq!(refused.code(), "unauthenticated", "{path}");
    }
    world.call("owner", Method::DELETE, "/v1/owners/me/sign-ins", None).await.expect(204);
    assert_eq!(call(Method::GET, "/v1/approvals", None, &[]).await.code(), "unauthenticated");
}

/// Whoever rotates its keys because somebody else has one is rid of all that came of it: browsers that
/// were signed in with it, and links that wait to be used.
#[tokio::test]
async fn a_rotation_of_an_owners_keys_signs_everybody_out() {
    let world = World::ready().await;
    let made = async |key: &str, body: Value| {
        let path = "/v1/owners/me/keys";
        let made = world.call(key, Method::POST, path, Some(body)).await.expect(201);
        made["key"].as_str().unwrap().to_owned()
    };
    let stolen = made("owner", json!({ "label": "lost" })).await;
    let mut thief = Browser::of(&world, &stolen).await;
    let link = login_link(&world, &stolen).await;
    let others: Vec<String> = {
        let mut keys = Vec::new();
        for n in 0..3 {
            keys.push(made(&stolen, json!({ "label": format!("hidden {n}") })).await);
        }
        keys
    };
    thief.get("/approvals").await.expect(200);
    let fresh = made("owner", json!({ "label": "new", "revoke_others": true })).await;
    for gone in others.iter().chain([&stolen]) {
        assert_eq!(world.get(gone, "/v1/owners/me").await.code(), "unauthenticated");
    }
    let page = thief.get("/approvals").await;
    assert_ne!(page.status, 200, "the thief is signed in still");
    Browser::new(&world).get(&link).await.expect(401);
    let listed = world.get(&fresh, "/v1/owners/me/sign-ins").await.expect(200);
    let live = |row: &Value| row["status"] == "live";
    assert!(!listed["data"].as_array().unwrap().iter().any(live), "{listed}");
    // The owner goes on.
    Browser::of(&world, &fresh).await.get("/approvals").await.expect(200);
}

/// A stream that a browser opened ends when the browser is signed out.
#[tokio::test]
async fn a_stream_of_events_ends_with_the_sign_in() {
    let world = World::ready_but(&crate::events::silent()).await;
    let browser = Browser::of(&world, "owner").await;
    let cookies: Vec<String> = browser.cookies.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let request = world.http.get(format!("{}/v1/events", world.earnest.url()));
    let request = request.header("cookie", cookies.join("; "));
    let mut stream = request.header("accept", "text/event-stream").send().await.unwrap();
    assert_eq!(stream.status(), 200);
    world.call("owner", Method::DELETE, "/v1/owners/me/sign-ins", None).await.expect(204);
    let ended = async { while let Ok(Some(_)) = stream.chunk().await {} };
    tokio::time::timeout(crate::world::PATIENCE, ended).await.expect("it ends");
}
