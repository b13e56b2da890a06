//! What happens without anybody asking: the report clock, expiry, the treasurer, intents, receipts.
//!
//! Every job lists by a plain read what may be due and submits units that check again. A job that
//! fails is logged and tried again at its next turn; nothing is lost by a job that never ran.

use std::future::Future;
use std::time::Duration;

use earnest_core::hook::Delivery;
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
use crate::flight::{Piece, Room, fly};
use crate::flow::paypal::{FlowError, carry_out};
use crate::flow::webhook::WebhookEvent;
use crate::flow::{
    advisor, cash, hook, import, lost, origin, receipt, reversal, scan, settle, webhook,
};
use crate::signing;

/// How often the report clock is advanced.
const TICK: Duration = Duration::from_secs(5);
/// How often jobs look without being woken.
pub const LOOK: Duration = Duration::from_secs(1);
/// How often it is looked for origins that have to be asked again, and for what can be cleared away.
const SELDOM: Duration = Duration::from_secs(60);
/// How often it is looked for tabs that the advisor may be asked about.
const ADVICE: Duration = Duration::from_secs(10);
/// How much one look takes on.
const PAGE: usize = 500;

/// Runs the jobs until told to stop; what is under way is finished first.
///
/// Each goes on apart from the others, at a pace of its own: a PayPal or an endpoint that does not
/// answer delays its own calls and nothing else.
pub fn spawn(app: App, stop: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(async move {
        let (app, stop) = (&app, &stop);
        tokio::join!(
            clock(app, stop).instrument(error_span!("job", job = "clock")),
            turns(app, stop, expire).instrument(error_span!("job", job = "expiry")),
            turns(app, stop, treasurer).instrument(error_span!("job", job = "treasurer")),
            turns(app, stop, receipts).instrument(error_span!("job", job = "receipts")),
            turns(app, stop, records).instrument(error_span!("job", job = "records")),
            paced(app, stop, SELDOM, origins).instrument(error_span!("job", job = "proofs")),
            paced(app, stop, SELDOM, reload).instrument(error_span!("job", job = "keys")),
            paced(app, stop, SELDOM, hook::clear).instrument(error_span!("job", job = "clearing")),
            paced(app, stop, ADVICE, advisor::look).instrument(error_span!("job", job = "advice")),
            fan_out(app, stop).instrument(error_span!("job", job = "fan_out")),
            calls(app, stop).instrument(error_span!("job", job = "calls")),
            told(app, stop).instrument(error_span!("job", job = "webhooks")),
            backs(app, stop).instrument(error_span!("job", job = "reversals")),
            deliveries(app, stop).instrument(error_span!("job", job = "deliveries"))
        );
    })
}

/// A job of one piece, each time there may be something to do.
async fn turns<'a, F>(app: &'a App, stop: &CancellationToken, job: impl Fn(&'a App) -> F)
where
    F: Future<Output = Result<(), FlowError>>,
{
    let mut woken = app.wake.listen();
    while pause(&mut woken, stop).await {
        log_turn(job(app).await);
    }
}

fn piece<T>(name: &(dyn std::fmt::Display + Sync), work: T) -> Piece<T> {
    Piece { name: name.to_string(), place: String::new(), work }
}

fn room(app: &App) -> Room {
    Room { all: app.limits.paypal_calls, each: app.limits.paypal_calls }
}

async fn calls(app: &App, stop: &CancellationToken) {
    let due = |app: &App| {
        Ok(due_intents(app)?.into_iter().map(|intent| piece(&intent.id.clone(), intent)).collect())
    };
    let begin = |app, intent| async move { call(&app, &intent).await };
    fly(app, stop, app.wake.listen(), room(app), due, begin).await;
}

async fn told(app: &App, stop: &CancellationToken) {
    let due = |app: &App| {
        Ok(due_webhooks(app)?.into_iter().map(|event| piece(&event.id.clone(), event)).collect())
    };
    let begin = |app, event| async move { webhook::follow_up(&app, &event).await };
    fly(app, stop, app.wake.listen(), room(app), due, begin).await;
}

async fn backs(app: &App, stop: &CancellationToken) {
    let due = |app: &App| {
        Ok(due_reversals(app)?.into_iter().map(|row| piece(&row.capture.clone(), row)).collect())
    };
    let begin = |app, row| async move { back(&app, &row).await };
    fly(app, stop, app.wake.listen(), room(app), due, begin).await;
}

async fn deliveries(app: &App, stop: &CancellationToken) {
    let limits = &app.limits;
    let room = Room { all: limits.webhook_calls, each: limits.webhook_calls_per_endpoint };
    let due = |app: &App| {
        let piece = |delivery: Delivery| Piece {
            name: delivery.id.to_string(),
            place: delivery.hook.to_string(),
            work: delivery,
        };
        Ok(hook::due(app)?.into_iter().map(piece).collect())
    };
    let begin = |app, delivery| async move { hook::deliver(&app, &delivery).await };
    fly(app, stop, app.store.watch_head(), room, due, begin).await;
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

/// A job of one piece, now and then.
async fn paced<'a, F>(
    app: &'a App,
    stop: &CancellationToken,
    every: Duration,
    job: impl Fn(&'a App) -> F,
) where
    F: Future<Output = Result<(), FlowError>>,
{
    let mut turn = tokio::time::interval(every);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = turn.tick() => {}
        }
        log_turn(job(app).await);
    }
}

