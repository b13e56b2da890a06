//! Vouchers that were tampered with, where money would move on them: in a seller's report, and at a
//! shop's door.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use earnest_core::jws::Purpose;
use ring::hmac;
use serde_json::{Value, json};

use super::finish;
use crate::shop::Shop;

/// The three parts of a token, decoded.
fn parts(token: &str) -> (Value, Value, Vec<u8>) {
    let parts: Vec<Vec<u8>> =
        token.split('.').map(|part| URL_SAFE_NO_PAD.decode(part).unwrap()).collect();
    let json = |part: &[u8]| serde_json::from_slice(part).unwrap();
    (json(&parts[0]), json(&parts[1]), parts[2].clone())
}

fn sign_with(shop: &Shop, purpose: Purpose, claims: &Value) -> String {
    let now = earnest_core::time::Timestamp::now().as_second();
    shop.world.earnest.app.keys().signer(purpose, now).unwrap().sign(claims).unwrap()
}

fn signed_part(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

fn token(header: &Value, claims: &Value, signature: &[u8]) -> String {
    format!("{}.{}", signed_part(header, claims), URL_SAFE_NO_PAD.encode(signature))
}

/// Refused at the door with a fresh quote, refused in a report, and nothing moved.
async fn counts_for_nothing(shop: &Shop, forged: &str, what: &str) {
    let refused = shop.get("/weather", Some(forged)).await;
    let said = (refused.status.as_u16(), refused.code());
    assert_eq!(said, (402, "voucher_invalid"), "{what}");
    assert!(refused.headers.contains_key("www-authenticate"), "{what}");
    let report = json!({ "voucher": forged, "fate": "redeemed", "claimed_at": earnest_core::time::Timestamp::now() });
    let body = json!({ "reports": [report] });
    let answer = shop.world.post("seller", "/v1/vouchers/report", body).await.expect(200);
    let result = &answer["results"][0];
    assert_eq!(
        (&result["outcome"], &result["code"]),
        (&json!("rejected"), &json!("voucher_invalid")),
        "{what}"
    );
}

/// After all the forgeries the honest voucher still works, once.
async fn the_honest_one_counts(shop: &Shop, honest: &str) {
    assert_eq!(shop.served(), 0);
    let tab = shop.world.tab().await;
    assert_eq!((&tab["owed_micros"], &tab["held_micros"]), (&json!(0), &json!(20_000)));
    shop.get("/weather", Some(honest)).await.expect(200);
    assert_eq!(shop.close().await, (20_000, 0));
    finish(&shop.world).await;
}

#[tokio::test]
async fn rcpt_01_a_voucher_without_a_signature_counts_for_nothing() {
    let shop = Shop::open().await;
    let honest = shop.voucher("/weather", "w-1").await;
    let (header, claims, signature) = parts(&honest);
    for alg in ["none", "None", "NONE", "nOnE", "", "EdDSA "] {
        let mut header = header.clone();
        header["alg"] = alg.into();
        counts_for_nothing(&shop, &token(&header, &claims, b""), alg).await;
        counts_for_nothing(&shop, &token(&header, &claims, &signature), alg).await;
    }
    counts_for_nothing(&shop, &token(&header, &claims, b""), "no signature").await;
    the_honest_one_counts(&shop, &honest).await;
}

#[tokio::test]
async fn rcpt_02_the_voucher_does_not_choose_how_it_is_checked() {
    let shop = Shop::open().await;
    let honest = shop.voucher("/weather", "w-1").await;
    let (header, claims, signature) = parts(&honest);
    let keys = shop.world.get("", "/.well-known/jwks.json").await.expect(200);
    let x = keys["keys"][0]["x"].as_str().unwrap();
    let public = URL_SAFE_NO_PAD.decode(x).unwrap();
    for secret in [public.as_slice(), x.as_bytes()] {
        let mut header = header.clone();
        header["alg"] = "HS256".into();
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let tag = hmac::sign(&key, signed_part(&header, &claims).as_bytes());
        counts_for_nothing(&shop, &token(&header, &claims, tag.as_ref()), "HS256").await;
    }
    for (name, value) in [
        ("alg", json!("ES256")),
        ("jwk", keys["keys"][0].clone()),
        ("jku", json!("http://127.0.0.1:1/jwks.json")),
        ("crit", json!(["exp"])),
        ("x5u", json!("http://127.0.0.1:1/c.pem")),
        ("kid", json!("another")),
        ("typ", json!("JWT")),
    ] {
        let mut header = header.clone();
        header[name] = value;
        counts_for_nothing(&shop, &token(&header, &claims, &signature), name).await;
    }
    // A receipt's key signs no voucher.
    let signed = sign_with(&shop, Purpose::Receipt, &claims);
    counts_for_nothing(&shop, &signed, "the receipts' key").await;
    the_honest_one_counts(&shop, &honest).await;
}

/// The order of the group of Ed25519, little-endian.
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

#[tokio::test]
async fn rcpt_04_a_changed_signature_counts_for_nothing() {
    let shop = Shop::open().await;
    let honest = shop.voucher("/weather", "w-1").await;
    let (header, claims, signature) = parts(&honest);
    let mut carry = 0_u16;
    let mut above = signature.clone();
    for (n, part) in ORDER.iter().enumerate() {
        let sum = u16::from(above[32 + n]) + u16::from(*part) + carry;
        (above[32 + n], carry) = (sum.to_le_bytes()[0], sum >> 8);
    }
    assert_eq!(carry, 0);
    counts_for_nothing(&shop, &token(&header, &claims, &above), "S + L").await;
    for bit in [0, 255, 256, 511] {
        let mut flipped = signature.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        counts_for_nothing(&shop, &token(&header, &claims, &flipped), "one bit").await;
    }
    // The same bytes in another spelling: the last letter of base64url has bits to spare.
    let (rest, last) = honest.split_at(honest.len() - 1);
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let at = alphabet.find(last).unwrap();
    let spelled = format!("{rest}{}", &alphabet[at + 1..at + 2]);
    counts_for_nothing(&shop, &spelled, "another spelling").await;
    counts_for_nothing(&shop, &format!("{honest}="), "padding").await;
    the_honest_one_counts(&shop, &honest).await;
}

#[tokio::test]
async fn rcpt_06_every_voucher_ends_and_soon() {
    let shop = Shop::open().await;
    let honest = shop.voucher("/weather", "w-1").await;
    let (_, claims, _) = parts(&honest);
    let sign = |change: &dyn Fn(&mut Value)| {
        let mut claims = claims.clone();
        change(&mut claims);
        sign_with(&shop, Purpose::Voucher, &claims)
    };
    let begin = claims["iat"].as_i64().unwrap();
    let forged = [
        ("no end", sign(&|claims| drop(claims.as_object_mut().unwrap().remove("exp")))),
        ("no beginning", sign(&|claims| drop(claims.as_object_mut().unwrap().remove("iat")))),
        ("an end that is text", sign(&|claims| claims["exp"] = "never".into())),
        ("a long life", sign(&|claims| claims["exp"] = (begin + 121).into())),
        ("a life that ends first", sign(&|claims| claims["exp"] = (begin - 1).into())),
        (
            "not begun",
            sign(&|claims| {
                (claims["iat"], claims["exp"]) = ((begin + 60).into(), (begin + 120).into());
            }),
        ),
    ];
    for (what, forged) in forged {
        counts_for_nothing(&shop, &forged, what).await;
    }
    let expired = sign(&|claims| {
        (claims["iat"], claims["exp"]) = ((begin - 126).into(), (begin - 6).into());
    });
    let refused = shop.get("/weather", Some(&expired)).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (402, "voucher_expired"));
    assert!(refused.headers.contains_key("www-authenticate"), "a fresh quote comes with it");
    the_honest_one_counts(&shop, &honest).await;
}

