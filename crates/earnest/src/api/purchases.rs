//! Buying, and what was bought: every purchase is a row, those that were refused too.

use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use earnest_core::authorize::{
    ApprovalNeeded, AuthorizeRequest, Authorized, Outcome, is_request_id,
};
use earnest_core::id::{OwnerId, PurchaseId};
use earnest_core::party::Principal;
use earnest_core::problem::{Code, LocalCode, Refusal};
use earnest_core::purchase::Purchase;
use earnest_core::quote::MAX_QUOTE_LIFE_SECONDS;
use earnest_core::receipt::{Receipt, SellerLines};
use earnest_core::settlement::Settlement;
use earnest_core::time::seconds_between;
use earnest_store::Cursor;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{AsAgent, Caller, not_here};
use super::csv::{self, Format};
use super::error::{ApiError, ApiResult, refuse};
use super::read::{Json, Path, Query, id, idempotency_key, page_limit, read_cursor};
use super::view::{self, List, Problem, PurchaseView};
use crate::app::App;
use crate::flow::purchase as flow;
use crate::flow::receipt::sign_lines;

/// How long an agent should wait before it repeats a request that waits for its owner, at most.
const APPROVAL_POLL_SECONDS: i64 = 5;

static REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// `POST /v1/authorize` in the description; the real shape is the core's.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only described")]
struct AuthorizeBody {
    /// The seller's quote, as the 402 held it.
    quote: serde_json::Value,
    /// The most you want to pay: `"$0.25"` or an integer of micro-units.
    max_price: serde_json::Value,
    /// One id for one thing you want to buy; or the header `Idempotency-Key`.
    request_id: Option<String>,
}

/// 201.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only described")]
struct AuthorizedBody {
    /// The purchase that holds the money.
    purchase: String,
    /// What the seller wants to see: `Authorization: Tab <voucher>`.
    voucher: String,
    /// When the voucher stops being accepted.
    expires_at: String,
    /// What is held.
    amount_micros: i64,
    /// The currency.
    currency: String,
}

/// 202.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only described")]
struct ApprovalNeededBody {
    /// Always `approval_required`.
    status: String,
    /// The waiting purchase.
    purchase: String,
    /// The question put to the owner.
    approval_id: String,
    /// Where the owner answers it.
    approval_url: String,
    /// When the question expires.
    expires_at: String,
    /// How long to wait before repeating.
    retry_after_s: i64,
    /// Why it waits.
    detail: String,
}

/// Buys: a voucher, a question to the owner, or a refusal with its numbers.
#[utoipa::path(post, path = "/v1/authorize", tag = "agent", security(("key" = [])),
    request_body = AuthorizeBody,
    params(("Idempotency-Key" = Option<String>, Header, description = "Stands in for `request_id`")),
    responses(
        (status = 201, description = "The money is held", body = AuthorizedBody),
        (status = 200, description = "Resolved before; shown as it is now", body = PurchaseView),
        (status = 202, description = "The owner has to answer first", body = ApprovalNeededBody),
        (status = "4XX", description = "Refused; nothing is held", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "Not carried out", body = Problem, content_type = "application/problem+json")))]
