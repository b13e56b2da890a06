//! Orders: their payer, their life, their refusals.

use paypal_sim::{Effect, Fault, PayerError};
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Paypal, order_body, send, vaulted_body};

const ORDERS: &str = "/v2/checkout/orders";

#[tokio::test]
async fn nothing_is_paid_before_the_payer_agreed() {
    let paypal = Paypal::start().await;
    let order = paypal.post(ORDERS, "o", &order_body("CAPTURE", "5.00")).await;
    assert_eq!(order.text("/status"), "PAYER_ACTION_REQUIRED");
    let id = order.text("/id").to_owned();
    let capture = format!("{ORDERS}/{id}/capture");
    let early = paypal.post(&capture, "a", &json!({})).await;
    assert_eq!(early.issue(), "ORDER_NOT_APPROVED");
    let other = paypal.post(&format!("{ORDERS}/{id}/authorize"), "b", &json!({})).await;
    assert_eq!(other.issue(), "ACTION_DOES_NOT_MATCH_INTENT");

    let seller = paypal.sim.approve(&id, Some("merchant@example.com"));
    assert_eq!(seller, Err(PayerError::PayerIsSeller));
    let next = paypal.sim.approve(&id, None).unwrap().unwrap();
    let wanted = format!("https://shop.example/return?o=1&token={id}&PayerID=VYYFH3WJ4JPJQ");
    assert_eq!(next, wanted);
    let paid = paypal.post(&capture, "c", &json!({})).await;
    assert_eq!(paid.status, 201);
    let twice = paypal.post(&capture, "d", &json!({})).await;
    assert_eq!(twice.issue(), "ORDER_ALREADY_CAPTURED");
    let replay = paypal.post(&capture, "c", &json!({})).await;
    assert_eq!((replay.status, &replay.body), (200, &paid.body));
}

#[tokio::test]
async fn an_order_lives_three_hours() {
    let paypal = Paypal::start().await;
    let body = order_body("CAPTURE", "5.00");
    let order = paypal.post(ORDERS, "o", &body).await;
    let id = order.text("/id").to_owned();
    paypal.sim.advance(3 * 3_600 - 1);
    assert_eq!(paypal.get(&format!("{ORDERS}/{id}")).await.status, 200);
    paypal.sim.advance(1);
    let gone = paypal.get(&format!("{ORDERS}/{id}")).await;
    assert_eq!(gone.status, 404);
    assert_eq!(gone.issue(), "INVALID_RESOURCE_ID");
    let replay = paypal.post(ORDERS, "o", &body).await;
    assert_eq!(replay.status, 404);
    assert_eq!(paypal.sim.approve(&id, None), Err(PayerError::Unknown));
}

#[tokio::test]
async fn a_declined_instrument_goes_back_to_its_payer() {
    let paypal = Paypal::start().await;
    let id = paypal.approved_order("CAPTURE", "5.00", "o").await;
    let capture = format!("{ORDERS}/{id}/capture");
    let effect = Effect::Issue { issue: "INSTRUMENT_DECLINED".to_owned() };
    paypal.sim.add_fault(Fault::on("orders.capture", effect)).unwrap();
    let declined = paypal.post(&capture, "a", &json!({})).await;
    assert_eq!(declined.issue(), "INSTRUMENT_DECLINED");
    let order = paypal.get(&format!("{ORDERS}/{id}")).await;
    assert!(order.link("payer-action").is_some());
    paypal.sim.approve(&id, None).unwrap();
    assert_eq!(paypal.post(&capture, "b", &json!({})).await.status, 201);
}

#[tokio::test]
async fn the_minimal_answer_hides_the_money() {
    let paypal = Paypal::start().await;
    let id = paypal.approved_order("CAPTURE", "5.00", "o").await;
    let request = paypal
        .request(Method::POST, &format!("{ORDERS}/{id}/capture"))
        .header("content-type", "application/json")
        .header("paypal-request-id", "c");
    let got = send(request).await.unwrap();
    assert_eq!(got.status, 201);
    let members: Vec<&String> = got.body.as_object().unwrap().keys().collect();
    assert_eq!(members, ["id", "links", "status"]);
}

#[tokio::test]
async fn a_chargeable_source_without_a_key_is_refused() {
    let paypal = Paypal::start().await;
    let (vault_id, _) = paypal.vault().await;
    let request =
        paypal.request(Method::POST, ORDERS).json(&vaulted_body(&vault_id, "5.00", "inv-1"));
    let got = send(request).await.unwrap();
    assert_eq!(got.status, 400);
    assert_eq!(got.issue(), "PAYPAL_REQUEST_ID_REQUIRED");
    assert!(paypal.sim.books().rows.is_empty());

    let mut bare = order_body("CAPTURE", "5.00");
    bare.as_object_mut().unwrap().remove("payment_source");
    let request = paypal.request(Method::POST, ORDERS).json(&bare);
    let got = send(request).await.unwrap();
    assert_eq!(got.status, 201);
    assert_eq!(got.text("/status"), "CREATED");
    for rel in ["self", "approve", "update", "capture"] {
        assert!(got.link(rel).is_some(), "no {rel} link");
    }
    // Paying without a key works, and is noted.
    let id = got.text("/id").to_owned();
    paypal.sim.approve(&id, None).unwrap();
    let request = paypal.request(Method::POST, &format!("{ORDERS}/{id}/capture"));
    assert_eq!(send(request).await.unwrap().status, 201);
    assert_eq!(paypal.sim.violations()[0].code, "missing_request_id");
}

