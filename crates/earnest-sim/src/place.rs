//! Where the books of a run are, which nodes write them, and what goes wrong there.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::panic::resume_unwind;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, Waker};

use earnest_core::time::Timestamp;
use earnest_core::unit::Unit;
use earnest_store::{
    Clock, Options, ReadError, Reader, Shared, SimulatedFiles, Store, SubmitError,
};
use rusqlite::{Connection, OpenFlags};

use crate::disk::Disk;
use crate::vfs::{self, Mounted};
use crate::{Arrangement, Random, Trouble};

/// A clock that stands still until somebody turns it on.
#[derive(Debug)]
pub struct Ticking(AtomicI64);

impl Default for Ticking {
    fn default() -> Self {
        Self::new()
    }
}

impl Ticking {
    /// At noon, on the last day of November.
    pub fn new() -> Self {
        let begin: Timestamp = "2026-11-30T12:00:00Z".parse().expect("it is a time");
        Self(AtomicI64::new(begin.as_microsecond()))
    }

    /// What it shows.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_microsecond(self.0.load(Ordering::SeqCst)).expect("no run lasts so long")
    }

    /// Turns it on.
    pub fn pass(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }

    /// Sets it.
    pub fn set(&self, to: Timestamp) {
        self.0.store(to.as_microsecond(), Ordering::SeqCst);
    }

    /// As a store wants it.
    pub fn clock(self: &Arc<Self>) -> Clock {
        let this = self.clone();
        Arc::new(move || this.now())
    }
}

/// What the stack of a process is unwound with when the process, or whoever waits for it, has no
/// answer: the rest of what it was about to do does not happen.
#[derive(Debug)]
pub(crate) struct Lost(pub(crate) String);

fn lose(why: impl Into<String>) -> ! {
    // Nothing is wrong, so no panic is told.
    resume_unwind(Box::new(Lost(why.into())))
}

enum Kind {
    /// Somebody's store: nothing goes wrong that does not go wrong by itself.
    Given,
    /// In memory, written by as many nodes as there are stores.
    Nodes,
    /// On a disk that fails.
    Disk(Mounted),
}

/// See the module.
pub(crate) struct Place {
    stores: RefCell<Vec<Store>>,
    /// The node that is spoken to.
    at: Cell<usize>,
    kind: Kind,
    options: Option<Options>,
    random: RefCell<Random>,
    /// Whether things go wrong now.
    perilous: Cell<bool>,
    /// The last place of the log that was acknowledged.
    promised: Cell<u64>,
    /// How many units wait for an answer.
    in_flight: Cell<u64>,
    power_cuts: Cell<u64>,
    deaths: Cell<u64>,
}

impl Place {
    pub(crate) fn given(store: Store) -> Self {
        Self::new(Kind::Given, vec![store], None, Random::new(0))
    }

    pub(crate) fn build(arrangement: Arrangement, random: &mut Random, clock: Clock) -> Self {
        let mut own = random.branch();
        let (kind, mut options, nodes) = match arrangement {
            Arrangement::Quiet => (Kind::Given, Options::memory("simulated", clock), 1),
            Arrangement::Nodes => {
                let shared = Shared::default();
                let options = Options::shared(&shared, "simulated", clock);
                (Kind::Nodes, options, 2)
            }
            Arrangement::Disk => {
                let mounted = Mounted::new(Disk::new(own.branch()));
                let mut options = Options::file(mounted.path("books.db"), "simulated", clock);
                let disk = mounted.disk.clone();
                let rewrite = move |path: &Path| {
                    let name = path.to_str().expect("we name our files ourselves");
                    disk.rewrite(name).map_err(|_| ErrorKind::Other.into())
                };
                options.files =
                    Some(SimulatedFiles { vfs: vfs::NAME.to_owned(), rewrite: Arc::new(rewrite) });
                // Folded often, so that it is cut off in the middle of that, too.
                options.wal_soft_bytes = 4096 << own.below(8);
                (Kind::Disk(mounted), options, 1)
            }
        };
        options.stepped = true;
        // What a database with row locks needs is checked whatever the profile.
        options.check_lock_order = true;
        options.cached = [2, 50, 20_000][own.place(3)];
        let place = Self::new(kind, Vec::new(), Some(options), own);
        for node in 0..nodes {
            place.open(node);
        }
        place
    }

