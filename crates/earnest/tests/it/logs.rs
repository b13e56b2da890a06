//! The log as programs read it: one JSON object a line, each with the request or job it belongs to,
//! none with a secret; and that the search for secrets finds one that is planted.

use earnest::watch::{LogFormat, subscriber};
use reqwest::Method;
use serde_json::{Value, json};
use tracing_subscriber::EnvFilter;

use crate::secrets::{Logs, Secret, alone, assert_none};
use crate::shop::Shop;
use crate::world::World;

/// As `earnest up` writes it, for the whole process: tasks that others start log too. So the test is
/// [`alone`] in it.
fn keep() -> Logs {
    let logs = Logs::default();
    // Everything of ours and more than anybody switches on of others'.
    let filter = EnvFilter::new("trace");
    let log = subscriber(LogFormat::Json, filter, false, logs.clone());
    tracing::subscriber::set_global_default(log).expect("no other subscriber");
    logs
}

fn lines(logs: &Logs) -> Vec<Value> {
    logs.text().lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[tokio::test]
async fn every_line_is_an_object_that_names_its_request() {
    if !alone("logs::every_line_is_an_object_that_names_its_request") {
        return;
    }
    let logs = keep();
    let world = World::ready().await;
    let mut secrets: Vec<Secret> = ["operator", "owner", "agent", "seller"]
        .map(|role| (format!("the {role}'s key"), world.key(role)))
        .to_vec();
    let voucher = world.buy(100_000, "one").await;
    secrets.push(("a voucher".to_owned(), voucher.clone()));
    world.report(&voucher, "redeemed").await;
    world.authorize(world.quote("/dear", 9_000_000), "no").await.expect(403);
    let hook = json!({ "url": "http://127.0.0.1:9/hear", "scheme": "v1" });
    let made = world.post("owner", "/v1/webhooks", hook).await.expect(201);
    secrets.push(("a webhook's secret".to_owned(), made["secret"].as_str().unwrap().to_owned()));
    let link = crate::pages::login_link(&world, "owner").await;
    let token = link.split("token=").nth(1).unwrap().to_owned();
    let mut browser = crate::pages::Browser::of(&world, "owner").await;
    browser.get(&link).await.expect(200);
    secrets.push(("a sign-in token".to_owned(), token));
    let shop = Shop::open().await;
    secrets.extend(crate::mcp::secrets_of_a_purchase(&shop).await);
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    world.settle_down().await;
    let answer = world.get("owner", "/v1/tabs/tab_none").await;
    let trace = answer.headers["trace-id"].to_str().unwrap().to_owned();
    assert_eq!(answer.body["trace_id"], trace.as_str());

    // One line of ours for every answer, which names it; by pattern, not by path.
    let lines = lines(&logs);
    let answered: Vec<&Value> = lines.iter().filter(|line| line["message"] == "answered").collect();
    assert!(answered.len() > 10, "{}", answered.len());
    for line in &answered {
        assert_eq!(line["target"], "earnest::api");
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
        assert!(line["span"]["trace"].as_str().unwrap().starts_with("trc_"), "{line}");
        assert!(line["span"]["route"].is_string() && line["took_ms"].is_number(), "{line}");
    }
    let mine: Vec<&&Value> =
        answered.iter().filter(|line| line["span"]["trace"] == trace.as_str()).collect();
    assert_eq!(mine.len(), 1);
    assert_eq!(
        (&mine[0]["status"], &mine[0]["span"]["route"]),
        (&json!(404), &json!("/v1/tabs/{id}"))
    );

    // What is logged within a request says which: here PayPal's call, made for whoever asked.
    let within = lines.iter().filter(|line| line["message"] == "paypal call");
    assert!(within.clone().count() >= 2);
    let asked = within.filter(|line| line["span"]["trace"].is_string()).count();
    assert!(asked >= 1, "a call that a request made names it");

    let text = logs.text();
    assert_none(&secrets, text.as_bytes(), "the log");
}

/// The control of the searches: a secret that is logged on purpose is found where it is not taken
/// out, and is taken out where Earnest writes its log.
#[test]
fn a_planted_leak_is_found_and_taken_out() {
    const KEY: &str = "ek_owner_0123456789abcdef0123456789abcdef";
    const MAIL: &str = "very.private.payer@example.com";
    const VOUCHER: &str = "eyJhbGciOiJFZERTQSJ9.eyJqdGkiOiJ2Y2gifQ.c2lnbmF0dXJl";
    let secrets: Vec<Secret> = [("a key", KEY), ("an address", MAIL), ("a voucher", VOUCHER)]
        .map(|(what, secret)| (what.to_owned(), secret.to_owned()))
        .to_vec();
    let leak = || {
        let error = std::io::Error::other(format!("cannot send to {MAIL}"));
        tracing::warn!(key = KEY, %error, "authorization: Tab {VOUCHER}");
        tracing::error!(headers = ?[("authorization", format!("Bearer {KEY}"))], "refused");
        let _within = tracing::error_span!("job", of = MAIL).entered();
        tracing::error!("a span leaks too");
    };
    for format in [LogFormat::Json, LogFormat::Text] {
        let logs = Logs::default();
        let log = subscriber(format, EnvFilter::new("info"), false, logs.clone());
        tracing::subscriber::with_default(log, leak);
        let text = logs.text();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains("a span leaks too") && text.contains("[redacted]"), "{text}");
        assert_none(&secrets, text.as_bytes(), "the log");
    }
    // Without that, each of them is found.
    let logs = Logs::default();
    let plain = tracing_subscriber::fmt().with_ansi(false).with_writer(logs.clone()).finish();
    tracing::subscriber::with_default(plain, leak);
    let text = logs.text();
    for secret in secrets {
        let found = std::panic::catch_unwind(|| {
            assert_none(std::slice::from_ref(&secret), text.as_bytes(), "the log");
        });
        assert!(found.is_err(), "{} is not found", secret.0);
    }
}
