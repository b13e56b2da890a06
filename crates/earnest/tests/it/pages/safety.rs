//! What no page shows, loads or takes, and how each is built.

use super::*;

/// Nobody learns from an address what waits there: not without a session, not with another's.
#[tokio::test]
async fn an_address_alone_shows_and_changes_nothing() {
    let world = World::ready().await;
    let id = question(&world, "betrayed", DEAR).await;
    let path = format!("/approvals/{id}");
    let other = stranger(&world).await;
    let mut strange = Browser::of(&world, &other).await;
    let mut nobody = Browser::new(&world);
    let form = strange.get("/approvals").await.expect(200).field("form");
    let fields = [("form", &*form), ("version", "1"), ("decision", "approve")];
    let grant = format!("{path}/grant?version=1&cap=5&for=3600");
    let unknown = format!("/approvals/apr_{}", "7".repeat(26));

    let without = [nobody.get(&path).await.expect(401), nobody.get(&grant).await.expect(401)];
    let nowhere = nobody.get(&unknown).await.expect(401);
    assert_eq!(without[0].title(), nowhere.title());
    assert!(without[0].html.contains("earnest owner login"));
    nobody.post(&path, &fields).await.expect(401);
    let with = [
        strange.get(&path).await.expect(404),
        strange.get(&grant).await.expect(404),
        strange.post(&path, &fields).await.expect(404),
    ];
    assert_eq!(with[0].title(), strange.get(&unknown).await.expect(404).title());
    assert!(with[0].html.contains("nothing at this address for the owner who is signed in"));
    let pick = format!("{id}.1");
    let several = [("form", &*form), ("decision", "approve"), ("pick", &*pick)];
    let several = strange.post("/approvals", &several).await.expect(200);
    assert_eq!(several.title(), "0 approved, 1 not");
    for page in without.iter().chain(&with).chain([&several]) {
        for secret in ["betrayed", "0.25", "dev agent", "dev seller", &id] {
            assert!(!page.html.contains(secret), "{secret}: {}", page.html);
        }
    }
    assert_eq!(status_of(&world, &id).await, "waiting");
}

/// A form counts only with what its page gave the browser, and not from another site.
#[tokio::test]
async fn a_form_from_elsewhere_does_not_count() {
    let world = World::ready().await;
    let mut browser = Browser::of(&world, "owner").await;
    let id = question(&world, "a", DEAR).await;
    let path = format!("/approvals/{id}");
    let form = browser.get(&path).await.expect(200).field("form");
    let others = Browser::of(&world, "owner").await.get(&path).await.field("form");
    assert_ne!(form, others, "each sign-in has its own");
    let fields = |form| [("form", form), ("version", "1"), ("decision", "approve")];
    let upper = form.to_uppercase();
    for wrong in ["", "x", &others, &form[1..], &upper] {
        let page = browser.post(&path, &fields(wrong)).await.expect(401);
        assert!(page.html.contains("did not come from a page of this Earnest"));
    }
    let twice = [("form", &*form), ("form", &*form), ("version", "1"), ("decision", "approve")];
    browser.post(&path, &twice).await.expect(401);
    for (name, value) in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("sec-fetch-site", "none"),
        ("origin", "https://evil.example"),
        ("origin", "http://127.0.0.1:1"),
    ] {
        browser.post_from(&path, &fields(&form), &[(name, value)]).await.expect(401);
    }
    // Not as JSON or as text, which other sites' pages may send too.
    for kind in ["text/plain", "application/json"] {
        let url = format!("{}{path}", world.earnest.url());
        let body = format!("form={form}&version=1&decision=approve");
        let request = world.http.post(url).header("content-type", kind).body(body);
        browser.send(request).await.expect(415);
    }
    assert_eq!(status_of(&world, &id).await, "waiting");
    // With nothing but the proof, as from a browser that says nothing of sites, it counts.
    browser.post_from(&path, &fields(&form), &[]).await.expect(303);
}

