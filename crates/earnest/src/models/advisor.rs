//! What the treasurer's advisor is asked, and how its answer is read.
//!
//! It is told figures and nothing else: no address, name or id, so that no seller and no agent can
//! speak to it. It may bring a settlement forward; a rule that settles does so whatever it says.

use earnest_core::money::Micros;
use earnest_core::treasurer::MAX_SENTENCE;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{ModelError, Question, plain, read};

/// The longest sentence, in characters, of which at least the beginning is kept; beyond it the
/// answer is not what was asked for.
const LONGEST: usize = 2_000;
/// The most tokens of an answer.
const MAX_TOKENS: u32 = 300;

const TASK: &str = "You advise the treasurer of a payment service. An agent buys small things on a \
tab; the tab is settled by one charge, which costs a share of the amount and a fixed part. Settling \
seldom keeps fees low. Waiting leaves money at risk, and the tab may run out of room. The treasurer's \
own rules settle at the amount, age and idle time that the figures name. Say whether to settle now, \
before those rules do, and why, in one short sentence for the operator. The figures are all there \
is. Amounts are in US dollars.";

/// What the advisor is told about a tab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// What a settlement made now would take.
    pub owed: String,
    /// What the tab may owe.
    pub room: String,
    /// Purchases that would be settled.
    pub purchases: u64,
    /// Purchases under way.
    pub purchases_under_way: u64,
    /// How old the oldest of them is.
    pub minutes_since_first_purchase: i64,
    /// How long ago something was bought.
    pub minutes_since_last_purchase: i64,
    /// What a settlement made now would cost.
    pub fee_now: String,
    /// Settlements of this tab so far.
    pub settlements_so_far: u64,
    /// Everything this owner ever paid.
    pub paid_before: String,
    /// Settled by rule at this amount.
    pub rule_amount: String,
    /// Settled by rule when the oldest purchase is so old.
    pub rule_age_minutes: i64,
    /// The session ends, and is settled by rule, after so long without a purchase.
    pub rule_idle_minutes: i64,
}

impl Figures {
    /// A made-up tab, for somebody who wants to see what a model says.
    pub fn example() -> Self {
        let dollars = |cents: i64| Micros::constant(cents * 10_000).to_decimal();
        Self {
            owed: dollars(870),
            room: dollars(2_000),
            purchases: 41,
            purchases_under_way: 0,
            minutes_since_first_purchase: 190,
            minutes_since_last_purchase: 12,
            fee_now: dollars(79),
            settlements_so_far: 1,
            paid_before: dollars(4_400),
            rule_amount: dollars(1_500),
            rule_age_minutes: 1_440,
            rule_idle_minutes: 30,
        }
    }

    /// The question about them.
    pub fn question(&self) -> Question {
        let figures = serde_json::to_string_pretty(self).unwrap_or_default();
        Question {
            task: TASK.to_owned(),
            about: figures,
            schema_name: "settlement_advice",
            schema: json!({
                "type": "object",
                "properties": {
                    "settle": { "type": "boolean", "description": "Whether to settle now." },
                    "sentence": { "type": "string", "description": "Why, in one short sentence." },
                },
                "required": ["settle", "sentence"],
                "additionalProperties": false,
            }),
            max_tokens: MAX_TOKENS,
        }
    }
}

/// What an advisor said, by the schema.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Said {
    /// Whether to settle now.
    pub settle: bool,
    /// Why: plain text of at most [`MAX_SENTENCE`] characters.
    pub sentence: String,
}

impl Said {
    /// Reads an answer.
    ///
    /// # Errors
    /// [`ModelError::Schema`] for anything that was not asked for.
    pub fn read(text: &str) -> Result<Self, ModelError> {
        let said: Self = read(text)?;
        if said.sentence.chars().nth(LONGEST).is_some() {
            return Err(ModelError::Schema("a sentence without end"));
        }
        let sentence = plain(&said.sentence, MAX_SENTENCE);
        if sentence.is_empty() {
            return Err(ModelError::Schema("an empty sentence"));
        }
        Ok(Self { sentence, ..said })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_what_was_asked_for_or_nothing() {
        let said = Said::read(r#"{"settle":true,"sentence":"a\u0000\u202e b\n"}"#).unwrap();
        assert_eq!(said, Said { settle: true, sentence: "a b".to_owned() });
        let long = json!({ "settle": false, "sentence": "x".repeat(LONGEST) }).to_string();
        assert_eq!(Said::read(&long).unwrap().sentence.len(), MAX_SENTENCE);
        for wrong in [
            "",
            "settle",
            "{\"settle\":true",
            r#"{"settle":true}"#,
            r#"{"settle":"yes","sentence":"a"}"#,
            r#"{"settle":1,"sentence":"a"}"#,
            r#"{"settle":true,"sentence":" \u0007"}"#,
            r#"{"settle":true,"sentence":"a","amount":5}"#,
            r#"{"settle":true,"settle":false,"sentence":"a"}"#,
            r#"[true,"a"] "#,
            "```json\n{\"settle\":true,\"sentence\":\"a\"}\n```",
            &json!({ "settle": true, "sentence": "x".repeat(LONGEST + 1) }).to_string(),
        ] {
            assert!(matches!(Said::read(wrong), Err(ModelError::Schema(_))), "{wrong}");
        }
    }
}
