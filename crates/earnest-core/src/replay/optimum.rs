//! The cheapest way to settle lines that are all known beforehand.
//!
//! It is bound as the treasurer is: every settlement takes everything that is owed, in whole cents;
//! a line has room when it comes, by what was captured until then; no line that can be settled waits
//! longer than the exposure window; and a session that ends with enough to be worth a fee is settled
//! before the next one begins. It is not bound by thresholds: those are the treasurer's own guesses.
//!
//! Whatever is captured, it is the sum of the lines so far, down to the cent. So where settlements
//! end tells everything about what comes after them, and the cheapest fees up to each line follow
//! from those up to earlier lines.

use super::{Line, count, plus, room_after};
use crate::money::{MICROS_PER_CENT, Micros};
use crate::settings::Settings;
use crate::time::seconds_between;
use crate::treasurer::minimum;

/// What the end of a session means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// What is worth a fee is settled then.
    Settle,
    /// Nothing.
    Ignore,
}

/// The cheapest settlements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cheapest {
    /// The sum of their fees.
    pub fees: Micros,
    /// How many there are.
    pub captures: u64,
}

/// The cheapest settlements of lines, oldest first. Lines that nobody could take within the rules
/// make it [`Micros::MAX`].
pub fn cheapest(lines: &[Line], settings: &Settings, ends: Ends) -> Cheapest {
    let sums = Sums::of(lines);
    let mut best: Vec<Option<Cheapest>> = vec![None; lines.len().saturating_add(1)];
    if let Some(first) = best.first_mut() {
        *first = Some(Cheapest::default());
    }
    for settled in 0..lines.len() {
        let Some(so_far) = best.get(settled).copied().flatten() else { continue };
        let room = room_after(sums.captured(settled), settings);
        for last in settled.saturating_add(1)..=lines.len() {
            let Some(block) = sums.block(lines, settled, last) else { break };
            if !block.fits(room, settings) {
                break;
            }
            // What is below a cent at the very end stays; before that it is no settlement.
            if !block.amount.is_zero() || last == lines.len() {
                let one = u64::from(!block.amount.is_zero());
                let fees = plus(so_far.fees, settings.fee.predict(block.amount));
                let way = Cheapest { fees, captures: so_far.captures.saturating_add(one) };
                if let Some(place) = best.get_mut(last) {
                    *place = Some(place.map_or(way, |known| known.min(way)));
                }
            }
            if ends == Ends::Settle && block.must_end(room, settings) {
                break;
            }
        }
    }
    let none = Cheapest { fees: Micros::MAX, captures: count(lines.len()) };
    best.last().copied().flatten().unwrap_or(none)
}

/// Running sums of lines: what would be owed up to each, had nothing been settled.
struct Sums(Vec<Micros>);

/// The lines of one settlement.
struct Block {
    /// What was owed before its last line.
    before: Micros,
    /// What is owed with it.
    owed: Micros,
    /// What a settlement takes.
    amount: Micros,
    /// From its first line to its last, in seconds.
    lasts: i64,
    /// From its last line to the next one, in seconds; none where there is no other.
    pause: Option<i64>,
}

impl Sums {
    fn of(lines: &[Line]) -> Self {
        let mut sums = vec![Micros::ZERO];
        let mut sum = Micros::ZERO;
        for line in lines {
            sum = plus(sum, line.amount_micros);
            sums.push(sum);
        }
        Self(sums)
    }

    fn up_to(&self, lines: usize) -> Micros {
        self.0.get(lines).copied().unwrap_or(Micros::MAX)
    }

    /// What was captured when everything up to a line was settled.
    fn captured(&self, lines: usize) -> Micros {
        self.up_to(lines).floor_to_cent()
    }

    /// The lines after `settled` up to and with `last`, counted from one.
    fn block(&self, lines: &[Line], settled: usize, last: usize) -> Option<Block> {
        let first = lines.get(settled)?;
        let end = lines.get(last.checked_sub(1)?)?;
        let captured = self.captured(settled);
        Some(Block {
            before: self.up_to(last.checked_sub(1)?).saturating_sub(captured),
            owed: self.up_to(last).saturating_sub(captured),
            amount: self.captured(last).saturating_sub(captured),
            lasts: seconds_between(first.at, end.at),
            pause: lines.get(last).map(|next| seconds_between(end.at, next.at)),
        })
    }
}

impl Block {
    /// Whether its last line had room, and none before it had to be settled earlier.
    fn fits(&self, room: Micros, settings: &Settings) -> bool {
        let settleable = self.before >= Micros::constant(MICROS_PER_CENT);
        self.owed <= room && !(settleable && self.lasts > settings.exposure_seconds)
    }

