//! The books as people read them: accounts, transfers, trial balance; each as CSV too.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use earnest_core::party::Principal;
use earnest_core::problem::Code;
use earnest_store::{Moved, Step};
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Caller, not_here};
use super::csv;
use super::error::{ApiResult, refuse};
use super::read::Query;
use super::view::{List, Problem};
use crate::app::App;

/// An account.
#[derive(Serialize, ToSchema)]
pub struct AccountView {
    /// Such as `tab:tab_…:owed`.
    name: String,
    /// The currency.
    currency: String,
    /// Whether it only keeps count and holds no money.
    memo: bool,
    /// Reserved on the debit side.
    debits_pending_micros: i64,
    /// Final on the debit side.
    debits_posted_micros: i64,
    /// Reserved on the credit side.
    credits_pending_micros: i64,
    /// Final on the credit side.
    credits_posted_micros: i64,
}

/// Filters of the ledger's lists.
#[derive(Deserialize, IntoParams)]
pub struct LedgerQuery {
    /// How many at most; 1 to 500.
    limit: Option<u16>,
    /// What `next_cursor` of the page before said.
    cursor: Option<String>,
    /// Accounts whose name begins so, such as `tab:`.
    prefix: Option<String>,
    /// `csv` for a file that a spreadsheet reads.
    format: Option<String>,
}

impl LedgerQuery {
    fn limit(&self) -> usize {
        usize::from(self.limit.unwrap_or(100).clamp(1, 500))
    }
}

/// Whether this caller may see an account by its name: the operator all, others their own.
fn may_see(app: &App, caller: &Caller, name: &str) -> bool {
    let own = |id: String| name.split(':').any(|part| part == id);
    match caller.0.principal {
        Principal::Operator => true,
        Principal::Seller(id) => own(id.to_string()),
        Principal::Owner(id) => {
            let tab = name.strip_prefix("tab:").and_then(|rest| rest.split(':').next());
            let tab =
                tab.and_then(|id| app.store.reader().row::<earnest_core::tab::Tab>(id).ok()?);
            own(id.to_string()) || tab.is_some_and(|tab| tab.owner == id)
        }
        Principal::Agent(_) => false,
    }
}

