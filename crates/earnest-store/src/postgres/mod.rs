//! Books on a PostgreSQL server, for as many nodes as wanted.
//!
//! One connection of each node writes ([`write`], [`batch`]), a few read ([`read`], [`pool`]). Every batch
//! locks the head row first and learns what other nodes committed since; see [`write`].

mod batch;
mod link;
mod open;
mod outside;
mod pool;
mod read;
mod sink;
mod write;

#[cfg(feature = "bench")]
pub(crate) use link::{Failure, Link};
pub(crate) use link::{Server, place_of_url};
pub use outside::Apart;
pub(crate) use outside::{copy_of_server, snapshot_of_server};
pub(crate) use pool::Pool;
pub(crate) use sink::PostgresSink;
pub(crate) use write::{Postgres, PostgresOptions};
