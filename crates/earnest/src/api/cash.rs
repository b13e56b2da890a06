//! PayPal's balance as the operator minds it: the comparison with PayPal's records, what was moved by
//! hand, what is in suspense, what owners owe for money that went back.

use axum::extract::State;
use earnest_core::cash::{CashEntry, CashKind, RecordCash, VoidCash, is_paypal_id};
use earnest_core::debt::ForgiveDebt;
use earnest_core::id::{OwnerId, TabId, TransferId};
use earnest_core::money::{AmountInput, Micros};
use earnest_core::party::Owner;
use earnest_core::problem::{Code, Refusal};
use earnest_core::reconcile::{Line, MAX_REASON, Reconciliation};
use earnest_core::settlement::Settlement;
use earnest_core::suspense::{Clear, Place, SpokenOf, Suspended};
use earnest_core::tab::Tab;
use earnest_core::unit::{Fingerprint, Key};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::auth::{AsOperator, not_here};
use super::error::{ApiResult, refuse};
use super::paypal::{SuspendedView, show_suspended};
use super::read::{Json, Paging, Path, Query, id, is_line, required_key};
use super::view::{self, List, OwnerView, Problem};
use crate::app::App;
use crate::flow::reconcile::{self as flow, Reconciled};
use crate::flow::scan::Scanned;

/// How the books compare with PayPal's records.
#[derive(Serialize, ToSchema)]
pub struct ReconciliationView {
    /// `explained`, `unexplained`, or `never` before the first comparison.
    status: &'static str,
    /// When it was made.
    at: Option<String>,
    /// From when on PayPal's movements are these books' to explain.
    began: String,
    /// PayPal's balance then, as it was booked.
    opening_micros: Option<i64>,
    /// Why no opening balance is in the books: then only movements are compared, no balance.
    opening_missing: Option<String>,
    /// From when on PayPal's rows were compared; everything before was matched earlier.
    from: Option<String>,
    /// Up to when PayPal's records were complete.
    horizon: Option<String>,
    /// `paypal_cash`, posted.
    books_micros: Option<i64>,
    /// PayPal's balance at the horizon.
    paypal_micros: Option<i64>,
    /// What the books are ahead of it by what is in transit.
    in_transit_micros: Option<i64>,
    /// What the books are ahead of it by unexplained lines.
    unexplained_micros: Option<i64>,
    /// What no line accounts for; 0 in books that are right.
    difference_micros: Option<i64>,
    /// How many lines agree.
    matched: u64,
    /// How many are a hold of PayPal's and its release, which net to zero.
    netted_lines: u64,
    /// How many were acknowledged: `GET /v1/reconciliation/acknowledgements`.
    acknowledged_lines: u64,
    /// How many are in transit.
    in_transit_lines: u64,
    /// How many are not explained.
    unexplained_lines: u64,
    /// Lines in transit, the 200 largest: `id`, `why`, PayPal's `code` with `code_says`, figures of both
    /// sides.
    #[schema(value_type = Vec<serde_json::Value>)]
    in_transit: Vec<Line>,
    /// Unexplained lines, the worst 200: what PayPal does not have, what the books do not have, what
    /// differs, and the rest, each by amount.
    #[schema(value_type = Vec<serde_json::Value>)]
    unexplained: Vec<Line>,
    /// When PayPal's records were last looked through whole, for what moved without a word.
    looked_at: Option<String>,
    /// Why the look after that saw not everything, where it did not.
    look_missed: Option<String>,
}

