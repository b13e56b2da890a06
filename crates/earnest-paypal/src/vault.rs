//! Vault v3: a payer's consent, kept so that a tab can be settled without them.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::request::{BuildError, MAX_REFERENCE, Operation, Request, path_id, prose};
use crate::wire::{self, Link};

/// The longest description of a vaulted wallet.
const MAX_DESCRIPTION: usize = 128;

wire::statuses! {
    /// Where a setup token is.
    SetupTokenStatus {
        /// Made.
        Created = "CREATED",
        /// The payer must agree.
        PayerActionRequired = "PAYER_ACTION_REQUIRED",
        /// The payer agreed; turn it into a payment token.
        Approved = "APPROVED",
        /// A payment token exists.
        Vaulted = "VAULTED",
        /// As vaulted, in newer answers.
        Tokenized = "TOKENIZED",
    }
}

/// The start of vaulting; lives about 3 hours.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupToken {
    /// PayPal's id, 17 characters.
    pub id: String,
    /// Where it is.
    pub status: SetupTokenStatus,
    /// PayPal's id of the customer: keep it, it lists the payment tokens.
    pub customer_id: Option<String>,
    /// Where to send the payer.
    pub approve_url: Option<String>,
}

earnest_core::shows_only!(SetupToken: status);

/// A vaulted method.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentToken {
    /// PayPal's id: the `vault_id` of a charge.
    pub id: String,
    /// PayPal's id of the customer.
    pub customer_id: Option<String>,
    /// The payer's account: must not be the seller's.
    pub payer_id: Option<String>,
    /// The payer's address.
    pub email: Option<String>,
}

earnest_core::shows_only!(PaymentToken);

/// What to vault.
#[derive(Clone, Debug)]
pub struct NewSetupToken<'a> {
    /// Shown to the payer; letters that PayPal refuses become spaces, cut to 128.
    pub description: &'a str,
    /// Shown on PayPal's page.
    pub brand: &'a str,
    /// Where the payer comes back; carries our own state.
    pub return_url: &'a str,
    /// Where the payer comes back having cancelled.
    pub cancel_url: &'a str,
}

/// Starts vaulting a PayPal account for a tab that is paid afterwards.
pub fn create_setup_token(token: &NewSetupToken<'_>, key: &str) -> Result<Request, BuildError> {
    let description: String =
        token.description.chars().map(|c| if in_alphabet(c) { c } else { ' ' }).collect();
    let description =
        prose(&description, MAX_DESCRIPTION).ok_or(BuildError::Text { field: "description" })?;
    let brand = prose(token.brand, MAX_REFERENCE).ok_or(BuildError::Text { field: "brand" })?;
    let body = json!({"payment_source": {"paypal": {
        "description": description,
        "usage_type": "MERCHANT",
        "usage_pattern": "UNSCHEDULED_POSTPAID",
        "customer_type": "CONSUMER",
        // An owner whose method stopped working may vault another one.
        "permit_multiple_payment_tokens": true,
        "experience_context": {
            "brand_name": brand,
            "shipping_preference": "NO_SHIPPING",
            "return_url": token.return_url,
            "cancel_url": token.cancel_url,
            "vault_instruction": "ON_CREATE_PAYMENT_TOKENS",
        },
    }}});
    let path = "/v3/vault/setup-tokens".to_owned();
    Request::write(Operation::SetupTokenCreate, key, path, Some(&body))
}

/// Turns an approved setup token into a payment token.
pub fn create_payment_token(setup_token_id: &str, key: &str) -> Result<Request, BuildError> {
    let id = path_id("setup token id", setup_token_id)?;
    let body = json!({"payment_source": {"token": {"id": id, "type": "SETUP_TOKEN"}}});
    let path = "/v3/vault/payment-tokens".to_owned();
    Request::write(Operation::PaymentTokenCreate, key, path, Some(&body))
}

/// Reads a setup token.
pub fn get_setup_token(id: &str) -> Result<Request, BuildError> {
    let id = path_id("setup token id", id)?;
    Ok(Request::read(Operation::SetupTokenGet, format!("/v3/vault/setup-tokens/{id}")))
}

/// Reads a payment token.
pub fn get_payment_token(id: &str) -> Result<Request, BuildError> {
    let id = path_id("payment token id", id)?;
    Ok(Request::read(Operation::PaymentTokenGet, format!("/v3/vault/payment-tokens/{id}")))
}

/// Forgets a payment token.
pub fn delete_payment_token(id: &str) -> Result<Request, BuildError> {
    let id = path_id("payment token id", id)?;
    Ok(Request::read(Operation::PaymentTokenDelete, format!("/v3/vault/payment-tokens/{id}")))
}

/// The alphabet of a wallet's description: `[a-zA-Z0-9_'\-., :;!?"]`.
fn in_alphabet(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_'-., :;!?\"".contains(c)
}

#[derive(Deserialize)]
struct WireCustomer {
    id: Option<String>,
}

#[derive(Deserialize)]
struct WireSetupToken {
    id: String,
    status: SetupTokenStatus,
    customer: Option<WireCustomer>,
    #[serde(default)]
    links: Vec<Link>,
}

impl SetupToken {
    /// Reads a setup token; `None` when id or status cannot be read.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let wire: WireSetupToken = serde_json::from_slice(body).ok()?;
        (!wire.id.is_empty()).then(|| Self {
            approve_url: wire::link(&wire.links, &["approve", "payer-action"]),
            id: wire.id,
            status: wire.status,
            customer_id: wire.customer.and_then(|customer| customer.id),
        })
    }
}

#[derive(Deserialize)]
struct WirePaymentToken {
    id: String,
    customer: Option<WireCustomer>,
    payment_source: Option<WireSource>,
}

#[derive(Deserialize)]
struct WireSource {
    paypal: Option<WireWallet>,
}

#[derive(Deserialize)]
struct WireWallet {
    payer_id: Option<String>,
    account_id: Option<String>,
    email_address: Option<String>,
}

impl PaymentToken {
    /// Reads a payment token; `None` when its id cannot be read.
    pub fn parse(body: &[u8]) -> Option<Self> {
        Self::from_wire(serde_json::from_slice(body).ok()?)
    }

    fn from_wire(wire: WirePaymentToken) -> Option<Self> {
        let wallet = wire.payment_source.and_then(|source| source.paypal);
        let (payer_id, email) = match wallet {
            Some(wallet) => (wallet.payer_id.or(wallet.account_id), wallet.email_address),
            None => (None, None),
        };
        (!wire.id.is_empty()).then(|| Self {
            id: wire.id,
            customer_id: wire.customer.and_then(|customer| customer.id),
            payer_id,
            email,
        })
    }
}
