//! A seller: who is paid, under which origin, and how it remembers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use earnest_core::id::SellerId;
use earnest_core::money::Micros;
use earnest_core::quote::Price;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use url::Url;

use crate::keys::{KeyRing, Keys};
use crate::layer::PriceLayer;
use crate::nonce::NonceStore;
use crate::report::{self, ReporterStatus, Settings};
use crate::setup::{Secret, SetupError, base_url, earnest_client, origin};

/// What a [`Seller`] needs to know. The defaults are those of a careful shopkeeper.
#[derive(Clone, Debug)]
pub struct SellerConfig {
    pub(crate) earnest: Url,
    pub(crate) public_earnest: Url,
    pub(crate) seller: SellerId,
    pub(crate) api_key: Secret,
    pub(crate) origin: String,
    pub(crate) nonces: NonceStore,
    pub(crate) keys: Keys,
    pub(crate) limits: Limits,
    pub(crate) reports: Settings,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) body_bytes: usize,
    pub(crate) body_within: Duration,
    pub(crate) answer_within: Duration,
}

impl SellerConfig {
    /// * `earnest_url`: where this program reaches Earnest, such as `http://127.0.0.1:4020`.
    /// * `seller_id`: `sel_…`.
    /// * `api_key`: `ek_seller_…`, read from a file or a secret store, not written in source.
    /// * `public_origin`: `https://api.example`, as buyers spell it and as it is registered with
    ///   Earnest. It is never taken from `Host` or a forwarded header, which the buyer controls.
    /// * `nonces`: [`NonceStore::open`] for anything that earns.
    ///
    /// # Errors
    /// [`SetupError`] naming the setting.
    pub fn new(
        earnest_url: &str,
        seller_id: &str,
        api_key: &str,
        public_origin: &str,
        nonces: NonceStore,
    ) -> Result<Self, SetupError> {
        let earnest = base_url("earnest_url", earnest_url)?;
        let seller = seller_id
            .parse()
            .map_err(|error| SetupError::Value { setting: "seller_id", why: format!("{error}") })?;
        Ok(Self {
            public_earnest: earnest.clone(),
            earnest,
            seller,
            api_key: Secret::read("api_key", api_key)?,
            origin: origin("public_origin", public_origin)?,
            nonces,
            keys: Keys::Fetched,
            limits: Limits {
                body_bytes: 1024 * 1024,
                body_within: Duration::from_secs(30),
                answer_within: Duration::from_secs(10 * 60),
            },
            reports: Settings::default(),
        })
    }

    /// Like [`SellerConfig::new`] with a durable nonce file.
    ///
    /// # Errors
    /// [`SetupError`] naming the setting, or why the file cannot be used.
    pub fn with_nonce_file(
        earnest_url: &str,
        seller_id: &str,
        api_key: &str,
        public_origin: &str,
        path: impl AsRef<Path>,
    ) -> Result<Self, SetupError> {
        let nonces = NonceStore::open(path)?;
        Self::new(earnest_url, seller_id, api_key, public_origin, nonces)
    }

    /// Where *buyers* reach Earnest, when that differs from `earnest_url`.
    ///
    /// # Errors
    /// When it is not a URL.
    pub fn public_earnest_url(mut self, url: &str) -> Result<Self, SetupError> {
        self.public_earnest = base_url("public_earnest_url", url)?;
        Ok(self)
    }

    /// Where Earnest's voucher keys come from; fetched by default.
    #[must_use]
    pub fn keys(mut self, keys: Keys) -> Self {
        self.keys = keys;
        self
    }

    /// The longest request body on a priced route, held in memory to compute its digest; 1 MiB by
    /// default. Longer ones are answered 413.
    #[must_use]
    pub const fn max_body_bytes(mut self, bytes: usize) -> Self {
        self.limits.body_bytes = bytes;
        self
    }

    /// How long a request body may take to arrive; 30 s by default, then 408.
    #[must_use]
    pub const fn body_within(mut self, time: Duration) -> Self {
        self.limits.body_within = time;
        self
    }

    /// How long the handler may take to *begin* its answer; 10 minutes by default, then 504 and
    /// nothing is charged. A body that streams may take longer.
    #[must_use]
    pub const fn answer_within(mut self, time: Duration) -> Self {
        self.limits.answer_within = time;
        self
    }

    /// How often a request that still runs is reported as being served, which keeps its hold;
    /// 5 minutes by default. Earnest voids a hold it hears nothing of for 15 minutes.
    #[must_use]
    pub const fn report_serving_every(mut self, time: Duration) -> Self {
        self.reports.serving_every = time;
        self
    }

