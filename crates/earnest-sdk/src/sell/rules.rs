//! Which requests cost what: `GET /weather/*=$0.02`, and which are free.
//!
//! A path is read once, decoded once, and what was matched is what is forwarded. Spellings that an
//! upstream might read as another path are refused rather than guessed at, and a price reaches a
//! little further than it says (letter case, a slash, dots or spaces at the end, `;` parameters, an
//! encoded `?`), because many upstreams do; what is free is matched to the letter.

use earnest_core::money::Micros;
use earnest_core::problem::{Code, Refusal};
use http::Method;
use percent_encoding::percent_decode_str;

use crate::seller::read_price;
use crate::setup::SetupError;

/// Stands for an encoded slash in the reading that takes it for a letter. Paths that hold it
/// themselves are refused.
const ENCODED_SLASH: char = '\u{f8ff}';

/// The rules of one proxy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    priced: Vec<(Pattern, Micros)>,
    free: Vec<Pattern>,
}

/// A method, or any, and a path in which each `*` stands for any text, slashes included.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    method: Option<Method>,
    path: String,
}

/// What a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It costs this; the text is the rule, which quotes call the listing.
    Priced(Micros, String),
    /// It is listed as free.
    Free,
    /// It is listed nowhere.
    Unlisted,
}

impl Rules {
    /// Adds `METHOD PATH=PRICE`; without a method it is for every method.
    pub(crate) fn price(&mut self, rule: &str) -> Result<(), SetupError> {
        let Some((pattern, price)) = rule.rsplit_once('=') else {
            return Err(wrong(
                "price",
                format!("`{rule}` has no `=`, as in `GET /weather/*=$0.02`"),
            ));
        };
        let pattern = Pattern::read("price", pattern.trim_end())?;
        self.priced.push((pattern, read_price(price.trim())?));
        Ok(())
    }

    /// Adds `PATH` or `METHOD PATH`.
    pub(crate) fn free(&mut self, rule: &str) -> Result<(), SetupError> {
        self.free.push(Pattern::read("free", rule)?);
        Ok(())
    }

    pub(crate) const fn has_price(&self) -> bool {
        !self.priced.is_empty()
    }

    /// What a request is. `path` is the path of a canonical URL, still percent-encoded.
    ///
    /// # Errors
    /// `url_invalid` for a path that two readers may read differently, `request_malformed` for such
    /// a method, and `method_not_allowed` for `CONNECT` and `TRACE`, which are about the road and not
    /// about what lies at its end.
    pub(crate) fn judge(&self, method: &Method, path: &str) -> Result<Verdict, Refusal> {
        if matches!(*method, Method::CONNECT | Method::TRACE) {
            return Err(Refusal::new(Code::MethodNotAllowed, "this is not passed on"));
        }
        // `get` is no `GET`, but to some upstreams it is.
        if !method.as_str().bytes().all(|b| b.is_ascii_uppercase() || b == b'-') {
            return Err(Refusal::new(Code::RequestMalformed, "the method must be in capitals"));
        }
        let ambiguous = || Refusal::new(Code::UrlInvalid, "the path can be read in two ways");
        let text = percent_decode_str(path).decode_utf8().map_err(|_| ambiguous())?;
        if !is_plain(&text) {
            return Err(ambiguous());
        }
        let verdict = self.verdict(method, &text);
        if path.to_ascii_lowercase().contains("%2f") {
            let opaque = replace_encoded_slashes(path);
            let opaque = percent_decode_str(&opaque).decode_utf8().map_err(|_| ambiguous())?;
            if self.verdict(method, &opaque) != verdict {
                return Err(ambiguous());
            }
        }
        Ok(verdict)
    }

    /// The methods under which a path costs something, for `OPTIONS`; empty when it costs nothing.
    pub(crate) fn priced_methods(&self, path: &str) -> Vec<&str> {
        let text = percent_decode_str(path).decode_utf8_lossy();
        let reached = self.priced.iter().filter(|(pattern, _)| pattern.reaches(&text));
        reached.map(|(pattern, _)| pattern.method.as_ref().map_or("*", Method::as_str)).collect()
    }

