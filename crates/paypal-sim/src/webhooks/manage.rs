//! Webhooks v1: registrations, events, and verification by postback.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::answer::{Detail, Outcome, Problem};
use crate::call::Call;
use crate::check::{Rule, breaches};
use crate::{ids, schemas};

use super::{EVENT_TYPES, Event, Registration, event_json, sign};

/// Registrations one application may have.
const MOST_WEBHOOKS: usize = 10;

/// A refusal in the words of the v1 APIs.
fn invalid(field: &str, issue: &str) -> Problem {
    let detail = Detail {
        issue: issue.to_owned(),
        field: Some(field.to_owned()),
        location: Some("body"),
        ..Detail::default()
    };
    Problem::classic(400, "VALIDATION_ERROR", "Invalid data provided", vec![detail])
}

fn check(call: &Call<'_>, rule: &Rule) -> Result<(), Problem> {
    let mut found = breaches(rule, &call.body);
    for detail in &mut found {
        detail.field =
            detail.field.take().map(|field| field.trim_start_matches('/').replace('/', "."));
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(Problem::classic(400, "VALIDATION_ERROR", "Invalid data provided", found))
}

fn unknown() -> Problem {
    Problem::classic(404, "INVALID_RESOURCE_ID", "Resource id is invalid", Vec::new())
}

fn registration_json(call: &Call<'_>, it: &Registration) -> Value {
    let path = format!("/v1/notifications/webhooks/{}", it.id);
    let href = call.world.href(&path);
    let types: Vec<Value> = it.event_types.iter().map(|name| type_json(name)).collect();
    json!({
        "id": it.id,
        "url": it.url,
        "event_types": types,
        "links": [
            {"href": href, "rel": "self", "method": "GET"},
            {"href": href, "rel": "update", "method": "PATCH"},
            {"href": href, "rel": "delete", "method": "DELETE"},
        ],
    })
}

fn type_json(name: &str) -> Value {
    match EVENT_TYPES.iter().find(|known| known.name == name) {
        Some(known) => json!({
            "name": known.name,
            "description": known.description,
            "status": "ENABLED",
            "resource_versions": [known.resource_version],
        }),
        None => json!({"name": name, "description": "ALL", "status": "ENABLED"}),
    }
}

/// The event types named in a list of `{"name"}`, if PayPal knows them all.
fn event_types(list: Option<&Value>) -> Result<Vec<String>, Problem> {
    let names: Vec<String> = list
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.get("name").and_then(Value::as_str))
        .map(str::to_owned)
        .collect();
    let known = |name: &String| name == "*" || EVENT_TYPES.iter().any(|it| it.name == name);
    if names.is_empty() || !names.iter().all(known) {
        return Err(invalid("event_types", "Not a valid event type"));
    }
    Ok(names)
}

/// HTTPS on port 443; relaxed for test servers unless configured otherwise.
fn check_url(call: &Call<'_>, url: &str) -> Result<(), Problem> {
    let parsed = url::Url::parse(url).ok();
    let fits = parsed.is_some_and(|url| {
        if call.world.config.relaxed_webhook_urls {
            matches!(url.scheme(), "http" | "https")
        } else {
            url.scheme() == "https" && url.port_or_known_default() == Some(443)
        }
    });
    if fits { Ok(()) } else { Err(invalid("url", "Not a valid webhook URL")) }
}

/// `POST /v1/notifications/webhooks`.
pub(crate) fn create(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    check(call, &schemas::WEBHOOK)?;
    let url = call.text("url").unwrap_or_default();
    check_url(call, &url)?;
    let event_types = event_types(call.body.get("event_types"))?;
    let known = &call.world.post.registrations;
    if known.iter().any(|it| it.url == url) {
        return Err(Problem::classic(
            400,
            "WEBHOOK_URL_ALREADY_EXISTS",
            "Webhook URL already exists",
            Vec::new(),
        ));
    }
    if known.len() >= MOST_WEBHOOKS {
        return Err(Problem::classic(
            400,
            "WEBHOOK_NUMBER_LIMIT_EXCEEDED",
            "You have reached the maximum limit of webhooks",
            Vec::new(),
        ));
    }
    let registration = Registration { id: ids::webhook(), url, event_types };
    let body = registration_json(call, &registration);
    call.world.post.registrations.push(registration);
    Ok(Outcome::Json { status: 201, body })
}

