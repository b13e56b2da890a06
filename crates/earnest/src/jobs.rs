//! What happens without anybody asking: the report clock, expiry, the treasurer, intents, receipts.
//!
//! Every job lists by a plain read what may be due and submits units that check again. A job that
//! fails is logged and tried again at its next turn; nothing is lost by a job that never ran.

use std::time::Duration;

use earnest_core::intent::Intent;
use earnest_core::party::{Origin, Seller};
use earnest_core::purchase::{Purchase, ReportClock};
use earnest_core::report::{Expire, Tick};
use earnest_core::reversal::Reversal;
use earnest_core::settlement::Settlement;
use earnest_core::tab::Tab;
use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, error_span};

use crate::app::App;
use crate::flow::paypal::{FlowError, carry_out};
use crate::flow::webhook::WebhookEvent;
use crate::flow::{advisor, hook, import, lost, origin, receipt, reversal, scan, settle, webhook};
use crate::signing;

/// How often the report clock is advanced.
const TICK: Duration = Duration::from_secs(5);
/// How often jobs look without being woken.
const LOOK: Duration = Duration::from_secs(1);
/// How often it is looked for origins that have to be asked again.
const PROOFS: Duration = Duration::from_secs(60);
/// How often it is looked for tabs that the advisor may be asked about.
const ADVICE: Duration = Duration::from_secs(10);
/// How much one look takes on.
const PAGE: usize = 500;

/// Runs the jobs until told to stop; a job that is under way is finished first.
///
/// The report clock, the books and PayPal go on apart from each other: a PayPal that does not answer
/// delays its own calls and nothing else.
pub fn spawn(app: App, stop: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(async move {
        tokio::join!(
            clock(&app, &stop).instrument(error_span!("job", job = "clock")),
            books(&app, &stop).instrument(error_span!("job", job = "books")),
            calls(&app, &stop).instrument(error_span!("job", job = "calls")),
            proofs(&app, &stop).instrument(error_span!("job", job = "proofs")),
            hooks(&app, &stop).instrument(error_span!("job", job = "hooks")),
            advice(&app, &stop).instrument(error_span!("job", job = "advice"))
        );
    })
}

async fn clock(app: &App, stop: &CancellationToken) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        if let Err(error) = app.store.submit(Tick).await {
            tracing::error!(%error, "the report clock does not advance");
        }
    }
}

async fn books(app: &App, stop: &CancellationToken) {
    let mut woken = app.wake.listen();
    while pause(&mut woken, stop).await {
        log_turn(look_at_books(app).await);
    }
}

async fn proofs(app: &App, stop: &CancellationToken) {
    let mut turn = tokio::time::interval(PROOFS);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = turn.tick() => {
                log_turn(origins(app).await);
                // Another process may have rotated keys.
                if let Err(error) = signing::reload(app) {
                    tracing::error!(%error, "the signing keys cannot be read again");
                }
            }
        }
    }
}

/// Apart from the others, since a model may take its time.
async fn advice(app: &App, stop: &CancellationToken) {
    let mut turn = tokio::time::interval(ADVICE);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = turn.tick() => log_turn(advisor::look(app).await),
        }
    }
}

async fn calls(app: &App, stop: &CancellationToken) {
    let mut woken = app.wake.listen();
    while pause(&mut woken, stop).await {
        log_turn(intents(app).await);
        log_turn(webhooks(app).await);
        log_turn(reversals(app).await);
        log_turn(records(app).await);
    }
}

async fn hooks(app: &App, stop: &CancellationToken) {
    let mut head = app.store.watch_head();
    let mut read = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = head.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(LOOK) => {}
        }
        log_turn(hook::fan_out(app, &mut read).await);
        log_turn(hook::send_due(app).await);
    }
}

/// Waits for the next turn; `false` when there is none.
async fn pause(woken: &mut watch::Receiver<()>, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        _ = woken.changed() => true,
        () = tokio::time::sleep(LOOK) => true,
    }
}

fn log_turn(turn: Result<(), FlowError>) {
    if let Err(error) = turn {
        tracing::error!(%error, "a job failed");
    }
}

async fn look_at_books(app: &App) -> Result<(), FlowError> {
    expire(app).await?;
    treasurer(app).await?;
    receipts(app).await
}

/// One turn of every job but the report clock. Tests call it themselves.
///
/// # Errors
/// [`FlowError`] when the books cannot be read; what fails for one row is logged and skipped.
pub async fn look(app: &App) -> Result<(), FlowError> {
    expire(app).await?;
    treasurer(app).await?;
    intents(app).await?;
    webhooks(app).await?;
    reversals(app).await?;
    records(app).await?;
    receipts(app).await?;
    advisor::look(app).await?;
    hook::fan_out(app, &mut None).await?;
    hook::send_due(app).await
}

fn log_failed(what: &str, id: &(dyn std::fmt::Display + Sync), result: Result<(), FlowError>) {
    if let Err(error) = result {
        tracing::error!(%id, %error, "{what} failed, and is tried again");
    }
}

