//! Constraints as the Agent Payments Protocol writes them in an open payment mandate
//! (`payment.amount_range`, `payment.allowed_payees`, `payment.budget`, `payment.agent_recurrence`,
//! `payment.execution_date`), accepted as part of a policy.
//!
//! Every constraint binds. One that is not known here, that is known and not obeyed here, or that
//! carries a member nobody here reads, denies every purchase: obeying the half one understands would
//! give more than was granted.
//!
//! The units are the protocol's: an amount range counts in cents, a budget in whole dollars.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::period::Every;
use crate::id::SellerId;
use crate::money::{MICROS_PER_CENT, Micros};
use crate::quote::{Quote, canonical_url};
use crate::time::{Timestamp, Zone};

/// The most constraints of one policy.
pub const MAX_CONSTRAINTS: usize = 32;
/// The most payees of all constraints of one policy: every purchase looks at each.
pub(super) const MAX_PAYEES: usize = 1_000;

/// A constraint as it was written, and what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    raw: Value,
    tag: Tag,
    /// What it asks for.
    pub rule: Rule,
}

/// What a constraint asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A price from `min` to `max`.
    AmountRange {
        /// At least.
        min: Micros,
        /// At most.
        max: Micros,
    },
    /// One of these is paid.
    AllowedPayees(Vec<Payee>),
    /// All purchases together cost at most this.
    Budget(Micros),
    /// So often, and no oftener.
    AgentRecurrence {
        /// Once in each of these; `None` on demand.
        every: Option<Every>,
        /// So many times altogether.
        most: Option<u32>,
    },
    /// Only within this time.
    ExecutionDate {
        /// Not earlier.
        not_before: Option<Moment>,
        /// Not later.
        not_after: Option<Moment>,
    },
    /// Nothing that this version obeys; why, in a few words.
    Unknown(String),
}

/// Somebody who may be paid. A name is no identity, so one that has nothing else is never met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payee {
    /// The id of a seller; one that is none is met by nobody.
    id: Option<Result<SellerId, ()>>,
    /// The origin of its website.
    origin: Option<String>,
}

impl Payee {
    /// Whether a quote is this payee's: its origins are proved, so the URL's tells whose it is.
    pub fn is_paid_by(&self, quote: &Quote) -> bool {
        let id = self.id.is_none_or(|id| id == Ok(quote.seller));
        let origin = self.origin.as_ref().is_none_or(|origin| origin == quote.request.origin());
        id && origin && (self.id.is_some() || self.origin.is_some())
    }
}

/// A day in the owner's zone, or a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moment {
    /// All of a calendar day.
    Day(jiff::civil::Date),
    /// To the second.
    At(Timestamp),
}

impl Moment {
    fn read(text: &str) -> Option<Self> {
        let at = text.parse().map(Self::At);
        at.or_else(|_| text.parse().map(Self::Day)).ok()
    }

    /// Whether `now` is before all of it.
    pub fn is_ahead(&self, zone: &Zone, now: Timestamp) -> bool {
        match self {
            Self::Day(day) => zone.day(now) < *day,
            Self::At(at) => now < *at,
        }
    }

    /// Whether `now` is after all of it.
    pub fn is_past(&self, zone: &Zone, now: Timestamp) -> bool {
        match self {
            Self::Day(day) => zone.day(now) > *day,
            Self::At(at) => now > *at,
        }
    }
}

impl Constraint {
    /// A constraint as written. Never refuses: what is not understood is kept, and denies.
    pub fn read(raw: Value) -> Self {
        let rule = rule(&raw).unwrap_or_else(Rule::Unknown);
        let tag = Tag::of(&raw);
        Self { raw, tag, rule }
    }

    /// Its type as written, for messages.
    pub fn kind(&self) -> &str {
        self.raw.get("type").and_then(Value::as_str).unwrap_or("without a type")
    }

    /// What tells its counters from those of other constraints: the same text counts on.
    pub const fn tag(&self) -> Tag {
        self.tag
    }

    /// How much work it is to look at: the payees it names, or one.
    pub fn weight(&self) -> usize {
        match &self.rule {
            Rule::AllowedPayees(payees) => payees.len().max(1),
            _ => 1,
        }
    }
}

impl Serialize for Constraint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Constraint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::read)
    }
}

/// Eight bytes of the hash of a constraint, in hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag([u8; 8]);

