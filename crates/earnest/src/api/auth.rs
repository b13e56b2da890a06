//! Who is asking. A key is looked up by its SHA-256; another tenant's things are simply not there.

use axum::extract::FromRequestParts;
use earnest_core::id::{AgentId, KeyId, OwnerId, SellerId};
use earnest_core::party::{Agent, ApiKey, Principal};
use earnest_core::problem::Code;
use http::header;
use http::request::Parts;
use sha2::{Digest as _, Sha256};

use super::error::{ApiResult, refuse};
use crate::app::{App, Verified};

/// The longest credential that is looked at.
const MAX_KEY_BYTES: usize = 200;

/// Whoever holds a live key.
#[derive(Clone, Copy, Debug)]
pub struct Caller(pub Verified);

impl FromRequestParts<App> for Caller {
    type Rejection = super::error::ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> ApiResult<Self> {
        let unknown =
            || refuse(Code::Unauthenticated, "a live key is needed: Authorization: Bearer ek_…");
        let mut values = parts.headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return Err(unknown()) };
        let key = value.to_str().ok().and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
        });
        let key = key.filter(|key| key.starts_with("ek_") && key.len() <= MAX_KEY_BYTES);
        let hash: [u8; 32] = Sha256::digest(key.ok_or_else(unknown)?).into();
        if let Some(verified) = app.recall(&hash) {
            return Ok(Self(verified));
        }
        let verified = look_up(app, hash)?.ok_or_else(unknown)?;
        app.remember(hash, verified);
        Ok(Self(verified))
    }
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
    Ok(Some(Verified { principal: row.principal, key: row.id, owner }))
}

impl Caller {
    /// The owner who asks.
    pub fn owner(&self) -> ApiResult<OwnerId> {
        match self.0.principal {
            Principal::Owner(id) => Ok(id),
            _ => Err(not_here()),
        }
    }

    /// The agent who asks: itself, its owner, its key.
    pub fn agent(&self) -> ApiResult<(AgentId, OwnerId, KeyId)> {
        match (self.0.principal, self.0.owner) {
            (Principal::Agent(id), Some(owner)) => Ok((id, owner, self.0.key)),
            _ => Err(not_here()),
        }
    }

    /// The seller who asks.
    pub fn seller(&self) -> ApiResult<SellerId> {
        match self.0.principal {
            Principal::Seller(id) => Ok(id),
            _ => Err(not_here()),
        }
    }

    /// The operator.
    pub fn operator(&self) -> ApiResult<()> {
        match self.0.principal {
            Principal::Operator => Ok(()),
            _ => Err(not_here()),
        }
    }

    /// Whether this caller may see what belongs to that owner: the owner, its agents, the operator.
    pub fn sees_owner(&self, owner: OwnerId) -> bool {
        self.0.principal == Principal::Operator || self.0.owner == Some(owner)
    }
}

/// What belongs to somebody else is not there.
pub fn not_here() -> super::error::ApiError {
    refuse(Code::NotFound, "there is no such thing for this key")
}