/// Gives up holds that nobody reported in time.
///
/// # Errors
/// When the books cannot be read.
pub async fn expire(app: &App) -> Result<(), FlowError> {
    let reader = app.store.reader();
    let clock = reader.row::<ReportClock>(ReportClock::ID)?.map_or(0, |clock| clock.elapsed_ms);
    let page = reader.list::<Purchase>("holds.due", "", None, PAGE, false)?;
    for purchase in page.items {
        if purchase.report_by.is_none_or(|by| by > clock) {
            break;
        }
        let unit = Expire { purchase: purchase.id, tab: purchase.tab };
        let done = app.store.submit(unit).await.map(|_| ()).map_err(FlowError::from);
        log_failed("expiry", &purchase.id, done);
    }
    Ok(())
}

/// Asks the treasurer's rules about every tab that may still owe something.
///
/// # Errors
/// When the books cannot be read.
pub async fn treasurer(app: &App) -> Result<(), FlowError> {
    let quarantined = lost::in_force(app)?;
    let mut cursor = None;
    loop {
        let page = app.store.reader().list::<Tab>("tabs.live", "", cursor.as_ref(), PAGE, false)?;
        for tab in &page.items {
            // What a lost life captured pays before anything is settled.
            log_failed("clearing", &tab.id, lost::clear(app, tab).await);
            if !quarantined {
                log_failed("settling", &tab.id, settle::look_at(app, tab).await);
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(());
        }
    }
}

/// Carries out intents that are due, many at once.
///
/// # Errors
/// When the books cannot be read.
pub async fn intents(app: &App) -> Result<(), FlowError> {
    let now = app.now();
    let page = app.store.reader().list::<Intent>("intents.open", "", None, PAGE, false)?;
    let due = page.items.into_iter().take_while(|intent| intent.next_at <= now);
    let calls = due.map(|intent| async move {
        log_failed("a PayPal call", &intent.id, carry_out(app, intent.id).await);
    });
    futures_util::stream::iter(calls)
        .for_each_concurrent(app.limits.paypal_calls, |call| call)
        .await;
    Ok(())
}

/// Asks origins again whose proof is a day old.
///
/// # Errors
/// When the books cannot be read.
pub async fn origins(app: &App) -> Result<(), FlowError> {
    let now = app.now();
    let page = app.store.reader().list::<Seller>("origins.due", "", None, PAGE, false)?;
    let due = |known: &Origin| known.next_check_at.is_some_and(|at| at <= now);
    let mut asks = Vec::new();
    for seller in &page.items {
        for known in seller.origins.iter().filter(|known| due(known)) {
            asks.push(async move {
                let done = origin::check(app, seller.id, &known.origin).await;
                log_failed("asking an origin", &known.origin, done.map_err(FlowError::from));
            });
        }
    }
    futures_util::stream::iter(asks).for_each_concurrent(app.limits.paypal_calls, |ask| ask).await;
    Ok(())
}

/// Follows up webhooks that the process which took them in did not.
///
/// # Errors
/// When the books cannot be read.
pub async fn webhooks(app: &App) -> Result<(), FlowError> {
    let now = app.now();
    let reader = app.store.reader();
    let page = reader.list::<WebhookEvent>("webhook_events.open", "", None, PAGE, false)?;
    let due = page.items.into_iter().take_while(|event| event.next_at <= now);
    let reads = due.map(|event| async move { webhook::follow_up(app, &event).await });
    futures_util::stream::iter(reads)
        .for_each_concurrent(app.limits.paypal_calls, |read| read)
        .await;
    Ok(())
}

/// Reads what went back at PayPal, many captures at once.
///
/// # Errors
/// When the books cannot be read.
pub async fn reversals(app: &App) -> Result<(), FlowError> {
    let now = app.now();
    let page = app.store.reader().list::<Reversal>("reversals.open", "", None, PAGE, false)?;
    let due = page.items.into_iter().take_while(|row| row.next_at <= now);
    let reads = due.map(|row| async move {
        log_failed("reading a reversal", &row.capture, reversal::look_at(app, &row).await);
    });
    futures_util::stream::iter(reads)
        .for_each_concurrent(app.limits.paypal_calls, |read| read)
        .await;
    Ok(())
}

/// Looks through PayPal's records: from the backup on while the books are quarantined, and for what
/// no webhook told afterwards.
///
/// # Errors
/// When the books cannot be read or written.
pub async fn records(app: &App) -> Result<(), FlowError> {
    lost::read_pending(app).await?;
    if import::look(app).await? { Ok(()) } else { scan::look(app).await }
}

/// Signs receipts of settlements that have none.
///
/// # Errors
/// When the books cannot be read.
pub async fn receipts(app: &App) -> Result<(), FlowError> {
    let page =
        app.store.reader().list::<Settlement>("settlements.unsigned", "", None, PAGE, false)?;
    for settlement in page.items {
        log_failed("signing a receipt", &settlement.id, receipt::sign(app, &settlement).await);
    }
    Ok(())
}
