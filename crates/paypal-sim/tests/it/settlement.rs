//! What the settlement of a tab meets: a saved wallet, one charge, its reading, its return.

use paypal_sim::{Effect, Ending, Fault};
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Paypal, send, vaulted_body};

const ORDERS: &str = "/v2/checkout/orders";

#[tokio::test]
async fn a_tab_is_settled_and_seen_in_every_record() {
    let paypal = Paypal::start().await;
    let (vault_id, customer) = paypal.vault().await;
    let body = vaulted_body(&vault_id, "0.95", "e1:tab_x:7");
    let order = paypal.post(ORDERS, "e1:tab_x:7:1", &body).await;
    assert_eq!(order.status, 201);
    assert_eq!(order.text("/status"), "COMPLETED");
    let capture = "/purchase_units/0/payments/captures/0";
    let id = order.text(&format!("{capture}/id")).to_owned();
    let breakdown = format!("{capture}/seller_receivable_breakdown");
    assert_eq!(order.text(&format!("{breakdown}/paypal_fee/value")), "0.52");
    assert_eq!(order.text(&format!("{breakdown}/net_amount/value")), "0.43");
    assert!(order.debug_id.is_some());

    let read = paypal.get(&format!("{ORDERS}/{}", order.text("/id"))).await;
    assert_eq!(read.body, order.body);
    let read = paypal.get(&format!("/v2/payments/captures/{id}")).await;
    assert_eq!(read.text("/custom_id"), "tab_01J.7");

    let books = paypal.sim.books();
    assert_eq!(books.balances[0].balance.value(), "1000.43");
    assert_eq!(books.rows[0].event_code, "T0003");

    let list = paypal.get(&format!("/v3/vault/payment-tokens?customer_id={customer}")).await;
    assert_eq!(list.text("/payment_tokens/0/id"), vault_id);
    assert_eq!(paypal.sim.violations(), []);
}

#[tokio::test]
async fn a_replayed_key_shows_the_order_as_it_is_now() {
    let paypal = Paypal::start().await;
    let (vault_id, _) = paypal.vault().await;
    let body = vaulted_body(&vault_id, "1.00", "inv-1");
    let first = paypal.post(ORDERS, "key", &body).await;
    let id = first.text("/purchase_units/0/payments/captures/0/id").to_owned();
    let refund = format!("/v2/payments/captures/{id}/refund");
    assert_eq!(paypal.post(&refund, "refund", &json!({})).await.status, 201);

    let again = paypal.post(ORDERS, "key", &body).await;
    assert_eq!(again.status, 200);
    assert_eq!(again.text("/id"), first.text("/id"));
    assert_eq!(again.text("/purchase_units/0/payments/captures/0/status"), "REFUNDED");
    let rows = paypal.sim.books().rows;
    assert_eq!(rows.len(), 2);

    // After six hours the key means nothing, and the invoice id is what stops a second charge.
    paypal.sim.advance(6 * 3_600);
    let late = paypal.post(ORDERS, "key", &body).await;
    assert_eq!(late.issue(), "DUPLICATE_INVOICE_ID");
    let codes: Vec<_> = paypal.sim.violations().iter().map(|it| it.code).collect();
    assert_eq!(codes, ["key_after_retention"]);
}

#[tokio::test]
async fn another_body_under_one_key_is_noted_and_changes_nothing() {
    let paypal = Paypal::start().await;
    let (vault_id, _) = paypal.vault().await;
    let first = paypal.post(ORDERS, "key", &vaulted_body(&vault_id, "1.00", "inv-1")).await;
    let second = paypal.post(ORDERS, "key", &vaulted_body(&vault_id, "2.00", "inv-2")).await;
    assert_eq!(second.text("/id"), first.text("/id"));
    assert_eq!(paypal.sim.books().rows.len(), 1);
    assert_eq!(paypal.sim.violations()[0].code, "key_body_mismatch");
}

