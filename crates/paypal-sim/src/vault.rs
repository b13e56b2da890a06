//! Vault v3: setup tokens that a payer approves, payment tokens that can be charged.

use serde_json::{Map, Value, json};

use crate::answer::{Detail, Outcome, Problem, Resource};
use crate::call::Call;
use crate::clock::plus_seconds;
use crate::config::Payer;
use crate::world::{
    PaymentToken, SETUP_TOKEN_LIFE_SECONDS, SetupStatus, SetupToken, TokenState, World,
};
use crate::{ids, render, schemas};

fn text_at(value: &Value, pointer: &str) -> Option<String> {
    value.pointer(pointer).and_then(Value::as_str).map(str::to_owned)
}

/// `POST /v3/vault/setup-tokens`.
pub(crate) fn create_setup(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    call.check(&schemas::SETUP_TOKEN)?;
    let Some(wallet) = call.body.pointer("/payment_source/paypal").cloned() else {
        return Err(not_this_source(call));
    };
    for name in ["return_url", "cancel_url"] {
        if text_at(&wallet, &format!("/experience_context/{name}")).is_none() {
            let field = format!("/payment_source/paypal/experience_context/{name}");
            let detail = Detail::body("MISSING_REQUIRED_PARAMETER", field);
            return Err(Problem::invalid(vec![detail]));
        }
    }
    call.refusal()?;
    let id = ids::transaction();
    let token = SetupToken {
        id: id.clone(),
        status: SetupStatus::PayerActionRequired,
        customer_id: text_at(&call.body, "/customer/id").unwrap_or_else(ids::customer),
        merchant_customer_id: text_at(&call.body, "/customer/merchant_customer_id"),
        return_url: text_at(&wallet, "/experience_context/return_url"),
        cancel_url: text_at(&wallet, "/experience_context/cancel_url"),
        wallet: wallet.as_object().cloned().unwrap_or_default(),
        payer: None,
        expires: plus_seconds(call.now, SETUP_TOKEN_LIFE_SECONDS),
    };
    call.world.setup_tokens.insert(id.clone(), token);
    Ok(Outcome::Resource { resource: Resource::SetupToken(id), created: true })
}

/// Only PayPal wallets can be saved here; an account without card vaulting says so.
fn not_this_source(call: &Call<'_>) -> Problem {
    let given = call
        .body
        .get("payment_source")
        .and_then(Value::as_object)
        .and_then(|sources| sources.keys().next().cloned());
    match given {
        Some(name) => Problem::unprocessable(vec![Detail::body(
            "NOT_ENABLED_TO_VAULT_PAYMENT_SOURCE",
            format!("/payment_source/{name}"),
        )]),
        None => {
            Problem::invalid(vec![Detail::body("MISSING_REQUIRED_PARAMETER", "/payment_source")])
        }
    }
}

/// `GET /v3/vault/setup-tokens/{id}`.
pub(crate) fn get_setup(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let id = call.id();
    if !call.world.setup_tokens.contains_key(&id) {
        return Err(Problem::unknown_id());
    }
    call.refusal()?;
    Ok(Outcome::Resource { resource: Resource::SetupToken(id), created: false })
}

/// `POST /v3/vault/payment-tokens`.
pub(crate) fn create_token(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    call.check(&schemas::PAYMENT_TOKEN)?;
    let Some(setup_id) = text_at(&call.body, "/payment_source/token/id") else {
        return Err(not_this_source(call));
    };
    let setup = match text_at(&call.body, "/payment_source/token/type").as_deref() {
        Some("SETUP_TOKEN") => call.world.setup_tokens.get(&setup_id).cloned(),
        _ => None,
    };
    let Some(setup) = setup else {
        return Err(Problem::unknown_id());
    };
    let payer = match (setup.status, setup.payer) {
        (SetupStatus::Approved, Some(payer)) => payer,
        (SetupStatus::Vaulted, _) => return Err(Problem::business("SETUP_TOKEN_ALREADY_USED")),
        _ => return Err(Problem::business("SETUP_TOKEN_NOT_APPROVED")),
    };
    call.refusal()?;
    let id = save(call.world, setup.customer_id, setup.merchant_customer_id, setup.wallet, payer);
    if let Some(setup) = call.world.setup_tokens.get_mut(&setup_id) {
        setup.status = SetupStatus::Vaulted;
    }
    announce(call.world, "VAULT.PAYMENT-TOKEN.CREATED", &id, call.now);
    Ok(Outcome::Resource { resource: Resource::PaymentToken(id), created: true })
}

