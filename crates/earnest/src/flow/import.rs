//! Reading PayPal's records after a restore: everything that moved between the backup and the
//! restore, in a report that is complete past it.
//!
//! What is found is booked as if a webhook had named it, so that reading again changes nothing and a
//! reading that was cut off is simply begun anew.

use earnest_core::lost::Marks;
use earnest_core::quarantine::{Import, KeepImport, MOST_UNEXPLAINED, Quarantine, Unexplained};
use earnest_core::tab::Tab;
use earnest_core::time::{Timestamp, after};
use earnest_paypal::evidence::{Evidence, REPORT_LAG, movements};
use earnest_paypal::reporting::TransactionRow;

use super::paypal::{FlowError, unless_taken};
use super::{scan, settle};
use crate::app::App;

/// How long to wait before an incomplete report is asked for again, in seconds.
const AGAIN_SECONDS: i64 = 600;

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
    if row.holds() && !row.import.explains_all() && !waits {
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
    let (open, failed) = take_all(app, row, &rows).await;
    let number = |many: usize| u64::try_from(many).unwrap_or(u64::MAX);
    let (records, unexplained) = (number(rows.len()), number(open.len()));
    let open = open.into_iter().take(MOST_UNEXPLAINED).collect();
    let import = Import { records, unexplained, open, ..import(None, String::new()) };
    if failed {
        return Import { said: "the books did not take all of it".to_owned(), ..import };
    }
    if !complete {
        return Import { said: "the report is not complete yet".to_owned(), ..import };
    }
    if unexplained > 0 {
        // What could not be read now may be at the next turn.
        let said = format!("complete, and {unexplained} records are not explained");
        return Import { complete_at: Some(now), said, ..import };
    }
    Import { complete_at: Some(now), next_at: None, said: "complete".to_owned(), ..import }
}

/// Books every record: those that nobody can explain, and whether the books failed.
async fn take_all(
    app: &App,
    row: &Quarantine,
    rows: &[TransactionRow],
) -> (Vec<Unexplained>, bool) {
    let (mut open, mut failed) = (Vec::new(), false);
    for record in in_order(app, row, rows) {
        match unless_taken(take(app, row, record).await) {
            Ok(()) => {}
            Err(FlowError::Submit(_) | FlowError::Read(_)) => failed = true,
            Err(error) => {
                open.push(Unexplained {
                    transaction: record.transaction_id.clone(),
                    code: record.event_code.clone(),
                    why: error.to_string(),
                });
                tracing::error!(transaction = %record.transaction_id, %error,
                    "a movement at PayPal is not explained");
            }
        }
    }
    (open, failed)
}

/// Money that came in first, of tabs that these books know before those they do not: what a tab was
/// paid under its own name is not paid again by one that took its place. Then what refers to it.
fn in_order<'a>(
    app: &App,
    row: &Quarantine,
    rows: &'a [TransactionRow],
) -> Vec<&'a TransactionRow> {
    let place = |record: &TransactionRow| {
        let custom = record.custom_field.as_deref();
        let marks = record
            .invoice_id
            .as_ref()
            .and_then(|it| Marks::read(&record.transaction_id, it, custom, &row.ended));
        let foreign = marks.is_some_and(|marks| {
            app.store.reader().row::<Tab>(marks.tab).is_ok_and(|tab| tab.is_none())
        });
        (!record.came_in(), foreign, record.initiated)
    };
    let mut rows: Vec<&TransactionRow> = rows.iter().collect();
    rows.sort_by_key(|record| place(record));
    rows
}

async fn take(app: &App, row: &Quarantine, record: &TransactionRow) -> Result<(), FlowError> {
    let custom = record.custom_field.as_deref();
    let marks = record
        .invoice_id
        .as_ref()
        .and_then(|it| Marks::read(&record.transaction_id, it, custom, &row.ended));
    // Ours, whatever became of it: a charge that PayPal still decides about keeps its tab waiting.
    if marks.is_some() && record.came_in() {
        settle::capture_hinted(app, &record.transaction_id).await?;
        return Ok(());
    }
    scan::take(app, record).await
}
