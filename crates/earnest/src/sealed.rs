//! Secrets at rest: signing keys are rows of the books, sealed with a key-encryption key that is not.
//!
//! A backup of the books is so worth nothing without the key file, and nodes that share the file
//! share the keys. Sealing is ChaCha20-Poly1305 with a random nonce; the row's id is authenticated
//! with it, so that one row's secret cannot be moved to another.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::{Digest as _, Sha256};
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

/// A key-encryption key.
struct SealKey {
    key: LessSafeKey,
    print: String,
}

/// What seals and opens: the key of the key file; while that is being replaced, the next one too.
pub struct Sealer {
    /// The first seals; all of them open.
    keys: Vec<SealKey>,
}

/// Where the next key waits while secrets are sealed anew.
pub fn next_file(path: &Path) -> PathBuf {
    let mut next = path.as_os_str().to_owned();
    next.push(".next");
    PathBuf::from(next)
}

/// Reads a key file (64 hex digits).
fn read_key(path: &Path) -> Result<Option<SealKey>, SealError> {
    let failed = |why: String| SealError::KeyFile { path: path.to_owned(), why };
    let text = match std::fs::read_to_string(path) {
        Ok(text) => Zeroizing::new(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    let bytes = hex::decode(text.trim()).map(Zeroizing::new);
    let bytes = bytes.map_err(|_| failed("not 64 hex digits".to_owned()))?;
    let key = UnboundKey::new(&CHACHA20_POLY1305, &bytes);
    let key = key.map_err(|_| failed("not 64 hex digits".to_owned()))?;
    let mut print = Sha256::new();
    print.update(b"earnest seal key");
    print.update(bytes.as_slice());
    let print = hex::encode(print.finalize().get(..8).unwrap_or_default());
    Ok(Some(SealKey { key: LessSafeKey::new(key), print }))
}

impl Sealer {
    /// Reads the key file, or makes it, readable by nobody else. Where a replacement of it was begun
    /// and not finished, the next key seals and both open.
    ///
    /// # Errors
    /// [`SealError::KeyFile`].
    pub fn open(path: &Path) -> Result<Self, SealError> {
        if !path.exists() {
            let failed = |why: std::io::Error| SealError::KeyFile {
                path: path.to_owned(),
                why: why.to_string(),
            };
            make_key_file(path).map_err(failed)?;
        }
        Self::existing(path)
    }

    /// As [`Sealer::open`], of a file that is there.
    ///
    /// # Errors
    /// [`SealError::KeyFile`].
    pub fn existing(path: &Path) -> Result<Self, SealError> {
        let missing = || SealError::KeyFile { path: path.to_owned(), why: "is missing".to_owned() };
        let key = read_key(path)?.ok_or_else(missing)?;
        let next = read_key(&next_file(path))?;
        Ok(Self { keys: next.into_iter().chain([key]).collect() })
    }

    /// The key of one file, whatever waits beside it.
    ///
    /// # Errors
    /// [`SealError::KeyFile`].
    pub fn alone(path: &Path) -> Result<Self, SealError> {
        let missing = || SealError::KeyFile { path: path.to_owned(), why: "is missing".to_owned() };
        Ok(Self { keys: vec![read_key(path)?.ok_or_else(missing)?] })
    }

    /// What tells one key from another without telling the key: 16 hex digits of its hash.
    pub fn print(&self) -> &str {
        self.keys.first().map_or("", |known| &known.print)
    }

    /// Whether a secret is sealed with the key that seals now.
    pub fn is_fresh(&self, id: &str, sealed: &str) -> bool {
        self.keys.first().is_some_and(|known| known.open_secret(id, sealed).is_ok())
    }

    /// A key that nobody keeps, for books that nobody keeps.
    pub fn throw_away() -> Self {
        #[expect(clippy::expect_used, reason = "the array is as long as the algorithm's key")]
        let key = UnboundKey::new(&CHACHA20_POLY1305, &random_bytes::<32>()).expect("32 bytes");
        Self { keys: vec![SealKey { key: LessSafeKey::new(key), print: String::new() }] }
    }

    /// Seals a secret, bound to the id of the row that keeps it.
    ///
    /// # Errors
    /// [`SealError::OtherKey`] where it cannot be sealed at all.
    pub fn seal(&self, id: &str, secret: &[u8]) -> Result<String, SealError> {
        let key = self.keys.first().ok_or(SealError::OtherKey)?;
        let nonce = random_bytes::<NONCE_LEN>();
        let mut sealed = secret.to_vec();
        let aad = Aad::from(id.as_bytes());
        let done =
            key.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed);
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
        let opened = self.keys.iter().find_map(|known| known.open_secret(id, sealed).ok());
        opened.ok_or(SealError::OtherKey)
    }
}

impl SealKey {
    fn open_secret(&self, id: &str, sealed: &str) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let mut all = STANDARD.decode(sealed).map_err(|_| SealError::OtherKey)?;
        let (nonce, body) = all.split_first_chunk_mut::<NONCE_LEN>().ok_or(SealError::OtherKey)?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let secret = self.key.open_in_place(nonce, Aad::from(id.as_bytes()), body);
        Ok(Zeroizing::new(secret.map_err(|_| SealError::OtherKey)?.to_vec()))
    }
}

/// Makes a key file that only its owner reads.
///
/// # Errors
/// What the system says; it overwrites nothing.
pub fn make_key_file(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let text = Zeroizing::new(hex::encode(random_bytes::<32>()));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()
}
