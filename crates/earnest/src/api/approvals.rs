//! Questions put to owners, and their answers.

use axum::extract::State;
use earnest_core::answer::{AnswerApproval, RevokeGrant, Verdict};
use earnest_core::approval::{Approval, Grant};
use earnest_core::id::{ApprovalId, GrantId};
use earnest_core::ledger::{Account, Subject, Window};
use earnest_core::money::AmountInput;
use earnest_core::party::Principal;
use earnest_core::problem::{Code, Refusal};
use earnest_core::time::{Timestamp, after};
use http::HeaderMap;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::auth::{AsOwner, Caller, not_here};
use super::error::{ApiResult, refuse};
use super::read::{Json, Paging, Path, Query, id, if_match};
use super::view::{self, ApprovalView, GrantView, List, Problem};
use crate::app::App;

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

/// The longest grant.
const MAX_GRANT_SECONDS: i64 = 30 * 24 * 3600;

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
    let row = app.store.reader().row::<Approval>(id::<ApprovalId>(&text)?)?;
    let row = row.filter(|row| row.owner == owner).ok_or_else(not_here)?;
    let version = if_match(&headers)?;
    let now = app.now();
    let unit = AnswerApproval {
        owner,
        agent: row.agent,
        approval: row.id,
        version: Some(version),
        verdict: verdict(&app, &body, now)?,
    };
    let answered = app.store.submit(unit).await?;
    Ok(axum::Json(view::approval(&answered, now)))
}

fn verdict(app: &App, body: &Decision, now: Timestamp) -> ApiResult<Verdict> {
    let bounded = body.cap.is_some() || body.for_seconds.is_some();
    match body.decision.as_str() {
        "grant" => {
            let invalid = |why: &str| refuse(Code::ValidationFailed, why);
            let cap = body.cap.ok_or_else(|| invalid("a grant needs a `cap`"))?;
            let seconds = body.for_seconds.ok_or_else(|| invalid("a grant needs `for_seconds`"))?;
            if !(1..=MAX_GRANT_SECONDS).contains(&seconds) {
                return Err(invalid("`for_seconds` is from 1 to 2592000, 30 days"));
            }
            let cap = cap.price(app.settings.max_price_micros).map_err(Refusal::from)?;
            Ok(Verdict::Grant { id: GrantId::new(app.seed()), cap, until: after(now, seconds) })
        }
        _ if bounded => {
            Err(refuse(Code::ValidationFailed, "`cap` and `for_seconds` go with `grant`"))
        }
        "approve" => Ok(Verdict::Approve),
        "deny" => Ok(Verdict::Deny),
        "deny_and_pause" => Ok(Verdict::DenyAndPause),
        _ => Err(refuse(
            Code::ValidationFailed,
            "`decision` is `approve`, `grant`, `deny` or `deny_and_pause`",
        )),
    }
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

/// What a person sees who opens an approval's address. It shows nothing of the purchase: whoever
/// has the link is not thereby its owner.
#[utoipa::path(get, path = "/approvals/{id}", tag = "owner",
    params(("id" = String, Path, description = "apr_…")),
    responses((status = 200, description = "How to answer it", body = String, content_type = "text/plain"),
        (status = "4XX", description = "No such address", body = Problem, content_type = "application/problem+json")))]
pub async fn hint(Path(text): Path<String>) -> ApiResult<String> {
    let id = id::<ApprovalId>(&text)?;
    Ok(format!(
        "A purchase waits for its owner. Answer it with:\n\n  earnest approvals show {id}\n  \
         earnest approvals approve {id}\n"
    ))
}
