//! The road of one API request: faults, token, key, operation, answer, journal.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use jiff::Timestamp;
use serde_json::Value;

use crate::answer::{Detail, Outcome, Problem, Resource};
use crate::call::{Call, Request};
use crate::faults::{Effect, Moment};
use crate::journal::{self, Entry};
use crate::oauth::fingerprint;
use crate::render;
use crate::route::{self, Found, Keys, Operation};
use crate::sim::Shared;
use crate::world::{KeyRecord, World};
use crate::{ids, oauth};

/// An answer, or the decision to close the connection without one.
pub(crate) type Reply = Option<Response<Full<Bytes>>>;

/// What was decided about a call so far.
struct Progress {
    seq: u64,
    debug_id: String,
    operation: Option<&'static Operation>,
    faults: Vec<String>,
    replayed: bool,
}

/// Carries one request through and answers it.
pub(crate) async fn handle(shared: Arc<Shared>, request: Request) -> Reply {
    let (operation, ids) = match route::find(&request.method, &request.path) {
        Found::Operation(operation, ids) => (operation, ids),
        Found::OtherMethod => return stray(&shared, &request, &Problem::status(405)),
        Found::NotEnabled => return not_enabled(&shared, &request),
        Found::Nothing => return stray(&shared, &request, &Problem::status(404)),
    };
    let mut progress = {
        let mut world = shared.world();
        Progress {
            seq: world.journal.next_seq(),
            debug_id: ids::debug(),
            operation: Some(operation),
            faults: Vec::new(),
            replayed: false,
        }
    };
    wait(&shared, &request, &mut progress, Moment::WaitBefore).await;
    let front = take(&shared, &request, &mut progress, Moment::Front);
    if front == Some(Effect::DropBefore) {
        record(&shared, &request, &progress, None, true);
        return None;
    }
    let hold = match in_flight(&shared, operation, &request) {
        Ok(hold) => hold,
        Err(problem) => {
            let answer = refusal(&progress, &problem);
            record(&shared, &request, &progress, Some(&answer), false);
            return Some(answer.into_response());
        }
    };
    let mut answer = process(&shared, &request, operation, ids, front, &mut progress);
    shared.deliver_before_answer().await;
    wait(&shared, &request, &mut progress, Moment::WaitAfter).await;
    let back = take(&shared, &request, &mut progress, Moment::Back);
    drop(hold);
    shared.wake_post();
    match back {
        Some(Effect::DropAfter) => {
            record(&shared, &request, &progress, Some(&answer), true);
            return None;
        }
        Some(Effect::BadBody) => answer.body = Bytes::from_static(b"<html>gateway</html>"),
        Some(Effect::Status { status, retry_after_seconds, .. }) => {
            answer = refusal(&progress, &faulty(status, retry_after_seconds))
        }
        _ => {}
    }
    record(&shared, &request, &progress, Some(&answer), false);
    Some(answer.into_response())
}

/// Paths without an operation still leave a trace and get PayPal's envelope.
fn stray(shared: &Shared, request: &Request, problem: &Problem) -> Reply {
    let progress = Progress {
        seq: shared.world().journal.next_seq(),
        debug_id: ids::debug(),
        operation: None,
        faults: Vec::new(),
        replayed: false,
    };
    let answer = refusal(&progress, problem);
    record(shared, request, &progress, Some(&answer), false);
    Some(answer.into_response())
}

/// APIs the account has not enabled want a good token before they say so.
fn not_enabled(shared: &Shared, request: &Request) -> Reply {
    let known = oauth::authorize(&shared.world(), request, "");
    let problem = known.err().unwrap_or_else(Problem::forbidden);
    stray(shared, request, &problem)
}

fn take(
    shared: &Shared,
    request: &Request,
    progress: &mut Progress,
    moment: Moment,
) -> Option<Effect> {
    let name = progress.operation.map_or("", |operation| operation.name);
    let effect = shared.world().faults.on_call(moment, name, &request.text())?;
    progress.faults.push(effect_name(&effect));
    Some(effect)
}

