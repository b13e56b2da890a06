//! Whose address is it? A quote counts only under an origin that its seller proved, in the one
//! spelling of that address; and nobody makes Earnest call where it must not.

use earnest::config::Config;
use earnest::serve::{Running, Start};
use earnest_core::admin::PutOrigin;
use earnest_paypal::Mode;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::world::{World, fresh_id};

async fn proved(world: &World, origin: &str) {
    let seller = world.seller_id().parse().unwrap();
    let unit = PutOrigin { seller, origin: origin.to_owned(), proved: true };
    world.earnest.app.store.submit(unit).await.unwrap();
}

fn quote_for(world: &World, url: &str) -> Value {
    let mut quote = world.quote("/weather", 10_000);
    quote["url"] = json!(url);
    quote
}

#[tokio::test]
async fn a_quote_for_somebody_elses_origin_is_refused_in_every_spelling() {
    let world = World::ready().await;
    proved(&world, "https://api.example").await;
    let (money, calls) = (world.money(), world.paypal_calls());
    let long = format!("https://api.example/{}", "x".repeat(2048));
    let invalid = [
        // Another spelling of what was proved.
        "https://API.example/x",
        "HTTPS://api.example/x",
        "https://api.example:443/x",
        "https://api.example:0443/x",
        "https://api.example",
        "https://api.example?x=1",
        "https://api%2eexample/x",
        "https://%61pi.example/x",
        "https://api。example/x",
        "https://ａpi.example/x",
        "https://api.example/a/../x",
        "https://api.example/a/%2e%2e/x",
        "https://api.example/./x",
        "https://api.example\\x",
        "https:/api.example/x",
        "https:api.example/x",
        "https:///api.example/x",
        "https://api.example/x#y",
        "https://api.example/x y",
        " https://api.example/x",
        "https://api.example/x\n",
        "https://api.exam\tple/x",
        "https://api.example/\u{0}",
        "https://api.example/\u{e9}",
        // Who is meant is in doubt.
        "https://api.example@evil.example/x",
        "https://api.example:80@evil.example/x",
        "https://user:secret@api.example/x",
        "https://@api.example/x",
        "https://evil.example\\@api.example/x",
        "https://\u{430}pi.example/x",
        // Loopback by its other names.
        "http://0x7f.1:9/x",
        "http://2130706433:9/x",
        "http://017700000001:9/x",
        "http://127.1:9/x",
        "http://127.0.0.1.:9/x",
        "http://127.0.0.01:9/x",
        "http://[::ffff:127.0.0.1]:9/x",
        "http://[::ffff:7f00:1]:9/x",
        "http://[0:0:0:0:0:0:0:1]:9/x",
        "http://127.0.0.1:9.evil.example/x",
        "http://127.0.0.1:99999/x",
        // Plain http elsewhere, other schemes, nothing.
        "http://api.example/x",
        "http://api.example:443/x",
        "ws://api.example/x",
        "ftp://api.example/x",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/plain,x",
        "//api.example/x",
        "/x",
        "api.example/x",
        "https://",
        "https:///",
        "https://[::1",
        "",
        &long,
    ];
    let mark = world.mark();
    for url in invalid {
        let answer = world.authorize(quote_for(&world, url), "origin").await;
        assert_eq!(answer.refusal(), "url_invalid", "{url:?}: {}", answer.body);
        assert_eq!(answer.status, 400);
    }
    world.assert_untouched(mark, "a URL that is not allowed");

    let others = [
        "https://evil.example/x",
        "https://api.example.evil.example/x",
        "https://evil.example/api.example/x",
        "https://evil.example/?https://api.example/x",
        "https://api.example./x",
        "https://sub.api.example/x",
        "https://pi.example/x",
        "https://example/x",
        "https://api.example:8443/x",
        "https://xn--pi-7kc.example/x",
        "https://127.0.0.1:9/x",
        "http://127.0.0.1:10/x",
        "http://127.0.0.1/x",
        "http://127.0.0.2:9/x",
        "http://localhost:9/x",
        "http://[::1]:9/x",
    ];
    for (n, url) in others.iter().enumerate() {
        let answer = world.authorize(quote_for(&world, url), &format!("other-{n}")).await;
        assert_eq!(
            answer.refusal(),
            "policy_denied/merchant_not_allowed",
            "{url}: {}",
            answer.body
        );
        assert_eq!(answer.status, 403);
    }
    assert_eq!(world.money(), money, "money moved");
    assert_eq!(world.paypal_calls(), calls, "PayPal was called");
    // Refused purchases are rows too, and hold nothing.
    let rows = world.get("owner", "/v1/purchases?limit=500").await.expect(200);
    assert_eq!(rows["data"].as_array().unwrap().len(), others.len());
    assert!(rows["data"].as_array().unwrap().iter().all(|row| row["status"] == "denied"));

    for url in ["https://api.example/x", "https://api.example/x?y=%20z&z=..", "http://127.0.0.1:9/"]
    {
        world
            .authorize(quote_for(&world, url), &format!("good {url}").replace(' ', "-"))
            .await
            .expect(201);
    }
}