    fn new(kind: Kind, stores: Vec<Store>, options: Option<Options>, random: Random) -> Self {
        Self {
            stores: RefCell::new(stores),
            at: Cell::new(0),
            kind,
            options,
            random: RefCell::new(random),
            perilous: Cell::new(false),
            promised: Cell::new(0),
            in_flight: Cell::new(0),
            power_cuts: Cell::new(0),
            deaths: Cell::new(0),
        }
    }

    fn one_in(&self, many: u64) -> bool {
        self.random.borrow_mut().one_in(many)
    }

    fn disk(&self) -> Option<&Disk> {
        match &self.kind {
            Kind::Disk(mounted) => Some(&mounted.disk),
            _ => None,
        }
    }

    /// The store of the node that is spoken to.
    pub(crate) fn store(&self) -> Store {
        self.stores.borrow()[self.at.get()].clone()
    }

    /// Its name.
    pub(crate) fn node(&self) -> String {
        format!("n{}", self.at.get())
    }

    pub(crate) fn promised(&self) -> u64 {
        self.promised.get()
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.get()
    }

    /// The log was seen to end here, and nothing waits for an answer.
    pub(crate) fn seen(&self, seq: u64) {
        self.promised.set(seq);
        self.in_flight.set(0);
    }

    /// How often the power went, and how often a process ended by itself.
    pub(crate) fn stops(&self) -> (u64, u64) {
        (self.power_cuts.get(), self.deaths.get())
    }

    /// How often the disk failed.
    pub(crate) fn troubles(&self) -> u64 {
        self.disk().map_or(0, |disk| disk.counted().1)
    }
}

/// Asking.
impl Place {
    pub(crate) fn run<U: Unit>(&self, unit: U) -> Result<U::Answer, SubmitError> {
        self.set_out(1);
        let store = self.store();
        let answer = store.submit_blocking(unit);
        self.heard(&store, std::slice::from_ref(&answer));
        answer
    }

    /// Asks for several things at once: they share a commit, if the books are stepped.
    pub(crate) fn run_together<U: Unit>(
        &self,
        units: Vec<U>,
    ) -> Vec<Result<U::Answer, SubmitError>> {
        type Asked<A> = Pin<Box<dyn Future<Output = Result<A, SubmitError>>>>;
        self.set_out(units.len() as u64);
        let store = self.store();
        let ask = |unit: U| -> Asked<U::Answer> {
            let store = store.clone();
            Box::pin(async move { store.submit(unit).await })
        };
        let mut asked: Vec<Asked<U::Answer>> = units.into_iter().map(ask).collect();
        let mut context = Context::from_waker(Waker::noop());
        for one in &mut asked {
            assert!(one.as_mut().poll(&mut context).is_pending(), "nobody has worked yet");
        }
        store.step();
        let answers: Vec<_> = asked
            .iter_mut()
            .map(|one| match one.as_mut().poll(&mut context) {
                Poll::Ready(answer) => answer,
                Poll::Pending => panic!("a unit that was carried out has no answer"),
            })
            .collect();
        self.heard(&store, &answers);
        answers
    }

    fn set_out(&self, units: u64) {
        if self.perilous.get() && self.one_in(150) {
            lose("the request was lost");
        }
        // What was in doubt before is so until somebody has an answer, or all is read again.
        self.in_flight.set(self.in_flight.get() + units);
    }

    /// What was said, if it arrives.
    fn heard<A>(&self, store: &Store, answers: &[Result<A, SubmitError>]) {
        if matches!(self.kind, Kind::Given) {
            return;
        }
        for answer in answers {
            if let Err(why @ (SubmitError::Unavailable(_) | SubmitError::Stopped)) = answer {
                assert!(self.perilous.get(), "nothing fails any more, and yet: {why}");
                lose(why.to_string());
            }
        }
        self.seen(*store.watch_head().borrow());
        if self.perilous.get() && self.one_in(150) {
            lose("the answer was lost");
        }
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&Reader) -> Result<T, ReadError>) -> T {
        match read(self.store().reader()) {
            Ok(found) => found,
            Err(ReadError::Unavailable(why)) if self.perilous.get() => lose(why),
            Err(why) => panic!("{why}"),
        }
    }
}

