//! In which order things happen. Each flow reads the same: load, decide, record; then, where PayPal
//! has to be asked, from an intent, and record again.

pub mod advisor;
pub mod approval;
pub mod cash;
pub mod dispute;
pub mod hook;
pub mod import;
pub mod lost;
pub mod origin;
pub mod party;
pub mod paypal;
pub mod policy;
pub mod purchase;
pub mod receipt;
pub mod reconcile;
pub mod redact;
pub mod report;
pub mod reversal;
pub mod scan;
pub mod settle;
pub mod share;
pub mod sign_in;
pub mod strain;
pub mod vault;
pub mod webhook;
