//! Transaction Search and balances. Reports lag up to 3 hours: *not there yet* is pending, never
//! missing.

use earnest_core::money::Micros;
use earnest_core::reconcile::{EventCode, EventKind, RowStatus};
use earnest_core::time::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use url::form_urlencoded;

use crate::money::CurrencyCode;
use crate::request::{BuildError, Operation, Request};
use crate::wire::{self, Money};

/// The longest span of one search.
pub const MAX_WINDOW: SignedDuration = SignedDuration::from_hours(31 * 24);
/// Rows on a page; PayPal's maximum.
pub const PAGE_SIZE: u32 = 500;
/// The smallest page that is asked for where larger ones are too long to read. With it, a search that
/// PayPal answers at all (10 000 rows) still ends in a few hundred requests.
pub const LEAST_PAGE_SIZE: u32 = 25;

/// A span of time, both ends included, whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// First instant.
    pub from: Timestamp,
    /// Last instant.
    pub to: Timestamp,
}

/// One row of Transaction Search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionRow {
    /// A capture's or refund's id, or 17 to 19 characters of its own. Not unique in reports.
    pub transaction_id: String,
    /// What it refers to: of a refund, the capture.
    pub reference_id: Option<String>,
    /// `T0003` vaulted charge, `T0006` checkout, `T1107` refund, …
    pub event_code: String,
    /// `S` success, `P` pending, `D` denied, `V` reversed, `F` partly refunded.
    pub status: Option<String>,
    /// Signed micro-units: in is positive, out is negative. Absent where unreadable: the row
    /// still says which `invoice_id` exists.
    pub amount_micros: Option<i64>,
    /// Its currency.
    pub currency: Option<CurrencyCode>,
    /// Signed micro-units, negative when charged.
    pub fee_micros: Option<i64>,
    /// Our reference.
    pub invoice_id: Option<String>,
    /// Our `custom_id`.
    pub custom_field: Option<String>,
    /// The payer's account.
    pub account_id: Option<String>,
    /// When it began.
    pub initiated: Option<Timestamp>,
    /// When it last changed.
    pub updated: Option<Timestamp>,
}

/// One page of Transaction Search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionPage {
    /// The rows.
    pub rows: Vec<TransactionRow>,
    /// Which page this is, where PayPal says.
    pub page: Option<u32>,
    /// How many rows the whole window has.
    pub total_items: Option<u64>,
    /// How many pages the whole window has.
    pub total_pages: Option<u32>,
    /// Up to when the report is complete.
    pub last_refreshed: Option<Timestamp>,
    /// The window as PayPal understood it.
    pub from: Option<Timestamp>,
    /// The window as PayPal understood it.
    pub to: Option<Timestamp>,
}

/// Our balance in one currency, signed micro-units.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    /// The currency.
    pub currency: CurrencyCode,
    /// All of it.
    pub total_micros: Option<i64>,
    /// What may be paid out.
    pub available_micros: Option<i64>,
    /// What PayPal withholds.
    pub withheld_micros: Option<i64>,
}

/// Our balances, up to 3 hours old: advice, never proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balances {
    /// Each currency's.
    pub balances: Vec<Balance>,
    /// The merchant's own account: a payer with this id would pay themselves.
    pub account_id: Option<String>,
    /// When they were so.
    pub as_of: Option<Timestamp>,
    /// Up to when the report is complete.
    pub last_refreshed: Option<Timestamp>,
}

impl Window {
    /// A window of whole seconds that contains both instants.
    pub fn covering(from: Timestamp, to: Timestamp) -> Self {
        let second = SignedDuration::from_secs(1);
        let whole = |at: Timestamp| Timestamp::from_second(at.as_second()).unwrap_or(at);
        let (first, last) = (whole(from), whole(to));
        // `as_second` goes towards zero: down after 1970, which is the only past we meet.
        let last = if last < to { last.saturating_add(second).unwrap_or(last) } else { last };
        Self { from: first, to: last }
    }

    /// Cuts into spans of at most 31 days; neighbours share an instant, so nothing falls between.
    pub fn split(self) -> Vec<Self> {
        let mut spans = Vec::new();
        let mut from = self.from;
        while self.to.duration_since(from) > MAX_WINDOW {
            let Ok(next) = from.saturating_add(MAX_WINDOW) else { break };
            spans.push(Self { from, to: next });
            from = next;
        }
        spans.push(Self { from, to: self.to });
        spans
    }

