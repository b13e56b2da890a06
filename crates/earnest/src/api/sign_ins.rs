//! Browsers of owners: links that sign one in, who is signed in, and ending it.

use axum::extract::State;
use earnest_core::sign_in::SignIn;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;

use super::auth::AsOwnerOrOperator;
use super::error::ApiResult;
use super::parties::owner_id;
use super::read::{Paging, Path, Query};
use super::view::{List, Problem};
use crate::app::App;
use crate::flow::sign_in;

/// A sign-in link. It is shown once.
#[derive(Serialize, ToSchema)]
pub struct LoginLinkView {
    /// The address to open on the device that is to be signed in.
    pub url: String,
    /// When it stops counting, if it is not used before.
    pub expires_at: String,
}

/// A browser that is signed in, or was.
#[derive(Serialize, ToSchema)]
pub struct SignInView {
    /// Its id.
    pub id: String,
    /// `live` or `ended`.
    pub status: String,
    /// Who asked for the link it came from: the owner's id, or `operator`.
    pub asked_by: String,
    /// When it began.
    pub created_at: String,
    /// When it was last seen, up to a twelfth of the idle time late.
    pub seen_at: String,
    /// When it ends by itself, or ended.
    pub ends_at: String,
}

/// Makes a link that signs a browser in as the owner: once, and only for a while (`expires_at`).
#[utoipa::path(post, path = "/v1/owners/{id}/login-links", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "own_… or me")),
    responses((status = 201, body = LoginLinkView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn ask(
    State(app): State<App>,
    caller: AsOwnerOrOperator,
    Path(text): Path<String>,
) -> ApiResult<(StatusCode, [(http::HeaderName, HeaderValue); 1], axum::Json<LoginLinkView>)> {
    let owner = owner_id(&caller, &text)?;
    caller.0.holds_a_key()?;
    let link = sign_in::ask(&app, owner, caller.0.0.principal).await?;
    let shown = LoginLinkView { url: link.url, expires_at: link.expires_at.to_string() };
    let once = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    Ok((StatusCode::CREATED, once, axum::Json(shown)))
}

/// Browsers that were signed in as the owner, newest first.
#[utoipa::path(get, path = "/v1/owners/{id}/sign-ins", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "own_… or me"), Paging),
    responses((status = 200, body = List<SignInView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn list(
    State(app): State<App>,
    caller: AsOwnerOrOperator,
    Path(text): Path<String>,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<SignInView>>> {
    let scope = owner_id(&caller, &text)?.to_string();
    let (cursor, limit) = (paging.cursor()?, paging.limit()?);
    let reader = app.store.reader();
    let page = reader.list::<SignIn>("sign_ins", &scope, cursor.as_ref(), limit, true)?;
    Ok(axum::Json(List::of(page, |row| show(&app, &row))))
}

/// Ends every sign-in of the owner, and every link that is out: once answered, no browser counts.
#[utoipa::path(delete, path = "/v1/owners/{id}/sign-ins", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "own_… or me")),
    responses((status = 204, description = "Ended"),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn end(
    State(app): State<App>,
    caller: AsOwnerOrOperator,
    Path(text): Path<String>,
) -> ApiResult<StatusCode> {
    let owner = owner_id(&caller, &text)?;
    sign_in::end(&app, owner, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn show(app: &App, row: &SignIn) -> SignInView {
    let live = row.is_live(&app.settings, app.now());
    SignInView {
        id: row.id.to_string(),
        status: if live { "live" } else { "ended" }.to_owned(),
        asked_by: row.by.to_string(),
        created_at: row.created_at.to_string(),
        seen_at: row.seen_at.to_string(),
        ends_at: row.ended_at.unwrap_or_else(|| row.expires_at(&app.settings)).to_string(),
    }
}
