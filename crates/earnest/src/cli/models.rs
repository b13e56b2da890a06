//! `earnest doctor models`: whether the configured models answer, and what that costs.

use std::process::ExitCode;

use earnest_core::id::ModelCallId;
use earnest_core::problem::{Code, LocalCode};
use earnest_store::OpenError;
use http::StatusCode;
use serde_json::{Value, json};

use super::failure::{Ended, Failure};
use super::output::{money, text};
use super::{Style, Where};
use crate::config::Config;
use crate::flow::advisor::{Tried, try_out};
use crate::models::{Cost, Gateway, ModelError, Models};
use crate::serve::{StartError, open_books};
use crate::source::{machine_clock, seed};

/// Asks every model of the settings one question about a made-up tab. Exit code 4 where a key is
/// refused, 1 where a model gives no answer that can be used, 7 while Earnest runs.
///
/// What it costs is reserved and booked as every call is, under the same cap of the day: so it needs
/// the books to itself.
pub async fn doctor(place: Where, style: &Style) -> Ended {
    let config = Config::load(place.overrides()?)?;
    let models = Models::new(&config.models);
    let models = models.map_err(|why| Failure::usage(why.to_string()))?;
    if models.all().next().is_none() {
        style.talk("no model is configured: Earnest goes by its rules");
        return Ok(ExitCode::SUCCESS);
    }
    let store = open_books(&config).await.map_err(|why| match why {
        StartError::Books(OpenError::InUse(_)) => {
            Failure::local(LocalCode::InUse, 7, why.to_string()).next(
                "stop Earnest first; what its models answer meanwhile is in events `model.called`",
            )
        }
        other => Failure::of(Code::DatabaseUnavailable, other.to_string()),
    })?;
    let (mut rows, mut worst) = (Vec::new(), 0);
    for gateway in models.all() {
        let id = ModelCallId::new(seed(&machine_clock()));
        let tried = try_out(&store, gateway, models.daily_cap, id).await;
        let tried = tried.map_err(|why| Failure::of(Code::DatabaseUnavailable, why.to_string()))?;
        worst = worst.max(match &tried {
            Some((Ok(_), _)) => 0,
            Some((Err(ModelError::Refused(status, _)), _))
                if matches!(*status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) =>
            {
                4
            }
            _ => 1,
        });
        rows.push(row(gateway, tried.as_ref()));
    }
    let closed = tokio::task::spawn_blocking(move || store.close()).await;
    closed.map_err(|why| Failure::of(Code::Internal, why.to_string()))?;
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

fn row(gateway: &Gateway, tried: Option<&Tried>) -> Value {
    let role = gateway.role();
    let spend = tried.map(|(_, spend)| *spend);
    let cost = match spend.map(|spend| spend.cost) {
        Some(Cost::Known(cost)) => json!(cost),
        Some(Cost::Unknown) => Value::Null,
        None => json!(0),
    };
    let (ok, outcome, answer, words) = match tried {
        Some((Ok(said), _)) => (true, "answered", json!(said), said.sentence.clone()),
        Some((Err(why), _)) => (false, why.word(), Value::Null, why.to_string()),
        None => {
            let why = "the day's cap on what models may cost has no room: it was not asked";
            (false, "budget_exhausted", Value::Null, why.to_owned())
        }
    };
    json!({
        "role": role.name,
        "model": role.model,
        "family": role.family,
        "ok": ok,
        "outcome": outcome,
        "answer": answer,
        "said": words,
        "cost_micros": cost,
        "reserve": role.reserve.to_string(),
        "input_tokens": spend.and_then(|spend| spend.input_tokens),
        "output_tokens": spend.and_then(|spend| spend.output_tokens),
    })
}
