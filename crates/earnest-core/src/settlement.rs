//! A settlement: what a tab owes, turned into one capture.
//!
//! Settlement n: carry in + lines - carry out = captured. The pending transfer is committed with
//! its intent; the stored outcome posts or voids it; *unknown* and *pending* leave it, without a
//! deadline. Only the payer's refusal freezes a tab.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::id::{IntentId, OwnerId, ReceiptId, SettlementId, TabId, TransferId};
use crate::intent::{Charge, Evidence, Fate, Intent, IntentState, Purpose};
use crate::ledger::{Account, Cause, Hold, Leg, Op};
use crate::money::Micros;
use crate::party::Owner;
use crate::problem::{Code, Refusal};
use crate::settings::Settings;
use crate::tab::{LineRange, Tab, TabState, add, credit_line, other_frozen, room, touch_tabs};
use crate::time::{Timestamp, after};
use crate::treasurer::{Plan, count_small, plan, uncount_small};
use crate::unit::{
    Effects, Fingerprint, Key, KeyUse, ListEntry, Record, Stop, Touches, Unit, View, rank,
};

/// Where a settlement stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettlementState {
    /// Its intent is open.
    Open,
    /// Captured as asked.
    Captured,
    /// Captured, but another amount than asked; the difference is listed.
    AmountMismatch,
    /// The payer's side said no.
    Declined,
    /// Proved that nothing was charged; attempted again.
    NotCharged,
    /// PayPal refused the request itself; attempted again.
    Refused,
}

/// A settlement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// Its id.
    pub id: SettlementId,
    /// Who pays.
    pub owner: OwnerId,
    /// Which tab.
    pub tab: TabId,
    /// The tab's first, second …
    pub n: u64,
    /// Counts the attempts under this number.
    pub attempt: u64,
    /// Where it stands.
    pub state: SettlementState,
    /// The lines it captures.
    pub lines: Vec<LineRange>,
    /// The sum of the lines.
    pub lines_micros: Micros,
    /// Below a cent, from before.
    pub carry_in_micros: Micros,
    /// Below a cent, left for the next.
    pub carry_out_micros: Micros,
    /// What PayPal is asked for: whole cents.
    pub amount_micros: Micros,
    /// What PayPal captured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captured_micros: Option<Micros>,
    /// What PayPal was expected to take.
    pub fee_predicted_micros: Micros,
    /// What PayPal took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fee_micros: Option<Micros>,
    /// The PayPal call.
    pub intent: IntentId,
    /// The pending transfer.
    pub hold: TransferId,
    /// Why it was made, in one sentence.
    pub why: String,
    /// When its oldest line was posted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Carried in invoice and key: `epoch:tab:n`.
    pub invoice_id: String,
    /// PayPal's id of the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paypal_order: Option<String>,
    /// PayPal's id of the capture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paypal_capture: Option<String>,
    /// Why it was declined or refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issue: Option<String>,
    /// Its receipt, once signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<ReceiptId>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its outcome was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

impl Settlement {
    /// Whether money was captured.
    pub const fn is_captured(&self) -> bool {
        matches!(self.state, SettlementState::Captured | SettlementState::AmountMismatch)
    }
}

impl Record for Settlement {
    const KIND: &'static str = "settlement";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![
            ListEntry::new("settlements", self.owner, self.id),
            ListEntry::new("tab_settlements", self.tab, self.id),
        ];
        if self.is_captured() && self.receipt.is_none() {
            lists.push(ListEntry::new("settlements.unsigned", "", self.id));
        }
        lists
    }
}

