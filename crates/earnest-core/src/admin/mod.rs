//! Who creates, limits, pauses and revokes whom. Small units; each checks that the thing belongs to
//! whoever asks, and answers *not found* where it does not. One file a noun.

mod agents;
mod keys;
mod origins;
mod owners;
mod policies;
mod sellers;

pub use agents::{CreateAgent, Pausable, Pause};
pub use keys::{AddKey, RevokeKey};
pub use origins::{OriginHolders, Proof, PutOrigin, RecordProof};
pub use owners::{CreateOwner, SetCredit, SetZone};
pub use policies::{NewLimits, SetPolicy};
pub use sellers::CreateSeller;

use crate::party::Principal;
use crate::problem::{Code, Refusal};
use crate::unit::{Fingerprint, Key, KeyUse, Stop, View};

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
pub(crate) fn repeated(view: &View) -> Result<Option<&str>, Stop> {
    match view.key() {
        KeyUse::Other { .. } => {
            Err(Refusal::new(Code::IdempotencyConflict, "the key was used for other arguments")
                .into())
        }
        KeyUse::Same { bound: Some(id) } => Ok(Some(id)),
        _ => Ok(None),
    }
}
