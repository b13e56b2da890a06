//! A disk in memory that forgets what was not synced: what a machine that stops leaves behind.
//!
//! A file has what is seen (the cache of the system) and what is kept (the platter). A write is
//! seen at once and kept from the next sync on. When the power goes, each write that was not synced
//! is kept, dropped or torn, by chance and in no order; names that were made or removed without a
//! sync of their folder may be there or not. A sync that fails has lost what it was to write: it is
//! seen until the power goes, and no later sync writes it.
//!
//! Knows files, locks and the pages that connections share, not SQLite's functions: those are
//! [`crate::vfs`].

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::ffi;

use crate::Random;

/// What a sector is: the least that is written whole.
const SECTOR: usize = 512;

/// SQLite's codes, as its functions give them.
pub(crate) type Code = std::ffi::c_int;

/// What is to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The machine stops, in the middle of what it writes.
    PowerCut,
    /// A write fails, half done.
    WriteFails,
    /// A sync fails, and loses what it was to write.
    SyncFails,
    /// A read fails.
    ReadFails,
    /// No file grows any more, until [`Disk::calm`].
    Full,
}

/// A file that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Handle(u64);

/// A page that connections share, as SQLite's write-ahead log does; 32 KiB. Its cells may be
/// written through a pointer.
pub(crate) type Region = Arc<[AtomicU64]>;

/// The disk: what it holds survives the machine.
#[derive(Debug)]
pub struct Disk(Mutex<State>);

#[derive(Debug)]
struct State {
    random: Random,
    /// By name; those without a name are gone when they are closed.
    names: BTreeMap<String, Inode>,
    files: BTreeMap<Inode, File>,
    /// Removed, but not for good until the folder is synced.
    ghosts: Vec<(String, Inode)>,
    open: BTreeMap<Handle, Open>,
    shared: BTreeMap<Inode, Vec<Region>>,
    numbered: u64,
    armed: Option<(u64, Trouble)>,
    full: bool,
    dead: bool,
    troubles: u64,
    operations: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Inode(u64);

#[derive(Debug, Default)]
struct File {
    seen: Vec<u8>,
    kept: Vec<u8>,
    unsynced: Vec<Change>,
    /// Whether its name is on the platter.
    named: bool,
}

#[derive(Debug)]
enum Change {
    Write {
        at: usize,
        bytes: Vec<u8>,
        /// Whether a sync that failed let it go.
        lost: bool,
    },
    Cut(usize),
}

#[derive(Debug)]
struct Open {
    inode: Inode,
    name: Option<String>,
    lock: Code,
    /// Slots of the shared pages that it has for itself, and with others, as bits.
    exclusive: u8,
    with_others: u8,
    /// Whether it uses the shared pages.
    shares: bool,
}

impl File {
    fn apply(bytes: &mut Vec<u8>, change: &Change) {
        match change {
            Change::Cut(length) => bytes.truncate(*length),
            Change::Write { at, bytes: new, .. } => put(bytes, *at, new),
        }
    }

    /// What is seen is kept, but for what an earlier sync lost.
    fn sync(&mut self) {
        let all = std::mem::take(&mut self.unsynced);
        for change in all {
            if matches!(change, Change::Write { lost: true, .. }) {
                self.unsynced.push(change);
            } else {
                Self::apply(&mut self.kept, &change);
            }
        }
    }

    /// What a sync that fails does: what it was to write is taken for written.
    fn lose(&mut self) {
        for change in &mut self.unsynced {
            if let Change::Write { lost, .. } = change {
                *lost = true;
            }
        }
    }

