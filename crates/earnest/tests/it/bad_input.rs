//! What is not acceptable gets its code from the one table and moves nothing: no money, and no row
//! either. Bodies here; amounts, origins and what HTTP itself allows stand in files of their own.

use reqwest::Method;
use serde_json::{Value, json};

use crate::openapi::{OPERATIONS, operation_of};
use crate::world::{Answer, World};

/// A request that would be carried out.
pub struct Sample {
    pub role: &'static str,
    pub method: Method,
    pub path: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Value,
}

impl Sample {
    pub async fn send(&self, world: &World, body: impl Into<Vec<u8>>) -> Answer {
        let headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        world.json(self.role, self.method.clone(), &self.path, &headers, body).await
    }
}

/// A purchase that waits for its owner; its approval.
pub async fn question(world: &World, request_id: &str) -> String {
    let waiting = world.authorize(world.quote("/dear", 250_000), request_id).await.expect(202);
    waiting["approval_id"].as_str().unwrap().to_owned()
}

/// One of every route that takes a body.
pub async fn samples(world: &World) -> Vec<Sample> {
    let approval = question(world, "sample").await;
    let voucher = world.buy(10_000, "sample-voucher").await;
    let lost = crate::restore::once_restored(world).await;
    let agent = world.agent_id();
    let limits = json!({
        "per_call_cap_micros": "$1.00", "session_cap_micros": 5_000_000,
        "day_cap_micros": "10.00", "approve_above_micros": 200_000,
        "rate": { "count": 120, "per_seconds": 60 },
        "sellers": [world.seller_id()], "listings": ["GET /weather"],
    });
    let first = || vec![("if-match", "\"1\"".to_owned())];
    let sample = |role, method: &str, path: &str, headers, body| Sample {
        role,
        method: method.parse().unwrap(),
        path: path.to_owned(),
        headers,
        body,
    };
    let none = Vec::new;
    let stranger = earnest_core::suspense::BookUnasked {
        capture: "STRANGER1".to_owned(),
        amount: earnest_core::money::Micros::constant(5_000_000),
        fee: earnest_core::money::Micros::constant(660_000),
        invoice_id: None,
        claims: None,
    };
    world.earnest.app.store.submit(stranger).await.unwrap();
    keep_foreign_line(world).await;
    let keyed = |key: &str| vec![("idempotency-key", key.to_owned())];
    let mut owner_limits = limits.clone();
    owner_limits["tab_limit_micros"] = json!(20_000_000);
    vec![
        sample(
            "agent",
            "POST",
            "/v1/authorize",
            none(),
            json!({
                "quote": world.quote("/weather", 10_000), "max_price": "$0.01", "request_id": "body-1",
            }),
        ),
        sample(
            "owner",
            "POST",
            &format!("/v1/approvals/{approval}/decision"),
            first(),
            json!({
                "decision": "grant", "cap": "$5.00", "for_seconds": 600,
            }),
        ),
        sample("owner", "PUT", "/v1/policies/owner", first(), owner_limits.clone()),
        sample("owner", "PUT", &format!("/v1/policies/{agent}"), first(), limits),
        sample(
            "owner",
            "POST",
            "/v1/policies/owner/revert",
            vec![("if-match", "\"2\"".to_owned())],
            json!({ "version": 1 }),
        ),
        sample("owner", "POST", "/v1/policies/owner/dry-run?days=30", none(), owner_limits.clone()),
        sample(
            "operator",
            "POST",
            "/v1/owners",
            none(),
            json!({ "name": "Ada", "zone": "Europe/Amsterdam" }),
        ),
        sample(
            "operator",
            "PUT",
            &format!("/v1/owners/{}/credit", world.owner_id()),
            none(),
            json!({ "line": "$20.00", "unfreeze": false }),
        ),
        sample("owner", "PUT", "/v1/owners/me/zone", none(), json!({ "zone": "Asia/Tokyo" })),
        sample(
            "owner",
            "POST",
            "/v1/owners/me/keys",
            none(),
            json!({ "label": "x", "revoke_others": false }),
        ),
        sample("owner", "POST", "/v1/agents", none(), json!({ "name": "helper" })),
        sample(
            "owner",
            "POST",
            &format!("/v1/agents/{agent}/keys"),
            none(),
            json!({ "label": "x", "revoke_others": false }),
        ),
        sample(
            "operator",
            "POST",
            "/v1/sellers",
            none(),
            json!({
                "name": "Weather", "payout_recipient": "shop@example.com", "commission_ppm": 10_000,
            }),
        ),
        sample(
            "seller",
            "POST",
            "/v1/sellers/me/keys",
            none(),
            json!({ "label": "x", "revoke_others": false }),
        ),
        sample(
            "seller",
            "POST",
            "/v1/sellers/me/origins",
            none(),
            json!({ "origin": "https://api.example" }),
        ),
        sample(
            "seller",
            "POST",
            "/v1/vouchers/report",
            none(),
            json!({ "reports": [{
            "voucher": voucher, "fate": "redeemed", "claimed_at": world.clock.now(), "amount_micros": 10_000,
        }] }),
        ),
        sample(
            "owner",
            "POST",
            "/v1/webhooks",
            none(),
            json!({ "url": "https://hooks.example/", "kinds": ["tab.*"], "scheme": "v1a" }),
        ),
        sample(
            "operator",
            "POST",
            "/v1/cash-entries",
            keyed("cash-1"),
            json!({
                "kind": "deposit", "paypal_id": "DEPOSIT1", "amount": "$5", "fee": "$0.25",
            }),
        ),
        sample(
            "operator",
            "POST",
            "/v1/cash-entries/DEPOSIT1/void",
            keyed("void-1"),
            json!({ "reason": "a mistake" }),
        ),
        sample(
            "operator",
            "POST",
            "/v1/reconciliation/acknowledgements",
            keyed("known-1"),
            json!({ "paypal_id": "POUNDS1", "reason": "known" }),
        ),
        sample(
            "operator",
            "POST",
            "/v1/suspense/STRANGER1/clear",
            keyed("clear-1"),
            json!({ "to": "credit", "id": world.owner_id() }),
        ),
        sample("operator", "POST", "/v1/restore/lift", none(), json!({ "accept_gap": "known" })),
        // Nobody listens there.
        sample(
            "operator",
            "POST",
            "/v1/migrate",
            none(),
            json!({ "to": "postgres://127.0.0.1:9/x" }),
        ),
        sample(
            "operator",
            "POST",
            "/v1/restore/accept",
            none(),
            json!({ "records": ["ODD1"], "reason": "known" }),
        ),
        sample(
            "operator",
            "POST",
            &format!("/v1/restore/lines/{lost}"),
            none(),
            json!({ "paid_by": "nobody" }),
        ),
        sample(
            "operator",
            "POST",
            "/v1/signing-keys/rotate",
            keyed("rotate-1"),
            json!({ "for": "receipt", "at_once": false }),
        ),
        sample("", "POST", "/v1/receipts/verify", none(), json!({ "receipt": "a.b.c" })),
    ]
}

