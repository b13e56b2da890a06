//! What of a request or an answer of PayPal's may be kept and shown: amounts, ids, states, issues;
//! not who a payer is, nor what would let somebody charge one. The one place that decides it.

use earnest_paypal::{Operation, Request};
use serde_json::{Map, Value, json};

/// What stands where something was taken out.
pub const REDACTED: &str = "[redacted]";

/// The names of members that say who a payer is, or would let somebody charge one.
const PRIVATE: [&str; 31] = [
    "access_token",
    "account_id",
    "account_number",
    "address",
    "bank",
    "billing_address",
    "birth_date",
    "buyer",
    "card",
    "customer",
    "customer_id",
    "email",
    "email_address",
    "full_name",
    "given_name",
    "id_token",
    "national_number",
    "payer",
    "payer_email",
    "payer_id",
    "payer_info",
    "payer_name",
    "phone",
    "phone_number",
    "shipping",
    "shipping_info",
    "surname",
    "tax_info",
    "token",
    "vault",
    "vault_id",
];

/// A body without what is private; text that is no JSON is left out.
pub fn body(operation: Operation, text: &str) -> Value {
    match serde_json::from_str::<Value>(text) {
        Ok(mut value) => {
            redact(operation, &mut value);
            value
        }
        Err(_) if text.is_empty() => Value::Null,
        Err(_) => json!({ "unreadable_bytes": text.len() }),
    }
}

/// Takes out what is private. What was redacted before stays as it is.
pub fn redact(operation: Operation, value: &mut Value) {
    match value {
        Value::Object(members) => {
            let about_field = members.contains_key("field") || members.contains_key("issue");
            for (name, member) in members.iter_mut() {
                if is_private(operation, name, member, about_field) {
                    *member = REDACTED.into();
                } else {
                    redact(operation, member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact(operation, item)),
        _ => {}
    }
}

fn is_private(operation: Operation, name: &str, member: &Value, about_field: bool) -> bool {
    match name {
        // The name of an error (`UNPROCESSABLE_ENTITY`) is no payer's name.
        "name" => !member.as_str().is_some_and(is_error_name),
        // What a refused field held: any of the above.
        "value" => about_field,
        // There, the thing itself is what a payer is charged with.
        "id" | "links" => of_vault(operation),
        _ => PRIVATE.contains(&name),
    }
}

fn is_error_name(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// Whether an operation's resource is a setup token or a payment token.
fn of_vault(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::SetupTokenCreate
            | Operation::SetupTokenGet
            | Operation::PaymentTokenCreate
            | Operation::PaymentTokenGet
            | Operation::PaymentTokenDelete
    )
}

/// A request as it may be shown.
pub fn request(request: &Request) -> Value {
    let operation = request.operation();
    let path = match request.path().rsplit_once('/') {
        // `/v3/vault/payment-tokens/{id}`
        Some((place, _)) if of_vault(operation) && place.matches('/').count() > 2 => {
            format!("{place}/{REDACTED}")
        }
        _ => request.path().to_owned(),
    };
    let mut shown = Map::new();
    shown.insert("operation".to_owned(), operation.as_str().into());
    shown.insert("path".to_owned(), path.into());
    let text = String::from_utf8_lossy(request.body());
    shown.insert("body".to_owned(), body(operation, &text));
    Value::Object(shown)
}

/// The operation of that name.
pub fn operation_of(name: &str) -> Option<Operation> {
    Operation::ALL.iter().copied().find(|operation| operation.as_str() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use earnest_paypal::vault;

    /// An answer with everything that PayPal may say of a payer, each value marked.
    fn answer() -> Value {
        let mut answer = json!({
            "id": "5O190127TN364715T", "status": "COMPLETED", "name": "UNPROCESSABLE_ENTITY",
            "debug_id": "f1", "purchase_units": [{
                "invoice_id": "earn-1", "custom_id": "set_1",
                "amount": { "currency_code": "USD", "value": "1.00" },
                "payee": { "merchant_id": "M1", "email_address": "private" },
                "shipping": { "name": "private", "address": { "postal_code": "private" } },
            }],
            "payment_source": { "paypal": {
                "name": { "given_name": "private", "surname": "private" },
                "email_address": "private", "account_id": "private",
                "attributes": { "vault": { "id": "private", "customer": { "id": "private" } } },
                "vault_id": "private", "billing_address": { "address_line_1": "private" },
                "phone_number": { "national_number": "private" },
            }, "token": { "id": "private", "type": "SETUP_TOKEN" },
               "card": { "last_digits": "private", "name": "private" } },
            "details": [{ "field": "/payment_source/paypal/vault_id", "value": "private",
                "issue": "INVALID" }],
            "payer": { "name": { "full_name": "private" } },
        });
        for name in PRIVATE {
            answer["more"][name] = json!({ "inner": ["private"] });
        }
        answer["more"]["name"] = json!("Private private");
        answer
    }

    #[test]
    fn who_pays_and_with_what_is_hidden_and_the_rest_is_not() {
        let shown = body(Operation::OrderGet, &answer().to_string());
        let text = shown.to_string();
        assert!(!text.contains("private") && !text.contains("Private"), "{text}");
        let kept = [
            "5O190127TN364715T",
            "COMPLETED",
            "UNPROCESSABLE_ENTITY",
            "earn-1",
            "set_1",
            "\"1.00\"",
            "M1",
            "/payment_source/paypal/vault_id",
            "INVALID",
            "f1",
        ];
        for kept in kept {
            assert!(text.contains(kept), "{kept} is gone: {text}");
        }
        // Twice is no more than once.
        assert_eq!(body(Operation::OrderGet, &text), shown);
    }

    #[test]
    fn a_token_is_hidden_where_it_is_the_thing_itself() {
        let answer = json!({ "id": "private", "customer": { "id": "private" },
            "status": "VAULTED", "links": [{ "href": "https://x.example/private" }] });
        for operation in Operation::ALL.iter().copied().filter(|one| of_vault(*one)) {
            let shown = body(operation, &answer.to_string());
            assert!(!shown.to_string().contains("private"), "{operation}: {shown}");
            assert_eq!(shown["status"], "VAULTED");
        }
        for sent in [
            vault::create_payment_token("private-1", "k"),
            vault::get_payment_token("private-1"),
            vault::get_setup_token("private-1"),
            vault::delete_payment_token("private-1"),
        ] {
            let shown = request(&sent.unwrap());
            assert!(!shown.to_string().contains("private-1"), "{shown}");
            assert!(shown["path"].as_str().unwrap().starts_with("/v3/vault/"));
        }
    }

    #[test]
    fn what_is_no_json_is_left_out() {
        assert_eq!(body(Operation::OrderGet, ""), Value::Null);
        assert_eq!(body(Operation::OrderGet, "<html>"), json!({ "unreadable_bytes": 6 }));
    }
}
