//! Amounts as PayPal knows them: whole minor units of a currency on PayPal's own decimals table.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// PayPal's currencies and their decimals. Not ISO 4217: HUF and TWD have none here.
const DECIMALS: &[(&str, u32)] = &[
    ("AUD", 2),
    ("BRL", 2),
    ("CAD", 2),
    ("CHF", 2),
    ("CNY", 2),
    ("CZK", 2),
    ("DKK", 2),
    ("EUR", 2),
    ("GBP", 2),
    ("HKD", 2),
    ("HUF", 0),
    ("ILS", 2),
    ("JPY", 0),
    ("MXN", 2),
    ("MYR", 2),
    ("NOK", 2),
    ("NZD", 2),
    ("PHP", 2),
    ("PLN", 2),
    ("SEK", 2),
    ("SGD", 2),
    ("THB", 2),
    ("TWD", 0),
    ("USD", 2),
];

/// The largest `value` PayPal takes, 999999999999999.99, in hundredths.
const LARGEST_HUNDREDTHS: i128 = 99_999_999_999_999_999;

/// A currency PayPal supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Currency {
    code: &'static str,
    decimals: u32,
}

impl Currency {
    /// US dollars.
    pub const USD: Self = Self { code: "USD", decimals: 2 };

    /// The currency of this code, if PayPal supports it.
    #[must_use]
    pub fn from_code(code: &str) -> Option<Self> {
        DECIMALS
            .iter()
            .find(|(known, _)| *known == code)
            .map(|&(code, decimals)| Self { code, decimals })
    }

    /// The three-letter code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        self.code
    }

    /// How many micro-units one minor unit is: 10 000 for cents, 1 000 000 for yen.
    #[must_use]
    pub const fn micros_per_minor(self) -> i64 {
        if self.decimals == 2 { 10_000 } else { 1_000_000 }
    }
}

impl Serialize for Currency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code)
    }
}

/// Why a `value` is not an amount of its currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AmountFault {
    /// Decimals on a currency that has none.
    DecimalsNotSupported,
    /// More than two decimals.
    TooPrecise,
    /// Above 999999999999999.99.
    TooLarge,
    /// Not a number at all.
    Malformed,
}

/// An amount: minor units of one currency. Negative for money that left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Money {
    /// Whole minor units: cents, or yen.
    pub minor: i64,
    /// The currency they are of.
    pub currency: Currency,
}

impl Money {
    /// `minor` units of `currency`.
    #[must_use]
    pub const fn new(currency: Currency, minor: i64) -> Self {
        Self { minor, currency }
    }

    /// Nothing, in `currency`.
    #[must_use]
    pub const fn zero(currency: Currency) -> Self {
        Self::new(currency, 0)
    }

    /// The same currency, another amount.
    #[must_use]
    pub const fn with_minor(self, minor: i64) -> Self {
        Self::new(self.currency, minor)
    }

