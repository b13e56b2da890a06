//! What an owner owes for money that went back at PayPal, borne by the operator.

use serde_json::json;

use crate::id::{OwnerId, TransferId};
use crate::ledger::{Account, Cause, Leg, Op};
use crate::money::Micros;
use crate::party::Owner;
use crate::problem::{Code, Refusal};
use crate::settlement::key_conflict;
use crate::time::Timestamp;
use crate::unit::{Effects, Key, KeyUse, Stop, Touches, Unit, View};

/// The operator bears what an owner owes after a reversal. What was given back stays given back:
/// the owner stays frozen until that is lifted too.
#[derive(Clone, Debug)]
pub struct ForgiveDebt {
    /// Whose.
    pub owner: OwnerId,
    /// The id of the chain.
    pub chain: TransferId,
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
            return Err(Refusal::new(Code::StateConflict, "the owner is not in debt").into());
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
