//! Payments v2: holds and captures.

use jiff::Timestamp;
use serde_json::Value;

use crate::answer::{Detail, Outcome, Problem, Resource};
use crate::books::{Row, RowKind, RowStatus};
use crate::call::Call;
use crate::clock::plus_seconds;
use crate::config::Payer;
use crate::faults::{Effect, Ending};
use crate::money::Money;
use crate::orders::amounts;
use crate::world::{
    AUTHORIZATION_LIFE_SECONDS, Authorization, AuthorizationStatus, Capture, CaptureStatus, Order,
    OrderStatus, World,
};
use crate::{ids, render, schemas};

/// How long capture is promised to work; a hold can be renewed afterwards.
const HONOR_SECONDS: i64 = 3 * 86_400;

/// How a new payment begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    Completed,
    Pending { reason: String, then: Ending, after_seconds: Option<u32> },
    Denied,
}

impl Standing {
    /// What the fault of a call makes of it.
    pub(crate) fn of(decision: Option<Effect>, usual_reason: &str) -> Self {
        match decision {
            Some(Effect::Pending { reason, then, after_seconds }) => Self::Pending {
                reason: reason.unwrap_or_else(|| usual_reason.to_owned()),
                then,
                after_seconds,
            },
            Some(Effect::Denied) => Self::Denied,
            _ => Self::Completed,
        }
    }

    /// `status_details.reason`, where there is one.
    pub(crate) fn reason(&self) -> Option<String> {
        match self {
            Self::Pending { reason, .. } => Some(reason.clone()),
            _ => None,
        }
    }
}

/// A capture about to be made.
pub(crate) struct NewCapture {
    pub(crate) order_id: String,
    pub(crate) unit: usize,
    pub(crate) authorization_id: Option<String>,
    pub(crate) amount: Money,
    pub(crate) final_capture: bool,
    pub(crate) invoice_id: Option<String>,
    pub(crate) custom_id: Option<String>,
    pub(crate) note: Option<String>,
    pub(crate) payer: Payer,
    pub(crate) vaulted: bool,
    pub(crate) fee: Money,
}

/// Status of a new capture, of its row, and the event that tells of it.
fn beginning(standing: &Standing) -> (CaptureStatus, RowStatus, &'static str) {
    match standing {
        Standing::Completed => {
            (CaptureStatus::Completed, RowStatus::Success, "PAYMENT.CAPTURE.COMPLETED")
        }
        Standing::Pending { .. } => {
            (CaptureStatus::Pending, RowStatus::Pending, "PAYMENT.CAPTURE.PENDING")
        }
        Standing::Denied => {
            (CaptureStatus::Declined, RowStatus::Denied, "PAYMENT.CAPTURE.DECLINED")
        }
    }
}

fn capture_row(new: &NewCapture, id: &str, status: RowStatus, now: Timestamp) -> Row {
    let code = if new.vaulted { "T0003" } else { "T0006" };
    let mut row = Row::new(
        id.to_owned(),
        RowKind::Capture,
        code,
        new.payer.payer_id.clone(),
        new.amount,
        new.fee,
        status,
        now,
    );
    row.reference_id.clone_from(&new.authorization_id);
    row.order_id = Some(new.order_id.clone());
    row.invoice_id.clone_from(&new.invoice_id);
    row.custom_id.clone_from(&new.custom_id);
    row
}

/// Makes a capture: the resource, the row in the books, the event. Returns its id.
pub(crate) fn add_capture(call: &mut Call<'_>, new: NewCapture, standing: &Standing) -> String {
    let now = call.now;
    let id = ids::transaction();
    let (status, row_status, event) = beginning(standing);
    let world = &mut *call.world;
    world.books.post(capture_row(&new, &id, row_status, now));
    if status != CaptureStatus::Declined
        && let Some(invoice) = &new.invoice_id
    {
        world.capture_invoices.entry(invoice.clone()).or_insert_with(|| new.order_id.clone());
    }
    if let Some(unit) =
        world.orders.get_mut(&new.order_id).and_then(|order| order.units.get_mut(new.unit))
    {
        unit.captures.push(id.clone());
    }
    let capture = Capture {
        id: id.clone(),
        order_id: new.order_id,
        unit: new.unit,
        authorization_id: new.authorization_id,
        status,
        reason: standing.reason(),
        amount: new.amount,
        final_capture: new.final_capture,
        invoice_id: new.invoice_id,
        custom_id: new.custom_id,
        note: new.note,
        fee: (status == CaptureStatus::Completed).then_some(new.fee),
        fee_to_come: new.fee,
        payer: new.payer,
        refunds: Vec::new(),
        reversed: 0,
        created: now,
        updated: now,
    };
    world.captures.insert(id.clone(), capture);
    announce_capture(world, event, &id, now);
    if let Standing::Pending { then, after_seconds, .. } = standing {
        world.end_later(Resource::Capture(id.clone()), *then, *after_seconds, now);
    }
    id
}

