//! Work under way: a job that calls others begins what is due and does not wait for all of it, so
//! that whoever is slow delays himself alone.

use std::collections::{HashMap, HashSet};
use std::future::Future;

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::app::App;
use crate::flow::paypal::FlowError;
use crate::jobs::LOOK;
use crate::supervise;

/// What a job takes on.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// How many of its pieces are under way at once.
    pub all: usize,
    /// How many of those go to one place.
    pub each: usize,
}

/// A piece of work: what it is called, so that it is begun once, and to which place it goes.
pub struct Piece<T> {
    /// What it is called.
    pub name: String,
    /// To which place it goes.
    pub place: String,
    /// What there is to do.
    pub work: T,
}

/// A job whose pieces call others.
pub trait Errand {
    /// What a piece is about.
    type Work;
    /// The job's name, in the log and in figures.
    const NAME: &'static str;
    /// Whether it is the leader's, where several nodes run; otherwise each piece is claimed by a row
    /// of its own.
    const LED: bool = true;

    /// What it takes on.
    fn room(app: &App) -> Room;

    /// What is due, oldest first.
    ///
    /// # Errors
    /// When the books cannot be read.
    fn due(app: &App) -> Result<Vec<Piece<Self::Work>>, FlowError>;

    /// Does one piece. How that went it records itself.
    fn begin(app: App, work: Self::Work) -> impl Future<Output = ()> + Send + 'static;
}

/// What is under way.
struct Flying {
    pieces: JoinSet<()>,
    /// Names and places, by task.
    known: HashMap<Id, (String, String)>,
    /// Until when pieces rest that broke, by name.
    resting: HashMap<String, Instant>,
}

impl Flying {
    fn new() -> Self {
        Self { pieces: JoinSet::new(), known: HashMap::new(), resting: HashMap::new() }
    }

    /// Begins what is due and not under way, as far as there is room. `allowed` says what else may
    /// be begun.
    fn begin<E: Errand>(
        &mut self,
        app: &App,
        mut allowed: impl FnMut(&str) -> bool,
    ) -> Result<(), FlowError> {
        if E::LED && !app.leads() {
            return Ok(());
        }
        let room = E::room(app);
        let now = Instant::now();
        self.resting.retain(|_, until| *until > now);
        for piece in E::due(app)? {
            if self.known.len() >= room.all {
                break;
            }
            let begun = self.known.values().any(|(name, _)| *name == piece.name);
            let there = self.known.values().filter(|(_, place)| *place == piece.place).count();
            let rests = self.resting.contains_key(&piece.name);
            if !begun && !rests && there < room.each && allowed(&piece.name) {
                // In the log it stands under its job.
                let work = E::begin(app.clone(), piece.work).in_current_span();
                let id = self.pieces.spawn(work).id();
                self.known.insert(id, (piece.name, piece.place));
            }
        }
        Ok(())
    }

    /// Takes note of a piece that ended. One that broke rests, so that it does not break again at
    /// once and for ever; the others go on meanwhile.
    async fn ended<E: Errand>(&mut self, app: &App, ended: Result<(Id, ()), JoinError>) {
        let id = match &ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        let known = self.known.remove(&id);
        if let (Err(error), Some((name, _))) = (ended, known) {
            let rest = supervise::died(app, E::NAME, &supervise::last_words(error)).await;
            self.resting.insert(name, Instant::now() + rest);
        }
    }
}

/// Begins what is due, again and again, until told to stop; what is under way then is finished. It
/// looks whenever `woken` changes, at the pace of jobs, and when something ended.
pub async fn fly<E: Errand, W>(app: &App, stop: &CancellationToken, mut woken: watch::Receiver<W>) {
    let mut flying = Flying::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            // Nobody is left to wake it: the pace goes on.
            changed = woken.changed() => if changed.is_err() { tokio::time::sleep(LOOK).await },
            () = tokio::time::sleep(LOOK) => {}
            Some(ended) = flying.pieces.join_next_with_id(), if !flying.pieces.is_empty() => {
                flying.ended::<E>(app, ended).await;
            }
        }
        while let Some(ended) = flying.pieces.try_join_next_with_id() {
            flying.ended::<E>(app, ended).await;
        }
        if let Err(error) = flying.begin::<E>(app, |_| true) {
            tracing::error!(%error, "a job failed");
        }
    }
    while let Some(ended) = flying.pieces.join_next_with_id().await {
        flying.ended::<E>(app, ended).await;
    }
}

/// Does what is due, each piece once, and waits for all of it: as [`fly`] does, without going on.
///
/// # Errors
/// When the books cannot be read; what was begun is finished first.
pub async fn drain<E: Errand>(app: &App) -> Result<(), FlowError> {
    let mut flying = Flying::new();
    let mut begun = HashSet::new();
    loop {
        let looked = flying.begin::<E>(app, |name| begun.insert(name.to_owned()));
        let Some(ended) = flying.pieces.join_next_with_id().await else { return looked };
        flying.ended::<E>(app, ended).await;
    }
}
