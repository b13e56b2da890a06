//! Sellers: creating them, their origins, their reports, their earnings.

use axum::extract::State;
use earnest_core::admin::{CreateSeller, Creation};
use earnest_core::id::SellerId;
use earnest_core::ledger::Account;
use earnest_core::money::{AmountInput, Micros};
use earnest_core::party::{Principal, Seller};
use earnest_core::problem::{Code, Refusal};
use earnest_core::purchase::Purchase;
use earnest_core::time::Timestamp;
use earnest_core::voucher::{Fate, MAX_REPORTS, Report, ReportAnswer};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::auth::{AsOperator, AsSeller, AsSellerOrOperator, not_here};
use super::error::{ApiResult, refuse};
use super::parties::{NewKey, new_key};
use super::read::{Json, Paging, Path, Query, id, idempotency_key, is_line};
use super::view::{self, KeyView, List, Problem, PurchaseView, SellerView};
use crate::app::App;
use crate::flow::{origin, report as flow};

fn show(app: &App, row: &Seller) -> ApiResult<SellerView> {
    let reader = app.store.reader();
    let accrued = reader.totals(&Account::SellerAccrued(row.id).usd())?;
    let payable = reader.totals(&Account::SellerPayable(row.id).usd())?;
    let pending = accrued.credits_pending.get();
    Ok(view::seller(row, accrued.available().get(), pending, payable.available().get()))
}

/// What a seller starts from.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSeller {
    /// What people call it.
    name: String,
    /// Where its earnings go: an address or a PayPal id.
    payout_recipient: Option<String>,
    /// What the platform keeps of each price, in millionths; 0 unless said, at most 500000.
    #[serde(default)]
    commission_ppm: u32,
}

