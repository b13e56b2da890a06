//! Shipment trackers of an order. Digital sellers have no use for them, but official clients
//! know the calls.

use serde_json::{Value, json};

use crate::answer::{Detail, Outcome, Problem, Resource};
use crate::call::Call;
use crate::clock::rfc3339;
use crate::schemas;
use crate::world::CaptureStatus;

use super::existing;

/// `POST /v2/checkout/orders/{id}/track`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    call.check(&schemas::TRACK)?;
    let id = call.id();
    existing(call.world, &id)?;
    let capture_id = call.text("capture_id").unwrap_or_default();
    let capture = call.world.captures.get(&capture_id);
    let Some(capture) = capture.filter(|capture| capture.order_id == id) else {
        let detail = Detail::body("CAPTURE_ID_NOT_FOUND", "/capture_id").value(capture_id);
        return Err(Problem::unprocessable(vec![detail]));
    };
    if capture.status != CaptureStatus::Completed {
        return Err(Problem::business("CAPTURE_STATUS_NOT_VALID"));
    }
    let at = capture.unit;
    call.refusal()?;
    let number = call.text("tracking_number").unwrap_or_default();
    let tracker_id = format!("{capture_id}-{number}");
    let path = format!("/v2/checkout/orders/{id}/trackers/{tracker_id}");
    let tracker = json!({
        "id": tracker_id,
        "status": "SHIPPED",
        "items": [],
        "links": [
            {"href": call.world.href(&format!("/v2/checkout/orders/{id}")), "rel": "up", "method": "GET"},
            {"href": call.world.href(&path), "rel": "update", "method": "PATCH"},
        ],
        "create_time": rfc3339(call.now),
        "update_time": rfc3339(call.now),
    });
    let unit = call.world.orders.get_mut(&id).and_then(|order| order.units.get_mut(at));
    if let Some(unit) = unit {
        unit.trackers.push(tracker);
    }
    Ok(Outcome::Resource { resource: Resource::Order(id), created: true })
}

/// `PATCH /v2/checkout/orders/{id}/trackers/{tracker_id}`.
pub(crate) fn patch(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    call.check(&schemas::PATCH)?;
    let id = call.id();
    existing(call.world, &id)?;
    call.refusal()?;
    let tracker_id = call.ids.get(1).cloned().unwrap_or_default();
    let changes = call.body.as_array().cloned().unwrap_or_default();
    let now = rfc3339(call.now);
    let tracker = call
        .world
        .orders
        .get_mut(&id)
        .into_iter()
        .flat_map(|order| order.units.iter_mut())
        .flat_map(|unit| unit.trackers.iter_mut())
        .find(|tracker| tracker.get("id").and_then(Value::as_str) == Some(tracker_id.as_str()))
        .and_then(Value::as_object_mut);
    let Some(tracker) = tracker else {
        return Err(Problem::by_issue("TRACKER_ID_NOT_FOUND", "orders.trackers.patch"));
    };
    for change in changes {
        let path = change.get("path").and_then(Value::as_str);
        let value = change.get("value").cloned().unwrap_or_default();
        match path {
            Some("/status") if value == "CANCELLED" || value == "SHIPPED" => {
                tracker.insert("status".into(), value);
            }
            Some("/items" | "/notify_payer") => {}
            _ => {
                return Err(Problem::invalid(vec![Detail::body("FIELD_NOT_PATCHABLE", "/0/path")]));
            }
        }
    }
    tracker.insert("update_time".into(), json!(now));
    Ok(Outcome::Empty)
}
