//! Every bad spelling of an amount, in every place where an amount is accepted: its own code, and
//! nothing moves. The cases are named by their ids.

use reqwest::Method;
use serde_json::{Value, json};

use crate::bad_input::question;
use crate::world::World;

/// What is no amount at all: JSON as it is sent, and the code it gets.
fn bad() -> Vec<(String, &'static str)> {
    let mut all = Vec::new();
    let mut texts = |code, texts: &[&str]| {
        all.extend(texts.iter().map(|text| (json!(text).to_string(), code)));
    };
    texts(
        "amount_invalid",
        &[
            // Exponents: half-read elsewhere, as 13 or 1 or 0.
            "0E+1",
            "5e-7",
            "1e999",
            "5.0e3",
            "1E3",
            "1e3",
            "0e0",
            "1E-3",
            // Signs, spaces, separators, other digits, other notations.
            "",
            " ",
            "$",
            ".",
            "-",
            "-.5",
            ".5",
            "5.",
            "1.2.3",
            "0.0000001",
            "+1",
            " 1",
            "1 ",
            "1,5",
            "1,000.00",
            "1_0",
            "1'0",
            "0x1",
            "0b1",
            "NaN",
            "nan",
            "inf",
            "Infinity",
            "-inf",
            "--1",
            "-$-1",
            "$$1",
            "1$",
            "$ 1",
            "€1",
            "USD 1",
            "1 USD",
            "١",
            "１",
            "²",
            "½",
            "1\u{a0}",
            "1\n",
            "1\u{0}",
            "\u{0}",
            "1\u{202e}",
            "−1",
            "1%",
            "null",
            "true",
            "1;",
            "1/2",
            "(1)",
        ],
    );
    texts(
        "amount_not_positive",
        &["0", "0.0", "$0", "0.000000", "-1", "-0.02", "-0", "-$1", "$-1", "00"],
    );
    texts(
        "amount_out_of_range",
        &[
            "10000.000001",
            "9007199254.740991",
            "9007199254.740992",
            "9007199254740993",
            "99999999999999999999",
            "-99999999999999999999",
            &"9".repeat(400),
        ],
    );
    let mut numbers = |code, numbers: &[&str]| {
        all.extend(numbers.iter().map(|number| ((*number).to_owned(), code)));
    };
    numbers("amount_invalid", &["0.02", "1.0", "20000.0", "2e4", "1E2", "-1.5", "1e-7", "1e300"]);
    numbers("amount_not_positive", &["0", "-0", "-1", "-9007199254740993"]);
    numbers(
        "amount_out_of_range",
        &[
            "10000000001",
            "9007199254740991",
            "9007199254740992",
            "9007199254740993",
            "1152921504606846976",
            "9223372036854775808",
            "18446744073709551616",
            "340282366920938463463374607431768211456",
            "-99999999999999999999",
        ],
    );
    numbers(
        "request_malformed",
        &[
            "true",
            "[]",
            "[1]",
            "{}",
            "{\"amount\":1}",
            "1e400",
            "01",
            "+1",
            "1.",
            ".5",
            "0x1",
            "NaN",
        ],
    );
    all
}

/// A place where an amount is accepted.
struct Place {
    what: &'static str,
    role: &'static str,
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    /// The body, with `"AMOUNT"` where it belongs.
    body: Value,
}

