//! What an owner allows. One pure function on one path for every caller; no key bypasses it.
//!
//! [`decide`] runs inside the unit that records the hold, so any number of parallel requests
//! overruns no cap. An owner's policy and an agent's both apply, each with limit accounts of its
//! own; an agent's field overrides the owner's default, null inherits. A policy that is missing,
//! unreadable or names an unknown field denies. The guards stand in order of precedence, and what
//! a hard cap refuses is never put to a human.

mod budget;
mod constraint;
pub mod dry_run;
mod limits;
mod period;

use serde::{Deserialize, Serialize};

pub(crate) use self::budget::counts;
pub use self::budget::{Budget, MAX_SELLER_BUDGETS, SellerBudget, budgets};
pub use self::constraint::{Constraint, MAX_CONSTRAINTS, Rule, Tag};
pub use self::limits::{Limits, MAX_RATE_COUNT, Rate, Schedule, careful_limits};
pub use self::period::{Every, Period};
use crate::id::{AgentId, OwnerId, SellerId};
use crate::money::Micros;
use crate::party::{Agent, Owner};
use crate::payer::{Dealing, Standing};
use crate::problem::{Reason, Refusal};
use crate::quote::Quote;
use crate::time::{Timestamp, Zone, seconds_between};
use crate::unit::{ListEntry, Record, rank};

/// Whose policy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicySubject {
    /// All of an owner's agents.
    Owner(OwnerId),
    /// One agent.
    Agent(AgentId),
}

impl std::fmt::Display for PolicySubject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Owner(id) => id.fmt(f),
            Self::Agent(id) => id.fmt(f),
        }
    }
}

/// The policy in force for one subject.
///
/// The limits are kept as they were written and read anew for each decision: a row written by a
/// later version, with a field this one does not know, denies instead of being half-obeyed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Whose.
    pub subject: PolicySubject,
    /// The owner it belongs to.
    pub owner: OwnerId,
    /// Counts up from 1; the `ETag` for `If-Match`.
    pub version: u64,
    /// When this version was set.
    pub set_at: Timestamp,
    /// The limits as written.
    pub limits: serde_json::Value,
    /// The limits as read: policies are read far more often than they are written.
    #[serde(skip)]
    pub read: ReadOnce,
}

/// What a policy's limits were read as, once they were.
#[derive(Clone, Debug, Default)]
pub struct ReadOnce(std::sync::OnceLock<Option<Limits>>);

/// Says nothing about the policy that its limits do not say.
impl PartialEq for ReadOnce {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ReadOnce {}

impl Policy {
    /// The limits, if this version understands all of them.
    pub fn limits(&self) -> Option<&Limits> {
        let read = || serde_json::from_value(self.limits.clone()).ok();
        self.read.0.get_or_init(read).as_ref()
    }
}

impl Record for Policy {
    const KIND: &'static str = "policy";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.subject.to_string()
    }
}

/// A version of a policy, kept for ever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyVersion(pub Policy);

impl PolicyVersion {
    /// The id of a version.
    pub fn key(subject: PolicySubject, version: u64) -> String {
        format!("{subject}@{version:010}")
    }
}

impl Record for PolicyVersion {
    const KIND: &'static str = "policy_version";
    const RANK: u8 = rank::ROW_LATER;
    fn id(&self) -> String {
        Self::key(self.0.subject, self.0.version)
    }
    fn lists(&self) -> Vec<ListEntry> {
        vec![ListEntry::new("policy_versions", self.0.subject, format!("{:010}", self.0.version))]
    }
}

/// What was used under each cap, holds included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// By all of the owner's agents in this session.
    pub owner_session: Micros,
    /// By all of the owner's agents today.
    pub owner_day: Micros,
    /// By this agent in this session.
    pub agent_session: Micros,
    /// By this agent today.
    pub agent_day: Micros,
}

/// How a tab stands for a new purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TabFacts {
    /// Open, or about to be opened.
    Open(OpenTab),
    /// Closing or closed: takes no more purchases.
    Closed,
    /// A settlement was declined or consent revoked.
    Frozen,
}

/// The room of an open tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenTab {
    /// What it owes, holds included.
    pub owed: Micros,
    /// What it may owe: [`crate::tab::room`].
    pub room: Micros,
}

