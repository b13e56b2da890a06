//! Which vouchers were seen, and what became of them: the seller's only memory.
//!
//! A voucher's `jti` is written down *before* the request is served, so that no crash, restart or
//! race opens a door twice. So is the purchase it pays for: Earnest issues another voucher on the
//! same hold when the last one ran out and nothing was reported, and a purchase is served once,
//! whatever vouchers it has. Each row stays until its report was acknowledged, and longer than a
//! purchase can get another voucher; it is what the reporter sends again when Earnest's epoch
//! changes.
//!
//! One thread owns the database. It takes whatever is queued, runs it in one transaction, commits
//! once (`synchronous=FULL`), then answers: many claims share one flush to disk. Nothing is
//! answered before it is durable. The in-memory store is the same code on a database without a
//! file: for tests, and for sellers who accept that a restart forgets.

mod file;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use earnest_core::id::{PurchaseId, VoucherId};
use earnest_core::money::Micros;
use earnest_core::time::Timestamp;
use earnest_core::voucher::{Fate, ReportOutcome};
use tokio::sync::{Notify, oneshot};

use crate::setup::Secret;

/// How long an answer of the store is waited for before it counts as unavailable.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A nonce file that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum NonceError {
    /// Another process, or another store in this one, has it open. Two servers with two memories
    /// would each accept the same voucher.
    #[error("the nonce file is in use by another process")]
    InUse,
    /// Written by a newer version.
    #[error("the nonce file has version {0}, which is newer than this program")]
    Newer(i64),
    /// There is no such folder, or nothing may be written there.
    #[error("the nonce file cannot be used: {0}")]
    Path(std::io::Error),
    /// What is there cannot be read or written as a nonce file.
    #[error("the nonce file cannot be used: {0}")]
    Unusable(#[from] rusqlite::Error),
    /// The thread that owns it could not be started.
    #[error("the thread of the nonce file cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// The store did not answer, or could not write. Nothing may be served on a guess: the caller
/// answers 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("vouchers cannot be checked right now")]
pub(crate) struct StoreDown;

/// One attempt to be the first to redeem a voucher.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) jti: VoucherId,
    /// What it pays for.
    pub(crate) purchase: PurchaseId,
    /// Tells this attempt from any other of this process, so that what one attempt says about a
    /// voucher never lands on another's.
    pub(crate) token: u64,
    pub(crate) voucher: Secret,
    pub(crate) at: Timestamp,
}

/// What became of a claimed voucher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Served; the amount where it is not the whole.
    Redeemed(Option<Micros>),
    /// Not served, or not wholly.
    Failed,
}

/// A row that has something to say to Earnest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) jti: VoucherId,
    pub(crate) voucher: Secret,
    pub(crate) claimed_at: Timestamp,
    pub(crate) fate: Fate,
    pub(crate) amount: Option<Micros>,
}

/// Earnest's answer to one report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) jti: VoucherId,
    pub(crate) fate: Fate,
    pub(crate) outcome: ReportOutcome,
}

/// How many rows stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Ended, not acknowledged.
    pub(crate) unreported: u64,
    /// Claimed, not ended.
    pub(crate) in_flight: u64,
}

type Reply<T> = oneshot::Sender<Result<T, StoreDown>>;

/// What the thread is asked to do.
pub(crate) enum Job {
    /// Whether the voucher may be served: nobody claimed it before, nor its purchase.
    Claim(Claim, Reply<bool>),
    Seen {
        jti: VoucherId,
        purchase: PurchaseId,
        reply: Reply<bool>,
    },
    Finish {
        jti: VoucherId,
        token: u64,
        ending: Ending,
    },
    Due {
        limit: usize,
        serving_before: Timestamp,
        reply: Reply<Vec<Due>>,
    },
    Acknowledge {
        epoch: String,
        at: Timestamp,
        results: Vec<Acknowledged>,
        reply: Reply<()>,
    },
    /// Let these wait behind the others: Earnest could not read them.
    Defer(Vec<VoucherId>, Reply<()>),
    Prune {
        claimed_before: Timestamp,
        reply: Reply<u64>,
    },
    Counts(Reply<(Counts, Option<String>)>),
    Close,
}

/// The memory of used vouchers. Cheap to clone; all clones are one store.
#[derive(Clone)]
pub struct NonceStore(Arc<Shared>);

struct Shared {
    jobs: mpsc::Sender<Job>,
    ended: Arc<Notify>,
    tokens: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
    durable: bool,
}

