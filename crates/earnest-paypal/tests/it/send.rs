//! What goes over the wire, how often, and what comes of it when PayPal misbehaves.

use std::time::Duration;

use earnest_core::money::{Currency, Micros};
use earnest_paypal::auth::AuthError;
use earnest_paypal::orders::{self, VaultedCharge};
use earnest_paypal::outcome::{Decline, Wait};
use earnest_paypal::payments::CaptureStatus;
use earnest_paypal::{Client, Config, Outcome, Request, Resource, Secret};
use url::Url;

use crate::server::{Reply, Seen, Server, json, token, with_header};

pub const CHARGED: &str = r#"{"id":"5O190127TN364715T","status":"COMPLETED","intent":"CAPTURE",
  "payment_source":{"paypal":{"account_id":"VYYFH3WJ4JPJQ"}},
  "purchase_units":[{"reference_id":"default","invoice_id":"e1:tab_1:7:1","custom_id":"tab_1",
    "amount":{"currency_code":"USD","value":"0.95"},"payee":{"merchant_id":"7KNGBPH2U58GQ"},
    "payments":{"captures":[{"id":"3C679366HH908993F","status":"COMPLETED",
      "amount":{"currency_code":"USD","value":"0.95"},"final_capture":true,
      "seller_receivable_breakdown":{"gross_amount":{"currency_code":"USD","value":"0.95"},
        "paypal_fee":{"currency_code":"USD","value":"0.52"},
        "net_amount":{"currency_code":"USD","value":"0.43"}},
      "create_time":"2026-11-30T09:01:00Z"}]}}]}"#;

pub fn charge() -> Request {
    let charge = VaultedCharge {
        vault_id: "8kk8451t",
        amount: Micros::constant(950_000),
        currency: Currency::Usd,
        invoice_id: "e1:tab_1:7:1",
        custom_id: "tab_1",
        description: "8 paid calls",
        payee: None,
    };
    orders::charge_vaulted(&charge, "e1:tab_1:7:1").unwrap()
}

fn keys(calls: &[Seen]) -> Vec<&str> {
    calls.iter().map(|seen| seen.header("paypal-request-id").unwrap()).collect()
}

#[tokio::test]
async fn a_charge_carries_key_token_and_preference_and_reads_back_its_capture() {
    let server = Server::with_tokens(|_, _| {
        with_header(json(201, CHARGED), "Paypal-Debug-Id", "90957fca61718")
    })
    .await;
    let request = charge();
    let exchange = server.client().send(&request).await;

    let Outcome::Done { resource: Resource::Order(order) } = &exchange.outcome else {
        panic!("{exchange:?}")
    };
    let capture = exchange.resource().and_then(Resource::capture).unwrap();
    assert_eq!(capture.status, CaptureStatus::Completed);
    assert_eq!(capture.amount, Micros::constant(950_000));
    assert!(capture.currency == Currency::Usd);
    assert_eq!(capture.fee, Some(Micros::constant(520_000)));
    assert_eq!(capture.net, Some(Micros::constant(430_000)));
    assert_eq!(capture.invoice_id.as_deref(), Some("e1:tab_1:7:1"));
    assert_eq!(capture.order_id.as_deref(), Some(order.id.as_str()));
    assert_eq!(capture.payee.merchant_id.as_deref(), Some("7KNGBPH2U58GQ"));
    assert_eq!(order.payer_id.as_deref(), Some("VYYFH3WJ4JPJQ"));
    assert_eq!(exchange.debug_id.as_deref(), Some("90957fca61718"));
    assert_eq!((exchange.status, exchange.sends), (Some(201), 1));

    let calls = server.calls();
    let [seen] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/v2/checkout/orders"));
    assert_eq!(seen.header("authorization"), Some("Bearer T1"));
    assert_eq!(seen.header("paypal-request-id"), Some("e1:tab_1:7:1"));
    assert_eq!(seen.header("prefer"), Some("return=representation"));
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.body, request.body());
}