/// Settles a tab, or ends it, if the treasurer's rules say so now.
#[derive(Clone, Debug)]
pub struct Settle {
    /// Whose.
    pub owner: OwnerId,
    /// Which tab.
    pub tab: TabId,
    /// The id of the settlement, if it is a new one.
    pub settlement: SettlementId,
    /// The id of the intent.
    pub intent: IntentId,
    /// The id of the pending transfer.
    pub hold: TransferId,
    /// Of this installation: part of every key.
    pub epoch: String,
    /// Whether somebody asked for it.
    pub asked: bool,
    /// The asker's name for this one wish; a repeat shows what came of it.
    pub key: Option<Key>,
    /// The owner's own limit on the tab, for the treasurer's view of the room.
    pub own_limit: Option<Micros>,
    /// The operator's numbers.
    pub settings: Arc<Settings>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub enum Settled {
    /// Nothing to do, and why.
    Waited(String),
    /// The tab ended without a settlement; its rest waits for the next one.
    Carried(String),
    /// A settlement was committed; its intent waits to be sent.
    Planned(Box<Settlement>),
}

impl Unit for Settle {
    type Answer = Settled;

    fn name(&self) -> &'static str {
        "tab.settle"
    }

    fn key(&self) -> Option<Key> {
        self.key.clone()
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Owner>(self.owner);
        touches.row::<Tab>(self.tab);
        touches.row::<Settlement>(self.settlement);
        if let Some(id) = view.key().bound() {
            touches.row::<Settlement>(id);
        }
        if let Some(retry) = view.peek::<Tab>(self.tab).and_then(|tab| tab.retry) {
            touches.row::<Settlement>(retry);
        }
        touches.row::<Intent>(self.intent);
        touches.hold(self.hold);
        touches.account(Account::TabOwed(self.tab).usd());
        for earlier in view.peek::<Owner>(self.owner).iter().flat_map(|owner| &owner.earlier_tabs) {
            touches.account(Account::TabOwed(*earlier).usd());
        }
        touches.account(Account::PaypalCash.usd());
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Settled>, Stop> {
        match view.key() {
            KeyUse::Other { .. } => return Err(key_conflict().into()),
            KeyUse::Same { bound: Some(id) } => {
                let settlement = view.need::<Settlement>(id)?.clone();
                return Ok(Effects::answer(Settled::Planned(Box::new(settlement))));
            }
            _ => {}
        }
        let owner = view.need::<Owner>(self.owner)?;
        let tab = view.row::<Tab>(self.tab)?.filter(|tab| tab.owner == self.owner);
        let Some(tab) = tab else {
            return Err(Refusal::new(Code::NotFound, "no such tab").into());
        };
        let totals = view.totals(tab.owed())?;
        let room = self.room(view, owner)?;
        match plan(tab, owner, &totals, room, self.asked, &self.settings, now) {
            Plan::Wait { why } => Ok(Effects::answer(Settled::Waited(why))),
            Plan::Carry { why } => end(owner, tab, totals.collectible(), why),
            Plan::Settle { .. } if owner.funding.is_none() => Ok(Effects::answer(Settled::Waited(
                "the owner has no payment method on file".to_owned(),
            ))),
            Plan::Settle { why, amount_micros, ends } => {
                let settlement = match tab.retry {
                    Some(id) => {
                        self.again(view.need::<Settlement>(id)?, totals.collectible(), now)?
                    }
                    None => self.first(tab, totals.collectible(), amount_micros, why, now)?,
                };
                self.commit(owner, tab, settlement, ends, now)
            }
        }
    }
}

/// The key was used for something else.
pub(crate) fn key_conflict() -> Refusal {
    Refusal::new(Code::IdempotencyConflict, "the key was used for other arguments")
}

/// Ends a tab that is not worth a fee.
fn end(owner: &Owner, tab: &Tab, rest: Micros, why: String) -> Result<Effects<Settled>, Stop> {
    let (mut owner, mut tab) = (owner.clone(), tab.clone());
    leave(&mut owner, &mut tab);
    if rest.is_zero() {
        finish(&mut owner, &mut tab);
    }
    let mut effects = Effects::answer(Settled::Carried(why.clone()));
    let data = json!({ "tab": tab.id, "rest_micros": rest, "why": why });
    effects.event("tab.closed", &[&owner.id], data);
    effects.put(tab)?;
    effects.put(owner)?;
    Ok(effects)
}

/// The tab takes nothing more and stops being the owner's open one.
fn leave(owner: &mut Owner, tab: &mut Tab) {
    tab.state = TabState::Closed;
    owner.open_tab = owner.open_tab.filter(|id| *id != tab.id);
    if !owner.earlier_tabs.contains(&tab.id) {
        owner.earlier_tabs.push(tab.id);
    }
}

fn finish(owner: &mut Owner, tab: &mut Tab) {
    tab.finished = true;
    owner.earlier_tabs.retain(|id| *id != tab.id);
}

impl Settle {
    /// What the tab may owe, as the next purchase will find it.
    fn room(&self, view: &View, owner: &Owner) -> Result<Micros, Stop> {
        let mut earlier = Micros::ZERO;
        for tab in owner.earlier_tabs.iter().filter(|tab| **tab != self.tab) {
            earlier = add(earlier, view.totals(Account::TabOwed(*tab).usd())?.owed())?;
        }
        Ok(room(self.own_limit, credit_line(owner, &self.settings), earlier))
    }