impl NonceStore {
    /// Remembers until the program ends. A voucher that is still alive after a restart would be
    /// served a second time (and billed once), so use [`NonceStore::open`] for anything that earns.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn in_memory() -> Result<Self, NonceError> {
        Self::start(file::Books::in_memory()?, false)
    }

    /// Opens or creates the durable nonce file, for one process at a time. One origin needs one
    /// memory: several processes behind one origin, each with a file of its own, would each accept
    /// the same voucher once. Keep it on a local disk: network file systems lose locks. Vouchers that an earlier
    /// process claimed and never finished are marked failed, which releases the buyers' money.
    ///
    /// # Errors
    /// [`NonceError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, NonceError> {
        Self::start(file::Books::open(path.as_ref())?, true)
    }

    fn start(books: file::Books, durable: bool) -> Result<Self, NonceError> {
        let (jobs, queue) = mpsc::channel();
        let ended = Arc::new(Notify::new());
        let wake = Arc::clone(&ended);
        let thread = std::thread::Builder::new()
            .name("earnest-nonces".to_owned())
            .spawn(move || file::run(books, &queue, &wake))?;
        let thread = Mutex::new(Some(thread));
        Ok(Self(Arc::new(Shared { jobs, ended, tokens: AtomicU64::new(1), thread, durable })))
    }

    /// Whether a restart remembers.
    pub fn is_durable(&self) -> bool {
        self.0.durable
    }

    pub(crate) fn token(&self) -> u64 {
        self.0.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// Is told whenever a row ended.
    pub(crate) fn ended(&self) -> &Notify {
        &self.0.ended
    }

    /// Durably claims a voucher; `false` when somebody did before, or has its purchase by another
    /// voucher and did not fail.
    pub(crate) async fn claim(&self, claim: Claim) -> Result<bool, StoreDown> {
        self.ask(|reply| Job::Claim(claim, reply)).await
    }

    /// Whether a claim of the voucher would be refused.
    pub(crate) async fn seen(
        &self,
        jti: VoucherId,
        purchase: PurchaseId,
    ) -> Result<bool, StoreDown> {
        self.ask(|reply| Job::Seen { jti, purchase, reply }).await
    }

    /// Says what became of a claim. Never blocks and is never lost while the process lives: a write
    /// that fails is repeated. Of a claim that never came to be, this says nothing.
    pub(crate) fn finish(&self, jti: VoucherId, token: u64, ending: Ending) {
        // The thread ends only after the last handle is gone, or after `close`; what is finished
        // after that is found unfinished at the next start, and reported failed.
        let _closed = self.0.jobs.send(Job::Finish { jti, token, ending });
    }

    /// Rows to report: ended ones, and running ones last reported at or before `serving_before`.
    pub(crate) async fn due(
        &self,
        limit: usize,
        serving_before: Timestamp,
    ) -> Result<Vec<Due>, StoreDown> {
        self.ask(|reply| Job::Due { limit, serving_before, reply }).await
    }

    /// Takes in Earnest's answer. Another epoch than the last makes every row of before due again.
    pub(crate) async fn acknowledge(
        &self,
        epoch: String,
        at: Timestamp,
        results: Vec<Acknowledged>,
    ) -> Result<(), StoreDown> {
        self.ask(|reply| Job::Acknowledge { epoch, at, results, reply }).await
    }

    pub(crate) async fn defer(&self, rows: Vec<VoucherId>) -> Result<(), StoreDown> {
        self.ask(|reply| Job::Defer(rows, reply)).await
    }

    /// Forgets acknowledged rows claimed before a time.
    pub(crate) async fn prune(&self, claimed_before: Timestamp) -> Result<u64, StoreDown> {
        self.ask(|reply| Job::Prune { claimed_before, reply }).await
    }

    /// How many rows stand where, and the last epoch seen.
    pub(crate) async fn counts(&self) -> Result<(Counts, Option<String>), StoreDown> {
        self.ask(Job::Counts).await
    }

    async fn ask<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, StoreDown> {
        let (reply, answer) = oneshot::channel();
        self.0.jobs.send(job(reply)).map_err(|_| StoreDown)?;
        match tokio::time::timeout(ANSWER_WITHIN, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(StoreDown),
        }
    }

    /// Writes what is queued, then lets go of the file. Every later question is answered with
    /// *unavailable*.
    pub(crate) async fn close(&self) {
        let shared = Arc::clone(&self.0);
        let _joined = tokio::task::spawn_blocking(move || shared.close()).await;
    }
}

impl Shared {
    fn close(&self) {
        let _closed_before = self.jobs.send(Job::Close);
        let thread = self.thread.lock().map(|mut thread| thread.take());
        if let Ok(Some(thread)) = thread {
            let _panicked = thread.join();
        }
    }
}

impl Drop for Shared {
    /// The file is free for the next process once the last handle is gone.
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for NonceStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NonceStore").field("durable", &self.0.durable).finish_non_exhaustive()
    }
}
