//! Owners: creating one, freezing it, its credit line and its days.

use serde_json::json;

use super::policies::put_policy;
use super::policies::touch_policy;
use super::{Creation, not_found, repeated};
use crate::id::OwnerId;
use crate::money::Micros;
use crate::party::{Owner, check_name};
use crate::policy::{PolicySubject, careful_limits};
use crate::time::{Timestamp, Zone};
use crate::unit::{Effects, Key, Stop, Touches, Unit, View};

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

/// What the operator sets about an owner.
#[derive(Clone, Debug)]
pub struct SetCredit {
    /// Whose.
    pub owner: OwnerId,
    /// The credit line: left as it is, or set; set to `None` it grows by the rules again.
    pub line: Option<Option<Micros>>,
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
        if let Some(line) = self.line {
            owner.credit_line_micros = line;
        }
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
