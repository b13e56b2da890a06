//! Starting and stopping an Earnest: books, keys, PayPal, jobs, listener; in that order, and back.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use earnest_core::id::OwnerId;
use earnest_core::vault::VaultState;
use earnest_paypal::webhooks::CertStore;
use earnest_paypal::{Client, Mode, Resource, Secret, Timeouts, webhooks};
use earnest_store::{Options, Place, Store};
use paypal_sim::{Sim, SimConfig};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use crate::app::{App, Parts};
use crate::config::Config;
use crate::figures::Figures;
use crate::first::{DevKeys, first_operator, provision};
use crate::flow::{reconcile, vault};
use crate::limits::Limits;
use crate::outbound::{Outbound, Reach};
use crate::source::{Clock, machine_clock, random_bytes};
use crate::{api, jobs, lead, listen, mcp, sealed, signing};

/// Why an Earnest does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}: {why}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        why: std::io::Error,
    },
    /// The folder of the books cannot be made.
    #[error("cannot use `{}`: {why}", path.display())]
    Folder {
        /// Which folder.
        path: PathBuf,
        /// What the system says.
        why: std::io::Error,
    },
    /// The books cannot be opened.
    #[error(transparent)]
    Books(#[from] earnest_store::OpenError),
    /// The signing keys cannot be opened.
    #[error(transparent)]
    Keys(#[from] sealed::SealError),
    /// PayPal is not configured, or wrongly.
    #[error("PayPal: {0}")]
    Paypal(String),
    /// The client for addresses of others cannot be set up.
    #[error("outgoing calls: {0}")]
    Outbound(String),
    /// The door for MCP cannot be made.
    #[error("MCP: {0}")]
    Mcp(String),
    /// The books have signing keys, and the file that opens them is not here, or is another.
    #[error(
        "`{}` {why}: every node on one database needs the key file of the node that made the books; \
         copy it from there, and in simulated mode `dev-keys.json` too",
        path.display()
    )]
    SharedKey {
        /// Where it is looked for.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The first parties could not be made.
    #[error("cannot set up development keys: {0}")]
    Provision(String),
}

/// A running Earnest.
pub struct Running {
    /// What it shares.
    pub app: App,
    /// Where it listens.
    pub address: SocketAddr,
    /// Where figures are read without a key.
    pub figures_address: Option<SocketAddr>,
    /// The simulator, where this process runs it.
    pub sim: Option<Sim>,
    /// Development keys, in simulated mode.
    pub dev: Option<DevKeys>,
    stop: CancellationToken,
    server: JoinHandle<()>,
    figures: Option<JoinHandle<()>>,
    jobs: Option<JoinHandle<()>>,
    feed: JoinHandle<()>,
}

/// How to start, beside the settings.
pub struct Start {
    /// Where `now` comes from.
    pub clock: Clock,
    /// Whether units go by the clock of the database, where the books are in one; tests that
    /// control the clock have one only.
    pub server_clock: bool,
    /// Whether the jobs run by themselves; tests that control the clock run them by hand.
    pub jobs: bool,
    /// How the simulator is set up, where this process runs it.
    pub sim: SimConfig,
    /// Whether the development owner has a way to pay from the start, where this process runs the
    /// simulator: its buyer consents at once. The simulator lives in memory, so that what was
    /// vaulted with the one before is gone.
    pub vault_dev_owner: bool,
    /// How often a stream of events says that it is alive, if not as set; tests of it wait less.
    pub heartbeat: Option<std::time::Duration>,
    /// How long to wait for PayPal; tests of lost answers wait less.
    pub timeouts: Timeouts,
    /// Books in memory that other nodes write too, in place of those that are set; for tests of
    /// several nodes without a database.
    pub shared: Option<earnest_store::Shared>,
    /// The bug to plant, for tests of tests.
    #[cfg(feature = "planted")]
    pub planted: crate::planted::Planted,
}

impl Default for Start {
    fn default() -> Self {
        Self {
            clock: machine_clock(),
            server_clock: true,
            jobs: true,
            sim: SimConfig::default(),
            heartbeat: None,
            timeouts: Timeouts::default(),
            vault_dev_owner: true,
            shared: None,
            #[cfg(feature = "planted")]
            planted: crate::planted::Planted::default(),
        }
    }
}

