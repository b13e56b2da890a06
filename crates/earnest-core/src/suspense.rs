//! Money that arrived and matches nothing.
//!
//! It is in our PayPal balance, so it is in the books: on `suspense`, with one row for each capture
//! that says why. It leaves when its place is found (by itself, or because the operator says where it
//! belongs), or when it was given back at PayPal.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::chain::{ChainKind, booked, chain_of, touch_booked};
use crate::id::{IntentId, OwnerId, SettlementId, TabId, TransferId};
use crate::ledger::{Account, Cause, Leg, Op};
use crate::money::Micros;
use crate::party::Owner;
use crate::problem::{Code, Refusal};
use crate::quarantine::Quarantine;
use crate::settlement::{Settlement, SettlementState, key_conflict};
use crate::tab::{Tab, TabState, add, over, touch_tabs};
use crate::time::Timestamp;
use crate::unit::{Effects, Key, KeyUse, ListEntry, Record, Stop, Touches, Unit, View, rank};

/// Why money matches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// PayPal captured more than the settlement asked for; this is the rest.
    AmountMismatch,
    /// It came for an attempt that had been closed as *nothing happened*. The next attempt under the
    /// same invoice finds it.
    ClosedIntent,
    /// It has the ids of a settlement whose outcome is unknown, and another amount than was asked.
    /// If PayPal's own answer names it after all, the settlement takes it.
    Doubtful,
    /// Somebody paid us without being asked.
    Unasked,
    /// A life of these books that a restore lost captured it, for lines that are lost with it.
    Restored,
    /// It has the marks of a settlement of a lost life that another capture is in the books for.
    SettledAlready,
}

/// A capture of which something is in suspense.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspended {
    /// PayPal's id of the capture.
    pub capture: String,
    /// Why.
    pub why: Why,
    /// What went to suspense.
    pub amount_micros: Micros,
    /// What of it is still there.
    pub left_micros: Micros,
    /// What PayPal took of the whole capture.
    #[serde(default)]
    pub fee_micros: Micros,
    /// Where the operator said that something of it belongs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cleared: Vec<Cleared>,
    /// The settlement it speaks of, where it speaks of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settlement: Option<SettlementId>,
    /// The attempt that it came for: what it may give back stands on that one's account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<IntentId>,
    /// The invoice id it carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invoice_id: Option<String>,
    /// How often it paid what its tab owed, where a lost life captured it.
    #[serde(default, skip_serializing_if = "is_never")]
    pub times_paid: u32,
    /// When it was booked.
    pub at: Timestamp,
}

/// A part of a capture that the operator cleared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleared {
    /// Where it went.
    pub to: Place,
    /// Whose it is.
    pub owner: OwnerId,
    /// How much.
    pub amount_micros: Micros,
    /// What of it went back at PayPal since.
    #[serde(default)]
    pub given_back_micros: Micros,
    /// When.
    pub at: Timestamp,
}

/// Where money in suspense belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", content = "id", rename_all = "snake_case")]
pub enum Place {
    /// Prepaid credit of an owner.
    Credit(OwnerId),
    /// An owner's debt, which it repays.
    Debt(OwnerId),
    /// A frozen or closed tab, whose whole rest it pays.
    Tab(TabId),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
const fn is_never(count: &u32) -> bool {
    *count == 0
}

impl Record for Suspended {
    const KIND: &'static str = "suspended";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.capture.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![ListEntry::timed("suspended", "", self.at)];
        if !self.left_micros.is_zero() {
            lists.push(ListEntry::timed("suspended.left", "", self.at));
        }
        lists
    }
}

/// A part of a cleared payment that went back at PayPal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenBack {
    /// Whose it was.
    pub(crate) owner: OwnerId,
    /// How much.
    pub(crate) amount: Micros,
    /// Whether it had paid a tab, and so made the owner's line grow.
    pub(crate) settled: bool,
}

impl Suspended {
    /// Takes back up to `amount` of what the operator cleared, the newest first.
    pub(crate) fn take_back(&mut self, amount: Micros) -> Vec<TakenBack> {
        let (mut left, mut taken) = (amount, Vec::new());
        for one in self.cleared.iter_mut().rev() {
            let part = one.amount_micros.saturating_sub(one.given_back_micros).min(left);
            if let Some(back) = one.given_back_micros.checked_add(part).filter(|_| !part.is_zero())
            {
                one.given_back_micros = back;
                left = left.saturating_sub(part);
                let settled = matches!(one.to, Place::Tab(_));
                taken.push(TakenBack { owner: one.owner, amount: part, settled });
            }
        }
        taken
    }

    /// The same with `amount` of it gone, all of it at most.
    #[must_use]
    pub fn less(&self, amount: Micros) -> Self {
        Self { left_micros: self.left_micros.saturating_sub(amount), ..self.clone() }
    }
}