#[tokio::test]
async fn an_answer_lost_after_the_effect_is_found_by_its_key() {
    let paypal = Paypal::start().await;
    let (vault_id, _) = paypal.vault().await;
    let body = vaulted_body(&vault_id, "1.00", "inv-1");
    paypal
        .sim
        .set_faults(vec![
            Fault::on("orders.create", Effect::DropBefore),
            Fault::on("orders.create", Effect::DropAfter),
        ])
        .unwrap();
    assert!(paypal.try_post(ORDERS, "key", &body).await.is_err());
    assert_eq!(paypal.sim.books().rows.len(), 0);
    assert!(paypal.try_post(ORDERS, "key", &body).await.is_err());
    assert_eq!(paypal.sim.books().rows.len(), 1);
    let found = paypal.post(ORDERS, "key", &body).await;
    assert_eq!(found.status, 200);
    assert_eq!(found.text("/status"), "COMPLETED");
    assert_eq!(paypal.sim.books().rows.len(), 1);
    let journal = paypal.sim.journal();
    let dropped: Vec<_> = journal.iter().filter(|entry| entry.dropped).collect();
    assert_eq!(dropped[0].status, None);
    assert_eq!(dropped[1].status, Some(201));
}

#[tokio::test]
async fn a_pending_capture_has_no_fee_until_it_ends() {
    let paypal = Paypal::start().await;
    let (vault_id, _) = paypal.vault().await;
    for (then, status, balance) in
        [(Ending::Completed, "COMPLETED", "1000.48"), (Ending::Declined, "DECLINED", "1000.48")]
    {
        let pending = Effect::Pending { reason: None, then, after_seconds: Some(60) };
        paypal.sim.set_faults(vec![Fault::on("orders.create", pending)]).unwrap();
        let body = vaulted_body(&vault_id, "1.00", status);
        let order = paypal.post(ORDERS, status, &body).await;
        let capture = &order.body["purchase_units"][0]["payments"]["captures"][0];
        assert_eq!(capture["status"], "PENDING");
        assert_eq!(capture["status_details"]["reason"], "PENDING_REVIEW");
        assert!(capture.get("seller_receivable_breakdown").is_none());
        let id = capture["id"].as_str().unwrap();
        paypal.sim.advance(60);
        let read = paypal.get(&format!("/v2/payments/captures/{id}")).await;
        assert_eq!(read.text("/status"), status);
        assert_eq!(paypal.sim.books().balances[0].balance.value(), balance);
    }
}

#[tokio::test]
async fn a_decline_charges_nothing() {
    let paypal = Paypal::start().await;
    let (vault_id, _) = paypal.vault().await;
    let issue = |issue: &str| Effect::Issue { issue: issue.to_owned() };
    paypal.sim.add_fault(Fault::on("orders.create", issue("INSTRUMENT_DECLINED"))).unwrap();
    let body = vaulted_body(&vault_id, "1.00", "inv-1");
    let declined = paypal.post(ORDERS, "a", &body).await;
    assert_eq!(declined.status, 422);
    assert_eq!(declined.issue(), "INSTRUMENT_DECLINED");
    assert!(paypal.sim.books().rows.is_empty());

    paypal.sim.add_fault(Fault::on("orders.create", Effect::PayerAction)).unwrap();
    let sent_back = paypal.post(ORDERS, "b", &body).await;
    assert_eq!(sent_back.text("/status"), "PAYER_ACTION_REQUIRED");
    assert!(sent_back.link("payer-action").is_some());
    assert!(paypal.sim.books().rows.is_empty());

    assert!(paypal.sim.revoke(&vault_id));
    let gone = paypal.post(ORDERS, "c", &body).await;
    assert_eq!(gone.issue(), "AGREEMENT_ALREADY_CANCELLED");
}

#[tokio::test]
async fn search_shows_the_past_three_hours_late() {
    let paypal = Paypal::start().await;
    let (vault_id, _) = paypal.vault().await;
    let body = vaulted_body(&vault_id, "1.00", "inv-1");
    let order = paypal.post(ORDERS, "key", &body).await;
    let id = order.text("/purchase_units/0/payments/captures/0/id");
    let search = "/v1/reporting/transactions?start_date=2026-11-30T05:00:00Z&end_date=2026-11-30T10:00:00Z&fields=all&balance_affecting_records_only=N";

    let early = paypal.get(search).await;
    assert_eq!(early.status, 200, "{}", early.body);
    assert_eq!(early.body["total_items"], 0);
    assert_eq!(early.text("/last_refreshed_datetime"), "2026-11-30T06:00:00Z");

    paypal.sim.advance(3 * 3_600);
    let found = paypal.get(search).await;
    let info = &found.body["transaction_details"][0]["transaction_info"];
    assert_eq!(info["transaction_id"], id);
    assert_eq!(info["invoice_id"], "inv-1");
    assert_eq!(info["custom_field"], "tab_01J.7");
    assert_eq!(info["fee_amount"]["value"], "-0.52");
    assert_eq!(info["transaction_amount"]["value"], "1.00");

    let ahead = paypal
        .get("/v1/reporting/transactions?start_date=2026-11-30T11:00:00%2B00:00&end_date=2026-11-30T12:00:00Z")
        .await;
    assert_eq!(ahead.status, 400);
    assert_eq!(ahead.text("/message"), "Data for the given start date is not available.");
    let balance = paypal.get("/v1/reporting/balances?currency_code=USD").await;
    assert_eq!(balance.text("/balances/0/total_balance/value"), "1000.48");
}

