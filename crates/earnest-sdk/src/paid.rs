//! What a handler learns about the purchase it serves, and the ticket that decides its fate.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use earnest_core::id::{PurchaseId, QuoteId, VoucherId};
use earnest_core::money::{AmountError, Micros};
use earnest_core::problem::{Code, Refusal};
use earnest_core::quote::Price;
use earnest_core::voucher::Claims;
use http::request::Parts;

use crate::nonce::{Ending, NonceStore};
use crate::problem::Problem;

/// The purchase behind the request being served: an extractor, and an extension of the request.
///
/// Under `price_up_to`, [`Paid::charge`] names what is actually due, at any time until the body of
/// the answer has ended; the last amount named counts. What is never charged is not billed: the
/// buyer's hold is released in full.
///
/// ```
/// use earnest_sdk::Paid;
/// async fn translate(paid: Paid, text: String) -> Result<String, earnest_sdk::ChargeError> {
///     paid.charge(if text.len() > 1000 { "$0.12" } else { "$0.03" })?;
///     Ok(text)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Paid(Arc<Purchase>);

#[derive(Debug)]
struct Purchase {
    id: PurchaseId,
    quote: QuoteId,
    price: Price,
    charge: Mutex<Charge>,
}

#[derive(Clone, Copy, Debug)]
enum Charge {
    Open(Option<Micros>),
    Closed,
}

/// An amount that cannot be charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChargeError {
    /// Not an amount above zero.
    #[error(transparent)]
    Amount(#[from] AmountError),
    /// Above what the buyer agreed to.
    #[error("{asked} is above the ceiling of {ceiling}")]
    AboveCeiling {
        /// What was to be charged.
        asked: Micros,
        /// What the buyer agreed to.
        ceiling: Micros,
    },
    /// The route has a fixed price, which is charged by serving it.
    #[error("the price is fixed")]
    FixedPrice,
    /// The answer has ended: its outcome is decided.
    #[error("the answer has ended already")]
    Ended,
}

impl IntoResponse for ChargeError {
    /// 500: a handler that charges wrongly is the seller's own fault, and the buyer pays nothing.
    fn into_response(self) -> Response {
        tracing::error!(error = %self, "a handler named an amount that cannot be charged");
        Problem::from(&Refusal::new(Code::Internal, "the seller failed; nothing was charged"))
            .into_response()
    }
}

impl Paid {
    pub(crate) fn new(claims: &Claims) -> Self {
        Self(Arc::new(Purchase {
            id: claims.sub,
            quote: claims.quote,
            price: claims.price(),
            charge: Mutex::new(Charge::Open(None)),
        }))
    }

    /// The purchase, as it stands on the owner's tab and on your earnings.
    pub fn purchase(&self) -> PurchaseId {
        self.0.id
    }

    /// The quote that was accepted.
    pub fn quote(&self) -> QuoteId {
        self.0.quote
    }

    /// What is held: the price, or its ceiling.
    pub fn held(&self) -> Micros {
        self.0.price.most()
    }

    /// Names what is actually due, such as `"$0.12"`. Replaces what was named before.
    ///
    /// # Errors
    /// [`ChargeError`]; what was named before then stays.
    pub fn charge(&self, amount: &str) -> Result<(), ChargeError> {
        self.charge_micros(Micros::parse(amount)?)
    }

    /// Like [`Paid::charge`], for a computed amount.
    ///
    /// # Errors
    /// [`ChargeError`]; what was named before then stays.
    pub fn charge_micros(&self, asked: Micros) -> Result<(), ChargeError> {
        let Price::UpTo(ceiling) = self.0.price else {
            return Err(ChargeError::FixedPrice);
        };
        if asked.is_zero() {
            return Err(AmountError::NotPositive.into());
        }
        // INVARIANT: nobody_is_charged_more_than_they_agreed_to
        if asked > ceiling {
            return Err(ChargeError::AboveCeiling { asked, ceiling });
        }
        match &mut *self.lock() {
            Charge::Open(amount) => *amount = Some(asked),
            Charge::Closed => return Err(ChargeError::Ended),
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Charge> {
        // A poisoned lock still guards a whole value: it is replaced in one assignment.
        self.0.charge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends charging and says what a clean end means.
    fn close(&self) -> Ending {
        let charge = std::mem::replace(&mut *self.lock(), Charge::Closed);
        match (self.0.price, charge) {
            (Price::Fixed(_), _) => Ending::Redeemed(None),
            (Price::UpTo(_), Charge::Open(Some(amount))) => Ending::Redeemed(Some(amount)),
            (Price::UpTo(_), Charge::Open(None) | Charge::Closed) => {
                tracing::warn!(purchase = %self.0.id, "served, but nothing was charged");
                Ending::Failed
            }
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Paid {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            tracing::error!("a handler takes `Paid`, but its route has no price");
            Problem::from(&Refusal::new(Code::Internal, "the route has no price")).into_response()
        })
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Paid {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

/// The right to serve one voucher once. Dropping it unused means *failed*: whatever becomes of the
/// request (a panic, a time-out, a buyer that hangs up), something is said about it.
pub(crate) struct Ticket {
    store: NonceStore,
    jti: VoucherId,
    token: u64,
    paid: Paid,
    decided: bool,
}

impl Ticket {
    /// Must exist before its claim is sent, so that a claim whose asker is gone still ends.
    pub(crate) fn new(store: NonceStore, jti: VoucherId, token: u64, paid: Paid) -> Self {
        Self { store, jti, token, paid, decided: false }
    }

    /// The whole answer went out.
    pub(crate) fn redeem(mut self) {
        self.decided = true;
        self.store.finish(self.jti, self.token, self.paid.close());
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.decided {
            let _what_a_clean_end_would_mean = self.paid.close();
            self.store.finish(self.jti, self.token, Ending::Failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paid(price: Price) -> Paid {
        Paid(Arc::new(Purchase {
            id: PurchaseId::from_value(1),
            quote: QuoteId::from_value(1),
            price,
            charge: Mutex::new(Charge::Open(None)),
        }))
    }

    #[test]
    fn nobody_is_charged_more_than_they_agreed_to() {
        let ceiling = Micros::constant(500_000);
        let paid = paid(Price::UpTo(ceiling));
        paid.charge("$0.50").unwrap();
        let asked = Micros::constant(500_001);
        assert_eq!(paid.charge("$0.500001"), Err(ChargeError::AboveCeiling { asked, ceiling }));
        assert_eq!(paid.close(), Ending::Redeemed(Some(ceiling)));
    }

    #[test]
    fn the_end_decides() {
        let open = paid(Price::UpTo(Micros::constant(10)));
        assert_eq!(open.close(), Ending::Failed, "nothing was named");
        assert_eq!(open.charge("0.000001"), Err(ChargeError::Ended));
        let fixed = paid(Price::Fixed(Micros::constant(10)));
        assert_eq!(fixed.charge("0.000001"), Err(ChargeError::FixedPrice));
        assert_eq!(fixed.close(), Ending::Redeemed(None));
    }
}
