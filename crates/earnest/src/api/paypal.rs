//! What passed between us and PayPal, and PayPal's webhooks.

use axum::body::Body;
use axum::extract::{Request, State};
use earnest_core::dispute::{Case, Disputed};
use earnest_core::id::{IntentId, PurchaseId, SettlementId, TabId, VaultId};
use earnest_core::intent::{Evidence, Intent, Purpose};
use earnest_core::problem::Code;
use earnest_core::purchase::Purchase;
use earnest_core::reversal::Reversal;
use earnest_core::settlement::{ConfirmNotCharged, Settlement};
use earnest_core::suspense::Suspended;
use earnest_core::vault::Vault;
use earnest_paypal::webhooks::{Delivery, MAX_BODY};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::Instrument as _;
use utoipa::{IntoParams, ToSchema};

use super::auth::{AsOperator, AsOwnerOrOperator, Caller, not_here};
use super::error::{ApiResult, refuse};
use super::read::{Paging, Path, Query, body, id};
use super::view::{List, Problem, text};
use crate::app::App;
use crate::flow::redact;
use crate::flow::webhook::{self as flow, WebhookEvent};

/// A PayPal call and everything learnt about it.
#[derive(Serialize, ToSchema)]
pub struct IntentView {
    /// Its id.
    id: String,
    /// What it is for.
    purpose: Value,
    /// `planned`, `sent`, `pending`, `done`, `declined`, `not_charged`, `refused` or `unknown`.
    status: Value,
    /// `PayPal-Request-Id`.
    key: String,
    /// The invoice id that the resource carries.
    invoice_id: Option<String>,
    /// What it should move.
    amount_micros: Option<i64>,
    /// What is sent, without payer data and vault ids: `operation`, `path`, `body`.
    request: Option<Value>,
    /// SHA-256 of the request's body as it is sent.
    request_sha256: Option<String>,
    /// How often it was sent.
    sends: u32,
    /// When it was first sent.
    first_sent_at: Option<String>,
    /// When it was last sent.
    last_sent_at: Option<String>,
    /// When it is looked at again, while it is open.
    next_at: Option<String>,
    /// PayPal's id of the order.
    paypal_order: Option<String>,
    /// PayPal's id of the capture.
    paypal_capture: Option<String>,
    /// Why it was declined or refused.
    issue: Option<String>,
    /// Answers, reads and searches, oldest first, without payer data.
    evidence: Vec<Value>,
}

fn show(row: &Intent) -> IntentView {
    let value = |value: &dyn erased::ToValue| value.to_value();
    IntentView {
        id: row.id.to_string(),
        purpose: value(&row.purpose),
        status: value(&row.state),
        key: row.key.clone(),
        invoice_id: row.invoice_id.clone(),
        amount_micros: row.amount_micros.map(|amount| amount.get()),
        request: row.request.as_deref().and_then(request),
        request_sha256: row.request_sha256.clone(),
        sends: row.sends,
        first_sent_at: row.first_sent_at.map(|at| at.to_string()),
        last_sent_at: row.last_sent_at.map(|at| at.to_string()),
        next_at: row.state.is_open().then(|| row.next_at.to_string()),
        paypal_order: row.paypal_order.clone(),
        paypal_capture: row.paypal_capture.clone(),
        issue: row.issue.clone(),
        evidence: row.evidence.iter().map(piece).collect(),
    }
}

fn request(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().map(|request| redact::request(&request))
}

/// Redacted once more: what was kept by an earlier version may show more than this one.
fn piece(kept: &Evidence) -> Value {
    let mut shown = serde_json::to_value(kept).unwrap_or_default();
    let operation = kept.said.get("operation").and_then(Value::as_str);
    if let (Some(operation), Some(answer)) =
        (operation.and_then(redact::operation_of), shown.pointer_mut("/said/answer"))
    {
        redact::redact(operation, answer);
    }
    shown
}

/// `Serialize` behind a pointer.
mod erased {
    pub(super) trait ToValue {
        fn to_value(&self) -> serde_json::Value;
    }
    impl<T: serde::Serialize> ToValue for T {
        fn to_value(&self) -> serde_json::Value {
            serde_json::to_value(self).unwrap_or_default()
        }
    }
}

/// What passed for one thing: calls and webhooks.
#[derive(Serialize, ToSchema)]
pub struct Trail {
    /// The calls, newest first.
    intents: Vec<IntentView>,
    /// The webhooks about them, newest first.
    webhooks: Vec<PaypalEventView>,
}

