//! What HTTP itself allows: methods, paths, queries, headers, connections that never finish. Never
//! a 5xx, never a wait without an end, always a problem document.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use earnest::listen::{self, Limits};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::openapi::{OPERATIONS, problem};
use crate::wire::{raw, read};
use crate::world::World;

async fn get(world: &World, head: &str) -> Option<crate::world::Answer> {
    raw(world.earnest.address, head.as_bytes()).await
}

#[tokio::test]
async fn methods_that_a_route_has_not_are_refused_with_those_it_has() {
    let world = World::new().await;
    let mark = world.mark();
    for operation in OPERATIONS.iter() {
        let path = operation.path.replace(['{', '}'], "");
        for method in ["OPTIONS", "TRACE", "PATCH", "PROPFIND", "get", "G", "M-SEARCH"] {
            let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let answer = get(&world, &head).await.unwrap();
            assert_eq!(answer.status, 405, "{method} {path}: {}", answer.body);
            problem(405, &answer.headers, &answer.bytes);
            let allow = answer.headers["allow"].to_str().unwrap();
            assert!(allow.contains(operation.method.as_str()), "{method} {path}: {allow}");
        }
        // A HEAD is its GET without the body.
        if operation.method == Method::GET {
            let head = format!("HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let answer = get(&world, &head).await.unwrap();
            assert!(answer.status.as_u16() < 500 && answer.status != 405, "HEAD {path}");
            assert!(answer.bytes.is_empty(), "HEAD {path} has a body");
        }
    }
    world.assert_untouched(mark, "a wrong method");
}

#[tokio::test]
async fn paths_that_lead_nowhere_are_problems() {
    let world = World::new().await;
    for path in [
        "/",
        "/v1",
        "/v1/",
        "/v2/tabs",
        "/v1/tabs/",
        "//v1/tabs",
        "/v1//tabs",
        "/V1/tabs",
        "/v1/tabs%00",
        "/v1/%74abs",
        "/v1/tabs;x=1",
        "/v1/tabs/../owners",
        "/v1/./tabs",
        "/%ff",
        "/%",
        "/%zz",
        "/v1/tabs%2f",
        "/.env",
        "/.git/config",
        "/metrics/x",
        "/../../etc/passwd",
        "/..%2f..%2fetc%2fpasswd",
    ] {
        for method in ["GET", "POST", "DELETE"] {
            let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let answer = get(&world, &head).await.unwrap();
            assert_eq!(answer.status, 404, "{method} {path}: {}", answer.body);
            problem(404, &answer.headers, &answer.bytes);
        }
    }
    // Forms of a target that only proxies and servers as a whole are asked with.
    for target in ["*", "http://evil.example/v1/tabs", "evil.example:443"] {
        for method in ["GET", "OPTIONS", "CONNECT"] {
            let head =
                format!("{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            if let Some(answer) = get(&world, &head).await {
                assert!((400..500).contains(&answer.status.as_u16()), "{method} {target}");
            }
        }
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_are_refused() {
    let world = World::new().await;
    let mark = world.mark();
    let key = world.key("owner");
    let cases: Vec<(Vec<u8>, u16)> = vec![
        ([b"GET /v1/tabs/\xff\xfe HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ".as_slice(), key.as_bytes(), b"\r\nConnection: close\r\n\r\n"].concat(), 400),
        ([b"GET /v1/tabs/%ff%fe HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ".as_slice(), key.as_bytes(), b"\r\nConnection: close\r\n\r\n"].concat(), 404),
        ([b"GET /v1/tabs?cursor=%ff HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ".as_slice(), key.as_bytes(), b"\r\nConnection: close\r\n\r\n"].concat(), 400),
        ([b"GET /v1/tabs?%ff=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ".as_slice(), key.as_bytes(), b"\r\nConnection: close\r\n\r\n"].concat(), 400),
        (b"GET /v1/tabs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ek_owner_\xff\r\nConnection: close\r\n\r\n".to_vec(), 401),
        (b"GET /v1/tabs HTTP/1.1\r\nHost: x\r\nAuthorization: \xff\xfe\r\nConnection: close\r\n\r\n".to_vec(), 401),
        ([b"GET /v1/tabs HTTP/1.1\r\nHost: x\r\nAccept: \xff\r\nAuthorization: Bearer ".as_slice(), key.as_bytes(), b"\r\nConnection: close\r\n\r\n"].concat(), 406),
        ([b"POST /v1/agents HTTP/1.1\r\nHost: x\r\nContent-Type: \xff\r\nContent-Length: 2\r\nAuthorization: Bearer ".as_slice(), key.as_bytes(), b"\r\nConnection: close\r\n\r\n{}"].concat(), 415),
        ([b"POST /v1/agents HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: \xff\r\nContent-Length: 12\r\nAuthorization: Bearer ".as_slice(), key.as_bytes(), b"\r\nConnection: close\r\n\r\n{\"name\":\"x\"}"].concat(), 400),
        ([b"PUT /v1/policies/owner HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIf-Match: \"\xff\"\r\nContent-Length: 2\r\nAuthorization: Bearer ".as_slice(), key.as_bytes(), b"\r\nConnection: close\r\n\r\n{}"].concat(), 412),
    ];
    for (bytes, status) in cases {
        let shown = String::from_utf8_lossy(&bytes).replace(&key, "…");
        let answer = raw(world.earnest.address, &bytes).await.unwrap();
        assert_eq!(answer.status, status, "{shown}: {}", answer.body);
        if answer.headers.contains_key("trace-id") {
            problem(status, &answer.headers, &answer.bytes);
        }
    }
    world.assert_untouched(mark, "bytes that are no text");
}

/// What is no HTTP is not answered by a handler, and hurts nobody else.
#[tokio::test]
async fn what_is_no_http_is_turned_away() {
    let world = World::new().await;
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(100_000));
    let wide = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let many: String = (0..200).map(|n| format!("X-{n}: 1\r\n")).collect();
    let many = format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{many}\r\n");
    let smuggle = "POST /v1/receipts/verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
        Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}   x";
    let both = "POST /v1/receipts/verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
        Transfer-Encoding: xchunked\r\n\r\n{}";
    for text in [
        "",
        "\r\n\r\n\r\n",
        "x",
        "GET",
        "GET /healthz\r\n\r\n",
        "GET /healthz HTTP/9.9\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nbad header\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nA\u{0}: 1\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}\u{3}\u{3}",
        &long,
        &wide,
        &many,
        smuggle,
        both,
    ] {
        let mut stream = TcpStream::connect(world.earnest.address).await.unwrap();
        let _ = stream.write_all(text.as_bytes()).await;
        let _ = stream.shutdown().await;
        let shown: String = text.chars().take(60).collect();
        if let Some(answer) = read(&mut stream).await {
            assert!((400..500).contains(&answer.status.as_u16()), "{shown:?}: {}", answer.status);
        }
    }
    world.get("", "/healthz").await.expect(200);
}

#[tokio::test]
async fn queries_are_read_strictly() {
    let world = World::ready().await;
    world.spend(10_000, "a").await;
    let mark = world.mark();
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    let malformed = [
        "limit=abc",
        "limit=",
        "limit=-1",
        "limit=1.5",
        "limit=65536",
        "limit=99999999999999999999",
        "limit=1&limit=2",
        "limit=%00",
        "limit=1%20",
        "limit=0x10",
        "cursor=",
        "cursor=x",
        "cursor=%00",
        "cursor=1&cursor=2",
        "unknown=1",
        "Limit=1",
        "limit[]=1",
        "&=&",
        "%ff=1",
        "cursor=%ff",
        "limit",
    ];
    let lists = [
        ("owner", "/v1/tabs".to_owned()),
        ("owner", "/v1/agents".to_owned()),
        ("owner", "/v1/approvals".to_owned()),
        ("owner", "/v1/grants".to_owned()),
        ("owner", "/v1/payment-methods".to_owned()),
        ("owner", "/v1/policies/owner/versions".to_owned()),
        ("owner", format!("/v1/tabs/{tab}/settlements")),
        ("owner", "/v1/purchases".to_owned()),
        ("agent", "/v1/purchases".to_owned()),
        ("seller", "/v1/purchases".to_owned()),
        ("seller", "/v1/sellers/me/lines".to_owned()),
        ("operator", "/v1/owners".to_owned()),
        ("operator", "/v1/sellers".to_owned()),
        ("operator", "/v1/intents/unknown".to_owned()),
        ("operator", "/v1/accounts".to_owned()),
        ("operator", "/v1/transfers".to_owned()),
    ];
    for (role, path) in &lists {
        for query in malformed {
            let answer = world.get(role, &format!("{path}?{query}")).await;
            assert_eq!(
                answer.refusal(),
                "request_malformed",
                "{role} {path}?{query}: {}",
                answer.body
            );
        }
        for limit in [0, 501, 65_535] {
            let answer = world.get(role, &format!("{path}?limit={limit}")).await;
            assert_eq!(answer.refusal(), "validation_failed", "{path}?limit={limit}");
            assert_eq!(answer.body["limit"], 500);
        }
        for limit in [1, 500] {
            let owner =
                if *role == "operator" && path.ends_with("purchases") { "&owner=x" } else { "" };
            let answer = world.get(role, &format!("{path}?limit={limit}{owner}")).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            assert!(answer.body["data"].as_array().unwrap().len() <= limit, "{path}");
        }
    }
    for (role, path, code) in [
        ("owner", "/v1/approvals?status=answered", "validation_failed"),
        ("owner", "/v1/approvals?statuss=waiting", "request_malformed"),
        ("owner", "/v1/purchases?format=xml", "request_malformed"),
        ("owner", "/v1/purchases?format=CSV", "request_malformed"),
        ("operator", "/v1/purchases", "validation_failed"),
        ("operator", "/v1/purchases?owner=x", "not_found"),
        ("operator", "/v1/trial-balance?limit=1", "request_malformed"),
        ("owner", "/v1/paypal/trail", "validation_failed"),
        ("owner", "/v1/paypal/trail?tab=x", "not_found"),
        ("owner", "/v1/paypal/trail?tab=x&purchase=y", "validation_failed"),
        ("owner", "/v1/paypal/trail?order=x", "request_malformed"),
        ("", "/vault/return", "request_malformed"),
        ("", "/vault/return?method=x&token=y", "not_found"),
    ] {
        assert_eq!(world.get(role, path).await.refusal(), code, "{role} {path}");
    }
    world.assert_untouched(mark, "a query");
}

/// What a client cannot read is refused before anything is done.
#[tokio::test]
async fn not_acceptable_is_said_before_anything_is_bought() {
    let world = World::ready().await;
    let mark = world.mark();
    let body =
        json!({ "quote": world.quote("/weather", 10_000), "max_price": 10_000, "request_id": "a" });
    for accept in
        ["text/html", "image/png", "application/xml", "*/*;q=0", "nonsense", "application/json;q=0"]
    {
        let headers = [("accept", accept)];
        let answer = world
            .call_with("agent", Method::POST, "/v1/authorize", Some(body.clone()), &headers)
            .await;
        assert_eq!((answer.status.as_u16(), answer.code()), (406, "not_acceptable"), "{accept}");
    }
    world.assert_untouched(mark, "an answer that cannot be read");
    for accept in [
        "*/*",
        "application/json",
        "application/*",
        "text/html, */*;q=0.1",
        "application/problem+json",
    ] {
        let headers = [("accept", accept)];
        let answer = world
            .call_with("agent", Method::POST, "/v1/authorize", Some(body.clone()), &headers)
            .await;
        assert_eq!(answer.status, 201, "{accept}");
    }
}

#[tokio::test]
async fn credentials_are_read_strictly() {
    let world = World::new().await;
    let key = world.key("owner");
    let long = format!("Bearer ek_owner_{}", "x".repeat(5000));
    let changed =
        format!("{}{}", &key[..key.len() - 1], if key.ends_with('A') { 'B' } else { 'A' });
    for value in [
        "",
        "Bearer",
        "Bearer ",
        "Basic x",
        key.as_str(),
        &format!("Tab {key}"),
        &format!("Bearer:{key}"),
        &format!("Bearer {key}x"),
        &format!("Bearer {changed}"),
        &format!("Bearer {} x", key),
        &format!("Bearer {}", key.to_uppercase()),
        &format!("Bearer \"{key}\""),
        "Bearer ek_",
        "Bearer ek_owner_",
        "Bearer null",
        &long,
    ] {
        let answer =
            world.call_with("", Method::GET, "/v1/tabs", None, &[("authorization", value)]).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (401, "unauthenticated"), "{value}");
    }
    // Two, even of the same key; elsewhere than in the header.
    let bearer = format!("Bearer {key}");
    let twice = [("authorization", bearer.as_str()), ("authorization", bearer.as_str())];
    assert_eq!(world.call_with("", Method::GET, "/v1/tabs", None, &twice).await.status, 401);
    let cookie = format!("key={key}");
    let elsewhere = [("cookie", cookie.as_str()), ("x-api-key", key.as_str())];
    assert_eq!(world.call_with("", Method::GET, "/v1/tabs", None, &elsewhere).await.status, 401);
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let value = format!("{scheme} {key}");
        let headers = [("authorization", value.as_str())];
        assert_eq!(world.call_with("", Method::GET, "/v1/tabs", None, &headers).await.status, 200);
    }
}

