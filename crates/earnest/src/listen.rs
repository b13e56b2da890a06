//! The listener: HTTP/1.1 connections, and what each of them may cost.
//!
//! Strangers can reach it, so every wait has an end: for the head of a request, for its body (see
//! [`BodyTimeout`]), for the reader of an answer, for the next request on a connection that idles,
//! for the last answers when Earnest stops. A handler itself is never cut off by a clock: what it
//! does with money ends as a recorded state, however long PayPal takes.
//!
//! Nobody takes all places: one address has a share of them, and the last ones are for a single
//! quick request each, so that whoever wants to pause or revoke something gets in.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::util::MapRequest;

use self::patient::Patient;
use crate::api::read::BodyTimeout;
use crate::config::Config;
use crate::front::address::{Networks, household};

mod patient;

/// What connections may cost.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long the head of a request may take to arrive; also how long a connection may idle.
    pub head: Duration,
    /// How long a body may take to arrive, and how long an answer may wait for a reader that takes
    /// none of it.
    pub body: Duration,
    /// How many connections are open at a time; further ones wait to be accepted.
    pub connections: usize,
    /// How many of them one address has; further ones are closed at once.
    pub per_address: usize,
    /// Addresses that may have any number: proxies, behind which many are one.
    pub uncounted: Networks,
    /// How many headers a request may have.
    pub headers: usize,
    /// How large the head of a request may be, in bytes.
    pub head_bytes: usize,
    /// How long answers under way may take once Earnest stops.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self::from(&crate::limits::Limits::default())
    }
}

impl From<&crate::limits::Limits> for Limits {
    fn from(said: &crate::limits::Limits) -> Self {
        Self {
            head: Duration::from_secs(said.head_seconds),
            body: Duration::from_secs(said.body_seconds),
            connections: said.connections,
            per_address: said.connections_per_address,
            uncounted: Networks::default(),
            headers: 64,
            head_bytes: 32 * 1024,
            drain: Duration::from_secs(said.drain_seconds),
        }
    }
}

impl From<&Config> for Limits {
    fn from(config: &Config) -> Self {
        let mut uncounted = config.front.uncounted.clone();
        uncounted.add(&config.front.hops.trusted);
        let mut limits = Self { uncounted, ..Self::from(&config.limits) };
        if config.front.address_per_minute == 0 {
            // No address is counted.
            limits.per_address = usize::MAX;
        }
        limits
    }
}

impl Limits {
    /// How many places are given for one quick request each.
    const fn quick(&self) -> usize {
        self.connections / 16
    }

    /// What counts on one of the last places: nobody keeps it.
    fn for_one_request(mut self) -> Self {
        self.head = self.head.min(QUICK);
        self.body = self.body.min(QUICK);
        self
    }
}

/// Who is at the other end of the connection, beside every request: a proxy, where there is one.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// How long the listener waits when the system has no more connections to give.
const BREATH: Duration = Duration::from_millis(100);
/// How long the head and the body of a request may take on one of the last places.
const QUICK: Duration = Duration::from_secs(2);

/// How many connections each address has.
#[derive(Clone, Default)]
struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// One connection of an address.
struct Own(Option<(Addresses, IpAddr)>);

impl Addresses {
    /// Counts one more; none where it has as many as it may.
    fn enter(&self, peer: IpAddr, limits: &Limits) -> Option<Own> {
        if limits.uncounted.contains(peer) {
            return Some(Own(None));
        }
        let address = household(peer.to_canonical());
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = known.entry(address).or_default();
        // At least one, so that no entry outlives the connections it counts.
        if *count >= limits.per_address.max(1) {
            return None;
        }
        *count = count.saturating_add(1);
        Some(Own(Some((self.clone(), address))))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let Some((addresses, address)) = &self.0 else { return };
        let mut known = addresses.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = known.get_mut(address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                known.remove(address);
            }
        }
    }
}

/// Serves until told to stop, then finishes what is under way.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let (addresses, drain) = (Addresses::default(), limits.drain);
    let open = TaskTracker::new();
    while !stop.is_cancelled() {
        let accepted = async {
            // Closed by nobody; if it ever were, nothing more would be accepted.
            let place = places.clone().acquire_owned().await.ok()?;
            Some((place, listener.accept().await))
        };
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Some((place, Ok((stream, peer)))) => {
                // Closed at once, so that it holds up nobody who waits behind it.
                let Some(own) = addresses.enter(peer.ip(), &limits) else {
                    tracing::debug!(peer = %peer.ip(), "an address has its share of connections");
                    continue;
                };
                let quick = places.available_permits() < limits.quick();
                let (router, stop, limits) = (router.clone(), stop.clone(), limits.clone());
                open.spawn(async move {
                    connection(stream, peer.ip(), router, limits, quick, stop).await;
                    drop((place, own));
                });
            }
            Some((_, Err(error))) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(BREATH).await;
            }
            None => break,
        }
    }
    drop(listener);
    open.close();
    if tokio::time::timeout(drain, open.wait()).await.is_err() {
        tracing::warn!("connections were cut off: they did not end in time");
    }
}

async fn connection(
    stream: TcpStream,
    peer: IpAddr,
    router: Router,
    limits: Limits,
    quick: bool,
    stop: CancellationToken,
) {
    let limits = if quick { limits.for_one_request() } else { limits };
    // Answers are small and written at once; without this some wait for an acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection has no TCP_NODELAY");
    }
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .keep_alive(!quick)
        .max_headers(limits.headers)
        .max_buf_size(limits.head_bytes);
    let service = MapRequest::new(router, move |mut request: http::Request<_>| {
        let beside = request.extensions_mut();
        beside.insert(Peer(peer));
        beside.insert(BodyTimeout(limits.body));
        request
    });
    let io = TokioIo::new(Patient::new(stream, limits.body));
    let served = builder.serve_connection(io, TowerToHyperService::new(service));
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}
