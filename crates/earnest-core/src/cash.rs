//! What the operator moves at PayPal by hand: deposits, withdrawals, and an owner's debt that was
//! paid in another way than by a payment we can read.
//!
//! Each is recorded with PayPal's own id of it, so that the reconciliation finds it. What is in the
//! books already under that id (a capture, a refund) is refused, and what is read of PayPal later
//! under an id that was recorded here has no second effect: one id, one effect.
//!
//! What was recorded wrongly is taken back, with a reason, by a transfer the other way. From then on
//! the id is free: for what PayPal says it is, or to be recorded again as it should have been. What
//! was recorded before stays on the row.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::chain::{ChainKind, booked, chain_of, touch_booked};
use crate::id::{OwnerId, TransferId};
use crate::intent::stamp;
use crate::ledger::{Account, Cause, Leg, Op};
use crate::money::Micros;
use crate::party::Owner;
use crate::problem::{Code, Refusal};
use crate::reconcile::{Movement, Reconciliation};
use crate::reversal::{self, Reversal};
use crate::settlement::key_conflict;
use crate::time::{Timestamp, after};
use crate::unit::{Effects, Key, KeyUse, ListEntry, Record, Stop, Touches, Unit, View, rank};

/// What kind of movement it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CashKind {
    /// The operator's own money in.
    Deposit,
    /// The operator's own money out.
    Withdrawal,
    /// An owner paid a debt.
    Repayment,
}

/// A movement that the operator recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CashEntry {
    /// PayPal's id of it.
    pub paypal_id: String,
    /// What it is.
    pub kind: CashKind,
    /// Who repaid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerId>,
    /// What moved, without the fee.
    pub amount_micros: Micros,
    /// What PayPal took of it.
    pub fee_micros: Micros,
    /// When it was recorded.
    pub at: Timestamp,
    /// The capture that PayPal's records say it is a refund or reversal of, once they were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gave_back: Option<String>,
    /// Taken back: it counts for nothing any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voided: Option<Voided>,
    /// Whether PayPal still has it, to be asked; none once that is known, or was asked for long enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
    /// What was recorded under this id before, and taken back, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<CashEntry>,
}

/// That an entry was taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Voided {
    /// Why, in the operator's words.
    pub reason: String,
    /// When.
    pub at: Timestamp,
    /// How often PayPal was asked since what it is.
    pub looks: u32,
    /// When to ask next; none once that is known, or was asked for long enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
}

/// That a repayment has to be read at PayPal: what went back of it before it was recorded, no webhook
/// tells any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// How often PayPal was asked.
    pub looks: u32,
    /// When to ask next.
    pub next_at: Timestamp,
}

/// How often PayPal is asked what an entry is: over about a day.
const MAX_LOOKS: u32 = 30;

impl CashEntry {
    /// How it moves `paypal_cash`, with PayPal's signs; `None` once it is taken back.
    pub fn movement(&self) -> Option<Movement> {
        if self.voided.is_some() {
            return None;
        }
        let amount = self.amount_micros.get();
        let gross_micros = match self.kind {
            CashKind::Deposit | CashKind::Repayment => amount,
            CashKind::Withdrawal => amount.saturating_neg(),
        };
        let fee_micros = self.fee_micros.get().saturating_neg();
        Some(Movement { id: self.paypal_id.clone(), gross_micros, fee_micros, at: self.known_at() })
    }

    /// Since when the books know PayPal's id, as whatever they held it.
    pub fn known_at(&self) -> Timestamp {
        self.earlier.iter().fold(self.at, |at, entry| at.min(entry.at))
    }

    /// The chains of everything that was recorded under the id: what was booked, and what took it
    /// back, where that happened.
    pub fn chains(&self) -> impl Iterator<Item = TransferId> {
        let kinds = [ChainKind::Cash, ChainKind::CashVoided];
        (0..=self.earlier.len()).flat_map(move |n| kinds.map(|kind| self.chain(kind, n)))
    }

    /// No id of PayPal's has a colon in it.
    fn chain(&self, kind: ChainKind, n: usize) -> TransferId {
        match n {
            0 => chain_of(kind, &self.paypal_id),
            n => chain_of(kind, &format!("{}:{n}", self.paypal_id)),
        }
    }

