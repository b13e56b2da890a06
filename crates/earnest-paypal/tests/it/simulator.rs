//! The client against a PayPal that keeps books: every call once, and every fault on the charge.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use earnest_core::money::{Currency, Micros};
use earnest_core::time::{SignedDuration, Timestamp};
use earnest_paypal::doctor::{self, Finding, Known};
use earnest_paypal::evidence::{Evidence, prove_absent};
use earnest_paypal::orders::{self, CheckoutIntent, NewOrder, VaultedCharge};
use earnest_paypal::outcome::Wait;
use earnest_paypal::payments::{self, AuthorizationStatus, CaptureStatus, NewCapture, NewRefund};
use earnest_paypal::vault::{self, NewSetupToken, SetupTokenStatus};
use earnest_paypal::webhooks::{self, CertStore, Delivery, Event, Invalid, Verification};
use earnest_paypal::{Client, Config, Exchange, Outcome, Request, Resource, Secret};
use paypal_sim::{ALL_SCOPES, Effect, Ending, Fault, RowKind, Sim, SimConfig};
use url::Url;

use crate::classify::word;
use crate::server::{Server, json};

/// A simulator whose clock stands at nine until it is moved.
async fn simulator() -> Sim {
    let start: Timestamp = "2026-11-30T09:00:00Z".parse().unwrap();
    let config = SimConfig { start: Some(start), frozen: true, ..SimConfig::default() };
    Sim::start(config).await.unwrap()
}

fn config(sim: &Sim) -> Config {
    let base = Url::parse(sim.base_url()).unwrap();
    let mut config = Config::simulated(base.clone(), "sim", Secret::new("sim"));
    config.webhook_cert_hosts.push(format!("127.0.0.1:{}", base.port().unwrap()));
    config.webhook_root_pem = Some(sim.ca_pem().to_owned());
    config
}

fn client(sim: &Sim) -> Client {
    Client::new(&config(sim)).unwrap()
}

#[track_caller]
fn done(exchange: &Exchange) -> &Resource {
    match &exchange.outcome {
        Outcome::Done { resource } => resource,
        other => panic!("{} came out as {other:?}: {}", exchange.operation, exchange.body),
    }
}

async fn run(client: &Client, request: Request) -> Resource {
    done(&client.send(&request).await).clone()
}

/// Vaults the usual buyer's account; the payment token's id.
async fn vaulted(sim: &Sim, client: &Client) -> String {
    let wish = NewSetupToken {
        description: "Earnest tab, settled when it closes",
        brand: "Earnest",
        return_url: "https://tab.example/vault/return?s=01J",
        cancel_url: "https://tab.example/vault/cancel?s=01J",
    };
    let made = run(client, vault::create_setup_token(&wish, "e1:vlt_1:1").unwrap()).await;
    let setup = made.setup_token().unwrap().clone();
    assert_eq!(setup.status, SetupTokenStatus::PayerActionRequired);
    assert!(setup.approve_url.as_deref().unwrap().contains(&setup.id));

    // Before the payer agreed there is nothing to turn into a payment token.
    let early = vault::create_payment_token(&setup.id, "e1:vlt_1:2").unwrap();
    assert!(matches!(client.send(&early).await.outcome, Outcome::Declined { .. }));
    sim.approve(&setup.id, None).unwrap();
    let read = run(client, vault::get_setup_token(&setup.id).unwrap()).await;
    assert_eq!(read.setup_token().unwrap().status, SetupTokenStatus::Approved);

    let made = run(client, vault::create_payment_token(&setup.id, "e1:vlt_1:3").unwrap()).await;
    let token = made.payment_token().unwrap().clone();
    assert_eq!(token.payer_id.as_deref(), Some("VYYFH3WJ4JPJQ"));
    let read = run(client, vault::get_payment_token(&token.id).unwrap()).await;
    assert_eq!(read.payment_token().unwrap().id, token.id);
    assert!(token.customer_id.is_some());
    token.id
}

const INVOICE: &str = "e1:tab_1:7:1";

