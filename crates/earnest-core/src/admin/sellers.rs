//! Sellers and the origins they prove.

use serde_json::json;

use super::{Creation, repeated};
use crate::id::SellerId;
use crate::party::{Seller, check_name};
use crate::problem::{Code, Refusal};
use crate::time::Timestamp;
use crate::unit::{Effects, Key, Stop, Touches, Unit, View};

/// Creates a seller.
#[derive(Clone)]
pub struct CreateSeller {
    /// Name and key.
    pub creation: Creation,
    /// The id.
    pub id: SellerId,
    /// Where its earnings go.
    pub payout_recipient: Option<String>,
    /// What the platform keeps, in millionths; at most half.
    pub commission_ppm: u32,
}

crate::shows_only!(CreateSeller: creation, id, commission_ppm);

impl Unit for CreateSeller {
    type Answer = Seller;

    fn name(&self) -> &'static str {
        "seller.create"
    }

    fn key(&self) -> Option<Key> {
        let commission = self.commission_ppm.to_string();
        let recipient = self.payout_recipient.as_deref();
        let paid = if recipient.is_some() { "paid out" } else { "" };
        self.creation.key("seller", &[&commission, paid, recipient.unwrap_or_default()])
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        let id = view.key().bound().map_or_else(|| self.id.to_string(), str::to_owned);
        touches.row::<Seller>(&id);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Seller>, Stop> {
        if let Some(id) = repeated(view)? {
            return Ok(Effects::answer(view.need::<Seller>(id)?.clone()));
        }
        check_name(&self.creation.name)?;
        if self.commission_ppm > 500_000 {
            let why = "`commission_ppm` may be at most 500000, one half";
            return Err(Refusal::new(Code::ValidationFailed, why).into());
        }
        let mut seller = Seller::new(self.id, &self.creation.name, now);
        seller.payout_recipient = self.payout_recipient.clone();
        seller.commission_ppm = self.commission_ppm;
        let mut effects = Effects::answer(seller.clone());
        effects.bind(seller.id);
        effects.event("seller.created", &[&seller.id], json!({ "seller": seller.id }));
        effects.put(seller)?;
        Ok(effects)
    }
}
