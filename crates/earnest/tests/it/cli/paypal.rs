//! What the operator does at PayPal, and vaulting by hand; against a simulator on its own.

use serde_json::{Value, json};

use super::{Running, Stand, earnest, run};

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_looks_and_a_webhook_is_registered_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = earnest(folder.path());
    command.args(["sim", "paypal", "--listen", "127.0.0.1:0"]);
    let mut sim = Running::start(command, &folder.path().join("sim.log")).unwrap();
    let url = sim.line().await;
    let settings = |more: &str| {
        let text = format!("[paypal]\nsimulator_url = \"{url}\"\n{more}");
        std::fs::write(folder.path().join("earnest.toml"), text).unwrap();
    };
    let command = |words: &[&str]| {
        let mut command = earnest(folder.path());
        command.args(words).arg("--json");
        run(command)
    };
    settings("");
    let hook = "http://127.0.0.1:9/webhooks/paypal";
    let first = command(&["paypal", "webhook", "register", hook]).await.expect(0).json();
    let again = command(&["paypal", "webhook", "register", hook]).await.expect(0).json();
    assert_eq!(first["id"], again["id"]);
    settings(&format!("webhook_id = {}", first["id"]));
    let checks = command(&["doctor", "paypal"]).await.expect(0).rows();
    let found = |name: &str| {
        let check = checks.iter().find(|check| check["name"] == name).unwrap();
        check["finding"].as_str().unwrap().to_owned()
    };
    assert_eq!((found("credentials"), found("webhook")), ("good".to_owned(), "good".to_owned()));

    let mut wrong = earnest(folder.path());
    wrong.args(["doctor", "paypal"]).env("EARNEST_PAYPAL_SECRET", "wrong");
    let wrong = run(wrong).await.expect(4);
    assert!(wrong.out.contains("BAD") && !wrong.out.contains("wrong"), "{:?}", wrong.out);
    assert!(sim.stop().await.success());

    // A simulator that up starts by itself registers itself.
    std::fs::write(folder.path().join("earnest.toml"), "").unwrap();
    let own = command(&["paypal", "webhook", "register", hook]).await.expect(2);
    assert_eq!(own.refusal(), "usage");
    std::fs::write(folder.path().join("earnest.toml"), "[paypal]\nmode = \"live\"\n").unwrap();
    assert_eq!(command(&["doctor", "paypal"]).await.expect(2).refusal(), "usage");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_to_pay_is_vaulted_by_hand() {
    let stand = Stand::start().await;
    let owner = stand.json(&["owner", "create", "acme"]).await;
    let key = owner["key"].as_str().unwrap();
    let as_acme = |words: &[&str]| {
        let mut command = stand.command(words);
        command.env("EARNEST_OWNER_KEY", key);
        run(command)
    };
    let begun = as_acme(&["method", "add"]).await.expect(0);
    let page = begun.out.trim();
    assert!(page.starts_with(&stand.simulator), "{page}");
    assert!(begun.err.contains("earnest method confirm vlt_"), "{:?}", begun.err);
    let method = begun.err.split_whitespace().find(|word| word.starts_with("vlt_")).unwrap();
    let waits = as_acme(&["method", "confirm", method, "--json"]).await.expect(0).json();
    assert_eq!(waits["status"], "awaiting_payer");

    let token = page.split("approval_session_id=").nth(1).unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let approve = http.post(format!("{}/_sim/approve", stand.simulator));
    let approved = approve.json(&json!({ "token": token })).send().await.unwrap();
    assert!(approved.status().is_success());
    let active = as_acme(&["method", "confirm", method, "--json"]).await.expect(0).json();
    assert_eq!(active["status"], "active");
    let trail = as_acme(&["trail", "--method", method, "--json"]).await.expect(0).json();
    assert_eq!(trail["intents"].as_array().map(Vec::len), Some(2));

    // Removing it stops what relies on it, so it takes a yes.
    as_acme(&["method", "remove", method]).await.expect(2);
    as_acme(&["method", "remove", method, "--yes"]).await.expect(0);
    let rows = as_acme(&["method", "list", "--json"]).await.expect(0).rows();
    assert_eq!(
        rows.iter().map(|row| &row["status"]).collect::<Vec<_>>(),
        [&Value::from("removed")]
    );
}