/// A charge of $0.95 under this key and invoice id.
fn charge(vault_id: &str, name: &str) -> Request {
    let charge = VaultedCharge {
        vault_id,
        amount: Micros::constant(950_000),
        currency: Currency::Usd,
        invoice_id: name,
        custom_id: "tab_1",
        description: "8 paid calls",
        payee: None,
    };
    orders::charge_vaulted(&charge, name).unwrap()
}

/// How many captures PayPal's own books show.
fn captures(sim: &Sim) -> usize {
    sim.books().rows.iter().filter(|row| row.kind == RowKind::Capture).count()
}

#[tokio::test]
async fn a_tab_is_vaulted_charged_read_and_partly_refunded() {
    let sim = simulator().await;
    let client = client(&sim);
    let vault_id = vaulted(&sim, &client).await;

    let charged = run(&client, charge(&vault_id, INVOICE)).await;
    let capture = charged.capture().unwrap().clone();
    assert_eq!(capture.status, CaptureStatus::Completed);
    assert_eq!(capture.amount, Micros::constant(950_000));
    assert_eq!(capture.fee, Some(Micros::constant(520_000)));
    assert_eq!(capture.invoice_id.as_deref(), Some(INVOICE));
    assert_eq!(capture.custom_id.as_deref(), Some("tab_1"));
    let order_id = capture.order_id.clone().unwrap();

    let read = run(&client, payments::get_capture(&capture.id).unwrap()).await;
    let read = read.capture().unwrap();
    assert!(matches!(read.outcome(), Outcome::Done { .. }));
    assert_eq!((&read.id, read.amount, read.fee), (&capture.id, capture.amount, capture.fee));
    assert_eq!(read.payee.merchant_id.as_deref(), Some("7KNGBPH2U58GQ"));
    assert_eq!(read.order_id.as_ref(), Some(&order_id));

    let refund = NewRefund {
        capture_id: &capture.id,
        amount: Micros::constant(100_000),
        currency: Currency::Usd,
        invoice_id: "e1:tab_1:7:1-r1",
        custom_id: Some("contest-77"),
        note: "contest upheld",
    };
    let refunded = run(&client, payments::refund(&refund, "e1:tab_1:8:1").unwrap()).await;
    let refunded = refunded.refund().unwrap().clone();
    assert_eq!(refunded.amount, Some(Micros::constant(100_000)));
    assert_eq!(refunded.capture_id.as_ref(), Some(&capture.id));
    let read = run(&client, payments::get_refund(&refunded.id).unwrap()).await;
    assert_eq!(read.refund().unwrap().id, refunded.id);

    let order = run(&client, orders::get(&order_id).unwrap()).await;
    let order = order.order().unwrap();
    assert_eq!((order.captures.len(), order.refunds.len()), (1, 1));
    assert_eq!(order.captures[0].status, CaptureStatus::PartiallyRefunded);

    // More than is left, and the same invoice id again.
    let too_much = NewRefund { amount: Micros::constant(900_000), invoice_id: "x", ..refund };
    let refused = client.send(&payments::refund(&too_much, "e1:tab_1:9:1").unwrap()).await;
    assert!(
        matches!(&refused.outcome, Outcome::Refused { issue, .. } if issue == "REFUND_AMOUNT_EXCEEDED")
    );
    let again = charge(&vault_id, INVOICE);
    assert!(matches!(client.send(&again).await.outcome, Outcome::Done { .. }), "its key's result");
    assert_eq!(captures(&sim), 1);
    assert!(sim.violations().is_empty(), "{:?}", sim.violations());
    sim.shutdown().await;
}

#[tokio::test]
async fn a_used_invoice_id_under_a_new_key_must_be_read_back() {
    let sim = simulator().await;
    let client = client(&sim);
    let vault_id = vaulted(&sim, &client).await;
    run(&client, charge(&vault_id, INVOICE)).await;
    let twice = VaultedCharge {
        vault_id: &vault_id,
        amount: Micros::constant(950_000),
        currency: Currency::Usd,
        invoice_id: INVOICE,
        custom_id: "tab_1",
        description: "8 paid calls",
        payee: None,
    };
    let exchange = client.send(&orders::charge_vaulted(&twice, "another-key").unwrap()).await;
    assert!(
        matches!(&exchange.outcome, Outcome::AlreadyDone { issue, .. } if issue == "DUPLICATE_INVOICE_ID")
    );
    assert!(!exchange.settles_earlier_sends());
    assert_eq!(captures(&sim), 1);
    sim.shutdown().await;
}

