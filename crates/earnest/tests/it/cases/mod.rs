//! The cases of public bug reports that concern the server, each a test named by its id, with
//! relatives of its kind; and that no case of what is built is without a test.

mod approvals;
mod front;
mod ledger;
mod mcp;
mod money;
mod paypal;
mod selling;
mod tokens;

use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::Value;

use crate::world::World;

/// A file that stands beside the workspace, not in it; `None`, said aloud, where it does not.
pub fn shared_file(name: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let told = std::env::var_os("EARNEST_SHARED").map(|dir| PathBuf::from(dir).join(name));
    let beside = here.ancestors().map(|folder| folder.join("shared").join(name));
    let found = told.into_iter().chain(beside).find(|path| path.is_file());
    if found.is_none() {
        println!("skipped: there is no ../shared/{name}; EARNEST_SHARED names its folder");
    }
    found
}

/// What every case asserts besides its own outcome: the books add up, the audit finds nothing, no
/// answer was a 5xx, and nothing secret stands in what people are shown.
pub async fn finish(world: &World) {
    world.assert_sound();
    world.assert_balanced().await;
    assert_eq!(world.broken(), Vec::<String>::new(), "answers with a 5xx");
    nothing_secret(world).await;
}

/// Reads everything that an owner and an operator may read, and looks for what nobody may.
pub async fn nothing_secret(world: &World) {
    let mut pages = Vec::new();
    for path in ["/v1/purchases", "/v1/tabs", "/v1/payment-methods", "/v1/agents", "/v1/approvals"]
    {
        pages.push(world.get("owner", path).await.body.to_string());
    }
    for path in ["/v1/owners", "/v1/sellers", "/v1/transfers", "/v1/intents/unknown"] {
        pages.push(world.get("operator", path).await.body.to_string());
    }
    let tabs = world.get("owner", "/v1/tabs").await.expect(200);
    for tab in tabs["data"].as_array().unwrap() {
        let tab = tab["id"].as_str().unwrap();
        let trail = format!("/v1/paypal/trail?tab={tab}");
        pages.push(world.get("owner", &trail).await.body.to_string());
        let list = world.get("owner", &format!("/v1/tabs/{tab}/settlements")).await;
        pages.push(list.body.to_string());
    }
    let buyer = &world.sim().config().buyer;
    let secrets = [
        world.key("operator"),
        world.key("owner"),
        world.key("agent"),
        world.key("seller"),
        "A21AA".to_owned(),
        buyer.email.clone(),
        buyer.payer_id.clone(),
        buyer.surname.clone(),
    ];
    for page in pages {
        for secret in &secrets {
            assert!(!page.contains(secret.as_str()), "`{secret}` stands in {page}");
        }
    }
}

/// The ids of all transfers so far.
pub async fn transfers(world: &World) -> Value {
    world.call("operator", Method::GET, "/v1/transfers?limit=500", None).await.expect(200)
}

/// Every function in the sources of the workspace whose name begins like a case's id.
fn tests_named_by_cases(root: &Path) -> Vec<String> {
    let (mut names, mut folders) = (Vec::new(), vec![root.join("crates")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                names.extend(test_names(&text));
            }
        }
    }
    names
}

/// The names of functions that carry a test attribute.
fn test_names(text: &str) -> Vec<String> {
    let (mut names, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            continue;
        }
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if let Some(name) = function.filter(|_| is_test).and_then(|rest| rest.split('(').next()) {
            names.push(name.to_owned());
        }
        is_test = false;
    }
    names
}

/// Cases of these issues are tests.
const ISSUES: [u64; 2] = [1, 2];

fn without_a_test(cases: &Value, tests: &[String]) -> Vec<String> {
    let cases = cases["cases"].as_array().unwrap().iter();
    let ids = cases
        .filter(|case| ISSUES.iter().any(|issue| case["issue"] == *issue))
        .map(|case| case["id"].as_str().unwrap());
    let is_named = |id: &&str| {
        let name = id.to_lowercase().replace('-', "_");
        tests.iter().any(|test| *test == name || test.starts_with(&format!("{name}_")))
    };
    ids.filter(|id| !is_named(id)).map(str::to_owned).collect()
}

#[test]
fn every_case_has_a_test_of_its_id() {
    let Some(path) = shared_file("cases.json") else { return };
    let cases: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let tests = tests_named_by_cases(root);
    assert!(!tests.is_empty());
    assert_eq!(without_a_test(&cases, &tests), [""; 0], "cases without a test");
}

#[test]
fn a_case_without_a_test_is_noticed() {
    let cases = serde_json::json!({"cases": [
        {"id": "AAA-01", "issue": 1}, {"id": "AAA-02", "issue": 1}, {"id": "AAA-03", "issue": 3},
    ]});
    let source = "#[test]\n#[allow(x)]\nfn aaa_01_is_there() {}\nfn aaa_02_is_no_test() {}\n";
    assert_eq!(without_a_test(&cases, &test_names(source)), ["AAA-02"]);
    // A longer number is another case.
    assert_eq!(without_a_test(&cases, &["aaa_010".to_owned()]), ["AAA-01", "AAA-02"]);
}
