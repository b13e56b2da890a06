//! What happens without anybody asking: the report clock, expiry, the treasurer, intents, receipts.
//!
//! Every job lists by a plain read what may be due and submits units that check again. A job that
//! fails is logged and tried again at its next turn; nothing is lost by a job that never ran.
//!
//! Where several nodes run on one database, each job is one of three kinds. Most are the leader's
//! ([`crate::lead`]): they only look, until it is this node that leads. Calls to PayPal are made by
//! every node, since whoever plans one wants it made at once; each is claimed by a row of its own. And
//! what keeps memory fresh runs on every node.

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
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::flight::{Errand, Piece, Room, drain, fly};
use crate::flow::paypal::{FlowError, carry_out};
use crate::flow::webhook::WebhookEvent;
use crate::flow::{
    advisor, cash, dispute, hook, import, lost, origin, receipt, reversal, scan, settle, strain,
    webhook,
};
use crate::lead;
use crate::supervise::{apart, supervise};

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

type Job = fn(App, CancellationToken) -> BoxFuture<'static, ()>;

/// Every job with its name. Each goes on apart from the others, at a pace of its own: a PayPal or an
/// endpoint that does not answer delays its own calls and nothing else.
#[rustfmt::skip]
const JOBS: [(&str, Job); 16] = [
    ("lead", |app, stop| Box::pin(async move { lead::keep(&app, &stop).await })),
    ("clock", |app, stop| Box::pin(async move { paced(&app, &stop, TICK, tick_once).await })),
    ("expiry", |app, stop| Box::pin(async move { turns(&app, &stop, expire).await })),
    ("treasurer", |app, stop| Box::pin(async move { turns(&app, &stop, treasurer).await })),
    ("receipts", |app, stop| Box::pin(async move { turns(&app, &stop, receipts).await })),
    ("records", |app, stop| Box::pin(async move { turns(&app, &stop, records).await })),
    ("proofs", |app, stop| Box::pin(async move { paced(&app, &stop, SELDOM, origins).await })),
    ("keys", |app, stop| Box::pin(async move { everywhere(&app, &stop, SELDOM, reload).await })),
    ("clearing", |app, stop| Box::pin(async move { paced(&app, &stop, SELDOM, hook::clear).await })),
    ("strain", |app, stop| Box::pin(async move { paced(&app, &stop, ADVICE, strain::look).await })),
    ("advice", |app, stop| Box::pin(async move { paced(&app, &stop, ADVICE, advisor::look).await })),
    ("fan_out", |app, stop| Box::pin(async move { fan_out(&app, &stop).await })),
    (Calls::NAME, |app, stop| Box::pin(async move { fly::<Calls, _>(&app, &stop, app.wake.listen()).await })),
    (Webhooks::NAME, |app, stop| Box::pin(async move { fly::<Webhooks, _>(&app, &stop, app.wake.listen()).await })),
    (Reversals::NAME, |app, stop| Box::pin(async move { fly::<Reversals, _>(&app, &stop, app.wake.listen()).await })),
    (Deliveries::NAME, |app, stop| Box::pin(async move { fly::<Deliveries, _>(&app, &stop, app.store.watch_head()).await })),
];

/// The names of all jobs.
pub fn names() -> impl Iterator<Item = &'static str> {
    JOBS.iter().map(|(name, _)| *name)
}

/// Runs the jobs until told to stop, and begins again what dies; what is under way is finished first.
pub fn spawn(app: App, stop: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(async move {
        let (app, stop) = (&app, &stop);
        let each = JOBS
            .iter()
            .map(|(name, job)| supervise(app, stop, name, move || job(app.clone(), stop.clone())));
        futures_util::future::join_all(each).await;
    })
}

