//! Transaction Search and balances: the books as they were some hours ago.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::answer::{Detail, Outcome, Problem};
use crate::books::{Row, RowKind, RowStatus};
use crate::call::Call;
use crate::clock::{plus_seconds, rfc3339};
use crate::faults::{Effect, Moment};
use crate::money::{Currency, Money};

/// The longest window of one search. Clients that compute both ends from "now" are some
/// milliseconds above 31 days; a minute of grace lets them through.
const WINDOW_SECONDS: i64 = 31 * 86_400 + 60;
/// How far back reports go.
const HISTORY_SECONDS: i64 = 3 * 366 * 86_400;
/// The most rows one search may match.
const MOST_ROWS: usize = 10_000;

fn query_fault(issue: &str, name: &str, description: &str) -> Problem {
    Problem::invalid(vec![Detail {
        issue: issue.to_owned(),
        field: Some(name.to_owned()),
        location: Some("query"),
        description: Some(description.to_owned()),
        ..Detail::default()
    }])
}

/// Reads RFC 3339 with seconds. PayPal's own samples write offsets without a colon.
fn instant(text: &str) -> Option<Timestamp> {
    // `T` and seconds are part of PayPal's pattern; a bare date is refused.
    if text.len() < 20 || !matches!(text.as_bytes().get(10), Some(b'T' | b't')) {
        return None;
    }
    text.parse::<Timestamp>().or_else(|_| Timestamp::strptime("%Y-%m-%dT%H:%M:%S%z", text)).ok()
}

fn required_instant(call: &Call<'_>, name: &str) -> Result<Timestamp, Problem> {
    let Some(text) = call.request.parameter(name) else {
        return Err(query_fault(
            "MISSING_REQUIRED_PARAMETER",
            name,
            "A required parameter is missing.",
        ));
    };
    instant(&text).ok_or_else(|| {
        query_fault(
            "INVALID_PARAMETER_SYNTAX",
            name,
            "Date must be RFC 3339 with seconds and an offset.",
        )
    })
}

