//! What an operator asks and decides after a restore.

use axum::extract::State;
use earnest_core::id::PurchaseId;
use earnest_core::lost::{DecideLost, LineState, LostCapture, LostLine, LostState};
use earnest_core::problem::Code;
use earnest_core::quarantine::{
    AcceptRecords, AcceptedRecord, Lift, MOST_NAMED, Quarantine, Unplaced,
};
use earnest_core::reconcile::MAX_REASON;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{AsOperator, not_here};
use super::error::{ApiResult, refuse};
use super::read::{Json, Paging, Path, Query, id, is_line};
use super::view::{List, Problem};
use crate::app::App;

/// The restore that these books come from.
#[derive(Serialize, ToSchema)]
pub struct RestoreView {
    /// `never`, `quarantined` or `lifted`.
    status: &'static str,
    /// Of this installation, now.
    epoch: String,
    /// When the books were restored.
    restored_at: Option<String>,
    /// When the backup was taken: what was done between the two is not in the books.
    backup_taken_at: Option<String>,
    /// The last entry of the log that the backup holds.
    backup_seq: Option<u64>,
    /// Whether PayPal's records up to the restore were read to the end.
    read_to_the_end: bool,
    /// Whether they were, and each has its place.
    import_complete: bool,
    /// What the last reading of them said.
    import_said: Option<String>,
    /// How many of PayPal's records were looked at.
    records: u64,
    /// How many of those could not be read, or have no place in the books. They are read again.
    unexplained: u64,
    /// How many of those records are in suspense: in the books, and keep nothing shut.
    in_suspense: u64,
    /// Those without a place, the first 100: `paypal_id`, PayPal's `code`, `amount_micros`, `invoice_id`, and `why`.
    #[schema(value_type = Vec<serde_json::Value>)]
    unexplained_records: Vec<Unplaced>,
    /// Records that have no place and are borne, each with `reason`, `by` and `at`.
    #[schema(value_type = Vec<serde_json::Value>)]
    accepted_records: Vec<AcceptedRecord>,
    /// When they are read again.
    next_import_at: Option<String>,
    /// When the quarantine was lifted.
    lifted_at: Option<String>,
    /// Why it was lifted without complete records.
    gap: Option<String>,
}

fn show(app: &App, row: Option<&Quarantine>) -> RestoreView {
    let lifted = row.and_then(|row| row.lifted.as_ref());
    let import = row.map(|row| row.import.clone()).unwrap_or_default();
    RestoreView {
        status: match row {
            None => "never",
            Some(row) if row.holds() => "quarantined",
            Some(_) => "lifted",
        },
        epoch: app.store.epoch().to_owned(),
        restored_at: row.map(|row| row.restored_at.to_string()),
        backup_taken_at: row.map(|row| row.backup.taken_at.to_string()),
        backup_seq: row.map(|row| row.backup.seq),
        read_to_the_end: import.complete_at.is_some(),
        import_complete: import.is_complete(),
        import_said: Some(import.said).filter(|said| !said.is_empty()),
        records: import.records,
        unexplained: import.unexplained,
        in_suspense: import.in_suspense,
        unexplained_records: import.unplaced,
        accepted_records: row.map(|row| row.accepted.clone()).unwrap_or_default(),
        next_import_at: import.next_at.map(|at| at.to_string()),
        lifted_at: lifted.map(|lifted| lifted.at.to_string()),
        gap: lifted.and_then(|lifted| lifted.gap.clone()),
    }
}