impl Running {
    /// Starts everything; it serves when this returns.
    ///
    /// # Errors
    /// [`StartError`]; what was started is stopped again.
    pub async fn start(config: Config, start: Start) -> Result<Self, StartError> {
        // Whoever embeds this may have installed one already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        if let Some(dir) = &config.data {
            make_folder(dir)?;
        }
        let listener = TcpListener::bind(config.listen).await;
        let listener =
            listener.map_err(|why| StartError::Listen { address: config.listen, why })?;
        let store = open_store(options(&config, &start)).await?;
        let opened = store.clone();
        let started = Self::on_books(store, listener, &config, start).await;
        if started.is_err() {
            close(opened).await;
        }
        started
    }

    async fn on_books(
        store: Store,
        listener: TcpListener,
        config: &Config,
        start: Start,
    ) -> Result<Self, StartError> {
        let address = listener
            .local_addr()
            .map_err(|why| StartError::Listen { address: config.listen, why })?;
        let (sim, mut paypal) = connect(config, start.sim.clone()).await?;
        paypal.timeouts = start.timeouts;
        let (jobs, with_method) = (start.jobs, start.vault_dev_owner);
        let app = match app(store, address, config, start, &paypal).await {
            Ok(app) => app,
            Err(error) => {
                if let Some(sim) = sim {
                    sim.shutdown().await;
                }
                return Err(error);
            }
        };
        let stop = app.stopping.clone();
        let feed = app.feed.spawn(&app, stop.clone());
        let router = api::router(app.clone());
        let limits = listen::Limits::from(config);
        let server = tokio::spawn(listen::serve(listener, router, limits, stop.clone()));
        let mut running = Self {
            app,
            address,
            figures_address: None,
            sim,
            dev: None,
            stop,
            server,
            figures: None,
            jobs: None,
            feed,
        };
        let app = running.app.clone();
        if let Err(error) = lead::one_by_one(&app, running.furnish(config, with_method)).await {
            running.stop().await;
            return Err(error);
        }
        running.jobs = jobs.then(|| jobs::spawn(running.app.clone(), running.stop.clone()));
        Ok(running)
    }

    /// Keys, webhooks and whatever else has to be there before anybody is let in.
    async fn furnish(&mut self, config: &Config, with_method: bool) -> Result<(), StartError> {
        let (app, data) = (&self.app, config.data.as_deref());
        if let Some((address, server)) = figures_server(config, app, self.stop.clone()).await? {
            (self.figures_address, self.figures) = (Some(address), Some(server));
        }
        match config.mode {
            Mode::Simulated if app.allow_loopback => {
                self.dev = provision(app, data, config.database.is_some()).await?;
            }
            _ => first_operator(app, data).await?,
        }
        // Before anything can move: what PayPal had until now is the opening balance.
        let began = reconcile::begin(app).await;
        began.map_err(|why| StartError::Provision(why.to_string()))?;
        if config.mode == Mode::Simulated && config.webhook_id.is_none() {
            register_webhook(app).await;
        }
        if let (true, Some(sim), Some(dev)) = (with_method, &self.sim, &self.dev) {
            vault_dev_owner(app, sim, dev).await;
        }
        app.set_furnished();
        Ok(())
    }

    /// `http://` and the address.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops taking requests, lets those under way finish, ends the jobs, closes the books.
    pub async fn stop(self) {
        self.stop.cancel();
        let all = [Some(self.server), self.figures, self.jobs, Some(self.feed)];
        for task in all.into_iter().flatten() {
            if let Err(why) = task.await {
                tracing::error!(%why, "a task did not end as it should");
            }
        }
        self.app.tasks.close();
        self.app.tasks.wait().await;
        lead::resign(&self.app).await;
        close(self.app.store.clone()).await;
        if let Some(sim) = self.sim {
            sim.shutdown().await;
        }
    }
}

/// Serves figures on an address of their own, where one is set.
async fn figures_server(
    config: &Config,
    app: &App,
    stop: CancellationToken,
) -> Result<Option<(SocketAddr, JoinHandle<()>)>, StartError> {
    let Some(address) = config.metrics_listen else { return Ok(None) };
    let failed = |why| StartError::Listen { address, why };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let router = crate::figures::alone(app.clone());
    let limits = listen::Limits::from(config);
    let server = tokio::spawn(listen::serve(listener, router, limits, stop));
    Ok(Some((address, server)))
}

/// Opens the books of the settings, as [`Running::start`] does, for a command that works on them
/// while Earnest does not run.
///
/// # Errors
/// [`StartError::Books`] where somebody has them open; [`StartError::Folder`].
pub async fn open_books(config: &Config) -> Result<Store, StartError> {
    if let Some(dir) = &config.data {
        make_folder(dir)?;
    }
    open_store(options(config, &Start::default())).await
}

