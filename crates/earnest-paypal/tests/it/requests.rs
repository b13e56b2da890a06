//! Our requests against PayPal's own OpenAPI files, and what the builders refuse.

use std::path::PathBuf;

use earnest_core::money::{AmountError, Currency, Micros};
use earnest_paypal::money::{MoneyError, to_value};
use earnest_paypal::orders::{self, CheckoutIntent, NewOrder, VaultedCharge};
use earnest_paypal::payments::{self, NewCapture, NewRefund};
use earnest_paypal::reporting::{self, Window};
use earnest_paypal::vault::{self, NewSetupToken};
use earnest_paypal::{BuildError, Request, webhooks};
use jsonschema::{Draft, Validator};
use serde_json::{Value, json};

use crate::send::charge;

/// The folder of shared inputs: a sibling of the checkout, or where `EARNEST_SHARED` says.
pub fn shared() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("EARNEST_SHARED") {
        return Some(PathBuf::from(path));
    }
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().map(|up| up.join("shared")).find(|path| path.join("paypal-openapi").is_dir())
}

/// One of PayPal's documents, with the defects that its README names corrected in memory.
fn document(name: &str) -> Option<Value> {
    let Some(shared) = shared() else {
        println!("skipped: no ../shared with PayPal's OpenAPI files");
        return None;
    };
    let text = std::fs::read_to_string(shared.join("paypal-openapi").join(name)).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    if name == "vault_payment_tokens_v3.json" {
        let kinds = "/components/schemas/token_id_request/properties/type/enum";
        let kinds = document.pointer_mut(kinds).unwrap().as_array_mut().unwrap();
        kinds.push(json!("SETUP_TOKEN"));
    }
    Some(document)
}

fn validator(document: &Value, schema: &str) -> Validator {
    let root = json!({
        "$ref": format!("#/components/schemas/{schema}"),
        "components": document["components"],
    });
    // OpenAPI 3.0 reads schemas as draft 4 did, in what these files use.
    jsonschema::options().with_draft(Draft::Draft4).build(&root).unwrap()
}

fn body(request: &Request) -> Value {
    serde_json::from_slice(request.body()).unwrap()
}

#[track_caller]
fn accepts(validator: &Validator, body: &Value) {
    let errors: Vec<_> =
        validator.iter_errors(body).map(|e| format!("{}: {e}", e.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}\n{body:#}");
}

/// Sets `path` in a good body to `value`: the result must be refused, or the check is worth nothing.
#[track_caller]
fn refuses(validator: &Validator, good: &Value, path: &str, value: Value) {
    let mut bad = good.clone();
    *bad.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = value;
    assert!(!validator.is_valid(&bad), "{path} passed: {bad:#}");
}

fn new_order() -> NewOrder<'static> {
    NewOrder {
        intent: CheckoutIntent::Capture,
        amount: Micros::constant(6_000_000),
        currency: Currency::Usd,
        invoice_id: "e1:top_1:1",
        custom_id: "top_1",
        description: "Prepaid credit",
        brand: "Earnest",
        return_url: "https://shop.example/paypal/return?o=01J9Z",
        cancel_url: "https://shop.example/paypal/cancel?o=01J9Z",
    }
}

#[test]
fn orders_match_paypals_schema() {
    let Some(document) = document("checkout_orders_v2.json") else { return };
    let schema = validator(&document, "order_request");
    let charge = body(&charge());
    accepts(&schema, &charge);
    let amount = &charge["purchase_units"][0]["amount"];
    assert_eq!(amount, &json!({"currency_code": "USD", "value": "0.95"}));
    for intent in [CheckoutIntent::Capture, CheckoutIntent::Authorize] {
        let order = NewOrder { intent, ..new_order() };
        accepts(&schema, &body(&orders::create(&order, "e1:top_1:1").unwrap()));
    }
    refuses(&schema, &charge, "/intent", json!("TAKE"));
    refuses(&schema, &charge, "/purchase_units", json!([]));
    refuses(&schema, &charge, "/purchase_units/0/amount/value", json!(0.95));
    refuses(&schema, &charge, "/purchase_units/0/amount/value", json!("0,95"));
    refuses(&schema, &charge, "/purchase_units/0/amount/currency_code", json!("DOLLAR"));
    refuses(&schema, &charge, "/purchase_units/0/custom_id", json!("x".repeat(128)));
    refuses(&schema, &charge, "/purchase_units/0/invoice_id", json!("x".repeat(128)));
    refuses(&schema, &charge, "/payment_source/paypal/vault_id", json!("a/b"));
}

#[test]
fn payments_match_paypals_schema() {
    let Some(document) = document("payments_payment_v2.json") else { return };
    let capture = NewCapture {
        authorization_id: "0AW2184448108334S",
        amount: Micros::constant(4_500_000),
        currency: Currency::Usd,
        invoice_id: "e1:ord_1:2",
        final_capture: true,
        note: "3 of 4 results passed; the rest of the hold is released.",
    };
    let schema = validator(&document, "capture_request");
    let good = body(&payments::capture(&capture, "e1:ord_1:2").unwrap());
    accepts(&schema, &good);
    refuses(&schema, &good, "/final_capture", json!("true"));
    refuses(&schema, &good, "/note_to_payer", json!("x".repeat(256)));

    let refund = NewRefund {
        capture_id: "3C679366HH908993F",
        amount: Micros::constant(1_500_000),
        currency: Currency::Usd,
        invoice_id: "e1:ord_1:3",
        custom_id: Some("contest-77"),
        note: &"é".repeat(300),
    };
    let schema = validator(&document, "refund_request");
    let good = body(&payments::refund(&refund, "e1:ord_1:3").unwrap());
    accepts(&schema, &good);
    refuses(&schema, &good, "/amount/value", json!(1.5));
    refuses(&schema, &good, "/invoice_id", json!(""));

    let schema = validator(&document, "reauthorize_request");
    let renewed = payments::reauthorize(
        "0AW2184448108334S",
        Micros::constant(6_000_000),
        Currency::Usd,
        "e1:ord_1:4",
    );
    let good = body(&renewed.unwrap());
    accepts(&schema, &good);
    refuses(&schema, &good, "/amount", json!("6.00"));

    let void = payments::void("0AW2184448108334S", "e1:ord_1:5").unwrap();
    assert_eq!(void.path(), "/v2/payments/authorizations/0AW2184448108334S/void");
    assert!(void.body().is_empty());
}

fn setup_token() -> NewSetupToken<'static> {
    NewSetupToken {
        description: "Earnest tab — settled when it closes",
        brand: "Earnest",
        return_url: "https://tab.example/vault/return?s=01J",
        cancel_url: "https://tab.example/vault/cancel?s=01J",
    }
}

