//! The keys that sign, as they rest in the books, and how one takes over from another.
//!
//! A key signs from one moment to another, and which one signs a token follows from the token's own
//! `iat`. So a rotation is one unit, and no step of it can be missed. Nothing here opens a secret:
//! what is sealed is opaque.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::hook::Hook;
use crate::jws::{Jwk, Purpose};
use crate::problem::{Code, Refusal};
use crate::settlement::key_conflict;
use crate::time::{Timestamp, after};
use crate::unit::{
    Effects, Fingerprint, Key, KeyUse, ListEntry, Record, Stop, Touches, Unit, View, rank,
};

/// A signing key as it rests in the books.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SealedKey {
    /// What is published of it.
    pub jwk: Jwk,
    /// The 32 secret bytes, sealed.
    pub sealed: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// Since when it signs; from the beginning, where it is the first of its purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signs_from: Option<Timestamp>,
}

impl SealedKey {
    /// Whether a token of that second is signed with it.
    pub fn signs(&self, purpose: Purpose, second: i64) -> bool {
        self.jwk.purpose == purpose
            && self.signs_from.is_none_or(|from| from.as_second() <= second)
            && self.jwk.retired_at.is_none_or(|at| second < at.as_second())
    }

    /// `signing`, `published` (it will sign) or `retired`.
    pub fn status(&self, now: Timestamp) -> &'static str {
        let second = now.as_second();
        if self.jwk.retired_at.is_some_and(|at| at.as_second() <= second) {
            "retired"
        } else if self.signs_from.is_some_and(|from| second < from.as_second()) {
            "published"
        } else {
            "signing"
        }
    }
}

impl Record for SealedKey {
    const KIND: &'static str = "signing_key";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.jwk.kid.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        vec![ListEntry::new("signing_keys", "", self.created_at.as_millisecond())]
    }
}

/// Puts the first key of a purpose into the books; of several nodes that begin at once, one does.
#[derive(Clone, Debug)]
pub struct KeepKey(pub SealedKey);

impl Unit for KeepKey {
    type Answer = ();
    fn name(&self) -> &'static str {
        "signing_key.keep"
    }
    fn key(&self) -> Option<Key> {
        let name = self.0.jwk.purpose.typ().to_owned();
        let fingerprint = Fingerprint::of(&[name.as_bytes()]);
        Some(Key {
            scope: "installation".to_owned(),
            family: "first_signing_key",
            name,
            fingerprint,
        })
    }
    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<SealedKey>(self.0.id());
        touches
    }
    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        if view.key().bound().is_none() {
            effects.bind(self.0.id());
            effects.put(self.0.clone())?;
        }
        Ok(effects)
    }
}

/// Puts a new key in the place of the last one, from a moment on.
#[derive(Clone, Debug)]
pub struct Rotate {
    /// The new key.
    pub new: SealedKey,
    /// The last one of the same purpose, from a plain read; checked again here.
    pub last: String,
    /// How long the new one is only published, in seconds.
    pub published_first: i64,
    /// The asker's name for this one wish; a repeat shows what came of it.
    pub key: Key,
}

impl Unit for Rotate {
    /// The key that takes over.
    type Answer = SealedKey;

    fn name(&self) -> &'static str {
        "signing_key.rotate"
    }

    fn key(&self) -> Option<Key> {
        Some(self.key.clone())
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<SealedKey>(self.new.id());
        touches.row::<SealedKey>(&self.last);
        if let Some(bound) = view.key().bound() {
            touches.row::<SealedKey>(bound);
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<SealedKey>, Stop> {
        match view.key() {
            KeyUse::Other { .. } => return Err(key_conflict().into()),
            KeyUse::Same { bound: Some(kid) } => {
                return Ok(Effects::answer(view.need::<SealedKey>(kid)?.clone()));
            }
            _ => {}
        }
        let mut last = view.need::<SealedKey>(&self.last)?.clone();
        // One at a time: a key that is only published has not signed yet.
        let waits = last.status(now) == "published";
        if last.jwk.retired_at.is_some() || waits || last.jwk.purpose != self.new.jwk.purpose {
            let why = "another rotation of these keys is under way: see `earnest keys list`";
            return Err(Refusal::new(Code::StateConflict, why).into());
        }
        // INVARIANT: at_every_moment_one_key_of_a_purpose_signs
        let at = after(now, self.published_first);
        last.jwk.retired_at = Some(at);
        let new = SealedKey { signs_from: Some(at), created_at: now, ..self.new.clone() };
        let mut effects = Effects::answer(new.clone());
        effects.bind(&new.jwk.kid);
        let data = json!({ "kid": new.jwk.kid, "for": new.jwk.purpose, "signs_from": at,
            "retires": last.jwk.kid });
        effects.event("notice.signing_key_rotated", &[], data);
        effects.put(last)?;
        effects.put(new)?;
        Ok(effects)
    }
}

/// What a secret belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// A signing key.
    Key,
    /// An endpoint of outgoing webhooks.
    Hook,
}

/// One secret: what it was and what it becomes.
#[derive(Clone, Debug)]
pub struct Change {
    /// What it belongs to.
    pub kind: Sealed,
    /// Of which row.
    pub id: String,
    /// As it was sealed, and as it will be.
    pub to: (String, String),
}

/// Puts secrets that are sealed with another key in the place of those they were. What changed
/// meanwhile stays.
#[derive(Clone, Debug)]
pub struct Reseal(pub Vec<Change>);

impl Unit for Reseal {
    type Answer = ();

    fn name(&self) -> &'static str {
        "secrets.reseal"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        for change in &self.0 {
            match change.kind {
                Sealed::Key => touches.row::<SealedKey>(&change.id),
                Sealed::Hook => touches.row::<Hook>(&change.id),
            }
        }
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        for Change { kind, id, to: (was, sealed) } in &self.0 {
            let sealed = sealed.clone();
            match kind {
                Sealed::Key => {
                    let row = view.need::<SealedKey>(id)?;
                    if row.sealed == *was {
                        effects.put(SealedKey { sealed, ..row.clone() })?;
                    }
                }
                Sealed::Hook => {
                    let row = view.need::<Hook>(id)?;
                    if row.sealed == *was {
                        effects.put(Hook { sealed, ..row.clone() })?;
                    }
                }
            }
        }
        Ok(effects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jws::Signer;

    #[test]
    fn at_every_moment_one_key_of_a_purpose_signs() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let key = |purpose, seed: u8| SealedKey {
            jwk: Signer::new(purpose, &[seed; 32]).jwk(),
            sealed: String::new(),
            created_at: at(0),
            signs_from: None,
        };
        let mut first = key(Purpose::Voucher, 1);
        first.jwk.retired_at = Some(at(600) + std::time::Duration::from_millis(250));
        let mut second = key(Purpose::Voucher, 2);
        second.signs_from = first.jwk.retired_at;
        let rows = [first.clone(), second.clone(), key(Purpose::Receipt, 3)];
        for moment in [-1, 0, 599, 600, 601, 10_000] {
            let signing: Vec<&str> = rows
                .iter()
                .filter(|row| row.signs(Purpose::Voucher, moment))
                .map(|row| row.jwk.kid.as_str())
                .collect();
            let expect = if moment < 600 { &first } else { &second };
            assert_eq!(signing, [expect.jwk.kid.as_str()], "at {moment}");
        }
        let status = |row: &SealedKey, second| row.status(at(second));
        assert_eq!((status(&first, 599), status(&first, 600)), ("signing", "retired"));
        assert_eq!((status(&second, 599), status(&second, 600)), ("published", "signing"));
    }
}
