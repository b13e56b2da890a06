//! PayPal's own documents judge what the simulator accepts and answers.
//!
//! They lie beside the repository, not in it; without them these tests say so and pass.

use paypal_sim::Favour;
use std::path::{Path, PathBuf};

use jsonschema::{Draft, Validator};
use serde_json::{Value, json};

use crate::client::{Paypal, config, order_body, setup_body, vaulted_body};

/// The folder with PayPal's OpenAPI documents.
fn documents() -> Option<PathBuf> {
    let named = std::env::var_os("EARNEST_SHARED").map(PathBuf::from);
    let beside = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("shared"))
        .find(|folder| folder.join("paypal-openapi").is_dir());
    let found = named.or(beside)?.join("paypal-openapi");
    found.is_dir().then_some(found)
}

struct Document(Value);

impl Document {
    /// Loads a document and applies the corrections its README lists.
    fn load(name: &str) -> Option<Self> {
        let Some(folder) = documents() else {
            eprintln!("skipped: PayPal's OpenAPI documents are not here");
            return None;
        };
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        let mut value: Value = serde_json::from_str(&text).unwrap();
        // The live API and the official SDKs use SETUP_TOKEN; the document only knows the older
        // kind.
        let kinds = "/components/schemas/token_id_request/properties/type";
        if let Some(kind) = value.pointer_mut(kinds) {
            let mut allowed = kind.clone();
            if let Some(list) = allowed.get_mut("enum").and_then(Value::as_array_mut) {
                list.push(json!("SETUP_TOKEN"));
            }
            *kind = allowed;
        }
        Some(Self(value))
    }

    fn validator(&self, schema: &Value) -> Validator {
        let mut root = schema.clone();
        root["components"] = self.0["components"].clone();
        jsonschema::options().with_draft(Draft::Draft4).build(&root).unwrap()
    }

    /// The schema of a request body, if the document describes one: not for void.
    fn request(&self, method: &str, path: &str) -> Option<Validator> {
        let body = &self.0["paths"][path][method]["requestBody"];
        let body = self.resolved(body);
        let schema = body["content"]["application/json"]["schema"].clone();
        schema.is_object().then(|| self.validator(&schema))
    }

    /// The schema of an answer, if the document has one for this status.
    fn answer(&self, method: &str, path: &str, status: u16) -> Option<Validator> {
        let answers = &self.0["paths"][path][method]["responses"];
        let answer = self.resolved(&answers[status.to_string()]);
        let schema = answer["content"]["application/json"]["schema"].clone();
        schema.is_object().then(|| self.validator(&schema))
    }

    fn resolved(&self, value: &Value) -> Value {
        match value["$ref"].as_str() {
            Some(reference) => {
                self.0.pointer(reference.trim_start_matches('#')).cloned().unwrap_or_default()
            }
            None => value.clone(),
        }
    }

    /// The document's own path for a real one.
    fn template(&self, path: &str) -> Option<String> {
        let parts: Vec<&str> = path.split('/').collect();
        let fits = |template: &str| {
            let wanted: Vec<&str> = template.split('/').collect();
            wanted.len() == parts.len()
                && wanted
                    .iter()
                    .zip(&parts)
                    .all(|(wanted, part)| wanted.starts_with('{') || wanted == part)
        };
        let all = self.0["paths"].as_object()?;
        // A literal path wins over one with a parameter.
        let mut found: Vec<&String> = all.keys().filter(|template| fits(template)).collect();
        found.sort_by_key(|template| template.matches('{').count());
        found.first().map(|template| (*template).clone())
    }
}

/// Issues that are newer than the documents, or that PayPal prints where the documents do not
/// list them.
const NEWER: &[&str] =
    &["REAUTHORIZATION_TOO_SOON", "TOKEN_ID_NOT_FOUND", "DECIMALS_NOT_SUPPORTED"];

fn complaints(validator: &Validator, value: &Value) -> Vec<String> {
    validator
        .iter_errors(value)
        .map(|error| format!("{} at {}", error, error.instance_path()))
        .collect()
}

