//! Vaulting a way to pay: a page for the payer, then the lasting token; each from an intent.

use earnest_core::id::{IntentId, OwnerId, VaultId};
use earnest_core::intent::{Fate, Intent};
use earnest_core::party::Owner;
use earnest_core::problem::{Code, Refusal};
use earnest_core::tab::Tab;
use earnest_core::vault::{
    Begin, Confirm, PaymentToken, RecordSetup, RecordToken, Remove, SetupToken, Vault, VaultState,
};
use earnest_paypal::vault::{self as api, SetupTokenStatus};
use earnest_paypal::{Exchange, Outcome, Resource};
use earnest_store::SubmitError;

use super::lost;
use super::paypal::{self, FlowError, claim, evidence, request_of};
use crate::app::App;

/// What the payer reads on PayPal's page.
const DESCRIPTION: &str = "Earnest tab, settled when it closes";

/// Begins vaulting and asks PayPal for a page at once, since somebody waits for it.
///
/// # Errors
/// [`FlowError`].
pub async fn begin(app: &App, owner: OwnerId) -> Result<Vault, FlowError> {
    lost::refuse_quarantined(app)?;
    let vault = VaultId::new(app.seed());
    let intent = IntentId::new(app.seed());
    let unit = Begin {
        owner,
        vault,
        intent,
        epoch: app.store.epoch().to_owned(),
        return_url: format!("{}/vault/return?method={vault}", app.public_url),
        cancel_url: format!("{}/vault/cancel?method={vault}", app.public_url),
    };
    let begun = app.store.submit(unit).await?;
    paypal::carry_out(app, intent).await?;
    Ok(app.store.reader().row::<Vault>(vault)?.unwrap_or(begun))
}

pub(super) async fn carry_out_setup(
    app: &App,
    intent: Intent,
    id: VaultId,
) -> Result<(), FlowError> {
    if !paypal::may_send(app, &intent) {
        return give_up_setup(app, intent, id).await;
    }
    let request = request_of(&intent, || {
        let url = |name| intent.facts.get(name).and_then(|url| url.as_str()).unwrap_or_default();
        let token = api::NewSetupToken {
            description: DESCRIPTION,
            brand: "Earnest",
            return_url: url("return_url"),
            cancel_url: url("cancel_url"),
        };
        api::create_setup_token(&token, &intent.key)
    })?;
    let (claimed, exchange) = paypal::send(app, intent.id, &request).await?;
    let fate = fate_of(&exchange, |resource| {
        let token = resource.setup_token()?;
        let approve_url = token.approve_url.clone()?;
        Some(SetupToken { token: token.id.clone(), approve_url })
    });
    let how = evidence("answer", &exchange, app.now());
    let unit =
        RecordSetup { vault: id, intent: intent.id, fence: claimed.fence, fate, evidence: how };
    app.store.submit(unit).await?;
    Ok(())
}

/// A setup token moves no money and dies by itself: past its key's retention a new one is made.
async fn give_up_setup(app: &App, intent: Intent, id: VaultId) -> Result<(), FlowError> {
    let claimed = claim(app, intent.id).await?;
    let said = serde_json::json!({ "said": "past the key's retention; begin again" });
    let how = earnest_core::intent::Evidence { at: app.now(), how: "given up".to_owned(), said };
    let fate = Fate::NotCharged;
    let unit =
        RecordSetup { vault: id, intent: intent.id, fence: claimed.fence, fate, evidence: how };
    app.store.submit(unit).await?;
    Ok(())
}

/// What an answer of the vault means; it moves no money, so a repeat is always safe.
fn fate_of<T>(exchange: &Exchange, read: impl FnOnce(&Resource) -> Option<T>) -> Fate<T> {
    match &exchange.outcome {
        Outcome::Done { resource } | Outcome::Pending { resource, .. } => {
            read(resource).map_or(Fate::Unknown, Fate::Done)
        }
        Outcome::Declined { issue, .. } => Fate::Declined { issue: issue.clone() },
        Outcome::Refused { issue, .. } | Outcome::NotFound { issue, .. } => {
            Fate::Refused { issue: issue.clone() }
        }
        Outcome::Retry { .. } => Fate::NotRun,
        Outcome::AlreadyDone { .. } | Outcome::Unknown { .. } => Fate::Unknown,
    }
}

/// Looks whether the payer consented, and if so asks for the lasting token.
///
/// # Errors
/// [`FlowError`].
pub async fn confirm(app: &App, id: VaultId) -> Result<Option<Vault>, FlowError> {
    let Some(vault) = app.store.reader().row::<Vault>(id)? else { return Ok(None) };
    let (VaultState::AwaitingPayer, Some(token)) = (vault.state, &vault.setup_token) else {
        return Ok(Some(vault));
    };
    let exchange = app.paypal.send(&api::get_setup_token(token)?).await;
    let consented = exchange.resource().and_then(Resource::setup_token).is_some_and(|token| {
        matches!(token.status, SetupTokenStatus::Approved | SetupTokenStatus::Vaulted)
    });
    if !consented {
        return Ok(Some(vault));
    }
    lost::refuse_quarantined(app)?;
    let intent = IntentId::new(app.seed());
    let unit = Confirm { vault: id, intent, epoch: app.store.epoch().to_owned() };
    app.store.submit(unit).await?;
    paypal::carry_out(app, intent).await?;
    Ok(app.store.reader().row::<Vault>(id)?)
}

