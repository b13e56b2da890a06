//! Sending of webhooks, with PayPal's headers and its retries.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock::rfc3339;
use crate::ids;
use crate::sim::Shared;

use super::{Delivery, sign};

/// How often the post looks at a running clock even if nobody wakes it.
const ROUND: Duration = Duration::from_millis(500);

/// Delivers until the simulator stops. A frozen clock only moves when someone moves it, and
/// moving it wakes the post.
pub(crate) async fn run(shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    let mut sending = JoinSet::new();
    loop {
        let now = shared.clock.now();
        let due = {
            let mut world = shared.world();
            world.tick(now);
            world.post.take_due(now)
        };
        for delivery in due {
            let shared = Arc::clone(&shared);
            sending.spawn(async move { send(&shared, delivery).await });
        }
        tokio::select! {
            () = shared.post_wakes.notified() => {}
            () = tokio::time::sleep(pause(&shared)) => {}
            Some(_) = sending.join_next() => {}
            _ = stop.changed() => return,
        }
    }
}

fn pause(shared: &Shared) -> Duration {
    if shared.clock.is_frozen() {
        return ROUND.saturating_mul(10);
    }
    let due = shared.world().post.next_due();
    let wait = due.map(|at| at.duration_since(shared.clock.now()));
    wait.and_then(|wait| Duration::try_from(wait).ok())
        .map_or(ROUND, |wait| wait.clamp(Duration::from_millis(1), ROUND))
}

/// One attempt: signs, posts, books the result.
pub(crate) async fn send(shared: &Shared, delivery: Delivery) {
    let status = attempt(shared, &delivery).await.unwrap_or(0);
    let now = shared.clock.now();
    shared.world().post.attempted(delivery.seq, status, now);
    shared.wake_post();
}

async fn attempt(shared: &Shared, delivery: &Delivery) -> Option<u16> {
    let body = shared.world().post.event(&delivery.event_id)?.body.clone();
    let transmission = ids::uuid();
    let time = rfc3339(shared.clock.now());
    let mut message = sign::message(&transmission, &time, &delivery.webhook_id, &body);
    if delivery.wrong_signature {
        message.push(b'0');
    }
    // Making the first RSA key takes a moment and must not hold up the runtime.
    let authority = Arc::clone(&shared.authority);
    let generation = delivery.generation;
    let (certificate, signature) =
        tokio::task::spawn_blocking(move || authority.sign(generation, &message)).await.ok()??;
    let url = format!("{}/v1/notifications/certs/{certificate}", shared.base);
    let sent = shared
        .client
        .post(&delivery.url)
        .timeout(shared.config.webhook_patience)
        .header("content-type", "application/json")
        .header("user-agent", "PayPal/AUHD-214.0-1")
        .header("paypal-transmission-id", transmission)
        .header("paypal-transmission-time", time)
        .header("paypal-transmission-sig", STANDARD.encode(signature))
        .header("paypal-cert-url", url)
        .header("paypal-auth-algo", "SHA256withRSA")
        .header("paypal-auth-version", "v2")
        .body(body)
        .send()
        .await;
    match sent {
        Ok(response) => Some(response.status().as_u16()),
        Err(error) => {
            tracing::debug!(url = %delivery.url, %error, "webhook not delivered");
            None
        }
    }
}
