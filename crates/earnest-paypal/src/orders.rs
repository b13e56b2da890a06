//! Orders v2: what a payer approves, and the charge on a vaulted method.
//!
//! An order that is `COMPLETED` only says that its intent ran. Whether money moved stands in the
//! nested capture or authorization; read that.

use earnest_core::money::{Currency, Micros};
use earnest_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::money::{self, CurrencyCode};
use crate::payments::{Authorization, Capture, Payee, Refund, WireAuthorization, WireCapture};
use crate::payments::{WirePayee, WireRefund};
use crate::request::{
    BuildError, MAX_REFERENCE, Operation, Request, custom_id, invoice_id, path_id, prose,
};
use crate::wire::{self, Link, Money};

/// The longest `vault_id` of the schema.
const MAX_VAULT_ID: usize = 255;

/// What an approval flow will do with the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CheckoutIntent {
    /// Take the money once approved.
    Capture,
    /// Hold it once approved.
    Authorize,
}

wire::statuses! {
    /// Where an order is.
    OrderStatus {
        /// Made, nothing chosen.
        Created = "CREATED",
        /// Saved for later; unused here.
        Saved = "SAVED",
        /// The payer agreed.
        Approved = "APPROVED",
        /// Every unit was voided.
        Voided = "VOIDED",
        /// The intent ran; read the nested payment.
        Completed = "COMPLETED",
        /// The payer must do something first.
        PayerActionRequired = "PAYER_ACTION_REQUIRED",
    }
}

/// An order as it is now.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// PayPal's id, 17 characters.
    pub id: String,
    /// Where it is.
    pub status: OrderStatus,
    /// `CAPTURE` or `AUTHORIZE`; absent in minimal answers.
    pub intent: Option<String>,
    /// What was asked for; absent in minimal answers.
    pub amount: Option<Micros>,
    /// Its currency.
    pub currency: Option<CurrencyCode>,
    /// Our reference, unique.
    pub invoice_id: Option<String>,
    /// Our second reference.
    pub custom_id: Option<String>,
    /// Who receives the money.
    pub payee: Payee,
    /// The payer's account, once known.
    pub payer_id: Option<String>,
    /// Where to send the payer: `payer-action`, else `approve`.
    pub approve_url: Option<String>,
    /// When it was made.
    pub create_time: Option<Timestamp>,
    /// Holds placed on it.
    pub authorizations: Vec<Authorization>,
    /// Captures of it.
    pub captures: Vec<Capture>,
    /// Refunds of its captures.
    pub refunds: Vec<Refund>,
}

earnest_core::shows_only!(Order: id, status, intent, amount, currency, invoice_id, custom_id, payee, create_time, authorizations, captures, refunds);

/// An order that its payer must approve.
#[derive(Clone, Debug)]
pub struct NewOrder<'a> {
    /// Take or hold.
    pub intent: CheckoutIntent,
    /// Whole cents, above zero.
    pub amount: Micros,
    /// The books' currency.
    pub currency: Currency,
    /// Unique; at most 127 of `[A-Za-z0-9-_.,:]`.
    pub invoice_id: &'a str,
    /// At most 127 of `[A-Za-z0-9-_.,]`.
    pub custom_id: &'a str,
    /// Shown to the payer; cut to 127 bytes.
    pub description: &'a str,
    /// Shown on PayPal's page.
    pub brand: &'a str,
    /// Where the payer comes back.
    pub return_url: &'a str,
    /// Where the payer comes back having cancelled.
    pub cancel_url: &'a str,
}

/// A charge on a vaulted method, without its payer.
#[derive(Clone)]
pub struct VaultedCharge<'a> {
    /// The payment token's id.
    pub vault_id: &'a str,
    /// Whole cents, above zero.
    pub amount: Micros,
    /// The books' currency.
    pub currency: Currency,
    /// Unique; at most 127 of `[A-Za-z0-9-_.,:]`. Recovery finds the charge by it.
    pub invoice_id: &'a str,
    /// At most 127 of `[A-Za-z0-9-_.,]`.
    pub custom_id: &'a str,
    /// Shown to the payer; cut to 127 bytes.
    pub description: &'a str,
    /// Who is paid, if not the account that calls; 13 characters.
    pub payee: Option<&'a str>,
}

