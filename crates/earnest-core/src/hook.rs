//! Outgoing webhooks: who is told of events, and how each telling went.
//!
//! An event is told at least once: a delivery is a row with an id made of its endpoint and its
//! event, so reading the log twice makes no second one, and a receiver that keeps ids sees it once.
//! Nothing here signs or sends.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::admin::repeated;
use crate::id::{DeliveryId, HookId};
use crate::intent::stamp;
use crate::party::Principal;
use crate::problem::{Code, Refusal};
use crate::settings::Settings;
use crate::time::{Timestamp, after};
use crate::unit::{Effects, Fingerprint, Key, ListEntry, Record, Stop, Touches, Unit, View, rank};

mod clear;

pub use clear::ClearDelivery;

/// The most kinds of events that one endpoint names.
pub const MAX_KINDS: usize = 30;
/// The most attempts kept of a delivery; the first and the newest stay.
const MAX_ATTEMPTS: usize = 20;
/// How long after each attempt the next one comes, in seconds: Standard Webhooks' own schedule,
/// about three days in all.
const WAITS: [i64; 9] = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];
/// After so many attempts in a row without any answer an endpoint rests.
const SILENT_MOST: u32 = 3;
/// For how long it rests first, and at most: each further silence doubles it. In seconds.
const REST_SECONDS: i64 = 60;
const MOST_REST_SECONDS: i64 = 3_600;
/// How long whoever claimed a delivery has to say how it went, in seconds.
pub const CLAIM_SECONDS: i64 = 60;

/// How deliveries are signed (Standard Webhooks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// `v1a`: Ed25519; the receiver needs no secret.
    V1a,
    /// `v1`: HMAC-SHA256 under a secret that both sides keep.
    V1,
}

/// Whether an endpoint is told anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum HookState {
    /// It is.
    Active,
    /// It is not, until it is enabled again.
    Disabled {
        /// Why.
        why: String,
    },
    /// Its owner removed it.
    Removed,
}

/// Where somebody is told of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// Its id.
    pub id: HookId,
    /// Whose events: what this principal may see.
    pub of: Principal,
    /// Where to.
    pub url: String,
    /// Which kinds, by name or by beginning (`settlement.*`); empty for all.
    pub kinds: Vec<String>,
    /// How deliveries are signed.
    pub scheme: Scheme,
    /// The 32 secret bytes, sealed elsewhere; opaque here.
    pub sealed: String,
    /// What receivers verify with, where the scheme has a public half.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// Whether it is told anything.
    pub state: HookState,
    /// Only what happened after this entry is told.
    pub since: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// How many of its deliveries wait.
    #[serde(default, skip_serializing_if = "is_none")]
    pub waiting: u32,
    /// How many attempts in a row got no answer at all.
    #[serde(default, skip_serializing_if = "is_none")]
    pub silent: u32,
    /// Until when nothing is sent to it by itself: whoever never answers keeps others waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_until: Option<Timestamp>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
const fn is_none(count: &u32) -> bool {
    *count == 0
}

impl Hook {
    /// A new endpoint, told of what happens after an entry.
    pub fn new(id: HookId, of: Principal, url: String, since: u64, now: Timestamp) -> Self {
        Self {
            id,
            of,
            url,
            kinds: Vec::new(),
            scheme: Scheme::V1a,
            sealed: String::new(),
            public_key: None,
            state: HookState::Active,
            since,
            created_at: now,
            waiting: 0,
            silent: 0,
            rests_until: None,
        }
    }

    /// How many deliveries may be under way to it at once, of as many as there may be to any: none
    /// while it rests, and one to see whether it answers again.
    pub fn room(&self, most: usize, now: Timestamp) -> usize {
        match self.rests_until {
            // What waits for one that is told nothing any more only has to be ended.
            _ if self.state != HookState::Active => most,
            Some(until) if now < until => 0,
            _ if self.silent >= SILENT_MOST => most.min(1),
            _ => most,
        }
    }

