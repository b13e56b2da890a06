//! What every request and job shares.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use earnest_core::id::{KeyId, OwnerId, Seed};
use earnest_core::jws::KeySet;
use earnest_core::party::{ApiKey, Principal};
use earnest_core::settings::Settings;
use earnest_core::signing::SealedKey;
use earnest_core::time::{SignedDuration, Timestamp};
use earnest_paypal::webhooks::CertStore;
use earnest_store::{Changes, Store};

use crate::attempts::Attempts;
use crate::signing::{self, Keys};
use crate::source::{self, Clock};

/// How long a verified key is remembered, in seconds. Units check the key again where it spends.
const REMEMBER_SECONDS: i64 = 5;
/// The most keys that are remembered.
const REMEMBER_KEYS: usize = 50_000;

/// How webhooks are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WebhookCheck {
    /// With PayPal's certificate, here.
    Local,
    /// By asking PayPal.
    Postback,
}

impl WebhookCheck {
    /// As settings name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Postback => "postback",
        }
    }
}

/// What the application is made of.
pub struct Parts {
    /// The books.
    pub store: Store,
    /// Numbers the operator set.
    pub settings: Settings,
    /// Where people and sellers reach this Earnest; the issuer of every token.
    pub public_url: String,
    /// Clock.
    pub clock: Clock,
    /// Signing keys.
    pub keys: Keys,
    /// Seals secrets that rest in the books.
    pub sealer: crate::sealed::Sealer,
    /// Who may ask how often.
    pub front: crate::front::Front,
    /// What is counted.
    pub figures: Arc<crate::figures::Figures>,
    /// The client for addresses that strangers gave us.
    pub outbound: crate::outbound::Outbound,
    /// Models that may be asked.
    pub models: crate::models::Models,
    /// PayPal.
    pub paypal: earnest_paypal::Client,
    /// Certificates of PayPal's webhooks.
    pub certs: CertStore,
    /// How webhooks are verified.
    pub webhook_check: WebhookCheck,
    /// The id PayPal gave our webhook.
    pub webhook_id: Option<String>,
    /// Whether `http://` on loopback is good enough for sellers (development).
    pub allow_loopback: bool,
    /// What the process may cost.
    pub limits: crate::limits::Limits,
    /// How often a stream of events says that it is alive.
    pub heartbeat: std::time::Duration,
    /// The door of agents that speak MCP over HTTP.
    pub mcp: Arc<crate::mcp::Door>,
    /// Cancelled when Earnest stops.
    pub stopping: tokio_util::sync::CancellationToken,
    /// What goes on after its request was answered.
    pub tasks: tokio_util::task::TaskTracker,
    /// The bug to plant, for tests of tests.
    #[cfg(feature = "planted")]
    pub planted: crate::planted::Planted,
}

/// The application: cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Inner>);