#[tokio::test]
async fn a_stored_request_sends_the_same_bytes_after_a_restart() {
    let server = Server::with_tokens(|_, _| json(201, CHARGED)).await;
    let request = charge();
    let row = serde_json::to_string(&request).unwrap();
    let stored: Request = serde_json::from_str(&row).unwrap();
    assert_eq!(stored, request);
    assert_eq!(stored.body_sha256(), request.body_sha256());
    server.client().send(&request).await;
    server.client().send(&stored).await;
    let calls = server.calls();
    assert_eq!(calls[0].body, calls[1].body);
    assert_eq!(keys(&calls), ["e1:tab_1:7:1", "e1:tab_1:7:1"]);
}

#[tokio::test]
async fn ppal_16_a_dead_token_is_renewed_once_and_the_call_repeated_once_with_its_key() {
    let server = Server::with_tokens(|seen, _| match seen.header("authorization") {
        Some("Bearer T1") => json(
            401,
            r#"{"error":"invalid_token","error_description":"Access Token not found in cache"}"#,
        ),
        _ => json(201, CHARGED),
    })
    .await;
    let client = server.client();
    client.prepare().await.unwrap();
    assert_eq!(server.token_calls(), 1);

    let exchange = client.send(&charge()).await;
    assert!(matches!(exchange.outcome, Outcome::Done { .. }), "{exchange:?}");
    assert_eq!(server.token_calls(), 2, "one more token request");
    let calls = server.calls();
    assert_eq!(keys(&calls), ["e1:tab_1:7:1", "e1:tab_1:7:1"], "repeated once, same key");
    assert_eq!(calls[0].body, calls[1].body);
}

#[tokio::test]
async fn ppal_16_fifty_calls_under_a_dead_token_cost_one_token_request() {
    let server = Server::with_tokens(|seen, _| match seen.header("authorization") {
        Some("Bearer T1") => json(401, r#"{"error":"invalid_token"}"#),
        _ => json(200, CHARGED),
    })
    .await;
    let client = server.client();
    client.prepare().await.unwrap();
    let outcomes = fifty(&client).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Done { .. })));
    assert_eq!(server.token_calls(), 2);
}

async fn fifty(client: &Client) -> Vec<Outcome> {
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let client = client.clone();
        running.spawn(async move {
            client.send(&orders::get("5O190127TN364715T").unwrap()).await.outcome
        });
    }
    running.join_all().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_calls_at_once_share_one_token_request() {
    let server = Server::with_tokens(|_, _| json(200, CHARGED)).await;
    let outcomes = fifty(&server.client()).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Done { .. })));
    assert_eq!(server.token_calls(), 1);
    assert_eq!(server.calls().len(), 50);
}

#[tokio::test]
async fn fifty_calls_share_one_failed_token_request_too() {
    let server = Server::start(|_, _| json(503, "{}")).await;
    let outcomes = fifty(&server.client()).await;
    let unsent = |outcome: &Outcome| matches!(outcome, Outcome::Unknown { sent: false, .. });
    assert!(outcomes.iter().all(unsent), "{outcomes:?}");
    assert_eq!(server.token_calls(), 1);
    assert!(server.calls().is_empty());
}