/// A job of one piece, each time there may be something to do.
async fn turns<'a, F>(app: &'a App, stop: &CancellationToken, job: impl Fn(&'a App) -> F)
where
    F: Future<Output = Result<(), FlowError>>,
{
    let mut woken = app.wake.listen();
    while pause(&mut woken, stop).await {
        led(app, job(app)).await;
    }
}

/// One turn of a job that is the leader's.
async fn led(app: &App, turn: impl Future<Output = Result<(), FlowError>>) {
    if app.leads() {
        log_turn(turn.await);
    }
}

fn pieces<T>(rows: Vec<T>, name: impl Fn(&T) -> String) -> Vec<Piece<T>> {
    let piece = |work: T| Piece { name: name(&work), place: String::new(), work };
    rows.into_iter().map(piece).collect()
}

fn paypal_room(app: &App) -> Room {
    Room { all: app.limits.paypal_calls, each: app.limits.paypal_calls }
}

/// Carries out intents.
struct Calls;

impl Errand for Calls {
    type Work = Intent;
    const NAME: &'static str = "calls";
    const LED: bool = false;

    fn room(app: &App) -> Room {
        paypal_room(app)
    }

    fn due(app: &App) -> Result<Vec<Piece<Intent>>, FlowError> {
        let now = app.now();
        let page = app.store.reader().list::<Intent>("intents.open", "", None, PAGE, false)?;
        let due = page.items.into_iter().take_while(|intent| intent.next_at <= now).collect();
        Ok(pieces(due, |intent| intent.id.to_string()))
    }

    async fn begin(app: App, intent: Intent) {
        log_failed("a PayPal call", &intent.id, carry_out(&app, intent.id).await);
    }
}

/// Follows up webhooks that the process which took them in did not.
struct Webhooks;

impl Errand for Webhooks {
    type Work = WebhookEvent;
    const NAME: &'static str = "webhooks";

    fn room(app: &App) -> Room {
        paypal_room(app)
    }

    fn due(app: &App) -> Result<Vec<Piece<WebhookEvent>>, FlowError> {
        let now = app.now();
        let reader = app.store.reader();
        let page = reader.list::<WebhookEvent>("webhook_events.open", "", None, PAGE, false)?;
        let due = page.items.into_iter().take_while(|event| event.next_at <= now).collect();
        Ok(pieces(due, |event| event.id.clone()))
    }

    async fn begin(app: App, event: WebhookEvent) {
        webhook::follow_up(&app, &event).await;
    }
}

/// Reads what went back at PayPal.
struct Reversals;

impl Errand for Reversals {
    type Work = Reversal;
    const NAME: &'static str = "reversals";

    fn room(app: &App) -> Room {
        paypal_room(app)
    }

    fn due(app: &App) -> Result<Vec<Piece<Reversal>>, FlowError> {
        let now = app.now();
        let page = app.store.reader().list::<Reversal>("reversals.open", "", None, PAGE, false)?;
        let due = page.items.into_iter().take_while(|row| row.next_at <= now).collect();
        Ok(pieces(due, |row| row.capture.clone()))
    }

    async fn begin(app: App, row: Reversal) {
        log_failed("reading a reversal", &row.capture, reversal::look_at(&app, &row).await);
    }
}

/// Tells endpoints of events; one endpoint has room of its own.
struct Deliveries;

impl Errand for Deliveries {
    type Work = Delivery;
    const NAME: &'static str = "deliveries";

    fn room(app: &App) -> Room {
        // The room of one endpoint is what is due of it: see `hook::due`.
        Room { all: app.limits.webhook_calls, each: app.limits.webhook_calls }
    }

    fn due(app: &App) -> Result<Vec<Piece<Delivery>>, FlowError> {
        let piece = |delivery: Delivery| Piece {
            name: delivery.id.to_string(),
            place: delivery.hook.to_string(),
            work: delivery,
        };
        Ok(hook::due(app)?.into_iter().map(piece).collect())
    }

    async fn begin(app: App, delivery: Delivery) {
        hook::deliver(&app, &delivery).await;
    }
}

/// The report clock advances by what went by since it was last advanced, so that it goes on where
/// another node left it.
async fn tick_once(app: &App) -> Result<(), FlowError> {
    app.submit_leading(Tick).await?;
    Ok(())
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
    everywhere(app, stop, every, |app| led(app, job(app))).await;
}

/// The same on every node.
pub(crate) async fn everywhere<'a, F>(
    app: &'a App,
    stop: &CancellationToken,
    every: Duration,
    job: impl Fn(&'a App) -> F,
) where
    F: Future<Output = ()>,
{
    let mut turn = tokio::time::interval(every);
    turn.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = turn.tick() => {}
        }
        job(app).await;
    }
}

