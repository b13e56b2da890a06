//! What the tools do with money, and what they say of it.

use std::time::Duration;

use earnest_core::tool_name::ToolName;
use reqwest::Method;
use serde_json::{Value, json};

use super::{Mcp, another_agent, sound};
use crate::shop::{BIG_BYTES, Shop};
use crate::world::PATIENCE;

/// `tools/list` as it was last agreed on.
pub fn snapshot() -> Value {
    serde_json::from_str(include_str!("tools.json")).unwrap()
}

/// A change of what agents see shows in review: copy what is printed into `tools.json`.
#[tokio::test]
async fn the_tools_are_those_of_the_snapshot_in_its_order() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    let first = mcp.rpc("tools/list", json!({})).await.expect(200)["result"]["tools"].clone();
    assert_eq!(first, snapshot(), "{}", serde_json::to_string_pretty(&first).unwrap());
    let again = mcp.rpc_2026("tools/list", json!({}), json!({})).await.expect(200);
    assert_eq!(again["result"]["tools"], first, "the same in both eras");
    for tool in first.as_array().unwrap() {
        let name = tool["name"].as_str().unwrap();
        assert_eq!(ToolName::published(name).unwrap().as_str(), name, "every model takes it");
    }
}

#[tokio::test]
async fn an_agent_buys_once_whatever_it_repeats() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    let url = shop.url("/weather");
    let quote = mcp.call("quote", json!({ "url": url })).await;
    assert_eq!((&quote["status"], &quote["amount_micros"]), (&json!("priced"), &json!(20_000)));
    let arguments = json!({ "url": url, "max_price": "$0.05", "request_id": "w-1" });
    let result = mcp.tool("paid_fetch", arguments.clone()).await;
    let bought = &result["structuredContent"];
    assert_eq!(bought["status"], "paid", "{bought}");
    assert_eq!(bought["amount_micros"], 20_000);
    assert_eq!(bought["body"], r#"{"sky":"blue"}"#);
    let sentence = result["content"][0]["text"].as_str().unwrap();
    assert!(sentence.contains("$0.02"), "{sentence}");
    assert_eq!(result["content"][1]["text"], bought["body"], "for clients that read no objects");
    // A client that lost the answer gets it again; it is served and charged once.
    assert_eq!(mcp.call("paid_fetch", arguments).await, *bought);
    assert_eq!(shop.served(), 1);
    // Another thing under the same id is not bought.
    let other = mcp.fetch(&shop.url("/cheap"), "w-1", "$0.05").await;
    assert_eq!(other["status"], "failed_not_charged", "{other}");
    assert_eq!(other["code"], "idempotency_conflict");
    let tab = mcp.call("tab_status", json!({})).await;
    assert_eq!(tab["status"], "open");
    assert_eq!(shop.close().await, (20_000, 0));
}

#[tokio::test]
async fn what_is_free_or_not_delivered_costs_nothing() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    let free = mcp.fetch(&shop.url("/free"), "f", "$0.05").await;
    assert_eq!((&free["status"], &free["amount_micros"]), (&json!("paid"), &json!(0)));
    assert_eq!(free["body"], "free");
    assert_eq!(mcp.call("quote", json!({ "url": shop.url("/free") })).await["status"], "free");
    for (path, id, code) in [
        ("/fails", "a", "upstream_failed"),
        ("/moved", "b", "redirect_refused"),
        ("/nothing-there", "c", "upstream_failed"),
    ] {
        let failed = mcp.fetch(&shop.url(path), id, "$0.05").await;
        assert_eq!(failed["status"], "failed_not_charged", "{path}: {failed}");
        assert_eq!(failed["code"], code, "{path}");
    }
    let dear = mcp.fetch(&shop.url("/weather"), "d", "$0.01").await;
    assert_eq!((&dear["status"], &dear["code"]), (&json!("denied"), &json!("price_above_max")));
    assert_eq!(dear["amount_micros"], 20_000);
    // The same id goes on with a maximum that fits.
    assert_eq!(mcp.fetch(&shop.url("/weather"), "d", "$0.02").await["status"], "paid");
    assert_eq!(shop.close().await, (20_000, 0));
}

