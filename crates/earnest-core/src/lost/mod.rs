//! What a life that was lost did at PayPal and with sellers, taken back into restored books.
//!
//! A capture under one of our invoices that these books do not know was a settlement of the life that
//! was lost. It pays what its tab owes here, as far as that goes, so that nobody is charged twice for
//! it; the rest was for purchases that are lost, waits in suspense under the tab's name, and pays for
//! whatever comes onto that tab first. A seller's report of a lost purchase is kept for the operator.

mod line;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::chain::{ChainKind, booked, chain_of, touch_booked};
use crate::id::{IntentId, OwnerId, SettlementId, TabId};
use crate::intent::{Charge, Evidence, Intent, IntentState, Purpose, stamp};
use crate::ledger::{Account, Cause, Leg, Op, Totals};
use crate::money::Micros;
use crate::party::Owner;
use crate::reversal::{Captured, Note};
use crate::settlement::{Marker, Settlement, SettlementState, finish};
use crate::suspense::{Suspended, Why};
use crate::tab::{Tab, TabState, add, other_frozen, touch_tabs};
use crate::time::{Timestamp, after};
use crate::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};

pub use line::{DecideLost, KeepLost, LineState, LostLine};
pub(crate) use line::{may_have_been_booked_late, sold_by_a_lost_life};

/// How long to wait before a capture that PayPal still decides about is read again, in seconds.
const READ_AGAIN_SECONDS: i64 = 600;

/// Where a capture of the life that was lost stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LostState {
    /// PayPal is still deciding about it.
    Pending,
    /// It is in the books.
    Booked,
    /// It came to nothing.
    Gone,
}

/// What a capture says of the settlement that it was for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// PayPal's id of the capture.
    pub capture: String,
    /// Our invoice on it.
    pub invoice_id: String,
    /// The tab that the invoice names.
    pub tab: TabId,
    /// Which of that tab's settlements.
    pub n: u64,
    /// The settlement, as the capture carries it.
    pub settlement: SettlementId,
    /// Whose, where the capture carries that and the books know the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerId>,
    /// The tab that it pays here: the same, or where that one is not known the one that its owner
    /// owes on now. None: nothing of it can be placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pays: Option<TabId>,
}

/// The tab that an invoice of our form names: `epoch:tab_…:n:mark`, of whatever epoch. Strangers may
/// write it too.
pub fn tab_of_invoice(invoice_id: &str) -> Option<TabId> {
    let parts: Vec<&str> = invoice_id.split(':').collect();
    let [epoch, tab, n, _] = parts.as_slice() else { return None };
    n.parse::<u64>().ok()?;
    tab.parse().ok().filter(|_| !epoch.is_empty())
}

/// How many settlements of one tab a lost life may have made. What claims more was written by
/// somebody else, and would use up the count.
const MOST_LOST_SETTLEMENTS: u64 = 10_000;

impl Marks {
    /// Which settlement of its tab it was, as far as its own number can be believed.
    fn n_on(&self, named: bool, known: u64) -> u64 {
        let believed = named && self.n <= known.saturating_add(MOST_LOST_SETTLEMENTS);
        if believed { self.n } else { known.saturating_add(1) }
    }

    /// Reads our marks: invoice `epoch:tab:n:mark`, and `set_….own_…` beside it, proved together with
    /// the amount by `marker`. `None` for everything else: receipts show the form, and whoever pays us
    /// may write it.
    ///
    /// Of any epoch: the one of a life that began with another restore of the same copy is in no books
    /// that are left, and its proofs are by the same secret. Who takes the marks for true has to look
    /// whether tab, owner and time fit.
    pub fn read(
        capture: &str,
        invoice_id: &str,
        custom_id: Option<&str>,
        amount: Micros,
        marker: &Marker,
    ) -> Option<Self> {
        let tab = tab_of_invoice(invoice_id)?;
        let n = invoice_id.split(':').nth(2)?.parse().ok()?;
        let custom = custom_id.filter(|custom| marker.is_proved(invoice_id, custom, amount))?;
        let (settlement, owner) = custom.split_once('.')?;
        let owner = Some(owner.parse().ok()?);
        Some(Self {
            capture: capture.to_owned(),
            invoice_id: invoice_id.to_owned(),
            tab,
            n,
            settlement: settlement.parse().ok()?,
            owner,
            pays: None,
        })
    }

    /// The epoch in which it was asked for.
    pub fn epoch(&self) -> &str {
        self.invoice_id.split(':').next().unwrap_or_default()
    }

