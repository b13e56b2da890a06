//! Agents that speak MCP: over real HTTP and through the program's stdin and stdout, against the
//! simulated PayPal and a seller that charges.

mod bounds;
mod stdio;
mod tools;
mod wire;

use reqwest::Method;
use serde_json::{Value, json};

use crate::shop::Shop;
use crate::world::{Answer, World, answer};

/// The last version with a handshake.
pub const LEGACY: &str = "2025-11-25";
/// The version in which every request speaks for itself.
pub const MODERN: &str = "2026-07-28";

/// A client that sends what a test says, and nothing by itself.
pub struct Mcp<'a> {
    pub world: &'a World,
    pub key: String,
}

impl<'a> Mcp<'a> {
    pub fn new(world: &'a World) -> Self {
        Self { world, key: world.key("agent") }
    }

    /// A POST of these bytes, with these headers beside the key and the content type.
    pub async fn post(&self, body: &str, headers: &[(&str, &str)]) -> Answer {
        let url = format!("{}/mcp", self.world.earnest.url());
        let mut request = self.world.http.post(url).body(body.to_owned());
        request = request.header("content-type", "application/json");
        if !self.key.is_empty() {
            request = request.bearer_auth(&self.key);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        answer(request).await
    }

    /// A request of the era with a handshake, as clients send it after one.
    pub async fn rpc(&self, method: &str, params: Value) -> Answer {
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        let headers =
            [("accept", "application/json, text/event-stream"), ("mcp-protocol-version", LEGACY)];
        self.post(&body.to_string(), &headers).await
    }

    /// A request that speaks for itself; `able` is what the client says it can do.
    pub async fn rpc_2026(&self, method: &str, mut params: Value, able: Value) -> Answer {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "0" },
            "io.modelcontextprotocol/clientCapabilities": able,
        });
        let named = ["name", "taskId", "uri"].iter().find_map(|name| params[name].as_str());
        let named = named.map(str::to_owned);
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        let mut headers = vec![
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", MODERN),
            ("mcp-method", method),
        ];
        headers.extend(named.as_deref().map(|name| ("mcp-name", name)));
        self.post(&body.to_string(), &headers).await
    }

    /// The result of a tool.
    pub async fn tool(&self, name: &str, arguments: Value) -> Value {
        let params = json!({ "name": name, "arguments": arguments });
        let body = self.rpc("tools/call", params).await.expect(200);
        sound(name, &body)
    }

    /// Its object.
    pub async fn call(&self, name: &str, arguments: Value) -> Value {
        self.tool(name, arguments).await["structuredContent"].clone()
    }

    /// `paid_fetch`.
    pub async fn fetch(&self, url: &str, request_id: &str, max_price: &str) -> Value {
        let arguments = json!({ "url": url, "max_price": max_price, "request_id": request_id });
        self.call("paid_fetch", arguments).await
    }

    /// The error of a malformed call.
    pub async fn error(&self, name: &str, arguments: Value) -> Value {
        let params = json!({ "name": name, "arguments": arguments });
        let body = self.rpc("tools/call", params).await.expect(200);
        assert!(body["result"].is_null(), "{body}");
        body["error"].clone()
    }
}

/// A result that keeps what the tools promise: an object as its schema says, and one sentence.
pub fn sound(name: &str, body: &Value) -> Value {
    assert!(body["error"].is_null(), "{body}");
    let result = &body["result"];
    let object = &result["structuredContent"];
    let tools = crate::mcp::tools::snapshot();
    let tool = tools.as_array().unwrap().iter().find(|tool| tool["name"] == name).unwrap();
    let schema = jsonschema::validator_for(&tool["outputSchema"]).unwrap();
    if let Err(why) = schema.validate(object) {
        panic!("{why}: {object}");
    }
    let sentence = result["content"][0]["text"].as_str().unwrap();
    assert!(sentence.ends_with('.') && !sentence.contains('\n'), "{sentence}");
    // That an owner said no is what was asked for.
    let error: &[&str] = match name {
        "paid_fetch" => &["denied", "failed_not_charged", "outcome_unknown"],
        _ => &["failed"],
    };
    let is_error = error.contains(&object["status"].as_str().unwrap());
    assert_eq!(result["isError"] == true, is_error, "{result}");
    result.clone()
}

/// Buys over MCP as an agent with credentials of its own for the seller, and is refused with them;
/// what of all that must not be told.
pub async fn secrets_of_a_purchase(shop: &Shop) -> Vec<(String, String)> {
    const SELLERS: &str = "Bearer what-the-agent-shows-its-seller";
    const KEY: &str = "what-the-seller-calls-a-key";
    let mcp = Mcp { key: another_agent(shop).await, ..Mcp::new(&shop.world) };
    let ask = |path: &str, id: &str| {
        json!({ "url": shop.url(path), "max_price": "$1", "request_id": id,
            "headers": { "Authorization": SELLERS, "X-Api-Key": KEY } })
    };
    for (path, id, status) in [
        ("/weather", "w", "paid"),
        ("/fails", "f", "failed_not_charged"),
        ("/dear", "d", "approval_required"),
        ("/export", "e", "denied"),
    ] {
        assert_eq!(mcp.call("paid_fetch", ask(path, id)).await["status"], status, "{path}");
        mcp.rpc_2026("tools/call", json!({ "name": "quote", "arguments": {} }), json!({})).await;
    }
    mcp.call("tab_status", json!({})).await;
    // Refused at the door: with a key that is none, in a form that is none.
    let forged = Mcp { key: format!("{}x", mcp.key), ..Mcp::new(&shop.world) };
    assert_eq!(forged.rpc("tools/list", json!({})).await.status, 401);
    assert_eq!(mcp.post("{", &[]).await.status, 400);
    // While it lives, the same id gives the same voucher.
    let body =
        json!({ "quote": shop.quote("/weather").await, "max_price": "$1", "request_id": "w" });
    let voucher = shop.world.post(&mcp.key, "/v1/authorize", body).await.expect(201);
    let voucher = voucher["voucher"].as_str().unwrap().to_owned();
    [
        ("the key of an agent over MCP", mcp.key),
        ("a forged key", forged.key),
        ("a voucher that MCP presented", voucher),
        ("what an agent shows its seller", SELLERS.to_owned()),
        ("a key for the seller", KEY.to_owned()),
    ]
    .map(|(what, secret)| (what.to_owned(), secret))
    .to_vec()
}

/// A key of another agent of the same owner.
pub async fn another_agent(shop: &Shop) -> String {
    agent_of(&shop.world, "owner").await
}

/// A key of a new agent of an owner's, who is known by a key.
pub async fn agent_of(world: &World, owner: &str) -> String {
    let agent = world.post(owner, "/v1/agents", json!({ "name": "other" })).await.expect(201);
    let path = format!("/v1/agents/{}/keys", agent["id"].as_str().unwrap());
    let key = world.post(owner, &path, json!({ "label": "test" })).await.expect(201);
    key["key"].as_str().unwrap().to_owned()
}

impl World {
    /// The owner answers a question.
    pub async fn answer_approval(&self, approval: &str, decision: &str) {
        let path = format!("/v1/approvals/{approval}");
        let etag = self.get("owner", &path).await.headers["etag"].to_str().unwrap().to_owned();
        let decision = json!({ "decision": decision });
        let path = format!("{path}/decision");
        let headers = [("if-match", etag.as_str())];
        self.call_with("owner", Method::POST, &path, Some(decision), &headers).await.expect(200);
    }
}
