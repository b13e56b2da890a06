//! Another tenant's things are not there. The matrix is made from the description of the API, so a
//! new route is in it the day it is described: every operation, asked by everybody who is not
//! meant.

use std::collections::BTreeMap;

use earnest_core::admin::PutOrigin;
use reqwest::Method;
use serde_json::{Value, json};

use crate::openapi::{OPERATIONS, Operation};
use crate::world::{Answer, World};

/// Two owners, each with agents, and two sellers; all that the first owner has, has happened.
pub struct Tenants {
    pub world: World,
    /// Keys by name.
    pub keys: BTreeMap<&'static str, String>,
    /// Ids of the first owner's, by prefix.
    pub ids: BTreeMap<String, String>,
    /// What only the first owner, its agents and its seller may ever read.
    pub marks: Vec<String>,
}

/// Everybody but those without a live key.
const ROLES: [&str; 8] =
    ["owner", "agent", "seller", "operator", "sister", "owner b", "agent b", "seller b"];

impl Tenants {
    pub async fn new() -> Self {
        let world = World::ready().await;
        let mut keys = BTreeMap::new();
        for role in ["owner", "agent", "seller", "operator"] {
            keys.insert(role, world.key(role));
        }
        let text = |value: &Value, name: &str| value[name].as_str().unwrap().to_owned();
        let made = |role: String, path: String, body: Value| {
            let world = &world;
            async move { world.post(&role, &path, body).await.expect(201) }
        };
        let named = |name: &str| json!({ "name": name });
        let sister = made("owner".into(), "/v1/agents".into(), named("Sister")).await;
        let owner_b = made("operator".into(), "/v1/owners".into(), named("Owner B")).await;
        let seller_b = made("operator".into(), "/v1/sellers".into(), named("Seller B")).await;
        let key = |role: String, path: String| {
            let made = &made;
            async move { text(&made(role, path, json!({})).await, "key") }
        };
        let path = format!("/v1/owners/{}/keys", text(&owner_b, "id"));
        let owner_b_key = key("operator".into(), path).await;
        let agent_b = made(owner_b_key.clone(), "/v1/agents".into(), named("Agent B")).await;
        let path = format!("/v1/agents/{}/keys", text(&agent_b, "id"));
        keys.insert("agent b", key(owner_b_key.clone(), path).await);
        let path = format!("/v1/agents/{}/keys", text(&sister, "id"));
        keys.insert("sister", key("owner".into(), path).await);
        let path = format!("/v1/sellers/{}/keys", text(&seller_b, "id"));
        keys.insert("seller b", key("operator".into(), path).await);
        keys.insert("owner b", owner_b_key);

        let (mut ids, marks) = happened(&world).await;
        ids.insert("own".to_owned(), world.owner_id());
        ids.insert("agt".to_owned(), world.agent_id());
        ids.insert("sel".to_owned(), world.seller_id());
        Self { world, keys, ids, marks }
    }

    /// A path with the first owner's ids, by what the parameters are described as.
    fn path(&self, operation: &Operation) -> String {
        operation.filled(|parameter| {
            let described = parameter["description"].as_str().unwrap_or_default();
            let known =
                self.ids.iter().find(|(prefix, _)| described.contains(&format!("{prefix}_")));
            match (known, described) {
                (Some((_, id)), _) => id.clone(),
                (None, "me") => self.ids["sel"].clone(),
                (None, "PayPal's id of the capture" | "PayPal's id of the transaction") => {
                    self.ids["capture"].clone()
                }
                _ => panic!("{}: what is {parameter}?", operation.path),
            }
        })
    }

    /// Asks an operation as somebody, with headers and a body that would do.
    async fn ask(&self, operation: &Operation, path: &str, key: &str) -> Answer {
        let body = operation.body().map(fitting);
        let headers = [("if-match", "\"1\""), ("idempotency-key", "tenants-1")];
        self.world.call_with(key, operation.method.clone(), path, body, &headers).await
    }

