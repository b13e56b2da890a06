//! PayPal's clock beside ours: every answer names the time it was made (`Date`, RFC 9110 section
//! 6.6.1).
//!
//! A charge is looked for in PayPal's records around the time it was sent, and its key may be sent
//! again only while PayPal keeps it. Both are PayPal's times: by a clock of ours that is wrong, the
//! records of another hour would prove that nothing was charged.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use earnest_core::time::{SignedDuration, Timestamp};

/// Our clock.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What two clocks may differ by and count as the same: `Date` has whole seconds, and an answer takes
/// its time.
pub const SAME: SignedDuration = SignedDuration::from_mins(1);

/// The last time that PayPal named.
#[derive(Clone, Copy)]
struct Told {
    theirs: Timestamp,
    ours: Timestamp,
    /// The machine's time since it started, which nobody sets.
    at: Instant,
}

/// Our clock was set since PayPal last told the time, and PayPal does not tell it now: what it told
/// says nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("our clock was set, and PayPal does not tell the time now")]
pub struct ClockUnknown;

/// How PayPal's clock stands to ours.
#[derive(Default)]
pub(crate) struct Heard {
    clock: OnceLock<Clock>,
    last: Mutex<Option<Told>>,
}

impl Heard {
    /// Goes by this clock; only the first counts.
    pub(crate) fn go_by(&self, clock: Clock) {
        let _ = self.clock.set(clock);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Told>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An answer came with this `Date`.
    pub(crate) fn hear(&self, headers: &reqwest::header::HeaderMap) {
        let date = headers.get(reqwest::header::DATE).and_then(|date| date.to_str().ok());
        let (Some(clock), Some(theirs)) = (self.clock.get(), date.and_then(read)) else { return };
        *self.lock() = Some(Told { theirs, ours: clock(), at: Instant::now() });
    }

    /// How far PayPal's clock is ahead of ours, as its last answer told.
    pub(crate) fn ahead(&self) -> Option<SignedDuration> {
        self.lock().map(|told| told.theirs.duration_since(told.ours))
    }

    /// How far PayPal's clock is ahead, where what it told still says so; `None` where it never told.
    ///
    /// # Errors
    /// [`ClockUnknown`].
    pub(crate) fn sure(&self) -> Result<Option<SignedDuration>, ClockUnknown> {
        match self.ahead() {
            Some(_) if self.is_stale() => Err(ClockUnknown),
            ahead => Ok(ahead),
        }
    }

    /// Whether PayPal has to be asked: it never told, or our clock was set since (it went by more or
    /// less than the machine's time did; a machine that slept looks the same).
    pub(crate) fn is_stale(&self) -> bool {
        let Some(clock) = self.clock.get() else { return false };
        let Some(told) = *self.lock() else { return true };
        let by_machine = SignedDuration::try_from(told.at.elapsed()).unwrap_or(SignedDuration::MAX);
        let by_clock = clock().duration_since(told.ours);
        by_clock.saturating_sub(by_machine).abs() > SAME
    }
}

fn read(date: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use reqwest::header::{DATE, HeaderMap, HeaderValue};

    use super::*;

    #[test]
    fn a_clock_that_was_set_is_told_from_one_that_is_wrong() {
        let ours = Arc::new(AtomicI64::new(1_800_000_000));
        let heard = Heard::default();
        assert!(!heard.is_stale(), "nobody asks for a clock");
        let clock = Arc::clone(&ours);
        let seconds = move || clock.load(Ordering::SeqCst);
        heard.go_by(Arc::new(move || Timestamp::from_second(seconds()).unwrap()));
        assert!(heard.is_stale() && heard.ahead().is_none(), "PayPal told nothing so far");
        assert_eq!(heard.sure(), Ok(None));
        let mut headers = HeaderMap::new();
        heard.hear(&headers);
        headers.insert(DATE, HeaderValue::from_static("soon"));
        heard.hear(&headers);
        assert!(heard.is_stale());
        // 2027-01-15T08:00:00Z is 1 800 000 000.
        headers.insert(DATE, HeaderValue::from_static("Fri, 15 Jan 2027 10:00:00 GMT"));
        heard.hear(&headers);
        assert_eq!(heard.ahead(), Some(SignedDuration::from_hours(2)));
        assert!(!heard.is_stale(), "wrong, and known to be");
        ours.fetch_add(7_200, Ordering::SeqCst);
        assert!(heard.is_stale(), "set");
        assert_eq!(heard.sure(), Err(ClockUnknown));
        heard.hear(&HeaderMap::new());
        assert_eq!(heard.sure(), Err(ClockUnknown), "an answer without a date tells nothing");
        heard.hear(&headers);
        assert_eq!(heard.ahead(), Some(SignedDuration::ZERO));
        assert!(!heard.is_stale());
    }
}
