//! Figures that are not counted where they happen: how the writer is, and what is open in the books.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use earnest_core::approval::Approval;
use earnest_core::hook::{Delivery, Hook};
use earnest_core::intent::Intent;
use earnest_core::reconcile::Reconciliation;
use earnest_core::time::{Timestamp, seconds_between};
use earnest_core::unit::Record;
use earnest_store::{Cursor, ReadError, Reader, Strain, WriterLoad};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use super::lock;
use crate::app::App;
use crate::flow::scan::Scanned;
use crate::flow::webhook::WebhookEvent;

/// How old what is read from lists may be before it is read again, in seconds. However often
/// somebody scrapes, the books are asked no more often.
pub const PACE_SECONDS: i64 = 5;
/// How many rows of a list are looked at. Where more are open, that is said as this many: an alert
/// has gone off long before.
const MOST_ROWS: usize = 5_000;
/// How many of them one read brings: a reader is held for a few milliseconds at a time.
const PAGE: usize = 500;

/// How busy the writer is.
#[derive(Clone, Debug, Default)]
pub(super) struct Writer(Arc<Mutex<WriterLoad>>);

impl Writer {
    pub(super) fn register(&self, to: &mut Registry) {
        to.register_collector(Box::new(self.clone()));
    }

    pub(super) fn set(&self, load: WriterLoad) {
        *lock(&self.0) = load;
    }
}

impl Collector for Writer {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let load = lock(&self.0).clone();
        let queued = ConstGauge::new(i64::try_from(load.queued).unwrap_or(i64::MAX));
        let to = encoder.encode_descriptor(
            "writer_queue_depth",
            "Units that wait for the writer",
            None,
            queued.metric_type(),
        )?;
        queued.encode(to)?;
        let units = ConstCounter::new(load.units);
        let to = encoder.encode_descriptor(
            "writer_units",
            "Units that the writer took on, refused ones too",
            None,
            units.metric_type(),
        )?;
        units.encode(to)?;
        // The last class has no upper bound for Prometheus; nothing is larger anyway.
        let mut buckets: Vec<(f64, u64)> = Vec::with_capacity(load.batches.len());
        let last = load.batches.len().saturating_sub(1);
        for (place, (bound, batches)) in load.batches.iter().enumerate() {
            let bound = f64::from(u32::try_from(*bound).unwrap_or(u32::MAX));
            buckets.push((if place == last { f64::INFINITY } else { bound }, *batches));
        }
        let count = load.batches.iter().map(|(_, batches)| batches).sum();
        let half = |bits: u64| f64::from(u32::try_from(bits & 0xffff_ffff).unwrap_or(u32::MAX));
        let sum = half(load.units >> 32) * 4_294_967_296.0 + half(load.units);
        let mut to = encoder.encode_descriptor(
            "writer_batch_units",
            "How many units shared a commit",
            None,
            MetricType::Histogram,
        )?;
        to.encode_histogram::<prometheus_client::encoding::NoLabelSet>(sum, count, &buckets, None)
    }
}

/// What is open in the books.
#[derive(Debug, Default)]
pub(super) struct Open {
    approvals: Gauge,
    approvals_wait: Gauge,
    intents_open: Gauge,
    intents_unknown: Gauge,
    intents_unknown_age: Gauge,
    incoming: Gauge,
    incoming_lag: Gauge,
    outgoing: Gauge,
    outgoing_lag: Gauge,
    look_age: Gauge,
    comparison_age: Gauge,
    unexplained: Gauge,
    strain_oldest: Gauge,
    strain_idle: Gauge,
    strain_waiting: Gauge,
    strain_log: Gauge,
    read_at: Gauge,
    read_ms: Gauge,
    failures: prometheus_client::metrics::counter::Counter,
    last: tokio::sync::Mutex<Option<Timestamp>>,
}

/// How many, and for how many seconds the oldest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Waits {
    many: i64,
    oldest_seconds: i64,
}

