//! The keys this installation signs with: rows of the books, each sealed, each with its time.
//!
//! A key signs from one moment to another, and which one signs a token follows from the token's own
//! `iat`. So a rotation is one committed unit: the new key is published at once, with the moment it
//! begins; the old one with the moment it ends; both are the same, ten minutes away, when everybody
//! who keeps our key set for five minutes has the new one. There is no step in between that could be
//! cut off, and a voucher that is given out again is signed as it was the first time.
//!
//! Keys stay published for ever: receipts last, and reports of vouchers come late.

use earnest_core::jws::{Jwk, Jwks, KeySet, Purpose, Signer};
use earnest_core::problem::{Code, Refusal};
use earnest_core::time::{Timestamp, after};
use earnest_core::unit::{
    Effects, Key, KeyUse, ListEntry, Record, Stop, Touches, Unit, View, rank,
};
use earnest_store::Store;
use serde::{Deserialize, Serialize};
use serde_json::json;
use zeroize::Zeroizing;

use crate::app::App;
use crate::sealed::{SealError, Sealer};
use crate::source::random_bytes;

/// How long a new key is published before it signs, in seconds: twice as long as anybody keeps the
/// key set without asking again.
pub const PUBLISHED_FIRST_SECONDS: i64 = 600;
/// How long after its end a key is still at hand, in seconds: a voucher lives two minutes, and is
/// given out again as it was.
const AT_HAND_SECONDS: i64 = 3_600;

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
    /// A new key.
    ///
    /// # Errors
    /// [`SealError::OtherKey`] where it cannot be sealed.
    fn draw(sealer: &Sealer, purpose: Purpose, now: Timestamp) -> Result<Self, SealError> {
        let secret = Zeroizing::new(random_bytes::<32>());
        let signer = Signer::new(purpose, &secret);
        let sealed = sealer.seal(signer.kid(), secret.as_slice())?;
        Ok(Self { jwk: signer.jwk(), sealed, created_at: now, signs_from: None })
    }

    /// Whether a token of that second is signed with it.
    fn signs(&self, purpose: Purpose, second: i64) -> bool {
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

struct KeepKey(SealedKey);

impl Unit for KeepKey {
    type Answer = ();
    fn name(&self) -> &'static str {
        "signing_key.keep"
    }
    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<SealedKey>(self.0.id());
        touches
    }
    fn decide(&self, _: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        effects.put(self.0.clone())?;
        Ok(effects)
    }
}

/// Puts a new key in the place of the last one, from a moment on.
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
            KeyUse::Other { .. } => {
                let why = "the key was used for other arguments";
                return Err(Refusal::new(Code::IdempotencyConflict, why).into());
            }
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
        effects.event("alarm.signing_key_rotated", &[], data);
        effects.put(last)?;
        effects.put(new)?;
        Ok(effects)
    }
}

/// A key at hand.
struct AtHand {
    row: SealedKey,
    signer: Signer,
}

/// The keys this installation signs with, and the set it publishes.
pub struct Keys {
    at_hand: Vec<AtHand>,
    /// Everything published, retired keys included.
    pub jwks: Jwks,
    /// The same, ready to verify with.
    pub set: KeySet,
}

impl Keys {
    /// What signs a token of that moment, in seconds since 1970.
    pub fn signer(&self, purpose: Purpose, iat: i64) -> Option<&Signer> {
        let found = self.at_hand.iter().find(|known| known.row.signs(purpose, iat));
        found.map(|known| &known.signer)
    }
}

/// Every row, oldest first.
///
/// # Errors
/// [`SealError::Books`].
pub fn rows(store: &Store) -> Result<Vec<SealedKey>, SealError> {
    let page = store.reader().list::<SealedKey>("signing_keys", "", None, 10_000, false);
    let mut rows = page.map_err(|why| SealError::Books(why.to_string()))?.items;
    rows.sort_by_key(|row| (row.created_at, row.signs_from));
    Ok(rows)
}

/// Opens the keys that sign, and makes those that do not exist.
///
/// # Errors
/// [`SealError`].
pub async fn keys(store: &Store, sealer: &Sealer, now: Timestamp) -> Result<Keys, SealError> {
    for purpose in [Purpose::Voucher, Purpose::Receipt] {
        if !rows(store)?.iter().any(|row| row.jwk.purpose == purpose) {
            let first = SealedKey::draw(sealer, purpose, now)?;
            let kept = store.submit(KeepKey(first)).await;
            kept.map_err(|why| SealError::Books(why.to_string()))?;
        }
    }
    open(rows(store)?, sealer, now)
}

fn open(rows: Vec<SealedKey>, sealer: &Sealer, now: Timestamp) -> Result<Keys, SealError> {
    let jwks = Jwks { keys: rows.iter().map(|row| row.jwk.clone()).collect() };
    let over =
        |row: &SealedKey| row.jwk.retired_at.is_some_and(|at| after(at, AT_HAND_SECONDS) < now);
    let mut at_hand = Vec::new();
    for row in rows.into_iter().filter(|row| !over(row)) {
        let secret = sealer.open_secret(&row.jwk.kid, &row.sealed)?;
        let secret: &[u8; 32] = secret.as_slice().try_into().map_err(|_| SealError::OtherKey)?;
        let signer = Signer::new(row.jwk.purpose, secret);
        at_hand.push(AtHand { row, signer });
    }
    Ok(Keys { at_hand, set: KeySet::new(&jwks), jwks })
}

/// Rotates the keys of a purpose. With `at_once` the new one signs from now on and the old one counts
/// for nothing that is signed later: for a key that may be known to somebody.
///
/// # Errors
/// `state_conflict` while another rotation is under way; what sealing or the books say.
pub async fn rotate(
    app: &App,
    purpose: Purpose,
    at_once: bool,
    key: Key,
) -> Result<SealedKey, crate::api::error::ApiError> {
    let failed = |why: SealError| {
        tracing::error!(%why, "signing keys cannot be rotated");
        crate::api::error::refuse(Code::Internal, "no key could be made")
    };
    let known = rows(&app.store).map_err(failed)?;
    let lasts = |row: &&SealedKey| row.jwk.purpose == purpose && row.jwk.retired_at.is_none();
    let last = known.iter().rev().find(lasts);
    let last = last.map(|row| row.jwk.kid.clone()).unwrap_or_default();
    let new = SealedKey::draw(&app.sealer, purpose, app.now()).map_err(failed)?;
    let published_first = if at_once { 0 } else { PUBLISHED_FIRST_SECONDS };
    let made = app.store.submit(Rotate { new, last, published_first, key }).await?;
    reload(app).map_err(failed)?;
    Ok(made)
}

/// Takes over what the books say of keys, where it is something new: after a rotation, which another
/// process may have made.
///
/// # Errors
/// [`SealError`]; the keys stay as they were.
pub fn reload(app: &App) -> Result<(), SealError> {
    let rows = rows(&app.store)?;
    let same = app.keys().jwks.keys.iter().eq(rows.iter().map(|row| &row.jwk));
    if !same {
        app.set_keys(open(rows, &app.sealer, app.now())?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_every_moment_one_key_of_a_purpose_signs() {
        let sealer = Sealer::throw_away();
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let key = |purpose| SealedKey::draw(&sealer, purpose, at(0)).unwrap();
        let mut first = key(Purpose::Voucher);
        first.jwk.retired_at = Some(at(600) + std::time::Duration::from_millis(250));
        let mut second = key(Purpose::Voucher);
        second.signs_from = first.jwk.retired_at;
        let rows = [first.clone(), second.clone(), key(Purpose::Receipt)];
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