    /// What it moved: the movement itself, then the fee; none at zero.
    fn legs(&self) -> Result<Vec<Leg>, Stop> {
        let (cash, funds) = (Account::PaypalCash.usd(), Account::OperatorFunds.usd());
        let main = match (self.kind, self.owner) {
            (CashKind::Repayment, Some(owner)) => {
                Leg::new(cash, Account::OwnerDebt(owner).usd(), self.amount_micros)
            }
            (CashKind::Deposit, None) => Leg::new(cash, funds, self.amount_micros),
            (CashKind::Withdrawal, None) => Leg::new(funds, cash, self.amount_micros),
            _ => {
                let why = "a repayment names its owner, and nothing else does";
                return Err(Refusal::new(Code::ValidationFailed, why).into());
            }
        };
        let fee = Leg::new(Account::PaypalFees.usd(), cash, self.fee_micros);
        Ok([main, fee].into_iter().filter(|leg| !leg.amount.is_zero()).collect())
    }
}

impl Record for CashEntry {
    const KIND: &'static str = "cash_entry";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.paypal_id.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![ListEntry::timed("cash_entries", "", self.at)];
        if let Some(voided) = &self.voided {
            let next = voided.next_at.map(stamp);
            lists.extend(next.map(|next| ListEntry::new("cash_entries.voided", "", next)));
        } else if let Some(check) = self.check {
            lists.push(ListEntry::new("cash_entries.unread", "", stamp(check.next_at)));
        }
        lists
    }
}

/// Whether a text can be an id of PayPal's: letters, digits and hyphens.
pub fn is_paypal_id(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    plain && (1..=64).contains(&text.len())
}

/// Records a movement of the operator's.
#[derive(Clone, Debug)]
pub struct RecordCash {
    /// PayPal's id of it; see [`is_paypal_id`].
    pub paypal_id: String,
    /// What it is.
    pub kind: CashKind,
    /// Who repaid; for a repayment only.
    pub owner: Option<OwnerId>,
    /// What moved, without the fee.
    pub amount: Micros,
    /// What PayPal took of it.
    pub fee: Micros,
    /// The operator's name for this one wish.
    pub key: Key,
}

fn refuse(why: &str) -> Refusal {
    Refusal::new(Code::StateConflict, why)
}

/// Refuses to take more out of the cash than is free in it.
// INVARIANT: a_withdrawal_leaves_what_is_pending
fn covered(view: &View, amount: Micros, fee: Micros) -> Result<(), Stop> {
    let free = view.totals(Account::PaypalCash.usd())?.collectible();
    if amount.checked_add(fee).is_none_or(|whole| whole > free) {
        let refusal = refuse("the cash, less what is pending, does not cover it");
        return Err(refusal.amount("available", free).into());
    }
    Ok(())
}

impl RecordCash {
    /// A repayment is not above what is owed, and a withdrawal not above what is there.
    fn check(&self, view: &View) -> Result<(), Stop> {
        if let Some(owner) = self.owner {
            view.row::<Owner>(owner)?
                .ok_or_else(|| Refusal::new(Code::NotFound, "no such owner"))?;
            let debt = view.totals(Account::OwnerDebt(owner).usd())?.collectible();
            if self.kind == CashKind::Repayment && self.amount > debt {
                let refusal = refuse("the owner owes less than that");
                return Err(refusal.amount("debt", debt).into());
            }
        }
        match self.kind {
            CashKind::Withdrawal => covered(view, self.amount, self.fee),
            CashKind::Deposit | CashKind::Repayment => Ok(()),
        }
    }
}

impl Unit for RecordCash {
    type Answer = CashEntry;

