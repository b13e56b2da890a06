//! What PayPal's answers hold, by the operation that was asked.

use serde::{Deserialize, Serialize};

use crate::disputes::{Dispute, Disputes};
use crate::orders::Order;
use crate::payments::{Authorization, Capture, Refund};
use crate::reporting::{Balances, TransactionPage};
use crate::request::Operation;
use crate::vault::{PaymentToken, SetupToken};
use crate::webhooks::{Webhook, Webhooks};

/// A resource as PayPal answered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// An order, its payments included.
    Order(Box<Order>),
    /// A capture.
    Capture(Box<Capture>),
    /// A refund.
    Refund(Box<Refund>),
    /// An authorization.
    Authorization(Box<Authorization>),
    /// The start of vaulting.
    SetupToken(SetupToken),
    /// A vaulted method.
    PaymentToken(PaymentToken),
    /// A page of Transaction Search.
    Transactions(TransactionPage),
    /// Our balances.
    Balances(Balances),
    /// A dispute.
    Dispute(Box<Dispute>),
    /// The disputes of a capture.
    Disputes(Disputes),
    /// A webhook.
    Webhook(Webhook),
    /// Our webhooks.
    Webhooks(Webhooks),
    /// PayPal's word on a signature: whether the delivery is its own.
    Verification(bool),
    /// Done without a body (204).
    Nothing,
}

impl Resource {
    /// Reads the body of a 2xx answer; `None` when it cannot be read as what was asked for.
    pub fn parse(operation: Operation, body: &[u8]) -> Option<Self> {
        use Operation as Op;
        Some(match operation {
            Op::OrderCreate
            | Op::OrderChargeVaulted
            | Op::OrderGet
            | Op::OrderAuthorize
            | Op::OrderCapture => Self::Order(Box::new(Order::parse(body)?)),
            Op::CaptureGet | Op::AuthorizationCapture => {
                Self::Capture(Box::new(Capture::parse(body)?))
            }
            Op::RefundGet | Op::CaptureRefund => Self::Refund(Box::new(Refund::parse(body)?)),
            // 204 without a body, or 200 with the authorization.
            Op::AuthorizationVoid if body.is_empty() => Self::Nothing,
            Op::AuthorizationGet | Op::AuthorizationReauthorize | Op::AuthorizationVoid => {
                Self::Authorization(Box::new(Authorization::parse(body)?))
            }
            Op::SetupTokenCreate | Op::SetupTokenGet => Self::SetupToken(SetupToken::parse(body)?),
            Op::PaymentTokenCreate | Op::PaymentTokenGet => {
                Self::PaymentToken(PaymentToken::parse(body)?)
            }
            Op::TransactionSearch => Self::Transactions(TransactionPage::parse(body)?),
            Op::Balances => Self::Balances(Balances::parse(body)?),
            Op::DisputeGet => Self::Dispute(Box::new(Dispute::parse(body)?)),
            Op::DisputeList => Self::Disputes(Disputes::parse(body)?),
            Op::WebhookCreate | Op::WebhookGet => Self::Webhook(Webhook::parse(body)?),
            Op::WebhookList => Self::Webhooks(Webhooks::parse(body)?),
            Op::WebhookVerify => Self::Verification(crate::webhooks::parse_verification(body)?),
            Op::PaymentTokenDelete | Op::WebhookDelete => Self::Nothing,
        })
    }

    /// The capture: itself, or the one of an order. We make one capture an order.
    pub fn capture(&self) -> Option<&Capture> {
        match self {
            Self::Capture(capture) => Some(capture),
            Self::Order(order) => order.captures.first(),
            _ => None,
        }
    }

    /// The authorization: itself, or the latest of an order.
    pub fn authorization(&self) -> Option<&Authorization> {
        match self {
            Self::Authorization(authorization) => Some(authorization),
            Self::Order(order) => order.authorizations.last(),
            _ => None,
        }
    }

    /// The order.
    pub fn order(&self) -> Option<&Order> {
        match self {
            Self::Order(order) => Some(order),
            _ => None,
        }
    }

    /// The refund.
    pub fn refund(&self) -> Option<&Refund> {
        match self {
            Self::Refund(refund) => Some(refund),
            _ => None,
        }
    }

    /// The setup token.
    pub fn setup_token(&self) -> Option<&SetupToken> {
        match self {
            Self::SetupToken(token) => Some(token),
            _ => None,
        }
    }

    /// The payment token.
    pub fn payment_token(&self) -> Option<&PaymentToken> {
        match self {
            Self::PaymentToken(token) => Some(token),
            _ => None,
        }
    }
}
