//! Who creates, limits, pauses and revokes whom. Small units; each checks that the thing belongs to
//! whoever asks, and answers *not found* where it does not.

use serde_json::json;

use crate::id::{AgentId, KeyId, OwnerId, SellerId};
use crate::money::Micros;
use crate::party::{Agent, ApiKey, Origin, Owner, Principal, Seller, check_name};
use crate::policy::{Limits, Policy, PolicySubject, PolicyVersion, ReadOnce, careful_limits};
use crate::problem::{Code, Refusal};
use crate::time::{Timestamp, Zone};
use crate::unit::{Effects, Fingerprint, Key, KeyUse, Stop, Touches, Unit, View};

fn not_found(what: &str) -> Stop {
    Refusal::new(Code::NotFound, format!("no such {what}")).into()
}

/// A name and an optional idempotency key: what creating anything starts from.
#[derive(Clone, Debug)]
pub struct Creation {
    /// Who creates: the scope of the key.
    pub by: Principal,
    /// What people will call it.
    pub name: String,
    /// The client's name for this creation.
    pub key: Option<String>,
}

impl Creation {
    /// The key, bound to the name and whatever else is asked for.
    fn key(&self, family: &'static str, asked: &[&str]) -> Option<Key> {
        let name = self.key.clone()?;
        let mut parts = vec![self.name.as_bytes()];
        parts.extend(asked.iter().map(|part| part.as_bytes()));
        let fingerprint = Fingerprint::of(&parts);
        Some(Key { scope: self.by.to_string(), family, name, fingerprint })
    }
}

/// The id that a repeat of a creation finds, if it is one.
fn repeated(view: &View) -> Result<Option<&str>, Stop> {
    match view.key() {
        KeyUse::Other { .. } => {
            Err(Refusal::new(Code::IdempotencyConflict, "the key was used for other arguments")
                .into())
        }
        KeyUse::Same { bound: Some(id) } => Ok(Some(id)),
        _ => Ok(None),
    }
}

/// Creates an owner, with a careful policy.
#[derive(Clone, Debug)]
pub struct CreateOwner {
    /// Name and key.
    pub creation: Creation,
    /// The id.
    pub id: OwnerId,
    /// The zone its days are counted in.
    pub zone: Zone,
}

impl Unit for CreateOwner {
    type Answer = Owner;

    fn name(&self) -> &'static str {
        "owner.create"
    }

    fn key(&self) -> Option<Key> {
        self.creation.key("owner", &[self.zone.name()])
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        let id = view.key().bound().map_or_else(|| self.id.to_string(), str::to_owned);
        touches.row::<Owner>(&id);
        touch_policy(&mut touches, PolicySubject::Owner(self.id), 1);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Owner>, Stop> {
        if let Some(id) = repeated(view)? {
            return Ok(Effects::answer(view.need::<Owner>(id)?.clone()));
        }
        check_name(&self.creation.name)?;
        let owner = Owner::new(self.id, &self.creation.name, self.zone.clone(), now);
        let mut effects = Effects::answer(owner.clone());
        effects.bind(owner.id);
        put_policy(
            &mut effects,
            PolicySubject::Owner(owner.id),
            owner.id,
            1,
            &careful_limits(),
            now,
        )?;
        effects.event("owner.created", &[&owner.id], json!({ "owner": owner.id }));
        effects.put(owner)?;
        Ok(effects)
    }
}

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

/// Creates a seller.
#[derive(Clone, Debug)]
pub struct CreateSeller {
    /// Name and key.
    pub creation: Creation,
    /// The id.
    pub id: SellerId,
    /// Where its earnings go.
    pub payout_recipient: Option<String>,
    /// What the platform keeps, in millionths; at most half.
    pub commission_ppm: u32,
}

impl Unit for CreateSeller {
    type Answer = Seller;