fn effect_name(effect: &Effect) -> String {
    serde_json::to_value(effect)
        .ok()
        .and_then(|value| value.get("kind").and_then(Value::as_str).map(str::to_owned))
        .unwrap_or_default()
}

async fn wait(shared: &Shared, request: &Request, progress: &mut Progress, moment: Moment) {
    if let Some(Effect::Delay { milliseconds, .. }) = take(shared, request, progress, moment) {
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    }
}

/// Marks a key as being worked on until it is dropped.
struct Hold<'a> {
    shared: &'a Shared,
    key: Option<(&'static str, String)>,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.shared.world().in_flight.remove(&key);
        }
    }
}

/// Of two requests with one key at the same moment, the first runs and the second is told so.
fn in_flight<'a>(
    shared: &'a Shared,
    operation: &'static Operation,
    request: &Request,
) -> Result<Hold<'a>, Problem> {
    if operation.keys == Keys::Ignored {
        return Ok(Hold { shared, key: None });
    }
    let Some(key) = request.key() else {
        return Ok(Hold { shared, key: None });
    };
    let key = (operation.name, key.to_owned());
    if !shared.world().in_flight.insert(key.clone()) {
        return Err(Problem::by_issue("PREVIOUS_REQUEST_IN_PROGRESS", operation.name));
    }
    Ok(Hold { shared, key: Some(key) })
}

/// The synchronous heart: token, key, operation, rendering, all under one lock.
fn process(
    shared: &Shared,
    request: &Request,
    operation: &'static Operation,
    ids: Vec<String>,
    front: Option<Effect>,
    progress: &mut Progress,
) -> Answer {
    let now = shared.clock.now();
    let mut guard = shared.world();
    let world = &mut *guard;
    world.tick(now);
    let mut call = Call {
        now,
        operation: operation.name,
        request,
        ids,
        body: Value::Null,
        seq: progress.seq,
        world,
    };
    let outcome = run(&mut call, operation, front, progress);
    match outcome {
        Ok(outcome) => success(call.world, request, outcome, progress),
        Err(problem) => refusal(progress, &problem),
    }
}

fn run(
    call: &mut Call<'_>,
    operation: &'static Operation,
    front: Option<Effect>,
    progress: &mut Progress,
) -> Result<Outcome, Problem> {
    match front {
        Some(Effect::Status { status, retry_after_seconds, .. }) => {
            return Err(faulty(status, retry_after_seconds));
        }
        Some(Effect::DeadToken) => {
            oauth::forget(call.world, call.request);
            return Err(oauth::dead_token());
        }
        Some(Effect::MissingScope) => return Err(Problem::forbidden()),
        _ => {}
    }
    if operation.scope != "-" {
        oauth::authorize(call.world, call.request, operation.scope)?;
    }
    if let Some(issue) = mocked(call.request, operation) {
        return Err(Problem::by_issue(&issue, operation.name));
    }
    call.body = body_of(call.request, operation)?;
    keyed(call, operation, progress)
}

fn faulty(status: u16, retry_after_seconds: Option<u64>) -> Problem {
    let mut problem = Problem::status(status);
    problem.retry_after = retry_after_seconds;
    problem
}

/// `PayPal-Mock-Response`, where the sandbox honours it.
fn mocked(request: &Request, operation: &Operation) -> Option<String> {
    const HONOURED: &[&str] = &[
        "orders.create",
        "orders.patch",
        "orders.get",
        "orders.authorize",
        "orders.capture",
        "authorizations.get",
        "authorizations.capture",
        "authorizations.void",
        "captures.get",
        "captures.refund",
        "refunds.get",
    ];
    let header = request.header("paypal-mock-response")?;
    if !HONOURED.contains(&operation.name) {
        return None;
    }
    let mock: Value = serde_json::from_str(header).ok()?;
    mock.get("mock_application_codes").and_then(Value::as_str).map(str::to_owned)
}

