//! Reading PayPal's records after a restore: everything that moved between the backup and the
//! restore, in a report that is complete past it.
//!
//! What is found is booked as if a webhook had named it, so that reading again changes nothing and a
//! reading that was cut off is simply begun anew. Complete is only a reading that found a place for all
//! of it: what could not be read this time may be a charge, and would be made again.

use earnest_core::lost::{LostCapture, tab_of_invoice};
use earnest_core::quarantine::{Import, KeepImport, MOST_NAMED, Quarantine, Unplaced};
use earnest_core::reconcile::Reconciliation;
use earnest_core::suspense::Suspended;
use earnest_core::tab::Tab;
use earnest_core::time::{Timestamp, after};
use earnest_paypal::evidence::{Evidence, REPORT_LAG, movements};
use earnest_paypal::reporting::TransactionRow;
use earnest_store::ReadError;

use super::paypal::{FlowError, unless_taken};
use super::{scan, settle};
use crate::app::App;

/// How long to wait before an incomplete report is asked for again, in seconds.
const AGAIN_SECONDS: i64 = 600;
/// How many records without a place the one sentence names.
const SAID: usize = 3;

/// Reads PayPal's records while the books are quarantined and it is time. Gives back whether they are
/// quarantined: then nothing else has to be looked for in the records.
///
/// # Errors
/// [`FlowError`] when the books cannot be read or written.
pub async fn look(app: &App) -> Result<bool, FlowError> {
    let Some(row) = app.store.reader().row::<Quarantine>(Quarantine::ID)? else {
        return Ok(false);
    };
    let now = app.now();
    let waits = row.import.next_at.is_some_and(|at| now < at);
    if row.holds() && !row.import.is_complete() && !waits {
        let import = read(app, &row).await;
        app.store.submit(KeepImport { epoch: row.epoch.clone(), import }).await?;
    }
    Ok(row.holds())
}

/// One reading, and what it came to.
async fn read(app: &App, row: &Quarantine) -> Import {
    let now = app.now();
    let import = |at: Option<Timestamp>, said: String| Import {
        next_at: Some(at.unwrap_or_else(|| after(now, AGAIN_SECONDS))),
        said,
        ..Import::default()
    };
    let from = row.backup.taken_at.min(row.restored_at);
    let (rows, complete) = match movements(&app.paypal, from, row.restored_at, now).await {
        Evidence::Found { rows, complete } => (rows, complete),
        Evidence::Absent(_) => (Vec::new(), true),
        Evidence::NotYet { until } => {
            let lag = REPORT_LAG.as_hours();
            let said = format!("PayPal's report has to reach {lag} h past the restore");
            return import(Some(until), said);
        }
        Evidence::Unreadable { why } => return import(None, format!("not readable: {why}")),
    };
    // What was there when the books began is in the opening balance.
    let began = match app.store.reader().row::<Reconciliation>(Reconciliation::ID) {
        Ok(row) => row.map(|row| row.began),
        Err(why) => return import(None, format!("the books are not readable: {why}")),
    };
    let since = |row: &TransactionRow| began.is_none_or(|began| row.began_after(began));
    let rows: Vec<TransactionRow> = rows.into_iter().filter(since).collect();
    let Placing { mut unplaced, in_suspense } = take_all(app, &rows).await;
    unplaced.retain(|record| !row.accepts(record));
    let unexplained = count(unplaced.len());
    let import = Import {
        records: count(rows.len()),
        unexplained,
        in_suspense,
        unplaced: unplaced.into_iter().take(MOST_NAMED).collect(),
        ..import(None, String::new())
    };
    if !complete {
        return Import { said: "the report is not complete yet".to_owned(), ..import };
    }
    let import = Import { complete_at: Some(now), ..import };
    // INVARIANT: an_import_is_complete_when_all_of_it_has_its_place
    if unexplained > 0 {
        let ids: Vec<&str> =
            import.unplaced.iter().take(SAID).map(|record| record.paypal_id.as_str()).collect();
        let more = if import.unplaced.len() > SAID { " ..." } else { "" };
        let (records, ids) = (import.records, ids.join(" "));
        let said = format!(
            "{unexplained} of {records} records could not be read or have no place: {ids}{more}"
        );
        return Import { said, ..import };
    }
    Import { next_at: None, said: "complete".to_owned(), ..import }
}

