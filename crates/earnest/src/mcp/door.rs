//! What both doors share: where Earnest is, who calls, and how the tools reach out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use earnest_core::problem::{Code, Refusal};
use earnest_core::quote::is_loopback;
use earnest_sdk::{Buyer, Problem};
use http::{Method, StatusCode};
use reqwest::redirect::Policy;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;
use zeroize::Zeroizing;

use super::SAY_WITHIN;
use super::body::Bodies;
use super::jobs::{Jobs, Lifetime};
use super::task::Tasks;
use crate::limits::Limits;
use crate::outbound::{Outbound, Reach};

/// How long Earnest may take to answer a read; a call that ends sooner gives up sooner.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a seller may take with everything: as long as a purchase may be under way after the call
/// that began it. A voucher lives 120 s, so that a seller begins within that; three minutes more are
/// for slow work and large answers. What takes longer keeps a place that others wait for.
const SELLER_WITHIN: Duration = Duration::from_secs(300);
/// The most buyers that are kept: one for each key that bought lately. Past that all are made anew,
/// which costs each a TLS handshake.
const MOST_BUYERS: usize = 1024;

/// An agent that calls, with the key it is known by.
#[derive(Clone)]
pub struct Caller {
    /// Its name: what it bought is kept under it.
    pub agent: Arc<str>,
    /// Whose agent it is: its owner's agents share what there is for one owner.
    pub owner: Arc<str>,
    key: Arc<Zeroizing<String>>,
}

impl Caller {
    /// An agent, its owner, and its key, `ek_agent_…`.
    pub fn new(agent: &str, owner: &str, key: &str) -> Self {
        let key = Arc::new(Zeroizing::new(key.to_owned()));
        Self { agent: agent.into(), owner: owner.into(), key }
    }
}

impl std::fmt::Debug for Caller {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("agent", &self.agent).finish_non_exhaustive()
    }
}

/// Why a door cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// Where Earnest is said to be is no URL.
    #[error("`{0}` is not the URL of an Earnest")]
    Url(String),
    /// TLS cannot be set up.
    #[error("the HTTP client cannot be built: {0}")]
    Client(#[from] reqwest::Error),
}

/// Why Earnest did not give what was asked for.
#[derive(Debug)]
pub(super) enum ApiFailure {
    /// It said no.
    Refused(Box<Problem>),
    /// It said nothing, or nothing readable.
    Unreachable(String),
}

/// Which bound refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// The calls of this agent.
    Agent,
    /// The calls of its owner's agents.
    Owner,
    /// The calls of all agents.
    All,
}

/// Places that each of many has so many of.
struct Places {
    each: usize,
    taken: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
}

impl Places {
    fn new(each: usize) -> Self {
        Self { each, taken: Mutex::default() }
    }

    /// One of somebody's, if one is free.
    fn take(&self, whose: &Arc<str>) -> Option<OwnedSemaphorePermit> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever has nothing under way needs no entry.
        taken.retain(|_, own| own.available_permits() < self.each);
        let own = taken.entry(Arc::clone(whose));
        let own = own.or_insert_with(|| Arc::new(Semaphore::new(self.each)));
        Arc::clone(own).try_acquire_owned().ok()
    }
}

/// A way in for agents: the tools behind it are the same, whoever mounts it.
pub struct Door {
    earnest: Url,
    http: reqwest::Client,
    /// What fetches go through where this server makes them; an agent's own machine needs none.
    guard: Option<Outbound>,
    buyers: Mutex<HashMap<[u8; 32], Buyer>>,
    places: Places,
    owners: Places,
    all_places: Arc<Semaphore>,
    /// The most calls of one agent at once, and the most purchases of one agent under way.
    pub(super) calls_per_agent: usize,
    /// The most calls of one owner's agents at once.
    pub(super) calls_per_owner: usize,
    /// The most calls of all agents at once.
    pub(super) calls: usize,
    /// The most purchases of all agents under way.
    pub(super) purchases: usize,
    /// The most purchases of one owner's agents under way.
    pub(super) purchases_per_owner: usize,
    /// The longest a call lasts.
    pub(super) call_within: Duration,
    /// The largest answer of a seller's that is read.
    pub(super) answer_bytes: usize,
    /// Purchases under way, and those that ended a moment ago.
    pub(super) jobs: Jobs,
    /// Large bodies.
    pub(super) bodies: Bodies,
    /// Waits that clients follow as tasks.
    pub(super) tasks: Tasks,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("earnest", &self.earnest.as_str()).finish_non_exhaustive()
    }
}

