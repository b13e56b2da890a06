//! The rows behind [`super::NonceStore`] and the one thread that writes them.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use earnest_core::id::{PurchaseId, VoucherId};
use earnest_core::money::Micros;
use earnest_core::time::Timestamp;
use earnest_core::voucher::Fate;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, TransactionBehavior, params};
use serde::Deserialize;
use tokio::sync::Notify;

use super::{Acknowledged, Claim, Counts, Due, Ending, Job, NonceError, StoreDown};
use crate::setup::Secret;

/// The number of the last step below that was taken; a file's own stands in its `user_version`.
const VERSION: i64 = 2;
/// The most jobs that share one commit.
const BATCH: usize = 1024;
/// How soon a write that failed is repeated.
const REPEAT_AFTER: Duration = Duration::from_secs(1);
/// The most rows one pruning takes, so that claims are not kept waiting.
const PRUNE_ROWS: i64 = 5_000;

/// `fate` is null while the request is being served. `claimed_ms` and `serving_ms` are milliseconds
/// since 1970; `serving_ms` is when Earnest last heard that it still runs.
const STEP_1: &str = "
    CREATE TABLE claims(
        jti TEXT PRIMARY KEY,
        token INTEGER NOT NULL,
        voucher TEXT NOT NULL,
        claimed_ms INTEGER NOT NULL,
        serving_ms INTEGER NOT NULL,
        fate TEXT CHECK (fate IN ('redeemed', 'failed')),
        amount_micros INTEGER,
        acknowledged INTEGER NOT NULL DEFAULT 0,
        outcome TEXT,
        deferred INTEGER NOT NULL DEFAULT 0
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX claims_open ON claims(deferred, claimed_ms) WHERE acknowledged = 0;
    CREATE INDEX claims_done ON claims(claimed_ms) WHERE acknowledged = 1;
    CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
";
/// `purchase` is what the voucher pays for. It is null only in rows of version 1 whose voucher could
/// not be read again, or whose purchase was served twice before this index stood guard.
///
/// INVARIANT: one_purchase_is_served_once_whatever_vouchers_it_has
const STEP_2: &str = "
    ALTER TABLE claims ADD COLUMN purchase TEXT;
    CREATE UNIQUE INDEX claims_purchase ON claims(purchase) WHERE fate IS NOT 'failed';
";

type Rows<T> = rusqlite::Result<T>;

/// Makes a file that is not there yet one that only its owner reads: it holds vouchers. SQLite gives
/// the files beside it the same mode.
fn keep_to_ourselves(path: &Path) -> Result<(), NonceError> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(NonceError::Path(error))
        }
        _ => Ok(()),
    }
}

pub(super) struct Books {
    db: Connection,
    /// What must be written before anything else: endings whose commit failed, and a failed ending
    /// for every claim that was answered *unavailable* though its commit may have happened.
    backlog: Vec<(VoucherId, u64, Ending)>,
}

impl Books {
    pub(super) fn in_memory() -> Result<Self, NonceError> {
        let db = Connection::open_in_memory()?;
        Self::prepare(db)
    }