pub(crate) fn announce_capture(world: &mut World, event: &'static str, id: &str, at: Timestamp) {
    if let Some(body) = world.captures.get(id).map(|it| render::capture(world, it)) {
        world.emit(event, body, at);
    }
}

fn announce_authorization(world: &mut World, event: &'static str, id: &str, at: Timestamp) {
    if let Some(body) = world.authorizations.get(id).map(|it| render::authorization(world, it)) {
        world.emit(event, body, at);
    }
}

/// Makes a hold for one unit of an order.
pub(crate) fn add_authorization(
    call: &mut Call<'_>,
    order: &Order,
    at: usize,
    standing: &Standing,
) {
    let Some(unit) = order.units.get(at) else {
        return;
    };
    let now = call.now;
    let status = match standing {
        Standing::Completed => AuthorizationStatus::Created,
        Standing::Pending { .. } => AuthorizationStatus::Pending,
        Standing::Denied => AuthorizationStatus::Denied,
    };
    let hold = Authorization {
        id: ids::transaction(),
        order_id: order.id.clone(),
        unit: at,
        status,
        reason: standing.reason(),
        amount: unit.amount,
        invoice_id: unit.text("invoice_id"),
        custom_id: unit.text("custom_id"),
        parent: None,
        closed: false,
        expired: false,
        captures: Vec::new(),
        created: now,
        updated: now,
        expires: plus_seconds(now, AUTHORIZATION_LIFE_SECONDS),
    };
    let id = hold.id.clone();
    let payer_id = order.payer.as_ref().map(|payer| payer.payer_id.clone()).unwrap_or_default();
    keep_hold(call.world, hold, payer_id);
    if let Standing::Pending { then, after_seconds, .. } = standing {
        call.world.end_later(Resource::Authorization(id), *then, *after_seconds, now);
    }
}

fn keep_hold(world: &mut World, hold: Authorization, payer_id: String) {
    let (id, now) = (hold.id.clone(), hold.created);
    let status = match hold.status {
        AuthorizationStatus::Pending => RowStatus::Pending,
        AuthorizationStatus::Denied => RowStatus::Denied,
        _ => RowStatus::Success,
    };
    let nothing = hold.amount.with_minor(0);
    let mut row = Row::new(
        id.clone(),
        RowKind::Authorization,
        if hold.parent.is_some() { "T1301" } else { "T1300" },
        payer_id,
        hold.amount,
        nothing,
        status,
        now,
    );
    row.reference_id.clone_from(&hold.parent);
    row.order_id = Some(hold.order_id.clone());
    row.invoice_id.clone_from(&hold.invoice_id);
    row.custom_id.clone_from(&hold.custom_id);
    world.books.post(row);
    if let Some(unit) =
        world.orders.get_mut(&hold.order_id).and_then(|order| order.units.get_mut(hold.unit))
    {
        unit.authorizations.push(id.clone());
    }
    let created = hold.status == AuthorizationStatus::Created;
    world.authorizations.insert(id.clone(), hold);
    if created {
        announce_authorization(world, "PAYMENT.AUTHORIZATION.CREATED", &id, now);
    }
}

fn hold<'a>(world: &'a World, id: &str) -> Result<&'a Authorization, Problem> {
    world.authorizations.get(id).ok_or_else(Problem::unknown_id)
}

/// `GET /v2/payments/authorizations/{id}`.
pub(crate) fn get_authorization(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let id = call.id();
    hold(call.world, &id)?;
    call.refusal()?;
    Ok(Outcome::Resource { resource: Resource::Authorization(id), created: false })
}

/// `GET /v2/payments/captures/{id}`.
pub(crate) fn get_capture(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let id = call.id();
    if !call.world.captures.contains_key(&id) {
        return Err(Problem::unknown_id());
    }
    call.refusal()?;
    Ok(Outcome::Resource { resource: Resource::Capture(id), created: false })
}

