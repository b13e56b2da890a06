//! Origins of sellers: registering them, and what became of their proofs.
//!
//! A proof is about today: domains expire and are sold. So every origin is asked again, one that
//! stays silent counts for a while, and one that no longer lists its seller counts no more. Where two
//! sellers claim an origin that does not list both, neither is paid under it.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::not_found;
use crate::id::SellerId;
use crate::party::{Origin, Seller};
use crate::problem::{Code, Refusal};
use crate::time::{Timestamp, after};
use crate::unit::{Effects, Record, Stop, Touches, Unit, View, rank};

/// At most so many origins belong to one seller.
const MAX_ORIGINS: usize = 100;
/// How long until an origin that listed its seller is asked again.
const CHECK_SECONDS: i64 = 24 * 3600;
/// How long until one that gave no answer is.
const RETRY_SECONDS: i64 = 3600;

/// Who proved an origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginHolders {
    /// `https://host[:port]`.
    pub origin: String,
    /// The sellers whose proof counts, the first first.
    pub sellers: Vec<SellerId>,
    /// Whether the last proof left one of them out: then none is paid under it.
    pub contested: bool,
}

impl Record for OriginHolders {
    const KIND: &'static str = "origin";
    const RANK: u8 = rank::SHARED;
    fn id(&self) -> String {
        self.origin.clone()
    }
}

impl OriginHolders {
    fn of(view: &View, origin: &str) -> Result<Self, Stop> {
        let known = view.row::<Self>(origin)?.cloned();
        Ok(known.unwrap_or_else(|| Self {
            origin: origin.to_owned(),
            sellers: Vec::new(),
            contested: false,
        }))
    }

    fn join(&mut self, seller: SellerId) {
        if !self.sellers.contains(&seller) {
            self.sellers.push(seller);
        }
    }
}

/// Registers an origin of a seller's, or marks it proved.
#[derive(Clone, Debug)]
pub struct PutOrigin {
    /// Whose.
    pub seller: SellerId,
    /// `https://host[:port]`.
    pub origin: String,
    /// Whether the seller showed that it controls it.
    pub proved: bool,
}

fn touch(touches: &mut Touches, seller: SellerId, origin: &str) {
    touches.row::<Seller>(seller);
    touches.row::<OriginHolders>(origin);
}

/// The seller's own entry of an origin, put there if it is new.
fn entry<'a>(seller: &'a mut Seller, origin: &str) -> Result<&'a mut Origin, Stop> {
    if seller.origins.iter().all(|known| known.origin != origin) {
        if seller.origins.len() >= MAX_ORIGINS {
            let why = "there are 100 origins already";
            return Err(Refusal::new(Code::ValidationFailed, why).into());
        }
        seller.origins.push(Origin::new(origin));
    }
    let found = seller.origins.iter_mut().find(|known| known.origin == origin);
    found.ok_or_else(|| Stop::Bug(format!("origin `{origin}` was not put")))
}

fn proved(known: &mut Origin, now: Timestamp) {
    known.proved_at.get_or_insert(now);
    known.checked_at = Some(now);
    known.next_check_at = Some(after(now, CHECK_SECONDS));
}

impl Unit for PutOrigin {
    type Answer = Seller;

    fn name(&self) -> &'static str {
        "seller.put_origin"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touch(&mut touches, self.seller, &self.origin);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Seller>, Stop> {
        let mut seller =
            view.row::<Seller>(self.seller)?.ok_or_else(|| not_found("seller"))?.clone();
        let known = entry(&mut seller, &self.origin)?;
        let mut effects = Effects::answer(());
        if self.proved {
            proved(known, now);
            let mut holders = OriginHolders::of(view, &self.origin)?;
            holders.join(self.seller);
            effects.put(holders)?;
        }
        effects.put(seller.clone())?;
        Ok(effects.map(|()| seller))
    }
}

/// What an origin said when it was asked for the sellers it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It lists these sellers, this one or not.
    Lists(Vec<SellerId>),
    /// It gave no usable answer: that proves nothing, either way.
    Silent,
}

/// Records what an origin said.
#[derive(Clone, Debug)]
pub struct RecordProof {
    /// Whose.
    pub seller: SellerId,
    /// `https://host[:port]`.
    pub origin: String,
    /// What it said.
    pub proof: Proof,
}

impl Unit for RecordProof {
    type Answer = Seller;

    fn name(&self) -> &'static str {
        "seller.record_proof"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touch(&mut touches, self.seller, &self.origin);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Seller>, Stop> {
        let mut seller =
            view.row::<Seller>(self.seller)?.ok_or_else(|| not_found("seller"))?.clone();
        let mut holders = OriginHolders::of(view, &self.origin)?;
        let known = entry(&mut seller, &self.origin)?;
        let mut effects = Effects::answer(());
        let data = json!({ "seller": self.seller, "origin": self.origin });
        match &self.proof {
            Proof::Silent => {
                let again = known.next_check_at.map(|_| after(now, RETRY_SECONDS));
                known.next_check_at = again;
            }
            Proof::Lists(listed) if listed.contains(&self.seller) => {
                proved(known, now);
                holders.join(self.seller);
                let contested = holders.sellers.iter().any(|holder| !listed.contains(holder));
                if contested && !holders.contested {
                    let mut hear: Vec<&dyn std::fmt::Display> = Vec::new();
                    for holder in &holders.sellers {
                        hear.push(holder);
                    }
                    effects.event("alarm.origin_contested", &hear, data);
                }
                holders.contested = contested;
                effects.put(holders)?;
            }
            Proof::Lists(_) => {
                if known.proved_at.is_some() {
                    effects.event("alarm.origin_lost", &[&self.seller], data);
                }
                *known = Origin::new(&self.origin);
                holders.sellers.retain(|holder| *holder != self.seller);
                holders.contested = holders.contested && holders.sellers.len() > 1;
                effects.put(holders)?;
            }
        }
        effects.put(seller.clone())?;
        Ok(effects.map(|()| seller))
    }
}
