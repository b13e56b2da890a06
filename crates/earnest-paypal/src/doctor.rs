//! What `earnest doctor paypal` asks: whether this app can do what Earnest will need. Reads only.

use earnest_core::party::address_digest;
use serde::Serialize;

use crate::auth::AuthError;
use crate::client::Client;
use crate::clock::SAME;
use crate::config::Mode;
use crate::outcome::Outcome;
use crate::resource::Resource;
use crate::{reporting, webhooks};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// As it should be.
    Good,
    /// Works, but something will not.
    Warning,
    /// Earnest cannot work like this.
    Bad,
    /// Could not be looked at.
    Skipped,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its stable name.
    pub name: &'static str,
    /// How it came out.
    pub finding: Finding,
    /// One plain sentence, with the next step where there is one.
    pub detail: String,
}

/// A feature and the scopes of which it needs any one.
struct Feature {
    name: &'static str,
    scopes: &'static [&'static str],
    /// Whether Earnest cannot settle without it.
    needed: bool,
}

const FEATURES: [Feature; 6] = [
    Feature {
        name: "orders and payments",
        scopes: &["/services/payments/realtimepayment", "/services/payments/payment/authcapture"],
        needed: true,
    },
    Feature { name: "refunds", scopes: &["/services/payments/refund"], needed: true },
    Feature {
        name: "vault (tabs)",
        scopes: &["/services/vault/payment-tokens/readwrite"],
        needed: true,
    },
    Feature {
        name: "transaction search (needed to prove that a charge did not happen)",
        scopes: &["/services/reporting/search/read"],
        needed: true,
    },
    Feature {
        name: "disputes (so that one freezes its owner before PayPal's records tell of it)",
        scopes: &["/services/disputes/read-seller", "/services/disputes/read"],
        needed: false,
    },
    Feature { name: "webhooks", scopes: &["/services/applications/webhooks"], needed: false },
];

/// The scope of balances; without it only the balance check is lost.
const BALANCES_SCOPE: &str = "/services/reporting/balances/read";

fn check(name: &'static str, finding: Finding, detail: impl Into<String>) -> Check {
    Check { name, finding, detail: detail.into() }
}

/// What our own books know and PayPal is asked about.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// The configured webhook.
    pub webhook_id: Option<&'a str>,
    /// Digests of the ids of payers with a vaulted method: the books keep no more of them.
    pub payers: &'a [String],
}

/// Looks at mode, credentials, clock, scopes, balance, payers and webhook; in that order, and stops at
/// refused credentials.
pub async fn checks(client: &Client, known: Known<'_>) -> Vec<Check> {
    let mut found = vec![mode(client)];
    let scopes = match client.scopes().await {
        Ok(scopes) => scopes,
        Err(error) => {
            found.push(credentials_failed(&error));
            return found;
        }
    };
    found.push(check("credentials", Finding::Good, "PayPal issued a token"));
    found.push(clock(client));
    let has = |scope: &str| scopes.iter().any(|given| given.ends_with(scope));
    for feature in &FEATURES {
        found.push(scope_check(feature, feature.scopes.iter().any(|scope| has(scope))));
    }
    let (balance, merchant) = balance(client, has(BALANCES_SCOPE)).await;
    found.push(balance);
    found.push(payers(merchant.as_deref(), known.payers));
    found.push(webhook(client, known.webhook_id).await);
    found.push(check(
        "unique_invoice",
        Finding::Skipped,
        "PayPal's API does not show it: in Account Settings, Website payments, Payment receiving \
         preferences, block payments with an invoice number that was used before",
    ));
    found
}

fn mode(client: &Client) -> Check {
    let at = client.base_url().host_str().unwrap_or_default();
    let detail = match client.mode() {
        Mode::Live => format!("live: real money at {at}"),
        Mode::Sandbox => format!("sandbox: play money at {at}"),
        Mode::Simulated => format!("simulated: no money at {at}"),
    };
    check("mode", Finding::Good, detail)
}

