//! Whose a capture is, and what it says about a settlement.
//!
//! Anybody can pay us with any ids on it, and the ids of a settlement stand on its receipt. So what is
//! learnt from a webhook or a report counts only where what is known of our own call, and the amount,
//! agree as well.

use super::Settlement;
use crate::id::{OwnerId, SettlementId};
use crate::intent::{Charge, Fate, Intent};
use crate::money::{Currency, Micros};

/// A capture, as PayPal shows it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// PayPal's id of it.
    pub id: &'a str,
    /// PayPal's id of its order, where it is told.
    pub order: Option<&'a str>,
    /// The invoice id it carries.
    pub invoice: Option<&'a str>,
    /// What it carries beside.
    pub custom: Option<&'a str>,
    /// What was captured.
    pub amount: Micros,
    /// In which currency.
    pub currency: &'a str,
}

/// Whose a capture is that PayPal's own answer to us did not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The one we asked for.
    Ours,
    /// It has our ids on it and not the amount we asked for: ours gone wrong, or a payment made by
    /// somebody who saw the ids, to have the settlement end on a cent. Nothing tells which.
    Doubtful,
    /// Somebody else's.
    Strange,
}

/// What a capture that was hinted at is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hinted {
    /// It is in the books, or no money yet: nothing to do.
    Nothing,
    /// What became of the attempt, to be recorded.
    Outcome,
    /// A payment that nobody asked for; `claims` where it may be the settlement's after all.
    Unasked {
        /// Whether the settlement may still take it.
        claims: bool,
    },
}

impl Settlement {
    /// What a charge carries beside its invoice: which settlement, and whose. With both, restored
    /// books that know neither still know whose money it was.
    pub fn mark(&self) -> String {
        mark(self.id, self.owner)
    }
}

/// See [`Settlement::mark`].
pub(super) fn mark(settlement: SettlementId, owner: OwnerId) -> String {
    format!("{settlement}.{owner}")
}

impl Seen<'_> {
    /// Whether it carries what we asked for. An invoice id can be guessed by whoever pays us, so our
    /// own id of the settlement has to be on it too.
    pub fn is_marked(&self, settlement: &Settlement) -> bool {
        self.invoice.is_none_or(|invoice| invoice == settlement.invoice_id)
            && self.custom == Some(settlement.mark().as_str())
            && self.currency == Currency::Usd.code()
    }

    /// Whose it is, where PayPal's own answer to the attempt is not what told us of it.
    // INVARIANT: a_settlement_ends_only_on_what_was_asked
    pub fn whose(&self, intent: &Intent, settlement: &Settlement) -> Whose {
        let known = [
            (intent.paypal_capture.as_deref(), Some(self.id)),
            (intent.paypal_order.as_deref(), self.order),
        ];
        let known = known.map(|(known, this)| known.zip(this).map(|(known, this)| known == this));
        if !self.is_marked(settlement) || known.contains(&Some(false)) {
            return Whose::Strange;
        }
        // Said to be ours by PayPal's own answer: then whatever it came to is what our call came to.
        let named = known.contains(&Some(true));
        let asked = self.amount == settlement.amount_micros;
        if named || asked { Whose::Ours } else { Whose::Doubtful }
    }

    /// What a webhook or a report that named it means for an attempt under its invoice; `done`:
    /// whether it is money.
    // INVARIANT: a_settlement_answers_for_its_own_capture_only
    pub fn hinted(&self, done: bool, intent: &Intent, settlement: &Settlement) -> Hinted {
        let open = intent.state.is_open();
        if intent.paypal_capture.as_deref() == Some(self.id) {
            return if open { Hinted::Outcome } else { Hinted::Nothing };
        }
        match self.whose(intent, settlement) {
            Whose::Ours if done => Hinted::Outcome,
            // Before it is money it says nothing: our own call is repeated or looked for.
            Whose::Ours => Hinted::Nothing,
            Whose::Doubtful => Hinted::Unasked { claims: true },
            // Our own capture is known, and being decided or booked: this one is somebody's trick.
            Whose::Strange if open || settlement.is_captured() => Hinted::Unasked { claims: false },
            // An earlier attempt under the same invoice may have made it.
            Whose::Strange => Hinted::Outcome,
        }
    }
}

/// Our charge among the payments that carry our invoice.
///
/// Where every one of them is somebody else's, and the report is complete, ours did not happen.
#[derive(Clone, Debug)]
pub struct Among {
    /// Whether everything was seen, and is in the books where it is not ours.
    all_seen: bool,
    any: bool,
    doubtful: bool,
    declined: Option<Fate<Charge>>,
}

impl Among {
    /// Nothing looked at yet; `complete`: whether the report is.
    pub const fn new(complete: bool) -> Self {
        Self { all_seen: complete, any: false, doubtful: false, declined: None }
    }

    /// One that could not be read, or not be booked.
    pub const fn missed(&mut self) {
        self.any = true;
        self.all_seen = false;
    }

    /// One that was read; gives the settlement's fate if it is the one.
    pub fn take(&mut self, whose: Whose, fate: Fate<Charge>) -> Option<Fate<Charge>> {
        self.any = true;
        match (whose, fate) {
            (Whose::Ours, fate @ Fate::Done(_)) => return Some(fate),
            (Whose::Ours, fate @ Fate::Declined { .. }) => self.declined = Some(fate),
            (Whose::Ours, _) => self.all_seen = false,
            (Whose::Doubtful, _) => self.doubtful = true,
            (Whose::Strange, _) => {}
        }
        None
    }

    /// What all of them together say, where none is ours.
    pub fn verdict(self) -> Fate<Charge> {
        let doubtful = self.doubtful;
        match self.declined {
            _ if !self.any || !self.all_seen => Fate::Unknown,
            Some(declined) if !doubtful => declined,
            _ => Fate::InvoiceTaken { doubtful },
        }
    }
}

#[cfg(test)]
mod tests;
