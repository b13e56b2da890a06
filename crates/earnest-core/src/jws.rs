//! Signed statements: JSON Web Signatures in compact form (RFC 7515), Ed25519 only (RFC 8037).
//!
//! The verifier fixes everything: algorithm, type, key set. A token chooses nothing but which of
//! our own keys it names. Refused: any other `alg`, any header member besides `alg`, `typ` and
//! `kid` (hence `jwk`, `jku`, `crit`), members written twice, base64 that is not canonical,
//! signatures that are not strict Ed25519 (a scalar at or above the group order, small-order
//! points).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::time::Timestamp;

/// The longest token that is looked at.
pub const MAX_TOKEN_BYTES: usize = 2 * 1024 * 1024;

/// What a key signs. Keys of one purpose never count for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Presented by an agent to a seller; single use, two minutes.
    Voucher,
    /// Public and lasting.
    Receipt,
}

impl Purpose {
    /// The `typ` of the tokens, RFC 7515 section 4.1.9.
    pub const fn typ(self) -> &'static str {
        match self {
            Self::Voucher => "earnest-voucher+jwt",
            Self::Receipt => "earnest-receipt+jwt",
        }
    }
}

/// A public key as published (RFC 7517, RFC 8037), with what it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jwk {
    /// Always `OKP`.
    pub kty: String,
    /// Always `Ed25519`.
    pub crv: String,
    /// The public key, base64url.
    pub x: String,
    /// Thumbprint of the key (RFC 7638).
    pub kid: String,
    /// Always `EdDSA`.
    pub alg: String,
    /// Always `sig`.
    #[serde(rename = "use")]
    pub usage: String,
    /// What the key signs here.
    #[serde(rename = "earnest_for")]
    pub purpose: Purpose,
    /// Since when it signs nothing any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired_at: Option<Timestamp>,
}

/// The published key set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jwks {
    /// The keys, retired ones included.
    pub keys: Vec<Jwk>,
}

/// Why a token does not count. Never says which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// Not three canonical base64url parts of strict JSON.
    #[error("not a well-formed token")]
    Malformed,
    /// Another algorithm or type, or header members that have no place here.
    #[error("not a token of this kind")]
    WrongKind,
    /// No published key of this purpose has that id.
    #[error("signed with an unknown key")]
    UnknownKey,
    /// The key was retired.
    #[error("signed with a retired key")]
    RetiredKey,
    /// The signature does not verify.
    #[error("the signature does not verify")]
    BadSignature,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header<'a> {
    alg: &'a str,
    typ: &'a str,
    kid: &'a str,
}

/// A private key with its id.
#[derive(Clone)]
pub struct Signer {
    purpose: Purpose,
    kid: String,
    key: SigningKey,
}

impl Signer {
    /// From 32 secret bytes.
    pub fn new(purpose: Purpose, secret: &[u8; 32]) -> Self {
        let key = SigningKey::from_bytes(secret);
        Self { purpose, kid: thumbprint(&key.verifying_key()), key }
    }

    /// The id of the key.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The public half, for publication.
    pub fn jwk(&self) -> Jwk {
        Jwk {
            kty: "OKP".to_owned(),
            crv: "Ed25519".to_owned(),
            x: URL_SAFE_NO_PAD.encode(self.key.verifying_key().as_bytes()),
            kid: self.kid.clone(),
            alg: "EdDSA".to_owned(),
            usage: "sig".to_owned(),
            purpose: self.purpose,
            retired_at: None,
        }
    }

    /// Signs claims; deterministic (RFC 8032), so equal claims give equal tokens.
    ///
    /// # Errors
    /// When the claims cannot be written as JSON.
    pub fn sign(&self, claims: &impl Serialize) -> Result<String, serde_json::Error> {
        let header = Header { alg: "EdDSA", typ: self.purpose.typ(), kid: &self.kid };
        let mut token = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&header)?);
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(serde_json::to_vec(claims)?, &mut token);
        let signature = self.key.sign(token.as_bytes());
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature.to_bytes(), &mut token);
        Ok(token)
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("kid", &self.kid).finish_non_exhaustive()
    }
}

struct KnownKey {
    kid: String,
    purpose: Purpose,
    retired_at: Option<Timestamp>,
    key: VerifyingKey,
}

/// The keys a verifier trusts.
pub struct KeySet(Vec<KnownKey>);

impl KeySet {
    /// From a published set. Keys of other kinds or with a wrong id are left out, so that a set
    /// with one unknown key still serves for the others.
    pub fn new(jwks: &Jwks) -> Self {
        Self(jwks.keys.iter().filter_map(known_key).collect())
    }

    /// Whether there is no key at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a token of one purpose and returns its claims and the key's retirement, if any.
    ///
    /// # Errors
    /// [`BadToken`]; see the module for what is refused.
    pub fn read<C: DeserializeOwned>(
        &self,
        purpose: Purpose,
        token: &str,
    ) -> Result<(C, Option<Timestamp>), BadToken> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(BadToken::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(BadToken::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(BadToken::Malformed)?;
        let header = part(header)?;
        let header: Header<'_> =
            serde_json::from_slice(&header).map_err(|_| BadToken::WrongKind)?;
        if header.alg != "EdDSA" || header.typ != purpose.typ() {
            return Err(BadToken::WrongKind);
        }
        let known = self.0.iter().find(|key| key.purpose == purpose && key.kid == header.kid);
        let known = known.ok_or(BadToken::UnknownKey)?;
        let signature =
            Signature::from_slice(&part(signature)?).map_err(|_| BadToken::Malformed)?;
        let verified = known.key.verify_strict(signed.as_bytes(), &signature);
        verified.map_err(|_| BadToken::BadSignature)?;
        let claims = serde_json::from_slice(&part(claims)?).map_err(|_| BadToken::Malformed)?;
        Ok((claims, known.retired_at))
    }
}

fn part(text: &str) -> Result<Vec<u8>, BadToken> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| BadToken::Malformed)
}

