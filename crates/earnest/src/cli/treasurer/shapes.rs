//! Made-up tabs: when agents buy, in six shapes. The same seed makes the same tabs everywhere.

use earnest_core::money::Micros;
use earnest_core::replay::{Line, Recording};
use earnest_core::time::{Timestamp, after};

/// What a shape is called, and how its lines are made.
type Shape = (&'static str, fn(&mut Dice) -> Vec<Step>);

/// The shapes, in turn.
const SHAPES: [Shape; 6] = [
    ("steady", steady),
    ("bursty", bursty),
    ("long session", long),
    ("short sessions", short),
    ("idle tail", tail),
    ("heavy", heavy),
];

/// Tabs of every shape in turn.
pub(super) fn recordings(tabs: u32, seed: u64) -> Vec<Recording> {
    let begin = Timestamp::from_second(1_796_000_000).unwrap_or(Timestamp::UNIX_EPOCH);
    let shapes = SHAPES.iter().cycle();
    let make = |(number, (shape, make)): (u64, &Shape)| {
        // Each tab has dice of its own, so that more tabs do not change the first ones.
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
        let mut at = begin;
        let lines = make(&mut dice).into_iter().map(|(gap, micros)| {
            at = after(at, gap);
            Line { at, amount_micros: Micros::new(micros.max(1)).unwrap_or(Micros::ZERO) }
        });
        Recording { shape: (*shape).to_owned(), lines: lines.collect() }
    };
    (0..u64::from(tabs)).zip(shapes).map(make).collect()
}

/// Seconds since the line before, and the price in micro-units.
type Step = (i64, i64);

/// A few hours of work, a call every minute or so.
fn steady(dice: &mut Dice) -> Vec<Step> {
    let price = dice.price();
    (0..dice.between(60, 400)).map(|_| (dice.between(15, 150), dice.near(price))).collect()
}

/// Bursts of many calls with a pause for thought between them, now and then a long one.
fn bursty(dice: &mut Dice) -> Vec<Step> {
    let price = dice.price();
    let mut steps = Vec::new();
    for _ in 0..dice.between(4, 14) {
        let pause = if dice.between(1, 5) == 1 {
            dice.between(1_800, 14_400)
        } else {
            dice.between(120, 1_500)
        };
        steps.push((pause, dice.near(price)));
        steps.extend((0..dice.between(10, 60)).map(|_| (dice.between(1, 8), dice.near(price))));
    }
    steps
}

/// One session of a day or more that never falls idle.
fn long(dice: &mut Dice) -> Vec<Step> {
    let price = dice.price();
    (0..dice.between(150, 500)).map(|_| (dice.between(60, 1_200), dice.near(price))).collect()
}

/// Many sessions a day of few calls each, over some days.
fn short(dice: &mut Dice) -> Vec<Step> {
    let price = dice.price();
    let mut steps = Vec::new();
    for _ in 0..dice.between(8, 40) {
        steps.push((dice.between(2_400, 21_600), dice.near(price)));
        steps.extend((0..dice.between(2, 12)).map(|_| (dice.between(5, 240), dice.near(price))));
    }
    steps
}

/// Work for an hour or two, then single calls hours apart.
fn tail(dice: &mut Dice) -> Vec<Step> {
    let price = dice.price();
    let work = dice.between(40, 160);
    let mut steps: Vec<Step> =
        (0..work).map(|_| (dice.between(10, 90), dice.near(price))).collect();
    steps.extend((0..dice.between(3, 15)).map(|_| (dice.between(3_600, 28_800), dice.near(price))));
    steps
}

/// Dear things, hour after hour on some days: tens to hundreds of dollars.
fn heavy(dice: &mut Dice) -> Vec<Step> {
    let price = dice.between(100_000, 1_000_000);
    let mut steps = Vec::new();
    for _ in 0..dice.between(1, 4) {
        steps.push((dice.between(28_800, 57_600), dice.near(price)));
        steps.extend((0..dice.between(30, 120)).map(|_| (dice.between(20, 600), dice.near(price))));
    }
    steps
}

/// A small generator (splitmix64): nothing here has to be hard to guess.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `least` to `most`, both included.
    fn between(&mut self, least: i64, most: i64) -> i64 {
        let span = u64::try_from(most.saturating_sub(least)).unwrap_or(0).saturating_add(1);
        let drawn = self.next().checked_rem(span).unwrap_or(0);
        least.saturating_add(i64::try_from(drawn).unwrap_or(0))
    }

    /// What a call of a tab costs about: from a fifth of a cent to sixteen cents, each doubling as
    /// likely as the next.
    fn price(&mut self) -> i64 {
        let octave = 1_i64 << self.between(0, 5);
        self.between(2_000, 4_999) * octave
    }

    /// A price near another, some of them free of whole cents.
    fn near(&mut self, price: i64) -> i64 {
        price * self.between(50, 150) / 100
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_tabs_and_more_tabs_change_none() {
        let few = recordings(10, 7);
        assert_eq!(few, recordings(20, 7)[..10]);
        assert_ne!(few, recordings(10, 8));
        for one in few {
            assert!(one.lines.is_sorted_by_key(|line| line.at) && one.lines.len() > 10, "{one:?}");
        }
    }
}
