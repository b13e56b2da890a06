//! Policies: every version kept, one in force.

use serde_json::json;

use super::not_found;
use crate::id::OwnerId;
use crate::party::{Agent, Owner};
use crate::policy::{Limits, Policy, PolicySubject, PolicyVersion, ReadOnce};
use crate::problem::{Code, Refusal};
use crate::time::Timestamp;
use crate::unit::{Effects, Stop, Touches, Unit, View};

pub(super) fn touch_policy(touches: &mut Touches, subject: PolicySubject, version: u64) {
    touches.row::<Policy>(subject);
    touches.row::<PolicyVersion>(PolicyVersion::key(subject, version));
}

pub(super) fn put_policy<A>(
    effects: &mut Effects<A>,
    subject: PolicySubject,
    owner: OwnerId,
    version: u64,
    limits: &Limits,
    now: Timestamp,
) -> Result<Policy, Stop> {
    limits.check(subject)?;
    let limits = serde_json::to_value(limits).map_err(|why| Stop::Bug(why.to_string()))?;
    let policy = Policy { subject, owner, version, set_at: now, limits, read: ReadOnce::default() };
    effects.put(policy.clone())?;
    effects.put(PolicyVersion(policy.clone()))?;
    Ok(policy)
}

/// Sets a policy: a new version, if the one that was read is still in force.
#[derive(Clone, Debug)]
pub struct SetPolicy {
    /// Who sets it.
    pub owner: OwnerId,
    /// Whose policy.
    pub subject: PolicySubject,
    /// The version that was read (`If-Match`).
    pub version: u64,
    /// The new limits, or an old version to go back to.
    pub limits: NewLimits,
}

/// Where new limits come from.
#[derive(Clone, Debug)]
pub enum NewLimits {
    /// Written anew.
    Written(Box<Limits>),
    /// As they were in an earlier version.
    Version(u64),
}

impl Unit for SetPolicy {
    type Answer = Policy;

    fn name(&self) -> &'static str {
        "policy.set"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        match self.subject {
            PolicySubject::Owner(id) => touches.row::<Owner>(id),
            PolicySubject::Agent(id) => touches.row::<Agent>(id),
        }
        touch_policy(&mut touches, self.subject, self.version.saturating_add(1));
        if let NewLimits::Version(version) = self.limits {
            touches.row::<PolicyVersion>(PolicyVersion::key(self.subject, version));
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Policy>, Stop> {
        let mine = match self.subject {
            PolicySubject::Owner(id) => id == self.owner,
            PolicySubject::Agent(id) => {
                view.row::<Agent>(id)?.is_some_and(|agent| agent.owner == self.owner)
            }
        };
        let policy = view.row::<Policy>(self.subject)?.filter(|_| mine);
        let policy = policy.ok_or_else(|| not_found("policy"))?;
        if policy.version != self.version {
            let why = "the policy changed since it was read";
            let refusal = Refusal::new(Code::VersionConflict, why).with("version", policy.version);
            return Err(refusal.into());
        }
        let limits = match &self.limits {
            NewLimits::Written(limits) => limits.as_ref().clone(),
            NewLimits::Version(version) => {
                let key = PolicyVersion::key(self.subject, *version);
                let old = view.row::<PolicyVersion>(key)?.ok_or_else(|| not_found("version"))?;
                old.0.limits().cloned().ok_or_else(|| not_found("version"))?
            }
        };
        let version = self.version.saturating_add(1);
        let mut effects = Effects::answer(());
        let policy = put_policy(&mut effects, self.subject, self.owner, version, &limits, now)?;
        let data = json!({ "subject": self.subject.to_string(), "version": version });
        effects.event("policy.set", &[&self.owner], data);
        Ok(effects.map(|()| policy))
    }
}
