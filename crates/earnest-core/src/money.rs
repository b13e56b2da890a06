//! Amounts of money: integer micro-units, never negative, never a float.
//!
//! The side of a transfer (debit or credit) carries the sign, so [`Micros`] has none. Input comes
//! as text (`"0.02"`, `"$0.02"`) or as an integer `amount_micros`; both go through one parser and
//! refuse the same things under the same codes.
//!
//! ```
//! use earnest_core::money::Micros;
//! let price = Micros::parse("$0.02").unwrap();
//! assert_eq!(price.get(), 20_000);
//! assert_eq!(price.to_string(), "$0.02");
//! ```

use std::fmt;

use crate::problem::Code;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::value::RawValue;

/// Micro-units in one unit of currency.
pub const MICROS_PER_UNIT: i64 = 1_000_000;
/// Micro-units in one cent: PayPal moves nothing smaller.
pub const MICROS_PER_CENT: i64 = 10_000;
/// The largest integer that survives a double, hence any JSON reader: 2^53 - 1.
pub const MAX_JSON_INTEGER: i64 = 9_007_199_254_740_991;

/// An amount in millionths of a currency unit. Never negative, at most [`MAX_JSON_INTEGER`].
///
/// Arithmetic is checked: there is no `Add`, so an overflow cannot pass unseen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Micros(i64);

/// Why a text or number is not an amount. The codes are those of the error table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// Not ASCII digits with at most one point and six decimals.
    #[error("not an amount: use digits and at most one point with up to six decimals, like 0.02")]
    Invalid,
    /// Zero, or a leading minus on an otherwise valid amount.
    #[error("amount must be above zero")]
    NotPositive,
    /// Above what may be represented or what the operator allows.
    #[error("amount is above the allowed maximum")]
    OutOfRange,
    /// A currency other than USD.
    #[error("only USD is supported")]
    Currency,
}

impl AmountError {
    /// The stable code of the error table.
    pub const fn code(self) -> Code {
        match self {
            Self::Invalid => Code::AmountInvalid,
            Self::NotPositive => Code::AmountNotPositive,
            Self::OutOfRange => Code::AmountOutOfRange,
            Self::Currency => Code::CurrencyUnsupported,
        }
    }
}

impl Micros {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// The largest amount there is.
    pub const MAX: Self = Self(MAX_JSON_INTEGER);

    /// From a count of micro-units. Refuses negative numbers and those above [`Micros::MAX`];
    /// zero is allowed, since totals may be zero.
    pub fn new(micros: i64) -> Result<Self, AmountError> {
        match micros {
            i64::MIN..=-1 => Err(AmountError::NotPositive),
            0..=MAX_JSON_INTEGER => Ok(Self(micros)),
            _ => Err(AmountError::OutOfRange),
        }
    }

    /// A constant known to be valid; refuses to compile into anything but a valid amount when used
    /// in a `const`.
    pub const fn constant(micros: i64) -> Self {
        assert!(micros >= 0 && micros <= MAX_JSON_INTEGER);
        Self(micros)
    }

    /// The count of micro-units.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Whether this is nothing.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Reads a price: `"0.02"` or `"$0.02"`. Zero is refused; see [`AmountError`] for the rest.
    pub fn parse(text: &str) -> Result<Self, AmountError> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let digits = digits.strip_prefix('$').unwrap_or(digits);
        // `$-1` is as common a spelling as `-$1`.
        let (negative, digits) = match digits.strip_prefix('-') {
            Some(rest) if !negative => (true, rest),
            _ => (negative, digits),
        };
        let amount = parse_digits(digits)?;
        if negative || amount.is_zero() {
            return Err(AmountError::NotPositive);
        }
        Ok(amount)
    }

    /// Sum, or `None` past [`Micros::MAX`].
    pub fn checked_add(self, other: Self) -> Option<Self> {
        Self::new(self.0.checked_add(other.0)?).ok()
    }

    /// Difference, or `None` below zero.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        Self::new(self.0.checked_sub(other.0)?).ok()
    }

    /// Difference, or zero when `other` is larger: for *what is left*, never for a movement.
    pub fn saturating_sub(self, other: Self) -> Self {
        self.checked_sub(other).unwrap_or(Self::ZERO)
    }

    /// `floor(self * ppm / 1 000 000)`: the rule for commission. `None` on overflow.
    pub fn share_ppm(self, ppm: u32) -> Option<Self> {
        let product = i128::from(self.0).checked_mul(i128::from(ppm))?;
        let share = product.checked_div(1_000_000)?;
        Self::new(i64::try_from(share).ok()?).ok()
    }

    /// The largest whole number of cents not above this amount.
    pub fn floor_to_cent(self) -> Self {
        let rest = self.0.checked_rem(MICROS_PER_CENT).unwrap_or(0);
        Self(self.0.saturating_sub(rest))
    }

    /// Whether PayPal could move exactly this amount.
    pub fn is_whole_cents(self) -> bool {
        self.floor_to_cent() == self
    }

    /// Plain decimal without a currency sign: at least two decimals, at most six, no zeros after
    /// the cents (`0.02`, `0.0005`, `1.50`).
    pub fn to_decimal(self) -> String {
        let units = self.0.checked_div(MICROS_PER_UNIT).unwrap_or(0);
        let micros = self.0.checked_rem(MICROS_PER_UNIT).unwrap_or(0);
        let mut text = format!("{units}.{micros:06}");
        while text.ends_with('0') && text.len() > format!("{units}.00").len() {
            text.pop();
        }
        text
    }
}

