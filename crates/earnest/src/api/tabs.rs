//! Tabs and their settlements.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use earnest_core::id::{OwnerId, SettlementId, TabId, TransferId};
use earnest_core::intent::{Intent, IntentState};
use earnest_core::party::{Owner, Principal};
use earnest_core::problem::{Code, Refusal};
use earnest_core::settlement::{Settled, Settlement};
use earnest_core::tab::{CloseByOwner, OpenByOwner, Tab, WriteOff};
use earnest_core::treasurer::Plan;
use earnest_core::unit::{Fingerprint, Key};
use http::{HeaderMap, StatusCode};

use super::auth::{AsOperator, AsOwner, Caller, not_here};
use super::error::{ApiError, ApiResult, refuse};
use super::read::{Paging, Path, Query, id, required_key};
use super::view::{self, List, Problem, SettlementView, TabView};
use crate::app::App;
use crate::flow::paypal::FlowError;
use crate::flow::settle as flow;

impl From<FlowError> for ApiError {
    fn from(error: FlowError) -> Self {
        match error {
            FlowError::Submit(error) => error.into(),
            FlowError::Read(error) => error.into(),
            other => {
                tracing::error!(error = %other, "a flow broke");
                refuse(Code::Internal, "the request was not carried out")
            }
        }
    }
}

fn show(app: &App, tab: &Tab) -> ApiResult<TabView> {
    let reader = app.store.reader();
    let totals = reader.totals(&tab.owed())?;
    let owner = reader.row::<Owner>(tab.owner)?.ok_or_else(not_here)?;
    let room = flow::room_of(app, &owner, tab.id)?;
    let treasurer = match flow::plan_of(app, tab)? {
        Plan::Wait { why } | Plan::Settle { why, .. } | Plan::Carry { why } => why,
    };
    let owed = totals.collectible();
    let fee = app.settings.fee;
    Ok(TabView {
        id: tab.id.to_string(),
        owner: tab.owner.to_string(),
        status: view::tab_status(tab),
        owed_micros: owed.get(),
        held_micros: totals.debits_pending.get(),
        settling_micros: totals.credits_pending.get(),
        captured_micros: tab.captured_micros.get(),
        carry_micros: tab.carry_micros.get(),
        room_micros: room.get(),
        lines: tab.lines,
        settlements: tab.settlements,
        treasurer,
        fee_predicted_micros: fee.predict(owed.floor_to_cent()).get(),
        fee_if_single_micros: tab.fee_if_single_micros.get(),
        opened_at: tab.opened_at.to_string(),
        used_at: tab.used_at.to_string(),
        carried_to: tab.carried_to.map(|id| id.to_string()),
    })
}

fn find(app: &App, caller: &Caller, text: &str) -> ApiResult<Tab> {
    let row = app.store.reader().row::<Tab>(id::<TabId>(text)?)?;
    row.filter(|row| caller.sees_owner(row.owner)).ok_or_else(not_here)
}

/// The owner's own tab; an agent opens, ends and names none.
fn find_own(app: &App, owner: OwnerId, text: &str) -> ApiResult<Tab> {
    let row = app.store.reader().row::<Tab>(id::<TabId>(text)?)?;
    row.filter(|row| row.owner == owner).ok_or_else(not_here)
}

