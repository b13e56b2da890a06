//! What an engine needs of the place the books are kept in; everything that differs between
//! memory, SQLite and PostgreSQL is behind it.

use std::borrow::Cow;
use std::time::Duration;

use foldhash::HashMap;

use earnest_core::entry::{Entry, KeyLine};
use earnest_core::ledger::{AccountId, Hold};
use earnest_core::time::Timestamp;
use earnest_core::unit::{Key, RowKey};
use earnest_core::{id::TransferId, ledger::Totals};
use sha2::{Digest, Sha256};

use crate::Head;
use crate::layer::{DirtyRow, Slot};
use crate::moving::Raw;

/// Where a key stands: half of the SHA-256 of its scope, family and name. The names themselves
/// stand in the log, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeyAddress(pub(crate) [u8; 16]);

impl KeyAddress {
    pub(crate) fn new(scope: &str, family: &str, name: &str) -> Self {
        let mut hash = Sha256::new();
        for part in [scope, family, name] {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let mut address = [0; 16];
        let digest: [u8; 32] = hash.finalize().into();
        for (to, from) in address.iter_mut().zip(digest) {
            *to = from;
        }
        Self(address)
    }

    pub(crate) fn of(key: &Key) -> Self {
        Self::new(&key.scope, key.family, &key.name)
    }

    pub(crate) fn of_line(key: &KeyLine) -> Self {
        Self::new(&key.scope, &key.family, &key.name)
    }
}

/// Why a read or a write of one unit failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Only this unit; the transaction around it stands.
    Unit(String),
    /// The whole transaction is gone, or must go.
    Whole(String),
    /// The whole transaction is gone, and would go well if it were run again.
    Again(String),
    /// The place lost what it had acknowledged: nothing may be written, or answered, any more.
    Regressed(String),
    /// The books were moved to another place, which is named.
    Moved(String),
}

impl Fault {
    /// In words.
    pub(crate) fn why(self) -> String {
        match self {
            Self::Unit(why) | Self::Whole(why) | Self::Again(why) | Self::Regressed(why) => why,
            Self::Moved(to) => format!("these books were moved to {to}"),
        }
    }
}

/// Why a batch was not committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommitFault {
    /// Something that one of the units wrote cannot be written; rolled back. Units run alone will
    /// tell which.
    Poison(String),
    /// The place itself fails (full, broken); rolled back.
    Whole(String),
    /// Rolled back, and would go well if it were run again.
    Again(String),
    /// COMMIT itself failed: it may be on disk or not. Memory must be read again.
    Unknown(String),
}

/// One unit, ready to be recorded.
pub(crate) struct Recorded<'a> {
    pub(crate) entry: &'a Entry,
    pub(crate) hash: [u8; 32],
    /// The accounts it changes: their numbers, and the entry that changed each before.
    pub(crate) accounts: &'a [(AccountId, u64, u64)],
    /// Where its key stands, when the entry has one.
    pub(crate) key: Option<KeyAddress>,
}

/// What a batch changed beside its entries; each is written once, however often it changed.
pub(crate) struct Dirty<'a> {
    pub(crate) accounts: &'a HashMap<AccountId, Slot>,
    pub(crate) rows: &'a HashMap<RowKey, DirtyRow>,
}

/// A batch that may be run now.
pub(crate) struct Begun {
    /// The time, where the place has a clock of its own.
    pub(crate) now: Option<Timestamp>,
    /// The end of the log.
    pub(crate) head: Head,
    /// What others committed since we last looked.
    pub(crate) foreign: Foreign,
}

/// What others wrote.
pub(crate) enum Foreign {
    /// Nothing.
    None,
    /// This.
    Some(Changed),
    /// So much that all was read again.
    Many(Recovered),
}

/// What changed, and what of it must be known: totals, as every account is kept in memory.
#[derive(Default)]
pub(crate) struct Changed {
    pub(crate) accounts: Vec<(AccountId, Slot)>,
    /// Kind and id.
    pub(crate) rows: Vec<(Cow<'static, str>, String)>,
    pub(crate) holds: Vec<TransferId>,
}

/// What a batch will ask for, as far as that is known.
#[derive(Default)]
pub(crate) struct Want {
    pub(crate) keys: Vec<KeyAddress>,
    pub(crate) rows: Vec<RowKey>,
    pub(crate) holds: Vec<TransferId>,
}

impl Want {
    pub(crate) const fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.rows.is_empty() && self.holds.is_empty()
    }
}

