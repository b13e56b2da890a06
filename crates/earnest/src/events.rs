//! The stream of events: one reader for everybody who listens.
//!
//! A single task follows the head of the log and hands each new page to all listeners at once, so
//! that five hundred of them cost the books one read. A listener that comes later, or falls behind,
//! reads pages of the log by itself until it has caught up; it holds no reader while it waits. Such
//! reads are made apart from what serves requests, few at a time, and one at a time for whoever is
//! the same; a page after each of which others have their turn.
//!
//! Streams hold connections, so they are counted ([`Seats`]): one key cannot have them all.
//!
//! A place in the stream is `epoch-seq.index`: the installation's epoch, the entry, and the event
//! within it. The index is left out of the last event of an entry, so the usual id is the entry's
//! own sequence number.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;

use earnest_core::party::Principal;
use earnest_store::{EventAt, EventPage, ReadError, Store};
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::supervise::supervise;

pub use self::seats::{Seat, Seats};

mod seats;

/// How many entries one read of the log brings.
const PAGE: usize = 500;
/// What the one reader is called among the jobs.
pub const JOB: &str = "feed";
/// How many pages a listener may fall behind before it reads for itself.
const BUFFERED: usize = 256;

/// A place in the stream, after which it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The entry.
    pub seq: u64,
    /// How many events of that entry have been seen; all of them, where it is left out.
    pub seen: Option<usize>,
}

impl Place {
    /// After a whole entry.
    pub const fn after(seq: u64) -> Self {
        Self { seq, seen: None }
    }

    /// Whether an event comes after this place.
    fn is_before(self, event: &EventAt) -> bool {
        event.seq > self.seq
            || (event.seq == self.seq && self.seen.is_some_and(|seen| event.index >= seen))
    }

    /// The entry to read on from: the one before, where this one was only seen in part.
    fn read_from(self) -> u64 {
        if self.seen.is_some() { self.seq.saturating_sub(1) } else { self.seq }
    }
}

/// A cursor as clients keep it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The epoch it belongs to; `None` for a bare number, which means the present one.
    pub epoch: Option<String>,
    /// The place.
    pub place: Place,
}

/// A text that is no cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotACursor;

impl FromStr for Cursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        let (epoch, rest) = match text.split_once('-') {
            Some((epoch, rest)) => {
                let plain = epoch.bytes().all(|byte| byte.is_ascii_alphanumeric());
                if epoch.is_empty() || !plain {
                    return Err(NotACursor);
                }
                (Some(epoch.to_owned()), rest)
            }
            None => (None, text),
        };
        let number = |text: &str| {
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| text.parse::<u64>().ok()).flatten().ok_or(NotACursor)
        };
        let place = match rest.split_once('.') {
            None => Place::after(number(rest)?),
            Some((seq, index)) => {
                let index = usize::try_from(number(index)?).map_err(|_| NotACursor)?;
                let seen = index.checked_add(1).ok_or(NotACursor)?;
                Place { seq: number(seq)?, seen: Some(seen) }
            }
        };
        Ok(Self { epoch, place })
    }
}

/// The id of an event.
pub struct EventId<'a> {
    /// The installation's epoch.
    pub epoch: &'a str,
    /// The event.
    pub event: &'a EventAt,
}

impl fmt::Display for EventId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.event.seq)?;
        if self.event.last { Ok(()) } else { write!(f, ".{}", self.event.index) }
    }
}

/// Whether somebody may see an event: its audience, and the operator.
pub fn may_see(principal: Principal, event: &EventAt) -> bool {
    let name = principal.to_string();
    principal == Principal::Operator || event.event.audience.contains(&name)
}

/// Where listeners join.
#[derive(Clone)]
pub struct Feed {
    live: broadcast::Sender<Arc<EventPage>>,
    /// Who may read pages of the log for itself now.
    readers: Arc<Semaphore>,
}

impl Default for Feed {
    fn default() -> Self {
        // Half of the machine at most: the other half serves.
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let readers = Arc::new(Semaphore::new((cores / 2).max(1)));
        Self { live: broadcast::channel(BUFFERED).0, readers }
    }
}

impl Feed {
    /// Follows the log from its present head until told to stop, and has what happens counted. Where
    /// it dies it goes on from what was counted.
    pub fn spawn(&self, app: &App, stop: CancellationToken) -> JoinHandle<()> {
        let head = app.store.watch_head();
        app.figures.reached(*head.borrow());
        let (feed, app) = (self.clone(), app.clone());
        tokio::spawn(async move {
            let begin = || feed.clone().follow(app.clone(), stop.clone(), head.clone());
            supervise(&app, &stop, JOB, begin).await;
        })
    }