/// Creates a seller.
#[utoipa::path(post, path = "/v1/sellers", tag = "operator", security(("key" = [])), request_body = NewSeller,
    params(("Idempotency-Key" = Option<String>, Header, description = "One key for one seller")),
    responses((status = 201, body = SellerView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn create(
    State(app): State<App>,
    _: AsOperator,
    headers: HeaderMap,
    Json(body): Json<NewSeller>,
) -> ApiResult<(StatusCode, axum::Json<SellerView>)> {
    if body.payout_recipient.as_deref().is_some_and(|text| !is_line(text, 254)) {
        let why = "`payout_recipient` has 1 to 254 visible characters";
        return Err(refuse(Code::ValidationFailed, why));
    }
    let creation =
        Creation { by: Principal::Operator, name: body.name, key: idempotency_key(&headers)? };
    let unit = CreateSeller {
        creation,
        id: SellerId::new(app.seed()),
        payout_recipient: body.payout_recipient,
        commission_ppm: body.commission_ppm,
    };
    let seller = app.store.submit(unit).await?;
    Ok((StatusCode::CREATED, axum::Json(show(&app, &seller)?)))
}

/// Sellers, newest first.
#[utoipa::path(get, path = "/v1/sellers", tag = "operator", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<SellerView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn list(
    State(app): State<App>,
    _: AsOperator,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<SellerView>>> {
    let cursor = paging.cursor()?;
    let page =
        app.store.reader().list::<Seller>("sellers", "", cursor.as_ref(), paging.limit()?, true)?;
    let data = page.items.iter().map(|row| show(&app, row)).collect::<ApiResult<_>>()?;
    Ok(axum::Json(List { data, next_cursor: page.next.map(|cursor| cursor.to_string()) }))
}

/// `me` is whoever asks.
fn seller_id(AsSellerOrOperator(caller): &AsSellerOrOperator, text: &str) -> ApiResult<SellerId> {
    match (caller.0.principal, text) {
        (Principal::Seller(own), "me") => Ok(own),
        (Principal::Seller(own), other) if other.parse() == Ok(own) => Ok(own),
        (Principal::Operator, other) => id(other),
        _ => Err(not_here()),
    }
}

/// One seller with its earnings; `me` is whoever asks.
#[utoipa::path(get, path = "/v1/sellers/{id}", tag = "seller", security(("key" = [])),
    params(("id" = String, Path, description = "sel_… or me")),
    responses((status = 200, body = SellerView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(app): State<App>,
    caller: AsSellerOrOperator,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<SellerView>> {
    let row = app.store.reader().row::<Seller>(seller_id(&caller, &text)?)?.ok_or_else(not_here)?;
    Ok(axum::Json(show(&app, &row)?))
}

/// Makes a key for a seller. It is shown once.
#[utoipa::path(post, path = "/v1/sellers/{id}/keys", tag = "operator", security(("key" = [])), request_body = NewKey,
    params(("id" = String, Path, description = "sel_… or me")),
    responses((status = 201, body = KeyView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn add_key(
    State(app): State<App>,
    caller: AsSellerOrOperator,
    Path(text): Path<String>,
    Json(body): Json<NewKey>,
) -> ApiResult<(StatusCode, axum::Json<KeyView>)> {
    let seller = seller_id(&caller, &text)?;
    new_key(&app, Principal::Seller(seller), None, &body).await
}

/// Where a seller's resources live.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OriginBody {
    /// `https://host[:port]`.
    origin: String,
}

/// Registers an origin. Quotes under it count once it is proved.
#[utoipa::path(post, path = "/v1/sellers/{id}/origins", tag = "seller", security(("key" = [])), request_body = OriginBody,
    params(("id" = String, Path, description = "me")),
    responses((status = 200, body = SellerView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn put_origin(
    State(app): State<App>,
    caller: AsSellerOrOperator,
    Path(text): Path<String>,
    Json(body): Json<OriginBody>,
) -> ApiResult<axum::Json<SellerView>> {
    let seller = seller_id(&caller, &text)?;
    let row = origin::register(&app, seller, &body.origin).await?;
    Ok(axum::Json(show(&app, &row)?))
}

/// Proves an origin: it has to list the seller's id under `/.well-known/earnest-origin`.
#[utoipa::path(post, path = "/v1/sellers/{id}/origins/prove", tag = "seller", security(("key" = [])), request_body = OriginBody,
    params(("id" = String, Path, description = "me")),
    responses((status = 200, body = SellerView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "The origin gives no usable answer", body = Problem, content_type = "application/problem+json")))]
pub async fn prove_origin(
    State(app): State<App>,
    caller: AsSellerOrOperator,
    Path(text): Path<String>,
    Json(body): Json<OriginBody>,
) -> ApiResult<axum::Json<SellerView>> {
    let seller = seller_id(&caller, &text)?;
    let row = origin::prove(&app, seller, &body.origin).await?;
    Ok(axum::Json(show(&app, &row)?))
}

/// Lines billed for a seller, newest first.
#[utoipa::path(get, path = "/v1/sellers/{id}/lines", tag = "seller", security(("key" = [])),
    params(("id" = String, Path, description = "sel_… or me"), Paging),
    responses((status = 200, body = List<PurchaseView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn lines(
    State(app): State<App>,
    caller: AsSellerOrOperator,
    Path(text): Path<String>,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<PurchaseView>>> {
    let scope = seller_id(&caller, &text)?.to_string();
    let cursor = paging.cursor()?;
    let reader = app.store.reader();
    let page =
        reader.list::<Purchase>("seller_lines", &scope, cursor.as_ref(), paging.limit()?, true)?;
    Ok(axum::Json(List::of(page, |row| view::purchase_for_seller(&row))))
}

/// What a seller says became of a voucher.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportBody {
    /// The voucher itself.
    voucher: String,
    /// `redeemed`, `failed` or `serving`.
    #[schema(value_type = String)]
    fate: Fate,
    /// When the seller claimed the voucher, at or before its expiry.
    #[schema(value_type = String)]
    claimed_at: Timestamp,
    /// What is due, where the price was a ceiling: `"$0.25"` or micro-units, 0 for nothing.
    #[schema(value_type = Option<serde_json::Value>)]
    amount_micros: Option<Box<RawValue>>,
}

/// Reports, at most 500.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportsBody {
    /// One a voucher.
    #[schema(max_items = 500)]
    reports: Vec<ReportBody>,
}

/// What became of a report.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only described; the real shape is the core's")]
struct ReportedBody {
    /// The voucher, where it could be read.
    #[schema(required = false, nullable = false)]
    jti: Option<String>,
    /// The purchase, where it could be read.
    #[schema(required = false, nullable = false)]
    purchase: Option<String>,
    /// `billed`, `released`, `late_billed`, `late_unbilled`, `already_billed`, `serving`, `rejected`,
    /// `kept` (the books were restored and do not know the purchase: the operator decides), or
    /// `again`: nothing was recorded, send this one again.
    outcome: String,
    /// Why it was rejected or is to be sent again.
    #[schema(required = false, nullable = false)]
    code: Option<String>,
    /// What was billed.
    #[schema(required = false, nullable = false)]
    amount_micros: Option<i64>,
}

/// The answer to a batch.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only described; the real shape is the core's")]
struct ReportedBatch {
    /// Of this installation. When it changes, send again everything that was kept.
    epoch: String,
    /// One a report, in order.
    results: Vec<ReportedBody>,
}

/// The amount of a report. Unlike a price it may be nothing.
fn due(text: &RawValue, most: Micros) -> Result<Micros, Refusal> {
    if text.get() == "0" {
        return Ok(Micros::ZERO);
    }
    let invalid = |_| Refusal::new(Code::AmountInvalid, "that is not an amount");
    let amount: AmountInput = serde_json::from_str(text.get()).map_err(invalid)?;
    Ok(amount.price(most)?)
}

/// What became of vouchers: one result a report, each on its own; a report that is not acceptable,
/// or fails here, holds up no other.
#[utoipa::path(post, path = "/v1/vouchers/report", tag = "seller", security(("key" = [])),
    request_body = ReportsBody,
    responses((status = 200, description = "One result a report, in order", body = ReportedBatch),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "Nothing was taken in: send all of it again", body = Problem, content_type = "application/problem+json")))]
pub async fn report(
    State(app): State<App>,
    AsSeller(seller): AsSeller,
    Json(batch): Json<ReportsBody>,
) -> ApiResult<axum::Json<ReportAnswer>> {
    if batch.reports.len() > MAX_REPORTS {
        let refusal = Refusal::new(Code::ValidationFailed, "a batch holds at most 500 reports");
        return Err(refusal.with("limit", MAX_REPORTS).into());
    }
    let most = app.settings.max_price_micros;
    let read = |report: ReportBody| {
        let amount = report.amount_micros.as_deref();
        Ok(Report {
            amount_micros: amount.map(|text| due(text, most)).transpose()?,
            voucher: report.voucher,
            fate: report.fate,
            claimed_at: report.claimed_at,
        })
    };
    let reports = batch.reports.into_iter().map(read).collect();
    Ok(axum::Json(flow::take_in(&app, seller, reports).await?))
}
