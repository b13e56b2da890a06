//! The handle everybody holds, the queue behind it and the thread that writes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use earnest_core::time::Timestamp;
use earnest_core::unit::{Effects, Key, Record, Stop, Touches, Unit, View};
use tokio::sync::{oneshot, watch};

use crate::backend::Backend;
use crate::engine::{Engine, Settings, Task};
use crate::memory::{Memory, Shared};
use crate::moving::{Copied, Sink};
use crate::postgres::{Postgres, PostgresOptions, PostgresSink, Server};
use crate::sqlite::{Sqlite, SqliteOptions, SqliteSink};
use crate::watches::{Changes, Watches};
use crate::{MoveError, OpenError, ReadError, Reader, SubmitError, Sums, Url};

/// Where `now` comes from; the program's clock, or a test's.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Where the books are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory: for simulations and tests. Gone with the store.
    Memory,
    /// In memory that other stores write too.
    Shared(Shared),
    /// In an SQLite file; made, with its folder, where it does not exist.
    File(PathBuf),
    /// On a PostgreSQL server, by its URL; other nodes may write there too.
    Server(Url),
}

impl Place {
    /// What books that were moved there say of it: without who and with what password.
    pub fn name(&self) -> String {
        match self {
            Self::Server(url) => {
                let server = Server::parse(url.expose());
                server.map_or_else(|_| url.to_string(), |server| server.place().to_owned())
            }
            other => other.to_string(),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory | Self::Shared(_) => f.write_str("memory"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Server(url) => write!(f, "{url}"),
        }
    }
}

/// How a store is opened.
#[derive(Clone)]
pub struct Options {
    /// Where the books are kept.
    pub place: Place,
    /// `simulated`, `sandbox` or `live`: written into new books, compared with old ones.
    pub mode: String,
    /// The installation's epoch for new books; old ones keep theirs ([`Store::epoch`]).
    pub epoch: String,
    /// Where `now` comes from.
    pub clock: Clock,
    /// How many units may wait; more are [`SubmitError::Overloaded`].
    pub queue: usize,
    /// How many units share one commit at most.
    pub batch: usize,
    /// How many decoded rows and holds the writer remembers, each.
    pub cached: usize,
    /// Loads what a unit names one rank after another and refuses a row that is named after one of
    /// a later rank: what a database with row locks needs, checked here so that a wrong unit is
    /// found on any engine. Slower, so on by default in debug builds only.
    pub check_lock_order: bool,
    /// The largest the file may become, in bytes; `None` for as large as the disk allows.
    pub max_bytes: Option<u64>,
    /// The write-ahead log is folded into the database when it is longer than this, in bytes.
    pub wal_soft_bytes: u64,
    /// No unit is taken while the write-ahead log is longer than this, in bytes: somebody outside
    /// keeps a read transaction open, and the disk must not fill for that.
    pub wal_hard_bytes: u64,
    /// Whether `now` is the clock of the server, where the books are on one: nodes whose clocks
    /// differ then agree.
    pub server_clock: bool,
    /// No thread of its own: units are carried out by whoever waits for one in
    /// [`Store::submit_blocking`], or calls [`Store::step`]. For simulations, where the same seed
    /// must be the same run.
    pub stepped: bool,
    /// The file is on a simulated disk; `None` for the system's own.
    pub files: Option<SimulatedFiles>,
    /// The bug to plant, for tests of tests.
    #[cfg(feature = "planted")]
    pub planted: Option<crate::planted::Bug>,
}

/// See [`SimulatedFiles::rewrite`].
pub type Rewrite = Arc<dyn Fn(&Path) -> std::io::Result<()> + Send + Sync>;

/// A disk that somebody simulates, for [`Options::files`]. Nobody is kept out of a file on it.
#[derive(Clone)]
pub struct SimulatedFiles {
    /// The name that its file system is registered under with SQLite (its *VFS*).
    pub vfs: String,
    /// Writes a file again as it stands, and syncs it, if it is there.
    pub rewrite: Rewrite,
}

impl std::fmt::Debug for SimulatedFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.vfs)
    }
}

impl Options {
    /// Books in memory.
    pub fn memory(mode: &str, clock: Clock) -> Self {
        Self::new(Place::Memory, mode, clock)
    }

