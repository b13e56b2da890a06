//! The proof on an invoice that we wrote it.
//!
//! A receipt shows the form of our invoices, and anybody can pay us under any invoice. Books that were
//! restored have to take a charge that they do not know for one of a life that was lost by nothing but
//! what it carries; so every invoice carries a proof that only this installation can make, of the
//! invoice itself, of the settlement and owner named beside it, and of the amount. Its secret follows
//! from one that is sealed in every copy of the books.

use sha2::{Digest, Sha256};

use crate::id::{IntentId, TabId};
use crate::money::Micros;

/// How long the part of a mark is that cannot be known before the settlement is made.
const NONCE: usize = 8;
/// How many bytes of a proof are kept: an invoice has little room, and nobody can try proofs on us
/// but by paying.
const PROOF: usize = 10;

/// What makes and checks proofs.
#[derive(Clone)]
pub struct Marker([u8; 32]);

impl std::fmt::Debug for Marker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Marker(..)")
    }
}

/// HMAC-SHA256 (RFC 2104) under a key of one block at most.
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let pad = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
}

impl Marker {
    /// What follows from a secret of this installation. The secret is used for nothing else than what
    /// it is for: what is derived tells nothing of it.
    pub fn derive(secret: &[u8; 32]) -> Self {
        Self(hmac(secret, b"earnest: proofs on invoices, 1"))
    }

    fn proof(&self, about: &str, custom: &str, amount: Micros) -> String {
        let message = format!("{about} {custom} {}", amount.get());
        let whole = hmac(&self.0, message.as_bytes());
        hex::encode(whole.get(..PROOF).unwrap_or_default())
    }

    /// The invoice of a settlement: `epoch:tab:n:mark`. The mark is the end of the intent's id, its
    /// random part, and the proof.
    pub fn invoice(
        &self,
        epoch: &str,
        (tab, n): (TabId, u64),
        intent: IntentId,
        custom: &str,
        amount: Micros,
    ) -> String {
        let id = intent.to_string();
        let nonce = id.get(id.len().saturating_sub(NONCE)..).unwrap_or_default();
        let about = format!("{epoch}:{tab}:{n}:{nonce}");
        let proof = self.proof(&about, custom, amount);
        format!("{about}{proof}")
    }

    /// Whether an invoice was written here, for what stands beside it and for that amount.
    // INVARIANT: a_mark_that_is_not_proved_is_a_strangers
    pub fn is_proved(&self, invoice: &str, custom: &str, amount: Micros) -> bool {
        let at = invoice.len().saturating_sub(PROOF.saturating_mul(2));
        let Some((about, told)) = invoice.split_at_checked(at) else { return false };
        let proof = self.proof(about, custom, amount);
        // Every byte is looked at, wherever the first difference is.
        let differs = proof.bytes().zip(told.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        proof.len() == told.len() && differs == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_the_one_of_the_standard() {
        // RFC 4231, cases 2 and 1.
        let check = |key: &[u8], message: &[u8], expect: &str| {
            assert_eq!(hex::encode(hmac(key, message)), expect);
        };
        check(
            b"Jefe",
            b"what do ya want for nothing?",
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        );
        check(
            &[0x0b; 20],
            b"Hi There",
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
        );
    }

    #[test]
    fn a_mark_that_is_not_proved_is_a_strangers() {
        let (marker, amount) = (Marker::derive(&[1; 32]), Micros::constant(950_000));
        let (tab, intent) = (TabId::from_value(7), IntentId::from_value(8));
        let invoice = marker.invoice("e1", (tab, 3), intent, "set_1.own_1", amount);
        // Room in what PayPal takes as an invoice, and in the key of a call with an epoch before it.
        assert!(invoice.len() <= 75, "{invoice}");
        assert!(marker.is_proved(&invoice, "set_1.own_1", amount));
        let other = Marker::derive(&[2; 32]);
        assert!(!other.is_proved(&invoice, "set_1.own_1", amount));
        assert!(!marker.is_proved(&invoice, "set_1.own_2", amount));
        assert!(!marker.is_proved(&invoice, "set_1.own_1", Micros::constant(10_000)));
        assert!(!marker.is_proved(&invoice.replace(":3:", ":4:"), "set_1.own_1", amount));
        for short in ["", "e1", "e1:tab:3:mark0001", "é0000000000000000000", &invoice[..40]] {
            assert!(!marker.is_proved(short, "set_1.own_1", amount), "{short}");
        }
        assert_eq!(format!("{marker:?}"), "Marker(..)");
    }
}