    fn name(&self) -> &'static str {
        "seller.create"
    }

    fn key(&self) -> Option<Key> {
        let commission = self.commission_ppm.to_string();
        let recipient = self.payout_recipient.as_deref();
        let paid = if recipient.is_some() { "paid out" } else { "" };
        self.creation.key("seller", &[&commission, paid, recipient.unwrap_or_default()])
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        let id = view.key().bound().map_or_else(|| self.id.to_string(), str::to_owned);
        touches.row::<Seller>(&id);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Seller>, Stop> {
        if let Some(id) = repeated(view)? {
            return Ok(Effects::answer(view.need::<Seller>(id)?.clone()));
        }
        check_name(&self.creation.name)?;
        if self.commission_ppm > 500_000 {
            let why = "`commission_ppm` may be at most 500000, one half";
            return Err(Refusal::new(Code::ValidationFailed, why).into());
        }
        let mut seller = Seller::new(self.id, &self.creation.name, now);
        seller.payout_recipient = self.payout_recipient.clone();
        seller.commission_ppm = self.commission_ppm;
        let mut effects = Effects::answer(seller.clone());
        effects.bind(seller.id);
        effects.event("seller.created", &[&seller.id], json!({ "seller": seller.id }));
        effects.put(seller)?;
        Ok(effects)
    }
}

/// Adds an API key. Only its hash gets here.
#[derive(Clone, Debug)]
pub struct AddKey {
    /// The key's row.
    pub key: ApiKey,
    /// Whose agent it is, where it is an agent's: the owner who asks.
    pub owner: Option<OwnerId>,
}

/// At most so many live keys belong to one agent or seller.
const MAX_KEYS: usize = 20;

fn add_key(keys: &mut Vec<KeyId>, id: KeyId) -> Result<(), Stop> {
    if keys.len() >= MAX_KEYS {
        let why = "there are 20 live keys already; revoke one first";
        return Err(Refusal::new(Code::ValidationFailed, why).into());
    }
    keys.push(id);
    Ok(())
}

impl Unit for AddKey {
    type Answer = ();

    fn name(&self) -> &'static str {
        "key.add"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touch_principal(&mut touches, self.key.principal);
        touches.row::<ApiKey>(&self.key.hash);
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        match self.key.principal {
            Principal::Agent(id) => {
                let agent = view.row::<Agent>(id)?;
                let agent =
                    agent.filter(|agent| self.owner.is_none_or(|owner| owner == agent.owner));
                let mut agent = agent.ok_or_else(|| not_found("agent"))?.clone();
                add_key(&mut agent.keys, self.key.id)?;
                effects.put(agent)?;
            }
            Principal::Seller(id) => {
                let mut seller =
                    view.row::<Seller>(id)?.ok_or_else(|| not_found("seller"))?.clone();
                add_key(&mut seller.keys, self.key.id)?;
                effects.put(seller)?;
            }
            Principal::Owner(id) if view.row::<Owner>(id)?.is_none() => {
                return Err(not_found("owner"));
            }
            Principal::Owner(_) | Principal::Operator => {}
        }
        effects.put(self.key.clone())?;
        Ok(effects)
    }
}

fn touch_principal(touches: &mut Touches, principal: Principal) {
    match principal {
        Principal::Agent(id) => touches.row::<Agent>(id),
        Principal::Seller(id) => touches.row::<Seller>(id),
        Principal::Owner(id) => touches.row::<Owner>(id),
        Principal::Operator => {}
    }
}

/// Revokes an API key: from the answer on, no hold commits for it.
#[derive(Clone, Debug)]
pub struct RevokeKey {
    /// Whose key it must be, from a plain read.
    pub principal: Principal,
    /// The hash of the key, from the same read.
    pub hash: String,
    /// Whose agent it is, where it is an agent's.
    pub owner: Option<OwnerId>,
}

impl Unit for RevokeKey {
    type Answer = ApiKey;