/// How far reports have got: the last second that is in them.
fn refreshed_to(call: &mut Call<'_>) -> Timestamp {
    let lag = match call.fault(Moment::Lag) {
        Some(Effect::ReportLag { seconds }) => seconds,
        _ => call.world.config.report_lag_seconds,
    };
    let at = plus_seconds(call.now, -i64::from(lag));
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn whole_number(
    call: &Call<'_>,
    name: &str,
    default: usize,
    most: usize,
) -> Result<usize, Problem> {
    let Some(text) = call.request.parameter(name) else {
        return Ok(default);
    };
    text.parse::<usize>().ok().filter(|number| (1..=most).contains(number)).ok_or_else(|| {
        query_fault("INVALID_PARAMETER_VALUE", name, "The value is outside its range.")
    })
}

/// `GET /v1/reporting/transactions`.
pub(crate) fn search(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let start = required_instant(call, "start_date")?;
    let end = required_instant(call, "end_date")?;
    let page_size = whole_number(call, "page_size", 100, 500)?;
    let page = whole_number(call, "page", 1, 2_147_483_647)?;
    let as_of = refreshed_to(call);
    check_window(call.now, start, end, as_of)?;
    call.refusal()?;
    let filter = Filter::of(call);
    let rows: Vec<&Row> = call
        .world
        .books
        .rows()
        .iter()
        .filter(|row| row.initiated >= start && row.initiated <= end)
        .filter(|row| filter.admits(row, as_of))
        .collect();
    if rows.len() > MOST_ROWS {
        let mut problem = query_fault("RESULTSET_TOO_LARGE", "start_date", "Narrow the window.");
        problem.name = "RESULTSET_TOO_LARGE".to_owned();
        problem.message =
            "Result set size is greater than the maximum limit. Change the filter criteria and try again.".to_owned();
        return Err(problem);
    }
    let total = rows.len();
    let details: Vec<Value> = rows
        .into_iter()
        .skip((page - 1).saturating_mul(page_size))
        .take(page_size)
        .filter_map(|row| detail(call, row, as_of, &filter))
        .collect();
    let mut body = Map::new();
    // PayPal's schema wants at least one entry, so an empty list is left out.
    if !details.is_empty() {
        body.insert("transaction_details".into(), Value::Array(details));
    }
    let merchant = &call.world.config.merchant.merchant_id;
    body.insert("account_number".into(), json!(merchant));
    body.insert("start_date".into(), json!(rfc3339(start)));
    body.insert("end_date".into(), json!(rfc3339(end.min(as_of))));
    body.insert("last_refreshed_datetime".into(), json!(rfc3339(as_of)));
    body.insert("page".into(), json!(page));
    body.insert("total_items".into(), json!(total));
    let pages = total.div_ceil(page_size);
    body.insert("total_pages".into(), json!(pages));
    body.insert("links".into(), links(call, page, pages));
    Ok(Outcome::Json { status: 200, body: Value::Object(body) })
}

fn check_window(
    now: Timestamp,
    start: Timestamp,
    end: Timestamp,
    as_of: Timestamp,
) -> Result<(), Problem> {
    let refuse = |message: &str| {
        let mut problem = query_fault("INVALID_PARAMETER_VALUE", "start_date", message);
        problem.message = message.to_owned();
        Err(problem)
    };
    if end < start {
        return refuse("End date is before start date.");
    }
    if end.duration_since(start) > SignedDuration::from_secs(WINDOW_SECONDS) {
        return refuse("Date range is greater than 31 days.");
    }
    if start < plus_seconds(now, -HISTORY_SECONDS) {
        return refuse("Start date is more than three years ago.");
    }
    if start > as_of {
        return refuse("Data for the given start date is not available.");
    }
    Ok(())
}

/// Which rows a search wants, and how much of each.
struct Filter {
    transaction_id: Option<String>,
    event_code: Option<String>,
    status: Option<String>,
    currency: Option<String>,
    amount: Option<(i64, i64)>,
    balance_affecting_only: bool,
    with_payer: bool,
    with_cart: bool,
}

impl Filter {
    fn of(call: &Call<'_>) -> Self {
        let given = |name: &str| call.request.parameter(name);
        let fields = given("fields").unwrap_or_else(|| "transaction_info".to_owned());
        let wants = |name: &str| fields.split(',').any(|field| field == "all" || field == name);
        let amount = given("transaction_amount").and_then(|range| {
            let (from, to) = range.split_once(" TO ")?;
            Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
        });
        Self {
            transaction_id: given("transaction_id"),
            event_code: given("transaction_type"),
            status: given("transaction_status"),
            currency: given("transaction_currency"),
            amount,
            balance_affecting_only: given("balance_affecting_records_only").as_deref() != Some("N"),
            with_payer: wants("payer_info"),
            with_cart: wants("cart_info"),
        }
    }

    /// With any of the optional filters PayPal leaves `ending_balance` out.
    fn is_narrowed(&self) -> bool {
        self.transaction_id.is_some()
            || self.event_code.is_some()
            || self.status.is_some()
            || self.currency.is_some()
            || self.amount.is_some()
    }

    fn admits(&self, row: &Row, as_of: Timestamp) -> bool {
        let Some((status, _, _)) = row.standing(as_of) else {
            return false;
        };
        let is = |wanted: &Option<String>, actual: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == actual)
        };
        let in_range = self.amount.is_none_or(|(from, to)| (from..=to).contains(&row.gross.minor));
        let affects = status == RowStatus::Success && row.kind != RowKind::Authorization;
        (affects || !self.balance_affecting_only)
            && is(&self.transaction_id, &row.transaction_id)
            && is(&self.event_code, row.event_code)
            && is(&self.status, status.letter())
            && is(&self.currency, row.gross.currency.code())
            && in_range
    }
}

/// Characters a report's text may hold; others are dropped, as PayPal's alphabet is narrow.
fn report_text(text: &str) -> Option<String> {
    let kept: String = text
        .chars()
        .filter(|&letter| letter.is_ascii_alphanumeric() || "_'-., \":;!?".contains(letter))
        .take(127)
        .collect();
    (!kept.is_empty()).then_some(kept)
}

