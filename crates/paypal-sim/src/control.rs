//! The simulator's own API under `/_sim/`: the payer's decisions, the clock, faults, and views of
//! journal and books. The same verbs are methods of [`crate::Sim`].

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response};
use http_body_util::Full;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::answer::Resource;
use crate::books::Happening;
use crate::call::Request;
use crate::clock::rfc3339;
use crate::disputes::Favour;
use crate::faults::{Ending, Fault};
use crate::route::OPERATIONS;
use crate::server::plain;
use crate::sim::Shared;
use crate::world::{OrderStatus, SetupStatus, TokenState};
use crate::{disputes, faults, orders, payments, refunds, vault};

/// Why a payer's decision was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PayerError {
    /// No order or setup token of this id; it may have run out.
    #[error("no such order or setup token")]
    Unknown,
    /// It is already approved, used or paid.
    #[error("nothing waits for the payer there any more")]
    NotWaiting,
    /// PayPal refuses a payer who is the payee.
    #[error("you are logging into the account of the seller for this purchase")]
    PayerIsSeller,
    /// This payer already saved a wallet with the merchant.
    #[error("this wallet is already saved with the merchant")]
    AlreadyVaulted,
}

/// See [`crate::Sim::approve`].
pub(crate) fn approve(
    shared: &Shared,
    token: &str,
    email: Option<&str>,
) -> Result<Option<String>, PayerError> {
    let now = shared.clock.now();
    let mut world = shared.world();
    world.tick(now);
    let buyer = world.config.buyer.email.clone();
    let email = email.unwrap_or(&buyer);
    if email.eq_ignore_ascii_case(&world.config.merchant.email) {
        return Err(PayerError::PayerIsSeller);
    }
    if let Some(order) = world.orders.get(token).cloned() {
        if !matches!(order.status, OrderStatus::Created | OrderStatus::PayerActionRequired) {
            return Err(PayerError::NotWaiting);
        }
        let payer = world.payer(email);
        let payer_id = payer.payer_id.clone();
        orders::approve(&mut world, token, payer, now);
        drop(world);
        shared.wake_post();
        let pairs = [("token", token), ("PayerID", payer_id.as_str())];
        return Ok(order.return_url.map(|url| with_query(&url, &pairs)));
    }
    let Some(setup) = world.setup_tokens.get(token).cloned() else {
        return Err(PayerError::Unknown);
    };
    if setup.status != SetupStatus::PayerActionRequired {
        return Err(PayerError::NotWaiting);
    }
    let payer = world.payer(email);
    let permits_more = setup.wallet.get("permit_multiple_payment_tokens") == Some(&json!(true));
    if world.config.one_token_per_payer && !permits_more && vault::has_saved(&world, &payer) {
        return Err(PayerError::AlreadyVaulted);
    }
    if let Some(setup) = world.setup_tokens.get_mut(token) {
        setup.status = SetupStatus::Approved;
        setup.payer = Some(payer);
    }
    let pairs = [("approval_token_id", token), ("approval_session_id", token)];
    Ok(setup.return_url.map(|url| with_query(&url, &pairs)))
}

/// See [`crate::Sim::cancel`]. The order or token stays open: the payer may come back.
pub(crate) fn cancel(shared: &Shared, token: &str) -> Result<Option<String>, PayerError> {
    let now = shared.clock.now();
    let mut world = shared.world();
    world.tick(now);
    if let Some(order) = world.orders.get(token) {
        if !order.status.is_open() || order.status == OrderStatus::Approved {
            return Err(PayerError::NotWaiting);
        }
        let url = order.cancel_url.as_deref();
        return Ok(url.map(|url| with_query(url, &[("token", token)])));
    }
    let Some(setup) = world.setup_tokens.get(token) else {
        return Err(PayerError::Unknown);
    };
    if setup.status != SetupStatus::PayerActionRequired {
        return Err(PayerError::NotWaiting);
    }
    let pairs = [("approval_token_id", token), ("approval_session_id", token)];
    let url = setup.cancel_url.as_deref();
    Ok(url.map(|url| with_query(url, &pairs)))
}