/// ASCII digits with at most one point and six decimals, as micro-units; zero allowed.
fn parse_digits(text: &str) -> Result<Micros, AmountError> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let point = text.contains('.');
    let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || (point && fraction.is_empty()) || fraction.len() > 6 {
        return Err(AmountError::Invalid);
    }
    if !all_digits(whole) || !all_digits(fraction) {
        return Err(AmountError::Invalid);
    }
    let units: i64 = whole.parse().map_err(|_| AmountError::OutOfRange)?;
    let micros: i64 = format!("{fraction:0<6}").parse().map_err(|_| AmountError::Invalid)?;
    let total = units
        .checked_mul(MICROS_PER_UNIT)
        .and_then(|u| u.checked_add(micros))
        .ok_or(AmountError::OutOfRange)?;
    Micros::new(total)
}

impl fmt::Display for Micros {
    /// `$0.02`: how people read it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${}", self.to_decimal())
    }
}

impl<'de> Deserialize<'de> for Micros {
    /// Only a JSON integer from 0 to 2^53 - 1: for our own rows and signed documents. What comes
    /// from outside uses [`AmountInput`], which keeps the reason of a refusal.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let micros = i64::deserialize(deserializer)?;
        Self::new(micros).map_err(de::Error::custom)
    }
}

/// An amount as a stranger writes it: `"0.02"`, `"$0.02"`, or an integer of micro-units.
///
/// Reading never fails, so that the caller can answer with the amount's own code and not with a
/// general *malformed*; [`AmountInput::price`] gives the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmountInput(Result<Micros, AmountError>);

impl AmountInput {
    /// An amount known to be good.
    pub fn of(amount: Micros) -> Self {
        Self(Ok(amount))
    }

    /// The amount, if it is above zero and at most `max`.
    pub fn price(self, max: Micros) -> Result<Micros, AmountError> {
        let amount = self.0?;
        if amount.is_zero() {
            return Err(AmountError::NotPositive);
        }
        if amount > max {
            return Err(AmountError::OutOfRange);
        }
        Ok(amount)
    }
}

impl<'de> Deserialize<'de> for AmountInput {
    /// Reads the text of the JSON value itself: parsed numbers past 64 bits have become floats
    /// already, and an integer too large could not be told from a decimal that is not allowed.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let text = raw.get();
        match text.as_bytes() {
            [b'"', ..] => {
                let text: String = serde_json::from_str(text).map_err(de::Error::custom)?;
                Ok(Self(Micros::parse(&text)))
            }
            [b'-' | b'0'..=b'9', ..] => Ok(Self(json_number(text))),
            _ => Err(de::Error::custom(
                "not an amount: \"0.02\", \"$0.02\" or an integer of micro-units",
            )),
        }
    }
}

/// A JSON number as micro-units: integers only.
fn json_number(text: &str) -> Result<Micros, AmountError> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(AmountError::Invalid);
    }
    Micros::new(text.parse().map_err(|_| AmountError::OutOfRange)?)
}

impl Serialize for AmountInput {
    /// The integer of micro-units; an amount that was refused cannot be written.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Ok(amount) => amount.serialize(serializer),
            Err(why) => Err(serde::ser::Error::custom(why)),
        }
    }
}

/// The currencies the books know. Two currencies never meet in one transfer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Currency {
    /// US dollar.
    #[default]
    #[serde(rename = "USD")]
    Usd,
}

