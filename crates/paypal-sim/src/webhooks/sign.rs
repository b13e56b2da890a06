//! Signing of webhooks: a local root, an intermediate, and a leaf whose RSA key signs.

use std::sync::{Mutex, OnceLock, PoisonError};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, SanType,
};
use ring::rand::SystemRandom;
use ring::signature::{
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, UnparsedPublicKey,
};
use rsa::pkcs8::EncodePrivateKey as _;

use crate::ids;
use crate::sim::StartError;

/// A host name in PayPal's zone that PayPal does not use.
const LEAF_NAME: &str = "messageverificationcerts.sim.paypal.com";

/// RSA keys take a while to make, so a process makes at most two and every simulator in it
/// shares them. They protect nothing.
static KEYS: [OnceLock<Option<Vec<u8>>>; 2] = [OnceLock::new(), OnceLock::new()];

fn rsa_pkcs8(generation: usize) -> Option<&'static Vec<u8>> {
    KEYS.get(generation % KEYS.len())?
        .get_or_init(|| {
            let mut random = getrandom::SysRng;
            let key = rsa::PrivateKey::new(&mut random, 2_048).ok()?;
            Some(key.to_pkcs8_der().ok()?.as_bytes().to_vec())
        })
        .as_ref()
}

/// A signing certificate and its key.
struct Leaf {
    id: String,
    pem: String,
    key: RsaKeyPair,
}

/// The simulator's certificate authority.
pub(crate) struct Authority {
    root_pem: String,
    intermediate_pem: String,
    issuer: Issuer<'static, KeyPair>,
    leaves: Mutex<Vec<std::sync::Arc<Leaf>>>,
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "paypal-sim, not PayPal");
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2049, 1, 1);
    params.use_authority_key_identifier_extension = true;
    params
}

fn authority(name: &str, below: u8) -> CertificateParams {
    let mut params = named(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Authority {
    /// Makes a root and an intermediate.
    pub(crate) fn new() -> Result<Self, StartError> {
        let root_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let root_params = authority("paypal-sim root", 1);
        let root_pem = root_params.self_signed(&root_key)?.pem();
        let root = Issuer::new(root_params, root_key);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let params = authority("paypal-sim intermediate", 0);
        let intermediate_pem = params.signed_by(&key, &root)?.pem();
        Ok(Self {
            root_pem,
            intermediate_pem,
            issuer: Issuer::new(params, key),
            leaves: Mutex::new(Vec::new()),
        })
    }

    /// The root a receiver has to trust.
    pub(crate) fn root_pem(&self) -> &str {
        &self.root_pem
    }

    fn leaf(&self, generation: usize) -> Option<std::sync::Arc<Leaf>> {
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        while leaves.len() <= generation {
            let leaf = self.issue(leaves.len())?;
            leaves.push(std::sync::Arc::new(leaf));
        }
        leaves.get(generation).cloned()
    }

    fn issue(&self, generation: usize) -> Option<Leaf> {
        let pkcs8 = rsa_pkcs8(generation)?;
        let der = rustls::pki_types::PrivatePkcs8KeyDer::from(pkcs8.as_slice());
        let subject = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_RSA_SHA256).ok()?;
        let mut params = named(LEAF_NAME);
        params.subject_alt_names = vec![SanType::DnsName(LEAF_NAME.try_into().ok()?)];
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&subject, &self.issuer).ok()?;
        Some(Leaf {
            id: format!("CERT-{}", ids::debug()),
            // With the root at the end, a receiver can be told to trust what it already has.
            pem: format!("{}{}{}", certificate.pem(), self.intermediate_pem, self.root_pem),
            key: RsaKeyPair::from_pkcs8(pkcs8).ok()?,
        })
    }

    /// The certificate of this id: leaf, intermediate, root.
    pub(crate) fn certificate(&self, id: &str) -> Option<String> {
        let leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        leaves.iter().find(|leaf| leaf.id == id).map(|leaf| leaf.pem.clone())
    }

    /// Signs a message; returns the certificate's id and the raw signature.
    pub(crate) fn sign(&self, generation: usize, message: &[u8]) -> Option<(String, Vec<u8>)> {
        let leaf = self.leaf(generation)?;
        let mut signature = vec![0; leaf.key.public().modulus_len()];
        leaf.key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).ok()?;
        Some((leaf.id.clone(), signature))
    }

    /// Whether the certificate of this id signed the message.
    pub(crate) fn verifies(&self, id: &str, message: &[u8], signature: &[u8]) -> bool {
        let leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        leaves.iter().find(|leaf| leaf.id == id).is_some_and(|leaf| {
            let public = leaf.key.public().as_ref();
            UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public)
                .verify(message, signature)
                .is_ok()
        })
    }
}

/// What PayPal signs: the body enters only through its CRC-32.
pub(crate) fn message(id: &str, time: &str, webhook_id: &str, body: &[u8]) -> Vec<u8> {
    let checksum = crc32fast::hash(body);
    format!("{id}|{time}|{webhook_id}|{checksum}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_unsigned_decimal() {
        let body = br#"{"id":"WH-1","event_type":"PAYMENT.CAPTURE.COMPLETED","resource":{"breakdown":{}}}"#;
        assert_eq!(message("t", "at", "w", body), b"t|at|w|934900949");
    }

    #[test]
    fn a_signature_fits_one_message_and_one_certificate() {
        let authority = Authority::new().unwrap();
        let (id, signature) = authority.sign(0, b"message").unwrap();
        assert!(authority.verifies(&id, b"message", &signature));
        assert!(!authority.verifies(&id, b"massage", &signature));
        let (other, _) = authority.sign(1, b"message").unwrap();
        assert_ne!(id, other);
        assert!(!authority.verifies(&other, b"message", &signature));
    }
}