fn with_query(url: &str, pairs: &[(&str, &str)]) -> String {
    match url::Url::parse(url) {
        Ok(mut url) => {
            url.query_pairs_mut().extend_pairs(pairs);
            url.into()
        }
        // The schema check let only URLs through.
        Err(_) => url.to_owned(),
    }
}

/// See [`crate::Sim::advance`].
pub(crate) fn advance(shared: &Shared, seconds: u32) {
    let now = shared.clock.advance(seconds);
    shared.world().tick(now);
    shared.wake_post();
}

/// A fault must be able to fire.
fn check_operation(fault: &Fault) -> Result<(), String> {
    let named: Vec<&str> = OPERATIONS
        .iter()
        .map(|operation| operation.name)
        .filter(|name| faults::matches(&fault.operation, name))
        .collect();
    if named.is_empty() {
        return Err(format!("no operation is called `{}`", fault.operation));
    }
    if named.iter().any(|name| fault.effect.applies_to(name)) {
        Ok(())
    } else {
        Err(format!("this cannot happen to `{}`", fault.operation))
    }
}

/// See [`crate::Sim::set_faults`].
pub(crate) fn set_faults(shared: &Shared, faults: Vec<Fault>) -> Result<(), String> {
    faults.iter().try_for_each(check_operation)?;
    shared.world().faults.replace(faults);
    Ok(())
}

/// See [`crate::Sim::add_fault`].
pub(crate) fn add_fault(shared: &Shared, fault: Fault) -> Result<(), String> {
    check_operation(&fault)?;
    shared.world().faults.add(fault);
    Ok(())
}

/// See [`crate::Sim::end_pending`].
pub(crate) fn end_pending(shared: &Shared, id: &str, ending: Ending) -> bool {
    let now = shared.clock.now();
    let mut world = shared.world();
    let ended = [
        Resource::Capture(id.to_owned()),
        Resource::Authorization(id.to_owned()),
        Resource::Refund(id.to_owned()),
    ]
    .iter()
    .any(|resource| world.end(resource, ending, now));
    drop(world);
    shared.wake_post();
    ended
}

/// See [`crate::Sim::revoke`].
pub(crate) fn revoke(shared: &Shared, vault_id: &str) -> bool {
    let now = shared.clock.now();
    let done = vault::end(&mut shared.world(), vault_id, TokenState::Revoked, now);
    shared.wake_post();
    done
}

/// See [`crate::Sim::reverse`].
pub(crate) fn reverse(shared: &Shared, capture_id: &str, minor: Option<i64>) -> bool {
    let now = shared.clock.now();
    let done = refunds::reverse(&mut shared.world(), capture_id, minor, now);
    shared.wake_post();
    done
}

/// See [`crate::Sim::dispute`].
pub(crate) fn dispute(
    shared: &Shared,
    capture_id: &str,
    minor: Option<i64>,
    withhold: bool,
) -> Option<String> {
    let now = shared.clock.now();
    let id = disputes::open(&mut shared.world(), capture_id, minor, withhold, now);
    shared.wake_post();
    id
}

/// See [`crate::Sim::touch_dispute`].
pub(crate) fn touch_dispute(shared: &Shared, id: &str) -> bool {
    let now = shared.clock.now();
    let done = disputes::touch(&mut shared.world(), id, now);
    shared.wake_post();
    done
}

/// See [`crate::Sim::resolve`].
pub(crate) fn resolve(shared: &Shared, id: &str, favour: Favour) -> bool {
    let now = shared.clock.now();
    let done = disputes::resolve(&mut shared.world(), id, favour, now);
    shared.wake_post();
    done
}

/// See [`crate::Sim::happen`].
pub(crate) fn happen(shared: &Shared, what: &Happening) -> Option<String> {
    let now = shared.clock.now();
    let mut world = shared.world();
    let owner = world.config.merchant.merchant_id.clone();
    world.books.happen(what, &owner, now)
}

