//! OAuth2 client credentials: tokens with a life, frozen scopes and a rate limit.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::answer::{Outcome, Problem};
use crate::call::{Call, Request};
use crate::clock::{plus_seconds, rfc3339};
use crate::ids;
use crate::world::{AccessToken, World};

/// `POST /v1/oauth2/token`.
pub(crate) fn token(call: &mut Call<'_>) -> Result<Outcome, Problem> {
    throttle(call)?;
    let config = call.world.config.clone();
    if basic(call.request) != Some((config.client_id.clone(), config.client_secret.clone())) {
        return Err(Problem::oauth(401, "invalid_client", "Client Authentication failed"));
    }
    let grant = url::form_urlencoded::parse(&call.request.body)
        .find(|(name, _)| name == "grant_type")
        .map(|(_, value)| value.into_owned());
    if grant.as_deref() != Some("client_credentials") {
        return Err(Problem::oauth(
            400,
            "unsupported_grant_type",
            "Grant Type is NULL or not supported",
        ));
    }
    let token = ids::access_token();
    let scopes = call.world.scopes.clone();
    let uris = scopes.join(" ");
    call.world.access_tokens.insert(
        token.clone(),
        AccessToken { scopes, expires: plus_seconds(call.now, config.token_life_seconds) },
    );
    Ok(Outcome::Json {
        status: 200,
        body: json!({
            "scope": uris,
            "access_token": token,
            "token_type": "Bearer",
            "app_id": "APP-80W284485P519543T",
            "expires_in": config.token_life_seconds,
            "nonce": format!("{}{}", rfc3339(call.now), ids::opaque(43)),
        }),
    })
}

/// A token per transaction earns 429, and a note in the journal well before that.
fn throttle(call: &mut Call<'_>) -> Result<(), Problem> {
    let minute_ago = plus_seconds(call.now, -60);
    let calls = &mut call.world.token_calls;
    calls.retain(|&at| at > minute_ago);
    calls.push(call.now);
    let recent = calls.len();
    if recent > call.world.config.token_calls_noted {
        call.violation("token_fetched_too_often", format!("{recent} token calls within a minute"));
    }
    if recent > call.world.config.token_calls_refused {
        return Err(Problem::status(429));
    }
    Ok(())
}

fn basic(request: &Request) -> Option<(String, String)> {
    let header = request.header("authorization")?;
    let (scheme, encoded) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (id, secret) = decoded.split_once(':')?;
    Some((id.to_owned(), secret.to_owned()))
}

fn bearer(request: &Request) -> Option<String> {
    let header = request.header("authorization")?;
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
}

/// 401 for a token this server does not know.
pub(crate) fn dead_token() -> Problem {
    Problem::oauth(401, "invalid_token", "Access Token not found in cache")
}

/// Checks the token of an API call; `scope` is the end of a scope's URI, empty for any token.
pub(crate) fn authorize(world: &World, request: &Request, scope: &str) -> Result<(), Problem> {
    let Some(token) = bearer(request) else {
        return Err(Problem::status(401));
    };
    let Some(known) = world.access_tokens.get(&token) else {
        return Err(dead_token());
    };
    if known.scopes.iter().any(|held| held.ends_with(scope)) {
        Ok(())
    } else {
        Err(Problem::forbidden())
    }
}

/// Forgets the token a request carries.
pub(crate) fn forget(world: &mut World, request: &Request) {
    if let Some(token) = bearer(request) {
        world.access_tokens.remove(&token);
    }
}

/// A name for a token or key that does not reveal it.
pub(crate) fn fingerprint(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}