/// Opens a tab; an open one is given back as it is.
#[utoipa::path(post, path = "/v1/tabs", tag = "owner", security(("key" = [])),
    responses((status = 201, body = TabView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn open(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
) -> ApiResult<(StatusCode, axum::Json<TabView>)> {
    let unit = OpenByOwner {
        owner,
        tab: TabId::new(app.seed()),
        chain: TransferId::new(app.seed()),
        settings: (*app.settings).clone(),
    };
    let tab = app.store.submit(unit).await?;
    Ok((StatusCode::CREATED, axum::Json(show(&app, &tab)?)))
}

/// Tabs, newest first.
#[utoipa::path(get, path = "/v1/tabs", tag = "owner", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<TabView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<TabView>>> {
    let scope = caller.0.owner.ok_or_else(not_here)?.to_string();
    let cursor = paging.cursor()?;
    let page =
        app.store.reader().list::<Tab>("tabs", &scope, cursor.as_ref(), paging.limit()?, true)?;
    let data = page.items.iter().map(|row| show(&app, row)).collect::<ApiResult<_>>()?;
    Ok(axum::Json(List { data, next_cursor: page.next.map(|cursor| cursor.to_string()) }))
}

/// One tab.
#[utoipa::path(get, path = "/v1/tabs/{id}", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "tab_…")),
    responses((status = 200, body = TabView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(app): State<App>,
    caller: Caller,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<TabView>> {
    let tab = find(&app, &caller, &text)?;
    Ok(axum::Json(show(&app, &tab)?))
}

/// Closes a tab: no more purchases, settled once when no hold is pending; `treasurer` says why where
/// so little is carried to the next tab instead.
#[utoipa::path(post, path = "/v1/tabs/{id}/close", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "tab_…")),
    responses((status = 202, description = "Closing", body = TabView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn close(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
) -> ApiResult<(StatusCode, axum::Json<TabView>)> {
    let tab = find_own(&app, owner, &text)?;
    let closed = app.store.submit(CloseByOwner { owner, tab: tab.id }).await?;
    app.wake.notify();
    Ok((StatusCode::ACCEPTED, axum::Json(show(&app, &closed)?)))
}

/// Settles what is owed now, and on a frozen tab after another way to pay was added. Below the
/// operator's minimum only a few times a day: the refusal names the fee.
#[utoipa::path(post, path = "/v1/tabs/{id}/settle", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "tab_…"),
        ("Idempotency-Key" = String, Header, description = "One key for one wish")),
    responses((status = 202, description = "A settlement is under way", body = SettlementView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn settle(
    State(app): State<App>,
    AsOwner(owner): AsOwner,
    Path(text): Path<String>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let tab = find_own(&app, owner, &text)?;
    let key = key(&headers, &owner, "settlement", &tab)?;
    match flow::settle(&app, owner, tab.id, true, Some(key)).await? {
        Settled::Planned(row) => {
            let view = show_settlement(&app, Principal::Owner(owner), &row)?;
            Ok((StatusCode::ACCEPTED, axum::Json(view)).into_response())
        }
        Settled::Waited(why) | Settled::Carried(why) => {
            let owed = app.store.reader().totals(&tab.owed())?.collectible();
            let fee = app.settings.fee.predict(owed.floor_to_cent());
            let refusal = Refusal::new(Code::StateConflict, why);
            Err(refusal.amount("owed", owed).amount("fee_predicted", fee).into())
        }
    }
}

fn key(
    headers: &HeaderMap,
    scope: &impl ToString,
    family: &'static str,
    tab: &Tab,
) -> ApiResult<Key> {
    Ok(Key {
        scope: scope.to_string(),
        family,
        name: required_key(headers)?,
        fingerprint: Fingerprint::of(&[tab.id.to_string().as_bytes()]),
    })
}

/// The operator bears what a frozen or abandoned tab owes.
#[utoipa::path(post, path = "/v1/tabs/{id}/write-off", tag = "operator", security(("key" = [])),
    params(("id" = String, Path, description = "tab_…"),
        ("Idempotency-Key" = String, Header, description = "One key for one wish")),
    responses((status = 200, body = TabView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn write_off(
    State(app): State<App>,
    _: AsOperator,
    Path(text): Path<String>,
    headers: HeaderMap,
) -> ApiResult<axum::Json<TabView>> {
    let tab = app.store.reader().row::<Tab>(id::<TabId>(&text)?)?.ok_or_else(not_here)?;
    let key = key(&headers, &"operator", "write_off", &tab)?;
    let chain = TransferId::new(app.seed());
    let unit = WriteOff { owner: tab.owner, tab: tab.id, chain, key: Some(key) };
    let (tab, _) = app.store.submit(unit).await?;
    Ok(axum::Json(show(&app, &tab)?))
}

/// Shows a settlement with what its intent knows.
fn show_settlement(app: &App, to: Principal, row: &Settlement) -> ApiResult<SettlementView> {
    let intent = app.store.reader().row::<Intent>(row.intent)?;
    let unknown = intent.is_some_and(|intent| intent.state == IntentState::Unknown);
    let shown = view::settlement(row, unknown, view::receipt_url(app, row)?);
    let invoice_id = shown.invoice_id.filter(|_| !matches!(to, Principal::Agent(_)));
    Ok(SettlementView { invoice_id, ..shown })
}

/// Settlements of a tab, newest first.
#[utoipa::path(get, path = "/v1/tabs/{id}/settlements", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "tab_…"), Paging),
    responses((status = 200, body = List<SettlementView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn settlements(
    State(app): State<App>,
    caller: Caller,
    Path(text): Path<String>,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<SettlementView>>> {
    let scope = find(&app, &caller, &text)?.id.to_string();
    let cursor = paging.cursor()?;
    let reader = app.store.reader();
    let page = reader.list::<Settlement>(
        "tab_settlements",
        &scope,
        cursor.as_ref(),
        paging.limit()?,
        true,
    )?;
    let data = page
        .items
        .iter()
        .map(|row| show_settlement(&app, caller.0.principal, row))
        .collect::<ApiResult<_>>()?;
    Ok(axum::Json(List { data, next_cursor: page.next.map(|cursor| cursor.to_string()) }))
}

/// One settlement.
#[utoipa::path(get, path = "/v1/settlements/{id}", tag = "owner", security(("key" = [])),
    params(("id" = String, Path, description = "set_…")),
    responses((status = 200, body = SettlementView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn settlement(
    State(app): State<App>,
    caller: Caller,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<SettlementView>> {
    let row = app.store.reader().row::<Settlement>(id::<SettlementId>(&text)?)?;
    let row = row.filter(|row| caller.sees_owner(row.owner)).ok_or_else(not_here)?;
    Ok(axum::Json(show_settlement(&app, caller.0.principal, &row)?))
}
