//! Owners and agents: creating, pausing, keys.

use axum::extract::State;
use earnest_core::admin::{
    CreateAgent, CreateOwner, Creation, Pausable, Pause, SetCredit, SetZone,
};
use earnest_core::id::{AgentId, KeyId, OwnerId};
use earnest_core::money::AmountInput;
use earnest_core::party::{Agent, Owner, Principal};
use earnest_core::problem::{Code, Refusal};
use earnest_core::time::Zone;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use utoipa::ToSchema;

use super::auth::{AsOperator, AsOwner, AsOwnerByKey, AsOwnerOrOperator, not_here};
use super::error::{ApiResult, refuse};
use super::read::{Json, Paging, Path, Query, id, idempotency_key, is_line};
use super::view::{self, AgentView, KeyView, List, OwnerView, Problem};
use crate::app::App;
use crate::flow::party;

/// A zone of the IANA database.
fn zone(text: Option<&str>) -> ApiResult<Zone> {
    let zone = text.unwrap_or("UTC").parse();
    zone.map_err(|why: earnest_core::time::UnknownZone| {
        refuse(Code::ValidationFailed, &why.to_string())
    })
}

/// What an owner starts from.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewOwner {
    /// What people call it.
    name: String,
    /// The zone its days are counted in; `UTC` unless said.
    zone: Option<String>,
}

