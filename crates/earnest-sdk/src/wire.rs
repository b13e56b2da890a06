//! The three headers of a purchase: the challenge, the voucher, the receipt.
//!
//! `WWW-Authenticate: Tab realm="…", quote="…"` (RFC 9110 section 11.6.1), `Authorization: Tab …`
//! (section 11.6.2) and `Payment-Receipt: purchase=…; url="…"`. The quote is its JSON in base64url.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use earnest_core::id::PurchaseId;
use earnest_core::problem::{Code, Refusal};
use earnest_core::quote::{Quote, QuoteBody};
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE};

use crate::setup::Secret;

/// The authentication scheme.
pub const SCHEME: &str = "Tab";
/// What a paid answer carries, and errors never.
pub const PAYMENT_RECEIPT: HeaderName = HeaderName::from_static("payment-receipt");
/// The longest challenge that is read.
const MAX_QUOTE_TEXT_BYTES: usize = 16 * 1024;

/// The value of `WWW-Authenticate` that makes a 402 a challenge. `None` when the realm or quote
/// cannot stand in a header.
pub(crate) fn challenge(realm: &str, quote: &Quote) -> Option<HeaderValue> {
    let quote = URL_SAFE_NO_PAD.encode(serde_json::to_vec(quote).ok()?);
    let realm = realm.replace('\\', "\\\\").replace('"', "\\\"");
    HeaderValue::from_str(&format!("{SCHEME} realm=\"{realm}\", quote=\"{quote}\"")).ok()
}

/// The quote in the first `Tab` challenge; `None` where there is no such challenge, and the answer
/// is then not to be paid, whatever its status.
///
/// # Errors
/// `request_malformed` when there is a challenge without a readable quote.
pub fn quote_in(headers: &HeaderMap) -> Option<Result<QuoteBody, Refusal>> {
    let challenges = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|v| v.to_str().ok());
    let params = challenges.flat_map(tab_challenges).next()?;
    let unreadable = || Refusal::new(Code::RequestMalformed, "the challenge holds no quote");
    let text = params.into_iter().find(|(name, _)| name == "quote").map(|(_, value)| value);
    Some(text.ok_or_else(unreadable).and_then(|text| {
        if text.len() > MAX_QUOTE_TEXT_BYTES {
            return Err(unreadable());
        }
        let json = URL_SAFE_NO_PAD.decode(&text).map_err(|_| unreadable())?;
        serde_json::from_slice(&json).map_err(|_| unreadable())
    }))
}

/// Whether a value of `WWW-Authenticate` holds a `Tab` challenge.
pub(crate) fn is_tab_challenge(value: &HeaderValue) -> bool {
    value.to_str().is_ok_and(|text| !tab_challenges(text).is_empty())
}

type Params = Vec<(String, String)>;

/// The parameters of every `Tab` challenge in one header value, which may hold challenges of
/// several schemes.
fn tab_challenges(text: &str) -> Vec<Params> {
    let mut found = Vec::new();
    let mut ours = false;
    for item in split_outside_quotes(text, ',') {
        let (head, rest) = item.split_once([' ', '\t']).unwrap_or((item, ""));
        // A first word without `=` is a scheme; RFC 9110 allows no space inside `name=value` here.
        let param = if head.contains('=') {
            item
        } else {
            ours = head.eq_ignore_ascii_case(SCHEME);
            if ours {
                found.push(Params::new());
            }
            rest.trim()
        };
        if let (true, Some(params), Some((name, value))) =
            (ours, found.last_mut(), param.split_once('='))
        {
            params.push((name.trim().to_ascii_lowercase(), unquote(value.trim())));
        }
    }
    found
}

/// The non-empty pieces between separators that stand outside quoted strings.
fn split_outside_quotes(text: &str, separator: char) -> Vec<&str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |c: char| {
        let inside = quoted;
        if escaped {
            escaped = false;
        } else if quoted && c == '\\' {
            escaped = true;
        } else if c == '"' {
            quoted = !quoted;
        }
        c == separator && !inside
    })
    .map(str::trim)
    .filter(|piece| !piece.is_empty())
    .collect()
}

fn unquote(value: &str) -> String {
    let Some(inner) = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return value.to_owned();
    };
    let mut plain = String::with_capacity(inner.len());
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => plain.extend(letters.next()),
            other => plain.push(other),
        }
    }
    plain
}

/// What a request brings along to pay with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Presented {
    /// No `Authorization: Tab`.
    Nothing,
    /// One voucher.
    Voucher(Secret),
    /// Several, or one that is not text.
    Unreadable,
}

/// Takes `Authorization: Tab …` off a request, so that no handler, log or upstream sees a voucher.
/// Credentials of other schemes stay.
pub(crate) fn take_voucher(headers: &mut HeaderMap) -> Presented {
    let (ours, others): (Vec<HeaderValue>, Vec<HeaderValue>) =
        headers.get_all(AUTHORIZATION).iter().cloned().partition(|value| is_tab(value.as_bytes()));
    headers.remove(AUTHORIZATION);
    for value in others {
        headers.append(AUTHORIZATION, value);
    }
    match ours.as_slice() {
        [] => Presented::Nothing,
        [value] => match value.to_str().ok().and_then(|text| text.split_once(' ')) {
            Some((_, token)) => Presented::Voucher(Secret::of(token.trim().to_owned())),
            None => Presented::Unreadable,
        },
        _ => Presented::Unreadable,
    }
}