    /// A new settlement over everything that is in none.
    fn first(
        &self,
        tab: &Tab,
        owed: Micros,
        amount: Micros,
        why: String,
        now: Timestamp,
    ) -> Result<Settlement, Stop> {
        let n = tab.settlements.saturating_add(1);
        let short = |what: &str| Stop::Bug(format!("tab {}: {what}", tab.id));
        let lines_micros = owed.checked_sub(tab.carry_micros);
        let carry_out = owed.checked_sub(amount);
        Ok(Settlement {
            id: self.settlement,
            owner: self.owner,
            tab: self.tab,
            n,
            attempt: 1,
            state: SettlementState::Open,
            lines: tab.unsettled(),
            lines_micros: lines_micros.ok_or_else(|| short("carries more than it owes"))?,
            carry_in_micros: tab.carry_micros,
            carry_out_micros: carry_out.ok_or_else(|| short("would settle more than it owes"))?,
            amount_micros: amount,
            captured_micros: None,
            fee_predicted_micros: self.settings.fee.predict(amount),
            fee_micros: None,
            intent: self.intent,
            hold: self.hold,
            why,
            since: tab.unsettled_since,
            invoice_id: format!("{}:{}:{n}", self.epoch, tab.id),
            paypal_order: None,
            paypal_capture: None,
            issue: None,
            receipt: None,
            created_at: now,
            ended_at: None,
        })
    }

    /// The same settlement again: number, lines and invoice stay, the key is new.
    fn again(&self, last: &Settlement, owed: Micros, now: Timestamp) -> Result<Settlement, Stop> {
        if owed < last.amount_micros {
            return Err(Stop::Bug(format!("settlement {} is above what the tab owes", last.id)));
        }
        Ok(Settlement {
            attempt: last.attempt.saturating_add(1),
            state: SettlementState::Open,
            intent: self.intent,
            hold: self.hold,
            issue: None,
            created_at: now,
            ended_at: None,
            ..last.clone()
        })
    }

    fn commit(
        &self,
        owner: &Owner,
        tab: &Tab,
        settlement: Settlement,
        ends: bool,
        now: Timestamp,
    ) -> Result<Effects<Settled>, Stop> {
        let (mut owner, mut tab) = (owner.clone(), tab.clone());
        let intent = self.intent(&owner, &settlement, now)?;
        if tab.retry.is_none() {
            tab.settled_lines = tab.lines;
            tab.carried_lines.clear();
            tab.carry_micros = settlement.carry_out_micros;
            tab.unsettled_since = None;
        }
        count_small(&mut owner, &settlement, &self.settings, now);
        tab.settlements = settlement.n;
        tab.open_settlement = Some(settlement.id);
        tab.retry = None;
        tab.not_before = None;
        if ends {
            leave(&mut owner, &mut tab);
        }
        let mut effects = Effects::answer(Settled::Planned(Box::new(settlement.clone())));
        effects.bind(settlement.id);
        let leg = Leg::new(Account::PaypalCash.usd(), tab.owed(), settlement.amount_micros);
        effects.op(Op::Hold { id: self.hold, cause: Cause::Settlement, legs: vec![leg] });
        let data = json!({ "settlement": settlement.id, "tab": tab.id, "n": settlement.n,
            "amount_micros": settlement.amount_micros, "why": settlement.why });
        effects.event("settlement.planned", &[&owner.id], data);
        effects.put(tab)?;
        effects.put(owner)?;
        effects.put(settlement)?;
        effects.put(intent)?;
        Ok(effects)
    }

