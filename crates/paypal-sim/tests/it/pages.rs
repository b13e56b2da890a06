//! The payer's pages, read and pressed like a browser would.

use reqwest::Method;
use serde_json::json;

use crate::client::{Paypal, order_body, setup_body};

async fn press(paypal: &Paypal, url: &str, form: &[(&str, &str)]) -> (u16, Option<String>, String) {
    let response = paypal.http.post(url).form(form).send().await.unwrap();
    let next = response.headers().get("location").map(|value| value.to_str().unwrap().to_owned());
    (response.status().as_u16(), next, response.text().await.unwrap())
}

#[tokio::test]
async fn a_person_can_approve_an_order() {
    let paypal = Paypal::start().await;
    let mut body = order_body("CAPTURE", "5.00");
    body["purchase_units"][0]["description"] = json!("<script>4 checks</script>");
    let order = paypal.post("/v2/checkout/orders", "o", &body).await;
    let link = order.link("payer-action").unwrap();
    let html = paypal.http.get(link).send().await.unwrap().text().await.unwrap();
    assert!(html.contains("5.00 USD"));
    assert!(html.contains("&lt;script&gt;4 checks"));

    let seller = [("action", "approve"), ("email", "merchant@example.com")];
    let (status, next, html) = press(&paypal, link, &seller).await;
    assert_eq!((status, next), (409, None));
    assert!(html.contains("account of the seller"));

    let (status, next, _) = press(&paypal, link, &[("action", "cancel")]).await;
    assert_eq!(status, 303);
    assert!(next.unwrap().starts_with("https://shop.example/cancel?o=1&token="));

    let someone = [("action", "approve"), ("email", "someone@example.com")];
    let (status, next, _) = press(&paypal, link, &someone).await;
    assert_eq!(status, 303);
    assert!(next.unwrap().contains("&PayerID="));
    let read = paypal.get(&format!("/v2/checkout/orders/{}", order.text("/id"))).await;
    assert_eq!(read.text("/status"), "APPROVED");
    assert_eq!(read.text("/payer/email_address"), "someone@example.com");

    let (status, _, html) = press(&paypal, link, &someone).await;
    assert_eq!(status, 409);
    assert!(html.contains("Already decided"));
}

#[tokio::test]
async fn a_person_can_save_their_wallet_and_take_it_back() {
    let paypal = Paypal::start().await;
    let setup = paypal.post("/v3/vault/setup-tokens", "s", &setup_body()).await;
    let id = setup.text("/id").to_owned();
    let body = json!({"payment_source": {"token": {"id": id, "type": "SETUP_TOKEN"}}});
    let early = paypal.post("/v3/vault/payment-tokens", "t0", &body).await;
    assert_eq!(early.status, 422);
    let link = setup.link("approve").unwrap();
    let (status, next, _) = press(&paypal, link, &[("action", "approve")]).await;
    assert_eq!(status, 303);
    let wanted = format!(
        "https://tab.example/vault/return?s=01J&approval_token_id={id}&approval_session_id={id}"
    );
    assert_eq!(next.as_deref(), Some(wanted.as_str()));
    let read = paypal.get(&format!("/v3/vault/setup-tokens/{id}")).await;
    assert_eq!(read.text("/status"), "APPROVED");

    let token = paypal.post("/v3/vault/payment-tokens", "t1", &body).await;
    assert_eq!(token.status, 201);
    let replay = paypal.post("/v3/vault/payment-tokens", "t1", &body).await;
    assert_eq!((replay.status, &replay.body), (200, &token.body));
    let used = paypal.post("/v3/vault/payment-tokens", "t2", &body).await;
    assert_eq!(used.status, 422);

    let path = format!("/v3/vault/payment-tokens/{}", token.text("/id"));
    let gone = crate::client::send(paypal.request(Method::DELETE, &path)).await.unwrap();
    assert_eq!(gone.status, 204);
    assert_eq!(paypal.get(&path).await.status, 404);
}

#[tokio::test]
async fn a_stale_link_leads_nowhere() {
    let paypal = Paypal::start().await;
    let page = paypal.url("/checkoutnow?token=0000");
    let response = paypal.http.get(page).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 404);
}
