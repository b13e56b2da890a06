//! Amounts at the door: what is not exactly an amount of ours is refused before anything happens.

use reqwest::Method;
use serde_json::{Value, json};

use super::finish;
use crate::world::World;

/// Asks with this as the price of the quote, then with this as the most the caller would pay.
async fn refused(world: &World, amount: &Value) -> Vec<String> {
    let mut codes = Vec::new();
    for (field, name) in [("amount_micros", "as-a-price"), ("max_micros", "as-a-ceiling")] {
        let mut quote = world.quote("/weather", 20_000);
        quote.as_object_mut().unwrap().remove("amount_micros");
        quote[field] = amount.clone();
        let body = json!({ "quote": quote, "max_price": "$100.00", "request_id": name });
        codes.push(code(world.post("agent", "/v1/authorize", body).await));
    }
    let quote = world.quote("/weather", 20_000);
    let body = json!({ "quote": quote, "max_price": amount, "request_id": "as-a-maximum" });
    codes.push(code(world.post("agent", "/v1/authorize", body).await));
    let limits = json!({ "per_call_cap_micros": amount });
    let headers = [("if-match", "\"1\"")];
    let path = "/v1/policies/owner";
    codes.push(code(world.call_with("owner", Method::PUT, path, Some(limits), &headers).await));
    codes
}

fn code(answer: crate::world::Answer) -> String {
    format!("{} {}", answer.status.as_u16(), answer.code())
}

#[tokio::test]
async fn mon_02_an_exponent_is_no_amount() {
    let world = World::ready().await;
    world.mail().await;
    let before = world.reader().head().unwrap().seq;
    for text in ["0E+1", "5e-7", "1e999", "5.0e3", "$1e2", "1E2", "0x10", "1_000", "1,00", "١"] {
        let codes = refused(&world, &json!(text)).await;
        assert_eq!(codes, ["400 amount_invalid"; 4], "{text}");
    }
    // A JSON number with an exponent or a point is no integer of micro-units either.
    for number in ["5e3", "5.0e3", "1E400", "0.5", "5000.0"] {
        let quote = world.quote("/weather", 20_000).to_string();
        let quote =
            quote.replace("\"amount_micros\":20000", &format!("\"amount_micros\":{number}"));
        let body = format!(r#"{{"quote":{quote},"max_price":"$1.00","request_id":"n"}}"#);
        let url = format!("{}/v1/authorize", world.earnest.url());
        let request = world.http.post(url).bearer_auth(world.key("agent"));
        let request = request.header("content-type", "application/json").body(body);
        let answer = crate::world::answer(request).await;
        assert_eq!(answer.status.as_u16(), 400, "{number}: {}", answer.body);
        let told = ["amount_invalid", "amount_out_of_range", "request_malformed"];
        assert!(told.contains(&answer.code()), "{number}: {}", answer.body);
    }
    assert_eq!(world.reader().head().unwrap().seq, before, "nothing was recorded");
    for text in ["0E+1", "5e-7", "1e999", "5.0e3"] {
        refused_by_the_program(text, "amount_invalid").await;
    }
    finish(&world).await;
}

/// The command line says the same, and does not end as if all were well.
async fn refused_by_the_program(amount: &str, code: &str) {
    let commands: [&[&str]; 2] = [
        &["pay", "http://127.0.0.1:9/x", "--request-id", "x", "--max-price", amount],
        &["policy", "set", "--per-call", amount],
    ];
    for args in commands {
        let (status, said, told) = crate::process::run(args).await;
        assert!(status.is_some_and(|status| status != 0), "{args:?}: {status:?}");
        assert_eq!(said, "", "{args:?}");
        let problem: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(problem["code"], code, "{args:?}: {told}");
    }
}

#[tokio::test]
async fn mon_19_an_integer_past_2_to_the_53_is_refused_and_never_rounded() {
    let world = World::ready().await;
    world.mail().await;
    let before = world.reader().head().unwrap().seq;
    for amount in [9_007_199_254_740_993_u64, 1 << 60, u64::MAX] {
        let codes = refused(&world, &json!(amount)).await;
        assert_eq!(codes, ["400 amount_out_of_range"; 4], "{amount}");
    }
    let mut quote = world.quote("/weather", 20_000);
    quote["amount_micros"] = json!(9_007_199_254_740_993_u64);
    let body = json!({ "quote": quote, "max_price": "$1.00", "request_id": "big" });
    let answer = world.post("agent", "/v1/authorize", body).await;
    assert!(!answer.body.to_string().contains("9007199254740992"), "{}", answer.body);
    refused_by_the_program("9007199254740993", "amount_out_of_range").await;
    assert_eq!(world.reader().head().unwrap().seq, before, "nothing was recorded");
    finish(&world).await;
}

#[tokio::test]
async fn mon_21_a_yen_price_is_refused_before_any_call() {
    let world = World::ready().await;
    world.mail().await;
    let (before, calls) = (world.reader().head().unwrap().seq, world.sim().journal().len());
    for (currency, amount) in [("JPY", json!("500")), ("EUR", json!(20_000)), ("HUF", json!(1))] {
        let mut quote = world.quote("/weather", 20_000);
        (quote["currency"], quote["amount_micros"]) = (json!(currency), amount);
        let body = json!({ "quote": quote, "max_price": "$900.00", "request_id": currency });
        let answer = world.post("agent", "/v1/authorize", body).await;
        assert_eq!(code(answer), "400 currency_unsupported", "{currency}");
    }
    // Not a currency at all, and ours in another spelling.
    for currency in ["usd", "US$", "", "USDUSD"] {
        let mut quote = world.quote("/weather", 20_000);
        quote["currency"] = json!(currency);
        let body = json!({ "quote": quote, "max_price": "$900.00", "request_id": "c" });
        let answer = world.post("agent", "/v1/authorize", body).await;
        assert_eq!(answer.status.as_u16(), 400, "{currency}: {}", answer.body);
    }
    assert_eq!(world.sim().journal().len(), calls, "PayPal was not called");
    assert_eq!(world.reader().head().unwrap().seq, before, "nothing was recorded");
    finish(&world).await;
}
