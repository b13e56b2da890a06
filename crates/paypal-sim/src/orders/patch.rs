//! JSON Patch of an order that is not yet paid.

use serde_json::{Map, Value};

use crate::answer::{Detail, Outcome, Problem};
use crate::call::Call;
use crate::check::{Rule, breaches};
use crate::schemas;
use crate::world::{Intent, Order, OrderStatus};

use super::{amounts, existing};

/// `PATCH /v2/checkout/orders/{id}`: all operations or none.
pub(crate) fn patch(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    call.check(&schemas::PATCH)?;
    let id = call.id();
    let mut order = existing(call.world, &id)?.clone();
    if matches!(order.status, OrderStatus::Completed | OrderStatus::Voided) {
        return Err(Problem::business("ORDER_ALREADY_COMPLETED"));
    }
    let operations = call.body.as_array().cloned().unwrap_or_default();
    for (at, operation) in operations.iter().enumerate() {
        apply(&mut order, at, operation)?;
    }
    for unit in &mut order.units {
        let body = Value::Object(unit.body.clone());
        unit.amount =
            amounts::unit_amount(&unit.reference_id, &body).map_err(Problem::unprocessable)?;
    }
    call.refusal()?;
    order.updated = call.now;
    call.world.orders.insert(id, order);
    Ok(Outcome::Empty)
}

/// One unprocessable operation.
fn refused(issue: &str, at: usize, member: &str) -> Problem {
    Problem::unprocessable(vec![Detail::body(issue, format!("/{at}/{member}"))])
}

/// One operation that breaks the patch rules themselves.
fn malformed(issue: &str, at: usize, member: &str) -> Problem {
    Problem::invalid(vec![Detail::body(issue, format!("/{at}/{member}"))])
}

fn apply(order: &mut Order, at: usize, operation: &Value) -> Result<(), Problem> {
    let text = |name: &str| operation.get(name).and_then(Value::as_str);
    let path = text("path").unwrap_or_default();
    if path.is_empty() {
        return Err(refused("PATCH_PATH_REQUIRED", at, "path"));
    }
    if !path.starts_with('/') {
        return Err(refused("INVALID_JSON_POINTER_FORMAT", at, "path"));
    }
    let op = text("op").unwrap_or_default();
    let value = operation.get("value");
    if value.is_none() && op != "remove" {
        return Err(refused("PATCH_VALUE_REQUIRED", at, "value"));
    }
    if path == "/intent" {
        return patch_intent(order, at, value);
    }
    let Some((reference, rest)) = unit_path(path) else {
        return Err(refused("NOT_PATCHABLE", at, "path"));
    };
    let Some(unit) = order.units.iter_mut().find(|unit| unit.reference_id == reference) else {
        return Err(refused("REFERENCE_ID_NOT_FOUND", at, "path"));
    };
    let Some(rule) = rule_of(rest) else {
        return Err(malformed("FIELD_NOT_PATCHABLE", at, "path"));
    };
    if let (Some(rule), Some(value)) = (rule, value)
        && let Some(breach) = breaches(rule, value).into_iter().next()
    {
        return Err(malformed(&breach.issue, at, "value"));
    }
    set(&mut unit.body, rest, op, value.cloned())
        .map_err(|()| malformed("INVALID_PATCH_OPERATION", at, "op"))
}

fn patch_intent(order: &mut Order, at: usize, value: Option<&Value>) -> Result<(), Problem> {
    let value = value.cloned().unwrap_or_default();
    if let Some(breach) = breaches(schemas::PATCHED_INTENT, &value).into_iter().next() {
        return Err(malformed(&breach.issue, at, "value"));
    }
    order.intent = if value == "AUTHORIZE" { Intent::Authorize } else { Intent::Capture };
    Ok(())
}

/// Splits `/purchase_units/@reference_id=='x'/amount` into `x` and `amount`.
fn unit_path(path: &str) -> Option<(&str, &str)> {
    let filter = path.strip_prefix("/purchase_units/@reference_id==")?;
    let (quoted, rest) = filter.split_once("'/").unwrap_or((filter, ""));
    let reference = quoted.strip_prefix('\'')?;
    Some((reference.trim_end_matches('\''), rest))
}

/// What may be patched in a unit, and how its new value must look. The inner `None` accepts any
/// value.
#[allow(
    clippy::option_option,
    reason = "outer: may it be patched; inner: is there a rule for the value"
)]
fn rule_of(rest: &str) -> Option<Option<&'static Rule>> {
    Some(match rest {
        "amount" => Some(schemas::PATCHED_AMOUNT),
        "items" => Some(schemas::PATCHED_ITEMS),
        "description" | "custom_id" | "invoice_id" => Some(schemas::PATCHED_TEXT),
        "soft_descriptor" => Some(schemas::PATCHED_DESCRIPTOR),
        "shipping/address" => Some(schemas::PATCHED_ADDRESS),
        "shipping/name" => Some(schemas::PATCHED_NAME),
        "shipping/options" | "shipping/type" | "payment_instruction" | "supplementary_data" => None,
        _ => return None,
    })
}

/// Adds, replaces or removes a member; an error if the member is (not) there when it must (not)
/// be.
fn set(
    body: &mut Map<String, Value>,
    rest: &str,
    op: &str,
    value: Option<Value>,
) -> Result<(), ()> {
    if let Some((outer, inner)) = rest.split_once('/') {
        let nested = body.entry(outer).or_insert_with(|| Value::Object(Map::new()));
        return nested.as_object_mut().map_or(Err(()), |nested| set(nested, inner, op, value));
    }
    match (op, value) {
        ("add", Some(value)) => body.insert(rest.to_owned(), value),
        ("replace", Some(value)) if body.contains_key(rest) => body.insert(rest.to_owned(), value),
        ("remove", _) if body.contains_key(rest) && rest != "amount" => body.remove(rest),
        _ => return Err(()),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_addressed_by_reference() {
        let path = "/purchase_units/@reference_id=='default'/shipping/address";
        assert_eq!(unit_path(path), Some(("default", "shipping/address")));
        assert_eq!(unit_path("/payer/name"), None);
    }
}
