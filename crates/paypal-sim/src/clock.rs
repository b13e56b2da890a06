//! The simulator's clock: real time plus an offset, or standing still.
//!
//! Every lifetime in the simulator (tokens, keys, orders, holds, report lag, webhook retries) is
//! read from here, so three hours or thirty days pass in one call of [`Clock::advance`].

use std::sync::{Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};

/// A clock that tests can move forward. It never goes backwards.
#[derive(Debug)]
pub struct Clock {
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    offset: SignedDuration,
    frozen_at: Option<Timestamp>,
}

impl Clock {
    /// A clock that shows `start` (or real time) now, and stands still if `frozen`.
    #[must_use]
    pub fn new(start: Option<Timestamp>, frozen: bool) -> Self {
        let real = Timestamp::now();
        let shown = start.unwrap_or(real);
        let state =
            State { offset: shown.duration_since(real), frozen_at: frozen.then_some(shown) };
        Self { state: Mutex::new(state) }
    }

    /// The time the simulator believes it is.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.frozen_at.unwrap_or_else(|| plus(Timestamp::now(), state.offset))
    }

    /// Moves the clock forward by whole seconds and returns the new time.
    pub fn advance(&self, seconds: u32) -> Timestamp {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let step = SignedDuration::from_secs(i64::from(seconds));
        state.offset = state.offset.saturating_add(step);
        state.frozen_at = state.frozen_at.map(|at| plus(at, step));
        state.frozen_at.unwrap_or_else(|| plus(Timestamp::now(), state.offset))
    }

    /// Stops the clock where it is.
    pub fn freeze(&self) {
        let now = self.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.frozen_at = Some(now);
    }

    /// Lets a frozen clock run on from the time it shows.
    pub fn run(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = state.frozen_at.take() {
            state.offset = at.duration_since(Timestamp::now());
        }
    }

    /// Whether the clock stands still.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.frozen_at.is_some()
    }
}

/// `at + step`, stopping at the end of representable time.
pub(crate) fn plus(at: Timestamp, step: SignedDuration) -> Timestamp {
    at.checked_add(step).unwrap_or(Timestamp::MAX)
}

/// `at` plus whole seconds (negative for the past).
pub(crate) fn plus_seconds(at: Timestamp, seconds: i64) -> Timestamp {
    let step = SignedDuration::from_secs(seconds);
    at.checked_add(step).unwrap_or(if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// The form PayPal prints: seconds and `Z`.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The form webhook events carry: milliseconds and `Z`.
pub(crate) fn rfc3339_millis(at: Timestamp) -> String {
    let millis = at.subsec_millisecond().max(0);
    format!("{}.{millis:03}Z", at.strftime("%Y-%m-%dT%H:%M:%S"))
}