    fn intent(
        &self,
        owner: &Owner,
        settlement: &Settlement,
        now: Timestamp,
    ) -> Result<Intent, Stop> {
        let no_funding =
            || Stop::Bug(format!("owner {} settles without a payment method", owner.id));
        let token = &owner.funding.as_ref().ok_or_else(no_funding)?.token;
        let key = format!("{}:{}", settlement.invoice_id, settlement.attempt);
        let facts = json!({ "vault_id": token, "settlement": settlement.id, "n": settlement.n });
        let purpose = Purpose::Settlement(settlement.id);
        let mut intent = Intent::planned(self.intent, owner.id, purpose, key, facts, now);
        intent.invoice_id = Some(settlement.invoice_id.clone());
        intent.amount_micros = Some(settlement.amount_micros);
        Ok(intent)
    }
}

/// The id of a chain that books what PayPal did by itself: one resource, one effect.
pub fn chain_of(kind: &str, resource: &str) -> TransferId {
    let print = Fingerprint::of(&[kind.as_bytes(), resource.as_bytes()]);
    let bytes = print.0.first_chunk::<16>().copied().unwrap_or_default();
    TransferId::from_value(u128::from_be_bytes(bytes))
}

/// Records what became of a settlement's intent.
#[derive(Clone, Debug)]
pub struct RecordOutcome {
    /// Whose, from a plain read; never changes.
    pub owner: OwnerId,
    /// Which tab, from the same read; never changes.
    pub tab: TabId,
    /// Which settlement.
    pub settlement: SettlementId,
    /// Which intent.
    pub intent: IntentId,
    /// The fence it was claimed with.
    pub fence: u64,
    /// What became of it.
    pub fate: Fate<Charge>,
    /// How that was learnt.
    pub evidence: Evidence,
    /// The operator's numbers.
    pub settings: Arc<Settings>,
}

impl Unit for RecordOutcome {
    type Answer = Settlement;

