//! `sell` for a gateway that is there already: each flavour's own words, once for each voucher.

use std::time::Duration;

use earnest_core::voucher::Fate;
use earnest_sdk::sell::{SellConfig, serve};
use earnest_sdk::{NonceStore, ORIGIN_PROOF_PATH, PAYMENT_RECEIPT, quote_in};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::earnest::{AGENT_KEY, Earnest, PATIENCE, SELLER};
use crate::shop::{bind, client, config};

/// How the gateway is reached by its own clients; nothing listens there.
const ORIGIN: &str = "https://api.example";

struct Desk {
    url: String,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gateway {
    Forwarded,
    Nginx,
    Envoy,
}

const ALL: [Gateway; 3] = [Gateway::Forwarded, Gateway::Nginx, Gateway::Envoy];

impl Desk {
    async fn start(earnest: &Earnest, gateways: &[&str], outcome_within: Duration) -> Self {
        let (listener, url) = bind().await;
        let seller = config(earnest, ORIGIN, NonceStore::in_memory().unwrap());
        let config = SellConfig::authz(seller, gateways.iter().copied()).unwrap();
        let config =
            config.price("GET /weather/*=$0.02").unwrap().price("POST /echo=$0.05").unwrap();
        let config = config.price("/both=$0.05").unwrap();
        let config = config.free("/health").unwrap().outcome_within(outcome_within);
        let config = config.drain(Duration::from_millis(300));
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let stopped = async { stopped.await.unwrap_or_default() };
            serve(config, listener, stopped).await.unwrap()
        });
        Self { url, stop, serving }
    }

    /// As the gateway asks when a client asked it.
    async fn ask(
        &self,
        gateway: Gateway,
        method: &str,
        path: &str,
        voucher: Option<&str>,
    ) -> Response {
        let mut request = self.request(gateway, method, path);
        if let Some(voucher) = voucher {
            request = request.header("authorization", format!("Tab {voucher}"));
        }
        request.send().await.unwrap()
    }

    fn request(&self, gateway: Gateway, method: &str, path: &str) -> reqwest::RequestBuilder {
        let (names, at) = match gateway {
            Gateway::Forwarded => {
                (Some(("x-forwarded-method", "x-forwarded-uri")), "/authz".to_owned())
            }
            Gateway::Nginx => {
                (Some(("x-original-method", "x-original-uri")), "/authz?for=nginx".to_owned())
            }
            Gateway::Envoy => (None, format!("/authz{path}")),
        };
        let asks = if names.is_some() { "GET" } else { method };
        let asks = Method::from_bytes(asks.as_bytes()).unwrap();
        let mut request = client().request(asks, format!("{}{at}", self.url));
        if let Some((method_name, uri_name)) = names {
            request = request.header(method_name, method).header(uri_name, path);
        }
        request
    }

    async fn stop(self) -> bool {
        self.stop.send(()).unwrap();
        tokio::time::timeout(PATIENCE, self.serving).await.unwrap().unwrap()
    }
}

/// What the gateway makes of it: the status the client should see, and the code.
fn says(gateway: Gateway, response: &Response) -> (u16, String) {
    let header = |name: &str| {
        let value = response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        value.unwrap_or_default()
    };
    let status = response.status().as_u16();
    if status == 200 {
        return (200, String::new());
    }
    let meant: u16 = header("earnest-status").parse().unwrap();
    let expect = match (gateway, meant) {
        (Gateway::Nginx, 402) => 401,
        (Gateway::Nginx, _) => 403,
        (_, other) => other,
    };
    assert_eq!(status, expect);
    (meant, header("earnest-code"))
}

