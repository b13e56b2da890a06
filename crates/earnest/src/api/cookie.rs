//! Cookies of browsers, and whether a request that carries one was really made by our own pages.
//!
//! A cookie goes along with whatever a browser sends here, so by itself it proves nothing about who
//! wanted the request. `SameSite=Lax` keeps it away from what other sites send, but for links that
//! are opened (from a chat, say), which change nothing. Beyond that an unsafe request must show that
//! it comes from here: see [`comes_from_here`] and [`Form`].

use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use url::Url;

use crate::app::App;

/// The header that tells a request of a program from one of a page elsewhere: pages cannot set it
/// without asking first, and nobody is told yes.
pub static CSRF_HEADER: HeaderName = HeaderName::from_static("earnest-csrf");

static SEC_FETCH_SITE: LazyLock<HeaderName> =
    LazyLock::new(|| HeaderName::from_static("sec-fetch-site"));

/// Which cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cookie {
    /// Of a browser that is signed in.
    SignIn,
    /// Of a browser that looks at a sign-in link: its form counts from there only.
    Form,
    /// Of a browser that asked for a question before it was signed in: which one.
    Next,
}

impl Cookie {
    /// Its name. Over https `__Host-`: no other host and no plain http can set it.
    pub fn name(self, app: &App) -> &'static str {
        match (self, is_https(app)) {
            (Self::SignIn, true) => "__Host-earnest",
            (Self::SignIn, false) => "earnest",
            (Self::Form, true) => "__Host-earnest-form",
            (Self::Form, false) => "earnest-form",
            (Self::Next, true) => "__Host-earnest-next",
            (Self::Next, false) => "earnest-next",
        }
    }

    /// Its value in a request; `None` also where it stands twice, since one of them is not ours.
    pub fn read(self, app: &App, headers: &HeaderMap) -> Option<String> {
        let name = self.name(app);
        let texts = headers.get_all(header::COOKIE).iter().filter_map(|text| text.to_str().ok());
        let pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.split_once('='));
        let mut ours = pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
        match (ours.next(), ours.next()) {
            (Some(value), None) if !value.is_empty() => Some(value.to_owned()),
            _ => None,
        }
    }

    /// Sets it for some seconds; 0 takes it away.
    pub fn set(self, app: &App, value: &str, seconds: i64) -> HeaderValue {
        let (name, secure) = (self.name(app), if is_https(app) { "; Secure" } else { "" });
        let text =
            format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
        // Made of hex digits and our own words.
        HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

fn is_https(app: &App) -> bool {
    app.public_url.starts_with("https://")
}

/// What a form carries to show that it is one of ours: a digest of the browser's own cookie, which
/// no other page can read. Nothing is kept for it, and it changes with every sign-in.
pub struct Form(String);

impl Form {
    /// The proof that belongs to a cookie's value.
    pub fn of(cookie: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"a form of earnest's\0");
        hash.update(cookie);
        Self(hex::encode(hash.finalize()))
    }

    /// As it stands in a form.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Whether a form carried it.
    pub fn is(&self, told: &str) -> bool {
        self.0.as_bytes().ct_eq(told.as_bytes()).into()
    }
}

/// What the browser says about where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// A page of ours.
    Here,
    /// Another site, or a page that does not belong to it.
    Elsewhere,
    /// It does not say: an old browser, plain http, or a program.
    Unknown,
}

/// Where a request comes from. `Sec-Fetch-Site` cannot be set by pages; without it `Origin` counts,
/// which is `null` where the page sends no referrer, as ours do.
pub fn comes_from(app: &App, headers: &HeaderMap) -> Site {
    if let Some(site) = headers.get(&*SEC_FETCH_SITE) {
        return if site == "same-origin" { Site::Here } else { Site::Elsewhere };
    }
    let Some(origin) = headers.get(header::ORIGIN).filter(|origin| *origin != "null") else {
        return Site::Unknown;
    };
    let ours = Url::parse(&app.public_url).map(|url| url.origin().ascii_serialization());
    match (origin.to_str(), ours) {
        (Ok(origin), Ok(ours)) if origin == ours => Site::Here,
        _ => Site::Elsewhere,
    }
}

/// Whether an unsafe API request with a cookie was meant: sent by a page of ours, or by a program
/// that says so with [`CSRF_HEADER`].
pub fn comes_from_here(app: &App, headers: &HeaderMap) -> bool {
    match comes_from(app, headers) {
        Site::Here => true,
        Site::Elsewhere => false,
        Site::Unknown => headers.contains_key(&CSRF_HEADER),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_belongs_to_one_cookie() {
        let form = Form::of("a");
        assert!(form.is(Form::of("a").text()));
        assert!(!form.is(Form::of("b").text()));
        assert!(!form.is(""));
        assert!(!form.is("a"));
    }
}
