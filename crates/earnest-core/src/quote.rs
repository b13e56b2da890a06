//! A seller's price for one request: the body of a 402.
//!
//! A quote names the exact request (method, canonical URL, digest of the body), so that what was
//! bought cannot be swapped for something else afterwards. Quotes come from strangers and are not
//! signed: what binds is the hold, the voucher, and the seller's own check of its own price.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use url::Url;

use crate::id::{QuoteId, SellerId};
use crate::money::{AmountInput, Currency, Micros};
use crate::problem::{Code, Refusal};
use crate::time::Timestamp;

/// The longest URL that can be bought.
pub const MAX_URL_BYTES: usize = 2048;
/// The longest name of a listing.
pub const MAX_LISTING_BYTES: usize = 200;
/// How far ahead a quote's expiry may lie: a price nobody looked at for a day is no offer.
pub const MAX_QUOTE_LIFE_SECONDS: i64 = 24 * 3600;

/// A price: fixed, or a ceiling below which the seller names the actual amount when it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Price {
    /// Exactly this.
    Fixed(Micros),
    /// At most this.
    UpTo(Micros),
}

impl Price {
    /// What has to be held.
    pub const fn most(self) -> Micros {
        match self {
            Self::Fixed(amount) | Self::UpTo(amount) => amount,
        }
    }
}

/// A quote that was read and found well-formed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "QuoteBody", try_from = "QuoteBody")]
pub struct Quote {
    /// The seller's name for it.
    pub id: QuoteId,
    /// Who is paid.
    pub seller: SellerId,
    /// What the seller calls the thing, such as `GET /weather/*`.
    pub listing: String,
    /// The request.
    pub request: Resource,
    /// What it costs.
    pub price: Price,
    /// In which currency.
    pub currency: Currency,
    /// Until when it may be accepted.
    pub expires_at: Timestamp,
}

/// One exact HTTP request: what a quote offers and a voucher opens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// In capitals.
    pub method: String,
    /// Canonical; see [`canonical_url`].
    pub url: String,
    /// SHA-256 of the body in hex; of nothing where there is no body.
    pub body_sha256: String,
}

impl Resource {
    /// A request with its body.
    ///
    /// # Errors
    /// When the URL or the method is not allowed.
    pub fn new(method: &str, url: &str, body: &[u8]) -> Result<Self, Refusal> {
        let resource = Self {
            method: method.to_owned(),
            url: canonical_url(url)?.into(),
            body_sha256: body_digest(body),
        };
        resource.check()?;
        Ok(resource)
    }

    /// `https://host[:port]`: what a seller registers. The URL is canonical, so its origin is what
    /// stands before the path.
    pub fn origin(&self) -> &str {
        let host = self.url.find("://").map_or(0, |at| at.saturating_add(3));
        let path = self.url.get(host..).and_then(|rest| rest.find('/'));
        let end = path.map_or(self.url.len(), |at| host.saturating_add(at));
        self.url.get(..end).unwrap_or_default()
    }

    /// SHA-256 of the URL in hex: what a public receipt shows of it.
    pub fn url_sha256(&self) -> String {
        hex::encode(Sha256::digest(self.url.as_bytes()))
    }

    fn check(&self) -> Result<(), Refusal> {
        let method = &self.method;
        let token = !method.is_empty() && method.len() <= 20;
        if !token || !method.bytes().all(|b| b.is_ascii_uppercase()) {
            return Err(Refusal::new(Code::RequestMalformed, "the method must be in capitals"));
        }
        let digest = &self.body_sha256;
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if digest.len() != 64 || !digest.bytes().all(hex) {
            let detail = "`body_sha256` must be 64 lower-case hex digits";
            return Err(Refusal::new(Code::RequestMalformed, detail));
        }
        Ok(())
    }
}

/// SHA-256 in lower-case hex.
pub fn body_digest(body: &[u8]) -> String {
    hex::encode(Sha256::digest(body))
}

/// Reads a URL and gives its one canonical spelling: lower-case host, no default port, dot segments
/// resolved. Only `https` and `http`; no credentials, no fragment; at most [`MAX_URL_BYTES`].
///
/// Whether plain `http` is acceptable is for the caller to say: here, only loopback is.
///
/// # Errors
/// `url_invalid`.
pub fn canonical_url(text: &str) -> Result<Url, Refusal> {
    let refuse = |why: &str| Err(Refusal::new(Code::UrlInvalid, why));
    if text.len() > MAX_URL_BYTES {
        return refuse("the URL is longer than 2048 bytes");
    }
    // The URL standard strips these silently; two spellings of one URL must not both pass.
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return refuse("the URL holds white space or control characters");
    }
    let Ok(url) = Url::parse(text) else {
        return refuse("that is not a URL");
    };
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return refuse("the URL must begin with https://");
    }
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return refuse("the URL must not hold credentials or a fragment");
    }
    if url.as_str().len() > MAX_URL_BYTES {
        return refuse("the URL is longer than 2048 bytes");
    }
    Ok(url)
}

/// Characters that change how the text around them is shown: controls, and marks that reorder or
/// hide text. What a stranger names is shown to people who decide about money.
pub fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Whether the URL's host is this machine: the only place where plain `http` is good enough.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// A quote as it travels. Exactly one of `amount_micros` and `max_micros` is there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QuoteBody {
    v: u32,
    id: QuoteId,
    seller: SellerId,
    listing: String,
    method: String,
    url: String,
    body_sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    amount_micros: Option<AmountInput>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_micros: Option<AmountInput>,
    currency: String,
    expires_at: Timestamp,
}

