//! Requests that mean one thing to the proxy and another to the server behind it: what is served is
//! what was judged and paid for, and nothing else.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use earnest_core::quote::body_digest;
use earnest_core::voucher::Fate;
use earnest_sdk::sell::SellConfig;

use crate::earnest::Earnest;
use crate::proxy::{Proxy, upstream};
use crate::shop::{bind, client, raw, read};

/// What reached the upstream: method, path, body, and the names and values of its headers.
type Seen = Arc<Mutex<Vec<(String, String, String, HeaderMap)>>>;

fn recorder(seen: &Seen) -> Router {
    let seen = Arc::clone(seen);
    Router::new().fallback(
        move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| async move {
            let body = String::from_utf8(body.to_vec()).unwrap();
            seen.lock().unwrap().push((method.to_string(), uri.to_string(), body, headers));
            "served"
        },
    )
}

/// As generous as a careless seller: one path costs something, everything else is free.
fn careless(config: SellConfig) -> SellConfig {
    config.price("/secret=$0.02").unwrap().price("POST /echo=$0.05").unwrap().free("/*").unwrap()
}

async fn open(seen: &Seen) -> (Earnest, Proxy) {
    let earnest = Earnest::start().await;
    let proxy = Proxy::start(&earnest, &upstream(recorder(seen)).await, careless).await;
    (earnest, proxy)
}

fn statuses(answer: &str) -> Vec<&str> {
    let lines = answer.lines().filter_map(|line| line.strip_prefix("HTTP/1.1 "));
    lines.map(|line| line.get(..3).unwrap()).collect()
}

/// The voucher of a POST of `body` to `/echo`.
fn paid_post(earnest: &Earnest, proxy: &Proxy, body: &str) -> String {
    let mut claims = earnest.claims(&proxy.url("/echo"), 50_000);
    claims.method = "POST".to_owned();
    claims.listing = "POST /echo".to_owned();
    claims.body = body_digest(body.as_bytes());
    earnest.sign(&claims)
}

/// A server that keeps connections and never reads a body: what stands there is its next request.
async fn reads_no_bodies() -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (listener, origin) = bind().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut waiting = Vec::new();
                loop {
                    while let Some(end) = waiting.windows(4).position(|part| part == b"\r\n\r\n") {
                        let head: Vec<u8> = waiting.drain(..end + 4).collect();
                        let path = String::from_utf8(head).unwrap();
                        let path = path.split(' ').nth(1).unwrap_or("none").to_owned();
                        let length = path.len();
                        let said =
                            format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{path}");
                        if stream.write_all(said.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                    match stream.read_buf(&mut waiting).await {
                        Ok(0) | Err(_) => return,
                        Ok(_) => {}
                    }
                }
            });
        }
    });
    origin
}

/// INVARIANT: no_body_becomes_a_request. Neither of somebody who pays nothing, nor between a buyer and
/// what he pays for; whatever the method is and however long the body is said to be.
#[tokio::test]
async fn no_body_becomes_a_request() {
    let earnest = Earnest::start().await;
    let proxy = Proxy::start(&earnest, &reads_no_bodies().await, careless).await;
    let head = "GET /secret HTTP/1.1\r\nHost: x\r\nX-Swallow: ";
    let page = "GET /other HTTP/1.1\r\nHost: x\r\n\r\n";
    let free = |method: &str, path: &str, body: &'static str, chunked: bool| {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let request = client().request(method, proxy.url(path));
        let request = match (body.is_empty(), chunked) {
            (true, _) => request,
            (false, true) => {
                let part = Ok::<_, std::io::Error>(Bytes::from_static(body.as_bytes()));
                request.body(reqwest::Body::wrap_stream(futures_util::stream::iter([part])))
            }
            (false, false) => request.body(body),
        };
        async move { read(request.send().await.unwrap()).await }
    };
    for method in ["GET", "POST", "PUT", "DELETE"] {
        for (body, chunked) in [(head, false), (SMUGGLED, false), (page, false), (page, true)] {
            let said = free(method, "/free", body, chunked).await;
            assert!(said.status != 200 || said.body == b"/free", "{method}: {:?}", said.body);
            for _ in 0..3 {
                let said = free("GET", "/free", "", false).await;
                assert_eq!((said.status, said.body.as_slice()), (200, b"/free".as_slice()));
            }
            let mut claims = earnest.claims(&proxy.url("/secret"), 20_000);
            claims.listing = "* /secret".to_owned();
            let token = earnest.sign(&claims);
            let said = crate::shop::get(&proxy.url("/secret"), Some(&token)).await;
            assert_eq!((said.status, said.body.as_slice()), (200, b"/secret".as_slice()));
        }
    }
    assert!(proxy.stop().await);
}