/// A webhook of PayPal's that was verified and kept.
#[derive(Serialize, ToSchema)]
pub struct PaypalEventView {
    /// PayPal's id of the event.
    id: String,
    /// What it says happened.
    event_type: String,
    /// The first transmission it came with.
    transmission_id: String,
    /// `local` or `postback`: how it was found to be PayPal's.
    verified: Option<String>,
    /// SHA-256 of its body.
    body_sha256: String,
    /// The resource it names.
    resource: Option<String>,
    /// The capture it names.
    capture: Option<String>,
    /// The invoice id it names.
    invoice_id: Option<String>,
    /// When it first came.
    received_at: String,
    /// How often it came.
    deliveries: u64,
    /// Whether what it speaks of still has to be read.
    open: bool,
    /// When it is read next, while it is open.
    next_at: Option<String>,
}

fn show_event(row: WebhookEvent) -> PaypalEventView {
    PaypalEventView {
        next_at: row.open.then(|| row.next_at.to_string()),
        verified: row.check.map(|check| check.as_str().to_owned()),
        received_at: row.received_at.to_string(),
        id: row.id,
        event_type: row.event_type,
        transmission_id: row.transmission_id,
        body_sha256: row.body_sha256,
        resource: row.resource,
        capture: row.capture,
        invoice_id: row.invoice,
        deliveries: row.deliveries,
        open: row.open,
    }
}

/// What the trail is asked for; exactly one.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TrailQuery {
    /// `tab_…`
    tab: Option<String>,
    /// `pur_…`
    purchase: Option<String>,
    /// `set_…`
    settlement: Option<String>,
    /// `vlt_…`
    payment_method: Option<String>,
}

