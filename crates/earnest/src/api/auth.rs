//! Who is asking. A key is looked up by its SHA-256; another tenant's things are simply not there.
//! An owner's browser that is signed in counts as its owner, and as nobody else.

use axum::extract::FromRequestParts;
use earnest_core::id::{AgentId, KeyId, OwnerId, SellerId};
use earnest_core::party::{Agent, ApiKey, Principal};
use earnest_core::problem::{Code, Refusal};
use http::request::Parts;
use http::{Request, header};
use sha2::{Digest as _, Sha256};

use super::cookie::{self, Cookie};
use super::error::{ApiError, ApiResult, refuse};
use crate::app::{App, Verified};
use crate::flow::sign_in;

/// The longest credential that is looked at.
const MAX_KEY_BYTES: usize = 200;

/// Whoever holds a live key, or the owner whose browser is signed in.
#[derive(Clone, Copy, Debug)]
pub struct Caller(pub Verified);

impl FromRequestParts<App> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        // Another node may have revoked the key, and this one not have heard of it: then it may still
        // look, for a moment, and change nothing.
        let moments_ago = parts.method.is_safe() || !app.store.is_shared();
        caller(parts, app, moments_ago).await
    }
}

/// Who asks. Where it is enough that a key was good `moments_ago`, it is not always looked up.
async fn caller(parts: &mut Parts, app: &App, moments_ago: bool) -> ApiResult<Caller> {
    if !parts.headers.contains_key(header::AUTHORIZATION)
        && let Some((browser, cookie)) = browser(parts, app).await?
    {
        app.front.credential(cookie, &mut parts.extensions)?;
        return Ok(browser);
    }
    let unknown =
        || refuse(Code::Unauthenticated, "a live key is needed: Authorization: Bearer ek_…");
    let hash = hash_of(parts).ok_or_else(unknown)?;
    let verified = match app.recall(&hash) {
        Ok(verified) if moments_ago => verified,
        known => {
            let era = known.err().unwrap_or_else(|| app.key_era());
            let verified = look_up(app, hash)?.ok_or_else(unknown)?;
            app.remember(hash, verified, era);
            verified
        }
    };
    app.front.credential(hash, &mut parts.extensions)?;
    Ok(Caller(verified))
}

/// The owner whose browser it is, if it is signed in, and what its cookie is counted by.
///
/// # Errors
/// `unauthenticated` for an unsafe request that a page of somebody else's may have sent.
async fn browser(parts: &Parts, app: &App) -> ApiResult<Option<(Caller, [u8; 32])>> {
    let Some(cookie) = Cookie::SignIn.read(app, &parts.headers) else { return Ok(None) };
    let Some(row) = sign_in::find(app, &cookie).await? else { return Ok(None) };
    if !parts.method.is_safe() && !cookie::comes_from_here(app, &parts.headers) {
        let why = "a browser's change must come from a page of this Earnest";
        let refusal = Refusal::new(Code::Unauthenticated, why);
        return Err(refusal.next("send the header Earnest-CSRF: 1, or use a key").into());
    }
    let principal = Principal::Owner(row.owner);
    let counted = Sha256::digest(&cookie).into();
    Ok(Some((Caller(Verified { principal, key: None, owner: Some(row.owner) }), counted)))
}

/// Whether the credential in these headers is still good, looked up anew.
pub fn still_live(app: &App, headers: &http::HeaderMap) -> bool {
    if !headers.contains_key(header::AUTHORIZATION)
        && let Some(cookie) = Cookie::SignIn.read(app, headers)
    {
        // As below.
        return sign_in::live(app, &cookie).map_or(true, |row| row.is_some());
    }
    let mut parts = Request::new(()).into_parts().0;
    parts.headers.clone_from(headers);
    let found = hash_of(&parts).is_some_and(|hash| matches!(look_up(app, hash), Ok(Some(_))));
    // Where the books cannot be read now, that is not the key's fault.
    found || app.store.reader().head().is_err()
}

/// The SHA-256 of the one key in the headers.
fn hash_of(parts: &Parts) -> Option<[u8; 32]> {
    let mut values = parts.headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
    let key = scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())?;
    let fits = key.starts_with("ek_") && key.len() <= MAX_KEY_BYTES;
    fits.then(|| Sha256::digest(key).into())
}