/// Not in [`samples`]: the one needs a server of the seller's, the other has a body of PayPal's.
const APART: [&str; 2] = ["/v1/sellers/{id}/origins/prove", "/webhooks/paypal"];

#[tokio::test]
async fn every_route_that_takes_a_body_has_a_sample_that_is_carried_out() {
    let world = World::ready().await;
    let samples = samples(&world).await;
    for operation in OPERATIONS.iter() {
        if operation.described.get("requestBody").is_none()
            || APART.contains(&operation.path.as_str())
        {
            continue;
        }
        let fits = |sample: &Sample| {
            let found = operation_of(&sample.method, &sample.path).unwrap();
            (&found.method, &found.path) == (&operation.method, &operation.path)
        };
        assert!(samples.iter().any(fits), "no sample for {}", operation.path);
    }
    for sample in &samples {
        let answer = sample.send(&world, sample.body.to_string()).await;
        // Carried out as far as that goes: nobody listens there.
        if sample.path == "/v1/migrate" {
            assert_eq!(answer.refusal(), "state_conflict");
            continue;
        }
        assert!(answer.status.is_success(), "{}: {}", sample.path, answer.body);
    }
}

fn broken(body: &Value) -> Vec<(&'static str, Vec<u8>)> {
    let good = body.to_string().into_bytes();
    let text = String::from_utf8(good.clone()).unwrap();
    let (name, value) = body.as_object().unwrap().iter().next().unwrap();
    let first = text[1..].chars().next().unwrap();
    assert_eq!(first, '"');
    let escaped: String = name.chars().map(|c| format!("\\u{:04x}", c as u32)).collect();
    let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let deep = format!("{{\"{name}\":{}1{}}}", "[".repeat(50_000), "]".repeat(50_000));
    let objects = format!("{}1{}", "{\"a\":".repeat(50_000), "}".repeat(50_000));
    let with = |before: &[u8], after: &[u8]| [before, &good, after].concat();
    vec![
        ("nothing", Vec::new()),
        ("white space", b" \r\n\t".to_vec()),
        ("a part", good[..good.len() - 1].to_vec()),
        ("half", good[..good.len() / 2].to_vec()),
        ("two", with(b"", &good)),
        ("something behind", with(b"", b" x")),
        ("a comma behind", with(b"", b",")),
        ("NUL behind", with(b"", b"\0")),
        ("NUL before", with(b"\0", b"")),
        ("a byte order mark", with(b"\xef\xbb\xbf", b"")),
        ("UTF-16", utf16),
        ("bytes that are no text", b"\xff\xfe\xfd".to_vec()),
        ("no text inside", with(b"{\"\xc3\x28\":1,", b"")),
        ("an array around", with(b"[", b"]")),
        (
            "members in order, without names",
            json!(body.as_object().unwrap().values().collect::<Vec<_>>()).to_string().into_bytes(),
        ),
        ("a string around", json!(text).to_string().into_bytes()),
        ("null", b"null".to_vec()),
        ("a number", b"1".to_vec()),
        ("true", b"true".to_vec()),
        ("an empty array", b"[]".to_vec()),
        ("a comment", with(b"/* */", b"")),
        ("single quotes", text.replace('"', "'").into_bytes()),
        ("a trailing comma", format!("{},}}", &text[..text.len() - 1]).into_bytes()),
        ("NaN", format!("{{\"{name}\":NaN}}").into_bytes()),
        ("a form", format!("{name}=1").into_bytes()),
        ("a member twice", format!("{{\"{name}\":{value},{}", &text[1..]).into_bytes()),
        (
            "a member twice, one escaped",
            format!("{{\"{escaped}\":{value},{}", &text[1..]).into_bytes(),
        ),
        ("a member twice, nested", format!("{{\"{name}\":{{\"a\":1,\"a\":2}}}}").into_bytes()),
        (
            "a member twice, in an array",
            format!("{{\"{name}\":[{{\"a\":1,\"\\u0061\":1}}]}}").into_bytes(),
        ),
        ("deep arrays", deep.into_bytes()),
        ("deep objects", objects.into_bytes()),
        ("half a surrogate", format!("{{\"{name}\":\"\\ud800\"}}").into_bytes()),
        ("a control character", format!("{{\"{name}\":\"a\nb\"}}").into_bytes()),
    ]
}