impl Currency {
    /// The ISO 4217 code.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Usd => "USD",
        }
    }

    /// Reads an ISO 4217 code; anything but `USD` is refused.
    pub fn parse(text: &str) -> Result<Self, AmountError> {
        match text {
            "USD" => Ok(Self::Usd),
            _ => Err(AmountError::Currency),
        }
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<i64, AmountError>) {
        assert_eq!(Micros::parse(text).map(Micros::get), expect, "{text:?}");
    }

    #[test]
    fn reads_what_people_write() {
        check("0.02", Ok(20_000));
        check("$0.02", Ok(20_000));
        check("1", Ok(1_000_000));
        check("007", Ok(7_000_000));
        check("0.000001", Ok(1));
        check("9007199254.740991", Ok(MAX_JSON_INTEGER));
    }

    #[test]
    fn refuses_every_other_spelling() {
        use AmountError::{Invalid, NotPositive, OutOfRange};
        for text in ["", "$", ".", ".5", "5.", "1.2.3", "0.0000001", "+1", " 1", "1 ", "1,5", "1_0"]
        {
            check(text, Err(Invalid));
        }
        for text in [
            "1e3", "0E+1", "5e-7", "1e999", "5.0e3", "0x1", "NaN", "inf", "١", "１", "1\u{a0}",
            "--1", "$$1", "-$-1", "1$", "€1", "-", "-.5",
        ] {
            check(text, Err(Invalid));
        }
        for text in ["0", "0.0", "$0", "-1", "-0.02", "-0", "-$1", "$-1"] {
            check(text, Err(NotPositive));
        }
        for text in ["9007199254.740992", "99999999999999999999", "-99999999999999999999"] {
            check(text, Err(OutOfRange));
        }
    }

    #[test]
    fn json_integers_keep_their_value_or_are_refused() {
        let read =
            |json: &str| serde_json::from_str::<AmountInput>(json).unwrap().price(Micros::MAX);
        assert_eq!(read("9007199254740991"), Ok(Micros::MAX));
        assert_eq!(read("9007199254740993"), Err(AmountError::OutOfRange));
        assert_eq!(read("1152921504606846976"), Err(AmountError::OutOfRange));
        assert_eq!(read("18446744073709551615"), Err(AmountError::OutOfRange));
        assert_eq!(read("18446744073709551616"), Err(AmountError::OutOfRange));
        assert_eq!(read(&"9".repeat(400)), Err(AmountError::OutOfRange));
        assert_eq!(read("-99999999999999999999"), Err(AmountError::OutOfRange));
        assert_eq!(read("-1"), Err(AmountError::NotPositive));
        assert_eq!(read("-0"), Err(AmountError::NotPositive));
        for not_an_integer in ["20000.0", "2e4", "1E2", "1e400", "-1.5"] {
            assert_eq!(read(not_an_integer), Err(AmountError::Invalid), "{not_an_integer}");
        }
        assert_eq!(read("0"), Err(AmountError::NotPositive));
        assert_eq!(read("0.02"), Err(AmountError::Invalid));
        assert_eq!(read("\"$0.02\""), Ok(Micros::constant(20_000)));
        assert_eq!(read("\"\\u00240.02\""), Ok(Micros::constant(20_000)));
        for no_amount in ["true", "[1]", "{}", "null"] {
            assert!(serde_json::from_str::<AmountInput>(no_amount).is_err(), "{no_amount}");
        }
        let value = serde_json::json!({ "a": 9_007_199_254_740_993u64 });
        let read: std::collections::BTreeMap<String, AmountInput> =
            serde_json::from_value(value).unwrap();
        assert_eq!(read["a"].price(Micros::MAX), Err(AmountError::OutOfRange));
    }

    #[test]
    fn shows_two_to_six_decimals() {
        let show = |micros| Micros::constant(micros).to_string();
        assert_eq!(show(20_000), "$0.02");
        assert_eq!(show(500), "$0.0005");
        assert_eq!(show(1_500_000), "$1.50");
        assert_eq!(show(1), "$0.000001");
        assert_eq!(show(0), "$0.00");
    }

    #[test]
    fn shares_and_cents_round_down() {
        assert_eq!(Micros::constant(99).share_ppm(10_000), Some(Micros::ZERO));
        assert_eq!(Micros::constant(100).share_ppm(10_000), Some(Micros::constant(1)));
        assert_eq!(Micros::MAX.share_ppm(1_000_000), Some(Micros::MAX));
        assert_eq!(Micros::constant(45_000).floor_to_cent().get(), 40_000);
        assert!(Micros::constant(40_000).is_whole_cents());
    }
}