fn known_key(jwk: &Jwk) -> Option<KnownKey> {
    if jwk.kty != "OKP" || jwk.crv != "Ed25519" {
        return None;
    }
    let bytes: [u8; 32] = URL_SAFE_NO_PAD.decode(&jwk.x).ok()?.try_into().ok()?;
    let key = VerifyingKey::from_bytes(&bytes).ok()?;
    let (kid, purpose, retired_at) = (jwk.kid.clone(), jwk.purpose, jwk.retired_at);
    (thumbprint(&key) == kid).then_some(KnownKey { kid, purpose, retired_at, key })
}

/// RFC 7638 over the three members RFC 8037 names, in that order.
fn thumbprint(key: &VerifyingKey) -> String {
    let x = URL_SAFE_NO_PAD.encode(key.as_bytes());
    let members = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
    URL_SAFE_NO_PAD.encode(Sha256::digest(members.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Claims {
        n: u32,
    }

    fn signer() -> Signer {
        Signer::new(Purpose::Voucher, &[7; 32])
    }

    fn keys() -> KeySet {
        KeySet::new(&Jwks { keys: vec![signer().jwk()] })
    }

    fn read(token: &str) -> Result<u32, BadToken> {
        keys().read::<Claims>(Purpose::Voucher, token).map(|(claims, _)| claims.n)
    }

    /// Signs any header and payload with the real key: what a careless issuer could do.
    fn forge(header: &str, payload: &str) -> String {
        let signed =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
        let signature = SigningKey::from_bytes(&[7; 32]).sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))
    }

    #[test]
    fn reads_what_it_signed() {
        assert_eq!(read(&signer().sign(&Claims { n: 3 }).unwrap()), Ok(3));
    }

    #[test]
    fn the_token_chooses_nothing() {
        let kid = signer().kid().to_owned();
        let good = format!(r#"{{"alg":"EdDSA","typ":"earnest-voucher+jwt","kid":"{kid}"}}"#);
        assert_eq!(read(&forge(&good, r#"{"n":3}"#)), Ok(3));
        for alg in ["none", "None", "NONE", "nOnE", "HS256", "ES256", "RS256", "eddsa", "Ed25519"] {
            let header = good.replace("EdDSA", alg);
            assert_eq!(read(&forge(&header, r#"{"n":3}"#)), Err(BadToken::WrongKind), "{alg}");
        }
        for extra in
            [r#""crit":["x"]"#, r#""jwk":{}"#, r#""jku":"https://a.example""#, r#""alg":"EdDSA""#]
        {
            let header = good.replace('{', &format!("{{{extra},"));
            assert_eq!(read(&forge(&header, r#"{"n":3}"#)), Err(BadToken::WrongKind), "{extra}");
        }
        let receipt = good.replace("voucher", "receipt");
        assert_eq!(read(&forge(&receipt, r#"{"n":3}"#)), Err(BadToken::WrongKind));
    }

    #[test]
    fn members_written_twice_and_loose_base64_are_malformed() {
        let kid = signer().kid().to_owned();
        let good = format!(r#"{{"alg":"EdDSA","typ":"earnest-voucher+jwt","kid":"{kid}"}}"#);
        assert_eq!(read(&forge(&good, r#"{"n":3,"n":4}"#)), Err(BadToken::Malformed));
        let token = signer().sign(&Claims { n: 3 }).unwrap();
        assert_eq!(read(&format!("{token}=")), Err(BadToken::Malformed));
        assert_eq!(read(&format!("{token}.x")), Err(BadToken::Malformed));
        // The last letter of 64 bytes carries four unused bits, which must be zero.
        let last = token.chars().last().unwrap();
        let loose: String = format!("{}{}", &token[..token.len() - 1], next_letter(last));
        assert_eq!(read(&loose), Err(BadToken::Malformed));
    }

    fn next_letter(letter: char) -> char {
        const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let place = LETTERS.iter().position(|l| char::from(*l) == letter).unwrap();
        char::from(LETTERS[place + 1])
    }

    #[test]
    fn a_signature_with_the_group_order_added_is_refused() {
        const ORDER: [u8; 32] = [
            0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9,
            0xde, 0x14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
        ];
        let token = signer().sign(&Claims { n: 3 }).unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let mut bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let mut carry = 0u16;
        for place in 0..32 {
            let sum = u16::from(bytes[32 + place]) + u16::from(ORDER[place]) + carry;
            bytes[32 + place] = (sum & 0xff) as u8;
            carry = sum >> 8;
        }
        let malleated = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(bytes));
        assert_eq!(read(&malleated), Err(BadToken::BadSignature));
    }

    #[test]
    fn a_key_of_the_other_purpose_does_not_count() {
        let token = Signer::new(Purpose::Receipt, &[7; 32]).sign(&Claims { n: 3 }).unwrap();
        assert_eq!(
            keys().read::<Claims>(Purpose::Receipt, &token).map(|_| ()),
            Err(BadToken::UnknownKey)
        );
    }
}
