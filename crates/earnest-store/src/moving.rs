//! Moving books to another place, whole: everything that is stored, byte for byte, in one order.
//!
//! The old place is held as the one writer while its books are copied and compared, so nothing can
//! come between. Then, in this order, each step durable before the next:
//!
//! 1. the copy is committed, marked *arriving*: nobody opens it;
//! 2. the old books are marked *moved*, in their last commit: nobody writes them again;
//! 3. the mark of the copy is taken off.
//!
//! Whatever ends in between leaves the old books as they were (before 2), or a copy that needs only
//! its mark taken off (after 2), which is what moving again then does.

use crate::backend::KeyAddress;
use crate::read::{AccountRow, ChainRow, Source};
use crate::{Head, ReadError};

type Read<T> = Result<T, ReadError>;

/// How many rows are taken at once.
const MANY: usize = 2_000;

/// An entry as it is stored; its body is the same in every place, since the numbers in it are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawEntry {
    pub(crate) seq: u64,
    pub(crate) at: i64,
    pub(crate) hash: [u8; 32],
    pub(crate) body: Vec<u8>,
}

/// A row as it is stored, its kind a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawRow {
    pub(crate) kind: u64,
    pub(crate) id: String,
    pub(crate) body: Vec<u8>,
}

/// A place in a list as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawPlace {
    pub(crate) list: u64,
    pub(crate) kind: u64,
    pub(crate) scope: String,
    pub(crate) at: String,
    pub(crate) id: String,
}

/// Some rows of one table, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Words(Vec<(u64, String)>),
    Accounts(Vec<AccountRow>),
    Log(Vec<RawEntry>),
    Chains(Vec<ChainRow>),
    Rows(Vec<RawRow>),
    Places(Vec<RawPlace>),
    Keys(Vec<(KeyAddress, u64)>),
}

/// Tables as they are stored.
pub(crate) trait Raw: Source {
    fn words(&self, after: u64, limit: usize) -> Read<Vec<(u64, String)>>;
    fn raw_entries(&self, after: u64, limit: usize) -> Read<Vec<RawEntry>>;
    fn raw_rows(&self, after: Option<&RawRow>, limit: usize) -> Read<Vec<RawRow>>;
    fn raw_places(&self, after: Option<&RawPlace>, limit: usize) -> Read<Vec<RawPlace>>;
    fn raw_keys(&self, after: Option<KeyAddress>, limit: usize) -> Read<Vec<(KeyAddress, u64)>>;
}

/// Where a copy is made: empty when it begins, and open to nobody until [`Sink::arrive`].
pub(crate) trait Sink: Send {
    fn write(&mut self, part: &Part) -> Result<(), String>;
    /// Commits the copy, which is still marked.
    fn commit(&mut self, head: &Head, words: u64) -> Result<(), String>;
    /// The copy as committed.
    fn copied(&self) -> &dyn Raw;
    /// Takes the mark off: from now on these are the books.
    fn arrive(&mut self) -> Result<(), String>;
}

/// Goes through everything that is stored, some rows at a time.
struct Parts<'a> {
    from: &'a dyn Raw,
    last: Option<Part>,
}

impl<'a> Parts<'a> {
    fn of(from: &'a dyn Raw) -> Self {
        Self { from, last: None }
    }

    fn next(&mut self) -> Read<Option<Part>> {
        let from = self.from;
        // The tables in turn: an empty part ends one and begins the next.
        let next = match &self.last {
            None => Part::Words(from.words(0, MANY)?),
            Some(Part::Words(of)) => match of.last() {
                Some((no, _)) => Part::Words(from.words(*no, MANY)?),
                None => Part::Accounts(from.accounts(0, MANY)?),
            },
            Some(Part::Accounts(of)) => match of.last() {
                Some(row) => Part::Accounts(from.accounts(row.no, MANY)?),
                None => Part::Log(from.raw_entries(0, MANY)?),
            },
            Some(Part::Log(of)) => match of.last() {
                Some(entry) => Part::Log(from.raw_entries(entry.seq, MANY)?),
                None => Part::Chains(from.chains(None, MANY)?),
            },
            Some(Part::Chains(of)) => match of.last() {
                Some(row) => Part::Chains(from.chains(Some(row.id), MANY)?),
                None => Part::Rows(from.raw_rows(None, MANY)?),
            },
            Some(Part::Rows(of)) => match of.last() {
                Some(row) => Part::Rows(from.raw_rows(Some(row), MANY)?),
                None => Part::Places(from.raw_places(None, MANY)?),
            },
            Some(Part::Places(of)) => match of.last() {
                Some(place) => Part::Places(from.raw_places(Some(place), MANY)?),
                None => Part::Keys(from.raw_keys(None, MANY)?),
            },
            Some(Part::Keys(of)) => match of.last() {
                Some((address, _)) => Part::Keys(from.raw_keys(Some(*address), MANY)?),
                None => return Ok(None),
            },
        };
        self.last = Some(next);
        Ok(self.last.clone())
    }
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Entries of the log.
    pub entries: u64,
    /// Accounts.
    pub accounts: u64,
    /// Rows.
    pub rows: u64,
}

/// Copies everything and commits it, still marked; then reads both sides again and compares them.
pub(crate) fn copy_and_compare(from: &dyn Raw, to: &mut dyn Sink) -> Result<Copied, String> {
    let text = |why: ReadError| why.to_string();
    let mut copied = Copied::default();
    let mut words = 0;
    let mut parts = Parts::of(from);
    while let Some(part) = parts.next().map_err(text)? {
        let count = |rows: usize| u64::try_from(rows).unwrap_or(u64::MAX);
        match &part {
            Part::Words(of) => words = of.last().map_or(words, |(no, _)| *no),
            Part::Log(of) => copied.entries = copied.entries.saturating_add(count(of.len())),
            Part::Accounts(of) => copied.accounts = copied.accounts.saturating_add(count(of.len())),
            Part::Rows(of) => copied.rows = copied.rows.saturating_add(count(of.len())),
            Part::Chains(_) | Part::Places(_) | Part::Keys(_) => {}
        }
        to.write(&part)?;
    }
    let head = from.head().map_err(text)?;
    to.commit(&head, words)?;
    let (mut ours, mut theirs) = (Parts::of(from), Parts::of(to.copied()));
    loop {
        let (our, their) = (ours.next().map_err(text)?, theirs.next().map_err(text)?);
        if our != their {
            return Err("the copy differs from what was copied".to_owned());
        }
        if our.is_none() {
            break;
        }
    }
    if to.copied().head().map_err(text)? != head {
        return Err("the copy ends elsewhere".to_owned());
    }
    Ok(copied)
}