pub(crate) fn is_tab(value: &[u8]) -> bool {
    let value = value.trim_ascii_start();
    let (scheme, rest) = value.split_at_checked(SCHEME.len()).unwrap_or((value, &[]));
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes())
        && rest.first().is_none_or(u8::is_ascii_whitespace)
}

/// Where the receipt of a paid answer will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentReceipt {
    /// The purchase.
    pub purchase: PurchaseId,
    /// The URL of its receipt, once there is one.
    pub url: String,
}

impl PaymentReceipt {
    /// The value of the header, unless the URL cannot stand in one.
    pub(crate) fn to_value(&self) -> Option<HeaderValue> {
        if self.url.contains(['"', '\\']) {
            return None;
        }
        HeaderValue::from_str(&format!("purchase={}; url=\"{}\"", self.purchase, self.url)).ok()
    }

    /// Reads the header of an answer, if it is there and has this form.
    pub fn read(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(PAYMENT_RECEIPT)?.to_str().ok()?;
        let (mut purchase, mut url) = (None, None);
        for item in split_outside_quotes(text, ';') {
            match item.split_once('=') {
                Some(("purchase", value)) => purchase = value.parse().ok(),
                Some(("url", value)) => url = Some(unquote(value)),
                _ => {}
            }
        }
        Some(Self { purchase: purchase?, url: url? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earnest_core::quote::body_digest;
    use serde_json::json;

    fn quote() -> Quote {
        serde_json::from_value(json!({"v":1,"id":"qte_00000000000000000000000001",
            "seller":"sel_00000000000000000000000001","listing":"GET /weather","method":"GET",
            "url":"https://api.example/weather","body_sha256":body_digest(b""),
            "amount_micros":20000,"currency":"USD","expires_at":"2026-11-30T12:00:00Z"}))
        .unwrap()
    }

    fn headers(values: &[&str]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for value in values {
            map.append(WWW_AUTHENTICATE, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    #[test]
    fn a_challenge_reads_back_among_others() {
        let ours = challenge("a \"realm\", with \\", &quote()).unwrap();
        let ours = ours.to_str().unwrap();
        let bearer = r#"Bearer realm="x, Tab quote=y", error="z""#;
        for values in [
            vec![ours.to_owned()],
            vec![bearer.to_owned(), ours.to_owned()],
            vec![format!("{bearer}, {ours}")],
            vec![format!("{ours}, {bearer}")],
            vec![format!("Negotiate abc==, {}", ours.replacen("Tab", "tab", 1))],
        ] {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            let read = quote_in(&headers(&values)).unwrap().unwrap();
            assert_eq!(serde_json::to_value(read).unwrap(), serde_json::to_value(quote()).unwrap());
        }
    }

    #[test]
    fn what_is_no_challenge_is_never_paid() {
        assert!(quote_in(&headers(&[])).is_none());
        assert!(quote_in(&headers(&[r#"Bearer realm="Tab quote=x""#])).is_none());
        assert!(quote_in(&headers(&["Tabs quote=x"])).is_none());
        for bad in ["Tab", "Tab quote=x", "Tab realm=\"r\"", "Tab quote=\"e30\"", "Tab quote=\""] {
            assert!(quote_in(&headers(&[bad])).unwrap().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_the_voucher_is_taken_off_a_request() {
        let take = |values: &[&str]| {
            let mut map = HeaderMap::new();
            for value in values {
                map.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            let presented = take_voucher(&mut map);
            (presented, map.get_all(AUTHORIZATION).iter().count())
        };
        assert_eq!(take(&[]), (Presented::Nothing, 0));
        assert_eq!(take(&["Bearer x"]), (Presented::Nothing, 1));
        let voucher = || Presented::Voucher(Secret::of("a.b.c".to_owned()));
        assert_eq!(take(&["Tab a.b.c"]), (voucher(), 0));
        assert_eq!(take(&["tAB   a.b.c ", "Basic x"]), (voucher(), 1));
        assert!(!format!("{:?}", voucher()).contains("a.b.c"));
        assert_eq!(take(&["Tab a", "Tab b"]), (Presented::Unreadable, 0));
        assert_eq!(take(&["Tab"]), (Presented::Unreadable, 0));
        assert_eq!(take(&["Table x"]), (Presented::Nothing, 1));
    }

    #[test]
    fn a_receipt_header_reads_back() {
        let receipt = PaymentReceipt {
            purchase: "pur_00000000000000000000000001".parse().unwrap(),
            url: "https://earnest.example/v1/purchases/x;y/receipt".to_owned(),
        };
        let mut map = HeaderMap::new();
        map.insert(PAYMENT_RECEIPT, receipt.to_value().unwrap());
        assert_eq!(PaymentReceipt::read(&map), Some(receipt));
        map.insert(PAYMENT_RECEIPT, HeaderValue::from_static("purchase=pur_1; url=\"x\""));
        assert_eq!(PaymentReceipt::read(&map), None);
    }
}
