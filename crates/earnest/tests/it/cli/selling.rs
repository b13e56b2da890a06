//! From an own server with a price to one capture and a receipt, by the commands of the README.

use super::{Ran, Shop, Stand};

pub async fn pay(stand: &Stand, shop: &Shop, id: &str) -> Ran {
    stand.run(&["pay", &shop.page(), "--max-price", "$0.25", "--request-id", id]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_server_is_sold_bought_from_and_settled() {
    let stand = Stand::start().await;
    let Some(shop) = stand.shop("$0.02").await else { return };

    let bought = pay(&stand, &shop, "page-1").await.expect(0);
    assert_eq!(bought.out, "it rains\n");
    assert!(bought.err.contains("paid $0.02: pur_"), "{:?}", bought.err);
    let quiet = ["pay", &shop.page(), "--max-price", "0.25", "--request-id", "page-2", "--quiet"];
    let quiet = stand.run(&quiet).await.expect(0);
    assert_eq!((quiet.out.as_str(), quiet.err.as_str()), ("it rains\n", ""));
    let page = shop.page();
    let shown = stand.json(&["pay", &page, "--max-price", "$0.25", "--request-id", "page-3"]).await;
    assert_eq!((&shown["body"], &shown["paid"]), (&"it rains\n".into(), &"yes".into()));
    assert_eq!((&shown["held_micros"], &shown["status"]), (&20_000.into(), &200.into()));

    // The same id is not charged twice; what is not delivered is not charged.
    pay(&stand, &shop, "page-1").await.expect(7);
    let missing = format!("{}/missing.txt", shop.origin);
    let missing = ["pay", &missing, "--max-price", "$0.25", "--request-id", "missing-1"];
    stand.run(&missing).await.expect(8);
    let free = format!("{}/.well-known/earnest-origin", shop.origin);
    let free = stand.run(&["pay", &free, "--max-price", "$0.25", "--request-id", "free-1"]).await;
    assert!(free.expect(0).err.contains("free"));
    let billed = |rows: &[serde_json::Value]| {
        rows.iter().filter(|row| row["status"] == "billed").count() == 3
            && rows.iter().any(|row| row["status"] == "released")
    };
    stand.until("three lines and one released", &["purchases"], billed).await;

    let tab = stand.json(&["tab", "status"]).await;
    assert_eq!((&tab["owed_micros"], &tab["lines"]), (&60_000.into(), &3.into()));
    let closed = stand.json(&["tab", "close", "--yes", "--wait", "30"]).await;
    assert_eq!(closed["status"], "closed");
    let settlement = &closed["last_settlement"];
    assert_eq!(settlement["captured_micros"], 60_000);
    let id = settlement["id"].as_str().unwrap();

    let dry = stand.json(&["tab", "close", "--dry-run"]).await;
    assert_eq!((&dry["would"], &dry["tab"]), (&"nothing".into(), &tab["id"]));
    // A receipt is checked where it stands, with the keys of the Earnest that is asked.
    let page = settlement["receipt_url"].as_str().unwrap();
    let words = stand.run(&["receipt", "verify", page]).await.expect(0);
    assert!(words.out.contains("is valid"), "{}", words.out);
    stand.run(&["receipt", "verify", &format!("{page}x")]).await.expect(3);
    stand.run(&["receipt", "verify", "http://192.0.2.1/r/x"]).await.expect(2);
    // Elsewhere there are no keys, and what to do is said; an address that is taken, too.
    let mut elsewhere = stand.command(&["tab", "status", "--data", "nowhere"]);
    elsewhere.env_remove("EARNEST_OWNER_KEY_FILE");
    let lost = super::run(elsewhere).await.expect(4);
    assert!(
        lost.err.contains("nowhere/dev-keys.json") && lost.err.contains("--data"),
        "{}",
        lost.err
    );
    let taken = stand.url.trim_start_matches("http://");
    let words = ["up", "--listen", taken, "--data", "second"];
    let refused = stand.run(&words).await.expect(1);
    assert!(
        refused.err.contains(taken) && refused.err.contains("--listen with"),
        "{}",
        refused.err
    );
    verify(&stand, id).await;
    let audited = stand.json(&["audit"]).await;
    assert_eq!((&audited["ok"], &audited["settlements"]), (&true.into(), &1.into()));
    let trail = stand.json(&["trail", "--settlement", id]).await;
    assert_eq!(trail["intents"][0]["status"], "done");

    assert!(shop.sell.stop().await.success());
    let folder = stand.stop().await;
    super::run(folder.command(&["audit"])).await.expect(0);
}

/// A receipt verifies offline, and one letter of it changed does not.
async fn verify(stand: &Stand, settlement: &str) {
    let receipt = stand.run(&["receipt", "get", settlement, "--quiet"]).await.expect(0);
    let jwks = stand.run(&["jwks"]).await.expect(0);
    let page = stand.run(&["receipt", "get", settlement, "--json"]).await.expect(0);
    std::fs::write(stand.path("receipt.jws"), &receipt.out).unwrap();
    std::fs::write(stand.path("page.json"), &page.out).unwrap();
    std::fs::write(stand.path("jwks.json"), &jwks.out).unwrap();
    // Offline: an address where nobody is asked.
    let offline = |file: &str, more: &[&str]| {
        let mut command = stand.command(&["receipt", "verify", file, "--jwks", "jwks.json"]);
        command.env("EARNEST_URL", "http://127.0.0.1:9").args(more);
        super::run(command)
    };
    let words = offline("receipt.jws", &[]).await.expect(0);
    assert!(words.out.contains("is valid") && words.out.contains("simulated: no real money"));
    let shown = offline("page.json", &["--json"]).await.expect(0).json();
    assert_eq!(
        (&shown["valid"], &shown["claims"]["captured_micros"]),
        (&true.into(), &60_000.into())
    );
    assert_eq!(shown["claims"]["lines"].as_array().unwrap().len(), 3);

    let [head, claims, signature] = receipt.out.trim().split('.').collect::<Vec<_>>()[..] else {
        panic!("{:?}", receipt.out)
    };
    let other = if claims.starts_with('e') { "f" } else { "e" };
    let altered = format!("{head}.{other}{}.{signature}", &claims[1..]);
    for (name, text) in [("altered.jws", altered.as_str()), ("none.jws", "x"), ("empty.jws", "")] {
        std::fs::write(stand.path(name), text).unwrap();
        let refused = offline(name, &["--json"]).await.expect(9);
        assert_eq!(refused.refusal(), "verification_failed", "{name}");
        assert_eq!(refused.json()["valid"], false, "{name}");
    }
    // The statement is right, and what the page shows beside it is not.
    let told = page.out.replacen("60000", "50000", 1);
    assert_ne!(told, page.out);
    std::fs::write(stand.path("told.json"), told).unwrap();
    offline("told.json", &["--json"]).await.expect(9);
    // Right, but under somebody else's keys.
    std::fs::write(stand.path("jwks.json"), r#"{"keys":[]}"#).unwrap();
    offline("receipt.jws", &[]).await.expect(9);
    std::fs::write(stand.path("jwks.json"), "no key set").unwrap();
    offline("receipt.jws", &[]).await.expect(2);
    offline("not-there.jws", &[]).await.expect(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_the_development_owner_can_pay_again() {
    let stand = Stand::start().await;
    let first = stand.json(&["owner", "show"]).await;
    assert_eq!(first["funded"], true);
    let stand = Stand::again(stand.stop().await).await;
    // The simulator is another one now, and so is what was vaulted with it.
    let Some(shop) = stand.shop("$0.10").await else { return };
    pay(&stand, &shop, "page-1").await.expect(0);
    stand.until("a line", &["purchases"], |rows| rows[0]["status"] == "billed").await;
    let closed = stand.json(&["tab", "close", "--yes", "--wait", "30"]).await;
    assert_eq!(closed["last_settlement"]["captured_micros"], 100_000);
    let methods = stand.rows(&["method", "list"]).await;
    let states: Vec<_> = methods.iter().map(|row| row["status"].as_str().unwrap()).collect();
    assert_eq!(states, ["active", "removed"]);
    stand.run(&["audit"]).await.expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_captures_money_needs_a_yes() {
    let stand = Stand::start().await;
    let Some(shop) = stand.shop("$0.10").await else { return };
    pay(&stand, &shop, "page-1").await.expect(0);
    stand.until("a line", &["purchases"], |rows| rows[0]["status"] == "billed").await;
    let tab = stand.json(&["tab", "status"]).await;
    let id = tab["id"].as_str().unwrap();
    for words in [vec!["tab", "close"], vec!["tab", "settle"], vec!["tab", "write-off", id]] {
        let asked: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        assert_eq!(stand.run(&asked).await.expect(2).refusal(), "usage", "{words:?}");
        let dry: Vec<&str> = words.iter().copied().chain(["--dry-run", "--json"]).collect();
        let dry = stand.run(&dry).await.expect(0).json();
        assert_eq!((&dry["dry_run"], &dry["owed_micros"]), (&true.into(), &100_000.into()));
    }
    let dry = ["pay", &shop.page(), "--max-price", "$0.25", "--request-id", "dry-1", "--dry-run"];
    let dry = stand.json(&dry).await;
    assert_eq!(dry["quote"]["amount_micros"], 100_000);
    assert_eq!(stand.rows(&["purchases"]).await.len(), 1, "nothing was bought");
    assert_eq!(stand.json(&["tab", "status"]).await, tab, "nothing was done");

    let settled = stand.json(&["tab", "settle", "--yes", "--wait", "30"]).await;
    assert_eq!(
        (&settled["status"], &settled["captured_micros"]),
        (&"captured".into(), &100_000.into())
    );
    // Nothing is left to settle.
    let again = stand.run(&["tab", "settle", "--yes", "--json"]).await.expect(7);
    assert_eq!(again.refusal(), "state_conflict");
}
