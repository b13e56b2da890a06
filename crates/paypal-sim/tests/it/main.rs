//! The simulator through HTTP, as a PayPal client meets it.

mod client;
mod settlement;
