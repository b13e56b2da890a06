//! Carrying out intents: claim, send or read, record. Who calls PayPal calls it from here.

use std::time::Duration;

use earnest_core::id::IntentId;
use earnest_core::intent::{Claim, Claimed, Evidence, Intent, Purpose};
use earnest_core::problem::{Code, Refusal};
use earnest_core::time::{Timestamp, plus};
use earnest_paypal::{BuildError, Exchange, Outcome, Request};
use earnest_store::{ReadError, SubmitError};
use serde_json::json;

use super::{redact, settle, vault};
use crate::app::App;
use crate::lead::Right;

/// How long a claim lasts: longer than the longest wait for an answer, so that nobody else sends
/// while this process still waits.
const LEASE_SECONDS: i64 = 120;
/// How much of a claim must be left when a request is written: as long as its answer is waited for.
const LEFT: Duration = Duration::from_secs(55);
/// How much of an answer is kept as evidence.
const KEPT_BYTES: usize = 8 * 1024;

/// Why an intent was not carried out now. It stays open and is looked at again.
#[derive(Debug, thiserror::Error)]
pub enum FlowError {
    /// The books did not take a unit.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The books could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The request could not be written.
    #[error("the request cannot be written: {0}")]
    Build(#[from] BuildError),
    /// Something does not fit together.
    #[error("{0}")]
    Broken(String),
    /// PayPal does not answer now: nothing is known, and it has to be asked again.
    #[error("{0}")]
    NotNow(String),
}

impl From<Refusal> for FlowError {
    fn from(refusal: Refusal) -> Self {
        Self::Submit(SubmitError::Refused(Box::new(refusal)))
    }
}

/// Carries out one intent as far as it goes now. Safe to call at any time, from anywhere.
///
/// # Errors
/// [`FlowError`]; the intent stays as it is.
pub async fn carry_out(app: &App, id: IntentId) -> Result<(), FlowError> {
    let Some(intent) = app.store.reader().row::<Intent>(id)? else { return Ok(()) };
    if !intent.state.is_open() {
        return Ok(());
    }
    let done = match intent.purpose {
        Purpose::Settlement(settlement) => settle::carry_out(app, intent, settlement).await,
        Purpose::VaultSetup(vault) => vault::carry_out_setup(app, intent, vault).await,
        Purpose::VaultToken(vault) => vault::carry_out_token(app, intent, vault).await,
    };
    unless_taken(done)
}

/// An intent that somebody else holds, or closed meanwhile, is not a failure: it is theirs. Nor is
/// one that may not be sent while the books are quarantined.
///
/// # Errors
/// Every other [`FlowError`].
pub fn unless_taken<T: Default>(done: Result<T, FlowError>) -> Result<T, FlowError> {
    match done {
        Err(FlowError::Submit(SubmitError::Refused(refusal)))
            if matches!(refusal.code, Code::StateConflict | Code::Quarantined) =>
        {
            tracing::debug!(why = %refusal.detail, "left to whoever holds the intent");
            Ok(T::default())
        }
        other => other,
    }
}

/// Takes the right to act without sending.
///
/// # Errors
/// [`FlowError::Submit`] with `state_conflict` when another process holds the intent.
pub async fn claim(app: &App, intent: IntentId) -> Result<Claimed, FlowError> {
    claim_for(app, intent, None, None).await
}

/// Takes the right to act, commits the time of sending, and sends: unless so much time went by in
/// between that somebody else may have the right by then, or PayPal's time is not known (our clock was
/// set, and PayPal does not answer). What was not sent for that is told as any other request that
/// never left.
///
/// # Errors
/// As [`claim`].
// INVARIANT: a_node_whose_claim_passed_sends_nothing
pub async fn send(
    app: &App,
    intent: IntentId,
    request: &Request,
) -> Result<(Claimed, Exchange), FlowError> {
    let text = serde_json::to_string(request);
    let text = text.map_err(|why| FlowError::Broken(why.to_string()))?;
    // Known before the claim: what is written down is when PayPal gets it, by PayPal's clock.
    let asked = app.paypal.ask_ahead().await;
    let there = asked.ok().flatten().map(|ahead| plus(app.now(), ahead));
    let right = Right::ask(app, LEASE_SECONDS);
    let written = (text, hex::encode(request.body_sha256()));
    let claimed = claim_for(app, intent, Some(written), there).await?;
    let exchange = app.paypal.send_while(request, || asked.is_ok() && right.lasts(app, LEFT)).await;
    Ok((claimed, exchange))
}

async fn claim_for(
    app: &App,
    intent: IntentId,
    request: Option<(String, String)>,
    there: Option<Timestamp>,
) -> Result<Claimed, FlowError> {
    let (node, lease_seconds) = (app.node.clone(), LEASE_SECONDS);
    Ok(app.store.submit(Claim { intent, node, lease_seconds, request, there }).await?)
}

/// Whether a request may be sent now, by our clock and by PayPal's as it is known so far.
pub fn may_send(app: &App, intent: &Intent) -> bool {
    let now = app.now();
    intent.may_send(now, plus(now, app.paypal.ahead().unwrap_or_default()))
}

/// The request an intent sent before, or a new one.
///
/// # Errors
/// When the stored request cannot be read, or the new one not written.
pub fn request_of(
    intent: &Intent,
    write: impl FnOnce() -> Result<Request, BuildError>,
) -> Result<Request, FlowError> {
    match &intent.request {
        Some(text) => serde_json::from_str(text).map_err(|why| FlowError::Broken(why.to_string())),
        None => Ok(write()?),
    }
}

/// What an exchange leaves as evidence: enough for PayPal's support, without payer data.
pub fn evidence(how: &str, exchange: &Exchange, now: Timestamp) -> Evidence {
    let body = exchange.body.get(..KEPT_BYTES).unwrap_or(&exchange.body);
    let said = json!({
        "operation": exchange.operation.as_str(),
        "status": exchange.status,
        "debug_id": exchange.debug_id,
        "outcome": exchange.outcome.as_str(),
        "issue": exchange.outcome.issue(),
        "answer": redact::body(exchange.operation, body),
    });
    Evidence { at: now, how: how.to_owned(), said }
}

/// Whether the outcome of a send says that this and no earlier send ran.
pub fn certainly_not_run(claimed: &Claimed, exchange: &Exchange) -> bool {
    let first = claimed.intent.sends <= 1;
    let unsent = matches!(exchange.outcome, Outcome::Unknown { sent: false, .. });
    first && (unsent || matches!(exchange.outcome, Outcome::Retry { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use earnest_core::id::{SettlementId, VaultId};
    use earnest_paypal::Operation;

    #[test]
    fn a_claim_lasts_while_an_answer_is_waited_for() {
        let waits = earnest_paypal::Timeouts::default();
        assert!(waits.money < LEFT);
        // A token may have to be fetched first.
        let lease = Duration::from_secs(LEASE_SECONDS.unsigned_abs());
        assert!(LEFT + waits.read < lease);
    }

    /// The rules keep their own numbers, since they know nothing of PayPal; here both are known.
    #[test]
    fn the_rules_know_how_long_paypal_keeps_a_key() {
        let vault = VaultId::from_value(1);
        for (purpose, operation) in [
            (Purpose::Settlement(SettlementId::from_value(1)), Operation::OrderChargeVaulted),
            (Purpose::VaultSetup(vault), Operation::SetupTokenCreate),
            (Purpose::VaultToken(vault), Operation::PaymentTokenCreate),
        ] {
            let kept = operation.key_retention().unwrap().as_secs();
            let half_an_hour = 1800;
            assert_eq!(purpose.repeat_seconds().unsigned_abs(), kept - half_an_hour, "{operation}");
        }
    }
}
