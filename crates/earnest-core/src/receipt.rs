//! What Earnest signs afterwards: public, lasting, checkable by anyone with the key set.
//!
//! A receipt shows money and hashes, not what was bought: the URL of a line stands there as its
//! SHA-256, so that whoever knows it can recognise it and nobody else reads it. Whoever has a guess
//! can check it, though, so a receipt is shown to its owner's side only, and to whom they pass its
//! address on. The hash has no salt: then nobody could recognise a line without being told the salt
//! of each, and what verifies receipts refuses members that it does not know.
//!
//! A seller gets its own lines of a receipt ([`SellerLines`]), signed apart and bound to it by hash:
//! what its buyer bought elsewhere is nothing to it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

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
        let asked = self
            .carry_in_micros
            .checked_add(self.lines_micros)
            .and_then(|total| total.checked_sub(self.carry_out_micros));
        sum(&self.lines) == Some(self.lines_micros) && asked == Some(self.asked_micros)
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
    let (claims, key_retired_at) = read(token, keys, |claims: &Claims| claims.iat)?;
    if !claims.adds_up() {
        return Err(BadToken::Malformed);
    }
    Ok(Verified { claims, key_retired_at })
}

/// What of a receipt concerns one seller: its lines, and which receipt they stand on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SellerLines {
    /// The Earnest that signed it: its public origin.
    pub iss: String,
    /// The receipt's id.
    pub jti: ReceiptId,
    /// The settlement.
    pub sub: SettlementId,
    /// Signed at, in seconds since 1970.
    pub iat: i64,
    /// Always `seller_lines`.
    pub kind: String,
    /// `simulated`, `sandbox` or `live`.
    pub mode: String,
    /// Whose lines.
    pub seller: SellerId,
    /// In which currency.
    pub currency: Currency,
    /// Every line of this seller's on the receipt, as they stand there.
    pub lines: Vec<Line>,
    /// Their sum.
    pub lines_micros: Micros,
    /// SHA-256 of the signed receipt, in hex: whoever is shown it can see that this was taken of it.
    pub receipt_sha256: String,
}

/// What [`SellerLines::kind`] says.
pub const SELLER_LINES: &str = "seller_lines";

fn sum(lines: &[Line]) -> Option<Micros> {
    lines.iter().try_fold(Micros::ZERO, |sum, line| sum.checked_add(line.amount_micros))
}

impl SellerLines {
    /// Takes a seller's lines of a receipt. `jws` is the signed receipt, `claims` what it states.
    pub fn of(jws: &str, claims: &Claims, seller: SellerId, now: Timestamp) -> Option<Self> {
        let lines = claims.lines.iter().filter(|line| line.seller == seller).cloned();
        let lines: Vec<Line> = lines.collect();
        Some(Self {
            iss: claims.iss.clone(),
            jti: claims.jti,
            sub: claims.sub,
            iat: now.as_second(),
            kind: SELLER_LINES.to_owned(),
            mode: claims.mode.clone(),
            seller,
            currency: claims.currency,
            lines_micros: sum(&lines)?,
            lines,
            receipt_sha256: hex::encode(Sha256::digest(jws)),
        })
    }

    /// Whether they were taken of this receipt, all of that seller's and nothing else.
    pub fn is_taken_of(&self, jws: &str, claims: &Claims) -> bool {
        let at = Timestamp::from_second(self.iat).unwrap_or(Timestamp::UNIX_EPOCH);
        Self::of(jws, claims, self.seller, at).as_ref() == Some(self)
    }
}

/// What a receipt key signed, and when that key was retired; refused where it says itself that it was
/// signed after that.
fn read<C: DeserializeOwned>(
    token: &str,
    keys: &KeySet,
    signed_at: impl Fn(&C) -> i64,
) -> Result<(C, Option<Timestamp>), BadToken> {
    let (claims, key_retired_at) = keys.read::<C>(Purpose::Receipt, token)?;
    match key_retired_at {
        Some(at) if signed_at(&claims) >= at.as_second() => Err(BadToken::RetiredKey),
        _ => Ok((claims, key_retired_at)),
    }
}

/// A seller's lines that were checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedLines {
    /// The claims.
    pub claims: SellerLines,
    /// As in [`Verified`].
    pub key_retired_at: Option<Timestamp>,
}

/// Checks a seller's lines offline.
///
/// # Errors
/// As [`verify`].
pub fn verify_lines(token: &str, keys: &KeySet) -> Result<VerifiedLines, BadToken> {
    let (claims, key_retired_at) = read(token, keys, |claims: &SellerLines| claims.iat)?;
    let own = claims.lines.iter().all(|line| line.seller == claims.seller);
    if claims.kind != SELLER_LINES || !own || sum(&claims.lines) != Some(claims.lines_micros) {
        return Err(BadToken::Malformed);
    }
    Ok(VerifiedLines { claims, key_retired_at })
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
    fn a_seller_gets_its_own_lines_bound_to_the_receipt() {
        let signer = Signer::new(Purpose::Receipt, &[7; 32]);
        let keys = KeySet::new(&Jwks { keys: vec![signer.jwk()] });
        let mut all = claims();
        all["lines"][1]["seller"] = json!("sel_00000000000000000000000002");
        let jws = signer.sign(&all).unwrap();
        let receipt = verify(&jws, &keys).unwrap().claims;
        let seller = receipt.lines[0].seller;
        let now = Timestamp::from_second(1_900_000_000).unwrap();
        let own = SellerLines::of(&jws, &receipt, seller, now).unwrap();
        assert_eq!((own.lines.as_slice(), own.lines_micros.get()), (&receipt.lines[..1], 15_000));
        let token = signer.sign(&own).unwrap();
        let read = verify_lines(&token, &keys).unwrap().claims;
        assert!(read == own && own.is_taken_of(&jws, &receipt));
        // Neither passes for the other.
        assert_eq!(verify(&token, &keys), Err(BadToken::Malformed));
        assert!(verify_lines(&jws, &keys).is_err());
        // Nor for what another receipt, seller or sum says.
        let other = signer.sign(&claims()).unwrap();
        assert!(!own.is_taken_of(&other, &receipt));
        let fewer = SellerLines { lines: Vec::new(), lines_micros: Micros::ZERO, ..own.clone() };
        assert!(!fewer.is_taken_of(&jws, &receipt));
        for wrong in [
            SellerLines { lines_micros: Micros::ZERO, ..own.clone() },
            SellerLines { seller: receipt.lines[1].seller, ..own.clone() },
            SellerLines { kind: "tab_settlement".to_owned(), ..own },
        ] {
            let token = signer.sign(&wrong).unwrap();
            assert_eq!(verify_lines(&token, &keys), Err(BadToken::Malformed));
        }
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