const SMUGGLED: &str = "GET /secret HTTP/1.1\r\nHost: x\r\n\r\n";

#[tokio::test]
async fn what_the_upstream_reads_is_what_was_judged() {
    let seen = Seen::default();
    let (earnest, proxy) = open(&seen).await;
    // To a reader of the length the second request is inside the body, to one of the chunks it is
    // behind it; and the other way round.
    let chunks = format!("0\r\n\r\n{SMUGGLED}");
    let inside = format!("{:x}\r\n{SMUGGLED}\r\n0\r\n\r\n", SMUGGLED.len());
    for path in ["/upload", "/echo"] {
        for encoding in ["chunked", "Chunked", "gzip, chunked", "xchunked", "chunked, identity"] {
            for (length, body) in [(chunks.len(), &chunks), (4, &inside), (0, &inside)] {
                for swap in [false, true] {
                    let mut lines = [
                        format!("Content-Length: {length}\r\n"),
                        format!("Transfer-Encoding: {encoding}\r\n"),
                    ];
                    if swap {
                        lines.reverse();
                    }
                    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\n{}", lines.concat());
                    let request = format!("{head}\r\n{body}");
                    let last = "GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
                    raw(proxy.address, &format!("{request}{last}")).await;
                }
            }
        }
    }
    for (method, path, body, headers) in seen.lock().unwrap().drain(..) {
        assert_ne!(path, "/secret", "served without a voucher");
        assert_ne!(path, "/echo", "served without a voucher");
        let said = headers.get("content-length").map(|value| value.to_str().unwrap().to_owned());
        assert!(said.is_none_or(|said| said == body.len().to_string()), "{method} {path} {body}");
    }
    // Whoever pays for one body has that body served, however its end was announced.
    let body = "a body that was paid for";
    let voucher = paid_post(&earnest, &proxy, body);
    let request = format!(
        "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Tab {voucher}\r\n\
         Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    assert_eq!(statuses(&raw(proxy.address, &request).await), ["200"]);
    let (method, path, read, headers) = seen.lock().unwrap().pop().unwrap();
    assert_eq!((method.as_str(), path.as_str(), read.as_str()), ("POST", "/echo", body));
    assert_eq!(headers["content-length"], body.len().to_string());
    assert!(!headers.contains_key("transfer-encoding"));
    assert!(proxy.stop().await);
    earnest.books(|books| assert_eq!(books.outstanding(), 50_000));
}

#[tokio::test]
async fn an_encoding_of_the_body_that_only_some_know_is_refused() {
    let seen = Seen::default();
    let (_earnest, proxy) = open(&seen).await;
    for path in ["/upload", "/echo"] {
        for encoding in ["gzip, chunked", "chunked, chunked", "gzip"] {
            let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
            let request = format!("{head}Transfer-Encoding: {encoding}\r\n\r\n0\r\n\r\n");
            let answer = raw(proxy.address, &request).await;
            assert_eq!(statuses(&answer), ["400"], "{path} {encoding}");
        }
    }
    assert!(seen.lock().unwrap().is_empty());
    assert!(proxy.stop().await);
}

#[tokio::test]
async fn a_method_that_only_some_read_as_get_is_refused() {
    let seen = Seen::default();
    let (_earnest, proxy) = open(&seen).await;
    for (line, status) in [
        ("GET /secret", "402"),
        ("HEAD /secret", "402"),
        ("OPTIONS /secret", "204"),
        ("FOO /secret", "402"),
        ("get /secret", "400"),
        ("Get /other", "400"),
        ("TRACE /other", "405"),
        ("CONNECT secret:80", "405"),
    ] {
        let request = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let answer = raw(proxy.address, &request).await;
        assert_eq!(statuses(&answer), [status], "{line}");
    }
    assert!(seen.lock().unwrap().is_empty(), "nothing reached the upstream");
    assert!(proxy.stop().await);
}

#[tokio::test]
async fn no_header_names_another_path_method_or_payment_in_any_spelling() {
    let seen = Seen::default();
    let (earnest, proxy) = open(&seen).await;
    let voucher = paid_post(&earnest, &proxy, "x");
    let mut request = client().post(proxy.url("/echo")).body("x");
    request = request.header("authorization", format!("Tab {voucher}"));
    let tricks = [
        "X-Original-URL",
        "X_Original_URL",
        "X-Original-URI",
        "X-Rewrite-Url",
        "X_Rewrite-Url",
        "X-Forwarded-Prefix",
        "X_Forwarded_For",
        "X-Forwarded-Uri",
        "X-Override-URL",
        "X-HTTP-Method-Override",
        "X_HTTP_METHOD_OVERRIDE",
        "X-HTTP-Method",
        "X-Method-Override",
        "X-Method_Override",
        "X-Accel-Redirect",
        "X-Sendfile-Type",
        "X-Host",
        "Payment-Purchase",
        "Payment_Purchase",
        "Content_Length",
        "Transfer_Encoding",
        "Proxy_Authorization",
    ];
    for name in tricks {
        request = request.header(name, "trick");
    }
    assert_eq!(read(request.header("x-own_name", "kept").send().await.unwrap()).await.status, 200);
    let (_, _, _, headers) = seen.lock().unwrap().pop().unwrap();
    let left = headers.iter().filter(|(_, value)| *value == "trick");
    assert_eq!(left.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), Vec::<&str>::new());
    assert_eq!(headers["x-own_name"], "kept");
    assert_eq!(headers["content-length"], "1");
    assert!(proxy.stop().await);
}

