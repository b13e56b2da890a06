//! Identifiers: one type a noun, time-ordered, with a readable prefix in text.
//!
//! The text is the prefix, an underscore, and 26 characters of Crockford's base 32 in lower case:
//! 48 bits of milliseconds, then 80 bits that the caller drew (the layout of a ULID). Ids sort by
//! the time they were made, in text and in memory. This crate draws nothing: [`Seed`] is handed in.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const TEXT_LENGTH: usize = 26;

/// What a new id is made of: when, and 80 random bits.
#[derive(Clone, Copy, Debug)]
pub struct Seed {
    /// Milliseconds since 1970, of which 48 bits count.
    pub unix_ms: u64,
    /// Random bits, of which 80 count.
    pub random: u128,
}

impl Seed {
    fn value(self) -> u128 {
        const RANDOM: u128 = (1 << 80) - 1;
        const TIME: u128 = (1 << 48) - 1;
        ((u128::from(self.unix_ms) & TIME) << 80) | (self.random & RANDOM)
    }
}

/// A text that is not an id of the expected kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id of the form `{prefix}_…`")]
pub struct BadId {
    /// The prefix that was expected.
    pub prefix: &'static str,
}

/// The 26 characters; written into one buffer, since ids are turned into text all day long.
fn encode(value: u128) -> [u8; TEXT_LENGTH] {
    let mut text = [b'0'; TEXT_LENGTH];
    // Two halves of 64 bits are far quicker to shift than one of 128; 13 letters hold 65 bits.
    let mut low = u64::try_from(value & u128::from(u64::MAX)).unwrap_or(0);
    let mut high = u64::try_from(value >> 65).unwrap_or(0);
    let middle = u64::try_from((value >> 64) & 1).unwrap_or(0);
    let (left, right) = text.split_at_mut(TEXT_LENGTH / 2);
    for (place, letter) in right.iter_mut().rev().enumerate() {
        // The thirteenth letter from the end takes the 65th bit from the middle.
        let digit = if place == 12 { low | (middle << 4) } else { low };
        *letter = letter_of(digit);
        low >>= 5;
    }
    for letter in left.iter_mut().rev() {
        *letter = letter_of(high);
        high >>= 5;
    }
    text
}

fn letter_of(digit: u64) -> u8 {
    usize::try_from(digit & 31).ok().and_then(|at| ALPHABET.get(at)).copied().unwrap_or(b'0')
}

fn write_text(prefix: &str, value: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // In one piece, so that a `String` being written to grows once; in two copies, since a chain of
    // iterators took longer than all the letters.
    let mut text = [b'_'; 4 + TEXT_LENGTH];
    if let (Some(kind), Some(rest)) = (prefix.as_bytes().first_chunk::<3>(), text.last_chunk_mut())
    {
        *rest = encode(value);
        if let Some(start) = text.first_chunk_mut() {
            *start = *kind;
        }
    }
    // Only letters of the alphabet and a prefix, all of them ASCII.
    f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
}

/// Takes an id's text apart into its three letters of prefix and its bits, for compact storage;
/// `None` for any other text. [`unpack`] gives exactly the same text back, and packed ids of one
/// prefix sort as their texts do.
pub fn pack(text: &str) -> Option<([u8; 3], u128)> {
    let (prefix, rest) = text.split_once('_')?;
    let prefix: [u8; 3] = prefix.as_bytes().try_into().ok()?;
    let value = decode(rest)?;
    prefix.iter().all(u8::is_ascii_lowercase).then_some((prefix, value))
}

/// The text that [`pack`] took apart; `None` where the prefix is not of lower-case letters.
pub fn unpack(prefix: [u8; 3], value: u128) -> Option<String> {
    let mut text = String::with_capacity(30);
    text.push_str(std::str::from_utf8(&prefix).ok()?);
    text.push('_');
    text.push_str(std::str::from_utf8(&encode(value)).ok()?);
    prefix.iter().all(u8::is_ascii_lowercase).then_some(text)
}

/// The digit of every letter; 0xff for what is none.
const DIGITS: [u8; 256] = {
    let mut digits = [0xff; 256];
    let mut digit = 0;
    while digit < 32 {
        #[expect(clippy::as_conversions, clippy::indexing_slicing, reason = "const; 32 letters")]
        {
            digits[ALPHABET[digit as usize] as usize] = digit;
        }
        digit += 1;
    }
    digits
};

