//! The client's own history: what it asked, what it was told, and whether that is still so.

use std::collections::BTreeMap;

use earnest_core::id::{AgentId, PurchaseId};
use earnest_core::invariant::Rows;
use earnest_core::purchase::Purchase;
use earnest_core::quote::Quote;

use crate::world::Buyer;

/// One thing that was asked for, under one name.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) buyer: Buyer,
    pub(super) quote: Quote,
    /// The purchase that was shown as held or more, if one was.
    pub(super) held: Option<PurchaseId>,
    /// Whether an answer is missing: it may be there, or not.
    pub(super) doubtful: bool,
}

/// What was asked, by agent and request id.
#[derive(Debug, Default)]
pub(super) struct History {
    asked: BTreeMap<(AgentId, String), Asked>,
}

impl History {
    /// Somebody asks, and has no answer yet. Gives whether an answer was missing before.
    pub(super) fn ask(&mut self, buyer: Buyer, request_id: &str, quote: &Quote) -> bool {
        let fresh = || Asked { buyer, quote: quote.clone(), held: None, doubtful: false };
        let asked = self.asked.entry((buyer.agent, request_id.to_owned())).or_insert_with(fresh);
        std::mem::replace(&mut asked.doubtful, true)
    }

    /// A refusal came: what was in doubt before still is.
    pub(super) fn refused(&mut self, buyer: Buyer, request_id: &str, doubtful: bool) {
        if let Some(asked) = self.asked.get_mut(&(buyer.agent, request_id.to_owned())) {
            asked.doubtful = doubtful;
        }
    }

    /// The purchase was shown, and with it whether money is or was held for it.
    pub(super) fn shown(&mut self, buyer: Buyer, request_id: &str, purchase: &Purchase) {
        let key = (buyer.agent, request_id.to_owned());
        let Some(asked) = self.asked.get_mut(&key) else { return };
        asked.doubtful = false;
        if let Some(known) = asked.held {
            assert_eq!(known, purchase.id, "{request_id} became two purchases");
        }
        asked.held = asked.held.or(purchase.hold.map(|_| purchase.id));
    }

    /// What still wants an answer.
    pub(super) fn doubts(&self) -> Vec<(Buyer, String, Quote)> {
        let doubtful = self.asked.iter().filter(|(_, asked)| asked.doubtful);
        doubtful
            .map(|((_, request_id), asked)| (asked.buyer, request_id.clone(), asked.quote.clone()))
            .collect()
    }

    /// What was acknowledged is there once, what was refused is not, and nothing else is.
    pub(super) fn check(&self, rows: &Rows) {
        let mut held = BTreeMap::new();
        for purchase in rows.purchases.values().filter(|purchase| purchase.hold.is_some()) {
            let key = (purchase.agent, purchase.request_id.clone());
            let asked = self.asked.get(&key);
            let known =
                asked.is_some_and(|asked| asked.doubtful || asked.held == Some(purchase.id));
            assert!(known, "{purchase:?} was never acknowledged: {asked:?}");
            let other = held.insert(key, purchase.id);
            assert_eq!(other, None, "{} is there twice", purchase.request_id);
        }
        for (key, asked) in &self.asked {
            if let Some(purchase) = asked.held {
                assert_eq!(held.get(key), Some(&purchase), "{} was acknowledged", key.1);
            }
        }
    }
}
