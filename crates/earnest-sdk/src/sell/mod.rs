//! A priced front for any HTTP server: `earnest sell --upstream URL --price 'GET /weather/*=$0.02'`.
//!
//! A request is priced, free, or not found: what no rule names is answered 404 and never reaches
//! the upstream. A priced request is paid before it is forwarded and billed when the upstream
//! answered 2xx and its body ended cleanly; anything else (an error, a redirect, which is passed on
//! and not followed, a broken body, silence) costs nothing.
//!
//! Bodies stream: answers both ways unbuffered, requests too on free routes. On priced routes the
//! request's body is held to compute its digest, up to [`crate::SellerConfig::max_body_bytes`].
//! Upgrades (WebSocket) are not forwarded.

mod authz;
mod forward;
mod rules;
mod told;

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use earnest_core::problem::{Code, Refusal};
use earnest_core::quote::{Price, canonical_url};
use http::header::{ALLOW, HeaderValue};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use ipnet::IpNet;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::authz::{AuthzConfig, Desk};
use self::forward::Upstream;
use self::rules::{Rules, Verdict};
use crate::gate::{Offer, check_framing};
use crate::origin::ORIGIN_PROOF_PATH;
use crate::problem::Problem;
use crate::seller::{Seller, SellerConfig};
use crate::setup::SetupError;
use crate::wire::take_voucher;

/// How long a connection may take to send the head of a request.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// How long to wait after an error of `accept`, such as too many open files.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What the proxy needs to know.
#[derive(Clone, Debug)]
pub struct SellConfig {
    seller: SellerConfig,
    front: Front,
    upstream_within: Duration,
    drain: Duration,
    rules: Rules,
}

/// A network from its text, such as `10.0.0.0/8`, or of one address; an IPv4 address that IPv6 wraps
/// is the IPv4 address it is.
///
/// # Errors
/// What is wrong with a text that is neither.
pub fn network(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(|address| IpNet::from(address.to_canonical()));
    let network = address.or_else(|_| text.parse::<IpNet>().map(|network| network.trunc()));
    network.map_err(|_| format!("`{text}` is neither an address nor a network like 10.0.0.0/8"))
}

/// What stands behind the prices.
#[derive(Clone, Debug)]
enum Front {
    /// A server that requests are forwarded to.
    Upstream(String),
    /// A gateway that asks, and serves by itself.
    Gateway(AuthzConfig),
}

impl SellConfig {
    /// A proxy in front of `upstream`, such as `http://127.0.0.1:8000`. Plain `http` is accepted
    /// here for any host: it is the seller's own network.
    pub fn new(seller: SellerConfig, upstream: &str) -> Self {
        Self::front(seller, Front::Upstream(upstream.to_owned()))
    }

    /// No proxy, but a desk where a gateway asks whether a request is paid for: nginx, Caddy,
    /// Traefik, Envoy. Only connections from `gateways` may ask (addresses or networks); whoever
    /// could, might use vouchers up. What is let through counts as served, at once unless
    /// [`SellConfig::outcome_within`] says otherwise.
    ///
    /// # Errors
    /// When a gateway is neither an address nor a network.
    pub fn authz<'a>(
        seller: SellerConfig,
        gateways: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, SetupError> {
        let read =
            |text: &str| network(text).map_err(|why| SetupError::Value { setting: "gateway", why });
        let gateways = gateways.into_iter().map(read).collect::<Result<_, _>>()?;
        let config = AuthzConfig { gateways, outcome_within: Duration::ZERO };
        Ok(Self::front(seller, Front::Gateway(config)))
    }

    fn front(seller: SellerConfig, front: Front) -> Self {
        Self {
            seller,
            front,
            upstream_within: Duration::from_secs(5 * 60),
            drain: Duration::from_secs(10),
            rules: Rules::default(),
        }
    }

    /// For a gateway: how long after a request was let through it may still say, at
    /// `/outcome?purchase=ID`, that serving it failed. Until then nothing is reported.
    #[must_use]
    pub const fn outcome_within(mut self, time: Duration) -> Self {
        if let Front::Gateway(config) = &mut self.front {
            config.outcome_within = time;
        }
        self
    }

    /// Puts a price on requests: `GET /weather/*=$0.02`, or without a method for every method. Each
    /// `*` stands for any text. Of several rules the most exact counts.
    ///
    /// # Errors
    /// When the rule cannot be read.
    pub fn price(mut self, rule: &str) -> Result<Self, SetupError> {
        self.rules.price(rule)?;
        Ok(self)
    }

    /// Lets requests through for nothing: `/health`, or `GET /docs/*`. Keep these narrow: an
    /// upstream that reads paths loosely may serve a priced thing under a spelling that only a
    /// broad free rule names.
    ///
    /// # Errors
    /// When the rule cannot be read.
    pub fn free(mut self, rule: &str) -> Result<Self, SetupError> {
        self.rules.free(rule)?;
        Ok(self)
    }

    /// How long the upstream may take to begin its answer; 5 minutes by default, then 504.
    #[must_use]
    pub const fn upstream_within(mut self, time: Duration) -> Self {
        self.upstream_within = time;
        self
    }

