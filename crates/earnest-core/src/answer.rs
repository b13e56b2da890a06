//! An owner's answers to waiting purchases: approve once, bounded grant, deny, deny and pause.

use serde_json::json;

use crate::approval::{Approval, ApprovalState, Grant, MAX_GRANTS};
use crate::id::{AgentId, ApprovalId, GrantId, OwnerId};
use crate::money::Micros;
use crate::party::Agent;
use crate::problem::{Code, Refusal};
use crate::time::{Timestamp, after};
use crate::unit::{Effects, Stop, Touches, Unit, View};

/// What the owner says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This once.
    Approve,
    /// This, and more of the kind: money and time are bounded.
    Grant {
        /// The id of the grant.
        id: GrantId,
        /// How much in total, this purchase included.
        cap: Micros,
        /// For how long from the answer on.
        seconds: i64,
    },
    /// No.
    Deny,
    /// No, and nothing more from this agent.
    DenyAndPause,
}

/// Answers one approval. Approving books nothing.
#[derive(Clone, Debug)]
pub struct AnswerApproval {
    /// Who answers.
    pub owner: OwnerId,
    /// Whose purchase waits, from a plain read; never changes.
    pub agent: AgentId,
    /// Which approval.
    pub approval: ApprovalId,
    /// The version that the owner saw (`If-Match`).
    pub version: Option<u64>,
    /// The answer.
    pub verdict: Verdict,
}

impl Unit for AnswerApproval {
    type Answer = Approval;

    fn name(&self) -> &'static str {
        "approval.answer"
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Agent>(self.agent);
        touches.row::<Approval>(self.approval);
        if let Verdict::Grant { id, .. } = self.verdict {
            touches.row::<Grant>(id);
            let agent = view.peek::<Agent>(self.agent);
            for earlier in agent.iter().flat_map(|agent| &agent.grants) {
                touches.row::<Grant>(earlier);
            }
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Approval>, Stop> {
        let approval = view.row::<Approval>(self.approval)?;
        let mine =
            |approval: &&Approval| approval.owner == self.owner && approval.agent == self.agent;
        let Some(approval) = approval.filter(mine) else {
            return Err(Refusal::new(Code::NotFound, "no such approval").into());
        };
        approval.check_open(now)?;
        if self.version.is_some_and(|version| version != approval.version) {
            return Err(Refusal::new(
                Code::VersionConflict,
                "the approval changed since it was read",
            )
            .into());
        }
        let mut approval = approval.clone();
        let mut agent = view.need::<Agent>(self.agent)?.clone();
        let mut effects = Effects::answer(());
        agent.waiting.retain(|waiting| waiting.approval != approval.id);
        approval.version = approval.version.saturating_add(1);
        approval.decided_at = Some(now);
        approval.state = match &self.verdict {
            Verdict::Approve => ApprovalState::Approved,
            Verdict::Grant { id, cap, seconds } => {
                approval.check_grant(*cap, *seconds)?;
                forget_ended(view, &mut agent, now)?;
                let until = after(now, *seconds);
                self.grant(&mut effects, &mut agent, &approval, (*id, *cap, until))?;
                approval.grant = Some(*id);
                ApprovalState::Approved
            }
            Verdict::Deny => ApprovalState::Denied,
            Verdict::DenyAndPause => {
                agent.paused = true;
                effects.event(
                    "agent.paused",
                    &[&self.owner, &agent.id],
                    json!({ "agent": agent.id }),
                );
                ApprovalState::Denied
            }
        };
        let data = json!({ "approval": approval.id, "state": approval.state });
        effects.event("approval.answered", &[&self.owner, &agent.id], data);
        effects.put(agent)?;
        effects.put(approval.clone())?;
        Ok(effects.map(|()| approval))
    }
}

/// Grants that ended make room for new ones.
fn forget_ended(view: &View, agent: &mut Agent, now: Timestamp) -> Result<(), Stop> {
    let mut live = Vec::with_capacity(agent.grants.len());
    for id in &agent.grants {
        if view.row::<Grant>(id)?.is_some_and(|grant| now < grant.until) {
            live.push(*id);
        }
    }
    agent.grants = live;
    Ok(())
}

impl AnswerApproval {
    fn grant(
        &self,
        effects: &mut Effects<()>,
        agent: &mut Agent,
        approval: &Approval,
        (id, cap, until): (GrantId, Micros, Timestamp),
    ) -> Result<(), Stop> {
        if agent.grants.len() >= MAX_GRANTS {
            let why = format!("the agent has {MAX_GRANTS} grants already; revoke one first");
            return Err(Refusal::new(Code::ValidationFailed, why).into());
        }
        agent.grants.push(id);
        effects.put(Grant {
            id,
            owner: self.owner,
            agent: self.agent,
            seller: approval.seller,
            cap_micros: cap,
            until,
            approval: approval.id,
            revoked_at: None,
        })
    }
}

/// Takes a grant back.
#[derive(Clone, Copy, Debug)]
pub struct RevokeGrant {
    /// Who takes it back.
    pub owner: OwnerId,
    /// Whose grant, from a plain read; never changes.
    pub agent: AgentId,
    /// Which grant.
    pub grant: GrantId,
}

impl Unit for RevokeGrant {
    type Answer = Grant;

    fn name(&self) -> &'static str {
        "grant.revoke"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Agent>(self.agent);
        touches.row::<Grant>(self.grant);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Grant>, Stop> {
        let grant = view.row::<Grant>(self.grant)?;
        let Some(grant) =
            grant.filter(|grant| grant.owner == self.owner && grant.agent == self.agent)
        else {
            return Err(Refusal::new(Code::NotFound, "no such grant").into());
        };
        let mut grant = grant.clone();
        let mut agent = view.need::<Agent>(self.agent)?.clone();
        agent.grants.retain(|id| *id != grant.id);
        grant.revoked_at.get_or_insert(now);
        let mut effects = Effects::answer(grant.clone());
        effects.put(agent)?;
        effects.put(grant)?;
        Ok(effects)
    }
}