#[tokio::test]
async fn tokens_die_and_scopes_freeze() {
    let mut paypal = Paypal::start().await;
    paypal.sim.drop_tokens();
    let dead = paypal.get("/v2/checkout/orders/X").await;
    assert_eq!(dead.status, 401);
    assert_eq!(dead.text("/error"), "invalid_token");

    let vault_scope = "https://uri.paypal.com/services/vault/payment-tokens/readwrite";
    let all: Vec<String> = paypal.sim.config().scopes.clone();
    let without = all.iter().filter(|scope| *scope != vault_scope).cloned();
    paypal.sim.set_scopes(without.collect());
    paypal.log_in().await;
    paypal.sim.set_scopes(all);
    let stale = paypal.get("/v3/vault/payment-tokens/abcdefg").await;
    assert_eq!(stale.status, 403);
    assert_eq!(stale.text("/name"), "NOT_AUTHORIZED");
    paypal.log_in().await;
    let fresh = paypal.get("/v3/vault/payment-tokens/abcdefg").await;
    assert_eq!(fresh.status, 404);

    paypal.sim.advance(32_400);
    let expired = paypal.get("/v2/checkout/orders/X").await;
    assert_eq!(expired.status, 401);
}

#[tokio::test]
async fn credentials_never_reach_the_journal() {
    let paypal = Paypal::start().await;
    paypal.vault().await;
    let journal = send(paypal.http.get(paypal.url("/_sim/journal"))).await.unwrap();
    let text = journal.body.to_string();
    assert!(text.contains("Bearer [redacted]"));
    assert!(!text.contains(&paypal.token), "a token in clear");
    assert!(!text.contains("c2ltOnNpbQ"), "basic credentials in clear");
}

#[tokio::test]
async fn the_control_api_does_what_the_handle_does() {
    let paypal = Paypal::start().await;
    let order = paypal.approved_order("CAPTURE", "5.00", "o").await;
    let again = json!({"token": order});
    let got = paypal.control(Method::POST, "/_sim/approve", &again).await;
    assert_eq!(got.status, 409);
    let got = paypal.control(Method::POST, "/_sim/clock/advance", &json!({"seconds": 60})).await;
    assert_eq!(got.text("/now"), "2026-11-30T09:01:00Z");
    let faults = json!({"faults": [{"operation": "orders.get", "kind": "status", "status": 503, "retry_after_seconds": 7}]});
    let got = paypal.control(Method::PUT, "/_sim/faults", &faults).await;
    assert_eq!(got.status, 200, "{}", got.body);
    let busy = paypal.get(&format!("/v2/checkout/orders/{order}")).await;
    assert_eq!(busy.status, 503);
    assert_eq!(busy.retry_after.as_deref(), Some("7"));

    for wrong in [
        json!({"faults": [{"operation": "orders.make", "kind": "drop_after"}]}),
        json!({"faults": [{"kind": "explode"}]}),
        json!({"faults": [{"kind": "drop_after", "cuont": 2}]}),
        json!({"faults": [{"operation": "orders.get", "kind": "denied"}]}),
    ] {
        let got = paypal.control(Method::PUT, "/_sim/faults", &wrong).await;
        assert_eq!(got.status, 400, "{wrong}");
    }
    let books = send(paypal.http.get(paypal.url("/_sim/books"))).await.unwrap();
    assert_eq!(books.body["balances"][0]["opening"], Value::from("1000.00"));
}

