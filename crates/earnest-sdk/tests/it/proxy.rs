//! `sell`: a price in front of any HTTP server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Redirect;
use axum::routing::{any, get, post};
use earnest_core::voucher::Fate;
use earnest_sdk::sell::{SellConfig, serve};
use earnest_sdk::{NonceStore, ORIGIN_PROOF_PATH};
use futures_util::stream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::buyer::buyer;
use crate::earnest::{Earnest, PATIENCE, SELLER};
use crate::shop::{bind, broken, client, config, get as fetch, raw, read};

const BIG: usize = 10 * 1024 * 1024;

pub struct Proxy {
    pub origin: String,
    pub address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<bool>,
}

impl Proxy {
    pub async fn start(
        earnest: &Earnest,
        upstream: &str,
        rules: fn(SellConfig) -> SellConfig,
    ) -> Self {
        let (listener, origin) = bind().await;
        let address = listener.local_addr().unwrap();
        let seller = config(earnest, &origin, NonceStore::in_memory().unwrap());
        let config = rules(SellConfig::new(seller, upstream)).drain(Duration::from_millis(300));
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let stopped = async { stopped.await.unwrap_or_default() };
            serve(config, listener, stopped).await.unwrap()
        });
        Self { origin, address, stop, serving }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.origin)
    }

    /// Whether every report was acknowledged.
    pub async fn stop(self) -> bool {
        self.stop.send(()).unwrap();
        tokio::time::timeout(PATIENCE, self.serving).await.unwrap().unwrap()
    }
}

pub async fn upstream(app: Router) -> String {
    let (listener, origin) = bind().await;
    tokio::spawn(async move { axum::serve(listener, app).await });
    origin
}

fn rules(config: SellConfig) -> SellConfig {
    let config = config.price("GET /weather/*=$0.02").unwrap().price("POST /echo=$0.05").unwrap();
    config.free("/health").unwrap().free("POST /upload").unwrap()
}

async fn seen(headers: HeaderMap, uri: Uri) -> String {
    let lines = headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
    format!("{uri}\n{}", lines.collect::<Vec<_>>().join("\n"))
}

#[tokio::test]
async fn what_is_listed_costs_or_is_free_and_nothing_else_exists() {
    let earnest = Earnest::start().await;
    let hits = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&hits);
    let app = Router::new().fallback(move |uri: Uri| async move {
        counted.fetch_add(1, Ordering::SeqCst);
        uri.to_string()
    });
    let proxy = Proxy::start(&earnest, &upstream(app).await, rules).await;
    let reply = fetch(&proxy.url("/weather/delft?d=1"), None).await;
    assert_eq!(reply.is(), (402, "payment_required".to_owned()));
    assert_eq!(reply.json()["quote"]["listing"], "GET /weather/*");
    assert_eq!(fetch(&proxy.url("/other"), None).await.is(), (404, "not_found".to_owned()));
    let send = |method, path| {
        let request = client().request(method, proxy.url(path));
        async move { read(request.send().await.unwrap()).await }
    };
    let preflight = send(reqwest::Method::OPTIONS, "/weather/delft").await;
    assert_eq!((preflight.status, preflight.header("allow")), (204, "OPTIONS, HEAD, GET"));
    assert_eq!(send(reqwest::Method::HEAD, "/weather/delft").await.status, 402);
    assert_eq!(send(reqwest::Method::PUT, "/weather/delft").await.status, 404);
    assert_eq!(hits.load(Ordering::SeqCst), 0, "nothing reached the upstream");

    assert_eq!(fetch(&proxy.url("/health?x=%20"), None).await.body, b"/health?x=%20");
    let answer = buyer(&earnest).get(&proxy.url("/weather/delft?d=1")).send().await.unwrap();
    assert!(answer.receipt().is_some());
    assert_eq!(answer.text().await.unwrap(), "/weather/delft?d=1");
    let answer = buyer(&earnest).post(&proxy.url("/echo")).body("x").send().await.unwrap();
    assert_eq!(answer.paid_for().unwrap().held.get(), 50_000);
    assert!(proxy.stop().await);
    earnest.books(|books| assert_eq!(books.outstanding(), 70_000));
}