#[test]
fn vault_matches_paypals_schema() {
    let Some(document) = document("vault_payment_tokens_v3.json") else { return };
    let schema = validator(&document, "setup_token_request");
    let good = body(&vault::create_setup_token(&setup_token(), "e1:vlt_1:1").unwrap());
    accepts(&schema, &good);
    let wallet = "/payment_source/paypal";
    assert_eq!(
        good.pointer(&format!("{wallet}/description")).unwrap(),
        "Earnest tab   settled when it closes"
    );
    refuses(&schema, &good, &format!("{wallet}/description"), json!("tab — settled"));
    refuses(&schema, &good, &format!("{wallet}/usage_type"), json!(1));
    refuses(&schema, &good, &format!("{wallet}/experience_context/return_url"), json!("no url"));

    let schema = validator(&document, "payment_token_request");
    let good = body(&vault::create_payment_token("5C991763VB2781612", "e1:vlt_1:2").unwrap());
    accepts(&schema, &good);
    refuses(&schema, &good, "/payment_source/token/type", json!("SETUP"));
}

#[test]
fn webhooks_match_paypals_schema() {
    let Some(document) = document("notifications_webhooks_v1.json") else { return };
    let schema = validator(&document, "webhook");
    let good = body(&webhooks::create("https://earnest.example/webhooks/paypal").unwrap());
    accepts(&schema, &good);
    refuses(&schema, &good, "/event_types", json!("*"));
    refuses(&schema, &good, "/url", json!(7));
}

/// Every query of a request against the parameter's own schema.
fn check_query(document: &Value, path: &str, request: &Request) {
    let operation = &document["paths"][path]["get"];
    let parameters: Vec<&Value> = operation["parameters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|parameter| match parameter["$ref"].as_str() {
            Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
            None => parameter,
        })
        .collect();
    let url = url::Url::parse("https://x").unwrap().join(request.path()).unwrap();
    assert_eq!(url.path(), path);
    let given: Vec<(String, String)> =
        url.query_pairs().map(|(name, value)| (name.into(), value.into())).collect();
    for (name, text) in &given {
        let parameter = parameters.iter().find(|p| p["name"] == name.as_str());
        let parameter = parameter.unwrap_or_else(|| panic!("no parameter {name}"));
        let root = json!({
            "allOf": [parameter["schema"]],
            "components": document["components"],
        });
        let schema = jsonschema::options().with_draft(Draft::Draft4).build(&root).unwrap();
        let value = text.parse::<i64>().map_or_else(|_| json!(text), |number| json!(number));
        accepts(&schema, &value);
    }
    for parameter in parameters.iter().filter(|parameter| parameter["required"] == true) {
        let needed = parameter["name"].as_str().unwrap();
        assert!(given.iter().any(|(name, _)| name == needed), "{needed} is missing");
    }
}