pub(super) async fn carry_out_token(
    app: &App,
    intent: Intent,
    id: VaultId,
) -> Result<(), FlowError> {
    let request = request_of(&intent, || {
        let token = intent.facts.get("setup_token").and_then(|token| token.as_str());
        api::create_payment_token(token.unwrap_or_default(), &intent.key)
    })?;
    let (claimed, fate, how) = if paypal::may_send(app, &intent) {
        let (claimed, exchange) = paypal::send(app, intent.id, &request).await?;
        let fate = fate_of(&exchange, |resource| resource.payment_token().map(token_of));
        (claimed, fate, evidence("answer", &exchange, app.now()))
    } else {
        // The consent is used up or gone; the owner is asked for another one.
        let said = serde_json::json!({ "said": "past the key's retention; begin again" });
        let how =
            earnest_core::intent::Evidence { at: app.now(), how: "given up".to_owned(), said };
        (claim(app, intent.id).await?, Fate::NotCharged, how)
    };
    let owner = app.store.reader().row::<Owner>(intent.owner)?;
    let unit = RecordToken {
        owner: intent.owner,
        replaces: owner.and_then(|owner| owner.funding).map(|funding| funding.vault),
        vault: id,
        intent: intent.id,
        fence: claimed.fence,
        fate,
        evidence: how,
    };
    app.store.submit(unit).await?;
    Ok(())
}

fn token_of(token: &api::PaymentToken) -> PaymentToken {
    PaymentToken {
        token: token.id.clone(),
        customer: token.customer_id.clone(),
        payer_id: token.payer_id.clone(),
        email: token.email.clone(),
    }
}

/// A webhook said that a payment token is gone: reads, and removes it if PayPal knows it no more.
///
/// # Errors
/// [`FlowError`].
pub async fn removal_hinted(app: &App, token: &str) -> Result<Option<VaultId>, FlowError> {
    let page = app.store.reader().list::<Vault>("vaults.payment_token", token, None, 1, true)?;
    let Some(vault) = page.items.into_iter().next() else { return Ok(None) };
    let exchange = app.paypal.send(&api::get_payment_token(token)?).await;
    if matches!(exchange.outcome, Outcome::NotFound { .. }) && vault.state == VaultState::Active {
        app.store.submit(Remove { owner: vault.owner, vault: vault.id }).await?;
    }
    Ok(Some(vault.id))
}

/// Whether a settlement of an owner has no outcome yet, by a plain read.
fn settling(app: &App, owner: OwnerId) -> Result<bool, FlowError> {
    let reader = app.store.reader();
    let Some(owner) = reader.row::<Owner>(owner)? else { return Ok(false) };
    for id in owner.earlier_tabs.iter().chain(&owner.open_tab) {
        if reader.row::<Tab>(id)?.is_some_and(|tab| tab.open_settlement.is_some()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The owner removes a way to pay: at PayPal first, so that a stored consent never outlives our row.
///
/// # Errors
/// [`FlowError`].
pub async fn remove(app: &App, owner: OwnerId, id: VaultId) -> Result<Vault, FlowError> {
    // A charge of the lost life may rest on it, and PayPal is only read.
    lost::refuse_quarantined(app)?;
    let row = app.store.reader().row::<Vault>(id)?.filter(|vault| vault.owner == owner);
    // A charge whose answer was lost is repeated under its key; without the method PayPal would
    // refuse the repeat, and nobody could tell what became of the first.
    if row.is_some() && settling(app, owner)? {
        let why = "a settlement of yours is under way; remove the payment method once it is over";
        let refusal = Refusal::new(Code::StateConflict, why).retry_after(60);
        return Err(SubmitError::Refused(Box::new(refusal)).into());
    }
    if let Some(token) = row.and_then(|vault| vault.payment_token) {
        // Safe to repeat, so it needs no intent; our row stays until PayPal has none.
        let exchange = app.paypal.send(&api::delete_payment_token(&token)?).await;
        if !matches!(exchange.outcome, Outcome::Done { .. } | Outcome::NotFound { .. }) {
            let why = "PayPal did not confirm that the payment method is gone; repeat it";
            let refusal = Refusal::new(Code::PaymentOutcomeUnknown, why).retry_after(5);
            return Err(SubmitError::Refused(Box::new(refusal)).into());
        }
    }
    Ok(app.store.submit(Remove { owner, vault: id }).await?)
}