fn count(some: usize) -> u64 {
    u64::try_from(some).unwrap_or(u64::MAX)
}

/// What became of the records of a reading.
#[derive(Default)]
struct Placing {
    /// Those that have no place.
    unplaced: Vec<Unplaced>,
    /// How many are money that matches nothing.
    in_suspense: u64,
}

/// Books every record, and says where those are that have no place of their own.
async fn take_all(app: &App, rows: &[TransactionRow]) -> Placing {
    let mut placing = Placing::default();
    for record in in_order(app, rows) {
        let why = match unless_taken(take(app, record).await) {
            Ok(()) => out_of_place(app, record).unwrap_or_else(|error| Some(error.to_string())),
            Err(error) => Some(error.to_string()),
        };
        if why.is_none() && is_in_suspense(app, record).unwrap_or(false) {
            placing.in_suspense = placing.in_suspense.saturating_add(1);
        }
        if let Some(why) = why {
            tracing::error!(transaction = %record.transaction_id, why,
                "a movement at PayPal has no place in the restored books");
            placing.unplaced.push(Unplaced {
                paypal_id: record.transaction_id.clone(),
                code: record.event_code.clone(),
                amount_micros: record.amount_micros,
                invoice_id: record.invoice_id.clone(),
                why,
            });
        }
    }
    placing
}

/// Whether a payment is in the books as money that matches nothing here.
fn is_in_suspense(app: &App, record: &TransactionRow) -> Result<bool, ReadError> {
    let (reader, id) = (app.store.reader(), &record.transaction_id);
    let placed = reader.row::<LostCapture>(id)?.is_some_and(|row| row.is_placed());
    let row = reader.row::<Suspended>(id)?;
    Ok(!placed && row.is_some_and(|row| row.settlement.is_none()))
}

/// The tab that the invoice of a payment names, if it is of our form.
fn named_tab(record: &TransactionRow) -> Option<earnest_core::id::TabId> {
    record.invoice_id.as_deref().filter(|_| record.came_in()).and_then(tab_of_invoice)
}

/// Why a payment has no place, after it was read; `None` where it has one. What bears no proof of ours
/// is a stranger's, and in suspense as soon as it is money.
fn out_of_place(app: &App, record: &TransactionRow) -> Result<Option<String>, ReadError> {
    let (reader, id) = (app.store.reader(), &record.transaction_id);
    let lost = reader.row::<LostCapture>(id)?.filter(|row| !row.is_placed());
    Ok(match lost {
        Some(_) if reader.row::<Suspended>(id)?.is_none() => Some(
            "it is ours, PayPal still decides about it, and neither its tab nor its owner is in the \
             books"
                .to_owned(),
        ),
        _ => None,
    })
}

/// Money that came in first, of tabs that these books know before those they do not: what a tab was
/// paid under its own name is not paid again by one that took its place. Then what refers to it.
fn in_order<'a>(app: &App, rows: &'a [TransactionRow]) -> Vec<&'a TransactionRow> {
    let place = |record: &TransactionRow| {
        let foreign = named_tab(record)
            .is_some_and(|tab| app.store.reader().row::<Tab>(tab).is_ok_and(|tab| tab.is_none()));
        (!record.came_in(), foreign, record.initiated)
    };
    let mut rows: Vec<&TransactionRow> = rows.iter().collect();
    rows.sort_by_cached_key(|record| place(record));
    rows
}

async fn take(app: &App, record: &TransactionRow) -> Result<(), FlowError> {
    // The operator said what it is: PayPal need not be able to tell.
    if scan::is_known(app, record)? {
        return Ok(());
    }
    // Maybe ours, whatever became of it: a charge that PayPal still decides about keeps its tab waiting.
    // Whether it is ours the capture itself says; its record may leave out what it carries.
    if named_tab(record).is_some() {
        settle::capture_hinted(app, &record.transaction_id).await?;
        return Ok(());
    }
    scan::take(app, record).await
}
