//! What the operator acknowledges of PayPal's records: lines that are known, and move no money of these
//! books.

use axum::extract::State;
use earnest_core::cash::is_paypal_id;
use earnest_core::problem::Code;
use earnest_core::reconcile::{Acknowledge, Acknowledged, Covered};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::AsOperator;
use super::cash::key;
use super::error::{ApiResult, refuse};
use super::read::{Json, Paging, Query};
use super::view::{List, Problem};
use crate::app::App;

/// What is acknowledged.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAcknowledgement {
    /// PayPal's id of the transaction, as the comparison lists it.
    paypal_id: String,
    /// Why nothing is to be booked: one line of up to 500 characters, kept for good.
    reason: String,
}

/// What was acknowledged.
#[derive(Serialize, ToSchema)]
pub struct AcknowledgementView {
    /// PayPal's id of the transaction.
    paypal_id: String,
    /// Why nothing is booked.
    reason: String,
    /// The key of whoever said so.
    by: String,
    /// When.
    at: String,
    /// What it covers, and nothing else under that id: `code`, `currency`, `gross_micros`.
    #[schema(value_type = Vec<serde_json::Value>)]
    lines: Vec<Covered>,
}

fn show(row: Acknowledged) -> AcknowledgementView {
    AcknowledgementView {
        paypal_id: row.paypal_id,
        reason: row.reason,
        by: row.by,
        at: row.at.to_string(),
        lines: row.lines,
    }
}

/// Acknowledges what the last comparison lists under an id: a movement in a currency that these books
/// do not keep. What moves money of theirs is refused; it has to be booked.
#[utoipa::path(post, path = "/v1/reconciliation/acknowledgements", tag = "operator", security(("key" = [])),
    request_body = NewAcknowledgement,
    params(("Idempotency-Key" = String, Header, description = "One key for one wish")),
    responses((status = 201, body = AcknowledgementView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn acknowledge(
    State(app): State<App>,
    AsOperator { key: by }: AsOperator,
    headers: HeaderMap,
    Json(body): Json<NewAcknowledgement>,
) -> ApiResult<(StatusCode, axum::Json<AcknowledgementView>)> {
    if !is_paypal_id(&body.paypal_id) {
        let why = "`paypal_id` is PayPal's transaction id: up to 64 letters, digits and hyphens";
        return Err(refuse(Code::ValidationFailed, why));
    }
    let key = key(&headers, "acknowledge", &[body.paypal_id.clone(), body.reason.clone()])?;
    let by = by.map_or_else(|| "operator".to_owned(), |key| key.to_string());
    let unit = Acknowledge { paypal_id: body.paypal_id, reason: body.reason, by, key };
    let row = app.store.submit(unit).await?;
    Ok((StatusCode::CREATED, axum::Json(show(row))))
}

/// What was acknowledged, newest first.
#[utoipa::path(get, path = "/v1/reconciliation/acknowledgements", tag = "operator", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<AcknowledgementView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn acknowledgements(
    State(app): State<App>,
    _: AsOperator,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<AcknowledgementView>>> {
    let (cursor, limit) = (paging.cursor()?, paging.limit()?);
    let reader = app.store.reader();
    let page = reader.list::<Acknowledged>("acknowledgements", "", cursor.as_ref(), limit, true)?;
    Ok(axum::Json(List::of(page, show)))
}
