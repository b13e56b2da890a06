//! The listener: HTTP/1.1 connections, and what each of them may cost.
//!
//! Strangers can reach it, so every wait has an end: for the head of a request, for its body (see
//! [`BodyTimeout`]), for the next request on a connection that idles, for the last answers when
//! Earnest stops. A handler itself is never cut off by a clock: what it does with money ends as a
//! recorded state, however long PayPal takes.

use std::net::IpAddr;
use std::sync::Arc;
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

use crate::api::read::BodyTimeout;

/// What connections may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long the head of a request may take to arrive; also how long a connection may idle.
    pub head: Duration,
    /// How long a body may take to arrive.
    pub body: Duration,
    /// How many connections are open at a time; further ones wait to be accepted.
    pub connections: usize,
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
            headers: 64,
            head_bytes: 32 * 1024,
            drain: Duration::from_secs(said.drain_seconds),
        }
    }
}

/// Who is at the other end of the connection, beside every request: a proxy, where there is one.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// How long the listener waits when the system has no more connections to give.
const BREATH: Duration = Duration::from_millis(100);

/// Serves until told to stop, then finishes what is under way.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(limits.connections));
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
                let (router, stop) = (router.clone(), stop.clone());
                open.spawn(async move {
                    connection(stream, peer.ip(), router, limits, stop).await;
                    drop(place);
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
    if tokio::time::timeout(limits.drain, open.wait()).await.is_err() {
        tracing::warn!("connections were cut off: they did not end in time");
    }
}

async fn connection(
    stream: TcpStream,
    peer: IpAddr,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    // Answers are small and written at once; without this some wait for an acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection has no TCP_NODELAY");
    }
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_headers(limits.headers)
        .max_buf_size(limits.head_bytes);
    let service = MapRequest::new(router, move |mut request: http::Request<_>| {
        let beside = request.extensions_mut();
        beside.insert(Peer(peer));
        beside.insert(BodyTimeout(limits.body));
        request
    });
    let served = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
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
