//! Lists as CSV: RFC 4180, the rows that the JSON has, and nothing that a spreadsheet would run.

use earnest_core::admin::PutOrigin;
use serde_json::{Value, json};

use crate::world::{Answer, World};

/// Reads RFC 4180, strictly: CRLF ends every line, a quote stands only around a cell or doubled in
/// one.
fn read(text: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut row = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (cell, behind) = match rest.strip_prefix('"') {
            Some(inside) => quoted(inside),
            None => {
                let end = rest.find([',', '\r', '\n']).expect("a line ends with CRLF");
                assert!(!rest[..end].contains('"'), "a quote inside a bare cell: {}", &rest[..end]);
                (rest[..end].to_owned(), &rest[end..])
            }
        };
        row.push(cell);
        match behind.strip_prefix(',') {
            Some(more) => rest = more,
            None => {
                rest = behind.strip_prefix("\r\n").expect("CRLF behind the last cell");
                rows.push(std::mem::take(&mut row));
            }
        }
    }
    assert!(row.is_empty(), "the last line does not end");
    rows
}

fn quoted(inside: &str) -> (String, &str) {
    let mut cell = String::new();
    let mut rest = inside;
    loop {
        let end = rest.find('"').expect("a quoted cell ends");
        cell.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(more) => {
                cell.push('"');
                rest = more;
            }
            None => return (cell, rest),
        }
    }
}

/// A cell as the JSON of the same row has it.
fn as_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Asserts that a CSV answer says what the JSON answer says, cell by cell.
#[track_caller]
fn assert_same(csv: &Answer, json: &[Value], what: &str) {
    let kind = csv.headers["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/csv; charset=utf-8"), "{what}: {kind}");
    let disposition = csv.headers["content-disposition"].to_str().unwrap();
    assert!(disposition.starts_with("attachment; filename=\"") && disposition.ends_with(".csv\""));
    assert_eq!(csv.headers["x-content-type-options"], "nosniff");
    let rows = read(std::str::from_utf8(&csv.bytes).unwrap());
    let (heading, rows) = rows.split_first().expect("a heading, even without rows");
    assert_eq!(rows.len(), json.len(), "{what}");
    for (row, json) in rows.iter().zip(json) {
        let members = json.as_object().unwrap();
        let mut names: Vec<&String> = members.keys().collect();
        let mut columns: Vec<&String> = heading.iter().collect();
        names.sort();
        columns.sort();
        assert_eq!(names, columns, "{what}: the columns are all the members");
        assert_eq!(row.len(), heading.len(), "{what}");
        for (column, cell) in heading.iter().zip(row) {
            let expected = as_text(&members[column]);
            // What a spreadsheet would run has an apostrophe before it and is otherwise the same.
            let plain = cell.strip_prefix('\'').filter(|_| !expected.starts_with('\''));
            assert_eq!(plain.unwrap_or(cell), expected, "{what}: {column}");
            let runs =
                cell.trim_start().starts_with(['=', '+', '-', '@', '|', '＝', '＋', '－', '＠'])
                    || cell.starts_with(['\t', '\r', '\n']);
            assert!(!runs || is_number(cell), "{what}: {column} would be run: {cell:?}");
        }
    }
}

/// What strangers may name: request ids, listings, URLs.
const EVIL: [&str; 18] = [
    "=1+1",
    "=cmd|'/C calc'!A0",
    "+1+1",
    "-1+1",
    "--1",
    "-",
    "@SUM(1+1)",
    "=HYPERLINK(\"https://evil.example\",\"x\")",
    "|calc",
    "a,b",
    "a\"b",
    "\"",
    "\"\"",
    "a;=1+1",
    "'=1+1",
    "＝1+1",
    ",=1+1",
    "\",=1+1,\"",
];

