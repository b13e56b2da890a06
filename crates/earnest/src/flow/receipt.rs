//! Signing receipts of captured settlements.

use earnest_core::id::{PurchaseId, ReceiptId, SellerId};
use earnest_core::jws::Purpose;
use earnest_core::money::Currency;
use earnest_core::purchase::Purchase;
use earnest_core::receipt::{
    ChainHead, Claims, KeepReceipt, Line, PaypalIds, Receipt, SellerLines, verify,
};
use earnest_core::settlement::Settlement;
use earnest_core::tab::LineRange;
use earnest_store::Cursor;
use serde::Serialize;

use super::paypal::FlowError;
use crate::app::App;
use crate::source::random_bytes;

/// How many lines are read at once.
const PAGE: usize = 500;

/// Signs and keeps the receipt of a captured settlement.
///
/// # Errors
/// [`FlowError`]; [`FlowError::Broken`] when the lines do not add up to what was captured, which
/// nobody is given a signature for.
pub async fn sign(app: &App, settlement: &Settlement) -> Result<(), FlowError> {
    let (Some(captured), Some(fee), Some(capture)) =
        (settlement.captured_micros, settlement.fee_micros, &settlement.paypal_capture)
    else {
        return Ok(());
    };
    let mut lines = Vec::new();
    for range in &settlement.lines {
        lines.extend(read_lines(app, range)?);
    }
    let head = app.store.reader().head()?;
    let now = app.now();
    let id = ReceiptId::new(app.seed());
    let claims = Claims {
        iss: app.public_url.clone(),
        jti: id,
        sub: settlement.id,
        iat: now.as_second(),
        kind: "tab_settlement".to_owned(),
        mode: app.store.mode().to_owned(),
        tab: settlement.tab,
        n: settlement.n,
        currency: Currency::Usd,
        lines,
        lines_micros: settlement.lines_micros,
        carry_in_micros: settlement.carry_in_micros,
        carry_out_micros: settlement.carry_out_micros,
        asked_micros: settlement.amount_micros,
        captured_micros: captured,
        fee_predicted_micros: settlement.fee_predicted_micros,
        fee_micros: fee,
        paypal: PaypalIds {
            capture: capture.clone(),
            order: settlement.paypal_order.clone(),
            invoice: settlement.invoice_id.clone(),
        },
        chain: ChainHead { seq: head.seq, hash: hex::encode(head.hash) },
    };
    if !claims.adds_up() {
        let why =
            format!("the lines of settlement {} do not add up to what was captured", settlement.id);
        return Err(FlowError::Broken(why));
    }
    let jws = signed(app, &claims, claims.iat)?;
    let receipt = Receipt {
        id,
        owner: settlement.owner,
        settlement: settlement.id,
        token: hex::encode(random_bytes::<16>()),
        jws,
        signed_at: now,
    };
    app.store.submit(KeepReceipt { receipt }).await?;
    Ok(())
}

/// Signs what a seller has on a receipt.
///
/// # Errors
/// [`FlowError::Broken`] for a receipt that does not verify, and where no key signs.
pub fn sign_lines(
    app: &App,
    receipt: &Receipt,
    seller: SellerId,
) -> Result<(String, SellerLines), FlowError> {
    let broken = |why: String| FlowError::Broken(format!("receipt {}: {why}", receipt.id));
    let read =
        app.verify(|keys| verify(&receipt.jws, keys)).map_err(|why| broken(why.to_string()))?;
    let lines = SellerLines::of(&receipt.jws, &read.claims, seller, app.now());
    let lines = lines.ok_or_else(|| broken("its lines have no sum".to_owned()))?;
    Ok((signed(app, &lines, lines.iat)?, lines))
}

fn signed(app: &App, claims: &impl Serialize, iat: i64) -> Result<String, FlowError> {
    let keys = app.keys();
    let signer = keys.signer(Purpose::Receipt, iat);
    let signer = signer.ok_or_else(|| FlowError::Broken("no key signs receipts".to_owned()))?;
    signer.sign(claims).map_err(|why| FlowError::Broken(why.to_string()))
}

/// The lines of a range, in the order they were billed.
///
/// # Errors
/// When the books cannot be read.
pub fn read_lines(app: &App, range: &LineRange) -> Result<Vec<Line>, FlowError> {
    let at = |line: u64| format!("{line:012}");
    let scope = range.tab.to_string();
    let mut cursor =
        Some(Cursor { at: at(range.from), id: PurchaseId::from_value(u128::MAX).to_string() });
    let mut lines = Vec::new();
    loop {
        let reader = app.store.reader();
        let page = reader.list::<Purchase>("tab_lines", &scope, cursor.as_ref(), PAGE, false)?;
        for purchase in page.items {
            if purchase.line.is_some_and(|line| line > range.to) {
                return Ok(lines);
            }
            let unbilled =
                || FlowError::Broken(format!("purchase {} has a line and no amount", purchase.id));
            lines.push(Line {
                purchase: purchase.id,
                seller: purchase.seller,
                amount_micros: purchase.billed_micros.ok_or_else(unbilled)?,
                at: purchase.billed_at.unwrap_or(purchase.updated_at),
                url_sha256: purchase.request.url_sha256(),
                body_sha256: purchase.request.body_sha256,
            });
        }
        if page.next.is_none() {
            return Ok(lines);
        }
        cursor = page.next;
    }
}