fn detail(call: &Call<'_>, row: &Row, as_of: Timestamp, filter: &Filter) -> Option<Value> {
    let (status, fee, updated) = row.standing(as_of)?;
    let mut info = Map::new();
    info.insert("paypal_account_id".into(), json!(row.payer_id));
    info.insert("transaction_id".into(), json!(row.transaction_id));
    let reference = match (&row.reference_id, &row.order_id) {
        (Some(id), _) => Some((id, "TXN")),
        (None, Some(id)) => Some((id, "ODR")),
        (None, None) => None,
    };
    if let Some((id, kind)) = reference {
        info.insert("paypal_reference_id".into(), json!(id));
        info.insert("paypal_reference_id_type".into(), json!(kind));
    }
    info.insert("transaction_event_code".into(), json!(row.event_code));
    let initiated = json!(rfc3339(row.initiated));
    info.insert("transaction_initiation_date".into(), initiated);
    info.insert("transaction_updated_date".into(), json!(rfc3339(updated)));
    info.insert("transaction_amount".into(), row.gross.json());
    if status == RowStatus::Success && fee.minor != 0 {
        info.insert("fee_amount".into(), fee.with_minor(-fee.minor).json());
    }
    info.insert("transaction_status".into(), json!(status.letter()));
    if !filter.is_narrowed() && status == RowStatus::Success {
        let ending = call.world.books.balance_at(row.gross.currency, updated.max(row.initiated));
        info.insert("ending_balance".into(), ending.json());
        info.insert("available_balance".into(), ending.json());
    }
    for (name, text) in [("invoice_id", &row.invoice_id), ("custom_field", &row.custom_id)] {
        if let Some(text) = text.as_deref().and_then(report_text) {
            info.insert(name.into(), json!(text));
        }
    }
    info.insert("protection_eligibility".into(), json!("02"));
    let mut entry = Map::new();
    entry.insert("transaction_info".into(), Value::Object(info));
    if filter.with_payer {
        let payers = call.world.payers.values();
        if let Some(payer) = payers.into_iter().find(|it| it.payer_id == row.payer_id) {
            entry.insert(
                "payer_info".into(),
                json!({
                    "account_id": payer.payer_id,
                    "email_address": payer.email,
                    "address_status": "N",
                    "payer_status": "Y",
                    "payer_name": {"given_name": payer.given_name, "surname": payer.surname},
                    "country_code": payer.country,
                }),
            );
        }
    }
    if filter.with_cart {
        entry.insert("cart_info".into(), json!({}));
    }
    Some(Value::Object(entry))
}

fn links(call: &Call<'_>, page: usize, pages: usize) -> Value {
    let query: Vec<(String, String)> = url::form_urlencoded::parse(call.request.query.as_bytes())
        .filter(|(name, _)| name != "page" && !name.is_empty())
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    let to = |page: usize, rel: &str| {
        let mut text = url::form_urlencoded::Serializer::new(String::new());
        text.extend_pairs(&query);
        text.append_pair("page", &page.to_string());
        let path = format!("/v1/reporting/transactions?{}", text.finish());
        json!({"href": call.world.href(&path), "rel": rel, "method": "GET"})
    };
    let mut links = vec![to(page, "self")];
    if page < pages {
        links.push(to(page + 1, "next"));
        links.push(to(pages, "last"));
    }
    if page > 1 {
        links.push(to(1, "first"));
        links.push(to(page - 1, "prev"));
    }
    Value::Array(links)
}

/// `GET /v1/reporting/balances`.
pub(crate) fn balances(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let refreshed = refreshed_to(call);
    let as_of = match call.request.parameter("as_of_time") {
        Some(text) => instant(&text)
            .ok_or_else(|| {
                query_fault(
                    "INVALID_PARAMETER_SYNTAX",
                    "as_of_time",
                    "Date must be RFC 3339 with seconds and an offset.",
                )
            })?
            .min(refreshed),
        None => refreshed,
    };
    let wanted = call.request.parameter("currency_code").filter(|code| code != "ALL");
    let mut currencies = call.world.books.currencies();
    if let Some(code) = wanted {
        let Some(currency) = Currency::from_code(&code) else {
            return Err(query_fault(
                "INVALID_PARAMETER_VALUE",
                "currency_code",
                "The currency is not supported.",
            ));
        };
        currencies = vec![currency];
    }
    call.refusal()?;
    let list: Vec<Value> = currencies
        .into_iter()
        .map(|currency| balance(call.world.books.balance_at(currency, as_of)))
        .collect();
    Ok(Outcome::Json {
        status: 200,
        body: json!({
            "balances": list,
            "account_id": call.world.config.merchant.merchant_id,
            "as_of_time": rfc3339(as_of),
            "last_refresh_time": rfc3339(refreshed),
        }),
    })
}

fn balance(money: Money) -> Value {
    json!({
        "currency": money.currency.code(),
        "primary": money.currency == Currency::USD,
        "total_balance": money.json(),
        "available_balance": money.json(),
        "withheld_balance": money.with_minor(0).json(),
    })
}