    fn name(&self) -> &'static str {
        "settlement.record"
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touch_tabs(&mut touches, view, self.owner);
        touches.row::<Tab>(self.tab);
        touches.row::<Settlement>(self.settlement);
        touches.row::<Intent>(self.intent);
        touches.account(Account::TabOwed(self.tab).usd());
        if let Some(settlement) = view.peek::<Settlement>(self.settlement) {
            touches.hold_and_accounts(settlement.hold, view);
        }
        if let Some(capture) = self.capture() {
            for kind in ["captured", "fee", "suspense", "cleared"] {
                touches.hold(chain_of(kind, capture));
            }
            touches.account(Account::CaptureRefundable(self.intent).usd());
            touches.account(Account::PaypalCash.usd());
            touches.account(Account::PaypalFees.usd());
            touches.account(Account::Suspense.usd());
            touches.account(Account::Memo.usd());
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Settlement>, Stop> {
        let mut intent = view.need::<Intent>(self.intent)?.clone();
        let settlement = view.need::<Settlement>(self.settlement)?;
        let of = (settlement.owner, settlement.tab);
        if intent.purpose != Purpose::Settlement(settlement.id) || of != (self.owner, self.tab) {
            return Err(Stop::Bug(format!("intent {} is for something else", intent.id)));
        }
        let confirm_above = self.settings.confirm_not_charged_above_micros;
        let booked = self.booked(view)?;
        let (fate, doubt) = match booked {
            Booked::Elsewhere if intent.state.is_open() => {
                (Fate::Unknown, Some("the capture is booked for something else"))
            }
            _ => intent.judge(&self.fate, confirm_above, now),
        };
        #[cfg(feature = "planted")]
        let fate = spoiled(fate, settlement.amount_micros);
        let how = match doubt {
            Some(doubt) => format!("{}, {doubt}", self.evidence.how),
            None => self.evidence.how.clone(),
        };
        let was = intent.state;
        if !intent.take(self.fence, &fate, Evidence { how, ..self.evidence.clone() }, now) {
            return self.late(intent, was, booked, settlement);
        }
        let state = Recording {
            settlement: settlement.clone(),
            tab: view.need::<Tab>(self.tab)?.clone(),
            owner: view.need::<Owner>(self.owner)?.clone(),
            intent,
            effects: Effects::answer(()),
        };
        match fate {
            Fate::Done(charge) => self.captured(view, state, &charge, booked, now),
            Fate::Pending { paypal_order, paypal_capture } => {
                let mut state = state;
                let known = |new: Option<String>, old: Option<String>| new.or(old);
                state.intent.paypal_order = known(paypal_order, state.intent.paypal_order);
                state.intent.paypal_capture = known(paypal_capture, state.intent.paypal_capture);
                state.finish("settlement.pending")
            }
            Fate::Declined { issue } => state.declined(issue, now),
            Fate::Refused { issue } => {
                let at = after(now, self.settings.settle_retry_seconds);
                state.void(SettlementState::Refused, Some(issue), at, now)
            }
            Fate::NotCharged => state.void(SettlementState::NotCharged, None, now, now),
            Fate::Unknown | Fate::AlreadyDone { .. } | Fate::NotYet { .. } => {
                state.finish("settlement.unknown")
            }
            Fate::NotRun => state.finish("settlement.not_run"),
        }
    }
}

/// A fate misunderstood, for tests of tests.
#[cfg(feature = "planted")]
fn spoiled(fate: Fate<Charge>, amount: Micros) -> Fate<Charge> {
    use crate::planted::{Bug, on};
    match fate {
        Fate::Unknown if on(Bug::ReleaseOnUnknown) => Fate::NotCharged,
        Fate::Pending { paypal_order, paypal_capture: Some(paypal_capture) }
            if on(Bug::CreditOnPending) =>
        {
            Fate::Done(Charge { paypal_order, paypal_capture, amount, fee: Micros::ZERO })
        }
        fate => fate,
    }
}

/// Where the money of a capture stands before it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Booked {
    /// Nowhere.
    No,
    /// Wholly in suspense, since it arrived for an attempt that had been closed as *not charged*;
    /// the next attempt, under the same invoice, found it.
    InSuspense,
    /// For a settlement.
    Elsewhere,
}

/// The rows that change together when an outcome is recorded.
struct Recording {
    settlement: Settlement,
    tab: Tab,
    owner: Owner,
    intent: Intent,
    effects: Effects<()>,
}

impl RecordOutcome {
    /// The capture that may be booked.
    fn capture(&self) -> Option<&str> {
        match &self.fate {
            Fate::Done(charge) => Some(&charge.paypal_capture),
            #[cfg(feature = "planted")]
            Fate::Pending { paypal_capture, .. } => paypal_capture.as_deref(),
            _ => None,
        }
    }

    /// Whether the capture that was learnt of is in the books already: one capture, one effect.
    // INVARIANT: a_capture_is_booked_once
    fn booked(&self, view: &View) -> Result<Booked, Stop> {
        let Fate::Done(charge) = &self.fate else { return Ok(Booked::No) };
        let chain = |kind| view.hold(chain_of(kind, &charge.paypal_capture));
        if chain("captured")?.is_none() {
            return Ok(Booked::No);
        }
        let whole = |hold: &Hold| hold.legs.iter().any(|leg| leg.amount == charge.amount);
        let suspended = chain("suspense")?.is_some_and(whole) && chain("cleared")?.is_none();
        Ok(if suspended { Booked::InSuspense } else { Booked::Elsewhere })
    }