/// An amount in the body; positive, or the refusal.
pub(crate) fn amount_in(call: &Call<'_>) -> Result<Option<Money>, Problem> {
    let Some(value) = call.body.get("amount") else {
        return Ok(None);
    };
    let money =
        amounts::money(value, "/amount").map_err(|detail| Problem::unprocessable(vec![detail]))?;
    if money.minor <= 0 {
        let detail =
            Detail::body("CANNOT_BE_ZERO_OR_NEGATIVE", "/amount/value").value(money.value());
        return Err(Problem::unprocessable(vec![detail]));
    }
    Ok(Some(money))
}

/// The hold a chain of renewals began with.
fn root_of(world: &World, hold: &Authorization) -> String {
    let parent = hold.parent.as_ref();
    parent.filter(|id| world.authorizations.contains_key(*id)).unwrap_or(&hold.id).clone()
}

/// Everything captured on a hold and its renewals, declined captures left out.
fn captured(world: &World, root: &str) -> (i64, usize) {
    let of_family = |hold: &&Authorization| hold.id == root || hold.parent.as_deref() == Some(root);
    let captures: Vec<&Capture> = world
        .authorizations
        .values()
        .filter(of_family)
        .flat_map(|hold| hold.captures.iter())
        .filter_map(|id| world.captures.get(id))
        .filter(|capture| capture.status != CaptureStatus::Declined)
        .collect();
    let minor = captures.iter().map(|capture| capture.amount.minor).sum();
    (minor, captures.len())
}

/// The most PayPal lets through: 115 %, and at most 75.00 above.
fn most_above(amount: Money) -> i64 {
    let by_share = amount.minor.saturating_mul(115) / 100;
    let by_sum = amount.minor.saturating_add(75_000_000 / amount.currency.micros_per_minor());
    by_share.min(by_sum)
}

/// Why nothing can be captured from a hold in this state.
fn why_closed(hold: &Authorization) -> Option<&'static str> {
    if hold.expired {
        return Some("AUTHORIZATION_EXPIRED");
    }
    match hold.status {
        AuthorizationStatus::Voided => Some("AUTHORIZATION_VOIDED"),
        AuthorizationStatus::Denied => Some("AUTHORIZATION_DENIED"),
        AuthorizationStatus::Captured => Some("AUTHORIZATION_ALREADY_CAPTURED"),
        // PayPal has no issue of its own for a hold still under review.
        AuthorizationStatus::Pending => Some("TRANSACTION_REFUSED"),
        _ if hold.closed => Some("AUTHORIZATION_ALREADY_CAPTURED"),
        _ => None,
    }
}

/// `POST /v2/payments/authorizations/{id}/capture`.
pub(crate) fn capture(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    call.check(&schemas::CAPTURE)?;
    let id = call.id();
    let hold = hold(call.world, &id)?.clone();
    if let Some(issue) = why_closed(&hold) {
        return Err(Problem::business(issue));
    }
    let root = root_of(call.world, &hold);
    let (taken, count) = captured(call.world, &root);
    let left = hold.amount.with_minor((hold.amount.minor - taken).max(0));
    let amount = amount_in(call)?.unwrap_or(left);
    if amount.currency != hold.amount.currency {
        return Err(Problem::business("AUTH_CAPTURE_CURRENCY_MISMATCH"));
    }
    let total = taken.saturating_add(amount.minor);
    if total > hold.amount.minor {
        call.violation(
            "capture_above_hold",
            format!("{} would be captured on a hold of {}", amount.with_minor(total), hold.amount),
        );
    }
    if total > most_above(hold.amount) {
        return Err(Problem::business("MAX_CAPTURE_AMOUNT_EXCEEDED"));
    }
    if count >= call.world.config.max_captures {
        return Err(Problem::business("MAX_CAPTURE_COUNT_EXCEEDED"));
    }
    let invoice_id = call.text("invoice_id").or_else(|| hold.invoice_id.clone());
    check_invoice(call.world, invoice_id.as_ref(), &hold.order_id)?;
    let decision = call.decision()?;
    let standing = Standing::of(decision, "PENDING_REVIEW");
    let final_capture = call.body.get("final_capture") == Some(&Value::Bool(true));
    let fee = call.fee_on(amount);
    let payer = payer_of(call.world, &hold.order_id);
    let new = NewCapture {
        order_id: hold.order_id.clone(),
        unit: hold.unit,
        authorization_id: Some(id.clone()),
        amount,
        final_capture,
        invoice_id,
        custom_id: hold.custom_id.clone(),
        note: call.text("note_to_payer"),
        payer,
        vaulted: false,
        fee,
    };
    let capture_id = add_capture(call, new, &standing);
    if standing != Standing::Denied {
        after_capture(call, &id, &capture_id, total, final_capture);
    }
    Ok(Outcome::Resource { resource: Resource::Capture(capture_id), created: true })
}