#[derive(Clone, Debug, Default)]
struct Found {
    approvals: Waits,
    intents_open: Waits,
    intents_unknown: Waits,
    incoming: Waits,
    outgoing: Waits,
    look_age: i64,
    comparison_age: i64,
    unexplained: i64,
    strain: Strain,
}

impl Open {
    #[rustfmt::skip]
    pub(super) fn register(&self, to: &mut Registry) {
        to.register("approvals_waiting", "Questions that wait for their owners", self.approvals.clone());
        to.register("approvals_oldest_wait_seconds", "How long the oldest of them waits", self.approvals_wait.clone());
        to.register("intents_open", "PayPal calls whose end is not known yet, those that wait for their turn too", self.intents_open.clone());
        to.register("intents_unknown", "PayPal calls whose outcome is not known", self.intents_unknown.clone());
        to.register("intents_unknown_oldest_seconds", "How long ago the oldest of them was begun", self.intents_unknown_age.clone());
        to.register("webhooks_incoming_open", "Webhooks of PayPal's that are not followed up", self.incoming.clone());
        to.register("webhooks_incoming_lag_seconds", "How long the oldest of them is here", self.incoming_lag.clone());
        to.register("webhooks_outgoing_waiting", "Deliveries that wait, for their first or their next attempt", self.outgoing.clone());
        to.register("webhooks_outgoing_lag_seconds", "How long the longest of them is past its time", self.outgoing_lag.clone());
        to.register("paypal_look_age_seconds", "How long ago PayPal's records were last looked through whole", self.look_age.clone());
        to.register("reconciliation_age_seconds", "How long ago the books were last compared with PayPal's records, or began", self.comparison_age.clone());
        to.register("reconciliation_unexplained_lines", "Lines of that comparison that are not explained", self.unexplained.clone());
        to.register("database_oldest_transaction_seconds", "How long the oldest transaction of anybody on the database's server is open", self.strain_oldest.clone());
        to.register("database_idle_transaction_seconds", "How long the longest of those is idle that somebody left open", self.strain_idle.clone());
        to.register("database_lock_waiters", "Sessions that wait for a lock", self.strain_waiting.clone());
        to.register("database_log_bytes", "How long the write-ahead log of an SQLite file is", self.strain_log.clone());
        to.register("books_read_timestamp_seconds", "When the figures above were read", self.read_at.clone());
        to.register("books_read_milliseconds", "How long that took", self.read_ms.clone());
        to.register("books_read_failures", "How often the books could not be read for them", self.failures.clone());
    }

    /// Reads them again, unless they were read moments ago. Who comes meanwhile waits for the one
    /// that reads.
    pub(super) async fn refresh(&self, app: &App) {
        let mut last = self.last.lock().await;
        let now = app.now();
        if last.is_some_and(|last| (0..PACE_SECONDS).contains(&seconds_between(last, now))) {
            return;
        }
        let (reader, begun) = (app.store.reader().clone(), Instant::now());
        let found = tokio::task::spawn_blocking(move || look(&reader, now)).await;
        *last = Some(now);
        match found {
            Ok(Ok(found)) => self.set(found, now, begun),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the books could not be read for figures");
                self.failures.inc();
            }
            Err(error) => {
                tracing::error!(%error, "figures could not be read");
                self.failures.inc();
            }
        }
    }

    fn set(&self, found: Found, now: Timestamp, begun: Instant) {
        for (waits, many, oldest) in [
            (found.approvals, &self.approvals, Some(&self.approvals_wait)),
            (found.intents_open, &self.intents_open, None),
            (found.intents_unknown, &self.intents_unknown, Some(&self.intents_unknown_age)),
            (found.incoming, &self.incoming, Some(&self.incoming_lag)),
            (found.outgoing, &self.outgoing, Some(&self.outgoing_lag)),
        ] {
            many.set(waits.many);
            if let Some(oldest) = oldest {
                oldest.set(waits.oldest_seconds);
            }
        }
        self.look_age.set(found.look_age);
        self.comparison_age.set(found.comparison_age);
        self.unexplained.set(found.unexplained);
        for (figure, gauge) in [
            (found.strain.oldest_seconds, &self.strain_oldest),
            (found.strain.idle_seconds, &self.strain_idle),
            (found.strain.waiting, &self.strain_waiting),
            (found.strain.log_bytes, &self.strain_log),
        ] {
            gauge.set(i64::try_from(figure).unwrap_or(i64::MAX));
        }
        self.read_at.set(now.as_second());
        self.read_ms.set(i64::try_from(begun.elapsed().as_millis()).unwrap_or(i64::MAX));
    }
}