/// The same quote in the name of another seller: one that proved nothing, one that only registered
/// the origin, and one that is not there.
#[tokio::test]
async fn a_quote_in_another_sellers_name_is_refused() {
    let world = World::ready().await;
    let other = world.post("operator", "/v1/sellers", json!({ "name": "Other" })).await.expect(201);
    let other = other["id"].as_str().unwrap().to_owned();
    let money = world.money();
    let forged = |seller: &str| {
        let mut quote = world.quote("/weather", 10_000);
        quote["seller"] = json!(seller);
        quote
    };
    let refused = |answer: crate::world::Answer| {
        assert_eq!(answer.refusal(), "policy_denied/merchant_not_allowed", "{}", answer.body);
    };
    refused(world.authorize(forged(&other), "a").await);
    let unit = PutOrigin {
        seller: other.parse().unwrap(),
        origin: crate::world::ORIGIN.to_owned(),
        proved: false,
    };
    world.earnest.app.store.submit(unit).await.unwrap();
    refused(world.authorize(forged(&other), "b").await);
    refused(world.authorize(forged(&fresh_id("sel")), "c").await);
    for odd in
        ["", "sel_", "sel_x", "own_00000000000000000000000001", "SEL_00000000000000000000000001"]
    {
        let answer = world.authorize(forged(odd), "d").await;
        assert_eq!(answer.refusal(), "request_malformed", "{odd}");
    }
    assert_eq!(world.money(), money);
}

#[tokio::test]
async fn expired_and_endless_quotes_are_refused() {
    let world = World::ready().await;
    let money = world.money();
    let now = world.clock.now();
    let quote = |seconds: i64| {
        let mut quote = world.quote("/weather", 10_000);
        quote["expires_at"] = json!(earnest_core::time::after(now, seconds));
        quote
    };
    for seconds in [0, -1, -300, -100_000_000] {
        let answer = world.authorize(quote(seconds), &format!("e{seconds}")).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (402, "quote_expired"), "{seconds}");
        assert!(answer.body["next"].as_str().unwrap().contains("fresh quote"));
        // Not a challenge: nothing here is to be paid to us.
        assert!(!answer.headers.contains_key("www-authenticate"));
    }
    for seconds in [24 * 3600 + 1, 10 * 365 * 24 * 3600] {
        let answer = world.authorize(quote(seconds), "endless").await;
        assert_eq!(answer.refusal(), "validation_failed", "{seconds}");
    }
    for odd in [
        "",
        "2026-11-30",
        "tomorrow",
        "2026-11-30T09:00:00",
        "1764493200",
        "9999-12-31T23:59:60Z",
        "-1",
    ] {
        let mut quote = world.quote("/weather", 10_000);
        quote["expires_at"] = json!(odd);
        let answer = world.authorize(quote, "odd").await;
        assert_eq!(answer.refusal(), "request_malformed", "{odd:?}: {}", answer.body);
    }
    assert_eq!(world.money(), money);
    // The refusal left the id free: a fresh quote under the same id is bought.
    world.authorize(quote(1), "e0").await.expect(201);
}

