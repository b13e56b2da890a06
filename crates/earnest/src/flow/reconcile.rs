//! Comparing the books with PayPal's records: reads both sides, lets the rules compare them, keeps
//! what came of it.
//!
//! It follows every complete look through PayPal's records ([`super::scan`]), and whenever the
//! operator asks. Nothing is booked here but the balance that the books began with.

use std::collections::BTreeSet;

use earnest_core::cash::CashEntry;
use earnest_core::intent::Intent;
use earnest_core::ledger::Account;
use earnest_core::money::Currency;
use earnest_core::reconcile::{
    Begin, BookOpening, Compared, Keep, Movement, Reconciliation, Report, Row, Sides, Sources,
    compare, ours,
};
use earnest_core::reversal::Reversal;
use earnest_core::settlement::Settlement;
use earnest_core::suspense::Suspended;
use earnest_core::time::{SignedDuration, Timestamp};
use earnest_core::unit::Record;
use earnest_paypal::evidence::{Evidence, REPORT_LAG, movements};
use earnest_paypal::reporting::{TransactionRow, balances_at};
use earnest_paypal::{Outcome, Resource};
use earnest_store::{ReadError, Snapshot};

use super::paypal::FlowError;
use crate::app::App;

/// How many rows are read at once.
const MANY: usize = 1_000;
/// How long something that went back may be looked at before it counts as unexplained.
const LOOKED_AT: SignedDuration = SignedDuration::from_hours(24);

/// What became of a wish to compare.
#[derive(Debug)]
pub enum Reconciled {
    /// Both sides were compared.
    Compared(Box<Reconciliation>),
    /// PayPal's records do not reach far enough yet, or cannot be read.
    NotYet(String),
}