fn after_capture(call: &mut Call<'_>, id: &str, capture_id: &str, total: i64, final_capture: bool) {
    let final_is_captured = call.world.config.final_partial_is_captured;
    if let Some(hold) = call.world.authorizations.get_mut(id) {
        hold.captures.push(capture_id.to_owned());
        hold.closed |= final_capture;
        let full = total >= hold.amount.minor;
        hold.status = if full || (final_capture && final_is_captured) {
            AuthorizationStatus::Captured
        } else {
            AuthorizationStatus::PartiallyCaptured
        };
        hold.updated = call.now;
    }
}

fn payer_of(world: &World, order_id: &str) -> Payer {
    world
        .orders
        .get(order_id)
        .and_then(|order| order.payer.clone())
        .unwrap_or_else(|| world.config.buyer.clone())
}

fn check_invoice(
    world: &World,
    invoice_id: Option<&String>,
    order_id: &str,
) -> Result<(), Problem> {
    let owner = invoice_id.and_then(|invoice| world.capture_invoices.get(invoice));
    if world.config.unique_invoices && owner.is_some_and(|owner| owner != order_id) {
        return Err(Problem::business("DUPLICATE_INVOICE_ID"));
    }
    Ok(())
}

/// `POST /v2/payments/authorizations/{id}/void`.
pub(crate) fn void(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let id = call.id();
    let hold = hold(call.world, &id)?;
    if hold.parent.is_some() {
        return Err(Problem::business("CANNOT_BE_VOIDED"));
    }
    match hold.status {
        AuthorizationStatus::Captured => return Err(Problem::business("PREVIOUSLY_CAPTURED")),
        AuthorizationStatus::Voided | AuthorizationStatus::Denied => {
            return Err(Problem::business("PREVIOUSLY_VOIDED"));
        }
        _ if hold.closed => return Err(Problem::business("PREVIOUSLY_CAPTURED")),
        _ => {}
    }
    call.refusal()?;
    void_family(call.world, &id, call.now, false);
    Ok(Outcome::Resource { resource: Resource::Void(id), created: false })
}

/// Voids a hold and its renewals. What was captured stands.
pub(crate) fn void_family(world: &mut World, root: &str, at: Timestamp, expired: bool) {
    let family: Vec<String> = world
        .authorizations
        .values()
        .filter(|hold| hold.id == root || hold.parent.as_deref() == Some(root))
        .filter(|hold| is_open(hold))
        .map(|hold| hold.id.clone())
        .collect();
    for id in family {
        void_one(world, &id, at, expired);
    }
}

fn is_open(hold: &Authorization) -> bool {
    !hold.closed
        && matches!(
            hold.status,
            AuthorizationStatus::Created
                | AuthorizationStatus::Pending
                | AuthorizationStatus::PartiallyCaptured
        )
}

fn void_one(world: &mut World, id: &str, at: Timestamp, expired: bool) {
    let Some(hold) = world.authorizations.get_mut(id) else {
        return;
    };
    hold.status = AuthorizationStatus::Voided;
    hold.expired = expired;
    hold.updated = at;
    let order_id = hold.order_id.clone();
    announce_authorization(world, "PAYMENT.AUTHORIZATION.VOIDED", id, at);
    void_order(world, &order_id, at);
}

/// An order whose every hold is void, with nothing captured, is void itself.
fn void_order(world: &mut World, order_id: &str, at: Timestamp) {
    let all_void = world
        .authorizations
        .values()
        .filter(|hold| hold.order_id == order_id)
        .all(|hold| hold.status == AuthorizationStatus::Voided && hold.captures.is_empty());
    if let Some(order) = world.orders.get_mut(order_id)
        && all_void
    {
        order.status = OrderStatus::Voided;
        order.updated = at;
    }
}

/// Holds end after 29 days. There is no EXPIRED: they show as VOIDED, with that event.
pub(crate) fn expire(world: &mut World, now: Timestamp) {
    let due: Vec<(String, Timestamp)> = world
        .authorizations
        .values()
        .filter(|hold| is_open(hold) && hold.expires <= now)
        .map(|hold| (hold.id.clone(), hold.expires))
        .collect();
    for (id, at) in due {
        void_one(world, &id, at, true);
    }
}