    /// The id under which the call that made it stands here: its own is lost.
    pub fn intent(&self) -> IntentId {
        IntentId::from_value(chain_of(ChainKind::LostCall, &self.capture).value())
    }
}

/// A capture of the life that was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostCapture {
    /// What it says of itself.
    pub marks: Marks,
    /// Whose tab it pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerId>,
    /// Where it stands.
    pub state: LostState,
    /// What was captured.
    pub amount_micros: Micros,
    /// What of it paid for lines that these books knew.
    pub placed_micros: Micros,
    /// When it was first seen.
    pub seen_at: Timestamp,
    /// When to read it again, while it is pending.
    pub next_at: Timestamp,
}

impl LostCapture {
    /// Whether it has its place: a tab that it pays or that waits for it, or it came to nothing.
    pub fn is_placed(&self) -> bool {
        self.marks.pays.is_some() || self.state == LostState::Gone
    }
}

impl Record for LostCapture {
    const KIND: &'static str = "lost_capture";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.marks.capture.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![ListEntry::timed("lost_captures", "", self.seen_at)];
        if self.state == LostState::Pending {
            lists.push(ListEntry::new("lost_captures.open", "", stamp(self.next_at)));
        }
        lists
    }
}

/// What a capture of the life that was lost turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// PayPal is still deciding.
    Pending,
    /// The money came.
    Done(Charge),
    /// It came to nothing.
    Gone,
}

/// Books a capture of the life that was lost. Booking it again changes nothing.
#[derive(Clone, Debug)]
pub struct BookLost {
    /// What it says of itself.
    pub marks: Marks,
    /// Whose tab it pays, from a plain read; never changes.
    pub owner: Option<OwnerId>,
    /// What it is.
    pub found: Found,
    /// How that was learnt.
    pub evidence: Evidence,
}

impl Unit for BookLost {
    /// Whether something changed.
    type Answer = bool;

    fn name(&self) -> &'static str {
        "lost.book"
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        let capture = &self.marks.capture;
        if let (Some(owner), Some(tab)) = (self.owner, self.marks.pays) {
            touch_tabs(&mut touches, view, owner);
            touches.row::<Tab>(tab);
            touches.row::<Settlement>(self.marks.settlement);
            touch_retry(&mut touches, view, tab);
            touches.row::<Intent>(self.marks.intent());
            touches.account(Account::TabOwed(tab).usd());
            touches.account(Account::CaptureRefundable(self.marks.intent()).usd());
            touches.account(Account::Memo.usd());
        }
        touches.row::<LostCapture>(capture);
        touches.row::<Suspended>(capture);
        Note::touch(&mut touches, capture, None);
        touch_booked(&mut touches, capture);
        for kind in [ChainKind::Fee, ChainKind::LostPaid] {
            touches.hold(chain_of(kind, capture));
        }
        for account in [Account::PaypalCash, Account::PaypalFees, Account::Suspense] {
            touches.account(account.usd());
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<bool>, Stop> {
        let known = view.row::<LostCapture>(&self.marks.capture)?;
        // INVARIANT: a_lost_capture_is_booked_once
        if known.is_some_and(|row| row.state != LostState::Pending)
            || booked(view, &self.marks.capture)?.is_some()
        {
            return Ok(Effects::answer(false));
        }
        let row = LostCapture {
            // Where it pays was settled when it was first seen: its tab waits for it.
            marks: known.map_or_else(|| self.marks.clone(), |row| row.marks.clone()),
            owner: known.map_or(self.owner, |row| row.owner),
            state: LostState::Pending,
            amount_micros: Micros::ZERO,
            placed_micros: Micros::ZERO,
            seen_at: known.map_or(now, |row| row.seen_at),
            next_at: after(now, READ_AGAIN_SECONDS),
        };
        if (row.marks.pays, row.owner) != (self.marks.pays, self.owner) {
            return Err(Stop::Bug(format!("capture {} pays elsewhere", self.marks.capture)));
        }
        match &self.found {
            Found::Pending => self.wait(view, row),
            Found::Gone => self.gone(view, row),
            Found::Done(charge) => match (row.owner, row.marks.pays) {
                // INVARIANT: a_settlement_is_restored_from_one_capture
                (Some(_), Some(tab)) if view.row::<Settlement>(row.marks.settlement)?.is_some() => {
                    self.twice(view, row, charge, tab, now)
                }
                (Some(owner), Some(tab)) => self.pay(view, row, charge, owner, tab, now),
                _ => self.unplaced(view, row, charge, Why::Restored, now),
            },
        }
    }
}

/// The retried settlement of a tab: its amount is owed, and not for lines that wait.
fn touch_retry(touches: &mut Touches, view: &View, tab: TabId) {
    if let Some(retry) = view.peek::<Tab>(tab).and_then(|tab| tab.retry) {
        touches.row::<Settlement>(retry);
    }
}

/// What [`pays_first`] looks at.
pub(crate) fn touch<'a>(touches: &mut Touches, captures: impl Iterator<Item = &'a String>) {
    for capture in captures {
        touches.row::<LostCapture>(capture);
        touches.row::<Suspended>(capture);
    }
}