#[tokio::test]
async fn broken_json_is_malformed_everywhere_and_moves_nothing() {
    let world = World::ready().await;
    let samples = samples(&world).await;
    let mark = world.mark();
    for sample in &samples {
        for (what, bytes) in broken(&sample.body) {
            let answer = sample.send(&world, bytes).await;
            let what = format!("{what} at {}", sample.path);
            assert_eq!(answer.refusal(), "request_malformed", "{what}: {}", answer.body);
            world.assert_untouched(mark, &what);
        }
    }
}

/// Values of every other type than this one.
fn wrong_types(value: &Value) -> Vec<Value> {
    let all = [
        json!(null),
        json!(true),
        json!(1.5),
        json!(-1),
        json!("\u{0}"),
        json!([]),
        json!({}),
        json!(["x"]),
        json!({ "x": 1 }),
    ];
    let kind = |value: &Value| match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(number) if number.is_f64() => 2,
        Value::Number(_) => 3,
        Value::String(_) => 4,
        Value::Array(_) => 5,
        Value::Object(_) => 6,
    };
    all.into_iter().filter(|other| kind(other) != kind(value)).collect()
}

/// Every place in a value, deepest first, with what stands there.
fn places(value: &Value, at: &str, all: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                places(member, &format!("{at}/{name}"), all);
            }
        }
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                places(item, &format!("{at}/{n}"), all);
            }
        }
        _ => {}
    }
    if !at.is_empty() {
        all.push((at.to_owned(), value.clone()));
    }
}