    fn name(&self) -> &'static str {
        "cash.record"
    }

    fn key(&self) -> Option<Key> {
        Some(self.key.clone())
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        if let Some(owner) = self.owner {
            touches.row::<Owner>(owner);
            touches.account(Account::OwnerDebt(owner).usd());
        }
        touch_booked(&mut touches, &self.paypal_id);
        touches.hold(chain_of(ChainKind::Cash, &self.paypal_id));
        if let Some(entry) = view.peek::<CashEntry>(&self.paypal_id) {
            touches.hold(entry.chain(ChainKind::Cash, entry.earlier.len().saturating_add(1)));
        }
        for account in [Account::PaypalCash, Account::PaypalFees, Account::OperatorFunds] {
            touches.account(account.usd());
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<CashEntry>, Stop> {
        match view.key() {
            KeyUse::Other { .. } => return Err(key_conflict().into()),
            KeyUse::Same { bound: Some(id) } => {
                return Ok(Effects::answer(view.need::<CashEntry>(id)?.clone()));
            }
            _ => {}
        }
        if booked(view, &self.paypal_id)?.is_some() {
            let why = format!("`{}` is in the books already", self.paypal_id);
            return Err(refuse(&why).into());
        }
        let cause = match self.kind {
            CashKind::Deposit => Cause::Deposit,
            CashKind::Withdrawal => Cause::Withdrawal,
            CashKind::Repayment => Cause::Repayment,
        };
        let earlier = view.row::<CashEntry>(&self.paypal_id)?.map_or_else(Vec::new, |voided| {
            let mut voided = voided.clone();
            let mut earlier = std::mem::take(&mut voided.earlier);
            earlier.push(voided);
            earlier
        });
        let entry = CashEntry {
            paypal_id: self.paypal_id.clone(),
            kind: self.kind,
            owner: self.owner,
            amount_micros: self.amount,
            fee_micros: self.fee,
            at: now,
            gave_back: None,
            voided: None,
            check: None,
            earlier,
        };
        let legs = entry.legs()?;
        self.check(view)?;
        let mut effects = Effects::answer(entry.clone());
        effects.bind(&self.paypal_id);
        let id = entry.chain(ChainKind::Cash, entry.earlier.len());
        effects.op(Op::Move { id, cause, legs });
        tell(&mut effects, "cash.recorded", &entry);
        let check = Check { looks: 0, next_at: now };
        let check = (self.kind == CashKind::Repayment).then_some(check);
        effects.put(CashEntry { check, ..entry })?;
        Ok(effects)
    }
}

fn tell<A>(effects: &mut Effects<A>, kind: &str, entry: &CashEntry) {
    match &entry.owner {
        Some(owner) => effects.event(kind, &[owner], json!(entry)),
        None => effects.event(kind, &[], json!(entry)),
    }
}

/// Takes back what was recorded by hand, by a transfer the other way; once. What it brought must
/// still be there, unless PayPal took it. The debt of a repayment stands again, and its owner is frozen until the operator
/// lifts that.
///
/// What PayPal has under the id may be booked as what it is afterwards: a capture is asked for, a
/// refund or reversal is read again.
#[derive(Clone, Debug)]
pub struct VoidCash {
    /// PayPal's id of it.
    pub paypal_id: String,
    /// Who repaid, from a plain read; checked again here.
    pub owner: Option<OwnerId>,
    /// Which capture it gave back of, from the same read; checked again here.
    pub gave_back: Option<String>,
    /// Why.
    pub reason: String,
    /// Whether it went back at PayPal. That is no wish of the operator's but what happened, so it is
    /// recorded whatever the books hold: what PayPal took is read next, and booked as well.
    pub went_back: bool,
    /// The name for this one wish.
    pub key: Key,
}

impl VoidCash {
    /// The chain that is taken back, and the one that does.
    fn chains(entry: &CashEntry) -> [TransferId; 2] {
        let n = entry.earlier.len();
        [entry.chain(ChainKind::Cash, n), entry.chain(ChainKind::CashVoided, n)]
    }

    /// A refund or reversal that counted as recorded by hand has to be read and booked now.
    fn reopen(&self, view: &View, now: Timestamp) -> Result<Option<Reversal>, Stop> {
        let Some(capture) = &self.gave_back else { return Ok(None) };
        Ok(Some(view.need::<Reversal>(capture)?.reopened(&self.paypal_id, now)))
    }
}

impl Unit for VoidCash {
    type Answer = CashEntry;

    fn name(&self) -> &'static str {
        "cash.void"
    }

    fn key(&self) -> Option<Key> {
        Some(self.key.clone())
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        if let Some(owner) = self.owner {
            touches.row::<Owner>(owner);
            touches.account(Account::OwnerDebt(owner).usd());
        }
        touches.row::<CashEntry>(&self.paypal_id);
        touches.row::<Reconciliation>(Reconciliation::ID);
        if let Some(capture) = &self.gave_back {
            touches.row::<Reversal>(capture);
        }
        if let Some(entry) = view.peek::<CashEntry>(&self.paypal_id) {
            Self::chains(entry).into_iter().for_each(|chain| touches.hold(chain));
        }
        for account in [Account::PaypalCash, Account::PaypalFees, Account::OperatorFunds] {
            touches.account(account.usd());
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<CashEntry>, Stop> {
        let entry = view.row::<CashEntry>(&self.paypal_id)?;
        let entry = entry.ok_or_else(|| Refusal::new(Code::NotFound, "no such entry"))?;
        match view.key() {
            KeyUse::Other { .. } => return Err(key_conflict().into()),
            KeyUse::Same { bound: Some(_) } => return Ok(Effects::answer(entry.clone())),
            _ => {}
        }
        // INVARIANT: a_cash_entry_is_voided_once
        if entry.voided.is_some() {
            return Err(refuse("it was taken back already").into());
        }
        if (entry.owner, &entry.gave_back) != (self.owner, &self.gave_back) {
            return Err(refuse("something else is recorded under the id by now").into());
        }
        let reopened = self.reopen(view, now)?;
        let mut entry = entry.clone();
        entry.voided = Some(Voided {
            reason: self.reason.clone(),
            at: now,
            looks: 0,
            // A refund or reversal is read by a road of its own.
            next_at: reopened.is_none().then_some(now),
        });
        // What it brought is still there: PayPal may know it as something else, and what was taken
        // out meanwhile has to be taken back first.
        if entry.kind != CashKind::Withdrawal && !self.went_back {
            covered(view, entry.amount_micros.saturating_sub(entry.fee_micros), Micros::ZERO)?;
        }
        let mut effects = Effects::answer(entry.clone());
        effects.bind(&self.paypal_id);
        let [_, id] = Self::chains(&entry);
        let back = |leg: Leg| Leg { debit: leg.credit, credit: leg.debit, ..leg };
        let legs = entry.legs()?.into_iter().map(back).collect();
        effects.op(Op::Move { id, cause: Cause::CashVoided, legs });
        tell(&mut effects, "cash.voided", &entry);
        if let Some(owner) = self.owner {
            let mut owner = view.need::<Owner>(owner)?.clone();
            owner.frozen.get_or_insert_with(|| "a repayment was taken back".to_owned());
            effects.put(owner)?;
        }
        if let Some(row) = reopened {
            effects.put(row)?;
        }
        // What PayPal has under the id may lie behind what comparisons look at, and has to be named as
        // long as nothing else is booked for it.
        let known = view.row::<Reconciliation>(Reconciliation::ID)?;
        if let Some(row) = known.and_then(|row| row.looking_back(now)) {
            effects.put(row)?;
        }
        effects.put(entry)?;
        Ok(effects)
    }
}

/// Records that PayPal was asked about an entry: what it was, where it was taken back; else whether it
/// still has it.
#[derive(Clone, Debug)]
pub struct LookedCash {
    /// PayPal's id of it.
    pub paypal_id: String,
    /// Whether that is known now.
    pub known: bool,
}

impl Unit for LookedCash {
    type Answer = ();

    fn name(&self) -> &'static str {
        "cash.looked"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<CashEntry>(&self.paypal_id);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        let mut entry = view.need::<CashEntry>(&self.paypal_id)?.clone();
        let next = |looks: &mut u32| {
            *looks = looks.saturating_add(1);
            let over = self.known || *looks >= MAX_LOOKS;
            (!over).then(|| after(now, reversal::pause_seconds(*looks)))
        };
        match (&mut entry.voided, &mut entry.check) {
            (Some(voided), _) => voided.next_at = next(&mut voided.looks),
            (None, Some(check)) => match next(&mut check.looks) {
                Some(next_at) => check.next_at = next_at,
                None => entry.check = None,
            },
            (None, None) => return Ok(effects),
        }
        effects.put(entry)?;
        Ok(effects)
    }
}
