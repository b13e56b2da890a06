//! What an agent presents to a seller: single use, 120 s, bound to one exact request.
//!
//! A seller checks in this order: signature, audience, scope (method, resource, body, its own
//! price), whether the `jti` was seen, expiry. The order matters: a voucher that was used and has
//! since expired is *used* (409), never *expired* (402), because 402 says that paying again is safe.

use serde::{Deserialize, Serialize};

use crate::id::{PurchaseId, QuoteId, SellerId, VoucherId};
use crate::jws::{BadToken, KeySet, Purpose};
use crate::money::{Currency, Micros};
use crate::problem::{Code, Refusal};
use crate::quote::{Price, Resource};
use crate::time::Timestamp;

/// How long a voucher lives, in seconds. A longer life makes a voucher invalid.
pub const LIFE_SECONDS: i64 = 120;
/// How far a seller's clock may lag behind ours, in seconds: leeway on `iat` only.
pub const LEEWAY_SECONDS: i64 = 5;

/// The claims of a voucher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// The Earnest that issued it: its public origin.
    pub iss: String,
    /// The seller it is for.
    pub aud: SellerId,
    /// The purchase it pays for.
    pub sub: PurchaseId,
    /// What tells one voucher from another; redeemed at most once.
    pub jti: VoucherId,
    /// Issued at, in seconds since 1970.
    pub iat: i64,
    /// Expires at, in seconds since 1970.
    pub exp: i64,
    /// What is held for it.
    pub amount_micros: Micros,
    /// There when the seller may bill less than is held: the ceiling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_micros: Option<Micros>,
    /// In which currency.
    pub currency: Currency,
    /// The quote that was accepted.
    pub quote: QuoteId,
    /// What it was decided to be: the listing that the owner's policy looked at. A buyer writes it
    /// into its quote, so the seller checks that it is what it sells by this request.
    pub listing: String,
    /// The method of the request it opens.
    pub method: String,
    /// The canonical URL it opens.
    pub resource: String,
    /// SHA-256 of the request's body in hex.
    pub body: String,
}

impl Claims {
    /// The request it opens.
    pub fn request(&self) -> Resource {
        Resource {
            method: self.method.clone(),
            url: self.resource.clone(),
            body_sha256: self.body.clone(),
        }
    }

    /// The price it was issued for.
    pub const fn price(&self) -> Price {
        match self.max_micros {
            Some(ceiling) => Price::UpTo(ceiling),
            None => Price::Fixed(self.amount_micros),
        }
    }

    /// Whether it is past its life.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now.as_second() >= self.exp
    }

    /// Whether it opens this request at this price.
    ///
    /// # Errors
    /// `voucher_scope_mismatch`.
    pub fn check_scope(
        &self,
        seller: SellerId,
        listing: &str,
        request: &Resource,
        price: Price,
    ) -> Result<(), Refusal> {
        let mismatch = |what: &str| {
            Err(Refusal::new(
                Code::VoucherScopeMismatch,
                format!("the voucher is for another {what}"),
            ))
        };
        if self.aud != seller {
            return mismatch("seller");
        }
        if self.method != request.method {
            return mismatch("method");
        }
        if self.resource != request.url {
            return mismatch("resource");
        }
        if self.body != request.body_sha256 {
            return mismatch("body");
        }
        if self.listing != listing {
            return mismatch("listing");
        }
        // A price that fell since is still paid as agreed; one that rose needs a new quote.
        let enough = self.amount_micros >= price.most();
        let same_kind = matches!(price, Price::UpTo(_)) == self.max_micros.is_some();
        if !enough || !same_kind {
            return mismatch("price");
        }
        Ok(())
    }
}