#[tokio::test]
async fn no_spelling_slips_past_the_price() {
    let earnest = Earnest::start().await;
    let app = Router::new().fallback(|uri: Uri| async move { uri.to_string() });
    let free = |config: SellConfig| rules(config).free("/*").unwrap();
    let proxy = Proxy::start(&earnest, &upstream(app).await, free).await;
    for (path, status) in [
        ("/weather/x", 402),
        ("/WEATHER/x", 402),
        ("/w%65ather/x", 402),
        ("/weather;a/x", 402),
        ("/a/../weather/x", 400),
        ("/a/%2e%2e/weather/x", 400),
        ("/a/..%2fweather/x", 400),
        ("/%2e/weather/x", 400),
        ("//weather/x", 400),
        ("/weather%2fx", 400),
        ("/%77%65%61ther/x", 402),
        ("/%2577eather/x", 400),
        ("\\weather/x", 400),
        ("/weather./x", 402),
        ("/weather/x.", 402),
        ("/weather%3F/x", 402),
        ("/other", 200),
        ("weather/x", 400),
        ("@evil.example/other", 400),
        (":80/other", 400),
        ("*", 400),
        ("http://evil.example/weather/x", 402),
        ("http://evil.example/other", 200),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let answer = raw(proxy.address, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
}

#[tokio::test]
async fn headers_of_hops_and_payments_stop_here() {
    let earnest = Earnest::start().await;
    let answer = |headers: HeaderMap, uri: Uri| async move {
        let names = [
            ("payment-receipt", "forged"),
            ("payment-thing", "x"),
            ("keep-alive", "timeout=5"),
            ("content-encoding", "gzip"),
            ("cache-control", "public, max-age=60"),
            ("www-authenticate", "Tab quote=\"x\""),
            ("x-own", "kept"),
        ];
        (names, seen(headers, uri).await)
    };
    let app = Router::new().fallback(answer);
    let proxy = Proxy::start(&earnest, &format!("{}/base/", upstream(app).await), rules).await;
    let url = proxy.url("/weather/x");
    let voucher = earnest.voucher_of("GET /weather/*", &url, 20_000);
    let request = client()
        .get(&url)
        .header("authorization", format!("Tab {voucher}"))
        .header("authorization", "Bearer kept")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("te", "trailers")
        .header("proxy-authorization", "x")
        .header("payment-purchase", "forged")
        .header("forwarded", "for=1.1.1.1")
        .header("x-forwarded-for", "1.1.1.1")
        .header("x-forwarded-host", "evil.example")
        .header("x-original-url", "/export")
        .header("x-http-method-override", "DELETE")
        .header("host", "evil.example")
        .header("accept-encoding", "gzip")
        .header("x-own", "kept");
    let reply = read(request.send().await.unwrap()).await;
    assert_eq!(reply.status, 200);
    let text = String::from_utf8(reply.body.clone()).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.remove(0), "/base/weather/x");
    let address = proxy.address.to_string();
    let own = format!("x-forwarded-host: {address}");
    for kept in [
        "authorization: Bearer kept",
        "accept-encoding: gzip",
        "x-own: kept",
        "x-forwarded-for: 127.0.0.1",
        "x-forwarded-proto: http",
        own.as_str(),
    ] {
        assert!(lines.contains(&kept), "{kept} in {text}");
    }
    for gone in [
        "Tab ",
        "x-hop",
        "te:",
        "proxy-",
        "payment-",
        "forwarded: for",
        "1.1.1.1",
        "evil",
        "x-original",
        "override",
        "connection",
        "expect",
    ] {
        assert!(!text.contains(gone), "{gone} in {text}");
    }
    assert!(reply.header("payment-receipt").starts_with("purchase="));
    assert_eq!(reply.header("content-encoding"), "gzip", "passed on, not undone");
    assert_eq!(reply.header("x-own"), "kept");
    assert_eq!(reply.header("cache-control"), "max-age=60, private");
    for name in ["payment-thing", "keep-alive", "www-authenticate"] {
        assert_eq!(reply.header(name), "", "{name}");
    }
    let free = fetch(&proxy.url("/health"), Some("not-looked-at")).await;
    assert!(!String::from_utf8_lossy(&free.body).contains("Tab "));
    assert_eq!(free.header("payment-receipt"), "");
    assert_eq!(free.header("cache-control"), "public, max-age=60", "free for everybody");
}

#[tokio::test]
async fn big_files_pass_both_ways_and_events_pass_at_once() {
    let earnest = Earnest::start().await;
    let (events, receiver) = mpsc::unbounded_channel::<Result<&'static str, std::io::Error>>();
    let receiver = Arc::new(std::sync::Mutex::new(Some(receiver)));
    let streaming = move || async move {
        let mut receiver = receiver.lock().unwrap().take().unwrap();
        let body = Body::from_stream(stream::poll_fn(move |context| receiver.poll_recv(context)));
        ([("content-type", "text/event-stream")], body)
    };
    let upload = |body: Body| async move {
        axum::body::to_bytes(body, BIG + 1).await.unwrap().len().to_string()
    };
    let app = Router::new()
        .route("/weather/big", get(|| async { Bytes::from(vec![7_u8; BIG]) }))
        .route("/weather/events", get(streaming))
        .route("/upload", post(upload));
    let proxy = Proxy::start(&earnest, &upstream(app).await, rules).await;
    let buyer = buyer(&earnest);
    let big = buyer.get(&proxy.url("/weather/big")).send().await.unwrap();
    assert_eq!(big.headers()["content-length"], BIG.to_string());
    let big = big.bytes().await.unwrap();
    assert!(big.len() == BIG && big.iter().all(|byte| *byte == 7));
    let request = client().post(proxy.url("/upload")).body(vec![1_u8; BIG]);
    assert_eq!(read(request.send().await.unwrap()).await.body, BIG.to_string().into_bytes());

    let answer = buyer.get(&proxy.url("/weather/events")).send().await.unwrap();
    let mut body = answer.into_stream();
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        events.send(Ok(event)).unwrap();
        let next = tokio::time::timeout(PATIENCE, futures_util::StreamExt::next(&mut body));
        assert_eq!(next.await.unwrap().unwrap().unwrap(), event);
    }
    earnest.until("only the file so far", |books| books.outstanding() == 20_000).await;
    drop(events);
    assert!(futures_util::StreamExt::next(&mut body).await.is_none());
    earnest.until("the events too", |books| books.outstanding() == 40_000).await;
    assert!(proxy.stop().await);
}

