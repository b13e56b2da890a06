//! Resources as PayPal prints them.

use serde_json::{Map, Value, json};

use crate::answer::Resource;
use crate::clock::rfc3339;
use crate::config::Payer;
use crate::money::Money;
use crate::world::{
    Authorization, AuthorizationStatus, Capture, Order, OrderStatus, PaymentToken, Refund,
    RefundStatus, SetupStatus, SetupToken, Unit, World,
};

/// The resource as it is now; the minimal form has only id, status and links. Nothing if it no
/// longer exists.
pub(crate) fn resource(world: &World, resource: &Resource, full: bool) -> Option<Value> {
    let value = match resource {
        Resource::Order(id) => world.orders.get(id).map(|it| order(world, it)),
        Resource::Authorization(id) | Resource::Void(id) => {
            world.authorizations.get(id).map(|it| authorization(world, it))
        }
        Resource::Capture(id) => world.captures.get(id).map(|it| capture(world, it)),
        Resource::Refund(id) => world.refunds.get(id).map(|it| refund(world, it)),
        // Vault has no minimal form.
        Resource::SetupToken(id) => {
            return world.setup_tokens.get(id).map(|it| setup_token(world, it));
        }
        Resource::PaymentToken(id) => {
            return world.payment_tokens.get(id).map(|it| payment_token(world, it));
        }
    }?;
    Some(if full { value } else { minimal(value) })
}

fn minimal(value: Value) -> Value {
    let Value::Object(members) = value else {
        return value;
    };
    let kept =
        members.into_iter().filter(|(name, _)| matches!(name.as_str(), "id" | "status" | "links"));
    Value::Object(kept.collect())
}

fn link(world: &World, path: &str, rel: &str, method: &str) -> Value {
    json!({"href": world.href(path), "rel": rel, "method": method})
}

/// Inserts a member unless it is absent.
fn put(map: &mut Map<String, Value>, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        map.insert(name.to_owned(), value.into());
    }
}

/// A PayPal order.
pub(crate) fn order(world: &World, order: &Order) -> Value {
    let mut map = Map::new();
    map.insert("id".into(), json!(order.id));
    map.insert("intent".into(), json!(order.intent.name()));
    map.insert("status".into(), json!(order.status.name()));
    put(&mut map, "payment_source", payment_source(world, order));
    let units: Vec<Value> = order.units.iter().map(|it| unit(world, it)).collect();
    map.insert("purchase_units".into(), Value::Array(units));
    put(&mut map, "payer", order.payer.as_ref().map(payer));
    map.insert("create_time".into(), json!(rfc3339(order.created)));
    map.insert("update_time".into(), json!(rfc3339(order.updated)));
    map.insert("links".into(), order_links(world, order));
    Value::Object(map)
}

fn payment_source(world: &World, order: &Order) -> Option<Value> {
    if order.wallet.is_none() && order.payer.is_none() {
        return None;
    }
    let mut wallet = Map::new();
    if let Some(payer) = &order.payer {
        wallet.insert("email_address".into(), json!(payer.email));
        wallet.insert("account_id".into(), json!(payer.payer_id));
        wallet.insert("account_status".into(), json!("VERIFIED"));
        wallet.insert("name".into(), name(payer));
        wallet.insert("address".into(), json!({"country_code": payer.country}));
    }
    if let Some(token) = order.saved_token.as_ref().and_then(|id| world.payment_tokens.get(id)) {
        let path = format!("/v3/vault/payment-tokens/{}", token.id);
        wallet.insert(
            "attributes".into(),
            json!({"vault": {
                "id": token.id,
                "status": "VAULTED",
                "customer": {"id": token.customer_id},
                "links": [link(world, &path, "self", "GET"), link(world, &path, "delete", "DELETE")],
            }}),
        );
    }
    Some(json!({"paypal": wallet}))
}

fn name(payer: &Payer) -> Value {
    json!({"given_name": payer.given_name, "surname": payer.surname})
}

fn payer(payer: &Payer) -> Value {
    json!({
        "name": name(payer),
        "email_address": payer.email,
        "payer_id": payer.payer_id,
        "address": {"country_code": payer.country},
    })
}

fn payee(world: &World) -> Value {
    let merchant = &world.config.merchant;
    json!({"email_address": merchant.email, "merchant_id": merchant.merchant_id})
}