/// Another listener over the same Earnest, with limits that a test can wait for.
async fn strict(
    world: &World,
    limits: Limits,
) -> (SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let router = earnest::api::router(world.earnest.app.clone());
    let serving = tokio::spawn(listen::serve(listener, router, limits, stop.clone()));
    (address, stop, serving)
}

const SHORT: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_slow_body_is_a_408_and_a_slow_head_ends() {
    let world = World::ready().await;
    let mark = world.mark();
    let limits = Limits { head: SHORT, body: SHORT, ..Limits::default() };
    let (address, stop, serving) = strict(&world, limits).await;
    let key = world.key("agent");
    for encoding in ["Content-Length: 100", "Transfer-Encoding: chunked"] {
        let head = format!(
            "POST /v1/authorize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\
             Content-Type: application/json\r\n{encoding}\r\n\r\n"
        );
        let answer = raw(address, head.as_bytes()).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.code()), (408, "request_timeout"), "{encoding}");
        problem(408, &answer.headers, &answer.bytes);
    }
    // Byte by byte does not help: the time is for the whole body, and for the whole head.
    let head = format!(
        "POST /v1/authorize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    );
    for begin in [head.as_str(), "GET /healthz HTTP/1.1\r\nX: "] {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut incoming, mut outgoing) = stream.into_split();
        outgoing.write_all(begin.as_bytes()).await.unwrap();
        let drip = tokio::spawn(async move {
            while outgoing.write_all(b"a").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let begun = Instant::now();
        let mut all = Vec::new();
        let reading = tokio::time::timeout(Duration::from_secs(10), incoming.read_to_end(&mut all));
        let _ = reading.await.expect("the connection ends");
        assert!(begun.elapsed() < Duration::from_secs(8));
        let text = String::from_utf8_lossy(&all);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 408"), "{text}");
        drip.abort();
    }
    // A connection that idles after an answer ends too.
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut all = Vec::new();
    let reading = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut all));
    reading.await.expect("the connection ends").unwrap();
    assert!(all.starts_with(b"HTTP/1.1 200"));
    world.assert_untouched(mark, "a slow request");
    stop.cancel();
    serving.await.unwrap();
}