#[tokio::test]
async fn an_upstream_that_fails_costs_nothing() {
    let earnest = Earnest::start().await;
    let app = Router::new()
        .route("/weather/500", any(|| async { StatusCode::INTERNAL_SERVER_ERROR }))
        .route("/weather/302", any(|| async { Redirect::temporary("/weather/elsewhere") }))
        .route("/weather/402", any(|| async { StatusCode::PAYMENT_REQUIRED }))
        .route("/weather/broken", any(|| async { broken() }));
    let proxy = Proxy::start(&earnest, &upstream(app).await, rules).await;
    for (path, status) in [
        ("/weather/500", 500),
        ("/weather/302", 307),
        ("/weather/402", 402),
        ("/weather/broken", 200),
    ] {
        let voucher = earnest.voucher_of("GET /weather/*", &proxy.url(path), 20_000);
        let reply = fetch(&proxy.url(path), Some(&voucher)).await;
        assert_eq!(reply.status, status);
        assert_eq!(reply.header("www-authenticate"), "");
        let told = |books: &crate::earnest::Books| {
            books.reports.iter().any(|r| r.voucher == voucher && r.fate == Fate::Failed)
        };
        earnest.until(path, told).await;
    }
    assert!(proxy.stop().await);

    let (nowhere, gone) = bind().await;
    drop(nowhere);
    let proxy = Proxy::start(&earnest, &gone, rules).await;
    let voucher = earnest.voucher_of("GET /weather/*", &proxy.url("/weather/x"), 20_000);
    let reply = fetch(&proxy.url("/weather/x"), Some(&voucher)).await;
    assert_eq!(reply.is(), (502, "upstream_unreachable".to_owned()));
    assert!(proxy.stop().await);

    let silent = Router::new().fallback(|| async { std::future::pending::<()>().await });
    let hasty = |config: SellConfig| rules(config).upstream_within(Duration::from_millis(50));
    let proxy = Proxy::start(&earnest, &upstream(silent).await, hasty).await;
    let voucher = earnest.voucher_of("GET /weather/*", &proxy.url("/weather/x"), 20_000);
    let reply = fetch(&proxy.url("/weather/x"), Some(&voucher)).await;
    assert_eq!(reply.is(), (504, "upstream_timeout".to_owned()));
    assert!(proxy.stop().await);
    earnest.books(|books| assert_eq!((books.outstanding(), books.released.len()), (0, 6)));
}

