//! Work under way: a job that calls others begins what is due and does not wait for all of it, so
//! that whoever is slow delays himself alone.

use std::collections::HashMap;
use std::future::Future;

use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::app::App;
use crate::flow::paypal::FlowError;

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

/// Begins what is due, again and again, until told to stop; what is under way then is finished.
/// `due` is asked whenever `woken` changes, after `every`, and when something ended.
pub async fn fly<T, W, F>(
    app: &App,
    stop: &CancellationToken,
    mut woken: watch::Receiver<W>,
    room: Room,
    due: impl Fn(&App) -> Result<Vec<Piece<T>>, FlowError>,
    begin: impl Fn(App, T) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut flying = JoinSet::new();
    let mut known: HashMap<Id, (String, String)> = HashMap::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            // Nobody is left to wake it: the pace goes on.
            changed = woken.changed() => if changed.is_err() { tokio::time::sleep(crate::jobs::LOOK).await },
            () = tokio::time::sleep(crate::jobs::LOOK) => {}
            Some(ended) = flying.join_next_with_id(), if !flying.is_empty() => forget(&mut known, ended),
        }
        while let Some(ended) = flying.try_join_next_with_id() {
            forget(&mut known, ended);
        }
        let pieces = match due(app) {
            Ok(pieces) => pieces,
            Err(error) => {
                tracing::error!(%error, "a job failed");
                continue;
            }
        };
        for piece in pieces {
            if known.len() >= room.all {
                break;
            }
            let begun = known.values().any(|(name, _)| *name == piece.name);
            let there = known.values().filter(|(_, place)| *place == piece.place).count();
            if !begun && there < room.each {
                // In the log it stands under its job.
                let work = begin(app.clone(), piece.work).in_current_span();
                let id = flying.spawn(work).id();
                known.insert(id, (piece.name, piece.place));
            }
        }
    }
    while flying.join_next().await.is_some() {}
}

fn forget(
    known: &mut HashMap<Id, (String, String)>,
    ended: Result<(Id, ()), tokio::task::JoinError>,
) {
    let id = match ended {
        Ok((id, ())) => id,
        Err(error) => {
            tracing::error!(%error, "a job broke");
            error.id()
        }
    };
    known.remove(&id);
}