/// Whether something that a lost life captured for a tab is still being decided about at PayPal, or
/// waits to pay what the tab owes. What owes for nothing that waits, or is used up, keeps nobody.
pub(crate) fn pays_first(view: &View, tab: &Tab, totals: &Totals) -> Result<bool, Stop> {
    if tab.lost.is_empty() || totals.collectible().is_zero() {
        return Ok(false);
    }
    let owes = !waiting(view, tab, totals)?.is_zero();
    for capture in &tab.lost {
        let pending = view.need::<LostCapture>(capture)?.state == LostState::Pending;
        let left = view.row::<Suspended>(capture)?.is_some_and(|row| !row.left_micros.is_zero());
        if pending || (left && owes) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a tab owes for lines that wait, and what it carries.
fn waiting(view: &View, tab: &Tab, totals: &Totals) -> Result<Micros, Stop> {
    let retry = match tab.retry {
        Some(id) => view.need::<Settlement>(id)?.amount_micros,
        None => Micros::ZERO,
    };
    Ok(totals.collectible().saturating_sub(retry))
}

impl BookLost {
    /// PayPal decides later; until then its tab is not settled.
    fn wait(&self, view: &View, row: LostCapture) -> Result<Effects<bool>, Stop> {
        let mut effects = Effects::answer(true);
        if let Some(id) = row.marks.pays {
            let mut tab = view.need::<Tab>(id)?.clone();
            if !tab.lost.contains(&row.marks.capture) {
                tab.lost.push(row.marks.capture.clone());
                effects.put(tab)?;
            }
        }
        effects.put(row)?;
        Ok(effects)
    }

    fn gone(&self, view: &View, row: LostCapture) -> Result<Effects<bool>, Stop> {
        let mut effects = Effects::answer(true);
        if let Some(id) = row.marks.pays {
            let mut tab = view.need::<Tab>(id)?.clone();
            tab.lost.retain(|capture| *capture != row.marks.capture);
            effects.put(tab)?;
        }
        effects.put(LostCapture { state: LostState::Gone, ..row })?;
        Ok(effects)
    }

    /// Cash that came, the fee that PayPal took, and what of it has no place yet.
    fn book_cash(
        &self,
        effects: &mut Effects<bool>,
        row: &LostCapture,
        charge: &Charge,
        (unplaced, why): (Micros, Why),
        now: Timestamp,
    ) -> Result<(), Stop> {
        let (capture, cash) = (&row.marks.capture, Account::PaypalCash.usd());
        let mut book = |kind, cause, debit, credit, amount: Micros| {
            if !amount.is_zero() {
                let legs = vec![Leg::new(debit, credit, amount)];
                effects.op(Op::Move { id: chain_of(kind, capture), cause, legs });
            }
        };
        book(ChainKind::Suspense, Cause::Suspense, cash, Account::Suspense.usd(), unplaced);
        book(ChainKind::Fee, Cause::PaypalFee, Account::PaypalFees.usd(), cash, charge.fee);
        if unplaced.is_zero() {
            return Ok(());
        }
        let placed = row.marks.pays.is_some();
        effects.put(Suspended {
            capture: capture.clone(),
            why,
            amount_micros: unplaced,
            left_micros: unplaced,
            settlement: placed.then_some(row.marks.settlement),
            intent: placed.then(|| row.marks.intent()),
            invoice_id: Some(row.marks.invoice_id.clone()),
            fee_micros: charge.fee,
            cleared: Vec::new(),
            times_paid: 0,
            at: now,
        })
    }

    /// Another capture is in the books for the same settlement: this one is whoever's, and waits in
    /// suspense under a reason of its own. It names nobody, and keeps no tab waiting.
    fn twice(
        &self,
        view: &View,
        mut row: LostCapture,
        charge: &Charge,
        tab: TabId,
        now: Timestamp,
    ) -> Result<Effects<bool>, Stop> {
        let mut tab = view.need::<Tab>(tab)?.clone();
        let waited = tab.lost.contains(&row.marks.capture);
        tab.lost.retain(|capture| *capture != row.marks.capture);
        (row.marks.pays, row.owner) = (None, None);
        let mut effects = self.unplaced(view, row, charge, Why::SettledAlready, now)?;
        if waited {
            effects.put(tab)?;
        }
        Ok(effects)
    }

    /// No tab of these books is meant: all of it waits in suspense, under the invoice.
    fn unplaced(
        &self,
        view: &View,
        row: LostCapture,
        charge: &Charge,
        why: Why,
        now: Timestamp,
    ) -> Result<Effects<bool>, Stop> {
        let mut effects = Effects::answer(true);
        self.book_cash(&mut effects, &row, charge, (charge.amount, why), now)?;
        Note::when_booked(charge, None, view, &mut effects, now)?;
        let data = json!({ "capture": charge.paypal_capture, "amount_micros": charge.amount,
            "invoice_id": row.marks.invoice_id });
        effects.event("alarm.lost_capture_unplaced", &[], data);
        effects.put(LostCapture {
            state: LostState::Booked,
            amount_micros: charge.amount,
            ..row
        })?;
        Ok(effects)
    }

    /// It pays what its tab owes here; the rest was for purchases that are lost.
    fn pay(
        &self,
        view: &View,
        row: LostCapture,
        charge: &Charge,
        owner: OwnerId,
        tab: TabId,
        now: Timestamp,
    ) -> Result<Effects<bool>, Stop> {
        let mut tab = view.need::<Tab>(tab)?.clone();
        let mut owner = view.need::<Owner>(owner)?.clone();
        if tab.owner != owner.id {
            return Err(Stop::Bug(format!("tab {} is not {}'s", tab.id, owner.id)));
        }
        let capture = charge.paypal_capture.clone();
        let totals = view.totals(tab.owed())?;
        let waits = waiting(view, &tab, &totals)?;
        let placed = charge.amount.min(waits);
        let lost = charge.amount.saturating_sub(placed);
        let mut effects = Effects::answer(true);
        if !placed.is_zero() {
            let legs = vec![Leg::new(Account::PaypalCash.usd(), tab.owed(), placed)];
            let id = chain_of(ChainKind::LostPaid, &capture);
            effects.op(Op::Move { id, cause: Cause::Settlement, legs });
        }
        let refundable = Account::CaptureRefundable(row.marks.intent()).usd();
        let legs = vec![Leg::new(Account::Memo.usd(), refundable, charge.amount)];
        let id = chain_of(ChainKind::Captured, &capture);
        effects.op(Op::Move { id, cause: Cause::Refundable, legs });
        self.book_cash(&mut effects, &row, charge, (lost, Why::Restored), now)?;
        let settlement = self.settlement(&row, &tab, charge, (waits, placed, lost), now);
        let of =
            Captured { intent: row.marks.intent(), settlement: settlement.id, owner: owner.id };
        Note::when_booked(charge, Some((of, &mut owner)), view, &mut effects, now)?;
        take_lines(&mut tab, waits.saturating_sub(placed));
        tab.settlements = tab.settlements.max(settlement.n);
        tab.captured_micros = add(tab.captured_micros, charge.amount)?;
        tab.lost.retain(|known| *known != capture);
        if !lost.is_zero() {
            tab.lost.push(capture.clone());
        }
        owner.settled_micros = add(owner.settled_micros, placed)?;
        let rest = totals.collectible().saturating_sub(placed);
        // A part of what was declined is no payment of it.
        if rest.is_zero() {
            owner.frozen_tab = other_frozen(view, &owner, tab.id)?;
            tab.thaw(owner.open_tab);
        }
        if tab.state == TabState::Closed
            && rest.is_zero()
            && tab.pending_holds == 0
            && tab.open_settlement.is_none()
        {
            finish(&mut owner, &mut tab);
        }
        let data = json!({ "settlement": settlement.id, "tab": tab.id, "capture": capture,
            "amount_micros": charge.amount, "placed_micros": placed, "lost_micros": lost });
        effects.event("settlement.restored", &[&owner.id], data);
        effects.put(self.intent(&owner, &settlement, charge, now))?;
        effects.put(settlement)?;
        effects.put(tab)?;
        effects.put(owner)?;
        effects.put(LostCapture {
            state: LostState::Booked,
            amount_micros: charge.amount,
            placed_micros: placed,
            ..row
        })?;
        Ok(effects)
    }

    /// The settlement as far as it is known: carry in + lines + lost - carry out = captured. Its
    /// receipt was signed in the life that was lost, over all of its lines; none is signed here.
    fn settlement(
        &self,
        row: &LostCapture,
        tab: &Tab,
        charge: &Charge,
        (waits, placed, lost): (Micros, Micros, Micros),
        now: Timestamp,
    ) -> Settlement {
        let marks = &row.marks;
        let named = marks.tab == tab.id;
        Settlement {
            id: marks.settlement,
            owner: tab.owner,
            tab: tab.id,
            n: marks.n_on(named, tab.settlements),
            attempt: 1,
            state: SettlementState::Restored,
            lines: tab.unsettled(),
            lines_micros: waits.saturating_sub(tab.carry_micros),
            carry_in_micros: tab.carry_micros.min(waits),
            carry_out_micros: waits.saturating_sub(placed),
            lost_micros: lost,
            amount_micros: charge.amount,
            captured_micros: Some(charge.amount),
            given_back_micros: Micros::ZERO,
            fee_predicted_micros: charge.fee,
            fee_micros: Some(charge.fee),
            intent: marks.intent(),
            hold: chain_of(ChainKind::LostPaid, &marks.capture),
            why: "captured in the life that a restore lost".to_owned(),
            advice: None,
            since: tab.unsettled_since,
            invoice_id: marks.invoice_id.clone(),
            paypal_order: charge.paypal_order.clone(),
            paypal_capture: Some(marks.capture.clone()),
            issue: None,
            receipt: None,
            created_at: now,
            ended_at: Some(now),
        }
    }

    fn intent(&self, owner: &Owner, of: &Settlement, charge: &Charge, now: Timestamp) -> Intent {
        let purpose = Purpose::Settlement(of.id);
        let key = format!("{}:lost", of.invoice_id);
        let facts = json!({ "settlement": of.id, "n": of.n });
        let mut intent = Intent::planned(of.intent, owner.id, purpose, key, facts, now);
        intent.state = IntentState::Done;
        intent.invoice_id = Some(of.invoice_id.clone());
        intent.amount_micros = Some(charge.amount);
        intent.paypal_order = charge.paypal_order.clone();
        intent.paypal_capture = Some(charge.paypal_capture.clone());
        intent.learn(self.evidence.clone());
        intent
    }
}

/// Every line that waited is listed by a settlement now; `rest` is carried to the next.
fn take_lines(tab: &mut Tab, rest: Micros) {
    tab.settled_lines = tab.lines;
    tab.carried_lines.clear();
    tab.carry_micros = rest;
    // What is still owed is as old as it was.
    if rest.is_zero() {
        tab.unsettled_since = None;
    }
}

/// Pays what a tab owes with money of the life that was lost, before anything is captured for it.
#[derive(Clone, Debug)]
pub struct ClearLost {
    /// Whose tab, from a plain read; never changes.
    pub owner: OwnerId,
    /// Which tab.
    pub tab: TabId,
    /// PayPal's id of the capture.
    pub capture: String,
    /// The settlement that it was for, from a plain read; never changes.
    pub settlement: SettlementId,
    /// How often it has paid already, from a plain read; checked again here.
    pub cleared: u32,
}

/// The chain by which a capture paid for something for the `n`th time after it was imported.
pub fn cleared_chain(capture: &str, n: u32) -> crate::id::TransferId {
    chain_of(ChainKind::LostLine, &format!("{capture}:{n}"))
}

impl Unit for ClearLost {
    /// What was paid.
    type Answer = Micros;

    fn name(&self) -> &'static str {
        "lost.clear"
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Owner>(self.owner);
        touches.row::<Tab>(self.tab);
        touches.row::<Settlement>(self.settlement);
        touch_retry(&mut touches, view, self.tab);
        touches.row::<LostCapture>(&self.capture);
        touches.row::<Suspended>(&self.capture);
        touches.hold(cleared_chain(&self.capture, self.cleared));
        touches.account(Account::TabOwed(self.tab).usd());
        touches.account(Account::Suspense.usd());
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<Micros>, Stop> {
        let mut tab = view.need::<Tab>(self.tab)?.clone();
        let lost = view.need::<LostCapture>(&self.capture)?;
        let nothing = Ok(Effects::answer(Micros::ZERO));
        if lost.state == LostState::Pending || !tab.lost.contains(&self.capture) {
            return nothing;
        }
        let row = view.row::<Suspended>(&self.capture)?.filter(|row| !row.left_micros.is_zero());
        let Some(row) = row else {
            // Used up, or given back at PayPal.
            tab.lost.retain(|capture| *capture != self.capture);
            let mut effects = Effects::answer(Micros::ZERO);
            effects.put(tab)?;
            return Ok(effects);
        };
        let totals = view.totals(tab.owed())?;
        let waits = waiting(view, &tab, &totals)?;
        let paid = row.left_micros.min(waits);
        if row.times_paid != self.cleared || paid.is_zero() {
            return nothing;
        }
        let mut owner = view.need::<Owner>(self.owner)?.clone();
        let mut settlement = view.need::<Settlement>(self.settlement)?.clone();
        let mut effects = Effects::answer(paid);
        let legs = vec![Leg::new(Account::Suspense.usd(), tab.owed(), paid)];
        let id = cleared_chain(&self.capture, self.cleared);
        effects.op(Op::Move { id, cause: Cause::SuspenseCleared, legs });
        let short = || Stop::Bug(format!("settlement {} lost less than it pays", settlement.id));
        settlement.lost_micros = settlement.lost_micros.checked_sub(paid).ok_or_else(short)?;
        let rest = waits.saturating_sub(paid);
        let lines = waits.saturating_sub(tab.carry_micros);
        settlement.lines.extend(tab.unsettled());
        settlement.lines_micros = add(settlement.lines_micros, lines)?;
        settlement.carry_in_micros = add(settlement.carry_in_micros, tab.carry_micros)?;
        settlement.carry_out_micros = add(settlement.carry_out_micros, rest)?;
        take_lines(&mut tab, rest);
        let mut row = row.less(paid);
        row.times_paid = row.times_paid.saturating_add(1);
        if row.left_micros.is_zero() {
            tab.lost.retain(|capture| *capture != self.capture);
        }
        owner.settled_micros = add(owner.settled_micros, paid)?;
        let owes = totals.collectible().saturating_sub(paid);
        let over = tab.state == TabState::Closed && tab.open_settlement.is_none();
        if over && owes.is_zero() && tab.pending_holds == 0 {
            finish(&mut owner, &mut tab);
        }
        let data = json!({ "settlement": settlement.id, "tab": tab.id, "capture": self.capture,
            "paid_micros": paid, "left_micros": row.left_micros });
        effects.event("tab.paid_from_suspense", &[&owner.id], data);
        effects.put(row)?;
        effects.put(settlement)?;
        effects.put(tab)?;
        effects.put(owner)?;
        Ok(effects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_marks_are_read() {
        let marker = Marker::derive(&[7; 32]);
        let (tab, intent) = (TabId::from_value(7), IntentId::from_value(6));
        let settlement = SettlementId::from_value(8);
        let (owner, amount) = (OwnerId::from_value(9), Micros::constant(950_000));
        let custom = format!("{settlement}.{owner}");
        let written =
            |epoch: &str, custom: &str| marker.invoice(epoch, (tab, 3), intent, custom, amount);
        let read =
            |invoice: &str, custom: &str| Marks::read("C", invoice, Some(custom), amount, &marker);
        let invoice = written("e1", &custom);
        let marks = read(&invoice, &custom).unwrap();
        assert_eq!((marks.tab, marks.n, marks.settlement), (tab, 3, settlement));
        assert_eq!((marks.owner, marks.epoch()), (Some(owner), "e1"));
        let unheard = read(&written("e0f1", &custom), &custom).unwrap();
        assert_eq!((unheard.tab, unheard.epoch()), (tab, "e0f1"));
        // Proved, and of no form that we write.
        for (epoch, custom) in [("", custom.as_str()), ("e1", "set_.own_"), ("e1", "rent")] {
            assert_eq!(read(&written(epoch, custom), custom), None, "{epoch} {custom}");
        }
        assert_eq!(Marks::read("C", &invoice, None, amount, &marker), None);
        // Of our form, and not proved: as receipts show it, or for another amount.
        for forged in [format!("e1:{tab}:3:mark"), format!("e1:{tab}:3:{}", "0".repeat(28))] {
            assert_eq!(read(&forged, &custom), None, "{forged}");
        }
        let cent = Micros::constant(10_000);
        assert_eq!(Marks::read("C", &invoice, Some(&custom), cent, &marker), None);
    }
}