    /// It as it is after an attempt.
    fn heard(&self, attempt: &Attempt, now: Timestamp) -> Self {
        if attempt.status.is_some() {
            return self.awake();
        }
        let silent = self.silent.saturating_add(1);
        let rest = silent.checked_sub(SILENT_MOST).map(|doubled| {
            let factor = 1_i64.checked_shl(doubled.min(16)).unwrap_or(i64::MAX);
            REST_SECONDS.saturating_mul(factor).min(MOST_REST_SECONDS)
        });
        Self { silent, rests_until: rest.map(|seconds| after(now, seconds)), ..self.clone() }
    }

    /// It as if it had never been silent.
    fn awake(&self) -> Self {
        Self { silent: 0, rests_until: None, ..self.clone() }
    }

    /// Whether an event of this kind is wanted.
    pub fn wants(&self, kind: &str) -> bool {
        let fits = |wanted: &String| match wanted.strip_suffix('*') {
            Some(beginning) => kind.starts_with(beginning),
            None => kind == wanted,
        };
        self.kinds.is_empty() || self.kinds.iter().any(fits)
    }
}

impl Record for Hook {
    const KIND: &'static str = "hook";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = Vec::new();
        if self.state != HookState::Removed {
            lists.push(ListEntry::new("hooks", self.of, self.id));
        }
        if self.state == HookState::Active {
            lists.push(ListEntry::new("hooks.active", "", self.id));
        }
        if self.waiting > 0 {
            lists.push(ListEntry::new("hooks.waiting", "", self.id));
        }
        lists
    }
}

/// How many endpoints a principal has; what must be complete stands on a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookCount {
    /// Whose.
    pub of: Principal,
    /// How many.
    pub count: usize,
}

impl Record for HookCount {
    const KIND: &'static str = "hook_count";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.of.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        Vec::new()
    }
}

/// Up to where the log was looked through for what has to be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookCursor {
    /// The last entry.
    pub seq: u64,
}

impl HookCursor {
    /// There is one.
    pub const ID: &'static str = "hooks";
}

impl Record for HookCursor {
    const KIND: &'static str = "hook_cursor";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        Self::ID.to_owned()
    }
    fn lists(&self) -> Vec<ListEntry> {
        Vec::new()
    }
}

/// How one attempt went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// When.
    pub at: Timestamp,
    /// The receiver's status, where it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why there was no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The beginning of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

impl Attempt {
    /// Whether the receiver took it: 2xx and nothing else.
    pub fn took(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
    }
}

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// Another attempt comes.
    Waiting,
    /// The receiver took it.
    Delivered,
    /// No attempt comes by itself.
    Failed,
}

/// One event on its way to one endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Its id; `webhook-id` of every attempt.
    pub id: DeliveryId,
    /// Where to.
    pub hook: HookId,
    /// The entry of the event.
    pub seq: u64,
    /// The event's place among that entry's.
    pub index: usize,
    /// The event's kind.
    pub kind: String,
    /// Where it stands.
    pub state: DeliveryState,
    /// How often it was tried.
    pub tries: u32,
    /// How the attempts went, oldest first.
    pub attempts: Vec<Attempt>,
    /// When to try next, while it waits.
    pub next_at: Timestamp,
    /// When it was made.
    pub created_at: Timestamp,
    /// Whether it was cleared away: only that it was made is kept, so that it is made once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cleared: bool,
}

