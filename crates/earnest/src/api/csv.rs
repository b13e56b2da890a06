//! Lists as CSV (RFC 4180), safe to open in a spreadsheet: a cell that a spreadsheet would run as a
//! formula is written as text.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::accept;
use super::view::List;

/// How a list is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// JSON.
    Json,
    /// CSV.
    Csv,
}

/// The columns of a row, in the order they are written: all its members, so that the file says what
/// the JSON says, and an empty file still has its heading.
pub trait Columns: Serialize {
    /// The names of the members.
    const COLUMNS: &'static [&'static str];
}

/// Where the page after this one begins, as `next_cursor` says in JSON.
pub static NEXT_CURSOR: HeaderName = HeaderName::from_static("next-cursor");

/// Whether the caller asks for CSV: by `?format=csv`, or by preferring it in Accept.
pub fn wanted(headers: &HeaderMap, format: Option<Format>) -> bool {
    match format {
        Some(format) => format == Format::Csv,
        None => {
            accept::weight(headers, "text", "csv") > accept::weight(headers, "application", "json")
        }
    }
}

/// A list in the form that was asked for.
pub fn answer<T: Columns + ToSchema>(
    name: &str,
    headers: &HeaderMap,
    format: Option<Format>,
    list: List<T>,
) -> Response {
    if !wanted(headers, format) {
        return axum::Json(list).into_response();
    }
    let mut response = of_rows(name, &list.data);
    let next = list.next_cursor.and_then(|cursor| HeaderValue::from_str(&cursor).ok());
    if let Some(next) = next {
        response.headers_mut().insert(NEXT_CURSOR.clone(), next);
    }
    response
}

/// Flat rows as a CSV file.
pub fn of_rows<T: Columns>(name: &str, rows: &[T]) -> Response {
    let mut text = line(T::COLUMNS.iter().copied());
    for row in rows {
        let row = serde_json::to_value(row).unwrap_or_default();
        let cells: Vec<String> = T::COLUMNS.iter().map(|name| cell(row.get(name))).collect();
        text.push_str(&line(cells.iter().map(String::as_str)));
    }
    let mut response = text.into_response();
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/csv; charset=utf-8; header=present");
    headers.insert(header::CONTENT_TYPE, kind);
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}.csv\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
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
/// formula, full-width signs and leading space included; plain numbers, negative ones too, stay
/// numbers. Semicolons and tabs are quoted as well, since some programs split at them.
fn quote(text: &str) -> String {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = match unsigned.split_once('.') {
        Some((whole, decimals)) => digits(whole) && digits(decimals),
        None => digits(unsigned),
    };
    let sign = |c| matches!(c, '=' | '+' | '-' | '@' | '|' | '＝' | '＋' | '－' | '＠');
    let formula = text.trim_start().starts_with(sign) || text.starts_with(['\t', '\r', '\n', '\0']);
    let text = if formula && !number { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\r', '\n', ';', '\t']) || text.trim() != text {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formula_becomes_text() {
        for formula in [
            "=1+1",
            "+1+1",
            "-1+1",
            "--5",
            "-",
            "-1.",
            "-.5",
            "-1.5.2",
            "-1.5+1",
            "@SUM(A1)",
            "\t=1",
            "\r=1",
            " =1",
            "\u{a0}=1",
            "|cmd",
            "＝1+1",
            "＠SUM(A1)",
            "=HYPERLINK(\"http://a\")",
        ] {
            let cell = quote(formula);
            assert!(cell.starts_with('\'') || cell.starts_with("\"'"), "{cell}");
        }
    }

    #[test]
    fn numbers_and_plain_text_stay_as_they_are() {
        for plain in
            ["-42", "-1.500000", "42", "", "GET /weather/*", "2026-11-30T09:00:00Z", "a=b", "a'b"]
        {
            assert_eq!(quote(plain), plain);
        }
        assert_eq!(quote("a,b"), "\"a,b\"");
        assert_eq!(quote("a;=b"), "\"a;=b\"");
        assert_eq!(quote("a\"b"), "\"a\"\"b\"");
        assert_eq!(quote("a\r\nb"), "\"a\r\nb\"");
    }
}
