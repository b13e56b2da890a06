//! Units in order, one durable commit, then the answers: the engine, written once for every
//! backend.
//!
//! A unit is loaded, asked to decide, checked, applied to a layer of its own and recorded under
//! its own savepoint; a batch of units shares one layer and one commit. What the design asks of a
//! failure is decided here and nowhere else:
//!
//! - a refusal records the key's fingerprint; a bug, a panic or a ledger rejection records nothing;
//! - a fault of one unit's rows ends that unit alone;
//! - a fault of the place (disk full, interrupted) drops the batch's layer, all of it unanswered;
//! - a batch that cannot be written for a reason of its content is run again in halves, until the
//!   unit at fault is alone;
//! - a COMMIT that fails leaves what is in memory in doubt: it is dropped and read again.

mod touched;

use foldhash::{HashMap, HashSet};
use std::any::Any;
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use earnest_core::entry::{Entry, EventLine, KeyLine, PutLine, digest};
use earnest_core::id::TransferId;
use earnest_core::ledger::{self, AccountId, Hold, Rejection, Totals};
use earnest_core::problem::Refusal;
use earnest_core::time::{SignedDuration, Timestamp};
use earnest_core::unit::{
    Effects, Key, KeyUse, Loaded, Put, RowKey, RowTouch, Stop, Touches, View, rank,
};

use crate::backend::{
    Backend, CommitFault, Dirty, Fault, Foreign, KeyAddress, Recorded, Recovered, Want,
};
use crate::cache::Cache;
use crate::layer::{Batch, DirtyRow, Slot, UnitBooks};
use crate::moving::{Copied, Sink, copy_and_compare};
use crate::watches::Watches;
use crate::{Clock, Head, SubmitError, Sums};
use touched::{describe, lowest_rank, only_new};

/// How often a unit may name something new before it is taken for one that never ends.
const MOST_ROUNDS: usize = 64;

/// How often a batch is run again before it is split.
const MOST_ATTEMPTS: u32 = 3;

