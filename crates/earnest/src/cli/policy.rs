//! `earnest policy`: what an owner allows.

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use serde_json::{Map, Value, json};

use super::Style;
use super::client::{Client, Reach, Role, id};
use super::failure::{Ended, Failure};
use super::output::{dollars, facts, text};
use super::rows::Paging;

/// Policies.
#[derive(Debug, Args)]
pub struct Policy {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// The policy of one agent instead of your own.
    #[arg(long, global = true, value_name = "AGENT")]
    pub agent: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub verb: PolicyVerb,
}

/// What to do with a policy.
#[derive(Debug, Subcommand)]
pub enum PolicyVerb {
    /// Shows the policy in force.
    Show,
    /// Changes what is named and keeps the rest. Counts from the next purchase on.
    Set(Box<Limits>),
    /// Lists every version, newest first.
    History(Paging),
    /// Goes back to an earlier version, as a new one.
    Revert {
        /// Which version.
        version: u64,
    },
}

/// Limits to change.
#[derive(Debug, Args)]
pub struct Limits {
    /// The most for one purchase.
    #[arg(long, allow_hyphen_values = true, value_name = "AMOUNT")]
    pub per_call: Option<String>,
    /// The most for one session.
    #[arg(long, allow_hyphen_values = true, value_name = "AMOUNT")]
    pub session: Option<String>,
    /// The most for one day.
    #[arg(long, allow_hyphen_values = true, value_name = "AMOUNT")]
    pub day: Option<String>,
    /// Purchases above this wait for you.
    #[arg(long, allow_hyphen_values = true, value_name = "AMOUNT")]
    pub approve_above: Option<String>,
    /// How often an agent may ask: so many in so many seconds, such as 120/60.
    #[arg(long, value_name = "COUNT/SECONDS")]
    pub rate: Option<String>,
    /// A seller that may be paid, and no other; repeat it for several.
    #[arg(long = "seller", value_name = "SELLER")]
    pub sellers: Vec<String>,
    /// A listing that may be bought, by name, and no other; repeat it for several.
    #[arg(long = "listing", value_name = "NAME")]
    pub listings: Vec<String>,
    /// The most that your tab may owe.
    #[arg(long, allow_hyphen_values = true, value_name = "AMOUNT")]
    pub tab_limit: Option<String>,
    /// A limit to take away: an agent then inherits yours, you then have none.
    #[arg(long, value_name = "LIMIT")]
    pub clear: Vec<Limit>,
}

/// A limit by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Limit {
    /// `--per-call`
    PerCall,
    /// `--session`
    Session,
    /// `--day`
    Day,
    /// `--approve-above`
    ApproveAbove,
    /// `--rate`
    Rate,
    /// `--seller`
    Seller,
    /// `--listing`
    Listing,
    /// `--tab-limit`
    TabLimit,
}

impl Limit {
    const fn member(self) -> &'static str {
        match self {
            Self::PerCall => "per_call_cap_micros",
            Self::Session => "session_cap_micros",
            Self::Day => "day_cap_micros",
            Self::ApproveAbove => "approve_above_micros",
            Self::Rate => "rate",
            Self::Seller => "sellers",
            Self::Listing => "listings",
            Self::TabLimit => "tab_limit_micros",
        }
    }
}

impl Limits {
    /// The members to set; amounts are read here, so that a bad one is refused before anything is
    /// asked.
    fn changes(&self) -> Result<Map<String, Value>, Failure> {
        let mut changes = Map::new();
        let amounts = [
            (Limit::PerCall, &self.per_call),
            (Limit::Session, &self.session),
            (Limit::Day, &self.day),
            (Limit::ApproveAbove, &self.approve_above),
            (Limit::TabLimit, &self.tab_limit),
        ];
        for (limit, amount) in amounts {
            if let Some(amount) = amount {
                changes.insert(limit.member().to_owned(), super::amount(amount)?.get().into());
            }
        }
        if let Some(rate) = &self.rate {
            changes.insert(Limit::Rate.member().to_owned(), read_rate(rate)?);
        }
        for (limit, names) in [(Limit::Seller, &self.sellers), (Limit::Listing, &self.listings)] {
            if !names.is_empty() {
                changes.insert(limit.member().to_owned(), json!(names));
            }
        }
        for limit in &self.clear {
            if changes.insert(limit.member().to_owned(), Value::Null).is_some() {
                let why = format!("`{}` is set and cleared at once", limit.member());
                return Err(Failure::usage(why));
            }
        }
        if changes.is_empty() {
            return Err(Failure::usage("name at least one limit, such as --per-call '$1.00'"));
        }
        Ok(changes)
    }
}

