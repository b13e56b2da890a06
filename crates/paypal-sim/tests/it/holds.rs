//! Holds: their honor period, their captures, their end.

use paypal_sim::{Effect, Ending, Fault, SimConfig};
use serde_json::json;

use crate::client::{Paypal, config};

fn usd(value: &str) -> serde_json::Value {
    json!({"amount": {"currency_code": "USD", "value": value}})
}

#[tokio::test]
async fn a_final_partial_capture_releases_the_rest() {
    let paypal = Paypal::start().await;
    let (hold, order) = paypal.hold("6.00").await;
    let path = format!("/v2/payments/authorizations/{hold}");
    let mut body = usd("4.50");
    body["final_capture"] = json!(true);
    let capture = paypal.post(&format!("{path}/capture"), "c", &body).await;
    assert_eq!(capture.status, 201);
    assert_eq!(capture.text("/seller_receivable_breakdown/paypal_fee/value"), "0.65");
    assert_eq!(capture.text("/supplementary_data/related_ids/authorization_id"), hold);
    assert_eq!(paypal.get(&path).await.text("/status"), "CAPTURED");
    let again = paypal.post(&format!("{path}/capture"), "d", &usd("1")).await;
    assert_eq!(again.issue(), "AUTHORIZATION_ALREADY_CAPTURED");
    let void = paypal.post(&format!("{path}/void"), "v", &json!({})).await;
    assert_eq!(void.issue(), "PREVIOUSLY_CAPTURED");
    let order = paypal.get(&format!("/v2/checkout/orders/{order}")).await;
    let listed = "/purchase_units/0/payments/captures/0/id";
    assert_eq!(order.text(listed), capture.text("/id"));
}

#[tokio::test]
async fn the_other_reading_of_a_final_partial_capture_is_a_switch() {
    let paypal = Paypal::with(SimConfig { final_partial_is_captured: false, ..config() }).await;
    let (hold, _) = paypal.hold("6.00").await;
    let path = format!("/v2/payments/authorizations/{hold}");
    let mut body = usd("4.50");
    body["final_capture"] = json!(true);
    paypal.post(&format!("{path}/capture"), "c", &body).await;
    assert_eq!(paypal.get(&path).await.text("/status"), "PARTIALLY_CAPTURED");
    let again = paypal.post(&format!("{path}/capture"), "d", &usd("1")).await;
    assert_eq!(again.issue(), "AUTHORIZATION_ALREADY_CAPTURED");
}

#[tokio::test]
async fn captures_above_the_hold_are_noted_and_bounded() {
    let paypal = Paypal::start().await;
    let (hold, _) = paypal.hold("6.00").await;
    let capture = format!("/v2/payments/authorizations/{hold}/capture");
    let first = paypal.post(&capture, "a", &usd("6.00")).await;
    assert_eq!(first.status, 201);
    assert_eq!(paypal.sim.violations(), []);

    let paypal = Paypal::start().await;
    let (hold, _) = paypal.hold("6.00").await;
    let capture = format!("/v2/payments/authorizations/{hold}/capture");
    let most = paypal.post(&capture, "a", &usd("6.91")).await;
    assert_eq!(most.issue(), "MAX_CAPTURE_AMOUNT_EXCEEDED");
    let other = json!({"amount": {"currency_code": "EUR", "value": "1.00"}});
    let other = paypal.post(&capture, "b", &other).await;
    assert_eq!(other.issue(), "AUTH_CAPTURE_CURRENCY_MISMATCH");
    let within = paypal.post(&capture, "c", &usd("6.90")).await;
    assert_eq!(within.status, 201);
    let codes: Vec<_> = paypal.sim.violations().iter().map(|it| it.code).collect();
    assert_eq!(codes, ["capture_above_hold", "capture_above_hold"]);
}

