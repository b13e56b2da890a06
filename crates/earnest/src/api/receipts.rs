//! Receipts: public, by a random address, checkable by anyone.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use earnest_core::jws::{BadToken, KeySet};
use earnest_core::receipt::{self, Receipt};
use http::{HeaderValue, header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::auth::not_here;
use super::error::ApiResult;
use super::read::{Json, Path};
use super::view::Problem;
use crate::app::App;

/// A signed receipt with its claims spelled out.
#[utoipa::path(get, path = "/r/{token}", tag = "receipt",
    params(("token" = String, Path, description = "The receipt's public token")),
    responses((status = 200, description = "The signed statement and its claims", body = serde_json::Value),
        (status = "4XX", description = "No such receipt", body = Problem, content_type = "application/problem+json")))]
pub async fn show(State(app): State<App>, Path(token): Path<String>) -> ApiResult<Response> {
    let page = app.store.reader().list::<Receipt>("receipts.token", &token, None, 1, true)?;
    let row = page.items.into_iter().next().ok_or_else(not_here)?;
    let claims =
        app.verify(|keys| receipt::verify(&row.jws, keys)).ok().map(|verified| verified.claims);
    let body = json!({
        "receipt": row.jws,
        "claims": claims,
        "verify": format!("{}/.well-known/jwks.json", app.public_url),
    });
    let mut response = axum::Json(body).into_response();
    // Public and fixed for ever: anybody may fetch and check it, from any page.
    let open = HeaderValue::from_static("*");
    response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, open);
    Ok(response)
}

/// A receipt to be checked.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToVerify {
    /// The signed statement.
    receipt: String,
}

/// What the check says.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct Verdict {
    /// Whether the receipt counts.
    pub valid: bool,
    /// Why not.
    pub error: Option<String>,
    /// What it states, if it counts.
    pub claims: Option<Value>,
}

/// Checks a receipt, or a seller's lines of one, with the published keys. `earnest receipt verify`
/// does the same offline.
#[utoipa::path(post, path = "/v1/receipts/verify", tag = "receipt", request_body = ToVerify,
    responses((status = 200, body = Verdict),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn verify(State(app): State<App>, Json(body): Json<ToVerify>) -> axum::Json<Verdict> {
    let check = |keys: &KeySet| {
        let receipt = receipt::verify(&body.receipt, keys);
        let claims = receipt.map(|verified| serde_json::to_value(&verified.claims).ok());
        claims.or_else(|why| {
            let lines = receipt::verify_lines(&body.receipt, keys).map_err(|_| why)?;
            Ok::<_, BadToken>(serde_json::to_value(&lines.claims).ok())
        })
    };
    // Anybody may ask: what is no receipt makes this node read nothing.
    let claims = match check(&app.keys().set) {
        Err(BadToken::UnknownKey) => app.verify(check),
        known => known,
    };
    axum::Json(match claims {
        Ok(claims) => Verdict { valid: true, error: None, claims },
        Err(why) => Verdict { valid: false, error: Some(why.to_string()), claims: None },
    })
}