    /// How long running answers may go on after the signal to stop, and then how long reports may
    /// take; 10 s each by default. What is cut off is reported as failed.
    #[must_use]
    pub const fn drain(mut self, time: Duration) -> Self {
        self.drain = time;
        self
    }
}

/// Why the proxy did not start or stopped.
#[derive(Debug, thiserror::Error)]
pub enum SellError {
    /// A setting cannot be used.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The listener cannot be used.
    #[error("the listener cannot be used: {0}")]
    Listener(#[from] std::io::Error),
}

struct Shop {
    seller: Seller,
    rules: Rules,
    behind: Behind,
}

/// Who serves what is paid for.
enum Behind {
    Upstream(Upstream),
    Gateway(Desk),
}

/// Serves until `shutdown` completes, then drains. Answers whether every report was acknowledged;
/// the rest is sent at the next start.
///
/// # Errors
/// [`SellError`], before anything is served.
pub async fn serve(
    config: SellConfig,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<bool, SellError> {
    if !config.rules.has_price() {
        let why = "at least one is needed, such as `GET /weather/*=$0.02`".to_owned();
        return Err(SetupError::Value { setting: "price", why }.into());
    }
    listener.local_addr()?;
    let upstream = match &config.front {
        Front::Upstream(url) => {
            Some(Upstream::new(url, config.upstream_within, &config.seller.origin)?)
        }
        Front::Gateway(_) => None,
    };
    let seller = Seller::new(config.seller)?;
    let behind = match (upstream, config.front) {
        (Some(upstream), _) => Behind::Upstream(upstream),
        (None, Front::Gateway(config)) => Behind::Gateway(Desk::new(seller.clone(), config)),
        (None, Front::Upstream(url)) => {
            return Err(SetupError::Url { setting: "upstream", why: url }.into());
        }
    };
    let shop = Arc::new(Shop { seller: seller.clone(), rules: config.rules, behind });
    let (stopping, stop) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    connections.spawn(connection(Arc::clone(&shop), stream, peer, stop.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                }
            },
            Some(_ended) = connections.join_next() => {}
        }
    }
    drop(listener);
    let _all_gone = stopping.send(true);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(config.drain, drained).await.is_err() {
        tracing::warn!(connections = connections.len(), "cutting off what still runs");
        connections.shutdown().await;
    }
    if let Behind::Gateway(desk) = &shop.behind {
        desk.close();
    }
    Ok(seller.shutdown(config.drain).await)
}

async fn connection(
    shop: Arc<Shop>,
    stream: TcpStream,
    peer: SocketAddr,
    mut stop: watch::Receiver<bool>,
) {
    // Events of a stream go out one by one, not when a packet is full.
    let _only_slower_without = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let shop = Arc::clone(&shop);
        async move { Ok::<_, Infallible>(shop.answer(request, peer).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let stopped = async {
        let _shop_gone = stop.wait_for(|stop| *stop).await.is_err();
    };
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stopped => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}

impl Shop {
    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Response {
        // Ahead of every rule: without it nothing can be sold, and it is the seller's own page.
        if request.uri().path() == ORIGIN_PROOF_PATH {
            return self.seller.prove_origin(request.method());
        }
        match &self.behind {
            Behind::Upstream(upstream) => self.sell(upstream, request, peer).await,
            Behind::Gateway(desk) => desk.answer(&self.rules, request, peer.ip()).await,
        }
    }

    async fn sell(
        &self,
        upstream: &Upstream,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Response {
        let (parts, body) = request.into_parts();
        let judged = check_framing(&parts.headers).and_then(|()| {
            let url = self.seller.resource_url(&parts)?;
            let url = canonical_url(&url)?;
            let target = upstream.target(&url)?;
            Ok((self.rules.judge(&parts.method, url.path())?, url, target))
        });
        let (verdict, url, target) = match judged {
            Ok(judged) => judged,
            Err(refusal) => return Problem::from(&refusal).into_response(),
        };
        let mut request = Request::from_parts(parts, body);
        let send = tower::service_fn(|request: Request<Body>| {
            let target = target.clone();
            async move { Ok::<_, Infallible>(upstream.forward(request, target, peer).await) }
        });
        let methods = self.rules.priced_methods(url.path());
        match verdict {
            Verdict::Free => {
                take_voucher(request.headers_mut());
                upstream.forward(request.map(Body::new), target, peer).await
            }
            _ if request.method() == Method::OPTIONS && !methods.is_empty() => preflight(&methods),
            Verdict::Priced(price, listing) => {
                let offer = Offer { price: Price::Fixed(price), listing };
                self.seller.sell(&offer, request, send).await.unwrap_or_else(|never| match never {})
            }
            Verdict::Unlisted => {
                let refusal = Refusal::new(Code::NotFound, "nothing is sold or free at this path");
                Problem::from(&refusal).into_response()
            }
        }
    }
}

/// What may be asked of a priced path, for nothing and without asking the upstream.
fn preflight(methods: &[&str]) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let allowed = if methods.contains(&"*") {
        None
    } else {
        HeaderValue::from_str(&format!("OPTIONS, HEAD, {}", methods.join(", "))).ok()
    };
    if let Some(allowed) = allowed {
        response.headers_mut().insert(ALLOW, allowed);
    }
    crate::gate::vary_by_authorization(response.headers_mut());
    response
}
