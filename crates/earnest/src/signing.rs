//! The keys this installation signs with: rows of the books, each sealed, each with its time.
//!
//! A key signs from one moment to another, and which one signs a token follows from the token's own
//! `iat`. So a rotation is one committed unit: the new key is published at once, with the moment it
//! begins; the old one with the moment it ends; both are the same, ten minutes away, when everybody
//! who keeps our key set for five minutes has the new one. There is no step in between that could be
//! cut off, and a voucher that is given out again is signed as it was the first time.
//!
//! Keys stay published for ever: receipts last, and reports of vouchers come late.

use earnest_core::jws::{Jwks, KeySet, Purpose, Signer};
use earnest_core::problem::{Code, Refusal};
use earnest_core::settlement::Marker;
use earnest_core::signing::{KeepKey, Rotate, SealedKey};
use earnest_core::time::{Timestamp, after};
use earnest_core::unit::Key;
use earnest_store::{Store, SubmitError};
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

/// Draws a new key.
///
/// # Errors
/// [`SealError::OtherKey`] where it cannot be sealed.
fn draw(sealer: &Sealer, purpose: Purpose, now: Timestamp) -> Result<SealedKey, SealError> {
    let secret = Zeroizing::new(random_bytes::<32>());
    let signer = Signer::new(purpose, &secret);
    let sealed = sealer.seal(signer.kid(), secret.as_slice())?;
    Ok(SealedKey { jwk: signer.jwk(), sealed, created_at: now, signs_from: None })
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
    /// Proves invoices. Its secret follows from the first key that signed receipts: that one is in
    /// every copy of the books, sealed, and stays there whatever is rotated or sealed anew, so that a
    /// charge of a life that a restore lost is known by its proof.
    pub marker: Marker,
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
            let first = draw(sealer, purpose, now)?;
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
    let first = rows.iter().find(|row| row.jwk.purpose == Purpose::Receipt);
    let first = first.ok_or_else(|| SealError::Books("no key signs receipts".to_owned()))?;
    let marker = Marker::derive(&*secret_of(first, sealer)?);
    let mut at_hand = Vec::new();
    for row in rows.into_iter().filter(|row| !over(row)) {
        let signer = Signer::new(row.jwk.purpose, &*secret_of(&row, sealer)?);
        at_hand.push(AtHand { row, signer });
    }
    Ok(Keys { at_hand, set: KeySet::new(&jwks), jwks, marker })
}

fn secret_of(row: &SealedKey, sealer: &Sealer) -> Result<Zeroizing<[u8; 32]>, SealError> {
    let secret = sealer.open_secret(&row.jwk.kid, &row.sealed)?;
    let secret = secret.as_slice().try_into().map_err(|_| SealError::OtherKey)?;
    Ok(Zeroizing::new(secret))
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
) -> Result<SealedKey, SubmitError> {
    let failed = |why: SealError| {
        tracing::error!(%why, "signing keys cannot be rotated");
        SubmitError::Refused(Refusal::new(Code::Internal, "no key could be made").into())
    };
    let known = rows(&app.store).map_err(failed)?;
    let lasts = |row: &&SealedKey| row.jwk.purpose == purpose && row.jwk.retired_at.is_none();
    let last = known.iter().rev().find(lasts);
    let last = last.map(|row| row.jwk.kid.clone()).unwrap_or_default();
    let new = draw(&app.sealer, purpose, app.now()).map_err(failed)?;
    let published_first = if at_once { 0 } else { PUBLISHED_FIRST_SECONDS };
    let made = app.store.submit(Rotate { new, last, published_first, key }).await?;
    Ok(made)
}

/// What the books say of keys, where that is something new: after a rotation, which another node may
/// have made.
///
/// # Errors
/// [`SealError`].
pub(crate) fn read_again(app: &App, known: &Keys) -> Result<Option<Keys>, SealError> {
    let rows = rows(&app.store)?;
    let same = known.jwks.keys.iter().eq(rows.iter().map(|row| &row.jwk));
    if same { Ok(None) } else { open(rows, &app.sealer, app.now()).map(Some) }
}
