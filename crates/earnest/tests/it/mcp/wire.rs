//! `/mcp` as HTTP: who gets in, in which form, in both eras.

use serde_json::json;

use super::{LEGACY, MODERN, Mcp};
use crate::shop::Shop;
use crate::world::World;

fn initialize(version: &str) -> serde_json::Value {
    json!({
        "protocolVersion": version, "capabilities": {},
        "clientInfo": { "name": "test", "version": "0" },
    })
}

#[tokio::test]
async fn both_eras_find_out_who_answers() {
    let world = World::in_real_time().await;
    let mcp = Mcp::new(&world);
    let answer = mcp.rpc("initialize", initialize(LEGACY)).await;
    assert!(!answer.headers.contains_key("mcp-session-id"));
    assert_eq!(answer.headers["content-type"], "application/json");
    let result = answer.expect(200)["result"].clone();
    assert_eq!(result["protocolVersion"], LEGACY);
    let own =
        json!({ "name": "earnest", "title": "Earnest", "version": env!("CARGO_PKG_VERSION") });
    assert_eq!(result["serverInfo"], own);
    let found = mcp.rpc_2026("server/discover", json!({}), json!({})).await.expect(200);
    let versions = found["result"]["supportedVersions"].as_array().unwrap();
    assert!(versions.contains(&json!(MODERN)) && versions.contains(&json!(LEGACY)), "{found}");
    assert_eq!(mcp.rpc("ping", json!({})).await.expect(200)["result"], json!({}));
}

#[tokio::test]
async fn only_an_agents_key_gets_in() {
    let world = World::in_real_time().await;
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }).to_string();
    for key in ["", "ek_agent_0000", &world.key("owner"), &world.key("seller")] {
        let mcp = Mcp { key: key.to_owned(), ..Mcp::new(&world) };
        let answer = mcp.post(&list, &[]).await;
        assert_eq!(answer.status, 401, "{key}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        assert_eq!(answer.body["code"], "unauthenticated");
    }
    let mcp = Mcp::new(&world);
    mcp.post(&list, &[]).await.expect(200);
    // No streams, no sessions to end.
    for method in [reqwest::Method::GET, reqwest::Method::DELETE] {
        let url = format!("{}/mcp", world.earnest.url());
        let request = world.http.request(method, url).bearer_auth(&mcp.key);
        let answer = crate::world::answer(request).await;
        assert_eq!(
            (answer.status.as_u16(), answer.headers["allow"].to_str().unwrap()),
            (405, "POST")
        );
    }
}

#[tokio::test]
async fn what_is_no_message_is_refused_in_the_protocols_own_words() {
    let world = World::in_real_time().await;
    let mcp = Mcp::new(&world);
    for (body, status, code) in [
        ("{", 400, -32700),
        (r#"{"jsonrpc":"2.0","id":1}"#, 400, -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, 400, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#, 200, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#, 200, -32601),
    ] {
        let answer = mcp.post(body, &[]).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
        assert_eq!(answer.headers["content-type"], "application/json", "{body}");
        assert_eq!(answer.body["error"]["code"], code, "{body}: {}", answer.body);
    }
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let text = world.http.post(format!("{}/mcp", world.earnest.url())).bearer_auth(&mcp.key);
    let answer = crate::world::answer(text.header("content-type", "text/plain").body(list)).await;
    assert_eq!(answer.status, 415);
    let large = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "x".repeat(1 << 20));
    assert_eq!(mcp.post(&large, &[]).await.status, 413);
    assert_eq!(mcp.post(list, &[("accept", "text/html")]).await.status, 406);
}

/// More than 32 calls of one agent at once are told to come back; another agent is not.
#[tokio::test(flavor = "multi_thread")]
async fn one_agent_has_so_many_calls_at_once() {
    let shop = Shop::open().await;
    let mcp = Mcp::new(&shop.world);
    let url = shop.url("/slow");
    let slow = |n: u32| {
        let (mcp, url) = (&mcp, &url);
        async move {
            let arguments = json!({ "url": url, "max_price": "$1", "request_id": format!("{n}") });
            let params = json!({ "name": "paid_fetch", "arguments": arguments });
            mcp.rpc("tools/call", params).await.body
        }
    };
    let all = futures_util::future::join_all((0..33).map(slow));
    let open = async {
        // The gate stays shut until every call has its place or was turned away: none that ended
        // early makes room for the one too many.
        crate::world::until("32 are at the seller", || shop.served() == 32).await;
        shop.gate.add_permits(32);
    };
    let (answers, ()) = tokio::join!(all, open);
    let busy: Vec<_> = answers.iter().filter(|body| body["error"]["code"] == -32000).collect();
    assert_eq!(busy.len(), 1, "{answers:?}");
    let said = busy[0]["error"]["message"].as_str().unwrap();
    assert!(said.contains("this agent has 32 calls"), "{said}");
    let paid = |body: &&serde_json::Value| body["result"]["structuredContent"]["status"] == "paid";
    assert_eq!(answers.iter().filter(paid).count(), 32, "{answers:?}");
    assert_eq!(shop.served(), 32);
}
