//! The settlement layer for AI agents: HTTP API, flows, jobs and command line.
//!
//! `api` speaks HTTP, `flow` says in which order things happen, `earnest-core` decides, and
//! `earnest-store` records. A flow is *load, decide, record*, then PayPal from an intent, then
//! *record* again. `main.rs` alone touches environment and arguments.

pub mod api;
pub mod app;
pub mod attempts;
pub mod audit;
pub mod backup;
pub mod cli;
pub mod config;
pub mod events;
pub mod figures;
pub mod first;
pub mod flight;
pub mod flow;
pub mod front;
pub mod jobs;
pub mod lead;
pub mod limits;
pub mod listen;
pub mod mcp;
pub mod migrate;
pub mod models;
pub mod outbound;
pub mod pages;
#[cfg(feature = "planted")]
pub mod planted;
pub mod reseal;
pub mod restore;
pub mod sealed;
pub mod serve;
pub mod signing;
pub mod source;
pub mod supervise;
pub mod watch;