/// Everything a decision rests on.
pub struct Facts<'a> {
    /// The owner's guard row.
    pub owner: &'a Owner,
    /// The agent's guard row.
    pub agent: &'a Agent,
    /// The owner's policy row, if there is one.
    pub owner_policy: Option<&'a Policy>,
    /// The agent's policy row, if there is one.
    pub agent_policy: Option<&'a Policy>,
    /// The tab.
    pub tab: TabFacts,
    /// Whether the seller exists and proved the origin of the quoted URL.
    pub seller_owns_url: bool,
    /// Whether owner and seller are the same person as far as is known.
    pub dealing: Dealing,
    /// What was used under each cap.
    pub used: Used,
    /// The budgets that the purchase meets, and what was used under each.
    pub budgets: &'a [(Budget, Micros)],
    /// When the agent asked before, oldest first.
    pub asked: &'a [Timestamp],
    /// Whether a live yes of the owner exists for exactly this.
    pub approved: bool,
    /// What a live grant for this seller still has, if there is one.
    pub grant_room: Option<Micros>,
}

/// The caps a hold is made under: the numbers its limit legs carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Of the owner's session account.
    pub owner_session: Micros,
    /// Of the owner's day account.
    pub owner_day: Micros,
    /// Of the agent's session account.
    pub agent_session: Micros,
    /// Of the agent's day account.
    pub agent_day: Micros,
    /// Of the tab.
    pub tab: Micros,
    /// Whether the purchase draws on the grant.
    pub grant: bool,
    /// Whether the purchase uses up the approval.
    pub approval: bool,
}

/// What a policy says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes, under these caps.
    Allow(Caps),
    /// The owner has to answer first.
    NeedsApproval(Refusal),
    /// No.
    Deny(Refusal),
}

/// Decides one purchase.
pub fn decide(facts: &Facts<'_>, quote: &Quote, max_price: Micros, now: Timestamp) -> Decision {
    match guards(facts, quote, max_price, now) {
        Ok(decision) => decision,
        Err(refusal) => Decision::Deny(*refusal),
    }
}

type Guard<T = ()> = Result<T, Box<Refusal>>;

fn deny<T>(refusal: Refusal) -> Guard<T> {
    Err(Box::new(refusal))
}

fn guards(facts: &Facts<'_>, quote: &Quote, max_price: Micros, now: Timestamp) -> Guard<Decision> {
    let (owner_limits, limits) = limits_in_force(facts)?;
    let tab = standing(facts)?;
    merchant(facts, &limits, quote)?;
    let price = quote.price.most();
    price_caps(&limits, price, max_price)?;
    constraints(facts, [&owner_limits, &limits], quote, now)?;
    rate(&limits, facts.asked, now)?;
    let caps = room(facts, &owner_limits, &limits, tab, price, now)?;
    Ok(threshold(facts, &limits, quote, caps))
}

/// Decides another voucher on a hold that exists: the money is reserved, so caps, rate and threshold
/// were asked then; who may buy, from whom, and for how much is asked again.
///
/// # Errors
/// The refusal; the hold stays as it is.
pub fn decide_again(
    facts: &Facts<'_>,
    quote: &Quote,
    max_price: Micros,
    now: Timestamp,
) -> Result<(), Box<Refusal>> {
    let (owner_limits, limits) = limits_in_force(facts)?;
    standing(facts)?;
    merchant(facts, &limits, quote)?;
    above_max(quote.price.most(), max_price)?;
    constraints(facts, [&owner_limits, &limits], quote, now)
}

/// Decides a line whose hold was gone when its seller reported it: what was bought was allowed once,
/// so only what can change since is asked again (standing, who pays whom, caps and room of today).
///
/// # Errors
/// The refusal that leaves the line unbilled.
pub fn decide_late(
    facts: &Facts<'_>,
    seller: SellerId,
    price: Micros,
    now: Timestamp,
) -> Result<Caps, Box<Refusal>> {
    let (owner_limits, limits) = limits_in_force(facts)?;
    let tab = standing(facts)?;
    apart(facts, seller)?;
    room(facts, &owner_limits, &limits, tab, price, now)
}

