//! Who keeps something in memory that was read from rows of one kind, and has to know when they change.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Kinds that somebody watches, with how often their rows changed.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<Vec<(&'static str, Arc<AtomicU64>)>>);

/// How often rows of one kind changed, by whoever wrote them; see
/// [`Store::changes_of`](crate::Store::changes_of).
#[derive(Clone, Debug)]
pub struct Changes(Arc<AtomicU64>);

impl Changes {
    /// The count now. Whoever reads rows after asking, and finds the same count later, has read what
    /// still holds as far as this store knows.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl Watches {
    /// Begins to count, or joins who does.
    pub(crate) fn of(&self, kind: &'static str) -> Changes {
        let mut known = self.lock();
        if let Some((_, count)) = known.iter().find(|(watched, _)| *watched == kind) {
            return Changes(count.clone());
        }
        let count = Arc::<AtomicU64>::default();
        known.push((kind, count.clone()));
        Changes(count)
    }

    /// Rows of these kinds changed.
    pub(crate) fn changed<'a>(&self, kinds: impl Iterator<Item = &'a str>) {
        let known = self.lock();
        if known.is_empty() {
            return;
        }
        for kind in kinds {
            if let Some((_, count)) = known.iter().find(|(watched, _)| *watched == kind) {
                count.fetch_add(1, Ordering::Release);
            }
        }
    }

    /// Nobody knows what changed.
    pub(crate) fn all_changed(&self) {
        for (_, count) in &*self.lock() {
            count.fetch_add(1, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(&'static str, Arc<AtomicU64>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
