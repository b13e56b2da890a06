//! Exit codes and problem documents: a script can tell what happened without reading prose.

use super::selling::pay;
use super::{Stand, earnest, run};

#[tokio::test(flavor = "multi_thread")]
async fn mon_02_a_bad_amount_has_its_code_on_every_command() {
    let stand = Stand::start().await;
    let owner = stand.json(&["owner", "show"]).await["id"].as_str().unwrap().to_owned();
    let before = stand.json(&["policy", "show"]).await;
    for (text, code) in [
        ("0E+1", "amount_invalid"),
        ("5e-7", "amount_invalid"),
        ("1e999", "amount_invalid"),
        ("5.0e3", "amount_invalid"),
        ("1,5", "amount_invalid"),
        ("", "amount_invalid"),
        ("-1", "amount_not_positive"),
        ("0", "amount_not_positive"),
        ("9007199254.740993", "amount_out_of_range"),
    ] {
        let rule = format!("GET /x={text}");
        let url = "http://127.0.0.1:9/x";
        for words in [
            vec!["pay", url, "--request-id", "x", "--max-price", text],
            vec![
                "sell",
                "--upstream",
                "http://127.0.0.1:9",
                "--listen",
                "127.0.0.1:0",
                "--price",
                &rule,
            ],
            vec!["policy", "set", "--per-call", text],
            vec!["policy", "set", "--tab-limit", text],
            vec!["approvals", "grant", "apr_1", "--for", "1h", "--cap", text],
        ] {
            let words: Vec<&str> = words.into_iter().chain(["--json"]).collect();
            let refused = stand.run(&words).await.expect(2);
            assert_eq!((refused.refusal().as_str(), refused.out.as_str()), (code, ""), "{words:?}");
        }
        // Earnest itself refuses this one.
        let refused = stand.run(&["owner", "credit", &owner, "--line", text, "--json"]).await;
        assert_eq!(refused.expect(2).refusal(), code, "credit {text}");
    }
    assert_eq!(stand.json(&["policy", "show"]).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_says_what_happened() {
    let stand = Stand::start().await;
    let Some(shop) = stand.shop("$0.10").await else { return };
    let refused = |words: Vec<String>, code: i32| {
        let stand = &stand;
        async move {
            let words: Vec<&str> = words.iter().map(String::as_str).chain(["--json"]).collect();
            let ran = stand.run(&words).await.expect(code);
            assert_eq!(ran.out, "", "{words:?}");
            ran.refusal()
        }
    };
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let buy = |id: &str, max: &str| {
        words(&format!("pay {} --request-id {id} --max-price {max}", shop.page()))
    };

    assert_eq!(refused(buy("a", "$0.05"), 5).await, "price_above_max");
    stand.run(&["policy", "set", "--per-call", "$0.05"]).await.expect(0);
    assert_eq!(refused(buy("b", "$0.25"), 5).await, "policy_denied/per_call_cap");
    stand.run(&["policy", "set", "--per-call", "$1", "--approve-above", "$0.05"]).await.expect(0);
    assert_eq!(refused(buy("c", "$0.25"), 6).await, "approval_required");
    assert_eq!(
        refused(words("pay ftp://a/ --request-id d --max-price $1"), 2).await,
        "url_invalid"
    );
    assert_eq!(
        refused(words("pay http://127.0.0.1:9/ --request-id e --max-price $1"), 8).await,
        "seller_unreachable"
    );
    assert_eq!(refused(words("tab status tab_00000000000000000000000001"), 3).await, "not_found");
    assert_eq!(refused(words("tab status ../owners"), 3).await, "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_come_from_files_and_the_environment_only() {
    let stand = Stand::start().await;
    let key = |name: &str| {
        let text = std::fs::read_to_string(stand.path("data/dev-keys.json")).unwrap();
        let keys: serde_json::Value = serde_json::from_str(&text).unwrap();
        keys[name]["key"].as_str().unwrap().to_owned()
    };
    let without = |words: &[&str]| {
        let mut command = stand.command(words);
        command.env("EARNEST_DATA", stand.path("elsewhere")).arg("--json");
        command
    };
    // No key at all, a wrong one, one of another role.
    let ran = run(without(&["owner", "show"])).await.expect(4);
    assert_eq!(ran.refusal(), "unauthenticated");
    let mut wrong = without(&["owner", "show"]);
    wrong.env("EARNEST_OWNER_KEY", "ek_owner_0000");
    assert_eq!(run(wrong).await.expect(4).refusal(), "unauthenticated");
    let mut other = without(&["owner", "show"]);
    other.env("EARNEST_OWNER_KEY", key("seller"));
    assert_eq!(run(other).await.expect(3).refusal(), "not_found");
    let mut odd = without(&["owner", "show"]);
    odd.env("EARNEST_OWNER_KEY", "ek_owner_ä b");
    assert_eq!(run(odd).await.expect(4).refusal(), "unauthenticated");

    let mut right = without(&["owner", "show"]);
    right.env("EARNEST_OWNER_KEY", key("owner"));
    assert_eq!(run(right).await.expect(0).json()["name"], "dev owner");
    std::fs::write(stand.path("owner.key"), format!("{}\n", key("owner"))).unwrap();
    let mut file = without(&["owner", "show"]);
    // A file is the more careful wish.
    file.env("EARNEST_OWNER_KEY", "ek_owner_0000").env("EARNEST_OWNER_KEY_FILE", "owner.key");
    assert_eq!(run(file).await.expect(0).json()["name"], "dev owner");

    // A key is not shown to everybody in between.
    let mut plain = stand.command(&["owner", "show", "--url", "http://earnest.example", "--json"]);
    plain.env("EARNEST_OWNER_KEY", key("owner"));
    assert_eq!(run(plain).await.expect(2).refusal(), "usage");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_earnest_nothing_is_guessed() {
    let folder = tempfile::tempdir().unwrap();
    let command = |words: &[&str]| {
        let mut command = earnest(folder.path());
        command.env("EARNEST_URL", "http://127.0.0.1:9").env("EARNEST_OWNER_KEY", "ek_owner_1");
        command.args(words);
        command
    };
    let ran = run(command(&["tab", "status", "--json"])).await.expect(8);
    assert_eq!(ran.refusal(), "earnest_unreachable");
    let words = run(command(&["tab", "status"])).await.expect(8);
    assert!(words.err.contains("next: earnest up"), "{:?}", words.err);
    assert_eq!(run(command(&["audit", "--json"])).await.expect(3).refusal(), "not_found");
    // What is wrong with the command line itself is a problem document, too.
    assert_eq!(run(command(&["pay", "--json"])).await.expect(2).refusal(), "usage");
    assert_eq!(run(command(&["no-such-command"])).await.expect(2).out, "");
    let public =
        ["sell", "--upstream", "http://127.0.0.1:9", "--price", "/*=1", "--listen", "0.0.0.0:0"];
    let mut public = command(&public);
    public
        .env("EARNEST_SELLER_KEY", "ek_seller_1")
        .env("EARNEST_SELLER_ID", "sel_00000000000000000000000001");
    let ran = run({
        public.arg("--json");
        public
    })
    .await
    .expect(2);
    assert_eq!(ran.refusal(), "usage");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_answers_several_questions_and_takes_a_grant_back() {
    let stand = Stand::start().await;
    let Some(shop) = stand.shop("$0.10").await else { return };
    stand.run(&["policy", "set", "--approve-above", "$0.05"]).await.expect(0);
    for page in ["a", "b", "c"] {
        std::fs::write(stand.path("www").join(page), page).unwrap();
    }
    let buy = |page: &str| {
        let url = format!("{}/{page}", shop.origin);
        let stand = &stand;
        let page = page.to_owned();
        async move { stand.run(&["pay", &url, "--max-price", "$0.25", "--request-id", &page]).await }
    };
    for page in ["a", "b"] {
        let waits = buy(page).await.expect(6);
        assert!(waits.err.contains("next: earnest approvals approve apr_"), "{:?}", waits.err);
    }
    let waiting = stand.rows(&["approvals"]).await;
    let ids: Vec<String> =
        waiting.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 2);
    let dry = stand.json(&["approvals", "approve", &ids[0], "--dry-run"]).await;
    assert_eq!(dry["dry_run"], true);
    // One that is not there does not keep the others from their answer.
    let none = "apr_00000000000000000000000001";
    let answered = stand.run(&["approvals", "approve", none, &ids[0], &ids[1]]).await.expect(3);
    assert_eq!(answered.out.lines().count(), 2, "{:?}", answered.out);
    assert!(stand.rows(&["approvals"]).await.is_empty());
    for page in ["a", "b"] {
        assert_eq!(buy(page).await.expect(0).out, page);
    }
    // Answered once is answered.
    let again = stand.run(&["approvals", "deny", &ids[0], "--json"]).await.expect(7);
    assert!(["approval_already_decided", "approval_consumed"].contains(&again.refusal().as_str()));

    buy("c").await.expect(6);
    let waiting = stand.rows(&["approvals", "list"]).await;
    let id = waiting[0]["id"].as_str().unwrap();
    let shown = stand.json(&["approvals", "show", id]).await;
    assert_eq!((&shown["amount_micros"], &shown["status"]), (&100_000.into(), &"waiting".into()));
    stand.run(&["approvals", "grant", id, "--cap", "$0.50", "--for", "1h"]).await.expect(0);
    buy("c").await.expect(0);
    assert_eq!(pay(&stand, &shop, "page").await.expect(0).out, "it rains\n");
    let grants = stand.rows(&["approvals", "grants"]).await;
    assert_eq!(
        (&grants[0]["used_micros"], &grants[0]["cap_micros"]),
        (&200_000.into(), &500_000.into())
    );
    let grant = grants[0]["id"].as_str().unwrap();
    stand.run(&["approvals", "revoke", grant]).await.expect(0);
    pay(&stand, &shop, "page-after").await.expect(6);
    let waiting = stand.rows(&["approvals"]).await;
    let id = waiting[0]["id"].as_str().unwrap();
    let listed = async || stand.run(&["purchases", "--limit", "1"]).await.expect(0).out;
    let waits = listed().await;
    assert!(waits.contains("waiting") && !waits.contains("policy_denied"), "{waits}");
    assert!(waits.contains("$0.10 is above the $0.05 that passes without the owner"), "{waits}");
    stand.run(&["approvals", "deny", id, "--pause"]).await.expect(0);
    let denied = listed().await;
    assert!(denied.contains("denied") && !denied.contains("waiting"), "{denied}");
    assert!(denied.contains("approval_denied: the owner refused this purchase"), "{denied}");
    assert_eq!(stand.rows(&["agent", "list"]).await[0]["paused"], true);
    let words = ["pay", &shop.page(), "--max-price", "$0.25", "--request-id", "paused", "--json"];
    assert_eq!(stand.run(&words).await.expect(5).refusal(), "policy_denied/agent_paused");
}

/// A time that cannot be kept is refused, not cut.
#[tokio::test]
async fn a_gateway_has_ten_minutes_to_say_that_it_failed() {
    let folder = tempfile::tempdir().unwrap();
    let sell = |seconds: &str| {
        let mut command = earnest(folder.path());
        command.args(["sell", "--authz", "--public-url", "https://api.example", "--listen"]);
        command.args(["127.0.0.1:0", "--price", "GET /x=$0.02", "--outcome-within", seconds]);
        run(command)
    };
    let refused = sell("601").await.expect(2);
    assert!(refused.err.contains("601 is not in 0..=600"), "{}", refused.err);
    // What may be said goes on to the next thing that is missing: a seller's key.
    let accepted = sell("600").await;
    assert!(!accepted.err.contains("outcome-within"), "{}", accepted.err);
}
