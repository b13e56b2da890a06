//! The compact forms on disk: ids as bits, words and accounts as numbers, an entry as one blob.
//!
//! A version byte leads every entry, so that a later form can stand beside this one. Nothing here
//! is hashed: the chain covers the meaning ([`Entry::hash`]), not the encoding.

use std::borrow::Cow;

use earnest_core::entry::{Entry, EventLine, KeyLine, PutLine};
use earnest_core::id::{TransferId, pack, unpack};
use earnest_core::ledger::{AccountId, Cause, HoldState, Leg, Op};
use earnest_core::money::Micros;
use earnest_core::time::Timestamp;
use earnest_core::unit::Fingerprint;

use crate::read::LogEntry;

/// The form written today.
const VERSION: u8 = 1;

/// A text as a column keeps it: ids of the usual form in 19 bytes, others as they are. Sorts texts
/// before ids, ids by kind and then by time, as SQLite does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Packed {
    Text(String),
    Id([u8; 19]),
}

impl Packed {
    pub(crate) fn new(text: &str) -> Self {
        let Some((prefix, value)) = pack(text) else { return Self::Text(text.to_owned()) };
        let mut bytes = [0; 19];
        let source = prefix.into_iter().chain(value.to_be_bytes());
        for (to, from) in bytes.iter_mut().zip(source) {
            *to = from;
        }
        Self::Id(bytes)
    }

    pub(crate) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let packed = Self::Id(bytes.try_into().ok()?);
        packed.unpacked().is_some().then_some(packed)
    }

    fn unpacked(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Id(bytes) => {
                let (prefix, value) = bytes.split_first_chunk::<3>()?;
                unpack(*prefix, u128::from_be_bytes(value.try_into().ok()?))
            }
        }
    }

    pub(crate) fn text(&self) -> String {
        self.unpacked().unwrap_or_default()
    }
}

const PENDING: i64 = 0;
const POSTED: i64 = 1;
const VOIDED: i64 = 2;

/// A chain's state as a column keeps it.
pub(crate) const fn state_number(state: HoldState) -> i64 {
    match state {
        HoldState::Pending => PENDING,
        HoldState::Posted => POSTED,
        HoldState::Voided => VOIDED,
    }
}

/// What [`state_number`] gave.
pub(crate) const fn state_of(number: i64) -> Option<HoldState> {
    match number {
        PENDING => Some(HoldState::Pending),
        POSTED => Some(HoldState::Posted),
        VOIDED => Some(HoldState::Voided),
        _ => None,
    }
}

/// What an entry's numbers stand for.
pub(crate) trait Numbers {
    type Error;
    fn word(&mut self, text: &str) -> Result<u64, Self::Error>;
}

/// What numbers in an entry mean.
pub(crate) trait Names {
    fn word(&mut self, no: u64) -> Result<Cow<'static, str>, String>;
    fn account(&mut self, no: u64) -> Result<AccountId, String>;
}

/// The blob of an entry. `accounts` are those it changes, with their numbers and the entries that
/// changed them before.
pub(crate) fn encode<N: Numbers>(
    entry: &Entry,
    accounts: &[(AccountId, u64, u64)],
    numbers: &mut N,
) -> Result<Vec<u8>, N::Error> {
    let mut out = Writer(Vec::with_capacity(1024));
    out.0.push(VERSION);
    out.number(numbers.word(&entry.name)?);
    match &entry.key {
        None => out.0.push(0),
        Some(key) => {
            out.0.push(1);
            out.text(&key.scope);
            out.number(numbers.word(&key.family)?);
            out.text(&key.name);
            out.0.extend(key.fingerprint.0);
            out.text(key.bound.as_deref().unwrap_or_default());
        }
    }
    out.length(accounts.len());
    for (_, no, before) in accounts {
        out.number(*no);
        // As a distance, which is small on a busy account; 0 for none.
        out.number(if *before == 0 { 0 } else { entry.seq.saturating_sub(*before) });
    }
    out.length(entry.ops.len());
    for op in &entry.ops {
        out.op(op, accounts);
    }
    out.length(entry.puts.len());
    for put in &entry.puts {
        out.number(numbers.word(&put.kind)?);
        out.text(&put.id);
        out.0.extend(put.digest);
    }
    out.length(entry.events.len());
    for event in &entry.events {
        out.number(numbers.word(&event.kind)?);
        out.length(event.audience.len());
        for who in &event.audience {
            out.text(who);
        }
        out.text(&event.data);
    }
    Ok(out.0)
}