async fn all_places(world: &World) -> Vec<Place> {
    let approval = question(world, "waits").await;
    let authorize = |what, quote: Value, max_price: Value| Place {
        what,
        role: "agent",
        method: Method::POST,
        path: "/v1/authorize".to_owned(),
        headers: Vec::new(),
        body: json!({ "quote": quote, "max_price": max_price, "request_id": "amount" }),
    };
    let mut fixed = world.quote("/weather", 10_000);
    fixed["amount_micros"] = json!("AMOUNT");
    let mut ceiling = world.quote("/weather", 10_000);
    ceiling.as_object_mut().unwrap().remove("amount_micros");
    ceiling["max_micros"] = json!("AMOUNT");
    let mut all = vec![
        authorize("quote.amount_micros", fixed, json!("$1.00")),
        authorize("quote.max_micros", ceiling, json!("$1.00")),
        authorize("max_price", world.quote("/weather", 10_000), json!("AMOUNT")),
        Place {
            what: "the cap of a grant",
            role: "owner",
            method: Method::POST,
            path: format!("/v1/approvals/{approval}/decision"),
            headers: vec![("if-match", "\"1\"".to_owned())],
            body: json!({ "decision": "grant", "cap": "AMOUNT", "for_seconds": 60 }),
        },
        Place {
            what: "the credit line",
            role: "operator",
            method: Method::PUT,
            path: format!("/v1/owners/{}/credit", world.owner_id()),
            headers: Vec::new(),
            body: json!({ "line": "AMOUNT" }),
        },
    ];
    for what in ["amount", "fee"] {
        let mut body = json!({ "kind": "deposit", "paypal_id": "D1", "amount": "$1", "fee": "$1" });
        body[what] = json!("AMOUNT");
        all.push(Place {
            what,
            role: "operator",
            method: Method::POST,
            path: "/v1/cash-entries".to_owned(),
            headers: vec![("idempotency-key", "amount".to_owned())],
            body,
        });
    }
    all.push(Place {
        what: "what is cleared",
        role: "operator",
        method: Method::POST,
        path: "/v1/suspense/STRANGER1/clear".to_owned(),
        headers: vec![("idempotency-key", "clear".to_owned())],
        body: json!({ "to": "credit", "id": world.owner_id(), "amount": "AMOUNT" }),
    });
    let limits = [
        "per_call_cap_micros",
        "session_cap_micros",
        "day_cap_micros",
        "approve_above_micros",
        "tab_limit_micros",
    ];
    for subject in ["owner".to_owned(), world.agent_id()] {
        for limit in limits {
            all.push(Place {
                what: limit,
                role: "owner",
                method: Method::PUT,
                path: format!("/v1/policies/{subject}"),
                headers: vec![("if-match", "\"1\"".to_owned())],
                body: json!({ limit: "AMOUNT" }),
            });
        }
    }
    all
}

/// More than any price may be, and still an amount.
const ABOVE_A_PRICE: [&str; 4] =
    ["10000.000001", "9007199254.740991", "10000000001", "9007199254740991"];

/// MON-02 and its family: in every place each bad spelling gets its code, and the books stay as
/// they are.
#[tokio::test]
async fn mon_02_bad_amounts_are_refused_in_every_place() {
    let world = World::ready().await;
    let places = all_places(&world).await;
    let (mark, journal) = (world.mark(), world.paypal_calls());
    for place in &places {
        // What the operator moves is no price, so only what can be represented bounds it.
        let free =
            ["/v1/cash-entries", "/v1/suspense/"].iter().any(|it| place.path.starts_with(it));
        for (text, code) in bad() {
            if free && ABOVE_A_PRICE.contains(&text.trim_matches('"')) {
                continue;
            }
            let body = place.body.to_string().replace("\"AMOUNT\"", &text);
            let headers: Vec<(&str, &str)> =
                place.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let answer =
                world.json(place.role, place.method.clone(), &place.path, &headers, body).await;
            let what = format!("{text} as {}", place.what);
            assert_eq!(answer.refusal(), code, "{what}: {}", answer.body);
            assert_eq!(answer.status, 400, "{what}");
            world.assert_untouched(mark, &what);
        }
    }
    assert_eq!(world.paypal_calls(), journal, "PayPal was called");
}

/// MON-19: an integer past 2^53 - 1 is refused, and no rounded neighbour of it appears.
#[tokio::test]
async fn mon_19_an_integer_past_2_to_the_53_is_out_of_range() {
    let world = World::ready().await;
    let mark = world.mark();
    let quote = world.quote("/weather", 9_007_199_254_740_993);
    let answer = world.authorize(quote, "mon-19").await;
    assert_eq!((answer.status.as_u16(), answer.code()), (400, "amount_out_of_range"));
    assert!(!answer.body.to_string().contains("900719925474099"), "{}", answer.body);
    world.assert_untouched(mark, "2^53 + 1");
    let purchases = world.get("owner", "/v1/purchases").await.expect(200);
    assert_eq!(purchases["data"], json!([]));
}

