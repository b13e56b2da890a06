//! Deliveries of PayPal's that were overheard, and bodies that verify with their headers although
//! PayPal never wrote them: the signature covers nothing of a body but its CRC-32.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use bytes::Bytes;
use earnest::config::Config;
use earnest_paypal::webhooks::signed_message;
use paypal_sim::SimConfig;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::world::{Answer, Change, World, until};

/// One delivery as it came over the wire.
#[derive(Clone, Debug)]
pub struct Overheard {
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Overheard {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
    pub fn event_type(&self) -> String {
        self.json()["event_type"].as_str().unwrap().to_owned()
    }
    pub fn with_body(&self, body: Vec<u8>) -> Self {
        Self { headers: self.headers.clone(), body }
    }
    pub fn with_header(&self, name: &'static str, value: &str) -> Self {
        let mut headers = self.headers.clone();
        headers.insert(name, value.parse().unwrap());
        Self { headers, body: self.body.clone() }
    }
    /// The same headers with another body of the same checksum: it verifies.
    pub fn forged(&self, change: impl FnOnce(&mut Value)) -> Self {
        let mut body = self.json();
        change(&mut body);
        self.with_body(with_checksum_of(&body, &self.body))
    }
}

/// Stands where Earnest's webhook URL points to, and keeps what comes.
#[derive(Clone, Default)]
pub struct Tap(Arc<Mutex<Vec<Overheard>>>);

impl Tap {
    /// A world whose webhooks go to the tap; what is to reach Earnest is delivered by the test.
    pub async fn world(config: Config, change: &Change) -> (World, Self) {
        Self::world_with(config, SimConfig::default(), change).await
    }

    /// The same with a simulator of its own kind.
    pub async fn world_with(config: Config, sim: SimConfig, change: &Change) -> (World, Self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let tap = Self::default();
        let app = Router::new().route("/webhooks/paypal", post(take)).with_state(tap.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let world = {
            let config = Config { public_url: Some(url), ..config };
            World::changed(config, sim, change).await
        };
        world.prove_origin().await;
        world.vault().await;
        (world, tap)
    }

    /// The first delivery of this type.
    pub async fn heard(&self, event_type: &str) -> Overheard {
        let find = || {
            let heard = self.0.lock().unwrap();
            heard.iter().find(|it| it.event_type() == event_type).cloned()
        };
        until(event_type, || find().is_some()).await;
        find().unwrap()
    }
}

async fn take(State(tap): State<Tap>, headers: HeaderMap, body: Bytes) -> StatusCode {
    tap.0.lock().unwrap().push(Overheard { headers, body: body.to_vec() });
    StatusCode::OK
}

impl World {
    /// Delivers to Earnest, and waits until what came of it has ended.
    pub async fn deliver(&self, delivery: &Overheard) -> Answer {
        let mut headers = delivery.headers.clone();
        headers.remove("host");
        headers.remove("content-length");
        let url = format!("{}/webhooks/paypal", self.earnest.url());
        let request = self.http.post(url).headers(headers).body(delivery.body.clone());
        let answer = crate::world::answer(request).await;
        self.earnest.app.tasks.close();
        self.earnest.app.tasks.wait().await;
        answer
    }
}

fn crc(body: &[u8]) -> u32 {
    let message = signed_message("", "", "", body);
    message.rsplit('|').next().unwrap().parse().unwrap()
}

/// Letters in the filler: more than the 32 equations, so that a solution surely exists.
const FILLER: usize = 64;

/// An object with a further member that makes its checksum that of `model`. A CRC is affine: each
/// letter of the filler that changes from `a` to `c` flips a fixed set of its bits.
fn with_checksum_of(object: &Value, model: &[u8]) -> Vec<u8> {
    let text = object.to_string();
    let open = text.strip_suffix('}').unwrap();
    let mut body = format!("{open},\"filler\":\"{}\"}}", "a".repeat(FILLER)).into_bytes();
    let at = body.len() - FILLER - 2;
    let base = crc(&body);
    let mut rows: Vec<(u32, u64)> = (0..FILLER)
        .map(|n| {
            body[at + n] = b'c';
            let flips = crc(&body) ^ base;
            body[at + n] = b'a';
            (flips, 1 << n)
        })
        .collect();
    // Gauss: for each bit one row that has it, cleared from all others.
    let (mut wanted, mut chosen) = (crc(model) ^ base, 0_u64);
    for bit in 0..32 {
        let Some(pivot) = rows.iter().position(|(flips, _)| flips >> bit & 1 == 1) else {
            continue;
        };
        let pivot = rows.swap_remove(pivot);
        for row in rows.iter_mut().filter(|(flips, _)| flips >> bit & 1 == 1) {
            *row = (row.0 ^ pivot.0, row.1 ^ pivot.1);
        }
        if wanted >> bit & 1 == 1 {
            (wanted, chosen) = (wanted ^ pivot.0, chosen ^ pivot.1);
        }
    }
    for n in (0..FILLER).filter(|n| chosen >> n & 1 == 1) {
        body[at + n] = b'c';
    }
    assert_eq!(crc(&body), crc(model));
    body
}

#[test]
fn a_forged_body_has_the_checksum_of_another() {
    let model = br#"{"id":"WH-1","amount":"4.50"}"#;
    let forged = with_checksum_of(&serde_json::json!({"id": "WH-1", "amount": "9999.00"}), model);
    assert_eq!(crc(&forged), crc(model));
    assert!(serde_json::from_slice::<Value>(&forged).is_ok());
}
