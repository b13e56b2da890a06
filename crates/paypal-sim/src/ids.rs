//! Identifiers in the shapes PayPal uses.

/// Upper-case letters and digits, as in order and transaction ids.
const UPPER: &[u8; 36] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// The alphabet of merchant and payer ids: no 0, 1, I or O.
const PAYER: &[u8; 32] = b"23456789ABCDEFGHJKLMNPQRSTUVWXYZ";
const LOWER: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const MIXED: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

fn random_bytes(count: usize) -> Vec<u8> {
    let mut bytes = vec![0_u8; count];
    // The operating system's generator does not fail once the process runs; if it ever did, the
    // zero bytes left here would only make two simulated ids equal.
    let _ = getrandom::fill(&mut bytes);
    bytes
}

fn from_alphabet(alphabet: &[u8], count: usize) -> String {
    random_bytes(count)
        .into_iter()
        .filter_map(|byte| alphabet.get(usize::from(byte) % alphabet.len()))
        .map(|&letter| char::from(letter))
        .collect()
}

/// Orders, authorizations, captures, refunds and setup tokens: 17 of `[0-9A-Z]`.
pub(crate) fn transaction() -> String {
    from_alphabet(UPPER, 17)
}

/// Payers and merchants: 13 of `[2-9A-HJ-NP-Z]`.
pub(crate) fn payer() -> String {
    from_alphabet(PAYER, 13)
}

/// A vaulted payment token.
pub(crate) fn payment_token() -> String {
    from_alphabet(LOWER, 8)
}

/// A vault customer.
pub(crate) fn customer() -> String {
    from_alphabet(MIXED, 10)
}

/// `Paypal-Debug-Id`: 13 hexadecimal digits.
pub(crate) fn debug() -> String {
    let mut text = hex::encode(random_bytes(7));
    text.truncate(13);
    text
}

/// A dispute.
pub(crate) fn dispute() -> String {
    let part = |count| from_alphabet(b"0123456789", count);
    format!("PP-D-{}-{}", part(5), part(5))
}

/// A webhook event.
pub(crate) fn event() -> String {
    format!("WH-{}-{}", transaction(), transaction())
}

/// A webhook registration.
pub(crate) fn webhook() -> String {
    transaction()
}

/// An access token.
pub(crate) fn access_token() -> String {
    format!("A21AA{}", from_alphabet(MIXED, 92))
}

/// A nonce or any other opaque text.
pub(crate) fn opaque(count: usize) -> String {
    from_alphabet(MIXED, count)
}

/// A webhook transmission: a version 4 UUID.
pub(crate) fn uuid() -> String {
    let mut bytes = random_bytes(16);
    if let Some(byte) = bytes.get_mut(6) {
        *byte = (*byte & 0x0f) | 0x40;
    }
    if let Some(byte) = bytes.get_mut(8) {
        *byte = (*byte & 0x3f) | 0x80;
    }
    let hex = hex::encode(bytes);
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default().to_owned();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}
