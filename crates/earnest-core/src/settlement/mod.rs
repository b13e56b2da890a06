//! A settlement: what a tab owes, turned into one capture.
//!
//! Settlement n: carry in + lines - carry out = captured. The pending transfer is committed with
//! its intent; the stored outcome posts or voids it; *unknown* and *pending* leave it, without a
//! deadline. Only the payer's refusal freezes a tab.

mod marker;
mod record;
mod whose;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::id::{IntentId, OwnerId, ReceiptId, SettlementId, TabId, TransferId};
use crate::intent::{Intent, IntentState, Purpose};
use crate::ledger::{Account, Cause, Leg, Op};
use crate::lost;
use crate::money::Micros;
use crate::party::Owner;
use crate::policy::{Policy, Schedule};
use crate::problem::{Code, Refusal};
use crate::quarantine::Quarantine;
use crate::settings::Settings;
use crate::tab::{LineRange, Tab, TabState, add, credit_line, room};
use crate::time::Timestamp;
use crate::treasurer::{Advice, Plan, Wish, count_small, plan};
use crate::unit::{Effects, Key, KeyUse, ListEntry, Record, Stop, Touches, Unit, View, rank};

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
    /// Captured in a life of these books that a restore lost, and found in PayPal's records.
    Restored,
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
    /// What it captured for lines that a restore lost; waits in suspense for what comes onto the tab.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub lost_micros: Micros,
    /// What PayPal is asked for: whole cents.
    pub amount_micros: Micros,
    /// What PayPal captured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captured_micros: Option<Micros>,
    /// What of it went back at PayPal afterwards.
    pub given_back_micros: Micros,
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
    /// What the advisor had said of the tab by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
    /// When its oldest line was posted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Carried in invoice and key: `epoch:tab:n:mark`. The mark cannot be known before the settlement
    /// is made, so nobody takes the invoice first by paying us under it; and it ends in a proof, so that
    /// nobody else writes one ([`Marker`]).
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
const fn is_nothing(amount: &Micros) -> bool {
    amount.is_zero()
}

impl Settlement {
    /// Whether money was captured.
    pub const fn is_captured(&self) -> bool {
        matches!(
            self.state,
            SettlementState::Captured | SettlementState::AmountMismatch | SettlementState::Restored
        )
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
        // The receipt of a restored one was signed before the loss, over all of its lines.
        let unsigned = self.is_captured() && self.state != SettlementState::Restored;
        if unsigned && self.receipt.is_none() {
            lists.push(ListEntry::new("settlements.unsigned", "", self.id));
        }
        lists
    }
}

/// What an owner's policy says about its tabs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The most one may owe.
    pub limit: Option<Micros>,
    /// When the owner wants to be charged.
    pub schedule: Option<Schedule>,
}