    /// Two halves that share an instant; `None` when a second is all there is.
    pub fn halves(self) -> Option<(Self, Self)> {
        let seconds = self.to.duration_since(self.from).as_secs();
        let half = seconds.checked_div(2).filter(|half| *half > 0)?;
        let middle = self.from.saturating_add(SignedDuration::from_secs(half)).ok()?;
        Some((Self { from: self.from, to: middle }, Self { from: middle, to: self.to }))
    }
}

/// Asks for one page (from 1) of so many rows (1 to [`PAGE_SIZE`]) of every transaction of a window,
/// authorizations included.
pub fn search_transactions(
    window: Window,
    page: u32,
    page_size: u32,
) -> Result<Request, BuildError> {
    let span = window.to.duration_since(window.from);
    if span <= SignedDuration::ZERO || span > MAX_WINDOW {
        return Err(BuildError::Window);
    }
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("start_date", &seconds(window.from))
        .append_pair("end_date", &seconds(window.to))
        // Nothing else is read, and carts of strangers can be of any size.
        .append_pair("fields", "transaction_info")
        // The default, Y, hides authorizations.
        .append_pair("balance_affecting_records_only", "N")
        .append_pair("page_size", &page_size.clamp(1, PAGE_SIZE).to_string())
        .append_pair("page", &page.max(1).to_string())
        .finish();
    Ok(Request::read(Operation::TransactionSearch, format!("/v1/reporting/transactions?{query}")))
}

/// Asks for our balances in every currency.
pub fn balances() -> Request {
    Request::read(Operation::Balances, "/v1/reporting/balances".to_owned())
}

/// Asks for our balances as they were at a whole second; PayPal answers with an earlier one where its
/// records do not reach so far yet, and says so in [`Balances::as_of`].
pub fn balances_at(at: Timestamp) -> Request {
    let query = form_urlencoded::Serializer::new(String::new())
        .append_pair("as_of_time", &seconds(at))
        .append_pair("currency_code", "ALL")
        .finish();
    Request::read(Operation::Balances, format!("/v1/reporting/balances?{query}"))
}

/// `2026-11-30T09:00:00Z`: seconds are required and nothing finer is understood.
pub(crate) fn seconds(at: Timestamp) -> String {
    format!("{at:.0}")
}

#[derive(Deserialize)]
struct WirePage {
    #[serde(default)]
    transaction_details: Vec<WireDetail>,
    page: Option<u32>,
    total_items: Option<u64>,
    total_pages: Option<u32>,
    #[serde(default, deserialize_with = "wire::time")]
    last_refreshed_datetime: Option<Timestamp>,
    #[serde(default, deserialize_with = "wire::time")]
    start_date: Option<Timestamp>,
    #[serde(default, deserialize_with = "wire::time")]
    end_date: Option<Timestamp>,
}

#[derive(Deserialize)]
struct WireDetail {
    transaction_info: WireInfo,
}

#[derive(Deserialize)]
struct WireInfo {
    #[serde(default)]
    transaction_id: String,
    paypal_reference_id: Option<String>,
    #[serde(default)]
    transaction_event_code: String,
    transaction_status: Option<String>,
    #[serde(default, deserialize_with = "wire::lenient")]
    transaction_amount: Option<Money>,
    #[serde(default, deserialize_with = "wire::lenient")]
    fee_amount: Option<Money>,
    invoice_id: Option<String>,
    custom_field: Option<String>,
    paypal_account_id: Option<String>,
    #[serde(default, deserialize_with = "wire::time")]
    transaction_initiation_date: Option<Timestamp>,
    #[serde(default, deserialize_with = "wire::time")]
    transaction_updated_date: Option<Timestamp>,
}

impl TransactionPage {
    /// Reads a page; `None` when one row cannot be read, since a skipped row could be the one that
    /// is looked for.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let wire: WirePage = serde_json::from_slice(body).ok()?;
        let rows =
            wire.transaction_details.into_iter().map(|detail| detail.transaction_info.into());
        Some(Self {
            rows: rows.collect(),
            page: wire.page,
            total_items: wire.total_items,
            total_pages: wire.total_pages,
            last_refreshed: wire.last_refreshed_datetime,
            from: wire.start_date,
            to: wire.end_date,
        })
    }
}

impl From<WireInfo> for TransactionRow {
    fn from(wire: WireInfo) -> Self {
        Self {
            transaction_id: wire.transaction_id,
            reference_id: wire.paypal_reference_id,
            event_code: wire.transaction_event_code,
            status: wire.transaction_status,
            amount_micros: wire.transaction_amount.map(|money| money.micros),
            currency: wire.transaction_amount.map(|money| money.currency),
            fee_micros: wire.fee_amount.map(|money| money.micros),
            invoice_id: wire.invoice_id,
            custom_field: wire.custom_field,
            account_id: wire.paypal_account_id,
            initiated: wire.transaction_initiation_date,
            updated: wire.transaction_updated_date,
        }
    }
}

