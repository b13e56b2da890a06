//! What the operator moves at PayPal by hand: deposits, withdrawals, and an owner's debt that was
//! paid in another way than by a payment we can read.
//!
//! Each is recorded with PayPal's own id of it, so that the reconciliation finds it. What is in the
//! books already under that id (a capture, a refund) is refused, and what is read of PayPal later
//! under an id that was recorded here has no second effect: one id, one effect.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::id::OwnerId;
use crate::ledger::{Account, Cause, Leg, Op};
use crate::money::Micros;
use crate::party::Owner;
use crate::problem::{Code, Refusal};
use crate::reconcile::Movement;
use crate::settlement::{chain_of, key_conflict};
use crate::time::Timestamp;
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
}

impl CashEntry {
    /// How it moves `paypal_cash`, with PayPal's signs.
    pub fn movement(&self) -> Movement {
        let amount = self.amount_micros.get();
        let gross_micros = match self.kind {
            CashKind::Deposit | CashKind::Repayment => amount,
            CashKind::Withdrawal => amount.saturating_neg(),
        };
        let fee_micros = self.fee_micros.get().saturating_neg();
        Movement { id: self.paypal_id.clone(), gross_micros, fee_micros, at: self.at }
    }
}

impl Record for CashEntry {
    const KIND: &'static str = "cash_entry";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.paypal_id.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        vec![ListEntry::timed("cash_entries", "", self.at)]
    }
}

/// Whether a text can be an id of PayPal's: letters, digits and hyphens.
pub fn is_paypal_id(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    plain && (1..=64).contains(&text.len())
}

/// The kinds of chains that book a thing of PayPal's under its id.
pub(crate) const BOOKED: [&str; 4] = ["captured", "suspense", "given_back", "cash"];

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

impl RecordCash {
    fn refuse(why: &str) -> Refusal {
        Refusal::new(Code::StateConflict, why)
    }

    /// What the owner owes, which a repayment may not exceed.
    fn debt(&self, view: &View) -> Result<Option<(OwnerId, Micros)>, Stop> {
        let Some(owner) = self.owner else { return Ok(None) };
        view.row::<Owner>(owner)?.ok_or_else(|| Refusal::new(Code::NotFound, "no such owner"))?;
        Ok(Some((owner, view.totals(Account::OwnerDebt(owner).usd())?.collectible())))
    }

    fn legs(&self, view: &View) -> Result<Vec<Leg>, Stop> {
        let (cash, funds) = (Account::PaypalCash.usd(), Account::OperatorFunds.usd());
        let main = match (self.kind, self.debt(view)?) {
            (CashKind::Repayment, Some((owner, debt))) => {
                if self.amount > debt {
                    let refusal = Self::refuse("the owner owes less than that");
                    return Err(refusal.amount("debt", debt).into());
                }
                Leg::new(cash, Account::OwnerDebt(owner).usd(), self.amount)
            }
            (CashKind::Deposit, None) => Leg::new(cash, funds, self.amount),
            (CashKind::Withdrawal, None) => {
                // INVARIANT: a_withdrawal_leaves_what_is_pending
                let free = view.totals(cash)?.collectible();
                if self.amount.checked_add(self.fee).is_none_or(|whole| whole > free) {
                    let refusal = Self::refuse("the cash, less what is pending, does not cover it");
                    return Err(refusal.amount("available", free).into());
                }
                Leg::new(funds, cash, self.amount)
            }
            _ => {
                let why = "a repayment names its owner, and nothing else does";
                return Err(Refusal::new(Code::ValidationFailed, why).into());
            }
        };
        let fee = Leg::new(Account::PaypalFees.usd(), cash, self.fee);
        Ok([main, fee].into_iter().filter(|leg| !leg.amount.is_zero()).collect())
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

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        if let Some(owner) = self.owner {
            touches.row::<Owner>(owner);
            touches.account(Account::OwnerDebt(owner).usd());
        }
        touches.row::<CashEntry>(&self.paypal_id);
        for kind in BOOKED {
            touches.hold(chain_of(kind, &self.paypal_id));
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
        // INVARIANT: one_paypal_id_one_effect
        for kind in BOOKED {
            if view.hold(chain_of(kind, &self.paypal_id))?.is_some() {
                let why = format!("`{}` is in the books already", self.paypal_id);
                return Err(Self::refuse(&why).into());
            }
        }
        let cause = match self.kind {
            CashKind::Deposit | CashKind::Repayment => Cause::Deposit,
            CashKind::Withdrawal => Cause::Withdrawal,
        };
        let legs = self.legs(view)?;
        let entry = CashEntry {
            paypal_id: self.paypal_id.clone(),
            kind: self.kind,
            owner: self.owner,
            amount_micros: self.amount,
            fee_micros: self.fee,
            at: now,
        };
        let mut effects = Effects::answer(entry.clone());
        effects.bind(&self.paypal_id);
        effects.op(Op::Move { id: chain_of("cash", &self.paypal_id), cause, legs });
        match &self.owner {
            Some(owner) => effects.event("cash.recorded", &[owner], json!(entry)),
            None => effects.event("cash.recorded", &[], json!(entry)),
        }
        effects.put(entry)?;
        Ok(effects)
    }
}

/// The operator bears what an owner owes after a reversal. What was given back stays given back:
/// the owner stays frozen until that is lifted too.
#[derive(Clone, Debug)]
pub struct ForgiveDebt {
    /// Whose.
    pub owner: OwnerId,
    /// The id of the chain.
    pub chain: crate::id::TransferId,
    /// The operator's name for this one wish.
    pub key: Key,
}

impl Unit for ForgiveDebt {
    /// What was forgiven.
    type Answer = (Owner, Micros);

    fn name(&self) -> &'static str {
        "owner.forgive_debt"
    }

    fn key(&self) -> Option<Key> {
        Some(self.key.clone())
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Owner>(self.owner);
        touches.hold(self.chain);
        touches.account(Account::OwnerDebt(self.owner).usd());
        touches.account(Account::Losses.usd());
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<(Owner, Micros)>, Stop> {
        let owner = view.row::<Owner>(self.owner)?;
        let owner = owner.ok_or_else(|| Refusal::new(Code::NotFound, "no such owner"))?.clone();
        match view.key() {
            KeyUse::Other { .. } => return Err(key_conflict().into()),
            // Bound to the amount that was forgiven then.
            KeyUse::Same { bound: Some(amount) } => {
                let read = amount.parse().ok().and_then(|micros| Micros::new(micros).ok());
                let unread = || Stop::Bug(format!("`{amount}` was bound as an amount"));
                return Ok(Effects::answer((owner, read.ok_or_else(unread)?)));
            }
            _ => {}
        }
        let debt = Account::OwnerDebt(self.owner).usd();
        let owed = view.totals(debt)?.collectible();
        if owed.is_zero() {
            return Err(RecordCash::refuse("the owner is not in debt").into());
        }
        let mut effects = Effects::answer((owner, owed));
        effects.bind(owed.get());
        let legs = vec![Leg::new(Account::Losses.usd(), debt, owed)];
        effects.op(Op::Move { id: self.chain, cause: Cause::WriteOff, legs });
        let data = json!({ "owner": self.owner, "amount_micros": owed });
        effects.event("owner.debt_forgiven", &[&self.owner], data);
        Ok(effects)
    }
}