    /// Whether a session ends after it that is worth a fee.
    fn must_end(&self, room: Micros, settings: &Settings) -> bool {
        let worth =
            self.amount >= settings.min_settlement_micros && self.owed >= minimum(settings, room);
        worth && self.pause.is_some_and(|pause| pause >= settings.idle_seconds)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Recording, play};
    use super::*;
    use crate::time::{Timestamp, after};

    /// Every way to cut lines into settlements, each judged by itself.
    fn brute(lines: &[Line], settings: &Settings, ends: Ends) -> Option<Cheapest> {
        let mut best = None;
        for cuts in 0..1_u32 << (lines.len() - 1) {
            let cut = |line: usize| line + 1 == lines.len() || cuts >> line & 1 == 1;
            if let Some(way) = judged(lines, settings, ends, cut) {
                best = Some(best.map_or(way, |known: Cheapest| known.min(way)));
            }
        }
        best
    }

    /// Settles after each line where `cut` says so; `None` where that is against a rule.
    fn judged(
        lines: &[Line],
        settings: &Settings,
        ends: Ends,
        cut: impl Fn(usize) -> bool,
    ) -> Option<Cheapest> {
        let (mut owed, mut captured, mut since) = (0_i64, 0_i64, None);
        let mut found = Cheapest::default();
        for (at, line) in lines.iter().enumerate() {
            let room = room_after(Micros::constant(captured), settings);
            let oldest = *since.get_or_insert(line.at);
            if owed >= 10_000 && seconds_between(oldest, line.at) > settings.exposure_seconds {
                return None;
            }
            owed += line.amount_micros.get();
            if owed > room.get() {
                return None;
            }
            let whole = owed - owed % 10_000;
            if cut(at) {
                // Nothing can be settled; the same as not cutting, unless it is the end.
                if whole == 0 && at + 1 < lines.len() {
                    return None;
                }
                let fee = settings.fee.predict(Micros::constant(whole));
                found.fees = found.fees.checked_add(fee).unwrap();
                found.captures += u64::from(whole > 0);
                (owed, captured, since) = (owed - whole, captured + whole, None);
            } else if ends == Ends::Settle {
                let pause = seconds_between(line.at, lines[at + 1].at);
                let worth = whole >= settings.min_settlement_micros.get()
                    && owed >= minimum(settings, room).get();
                if worth && pause >= settings.idle_seconds {
                    return None;
                }
            }
        }
        Some(found)
    }

    fn lines(most: usize) -> impl Strategy<Value = Vec<Line>> {
        // Gaps within a session, around its end, and past the exposure window.
        let gap = prop_oneof![
            6 => 1..1_900_i64,
            2 => 1_799..1_802_i64,
            2 => 3_600..40_000_i64,
            1 => 86_399..86_402_i64,
        ];
        let amount =
            prop_oneof![1 => 1..10_000_i64, 1 => 9_990..10_010_i64, 6 => 10_000..9_000_000_i64];
        prop::collection::vec((gap, amount), 1..most).prop_map(|steps| {
            let mut at: Timestamp = "2026-11-30T09:00:00Z".parse().unwrap();
            let line = |(gap, amount)| {
                at = after(at, gap);
                Line { at, amount_micros: Micros::constant(amount) }
            };
            steps.into_iter().map(line).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn nothing_is_cheaper_than_the_optimum(lines in lines(12)) {
            for settings in [Settings::default(), Settings::simulated()] {
                for ends in [Ends::Settle, Ends::Ignore] {
                    let taken = play(&Recording { shape: String::new(), lines: lines.clone() }, &settings).taken;
                    if taken.is_empty() {
                        continue;
                    }
                    let brute = brute(&taken, &settings, ends);
                    prop_assert_eq!(Some(cheapest(&taken, &settings, ends)), brute);
                }
            }
        }

        #[test]
        fn the_treasurer_is_never_below_the_optimum(lines in lines(120)) {
            for settings in [Settings::default(), Settings::simulated()] {
                let played = play(&Recording { shape: String::new(), lines: lines.clone() }, &settings);
                let bound = cheapest(&played.taken, &settings, Ends::Settle);
                let unbound = cheapest(&played.taken, &settings, Ends::Ignore);
                prop_assert!(unbound.fees <= bound.fees, "{unbound:?} {bound:?}");
                prop_assert!(bound.fees <= played.fees(), "{bound:?} {:?}", played.captures);
                // Everything is captured but what is below a cent.
                let lines: i64 = played.taken.iter().map(|line| line.amount_micros.get()).sum();
                let captured: i64 = played.captures.iter().map(|one| one.amount.get()).sum();
                prop_assert_eq!(lines, captured + played.rest.get());
                prop_assert!(played.rest.get() < 10_000);
            }
        }
    }
}