impl Door {
    /// A door whose fetches the agent's own machine makes.
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn own_machine(earnest_url: &str) -> Result<Self, DoorError> {
        let limits = Limits::default();
        let lifetime = Lifetime {
            tasks: TaskTracker::new(),
            // The client hangs up, and nobody is left who could be told how a purchase ended.
            stopping: CancellationToken::new(),
            drain: Duration::ZERO,
        };
        Self::new(earnest_url, None, &limits, lifetime)
    }

    /// A door whose fetches this server makes for strangers, through the guarded client. `lifetime` is
    /// the server's.
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn guarded(
        earnest_url: &str,
        reach: Reach,
        limits: &Limits,
        lifetime: Lifetime,
    ) -> Result<Self, DoorError> {
        Self::new(earnest_url, Some(Outbound::new(reach)?), limits, lifetime)
    }

    fn new(
        earnest_url: &str,
        guard: Option<Outbound>,
        limits: &Limits,
        lifetime: Lifetime,
    ) -> Result<Self, DoorError> {
        let wrong = || DoorError::Url(earnest_url.to_owned());
        let earnest = Url::parse(earnest_url).map_err(|_| wrong())?;
        if earnest.cannot_be_a_base() || earnest.query().is_some() {
            return Err(wrong());
        }
        let mut http = reqwest::Client::builder()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN);
        // A server asks itself, wherever it listens: no proxy of the environment is on that way.
        if guard.is_some() || is_loopback(&earnest) {
            http = http.no_proxy();
        }
        Ok(Self {
            earnest,
            http: http.build()?,
            guard,
            buyers: Mutex::default(),
            places: Places::new(limits.mcp_calls_per_agent),
            owners: Places::new(limits.mcp_calls_per_owner),
            all_places: Arc::new(Semaphore::new(limits.mcp_calls)),
            calls_per_agent: limits.mcp_calls_per_agent,
            calls_per_owner: limits.mcp_calls_per_owner,
            calls: limits.mcp_calls,
            purchases: limits.mcp_purchases,
            purchases_per_owner: limits.mcp_purchases_per_owner,
            call_within: Duration::from_secs(limits.mcp_call_seconds),
            answer_bytes: limits.mcp_answer_bytes,
            jobs: Jobs::new(limits.mcp_purchases, lifetime),
            bodies: Bodies::default(),
            tasks: Tasks::default(),
        })
    }

    /// Until when a call that has to be over at `deadline` waits: `wait` at most, and so that it can
    /// still say how it stands.
    pub(super) fn until(&self, deadline: Instant, wait: Duration) -> Instant {
        let now = Instant::now();
        let last = deadline.checked_sub(SAY_WITHIN).unwrap_or(now);
        now.checked_add(wait).unwrap_or(last).min(last)
    }

    /// A place for one more call of this agent's.
    ///
    /// # Errors
    /// When it has as many under way as it may, or its owner's agents have, or all together have.
    pub(super) fn place(&self, caller: &Caller) -> Result<[OwnedSemaphorePermit; 3], Busy> {
        let own = self.places.take(&caller.agent).ok_or(Busy::Agent)?;
        let owner = self.owners.take(&caller.owner).ok_or(Busy::Owner)?;
        let all = Arc::clone(&self.all_places).try_acquire_owned().map_err(|_| Busy::All)?;
        Ok([own, owner, all])
    }

    /// The buyer of a caller for a URL.
    ///
    /// # Errors
    /// `target_forbidden` and its kin, where the guard refuses the URL.
    pub(super) fn buyer(&self, caller: &Caller, url: &str) -> Result<Buyer, Refusal> {
        let url = match &self.guard {
            Some(guard) => guard.check(url)?,
            None => earnest_core::quote::canonical_url(url)?,
        };
        // A proxy of the environment stands between a machine and others, not before itself.
        let direct = is_loopback(&url);
        let mut digest = Sha256::new();
        digest.update([u8::from(direct)]);
        digest.update(caller.key.as_bytes());
        let id: [u8; 32] = digest.finalize().into();
        let mut buyers = self.buyers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buyer) = buyers.get(&id) {
            return Ok(buyer.clone());
        }
        let (http, loopback) = match &self.guard {
            Some(guard) => (Outbound::builder(guard.reach()), guard.reach() == Reach::Loopback),
            None if direct => (reqwest::Client::builder().no_proxy(), true),
            None => (reqwest::Client::builder(), true),
        };
        let built = earnest_sdk::wrap(http.connect_timeout(CONNECT_WITHIN).timeout(SELLER_WITHIN))
            .earnest_url(self.earnest.as_str())
            .agent_key(&caller.key)
            .own_earnest(self.guard.is_some())
            .loopback_http(loopback)
            // Every request names its own.
            .max_price("$0.01")
            .build();
        let buyer = built.map_err(|why| Refusal::new(Code::Internal, why.to_string()))?;
        if buyers.len() >= MOST_BUYERS {
            buyers.clear();
        }
        buyers.insert(id, buyer.clone());
        Ok(buyer)
    }

    /// Reads something of Earnest's as the caller.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        caller: &Caller,
        path: &str,
    ) -> Result<T, ApiFailure> {
        read(&self.ask(caller, Method::GET, path, None).await?.1)
    }

    /// Asks Earnest about something as the caller.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        caller: &Caller,
        path: &str,
        body: &Value,
    ) -> Result<T, ApiFailure> {
        read(&self.ask(caller, Method::POST, path, Some(body)).await?.1)
    }

    /// Where Earnest points to from there, if it does.
    pub(super) async fn location(
        &self,
        caller: &Caller,
        path: &str,
    ) -> Result<Option<String>, ApiFailure> {
        self.ask(caller, Method::GET, path, None).await.map(|(location, _)| location)
    }

    /// A redirect's target, and the body.
    async fn ask(
        &self,
        caller: &Caller,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(Option<String>, Bytes), ApiFailure> {
        let url = format!("{}{path}", self.earnest.as_str().trim_end_matches('/'));
        let mut request = self.http.request(method, url).bearer_auth(caller.key.as_str());
        if let Some(body) = body {
            request = request.json(body);
        }
        let unreachable =
            |why: reqwest::Error| ApiFailure::Unreachable(why.without_url().to_string());
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let location = answer.headers().get(http::header::LOCATION);
        let location = location.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let bytes = answer.bytes().await.map_err(unreachable)?;
        match status.is_redirection() || status.is_success() {
            true => Ok((location, bytes)),
            false => Err(refused(status, &bytes)),
        }
    }
}

