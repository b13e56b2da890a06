//! Telling endpoints of events, by Standard Webhooks: what is signed is `id.timestamp.body`.
//!
//! The log says what happened and to whom it may be told; deliveries are made of it once, and sent
//! until they are taken, by jobs. A body is written from the log at each attempt, so nothing of an
//! event is kept twice.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use earnest_core::hook::{
    Attempt, Attempted, CLAIM_SECONDS, ClaimDelivery, ClearDelivery, Delivery, FanOut, Hook,
    HookCursor, NotSent, Scheme,
};
use earnest_core::problem::{Code, Refusal};
use earnest_core::quarantine::Quarantine;
use earnest_core::time::after;
use earnest_store::EventAt;
use ed25519_dalek::{Signer as _, SigningKey};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use ring::hmac;
use serde_json::json;
use url::Url;
use zeroize::Zeroizing;

use super::paypal::FlowError;
use super::share::in_turn;
use crate::app::App;
use crate::events::may_see;
use crate::lead::{self, Right};
use crate::outbound::Call;

/// How many entries of the log are looked through at once.
const PAGE: usize = 500;
/// How many endpoints are listed at once.
const HOOKS: usize = 500;
/// How many deliveries that ended are looked at in a turn.
const MOST_DUE: usize = 5_000;
/// After how many entries without anything to tell the place is remembered all the same.
const REMEMBER_EVERY: u64 = 5_000;
/// The most deliveries that one unit makes.
const MOST_AT_ONCE: usize = 100;
/// How much of an answer is read, and how much of that is kept.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
const KEPT_CHARS: usize = 200;

/// The secret of a new endpoint: sealed, and shown.
pub struct NewSecret {
    /// As it rests in the books.
    pub sealed: String,
    /// `whpk_…`: what receivers verify with, where the scheme has a public half.
    pub public_key: Option<String>,
    /// `whsec_…`: what both sides keep, where the scheme has none. Shown once.
    pub secret: Option<String>,
}

/// Draws the secret of a new endpoint.
///
/// # Errors
/// `internal` where it cannot be sealed.
pub fn new_secret(app: &App, id: &str, scheme: Scheme) -> Result<NewSecret, Refusal> {
    let secret = Zeroizing::new(crate::source::random_bytes::<32>());
    let sealed = app.sealer.seal(id, secret.as_slice());
    let sealed = sealed.map_err(|_| Refusal::new(Code::Internal, "no key could be made"))?;
    let (public_key, shown) = match scheme {
        Scheme::V1a => {
            let public = SigningKey::from_bytes(&secret).verifying_key();
            (Some(format!("whpk_{}", STANDARD.encode(public.as_bytes()))), None)
        }
        Scheme::V1 => (None, Some(format!("whsec_{}", STANDARD.encode(secret.as_slice())))),
    };
    Ok(NewSecret { sealed, public_key, secret: shown })
}

/// The secret of an endpoint as it was shown when it was made; none where the scheme has no shared
/// one.
///
/// # Errors
/// `internal` where it cannot be opened.
pub fn shown_secret(app: &App, hook: &Hook) -> Result<Option<String>, Refusal> {
    if hook.scheme == Scheme::V1a {
        return Ok(None);
    }
    let secret = app.sealer.open_secret(&hook.id.to_string(), &hook.sealed);
    let secret = secret.map_err(|_| Refusal::new(Code::Internal, "the key cannot be opened"))?;
    Ok(Some(format!("whsec_{}", STANDARD.encode(&*secret))))
}

/// Clears away deliveries that ended longer ago than they are kept.
///
/// # Errors
/// When the books cannot be read or written.
pub async fn clear(app: &App) -> Result<(), FlowError> {
    let (now, keep) = (app.now(), app.settings.webhook_keep_seconds);
    let reader = app.store.reader();
    let page = reader.list::<Delivery>("hook_deliveries.ended", "", None, MOST_DUE, false)?;
    for old in page.items.iter().take_while(|old| after(old.created_at, keep) <= now) {
        let unit = ClearDelivery { delivery: old.id, settings: app.settings.clone() };
        app.submit_leading(unit).await?;
    }
    Ok(())
}