pub async fn authorize(
    State(app): State<App>,
    AsAgent { agent, owner, key }: AsAgent,
    headers: HeaderMap,
    Json(request): Json<AuthorizeRequest>,
) -> ApiResult<Response> {
    let request_id = request_id(&headers, request.request_id)?;
    let most = app.settings.max_price_micros;
    let quote = request.quote.read(most)?;
    let max_price = request.max_price.price(most).map_err(Refusal::from)?;
    if seconds_between(app.now(), quote.expires_at) > MAX_QUOTE_LIFE_SECONDS {
        let why = "the quote is good for more than a day: ask the seller for a fresh one";
        return Err(refuse(Code::ValidationFailed, why));
    }
    let buyer = flow::Buyer { agent, owner, key };
    let answer = flow::authorize(&app, buyer, quote, max_price, request_id).await?;
    let mut response = match answer.outcome {
        Outcome::Held(purchase) => held(&app, &purchase)?,
        Outcome::Waiting(_, approval) => waiting(&app, &approval)?,
        Outcome::Denied(_, refusal) => ApiError(refusal).into_response(),
        // While it lives, the same id returns the same voucher, used or not: the seller tells.
        Outcome::Resolved(purchase) if purchase.voucher_lives(app.now()) => held(&app, &purchase)?,
        Outcome::Resolved(purchase) => axum::Json(view::purchase(&purchase)).into_response(),
    };
    if answer.replayed {
        response.headers_mut().insert(REPLAYED.clone(), HeaderValue::from_static("true"));
    }
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn request_id(headers: &HeaderMap, body: Option<String>) -> ApiResult<String> {
    let header = idempotency_key(headers)?;
    match (header, body) {
        (Some(header), Some(body)) if header != body => Err(refuse(
            Code::RequestMalformed,
            "`request_id` and the header Idempotency-Key differ",
        )),
        (Some(id), _) => Ok(id),
        (None, Some(id)) if is_request_id(&id) => Ok(id),
        (None, Some(_)) => Err(refuse(
            Code::RequestMalformed,
            "`request_id` has 1 to 128 visible ASCII characters",
        )),
        (None, None) => {
            Err(Refusal::new(Code::IdempotencyKeyRequired, "a purchase needs a `request_id`")
                .next("use one id for one thing you want to buy, and repeat it with every retry")
                .into())
        }
    }
}

fn held(app: &App, purchase: &Purchase) -> ApiResult<Response> {
    let voucher = flow::voucher(app, purchase)?;
    let expires_at =
        purchase.voucher.as_ref().map_or(purchase.updated_at, |issue| issue.expires_at);
    let body = Authorized {
        purchase: purchase.id,
        voucher,
        expires_at,
        amount_micros: purchase.price_micros,
        currency: purchase.currency,
    };
    Ok((StatusCode::CREATED, axum::Json(body)).into_response())
}

fn waiting(app: &App, approval: &earnest_core::approval::Approval) -> ApiResult<Response> {
    let left = seconds_between(app.now(), approval.expires_at).max(1);
    let retry_after_s = APPROVAL_POLL_SECONDS.min(left);
    let location = format!("/v1/approvals/{}", approval.id);
    let body = ApprovalNeeded {
        status: LocalCode::ApprovalRequired.as_str().to_owned(),
        purchase: approval.purchase,
        approval_id: approval.id,
        approval_url: format!("{}/approvals/{}", app.public_url, approval.id),
        expires_at: approval.expires_at,
        retry_after_s,
        detail: approval.why.clone(),
    };
    let headers = [(header::LOCATION, location), (header::RETRY_AFTER, retry_after_s.to_string())];
    Ok((StatusCode::ACCEPTED, headers, axum::Json(body)).into_response())
}

/// Filters of `GET /v1/purchases`.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PurchaseQuery {
    /// How many at most; 1 to 500, 50 unless said.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u16>,
    /// What `next_cursor` of the page before said.
    cursor: Option<String>,
    /// For the operator: whose.
    owner: Option<String>,
    /// `csv` for a file that a spreadsheet reads; `json` otherwise.
    #[param(inline)]
    format: Option<Format>,
}

/// The owner whose purchases are meant: the caller's own, or the one the operator names.
fn whose(caller: &Caller, named: Option<&str>) -> ApiResult<OwnerId> {
    match (caller.0.owner, named) {
        (Some(own), None) => Ok(own),
        (Some(own), Some(named)) if named.parse() == Ok(own) => Ok(own),
        (Some(_), Some(_)) => Err(not_here()),
        (None, Some(named)) => id(named),
        (None, None) => Err(refuse(Code::ValidationFailed, "the operator names the `owner`")),
    }
}