/// A unit whose type is forgotten.
pub(crate) trait Task: Send {
    fn name(&self) -> &'static str;
    fn key(&self) -> Option<Key>;
    fn touches(&self, view: &View, now: Timestamp) -> Touches;
    /// Decides and keeps the answer; may be asked again.
    fn decide(&mut self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop>;
    /// Gives the kept answer, or why there is none. Only the first call counts.
    fn settle(&mut self, end: Result<(), SubmitError>);
}

pub(crate) struct Settings {
    pub(crate) clock: Clock,
    pub(crate) cached: usize,
    pub(crate) check_lock_order: bool,
    /// Who wants to know of rows that change.
    pub(crate) watches: Arc<Watches>,
}

pub(crate) struct Engine<B> {
    backend: B,
    settings: Settings,
    accounts: HashMap<AccountId, Slot>,
    head: Head,
    rows: Cache<RowKey, Loaded>,
    holds: Cache<TransferId, Hold>,
    sums: Arc<Mutex<Sums>>,
    /// The kinds of all rows that were ever remembered.
    kinds: HashSet<&'static str>,
    /// Why nothing is written any more, when that is so.
    stopped: Arc<Mutex<Option<String>>>,
    /// Why memory must be read again before the next batch.
    doubt: Option<String>,
}

/// A key and where it stands.
type Addressed = (KeyAddress, Key);

/// Why a batch is not there.
enum Lost {
    /// One of its units cannot be written.
    Poison(String),
    /// It would go well if it were run again.
    Again(String),
    /// The place fails.
    Whole(String),
}

/// Why a unit recorded nothing, or only its fingerprint.
enum End {
    Refused(Box<Refusal>),
    Rejected(Rejection),
    Bug(String),
    Fault(Fault),
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl<B: Backend> Engine<B> {
    /// Reads the books and checks that they can be trusted.
    pub(crate) fn new(backend: B, settings: Settings) -> Result<Self, String> {
        let (rows, holds) = (Cache::new(settings.cached), Cache::new(settings.cached));
        let (accounts, head) = (HashMap::default(), Head::GENESIS);
        let mut engine = Self {
            backend,
            settings,
            accounts,
            head,
            rows,
            holds,
            sums: Arc::default(),
            kinds: HashSet::default(),
            stopped: Arc::default(),
            doubt: None,
        };
        engine.recover()?;
        Ok(engine)
    }

    pub(crate) const fn head(&self) -> Head {
        self.head
    }

    /// The sums of all accounts, as they change.
    pub(crate) fn sums(&self) -> Arc<Mutex<Sums>> {
        self.sums.clone()
    }

    /// Why nothing is written any more, once that is so.
    pub(crate) fn stopped(&self) -> Arc<Mutex<Option<String>>> {
        self.stopped.clone()
    }

    pub(crate) fn close(&mut self) {
        self.backend.close();
    }

    /// Drops what is in memory; it is read again before the next batch.
    pub(crate) fn distrust(&mut self, why: &str) {
        tracing::error!(why, "the books in memory are dropped and will be read again");
        self.doubt = Some(why.to_owned());
    }

    fn recover(&mut self) -> Result<(), String> {
        let found = self.backend.recover()?;
        self.take_in(found)?;
        self.doubt = None;
        Ok(())
    }

    /// Keeps what was read in place of what was known.
    fn take_in(&mut self, found: Recovered) -> Result<(), String> {
        found.check()?;
        self.rows.clear();
        self.holds.clear();
        self.settings.watches.all_changed();
        self.accounts = found.accounts.into_iter().collect();
        let mut sums = Sums::default();
        for (id, slot) in &self.accounts {
            sums.replace(id, Totals::default(), slot.totals);
        }
        *self.sums.lock().unwrap_or_else(PoisonError::into_inner) = sums;
        self.head = found.head;
        Ok(())
    }

    /// Runs units in order and answers them all.
    pub(crate) fn run(&mut self, tasks: &mut [Box<dyn Task>]) {
        let mut attempt = 0;
        while !tasks.is_empty() {
            let lost = match self.attempt_batch(tasks) {
                Ok(()) => return,
                Err(lost) => lost,
            };
            match lost {
                Lost::Poison(why) => return self.isolate(tasks, &why),
                Lost::Again(why) if attempt < MOST_ATTEMPTS => {
                    tracing::warn!(why, units = tasks.len(), "a batch is run again");
                    attempt += 1;
                }
                // A part of it may go well where the whole does not.
                Lost::Again(why) => {
                    let (left, right) = tasks.split_at_mut(tasks.len() / 2);
                    if left.is_empty() {
                        return give_up(right, &why);
                    }
                    self.run(left);
                    return self.run(right);
                }
                Lost::Whole(why) => return give_up(tasks, &why),
            }
        }
    }

    /// Runs units in order. Where they are lost, none of them was answered.
    fn attempt_batch(&mut self, tasks: &mut [Box<dyn Task>]) -> Result<(), Lost> {
        self.ready().map_err(Lost::Whole)?;
        let now = (self.settings.clock)();
        let begun = self.backend.begin(&self.head).map_err(|fault| self.lost(fault))?;
        let now = begun.now.unwrap_or(now);
        if let Err(why) = self.catch_up(begun.head, begun.foreign) {
            self.backend.rollback();
            return Err(Lost::Whole(why));
        }
        let numbered = u64::try_from(self.accounts.len()).unwrap_or(u64::MAX);
        let mut batch = Batch::new(self.head, numbered, tasks.len());
        let ran = self.read_ahead(tasks, now).and_then(|()| {
            let each = tasks.iter_mut().map(|task| self.run_unit(&mut batch, task.as_mut(), now));
            each.collect::<Result<Vec<_>, Fault>>()
        });
        let ends = match ran {
            Ok(ends) => ends,
            Err(fault) => {
                self.backend.rollback();
                return Err(self.lost(fault));
            }
        };
        #[cfg(feature = "planted")]
        if crate::planted::on(crate::planted::Bug::AnswerBeforeCommit) {
            settle(tasks, ends.clone());
        }
        if batch.head == self.head {
            // Nothing was recorded: answers that only show, refusals that are known.
            self.backend.rollback();
            settle(tasks, ends);
            return Ok(());
        }
        match self.backend.commit(&Dirty { accounts: &batch.accounts, rows: &batch.rows }) {
            Ok(()) => {}
            Err(CommitFault::Poison(why)) => return Err(Lost::Poison(why)),
            Err(CommitFault::Whole(why)) => return Err(Lost::Whole(why)),
            Err(CommitFault::Again(why)) => return Err(Lost::Again(why)),
            Err(CommitFault::Unknown(why)) => match self.backend.settled(&batch.head) {
                Ok(true) => tracing::warn!(why, "a COMMIT without an answer had been carried out"),
                Ok(false) => return Err(Lost::Again(why)),
                Err(unknown) => {
                    self.distrust(&why);
                    return Err(Lost::Whole(format!("{why}; {unknown}")));
                }
            },
        }
        self.merge(batch);
        settle(tasks, ends);
        Ok(())
    }

    /// Copies everything to `to`, which is named `name`, and marks these books as moved there.
    pub(crate) fn move_to(&mut self, to: &mut dyn Sink, name: &str) -> Result<Copied, String> {
        self.ready()?;
        let begun = self.backend.begin(&self.head).map_err(Fault::why)?;
        let copied = self.catch_up(begun.head, begun.foreign).and_then(|()| {
            let raw = self.backend.raw().map_err(Fault::why)?;
            copy_and_compare(raw, to)
        });
        let copied = match copied {
            Ok(copied) => copied,
            Err(why) => {
                self.backend.rollback();
                return Err(why);
            }
        };
        if let Err(fault) = self.backend.mark_moved(name) {
            let why = fault.why();
            self.distrust(&why);
            return Err(format!("{why}: whether the books were moved shows when they are opened"));
        }
        let _ = self.lost(Fault::Moved(name.to_owned()));
        to.arrive()?;
        Ok(copied)
    }

    /// How often [`Engine::follow`] should be called while there is nothing to do.
    pub(crate) fn follow_every(&self) -> Option<Duration> {
        self.backend.follow_every()
    }

    /// Learns what others committed. What fails here fails again, and is told, when a unit comes.
    pub(crate) fn follow(&mut self) {
        let followed = self.ready().map_err(Fault::Whole).and_then(|()| {
            if self.backend.end()? == self.head.seq {
                return Ok(());
            }
            let begun = self.backend.begin(&self.head)?;
            let learnt = self.catch_up(begun.head, begun.foreign);
            self.backend.rollback();
            learnt.map_err(Fault::Whole)
        });
        if let Err(fault) = followed
            && let Lost::Poison(why) | Lost::Again(why) | Lost::Whole(why) = self.lost(fault)
        {
            tracing::debug!(why, "the log could not be looked at");
        }
    }

    /// What a fault of the place means for the units that ran into it.
    fn lost(&mut self, fault: Fault) -> Lost {
        match fault {
            Fault::Again(why) => Lost::Again(why),
            Fault::Unit(why) | Fault::Whole(why) => Lost::Whole(why),
            Fault::Regressed(_) | Fault::Moved(_) => {
                let why = fault.why();
                tracing::error!(why, "nothing is written any more");
                *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
                Lost::Whole(why)
            }
        }
    }

    /// Brings memory up to what others committed.
    fn catch_up(&mut self, head: Head, foreign: Foreign) -> Result<(), String> {
        match foreign {
            Foreign::None => {}
            Foreign::Many(found) => {
                tracing::info!(from = self.head.seq, to = head.seq, "the books were read again");
                self.take_in(found)?;
                if self.head != head {
                    return Err("the log does not end where its head says".to_owned());
                }
            }
            Foreign::Some(changed) => {
                #[cfg(feature = "planted")]
                let changed = crate::planted::unseen(changed);
                let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
                for (id, slot) in changed.accounts {
                    let before = self.accounts.insert(id, slot).map(|slot| slot.totals);
                    sums.replace(&id, before.unwrap_or_default(), slot.totals);
                }
                drop(sums);
                self.settings.watches.changed(changed.rows.iter().map(|(kind, _)| &**kind));
                for (kind, id) in changed.rows {
                    if let Some(kind) = self.kinds.get(&*kind) {
                        self.rows.remove(&RowKey { kind, id });
                    }
                }
                changed.holds.iter().for_each(|id| self.holds.remove(id));
            }
        }
        self.head = head;
        Ok(())
    }

    /// Asks a place that is far away for much at once: the units are asked what they touch, as far
    /// as they can know, before the first of them runs.
    fn read_ahead(&mut self, tasks: &[Box<dyn Task>], now: Timestamp) -> Result<(), Fault> {
        if !self.backend.is_remote() {
            return Ok(());
        }
        let keys: Vec<Option<KeyAddress>> = tasks
            .iter()
            .map(|task| guarded(|| task.key()).ok().flatten().map(|key| KeyAddress::of(&key)))
            .collect();
        let mut want = Want { keys: keys.iter().flatten().copied().collect(), ..Want::default() };
        want.keys.sort_unstable();
        want.keys.dedup();
        // What the key means is for the unit's own run; here it only has to name what it touches.
        let mut views: Vec<Option<View>> =
            tasks.iter().map(|_| Some(View::new(KeyUse::Fresh))).collect();
        let empty = Batch::new(self.head, 0, 0);
        let mut asked = (HashSet::default(), HashSet::default());
        for _ in 0..MOST_ROUNDS {
            let mut touched = Vec::with_capacity(tasks.len());
            for (task, view) in tasks.iter().zip(&mut views) {
                let touches =
                    view.as_ref().and_then(|view| self.new_touches(task.as_ref(), view, now));
                if let Some(touches) = &touches {
                    self.want(touches, &mut asked, &mut want);
                } else {
                    *view = None;
                }
                touched.push(touches);
            }
            if !want.is_empty() {
                self.backend.fetch(&want)?;
                want = Want::default();
            }
            for (touches, view) in touched.into_iter().zip(&mut views) {
                let (Some(touches), Some(into)) = (touches, view.as_mut()) else { continue };
                match self.fill(&empty, touches, into) {
                    Ok(()) => {}
                    // A unit that cannot be loaded says so itself when it runs.
                    Err(End::Fault(fault @ (Fault::Whole(_) | Fault::Again(_)))) => {
                        return Err(fault);
                    }
                    Err(_) => *view = None,
                }
            }
            if views.iter().all(Option::is_none) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// What a unit touches that its view has not; `None` when that is nothing.
    fn new_touches(&self, task: &dyn Task, view: &View, now: Timestamp) -> Option<Touches> {
        let mut touches = guarded(|| task.touches(view, now)).ok()?;
        only_new(&mut touches, view);
        lowest_rank(&touches).map(|_| touches)
    }

    /// Notes what of this is neither in memory nor asked for.
    fn want(
        &mut self,
        touches: &Touches,
        asked: &mut (HashSet<RowKey>, HashSet<TransferId>),
        want: &mut Want,
    ) {
        for touch in &touches.rows {
            if self.rows.get(&touch.key).is_none() && asked.0.insert(touch.key.clone()) {
                want.rows.push(touch.key.clone());
            }
        }
        for id in &touches.holds {
            if self.holds.get(id).is_none() && asked.1.insert(*id) {
                want.holds.push(*id);
            }
        }
    }

    fn ready(&mut self) -> Result<(), String> {
        if let Some(why) = &*self.stopped.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(why.clone());
        }
        if self.doubt.is_some() {
            self.recover()?;
        }
        self.backend.ready()
    }

    /// Runs a batch that cannot be written again in halves, so that one unit does not cost the
    /// others their answers.
    fn isolate(&mut self, tasks: &mut [Box<dyn Task>], why: &str) {
        if let [task] = tasks {
            tracing::error!(unit = task.name(), why, "a unit cannot be written");
            return task.settle(Err(SubmitError::Internal(why.to_owned())));
        }
        let (left, right) = tasks.split_at_mut(tasks.len().div_ceil(2));
        self.run(left);
        self.run(right);
    }

    fn merge(&mut self, batch: Batch) {
        {
            let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
            for (id, slot) in &batch.accounts {
                let before = self.accounts.get(id).map(|slot| slot.totals).unwrap_or_default();
                sums.replace(id, before, slot.totals);
            }
        }
        self.accounts.extend(batch.accounts);
        self.settings.watches.changed(batch.rows.keys().map(|key| key.kind));
        for (key, row) in batch.rows {
            self.kinds.insert(key.kind);
            self.rows.insert(key, row.row);
        }
        for (id, hold) in batch.holds {
            self.holds.insert(id, hold);
        }
        self.head = batch.head;
    }

    /// Runs one unit within a batch. `Err` when the batch is lost.
    fn run_unit(
        &mut self,
        batch: &mut Batch,
        task: &mut dyn Task,
        now: Timestamp,
    ) -> Result<Result<(), SubmitError>, Fault> {
        let name = task.name();
        let end = self.attempt(batch, task, now);
        match end {
            Ok(()) => Ok(Ok(())),
            Err(End::Refused(refusal)) => Ok(Err(SubmitError::Refused(refusal))),
            Err(End::Rejected(why)) => {
                tracing::error!(unit = name, %why, "the ledger refused an entry");
                Ok(Err(SubmitError::LedgerRejected(why.to_string())))
            }
            Err(End::Bug(why) | End::Fault(Fault::Unit(why))) => {
                tracing::error!(unit = name, why, "a unit failed");
                Ok(Err(SubmitError::Internal(why)))
            }
            Err(End::Fault(fault)) => Err(fault),
        }
    }

    fn attempt(
        &mut self,
        batch: &mut Batch,
        task: &mut dyn Task,
        now: Timestamp,
    ) -> Result<(), End> {
        let key = guarded(|| task.key())?.map(|key| (KeyAddress::of(&key), key));
        let used = self.key_use(batch, key.as_ref())?;
        let fresh = used == KeyUse::Fresh;
        let view = self.load(batch, task, used, now)?;
        match guarded(|| task.decide(&view, now))? {
            Ok(effects) => self.record(batch, task.name(), key, &view, effects, now),
            Err(Stop::Bug(why)) => Err(End::Bug(why)),
            Err(Stop::Unheard(refusal)) => Err(End::Refused(refusal)),
            Err(Stop::Refused(refusal)) => {
                if let (Some(key), true) = (key, fresh) {
                    let nothing = Effects::answer(());
                    #[cfg(feature = "planted")]
                    let nothing = crate::planted::refusal_as_result(nothing);
                    self.record(batch, task.name(), Some(key), &view, nothing, now)?;
                }
                Err(End::Refused(refusal))
            }
        }
    }

    // INVARIANT: one_id_one_fingerprint
    fn key_use(&mut self, batch: &Batch, key: Option<&Addressed>) -> Result<KeyUse, End> {
        let Some((address, key)) = key else { return Ok(KeyUse::None) };
        let stored = match batch.keys.get(address) {
            Some(line) => Some(line.clone()),
            None => self.backend.key(*address)?,
        };
        #[cfg(feature = "planted")]
        let stored = stored.or_else(|| crate::planted::claimed(*address));
        Ok(match stored {
            None => KeyUse::Fresh,
            Some(line) if line.fingerprint == key.fingerprint => KeyUse::Same { bound: line.bound },
            Some(line) => KeyUse::Other { bound: line.bound },
        })
    }

    /// Loads what the unit touches, until it names nothing new.
    fn load(
        &mut self,
        batch: &Batch,
        task: &dyn Task,
        used: KeyUse,
        now: Timestamp,
    ) -> Result<View, End> {
        let mut view = View::new(used);
        let mut latest = 0;
        for _ in 0..MOST_ROUNDS {
            let mut touches = guarded(|| task.touches(&view, now))?;
            only_new(&mut touches, &view);
            let Some(lowest) = lowest_rank(&touches) else { return Ok(view) };
            if self.settings.check_lock_order {
                // INVARIANT: rows_are_named_in_lock_order
                if lowest < latest {
                    let what = describe(&touches, lowest);
                    let why = format!("{what} (rank {lowest}) named after rank {latest}");
                    return Err(End::Bug(why));
                }
                latest = lowest;
                touches.rows.retain(|touch| touch.rank == lowest);
                if lowest < rank::HOLD {
                    touches.holds.clear();
                }
                if lowest < rank::ACCOUNT {
                    touches.accounts.clear();
                }
            }
            self.fill(batch, touches, &mut view)?;
        }
        Err(End::Bug(format!("still names something new after {MOST_ROUNDS} rounds")))
    }

    fn fill(&mut self, batch: &Batch, touches: Touches, view: &mut View) -> Result<(), End> {
        for touch in touches.rows {
            let row = self.load_row(batch, &touch)?;
            view.load_row(touch.key, row);
        }
        for id in touches.holds {
            let hold = self.load_hold(batch, id)?;
            view.load_hold(id, hold);
        }
        for id in touches.accounts {
            view.load_account(id, self.slot(batch, &id).map(|s| s.totals).unwrap_or_default());
        }
        Ok(())
    }

    fn load_row(&mut self, batch: &Batch, touch: &RowTouch) -> Result<Option<Loaded>, End> {
        if let Some(dirty) = batch.rows.get(&touch.key) {
            return Ok(Some(dirty.row.clone()));
        }
        if let Some(row) = self.rows.get(&touch.key) {
            return Ok(Some(row.clone()));
        }
        let Some(bytes) = self.backend.row(&touch.key)? else { return Ok(None) };
        let row = guarded(|| (touch.decode)(&bytes))?
            .map_err(|why| End::Bug(format!("row {} cannot be read: {why}", touch.key)))?;
        self.kinds.insert(touch.key.kind);
        self.rows.insert(touch.key.clone(), row.clone());
        Ok(Some(row))
    }

    fn load_hold(&mut self, batch: &Batch, id: TransferId) -> Result<Option<Hold>, End> {
        if let Some(hold) = batch.holds.get(&id) {
            return Ok(Some(hold.clone()));
        }
        if let Some(hold) = self.holds.get(&id) {
            return Ok(Some(hold.clone()));
        }
        let hold = self.backend.hold(id)?;
        if let Some(hold) = &hold {
            self.holds.insert(id, hold.clone());
        }
        Ok(hold)
    }

    fn slot<'a>(&'a self, batch: &'a Batch, id: &AccountId) -> Option<&'a Slot> {
        batch.accounts.get(id).or_else(|| self.accounts.get(id))
    }

    /// Checks what a unit wants, applies it to a layer of its own, and records it.
    fn record(
        &mut self,
        batch: &mut Batch,
        name: &'static str,
        key: Option<Addressed>,
        view: &View,
        effects: Effects<()>,
        now: Timestamp,
    ) -> Result<(), End> {
        let (address, key) = key_line(view.key(), key, &effects)?.unzip();
        let Effects { ops, puts, events, .. } = effects;
        if key.is_none() && ops.is_empty() && puts.is_empty() && events.is_empty() {
            return Ok(());
        }
        if let Some(put) = puts.iter().find(|put| !view.has_row(&put.key)) {
            return Err(End::Bug(format!("undeclared write of row {}", put.key)));
        }
        let mut books = UnitBooks::new(view);
        for op in &ops {
            let applied = ledger::apply(&mut books, op);
            if let Some(what) = books.undeclared() {
                return Err(End::Bug(format!("undeclared use of {what}")));
            }
            applied.map_err(End::Rejected)?;
        }
        let lines = puts.iter().map(put_line).collect();
        let rows = guarded(|| dirty_rows(batch, view, puts))?;
        let entry = Entry {
            seq: batch.head.seq.saturating_add(1),
            at: stamp(batch.head, now),
            name: Cow::Borrowed(name),
            key,
            ops,
            puts: lines,
            events: events.into_iter().map(EventLine::from).collect(),
        };
        let UnitBooks { accounts, holds, .. } = books;
        self.place(batch, entry, address, &accounts)?;
        // From here it must succeed.
        batch.holds.extend(holds);
        batch.rows.extend(rows);
        Ok(())
    }

    /// Gives the entry its place in the log, and its accounts their totals.
    fn place(
        &mut self,
        batch: &mut Batch,
        entry: Entry,
        key: Option<KeyAddress>,
        accounts: &[(AccountId, Totals)],
    ) -> Result<(), End> {
        let mut numbered = batch.numbered;
        let mut numbers = Vec::with_capacity(accounts.len());
        for (id, _) in accounts {
            let (no, last_seq) = match self.slot(batch, id) {
                Some(slot) => (slot.no, slot.last_seq),
                None => {
                    numbered = numbered.saturating_add(1);
                    (numbered, 0)
                }
            };
            numbers.push((*id, no, last_seq));
        }
        let hash = entry.hash(&batch.head.hash);
        #[cfg(feature = "planted")]
        let key = key.filter(|_| !crate::planted::on(crate::planted::Bug::SkipKeyInsert));
        self.backend.record(&Recorded { entry: &entry, hash, accounts: &numbers, key })?;
        // From here it must succeed.
        batch.numbered = numbered;
        batch.head = Head { seq: entry.seq, at: entry.at, hash };
        for ((id, no, _), (_, totals)) in numbers.into_iter().zip(accounts) {
            batch.accounts.insert(id, Slot { no, totals: *totals, last_seq: entry.seq });
        }
        if let (Some(address), Some(line)) = (key, entry.key) {
            #[cfg(feature = "planted")]
            crate::planted::claim(address, &line);
            batch.keys.insert(address, line);
        }
        Ok(())
    }
}

/// What the log says of the unit's key: nothing when the key is known and stays as it is.
fn key_line(
    used: &KeyUse,
    key: Option<Addressed>,
    effects: &Effects<()>,
) -> Result<Option<(KeyAddress, KeyLine)>, End> {
    let Some((address, key)) = key else { return Ok(None) };
    let bind = effects.bind.clone();
    match used {
        KeyUse::None | KeyUse::Fresh => Ok(Some((address, KeyLine::new(key, bind)))),
        KeyUse::Same { bound } if bind.is_none() || bind == *bound => Ok(None),
        KeyUse::Same { .. } => Ok(Some((address, KeyLine::new(key, bind)))),
        // INVARIANT: other_arguments_change_nothing
        KeyUse::Other { .. } => {
            let changes = !effects.ops.is_empty() || !effects.puts.is_empty() || bind.is_some();
            if changes {
                return Err(End::Bug("changes under a key used for other arguments".to_owned()));
            }
            Ok(None)
        }
    }
}

/// `max(now, last + 1 µs)`: the log's own time, strictly rising.
fn stamp(last: Head, now: Timestamp) -> Timestamp {
    let now = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
    let next = last.at.saturating_add(SignedDuration::from_micros(1)).unwrap_or(last.at);
    if last.seq == 0 { now } else { now.max(next) }
}

fn put_line(put: &Put) -> PutLine {
    let kind = Cow::Borrowed(put.key.kind);
    PutLine { kind, id: put.key.id.clone(), digest: digest(&put.bytes) }
}

/// The rows as the batch will keep them: each with the lists that it stands in on disk.
fn dirty_rows(batch: &Batch, view: &View, puts: Vec<Put>) -> Vec<(RowKey, DirtyRow)> {
    let dirty = |put: Put| {
        let Put { key, row, bytes, mut lists, lists_of } = put;
        lists.sort();
        lists.dedup();
        let before = match batch.rows.get(&key) {
            Some(dirty) => dirty.before.clone(),
            None => {
                let mut before = view.loaded(&key).map(lists_of).unwrap_or_default();
                before.sort();
                before.dedup();
                before
            }
        };
        (key, DirtyRow { row, bytes, lists, before })
    };
    puts.into_iter().map(dirty).collect()
}

/// Runs code that belongs to a unit. A panic in it is the unit's, whose layer is dropped; a panic
/// anywhere else is the engine's own, after which nothing in memory is trusted.
fn guarded<T>(of_the_unit: impl FnOnce() -> T) -> Result<T, End> {
    catch_unwind(AssertUnwindSafe(of_the_unit))
        .map_err(|panic| End::Bug(format!("panicked: {}", panic_text(panic.as_ref()))))
}

fn settle(tasks: &mut [Box<dyn Task>], ends: Vec<Result<(), SubmitError>>) {
    for (task, end) in tasks.iter_mut().zip(ends) {
        task.settle(end);
    }
}

fn give_up(tasks: &mut [Box<dyn Task>], why: &str) {
    tracing::error!(why, units = tasks.len(), "a batch was lost");
    for task in tasks {
        task.settle(Err(SubmitError::Unavailable(why.to_owned())));
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "?".to_owned())
}

#[cfg(test)]
mod tests;
