//! The pages that an owner opens on a phone: signing in, and answering questions.
//!
//! Rendered here, without a line of script: every action is a plain form. They decide nothing and
//! have no way of their own to change anything: a form ends in the same flow as the API. What
//! others wrote (names, listings, URLs) is shown as text; templates escape it, and the policy in
//! [`protect`] lets a browser run and load nothing but our one style sheet.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use askama::Template;
use axum::Router;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earnest_core::id::ApprovalId;
use earnest_core::party::Owner;
use earnest_core::problem::{Code, Refusal};
use earnest_core::sign_in::SignIn;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use sha2::{Digest as _, Sha256};

use crate::api::cookie::{self, Cookie, Form, Site};
use crate::api::error::{ApiError, ApiResult, refuse};
use crate::api::read;
use crate::app::App;
use crate::flow::sign_in;
use crate::front::ClientAddress;

mod approvals;
mod facts;
mod login;

/// The one style sheet, inside every page: a phone asks once.
const STYLE: &str = include_str!("style.css");

/// The largest form.
const MAX_FORM_BYTES: usize = 64 * 1024;

/// Every page.
pub fn routes() -> Router<App> {
    Router::new()
        .route("/login", get(login::page).post(login::sign_in))
        .route("/sign-out", post(login::sign_out))
        .route("/approvals", get(approvals::list).post(approvals::answer_several))
        .route("/approvals/{id}", get(approvals::show).post(approvals::answer))
        .route("/approvals/{id}/grant", get(approvals::review_grant))
}

/// A page that was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The question that it is about.
    approval: Option<ApprovalId>,
}

/// Whether a path is one of a page: what is refused there is said in words and not in JSON.
pub fn page_at(path: &str) -> Option<Asked> {
    if let Some(rest) = path.strip_prefix("/approvals/") {
        let name = rest.split('/').next().unwrap_or_default();
        return Some(Asked { approval: name.parse().ok() });
    }
    matches!(path, "/login" | "/sign-out" | "/approvals").then_some(Asked { approval: None })
}

/// How long a browser that has to be signed in first remembers what it asked for, in seconds: longer
/// than a sign-in link counts.
const NEXT_SECONDS: i64 = 900;

/// Beside an answer that says itself what was refused.
#[derive(Clone, Copy, Debug)]
pub struct Said;

/// What every page is sent with.
pub fn protect(headers: &mut HeaderMap) {
    static POLICY: LazyLock<String> = LazyLock::new(|| {
        let style = STANDARD.encode(Sha256::digest(STYLE));
        format!(
            "default-src 'none'; style-src 'sha256-{style}'; form-action 'self'; \
             frame-ancestors 'none'; base-uri 'none'"
        )
    });
    // Base 64 and our own words.
    let policy = HeaderValue::from_str(&POLICY)
        .unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"));
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        // Nobody's search engine has to know the addresses.
        (header::HeaderName::from_static("x-robots-tag"), "noindex"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// What stands around every page.
pub(crate) struct Frame {
    style: &'static str,
    /// What kind of money this is, in words.
    mode: &'static str,
    /// Who is signed in, and what forms carry.
    owner: Option<(String, String)>,
}

impl Frame {
    fn new(app: &App) -> Self {
        let mode = match app.store.mode() {
            "simulated" => "Simulated money: nothing real is charged",
            "sandbox" => "Sandbox money: nothing real is charged",
            _ => "Live: real money",
        };
        Self { style: STYLE, mode, owner: None }
    }

    fn of(app: &App, signed_in: &SignedIn) -> Self {
        let owner = Some((signed_in.owner.name.clone(), signed_in.form.text().to_owned()));
        Self { owner, ..Self::new(app) }
    }

    /// What forms carry to show that they are ours.
    fn proof(&self) -> &str {
        self.owner.as_ref().map_or("", |(_, proof)| proof)
    }
}

/// A rendered page.
fn render(status: StatusCode, page: &impl Template) -> ApiResult<Response> {
    let html = page.render().map_err(|error| {
        tracing::error!(%error, "a page was not rendered");
        refuse(Code::Internal, "the page could not be shown")
    })?;
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"))];
    let mut response = (status, kind, html).into_response();
    response.extensions_mut().insert(Said);
    Ok(response)
}

/// Go there, with GET: reloading what comes then sends no form again.
fn see_other(place: &str) -> Response {
    let place = HeaderValue::from_str(place);
    // Made of our own words and ids.
    let place = place.unwrap_or_else(|_| HeaderValue::from_static("/approvals"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, place)]).into_response()
}

#[derive(Template)]
#[template(path = "refusal.html")]
struct RefusalPage<'a> {
    frame: Frame,
    title: &'a str,
    detail: &'a str,
    next: &'a str,
    sign_in: bool,
    trace: &'a str,
}