async fn buy(earnest: &Earnest, response: &Response, id: &str) -> String {
    let quote = quote_in(response.headers()).expect("a challenge").unwrap();
    let body = json!({ "quote": quote, "max_price": 1_000_000, "request_id": id });
    let request = client().post(format!("{}/v1/authorize", earnest.url)).bearer_auth(AGENT_KEY);
    let request = request.header("idempotency-key", id);
    let answer: Value = request.json(&body).send().await.unwrap().json().await.unwrap();
    answer["voucher"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

fn no(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test]
async fn every_gateway_lets_a_paid_request_through_once() {
    let earnest = Earnest::start().await;
    let desk = Desk::start(&earnest, &["127.0.0.1"], Duration::ZERO).await;
    for (n, gateway) in ALL.into_iter().enumerate() {
        let path = "/weather/delft?day=1&for=nginx";
        let unpaid = desk.ask(gateway, "GET", path, None).await;
        assert_eq!(says(gateway, &unpaid), no(402, "payment_required"), "{gateway:?}");
        assert!(unpaid.headers().get(PAYMENT_RECEIPT).is_none());
        let voucher = buy(&earnest, &unpaid, &format!("id-{n}")).await;
        // Not for another path, method or price.
        for (method, other) in [("GET", "/weather/delft?day=2"), ("GET", "/weather/gouda")] {
            let answer = desk.ask(gateway, method, other, Some(&voucher)).await;
            assert_eq!(says(gateway, &answer), no(402, "voucher_scope_mismatch"));
        }
        let paid = desk.ask(gateway, "GET", path, Some(&voucher)).await;
        assert_eq!(paid.status(), 200, "{gateway:?}");
        assert!(paid.headers()[PAYMENT_RECEIPT].to_str().unwrap().contains("pur_"));
        assert!(paid.headers()["earnest-purchase"].to_str().unwrap().starts_with("pur_"));
        assert_eq!(paid.headers()["cache-control"], "private");
        assert_eq!(paid.headers()["vary"], "Authorization");
        // Once, whichever way it is asked.
        for again in ALL {
            let answer = desk.ask(again, "GET", path, Some(&voucher)).await;
            assert_eq!(says(again, &answer), no(409, "voucher_already_used"));
        }
        let forged = desk.ask(gateway, "GET", path, Some(&format!("{voucher}x"))).await;
        assert_eq!(says(gateway, &forged), no(402, "voucher_invalid"));
    }
    let proof = client().get(format!("{}{ORIGIN_PROOF_PATH}", desk.url)).send().await.unwrap();
    assert_eq!(proof.text().await.unwrap(), format!("{SELLER}\n"));
    assert!(desk.stop().await);
    earnest.books(|books| {
        assert_eq!(books.outstanding(), 60_000);
        assert_eq!(books.fates(), [Fate::Redeemed; 3]);
    });
}

#[tokio::test]
async fn what_is_not_for_sale_is_said_in_the_gateways_words() {
    let earnest = Earnest::start().await;
    let desk = Desk::start(&earnest, &["127.0.0.1"], Duration::ZERO).await;
    for gateway in ALL {
        let ask = async |method: &str, path: &str| {
            says(gateway, &desk.ask(gateway, method, path, None).await)
        };
        assert_eq!(ask("GET", "/health").await, no(200, ""), "{gateway:?}");
        assert_eq!(ask("GET", "/other").await, no(404, "not_found"));
        assert_eq!(ask("OPTIONS", "/weather/delft").await, no(404, "not_found"));
        assert_eq!(ask("GET", "/weather/%2e%2e%2fhealth").await, no(400, "url_invalid"));
        assert_eq!(ask("TRACE", "/health").await, no(405, "method_not_allowed"));
        // A preflight of what has a price is the gateway's; under which methods is said.
        let preflight = desk.ask(gateway, "OPTIONS", "/both", None).await;
        assert_eq!(says(gateway, &preflight), no(405, "method_not_allowed"));
        let allow = preflight.headers().get("allow").unwrap();
        assert_eq!(allow, "GET, HEAD, POST, PUT, PATCH, DELETE");
        // A body that nobody shows is not sold.
        assert_eq!(ask("POST", "/echo").await, no(400, "request_malformed"));
        let head = desk.ask(gateway, "HEAD", "/weather/delft", None).await;
        assert_eq!(says(gateway, &head).0, 402);
        assert!(quote_in(head.headers()).is_none());
    }
    // One that is shown is part of what is bought.
    let url = format!("{}/authz/echo", desk.url);
    let send = |body: &'static str, voucher: Option<String>| {
        let request = client().post(&url).body(body);
        let request = match voucher {
            Some(voucher) => request.header("authorization", format!("Tab {voucher}")),
            None => request,
        };
        async move { request.send().await.unwrap() }
    };
    let voucher = buy(&earnest, &send("x", None).await, "with-body").await;
    assert_eq!(send("y", Some(voucher.clone())).await.status(), 402);
    assert_eq!(send("x", Some(voucher)).await.status(), 200);
    assert!(desk.stop().await);
    earnest.books(|books| assert_eq!(books.outstanding(), 50_000));
}

/// A server behind that believes such a header would serve what was not judged: what is free must not
/// lead to what has a price, nor a read to something else.
#[tokio::test]
async fn headers_that_name_another_request_are_refused() {
    let earnest = Earnest::start().await;
    let desk = Desk::start(&earnest, &["127.0.0.1"], Duration::ZERO).await;
    for gateway in ALL {
        let ask = async |name: &str, value: &str| {
            let request = desk.request(gateway, "GET", "/health").header(name, value);
            says(gateway, &request.send().await.unwrap())
        };
        for name in ["x-original-url", "x-rewrite-url", "x_original_url", "x-forwarded-prefix"] {
            assert_eq!(ask(name, "/weather/delft").await, no(400, "request_malformed"), "{name}");
        }
        for name in ["x-http-method-override", "x-http-method", "x-method-override"] {
            assert_eq!(ask(name, "DELETE").await, no(400, "request_malformed"), "{name}");
        }
        assert_eq!(ask("x-forwarded-for", "192.0.2.1").await, no(200, ""), "{gateway:?}");
    }
    // A body that nginx does not show.
    for method in ["GET", "DELETE", "POST"] {
        for (name, value) in
            [("x-original-content-length", "5"), ("x-original-transfer-encoding", "chunked")]
        {
            let path = if method == "POST" { "/echo" } else { "/weather/delft" };
            let request = desk.request(Gateway::Nginx, method, path).header(name, value);
            let expect = if method == "DELETE" {
                no(404, "not_found")
            } else {
                no(400, "request_malformed")
            };
            assert_eq!(
                says(Gateway::Nginx, &request.send().await.unwrap()),
                expect,
                "{method} {name}"
            );
        }
    }
    let request = desk.request(Gateway::Nginx, "GET", "/weather/delft");
    let request = request.header("x-original-content-length", "0");
    assert_eq!(says(Gateway::Nginx, &request.send().await.unwrap()), no(402, "payment_required"));
    assert!(desk.stop().await);
}

/// Headers of one gateway say nothing to another, and nobody asks who was not named.
#[tokio::test]
async fn headers_and_callers_count_only_as_configured() {
    let earnest = Earnest::start().await;
    let desk = Desk::start(&earnest, &["127.0.0.1"], Duration::ZERO).await;
    let get = |at: &str, headers: &[(&'static str, &'static str)]| {
        let mut request = client().get(format!("{}{at}", desk.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        async move { request.send().await.unwrap() }
    };
    // A client that says to nginx, in Caddy's words, that it asked for something free.
    let spoof = [
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/health"),
        ("x-original-method", "GET"),
        ("x-original-uri", "/weather/delft"),
    ];
    assert_eq!(get("/authz?for=nginx", &spoof).await.status(), 403);
    assert_eq!(get("/authz?for=nginx", &spoof[2..]).await.status(), 401);
    assert_eq!(get("/authz/weather/delft", &spoof).await.status(), 400);
    assert_eq!(get("/authz/weather/delft", &[]).await.status(), 402);
    assert_eq!(get("/authz", &spoof).await.status(), 400);
    assert_eq!(get("/authz", &spoof[..2]).await.status(), 200);
    // What the gateway does not say, or says beside what the client said.
    assert_eq!(get("/authz?for=nginx", &spoof[..2]).await.status(), 403);
    assert_eq!(get("/authz", &spoof[2..]).await.status(), 400);
    let twice = [spoof[0], spoof[1], ("x-forwarded-uri", "/weather/delft")];
    assert_eq!(get("/authz", &twice).await.status(), 400);
    assert_eq!(get("/", &spoof).await.status(), 404);
    assert!(desk.stop().await);

    let desk = Desk::start(&earnest, &["10.0.0.0/8"], Duration::ZERO).await;
    for gateway in ALL {
        let answer = desk.ask(gateway, "GET", "/health", None).await;
        assert_eq!(answer.status(), 404, "{gateway:?}");
    }
    assert!(desk.stop().await);
    for odd in ["", "localhost", "10.0.0.0/99"] {
        let seller = config(&earnest, ORIGIN, NonceStore::in_memory().unwrap());
        assert!(SellConfig::authz(seller, [odd]).is_err(), "{odd}");
    }
}

/// What the upstream did not deliver is not charged, where the gateway says so in time.
#[tokio::test]
async fn a_gateway_may_say_that_serving_failed() {
    let earnest = Earnest::start().await;
    let desk = Desk::start(&earnest, &["127.0.0.1"], Duration::from_secs(600)).await;
    let pass = async |id: &str| {
        let unpaid = desk.ask(Gateway::Nginx, "GET", "/weather/delft", None).await;
        let voucher = buy(&earnest, &unpaid, id).await;
        let paid = desk.ask(Gateway::Nginx, "GET", "/weather/delft", Some(&voucher)).await;
        assert_eq!(paid.status(), 200);
        paid.headers()["earnest-purchase"].to_str().unwrap().to_owned()
    };
    let outcome = async |purchase: &str| {
        let url = format!("{}/outcome?purchase={purchase}", desk.url);
        let answer = client().get(url).send().await.unwrap();
        let body: Value = answer.json().await.unwrap();
        (body["status"].as_u64().unwrap(), body["code"].as_str().unwrap().to_owned())
    };
    let failed = pass("fails").await;
    pass("serves").await;
    assert_eq!(outcome(&failed).await, (502, "upstream_failed".to_owned()));
    earnest.until("the failure is reported", |books| books.fates() == [Fate::Failed]).await;
    // Said twice, or of nobody's: nothing is promised.
    assert_eq!(outcome(&failed).await, (502, "upstream_unreachable".to_owned()));
    assert_eq!(outcome("x").await, (400, "request_malformed".to_owned()));
    // The other waits; when the desk closes it counts as served, since the gateway had its answer.
    assert!(desk.stop().await);
    earnest.books(|books| {
        assert_eq!(books.fates(), [Fate::Failed, Fate::Redeemed]);
        assert_eq!(books.outstanding(), 20_000);
    });
}
