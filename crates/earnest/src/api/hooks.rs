//! Outgoing webhooks: endpoints, and how each delivery went.

use axum::extract::{FromRequestParts, State};
use earnest_core::hook::{
    Attempt, CreateHook, Delivery, Hook, HookState, MAX_KINDS, Resend, Scheme, SetHook,
};
use earnest_core::id::{DeliveryId, HookId};
use earnest_core::party::Principal;
use earnest_core::problem::Code;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Caller, not_here};
use super::error::{ApiError, ApiResult, refuse};
use super::read::{Json, Paging, Path, Query, id, idempotency_key};
use super::view::{List, Problem};
use crate::app::App;
use crate::flow::hook as flow;

/// The longest URL of an endpoint.
const MAX_URL_BYTES: usize = 2_000;

/// An endpoint to make.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewHook {
    /// `https://…`; nothing that is not on the public internet.
    url: String,
    /// Which kinds of events, by name or by beginning (`settlement.*`); all, where it is left out.
    #[serde(default)]
    kinds: Vec<String>,
    /// `v1a` (Ed25519, the default) or `v1` (HMAC-SHA256), as Standard Webhooks names them.
    #[serde(default = "ed25519")]
    #[schema(value_type = Option<String>)]
    scheme: Scheme,
}

const fn ed25519() -> Scheme {
    Scheme::V1a
}

/// An endpoint.
#[derive(Serialize, ToSchema)]
pub struct HookView {
    /// Its id.
    id: String,
    /// Where to.
    url: String,
    /// Which kinds of events; empty for all.
    kinds: Vec<String>,
    /// `v1a` or `v1`.
    #[schema(value_type = String)]
    scheme: Scheme,
    /// `active` or `disabled`.
    status: String,
    /// Why it is disabled.
    reason: Option<String>,
    /// `whpk_…`: what to verify with, for `v1a`.
    public_key: Option<String>,
    /// `whsec_…`: what to verify with, for `v1`. Shown once, when it is made.
    secret: Option<String>,
    /// When it was made.
    created_at: String,
}

fn show(hook: &Hook, secret: Option<String>) -> HookView {
    let (status, reason) = match &hook.state {
        HookState::Active => ("active", None),
        HookState::Disabled { why } => ("disabled", Some(why.clone())),
        HookState::Removed => ("removed", None),
    };
    HookView {
        id: hook.id.to_string(),
        url: hook.url.clone(),
        kinds: hook.kinds.clone(),
        scheme: hook.scheme,
        status: status.to_owned(),
        reason,
        public_key: hook.public_key.clone(),
        secret,
        created_at: hook.created_at.to_string(),
    }
}

/// One attempt of a delivery.
#[derive(Serialize, ToSchema)]
pub struct AttemptView {
    /// When.
    at: String,
    /// What the receiver answered.
    status: Option<u16>,
    /// Why there was no answer.
    error: Option<String>,
    /// The beginning of the answer.
    answer: Option<String>,
}

/// One event on its way.
#[derive(Serialize, ToSchema)]
pub struct DeliveryView {
    /// Its id: `webhook-id` of every attempt.
    id: String,
    /// The event's kind.
    kind: String,
    /// The event's entry in the log.
    seq: u64,
    /// `waiting`, `delivered` or `failed`.
    status: serde_json::Value,
    /// How it went so far, oldest first.
    attempts: Vec<AttemptView>,
    /// When it is tried next, while it waits.
    next_at: Option<String>,
}

fn show_delivery(row: Delivery) -> DeliveryView {
    let waits = row.state == earnest_core::hook::DeliveryState::Waiting;
    let attempt = |it: Attempt| AttemptView {
        at: it.at.to_string(),
        status: it.status,
        error: it.error,
        answer: it.answer,
    };
    DeliveryView {
        id: row.id.to_string(),
        kind: row.kind,
        seq: row.seq,
        status: serde_json::to_value(row.state).unwrap_or_default(),
        attempts: row.attempts.into_iter().map(attempt).collect(),
        next_at: waits.then(|| row.next_at.to_string()),
    }
}

/// Whoever may have endpoints: an owner, a seller, the operator. Settled before a body is read.
pub struct AsHolder(Principal);

impl FromRequestParts<App> for AsHolder {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        Ok(Self(holder(&Caller::from_request_parts(parts, app).await?)?))
    }
}

fn holder(caller: &Caller) -> ApiResult<Principal> {
    match caller.0.principal {
        Principal::Agent(_) => Err(not_here()),
        holder => Ok(holder),
    }
}

/// The same, by a key: an endpoint is told of everything, and goes on when a sign-in ends.
pub struct AsHolderByKey(Principal);

impl FromRequestParts<App> for AsHolderByKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let holder = holder(&caller)?;
        caller.holds_a_key().map(|()| Self(holder))
    }
}

fn find(app: &App, of: Principal, text: &str) -> ApiResult<Hook> {
    let row = app.store.reader().row::<Hook>(id::<HookId>(text)?)?;
    let live = |hook: &Hook| hook.of == of && hook.state != HookState::Removed;
    row.filter(live).ok_or_else(not_here)
}