/// What no call makes is in every record; what cannot happen is refused.
#[tokio::test]
async fn what_happens_without_a_call_is_in_every_record() {
    let paypal = Paypal::start().await;
    for wrong in [
        json!({"event_code": "T9999", "minor": 1}),
        json!({"event_code": "T0400", "minor": 0}),
        json!({"event_code": "T0400", "minor": -1, "other": 1}),
    ] {
        let got = paypal.control(Method::POST, "/_sim/books/happen", &wrong).await;
        assert_eq!(got.status, 400, "{wrong}");
    }
    let out = json!({"event_code": "T0400", "minor": -5_000, "fee_minor": 25});
    let happened = paypal.control(Method::POST, "/_sim/books/happen", &out).await;
    assert_eq!(happened.status, 200, "{}", happened.body);
    paypal.control(Method::POST, "/_sim/clock/advance", &json!({"seconds": 4 * 3_600})).await;
    let found = paypal
        .get("/v1/reporting/transactions?start_date=2026-11-30T08:00:00Z&end_date=2026-11-30T12:00:00Z&fields=all")
        .await;
    let info = "/transaction_details/0/transaction_info";
    assert_eq!(found.text(&format!("{info}/transaction_id")), happened.text("/transaction_id"));
    assert_eq!(found.text(&format!("{info}/transaction_amount/value")), "-50.00");
    assert_eq!(found.text(&format!("{info}/fee_amount/value")), "-0.25");
    let balances = |at: &str| {
        let path = format!("/v1/reporting/balances?as_of_time={at}&currency_code=ALL");
        let paypal = &paypal;
        async move { paypal.get(&path).await.text("/balances/0/total_balance/value").to_owned() }
    };
    assert_eq!(balances("2026-11-30T08:59:59Z").await, "1000.00");
    assert_eq!(balances("2026-11-30T09:30:00Z").await, "949.75");

    let id = happened.text("/transaction_id");
    let path = format!("/_sim/captures/{id}/misstate-fee");
    assert_eq!(paypal.control(Method::POST, &path, &json!({"minor": 7})).await.status, 200);
    assert_eq!(balances("2026-11-30T09:30:00Z").await, "949.93");
    let path = format!("/_sim/captures/{id}/forget");
    assert_eq!(paypal.control(Method::POST, &path, &json!({})).await.status, 200);
    assert_eq!(paypal.control(Method::POST, &path, &json!({})).await.status, 409);
    assert_eq!(balances("2026-11-30T09:30:00Z").await, "1000.00");
}

