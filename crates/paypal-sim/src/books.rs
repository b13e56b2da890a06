//! PayPal's own records of the merchant's money: opening balances and one row per movement.
//!
//! A row keeps its whole history, because reports show the past: what Transaction Search answers
//! for a moment three hours ago is what the row was then.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock::rfc3339;
use crate::money::{Currency, Money};

/// Where a movement stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowStatus {
    /// Under way; the balance has not moved and the fee is unknown.
    Pending,
    /// Done; the balance moved by the net amount.
    Success,
    /// Refused; nothing moved.
    Denied,
}

impl RowStatus {
    /// The letter Transaction Search prints.
    pub(crate) const fn letter(self) -> &'static str {
        match self {
            Self::Pending => "P",
            Self::Success => "S",
            Self::Denied => "D",
        }
    }
}

/// What a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    /// Money taken from a payer.
    Capture,
    /// Money returned by the merchant.
    Refund,
    /// Money taken back by PayPal.
    Reversal,
    /// A hold; never moves a balance.
    Authorization,
    /// Something that no call of the API makes: see [`Happening`].
    Other,
}

/// A movement that no call of the API makes, such as a transfer to the merchant's bank.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Happening {
    /// PayPal's event code: one of [`HAPPENINGS`].
    pub event_code: String,
    /// Minor units; negative for money out.
    pub minor: i64,
    /// Of which currency; of US dollars unless said.
    #[serde(default)]
    pub currency: Option<String>,
    /// What PayPal takes of it, in minor units.
    #[serde(default)]
    pub fee_minor: i64,
    /// The transaction it refers to.
    #[serde(default)]
    pub reference_id: Option<String>,
}

/// What may happen, by PayPal's event codes: money from and to a bank, money withheld for a dispute
/// and released, a general hold and its end, a fee of a chargeback, an adjustment, a payment of a
/// stranger's.
pub const HAPPENINGS: &[&str] =
    &["T0011", "T0300", "T0400", "T1110", "T1111", "T1500", "T0106", "T1200"];

/// One step in the life of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    at: Timestamp,
    status: RowStatus,
    fee: i64,
}

/// One movement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Capture, refund or authorization id.
    pub transaction_id: String,
    /// PayPal's event code: `T0006` checkout, `T0003` vaulted, `T1107` refund, `T1106` reversal.
    pub event_code: &'static str,
    /// What it is about.
    pub kind: RowKind,
    /// The transaction this one belongs to: a refund's capture, a capture's authorization.
    pub reference_id: Option<String>,
    /// The order it came from.
    pub order_id: Option<String>,
    /// Who paid.
    pub payer_id: String,
    /// The merchant's invoice id.
    pub invoice_id: Option<String>,
    /// The merchant's custom id.
    pub custom_id: Option<String>,
    /// Positive for money in, negative for money out.
    pub gross: Money,
    /// When it began.
    pub initiated: Timestamp,
    steps: Vec<Step>,
}

impl Row {
    /// A row that begins at `at` with this status and fee.
    #[allow(
        clippy::too_many_arguments,
        reason = "a row is made in three places and every column differs"
    )]
    pub(crate) fn new(
        transaction_id: String,
        kind: RowKind,
        event_code: &'static str,
        payer_id: String,
        gross: Money,
        fee: Money,
        status: RowStatus,
        at: Timestamp,
    ) -> Self {
        Self {
            transaction_id,
            event_code,
            kind,
            reference_id: None,
            order_id: None,
            payer_id,
            invoice_id: None,
            custom_id: None,
            gross,
            initiated: at,
            steps: vec![Step { at, status, fee: fee.minor }],
        }
    }

    fn step_at(&self, as_of: Timestamp) -> Option<Step> {
        self.steps.iter().rev().find(|step| step.at <= as_of).copied()
    }

    /// Status, fee and time of the last change, as known at `as_of`; nothing if not yet begun.
    #[must_use]
    pub fn standing(&self, as_of: Timestamp) -> Option<(RowStatus, Money, Timestamp)> {
        self.step_at(as_of).map(|step| (step.status, self.gross.with_minor(step.fee), step.at))
    }

    /// How the merchant's balance moved through this row, as known at `as_of`.
    #[must_use]
    pub fn net_at(&self, as_of: Timestamp) -> i64 {
        match self.step_at(as_of) {
            Some(step)
                if step.status == RowStatus::Success && self.kind != RowKind::Authorization =>
            {
                self.gross.minor.saturating_sub(step.fee)
            }
            _ => 0,
        }
    }
}

