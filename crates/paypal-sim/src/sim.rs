//! The handle a program holds on a running simulator.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::books::{BooksView, Happening};
use crate::clock::Clock;
use crate::config::SimConfig;
use crate::control::{self, PayerError};
use crate::disputes::Favour;
use crate::faults::{Ending, Fault};
use crate::journal::{Entry, Violation};
use crate::server;
use crate::webhooks::sign::Authority;
use crate::webhooks::{Delivery, deliver};
use crate::world::World;

/// Why a simulator did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken or not ours.
    #[error("cannot listen on `{address}`: {source}")]
    Listen {
        /// What was asked for.
        address: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The certificate authority could not be made.
    #[error("cannot make certificates: {0}")]
    Certificates(#[from] rcgen::Error),
    /// The client that delivers webhooks could not be made.
    #[error("cannot make an HTTP client: {0}")]
    Client(#[from] reqwest::Error),
}

/// What every task of one simulator shares.
pub(crate) struct Shared {
    pub(crate) config: Arc<SimConfig>,
    pub(crate) base: String,
    pub(crate) clock: Clock,
    pub(crate) authority: Arc<Authority>,
    pub(crate) client: reqwest::Client,
    pub(crate) post_wakes: Notify,
    world: Mutex<World>,
}

impl Shared {
    /// The state. A panic in one request must not take the simulator down, so a poisoned lock
    /// is used as it is.
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the post that there may be something to deliver.
    pub(crate) fn wake_post(&self) {
        self.post_wakes.notify_one();
    }

    /// Delivers what has to arrive before the current call is answered.
    pub(crate) async fn deliver_before_answer(&self) {
        let now = self.clock.now();
        let due = self.world().post.take_early(now);
        for delivery in due {
            deliver::send(self, delivery).await;
        }
    }
}

/// A running simulated PayPal. Dropping it stops it without waiting; [`Sim::shutdown`] waits.
pub struct Sim {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Sim {
    /// Starts a simulator in the current tokio runtime.
    ///
    /// # Errors
    /// If the address cannot be listened on, or the certificate authority or the webhook client
    /// cannot be made.
    pub async fn start(config: SimConfig) -> Result<Self, StartError> {
        // Whoever was first has installed a provider; any will do here.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listen_error = |source| StartError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let base = config.public_url.as_deref().map_or_else(
            || format!("http://{address}"),
            |url| url.trim_end_matches('/').to_owned(),
        );
        let authority = Arc::new(Authority::new()?);
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()?;
        let config = Arc::new(config);
        let world = World::new(Arc::clone(&config), base.clone(), Arc::clone(&authority));
        let shared = Arc::new(Shared {
            clock: Clock::new(config.start, config.frozen),
            config,
            base,
            authority,
            client,
            post_wakes: Notify::new(),
            world: Mutex::new(world),
        });
        let (stop, stopped) = watch::channel(false);
        let tasks = vec![
            tokio::spawn(server::run(listener, Arc::clone(&shared), stopped.clone())),
            tokio::spawn(deliver::run(Arc::clone(&shared), stopped)),
        ];
        Ok(Self { shared, stop, tasks })
    }

    /// What to give a client as PayPal's base URL, without a trailing slash.
    #[must_use]
    pub fn base_url(&self) -> &str {
        &self.shared.base
    }

    /// The root certificate behind webhook signatures.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        self.shared.authority.root_pem()
    }

    /// The setup it was started with.
    #[must_use]
    pub fn config(&self) -> &SimConfig {
        &self.shared.config
    }

    /// The clock. Prefer [`Sim::advance`], which also carries out what became due.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Moves the clock forward and carries out everything that became due.
    pub fn advance(&self, seconds: u32) {
        control::advance(&self.shared, seconds);
    }

    /// The merchant's account as PayPal knows it.
    #[must_use]
    pub fn books(&self) -> BooksView {
        let now = self.shared.clock.now();
        let mut world = self.shared.world();
        world.tick(now);
        world.books.view(now)
    }

    /// Every request so far, oldest first.
    #[must_use]
    pub fn journal(&self) -> Vec<Entry> {
        self.shared.world().journal.entries()
    }

    /// What clients did that a careful client would not do.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.world().journal.violations().to_vec()
    }

    /// Every webhook delivery so far.
    #[must_use]
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.shared.world().post.deliveries.clone()
    }

    /// Replaces all faults.
    ///
    /// # Errors
    /// If a fault names an operation that does not exist and so could never fire.
    pub fn set_faults(&self, faults: Vec<Fault>) -> Result<(), String> {
        control::set_faults(&self.shared, faults)
    }

    /// Adds a fault to those that are set.
    ///
    /// # Errors
    /// As [`Sim::set_faults`].
    pub fn add_fault(&self, fault: Fault) -> Result<(), String> {
        control::add_fault(&self.shared, fault)
    }

    /// The payer approves an order or a setup token; the usual buyer unless an address is given.
    /// Returns where the payer's browser would go next.
    ///
    /// # Errors
    /// If there is nothing to approve under this id, or the payer is the seller.
    pub fn approve(&self, token: &str, email: Option<&str>) -> Result<Option<String>, PayerError> {
        control::approve(&self.shared, token, email)
    }

    /// The payer turns back. Returns where the payer's browser would go next.
    ///
    /// # Errors
    /// If nothing waits for a payer under this id.
    pub fn cancel(&self, token: &str) -> Result<Option<String>, PayerError> {
        control::cancel(&self.shared, token)
    }

    /// Ends a pending capture, authorization or refund; false if none is pending under this id.
    pub fn end_pending(&self, id: &str, ending: Ending) -> bool {
        control::end_pending(&self.shared, id, ending)
    }

    /// The payer removes the agreement on paypal.com; false if there is no such live token.
    pub fn revoke(&self, vault_id: &str) -> bool {
        control::revoke(&self.shared, vault_id)
    }

    /// PayPal takes back `minor` units of a capture, or all that is left; false if it cannot.
    pub fn reverse(&self, capture_id: &str, minor: Option<i64>) -> bool {
        control::reverse(&self.shared, capture_id, minor)
    }

    /// A payer disputes `minor` units of a capture, or all that is left; PayPal's id of the dispute.
    /// With `withhold` PayPal keeps the amount back meanwhile. `None` if there is nothing to dispute.
    pub fn dispute(&self, capture_id: &str, minor: Option<i64>, withhold: bool) -> Option<String> {
        control::dispute(&self.shared, capture_id, minor, withhold)
    }

    /// Something is said in an open dispute that moves no money; false if it is not open.
    pub fn touch_dispute(&self, id: &str) -> bool {
        control::touch_dispute(&self.shared, id)
    }

    /// Ends a dispute; false if it is not open. In the buyer's favour a reversal follows at once.
    pub fn resolve(&self, id: &str, favour: Favour) -> bool {
        control::resolve(&self.shared, id, favour)
    }

    /// Something happens in the account that no call makes; PayPal's id of it. `None` where no such
    /// thing can happen.
    pub fn happen(&self, what: &Happening) -> Option<String> {
        control::happen(&self.shared, what)
    }

    /// PayPal's records show another fee than was told, in minor units; false if there is no such
    /// movement.
    pub fn misstate_fee(&self, id: &str, minor: i64) -> bool {
        self.shared.world().books.misstate_fee(id, minor)
    }

    /// A movement vanishes from PayPal's records; false if there is none of this id.
    pub fn forget(&self, id: &str) -> bool {
        self.shared.world().books.forget(id)
    }

    /// Forgets every access token, as PayPal now and then does.
    pub fn drop_tokens(&self) {
        self.shared.world().access_tokens.clear();
    }

    /// Sets the scopes of tokens issued from now on; older tokens keep theirs.
    pub fn set_scopes(&self, scopes: Vec<String>) {
        self.shared.world().scopes = scopes;
    }

    /// Stops listening, lets running calls finish (5 s at most), and waits for all tasks.
    pub async fn shutdown(mut self) {
        let _ = self.stop.send(true);
        for task in std::mem::take(&mut self.tasks) {
            let _ = task.await;
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}
