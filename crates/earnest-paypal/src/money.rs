//! PayPal's amounts: decimal strings with a fixed number of decimals for each currency.
//!
//! The only place with two-decimal strings. Ours are integer micro-units; PayPal moves cents, so
//! what goes out must be whole cents already (the remainder stays on its account, see the ledger),
//! and what comes in is read as a decimal, never as a float.

use std::fmt;

use earnest_core::money::{Currency, MICROS_PER_CENT, MICROS_PER_UNIT, Micros};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest `value` that PayPal's schema allows.
const MAX_VALUE_LENGTH: usize = 32;

/// Currencies without decimals: PayPal's own list, neither ISO 4217's nor anybody else's.
const NO_DECIMALS: [&str; 3] = ["HUF", "JPY", "TWD"];

/// Currencies with two decimals that PayPal supports.
const TWO_DECIMALS: [&str; 21] = [
    "AUD", "BRL", "CAD", "CHF", "CNY", "CZK", "DKK", "EUR", "GBP", "HKD", "ILS", "MXN", "MYR",
    "NOK", "NZD", "PHP", "PLN", "SEK", "SGD", "THB", "USD",
];

/// Why an amount cannot be written for PayPal, or PayPal's cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoneyError {
    /// Finer than PayPal moves in that currency: settle the floor, carry the remainder.
    #[error("amount is finer than the smallest unit of that currency")]
    TooFine,
    /// Zero: PayPal answers `CANNOT_BE_ZERO_OR_NEGATIVE`.
    #[error("amount must be above zero")]
    NotPositive,
    /// A currency that is not in PayPal's table.
    #[error("PayPal does not move that currency")]
    Currency,
    /// Not a decimal as PayPal's schema describes it.
    #[error("not a decimal amount")]
    Malformed,
    /// More than the books can hold.
    #[error("amount is out of range")]
    OutOfRange,
}

/// A currency as PayPal names it: three capital letters. Answers may carry any; requests only
/// those of the books ([`Currency`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CurrencyCode([u8; 3]);

impl CurrencyCode {
    /// Reads three capital ASCII letters; anything else is refused.
    pub fn parse(text: &str) -> Result<Self, MoneyError> {
        let bytes: [u8; 3] = text.as_bytes().try_into().map_err(|_| MoneyError::Currency)?;
        if bytes.iter().all(u8::is_ascii_uppercase) {
            Ok(Self(bytes))
        } else {
            Err(MoneyError::Currency)
        }
    }

    /// The code as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("XXX")
    }
}

impl From<Currency> for CurrencyCode {
    fn from(currency: Currency) -> Self {
        match currency {
            Currency::Usd => Self(*b"USD"),
        }
    }
}

impl PartialEq<Currency> for CurrencyCode {
    fn eq(&self, other: &Currency) -> bool {
        self.as_str() == other.code()
    }
}

impl fmt::Display for CurrencyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for CurrencyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for CurrencyCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for CurrencyCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(D::Error::custom)
    }
}

/// How many decimals PayPal allows for a currency; `None` for one that it does not move.
pub fn decimals(code: &str) -> Option<u32> {
    if NO_DECIMALS.contains(&code) {
        Some(0)
    } else if TWO_DECIMALS.contains(&code) {
        Some(2)
    } else {
        None
    }
}

/// The amount as a count of cents. Refuses anything that is not whole cents.
// INVARIANT: only_whole_cents_leave_for_paypal
pub fn cents(amount: Micros) -> Result<i64, MoneyError> {
    if !amount.is_whole_cents() {
        return Err(MoneyError::TooFine);
    }
    amount.get().checked_div(MICROS_PER_CENT).ok_or(MoneyError::OutOfRange)
}

/// The text PayPal wants: always exactly as many decimals as the currency has (`"0.95"`,
/// `"6.00"`, `"500"` yen). Refuses zero and anything finer.
pub fn to_value(amount: Micros, code: &str) -> Result<String, MoneyError> {
    if amount.is_zero() {
        return Err(MoneyError::NotPositive);
    }
    match decimals(code).ok_or(MoneyError::Currency)? {
        0 => {
            let rest = amount.get().checked_rem(MICROS_PER_UNIT);
            let units = amount.get().checked_div(MICROS_PER_UNIT);
            match (units, rest) {
                (Some(units), Some(0)) => Ok(units.to_string()),
                _ => Err(MoneyError::TooFine),
            }
        }
        _ => {
            let cents = cents(amount)?;
            let units = cents.checked_div(100).ok_or(MoneyError::OutOfRange)?;
            let rest = cents.checked_rem(100).ok_or(MoneyError::OutOfRange)?;
            Ok(format!("{units}.{rest:02}"))
        }
    }
}