/// Requests that PayPal's schema refuses; each must be refused here too, with a pointer to the
/// field.
fn bad_orders() -> Vec<(&'static str, Value, &'static str)> {
    let changed = |pointer: &str, value: Value| {
        let mut body = order_body("CAPTURE", "1.00");
        *body.pointer_mut(pointer).unwrap() = value;
        body
    };
    let with_item = |quantity: Value| {
        let mut body = order_body("CAPTURE", "1.00");
        body["purchase_units"][0]["items"] = json!([{
            "name": "x",
            "quantity": quantity,
            "unit_amount": {"currency_code": "USD", "value": "1.00"},
        }]);
        body
    };
    let value = "/purchase_units/0/amount/value";
    let custom = "/purchase_units/0/custom_id";
    vec![
        ("wrong intent", changed("/intent", json!("SALE")), "/intent"),
        ("numeric amount", changed(value, json!(1.0)), value),
        ("amount with a comma", changed(value, json!("1,00")), value),
        ("128 characters", changed(custom, json!("x".repeat(128))), custom),
        ("empty custom_id", changed(custom, json!("")), custom),
        ("no units", changed("/purchase_units", json!([])), "/purchase_units"),
        ("quantity 0", with_item(json!("0")), "/purchase_units/0/items/0/quantity"),
        ("numeric quantity", with_item(json!(1)), "/purchase_units/0/items/0/quantity"),
    ]
}

#[tokio::test]
async fn bad_orders_are_refused_by_both() {
    let Some(document) = Document::load("checkout_orders_v2.json") else {
        return;
    };
    let schema = document.request("post", "/v2/checkout/orders").unwrap();
    let paypal = Paypal::start().await;
    for (name, body, field) in bad_orders() {
        assert!(!schema.is_valid(&body), "{name}: PayPal's schema accepts it");
        let got = paypal.post("/v2/checkout/orders", name, &body).await;
        assert_eq!(got.status, 400, "{name}: {}", got.body);
        assert_eq!(got.text("/name"), "INVALID_REQUEST");
        assert_eq!(got.text("/details/0/field"), field, "{name}");
        let answer = document.answer("post", "/v2/checkout/orders", 400).unwrap();
        assert_eq!(complaints(&answer, &got.body), Vec::<String>::new(), "{name}");
    }
    let good = order_body("CAPTURE", "1.00");
    assert_eq!(complaints(&schema, &good), Vec::<String>::new());
    let got = paypal.post("/v2/checkout/orders", "good", &good).await;
    assert_eq!(got.status, 201);
}

#[tokio::test]
async fn a_wrong_answer_would_be_noticed() {
    let Some(document) = Document::load("checkout_orders_v2.json") else {
        return;
    };
    let schema = document.answer("get", "/v2/checkout/orders/{id}", 200).unwrap();
    let paypal = Paypal::start().await;
    let (_, order) = paypal.hold("6.00").await;
    let got = paypal.get(&format!("/v2/checkout/orders/{order}")).await;
    assert_eq!(complaints(&schema, &got.body), Vec::<String>::new());
    let hold = "/purchase_units/0/payments/authorizations/0";
    for (pointer, wrong) in [
        ("/status".to_owned(), json!("DONE")),
        (format!("{hold}/amount/value"), json!(6)),
        (format!("{hold}/expiration_time"), json!("tomorrow")),
        ("/payment_source/paypal/account_id".to_owned(), json!("short")),
    ] {
        let mut body = got.body.clone();
        *body.pointer_mut(&pointer).unwrap() = wrong;
        assert!(!schema.is_valid(&body), "{pointer} may be anything");
    }
}

