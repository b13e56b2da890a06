//! Trying limits on what was bought, before they are set.

use std::collections::BTreeMap;

use earnest_core::id::{AgentId, OwnerId};
use earnest_core::party::{Agent, Owner};
use earnest_core::policy::dry_run::{Trial, Tried};
use earnest_core::policy::{Limits, Policy, PolicySubject};
use earnest_core::problem::Code;
use earnest_core::purchase::Purchase;
use earnest_core::time::{Timestamp, after};

use crate::api::auth::not_here;
use crate::api::error::{ApiResult, refuse};
use crate::app::App;

/// How far back a dry run may look.
pub const MAX_DAYS: u8 = 30;
/// The most purchases that are tried: the newest.
const MAX_PURCHASES: usize = 20_000;
/// How many rows are read at once.
const PAGE: usize = 1_000;

/// What became of a trial.
pub struct DryRun {
    /// Every purchase with both verdicts, oldest first.
    pub tried: Vec<Tried>,
    /// From when on.
    pub since: Timestamp,
    /// Whether there were more, of which only the newest were tried.
    pub truncated: bool,
}

/// Tries `limits` for the subject of `row` on the purchases of the last days. What an owner's other
/// agents bought counts under the owner's limits, and is reported where the owner's are tried.
///
/// # Errors
/// When the books cannot be read.
pub fn dry_run(
    app: &App,
    owner: OwnerId,
    row: &Policy,
    limits: &Limits,
    days: u8,
) -> ApiResult<DryRun> {
    let reader = app.store.reader();
    let since = after(app.now(), -i64::from(days).saturating_mul(86_400));
    let (purchases, truncated) = bought(app, owner, since)?;
    let mut agents: BTreeMap<AgentId, Agent> = BTreeMap::new();
    let mut policies: BTreeMap<String, Policy> = BTreeMap::new();
    let mut keep = |subject: PolicySubject| -> ApiResult<()> {
        if let Some(policy) = reader.row::<Policy>(subject)? {
            policies.insert(subject.to_string(), policy);
        }
        Ok(())
    };
    keep(PolicySubject::Owner(owner))?;
    for purchase in &purchases {
        if !agents.contains_key(&purchase.agent)
            && let Some(agent) = reader.row::<Agent>(purchase.agent)?
        {
            keep(PolicySubject::Agent(agent.id))?;
            agents.insert(agent.id, agent);
        }
    }
    let limits = serde_json::to_value(limits);
    let limits = limits.map_err(|why| refuse(Code::Internal, &format!("the limits: {why}")))?;
    let tried = Policy { limits, read: Default::default(), ..row.clone() };
    policies.insert(row.subject.to_string(), tried);
    let owner = reader.row::<Owner>(owner)?.ok_or_else(not_here)?;
    let trial = Trial { owner: &owner, agents: &agents, policies: &policies };
    let mut tried = trial.run(&purchases);
    if let PolicySubject::Agent(agent) = row.subject {
        tried.retain(|one| one.agent == agent);
    }
    Ok(DryRun { tried, since, truncated })
}

/// What was asked for since then, oldest first, and whether there was more than is tried.
fn bought(app: &App, owner: OwnerId, since: Timestamp) -> ApiResult<(Vec<Purchase>, bool)> {
    let scope = owner.to_string();
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let reader = app.store.reader();
        let page = reader.list::<Purchase>("purchases", &scope, cursor.as_ref(), PAGE, true)?;
        for purchase in page.items {
            if purchase.created_at < since || found.len() >= MAX_PURCHASES {
                let truncated = purchase.created_at >= since;
                found.reverse();
                return Ok((found, truncated));
            }
            found.push(purchase);
        }
        if page.next.is_none() {
            found.reverse();
            return Ok((found, false));
        }
        cursor = page.next;
    }
}
