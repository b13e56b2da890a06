//! One binary of integration tests: through HTTP, against the simulator, a fresh database each; and
//! what has to hold of the tree itself.

#![allow(missing_docs, unreachable_pub, reason = "tests are read, not linked against")]

mod amounts;
mod bad_input;
mod edge;
mod openapi;
mod origins;
mod road;
mod tenants;
mod tidy;
mod wire;
mod world;
