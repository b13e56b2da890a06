//! Lists as CSV (RFC 4180), safe to open in a spreadsheet: a cell that a spreadsheet would run as a
//! formula is written as text.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, header};
use serde::Serialize;
use serde_json::Value;

/// Whether the caller asks for CSV, by `?format=csv` or by Accept.
pub fn wanted(headers: &HeaderMap, format: Option<&str>) -> bool {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    format == Some("csv")
        || accepts.is_some_and(|accept| accept.trim_start().starts_with("text/csv"))
}

/// Flat rows as a CSV file; the columns are the members of the first row, in order. Where the list
/// goes on stands in the header `Next-Cursor`, since a file has no place for it.
pub fn of_rows(name: &str, rows: &[impl Serialize], next_cursor: Option<&str>) -> Response {
    let rows: Vec<Value> = rows.iter().filter_map(|row| serde_json::to_value(row).ok()).collect();
    let columns: Vec<String> = match rows.first() {
        Some(Value::Object(members)) => members.keys().cloned().collect(),
        _ => Vec::new(),
    };
    let mut text = line(columns.iter().map(String::as_str));
    for row in &rows {
        let cells: Vec<String> = columns.iter().map(|name| cell(row.get(name))).collect();
        text.push_str(&line(cells.iter().map(String::as_str)));
    }
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}.csv\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    if let Some(value) = next_cursor.and_then(|cursor| HeaderValue::from_str(cursor).ok()) {
        headers.insert("next-cursor", value);
    }
    response
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = cells.map(quote).collect();
    format!("{}\r\n", quoted.join(","))
}

/// Quotes what needs quoting, and puts an apostrophe before what a spreadsheet would take for a
/// formula; plain numbers, negative ones too, stay numbers.
fn quote(text: &str) -> String {
    let number =
        !text.is_empty() && text.trim_start_matches('-').bytes().all(|b| b.is_ascii_digit());
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']) && !number;
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\r', '\n']) {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formula_becomes_text() {
        for formula in ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "=HYPERLINK(\"http://a\")"] {
            let cell = quote(formula);
            assert!(cell.starts_with('\'') || cell.starts_with("\"'"), "{cell}");
        }
        assert_eq!(quote("-42"), "-42");
        assert_eq!(quote("a,b"), "\"a,b\"");
        assert_eq!(quote("a\"b"), "\"a\"\"b\"");
    }
}