    pub(super) fn open(path: &Path) -> Result<Self, NonceError> {
        // An absolute path, because SQLite keeps what is called ``, `:memory:` or `file:…` elsewhere
        // than in a file of that name, and forgets it.
        let path = std::path::absolute(path).map_err(NonceError::Path)?;
        keep_to_ourselves(&path)?;
        let db = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        )?;
        db.busy_timeout(Duration::from_millis(250))?;
        // Held until this connection closes, by the operating system if the process is killed.
        let in_use = |error: rusqlite::Error| match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
                NonceError::InUse
            }
            _ => NonceError::Unusable(error),
        };
        db.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(in_use)?;
        db.pragma_update(None, "journal_mode", "WAL").map_err(in_use)?;
        db.pragma_update(None, "synchronous", "FULL").map_err(in_use)?;
        db.execute_batch("BEGIN IMMEDIATE; COMMIT").map_err(in_use)?;
        Self::prepare(db)
    }

    /// Brings a file of any earlier version up to this one, in one transaction.
    fn prepare(mut db: Connection) -> Result<Self, NonceError> {
        let version: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if !(0..=VERSION).contains(&version) {
            return Err(NonceError::Newer(version));
        }
        let steps = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if version < 1 {
            steps.execute_batch(STEP_1)?;
        }
        // INVARIANT: a_voucher_claimed_before_a_crash_is_never_served_again_and_never_stays_open
        steps.execute("UPDATE claims SET fate = 'failed' WHERE fate IS NULL", [])?;
        if version < 2 {
            steps.execute_batch(STEP_2)?;
            name_purchases(&steps)?;
        }
        steps.pragma_update(None, "user_version", VERSION)?;
        steps.commit()?;
        Ok(Self { db, backlog: Vec::new() })
    }

    /// One transaction over everything queued; answers only after its commit.
    fn commit(&mut self, batch: Vec<Job>) -> bool {
        let mut answers: Vec<Box<dyn FnOnce(bool)>> = Vec::with_capacity(batch.len());
        let mut doubtful = Vec::new();
        let result = self.db.execute_batch("BEGIN IMMEDIATE").and_then(|()| {
            for (jti, token, ending) in &self.backlog {
                finish(&self.db, *jti, *token, *ending)?;
            }
            Ok(())
        });
        let mut result = result;
        let mut ended = !self.backlog.is_empty();
        for job in batch {
            if let Job::Claim(claim, _) = &job {
                doubtful.push((claim.jti, claim.token, Ending::Failed));
            }
            if let Job::Finish { jti, token, ending } = job {
                doubtful.push((jti, token, ending));
                ended = true;
            }
            let healthy = result.is_ok();
            if let Err(error) = self.run(job, healthy, &mut answers) {
                result = Err(error);
            }
        }
        let committed = result.and_then(|()| self.db.execute_batch("COMMIT"));
        if let Err(error) = &committed {
            tracing::error!(%error, "the nonce file could not be written");
            if !self.db.is_autocommit() {
                let _rolled_back = self.db.execute_batch("ROLLBACK");
            }
            self.backlog.append(&mut doubtful);
        } else {
            self.backlog.clear();
        }
        let durable = committed.is_ok();
        for answer in answers {
            answer(durable);
        }
        ended && durable
    }

    /// Runs one job inside the transaction. Its answer waits for the commit.
    fn run(
        &self,
        job: Job,
        healthy: bool,
        answers: &mut Vec<Box<dyn FnOnce(bool)>>,
    ) -> rusqlite::Result<()> {
        macro_rules! answer {
            ($reply:expr, $work:expr) => {{
                let done = if healthy { $work.map(Some) } else { Ok(None) };
                let (value, error) = match done {
                    Ok(value) => (value, Ok(())),
                    Err(error) => (None, Err(error)),
                };
                answers.push(Box::new(move |durable| {
                    let _asker_gone = $reply.send(value.filter(|_| durable).ok_or(StoreDown));
                }));
                error
            }};
        }
        let db = &self.db;
        match job {
            Job::Claim(row, reply) => answer!(reply, claim(db, &row)),
            Job::Seen { jti, purchase, reply } => answer!(reply, seen(db, jti, purchase)),
            Job::Finish { jti, token, ending } if healthy => finish(db, jti, token, ending),
            Job::Finish { .. } | Job::Close => Ok(()),
            Job::Due { limit, serving_before, reply } => {
                answer!(reply, due(db, limit, serving_before))
            }
            Job::Acknowledge { epoch, at, results, reply } => {
                answer!(reply, acknowledge(db, &epoch, at, &results))
            }
            Job::Defer(rows, reply) => answer!(reply, defer(db, &rows)),
            Job::Prune { claimed_before, reply } => answer!(reply, prune(db, claimed_before)),
            Job::Counts(reply) => answer!(reply, counts(db)),
        }
    }
}