/// `POST /v2/payments/authorizations/{id}/reauthorize`.
pub(crate) fn reauthorize(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    call.check(&schemas::REAUTHORIZE)?;
    let id = call.id();
    let parent = hold(call.world, &id)?.clone();
    if parent.parent.is_some() {
        return Err(Problem::business("REAUTHORIZATION_NOT_SUPPORTED"));
    }
    match why_closed(&parent) {
        Some("AUTHORIZATION_DENIED" | "TRANSACTION_REFUSED") => {
            return Err(Problem::business("TRANSACTION_REFUSED"));
        }
        Some("AUTHORIZATION_EXPIRED") => return Err(Problem::business("AUTHORIZATION_VOIDED")),
        Some(issue) => return Err(Problem::business(issue)),
        None => {}
    }
    if call.now < plus_seconds(parent.created, HONOR_SECONDS) {
        return Err(Problem::business("REAUTHORIZATION_TOO_SOON"));
    }
    let amount = amount_in(call)?.unwrap_or(parent.amount);
    if amount.currency != parent.amount.currency {
        return Err(Problem::business("AUTH_CURRENCY_MISMATCH"));
    }
    // The catalogue of this operation has no issue of its own for too much.
    if amount.minor > most_above(parent.amount) {
        return Err(Problem::business("TRANSACTION_REFUSED"));
    }
    call.refusal()?;
    let renewed = Authorization {
        id: ids::transaction(),
        status: AuthorizationStatus::Created,
        reason: None,
        amount,
        parent: Some(id),
        captures: Vec::new(),
        created: call.now,
        updated: call.now,
        // Never beyond the life of the first hold.
        expires: parent.expires,
        ..parent
    };
    let new_id = renewed.id.clone();
    let payer_id = payer_of(call.world, &renewed.order_id).payer_id;
    keep_hold(call.world, renewed, payer_id);
    Ok(Outcome::Resource { resource: Resource::Authorization(new_id), created: true })
}

/// A pending capture ends; false if it is not pending.
pub(crate) fn end_capture(world: &mut World, id: &str, then: Ending, at: Timestamp) -> bool {
    let Some(capture) =
        world.captures.get_mut(id).filter(|capture| capture.status == CaptureStatus::Pending)
    else {
        return false;
    };
    let fee = capture.fee_to_come;
    capture.reason = None;
    capture.updated = at;
    let (status, event) = match then {
        Ending::Completed => {
            capture.status = CaptureStatus::Completed;
            capture.fee = Some(fee);
            (RowStatus::Success, "PAYMENT.CAPTURE.COMPLETED")
        }
        Ending::Declined => {
            capture.status = CaptureStatus::Declined;
            (RowStatus::Denied, "PAYMENT.CAPTURE.DENIED")
        }
    };
    let declined = status == RowStatus::Denied;
    let (order_id, invoice) = (capture.order_id.clone(), capture.invoice_id.clone());
    world.books.settle(id, status, fee, at);
    if declined {
        free_invoice(world, invoice.as_ref(), &order_id);
    }
    announce_capture(world, event, id, at);
    true
}

/// A payment that failed leaves its invoice id free again, unless another one of the same order
/// stands.
fn free_invoice(world: &mut World, invoice: Option<&String>, order_id: &str) {
    let Some(invoice) = invoice else {
        return;
    };
    let still_used = world.captures.values().any(|capture| {
        capture.order_id == order_id
            && capture.invoice_id.as_ref() == Some(invoice)
            && capture.status != CaptureStatus::Declined
    });
    if !still_used {
        world.capture_invoices.remove(invoice);
    }
}

/// A hold under review is decided; false if it is not under review.
pub(crate) fn end_authorization(world: &mut World, id: &str, then: Ending, at: Timestamp) -> bool {
    let Some(hold) =
        world.authorizations.get_mut(id).filter(|hold| hold.status == AuthorizationStatus::Pending)
    else {
        return false;
    };
    hold.reason = None;
    hold.updated = at;
    let nothing = hold.amount.with_minor(0);
    match then {
        Ending::Completed => {
            hold.status = AuthorizationStatus::Created;
            world.books.settle(id, RowStatus::Success, nothing, at);
            announce_authorization(world, "PAYMENT.AUTHORIZATION.CREATED", id, at);
        }
        Ending::Declined => {
            hold.status = AuthorizationStatus::Denied;
            world.books.settle(id, RowStatus::Denied, nothing, at);
            announce_authorization(world, "PAYMENT.AUTHORIZATION.DENIED", id, at);
        }
    }
    true
}