#[tokio::test]
async fn stopping_cuts_off_what_will_not_end_and_says_so() {
    let earnest = Earnest::start().await;
    let endless = || async {
        let first = stream::iter([Ok::<_, std::io::Error>("first")]);
        Body::from_stream(futures_util::StreamExt::chain(first, stream::pending()))
    };
    let app = Router::new().route("/weather/endless", get(endless));
    let proxy = Proxy::start(&earnest, &upstream(app).await, rules).await;
    let url = proxy.url("/weather/endless");
    let voucher = earnest.voucher_of("GET /weather/*", &url, 20_000);
    let request = client().get(&url).header("authorization", format!("Tab {voucher}"));
    let mut response = request.send().await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "first");
    assert!(proxy.stop().await, "every report was acknowledged");
    assert!(response.chunk().await.is_err());
    earnest.books(|books| assert_eq!(books.fates(), [Fate::Failed]));
}

/// Kills and reaps the child also when the test fails.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ended_before = self.0.kill();
        let _status = self.0.wait();
    }
}

#[tokio::test]
async fn a_server_nobody_here_wrote_can_charge() {
    use std::io::BufRead as _;
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("weather")).unwrap();
    std::fs::write(folder.path().join("weather/big.bin"), vec![9_u8; BIG]).unwrap();
    let child = std::process::Command::new("python3")
        .args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1"])
        .current_dir(folder.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn();
    let Ok(child) = child else {
        eprintln!("skipped: python3 is not installed");
        return;
    };
    let mut child = Killed(child);
    let mut line = String::new();
    std::io::BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port: u16 = line.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    let earnest = Earnest::start().await;
    let proxy = Proxy::start(&earnest, &format!("http://127.0.0.1:{port}"), rules).await;
    let buyer = buyer(&earnest);
    let big = buyer.get(&proxy.url("/weather/big.bin")).send().await.unwrap();
    assert_eq!(big.bytes().await.unwrap().len(), BIG);
    let list = buyer.get(&proxy.url("/weather/")).send().await.unwrap();
    assert!(list.text().await.unwrap().contains("big.bin"));
    let missing = buyer.get(&proxy.url("/weather/none")).send().await.unwrap();
    assert_eq!((missing.status().as_u16(), missing.receipt()), (404, None));
    assert!(proxy.stop().await);
    earnest.books(|books| assert_eq!(books.outstanding(), 40_000));
}

#[tokio::test]
async fn the_origin_is_proved_whatever_the_rules_say() {
    let earnest = Earnest::start().await;
    let app = Router::new().fallback(|| async { "the upstream's own page" });
    let all = |config: SellConfig| config.price("/*=$0.02").unwrap();
    let proxy = Proxy::start(&earnest, &upstream(app).await, all).await;
    let reply = fetch(&proxy.url(ORIGIN_PROOF_PATH), None).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, "text/plain; charset=utf-8"));
    assert_eq!(reply.body, format!("{SELLER}\n").as_bytes());
    let send = |method, path: &str| {
        let request = client().request(method, proxy.url(path));
        async move { read(request.send().await.unwrap()).await }
    };
    let head = send(reqwest::Method::HEAD, ORIGIN_PROOF_PATH).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    let posted = send(reqwest::Method::POST, ORIGIN_PROOF_PATH).await;
    assert_eq!((posted.status, posted.header("allow")), (405, "GET, HEAD"));
    // Only that page: what lies beside it costs what it costs.
    let beside = format!("{ORIGIN_PROOF_PATH}/");
    assert_eq!(send(reqwest::Method::GET, &beside).await.status, 402);
    assert!(proxy.stop().await);
}