/// Serves the queue until `Close`, or until the last handle is gone.
pub(super) fn run(mut books: Books, queue: &Receiver<Job>, ended: &Notify) {
    loop {
        let next = if books.backlog.is_empty() {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            queue.recv_timeout(REPEAT_AFTER)
        };
        let first = match next {
            Ok(job) => Some(job),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let batch: Vec<Job> = first.into_iter().chain(queue.try_iter()).take(BATCH).collect();
        let close = batch.iter().any(|job| matches!(job, Job::Close));
        if books.commit(batch) {
            ended.notify_one();
        }
        if close {
            return;
        }
    }
}

/// Writes the purchases of version 1 beside their vouchers, which were verified when they were
/// claimed. The older of two rows that were served for one purchase gets it.
fn name_purchases(db: &Connection) -> Rows<()> {
    let mut select = db.prepare("SELECT jti, voucher FROM claims ORDER BY claimed_ms")?;
    let mut name = db.prepare("UPDATE OR IGNORE claims SET purchase = ?2 WHERE jti = ?1")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (jti, voucher): (String, String) = (row.get(0)?, row.get(1)?);
        if let Some(purchase) = purchase_of(&voucher) {
            name.execute(params![jti, purchase.to_string()])?;
        }
    }
    Ok(())
}

fn purchase_of(voucher: &str) -> Option<PurchaseId> {
    #[derive(Deserialize)]
    struct Subject {
        sub: PurchaseId,
    }
    let claims = URL_SAFE_NO_PAD.decode(voucher.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&claims).ok().map(|subject: Subject| subject.sub)
}

/// Both may stand in the way: the voucher itself, whatever became of it, and another claim of its
/// purchase, unless that one failed.
///
/// A failed claim does not count, because a purchase outlives it: its buyer was charged nothing,
/// Earnest keeps *failed* for that one voucher whatever is held since, and the same `request_id`
/// then buys again under the same purchase. If a failure barred the purchase, one hiccup of the
/// seller would keep what was asked for from the buyer for ever.
fn claim(db: &Connection, claim: &Claim) -> Rows<bool> {
    let at = claim.at.as_millisecond();
    let mut insert = db.prepare_cached(
        "INSERT INTO claims(jti, purchase, token, voucher, claimed_ms, serving_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?5) ON CONFLICT DO NOTHING",
    )?;
    let (jti, purchase) = (claim.jti.to_string(), claim.purchase.to_string());
    let row = params![jti, purchase, number(claim.token), claim.voucher.expose(), at];
    Ok(insert.execute(row)? == 1)
}

/// Whether a claim of this voucher would be refused.
fn seen(db: &Connection, jti: VoucherId, purchase: PurchaseId) -> Rows<bool> {
    let mut select = db.prepare_cached(
        "SELECT 1 FROM claims WHERE jti = ?1
         UNION ALL SELECT 1 FROM claims WHERE purchase = ?2 AND fate IS NOT 'failed'",
    )?;
    select.exists([jti.to_string(), purchase.to_string()])
}

fn finish(db: &Connection, jti: VoucherId, token: u64, ending: Ending) -> Rows<()> {
    let (fate, amount) = match ending {
        Ending::Redeemed(amount) => ("redeemed", amount.map(Micros::get)),
        Ending::Failed => ("failed", None),
    };
    let mut update = db.prepare_cached(
        "UPDATE claims SET fate = ?3, amount_micros = ?4
         WHERE jti = ?1 AND token = ?2 AND fate IS NULL",
    )?;
    update.execute(params![jti.to_string(), number(token), fate, amount])?;
    Ok(())
}

fn due(db: &Connection, limit: usize, serving_before: Timestamp) -> Rows<Vec<Due>> {
    let mut select = db.prepare_cached(
        "SELECT jti, voucher, claimed_ms, fate, amount_micros FROM claims
         WHERE acknowledged = 0 AND (fate IS NOT NULL OR serving_ms <= ?2)
         ORDER BY deferred, claimed_ms LIMIT ?1",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = select.query_map(params![limit, serving_before.as_millisecond()], |row| {
        let jti: String = row.get(0)?;
        let read = read_due(row).map_err(|error| {
            tracing::error!(jti, %error, "a claim in the nonce file cannot be read, nor reported");
        });
        Ok(read.ok())
    })?;
    rows.filter_map(Result::transpose).collect()
}

/// A row that somebody or something else changed. It must not keep the others from being reported.
type Unreadable = Box<dyn std::error::Error>;

