//! Jobs that are begun again when they die.
//!
//! Nothing here may end in silence: what panics, and what ends without being told to, is logged,
//! counted, said to the operator as an alarm, and begun again after a rest that grows. A job that
//! keeps dying is said by `/readyz`.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use earnest_core::job::JobDied;
use futures_util::FutureExt as _;
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, error_span};

use crate::app::App;

/// How long a job rests that died for the first time; twice as long after each further time.
const FIRST_REST: Duration = Duration::from_secs(1);
/// The longest rest.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// After so long without dying it counts as well again. Longer than the longest rest.
const WELL_AFTER: Duration = Duration::from_secs(300);
/// A job that died so often, never well in between, is failing.
const FAILING: u32 = 3;

/// How a job fares that died lately.
#[derive(Clone, Copy, Debug)]
struct Ill {
    times: u32,
    last: Instant,
}

/// Which jobs died lately, and on which rows.
#[derive(Debug, Default)]
pub struct Health {
    ill: Mutex<BTreeMap<&'static str, Ill>>,
    /// Until when rows are left alone that a job died on, by job and row.
    aside: Mutex<BTreeMap<(&'static str, String), Instant>>,
}

impl Health {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Ill>> {
        self.ill.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_aside(&self, job: &'static str, row: &str, now: Instant) -> bool {
        let aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked for only where anything is aside: nearly never.
        !aside.is_empty() && aside.get(&(job, row.to_owned())).is_some_and(|until| *until > now)
    }

    fn set_aside(&self, job: &'static str, row: &str, until: Instant, now: Instant) {
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        aside.retain(|_, until| *until > now);
        aside.insert((job, row.to_owned()), until);
    }

    /// Takes note that a job died; how often it did, never well in between.
    fn died(&self, job: &'static str, now: Instant) -> u32 {
        let mut ill = self.lock();
        let known = ill.entry(job).or_insert(Ill { times: 0, last: now });
        let well = now.duration_since(known.last) >= WELL_AFTER;
        let times = if well { 1 } else { known.times.saturating_add(1) };
        *known = Ill { times, last: now };
        times
    }

    /// The jobs that keep dying, by name.
    pub fn failing(&self, now: Instant) -> Vec<&'static str> {
        let ill = self.lock();
        let failing = |it: &Ill| it.times >= FAILING && now.duration_since(it.last) < WELL_AFTER;
        ill.iter().filter(|(_, it)| failing(it)).map(|(job, _)| *job).collect()
    }
}

/// How long to rest after dying so often.
fn rest(times: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(times.saturating_sub(1).min(10));
    FIRST_REST.saturating_mul(doubled).min(LONGEST_REST)
}

/// Tells of a job, or of a piece of its work, that died; how long it should rest. The alarm comes the
/// first time and when it is failing, not with every further death.
pub(crate) async fn died(app: &App, job: &'static str, why: &str) -> Duration {
    died_on(app, job, None, why).await
}

async fn died_on(app: &App, job: &'static str, row: Option<&str>, why: &str) -> Duration {
    let times = app.health.died(job, Instant::now());
    tracing::error!(job, row, times, why, "a job died, and is begun again");
    app.figures.job_died(job);
    if times == 1 || times == FAILING {
        let row = row.map(str::to_owned);
        let said = app.store.submit(JobDied { job, row, times }).await;
        if let Err(error) = said {
            tracing::error!(%error, "nobody is told that a job died");
        }
    }
    rest(times)
}

/// Does what a job does about one of its rows, apart from the others: a row that breaks it is set aside for
/// a rest, and that is said; the others go on.
pub async fn apart(
    app: &App,
    job: &'static str,
    row: &(dyn std::fmt::Display + Sync),
    work: impl Future<Output = ()>,
) {
    let row = row.to_string();
    if app.health.is_aside(job, &row, Instant::now()) {
        return;
    }
    // Nothing is shared with what broke but the books, which take a unit whole or not.
    if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
        let rest = died_on(app, job, Some(&row), &words(&*panic)).await;
        let now = Instant::now();
        app.health.set_aside(job, &row, now + rest, now);
    }
}

/// What a task said when it broke.
pub(crate) fn last_words(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => words(&*panic),
        Err(error) => error.to_string(),
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    match panic.downcast_ref::<&str>() {
        Some(text) => (*text).to_owned(),
        None => panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".to_owned()),
    }
}

/// Runs a job, in a task of its own, until told to stop, and begins it again whenever it dies.
pub async fn supervise<F>(
    app: &App,
    stop: &CancellationToken,
    job: &'static str,
    begin: impl Fn() -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let ended = tokio::spawn(begin().instrument(error_span!("job", job))).await;
        let why = match ended {
            Ok(()) if stop.is_cancelled() => return,
            Ok(()) => "it ended by itself".to_owned(),
            Err(error) => last_words(error),
        };
        let rest = died(app, job, &why).await;
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(rest) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_fails_when_it_keeps_dying_and_is_well_after_a_while() {
        let (health, begin) = (Health::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!([0, 1, 3].map(|second| health.died("a", at(second))), [1, 2, 3]);
        assert_eq!(health.died("b", at(3)), 1);
        assert_eq!(health.failing(at(4)), ["a"]);
        assert_eq!(health.failing(at(302)), ["a"]);
        assert!(health.failing(at(303)).is_empty());
        assert_eq!(health.died("a", at(303)), 1, "from the beginning");
        assert!(health.failing(at(303)).is_empty());
    }

    #[test]
    fn rests_grow_up_to_a_bound() {
        let seconds = [1, 2, 3, 6, 7, 100, u32::MAX].map(|times| rest(times).as_secs());
        assert_eq!(seconds, [1, 2, 4, 32, 60, 60, 60]);
    }
}
