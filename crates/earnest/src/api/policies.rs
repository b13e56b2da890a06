//! Policies: read, set with `If-Match`, history, revert. No agent reads or changes one.

use axum::extract::State;
use earnest_core::admin::{NewLimits, SetPolicy};
use earnest_core::id::{AgentId, OwnerId};
use earnest_core::money::AmountInput;
use earnest_core::policy::{Limits, Policy, PolicySubject, PolicyVersion, Rate};
use earnest_core::problem::{Code, Refusal};
use http::HeaderMap;
use serde::Deserialize;
use utoipa::ToSchema;

use super::auth::{AsOwner, not_here};
use super::error::{ApiResult, refuse};
use super::read::{Json, Paging, Path, Query, id, if_match};
use super::view::{self, List, PolicyView, Problem};
use crate::app::App;

/// `owner` (or the owner's id), or an agent's id.
fn subject(owner: OwnerId, text: &str) -> ApiResult<PolicySubject> {
    if text == "owner" || text.parse() == Ok(owner) {
        return Ok(PolicySubject::Owner(owner));
    }
    Ok(PolicySubject::Agent(id::<AgentId>(text)?))
}

fn find(app: &App, owner: OwnerId, text: &str) -> ApiResult<Policy> {
    let row = app.store.reader().row::<Policy>(subject(owner, text)?)?;
    row.filter(|row| row.owner == owner).ok_or_else(not_here)
}

type Tagged = ([(&'static str, String); 1], axum::Json<PolicyView>);

fn tagged(row: &Policy) -> Tagged {
    ([("etag", format!("\"{}\"", row.version))], axum::Json(view::policy(row)))
}

/// The policy in force.
#[utoipa::path(get, path = "/v1/policies/{subject}", tag = "owner", security(("key" = [])),
    params(("subject" = String, Path, description = "owner, or agt_…")),
    responses((status = 200, body = PolicyView, headers(("ETag" = String, description = "For If-Match"))),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
) -> ApiResult<Tagged> {
    Ok(tagged(&find(&app, owner, &text)?))
}

/// Limits as people write them. What is left out is no limit (owner) or inherited (agent).
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsBody {
    /// The most for one purchase: `"$1.00"` or micro-units.
    #[schema(value_type = Option<serde_json::Value>)]
    per_call_cap_micros: Option<AmountInput>,
    /// The most for one session.
    #[schema(value_type = Option<serde_json::Value>)]
    session_cap_micros: Option<AmountInput>,
    /// The most for one day.
    #[schema(value_type = Option<serde_json::Value>)]
    day_cap_micros: Option<AmountInput>,
    /// Purchases above this wait for the owner.
    #[schema(value_type = Option<serde_json::Value>)]
    approve_above_micros: Option<AmountInput>,
    /// How often an agent may ask: `{"count":120,"per_seconds":60}`.
    #[schema(value_type = Option<serde_json::Value>)]
    rate: Option<Rate>,
    /// The only sellers that may be paid.
    sellers: Option<Vec<String>>,
    /// The only listings that may be bought.
    listings: Option<Vec<String>>,
    /// The most a tab may owe; on the owner's policy only.
    #[schema(value_type = Option<serde_json::Value>)]
    tab_limit_micros: Option<AmountInput>,
}

impl LimitsBody {
    fn read(self, app: &App) -> ApiResult<Limits> {
        let most = app.settings.max_price_micros;
        let amount = |input: Option<AmountInput>| {
            input.map(|input| input.price(most).map_err(Refusal::from)).transpose()
        };
        let seller = |text: &String| {
            text.parse().map_err(|_| refuse(Code::ValidationFailed, "`sellers` holds ids: sel_…"))
        };
        let sellers = self.sellers.map(|list| list.iter().map(seller).collect::<ApiResult<_>>());
        Ok(Limits {
            per_call_cap_micros: amount(self.per_call_cap_micros)?,
            session_cap_micros: amount(self.session_cap_micros)?,
            day_cap_micros: amount(self.day_cap_micros)?,
            approve_above_micros: amount(self.approve_above_micros)?,
            rate: self.rate,
            sellers: sellers.transpose()?,
            listings: self.listings,
            tab_limit_micros: amount(self.tab_limit_micros)?,
        })
    }
}

/// Sets a policy whole. Counts from the next purchase on.
#[utoipa::path(put, path = "/v1/policies/{subject}", tag = "owner", security(("key" = [])), request_body = LimitsBody,
    params(("subject" = String, Path, description = "owner, or agt_…"),
        ("If-Match" = String, Header, description = "The ETag of the policy as it was read")),
    responses((status = 200, body = PolicyView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn set(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
    headers: HeaderMap,
    Json(body): Json<LimitsBody>,
) -> ApiResult<Tagged> {
    let limits = NewLimits::Written(Box::new(body.read(&app)?));
    change(&app, owner, &text, &headers, limits).await
}

async fn change(
    app: &App,
    owner: OwnerId,
    text: &str,
    headers: &HeaderMap,
    limits: NewLimits,
) -> ApiResult<Tagged> {
    let row = find(app, owner, text)?;
    let version = if_match(headers)?;
    let unit = SetPolicy { owner, subject: row.subject, version, limits };
    Ok(tagged(&app.store.submit(unit).await?))
}

/// Every version of a policy, newest first.
#[utoipa::path(get, path = "/v1/policies/{subject}/versions", tag = "owner", security(("key" = [])),
    params(("subject" = String, Path, description = "owner, or agt_…"), Paging),
    responses((status = 200, body = List<PolicyView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn versions(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<PolicyView>>> {
    let scope = find(&app, owner, &text)?.subject.to_string();
    let cursor = paging.cursor()?;
    let reader = app.store.reader();
    let page = reader.list::<PolicyVersion>(
        "policy_versions",
        &scope,
        cursor.as_ref(),
        paging.limit()?,
        true,
    )?;
    Ok(axum::Json(List::of(page, |row| view::policy(&row.0))))
}

/// An earlier version.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Revert {
    /// Which version to go back to.
    version: u64,
}

/// Goes back to an earlier version, as a new one.
#[utoipa::path(post, path = "/v1/policies/{subject}/revert", tag = "owner", security(("key" = [])), request_body = Revert,
    params(("subject" = String, Path, description = "owner, or agt_…"),
        ("If-Match" = String, Header, description = "The ETag of the policy as it was read")),
    responses((status = 200, body = PolicyView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn revert(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
    headers: HeaderMap,
    Json(body): Json<Revert>,
) -> ApiResult<Tagged> {
    change(&app, owner, &text, &headers, NewLimits::Version(body.version)).await
}
