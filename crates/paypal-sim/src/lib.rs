//! An offline PayPal over HTTP: own books, faults, clock; knows nothing of Earnest.
//!
//! It speaks OAuth2, Orders v2, Payments v2, Vault v3, Transaction Search v1, Webhooks v1 and, for
//! reading, Disputes v1 as PayPal's documents describe them, keeps its own record of the merchant's
//! money, and notes in a journal what a careful client would not have done. It refuses what PayPal
//! refuses, with the same codes and texts. Payouts are not simulated yet; those paths answer 403
//! like an account that has not enabled them.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use paypal_sim::{Effect, Fault, Sim, SimConfig};
//!
//! let sim = Sim::start(SimConfig::default()).await?;
//! sim.add_fault(Fault::on("orders.create", Effect::DropAfter))?;
//! // … point a PayPal client at sim.base_url(), id and secret "sim" …
//! assert!(sim.violations().is_empty());
//! sim.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod answer;
mod books;
mod call;
mod check;
mod clock;
mod config;
mod control;
mod disputes;
mod faults;
mod ids;
mod issues;
mod journal;
mod money;
mod oauth;
mod orders;
mod pages;
mod payments;
mod pipeline;
mod refunds;
mod render;
mod reporting;
mod route;
mod schemas;
mod server;
mod sim;
mod vault;
mod webhooks;
mod world;

pub use books::{
    BalanceView, Books, BooksView, HAPPENINGS, Happening, Row, RowKind, RowStatus, RowView,
};
pub use clock::Clock;
pub use config::{ALL_SCOPES, Merchant, Payer, Retention, SimConfig};
pub use control::PayerError;
pub use disputes::Favour;
pub use faults::{ActiveFault, Effect, Ending, Fault};
pub use journal::{Entry, Violation};
pub use money::{Currency, FeeSchedule, Money};
pub use sim::{Sim, StartError};
pub use webhooks::{Delivery, DeliveryState};