    #[track_caller]
    fn assert_silent(&self, answer: &Answer, what: &str) {
        let text = String::from_utf8_lossy(&answer.bytes);
        for mark in &self.marks {
            assert!(!text.contains(mark.as_str()), "{what} shows {mark}: {text}");
            for (name, value) in &answer.headers {
                let value = String::from_utf8_lossy(value.as_bytes());
                assert!(!value.contains(mark.as_str()), "{what} shows {mark} in {name}: {value}");
            }
        }
    }
}

/// What the first owner did: bought and settled, asked and answered, was refused. The ids by prefix,
/// and what would betray any of it.
async fn happened(world: &World) -> (BTreeMap<String, String>, Vec<String>) {
    world.spend(100_000, "betrayed-by-request-id").await;
    let voucher = world.buy(10_000, "betrayed-held").await;
    let waiting = world.authorize(world.quote("/betrayed-dear", 250_000), "betrayed-waits").await;
    let waiting = waiting.expect(202);
    let approval = waiting["approval_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/approvals/{approval}/decision");
    let body = json!({ "decision": "grant", "cap": "$0.77", "for_seconds": 600 });
    world
        .call_with("owner", Method::POST, &path, Some(body), &[("if-match", "\"1\"")])
        .await
        .expect(200);
    let refused = world.authorize(world.quote("/betrayed-refused", 9_000_000), "betrayed-no").await;
    assert_eq!(refused.refusal(), "policy_denied/per_call_cap");
    let again = world.authorize(world.quote("/betrayed-dearer", 999_000), "betrayed-waits-2").await;
    let again = again.expect(202)["approval_id"].as_str().unwrap().to_owned();

    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/tabs/{tab}/settle");
    let headers = [("idempotency-key", "betrayed-settle")];
    let settlement =
        world.call_with("owner", Method::POST, &path, None, &headers).await.expect(202);
    world.settle_down().await;
    world.mail().await;
    let hook = json!({ "url": "http://127.0.0.1:9/betrayed", "kinds": ["owner.zone_changed"] });
    let hook = world.post("owner", "/v1/webhooks", hook).await.expect(201);
    let hook = hook["id"].as_str().unwrap().to_owned();
    let first = |list: Value| list["data"][0]["id"].as_str().unwrap().to_owned();
    let list = |path: String| async move { world.get("owner", &path).await.expect(200) };
    let trail = list(format!("/v1/paypal/trail?tab={tab}")).await;
    let keys = list(format!("/v1/agents/{}/keys", world.agent_id())).await;
    let purchase = list("/v1/purchases?limit=500".to_owned()).await;
    let row = |id: &str| {
        let rows = purchase["data"].as_array().unwrap();
        rows.iter().find(|row| row["request_id"] == id).unwrap().clone()
    };
    let billed = row("betrayed-by-request-id");
    let ids = BTreeMap::from(
        [
            ("tab", tab.clone()),
            ("set", settlement["id"].as_str().unwrap().to_owned()),
            ("apr", again.clone()),
            ("vlt", first(list("/v1/payment-methods".to_owned()).await)),
            ("pur", billed["id"].as_str().unwrap().to_owned()),
            ("gra", first(list("/v1/grants".to_owned()).await)),
            ("whe", hook.clone()),
            // No delivery was made: nobody finds it, its holder neither.
            ("whd", "whd_00000000000000000000000001".to_owned()),
            ("int", trail["intents"][0]["id"].as_str().unwrap().to_owned()),
            ("key", first(keys)),
            ("capture", trail["intents"][0]["paypal_capture"].as_str().unwrap().to_owned()),
        ]
        .map(|(prefix, id)| (prefix.to_owned(), id)),
    );
    let mut marks: Vec<String> = ids.values().cloned().collect();
    marks.extend([world.owner_id(), world.agent_id(), approval, voucher]);
    marks.extend(
        purchase["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["id"].as_str().unwrap().to_owned()),
    );
    // In our own words everything of it is called so.
    marks.push("betrayed".to_owned());
    (ids, marks)
}

/// A body that fits a schema, nothing optional in it.
fn fitting(schema: &'static Value) -> Value {
    let required = schema["required"].as_array().into_iter().flatten();
    let member = |name: &Value| {
        let name = name.as_str().unwrap();
        let kind = schema["properties"][name]["type"].as_str().unwrap_or_default();
        let value = match kind {
            "integer" => json!(1),
            "boolean" => json!(false),
            "array" => json!([]),
            "object" => json!({}),
            _ => json!("x"),
        };
        (name.to_owned(), value)
    };
    Value::Object(required.map(member).collect())
}

/// Whether somebody is meant by an operation on the first owner's things: by the tag of the
/// operation, or as listed here.
fn meant(operation: &Operation, role: &str) -> bool {
    let more: &[&str] = match operation.described["operationId"].as_str().unwrap() {
        // Whoever took part sees the purchase.
        "get_v1_purchases_id" | "get_v1_purchases_id_receipt" => {
            &["owner", "agent", "seller", "operator"]
        }
        // The operator may look at tabs and settlements, and at what a question was about.
        "get_v1_tabs_id" | "get_v1_tabs_id_settlements" | "get_v1_settlements_id" => {
            &["owner", "operator", "agent", "sister"]
        }
        "get_v1_approvals_id" => &["owner", "operator", "agent"],
        "get_v1_paypal_trail" | "get_v1_owners_id" => &["owner", "operator"],
        "post_v1_owners_id_pause" | "post_v1_owners_id_resume" | "put_v1_owners_id_zone" => {
            &["owner", "operator"]
        }
        "post_v1_owners_id_keys"
        | "post_v1_owners_id_login_links"
        | "get_v1_owners_id_sign_ins"
        | "delete_v1_owners_id_sign_ins" => &["owner", "operator"],
        "get_v1_sellers_id"
        | "get_v1_sellers_id_lines"
        | "post_v1_sellers_id_keys"
        | "post_v1_sellers_id_origins"
        | "post_v1_sellers_id_origins_prove" => &["seller", "operator"],
        _ => match operation.tag() {
            "owner" => &["owner"],
            "agent" => &["agent"],
            "seller" => &["seller"],
            "operator" => &["operator"],
            other => panic!("{}: who is meant by the tag {other}?", operation.path),
        },
    };
    more.contains(&role)
}

/// Operations on things with an id: everybody who is not meant is told that there is no such thing.
#[tokio::test]
async fn what_belongs_to_somebody_else_is_not_there() {
    let tenants = Tenants::new().await;
    let mark = tenants.world.mark();
    let mut asked = 0;
    for operation in OPERATIONS.iter().filter(|it| it.needs_key() && it.ends()) {
        if !operation.path.contains('{') {
            continue;
        }
        let path = tenants.path(operation);
        for role in ROLES {
            let what = format!("{} {path} as {role}", operation.method);
            if meant(operation, role) {
                // That whoever is meant is let in, so that a 404 above is worth something.
                if operation.method == Method::GET {
                    let answer = tenants.ask(operation, &path, &tenants.keys[role]).await;
                    // The buyer's side is led on to the whole receipt.
                    let led_on = operation.path.ends_with("/receipt") && role != "seller";
                    let shown = if led_on { 303 } else { 200 };
                    assert_eq!(answer.status, shown, "{what}: {}", answer.body);
                }
                continue;
            }
            let answer = tenants.ask(operation, &path, &tenants.keys[role]).await;
            assert_eq!(
                (answer.status.as_u16(), answer.code()),
                (404, "not_found"),
                "{what}: {}",
                answer.body
            );
            tenants.assert_silent(&answer, &what);
            tenants.world.assert_untouched(mark, &what);
            asked += 1;
        }
    }
    assert!(asked > 200, "only {asked} were asked");
}

/// Operations without an id: everybody is told about their own things, or that there is no such
/// thing; nobody about the first owner's.
#[tokio::test]
async fn lists_hold_ones_own_things_only() {
    let tenants = Tenants::new().await;
    let strangers = ["owner b", "agent b", "seller b"];
    for operation in OPERATIONS.iter().filter(|it| it.needs_key() && it.ends()) {
        if operation.path.contains('{') {
            continue;
        }
        for role in strangers {
            let queries: &[&str] = match operation.method {
                // Short pages, so that cursors are looked at too; and in both forms.
                Method::GET => &[
                    "",
                    "?limit=1",
                    "?limit=500",
                    "?format=csv&limit=1",
                    "?prefix=tab:",
                    "?prefix=limit:",
                    "?prefix=seller:&limit=1",
                ],
                _ => &[""],
            };
            for query in queries {
                let path = format!("{}{query}", operation.path);
                let what = format!("{} {path} as {role}", operation.method);
                let answer = tenants.ask(operation, &path, &tenants.keys[role]).await;
                assert!(answer.status.as_u16() < 500, "{what}: {}", answer.body);
                tenants.assert_silent(&answer, &what);
            }
        }
        // By name, too, where a query can name something.
        for role in strangers {
            for parameter in operation.parameters("query") {
                let name = parameter["name"].as_str().unwrap();
                for id in tenants.ids.values() {
                    let path = format!("{}?{name}={id}", operation.path);
                    let answer = tenants.ask(operation, &path, &tenants.keys[role]).await;
                    let what = format!("{} {path} as {role}", operation.method);
                    let refused = answer.status.is_client_error();
                    let empty = answer.body["data"].as_array().is_some_and(Vec::is_empty);
                    assert!(refused || empty || name == "cursor", "{what}: {}", answer.body);
                    let mut silent = answer;
                    // What was asked for may be named in the refusal.
                    silent.bytes =
                        String::from_utf8_lossy(&silent.bytes).replace(id, "").into_bytes();
                    tenants.assert_silent(&silent, &what);
                }
            }
        }
    }
}

/// Without a live key nothing is told, whatever is asked for and however.
#[tokio::test]
async fn without_a_live_key_nothing_is_told() {
    let tenants = Tenants::new().await;
    let world = &tenants.world;
    let mut dead = vec![
        String::new(),
        "ek_owner_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".to_owned(),
        "ek_operator_".to_owned(),
        format!("{}x", tenants.keys["owner"]),
        format!("ek_operator_{}", tenants.keys["owner"].trim_start_matches("ek_owner_")),
    ];
    // One of each that was revoked: by hand, and by a rotation.
    let path = format!("/v1/agents/{}/keys", world.agent_id());
    let made = world.post("owner", &path, json!({ "label": "lost" })).await.expect(201);
    let revoked = made["key"].as_str().unwrap().to_owned();
    assert_eq!(world.get(&revoked, "/v1/purchases").await.status, 200, "it worked before");
    let path = format!("{path}/{}", made["id"].as_str().unwrap());
    world.call("owner", Method::DELETE, &path, None).await.expect(200);
    dead.push(revoked);
    for (role, path) in
        [("owner", "/v1/owners/me/keys".to_owned()), ("seller", "/v1/sellers/me/keys".to_owned())]
    {
        let old = world.post(role, &path, json!({})).await.expect(201);
        let old = old["key"].as_str().unwrap().to_owned();
        assert_eq!(world.get(&old, "/v1/purchases").await.status, 200, "it worked before");
        let new = world.post(&old, &path, json!({ "revoke_others": true })).await.expect(201);
        assert_eq!(world.get(new["key"].as_str().unwrap(), "/v1/purchases").await.status, 200);
        dead.push(old);
        dead.push(tenants.keys[role].clone());
    }
    let mark = world.mark();
    for operation in OPERATIONS.iter().filter(|it| it.needs_key() && it.ends()) {
        let path = if operation.path.contains('{') {
            tenants.path(operation)
        } else {
            operation.path.clone()
        };
        for key in &dead {
            let answer = tenants.ask(operation, &path, key).await;
            let what = format!("{} {path} with a dead key", operation.method);
            assert_eq!((answer.status.as_u16(), answer.code()), (401, "unauthenticated"), "{what}");
            tenants.assert_silent(&answer, &what);
        }
    }
    world.assert_untouched(mark, "a dead key");
}

/// What needs no key: it tells nothing but what is public, or what was asked with.
#[tokio::test]
async fn what_needs_no_key_is_public() {
    let open: Vec<&str> = OPERATIONS
        .iter()
        .filter(|operation| !operation.needs_key())
        .map(|operation| operation.path.as_str())
        .collect();
    // Written out on purpose: a route that forgot its key shows here.
    assert_eq!(
        open,
        [
            "/.well-known/jwks.json",
            "/healthz",
            "/openapi.json",
            "/problems/{code}",
            "/r/{token}",
            "/readyz",
            "/v1/receipts/verify",
            "/vault/cancel",
            "/vault/return",
            "/webhooks/paypal",
        ]
    );
    let tenants = Tenants::new().await;
    let world = &tenants.world;
    for path in ["/.well-known/jwks.json", "/healthz", "/openapi.json", "/readyz", "/vault/cancel"]
    {
        tenants.assert_silent(&world.get("", path).await, path);
    }
    // A receipt names hashes, not addresses.
    let receipt =
        world.get("owner", &format!("/v1/purchases/{}/receipt", tenants.ids["pur"])).await;
    assert_eq!(receipt.status, 303);
    let receipt = world.get("", receipt.headers["location"].to_str().unwrap()).await;
    let text = receipt.body.to_string();
    for secret in ["betrayed", "/weather", &world.agent_id(), "session_cap", "@"] {
        assert!(!text.contains(secret), "the receipt shows {secret}: {text}");
    }
    for nobody in ["x", "", "%25", "*", "%", "_"] {
        assert_eq!(world.get("", &format!("/r/{nobody}")).await.status, 404);
    }
}

/// No credential of an agent reads or changes a policy, opens, closes or settles a tab, answers a
/// question, makes or takes a key, or moves anything but by buying.
#[tokio::test]
async fn an_agent_only_buys_and_reads_its_own() {
    let tenants = Tenants::new().await;
    let mark = tenants.world.mark();
    for operation in OPERATIONS.iter().filter(|it| it.needs_key() && it.ends()) {
        let id = operation.described["operationId"].as_str().unwrap();
        let reads = [
            "get_v1_purchases",
            "get_v1_purchases_id",
            "get_v1_purchases_id_receipt",
            "get_v1_tabs",
            "get_v1_tabs_id",
            "get_v1_tabs_id_settlements",
            "get_v1_settlements_id",
            "get_v1_approvals_id",
        ];
        if reads.contains(&id) || id == "post_v1_authorize" {
            continue;
        }
        let path = if operation.path.contains('{') {
            tenants.path(operation)
        } else {
            operation.path.clone()
        };
        for role in ["agent", "sister", "agent b"] {
            let answer = tenants.ask(operation, &path, &tenants.keys[role]).await;
            assert_eq!(answer.refusal(), "not_found", "{} {path} as {role}", operation.method);
        }
    }
    tenants.world.assert_untouched(mark, "an agent");
    // Policies by every name they have.
    for subject in ["owner", "me", &tenants.world.owner_id(), &tenants.world.agent_id()] {
        for rest in ["", "/versions"] {
            let path = format!("/v1/policies/{subject}{rest}");
            assert_eq!(tenants.world.get("agent", &path).await.refusal(), "not_found");
        }
    }
    // Its sister's purchases and questions are not its own, on no page of any length.
    let sister = &tenants.keys["sister"];
    for query in ["", "?limit=1", "?limit=500", "?limit=1&format=csv", "?format=csv"] {
        let answer = tenants.world.get(sister, &format!("/v1/purchases{query}")).await;
        assert_eq!(answer.status, 200);
        let text = format!("{:?} {}", answer.headers, answer.body);
        assert!(!text.contains("pur_") && !text.contains("betrayed"), "{query}: {text}");
    }
}

/// An agent's own pages are full and complete, whatever its sister buys in between.
#[tokio::test]
async fn pages_of_an_agent_are_filled_with_its_own() {
    let tenants = Tenants::new().await;
    let world = &tenants.world;
    let sister = &tenants.keys["sister"];
    for n in 0..6 {
        // Ids made in one millisecond have no order.
        world.advance(1);
        let (key, id) = if n % 2 == 0 {
            (sister.as_str(), format!("s-{n}"))
        } else {
            ("agent", format!("a-{n}"))
        };
        let body = json!({ "quote": world.quote("/weather", 1_000), "max_price": 1_000, "request_id": id });
        world.post(key, "/v1/authorize", body).await.expect(201);
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    for _ in 0..10 {
        let page = world.get(sister, &format!("/v1/purchases?limit=1{cursor}")).await.expect(200);
        let rows = page["data"].as_array().unwrap();
        // A full page may be the last one; then what follows is empty.
        assert_eq!(rows.len(), usize::from(seen.len() < 3));
        if rows.is_empty() {
            break;
        }
        // Where the next page begins is where this one ended, not where somebody else's row is.
        if let Some(next) = page["next_cursor"].as_str() {
            assert!(next.contains(rows[0]["id"].as_str().unwrap()), "{next}");
        }
        seen.push(rows[0]["request_id"].as_str().unwrap().to_owned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["s-4", "s-2", "s-0"]);
    // It is a list of its own: whatever there is of others, nothing has to be looked through.
    let page = world.get(sister, "/v1/purchases").await.expect(200);
    let sister = page["data"][0]["agent"].as_str().unwrap();
    let reader = world.earnest.app.store.reader();
    let own: earnest_store::Page<earnest_core::purchase::Purchase> =
        reader.list("purchases.agent", sister, None, 500, true).unwrap();
    let own = own.items;
    assert!(own.len() == 3 && own.iter().all(|row| row.agent.to_string() == sister));
}

/// A seller sees what it sold, and nothing of the owner's limits, questions or tab.
#[tokio::test]
async fn a_seller_sees_no_limits_of_an_owner() {
    let tenants = Tenants::new().await;
    let world = &tenants.world;
    let purchase = &tenants.ids["pur"];
    let mut texts = Vec::new();
    for path in [
        "/v1/purchases".to_owned(),
        "/v1/purchases?format=csv".to_owned(),
        format!("/v1/purchases/{purchase}"),
        "/v1/sellers/me".to_owned(),
        "/v1/sellers/me/lines".to_owned(),
        "/v1/accounts".to_owned(),
        "/v1/accounts?format=csv".to_owned(),
        "/v1/transfers?limit=500".to_owned(),
        "/v1/transfers?limit=500&format=csv".to_owned(),
    ] {
        let answer = world.get("seller", &path).await;
        assert_eq!(answer.status, 200, "{path}");
        texts.push((path, format!("{:?} {}", answer.headers, answer.body)));
    }
    let sold = texts.iter().filter(|(_, text)| text.contains(purchase.as_str())).count();
    assert_eq!(sold, 4, "the seller sees its own sale");
    for (path, text) in &texts {
        for secret in [
            tenants.ids["tab"].as_str(),
            tenants.ids["apr"].as_str(),
            tenants.ids["gra"].as_str(),
            "_cap",
            "limit:",
            "betrayed-refused",
            "betrayed-no",
            "betrayed-waits",
            "betrayed-dear",
            "5000000",
            "10000000",
        ] {
            assert!(!text.contains(secret), "{path} shows {secret}: {text}");
        }
    }
    // Nor where it reports: not even of a line that the owner's limits left unbilled.
    let held = world.get("owner", "/v1/purchases?limit=500").await.expect(200);
    for row in
        held["data"].as_array().unwrap().iter().filter(|row| row["voucher_expires_at"].is_null())
    {
        let path = format!("/v1/purchases/{}", row["id"].as_str().unwrap());
        assert_eq!(
            world.get("seller", &path).await.refusal(),
            "not_found",
            "never sold to anybody"
        );
    }
}

/// Owner and seller see their own accounts and movements: all of them, page by page, with nobody
/// else's names, and the operator sees everything.
#[tokio::test]
async fn books_are_shown_to_whom_they_belong() {
    let tenants = Tenants::new().await;
    let world = &tenants.world;
    // Somebody else's money moves too.
    let unit = PutOrigin {
        seller: world.get(&tenants.keys["seller b"], "/v1/sellers/me").await.expect(200)["id"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap(),
        origin: "https://b.example".to_owned(),
        proved: true,
    };
    world.earnest.app.store.submit(unit).await.unwrap();
    let everything = world.get("operator", "/v1/accounts?limit=500").await.expect(200);
    let all: Vec<&str> = names(&everything);
    assert!(all.iter().any(|name| name.starts_with("capture:")));
    let agents = [world.agent_id()];
    let own = |name: &&&str| {
        name.contains(&world.owner_id())
            || name.contains(&tenants.ids["tab"])
            || agents.iter().any(|agent| name.contains(agent.as_str()))
    };
    let expected: Vec<&str> = all.iter().filter(own).copied().collect();
    assert!(expected.len() >= 4);
    let owners = world.get("owner", "/v1/accounts?limit=500").await.expect(200);
    assert_eq!(names(&owners), expected);
    assert_eq!(owners["next_cursor"], Value::Null);
    // One at a time comes to the same.
    for (role, whole) in [("owner", &owners), ("operator", &everything)] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = world.get(role, &format!("/v1/accounts?limit=1{cursor}")).await.expect(200);
            seen.extend(names(&page).into_iter().map(str::to_owned));
            match page["next_cursor"].as_str() {
                Some(next) => {
                    let next: String = next.bytes().map(|b| format!("%{b:02x}")).collect();
                    cursor = format!("&cursor={next}");
                }
                None => break,
            }
        }
        assert_eq!(seen, names(whole));
    }
    let sellers = world.get("seller", "/v1/accounts").await.expect(200);
    assert!(
        names(&sellers)
            .iter()
            .all(|name| name.starts_with(&format!("seller:{}:", world.seller_id())))
    );
    assert!(!names(&sellers).is_empty());
    for prefix in ["seller", "seller:", "s", &format!("seller:{}:acc", world.seller_id())] {
        let some = world.get("seller", &format!("/v1/accounts?prefix={prefix}")).await.expect(200);
        assert_eq!(names(&some)[0], format!("seller:{}:accrued", world.seller_id()));
    }
    for prefix in ["tab:", "paypal_cash", "owner:", "x"] {
        let none = world.get("seller", &format!("/v1/accounts?prefix={prefix}")).await.expect(200);
        assert_eq!(none["data"], json!([]), "{prefix}");
    }

    // Movements: whole, and one at a time.
    for role in ["owner", "seller", "operator"] {
        let whole = world.get(role, "/v1/transfers?limit=500").await.expect(200);
        let whole = whole["data"].as_array().unwrap();
        assert!(whole.len() > 2, "{role}");
        for limit in [1, 2, 3, 7] {
            let (mut seen, mut cursor) = (Vec::new(), String::new());
            loop {
                let path = format!("/v1/transfers?limit={limit}{cursor}");
                let page = world.get(role, &path).await.expect(200);
                let rows = page["data"].as_array().unwrap();
                assert!(rows.len() <= limit);
                seen.extend(rows.clone());
                match page["next_cursor"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
            assert_eq!(&seen, whole, "{role} by {limit}");
        }
    }
    let owners = world.get("owner", "/v1/transfers?limit=500").await.expect(200).to_string();
    assert!(owners.contains("seller:accrued") && !owners.contains(&world.seller_id()));
}

fn names(list: &Value) -> Vec<&str> {
    list["data"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}