#[tokio::test]
async fn what_may_not_be_called_may_not_be_registered() {
    let world = World::new().await;
    let mark = world.mark();
    let register = |origin: &str| {
        let body = json!({ "origin": origin });
        async { world.post("seller", "/v1/sellers/me/origins", body).await }
    };
    for origin in [
        "https://10.0.0.1",
        "https://172.16.5.4",
        "https://192.168.1.1:8443",
        "https://169.254.169.254",
        "https://0xa9fea9fe",
        "https://2852039166",
        "https://0251.0376.0251.0376",
        "https://169.254.43518",
        "https://100.64.0.1",
        "https://0.0.0.0",
        "https://0",
        "https://255.255.255.255",
        "https://224.0.0.1",
        "https://[::]",
        "https://[fd00::1]",
        "https://[fe80::1]",
        "https://[ff02::1]",
        "https://[::ffff:10.0.0.1]",
        "https://[::ffff:169.254.169.254]",
        "https://[::10.0.0.1]",
        "https://[64:ff9b::a00:1]",
        "https://[2002:a00:1::]",
        "https://localhost.",
        "https://a.localhost",
        "https://printer.local",
        "https://metadata.google.internal",
        "https://metadata.google.internal.",
    ] {
        for route in ["origins", "origins/prove"] {
            let path = format!("/v1/sellers/me/{route}");
            let answer = world.post("seller", &path, json!({ "origin": origin })).await;
            assert_eq!(answer.refusal(), "target_forbidden", "{origin}: {}", answer.body);
            assert_eq!(answer.status, 403);
        }
    }
    for origin in [
        "",
        " ",
        "api.example",
        "http://api.example",
        "ftp://api.example",
        "https://api.example/x",
        "https://api.example?x",
        "https://api.example/#x",
        "https://u@api.example",
        "https://:p@api.example",
        "https://",
        "https://a b",
        "https://api.example\n",
        "javascript:1",
        "https://[::1",
        "https://api.example:99999",
        "*",
        "https://*",
        "https://*.example",
    ] {
        let answer = register(origin).await;
        // A star is a letter to the URL standard: alone it is a name of the own network, else one
        // that leads nowhere and is never proved.
        if origin == "https://*" {
            assert_eq!(answer.refusal(), "target_forbidden", "{}", answer.body);
            continue;
        }
        if origin == "https://*.example" && answer.status == 200 {
            continue;
        }
        assert_eq!(answer.refusal(), "url_invalid", "{origin:?}: {}", answer.body);
    }
    let stars = |name: &String| name == "seller.put_origin";
    let since = world.recorded_since(mark);
    assert!(since.iter().all(stars), "{since:?}");

    // One spelling is kept, whichever was sent.
    for spelling in ["https://api.example", "https://API.example:443/", "HTTPS://api.EXAMPLE"] {
        let row = register(spelling).await.expect(200);
        let kept = row["origins"].as_array().unwrap();
        let same = kept.iter().filter(|known| known["origin"] == "https://api.example").count();
        assert_eq!(same, 1, "{row}");
        assert!(kept.iter().all(|known| known["proved_at"].is_null()), "registered is not proved");
    }
}

