//! Money that PayPal withholds for a dispute, and releases: it leaves our balance and comes back, so
//! the books move it to `disputes` and back.
//!
//! Whose money it will have been is decided by what follows at PayPal (a reversal, or nothing), and
//! booked there. Nothing is withheld from an owner's credit meanwhile.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::chain::{ChainKind, booked, chain_of, touch_booked};
use crate::ledger::{Account, Cause, Leg, Op};
use crate::money::Micros;
use crate::reconcile::Movement;
use crate::time::Timestamp;
use crate::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};

/// Which way it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Withholding {
    /// PayPal withholds it.
    Hold,
    /// PayPal gave it back to our balance.
    Release,
}

/// What PayPal withheld, or released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withheld {
    /// PayPal's id of the movement.
    pub paypal_id: String,
    /// Which way.
    pub way: Withholding,
    /// How much.
    pub amount_micros: Micros,
    /// What it is about: the disputed capture, where PayPal says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// When it was booked.
    pub at: Timestamp,
}

impl Withheld {
    /// How it moves `paypal_cash`, with PayPal's signs.
    pub fn movement(&self) -> Movement {
        let amount = self.amount_micros.get();
        let gross_micros = match self.way {
            Withholding::Hold => amount.saturating_neg(),
            Withholding::Release => amount,
        };
        Movement { id: self.paypal_id.clone(), gross_micros, fee_micros: 0, at: self.at }
    }
}

impl Record for Withheld {
    const KIND: &'static str = "withheld";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.paypal_id.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        Vec::new()
    }
}

/// Books what PayPal withheld or released, once; nothing where its id is in the books already, by
/// the operator's hand for example.
#[derive(Clone, Debug)]
pub struct BookWithheld {
    /// PayPal's id of the movement.
    pub paypal_id: String,
    /// Which way.
    pub way: Withholding,
    /// How much.
    pub amount: Micros,
    /// What it is about.
    pub reference: Option<String>,
}

impl Unit for BookWithheld {
    type Answer = ();

    fn name(&self) -> &'static str {
        "dispute.withheld"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Withheld>(&self.paypal_id);
        touch_booked(&mut touches, &self.paypal_id);
        touches.account(Account::PaypalCash.usd());
        touches.account(Account::Disputes.usd());
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        if booked(view, &self.paypal_id)?.is_some() || self.amount.is_zero() {
            return Ok(effects);
        }
        let (cash, disputes) = (Account::PaypalCash.usd(), Account::Disputes.usd());
        let (leg, kind) = match self.way {
            Withholding::Hold => {
                (Leg::new(disputes, cash, self.amount), "alarm.dispute_money_withheld")
            }
            Withholding::Release => {
                (Leg::new(cash, disputes, self.amount), "dispute.money_released")
            }
        };
        let id = chain_of(ChainKind::Withheld, &self.paypal_id);
        effects.op(Op::Move { id, cause: Cause::Dispute, legs: vec![leg] });
        let row = Withheld {
            paypal_id: self.paypal_id.clone(),
            way: self.way,
            amount_micros: self.amount,
            reference: self.reference.clone(),
            at: now,
        };
        effects.event(kind, &[], json!(row));
        effects.put(row)?;
        Ok(effects)
    }
}
