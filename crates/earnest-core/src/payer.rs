//! Who pays, as far as it can be told: PayPal accounts behind owners, and whether a seller is one of
//! them.
//!
//! Credit is given to a person, not to a row. One PayPal account that stood behind many owners would
//! have a line with each of them, and an owner who sells to himself takes the operator's money out by
//! not paying his tab. Accounts are known by digest only; see [`address_digest`].

use serde::{Deserialize, Serialize};

use crate::id::{OwnerId, SellerId};
use crate::party::{Funding, Owner, Seller, address_digest};
use crate::settings::Settings;
use crate::unit::{Effects, Record, Stop, Touches, View, rank};

/// A PayPal account, by the digest of its id or address, and every owner it ever paid for.
///
/// Never forgotten: an account that ran up one owner's tab and was removed must not get a fresh line
/// with the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payer {
    /// [`address_digest`] of its id or address.
    pub sha256: String,
    /// The owners, the first first.
    pub owners: Vec<OwnerId>,
}

impl Record for Payer {
    const KIND: &'static str = "payer";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.sha256.clone()
    }
}

/// What is known of the PayPal account behind an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It pays for nobody else, or there is none yet.
    #[default]
    Own,
    /// It paid for another owner before.
    Shared,
    /// PayPal did not tell whose it is.
    Untold,
}

/// Touches the accounts of a payment method that is being put on file.
pub(crate) fn touch(touches: &mut Touches, funding: &Funding) {
    for digest in funding.digests() {
        touches.row::<Payer>(digest);
    }
}

/// Puts a payment method on file for an owner, and says whether its account is the owner's alone.
// INVARIANT: one_line_a_payer
pub(crate) fn put_on_file<A>(
    view: &View,
    effects: &mut Effects<A>,
    owner: &mut Owner,
    funding: Funding,
) -> Result<(), Stop> {
    owner.payer = Standing::Untold;
    for digest in funding.digests() {
        let known = view.row::<Payer>(digest)?.cloned();
        let mut payer =
            known.unwrap_or_else(|| Payer { sha256: digest.to_owned(), owners: Vec::new() });
        if payer.owners.first().is_some_and(|first| *first != owner.id) {
            owner.payer = Standing::Shared;
        } else if owner.payer == Standing::Untold {
            owner.payer = Standing::Own;
        }
        if !payer.owners.contains(&owner.id) {
            payer.owners.push(owner.id);
            effects.put(payer)?;
        }
    }
    owner.funding = Some(funding);
    Ok(())
}

/// Whether owner and seller are the same person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dealing {
    /// Not as far as is known.
    Apart,
    /// The seller is paid out to an account that pays, or paid, for the owner.
    Same,
    /// Nobody knows where the seller's earnings go.
    Untold,
}

/// Touches what [`dealing`] looks at.
pub(crate) fn touch_dealing(touches: &mut Touches, view: &View, seller: SellerId) {
    touches.row::<Seller>(seller);
    let recipient = view.peek::<Seller>(seller).and_then(|row| row.payout_recipient.as_deref());
    if let Some(recipient) = recipient {
        touches.row::<Payer>(address_digest(recipient));
    }
}

/// Whether an owner would pay himself on credit.
pub(crate) fn dealing(
    view: &View,
    owner: &Owner,
    seller: SellerId,
    settings: &Settings,
) -> Result<Dealing, Stop> {
    // A seller that is not there is refused for that.
    let Some(seller) = view.row::<Seller>(seller)? else { return Ok(Dealing::Apart) };
    let Some(recipient) = &seller.payout_recipient else {
        let needed = settings.sellers_need_recipient;
        return Ok(if needed { Dealing::Untold } else { Dealing::Apart });
    };
    let digest = address_digest(recipient);
    let now = owner.funding.iter().flat_map(Funding::digests).any(|known| known == digest);
    let ever = view.row::<Payer>(&digest)?.is_some_and(|payer| payer.owners.contains(&owner.id));
    Ok(if now || ever { Dealing::Same } else { Dealing::Apart })
}