/// Books a payment that nobody asked for, as it was read from PayPal. Booking it again changes
/// nothing; nor does a capture that is in the books for a settlement.
#[derive(Clone, Debug)]
pub struct BookUnasked {
    /// PayPal's id of the capture.
    pub capture: String,
    /// What was captured.
    pub amount: Micros,
    /// What PayPal took.
    pub fee: Micros,
    /// The invoice id it carries.
    pub invoice_id: Option<String>,
    /// The settlement, and its attempt, that it may be for: [`Why::Doubtful`] then.
    pub claims: Option<(SettlementId, IntentId)>,
}

impl Unit for BookUnasked {
    type Answer = ();

    fn name(&self) -> &'static str {
        "suspense.book"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Suspended>(&self.capture);
        touch_booked(&mut touches, &self.capture);
        touches.hold(chain_of(ChainKind::Fee, &self.capture));
        touches.account(Account::PaypalCash.usd());
        touches.account(Account::PaypalFees.usd());
        touches.account(Account::Suspense.usd());
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        // INVARIANT: a_payment_is_booked_once
        if booked(view, &self.capture)?.is_some() || self.amount.is_zero() {
            return Ok(effects);
        }
        self.book(&mut effects, now)?;
        Ok(effects)
    }
}

impl BookUnasked {
    /// All of it into suspense, and the fee that PayPal took.
    pub(crate) fn book<A>(&self, effects: &mut Effects<A>, now: Timestamp) -> Result<(), Stop> {
        let cash = Account::PaypalCash.usd();
        let mut book = |kind, cause, debit, credit, amount: Micros| {
            if !amount.is_zero() {
                let legs = vec![Leg::new(debit, credit, amount)];
                effects.op(Op::Move { id: chain_of(kind, &self.capture), cause, legs });
            }
        };
        let suspense = Account::Suspense.usd();
        book(ChainKind::Suspense, Cause::Suspense, cash, suspense, self.amount);
        book(ChainKind::Fee, Cause::PaypalFee, Account::PaypalFees.usd(), cash, self.fee);
        let data = json!({ "capture": self.capture, "amount_micros": self.amount,
            "invoice_id": self.invoice_id,
            "settlement": self.claims.map(|(settlement, _)| settlement) });
        effects.event("alarm.payment_unasked", &[], data);
        effects.put(Suspended {
            capture: self.capture.clone(),
            why: if self.claims.is_some() { Why::Doubtful } else { Why::Unasked },
            amount_micros: self.amount,
            left_micros: self.amount,
            fee_micros: self.fee,
            cleared: Vec::new(),
            settlement: self.claims.map(|(settlement, _)| settlement),
            intent: self.claims.map(|(_, intent)| intent),
            invoice_id: self.invoice_id.clone(),
            times_paid: 0,
            at: now,
        })
    }
}

/// The operator says where money in suspense belongs. What of it goes back at PayPal afterwards falls
/// on the owner it was cleared for.
#[derive(Clone, Debug)]
pub struct Clear {
    /// PayPal's id of the capture.
    pub capture: String,
    /// Where it belongs.
    pub to: Place,
    /// Whose that is, from a plain read.
    pub owner: OwnerId,
    /// What the payment speaks of, from a plain read; never changes.
    pub speaks_of: Option<SpokenOf>,
    /// How much; all that is left, or all that the place takes, unless said.
    pub amount: Option<Micros>,
    /// The id of the chain.
    pub chain: TransferId,
    /// The operator's name for this one wish.
    pub key: Key,
}

/// A settlement that a payment speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpokenOf {
    /// The settlement.
    pub settlement: SettlementId,
    /// Its tab.
    pub tab: TabId,
    /// Whose.
    pub owner: OwnerId,
}

impl SpokenOf {
    /// Whether the settlement may still take a payment that has its ids. One that is under way may;
    /// one that came to nothing does when it is attempted again, which it is not once its tab was
    /// written off or paid in another way, nor while its owner has no payment method. Should it be
    /// attempted after all, it finds that the payment went elsewhere, and asks under another invoice.
    fn may_take(self, view: &View) -> Result<bool, Stop> {
        let settlement = view.need::<Settlement>(self.settlement)?;
        Ok(match settlement.state {
            SettlementState::Open => true,
            SettlementState::Captured
            | SettlementState::AmountMismatch
            | SettlementState::Restored
            | SettlementState::Declined => false,
            SettlementState::NotCharged | SettlementState::Refused => {
                let again = view.need::<Tab>(self.tab)?.retry == Some(self.settlement);
                again && view.need::<Owner>(self.owner)?.funding.is_some()
            }
        })
    }
}

