//! Charge for an HTTP route, or buy from one: the 402 layer for sellers and the paying client for
//! agents.
//!
//! # Selling
//! A priced route answers 402 with a quote, serves once for a voucher of Earnest's, and reports
//! what became of it. One line a route:
//!
//! ```
//! use axum::{Router, routing::get};
//! use earnest_sdk::{NonceStore, Seller, SellerConfig, price};
//!
//! async fn weather() -> &'static str {
//!     "sunny"
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), earnest_sdk::SetupError> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let (key, nonces) = ("ek_seller_example", folder.path().join("nonces.db"));
//! # let id = "sel_00000000000000000000000001";
//! let config = SellerConfig::new(
//!     "http://127.0.0.1:4020",
//!     id,
//!     key,
//!     "https://api.example",
//!     NonceStore::open(nonces)?,
//! )?;
//! let seller = Seller::new(config)?;
//! let app: Router = Router::new()
//!     .route("/weather", get(weather).layer(price("$0.02")))
//!     .layer(seller.layer())
//!     .merge(seller.origin_proof());
//! # let _ = app;
//! # Ok(())
//! # }
//! ```
//!
//! # What this crate refuses to do
//! It knows no limits, holds no money and decides no purchase: that is Earnest's. It never serves
//! on a guess (503 when vouchers cannot be checked) and never pays for anything but the request
//! that was made.
#![forbid(unsafe_code)]

mod body;
mod buyer;
mod gate;
mod keys;
mod layer;
mod nonce;
mod origin;
mod paid;
pub mod pay;
mod problem;
mod report;
pub mod sell;
mod seller;
mod setup;
mod wire;

pub use earnest_core;

pub use crate::buyer::{
    Answer, AnswerStream, Asked, BuyError, BuyRequest, Buyer, BuyerBuilder, OnApproval, PaidFor,
    Payment, wrap,
};
pub use crate::keys::Keys;
pub use crate::layer::{PriceLayer, Priced, price, price_up_to};
pub use crate::nonce::{NonceError, NonceStore};
pub use crate::origin::ORIGIN_PROOF_PATH;
pub use crate::paid::{ChargeError, Paid};
pub use crate::problem::Problem;
pub use crate::report::ReporterStatus;
pub use crate::seller::{Seller, SellerConfig};
pub use crate::setup::SetupError;
pub use crate::wire::{PAYMENT_RECEIPT, PaymentReceipt, SCHEME, quote_in};