/// The JSON body. No body, an empty one and an empty form are all the same to PayPal.
fn body_of(request: &Request, operation: &Operation) -> Result<Value, Problem> {
    let takes_json = matches!(request.method.as_str(), "POST" | "PATCH" | "PUT");
    if !takes_json || request.body.is_empty() || operation.name == "oauth.token" {
        return Ok(Value::Null);
    }
    let content_type = request.header("content-type").unwrap_or_default();
    if !content_type.to_ascii_lowercase().contains("json") {
        return Err(Problem::status(415));
    }
    serde_json::from_slice(&request.body).map_err(|_| {
        Problem::invalid(vec![Detail {
            issue: "MALFORMED_REQUEST_JSON".to_owned(),
            field: Some("/".to_owned()),
            location: Some("body"),
            ..Detail::default()
        }])
    })
}

/// Runs an operation under its idempotency key, or shows what the key stands for.
fn keyed(
    call: &mut Call<'_>,
    operation: &'static Operation,
    progress: &mut Progress,
) -> Result<Outcome, Problem> {
    let retention = call.world.config.retention;
    let (seconds, required) = match operation.keys {
        Keys::Ignored => return (operation.handler)(call),
        Keys::Orders => (retention.orders_seconds, false),
        Keys::Payments => (retention.payments_seconds, false),
        Keys::Vault => (retention.vault_seconds, true),
    };
    let Some(key) = call.request.key().map(str::to_owned) else {
        return unkeyed(call, operation, required);
    };
    if key.chars().count() > 108 && operation.keys != Keys::Payments {
        return Err(Problem::invalid(vec![
            Detail {
                issue: "INVALID_STRING_LENGTH".to_owned(),
                field: Some("PayPal-Request-Id".to_owned()),
                ..Detail::default()
            }
            .value(key),
        ]));
    }
    let slot = (operation.name, key.clone());
    let fingerprint = fingerprint(&format!("{} {}", call.request.path, canonical(&call.body)));
    if let Some(known) = call.world.keys.get(&slot).cloned() {
        let age = call.now.duration_since(known.first_used).as_secs();
        if age < seconds {
            if known.fingerprint != fingerprint {
                call.violation(
                    "key_body_mismatch",
                    format!("`{key}` was first used with another path or body"),
                );
            }
            progress.replayed = true;
            return known.result.map(|resource| Outcome::Resource { resource, created: false });
        }
        call.violation(
            "key_after_retention",
            format!("`{key}` was forgotten after {seconds} s and is run again"),
        );
    }
    let outcome = (operation.handler)(call);
    remember(call, slot, fingerprint, &outcome);
    outcome
}

fn unkeyed(
    call: &mut Call<'_>,
    operation: &'static Operation,
    required: bool,
) -> Result<Outcome, Problem> {
    if required {
        return Err(Problem::invalid(vec![Detail {
            issue: "MISSING_REQUIRED_PARAMETER".to_owned(),
            field: Some("PayPal-Request-Id".to_owned()),
            location: Some("header"),
            description: Some("A required parameter is missing.".to_owned()),
            ..Detail::default()
        }]));
    }
    if operation.moves_money {
        call.violation(
            "missing_request_id",
            format!("{} without PayPal-Request-Id", operation.name),
        );
    }
    (operation.handler)(call)
}

