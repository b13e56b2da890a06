//! Our record of a PayPal call and its fate.
//!
//! A call to PayPal is made only after commit, and only from an intent. *Unknown* is a state, never
//! a guess: inside the key's retention the same bytes are sent again under the same key; after it
//! nothing is ever posted again, only read, until evidence resolves the intent.
//!
//! This module knows no PayPal JSON: the request is an opaque text that the caller's PayPal client
//! wrote, kept with its hash so that what is repeated is what was sent.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{IntentId, OwnerId, SettlementId, VaultId};
use crate::money::Micros;
use crate::problem::{Code, Refusal};
use crate::quarantine::Quarantine;
use crate::time::{Timestamp, after};
use crate::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};

/// What an intent is for: who takes its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "for", content = "id", rename_all = "snake_case")]
pub enum Purpose {
    /// The one capture of a settlement.
    Settlement(SettlementId),
    /// The first half of vaulting a way to pay: a page for the payer.
    VaultSetup(VaultId),
    /// The second half: the lasting token.
    VaultToken(VaultId),
}

/// Where an intent stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntentState {
    /// Committed, not sent.
    Planned,
    /// Sent at least once; no answer recorded yet.
    Sent,
    /// PayPal is still deciding. Polled without a deadline.
    Pending,
    /// It happened.
    Done,
    /// The payer's side said no.
    Declined,
    /// Proved that nothing was charged.
    NotCharged,
    /// PayPal refused the request itself: our mistake or our account's.
    Refused,
    /// The answer was lost. Resolved by evidence only.
    Unknown,
}

impl Purpose {
    /// How long after the first send the same key may be sent again: PayPal's retention (6 h for
    /// orders, 3 h for the vault) less half an hour.
    pub const fn repeat_seconds(self) -> i64 {
        match self {
            Self::Settlement(_) => 6 * 3600 - 1800,
            Self::VaultSetup(_) | Self::VaultToken(_) => 3 * 3600 - 1800,
        }
    }
}

impl IntentState {
    /// Whether an outcome still has to come.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Planned | Self::Sent | Self::Pending | Self::Unknown)
    }
}

/// The right to send, for a while. A result is recorded only under the fence it was claimed with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Which process.
    pub node: String,
    /// Until when.
    pub until: Timestamp,
}

/// Something learnt about an intent: an answer, a read-back, a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// When it was learnt.
    pub at: Timestamp,
    /// What was done: `answer`, `read`, `search`, `late_answer`.
    pub how: String,
    /// What it said, redacted.
    pub said: Value,
}

/// The most pieces of evidence kept on one intent; the first and the newest stay.
const MAX_EVIDENCE: usize = 40;

/// A PayPal call.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Its id.
    pub id: IntentId,
    /// Whose business it is.
    pub owner: OwnerId,
    /// What it is for.
    pub purpose: Purpose,
    /// `PayPal-Request-Id`.
    pub key: String,
    /// The invoice id that the resource carries, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invoice_id: Option<String>,
    /// What it should move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_micros: Option<Micros>,
    /// What the client needs to write the request.
    pub facts: Value,
    /// The request as first sent, opaque here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// SHA-256 of the request's body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_sha256: Option<String>,
    /// Where it stands.
    pub state: IntentState,
    /// When it was planned.
    pub created_at: Timestamp,
    /// When it was first sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_sent_at: Option<Timestamp>,
    /// When it was last sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sent_at: Option<Timestamp>,
    /// How often it was sent.
    pub sends: u32,
    /// Grows with every claim.
    pub fence: u64,
    /// Who may send now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// When somebody has to look at it again.
    pub next_at: Timestamp,
    /// PayPal's id of the order, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paypal_order: Option<String>,
    /// PayPal's id of the capture, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paypal_capture: Option<String>,
    /// Why it was declined or refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issue: Option<String>,
    /// PayPal spoke of an earlier call: nothing is sent any more, only read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// A repeat was declined in a way that says nothing about the send before it (the method was
    /// gone by then): PayPal's issue. Declined once a search shows no charge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubtful: Option<String>,
    /// From when to when it was sent by PayPal's own clock, as far as its answers told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_there: Option<(Timestamp, Timestamp)>,
    /// A life of these books that was lost may have sent it until then: it is never sent again, and
    /// only a search over all that time tells what became of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_until: Option<Timestamp>,
    /// A person's word that nothing was charged, for large amounts and where PayPal speaks of a
    /// payment that no search shows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
    /// What was learnt, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
}

