//! What `doctor` finds, and that it only reads.

use earnest_core::party::address_digest;
use earnest_paypal::doctor::{Check, Finding, Known, checks};

use crate::server::{Reply, Server, json};

const SCOPES: [&str; 7] = [
    "services/payments/realtimepayment",
    "services/payments/refund",
    "services/vault/payment-tokens/readwrite",
    "services/reporting/search/read",
    "services/reporting/balances/read",
    "services/applications/webhooks",
    "services/disputes/read-seller",
];

fn token_with(scopes: &[&str]) -> Reply {
    let scopes: Vec<_> =
        scopes.iter().map(|scope| format!("https://uri.paypal.com/{scope}")).collect();
    json(
        200,
        &format!(r#"{{"scope":"{}","access_token":"T","expires_in":32400}}"#, scopes.join(" ")),
    )
}

async fn paypal(scopes: Vec<&'static str>) -> Server {
    Server::start(move |seen, _| match seen.path.as_str() {
        "/v1/oauth2/token" => token_with(&scopes),
        "/v1/reporting/balances" => json(
            200,
            r#"{"balances":[{"currency":"USD","total_balance":{"currency_code":"USD","value":"1.00"}}],
                "account_id":"7KNGBPH2U58GQ"}"#,
        ),
        "/v1/notifications/webhooks/HOOK1" => {
            json(200, r#"{"id":"HOOK1","url":"https://earnest.example/x"}"#)
        }
        _ => json(404, r#"{"name":"INVALID_RESOURCE_ID"}"#),
    })
    .await
}

fn finding(checks: &[Check], name: &str, detail: &str) -> Finding {
    let found = checks.iter().find(|check| check.name == name && check.detail.contains(detail));
    found.unwrap_or_else(|| panic!("no {name} with {detail}: {checks:#?}")).finding
}

#[tokio::test]
async fn a_good_app_has_nothing_bad_and_nothing_is_written() {
    let server = paypal(SCOPES.to_vec()).await;
    let payers = [address_digest("VYYFH3WJ4JPJQ")];
    let known = Known { webhook_id: Some("HOOK1"), payers: &payers };
    let found = checks(&server.client(), known).await;
    let bad = |check: &&Check| matches!(check.finding, Finding::Bad | Finding::Warning);
    assert_eq!(found.iter().find(bad), None);
    assert_eq!(finding(&found, "mode", "simulated"), Finding::Good);
    assert_eq!(finding(&found, "unique_invoice", ""), Finding::Skipped);
    assert!(server.calls().iter().all(|seen| seen.method == "GET"));
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let server = paypal(vec!["services/payments/realtimepayment"]).await;
    let found = checks(&server.client(), Known { webhook_id: Some("GONE"), payers: &[] }).await;
    assert_eq!(finding(&found, "scope", "orders"), Finding::Good);
    assert_eq!(finding(&found, "scope", "vault"), Finding::Bad);
    assert_eq!(finding(&found, "scope", "search"), Finding::Bad);
    assert_eq!(finding(&found, "balance", "may not"), Finding::Warning);
    assert_eq!(finding(&found, "webhook", "does not exist"), Finding::Bad);
}

#[tokio::test]
async fn a_payer_who_is_the_merchant_is_found() {
    let server = paypal(SCOPES.to_vec()).await;
    let payers = [address_digest("7KNGBPH2U58GQ")];
    let known = Known { webhook_id: None, payers: &payers };
    let found = checks(&server.client(), known).await;
    assert_eq!(finding(&found, "buyer_is_not_seller", ""), Finding::Bad);
    assert_eq!(finding(&found, "webhook", "none configured"), Finding::Warning);
}

#[tokio::test]
async fn refused_credentials_end_the_visit() {
    let server = Server::start(|_, _| json(401, r#"{"error":"invalid_client"}"#)).await;
    let found = checks(&server.client(), Known::default()).await;
    assert_eq!(finding(&found, "credentials", "invalid_client"), Finding::Bad);
    assert_eq!(found.len(), 2);
    assert!(server.calls().is_empty());
}
