//! The description of the API: it is OpenAPI 3.1, it describes what is served and nothing else, and
//! every answer that any test of this binary sees fits it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{LazyLock, Mutex};

use earnest_core::problem::Code;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use crate::world::World;

/// The description, as it is served.
pub static DESCRIPTION: LazyLock<Value> =
    LazyLock::new(|| serde_json::to_value(earnest::api::openapi()).unwrap());

/// One operation of the description.
#[derive(Clone, Debug)]
pub struct Operation {
    pub method: Method,
    /// With its parameters in braces.
    pub path: String,
    pub described: Value,
}

impl Operation {
    pub fn tag(&self) -> &str {
        self.described["tags"][0].as_str().unwrap()
    }
    pub fn needs_key(&self) -> bool {
        self.described.get("security").is_some()
    }
    /// Whether its answer ends by itself; a stream of events does not.
    pub fn ends(&self) -> bool {
        self.described["responses"]["200"]["content"].get("text/event-stream").is_none()
    }
    /// The path with every parameter replaced.
    pub fn filled(&self, fill: impl Fn(&Value) -> String) -> String {
        let mut path = self.path.clone();
        for parameter in self.parameters("path") {
            let name = parameter["name"].as_str().unwrap();
            path = path.replace(&format!("{{{name}}}"), &fill(parameter));
        }
        assert!(!path.contains('{'), "{path} has a parameter that is not described");
        path
    }
    pub fn parameters(&self, place: &str) -> impl Iterator<Item = &Value> {
        let all = self.described["parameters"].as_array().into_iter().flatten();
        all.filter(move |parameter| parameter["in"] == place)
    }
    /// The schema of the body, references resolved.
    pub fn body(&self) -> Option<&'static Value> {
        let schema = &self.described["requestBody"]["content"]["application/json"]["schema"];
        let name = schema["$ref"].as_str()?.rsplit('/').next()?;
        Some(&DESCRIPTION["components"]["schemas"][name])
    }
}

/// Everything that is described.
pub static OPERATIONS: LazyLock<Vec<Operation>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for (path, item) in DESCRIPTION["paths"].as_object().unwrap() {
        for (method, described) in item.as_object().unwrap() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            all.push(Operation { method, path: path.clone(), described: described.clone() });
        }
    }
    all
});

/// The operation that answers a request.
pub fn operation_of(method: &Method, path: &str) -> Option<&'static Operation> {
    let path = path.split('?').next().unwrap();
    let fits = |operation: &&Operation| {
        let same = |(a, b): (&str, &str)| a == b || (a.starts_with('{') && !b.is_empty());
        operation.method == *method
            && operation.path.matches('/').count() == path.matches('/').count()
            && operation.path.split('/').zip(path.split('/')).all(same)
    };
    // A path without parameters goes before one with them.
    OPERATIONS.iter().filter(fits).min_by_key(|operation| operation.path.matches('{').count())
}

/// The components, with everything that is not described forbidden: an answer may not say more than
/// the description does. Problems carry the numbers behind them and stay open.
static STRICT: LazyLock<Value> = LazyLock::new(|| {
    let mut schemas = DESCRIPTION["components"]["schemas"].clone();
    for (name, schema) in schemas.as_object_mut().unwrap() {
        if name != "Problem" && schema.get("properties").is_some() {
            schema["additionalProperties"] = json!(false);
        }
    }
    schemas
});

/// Asserts that an answer fits what is described for its route. Called for every answer that
/// [`World`] gets.
#[track_caller]
pub fn check(method: &Method, path: &str, status: u16, headers: &HeaderMap, body: &[u8]) {
    let Some(operation) = operation_of(method, path) else {
        assert!(matches!(status, 404..=406), "{method} {path} is not described, answered {status}");
        return problem(status, headers, body);
    };
    let what = format!("{method} {path}: {status}");
    let responses = operation.described["responses"].as_object().unwrap();
    let class = format!("{}XX", status / 100);
    let response = responses.get(&status.to_string()).or_else(|| responses.get(&class));
    let response = response.unwrap_or_else(|| panic!("{what} is not described"));
    let Some(content) = response["content"].as_object() else {
        assert!(body.is_empty(), "{what}: a body that is not described");
        return;
    };
    let kind = headers.get("content-type").map_or("", |kind| kind.to_str().unwrap());
    let kind = kind.split(';').next().unwrap();
    let media = content.get(kind).unwrap_or_else(|| panic!("{what}: {kind} is not described"));
    if kind == "application/problem+json" {
        problem(status, headers, body);
    }
    if kind.ends_with("json") {
        let body: Value = serde_json::from_slice(body).unwrap();
        fits(&media["schema"], &body, &what);
    }
}