#[test]
fn searches_use_parameters_that_paypal_has() {
    let Some(document) = document("reporting_transactions_v1.json") else { return };
    let at = |text: &str| text.parse().unwrap();
    let window = Window { from: at("2026-11-30T08:00:00Z"), to: at("2026-11-30T11:00:01Z") };
    let search = reporting::search_transactions(window, 2, reporting::PAGE_SIZE).unwrap();
    check_query(&document, "/v1/reporting/transactions", &search);
    for part in [
        "start_date=2026-11-30T08%3A00%3A00Z",
        "end_date=2026-11-30T11%3A00%3A01Z",
        "fields=transaction_info",
        "balance_affecting_records_only=N",
        "page=2",
    ] {
        assert!(search.path().contains(part), "{part} in {}", search.path());
    }
    let long = Window { from: at("2026-10-01T00:00:00Z"), to: at("2026-11-30T00:00:00Z") };
    assert_eq!(reporting::search_transactions(long, 1, 500), Err(BuildError::Window));
}

#[test]
fn mon_21_a_yen_amount_is_refused_before_any_call_and_never_multiplied() {
    // The books know USD; a price in another currency cannot become an argument of a request.
    assert_eq!(Currency::parse("JPY"), Err(AmountError::Currency));
    assert_eq!(AmountError::Currency.code().as_str(), "currency_unsupported");
    // And the table that writes amounts has no cents for yen.
    let yen = Micros::constant(500_000_000);
    assert_eq!(to_value(yen, "JPY").as_deref(), Ok("500"));
    assert_eq!(to_value(Micros::constant(500_010_000), "JPY"), Err(MoneyError::TooFine));
}

#[test]
fn builders_refuse_what_paypal_would() {
    let refuse = |charge: VaultedCharge<'_>| orders::charge_vaulted(&charge, "k").unwrap_err();
    let good = VaultedCharge {
        vault_id: "8kk8451t",
        amount: Micros::constant(950_000),
        currency: Currency::Usd,
        invoice_id: "i",
        custom_id: "c",
        description: "d",
        payee: None,
    };
    assert!(orders::charge_vaulted(&good, "k").is_ok());
    let half_cent = VaultedCharge { amount: Micros::constant(955_000), ..good.clone() };
    assert_eq!(refuse(half_cent), BuildError::Money(MoneyError::TooFine));
    let nothing = VaultedCharge { amount: Micros::ZERO, ..good.clone() };
    assert_eq!(refuse(nothing), BuildError::Money(MoneyError::NotPositive));
    let text = |field| BuildError::Text { field };
    let long = "x".repeat(128);
    assert_eq!(refuse(VaultedCharge { invoice_id: &long, ..good.clone() }), text("invoice_id"));
    assert_eq!(refuse(VaultedCharge { invoice_id: "", ..good.clone() }), text("invoice_id"));
    assert_eq!(refuse(VaultedCharge { custom_id: "sha256:x", ..good.clone() }), text("custom_id"));
    assert_eq!(refuse(VaultedCharge { vault_id: "a b", ..good.clone() }), text("vault_id"));
    for key in ["", "a b", "é", &"k".repeat(101)] {
        assert_eq!(orders::charge_vaulted(&good, key), Err(text("PayPal-Request-Id")), "{key}");
    }
    assert!(orders::get("../oauth2/token").is_err());
}

#[test]
fn bodies_are_canonical() {
    let text = String::from_utf8(charge().body().to_vec()).unwrap();
    assert!(
        text.starts_with(r#"{"intent":"CAPTURE","payment_source":{"paypal":{"stored_credential":"#)
    );
    assert!(!text.contains(": ") && !text.contains('\n'));
    let again = serde_json_canonicalizer::to_string(&body(&charge())).unwrap();
    assert_eq!(text, again);
    assert_eq!(hex::encode(charge().body_sha256()).len(), 64);
    assert_eq!(charge().body_sha256(), charge().body_sha256());
}
