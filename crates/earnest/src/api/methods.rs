//! Ways to pay: vaulted once by the owner on PayPal's own page.

use axum::extract::State;
use axum::response::Html;
use earnest_core::id::{OwnerId, VaultId};
use earnest_core::vault::{Vault, VaultState};
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use super::auth::{AsOwner, not_here};
use super::error::ApiResult;
use super::read::{Paging, Path, Query, id};
use super::view::{self, List, MethodView, Problem};
use crate::app::App;
use crate::flow::vault as flow;

/// Begins: the answer holds PayPal's page for the payer.
#[utoipa::path(post, path = "/v1/payment-methods", tag = "owner", security(("key" = [])),
    responses((status = 201, body = MethodView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn begin(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
) -> ApiResult<(StatusCode, axum::Json<MethodView>)> {
    let vault = flow::begin(&app, owner).await?;
    Ok((StatusCode::CREATED, axum::Json(view::method(&vault))))
}

/// Ways to pay, newest first.
#[utoipa::path(get, path = "/v1/payment-methods", tag = "owner", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<MethodView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn list(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<MethodView>>> {
    let scope = owner.to_string();
    let cursor = paging.cursor()?;
    let page = app.store.reader().list::<Vault>(
        "vaults",
        &scope,
        cursor.as_ref(),
        paging.limit()?,
        true,
    )?;
    Ok(axum::Json(List::of(page, |row| view::method(&row))))
}

fn find(app: &App, owner: OwnerId, text: &str) -> ApiResult<Vault> {
    let row = app.store.reader().row::<Vault>(id::<VaultId>(text)?)?;
    row.filter(|row| row.owner == owner).ok_or_else(not_here)
}

/// One way to pay.
#[utoipa::path(get, path = "/v1/payment-methods/{id}", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "vlt_…")),
    responses((status = 200, body = MethodView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<MethodView>> {
    Ok(axum::Json(view::method(&find(&app, owner, &text)?)))
}

/// Looks whether the payer consented, and finishes if so: the owner's step after PayPal's page.
#[utoipa::path(post, path = "/v1/payment-methods/{id}/confirm", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "vlt_…")),
    responses((status = 200, body = MethodView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn confirm(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<MethodView>> {
    let row = find(&app, owner, &text)?;
    let vault = flow::confirm(&app, row.id).await?.unwrap_or(row);
    Ok(axum::Json(view::method(&vault)))
}

/// Removes a way to pay. An open tab that relied on it is frozen.
#[utoipa::path(delete, path = "/v1/payment-methods/{id}", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "vlt_…")),
    responses((status = 200, body = MethodView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn remove(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<MethodView>> {
    let row = find(&app, owner, &text)?;
    let vault = flow::remove(&app, row.owner, row.id).await?;
    Ok(axum::Json(view::method(&vault)))
}

/// PayPal sends the payer back with our own id; what PayPal adds is not looked at.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Returned {
    /// Which way to pay: vlt_…
    method: String,
}

/// The payer comes back from PayPal's page. Whoever opens this address is not thereby the owner whose
/// tab it would fund, so nothing is finished here: the owner does that, seeing whose account it is.
#[utoipa::path(get, path = "/vault/return", tag = "paypal", params(Returned),
    responses((status = 200, description = "A page that says how it stands", body = String, content_type = "text/html"),
        (status = "4XX", description = "No such way to pay", body = Problem, content_type = "application/problem+json")))]
pub async fn payer_returned(
    State(app): State<App>,
    Query(query): Query<Returned>,
) -> ApiResult<Html<&'static str>> {
    let row = app.store.reader().row::<Vault>(id::<VaultId>(&query.method)?)?;
    Ok(Html(match row.ok_or_else(not_here)?.state {
        VaultState::Active => {
            "<!doctype html><title>Earnest</title><p>Your PayPal account is on file. You can close this page."
        }
        VaultState::AwaitingPayer => {
            "<!doctype html><title>Earnest</title><p>Back from PayPal. The owner of the tab finishes with: earnest method confirm"
        }
        VaultState::Failed => {
            "<!doctype html><title>Earnest</title><p>That did not work. Please begin again."
        }
        _ => {
            "<!doctype html><title>Earnest</title><p>PayPal is finishing. You can close this page."
        }
    }))
}

/// The payer does not want to. Nothing changes: the page can be opened again while it lives.
#[utoipa::path(get, path = "/vault/cancel", tag = "paypal",
    responses((status = 200, description = "A page that says so", body = String, content_type = "text/html")))]
pub async fn payer_cancelled() -> Html<&'static str> {
    Html("<!doctype html><title>Earnest</title><p>Nothing was stored.")
}