fn fits(schema: &Value, body: &Value, what: &str) {
    static COMPILED: LazyLock<Mutex<HashMap<String, jsonschema::Validator>>> =
        LazyLock::new(Mutex::default);
    let mut compiled = COMPILED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let validator = compiled.entry(schema.to_string()).or_insert_with(|| {
        let whole = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "components": { "schemas": *STRICT },
            "allOf": [schema],
        });
        jsonschema::validator_for(&whole).unwrap()
    });
    let wrong: Vec<String> =
        validator.iter_errors(body).map(|why| format!("{}: {why}", why.instance_path())).collect();
    assert!(wrong.is_empty(), "{what} does not fit its description: {wrong:#?}\n{body}");
}

/// Asserts that a problem document has exactly the members promised, and that they agree with the
/// one table of errors.
#[track_caller]
pub fn problem(status: u16, headers: &HeaderMap, body: &[u8]) {
    let text = String::from_utf8_lossy(body);
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!(header("content-type"), Some("application/problem+json"), "{status} {text}");
    assert_eq!(header("cache-control"), Some("no-store"), "{text}");
    let body: Value = serde_json::from_slice(body).unwrap_or_else(|_| panic!("{status}: {text}"));
    let code = Code::parse(body["code"].as_str().unwrap()).expect("a code of the table");
    let text = |name: &str| body[name].as_str().unwrap_or_else(|| panic!("no {name}: {body}"));
    assert_eq!(body["status"], status, "{body}");
    assert_eq!(code.status(), status, "{body}");
    assert_eq!(text("type"), format!("/problems/{code}"));
    assert_eq!(text("title"), code.title());
    assert_eq!(body["retryable"], code.retryable(), "{body}");
    assert_eq!(Some(text("trace_id")), header("trace-id"));
    assert!(!text("detail").is_empty() && !text("detail").ends_with('.'), "{body}");
    assert!(!text("detail").contains("::"), "a name of the program: {body}");
    assert!(body["next"].is_null() || body["next"].is_string(), "{body}");
    assert_eq!(body.get("reason").is_some(), code == Code::PolicyDenied, "{body}");
    if matches!(status, 429 | 503) {
        assert!(header("retry-after").is_some(), "no Retry-After: {body}");
    }
    if status == 401 && code == Code::Unauthenticated {
        assert_eq!(header("www-authenticate"), Some("Bearer"));
    }
    let known = [
        "type",
        "title",
        "status",
        "detail",
        "code",
        "reason",
        "trace_id",
        "retryable",
        "next",
        "retry_after_s",
    ];
    for (name, value) in body.as_object().unwrap() {
        let plain = value.is_number() || value.is_string();
        assert!(
            known.contains(&name.as_str()) || plain,
            "`{name}` is not a number or name: {body}"
        );
    }
}

#[test]
fn is_openapi_3_1() {
    let doc = &*DESCRIPTION;
    assert!(doc["openapi"].as_str().unwrap().starts_with("3.1."));
    assert_eq!(doc["info"]["version"], env!("CARGO_PKG_VERSION"));
    // Names of operations differ, every parameter of a path is described once, every answer has a
    // description and every reference leads somewhere.
    let mut names = BTreeSet::new();
    for operation in OPERATIONS.iter() {
        let described = &operation.described;
        let what = format!("{} {}", operation.method, operation.path);
        let name = described["operationId"].as_str().unwrap();
        assert!(names.insert(name.to_owned()), "{what}: another operation is called {name}");
        assert!(described["summary"].as_str().is_some_and(|text| text.len() > 5), "{what}");
        assert_eq!(described["tags"].as_array().map(Vec::len), Some(1), "{what}");
        let in_path: BTreeSet<&str> = operation.path.split(['{', '}']).skip(1).step_by(2).collect();
        let mut seen = BTreeSet::new();
        for parameter in described["parameters"].as_array().into_iter().flatten() {
            let (name, place) =
                (parameter["name"].as_str().unwrap(), parameter["in"].as_str().unwrap());
            assert!(seen.insert((name, place)), "{what}: {name} twice");
            assert!(["path", "query", "header"].contains(&place), "{what}: {name} in {place}");
            assert_eq!(in_path.contains(name), place == "path", "{what}: {name} in {place}");
            assert!(place != "path" || parameter["required"] == true, "{what}: {name}");
            assert!(parameter.get("schema").is_some(), "{what}: {name} has no schema");
        }
        assert!(in_path.iter().all(|name| seen.contains(&(*name, "path"))), "{what}");
        for (status, response) in described["responses"].as_object().unwrap() {
            let good = |c: char| c.is_ascii_digit() || c == 'X';
            assert!(status.len() == 3 && status.chars().all(good), "{what}: {status}");
            assert!(!response["description"].as_str().unwrap().is_empty(), "{what}: {status}");
        }
        for needed in ["4XX", "5XX"] {
            assert!(described["responses"].get(needed).is_some(), "{what}: no {needed}");
        }
    }
    references(doc, doc);
}

