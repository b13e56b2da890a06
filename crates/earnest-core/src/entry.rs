//! One entry of the log: what a unit recorded, and the hash that chains it to all before it.
//!
//! Rows stand in the log by digest only, so that an entry stays small and yet vouches for every
//! byte: whoever holds the log and the rows can check both against the head of the chain.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::ledger::{AccountId, Cause, Leg, Op};
use crate::time::Timestamp;
use crate::unit::{Event, Fingerprint, Key};

/// The hash before the first entry.
pub const GENESIS: [u8; 32] = [0; 32];

/// What one unit recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The place in the log: 1, 2, 3 … without a gap.
    pub seq: u64,
    /// When, to the microsecond; strictly rising along the log.
    pub at: Timestamp,
    /// The unit's name.
    pub name: Cow<'static, str>,
    /// Its idempotency key, if it had one.
    pub key: Option<KeyLine>,
    /// Its ledger operations, in order.
    pub ops: Vec<Op>,
    /// Its rows, by digest.
    pub puts: Vec<PutLine>,
    /// Its events.
    pub events: Vec<EventLine>,
}

/// An idempotency key as the log keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyLine {
    /// [`Key::scope`].
    pub scope: String,
    /// [`Key::family`].
    pub family: Cow<'static, str>,
    /// [`Key::name`].
    pub name: String,
    /// [`Key::fingerprint`].
    pub fingerprint: Fingerprint,
    /// What the key is bound to from this entry on.
    pub bound: Option<String>,
}

impl KeyLine {
    /// The key, bound to an id or to nothing yet.
    pub fn new(key: Key, bound: Option<String>) -> Self {
        let Key { scope, family, name, fingerprint } = key;
        Self { scope, family: Cow::Borrowed(family), name, fingerprint, bound }
    }
}

/// A row as the log keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutLine {
    /// The kind of row.
    pub kind: Cow<'static, str>,
    /// Its id.
    pub id: String,
    /// SHA-256 of its stored bytes.
    pub digest: [u8; 32],
}

/// SHA-256 of a row's stored bytes.
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// An event as the log keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLine {
    /// [`Event::kind`].
    pub kind: String,
    /// [`Event::audience`].
    pub audience: Vec<String>,
    /// [`Event::data`] as JSON text.
    pub data: String,
}

impl From<Event> for EventLine {
    fn from(event: Event) -> Self {
        let Event { kind, audience, data } = event;
        Self { kind, audience, data: data.to_string() }
    }
}

impl EventLine {
    /// The event again.
    ///
    /// # Errors
    /// When the stored text is no JSON.
    pub fn event(&self) -> Result<Event, serde_json::Error> {
        let data = serde_json::from_str(&self.data)?;
        Ok(Event { kind: self.kind.clone(), audience: self.audience.clone(), data })
    }
}

impl Entry {
    /// The hash of the chain up to and including this entry: SHA-256 over the hash before it and
    /// every field, each list with its length and each text with its own, so that equal entries
    /// give equal hashes on every engine and no two entries run into each other.
    pub fn hash(&self, before: &[u8; 32]) -> [u8; 32] {
        let mut hash = ChainHash(Sha256::new(), String::new());
        hash.0.update(before);
        hash.number(self.seq);
        hash.0.update(self.at.as_microsecond().to_be_bytes());
        hash.text(&self.name);
        hash.length(self.key.iter().len());
        if let Some(key) = &self.key {
            hash.text(&key.scope);
            hash.text(&key.family);
            hash.text(&key.name);
            hash.0.update(key.fingerprint.0);
            hash.text(key.bound.as_deref().unwrap_or_default());
        }
        hash.length(self.ops.len());
        for op in &self.ops {
            hash.op(op);
        }
        hash.length(self.puts.len());
        for put in &self.puts {
            hash.text(&put.kind);
            hash.text(&put.id);
            hash.0.update(put.digest);
        }
        hash.length(self.events.len());
        for event in &self.events {
            hash.text(&event.kind);
            hash.length(event.audience.len());
            for who in &event.audience {
                hash.text(who);
            }
            hash.text(&event.data);
        }
        hash.0.finalize().into()
    }
}

