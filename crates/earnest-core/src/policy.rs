//! What an owner allows. One pure function on one path for every caller; no key bypasses it.
//!
//! [`decide`] runs inside the unit that records the hold, so any number of parallel requests
//! overruns no cap. An owner's policy and an agent's both apply, each with limit accounts of its
//! own; an agent's field overrides the owner's default, null inherits. A policy that is missing,
//! unreadable or names an unknown field denies. The guards stand in order of precedence, and what
//! a hard cap refuses is never put to a human.

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::{AgentId, OwnerId, SellerId};
use crate::money::{Currency, Micros};
use crate::party::{Agent, Owner};
use crate::payer::{Dealing, Standing};
use crate::problem::{Reason, Refusal};
use crate::quote::Quote;
use crate::time::{Timestamp, Zone, seconds_between};
use crate::unit::{ListEntry, Record, rank};

/// The most authorizations a rate may count: the window's times are kept one by one.
pub const MAX_RATE_COUNT: u32 = 1_000;

/// Limits. Every field may be left out: an owner's then sets no limit, an agent's inherits.
///
/// Amounts are integers of micro-units. A cap of 0 allows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Limits {
    /// The most for one purchase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_call_cap_micros: Option<Micros>,
    /// The most for one session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_cap_micros: Option<Micros>,
    /// The most for one calendar day in the owner's zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day_cap_micros: Option<Micros>,
    /// Purchases above this wait for the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approve_above_micros: Option<Micros>,
    /// How often an agent may ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// The only sellers that may be paid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sellers: Option<Vec<SellerId>>,
    /// The only listings that may be bought, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listings: Option<Vec<String>>,
    /// The most a tab may owe. Only on the owner's policy: a tab is the owner's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tab_limit_micros: Option<Micros>,
}

/// A sliding window: at most `count` authorizations in any `per_seconds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// How many; 1 to [`MAX_RATE_COUNT`].
    pub count: u32,
    /// In how many seconds; 1 to a day.
    pub per_seconds: i64,
}

impl Serialize for Limits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Limits {
    /// Only from an object: a list would be read by position, and an empty one as *no limits*.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Limits;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of limits")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Limits, A::Error> {
                Limits::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl Limits {
    /// Whether the limits make sense.
    ///
    /// # Errors
    /// `validation_failed`, naming the field.
    pub fn check(&self, subject: PolicySubject) -> Result<(), Refusal> {
        let refuse = |field: &str, why: &str| {
            let detail = format!("`{field}` {why}");
            Err(Refusal::new(crate::problem::Code::ValidationFailed, detail).with("field", field))
        };
        if let Some(rate) = self.rate {
            if !(1..=MAX_RATE_COUNT).contains(&rate.count) {
                return refuse("rate.count", "must be from 1 to 1000");
            }
            if !(1..=86_400).contains(&rate.per_seconds) {
                return refuse("rate.per_seconds", "must be from 1 to 86400");
            }
        }
        if self.tab_limit_micros.is_some() && matches!(subject, PolicySubject::Agent(_)) {
            return refuse("tab_limit_micros", "belongs to the owner's policy, as the tab does");
        }
        if self.sellers.as_ref().is_some_and(|list| list.len() > 1_000) {
            return refuse("sellers", "may name at most 1000 sellers");
        }
        if self.listings.as_ref().is_some_and(|list| list.len() > 1_000) {
            return refuse("listings", "may name at most 1000 listings");
        }
        Ok(())
    }

    /// An agent's limits over its owner's defaults. Every field overrides alike, lists too: an owner
    /// who sets one on the agent means that agent. What binds for all agents together are the caps on
    /// accounts of the owner's own: session, day and tab.
    fn over(&self, owner: &Self) -> Self {
        Self {
            per_call_cap_micros: self.per_call_cap_micros.or(owner.per_call_cap_micros),
            session_cap_micros: self.session_cap_micros.or(owner.session_cap_micros),
            day_cap_micros: self.day_cap_micros.or(owner.day_cap_micros),
            approve_above_micros: self.approve_above_micros.or(owner.approve_above_micros),
            rate: self.rate.or(owner.rate),
            sellers: self.sellers.clone().or_else(|| owner.sellers.clone()),
            listings: self.listings.clone().or_else(|| owner.listings.clone()),
            tab_limit_micros: owner.tab_limit_micros,
        }
    }
}

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
) -> Result<(), Box<Refusal>> {
    let (_, limits) = limits_in_force(facts)?;
    standing(facts)?;
    merchant(facts, &limits, quote)?;
    above_max(quote.price.most(), max_price)
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

/// The limits a careful owner would start with, for owners who set none.
pub fn careful_limits() -> Limits {
    Limits {
        per_call_cap_micros: Some(Micros::constant(1_000_000)),
        session_cap_micros: Some(Micros::constant(5_000_000)),
        day_cap_micros: Some(Micros::constant(10_000_000)),
        approve_above_micros: Some(Micros::constant(200_000)),
        rate: Some(Rate { count: 120, per_seconds: 60 }),
        sellers: None,
        listings: None,
        tab_limit_micros: Some(Micros::constant(20_000_000)),
    }
}

/// The currencies a policy may be about: one, so far.
pub const CURRENCY: Currency = Currency::Usd;

#[cfg(test)]
mod tests;
