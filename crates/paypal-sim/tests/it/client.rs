//! A small PayPal client for tests: it keeps a token and says what it got.

use paypal_sim::{Sim, SimConfig};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) body: Value,
    pub(crate) debug_id: Option<String>,
    pub(crate) retry_after: Option<String>,
}

impl Got {
    /// A text at a JSON pointer of the body.
    pub(crate) fn text(&self, pointer: &str) -> &str {
        self.body
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_else(|| panic!("no text at {pointer} in {}", self.body))
    }

    /// The first issue of an error.
    pub(crate) fn issue(&self) -> &str {
        self.text("/details/0/issue")
    }

    /// The href of a link.
    pub(crate) fn link(&self, rel: &str) -> Option<&str> {
        self.body["links"].as_array()?.iter().find(|link| link["rel"] == rel)?["href"].as_str()
    }
}

/// A simulator with a frozen clock and a client that is logged in.
pub(crate) struct Paypal {
    pub(crate) sim: Sim,
    pub(crate) http: reqwest::Client,
    pub(crate) token: String,
}

/// A fixed start, so that no test depends on today.
pub(crate) fn config() -> SimConfig {
    SimConfig {
        start: Some("2026-11-30T09:00:00Z".parse().unwrap()),
        frozen: true,
        ..SimConfig::default()
    }
}

impl Paypal {
    pub(crate) async fn start() -> Self {
        Self::with(config()).await
    }

    pub(crate) async fn with(config: SimConfig) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let sim = Sim::start(config).await.unwrap();
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(std::time::Duration::from_secs(20))
            .build()
            .unwrap();
        let mut paypal = Self { sim, http, token: String::new() };
        paypal.log_in().await;
        paypal
    }

    pub(crate) async fn log_in(&mut self) {
        let request = self
            .http
            .post(self.url("/v1/oauth2/token"))
            .basic_auth("sim", Some("sim"))
            .form(&[("grant_type", "client_credentials")]);
        let got = send(request).await.unwrap();
        assert_eq!(got.status, 200, "{}", got.body);
        self.token = got.text("/access_token").to_owned();
    }

    pub(crate) fn url(&self, path: &str) -> String {
        if path.starts_with("http") {
            return path.to_owned();
        }
        format!("{}{path}", self.sim.base_url())
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.url(path)).bearer_auth(&self.token)
    }

    pub(crate) async fn get(&self, path: &str) -> Got {
        send(self.request(Method::GET, path)).await.unwrap()
    }

    /// A POST with a key and a preference for the whole resource.
    pub(crate) async fn post(&self, path: &str, key: &str, body: &Value) -> Got {
        self.try_post(path, key, body).await.unwrap()
    }

    pub(crate) async fn try_post(
        &self,
        path: &str,
        key: &str,
        body: &Value,
    ) -> reqwest::Result<Got> {
        let request = self
            .request(Method::POST, path)
            .header("paypal-request-id", key)
            .header("prefer", "return=representation")
            .json(body);
        send(request).await
    }

    pub(crate) async fn control(&self, method: Method, path: &str, body: &Value) -> Got {
        send(self.http.request(method, self.url(path)).json(body)).await.unwrap()
    }

    /// Saves the buyer's wallet and returns its vault id and customer id.
    pub(crate) async fn vault(&self) -> (String, String) {
        let setup = self.post("/v3/vault/setup-tokens", "setup-1", &setup_body()).await;
        assert_eq!(setup.status, 201, "{}", setup.body);
        self.sim.approve(setup.text("/id"), None).unwrap();
        let body =
            json!({"payment_source": {"token": {"id": setup.text("/id"), "type": "SETUP_TOKEN"}}});
        let token = self.post("/v3/vault/payment-tokens", "token-1", &body).await;
        assert_eq!(token.status, 201, "{}", token.body);
        (token.text("/id").to_owned(), token.text("/customer/id").to_owned())
    }

    /// An order of this intent, approved.
    pub(crate) async fn approved_order(&self, intent: &str, value: &str, key: &str) -> String {
        let order = self.post("/v2/checkout/orders", key, &order_body(intent, value)).await;
        assert_eq!(order.status, 201, "{}", order.body);
        let id = order.text("/id").to_owned();
        self.sim.approve(&id, None).unwrap();
        id
    }

    /// A hold of this amount, and its order.
    pub(crate) async fn hold(&self, value: &str) -> (String, String) {
        let order = self.approved_order("AUTHORIZE", value, "hold-order").await;
        let got =
            self.post(&format!("/v2/checkout/orders/{order}/authorize"), "hold", &json!({})).await;
        assert_eq!(got.status, 201, "{}", got.body);
        let id = got.text("/purchase_units/0/payments/authorizations/0/id");
        (id.to_owned(), order)
    }
}

pub(crate) async fn send(request: RequestBuilder) -> reqwest::Result<Got> {
    let response = request.send().await?;
    let header =
        |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let (debug_id, retry_after) = (header("paypal-debug-id"), header("retry-after"));
    let status = response.status().as_u16();
    let text = response.text().await?;
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Ok(Got { status, body, debug_id, retry_after })
}

pub(crate) fn setup_body() -> Value {
    json!({"payment_source": {"paypal": {
        "description": "Earnest tab, settled when it closes",
        "usage_type": "MERCHANT",
        "usage_pattern": "UNSCHEDULED_POSTPAID",
        "customer_type": "CONSUMER",
        "permit_multiple_payment_tokens": false,
        "experience_context": {
            "brand_name": "Earnest",
            "shipping_preference": "NO_SHIPPING",
            "return_url": "https://tab.example/vault/return?s=01J",
            "cancel_url": "https://tab.example/vault/cancel?s=01J",
            "vault_instruction": "ON_CREATE_PAYMENT_TOKENS",
        },
    }}})
}

pub(crate) fn order_body(intent: &str, value: &str) -> Value {
    json!({
        "intent": intent,
        "purchase_units": [{
            "custom_id": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "invoice_id": format!("inv-{value}"),
            "amount": {"currency_code": "USD", "value": value},
        }],
        "payment_source": {"paypal": {"experience_context": {
            "user_action": "PAY_NOW",
            "shipping_preference": "NO_SHIPPING",
            "return_url": "https://shop.example/return?o=1",
            "cancel_url": "https://shop.example/cancel?o=1",
        }}},
    })
}

/// A charge of a saved wallet, as a tab's settlement sends it.
pub(crate) fn vaulted_body(vault_id: &str, value: &str, invoice: &str) -> Value {
    json!({
        "intent": "CAPTURE",
        "purchase_units": [{
            "custom_id": "tab_01J.7",
            "invoice_id": invoice,
            "amount": {"currency_code": "USD", "value": value},
        }],
        "payment_source": {"paypal": {
            "vault_id": vault_id,
            "stored_credential": {
                "payment_initiator": "MERCHANT",
                "usage_pattern": "UNSCHEDULED_POSTPAID",
                "usage": "SUBSEQUENT",
            },
        }},
    })
}