/// Every request, answer, debug id, webhook and verification, without payer data.
#[utoipa::path(get, path = "/v1/paypal/trail", tag = "owner", security(("key" = [])), params(TrailQuery),
    responses((status = 200, body = Trail),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn trail(
    State(app): State<App>,
    AsOwnerOrOperator(caller): AsOwnerOrOperator,
    Query(query): Query<TrailQuery>,
) -> ApiResult<axum::Json<Trail>> {
    let rows = intents_of(&app, &caller, &query)?;
    let mut webhooks: Vec<WebhookEvent> = Vec::new();
    for row in &rows {
        let names = [&row.invoice_id, &row.paypal_capture, &row.paypal_order];
        for name in names.into_iter().flatten() {
            let reader = app.store.reader();
            let page =
                reader.list::<WebhookEvent>("webhook_events.about", name, None, 100, true)?;
            for event in page.items {
                if webhooks.iter().all(|known| known.id != event.id) {
                    webhooks.push(event);
                }
            }
        }
    }
    let webhooks = webhooks.into_iter().map(show_event).collect();
    Ok(axum::Json(Trail { intents: rows.iter().map(show).collect(), webhooks }))
}

/// Which of an owner's calls are about the thing asked for.
type Wanted = Box<dyn Fn(&Intent) -> bool>;

fn intents_of(app: &App, caller: &Caller, query: &TrailQuery) -> ApiResult<Vec<Intent>> {
    let reader = app.store.reader();
    let (owner, wanted): (_, Wanted) = match query {
        TrailQuery { tab: Some(text), purchase: None, settlement: None, payment_method: None } => {
            let tab =
                reader.row::<earnest_core::tab::Tab>(id::<TabId>(text)?)?.ok_or_else(not_here)?;
            let part = format!(":{}:", tab.id);
            (tab.owner, Box::new(move |intent| intent.key.contains(&part)))
        }
        TrailQuery { tab: None, purchase: Some(text), settlement: None, payment_method: None } => {
            let row = reader.row::<Purchase>(id::<PurchaseId>(text)?)?.ok_or_else(not_here)?;
            let part = row.tab.map(|tab| format!(":{tab}:"));
            let about =
                move |intent: &Intent| part.as_ref().is_some_and(|part| intent.key.contains(part));
            (row.owner, Box::new(about))
        }
        TrailQuery { tab: None, purchase: None, settlement: Some(text), payment_method: None } => {
            let row = reader.row::<Settlement>(id::<SettlementId>(text)?)?.ok_or_else(not_here)?;
            let purpose = Purpose::Settlement(row.id);
            (row.owner, Box::new(move |intent| intent.purpose == purpose))
        }
        TrailQuery { tab: None, purchase: None, settlement: None, payment_method: Some(text) } => {
            let row = reader.row::<Vault>(id::<VaultId>(text)?)?.ok_or_else(not_here)?;
            let part = format!(":{}:", row.id);
            (row.owner, Box::new(move |intent| intent.key.contains(&part)))
        }
        _ => {
            let why = "name one of `tab`, `purchase`, `settlement`, `payment_method`";
            return Err(refuse(Code::ValidationFailed, why));
        }
    };
    if !caller.sees_owner(owner) {
        return Err(not_here());
    }
    let mut found = Vec::new();
    let mut cursor = None;
    loop {
        let page =
            reader.list::<Intent>("intents", &owner.to_string(), cursor.as_ref(), 500, true)?;
        found.extend(page.items.into_iter().filter(|intent| wanted(intent)));
        cursor = page.next;
        if cursor.is_none() || found.len() >= 500 {
            return Ok(found);
        }
    }
}

/// Calls whose outcome is not known, for the operator.
#[utoipa::path(get, path = "/v1/intents/unknown", tag = "operator", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<IntentView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn intents(
    State(app): State<App>,
    _: AsOperator,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<IntentView>>> {
    let cursor = paging.cursor()?;
    let reader = app.store.reader();
    let page =
        reader.list::<Intent>("intents.unknown", "", cursor.as_ref(), paging.limit()?, true)?;
    Ok(axum::Json(List::of(page, |row| show(&row))))
}

/// The operator's word that a large unknown charge did not happen; counts only together with the
/// evidence of a search.
#[utoipa::path(post, path = "/v1/intents/{id}/confirm-not-charged", tag = "operator", security(("key" = [])),
    params(("id" = String, Path, description = "int_…")),
    responses((status = 200, body = IntentView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn confirm_not_charged(
    State(app): State<App>,
    _: AsOperator,
    Path(text): Path<String>,
) -> ApiResult<axum::Json<IntentView>> {
    let intent = app.store.submit(ConfirmNotCharged { intent: id::<IntentId>(&text)? }).await?;
    app.wake.notify();
    Ok(axum::Json(show(&intent)))
}

/// A payment, or part of one, that matches nothing.
#[derive(Serialize, ToSchema)]
pub struct SuspendedView {
    /// PayPal's id of the capture.
    paypal_capture: String,
    /// `amount_mismatch`, `closed_intent`, `doubtful`, `unasked`, `restored` or `settled_already`.
    why: Value,
    /// What went to suspense.
    amount_micros: i64,
    /// What of it is still there.
    left_micros: i64,
    /// The settlement it speaks of.
    settlement: Option<String>,
    /// The invoice id it carries.
    invoice_id: Option<String>,
    /// When it was booked.
    at: String,
}

/// What is in suspense, for the operator to review. It leaves by itself when a later attempt finds
/// it, when it is refunded in PayPal's pages, or when you say where it belongs.
#[utoipa::path(get, path = "/v1/suspense", tag = "operator", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<SuspendedView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn suspense(
    State(app): State<App>,
    _: AsOperator,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<SuspendedView>>> {
    let cursor = paging.cursor()?;
    let reader = app.store.reader();
    let page =
        reader.list::<Suspended>("suspended.left", "", cursor.as_ref(), paging.limit()?, true)?;
    Ok(axum::Json(List::of(page, show_suspended)))
}

pub(super) fn show_suspended(row: Suspended) -> SuspendedView {
    SuspendedView {
        why: serde_json::to_value(row.why).unwrap_or_default(),
        amount_micros: row.amount_micros.get(),
        left_micros: row.left_micros.get(),
        settlement: row.settlement.map(|id| id.to_string()),
        invoice_id: row.invoice_id,
        at: row.at.to_string(),
        paypal_capture: row.capture,
    }
}

/// A refund or reversal that PayPal made without us.
#[derive(Serialize, ToSchema)]
pub struct GivenBackView {
    /// PayPal's id of it.
    id: String,
    /// What went back to the payer.
    amount_micros: i64,
    /// When it was booked.
    at: String,
}

/// A capture of which something went back, or may have.
#[derive(Serialize, ToSchema)]
pub struct ReversalView {
    /// PayPal's id of the capture.
    paypal_capture: String,
    /// Whose.
    owner: Option<String>,
    /// The settlement it paid.
    settlement: Option<String>,
    /// What is in the books.
    booked: Vec<GivenBackView>,
    /// What PayPal named and is not in the books yet.
    named: Vec<String>,
    /// Whether something still has to be read.
    open: bool,
    /// When to look again, while it is open.
    next_at: Option<String>,
    /// When it was first heard of.
    seen_at: String,
}

/// What went back at PayPal without us, for the operator; its owners are frozen.
#[utoipa::path(get, path = "/v1/reversals", tag = "operator", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<ReversalView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn reversals(
    State(app): State<App>,
    _: AsOperator,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<ReversalView>>> {
    let cursor = paging.cursor()?;
    let reader = app.store.reader();
    let page = reader.list::<Reversal>("reversals", "", cursor.as_ref(), paging.limit()?, true)?;
    Ok(axum::Json(List::of(page, |row| ReversalView {
        owner: row.of.map(|of| of.owner.to_string()),
        settlement: row.of.map(|of| of.settlement.to_string()),
        booked: row
            .booked
            .iter()
            .map(|one| GivenBackView {
                id: one.id.clone(),
                amount_micros: one.amount_micros.get(),
                at: one.at.to_string(),
            })
            .collect(),
        named: row.named,
        open: row.open,
        next_at: row.open.then(|| row.next_at.to_string()),
        seen_at: row.seen_at.to_string(),
        paypal_capture: row.capture,
    })))
}

/// A dispute about a capture.
#[derive(Serialize, ToSchema)]
pub struct CaseView {
    /// PayPal's id of it: answer it in PayPal's own pages.
    id: String,
    /// `open`, `won` or `lost`.
    stage: String,
    /// What is disputed.
    amount_micros: i64,
    /// Why, in PayPal's word.
    reason: Option<String>,
}

/// A capture that its payer disputes, or disputed.
#[derive(Serialize, ToSchema)]
pub struct DisputedView {
    /// PayPal's id of the capture.
    paypal_capture: String,
    /// Whose.
    owner: Option<String>,
    /// The settlement it paid.
    settlement: Option<String>,
    /// The disputes that were read.
    disputes: Vec<CaseView>,
    /// What PayPal withholds for them now.
    withheld_micros: i64,
    /// What may still be lost; counts against what the owner may owe.
    at_risk_micros: i64,
    /// Whether something still has to be read.
    open: bool,
    /// When it was first heard of.
    seen_at: String,
}

/// What payers dispute at PayPal, for the operator; its owners are frozen.
#[utoipa::path(get, path = "/v1/disputes", tag = "operator", security(("key" = [])), params(Paging),
    responses((status = 200, body = List<DisputedView>),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn disputes(
    State(app): State<App>,
    _: AsOperator,
    Query(paging): Query<Paging>,
) -> ApiResult<axum::Json<List<DisputedView>>> {
    let cursor = paging.cursor()?;
    let reader = app.store.reader();
    let page = reader.list::<Disputed>("disputes", "", cursor.as_ref(), paging.limit()?, true)?;
    let case = |case: &Case| CaseView {
        id: case.id.clone(),
        stage: text(&case.stage),
        amount_micros: case.amount_micros.get(),
        reason: case.reason.clone(),
    };
    Ok(axum::Json(List::of(page, |row| DisputedView {
        owner: row.of.map(|of| of.owner.to_string()),
        settlement: row.of.map(|of| of.settlement.to_string()),
        disputes: row.cases.iter().map(case).collect(),
        withheld_micros: row.withheld_micros.saturating_sub(row.released_micros).get(),
        at_risk_micros: row.at_risk().get(),
        open: row.is_open(),
        seen_at: row.seen_at.to_string(),
        paypal_capture: row.capture,
    })))
}

/// PayPal's webhooks: verified over the raw bytes, kept, then acted upon while PayPal already has
/// its answer.
#[utoipa::path(post, path = "/webhooks/paypal", tag = "paypal", request_body = serde_json::Value,
    params(("PayPal-Transmission-Id" = String, Header, description = "And the other four headers of PayPal's signature")),
    responses((status = 200, description = "Kept"),
        (status = "4XX", description = "Not PayPal's", body = Problem, content_type = "application/problem+json"),
        (status = "5XX", description = "Cannot be checked now: send it again", body = Problem, content_type = "application/problem+json")))]
pub async fn webhook(
    State(app): State<App>,
    headers: HeaderMap,
    request: Request<Body>,
) -> ApiResult<StatusCode> {
    let bytes = body(request, MAX_BODY).await?;
    let values = |name: &'static str| headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let delivery = Delivery::new(values, bytes.to_vec());
    let delivery =
        delivery.map_err(|why| refuse(Code::WebhookSignatureInvalid, &why.to_string()))?;
    if let Some(event) = flow::take_in(&app, &delivery).await? {
        let acting = app.clone();
        let task = async move {
            flow::follow_up(&acting, &event).await;
        };
        // What is logged of it belongs to the request that brought the webhook.
        app.tasks.spawn(task.in_current_span());
    }
    Ok(StatusCode::OK)
}
