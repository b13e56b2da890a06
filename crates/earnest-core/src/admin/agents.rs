//! Agents: creating one; pausing it, or all of an owner's.

use serde_json::json;

use super::policies::put_policy;
use super::policies::touch_policy;
use super::{Creation, not_found, repeated};
use crate::id::{AgentId, OwnerId};
use crate::party::{Agent, Owner, check_name};
use crate::policy::{Limits, PolicySubject};
use crate::time::Timestamp;
use crate::unit::{Effects, Key, Stop, Touches, Unit, View};

/// Creates an agent under its owner; its policy inherits everything.
#[derive(Clone, Debug)]
pub struct CreateAgent {
    /// Name and key.
    pub creation: Creation,
    /// Whose.
    pub owner: OwnerId,
    /// The id.
    pub id: AgentId,
}

impl Unit for CreateAgent {
    type Answer = Agent;

    fn name(&self) -> &'static str {
        "agent.create"
    }

    fn key(&self) -> Option<Key> {
        self.creation.key("agent", &[&self.owner.to_string()])
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Owner>(self.owner);
        let id = view.key().bound().map_or_else(|| self.id.to_string(), str::to_owned);
        touches.row::<Agent>(&id);
        touch_policy(&mut touches, PolicySubject::Agent(self.id), 1);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Agent>, Stop> {
        if view.row::<Owner>(self.owner)?.is_none() {
            return Err(not_found("owner"));
        }
        if let Some(id) = repeated(view)? {
            return Ok(Effects::answer(view.need::<Agent>(id)?.clone()));
        }
        check_name(&self.creation.name)?;
        let agent = Agent::new(self.id, self.owner, &self.creation.name, now);
        let mut effects = Effects::answer(agent.clone());
        effects.bind(agent.id);
        let subject = PolicySubject::Agent(agent.id);
        put_policy(&mut effects, subject, self.owner, 1, &Limits::default(), now)?;
        effects.event("agent.created", &[&self.owner], json!({ "agent": agent.id }));
        effects.put(agent)?;
        Ok(effects)
    }
}

/// What is paused or resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pausable {
    /// All of an owner's agents.
    Owner(OwnerId),
    /// One agent of an owner's.
    Agent(OwnerId, AgentId),
}

/// Pauses or resumes. After it is answered no new hold, voucher or use of an approval commits.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// What.
    pub subject: Pausable,
    /// Whether it is paused from now on.
    pub paused: bool,
}

impl Unit for Pause {
    type Answer = ();

    fn name(&self) -> &'static str {
        "pause"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        match self.subject {
            Pausable::Owner(id) => touches.row::<Owner>(id),
            Pausable::Agent(_, id) => touches.row::<Agent>(id),
        }
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        match self.subject {
            Pausable::Owner(id) => {
                let mut owner = view.row::<Owner>(id)?.ok_or_else(|| not_found("owner"))?.clone();
                owner.paused = self.paused;
                let kind = if self.paused { "owner.paused" } else { "owner.resumed" };
                effects.event(kind, &[&id], json!({ "owner": id }));
                effects.put(owner)?;
            }
            Pausable::Agent(owner, id) => {
                let agent = view.row::<Agent>(id)?.filter(|agent| agent.owner == owner);
                let mut agent = agent.ok_or_else(|| not_found("agent"))?.clone();
                agent.paused = self.paused;
                let kind = if self.paused { "agent.paused" } else { "agent.resumed" };
                effects.event(kind, &[&owner, &id], json!({ "agent": id }));
                effects.put(agent)?;
            }
        }
        Ok(effects)
    }
}
