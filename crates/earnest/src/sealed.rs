//! Secrets at rest: signing keys are rows of the books, sealed with a key-encryption key that is not.
//!
//! A backup of the books is so worth nothing without the key file, and nodes that share the file
//! share the keys. Sealing is ChaCha20-Poly1305 with a random nonce; the row's id is authenticated
//! with it, so that one row's secret cannot be moved to another.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use earnest_core::jws::{Jwk, Jwks, Purpose, Signer};
use earnest_core::time::Timestamp;
use earnest_core::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};
use earnest_store::Store;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::source::random_bytes;

/// Why keys are not available.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The key file cannot be read or made.
    #[error("key file `{}`: {why}", path.display())]
    KeyFile {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// A secret does not open: it was sealed with another key file.
    #[error("the signing keys were sealed with another key file")]
    OtherKey,
    /// The books cannot be read or written.
    #[error("{0}")]
    Books(String),
}

/// The key-encryption key.
pub struct Sealer(LessSafeKey);

impl Sealer {
    /// Reads the key file (64 hex digits), or makes it, readable by nobody else.
    ///
    /// # Errors
    /// [`SealError::KeyFile`].
    pub fn open(path: &Path) -> Result<Self, SealError> {
        let failed = |why: String| SealError::KeyFile { path: path.to_owned(), why };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                make_key_file(path).map_err(|why| failed(why.to_string()))?
            }
            Err(error) => return Err(failed(error.to_string())),
        };
        let bytes = hex::decode(text.trim()).map(Zeroizing::new);
        let bytes = bytes.map_err(|_| failed("not 64 hex digits".to_owned()))?;
        let key = UnboundKey::new(&CHACHA20_POLY1305, &bytes);
        let key = key.map_err(|_| failed("not 64 hex digits".to_owned()))?;
        Ok(Self(LessSafeKey::new(key)))
    }

    /// A key that nobody keeps, for books that nobody keeps.
    pub fn throw_away() -> Self {
        #[expect(clippy::expect_used, reason = "the array is as long as the algorithm's key")]
        let key = UnboundKey::new(&CHACHA20_POLY1305, &random_bytes::<32>()).expect("32 bytes");
        Self(LessSafeKey::new(key))
    }

    /// Seals a secret, bound to the id of the row that keeps it.
    ///
    /// # Errors
    /// [`SealError::OtherKey`] where it cannot be sealed at all.
    pub fn seal(&self, id: &str, secret: &[u8]) -> Result<String, SealError> {
        let nonce = random_bytes::<NONCE_LEN>();
        let mut sealed = secret.to_vec();
        let aad = Aad::from(id.as_bytes());
        let done =
            self.0.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed);
        done.map_err(|_| SealError::OtherKey)?;
        let mut all = nonce.to_vec();
        all.extend(sealed);
        Ok(STANDARD.encode(all))
    }

    /// Opens what [`Sealer::seal`] sealed for the same id.
    ///
    /// # Errors
    /// [`SealError::OtherKey`].
    pub fn open_secret(&self, id: &str, sealed: &str) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let mut all = STANDARD.decode(sealed).map_err(|_| SealError::OtherKey)?;
        let (nonce, body) = all.split_first_chunk_mut::<NONCE_LEN>().ok_or(SealError::OtherKey)?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let secret = self.0.open_in_place(nonce, Aad::from(id.as_bytes()), body);
        Ok(Zeroizing::new(secret.map_err(|_| SealError::OtherKey)?.to_vec()))
    }
}

fn make_key_file(path: &Path) -> std::io::Result<Zeroizing<String>> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let text = Zeroizing::new(hex::encode(random_bytes::<32>()));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    Ok(text)
}

/// A signing key as it rests in the books.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SealedKey {
    /// What is published of it.
    pub jwk: Jwk,
    /// The 32 secret bytes, sealed.
    pub sealed: String,
    /// When it was made.
    pub created_at: Timestamp,
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

/// The keys this installation signs with, and the set it publishes.
pub struct Keys {
    /// Signs vouchers.
    pub voucher: Signer,
    /// Signs receipts.
    pub receipt: Signer,
    /// Everything published, retired keys included.
    pub jwks: Jwks,
}

/// Opens the newest live key of each purpose, and makes those that do not exist.
///
/// # Errors
/// [`SealError`].
pub async fn keys(store: &Store, sealer: &Sealer, now: Timestamp) -> Result<Keys, SealError> {
    let page = store.reader().list::<SealedKey>("signing_keys", "", None, 1_000, true);
    let mut rows = page.map_err(|why| SealError::Books(why.to_string()))?.items;
    let voucher = live(store, sealer, &mut rows, Purpose::Voucher, now).await?;
    let receipt = live(store, sealer, &mut rows, Purpose::Receipt, now).await?;
    let jwks = Jwks { keys: rows.into_iter().map(|row| row.jwk).collect() };
    Ok(Keys { voucher, receipt, jwks })
}

async fn live(
    store: &Store,
    sealer: &Sealer,
    rows: &mut Vec<SealedKey>,
    purpose: Purpose,
    now: Timestamp,
) -> Result<Signer, SealError> {
    let is_live = |row: &&SealedKey| row.jwk.purpose == purpose && row.jwk.retired_at.is_none();
    if let Some(row) = rows.iter().find(is_live) {
        let secret = sealer.open_secret(&row.jwk.kid, &row.sealed)?;
        let secret: &[u8; 32] = secret.as_slice().try_into().map_err(|_| SealError::OtherKey)?;
        return Ok(Signer::new(purpose, secret));
    }
    let secret = Zeroizing::new(random_bytes::<32>());
    let signer = Signer::new(purpose, &secret);
    let sealed = sealer.seal(signer.kid(), secret.as_slice())?;
    let row = SealedKey { jwk: signer.jwk(), sealed, created_at: now };
    let kept = store.submit(KeepKey(row.clone())).await;
    kept.map_err(|why| SealError::Books(why.to_string()))?;
    rows.push(row);
    Ok(signer)
}
