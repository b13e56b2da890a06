//! How often an address tried to sign in with what is no link.
//!
//! A token holds 128 random bits, so this is not what keeps guesses from coming true; it keeps them
//! from costing anything. Kept in memory and per address: counted before a token is looked at, so
//! that no form of request goes past it; what was good is forgiven. How many links there are for an
//! owner is bounded in the unit that makes them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use earnest_core::problem::{Code, Refusal};
use earnest_core::time::{Timestamp, seconds_between};

use crate::front::address::household;
use crate::limits::Limits;

/// The most addresses that are remembered; past it those whose time is over go, then all.
const MOST_ADDRESSES: usize = 10_000;

/// Failed attempts by address.
#[derive(Debug)]
pub struct Attempts {
    known: Mutex<HashMap<IpAddr, (Timestamp, u32)>>,
    /// How many of them may fail.
    most_failed: u32,
    /// In how many seconds they are counted.
    window_seconds: i64,
}

impl Attempts {
    /// As many as the limits say.
    pub fn new(limits: &Limits) -> Self {
        Self {
            known: Mutex::default(),
            most_failed: limits.sign_in_attempts,
            window_seconds: limits.sign_in_attempt_seconds,
        }
    }

    /// That address tries; counted as failed until it is [`forgiven`](Self::forgive), so that any
    /// number of tries at once are no more than any number one after the other.
    ///
    /// # Errors
    /// `rate_limited`, with the time after which it may.
    pub fn begin(&self, address: IpAddr, now: Timestamp) -> Result<(), Refusal> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let over = |begun: &Timestamp| seconds_between(*begun, now) >= self.window_seconds;
        if known.len() >= MOST_ADDRESSES {
            known.retain(|_, (begun, _)| !over(begun));
        }
        if known.len() >= MOST_ADDRESSES {
            known.clear();
        }
        let (begun, tried) = known.entry(household(address)).or_insert((now, 0));
        if over(begun) {
            (*begun, *tried) = (now, 0);
        }
        if *tried >= self.most_failed {
            let why = "too many sign-in links from this address were no good";
            let wait = self.window_seconds.saturating_sub(seconds_between(*begun, now)).max(1);
            return Err(Refusal::new(Code::RateLimited, why).retry_after(wait));
        }
        *tried = tried.saturating_add(1);
        Ok(())
    }

    /// It was a link after all.
    pub fn forgive(&self, address: IpAddr) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, tried)) = known.get_mut(&household(address)) {
            *tried = tried.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earnest_core::time::after;

    #[test]
    fn an_address_is_refused_for_a_while() {
        let (attempts, now) = (Attempts::new(&Limits::default()), Timestamp::UNIX_EPOCH);
        let one: IpAddr = "2001:db8::1".parse().unwrap();
        let neighbour: IpAddr = "2001:db8::2".parse().unwrap();
        let other: IpAddr = "2001:db8:0:1::1".parse().unwrap();
        for _ in 0..Limits::default().sign_in_attempts {
            // One that was good does not count.
            attempts.begin(one, now).unwrap();
            attempts.forgive(one);
            attempts.begin(one, now).unwrap();
        }
        let refusal = attempts.begin(neighbour, after(now, 10)).unwrap_err();
        assert_eq!(refusal.retry_after_seconds, Some(attempts.window_seconds - 10));
        attempts.begin(other, now).unwrap();
        // The next window counts from nothing.
        attempts.begin(one, after(now, attempts.window_seconds)).unwrap();
    }

    #[test]
    fn memory_is_bounded() {
        let (attempts, now) = (Attempts::new(&Limits::default()), Timestamp::UNIX_EPOCH);
        for n in 0..u32::try_from(MOST_ADDRESSES).unwrap() * 2 {
            attempts.begin(IpAddr::from(n.to_be_bytes()), now).unwrap();
        }
        assert!(attempts.known.lock().unwrap().len() <= MOST_ADDRESSES);
    }
}