/// Going wrong.
impl Place {
    /// From now on things go wrong, or no more.
    pub(crate) fn be_perilous(&self, perilous: bool) {
        self.perilous.set(perilous && !matches!(self.kind, Kind::Given));
        self.calm();
    }

    /// Nothing goes wrong for a moment. Gives what it was before.
    pub(crate) fn pause_peril(&self) -> bool {
        self.calm();
        self.perilous.replace(false)
    }

    /// As it was before.
    pub(crate) fn resume_peril(&self, peril: bool) {
        self.perilous.set(peril);
    }

    /// Before a step: some node is spoken to, and the disk may fail.
    pub(crate) fn before_step(&self) {
        let nodes = self.stores.borrow().len();
        self.at.set(self.random.borrow_mut().place(nodes));
        let Some(disk) = self.disk().filter(|_| self.perilous.get()) else { return };
        if self.one_in(5) {
            let mut random = self.random.borrow_mut();
            let after = 1 + random.below(90);
            let trouble = match random.below(9) {
                0..4 => Trouble::PowerCut,
                4 => Trouble::WriteFails,
                5 | 6 => Trouble::SyncFails,
                7 => Trouble::ReadFails,
                _ => Trouble::Full,
            };
            disk.arm(after, trouble);
        }
    }

    /// Nothing that was about to go wrong does. What has stopped stays so.
    pub(crate) fn calm(&self) {
        if let Some(disk) = self.disk() {
            disk.calm();
        }
    }

    /// After a step: what stopped is started again; so is, now and then, what did not. Says what
    /// happened, if anything did.
    pub(crate) fn after_step(&self, lost: bool) -> Option<&'static str> {
        self.calm();
        if !self.perilous.get() {
            return None;
        }
        let falls = if lost { self.one_in(3) } else { self.one_in(60) };
        match &self.kind {
            Kind::Disk(mounted) if mounted.disk.is_dead() => Some(self.cut_power()),
            Kind::Disk(_) if falls && self.one_in(2) => Some(self.cut_power()),
            Kind::Given => None,
            _ => falls.then(|| self.kill()),
        }
    }

    /// The machine stops and starts again.
    pub(crate) fn cut_power(&self) -> &'static str {
        let Some(disk) = self.disk() else { return self.kill() };
        self.power_cuts.set(self.power_cuts.get() + 1);
        // While the power is off nothing of what still runs reaches the disk.
        disk.stop();
        self.stores.borrow_mut().clear();
        disk.power_cycle();
        self.open(0);
        "the power went"
    }

    /// The last stop: everything is read again from what is there.
    pub(crate) fn cut_power_for_good(&self) {
        if !matches!(self.kind, Kind::Given) {
            self.cut_power();
        }
    }

    /// The process spoken to ends, as by `kill -9`, and another begins.
    fn kill(&self) -> &'static str {
        self.deaths.set(self.deaths.get() + 1);
        let node = self.at.get();
        if let Some(disk) = self.disk() {
            disk.let_go();
        }
        drop(self.stores.borrow_mut().remove(node));
        self.open(node);
        "its process ended"
    }

    /// Opens the books of a node; the power may go while it does.
    fn open(&self, node: usize) {
        let options = self.options.clone().expect("only books of our own are opened again");
        loop {
            if let Some(disk) = self.disk()
                && self.one_in(4)
            {
                disk.arm(1 + self.random.borrow_mut().below(60), Trouble::PowerCut);
            }
            let opened = Store::open(options.clone());
            self.calm();
            let dead = self.disk().is_some_and(Disk::is_dead);
            match opened {
                Ok(store) if !dead => return self.stores.borrow_mut().insert(node, store),
                Err(why) if !dead => panic!("the books cannot be opened: {why}"),
                _ => {}
            }
            if let Some(disk) = self.disk() {
                self.power_cuts.set(self.power_cuts.get() + 1);
                disk.power_cycle();
            }
        }
    }

    /// What SQLite itself finds wrong with its file.
    pub(crate) fn damage(&self) -> Vec<String> {
        let Kind::Disk(mounted) = &self.kind else { return Vec::new() };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let path = mounted.path("books.db");
        let conn = Connection::open_with_flags_and_vfs(path, flags, vfs::NAME)
            .expect("the file can be opened");
        let mut lines = Vec::new();
        conn.pragma_query(None, "integrity_check", |row| {
            lines.push(row.get::<_, String>(0)?);
            Ok(())
        })
        .expect("the file can be read");
        lines.retain(|line| line != "ok");
        lines
    }
}

