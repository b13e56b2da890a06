//! Comparing the books with PayPal's records: reads both sides, lets the rules compare them, keeps
//! what came of it.
//!
//! It follows every complete look through PayPal's records ([`super::scan`]), and whenever the
//! operator asks. Nothing is booked here but the balance that the books began with, and what PayPal
//! withholds for a dispute or releases: no call of ours and no webhook that we read tells of that.

use std::collections::{BTreeMap, BTreeSet};

use earnest_core::cash::{CashEntry, is_paypal_id};
use earnest_core::dispute::{BookWithheld, Withheld, Withholding};
use earnest_core::intent::Intent;
use earnest_core::ledger::Account;
use earnest_core::money::{Currency, Micros};
use earnest_core::reconcile::{
    Acknowledged, Begin, BookOpening, Compared, EventKind, Keep, Movement, Reconciliation, Report,
    Row, Sides, Sources, compare, ours,
};
use earnest_core::reversal::Reversal;
use earnest_core::settlement::Settlement;
use earnest_core::suspense::Suspended;
use earnest_core::time::{SignedDuration, Timestamp};
use earnest_paypal::evidence::{Evidence, REPORT_LAG, movements};
use earnest_paypal::reporting::{TransactionRow, balances_at};
use earnest_paypal::{Outcome, Resource};
use earnest_store::{ReadError, Reader, Snapshot};

use super::dispute;
use super::paypal::FlowError;
use crate::app::App;

/// How many open calls are read at once.
const MANY: usize = 1_000;
/// The most unexplained lines that one comparison writes to the log of the process.
const MOST_SAID: usize = 50;
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
    // What is before the books is not theirs.
    let rows = rows.iter().filter(|row| row.began_after(state.from));
    let theirs: Vec<Row> = rows.map(row_of).collect();
    withheld(app, &theirs, horizon).await?;
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
    let before = state.at;
    let reader = app.store.reader().clone();
    // The whole history of payments is read and sorted: not on a thread that serves.
    let side = tokio::task::spawn_blocking(move || {
        against(&reader, &state, &theirs, horizon, paypal_micros, now)
    });
    let compared = side.await.map_err(|why| FlowError::Broken(why.to_string()))??;
    let Compared { report, unexplained, next_from, next_earlier } = compared;
    say(&report);
    let keep = Keep { report, unexplained, before, next_from, next_earlier };
    Ok(Reconciled::Compared(Box::new(app.store.submit(keep).await?)))
}

/// Reads our side at one moment and compares it with PayPal's.
fn against(
    reader: &Reader,
    state: &Reconciliation,
    theirs: &[Row],
    horizon: Timestamp,
    paypal_micros: Option<i64>,
    now: Timestamp,
) -> Result<Compared, ReadError> {
    let books = reader.snapshot(|snapshot| gather(snapshot, now))?;
    Ok(compare(&Sides {
        ours: &books.ours,
        theirs,
        awaited: &|row| books.awaits(row),
        acknowledged: &|row| books.acknowledged.get(&row.id).is_some_and(|one| one.covers(row)),
        from: state.from,
        horizon,
        earlier: &state.earlier,
        books_micros: books.cash_micros,
        paypal_micros,
    }))
}

/// Books what PayPal withheld for a dispute, and what it released.
async fn withheld(app: &App, rows: &[Row], horizon: Timestamp) -> Result<(), FlowError> {
    for row in rows.iter().filter(|row| row.initiated.is_none_or(|at| at <= horizon)) {
        book_withheld(app, row).await?;
    }
    Ok(())
}

/// As [`withheld`], for one of PayPal's records as it is read; whether it is in the books now.
pub(super) async fn take_withheld(app: &App, row: &TransactionRow) -> Result<bool, FlowError> {
    book_withheld(app, &row_of(row)).await
}

/// Books a hold or its release, where it is one. The unit does nothing where the id is in the books
/// already. Whether it is there afterwards.
async fn book_withheld(app: &App, row: &Row) -> Result<bool, FlowError> {
    let way = match (row.event.kind, row.amount.as_ref()) {
        (EventKind::DisputeHold, Some((gross, _))) if *gross < 0 => Withholding::Hold,
        (EventKind::DisputeRelease, Some((gross, _))) if *gross > 0 => Withholding::Release,
        _ => return Ok(false),
    };
    let ours = row.amount.as_ref().filter(|(_, currency)| currency == Currency::Usd.code());
    let size = ours.and_then(|(gross, _)| i64::try_from(gross.unsigned_abs()).ok());
    let Some(Ok(amount)) = size.map(Micros::new) else { return Ok(false) };
    // A fee on a hold is nothing that is known of: the line stays, and says so.
    if !row.status.is_final() || row.fee_micros != 0 || !is_paypal_id(&row.id) {
        return Ok(false);
    }
    if app.store.reader().row::<Withheld>(&row.id)?.is_none() {
        let (paypal_id, reference) = (row.id.clone(), row.reference.clone());
        let of = dispute::referred(app, reference.as_deref())?;
        app.store.submit(BookWithheld { paypal_id, way, amount, reference, of }).await?;
        app.wake.notify();
    }
    Ok(app.store.reader().row::<Withheld>(&row.id)?.is_some())
}

fn say(report: &Report) {
    let most = MOST_SAID.try_into().unwrap_or(u64::MAX);
    if report.unexplained_lines > most {
        let (lines, micros) = (report.unexplained_lines, report.unexplained_micros);
        tracing::error!(lines, micros, "lines are not explained; the worst are named");
    }
    for line in report.unexplained.iter().take(MOST_SAID) {
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

pub(super) fn row_of(row: &TransactionRow) -> Row {
    let amount = row.amount_micros.zip(row.currency);
    Row {
        id: row.transaction_id.clone(),
        event: row.event(),
        status: row.state(),
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
    /// What the operator acknowledged, by PayPal's id.
    acknowledged: BTreeMap<String, Acknowledged>,
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
    let settlements = snapshot.every::<Settlement>()?;
    let suspended = snapshot.every::<Suspended>()?;
    let reversals = snapshot.every::<Reversal>()?;
    let entries = snapshot.every::<CashEntry>()?;
    let withheld = snapshot.every::<Withheld>()?;
    let acknowledged = snapshot.every::<Acknowledged>()?;
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
            withheld: &mut withheld.iter(),
        }),
        cash_micros: cash.debits_posted.get().saturating_sub(cash.credits_posted.get()),
        invoices,
        captures,
        acknowledged: acknowledged.into_iter().map(|row| (row.paypal_id.clone(), row)).collect(),
    })
}
