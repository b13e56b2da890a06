//! Time as the rules see it: a parameter called `now`, never a clock.
//!
//! Windows of limits are fixed when a hold is made. A *day* is a calendar day in the owner's named
//! zone, with that zone's real clock changes, so a day may last 23 or 25 hours.

use std::fmt;
use std::str::FromStr;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

pub use jiff::{SignedDuration, Timestamp};

/// A named zone of the IANA database, such as `Europe/Amsterdam`; `UTC` by default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Zone(TimeZone);

/// A text that names no zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a time zone of the IANA database")]
pub struct UnknownZone(pub String);

impl Zone {
    /// Coordinated universal time.
    pub fn utc() -> Self {
        Self(TimeZone::UTC)
    }

    /// The calendar day that `now` falls in.
    pub fn day(&self, now: Timestamp) -> Date {
        self.0.to_datetime(now).date()
    }

    /// When the calendar day after `now` begins: the moment a day cap has room again.
    /// `now` itself where the zone has no such moment.
    pub fn next_day(&self, now: Timestamp) -> Timestamp {
        self.day(now)
            .tomorrow()
            .ok()
            .and_then(|day| day.to_zoned_datetime(self.0.clone()).ok())
            .map_or(now, |start| start.timestamp())
    }

    /// When a full hour of a day begins; where the clocks skip it, what they show next.
    pub fn hour_of(&self, day: Date, hour: i8) -> Option<Timestamp> {
        let at = jiff::civil::Time::new(hour, 0, 0, 0).ok()?;
        self.0.to_timestamp(day.to_datetime(at)).ok()
    }

    /// Day and time of day there, to the minute, as people write it: `2026-11-30 10:15`.
    pub fn minute(&self, at: Timestamp) -> String {
        self.0.to_datetime(at).strftime("%Y-%m-%d %H:%M").to_string()
    }

    /// The name in the IANA database.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }
}

impl Default for Zone {
    fn default() -> Self {
        Self::utc()
    }
}

impl FromStr for Zone {
    type Err = UnknownZone;
    fn from_str(name: &str) -> Result<Self, UnknownZone> {
        if name == "UTC" {
            return Ok(Self::utc());
        }
        TimeZone::get(name).map(Self).map_err(|_| UnknownZone(name.to_owned()))
    }
}

impl TryFrom<String> for Zone {
    type Error = UnknownZone;
    fn try_from(name: String) -> Result<Self, UnknownZone> {
        name.parse()
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> Self {
        zone.name().to_owned()
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `at` plus a number of seconds, held at the ends of what a timestamp can say.
pub fn after(at: Timestamp, seconds: i64) -> Timestamp {
    plus(at, SignedDuration::from_secs(seconds))
}

/// `at` plus a duration, held at the ends of what a timestamp can say.
pub fn plus(at: Timestamp, more: SignedDuration) -> Timestamp {
    at.saturating_add(more).unwrap_or(at)
}

/// Whole seconds from `from` to `to`; negative when `to` is earlier.
pub fn seconds_between(from: Timestamp, to: Timestamp) -> i64 {
    to.duration_since(from).as_secs()
}

/// `at` without anything finer than a millisecond: what rows and signed documents keep.
pub fn to_millisecond(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_follows_the_zone_and_its_clock_changes() {
        let zone: Zone = "Europe/Amsterdam".parse().unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(zone.day(at("2026-11-29T22:59:59Z")).to_string(), "2026-11-29");
        assert_eq!(zone.day(at("2026-11-29T23:00:00Z")).to_string(), "2026-11-30");
        // 29 March 2026 has 23 hours in Amsterdam, 25 October has 25.
        let start = zone.next_day(at("2026-03-28T12:00:00Z"));
        assert_eq!(seconds_between(start, zone.next_day(start)), 23 * 3600);
        let start = zone.next_day(at("2026-10-24T12:00:00Z"));
        assert_eq!(seconds_between(start, zone.next_day(start)), 25 * 3600);
        assert!("Mars/Olympus".parse::<Zone>().is_err());
    }
}