    fn captured(
        &self,
        view: &View,
        mut state: Recording,
        charge: &Charge,
        booked: Booked,
        now: Timestamp,
    ) -> Result<Effects<Settlement>, Stop> {
        let asked = state.settlement.amount_micros;
        let posted = charge.amount.min(asked);
        if posted.is_zero() {
            return Err(Stop::Bug(format!("capture {} of nothing", charge.paypal_capture)));
        }
        let hold = state.settlement.hold;
        if booked == Booked::InSuspense {
            let leg = Leg::new(Account::Suspense.usd(), state.tab.owed(), posted);
            let id = chain_of("cleared", &charge.paypal_capture);
            state.effects.op(Op::Void { id: hold });
            state.effects.op(Op::Move { id, cause: Cause::SuspenseCleared, legs: vec![leg] });
        } else {
            state.effects.op(Op::Post { id: hold, amounts: vec![posted] });
            self.book_capture(&mut state.effects, charge, charge.amount.saturating_sub(posted));
        }
        // What came short stays on the tab, for the next settlement.
        let short = asked.saturating_sub(posted);
        state.tab.carry_micros = add(state.tab.carry_micros, short)?;
        state.tab.captured_micros = add(state.tab.captured_micros, charge.amount)?;
        state.settlement.state = if charge.amount == asked {
            SettlementState::Captured
        } else {
            SettlementState::AmountMismatch
        };
        state.settlement.captured_micros = Some(charge.amount);
        state.settlement.fee_micros = Some(charge.fee);
        state.settlement.paypal_order = charge.paypal_order.clone();
        state.settlement.paypal_capture = Some(charge.paypal_capture.clone());
        state.settlement.ended_at = Some(now);
        state.intent.paypal_order = charge.paypal_order.clone();
        state.intent.paypal_capture = Some(charge.paypal_capture.clone());
        state.owner.settled_micros = add(state.owner.settled_micros, posted)?;
        state.tab.open_settlement = None;
        state.thaw(view)?;
        // What was pending becomes posted, so the rest is what stays collectible, and any shortfall.
        let rest = add(view.totals(state.tab.owed())?.collectible(), short)?;
        if state.tab.state == TabState::Closed && rest.is_zero() && state.tab.pending_holds == 0 {
            finish(&mut state.owner, &mut state.tab);
        }
        let kind = match state.settlement.state {
            SettlementState::AmountMismatch => "settlement.amount_mismatch",
            _ => "settlement.captured",
        };
        state.finish(kind)
    }

    /// What every capture books beside its own hold: what may be given back of it, the fee, and
    /// what came above what was asked.
    fn book_capture<A>(&self, effects: &mut Effects<A>, charge: &Charge, excess: Micros) {
        let capture = &charge.paypal_capture;
        let refundable = Account::CaptureRefundable(self.intent).usd();
        let mut book = |kind, cause, debit, credit, amount: Micros| {
            if !amount.is_zero() {
                let legs = vec![Leg::new(debit, credit, amount)];
                effects.op(Op::Move { id: chain_of(kind, capture), cause, legs });
            }
        };
        let cash = Account::PaypalCash.usd();
        book("captured", Cause::Refundable, Account::Memo.usd(), refundable, charge.amount);
        book("fee", Cause::PaypalFee, Account::PaypalFees.usd(), cash, charge.fee);
        book("suspense", Cause::Suspense, cash, Account::Suspense.usd(), excess);
    }

    /// A result under an old fence, or of a closed intent. Evidence only; but money that arrived for
    /// an intent that was closed as *nothing happened* is booked to suspense, once, and alarms.
    fn late(
        &self,
        intent: Intent,
        was: IntentState,
        booked: Booked,
        settlement: &Settlement,
    ) -> Result<Effects<Settlement>, Stop> {
        let mut effects = Effects::answer(settlement.clone());
        if let Fate::Done(charge) = &self.fate
            && !was.is_open()
            && booked == Booked::No
        {
            self.book_capture(&mut effects, charge, charge.amount);
            let data = json!({ "settlement": settlement.id, "capture": charge.paypal_capture,
                "amount_micros": charge.amount });
            effects.event("alarm.capture_of_closed_intent", &[], data);
        }
        effects.put(intent)?;
        Ok(effects)
    }
}

impl Recording {
    /// A frozen tab goes on once an attempt succeeded; the owner waits on while another is frozen.
    fn thaw(&mut self, view: &View) -> Result<(), Stop> {
        self.owner.frozen_tab = other_frozen(view, &self.owner, self.tab.id)?;
        self.tab.thaw(self.owner.open_tab);
        Ok(())
    }