crate::shows_only!(Intent: id, owner, purpose, key, invoice_id, amount_micros, request_sha256, state, created_at, first_sent_at, last_sent_at, sends, fence, lease, next_at, paypal_order, paypal_capture, issue, read_only, doubtful, confirmed, evidence);

impl Intent {
    /// A planned call.
    pub fn planned(
        id: IntentId,
        owner: OwnerId,
        purpose: Purpose,
        key: String,
        facts: Value,
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            owner,
            purpose,
            key,
            invoice_id: None,
            amount_micros: None,
            facts,
            request: None,
            request_sha256: None,
            state: IntentState::Planned,
            created_at: now,
            first_sent_at: None,
            last_sent_at: None,
            sends: 0,
            fence: 0,
            lease: None,
            next_at: now,
            paypal_order: None,
            paypal_capture: None,
            issue: None,
            read_only: false,
            doubtful: None,
            sent_there: None,
            lost_until: None,
            confirmed: false,
            evidence: Vec::new(),
        }
    }

    /// Whether the request may be sent now: never sent, or inside the key's retention, by our clock
    /// and by PayPal's, which shows `there`. Afterwards the intent is only ever read.
    pub fn may_send(&self, now: Timestamp, there: Timestamp) -> bool {
        let lives = |first, now| now < after(first, self.purpose.repeat_seconds());
        let lives_there = self.sent_there.is_none_or(|(first, _)| lives(first, there));
        // A clock that went back cannot tell how old the key is.
        let repeat = |first| first <= now && lives(first, now) && lives_there;
        let sends = self.state.is_open() && self.state != IntentState::Pending && !self.read_only;
        // INVARIANT: what_a_lost_life_may_have_sent_is_only_read
        let sends = sends && self.lost_until.is_none();
        sends && self.first_sent_at.is_none_or(repeat)
    }

    /// From when to when it may have been sent, by our clock or by PayPal's; `None` if it never was.
    pub fn sent_between(&self) -> Option<(Timestamp, Timestamp)> {
        let first = self.first_sent_at.or(self.lost_until.map(|_| self.created_at))?;
        let last = self.last_sent_at.max(self.lost_until)?;
        let there = self.sent_there.unwrap_or((first, last));
        Some((first.min(there.0), last.max(there.1)))
    }

    /// Whether a send may have had an effect that nobody saw: then a refusal of a later send, before
    /// PayPal even looked at its key, proves nothing.
    const fn may_have_happened(&self) -> bool {
        matches!(self.state, IntentState::Unknown | IntentState::Pending)
    }

    /// What a fate comes to, given what is known already: too little for *not charged* or *refused*
    /// is *unknown*, with the reason. Above `confirm_above` *not charged* needs a person's word too.
    pub(crate) fn judge<T: Clone + PartialEq>(
        &self,
        fate: &Fate<T>,
        confirm_above: Micros,
        now: Timestamp,
    ) -> (Fate<T>, Option<&'static str>) {
        let unknown = |why| (Fate::Unknown, Some(why));
        let key_lives = self.sends > 0 && self.may_send(now, now);
        #[cfg(feature = "planted")]
        let key_lives = key_lives && !crate::planted::on(crate::planted::Bug::NotChargedEarly);
        match fate {
            Fate::Refused { .. } if self.may_have_happened() => {
                unknown("an earlier send may have happened")
            }
            Fate::NotCharged | Fate::InvoiceTaken { .. } => {
                // INVARIANT: not_charged_is_proved_only_when_the_key_is_dead
                if key_lives {
                    return unknown("the key may still be sent");
                }
                // INVARIANT: a_known_capture_is_never_not_charged
                if self.paypal_capture.is_some() {
                    return unknown("a capture is known");
                }
                // A payment that PayPal spoke of and no search shows is a contradiction, not a proof.
                let contradicts =
                    self.read_only && self.doubtful.is_none() && *fate == Fate::NotCharged;
                let large = self.amount_micros > Some(confirm_above);
                let doubtful = matches!(fate, Fate::InvoiceTaken { doubtful: true });
                if (contradicts || large || doubtful) && !self.confirmed {
                    return unknown("waiting for the operator's word");
                }
                // What was declined in doubt, and is not there, was declined.
                match (&self.doubtful, fate) {
                    (Some(issue), Fate::NotCharged) => {
                        (Fate::Declined { issue: issue.clone() }, None)
                    }
                    _ => (fate.clone(), None),
                }
            }
            _ => (fate.clone(), None),
        }
    }

    /// Adds what was learnt; in the middle old pieces make way.
    pub fn learn(&mut self, evidence: Evidence) {
        if self.evidence.len() >= MAX_EVIDENCE {
            self.evidence.remove(1);
        }
        self.evidence.push(evidence);
    }

    /// When to look again after `sends` tries: 2 s, 4 s … at most 5 min.
    pub fn backoff(&self, now: Timestamp) -> Timestamp {
        let steps = self.sends.min(8);
        let seconds = 1i64.checked_shl(steps).unwrap_or(300).min(300);
        after(now, seconds)
    }
}