impl Terms {
    /// The terms of an owner's policy; none where there is none that can be read.
    pub fn of(policy: Option<&Policy>) -> Self {
        let limits = policy.and_then(Policy::limits);
        Self {
            limit: limits.and_then(|limits| limits.tab_limit_micros),
            schedule: limits.and_then(|limits| limits.settle),
        }
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
    /// Makes the proof on the invoice.
    pub marker: Marker,
    /// Whether somebody asked for it.
    pub asked: bool,
    /// The asker's name for this one wish; a repeat shows what came of it.
    pub key: Option<Key>,
    /// What the owner's policy says about its tabs, from a plain read.
    pub terms: Terms,
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
        Quarantine::touch(&mut touches);
        touches.row::<Owner>(self.owner);
        touches.row::<Tab>(self.tab);
        touches.row::<Settlement>(self.settlement);
        if let Some(id) = view.key().bound() {
            touches.row::<Settlement>(id);
        }
        if let Some(retry) = view.peek::<Tab>(self.tab).and_then(|tab| tab.retry) {
            touches.row::<Settlement>(retry);
        }
        let tab = view.peek::<Tab>(self.tab);
        lost::touch(&mut touches, tab.iter().flat_map(|tab| &tab.lost));
        touches.row::<Intent>(self.intent);
        touches.hold(self.hold);
        touches.account(Account::TabOwed(self.tab).usd());
        for earlier in view.peek::<Owner>(self.owner).iter().flat_map(|owner| &owner.earlier_tabs) {
            touches.account(Account::TabOwed(*earlier).usd());
        }
        touches.account(Account::OwnerDebt(self.owner).usd());
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
        Quarantine::refuse(view)?;
        let owner = view.need::<Owner>(self.owner)?;
        let tab = view.row::<Tab>(self.tab)?.filter(|tab| tab.owner == self.owner);
        let Some(tab) = tab else {
            return Err(Refusal::new(Code::NotFound, "no such tab").into());
        };
        let totals = view.totals(tab.owed())?;
        // INVARIANT: what_a_lost_life_captured_pays_first
        if lost::pays_first(view, tab, &totals)? {
            let why = "what was captured before the restore pays first".to_owned();
            return Ok(Effects::answer(Settled::Waited(why)));
        }
        let room = self.room(view, owner)?;
        let wish = Wish { asked: self.asked, schedule: self.terms.schedule };
        match plan(tab, owner, &totals, room, wish, &self.settings, now) {
            Plan::Wait { why } => Ok(Effects::answer(Settled::Waited(why))),
            Plan::Carry { why } => end(owner, tab, totals.collectible(), why),
            Plan::Settle { .. } if owner.funding.is_none() => Ok(Effects::answer(Settled::Waited(
                "the owner has no payment method on file".to_owned(),
            ))),
            Plan::Settle { why, amount_micros, ends } => {
                let settlement = match tab.retry {
                    Some(id) => {
                        let last = view.need::<Settlement>(id)?;
                        self.again(tab, last, totals.collectible(), now)?
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

pub(crate) fn finish(owner: &mut Owner, tab: &mut Tab) {
    tab.finished = true;
    owner.earlier_tabs.retain(|id| *id != tab.id);
}

impl Settle {
    /// What the tab may owe, as the next purchase will find it.
    fn room(&self, view: &View, owner: &Owner) -> Result<Micros, Stop> {
        let debt = view.totals(Account::OwnerDebt(owner.id).usd())?.collectible();
        let mut earlier = add(debt, owner.disputed_micros)?;
        for tab in owner.earlier_tabs.iter().filter(|tab| **tab != self.tab) {
            earlier = add(earlier, view.totals(Account::TabOwed(*tab).usd())?.owed())?;
        }
        Ok(room(self.terms.limit, credit_line(owner, &self.settings), earlier))
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
            lost_micros: Micros::ZERO,
            carry_out_micros: carry_out.ok_or_else(|| short("would settle more than it owes"))?,
            amount_micros: amount,
            captured_micros: None,
            given_back_micros: Micros::ZERO,
            fee_predicted_micros: self.settings.fee.predict(amount),
            fee_micros: None,
            intent: self.intent,
            hold: self.hold,
            why,
            advice: tab.advice.clone().filter(|it| it.is_fresh(tab, now)),
            since: tab.unsettled_since,
            invoice_id: self.invoice(tab, n, self.settlement, amount),
            paypal_order: None,
            paypal_capture: None,
            issue: None,
            receipt: None,
            created_at: now,
            ended_at: None,
        })
    }

    fn invoice(&self, tab: &Tab, n: u64, settlement: SettlementId, amount: Micros) -> String {
        let custom = mark(settlement, tab.owner);
        self.marker.invoice(&self.epoch, (tab.id, n), self.intent, &custom, amount)
    }

    /// The same settlement again: number and lines stay, the key is new. So does the invoice, unless
    /// somebody else's payment carries it: then PayPal would refuse it for ever.
    fn again(
        &self,
        tab: &Tab,
        last: &Settlement,
        owed: Micros,
        now: Timestamp,
    ) -> Result<Settlement, Stop> {
        if owed < last.amount_micros {
            return Err(Stop::Bug(format!("settlement {} is above what the tab owes", last.id)));
        }
        let invoice_id = match last.issue.as_deref() {
            Some(INVOICE_TAKEN) => self.invoice(tab, last.n, last.id, last.amount_micros),
            _ => last.invoice_id.clone(),
        };
        Ok(Settlement {
            invoice_id,
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
        // The settlement has its sentence; what comes next is asked about anew.
        tab.advice = None;
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
        // An invoice may be older than the epoch: it stays, so that PayPal takes no second payment
        // under it, but no key of a life that was lost is used again.
        let key = match settlement.invoice_id.split(':').next() == Some(self.epoch.as_str()) {
            true => format!("{}:{}", settlement.invoice_id, settlement.attempt),
            false => format!("{}:{}:{}", self.epoch, settlement.invoice_id, settlement.attempt),
        };
        let facts = json!({ "vault_id": token, "settlement": settlement.id, "n": settlement.n });
        let purpose = Purpose::Settlement(settlement.id);
        let mut intent = Intent::planned(self.intent, owner.id, purpose, key, facts, now);
        intent.invoice_id = Some(settlement.invoice_id.clone());
        intent.amount_micros = Some(settlement.amount_micros);
        Ok(intent)
    }
}

pub use marker::Marker;
pub use record::RecordOutcome;
use whose::mark;
pub use whose::{Among, Hinted, Seen, Whose};

/// The issue of a settlement whose invoice another payment carries.
pub const INVOICE_TAKEN: &str = "INVOICE_TAKEN";

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
