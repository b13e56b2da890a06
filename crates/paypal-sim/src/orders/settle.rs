//! Turning an approved order into captures or holds.

use serde_json::Value;

use crate::answer::{Detail, Outcome, Problem, Resource};
use crate::call::Call;
use crate::faults::Effect;
use crate::payments::{self, NewCapture, Standing};
use crate::world::{Intent, Order, OrderStatus};
use crate::{schemas, vault};

use super::{announce, existing, needs_new_approval, vaulted_payer, wallet_of};

/// How often a declined order may be tried.
const MOST_ATTEMPTS: u32 = 10;

/// `POST /v2/checkout/orders/{id}/capture`.
pub(crate) fn capture(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    pay(call, Intent::Capture)
}

/// `POST /v2/checkout/orders/{id}/authorize`.
pub(crate) fn authorize(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    pay(call, Intent::Authorize)
}

fn pay(call: &mut Call<'_>, wanted: Intent) -> Result<Outcome, Problem> {
    call.check(&schemas::ORDER_PAY)?;
    let id = call.id();
    let order = existing(call.world, &id)?.clone();
    if order.intent != wanted {
        return Err(action_differs(order.intent));
    }
    check_state(&order, wanted)?;
    let order = name_source(call, order)?;
    if order.status != OrderStatus::Approved {
        return Err(Problem::business("ORDER_NOT_APPROVED"));
    }
    check_invoices(call, &order)?;
    let raised = order
        .units
        .iter()
        .any(|unit| unit.approved.is_some_and(|agreed| needs_new_approval(agreed, unit.amount)));
    let decision = decide(call, &id)?;
    if raised || decision == Some(Effect::PayerAction) {
        send_back(call, &id);
        return Err(Problem::business("PAYER_ACTION_REQUIRED"));
    }
    execute(call, &id, decision);
    Ok(Outcome::Resource { resource: Resource::Order(id), created: true })
}

/// The catalogue only has a text for one direction.
fn action_differs(intent: Intent) -> Problem {
    let description = (intent == Intent::Authorize).then(|| {
        "Order was created with an intent to 'AUTHORIZE'. Please use v2/checkout/orders/order_id/authorize to complete the transaction or alternately Create an order with an intent of 'CAPTURE'.".to_owned()
    });
    Problem::unprocessable(vec![Detail {
        issue: "ACTION_DOES_NOT_MATCH_INTENT".to_owned(),
        description,
        ..Detail::default()
    }])
}

fn check_state(order: &Order, wanted: Intent) -> Result<(), Problem> {
    match (order.status, wanted) {
        (OrderStatus::Completed, Intent::Capture) => {
            Err(Problem::business("ORDER_ALREADY_CAPTURED"))
        }
        (OrderStatus::Completed, Intent::Authorize) => {
            Err(Problem::business("ORDER_ALREADY_AUTHORIZED"))
        }
        (OrderStatus::Voided, _) => Err(Problem::business("ORDER_COMPLETED_OR_VOIDED")),
        _ if order.attempts >= MOST_ATTEMPTS => {
            Err(Problem::business("MAX_NUMBER_OF_PAYMENT_ATTEMPTS_EXCEEDED"))
        }
        _ => Ok(()),
    }
}

/// A `payment_source` in the call itself can stand in for the payer's approval.
fn name_source(call: &mut Call<'_>, mut order: Order) -> Result<Order, Problem> {
    let Some(wallet) = wallet_of(call.body.get("payment_source"))? else {
        return Ok(order);
    };
    let Some(vault_id) = wallet.get("vault_id").and_then(Value::as_str) else {
        return Ok(order);
    };
    let payer = vaulted_payer(call.world, vault_id)?;
    order.payer = Some(payer);
    order.vaulted = true;
    order.status = OrderStatus::Approved;
    order.wallet = Some(wallet);
    for unit in &mut order.units {
        unit.approved = Some(unit.amount);
    }
    call.world.orders.insert(order.id.clone(), order.clone());
    Ok(order)
}