    /// Books in memory that other stores write too.
    pub fn shared(with: &Shared, mode: &str, clock: Clock) -> Self {
        Self::new(Place::Shared(with.clone()), mode, clock)
    }

    /// Books in an SQLite file.
    pub fn file(path: impl AsRef<Path>, mode: &str, clock: Clock) -> Self {
        Self::new(Place::File(path.as_ref().to_owned()), mode, clock)
    }

    /// Books on a PostgreSQL server.
    pub fn server(url: &str, mode: &str, clock: Clock) -> Self {
        Self::new(Place::Server(Url::unread(url)), mode, clock)
    }

    /// Books at any place.
    pub fn new(place: Place, mode: &str, clock: Clock) -> Self {
        Self {
            place,
            mode: mode.to_owned(),
            epoch: "e1".to_owned(),
            clock,
            queue: 8192,
            batch: 1024,
            cached: 20_000,
            check_lock_order: cfg!(debug_assertions),
            max_bytes: None,
            wal_soft_bytes: 32 << 20,
            wal_hard_bytes: 256 << 20,
            server_clock: true,
            stepped: false,
            files: None,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }
}

/// The books: cheap to clone, shared by everybody who writes or reads them.
///
/// When the last handle goes, what is queued is still carried out and the books are closed.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    queue: SyncSender<Message>,
    writer: Mutex<Option<Driver>>,
    reader: Reader,
    head: watch::Receiver<u64>,
    load: Arc<Load>,
    sums: Arc<Mutex<Sums>>,
    watches: Arc<Watches>,
    shared: bool,
    stopped: Arc<Mutex<Option<String>>>,
    mode: String,
    epoch: String,
}

/// What the writer has to do and did, counted as it happens.
#[derive(Default)]
struct Load {
    taken_in: AtomicU64,
    taken_on: AtomicU64,
    batches: [AtomicU64; BATCH_BOUNDS.len()],
}

/// Up to how many units a batch of each class has; larger ones have no class.
const BATCH_BOUNDS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// How busy the writer is; see [`Store::load`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriterLoad {
    /// How many units wait.
    pub queued: u64,
    /// How many units were taken on since the books were opened, those that were refused too.
    pub units: u64,
    /// How many batches had at most so many units, and more than the class before.
    pub batches: Vec<(u64, u64)>,
}

