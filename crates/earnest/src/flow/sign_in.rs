//! Signing a browser in and out. Tokens are drawn and hashed here; the books hold hashes only.

use earnest_core::id::{OwnerId, SignInId};
use earnest_core::party::Principal;
use earnest_core::sign_in::{AskLogin, LoginLink, Seen, SignIn, SignOut, UseLink, link_gone};
use earnest_core::time::Timestamp;
use sha2::{Digest as _, Sha256};

use super::paypal::FlowError;
use crate::app::App;
use crate::source::{random_bytes, random_token};

/// The longest token that is looked at.
const MAX_TOKEN_BYTES: usize = 200;

/// A link as it is shown, once.
pub struct NewLink {
    /// The address to open.
    pub url: String,
    /// When it stops counting.
    pub expires_at: Timestamp,
}

/// A browser that was just signed in.
pub struct NewSignIn {
    /// What its cookie holds.
    pub cookie: String,
    /// What is kept.
    pub row: SignIn,
}

/// SHA-256 in hex. Tokens hold 128 random bits or more, so a plain hash is enough, and a lookup by
/// it says nothing about a token that is not known already.
pub fn hash(token: &str) -> String {
    hex::encode(Sha256::digest(token))
}

/// Makes a link that signs the owner in, once.
///
/// The token stands in the query and not behind a `#`: a page without script can read it there, and
/// what looks at links ahead of people only gets the page, which changes nothing. Our own log holds
/// paths without queries; what a proxy logs is of use for ten minutes, until it was used.
///
/// # Errors
/// `not_found` for an owner who is not there, `rate_limited` past as many as the settings say.
pub async fn ask(app: &App, owner: OwnerId, by: Principal) -> Result<NewLink, FlowError> {
    let token = hex::encode(random_bytes::<16>());
    let settings = app.settings.clone();
    let ask = AskLogin { owner, by, hash: hash(&token), settings };
    let link = app.store.submit(ask).await?;
    let url = format!("{}/login?token={token}", app.public_url);
    Ok(NewLink { url, expires_at: link.expires_at })
}

/// The link of a token, if it could still be used by somebody.
///
/// # Errors
/// When the books cannot be read.
pub fn look(app: &App, token: &str) -> Result<Option<LoginLink>, FlowError> {
    if token.len() > MAX_TOKEN_BYTES {
        return Ok(None);
    }
    Ok(app.store.reader().row::<LoginLink>(hash(token))?)
}

/// Uses a link. `browser` is what the page of the link gave the browser.
///
/// # Errors
/// `unauthenticated` for a token that was used, has expired, or never was one.
pub async fn use_link(app: &App, token: &str, browser: &str) -> Result<NewSignIn, FlowError> {
    let link = look(app, token)?.ok_or_else(link_gone)?;
    let cookie = random_token();
    let unit = UseLink {
        link: link.hash,
        owner: link.owner,
        browser: hash(browser),
        hash: hash(&cookie),
        id: SignInId::new(app.seed()),
        settings: app.settings.clone(),
    };
    let row = app.store.submit(unit).await?;
    Ok(NewSignIn { cookie, row })
}

/// The sign-in of a cookie, if it counts now; read anew each time, so that one that was ended is
/// ended for the next request.
///
/// # Errors
/// When the books cannot be read.
pub fn live(app: &App, cookie: &str) -> Result<Option<SignIn>, FlowError> {
    if cookie.len() > MAX_TOKEN_BYTES {
        return Ok(None);
    }
    let row = app.store.reader().row::<SignIn>(hash(cookie))?;
    Ok(row.filter(|row| row.is_live(&app.settings, app.now())))
}

/// The same; and that it was seen is written down now and then.
///
/// # Errors
/// When the books cannot be read.
pub async fn find(app: &App, cookie: &str) -> Result<Option<SignIn>, FlowError> {
    let Some(row) = live(app, cookie)? else { return Ok(None) };
    if row.is_due(&app.settings, app.now()) {
        let unit = Seen { hash: row.hash.clone(), settings: app.settings.clone() };
        if let Err(error) = app.store.submit(unit).await {
            // It ends a little early then, which is no reason to refuse what was asked for now.
            tracing::warn!(%error, "that a browser was seen was not written down");
        }
    }
    Ok(Some(row))
}

/// Ends one sign-in, or all of the owner's with every link that is out; how many ended.
///
/// # Errors
/// When it was not recorded.
pub async fn end(app: &App, owner: OwnerId, one: Option<String>) -> Result<usize, FlowError> {
    Ok(app.store.submit(SignOut { owner, one }).await?)
}