/// An answer as the API's own types have it. One that does not fit is a failure: what it would say of
/// money is not guessed.
fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiFailure> {
    let unreadable = |why| ApiFailure::Unreachable(format!("an answer that cannot be read: {why}"));
    serde_json::from_slice(bytes).map_err(unreadable)
}

fn refused(status: StatusCode, bytes: &[u8]) -> ApiFailure {
    match serde_json::from_slice::<Problem>(bytes) {
        Ok(problem) => ApiFailure::Refused(Box::new(problem)),
        Err(_) => ApiFailure::Unreachable(format!("Earnest answered {status}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::*;

    /// Set for the process that is run with a proxy in its environment: where Earnest listens.
    const CHILD: &str = "EARNEST_TEST_OWN_DOOR";

    /// The address under which this machine reaches others, so one that is not loopback; nothing is
    /// sent to find it.
    fn own_address() -> Option<std::net::IpAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback())
    }

    /// Answers whatever is asked; how often it was.
    fn answering(listener: TcpListener) -> Arc<AtomicUsize> {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                count.fetch_add(1, Ordering::SeqCst);
                let _ = stream.read(&mut [0; 4096]);
                let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
                let _ = std::io::Write::write_all(&mut stream, answer);
            }
        });
        asked
    }

    /// The key of an agent must not go to whatever stands in `HTTP_PROXY`, on no address of ours.
    #[test]
    fn a_proxy_of_the_environment_never_sees_what_the_server_asks_itself() {
        if let Ok(url) = std::env::var(CHILD) {
            return ask(&url);
        }
        let Some(own) = own_address() else {
            println!("skipped: this machine has no address but loopback");
            return;
        };
        let earnest = TcpListener::bind((own, 0)).unwrap();
        let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", earnest.local_addr().unwrap());
        let proxy_url = format!("http://{}", proxy.local_addr().unwrap());
        let (to_earnest, to_proxy) = (answering(earnest), answering(proxy));
        let name =
            "mcp::door::tests::a_proxy_of_the_environment_never_sees_what_the_server_asks_itself";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([name, "--exact", "--nocapture"]).env(CHILD, &url);
        for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
            child.env(name, &proxy_url);
        }
        for name in ["NO_PROXY", "no_proxy", "REQUEST_METHOD"] {
            child.env_remove(name);
        }
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(to_proxy.load(Ordering::SeqCst), 0, "the proxy was asked");
        assert_eq!(to_earnest.load(Ordering::SeqCst), 1);
    }

    fn ask(url: &str) {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let lifetime = Lifetime {
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            drain: Duration::ZERO,
        };
        let door = Door::guarded(url, Reach::Public, &Limits::default(), lifetime).unwrap();
        let caller = Caller::new("agt_1", "own_1", "ek_agent_x");
        // The buyer asks at the same place, which is no loopback and plain http.
        door.buyer(&caller, "https://seller.example/x").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _: Value = runtime.block_on(async { door.get(&caller, "/v1/tabs").await.unwrap() });
    }
}
