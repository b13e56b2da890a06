//! Refunds by the merchant, and reversals by PayPal.

use jiff::Timestamp;

use crate::answer::{Outcome, Problem, Resource};
use crate::books::{Row, RowKind, RowStatus};
use crate::call::Call;
use crate::clock::plus_seconds;
use crate::faults::Ending;
use crate::money::Money;
use crate::payments::{Standing, amount_in};
use crate::world::{Capture, CaptureStatus, Refund, RefundStatus, World};
use crate::{ids, render, schemas};

/// How long a capture can be refunded.
const REFUND_WINDOW_SECONDS: i64 = 180 * 86_400;

/// What is left of a capture, in minor units.
pub(crate) fn left_of(world: &World, capture: &Capture) -> i64 {
    let refunded: i64 = capture
        .refunds
        .iter()
        .filter_map(|id| world.refunds.get(id))
        .filter(|refund| refund.status != RefundStatus::Failed)
        .map(|refund| refund.amount.minor)
        .sum();
    (capture.amount.minor - refunded - capture.reversed).max(0)
}

/// `POST /v2/payments/captures/{id}/refund`. Without an amount it returns what is left.
pub(crate) fn refund(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    call.check(&schemas::REFUND)?;
    let id = call.id();
    let capture = call.world.captures.get(&id).cloned();
    let capture = capture.ok_or_else(Problem::unknown_id)?;
    let amount = check(call, &capture)?;
    let decision = call.decision()?;
    let standing = Standing::of(decision, "ECHECK");
    if matches!(standing, Standing::Completed) {
        let balance = call.world.books.balance_at(amount.currency, call.now);
        if balance.minor < amount.minor {
            return Err(Problem::business("REFUND_FAILED_INSUFFICIENT_FUNDS"));
        }
    }
    let refund_id = add(call, &capture, amount, &standing);
    Ok(Outcome::Resource { resource: Resource::Refund(refund_id), created: true })
}

/// Every reason to refuse, in PayPal's order; else the amount to return.
fn check(call: &Call<'_>, capture: &Capture) -> Result<Money, Problem> {
    match capture.status {
        CaptureStatus::Pending => return Err(Problem::business("PENDING_CAPTURE")),
        CaptureStatus::Declined => return Err(Problem::business("REFUND_NOT_ALLOWED")),
        CaptureStatus::Refunded => return Err(Problem::business("CAPTURE_FULLY_REFUNDED")),
        CaptureStatus::Completed | CaptureStatus::PartiallyRefunded => {}
    }
    let left = left_of(call.world, capture);
    if left == 0 {
        return Err(Problem::business("CAPTURE_FULLY_REFUNDED"));
    }
    if call.now > plus_seconds(capture.created, REFUND_WINDOW_SECONDS) {
        return Err(Problem::business("REFUND_TIME_LIMIT_EXCEEDED"));
    }
    let amount = amount_in(call)?.unwrap_or_else(|| capture.amount.with_minor(left));
    if amount.currency != capture.amount.currency {
        return Err(Problem::business("REFUND_CAPTURE_CURRENCY_MISMATCH"));
    }
    if amount.minor > left {
        return Err(Problem::business("REFUND_AMOUNT_EXCEEDED"));
    }
    let invoice = call.text("invoice_id");
    let used = invoice.and_then(|invoice| call.world.refund_invoices.get(&invoice));
    if call.world.config.unique_invoices && used.is_some() {
        return Err(Problem::business("DUPLICATE_INVOICE_ID"));
    }
    Ok(amount)
}

fn add(call: &mut Call<'_>, capture: &Capture, amount: Money, standing: &Standing) -> String {
    let now = call.now;
    let id = ids::transaction();
    let (status, row_status) = match standing {
        Standing::Completed => (RefundStatus::Completed, RowStatus::Success),
        Standing::Pending { .. } => (RefundStatus::Pending, RowStatus::Pending),
        Standing::Denied => (RefundStatus::Failed, RowStatus::Denied),
    };
    let refund = Refund {
        id: id.clone(),
        capture_id: capture.id.clone(),
        status,
        reason: standing.reason(),
        amount,
        invoice_id: call.text("invoice_id"),
        custom_id: call.text("custom_id"),
        note: call.text("note_to_payer"),
        created: now,
        updated: now,
    };
    let world = &mut *call.world;
    post_row(world, &refund, capture, RowKind::Refund, row_status, now);
    if let Some(invoice) = refund.invoice_id.clone()
        && status != RefundStatus::Failed
    {
        world.refund_invoices.insert(invoice, id.clone());
    }
    if let Some(capture) = world.captures.get_mut(&capture.id) {
        capture.refunds.push(id.clone());
    }
    if let Some(unit) =
        world.orders.get_mut(&capture.order_id).and_then(|order| order.units.get_mut(capture.unit))
    {
        unit.refunds.push(id.clone());
    }
    world.refunds.insert(id.clone(), refund);
    match standing {
        Standing::Completed => {
            restate_capture(world, &capture.id, now);
            announce(world, "PAYMENT.CAPTURE.REFUNDED", &id, now);
        }
        Standing::Pending { then, after_seconds, .. } => {
            announce(world, "PAYMENT.REFUND.PENDING", &id, now);
            world.end_later(Resource::Refund(id.clone()), *then, *after_seconds, now);
        }
        Standing::Denied => announce(world, "PAYMENT.REFUND.FAILED", &id, now),
    }
    id
}