/// Members that may be left out, and so may be null.
const OPTIONAL: [&str; 19] = [
    "/request_id",
    "/cap",
    "/for_seconds",
    "/per_call_cap_micros",
    "/session_cap_micros",
    "/day_cap_micros",
    "/approve_above_micros",
    "/rate",
    "/sellers",
    "/listings",
    "/tab_limit_micros",
    "/zone",
    "/line",
    "/payout_recipient",
    "/accept_gap",
    "/reports/0/amount_micros",
    "/label",
    "/unfreeze",
    "/fee",
];

/// Amounts may be written as text or number, and say their own code.
fn is_amount(place: &str) -> bool {
    place.ends_with("_micros")
        || ["/max_price", "/cap", "/line", "/amount", "/fee"].contains(&place)
}

#[tokio::test]
async fn a_wrong_type_of_any_member_is_refused_and_moves_nothing() {
    let world = World::ready().await;
    let samples = samples(&world).await;
    let mark = world.mark();
    let mut tried = 0;
    for sample in &samples {
        let mut all = Vec::new();
        places(&sample.body, "", &mut all);
        assert!(!all.is_empty());
        for (place, value) in all {
            for wrong in wrong_types(&value) {
                if wrong.is_null() && OPTIONAL.contains(&place.as_str()) {
                    continue;
                }
                let mut body = sample.body.clone();
                *body.pointer_mut(&place).unwrap() = wrong.clone();
                let answer = sample.send(&world, body.to_string()).await;
                let what = format!("{wrong} at {place} of {}", sample.path);
                // A report is refused by itself: the others of its batch are taken in.
                let code = match answer.body.pointer("/results/0/code") {
                    Some(code) => code.as_str().unwrap().to_owned(),
                    None => answer.refusal(),
                };
                let good = match code.as_str() {
                    "request_malformed" => true,
                    "amount_invalid" => is_amount(&place) && !matches!(wrong, Value::Null),
                    "amount_not_positive" => is_amount(&place) && wrong == -1,
                    _ => false,
                };
                assert!(good, "{what}: {code} {}", answer.body);
                world.assert_untouched(mark, &what);
                tried += 1;
            }
        }
    }
    assert!(tried > 400, "only {tried} were tried");
}

#[tokio::test]
async fn a_missing_or_unknown_member_is_refused_and_moves_nothing() {
    let world = World::ready().await;
    let samples = samples(&world).await;
    let mark = world.mark();
    for sample in &samples {
        let operation = operation_of(&sample.method, &sample.path).unwrap();
        let schema = operation.body().unwrap();
        for name in schema["required"].as_array().into_iter().flatten() {
            let mut body = sample.body.clone();
            body.as_object_mut().unwrap().remove(name.as_str().unwrap()).unwrap();
            let answer = sample.send(&world, body.to_string()).await;
            let what = format!("{} without {name}", sample.path);
            assert_eq!(answer.refusal(), "request_malformed", "{what}: {}", answer.body);
            world.assert_untouched(mark, &what);
        }
        // The request to buy alone takes more than it knows: quotes are the sellers' to extend.
        if sample.path == "/v1/authorize" {
            continue;
        }
        for name in ["more", "Name", "name ", "__proto__", ""] {
            let mut body = sample.body.clone();
            body[name] = json!(1);
            let answer = sample.send(&world, body.to_string()).await;
            let what = format!("{} with `{name}`", sample.path);
            assert_eq!(answer.refusal(), "request_malformed", "{what}: {}", answer.body);
            world.assert_untouched(mark, &what);
        }
    }
    // Members of the quote and of a report cannot be left out either.
    let [authorize, report] = ["/v1/authorize", "/v1/vouchers/report"]
        .map(|path| samples.iter().find(|sample| sample.path == path).unwrap());
    let quote = authorize.body["quote"].as_object().unwrap();
    for name in quote.keys() {
        let mut body = authorize.body.clone();
        body["quote"].as_object_mut().unwrap().remove(name);
        let answer = authorize.send(&world, body.to_string()).await;
        assert_eq!(answer.refusal(), "request_malformed", "{name}: {}", answer.body);
    }
    for name in ["voucher", "fate", "claimed_at"] {
        let mut body = report.body.clone();
        body["reports"][0].as_object_mut().unwrap().remove(name);
        let answer = report.send(&world, body.to_string()).await;
        assert_eq!(answer.refusal(), "request_malformed", "{name}: {}", answer.body);
    }
    world.assert_untouched(mark, "a member missing inside");
}