impl Tag {
    fn of(raw: &Value) -> Self {
        let digest: [u8; 32] = Sha256::digest(raw.to_string().as_bytes()).into();
        let [a, b, c, d, e, f, g, h, ..] = digest;
        Self([a, b, c, d, e, f, g, h])
    }
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl std::fmt::Debug for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Tag {
    type Err = hex::FromHexError;

    fn from_str(text: &str) -> Result<Self, hex::FromHexError> {
        let mut bytes = [0; 8];
        hex::decode_to_slice(text, &mut bytes)?;
        // One spelling: capitals would be a second name of one account.
        if hex::encode(bytes) == text { Ok(Self(bytes)) } else { Err(hex::FromHexError::OddLength) }
    }
}

type Read<T> = Result<T, String>;

fn rule(raw: &Value) -> Read<Rule> {
    let members = raw.as_object().ok_or("it is not an object")?;
    let kind = members.get("type").and_then(Value::as_str).ok_or("it has no type")?;
    match kind.strip_prefix("payment.").unwrap_or(kind) {
        "amount_range" => amount_range(members),
        "allowed_payees" => allowed_payees(members),
        "budget" => budget(members),
        "agent_recurrence" => agent_recurrence(members),
        "execution_date" => execution_date(members),
        _ => Err("its type is not obeyed here".to_owned()),
    }
}

/// Refuses members that nobody reads.
fn only(members: &Map<String, Value>, known: &[&str]) -> Read<()> {
    match members.keys().find(|name| *name != "type" && !known.contains(&name.as_str())) {
        Some(name) => Err(format!("`{name}` is not obeyed here")),
        None => Ok(()),
    }
}

fn in_dollars(members: &Map<String, Value>) -> Read<()> {
    match members.get("currency").and_then(Value::as_str) {
        Some("USD") => Ok(()),
        _ => Err("its currency is not USD".to_owned()),
    }
}

fn amount_range(members: &Map<String, Value>) -> Read<Rule> {
    only(members, &["currency", "min", "max"])?;
    in_dollars(members)?;
    let cents = |name: &str| match members.get(name) {
        None => Ok(None),
        Some(value) => {
            let micros = value.as_i64().and_then(|cents| cents.checked_mul(MICROS_PER_CENT));
            let amount = micros.and_then(|micros| Micros::new(micros).ok());
            amount.map(Some).ok_or(format!("`{name}` is not a number of cents"))
        }
    };
    let max = cents("max")?.ok_or("it has no `max`")?;
    Ok(Rule::AmountRange { min: cents("min")?.unwrap_or(Micros::ZERO), max })
}

fn allowed_payees(members: &Map<String, Value>) -> Read<Rule> {
    only(members, &["allowed"])?;
    let list =
        members.get("allowed").and_then(Value::as_array).ok_or("it has no list `allowed`")?;
    if list.len() > MAX_PAYEES {
        return Err(format!("it names more than {MAX_PAYEES} payees"));
    }
    let payee = |value: &Value| {
        let members = value.as_object().ok_or("a payee is not an object")?;
        only(members, &["id", "name", "website"])?;
        let text = |name: &str| match members.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(format!("`{name}` of a payee is not a text")),
        };
        text("name")?;
        let origin = |website: String| {
            let url = canonical_url(&website).map_err(|why| why.detail)?;
            Ok::<_, String>(url.origin().ascii_serialization())
        };
        // One spelling of an id: others are other texts.
        let seller = |text: String| {
            let id = text.parse::<SellerId>().ok().filter(|id| id.to_string() == text);
            id.ok_or(())
        };
        Ok(Payee { id: text("id")?.map(seller), origin: text("website")?.map(origin).transpose()? })
    };
    list.iter().map(payee).collect::<Read<_>>().map(Rule::AllowedPayees)
}

fn budget(members: &Map<String, Value>) -> Read<Rule> {
    only(members, &["currency", "max"])?;
    in_dollars(members)?;
    let Some(Value::Number(max)) = members.get("max") else {
        return Err("`max` is not a number of dollars".to_owned());
    };
    // The text of the number, so that no rounding of a double decides about money.
    let text = max.to_string();
    let whole = text.strip_suffix(".0").unwrap_or(&text);
    let max = match whole {
        "0" => Ok(Micros::ZERO),
        whole => Micros::parse(whole).map_err(|why| format!("`max`: {why}")),
    };
    max.map(Rule::Budget)
}

fn agent_recurrence(members: &Map<String, Value>) -> Read<Rule> {
    only(members, &["frequency", "max_occurrences"])?;
    let every = match members.get("frequency").and_then(Value::as_str) {
        Some("ON_DEMAND") => None,
        Some("DAILY") => Some(Every::Day),
        Some("WEEKLY") => Some(Every::Week),
        Some("BIWEEKLY") => Some(Every::Fortnight),
        Some("MONTHLY") => Some(Every::Month),
        Some("QUARTERLY") => Some(Every::Quarter),
        Some("ANNUALLY") => Some(Every::Year),
        _ => return Err("its `frequency` is not known".to_owned()),
    };
    let most = match members.get("max_occurrences") {
        None => None,
        Some(value) => {
            let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
            Some(count.ok_or("`max_occurrences` is not a count")?)
        }
    };
    Ok(Rule::AgentRecurrence { every, most })
}

fn execution_date(members: &Map<String, Value>) -> Read<Rule> {
    only(members, &["not_before", "not_after"])?;
    let moment = |name: &str| match members.get(name) {
        None => Ok(None),
        Some(value) => {
            let moment = value.as_str().and_then(Moment::read);
            moment.map(Some).ok_or(format!("`{name}` is not a date of ISO 8601"))
        }
    };
    Ok(Rule::ExecutionDate { not_before: moment("not_before")?, not_after: moment("not_after")? })
}
