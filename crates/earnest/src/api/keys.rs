//! The keys that sign vouchers and receipts, and replacing them.

use axum::extract::State;
use earnest_core::jws::Purpose;
use earnest_core::problem::Code;
use earnest_core::signing::SealedKey;
use earnest_core::time::Timestamp;
use earnest_core::unit::{Fingerprint, Key};
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::AsOperator;
use super::error::{ApiResult, refuse};
use super::read::{Json, required_key};
use super::view::{List, Problem};
use crate::app::App;
use crate::signing;

/// A signing key; never its secret.
#[derive(Serialize, ToSchema)]
pub struct SigningKeyView {
    /// Its thumbprint (RFC 7638), as tokens name it.
    kid: String,
    /// `voucher` or `receipt`.
    #[serde(rename = "for")]
    #[schema(value_type = String)]
    purpose: Purpose,
    /// `signing`, `published` (it will sign) or `retired` (what it signed still verifies).
    status: &'static str,
    /// When it was made.
    created_at: String,
    /// Since when it signs; from the beginning, where it is null.
    signs_from: Option<String>,
    /// Since when it signs nothing any more.
    retired_at: Option<String>,
}

fn show(row: &SealedKey, now: Timestamp) -> SigningKeyView {
    SigningKeyView {
        kid: row.jwk.kid.clone(),
        purpose: row.jwk.purpose,
        status: row.status(now),
        created_at: row.created_at.to_string(),
        signs_from: row.signs_from.map(|at| at.to_string()),
        retired_at: row.jwk.retired_at.map(|at| at.to_string()),
    }
}

/// Every signing key, newest first.
#[utoipa::path(get, path = "/v1/signing-keys", tag = "operator", security(("key" = [])),
    responses((status = 200, body = List<SigningKeyView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn list(
    State(app): State<App>,
    _: AsOperator,
) -> ApiResult<axum::Json<List<SigningKeyView>>> {
    let rows = signing::rows(&app.store);
    let rows = rows.map_err(|_| refuse(Code::DatabaseUnavailable, "the keys cannot be read"))?;
    let now = app.now();
    let data = rows.iter().rev().map(|row| show(row, now)).collect();
    Ok(axum::Json(List { data, next_cursor: None }))
}

/// Which key to replace.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateBody {
    /// `voucher` or `receipt`.
    #[serde(rename = "for")]
    #[schema(value_type = String)]
    purpose: Purpose,
    /// The old key may be known to somebody: the new one signs from now on, and nothing counts that
    /// the old one signs later. Sellers meet it before they have heard of it, and look it up.
    #[serde(default)]
    at_once: bool,
}

/// Makes a new signing key, published at once; it signs from ten minutes later on, when nobody keeps
/// a key set without it any more. Old keys stay published.
#[utoipa::path(post, path = "/v1/signing-keys/rotate", tag = "operator", security(("key" = [])), request_body = RotateBody,
    params(("Idempotency-Key" = String, Header, description = "One key for one wish")),
    responses((status = 200, body = SigningKeyView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn rotate(
    State(app): State<App>,
    _: AsOperator,
    headers: HeaderMap,
    Json(body): Json<RotateBody>,
) -> ApiResult<axum::Json<SigningKeyView>> {
    let fingerprint = Fingerprint::of(&[
        body.purpose.typ().as_bytes(),
        if body.at_once { b"at once" } else { b"published first" },
    ]);
    let key = Key {
        scope: "operator".to_owned(),
        family: "signing_key",
        name: required_key(&headers)?,
        fingerprint,
    };
    let made = signing::rotate(&app, body.purpose, body.at_once, key).await?;
    Ok(axum::Json(show(&made, app.now())))
}
