//! Webhooks: signed, delivered at least once, in any order, or not at all.

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use paypal_sim::{Effect, Fault, SimConfig};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::client::{Paypal, config, send, vaulted_body};

/// One delivery as it arrived.
#[derive(Debug, Clone)]
struct Arrived {
    headers: http::HeaderMap,
    body: Vec<u8>,
}

impl Arrived {
    fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn kind(&self) -> String {
        self.json()["event_type"].as_str().unwrap().to_owned()
    }
}

/// A server that notes every delivery and answers with the next of the given statuses, then 200.
struct Receiver {
    url: String,
    arrivals: mpsc::UnboundedReceiver<Arrived>,
}

impl Receiver {
    async fn start(statuses: Vec<u16>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (sender, arrivals) = mpsc::unbounded_channel();
        let statuses = Arc::new(Mutex::new(statuses.into_iter()));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (sender, statuses) = (sender.clone(), Arc::clone(&statuses));
                let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let (sender, statuses) = (sender.clone(), Arc::clone(&statuses));
                    async move {
                        let (parts, body) = request.into_parts();
                        let body = body.collect().await?.to_bytes().to_vec();
                        let status = statuses.lock().unwrap().next().unwrap_or(200);
                        let _ = sender.send(Arrived { headers: parts.headers, body });
                        let mut response = http::Response::new(Full::<bytes::Bytes>::default());
                        *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
                        Ok::<_, hyper::Error>(response)
                    }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { url, arrivals }
    }

    async fn next(&mut self) -> Arrived {
        let wait = std::time::Duration::from_secs(10);
        tokio::time::timeout(wait, self.arrivals.recv())
            .await
            .expect("no delivery within 10 s")
            .unwrap()
    }

    /// The next delivery of this kind; others are passed over.
    async fn next_of(&mut self, kind: &str) -> Arrived {
        loop {
            let arrived = self.next().await;
            if arrived.kind() == kind {
                return arrived;
            }
        }
    }
}

async fn paypal_and_receiver(statuses: Vec<u16>) -> (Paypal, Receiver) {
    let receiver = Receiver::start(statuses).await;
    let paypal = Paypal::with(SimConfig { webhooks: vec![receiver.url.clone()], ..config() }).await;
    (paypal, receiver)
}

async fn charge(paypal: &Paypal, vault_id: &str, key: &str) -> String {
    let body = vaulted_body(vault_id, "1.00", key);
    let order = paypal.post("/v2/checkout/orders", key, &body).await;
    assert_eq!(order.status, 201, "{}", order.body);
    order.text("/purchase_units/0/payments/captures/0/id").to_owned()
}

async fn webhook_id(paypal: &Paypal) -> String {
    let list = paypal.get("/v1/notifications/webhooks").await;
    list.text("/webhooks/0/id").to_owned()
}

/// The body of a postback, the event spliced in as it came.
fn postback(arrived: &Arrived, webhook_id: &str, event: &[u8]) -> Vec<u8> {
    let head = json!({
        "auth_algo": arrived.header("paypal-auth-algo"),
        "cert_url": arrived.header("paypal-cert-url"),
        "transmission_id": arrived.header("paypal-transmission-id"),
        "transmission_sig": arrived.header("paypal-transmission-sig"),
        "transmission_time": arrived.header("paypal-transmission-time"),
        "webhook_id": webhook_id,
    })
    .to_string();
    let mut body = head.trim_end_matches('}').as_bytes().to_vec();
    body.extend_from_slice(b",\"webhook_event\":");
    body.extend_from_slice(event);
    body.push(b'}');
    body
}

async fn verdict(paypal: &Paypal, body: Vec<u8>) -> String {
    let request = paypal
        .request(Method::POST, "/v1/notifications/verify-webhook-signature")
        .header("content-type", "application/json")
        .body(body);
    let got = send(request).await.unwrap();
    assert_eq!(got.status, 200, "{}", got.body);
    got.text("/verification_status").to_owned()
}

#[tokio::test]
async fn a_delivery_verifies_in_the_bytes_it_came_in() {
    let (paypal, mut receiver) = paypal_and_receiver(vec![]).await;
    let id = webhook_id(&paypal).await;
    let (vault_id, _) = paypal.vault().await;
    let capture = charge(&paypal, &vault_id, "k").await;
    let arrived = receiver.next_of("PAYMENT.CAPTURE.COMPLETED").await;
    assert_eq!(arrived.json()["resource"]["id"], capture.as_str());
    let good = postback(&arrived, &id, &arrived.body);
    assert_eq!(verdict(&paypal, good).await, "SUCCESS");

    // Parsing and writing again changes the order of members, and so the checksum.
    let rewritten = arrived.json().to_string();
    assert_ne!(rewritten.as_bytes(), arrived.body);
    let bad = postback(&arrived, &id, rewritten.as_bytes());
    assert_eq!(verdict(&paypal, bad).await, "FAILURE");
    let other = postback(&arrived, "0TH3R", &arrived.body);
    assert_eq!(verdict(&paypal, other).await, "FAILURE");
}