impl TransactionRow {
    /// Whether money came in by it, or should have.
    pub fn came_in(&self) -> bool {
        self.amount_micros.is_some_and(|amount| amount > 0)
    }

    /// Whether it gave a payment back, and is done: a refund (`T1107`), a reversal (`T1106`), a
    /// chargeback (`T1201`). Holds of a dispute (`T1110`, `T1111`) and fees take nothing back from
    /// anybody.
    pub fn gave_back(&self) -> bool {
        let done = self.state() == RowStatus::Success;
        let code = self.event().kind.gives_back();
        done && code && self.amount_micros.is_some_and(|amount| amount < 0)
    }

    /// What its code means.
    pub fn event(&self) -> EventCode {
        event(&self.event_code)
    }

    /// How it stands.
    pub fn state(&self) -> RowStatus {
        match self.status.as_deref() {
            None => RowStatus::Unsaid,
            Some("S") => RowStatus::Success,
            Some("P") => RowStatus::Pending,
            Some("D") => RowStatus::Denied,
            Some("V") => RowStatus::Reversed,
            Some("F") => RowStatus::PartlyRefunded,
            Some(other) => RowStatus::Unknown(other.to_owned()),
        }
    }

    /// Whether it began after a moment. A search looks an hour around what it is asked for, so that
    /// rows from before come too. What names no time may have.
    pub fn began_after(&self, moment: Timestamp) -> bool {
        self.initiated.is_none_or(|at| at > moment)
    }

    /// The amount without its sign.
    pub fn amount(&self) -> Option<Micros> {
        Micros::new(self.amount_micros?.checked_abs()?).ok()
    }
}

/// Reads an event code of PayPal's. The first three characters are a family; a code that is not known
/// in a family that is counts as one of it.
pub fn event(code: &str) -> EventCode {
    let kind = match code {
        "T0001" => EventKind::MassPayment,
        "T0003" => EventKind::PreApprovedPayment,
        "T0006" => EventKind::CheckoutPayment,
        "T0106" => EventKind::ChargebackFee,
        "T1106" => EventKind::PaymentReversed,
        "T1107" => EventKind::PaymentRefunded,
        "T1108" => EventKind::FeeReturned,
        "T1110" => EventKind::DisputeHold,
        "T1111" => EventKind::DisputeRelease,
        "T1201" => EventKind::Chargeback,
        _ => match code.get(..3) {
            Some("T00") => EventKind::Payment,
            Some("T01") => EventKind::Fee,
            Some("T02") => EventKind::CurrencyConversion,
            Some("T03") => EventKind::BankDeposit,
            Some("T04") => EventKind::BankWithdrawal,
            Some("T05") => EventKind::DebitCard,
            Some("T07") => EventKind::CardDeposit,
            Some("T08") => EventKind::Bonus,
            Some("T11") => EventKind::ReversalOrHold,
            Some("T12") => EventKind::Adjustment,
            Some("T13") => EventKind::Authorization,
            Some("T15" | "T21") => EventKind::HoldOrRelease,
            Some("T20") => EventKind::Transfer,
            _ => EventKind::Unknown,
        },
    };
    EventCode { text: code.to_owned(), kind }
}

#[derive(Deserialize)]
struct WireBalances {
    #[serde(default)]
    balances: Vec<WireBalance>,
    account_id: Option<String>,
    #[serde(default, deserialize_with = "wire::time")]
    as_of_time: Option<Timestamp>,
    #[serde(default, deserialize_with = "wire::time")]
    last_refresh_time: Option<Timestamp>,
}

#[derive(Deserialize)]
struct WireBalance {
    currency: CurrencyCode,
    total_balance: Option<Money>,
    available_balance: Option<Money>,
    withheld_balance: Option<Money>,
}

impl Balances {
    /// Reads balances; `None` when an amount cannot be read.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let wire: WireBalances = serde_json::from_slice(body).ok()?;
        let balances = wire.balances.into_iter().map(|wire| Balance {
            currency: wire.currency,
            total_micros: wire.total_balance.map(|money| money.micros),
            available_micros: wire.available_balance.map(|money| money.micros),
            withheld_micros: wire.withheld_balance.map(|money| money.micros),
        });
        Some(Self {
            balances: balances.collect(),
            account_id: wire.account_id,
            as_of: wire.as_of_time,
            last_refreshed: wire.last_refresh_time,
        })
    }
}
