//! The reading connections: made as needed, at most so many, each lent for a few statements.

use std::sync::{Condvar, Mutex, PoisonError};

use super::link::{Server, blocking};
use super::read::{Linked, get, number, unavailable};
use crate::ReadError;
use crate::read::{Source, Strain};

/// Sessions of this database, all but the one that asks. Ages are never below 0, though clocks of
/// a statement and of a session differ.
const SESSIONS: &str = "
    SELECT coalesce(max(greatest(age, 0)), 0)::bigint,
           coalesce(max(greatest(idle, 0)), 0)::bigint,
           count(*) FILTER (WHERE wait_event_type = 'Lock'),
           coalesce((array_agg('session ' || pid || ' of `' || application_name || '`, '
               || coalesce(state, 'hidden') ORDER BY age DESC) FILTER (WHERE age IS NOT NULL))[1], '')
    FROM (SELECT pid, state, wait_event_type, coalesce(application_name, '') AS application_name,
                 floor(extract(epoch FROM clock_timestamp() - xact_start)) AS age,
                 CASE WHEN state LIKE 'idle in transaction%'
                      THEN floor(extract(epoch FROM clock_timestamp() - state_change)) END AS idle
          FROM pg_stat_activity
          WHERE datname = current_database() AND pid <> pg_backend_pid()
                AND backend_type = 'client backend') sessions";

/// A server or pooler has few to give, and several nodes share them.
const MOST: usize = 8;

pub(crate) struct Pool {
    server: Server,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Linked>,
    open: usize,
    lent: u64,
}

/// A connection out of the pool; goes back if it can be used again.
struct Lent<'a> {
    pool: &'a Pool,
    linked: Option<Linked>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock().unwrap_or_else(PoisonError::into_inner);
        match self.linked.take() {
            Some(linked) if linked.is_sound() => state.idle.push(linked),
            _ => state.open = state.open.saturating_sub(1),
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}

impl Pool {
    pub(crate) fn new(server: Server) -> Self {
        Self { server, state: Mutex::default(), freed: Condvar::new() }
    }

    fn lend(&self) -> Result<Lent<'_>, ReadError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.lent = state.lent.saturating_add(1);
        loop {
            if let Some(linked) = state.idle.pop() {
                if linked.is_sound() {
                    return Ok(Lent { pool: self, linked: Some(linked) });
                }
                state.open = state.open.saturating_sub(1);
                continue;
            }
            if state.open < MOST {
                break;
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.open = state.open.saturating_add(1);
        drop(state);
        let mut lent = Lent { pool: self, linked: None };
        let link = self.server.connect().map_err(|why| unavailable(&why))?;
        lent.linked = Some(Linked::new(link, Some(self.server.clone())));
        Ok(lent)
    }

    /// How many connections are out now, and how often one was lent so far.
    pub(crate) fn lending(&self) -> (usize, u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.open.saturating_sub(state.idle.len()), state.lent)
    }

    /// What the server says of its sessions in this database. Of those that others opened it shows
    /// no more than that they are there, unless our role may read all of `pg_stat_activity`.
    pub(crate) fn strain(&self) -> Result<Strain, ReadError> {
        let asked = |linked: &Linked| {
            let rows = linked.link().query(SESSIONS, &[]).map_err(|why| unavailable(&why))?;
            let row = rows.first().ok_or_else(|| ReadError::damaged("no row"))?;
            Ok(Strain {
                oldest_seconds: number(row, 0)?,
                idle_seconds: number(row, 1)?,
                waiting: number(row, 2)?,
                who: get(row, 3)?,
                log_bytes: 0,
            })
        };
        blocking(|| {
            let lent = self.lend()?;
            match &lent.linked {
                Some(linked) => asked(linked),
                None => Err(ReadError::Unavailable("no connection".to_owned())),
            }
        })
    }

    /// Runs reads that see one moment.
    pub(crate) fn snapshot<T>(
        &self,
        read: impl FnOnce(&dyn Source) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        blocking(|| {
            let lent = self.lend()?;
            match &lent.linked {
                Some(linked) => linked.at_one_moment(read),
                None => Err(ReadError::Unavailable("no connection".to_owned())),
            }
        })
    }
}
