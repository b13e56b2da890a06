//! What Earnest signs afterwards: public, lasting, checkable by anyone with the key set.
//!
//! A receipt shows money and hashes, not what was bought: the URL of a line stands there as its
//! SHA-256, so that whoever knows it can recognise it and nobody else learns it.

use serde::{Deserialize, Serialize};

use crate::id::{OwnerId, PurchaseId, ReceiptId, SellerId, SettlementId, TabId};
use crate::jws::{BadToken, KeySet, Purpose};
use crate::money::{Currency, Micros};
use crate::problem::{Code, Refusal};
use crate::settlement::Settlement;
use crate::time::Timestamp;
use crate::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};

/// One line of a settlement receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// The purchase.
    pub purchase: PurchaseId,
    /// Who is paid.
    pub seller: SellerId,
    /// What was billed.
    pub amount_micros: Micros,
    /// When it was billed.
    pub at: Timestamp,
    /// SHA-256 of the URL, in hex.
    pub url_sha256: String,
    /// SHA-256 of the request's body, in hex.
    pub body_sha256: String,
}

/// What PayPal calls the capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaypalIds {
    /// The capture.
    pub capture: String,
    /// The order, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// Our invoice id, as the capture carries it.
    pub invoice: String,
}

/// The head of the log when the receipt was signed: dates the receipt against everything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainHead {
    /// The place in the log.
    pub seq: u64,
    /// The hash of the log up to there, in hex.
    pub hash: String,
}

/// The claims of a settlement receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// The Earnest that signed it: its public origin.
    pub iss: String,
    /// Its own id: the public address of the receipt.
    pub jti: ReceiptId,
    /// The settlement.
    pub sub: SettlementId,
    /// Signed at, in seconds since 1970.
    pub iat: i64,
    /// Always `tab_settlement` here.
    pub kind: String,
    /// `simulated`, `sandbox` or `live`: simulated money is labelled on every receipt.
    pub mode: String,
    /// The tab.
    pub tab: TabId,
    /// The tab's first, second … settlement.
    pub n: u64,
    /// In which currency.
    pub currency: Currency,
    /// The lines, in the order they were billed.
    pub lines: Vec<Line>,
    /// The sum of the lines.
    pub lines_micros: Micros,
    /// Below a cent, from before.
    pub carry_in_micros: Micros,
    /// Below a cent, left for the next.
    pub carry_out_micros: Micros,
    /// What PayPal was asked for: whole cents.
    pub asked_micros: Micros,
    /// What PayPal captured; what differs from what was asked is under review.
    pub captured_micros: Micros,
    /// What PayPal was expected to take.
    pub fee_predicted_micros: Micros,
    /// What PayPal took.
    pub fee_micros: Micros,
    /// PayPal's names for it.
    pub paypal: PaypalIds,
    /// The head of the log.
    pub chain: ChainHead,
}

impl Claims {
    /// Whether the figures agree with each other: the lines sum up, and carry in + lines - carry
    /// out = what PayPal was asked for.
    pub fn adds_up(&self) -> bool {
        let sum = self
            .lines
            .iter()
            .try_fold(Micros::ZERO, |sum, line| sum.checked_add(line.amount_micros));
        let asked = self
            .carry_in_micros
            .checked_add(self.lines_micros)
            .and_then(|total| total.checked_sub(self.carry_out_micros));
        sum == Some(self.lines_micros) && asked == Some(self.asked_micros)
    }
}

/// What a verifier learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The claims.
    pub claims: Claims,
    /// Whether the key was retired since: then only a chain head dated before the retirement makes
    /// the receipt count, which the issuer's log has to show.
    pub key_retired_at: Option<Timestamp>,
}

/// Checks a receipt offline.
///
/// # Errors
/// [`BadToken`]; [`BadToken::RetiredKey`] when the receipt says itself that it was signed after its
/// key was retired; [`BadToken::Malformed`] when its figures do not add up.
pub fn verify(token: &str, keys: &KeySet) -> Result<Verified, BadToken> {
    let (claims, key_retired_at) = keys.read::<Claims>(Purpose::Receipt, token)?;
    if key_retired_at.is_some_and(|at| claims.iat >= at.as_second()) {
        return Err(BadToken::RetiredKey);
    }
    if !claims.adds_up() {
        return Err(BadToken::Malformed);
    }
    Ok(Verified { claims, key_retired_at })
}

/// A signed receipt.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// Its id: 128 bits of which 80 are random, and its public address.
    pub id: ReceiptId,
    /// Whose settlement it is about.
    pub owner: OwnerId,
    /// The settlement.
    pub settlement: SettlementId,
    /// The public token under which it is shown: 128 random bits, in hex.
    pub token: String,
    /// The signed statement.
    pub jws: String,
    /// When it was signed.
    pub signed_at: Timestamp,
}