/// What is kept in memory, as read from the books.
pub(crate) struct Recovered {
    pub(crate) accounts: Vec<(AccountId, Slot)>,
    pub(crate) head: Head,
}

impl Recovered {
    /// Cheap checks that must hold of any books; `audit` makes the thorough ones.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut sums = HashMap::default();
        for (id, slot) in &self.accounts {
            if slot.last_seq > self.head.seq {
                return Err(format!("`{id}` changed after the end of the log"));
            }
            let sum: &mut [i128; 2] = sums.entry(id.currency).or_default();
            let Totals { debits_pending, debits_posted, credits_pending, credits_posted } =
                slot.totals;
            let [pending, posted] = sum;
            *pending += i128::from(debits_pending.get()) - i128::from(credits_pending.get());
            *posted += i128::from(debits_posted.get()) - i128::from(credits_posted.get());
        }
        // INVARIANT: debits_equal_credits
        match sums.iter().find(|(_, sum)| **sum != [0, 0]) {
            Some((currency, sum)) => Err(format!("debits less credits in {currency}: {sum:?}")),
            None => Ok(()),
        }
    }
}

/// The place the books are kept in.
///
/// Reads see what was committed; what a running batch changed is looked up in its layer first.
pub(crate) trait Backend: Send + 'static {
    fn key(&mut self, address: KeyAddress) -> Result<Option<KeyLine>, Fault>;
    fn row(&mut self, key: &RowKey) -> Result<Option<Vec<u8>>, Fault>;
    fn hold(&mut self, id: TransferId) -> Result<Option<Hold>, Fault>;

    /// Whether a batch may start; says why not. A place for housekeeping between batches.
    /// Whether every read costs a round trip, so that it pays to ask for much at once.
    fn is_remote(&self) -> bool {
        false
    }
    /// Reads ahead what the running batch will ask for.
    fn fetch(&mut self, _want: &Want) -> Result<(), Fault> {
        Ok(())
    }

    /// How long the log may go unlooked at while nothing is written here, since others may write
    /// it; `None` where nobody else can.
    fn follow_every(&self) -> Option<Duration> {
        None
    }
    /// The last place taken in the log by anybody, without waiting for whoever writes; or that the
    /// books were moved.
    fn end(&mut self) -> Result<u64, Fault> {
        Err(Fault::Whole("nobody else writes here".to_owned()))
    }

    fn ready(&mut self) -> Result<(), String>;
    /// Begins a batch as the one writer. `known` is the end of the log as we know it.
    fn begin(&mut self, known: &Head) -> Result<Begun, Fault>;
    /// Writes one unit within its own savepoint: wholly, or not at all.
    fn record(&mut self, unit: &Recorded<'_>) -> Result<(), Fault>;
    /// Writes what is dirty and commits durably.
    fn commit(&mut self, dirty: &Dirty<'_>) -> Result<(), CommitFault>;
    fn rollback(&mut self);
    /// Whether the batch that ended in `end` was committed, after its COMMIT failed. An error where
    /// that cannot be known from here.
    fn settled(&mut self, _end: &Head) -> Result<bool, String> {
        Err("only reading the books again can tell".to_owned())
    }
    /// Reads everything that is kept in memory again, from what is really there.
    fn recover(&mut self) -> Result<Recovered, String>;
    /// Everything that is stored, for a copy, while a batch is begun.
    fn raw(&mut self) -> Result<&dyn Raw, Fault> {
        Err(Fault::Whole("books in memory cannot be moved".to_owned()))
    }
    /// Commits, in place of a batch, that the books were moved: the last that is ever committed.
    fn mark_moved(&mut self, _to: &str) -> Result<(), Fault> {
        Err(Fault::Whole("books in memory cannot be moved".to_owned()))
    }
    /// The last act: leaves the books in good order.
    fn close(&mut self);
}