#[tokio::test]
async fn a_void_keeps_what_was_captured() {
    let paypal = Paypal::start().await;
    let (hold, _) = paypal.hold("6.00").await;
    let path = format!("/v2/payments/authorizations/{hold}");
    paypal.post(&format!("{path}/capture"), "c", &usd("2.00")).await;
    assert_eq!(paypal.get(&path).await.text("/status"), "PARTIALLY_CAPTURED");
    // The official clients send void as an empty form.
    let request = paypal
        .request(reqwest::Method::POST, &format!("{path}/void"))
        .header("content-type", "application/x-www-form-urlencoded")
        .header("paypal-request-id", "v");
    let void = crate::client::send(request).await.unwrap();
    assert_eq!(void.status, 204);
    assert_eq!(void.body, "");
    assert_eq!(paypal.get(&path).await.text("/status"), "VOIDED");
    let replay = paypal.post(&format!("{path}/void"), "v", &json!({})).await;
    assert_eq!(replay.text("/status"), "VOIDED");
    let again = paypal.post(&format!("{path}/void"), "w", &json!({})).await;
    assert_eq!(again.issue(), "PREVIOUSLY_VOIDED");
    let captures = paypal.sim.books().balances[0].captured;
    assert_eq!(captures.value(), "2.00");
}

#[tokio::test]
async fn a_hold_is_renewed_from_day_four_and_dies_on_day_29() {
    let mut paypal = Paypal::start().await;
    let (hold, _) = paypal.hold("6.00").await;
    let path = format!("/v2/payments/authorizations/{hold}");
    let renew = format!("{path}/reauthorize");
    let early = paypal.post(&renew, "a", &usd("6.00")).await;
    assert_eq!(early.issue(), "REAUTHORIZATION_TOO_SOON");
    paypal.sim.advance(3 * 86_400);
    paypal.log_in().await;
    let renewed = paypal.post(&renew, "b", &usd("6.00")).await;
    assert_eq!(renewed.status, 201, "{}", renewed.body);
    let new_id = renewed.text("/id").to_owned();
    assert_ne!(new_id, hold);
    assert_eq!(renewed.text("/expiration_time"), "2026-12-29T09:00:00Z");
    let child = format!("/v2/payments/authorizations/{new_id}");
    let twice = paypal.post(&format!("{child}/reauthorize"), "c", &json!({})).await;
    assert_eq!(twice.issue(), "REAUTHORIZATION_NOT_SUPPORTED");
    let void = paypal.post(&format!("{child}/void"), "d", &json!({})).await;
    assert_eq!(void.issue(), "CANNOT_BE_VOIDED");

    paypal.sim.advance(26 * 86_400);
    paypal.log_in().await;
    assert_eq!(paypal.get(&path).await.text("/status"), "VOIDED");
    let late = paypal.post(&format!("{child}/capture"), "e", &json!({})).await;
    assert_eq!(late.issue(), "AUTHORIZATION_EXPIRED");
}

#[tokio::test]
async fn a_hold_under_review_ends_either_way() {
    for (ending, status) in [(Ending::Completed, "CREATED"), (Ending::Declined, "DENIED")] {
        let paypal = Paypal::start().await;
        let order = paypal.approved_order("AUTHORIZE", "6.00", "o").await;
        let pending = Effect::Pending { reason: None, then: ending, after_seconds: None };
        paypal.sim.add_fault(Fault::on("orders.authorize", pending)).unwrap();
        let path = format!("/v2/checkout/orders/{order}/authorize");
        let got = paypal.post(&path, "a", &json!({})).await;
        let hold = &got.body["purchase_units"][0]["payments"]["authorizations"][0];
        assert_eq!(hold["status"], "PENDING");
        let id = hold["id"].as_str().unwrap();
        assert!(paypal.sim.end_pending(id, ending));
        assert!(!paypal.sim.end_pending(id, ending));
        let read = paypal.get(&format!("/v2/payments/authorizations/{id}")).await;
        assert_eq!(read.text("/status"), status);
    }
}