/// Connections beyond the limit wait, and are served when others end.
#[tokio::test]
async fn connections_have_a_limit_that_others_survive() {
    let world = World::new().await;
    let limits = Limits { head: SHORT, connections: 4, ..Limits::default() };
    let (address, stop, serving) = strict(&world, limits).await;
    let mut idle = Vec::new();
    for _ in 0..12 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    // Nobody ever speaks on those; each is thrown out in its turn, and then it is ours.
    let answer =
        raw(address, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert_eq!(answer.unwrap().status, 200);
    stop.cancel();
    serving.await.unwrap();
}

/// One address has its share of connections; what is beyond is closed at once and holds nobody up.
#[tokio::test]
async fn an_address_has_its_share_of_connections() {
    let world = World::new().await;
    let limits = Limits { per_address: 3, ..Limits::default() };
    let (address, stop, serving) = strict(&world, limits).await;
    let ask = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(ask.as_bytes()).await.unwrap();
        assert_eq!(read(&mut stream).await.unwrap().status, 200);
        held.push(stream);
    }
    let mut fourth = TcpStream::connect(address).await.unwrap();
    let mut all = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), fourth.read_to_end(&mut all)).await;
    let _ = ended.expect("it is closed");
    assert!(all.is_empty());
    // Another address of this machine.
    let other = tokio::net::TcpSocket::new_v4().unwrap();
    other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = other.connect(address).await.unwrap();
    other.write_all(ask.as_bytes()).await.unwrap();
    assert_eq!(read(&mut other).await.unwrap().status, 200);
    // And one that ends leaves its place.
    drop(held);
    let served = async || {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(ask.as_bytes()).await;
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.is_ok() && first == *b"HTTP/1.1 200"
    };
    let again = async {
        while !served().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), again).await.expect("there is a place again");
    stop.cancel();
    serving.await.unwrap();
}

