//! Reading what went back at PayPal: refunds made in its own pages, and reversals.

use earnest_core::money::{Currency, Micros};
use earnest_core::reversal::{Book, Looked, Note, Reversal};
use earnest_core::suspense::Suspended;
use earnest_paypal::evidence::{Evidence, refer_to};
use earnest_paypal::payments::{self, Capture, CaptureStatus, Refund, RefundStatus};
use earnest_paypal::{Outcome, Resource, orders};

use super::paypal::FlowError;
use super::settle::{need_capture, read_capture};
use super::{cash, dispute};
use crate::app::App;

/// A webhook said that a capture was refunded or reversed. Reads the capture, and notes what has to
/// be read if that is so. The owner whose tab it settled is frozen with it: Earnest gives nothing
/// back by itself yet, so somebody else did.
///
/// # Errors
/// [`FlowError`].
pub async fn hinted(app: &App, capture_id: &str, named: Option<&str>) -> Result<(), FlowError> {
    let reader = app.store.reader();
    let of = dispute::captured(app, capture_id)?;
    let in_books = of.is_some() || reader.row::<Suspended>(capture_id)?.is_some();
    let repaid = !in_books && cash::repayment(app, capture_id)?.is_some();
    if !in_books && !repaid {
        return Ok(());
    }
    let (capture, _) = need_capture(app, capture_id).await?;
    if !given_back(&capture) {
        return match named {
            // It was named, so it is there, and the capture does not show it yet.
            Some(name) if name != capture_id => {
                Err(FlowError::Broken(format!("capture {capture_id} does not show {name} yet")))
            }
            _ => Ok(()),
        };
    }
    if repaid {
        cash::repayment_went_back(app, capture_id).await?;
    }
    tracing::error!(capture = capture_id, owner = ?of.map(|of| of.owner), "money went back at PayPal");
    let named = named.filter(|name| *name != capture_id).map(str::to_owned);
    app.store.submit(Note { capture: capture_id.to_owned(), of, named }).await?;
    app.wake.notify();
    Ok(())
}

const fn given_back(capture: &Capture) -> bool {
    matches!(capture.status, CaptureStatus::PartiallyRefunded | CaptureStatus::Refunded)
}

/// Looks at one capture: reads every refund and reversal of it that is not in the books, and books
/// what is final.
///
/// Refund objects first: those the order lists, and those that webhooks named. What is named and is
/// no refund object is a reversal, and only Transaction Search shows it, hours later.
///
/// # Errors
/// [`FlowError`]; the row stays open.
pub async fn look_at(app: &App, row: &Reversal) -> Result<(), FlowError> {
    let Some((Resource::Capture(capture), _)) = read_capture(app, &row.capture).await else {
        return looked(app, row, Vec::new(), false).await;
    };
    let mut reading = Reading { app, row, capture: &capture, dropped: Vec::new(), waits: false };
    for refund in reading.refunds().await? {
        reading.take(&refund).await?;
    }
    let mut fresh = reading.row_now()?;
    if !is_explained(&fresh, &capture) || !fresh.named.is_empty() {
        reading.search().await?;
        fresh = reading.row_now()?;
    }
    let explained = is_explained(&fresh, &capture) && !reading.waits;
    let dropped = std::mem::take(&mut reading.dropped);
    looked(app, row, dropped, explained).await
}

/// Whether what is in the books explains what the capture's status says. A dispute shows as a
/// partial refund too, and leaves again.
fn is_explained(row: &Reversal, capture: &Capture) -> bool {
    let booked = row.booked_micros();
    match capture.status {
        CaptureStatus::Refunded => booked == capture.amount,
        CaptureStatus::PartiallyRefunded => !booked.is_zero(),
        _ => true,
    }
}

async fn looked(
    app: &App,
    row: &Reversal,
    dropped: Vec<String>,
    explained: bool,
) -> Result<(), FlowError> {
    let capture = row.capture.clone();
    Ok(app.store.submit(Looked { capture, dropped, explained }).await?)
}

/// One look.
struct Reading<'a> {
    app: &'a App,
    row: &'a Reversal,
    capture: &'a Capture,
    /// Names that turned out to be nothing.
    dropped: Vec<String>,
    /// Whether a refund is still under way.
    waits: bool,
}