impl Record for Intent {
    const KIND: &'static str = "intent";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![ListEntry::new("intents", self.owner, self.id)];
        if self.state.is_open() {
            lists.push(ListEntry::new("intents.open", "", stamp(self.next_at)));
        }
        if self.state == IntentState::Unknown {
            lists.push(ListEntry::new("intents.unknown", "", self.id));
        }
        if let Some(invoice) = &self.invoice_id {
            lists.push(ListEntry::new("intents.invoice", invoice, self.id));
        }
        if let Some(capture) = &self.paypal_capture {
            lists.push(ListEntry::new("intents.capture", capture, self.id));
        }
        lists
    }
}

/// A time as a sort key: as wide for every year that matters.
pub fn stamp(at: Timestamp) -> String {
    format!("{:016}", at.as_millisecond().max(0))
}

/// Takes the right to send, and commits the time of sending before anything is sent.
pub struct Claim {
    /// Which intent.
    pub intent: IntentId,
    /// Which process.
    pub node: String,
    /// How long the right lasts.
    pub lease_seconds: i64,
    /// The request and the hash of its body, as the client wrote it; must equal what was sent
    /// before, if anything was. `None` where the claim is only to read.
    pub request: Option<(String, String)>,
    /// What PayPal's clock shows, where its answers told.
    pub there: Option<Timestamp>,
}

/// What a claim gives.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The intent as committed.
    pub intent: Intent,
    /// The fence to record the result under.
    pub fence: u64,
}

impl Unit for Claim {
    type Answer = Claimed;

    fn name(&self) -> &'static str {
        "intent.claim"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        touches.row::<Intent>(self.intent);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Claimed>, Stop> {
        if self.request.is_some() {
            Quarantine::refuse(view)?;
        }
        let mut intent = view.need::<Intent>(self.intent)?.clone();
        if !intent.state.is_open() {
            return Err(Refusal::new(Code::StateConflict, "the intent is closed").into());
        }
        if intent.lease.as_ref().is_some_and(|lease| lease.until > now && lease.node != self.node) {
            return Err(
                Refusal::new(Code::StateConflict, "another process holds the intent").into()
            );
        }
        // A claim that never came back may have sent: from here on no refusal of a later send says
        // that nothing happened.
        if intent.state == IntentState::Sent && intent.lease.is_some() {
            intent.state = IntentState::Unknown;
        }
        if let Some((request, sha256)) = &self.request {
            // INVARIANT: no_post_after_key_retention
            let there = self.there.unwrap_or(now);
            let dead = !intent.may_send(now, there);
            #[cfg(feature = "planted")]
            let dead = dead && !crate::planted::on(crate::planted::Bug::PostAfterRetention);
            if dead {
                let why = "the key's retention has passed: the intent may only be read";
                return Err(Refusal::new(Code::StateConflict, why).into());
            }
            // The same key must never carry other bytes.
            if intent.request_sha256.as_ref().is_some_and(|sent| sent != sha256) {
                return Err(Stop::Bug(format!(
                    "intent {} would be sent with other bytes",
                    intent.id
                )));
            }
            intent.request = Some(request.clone());
            intent.request_sha256 = Some(sha256.clone());
            intent.first_sent_at.get_or_insert(now);
            intent.last_sent_at = Some(now);
            let (first, last) = intent.sent_there.unwrap_or((there, there));
            intent.sent_there = Some((first.min(there), last.max(there)));
            intent.sends = intent.sends.saturating_add(1);
            if intent.state == IntentState::Planned {
                intent.state = IntentState::Sent;
            }
        }
        intent.fence = intent.fence.saturating_add(1);
        intent.lease =
            Some(Lease { node: self.node.clone(), until: after(now, self.lease_seconds) });
        // If this process dies, another looks after the lease.
        intent.next_at = after(now, self.lease_seconds);
        let mut effects = Effects::answer(Claimed { fence: intent.fence, intent: intent.clone() });
        effects.put(intent)?;
        Ok(effects)
    }
}

