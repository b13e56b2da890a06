//! `earnest doctor models`: whether the configured models answer, and what that costs.

use earnest_core::problem::Code;
use std::process::ExitCode;

use http::StatusCode;
use serde_json::{Value, json};

use super::failure::{Ended, Failure};
use super::output::{money, text};
use super::{Style, Where};
use crate::config::Config;
use crate::models::advisor::{Figures, Said};
use crate::models::{Asked, Cost, Gateway, ModelError, Models};

/// Asks every model of the settings one question about a made-up tab. Exit code 4 where a key is
/// refused, 1 where a model gives no answer that can be used.
///
/// The calls cost what they cost and are not in the books: they belong to nobody's tab.
pub async fn doctor(place: Where, style: &Style) -> Ended {
    let config = Config::load(place.overrides()?)?;
    let models = Models::new(&config.models);
    let models = models.map_err(|why| Failure::of(Code::Internal, why.to_string()))?;
    let (mut rows, mut worst) = (Vec::new(), 0);
    for gateway in models.all() {
        let asked = gateway.ask(&Figures::example().question()).await;
        let said = asked.said.as_ref().map_err(Clone::clone).and_then(|text| Said::read(text));
        worst = worst.max(match &said {
            Ok(_) => 0,
            Err(ModelError::Refused(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _)) => 4,
            Err(_) => 1,
        });
        rows.push(row(gateway, &asked, &said));
    }
    if rows.is_empty() {
        style.talk("no model is configured: Earnest goes by its rules");
        return Ok(ExitCode::SUCCESS);
    }
    style.rows(&rows, ["", "ROLE", "MODEL", "COST", "SAID"], |row| {
        let sign = if text(row, "ok") == "true" { "ok" } else { "BAD" };
        let cost = match money(row, "cost_micros") {
            none if none.is_empty() => format!("unknown (counts as {})", text(row, "reserve")),
            cost => cost,
        };
        [sign.to_owned(), text(row, "role"), text(row, "model"), cost, text(row, "said")]
    })?;
    Ok(ExitCode::from(worst))
}

fn row(gateway: &Gateway, asked: &Asked, said: &Result<Said, ModelError>) -> Value {
    let role = gateway.role();
    let cost = match asked.spend.cost {
        Cost::Known(cost) => json!(cost),
        Cost::Unknown => Value::Null,
    };
    let (answer, words) = match said {
        Ok(said) => (json!(said), said.sentence.clone()),
        Err(why) => (Value::Null, why.to_string()),
    };
    json!({
        "role": role.name,
        "model": role.model,
        "family": role.family,
        "ok": said.is_ok(),
        "outcome": said.as_ref().map_or_else(ModelError::word, |_| "answered"),
        "answer": answer,
        "said": words,
        "cost_micros": cost,
        "reserve": role.reserve.to_string(),
        "input_tokens": asked.spend.input_tokens,
        "output_tokens": asked.spend.output_tokens,
    })
}
