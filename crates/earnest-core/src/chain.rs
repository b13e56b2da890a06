//! Chains that book what PayPal did by itself: named after PayPal's id of it, so that one thing of
//! PayPal's has one effect, whoever reads of it and however often.

use crate::cash::CashEntry;
use crate::id::TransferId;
use crate::unit::{Fingerprint, Stop, Touches, View};

/// What a chain books of the thing it is named after. The names are parts of stored ids: none may
/// ever change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainKind {
    /// What a capture may give back.
    Captured,
    /// What of a capture went to suspense.
    Suspense,
    /// A refund or reversal.
    GivenBack,
    /// What the operator recorded by hand.
    Cash,
    /// The same, taken back.
    CashVoided,
    /// What PayPal withheld for a dispute, or released.
    Withheld,
    /// What PayPal took of a capture.
    Fee,
    /// What PayPal gave back of its fee with a refund.
    FeeGivenBack,
    /// A capture in suspense that paid its settlement.
    Cleared,
    /// What such a capture may give back, moved to the attempt that found it.
    RefundableMoved,
    /// The settlement of a lost capture, where its own id is taken.
    LostSettlement,
    /// The call that made a lost capture.
    LostCall,
    /// What a lost capture paid at once.
    LostPaid,
    /// What it paid later.
    LostLine,
    /// A lost purchase, earned by its seller.
    LostEarned,
    /// What a model cost above what was reserved for it.
    ModelExcess,
    /// The balance that the books began with.
    Opening,
}

impl ChainKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Captured => "captured",
            Self::Suspense => "suspense",
            Self::GivenBack => "given_back",
            Self::Cash => "cash",
            Self::CashVoided => "cash_voided",
            Self::Withheld => "withheld",
            Self::Fee => "fee",
            Self::FeeGivenBack => "fee_given_back",
            Self::Cleared => "cleared",
            Self::RefundableMoved => "refundable_moved",
            Self::LostSettlement => "lost_settlement",
            Self::LostCall => "lost_call",
            Self::LostPaid => "lost_paid",
            Self::LostLine => "lost_line",
            Self::LostEarned => "lost_earned",
            Self::ModelExcess => "model_excess",
            Self::Opening => "opening",
        }
    }
}

/// The id of the chain that books this of a thing.
pub fn chain_of(kind: ChainKind, resource: &str) -> TransferId {
    let print = Fingerprint::of(&[kind.as_str().as_bytes(), resource.as_bytes()]);
    let bytes = print.0.first_chunk::<16>().copied().unwrap_or_default();
    TransferId::from_value(u128::from_be_bytes(bytes))
}

/// What the books may hold a thing of PayPal's as, beside what was recorded by hand.
const READ: [ChainKind; 4] =
    [ChainKind::Captured, ChainKind::Suspense, ChainKind::GivenBack, ChainKind::Withheld];

/// Touches what [`booked`] looks at.
pub(crate) fn touch_booked(touches: &mut Touches, paypal_id: &str) {
    touches.row::<CashEntry>(paypal_id);
    for kind in READ {
        touches.hold(chain_of(kind, paypal_id));
    }
}

/// What the books hold a thing of PayPal's as. What was recorded by hand and taken back again counts
/// no more: then it may be booked as what it is.
// INVARIANT: one_paypal_id_one_effect
pub(crate) fn booked(view: &View, paypal_id: &str) -> Result<Option<ChainKind>, Stop> {
    let entry = view.row::<CashEntry>(paypal_id)?;
    if entry.is_some_and(|entry| entry.voided.is_none()) {
        return Ok(Some(ChainKind::Cash));
    }
    for kind in READ {
        if view.hold(chain_of(kind, paypal_id))?.is_some() {
            return Ok(Some(kind));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Books of an earlier version are read: what was booked then is found under the same ids.
    #[test]
    fn the_ids_of_chains_never_change() {
        let check = |kind, expect: &str| {
            assert_eq!(format!("{:032x}", chain_of(kind, "8XY").value()), expect, "{kind:?}");
        };
        check(ChainKind::Captured, "b8f5f6ee625d3393bd6c52fe1baddf4a");
        check(ChainKind::Cash, "1dd49f99d4a3c9a6c4a8722cae5b9417");
        check(ChainKind::GivenBack, "e2672025fee102fa83bae93490c3bd7b");
    }
}
