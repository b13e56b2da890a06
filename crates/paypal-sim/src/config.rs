//! How a simulated PayPal account is set up.

use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::money::{Currency, FeeSchedule, Money};

/// A PayPal account holder who pays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payer {
    /// 13 characters of `[2-9A-HJ-NP-Z]`.
    pub payer_id: String,
    /// The address they log in with.
    pub email: String,
    /// First name.
    pub given_name: String,
    /// Last name.
    pub surname: String,
    /// Two-letter country.
    pub country: String,
}

/// The account the API credentials belong to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merchant {
    /// 13 characters of `[2-9A-HJ-NP-Z]`.
    pub merchant_id: String,
    /// The address they log in with; a payer with this address is refused.
    pub email: String,
}

/// How long PayPal remembers a `PayPal-Request-Id`, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Orders v2: 6 hours.
    pub orders_seconds: i64,
    /// Payments v2: 45 days.
    pub payments_seconds: i64,
    /// Vault v3: 3 hours.
    pub vault_seconds: i64,
}

impl Default for Retention {
    fn default() -> Self {
        Self { orders_seconds: 6 * 3_600, payments_seconds: 45 * 86_400, vault_seconds: 3 * 3_600 }
    }
}

/// The scopes a token of a fully enabled account carries.
pub const ALL_SCOPES: &[&str] = &[
    "https://uri.paypal.com/services/payments/realtimepayment",
    "https://uri.paypal.com/services/payments/payment/authcapture",
    "https://uri.paypal.com/services/payments/refund",
    "https://uri.paypal.com/services/vault/payment-tokens/readwrite",
    "https://uri.paypal.com/services/reporting/search/read",
    "https://uri.paypal.com/services/reporting/balances/read",
    "https://uri.paypal.com/services/applications/webhooks",
    "https://uri.paypal.com/services/disputes/read-seller",
    "openid",
];

/// Everything a simulator can be told at start. The default is a US business account with
/// 1 000.00 USD, every feature issue #1 needs switched on, and real time.
#[derive(Clone)]
pub struct SimConfig {
    /// Where to listen; port 0 picks a free one.
    pub listen: SocketAddr,
    /// What links in answers begin with; `http://<bound address>` unless set.
    pub public_url: Option<String>,
    /// API client id.
    pub client_id: String,
    /// API client secret.
    pub client_secret: String,
    /// The seller.
    pub merchant: Merchant,
    /// Who approves when a caller names nobody.
    pub buyer: Payer,
    /// Balances before the first movement.
    pub opening: Vec<Money>,
    /// What PayPal keeps of captures.
    pub fees: FeeSchedule,
    /// What the clock shows at start; real time unless set.
    pub start: Option<Timestamp>,
    /// Whether the clock stands still until it is advanced.
    pub frozen: bool,
    /// How far Transaction Search and balances lie behind, in seconds.
    pub report_lag_seconds: u32,
    /// Memory of idempotency keys.
    pub retention: Retention,
    /// Whether a *declined* (4xx) result is replayed to its key. PayPal does not say.
    pub replay_declines: bool,
    /// `expires_in` of an access token.
    pub token_life_seconds: i64,
    /// Scopes of new tokens. The account can be given others later.
    pub scopes: Vec<String>,
    /// Token calls within one minute from which on the journal notes a violation.
    pub token_calls_noted: usize,
    /// Token calls within one minute from which on the answer is 429.
    pub token_calls_refused: usize,
    /// Whether the account setting "block duplicate invoice ids" is on.
    pub unique_invoices: bool,
    /// Whether one payer may be vaulted only once unless the request permits more.
    pub one_token_per_payer: bool,
    /// Status of an authorization after a final capture below its amount: `CAPTURED` if true,
    /// `PARTIALLY_CAPTURED` otherwise. PayPal's definitions allow both readings.
    pub final_partial_is_captured: bool,
    /// Captures allowed on one authorization. PayPal does not publish the number.
    pub max_captures: usize,
    /// Webhook URLs registered for all events from the start.
    pub webhooks: Vec<String>,
    /// Whether webhook URLs may be plain HTTP or use other ports than 443, as test servers do.
    pub relaxed_webhook_urls: bool,
    /// How long a webhook receiver may take before the delivery counts as failed.
    pub webhook_patience: Duration,
    /// Journal entries kept; older ones are forgotten.
    pub journal_limit: usize,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            public_url: None,
            client_id: "sim".to_owned(),
            client_secret: "sim".to_owned(),
            merchant: Merchant {
                merchant_id: "7KNGBPH2U58GQ".to_owned(),
                email: "merchant@example.com".to_owned(),
            },
            buyer: Payer {
                payer_id: "VYYFH3WJ4JPJQ".to_owned(),
                email: "buyer@example.com".to_owned(),
                given_name: "Ada".to_owned(),
                surname: "Owner".to_owned(),
                country: "US".to_owned(),
            },
            opening: vec![Money::new(Currency::USD, 100_000)],
            fees: FeeSchedule::US_WALLET,
            start: None,
            frozen: false,
            report_lag_seconds: 3 * 3_600,
            retention: Retention::default(),
            replay_declines: false,
            token_life_seconds: 32_400,
            scopes: ALL_SCOPES.iter().map(|&scope| scope.to_owned()).collect(),
            token_calls_noted: 20,
            token_calls_refused: 60,
            unique_invoices: true,
            one_token_per_payer: false,
            final_partial_is_captured: true,
            max_captures: 10,
            webhooks: Vec::new(),
            relaxed_webhook_urls: true,
            webhook_patience: Duration::from_secs(20),
            journal_limit: 100_000,
        }
    }
}