/// Reads a voucher: well-formed, signed by a live voucher key, with a sane life. Says nothing about
/// scope, use or expiry.
///
/// # Errors
/// `voucher_invalid`.
pub fn read(token: &str, keys: &KeySet, now: Timestamp) -> Result<Claims, Refusal> {
    let invalid = |why: &str| Refusal::new(Code::VoucherInvalid, why);
    let read = keys.read::<Claims>(Purpose::Voucher, token);
    let (claims, retired_at) = read.map_err(|why| invalid(&why.to_string()))?;
    if retired_at.is_some_and(|at| claims.iat >= at.as_second()) {
        return Err(invalid(&BadToken::RetiredKey.to_string()));
    }
    let life = claims.exp.checked_sub(claims.iat).unwrap_or(0);
    if !(1..=LIFE_SECONDS).contains(&life) {
        return Err(invalid("the voucher's life is not between 1 and 120 seconds"));
    }
    if claims.iat > now.as_second().saturating_add(LEEWAY_SECONDS) {
        return Err(invalid("the voucher was issued in the future"));
    }
    if claims.amount_micros.is_zero()
        || claims.max_micros.is_some_and(|max| max != claims.amount_micros)
    {
        return Err(invalid("the voucher's amount makes no sense"));
    }
    Ok(claims)
}

/// What a seller says became of a voucher it claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// A 2xx whose body ended cleanly.
    Redeemed,
    /// Another status, a broken body, a deadline, or a restart with no outcome.
    Failed,
    /// A long stream still runs: keep the hold.
    Serving,
}

/// One line of a report.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The voucher itself: its signature is the seller's proof.
    pub voucher: String,
    /// What became of it.
    pub fate: Fate,
    /// When the seller claimed the voucher; at or before its expiry.
    pub claimed_at: Timestamp,
    /// What is actually due, where the price was a ceiling; the whole amount when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_micros: Option<Micros>,
}

crate::shows_only!(Report: fate, claimed_at, amount_micros);

/// `POST /v1/vouchers/report`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportBatch {
    /// At most 500.
    pub reports: Vec<Report>,
}

/// The most reports in one batch.
pub const MAX_REPORTS: usize = 500;

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportOutcome {
    /// The hold was posted: this line is on the tab.
    Billed,
    /// The hold was released.
    Released,
    /// The hold was gone, and the line was booked afresh.
    LateBilled,
    /// The hold was gone, and the owner's limits had no room: nobody pays.
    LateUnbilled,
    /// The purchase was billed before.
    AlreadyBilled,
    /// The hold stays while the seller still serves.
    Serving,
    /// The report was not acceptable; `code` says why, and repeating it changes nothing.
    Rejected,
    /// The books were restored and do not know the purchase: the report is kept, and the operator
    /// decides about it.
    Kept,
    /// Nothing was recorded; `code` says why. Send this one again.
    Again,
}

/// One line of the answer, in the order of the batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportResult {
    /// The voucher, where it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jti: Option<VoucherId>,
    /// The purchase, where it could be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purchase: Option<PurchaseId>,
    /// What became of it.
    pub outcome: ReportOutcome,
    /// Why it was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// What was billed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_micros: Option<Micros>,
}