    /// The payer's side said no: the lines are unsettled again, and the tab is frozen.
    fn declined(mut self, issue: String, now: Timestamp) -> Result<Effects<Settlement>, Stop> {
        self.effects.op(Op::Void { id: self.settlement.hold });
        self.tab.open_settlement = None;
        self.tab.state = TabState::Frozen;
        self.owner.frozen_tab.get_or_insert(self.tab.id);
        let own = |range: &LineRange| range.tab == self.tab.id;
        if let Some(range) = self.settlement.lines.iter().find(|range| own(range)) {
            self.tab.settled_lines = range.from;
        }
        self.tab.carried_lines =
            self.settlement.lines.iter().filter(|r| !own(r)).copied().collect();
        #[cfg(feature = "planted")]
        if crate::planted::on(crate::planted::Bug::LoseCarriedLines) {
            self.tab.carried_lines.clear();
        }
        self.tab.carry_micros = self.settlement.carry_in_micros;
        self.tab.unsettled_since = self.settlement.since.or(self.tab.unsettled_since);
        uncount_small(&mut self.owner, self.settlement.id);
        self.settlement.state = SettlementState::Declined;
        self.settlement.issue = Some(issue);
        self.settlement.ended_at = Some(now);
        let data = json!({ "tab": self.tab.id, "settlement": self.settlement.id });
        self.effects.event("tab.frozen", &[&self.owner.id], data);
        self.finish("settlement.declined")
    }

    /// Nothing was charged: the same settlement is attempted again, not before `at`.
    fn void(
        mut self,
        state: SettlementState,
        issue: Option<String>,
        at: Timestamp,
        now: Timestamp,
    ) -> Result<Effects<Settlement>, Stop> {
        self.effects.op(Op::Void { id: self.settlement.hold });
        self.tab.open_settlement = None;
        self.tab.retry = Some(self.settlement.id);
        self.tab.not_before = Some(at);
        self.settlement.state = state;
        self.settlement.issue = issue;
        self.settlement.ended_at = Some(now);
        let kind = match state {
            SettlementState::Refused => "alarm.settlement_refused",
            _ => "settlement.not_charged",
        };
        self.finish(kind)
    }

    fn finish(mut self, kind: &str) -> Result<Effects<Settlement>, Stop> {
        let data = json!({ "settlement": self.settlement.id, "tab": self.tab.id,
            "state": self.settlement.state, "amount_micros": self.settlement.amount_micros,
            "issue": self.settlement.issue });
        self.effects.event(kind, &[&self.owner.id], data);
        self.effects.put(self.tab)?;
        self.effects.put(self.owner)?;
        self.effects.put(self.intent)?;
        self.effects.put(self.settlement.clone())?;
        let settlement = self.settlement;
        Ok(self.effects.map(|()| settlement))
    }
}

/// The operator's word that a large unknown settlement was not charged; counts only together with
/// the evidence of a search.
#[derive(Clone, Copy, Debug)]
pub struct ConfirmNotCharged {
    /// Which intent.
    pub intent: IntentId,
}

impl Unit for ConfirmNotCharged {
    type Answer = Intent;

    fn name(&self) -> &'static str {
        "intent.confirm_not_charged"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Intent>(self.intent);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Intent>, Stop> {
        let Some(intent) = view.row::<Intent>(self.intent)? else {
            return Err(Refusal::new(Code::NotFound, "no such intent").into());
        };
        if intent.state != IntentState::Unknown {
            return Err(
                Refusal::new(Code::StateConflict, "the intent's outcome is not unknown").into()
            );
        }
        let mut intent = intent.clone();
        intent.confirmed = true;
        intent.next_at = now;
        let mut effects = Effects::answer(intent.clone());
        effects.put(intent)?;
        Ok(effects)
    }
}
