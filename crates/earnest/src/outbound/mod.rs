//! The one client for addresses that strangers gave us.
//!
//! `https` only (`http` to loopback where the operator allows it), no address that is not on the
//! public internet, judged in the URL *and* in the resolver (a name may lead elsewhere the second
//! time it is asked), no redirects, no proxy, bounded time and size, and only the headers that the
//! caller lists. PayPal and the model gateway have clients of their own: their addresses are ours.

mod address;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use earnest_core::problem::{Code, Refusal};
use earnest_core::quote::{canonical_url, is_loopback};
use futures_util::StreamExt as _;
use http::{HeaderMap, Method, StatusCode};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::Url;

pub use self::address::is_public;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a name may take to be resolved.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How far calls may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The public internet.
    Public,
    /// This machine as well, over plain `http` too: for development and tests.
    Loopback,
}

impl Reach {
    fn admits(self, address: IpAddr) -> bool {
        is_public(address) || (self == Self::Loopback && address.to_canonical().is_loopback())
    }
}

/// A call to make.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// Where; judged when it is sent.
    pub url: Url,
    /// Every header that goes out beside what HTTP itself needs.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// The most of the answer that is read.
    pub max_bytes: usize,
    /// How long everything may take.
    pub timeout: Duration,
}

/// An answer, whatever its status. A redirect is an answer like any other.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, whole.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutboundError {
    /// Not an address to call.
    #[error("{0}")]
    Forbidden(String),
    /// Nothing of the call can have arrived: no connection was made.
    #[error("{0}")]
    Unreachable(String),
    /// It was sent, and no answer came in time.
    #[error("no answer in time")]
    Timeout,
    /// It was sent, and the answer broke off.
    #[error("the answer broke off: {0}")]
    Broken(String),
    /// The answer is larger than was asked for.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
}

impl From<OutboundError> for Refusal {
    fn from(error: OutboundError) -> Self {
        let code = match &error {
            OutboundError::Forbidden(_) => Code::TargetForbidden,
            OutboundError::Unreachable(_) => Code::UpstreamUnreachable,
            OutboundError::Timeout => Code::UpstreamTimeout,
            OutboundError::Broken(_) | OutboundError::TooLarge(_) => Code::UpstreamFailed,
        };
        Self::new(code, error.to_string())
    }
}

/// The guarded client. Cheap to clone; one for the whole process keeps connections.
#[derive(Clone)]
pub struct Outbound {
    client: reqwest::Client,
    reach: Reach,
}

impl Outbound {
    /// A client that reaches so far.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new(reach: Reach) -> Result<Self, reqwest::Error> {
        Ok(Self { client: Self::builder(reach).build()?, reach })
    }

    /// The builder behind it, for clients that are built elsewhere (the buyer's). Whoever sends
    /// through one of these calls [`Outbound::check`] on every URL first: the resolver never sees
    /// an address that is written as a number.
    pub fn builder(reach: Reach) -> reqwest::ClientBuilder {
        reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .dns_resolver(Arc::new(Guard { reach }))
    }

    /// How far it reaches.
    pub const fn reach(&self) -> Reach {
        self.reach
    }

    /// Reads a URL and judges it as far as its text tells.
    ///
    /// # Errors
    /// `url_invalid`; `target_forbidden` for what is not on the public internet.
    pub fn check(&self, text: &str) -> Result<Url, Refusal> {
        let url = canonical_url(text)?;
        self.judge(&url)?;
        Ok(url)
    }

    fn judge(&self, url: &Url) -> Result<(), Refusal> {
        if self.reach == Reach::Loopback && is_loopback(url) {
            return Ok(());
        }
        if !address::may_name(url) {
            let why = "that address is not on the public internet";
            return Err(Refusal::new(Code::TargetForbidden, why));
        }
        if url.scheme() != "https" {
            return Err(Refusal::new(Code::UrlInvalid, "the URL has to begin with https://"));
        }
        Ok(())
    }

    /// Sends a call and reads its answer.
    ///
    /// # Errors
    /// [`OutboundError`]; the URL is judged again.
    pub async fn send(&self, call: Call) -> Result<Answer, OutboundError> {
        self.judge(&call.url).map_err(|why| OutboundError::Forbidden(why.detail))?;
        let Call { method, url, headers, body, max_bytes, timeout } = call;
        let request = self.client.request(method, url).headers(headers).body(body);
        let answer = request.timeout(timeout).send().await.map_err(|error| failed(&error))?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let mut body = Vec::new();
        let mut chunks = answer.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            body.extend_from_slice(&chunk.map_err(|error| failed(&error))?);
            if body.len() > max_bytes {
                return Err(OutboundError::TooLarge(max_bytes));
            }
        }
        Ok(Answer { status, headers, body: body.into() })
    }
}

