//! Reading what a model's server answers: text, errors in every dialect, and what it cost.

use earnest_core::money::Micros;
use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use super::settings::Price;
use crate::outbound::OutboundError;

/// A call that says it cost more than this is a mistake in somebody's figures: $100.
const MOST_COST: Micros = Micros::constant(100_000_000);
/// The longest error code that is kept.
const MOST_CODE: usize = 64;

/// Why a model gave no answer that can be used. Nothing of what it said is in here but error codes,
/// so that all of it may be logged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// No connection was made; nothing was asked.
    #[error("its server cannot be reached")]
    Unreachable,
    /// Asked too often, and waiting longer was not worth it.
    #[error("it is asked too often")]
    RateLimited,
    /// The request was refused.
    #[error("its server refuses with {}", said(*.0, .1.as_deref()))]
    Refused(StatusCode, Option<String>),
    /// The server failed.
    #[error("its server fails with {}", said(*.0, .1.as_deref()))]
    Failed(StatusCode, Option<String>),
    /// No answer came in time.
    #[error("no answer in time")]
    Timeout,
    /// The answer broke off.
    #[error("the answer broke off")]
    Broken,
    /// The answer is larger than is read.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The answer is no chat completion with a text.
    #[error("the answer cannot be read: {0}")]
    Unreadable(&'static str),
    /// The text does not follow the schema that was asked for.
    #[error("the answer does not follow the schema: {0}")]
    Schema(&'static str),
}

fn said(status: StatusCode, code: Option<&str>) -> String {
    let status = status.as_str();
    code.map_or_else(|| status.to_owned(), |code| format!("{status} ({code})"))
}

impl ModelError {
    /// One word for it.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::RateLimited => "throttled",
            Self::Refused(..) => "refused",
            Self::Failed(..) => "failed",
            Self::Timeout => "timeout",
            Self::Broken => "broken",
            Self::TooLarge(_) => "too_large",
            Self::Unreadable(_) => "unreadable",
            Self::Schema(_) => "schema",
        }
    }

    /// What a call that ended so cost, as far as that says it: nothing where it was not taken up.
    pub const fn cost(&self) -> Cost {
        match self {
            Self::Unreachable | Self::RateLimited | Self::Refused(..) => Cost::Known(Micros::ZERO),
            _ => Cost::Unknown,
        }
    }
}

impl From<OutboundError> for ModelError {
    fn from(error: OutboundError) -> Self {
        match error {
            OutboundError::Forbidden(_) | OutboundError::Unreachable(_) => Self::Unreachable,
            OutboundError::Timeout => Self::Timeout,
            OutboundError::Broken(_) => Self::Broken,
            OutboundError::TooLarge(most) => Self::TooLarge(most),
        }
    }
}

/// What a call cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// So much.
    Known(Micros),
    /// Nobody said, or what was said cannot be: what was reserved counts.
    Unknown,
}

/// What a call used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spend {
    /// What it cost.
    pub cost: Cost,
    /// Tokens of the question.
    pub input_tokens: Option<u64>,
    /// Tokens of the answer.
    pub output_tokens: Option<u64>,
}

impl Spend {
    /// Of a call that ended with an error before its answer was read.
    pub const fn of_error(error: &ModelError) -> Self {
        Self { cost: error.cost(), input_tokens: None, output_tokens: None }
    }
}

/// Reads a text by the type that its schema describes. What else the text holds is refused.
///
/// # Errors
/// [`ModelError::Schema`].
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, ModelError> {
    // A list of values would be read as a struct's members, too.
    if !text.trim_start().starts_with('{') {
        return Err(ModelError::Schema("no JSON object"));
    }
    serde_json::from_str(text).map_err(|why| {
        ModelError::Schema(match why.classify() {
            serde_json::error::Category::Data => "other members or types",
            _ => "no JSON",
        })
    })
}

#[derive(Deserialize)]
struct Completion {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    /// Some servers answer 200 with an error within.
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    message: Option<Message>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    /// Text, or a list of parts.
    #[serde(default)]
    content: Option<Value>,
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<Value>>,
}

/// What was counted. Each as it was written, so that one odd member spoils no other.
#[derive(Default, Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: Option<Value>,
    #[serde(default)]
    completion_tokens: Option<Value>,
    /// What the server itself says it cost, in dollars.
    #[serde(default)]
    cost: Option<Box<RawValue>>,
}

