//! Everything the simulated PayPal remembers, and what time does to it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::answer::{Problem, Resource};
use crate::books::Books;
use crate::clock::plus_seconds;
use crate::config::{Payer, SimConfig};
use crate::disputes::Dispute;
use crate::faults::{Ending, Faults};
use crate::ids;
use crate::journal::Journal;
use crate::money::Money;
use crate::webhooks::Post;
use crate::webhooks::sign::Authority;
use crate::{orders, payments, refunds};

/// How long an order may wait for its payer, and then for the merchant.
pub(crate) const ORDER_LIFE_SECONDS: i64 = 3 * 3_600;
/// How long a setup token lives. PayPal does not say; three hours is a guess.
pub(crate) const SETUP_TOKEN_LIFE_SECONDS: i64 = 3 * 3_600;
/// How long a hold lives.
pub(crate) const AUTHORIZATION_LIFE_SECONDS: i64 = 29 * 86_400;

/// What the merchant wants of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    Capture,
    Authorize,
}

impl Intent {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Capture => "CAPTURE",
            Self::Authorize => "AUTHORIZE",
        }
    }
}

/// Where an order stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OrderStatus {
    Created,
    PayerActionRequired,
    Approved,
    Completed,
    Voided,
}

impl OrderStatus {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::PayerActionRequired => "PAYER_ACTION_REQUIRED",
            Self::Approved => "APPROVED",
            Self::Completed => "COMPLETED",
            Self::Voided => "VOIDED",
        }
    }

    /// Still waiting for payer or merchant, so it can expire.
    pub(crate) const fn is_open(self) -> bool {
        matches!(self, Self::Created | Self::PayerActionRequired | Self::Approved)
    }
}

/// One purchase unit and what happened to it.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub(crate) reference_id: String,
    /// The unit as it was sent and patched, without `payments`.
    pub(crate) body: Map<String, Value>,
    pub(crate) amount: Money,
    /// What the payer agreed to.
    pub(crate) approved: Option<Money>,
    pub(crate) authorizations: Vec<String>,
    pub(crate) captures: Vec<String>,
    pub(crate) refunds: Vec<String>,
    pub(crate) trackers: Vec<Value>,
}

impl Unit {
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.body.get(name).and_then(Value::as_str).map(str::to_owned)
    }
}

/// A PayPal order.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) id: String,
    pub(crate) intent: Intent,
    pub(crate) status: OrderStatus,
    pub(crate) units: Vec<Unit>,
    /// `payment_source.paypal` as it was sent, if it was.
    pub(crate) wallet: Option<Value>,
    pub(crate) return_url: Option<String>,
    pub(crate) cancel_url: Option<String>,
    pub(crate) payer: Option<Payer>,
    /// Charged on a vaulted token, without the payer present.
    pub(crate) vaulted: bool,
    /// A payment token made while paying.
    pub(crate) saved_token: Option<String>,
    pub(crate) attempts: u32,
    pub(crate) created: Timestamp,
    pub(crate) updated: Timestamp,
    pub(crate) expires: Timestamp,
}

/// Where a hold stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthorizationStatus {
    Created,
    Pending,
    PartiallyCaptured,
    Captured,
    Voided,
    Denied,
}

impl AuthorizationStatus {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Created => "CREATED",
            Self::Pending => "PENDING",
            Self::PartiallyCaptured => "PARTIALLY_CAPTURED",
            Self::Captured => "CAPTURED",
            Self::Voided => "VOIDED",
            Self::Denied => "DENIED",
        }
    }
}

/// A hold on a payer's money.
#[derive(Debug, Clone)]
pub(crate) struct Authorization {
    pub(crate) id: String,
    pub(crate) order_id: String,
    pub(crate) unit: usize,
    pub(crate) status: AuthorizationStatus,
    pub(crate) reason: Option<String>,
    pub(crate) amount: Money,
    pub(crate) invoice_id: Option<String>,
    pub(crate) custom_id: Option<String>,
    /// The authorization this one renews.
    pub(crate) parent: Option<String>,
    /// Captured with `final_capture`: whatever was left is released.
    pub(crate) closed: bool,
    /// Ran past its 29 days.
    pub(crate) expired: bool,
    pub(crate) captures: Vec<String>,
    pub(crate) created: Timestamp,
    pub(crate) updated: Timestamp,
    pub(crate) expires: Timestamp,
}