    fn name(&self) -> &'static str {
        "key.revoke"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touch_principal(&mut touches, self.principal);
        touches.row::<ApiKey>(&self.hash);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<ApiKey>, Stop> {
        let key = view.row::<ApiKey>(&self.hash)?.filter(|key| key.principal == self.principal);
        let mut key = key.ok_or_else(|| not_found("key"))?.clone();
        let mut effects = Effects::answer(());
        match self.principal {
            Principal::Agent(id) => {
                let mut agent = view.need::<Agent>(id)?.clone();
                if self.owner.is_some_and(|owner| owner != agent.owner) {
                    return Err(not_found("key"));
                }
                agent.keys.retain(|live| *live != key.id);
                effects.put(agent)?;
            }
            Principal::Seller(id) => {
                let mut seller = view.need::<Seller>(id)?.clone();
                seller.keys.retain(|live| *live != key.id);
                effects.put(seller)?;
            }
            Principal::Owner(_) | Principal::Operator => {}
        }
        key.revoked_at.get_or_insert(now);
        effects.put(key.clone())?;
        Ok(effects.map(|()| key))
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

/// What the operator sets about an owner.
#[derive(Clone, Debug)]
pub struct SetCredit {
    /// Whose.
    pub owner: OwnerId,
    /// The credit line; `None` lets it grow by the rules again.
    pub line: Option<Micros>,
    /// Whether the freeze of the owner is lifted.
    pub unfreeze: bool,
}

impl Unit for SetCredit {
    type Answer = Owner;

    fn name(&self) -> &'static str {
        "owner.set_credit"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Owner>(self.owner);
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<Owner>, Stop> {
        let mut owner = view.row::<Owner>(self.owner)?.ok_or_else(|| not_found("owner"))?.clone();
        owner.credit_line_micros = self.line;
        if self.unfreeze {
            owner.frozen = None;
        }
        let mut effects = Effects::answer(owner.clone());
        effects.event("owner.credit_set", &[&owner.id], json!({ "owner": owner.id }));
        effects.put(owner)?;
        Ok(effects)
    }
}

/// Changes the zone that days are counted in, from the next day on.
#[derive(Clone, Debug)]
pub struct SetZone {
    /// Whose.
    pub owner: OwnerId,
    /// The new zone.
    pub zone: Zone,
}

impl Unit for SetZone {
    type Answer = Owner;

    fn name(&self) -> &'static str {
        "owner.set_zone"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Owner>(self.owner);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Owner>, Stop> {
        let mut owner = view.row::<Owner>(self.owner)?.ok_or_else(|| not_found("owner"))?.clone();
        let current = owner.zone_at(now).clone();
        let from = current.next_day(now);
        owner.zone = current;
        owner.next_zone = Some((self.zone.clone(), from));
        let mut effects = Effects::answer(owner.clone());
        effects.put(owner)?;
        Ok(effects)
    }
}

fn touch_policy(touches: &mut Touches, subject: PolicySubject, version: u64) {
    touches.row::<Policy>(subject);
    touches.row::<PolicyVersion>(PolicyVersion::key(subject, version));
}

fn put_policy<A>(
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

/// Registers an origin of a seller's, or marks it proved.
#[derive(Clone, Debug)]
pub struct PutOrigin {
    /// Whose.
    pub seller: SellerId,
    /// `https://host[:port]`.
    pub origin: String,
    /// Whether the seller showed that it controls it.
    pub proved: bool,
}

/// At most so many origins belong to one seller.
const MAX_ORIGINS: usize = 100;

impl Unit for PutOrigin {
    type Answer = Seller;

    fn name(&self) -> &'static str {
        "seller.put_origin"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Seller>(self.seller);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Seller>, Stop> {
        let mut seller =
            view.row::<Seller>(self.seller)?.ok_or_else(|| not_found("seller"))?.clone();
        if seller.origins.iter().all(|known| known.origin != self.origin) {
            if seller.origins.len() >= MAX_ORIGINS {
                let why = "there are 100 origins already";
                return Err(Refusal::new(Code::ValidationFailed, why).into());
            }
            seller.origins.push(Origin { origin: self.origin.clone(), proved_at: None });
        }
        let known = seller.origins.iter_mut().find(|known| known.origin == self.origin);
        if let (Some(known), true) = (known, self.proved) {
            known.proved_at.get_or_insert(now);
        }
        let mut effects = Effects::answer(seller.clone());
        effects.put(seller)?;
        Ok(effects)
    }
}