/// Said at once to whoever has to pass it on, waited for after that.
#[tokio::test(flavor = "multi_thread")]
async fn above_the_threshold_the_owner_is_asked_and_the_same_id_then_buys_once() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    let url = shop.url("/dear");
    let result = mcp
        .tool("paid_fetch", json!({ "url": url, "max_price": "$1", "request_id": "dear-1" }))
        .await;
    let asked = &result["structuredContent"];
    assert_eq!(asked["status"], "approval_required", "{asked}");
    assert_eq!(asked["amount_micros"], 300_000);
    let approval = asked["approval_id"].as_str().unwrap();
    let address = asked["approval_url"].as_str().unwrap();
    assert!(address.ends_with(&format!("/approvals/{approval}")), "{address}");
    let sentence = result["content"][0]["text"].as_str().unwrap();
    assert!(sentence.contains(address) && sentence.contains("$0.30"), "{sentence}");
    let waits = json!({ "approval_id": approval, "wait_s": 0 });
    assert_eq!(mcp.call("approval_status", waits.clone()).await["status"], "waiting");
    let tab = mcp.call("tab_status", json!({})).await;
    assert_eq!(tab["waiting_request_ids"], json!(["dear-1"]));
    assert_eq!(tab["waiting_approval_ids"], json!([approval]));

    // The agent asks again and waits; the owner answers meanwhile.
    let again = mcp.fetch(&url, "dear-1", "$1");
    let answer = async {
        // Whichever comes first, the outcome is the same: nothing here depends on the order.
        shop.world.answer_approval(approval, "approve").await;
    };
    let (bought, ()) = tokio::join!(again, answer);
    assert_eq!(bought["status"], "paid", "{bought}");
    assert_eq!(bought["body"], "dear");
    assert_eq!(mcp.call("approval_status", waits).await["status"], "consumed");
    assert_eq!(mcp.fetch(&url, "dear-1", "$1").await, bought);
    assert_eq!(shop.served(), 1);
    assert_eq!(shop.close().await, (300_000, 0));
}

#[tokio::test]
async fn an_owner_who_says_no_is_told_as_a_denial() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    let asked = mcp.fetch(&shop.url("/dear"), "dear-1", "$1").await;
    let approval = asked["approval_id"].as_str().unwrap();
    shop.world.answer_approval(approval, "deny").await;
    let status = mcp.call("approval_status", json!({ "approval_id": approval })).await;
    assert_eq!(status["status"], "denied");
    let denied = mcp.fetch(&shop.url("/dear"), "dear-1", "$1").await;
    assert_eq!((&denied["status"], &denied["code"]), (&json!("denied"), &json!("approval_denied")));
    assert_eq!(shop.close().await, (0, 0));
}

/// A call ends; the purchase goes on, and is found by its id.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_seller_is_a_handle_and_not_a_long_call() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    let mut arguments = json!({
        "url": shop.url("/slow"), "max_price": "$0.05", "request_id": "slow", "wait_s": 0,
    });
    let first = mcp.call("paid_fetch", arguments.clone()).await;
    assert_eq!((&first["status"], &first["request_id"]), (&json!("in_progress"), &json!("slow")));
    // The same id for something else is refused while the first is under way.
    let other = mcp.fetch(&shop.url("/cheap"), "slow", "$0.05").await;
    assert_eq!(other["code"], "idempotency_conflict", "{other}");
    shop.gate.add_permits(1);
    arguments["wait_s"] = json!(25);
    let second = mcp.call("paid_fetch", arguments).await;
    assert_eq!((&second["status"], &second["body"]), (&json!("paid"), &json!("at last")));
    assert_eq!(shop.served(), 1);
    assert_eq!(shop.close().await, (20_000, 0));
}

#[tokio::test]
async fn large_answers_are_resources_of_their_buyer_alone() {
    let shop = Shop::open().await;
    let world = &shop.world;
    let mcp = Mcp::new(world);
    let arguments = json!({ "url": shop.url("/big"), "max_price": "$0.05", "request_id": "big" });
    let result = mcp.tool("paid_fetch", arguments).await;
    let big = &result["structuredContent"];
    assert!(big["body"].is_null(), "not inline");
    let text = "x".repeat(BIG_BYTES);
    assert_eq!(big["body_bytes"], BIG_BYTES);
    assert_eq!(big["body_sha256"], earnest_core::quote::body_digest(text.as_bytes()));
    let link = &result["content"][1];
    assert_eq!((&link["type"], &link["uri"]), (&json!("resource_link"), &big["body_uri"]));
    let uri = json!({ "uri": big["body_uri"] });
    let read = mcp.rpc("resources/read", uri.clone()).await.expect(200);
    assert_eq!(read["result"]["contents"][0]["text"], text);
    let list = mcp.rpc("resources/list", json!({})).await.expect(200);
    assert_eq!(list["result"]["resources"][0]["uri"], big["body_uri"]);
    // Binary as base64.
    let bytes = mcp.fetch(&shop.url("/bytes"), "bytes", "$0.05").await;
    assert_eq!((&bytes["body_base64"], &bytes["body"]), (&json!("/wD+"), &Value::Null));

    let other = Mcp { key: another_agent(&shop).await, ..Mcp::new(world) };
    let read = other.rpc("resources/read", uri).await.expect(200);
    assert_eq!(read["error"]["code"], -32002, "{read}");
    let list = other.rpc("resources/list", json!({})).await.expect(200);
    assert_eq!(list["result"]["resources"], json!([]));
    assert_eq!(shop.close().await, (40_000, 0));
}