impl Delivery {
    /// A delivery of an event, to be tried at once. `epoch` is the one in which the event was written:
    /// another life of these books, which a restore lost, told of other events under the same number.
    // INVARIANT: no_two_events_share_a_webhook_id
    pub fn new(
        hook: HookId,
        epoch: &str,
        (seq, index): (u64, usize),
        kind: &str,
        now: Timestamp,
    ) -> Self {
        let event = format!("{epoch}-{seq}.{index}");
        let print = Fingerprint::of(&[b"delivery", hook.to_string().as_bytes(), event.as_bytes()]);
        let bytes = print.0.first_chunk::<16>().copied().unwrap_or_default();
        Self {
            id: DeliveryId::from_value(u128::from_be_bytes(bytes)),
            hook,
            seq,
            index,
            kind: kind.to_owned(),
            state: DeliveryState::Waiting,
            tries: 0,
            attempts: Vec::new(),
            next_at: now,
            created_at: now,
            cleared: false,
        }
    }

    /// Not sent by itself, since too many wait already; it is listed, and can be sent by hand.
    fn left_out(mut self, most: u32, now: Timestamp) -> Self {
        let why = format!("not sent: {most} deliveries waited for this webhook already");
        self.state = DeliveryState::Failed;
        self.attempts.push(Attempt { at: now, status: None, error: Some(why), answer: None });
        self
    }
}

impl Record for Delivery {
    const KIND: &'static str = "hook_delivery";
    const RANK: u8 = rank::ROW_LATER;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        if self.cleared {
            return Vec::new();
        }
        let at = format!("{:020}.{:06}", self.seq, self.index);
        let then = match self.state {
            DeliveryState::Waiting => {
                // Apart for each endpoint: no number of them hides those of another.
                ListEntry::new("hook_deliveries.due", self.hook, stamp(self.next_at))
            }
            DeliveryState::Delivered | DeliveryState::Failed => {
                ListEntry::new("hook_deliveries.ended", "", stamp(self.created_at))
            }
        };
        vec![ListEntry::new("hook_deliveries", self.hook, at), then]
    }
}

fn not_found() -> Refusal {
    Refusal::new(Code::NotFound, "no such webhook")
}

/// Makes an endpoint.
#[derive(Clone, Debug)]
pub struct CreateHook {
    /// It.
    pub hook: Hook,
    /// The client's name for this creation.
    pub key: Option<String>,
    /// Numbers the operator set.
    pub settings: Arc<Settings>,
}

impl Unit for CreateHook {
    type Answer = Hook;

    fn name(&self) -> &'static str {
        "hook.create"
    }

    fn key(&self) -> Option<Key> {
        let (hook, name) = (&self.hook, self.key.clone()?);
        let scheme = if hook.scheme == Scheme::V1 { "v1" } else { "v1a" };
        let kinds = hook.kinds.join(" ");
        let fingerprint =
            Fingerprint::of(&[hook.url.as_bytes(), kinds.as_bytes(), scheme.as_bytes()]);
        Some(Key { scope: hook.of.to_string(), family: "webhook", name, fingerprint })
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        if let Ok(Some(known)) = repeated(view) {
            touches.row::<Hook>(known);
            return touches;
        }
        touches.row::<HookCount>(self.hook.of);
        touches.row::<Hook>(self.hook.id);
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<Hook>, Stop> {
        if let Some(known) = repeated(view)? {
            return Ok(Effects::answer(view.need::<Hook>(known)?.clone()));
        }
        let count = view.row::<HookCount>(self.hook.of)?.map_or(0, |row| row.count);
        let most = self.settings.webhook_endpoints;
        if count >= usize::try_from(most).unwrap_or(usize::MAX) {
            let why = format!("there are {most} webhooks already; remove one first");
            return Err(Refusal::new(Code::StateConflict, why).into());
        }
        let mut effects = Effects::answer(self.hook.clone());
        effects.put(HookCount { of: self.hook.of, count: count.saturating_add(1) })?;
        effects.put(self.hook.clone())?;
        let data = json!({ "webhook": self.hook.id, "url": self.hook.url });
        effects.event("webhook.created", &[&self.hook.of], data);
        effects.bind(self.hook.id);
        Ok(effects)
    }
}