/// Purchases, newest first, those that were refused or wait included.
#[utoipa::path(get, path = "/v1/purchases", tag = "agent", security(("key" = [])), params(PurchaseQuery),
    responses((status = 200, description = "As JSON, or as CSV", content((List<PurchaseView> = "application/json"), (String = "text/csv"))),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn list(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Query(query): Query<PurchaseQuery>,
) -> ApiResult<Response> {
    let limit = page_limit(query.limit, 50)?;
    let cursor = read_cursor::<Cursor>(query.cursor.as_deref())?;
    let named = query.owner.as_deref();
    let reader = app.store.reader();
    let all = |list, scope: &dyn std::fmt::Display| {
        reader.list::<Purchase>(list, &scope.to_string(), cursor.as_ref(), limit, true)
    };
    let list = match caller.0.principal {
        Principal::Seller(_) if named.is_some() => return Err(not_here()),
        Principal::Seller(seller) => {
            List::of(all("seller_lines", &seller)?, |row| view::purchase_for_seller(&row))
        }
        Principal::Agent(agent) => {
            // Whoever names an owner names its own.
            whose(&caller, named)?;
            let page = all("purchases.agent", &agent)?;
            List::try_of(page, |row| view::purchase_now(&app, &row))?
        }
        Principal::Owner(_) | Principal::Operator => {
            let page = all("purchases", &whose(&caller, named)?)?;
            List::try_of(page, |row| view::purchase_now(&app, &row))?
        }
    };
    Ok(csv::answer("purchases", &headers, query.format, list))
}

fn find(app: &App, caller: &Caller, text: &str) -> ApiResult<Purchase> {
    let row = app.store.reader().row::<Purchase>(id::<PurchaseId>(text)?)?;
    let seen = |row: &Purchase| match caller.0.principal {
        Principal::Agent(agent) => row.agent == agent,
        Principal::Seller(seller) => row.seller == seller && row.voucher.is_some(),
        _ => caller.sees_owner(row.owner),
    };
    row.filter(seen).ok_or_else(not_here)
}

/// One purchase.
#[utoipa::path(get, path = "/v1/purchases/{id}", tag = "agent", security(("key" = [])),
    params(("id" = String, Path, description = "pur_…")),
    responses((status = 200, body = PurchaseView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(app): State<App>,
    caller: Caller,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<PurchaseView>> {
    let row = find(&app, &caller, &text)?;
    Ok(axum::Json(match caller.0.principal {
        Principal::Seller(_) => view::purchase_for_seller(&row),
        _ => view::purchase_now(&app, &row)?,
    }))
}

/// A seller's lines on a receipt.
#[derive(Serialize, ToSchema)]
pub struct SellerLinesView {
    /// The signed statement; `earnest receipt verify` checks it.
    lines: String,
    /// What it states.
    #[schema(value_type = serde_json::Value)]
    claims: SellerLines,
    /// Where the keys are.
    verify: String,
}

/// The receipt of the settlement that lists a purchase. Its owner, the agent and the operator are
/// redirected to its public address. The seller gets its own lines of it, signed and bound to the
/// receipt by hash: the others are none of its business.
#[utoipa::path(get, path = "/v1/purchases/{id}/receipt", tag = "receipt", security(("key" = [])),
    params(("id" = String, Path, description = "pur_…")),
    responses((status = 200, description = "For the seller", body = SellerLinesView),
        (status = 303, description = "The receipt's public address"),
        (status = "4XX", description = "Not settled yet, or no such purchase", body = Problem, content_type = "application/problem+json")))]
pub async fn receipt(
    State(app): State<App>,
    caller: Caller,
    Path(text): Path<String>,
) -> ApiResult<Response> {
    let row = find(&app, &caller, &text)?;
    let pending = || refuse(Code::NotFound, "the purchase is not on a signed receipt yet");
    let (Some(tab), Some(line)) = (row.tab, row.line) else { return Err(pending()) };
    let settlement = settlement_of(&app, tab, line)?.ok_or_else(pending)?;
    let receipt = settlement.receipt.ok_or_else(pending)?;
    let receipt = app.store.reader().row::<Receipt>(receipt)?.ok_or_else(pending)?;
    let Principal::Seller(seller) = caller.0.principal else {
        return Ok(Redirect::to(&format!("/r/{}", receipt.token)).into_response());
    };
    let (lines, claims) = sign_lines(&app, &receipt, seller).map_err(|error| {
        tracing::error!(%error, "a seller's lines were not signed");
        refuse(Code::Internal, "the lines could not be signed")
    })?;
    let verify = format!("{}/.well-known/jwks.json", app.public_url);
    Ok(axum::Json(SellerLinesView { lines, claims, verify }).into_response())
}

/// The captured settlement that lists a line: of its own tab, or of the tab it was carried to.
fn settlement_of(
    app: &App,
    tab: earnest_core::id::TabId,
    line: u64,
) -> ApiResult<Option<Settlement>> {
    let reader = app.store.reader();
    let lists = |settlement: &Settlement| {
        let holds = |range: &earnest_core::tab::LineRange| {
            range.tab == tab && range.from < line && line <= range.to
        };
        settlement.is_captured() && settlement.lines.iter().any(holds)
    };
    let mut on = Some(tab);
    // A rest is carried from tab to tab; the chain is as long as there are tabs in between.
    for _ in 0..100 {
        let Some(id) = on else { return Ok(None) };
        let scope = id.to_string();
        let page = reader.list::<Settlement>("tab_settlements", &scope, None, 500, true)?;
        if let Some(found) = page.items.into_iter().find(lists) {
            return Ok(Some(found));
        }
        on = reader.row::<earnest_core::tab::Tab>(id)?.and_then(|tab| tab.carried_to);
    }
    Ok(None)
}
