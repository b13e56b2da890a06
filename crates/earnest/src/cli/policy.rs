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
    /// The most for one seller in each day, week or month: sel_…=5.00/week; repeat it for several.
    #[arg(long = "seller-budget", value_name = "SELLER=AMOUNT/WINDOW")]
    pub seller_budgets: Vec<String>,
    /// A file with constraints as an AP2 payment mandate writes them, a JSON list; - reads them from
    /// standard input.
    #[arg(long, value_name = "FILE")]
    pub constraints: Option<std::path::PathBuf>,
    /// When you want to be charged, in your zone: day@18, week@9 (Mondays) or month@0 (the first).
    #[arg(long, value_name = "WINDOW@HOUR")]
    pub settle: Option<String>,
    /// Changes nothing: says what the limits would have said to the purchases of the last 30 days.
    #[arg(long)]
    pub dry_run: bool,
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
    /// `--seller-budget`
    SellerBudget,
    /// `--constraints`
    Constraints,
    /// `--settle`
    Settle,
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
            Self::SellerBudget => "seller_budgets",
            Self::Constraints => "constraints",
            Self::Settle => "settle",
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
        if !self.seller_budgets.is_empty() {
            let budgets = self.seller_budgets.iter().map(|text| read_budget(text));
            let budgets = budgets.collect::<Result<Vec<_>, _>>()?;
            changes.insert(Limit::SellerBudget.member().to_owned(), budgets.into());
        }
        if let Some(file) = &self.constraints {
            changes.insert(Limit::Constraints.member().to_owned(), read_constraints(file)?);
        }
        if let Some(text) = &self.settle {
            changes.insert(Limit::Settle.member().to_owned(), read_schedule(text)?);
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

fn read_budget(text: &str) -> Result<Value, Failure> {
    let unlike =
        || Failure::usage(format!("--seller-budget: `{text}` is not like sel_…=5.00/week"));
    let (seller, rest) = text.split_once('=').ok_or_else(unlike)?;
    let (amount, every) = rest.rsplit_once('/').ok_or_else(unlike)?;
    let cap = super::amount(amount)?.get();
    Ok(json!({ "seller": seller, "every": every, "cap_micros": cap }))
}

fn read_schedule(text: &str) -> Result<Value, Failure> {
    let read = || {
        let (every, hour) = text.split_once('@')?;
        Some((every, hour.parse::<i8>().ok()?))
    };
    let (every, hour) =
        read().ok_or_else(|| Failure::usage(format!("--settle: `{text}` is not like day@18")))?;
    Ok(json!({ "every": every, "hour": hour }))
}

fn read_constraints(file: &std::path::Path) -> Result<Value, Failure> {
    let read = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    let name = file.display();
    let text = read.map_err(|why| Failure::usage(format!("--constraints {name}: {why}")))?;
    let list: Vec<Value> = serde_json::from_str(&text)
        .map_err(|why| Failure::usage(format!("--constraints {name}: not a JSON list: {why}")))?;
    Ok(list.into())
}

/// What a dry run found, for people.
fn tried_in_words(row: &Value) -> String {
    let part = |name: &str| row.get(name).cloned().unwrap_or_default();
    let count = |verdicts: &Value| {
        let denied = verdicts.get("denied").and_then(Value::as_object);
        let denied = denied.into_iter().flatten().map(|(why, count)| format!("{count} {why}"));
        let denied: Vec<_> = denied.collect();
        let denied = if denied.is_empty() { "none".to_owned() } else { denied.join(", ") };
        let spent =
            verdicts.get("spent_micros").and_then(Value::as_i64).map_or_else(String::new, dollars);
        format!(
            "{} allowed for {spent}, {} waiting, refused: {denied}",
            text(verdicts, "allowed"),
            text(verdicts, "waiting"),
        )
    };
    let more = if part("truncated") == true { " (the newest; there were more)" } else { "" };
    facts(&[
        ("since", text(row, "since")),
        ("purchases", format!("{}{more}", text(row, "purchases"))),
        ("was", count(&part("was"))),
        ("would be", count(&part("would"))),
        ("changed", text(row, "changed")),
    ])
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
            if limits.dry_run {
                let call = client.call(Role::Owner, Method::POST, format!("{path}/dry-run"));
                let row = call.body(Value::Object(whole)).send().await?.json()?;
                style.object(&row, || tried_in_words(&row))?;
                return Ok(std::process::ExitCode::SUCCESS);
            }
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
            Limit::SellerBudget => "seller budgets",
            Limit::Constraints => "constraints",
            Limit::Settle => "charged every",
        };
        let value = match value {
            Value::Number(micros) => micros.as_i64().map_or_else(|| micros.to_string(), dollars),
            Value::Array(names) => names.iter().map(in_short).collect::<Vec<_>>().join(" "),
            schedule if *limit == Limit::Settle => {
                format!("{} at {}:00", text(schedule, "every"), text(schedule, "hour"))
            }
            rate => format!("{} in {} s", text(rate, "count"), text(rate, "per_seconds")),
        };
        set.push((name, value));
    }
    set
}

/// One entry of a list in a policy: a name, a budget, or a constraint by its type.
fn in_short(entry: &Value) -> String {
    if let Some(name) = entry.as_str() {
        return name.to_owned();
    }
    match entry.get("cap_micros").and_then(Value::as_i64) {
        Some(cap) => format!("{}={}/{}", text(entry, "seller"), dollars(cap), text(entry, "every")),
        None => text(entry, "type"),
    }
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
    let not_obeyed = row.get("not_obeyed").and_then(Value::as_array);
    for why in not_obeyed.into_iter().flatten() {
        let why = why.as_str().unwrap_or_default();
        all.push(("DENIES ALL", format!("the constraint {why}")));
    }
    facts(&all)
}