/// The answer to a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportAnswer {
    /// Of this installation. When it changes, the seller sends again everything it kept.
    pub epoch: String,
    /// One a report.
    pub results: Vec<ReportResult>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jws::{Jwks, Signer};
    use serde_json::{Value, json};

    const NOW: i64 = 1_800_000_000;

    fn now() -> Timestamp {
        Timestamp::from_second(NOW).unwrap()
    }

    fn claims() -> Value {
        json!({ "iss": "https://earnest.example", "aud": "sel_00000000000000000000000001",
            "sub": "pur_00000000000000000000000001", "jti": "vch_00000000000000000000000001",
            "iat": NOW, "exp": NOW + 120, "amount_micros": 20_000, "currency": "USD",
            "quote": "qte_00000000000000000000000001", "listing": "GET /weather", "method": "GET",
            "resource": "https://api.example/weather", "body": crate::quote::body_digest(b"") })
    }

    /// What reading says of a voucher with one thing changed.
    fn check(expect: Result<(), &str>, change: impl FnOnce(&mut Value)) {
        let signer = Signer::new(Purpose::Voucher, &[7; 32]);
        let keys = KeySet::new(&Jwks { keys: vec![signer.jwk()] });
        let mut claims = claims();
        change(&mut claims);
        let token = signer.sign(&claims).unwrap();
        let found = read(&token, &keys, now());
        let code = found.as_ref().map(|_| ()).map_err(|refusal| refusal.code.as_str());
        assert_eq!(code, expect, "{claims}");
    }

    fn set(field: &'static str, value: Value) -> impl FnOnce(&mut Value) {
        move |claims| claims[field] = value
    }

    #[test]
    fn only_a_sane_life_is_read() {
        check(Ok(()), |_| ());
        check(Ok(()), set("exp", json!(NOW + 1)));
        // Expired long ago: still a voucher, and whoever asks whether it was used must be told so.
        check(Ok(()), |claims| {
            claims["iat"] = json!(NOW - 9_000);
            claims["exp"] = json!(NOW - 8_880);
        });
        for (field, value) in [
            ("exp", json!(NOW + 121)),
            ("exp", json!(NOW)),
            ("exp", json!(NOW - 1)),
            ("exp", json!(i64::MAX)),
            ("iat", json!(i64::MIN)),
            ("exp", json!(null)),
            ("exp", json!("soon")),
            ("exp", json!(1.5)),
        ] {
            check(Err("voucher_invalid"), set(field, value));
        }
        // A seller's clock may lag five seconds, not six.
        for (ahead, expect) in [(5, Ok(())), (6, Err("voucher_invalid"))] {
            check(expect, |claims| {
                claims["iat"] = json!(NOW + ahead);
                claims["exp"] = json!(NOW + ahead + 120);
            });
        }
    }

    #[test]
    fn claims_that_make_no_sense_are_invalid() {
        for (field, value) in [
            ("amount_micros", json!(0)),
            ("amount_micros", json!(-1)),
            ("amount_micros", json!("20000")),
            ("max_micros", json!(20_001)),
            ("max_micros", json!(19_999)),
            ("currency", json!("EUR")),
            ("aud", json!("own_00000000000000000000000001")),
            ("extra", json!(true)),
        ] {
            check(Err("voucher_invalid"), set(field, value));
        }
        check(Ok(()), set("max_micros", json!(20_000)));
        check(Err("voucher_invalid"), |claims| {
            claims.as_object_mut().unwrap().remove("exp");
        });
    }

    #[test]
    fn a_voucher_opens_one_request_at_one_price() {
        let claims: Claims = serde_json::from_value(claims()).unwrap();
        let own = claims.request();
        let price = |micros| Price::Fixed(Micros::constant(micros));
        let scope = |seller, request: &Resource, price| {
            let checked = claims.check_scope(seller, "GET /weather", request, price);
            checked.map_err(|refusal| refusal.detail)
        };
        let differs = |what: &str| Err(format!("the voucher is for another {what}"));
        assert_eq!(scope(claims.aud, &own, price(20_000)), Ok(()));
        let other = claims.check_scope(claims.aud, "GET /cheap", &own, price(20_000));
        assert_eq!(other.map_err(|refusal| refusal.detail), differs("listing"));
        // A price that fell is still paid as agreed; one that rose needs a new quote.
        assert_eq!(scope(claims.aud, &own, price(1)), Ok(()));
        assert_eq!(scope(claims.aud, &own, price(20_001)), differs("price"));
        let ceiling = Price::UpTo(Micros::constant(20_000));
        assert_eq!(scope(claims.aud, &own, ceiling), differs("price"));
        assert_eq!(scope(SellerId::from_value(2), &own, price(20_000)), differs("seller"));
        let other = Resource { method: "POST".to_owned(), ..own.clone() };
        assert_eq!(scope(claims.aud, &other, price(20_000)), differs("method"));
        let other = Resource { url: format!("{}?x", own.url), ..own.clone() };
        assert_eq!(scope(claims.aud, &other, price(20_000)), differs("resource"));
        let other = Resource { body_sha256: crate::quote::body_digest(b"x"), ..own };
        assert_eq!(scope(claims.aud, &other, price(20_000)), differs("body"));
    }

    #[test]
    fn it_ends_with_its_last_second() {
        let claims: Claims = serde_json::from_value(claims()).unwrap();
        let at = |seconds| Timestamp::from_second(NOW + seconds).unwrap();
        assert!(!claims.is_expired(at(119)));
        assert!(claims.is_expired(at(120)));
    }
}