/// Where nearly all connections are taken, the last ones are for one quick request each, and are never
/// kept: whoever wants to pause something gets in.
#[tokio::test]
async fn the_last_connections_are_for_one_quick_request_each() {
    let world = World::new().await;
    let limits = Limits { connections: 16, ..Limits::default() };
    let head = limits.head;
    let (address, stop, serving) = strict(&world, limits).await;
    let ask = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut held = Vec::new();
    for _ in 0..15 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(ask.as_bytes()).await.unwrap();
        assert_eq!(read(&mut stream).await.unwrap().status, 200);
        held.push(stream);
    }
    let begun = Instant::now();
    let _silent = TcpStream::connect(address).await.unwrap();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(ask.as_bytes()).await.unwrap();
        let mut all = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut all));
        read.await.expect("it is answered and closed").unwrap();
        assert!(all.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&all));
    }
    assert!(begun.elapsed() < head, "whoever said nothing was not waited for");
    drop(held);
    stop.cancel();
    serving.await.unwrap();
}

/// Whoever asks and does not read loses the connection.
#[tokio::test]
async fn an_answer_that_nobody_reads_ends_the_connection() {
    let world = World::new().await;
    let limits = Limits { connections: 1, body: SHORT, ..Limits::default() };
    let (address, stop, serving) = strict(&world, limits).await;
    let mut greedy = TcpStream::connect(address).await.unwrap();
    let asks = "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n".repeat(400);
    // More than all buffers in between hold; how much of it goes out does not matter.
    let asking = greedy.write_all(asks.as_bytes());
    let _ = tokio::time::timeout(Duration::from_secs(2), asking).await;
    let answer = raw(address, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let answer = tokio::time::timeout(Duration::from_secs(10), answer).await;
    assert_eq!(answer.expect("there is a place").unwrap().status, 200);
    drop(greedy);
    stop.cancel();
    serving.await.unwrap();
}

/// Who is being answered when Earnest stops is answered; who idles does not hold it up.
#[tokio::test]
async fn stopping_finishes_what_is_under_way() {
    let world = World::new().await;
    let (address, stop, serving) = strict(&world, Limits::default()).await;
    let _idle = TcpStream::connect(address).await.unwrap();
    let mut busy = TcpStream::connect(address).await.unwrap();
    let half = "POST /v1/receipts/verify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n";
    busy.write_all(half.as_bytes()).await.unwrap();
    let mut kept = TcpStream::connect(address).await.unwrap();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert_eq!(read(&mut kept).await.unwrap().status, 200);
    stop.cancel();
    busy.write_all(br#"{"receipt":"x"}"#).await.unwrap();
    let answer = read(&mut busy).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    tokio::time::timeout(Duration::from_secs(10), serving).await.expect("it stops").unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn health_and_readiness_say_how_it_stands() {
    let world = World::new().await;
    assert_eq!(world.get("", "/healthz").await.expect(200), json!({ "status": "ok" }));
    let ready = world.get("", "/readyz").await.expect(200);
    assert_eq!((&ready["status"], &ready["mode"]), (&json!("ready"), &json!("simulated")));
    assert_eq!(ready["seq"], world.mark());
    // Books that no longer write are alive and not ready; nobody is told why.
    let store = world.earnest.app.store.clone();
    tokio::task::spawn_blocking(move || store.close()).await.unwrap();
    world.get("", "/healthz").await.expect(200);
    let gone = world.get("", "/readyz").await;
    assert_eq!((gone.status.as_u16(), gone.code()), (503, "database_unavailable"));
    let bought = world.authorize(world.quote("/weather", 10_000), "a").await;
    assert_eq!((bought.status.as_u16(), bought.code()), (503, "database_unavailable"));
}

#[tokio::test]
async fn every_code_is_explained() {
    let world = World::new().await;
    for code in earnest_core::problem::Code::ALL {
        let body = world.get("", &format!("/problems/{code}")).await.expect(200);
        assert_eq!(body["code"], code.as_str());
        assert_eq!(body["status"], code.status());
    }
    for none in ["nothing", "NOT_FOUND", "not_found%20", "%ff", "x%00"] {
        assert_eq!(world.get("", &format!("/problems/{none}")).await.refusal(), "not_found");
    }
}
