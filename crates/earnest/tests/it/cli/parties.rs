//! Owners, agents and sellers: created, limited, paused, their keys rotated and revoked.

use std::os::unix::fs::PermissionsExt as _;

use super::{Stand, run};

fn text<'a>(row: &'a serde_json::Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_else(|| panic!("no {name} in {row}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_party_is_created_with_a_key_that_is_shown_once() {
    let stand = Stand::start().await;
    let owner = stand.json(&["owner", "create", "acme", "--zone", "Europe/Amsterdam"]).await;
    assert_eq!((text(&owner, "name"), text(&owner, "zone")), ("acme", "Europe/Amsterdam"));
    let key = text(&owner, "key").to_owned();
    assert!(key.starts_with("ek_owner_"));
    let as_acme = |words: &[&str]| {
        let mut command = stand.command(words);
        command.env("EARNEST_OWNER_KEY", &key).arg("--json");
        run(command)
    };
    assert_eq!(text(&as_acme(&["owner", "show"]).await.expect(0).json(), "id"), text(&owner, "id"));

    let made = as_acme(&["agent", "create", "bob", "--key-file", "bob.key"]).await.expect(0);
    let agent = made.json();
    assert!(agent["key"].is_null() && !made.err.contains("ek_"), "{made:?}");
    let file = std::fs::metadata(stand.path("bob.key")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    let first = std::fs::read_to_string(stand.path("bob.key")).unwrap();
    // A file that is there is not written over, and no agent is made that nobody has a key of.
    as_acme(&["agent", "create", "carol", "--key-file", "bob.key"]).await.expect(1);
    assert_eq!(as_acme(&["agent", "list"]).await.expect(0).rows().len(), 1);
    as_acme(&["agent", "create", "", "--key-file", "nobody.key"]).await.expect(2);
    assert!(!stand.path("nobody.key").exists());

    let bob = text(&agent, "id");
    let rotated = as_acme(&["agent", "rotate", bob]).await.expect(0).json();
    assert_ne!(text(&rotated, "key"), first.trim());
    let keys = as_acme(&["agent", "keys", bob]).await.expect(0).rows();
    assert!(keys.iter().all(|row| row["key"].is_null()));
    let live: Vec<_> = keys.iter().filter(|row| row["revoked_at"].is_null()).collect();
    assert_eq!((keys.len(), live.len(), text(live[0], "id")), (2, 1, text(&rotated, "id")));
    as_acme(&["agent", "revoke", text(&rotated, "id")]).await.expect(0);
    let keys = as_acme(&["agent", "keys", bob]).await.expect(0).rows();
    assert!(keys.iter().all(|row| !row["revoked_at"].is_null()));

    // What is somebody else's is not there.
    assert_eq!(stand.run(&["agent", "keys", bob, "--json"]).await.expect(3).refusal(), "not_found");
    as_acme(&["agent", "pause", bob]).await.expect(0);
    assert_eq!(as_acme(&["agent", "list"]).await.expect(0).rows()[0]["paused"], true);
    as_acme(&["owner", "pause"]).await.expect(0);
    let paused = stand.json(&["owner", "show", text(&owner, "id")]).await;
    assert_eq!(paused["paused"], true);
    stand.run(&["owner", "resume", text(&owner, "id")]).await.expect(0);
    let credit = stand.json(&["owner", "credit", text(&owner, "id"), "--line", "$50"]).await;
    assert_eq!(
        (&credit["credit_line_micros"], &credit["paused"]),
        (&50_000_000.into(), &false.into())
    );
    assert_eq!(stand.rows(&["owner", "list"]).await.len(), 2);
    assert_eq!(stand.rows(&["owner", "list", "--limit", "1"]).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seller_registers_an_origin_and_proves_it() {
    let stand = Stand::start().await;
    let made =
        stand.run(&["seller", "create", "weather", "--commission-ppm", "50000"]).await.expect(0);
    let line = made.out.trim().split(' ').collect::<Vec<_>>();
    let [id, key] = line[..] else { panic!("{:?}", made.out) };
    assert!(id.starts_with("sel_") && key.starts_with("ek_seller_"));
    let as_seller = |words: &[&str]| {
        let mut command = stand.command(words);
        command.env("EARNEST_SELLER_KEY", key).arg("--json");
        run(command)
    };
    let added =
        as_seller(&["seller", "origin", "add", "http://127.0.0.1:9"]).await.expect(0).json();
    assert!(added["origins"][0]["proved_at"].is_null());
    let unproved = as_seller(&["seller", "origin", "prove", "http://127.0.0.1:9"]).await.expect(8);
    assert_eq!(unproved.refusal(), "upstream_unreachable");
    let forbidden = as_seller(&["seller", "origin", "add", "https://10.0.0.1"]).await.expect(5);
    assert_eq!(forbidden.refusal(), "target_forbidden");
    // The development seller's server lists the development seller, and nobody else.
    let Some(shop) = stand.shop("$0.10").await else { return };
    let other = as_seller(&["seller", "origin", "prove", &shop.origin]).await.expect(2);
    assert_eq!(other.refusal(), "validation_failed");
    let own = stand.json(&["seller", "origin", "prove", &shop.origin]).await;
    assert!(!own["origins"][0]["proved_at"].is_null());
    let shown = stand.json(&["seller", "show", id]).await;
    assert_eq!(shown["commission_ppm"], 50_000);
    assert_eq!(stand.rows(&["seller", "list"]).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_keeps_what_is_not_named() {
    let stand = Stand::start().await;
    let before = stand.json(&["policy", "show"]).await;
    let after = stand.json(&["policy", "set", "--day", "$7.50", "--rate", "10/60"]).await;
    let mut expect = before["limits"].clone();
    expect["day_cap_micros"] = 7_500_000.into();
    expect["rate"] = serde_json::json!({ "count": 10, "per_seconds": 60 });
    assert_eq!((&after["limits"], &after["version"]), (&expect, &2.into()));
    let cleared = [
        "policy",
        "set",
        "--clear",
        "rate",
        "--clear",
        "session",
        "--listing",
        "a",
        "--listing",
        "b",
    ];
    let cleared = stand.json(&cleared).await;
    assert!(
        cleared["limits"]["rate"].is_null() && cleared["limits"]["session_cap_micros"].is_null()
    );
    assert_eq!(cleared["limits"]["listings"], serde_json::json!(["a", "b"]));
    let reverted = stand.json(&["policy", "revert", "1"]).await;
    assert_eq!((&reverted["limits"], &reverted["version"]), (&before["limits"], &4.into()));
    let versions = stand.rows(&["policy", "history"]).await;
    assert_eq!(
        versions.iter().map(|row| row["version"].as_u64().unwrap()).collect::<Vec<_>>(),
        [4, 3, 2, 1]
    );

    let agent = stand.rows(&["agent", "list"]).await;
    let agent = text(&agent[0], "id");
    let own = stand.json(&["policy", "set", "--agent", agent, "--per-call", "$0.10"]).await;
    assert_eq!(own["limits"], serde_json::json!({ "per_call_cap_micros": 100_000 }));
    // The tab is the owner's.
    let tab = ["policy", "set", "--agent", agent, "--tab-limit", "$1", "--json"];
    assert_eq!(stand.run(&tab).await.expect(2).refusal(), "validation_failed");
    for nothing in [
        vec!["policy", "set"],
        vec!["policy", "set", "--rate", "ten"],
        vec!["policy", "set", "--day", "1", "--clear", "day"],
    ] {
        let words: Vec<&str> = nothing.into_iter().chain(["--json"]).collect();
        assert_eq!(stand.run(&words).await.expect(2).refusal(), "usage", "{words:?}");
    }
}

/// The link is data, so that it can be piped into whatever shows it on a phone.
#[tokio::test(flavor = "multi_thread")]
async fn a_browser_is_signed_in_and_out_by_command() {
    let stand = Stand::start().await;
    let said = stand.run(&["owner", "login"]).await.expect(0);
    let link = said.out.trim();
    assert!(link.starts_with(&format!("{}/login?token=", stand.url)), "{link}");
    assert!(said.err.contains("works once"), "{}", said.err);
    let made = stand.json(&["owner", "login"]).await;
    assert!(text(&made, "expires_at").ends_with('Z'), "{made}");
    assert!(stand.rows(&["owner", "sign-ins"]).await.is_empty(), "a link is no sign-in");
    // The operator may ask for an owner; whose it is must be named.
    let owner = stand.json(&["owner", "show"]).await;
    let made = stand.json(&["owner", "login", text(&owner, "id")]).await;
    assert_ne!(text(&made, "url"), link);

    let http = crate::world::client();
    let page = http.get(link).send().await.unwrap();
    let cookie = page.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap();
    let cookie = cookie.to_owned();
    let html = page.text().await.unwrap();
    let proof = html.split("name=\"form\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let token = link.split("token=").nth(1).unwrap();
    let form = [("form", proof), ("token", token)];
    let request = http.post(format!("{}/login", stand.url)).header("cookie", cookie).form(&form);
    assert_eq!(request.send().await.unwrap().status(), 303);
    let rows = stand.rows(&["owner", "sign-ins"]).await;
    assert_eq!((rows.len(), text(&rows[0], "status")), (1, "live"));
    stand.run(&["owner", "logout"]).await.expect(0);
    let rows = stand.rows(&["owner", "sign-ins"]).await;
    assert_eq!((rows.len(), text(&rows[0], "status")), (1, "ended"));
}