/// The merchant's account.
#[derive(Debug, Clone, Default)]
pub struct Books {
    opening: BTreeMap<Currency, i64>,
    rows: Vec<Row>,
}

impl Books {
    pub(crate) fn new(opening: &[Money]) -> Self {
        let mut books = Self::default();
        for money in opening {
            *books.opening.entry(money.currency).or_default() += money.minor;
        }
        books
    }

    /// All movements, oldest first.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(crate) fn post(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Something happens that no call makes; its id. `None` where no such thing can happen.
    pub(crate) fn happen(
        &mut self,
        what: &Happening,
        owner: &str,
        at: Timestamp,
    ) -> Option<String> {
        let code = HAPPENINGS.iter().find(|code| **code == what.event_code)?;
        if what.minor == 0 {
            return None;
        }
        let currency = match &what.currency {
            Some(code) => Currency::from_code(code)?,
            None => Currency::USD,
        };
        let (id, status) = (crate::ids::transaction(), RowStatus::Success);
        let gross = Money::new(currency, what.minor);
        let fee = gross.with_minor(what.fee_minor);
        let kind = RowKind::Other;
        let mut row = Row::new(id.clone(), kind, code, owner.to_owned(), gross, fee, status, at);
        row.reference_id.clone_from(&what.reference_id);
        self.post(row);
        Some(id)
    }

    /// Another fee for a movement than was told: a mistake in the records. False if there is no such
    /// movement.
    pub(crate) fn misstate_fee(&mut self, id: &str, minor: i64) -> bool {
        let row = self.rows.iter_mut().find(|row| row.transaction_id == id);
        let step = row.and_then(|row| row.steps.last_mut());
        step.map(|step| step.fee = minor).is_some()
    }

    /// A movement that vanishes from the records. False if there is none of this id.
    pub(crate) fn forget(&mut self, id: &str) -> bool {
        let before = self.rows.len();
        self.rows.retain(|row| row.transaction_id != id);
        self.rows.len() != before
    }

    /// Moves the row of this transaction to its next status.
    pub(crate) fn settle(&mut self, id: &str, status: RowStatus, fee: Money, at: Timestamp) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.transaction_id == id) {
            row.steps.push(Step { at, status, fee: fee.minor });
        }
    }

    /// Currencies with an opening balance or a movement.
    #[must_use]
    pub fn currencies(&self) -> Vec<Currency> {
        let mut all: Vec<Currency> = self.opening.keys().copied().collect();
        all.extend(self.rows.iter().map(|row| row.gross.currency));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The balance as known at `as_of`.
    #[must_use]
    pub fn balance_at(&self, currency: Currency, as_of: Timestamp) -> Money {
        let opening = self.opening.get(&currency).copied().unwrap_or_default();
        let moved: i64 = self
            .rows
            .iter()
            .filter(|row| row.gross.currency == currency)
            .map(|row| row.net_at(as_of))
            .sum();
        Money::new(currency, opening + moved)
    }

    /// A copy for people and tests: what `GET /_sim/books` answers.
    #[must_use]
    pub fn view(&self, now: Timestamp) -> BooksView {
        let balances = self
            .currencies()
            .into_iter()
            .map(|currency| self.balance_view(currency, now))
            .collect();
        BooksView {
            as_of: rfc3339(now),
            balances,
            rows: self.rows.iter().filter_map(|row| row_view(row, now)).collect(),
        }
    }

    fn balance_view(&self, currency: Currency, now: Timestamp) -> BalanceView {
        let moved = |kind: fn(RowKind) -> bool| -> i64 {
            self.rows
                .iter()
                .filter(|row| row.gross.currency == currency && kind(row.kind))
                .filter(|row| matches!(row.standing(now), Some((RowStatus::Success, _, _))))
                .map(|row| row.gross.minor)
                .sum()
        };
        let fees: i64 = self
            .rows
            .iter()
            .filter(|row| row.gross.currency == currency && row.kind != RowKind::Authorization)
            .filter_map(|row| row.standing(now))
            .filter(|(status, _, _)| *status == RowStatus::Success)
            .map(|(_, fee, _)| fee.minor)
            .sum();
        let opening = self.opening.get(&currency).copied().unwrap_or_default();
        BalanceView {
            currency,
            opening: Money::new(currency, opening),
            captured: Money::new(currency, moved(|kind| kind == RowKind::Capture)),
            returned: Money::new(
                currency,
                moved(|kind| matches!(kind, RowKind::Refund | RowKind::Reversal)),
            ),
            other: Money::new(currency, moved(|kind| kind == RowKind::Other)),
            fees: Money::new(currency, fees),
            balance: self.balance_at(currency, now),
        }
    }
}