fn look(reader: &Reader, now: Timestamp) -> Result<Found, ReadError> {
    // A question that expired waits for nobody; the list is sorted by when they do.
    let from = Cursor { at: format!("{now:.6}"), id: String::new() };
    let age =
        |since: Option<Timestamp>| since.map_or(0, |since| seconds_between(since, now).max(0));
    let looked = reader.row::<Scanned>(Scanned::ID)?;
    let compared = reader.row::<Reconciliation>(Reconciliation::ID)?;
    let unexplained =
        compared.as_ref().and_then(|row| row.last.as_ref()).map_or(0, |it| it.unexplained_lines);
    Ok(Found {
        look_age: age(looked.map(|row| row.seen_at())),
        // Books that were never compared are as old as they are.
        comparison_age: age(compared.as_ref().map(|row| row.at.unwrap_or(row.began))),
        unexplained: i64::try_from(unexplained).unwrap_or(i64::MAX),
        approvals: waits::<Approval>(reader, "approvals.open", Some(from), now, |row| {
            row.created_at
        })?,
        intents_open: waits::<Intent>(reader, "intents.open", None, now, |row| row.created_at)?,
        intents_unknown: waits::<Intent>(reader, "intents.unknown", None, now, |row| {
            row.created_at
        })?,
        incoming: waits::<WebhookEvent>(reader, "webhook_events.open", None, now, |row| {
            row.received_at
        })?,
        outgoing: outgoing(reader, now)?,
        strain: reader.strain()?,
    })
}

/// How many deliveries wait, by their endpoints' own count, and how long the longest of them is past
/// its time.
fn outgoing(reader: &Reader, now: Timestamp) -> Result<Waits, ReadError> {
    let (mut waits, mut after) = (Waits::default(), None);
    for _ in 0..MOST_ROWS / PAGE {
        let page = reader.list::<Hook>("hooks.waiting", "", after.as_ref(), PAGE, false)?;
        for hook in &page.items {
            waits.many = waits.many.saturating_add(i64::from(hook.waiting));
            // One that rests is late by its own doing.
            if hook.room(1, now) == 0 {
                continue;
            }
            let scope = hook.id.to_string();
            let first = reader.list::<Delivery>("hook_deliveries.due", &scope, None, 1, false)?;
            for row in first.items {
                let late = seconds_between(row.next_at, now);
                waits.oldest_seconds = waits.oldest_seconds.max(late);
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(waits)
}

/// How many rows a list has, and the oldest's age.
fn waits<R: Record>(
    reader: &Reader,
    list: &str,
    mut after: Option<Cursor>,
    now: Timestamp,
    since: impl Fn(&R) -> Timestamp,
) -> Result<Waits, ReadError> {
    let mut waits = Waits::default();
    for _ in 0..MOST_ROWS / PAGE {
        let page = reader.list::<R>(list, "", after.as_ref(), PAGE, false)?;
        for row in &page.items {
            waits.many = waits.many.saturating_add(1);
            waits.oldest_seconds = waits.oldest_seconds.max(seconds_between(since(row), now));
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(waits)
}
