//! The books as people read them: accounts, transfers, trial balance; each as CSV too.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use earnest_core::id::{AgentId, OwnerId, SellerId, TabId};
use earnest_core::ledger::{Account, AccountId, Subject};
use earnest_core::party::{Agent, Principal};
use earnest_core::tab::Tab;
use earnest_core::unit::Record;
use earnest_store::{AccountRow, Moved, MovedLeg, Step, TrialLine};
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{AsOperator, Caller, not_here};
use super::csv::{self, Format};
use super::error::ApiResult;
use super::read::{Query, page_limit, read_cursor};
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

/// Filters of `GET /v1/accounts`.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AccountQuery {
    /// How many at most; 1 to 500, 100 unless said.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u16>,
    /// What `next_cursor` of the page before said.
    cursor: Option<String>,
    /// Accounts whose name begins so, such as `tab:`.
    prefix: Option<String>,
    /// `csv` for a file that a spreadsheet reads; `json` otherwise.
    #[param(inline)]
    format: Option<Format>,
}

/// Which accounts are a caller's own: the operator's are all of them. An agent has none.
enum Own {
    All,
    Seller(SellerId),
    Owner { id: OwnerId, agents: BTreeSet<AgentId>, tabs: BTreeSet<TabId> },
}

impl Own {
    fn of(app: &App, caller: &Caller) -> ApiResult<Self> {
        Ok(match caller.0.principal {
            Principal::Operator => Self::All,
            Principal::Seller(id) => Self::Seller(id),
            Principal::Owner(id) => Self::Owner {
                id,
                agents: every::<Agent, _>(app, "agents", id, |row| row.id)?,
                tabs: every::<Tab, _>(app, "tabs", id, |row| row.id)?,
            },
            Principal::Agent(_) => return Err(not_here()),
        })
    }

    fn has(&self, account: Account) -> bool {
        match self {
            Self::All => true,
            Self::Seller(own) => match account {
                Account::SellerAccrued(id)
                | Account::SellerPayable(id)
                | Account::SellerDebt(id) => id == *own,
                _ => false,
            },
            Self::Owner { id: own, agents, tabs } => match account {
                Account::OwnerCredit(id) | Account::OwnerDebt(id) => id == *own,
                Account::TabOwed(id) => tabs.contains(&id),
                Account::Limit(Subject::Owner(id), _) => id == *own,
                Account::Limit(Subject::Agent(id), _) => agents.contains(&id),
                _ => false,
            },
        }
    }

    /// Where the names of own accounts begin, in order; none overlaps another.
    fn prefixes(&self) -> Vec<String> {
        let mut all = match self {
            Self::All => vec![String::new()],
            Self::Seller(id) => vec![format!("seller:{id}:")],
            Self::Owner { id, agents, tabs } => {
                let mut all = vec![format!("owner:{id}:"), format!("limit:{id}:")];
                all.extend(agents.iter().map(|agent| format!("limit:{agent}:")));
                all.extend(tabs.iter().map(|tab| format!("tab:{tab}:")));
                all
            }
        };
        all.sort();
        all
    }

    /// The name of an account; of somebody else's only what kind it is.
    fn name(&self, account: Account) -> String {
        let kind = match account {
            _ if self.has(account) => return account.to_string(),
            Account::OwnerCredit(_) => "owner:credit",
            Account::OwnerDebt(_) => "owner:debt",
            Account::TabOwed(_) => "tab:owed",
            Account::SellerAccrued(_) => "seller:accrued",
            Account::SellerPayable(_) => "seller:payable",
            Account::SellerDebt(_) => "seller:debt",
            Account::CaptureRefundable(_) => "capture:refundable",
            Account::Limit(..) => "limit",
            Account::MemoDay(_) => "memo",
            Account::PaypalCash
            | Account::PaypalFees
            | Account::OperatorFunds
            | Account::PlatformRevenue
            | Account::Losses
            | Account::Disputes
            | Account::Suspense
            | Account::ModelCosts
            | Account::ModelPayable
            | Account::Memo => return account.to_string(),
        };
        kind.to_owned()
    }
}

