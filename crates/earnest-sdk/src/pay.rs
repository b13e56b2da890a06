//! What `earnest pay URL --max-price '$0.25' --request-id ID` does: buys one thing and writes it out
//! as it comes.

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{Method, StatusCode};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::buyer::{BuyError, Buyer, OnApproval, PaidFor, Payment};
use crate::wire::PaymentReceipt;

/// One thing to buy.
#[derive(Clone)]
pub struct PayRequest {
    /// `GET` unless told otherwise.
    pub method: Method,
    /// What to ask for.
    pub url: String,
    /// Headers, in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub data: Bytes,
    /// The caller's name for the one thing it wants.
    pub request_id: String,
    /// The most it may cost, where that is not the buyer's own maximum.
    pub max_price: Option<String>,
    /// What to do when the owner has to answer first.
    pub on_approval: OnApproval,
}

impl PayRequest {
    /// A GET under an id.
    pub fn get(url: &str, request_id: &str) -> Self {
        Self {
            method: Method::GET,
            url: url.to_owned(),
            headers: Vec::new(),
            data: Bytes::new(),
            request_id: request_id.to_owned(),
            max_price: None,
            on_approval: OnApproval::Return,
        }
    }
}

impl std::fmt::Debug for PayRequest {
    /// Without the values of headers and the body: credentials of the caller's stand there.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PayRequest")
            .field("method", &self.method)
            .field("url", &self.url)
            .field("headers", &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("request_id", &self.request_id)
            .field("max_price", &self.max_price)
            .finish_non_exhaustive()
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paying {
    /// The seller's status.
    pub status: StatusCode,
    /// Whether it is paid for.
    pub paid: Payment,
    /// What the voucher was for, if one was needed.
    pub paid_for: Option<PaidFor>,
    /// Where the receipt will be.
    pub receipt: Option<PaymentReceipt>,
    /// The bytes written.
    pub bytes: u64,
}

/// Buys, and writes the body to `out` chunk by chunk, whatever its status.
///
/// # Errors
/// [`BuyError`]; when the body broke off, what came before it has been written.
pub async fn pay(
    buyer: &Buyer,
    request: &PayRequest,
    out: &mut (impl AsyncWrite + Unpin),
) -> Result<Paying, BuyError> {
    let mut buying = buyer
        .request(request.method.clone(), &request.url)
        .request_id(&request.request_id)
        .body(request.data.clone())
        .on_approval(request.on_approval);
    for (name, value) in &request.headers {
        buying = buying.header(name, value);
    }
    if let Some(price) = &request.max_price {
        buying = buying.max_price(price);
    }
    let answer = buying.send().await?;
    let mut paying = Paying {
        status: answer.status(),
        paid: answer.paid(),
        paid_for: answer.paid_for(),
        receipt: answer.receipt(),
        bytes: 0,
    };
    let mut body = answer.into_stream();
    while let Some(chunk) = body.next().await {
        let chunk = chunk?;
        let written = async {
            out.write_all(&chunk).await?;
            out.flush().await
        };
        written.await.map_err(|source| BuyError::Output {
            payment: if paying.paid == Payment::No { Payment::No } else { Payment::Unknown },
            request_id: request.request_id.clone(),
            source,
        })?;
        let length = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        paying.bytes = paying.bytes.saturating_add(length);
    }
    Ok(paying)
}