/// The account setting that blocks a second payment under one invoice id.
pub(crate) fn check_invoices(call: &Call<'_>, order: &Order) -> Result<(), Problem> {
    if !call.world.config.unique_invoices {
        return Ok(());
    }
    let taken = |invoice: &String| {
        call.world.capture_invoices.get(invoice).is_some_and(|owner| *owner != order.id)
    };
    for unit in &order.units {
        if let Some(invoice) = unit.text("invoice_id").filter(taken) {
            let field =
                format!("/purchase_units/@reference_id=='{}'/invoice_id", unit.reference_id);
            let detail = Detail::body("DUPLICATE_INVOICE_ID", field).value(invoice);
            return Err(Problem::unprocessable(vec![detail]));
        }
    }
    Ok(())
}

/// Asks the fault switches; a decline the payer can mend sends the order back to them.
fn decide(call: &mut Call<'_>, id: &str) -> Result<Option<Effect>, Problem> {
    call.decision().inspect_err(|problem| {
        let issue = problem.details.first().map(|detail| detail.issue.as_str());
        if let Some(order) = call.world.orders.get_mut(id) {
            order.attempts += 1;
        }
        if matches!(
            issue,
            Some(
                "INSTRUMENT_DECLINED"
                    | "PAYER_ACTION_REQUIRED"
                    | "REDIRECT_PAYER_FOR_ALTERNATE_FUNDING"
            )
        ) {
            send_back(call, id);
        }
    })
}

/// Puts an order back before its payer.
fn send_back(call: &mut Call<'_>, id: &str) {
    if let Some(order) = call.world.orders.get_mut(id) {
        order.status = OrderStatus::PayerActionRequired;
        order.wallet.get_or_insert_with(|| Value::Object(serde_json::Map::new()));
        order.updated = call.now;
    }
}

/// Carries out an approved order. From here nothing can fail any more.
pub(crate) fn execute(call: &mut Call<'_>, id: &str, decision: Option<Effect>) {
    let Some(order) = call.world.orders.get(id).cloned() else {
        return;
    };
    let Some(payer) = order.payer.clone() else {
        return;
    };
    let standing = Standing::of(decision, "PENDING_REVIEW");
    for (at, unit) in order.units.iter().enumerate() {
        match order.intent {
            Intent::Capture => {
                let fee = call.fee_on(unit.amount);
                payments::add_capture(
                    call,
                    NewCapture {
                        order_id: order.id.clone(),
                        unit: at,
                        authorization_id: None,
                        amount: unit.amount,
                        final_capture: true,
                        invoice_id: unit.text("invoice_id"),
                        custom_id: unit.text("custom_id"),
                        note: None,
                        payer: payer.clone(),
                        vaulted: order.vaulted,
                        fee,
                    },
                    &standing,
                );
            }
            Intent::Authorize => {
                payments::add_authorization(call, &order, at, &standing);
            }
        }
    }
    save_wallet(call, &order);
    let now = call.now;
    if let Some(order) = call.world.orders.get_mut(id) {
        order.status = OrderStatus::Completed;
        order.updated = now;
    }
    if order.intent == Intent::Capture {
        announce(call.world, "CHECKOUT.ORDER.COMPLETED", id, now);
    }
}

/// `attributes.vault.store_in_vault`: saving the wallet while paying with it.
fn save_wallet(call: &mut Call<'_>, order: &Order) {
    let Some(wallet) = &order.wallet else {
        return;
    };
    let Some(wish) = wallet.pointer("/attributes/vault").and_then(Value::as_object) else {
        return;
    };
    let Some(payer) = order.payer.clone() else {
        return;
    };
    if !wish.contains_key("store_in_vault") {
        return;
    }
    let customer = wallet
        .pointer("/attributes/customer/id")
        .and_then(Value::as_str)
        .map_or_else(crate::ids::customer, str::to_owned);
    let mut kept = wish.clone();
    kept.remove("store_in_vault");
    let token = vault::save(call.world, customer, None, kept, payer);
    vault::announce(call.world, "VAULT.PAYMENT-TOKEN.CREATED", &token, call.now);
    if let Some(order) = call.world.orders.get_mut(&order.id) {
        order.saved_token = Some(token);
    }
}
