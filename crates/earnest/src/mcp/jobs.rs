//! Purchases under way. A call may end before its purchase does; the purchase goes on, and whoever
//! asks again with the same `request_id` finds it here.
//!
//! This is comfort, not safety: after a restart the same `request_id` finds its purchase in the
//! books, which is what keeps it from being charged twice.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::result::{FetchStatus, Fetched};

/// How long what was paid for is kept, for a client that lost the answer.
const KEPT_FOR: Duration = Duration::from_secs(10 * 60);
/// The most ended purchases that are kept, for one agent and for all.
const KEPT_PER_AGENT: usize = 64;
const KEPT: usize = 1024;
/// The most questions that are remembered as told.
const MOST_TOLD: usize = 10_000;

/// An agent and its name for what it buys.
pub(super) type JobKey = (Arc<str>, String);
type Ending = Option<(Instant, Arc<Fetched>)>;

struct Job {
    fingerprint: [u8; 32],
    ending: watch::Receiver<Ending>,
}

/// Why a purchase is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotBegun {
    /// Another thing is being bought under the same id.
    Conflict,
    /// The agent has as many under way as it may.
    TooMany,
}

/// See the module.
#[derive(Default)]
pub(super) struct Jobs(Mutex<State>);

#[derive(Default)]
struct State {
    jobs: HashMap<JobKey, Job>,
    told: HashSet<(JobKey, String)>,
}

/// A purchase to wait for.
pub(super) struct Waiting(watch::Receiver<Ending>);

impl Waiting {
    /// How it ended; never, if it is lost.
    pub(super) async fn ended(mut self) -> Arc<Fetched> {
        if let Ok(ending) = self.0.wait_for(Option::is_some).await
            && let Some((_, fetched)) = ending.as_ref()
        {
            return Arc::clone(fetched);
        }
        std::future::pending().await
    }
}

impl Jobs {
    /// The purchase of that name: the one under way or just ended, or a new one that `start` runs if
    /// its agent has fewer than `most` under way.
    pub(super) fn join<F>(
        &self,
        key: &JobKey,
        fingerprint: [u8; 32],
        most: usize,
        start: impl FnOnce() -> F,
    ) -> Result<Waiting, NotBegun>
    where
        F: Future<Output = Fetched> + Send + 'static,
    {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.sweep(&key.0);
        if let Some(job) = state.jobs.get(key) {
            let running = job.ending.borrow().is_none();
            match (job.fingerprint == fingerprint, running) {
                (true, _) => return Ok(Waiting(job.ending.clone())),
                (false, true) => return Err(NotBegun::Conflict),
                // What was bought under this id is in the books, which say what is wrong.
                (false, false) => {}
            }
        }
        let own = state.jobs.iter().filter(|((agent, _), _)| *agent == key.0);
        if own.filter(|(_, job)| job.ending.borrow().is_none()).count() >= most {
            return Err(NotBegun::TooMany);
        }
        let (sender, ending) = watch::channel(None);
        let work = start();
        let work = async move {
            let fetched = Arc::new(work.await);
            sender.send_replace(Some((Instant::now(), fetched)));
        };
        tokio::spawn(tracing::Instrument::in_current_span(work));
        state.jobs.insert(key.clone(), Job { fingerprint, ending: ending.clone() });
        Ok(Waiting(ending))
    }

    /// What was not bought is forgotten once it was said: the next call tries anew.
    pub(super) fn said(&self, key: &JobKey, fetched: &Arc<Fetched>) {
        if fetched.status == FetchStatus::Paid {
            return;
        }
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let this = state.jobs.get(key).is_some_and(|job| {
            let ending = job.ending.borrow();
            ending.as_ref().is_some_and(|(_, ended)| Arc::ptr_eq(ended, fetched))
        });
        if this {
            state.jobs.remove(key);
        }
    }

    /// Whether this is the first time that the agent is told of this question.
    pub(super) fn tell(&self, key: &JobKey, approval: &str) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.told.len() >= MOST_TOLD {
            state.told.clear();
        }
        state.told.insert((key.clone(), approval.to_owned()))
    }
}

impl State {
    /// Forgets what ended long ago, and the oldest where there are too many. Nothing under way is
    /// ever forgotten, save what was lost with its task.
    fn sweep(&mut self, agent: &Arc<str>) {
        self.jobs.retain(|_, job| match job.ending.borrow().as_ref() {
            Some((at, _)) => at.elapsed() < KEPT_FOR,
            None => job.ending.has_changed().is_ok(),
        });
        self.keep_newest(KEPT_PER_AGENT, |key| key.0 == *agent);
        self.keep_newest(KEPT, |_| true);
    }

    fn keep_newest(&mut self, most: usize, meant: impl Fn(&JobKey) -> bool) {
        let ended = self.jobs.iter().filter(|(key, _)| meant(key));
        let ended = ended.filter_map(|(key, job)| {
            let ending = job.ending.borrow();
            ending.as_ref().map(|(at, _)| (*at, key.clone()))
        });
        let mut ended: Vec<(Instant, JobKey)> = ended.collect();
        let Some(surplus) = ended.len().checked_sub(most.saturating_sub(1)) else { return };
        ended.sort();
        for (_, key) in ended.into_iter().take(surplus) {
            self.jobs.remove(&key);
        }
    }
}