    /// The power goes: some of what was not synced is there, in part.
    fn settle(&mut self, random: &mut Random) {
        let mood = random.below(4);
        for change in std::mem::take(&mut self.unsynced) {
            match (mood, &change) {
                (0, _) | (_, Change::Write { lost: true, .. }) => {}
                (1, _) => Self::apply(&mut self.kept, &change),
                (_, Change::Cut(_)) => {
                    if random.one_in(2) {
                        Self::apply(&mut self.kept, &change);
                    }
                }
                (_, Change::Write { at, bytes, .. }) => match random.below(3) {
                    0 => {}
                    1 => put(&mut self.kept, *at, bytes),
                    _ => tear(&mut self.kept, *at, bytes, random),
                },
            }
        }
        self.seen.clone_from(&self.kept);
    }
}

fn put(into: &mut Vec<u8>, at: usize, new: &[u8]) {
    let end = at + new.len();
    if into.len() < end {
        into.resize(end, 0);
    }
    into[at..end].copy_from_slice(new);
}

/// Writes some sectors of it.
fn tear(into: &mut Vec<u8>, at: usize, new: &[u8], random: &mut Random) {
    for (nth, sector) in new.chunks(SECTOR).enumerate() {
        if random.one_in(2) {
            put(into, at + nth * SECTOR, sector);
        }
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.numbered += 1;
        self.numbered
    }

    fn file(&mut self, handle: Handle) -> Result<&mut File, Code> {
        let inode = self.open.get(&handle).ok_or(ffi::SQLITE_IOERR)?.inode;
        self.files.get_mut(&inode).ok_or(ffi::SQLITE_IOERR)
    }

    /// Counts an operation; gives the trouble whose time has come.
    fn operate(&mut self, fits: impl Fn(Trouble) -> bool) -> Result<Option<Trouble>, Code> {
        if self.dead {
            return Err(ffi::SQLITE_IOERR);
        }
        self.operations += 1;
        let Some((after, trouble)) = &mut self.armed else { return Ok(None) };
        *after = after.saturating_sub(1);
        let trouble = *trouble;
        if *after > 0 || !fits(trouble) {
            return Ok(None);
        }
        self.armed = None;
        self.troubles += 1;
        match trouble {
            Trouble::PowerCut => self.dead = true,
            Trouble::Full => self.full = true,
            _ => {}
        }
        Ok(Some(trouble))
    }

    fn write(&mut self, handle: Handle, bytes: &[u8], at: usize) -> Result<(), Code> {
        let writing =
            |trouble| matches!(trouble, Trouble::PowerCut | Trouble::WriteFails | Trouble::Full);
        let trouble = self.operate(writing)?;
        let done = match trouble {
            Some(Trouble::PowerCut | Trouble::WriteFails) => self.random.place(bytes.len() + 1),
            _ => bytes.len(),
        };
        let full = self.full;
        let file = self.file(handle)?;
        if full && at + bytes.len() > file.seen.len() {
            return Err(ffi::SQLITE_FULL);
        }
        let bytes = bytes[..done].to_vec();
        put(&mut file.seen, at, &bytes);
        file.unsynced.push(Change::Write { at, bytes, lost: false });
        match trouble {
            Some(Trouble::PowerCut | Trouble::WriteFails) => Err(ffi::SQLITE_IOERR_WRITE),
            _ => Ok(()),
        }
    }

    fn sync(&mut self, handle: Handle) -> Result<(), Code> {
        let trouble =
            self.operate(|trouble| matches!(trouble, Trouble::PowerCut | Trouble::SyncFails))?;
        let name = self.open.get(&handle).and_then(|open| open.name.clone());
        let file = self.file(handle)?;
        match trouble {
            Some(Trouble::SyncFails) => {
                file.lose();
                return Err(ffi::SQLITE_IOERR_FSYNC);
            }
            Some(_) => return Err(ffi::SQLITE_IOERR_FSYNC),
            None => {}
        }
        file.sync();
        // A file that is new is synced with its folder, as SQLite does where it has to.
        if name.is_some() && !std::mem::replace(&mut file.named, true) {
            self.ghosts.clear();
        }
        Ok(())
    }

    fn delete(&mut self, name: &str, sync_folder: bool) -> Result<(), Code> {
        let trouble = self.operate(|trouble| trouble == Trouble::PowerCut)?;
        let inode = self.names.remove(name).ok_or(ffi::SQLITE_IOERR_DELETE_NOENT)?;
        self.ghosts.push((name.to_owned(), inode));
        if trouble.is_some() {
            return Err(ffi::SQLITE_IOERR_DELETE);
        }
        if sync_folder {
            self.ghosts.clear();
        }
        Ok(())
    }

    fn power_on(&mut self) {
        self.dead = false;
        self.full = false;
        self.armed = None;
        self.open.clear();
        self.shared.clear();
        for (name, inode) in std::mem::take(&mut self.ghosts) {
            if self.random.one_in(2) {
                self.names.entry(name).or_insert(inode);
            }
        }
        for inode in self.names.values() {
            if let Some(file) = self.files.get_mut(inode) {
                file.settle(&mut self.random);
            }
        }
        let (files, random) = (&mut self.files, &mut self.random);
        self.names.retain(|_, inode| {
            let named = files.get(inode).is_some_and(|file| file.named);
            named || random.one_in(2)
        });
        let named: Vec<Inode> = self.names.values().copied().collect();
        self.files.retain(|inode, file| {
            file.named = true;
            named.contains(inode)
        });
    }

    /// Takes a lock on a file, as SQLite's five levels of it.
    fn lock(&mut self, handle: Handle, want: Code) -> Result<(), Code> {
        if self.dead {
            return Err(ffi::SQLITE_IOERR_LOCK);
        }
        let mine = self.open.get(&handle).ok_or(ffi::SQLITE_IOERR_LOCK)?;
        let (inode, have) = (mine.inode, mine.lock);
        if have >= want {
            return Ok(());
        }
        let others =
            self.open.iter().filter(|(other, open)| **other != handle && open.inode == inode);
        let highest = others.map(|(_, open)| open.lock).max().unwrap_or(ffi::SQLITE_LOCK_NONE);
        let granted = match want {
            ffi::SQLITE_LOCK_SHARED => highest < ffi::SQLITE_LOCK_PENDING,
            ffi::SQLITE_LOCK_RESERVED => highest < ffi::SQLITE_LOCK_RESERVED,
            _ => highest == ffi::SQLITE_LOCK_NONE,
        };
        let pending =
            !granted && want == ffi::SQLITE_LOCK_EXCLUSIVE && highest == ffi::SQLITE_LOCK_SHARED;
        if let Some(mine) = self.open.get_mut(&handle) {
            if granted {
                mine.lock = want;
            } else if pending {
                mine.lock = ffi::SQLITE_LOCK_PENDING;
            }
        }
        if granted { Ok(()) } else { Err(ffi::SQLITE_BUSY) }
    }

    fn lock_shared(&mut self, handle: Handle, slots: u8, exclusive: bool) -> Result<(), Code> {
        if self.dead {
            return Err(ffi::SQLITE_IOERR_SHMLOCK);
        }
        let inode = self.open.get(&handle).ok_or(ffi::SQLITE_IOERR_SHMLOCK)?.inode;
        let others =
            self.open.iter().filter(|(other, open)| **other != handle && open.inode == inode);
        let (mut alone, mut together) = (0, 0);
        for (_, open) in others {
            alone |= open.exclusive;
            together |= open.with_others;
        }
        let taken = if exclusive { alone | together } else { alone };
        if taken & slots != 0 {
            return Err(ffi::SQLITE_BUSY);
        }
        if let Some(mine) = self.open.get_mut(&handle) {
            if exclusive {
                mine.exclusive |= slots;
            } else {
                mine.with_others |= slots;
            }
        }
        Ok(())
    }
}

/// For whoever breaks it.
impl Disk {
    /// An empty disk.
    pub(crate) fn new(random: Random) -> Self {
        Self(Mutex::new(State {
            random,
            names: BTreeMap::new(),
            files: BTreeMap::new(),
            ghosts: Vec::new(),
            open: BTreeMap::new(),
            shared: BTreeMap::new(),
            numbered: 0,
            armed: None,
            full: false,
            dead: false,
            troubles: 0,
            operations: 0,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets something go wrong at the first operation that it fits, so many from now.
    pub fn arm(&self, after: u64, trouble: Trouble) {
        self.state().armed = Some((after, trouble));
    }

    /// Nothing goes wrong any more, and there is room again. A machine that stopped stays so.
    pub fn calm(&self) {
        let mut state = self.state();
        state.armed = None;
        state.full = false;
    }

    /// Whether the machine has stopped.
    pub fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// The machine stops.
    pub fn stop(&self) {
        self.state().dead = true;
    }

    /// Whoever has files open has them no more, as when a process ends: what was written is there.
    pub fn let_go(&self) {
        let mut state = self.state();
        state.open.clear();
        state.shared.clear();
    }

    /// The machine stops, if it has not, and starts again: what was not synced is kept, dropped or
    /// torn. What was open stays of no use.
    pub fn power_cycle(&self) {
        let mut state = self.state();
        state.dead = true;
        state.power_on();
    }

    /// How many operations there were, and how often something went wrong.
    pub fn counted(&self) -> (u64, u64) {
        let state = self.state();
        (state.operations, state.troubles)
    }
}

/// For SQLite, through [`crate::vfs`].
impl Disk {
    /// Opens a file; without a name, one that is gone when it is closed.
    pub(crate) fn open(&self, name: Option<&str>, create: bool) -> Result<Handle, Code> {
        let mut state = self.state();
        if state.dead {
            return Err(ffi::SQLITE_CANTOPEN);
        }
        let known = name.and_then(|name| state.names.get(name).copied());
        let inode = match known {
            Some(inode) => inode,
            None if name.is_some() && !create => return Err(ffi::SQLITE_CANTOPEN),
            None => {
                let inode = Inode(state.number());
                state.files.insert(inode, File::default());
                if let Some(name) = name {
                    state.names.insert(name.to_owned(), inode);
                }
                inode
            }
        };
        let handle = Handle(state.number());
        let open = Open {
            inode,
            name: name.map(str::to_owned),
            lock: ffi::SQLITE_LOCK_NONE,
            exclusive: 0,
            with_others: 0,
            shares: false,
        };
        state.open.insert(handle, open);
        Ok(handle)
    }

    pub(crate) fn close(&self, handle: Handle) {
        let mut state = self.state();
        if let Some(open) = state.open.remove(&handle)
            && open.name.is_none()
        {
            state.files.remove(&open.inode);
        }
    }

    /// Fills `into`, with zeros past the end; gives how much was there.
    pub(crate) fn read(&self, handle: Handle, into: &mut [u8], at: usize) -> Result<usize, Code> {
        let mut state = self.state();
        if state.operate(|trouble| trouble == Trouble::ReadFails)?.is_some() {
            return Err(ffi::SQLITE_IOERR_READ);
        }
        let file = state.file(handle)?;
        let there = file.seen.get(at..).unwrap_or_default();
        let length = there.len().min(into.len());
        into[..length].copy_from_slice(&there[..length]);
        into[length..].fill(0);
        Ok(length)
    }

    pub(crate) fn write(&self, handle: Handle, bytes: &[u8], at: usize) -> Result<(), Code> {
        self.state().write(handle, bytes, at)
    }

    pub(crate) fn truncate(&self, handle: Handle, length: usize) -> Result<(), Code> {
        let mut state = self.state();
        if state.operate(|trouble| trouble == Trouble::PowerCut)?.is_some() {
            return Err(ffi::SQLITE_IOERR_TRUNCATE);
        }
        let file = state.file(handle)?;
        file.seen.truncate(length);
        file.unsynced.push(Change::Cut(length));
        Ok(())
    }

    pub(crate) fn sync(&self, handle: Handle) -> Result<(), Code> {
        self.state().sync(handle)
    }

    pub(crate) fn length(&self, handle: Handle) -> Result<usize, Code> {
        let mut state = self.state();
        if state.dead {
            return Err(ffi::SQLITE_IOERR_FSTAT);
        }
        state.file(handle).map(|file| file.seen.len())
    }

    pub(crate) fn delete(&self, name: &str, sync_folder: bool) -> Result<(), Code> {
        self.state().delete(name, sync_folder)
    }

    pub(crate) fn exists(&self, name: &str) -> Result<bool, Code> {
        let state = self.state();
        if state.dead { Err(ffi::SQLITE_IOERR_ACCESS) } else { Ok(state.names.contains_key(name)) }
    }

    /// Writes a file again as it is seen, and syncs it, if it is there.
    pub(crate) fn rewrite(&self, name: &str) -> Result<(), Code> {
        if !self.exists(name)? {
            return Ok(());
        }
        let handle = self.open(Some(name), false)?;
        let mut state = self.state();
        let seen = state.file(handle)?.seen.clone();
        let written = state.write(handle, &seen, 0).and_then(|()| state.sync(handle));
        drop(state);
        self.close(handle);
        written
    }

    pub(crate) fn lock(&self, handle: Handle, want: Code) -> Result<(), Code> {
        self.state().lock(handle, want)
    }

    pub(crate) fn unlock(&self, handle: Handle, want: Code) {
        if let Some(open) = self.state().open.get_mut(&handle) {
            open.lock = open.lock.min(want);
        }
    }

    /// Whether anybody is about to write.
    pub(crate) fn is_reserved(&self, handle: Handle) -> bool {
        let state = self.state();
        let Some(inode) = state.open.get(&handle).map(|open| open.inode) else { return false };
        let mut same = state.open.values().filter(|open| open.inode == inode);
        same.any(|open| open.lock >= ffi::SQLITE_LOCK_RESERVED)
    }

    /// One of the pages that connections to a file share; made if `extend`.
    pub(crate) fn region(
        &self,
        handle: Handle,
        nth: usize,
        bytes: usize,
        extend: bool,
    ) -> Result<Option<Region>, Code> {
        let mut state = self.state();
        if state.dead {
            return Err(ffi::SQLITE_IOERR_SHMMAP);
        }
        let inode = state.open.get(&handle).ok_or(ffi::SQLITE_IOERR_SHMMAP)?.inode;
        // The first to come finds them empty, and so reads the log again.
        if !state.open.values().any(|open| open.inode == inode && open.shares) {
            state.shared.remove(&inode);
        }
        if let Some(open) = state.open.get_mut(&handle) {
            open.shares = true;
        }
        let regions = state.shared.entry(inode).or_default();
        while regions.len() <= nth && extend {
            regions.push((0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect());
        }
        Ok(regions.get(nth).cloned())
    }

    pub(crate) fn lock_shared(
        &self,
        handle: Handle,
        slots: u8,
        exclusive: bool,
    ) -> Result<(), Code> {
        self.state().lock_shared(handle, slots, exclusive)
    }

    pub(crate) fn unlock_shared(&self, handle: Handle, slots: u8) {
        if let Some(open) = self.state().open.get_mut(&handle) {
            open.exclusive &= !slots;
            open.with_others &= !slots;
        }
    }

    /// A connection shares pages no more.
    pub(crate) fn leave(&self, handle: Handle) {
        if let Some(open) = self.state().open.get_mut(&handle) {
            (open.exclusive, open.with_others, open.shares) = (0, 0, false);
        }
    }
}