/// Looks through what the log got since the last time, and makes deliveries of what endpoints want.
/// `read` is how far this process has looked; a restart, and a node that leads again after another
/// did, begins at the place that is remembered.
///
/// # Errors
/// [`FlowError`]; nothing is lost, the next turn looks again.
pub async fn fan_out(app: &App, read: &mut Option<u64>) -> Result<(), FlowError> {
    let reader = app.store.reader();
    // Only up to here: an endpoint that is made meanwhile wants what comes after it, and is not among
    // those that are listed next.
    let head = reader.head()?.seq;
    let hooks = active(app)?;
    let Some(oldest) = hooks.iter().map(|hook| hook.since).min() else { return Ok(()) };
    let kept = reader.row::<HookCursor>(HookCursor::ID)?.map_or(0, |row| row.seq);
    let mut at = read.unwrap_or(0).max(kept).max(oldest);
    let most_waiting = app.settings.webhook_waiting;
    let fan = |seq, deliveries| FanOut { seq, deliveries, most_waiting };
    loop {
        let page = reader.events(at, PAGE)?;
        let events: Vec<EventAt> =
            page.events.into_iter().filter(|event| event.seq <= head).collect();
        let after = page.after.min(head);
        if after <= at {
            *read = Some(at);
            return Ok(());
        }
        let deliveries = wanted(&hooks, &events, app)?;
        let due = after.saturating_sub(kept) >= REMEMBER_EVERY;
        // In pieces, so that no unit holds up the writer; the place moves with the last of them.
        let pieces: Vec<&[Delivery]> = deliveries.chunks(MOST_AT_ONCE).collect();
        for (n, piece) in pieces.iter().enumerate() {
            let seq = if n.saturating_add(1) == pieces.len() { after } else { at };
            app.submit_leading(fan(seq, piece.to_vec())).await?;
        }
        if due && pieces.is_empty() {
            app.submit_leading(fan(after, Vec::new())).await?;
        }
        at = after;
        *read = Some(at);
    }
}

/// Every endpoint that is told anything.
fn active(app: &App) -> Result<Vec<Hook>, FlowError> {
    let (mut hooks, mut after) = (Vec::new(), None);
    loop {
        let reader = app.store.reader();
        let page = reader.list::<Hook>("hooks.active", "", after.as_ref(), HOOKS, false)?;
        hooks.extend(page.items);
        after = page.next;
        if after.is_none() {
            return Ok(hooks);
        }
    }
}

fn wanted(hooks: &[Hook], events: &[EventAt], app: &App) -> Result<Vec<Delivery>, FlowError> {
    let restored = app.store.reader().row::<Quarantine>(Quarantine::ID)?;
    let mut deliveries = Vec::new();
    for event in events {
        let (kind, epoch) = (&event.event.kind, epoch_of(app, restored.as_ref(), event.seq));
        let told = hooks
            .iter()
            .filter(|hook| event.seq > hook.since && hook.wants(kind) && may_see(hook.of, event));
        let place = (event.seq, event.index);
        let make = |hook: &Hook| Delivery::new(hook.id, epoch, place, kind, app.now());
        deliveries.extend(told.map(make));
    }
    Ok(deliveries)
}

/// The epoch in which an entry was written: that of an entry before a restore stays what it was, so
/// that what is told of it again is told under the same name.
fn epoch_of<'a>(app: &'a App, restored: Option<&'a Quarantine>, seq: u64) -> &'a str {
    restored.map_or(app.store.epoch(), |row| row.epoch_of(seq))
}

/// What is due and may be begun now: a few of each endpoint, no more of each principal than its share,
/// and first of those who have the fewest under way.
///
/// # Errors
/// When the books cannot be read.
pub fn due(app: &App) -> Result<Vec<Delivery>, FlowError> {
    let (now, reader, limits) = (app.now(), app.store.reader(), &app.limits);
    let mut parties: HashMap<String, Vec<Vec<Delivery>>> = HashMap::new();
    let mut after = None;
    loop {
        let hooks = reader.list::<Hook>("hooks.waiting", "", after.as_ref(), HOOKS, false)?;
        for hook in hooks.items {
            let (id, of) = (hook.id.to_string(), hook.of.to_string());
            let room = hook.room(limits.webhook_calls_per_endpoint, now);
            let room = room.saturating_sub(app.shares.under_way(&id));
            if room == 0 || app.shares.under_way(&of) >= limits.webhook_calls_per_principal {
                continue;
            }
            let page = reader.list::<Delivery>("hook_deliveries.due", &id, None, room, false)?;
            let due = page.items.into_iter().take_while(|delivery| delivery.next_at <= now);
            parties.entry(of).or_default().push(due.collect());
        }
        after = hooks.next;
        if after.is_none() {
            break;
        }
    }
    let queues = parties.into_iter().map(|(of, queues)| (app.shares.under_way(&of), queues));
    Ok(in_turn(queues, limits.webhook_calls_per_principal, |delivery| delivery.next_at))
}

/// Sends one delivery, if it is still due and its principal has a share left.
pub async fn deliver(app: &App, delivery: &Delivery) {
    let of = match app.store.reader().row::<Hook>(delivery.hook) {
        Ok(hook) => hook.map(|hook| hook.of.to_string()).unwrap_or_default(),
        Err(error) => {
            tracing::warn!(delivery = %delivery.id, %error, "a webhook was not sent");
            return;
        }
    };
    let most = app.limits.webhook_calls_per_principal;
    let Some(_share) = app.shares.take(of, most, delivery.hook.to_string()) else { return };
    if let Err(error) = send(app, delivery).await
        && !lead::is_passed(&error)
    {
        tracing::error!(delivery = %delivery.id, %error, "a webhook was not sent, and is tried again");
    }
}