fn registered(call: &Call<'_>, id: &str) -> Result<Registration, Problem> {
    let known = &call.world.post.registrations;
    known.iter().find(|it| it.id == id).cloned().ok_or_else(unknown)
}

/// `GET /v1/notifications/webhooks`.
pub(crate) fn list(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let all: Vec<Value> =
        call.world.post.registrations.iter().map(|it| registration_json(call, it)).collect();
    Ok(Outcome::Json { status: 200, body: json!({"webhooks": all}) })
}

/// `GET /v1/notifications/webhooks/{id}`.
pub(crate) fn get(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let it = registered(call, &call.id())?;
    Ok(Outcome::Json { status: 200, body: registration_json(call, &it) })
}

/// `PATCH /v1/notifications/webhooks/{id}`: only `url` and `event_types`, only `replace`.
pub(crate) fn update(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    check(call, &schemas::PATCH)?;
    let mut it = registered(call, &call.id())?;
    let empty = Vec::new();
    for patch in call.body.as_array().unwrap_or(&empty) {
        let text = |name: &str| patch.get(name).and_then(Value::as_str);
        if text("op") != Some("replace") {
            return Err(invalid("op", "Only replace is supported"));
        }
        match text("path") {
            Some("/url") => {
                let url = text("value").unwrap_or_default().to_owned();
                check_url(call, &url)?;
                it.url = url;
            }
            Some("/event_types") => it.event_types = event_types(patch.get("value"))?,
            _ => return Err(invalid("path", "Not a valid patch path")),
        }
    }
    let body = registration_json(call, &it);
    let known = &mut call.world.post.registrations;
    if let Some(slot) = known.iter_mut().find(|known| known.id == it.id) {
        *slot = it;
    }
    Ok(Outcome::Json { status: 200, body })
}

/// `DELETE /v1/notifications/webhooks/{id}`.
pub(crate) fn delete(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let id = call.id();
    registered(call, &id)?;
    call.world.post.registrations.retain(|it| it.id != id);
    Ok(Outcome::Empty)
}

/// `GET /v1/notifications/webhooks/{id}/event-types`.
pub(crate) fn types_of(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let it = registered(call, &call.id())?;
    let types: Vec<Value> = it.event_types.iter().map(|name| type_json(name)).collect();
    Ok(Outcome::Json { status: 200, body: json!({"event_types": types}) })
}

/// `GET /v1/notifications/webhooks-event-types`.
#[allow(clippy::unnecessary_wraps, reason = "every operation answers with a result")]
pub(crate) fn all_types(_: &mut Call<'_>) -> Result<Outcome, Problem> {
    let types: Vec<Value> = EVENT_TYPES.iter().map(|it| type_json(it.name)).collect();
    Ok(Outcome::Json { status: 200, body: json!({"event_types": types}) })
}

/// `GET /v1/notifications/webhooks-events`, newest first.
pub(crate) fn list_events(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let given = |name: &str| call.request.parameter(name);
    let instant = |name: &str| -> Result<Option<jiff::Timestamp>, Problem> {
        given(name)
            .map(|text| text.parse().map_err(|_| invalid(name, "Not a valid date and time")))
            .transpose()
    };
    let (start, end) = (instant("start_time")?, instant("end_time")?);
    let page_size =
        given("page_size").and_then(|text| text.parse::<usize>().ok()).unwrap_or(10).clamp(1, 300);
    let (transaction, event_type) = (given("transaction_id"), given("event_type"));
    let wanted = |event: &&Event| {
        start.is_none_or(|start| event.created >= start)
            && end.is_none_or(|end| event.created <= end)
            && event_type.as_deref().is_none_or(|name| event.event_type == name)
            && transaction.as_deref().is_none_or(|id| {
                event_json(event).pointer("/resource/id").and_then(Value::as_str) == Some(id)
            })
    };
    let events: Vec<Value> = call
        .world
        .post
        .events
        .iter()
        .rev()
        .filter(wanted)
        .take(page_size)
        .map(event_json)
        .collect();
    let href = call.world.href("/v1/notifications/webhooks-events");
    Ok(Outcome::Json {
        status: 200,
        body: json!({
            "count": events.len(),
            "events": events,
            "links": [{"href": href, "rel": "self", "method": "GET"}],
        }),
    })
}

