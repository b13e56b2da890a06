//! API keys: only hashes get here.

use super::not_found;
use crate::id::{KeyId, OwnerId};
use crate::party::{Agent, ApiKey, Owner, Principal, Seller};
use crate::problem::{Code, Refusal};
use crate::time::Timestamp;
use crate::unit::{Effects, Stop, Touches, Unit, View};

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