/// What every request and job will share.
async fn app(
    store: Store,
    address: SocketAddr,
    config: &Config,
    start: Start,
    paypal: &earnest_paypal::Config,
) -> Result<App, StartError> {
    let sealer = sealer(config, &store)?;
    let keys = signing::keys(&store, &sealer, (start.clock)()).await;
    let keys = keys.map_err(|why| match (why, config.seal_key()) {
        (sealed::SealError::OtherKey, Some(path)) if config.database.is_some() => {
            StartError::SharedKey { path, why: "is not the key file of these books" }
        }
        (why, _) => why.into(),
    })?;
    // Play money does not make a port safe: beyond loopback nobody is given keys or a way in.
    let alone = config.mode == Mode::Simulated && address.ip().is_loopback();
    let reach = if alone { Reach::Loopback } else { Reach::Public };
    let outbound = Outbound::new(reach);
    let outbound = outbound.map_err(|why| StartError::Outbound(why.to_string()))?;
    let models = crate::models::Models::new(&config.models);
    let models = models.map_err(|why| StartError::Outbound(why.to_string()))?;
    let certs = CertStore::new(paypal).map_err(|why| StartError::Paypal(why.to_string()))?;
    let client = Client::new(paypal).map_err(|why| StartError::Paypal(why.to_string()))?;
    let figures = std::sync::Arc::new(Figures::new(config.mode.as_str()));
    let counts = figures.clone();
    let client = client.watched(move |exchange| counts.called(exchange));
    let client = client.beside(start.clock.clone());
    // On behalf of agents that speak MCP it asks itself, from where it listens.
    let own = Some(address.ip()).filter(|own| !own.is_unspecified() && !own.is_loopback());
    let front = crate::front::Front::new(&config.front, &start.clock, own);
    let heartbeat = std::time::Duration::from_secs(config.limits.event_heartbeat_seconds);
    let (stopping, tasks) = (CancellationToken::new(), TaskTracker::new());
    let lifetime = mcp::Lifetime {
        tasks: tasks.clone(),
        stopping: stopping.clone(),
        drain: std::time::Duration::from_secs(config.limits.drain_seconds),
    };
    Ok(App::new(Parts {
        store,
        settings: config.settings.clone(),
        public_url: config.public_url.clone().unwrap_or_else(|| format!("http://{address}")),
        clock: start.clock,
        keys,
        sealer,
        front,
        figures,
        outbound,
        models,
        paypal: client,
        certs,
        webhook_check: config.webhook_check,
        webhook_id: config.webhook_id.clone(),
        allow_loopback: alone,
        heartbeat: start.heartbeat.unwrap_or(heartbeat),
        mcp: std::sync::Arc::new(door(reach, address, &config.limits, lifetime)?),
        stopping,
        tasks,
        limits: config.limits.clone(),
        #[cfg(feature = "planted")]
        planted: start.planted,
    }))
}

/// Closing waits for what is queued, so it must not stand in the way of other tasks.
async fn close(store: Store) {
    let _ = tokio::task::spawn_blocking(move || store.close()).await;
}

/// What agents that speak MCP over HTTP come in by. It asks this very server.
fn door(
    reach: Reach,
    address: SocketAddr,
    limits: &Limits,
    lifetime: mcp::Lifetime,
) -> Result<mcp::Door, StartError> {
    let door = mcp::Door::guarded(&mcp::http::own_url(address), reach, limits, lifetime);
    door.map_err(|why| StartError::Mcp(why.to_string()))
}

fn make_folder(path: &Path) -> Result<(), StartError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|why| StartError::Folder { path: path.to_owned(), why })
}

fn options(config: &Config, start: &Start) -> Options {
    let (mode, clock) = (config.mode.as_str(), start.clock.clone());
    let mut options = Options::new(config.books(), mode, clock);
    options.server_clock = start.server_clock;
    if options.place != Place::Memory {
        // Random, so that no two installations share an invoice id at PayPal.
        options.epoch = format!("e{}", hex::encode(random_bytes::<4>()));
    }
    if let Some(shared) = &start.shared {
        options = Options::shared(shared, config.mode.as_str(), start.clock.clone());
    }
    #[cfg(feature = "planted")]
    {
        options.planted = start.planted.engine;
    }
    options
}

async fn open_store(options: Options) -> Result<Store, StartError> {
    let opened = tokio::task::spawn_blocking(move || Store::open(options)).await;
    let opened = opened.map_err(|why| StartError::Provision(why.to_string()))?;
    Ok(opened?)
}

