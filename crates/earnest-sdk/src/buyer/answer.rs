//! What a buyer gets: the seller's answer, with what was paid for it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use earnest_core::id::PurchaseId;
use earnest_core::money::Micros;
use earnest_core::quote::Quote;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use super::error::{BuyError, Payment};
use crate::wire::PaymentReceipt;

/// What a voucher was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaidFor {
    /// The purchase.
    pub purchase: PurchaseId,
    /// What was held for it: the price, or its ceiling.
    pub held: Micros,
}

/// What a seller asks for a request that came without payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It costs this.
    Priced(Box<Quote>),
    /// It named no price, and answered. Only a 2xx says that it is free: a 404, a 500, a redirect or
    /// a 402 without a challenge of ours says nothing of what it would cost.
    Unpriced(StatusCode),
}

impl Asked {
    /// The price, where one was named.
    pub fn quote(&self) -> Option<&Quote> {
        match self {
            Self::Priced(quote) => Some(quote),
            Self::Unpriced(_) => None,
        }
    }

    /// Whether it was served without payment.
    pub fn is_free(&self) -> bool {
        matches!(self, Self::Unpriced(status) if status.is_success())
    }
}

/// The seller's answer. A status outside 2xx is an answer too; nothing is charged for it.
#[derive(Debug)]
pub struct Answer {
    response: reqwest::Response,
    request_id: String,
    paid_for: Option<PaidFor>,
}

impl Answer {
    pub(super) const fn new(
        response: reqwest::Response,
        request_id: String,
        paid_for: Option<PaidFor>,
    ) -> Self {
        Self { response, request_id, paid_for }
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The headers.
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// The id it was bought under.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Whether the answer is paid for, provided that its body ends well.
    pub fn paid(&self) -> Payment {
        match self.paid_for {
            Some(_) if self.status().is_success() => Payment::Yes,
            _ => Payment::No,
        }
    }

    /// What the voucher was for, if one was needed.
    pub const fn paid_for(&self) -> Option<PaidFor> {
        self.paid_for
    }

    /// Where the receipt will be, if the seller says so.
    pub fn receipt(&self) -> Option<PaymentReceipt> {
        PaymentReceipt::read(self.headers())
    }

    /// The whole body.
    ///
    /// # Errors
    /// [`BuyError::Broken`]; of a paid answer it is then unknown whether it was charged.
    pub async fn bytes(self) -> Result<Bytes, BuyError> {
        let (payment, request_id) = (self.paid(), self.request_id);
        self.response.bytes().await.map_err(|source| broken(payment, request_id, source))
    }

    /// The whole body as text.
    ///
    /// # Errors
    /// As [`Answer::bytes`]. Bytes that are not UTF-8 are replaced.
    pub async fn text(self) -> Result<String, BuyError> {
        Ok(String::from_utf8_lossy(&self.bytes().await?).into_owned())
    }

    /// The whole body as JSON.
    ///
    /// # Errors
    /// As [`Answer::bytes`]; [`BuyError::Unreadable`] when it is no such JSON, which says that it
    /// *was* paid for.
    pub async fn json<T: DeserializeOwned>(self) -> Result<T, BuyError> {
        let (payment, request_id) = (self.paid(), self.request_id.clone());
        let bytes = self.bytes().await?;
        serde_json::from_slice(&bytes).map_err(|source| BuyError::Unreadable {
            payment,
            request_id,
            source,
        })
    }

    /// The body as it comes.
    pub fn into_stream(self) -> AnswerStream {
        let (payment, request_id) = (self.paid(), self.request_id);
        AnswerStream { inner: self.response.bytes_stream().boxed(), payment, request_id }
    }
}

/// The body of an [`Answer`], chunk by chunk.
pub struct AnswerStream {
    inner: futures_util::stream::BoxStream<'static, reqwest::Result<Bytes>>,
    payment: Payment,
    request_id: String,
}

impl Stream for AnswerStream {
    type Item = Result<Bytes, BuyError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inner.poll_next_unpin(context).map(|next| {
            next.map(|chunk| {
                chunk.map_err(|source| broken(self.payment, self.request_id.clone(), source))
            })
        })
    }
}

const fn broken(paid: Payment, request_id: String, source: reqwest::Error) -> BuyError {
    let payment = match paid {
        Payment::Yes | Payment::Unknown => Payment::Unknown,
        Payment::No => Payment::No,
    };
    BuyError::Broken { payment, request_id, source }
}
