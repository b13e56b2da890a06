//! Does a seller control the origin it registers? Its server says so itself: under
//! `/.well-known/earnest-origin` it lists the ids of the sellers it serves, one a line.
//!
//! The address comes from a stranger, so the one request made here goes through the guarded client,
//! with little time, little data, and no headers of ours.

use std::time::Duration;

use bytes::Bytes;
use earnest_core::admin::{Proof, PutOrigin, RecordProof};
use earnest_core::id::SellerId;
use earnest_core::party::Seller;
use earnest_core::problem::{Code, Refusal};
use earnest_store::SubmitError;
use http::{HeaderMap, Method, StatusCode};
use url::Url;

use super::paypal::FlowError;
use crate::app::App;
use crate::outbound::{Call, OutboundError};

/// Where a server lists the sellers it serves.
pub const PROOF_PATH: &str = "/.well-known/earnest-origin";
/// The most that is read of the list.
const MAX_PROOF_BYTES: usize = 16 * 1024;
/// How long the server may take.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);

/// The origin of a URL in its one spelling, if Earnest may call there at all.
///
/// # Errors
/// `url_invalid`; `target_forbidden` for addresses of private networks in any spelling.
pub fn check_origin(app: &App, text: &str) -> Result<String, FlowError> {
    let url = app.outbound.check(text)?;
    if url.path() != "/" || url.query().is_some() {
        return Err(
            Refusal::new(Code::UrlInvalid, "an origin has no path: https://host[:port]").into()
        );
    }
    Ok(url.origin().ascii_serialization())
}

/// Registers an origin; quotes under it count once it is proved.
///
/// # Errors
/// See [`check_origin`].
pub async fn register(app: &App, seller: SellerId, origin: &str) -> Result<Seller, FlowError> {
    let origin = check_origin(app, origin)?;
    Ok(app.store.submit(PutOrigin { seller, origin, proved: false }).await?)
}

/// Asks the origin itself and records its answer.
///
/// # Errors
/// `validation_failed` when the origin does not list the seller; `upstream_unreachable` when it
/// gives no usable answer.
pub async fn prove(app: &App, seller: SellerId, origin: &str) -> Result<Seller, FlowError> {
    let origin = check_origin(app, origin)?;
    let listed = listed(&fetch(app, &origin).await?);
    if !listed.contains(&seller) {
        let why = format!("{origin}{PROOF_PATH} does not list {seller}");
        return Err(Refusal::new(Code::ValidationFailed, why).into());
    }
    Ok(app.store.submit(RecordProof { seller, origin, proof: Proof::Lists(listed) }).await?)
}

/// The sellers that a list names, one a line in the one spelling of an id; what is none is passed
/// over.
fn listed(text: &str) -> Vec<SellerId> {
    let read = |line: &str| line.parse().ok().filter(|id: &SellerId| id.to_string() == line);
    text.lines().map(str::trim).filter_map(read).collect()
}

/// Asks an origin again that was proved before. One that answers without listing the seller is lost;
/// one that does not answer is asked again later.
///
/// # Errors
/// When the books cannot take the answer.
pub async fn check(app: &App, seller: SellerId, origin: &str) -> Result<(), SubmitError> {
    let proof = match fetch(app, origin).await {
        Ok(text) => Proof::Lists(listed(&text)),
        Err(why) => {
            tracing::warn!(%seller, origin, %why, "an origin does not answer");
            Proof::Silent
        }
    };
    let unit = RecordProof { seller, origin: origin.to_owned(), proof };
    app.store.submit(unit).await.map(|_| ())
}

async fn fetch(app: &App, origin: &str) -> Result<String, FlowError> {
    let url = Url::parse(&format!("{origin}{PROOF_PATH}"));
    let url =
        url.map_err(|_| Refusal::new(Code::UrlInvalid, "an origin is https://host[:port]"))?;
    let call = Call {
        method: Method::GET,
        url,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        max_bytes: MAX_PROOF_BYTES,
        timeout: PROOF_TIMEOUT,
    };
    let unreachable = |why: &str| {
        let detail = format!("{origin}{PROOF_PATH}: {why}");
        Refusal::new(Code::UpstreamUnreachable, detail)
    };
    let answer = app.outbound.send(call).await.map_err(|error| match error {
        OutboundError::Forbidden(_) => error.into(),
        // How far it got says nothing to whoever asked: there is no list.
        _ => unreachable(&error.to_string()),
    })?;
    if answer.status != StatusCode::OK {
        return Err(unreachable(&format!("answered {}", answer.status.as_u16())).into());
    }
    String::from_utf8(answer.body.into()).map_err(|_| unreachable("the answer is not text").into())
}
