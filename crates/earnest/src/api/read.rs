//! Reading what strangers send: JSON bodies, path ids, query strings, headers.
//!
//! Strict on purpose: a member written twice, a wrong type, a body that is too large or nested too
//! deep is refused with its own code before anything is looked at.

use std::fmt;
use std::str::FromStr;

use axum::extract::{FromRequest, FromRequestParts, Request};
use bytes::Bytes;
use earnest_core::authorize::is_request_id;
use earnest_core::problem::{Code, Refusal};
use http::request::Parts;
use http::{HeaderMap, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};

use super::error::{ApiError, ApiResult, refuse};
use crate::app::App;

/// The largest JSON body.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;
/// The deepest nesting of a JSON body.
const MAX_DEPTH: usize = 32;

/// A JSON body.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> ApiResult<Self> {
        let kind = request.headers().get(header::CONTENT_TYPE);
        if !kind.and_then(|kind| kind.to_str().ok()).is_some_and(is_json) {
            return Err(refuse(Code::MediaTypeUnsupported, "the body must be application/json"));
        }
        let body = body(request, MAX_BODY_BYTES).await?;
        parse(&body).map(Json)
    }
}

fn is_json(kind: &str) -> bool {
    let mut parts = kind.split(';').map(str::trim);
    let essence = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"));
    let mut charset = parts.filter_map(|part| part.split_once('='));
    essence
        && charset.all(|(name, value)| {
            !name.eq_ignore_ascii_case("charset")
                || value.trim_matches('"').eq_ignore_ascii_case("utf-8")
        })
}

/// The whole body, if it is not larger than `most`.
pub async fn body(request: Request, most: usize) -> ApiResult<Bytes> {
    let too_large = || {
        let refusal = Refusal::new(Code::BodyTooLarge, "the body is too large");
        ApiError::from(refusal.with("limit_bytes", most))
    };
    match Limited::new(request.into_body(), most).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(_) => Err(refuse(Code::RequestMalformed, "the body broke off")),
    }
}

/// Reads strict JSON: UTF-8, no member twice, not too deep, nothing behind it.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    let malformed = |why: String| ApiError::from(Refusal::new(Code::RequestMalformed, why));
    if std::str::from_utf8(bytes).is_err() {
        return Err(malformed("the body is not UTF-8".to_owned()));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let strict = Strict { depth: 0 }.deserialize(&mut reader).and_then(|()| reader.end());
    strict.map_err(|why| malformed(format!("the body is not acceptable JSON: {why}")))?;
    serde_json::from_slice(bytes).map_err(|why| malformed(format!("the body does not fit: {why}")))
}

/// Walks a JSON value and refuses members written twice and deep nesting.
struct Strict {
    depth: usize,
}

impl Strict {
    fn deeper<E: serde::de::Error>(&self) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom("nested too deep"));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(self.deeper()?)?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut names = Vec::<String>::new();
        while let Some(name) = members.next_key::<String>()? {
            if names.contains(&name) {
                return Err(A::Error::custom(format!("member `{name}` stands twice")));
            }
            if names.len() >= 1_000 {
                return Err(A::Error::custom("more than 1000 members in one object"));
            }
            names.push(name);
            members.next_value_seed(self.deeper()?)?;
        }
        Ok(())
    }
}

/// An id in a path. A text that is no id names nothing: 404.
pub fn id<T: FromStr>(text: &str) -> ApiResult<T> {
    text.parse().map_err(|_| refuse(Code::NotFound, "there is no such thing"))
}

/// A query string.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> ApiResult<Self> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        query.map(|query| Self(query.0)).map_err(|why| {
            Refusal::new(
                Code::RequestMalformed,
                format!("the query does not fit: {}", why.body_text()),
            )
            .into()
        })
    }
}

/// `?limit&cursor` of every list.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
pub struct Paging {
    /// How many at most; 1 to 500, 50 unless said.
    pub limit: Option<u16>,
    /// What `next_cursor` of the page before said.
    pub cursor: Option<String>,
}

impl Paging {
    /// How many.
    pub fn limit(&self) -> usize {
        usize::from(self.limit.unwrap_or(50).clamp(1, 500))
    }

    /// From where.
    pub fn cursor(&self) -> ApiResult<Option<earnest_store::Cursor>> {
        let parse = |text: &String| {
            text.parse()
                .map_err(|_| refuse(Code::RequestMalformed, "`cursor` is not one that was given"))
        };
        self.cursor.as_ref().map(parse).transpose()
    }
}

/// The `Idempotency-Key` header, if there is one.
pub fn idempotency_key(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
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

/// The version in `If-Match`: `"7"`.
pub fn if_match(headers: &HeaderMap) -> ApiResult<u64> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        let refusal =
            Refusal::new(Code::PreconditionRequired, "this change needs the header If-Match");
        return Err(refusal.next("read it first and send its ETag").into());
    };
    let version = value.to_str().ok().map(|text| text.trim_start_matches("W/").trim_matches('"'));
    let version = version.and_then(|text| text.parse().ok());
    version.ok_or_else(|| refuse(Code::VersionConflict, "If-Match is not an ETag that was given"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn code(bytes: &[u8]) -> Result<Value, Code> {
        parse::<Value>(bytes).map_err(|error| error.0.code)
    }

    #[test]
    fn refuses_loose_json() {
        assert!(code(br#"{"a":[1,{"b":null}],"c":"x"}"#).is_ok());
        let deep = "[".repeat(40) + &"]".repeat(40);
        let deeper = "[".repeat(100_000);
        let cases: [&[u8]; 9] = [
            b"",
            b"{",
            br#"{"a":1,"a":2}"#,
            br#"{"a":{"b":1,"b":1}}"#,
            br#"{"a":1,"\u0061":2}"#,
            b"{} {}",
            b"\xff\xfe",
            deep.as_bytes(),
            deeper.as_bytes(),
        ];
        for bytes in cases {
            assert_eq!(
                code(bytes),
                Err(Code::RequestMalformed),
                "{:?}",
                &bytes[..bytes.len().min(20)]
            );
        }
    }
}