/// `GET /v1/notifications/webhooks-events/{id}`.
pub(crate) fn get_event(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let event = call.world.post.event(&call.id()).ok_or_else(unknown)?;
    Ok(Outcome::Json { status: 200, body: event_json(event) })
}

/// `POST /v1/notifications/webhooks-events/{id}/resend`.
pub(crate) fn resend(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let event = call.world.post.event(&call.id()).cloned();
    let event = event.ok_or_else(unknown)?;
    let only: Option<Vec<String>> =
        call.body.get("webhook_ids").and_then(|list| serde_json::from_value(list.clone()).ok());
    let now = call.now;
    let post = &mut call.world.post;
    let to: Vec<Registration> = post
        .registrations
        .iter()
        .filter(|it| only.as_ref().is_none_or(|only| only.contains(&it.id)))
        .cloned()
        .collect();
    for registration in &to {
        post.enqueue(&event, registration, &[], now);
    }
    Ok(Outcome::Json { status: 202, body: event_json(&event) })
}

/// `POST /v1/notifications/simulate-event`: a mock event. It is signed for no registration of
/// ours, so verification by postback fails, as at PayPal.
pub(crate) fn simulate(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    check(call, &schemas::SIMULATE_EVENT)?;
    let name = call.text("event_type").unwrap_or_default();
    let Some(known) = EVENT_TYPES.iter().find(|it| it.name == name) else {
        return Err(invalid("event_type", "Not a valid event type"));
    };
    let url = match (call.text("webhook_id"), call.text("url")) {
        (Some(id), _) => registered(call, &id)?.url,
        (None, Some(url)) => {
            check_url(call, &url)?;
            url
        }
        (None, None) => return Err(invalid("url", "Either webhook_id or url is required")),
    };
    let resource = json!({"id": ids::transaction(), "status": "MOCK"});
    let event = call.world.compose(known, &resource, call.now);
    let nobody = Registration { id: "WEBHOOK_ID".to_owned(), url, event_types: Vec::new() };
    let now = call.now;
    call.world.post.enqueue(&event, &nobody, &[], now);
    let body = event_json(&event);
    call.world.post.events.push(event);
    Ok(Outcome::Json { status: 202, body })
}

/// What a postback says, with the event exactly as it was spliced in.
#[derive(Deserialize)]
struct Postback<'a> {
    auth_algo: String,
    cert_url: String,
    transmission_id: String,
    transmission_sig: String,
    transmission_time: String,
    webhook_id: String,
    #[serde(borrow)]
    webhook_event: &'a RawValue,
}

/// `POST /v1/notifications/verify-webhook-signature`. 200 either way.
pub(crate) fn verify(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    check(call, &schemas::VERIFY_SIGNATURE)?;
    let said: Postback<'_> = serde_json::from_slice(&call.request.body)
        .map_err(|_| invalid("webhook_event", "Not a valid event"))?;
    let prefix = call.world.href("/v1/notifications/certs/");
    let known = registered(call, &said.webhook_id).is_ok();
    let signature = STANDARD.decode(&said.transmission_sig).unwrap_or_default();
    let message = sign::message(
        &said.transmission_id,
        &said.transmission_time,
        &said.webhook_id,
        said.webhook_event.get().as_bytes(),
    );
    let good = known
        && said.auth_algo == "SHA256withRSA"
        && said
            .cert_url
            .strip_prefix(&prefix)
            .is_some_and(|id| call.world.authority.verifies(id, &message, &signature));
    let status = if good { "SUCCESS" } else { "FAILURE" };
    Ok(Outcome::Json { status: 200, body: json!({"verification_status": status}) })
}

/// `GET /v1/notifications/certs/{id}`: the signing certificate and what it chains to.
pub(crate) fn certificate(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    let pem = call.world.authority.certificate(&call.id());
    Ok(Outcome::Text {
        status: 200,
        content_type: "application/x-pem-file",
        body: pem.ok_or_else(unknown)?,
    })
}