fn decode(text: &str) -> Option<u128> {
    let (first, rest) = text.as_bytes().split_first()?;
    let first = digit_of(*first);
    // 26 letters hold 130 bits; the first may only use the three that fit.
    if rest.len() != TEXT_LENGTH - 1 || first > 7 {
        return None;
    }
    // Halves of 60 and 65 bits, each quick to shift.
    let (left, right) = rest.split_at_checked(12)?;
    let (mut high, mut low) = (u64::from(first), 0_u128);
    let mut bad = 0;
    for byte in left {
        let digit = digit_of(*byte);
        bad |= digit;
        high = (high << 5) | u64::from(digit & 31);
    }
    for byte in right {
        let digit = digit_of(*byte);
        bad |= digit;
        low = (low << 5) | u128::from(digit & 31);
    }
    (bad < 32).then_some((u128::from(high) << 65) | low)
}

fn digit_of(letter: u8) -> u8 {
    DIGITS.get(usize::from(letter)).copied().unwrap_or(0xff)
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// The prefix of the text form.
            pub const PREFIX: &'static str = $prefix;

            /// A new id from what the caller drew.
            pub fn new(seed: Seed) -> Self {
                Self(seed.value())
            }

            /// The 128 bits, for compact keys.
            pub const fn value(self) -> u128 {
                self.0
            }

            /// The same bits under this kind: for things that share one life, such as a purchase
            /// and its hold.
            pub const fn from_value(value: u128) -> Self {
                Self(value)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_text($prefix, self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                text.strip_prefix(concat!($prefix, "_"))
                    .and_then(decode)
                    .map(Self)
                    .ok_or(BadId { prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

ids! {
    /// Whose money it is.
    OwnerId = "own";
    /// A key of an owner's.
    AgentId = "agt";
    /// Who is paid.
    SellerId = "sel";
    /// A capped account settled together.
    TabId = "tab";
    /// One quote, its funding and its acceptance.
    PurchaseId = "pur";
    /// A seller's price for one request.
    QuoteId = "qte";
    /// An owner's answer to a waiting purchase.
    ApprovalId = "apr";
    /// A bounded permission given while answering.
    GrantId = "gra";
    /// A settlement of a tab.
    SettlementId = "set";
    /// Our record of a PayPal call and its fate.
    IntentId = "int";
    /// What Earnest signs afterwards.
    ReceiptId = "rcp";
    /// A vaulted way to pay, from set-up to removal.
    VaultId = "vlt";
    /// The time a tab or credit grant is open; a new one never reopens a day cap.
    SessionId = "ses";
    /// A browser of an owner's that is signed in.
    SignInId = "sin";
    /// What one voucher is told apart by.
    VoucherId = "vch";
    /// A chain of transfers.
    TransferId = "trf";
    /// An API key.
    KeyId = "key";
    /// Where outgoing webhooks go.
    HookId = "whe";
    /// One event on its way to one of them.
    DeliveryId = "whd";
    /// One call to a model.
    ModelCallId = "mdl";
    /// One exchange over HTTP.
    TraceId = "trc";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_sorts_by_time_and_reads_back() {
        let early = OwnerId::new(Seed { unix_ms: 1, random: u128::MAX });
        let late = OwnerId::new(Seed { unix_ms: 2, random: 0 });
        assert!(early < late);
        assert!(early.to_string() < late.to_string());
        assert_eq!(early.to_string().parse(), Ok(early));
        assert_eq!(early.to_string().len(), 30);
    }

    #[test]
    fn other_kinds_and_broken_texts_are_refused() {
        let owner = OwnerId::new(Seed { unix_ms: 5, random: 7 }).to_string();
        assert!(owner.parse::<AgentId>().is_err());
        assert!(owner.to_uppercase().parse::<OwnerId>().is_err());
        for bad in
            ["own_", "own", "", "own_8zzzzzzzzzzzzzzzzzzzzzzzzz", "own_0000000000000000000000000u"]
        {
            assert!(bad.parse::<OwnerId>().is_err(), "{bad}");
        }
        assert!(format!("{owner}0").parse::<OwnerId>().is_err());
    }

    #[test]
    fn every_bit_has_its_letter_and_packing_gives_the_text_back() {
        for bit in 0..128 {
            let owner = OwnerId::from_value(1 << bit);
            let text = owner.to_string();
            assert_eq!(text.parse(), Ok(owner), "bit {bit}");
            assert_eq!(pack(&text), Some((*b"own", 1 << bit)));
            assert_eq!(unpack(*b"own", 1 << bit).as_deref(), Some(text.as_str()));
        }
        let zeros = OwnerId::from_value(0).to_string();
        assert_eq!(zeros, "own_00000000000000000000000000");
        assert_eq!(OwnerId::from_value(u128::MAX).to_string(), "own_7zzzzzzzzzzzzzzzzzzzzzzzzz");
        for text in
            ["", "own", "owner_00000000000000000000000000", "OWN_00000000000000000000000000"]
        {
            assert_eq!(pack(text), None, "{text}");
        }
    }
}
