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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
