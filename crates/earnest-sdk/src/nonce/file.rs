//! The rows behind [`super::NonceStore`] and the one thread that writes them.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use earnest_core::id::VoucherId;
use earnest_core::money::Micros;
use earnest_core::time::Timestamp;
use earnest_core::voucher::Fate;
use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::Notify;

use super::{Acknowledged, Claim, Counts, Due, Ending, Job, NonceError, StoreDown};

const VERSION: i64 = 1;
/// The most jobs that share one commit.
const BATCH: usize = 1024;
/// How soon a write that failed is repeated.
const REPEAT_AFTER: Duration = Duration::from_secs(1);
/// The most rows one pruning takes, so that claims are not kept waiting.
const PRUNE_ROWS: i64 = 5_000;

/// `fate` is null while the request is being served. `claimed_ms` and `serving_ms` are milliseconds
/// since 1970; `serving_ms` is when Earnest last heard that it still runs.
const SCHEMA: &str = "
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
    PRAGMA user_version = 1;
";

type Rows<T> = rusqlite::Result<T>;

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
        let db = Connection::open(path)?;
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

    fn prepare(db: Connection) -> Result<Self, NonceError> {
        let version: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
        match version {
            0 => db.execute_batch(&format!("BEGIN IMMEDIATE; {SCHEMA} COMMIT"))?,
            VERSION => {}
            newer => return Err(NonceError::Newer(newer)),
        }
        // INVARIANT: a_voucher_claimed_before_a_crash_is_never_served_again_and_never_stays_open
        db.execute("UPDATE claims SET fate = 'failed' WHERE fate IS NULL", [])?;
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
            Job::Seen(jti, reply) => answer!(reply, seen(db, jti)),
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

fn claim(db: &Connection, claim: &Claim) -> Rows<bool> {
    let at = claim.at.as_millisecond();
    let mut insert = db.prepare_cached(
        "INSERT INTO claims(jti, token, voucher, claimed_ms, serving_ms)
         VALUES (?1, ?2, ?3, ?4, ?4) ON CONFLICT(jti) DO NOTHING",
    )?;
    let row = params![claim.jti.to_string(), number(claim.token), claim.voucher, at];
    Ok(insert.execute(row)? == 1)
}

fn seen(db: &Connection, jti: VoucherId) -> Rows<bool> {
    db.prepare_cached("SELECT 1 FROM claims WHERE jti = ?1")?.exists([jti.to_string()])
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
        let claimed_ms: i64 = row.get(2)?;
        let fate: Option<String> = row.get(3)?;
        let amount: Option<i64> = row.get(4)?;
        Ok(Due {
            jti: jti.parse().map_err(|error| unreadable(0, error))?,
            voucher: row.get(1)?,
            claimed_at: Timestamp::from_millisecond(claimed_ms)
                .map_err(|error| unreadable(2, error))?,
            fate: match fate.as_deref() {
                None => Fate::Serving,
                Some("redeemed") => Fate::Redeemed,
                Some(_) => Fate::Failed,
            },
            amount: amount.map(Micros::new).transpose().map_err(|error| unreadable(4, error))?,
        })
    })?;
    rows.collect()
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

fn unreadable(
    column: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
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
        let voucher = format!("voucher-{n}");
        claim(db, &Claim { jti: jti(n), token, voucher, at: at(100) }).unwrap()
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
        assert!(!seen(&books.db, jti(1)).unwrap());
        assert!(seen(&books.db, jti(2)).unwrap());
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
        let row = Claim { jti: jti(1), token: 1, voucher: String::new(), at: at(100) };
        let finish = Job::Finish { jti: jti(9), token: 9, ending: Ending::Redeemed(None) };
        assert!(!books.commit(vec![Job::Claim(row, reply), finish]));
        assert_eq!(answer.try_recv().unwrap(), Err(StoreDown));
        books.db.pragma_update(None, "query_only", false).unwrap();
        assert!(books.commit(vec![]));
        assert_eq!(fates(&books), [(Fate::Redeemed, None)]);
        assert!(books.backlog.is_empty());
    }
}