fn remember(
    call: &mut Call<'_>,
    slot: (&'static str, String),
    fingerprint: String,
    outcome: &Result<Outcome, Problem>,
) {
    let result = match outcome {
        Ok(Outcome::Resource { resource, .. }) => Ok(resource.clone()),
        Err(problem) if call.world.config.replay_declines && problem.status == 422 => {
            Err(problem.clone())
        }
        _ => return,
    };
    let record = KeyRecord { fingerprint, first_used: call.now, result };
    call.world.keys.insert(slot, record);
}

/// The body with members in one order, so that spelling does not matter.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let mut names: Vec<_> = members.iter().collect();
            names.sort_unstable_by_key(|(name, _)| name.as_str());
            let inner: Vec<String> = names
                .into_iter()
                .map(|(name, member)| format!("{name:?}:{}", canonical(member)))
                .collect();
            format!("{{{}}}", inner.join(","))
        }
        Value::Array(items) => {
            let inner: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", inner.join(","))
        }
        // No body and an empty one are the same request.
        Value::Null => "{}".to_owned(),
        other => other.to_string(),
    }
}

/// An answer before it becomes bytes on the wire.
struct Answer {
    status: u16,
    content_type: &'static str,
    body: Bytes,
    debug_id: String,
    retry_after: Option<u64>,
}

fn success(world: &World, request: &Request, outcome: Outcome, progress: &Progress) -> Answer {
    let full = request.wants_representation() || request.method == http::Method::GET;
    let mut answer = Answer {
        status: 200,
        content_type: "application/json",
        body: Bytes::new(),
        debug_id: progress.debug_id.clone(),
        retry_after: None,
    };
    match outcome {
        Outcome::Resource { resource, created } => {
            answer.status = if created { 201 } else { 200 };
            match (&resource, full) {
                (Resource::Void(_), false) => answer.status = 204,
                (Resource::Void(_), true) => answer.status = 200,
                _ => {}
            }
            match render::resource(world, &resource, full) {
                Some(body) if answer.status != 204 => answer.body = json_bytes(&body),
                Some(_) => {}
                // An order that ran out since the key was used.
                None => return refusal(progress, &Problem::unknown_id()),
            }
        }
        Outcome::Json { status, body } => {
            answer.status = status;
            answer.body = json_bytes(&body);
        }
        Outcome::Text { status, content_type, body } => {
            answer.status = status;
            answer.content_type = content_type;
            answer.body = Bytes::from(body);
        }
        Outcome::Empty => answer.status = 204,
    }
    answer
}

fn refusal(progress: &Progress, problem: &Problem) -> Answer {
    let name = progress.operation.map_or("", |operation| operation.name);
    Answer {
        status: problem.status,
        content_type: "application/json",
        body: json_bytes(&problem.json(name, &progress.debug_id)),
        debug_id: progress.debug_id.clone(),
        retry_after: problem.retry_after,
    }
}

fn json_bytes(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}

impl Answer {
    fn into_response(self) -> Response<Full<Bytes>> {
        let empty = self.body.is_empty();
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        if let Ok(value) = HeaderValue::from_str(&self.debug_id) {
            headers.insert("paypal-debug-id", value);
        }
        if !empty {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

fn record(
    shared: &Shared,
    request: &Request,
    progress: &Progress,
    answer: Option<&Answer>,
    dropped: bool,
) {
    let content_type = request.header("content-type").unwrap_or_default();
    let now: Timestamp = shared.clock.now();
    let mut world = shared.world();
    let violations = world.journal.codes_of(progress.seq);
    world.journal.record(Entry {
        seq: progress.seq,
        at: journal::stamp(now),
        operation: progress.operation.map(|operation| operation.name),
        method: request.method.to_string(),
        path: request.path.clone(),
        query: request.query.clone(),
        headers: journal::headers_of_interest(&request.headers),
        body: journal::body_value(&request.body, content_type),
        status: answer.map(|answer| answer.status),
        answer_type: answer
            .filter(|answer| !answer.body.is_empty())
            .map(|answer| answer.content_type.to_owned()),
        answer: answer
            .map_or(Value::Null, |answer| journal::body_value(&answer.body, answer.content_type)),
        debug_id: progress.debug_id.clone(),
        replayed: progress.replayed,
        dropped,
        faults: progress.faults.clone(),
        violations,
    });
}