#[tokio::test]
async fn rcpt_12_a_voucher_that_says_a_thing_twice_counts_for_nothing() {
    let shop = Shop::open().await;
    let honest = shop.voucher("/weather", "w-1").await;
    let (header, claims, signature) = parts(&honest);
    let text = claims.to_string();
    for doubled in [
        text.replacen('{', r#"{"amount_micros":9000000,"#, 1),
        text.replacen('{', r#"{"amount\u005fmicros":9000000,"#, 1),
        format!("{},\"aud\":\"sel_other\"}}", text.strip_suffix('}').unwrap()),
    ] {
        let forged = format!(
            "{}.{}.{}",
            URL_SAFE_NO_PAD.encode(header.to_string()),
            URL_SAFE_NO_PAD.encode(doubled),
            URL_SAFE_NO_PAD.encode(&signature)
        );
        counts_for_nothing(&shop, &forged, "twice").await;
    }
    // In what an agent sends, too.
    let quote = shop.quote("/weather").await.to_string();
    let twice = quote.replacen('{', r#"{"amount_micros":1,"#, 1);
    let body = format!(r#"{{"quote":{twice},"max_price":"$1.00","request_id":"w-2"}}"#);
    let request = shop.world.http.post(format!("{}/v1/authorize", shop.world.earnest.url()));
    let request = request.bearer_auth(shop.world.key("agent"));
    let request = request.header("content-type", "application/json").body(body);
    let refused = crate::world::answer(request).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (400, "request_malformed"));
    the_honest_one_counts(&shop, &honest).await;
}