fn status(status: u16, after: bool) -> Effect {
    Effect::Status { status, retry_after_seconds: Some(3), after }
}

fn issue(issue: &str) -> Effect {
    Effect::Issue { issue: issue.to_owned() }
}

/// What a fault on the charge comes out as, and whether PayPal took the money all the same.
#[tokio::test]
async fn every_fault_on_a_charge_comes_out_as_what_is_known() {
    let pending = Effect::Pending { reason: None, then: Ending::Completed, after_seconds: None };
    let unknown = "unknown sent=true".to_owned();
    let table: Vec<(Effect, String, usize)> = vec![
        (Effect::DropBefore, unknown.clone(), 0),
        (Effect::DropAfter, unknown.clone(), 1),
        (Effect::BadBody, unknown.clone(), 1),
        (status(500, false), unknown.clone(), 0),
        (status(500, true), unknown.clone(), 1),
        (status(503, false), unknown.clone(), 0),
        (status(504, true), unknown.clone(), 1),
        (Effect::Delay { milliseconds: 1_000, after: true }, unknown, 1),
        (status(429, false), "retry RateLimited".to_owned(), 0),
        (Effect::DeadToken, "done".to_owned(), 1),
        (Effect::MissingScope, "done".to_owned(), 1),
        (pending, "pending".to_owned(), 1),
        (Effect::Denied, "declined Final".to_owned(), 1),
        (Effect::PayerAction, "declined PayerCanFix".to_owned(), 0),
        (issue("INSTRUMENT_DECLINED"), "declined PayerCanFix".to_owned(), 0),
        (issue("PAYER_CANNOT_PAY"), "declined Final".to_owned(), 0),
        (issue("PAYEE_ACCOUNT_RESTRICTED"), "refused".to_owned(), 0),
        (issue("DUPLICATE_INVOICE_ID"), "already_done".to_owned(), 0),
    ];
    let sim = simulator().await;
    let client = client(&sim);
    let mut hasty = config(&sim);
    hasty.timeouts.money = Duration::from_millis(200);
    let hasty = Client::new(&hasty).unwrap();
    let vault_id = vaulted(&sim, &client).await;
    for (number, (effect, expect, taken)) in table.into_iter().enumerate() {
        let label = format!("{effect:?}");
        let sender = if matches!(effect, Effect::Delay { .. }) { &hasty } else { &client };
        sim.set_faults(vec![Fault::on("orders.create", effect)]).unwrap();
        let before = captures(&sim);
        let request = charge(&vault_id, &format!("e1:tab_1:{number}:1"));
        let exchange = sender.send(&request).await;
        assert_eq!(word(&exchange.outcome), expect, "{label}: {}", exchange.body);
        assert_eq!(captures(&sim) - before, taken, "{label}");
        if let Outcome::Unknown { .. } = exchange.outcome {
            // The same request again tells, and takes nothing twice.
            let repeated = repeat(&client, &request).await;
            let capture = done(&repeated).capture().unwrap();
            assert_eq!(capture.status, CaptureStatus::Completed, "{label}");
            assert!(repeated.settles_earlier_sends());
            assert_eq!(captures(&sim) - before, 1, "{label}");
        }
    }
    assert!(sim.violations().is_empty(), "{:?}", sim.violations());
    sim.shutdown().await;
}