#[tokio::test]
async fn refunds_never_exceed_the_capture() {
    let paypal = Paypal::start().await;
    let order = paypal.approved_order("CAPTURE", "5.00", "o").await;
    let got = paypal.post(&format!("/v2/checkout/orders/{order}/capture"), "c", &json!({})).await;
    let id = got.text("/purchase_units/0/payments/captures/0/id");
    let refund = format!("/v2/payments/captures/{id}/refund");
    let part = paypal.post(&refund, "r1", &usd("1.50")).await;
    assert_eq!(part.text("/seller_payable_breakdown/total_refunded_amount/value"), "1.50");
    let over = paypal.post(&refund, "r2", &usd("3.51")).await;
    assert_eq!(over.issue(), "REFUND_AMOUNT_EXCEEDED");
    // An official client repeats the id in the body; unknown members are ignored.
    let rest = paypal.post(&refund, "r3", &json!({"capture_id": id})).await;
    assert_eq!(rest.text("/amount/value"), "3.50");
    let done = paypal.post(&refund, "r4", &json!({})).await;
    assert_eq!(done.issue(), "CAPTURE_FULLY_REFUNDED");
    let books = paypal.sim.books();
    // The fee on 5.00 was 0.66 and stays with PayPal.
    assert_eq!(books.balances[0].balance.value(), "999.34");
    assert_eq!(books.balances[0].returned.value(), "-5.00");
    assert_eq!(books.rows[1].event_code, "T1107");
}

#[tokio::test]
async fn a_refund_needs_money_in_the_account() {
    let paypal = Paypal::with(SimConfig { opening: Vec::new(), ..config() }).await;
    let order = paypal.approved_order("CAPTURE", "5.00", "o").await;
    let got = paypal.post(&format!("/v2/checkout/orders/{order}/capture"), "c", &json!({})).await;
    let id = got.text("/purchase_units/0/payments/captures/0/id").to_owned();
    let refund = format!("/v2/payments/captures/{id}/refund");
    let poor = paypal.post(&refund, "r", &json!({})).await;
    assert_eq!(poor.issue(), "REFUND_FAILED_INSUFFICIENT_FUNDS");
    let within = paypal.post(&refund, "s", &usd("4.34")).await;
    assert_eq!(within.status, 201);

    assert!(paypal.sim.reverse(&id, Some(66)));
    assert!(!paypal.sim.reverse(&id, None), "nothing is left");
    let books = paypal.sim.books();
    assert_eq!(books.balances[0].balance.value(), "-0.66");
    assert_eq!(books.rows[2].event_code, "T1106");
}

#[tokio::test]
async fn a_refund_that_fails_gives_the_amount_free_again() {
    let paypal = Paypal::start().await;
    let order = paypal.approved_order("CAPTURE", "5.00", "o").await;
    let got = paypal.post(&format!("/v2/checkout/orders/{order}/capture"), "c", &json!({})).await;
    let id = got.text("/purchase_units/0/payments/captures/0/id");
    let refund = format!("/v2/payments/captures/{id}/refund");
    let pending = Effect::Pending { reason: None, then: Ending::Declined, after_seconds: Some(10) };
    paypal.sim.add_fault(Fault::on("captures.refund", pending)).unwrap();
    let slow = paypal.post(&refund, "r", &json!({})).await;
    assert_eq!(slow.text("/status"), "PENDING");
    let busy = paypal.post(&refund, "s", &usd("1.00")).await;
    assert_eq!(busy.issue(), "CAPTURE_FULLY_REFUNDED");
    paypal.sim.advance(10);
    let read = paypal.get(&format!("/v2/payments/refunds/{}", slow.text("/id"))).await;
    assert_eq!(read.text("/status"), "FAILED");
    let again = paypal.post(&refund, "t", &usd("1.00")).await;
    assert_eq!(again.status, 201);
}