    /// The amount in millionths of a unit.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.minor.saturating_mul(self.currency.micros_per_minor())
    }

    /// Reads PayPal's `value` text, which may be `"6"`, `"6.0"` or `".5"`.
    pub(crate) fn parse(currency: Currency, value: &str) -> Result<Self, AmountFault> {
        let (negative, digits) = match value.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, value),
        };
        let (whole, fraction) = match digits.split_once('.') {
            Some((_, "")) => return Err(AmountFault::Malformed),
            Some((whole, fraction)) => (whole, fraction),
            None => (digits, ""),
        };
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !all_digits(whole) || !all_digits(fraction) || (whole.is_empty() && fraction.is_empty())
        {
            return Err(AmountFault::Malformed);
        }
        if fraction.len() > 2 {
            return Err(AmountFault::TooPrecise);
        }
        if currency.decimals == 0 && !fraction.is_empty() {
            return Err(AmountFault::DecimalsNotSupported);
        }
        let hundredths: i128 =
            format!("{whole}{fraction:0<2}").parse().map_err(|_| AmountFault::TooLarge)?;
        if hundredths > LARGEST_HUNDREDTHS {
            return Err(AmountFault::TooLarge);
        }
        let units = if currency.decimals == 0 { hundredths / 100 } else { hundredths };
        let minor = i64::try_from(units).map_err(|_| AmountFault::TooLarge)?;
        Ok(Self::new(currency, if negative { -minor } else { minor }))
    }

    /// The `value` text with the currency's fixed decimals.
    #[must_use]
    pub fn value(self) -> String {
        if self.currency.decimals == 0 {
            return self.minor.to_string();
        }
        let sign = if self.minor < 0 { "-" } else { "" };
        let size = self.minor.unsigned_abs();
        format!("{sign}{}.{:02}", size / 100, size % 100)
    }

    /// PayPal's `{"currency_code", "value"}`.
    pub(crate) fn json(self) -> Value {
        json!({"currency_code": self.currency.code, "value": self.value()})
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.value(), self.currency.code)
    }
}

impl Serialize for Money {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.value())
    }
}

/// What PayPal keeps of a capture: a share in millionths plus a fixed part, half-up to the cent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeeSchedule {
    /// Millionths of the gross amount: 34 900 is 3.49 %.
    pub rate_ppm: i64,
    /// Millionths of a currency unit: 490 000 is 0.49.
    pub fixed_micros: i64,
}

impl FeeSchedule {
    /// US wallet payments in 2026: 3.49 % + 0.49.
    pub const US_WALLET: Self = Self { rate_ppm: 34_900, fixed_micros: 490_000 };

    /// The fee on `gross`, rounded half-up to a minor unit.
    #[must_use]
    pub fn fee_on(self, gross: Money) -> Money {
        let unit = i128::from(gross.currency.micros_per_minor());
        // Everything in millionths of a micro until the one rounding, so nothing is rounded twice.
        let share = i128::from(gross.minor) * unit * i128::from(self.rate_ppm);
        let exact = share + i128::from(self.fixed_micros) * 1_000_000;
        let minor = (exact + unit * 500_000).div_euclid(unit * 1_000_000);
        gross.with_minor(i64::try_from(minor).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(code: &str, value: &str) -> Result<String, AmountFault> {
        Money::parse(Currency::from_code(code).unwrap(), value).map(Money::value)
    }

    #[test]
    fn values_are_read_as_decimals_and_printed_fixed() {
        assert_eq!(parsed("USD", "6"), Ok("6.00".into()));
        assert_eq!(parsed("USD", "3.9"), Ok("3.90".into()));
        assert_eq!(parsed("USD", ".5"), Ok("0.50".into()));
        assert_eq!(parsed("USD", "-0.45"), Ok("-0.45".into()));
        assert_eq!(parsed("JPY", "705"), Ok("705".into()));
        assert_eq!(parsed("JPY", "705.00"), Err(AmountFault::DecimalsNotSupported));
        assert_eq!(parsed("USD", "1.005"), Err(AmountFault::TooPrecise));
        assert_eq!(parsed("USD", "1."), Err(AmountFault::Malformed));
        assert_eq!(parsed("USD", "1000000000000000.00"), Err(AmountFault::TooLarge));
    }

    #[test]
    fn the_fee_reproduces_observed_captures() {
        let fee = |cents| FeeSchedule::US_WALLET.fee_on(Money::new(Currency::USD, cents)).value();
        assert_eq!(fee(100), "0.52");
        assert_eq!(fee(250), "0.58");
        assert_eq!(fee(450), "0.65");
        assert_eq!(fee(95), "0.52");
        assert_eq!(fee(4), "0.49");
        let yen = Money::new(Currency::from_code("JPY").unwrap(), 1_000);
        assert_eq!(FeeSchedule::US_WALLET.fee_on(yen).value(), "35");
    }
}