/// A fault that never fires lets a test pass for nothing, so each must be seen to act.
#[tokio::test]
async fn an_issue_can_be_forced_on_every_operation_that_has_issues() {
    let paypal = Paypal::start().await;
    let (vault_id, customer) = paypal.vault().await;
    let (hold, held_order) = paypal.hold("6.00").await;
    let order = paypal.approved_order("CAPTURE", "5.00", "o").await;
    let unpaid = paypal.post(ORDERS, "u", &crate::client::order_body("CAPTURE", "4.00")).await;
    let unpaid = unpaid.text("/id").to_owned();
    let charged = paypal.post(ORDERS, "v", &vaulted_body(&vault_id, "1.00", "inv-v")).await;
    let capture = charged.text("/purchase_units/0/payments/captures/0/id");
    let refund_path = format!("/v2/payments/captures/{capture}/refund");
    let part = json!({"amount": {"currency_code": "USD", "value": "0.10"}});
    let refund = paypal.post(&refund_path, "r", &part).await;
    let track_path = format!("{ORDERS}/{}/track", charged.text("/id"));
    let other = paypal.post(ORDERS, "w", &vaulted_body(&vault_id, "1.00", "inv-w")).await;
    let intact = other.text("/purchase_units/0/payments/captures/0/id");
    let setup = paypal.post("/v3/vault/setup-tokens", "s", &crate::client::setup_body()).await;
    let setup = setup.text("/id").to_owned();
    paypal.sim.approve(&setup, None).unwrap();
    let token = json!({"payment_source": {"token": {"id": setup, "type": "SETUP_TOKEN"}}});
    let patch = json!([{"op": "add", "path": "/purchase_units/@reference_id=='default'/invoice_id", "value": "x"}]);
    let tracker = json!({"capture_id": intact, "tracking_number": "1"});
    let source = json!({"payment_source": {"paypal": {}}});
    let none = Value::Null;
    let window = "start_date=2026-11-30T05:00:00Z&end_date=2026-11-30T10:00:00Z";
    let holds = format!("/v2/payments/authorizations/{hold}");
    let calls = [
        (
            "orders.create",
            Method::POST,
            ORDERS.to_owned(),
            crate::client::order_body("CAPTURE", "2.00"),
        ),
        ("orders.get", Method::GET, format!("{ORDERS}/{held_order}"), none.clone()),
        ("orders.patch", Method::PATCH, format!("{ORDERS}/{unpaid}"), patch),
        (
            "orders.confirm",
            Method::POST,
            format!("{ORDERS}/{unpaid}/confirm-payment-source"),
            source,
        ),
        ("orders.capture", Method::POST, format!("{ORDERS}/{order}/capture"), json!({})),
        (
            "orders.track.create",
            Method::POST,
            track_path.replace(charged.text("/id"), other.text("/id")),
            tracker,
        ),
        (
            "orders.trackers.patch",
            Method::PATCH,
            format!("{ORDERS}/{order}/trackers/x"),
            json!([{"op": "replace", "path": "/status", "value": "CANCELLED"}]),
        ),
        ("authorizations.get", Method::GET, holds.clone(), none.clone()),
        ("authorizations.capture", Method::POST, format!("{holds}/capture"), json!({})),
        ("authorizations.void", Method::POST, format!("{holds}/void"), json!({})),
        ("captures.get", Method::GET, format!("/v2/payments/captures/{capture}"), none.clone()),
        ("captures.refund", Method::POST, refund_path.clone(), json!({})),
        (
            "refunds.get",
            Method::GET,
            format!("/v2/payments/refunds/{}", refund.text("/id")),
            none.clone(),
        ),
        (
            "setup-tokens.create",
            Method::POST,
            "/v3/vault/setup-tokens".to_owned(),
            crate::client::setup_body(),
        ),
        ("setup-tokens.get", Method::GET, format!("/v3/vault/setup-tokens/{setup}"), none.clone()),
        ("payment-tokens.create", Method::POST, "/v3/vault/payment-tokens".to_owned(), token),
        (
            "payment-tokens.get",
            Method::GET,
            format!("/v3/vault/payment-tokens/{vault_id}"),
            none.clone(),
        ),
        (
            "payment-tokens.delete",
            Method::DELETE,
            format!("/v3/vault/payment-tokens/{vault_id}"),
            none.clone(),
        ),
        (
            "customer.payment-tokens.get",
            Method::GET,
            format!("/v3/vault/payment-tokens?customer_id={customer}"),
            none.clone(),
        ),
        ("search.get", Method::GET, format!("/v1/reporting/transactions?{window}"), none.clone()),
        ("balances.get", Method::GET, "/v1/reporting/balances".to_owned(), none),
    ];
    for (operation, method, path, body) in calls {
        let effect = Effect::Issue { issue: "PAYER_CANNOT_PAY".to_owned() };
        paypal.sim.set_faults(vec![Fault::on(operation, effect)]).unwrap();
        let mut request = paypal
            .request(method, &path)
            .header("paypal-request-id", format!("forced-{operation}"));
        if !body.is_null() {
            request = request.json(&body);
        }
        let got = send(request).await.unwrap();
        assert_eq!(got.status, 422, "{operation}: {}", got.body);
        assert_eq!(got.issue(), "PAYER_CANNOT_PAY", "{operation}");
    }
}

#[tokio::test]
async fn a_token_for_every_call_is_noted_and_then_refused() {
    let paypal = Paypal::with(paypal_sim::SimConfig {
        token_calls_noted: 2,
        token_calls_refused: 3,
        ..crate::client::config()
    })
    .await;
    let fetch = || {
        let request = paypal
            .http
            .post(paypal.url("/v1/oauth2/token"))
            .basic_auth("sim", Some("sim"))
            .form(&[("grant_type", "client_credentials")]);
        async move { send(request).await.unwrap() }
    };
    assert_eq!(fetch().await.status, 200);
    assert_eq!(paypal.sim.violations(), []);
    assert_eq!(fetch().await.status, 200);
    assert_eq!(paypal.sim.violations()[0].code, "token_fetched_too_often");
    let limited = fetch().await;
    assert_eq!((limited.status, limited.text("/name")), (429, "RATE_LIMIT_REACHED"));
    paypal.sim.advance(60);
    assert_eq!(fetch().await.status, 200);
}
