//! Tells Earnest what became of every voucher, until it says that it heard.
//!
//! One task per seller. It sends what is due in batches of at most 500, repeats with exponential
//! back-off and jitter for as long as it takes, and carries on after a restart from the nonce file.
//! A report repeated is harmless: a purchase posts at most once.

use std::time::Duration;

use earnest_core::time::{SignedDuration, Timestamp};
use earnest_core::voucher::{
    MAX_REPORTS, Report, ReportAnswer, ReportBatch, ReportOutcome, ReportResult,
};
use http::StatusCode;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::nonce::{Acknowledged, Due, NonceStore};
use crate::problem::Problem;
use crate::seller::SellerConfig;
use crate::setup::{Secret, join, read_answer};

/// How often old rows are looked for.
const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// How long acknowledged rows are kept, to be said again if Earnest is restored from a backup, and
/// so that no purchase outlives what is known of it: twice as long as its hold may live, after which
/// it gets no other voucher.
const KEEP_FOR: Duration = Duration::from_secs(48 * 3600);
/// The longest sleep of an idle reporter.
const LOOK_EVERY: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) serving_every: Duration,
    pub(crate) first_wait: Duration,
    pub(crate) longest_wait: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            serving_every: Duration::from_secs(5 * 60),
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(60),
        }
    }
}

/// How the reports stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReporterStatus {
    /// Ended, not yet acknowledged.
    pub unreported: u64,
    /// Being served right now.
    pub in_flight: u64,
    /// Acknowledged since the start.
    pub acknowledged: u64,
    /// Of those, refused for good: not billed, and repeating changes nothing. Should stay 0.
    pub rejected: u64,
    /// Failed attempts in a row.
    pub failures: u32,
    /// Why the last attempt failed, if it did.
    pub last_error: Option<String>,
    /// Earnest's epoch, as last heard.
    pub epoch: Option<String>,
}

pub(crate) struct Reporter {
    client: reqwest::Client,
    url: String,
    api_key: Secret,
    store: NonceStore,
    settings: Settings,
    publish: watch::Sender<ReporterStatus>,
    finish: watch::Receiver<bool>,
    /// Smaller after Earnest could not read a batch, to find the report it cannot read.
    batch: usize,
    status: ReporterStatus,
}

/// Why an attempt failed.
enum Failure {
    /// Nobody answered, or not with an answer: the same again.
    Again { why: String, wait: Option<Duration> },
    /// Earnest says the batch itself is wrong.
    Unreadable(String),
}

impl Reporter {
    pub(crate) fn new(
        config: &SellerConfig,
        client: reqwest::Client,
        publish: watch::Sender<ReporterStatus>,
        finish: watch::Receiver<bool>,
    ) -> Self {
        Self {
            client,
            url: join(&config.earnest, "/v1/vouchers/report"),
            api_key: config.api_key.clone(),
            store: config.nonces.clone(),
            settings: config.reports,
            publish,
            finish,
            batch: MAX_REPORTS,
            status: ReporterStatus::default(),
        }
    }

    /// Runs until the last [`crate::Seller`] is gone, or aborted by its shutdown.
    pub(crate) async fn run(mut self) {
        let mut pruned_at: Option<Instant> = None;
        loop {
            if pruned_at.is_none_or(|at| at.elapsed() >= PRUNE_EVERY) {
                let _next_time = self.store.prune(ago(KEEP_FOR)).await;
                pruned_at = Some(Instant::now());
            }
            let pause = match self.store.due(self.batch, ago(self.settings.serving_every)).await {
                Ok(due) if due.is_empty() => {
                    self.publish_status().await;
                    self.settings.serving_every.min(LOOK_EVERY)
                }
                Ok(due) => self.attempt(due).await,
                Err(down) => self.failed(down.to_string(), None),
            };
            if !self.pause(pause).await {
                return;
            }
        }
    }

    /// Sends one batch; how long to wait before the next.
    async fn attempt(&mut self, due: Vec<Due>) -> Duration {
        let pause = match self.send(&due).await {
            Ok(answer) => self.acknowledge(&due, answer).await,
            Err(Failure::Again { why, wait }) => self.failed(why, wait),
            Err(Failure::Unreadable(why)) if due.len() > 1 => {
                tracing::warn!(why, reports = due.len(), "a batch of reports was not understood");
                self.batch = due.len().div_ceil(2);
                Duration::ZERO
            }
            Err(Failure::Unreadable(why)) => {
                let rows = due.iter().map(|row| row.jti).collect();
                let _repeated_at_once = self.store.defer(rows).await;
                self.batch = MAX_REPORTS;
                self.failed(why, None)
            }
        };
        self.publish_status().await;
        pause
    }