/// Creates an owner with a careful policy.
#[utoipa::path(post, path = "/v1/owners", tag = "operator", security(("key" = [])), request_body = NewOwner,
    params(("Idempotency-Key" = Option<String>, Header, description = "One key for one owner")),
    responses((status = 201, body = OwnerView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn create_owner(
    State(app): State<App>,
    _: AsOperator,
    headers: HeaderMap,
    Json(body): Json<NewOwner>,
) -> ApiResult<(StatusCode, axum::Json<OwnerView>)> {
    let creation =
        Creation { by: Principal::Operator, name: body.name, key: idempotency_key(&headers)? };
    let zone = zone(body.zone.as_deref())?;
    let owner =
        app.store.submit(CreateOwner { creation, id: OwnerId::new(app.seed()), zone }).await?;
    Ok((StatusCode::CREATED, axum::Json(view::owner(&owner, &app)?)))
}

/// Owners, newest first.
#[utoipa::path(get, path = "/v1/owners", tag = "operator", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<OwnerView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn owners(
    State(app): State<App>,
    _: AsOperator,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<OwnerView>>> {
    let cursor = paging.cursor()?;
    let page =
        app.store.reader().list::<Owner>("owners", "", cursor.as_ref(), paging.limit()?, true)?;
    let next_cursor = page.next.map(|cursor| cursor.to_string());
    let data = page.items.iter().map(|row| view::owner(row, &app)).collect::<ApiResult<_>>()?;
    Ok(axum::Json(List { data, next_cursor }))
}

/// `me` is whoever asks. An agent may look at nothing here and change nothing.
pub(super) fn owner_id(
    AsOwnerOrOperator(caller): &AsOwnerOrOperator,
    text: &str,
) -> ApiResult<OwnerId> {
    match (caller.0.principal, text) {
        (Principal::Owner(own), "me") => Ok(own),
        (Principal::Owner(own), other) if other.parse() == Ok(own) => Ok(own),
        (Principal::Operator, other) => id(other),
        _ => Err(not_here()),
    }
}

/// One owner; `me` is whoever asks.
#[utoipa::path(get, path = "/v1/owners/{id}", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "own_… or me")),
    responses((status = 200, body = OwnerView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn owner(
    State(app): State<App>,
    caller: AsOwnerOrOperator,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<OwnerView>> {
    let row = app.store.reader().row::<Owner>(owner_id(&caller, &text)?)?;
    Ok(axum::Json(view::owner(&row.ok_or_else(not_here)?, &app)?))
}

async fn pause(app: &App, subject: Pausable, paused: bool) -> ApiResult<StatusCode> {
    app.store.submit(Pause { subject, paused }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pauses all agents of an owner: once answered, nothing new is bought.
#[utoipa::path(post, path = "/v1/owners/{id}/pause", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "own_… or me")),
    responses((status = 204, description = "Paused"),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn pause_owner(
    State(app): State<App>,
    caller: AsOwnerOrOperator,
    Path(text): Path<String>,
) -> ApiResult<StatusCode> {
    pause(&app, Pausable::Owner(owner_id(&caller, &text)?), true).await
}

/// Resumes all agents of an owner.
#[utoipa::path(post, path = "/v1/owners/{id}/resume", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "own_… or me")),
    responses((status = 204, description = "Resumed"),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn resume_owner(
    State(app): State<App>,
    caller: AsOwnerOrOperator,
    Path(text): Path<String>,
) -> ApiResult<StatusCode> {
    pause(&app, Pausable::Owner(owner_id(&caller, &text)?), false).await
}

/// The zone that days are counted in.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ZoneBody {
    /// Such as `Europe/Amsterdam`.
    zone: String,
}

/// Changes the zone that days are counted in, from the next day on.
#[utoipa::path(put, path = "/v1/owners/{id}/zone", tag = "owner", security(("key" = [])), request_body = ZoneBody,
    params(("id" = String, Path, description = "own_… or me")),
    responses((status = 200, body = OwnerView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn set_zone(
    State(app): State<App>,
    caller: AsOwnerOrOperator,
    Path(text): Path<String>,
    Json(body): Json<ZoneBody>,
) -> ApiResult<axum::Json<OwnerView>> {
    let owner = owner_id(&caller, &text)?;
    let owner = app.store.submit(SetZone { owner, zone: zone(Some(&body.zone))? }).await?;
    Ok(axum::Json(view::owner(&owner, &app)?))
}

/// The operator's credit line for an owner.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreditBody {
    /// The line; null lets it grow by the rules; left out it stays as it is.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<serde_json::Value>)]
    line: Option<Option<AmountInput>>,
    /// Whether the owner's freeze is lifted.
    #[serde(default)]
    unfreeze: bool,
}

/// Tells *null* from *left out*.
fn given<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<AmountInput>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// Sets an owner's credit line, and lifts a freeze.
#[utoipa::path(put, path = "/v1/owners/{id}/credit", tag = "operator", security(("key" = [])), request_body = CreditBody,
    params(("id" = String, Path, description = "own_…")),
    responses((status = 200, body = OwnerView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn set_credit(
    State(app): State<App>,
    _: AsOperator,
    Path(text): Path<String>,
    Json(body): Json<CreditBody>,
) -> ApiResult<axum::Json<OwnerView>> {
    let most = app.settings.max_price_micros;
    let limit = |line: AmountInput| line.price(most).map_err(Refusal::from);
    let line = body.line.map(|line| line.map(limit).transpose()).transpose()?;
    let unit = SetCredit { owner: id(&text)?, line, unfreeze: body.unfreeze };
    let owner = app.store.submit(unit).await?;
    Ok(axum::Json(view::owner(&owner, &app)?))
}

/// A label for a key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// For people.
    #[serde(default)]
    label: String,
    /// Whether every other live key of the same holder is revoked: a rotation. Of an owner it ends
    /// every sign-in and unused link as well.
    #[serde(default)]
    revoke_others: bool,
}

/// Makes a key for an owner. It is shown once.
#[utoipa::path(post, path = "/v1/owners/{id}/keys", tag = "operator", security(("key" = [])), request_body = NewKey,
    params(("id" = String, Path, description = "own_… or me")),
    responses((status = 201, body = KeyView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn add_owner_key(
    State(app): State<App>,
    caller: AsOwnerOrOperator,
    Path(text): Path<String>,
    Json(body): Json<NewKey>,
) -> ApiResult<(StatusCode, axum::Json<KeyView>)> {
    let owner = owner_id(&caller, &text)?;
    caller.0.holds_a_key()?;
    new_key(&app, Principal::Owner(owner), None, &body).await
}

/// Makes a key, and revokes the others where a rotation is asked for: the new one first, so that
/// nobody is locked out in between.
pub(super) async fn new_key(
    app: &App,
    principal: Principal,
    owner: Option<OwnerId>,
    body: &NewKey,
) -> ApiResult<(StatusCode, axum::Json<KeyView>)> {
    if !body.label.is_empty() && !is_line(&body.label, 80) {
        return Err(refuse(Code::NameInvalid, "a label has at most 80 visible characters"));
    }
    let key = party::add_key(app, principal, owner, &body.label).await?;
    if body.revoke_others {
        party::revoke_others(app, principal, owner, key.row.id).await?;
    }
    Ok((StatusCode::CREATED, axum::Json(view::key(&key.row, Some(key.secret.expose().to_owned())))))
}

/// What an agent starts from.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAgent {
    /// What people call it.
    name: String,
}

/// Creates an agent; its policy inherits the owner's until it is set.
#[utoipa::path(post, path = "/v1/agents", tag = "owner", security(("key" = [])), request_body = NewAgent,
    params(("Idempotency-Key" = Option<String>, Header, description = "One key for one agent")),
    responses((status = 201, body = AgentView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn create_agent(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    headers: HeaderMap,
    Json(body): Json<NewAgent>,
) -> ApiResult<(StatusCode, axum::Json<AgentView>)> {
    let creation =
        Creation { by: Principal::Owner(owner), name: body.name, key: idempotency_key(&headers)? };
    let agent =
        app.store.submit(CreateAgent { creation, owner, id: AgentId::new(app.seed()) }).await?;
    Ok((StatusCode::CREATED, axum::Json(view::agent(&agent))))
}

/// Agents, newest first.
#[utoipa::path(get, path = "/v1/agents", tag = "owner", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<AgentView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn agents(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<AgentView>>> {
    let scope = owner.to_string();
    let cursor = paging.cursor()?;
    let page = app.store.reader().list::<Agent>(
        "agents",
        &scope,
        cursor.as_ref(),
        paging.limit()?,
        true,
    )?;
    Ok(axum::Json(List::of(page, |row| view::agent(&row))))
}

fn find_agent(app: &App, owner: OwnerId, text: &str) -> ApiResult<Agent> {
    let row = app.store.reader().row::<Agent>(id::<AgentId>(text)?)?;
    row.filter(|row| row.owner == owner).ok_or_else(not_here)
}

/// One agent.
#[utoipa::path(get, path = "/v1/agents/{id}", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "agt_…")),
    responses((status = 200, body = AgentView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn agent(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<AgentView>> {
    Ok(axum::Json(view::agent(&find_agent(&app, owner, &text)?)))
}

/// Pauses an agent: once answered, it buys nothing new.
#[utoipa::path(post, path = "/v1/agents/{id}/pause", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "agt_…")),
    responses((status = 204, description = "Paused"),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn pause_agent(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
) -> ApiResult<StatusCode> {
    let agent = find_agent(&app, owner, &text)?;
    pause(&app, Pausable::Agent(agent.owner, agent.id), true).await
}

/// Resumes an agent.
#[utoipa::path(post, path = "/v1/agents/{id}/resume", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "agt_…")),
    responses((status = 204, description = "Resumed"),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn resume_agent(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
) -> ApiResult<StatusCode> {
    let agent = find_agent(&app, owner, &text)?;
    pause(&app, Pausable::Agent(agent.owner, agent.id), false).await
}

/// Makes a key for an agent. It is shown once. A browser that is signed in is not enough: the key
/// would outlive the sign-in.
#[utoipa::path(post, path = "/v1/agents/{id}/keys", tag = "owner", security(("key" = [])), request_body = NewKey,
    params(("id" = String, Path, description = "agt_…")),
    responses((status = 201, body = KeyView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn add_agent_key(
    State(app): State<App>,
    AsOwnerByKey(owner): AsOwnerByKey,
    Path(text): Path<String>,
    Json(body): Json<NewKey>,
) -> ApiResult<(StatusCode, axum::Json<KeyView>)> {
    let agent = find_agent(&app, owner, &text)?;
    new_key(&app, Principal::Agent(agent.id), Some(agent.owner), &body).await
}

/// The keys of an agent, without their secrets.
#[utoipa::path(get, path = "/v1/agents/{id}/keys", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "agt_…")),
    responses((status = 200, body = List<KeyView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn agent_keys(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<List<KeyView>>> {
    let agent = find_agent(&app, owner, &text)?;
    let keys = party::keys_of(&app, Principal::Agent(agent.id))?;
    let data = keys.iter().map(|row| view::key(row, None)).collect();
    Ok(axum::Json(List { data, next_cursor: None }))
}

/// Revokes a key of an agent: once answered, nothing is bought with it.
#[utoipa::path(delete, path = "/v1/agents/{id}/keys/{key}", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "agt_…"), ("key" = String, Path, description = "key_…")),
    responses((status = 200, body = KeyView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn revoke_agent_key(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path((text, key)): Path<(String, String)>,
) -> ApiResult<axum::Json<KeyView>> {
    let agent = find_agent(&app, owner, &text)?;
    let principal = Principal::Agent(agent.id);
    let revoked = party::revoke_key(&app, principal, Some(agent.owner), id::<KeyId>(&key)?).await?;
    Ok(axum::Json(view::key(&revoked, None)))
}