fn row_view(row: &Row, now: Timestamp) -> Option<RowView> {
    let (status, fee, updated) = row.standing(now)?;
    Some(RowView {
        transaction_id: row.transaction_id.clone(),
        event_code: row.event_code,
        kind: row.kind,
        status,
        currency: row.gross.currency,
        gross: row.gross,
        fee: (status == RowStatus::Success).then_some(fee),
        net: row.gross.with_minor(row.net_at(now)),
        reference_id: row.reference_id.clone(),
        order_id: row.order_id.clone(),
        payer_id: row.payer_id.clone(),
        invoice_id: row.invoice_id.clone(),
        custom_id: row.custom_id.clone(),
        time: rfc3339(row.initiated),
        updated: rfc3339(updated),
    })
}

/// `GET /_sim/books`.
#[derive(Debug, Clone, Serialize)]
pub struct BooksView {
    /// The simulator's time.
    pub as_of: String,
    /// One per currency. `opening + captured + returned + other - fees = balance` always
    /// holds.
    pub balances: Vec<BalanceView>,
    /// Every movement, oldest first.
    pub rows: Vec<RowView>,
}

/// The merchant's money in one currency.
#[derive(Debug, Clone, Serialize)]
pub struct BalanceView {
    /// Which currency.
    pub currency: Currency,
    /// Before the first movement.
    pub opening: Money,
    /// Gross of completed captures.
    pub captured: Money,
    /// Gross of completed refunds and reversals; zero or negative.
    pub returned: Money,
    /// Gross of everything that no call of the API made.
    pub other: Money,
    /// What PayPal kept.
    pub fees: Money,
    /// What is there now.
    pub balance: Money,
}

/// One movement as `GET /_sim/books` shows it. Amounts are decimal strings.
#[derive(Debug, Clone, Serialize)]
pub struct RowView {
    /// Capture, refund or authorization id.
    pub transaction_id: String,
    /// PayPal's event code.
    pub event_code: &'static str,
    /// What it is about.
    pub kind: RowKind,
    /// Where it stands.
    pub status: RowStatus,
    /// Currency of the three amounts.
    pub currency: Currency,
    /// Positive in, negative out.
    pub gross: Money,
    /// What PayPal kept; absent while it is not known.
    pub fee: Option<Money>,
    /// How the balance moved.
    pub net: Money,
    /// The transaction this one belongs to.
    pub reference_id: Option<String>,
    /// The order it came from.
    pub order_id: Option<String>,
    /// Who paid.
    pub payer_id: String,
    /// The merchant's invoice id.
    pub invoice_id: Option<String>,
    /// The merchant's custom id.
    pub custom_id: Option<String>,
    /// When it began.
    pub time: String,
    /// When it last changed.
    pub updated: String,
}