    async fn send(&self, due: &[Due]) -> Result<ReportAnswer, Failure> {
        let again = |why: String| Failure::Again { why, wait: None };
        let reports = due.iter().map(report).collect();
        let request = self.client.post(&self.url).bearer_auth(self.api_key.expose());
        let sent = request.json(&ReportBatch { reports }).send().await;
        let response = sent.map_err(|error| again(error.without_url().to_string()))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = read_answer(response).await.map_err(|error| again(error.to_string()))?;
        if status.is_success() {
            let answer: ReportAnswer = serde_json::from_slice(&body)
                .map_err(|error| again(format!("the answer cannot be read: {error}")))?;
            if !answers(due, &answer.results) {
                return Err(again("the answer does not fit the reports".to_owned()));
            }
            return Ok(answer);
        }
        let problem = Problem::read(status, &headers, &body);
        let why = problem.to_string();
        match status {
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNPROCESSABLE_ENTITY => Err(Failure::Unreadable(why)),
            _ => {
                let wait = problem.retry_after_seconds.map(Duration::from_secs);
                Err(Failure::Again { why, wait })
            }
        }
    }

    async fn acknowledge(&mut self, due: &[Due], answer: ReportAnswer) -> Duration {
        let results: Vec<Acknowledged> = due
            .iter()
            .zip(&answer.results)
            .map(|(row, result)| Acknowledged {
                jti: row.jti,
                fate: row.fate,
                outcome: result.outcome,
            })
            .collect();
        let epoch_changed = self.status.epoch.as_ref().is_some_and(|last| *last != answer.epoch);
        if epoch_changed {
            tracing::warn!(epoch = answer.epoch, "Earnest was restored: saying everything again");
        }
        let stored = self.store.acknowledge(answer.epoch.clone(), Timestamp::now(), results).await;
        if let Err(down) = stored {
            return self.failed(down.to_string(), None);
        }
        for (row, result) in due.iter().zip(&answer.results) {
            if result.outcome == ReportOutcome::Rejected {
                self.status.rejected = self.status.rejected.saturating_add(1);
                tracing::error!(jti = %row.jti, code = ?result.code, "a report was rejected");
            }
        }
        let count = u64::try_from(due.len()).unwrap_or(u64::MAX);
        self.status.acknowledged = self.status.acknowledged.saturating_add(count);
        self.status.epoch = Some(answer.epoch);
        self.status.failures = 0;
        self.status.last_error = None;
        self.batch = self.batch.saturating_mul(2).min(MAX_REPORTS);
        Duration::ZERO
    }

    /// Counts a failure; how long to wait.
    fn failed(&mut self, why: String, wait: Option<Duration>) -> Duration {
        tracing::warn!(why, failures = self.status.failures, "reports could not be delivered");
        let wait = wait.unwrap_or_else(|| self.backoff());
        self.status.failures = self.status.failures.saturating_add(1);
        self.status.last_error = Some(why);
        wait.min(self.settings.longest_wait)
    }

    /// Doubles with each failure; half of it is left to chance, so that many sellers do not come
    /// back together.
    fn backoff(&self) -> Duration {
        let doubled = 2_u32.saturating_pow(self.status.failures.min(16));
        let full = self.settings.first_wait.saturating_mul(doubled);
        let full = full.min(self.settings.longest_wait);
        let mut chance = [0_u8; 1];
        let _even_without = getrandom::fill(&mut chance);
        let half = full / 2;
        half + half.saturating_mul(u32::from(chance[0])) / 255
    }

    /// Waits for the time, or for something to do. `false` when nobody needs reports any more.
    async fn pause(&mut self, pause: Duration) -> bool {
        if pause.is_zero() {
            return true;
        }
        let failing = self.status.failures > 0;
        let finishing = *self.finish.borrow_and_update();
        let wait = if finishing { pause.min(self.settings.first_wait) } else { pause };
        tokio::select! {
            () = tokio::time::sleep(wait) => true,
            () = self.store.ended().notified(), if !failing => true,
            changed = self.finish.changed() => changed.is_ok(),
        }
    }

    async fn publish_status(&mut self) {
        if let Ok((counts, epoch)) = self.store.counts().await {
            self.status.unreported = counts.unreported;
            self.status.in_flight = counts.in_flight;
            self.status.epoch = epoch;
        }
        let _nobody_looks = self.publish.send(self.status.clone());
    }
}

fn report(row: &Due) -> Report {
    Report {
        voucher: row.voucher.expose().to_owned(),
        fate: row.fate,
        claimed_at: row.claimed_at,
        amount_micros: row.amount,
    }
}

/// One result a report, in the same order.
fn answers(due: &[Due], results: &[ReportResult]) -> bool {
    due.len() == results.len()
        && due.iter().zip(results).all(|(row, result)| result.jti.is_none_or(|jti| jti == row.jti))
}

fn ago(time: Duration) -> Timestamp {
    let time = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
    Timestamp::now().checked_sub(time).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use earnest_core::settings::Settings as Rules;
    use earnest_core::voucher::LIFE_SECONDS;

    #[test]
    fn a_purchase_is_known_for_longer_than_it_can_get_another_voucher() {
        // Claimed at the first second of the first voucher, served again at the last of the last.
        let first_to_last = Rules::default().hold_limit_seconds + 2 * LIFE_SECONDS;
        assert!(KEEP_FOR.as_secs() > first_to_last.unsigned_abs());
    }
}