/// What became of a call. How it was learnt is kept as evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate<T> {
    /// It happened, and this is what it made.
    Done(T),
    /// PayPal is still deciding.
    Pending {
        /// PayPal's id of the order, if known.
        paypal_order: Option<String>,
        /// PayPal's id of the capture, if known.
        paypal_capture: Option<String>,
    },
    /// The payer's side said no.
    Declined {
        /// PayPal's issue.
        issue: String,
    },
    /// PayPal refused the request itself.
    Refused {
        /// PayPal's issue.
        issue: String,
    },
    /// Proved that nothing was charged.
    NotCharged,
    /// Proved that nothing of ours was charged: the invoice is carried by somebody else's payment,
    /// and PayPal takes no second one under it.
    InvoiceTaken {
        /// Some of what carries it might be ours after all, gone wrong: a person decides.
        doubtful: bool,
    },
    /// The answer was lost or does not tell.
    Unknown,
    /// PayPal speaks of an earlier call (an invoice id that was used, an order already captured):
    /// unknown until the resource is read, and nothing is sent any more.
    AlreadyDone {
        /// PayPal's issue.
        issue: String,
    },
    /// A repeat was declined, and the decline says nothing about the send before it: nothing is sent
    /// any more, and a search decides.
    DoubtfulDecline {
        /// PayPal's issue.
        issue: String,
    },
    /// The evidence is not complete yet.
    NotYet {
        /// When to look again.
        until: Timestamp,
    },
    /// It certainly did not run (busy, throttled, never sent): the same again later.
    NotRun,
}

/// A capture, as re-read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// PayPal's id of the order, if known.
    pub paypal_order: Option<String>,
    /// PayPal's id of the capture.
    pub paypal_capture: String,
    /// What was captured.
    pub amount: Micros,
    /// What PayPal took.
    pub fee: Micros,
    /// Whether PayPal shows it as refunded or reversed, at least in part.
    pub given_back: bool,
}

impl Intent {
    /// Nothing is known, but what PayPal showed once is not forgotten because it could not be read
    /// again: a pending capture stays one.
    fn doubt(&mut self) {
        if self.state != IntentState::Pending {
            self.state = IntentState::Unknown;
        }
    }

