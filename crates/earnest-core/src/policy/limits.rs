//! What an owner writes down: caps, lists, budgets, constraints, and when to be charged.

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::PolicySubject;
use super::budget::{MAX_SELLER_BUDGETS, SellerBudget};
use super::constraint::{Constraint, MAX_CONSTRAINTS, MAX_PAYEES, Rule};
use super::period::Every;
use crate::id::SellerId;
use crate::money::Micros;
use crate::problem::Refusal;
use crate::time::{Timestamp, Zone};

/// The most authorizations a rate may count: the window's times are kept one by one.
pub const MAX_RATE_COUNT: u32 = 1_000;

/// The longest a policy may be as it is kept: it is read for every purchase.
const MAX_POLICY_BYTES: usize = 64 * 1024;

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
    /// The most for single sellers in each day, week or month.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seller_budgets: Option<Vec<SellerBudget>>,
    /// Constraints as an AP2 payment mandate writes them. Every one binds; an unknown one denies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraints: Option<Vec<Constraint>>,
    /// When the tab is settled beside the operator's rules. Only on the owner's policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle: Option<Schedule>,
}

/// When an owner wants to be charged: at an hour of each day, of each Monday, or of the first day of
/// each month, in the owner's zone. It brings a settlement forward and never puts one off, and what
/// is below the operator's minimum waits until it is worth a fee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// How often.
    pub every: Every,
    /// At which full hour, 0 to 23.
    pub hour: i8,
}

impl Schedule {
    /// Whether a time of the schedule lies after `since` and not after `now`.
    pub fn is_due(self, since: Timestamp, now: Timestamp, zone: &Zone) -> bool {
        let first = self.every.of(zone.day(now));
        let of = |from| zone.hour_of(from, self.hour);
        let last = match of(first.from) {
            Some(at) if at <= now => Some(at),
            // Today is the day, and it is too early: the time before counts.
            _ => first.from.yesterday().ok().and_then(|day| of(self.every.of(day).from)),
        };
        last.is_some_and(|at| since < at && at <= now)
    }
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
        if let Some(schedule) = self.settle {
            if matches!(subject, PolicySubject::Agent(_)) {
                return refuse("settle", "belongs to the owner's policy, as the tab does");
            }
            if !matches!(schedule.every, Every::Day | Every::Week | Every::Month) {
                return refuse("settle.every", "must be day, week or month");
            }
            if !(0..=23).contains(&schedule.hour) {
                return refuse("settle.hour", "must be from 0 to 23");
            }
        }
        let budgets = self.seller_budgets.as_deref().unwrap_or_default();
        if budgets.len() > MAX_SELLER_BUDGETS {
            return refuse("seller_budgets", "may hold at most 100 budgets");
        }
        for (place, budget) in budgets.iter().enumerate() {
            if !matches!(budget.every, Every::Day | Every::Week | Every::Month) {
                return refuse("seller_budgets.every", "must be day, week or month");
            }
            let same =
                |other: &SellerBudget| (other.seller, other.every) == (budget.seller, budget.every);
            if budgets.iter().take(place).any(same) {
                return refuse("seller_budgets", "names a seller twice for one window");
            }
        }
        if self.constraints.as_ref().is_some_and(|list| list.len() > MAX_CONSTRAINTS) {
            return refuse("constraints", "may hold at most 32 constraints");
        }
        // INVARIANT: a_policy_is_small_enough_to_be_asked_for_every_purchase
        let weights = self.constraints.iter().flatten().map(Constraint::weight);
        if weights.sum::<usize>() > MAX_PAYEES {
            return refuse("constraints", "may name at most 1000 payees altogether");
        }
        let written = serde_json::to_string(self).map_or(usize::MAX, |text| text.len());
        if written > MAX_POLICY_BYTES {
            return refuse("limits", "are longer than the 64 kB that a policy may be");
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
    pub(super) fn over(&self, owner: &Self) -> Self {
        Self {
            per_call_cap_micros: self.per_call_cap_micros.or(owner.per_call_cap_micros),
            session_cap_micros: self.session_cap_micros.or(owner.session_cap_micros),
            day_cap_micros: self.day_cap_micros.or(owner.day_cap_micros),
            approve_above_micros: self.approve_above_micros.or(owner.approve_above_micros),
            rate: self.rate.or(owner.rate),
            sellers: self.sellers.clone().or_else(|| owner.sellers.clone()),
            listings: self.listings.clone().or_else(|| owner.listings.clone()),
            tab_limit_micros: owner.tab_limit_micros,
            seller_budgets: self.seller_budgets.clone().or_else(|| owner.seller_budgets.clone()),
            constraints: self.constraints.clone().or_else(|| owner.constraints.clone()),
            settle: owner.settle,
        }
    }

    /// The constraints that deny every purchase because they are not understood, and why.
    pub fn not_obeyed(&self) -> Vec<String> {
        let all = self.constraints.iter().flatten();
        let unknown = all.filter_map(|constraint| match &constraint.rule {
            Rule::Unknown(why) => Some(format!("`{}`: {why}", constraint.kind())),
            _ => None,
        });
        unknown.collect()
    }

    /// Whether nothing is counted beside session and day.
    pub(super) fn has_no_budgets(&self) -> bool {
        self.seller_budgets.is_none() && self.constraints.is_none()
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
        tab_limit_micros: Some(Micros::constant(20_000_000)),
        ..Limits::default()
    }
}