/// The caps, if the price fits under all of them.
fn room(
    facts: &Facts<'_>,
    owner: &Limits,
    agent: &Limits,
    tab: OpenTab,
    price: Micros,
    now: Timestamp,
) -> Guard<Caps> {
    let zone = facts.owner.zone_at(now);
    window_caps(facts, owner, agent, price, zone, now)?;
    budget_caps(facts, price, zone, now)?;
    funding(facts, tab, price)?;
    Ok(Caps {
        owner_session: owner.session_cap_micros.unwrap_or(Micros::MAX),
        owner_day: owner.day_cap_micros.unwrap_or(Micros::MAX),
        agent_session: agent.session_cap_micros.unwrap_or(Micros::MAX),
        agent_day: agent.day_cap_micros.unwrap_or(Micros::MAX),
        tab: tab.room,
        grant: false,
        approval: false,
    })
}

fn limits_in_force(facts: &Facts<'_>) -> Guard<(Limits, Limits)> {
    in_force(facts.owner_policy, facts.agent_policy)
}

/// The limits that count for an agent's purchase: the owner's, and the agent's over them.
///
/// # Errors
/// The refusal of every purchase, where a policy is missing or cannot be read.
pub fn in_force(
    owner: Option<&Policy>,
    agent: Option<&Policy>,
) -> Result<(Limits, Limits), Box<Refusal>> {
    let missing =
        || Refusal::denied(Reason::PolicyMissing, "no policy is set, so nothing may be bought");
    let owner = owner.ok_or_else(missing)?;
    let agent = agent.ok_or_else(missing)?;
    let invalid = || {
        Refusal::denied(
            Reason::PolicyInvalid,
            "the policy cannot be read, so nothing may be bought",
        )
    };
    let owner = owner.limits().ok_or_else(invalid)?;
    let agent = agent.limits().ok_or_else(invalid)?.over(owner);
    Ok((owner.clone(), agent))
}

fn standing(facts: &Facts<'_>) -> Guard<OpenTab> {
    if facts.owner.paused {
        return deny(Refusal::denied(Reason::OwnerPaused, "the owner paused all agents"));
    }
    if let Some(why) = &facts.owner.frozen {
        return deny(Refusal::denied(Reason::OwnerFrozen, format!("the owner is frozen: {why}")));
    }
    if facts.agent.paused {
        return deny(Refusal::denied(Reason::AgentPaused, "the owner paused this agent"));
    }
    match facts.tab {
        TabFacts::Open(tab) => Ok(tab),
        TabFacts::Frozen => {
            let why = "the tab is frozen: its last settlement was declined or the payment method was removed";
            deny(
                Refusal::denied(Reason::TabFrozen, why)
                    .next("the owner may add another payment method and settle again"),
            )
        }
        TabFacts::Closed => {
            let why = "the tab is closing and takes no more purchases";
            deny(
                Refusal::denied(Reason::TabClosed, why)
                    .next("repeat with the same request_id once the tab is settled"),
            )
        }
    }
}

/// Refused on tabs: who pays himself on credit takes money out of the operator's pocket.
fn apart(facts: &Facts<'_>, seller: SellerId) -> Guard {
    let why = match facts.dealing {
        Dealing::Apart => return Ok(()),
        Dealing::Same => "owner and seller are the same person",
        Dealing::Untold => {
            "nobody knows where the seller's earnings go: it needs a payout recipient first"
        }
    };
    deny(Refusal::denied(Reason::MerchantNotAllowed, why).with("seller", seller.to_string()))
}

fn merchant(facts: &Facts<'_>, limits: &Limits, quote: &Quote) -> Guard {
    let refuse = |why: &str| {
        deny(
            Refusal::denied(Reason::MerchantNotAllowed, why)
                .with("seller", quote.seller.to_string()),
        )
    };
    if !facts.seller_owns_url {
        return refuse(
            "the quoted URL is not under an origin that this seller proved and still holds",
        );
    }
    apart(facts, quote.seller)?;
    if limits.sellers.as_ref().is_some_and(|list| !list.contains(&quote.seller)) {
        return refuse("the seller is not on the owner's list");
    }
    if limits.listings.as_ref().is_some_and(|list| !list.contains(&quote.listing)) {
        let why = "the listing is not on the owner's list";
        return deny(
            Refusal::denied(Reason::ToolNotAllowed, why).with("listing", quote.listing.clone()),
        );
    }
    Ok(())
}

fn above_max(price: Micros, max_price: Micros) -> Guard {
    if price > max_price {
        let why = format!("the price of {price} is above the {max_price} that the caller will pay");
        return deny(
            Refusal::denied(Reason::PriceAboveMax, why)
                .amount("price", price)
                .amount("max_price", max_price),
        );
    }
    Ok(())
}