/// The text of a 2xx answer, and what it cost.
pub(super) fn completion(body: &[u8], price: Option<Price>) -> (Result<String, ModelError>, Spend) {
    let unknown = Spend { cost: Cost::Unknown, input_tokens: None, output_tokens: None };
    let Ok(read) = serde_json::from_slice::<Completion>(body) else {
        return (Err(ModelError::Unreadable("no chat completion")), unknown);
    };
    let spend = read.usage.as_ref().map_or(unknown, |usage| spend(usage, price));
    if let Some(error) = read.error.filter(|error| !error.is_null()) {
        let error = ModelError::Failed(StatusCode::OK, code_of(&error));
        return (Err(error), spend);
    }
    (text_of(read.choices), spend)
}

fn text_of(choices: Vec<Choice>) -> Result<String, ModelError> {
    let unreadable = |why| Err(ModelError::Unreadable(why));
    let Some(choice) = choices.into_iter().next() else { return unreadable("no choices") };
    let Some(message) = choice.message else { return unreadable("no message") };
    if message.refusal.is_some_and(|text| !text.is_empty()) {
        return unreadable("the model refuses");
    }
    if message.tool_calls.is_some_and(|calls| !calls.is_empty()) {
        return unreadable("it calls a tool that was not offered");
    }
    if choice.finish_reason.as_deref() == Some("length") {
        return unreadable("it did not come to its end");
    }
    match message.content {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => {
            let text = parts.iter().filter_map(|part| part.get("text")?.as_str());
            Ok(text.collect())
        }
        _ => unreadable("no text"),
    }
}

fn spend(usage: &Usage, price: Option<Price>) -> Spend {
    let count = |tokens: &Option<Value>| tokens.as_ref().and_then(Value::as_u64);
    let (input_tokens, output_tokens) =
        (count(&usage.prompt_tokens), count(&usage.completion_tokens));
    let said = usage.cost.as_ref().and_then(|cost| dollars(cost.get()));
    let counted = || by_price(price?, input_tokens?, output_tokens?);
    let cost = match &usage.cost {
        // Said, and not a sum of money: then nothing that was said of it is to be relied upon.
        Some(cost) if cost.get() != "null" => said,
        _ => counted(),
    };
    let cost = cost.filter(|cost| *cost <= MOST_COST).map_or(Cost::Unknown, Cost::Known);
    Spend { cost, input_tokens, output_tokens }
}

/// What tokens cost, rounded up.
fn by_price(price: Price, input: u64, output: u64) -> Option<Micros> {
    let part = |tokens: u64, price: Micros| {
        u128::from(tokens).checked_mul(u128::try_from(price.get()).ok()?)
    };
    let sum = part(input, price.input_micros)?.checked_add(part(output, price.output_micros)?)?;
    Micros::new(i64::try_from(sum.div_ceil(1_000_000)).ok()?).ok()
}

/// A JSON number (or a text that holds one) of dollars, in micro-units and rounded up, without a
/// detour over floats: `0.00012`, `1.2e-4`.
fn dollars(text: &str) -> Option<Micros> {
    let text = text.trim_matches('"');
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i64 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || digits.len() > 30 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: u128 = digits.parse().ok()?;
    // How many places the number has to move to become micro-units.
    let places = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?.checked_add(6)?;
    let ten = |places: i64| 10_u128.checked_pow(u32::try_from(places).ok()?);
    let micros = match places {
        0.. if number == 0 => 0,
        0.. => number.checked_mul(ten(places)?)?,
        // So small that no digit is left: one micro-unit at most.
        _ => ten(places.checked_neg()?).map_or(u128::from(number > 0), |by| number.div_ceil(by)),
    };
    Micros::new(i64::try_from(micros).ok()?).ok()
}

/// The code in an error body, in every dialect: a text, a number, or null; in an object `error`, or
/// beside it. Only what looks like a code is kept.
pub(super) fn error_code(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    code_of(body.get("error").unwrap_or(&body))
}