async fn send(app: &App, due: &Delivery) -> Result<(), FlowError> {
    let claim = ClaimDelivery { delivery: due.id, hook: due.hook };
    let right = Right::ask(app, CLAIM_SECONDS);
    let Some((delivery, hook)) = app.submit_leading(claim).await? else { return Ok(()) };
    let attempt = match attempt(app, &delivery, &hook, right).await {
        Ok(attempt) => attempt,
        Err(why) => {
            app.store.submit(NotSent { delivery: delivery.id, tries: delivery.tries }).await?;
            return Err(FlowError::Broken(why));
        }
    };
    let took = attempt.took();
    let unit = Attempted { delivery: delivery.id, hook: hook.id, tries: delivery.tries, attempt };
    app.store.submit(unit).await?;
    tracing::info!(delivery = %delivery.id, hook = %hook.id, took, "webhook sent");
    Ok(())
}

/// One attempt, and how the receiver took it; an error where nothing was sent because something of
/// ours is in the way.
async fn attempt(
    app: &App,
    delivery: &Delivery,
    hook: &Hook,
    right: Right,
) -> Result<Attempt, String> {
    let at = app.now();
    let failed = |why: String| Attempt { at, status: None, error: Some(why), answer: None };
    // What may be called can change: an address that is forbidden now is the receiver's business.
    let url = match app.outbound.check(&hook.url) {
        Ok(url) => url,
        Err(why) => return Ok(failed(why.detail)),
    };
    let call = call(app, delivery, hook, url)?;
    // INVARIANT: a_node_whose_claim_passed_sends_nothing
    if !right.lasts(app, call.timeout) {
        return Err("so much time went by that another node may send it".to_owned());
    }
    Ok(match app.outbound.send(call).await {
        Err(why) => failed(why.to_string()),
        Ok(answer) => {
            let text = String::from_utf8_lossy(&answer.body);
            let text: String = text.chars().filter(|c| !c.is_control()).take(KEPT_CHARS).collect();
            let answer_text = (!text.is_empty()).then_some(text);
            let status = Some(answer.status.as_u16());
            Attempt { at, status, error: None, answer: answer_text }
        }
    })
}

fn call(app: &App, delivery: &Delivery, hook: &Hook, url: Url) -> Result<Call, String> {
    let body = body(app, delivery)?;
    let timestamp = app.now().as_second().to_string();
    let id = delivery.id.to_string();
    let secret = app.sealer.open_secret(&hook.id.to_string(), &hook.sealed);
    let secret = secret.map_err(|why| why.to_string())?;
    let signature = sign(hook.scheme, &secret, &id, &timestamp, &body)?;
    let mut headers = HeaderMap::new();
    let named = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::USER_AGENT, concat!("earnest/", env!("CARGO_PKG_VERSION")).to_owned()),
        (HeaderName::from_static("webhook-id"), id),
        (HeaderName::from_static("webhook-timestamp"), timestamp),
        (HeaderName::from_static("webhook-signature"), signature),
    ];
    for (name, value) in named {
        headers.insert(name, HeaderValue::from_str(&value).map_err(|why| why.to_string())?);
    }
    let (method, max_bytes) = (Method::POST, MAX_ANSWER_BYTES);
    Ok(Call { method, url, headers, body, max_bytes, timeout: app.limits.webhook_timeout() })
}

/// What is told, as the log has it: the same bytes at every attempt.
fn body(app: &App, delivery: &Delivery) -> Result<Bytes, String> {
    let before = delivery.seq.saturating_sub(1);
    let page = app.store.reader().events(before, 1).map_err(|why| why.to_string())?;
    let event = page.events.into_iter().find(|event| event.index == delivery.index);
    let event = event.ok_or("the event is not in the log")?;
    let restored = app.store.reader().row::<Quarantine>(Quarantine::ID);
    let restored = restored.map_err(|why| why.to_string())?;
    let body = json!({
        "type": event.event.kind,
        "timestamp": event.at.to_string(),
        "epoch": epoch_of(app, restored.as_ref(), event.seq),
        "seq": event.seq,
        "data": event.event.data,
    });
    Ok(Bytes::from(body.to_string()))
}

/// The value of `webhook-signature`.
fn sign(
    scheme: Scheme,
    secret: &[u8],
    id: &str,
    timestamp: &str,
    body: &[u8],
) -> Result<String, String> {
    let mut signed = format!("{id}.{timestamp}.").into_bytes();
    signed.extend_from_slice(body);
    Ok(match scheme {
        Scheme::V1a => {
            let secret: &[u8; 32] = secret.try_into().map_err(|_| "a key of another length")?;
            let signature = SigningKey::from_bytes(secret).sign(&signed);
            format!("v1a,{}", STANDARD.encode(signature.to_bytes()))
        }
        Scheme::V1 => {
            let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
            format!("v1,{}", STANDARD.encode(hmac::sign(&key, &signed)))
        }
    })
}