/// Keeps a wallet and returns the id it can be charged by.
pub(crate) fn save(
    world: &mut World,
    customer_id: String,
    merchant_customer_id: Option<String>,
    wallet: Map<String, Value>,
    payer: Payer,
) -> String {
    let id = ids::payment_token();
    world.payment_tokens.insert(
        id.clone(),
        PaymentToken {
            id: id.clone(),
            state: TokenState::Live,
            customer_id,
            merchant_customer_id,
            wallet,
            payer,
        },
    );
    id
}

/// Whether this payer already has a wallet saved with the merchant.
pub(crate) fn has_saved(world: &World, payer: &Payer) -> bool {
    world
        .payment_tokens
        .values()
        .any(|token| token.state == TokenState::Live && token.payer.payer_id == payer.payer_id)
}

pub(crate) fn announce(world: &mut World, event: &'static str, id: &str, now: jiff::Timestamp) {
    if let Some(body) =
        world.payment_tokens.get(id).map(|token| render::payment_token(world, token))
    {
        world.emit(event, body, now);
    }
}

fn live<'a>(world: &'a World, id: &str) -> Option<&'a PaymentToken> {
    world.payment_tokens.get(id).filter(|token| token.state == TokenState::Live)
}

/// `GET /v3/vault/payment-tokens/{id}`.
pub(crate) fn get_token(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let id = call.id();
    if live(call.world, &id).is_none() {
        return Err(Problem::unknown_id());
    }
    call.refusal()?;
    Ok(Outcome::Resource { resource: Resource::PaymentToken(id), created: false })
}

/// `DELETE /v3/vault/payment-tokens/{id}`.
pub(crate) fn delete(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let id = call.id();
    if live(call.world, &id).is_none() {
        return Err(Problem::unknown_id());
    }
    call.refusal()?;
    end(call.world, &id, TokenState::Deleted, call.now);
    Ok(Outcome::Empty)
}

/// Ends a saved wallet, by the merchant or by the payer; false if there is no live one.
pub(crate) fn end(world: &mut World, id: &str, state: TokenState, now: jiff::Timestamp) -> bool {
    let Some(token) =
        world.payment_tokens.get_mut(id).filter(|token| token.state == TokenState::Live)
    else {
        return false;
    };
    token.state = state;
    announce(world, "VAULT.PAYMENT-TOKEN.DELETED", id, now);
    true
}

/// `GET /v3/vault/payment-tokens?customer_id=…`.
pub(crate) fn list(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let Some(customer_id) = call.request.parameter("customer_id") else {
        return Err(Problem::invalid(vec![Detail {
            issue: "MISSING_REQUIRED_PARAMETER".to_owned(),
            field: Some("customer_id".to_owned()),
            location: Some("query"),
            ..Detail::default()
        }]));
    };
    call.refusal()?;
    let number = |name: &str, default: usize, most: usize| {
        call.request
            .parameter(name)
            .and_then(|text| text.parse::<usize>().ok())
            .unwrap_or(default)
            .clamp(1, most)
    };
    let page_size = number("page_size", 5, 5);
    let page = number("page", 1, 10);
    let all: Vec<Value> = call
        .world
        .payment_tokens
        .values()
        .filter(|token| token.state == TokenState::Live && token.customer_id == customer_id)
        .map(|token| render::payment_token(call.world, token))
        .collect();
    let total = all.len();
    let shown: Vec<Value> = all.into_iter().skip((page - 1) * page_size).take(page_size).collect();
    let query = format!("customer_id={customer_id}&page_size={page_size}&page={page}");
    let href = call.world.href(&format!("/v3/vault/payment-tokens?{query}"));
    let mut body = json!({
        "customer": {"id": customer_id},
        "payment_tokens": shown,
        "links": [{"href": href, "rel": "self", "method": "GET"}],
    });
    let totals_wanted = call.request.parameter("total_required").as_deref() == Some("true");
    // PayPal's schema has no zero for the totals, so they are left out of an empty list.
    if totals_wanted
        && total > 0
        && let Some(body) = body.as_object_mut()
    {
        body.insert("total_items".into(), json!(total));
        body.insert("total_pages".into(), json!(total.div_ceil(page_size)));
    }
    Ok(Outcome::Json { status: 200, body })
}