#[tokio::test]
async fn malformed_calls_are_errors_of_the_protocol_and_unfit_values_are_results() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    let url = shop.url("/weather");
    for (tool, arguments) in [
        ("no_such_tool", json!({})),
        ("paid_fetch", json!({})),
        ("paid_fetch", json!({ "url": url, "max_price": "$1" })),
        ("paid_fetch", json!({ "url": url, "max_price": "$1", "request_id": "a", "limit": 1 })),
        ("paid_fetch", json!({ "url": url, "max_price": "$1", "request_id": "a", "wait_s": 26 })),
        ("paid_fetch", json!({ "url": 1, "max_price": "$1", "request_id": "a" })),
        ("tab_status", json!({ "owner": "own_1" })),
        ("approval_status", json!({ "approval_id": "apr_1", "wait_s": -1 })),
    ] {
        let error = mcp.error(tool, arguments.clone()).await;
        assert_eq!(error["code"], -32602, "{tool} {arguments}: {error}");
    }
    for (arguments, code) in [
        (json!({ "url": "ftp://a.example/", "max_price": "$1", "request_id": "a" }), "url_invalid"),
        (json!({ "url": url, "max_price": "much", "request_id": "a" }), "amount_invalid"),
        (json!({ "url": url, "max_price": 0, "request_id": "a" }), "amount_not_positive"),
        (json!({ "url": url, "max_price": "$1", "request_id": "a b" }), "request_malformed"),
        (
            json!({ "url": url, "max_price": "$1", "request_id": "a", "headers": { "Host": "x" } }),
            "request_malformed",
        ),
        (
            json!({ "url": url, "max_price": "$1", "request_id": "a",
                "headers": { "Authorization": "Tab x.y.z" } }),
            "request_malformed",
        ),
    ] {
        let result = mcp.tool("paid_fetch", arguments.clone()).await;
        let object = &result["structuredContent"];
        assert_eq!(object["status"], "failed_not_charged", "{arguments}");
        assert_eq!(object["code"], code, "{arguments}: {object}");
    }
    assert_eq!(shop.served(), 0);
    let gone = mcp.call("approval_status", json!({ "approval_id": "../tabs" })).await;
    assert_eq!((&gone["status"], &gone["code"]), (&json!("failed"), &json!("not_found")));
}

/// The server fetches for strangers: not what lies in its own network.
#[tokio::test]
async fn the_guard_stands_before_every_fetch() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    for url in ["https://169.254.169.254/latest", "https://10.0.0.1/", "https://printer.local/"] {
        let no = mcp.fetch(url, "in", "$1").await;
        assert_eq!(no["code"], "target_forbidden", "{url}: {no}");
        assert_eq!(mcp.call("quote", json!({ "url": url })).await["code"], "target_forbidden");
    }
}

#[tokio::test]
async fn receipts_are_checked_by_purchase_by_address_and_by_themselves() {
    let shop = Shop::open().await;
    let world = &shop.world;
    let mcp = Mcp::new(world);
    let bought = mcp.fetch(&shop.url("/weather"), "w", "$0.05").await;
    let by_purchase = json!({ "purchase": bought["purchase"] });
    let early = mcp.call("verify_receipt", by_purchase.clone()).await;
    assert_eq!(early["status"], "pending", "{early}");
    shop.close().await;
    let tab = world.tab().await;
    let path = format!("/v1/tabs/{}/settle", tab["id"].as_str().unwrap());
    let key = [("idempotency-key", "settle")];
    world.call_with("owner", Method::POST, &path, None, &key).await.expect(202);
    let settled = async {
        loop {
            let checked = mcp.call("verify_receipt", by_purchase.clone()).await;
            if checked["status"] != "pending" {
                return checked;
            }
            world.jobs().await;
        }
    };
    let checked = tokio::time::timeout(PATIENCE, settled).await.expect("settled in time");
    assert_eq!(checked["status"], "valid", "{checked}");
    assert_eq!(checked["purchases"], json!([bought["purchase"]]));
    assert_eq!(checked["mode"], "simulated");

    let path = format!("/v1/purchases/{}/receipt", bought["purchase"].as_str().unwrap());
    let shown = world.get("owner", &path).await;
    let address = shown.headers["location"].to_str().unwrap();
    let url = format!("https://earnest.example{address}");
    assert_eq!(mcp.call("verify_receipt", json!({ "url": url })).await, checked);
    let receipt = world.get("", address).await.expect(200)["receipt"].clone();
    assert_eq!(mcp.call("verify_receipt", json!({ "receipt": receipt })).await, checked);
    // What its seller is shown of it is signed too, and says less.
    let lines = world.get("seller", &path).await.expect(200)["lines"].clone();
    let of_seller = mcp.call("verify_receipt", json!({ "receipt": lines })).await;
    assert_eq!(
        (&of_seller["status"], &of_seller["receipt_id"], &of_seller["purchases"]),
        (&json!("valid"), &checked["receipt_id"], &checked["purchases"])
    );
    assert_eq!(of_seller.get("captured_micros"), None);
    let forged = receipt.as_str().unwrap().replace('.', "x");
    let forged = mcp.call("verify_receipt", json!({ "receipt": forged })).await;
    assert_eq!(forged["status"], "invalid", "{forged}");
    for wrong in [json!({}), json!({ "url": url, "receipt": receipt }), json!({ "url": "/r/../x" })]
    {
        assert_eq!(mcp.call("verify_receipt", wrong).await["status"], "failed");
    }
}

