//! The decision about a purchase, over what its unit loaded: made by [`Authorize`] when it is asked
//! for, and by [`Foresee`] for an owner who is about to answer.

use std::sync::Arc;

use jiff::civil::Date;

use super::{Authorize, FreshIds, budgets, tab_facts, used};
use crate::approval::{Approval, Grant};
use crate::id::KeyId;
use crate::ledger::AccountId;
use crate::money::Micros;
use crate::party::{Agent, Owner, RateWindow};
use crate::policy::{self, Budget, Decision, Facts};
use crate::problem::Refusal;
use crate::purchase::Purchase;
use crate::quarantine::Quarantine;
use crate::settings::Settings;
use crate::tab::{Place, limit_accounts, place};
use crate::time::{Timestamp, after};
use crate::unit::{Effects, Stop, Touches, Unit, View};

/// A decision, and what it was made of.
pub(super) struct Weighed {
    pub(super) decision: Decision,
    pub(super) place: Place,
    pub(super) grant: Option<(Grant, Micros)>,
    pub(super) accounts: [AccountId; 4],
    pub(super) budgets: Vec<Budget>,
    pub(super) day: Date,
}

impl Authorize {
    /// Decides; `approved` says whether the owner's yes exists for exactly this.
    pub(super) fn weigh(
        &self,
        view: &View,
        approved: bool,
        now: Timestamp,
    ) -> Result<Weighed, Stop> {
        let owner = view.need::<Owner>(self.owner)?;
        let agent = view.need::<Agent>(self.agent)?;
        let place = place(view, owner, self.ids.tab, &self.settings, now)?;
        let grant = self.live_grant(view, agent, now)?;
        let rate = view.row::<RateWindow>(self.agent)?;
        let day = owner.zone_at(now).day(now);
        let accounts = limit_accounts(self.owner, self.agent, place.tab.session(), day);
        let budgets = budgets(view, (self.owner, self.agent, self.quote.seller), day)?;
        let facts = Facts {
            used: used(view, accounts)?,
            budgets: &budgets,
            asked: rate.map_or(&[], |rate| rate.times.as_slice()),
            approved,
            grant_room: grant.as_ref().map(|(_, room)| *room),
            ..self.facts(view, owner, agent, tab_facts(owner, &place), now)?
        };
        let decision = policy::decide(&facts, &self.quote, self.max_price, now);
        let budgets = budgets.iter().map(|(budget, _)| *budget).collect();
        Ok(Weighed { decision, place, grant, accounts, budgets, day })
    }
}

/// Why a purchase that waits would not be made if its owner said yes now: the decision that
/// [`Authorize`] would make of its repeat, over the same rows, with the yes taken as given. Records
/// nothing. What the caller would pay at most is not known here, and taken as enough.
#[derive(Clone, Debug)]
pub struct Foresee(Authorize);

impl Foresee {
    /// Of the purchase that put the question. `ids` are as for an [`Authorize`].
    pub fn of(
        approval: &Approval,
        purchase: &Purchase,
        ids: FreshIds,
        settings: Arc<Settings>,
        now: Timestamp,
    ) -> Self {
        Self(Authorize {
            owner: approval.owner,
            agent: approval.agent,
            // Which key repeats is the agent's matter.
            api_key: KeyId::from_value(0),
            quote: purchase.quoted(after(now, 1)),
            max_price: purchase.price_micros,
            request_id: purchase.request_id.clone(),
            ids: FreshIds { purchase: purchase.id, ..ids },
            settings,
        })
    }
}

impl Unit for Foresee {
    type Answer = Option<Box<Refusal>>;

    fn name(&self) -> &'static str {
        "purchase.foresee"
    }

    fn touches(&self, view: &View, now: Timestamp) -> Touches {
        self.0.touches(view, now)
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Self::Answer>, Stop> {
        match Quarantine::refuse(view) {
            Err(Stop::Refused(why)) => return Ok(Effects::answer(Some(why))),
            other => other?,
        }
        Ok(Effects::answer(match self.0.weigh(view, true, now)?.decision {
            Decision::Allow(_) => None,
            Decision::NeedsApproval(why) | Decision::Deny(why) => Some(Box::new(why)),
        }))
    }
}