fn every<R: Record, K: Ord>(
    app: &App,
    list: &'static str,
    owner: OwnerId,
    key: impl Fn(&R) -> K,
) -> ApiResult<BTreeSet<K>> {
    let (mut all, mut cursor) = (BTreeSet::new(), None);
    loop {
        let reader = app.store.reader();
        let page = reader.list::<R>(list, &owner.to_string(), cursor.as_ref(), 500, false)?;
        all.extend(page.items.iter().map(&key));
        cursor = page.next;
        if cursor.is_none() {
            return Ok(all);
        }
    }
}

/// The rows of own accounts whose names begin as asked, in order, after a place. Only own names are
/// ever read, so that neither a row nor a cursor can tell of somebody else's.
fn own_accounts(
    app: &App,
    own: &Own,
    asked: &str,
    after: Option<&AccountId>,
    limit: usize,
) -> ApiResult<Vec<AccountRow>> {
    let mut rows = Vec::new();
    for prefix in own.prefixes() {
        let prefix = match (prefix.starts_with(asked), asked.starts_with(&prefix)) {
            (true, _) => prefix,
            (_, true) => asked.to_owned(),
            _ => continue,
        };
        let left = limit.saturating_sub(rows.len());
        if left == 0 {
            break;
        }
        rows.extend(app.store.reader().accounts(&format!("USD {prefix}"), after, left)?);
    }
    Ok(rows)
}

/// Accounts by name: the operator's view has all of them, an owner's or seller's its own.
#[utoipa::path(get, path = "/v1/accounts", tag = "ledger", security(("key" = [])), params(AccountQuery),
    responses((status = 200, description = "As JSON, or as CSV", content((List<AccountView> = "application/json"), (String = "text/csv"))),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn accounts(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Query(query): Query<AccountQuery>,
) -> ApiResult<Response> {
    let own = Own::of(&app, &caller)?;
    let limit = page_limit(query.limit, 100)?;
    let after = read_cursor::<AccountId>(query.cursor.as_deref())?;
    let asked = query.prefix.as_deref().unwrap_or_default();
    // One more than is shown tells whether there are more.
    let mut rows = own_accounts(&app, &own, asked, after.as_ref(), limit.saturating_add(1))?;
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next_cursor = rows.last().filter(|_| more).map(|row| row.id.to_string());
    let show = |row: &AccountRow| AccountView {
        name: row.id.account.to_string(),
        currency: row.id.currency.to_string(),
        memo: row.id.account.is_memo(),
        debits_pending_micros: row.totals.debits_pending.get(),
        debits_posted_micros: row.totals.debits_posted.get(),
        credits_pending_micros: row.totals.credits_pending.get(),
        credits_posted_micros: row.totals.credits_posted.get(),
    };
    let list = List { data: rows.iter().map(show).collect(), next_cursor };
    Ok(csv::answer("accounts", &headers, query.format, list))
}

impl csv::Columns for AccountView {
    const COLUMNS: &'static [&'static str] = &[
        "name",
        "currency",
        "memo",
        "debits_pending_micros",
        "debits_posted_micros",
        "credits_pending_micros",
        "credits_posted_micros",
    ];
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

impl csv::Columns for TransferView {
    const COLUMNS: &'static [&'static str] =
        &["id", "seq", "at", "cause", "step", "debit", "credit", "amount_micros", "currency"];
}

fn transfers_of(moved: &Moved, own: &Own) -> Vec<TransferView> {
    let step = match moved.step {
        Step::Moved => "moved",
        Step::Held => "held",
        Step::Posted => "posted",
        Step::Voided => "voided",
    };
    let cause = serde_json::to_value(moved.cause).ok();
    let cause = cause.as_ref().and_then(|cause| cause.as_str()).unwrap_or_default();
    let seen = |leg: &&MovedLeg| own.has(leg.debit.account) || own.has(leg.credit.account);
    let show = |leg: &MovedLeg| TransferView {
        id: moved.id.to_string(),
        seq: moved.seq,
        at: moved.at.to_string(),
        cause: cause.to_owned(),
        step: step.to_owned(),
        debit: own.name(leg.debit.account),
        credit: own.name(leg.credit.account),
        amount_micros: leg.amount.get(),
        currency: leg.debit.currency.to_string(),
    };
    moved.legs.iter().filter(seen).map(show).collect()
}

/// Filters of `GET /v1/transfers`.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TransferQuery {
    /// How many at most; 1 to 500, 100 unless said.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u16>,
    /// What `next_cursor` of the page before said.
    cursor: Option<String>,
    /// `csv` for a file that a spreadsheet reads; `json` otherwise.
    #[param(inline)]
    format: Option<Format>,
}

