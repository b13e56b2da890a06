//! What other limits would have said to purchases that were asked for: the same [`decide`], run over
//! the past in its order, each time with what would have been used by then.
//!
//! It is about limits. Pauses, freezes, funding, origins and grants are taken as in order, and
//! settlements are not played through, so the limit on a tab refuses only what is above it alone. A
//! question that the owner answered with yes then counts as answered with yes.

use std::collections::BTreeMap;

use super::{Decision, Facts, OpenTab, Policy, PolicySubject, TabFacts, Used, budgets, decide};
use crate::id::{AgentId, OwnerId, PurchaseId, SessionId, TabId, VaultId};
use crate::ledger::AccountId;
use crate::money::Micros;
use crate::party::{Agent, Funding, Owner};
use crate::payer::Dealing;
use crate::problem::{Reason, Refusal};
use crate::purchase::{Purchase, PurchaseState};
use crate::tab::limit_accounts;
use crate::time::{Timestamp, after};

/// What became of a purchase, or would have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Allowed,
    /// It waits for its owner.
    Waiting,
    /// It was refused, and why.
    Denied(Box<Refusal>),
}

/// One purchase under the limits that were and those that are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Which.
    pub purchase: PurchaseId,
    /// Whose.
    pub agent: AgentId,
    /// When it was asked for.
    pub at: Timestamp,
    /// Its price.
    pub price: Micros,
    /// What it came to cost, if it passed.
    pub cost: Micros,
    /// What became of it.
    pub was: Verdict,
    /// What would have.
    pub would: Verdict,
}

/// The policies that are tried: the owner's, and those of its agents.
pub struct Trial<'a> {
    /// The owner.
    pub owner: &'a Owner,
    /// Its agents.
    pub agents: &'a BTreeMap<AgentId, Agent>,
    /// Policies by subject; the one that is tried among them.
    pub policies: &'a BTreeMap<String, Policy>,
}

/// What was used so far under the limits that are tried.
#[derive(Default)]
struct Past {
    used: BTreeMap<AccountId, Micros>,
    asked: BTreeMap<AgentId, Vec<Timestamp>>,
    session: Option<TabId>,
}

impl Trial<'_> {
    /// Tries purchases, oldest first.
    pub fn run(&self, purchases: &[Purchase]) -> Vec<Tried> {
        let mut past = Past::default();
        let mut owner = self.owner.clone();
        owner.paused = false;
        owner.frozen = None;
        let (vault, token) = (VaultId::from_value(0), String::new());
        let funding = Funding { vault, token, payer_sha256: None, email_sha256: None };
        owner.funding.get_or_insert(funding);
        let tried = purchases.iter().filter_map(|purchase| self.one(&owner, purchase, &mut past));
        tried.collect()
    }

    /// `None` where the agent is not known any more.
    fn one(&self, owner: &Owner, purchase: &Purchase, past: &mut Past) -> Option<Tried> {
        let mut agent = self.agents.get(&purchase.agent)?.clone();
        agent.paused = false;
        let at = purchase.created_at;
        let parties = (owner.id, agent.id, purchase.seller);
        let policy = |subject: PolicySubject| self.policies.get(&subject.to_string());
        let owner_policy = policy(PolicySubject::Owner(owner.id));
        let agent_policy = policy(PolicySubject::Agent(agent.id));
        past.session = purchase.tab.or(past.session);
        let day = owner.zone_at(at).day(at);
        let accounts = accounts(owner.id, agent.id, past.session, day);
        let met: Vec<_> = budgets(owner_policy, agent_policy, parties, day)
            .into_iter()
            .map(|budget| (budget, past.of(budget.account)))
            .collect();
        let limit = owner_policy.and_then(Policy::limits).and_then(|it| it.tab_limit_micros);
        let [owner_session, owner_day, agent_session, agent_day] =
            accounts.map(|account| past.of(account));
        let asked = past.asked.entry(agent.id).or_default().clone();
        let facts = Facts {
            owner,
            agent: &agent,
            owner_policy,
            agent_policy,
            tab: TabFacts::Open(OpenTab { owed: Micros::ZERO, room: limit.unwrap_or(Micros::MAX) }),
            seller_owns_url: true,
            dealing: Dealing::Apart,
            used: Used { owner_session, owner_day, agent_session, agent_day },
            budgets: &met,
            asked: &asked,
            approved: purchase.approval.is_some() && was(purchase) == Verdict::Allowed,
            grant_room: None,
        };
        let would = match decide(&facts, &purchase.quoted(after(at, 1)), purchase.price_micros, at)
        {
            Decision::Allow(_) => Verdict::Allowed,
            Decision::NeedsApproval(_) => Verdict::Waiting,
            Decision::Deny(why) => Verdict::Denied(Box::new(why)),
        };
        let cost = cost(purchase);
        past.count(&agent, agent_policy, owner_policy, &would, at);
        if would == Verdict::Allowed && !cost.is_zero() {
            for account in accounts {
                past.add(account, cost);
            }
            for (budget, _) in &met {
                past.add(budget.account, budget.counts(cost));
            }
        }
        Some(Tried {
            purchase: purchase.id,
            agent: agent.id,
            at,
            price: purchase.price_micros,
            cost,
            was: was(purchase),
            would,
        })
    }
}

impl Past {
    fn of(&self, account: AccountId) -> Micros {
        self.used.get(&account).copied().unwrap_or(Micros::ZERO)
    }

    fn add(&mut self, account: AccountId, amount: Micros) {
        let sum = self.of(account).checked_add(amount).unwrap_or(Micros::MAX);
        self.used.insert(account, sum);
    }

    /// Remembers the attempt for the rate, as [`crate::authorize`] does: what the rate itself refused
    /// is not counted.
    fn count(
        &mut self,
        agent: &Agent,
        own: Option<&Policy>,
        owners: Option<&Policy>,
        would: &Verdict,
        at: Timestamp,
    ) {
        if matches!(would, Verdict::Denied(why) if why.reason == Some(Reason::RateLimit)) {
            return;
        }
        let rate = |policy: Option<&Policy>| policy.and_then(Policy::limits).and_then(|it| it.rate);
        let Some(rate) = rate(own).or_else(|| rate(owners)) else { return };
        let times = self.asked.entry(agent.id).or_default();
        times.push(at);
        let most = usize::try_from(rate.count).unwrap_or(usize::MAX);
        let excess = times.len().saturating_sub(most);
        times.drain(..excess);
    }
}

fn accounts(
    owner: OwnerId,
    agent: AgentId,
    session: Option<TabId>,
    day: jiff::civil::Date,
) -> [AccountId; 4] {
    let session = SessionId::from_value(session.map_or(0, TabId::value));
    limit_accounts(owner, agent, session, day)
}

fn was(purchase: &Purchase) -> Verdict {
    match purchase.state {
        PurchaseState::Denied => match &purchase.refusal {
            Some(why) => Verdict::Denied(Box::new(why.clone())),
            None => Verdict::Waiting,
        },
        PurchaseState::Waiting => Verdict::Waiting,
        _ => Verdict::Allowed,
    }
}

/// What a purchase cost, or would have at most; nothing where its seller did not deliver.
fn cost(purchase: &Purchase) -> Micros {
    match purchase.state {
        PurchaseState::Billed => purchase.billed_micros.unwrap_or(purchase.price_micros),
        PurchaseState::Released | PurchaseState::Expired | PurchaseState::Unbilled => Micros::ZERO,
        _ => purchase.price_micros,
    }
}
