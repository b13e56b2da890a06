//! What PayPal will probably take. Only ever a prediction: the books hold what PayPal reports.

use serde::{Deserialize, Serialize};

use crate::money::{MICROS_PER_CENT, Micros};

/// A fee schedule: a share and a fixed part. Schedules belong to the merchant's account and
/// country, so they are settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The share, in millionths.
    pub rate_ppm: u32,
    /// The fixed part.
    pub fixed_micros: Micros,
}

impl Default for Schedule {
    /// PayPal's US wallet rate, 3.49 % + $0.49 (two observed captures agree).
    fn default() -> Self {
        Self { rate_ppm: 34_900, fixed_micros: Micros::constant(490_000) }
    }
}

impl Schedule {
    /// The fee on one capture of that amount, rounded half-up to the cent; nothing on nothing.
    pub fn predict(self, amount: Micros) -> Micros {
        if amount.is_zero() {
            return Micros::ZERO;
        }
        let share = amount.share_ppm(self.rate_ppm).unwrap_or(Micros::MAX);
        let half = Micros::constant(MICROS_PER_CENT / 2);
        let sum = share.checked_add(self.fixed_micros).and_then(|sum| sum.checked_add(half));
        sum.map_or(Micros::MAX, Micros::floor_to_cent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_observed_fees() {
        let fee = |micros| Schedule::default().predict(Micros::constant(micros)).get();
        assert_eq!(fee(1_000_000), 520_000);
        assert_eq!(fee(2_500_000), 580_000);
        assert_eq!(fee(950_000), 520_000);
        assert_eq!(fee(100_000), 490_000);
        assert_eq!(fee(250_000), 500_000);
        assert_eq!(fee(0), 0);
    }

    #[test]
    fn rounds_half_up() {
        let half = Schedule { rate_ppm: 0, fixed_micros: Micros::constant(5_000) };
        assert_eq!(half.predict(Micros::constant(1)).get(), 10_000);
        let below = Schedule { rate_ppm: 0, fixed_micros: Micros::constant(4_999) };
        assert_eq!(below.predict(Micros::constant(1)).get(), 0);
    }
}