/// Enables, disables or removes an endpoint.
#[derive(Clone, Debug)]
pub struct SetHook {
    /// Which.
    pub hook: HookId,
    /// Whose; somebody else's is not there.
    pub of: Principal,
    /// What it becomes. What was removed stays so.
    pub state: HookState,
    /// The head of the log: an endpoint that is enabled again is told of what happens from then on.
    pub head: u64,
}

impl Unit for SetHook {
    type Answer = Hook;

    fn name(&self) -> &'static str {
        "hook.set"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<HookCount>(self.of);
        touches.row::<Hook>(self.hook);
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<Hook>, Stop> {
        let row = view.row::<Hook>(self.hook)?;
        let live = |row: &&Hook| row.of == self.of && row.state != HookState::Removed;
        let row = row.filter(live).ok_or_else(not_found)?;
        let enabled = row.state != HookState::Active && self.state == HookState::Active;
        let since = if enabled { self.head.max(row.since) } else { row.since };
        let awake = if enabled { row.awake() } else { row.clone() };
        let kind = match &self.state {
            _ if row.state == self.state => None,
            HookState::Active => Some("webhook.enabled"),
            HookState::Disabled { .. } => Some("webhook.disabled"),
            HookState::Removed => Some("webhook.removed"),
        };
        let row = Hook { state: self.state.clone(), since, ..awake };
        let mut effects = Effects::answer(row.clone());
        if let Some(kind) = kind {
            let mut data = json!({ "webhook": row.id, "url": row.url });
            if let (HookState::Disabled { why }, Some(data)) = (&row.state, data.as_object_mut()) {
                data.insert("why".to_owned(), json!(why));
            }
            effects.event(kind, &[&row.of], data);
        }
        if row.state == HookState::Removed {
            let count = view.row::<HookCount>(self.of)?.map_or(0, |row| row.count);
            effects.put(HookCount { of: self.of, count: count.saturating_sub(1) })?;
        }
        effects.put(row)?;
        Ok(effects)
    }
}

/// Makes deliveries of what was read in the log, each once, and remembers how far that was.
#[derive(Clone, Debug)]
pub struct FanOut {
    /// Up to where the log was read.
    pub seq: u64,
    /// What was found.
    pub deliveries: Vec<Delivery>,
    /// How many deliveries wait for one endpoint at most.
    pub most_waiting: u32,
}

impl Unit for FanOut {
    type Answer = ();

    fn name(&self) -> &'static str {
        "hook.fan_out"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<HookCursor>(HookCursor::ID);
        for delivery in &self.deliveries {
            touches.row::<Hook>(delivery.hook);
            touches.row::<Delivery>(delivery.id);
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let known = view.row::<HookCursor>(HookCursor::ID)?.map_or(0, |row| row.seq);
        let mut effects = Effects::answer(());
        let mut hooks = BTreeMap::new();
        for delivery in &self.deliveries {
            // What lies before the place was told, maybe so long ago that its delivery is cleared away.
            // INVARIANT: an_event_has_one_delivery_an_endpoint
            if delivery.seq <= known || view.row::<Delivery>(delivery.id)?.is_some() {
                continue;
            }
            let hook = match hooks.entry(delivery.hook) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(view.need::<Hook>(delivery.hook)?.clone()),
            };
            if hook.waiting < self.most_waiting {
                hook.waiting = hook.waiting.saturating_add(1);
                effects.put(delivery.clone())?;
            } else {
                effects.put(delivery.clone().left_out(self.most_waiting, now))?;
            }
        }
        for (_, hook) in hooks {
            effects.put(hook)?;
        }
        if self.seq > known {
            effects.put(HookCursor { seq: self.seq })?;
        }
        Ok(effects)
    }
}

/// Takes the right to make one attempt.
#[derive(Clone, Copy, Debug)]
pub struct ClaimDelivery {
    /// Which delivery.
    pub delivery: DeliveryId,
    /// Where it goes, from a plain read; never changes.
    pub hook: HookId,
}