#[tokio::test]
async fn only_json_in_utf_8_is_read() {
    let world = World::ready().await;
    let samples = samples(&world).await;
    let mark = world.mark();
    let kinds = [
        "text/plain",
        "text/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "application/json; charset=\"utf-16le\"",
        "application/json; Charset = iso-8859-1",
        "application/jsonp",
        "application/problem+json",
        "application/",
        "json",
        ",",
    ];
    for sample in &samples {
        let body = sample.body.to_string();
        for kind in kinds {
            let headers = [("content-type", kind)];
            let answer = world
                .send(sample.role, sample.method.clone(), &sample.path, &headers, body.clone())
                .await;
            let what = format!("{kind} at {}", sample.path);
            assert_eq!(answer.refusal(), "media_type_unsupported", "{what}: {}", answer.body);
        }
        // None at all, one twice, and one that says it is compressed.
        for headers in [
            vec![("x-none", "1")],
            vec![("content-type", "application/json"), ("content-type", "application/json")],
            vec![("content-type", "application/json"), ("content-encoding", "gzip")],
            vec![("content-type", "application/json"), ("content-encoding", "br")],
        ] {
            let answer = world
                .send(sample.role, sample.method.clone(), &sample.path, &headers, body.clone())
                .await;
            assert_eq!(answer.refusal(), "media_type_unsupported", "{headers:?}");
        }
        world.assert_untouched(mark, &sample.path);
    }
    for kind in [
        "APPLICATION/JSON",
        "application/json;charset=UTF-8",
        "application/json; charset=\"utf-8\"; x=y",
    ] {
        let answer = world
            .send(
                "",
                Method::POST,
                "/v1/receipts/verify",
                &[("content-type", kind)],
                r#"{"receipt":"x"}"#,
            )
            .await;
        assert_eq!(answer.status, 200, "{kind}");
    }
}

#[tokio::test]
async fn a_huge_body_is_refused_with_or_without_its_length() {
    let world = World::ready().await;
    let samples = samples(&world).await;
    let mark = world.mark();
    for sample in &samples {
        let mut body = sample.body.to_string();
        body.push_str(&" ".repeat(world.earnest.app.limits.body_bytes));
        let answer = sample.send(&world, body).await;
        assert_eq!(answer.refusal(), "body_too_large", "{}", sample.path);
        assert_eq!(answer.body["limit_bytes"], world.earnest.app.limits.body_bytes);
    }
    // Chunked: nobody says beforehand how much there will be.
    let key = world.key("agent");
    let head = format!(
        "POST /v1/authorize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    let mut bytes = head.into_bytes();
    for _ in 0..20 {
        bytes.extend_from_slice(b"10000\r\n");
        bytes.extend(std::iter::repeat_n(b' ', 0x10000));
        bytes.extend_from_slice(b"\r\n");
    }
    let answer = crate::wire::raw(world.earnest.address, &bytes).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.code()), (413, "body_too_large"));
    // A length that is a lie of the other kind: said to be huge, and never sent.
    let head = format!(
        "POST /v1/authorize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{{"
    );
    let answer = crate::wire::raw(world.earnest.address, head.as_bytes()).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.code()), (413, "body_too_large"));
    world.assert_untouched(mark, "a huge body");
}

/// A stranger's body is not read at all: without a key the answer is the same whatever was sent.
#[tokio::test]
async fn who_asks_is_settled_before_a_body_is_read() {
    let world = World::ready().await;
    let samples = samples(&world).await;
    let mark = world.mark();
    for sample in samples.iter().filter(|sample| !sample.role.is_empty()) {
        for body in ["", "{", "[]", "\u{0}"] {
            let none = world.json("", sample.method.clone(), &sample.path, &[], body).await;
            assert_eq!(none.refusal(), "unauthenticated", "{}", sample.path);
        }
        let other = match sample.role {
            "agent" => "seller",
            _ => "agent",
        };
        let wrong = world.json(other, sample.method.clone(), &sample.path, &[], "{").await;
        assert_eq!(wrong.refusal(), "not_found", "{} as {other}", sample.path);
    }
    world.assert_untouched(mark, "a stranger's body");
}