#[tokio::test]
async fn purchases_are_the_same_rows_and_run_nothing() {
    let world = World::ready().await;
    for (n, evil) in EVIL.iter().enumerate() {
        let mut quote = world.quote("/weather", 1_000);
        quote["listing"] = json!(evil);
        // Ids are visible ASCII without spaces; listings may hold more.
        let id = if evil.is_ascii() && !evil.contains(' ') {
            (*evil).to_owned()
        } else {
            format!("=id{n}")
        };
        world.authorize(quote, &id).await.expect(201);
        world.advance(1);
    }
    // One that was refused, with its numbers, and one that waits.
    world.authorize(world.quote("/dear", 9_000_000), "=refused").await.expect(403);
    world.authorize(world.quote("/dear", 250_000), "=waits").await.expect(202);
    world.spend(2_000, "+billed").await;
    for role in ["owner", "agent", "seller"] {
        let list = world.get(role, "/v1/purchases?limit=500").await.expect(200);
        let csv = world.get(role, "/v1/purchases?limit=500&format=csv").await;
        assert_same(&csv, list["data"].as_array().unwrap(), role);
        assert!(!csv.headers.contains_key("next-cursor"));
    }
    let owner = world.owner_id();
    let list =
        world.get("operator", &format!("/v1/purchases?owner={owner}&limit=500")).await.expect(200);
    let csv =
        world.get("operator", &format!("/v1/purchases?owner={owner}&limit=500&format=csv")).await;
    assert_same(&csv, list["data"].as_array().unwrap(), "operator");
    // Page by page it is the whole, the next page named in a header.
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let csv = world.get("owner", &format!("/v1/purchases?limit=3&format=csv{cursor}")).await;
        let rows = read(std::str::from_utf8(&csv.bytes).unwrap());
        seen.extend(rows.into_iter().skip(1).map(|row| row[0].clone()));
        match csv.headers.get("next-cursor") {
            Some(next) => cursor = format!("&cursor={}", next.to_str().unwrap()),
            None => break,
        }
    }
    let whole = world.get("owner", "/v1/purchases?limit=500").await.expect(200);
    let ids: Vec<&str> =
        whole["data"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(seen, ids);
}

#[tokio::test]
async fn books_are_the_same_rows() {
    let world = World::ready().await;
    for n in 0..3 {
        world.spend(12_345, &format!("a-{n}")).await;
    }
    let unit = PutOrigin {
        seller: world.seller_id().parse().unwrap(),
        origin: "https://b.example".to_owned(),
        proved: true,
    };
    world.earnest.app.store.submit(unit).await.unwrap();
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/tabs/{tab}/close");
    world.call("owner", reqwest::Method::POST, &path, None).await.expect(202);
    world.settle_down().await;
    for role in ["operator", "owner", "seller"] {
        for list in ["accounts", "transfers"] {
            let json = world.get(role, &format!("/v1/{list}?limit=500")).await.expect(200);
            let csv = world.get(role, &format!("/v1/{list}?limit=500&format=csv")).await;
            let what = format!("{list} of {role}");
            assert!(!json["data"].as_array().unwrap().is_empty(), "{what}");
            assert_same(&csv, json["data"].as_array().unwrap(), &what);
        }
    }
    let json = world.get("operator", "/v1/trial-balance").await.expect(200);
    let csv = world.get("operator", "/v1/trial-balance?format=csv").await;
    assert_same(&csv, json.as_array().unwrap(), "trial balance");
}

/// A file without rows still says what its columns would be.
#[tokio::test]
async fn an_empty_file_has_its_heading() {
    let world = World::new().await;
    for path in ["/v1/purchases", "/v1/accounts", "/v1/transfers"] {
        let csv = world.get("seller", &format!("{path}?format=csv")).await;
        assert_eq!(csv.status, 200);
        let rows = read(std::str::from_utf8(&csv.bytes).unwrap());
        assert_eq!(rows.len(), 1, "{path}");
        assert!(rows[0].len() > 5 && rows[0].iter().all(|name| !name.is_empty()), "{path}");
    }
}

/// Which form is chosen: what the query says, then what Accept prefers.
#[tokio::test]
async fn accept_chooses_the_form() {
    let world = World::ready().await;
    for (query, accept, csv) in [
        ("", None, false),
        ("", Some("*/*"), false),
        ("", Some("application/json"), false),
        ("", Some("text/csv"), true),
        ("", Some("text/csv;q=0.9, application/json;q=0.8"), true),
        ("", Some("application/json, text/csv"), false),
        ("", Some("text/csv;q=0.1, */*"), false),
        ("", Some("text/*"), true),
        ("?format=csv", Some("application/json"), true),
        ("?format=json", Some("text/csv"), false),
    ] {
        let headers: Vec<(&str, &str)> = accept.iter().map(|accept| ("accept", *accept)).collect();
        let path = format!("/v1/purchases{query}");
        let answer = world.call_with("owner", reqwest::Method::GET, &path, None, &headers).await;
        let kind = answer.headers["content-type"].to_str().unwrap();
        assert_eq!(kind.starts_with("text/csv"), csv, "{query} {accept:?}: {kind}");
    }
}