impl Unit for ClaimDelivery {
    /// The delivery as claimed and its endpoint; `None` when there is nothing to send now.
    type Answer = Option<(Delivery, Hook)>;

    fn name(&self) -> &'static str {
        "hook.claim"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Hook>(self.hook);
        touches.row::<Delivery>(self.delivery);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Self::Answer>, Stop> {
        let hook = view.need::<Hook>(self.hook)?;
        let mut row = view.need::<Delivery>(self.delivery)?.clone();
        if row.state != DeliveryState::Waiting || row.next_at > now || row.hook != self.hook {
            return Ok(Effects::answer(None));
        }
        if hook.state != HookState::Active {
            row.state = DeliveryState::Failed;
            let mut effects = Effects::answer(None);
            effects.put(Hook { waiting: hook.waiting.saturating_sub(1), ..hook.clone() })?;
            effects.put(row)?;
            return Ok(effects);
        }
        row.tries = row.tries.saturating_add(1);
        // If whoever sends it dies, it is sent again.
        row.next_at = after(now, CLAIM_SECONDS);
        let mut effects = Effects::answer(Some((row.clone(), hook.clone())));
        effects.put(row)?;
        Ok(effects)
    }
}

/// Gives back a claim of which nothing was sent, for a reason of our own: the receiver had no part in
/// it, so that no attempt is recorded and the schedule stays. It is claimed again when the claim's
/// time is over.
#[derive(Clone, Copy, Debug)]
pub struct NotSent {
    /// Which delivery.
    pub delivery: DeliveryId,
    /// Which try it was, as claimed; a later claim leaves this one without effect.
    pub tries: u32,
}

impl Unit for NotSent {
    type Answer = ();

    fn name(&self) -> &'static str {
        "hook.not_sent"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Delivery>(self.delivery);
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let row = view.need::<Delivery>(self.delivery)?;
        let mut effects = Effects::answer(());
        if row.tries == self.tries && row.state == DeliveryState::Waiting {
            effects.put(Delivery { tries: self.tries.saturating_sub(1), ..row.clone() })?;
        }
        Ok(effects)
    }
}

/// Records how an attempt went.
#[derive(Clone, Debug)]
pub struct Attempted {
    /// Which delivery.
    pub delivery: DeliveryId,
    /// Where it went.
    pub hook: HookId,
    /// Which try it was, as claimed; a later claim makes this one only evidence.
    pub tries: u32,
    /// How it went.
    pub attempt: Attempt,
}

impl Unit for Attempted {
    type Answer = Delivery;

    fn name(&self) -> &'static str {
        "hook.attempted"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Hook>(self.hook);
        touches.row::<Delivery>(self.delivery);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Delivery>, Stop> {
        let hook = view.need::<Hook>(self.hook)?;
        let mut row = view.need::<Delivery>(self.delivery)?.clone();
        let waited = row.state == DeliveryState::Waiting;
        if row.attempts.len() >= MAX_ATTEMPTS {
            row.attempts.remove(1);
        }
        row.attempts.push(self.attempt.clone());
        let mut effects = Effects::answer(());
        let mut disabled = None;
        if self.attempt.took() {
            row.state = DeliveryState::Delivered;
        } else if self.attempt.status == Some(410) {
            row.state = DeliveryState::Failed;
            disabled = Some("the receiver answered 410: it wants no more");
        } else if row.state == DeliveryState::Waiting && self.tries == row.tries {
            let wait = usize::try_from(row.tries.saturating_sub(1)).ok();
            match wait.and_then(|place| WAITS.get(place)) {
                Some(seconds) => row.next_at = after(now, *seconds),
                None => {
                    row.state = DeliveryState::Failed;
                    // Once; somebody who sends it again by hand is told how that went.
                    let last = wait == Some(WAITS.len());
                    disabled = last.then_some("an event could not be delivered for three days");
                }
            }
        }
        let mut now_is = hook.heard(&self.attempt, now);
        if waited && row.state != DeliveryState::Waiting {
            now_is.waiting = now_is.waiting.saturating_sub(1);
        }
        if let (Some(why), HookState::Active) = (disabled, &hook.state) {
            now_is.state = HookState::Disabled { why: why.to_owned() };
            let data = json!({ "webhook": hook.id, "url": hook.url, "why": why });
            effects.event("webhook.disabled", &[&hook.of], data);
        }
        if now_is != *hook {
            effects.put(now_is)?;
        }
        effects.put(row.clone())?;
        Ok(effects.map(|()| row))
    }
}

