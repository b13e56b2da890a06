//! Cases at the door for MCP. MCPI-14 (names that providers give their tools) is a rule, tested where
//! it stands, in `earnest-core`'s `tool_name.rs`.

use serde_json::{Value, json};

use crate::mcp::{MODERN, Mcp};
use crate::shop::Shop;
use crate::world::World;

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

#[tokio::test]
async fn mcpi_01_a_notification_is_accepted_without_a_word() {
    let world = World::in_real_time().await;
    for name in ["notifications/initialized", "notifications/cancelled"] {
        let body = json!({ "jsonrpc": "2.0", "method": name, "params": { "requestId": 1 } });
        let answer = Mcp::new(&world).post(&body.to_string(), &[]).await;
        assert_eq!((answer.status.as_u16(), answer.bytes.len()), (202, 0), "{name}");
        assert!(!answer.headers.contains_key("content-type"), "{name}");
    }
}

#[tokio::test]
async fn mcpi_03_a_session_of_another_life_is_ignored() {
    let world = World::in_real_time().await;
    let answer = Mcp::new(&world).post(LIST, &[("mcp-session-id", "of-old")]).await;
    assert!(!answer.headers.contains_key("mcp-session-id"));
    assert!(answer.expect(200)["result"]["tools"].is_array());
}

#[tokio::test]
async fn mcpi_05_an_unknown_version_is_refused_and_a_missing_one_is_not() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    let arguments = json!({ "url": shop.url("/weather"), "max_price": "$1", "request_id": "a" });
    let params = json!({ "name": "paid_fetch", "arguments": arguments });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    for version in ["1900-01-01", "not-a-version", "", "2025-11-25x", "9999-01-01"] {
        let answer = mcp.post(&call.to_string(), &[("mcp-protocol-version", version)]).await;
        assert_eq!(answer.status, 400, "{version:?}: {}", answer.body);
    }
    assert_eq!(shop.served(), 0, "nothing was dispatched");
    mcp.post(&call.to_string(), &[]).await.expect(200);
    assert_eq!(shop.served(), 1);
}

#[tokio::test]
async fn mcpi_07_a_client_that_accepts_json_alone_is_served() {
    let world = World::in_real_time().await;
    let answer = Mcp::new(&world).post(LIST, &[("accept", "application/json")]).await;
    assert_eq!(answer.headers["content-type"], "application/json");
    answer.expect(200);
}

#[tokio::test]
async fn mcpi_08_whatever_admits_json_is_served() {
    let world = World::in_real_time().await;
    let mcp = Mcp::new(&world);
    mcp.post(LIST, &[]).await.expect(200);
    for accept in [
        "*/*",
        "text/event-stream;q=0.5, application/json",
        "APPLICATION/JSON , TEXT/EVENT-STREAM",
        "application/*",
    ] {
        mcp.post(LIST, &[("accept", accept)]).await.expect(200);
    }
    for accept in ["text/html", "application/json;q=0", "text/event-stream"] {
        assert_eq!(mcp.post(LIST, &[("accept", accept)]).await.status, 406, "{accept}");
    }
}

#[tokio::test]
async fn mcpi_10_a_batch_is_refused_whole() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    let call = |id: u32| {
        let arguments =
            json!({ "url": shop.url("/weather"), "max_price": "$1", "request_id": id.to_string() });
        let params = json!({ "name": "paid_fetch", "arguments": arguments });
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
    };
    let before = shop.world.earnest.app.store.reader().head().unwrap().seq;
    for batch in [json!([call(1), call(2)]), json!([call(1)]), json!([])] {
        let answer = mcp.post(&batch.to_string(), &[("mcp-protocol-version", "2025-03-26")]).await;
        assert_eq!(answer.status, 400);
        assert_eq!(answer.body["error"]["code"], -32600, "{}", answer.body);
        assert_eq!(answer.body["id"], Value::Null);
        assert!(answer.body.as_object().unwrap().contains_key("id"));
    }
    assert_eq!(shop.served(), 0);
    assert_eq!(shop.world.earnest.app.store.reader().head().unwrap().seq, before, "no entries");
}

