//! `earnest agent`: who buys, within limits it can neither read nor change.

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use super::Style;
use super::client::{Client, Reach, Role, id};
use super::failure::{Ended, Failure};
use super::key::KeyTo;
use super::output::text;
use super::owner::{NewKey, create_with_key, make_key};
use super::rows::Paging;

/// Agents.
#[derive(Debug, Args)]
pub struct Agent {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// What to do.
    #[command(subcommand)]
    pub verb: AgentVerb,
}

/// What to do with agents.
#[derive(Debug, Subcommand)]
pub enum AgentVerb {
    /// Creates an agent under your policy; prints its id and a key, which is shown once.
    Create {
        /// What people call it.
        name: String,
        /// Where the key goes.
        #[command(flatten)]
        key: KeyTo,
    },
    /// Lists your agents, newest first.
    List(Paging),
    /// Pauses an agent: it buys nothing new.
    Pause {
        /// `agt_…`
        agent: String,
    },
    /// Lets an agent buy again.
    Resume {
        /// `agt_…`
        agent: String,
    },
    /// Makes a new key for an agent and revokes its others; the new one is shown once.
    Rotate {
        /// `agt_…`
        agent: String,
        /// What the key is for.
        #[arg(long, default_value = "")]
        label: String,
        /// Leave the other keys alone.
        #[arg(long)]
        keep_others: bool,
        /// Where the key goes.
        #[command(flatten)]
        to: KeyTo,
    },
    /// Revokes one key: nothing is bought with it from now on.
    Revoke {
        /// `key_…`, from `earnest agent keys`.
        key: String,
        /// Whose it is; looked for among your agents unless said.
        #[arg(long, value_name = "AGENT")]
        agent: Option<String>,
    },
    /// Lists the keys of an agent, without their secrets.
    Keys {
        /// `agt_…`
        agent: String,
    },
}

/// Runs the command.
pub async fn run(command: Agent, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    match command.verb {
        AgentVerb::Create { name, key } => {
            let body = json!({ "name": name });
            let next = "earnest policy set --agent AGENT --per-call '$1.00' --day '$10'";
            create_with_key(&client, style, Role::Owner, "/v1/agents", body, key, next).await?;
        }
        AgentVerb::List(paging) => {
            let listing = client.list(Role::Owner, "/v1/agents", &[], paging.limit).await?;
            let heads = ["AGENT", "NAME", "STATUS", ">KEYS", ">WAITING", "CREATED"];
            style.rows(&listing.rows, heads, |row| {
                [
                    text(row, "id"),
                    text(row, "name"),
                    standing(row).to_owned(),
                    text(row, "keys"),
                    text(row, "waiting"),
                    text(row, "created_at"),
                ]
            })?;
            paging.say_more(style, listing.more);
        }
        AgentVerb::Pause { agent } => pause(&client, style, &agent, true).await?,
        AgentVerb::Resume { agent } => pause(&client, style, &agent, false).await?,
        AgentVerb::Rotate { agent, label, keep_others, to } => {
            let path = format!("/v1/agents/{}", id(&agent)?);
            let next = "give the file to the agent as EARNEST_AGENT_KEY_FILE";
            let new = NewKey { label, rotate: !keep_others, to, next };
            make_key(&client, style, Role::Owner, &path, &new).await?;
        }
        AgentVerb::Revoke { key, agent } => revoke(&client, style, &key, agent).await?,
        AgentVerb::Keys { agent } => {
            let keys = keys(&client, &agent).await?;
            let heads = ["KEY", "LABEL", "STATUS", "CREATED"];
            style.rows(&keys, heads, |row| {
                let revoked = text(row, "revoked_at");
                let status = if revoked.is_empty() {
                    "live".to_owned()
                } else {
                    format!("revoked {revoked}")
                };
                [text(row, "id"), text(row, "label"), status, text(row, "created_at")]
            })?;
        }
    }
    Ok(std::process::ExitCode::SUCCESS)
}

async fn keys(client: &Client, agent: &str) -> Result<Vec<Value>, Failure> {
    let path = format!("/v1/agents/{}/keys", id(agent)?);
    Ok(client.list(Role::Owner, &path, &[], usize::MAX).await?.rows)
}

async fn pause(client: &Client, style: &Style, agent: &str, paused: bool) -> Result<(), Failure> {
    let path = format!("/v1/agents/{}", id(agent)?);
    let (verb, other) = if paused { ("pause", "resume") } else { ("resume", "pause") };
    client.post(Role::Owner, format!("{path}/{verb}"), None).await?;
    let row = client.get(Role::Owner, path).await?;
    let line = format!("{agent} {}", standing(&row));
    style.changed(&row, &line, &format!("earnest agent {other} {agent}"))
}

async fn revoke(
    client: &Client,
    style: &Style,
    key: &str,
    agent: Option<String>,
) -> Result<(), Failure> {
    let key = id(key)?;
    let agent = match agent {
        Some(agent) => agent,
        None => holder(client, key).await?,
    };
    let path = format!("/v1/agents/{}/keys/{key}", id(&agent)?);
    let row = client.call(Role::Owner, Method::DELETE, path).send().await?.json()?;
    let line = format!("{key} of {agent} revoked {}", text(&row, "revoked_at"));
    style.changed(&row, &line, &format!("earnest agent keys {agent}"))
}

/// The agent that holds a key.
async fn holder(client: &Client, key: &str) -> Result<String, Failure> {
    let agents = client.list(Role::Owner, "/v1/agents", &[], usize::MAX).await?.rows;
    for agent in agents.iter().map(|row| text(row, "id")) {
        if keys(client, &agent).await?.iter().any(|row| text(row, "id") == key) {
            return Ok(agent);
        }
    }
    Err(super::not_found(&format!("none of your agents has the key {key}")))
}

fn standing(row: &Value) -> &'static str {
    if row.get("paused") == Some(&json!(true)) { "paused" } else { "active" }
}