/// A place in the log: behind an entry, and behind the first few transfers of the entry after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    after: u64,
    skip: usize,
}

impl FromStr for Place {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (after, skip) = text.split_once('.').unwrap_or((text, "0"));
        Ok(Self { after: after.parse()?, skip: skip.parse()? })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.after, self.skip)
    }
}

/// How many entries of the log one request looks through for a caller's own.
const MOST_ENTRIES: usize = 20_000;

/// Own transfers after a place, in order, and where the rest begins.
fn own_transfers(
    app: &App,
    own: &Own,
    mut place: Place,
    limit: usize,
) -> ApiResult<(Vec<TransferView>, Option<Place>)> {
    let mut found: Vec<TransferView> = Vec::new();
    for _ in 0..MOST_ENTRIES / 500 {
        let page = app.store.reader().moved(place.after, 500)?;
        let mut rows = page.items.iter().flat_map(|moved| transfers_of(moved, own)).peekable();
        while let Some(first) = rows.peek().map(|row| row.seq) {
            let mut entry: Vec<TransferView> = Vec::new();
            while let Some(row) = rows.next_if(|row| row.seq == first) {
                entry.push(row);
            }
            // What of this entry was shown already can only be at the place where we began.
            let skip = if first == place.after.saturating_add(1) { place.skip } else { 0 };
            let left = limit.saturating_sub(found.len());
            let rest = entry.len().saturating_sub(skip);
            found.extend(entry.into_iter().skip(skip).take(left));
            if rest > left {
                let behind = first.saturating_sub(1);
                return Ok((found, Some(Place { after: behind, skip: skip.saturating_add(left) })));
            }
        }
        match page.next {
            Some(after) => place = Place { after, skip: 0 },
            None => return Ok((found, None)),
        }
    }
    Ok((found, Some(place)))
}

/// Transfers in the order they were booked. An owner or seller sees those of its own accounts, and
/// of the other side only what kind of account it is.
#[utoipa::path(get, path = "/v1/transfers", tag = "ledger", security(("key" = [])), params(TransferQuery),
    responses((status = 200, description = "As JSON, or as CSV", content((List<TransferView> = "application/json"), (String = "text/csv"))),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn transfers(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Query(query): Query<TransferQuery>,
) -> ApiResult<Response> {
    let own = Own::of(&app, &caller)?;
    let limit = page_limit(query.limit, 100)?;
    let place = read_cursor(query.cursor.as_deref())?.unwrap_or(Place { after: 0, skip: 0 });
    let (data, next) = own_transfers(&app, &own, place, limit)?;
    let list = List { data, next_cursor: next.map(|place| place.to_string()) };
    Ok(csv::answer("transfers", &headers, query.format, list))
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

impl csv::Columns for TrialView {
    const COLUMNS: &'static [&'static str] = &[
        "currency",
        "memo",
        "imbalance_micros",
        "pending_imbalance_micros",
        "debits_posted_micros",
        "debits_pending_micros",
    ];
}

/// How the trial balance is written.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TrialQuery {
    /// `csv` for a file that a spreadsheet reads; `json` otherwise.
    #[param(inline)]
    format: Option<Format>,
}

/// The trial balance.
#[utoipa::path(get, path = "/v1/trial-balance", tag = "ledger", security(("key" = [])), params(TrialQuery),
    responses((status = 200, description = "As JSON, or as CSV", content((Vec<TrialView> = "application/json"), (String = "text/csv"))),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn trial_balance(
    State(app): State<App>,
    _: AsOperator,
    headers: HeaderMap,
    Query(query): Query<TrialQuery>,
) -> ApiResult<Response> {
    let narrow = |sum: i128| i64::try_from(sum).unwrap_or(i64::MAX);
    let lines = app.store.reader().trial_balance()?;
    let show = |line: &TrialLine| TrialView {
        currency: line.currency.to_string(),
        memo: line.memo,
        imbalance_micros: narrow(line.posted),
        pending_imbalance_micros: narrow(line.pending),
        debits_posted_micros: narrow(line.debits_posted),
        debits_pending_micros: narrow(line.debits_pending),
    };
    let data: Vec<TrialView> = lines.iter().map(show).collect();
    if csv::wanted(&headers, query.format) {
        return Ok(csv::of_rows("trial-balance", &data));
    }
    Ok(axum::Json(data).into_response())
}