/// Voids a hold as if in PayPal's own pages; false if it is not open.
fn void(shared: &Shared, id: &str) -> bool {
    let now = shared.clock.now();
    let mut world = shared.world();
    let before = world.authorizations.get(id).map(|hold| hold.status);
    payments::void_family(&mut world, id, now, false);
    let after = world.authorizations.get(id).map(|hold| hold.status);
    drop(world);
    shared.wake_post();
    before != after
}

type Answer = Result<Value, (u16, String)>;

#[derive(Deserialize)]
struct Decision {
    token: String,
    #[serde(default)]
    payer: Option<String>,
}

#[derive(Deserialize)]
struct Advance {
    seconds: u32,
}

#[derive(Deserialize)]
struct Running {
    frozen: bool,
}

#[derive(Deserialize)]
struct FaultList {
    faults: Vec<Value>,
}

#[derive(Deserialize)]
struct Scopes {
    scopes: Vec<String>,
}

#[derive(Deserialize, Default)]
struct Part {
    #[serde(default)]
    minor: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Claim {
    #[serde(default)]
    minor: Option<i64>,
    #[serde(default)]
    withhold: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Judgement {
    favour: Favour,
}

fn parsed<T: DeserializeOwned>(request: &Request) -> Result<T, (u16, String)> {
    serde_json::from_slice(&request.body).map_err(|error| (400, error.to_string()))
}

/// Faults one by one, so that the answer can say which one is wrong and unknown members do not
/// pass unnoticed.
fn fault_list(request: &Request) -> Result<Vec<Fault>, (u16, String)> {
    let list: FaultList = parsed(request)?;
    list.faults
        .into_iter()
        .enumerate()
        .map(|(at, value)| {
            let fault: Fault = serde_json::from_value(value.clone())
                .map_err(|error| (400, format!("faults[{at}]: {error}")))?;
            known_members(&value, &fault).map_err(|name| {
                (400, format!("faults[{at}]: `{name}` is no member of this kind"))
            })?;
            Ok(fault)
        })
        .collect()
}

fn known_members(value: &Value, fault: &Fault) -> Result<(), String> {
    let written = serde_json::to_value(fault).unwrap_or_default();
    let optional = ["contains", "reason", "after_seconds", "retry_after_seconds"];
    let given = value.as_object().into_iter().flat_map(|map| map.keys());
    for name in given {
        if written.get(name).is_none() && !optional.contains(&name.as_str()) {
            return Err(name.clone());
        }
    }
    Ok(())
}

fn done(happened: bool) -> Answer {
    if happened {
        Ok(json!({"done": true}))
    } else {
        Err((409, "nothing there to change".to_owned()))
    }
}

fn decided(result: Result<Option<String>, PayerError>) -> Answer {
    match result {
        Ok(next) => Ok(json!({"done": true, "redirect": next})),
        Err(error) => {
            let status = if error == PayerError::Unknown { 404 } else { 409 };
            Err((status, error.to_string()))
        }
    }
}

fn clock_json(shared: &Shared) -> Value {
    json!({"now": rfc3339(shared.clock.now()), "frozen": shared.clock.is_frozen()})
}

/// Answers a control call.
pub(crate) async fn handle(shared: &Arc<Shared>, request: &Request) -> Response<Full<Bytes>> {
    if request.path == "/_sim/ca.pem" {
        let pem = shared.authority.root_pem().to_owned();
        return plain(200, "application/x-pem-file", pem);
    }
    let answer = route(shared, request);
    shared.deliver_before_answer().await;
    let (status, body) = match answer {
        Ok(body) => (200, body),
        Err((status, message)) => (status, json!({"error": message})),
    };
    plain(status, "application/json", body.to_string())
}

fn route(shared: &Shared, request: &Request) -> Answer {
    let path: Vec<&str> = request.path.trim_start_matches("/_sim/").split('/').collect();
    let post = request.method == Method::POST;
    let put = request.method == Method::PUT;
    let get = request.method == Method::GET;
    match path.as_slice() {
        ["approve"] if post => {
            let said: Decision = parsed(request)?;
            decided(approve(shared, &said.token, said.payer.as_deref()))
        }
        ["cancel"] if post => {
            let said: Decision = parsed(request)?;
            decided(cancel(shared, &said.token))
        }
        ["clock"] if get => Ok(clock_json(shared)),
        ["clock"] if put => {
            let said: Running = parsed(request)?;
            if said.frozen {
                shared.clock.freeze();
            } else {
                shared.clock.run();
            }
            Ok(clock_json(shared))
        }
        ["clock", "advance"] if post => {
            let said: Advance = parsed(request)?;
            advance(shared, said.seconds);
            Ok(clock_json(shared))
        }
        ["faults"] if put => {
            let faults = fault_list(request)?;
            set_faults(shared, faults).map_err(|error| (400, error))?;
            Ok(json!({"faults": shared.world().faults.list()}))
        }
        ["faults"] if get => Ok(json!({"faults": shared.world().faults.list()})),
        ["journal"] if get => Ok(journal(shared)),
        ["journal"] if request.method == Method::DELETE => {
            shared.world().journal.clear();
            done(true)
        }
        ["books"] if get => Ok(books(shared)),
        ["books", "happen"] if post => {
            let what: Happening = parsed(request)?;
            let id = happen(shared, &what);
            id.map(|id| json!({"transaction_id": id}))
                .ok_or_else(|| (400, format!("`{}` cannot happen so", what.event_code)))
        }
        ["scopes"] if put => {
            let said: Scopes = parsed(request)?;
            shared.world().scopes = said.scopes;
            done(true)
        }
        ["tokens", "drop"] if post => {
            shared.world().access_tokens.clear();
            done(true)
        }
        ["webhooks"] if get => Ok(json!({"deliveries": shared.world().post.deliveries})),
        ["webhooks", "flush"] if post => {
            let now = shared.clock.now();
            shared.world().post.release_held(None, now);
            shared.wake_post();
            done(true)
        }
        [kind, id, verb] if post => happening(shared, request, kind, id, verb),
        _ => Err((404, "no such control call".to_owned())),
    }
}

/// What can happen to a payment or a saved wallet without a call of ours.
fn happening(shared: &Shared, request: &Request, kind: &str, id: &str, verb: &str) -> Answer {
    match (kind, verb) {
        ("vault", "revoke") => done(revoke(shared, id)),
        ("captures", "reverse") => {
            let part: Part =
                if request.body.is_empty() { Part::default() } else { parsed(request)? };
            done(reverse(shared, id, part.minor))
        }
        ("captures", "dispute") => {
            let said: Claim =
                if request.body.is_empty() { Claim::default() } else { parsed(request)? };
            let id = dispute(shared, id, said.minor, said.withhold.unwrap_or(true));
            id.map(|id| json!({"dispute_id": id}))
                .ok_or_else(|| (409, "nothing there to dispute".to_owned()))
        }
        ("disputes", "touch") => done(touch_dispute(shared, id)),
        ("disputes", "resolve") => {
            let said: Judgement = parsed(request)?;
            done(resolve(shared, id, said.favour))
        }
        ("captures", "misstate-fee") => {
            let part: Part = parsed(request)?;
            done(part.minor.is_some_and(|minor| shared.world().books.misstate_fee(id, minor)))
        }
        ("captures", "forget") => done(shared.world().books.forget(id)),
        ("authorizations", "void") => done(void(shared, id)),
        ("captures" | "authorizations" | "refunds", "complete") => {
            done(end_pending(shared, id, Ending::Completed))
        }
        ("captures" | "authorizations" | "refunds", "decline") => {
            done(end_pending(shared, id, Ending::Declined))
        }
        _ => Err((404, "no such control call".to_owned())),
    }
}

fn journal(shared: &Shared) -> Value {
    let world = shared.world();
    json!({"entries": world.journal.entries(), "violations": world.journal.violations()})
}

fn books(shared: &Shared) -> Value {
    let now = shared.clock.now();
    let mut world = shared.world();
    world.tick(now);
    serde_json::to_value(world.books.view(now)).unwrap_or_default()
}
