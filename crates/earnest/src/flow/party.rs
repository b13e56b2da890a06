//! Creating keys. A key is shown once and kept as a hash.

use earnest_core::admin::{AddKey, RevokeKey};
use earnest_core::id::{KeyId, OwnerId};
use earnest_core::party::{ApiKey, Principal};
use earnest_core::problem::{Code, Refusal};
use earnest_paypal::Secret;
use sha2::{Digest as _, Sha256};

use super::paypal::FlowError;
use crate::app::App;
use crate::source::random_token;

/// A new key: its text, shown once, and its row.
pub struct NewKey {
    /// `ek_agent_…`; nobody can read it again.
    pub secret: Secret,
    /// What is kept.
    pub row: ApiKey,
}

/// Draws a key; nothing is recorded yet.
pub fn draw(app: &App, principal: Principal, label: &str) -> NewKey {
    let secret = Secret::new(format!("{}{}", principal.key_prefix(), random_token()));
    let row = row_of(app, principal, &secret, label);
    NewKey { secret, row }
}

/// The row of a key that was drawn before.
pub fn row_of(app: &App, principal: Principal, secret: &Secret, label: &str) -> ApiKey {
    ApiKey {
        hash: hex::encode(Sha256::digest(secret.expose())),
        id: KeyId::new(app.seed()),
        principal,
        label: label.to_owned(),
        created_at: app.now(),
        revoked_at: None,
    }
}

/// Makes a key for a principal. `owner` is who asks, where the principal is an agent.
///
/// # Errors
/// `not_found` when the principal is not there for whoever asks.
pub async fn add_key(
    app: &App,
    principal: Principal,
    owner: Option<OwnerId>,
    label: &str,
) -> Result<NewKey, FlowError> {
    let key = draw(app, principal, label);
    app.store.submit(AddKey { key: key.row.clone(), owner }).await?;
    Ok(key)
}

/// Every key of a principal, newest first.
///
/// # Errors
/// When the books cannot be read.
pub fn keys_of(app: &App, principal: Principal) -> Result<Vec<ApiKey>, FlowError> {
    let scope = principal.to_string();
    Ok(app.store.reader().list::<ApiKey>("keys", &scope, None, 500, true)?.items)
}

/// Revokes one key of a principal.
///
/// # Errors
/// `not_found` when there is none.
pub async fn revoke_key(
    app: &App,
    principal: Principal,
    owner: Option<OwnerId>,
    id: KeyId,
) -> Result<ApiKey, FlowError> {
    let known = keys_of(app, principal)?.into_iter().find(|key| key.id == id);
    let known = known.ok_or_else(|| Refusal::new(Code::NotFound, "no such key"))?;
    let revoked = app.store.submit(RevokeKey { principal, hash: known.hash, owner }).await?;
    app.forget_keys();
    Ok(revoked)
}