/// Sends something to every operation, good and bad, then holds the journal against the
/// documents: every accepted request and every answer must fit.
#[tokio::test]
async fn every_exchange_fits_the_documents() {
    if documents().is_none() {
        eprintln!("skipped: PayPal's OpenAPI documents are not here");
        return;
    }
    let paypal = Paypal::with(paypal_sim::SimConfig {
        webhooks: vec!["http://127.0.0.1:9/nobody".to_owned()],
        ..config()
    })
    .await;
    tour(&paypal).await;
    let mut checked = 0;
    let mut wrong = Vec::new();
    for name in [
        "checkout_orders_v2.json",
        "payments_payment_v2.json",
        "vault_payment_tokens_v3.json",
        "reporting_transactions_v1.json",
        "notifications_webhooks_v1.json",
        "customer_disputes_v1.json",
    ] {
        let document = Document::load(name).unwrap();
        for entry in paypal.sim.journal() {
            let Some(template) = document.template(&entry.path) else {
                continue;
            };
            let method = entry.method.to_ascii_lowercase();
            let status = entry.status.unwrap();
            checked += 1;
            let about = format!("{} {} {status}", entry.method, entry.path);
            if let Some(schema) = document
                .request(&method, &template)
                .filter(|_| status < 300 && entry.body.is_object())
            {
                let found = complaints(&schema, &entry.body);
                wrong.extend(found.into_iter().map(|it| format!("{about} request: {it}")));
            }
            let issue = entry.answer["details"][0]["issue"].as_str();
            if entry.answer.is_null() || issue.is_some_and(|issue| NEWER.contains(&issue)) {
                continue;
            }
            match document.answer(&method, &template, status) {
                Some(schema) => {
                    let found = complaints(&schema, &entry.answer);
                    wrong.extend(found.into_iter().map(|it| format!("{about} answer: {it}")));
                }
                None if status == 404 || name.starts_with("reporting") => {}
                None => wrong.push(format!("{about}: no such answer in the document")),
            }
        }
    }
    assert!(checked > 40, "only {checked} exchanges were checked");
    assert_eq!(wrong, Vec::<String>::new());
}

async fn tour(paypal: &Paypal) {
    tour_of_orders(paypal).await;
    tour_of_holds(paypal).await;
    tour_of_refusals(paypal).await;
    let (vault_id, customer) = paypal.vault().await;
    let body = vaulted_body(&vault_id, "2.00", "v-1");
    paypal.post("/v2/checkout/orders", "v1", &body).await;
    paypal
        .get(&format!("/v3/vault/payment-tokens?customer_id={customer}&total_required=true"))
        .await;
    paypal.get(&format!("/v3/vault/payment-tokens/{vault_id}")).await;
    let setup = paypal.post("/v3/vault/setup-tokens", "setup-2", &setup_body()).await;
    paypal.get(&format!("/v3/vault/setup-tokens/{}", setup.text("/id"))).await;
    let unapproved =
        json!({"payment_source": {"token": {"id": setup.text("/id"), "type": "SETUP_TOKEN"}}});
    paypal.post("/v3/vault/payment-tokens", "token-2", &unapproved).await;
    paypal.sim.advance(4 * 3_600);
    for query in [
        "start_date=2026-11-30T08:00:00Z&end_date=2026-12-01T00:00:00Z&fields=all&balance_affecting_records_only=N",
        "start_date=2026-11-29T08:00:00Z&end_date=2026-11-29T09:00:00Z",
    ] {
        let got = paypal.get(&format!("/v1/reporting/transactions?{query}")).await;
        assert_eq!(got.status, 200, "{}", got.body);
    }
    paypal.get("/v1/reporting/balances").await;
    tour_of_disputes(paypal).await;
    let hook = json!({"url": "https://example.com/hook", "event_types": [{"name": "*"}]});
    let hook = paypal.post("/v1/notifications/webhooks", "", &hook).await;
    let path = format!("/v1/notifications/webhooks/{}", hook.text("/id"));
    paypal.get("/v1/notifications/webhooks").await;
    paypal.get(&path).await;
    paypal.get(&format!("{path}/event-types")).await;
    paypal.get("/v1/notifications/webhooks-event-types").await;
    let events = paypal.get("/v1/notifications/webhooks-events").await;
    let event = events.text("/events/0/id");
    let path = format!("/v1/notifications/webhooks-events/{event}");
    paypal.get(&path).await;
    paypal.post(&format!("{path}/resend"), "", &json!({})).await;
}