#[tokio::test]
async fn the_certificate_chains_to_the_root_and_signs_the_checksum() {
    let (paypal, mut receiver) = paypal_and_receiver(vec![]).await;
    let id = webhook_id(&paypal).await;
    paypal.vault().await;
    let arrived = receiver.next().await;
    assert_eq!(arrived.kind(), "VAULT.PAYMENT-TOKEN.CREATED");
    let url = arrived.header("paypal-cert-url");
    assert!(url.starts_with(&format!("{}/v1/notifications/certs/", paypal.sim.base_url())));
    let pem = paypal.http.get(url).send().await.unwrap().text().await.unwrap();
    assert_eq!(pem.matches("BEGIN CERTIFICATE").count(), 3);
    assert!(paypal.sim.ca_pem().contains("BEGIN CERTIFICATE"));

    let message = format!(
        "{}|{}|{id}|{}",
        arrived.header("paypal-transmission-id"),
        arrived.header("paypal-transmission-time"),
        crc32fast::hash(&arrived.body)
    );
    let signature = STANDARD.decode(arrived.header("paypal-transmission-sig")).unwrap();
    // The key sits in the leaf's SubjectPublicKeyInfo: a SEQUENCE of two INTEGERs whose first is
    // 2048 bits long, which is found by its header.
    let der = leaf_der(&pem);
    let header = [0x30, 0x82, 0x01, 0x0a, 0x02, 0x82, 0x01, 0x01, 0x00];
    let at = der.windows(header.len()).position(|window| window == header).unwrap();
    let key = &der[at..at + 4 + 0x010a];
    ring::signature::UnparsedPublicKey::new(&ring::signature::RSA_PKCS1_2048_8192_SHA256, key)
        .verify(message.as_bytes(), &signature)
        .expect("the signature does not fit");
}

fn leaf_der(pem: &str) -> Vec<u8> {
    let body: String = pem.lines().skip(1).take_while(|line| !line.starts_with("-----")).collect();
    STANDARD.decode(body).unwrap()
}

#[tokio::test]
async fn a_failed_delivery_is_tried_again_with_the_same_event() {
    let (paypal, mut receiver) = paypal_and_receiver(vec![500, 503]).await;
    paypal.vault().await;
    let first = receiver.next().await;
    settled(&paypal, 1).await;
    paypal.sim.advance(10);
    let second = receiver.next().await;
    settled(&paypal, 2).await;
    paypal.sim.advance(20);
    let third = receiver.next().await;
    assert_eq!(first.body, second.body);
    assert_eq!(first.body, third.body);
    assert_ne!(first.header("paypal-transmission-id"), second.header("paypal-transmission-id"));
    settled(&paypal, 3).await;
    let attempts = paypal.sim.deliveries()[0].attempts.clone();
    assert_eq!(attempts, [500, 503, 200]);
}

