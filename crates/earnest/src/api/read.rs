//! Reading what strangers send: JSON bodies, path ids, query strings, headers.
//!
//! Strict on purpose: a member written twice, a wrong type, a body that is too large or nested too
//! deep is refused with its own code before anything is looked at.

use std::str::FromStr;
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::{FromRequest, FromRequestParts, Request};
use bytes::Bytes;
use earnest_core::authorize::is_request_id;
use earnest_core::problem::{Code, Refusal};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::{ApiError, ApiResult, refuse};
use super::exact;
use crate::app::App;

/// The most that one page of a list holds.
pub const MAX_PAGE: u16 = 500;

/// How long a body may take to arrive; the listener puts it beside every request.
#[derive(Clone, Copy, Debug)]
pub struct BodyTimeout(pub Duration);

impl Default for BodyTimeout {
    fn default() -> Self {
        Self(Duration::from_secs(crate::limits::Limits::default().body_seconds))
    }
}

/// A JSON body.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> ApiResult<Self> {
        let unsupported = |why| Err(refuse(Code::MediaTypeUnsupported, why));
        let kind = one(request.headers(), &header::CONTENT_TYPE);
        if !kind.ok().flatten().and_then(|kind| kind.to_str().ok()).is_some_and(is_json) {
            return unsupported("the body must be application/json, in UTF-8");
        }
        let coded = request.headers().get_all(header::CONTENT_ENCODING).iter();
        if !coded.into_iter().all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return unsupported("the body must not be compressed");
        }
        let body = body(request, app.limits.body_bytes).await?;
        parse(&body).map(Json)
    }
}

/// The only value of a header; none, if it is not there.
///
/// # Errors
/// When it is there more than once: whichever was believed, somebody in between may have believed
/// the other.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> ApiResult<Option<&'a HeaderValue>> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(refuse(Code::RequestMalformed, &format!("the header {name} stands twice"))),
    }
}

fn is_json(kind: &str) -> bool {
    let mut parts = kind.split(';').map(str::trim);
    let essence = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"));
    let mut charset = parts.filter_map(|part| part.split_once('='));
    essence
        && charset.all(|(name, value)| {
            !name.trim().eq_ignore_ascii_case("charset")
                || value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
        })
}

/// The whole body, if it is not larger than `most` and arrives in time.
pub async fn body(request: Request, most: usize) -> ApiResult<Bytes> {
    let too_large = || {
        let refusal = Refusal::new(Code::BodyTooLarge, "the body is too large");
        ApiError::from(refusal.with("limit_bytes", most))
    };
    let BodyTimeout(most_time) = request.extensions().get().copied().unwrap_or_default();
    let body = request.into_body();
    // Said beforehand, so that nobody has to send what is not read.
    if body.size_hint().lower() > u64::try_from(most).unwrap_or(u64::MAX) {
        return Err(too_large());
    }
    match tokio::time::timeout(most_time, Limited::new(body, most).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(refuse(Code::RequestMalformed, "the body broke off")),
        Err(_) => Err(refuse(Code::RequestTimeout, "the body took too long to arrive")),
    }
}

/// Reads JSON exactly as it was asked for; see [`super::exact`].
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    exact::from_slice(bytes).map_err(|why| refuse(Code::RequestMalformed, &why))
}

/// One line of visible text, not longer than `most` bytes: for what people will read in a list.
pub fn is_line(text: &str, most: usize) -> bool {
    let plain = text.trim() == text && !text.chars().any(earnest_core::quote::is_invisible);
    plain && (1..=most).contains(&text.len())
}

/// An id in a path. A text that is no id names nothing: 404.
pub fn id<T: FromStr>(text: &str) -> ApiResult<T> {
    text.parse().map_err(|_| refuse(Code::NotFound, "there is no such thing"))
}

/// Parts of a path. What is not even text names nothing: 404.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, app).await;
        path.map(|path| Self(path.0)).map_err(|_| refuse(Code::NotFound, "there is no such thing"))
    }
}

/// A query string. A member that a route does not know is refused: a filter that is not obeyed
/// would show more than was asked for.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> ApiResult<Self> {
        let malformed = |why: &str| refuse(Code::RequestMalformed, why);
        let text = parts.uri.query().unwrap_or_default();
        let unreadable = |part: &str| part.contains(char::REPLACEMENT_CHARACTER);
        let mut members = url::form_urlencoded::parse(text.as_bytes());
        if members.any(|(name, value)| unreadable(&name) || unreadable(&value)) {
            return Err(malformed("the query is not UTF-8"));
        }
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        query
            .map(|query| Self(query.0))
            .map_err(|why| malformed(&format!("the query does not fit: {}", why.body_text())))
    }
}

/// `?limit&cursor` of every list.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Paging {
    /// How many at most; 1 to 500, 50 unless said.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u16>,
    /// What `next_cursor` of the page before said.
    pub cursor: Option<String>,
}

impl Paging {
    /// How many.
    pub fn limit(&self) -> ApiResult<usize> {
        page_limit(self.limit, 50)
    }

    /// From where.
    pub fn cursor<C: FromStr>(&self) -> ApiResult<Option<C>> {
        read_cursor(self.cursor.as_deref())
    }
}

/// How many rows a page holds.
pub fn page_limit(asked: Option<u16>, otherwise: u16) -> ApiResult<usize> {
    let limit = asked.unwrap_or(otherwise);
    if (1..=MAX_PAGE).contains(&limit) {
        return Ok(usize::from(limit));
    }
    let refusal = Refusal::new(Code::ValidationFailed, "`limit` is from 1 to 500");
    Err(refusal.with("limit", MAX_PAGE).into())
}

/// Where a page begins.
pub fn read_cursor<C: FromStr>(text: Option<&str>) -> ApiResult<Option<C>> {
    let unknown = |_| refuse(Code::RequestMalformed, "`cursor` is not one that was given");
    text.map(|text| text.parse().map_err(unknown)).transpose()
}

/// The `Idempotency-Key` header, if there is one.
pub fn idempotency_key(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let name = HeaderName::from_static("idempotency-key");
    let Some(value) = one(headers, &name)? else { return Ok(None) };
    match value.to_str() {
        Ok(text) if is_request_id(text) => Ok(Some(text.to_owned())),
        _ => Err(refuse(
            Code::RequestMalformed,
            "an idempotency key has 1 to 128 visible ASCII characters",
        )),
    }
}

/// The `Idempotency-Key` header of a money route.
pub fn required_key(headers: &HeaderMap) -> ApiResult<String> {
    idempotency_key(headers)?.ok_or_else(|| {
        Refusal::new(Code::IdempotencyKeyRequired, "this route needs the header Idempotency-Key")
            .next("send one key for one thing, and repeat it with every retry of that thing")
            .into()
    })
}

/// The version in `If-Match`: one strong ETag as it was given, `"7"`.
pub fn if_match(headers: &HeaderMap) -> ApiResult<u64> {
    let Some(value) = one(headers, &header::IF_MATCH)? else {
        let refusal =
            Refusal::new(Code::PreconditionRequired, "this change needs the header If-Match");
        return Err(refusal.next("read it first and send its ETag").into());
    };
    let digits = value.to_str().ok().and_then(|text| text.strip_prefix('"')?.strip_suffix('"'));
    let digits = digits.filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    let version = digits.and_then(|text| text.parse().ok());
    version.ok_or_else(|| refuse(Code::VersionConflict, "If-Match is not an ETag that was given"))
}