#[cfg(test)]
mod tests {
    use earnest_core::report::Tick;
    use earnest_core::settings::Settings;
    use earnest_core::unit::{Effects, Stop, Touches, View};

    use super::*;
    use crate::World;

    /// Asks, and changes nothing.
    struct Ask;

    impl Unit for Ask {
        type Answer = ();

        fn name(&self) -> &'static str {
            "test.ask"
        }

        fn touches(&self, _: &View, _: Timestamp) -> Touches {
            Touches::new()
        }

        fn decide(&self, _: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
            Ok(Effects::answer(()))
        }
    }

    /// Books on a disk, three entries long, and their clock.
    fn disk(seed: u64) -> (Place, Arc<Ticking>) {
        let clock = Arc::new(Ticking::new());
        let mut place = Place::build(Arrangement::Disk, &mut Random::new(seed), clock.clock());
        // The first sync of a batch is then that of its COMMIT.
        place.options.as_mut().expect("they are ours").wal_soft_bytes = 1 << 20;
        place.kill();
        (0..3).for_each(|_| tick(&place, &clock).expect("nothing is wrong yet"));
        (place, clock)
    }

    fn tick(place: &Place, clock: &Ticking) -> Result<(), SubmitError> {
        clock.pass(10);
        place.store().submit_blocking(Tick).map(drop)
    }

    fn head(place: &Place) -> u64 {
        place.store().reader().head().expect("it can be read").seq
    }

    /// A COMMIT whose sync fails.
    fn fail(place: &Place, clock: &Ticking) {
        place.disk().expect("it is on a disk").arm(1, Trouble::SyncFails);
        tick(place, clock).expect_err("the sync fails");
    }

    #[test]
    fn a_disk_that_cannot_be_read_is_no_fault_of_the_unit() {
        let mut failed = 0;
        for after in 1..=12 {
            let random = &mut Random::new(7);
            let world = World::build(Arrangement::Disk, Settings::default(), random);
            let (buyer, shop) = (world.buyer(), world.shop());
            let quote = world.fixed(&shop, 1_000);
            world.buy_as(buyer, "r1", &quote);
            // A new process knows nothing, and has to read all of it.
            world.place.kill();
            world.place.disk().expect("it is on a disk").arm(after, Trouble::ReadFails);
            match world.place.store().submit_blocking(world.unit(buyer, "r1", &quote)) {
                Ok(answer) => assert!(answer.replayed),
                Err(SubmitError::Unavailable(_)) => failed += 1,
                Err(why) => panic!("after {after}: {why}"),
            }
        }
        assert!(failed > 2, "only {failed} reads failed");
    }

    #[test]
    fn what_is_read_at_the_start_is_on_the_disk() {
        for seed in 1..=20 {
            let (place, clock) = disk(seed);
            // Somebody reads, so that the log stays when the connection is given up.
            head(&place);
            fail(&place, &clock);
            place.kill();
            let shown = head(&place);
            assert_eq!(shown, 4, "what was not acknowledged is there all the same");
            tick(&place, &clock).expect("the disk is well");
            assert_eq!(head(&place), shown + 1);
            place.cut_power();
            assert_eq!(head(&place), shown + 1, "seed {seed}");
        }
    }

    #[test]
    fn a_failed_commit_is_settled_before_anything_is_shown() {
        for seed in 1..=20 {
            let (place, clock) = disk(seed);
            // Somebody reads, so that what is in doubt is not seen.
            head(&place);
            fail(&place, &clock);
            // Nothing is recorded, but something is answered.
            place.store().submit_blocking(Ask).expect("the disk is well");
            let shown = head(&place);
            place.kill();
            assert_eq!(head(&place), shown, "seed {seed}");
        }
    }
}