/// A part of a thing is sold like the whole; what is not there, or not sent again, is not.
#[tokio::test]
async fn a_part_costs_what_the_whole_costs() {
    let earnest = Earnest::start().await;
    let parts = |headers: HeaderMap| async move {
        let mut answer: Response = match headers.get("range").map(|range| range.to_str().unwrap()) {
            Some("bytes=0-1") => (StatusCode::PARTIAL_CONTENT, "pa").into_response(),
            Some(_) => StatusCode::RANGE_NOT_SATISFIABLE.into_response(),
            None if headers.contains_key("if-none-match") => {
                StatusCode::NOT_MODIFIED.into_response()
            }
            None => Body::from("parts").into_response(),
        };
        answer.headers_mut().insert("accept-ranges", "bytes".parse().unwrap());
        answer
    };
    let app = Router::new().fallback(parts);
    let proxy = Proxy::start(&earnest, &upstream(app).await, careless).await;
    let url = proxy.url("/secret");
    for (name, value, status, fate) in [
        ("range", "bytes=0-1", 206, Fate::Redeemed),
        ("range", "bytes=9-", 416, Fate::Failed),
        ("if-none-match", "\"x\"", 304, Fate::Failed),
        ("x-nothing", "x", 200, Fate::Redeemed),
    ] {
        let head = client().head(&url).header(name, value).send().await.unwrap();
        assert_eq!(head.status(), 402, "{name}: {value}");
        let unpaid = client().get(&url).header(name, value).send().await.unwrap();
        assert_eq!(unpaid.status(), 402, "{name}: {value}");
        let voucher = earnest.voucher_of("* /secret", &url, 20_000);
        let paid = client().get(&url).header("authorization", format!("Tab {voucher}"));
        let paid = read(paid.header(name, value).send().await.unwrap()).await;
        assert_eq!(paid.status, status);
        assert_eq!(paid.header("payment-receipt").is_empty(), fate == Fate::Failed);
        let told = |books: &crate::earnest::Books| {
            books.reports.iter().any(|report| report.voucher == voucher && report.fate == fate)
        };
        earnest.until("the fate of the part", told).await;
    }
    assert!(proxy.stop().await);
    earnest.books(|books| assert_eq!(books.outstanding(), 40_000));
}