    /// Records what was learnt under a fence; gives back whether the state may change. A result
    /// that comes under an older fence, or after the intent closed, is only evidence.
    pub fn take<T>(
        &mut self,
        fence: u64,
        fate: &Fate<T>,
        evidence: Evidence,
        now: Timestamp,
    ) -> bool {
        let late = fence != self.fence || !self.state.is_open();
        let how = if late { "late_answer".to_owned() } else { evidence.how };
        self.learn(Evidence { how, ..evidence });
        if late {
            return false;
        }
        self.lease = None;
        match fate {
            Fate::Done(_) => self.state = IntentState::Done,
            Fate::Pending { paypal_order, paypal_capture } => {
                self.state = IntentState::Pending;
                self.paypal_order = paypal_order.clone().or(self.paypal_order.take());
                self.paypal_capture = paypal_capture.clone().or(self.paypal_capture.take());
                self.next_at = after(now, 60);
            }
            Fate::Declined { issue } => {
                self.state = IntentState::Declined;
                self.issue = Some(issue.clone());
            }
            Fate::Refused { issue } => {
                self.state = IntentState::Refused;
                self.issue = Some(issue.clone());
            }
            Fate::NotCharged | Fate::InvoiceTaken { .. } => self.state = IntentState::NotCharged,
            Fate::Unknown => {
                self.doubt();
                self.next_at = self.backoff(now);
            }
            Fate::AlreadyDone { issue } => {
                self.doubt();
                self.issue = Some(issue.clone());
                self.read_only = true;
                self.next_at = self.backoff(now);
            }
            Fate::DoubtfulDecline { issue } => {
                self.doubt();
                self.doubtful = Some(issue.clone());
                self.read_only = true;
                self.next_at = self.backoff(now);
            }
            Fate::NotYet { until } => {
                self.doubt();
                self.next_at = *until;
            }
            Fate::NotRun => self.next_at = self.backoff(now),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn intent() -> Intent {
        let purpose = Purpose::Settlement(SettlementId::from_value(1));
        let (id, owner) = (IntentId::from_value(1), OwnerId::from_value(1));
        let mut intent = Intent::planned(id, owner, purpose, "k".to_owned(), Value::Null, at(0));
        intent.amount_micros = Some(Micros::constant(1_000_000));
        intent
    }

    fn sent(state: IntentState) -> Intent {
        Intent { state, sends: 1, first_sent_at: Some(at(0)), ..intent() }
    }

    #[test]
    fn a_key_is_sent_again_only_while_paypal_keeps_it() {
        let dead = 6 * 3_600 - 1_800;
        let check = |expect: bool, intent: &Intent, seconds: i64| {
            let sends = intent.may_send(at(seconds), at(seconds));
            assert_eq!(sends, expect, "{:?} {seconds}", intent.state);
        };
        check(true, &intent(), dead * 100);
        for state in [IntentState::Sent, IntentState::Unknown] {
            check(true, &sent(state), 0);
            check(true, &sent(state), dead - 1);
            check(false, &sent(state), dead);
            // A clock that went back cannot tell.
            check(false, &sent(state), -1);
        }
        check(false, &sent(IntentState::Pending), 1);
        check(false, &sent(IntentState::Done), 1);
        // By a clock of ours that was ahead, and was set back since, the key is younger than it is.
        let sent_there = Some((at(-7_200), at(-7_200)));
        let early = Intent { sent_there, ..sent(IntentState::Unknown) };
        check(true, &early, dead - 7_201);
        check(false, &early, dead - 7_200);
        assert_eq!(early.sent_between(), None, "no last time");
        let early = Intent { last_sent_at: Some(at(5)), ..early };
        assert_eq!(early.sent_between(), Some((at(-7_200), at(5))));
        check(false, &Intent { read_only: true, ..sent(IntentState::Unknown) }, 1);
        let vault = Purpose::VaultToken(VaultId::from_value(1));
        let vault = Intent { purpose: vault, ..sent(IntentState::Sent) };
        check(true, &vault, 3 * 3_600 - 1_801);
        check(false, &vault, 3 * 3_600 - 1_800);
    }

    #[test]
    fn what_proves_too_little_is_unknown() {
        let check = |expect: Option<&str>, intent: &Intent, fate: Fate<()>, seconds: i64| {
            let (judged, why) = intent.judge(&fate, Micros::constant(1_000_000), at(seconds));
            assert_eq!(why, expect, "{:?} {fate:?}", intent.state);
            assert_eq!(judged, if why.is_some() { Fate::Unknown } else { fate });
        };
        let refused = || Fate::Refused { issue: "NO".to_owned() };
        let (dead, earlier) = (6 * 3_600, Some("an earlier send may have happened"));
        check(None, &sent(IntentState::Sent), refused(), 1);
        check(earlier, &sent(IntentState::Unknown), refused(), 1);
        check(earlier, &sent(IntentState::Pending), refused(), 1);
        let lives = Some("the key may still be sent");
        check(lives, &sent(IntentState::Unknown), Fate::NotCharged, 1);
        check(None, &sent(IntentState::Unknown), Fate::NotCharged, dead);
        check(None, &intent(), Fate::NotCharged, 1);
        let known = Some("a capture is known");
        // An order without a capture that PayPal forgot may be proved absent.
        check(None, &sent(IntentState::Pending), Fate::NotCharged, dead);
        let mut capture = sent(IntentState::Unknown);
        capture.paypal_capture = Some("C".to_owned());
        check(known, &capture, Fate::NotCharged, dead);
        let mut large = sent(IntentState::Unknown);
        large.amount_micros = Some(Micros::constant(1_000_001));
        check(Some("waiting for the operator's word"), &large, Fate::NotCharged, dead);
        large.confirmed = true;
        check(None, &large, Fate::NotCharged, dead);
        check(None, &sent(IntentState::Unknown), Fate::Done(()), 1);
    }

    #[test]
    fn evidence_is_bounded_and_keeps_its_first_piece() {
        let mut intent = intent();
        for n in 0..100 {
            let how = n.to_string();
            intent.learn(Evidence { at: at(n), how, said: Value::Null });
        }
        assert_eq!(intent.evidence.len(), MAX_EVIDENCE);
        assert_eq!(
            (intent.evidence[0].how.as_str(), intent.evidence[39].how.as_str()),
            ("0", "99")
        );
        intent.sends = u32::MAX;
        assert_eq!(intent.backoff(at(0)), at(256));
    }
}