/// Up to when PayPal's records are surely complete: twice the lag that PayPal names.
pub fn horizon(now: Timestamp) -> Timestamp {
    let settled = SignedDuration::from_hours(REPORT_LAG.as_hours().saturating_mul(2));
    let at = now.saturating_sub(settled).unwrap_or(now);
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Notes when these books began: everything at PayPal from the next second on is theirs to explain,
/// and what was there before is the opening balance.
///
/// # Errors
/// When the books cannot be read or written.
pub async fn begin(app: &App) -> Result<Timestamp, FlowError> {
    let reader = app.store.reader();
    if let Some(row) = reader.row::<Reconciliation>(Reconciliation::ID)? {
        return Ok(row.began);
    }
    let second = Timestamp::from_second(app.now().as_second().saturating_sub(1));
    let began = second.unwrap_or_else(|_| app.now());
    app.store.submit(Begin { began }).await?;
    let row = reader.row::<Reconciliation>(Reconciliation::ID)?;
    Ok(row.map_or(began, |row| row.began))
}

/// Compares up to the horizon of now.
///
/// # Errors
/// When the books cannot be read or written. That PayPal cannot be read is an answer.
pub async fn run(app: &App) -> Result<Reconciled, FlowError> {
    let (now, began) = (app.now(), begin(app).await?);
    let horizon = horizon(now);
    if horizon <= began {
        let why = format!("PayPal's records have to reach past {began}, when the books began");
        return Ok(Reconciled::NotYet(why));
    }
    open(app).await?;
    let Some(state) = app.store.reader().row::<Reconciliation>(Reconciliation::ID)? else {
        return Err(FlowError::Broken("the state of reconciling is missing".to_owned()));
    };
    let rows = match movements(&app.paypal, state.from, horizon, now).await {
        Evidence::Found { rows, complete: true } => rows,
        Evidence::Absent(_) => Vec::new(),
        Evidence::Found { .. } | Evidence::NotYet { .. } => {
            return Ok(Reconciled::NotYet("PayPal's records are not complete yet".to_owned()));
        }
        Evidence::Unreadable { why } => {
            return Ok(Reconciled::NotYet(format!("PayPal's records cannot be read: {why}")));
        }
    };
    // A search looks an hour around what it is asked for; what is before the books is not theirs.
    let before = |row: &TransactionRow| row.initiated.is_some_and(|at| at <= state.from);
    let theirs: Vec<Row> = rows.iter().filter(|row| !before(row)).map(row_of).collect();
    let paypal_micros = match state.opening_micros {
        Some(_) => match balance(app, horizon).await {
            Ok(balance) => Some(balance),
            // Without it nobody can say that everything is explained.
            Err(why) => {
                let why = format!("PayPal's balance of {horizon} cannot be read: {why}");
                return Ok(Reconciled::NotYet(why));
            }
        },
        None => None,
    };
    let books = app.store.reader().snapshot(|snapshot| gather(snapshot, now))?;
    let Compared { report, next_from, next_earlier } = compare(&Sides {
        ours: &books.ours,
        theirs: &theirs,
        awaited: &|row| books.awaits(row),
        from: state.from,
        horizon,
        earlier: &state.earlier,
        books_micros: books.cash_micros,
        paypal_micros,
    });
    say(&report);
    let keep = Keep { report, before: state.at, next_from, next_earlier };
    Ok(Reconciled::Compared(Box::new(app.store.submit(keep).await?)))
}

fn say(report: &Report) {
    for line in &report.unexplained {
        tracing::error!(paypal_id = %line.id, "not explained: {line}");
    }
    if let Some(rest) = report.difference_micros().filter(|rest| *rest != 0) {
        tracing::error!(rest, "PayPal's balance differs from the books, and no line says why");
    }
}

/// Books the balance that the books began with, once PayPal's records reach there.
async fn open(app: &App) -> Result<(), FlowError> {
    let row = app.store.reader().row::<Reconciliation>(Reconciliation::ID)?;
    let Some(row) = row.filter(|row| row.opening_micros.is_none() && !row.began_late) else {
        return Ok(());
    };
    let balance = balance(app, row.began).await;
    Ok(app.store.submit(BookOpening { balance }).await?)
}

/// PayPal's balance at a time that its records reach; or why it is not known.
async fn balance(app: &App, at: Timestamp) -> Result<i64, String> {
    let exchange = app.paypal.send(&balances_at(at)).await;
    let found = match &exchange.outcome {
        Outcome::Done { resource: Resource::Balances(found) } => found,
        other => {
            let issue = other.issue().unwrap_or(other.as_str());
            return Err(format!("PayPal's balance cannot be read: {issue}"));
        }
    };
    if found.as_of.is_none_or(|as_of| as_of.as_second() != at.as_second()) {
        return Err("PayPal does not tell its balance of that time".to_owned());
    }
    let usd = found.balances.iter().find(|it| it.currency.as_str() == Currency::Usd.code());
    match usd {
        // An account that never held dollars holds none.
        None => Ok(0),
        Some(balance) => balance.total_micros.ok_or_else(|| "PayPal names no total".to_owned()),
    }
}

fn row_of(row: &TransactionRow) -> Row {
    let amount = row.amount_micros.zip(row.currency);
    Row {
        id: row.transaction_id.clone(),
        code: row.event_code.clone(),
        status: row.status.clone(),
        reference: row.reference_id.clone(),
        invoice: row.invoice_id.clone(),
        amount: amount.map(|(micros, currency)| (micros, currency.as_str().to_owned())),
        fee_micros: row.fee_micros.unwrap_or(0),
        initiated: row.initiated,
        updated: row.updated,
    }
}

/// Our side, at one moment.
struct Books {
    ours: Vec<Movement>,
    cash_micros: i64,
    /// Invoices of calls whose outcome is open.
    invoices: BTreeSet<String>,
    /// Captures of which something went back, being read.
    captures: BTreeSet<String>,
}

impl Books {
    fn awaits(&self, row: &Row) -> bool {
        let known = |set: &BTreeSet<String>, id: &Option<String>| {
            id.as_ref().is_some_and(|id| set.contains(id))
        };
        known(&self.invoices, &row.invoice) || known(&self.captures, &row.reference)
    }
}

fn gather(snapshot: &Snapshot<'_>, now: Timestamp) -> Result<Books, ReadError> {
    let settlements = all::<Settlement>(snapshot)?;
    let suspended = all::<Suspended>(snapshot)?;
    let reversals = all::<Reversal>(snapshot)?;
    let entries = all::<CashEntry>(snapshot)?;
    let fresh = |row: &&Reversal| now.duration_since(row.heard_at) < LOOKED_AT;
    let looked_at = reversals.iter().filter(|row| row.open && !row.alarmed).filter(fresh);
    let captures = looked_at.map(|row| row.capture.clone()).collect();
    let mut invoices = BTreeSet::new();
    let mut cursor = None;
    loop {
        let page = snapshot.list::<Intent>("intents.open", "", cursor.as_ref(), MANY, false)?;
        invoices.extend(page.items.into_iter().filter_map(|intent| intent.invoice_id));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let cash = snapshot.totals(&Account::PaypalCash.usd())?;
    Ok(Books {
        ours: ours(Sources {
            settlements: &mut settlements.iter(),
            suspended: &mut suspended.iter(),
            reversals: &mut reversals.iter(),
            entries: &mut entries.iter(),
        }),
        cash_micros: cash.debits_posted.get().saturating_sub(cash.credits_posted.get()),
        invoices,
        captures,
    })
}

fn all<R: Record>(snapshot: &Snapshot<'_>) -> Result<Vec<R>, ReadError> {
    let mut found = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = snapshot.all::<R>(after.as_deref(), MANY)?;
        found.extend(page.items);
        after = page.next;
        if after.is_none() {
            return Ok(found);
        }
    }
}
