//! The reading connections: opened as needed, at most so many, each busy for a few statements.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::open::{make_private_file, open_reader, sync_folder_of};
use super::read::Connected;
use crate::read::{Source, Strain};
use crate::{ReadError, SimulatedFiles};

/// More would only wait for the same cores.
const MOST: usize = 16;

pub(crate) struct Pool {
    files: Option<SimulatedFiles>,
    path: PathBuf,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Connected>,
    open: usize,
    /// How often one was lent.
    lent: u64,
}

/// A connection out of the pool; goes back, or is forgotten if a read panicked.
struct Lent<'a> {
    pool: &'a Pool,
    connected: Option<Connected>,
    sound: bool,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock().unwrap_or_else(PoisonError::into_inner);
        match self.connected.take() {
            Some(connected) if self.sound => state.idle.push(connected),
            _ => state.open = state.open.saturating_sub(1),
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}

fn unavailable(why: impl std::fmt::Display) -> ReadError {
    ReadError::Unavailable(why.to_string())
}

impl Pool {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self::on(None, path)
    }

    /// As [`Pool::new`], for a file that may be on a simulated disk.
    pub(crate) fn on(files: Option<SimulatedFiles>, path: PathBuf) -> Self {
        Self { files, path, state: Mutex::default(), freed: Condvar::new() }
    }

    fn lend(&self) -> Result<Lent<'_>, ReadError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.lent = state.lent.saturating_add(1);
        loop {
            if let Some(connected) = state.idle.pop() {
                return Ok(Lent { pool: self, connected: Some(connected), sound: false });
            }
            if state.open < MOST {
                break;
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.open = state.open.saturating_add(1);
        drop(state);
        let mut lent = Lent { pool: self, connected: None, sound: false };
        let conn = open_reader(self.files.as_ref(), &self.path).map_err(unavailable)?;
        lent.connected = Some(Connected::new(conn));
        Ok(lent)
    }

    /// How long the write-ahead log is: it is cut to its soft bound whenever it is folded, and longer
    /// only while somebody keeps it from that.
    pub(crate) fn strain(&self) -> Result<Strain, ReadError> {
        let mut name = self.path.clone().into_os_string();
        name.push("-wal");
        let log_bytes = match std::fs::metadata(&name) {
            Ok(found) => found.len(),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => 0,
            Err(why) => return Err(ReadError::Unavailable(why.to_string())),
        };
        Ok(Strain { log_bytes, ..Strain::default() })
    }

    /// How many connections are out now, and how often one was lent so far.
    pub(crate) fn lending(&self) -> (usize, u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.open.saturating_sub(state.idle.len()), state.lent)
    }

    pub(crate) fn snapshot<T>(
        &self,
        read: impl FnOnce(&dyn Source) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let mut lent = self.lend()?;
        let Some(connected) = &lent.connected else { return Err(unavailable("no connection")) };
        let answer = connected.at_one_moment(read);
        lent.sound = connected.is_idle();
        answer
    }

    /// Copies the database to a new file, which appears under its name only when it is whole and
    /// synced.
    pub(crate) fn backup_to(&self, path: &Path) -> Result<(), ReadError> {
        if path.exists() {
            return Err(unavailable(format!("`{}` exists", path.display())));
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let copy = || -> Result<(), String> {
            let text = partial.to_str().ok_or("the path is not UTF-8")?;
            // Only an empty file is overwritten, so nothing of value can be.
            let file = make_private_file(&partial).map_err(|why| why.to_string())?;
            file.set_len(0).map_err(|why| why.to_string())?;
            let conn =
                open_reader(self.files.as_ref(), &self.path).map_err(|why| why.to_string())?;
            conn.busy_timeout(Duration::from_secs(10)).map_err(|why| why.to_string())?;
            conn.execute("VACUUM INTO ?1", [text]).map_err(|why| why.to_string())?;
            file.sync_all().map_err(|why| why.to_string())?;
            std::fs::rename(&partial, path).map_err(|why| why.to_string())?;
            sync_folder_of(path).map_err(|why| why.to_string())
        };
        let copied = copy();
        if copied.is_err() {
            // What is left of a copy that failed is worth nothing.
            let _ = std::fs::remove_file(&partial);
        }
        copied.map_err(unavailable)
    }
}