/// A server that gives one answer to everybody, and counts them.
async fn says(answer: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let n = stream.read(&mut head).await.unwrap_or(0);
            let head = String::from_utf8_lossy(&head[..n]).to_lowercase();
            // Nothing of ours goes to a stranger's server.
            assert!(!head.contains("authorization") && !head.contains("cookie"), "{head}");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    origin
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn an_origin_is_proved_by_its_own_server_only() {
    let world = World::new().await;
    let seller = world.seller_id();
    let elsewhere = says(ok(&seller)).await;
    let moved = format!(
        "HTTP/1.1 302 Found\r\nlocation: {elsewhere}/.well-known/earnest-origin\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    let cases = [
        (says(ok("")).await, "validation_failed"),
        (says(ok("sel_00000000000000000000000001\n")).await, "validation_failed"),
        (says(ok(&format!("x{seller}\n{seller}x\n"))).await, "validation_failed"),
        (says(ok(&seller.to_uppercase())).await, "validation_failed"),
        (says(moved).await, "upstream_unreachable"),
        (
            says("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_owned()).await,
            "upstream_unreachable",
        ),
        (says(ok(&format!("{}{seller}", "\n".repeat(17 * 1024)))).await, "upstream_unreachable"),
        (
            says("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_owned()).await,
            "upstream_unreachable",
        ),
        (says("garbage\r\n\r\n".to_owned()).await, "upstream_unreachable"),
        ("http://127.0.0.1:9".to_owned(), "upstream_unreachable"),
    ];
    let mark = world.mark();
    for (origin, code) in cases {
        let body = json!({ "origin": origin });
        let answer = world.post("seller", "/v1/sellers/me/origins/prove", body).await;
        assert_eq!(answer.refusal(), code, "{}", answer.body);
    }
    world.assert_untouched(mark, "an origin that is not proved");
    let good =
        says(ok(&format!("# ours\r\nsel_00000000000000000000000001\r\n  {seller}  \r\n"))).await;
    let body = json!({ "origin": good });
    let row = world.post("seller", "/v1/sellers/me/origins/prove", body).await.expect(200);
    assert_eq!(row["origins"][0]["origin"], json!(good));
    assert!(row["origins"][0]["proved_at"].is_string());
    // In somebody else's name nothing is proved, not even by the operator's word alone.
    let other = world.post("operator", "/v1/sellers", json!({ "name": "Other" })).await.expect(201);
    let path = format!("/v1/sellers/{}/origins/prove", other["id"].as_str().unwrap());
    let answer = world.post("operator", &path, json!({ "origin": good })).await;
    assert_eq!(answer.refusal(), "validation_failed");
    let answer = world.post("seller", &path, json!({ "origin": good })).await;
    assert_eq!(answer.refusal(), "not_found");
}

/// The job asks again: whoever no longer lists a seller does not stand for it.
#[tokio::test]
async fn origins_are_asked_again_every_day() {
    let world = World::ready().await;
    let app = &world.earnest.app;
    let seller = world.seller_id();
    let kept = says(ok(&seller)).await;
    let sold = says(ok("sel_00000000000000000000000001")).await;
    for origin in [&kept, &sold, &"http://127.0.0.1:9".to_owned()] {
        proved(&world, origin).await;
    }
    let ask = |origin: &str, id: &str| {
        let quote = quote_for(&world, &format!("{origin}/weather"));
        let (world, id) = (&world, id.to_owned());
        async move { world.authorize(quote, &id).await }
    };
    let mark = world.mark();
    earnest::jobs::origins(app).await.unwrap();
    world.assert_untouched(mark, "nothing is due on the first day");
    world.advance(24 * 3600);
    earnest::jobs::origins(app).await.unwrap();
    assert_eq!(ask(&sold, "a").await.refusal(), "policy_denied/merchant_not_allowed");
    ask(&kept, "b").await.expect(201);
    // One that gives no answer counts for a while.
    ask("http://127.0.0.1:9", "c").await.expect(201);
    world.advance(6 * 24 * 3600);
    earnest::jobs::origins(app).await.unwrap();
    world.advance(1);
    let silent = ask("http://127.0.0.1:9", "d").await;
    assert_eq!(silent.refusal(), "policy_denied/merchant_not_allowed");
    ask(&kept, "e").await.expect(201);
}

/// With real money, loopback is as forbidden as any other private address, and plain http everywhere.
#[tokio::test]
async fn outside_of_simulation_loopback_is_forbidden_too() {
    let config = Config {
        mode: Mode::Sandbox,
        client_id: Some("id".to_owned()),
        secret: Some(earnest_paypal::Secret::new("secret")),
        ..Config::simulated()
    };
    let start = Start { jobs: false, ..Start::default() };
    let running = Running::start(config, start).await.unwrap();
    assert!(running.dev.is_none(), "development keys belong to simulation");
    let app = &running.app;
    let key = |principal| async move {
        earnest::flow::party::add_key(app, principal, None, "test")
            .await
            .unwrap()
            .secret
            .expose()
            .to_owned()
    };
    let operator = key(earnest_core::party::Principal::Operator).await;
    let http = crate::world::client();
    let post = |key: String, path: &str, body: Value| {
        let url = format!("{}{path}", running.url());
        crate::world::answer(http.request(Method::POST, url).bearer_auth(key).json(&body))
    };
    let seller = post(operator.clone(), "/v1/sellers", json!({ "name": "Shop" })).await.expect(201);
    let seller = seller["id"].as_str().unwrap().parse().unwrap();
    let seller = key(earnest_core::party::Principal::Seller(seller)).await;
    for (origin, code) in [
        ("http://127.0.0.1:9", "target_forbidden"),
        ("http://localhost:9", "target_forbidden"),
        ("http://[::1]:9", "target_forbidden"),
        ("https://127.0.0.1:9", "target_forbidden"),
        ("https://2130706433", "target_forbidden"),
        ("https://0x7f.1", "target_forbidden"),
        ("https://127.1", "target_forbidden"),
        ("https://[::1]", "target_forbidden"),
        ("https://[::ffff:127.0.0.1]", "target_forbidden"),
        ("https://[::ffff:7f00:1]", "target_forbidden"),
        ("https://localhost", "target_forbidden"),
    ] {
        for route in ["origins", "origins/prove"] {
            let path = format!("/v1/sellers/me/{route}");
            let answer = post(seller.clone(), &path, json!({ "origin": origin })).await;
            assert_eq!(answer.refusal(), code, "{origin}: {}", answer.body);
        }
    }
    running.stop().await;
}
