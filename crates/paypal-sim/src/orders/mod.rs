//! Orders v2: creation, reading, confirmation, expiry, and the payer's decision.

pub(crate) mod amounts;
pub(crate) mod patch;
pub(crate) mod settle;
pub(crate) mod track;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::answer::{Detail, Outcome, Problem, Resource};
use crate::call::Call;
use crate::clock::plus_seconds;
use crate::config::Payer;
use crate::faults::Effect;
use crate::money::Money;
use crate::world::{Intent, ORDER_LIFE_SECONDS, Order, OrderStatus, TokenState, Unit, World};
use crate::{ids, render, schemas};

/// `POST /v2/checkout/orders`.
///
/// With a `vault_id` the order is charged at once, the payer absent; otherwise it waits for its
/// payer.
pub(crate) fn create(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    call.check(&schemas::ORDER)?;
    let source = call.body.get("payment_source").cloned();
    if source.as_ref().is_some_and(is_chargeable) && call.request.key().is_none() {
        return Err(Problem::by_issue("PAYPAL_REQUEST_ID_REQUIRED", call.operation));
    }
    let intent = intent_of(&call.body);
    let units = amounts::units(&call.body, &call.world.config.merchant)?;
    if intent == Intent::Authorize && units.len() > 1 {
        return Err(Problem::business("UNSUPPORTED_INTENT"));
    }
    let wallet = wallet_of(source.as_ref())?;
    let order = new_order(call, intent, units, wallet.clone());
    match wallet.as_ref().and_then(vault_id) {
        Some(vault_id) => charge(call, order, &vault_id),
        None => {
            call.refusal()?;
            let id = order.id.clone();
            call.world.orders.insert(id.clone(), order);
            created(id)
        }
    }
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "the last expression of functions that answer with a result"
)]
fn created(id: String) -> Result<Outcome, Problem> {
    Ok(Outcome::Resource { resource: Resource::Order(id), created: true })
}

fn intent_of(body: &Value) -> Intent {
    match body.get("intent").and_then(Value::as_str) {
        Some("AUTHORIZE") => Intent::Authorize,
        _ => Intent::Capture,
    }
}

/// Whether a source can be charged without its payer. A bare wallet cannot: PayPal's own toolkit
/// names one without sending a key.
fn is_chargeable(source: &Value) -> bool {
    source.get("card").is_some()
        || source.get("token").is_some()
        || source.pointer("/paypal/vault_id").is_some()
}

fn vault_id(wallet: &Value) -> Option<String> {
    wallet.get("vault_id").and_then(Value::as_str).map(str::to_owned)
}

/// `payment_source.paypal`, or the refusal an account with nothing but the wallet gives.
fn wallet_of(source: Option<&Value>) -> Result<Option<Value>, Problem> {
    let Some(source) = source.and_then(Value::as_object) else {
        return Ok(None);
    };
    if source.len() > 1 {
        let detail = Detail::body("INCOMPATIBLE_PARAMETER_VALUE", "/payment_source");
        return Err(Problem::unprocessable(vec![detail]));
    }
    if source.contains_key("card") {
        return Err(Problem::business("NOT_ENABLED_FOR_CARD_PROCESSING"));
    }
    if source.contains_key("token") {
        return Err(Problem::business("BILLING_AGREEMENT_NOT_FOUND"));
    }
    match source.get("paypal") {
        Some(wallet) => Ok(Some(wallet.clone())),
        None if source.is_empty() => Ok(None),
        None => Err(Problem::business("PAYMENT_SOURCE_CANNOT_BE_USED")),
    }
}

fn new_order(call: &Call<'_>, intent: Intent, units: Vec<Unit>, wallet: Option<Value>) -> Order {
    let url = |name: &str| {
        let modern = wallet
            .as_ref()
            .and_then(|wallet| wallet.pointer(&format!("/experience_context/{name}")));
        let old = call.body.pointer(&format!("/application_context/{name}"));
        modern.or(old).and_then(Value::as_str).map(str::to_owned)
    };
    Order {
        id: ids::transaction(),
        intent,
        status: if wallet.is_some() {
            OrderStatus::PayerActionRequired
        } else {
            OrderStatus::Created
        },
        units,
        return_url: url("return_url"),
        cancel_url: url("cancel_url"),
        wallet,
        payer: None,
        vaulted: false,
        saved_token: None,
        attempts: 0,
        created: call.now,
        updated: call.now,
        expires: plus_seconds(call.now, ORDER_LIFE_SECONDS),
    }
}

/// The payer behind a saved wallet, if it can still be charged.
fn vaulted_payer(world: &World, vault_id: &str) -> Result<Payer, Problem> {
    let token = world.payment_tokens.get(vault_id);
    match token.map(|token| (token.state, &token.payer)) {
        Some((TokenState::Live, payer)) => Ok(payer.clone()),
        Some((TokenState::Revoked, _)) => Err(Problem::business("AGREEMENT_ALREADY_CANCELLED")),
        Some((TokenState::Deleted, _)) | None => Err(Problem::business("TOKEN_ID_NOT_FOUND")),
    }
}