fn credentials_failed(error: &AuthError) -> Check {
    let detail = match error {
        AuthError::Rejected { error, .. } => {
            format!("PayPal refused client id and secret ({error}); are they of this mode?")
        }
        other => other.to_string(),
    };
    check("credentials", Finding::Bad, detail)
}

/// Charges are looked for by time, and keys die by it.
fn clock(client: &Client) -> Check {
    let Some(ahead) = client.ahead() else {
        return check("clock", Finding::Skipped, "PayPal's answers name no time");
    };
    if ahead.abs() <= SAME {
        return check("clock", Finding::Good, "this machine's clock and PayPal's agree");
    }
    let (seconds, which) =
        (ahead.abs().as_secs(), if ahead.is_negative() { "ahead of" } else { "behind" });
    let detail = format!(
        "this machine's clock is {seconds} s {which} PayPal's: set it, and let NTP keep it; days of \
         caps, expiries and vouchers go by it"
    );
    check("clock", Finding::Bad, detail)
}

fn scope_check(feature: &Feature, given: bool) -> Check {
    let (finding, detail) = match (given, feature.needed) {
        (true, _) => (Finding::Good, format!("{}: allowed", feature.name)),
        (false, needed) => (
            if needed { Finding::Bad } else { Finding::Warning },
            format!(
                "{}: not allowed; switch the feature on for this app in PayPal's developer \
                 dashboard (scope {})",
                feature.name,
                feature.scopes.join(" or ")
            ),
        ),
    };
    check("scope", finding, detail)
}

/// Whether balances can be read; and the merchant's own account, where they name it.
async fn balance(client: &Client, allowed: bool) -> (Check, Option<String>) {
    if !allowed {
        let detail = "the app may not read balances; payouts will start without that advice";
        return (check("balance", Finding::Warning, detail), None);
    }
    match client.send(&reporting::balances()).await.outcome {
        Outcome::Done { resource: Resource::Balances(found) } => {
            let currencies: Vec<_> =
                found.balances.iter().map(|balance| balance.currency.to_string()).collect();
            let detail = format!("readable in {}", currencies.join(", "));
            (check("balance", Finding::Good, detail), found.account_id)
        }
        other => {
            let issue = other.issue().unwrap_or(other.as_str()).to_owned();
            (check("balance", Finding::Warning, format!("not readable: {issue}")), None)
        }
    }
}

/// PayPal refuses a payer who is the merchant ("you are logging into the seller's account").
fn payers(merchant: Option<&str>, payers: &[String]) -> Check {
    let name = "buyer_is_not_seller";
    match merchant {
        None => check(name, Finding::Skipped, "the merchant's account id is not known"),
        Some(merchant) if payers.contains(&address_digest(merchant)) => {
            let detail = format!("account {merchant} is both payer and merchant: vault another");
            check(name, Finding::Bad, detail)
        }
        Some(merchant) => {
            check(name, Finding::Good, format!("no vaulted payer is the merchant {merchant}"))
        }
    }
}

async fn webhook(client: &Client, webhook_id: Option<&str>) -> Check {
    let Some(id) = webhook_id else {
        let detail = "none configured: results arrive by polling only; \
                      run `earnest paypal webhook register URL`";
        return check("webhook", Finding::Warning, detail);
    };
    let Ok(request) = webhooks::get(id) else {
        return check("webhook", Finding::Bad, format!("`{id}` is not a webhook id"));
    };
    match client.send(&request).await.outcome {
        Outcome::Done { resource: Resource::Webhook(webhook) } => {
            check("webhook", Finding::Good, format!("`{id}` sends to {}", webhook.url))
        }
        Outcome::NotFound { .. } => {
            let detail = format!("`{id}` does not exist in this app; ids differ per mode");
            check("webhook", Finding::Bad, detail)
        }
        other => {
            let issue = other.issue().unwrap_or(other.as_str()).to_owned();
            check("webhook", Finding::Skipped, format!("could not be read: {issue}"))
        }
    }
}