fn price_caps(limits: &Limits, price: Micros, max_price: Micros) -> Guard {
    above_max(price, max_price)?;
    match limits.per_call_cap_micros {
        Some(cap) if price > cap => {
            let why = format!("the price of {price} is above the cap of {cap} for one purchase");
            deny(
                Refusal::denied(Reason::PerCallCap, why)
                    .amount("price", price)
                    .amount("limit", cap),
            )
        }
        _ => Ok(()),
    }
}

fn rate(limits: &Limits, asked: &[Timestamp], now: Timestamp) -> Guard {
    let Some(rate) = limits.rate else { return Ok(()) };
    let inside = |at: &&Timestamp| seconds_between(**at, now) < rate.per_seconds;
    let count = usize::try_from(rate.count).unwrap_or(usize::MAX);
    let recent: Vec<_> = asked.iter().filter(inside).collect();
    if recent.len() < count {
        return Ok(());
    }
    // Room comes when the oldest of the last `count` leaves the window.
    let oldest = recent.len().checked_sub(count).and_then(|place| recent.get(place));
    let passed = oldest.map_or(0, |at| seconds_between(**at, now));
    let wait = rate.per_seconds.saturating_sub(passed).max(1);
    let why = format!("at most {} purchases in {} s", rate.count, rate.per_seconds);
    deny(
        Refusal::denied(Reason::RateLimit, why)
            .with("limit", rate.count)
            .with("per_seconds", rate.per_seconds)
            .retry_after(wait),
    )
}

/// One cap with its account and words.
struct Cap<'a> {
    reason: Reason,
    whose: &'a str,
    window: &'a str,
    used: Micros,
    cap: Option<Micros>,
}

fn window_caps(
    facts: &Facts<'_>,
    owner: &Limits,
    agent: &Limits,
    price: Micros,
    zone: &Zone,
    now: Timestamp,
) -> Guard {
    let used = facts.used;
    let cap = |reason, whose, window, used, cap| Cap { reason, whose, window, used, cap };
    let session = Reason::SessionCap;
    let day = Reason::DailyCap;
    let caps = [
        cap(session, "the owner's", "this session", used.owner_session, owner.session_cap_micros),
        cap(session, "the agent's", "this session", used.agent_session, agent.session_cap_micros),
        cap(day, "the owner's", "today", used.owner_day, owner.day_cap_micros),
        cap(day, "the agent's", "today", used.agent_day, agent.day_cap_micros),
    ];
    for cap in &caps {
        fits(cap, price, zone, now)?;
    }
    Ok(())
}

fn fits(cap: &Cap<'_>, price: Micros, zone: &Zone, now: Timestamp) -> Guard {
    let Some(limit) = cap.cap else { return Ok(()) };
    let left = limit.saturating_sub(cap.used);
    if price <= left {
        return Ok(());
    }
    let why = format!(
        "{} cap of {limit} for {} has {left} left, and this costs {price}",
        cap.whose, cap.window
    );
    let refusal = Refusal::denied(cap.reason, why)
        .amount("price", price)
        .amount("limit", limit)
        .amount("used", cap.used);
    if cap.reason == Reason::DailyCap && price <= limit {
        let next = zone.next_day(now);
        let wait = seconds_between(now, next).max(1);
        return deny(refusal.with("resets_at", next.to_string()).retry_after(wait));
    }
    deny(refusal)
}

fn budget_caps(facts: &Facts<'_>, price: Micros, zone: &Zone, now: Timestamp) -> Guard {
    for (budget, used) in facts.budgets {
        let counts = budget.counts(price);
        let left = budget.cap.saturating_sub(*used);
        if counts <= left {
            continue;
        }
        let (whose, what) = budget.words();
        // Of purchases there are so many, of money so much.
        let in_money = budget.is_money();
        let say = |amount: Micros| {
            if in_money { amount.to_string() } else { amount.get().to_string() }
        };
        let why = format!("{whose} {what} is {}, of which {} is used", say(budget.cap), say(*used));
        let refusal = Refusal::denied(budget.reason, why);
        let refusal = match in_money {
            true => {
                refusal.amount("price", price).amount("limit", budget.cap).amount("used", *used)
            }
            false => refusal.with("limit", budget.cap.get()).with("used", used.get()),
        };
        let room = budget.resets().and_then(|day| zone.hour_of(day, 0));
        return match room.filter(|_| counts <= budget.cap) {
            Some(at) => {
                let wait = seconds_between(now, at).max(1);
                deny(refusal.with("resets_at", at.to_string()).retry_after(wait))
            }
            None => deny(refusal),
        };
    }
    Ok(())
}

