//! What Prometheus is told: counters since the start, and how things stand.
//!
//! Everything is counted where it happens or kept up as a running sum; a scrape adds nothing up. The
//! few figures that only lists can tell are read at most once in [`books::PACE_SECONDS`], off the
//! threads that serve, from lists of what is open, up to a bound. What happened to purchases is taken
//! from the stream of events, which one task reads anyway. No label names an owner, an agent, a
//! seller or an id: each has few values, all of them written in this source.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use earnest_core::alarm;
use earnest_core::money::Currency;
use earnest_core::problem::Reason;
use earnest_paypal::{Exchange, Operation as Call};
use earnest_store::EventPage;
use http::{Method, StatusCode, header};
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::sync::Notify;

use crate::app::App;

pub mod books;

/// In seconds: from a quick read to the longest that a charge is waited for.
const PAYPAL_BUCKETS: [f64; 10] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// How long a scrape waits for the stream of events to be counted up to the moment it came, which
/// takes milliseconds unless the machine is very busy or the books cannot be read. Below the 10 s
/// after which Prometheus gives a scrape up unless told otherwise.
const CATCH_UP: Duration = Duration::from_secs(5);

/// What a policy said.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Decision {
    decision: &'static str,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Became {
    rail: &'static str,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: &'static str,
    route: String,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    operation: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Owed {
    currency: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Class {
    currency: &'static str,
    class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
    api: &'static str,
    mode: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct What {
    what: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Job {
    job: &'static str,
}

type Seconds = fn() -> Histogram;

/// The figures of one Earnest.
pub struct Figures {
    registry: Registry,
    decisions: Family<Decision, Counter>,
    purchases: Family<Became, Counter>,
    events: Family<Kind, Counter>,
    requests: Family<Answered, Counter>,
    paypal_seconds: Family<Operation, Histogram, Seconds>,
    paypal_outcomes: Family<Outcome, Counter>,
    paypal_ahead: Gauge,
    imbalance: Gauge,
    accounts: Family<Class, Gauge>,
    outstanding: Family<Owed, Gauge>,
    head: Gauge,
    behind: Gauge,
    remembered: Family<What, Gauge>,
    deaths: Family<Job, Counter>,
    failing: Gauge,
    writer: books::Writer,
    open: books::Open,
    seen: AtomicU64,
    moved: Notify,
}

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Figures").finish_non_exhaustive()
    }
}

impl Figures {
    /// Nothing counted yet.
    pub fn new(mode: &str) -> Self {
        let mut registry = Registry::with_prefix("earnest");
        let build = Build {
            version: env!("CARGO_PKG_VERSION"),
            api: crate::api::VERSION,
            mode: mode.to_owned(),
        };
        registry.register("build", "This build, and what its money is", Info::new(build));
        let seconds: Seconds = || Histogram::new(PAYPAL_BUCKETS);
        let mut figures = Self {
            decisions: Family::default(),
            purchases: Family::default(),
            events: Family::default(),
            requests: Family::default(),
            paypal_seconds: Family::new_with_constructor(seconds),
            paypal_outcomes: Family::default(),
            paypal_ahead: Gauge::default(),
            imbalance: Gauge::default(),
            accounts: Family::default(),
            outstanding: Family::default(),
            head: Gauge::default(),
            behind: Gauge::default(),
            remembered: Family::default(),
            deaths: Family::default(),
            failing: Gauge::default(),
            writer: books::Writer::default(),
            open: books::Open::default(),
            seen: AtomicU64::new(0),
            moved: Notify::new(),
            registry: Registry::default(),
        };
        figures.begin();
        figures.register(&mut registry);
        figures.registry = registry;
        figures
    }

    #[rustfmt::skip]
    fn register(&self, to: &mut Registry) {
        to.register("policy_decisions", "What policies said of purchases, by reason", self.decisions.clone());
        to.register("purchases", "Purchases that came into a state, by rail", self.purchases.clone());
        to.register("events", "Events of the log by kind; alarms begin with alarm", self.events.clone());
        to.register("http_requests", "Requests by route pattern and class of status", self.requests.clone());
        to.register("paypal_request_duration_seconds", "How long PayPal calls took, by operation", self.paypal_seconds.clone());
        to.register("paypal_requests", "PayPal calls by operation and what their answers mean", self.paypal_outcomes.clone());
        to.register("paypal_clock_ahead_seconds", "How far PayPal's clock is ahead of ours, as its last answer told", self.paypal_ahead.clone());
        to.register("ledger_imbalance_micros", "By how much debits and credits differ; 0 unless the books are broken", self.imbalance.clone());
        to.register("accounts_micros", "What all accounts of a class hold, debits less credits", self.accounts.clone());
        to.register("tab_outstanding_micros", "What all tabs owe", self.outstanding.clone());
        to.register("log_head", "Entries in the log", self.head.clone());
        to.register("events_behind", "Entries of the log that are not counted above yet; 0 unless the books could not be read in time", self.behind.clone());
        to.register("front_remembered", "What the front limiter remembers", self.remembered.clone());
        to.register("job_deaths", "How often a job, or a piece of its work, died and was begun again", self.deaths.clone());
        to.register("jobs_failing", "Jobs that keep dying", self.failing.clone());
        self.writer.register(to);
        self.open.register(to);
    }

    /// Zeros for what alerts ask for: Prometheus sees no increase in a series that was not there.
    fn begin(&self) {
        for decision in ["allow", "needs_approval"] {
            self.decisions.get_or_create(&Decision { decision, reason: String::new() }).inc_by(0);
        }
        for reason in Reason::ALL {
            let reason = reason.as_str().to_owned();
            self.decisions.get_or_create(&Decision { decision: "deny", reason }).inc_by(0);
        }
        for kind in alarm::KINDS {
            self.events.get_or_create(&Kind { kind: kind.to_owned() }).inc_by(0);
        }
        for job in crate::jobs::names().chain([crate::events::JOB]) {
            self.deaths.get_or_create(&Job { job }).inc_by(0);
        }
        for operation in Call::ALL {
            let operation = operation.as_str();
            let outcome = "unknown";
            self.paypal_outcomes.get_or_create(&Outcome { operation, outcome }).inc_by(0);
        }
        for (method, route) in described() {
            let (route, status) = (route.clone(), "5xx");
            self.requests.get_or_create(&Answered { method, route, status }).inc_by(0);
        }
        self.outstanding.get_or_create(&Owed { currency: Currency::Usd.code() }).set(0);
        for state in ["held", "waiting", "denied", "billed", "released", "expired", "unbilled"] {
            self.purchases.get_or_create(&Became { rail: "tab", state }).inc_by(0);
        }
    }

    /// Counts what the log got, as [`crate::events::Feed`] reads it.
    pub fn happened(&self, page: &EventPage) {
        for event in &page.events {
            self.one(&event.event.kind, &event.event.data);
        }
        self.reached(page.after);
    }

    /// Everything up to here is counted.
    pub fn reached(&self, seq: u64) {
        self.seen.store(seq, Ordering::Release);
        self.moved.notify_waiters();
    }

    fn one(&self, kind: &str, data: &serde_json::Value) {
        // Kinds are words of the source; nobody outside makes one.
        self.events.get_or_create(&Kind { kind: kind.to_owned() }).inc();
        let decide = |decision, reason: &str| {
            let reason = reason.to_owned();
            self.decisions.get_or_create(&Decision { decision, reason }).inc();
        };
        let state = match kind {
            "purchase.held" => {
                decide("allow", "");
                "held"
            }
            "approval.waiting" => {
                decide("needs_approval", "");
                "waiting"
            }
            "purchase.denied" => {
                decide("deny", data["reason"].as_str().unwrap_or("none"));
                "denied"
            }
            "purchase.billed" => "billed",
            "purchase.released" => "released",
            "purchase.expired" => "expired",
            "purchase.unbilled" => "unbilled",
            _ => return,
        };
        self.purchases.get_or_create(&Became { rail: "tab", state }).inc();
    }

    /// Counts an answer. `route` is the pattern, never the path: paths hold ids.
    pub fn answered(&self, method: &Method, route: Option<&str>, status: StatusCode) {
        let method = word(method);
        let status = match status.as_u16() / 100 {
            1 => "1xx",
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            _ => "5xx",
        };
        let route = route.unwrap_or("none").to_owned();
        if status != "5xx" {
            // Pages are not in the description: their first failure is an increase, too.
            let failed = Answered { method, route: route.clone(), status: "5xx" };
            self.requests.get_or_create(&failed).inc_by(0);
        }
        self.requests.get_or_create(&Answered { method, route, status }).inc();
    }

    /// Counts a PayPal call.
    pub fn called(&self, exchange: &Exchange) {
        let operation = exchange.operation.as_str();
        let seconds = exchange.took.as_secs_f64();
        self.paypal_seconds.get_or_create(&Operation { operation }).observe(seconds);
        let outcome = exchange.outcome.as_str();
        self.paypal_outcomes.get_or_create(&Outcome { operation, outcome }).inc();
    }

    /// Counts a job that died.
    pub fn job_died(&self, job: &'static str) {
        self.deaths.get_or_create(&Job { job }).inc();
    }

    /// Up to where events are counted.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    /// Waits until everything up to a place is counted, and says how much is not where that takes
    /// too long.
    async fn caught_up(&self, seq: u64, within: Duration) {
        let counted = async {
            loop {
                let moved = self.moved.notified();
                if self.seen.load(Ordering::Acquire) >= seq {
                    return;
                }
                moved.await;
            }
        };
        // Where the books cannot be read now, what is known is told, and how much is missing.
        let _ = tokio::time::timeout(within, counted).await;
        let behind = seq.saturating_sub(self.seen.load(Ordering::Acquire));
        self.behind.set(i64::try_from(behind).unwrap_or(i64::MAX));
    }

    /// What running sums tell: no reading.
    fn set_sums(&self, app: &App) {
        self.paypal_ahead.set(app.paypal.ahead().unwrap_or_default().as_secs());
        let sums = app.store.sums();
        self.imbalance.set(i64::try_from(sums.imbalance()).unwrap_or(i64::MAX));
        for (currency, class, net) in sums.classes() {
            let micros = i64::try_from(net.posted).unwrap_or(i64::MAX);
            self.accounts.get_or_create(&Class { currency: currency.code(), class }).set(micros);
            if class == "tab_owed" {
                self.outstanding.get_or_create(&Owed { currency: currency.code() }).set(micros);
            }
        }
        let (addresses, credentials) = app.front.remembered();
        for (what, many) in [("addresses", addresses), ("credentials", credentials)] {
            self.remembered
                .get_or_create(&What { what })
                .set(i64::try_from(many).unwrap_or(i64::MAX));
        }
        let failing = app.health.failing(tokio::time::Instant::now()).len();
        self.failing.set(i64::try_from(failing).unwrap_or(i64::MAX));
        self.writer.set(app.store.load());
    }
}

/// A method as a label: one of a few, whatever clients send.
fn word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// The methods and patterns of the API, from its description.
fn described() -> impl Iterator<Item = (&'static str, &'static String)> {
    static PATHS: OnceLock<Vec<(&'static str, String)>> = OnceLock::new();
    let paths = PATHS.get_or_init(|| {
        let mut all = Vec::new();
        for (path, item) in crate::api::openapi().paths.paths {
            for (method, operation) in [
                (Method::GET, item.get),
                (Method::POST, item.post),
                (Method::PUT, item.put),
                (Method::DELETE, item.delete),
                (Method::PATCH, item.patch),
            ] {
                all.extend(operation.map(|_| (word(&method), path.clone())));
            }
        }
        all
    });
    paths.iter().map(|(method, path)| (*method, path))
}

/// Everything, as Prometheus reads it (text format 0.0.4).
pub async fn render(app: &App) -> String {
    let figures = &app.figures;
    // From the books: whoever was answered may ask before the writer has told of the new head.
    let told = *app.store.watch_head().borrow();
    let head = app.store.reader().head().map_or(told, |head| head.seq);
    figures.caught_up(head, CATCH_UP).await;
    figures.head.set(i64::try_from(head).unwrap_or(i64::MAX));
    figures.set_sums(app);
    figures.open.refresh(app).await;
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = prometheus_text::encode(&mut text, &figures.registry);
    text
}

/// The answer of `/metrics`.
pub async fn answer(app: &App) -> Response {
    let kind = [
        (header::CONTENT_TYPE, prometheus_text::CONTENT_TYPE),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (kind, render(app).await).into_response()
}

/// What is served on an address for figures only: those, and nothing else.
pub fn alone(app: App) -> Router {
    Router::new()
        .route("/metrics", get(|State(app): State<App>| async move { answer(&app).await }))
        .with_state(app)
}

/// A lock that a panic elsewhere does not close.
fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_counted_yet_is_said() {
        let figures = Figures::new("simulated");
        figures.reached(4);
        figures.caught_up(7, Duration::ZERO).await;
        assert_eq!(figures.behind.get(), 3);
        // However long that takes, once it is counted nothing is missing.
        let later = async {
            tokio::task::yield_now().await;
            figures.reached(7);
        };
        tokio::join!(figures.caught_up(7, Duration::MAX), later);
        assert_eq!(figures.behind.get(), 0);
    }
}