/// Accounts by name.
#[utoipa::path(get, path = "/v1/accounts", tag = "ledger", security(("key" = [])), params(LedgerQuery),
    responses((status = 200, body = List<AccountView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn accounts(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Query(query): Query<LedgerQuery>,
) -> ApiResult<Response> {
    let prefix = format!("USD {}", query.prefix.as_deref().unwrap_or_default());
    let parse = |text: &String| {
        text.parse()
            .map_err(|_| refuse(Code::RequestMalformed, "`cursor` is not one that was given"))
    };
    let after = query.cursor.as_ref().map(parse).transpose()?;
    let rows = app.store.reader().accounts(&prefix, after.as_ref(), query.limit())?;
    let next_cursor = if rows.len() < query.limit() { None } else { rows.last() };
    let next_cursor = next_cursor.map(|row| row.id.to_string());
    let mut data = Vec::new();
    for row in rows {
        let name = row.id.account.to_string();
        if may_see(&app, &caller, &name) {
            data.push(AccountView {
                name,
                currency: row.id.currency.to_string(),
                memo: row.id.account.is_memo(),
                debits_pending_micros: row.totals.debits_pending.get(),
                debits_posted_micros: row.totals.debits_posted.get(),
                credits_pending_micros: row.totals.credits_pending.get(),
                credits_posted_micros: row.totals.credits_posted.get(),
            });
        }
    }
    if csv::wanted(&headers, query.format.as_deref()) {
        return Ok(csv::of_rows("accounts", &data, next_cursor.as_deref()));
    }
    Ok(axum::Json(List { data, next_cursor }).into_response())
}

/// One movement between two accounts.
#[derive(Serialize, ToSchema)]
pub struct TransferView {
    /// The chain it belongs to.
    id: String,
    /// The place in the log.
    seq: u64,
    /// When.
    at: String,
    /// Why: `tab_line`, `settlement`, `paypal_fee` …
    cause: String,
    /// `moved`, `held`, `posted` or `voided`.
    step: String,
    /// The account debited.
    debit: String,
    /// The account credited.
    credit: String,
    /// How much.
    amount_micros: i64,
    /// The currency.
    currency: String,
}

fn transfers_of(moved: &Moved) -> Vec<TransferView> {
    let step = match moved.step {
        Step::Moved => "moved",
        Step::Held => "held",
        Step::Posted => "posted",
        Step::Voided => "voided",
    };
    let cause = serde_json::to_value(moved.cause).ok();
    let cause = cause.as_ref().and_then(|cause| cause.as_str()).unwrap_or_default();
    let show = |leg: &earnest_store::MovedLeg| TransferView {
        id: moved.id.to_string(),
        seq: moved.seq,
        at: moved.at.to_string(),
        cause: cause.to_owned(),
        step: step.to_owned(),
        debit: leg.debit.account.to_string(),
        credit: leg.credit.account.to_string(),
        amount_micros: leg.amount.get(),
        currency: leg.debit.currency.to_string(),
    };
    moved.legs.iter().map(show).collect()
}

/// Transfers in the order they were booked. An owner or seller sees those of its own accounts.
#[utoipa::path(get, path = "/v1/transfers", tag = "ledger", security(("key" = [])), params(LedgerQuery),
    responses((status = 200, body = List<TransferView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn transfers(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Query(query): Query<LedgerQuery>,
) -> ApiResult<Response> {
    if matches!(caller.0.principal, Principal::Agent(_)) {
        return Err(not_here());
    }
    let after = match &query.cursor {
        None => 0,
        Some(text) => text
            .parse()
            .map_err(|_| refuse(Code::RequestMalformed, "`cursor` is not one that was given"))?,
    };
    let page = app.store.reader().moved(after, query.limit())?;
    let all = page.items.iter().flat_map(transfers_of);
    let seen = |row: &TransferView| {
        may_see(&app, &caller, &row.debit) || may_see(&app, &caller, &row.credit)
    };
    let data: Vec<TransferView> = all.filter(seen).collect();
    let next_cursor = page.next.map(|seq| seq.to_string());
    if csv::wanted(&headers, query.format.as_deref()) {
        return Ok(csv::of_rows("transfers", &data, next_cursor.as_deref()));
    }
    Ok(axum::Json(List { data, next_cursor }).into_response())
}

/// The sum of all accounts of a currency; memo accounts apart.
#[derive(Serialize, ToSchema)]
pub struct TrialView {
    /// The currency.
    currency: String,
    /// Whether this is the sum of the memo accounts.
    memo: bool,
    /// Debits less credits, posted: 0 in books that are right.
    imbalance_micros: i64,
    /// Debits less credits, pending: 0 in books that are right.
    pending_imbalance_micros: i64,
    /// All debits posted.
    debits_posted_micros: i64,
    /// All debits pending.
    debits_pending_micros: i64,
}

/// The trial balance.
#[utoipa::path(get, path = "/v1/trial-balance", tag = "ledger", security(("key" = [])), params(LedgerQuery),
    responses((status = 200, body = Vec<TrialView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn trial_balance(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Query(query): Query<LedgerQuery>,
) -> ApiResult<Response> {
    caller.operator()?;
    let narrow = |sum: i128| i64::try_from(sum).unwrap_or(i64::MAX);
    let lines = app.store.reader().trial_balance()?;
    let data: Vec<TrialView> = lines
        .iter()
        .map(|line| TrialView {
            currency: line.currency.to_string(),
            memo: line.memo,
            imbalance_micros: narrow(line.posted),
            pending_imbalance_micros: narrow(line.pending),
            debits_posted_micros: narrow(line.debits_posted),
            debits_pending_micros: narrow(line.debits_pending),
        })
        .collect();
    if csv::wanted(&headers, query.format.as_deref()) {
        return Ok(csv::of_rows("trial-balance", &data, None));
    }
    Ok(axum::Json(data).into_response())
}
