//! PayPal's REST API for Earnest; the only PayPal JSON.
//!
//! A call is a value, [`Request`], built from typed input into canonical bytes: an intent stores
//! it, commits, and only then [`Client::send`]s it, so a repeat after a restart is the same bytes
//! under the same `PayPal-Request-Id`. What comes back is an [`Outcome`]; whatever cannot be read
//! as an answer is [`Outcome::Unknown`] and stays that until evidence ([`evidence`]) resolves it.
//!
//! This crate decides nothing about our books, keeps no state but tokens and certificates, and
//! never acts on what a webhook says. Modules are named as PayPal names its APIs; payouts and
//! disputes have their place here and come later.

pub mod auth;
pub mod client;
pub mod clock;
pub mod config;
pub mod disputes;
pub mod doctor;
pub mod evidence;
pub mod money;
pub mod orders;
pub mod outcome;
pub mod payments;
pub mod reporting;
pub mod request;
pub mod resource;
pub mod vault;
pub mod webhooks;
mod wire;

pub use client::Client;
pub use config::{Config, ConfigError, Mode, Secret, Timeouts};
pub use outcome::{Exchange, Outcome};
pub use request::{BuildError, Operation, Request};
pub use resource::Resource;