    /// The methods under which something is sold or free at a path, `OPTIONS` left out.
    pub(crate) fn served_methods(&self, path: &str) -> Vec<&'static str> {
        let all = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
        let served = |name: &&str| {
            let verdict = name.parse().ok().and_then(|method| self.judge(&method, path).ok());
            verdict.is_some_and(|verdict| verdict != Verdict::Unlisted)
        };
        all.into_iter().filter(served).collect()
    }

    /// INVARIANT: where_a_price_and_a_free_rule_are_equally_exact_the_price_counts
    fn verdict(&self, method: &Method, path: &str) -> Verdict {
        let reaches =
            |(pattern, _): &&(Pattern, Micros)| pattern.is_for(method) && pattern.reaches(path);
        let priced = self.priced.iter().filter(reaches);
        let priced = priced.max_by_key(|(pattern, price)| (pattern.exactness(), *price));
        let matches = |pattern: &&Pattern| pattern.is_for(method) && pattern.matches(path);
        let free = self.free.iter().filter(matches).map(Pattern::exactness).max();
        match (priced, free) {
            (Some((pattern, price)), free) if free.is_none_or(|f| f <= pattern.exactness()) => {
                Verdict::Priced(*price, pattern.to_string())
            }
            (_, Some(_)) => Verdict::Free,
            (_, None) => Verdict::Unlisted,
        }
    }
}

impl Pattern {
    fn read(setting: &'static str, text: &str) -> Result<Self, SetupError> {
        let (method, path) = match text.split_once(' ') {
            Some((method, path)) => (Some(method), path.trim_start()),
            None => (None, text),
        };
        let method = match method {
            None | Some("*") => None,
            Some(name) => match name.parse::<Method>() {
                Ok(method) if name.bytes().all(|b| b.is_ascii_uppercase()) => Some(method),
                _ => return Err(wrong(setting, format!("`{name}` is not a method"))),
            },
        };
        let odd = |c: char| c.is_whitespace() || matches!(c, '?' | '#' | '%' | ';');
        if !path.starts_with('/') || path.contains(odd) || !is_plain(path) {
            let why = format!("`{path}` is not a path such as `/weather/*`, written undecoded");
            return Err(wrong(setting, why));
        }
        Ok(Self { method, path: path.to_owned() })
    }

    /// `HEAD` is a `GET` without a body.
    fn is_for(&self, method: &Method) -> bool {
        self.method
            .as_ref()
            .is_none_or(|own| own == method || (own == Method::GET && method == Method::HEAD))
    }

    /// To the letter.
    fn matches(&self, path: &str) -> bool {
        fits(&self.path, path)
    }

    /// As far as a lenient upstream might serve the same thing.
    fn reaches(&self, path: &str) -> bool {
        let pattern = self.path.to_lowercase();
        let path = path.to_lowercase();
        let readings = [without_parameters(&path), without_endings(&path)];
        readings.iter().any(|path| {
            let bare = path.trim_end_matches('/');
            fits(&pattern, path) || fits(&pattern, bare) || fits(&pattern, &format!("{bare}/"))
        })
    }

    /// A path without `*` before one with, then the one that says more.
    fn exactness(&self) -> (bool, usize) {
        let stars = self.path.matches('*').count();
        (stars == 0, self.path.len().saturating_sub(stars))
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method.as_ref().map_or("*", Method::as_str), self.path)
    }
}

fn wrong(setting: &'static str, why: String) -> SetupError {
    SetupError::Value { setting, why }
}

/// Whether a text fits a pattern of `*`s: each piece between stars is found in turn, the first at
/// the beginning, the last at the end.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(first) else {
        return false;
    };
    let (middle, last) = rest.rsplit_once('*').map_or((None, rest), |(m, l)| (Some(m), l));
    for piece in middle.into_iter().flat_map(|middle| middle.split('*')) {
        let Some((_, after)) = text.split_once(piece) else {
            return false;
        };
        text = after;
    }
    text.ends_with(last)
}