async fn tour_of_disputes(paypal: &Paypal) {
    let id = paypal.approved_order("CAPTURE", "5.01", "d1").await;
    let path = format!("/v2/checkout/orders/{id}/capture");
    let got = paypal.post(&path, "d2", &json!({})).await;
    let capture = got.text("/purchase_units/0/payments/captures/0/id").to_owned();
    let of = format!("/v1/customer/disputes?disputed_transaction_id={capture}");
    assert!(paypal.get(&of).await.body["items"].is_null());
    for (minor, favour) in [(200, Favour::Seller), (300, Favour::Buyer)] {
        let dispute = paypal.sim.dispute(&capture, Some(minor), true).unwrap();
        let path = format!("/v1/customer/disputes/{dispute}");
        assert_eq!(paypal.get(&path).await.text("/status"), "WAITING_FOR_SELLER_RESPONSE");
        let items = paypal.get(&of).await.body["items"].clone();
        assert!(items.as_array().unwrap().iter().any(|item| item["dispute_id"] == dispute));
        assert!(paypal.sim.touch_dispute(&dispute));
        assert!(paypal.sim.resolve(&dispute, favour));
        assert!(!paypal.sim.resolve(&dispute, favour) && !paypal.sim.touch_dispute(&dispute));
        assert_eq!(paypal.get(&path).await.text("/status"), "RESOLVED");
    }
    // All but what went to the buyer came back.
    let rows = paypal.sim.books().rows;
    let codes = ["T1110", "T1111", "T1110", "T1111", "T1106"];
    let of = rows.iter().filter(|row| row.reference_id.as_deref() == Some(&capture));
    assert_eq!(of.map(|row| row.event_code).collect::<Vec<_>>(), codes);
    assert_eq!(paypal.get("/v1/customer/disputes/PP-D-0-0").await.status, 404);
}

async fn tour_of_orders(paypal: &Paypal) {
    let orders = "/v2/checkout/orders";
    let id = paypal.approved_order("CAPTURE", "5.00", "t1").await;
    paypal.get(&format!("{orders}/{id}")).await;
    let capture = format!("{orders}/{id}/capture");
    let got = paypal.post(&capture, "t2", &json!({})).await;
    assert_eq!(got.status, 201, "{}", got.body);
    let capture_id = got.text("/purchase_units/0/payments/captures/0/id").to_owned();
    let path = format!("/v2/payments/captures/{capture_id}");
    paypal.get(&path).await;
    let part = json!({"amount": {"currency_code": "USD", "value": "1.50"}, "custom_id": "appeal-77", "invoice_id": "r1", "note_to_payer": "Appeal upheld"});
    let refund = paypal.post(&format!("{path}/refund"), "t3", &part).await;
    paypal.get(&format!("/v2/payments/refunds/{}", refund.text("/id"))).await;
    paypal.get(&path).await;
    paypal.get(&format!("{orders}/{id}")).await;
    let track = json!({"capture_id": capture_id, "tracking_number": "1Z", "carrier": "UPS"});
    paypal.post(&format!("{orders}/{id}/track"), "t4", &track).await;
    paypal.post(&capture, "t5", &json!({})).await;
}

async fn tour_of_holds(paypal: &Paypal) {
    let (hold, order) = paypal.hold("6.00").await;
    let path = format!("/v2/payments/authorizations/{hold}");
    paypal.get(&path).await;
    paypal.post(&format!("{path}/reauthorize"), "h1", &json!({})).await;
    let body =
        json!({"amount": {"currency_code": "USD", "value": "4.50"}, "note_to_payer": "3 of 4"});
    let got = paypal.post(&format!("{path}/capture"), "h2", &body).await;
    assert_eq!(got.status, 201, "{}", got.body);
    let too_much = json!({"amount": {"currency_code": "USD", "value": "400.50"}});
    paypal.post(&format!("{path}/capture"), "h3", &too_much).await;
    let got = paypal.post(&format!("{path}/void"), "h4", &json!({})).await;
    assert_eq!(got.status, 200, "{}", got.body);
    paypal.post(&format!("{path}/void"), "h5", &json!({})).await;
    paypal.post(&format!("{path}/capture"), "h6", &json!({})).await;
    paypal.get(&format!("/v2/checkout/orders/{order}")).await;
}