struct Writer(Vec<u8>);

impl Writer {
    /// Seven bits a byte, the lowest first.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.0.push(number.to_le_bytes()[0]);
    }

    fn length(&mut self, length: usize) {
        self.number(u64::try_from(length).unwrap_or(u64::MAX));
    }

    fn amount(&mut self, amount: Micros) {
        self.number(amount.get().unsigned_abs());
    }

    /// 0 and the 19 bytes of an id, or the length and one, and the text.
    fn text(&mut self, text: &str) {
        match Packed::new(text) {
            Packed::Id(bytes) => {
                self.0.push(0);
                self.0.extend(bytes);
            }
            Packed::Text(text) => {
                self.length(text.len().saturating_add(1));
                self.0.extend(text.as_bytes());
            }
        }
    }

    fn op(&mut self, op: &Op, accounts: &[(AccountId, u64, u64)]) {
        let tag = match op {
            Op::Move { .. } => 0,
            Op::Hold { .. } => 1,
            Op::Post { .. } => 2,
            Op::Void { .. } => 3,
        };
        self.0.push(tag);
        self.0.extend(op.id().value().to_be_bytes());
        match op {
            Op::Move { cause, legs, .. } | Op::Hold { cause, legs, .. } => {
                let place = Cause::ALL.iter().position(|known| known == cause);
                self.length(place.unwrap_or(usize::MAX));
                self.length(legs.len());
                for leg in legs {
                    self.leg(leg, accounts);
                }
            }
            Op::Post { amounts, .. } => {
                self.length(amounts.len());
                for amount in amounts {
                    self.amount(*amount);
                }
            }
            Op::Void { .. } => {}
        }
    }

    fn leg(&mut self, leg: &Leg, accounts: &[(AccountId, u64, u64)]) {
        for account in [leg.debit, leg.credit] {
            // An applied leg changes both its accounts, so both are there.
            let place = accounts.iter().position(|(id, ..)| *id == account);
            self.length(place.unwrap_or(usize::MAX));
        }
        self.amount(leg.amount);
        // 0 for no room, else the room and one.
        self.number(leg.room.map_or(0, |room| room.get().unsigned_abs().saturating_add(1)));
    }
}

/// Reads the blob of an entry back.
pub(crate) fn decode(
    seq: u64,
    at: Timestamp,
    hash: [u8; 32],
    blob: &[u8],
    names: &mut impl Names,
) -> Result<LogEntry, String> {
    let mut from = Scanner(blob);
    let version = from.byte()?;
    if version != VERSION {
        return Err(format!("entry {seq} has form {version}"));
    }
    let name = names.word(from.number()?)?;
    let key = match from.byte()? {
        0 => None,
        _ => Some(KeyLine {
            scope: from.text()?,
            family: names.word(from.number()?)?,
            name: from.text()?,
            fingerprint: Fingerprint(from.array()?),
            bound: Some(from.text()?).filter(|bound| !bound.is_empty()),
        }),
    };
    let accounts = from.many(|from| {
        let id = names.account(from.number()?)?;
        let distance = from.number()?;
        Ok((id, if distance == 0 { 0 } else { seq.saturating_sub(distance) }))
    })?;
    let ops = from.many(|from| from.op(&accounts))?;
    let puts = from.many(|from| {
        let kind = names.word(from.number()?)?;
        Ok(PutLine { kind, id: from.text()?, digest: from.array()? })
    })?;
    let events = from.many(|from| {
        let kind = names.word(from.number()?)?.into_owned();
        let audience = from.many(Scanner::text)?;
        Ok(EventLine { kind, audience, data: from.text()? })
    })?;
    if !from.0.is_empty() {
        return Err(format!("entry {seq} has {} bytes too many", from.0.len()));
    }
    let entry = Entry { seq, at, name, key, ops, puts, events };
    Ok(LogEntry { entry, hash, accounts })
}