    async fn follow(self, app: App, stop: CancellationToken, mut head: watch::Receiver<u64>) {
        let figures = &app.figures;
        let mut at = figures.seen();
        loop {
            // Read in pages, since much may have happened; what cannot be read now is read at the
            // next change, and by listeners for themselves.
            loop {
                match app.store.reader().events(at, PAGE) {
                    Ok(page) if page.after == at => break,
                    Ok(page) => {
                        at = page.after;
                        figures.happened(&page);
                        // Nobody listening is no fault.
                        let _ = self.live.send(Arc::new(page));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the stream of events waits for the books");
                        break;
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = head.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Begins to listen after a place.
    pub fn listen(&self, store: Store, place: Place, seat: Seat) -> Listener {
        Listener { feed: self.clone(), store, place, seat, live: None, reading: None }
    }
}

/// A page on its way.
type Reading = Pin<Box<dyn Future<Output = Result<EventPage, ReadError>> + Send>>;
type Live = broadcast::Receiver<Arc<EventPage>>;

/// Somebody who listens.
pub struct Listener {
    feed: Feed,
    store: Store,
    place: Place,
    /// Its place among all who listen.
    seat: Seat,
    /// The feed, once this listener has caught up with it.
    live: Option<Live>,
    /// The page it reads for itself, and the feed as it was when that was begun. Kept here, so that
    /// whoever stops waiting for it finds it again.
    reading: Option<(Live, Reading)>,
}

/// Events of a page with their place.
pub type Seen = Arc<EventPage>;

impl Listener {
    /// The next events in order; waits while there are none. Among them may be those of other
    /// people, and there may be none at all. What was given once is not given again.
    ///
    /// # Errors
    /// When the books cannot be read.
    pub async fn next(&mut self) -> Result<Seen, ReadError> {
        loop {
            if let Some(live) = &mut self.live {
                match live.recv().await {
                    Ok(page) if page.after <= self.place.seq => continue,
                    Ok(page) => return Ok(self.take(page)),
                    // It fell behind, or the feed ended: the log has everything.
                    Err(broadcast::error::RecvError::Lagged(_)) => self.live = None,
                    Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
                }
            }
            // From here on nothing is missed: what the last read does not show, the feed will.
            if self.reading.is_none() {
                self.reading = Some((self.feed.live.subscribe(), self.read()));
            }
            let Some((_, reading)) = &mut self.reading else { continue };
            let page = reading.as_mut().await;
            let Some((live, _)) = self.reading.take() else { continue };
            let page = page?;
            if page.after > self.place.seq || self.place.seen.is_some() {
                return Ok(self.take(Arc::new(page)));
            }
            self.live = Some(live);
        }
    }

    /// Reads the next page apart from what serves requests, when it is this listener's turn.
    fn read(&self) -> Reading {
        let (store, from, seat) = (self.store.clone(), self.place.read_from(), self.seat.turn());
        let readers = self.feed.readers.clone();
        let who =
            (self.seat.principal != Principal::Operator).then(|| self.seat.principal.to_string());
        Box::pin(async move {
            // One of those who are the same waits among the others. Neither is ever closed.
            let turns = (seat.acquire_owned().await.ok(), readers.acquire_owned().await.ok());
            let read = tokio::task::spawn_blocking(move || {
                let page = store.reader().events_seen_by(from, PAGE, who.as_deref());
                // Whoever went away meanwhile was read for all the same.
                drop(turns);
                page
            });
            let broke = |why: tokio::task::JoinError| ReadError::Unavailable(why.to_string());
            read.await.map_err(broke)?
        })
    }

    /// What of a page is new, and where to go on.
    fn take(&mut self, page: Arc<EventPage>) -> Seen {
        let place = self.place;
        self.place = Place::after(page.after.max(place.seq));
        if page.events.iter().all(|event| place.is_before(event)) {
            return page;
        }
        let fresh = page.events.iter().filter(|event| place.is_before(event)).cloned().collect();
        Arc::new(EventPage { events: fresh, after: page.after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_they_are_written() {
        let check = |text: &str, expect: Option<(Option<&str>, u64, Option<usize>)>| {
            let found = text.parse::<Cursor>().ok();
            let found = found.as_ref();
            let found = found.map(|it| (it.epoch.as_deref(), it.place.seq, it.place.seen));
            assert_eq!(found, expect, "{text}");
        };
        check("41", Some((None, 41, None)));
        check("e1-41", Some((Some("e1"), 41, None)));
        check("e1-41.0", Some((Some("e1"), 41, Some(1))));
        check("0", Some((None, 0, None)));
        for text in ["", "-", "-41", "e1-", "e1-x", "+4", "4.", ".4", "4.-1", "e1-4.1.2", "４"] {
            check(text, None);
        }
        check(&u64::MAX.to_string(), Some((None, u64::MAX, None)));
        check("18446744073709551616", None);
    }
}