/// Every page in every state: what it is sent with, that it holds no script, and how it is built.
#[tokio::test]
async fn every_page_is_safe_small_and_built_for_everybody() {
    let world = World::ready().await;
    let link = login_link(&world, "owner").await;
    let mut nobody = Browser::new(&world);
    let mut browser = Browser::of(&world, "owner").await;
    let (a, b) = (question(&world, "a", DEAR).await, question(&world, "b", DEAR).await);
    let path = format!("/approvals/{a}");
    let form = browser.get(&path).await.field("form");
    let mut pages = vec![
        ("sign in", nobody.get(&link).await.expect(200)),
        ("no link", nobody.get("/login").await.expect(200)),
        ("bad link", nobody.get("/login?token=x").await.expect(401)),
        ("nobody", nobody.get(&path).await.expect(401)),
        ("list", browser.get("/approvals").await.expect(200)),
        ("one", browser.get(&path).await.expect(200)),
        ("bad bounds", browser.get(&format!("{path}/grant?cap=x&for=1")).await.expect(422)),
        ("grant", browser.get(&format!("{path}/grant?version=1&cap=5&for=60")).await.expect(200)),
        ("foreign", browser.post(&path, &[]).await.expect(401)),
        ("not there", browser.get("/approvals/x").await.expect(404)),
        ("no such method", browser.post(&format!("{path}/grant"), &[]).await.expect(405)),
    ];
    browser.tap(&a, "approve").await.expect(303);
    let fields = [("form", &*form), ("version", "1"), ("decision", "approve")];
    pages.push(("approved", browser.get(&path).await.expect(200)));
    pages.push(("twice", browser.post(&path, &fields).await.expect(409)));
    let pick = format!("{b}.1");
    let fields = [("form", &*form), ("pick", &*pick), ("decision", "deny")];
    pages.push(("several", browser.post("/approvals", &fields).await.expect(200)));
    pages.push(("empty", browser.get("/approvals").await.expect(200)));
    world.advance(900);
    pages.push(("expired", browser.get(&path).await.expect(410)));
    pages.push(("out", browser.post("/sign-out", &[("form", &*form)]).await.expect(200)));
    let mut script_bytes = 0;
    for (name, page) in &pages {
        protected(name, page);
        accessible(name, page);
        script_bytes += scripts(&page.html);
        assert!(page.html.contains("Simulated money"), "{name}: no mode");
        assert!(page.html.len() < 16_000, "{name}: {} bytes", page.html.len());
    }
    assert!(script_bytes < 5_000, "{script_bytes} bytes of script");
    assert_eq!(scripts("<p onclick=\"x()\"><script>1</script>"), "x()1".len());
}

/// The bytes of script in a page: elements and handlers.
fn scripts(html: &str) -> usize {
    let within = |start: &str, end: &str| -> usize {
        let inner = html.split(start).skip(1).map(|part| part.split(end).next().unwrap());
        inner.map(|part| part.split_once('>').map_or(part, |(_, text)| text).len()).sum()
    };
    assert!(!html.contains("<script src"), "a script from elsewhere is not counted");
    let handlers = html.split(" on").skip(1).filter_map(|part| part.split_once("=\""));
    let handlers = handlers.filter(|(name, _)| name.bytes().all(|b| b.is_ascii_lowercase()));
    within("<script", "</script>")
        + handlers.map(|(_, code)| code.split('"').next().unwrap().len()).sum::<usize>()
}

