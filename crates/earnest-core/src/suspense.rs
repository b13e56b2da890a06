//! Money that arrived and matches nothing.
//!
//! It is in our PayPal balance, so it is in the books: on `suspense`, with one row for each capture
//! that says why. It leaves when its place is found, or when it was given back at PayPal.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::id::{IntentId, SettlementId};
use crate::ledger::{Account, Cause, Leg, Op};
use crate::money::Micros;
use crate::settlement::chain_of;
use crate::time::Timestamp;
use crate::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};

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
    /// The settlement it speaks of, where it speaks of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settlement: Option<SettlementId>,
    /// The attempt that it came for: what it may give back stands on that one's account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<IntentId>,
    /// The invoice id it carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invoice_id: Option<String>,
    /// When it was booked.
    pub at: Timestamp,
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

impl Suspended {
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
        for kind in ["captured", "suspense", "fee"] {
            touches.hold(chain_of(kind, &self.capture));
        }
        touches.account(Account::PaypalCash.usd());
        touches.account(Account::PaypalFees.usd());
        touches.account(Account::Suspense.usd());
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        let known = |kind| view.hold(chain_of(kind, &self.capture)).map(|chain| chain.is_some());
        // INVARIANT: a_payment_is_booked_once
        if known("captured")? || known("suspense")? || self.amount.is_zero() {
            return Ok(effects);
        }
        let cash = Account::PaypalCash.usd();
        let mut book = |kind, cause, debit, credit, amount: Micros| {
            if !amount.is_zero() {
                let legs = vec![Leg::new(debit, credit, amount)];
                effects.op(Op::Move { id: chain_of(kind, &self.capture), cause, legs });
            }
        };
        book("suspense", Cause::Suspense, cash, Account::Suspense.usd(), self.amount);
        book("fee", Cause::PaypalFee, Account::PaypalFees.usd(), cash, self.fee);
        let data = json!({ "capture": self.capture, "amount_micros": self.amount,
            "invoice_id": self.invoice_id,
            "settlement": self.claims.map(|(settlement, _)| settlement) });
        effects.event("alarm.payment_unasked", &[], data);
        effects.put(Suspended {
            capture: self.capture.clone(),
            why: if self.claims.is_some() { Why::Doubtful } else { Why::Unasked },
            amount_micros: self.amount,
            left_micros: self.amount,
            settlement: self.claims.map(|(settlement, _)| settlement),
            intent: self.claims.map(|(_, intent)| intent),
            invoice_id: self.invoice_id.clone(),
            at: now,
        })?;
        Ok(effects)
    }
}