impl Clear {
    /// How much goes: all of `left` and of what the place takes, unless said.
    fn amount(&self, left: Micros, most: Option<Micros>) -> Result<Micros, Stop> {
        let refuse = |why: &str| Refusal::new(Code::StateConflict, why).amount("left", left);
        let all = most.map_or(left, |most| most.min(left));
        let amount = self.amount.unwrap_or(all);
        if amount > left || amount.is_zero() {
            return Err(refuse("there is not so much of it in suspense").into());
        }
        match most.filter(|most| amount > *most) {
            Some(most) => Err(refuse("that is more than is owed").amount("owed", most).into()),
            None => Ok(amount),
        }
    }
}

impl Unit for Clear {
    type Answer = Suspended;

    fn name(&self) -> &'static str {
        "suspense.clear"
    }

    fn key(&self) -> Option<Key> {
        Some(self.key.clone())
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        touch_tabs(&mut touches, view, self.owner);
        touches.row::<Suspended>(&self.capture);
        if let Some(it) = self.speaks_of {
            touches.row::<Owner>(it.owner);
            touches.row::<Tab>(it.tab);
            touches.row::<Settlement>(it.settlement);
        }
        touches.hold(self.chain);
        touches.account(Account::Suspense.usd());
        match self.to {
            Place::Credit(owner) => touches.account(Account::OwnerCredit(owner).usd()),
            Place::Debt(owner) => touches.account(Account::OwnerDebt(owner).usd()),
            Place::Tab(tab) => {
                touches.row::<Tab>(tab);
                touches.account(Account::TabOwed(tab).usd());
            }
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Suspended>, Stop> {
        let row = view.row::<Suspended>(&self.capture)?;
        let owner = view.row::<Owner>(self.owner)?;
        let (Some(row), Some(owner)) = (row, owner) else {
            return Err(Refusal::new(Code::NotFound, "no such payment or owner").into());
        };
        match view.key() {
            KeyUse::Other { .. } => return Err(key_conflict().into()),
            KeyUse::Same { bound: Some(_) } => return Ok(Effects::answer(row.clone())),
            _ => {}
        }
        // PayPal's records may show what the money was for, and that the tab was paid.
        Quarantine::refuse(view)?;
        // INVARIANT: what_a_settlement_may_take_is_not_cleared
        if row.settlement != self.speaks_of.map(|it| it.settlement) {
            return Err(Stop::Bug(format!("{} speaks of another settlement", self.capture)));
        }
        let waits = self.speaks_of.map(|it| it.may_take(view)).transpose()?;
        if matches!(row.why, Why::ClosedIntent | Why::Doubtful) && waits.unwrap_or(true) {
            let why = "it may belong to a settlement that is not over: the next attempt finds it";
            return Err(Refusal::new(Code::StateConflict, why).into());
        }
        let left = row.left_micros;
        let mut effects = Effects::answer(());
        let (account, amount) = match self.to {
            Place::Credit(owner) => (Account::OwnerCredit(owner), self.amount(left, None)?),
            Place::Debt(owner) => {
                let debt = view.totals(Account::OwnerDebt(owner).usd())?.collectible();
                (Account::OwnerDebt(owner), self.amount(left, Some(debt))?)
            }
            Place::Tab(id) => {
                let tab = view.row::<Tab>(id)?.filter(|tab| tab.owner == self.owner);
                let tab = tab.ok_or_else(|| Refusal::new(Code::NotFound, "no such tab"))?;
                let (tab, mut owner, rest) = over(view, tab, owner, TabState::PaidOff)?;
                // A part of a tab cannot be paid: which of its lines would it be?
                if self.amount.is_some_and(|amount| amount != rest) || left < rest {
                    let why = "a tab is paid whole or not at all";
                    let refusal = Refusal::new(Code::StateConflict, why);
                    return Err(refusal.amount("owed", rest).amount("left", left).into());
                }
                owner.settled_micros = add(owner.settled_micros, rest)?;
                let data = json!({ "tab": id, "capture": self.capture, "amount_micros": rest });
                effects.event("tab.paid_off", &[&owner.id], data);
                effects.put(tab)?;
                effects.put(owner)?;
                (Account::TabOwed(id), rest)
            }
        };
        let legs = vec![Leg::new(Account::Suspense.usd(), account.usd(), amount)];
        effects.op(Op::Move { id: self.chain, cause: Cause::SuspenseCleared, legs });
        effects.bind(amount.get());
        let mut row = row.less(amount);
        let cleared = Cleared {
            to: self.to,
            owner: self.owner,
            amount_micros: amount,
            given_back_micros: Micros::ZERO,
            at: now,
        };
        let data = json!({ "capture": self.capture, "to": self.to, "amount_micros": amount });
        effects.event("suspense.cleared", &[&self.owner], data);
        row.cleared.push(cleared);
        effects.put(row.clone())?;
        Ok(effects.map(|()| row))
    }
}