fn protected(name: &str, page: &Page) {
    let header = |header: &str| {
        let value = page.headers.get(header).unwrap_or_else(|| panic!("{name}: no {header}"));
        value.to_str().unwrap().to_owned()
    };
    let policy = header("content-security-policy");
    for part in
        ["default-src 'none'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"]
    {
        assert!(policy.contains(part), "{name}: {policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("script-src"), "{name}: {policy}");
    let style = page.html.split("<style>").nth(1).unwrap().split("</style>").next().unwrap();
    let digest = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        <sha2::Sha256 as sha2::Digest>::digest(style),
    );
    assert!(policy.contains(&format!("style-src 'sha256-{digest}'")), "{name}: {policy}");
    assert!(!page.html.contains("style=\"") && !page.html.contains("http-equiv"), "{name}");
    assert_eq!(header("cache-control"), "no-store", "{name}");
    assert_eq!(header("referrer-policy"), "no-referrer", "{name}");
    assert_eq!(header("x-content-type-options"), "nosniff", "{name}");
    assert_eq!(header("content-type"), "text/html; charset=utf-8", "{name}");
}

fn accessible(name: &str, page: &Page) {
    page.title();
    for once in ["<html lang=\"en\">", "<main>", "</main>", "<title>", "<header>", "<footer>"] {
        assert_eq!(page.html.matches(once).count(), 1, "{name}: {once}");
    }
    // Every field that is seen has a label.
    for field in page.html.split("<input ").skip(1).map(|part| part.split('>').next().unwrap()) {
        let id = field.split("id=\"").nth(1).map(|part| part.split('"').next().unwrap());
        let labelled = id.is_some_and(|id| page.html.contains(&format!("for=\"{id}\"")));
        assert!(field.contains("type=\"hidden\"") || labelled, "{name}: {field}");
    }
}

/// What others wrote is text, wherever it stands.
#[tokio::test]
async fn hostile_names_are_text() {
    let world = World::ready().await;
    const EVIL: &str = "<img src=x onerror=alert(1)>\"'&";
    let owner = world.post("operator", "/v1/owners", json!({ "name": EVIL })).await.expect(201);
    let path = format!("/v1/owners/{}/keys", owner["id"].as_str().unwrap());
    let key = world.post("operator", &path, json!({})).await.expect(201);
    let key = key["key"].as_str().unwrap().to_owned();
    world.vault_as(&key).await;
    let agent = world.post(&key, "/v1/agents", json!({ "name": EVIL })).await.expect(201);
    let path = format!("/v1/agents/{}/keys", agent["id"].as_str().unwrap());
    let agent_key = world.post(&key, &path, json!({})).await.expect(201);
    let seller = world.post("operator", "/v1/sellers", json!({ "name": EVIL })).await.expect(201);
    let unit = earnest_core::admin::PutOrigin {
        seller: seller["id"].as_str().unwrap().parse().unwrap(),
        origin: "https://evil.example".to_owned(),
        proved: true,
    };
    world.earnest.app.store.submit(unit).await.unwrap();
    let mut quote = world.quote("/x", DEAR);
    quote["seller"] = seller["id"].clone();
    quote["listing"] = json!(EVIL);
    quote["url"] = json!("https://evil.example/?%3Cscript%3E&a=alert(1)");
    let body = json!({ "quote": quote, "max_price": DEAR, "request_id": "evil" });
    let waiting = world.post(agent_key["key"].as_str().unwrap(), "/v1/authorize", body).await;
    let waiting = waiting.expect(202);
    let id = waiting["approval_id"].as_str().unwrap();

    let link = login_link(&world, &key).await;
    let mut browser = Browser::of(&world, &key).await;
    let path = format!("/approvals/{id}");
    let grant = format!("{path}/grant?version=1&cap=5&for=60");
    let bad =
        format!("{path}/grant?version=1&for=60&cap=%22%3E%3Cimg%20src=x%20onerror=alert(1)%3E");
    let mut pages = Vec::new();
    for place in ["/approvals", &path, &grant, &bad, &link] {
        pages.push(browser.get(place).await);
    }
    browser.tap(id, "deny_and_pause").await.expect(303);
    pages.push(browser.get(&path).await);
    for page in &pages {
        let rest = page.html.replace("<style>", "");
        assert!(!rest.contains("<img") && !rest.contains("<script"), "{}", page.html);
        assert!(page.html.contains("&#60;img src=x onerror=alert(1)&#62;"), "{}", page.html);
        assert_eq!(scripts(&page.html), 0, "{}", page.html);
    }
}
