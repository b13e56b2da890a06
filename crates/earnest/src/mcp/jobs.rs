//! Purchases under way. A call may end before its purchase does; the purchase goes on, and whoever
//! asks again with the same `request_id` finds it here.
//!
//! This is comfort, not safety: after a restart the same `request_id` finds its purchase in the
//! books, which is what keeps it from being charged twice.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::result::{FetchStatus, Fetched};

/// How long what was paid for is kept, for a client that lost the answer: clients that were cut off
/// come back within minutes. The bodies it names are kept a little longer.
const KEPT_FOR: Duration = Duration::from_secs(10 * 60);
/// The most ended purchases that are kept, for one agent and for all. Each holds a body of up to
/// 64 kB, a third more in base64: 5 MiB for one agent, 90 MiB for all.
const KEPT_PER_AGENT: usize = 64;
const KEPT: usize = 1024;
/// The most questions that are remembered as told: about a megabyte. Past that all are forgotten, and
/// an agent is told of one a second time at once instead of after a wait.
const MOST_TOLD: usize = 10_000;

/// An agent and its name for what it buys.
pub(super) type JobKey = (Arc<str>, String);
type Ending = Option<(Instant, Arc<Fetched>)>;

struct Job {
    fingerprint: [u8; 32],
    owner: Arc<str>,
    ending: watch::Receiver<Ending>,
}

impl Job {
    fn is_under_way(&self) -> bool {
        self.ending.borrow().is_none()
    }
}

/// Who asks for a purchase, and how many may be under way.
pub(super) struct Bounds {
    /// The agent's owner.
    pub(super) owner: Arc<str>,
    /// The most of the agent's.
    pub(super) agent: usize,
    /// The most of the owner's agents'.
    pub(super) owners: usize,
}

/// Why a purchase is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotBegun {
    /// Another thing is being bought under the same id.
    Conflict,
    /// The agent has as many under way as one may.
    TooMany,
    /// The owner's agents have as many under way as one owner's may.
    OwnerBusy,
    /// All agents together have as many under way as they may.
    AllBusy,
}

/// How purchases under way end with the process that makes them.
#[derive(Clone, Debug)]
pub struct Lifetime {
    /// What goes on after its request was answered, and is waited for before the books are closed.
    pub tasks: TaskTracker,
    /// Cancelled when the process stops.
    pub stopping: CancellationToken,
    /// How long purchases under way may take after that.
    pub drain: Duration,
}

impl Lifetime {
    /// Comes when what is under way has to be given up.
    async fn over(self) {
        self.stopping.cancelled().await;
        tokio::time::sleep(self.drain).await;
    }
}

/// See the module.
pub(super) struct Jobs {
    state: Mutex<State>,
    /// A place for each purchase under way, held until it has ended.
    places: Arc<Semaphore>,
    lifetime: Lifetime,
}

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
    /// None yet, and at most so many at once.
    pub(super) fn new(most: usize, lifetime: Lifetime) -> Self {
        Self { state: Mutex::default(), places: Arc::new(Semaphore::new(most)), lifetime }
    }

    /// The purchase of that name: the one under way or just ended, or a new one that `start` runs if
    /// its agent, its owner's agents and all agents have fewer under way than they may.
    pub(super) fn join<F>(
        &self,
        key: &JobKey,
        fingerprint: [u8; 32],
        bounds: &Bounds,
        start: impl FnOnce() -> F,
    ) -> Result<Waiting, NotBegun>
    where
        F: Future<Output = Fetched> + Send + 'static,
    {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.sweep(&key.0);
        if let Some(job) = state.jobs.get(key) {
            let running = job.is_under_way();
            match (job.fingerprint == fingerprint, running) {
                (true, _) => return Ok(Waiting(job.ending.clone())),
                (false, true) => return Err(NotBegun::Conflict),
                // What was bought under this id is in the books, which say what is wrong.
                (false, false) => {}
            }
        }
        let under_way = state.jobs.iter().filter(|(_, job)| job.is_under_way());
        let owners = under_way.filter(|(_, job)| job.owner == bounds.owner);
        let (own, others): (Vec<_>, Vec<_>) = owners.partition(|((agent, _), _)| *agent == key.0);
        if own.len() >= bounds.agent {
            return Err(NotBegun::TooMany);
        }
        if own.len().saturating_add(others.len()) >= bounds.owners {
            return Err(NotBegun::OwnerBusy);
        }
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| NotBegun::AllBusy)?;
        let (sender, ending) = watch::channel(None);
        let (work, over) = (start(), self.lifetime.clone().over());
        let work = async move {
            // Given up, it is in the books as far as it came; the same id finds it there.
            tokio::select! {
                fetched = work => {
                    sender.send_replace(Some((Instant::now(), Arc::new(fetched))));
                }
                () = over => tracing::warn!("a purchase over MCP was cut off: it did not end in time"),
            }
            drop(place);
        };
        self.lifetime.tasks.spawn(tracing::Instrument::in_current_span(work));
        let owner = Arc::clone(&bounds.owner);
        state.jobs.insert(key.clone(), Job { fingerprint, owner, ending: ending.clone() });
        Ok(Waiting(ending))
    }

    /// What was not bought is forgotten once it was said: the next call tries anew.
    pub(super) fn said(&self, key: &JobKey, fetched: &Arc<Fetched>) {
        if fetched.status == FetchStatus::Paid {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
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