fn show(app: &App, row: &Reconciliation) -> ApiResult<ReconciliationView> {
    let looked = app.store.reader().row::<Scanned>(Scanned::ID)?;
    let last = row.last.as_ref();
    let late = row.began_late.then(|| "money had moved before it was asked for".to_owned());
    Ok(ReconciliationView {
        status: match last {
            None => "never",
            Some(report) if report.is_explained() => "explained",
            Some(_) => "unexplained",
        },
        at: row.at.map(|at| at.to_string()),
        began: row.began.to_string(),
        opening_micros: row.opening_micros,
        opening_missing: row.opening_missing.clone().or(late),
        from: last.map(|report| report.from.to_string()),
        horizon: last.map(|report| report.horizon.to_string()),
        books_micros: last.map(|report| report.books_micros),
        paypal_micros: last.and_then(|report| report.paypal_micros),
        in_transit_micros: last.map(|report| report.in_transit_micros),
        unexplained_micros: last.map(|report| report.unexplained_micros),
        difference_micros: last.and_then(|report| report.difference_micros()),
        matched: last.map_or(0, |report| report.matched),
        netted_lines: last.map_or(0, |report| report.netted_lines),
        acknowledged_lines: last.map_or(0, |report| report.acknowledged_lines),
        in_transit_lines: last.map_or(0, |report| report.in_transit_lines),
        unexplained_lines: last.map_or(0, |report| report.unexplained_lines),
        in_transit: last.map(|report| report.in_transit.clone()).unwrap_or_default(),
        unexplained: last.map(|report| report.unexplained.clone()).unwrap_or_default(),
        looked_at: looked.as_ref().and_then(|row| row.complete_at).map(|at| at.to_string()),
        look_missed: looked.and_then(|row| row.missed),
    })
}