earnest_core::shows_only!(VaultedCharge<'_>: amount, currency, invoice_id, custom_id, description, payee);

/// Makes an order for its payer to approve. Moves nothing.
pub fn create(order: &NewOrder<'_>, key: &str) -> Result<Request, BuildError> {
    let unit =
        unit(order.amount, order.currency, order.invoice_id, order.custom_id, order.description)?;
    let mut experience = json!({
        "user_action": "PAY_NOW",
        "shipping_preference": "NO_SHIPPING",
        "landing_page": "LOGIN",
        // Keeps eChecks out, hence far fewer captures that stay PENDING for days.
        "payment_method_preference": "IMMEDIATE_PAYMENT_REQUIRED",
        "return_url": order.return_url,
        "cancel_url": order.cancel_url,
    });
    if let (Some(brand), Some(fields)) =
        (prose(order.brand, MAX_REFERENCE), experience.as_object_mut())
    {
        fields.insert("brand_name".to_owned(), brand);
    }
    let body = json!({
        "intent": order.intent,
        "purchase_units": [unit],
        "payment_source": {"paypal": {"experience_context": experience}},
    });
    Request::write(Operation::OrderCreate, key, "/v2/checkout/orders".to_owned(), Some(&body))
}

/// Charges a vaulted method: one call that creates and captures. Its key is remembered for only
/// 6 hours; after that look for `invoice_id` in Transaction Search, never post again.
pub fn charge_vaulted(charge: &VaultedCharge<'_>, key: &str) -> Result<Request, BuildError> {
    let letter = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if !(1..=MAX_VAULT_ID).contains(&charge.vault_id.len()) || !charge.vault_id.bytes().all(letter)
    {
        return Err(BuildError::Text { field: "vault_id" });
    }
    let mut unit = unit(
        charge.amount,
        charge.currency,
        charge.invoice_id,
        charge.custom_id,
        charge.description,
    )?;
    if let Some(payee) = charge.payee {
        let payee = path_id("payee", payee)?;
        unit.insert("payee".to_owned(), json!({"merchant_id": payee}));
    }
    let body = json!({
        "intent": "CAPTURE",
        "purchase_units": [unit],
        "payment_source": {"paypal": {
            "vault_id": charge.vault_id,
            // A wallet's stored credential; `payment_type` belongs to cards.
            "stored_credential": {
                "payment_initiator": "MERCHANT",
                "usage": "SUBSEQUENT",
                "usage_pattern": "UNSCHEDULED_POSTPAID",
            },
        }},
    });
    let path = "/v2/checkout/orders".to_owned();
    Request::write(Operation::OrderChargeVaulted, key, path, Some(&body))
}

/// Reads an order: the source of truth after any doubt.
pub fn get(id: &str) -> Result<Request, BuildError> {
    let id = path_id("order id", id)?;
    Ok(Request::read(Operation::OrderGet, format!("/v2/checkout/orders/{id}")))
}

/// Places the hold of an approved order.
pub fn authorize(id: &str, key: &str) -> Result<Request, BuildError> {
    let path = format!("/v2/checkout/orders/{}/authorize", path_id("order id", id)?);
    Request::write(Operation::OrderAuthorize, key, path, Some(&json!({})))
}

/// Captures an approved order.
pub fn capture(id: &str, key: &str) -> Result<Request, BuildError> {
    let path = format!("/v2/checkout/orders/{}/capture", path_id("order id", id)?);
    Request::write(Operation::OrderCapture, key, path, Some(&json!({})))
}

fn unit(
    amount: Micros,
    currency: Currency,
    invoice: &str,
    custom: &str,
    description: &str,
) -> Result<Map<String, Value>, BuildError> {
    let mut unit = Map::new();
    unit.insert("reference_id".to_owned(), Value::from("default"));
    unit.insert("amount".to_owned(), amount_object(amount, currency)?);
    unit.insert("invoice_id".to_owned(), invoice_id(invoice)?);
    unit.insert("custom_id".to_owned(), custom_id(custom)?);
    if let Some(description) = prose(description, MAX_REFERENCE) {
        unit.insert("description".to_owned(), description);
    }
    Ok(unit)
}

pub(crate) fn amount_object(amount: Micros, currency: Currency) -> Result<Value, BuildError> {
    let value = money::to_value(amount, currency.code())?;
    Ok(json!({"currency_code": currency.code(), "value": value}))
}

#[derive(Deserialize)]
struct WireOrder {
    id: String,
    status: OrderStatus,
    intent: Option<String>,
    #[serde(default)]
    purchase_units: Vec<WireUnit>,
    payer: Option<WirePayer>,
    payment_source: Option<WireSource>,
    #[serde(default, deserialize_with = "wire::time")]
    create_time: Option<Timestamp>,
    #[serde(default)]
    links: Vec<Link>,
}

#[derive(Deserialize)]
struct WireUnit {
    amount: Option<Money>,
    invoice_id: Option<String>,
    custom_id: Option<String>,
    payee: Option<WirePayee>,
    payments: Option<WirePayments>,
}

#[derive(Default, Deserialize)]
struct WirePayments {
    #[serde(default)]
    authorizations: Vec<WireAuthorization>,
    #[serde(default)]
    captures: Vec<WireCapture>,
    #[serde(default)]
    refunds: Vec<WireRefund>,
}

#[derive(Deserialize)]
struct WirePayer {
    payer_id: Option<String>,
}

#[derive(Deserialize)]
struct WireSource {
    paypal: Option<WireWallet>,
}

#[derive(Deserialize)]
struct WireWallet {
    account_id: Option<String>,
}

impl Order {
    /// Reads an answer of Orders v2; `None` when an id, status or amount cannot be read.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let wire: WireOrder = serde_json::from_slice(body).ok()?;
        Self::from_wire(wire)
    }

    fn from_wire(wire: WireOrder) -> Option<Self> {
        if wire.id.is_empty() {
            return None;
        }
        let wallet = wire.payment_source.and_then(|source| source.paypal);
        let payer_id = wire
            .payer
            .and_then(|payer| payer.payer_id)
            .or_else(|| wallet.and_then(|wallet| wallet.account_id));
        let mut order = Self {
            approve_url: wire::link(&wire.links, &["payer-action", "approve"]),
            id: wire.id,
            status: wire.status,
            intent: wire.intent,
            amount: None,
            currency: None,
            invoice_id: None,
            custom_id: None,
            payee: Payee::default(),
            payer_id,
            create_time: wire.create_time,
            authorizations: Vec::new(),
            captures: Vec::new(),
            refunds: Vec::new(),
        };
        for unit in wire.purchase_units {
            order.add_unit(unit)?;
        }
        Some(order)
    }

    /// Takes in one purchase unit. We only ever send one; of several, the first names the order.
    fn add_unit(&mut self, unit: WireUnit) -> Option<()> {
        let payee = unit.payee.map(Payee::from).unwrap_or_default();
        let payments = unit.payments.unwrap_or_default();
        for wire in payments.authorizations {
            self.authorizations.push(Authorization::from_wire(wire)?);
        }
        for wire in payments.captures {
            let mut capture = Capture::from_wire(wire)?;
            // A nested capture leaves out what stands on its order.
            capture.order_id.get_or_insert_with(|| self.id.clone());
            capture.invoice_id = capture.invoice_id.or_else(|| unit.invoice_id.clone());
            capture.custom_id = capture.custom_id.or_else(|| unit.custom_id.clone());
            capture.payee.fill_from(&payee);
            self.captures.push(capture);
        }
        for wire in payments.refunds {
            self.refunds.push(Refund::from_wire(wire)?);
        }
        if self.amount.is_none() {
            if let Some(money) = unit.amount {
                self.amount = Some(money.amount()?);
                self.currency = Some(money.currency);
            }
            self.invoice_id = unit.invoice_id;
            self.custom_id = unit.custom_id;
            self.payee = payee;
        }
        Some(())
    }
}