/// Ids of a purchase: present, short, visible, once, and the same in header and body.
#[tokio::test]
async fn odd_request_ids_are_refused() {
    let world = World::ready().await;
    let mark = world.mark();
    let body = |id: Value| {
        let mut body = json!({ "quote": world.quote("/weather", 10_000), "max_price": 10_000 });
        if !id.is_null() {
            body["request_id"] = id;
        }
        body.to_string()
    };
    let long = "x".repeat(129);
    let odd = ["", " ", "a b", "a\tb", "a\n", "\u{7f}", "\u{e9}", "\u{202e}x", "a\u{0}", &long];
    for id in odd {
        let answer = world.json("agent", Method::POST, "/v1/authorize", &[], body(json!(id))).await;
        assert_eq!(answer.refusal(), "request_malformed", "{id:?}: {}", answer.body);
    }
    for id in [json!(1), json!(["a"]), json!({}), json!(true)] {
        let answer =
            world.json("agent", Method::POST, "/v1/authorize", &[], body(id.clone())).await;
        assert_eq!(answer.refusal(), "request_malformed", "{id}: {}", answer.body);
    }
    for (headers, id, code) in [
        (vec![], json!(null), "idempotency_key_required"),
        (vec![("idempotency-key", "")], json!(null), "request_malformed"),
        (vec![("idempotency-key", "a b")], json!(null), "request_malformed"),
        (vec![("idempotency-key", long.as_str())], json!(null), "request_malformed"),
        (vec![("idempotency-key", "\u{e9}")], json!(null), "request_malformed"),
        (
            vec![("idempotency-key", "a"), ("idempotency-key", "a")],
            json!(null),
            "request_malformed",
        ),
        (vec![("idempotency-key", "a")], json!("b"), "request_malformed"),
        (vec![("idempotency-key", "a")], json!("A"), "request_malformed"),
    ] {
        let answer = world.json("agent", Method::POST, "/v1/authorize", &headers, body(id)).await;
        assert_eq!(answer.refusal(), code, "{headers:?}: {}", answer.body);
    }
    world.assert_untouched(mark, "an odd id");
    let longest = "!".repeat(128);
    for id in ["a", "~", longest.as_str()] {
        let answer = world.json("agent", Method::POST, "/v1/authorize", &[], body(json!(id))).await;
        assert_eq!(answer.status, 201, "{id}: {}", answer.body);
    }
    let headers = [("idempotency-key", "same")];
    let answer = world.json("agent", Method::POST, "/v1/authorize", &headers, body(json!("same")));
    assert_eq!(answer.await.status, 201);
}

/// Money routes without a body want a key, and one that is an id.
#[tokio::test]
async fn money_routes_want_a_key() {
    let world = World::ready().await;
    world.spend(100_000, "a").await;
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    let mark = world.mark();
    for (role, path) in [
        ("owner", format!("/v1/tabs/{tab}/settle")),
        ("operator", format!("/v1/tabs/{tab}/write-off")),
        ("operator", format!("/v1/owners/{}/debt/forgive", world.owner_id())),
    ] {
        let none = world.call(role, Method::POST, &path, None).await;
        assert_eq!(none.refusal(), "idempotency_key_required");
        for odd in ["", " ", "a b", &"x".repeat(129)] {
            let headers = [("idempotency-key", odd)];
            let answer = world.call_with(role, Method::POST, &path, None, &headers).await;
            assert_eq!(answer.refusal(), "request_malformed", "{odd:?}");
        }
    }
    world.assert_untouched(mark, "a money route without its key");
}