    /// How soon a report that failed is repeated at first, and at most: each failure doubles the
    /// wait, with jitter. 500 ms and 60 s by default.
    #[must_use]
    pub const fn report_backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.reports.first_wait = first;
        self.reports.longest_wait = longest;
        self
    }
}

/// Who is paid. Cheap to clone; hand it to layers with [`Seller::price`], or once to the whole
/// router with [`Seller::layer`] for the free functions [`crate::price`] and
/// [`crate::price_up_to`].
#[derive(Clone)]
pub struct Seller(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) config: SellerConfig,
    pub(crate) keys: KeyRing,
    status: watch::Receiver<ReporterStatus>,
    /// Tells the reporter to finish; gone when the last handle is, which tells it too.
    finishing: watch::Sender<bool>,
    reporter: std::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Seller {
    /// Starts the reporter; must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// When the HTTP client cannot be built, or there is no runtime.
    pub fn new(config: SellerConfig) -> Result<Self, SetupError> {
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| SetupError::Value { setting: "runtime", why: error.to_string() })?;
        let client = earnest_client(&config.earnest, false)?;
        if !config.nonces.is_durable() {
            tracing::warn!("used vouchers are kept in memory: a restart forgets them");
        }
        let (finishing, finish) = watch::channel(false);
        let (publish, status) = watch::channel(ReporterStatus::default());
        let reporter = report::Reporter::new(&config, client.clone(), publish, finish);
        let reporter = std::sync::Mutex::new(Some(runtime.spawn(reporter.run())));
        let keys = KeyRing::new(&config.keys, client, &config.earnest);
        Ok(Self(Arc::new(Inner { config, keys, status, finishing, reporter })))
    }

    /// The layer that lets [`crate::price`] and [`crate::price_up_to`] find this seller. Put it on
    /// the router, outside the priced routes.
    pub fn layer(&self) -> Extension<Self> {
        Extension(self.clone())
    }

    /// A layer that charges a fixed price, such as `"$0.02"`, for every 2xx answer.
    ///
    /// # Errors
    /// When the text is not an amount.
    pub fn price(&self, text: &str) -> Result<PriceLayer, SetupError> {
        Ok(PriceLayer::of(Price::Fixed(read_price(text)?)).seller(self))
    }

    /// A layer that holds a ceiling and charges what the handler names; see [`crate::Paid`].
    ///
    /// # Errors
    /// When the text is not an amount.
    pub fn price_up_to(&self, text: &str) -> Result<PriceLayer, SetupError> {
        Ok(PriceLayer::of(Price::UpTo(read_price(text)?)).seller(self))
    }

    /// How the reports stand now.
    pub fn status(&self) -> ReporterStatus {
        self.0.status.borrow().clone()
    }

    /// Follows how the reports stand.
    pub fn watch(&self) -> watch::Receiver<ReporterStatus> {
        self.0.status.clone()
    }

    /// Waits until everything that ended is reported and acknowledged; `false` when it was not
    /// within `patience`. Requests still being served are not waited for.
    pub async fn flush(&self, patience: Duration) -> bool {
        let mut status = self.watch();
        let reported = async {
            loop {
                status.mark_unchanged();
                let counts = self.0.config.nonces.counts().await;
                match counts {
                    Ok((counts, _)) if counts.unreported == 0 => return true,
                    Ok(_) if status.changed().await.is_ok() => {}
                    _ => return false,
                }
            }
        };
        tokio::time::timeout(patience, reported).await.unwrap_or(false)
    }

    /// Reports what is left, ends the reporter and lets go of the nonce file. Call it after the
    /// server has stopped: requests still being served end as *failed* at the next start. `false`
    /// when not everything was acknowledged within `patience`; it will be after the next start.
    pub async fn shutdown(&self, patience: Duration) -> bool {
        let _reporter_gone = self.0.finishing.send(true);
        let flushed = self.flush(patience).await;
        if let Some(reporter) = self.take_reporter() {
            reporter.abort();
            let _aborted = reporter.await;
        }
        self.0.config.nonces.close().await;
        flushed
    }

    fn take_reporter(&self) -> Option<JoinHandle<()>> {
        self.0.reporter.lock().ok()?.take()
    }
}

impl std::fmt::Debug for Seller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seller")
            .field("seller", &self.0.config.seller)
            .field("origin", &self.0.config.origin)
            .finish_non_exhaustive()
    }
}

pub(crate) fn read_price(text: &str) -> Result<Micros, SetupError> {
    Micros::parse(text).map_err(|why| SetupError::Price { text: text.to_owned(), why })
}