fn read_due(row: &rusqlite::Row<'_>) -> Result<Due, Unreadable> {
    let jti: String = row.get(0)?;
    let fate: Option<String> = row.get(3)?;
    let amount: Option<i64> = row.get(4)?;
    Ok(Due {
        jti: jti.parse()?,
        voucher: Secret::of(row.get(1)?),
        claimed_at: Timestamp::from_millisecond(row.get(2)?)?,
        fate: match fate.as_deref() {
            None => Fate::Serving,
            Some("redeemed") => Fate::Redeemed,
            Some(_) => Fate::Failed,
        },
        amount: amount.map(Micros::new).transpose()?,
    })
}

fn acknowledge(db: &Connection, epoch: &str, at: Timestamp, results: &[Acknowledged]) -> Rows<()> {
    let before = last_epoch(db)?;
    if before.as_deref() != Some(epoch) {
        // INVARIANT: another_epoch_means_restored_books_everything_kept_is_said_again
        if before.is_some() {
            db.execute("UPDATE claims SET acknowledged = 0 WHERE acknowledged = 1", [])?;
        }
        db.execute("INSERT OR REPLACE INTO meta(name, value) VALUES ('epoch', ?1)", [epoch])?;
    }
    let mut ended = db.prepare_cached(
        "UPDATE claims SET acknowledged = 1, outcome = ?2 WHERE jti = ?1 AND fate IS NOT NULL",
    )?;
    let mut serving = db.prepare_cached("UPDATE claims SET serving_ms = ?2 WHERE jti = ?1")?;
    for result in results {
        let jti = result.jti.to_string();
        match result.fate {
            Fate::Serving => serving.execute(params![jti, at.as_millisecond()])?,
            Fate::Redeemed | Fate::Failed => {
                let outcome = serde_json::to_string(&result.outcome).unwrap_or_default();
                ended.execute(params![jti, outcome.trim_matches('"')])?
            }
        };
    }
    Ok(())
}

fn defer(db: &Connection, rows: &[VoucherId]) -> Rows<()> {
    let mut update =
        db.prepare_cached("UPDATE claims SET deferred = deferred + 1 WHERE jti = ?1")?;
    for jti in rows {
        update.execute([jti.to_string()])?;
    }
    Ok(())
}

fn prune(db: &Connection, claimed_before: Timestamp) -> Rows<u64> {
    let mut delete = db.prepare_cached(
        "DELETE FROM claims WHERE jti IN (SELECT jti FROM claims
         WHERE acknowledged = 1 AND claimed_ms < ?1 ORDER BY claimed_ms LIMIT ?2)",
    )?;
    let gone = delete.execute(params![claimed_before.as_millisecond(), PRUNE_ROWS])?;
    Ok(u64::try_from(gone).unwrap_or(u64::MAX))
}

fn counts(db: &Connection) -> Rows<(Counts, Option<String>)> {
    let mut select = db.prepare_cached(
        "SELECT count(fate), count(*) - count(fate) FROM claims WHERE acknowledged = 0",
    )?;
    let counts = select.query_row([], |row| {
        let (ended, running): (i64, i64) = (row.get(0)?, row.get(1)?);
        Ok(Counts { unreported: ended.unsigned_abs(), in_flight: running.unsigned_abs() })
    })?;
    Ok((counts, last_epoch(db)?))
}

fn last_epoch(db: &Connection) -> Rows<Option<String>> {
    let mut select = db.prepare_cached("SELECT value FROM meta WHERE name = 'epoch'")?;
    select.query_row([], |row| row.get(0)).optional()
}