/// Waits until the first delivery has been attempted this often.
async fn settled(paypal: &Paypal, attempts: usize) {
    for _ in 0..1_000 {
        if paypal.sim.deliveries()[0].attempts.len() >= attempts {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("never attempted {attempts} times");
}

#[tokio::test]
async fn events_can_come_twice_late_early_or_never() {
    let (paypal, mut receiver) = paypal_and_receiver(vec![]).await;
    let (vault_id, _) = paypal.vault().await;
    receiver.next_of("VAULT.PAYMENT-TOKEN.CREATED").await;
    let completed = "PAYMENT.CAPTURE.COMPLETED";
    let order = "CHECKOUT.ORDER.COMPLETED";

    let twice = Effect::WebhookDuplicate { copies: 2 };
    paypal.sim.set_faults(vec![Fault::on_event(completed, twice)]).unwrap();
    charge(&paypal, &vault_id, "twice").await;
    let first = receiver.next_of(completed).await;
    let second = receiver.next_of(completed).await;
    assert_eq!(first.body, second.body);
    drain(&paypal, &mut receiver).await;

    paypal.sim.set_faults(vec![Fault::on_event(completed, Effect::WebhookReorder)]).unwrap();
    charge(&paypal, &vault_id, "reordered").await;
    assert_eq!(receiver.next().await.kind(), order);
    assert_eq!(receiver.next().await.kind(), completed);

    paypal.sim.set_faults(vec![Fault::on_event(completed, Effect::WebhookBeforeAnswer)]).unwrap();
    charge(&paypal, &vault_id, "early").await;
    let early = receiver.arrivals.try_recv().unwrap();
    assert_eq!(early.kind(), completed);
    drain(&paypal, &mut receiver).await;

    paypal.sim.set_faults(vec![Fault::on_event(completed, Effect::WebhookNever)]).unwrap();
    charge(&paypal, &vault_id, "never").await;
    assert_eq!(receiver.next().await.kind(), order);
    let events =
        paypal.get(&format!("/v1/notifications/webhooks-events?event_type={completed}")).await;
    assert_eq!(events.body["count"], 4);
    let missed = events.text("/events/0/id");
    let resend = format!("/v1/notifications/webhooks-events/{missed}/resend");
    assert_eq!(paypal.post(&resend, "", &json!({})).await.status, 202);
    assert_eq!(receiver.next().await.json()["id"], missed);
}

/// Takes what is still on its way.
async fn drain(paypal: &Paypal, receiver: &mut Receiver) {
    for _ in 0..1_000 {
        while receiver.arrivals.try_recv().is_ok() {}
        let open = paypal.sim.deliveries().into_iter().any(|delivery| {
            !matches!(
                delivery.state,
                paypal_sim::DeliveryState::Delivered | paypal_sim::DeliveryState::Suppressed
            )
        });
        if !open {
            while receiver.arrivals.try_recv().is_ok() {}
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("deliveries never end");
}

#[tokio::test]
async fn signatures_can_be_wrong_and_certificates_change() {
    let (paypal, mut receiver) = paypal_and_receiver(vec![]).await;
    let id = webhook_id(&paypal).await;
    paypal
        .sim
        .set_faults(vec![
            Fault::on_event("*", Effect::WebhookWrongSignature),
            Fault::on_event("*", Effect::WebhookRotatedCertificate).after(1),
        ])
        .unwrap();
    let (vault_id, _) = paypal.vault().await;
    let forged = receiver.next().await;
    let body = postback(&forged, &id, &forged.body);
    assert_eq!(verdict(&paypal, body).await, "FAILURE");

    charge(&paypal, &vault_id, "k").await;
    let rotated = receiver.next_of("PAYMENT.CAPTURE.COMPLETED").await;
    assert_ne!(rotated.header("paypal-cert-url"), forged.header("paypal-cert-url"));
    let body = postback(&rotated, &id, &rotated.body);
    assert_eq!(verdict(&paypal, body).await, "SUCCESS");
}

#[tokio::test]
async fn registrations_are_kept_by_paypals_rules() {
    let paypal = Paypal::with(SimConfig { relaxed_webhook_urls: false, ..config() }).await;
    let hooks = "/v1/notifications/webhooks";
    let body = |url: &str, name: &str| json!({"url": url, "event_types": [{"name": name}]});
    for (url, name) in [
        ("http://shop.example/hook", "*"),
        ("https://shop.example:8443/hook", "*"),
        ("https://shop.example/hook", "PAYMENT.CAPTURE.INVENTED"),
    ] {
        let got = paypal.post(hooks, "", &body(url, name)).await;
        assert_eq!(got.status, 400, "{url} {name}");
        assert_eq!(got.text("/name"), "VALIDATION_ERROR");
        assert!(got.body.get("information_link").is_some());
    }
    let url = "https://shop.example/hook";
    let made = paypal.post(hooks, "", &body(url, "PAYMENT.CAPTURE.COMPLETED")).await;
    assert_eq!(made.status, 201);
    let twice = paypal.post(hooks, "", &body(url, "*")).await;
    assert_eq!(twice.text("/name"), "WEBHOOK_URL_ALREADY_EXISTS");
    let path = format!("{hooks}/{}", made.text("/id"));
    let patch = json!([{"op": "replace", "path": "/event_types", "value": [{"name": "*"}]}]);
    let changed = send(paypal.request(Method::PATCH, &path).json(&patch)).await.unwrap();
    assert_eq!(changed.text("/event_types/0/name"), "*");
    let gone = send(paypal.request(Method::DELETE, &path)).await.unwrap();
    assert_eq!(gone.status, 204);
    assert_eq!(paypal.get(&path).await.status, 404);
}

#[tokio::test]
async fn a_mock_event_arrives_but_never_verifies() {
    let (paypal, mut receiver) = paypal_and_receiver(vec![]).await;
    let id = webhook_id(&paypal).await;
    let body = json!({"webhook_id": id, "event_type": "PAYMENT.CAPTURE.COMPLETED"});
    let got = paypal.post("/v1/notifications/simulate-event", "", &body).await;
    assert_eq!(got.status, 202, "{}", got.body);
    let arrived = receiver.next().await;
    let body = postback(&arrived, &id, &arrived.body);
    assert_eq!(verdict(&paypal, body).await, "FAILURE");
}

#[tokio::test]
async fn an_approval_can_be_told_before_the_payer_returns() {
    let (paypal, mut receiver) = paypal_and_receiver(vec![]).await;
    let approved = "CHECKOUT.ORDER.APPROVED";
    paypal.sim.add_fault(Fault::on_event(approved, Effect::WebhookBeforeAnswer)).unwrap();
    let body = crate::client::order_body("CAPTURE", "5.00");
    let order = paypal.post("/v2/checkout/orders", "o", &body).await;
    let token = json!({"token": order.text("/id")});
    let got = paypal.control(Method::POST, "/_sim/approve", &token).await;
    assert_eq!(got.status, 200, "{}", got.body);
    let arrived = receiver.arrivals.try_recv().unwrap();
    assert_eq!(arrived.kind(), approved);
    // Orders without a breakdown carry an empty one in events.
    let breakdown = "/resource/purchase_units/0/amount/breakdown";
    assert_eq!(arrived.json().pointer(breakdown), Some(&json!({})));
}
