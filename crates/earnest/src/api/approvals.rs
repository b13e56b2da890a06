//! Questions put to owners, and their answers.

use axum::extract::State;
use earnest_core::answer::RevokeGrant;
use earnest_core::approval::{Approval, Grant};
use earnest_core::id::{ApprovalId, GrantId};
use earnest_core::ledger::{Account, Subject, Window};
use earnest_core::money::AmountInput;
use earnest_core::party::Principal;
use earnest_core::problem::Code;
use http::HeaderMap;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::auth::{AsOwner, Caller, not_here};
use super::error::{ApiResult, refuse};
use super::read::{Json, Paging, Path, Query, id, if_match};
use super::view::{self, ApprovalView, GrantView, List, Problem};
use crate::app::App;
use crate::flow::approval as flow;

/// Filters of `GET /v1/approvals`.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ApprovalQuery {
    /// How many at most; 1 to 500, 50 unless said.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u16>,
    /// What `next_cursor` of the page before said.
    cursor: Option<String>,
    /// `waiting` for those that still wait.
    status: Option<String>,
}

/// Questions put to the owner, newest first.
#[utoipa::path(get, path = "/v1/approvals", tag = "owner", security(("key" = [])), params(ApprovalQuery),
    responses((status = 200, body = List<ApprovalView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn list(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Query(query): Query<ApprovalQuery>,
) -> ApiResult<axum::Json<List<ApprovalView>>> {
    let paging = Paging { limit: query.limit, cursor: query.cursor };
    let waiting = match query.status.as_deref() {
        None => false,
        Some("waiting") => true,
        Some(_) => return Err(refuse(Code::ValidationFailed, "`status` may only be `waiting`")),
    };
    let list = if waiting { "approvals.waiting" } else { "approvals" };
    let cursor = paging.cursor()?;
    let reader = app.store.reader();
    let mut page = reader.list::<Approval>(
        list,
        &owner.to_string(),
        cursor.as_ref(),
        paging.limit()?,
        true,
    )?;
    let now = app.now();
    page.items.retain(|row| !waiting || !row.is_expired(now));
    Ok(axum::Json(List::of(page, |row| view::approval(&row, now))))
}

fn find(app: &App, caller: &Caller, text: &str) -> ApiResult<Approval> {
    let row = app.store.reader().row::<Approval>(id::<ApprovalId>(text)?)?;
    let seen = |row: &Approval| match caller.0.principal {
        Principal::Agent(agent) => row.agent == agent,
        _ => caller.sees_owner(row.owner),
    };
    row.filter(seen).ok_or_else(not_here)
}

/// One question; its agent may look too.
#[utoipa::path(get, path = "/v1/approvals/{id}", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "apr_…")),
    responses((status = 200, body = ApprovalView, headers(("ETag" = String, description = "For If-Match"))),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(app): State<App>,
    caller: Caller,
    Path(text): Path<String>,
) -> ApiResult<([(&'static str, String); 1], axum::Json<ApprovalView>)> {
    let row = find(&app, &caller, &text)?;
    let etag = [("etag", format!("\"{}\"", row.version))];
    Ok((etag, axum::Json(view::approval(&row, app.now()))))
}

/// An answer to a question.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// `approve` (this once), `grant` (this and more, bounded), `deny`, or `deny_and_pause`.
    decision: String,
    /// With `grant`: how much in total, this purchase included. `"$5.00"` or micro-units.
    #[schema(value_type = Option<serde_json::Value>)]
    cap: Option<AmountInput>,
    /// With `grant`: for how many seconds; at most 30 days.
    for_seconds: Option<i64>,
}

/// Answers a question. Approving books nothing: the agent repeats its request, policy runs again.
#[utoipa::path(post, path = "/v1/approvals/{id}/decision", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "apr_…"),
        ("If-Match" = String, Header, description = "The ETag of the question as it was read")),
    request_body = Decision,
    responses((status = 200, body = ApprovalView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn decide(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
    headers: HeaderMap,
    Json(body): Json<Decision>,
) -> ApiResult<axum::Json<ApprovalView>> {
    let id = id::<ApprovalId>(&text)?;
    // Whether it is there for whoever asks comes before what is wrong with the request.
    flow::find(&app, owner, id)?;
    let version = if_match(&headers)?;
    let Decision { decision, cap, for_seconds } = &body;
    let written = flow::Written { decision, cap: *cap, for_seconds: *for_seconds };
    let answered = flow::answer(&app, owner, id, version, written).await?;
    Ok(axum::Json(view::approval(&answered, app.now())))
}

fn show_grant(app: &App, row: &Grant) -> ApiResult<GrantView> {
    let account = Account::Limit(Subject::Agent(row.agent), Window::Grant(row.id)).usd();
    let used = app.store.reader().totals(&account)?.debits().map_or(0, |used| used.get());
    Ok(view::grant(row, used))
}

/// Bounded grants, newest first.
#[utoipa::path(get, path = "/v1/grants", tag = "owner", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<GrantView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn grants(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<GrantView>>> {
    let scope = owner.to_string();
    let cursor = paging.cursor()?;
    let page = app.store.reader().list::<Grant>(
        "grants",
        &scope,
        cursor.as_ref(),
        paging.limit()?,
        true,
    )?;
    let data = page.items.iter().map(|row| show_grant(&app, row)).collect::<ApiResult<_>>()?;
    Ok(axum::Json(List { data, next_cursor: page.next.map(|cursor| cursor.to_string()) }))
}

/// Takes a grant back.
#[utoipa::path(delete, path = "/v1/grants/{id}", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "gra_…")),
    responses((status = 200, body = GrantView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn revoke_grant(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<GrantView>> {
    let row = app.store.reader().row::<Grant>(id::<GrantId>(&text)?)?;
    let row = row.filter(|row| row.owner == owner).ok_or_else(not_here)?;
    let revoked = app.store.submit(RevokeGrant { owner, agent: row.agent, grant: row.id }).await?;
    Ok(axum::Json(show_grant(&app, &revoked)?))
}
