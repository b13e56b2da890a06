//! Caps that a policy sets beside session and day: so much for one seller in a week, so much or so
//! often under a constraint. Each counts on a limit account of its own, in the chain of the purchase.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use super::constraint::Rule;
use super::period::Every;
use super::{Limits, Policy};
use crate::id::{AgentId, OwnerId, SellerId};
use crate::ledger::{Account, AccountId, Counted, Subject, Window};
use crate::money::Micros;
use crate::problem::Reason;

/// The most budgets of one policy: each is a leg of every purchase from its seller.
pub const MAX_SELLER_BUDGETS: usize = 100;

/// The most for one seller in each day, week or month.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SellerBudget {
    /// Which seller.
    pub seller: SellerId,
    /// How long a window is.
    pub every: Every,
    /// The most in one.
    pub cap_micros: Micros,
}

/// A cap as one purchase meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Where its use is counted.
    pub account: AccountId,
    /// What is counted there: money or purchases, and of what.
    pub counted: Counted,
    /// The most.
    pub cap: Micros,
    /// The reason of a refusal.
    pub reason: Reason,
}

/// One purchase on an account that counts purchases and not money.
const ONE_USE: Micros = Micros::constant(1);

impl Budget {
    /// What of a purchase counts here: its price, or that it was made.
    pub fn counts(&self, price: Micros) -> Micros {
        counted_as(self.counted, price)
    }

    /// Whether money is counted: not to be told from what a price counts as, since a price may be as
    /// small as one use.
    pub const fn is_money(&self) -> bool {
        match self.counted {
            Counted::Seller(_) | Counted::Spend(_) => true,
            Counted::Uses(_) => false,
        }
    }

    /// Whose cap it is and in which window, for messages.
    pub(super) fn words(&self) -> (&'static str, String) {
        let Account::Limit(subject, window) = self.account.account else {
            return ("a", "budget".to_owned());
        };
        let whose = match subject {
            Subject::Owner(_) => "the owner's",
            Subject::Agent(_) => "the agent's",
            Subject::Models => "the operator's",
        };
        let what = match window {
            Window::Budget(Counted::Seller(seller), period) => {
                format!("budget for {seller} of this {}", period.every.as_str())
            }
            Window::Budget(Counted::Uses(_), period) if period.every == Every::Ever => {
                "number of purchases".to_owned()
            }
            Window::Budget(Counted::Uses(_), period) => {
                format!("number of purchases in this {}", period.every.as_str())
            }
            _ => "budget".to_owned(),
        };
        (whose, what)
    }

    /// The first day on which there is room again, if one comes.
    pub(super) fn resets(&self) -> Option<Date> {
        match self.account.account {
            Account::Limit(_, Window::Budget(_, period)) => period.next(),
            _ => None,
        }
    }
}

/// What a purchase of this price counts as on a limit account.
pub(crate) fn counts(account: Account, price: Micros) -> Micros {
    match account {
        Account::Limit(_, Window::Budget(counted, _)) => counted_as(counted, price),
        _ => price,
    }
}

fn counted_as(counted: Counted, price: Micros) -> Micros {
    match counted {
        Counted::Seller(_) | Counted::Spend(_) => price,
        Counted::Uses(_) => ONE_USE,
    }
}

/// Every budget that a purchase from this seller on this day meets: the owner's, which all agents
/// share, and the agent's own or inherited ones.
pub fn budgets(
    owner_policy: Option<&Policy>,
    agent_policy: Option<&Policy>,
    parties: (OwnerId, AgentId, SellerId),
    day: Date,
) -> Vec<Budget> {
    let (owner, agent, seller) = parties;
    let Some(owners) = owner_policy.and_then(Policy::limits) else { return Vec::new() };
    let Some(agents) = agent_policy.and_then(Policy::limits) else { return Vec::new() };
    if owners.has_no_budgets() && agents.has_no_budgets() {
        return Vec::new();
    }
    let mut found = Vec::new();
    of(owners, Subject::Owner(owner), seller, day, &mut found);
    of(&agents.over(owners), Subject::Agent(agent), seller, day, &mut found);
    found
}

fn of(limits: &Limits, subject: Subject, seller: SellerId, day: Date, found: &mut Vec<Budget>) {
    let mut push = |counted, every: Every, cap, reason| {
        let account = Account::Limit(subject, Window::Budget(counted, every.of(day))).usd();
        // Two constraints of one text are one.
        if !found.iter().any(|known: &Budget| known.account == account) {
            found.push(Budget { account, counted, cap, reason });
        }
    };
    for budget in limits.seller_budgets.iter().flatten().filter(|it| it.seller == seller) {
        push(Counted::Seller(seller), budget.every, budget.cap_micros, Reason::SellerBudget);
    }
    for constraint in limits.constraints.iter().flatten() {
        let tag = constraint.tag();
        match &constraint.rule {
            Rule::Budget(most) => push(Counted::Spend(tag), Every::Ever, *most, Reason::Constraint),
            Rule::AgentRecurrence { every, most } => {
                let uses = |count: u32| Micros::new(i64::from(count)).unwrap_or(Micros::MAX);
                if let Some(every) = every {
                    push(Counted::Uses(tag), *every, ONE_USE, Reason::Constraint);
                }
                if let Some(most) = most {
                    push(Counted::Uses(tag), Every::Ever, uses(*most), Reason::Constraint);
                }
            }
            _ => {}
        }
    }
}
