//! What became of a settlement's PayPal call, recorded: the pending transfer is posted, voided, or
//! left, and everything that a capture brings with it is booked once.

use std::sync::Arc;

use serde_json::json;

use super::{INVOICE_TAKEN, Settlement, SettlementState, finish};
use crate::chain::{self, ChainKind, chain_of};
use crate::id::{IntentId, OwnerId, SettlementId, TabId};
use crate::intent::{Charge, Evidence, Fate, Intent, IntentState, Purpose};
use crate::ledger::{Account, Cause, Leg, Op};
use crate::money::Micros;
use crate::party::Owner;
use crate::reversal::{Captured, Note, Reversal};
use crate::settings::Settings;
use crate::suspense::{BookUnasked, Suspended, Why};
use crate::tab::{LineRange, Tab, TabState, add, other_frozen, touch_tabs};
use crate::time::{Timestamp, after};
use crate::treasurer::uncount_small;
use crate::unit::{Effects, Stop, Touches, Unit, View};

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
            chain::touch_booked(&mut touches, capture);
            for kind in [ChainKind::Fee, ChainKind::Cleared, ChainKind::RefundableMoved] {
                touches.hold(chain_of(kind, capture));
            }
            touches.row::<Suspended>(capture);
            if let Some(old) = view.peek::<Suspended>(capture).and_then(|row| row.intent) {
                touches.account(Account::CaptureRefundable(old).usd());
            }
            Note::touch(&mut touches, capture, None);
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
            // Some of it went back meanwhile: it pays for nothing any more, and its invoice is used.
            Booked::GivenBack if intent.state.is_open() => {
                intent.judge(&Fate::InvoiceTaken { doubtful: false }, confirm_above, now)
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
            return self.late(view, intent, was, booked, settlement, now);
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
            Fate::InvoiceTaken { .. } => {
                let issue = Some(INVOICE_TAKEN.to_owned());
                state.void(SettlementState::NotCharged, issue, now, now)
            }
            Fate::Unknown
            | Fate::AlreadyDone { .. }
            | Fate::DoubtfulDecline { .. }
            | Fate::NotYet { .. } => state.finish("settlement.unknown"),
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
            Fate::Done(Charge {
                paypal_order,
                paypal_capture,
                amount,
                fee: Micros::ZERO,
                given_back: false,
            })
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
    /// It was in suspense for this settlement, and some of it was given back before it was found.
    GivenBack,
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
        match chain::booked(view, &charge.paypal_capture)? {
            None => return Ok(Booked::No),
            Some(ChainKind::Captured | ChainKind::Suspense) => {}
            Some(_) => return Ok(Booked::Elsewhere),
        }
        let suspended = view.row::<Suspended>(&charge.paypal_capture)?;
        let Some(row) =
            suspended.filter(|row| matches!(row.why, Why::ClosedIntent | Why::Doubtful))
        else {
            return Ok(Booked::Elsewhere);
        };
        let own = row.settlement == Some(self.settlement);
        let cleared = view.hold(chain_of(ChainKind::Cleared, &charge.paypal_capture))?.is_some();
        Ok(match own && !cleared {
            true if row.left_micros == charge.amount => Booked::InSuspense,
            true => Booked::GivenBack,
            false => Booked::Elsewhere,
        })
    }

    /// Whose the capture is.
    const fn of(&self) -> Captured {
        Captured { intent: self.intent, settlement: self.settlement, owner: self.owner }
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
        let mut fee = charge.fee;
        if booked == Booked::InSuspense {
            let suspended = view.need::<Suspended>(&charge.paypal_capture)?;
            // Booked when the money came. Where PayPal now tells another, the comparison says so.
            fee = suspended.fee_micros;
            state.effects.put(suspended.less(posted))?;
            self.take_over(view, &mut state.effects, charge, suspended.intent)?;
            let leg = Leg::new(Account::Suspense.usd(), state.tab.owed(), posted);
            let id = chain_of(ChainKind::Cleared, &charge.paypal_capture);
            state.effects.op(Op::Void { id: hold });
            state.effects.op(Op::Move { id, cause: Cause::SuspenseCleared, legs: vec![leg] });
        } else {
            state.effects.op(Op::Post { id: hold, amounts: vec![posted] });
            let excess = charge.amount.saturating_sub(posted);
            self.book_capture(&mut state.effects, charge, excess, Why::AmountMismatch, now)?;
        }
        let of = Some((self.of(), &mut state.owner));
        Note::when_booked(charge, of, view, &mut state.effects, now)?;
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
        state.settlement.fee_micros = Some(fee);
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

    /// A capture that came for an earlier attempt pays this one: what it may give back, and what went
    /// back of it already, belongs here from now on.
    fn take_over<A>(
        &self,
        view: &View,
        effects: &mut Effects<A>,
        charge: &Charge,
        from: Option<IntentId>,
    ) -> Result<(), Stop> {
        let capture = &charge.paypal_capture;
        if view.hold(chain_of(ChainKind::Captured, capture))?.is_none() {
            // What came in doubt was nobody's, so nothing said yet what may be given back of it.
            let refundable = Account::CaptureRefundable(self.intent).usd();
            let legs = vec![Leg::new(Account::Memo.usd(), refundable, charge.amount)];
            let id = chain_of(ChainKind::Captured, capture);
            effects.op(Op::Move { id, cause: Cause::Refundable, legs });
        } else if let Some(from) = from.filter(|from| *from != self.intent) {
            let old = Account::CaptureRefundable(from).usd();
            let (new, memo) = (Account::CaptureRefundable(self.intent).usd(), Account::Memo.usd());
            let left = view.totals(old)?.available();
            if !left.is_zero() {
                let legs = vec![Leg::new(old, memo, left), Leg::new(memo, new, left)];
                let id = chain_of(ChainKind::RefundableMoved, capture);
                effects.op(Op::Move { id, cause: Cause::Refundable, legs });
            }
        }
        if let Some(row) = view.row::<Reversal>(capture)? {
            effects.put(Reversal { of: Some(self.of()), ..row.clone() })?;
        }
        Ok(())
    }

    /// What every capture books beside its own hold: what may be given back of it, the fee, and
    /// what came above what was asked.
    fn book_capture<A>(
        &self,
        effects: &mut Effects<A>,
        charge: &Charge,
        excess: Micros,
        why: Why,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let capture = &charge.paypal_capture;
        let refundable = Account::CaptureRefundable(self.intent).usd();
        let mut book = |kind, cause, debit, credit, amount: Micros| {
            if !amount.is_zero() {
                let legs = vec![Leg::new(debit, credit, amount)];
                effects.op(Op::Move { id: chain_of(kind, capture), cause, legs });
            }
        };
        let cash = Account::PaypalCash.usd();
        book(
            ChainKind::Captured,
            Cause::Refundable,
            Account::Memo.usd(),
            refundable,
            charge.amount,
        );
        book(ChainKind::Fee, Cause::PaypalFee, Account::PaypalFees.usd(), cash, charge.fee);
        book(ChainKind::Suspense, Cause::Suspense, cash, Account::Suspense.usd(), excess);
        if excess.is_zero() {
            return Ok(());
        }
        effects.put(Suspended {
            capture: capture.clone(),
            why,
            amount_micros: excess,
            left_micros: excess,
            fee_micros: charge.fee,
            cleared: Vec::new(),
            settlement: Some(self.settlement),
            intent: Some(self.intent),
            invoice_id: None,
            times_paid: 0,
            at: now,
        })
    }

    /// A result under an old fence, or of a closed intent. Evidence only; but money that arrived for
    /// an intent that was closed as *nothing happened* is booked to suspense, once, and alarms.
    fn late(
        &self,
        view: &View,
        intent: Intent,
        was: IntentState,
        booked: Booked,
        settlement: &Settlement,
        now: Timestamp,
    ) -> Result<Effects<Settlement>, Stop> {
        let mut effects = Effects::answer(settlement.clone());
        match &self.fate {
            Fate::Done(charge) if !was.is_open() && booked == Booked::No => {
                if settlement.is_captured() {
                    self.unasked(view, &mut effects, charge, settlement, now)?;
                } else {
                    self.of_closed(view, &mut effects, charge, settlement, now)?;
                }
            }
            _ => {}
        }
        effects.put(intent)?;
        Ok(effects)
    }

    /// It came for an attempt that had been closed as *nothing happened*.
    fn of_closed<A>(
        &self,
        view: &View,
        effects: &mut Effects<A>,
        charge: &Charge,
        settlement: &Settlement,
        now: Timestamp,
    ) -> Result<(), Stop> {
        self.book_capture(effects, charge, charge.amount, Why::ClosedIntent, now)?;
        let mut owner = view.need::<Owner>(self.owner)?.clone();
        let of = Some((self.of(), &mut owner));
        Note::when_booked(charge, of, view, effects, now)?;
        if charge.given_back {
            effects.put(owner)?;
        }
        let data = json!({ "settlement": settlement.id, "capture": charge.paypal_capture,
            "amount_micros": charge.amount });
        effects.event("alarm.capture_of_closed_intent", &[], data);
        Ok(())
    }

    /// A settlement that another capture paid has no claim to this one: whoever knows the ids on a
    /// receipt may pay under them, and take that back. It is a payment of its own, of nobody.
    // INVARIANT: a_settlement_answers_for_its_own_capture_only
    fn unasked<A>(
        &self,
        view: &View,
        effects: &mut Effects<A>,
        charge: &Charge,
        settlement: &Settlement,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let payment = BookUnasked {
            capture: charge.paypal_capture.clone(),
            amount: charge.amount,
            fee: charge.fee,
            invoice_id: Some(settlement.invoice_id.clone()),
            claims: None,
        };
        payment.book(effects, now)?;
        Note::when_booked(charge, None, view, effects, now)
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