/// Sends a delivery again now, whatever became of it; its schedule goes on from where it was.
#[derive(Clone, Copy, Debug)]
pub struct Resend {
    /// Which delivery.
    pub delivery: DeliveryId,
    /// Where it goes.
    pub hook: HookId,
    /// Whose endpoint it is.
    pub of: Principal,
}

impl Unit for Resend {
    type Answer = Delivery;

    fn name(&self) -> &'static str {
        "hook.resend"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Hook>(self.hook);
        touches.row::<Delivery>(self.delivery);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Delivery>, Stop> {
        let hook = view.row::<Hook>(self.hook)?;
        let hook = hook.filter(|hook| hook.of == self.of).ok_or_else(not_found)?;
        let row = view.row::<Delivery>(self.delivery)?.filter(|row| row.hook == self.hook);
        let Some(row) = row.filter(|row| !row.cleared) else {
            return Err(Refusal::new(Code::NotFound, "no such delivery").into());
        };
        if hook.state != HookState::Active {
            let why = "the webhook is disabled; enable it first";
            return Err(Refusal::new(Code::StateConflict, why).into());
        }
        // By somebody's wish, so that it rests no longer.
        let mut hook = hook.awake();
        if row.state != DeliveryState::Waiting {
            hook.waiting = hook.waiting.saturating_add(1);
        }
        let row = Delivery { state: DeliveryState::Waiting, next_at: now, ..row.clone() };
        let mut effects = Effects::answer(row.clone());
        effects.put(hook)?;
        effects.put(row)?;
        Ok(effects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_wanted_by_name_or_by_beginning() {
        let hook = |kinds: &[&str]| Hook {
            kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
            ..Hook::new(
                HookId::from_value(1),
                Principal::Operator,
                String::new(),
                0,
                Timestamp::UNIX_EPOCH,
            )
        };
        let check = |kinds: &[&str], kind: &str, expect: bool| {
            assert_eq!(hook(kinds).wants(kind), expect, "{kinds:?} {kind}");
        };
        check(&[], "tab.closed", true);
        check(&["tab.closed"], "tab.closed", true);
        check(&["tab.closed"], "tab.closed.twice", false);
        check(&["settlement.*", "tab.closed"], "settlement.captured", true);
        check(&["settlement.*"], "settlements", false);
    }

    #[test]
    fn the_id_of_a_delivery_is_made_of_its_event_and_endpoint() {
        let delivery = |hook: u128, epoch: &str, seq, index| {
            let hook = HookId::from_value(hook);
            Delivery::new(hook, epoch, (seq, index), "k", Timestamp::UNIX_EPOCH).id
        };
        let first = delivery(1, "e1", 2, 3);
        assert_eq!(delivery(1, "e1", 2, 3), first);
        let others = [(2, "e1", 2, 3), (1, "e2", 2, 3), (1, "e1", 3, 3), (1, "e1", 2, 0)];
        let others = others.map(|(hook, epoch, seq, index)| delivery(hook, epoch, seq, index));
        let ids: Vec<_> = [first].into_iter().chain(others).collect();
        assert!(ids.iter().enumerate().all(|(n, id)| !ids[..n].contains(id)));
    }
}