impl Reading<'_> {
    fn row_now(&self) -> Result<Reversal, FlowError> {
        let row = self.app.store.reader().row::<Reversal>(&self.row.capture)?;
        Ok(row.unwrap_or_else(|| self.row.clone()))
    }

    /// The refund objects of this capture that are not in the books.
    async fn refunds(&self) -> Result<Vec<Refund>, FlowError> {
        let mut ids = self.row.named.clone();
        if let Some(order) = &self.capture.order_id {
            let exchange = self.app.paypal.send(&orders::get(order)?).await;
            let listed = exchange.resource().and_then(Resource::order);
            ids.extend(listed.into_iter().flat_map(|order| &order.refunds).map(|it| it.id.clone()));
        }
        ids.sort();
        ids.dedup();
        ids.retain(|id| !self.row.has_booked(id));
        let mut refunds = Vec::new();
        for id in ids {
            // An id that cannot be one of PayPal's is not asked for; a search may still show it.
            let Ok(request) = payments::get_refund(&id) else { continue };
            let exchange = self.app.paypal.send(&request).await;
            if let Outcome::Done { resource: Resource::Refund(refund) } = exchange.outcome {
                refunds.push(*refund);
            }
        }
        Ok(refunds)
    }

    /// Books a refund that is final.
    async fn take(&mut self, refund: &Refund) -> Result<(), FlowError> {
        let own = refund.capture_id.as_deref() == Some(self.capture.id.as_str());
        match (&refund.status, refund.amount) {
            _ if !own => self.dropped.push(refund.id.clone()),
            (RefundStatus::Completed, Some(amount)) => {
                let currency = refund.currency.map(|currency| currency.as_str().to_owned());
                if currency.as_deref() == Some(Currency::Usd.code()) {
                    let fee = refund.fee_returned.unwrap_or(Micros::ZERO);
                    self.book(&refund.id, amount, fee).await?;
                } else {
                    self.waits = true;
                }
            }
            (RefundStatus::Failed | RefundStatus::Cancelled, _) => {
                self.dropped.push(refund.id.clone());
            }
            _ => self.waits = true,
        }
        Ok(())
    }

    async fn book(
        &mut self,
        id: &str,
        amount: Micros,
        fee_returned: Micros,
    ) -> Result<(), FlowError> {
        let suspended = self.app.store.reader().row::<Suspended>(&self.capture.id)?;
        let cleared = suspended.iter().flat_map(|row| &row.cleared);
        let unit = Book {
            cleared_for: cleared.map(|one| one.owner).collect(),
            capture: self.capture.id.clone(),
            of: self.row.of,
            id: id.to_owned(),
            amount,
            fee_returned,
        };
        self.waits |= !self.app.store.submit(unit).await?;
        Ok(())
    }

    /// Books what Transaction Search shows as taken back of this capture; a report that is not
    /// complete is asked again.
    async fn search(&mut self) -> Result<(), FlowError> {
        let heard = self.row.heard_at;
        let made = self.capture.create_time.unwrap_or(self.row.seen_at).min(heard);
        let found = refer_to(&self.app.paypal, &self.capture.id, made, heard, self.app.now()).await;
        let (rows, complete) = match found {
            Evidence::Found { rows, complete } => (rows, complete),
            Evidence::Absent(_) => (Vec::new(), true),
            Evidence::NotYet { .. } | Evidence::Unreadable { .. } => (Vec::new(), false),
        };
        for row in rows.iter().filter(|row| row.gave_back()) {
            let dollars = row.currency.is_some_and(|it| it.as_str() == Currency::Usd.code());
            let Some(amount) = row.amount().filter(|_| dollars) else { continue };
            if !self.row_now()?.has_booked(&row.transaction_id) {
                let fee = row.fee_micros.and_then(|fee| Micros::new(fee).ok());
                self.book(&row.transaction_id, amount, fee.unwrap_or(Micros::ZERO)).await?;
            }
        }
        if complete {
            // Named, and neither a refund nor in the report: it was nothing.
            let named = |id: &&String| rows.iter().all(|row| row.transaction_id != **id);
            self.dropped.extend(self.row.named.iter().filter(named).cloned());
        }
        Ok(())
    }
}