impl Load {
    fn took(&self, units: usize) {
        let units = u64::try_from(units).unwrap_or(u64::MAX);
        self.taken_on.fetch_add(units, Ordering::Relaxed);
        let class = BATCH_BOUNDS.iter().position(|bound| units <= *bound);
        if let Some(batches) = class.and_then(|class| self.batches.get(class)) {
            batches.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Who carries out what is queued.
enum Driver {
    Thread(JoinHandle<()>),
    /// Whoever asks; see [`Options::stepped`].
    Caller(Box<dyn Stepped>),
}

/// A writer that takes its turns when it is told to.
trait Stepped: Send {
    /// Carries out what is queued, one batch after another.
    fn work(&mut self);
    /// Closes the books.
    fn end(&mut self);
}

enum Message {
    Unit(Box<dyn Task>),
    Move(Box<dyn Sink>, String, oneshot::Sender<Result<Copied, String>>),
    Stop,
}

impl Store {
    /// Opens the books, recovering what a crash left, and starts their writer.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(options: Options) -> Result<Self, OpenError> {
        match &options.place {
            Place::Memory => {
                let memory = Memory::new();
                let reader = memory.reader();
                let epoch = options.epoch.clone();
                Self::start(memory, reader, epoch, &options)
            }
            Place::Shared(with) => {
                let memory = Memory::shared(with);
                let reader = memory.reader();
                let epoch = options.epoch.clone();
                Self::start(memory, reader, epoch, &options)
            }
            Place::File(path) => {
                let sqlite = Sqlite::open(path.clone(), SqliteOptions::of(&options))?;
                let reader = sqlite.reader();
                let epoch = sqlite.epoch().to_owned();
                Self::start(sqlite, reader, epoch, &options)
            }
            Place::Server(url) => {
                let server = Server::parse(url.expose()).map_err(OpenError::Address)?;
                let postgres = Postgres::open(server, PostgresOptions::of(&options))?;
                let reader = postgres.reader();
                let epoch = postgres.epoch().to_owned();
                Self::start(postgres, reader, epoch, &options)
            }
        }
    }

    fn start(
        backend: impl Backend,
        reader: Reader,
        epoch: String,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let watches = Arc::<Watches>::default();
        let settings = Settings {
            watches: watches.clone(),
            clock: options.clock.clone(),
            cached: options.cached,
            check_lock_order: options.check_lock_order,
        };
        #[cfg(feature = "planted")]
        crate::planted::forget();
        let engine = Engine::new(backend, settings).map_err(OpenError::Damaged)?;
        let (queue, messages) = sync_channel(options.queue.max(1));
        let (publish, head) = watch::channel(engine.head().seq);
        let load = Arc::new(Load::default());
        let shared = engine.follow_every().is_some();
        let (sums, stopped) = (engine.sums(), engine.stopped());
        let most = options.batch.max(1);
        let mut writer =
            Writer { engine, messages, most, publish, load: load.clone(), stopping: false };
        let driver = if options.stepped {
            Driver::Caller(Box::new(writer))
        } else {
            #[cfg(feature = "planted")]
            let planted = options.planted;
            let work = move || {
                #[cfg(feature = "planted")]
                crate::planted::plant(planted);
                writer.serve();
            };
            let thread = std::thread::Builder::new().name("books".to_owned()).spawn(work);
            Driver::Thread(thread.map_err(|why| OpenError::Damaged(format!("no thread: {why}")))?)
        };
        Ok(Self(Arc::new(Inner {
            queue,
            writer: Mutex::new(Some(driver)),
            reader,
            head,
            load,
            sums,
            watches,
            shared,
            stopped,
            mode: options.mode.clone(),
            epoch,
        })))
    }

    /// Queues a unit and waits for its answer, which is given after the commit that holds it.
    ///
    /// A future that is dropped takes nothing back: the unit may still be carried out.
    ///
    /// # Errors
    /// See [`SubmitError`].
    pub async fn submit<U: Unit>(&self, unit: U) -> Result<U::Answer, SubmitError> {
        let answer = self.queue(unit)?;
        answer.await.unwrap_or(Err(SubmitError::Stopped))
    }

    /// As [`Store::submit`], for threads outside an async runtime.
    ///
    /// # Errors
    /// See [`SubmitError`].
    pub fn submit_blocking<U: Unit>(&self, unit: U) -> Result<U::Answer, SubmitError> {
        let answer = self.queue(unit)?;
        self.step();
        answer.blocking_recv().unwrap_or(Err(SubmitError::Stopped))
    }

    /// Carries out what is queued, in this thread, where the books have no writer of their own;
    /// see [`Options::stepped`]. Otherwise does nothing.
    pub fn step(&self) {
        self.0.step();
    }

    fn queue<U: Unit>(
        &self,
        unit: U,
    ) -> Result<oneshot::Receiver<Result<U::Answer, SubmitError>>, SubmitError> {
        let (reply, answer) = oneshot::channel();
        let task = Pending { unit, answer: None, reply: Some(reply) };
        match self.0.queue.try_send(Message::Unit(Box::new(task))) {
            Ok(()) => {
                self.0.load.taken_in.fetch_add(1, Ordering::Relaxed);
                Ok(answer)
            }
            Err(TrySendError::Full(_)) => Err(SubmitError::Overloaded),
            Err(TrySendError::Disconnected(_)) => Err(SubmitError::Stopped),
        }
    }

    /// What was recorded; never waits for the writer.
    pub fn reader(&self) -> &Reader {
        &self.0.reader
    }

    /// The last place taken in the log, as it rises: for those who follow events.
    pub fn watch_head(&self) -> watch::Receiver<u64> {
        self.0.head.clone()
    }

    /// How busy the writer is. Read without waiting for it, so the figures are of about the same
    /// moment, no more.
    pub fn load(&self) -> WriterLoad {
        let load = &self.0.load;
        let units = load.taken_on.load(Ordering::Relaxed);
        let queued = load.taken_in.load(Ordering::Relaxed).saturating_sub(units);
        let counts = load.batches.iter().map(|batches| batches.load(Ordering::Relaxed));
        WriterLoad { queued, units, batches: BATCH_BOUNDS.into_iter().zip(counts).collect() }
    }

    /// The sums of all accounts by class, as of the last commit; costs no reading.
    pub fn sums(&self) -> Sums {
        self.0.sums.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether others may write these books too: other nodes, on a server.
    pub fn is_shared(&self) -> bool {
        self.0.shared
    }

    /// Counts changes of rows of one kind, for those who keep in memory what they read from them. A
    /// change counts before the unit that made it is answered; one that another node made counts
    /// before any unit is answered here that came after it, and a moment later where nothing is
    /// written here.
    pub fn changes_of<R: Record>(&self) -> Changes {
        self.0.watches.of(R::KIND)
    }

    /// Why nothing is written any more: the database lost what it had acknowledged, or the books
    /// were moved away. Reads still answer, and must not be believed without a look at it.
    pub fn stopped(&self) -> Option<String> {
        self.0.stopped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The mode of these books.
    pub fn mode(&self) -> &str {
        &self.0.mode
    }

    /// The installation's epoch, drawn when these books were made or restored.
    pub fn epoch(&self) -> &str {
        &self.0.epoch
    }

    /// Copies the books as they stand to a new file, while work goes on.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`] when the file exists or cannot be written, or the books are in
    /// memory.
    pub fn backup_to(&self, path: impl AsRef<Path>) -> Result<(), ReadError> {
        self.0.reader.backup_to(path.as_ref())
    }

    /// Moves the books to another place, where there are none yet: what is queued is carried out,
    /// everything is copied and compared, and these books say from then on where they went; see
    /// [`Store::stopped`]. `options` say where to, and the epoch the books have there. Waits for
    /// the writer, so not for async code without `spawn_blocking`.
    ///
    /// # Errors
    /// [`MoveError`]; the books are then where they were, unless it says otherwise. Moving again is
    /// always right.
    pub fn move_to(&self, options: &Options) -> Result<Copied, MoveError> {
        let to: Box<dyn Sink> = match &options.place {
            Place::Memory | Place::Shared(_) => {
                return Err(MoveError::Failed("books are not moved into memory".to_owned()));
            }
            Place::File(path) => Box::new(SqliteSink::begin(path, &SqliteOptions::of(options))?),
            Place::Server(url) => {
                let server = Server::parse(url.expose()).map_err(OpenError::Address)?;
                Box::new(PostgresSink::begin(&server, &PostgresOptions::of(options))?)
            }
        };
        let name = options.place.name();
        let (reply, answer) = oneshot::channel();
        if self.0.queue.send(Message::Move(to, name, reply)).is_err() {
            return Err(MoveError::Failed("the store was closed".to_owned()));
        }
        self.step();
        let answer = answer.blocking_recv();
        answer.unwrap_or_else(|_| Err("the writer ended".to_owned())).map_err(MoveError::Failed)
    }

    /// Carries out what is queued and closes the books; later units are [`SubmitError::Stopped`].
    /// Waits for the writer, so not for async code without `spawn_blocking`.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Inner {
    fn step(&self) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Driver::Caller(writer)) = writer.as_mut() {
            writer.work();
        }
    }

    fn close(&self) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match writer {
            None => {}
            Some(Driver::Caller(mut writer)) => {
                writer.work();
                writer.end();
            }
            Some(Driver::Thread(writer)) => {
                // Behind all that is queued already. It only fails when the writer has ended.
                let _ = self.queue.send(Message::Stop);
                if writer.thread().id() != std::thread::current().id() {
                    let _ = writer.join();
                }
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

/// Ends a move that was cut off after the old books were marked: takes the mark of the copy off.
/// `to` is the place that the old books name.
///
/// # Errors
/// As opening `to`; nothing happens where no copy is arriving.
pub fn arrive(to: &Options) -> Result<(), MoveError> {
    let arrived = match &to.place {
        Place::Memory | Place::Shared(_) => Ok(()),
        Place::File(path) => SqliteSink::resume(path, &SqliteOptions::of(to))?.arrive(),
        Place::Server(url) => {
            let server = Server::parse(url.expose()).map_err(OpenError::Address)?;
            PostgresSink::resume(&server, &PostgresOptions::of(to))?.arrive()
        }
    };
    arrived.map_err(MoveError::Failed)
}

/// The writer: takes what is queued, without waiting for more, and carries it out in order.
struct Writer<B> {
    engine: Engine<B>,
    messages: Receiver<Message>,
    most: usize,
    publish: watch::Sender<u64>,
    load: Arc<Load>,
    stopping: bool,
}

impl<B: Backend> Writer<B> {
    /// Works until it is told to stop, or nobody is left to tell.
    fn serve(&mut self) {
        while !self.stopping {
            let first = match self.engine.follow_every() {
                None => self.messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(often) => self.messages.recv_timeout(often),
            };
            match first {
                Ok(first) => self.batch(first),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    if catch_unwind(AssertUnwindSafe(|| self.engine.follow())).is_err() {
                        self.engine.distrust("the engine panicked");
                    }
                    publish_head(&self.publish, self.engine.head().seq);
                }
            }
        }
        self.engine.close();
    }

    /// Carries out what is queued, up to a bound, beginning with `first`.
    fn batch(&mut self, first: Message) {
        let mut tasks = Vec::new();
        let mut moving = None;
        let mut next = Some(first);
        while let Some(message) = next.take() {
            match message {
                Message::Unit(task) => tasks.push(task),
                Message::Stop => {
                    self.stopping = true;
                    break;
                }
                // After what came before it; what comes after is told where the books went.
                Message::Move(to, name, reply) => {
                    moving = Some((to, name, reply));
                    break;
                }
            }
            if tasks.len() < self.most {
                next = self.messages.try_recv().ok();
            }
        }
        if !tasks.is_empty() {
            self.load.took(tasks.len());
        }
        let engine = &mut self.engine;
        let whole = AssertUnwindSafe(|| engine.run(&mut tasks));
        if catch_unwind(whole).is_err() {
            // A panic of the engine itself, not of a unit: nothing in memory can be trusted.
            engine.distrust("the engine panicked");
            for task in &mut tasks {
                task.settle(Err(SubmitError::Unavailable("the engine panicked".to_owned())));
            }
        }
        if let Some((mut to, name, reply)) = moving {
            let moved = catch_unwind(AssertUnwindSafe(|| engine.move_to(to.as_mut(), &name)));
            let moved = moved.unwrap_or_else(|_| {
                engine.distrust("the engine panicked");
                Err("the engine panicked".to_owned())
            });
            let _ = reply.send(moved);
        }
        publish_head(&self.publish, self.engine.head().seq);
    }
}

impl<B: Backend> Stepped for Writer<B> {
    fn work(&mut self) {
        while let Ok(first) = self.messages.try_recv() {
            self.batch(first);
        }
    }

    fn end(&mut self) {
        self.engine.close();
    }
}

fn publish_head(publish: &watch::Sender<u64>, now: u64) {
    publish.send_if_modified(|seq| std::mem::replace(seq, now) != *seq);
}

/// A unit in the queue, its type forgotten but for the answer it owes.
struct Pending<U: Unit> {
    unit: U,
    answer: Option<U::Answer>,
    reply: Option<oneshot::Sender<Result<U::Answer, SubmitError>>>,
}

impl<U: Unit> Task for Pending<U> {
    fn name(&self) -> &'static str {
        self.unit.name()
    }

    fn key(&self) -> Option<Key> {
        self.unit.key()
    }

    fn touches(&self, view: &View, now: Timestamp) -> Touches {
        self.unit.touches(view, now)
    }

    fn decide(&mut self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        self.answer = None;
        let effects = self.unit.decide(view, now)?;
        let mut answer = None;
        let effects = effects.map(|given| answer = Some(given));
        self.answer = answer;
        Ok(effects)
    }

    fn settle(&mut self, end: Result<(), SubmitError>) {
        let Some(reply) = self.reply.take() else { return };
        let missing = || SubmitError::Internal("no answer".to_owned());
        let answer = end.and_then(|()| self.answer.take().ok_or_else(missing));
        // Whoever asked may have gone; what is recorded stays recorded.
        let _ = reply.send(answer);
    }
}
