//! The client against small servers of our own, PayPal's OpenAPI files, and the simulator.

#![cfg(test)]
#![allow(unreachable_pub, reason = "a test binary exports nothing")]

mod classify;
mod doctor;
mod evidence;
mod requests;
mod send;
mod server;
mod simulator;
mod webhooks;