#[tokio::test]
async fn an_order_is_patched_as_a_whole_or_not_at_all() {
    let paypal = Paypal::start().await;
    let id = paypal.approved_order("CAPTURE", "5.00", "o").await;
    let path = format!("{ORDERS}/{id}");
    let unit = "/purchase_units/@reference_id=='default'";
    let patch = |body: Value| {
        let request = paypal.request(Method::PATCH, &path).json(&body);
        async move { send(request).await.unwrap() }
    };
    let usd = |value: &str| json!({"currency_code": "USD", "value": value});
    let good = json!([
        {"op": "replace", "path": format!("{unit}/invoice_id"), "value": "inv-new"},
        {"op": "replace", "path": format!("{unit}/amount"), "value": usd("5.50")},
    ]);
    assert_eq!(patch(good).await.status, 204);
    let order = paypal.get(&path).await;
    assert_eq!(order.text("/purchase_units/0/invoice_id"), "inv-new");
    assert_eq!(order.text("/purchase_units/0/amount/value"), "5.50");

    let half = json!([
        {"op": "replace", "path": format!("{unit}/invoice_id"), "value": "inv-other"},
        {"op": "replace", "path": format!("{unit}/payee"), "value": {}},
    ]);
    let refused = patch(half).await;
    assert_eq!((refused.status, refused.issue()), (400, "FIELD_NOT_PATCHABLE"));
    let order = paypal.get(&path).await;
    assert_eq!(order.text("/purchase_units/0/invoice_id"), "inv-new");

    // More than 15 % above what the payer saw sends them back.
    let raised = json!([{"op": "replace", "path": format!("{unit}/amount"), "value": usd("5.76")}]);
    assert_eq!(patch(raised).await.status, 204);
    let capture = paypal.post(&format!("{path}/capture"), "c", &json!({})).await;
    assert_eq!(capture.issue(), "PAYER_ACTION_REQUIRED");
}

#[tokio::test]
async fn the_mock_header_forces_an_error_without_an_effect() {
    let paypal = Paypal::start().await;
    let id = paypal.approved_order("CAPTURE", "5.00", "o").await;
    let path = format!("{ORDERS}/{id}/capture");
    let request = paypal
        .request(Method::POST, &path)
        .header("paypal-request-id", "m")
        .header("paypal-mock-response", r#"{"mock_application_codes":"INSTRUMENT_DECLINED"}"#);
    let got = send(request).await.unwrap();
    assert_eq!((got.status, got.issue()), (422, "INSTRUMENT_DECLINED"));
    assert_eq!(paypal.post(&path, "c", &json!({})).await.status, 201);
}

#[tokio::test]
async fn broken_requests_get_paypals_own_refusals() {
    let mut paypal = Paypal::start().await;
    let raw = |content_type: &str, body: &str| {
        paypal
            .request(Method::POST, ORDERS)
            .header("content-type", content_type)
            .body(body.to_owned())
    };
    let got = send(raw("application/json", "{\"intent\":")).await.unwrap();
    assert_eq!((got.status, got.issue()), (400, "MALFORMED_REQUEST_JSON"));
    let got = send(raw("text/plain", "{}")).await.unwrap();
    assert_eq!(got.status, 415);
    let got = send(paypal.request(Method::DELETE, ORDERS)).await.unwrap();
    assert_eq!(got.status, 405);
    let got = paypal.get("/v1/customer/partner-referrals").await;
    assert_eq!((got.status, got.text("/name")), (403, "NOT_AUTHORIZED"));
    let got = paypal.get("/v2/nothing/here").await;
    assert_eq!((got.status, got.text("/name")), (404, "RESOURCE_NOT_FOUND"));
    assert!(got.debug_id.is_some());
    paypal.token = "forged".to_owned();
    let got = paypal.get(&format!("{ORDERS}/X")).await;
    assert_eq!((got.status, got.text("/error")), (401, "invalid_token"));

    let wrong = paypal
        .http
        .post(paypal.url("/v1/oauth2/token"))
        .basic_auth("sim", Some("wrong"))
        .form(&[("grant_type", "client_credentials")]);
    let got = send(wrong).await.unwrap();
    assert_eq!((got.status, got.text("/error")), (401, "invalid_client"));
}

#[tokio::test]
async fn a_second_request_with_a_busy_key_is_told_to_wait() {
    let paypal = Paypal::start().await;
    let slow = Effect::Delay { milliseconds: 1_000, after: true };
    paypal.sim.add_fault(Fault::on("orders.create", slow)).unwrap();
    let body = order_body("CAPTURE", "5.00");
    let (first, second) =
        tokio::join!(paypal.post(ORDERS, "k", &body), paypal.post(ORDERS, "k", &body));
    let (first, second) = if first.status == 201 { (first, second) } else { (second, first) };
    assert_eq!(first.status, 201);
    assert_eq!(second.status, 409);
    assert_eq!(second.issue(), "PREVIOUS_REQUEST_IN_PROGRESS");
    let third = paypal.post(ORDERS, "k", &body).await;
    assert_eq!((third.status, third.text("/id")), (200, first.text("/id")));
}