fn post_row(
    world: &mut World,
    refund: &Refund,
    capture: &Capture,
    kind: RowKind,
    status: RowStatus,
    at: Timestamp,
) {
    let code = if kind == RowKind::Refund { "T1107" } else { "T1106" };
    let mut row = Row::new(
        refund.id.clone(),
        kind,
        code,
        capture.payer.payer_id.clone(),
        refund.amount.with_minor(-refund.amount.minor),
        refund.amount.with_minor(0),
        status,
        at,
    );
    row.reference_id = Some(capture.id.clone());
    row.order_id = Some(capture.order_id.clone());
    row.invoice_id = refund.invoice_id.clone().or_else(|| capture.invoice_id.clone());
    row.custom_id = refund.custom_id.clone().or_else(|| capture.custom_id.clone());
    world.books.post(row);
}

fn announce(world: &mut World, event: &'static str, id: &str, at: Timestamp) {
    if let Some(body) = world.refunds.get(id).map(|it| render::refund(world, it)) {
        world.emit(event, body, at);
    }
}

/// Sets a capture's status from what is left of it.
pub(crate) fn restate_capture(world: &mut World, id: &str, at: Timestamp) {
    let Some(capture) = world.captures.get(id) else {
        return;
    };
    // A refund still under way does not show on the capture yet.
    let done: i64 = capture
        .refunds
        .iter()
        .filter_map(|id| world.refunds.get(id))
        .filter(|refund| refund.status == RefundStatus::Completed)
        .map(|refund| refund.amount.minor)
        .sum::<i64>()
        + capture.reversed;
    let whole = capture.amount.minor;
    if let Some(capture) = world.captures.get_mut(id) {
        capture.status = match done {
            0 => CaptureStatus::Completed,
            some if some < whole => CaptureStatus::PartiallyRefunded,
            _ => CaptureStatus::Refunded,
        };
        capture.updated = at;
    }
}

/// `GET /v2/payments/refunds/{id}`.
pub(crate) fn get(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let id = call.id();
    if !call.world.refunds.contains_key(&id) {
        return Err(Problem::unknown_id());
    }
    call.refusal()?;
    Ok(Outcome::Resource { resource: Resource::Refund(id), created: false })
}

/// A pending refund ends; false if it is not pending.
pub(crate) fn end(world: &mut World, id: &str, then: Ending, at: Timestamp) -> bool {
    let Some(refund) =
        world.refunds.get_mut(id).filter(|refund| refund.status == RefundStatus::Pending)
    else {
        return false;
    };
    refund.reason = None;
    refund.updated = at;
    let (row_status, event) = match then {
        Ending::Completed => {
            refund.status = RefundStatus::Completed;
            (RowStatus::Success, "PAYMENT.CAPTURE.REFUNDED")
        }
        Ending::Declined => {
            refund.status = RefundStatus::Failed;
            (RowStatus::Denied, "PAYMENT.REFUND.FAILED")
        }
    };
    let (capture_id, nothing) = (refund.capture_id.clone(), refund.amount.with_minor(0));
    if row_status == RowStatus::Denied
        && let Some(invoice) = &refund.invoice_id
    {
        world.refund_invoices.remove(invoice);
    }
    world.books.settle(id, row_status, nothing, at);
    restate_capture(world, &capture_id, at);
    announce(world, event, id, at);
    true
}

/// PayPal takes money back; `minor` of it, or everything left. False if there is nothing left or
/// no such capture.
pub(crate) fn reverse(world: &mut World, id: &str, minor: Option<i64>, at: Timestamp) -> bool {
    let Some(capture) = world.captures.get(id).cloned() else {
        return false;
    };
    let left = left_of(world, &capture);
    let taken = minor.unwrap_or(left);
    if taken <= 0 || taken > left || capture.fee.is_none() {
        return false;
    }
    let reversal = Refund {
        id: ids::transaction(),
        capture_id: id.to_owned(),
        status: RefundStatus::Completed,
        reason: None,
        amount: capture.amount.with_minor(taken),
        invoice_id: None,
        custom_id: None,
        note: None,
        created: at,
        updated: at,
    };
    post_row(world, &reversal, &capture, RowKind::Reversal, RowStatus::Success, at);
    if let Some(capture) = world.captures.get_mut(id) {
        capture.reversed += taken;
    }
    restate_capture(world, id, at);
    let body = render::refund(world, &reversal);
    world.emit("PAYMENT.CAPTURE.REVERSED", body, at);
    true
}