/// Another process may have rotated keys, and what is at hand of those that ended long ago goes.
async fn reload(app: &App) {
    app.doubt_keys();
    app.keys();
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
        led(app, hook::fan_out(app, &mut read)).await;
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
    match turn {
        Ok(()) => {}
        Err(error) if lead::is_passed(&error) => tracing::info!("left to the node that leads now"),
        Err(error) => tracing::error!(%error, "a job failed"),
    }
}

/// One turn of every job of this node's, one after the other, with what is due drained as the jobs
/// themselves begin it; but not the report clock, and nothing that goes to sellers' origins. Tests
/// call it.
///
/// # Errors
/// [`FlowError`] when the books cannot be read; what fails for one row is logged and skipped.
pub async fn look(app: &App) -> Result<(), FlowError> {
    if !lead::ask(app).await {
        intents(app).await?;
        reload(app).await;
        return Ok(());
    }
    expire(app).await?;
    treasurer(app).await?;
    intents(app).await?;
    webhooks(app).await?;
    reversals(app).await?;
    records(app).await?;
    receipts(app).await?;
    advisor::look(app).await?;
    hook::fan_out(app, &mut None).await?;
    drain::<Deliveries>(app).await?;
    hook::clear(app).await?;
    reload(app).await;
    Ok(())
}

fn log_failed(what: &str, id: &(dyn std::fmt::Display + Sync), result: Result<(), FlowError>) {
    match result {
        Ok(()) => {}
        Err(error) if lead::is_passed(&error) => {
            tracing::info!(%id, "{what} is left to the node that leads now");
        }
        Err(error) => tracing::error!(%id, %error, "{what} failed, and is tried again"),
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
        let work = async {
            let done = app.submit_leading(unit).await.map(|_| ()).map_err(FlowError::from);
            log_failed("expiry", &purchase.id, done);
        };
        apart(app, "expiry", &purchase.id, work).await;
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
            let work = async {
                // What a lost life captured pays before anything is settled.
                log_failed("clearing", &tab.id, lost::clear(app, tab).await);
                if !quarantined {
                    log_failed("settling", &tab.id, settle::look_at(app, tab).await);
                }
            };
            apart(app, "treasurer", &tab.id, work).await;
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
    drain::<Calls>(app).await
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

/// Follows up webhooks that are due.
///
/// # Errors
/// When the books cannot be read.
pub async fn webhooks(app: &App) -> Result<(), FlowError> {
    drain::<Webhooks>(app).await
}

/// Reads what went back at PayPal, many captures at once.
///
/// # Errors
/// When the books cannot be read.
pub async fn reversals(app: &App) -> Result<(), FlowError> {
    drain::<Reversals>(app).await
}

/// Looks through PayPal's records: from the backup on while the books are quarantined, and for what
/// no webhook told afterwards.
///
/// # Errors
/// When the books cannot be read or written.
pub async fn records(app: &App) -> Result<(), FlowError> {
    lost::read_pending(app).await?;
    cash::read_voided(app).await?;
    cash::read_recorded(app).await?;
    dispute::read_open(app).await?;
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
        let work = async {
            log_failed("signing a receipt", &settlement.id, receipt::sign(app, &settlement).await);
        };
        apart(app, "receipts", &settlement.id, work).await;
    }
    Ok(())
}