/// MON-21: another currency is refused and nobody is called.
#[tokio::test]
async fn mon_21_another_currency_is_unsupported() {
    let world = World::ready().await;
    let (mark, journal) = (world.mark(), world.paypal_calls());
    for currency in
        ["JPY", "EUR", "usd", "Usd", "", " USD", "USD ", "US", "USDT", "$", "XXX", "840"]
    {
        for amount in [json!("500"), json!(500), json!("$0.02")] {
            let mut quote = world.quote("/weather", 500);
            quote["currency"] = json!(currency);
            quote["amount_micros"] = amount.clone();
            let body = json!({ "quote": quote, "max_price": amount, "request_id": "mon-21" });
            let answer = world.post("agent", "/v1/authorize", body).await;
            let refused = (answer.status.as_u16(), answer.code());
            assert_eq!(refused, (400, "currency_unsupported"), "{currency:?}");
        }
    }
    world.assert_untouched(mark, "another currency");
    assert_eq!(world.paypal_calls(), journal, "PayPal was called");
}

/// What people do write is understood, and means the same in every spelling.
#[tokio::test]
async fn good_amounts_are_understood() {
    let world = World::ready().await;
    for (n, (text, micros)) in [
        (json!("0.02"), 20_000),
        (json!("$0.02"), 20_000),
        (json!("0.020000"), 20_000),
        (json!("00.02"), 20_000),
        (json!(20_000), 20_000),
        (json!("0.000001"), 1),
        (json!(1), 1),
    ]
    .into_iter()
    .enumerate()
    {
        let mut quote = world.quote("/weather", 1);
        quote["amount_micros"] = text.clone();
        let body = json!({ "quote": quote, "max_price": text, "request_id": format!("good-{n}") });
        let answer = world.post("agent", "/v1/authorize", body).await.expect(201);
        assert_eq!(answer["amount_micros"], micros, "{text}");
    }
    // A quote has one price: not none, and not two.
    let mut two = world.quote("/weather", 1);
    two["max_micros"] = json!(1);
    let mut none = world.quote("/weather", 1);
    none.as_object_mut().unwrap().remove("amount_micros");
    for quote in [two, none] {
        let body = json!({ "quote": quote, "max_price": 1, "request_id": "one-price" });
        let answer = world.post("agent", "/v1/authorize", body).await;
        assert_eq!(answer.refusal(), "request_malformed");
    }
}

/// The amount of a report: a bad one rejects that report alone, with its code.
#[tokio::test]
async fn a_bad_amount_in_a_report_rejects_that_report_alone() {
    let world = World::ready().await;
    let mut quote = world.quote("/up-to", 50_000);
    quote.as_object_mut().unwrap().remove("amount_micros");
    quote["max_micros"] = json!(50_000);
    let body = json!({ "quote": quote, "max_price": 50_000, "request_id": "ceiling" });
    let answer = world.post("agent", "/v1/authorize", body).await.expect(201);
    let voucher = answer["voucher"].as_str().unwrap().to_owned();
    let money = world.money();
    let mark = world.mark();
    for (text, code) in bad() {
        if text == "0" {
            continue;
        }
        let report = json!({
            "voucher": voucher, "fate": "redeemed", "claimed_at": world.clock.now(),
            "amount_micros": "AMOUNT",
        });
        let body = json!({ "reports": [report] }).to_string().replace("\"AMOUNT\"", &text);
        let answer = world.json("seller", Method::POST, "/v1/vouchers/report", &[], body).await;
        match answer.status.as_u16() {
            // Not JSON at all.
            400 => assert_eq!(code, "request_malformed", "{text}: {}", answer.body),
            _ => {
                let result = &answer.body["results"][0];
                assert_eq!(result["outcome"], "rejected", "{text}: {result}");
                let code = if code == "request_malformed" { "amount_invalid" } else { code };
                assert_eq!(result["code"], code, "{text}");
            }
        }
        world.assert_untouched(mark, &text);
    }
    // Above the ceiling, beside a good one: the good one is billed.
    let report = |amount: i64| json!({ "voucher": voucher, "fate": "redeemed", "claimed_at": world.clock.now(), "amount_micros": amount });
    let body = json!({ "reports": [report(50_001), report(-1)] });
    let answer = world.post("seller", "/v1/vouchers/report", body).await.expect(200);
    assert_eq!(answer["results"][0]["code"], "amount_out_of_range");
    assert_eq!(answer["results"][1]["code"], "amount_not_positive");
    assert_eq!(world.money(), money);
    let body = json!({ "reports": [report(50_001), report(30_000)] });
    let answer = world.post("seller", "/v1/vouchers/report", body).await.expect(200);
    assert_eq!(answer["results"][0]["outcome"], "rejected");
    assert_eq!(answer["results"][1]["outcome"], "billed");
    assert_eq!(answer["results"][1]["amount_micros"], 30_000);
    world.assert_balanced().await;
}