/// See [`Parts`].
pub struct Inner {
    /// The books.
    pub store: Store,
    /// Numbers the operator set.
    pub settings: Arc<Settings>,
    /// What the process may cost.
    pub limits: crate::limits::Limits,
    /// The issuer of every token, without a slash at the end.
    pub public_url: String,
    /// Seals secrets that rest in the books.
    pub sealer: crate::sealed::Sealer,
    /// Who may ask how often.
    pub front: crate::front::Front,
    /// What is counted.
    pub figures: Arc<crate::figures::Figures>,
    /// The client for addresses that strangers gave us.
    pub outbound: crate::outbound::Outbound,
    /// Models that may be asked.
    pub models: crate::models::Models,
    /// PayPal.
    pub paypal: earnest_paypal::Client,
    /// Certificates of PayPal's webhooks.
    pub certs: CertStore,
    /// How webhooks are verified.
    pub webhook_check: WebhookCheck,
    /// Whether `http://` on loopback is good enough for sellers.
    pub allow_loopback: bool,
    /// The door of agents that speak MCP over HTTP.
    pub mcp: Arc<crate::mcp::Door>,
    /// The bug that is planted.
    #[cfg(feature = "planted")]
    pub planted: crate::planted::Planted,
    /// This process, as leases name it.
    pub node: String,
    /// Whether it leads those on the same database.
    pub lead: crate::lead::Lead,
    /// Whether everything is there that has to be before anybody is let in.
    furnished: AtomicBool,
    webhook_id: RwLock<Option<String>>,
    /// Signing keys, and how often their rows had changed when they were read; none who can tell.
    keys: RwLock<(Arc<Keys>, Option<u64>)>,
    keys_changed: Changes,
    clock: Clock,
    remembered: RwLock<Memory>,
    api_keys_changed: Changes,
    /// Who tried to sign in with what is no link, by address.
    pub attempts: Attempts,
    /// Wakes the jobs when there is something to do.
    pub wake: Wake,
    /// Which jobs died lately.
    pub health: crate::supervise::Health,
    /// How often a stream of events says that it is alive, and asks whether its key still is.
    pub heartbeat: std::time::Duration,
    /// Where listeners to events join.
    pub feed: crate::events::Feed,
    /// Who listens, and how many there may be.
    pub seats: Arc<crate::events::Seats>,
    /// Whose outgoing webhooks are under way.
    pub shares: crate::flow::share::Shares,
    /// Cancelled when Earnest stops: what would go on for ever ends.
    pub stopping: tokio_util::sync::CancellationToken,
    /// What goes on after its request was answered; the books are closed only when it has ended.
    pub tasks: tokio_util::task::TaskTracker,
}

/// Wakes every job that listens; none misses it because it was busy.
#[derive(Default)]
pub struct Wake(tokio::sync::watch::Sender<()>);

impl Wake {
    /// There is something to do.
    pub fn notify(&self) {
        self.0.send_replace(());
    }

    /// What changes each time there is something to do.
    pub fn listen(&self) -> tokio::sync::watch::Receiver<()> {
        self.0.subscribe()
    }
}

/// A verified key, or a browser that is signed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Who holds it.
    pub principal: Principal,
    /// Which key it is; none for a browser that is signed in.
    pub key: Option<KeyId>,
    /// The owner of an agent.
    pub owner: Option<OwnerId>,
}

struct Remembered {
    verified: Verified,
    until: Timestamp,
}

/// Keys verified moments ago, and how often rows of keys had changed then: after a change all of them
/// are forgotten.
#[derive(Default)]
struct Memory {
    keys: HashMap<[u8; 32], Remembered>,
    era: u64,
}