/// What the last comparison of the books with PayPal's records found. One follows every look through
/// PayPal's records, once an hour.
#[utoipa::path(get, path = "/v1/reconciliation", tag = "operator", security(("key" = [])),
    responses((status = 200, body = ReconciliationView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn reconciliation(
    State(app): State<App>,
    _: AsOperator,
) -> ApiResult<axum::Json<ReconciliationView>> {
    let row = app.store.reader().row::<Reconciliation>(Reconciliation::ID)?;
    Ok(axum::Json(show(&app, &row.ok_or_else(not_here)?)?))
}

/// Compares now. PayPal's records are complete up to six hours ago; what is later is in transit.
#[utoipa::path(post, path = "/v1/reconciliation", tag = "operator", security(("key" = [])),
    responses((status = 200, body = ReconciliationView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn reconcile(
    State(app): State<App>,
    _: AsOperator,
) -> ApiResult<axum::Json<ReconciliationView>> {
    match flow::run(&app).await? {
        Reconciled::Compared(row) => Ok(axum::Json(show(&app, &row)?)),
        Reconciled::NotYet(why) => Err(Refusal::new(Code::StateConflict, why)
            .next("the same later: PayPal's records lag up to three hours")
            .into()),
    }
}

/// What the operator moved at PayPal.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCashEntry {
    /// `deposit`, `withdrawal`, or `repayment` of an owner's debt.
    #[schema(value_type = String)]
    kind: CashKind,
    /// PayPal's id of the transaction: the comparison finds it by that.
    paypal_id: String,
    /// What moved, without the fee.
    #[schema(value_type = serde_json::Value)]
    amount: AmountInput,
    /// What PayPal took of it, where it took something.
    #[schema(value_type = Option<serde_json::Value>)]
    fee: Option<AmountInput>,
    /// Who repaid: `own_…`, for a repayment.
    owner: Option<String>,
}

/// A movement that the operator recorded.
#[derive(Serialize, ToSchema)]
pub struct CashEntryView {
    /// PayPal's id of it.
    paypal_id: String,
    /// `deposit`, `withdrawal` or `repayment`.
    kind: Value,
    /// Who repaid.
    owner: Option<String>,
    /// What moved, without the fee.
    amount_micros: i64,
    /// What PayPal took of it.
    fee_micros: i64,
    /// When it was recorded.
    at: String,
    /// When it was taken back; it counts for nothing since.
    voided_at: Option<String>,
    /// Why it was taken back.
    void_reason: Option<String>,
    /// What was recorded under the same id before, and taken back, oldest first.
    #[schema(no_recursion)]
    earlier: Vec<CashEntryView>,
}

fn show_entry(row: &CashEntry) -> CashEntryView {
    let voided = row.voided.as_ref();
    CashEntryView {
        paypal_id: row.paypal_id.clone(),
        kind: serde_json::to_value(row.kind).unwrap_or_default(),
        owner: row.owner.map(|id| id.to_string()),
        amount_micros: row.amount_micros.get(),
        fee_micros: row.fee_micros.get(),
        at: row.at.to_string(),
        voided_at: voided.map(|voided| voided.at.to_string()),
        void_reason: voided.map(|voided| voided.reason.clone()),
        earlier: row.earlier.iter().map(show_entry).collect(),
    }
}

/// A key for a wish of the operator's, bound to its arguments.
pub(super) fn key(headers: &HeaderMap, family: &'static str, parts: &[String]) -> ApiResult<Key> {
    let parts: Vec<&[u8]> = parts.iter().map(String::as_bytes).collect();
    Ok(Key {
        scope: "operator".to_owned(),
        family,
        name: required_key(headers)?,
        fingerprint: Fingerprint::of(&parts),
    })
}

/// Records a deposit, a withdrawal, or an owner's repayment that happened in PayPal's own pages.
#[utoipa::path(post, path = "/v1/cash-entries", tag = "operator", security(("key" = [])), request_body = NewCashEntry,
    params(("Idempotency-Key" = String, Header, description = "One key for one wish")),
    responses((status = 201, body = CashEntryView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn record(
    State(app): State<App>,
    _: AsOperator,
    headers: HeaderMap,
    Json(body): Json<NewCashEntry>,
) -> ApiResult<(StatusCode, axum::Json<CashEntryView>)> {
    // What the operator moves is no price: only what can be represented bounds it.
    let limit = |amount: AmountInput| amount.price(Micros::MAX).map_err(Refusal::from);
    let amount = limit(body.amount)?;
    let fee = body.fee.map(limit).transpose()?.unwrap_or(Micros::ZERO);
    if !is_paypal_id(&body.paypal_id) {
        let why = "`paypal_id` is PayPal's transaction id: up to 64 letters, digits and hyphens";
        return Err(refuse(Code::ValidationFailed, why));
    }
    let owner = body.owner.as_deref().map(id::<OwnerId>).transpose()?;
    if let Some(owner) = owner {
        app.store.reader().row::<Owner>(owner)?.ok_or_else(not_here)?;
    }
    let parts = [
        body.paypal_id.clone(),
        serde_json::to_string(&body.kind).unwrap_or_default(),
        amount.to_decimal(),
        fee.to_decimal(),
        owner.map(|id| id.to_string()).unwrap_or_default(),
    ];
    let key = key(&headers, "cash", &parts)?;
    let unit = RecordCash { paypal_id: body.paypal_id, kind: body.kind, owner, amount, fee, key };
    let entry = app.store.submit(unit).await?;
    // A repayment is read at PayPal: some of it may have gone back before.
    app.wake.notify();
    Ok((StatusCode::CREATED, axum::Json(show_entry(&entry))))
}

/// Why an entry is taken back.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VoidBody {
    /// One line of at most 500 characters; it stays with the entry.
    reason: String,
}

/// Takes back what was recorded by mistake, once, by a transfer the other way. What it brought must
/// still be in the balance. PayPal's record under the id is then booked as what it is, or it is
/// recorded again as it should have been.
#[utoipa::path(post, path = "/v1/cash-entries/{paypal_id}/void", tag = "operator", security(("key" = [])), request_body = VoidBody,
    params(("paypal_id" = String, Path, description = "PayPal's id of the transaction"),
        ("Idempotency-Key" = String, Header, description = "One key for one wish")),
    responses((status = 200, body = CashEntryView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn void(
    State(app): State<App>,
    _: AsOperator,
    Path(paypal_id): Path<String>,
    headers: HeaderMap,
    Json(body): Json<VoidBody>,
) -> ApiResult<axum::Json<CashEntryView>> {
    if !is_line(&body.reason, MAX_REASON) {
        let why = "`reason` must be one line of at most 500 characters";
        return Err(refuse(Code::ValidationFailed, why));
    }
    let row = app.store.reader().row::<CashEntry>(&paypal_id)?.ok_or_else(not_here)?;
    let key = key(&headers, "cash_void", &[paypal_id.clone(), body.reason.clone()])?;
    let (owner, gave_back, reason) = (row.owner, row.gave_back, body.reason);
    let unit = VoidCash { paypal_id, owner, gave_back, reason, went_back: false, key };
    let entry = app.store.submit(unit).await?;
    app.wake.notify();
    Ok(axum::Json(show_entry(&entry)))
}

/// What the operator recorded, newest first.
#[utoipa::path(get, path = "/v1/cash-entries", tag = "operator", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<CashEntryView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn entries(
    State(app): State<App>,
    _: AsOperator,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<CashEntryView>>> {
    let cursor = paging.cursor()?;
    let reader = app.store.reader();
    let page =
        reader.list::<CashEntry>("cash_entries", "", cursor.as_ref(), paging.limit()?, true)?;
    Ok(axum::Json(List::of(page, |row| show_entry(&row))))
}

/// Where money in suspense belongs.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClearBody {
    /// `credit`, which becomes an owner's; `debt`, which it repays; `tab`, frozen or closed, whose whole
    /// rest it pays.
    to: Belongs,
    /// `own_…` or `tab_…`.
    id: String,
    /// How much; all that is left and that the place takes, unless said.
    #[schema(value_type = Option<serde_json::Value>)]
    amount: Option<AmountInput>,
}

/// What kind of place money belongs to.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Belongs {
    /// An owner's prepaid credit.
    Credit,
    /// An owner's debt.
    Debt,
    /// A tab.
    Tab,
}

/// Clears a payment in suspense, or a part of it.
#[utoipa::path(post, path = "/v1/suspense/{capture}/clear", tag = "operator", security(("key" = [])), request_body = ClearBody,
    params(("capture" = String, Path, description = "PayPal's id of the capture"),
        ("Idempotency-Key" = String, Header, description = "One key for one wish")),
    responses((status = 200, body = SuspendedView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn clear(
    State(app): State<App>,
    _: AsOperator,
    Path(capture): Path<String>,
    headers: HeaderMap,
    Json(body): Json<ClearBody>,
) -> ApiResult<axum::Json<SuspendedView>> {
    let limit = |amount: AmountInput| amount.price(Micros::MAX).map_err(Refusal::from);
    let amount = body.amount.map(limit).transpose()?;
    let reader = app.store.reader();
    let settlement = reader.row::<Suspended>(&capture)?.ok_or_else(not_here)?.settlement;
    let settlement = settlement.map(|id| reader.row::<Settlement>(id)).transpose()?.flatten();
    let speaks_of =
        settlement.map(|row| SpokenOf { settlement: row.id, tab: row.tab, owner: row.owner });
    let (to, owner) = match body.to {
        Belongs::Tab => {
            let tab = reader.row::<Tab>(id::<TabId>(&body.id)?)?.ok_or_else(not_here)?;
            (Place::Tab(tab.id), tab.owner)
        }
        place => {
            let owner = id::<OwnerId>(&body.id)?;
            reader.row::<Owner>(owner)?.ok_or_else(not_here)?;
            let debt = matches!(place, Belongs::Debt);
            (if debt { Place::Debt(owner) } else { Place::Credit(owner) }, owner)
        }
    };
    let parts = [
        capture.clone(),
        serde_json::to_string(&to).unwrap_or_default(),
        amount.map(Micros::to_decimal).unwrap_or_default(),
    ];
    let key = key(&headers, "suspense", &parts)?;
    let chain = TransferId::new(app.seed());
    let unit = Clear { capture, to, owner, speaks_of, amount, chain, key };
    let row = app.store.submit(unit).await?;
    app.wake.notify();
    Ok(axum::Json(show_suspended(row)))
}

/// The operator bears what an owner owes for money that went back at PayPal. The owner stays frozen
/// until that is lifted.
#[utoipa::path(post, path = "/v1/owners/{id}/debt/forgive", tag = "operator", security(("key" = [])),
    params(("id" = String, Path, description = "own_…"),
        ("Idempotency-Key" = String, Header, description = "One key for one wish")),
    responses((status = 200, body = OwnerView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn forgive(
    State(app): State<App>,
    _: AsOperator,
    Path(text): Path<String>,
    headers: HeaderMap,
) -> ApiResult<axum::Json<OwnerView>> {
    let owner = id::<OwnerId>(&text)?;
    app.store.reader().row::<Owner>(owner)?.ok_or_else(not_here)?;
    let key = key(&headers, "forgive_debt", &[owner.to_string()])?;
    let unit = ForgiveDebt { owner, chain: TransferId::new(app.seed()), key };
    let (owner, _) = app.store.submit(unit).await?;
    Ok(axum::Json(view::owner(&owner, &app)?))
}