struct Scanner<'a>(&'a [u8]);

impl Scanner<'_> {
    fn byte(&mut self) -> Result<u8, String> {
        let (first, rest) = self.0.split_first().ok_or("entry ends early")?;
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64, String> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number is too long".to_owned())
    }

    fn length(&mut self) -> Result<usize, String> {
        usize::try_from(self.number()?).map_err(|why| why.to_string())
    }

    fn take(&mut self, length: usize) -> Result<&[u8], String> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or("entry ends early")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.0.split_first_chunk().ok_or("entry ends early")?;
        self.0 = rest;
        Ok(*taken)
    }

    fn text(&mut self) -> Result<String, String> {
        match self.length()? {
            0 => {
                let packed = Packed::of_bytes(self.take(19)?).ok_or("not an id")?;
                Ok(packed.text())
            }
            length => {
                let bytes = self.take(length.saturating_sub(1))?.to_vec();
                String::from_utf8(bytes).map_err(|why| why.to_string())
            }
        }
    }

    fn amount(&mut self) -> Result<Micros, String> {
        let micros = i64::try_from(self.number()?).map_err(|why| why.to_string())?;
        Micros::new(micros).map_err(|why| why.to_string())
    }

    fn many<T>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let count = self.length()?;
        // Everything takes at least a byte, so a false count cannot make us reserve the world.
        let mut all = Vec::with_capacity(count.min(self.0.len()));
        for _ in 0..count {
            all.push(one(self)?);
        }
        Ok(all)
    }

    fn op(&mut self, accounts: &[(AccountId, u64)]) -> Result<Op, String> {
        let tag = self.byte()?;
        let id = TransferId::from_value(u128::from_be_bytes(self.array()?));
        match tag {
            0 | 1 => {
                let cause = *Cause::ALL.get(self.length()?).ok_or("not a cause")?;
                let legs = self.many(|from| from.leg(accounts))?;
                Ok(if tag == 0 {
                    Op::Move { id, cause, legs }
                } else {
                    Op::Hold { id, cause, legs }
                })
            }
            2 => Ok(Op::Post { id, amounts: self.many(Self::amount)? }),
            3 => Ok(Op::Void { id }),
            _ => Err(format!("{tag} is not an operation")),
        }
    }

    fn leg(&mut self, accounts: &[(AccountId, u64)]) -> Result<Leg, String> {
        let mut account = || {
            let (id, _) = accounts.get(self.length()?).ok_or("not an account of the entry")?;
            Ok::<_, String>(*id)
        };
        let (debit, credit) = (account()?, account()?);
        let amount = self.amount()?;
        let room = match self.number()? {
            0 => None,
            more => {
                let room = i64::try_from(more.saturating_sub(1)).map_err(|why| why.to_string())?;
                Some(Micros::new(room).map_err(|why| why.to_string())?)
            }
        };
        Ok(Leg { debit, credit, amount, room })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earnest_core::id::{AgentId, OwnerId};
    use earnest_core::ledger::{Account, Subject, Window};

    #[derive(Default)]
    struct Book(Vec<String>, Vec<AccountId>);

    impl Numbers for Book {
        type Error = String;
        fn word(&mut self, text: &str) -> Result<u64, String> {
            let known = self.0.iter().position(|word| word == text);
            let place = known.unwrap_or_else(|| {
                self.0.push(text.to_owned());
                self.0.len() - 1
            });
            Ok(place as u64)
        }
    }

    impl Names for Book {
        fn word(&mut self, no: u64) -> Result<Cow<'static, str>, String> {
            Ok(self.0[no as usize].clone().into())
        }
        fn account(&mut self, no: u64) -> Result<AccountId, String> {
            Ok(self.1[no as usize])
        }
    }

    fn full() -> (Entry, Vec<(AccountId, u64, u64)>) {
        let agent = Subject::Agent(AgentId::from_value(u128::MAX));
        let day = Window::Day("2026-11-30".parse().unwrap());
        let accounts = [
            Account::Memo.usd(),
            Account::Limit(agent, day).usd(),
            Account::OwnerCredit(OwnerId::from_value(9)).usd(),
        ];
        let all = accounts.iter().enumerate();
        let all = all.map(|(no, id)| (*id, no as u64, if no == 1 { 0 } else { 3 })).collect();
        let legs = |amount| {
            vec![
                Leg::new(accounts[1], accounts[0], Micros::constant(amount)).within(Micros::MAX),
                Leg::new(accounts[0], accounts[2], Micros::MAX).within(Micros::ZERO),
            ]
        };
        let id = TransferId::from_value;
        let mut ops: Vec<Op> = Cause::ALL
            .iter()
            .enumerate()
            .map(|(n, cause)| Op::Hold { id: id(n as u128), cause: *cause, legs: legs(7) })
            .collect();
        ops.push(Op::Move { id: id(1 << 100), cause: Cause::Carry, legs: legs(1) });
        ops.push(Op::Post { id: id(5), amounts: vec![Micros::ZERO, Micros::MAX] });
        ops.push(Op::Void { id: id(6) });
        let entry = Entry {
            seq: 300,
            at: Timestamp::from_microsecond(1_790_000_000_123_456).unwrap(),
            name: "authorize".into(),
            key: Some(KeyLine {
                scope: "agt_00000000000000000000000001".into(),
                family: "purchase".into(),
                name: "ünïcode and \0 bytes".into(),
                fingerprint: Fingerprint::of(&[b"x"]),
                bound: Some("pur_00000000000000000000000002".into()),
            }),
            ops,
            puts: vec![PutLine { kind: "purchase".into(), id: "p".into(), digest: [7; 32] }],
            events: vec![EventLine {
                kind: "purchase.held".into(),
                audience: vec!["own_00000000000000000000000003".into(), String::new()],
                data: "{\"a\":1}".into(),
            }],
        };
        (entry, all)
    }

    #[test]
    fn reads_back_what_it_writes() {
        let (entry, accounts) = full();
        let mut book = Book(vec![], accounts.iter().map(|(id, ..)| *id).collect());
        let blob = encode(&entry, &accounts, &mut book).unwrap();
        let found = decode(entry.seq, entry.at, [1; 32], &blob, &mut book).unwrap();
        assert_eq!(found.entry, entry);
        let before: Vec<_> = accounts.iter().map(|(id, _, before)| (*id, *before)).collect();
        assert_eq!(found.accounts, before);
    }

    #[test]
    fn a_cut_or_altered_blob_is_refused_or_reads_as_something_else() {
        let (entry, accounts) = full();
        let mut book = Book(vec![], accounts.iter().map(|(id, ..)| *id).collect());
        let blob = encode(&entry, &accounts, &mut book).unwrap();
        book.0.resize(256, String::new());
        book.1.resize(1 << 16, accounts[0].0);
        for length in 0..blob.len() {
            let cut = decode(entry.seq, entry.at, [1; 32], &blob[..length], &mut book);
            assert!(cut.is_err(), "{length} bytes");
        }
        let longer = [blob.as_slice(), &[0]].concat();
        assert!(decode(entry.seq, entry.at, [1; 32], &longer, &mut book).is_err());
    }

    #[test]
    fn packed_ids_sort_as_their_texts() {
        let mut ids: Vec<String> =
            (0..64_u32).map(|n| AgentId::from_value(1 << (n * 2)).to_string()).collect();
        ids.sort();
        let packed: Vec<Packed> = ids.iter().map(|id| Packed::new(id)).collect();
        assert!(packed.is_sorted());
        assert_eq!(packed.iter().map(Packed::text).collect::<Vec<_>>(), ids);
        assert!(Packed::of_bytes(&[0; 19]).is_none());
        assert!(Packed::of_bytes(b"own").is_none());
    }
}
