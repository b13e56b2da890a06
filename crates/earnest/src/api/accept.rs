//! What a client accepts (RFC 9110, 12.5.1): how much it wants a media type, and whether anything
//! that this API gives fits at all.

use http::{HeaderMap, header};

/// How much a media type is wanted, in thousandths: 0 not at all, 1000 as much as any. Without an
/// Accept header everything is as welcome as anything.
pub(crate) fn weight(headers: &HeaderMap, kind: &str, subtype: &str) -> u16 {
    let mut ranges = ranges(headers).peekable();
    if ranges.peek().is_none() {
        return 1000;
    }
    // The most specific range that fits counts, whatever its weight.
    let fitting = ranges.filter_map(|(range, weight)| {
        let (one, two) = range.split_once('/')?;
        let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
        match (one, two) {
            ("*", "*") => Some((0, weight)),
            (one, "*") if same(one, kind) => Some((1, weight)),
            (one, two) if same(one, kind) && same(two, subtype) => Some((2, weight)),
            _ => None,
        }
    });
    fitting.max().map_or(0, |(_, weight)| weight)
}

/// Whether JSON or CSV fits; an answer that says no is JSON too, whatever was asked for.
pub(super) fn anything(headers: &HeaderMap) -> bool {
    let gives = [("application", "json"), ("application", "problem+json"), ("text", "csv")];
    gives.iter().any(|(kind, subtype)| weight(headers, kind, subtype) > 0)
}

/// Every range with its weight. What is no text counts as a range that nothing fits.
fn ranges(headers: &HeaderMap) -> impl Iterator<Item = (&str, u16)> {
    let values = headers.get_all(header::ACCEPT).iter();
    let texts = values.map(|value| value.to_str().unwrap_or("unreadable"));
    let parts = texts.flat_map(|text| text.split(',')).map(str::trim);
    parts.filter(|part| !part.is_empty()).map(|part| {
        let mut parameters = part.split(';').map(str::trim);
        let range = parameters.next().unwrap_or_default();
        let named = parameters.filter_map(|parameter| parameter.split_once('='));
        let mut weights = named.filter(|(name, _)| name.trim().eq_ignore_ascii_case("q"));
        (range, weights.next().map_or(1000, |(_, weight)| thousandths(weight.trim())))
    })
}

/// `0.25` as 250. What cannot be read counts as wanted.
fn thousandths(text: &str) -> u16 {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.len() != 1 || fraction.len() > 3 || !digits(whole) || !digits(fraction) {
        return 1000;
    }
    format!("{whole}{fraction:0<3}").parse().unwrap_or(1000).min(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(accept: &[&str]) -> HeaderMap {
        let values = accept.iter().map(|text| HeaderValue::from_bytes(text.as_bytes()).unwrap());
        values.map(|value| (header::ACCEPT, value)).collect()
    }

    #[test]
    fn the_most_specific_range_counts() {
        let check = |accept: &[&str], json, csv| {
            let headers = headers(accept);
            assert_eq!(weight(&headers, "application", "json"), json, "{accept:?}");
            assert_eq!(weight(&headers, "text", "csv"), csv, "{accept:?}");
        };
        check(&[], 1000, 1000);
        check(&[""], 1000, 1000);
        check(&["*/*"], 1000, 1000);
        check(&["text/csv"], 0, 1000);
        check(&["text/html, text/csv;q=0.5, */*;q=0.1"], 100, 500);
        check(&["application/*;q=0.2", "TEXT/CSV; Q=0.3"], 200, 300);
        check(&["*/*, application/json;q=0"], 0, 1000);
        check(&["application/json;q=abc"], 1000, 0);
    }

    #[test]
    fn nothing_fits_only_where_nothing_does() {
        assert!(anything(&headers(&["application/problem+json"])));
        assert!(anything(&headers(&["text/html, */*;q=0.8"])));
        for none in ["text/html", "image/*", "application/xml", "*/*;q=0", "nonsense", "\u{e9}"] {
            assert!(!anything(&headers(&[none])), "{none}");
        }
    }
}
