//! Policies: read, set with `If-Match`, history, revert. No agent reads or changes one.

use axum::extract::State;
use earnest_core::admin::{NewLimits, SetPolicy};
use earnest_core::id::{AgentId, OwnerId};
use earnest_core::money::AmountInput;
use earnest_core::policy::{
    Constraint, Every, Limits, Policy, PolicySubject, PolicyVersion, Rate, Schedule, SellerBudget,
};
use earnest_core::problem::{Code, Refusal};
use http::HeaderMap;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::auth::{AsOwner, not_here};
use super::error::{ApiResult, refuse};
use super::read::{Json, Paging, Path, Query, id, if_match};
use super::view::{self, DryRunView, List, PolicyView, Problem};
use crate::app::App;
use crate::flow::policy::{self as flow, MAX_DAYS};

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
    /// The most for single sellers in each day, week or month.
    seller_budgets: Option<Vec<SellerBudgetBody>>,
    /// Constraints as an AP2 payment mandate writes them: `payment.amount_range`,
    /// `payment.allowed_payees`, `payment.budget`, `payment.agent_recurrence` and
    /// `payment.execution_date`. Every one binds; one that is not known denies every purchase.
    constraints: Option<Vec<serde_json::Value>>,
    /// When you want to be charged; on the owner's policy only. Never later than without it.
    settle: Option<ScheduleBody>,
}

/// The most for one seller in each day, week or month.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SellerBudgetBody {
    /// `sel_…`
    seller: String,
    /// `day`, `week` or `month`, in the owner's zone.
    #[schema(value_type = String)]
    every: Every,
    /// The most: `"$5.00"` or micro-units.
    #[schema(value_type = serde_json::Value)]
    cap_micros: AmountInput,
}

/// Times at which a tab is settled.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleBody {
    /// `day`, `week` (on Mondays) or `month` (on the first).
    #[schema(value_type = String)]
    every: Every,
    /// The hour, 0 to 23, in the owner's zone.
    hour: i8,
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
        let budget = |body: SellerBudgetBody| {
            let cap_micros = body.cap_micros.price(most).map_err(Refusal::from)?;
            Ok(SellerBudget { seller: seller(&body.seller)?, every: body.every, cap_micros })
        };
        let budgets: Option<ApiResult<Vec<_>>> =
            self.seller_budgets.map(|list| list.into_iter().map(budget).collect());
        let read = |list: Vec<_>| list.into_iter().map(Constraint::read).collect();
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
            seller_budgets: budgets.transpose()?,
            constraints: self.constraints.map(read),
            settle: self.settle.map(|body| Schedule { every: body.every, hour: body.hour }),
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

/// How many dry runs there may be at once; others wait.
static DRY_RUNS: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(2);

/// Over how many days.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub struct Over {
    /// From 1 to 30; 30 unless given.
    days: Option<u8>,
}

/// What these limits would have said to the purchases of the last days. Changes nothing.
#[utoipa::path(post, path = "/v1/policies/{subject}/dry-run", tag = "owner", security(("key" = [])), request_body = LimitsBody,
    params(("subject" = String, Path, description = "owner, or agt_…"), Over),
    responses((status = 200, body = DryRunView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn dry_run(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
    Query(over): Query<Over>,
    Json(body): Json<LimitsBody>,
) -> ApiResult<axum::Json<DryRunView>> {
    let days = over.days.unwrap_or(MAX_DAYS);
    if !(1..=MAX_DAYS).contains(&days) {
        return Err(refuse(Code::ValidationFailed, "`days` is from 1 to 30"));
    }
    let row = find(&app, owner, &text)?;
    let limits = body.read(&app)?;
    limits.check(row.subject)?;
    // A month of purchases is read: not on a thread that serves others, and not for many at once.
    let turn = DRY_RUNS.acquire().await;
    let turn = turn.map_err(|_| refuse(Code::Internal, "no dry run can begin"))?;
    let tried = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        flow::dry_run(&app, owner, &row, &limits, days)
    });
    let tried = tried.await.map_err(|_| refuse(Code::Internal, "the dry run broke off"))??;
    Ok(axum::Json(view::dry_run(&tried)))
}