/// Whether these books were restored, and how far PayPal's records were read since.
#[utoipa::path(get, path = "/v1/restore", tag = "operator", security(("key" = [])),
    responses((status = 200, body = RestoreView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn status(State(app): State<App>, _: AsOperator) -> ApiResult<axum::Json<RestoreView>> {
    let row = app.store.reader().row::<Quarantine>(Quarantine::ID)?;
    Ok(axum::Json(show(&app, row.as_ref())))
}

/// Records that are accepted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptBody {
    /// PayPal's ids of records that have no place, 100 at most.
    records: Vec<String>,
    /// Why they are borne: one line of at most 500 characters, kept for good.
    reason: String,
}

/// Accepts single records that have no place: they do not keep the installation shut any more. Nothing is
/// booked for them, and the comparison with PayPal's records goes on naming them.
#[utoipa::path(post, path = "/v1/restore/accept", tag = "operator", security(("key" = [])), request_body = AcceptBody,
    responses((status = 200, body = RestoreView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn accept(
    State(app): State<App>,
    AsOperator { key }: AsOperator,
    Json(body): Json<AcceptBody>,
) -> ApiResult<axum::Json<RestoreView>> {
    if !is_line(&body.reason, MAX_REASON) {
        let why = format!("`reason` must be one line of at most {MAX_REASON} characters");
        return Err(refuse(Code::ValidationFailed, &why));
    }
    if body.records.is_empty() || body.records.len() > MOST_NAMED {
        let why = format!("`records` must name one to {MOST_NAMED} of PayPal's ids");
        return Err(refuse(Code::ValidationFailed, &why));
    }
    let by = key.map_or_else(|| "operator".to_owned(), |key| key.to_string());
    let unit = AcceptRecords { ids: body.records, reason: body.reason, by };
    let row = app.store.submit(unit).await?;
    Ok(axum::Json(show(&app, Some(&row))))
}

/// The end of a quarantine.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LiftBody {
    /// Why it is lifted before PayPal's records are complete: what is unknown and borne.
    #[serde(default)]
    accept_gap: Option<String>,
}

/// Lifts the quarantine, once PayPal's records were read past the restore. Lifting what is lifted
/// changes nothing.
#[utoipa::path(post, path = "/v1/restore/lift", tag = "operator", security(("key" = [])), request_body = LiftBody,
    responses((status = 200, body = RestoreView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn lift(
    State(app): State<App>,
    _: AsOperator,
    Json(body): Json<LiftBody>,
) -> ApiResult<axum::Json<RestoreView>> {
    if body.accept_gap.as_deref().is_some_and(|why| !is_line(why, MAX_REASON)) {
        let why = format!("`accept_gap` must be one line of at most {MAX_REASON} characters");
        return Err(refuse(Code::ValidationFailed, &why));
    }
    let row = app.store.submit(Lift { gap: body.accept_gap }).await?;
    app.wake.notify();
    Ok(axum::Json(show(&app, Some(&row))))
}

/// A capture that a life of these books made which a restore lost.
#[derive(Serialize, ToSchema)]
pub struct LostCaptureView {
    /// PayPal's id of it.
    paypal_capture: String,
    /// `pending`, `booked` or `gone`.
    #[schema(value_type = String)]
    status: LostState,
    /// The invoice it carries.
    invoice_id: String,
    /// The tab that the invoice names.
    tab: String,
    /// The tab that it pays here.
    pays: Option<String>,
    /// Whose.
    owner: Option<String>,
    /// The settlement that it was for.
    settlement: String,
    /// What was captured.
    amount_micros: i64,
    /// What of it paid, when it was found, for lines that these books knew; the rest is in suspense.
    placed_micros: i64,
    /// When it was first seen.
    seen_at: String,
}

/// What was found in PayPal's records that these books did not know.
#[utoipa::path(get, path = "/v1/restore/captures", tag = "operator", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<LostCaptureView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn captures(
    State(app): State<App>,
    _: AsOperator,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<LostCaptureView>>> {
    let cursor = paging.cursor()?;
    let reader = app.store.reader();
    let page =
        reader.list::<LostCapture>("lost_captures", "", cursor.as_ref(), paging.limit()?, true)?;
    Ok(axum::Json(List::of(page, |row| LostCaptureView {
        status: row.state,
        tab: row.marks.tab.to_string(),
        pays: row.marks.pays.map(|tab| tab.to_string()),
        owner: row.owner.map(|owner| owner.to_string()),
        settlement: row.marks.settlement.to_string(),
        amount_micros: row.amount_micros.get(),
        placed_micros: row.placed_micros.get(),
        seen_at: row.seen_at.to_string(),
        invoice_id: row.marks.invoice_id,
        paypal_capture: row.marks.capture,
    })))
}

/// A purchase that a restore lost, known by its seller's report.
#[derive(Serialize, ToSchema)]
pub struct LostLineView {
    /// The purchase.
    purchase: String,
    /// Who reports.
    seller: String,
    /// `open`, `paid_from_suspense`, `paid_by_operator` or `refused`.
    status: &'static str,
    /// The capture that pays its seller.
    paypal_capture: Option<String>,
    /// What it was.
    listing: String,
    /// The quote that was accepted.
    quote: String,
    /// What is due.
    amount_micros: i64,
    /// When its seller claimed it.
    claimed_at: String,
    /// When it was reported here.
    reported_at: String,
}

fn line(row: LostLine) -> LostLineView {
    let (status, paypal_capture) = match row.state {
        LineState::Open => ("open", None),
        LineState::PaidFromSuspense { capture } => ("paid_from_suspense", Some(capture)),
        LineState::PaidByOperator => ("paid_by_operator", None),
        LineState::Refused => ("refused", None),
    };
    LostLineView {
        purchase: row.purchase.to_string(),
        seller: row.seller.to_string(),
        status,
        paypal_capture,
        listing: row.listing,
        quote: row.quote.to_string(),
        amount_micros: row.amount_micros.get(),
        claimed_at: row.claimed_at.to_string(),
        reported_at: row.reported_at.to_string(),
    }
}

/// Purchases that a restore lost and sellers reported, newest first.
#[utoipa::path(get, path = "/v1/restore/lines", tag = "operator", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<LostLineView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn lines(
    State(app): State<App>,
    _: AsOperator,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<LostLineView>>> {
    let cursor = paging.cursor()?;
    let reader = app.store.reader();
    let page = reader.list::<LostLine>("lost_lines", "", cursor.as_ref(), paging.limit()?, true)?;
    Ok(axum::Json(List::of(page, line)))
}

/// Who pays for a lost purchase.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LostDecision {
    /// `suspense`, `operator` or `nobody`.
    paid_by: String,
    /// With `suspense`: PayPal's id of the capture that was for it.
    #[serde(default)]
    paypal_capture: Option<String>,
}

/// The operator's decision about a lost purchase. The same decision again changes nothing.
#[utoipa::path(post, path = "/v1/restore/lines/{id}", tag = "operator", security(("key" = [])),
    params(("id" = String, Path, description = "pur_…")), request_body = LostDecision,
    responses((status = 200, body = LostLineView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn decide(
    State(app): State<App>,
    _: AsOperator,
    Path(text): Path<String>,
    Json(body): Json<LostDecision>,
) -> ApiResult<axum::Json<LostLineView>> {
    let purchase = id::<PurchaseId>(&text)?;
    let state = match (body.paid_by.as_str(), body.paypal_capture) {
        ("suspense", Some(capture)) => LineState::PaidFromSuspense { capture },
        ("operator", None) => LineState::PaidByOperator,
        ("nobody", None) => LineState::Refused,
        _ => {
            let why = "`paid_by` is `suspense` with a `paypal_capture`, `operator` or `nobody`";
            return Err(refuse(Code::ValidationFailed, why));
        }
    };
    let reader = app.store.reader();
    let first = reader.row::<LostLine>(LostLine::id_of(purchase))?;
    let known = match first.filter(|row| row.purchase == purchase) {
        Some(row) => Some(row),
        None => reader.row::<LostLine>(purchase)?,
    };
    let seller = known.ok_or_else(not_here)?.seller;
    let row = app.store.submit(DecideLost { purchase, seller, state }).await?;
    Ok(axum::Json(line(row)))
}
