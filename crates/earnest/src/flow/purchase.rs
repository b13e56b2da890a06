//! An agent buys: one unit, then the voucher is signed, off the writer.

use earnest_core::authorize::{Answer, Authorize, FreshIds, Outcome};
use earnest_core::id::{
    AgentId, ApprovalId, KeyId, OwnerId, PurchaseId, Seed, TabId, TransferId, VoucherId,
};
use earnest_core::jws::Purpose;
use earnest_core::money::Micros;
use earnest_core::problem::{Code, Refusal};
use earnest_core::purchase::{Purchase, mark};
use earnest_core::quote::{Quote, is_loopback};

use super::paypal::FlowError;
use crate::app::App;

/// Who asks, with which key.
#[derive(Clone, Copy, Debug)]
pub struct Buyer {
    /// Who buys.
    pub agent: AgentId,
    /// Whose money.
    pub owner: OwnerId,
    /// With which key.
    pub key: KeyId,
}

/// Authorizes a purchase. The answer's purchase carries what a voucher is made of.
///
/// # Errors
/// Any refusal that is not a decision of policy, such as an expired quote.
pub async fn authorize(
    app: &App,
    buyer: Buyer,
    quote: Quote,
    max_price: Micros,
    request_id: String,
) -> Result<Answer, FlowError> {
    check_scheme(app, &quote)?;
    let ids = fresh(app, buyer.agent, &request_id);
    let unit = Authorize {
        owner: buyer.owner,
        agent: buyer.agent,
        api_key: buyer.key,
        quote,
        max_price,
        request_id,
        ids,
        settings: app.settings.clone(),
    };
    let answer = app.store.submit(unit).await?;
    if let Outcome::Waiting(..) = answer.outcome {
        tracing::info!("a purchase waits for its owner");
    }
    Ok(answer)
}

/// Plain http is good enough only on loopback, and only where the operator allows it.
fn check_scheme(app: &App, quote: &Quote) -> Result<(), Refusal> {
    // A quote that was read has its URL in its canonical spelling.
    if quote.request.url.starts_with("https://") {
        return Ok(());
    }
    let url = earnest_core::quote::canonical_url(&quote.request.url)?;
    if app.allow_loopback && is_loopback(&url) {
        return Ok(());
    }
    Err(Refusal::new(Code::UrlInvalid, "the quoted URL must begin with https://"))
}

/// Ids for what the unit of a purchase may need.
pub fn fresh(app: &App, agent: AgentId, request_id: &str) -> FreshIds {
    let [hold, voucher, tab, carry, approval] = app.seeds();
    let marked = Seed { random: mark(agent, request_id), ..hold };
    FreshIds {
        purchase: PurchaseId::new(marked),
        hold: TransferId::new(hold),
        voucher: VoucherId::new(voucher),
        tab: TabId::new(tab),
        carry: TransferId::new(carry),
        approval: ApprovalId::new(approval),
    }
}

/// Signs the voucher that a purchase carries. Signing is deterministic, so a replay gives the same
/// voucher, byte for byte.
///
/// # Errors
/// `internal` when the purchase carries none.
pub fn voucher(app: &App, purchase: &Purchase) -> Result<String, FlowError> {
    let claims = purchase.claims(&app.public_url);
    let keys = app.keys();
    let signed = claims.and_then(|claims| {
        let signer = keys.signer(Purpose::Voucher, claims.iat)?;
        signer.sign(&claims).ok()
    });
    let refused = || Refusal::new(Code::Internal, "the voucher could not be signed").into();
    signed.ok_or_else(refused)
}