/// What an error of this client's means, or of one that was built from its builder.
pub(crate) fn failed(error: &reqwest::Error) -> OutboundError {
    if let Some(forbidden) = forbidden_in(error) {
        return OutboundError::Forbidden(forbidden);
    }
    if error.is_connect() || error.is_builder() {
        return OutboundError::Unreachable("no connection could be made".to_owned());
    }
    if error.is_timeout() {
        return OutboundError::Timeout;
    }
    let part = if error.is_body() || error.is_decode() { "in its body" } else { "at its head" };
    OutboundError::Broken(part.to_owned())
}

/// What the resolver refused, where that is at the bottom of an error.
fn forbidden_in(error: &reqwest::Error) -> Option<String> {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(refused) = inner.downcast_ref::<ForbiddenName>() {
            return Some(refused.to_string());
        }
        source = inner.source();
    }
    None
}

/// A name that does not lead to the public internet.
#[derive(Debug, thiserror::Error)]
#[error("that name does not lead to the public internet")]
struct ForbiddenName;

/// Resolves names, and refuses one of which any address is not to be called: a server that answers
/// with a public and a private address is not trusted with either.
struct Guard {
    reach: Reach,
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.reach;
        Box::pin(async move {
            let lookup = tokio::net::lookup_host((name.as_str().to_owned(), 0));
            let found = tokio::time::timeout(RESOLVE_TIMEOUT, lookup).await??;
            let addresses: Vec<SocketAddr> = found.collect();
            if addresses.iter().any(|address| !reach.admits(address.ip())) {
                return Err(ForbiddenName.into());
            }
            let addresses: Addrs = Box::new(addresses.into_iter());
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn client(reach: Reach) -> Outbound {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Outbound::new(reach).unwrap()
    }

    fn call(url: &str) -> Call {
        Call {
            method: Method::GET,
            url: Url::parse(url).unwrap(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            max_bytes: 1000,
            timeout: Duration::from_secs(10),
        }
    }

    /// Answers every connection with these bytes; where it is.
    async fn server(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        url
    }

    #[tokio::test]
    async fn nothing_but_the_public_internet_is_called() {
        let public = client(Reach::Public);
        let own = server("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
        for url in [own.as_str(), "https://127.0.0.1/", "https://localhost/", "https://[::1]/"] {
            let refused = public.check(url).unwrap_err();
            assert_eq!(refused.code, Code::TargetForbidden, "{url}");
            let refused = public.send(call(url)).await.unwrap_err();
            assert!(matches!(refused, OutboundError::Forbidden(_)), "{url}: {refused}");
        }
        assert_eq!(public.check("http://api.example/").unwrap_err().code, Code::UrlInvalid);
        // Where this machine is allowed, the rest of its network still is not.
        let near = client(Reach::Loopback);
        assert_eq!(near.send(call(&own)).await.unwrap().body, "hi");
        assert!(near.check("http://10.0.0.1/").is_err());
        assert!(near.check("http://api.example/").is_err());
    }

    /// A name may look public and lead home: judged where it is resolved, whoever sends.
    #[tokio::test]
    async fn a_name_is_judged_by_where_it_leads() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let own = server("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await;
        let named = own.replace("127.0.0.1", "localhost");
        let through = Outbound::builder(Reach::Public).build().unwrap();
        let error = through.get(&named).send().await.unwrap_err();
        assert!(matches!(failed(&error), OutboundError::Forbidden(_)), "{error:?}");
        let through = Outbound::builder(Reach::Loopback).build().unwrap();
        assert_eq!(through.get(&named).send().await.unwrap().status(), 200);
    }

    #[tokio::test]
    async fn answers_are_bounded_and_redirects_are_answers() {
        let near = client(Reach::Loopback);
        let moved = "HTTP/1.1 302 Found\r\nlocation: http://10.0.0.1/\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(near.send(call(&server(moved).await)).await.unwrap().status, 302);
        let large = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfour";
        let asked = Call { max_bytes: 3, ..call(&server(large).await) };
        assert_eq!(near.send(asked).await.unwrap_err(), OutboundError::TooLarge(3));
        let broken = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf";
        let broken = near.send(call(&server(broken).await)).await.unwrap_err();
        assert!(matches!(broken, OutboundError::Broken(_)), "{broken}");
        let nobody = near.send(call("http://127.0.0.1:9/")).await.unwrap_err();
        assert!(matches!(nobody, OutboundError::Unreachable(_)), "{nobody}");
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", silent.local_addr().unwrap());
        let asked = Call { timeout: Duration::from_millis(50), ..call(&url) };
        assert_eq!(near.send(asked).await.unwrap_err(), OutboundError::Timeout);
    }
}