/// A token as SQLite's integer; tokens count up from one and never get near the end.
fn number(token: u64) -> i64 {
    i64::try_from(token).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use earnest_core::id::Seed;
    use earnest_core::voucher::ReportOutcome;

    fn jti(n: u128) -> VoucherId {
        VoucherId::new(Seed { unix_ms: 1, random: n })
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn claimed(db: &Connection, n: u128, token: u64) -> bool {
        claim(db, &of(n, n, token)).unwrap()
    }

    /// A claim of voucher `n` of a purchase.
    fn of(n: u128, purchase: u128, token: u64) -> Claim {
        let voucher = Secret::of(format!("voucher-{n}"));
        Claim { jti: jti(n), purchase: pur(purchase), token, voucher, at: at(100) }
    }

    fn pur(n: u128) -> PurchaseId {
        PurchaseId::new(Seed { unix_ms: 1, random: n })
    }

    fn fates(books: &Books) -> Vec<(Fate, Option<i64>)> {
        let rows = due(&books.db, 500, at(0)).unwrap();
        rows.iter().map(|row| (row.fate, row.amount.map(Micros::get))).collect()
    }

    fn acknowledge_all(books: &Books, epoch: &str) {
        let rows = due(&books.db, 500, at(0)).unwrap();
        let results: Vec<_> = rows
            .iter()
            .map(|row| Acknowledged {
                jti: row.jti,
                fate: row.fate,
                outcome: ReportOutcome::Billed,
            })
            .collect();
        acknowledge(&books.db, epoch, at(200), &results).unwrap();
    }

    #[test]
    fn what_another_attempt_says_never_lands_on_a_claim() {
        let books = Books::in_memory().unwrap();
        assert!(claimed(&books.db, 1, 7));
        assert!(!claimed(&books.db, 1, 8));
        finish(&books.db, jti(1), 8, Ending::Failed).unwrap();
        assert_eq!(fates(&books), []);
        finish(&books.db, jti(1), 7, Ending::Redeemed(Some(Micros::constant(5)))).unwrap();
        finish(&books.db, jti(1), 7, Ending::Failed).unwrap();
        assert_eq!(fates(&books), [(Fate::Redeemed, Some(5))]);
    }

    #[test]
    fn a_voucher_claimed_before_a_crash_is_never_served_again_and_never_stays_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nonces.db");
        let books = Books::open(&path).unwrap();
        assert!(claimed(&books.db, 1, 1));
        assert!(claimed(&books.db, 2, 2));
        finish(&books.db, jti(2), 2, Ending::Redeemed(None)).unwrap();
        assert_eq!(fates(&books), [(Fate::Redeemed, None)]);
        drop(books);
        let books = Books::open(&path).unwrap();
        assert!(!claimed(&books.db, 1, 1));
        let mut fates = fates(&books);
        fates.sort_by_key(|(fate, _)| *fate == Fate::Failed);
        assert_eq!(fates, [(Fate::Redeemed, None), (Fate::Failed, None)]);
    }

    #[test]
    fn one_purchase_is_served_once_whatever_vouchers_it_has() {
        let books = Books::in_memory().unwrap();
        let first = |n, purchase| claim(&books.db, &of(n, purchase, 1)).unwrap();
        assert!(first(1, 1));
        assert!(!first(2, 1), "in progress");
        finish(&books.db, jti(1), 1, Ending::Redeemed(None)).unwrap();
        assert!(!first(2, 1), "redeemed");
        acknowledge_all(&books, "e1");
        assert!(!first(2, 1), "redeemed and acknowledged");
        assert!(first(3, 2), "another purchase");
        // A failure frees the purchase for another voucher, never for the same one.
        finish(&books.db, jti(3), 1, Ending::Failed).unwrap();
        assert!(!first(3, 2));
        assert!(first(4, 2));
        assert!(!first(5, 2), "one of the two failed, the other is in progress");
        // What was refused says nothing about the one in progress.
        finish(&books.db, jti(5), 1, Ending::Failed).unwrap();
        assert!(!first(6, 2));
    }

    #[test]
    fn two_vouchers_of_one_purchase_in_one_commit_are_one_claim() {
        let mut books = Books::in_memory().unwrap();
        let (replies, mut answers): (Vec<_>, Vec<_>) =
            (0..8).map(|_| tokio::sync::oneshot::channel()).unzip();
        let jobs = replies.into_iter().zip(1..).map(|(reply, n)| Job::Claim(of(n, 1, 1), reply));
        books.commit(jobs.collect());
        let answers = answers.iter_mut().map(|answer| answer.try_recv().unwrap().unwrap());
        assert_eq!(answers.filter(|first| *first).count(), 1);
    }

    #[test]
    fn a_restart_knows_which_purchases_were_served() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nonces.db");
        let books = Books::open(&path).unwrap();
        assert!(claimed(&books.db, 1, 1));
        assert!(claimed(&books.db, 2, 1));
        finish(&books.db, jti(1), 1, Ending::Redeemed(None)).unwrap();
        drop(books);
        let books = Books::open(&path).unwrap();
        assert!(!claim(&books.db, &of(11, 1, 1)).unwrap(), "served before the restart");
        assert!(claim(&books.db, &of(12, 2, 1)).unwrap(), "cut off by it, so it failed");
    }

    /// A voucher as far as its purchase is read from it.
    fn token(purchase: PurchaseId) -> String {
        let claims = serde_json::json!({ "sub": purchase, "more": 1 });
        format!("head.{}.signature", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    #[test]
    fn a_file_of_version_1_opens_and_its_purchases_stay_served() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nonces.db");
        let old = Connection::open(&path).unwrap();
        old.execute_batch(&format!("{STEP_1} PRAGMA user_version = 1;")).unwrap();
        // One redeemed; two vouchers of one purchase, both redeemed, which version 1 allowed; one
        // failed; one cut off; one that cannot be read.
        for (n, voucher, fate) in [
            (1, token(pur(1)), Some("redeemed")),
            (2, token(pur(2)), Some("redeemed")),
            (3, token(pur(2)), Some("redeemed")),
            (4, token(pur(4)), Some("failed")),
            (5, token(pur(5)), None),
            (6, "no voucher".to_owned(), Some("redeemed")),
        ] {
            let row = params![jti(n).to_string(), voucher, n as i64, fate];
            old.execute(
                "INSERT INTO claims(jti, token, voucher, claimed_ms, serving_ms, fate)
                 VALUES (?1, 1, ?2, ?3, ?3, ?4)",
                row,
            )
            .unwrap();
        }
        drop(old);
        for _ in 0..2 {
            let books = Books::open(&path).unwrap();
            assert_eq!(due(&books.db, 500, at(0)).unwrap().len(), 6, "nothing is forgotten");
            for (purchase, free) in [(1, false), (2, false), (4, true), (5, true)] {
                let seen = seen(&books.db, jti(100), pur(purchase)).unwrap();
                assert_eq!(!seen, free, "purchase {purchase}");
            }
            for n in 1..=6 {
                assert!(!claim(&books.db, &of(n, 100 + n, 1)).unwrap(), "voucher {n}");
            }
        }
        let books = Books::open(&path).unwrap();
        assert!(!claim(&books.db, &of(21, 1, 1)).unwrap());
        assert!(!claim(&books.db, &of(22, 2, 1)).unwrap());
        assert!(claim(&books.db, &of(24, 4, 1)).unwrap());
    }

    #[test]
    fn a_row_that_cannot_be_read_does_not_keep_the_others_from_being_reported() {
        let books = Books::in_memory().unwrap();
        for n in 1..=3 {
            assert!(claimed(&books.db, n, 1));
            finish(&books.db, jti(n), 1, Ending::Redeemed(Some(Micros::constant(5)))).unwrap();
        }
        let spoil = |sql: &str, n| books.db.execute(sql, [jti(n).to_string()]).unwrap();
        spoil("UPDATE claims SET jti = 'no id' WHERE jti = ?1", 1);
        spoil("UPDATE claims SET amount_micros = -5 WHERE jti = ?1", 2);
        assert_eq!(fates(&books), [(Fate::Redeemed, Some(5))]);
        assert!(!claim(&books.db, &of(11, 1, 1)).unwrap(), "its purchase was served all the same");
    }

    #[test]
    fn a_file_of_another_version_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        for version in [-1, VERSION + 1] {
            let path = folder.path().join(format!("{version}.db"));
            Connection::open(&path).unwrap().pragma_update(None, "user_version", version).unwrap();
            let opened = Books::open(&path).map(|_| ());
            assert!(matches!(opened, Err(NonceError::Newer(found)) if found == version));
        }
    }

    #[test]
    fn only_a_file_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(Books::open(Path::new("")), Err(NonceError::Path(_))));
        assert!(Books::open(folder.path()).is_err(), "a folder");
        assert!(Books::open(&folder.path().join("none/nonces.db")).is_err());
        let path = folder.path().join("not-ours.db");
        std::fs::write(&path, "text that is longer than the head of a database".repeat(20))
            .unwrap();
        assert!(matches!(Books::open(&path), Err(NonceError::Unusable(_))));
        for name in [":memory:", "nonces.db"] {
            let path = folder.path().join(name);
            assert!(claimed(&Books::open(&path).unwrap().db, 1, 1), "{name}");
            assert!(!claimed(&Books::open(&path).unwrap().db, 1, 1), "{name} forgets");
            #[cfg(unix)]
            {
                let mode = std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap());
                assert_eq!(mode & 0o777, 0o600, "{name}");
            }
        }
    }

    #[test]
    fn one_process_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nonces.db");
        let books = Books::open(&path).unwrap();
        assert!(matches!(Books::open(&path), Err(NonceError::InUse)));
        drop(books);
        assert!(Books::open(&path).is_ok());
    }

    #[test]
    fn another_epoch_means_restored_books_everything_kept_is_said_again() {
        let books = Books::in_memory().unwrap();
        for n in 1..=3 {
            assert!(claimed(&books.db, n, 1));
            finish(&books.db, jti(n), 1, Ending::Redeemed(None)).unwrap();
        }
        acknowledge_all(&books, "e1");
        assert_eq!(fates(&books), []);
        acknowledge(&books.db, "e1", at(200), &[]).unwrap();
        assert_eq!(fates(&books), []);
        acknowledge(&books.db, "e2", at(200), &[]).unwrap();
        assert_eq!(fates(&books).len(), 3);
        acknowledge_all(&books, "e2");
        assert_eq!(fates(&books), []);
    }

    #[test]
    fn only_acknowledged_rows_are_forgotten() {
        let books = Books::in_memory().unwrap();
        for n in 1..=2 {
            assert!(claimed(&books.db, n, 1));
            finish(&books.db, jti(n), 1, Ending::Redeemed(None)).unwrap();
        }
        let row =
            Acknowledged { jti: jti(1), fate: Fate::Redeemed, outcome: ReportOutcome::Billed };
        acknowledge(&books.db, "e1", at(200), &[row]).unwrap();
        assert_eq!(prune(&books.db, at(100)).unwrap(), 0);
        assert_eq!(prune(&books.db, at(101)).unwrap(), 1);
        assert!(!seen(&books.db, jti(1), pur(1)).unwrap());
        assert!(seen(&books.db, jti(2), pur(3)).unwrap(), "its voucher");
        assert!(seen(&books.db, jti(3), pur(2)).unwrap(), "its purchase");
    }

    #[test]
    fn an_answer_about_serving_does_not_acknowledge_the_end() {
        let books = Books::in_memory().unwrap();
        assert!(claimed(&books.db, 1, 1));
        assert_eq!(due(&books.db, 1, at(100)).unwrap()[0].fate, Fate::Serving);
        finish(&books.db, jti(1), 1, Ending::Redeemed(None)).unwrap();
        let row =
            Acknowledged { jti: jti(1), fate: Fate::Serving, outcome: ReportOutcome::Serving };
        acknowledge(&books.db, "e1", at(200), &[row]).unwrap();
        assert_eq!(fates(&books), [(Fate::Redeemed, None)]);
    }

    #[test]
    fn a_claim_that_could_not_be_written_is_refused_and_its_end_is_written_later() {
        let mut books = Books::in_memory().unwrap();
        assert!(claimed(&books.db, 9, 9));
        books.db.pragma_update(None, "query_only", true).unwrap();
        let (reply, mut answer) = tokio::sync::oneshot::channel();
        let row = of(1, 1, 1);
        let finish = Job::Finish { jti: jti(9), token: 9, ending: Ending::Redeemed(None) };
        assert!(!books.commit(vec![Job::Claim(row, reply), finish]));
        assert_eq!(answer.try_recv().unwrap(), Err(StoreDown));
        books.db.pragma_update(None, "query_only", false).unwrap();
        assert!(books.commit(vec![]));
        assert_eq!(fates(&books), [(Fate::Redeemed, None)]);
        assert!(books.backlog.is_empty());
    }
}