/// Another process may have rotated keys.
async fn reload(app: &App) -> Result<(), FlowError> {
    if let Err(error) = signing::reload(app) {
        tracing::error!(%error, "the signing keys cannot be read again");
    }
    Ok(())
}

async fn fan_out(app: &App, stop: &CancellationToken) {
    let mut head = app.store.watch_head();
    let mut read = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = head.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(LOOK) => {}
        }
        log_turn(hook::fan_out(app, &mut read).await);
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
    hook::send_due(app).await?;
    hook::clear(app).await
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

fn due_intents(app: &App) -> Result<Vec<Intent>, FlowError> {
    let now = app.now();
    let page = app.store.reader().list::<Intent>("intents.open", "", None, PAGE, false)?;
    Ok(page.items.into_iter().take_while(|intent| intent.next_at <= now).collect())
}

async fn call(app: &App, intent: &Intent) {
    log_failed("a PayPal call", &intent.id, carry_out(app, intent.id).await);
}

/// Carries out intents that are due, many at once.
///
/// # Errors
/// When the books cannot be read.
pub async fn intents(app: &App) -> Result<(), FlowError> {
    let due = due_intents(app)?;
    let calls = due.iter().map(|intent| call(app, intent));
    futures_util::stream::iter(calls).for_each_concurrent(app.limits.paypal_calls, |it| it).await;
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

fn due_webhooks(app: &App) -> Result<Vec<WebhookEvent>, FlowError> {
    let now = app.now();
    let reader = app.store.reader();
    let page = reader.list::<WebhookEvent>("webhook_events.open", "", None, PAGE, false)?;
    Ok(page.items.into_iter().take_while(|event| event.next_at <= now).collect())
}

/// Follows up webhooks that the process which took them in did not.
///
/// # Errors
/// When the books cannot be read.
pub async fn webhooks(app: &App) -> Result<(), FlowError> {
    let due = due_webhooks(app)?;
    let reads = due.iter().map(|event| webhook::follow_up(app, event));
    futures_util::stream::iter(reads).for_each_concurrent(app.limits.paypal_calls, |it| it).await;
    Ok(())
}

fn due_reversals(app: &App) -> Result<Vec<Reversal>, FlowError> {
    let now = app.now();
    let page = app.store.reader().list::<Reversal>("reversals.open", "", None, PAGE, false)?;
    Ok(page.items.into_iter().take_while(|row| row.next_at <= now).collect())
}

async fn back(app: &App, row: &Reversal) {
    log_failed("reading a reversal", &row.capture, reversal::look_at(app, row).await);
}

/// Reads what went back at PayPal, many captures at once.
///
/// # Errors
/// When the books cannot be read.
pub async fn reversals(app: &App) -> Result<(), FlowError> {
    let due = due_reversals(app)?;
    let reads = due.iter().map(|row| back(app, row));
    futures_util::stream::iter(reads).for_each_concurrent(app.limits.paypal_calls, |it| it).await;
    Ok(())
}

/// Looks through PayPal's records: from the backup on while the books are quarantined, and for what
/// no webhook told afterwards.
///
/// # Errors
/// When the books cannot be read or written.
pub async fn records(app: &App) -> Result<(), FlowError> {
    lost::read_pending(app).await?;
    cash::read_voided(app).await?;
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