/// Every place where a schema may stand inside another.
fn check_schema(schema: &Value, at: &str) {
    let Value::Object(members) = schema else { return };
    for name in ["$ref", "$defs", "definitions", "anyOf", "oneOf", "allOf", "$schema"] {
        assert!(!members.contains_key(name), "{name} at {at}");
    }
    assert!(members["type"].is_string(), "one type at {at}");
    for (name, inner) in members.get("properties").and_then(Value::as_object).into_iter().flatten()
    {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        assert!((1..=64).contains(&name.len()) && name.bytes().all(plain), "{name} at {at}");
        assert!(inner["description"].is_string(), "{at}/{name} says what it is");
        check_schema(inner, &format!("{at}/{name}"));
    }
    for name in ["items", "additionalProperties"] {
        if let Some(inner) = members.get(name) {
            check_schema(inner, &format!("{at}/{name}"));
        }
    }
}

#[tokio::test]
async fn mcpi_16_schemas_are_plain() {
    let world = World::in_real_time().await;
    let list = Mcp::new(&world).post(LIST, &[]).await.expect(200);
    let tools = list["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 5);
    for tool in tools {
        for schema in ["inputSchema", "outputSchema"] {
            assert_eq!(tool[schema]["type"], "object");
            check_schema(&tool[schema], &format!("{} {schema}", tool["name"]));
        }
        for hint in ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"] {
            assert!(tool["annotations"][hint].is_boolean(), "{hint} of {}", tool["name"]);
        }
        assert_eq!(tool["inputSchema"]["additionalProperties"], false);
    }
}

#[tokio::test]
async fn mcpi_19_a_page_from_elsewhere_does_not_reach_it() {
    let world = World::in_real_time().await;
    let mcp = Mcp::new(&world);
    for headers in [
        [("origin", "https://evil.example")],
        [("origin", "null")],
        [("origin", "http://127.0.0.1.evil.example")],
        [("host", "evil.example")],
    ] {
        assert_eq!(mcp.post(LIST, &headers).await.status, 403, "{headers:?}");
        // Neither learns whether its key is one.
        let nobody = Mcp { key: String::new(), ..Mcp::new(&world) };
        assert_eq!(nobody.post(LIST, &headers).await.status, 403, "{headers:?}");
    }
    mcp.post(LIST, &[]).await.expect(200);
    mcp.post(LIST, &[("origin", "http://localhost:3000")]).await.expect(200);
    mcp.post(LIST, &[("origin", &world.earnest.url())]).await.expect(200);
}

#[tokio::test]
async fn idem_14_the_text_says_to_reuse_the_id() {
    let world = World::in_real_time().await;
    let list = Mcp::new(&world).rpc_2026("tools/list", json!({}), json!({})).await.expect(200);
    assert!(MODERN > "2026");
    let tools = list["result"]["tools"].as_array().unwrap();
    let paid =
        tools.iter().filter(|tool| tool["inputSchema"]["properties"]["max_price"].is_object());
    let mut count = 0;
    for tool in paid {
        count += 1;
        let schema = &tool["inputSchema"];
        assert!(schema["required"].as_array().unwrap().contains(&json!("request_id")));
        let text = schema["properties"]["request_id"]["description"].as_str().unwrap();
        let text = text.to_lowercase();
        assert!(text.contains("one id per thing you want to buy"), "{text}");
        assert!(text.contains("reuse it for every retry of that thing"), "{text}");
        assert!(!text.contains("unique"), "{text}");
    }
    assert_eq!(count, 1);
}

/// The cap of the owner's policy holds, whatever maximum the agent names.
#[tokio::test]
async fn poli_02_an_agent_cannot_raise_its_cap() {
    let shop = Shop::open().await;
    let world = &shop.world;
    world.policy(&world.agent_id(), json!({ "per_call_cap_micros": 10_000 })).await;
    let mcp = Mcp::new(world);
    let arguments =
        json!({ "url": shop.url("/weather"), "max_price": 9_000_000, "request_id": "poli" });
    let denied = mcp.call("paid_fetch", arguments).await;
    assert_eq!(denied["status"], "denied", "{denied}");
    assert_eq!(
        (&denied["code"], &denied["reason"]),
        (&json!("policy_denied"), &json!("per_call_cap"))
    );
    assert_eq!(shop.close().await, (0, 0));
}