/// What was refused, in words. Says nothing about what is asked for: who has no session learns no
/// more from an address that exists than from any other. A browser that has to be signed in first
/// remembers by itself which question it asked for: its id, whether or not there is such a question.
pub fn refusal(app: &App, asked: Asked, refusal: &Refusal, trace: &str) -> Response {
    let code = refusal.code;
    let sign_in = code == Code::Unauthenticated;
    let (title, detail) = match code {
        Code::Unauthenticated => ("Sign in first", refusal.detail.as_str()),
        Code::NotFound => (
            "There is no such thing here",
            "There is nothing at this address for the owner who is signed in in this browser",
        ),
        code => (code.title(), refusal.detail.as_str()),
    };
    let next = refusal.next.as_deref().unwrap_or_default();
    let page = RefusalPage { frame: Frame::new(app), title, detail, next, sign_in, trace };
    let status = StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = match render(status, &page) {
        Ok(response) => response,
        Err(error) => return crate::api::error::render(&error.0, trace),
    };
    let headers = response.headers_mut();
    if let Some(seconds) = refusal.retry_after_seconds {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(0).unsigned_abs()));
    }
    if sign_in {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        if let Some(approval) = asked.approval {
            let next = Cookie::Next.set(app, &approval.to_string(), NEXT_SECONDS);
            headers.append(header::SET_COOKIE, next);
        }
    }
    response
}

/// The owner whose browser this is.
pub(crate) struct SignedIn {
    owner: Owner,
    row: SignIn,
    form: Form,
}

impl FromRequestParts<App> for SignedIn {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        let nobody = || refuse(Code::Unauthenticated, "this browser is not signed in as an owner");
        let cookie = Cookie::SignIn.read(app, &parts.headers).ok_or_else(nobody)?;
        let row = sign_in::find(app, &cookie).await?.ok_or_else(nobody)?;
        app.front.credential(sha2::Sha256::digest(&cookie).into(), &mut parts.extensions)?;
        let owner = app.store.reader().row::<Owner>(row.owner)?.ok_or_else(nobody)?;
        Ok(Self { owner, row, form: Form::of(&cookie) })
    }
}

/// The fields of a form, as they were sent.
pub(crate) struct Fields(Vec<(String, String)>);

impl FromRequest<App> for Fields {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> ApiResult<Self> {
        if cookie::comes_from(app, request.headers()) == Site::Elsewhere {
            return Err(foreign());
        }
        let kind = request.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            let why = "the form must be application/x-www-form-urlencoded";
            return Err(refuse(Code::MediaTypeUnsupported, why));
        }
        let body = read::body(request, MAX_FORM_BYTES).await?;
        Ok(Self(url::form_urlencoded::parse(&body).into_owned().collect()))
    }
}

impl Fields {
    /// The only value of a field; nothing where it is missing or stands twice.
    fn one<'a>(&'a self, name: &'a str) -> &'a str {
        let mut found = self.all(name);
        match (found.next(), found.next()) {
            (Some(value), None) => value,
            _ => "",
        }
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether it is a form of ours, sent by this browser.
    ///
    /// # Errors
    /// `unauthenticated`.
    fn prove(&self, form: &Form) -> ApiResult<()> {
        if form.is(self.one("form")) { Ok(()) } else { Err(foreign()) }
    }
}

/// A form that somebody else's page may have sent.
fn foreign() -> ApiError {
    let why = "the form did not come from a page of this Earnest, or from before you signed in";
    Refusal::new(Code::Unauthenticated, why).next("open the page again and repeat").into()
}

/// Whose request it is: the client behind trusted proxies.
pub(crate) struct Address(IpAddr);

impl FromRequestParts<App> for Address {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> ApiResult<Self> {
        let client = parts.extensions.get::<ClientAddress>().map(|client| client.0);
        Ok(Self(client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))))
    }
}