/// Reads any decimal that PayPal's schema allows (`"6"`, `"6.0"`, `".5"`, `"-0.65"`), as signed
/// micro-units. Refuses exponents, signs other than a leading minus, and more than six decimals
/// that count.
pub fn parse_value(text: &str) -> Result<i64, MoneyError> {
    if text.len() > MAX_VALUE_LENGTH {
        return Err(MoneyError::Malformed);
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = match digits.split_once('.') {
        Some((_, "")) => return Err(MoneyError::Malformed),
        Some((whole, fraction)) => (whole, fraction),
        None if digits.is_empty() => return Err(MoneyError::Malformed),
        None => (digits, ""),
    };
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) {
        return Err(MoneyError::Malformed);
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > 6 {
        return Err(MoneyError::TooFine);
    }
    let number = |part: &str| match part {
        "" => Ok(0),
        part => part.parse::<i64>().map_err(|_| MoneyError::OutOfRange),
    };
    let micros = number(whole)?
        .checked_mul(MICROS_PER_UNIT)
        .and_then(|units| units.checked_add(number(&format!("{fraction:0<6}")).ok()?))
        .ok_or(MoneyError::OutOfRange)?;
    // The books hold what a double can, on either side of zero.
    Micros::new(micros).map_err(|_| MoneyError::OutOfRange)?;
    if negative { micros.checked_neg().ok_or(MoneyError::OutOfRange) } else { Ok(micros) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_cents_leave_for_paypal() {
        assert_eq!(cents(Micros::constant(950_000)), Ok(95));
        assert_eq!(cents(Micros::constant(955_000)), Err(MoneyError::TooFine));
        assert_eq!(to_value(Micros::constant(955_000), "USD"), Err(MoneyError::TooFine));
        assert_eq!(to_value(Micros::constant(1), "USD"), Err(MoneyError::TooFine));
        assert_eq!(to_value(Micros::ZERO, "USD"), Err(MoneyError::NotPositive));
    }

    #[test]
    fn decimals_follow_paypals_table() {
        let check = |units: i64, code: &str, expect: Result<&str, MoneyError>| {
            let written = to_value(Micros::constant(units * MICROS_PER_UNIT), code);
            assert_eq!(written.as_deref().map_err(|why| *why), expect, "{units} {code}");
        };
        check(6, "USD", Ok("6.00"));
        check(500, "JPY", Ok("500"));
        check(705, "HUF", Ok("705"));
        check(705, "TWD", Ok("705"));
        check(6, "KWD", Err(MoneyError::Currency));
        check(6, "usd", Err(MoneyError::Currency));
        assert_eq!(to_value(Micros::constant(500_500_000), "JPY"), Err(MoneyError::TooFine));
        assert_eq!(to_value(Micros::constant(30_000), "USD").as_deref(), Ok("0.03"));
        assert_eq!(to_value(Micros::MAX.floor_to_cent(), "USD").as_deref(), Ok("9007199254.74"));
    }

    #[test]
    fn reads_every_decimal_of_the_schema() {
        for (text, expect) in [
            ("6", Ok(6_000_000)),
            ("6.0", Ok(6_000_000)),
            (".5", Ok(500_000)),
            ("-.5", Ok(-500_000)),
            ("-0.65", Ok(-650_000)),
            ("3.9", Ok(3_900_000)),
            ("0", Ok(0)),
            ("007.10", Ok(7_100_000)),
            ("1.00000000", Ok(1_000_000)),
            ("0.0000001", Err(MoneyError::TooFine)),
            ("9007199254.740991", Ok(9_007_199_254_740_991)),
            ("9007199254.740992", Err(MoneyError::OutOfRange)),
            ("999999999999999.99", Err(MoneyError::OutOfRange)),
            ("99999999999999999999", Err(MoneyError::OutOfRange)),
        ] {
            assert_eq!(parse_value(text), expect, "{text}");
        }
        for text in ["", "-", ".", "1.", "+1", "1e3", "1,00", " 1", "--1", "1.2.3", "١", "NaN"] {
            assert_eq!(parse_value(text), Err(MoneyError::Malformed), "{text:?}");
        }
        assert_eq!(parse_value(&"0".repeat(33)), Err(MoneyError::Malformed));
    }
}
