//! Stretches of calendar days that a budget counts in, in the owner's zone.

use std::fmt;
use std::str::FromStr;

use jiff::ToSpan as _;
use jiff::civil::{Date, date};
use serde::{Deserialize, Serialize};

/// How long a stretch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Every {
    /// A calendar day.
    Day,
    /// From Monday to Sunday (ISO 8601).
    Week,
    /// Two such weeks, counted from Monday 5 January 1970.
    Fortnight,
    /// A calendar month.
    Month,
    /// Three months, from January, April, July or October.
    Quarter,
    /// A calendar year.
    Year,
    /// All of time: it has no end.
    Ever,
}

/// One stretch of days: which kind, and its first day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period {
    /// How long.
    pub every: Every,
    /// Its first day; the same for all of time.
    pub from: Date,
}

/// A Monday; two-week stretches count from it.
const MONDAY: Date = date(1970, 1, 5);

impl Every {
    const ALL: [Self; 7] = [
        Self::Day,
        Self::Week,
        Self::Fortnight,
        Self::Month,
        Self::Quarter,
        Self::Year,
        Self::Ever,
    ];

    /// The word for it, as in the name of an account.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Fortnight => "fortnight",
            Self::Month => "month",
            Self::Quarter => "quarter",
            Self::Year => "year",
            Self::Ever => "ever",
        }
    }

    /// The stretch that a day falls in.
    pub fn of(self, day: Date) -> Period {
        let back = |days: i64| day.saturating_sub(days.days());
        let since_monday = i64::from(day.weekday().to_monday_zero_offset());
        let from = match self {
            Self::Day => day,
            Self::Week => back(since_monday),
            Self::Fortnight => {
                let days = day.since(MONDAY).map_or(0, |span| i64::from(span.get_days()));
                back(days.rem_euclid(14))
            }
            Self::Month => day.first_of_month(),
            Self::Quarter => {
                let past = i64::from(day.month()).saturating_sub(1).rem_euclid(3);
                day.first_of_month().saturating_sub(past.months())
            }
            Self::Year => day.first_of_year(),
            Self::Ever => MONDAY,
        };
        Period { every: self, from }
    }
}

impl Period {
    /// The first day of the next stretch; `None` for all of time.
    pub fn next(self) -> Option<Date> {
        let later = match self.every {
            Every::Day => 1.days(),
            Every::Week => 1.weeks(),
            Every::Fortnight => 2.weeks(),
            Every::Month => 1.months(),
            Every::Quarter => 3.months(),
            Every::Year => 1.years(),
            Every::Ever => return None,
        };
        Some(self.from.saturating_add(later))
    }
}

impl fmt::Display for Period {
    /// `week/2026-11-30`, as in the name of an account.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.every.as_str(), self.from)
    }
}

/// A text that names no stretch of days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a period, such as week/2026-11-30")]
pub struct UnknownPeriod;

impl FromStr for Period {
    type Err = UnknownPeriod;

    /// Only a stretch that begins where it says: two names never mean one account.
    fn from_str(text: &str) -> Result<Self, UnknownPeriod> {
        let (every, from) = text.split_once('/').ok_or(UnknownPeriod)?;
        let every = Every::ALL.into_iter().find(|it| it.as_str() == every).ok_or(UnknownPeriod)?;
        let from: Date = from.parse().map_err(|_| UnknownPeriod)?;
        let period = every.of(from);
        if period.from == from { Ok(period) } else { Err(UnknownPeriod) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_falls_in_one_stretch_of_each_kind() {
        let day = date(2026, 11, 30);
        let from = |every: Every| every.of(day).from.to_string();
        assert_eq!(from(Every::Day), "2026-11-30");
        assert_eq!(from(Every::Week), "2026-11-30", "a Monday");
        assert_eq!(from(Every::Month), "2026-11-01");
        assert_eq!(from(Every::Quarter), "2026-10-01");
        assert_eq!(from(Every::Year), "2026-01-01");
        assert_eq!(Every::Week.of(date(2026, 11, 29)).from, date(2026, 11, 23));
        for offset in 0..800 {
            let day = date(2025, 12, 20).saturating_add(i64::from(offset).days());
            for every in Every::ALL {
                let period = every.of(day);
                assert!(period.from <= day || every == Every::Ever);
                assert_eq!(every.of(period.from), period, "{period}");
                assert_eq!(period.to_string().parse(), Ok(period));
                if let Some(next) = period.next() {
                    assert!(day < next, "{day} {period}");
                    assert_eq!(every.of(next).from, next, "{period}");
                }
            }
        }
        assert!("week/2026-12-01".parse::<Period>().is_err(), "not its first day");
        assert!("hour/2026-12-01".parse::<Period>().is_err());
    }
}