/// Whether a decoded path has one reading: no segments of dots (also none hidden before `;` or with
/// spaces behind them), no empty segments, no back slashes, no control characters, nothing that is still encoded.
fn is_plain(path: &str) -> bool {
    let odd = |c: char| c.is_control() || c == '\\' || c == ENCODED_SLASH;
    let segments = path.strip_prefix('/').unwrap_or(path).split('/');
    let last = segments.clone().count().saturating_sub(1);
    let odd_segment = |(place, segment): (usize, &str)| {
        let name = segment.split(';').next().unwrap_or(segment).trim_end_matches(' ');
        let dots = !name.is_empty() && name.trim_end_matches(['.', ' ']).is_empty();
        dots || (segment.is_empty() && place != last)
    };
    !path.contains(odd) && !segments.enumerate().any(odd_segment) && !is_still_encoded(path)
}

fn is_still_encoded(text: &str) -> bool {
    let hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let bytes = text.as_bytes();
    let mut at = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%').map(|(at, _)| at);
    at.any(|at| hex(bytes.get(at.saturating_add(1))) && hex(bytes.get(at.saturating_add(2))))
}

fn replace_encoded_slashes(path: &str) -> String {
    path.replace("%2f", &ENCODED_SLASH.to_string()).replace("%2F", &ENCODED_SLASH.to_string())
}

fn without_parameters(path: &str) -> String {
    let names = path.split('/').map(|segment| segment.split(';').next().unwrap_or(segment));
    names.collect::<Vec<_>>().join("/")
}

