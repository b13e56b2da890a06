//! How many requests one of many may send: a bucket that refills evenly (GCRA), by key, in memory
//! that is bounded.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use governor::clock::Clock as Beats;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::state::keyed::ShrinkableKeyedStateStore;
use governor::{Quota, RateLimiter};

use crate::source::Clock;

/// The most that are remembered at once, about 100 bytes each. One that has not used anything up is
/// nothing to remember, so it takes a flood of as many addresses within seconds to get there.
const MOST_REMEMBERED: usize = 50_000;

/// Time that only goes forward, from a clock that people may set: a step back is no time at all.
#[derive(Clone)]
pub struct Beat(Arc<Inner>);

struct Inner {
    clock: Clock,
    seen: Mutex<(i64, u64)>,
}

impl Beat {
    /// Begins to count.
    pub fn new(clock: Clock) -> Self {
        let begin = clock().as_millisecond();
        Self(Arc::new(Inner { clock, seen: Mutex::new((begin, 0)) }))
    }
}

impl Beats for Beat {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        let now = (self.0.clock)().as_millisecond();
        let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, beats) = *seen;
        let gone = u64::try_from(now.saturating_sub(last)).unwrap_or(0);
        let beats = beats.saturating_add(gone.saturating_mul(1_000_000));
        *seen = (now, beats);
        Nanos::new(beats)
    }
}

/// There was one too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Of what.
    pub what: &'static str,
    /// How many there may be.
    pub per_minute: u32,
    /// Seconds after which there may be one more.
    pub retry_after_seconds: i64,
}

/// When each key's bucket is full again, and one that newcomers share where there is no room.
#[derive(Clone)]
struct Shelf<K>(Arc<Mutex<HashMap<Option<K>, Nanos>>>);

impl<K: Hash + Eq + Clone> Shelf<K> {
    fn with<T>(&self, use_it: impl FnOnce(&mut HashMap<Option<K>, Nanos>) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<K: Hash + Eq + Clone> StateStore for Shelf<K> {
    type Key = Option<K>;

    fn measure_and_replace<T, F, E>(&self, key: &Option<K>, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        self.with(|known| {
            let (answer, full_again) = f(known.get(key).copied())?;
            known.insert(key.clone(), full_again);
            Ok(answer)
        })
    }
}

impl<K: Hash + Eq + Clone> ShrinkableKeyedStateStore<Option<K>> for Shelf<K> {
    fn retain_recent(&self, drop_below: Nanos) {
        self.with(|known| known.retain(|_, full_again| *full_again > drop_below));
    }
    fn len(&self) -> usize {
        self.with(|known| known.len())
    }
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

type Buckets<K> = RateLimiter<Option<K>, Shelf<K>, Beat, NoOpMiddleware<Nanos>>;

/// A bucket for each key.
pub struct Limit<K: Hash + Eq + Clone> {
    buckets: Option<(Buckets<K>, u32)>,
    shelf: Shelf<K>,
    beat: Beat,
    most: usize,
    /// When those that are full again were forgotten last: looking for them at every request of a
    /// flood would be a flood's work.
    forgot_at: Mutex<Option<Nanos>>,
}

impl<K: Hash + Eq + Clone> Limit<K> {
    /// So many in a minute, all of them at once if they like; 0 for any number.
    pub fn per_minute(many: u32, beat: Beat) -> Self {
        let shelf = Shelf(Arc::default());
        let buckets = NonZeroU32::new(many).map(|quota| {
            let quota = Quota::per_minute(quota);
            (RateLimiter::new(quota, shelf.clone(), beat.clone()), many)
        });
        Self { buckets, shelf, beat, most: MOST_REMEMBERED, forgot_at: Mutex::default() }
    }

    /// Counts one.
    ///
    /// # Errors
    /// [`Full`] when it is one too many.
    pub fn count(&self, key: K, what: &'static str) -> Result<(), Full> {
        let Some((buckets, per_minute)) = &self.buckets else { return Ok(()) };
        // Where there is no room left, newcomers share what one may send: those who are known keep
        // theirs, and nobody gets more by coming from everywhere.
        let mut key = Some(key);
        if !self.has_room(&key) {
            self.forget(buckets);
            if !self.has_room(&key) {
                key = None;
            }
        }
        buckets.check_key(&key).map_err(|not_yet| {
            let wait = not_yet.wait_time_from(self.beat.now());
            let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1);
            let retry_after_seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
            Full { what, per_minute: *per_minute, retry_after_seconds }
        })
    }

    fn has_room(&self, key: &Option<K>) -> bool {
        self.shelf.with(|known| known.len() < self.most || known.contains_key(key))
    }

    /// Forgets whose buckets are full again, at most once a second.
    fn forget(&self, buckets: &Buckets<K>) {
        let now = self.beat.now();
        let mut at = self.forgot_at.lock().unwrap_or_else(PoisonError::into_inner);
        if at.is_none_or(|at| now.saturating_sub(at).as_u64() >= 1_000_000_000) {
            *at = Some(now);
            drop(at);
            buckets.retain_recent();
        }
    }

    /// How many are remembered.
    pub fn remembered(&self) -> usize {
        self.shelf.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use earnest_core::time::Timestamp;

    use super::*;

    fn clock() -> (Clock, Arc<AtomicI64>) {
        let ms = Arc::new(AtomicI64::new(1_000_000));
        let moved = ms.clone();
        let now = move || Timestamp::from_millisecond(moved.load(Ordering::SeqCst)).unwrap();
        (Arc::new(now), ms)
    }

    #[test]
    fn a_bucket_refills_evenly_and_a_clock_set_back_changes_nothing() {
        let (clock, ms) = clock();
        let limit = Limit::per_minute(10, Beat::new(clock));
        for _ in 0..10 {
            limit.count("a", "x").unwrap();
        }
        let full = limit.count("a", "x").unwrap_err();
        assert_eq!((full.per_minute, full.retry_after_seconds), (10, 6));
        limit.count("b", "x").unwrap();
        ms.fetch_sub(3_600_000, Ordering::SeqCst);
        assert_eq!(limit.count("a", "x").unwrap_err().retry_after_seconds, 6);
        ms.fetch_add(6_000, Ordering::SeqCst);
        limit.count("a", "x").unwrap();
        assert!(limit.count("a", "x").is_err());
    }

    #[test]
    fn memory_is_bounded_and_the_known_keep_their_share() {
        let (clock, ms) = clock();
        let mut limit = Limit::per_minute(10, Beat::new(clock));
        limit.most = 100;
        let mut refused = 0;
        for n in 0..10_000 {
            refused += u32::from(limit.count(n, "x").is_err());
            assert!(limit.remembered() <= 101);
        }
        // Those who came when there was no room shared ten.
        assert_eq!(refused, 10_000 - 100 - 10);
        limit.count(5, "x").unwrap();
        // What has refilled is forgotten.
        ms.fetch_add(120_000, Ordering::SeqCst);
        limit.count(20_000, "x").unwrap();
        assert_eq!(limit.remembered(), 1);
    }

    #[test]
    fn nothing_is_counted_where_nothing_is_set() {
        let limit = Limit::per_minute(0, Beat::new(clock().0));
        for _ in 0..100_000 {
            limit.count(1, "x").unwrap();
        }
        assert_eq!(limit.remembered(), 0);
    }
}
