//! Every operation the simulator knows: its name, path, scope and idempotency, in one table.

use http::Method;

use crate::answer::{Outcome, Problem};
use crate::call::Call;
use crate::{disputes, orders, payments, refunds, reporting, vault, webhooks};

/// Which memory of `PayPal-Request-Id` an operation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// None; the header is ignored.
    Ignored,
    /// Orders v2: 6 hours.
    Orders,
    /// Payments v2: 45 days.
    Payments,
    /// Vault v3: 3 hours, and the header must be there.
    Vault,
}

/// One operation.
pub(crate) struct Operation {
    /// PayPal's own operation id where the OpenAPI documents have one.
    pub(crate) name: &'static str,
    pub(crate) method: Method,
    /// `{}` stands for one path segment.
    path: &'static str,
    /// The scope a token needs, as the end of its URI; `-` for none, empty for any token.
    pub(crate) scope: &'static str,
    pub(crate) keys: Keys,
    /// Moves money: a careful client sends a key.
    pub(crate) moves_money: bool,
    pub(crate) handler: fn(&mut Call<'_>) -> Result<Outcome, Problem>,
}

const PAY: &str = "/services/payments/realtimepayment";
const AUTHCAPTURE: &str = "/services/payments/payment/authcapture";
const REFUND: &str = "/services/payments/refund";
const VAULT: &str = "/services/vault/payment-tokens/readwrite";
const SEARCH: &str = "/services/reporting/search/read";
const BALANCES: &str = "/services/reporting/balances/read";
const DISPUTES: &str = "/services/disputes/read-seller";
const WEBHOOKS: &str = "/services/applications/webhooks";

type Handler = fn(&mut Call<'_>) -> Result<Outcome, Problem>;

const fn op(
    name: &'static str,
    method: Method,
    path: &'static str,
    scope: &'static str,
    keys: Keys,
    moves_money: bool,
    handler: Handler,
) -> Operation {
    Operation { name, method, path, scope, keys, moves_money, handler }
}

/// The table. Paths are tried in order.
#[rustfmt::skip]
pub(crate) static OPERATIONS: &[Operation] = &[
    op("oauth.token", Method::POST, "/v1/oauth2/token", "-", Keys::Ignored, false, crate::oauth::token),

    op("orders.create", Method::POST, "/v2/checkout/orders", PAY, Keys::Orders, false, orders::create),
    op("orders.get", Method::GET, "/v2/checkout/orders/{}", PAY, Keys::Ignored, false, orders::get),
    op("orders.patch", Method::PATCH, "/v2/checkout/orders/{}", PAY, Keys::Ignored, false, orders::patch::patch),
    op("orders.confirm", Method::POST, "/v2/checkout/orders/{}/confirm-payment-source", PAY, Keys::Ignored, false, orders::confirm),
    op("orders.authorize", Method::POST, "/v2/checkout/orders/{}/authorize", PAY, Keys::Orders, true, orders::settle::authorize),
    op("orders.capture", Method::POST, "/v2/checkout/orders/{}/capture", PAY, Keys::Orders, true, orders::settle::capture),
    op("orders.track.create", Method::POST, "/v2/checkout/orders/{}/track", PAY, Keys::Orders, false, orders::track::create),
    op("orders.trackers.patch", Method::PATCH, "/v2/checkout/orders/{}/trackers/{}", PAY, Keys::Ignored, false, orders::track::patch),

    op("authorizations.get", Method::GET, "/v2/payments/authorizations/{}", AUTHCAPTURE, Keys::Ignored, false, payments::get_authorization),
    op("authorizations.capture", Method::POST, "/v2/payments/authorizations/{}/capture", AUTHCAPTURE, Keys::Payments, true, payments::capture),
    op("authorizations.reauthorize", Method::POST, "/v2/payments/authorizations/{}/reauthorize", AUTHCAPTURE, Keys::Payments, true, payments::reauthorize),
    op("authorizations.void", Method::POST, "/v2/payments/authorizations/{}/void", AUTHCAPTURE, Keys::Payments, true, payments::void),
    op("captures.get", Method::GET, "/v2/payments/captures/{}", AUTHCAPTURE, Keys::Ignored, false, payments::get_capture),
    op("captures.refund", Method::POST, "/v2/payments/captures/{}/refund", REFUND, Keys::Payments, true, refunds::refund),
    op("refunds.get", Method::GET, "/v2/payments/refunds/{}", REFUND, Keys::Ignored, false, refunds::get),

    op("setup-tokens.create", Method::POST, "/v3/vault/setup-tokens", VAULT, Keys::Vault, false, vault::create_setup),
    op("setup-tokens.get", Method::GET, "/v3/vault/setup-tokens/{}", VAULT, Keys::Ignored, false, vault::get_setup),
    op("payment-tokens.create", Method::POST, "/v3/vault/payment-tokens", VAULT, Keys::Vault, false, vault::create_token),
    op("customer.payment-tokens.get", Method::GET, "/v3/vault/payment-tokens", VAULT, Keys::Ignored, false, vault::list),
    op("payment-tokens.get", Method::GET, "/v3/vault/payment-tokens/{}", VAULT, Keys::Ignored, false, vault::get_token),
    op("payment-tokens.delete", Method::DELETE, "/v3/vault/payment-tokens/{}", VAULT, Keys::Ignored, false, vault::delete),

    op("search.get", Method::GET, "/v1/reporting/transactions", SEARCH, Keys::Ignored, false, reporting::search),
    op("balances.get", Method::GET, "/v1/reporting/balances", BALANCES, Keys::Ignored, false, reporting::balances),

    op("disputes.list", Method::GET, "/v1/customer/disputes", DISPUTES, Keys::Ignored, false, disputes::list),
    op("disputes.get", Method::GET, "/v1/customer/disputes/{}", DISPUTES, Keys::Ignored, false, disputes::get),

    op("webhooks.post", Method::POST, "/v1/notifications/webhooks", WEBHOOKS, Keys::Ignored, false, webhooks::manage::create),
    op("webhooks.list", Method::GET, "/v1/notifications/webhooks", WEBHOOKS, Keys::Ignored, false, webhooks::manage::list),
    op("webhooks.get", Method::GET, "/v1/notifications/webhooks/{}", WEBHOOKS, Keys::Ignored, false, webhooks::manage::get),
    op("webhooks.update", Method::PATCH, "/v1/notifications/webhooks/{}", WEBHOOKS, Keys::Ignored, false, webhooks::manage::update),
    op("webhooks.delete", Method::DELETE, "/v1/notifications/webhooks/{}", WEBHOOKS, Keys::Ignored, false, webhooks::manage::delete),
    op("event-types.list", Method::GET, "/v1/notifications/webhooks/{}/event-types", WEBHOOKS, Keys::Ignored, false, webhooks::manage::types_of),
    op("webhooks-event-types.list", Method::GET, "/v1/notifications/webhooks-event-types", WEBHOOKS, Keys::Ignored, false, webhooks::manage::all_types),
    op("webhooks-events.list", Method::GET, "/v1/notifications/webhooks-events", WEBHOOKS, Keys::Ignored, false, webhooks::manage::list_events),
    op("webhooks-events.get", Method::GET, "/v1/notifications/webhooks-events/{}", WEBHOOKS, Keys::Ignored, false, webhooks::manage::get_event),
    op("webhooks-events.resend", Method::POST, "/v1/notifications/webhooks-events/{}/resend", WEBHOOKS, Keys::Ignored, false, webhooks::manage::resend),
    op("simulate-event.post", Method::POST, "/v1/notifications/simulate-event", WEBHOOKS, Keys::Ignored, false, webhooks::manage::simulate),
    op("verify-webhook-signature.post", Method::POST, "/v1/notifications/verify-webhook-signature", WEBHOOKS, Keys::Ignored, false, webhooks::manage::verify),
    op("certs.get", Method::GET, "/v1/notifications/certs/{}", "-", Keys::Ignored, false, webhooks::manage::certificate),
];

/// Where PayPal has APIs that this simulator leaves room for: an account without the feature
/// answers 403 there, not 404.
const NOT_ENABLED: &[&str] = &[
    "/v1/billing/",
    "/v1/catalogs/",
    "/v1/customer/",
    "/v1/identity/",
    "/v1/invoicing/",
    "/v1/merchant/",
    "/v1/notifications/webhooks-lookup",
    "/v1/payment-experience/",
    "/v1/payments/",
    "/v1/shipping/",
    "/v2/customer/",
    "/v2/invoicing/",
    "/v2/payments/",
    "/v2/shipping/",
    "/v3/",
];

/// What a path leads to.
pub(crate) enum Found {
    /// An operation and the ids in its path.
    Operation(&'static Operation, Vec<String>),
    /// The path exists, with other methods.
    OtherMethod,
    /// An API this account has not enabled.
    NotEnabled,
    /// Nothing.
    Nothing,
}

/// Finds the operation of a request.
pub(crate) fn find(method: &Method, path: &str) -> Found {
    let mut other_method = false;
    for operation in OPERATIONS {
        if let Some(ids) = captures(operation.path, path) {
            if operation.method == *method {
                return Found::Operation(operation, ids);
            }
            other_method = true;
        }
    }
    if other_method {
        return Found::OtherMethod;
    }
    if NOT_ENABLED.iter().any(|prefix| path.starts_with(prefix)) {
        return Found::NotEnabled;
    }
    Found::Nothing
}

/// The segments `{}` stands for, or nothing if the path does not fit.
fn captures(pattern: &str, path: &str) -> Option<Vec<String>> {
    let mut ids = Vec::new();
    let mut given = path.trim_end_matches('/').split('/');
    for wanted in pattern.split('/') {
        let segment = given.next()?;
        if wanted == "{}" {
            if segment.is_empty() {
                return None;
            }
            ids.push(segment.to_owned());
        } else if wanted != segment {
            return None;
        }
    }
    given.next().is_none().then_some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(method: &Method, path: &str) -> &'static str {
        match find(method, path) {
            Found::Operation(operation, _) => operation.name,
            Found::OtherMethod => "405",
            Found::NotEnabled => "403",
            Found::Nothing => "404",
        }
    }

    #[test]
    fn paths_lead_to_operations() {
        let get = &Method::GET;
        assert_eq!(name_of(get, "/v2/checkout/orders/5O19"), "orders.get");
        assert_eq!(name_of(&Method::POST, "/v2/checkout/orders/5O19"), "405");
        assert_eq!(name_of(get, "/v1/customer/partner-referrals"), "403");
        assert_eq!(name_of(get, "/v9/nothing"), "404");
        assert_eq!(
            name_of(&Method::POST, "/v2/payments/authorizations/A/void"),
            "authorizations.void"
        );
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = OPERATIONS.iter().map(|operation| operation.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