#[tokio::test]
async fn a_second_401_is_refused_and_not_repeated_again() {
    let server = Server::with_tokens(|_, _| json(401, r#"{"error":"invalid_token"}"#)).await;
    let exchange = server.client().send(&charge()).await;
    assert!(
        matches!(&exchange.outcome, Outcome::Refused { issue, .. } if issue == "invalid_token")
    );
    assert!(!exchange.settles_earlier_sends(), "says nothing about a send before it");
    assert_eq!((server.token_calls(), server.calls().len()), (2, 2));
}

#[tokio::test]
async fn stale_scopes_are_refreshed_once() {
    const NOT_AUTHORIZED: &str =
        r#"{"name":"NOT_AUTHORIZED","details":[{"issue":"PERMISSION_DENIED","description":"no"}]}"#;
    let server = Server::with_tokens(|seen, _| match seen.header("authorization") {
        Some("Bearer T1") => json(403, NOT_AUTHORIZED),
        _ => json(201, CHARGED),
    })
    .await;
    let exchange = server.client().send(&charge()).await;
    assert!(matches!(exchange.outcome, Outcome::Done { .. }), "{exchange:?}");
    assert_eq!(server.token_calls(), 2);

    // A missing scope stays missing: not one token call per refused call.
    let server = Server::with_tokens(|_, _| json(403, NOT_AUTHORIZED)).await;
    let client = server.client();
    for _ in 0..5 {
        let exchange = client.send(&charge()).await;
        assert!(
            matches!(&exchange.outcome, Outcome::Refused { issue, .. } if issue == "PERMISSION_DENIED")
        );
    }
    assert_eq!(server.token_calls(), 2);
    assert_eq!(server.calls().len(), 6);
}

#[tokio::test]
async fn other_403s_fetch_no_token() {
    let server =
        Server::with_tokens(|_, _| json(403, r#"{"name":"NOT_ELIGIBLE_FOR_TOKEN_PROCESSING"}"#))
            .await;
    let exchange = server.client().send(&charge()).await;
    assert!(matches!(exchange.outcome, Outcome::Refused { .. }));
    assert_eq!((server.token_calls(), server.calls().len()), (1, 1));
}

#[tokio::test]
async fn bad_credentials_are_refused_and_nothing_is_sent() {
    let server = Server::start(|_, _| {
        json(
            401,
            r#"{"error":"invalid_client","error_description":"Client Authentication failed"}"#,
        )
    })
    .await;
    let client = server.client();
    let exchange = client.send(&charge()).await;
    assert!(
        matches!(&exchange.outcome, Outcome::Refused { issue, .. } if issue == "invalid_client")
    );
    assert_eq!((exchange.status, exchange.sends), (None, 0));
    assert!(!exchange.settles_earlier_sends());
    assert!(server.calls().is_empty());
    assert!(matches!(client.prepare().await, Err(AuthError::Rejected { status: 401, .. })));
}

#[tokio::test]
async fn a_limited_token_call_says_when_to_retry() {
    let server = Server::start(|_, _| with_header(json(429, "{}"), "Retry-After", "7")).await;
    let exchange = server.client().send(&charge()).await;
    assert!(matches!(
        exchange.outcome,
        Outcome::Retry { wait: Wait::RateLimited, after_seconds: Some(7), .. }
    ));
}

#[tokio::test]
async fn a_call_whose_token_died_and_cannot_be_renewed_did_not_run() {
    let server = Server::start(|seen, n| match (seen.is_token_call(), n) {
        (true, 0) => token(1),
        (true, _) => Reply::HangUp,
        _ => json(401, r#"{"error":"invalid_token"}"#),
    })
    .await;
    let exchange = server.client().send(&charge()).await;
    assert!(matches!(exchange.outcome, Outcome::Retry { wait: Wait::NoToken, .. }), "{exchange:?}");
}

#[tokio::test]
async fn nobody_there_is_unknown_but_not_sent() {
    let server = Server::with_tokens(|_, _| json(201, CHARGED)).await;
    let client = server.client();
    client.prepare().await.unwrap();
    let closed = server.base.clone();
    drop(server);
    let gone = tokio::time::timeout(Duration::from_secs(5), async {
        // The listener goes when its task is dropped, which is soon but not at once.
        let address = format!("127.0.0.1:{}", closed.port().unwrap());
        while tokio::net::TcpStream::connect(&address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    gone.await.unwrap();
    let exchange = client.send(&charge()).await;
    assert!(matches!(exchange.outcome, Outcome::Unknown { sent: false, .. }), "{exchange:?}");
    assert_eq!((exchange.status, exchange.sends), (None, 0));
}

async fn outcome_of(reply: Reply) -> Outcome {
    let server = Server::with_tokens(move |_, _| reply.clone()).await;
    let mut config = server.config();
    config.timeouts.money = Duration::from_millis(300);
    let exchange = Client::new(&config).unwrap().send(&charge()).await;
    assert_eq!(server.calls().len(), 1, "an unknown outcome is never repeated here");
    exchange.outcome
}

#[tokio::test]
async fn a_lost_answer_is_unknown_and_may_have_been_sent() {
    for reply in [
        Reply::HangUp,
        Reply::Stall,
        Reply::CutShort { status: 201, body: CHARGED.as_bytes().to_vec() },
        Reply::CutShort { status: 422, body: b"{".to_vec() },
        json(500, r#"{"name":"INTERNAL_SERVER_ERROR"}"#),
        json(503, r#"{"name":"SERVICE_UNAVAILABLE"}"#),
        json(504, ""),
        json(201, ""),
        json(201, "<html>"),
        json(201, r#"{"id":"5O190127TN364715T"}"#),
        json(204, ""),
    ] {
        let label = format!("{reply:?}");
        let outcome = outcome_of(reply).await;
        assert!(matches!(outcome, Outcome::Unknown { sent: true, .. }), "{label}: {outcome:?}");
    }
}

#[tokio::test]
async fn an_endless_answer_is_cut_and_unknown() {
    let long = Reply::Answer { status: 201, headers: Vec::new(), body: vec![b' '; 2 << 20] };
    let outcome = outcome_of(long).await;
    assert!(matches!(outcome, Outcome::Unknown { sent: true, .. }));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Server::with_tokens(|_, _| json(201, CHARGED)).await;
    let target = elsewhere.base.join("/v2/checkout/orders").unwrap();
    for status in [301, 302, 307, 308] {
        let reply = with_header(json(status, ""), "Location", target.as_str());
        let outcome = outcome_of(reply).await;
        assert!(matches!(outcome, Outcome::Unknown { sent: true, .. }), "{status}");
    }
    assert!(elsewhere.calls().is_empty());
}

#[tokio::test]
async fn limits_and_conflicts_are_retried_later_with_the_same_key() {
    let limited = with_header(json(429, r#"{"name":"RATE_LIMIT_REACHED"}"#), "Retry-After", "12");
    assert!(matches!(
        outcome_of(limited).await,
        Outcome::Retry { wait: Wait::RateLimited, after_seconds: Some(12), .. }
    ));
    let running = json(
        409,
        r#"{"name":"RESOURCE_CONFLICT","details":[{"issue":"PREVIOUS_REQUEST_IN_PROGRESS"}]}"#,
    );
    assert!(matches!(
        outcome_of(running).await,
        Outcome::Retry { wait: Wait::InProgress, after_seconds: None, .. }
    ));
}

#[tokio::test]
async fn a_vaulted_charge_that_wants_its_payer_is_declined() {
    let wants = r#"{"id":"5O190127TN364715T","status":"PAYER_ACTION_REQUIRED","links":[
        {"href":"https://www.sandbox.paypal.com/checkoutnow?token=5O190127TN364715T","rel":"payer-action"}]}"#;
    let outcome = outcome_of(json(200, wants)).await;
    let Outcome::Declined { kind: Decline::PayerCanFix, issue, resource, .. } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(issue, "PAYER_ACTION_REQUIRED");
    let order = resource.as_ref().and_then(Resource::order).unwrap();
    assert!(order.approve_url.as_deref().unwrap().contains("checkoutnow"));
}

#[tokio::test]
async fn an_answer_without_its_payments_names_the_order_to_read() {
    let minimal = r#"{"id":"5O190127TN364715T","status":"COMPLETED","links":[]}"#;
    let outcome = outcome_of(json(201, minimal)).await;
    assert!(matches!(outcome, Outcome::Unknown { sent: true, .. }));
    let order = outcome.resource().and_then(Resource::order).unwrap();
    assert_eq!(order.id, "5O190127TN364715T");
}

#[test]
fn a_client_with_secrets_in_it_shows_none() {
    let url = Url::parse("http://127.0.0.1:9").unwrap();
    let config = Config::simulated(url, "sim", Secret::new("hunter2"));
    let client = Client::new(&config).unwrap();
    assert!(!format!("{client:?}").contains("hunter2"));
}