fn unit(world: &World, unit: &Unit) -> Value {
    let mut map = unit.body.clone();
    map.insert("reference_id".into(), json!(unit.reference_id));
    map.insert("payee".into(), payee(world));
    let mut payments = Map::new();
    let authorizations: Vec<Value> = unit
        .authorizations
        .iter()
        .filter_map(|id| world.authorizations.get(id))
        .map(|it| authorization(world, it))
        .collect();
    let captures: Vec<Value> = unit
        .captures
        .iter()
        .filter_map(|id| world.captures.get(id))
        .map(|it| capture(world, it))
        .collect();
    let refunds: Vec<Value> = unit
        .refunds
        .iter()
        .filter_map(|id| world.refunds.get(id))
        .map(|it| refund(world, it))
        .collect();
    for (name, list) in
        [("authorizations", authorizations), ("captures", captures), ("refunds", refunds)]
    {
        if !list.is_empty() {
            payments.insert(name.to_owned(), Value::Array(list));
        }
    }
    if !payments.is_empty() {
        map.insert("payments".into(), Value::Object(payments));
    }
    if !unit.trackers.is_empty() {
        let mut shipping =
            map.get("shipping").and_then(Value::as_object).cloned().unwrap_or_default();
        shipping.insert("trackers".into(), json!(unit.trackers));
        map.insert("shipping".into(), Value::Object(shipping));
    }
    Value::Object(map)
}

fn order_links(world: &World, order: &Order) -> Value {
    let path = format!("/v2/checkout/orders/{}", order.id);
    let page = format!("/checkoutnow?token={}", order.id);
    let action = order.intent.name().to_ascii_lowercase();
    let settle = format!("{path}/{action}");
    let mut links = vec![link(world, &path, "self", "GET")];
    match order.status {
        OrderStatus::Created => {
            links.push(link(world, &page, "approve", "GET"));
            links.push(link(world, &path, "update", "PATCH"));
            links.push(link(world, &settle, &action, "POST"));
        }
        OrderStatus::PayerActionRequired => links.push(link(world, &page, "payer-action", "GET")),
        OrderStatus::Approved => {
            links.push(link(world, &path, "update", "PATCH"));
            links.push(link(world, &settle, &action, "POST"));
        }
        OrderStatus::Completed | OrderStatus::Voided => {}
    }
    Value::Array(links)
}

/// A hold.
pub(crate) fn authorization(world: &World, it: &Authorization) -> Value {
    let mut map = Map::new();
    map.insert("id".into(), json!(it.id));
    map.insert("status".into(), json!(it.status.name()));
    if let Some(reason) = &it.reason {
        map.insert("status_details".into(), json!({"reason": reason}));
    }
    map.insert("amount".into(), it.amount.json());
    put(&mut map, "invoice_id", it.invoice_id.clone());
    put(&mut map, "custom_id", it.custom_id.clone());
    map.insert("seller_protection".into(), json!({"status": "NOT_ELIGIBLE"}));
    map.insert("expiration_time".into(), json!(rfc3339(it.expires)));
    map.insert("payee".into(), payee(world));
    map.insert("supplementary_data".into(), json!({"related_ids": {"order_id": it.order_id}}));
    map.insert("create_time".into(), json!(rfc3339(it.created)));
    map.insert("update_time".into(), json!(rfc3339(it.updated)));
    let path = format!("/v2/payments/authorizations/{}", it.id);
    let mut links = vec![link(world, &path, "self", "GET")];
    let open =
        matches!(it.status, AuthorizationStatus::Created | AuthorizationStatus::PartiallyCaptured);
    if open && !it.closed {
        for verb in ["capture", "void", "reauthorize"] {
            links.push(link(world, &format!("{path}/{verb}"), verb, "POST"));
        }
    }
    let up = format!("/v2/checkout/orders/{}", it.order_id);
    links.push(link(world, &up, "up", "GET"));
    map.insert("links".into(), Value::Array(links));
    Value::Object(map)
}

fn breakdown(gross: Money, fee: Money) -> Value {
    json!({
        "gross_amount": gross.json(),
        "paypal_fee": fee.json(),
        "net_amount": gross.with_minor(gross.minor.saturating_sub(fee.minor)).json(),
    })
}

/// A capture. While it is pending its fee is not known, so there is no breakdown.
pub(crate) fn capture(world: &World, it: &Capture) -> Value {
    let mut map = Map::new();
    map.insert("id".into(), json!(it.id));
    map.insert("status".into(), json!(it.status.name()));
    if let Some(reason) = &it.reason {
        map.insert("status_details".into(), json!({"reason": reason}));
    }
    map.insert("amount".into(), it.amount.json());
    map.insert("final_capture".into(), json!(it.final_capture));
    put(&mut map, "invoice_id", it.invoice_id.clone());
    put(&mut map, "custom_id", it.custom_id.clone());
    put(&mut map, "note_to_payer", it.note.clone());
    map.insert("seller_protection".into(), json!({"status": "NOT_ELIGIBLE"}));
    if let Some(fee) = it.fee {
        map.insert("seller_receivable_breakdown".into(), breakdown(it.amount, fee));
    }
    let mut related = Map::new();
    related.insert("order_id".into(), json!(it.order_id));
    put(&mut related, "authorization_id", it.authorization_id.clone());
    map.insert("supplementary_data".into(), json!({"related_ids": related}));
    map.insert("payee".into(), payee(world));
    map.insert("create_time".into(), json!(rfc3339(it.created)));
    map.insert("update_time".into(), json!(rfc3339(it.updated)));
    let path = format!("/v2/payments/captures/{}", it.id);
    let up = match &it.authorization_id {
        Some(id) => format!("/v2/payments/authorizations/{id}"),
        None => format!("/v2/checkout/orders/{}", it.order_id),
    };
    let links = vec![
        link(world, &path, "self", "GET"),
        link(world, &format!("{path}/refund"), "refund", "POST"),
        link(world, &up, "up", "GET"),
    ];
    map.insert("links".into(), Value::Array(links));
    Value::Object(map)
}

