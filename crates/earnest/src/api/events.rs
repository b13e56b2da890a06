//! The stream of events: what happened, to those it concerns, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse as _, Response};
use earnest_core::party::Principal;
use earnest_core::problem::Code;
use futures_util::Stream;
use http::{HeaderMap, HeaderValue, header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Caller, still_live};
use super::error::{ApiResult, refuse};
use super::read::Query;
use super::view::Problem;
use crate::app::App;
use crate::events::{Cursor, EventId, Listener, Place, Seen, may_see};

/// How soon a client that lost its stream should come back.
const RETRY: Duration = Duration::from_secs(2);

/// Where to begin.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// The id of the last event seen, or a bare sequence number; `0` for everything, while there is
    /// no more than one stream catches up with: beyond that it begins with a `reset`. Without it, and
    /// without `Last-Event-ID`, the stream begins now.
    since: Option<String>,
}

/// One event, as `data:` of a message.
#[derive(Serialize, ToSchema)]
pub struct EventView {
    /// The entry of the log it stands in.
    seq: u64,
    /// When.
    at: String,
    /// `purchase.held`, `settlement.captured` …
    kind: String,
    /// What happened, by kind.
    data: Value,
}

/// What happened, as it happens. `id` is the place to go on from (`Last-Event-ID`, or `since`); a
/// comment comes every 15 seconds, unless set otherwise. `event: reset` says that the place is too far back, or
/// of an epoch that ended: read what you show anew, the stream goes on from now.
///
/// Owners, agents and sellers see what concerns them; the operator sees everything. A holder has few
/// streams at a time, and the agents of an owner few together: 429 for more.
#[utoipa::path(get, path = "/v1/events", tag = "owner", security(("key" = [])),
    params(EventsQuery, ("Last-Event-ID" = Option<String>, Header, description = "As `since`; comes first")),
    responses((status = 200, description = "Server-sent events", content_type = "text/event-stream", body = EventView),
        (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub async fn stream(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let begin = begin(&app, &query, &headers)?;
    let seat = app.seats.take(caller.0)?;
    let listener = app.feed.listen(app.store.clone(), begin.place, seat);
    let mut told = Telling {
        principal: caller.0.principal,
        listener,
        headers,
        ready: begin.reset.into_iter().collect(),
        beat: tokio::time::interval(app.heartbeat),
        era: None,
        app,
    };
    // Its first tick is at once; the others come at their time, whatever else is told.
    told.beat.reset();
    let mut response = Sse::new(told.into_stream()).into_response();
    let headers = response.headers_mut();
    // What stands between may not hold events back, keep them, or pack them.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Where a stream begins, and what it says first.
struct Begin {
    place: Place,
    reset: Option<Event>,
}

fn begin(app: &App, query: &EventsQuery, headers: &HeaderMap) -> ApiResult<Begin> {
    let invalid = || refuse(Code::ValidationFailed, "`since` is no id of an event");
    let head = app.store.reader().head()?.seq;
    let text = match headers.get("last-event-id") {
        Some(value) => Some(value.to_str().map_err(|_| invalid())?.trim().to_owned()),
        None => query.since.clone(),
    };
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(Begin { place: Place::after(head), reset: None });
    };
    let cursor: Cursor = text.parse().map_err(|_| invalid())?;
    let place = cursor.place;
    let ended = cursor.epoch.as_deref().is_some_and(|epoch| epoch != app.store.epoch());
    let why = if ended {
        "the epoch of that place has ended"
    } else if place.seq > head {
        "that place is past the end of the log"
    } else if head.saturating_sub(place.seq) > app.settings.event_gap_entries {
        "that place is too far back"
    } else {
        return Ok(Begin { place, reset: None });
    };
    let id = format!("{}-{head}", app.store.epoch());
    let data = json!({ "why": why, "seq": head });
    let reset = Event::default().event("reset").id(id).retry(RETRY).data(data.to_string());
    Ok(Begin { place: Place::after(head), reset: Some(reset) })
}

/// A stream under way.
struct Telling {
    app: App,
    principal: Principal,
    /// The credential, asked again as long as the stream lives.
    headers: HeaderMap,
    listener: Listener,
    ready: std::collections::VecDeque<Event>,
    beat: tokio::time::Interval,
    /// Under which era of the keys the credential was last found good.
    era: Option<u64>,
}

impl Telling {
    /// Whether the credential is still good, asked where it may not be: keys changed, or it is a
    /// browser's. Whatever takes a credential away is an entry of the log, which comes here.
    fn may_go_on(&mut self) -> bool {
        let era = self.app.key_era();
        if self.era == Some(era) && self.headers.contains_key(header::AUTHORIZATION) {
            return true;
        }
        self.era = Some(era);
        still_live(&self.app, &self.headers)
    }

    fn into_stream(self) -> impl Stream<Item = Result<Event, Infallible>> {
        futures_util::stream::unfold(self, |mut told| async move {
            let event = told.next().await?;
            Some((Ok(event), told))
        })
    }

    /// The next message; `None` when the stream ends.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            tokio::select! {
                () = self.app.stopping.cancelled() => return None,
                seen = self.listener.next() => match seen {
                    Ok(seen) => {
                        if !self.may_go_on() {
                            return None;
                        }
                        if let Err(error) = self.take(&seen) {
                            // Whoever listens comes again from the last one, and misses none.
                            tracing::error!(%error, "a stream of events ends: one cannot be written");
                            return None;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a stream of events ends: the books cannot be read");
                        return None;
                    }
                },
                _ = self.beat.tick() => {
                    if !still_live(&self.app, &self.headers) {
                        return None;
                    }
                    return Some(Event::default().comment("still here"));
                }
            }
        }
    }

    fn take(&mut self, seen: &Seen) -> Result<(), serde_json::Error> {
        let epoch = self.app.store.epoch();
        for event in seen.events.iter().filter(|event| may_see(self.principal, event)) {
            let view = EventView {
                seq: event.seq,
                at: event.at.to_string(),
                kind: event.event.kind.clone(),
                data: event.event.data.clone(),
            };
            let data = serde_json::to_string(&view)?;
            let id = EventId { epoch, event }.to_string();
            self.ready.push_back(Event::default().id(id).data(data));
        }
        Ok(())
    }
}