fn read_rate(text: &str) -> Result<Value, Failure> {
    let read = || {
        let (count, seconds) = text.split_once('/')?;
        Some((count.trim().parse::<u32>().ok()?, seconds.trim().parse::<i64>().ok()?))
    };
    let (count, per_seconds) =
        read().ok_or_else(|| Failure::usage(format!("--rate: `{text}` is not like 120/60")))?;
    Ok(json!({ "count": count, "per_seconds": per_seconds }))
}

/// Runs the command.
pub async fn run(command: Policy, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    let subject = match &command.agent {
        None => "owner",
        Some(agent) => id(agent)?,
    };
    let path = format!("/v1/policies/{subject}");
    let named = command.agent.as_ref().map(|agent| format!(" --agent {agent}"));
    let again = format!("earnest policy history{}", named.unwrap_or_default());
    match command.verb {
        PolicyVerb::Show => {
            let row = client.get(Role::Owner, path).await?;
            style.object(&row, || in_words(&row))?;
        }
        PolicyVerb::Set(limits) => {
            let changes = limits.changes()?;
            let (row, etag) = read(&client, &path).await?;
            let mut whole = match row.get("limits") {
                Some(Value::Object(limits)) => limits.clone(),
                _ => Map::new(),
            };
            whole.extend(changes);
            whole.retain(|_, value| !value.is_null());
            let call = client.call(Role::Owner, Method::PUT, path).if_match(&etag);
            let row = call.body(Value::Object(whole)).send().await?.json()?;
            style.changed(&row, &in_a_line(&row), &again)?;
        }
        PolicyVerb::History(paging) => {
            let path = format!("{path}/versions");
            let listing = client.list(Role::Owner, &path, &[], paging.limit).await?;
            style.rows(&listing.rows, [">VERSION", "SET", "LIMITS"], |row| {
                [text(row, "version"), text(row, "set_at"), limits_in_words(row)]
            })?;
            paging.say_more(style, listing.more);
        }
        PolicyVerb::Revert { version } => {
            let (_, etag) = read(&client, &path).await?;
            let call = client.call(Role::Owner, Method::POST, format!("{path}/revert"));
            let call = call.if_match(&etag).body(json!({ "version": version }));
            let row = call.send().await?.json()?;
            style.changed(&row, &in_a_line(&row), &again)?;
        }
    }
    Ok(std::process::ExitCode::SUCCESS)
}

/// The policy and its `ETag`: whoever changes it in between makes the change fail, not this one.
async fn read(client: &Client, path: &str) -> Result<(Value, String), Failure> {
    let answer = client.call(Role::Owner, Method::GET, path).send().await?;
    let etag = answer.header("etag").unwrap_or_default();
    Ok((answer.json()?, etag))
}

/// Each limit that is set, by the name of its flag.
fn limits_of(row: &Value) -> Vec<(&'static str, String)> {
    let limits = row.get("limits").unwrap_or(&Value::Null);
    let mut set = Vec::new();
    for limit in Limit::value_variants() {
        let Some(value) = limits.get(limit.member()).filter(|value| !value.is_null()) else {
            continue;
        };
        let name = match limit {
            Limit::PerCall => "per call",
            Limit::Session => "per session",
            Limit::Day => "per day",
            Limit::ApproveAbove => "you approve above",
            Limit::Rate => "rate",
            Limit::Seller => "sellers",
            Limit::Listing => "listings",
            Limit::TabLimit => "tab limit",
        };
        let value = match value {
            Value::Number(micros) => micros.as_i64().map_or_else(|| micros.to_string(), dollars),
            Value::Array(names) => {
                let names = names.iter().map(|name| name.as_str().unwrap_or_default());
                names.collect::<Vec<_>>().join(" ")
            }
            rate => format!("{} in {} s", text(rate, "count"), text(rate, "per_seconds")),
        };
        set.push((name, value));
    }
    set
}

fn limits_in_words(row: &Value) -> String {
    let set = limits_of(row);
    if set.is_empty() {
        return "none of its own".to_owned();
    }
    set.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

fn in_a_line(row: &Value) -> String {
    format!("{} version {}: {}", text(row, "subject"), text(row, "version"), limits_in_words(row))
}

fn in_words(row: &Value) -> String {
    let mut all = vec![
        ("policy of", text(row, "subject")),
        ("version", text(row, "version")),
        ("set", text(row, "set_at")),
    ];
    let set = limits_of(row);
    if set.is_empty() {
        all.push(("limits", "none of its own".to_owned()));
    }
    all.extend(set);
    facts(&all)
}