/// The hash, and room to write accounts into.
struct ChainHash(Sha256, String);

impl ChainHash {
    fn number(&mut self, number: u64) {
        self.0.update(number.to_be_bytes());
    }

    fn length(&mut self, length: usize) {
        self.number(u64::try_from(length).unwrap_or(u64::MAX));
    }

    fn text(&mut self, text: &str) {
        self.length(text.len());
        self.0.update(text.as_bytes());
    }

    fn op(&mut self, op: &Op) {
        match op {
            Op::Move { id, cause, legs } => self.legs("move", id.value(), *cause, legs),
            Op::Hold { id, cause, legs } => self.legs("hold", id.value(), *cause, legs),
            Op::Post { id, amounts } => {
                self.text("post");
                self.0.update(id.value().to_be_bytes());
                self.length(amounts.len());
                for amount in amounts {
                    self.0.update(amount.get().to_be_bytes());
                }
            }
            Op::Void { id } => {
                self.text("void");
                self.0.update(id.value().to_be_bytes());
            }
        }
    }

    fn legs(&mut self, verb: &str, id: u128, cause: Cause, legs: &[Leg]) {
        self.text(verb);
        self.0.update(id.to_be_bytes());
        self.text(cause.as_str());
        self.length(legs.len());
        for leg in legs {
            self.account(leg.debit);
            self.account(leg.credit);
            self.0.update(leg.amount.get().to_be_bytes());
            // No amount is negative, so -1 says that no room is used.
            let room = leg.room.map_or(-1, crate::money::Micros::get);
            self.0.update(room.to_be_bytes());
        }
    }

    fn account(&mut self, account: AccountId) {
        use std::fmt::Write as _;
        let mut text = std::mem::take(&mut self.1);
        text.clear();
        // Writing into a `String` cannot fail.
        let _ = write!(text, "{account}");
        self.text(&text);
        self.1 = text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{OwnerId, TransferId};
    use crate::ledger::Account;
    use crate::money::Micros;

    fn entry() -> Entry {
        let (debit, credit) =
            (Account::PaypalCash.usd(), Account::OwnerCredit(OwnerId::from_value(7)).usd());
        let legs = vec![Leg::new(debit, credit, Micros::constant(5))];
        Entry {
            seq: 1,
            at: Timestamp::UNIX_EPOCH,
            name: "deposit".into(),
            key: None,
            ops: vec![Op::Move { id: TransferId::from_value(1), cause: Cause::Deposit, legs }],
            puts: vec![PutLine { kind: "note".into(), id: "a".into(), digest: digest(b"1") }],
            events: vec![EventLine { kind: "k".into(), audience: vec![], data: "{}".into() }],
        }
    }

    #[test]
    fn every_field_changes_the_hash() {
        let base = entry().hash(&GENESIS);
        let changes: Vec<fn(&mut Entry)> = vec![
            |e| e.seq = 2,
            |e| e.at = Timestamp::from_microsecond(1).unwrap(),
            |e| e.name = "deposi".into(),
            |e| e.ops.clear(),
            |e| e.ops = vec![Op::Void { id: TransferId::from_value(1) }],
            |e| e.puts[0].id = "b".into(),
            |e| e.puts[0].digest[31] ^= 1,
            |e| e.events[0].data = "[]".into(),
            |e| e.events[0].audience.push(String::new()),
            |e| {
                e.key = Some(KeyLine {
                    scope: String::new(),
                    family: "".into(),
                    name: String::new(),
                    fingerprint: Fingerprint([0; 32]),
                    bound: None,
                });
            },
            |e| {
                if let Op::Move { legs, .. } = &mut e.ops[0] {
                    legs[0].room = Some(Micros::ZERO);
                }
            },
        ];
        for (place, change) in changes.iter().enumerate() {
            let mut changed = entry();
            change(&mut changed);
            assert_ne!(changed.hash(&GENESIS), base, "change {place}");
        }
        assert_ne!(entry().hash(&base), base);
        assert_eq!(entry().hash(&GENESIS), base);
    }
}