crate::shows_only!(Receipt: id, owner, settlement, signed_at);

impl Record for Receipt {
    const KIND: &'static str = "receipt";
    const RANK: u8 = rank::ROW_LATER;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        vec![
            ListEntry::new("receipts", self.owner, self.id),
            ListEntry::new("receipts.token", &self.token, self.id),
        ]
    }
}

/// Keeps a signed receipt and names it on its settlement; a settlement has one.
#[derive(Clone, Debug)]
pub struct KeepReceipt {
    /// The receipt.
    pub receipt: Receipt,
}

impl Unit for KeepReceipt {
    type Answer = ReceiptId;

    fn name(&self) -> &'static str {
        "receipt.keep"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Settlement>(self.receipt.settlement);
        touches.row::<Receipt>(self.receipt.id);
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<ReceiptId>, Stop> {
        let mut settlement = view.need::<Settlement>(self.receipt.settlement)?.clone();
        if let Some(known) = settlement.receipt {
            return Ok(Effects::answer(known));
        }
        if !settlement.is_captured() {
            let why = "only a captured settlement has a receipt";
            return Err(Refusal::new(Code::StateConflict, why).into());
        }
        settlement.receipt = Some(self.receipt.id);
        let mut effects = Effects::answer(self.receipt.id);
        let data = serde_json::json!({ "receipt": self.receipt.id, "settlement": settlement.id });
        effects.event("receipt.signed", &[&settlement.owner], data);
        effects.put(settlement)?;
        effects.put(self.receipt.clone())?;
        Ok(effects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jws::{Jwks, Signer};
    use serde_json::{Value, json};

    fn claims() -> Value {
        let line = |n: u32, amount: i64| {
            json!({ "purchase": format!("pur_0000000000000000000000000{n}"),
                "seller": "sel_00000000000000000000000001", "amount_micros": amount,
                "at": "2026-11-30T12:00:00Z", "url_sha256": "00", "body_sha256": "00" })
        };
        json!({ "iss": "https://earnest.example", "jti": "rcp_00000000000000000000000001",
            "sub": "set_00000000000000000000000001", "iat": 1_800_000_000,
            "kind": "tab_settlement", "mode": "simulated",
            "tab": "tab_00000000000000000000000001", "n": 1, "currency": "USD",
            "lines": [line(1, 15_000), line(2, 30_000)], "lines_micros": 45_000,
            "carry_in_micros": 7_000, "carry_out_micros": 2_000, "asked_micros": 50_000,
            "captured_micros": 50_000, "fee_predicted_micros": 490_000, "fee_micros": 490_000,
            "paypal": { "capture": "CAP", "invoice": "e1:tab:1" },
            "chain": { "seq": 7, "hash": "00" } })
    }

    fn check(expect: Result<(), BadToken>, change: impl FnOnce(&mut Value)) {
        let signer = Signer::new(Purpose::Receipt, &[7; 32]);
        let keys = KeySet::new(&Jwks { keys: vec![signer.jwk()] });
        let mut claims = claims();
        change(&mut claims);
        let token = signer.sign(&claims).unwrap();
        assert_eq!(verify(&token, &keys).map(|_| ()), expect, "{claims}");
    }

    #[test]
    fn only_a_receipt_whose_figures_agree_is_valid() {
        check(Ok(()), |_| ());
        for field in ["lines_micros", "carry_in_micros", "carry_out_micros", "asked_micros"] {
            check(Err(BadToken::Malformed), |claims| claims[field] = json!(1));
            check(Err(BadToken::Malformed), |claims| claims[field] = json!(-1));
        }
        check(Err(BadToken::Malformed), |claims| claims["lines"][0]["amount_micros"] = json!(1));
        check(Err(BadToken::Malformed), |claims| claims["lines"] = json!([]));
        check(Err(BadToken::Malformed), |claims| claims["extra"] = json!(1));
    }

    #[test]
    fn a_receipt_signed_after_its_key_was_retired_does_not_count() {
        let signer = Signer::new(Purpose::Receipt, &[7; 32]);
        let token = signer.sign(&claims()).unwrap();
        let keys = |retired_at: i64| {
            let mut jwk = signer.jwk();
            jwk.retired_at = Some(Timestamp::from_second(retired_at).unwrap());
            KeySet::new(&Jwks { keys: vec![jwk] })
        };
        assert_eq!(verify(&token, &keys(1_800_000_000)), Err(BadToken::RetiredKey));
        let verified = verify(&token, &keys(1_800_000_001)).unwrap();
        assert!(verified.key_retired_at.is_some());
        // Nor does a voucher's key sign receipts.
        let other = Signer::new(Purpose::Voucher, &[7; 32]);
        let keys = KeySet::new(&Jwks { keys: vec![other.jwk()] });
        assert_eq!(verify(&token, &keys), Err(BadToken::UnknownKey));
    }
}
