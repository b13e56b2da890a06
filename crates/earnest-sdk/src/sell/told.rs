//! What a request tells a server beside its first line: another path or another method, in headers
//! that many frameworks believe. A server that believes them serves what nobody judged or paid for.

use earnest_core::problem::{Code, Refusal};
use http::header::{HeaderMap, HeaderName};

/// Headers that name another path or method.
const OTHER_REQUEST: [&str; 9] = [
    "x-method-override",
    "x-path-info",
    "x-proxy-url",
    "x-request-path",
    "x-request-uri",
    "x-request-url",
    "x-script-name",
    "x-unencoded-url",
    "x-waws-unencoded-url",
];
/// The same for whole families of names.
const OTHER_REQUEST_FAMILIES: [&str; 5] =
    ["x-original-", "x-rewrite-", "x-override-", "x-http-method", "x-envoy-original-"];
/// Of the family that gateways write themselves, those that name another path or method.
const OTHER_REQUEST_FORWARDED: [&str; 8] = [
    "x-forwarded-method",
    "x-forwarded-path",
    "x-forwarded-prefix",
    "x-forwarded-query",
    "x-forwarded-request-uri",
    "x-forwarded-script-name",
    "x-forwarded-uri",
    "x-forwarded-url",
];

/// In which headers nginx says that its client sent a body that the desk is not shown.
pub(super) const HIDDEN_BODY: [&str; 2] =
    ["x-original-content-length", "x-original-transfer-encoding"];

/// CGI and its heirs give an application one name for `X-Original-URL` and `X_Original_URL`, so both
/// spellings count.
pub(super) fn spelt(name: &HeaderName) -> String {
    name.as_str().replace('_', "-")
}

/// Whether a header, by the name that [`spelt`] gives, names another path or method.
pub(super) fn is_another_request(name: &str) -> bool {
    OTHER_REQUEST.contains(&name)
        || OTHER_REQUEST_FORWARDED.contains(&name)
        || OTHER_REQUEST_FAMILIES.iter().any(|family| name.starts_with(family))
}

/// Refuses what would reach the server beside what is judged, but for the headers in which the
/// gateway itself says what was asked for.
///
/// # Errors
/// `request_malformed`, naming the header.
pub(super) fn no_other_request(headers: &HeaderMap, own: &[&str]) -> Result<(), Refusal> {
    // INVARIANT: what_is_served_is_what_was_judged
    let other =
        |name: &&HeaderName| !own.contains(&name.as_str()) && is_another_request(&spelt(name));
    match headers.keys().find(other) {
        None => Ok(()),
        Some(name) => {
            let why = "a header names another path or method than the one that is judged";
            Err(Refusal::new(Code::RequestMalformed, why).with("header", name.as_str()))
        }
    }
}

/// Whether the gateway says that there is a body which it does not show.
pub(super) fn hides_a_body(headers: &HeaderMap) -> bool {
    let values = HIDDEN_BODY.into_iter().flat_map(|name| headers.get_all(name));
    values.into_iter().any(|value| !matches!(value.as_bytes(), b"" | b"0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::HeaderValue;

    fn check(names: &[&str], own: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for name in names {
            headers.insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_static("/x"));
        }
        no_other_request(&headers, own).is_ok()
    }

    #[test]
    fn what_is_served_is_what_was_judged() {
        for name in [
            "x-original-url",
            "x-original-uri",
            "x-rewrite-url",
            "x-http-method",
            "x-http-method-override",
            "x-method-override",
            "x-forwarded-uri",
            "x-forwarded-prefix",
            "x-envoy-original-path",
            "x-script-name",
            "x_original_url",
            "x_http_method_override",
        ] {
            assert!(!check(&[name], &[]), "{name}");
            assert!(!check(&["accept", name], &["accept"]), "{name}");
        }
        let usual =
            ["accept", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"];
        assert!(check(&usual, &[]));
        assert!(check(
            &["x-forwarded-uri", "x-forwarded-method"],
            &["x-forwarded-uri", "x-forwarded-method"]
        ));
        // The gateway's own words are those it writes, to the letter.
        assert!(!check(&["x_forwarded_uri"], &["x-forwarded-uri"]));
    }

    #[test]
    fn a_body_that_is_not_shown_is_said() {
        let check = |name: &str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_static(value));
            hides_a_body(&headers)
        };
        assert!(check("x-original-content-length", "5"));
        assert!(check("x-original-transfer-encoding", "chunked"));
        assert!(!check("x-original-content-length", "0"));
        assert!(!check("x-original-content-length", ""));
        assert!(!check("content-length", "5"));
    }
}