/// The lookup is by the hash of the whole key, so there is no secret left to compare byte by byte:
/// how long it takes says nothing about a key that is not known already.
fn look_up(app: &App, hash: [u8; 32]) -> ApiResult<Option<Verified>> {
    let reader = app.store.reader();
    let Some(row) = reader.row::<ApiKey>(hex::encode(hash))? else { return Ok(None) };
    if row.revoked_at.is_some() {
        return Ok(None);
    }
    let owner = match row.principal {
        Principal::Agent(id) => match reader.row::<Agent>(id)? {
            Some(agent) => Some(agent.owner),
            None => return Ok(None),
        },
        Principal::Owner(id) => Some(id),
        _ => None,
    };
    Ok(Some(Verified { principal: row.principal, key: Some(row.id), owner }))
}

/// The owner who asks. Like the other roles below, this is settled before a body is read: a key of
/// another role learns nothing but that there is no such thing for it.
#[derive(Clone, Copy, Debug)]
pub struct AsOwner(pub OwnerId);

impl FromRequestParts<App> for AsOwner {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        match Caller::from_request_parts(parts, app).await?.0.principal {
            Principal::Owner(id) => Ok(Self(id)),
            _ => Err(not_here()),
        }
    }
}

/// The owner who asks, by a key: where something is made that would outlive a sign-in, and would go
/// on for whoever had the browser for a moment.
#[derive(Clone, Copy, Debug)]
pub struct AsOwnerByKey(pub OwnerId);

impl FromRequestParts<App> for AsOwnerByKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        match caller.0.principal {
            Principal::Owner(id) => caller.holds_a_key().map(|()| Self(id)),
            _ => Err(not_here()),
        }
    }
}

/// The agent who asks: itself, its owner, its key.
#[derive(Clone, Copy, Debug)]
pub struct AsAgent {
    /// Itself.
    pub agent: AgentId,
    /// Whose money it spends.
    pub owner: OwnerId,
    /// The key it used.
    pub key: KeyId,
}

impl FromRequestParts<App> for AsAgent {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        // The unit of a purchase checks the key again.
        let Verified { principal, key, owner } = caller(parts, app, true).await?.0;
        match (principal, owner, key) {
            (Principal::Agent(agent), Some(owner), Some(key)) => Ok(Self { agent, owner, key }),
            _ => Err(not_here()),
        }
    }
}

/// The seller who asks.
#[derive(Clone, Copy, Debug)]
pub struct AsSeller(pub SellerId);

impl FromRequestParts<App> for AsSeller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        match Caller::from_request_parts(parts, app).await?.0.principal {
            Principal::Seller(id) => Ok(Self(id)),
            _ => Err(not_here()),
        }
    }
}

/// The operator.
#[derive(Clone, Copy, Debug)]
pub struct AsOperator {
    /// Which key it is.
    pub key: Option<KeyId>,
}

impl FromRequestParts<App> for AsOperator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        let Verified { principal, key, .. } = Caller::from_request_parts(parts, app).await?.0;
        match principal {
            Principal::Operator => Ok(Self { key }),
            _ => Err(not_here()),
        }
    }
}

/// An owner, or the operator for any owner.
#[derive(Clone, Copy, Debug)]
pub struct AsOwnerOrOperator(pub Caller);

impl FromRequestParts<App> for AsOwnerOrOperator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        match caller.0.principal {
            Principal::Owner(_) | Principal::Operator => Ok(Self(caller)),
            _ => Err(not_here()),
        }
    }
}

/// A seller, or the operator for any seller.
#[derive(Clone, Copy, Debug)]
pub struct AsSellerOrOperator(pub Caller);

impl FromRequestParts<App> for AsSellerOrOperator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        let caller = Caller::from_request_parts(parts, app).await?;
        match caller.0.principal {
            Principal::Seller(_) | Principal::Operator => Ok(Self(caller)),
            _ => Err(not_here()),
        }
    }
}

impl Caller {
    /// Whether this caller may see what belongs to that owner: the owner, its agents, the operator.
    pub fn sees_owner(&self, owner: OwnerId) -> bool {
        self.0.principal == Principal::Operator || self.0.owner == Some(owner)
    }

    /// Refuses browsers where a credential is made that would outlive the sign-in.
    ///
    /// # Errors
    /// `unauthenticated`.
    pub fn holds_a_key(&self) -> ApiResult<()> {
        let why = "this needs a key: a browser that is signed in is not enough";
        self.0.key.map(|_| ()).ok_or_else(|| refuse(Code::Unauthenticated, why))
    }
}

/// What belongs to somebody else is not there.
pub fn not_here() -> ApiError {
    refuse(Code::NotFound, "there is no such thing for this key")
}