/// Texts that people will read are plain lines.
#[tokio::test]
async fn names_are_plain_lines() {
    let world = World::ready().await;
    let mark = world.mark();
    let long = "x".repeat(81);
    let odd =
        ["", " ", " a", "a ", "a\nb", "a\u{0}b", "\u{1b}[31m", "a\u{202e}b", "\u{feff}a", &long];
    for name in odd {
        for (role, path, body) in [
            ("operator", "/v1/owners", json!({ "name": name })),
            ("operator", "/v1/sellers", json!({ "name": name })),
            ("owner", "/v1/agents", json!({ "name": name })),
        ] {
            let answer = world.post(role, path, body).await;
            assert_eq!(answer.refusal(), "name_invalid", "{name:?} at {path}");
        }
        if name.is_empty() {
            continue;
        }
        let answer = world.post("owner", "/v1/owners/me/keys", json!({ "label": name })).await;
        assert_eq!(answer.refusal(), "name_invalid", "{name:?}");
    }
    for recipient in ["", "a\nb", "a\u{0}b", &"x".repeat(255)] {
        let body = json!({ "name": "ok", "payout_recipient": recipient });
        let answer = world.post("operator", "/v1/sellers", body).await;
        assert_eq!(answer.refusal(), "validation_failed", "{recipient:?}");
    }
    let listing = |listing: &str| {
        let mut quote = world.quote("/weather", 10_000);
        quote["listing"] = json!(listing);
        quote
    };
    for odd in ["", "a\nb", "\u{1b}]0;x", "a\u{202e}b", &"x".repeat(201)] {
        let answer = world.authorize(listing(odd), "l").await;
        assert_eq!(answer.refusal(), "request_malformed", "{odd:?}");
    }
    world.assert_untouched(mark, "an odd name");
    for name in ["A", "Zoë's 店 🙂", &"x".repeat(80)] {
        world.post("owner", "/v1/agents", json!({ "name": name })).await.expect(201);
    }
}

/// Ids that name nothing: 404, whatever they look like, on every route that takes one.
#[tokio::test]
async fn ids_that_name_nothing_are_not_found() {
    let world = World::ready().await;
    let mark = world.mark();
    let nobody = |prefix: &str| format!("{prefix}_{}", "7".repeat(26));
    for operation in OPERATIONS.iter() {
        if !operation.path.contains('{') {
            continue;
        }
        let role = match operation.tag() {
            "receipt" | "operations" if !operation.needs_key() => "",
            other if ["agent", "seller", "operator"].contains(&other) => other,
            _ => "owner",
        };
        let odd = ["%00", "%ff", "%2e%2e", "..%2f..", "x", "%20", "'%20or%201=1", "own_", "🙂"];
        let mut all: Vec<String> = odd.iter().map(|text| (*text).to_owned()).collect();
        all.extend(
            ["own", "agt", "tab", "set", "apr", "vlt", "pur", "gra", "int", "sel"].map(nobody),
        );
        all.push("x".repeat(2000));
        for odd in all {
            let path = operation.filled(|_| odd.clone());
            let body = operation.body().map(|_| "{\"version\":1}").unwrap_or_default();
            let headers = [("if-match", "\"1\""), ("idempotency-key", "k")];
            let answer = world.json(role, operation.method.clone(), &path, &headers, body).await;
            let what = format!("{} {path}", operation.method);
            // Where the body is read first it does not fit everywhere.
            let malformed = operation.body().is_some() && answer.code() == "request_malformed";
            assert!(answer.status == 404 || malformed, "{what}: {}", answer.body);
        }
    }
    world.assert_untouched(mark, "an id that names nothing");
}

/// A comparison that found `POUNDS1`, a payment in another currency.
async fn keep_foreign_line(world: &World) {
    use earnest_core::reconcile::{Foreign, Keep, Line, Report, Why};
    let (from, id) = (world.clock.now(), "POUNDS1".to_owned());
    let line = Line {
        id,
        why: Why::OtherCurrency,
        code: Some("T0006".to_owned()),
        code_says: None,
        reference: None,
        ours: None,
        theirs: None,
        foreign: Some(Foreign { currency: "GBP".to_owned(), gross_micros: 7_000_000 }),
        at: None,
    };
    let report = Report {
        from,
        horizon: from,
        books_micros: 0,
        paypal_micros: None,
        in_transit_micros: 0,
        unexplained_micros: 0,
        matched: 0,
        netted_lines: 0,
        acknowledged_lines: 0,
        in_transit_lines: 0,
        in_transit: Vec::new(),
        unexplained_lines: 1,
        unexplained: vec![line.clone()],
    };
    let (unexplained, next_earlier) = (vec![line], Vec::new());
    let keep = Keep { report, unexplained, before: None, next_from: from, next_earlier };
    world.earnest.app.store.submit(keep).await.unwrap();
}