impl std::ops::Deref for App {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl App {
    /// Puts the parts together.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(Inner {
            settings: Arc::new(parts.settings),
            public_url: parts.public_url.trim_end_matches('/').to_owned(),
            sealer: parts.sealer,
            front: parts.front,
            figures: parts.figures,
            outbound: parts.outbound,
            models: parts.models,
            paypal: parts.paypal,
            certs: parts.certs,
            webhook_check: parts.webhook_check,
            webhook_id: RwLock::new(parts.webhook_id),
            keys: RwLock::new((Arc::new(parts.keys), None)),
            keys_changed: parts.store.changes_of::<SealedKey>(),
            api_keys_changed: parts.store.changes_of::<ApiKey>(),
            allow_loopback: parts.allow_loopback,
            mcp: parts.mcp,
            #[cfg(feature = "planted")]
            planted: parts.planted,
            node: source::random_token(),
            lead: crate::lead::Lead::default(),
            furnished: AtomicBool::new(false),
            clock: parts.clock,
            remembered: RwLock::default(),
            attempts: Attempts::new(&parts.limits),
            seats: crate::events::Seats::new(&parts.limits),
            shares: crate::flow::share::Shares::default(),
            limits: parts.limits,
            wake: Wake::default(),
            health: crate::supervise::Health::default(),
            heartbeat: parts.heartbeat,
            feed: crate::events::Feed::default(),
            stopping: parts.stopping,
            tasks: parts.tasks,
            store: parts.store,
        }))
    }

    /// Whether the start is over: its keys count, and PayPal knows where to call.
    pub fn is_furnished(&self) -> bool {
        self.furnished.load(Ordering::Acquire)
    }

    /// The start is over.
    pub fn set_furnished(&self) {
        self.furnished.store(true, Ordering::Release);
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// What a new id is made of.
    pub fn seed(&self) -> Seed {
        source::seed(&self.clock)
    }

    /// What so many new ids are made of; cheaper than one after another.
    pub fn seeds<const N: usize>(&self) -> [Seed; N] {
        source::seeds(&self.clock)
    }

    /// The signing keys, and the set that is published of them: with every change that was committed
    /// before a unit that this node has an answer to, whichever node made it.
    // INVARIANT: a_voucher_is_signed_by_the_key_of_its_moment
    pub fn keys(&self) -> Arc<Keys> {
        let changed = self.keys_changed.count();
        let known = {
            let kept = self.keys.read().unwrap_or_else(PoisonError::into_inner);
            if kept.1 == Some(changed) {
                return Arc::clone(&kept.0);
            }
            Arc::clone(&kept.0)
        };
        match signing::read_again(self, &known) {
            Ok(fresh) => {
                let fresh = fresh.map_or(known, Arc::new);
                let mut kept = self.keys.write().unwrap_or_else(PoisonError::into_inner);
                *kept = (Arc::clone(&fresh), Some(changed));
                fresh
            }
            Err(error) => {
                tracing::error!(%error, "the signing keys cannot be read again");
                known
            }
        }
    }

    /// Reads the signing keys again when they are asked for next.
    pub fn doubt_keys(&self) {
        self.keys.write().unwrap_or_else(PoisonError::into_inner).1 = None;
    }

    /// Checks something that was signed. What this node cannot verify may be signed with a key that
    /// another one has just made, so that the keys are read again before it is refused.
    ///
    /// # Errors
    /// As `check` says.
    pub fn verify<T, E>(&self, check: impl Fn(&KeySet) -> Result<T, E>) -> Result<T, E> {
        let known = self.keys();
        check(&known.set).or_else(|refused| {
            if !self.store.is_shared() {
                return Err(refused);
            }
            self.doubt_keys();
            let fresh = self.keys();
            if Arc::ptr_eq(&known, &fresh) { Err(refused) } else { check(&fresh.set) }
        })
    }

    /// The id PayPal gave our webhook, if it is known.
    pub fn webhook_id(&self) -> Option<String> {
        self.webhook_id.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the id PayPal gave our webhook.
    pub fn set_webhook_id(&self, id: String) {
        *self.webhook_id.write().unwrap_or_else(PoisonError::into_inner) = Some(id);
    }

    /// How often rows of keys changed: under which era a key may be remembered that is looked up next.
    pub fn key_era(&self) -> u64 {
        self.api_keys_changed.count()
    }

    /// A key that was verified moments ago; or the era under which it may be remembered once it is
    /// verified. Where other nodes write too, their changes are known a moment later: what may change
    /// something looks a key up anew.
    pub fn recall(&self, hash: &[u8; 32]) -> Result<Verified, u64> {
        let era = self.key_era();
        let memory = self.remembered.read().unwrap_or_else(PoisonError::into_inner);
        let known = memory.keys.get(hash).filter(|known| self.now() < known.until);
        known.filter(|_| memory.era == era).map(|known| known.verified).ok_or(era)
    }

    /// Remembers a verified key for a few seconds, unless keys changed since it was looked up: it may
    /// be the one that was revoked.
    pub fn remember(&self, hash: [u8; 32], verified: Verified, era: u64) {
        let span = SignedDuration::from_secs(REMEMBER_SECONDS);
        let until = self.now().saturating_add(span).unwrap_or_else(|_| self.now());
        let mut memory = self.remembered.write().unwrap_or_else(PoisonError::into_inner);
        if memory.era > era {
            return;
        }
        if memory.era < era || memory.keys.len() >= REMEMBER_KEYS {
            memory.keys.clear();
            memory.era = era;
        }
        memory.keys.insert(hash, Remembered { verified, until });
    }
}