/// Where a capture stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaptureStatus {
    Pending,
    Completed,
    Declined,
    PartiallyRefunded,
    Refunded,
}

impl CaptureStatus {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Completed => "COMPLETED",
            Self::Declined => "DECLINED",
            Self::PartiallyRefunded => "PARTIALLY_REFUNDED",
            Self::Refunded => "REFUNDED",
        }
    }
}

/// Money taken from a payer.
#[derive(Debug, Clone)]
pub(crate) struct Capture {
    pub(crate) id: String,
    pub(crate) order_id: String,
    pub(crate) unit: usize,
    pub(crate) authorization_id: Option<String>,
    pub(crate) status: CaptureStatus,
    pub(crate) reason: Option<String>,
    pub(crate) amount: Money,
    pub(crate) final_capture: bool,
    pub(crate) invoice_id: Option<String>,
    pub(crate) custom_id: Option<String>,
    pub(crate) note: Option<String>,
    /// Known once completed.
    pub(crate) fee: Option<Money>,
    /// What a pending capture will cost when it completes.
    pub(crate) fee_to_come: Money,
    pub(crate) payer: Payer,
    pub(crate) refunds: Vec<String>,
    /// Taken back by PayPal, in minor units.
    pub(crate) reversed: i64,
    pub(crate) created: Timestamp,
    pub(crate) updated: Timestamp,
}

/// Where a refund stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefundStatus {
    Pending,
    Completed,
    Failed,
}

impl RefundStatus {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
        }
    }
}

/// Money on its way back to a payer.
#[derive(Debug, Clone)]
pub(crate) struct Refund {
    pub(crate) id: String,
    pub(crate) capture_id: String,
    pub(crate) status: RefundStatus,
    pub(crate) reason: Option<String>,
    pub(crate) amount: Money,
    pub(crate) invoice_id: Option<String>,
    pub(crate) custom_id: Option<String>,
    pub(crate) note: Option<String>,
    pub(crate) created: Timestamp,
    pub(crate) updated: Timestamp,
}

/// Where a setup token stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetupStatus {
    PayerActionRequired,
    Approved,
    Vaulted,
}

impl SetupStatus {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::PayerActionRequired => "PAYER_ACTION_REQUIRED",
            Self::Approved => "APPROVED",
            Self::Vaulted => "VAULTED",
        }
    }
}

/// A request to save a wallet, waiting for its payer.
#[derive(Debug, Clone)]
pub(crate) struct SetupToken {
    pub(crate) id: String,
    pub(crate) status: SetupStatus,
    pub(crate) customer_id: String,
    pub(crate) merchant_customer_id: Option<String>,
    pub(crate) wallet: Map<String, Value>,
    pub(crate) payer: Option<Payer>,
    pub(crate) return_url: Option<String>,
    pub(crate) cancel_url: Option<String>,
    pub(crate) expires: Timestamp,
}

/// Why a payment token cannot be charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenState {
    Live,
    /// The merchant deleted it.
    Deleted,
    /// The payer removed the agreement on paypal.com.
    Revoked,
}

/// A saved wallet.
#[derive(Debug, Clone)]
pub(crate) struct PaymentToken {
    pub(crate) id: String,
    pub(crate) state: TokenState,
    pub(crate) customer_id: String,
    pub(crate) merchant_customer_id: Option<String>,
    pub(crate) wallet: Map<String, Value>,
    pub(crate) payer: Payer,
}

/// An issued access token.
#[derive(Debug, Clone)]
pub(crate) struct AccessToken {
    pub(crate) scopes: Vec<String>,
    pub(crate) expires: Timestamp,
}

/// What a `PayPal-Request-Id` stands for.
#[derive(Debug, Clone)]
pub(crate) struct KeyRecord {
    pub(crate) fingerprint: String,
    pub(crate) first_used: Timestamp,
    pub(crate) result: Result<Resource, Problem>,
}

/// A payment that will end by itself when the clock reaches `due`.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    pub(crate) resource: Resource,
    pub(crate) due: Timestamp,
    pub(crate) then: Ending,
}