async fn tour_of_refusals(paypal: &Paypal) {
    let orders = "/v2/checkout/orders";
    for (key, source) in [
        ("s1", json!({"card": {"number": "4111111111111111", "expiry": "2030-01"}})),
        ("s2", json!({"token": {"id": "B-1", "type": "BILLING_AGREEMENT"}})),
        ("s3", json!({"venmo": {}})),
        ("s4", json!({"paypal": {}, "venmo": {}})),
        ("s5", json!({"paypal": {"vault_id": "unknown1"}})),
    ] {
        let mut body = order_body("CAPTURE", "3.00");
        body["payment_source"] = source;
        let got = paypal.post(orders, key, &body).await;
        assert_eq!(got.status, 422, "{}", got.body);
    }
    let mut euros = order_body("CAPTURE", "3.00");
    euros["purchase_units"][0]["amount"] = json!({"currency_code": "JPY", "value": "3.50"});
    paypal.post(orders, "s6", &euros).await;
    let open = paypal.post(orders, "s7", &order_body("CAPTURE", "3.00")).await;
    let path = format!("{orders}/{}", open.text("/id"));
    let source = json!({"payment_source": {"paypal": {}}});
    let confirm = format!("{path}/confirm-payment-source");
    let got = paypal.post(&confirm, "", &source).await;
    assert_eq!(got.status, 200, "{}", got.body);
    paypal.post(&confirm, "", &json!({"payment_source": {}})).await;
    for patch in [
        json!([{"op": "replace", "path": "/purchase_units/@reference_id=='default'/payee", "value": 1}]),
        json!([{"op": "replace", "path": "/status", "value": 1}]),
        json!([{"op": "replace", "value": 1}]),
        json!([{"op": "become", "path": "/intent", "value": "CAPTURE"}]),
        json!([{"op": "add", "path": "/purchase_units/@reference_id=='other'/invoice_id", "value": "x"}]),
    ] {
        let request = paypal.request(reqwest::Method::PATCH, &path).json(&patch);
        let got = crate::client::send(request).await.unwrap();
        assert!(got.status >= 400, "{patch}");
    }
    let mut wrong_sum = order_body("CAPTURE", "7.00");
    wrong_sum["purchase_units"][0]["amount"]["breakdown"] =
        json!({"item_total": {"currency_code": "USD", "value": "6.00"}});
    paypal.post(orders, "r1", &wrong_sum).await;
    let mut odd_currency = order_body("CAPTURE", "7.00");
    odd_currency["purchase_units"][0]["amount"]["currency_code"] = json!("XYZ");
    paypal.post(orders, "r2", &odd_currency).await;
    let waiting = paypal.post(orders, "r3", &order_body("CAPTURE", "8.00")).await;
    let path = format!("{orders}/{}", waiting.text("/id"));
    paypal.post(&format!("{path}/capture"), "r4", &json!({})).await;
    paypal.get("/v2/checkout/orders/0000").await;
    paypal.get("/v2/payments/captures/0000").await;
    paypal.get("/v2/payments/authorizations/0000").await;
    paypal.get("/v2/payments/refunds/0000").await;
    let issues = [
        "INSTRUMENT_DECLINED",
        "PAYER_ACCOUNT_RESTRICTED",
        "TRANSACTION_REFUSED",
        "PAYEE_ACCOUNT_RESTRICTED",
        "COMPLIANCE_VIOLATION",
    ];
    for issue in issues {
        let effect = paypal_sim::Effect::Issue { issue: issue.to_owned() };
        paypal.sim.add_fault(paypal_sim::Fault::on("orders.create", effect)).unwrap();
        let got = paypal.post(orders, issue, &order_body("CAPTURE", "9.00")).await;
        assert_eq!(got.issue(), issue);
    }
}