fn references(doc: &Value, value: &Value) {
    match value {
        Value::Object(members) => {
            if let Some(target) = members.get("$ref").and_then(Value::as_str) {
                let pointer = target.strip_prefix('#').unwrap();
                assert!(doc.pointer(pointer).is_some(), "{target} leads nowhere");
            }
            members.values().for_each(|member| references(doc, member));
        }
        Value::Array(items) => items.iter().for_each(|item| references(doc, item)),
        _ => {}
    }
}

/// Every component is a schema of JSON Schema 2020-12, the dialect of OpenAPI 3.1.
#[test]
fn every_component_is_a_schema() {
    let components = DESCRIPTION["components"]["schemas"].as_object().unwrap();
    assert!(components.len() > 40);
    for (name, schema) in components {
        jsonschema::draft202012::meta::validate(schema)
            .unwrap_or_else(|why| panic!("{name}: {why}"));
    }
    // The check is able to fail.
    assert!(jsonschema::draft202012::meta::validate(&json!({ "type": "text" })).is_err());
}

/// Every described route is served, with the methods described and no other; and no route is
/// written down in the sources that is not described.
#[tokio::test]
async fn what_is_served_is_described_and_what_is_described_is_served() {
    let world = World::new().await;
    let served = world.get("", "/openapi.json").await.expect(200);
    assert_eq!(served, *DESCRIPTION);

    let mut methods: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for operation in OPERATIONS.iter() {
        let known = methods.entry(operation.path.clone()).or_default();
        known.insert(operation.method.to_string());
        if operation.method == Method::GET {
            known.insert("HEAD".to_owned());
        }
    }
    for (path, described) in &methods {
        let filled = path.replace(['{', '}'], "");
        // A method that nothing has is refused, and the answer lists those that something has.
        let answer = world.call("", Method::PATCH, &filled, None).await;
        assert_eq!(answer.status, 405, "{path}");
        let allowed = answer.headers["allow"].to_str().unwrap();
        let allowed: BTreeSet<String> =
            allowed.split(',').map(|method| method.trim().to_owned()).collect();
        assert_eq!(&allowed, described, "{path}");
    }
    // Routes of the sources: `path = "…"` of handlers and `.route("…")` without a description.
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
    let mut found = 0;
    for file in std::fs::read_dir(sources).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let served = text.split("#[cfg(test)]").next().unwrap();
        assert!(!served.contains(".route(\""), "a route that is not described");
        for part in served.split(", path = \"").skip(1) {
            let path = part.split('"').next().unwrap();
            assert!(methods.contains_key(path), "{path} is written down but not served");
            found += 1;
        }
    }
    assert_eq!(found, OPERATIONS.len());
}

#[test]
fn the_check_of_answers_is_able_to_fail() {
    let headers = |kind: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", kind.parse().unwrap());
        headers
    };
    let fails = |path: &str, status, kind: &str, body: &str| {
        let headers = headers(kind);
        let body = body.to_owned();
        let path = path.to_owned();
        let check = move || check(&Method::GET, &path, status, &headers, body.as_bytes());
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_err());
    };
    check(&Method::GET, "/healthz", 200, &headers("application/json"), br#"{"status":"ok"}"#);
    fails("/healthz", 200, "application/json", r#"{"status":"ok","more":1}"#);
    fails("/healthz", 200, "application/json", r#"{"status":1}"#);
    fails("/healthz", 200, "application/json", "{}");
    fails("/healthz", 200, "text/plain", "ok");
    fails("/healthz", 201, "application/json", r#"{"status":"ok"}"#);
    fails("/nowhere", 200, "application/json", "{}");
    fails("/nowhere", 404, "application/problem+json", r#"{"code":"not_found"}"#);
}