/// A client that follows tasks gets one to wait for its owner with.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_2026_that_follows_tasks_waits_with_one() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    let able = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let params = json!({ "name": "paid_fetch", "arguments": {
        "url": shop.url("/dear"), "max_price": "$1", "request_id": "dear",
    }});
    let begun = mcp.rpc_2026("tools/call", params.clone(), able.clone()).await.expect(200);
    let task = &begun["result"];
    assert_eq!(
        (&task["resultType"], &task["status"]),
        (&json!("task"), &json!("working")),
        "{begun}"
    );
    let sentence = task["statusMessage"].as_str().unwrap();
    let approval = sentence.split("/approvals/").nth(1).unwrap().split(';').next().unwrap();
    let id = json!({ "taskId": task["taskId"] });

    let other = Mcp { key: another_agent(&shop).await, ..Mcp::new(&shop.world) };
    for method in ["tasks/get", "tasks/cancel"] {
        let none = other.rpc_2026(method, id.clone(), able.clone()).await;
        assert_eq!(none.body["error"]["code"], -32602, "{method}: {}", none.body);
    }
    shop.world.answer_approval(approval, "approve").await;
    let done = async {
        loop {
            let seen = mcp.rpc_2026("tasks/get", id.clone(), able.clone()).await.expect(200);
            if seen["result"]["status"] != "working" {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let done = tokio::time::timeout(PATIENCE, done).await.expect("the task ends in time");
    assert_eq!(done["result"]["status"], "completed", "{done}");
    let bought = sound("paid_fetch", &json!({ "result": done["result"]["result"] }));
    assert_eq!(bought["structuredContent"]["status"], "paid");
    assert_eq!(bought["structuredContent"]["body"], "dear");
    // A call with the same id finds the same.
    let again = mcp.rpc_2026("tools/call", params, able).await.expect(200);
    assert_eq!(sound("paid_fetch", &again)["structuredContent"], bought["structuredContent"]);
    assert_eq!(shop.close().await, (300_000, 0));
}

/// Where the client can send its user to an address, it is asked to; what it answers decides
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_2026_that_can_is_asked_to_show_the_address() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    let able = json!({ "elicitation": { "url": {} } });
    let mut params = json!({ "name": "paid_fetch", "arguments": {
        "url": shop.url("/dear"), "max_price": "$1", "request_id": "dear",
    }});
    let asked = mcp.rpc_2026("tools/call", params.clone(), able.clone()).await.expect(200);
    let result = &asked["result"];
    assert_eq!(result["resultType"], "input_required", "{asked}");
    let question = &result["inputRequests"]["approval"];
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(question["params"]["mode"], "url");
    let address = question["params"]["url"].as_str().unwrap();
    let approval = address.rsplit('/').next().unwrap();

    params["arguments"]["wait_s"] = json!(1);
    params["inputResponses"] = json!({ "approval": { "action": "accept" } });
    let still = mcp.rpc_2026("tools/call", params.clone(), able.clone()).await.expect(200);
    let still = sound("paid_fetch", &still);
    assert_eq!(still["structuredContent"]["status"], "approval_required");
    assert_eq!(still["structuredContent"]["approval_url"], address);
    shop.world.answer_approval(approval, "approve").await;
    params["arguments"]["wait_s"] = json!(25);
    let bought = mcp.rpc_2026("tools/call", params, able).await.expect(200);
    assert_eq!(sound("paid_fetch", &bought)["structuredContent"]["status"], "paid");

    // One that cannot gets the address at once.
    let params = json!({ "name": "paid_fetch", "arguments": {
        "url": shop.url("/dear"), "max_price": "$1", "request_id": "dear-2",
    }});
    let asked = mcp.rpc_2026("tools/call", params, json!({})).await.expect(200);
    let asked = sound("paid_fetch", &asked);
    assert_eq!(asked["structuredContent"]["status"], "approval_required");
    assert_eq!(shop.close().await, (300_000, 0));
}