/// What the constraints of owner and agent say of this purchase by itself; what they count is among
/// the budgets.
fn constraints(facts: &Facts<'_>, limits: [&Limits; 2], quote: &Quote, now: Timestamp) -> Guard {
    let price = quote.price.most();
    let zone = facts.owner.zone_at(now);
    for constraint in limits.into_iter().flat_map(|it| it.constraints.iter().flatten()) {
        let kind = constraint.kind();
        let refuse = |why: String| {
            let why = format!("the constraint `{kind}` of the policy: {why}");
            Refusal::denied(Reason::Constraint, why).with("constraint", kind)
        };
        match &constraint.rule {
            Rule::Unknown(why) => return deny(refuse(why.clone())),
            // The least that an open price may come to is the seller's to say, so a range counts for
            // what is held.
            Rule::AmountRange { min, max } if price < *min || price > *max => {
                let why = format!("{price} is not from {min} to {max}");
                let refusal = refuse(why).amount("price", price).amount("limit", *max);
                return deny(refusal);
            }
            Rule::AllowedPayees(payees) if !payees.iter().any(|it| it.is_paid_by(quote)) => {
                let refusal = refuse("the seller is not among its payees".to_owned());
                return deny(refusal.with("seller", quote.seller.to_string()));
            }
            Rule::ExecutionDate { not_before, not_after } => {
                if not_before.as_ref().is_some_and(|it| it.is_ahead(zone, now)) {
                    return deny(refuse("it is too early".to_owned()));
                }
                if not_after.as_ref().is_some_and(|it| it.is_past(zone, now)) {
                    return deny(refuse("it is too late".to_owned()));
                }
            }
            Rule::AmountRange { .. }
            | Rule::AllowedPayees(_)
            | Rule::Budget(_)
            | Rule::AgentRecurrence { .. } => {}
        }
    }
    Ok(())
}

fn funding(facts: &Facts<'_>, tab: OpenTab, price: Micros) -> Guard {
    if facts.owner.funding.is_none() {
        let why = "the owner has no payment method on file";
        return deny(Refusal::denied(Reason::FundingMissing, why).next("the owner adds one once"));
    }
    let OpenTab { owed, room } = tab;
    if price <= room.saturating_sub(owed) {
        return Ok(());
    }
    let line = facts.owner.credit_line_micros;
    let why = match facts.owner.payer {
        Standing::Shared if room.is_zero() && line.is_none() => {
            "the owner's PayPal account pays for another owner, who has its credit line; the \
             operator may set one here"
                .to_owned()
        }
        Standing::Untold if room.is_zero() && line.is_none() => {
            "PayPal did not tell whose account pays, so the operator has to set a credit line"
                .to_owned()
        }
        _ => format!("the tab owes {owed} of at most {room}, and this costs {price}"),
    };
    deny(
        Refusal::denied(Reason::TabLimit, why)
            .amount("price", price)
            .amount("limit", room)
            .amount("used", owed)
            .next("repeat with the same request_id after the next settlement"),
    )
}

fn threshold(facts: &Facts<'_>, limits: &Limits, quote: &Quote, caps: Caps) -> Decision {
    let price = quote.price.most();
    let Some(above) = limits.approve_above_micros.filter(|above| price > *above) else {
        return Decision::Allow(caps);
    };
    if facts.approved {
        return Decision::Allow(Caps { approval: true, ..caps });
    }
    match facts.grant_room {
        Some(room) if price <= room => Decision::Allow(Caps { grant: true, ..caps }),
        Some(room) => Decision::NeedsApproval(
            Refusal::denied(
                Reason::GrantExhausted,
                format!("the grant has {room} left, and this costs {price}"),
            )
            .amount("price", price)
            .amount("grant_left", room),
        ),
        None => {
            let why = format!("{price} is above the {above} that passes without the owner");
            let refusal = Refusal::new(crate::problem::Code::PolicyDenied, why);
            Decision::NeedsApproval(refusal.amount("price", price).amount("approve_above", above))
        }
    }
}

#[cfg(test)]
mod tests;