/// Sends again under the same key until the first send is no longer running.
async fn repeat(client: &Client, request: &Request) -> Exchange {
    let repeated = async {
        loop {
            let exchange = client.send(request).await;
            match exchange.outcome {
                Outcome::Retry { wait: Wait::InProgress, .. } => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                _ => return exchange,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), repeated).await.unwrap()
}

#[tokio::test]
async fn ppal_16_a_token_that_the_simulator_dropped_is_renewed_once() {
    let sim = simulator().await;
    let client = client(&sim);
    let vault_id = vaulted(&sim, &client).await;
    sim.drop_tokens();
    let before = sim.journal().len();
    run(&client, charge(&vault_id, INVOICE)).await;
    let seen: Vec<_> = sim.journal().split_off(before);
    let names: Vec<_> = seen.iter().map(|entry| entry.operation.unwrap()).collect();
    assert_eq!(names, ["orders.create", "oauth.token", "orders.create"]);
    let keys: Vec<_> = [&seen[0], &seen[2]]
        .iter()
        .map(|entry| entry.headers["paypal-request-id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(keys, [INVOICE, INVOICE]);
    assert_eq!(captures(&sim), 1);
    sim.shutdown().await;
}

#[tokio::test]
async fn a_feature_switched_on_later_needs_no_restart() {
    let sim = simulator().await;
    let scope = |scope: &&&str| !scope.contains("vault");
    sim.set_scopes(ALL_SCOPES.iter().filter(scope).map(|&scope| scope.to_owned()).collect());
    let client = client(&sim);
    client.prepare().await.unwrap();
    sim.set_scopes(ALL_SCOPES.iter().map(|&scope| scope.to_owned()).collect());
    vaulted(&sim, &client).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn evidence_tells_a_charge_that_was_taken_from_one_that_was_not() {
    let sim = simulator().await;
    let client = client(&sim);
    let vault_id = vaulted(&sim, &client).await;
    let sent = sim.clock().now();
    for (effect, name) in
        [(Effect::DropAfter, "e1:tab_1:1:1"), (Effect::DropBefore, "e1:tab_1:2:1")]
    {
        sim.set_faults(vec![Fault::on("orders.create", effect)]).unwrap();
        let lost = client.send(&charge(&vault_id, name)).await;
        assert!(matches!(lost.outcome, Outcome::Unknown { sent: true, .. }));
    }
    let ask = async |name: &str| prove_absent(&client, name, sent, sent, sim.clock().now()).await;
    // Three hours on, the report ends at the send itself: nothing is proved yet.
    sim.advance(3 * 3600);
    assert!(matches!(ask("e1:tab_1:2:1").await, Evidence::NotYet { .. }));
    sim.advance(3 * 3600);
    let Evidence::Found { rows, complete: _ } = ask("e1:tab_1:1:1").await else { panic!() };
    assert_eq!((rows.len(), rows[0].event_code.as_str()), (1, "T0003"));
    assert_eq!(rows[0].amount_micros, Some(950_000));
    let capture = run(&client, payments::get_capture(&rows[0].transaction_id).unwrap()).await;
    assert_eq!(capture.capture().unwrap().invoice_id.as_deref(), Some("e1:tab_1:1:1"));
    let Evidence::Absent(absence) = ask("e1:tab_1:2:1").await else { panic!() };
    assert_eq!(absence.rows, 1, "the other one was looked at");
    sim.shutdown().await;
}

/// A client beside a clock of ours, in seconds since 1970.
fn beside(sim: &Sim) -> (Client, Arc<AtomicI64>) {
    let ours = Arc::new(AtomicI64::new(sim.clock().now().as_second()));
    let shows = Arc::clone(&ours);
    let clock = move || Timestamp::from_second(shows.load(Ordering::SeqCst)).unwrap();
    (client(sim).beside(Arc::new(clock)), ours)
}

/// INVARIANT: absence_is_claimed_only_where_paypals_clock_is_known. The report is complete past the
/// send as our clock told it; by PayPal's clock, of which its answer tells, it was sent later.
#[tokio::test]
async fn absence_is_claimed_only_where_paypals_clock_is_known() {
    let sim = simulator().await;
    let (client, ours) = beside(&sim);
    assert_eq!(client.ask_ahead().await, Ok(Some(SignedDuration::ZERO)));
    let sent = sim.clock().now();
    sim.advance(9 * 3600);
    let ask = async || prove_absent(&client, "e1:tab_1:2:1", sent, sent, sim.clock().now()).await;
    assert!(matches!(ask().await, Evidence::NotYet { .. }));
    assert_eq!(client.ahead(), Some(SignedDuration::from_hours(9)));
    assert!(matches!(ask().await, Evidence::NotYet { .. }));
    // Our clock is set, which PayPal is asked about by itself.
    ours.store(sim.clock().now().as_second(), Ordering::SeqCst);
    let Evidence::Absent(absence) = ask().await else { panic!() };
    assert_eq!(absence.rows, 0);
    assert_eq!(client.ahead(), Some(SignedDuration::ZERO));
    sim.shutdown().await;
}

#[tokio::test]
async fn doctor_names_a_clock_that_is_wrong() {
    let sim = simulator().await;
    for (off, finding, words) in [
        (0, Finding::Good, "agree"),
        (7_200, Finding::Bad, "7200 s ahead of PayPal's"),
        (-7_200, Finding::Bad, "7200 s behind PayPal's"),
    ] {
        let (client, ours) = beside(&sim);
        ours.fetch_add(off, Ordering::SeqCst);
        let found = doctor::checks(&client, Known::default()).await;
        let clock = found.iter().find(|check| check.name == "clock").unwrap();
        assert_eq!(clock.finding, finding, "{}", clock.detail);
        assert!(clock.detail.contains(words), "{}", clock.detail);
    }
    sim.shutdown().await;
}

#[tokio::test]
async fn a_pending_charge_ends_where_its_capture_ends() {
    let sim = simulator().await;
    let client = client(&sim);
    let vault_id = vaulted(&sim, &client).await;
    for (ending, expect) in
        [(Ending::Completed, "done".to_owned()), (Ending::Declined, "declined Final".to_owned())]
    {
        let effect = Effect::Pending { reason: None, then: ending, after_seconds: None };
        sim.set_faults(vec![Fault::on("orders.create", effect)]).unwrap();
        let exchange = client.send(&charge(&vault_id, &format!("e1:{ending:?}:1"))).await;
        let Outcome::Pending { reason, resource } = exchange.outcome else { panic!() };
        assert_eq!(reason, "PENDING_REVIEW");
        let capture = resource.capture().unwrap();
        assert_eq!(capture.fee, None, "unknown, not zero");
        assert!(sim.end_pending(&capture.id, ending));
        let read = run(&client, payments::get_capture(&capture.id).unwrap()).await;
        assert_eq!(word(&read.capture().unwrap().outcome()), expect);
    }
    sim.shutdown().await;
}

#[tokio::test]
async fn a_removed_method_is_gone() {
    let sim = simulator().await;
    let client = client(&sim);
    let vault_id = vaulted(&sim, &client).await;
    assert!(sim.revoke(&vault_id));
    let exchange = client.send(&charge(&vault_id, INVOICE)).await;
    assert_eq!(word(&exchange.outcome), "declined MethodGone", "{}", exchange.body);
    sim.shutdown().await;
}

fn order(intent: CheckoutIntent, name: &str) -> Request {
    let order = NewOrder {
        intent,
        amount: Micros::constant(6_000_000),
        currency: Currency::Usd,
        invoice_id: name,
        custom_id: "ord_1",
        description: "4 outcome checks",
        brand: "Earnest",
        return_url: "https://shop.example/paypal/return?o=1",
        cancel_url: "https://shop.example/paypal/cancel?o=1",
    };
    orders::create(&order, name).unwrap()
}

#[tokio::test]
async fn an_approved_hold_is_captured_in_part_and_the_rest_released() {
    let sim = simulator().await;
    let client = client(&sim);
    let made = run(&client, order(CheckoutIntent::Authorize, "e1:ord_1:1")).await;
    let id = made.order().unwrap().id.clone();
    assert!(made.order().unwrap().approve_url.as_deref().unwrap().contains(&id));
    let early = client.send(&orders::authorize(&id, "e1:ord_1:2").unwrap()).await;
    assert!(
        matches!(&early.outcome, Outcome::Declined { issue, .. } if issue == "ORDER_NOT_APPROVED")
    );
    sim.approve(&id, None).unwrap();
    let held = run(&client, orders::authorize(&id, "e1:ord_1:3").unwrap()).await;
    let held = held.authorization().unwrap().clone();
    assert_eq!(held.status, AuthorizationStatus::Created);
    assert_eq!(held.amount, Some(Micros::constant(6_000_000)));
    assert!(held.expiration_time.is_some());

    let part = NewCapture {
        authorization_id: &held.id,
        amount: Micros::constant(4_500_000),
        currency: Currency::Usd,
        invoice_id: "e1:ord_1:4",
        final_capture: true,
        note: "3 of 4 results passed; the rest of the hold is released.",
    };
    let taken = run(&client, payments::capture(&part, "e1:ord_1:4").unwrap()).await;
    let taken = taken.capture().unwrap();
    assert_eq!(taken.amount, Micros::constant(4_500_000));
    assert_eq!(taken.fee, Some(Micros::constant(650_000)));
    assert_eq!(taken.authorization_id.as_ref(), Some(&held.id));

    let read = run(&client, payments::get_authorization(&held.id).unwrap()).await;
    assert_eq!(read.authorization().unwrap().status, AuthorizationStatus::Captured);
    let void = client.send(&payments::void(&held.id, "e1:ord_1:5").unwrap()).await;
    assert!(
        matches!(&void.outcome, Outcome::AlreadyDone { issue, .. } if issue == "PREVIOUSLY_CAPTURED")
    );
    assert!(sim.violations().is_empty(), "{:?}", sim.violations());
    sim.shutdown().await;
}

#[tokio::test]
async fn a_hold_can_be_renewed_and_voided() {
    let sim = simulator().await;
    let client = client(&sim);
    let id = run(&client, order(CheckoutIntent::Authorize, "e1:ord_2:1")).await;
    let id = id.order().unwrap().id.clone();
    sim.approve(&id, None).unwrap();
    let held = run(&client, orders::authorize(&id, "e1:ord_2:2").unwrap()).await;
    let held = held.authorization().unwrap().id.clone();
    let renew = |key: &str| {
        payments::reauthorize(&held, Micros::constant(6_000_000), Currency::Usd, key).unwrap()
    };
    let early = client.send(&renew("e1:ord_2:3")).await;
    assert_eq!(word(&early.outcome), "retry NotYet");
    sim.advance(4 * 86_400);
    let renewed = run(&client, renew("e1:ord_2:4")).await;
    assert_ne!(renewed.authorization().unwrap().id, held);
    let voided = client.send(&payments::void(&held, "e1:ord_2:5").unwrap()).await;
    done(&voided);
    let read = run(&client, payments::get_authorization(&held).unwrap()).await;
    assert_eq!(read.authorization().unwrap().status, AuthorizationStatus::Voided);
    let again = client.send(&payments::void(&held, "e1:ord_2:6").unwrap()).await;
    assert_eq!(word(&again.outcome), "already_done");
    sim.shutdown().await;
}

#[tokio::test]
async fn an_approved_order_is_captured_once() {
    let sim = simulator().await;
    let client = client(&sim);
    let made = run(&client, order(CheckoutIntent::Capture, "e1:top_1:1")).await;
    let id = made.order().unwrap().id.clone();
    sim.approve(&id, None).unwrap();
    let taken = run(&client, orders::capture(&id, "e1:top_1:2").unwrap()).await;
    assert_eq!(taken.capture().unwrap().status, CaptureStatus::Completed);
    let again = client.send(&orders::capture(&id, "e1:top_1:3").unwrap()).await;
    assert!(
        matches!(&again.outcome, Outcome::AlreadyDone { issue, .. } if issue == "ORDER_ALREADY_CAPTURED")
    );
    // An order that nobody approved is gone after three hours.
    let made = run(&client, order(CheckoutIntent::Capture, "e1:top_2:1")).await;
    let id = made.order().unwrap().id.clone();
    sim.advance(4 * 3600);
    let late = client.send(&orders::get(&id).unwrap()).await;
    assert_eq!(word(&late.outcome), "not_found");
    sim.shutdown().await;
}

/// A webhook receiver; deliveries are read from what it saw.
async fn receiver() -> Server {
    Server::start(|_, _| json(200, "{}")).await
}

/// Waits until the receiver has seen `count` deliveries.
async fn deliveries(receiver: &Server, count: usize) -> Vec<Delivery> {
    let waited = tokio::time::timeout(Duration::from_secs(30), async {
        while receiver.calls().len() < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap();
    let seen = receiver.calls();
    seen.iter()
        .map(|seen| {
            Delivery::new(|name| seen.header(name).map(str::as_bytes), seen.body.clone()).unwrap()
        })
        .collect()
}

#[tokio::test]
async fn deliveries_verify_locally_and_by_postback() {
    let sim = simulator().await;
    let receiver = receiver().await;
    let config = config(&sim);
    let (client, certs) = (Client::new(&config).unwrap(), CertStore::new(&config).unwrap());
    let url = receiver.base.join("/webhooks/paypal").unwrap();
    let made = run(&client, webhooks::create(url.as_str()).unwrap()).await;
    let Resource::Webhook(hook) = made else { panic!("{made:?}") };
    let Resource::Webhooks(all) = run(&client, webhooks::list()).await else { panic!() };
    assert_eq!(all.webhooks, std::slice::from_ref(&hook));

    let vault_id = vaulted(&sim, &client).await;
    let first = deliveries(&receiver, 1).await;
    let rotated = Fault::on_event("PAYMENT.CAPTURE.COMPLETED", Effect::WebhookRotatedCertificate);
    sim.set_faults(vec![rotated]).unwrap();
    let charged = run(&client, charge(&vault_id, INVOICE)).await;
    let capture = charged.capture().unwrap().id.clone();
    let now = sim.clock().now();
    let all = deliveries(&receiver, 2).await;
    for delivery in first.iter().chain(&all) {
        let local = webhooks::verify_local(delivery, &hook.id, &certs, now).await;
        assert_eq!(local, Verification::Valid, "{delivery:?}");
        let asked = webhooks::verify_postback(&client, delivery, &hook.id, &certs, now).await;
        assert_eq!(asked, Verification::Valid, "{delivery:?}");
        let other = webhooks::verify_local(delivery, "0EH40505U7160970P", &certs, now).await;
        assert_eq!(other, Verification::Invalid(Invalid::Signature));
    }
    let events: Vec<_> = all.iter().map(|d| Event::parse(d.body()).unwrap()).collect();
    let captured = events.iter().find(|event| event.event_type == "PAYMENT.CAPTURE.COMPLETED");
    assert_eq!(captured.unwrap().resource_id.as_ref(), Some(&capture));

    let gone = run(&client, webhooks::delete(&hook.id).unwrap()).await;
    assert_eq!(gone, Resource::Nothing);
    assert_eq!(word(&client.send(&webhooks::get(&hook.id).unwrap()).await.outcome), "not_found");
    sim.shutdown().await;
}

#[tokio::test]
async fn a_delivery_with_a_wrong_signature_is_invalid_both_ways() {
    let sim = simulator().await;
    let receiver = receiver().await;
    let config = config(&sim);
    let (client, certs) = (Client::new(&config).unwrap(), CertStore::new(&config).unwrap());
    let url = receiver.base.join("/webhooks/paypal").unwrap();
    let made = run(&client, webhooks::create(url.as_str()).unwrap()).await;
    let Resource::Webhook(hook) = made else { panic!("{made:?}") };
    sim.set_faults(vec![Fault::on_event("*", Effect::WebhookWrongSignature).always()]).unwrap();
    vaulted(&sim, &client).await;
    let all = deliveries(&receiver, 1).await;
    let now = sim.clock().now();
    let local = webhooks::verify_local(&all[0], &hook.id, &certs, now).await;
    assert_eq!(local, Verification::Invalid(Invalid::Signature));
    let asked = webhooks::verify_postback(&client, &all[0], &hook.id, &certs, now).await;
    assert_eq!(asked, Verification::Invalid(Invalid::NotPaypals));
    sim.shutdown().await;
}

#[tokio::test]
async fn doctor_finds_a_full_account_healthy() {
    let sim = simulator().await;
    let client = client(&sim);
    let payers = ["VYYFH3WJ4JPJQ".to_owned()];
    let found = doctor::checks(&client, Known { webhook_id: None, payers: &payers }).await;
    let bad: Vec<_> = found.iter().filter(|check| check.finding == Finding::Bad).collect();
    assert!(bad.is_empty(), "{bad:?}");
    let same = found.iter().find(|check| check.name == "buyer_is_not_seller").unwrap();
    assert_eq!(same.finding, Finding::Good, "{}", same.detail);
    sim.shutdown().await;
}