impl From<Quote> for QuoteBody {
    fn from(quote: Quote) -> Self {
        let (amount_micros, max_micros) = match quote.price {
            Price::Fixed(amount) => (Some(AmountInput::of(amount)), None),
            Price::UpTo(amount) => (None, Some(AmountInput::of(amount))),
        };
        Self {
            v: 1,
            id: quote.id,
            seller: quote.seller,
            listing: quote.listing,
            method: quote.request.method,
            url: quote.request.url,
            body_sha256: quote.request.body_sha256,
            amount_micros,
            max_micros,
            currency: quote.currency.code().to_owned(),
            expires_at: quote.expires_at,
        }
    }
}

impl TryFrom<QuoteBody> for Quote {
    type Error = Refusal;
    fn try_from(body: QuoteBody) -> Result<Self, Refusal> {
        body.read(Micros::MAX)
    }
}

impl QuoteBody {
    /// The quote, if it is well-formed and at most `max`.
    ///
    /// # Errors
    /// The amount's own code, `currency_unsupported`, `url_invalid`, or `request_malformed`.
    pub fn read(self, max: Micros) -> Result<Quote, Refusal> {
        let malformed = |why: &str| Refusal::new(Code::RequestMalformed, why);
        if self.v != 1 {
            return Err(malformed("only quotes of version 1 are understood"));
        }
        let price = match (self.amount_micros, self.max_micros) {
            (Some(amount), None) => Price::Fixed(amount.price(max)?),
            (None, Some(ceiling)) => Price::UpTo(ceiling.price(max)?),
            _ => return Err(malformed("a quote has either `amount_micros` or `max_micros`")),
        };
        let currency = Currency::parse(&self.currency)?;
        if self.listing.is_empty() || self.listing.len() > MAX_LISTING_BYTES {
            return Err(malformed("`listing` must have 1 to 200 bytes"));
        }
        // Owners read it where they are asked for a yes, on terminals too.
        if self.listing.chars().any(is_invisible) {
            return Err(malformed("`listing` must be plain visible text"));
        }
        let url: String = canonical_url(&self.url)?.into();
        if url != self.url {
            return Err(Refusal::new(Code::UrlInvalid, "the URL is not in its canonical spelling")
                .with("canonical", url));
        }
        let request = Resource { method: self.method, url, body_sha256: self.body_sha256 };
        request.check()?;
        Ok(Quote {
            id: self.id,
            seller: self.seller,
            listing: self.listing,
            request,
            price,
            currency,
            expires_at: self.expires_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn body() -> Value {
        json!({"v":1,"id":"qte_00000000000000000000000001","seller":"sel_00000000000000000000000001",
            "listing":"GET /weather/*","method":"GET","url":"https://api.example/weather/ams?q=1",
            "body_sha256": body_digest(b""),"amount_micros":20000,"currency":"USD",
            "expires_at":"2026-11-30T12:00:00Z"})
    }

    fn read(change: impl FnOnce(&mut Value)) -> Result<Quote, Code> {
        let mut value = body();
        change(&mut value);
        let body: QuoteBody = serde_json::from_value(value).map_err(|_| Code::RequestMalformed)?;
        body.read(Micros::constant(10_000_000_000)).map_err(|refusal| refusal.code)
    }

    #[test]
    fn reads_back_what_it_writes() {
        let quote = read(|_| ()).unwrap();
        assert_eq!(quote.price, Price::Fixed(Micros::constant(20_000)));
        assert_eq!(quote.request.origin(), "https://api.example");
        assert_eq!(serde_json::to_value(&quote).unwrap(), body());
    }

    #[test]
    fn every_bad_field_has_its_code() {
        let set = |field: &'static str, value: Value| move |v: &mut Value| v[field] = value;
        let code = |field, value| read(set(field, value)).unwrap_err();
        assert_eq!(code("amount_micros", json!(0)), Code::AmountNotPositive);
        assert_eq!(code("amount_micros", json!(-5)), Code::AmountNotPositive);
        assert_eq!(code("amount_micros", json!("1e3")), Code::AmountInvalid);
        assert_eq!(code("amount_micros", json!(1.5)), Code::AmountInvalid);
        assert_eq!(code("amount_micros", json!(9_007_199_254_740_993u64)), Code::AmountOutOfRange);
        assert_eq!(code("amount_micros", json!(10_000_000_001u64)), Code::AmountOutOfRange);
        assert_eq!(code("amount_micros", json!(null)), Code::RequestMalformed);
        assert_eq!(code("max_micros", json!(1)), Code::RequestMalformed);
        assert_eq!(code("currency", json!("JPY")), Code::CurrencyUnsupported);
        assert_eq!(code("currency", json!("usd")), Code::CurrencyUnsupported);
        assert_eq!(code("method", json!("get")), Code::RequestMalformed);
        assert_eq!(code("v", json!(2)), Code::RequestMalformed);
        for listing in ["", "a\nb", "\u{1b}[2J", "a\u{202e}b", "\u{200b}", "\u{feff}"] {
            assert_eq!(code("listing", json!(listing)), Code::RequestMalformed, "{listing:?}");
        }
        assert_eq!(code("body_sha256", json!("00")), Code::RequestMalformed);
    }

    #[test]
    fn only_one_spelling_of_a_url_passes() {
        for bad in [
            "https://API.example/weather",
            "https://api.example:443/",
            "https://api.example/a/../b",
            "https://api.example",
            "ftp://api.example/",
            "https://u:p@api.example/",
            "//api.example/",
            "https://api.example/#x",
            " https://api.example/",
            "https://api.example/\tx",
            "javascript:1",
            "",
        ] {
            assert_eq!(read(|v| v["url"] = json!(bad)).unwrap_err(), Code::UrlInvalid, "{bad:?}");
        }
    }
}
