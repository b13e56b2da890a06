//! Creating keys. A key is shown once and kept as a hash.

use earnest_core::admin::{AddKey, RevokeKey};
use earnest_core::id::{KeyId, OwnerId};
use earnest_core::party::{ApiKey, Principal};
use earnest_core::problem::{Code, Refusal};
use earnest_paypal::Secret;
use sha2::{Digest as _, Sha256};

use super::paypal::FlowError;
use super::sign_in;
use crate::app::App;
use crate::source::random_token;

/// How many keys are read at once.
const KEYS: usize = 500;
/// How often it is looked for keys that are left.
const ROUNDS: usize = 10;

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
    let (scope, mut keys, mut after) = (principal.to_string(), Vec::new(), None);
    loop {
        let reader = app.store.reader();
        let page = reader.list::<ApiKey>("keys", &scope, after.as_ref(), KEYS, true)?;
        keys.extend(page.items);
        after = page.next;
        if after.is_none() {
            return Ok(keys);
        }
    }
}

/// Revokes every live key of a principal but one, and ends whatever else lets somebody be taken for
/// it: an owner's sign-ins, and the links that are out. Whoever rotates may know that somebody else
/// holds a key, and with it may have signed in, or made another.
///
/// # Errors
/// When it was not recorded; what was revoked until then stays revoked.
pub async fn revoke_others(
    app: &App,
    principal: Principal,
    owner: Option<OwnerId>,
    kept: KeyId,
) -> Result<(), FlowError> {
    // Again, because one that was good a moment ago may have made another meanwhile.
    for _ in 0..ROUNDS {
        let others = keys_of(app, principal)?;
        let others = others.iter().filter(|key| key.id != kept && key.revoked_at.is_none());
        let others: Vec<KeyId> = others.map(|key| key.id).collect();
        for other in &others {
            revoke_key(app, principal, owner, *other).await?;
        }
        if others.is_empty() {
            break;
        }
    }
    // Last: a sign-in makes no keys, but a key makes links.
    if let Principal::Owner(owner) = principal {
        sign_in::end(app, owner, None).await?;
    }
    Ok(())
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
    Ok(app.store.submit(RevokeKey { principal, hash: known.hash, owner }).await?)
}