fn check_kinds(kinds: &[String]) -> ApiResult<()> {
    let plain = |kind: &String| {
        let name = kind.strip_suffix('*').unwrap_or(kind);
        let letters = |c: char| c.is_ascii_lowercase() || c == '_' || c == '.';
        !kind.is_empty() && kind.len() <= 64 && name.chars().all(letters)
    };
    if kinds.len() > MAX_KINDS || !kinds.iter().all(plain) {
        let why = format!("`kinds` holds at most {MAX_KINDS} names such as `settlement.*`");
        return Err(refuse(Code::ValidationFailed, &why));
    }
    Ok(())
}

/// Makes an endpoint: it is told of what happens from now on. A browser that is signed in is not
/// enough: the endpoint would outlive the sign-in.
#[utoipa::path(post, path = "/v1/webhooks", tag = "owner", security(("key" = [])), request_body = NewHook,
    responses((status = 201, body = HookView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn create(
    State(app): State<App>,
    AsHolderByKey(of): AsHolderByKey,
    headers: HeaderMap,
    Json(new): Json<NewHook>,
) -> ApiResult<(StatusCode, axum::Json<HookView>)> {
    check_kinds(&new.kinds)?;
    if new.url.len() > MAX_URL_BYTES {
        return Err(refuse(Code::UrlInvalid, "the URL is too long"));
    }
    let url = app.outbound.check(&new.url)?.to_string();
    let (id, scheme) = (HookId::new(app.seed()), new.scheme);
    let secret = flow::new_secret(&app, &id.to_string(), scheme)?;
    let since = app.store.reader().head()?.seq;
    let hook = Hook {
        kinds: new.kinds,
        scheme,
        sealed: secret.sealed,
        public_key: secret.public_key,
        ..Hook::new(id, of, url, since, app.now())
    };
    let (key, settings) = (idempotency_key(&headers)?, app.settings.clone());
    let hook = app.store.submit(CreateHook { hook, key, settings }).await?;
    // A repeat shows the secret of the first: whoever asks twice lost the first answer.
    let secret = match hook.id == id {
        true => secret.secret,
        false => flow::shown_secret(&app, &hook)?,
    };
    Ok((StatusCode::CREATED, axum::Json(show(&hook, secret))))
}

/// The caller's endpoints.
#[utoipa::path(get, path = "/v1/webhooks", tag = "owner", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<HookView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn list(
    State(app): State<App>,
    AsHolder(of): AsHolder,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<HookView>>> {
    let (scope, cursor) = (of.to_string(), paging.cursor()?);
    let reader = app.store.reader();
    let page = reader.list::<Hook>("hooks", &scope, cursor.as_ref(), paging.limit()?, true)?;
    Ok(axum::Json(List::of(page, |row| show(&row, None))))
}

/// One endpoint.
#[utoipa::path(get, path = "/v1/webhooks/{id}", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "whe_…")),
    responses((status = 200, body = HookView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(app): State<App>,
    AsHolder(of): AsHolder,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<HookView>> {
    Ok(axum::Json(show(&find(&app, of, &text)?, None)))
}

/// Removes an endpoint: it is told nothing more.
#[utoipa::path(delete, path = "/v1/webhooks/{id}", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "whe_…")),
    responses((status = 200, body = HookView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn remove(
    State(app): State<App>,
    AsHolder(of): AsHolder,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<HookView>> {
    set(&app, of, &text, HookState::Removed).await
}

/// Enables an endpoint again that was disabled, by a 410 or after three days without success: it is
/// told of what happens from now on. What failed before can be sent again one by one; what happened
/// meanwhile stands in the stream of events.
#[utoipa::path(post, path = "/v1/webhooks/{id}/enable", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "whe_…")),
    responses((status = 200, body = HookView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn enable(
    State(app): State<App>,
    AsHolder(of): AsHolder,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<HookView>> {
    set(&app, of, &text, HookState::Active).await
}

async fn set(
    app: &App,
    of: Principal,
    text: &str,
    state: HookState,
) -> ApiResult<axum::Json<HookView>> {
    let head = app.store.reader().head()?.seq;
    let hook = app.store.submit(SetHook { hook: id(text)?, of, state, head }).await?;
    Ok(axum::Json(show(&hook, None)))
}

/// The deliveries of an endpoint with their attempts, newest first.
#[utoipa::path(get, path = "/v1/webhooks/{id}/deliveries", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "whe_…"), Paging),
    responses((status = 200, body = List<DeliveryView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn deliveries(
    State(app): State<App>,
    AsHolder(of): AsHolder,
    Path(text): Path<String>,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<DeliveryView>>> {
    let hook = find(&app, of, &text)?;
    let (scope, cursor) = (hook.id.to_string(), paging.cursor()?);
    let reader = app.store.reader();
    let page = reader.list::<Delivery>(
        "hook_deliveries",
        &scope,
        cursor.as_ref(),
        paging.limit()?,
        true,
    )?;
    Ok(axum::Json(List::of(page, show_delivery)))
}

/// Sends a delivery again now.
#[utoipa::path(post, path = "/v1/webhooks/{id}/deliveries/{delivery}/resend", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "whe_…"), ("delivery" = String, Path, description = "whd_…")),
    responses((status = 202, body = DeliveryView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn resend(
    State(app): State<App>,
    AsHolder(of): AsHolder,
    Path((hook, delivery)): Path<(String, String)>,
) -> ApiResult<(StatusCode, axum::Json<DeliveryView>)> {
    let hook = find(&app, of, &hook)?.id;
    let delivery = id::<DeliveryId>(&delivery)?;
    let row = app.store.submit(Resend { delivery, hook, of }).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(show_delivery(row))))
}