/// As an upstream reads it that decodes before it looks for a query, and whose file system, like that
/// of Windows, drops dots and spaces at the end of a name.
fn without_endings(path: &str) -> String {
    let path = path.split(['?', '#']).next().unwrap_or(path);
    let path = without_parameters(path);
    let names = path.split('/').map(|name| name.trim_end_matches(['.', ' ']));
    names.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(priced: &[&str], free: &[&str]) -> Rules {
        let mut rules = Rules::default();
        for rule in priced {
            rules.price(rule).unwrap();
        }
        for rule in free {
            rules.free(rule).unwrap();
        }
        rules
    }

    /// `$…`, `free`, `unlisted` or `refused`.
    fn judge(rules: &Rules, request: &str) -> String {
        let (method, path) = request.split_once(' ').unwrap();
        match rules.judge(&method.parse().unwrap(), path) {
            Ok(Verdict::Priced(price, _)) => price.to_string(),
            Ok(Verdict::Free) => "free".to_owned(),
            Ok(Verdict::Unlisted) => "unlisted".to_owned(),
            Err(_) => "refused".to_owned(),
        }
    }

    #[test]
    fn the_most_exact_rule_counts_and_nothing_else_is_served() {
        let rules = rules(
            &["GET /weather/*=$0.02", "GET /weather/*/hourly=0.05", "POST /export=$9"],
            &["/health", "GET /weather/help"],
        );
        for (request, expect) in [
            ("GET /weather/ams", "$0.02"),
            ("HEAD /weather/ams", "$0.02"),
            ("GET /weather/ams/now", "$0.02"),
            ("GET /weather/ams/hourly", "$0.05"),
            ("GET /weather/help", "free"),
            ("POST /weather/help", "unlisted"),
            ("GET /health", "free"),
            ("DELETE /health", "free"),
            ("GET /health/", "unlisted"),
            ("GET /Health", "unlisted"),
            ("POST /export", "$9.00"),
            ("GET /export", "unlisted"),
            ("GET /", "unlisted"),
        ] {
            assert_eq!(judge(&rules, request), expect, "{request}");
        }
    }

    #[test]
    fn no_spelling_makes_a_priced_path_free() {
        let rules = rules(&["GET /weather/*=$0.02", "GET /report=$1"], &["/*"]);
        for path in [
            "/weather/ams",
            "/WEATHER/ams",
            "/we%61ther/ams",
            "/weather",
            "/weather/",
            "/weather;x=1/ams",
            "/weather/;a",
            "/w%65ather;/ams",
        ] {
            assert_eq!(judge(&rules, &format!("GET {path}")), "$0.02", "{path}");
        }
        for path in [
            "/report",
            "/report/",
            "/REPORT",
            "/rep%6Frt",
            "/report;v=1",
            "/report;/",
            "/report.",
            "/report..",
            "/report%20",
            "/report.%20./",
            "/report%3Fx",
            "/report.%23x",
        ] {
            assert_eq!(judge(&rules, &format!("GET {path}")), "$1.00", "{path}");
        }
        for path in [
            "//weather/ams",
            "/x/..%2fweather/ams",
            "/x/%2e%2e%2fweather/ams",
            "/we%2561ther/ams",
            "/x/..;/weather/ams",
            "/weather%2fams",
            "/weather%2Fams",
            "/weather%5cams",
            "/weather%00",
            "/%ff",
            "/x//",
            "/.%2f",
            "/x/.../weather/ams",
            "/x/..%20/weather/ams",
            "/x/..%20;/weather/ams",
            "/x/%EF%A3%BFy",
        ] {
            assert_eq!(judge(&rules, &format!("GET {path}")), "refused", "{path}");
        }
        for path in ["/", "/weathers", "/other/a%2Fb", "/caf%C3%A9", "/100%25"] {
            assert_eq!(judge(&rules, &format!("GET {path}")), "free", "{path}");
        }
    }

    #[test]
    fn no_spelling_of_a_method_makes_a_priced_path_free() {
        let rules = rules(&["GET /weather/*=$0.02"], &["/*"]);
        for method in ["get", "Get", "gET", "G3T", "GET_", "CONNECT", "TRACE"] {
            assert_eq!(judge(&rules, &format!("{method} /weather/ams")), "refused", "{method}");
        }
        for method in ["M-SEARCH", "PROPFIND"] {
            assert_eq!(judge(&rules, &format!("{method} /other")), "free", "{method}");
        }
    }

    #[test]
    fn where_a_price_and_a_free_rule_are_equally_exact_the_price_counts() {
        let rules = rules(&["GET /*=$0.02"], &["/*", "/public/*"]);
        assert_eq!(judge(&rules, "GET /x"), "$0.02");
        assert_eq!(judge(&rules, "GET /public/x"), "free");
        assert_eq!(judge(&rules, "POST /x"), "free");
        // One reading says free, the other priced.
        assert_eq!(judge(&rules, "GET /public%2Fx"), "refused");
        assert_eq!(judge(&rules, "GET /public/a%2Fb"), "free");
    }

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, text, expect) in [
            ("/a*", "/a", true),
            ("/a*b*c", "/axxbyyc", true),
            ("/a*b*c", "/abc", true),
            ("/a*b*c", "/acb", false),
            ("/a*a", "/a", false),
            ("/*/x", "/x", false),
            ("/**", "/anything/at/all", true),
            ("/a", "/ab", false),
        ] {
            assert_eq!(fits(pattern, text), expect, "{pattern} {text}");
        }
    }

    #[test]
    fn rules_that_cannot_be_read_are_refused() {
        for rule in [
            "GET /x",
            "GET /x=",
            "GET /x=free",
            "GET /x=0",
            "x=$1",
            "get /x=$1",
            "GET /a%20b=$1",
            "GET /a/../b=$1",
            "GET //a=$1",
            "GET /a?b=$1",
            "=$1",
            "",
        ] {
            assert!(Rules::default().price(rule).is_err(), "{rule}");
        }
        for rule in ["", "health", "GET", "/a b", "/x?y"] {
            assert!(Rules::default().free(rule).is_err(), "{rule}");
        }
        assert!(Rules::default().price("/any=$0.02").is_ok());
        assert!(Rules::default().price("* /any=$0.02").is_ok());
    }

    #[test]
    fn the_methods_of_a_path_are_those_that_are_listed_there() {
        let mut rules = Rules::default();
        rules.price("POST /echo=$0.05").unwrap();
        rules.price("OPTIONS /echo=$0.05").unwrap();
        rules.price("GET /weather/*=$0.02").unwrap();
        rules.free("DELETE /weather/old").unwrap();
        for (path, methods) in [
            ("/echo", &["POST"][..]),
            ("/weather/delft", &["GET", "HEAD"]),
            ("/weather/old", &["GET", "HEAD", "DELETE"]),
            ("/other", &[]),
            ("/a/%2e%2e/echo", &[]),
        ] {
            assert_eq!(rules.served_methods(path), methods, "{path}");
        }
    }
}