/// Charges (or holds) on a saved wallet within the create call.
fn charge(call: &mut Call<'_>, mut order: Order, vault_id: &str) -> Result<Outcome, Problem> {
    let initiator = order
        .wallet
        .as_ref()
        .and_then(|wallet| wallet.pointer("/stored_credential/payment_initiator"))
        .and_then(Value::as_str);
    if initiator == Some("MERCHANT") && order.units.len() > 1 {
        let issue = "MERCHANT_INITIATED_WITH_MULTIPLE_PURCHASE_UNITS";
        return Err(Problem::business(issue));
    }
    check_usage(&order, initiator)?;
    let payer = vaulted_payer(call.world, vault_id)?;
    settle::check_invoices(call, &order)?;
    let decision = call.decision()?;
    order.vaulted = true;
    let id = order.id.clone();
    if decision == Some(Effect::PayerAction) {
        call.world.orders.insert(id.clone(), order);
        return created(id);
    }
    order.payer = Some(payer);
    for unit in &mut order.units {
        unit.approved = Some(unit.amount);
    }
    order.status = OrderStatus::Approved;
    call.world.orders.insert(id.clone(), order);
    settle::execute(call, &id, decision);
    created(id)
}

/// `FIRST` is for a payer who is present.
fn check_usage(order: &Order, initiator: Option<&str>) -> Result<(), Problem> {
    let usage = order
        .wallet
        .as_ref()
        .and_then(|wallet| wallet.pointer("/stored_credential/usage"))
        .and_then(Value::as_str);
    if usage == Some("FIRST") && initiator == Some("MERCHANT") {
        let field = "/payment_source/paypal/stored_credential/usage";
        let detail = Detail::body("INCOMPATIBLE_PARAMETER_VALUE", field).value("FIRST");
        return Err(Problem::unprocessable(vec![detail]));
    }
    Ok(())
}

/// The order of this id, unless it ran out: PayPal then knows it no more.
pub(crate) fn existing<'a>(world: &'a World, id: &str) -> Result<&'a Order, Problem> {
    world.orders.get(id).ok_or_else(Problem::unknown_id)
}

/// `GET /v2/checkout/orders/{id}`.
pub(crate) fn get(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let id = call.id();
    existing(call.world, &id)?;
    call.refusal()?;
    Ok(Outcome::Resource { resource: Resource::Order(id), created: false })
}

/// `POST /v2/checkout/orders/{id}/confirm-payment-source`: the wallet is named, the payer must
/// still approve.
pub(crate) fn confirm(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    call.check(&schemas::ORDER_CONFIRM)?;
    let id = call.id();
    match existing(call.world, &id)?.status {
        OrderStatus::Completed => return Err(Problem::business("ORDER_CANNOT_BE_CONFIRMED")),
        OrderStatus::Approved => return Err(Problem::business("PAYMENT_ALREADY_APPROVED")),
        _ => {}
    }
    let Some(wallet) = wallet_of(call.body.get("payment_source"))? else {
        return Err(Problem::business("NO_PAYMENT_SOURCE_PROVIDED"));
    };
    call.refusal()?;
    let now = call.now;
    if let Some(order) = call.world.orders.get_mut(&id) {
        for (slot, name) in
            [(&mut order.return_url, "return_url"), (&mut order.cancel_url, "cancel_url")]
        {
            let url =
                wallet.pointer(&format!("/experience_context/{name}")).and_then(Value::as_str);
            if let Some(url) = url {
                *slot = Some(url.to_owned());
            }
        }
        order.wallet = Some(wallet);
        order.status = OrderStatus::PayerActionRequired;
        order.updated = now;
    }
    Ok(Outcome::Resource { resource: Resource::Order(id), created: false })
}

/// The payer agrees to an order.
pub(crate) fn approve(world: &mut World, id: &str, payer: Payer, now: Timestamp) {
    if let Some(order) = world.orders.get_mut(id) {
        order.status = OrderStatus::Approved;
        order.payer = Some(payer);
        order.updated = now;
        order.expires = plus_seconds(now, ORDER_LIFE_SECONDS);
        for unit in &mut order.units {
            unit.approved = Some(unit.amount);
        }
    }
    announce(world, "CHECKOUT.ORDER.APPROVED", id, now);
}

/// Tells the merchant about an order. Real events carry an empty `breakdown` where there is
/// none, which is what breaks naive signature checks, so these do too.
pub(crate) fn announce(world: &mut World, event: &'static str, id: &str, now: Timestamp) {
    let Some(order) = world.orders.get(id) else {
        return;
    };
    let mut body = render::order(world, order);
    if let Some(units) = body.get_mut("purchase_units").and_then(Value::as_array_mut) {
        for unit in units {
            if let Some(amount) = unit.get_mut("amount").and_then(Value::as_object_mut) {
                amount.entry("breakdown").or_insert_with(|| json!({}));
            }
        }
    }
    world.emit(event, body, now);
}

/// Orders run out three hours after creation, or after approval.
pub(crate) fn expire(world: &mut World, now: Timestamp) {
    let gone: Vec<(String, OrderStatus, Timestamp)> = world
        .orders
        .values()
        .filter(|order| order.status.is_open() && order.expires <= now)
        .map(|order| (order.id.clone(), order.status, order.expires))
        .collect();
    for (id, status, at) in gone {
        if status == OrderStatus::Approved {
            announce(world, "CHECKOUT.PAYMENT-APPROVAL.REVERSED", &id, at);
        }
        world.orders.remove(&id);
    }
}

/// Whether a payer who agreed to `approved` must come back for `wanted`: more than 15 % or
/// 75.00 above it.
pub(crate) fn needs_new_approval(approved: Money, wanted: Money) -> bool {
    let by_share = approved.minor.saturating_mul(115) / 100;
    let by_sum = approved.minor.saturating_add(75_000_000 / approved.currency.micros_per_minor());
    wanted.minor > by_share.min(by_sum)
}
