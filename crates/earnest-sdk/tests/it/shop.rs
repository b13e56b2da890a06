//! A seller on a free port, and plain HTTP to talk to it.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use earnest_sdk::{NonceStore, Seller, SellerConfig};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::earnest::{Earnest, SELLER, SELLER_KEY};

pub struct Shop {
    pub origin: String,
    pub address: SocketAddr,
    pub seller: Seller,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Shop {
    /// Serves what `app` makes, with a memory that lasts as long as the test.
    pub async fn open(earnest: &Earnest, app: impl FnOnce(&Seller) -> Router) -> Self {
        Self::open_with(earnest, |config| config, app).await
    }

    pub async fn open_with(
        earnest: &Earnest,
        change: impl FnOnce(SellerConfig) -> SellerConfig,
        app: impl FnOnce(&Seller) -> Router,
    ) -> Self {
        let (listener, origin) = bind().await;
        let nonces = NonceStore::in_memory().unwrap();
        let config = change(config(earnest, &origin, nonces));
        Self::serve(listener, Seller::new(config).unwrap(), app)
    }

    pub fn serve(
        listener: TcpListener,
        seller: Seller,
        app: impl FnOnce(&Seller) -> Router,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let app = app(&seller);
        let serving = tokio::spawn(async move { axum::serve(listener, app).await });
        Self { origin: format!("http://{address}"), address, seller, serving }
    }

    /// Lets go of the address.
    pub async fn stop(self) {
        self.serving.abort();
        let _aborted = self.serving.await;
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.origin)
    }

    pub async fn get(&self, path: &str, voucher: Option<&str>) -> Reply {
        get(&self.url(path), voucher).await
    }
}

pub async fn bind() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    (listener, origin)
}

pub fn config(earnest: &Earnest, origin: &str, nonces: NonceStore) -> SellerConfig {
    let quick = std::time::Duration::from_millis(20);
    SellerConfig::new(&earnest.url, SELLER, SELLER_KEY, origin, nonces)
        .unwrap()
        .report_backoff(quick, quick * 10)
}

/// A body that breaks off after its first chunk went out.
pub fn broken() -> Body {
    let chunks = futures_util::stream::unfold(0, |place| async move {
        match place {
            0 => Some((Ok("half"), 1)),
            _ => {
                // What is written goes out when the body has nothing more to give.
                tokio::time::sleep(std::time::Duration::from_millis(30)).await;
                Some((Err(std::io::Error::other("the disk is gone")), 2))
            }
        }
    });
    Body::from_stream(chunks)
}

/// An answer read to its end.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Status and code, for comparing.
    pub fn is(&self) -> (u16, String) {
        (self.status, self.code())
    }
}

pub fn client() -> reqwest::Client {
    let _chosen_before = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .unwrap()
}

pub async fn get(url: &str, voucher: Option<&str>) -> Reply {
    let mut request = client().get(url);
    if let Some(voucher) = voucher {
        request = request.header("authorization", format!("Tab {voucher}"));
    }
    read(request.send().await.unwrap()).await
}

pub async fn read(response: reqwest::Response) -> Reply {
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Reply { status, headers, body: response.bytes().await.unwrap_or_default().to_vec() }
}

/// Sends bytes as they are, and reads until the other side closes.
pub async fn raw(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}