/// The key file: said, or in the data folder; what keeps nothing needs none.
fn sealer(config: &Config, store: &Store) -> Result<sealed::Sealer, StartError> {
    let Some(path) = config.seal_key() else { return Ok(sealed::Sealer::throw_away()) };
    // A new one would open nothing of what another node sealed.
    if config.database.is_some() && !path.exists() && !signing::rows(store)?.is_empty() {
        return Err(StartError::SharedKey { path, why: "is missing" });
    }
    Ok(sealed::Sealer::open(&path)?)
}

/// The PayPal to speak to: a simulator of our own, one that runs already, or PayPal itself.
///
/// # Errors
/// [`StartError::Paypal`] when it is not configured, or wrongly.
pub async fn connect(
    config: &Config,
    sim: SimConfig,
) -> Result<(Option<Sim>, earnest_paypal::Config), StartError> {
    let wrong = |why: &dyn std::fmt::Display| StartError::Paypal(why.to_string());
    if config.mode != Mode::Simulated {
        let (Some(id), Some(secret)) = (&config.client_id, &config.secret) else {
            return Err(wrong(&"client id and secret are needed: see earnest.toml.example"));
        };
        let paypal = earnest_paypal::Config::paypal(config.mode, id, secret.clone());
        return Ok((None, paypal.map_err(|why| wrong(&why))?));
    }
    let (sim, base, ca) = match &config.simulator_url {
        Some(url) => (None, url.clone(), ca_of(url).await),
        None => {
            let sim = SimConfig { relaxed_webhook_urls: true, ..sim };
            let sim = Sim::start(sim).await.map_err(|why| wrong(&why))?;
            let (base, ca) = (sim.base_url().to_owned(), sim.ca_pem().to_owned());
            (Some(sim), base, Some(ca))
        }
    };
    let url = Url::parse(&base).map_err(|why| wrong(&why))?;
    let host = url.host_str().unwrap_or_default().to_owned();
    let port = url.port_or_known_default().unwrap_or(80);
    let mut paypal = earnest_paypal::Config::simulated(
        url,
        config.client_id.as_deref().unwrap_or("sim"),
        config.secret.clone().unwrap_or_else(|| Secret::new("sim")),
    );
    paypal.webhook_cert_hosts = vec![format!("{host}:{port}")];
    paypal.webhook_root_pem = ca;
    Ok((sim, paypal))
}

/// The authority behind the webhooks of a simulator that runs apart, from its own control API.
/// Without it webhooks are refused, and everything is polled all the same.
async fn ca_of(simulator: &str) -> Option<String> {
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .timeout(Timeouts::default().read)
        .build()
        .ok()?;
    let url = format!("{}/_sim/ca.pem", simulator.trim_end_matches('/'));
    let answer = client.get(url).send().await.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    answer.text().await.ok()
}

/// Tells a simulator where webhooks go, unless it knows from an earlier start.
async fn register_webhook(app: &App) {
    let url = format!("{}/webhooks/paypal", app.public_url);
    let known = app.paypal.send(&webhooks::list()).await;
    if let Some(Resource::Webhooks(known)) = known.resource()
        && let Some(webhook) = known.webhooks.iter().find(|webhook| webhook.url == url)
    {
        return app.set_webhook_id(webhook.id.clone());
    }
    let Ok(request) = webhooks::create(&url) else { return };
    let exchange = app.paypal.send(&request).await;
    match exchange.resource() {
        Some(Resource::Webhook(webhook)) => app.set_webhook_id(webhook.id.clone()),
        _ => tracing::warn!(outcome = exchange.outcome.as_str(), "no webhook was registered"),
    }
}

/// Vaults the simulator's buyer for the development owner. Nothing depends on it but convenience,
/// so that a failure is only said.
async fn vault_dev_owner(app: &App, sim: &Sim, dev: &DevKeys) {
    let Ok(owner) = dev.owner.id.parse::<OwnerId>() else {
        return tracing::warn!("dev-keys.json names no owner");
    };
    let begun = match vault::begin(app, owner).await {
        Ok(begun) => begun,
        Err(error) => return tracing::warn!(%error, "the development owner has no way to pay"),
    };
    let consented =
        begun.setup_token.as_ref().is_some_and(|token| sim.approve(token, None).is_ok());
    let confirmed = match consented {
        true => vault::confirm(app, begun.id).await,
        false => Ok(Some(begun)),
    };
    match confirmed {
        Ok(Some(vault)) if vault.state == VaultState::Active => {}
        Ok(_) => tracing::warn!("the development owner has no way to pay"),
        Err(error) => tracing::warn!(%error, "the development owner has no way to pay"),
    }
}