fn code_of(error: &Value) -> Option<String> {
    let member = |name: &str| match error.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let code = member("code").or_else(|| member("type"))?;
    let is_code = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    ((1..=MOST_CODE).contains(&code.len()) && code.chars().all(is_code)).then_some(code)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PRICE: Price =
        Price { input_micros: Micros::constant(150_000), output_micros: Micros::constant(600_000) };

    fn of(body: &Value) -> (Result<String, ModelError>, Spend) {
        completion(body.to_string().as_bytes(), Some(PRICE))
    }

    fn says(content: &Value, usage: &Value) -> Value {
        json!({ "choices": [{ "message": { "content": content } }], "usage": usage })
    }

    #[test]
    fn costs_are_what_was_said_else_what_was_counted_else_unknown() {
        let cost = |usage: Value| of(&says(&json!("x"), &usage)).1.cost;
        let known = |micros| Cost::Known(Micros::new(micros).unwrap());
        let tokens = json!({ "prompt_tokens": 100, "completion_tokens": 11 });
        assert_eq!(cost(tokens), known(22), "15 and 6.6, rounded up");
        let with =
            |cost: Value| json!({ "prompt_tokens": 100, "completion_tokens": 11, "cost": cost });
        assert_eq!(cost(with(json!(0.00012))), known(120));
        assert_eq!(cost(with(json!(0))), known(0));
        assert_eq!(cost(with(json!("0.5"))), known(500_000));
        assert_eq!(cost(with(json!(1e-9))), known(1));
        assert_eq!(cost(with(Value::Null)), known(22));
        for odd in [json!(-1), json!(1e9), json!("lots"), json!({ "usd": 1 })] {
            assert_eq!(cost(with(odd.clone())), Cost::Unknown, "{odd}");
        }
        assert_eq!(cost(Value::Null), Cost::Unknown);
        assert_eq!(cost(json!({ "prompt_tokens": 3 })), Cost::Unknown);
        assert_eq!(cost(json!({ "prompt_tokens": "3", "completion_tokens": -1 })), Cost::Unknown);
        let many = json!({ "prompt_tokens": u64::MAX, "completion_tokens": u64::MAX });
        assert_eq!(cost(many), Cost::Unknown);
        let unpriced = completion(
            says(
                &json!("x"),
                &json!({ "prompt_tokens": 1,
            "completion_tokens": 1 }),
            )
            .to_string()
            .as_bytes(),
            None,
        );
        assert_eq!(unpriced.1.cost, Cost::Unknown);
    }

    #[test]
    fn dollars_are_read_to_the_digit() {
        for (text, micros) in [
            ("1", Some(1_000_000)),
            ("0.1", Some(100_000)),
            ("1.2e-4", Some(120)),
            ("1.2E+1", Some(12_000_000)),
            ("0.0000001", Some(1)),
            ("0e400", Some(0)),
            ("1e-400", Some(1)),
            ("0.000", Some(0)),
            ("", None),
            ("1e400", None),
            ("nan", None),
            (".", None),
            ("-0.1", None),
        ] {
            assert_eq!(dollars(text).map(Micros::get), micros, "{text}");
        }
    }

    #[test]
    fn texts_come_in_several_shapes() {
        let text = |body: &Value| of(body).0;
        assert_eq!(text(&says(&json!("a"), &Value::Null)).unwrap(), "a");
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        assert_eq!(text(&says(&parts, &Value::Null)).unwrap(), "ab");
        for body in [
            json!({}),
            json!({ "choices": [] }),
            json!({ "choices": [{}] }),
            says(&Value::Null, &Value::Null),
            json!({ "choices": [{ "message": { "content": "a", "refusal": "no" } }] }),
            json!({ "choices": [{ "message": { "content": "a" }, "finish_reason": "length" }] }),
            json!({ "choices": [{ "message": { "tool_calls": [{ "function": {
                "name": "x", "arguments": "{\"a\":" } }] } }] }),
            json!("text"),
        ] {
            assert!(matches!(text(&body), Err(ModelError::Unreadable(_))), "{body}");
        }
        let within = json!({ "error": { "code": 429, "message": "x" } });
        let failed = ModelError::Failed(StatusCode::OK, Some("429".to_owned()));
        assert_eq!(text(&within), Err(failed));
    }

    #[test]
    fn error_codes_come_as_text_number_or_null() {
        let code = |error: Value| error_code(error.to_string().as_bytes());
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            code(json!({ "error": { "code": "insufficient_quota" } })),
            some("insufficient_quota")
        );
        assert_eq!(code(json!({ "error": { "code": 400 } })), some("400"));
        assert_eq!(
            code(json!({ "error": { "code": null, "type": "server_error" } })),
            some("server_error")
        );
        assert_eq!(code(json!({ "code": "x" })), some("x"));
        assert_eq!(code(json!({ "error": "text" })), None);
        assert_eq!(code(json!({ "error": { "code": "sk-123 leaks\n" } })), None);
        assert_eq!(code(json!({ "error": { "code": "x".repeat(65) } })), None);
        assert_eq!(error_code(b"<html>"), None);
    }
}