/// A refund. PayPal returns none of its fee.
pub(crate) fn refund(world: &World, it: &Refund) -> Value {
    let mut map = Map::new();
    map.insert("id".into(), json!(it.id));
    map.insert("status".into(), json!(it.status.name()));
    if let Some(reason) = &it.reason {
        map.insert("status_details".into(), json!({"reason": reason}));
    }
    map.insert("amount".into(), it.amount.json());
    put(&mut map, "invoice_id", it.invoice_id.clone());
    put(&mut map, "custom_id", it.custom_id.clone());
    put(&mut map, "note_to_payer", it.note.clone());
    if it.status != RefundStatus::Failed {
        let mut parts = breakdown(it.amount, it.amount.with_minor(0));
        if let Some(parts) = parts.as_object_mut() {
            let total = refunded_up_to(world, it);
            parts.insert("total_refunded_amount".into(), total.json());
        }
        map.insert("seller_payable_breakdown".into(), parts);
    }
    if let Some(capture) = world.captures.get(&it.capture_id) {
        map.insert(
            "payer".into(),
            json!({"email_address": capture.payer.email, "merchant_id": capture.payer.payer_id}),
        );
    }
    map.insert("create_time".into(), json!(rfc3339(it.created)));
    map.insert("update_time".into(), json!(rfc3339(it.updated)));
    let path = format!("/v2/payments/refunds/{}", it.id);
    let up = format!("/v2/payments/captures/{}", it.capture_id);
    let links = vec![link(world, &path, "self", "GET"), link(world, &up, "up", "GET")];
    map.insert("links".into(), Value::Array(links));
    Value::Object(map)
}

/// What was refunded of the capture up to and including this refund.
fn refunded_up_to(world: &World, it: &Refund) -> Money {
    let mut minor = 0_i64;
    if let Some(capture) = world.captures.get(&it.capture_id) {
        for refund in capture.refunds.iter().filter_map(|id| world.refunds.get(id)) {
            if refund.status != RefundStatus::Failed {
                minor = minor.saturating_add(refund.amount.minor);
            }
            if refund.id == it.id {
                break;
            }
        }
    }
    it.amount.with_minor(minor)
}

fn customer(id: &str, merchant_customer_id: Option<&String>) -> Value {
    let mut map = Map::new();
    map.insert("id".into(), json!(id));
    put(&mut map, "merchant_customer_id", merchant_customer_id.cloned());
    Value::Object(map)
}

/// The wallet as it was described, without what only steers the approval page.
fn wallet(described: &Map<String, Value>, payer: Option<&Payer>) -> Value {
    let mut map = described.clone();
    map.remove("experience_context");
    if let Some(payer) = payer {
        map.insert("email_address".into(), json!(payer.email));
        map.insert("payer_id".into(), json!(payer.payer_id));
        map.insert("account_id".into(), json!(payer.payer_id));
        map.insert("name".into(), name(payer));
        map.insert("address".into(), json!({"country_code": payer.country}));
    }
    Value::Object(map)
}

/// A setup token.
pub(crate) fn setup_token(world: &World, it: &SetupToken) -> Value {
    let path = format!("/v3/vault/setup-tokens/{}", it.id);
    let page = format!("/agreements/approve?approval_session_id={}", it.id);
    let mut links = Vec::new();
    match it.status {
        SetupStatus::PayerActionRequired => {
            links.push(link(world, &page, "approve", "GET"));
            links.push(link(world, "/v3/vault/payment-tokens", "confirm", "POST"));
        }
        SetupStatus::Approved => {
            links.push(link(world, "/v3/vault/payment-tokens", "confirm", "POST"));
        }
        SetupStatus::Vaulted => {}
    }
    links.push(link(world, &path, "self", "GET"));
    json!({
        "id": it.id,
        "status": it.status.name(),
        "customer": customer(&it.customer_id, it.merchant_customer_id.as_ref()),
        "payment_source": {"paypal": wallet(&it.wallet, it.payer.as_ref())},
        "links": links,
    })
}

/// A saved wallet.
pub(crate) fn payment_token(world: &World, it: &PaymentToken) -> Value {
    let path = format!("/v3/vault/payment-tokens/{}", it.id);
    json!({
        "id": it.id,
        "customer": customer(&it.customer_id, it.merchant_customer_id.as_ref()),
        "payment_source": {"paypal": wallet(&it.wallet, Some(&it.payer))},
        "links": [link(world, &path, "self", "GET"), link(world, &path, "delete", "DELETE")],
    })
}
