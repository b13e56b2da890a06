//! Which node does what only one may do, where several run on one database.
//!
//! One node leads, by a lease ([`earnest_core::lease`]): it alone turns what is due into work. What only
//! a leader may say is refused where it would be written once its lease has passed
//! ([`App::submit_leading`]), and it sends nothing then. A node that ends gives the lease back; one
//! that dies is followed by another that asks when the lease has ended, after [`LEASE_SECONDS`] and
//! [`ASK`] at most. Where the books are this process's alone, it leads without a lease:
//! nothing is written for it, and nothing is waited for.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use earnest_core::lease::{Claim, Fenced, GiveBack, passed};
use earnest_core::time::{SignedDuration, Timestamp};
use earnest_core::unit::Unit;
use earnest_store::SubmitError;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::flow::paypal::FlowError;

/// How long a node leads without asking again, in seconds. At half of it the log grows by an entry; and
/// for so long, and the [`ASK`] after it, nothing is done by itself when the leader died.
pub const LEASE_SECONDS: i64 = 15;
/// How often a node asks.
pub const ASK: Duration = Duration::from_secs(3);
/// What the lease is for.
pub const JOBS: &str = "jobs";
/// What a node holds while it makes what is made once, at its start.
const START: &str = "start";
/// How often it asks for that, and for how long, before it goes on all the same.
const START_ASK: Duration = Duration::from_millis(50);
const START_WAIT: Duration = Duration::from_secs(20);

/// A right that lasts for so long from before it was asked for.
///
/// The books say until when by their own clock; whoever holds it goes by its own, and by two: the
/// machine's time since it started, which nobody sets, and the time of day, which goes on while the
/// machine sleeps. Whichever went further counts.
#[derive(Clone, Copy, Debug)]
pub struct Right {
    asked: Instant,
    asked_at: Timestamp,
    lasts: SignedDuration,
}

impl Right {
    /// One that is about to be asked for.
    pub fn ask(app: &App, seconds: i64) -> Self {
        Self {
            asked: Instant::now(),
            asked_at: app.now(),
            lasts: SignedDuration::from_secs(seconds),
        }
    }

    /// Whether at least so much of it is left.
    pub fn lasts(&self, app: &App, at_least: Duration) -> bool {
        let by_day = app.now().duration_since(self.asked_at);
        let by_machine = SignedDuration::try_from(self.asked.elapsed());
        let gone = by_day.max(by_machine.unwrap_or(SignedDuration::MAX));
        let needed = SignedDuration::try_from(at_least).unwrap_or(SignedDuration::MAX);
        self.lasts.saturating_sub(gone) > needed
    }
}

/// Whether this node leads, as far as it knows.
#[derive(Debug, Default)]
pub struct Lead(Mutex<Option<(Right, u64)>>);

impl Lead {
    fn lock(&self) -> MutexGuard<'_, Option<(Right, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fence it leads under.
    fn fence(&self, app: &App) -> Option<u64> {
        self.lock().filter(|(right, _)| right.lasts(app, Duration::ZERO)).map(|(_, fence)| fence)
    }
}

impl App {
    /// Whether this node leads now.
    pub fn leads(&self) -> bool {
        !self.store.is_shared() || self.lead.fence(self).is_some()
    }

    /// Commits a unit if this node leads where it is written.
    ///
    /// # Errors
    /// As [`earnest_store::Store::submit`]; `state_conflict` where another node leads.
    pub async fn submit_leading<U: Unit>(&self, unit: U) -> Result<U::Answer, SubmitError> {
        if !self.store.is_shared() {
            return self.store.submit(unit).await;
        }
        let fence = self.lead.fence(self);
        let fence = fence.ok_or_else(|| SubmitError::Refused(Box::new(passed())))?;
        let (lease, node) = (JOBS.to_owned(), self.node.clone());
        self.store.submit(Fenced { lease, node, fence, unit }).await
    }
}

/// Whether something was left undone because another node leads now.
pub fn is_passed(error: &FlowError) -> bool {
    let FlowError::Submit(SubmitError::Refused(refusal)) = error else { return false };
    **refusal == passed()
}

/// Asks to lead, or to go on leading; whether this node does.
pub async fn ask(app: &App) -> bool {
    if !app.store.is_shared() {
        return true;
    }
    let right = Right::ask(app, LEASE_SECONDS);
    let claimed = app.store.submit(claim(app, JOBS)).await;
    let mut known = app.lead.lock();
    match claimed {
        Ok(claimed) if claimed.held => {
            if known.is_none_or(|(_, fence)| fence != claimed.fence) {
                tracing::info!(fence = claimed.fence, "this node leads");
            }
            *known = Some((Right { lasts: claimed.left, ..right }, claimed.fence));
        }
        Ok(claimed) => {
            if known.take().is_some() {
                tracing::warn!(fence = claimed.fence, "another node leads");
            }
        }
        // What it holds it holds until its end.
        Err(error) => tracing::warn!(%error, "nobody can tell who leads"),
    }
    drop(known);
    app.leads()
}

fn claim(app: &App, name: &str) -> Claim {
    Claim { name: name.to_owned(), node: app.node.clone(), seconds: LEASE_SECONDS }
}

async fn give_back(app: &App, name: &str) {
    let unit = GiveBack { name: name.to_owned(), node: app.node.clone() };
    if let Err(error) = app.store.submit(unit).await {
        tracing::warn!(%error, "a lease was not given back, and ends by itself");
    }
}

/// Goes on asking until told to stop.
pub async fn keep(app: &App, stop: &CancellationToken) {
    if !app.store.is_shared() {
        return stop.cancelled().await;
    }
    let turn = |app| async move {
        ask(app).await;
    };
    crate::jobs::everywhere(app, stop, ASK, turn).await;
}

/// Leads no more, so that another node need not wait: when everything that leads has ended.
pub async fn resign(app: &App) {
    if app.store.is_shared() && app.lead.lock().take().is_some() {
        give_back(app, JOBS).await;
    }
}

/// Does what is done once, when nodes start: one after the other, so that the second finds what the
/// first one made. Whoever cannot wait any longer goes on.
pub async fn one_by_one<T>(app: &App, work: impl Future<Output = T>) -> T {
    if !app.store.is_shared() {
        return work.await;
    }
    let begun = Instant::now();
    loop {
        match app.store.submit(claim(app, START)).await {
            Ok(claimed) if claimed.held => break,
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "nobody can tell which node starts"),
        }
        if begun.elapsed() > START_WAIT {
            tracing::warn!("another node does not end its start");
            break;
        }
        tokio::time::sleep(START_ASK).await;
    }
    let done = while_held(app, work).await;
    give_back(app, START).await;
    done
}

/// Asks for the lease again while the work goes on: it may wait for a PayPal that answers late.
async fn while_held<T>(app: &App, work: impl Future<Output = T>) -> T {
    let mut ask = tokio::time::interval(ASK);
    ask.reset();
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = ask.tick() => {
                if let Err(error) = app.store.submit(claim(app, START)).await {
                    tracing::warn!(%error, "the lease of the start was not renewed");
                }
            }
        }
    }
}