/// All state, behind one lock.
pub(crate) struct World {
    pub(crate) config: Arc<SimConfig>,
    /// What links begin with.
    pub(crate) base: String,
    /// Signs webhooks.
    pub(crate) authority: Arc<Authority>,
    pub(crate) orders: BTreeMap<String, Order>,
    pub(crate) authorizations: BTreeMap<String, Authorization>,
    pub(crate) captures: BTreeMap<String, Capture>,
    pub(crate) refunds: BTreeMap<String, Refund>,
    pub(crate) disputes: BTreeMap<String, Dispute>,
    pub(crate) setup_tokens: BTreeMap<String, SetupToken>,
    pub(crate) payment_tokens: BTreeMap<String, PaymentToken>,
    pub(crate) payers: BTreeMap<String, Payer>,
    pub(crate) access_tokens: HashMap<String, AccessToken>,
    pub(crate) token_calls: Vec<Timestamp>,
    /// Scopes that new tokens get.
    pub(crate) scopes: Vec<String>,
    pub(crate) keys: HashMap<(&'static str, String), KeyRecord>,
    pub(crate) in_flight: HashSet<(&'static str, String)>,
    /// Which order (or refund) first used an invoice id.
    pub(crate) capture_invoices: HashMap<String, String>,
    pub(crate) refund_invoices: HashMap<String, String>,
    pub(crate) pendings: Vec<Pending>,
    pub(crate) books: Books,
    pub(crate) journal: Journal,
    pub(crate) faults: Faults,
    pub(crate) post: Post,
}

impl World {
    pub(crate) fn new(config: Arc<SimConfig>, base: String, authority: Arc<Authority>) -> Self {
        let mut payers = BTreeMap::new();
        payers.insert(config.buyer.email.clone(), config.buyer.clone());
        Self {
            orders: BTreeMap::new(),
            authorizations: BTreeMap::new(),
            captures: BTreeMap::new(),
            refunds: BTreeMap::new(),
            disputes: BTreeMap::new(),
            setup_tokens: BTreeMap::new(),
            payment_tokens: BTreeMap::new(),
            payers,
            access_tokens: HashMap::new(),
            token_calls: Vec::new(),
            scopes: config.scopes.clone(),
            keys: HashMap::new(),
            in_flight: HashSet::new(),
            capture_invoices: HashMap::new(),
            refund_invoices: HashMap::new(),
            pendings: Vec::new(),
            books: Books::new(&config.opening),
            journal: Journal::new(config.journal_limit),
            faults: Faults::default(),
            post: Post::new(&config.webhooks),
            config,
            base,
            authority,
        }
    }

    /// The account of this address, opened on first sight.
    pub(crate) fn payer(&mut self, email: &str) -> Payer {
        if let Some(payer) = self.payers.get(email) {
            return payer.clone();
        }
        let payer = Payer {
            payer_id: ids::payer(),
            email: email.to_owned(),
            given_name: "Test".to_owned(),
            surname: "Payer".to_owned(),
            country: "US".to_owned(),
        };
        self.payers.insert(email.to_owned(), payer.clone());
        payer
    }

    /// What became due by `now`: pending payments end, orders and tokens run out, holds expire.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        self.end_pendings(now);
        orders::expire(self, now);
        payments::expire(self, now);
        self.setup_tokens
            .retain(|_, token| token.status == SetupStatus::Vaulted || token.expires > now);
        self.access_tokens.retain(|_, token| token.expires > now);
    }

    fn end_pendings(&mut self, now: Timestamp) {
        let (due, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pendings).into_iter().partition(|pending| pending.due <= now);
        self.pendings = waiting;
        for pending in due {
            // The end is dated when it was due, so a long advance does not move it.
            self.end(&pending.resource, pending.then, pending.due);
        }
    }

    /// Ends a pending payment; false if that resource is not pending.
    pub(crate) fn end(&mut self, resource: &Resource, then: Ending, at: Timestamp) -> bool {
        match resource {
            Resource::Capture(id) => payments::end_capture(self, id, then, at),
            Resource::Authorization(id) => payments::end_authorization(self, id, then, at),
            Resource::Refund(id) => refunds::end(self, id, then, at),
            _ => false,
        }
    }

    /// Schedules the end of a pending payment, if the fault said when.
    pub(crate) fn end_later(
        &mut self,
        resource: Resource,
        then: Ending,
        after_seconds: Option<u32>,
        now: Timestamp,
    ) {
        if let Some(seconds) = after_seconds {
            self.pendings.push(Pending {
                resource,
                due: plus_seconds(now, i64::from(seconds)),
                then,
            });
        }
    }

    /// A link of an answer.
    pub(crate) fn href(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }
}
