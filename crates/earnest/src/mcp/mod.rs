//! The MCP server: an agent's client buys through it, over stdio (`earnest mcp`) or over HTTP
//! (`/mcp`, stateless Streamable HTTP), in both eras of the protocol.
//!
//! The tools reach Earnest only through its public HTTP API and the SDK's buyer, with the key of the
//! agent that calls: what an agent may do here is exactly what it may do there. The two doors
//! differ in one thing, who fetches: on stdio the agent's own machine, on `/mcp` this server,
//! through the [guarded client](crate::outbound).
//!
//! No call lasts longer than 25 s, or less where it is set so: one bound stands around every tool. A
//! purchase that takes longer goes on, and is found again by its `request_id`, whichever connection
//! asks. A connection holds no state of its own.

mod body;
mod door;
mod envelope;
mod fetch;
pub mod http;
mod jobs;
mod read;
mod result;
mod schema;
mod server;
mod task;
mod tools;

use std::time::Duration;

pub use self::door::{Caller, Door};
pub use self::jobs::Lifetime;
pub use self::server::Server;

/// The longest a call may ask to wait.
const LONGEST_WAIT: Duration = Duration::from_secs(25);
/// What a wait leaves of its call, for saying how it stands.
const SAY_WITHIN: Duration = Duration::from_millis(500);
/// How long a call waits unless it says.
const USUAL_WAIT: Duration = Duration::from_secs(20);
/// How often a client that asked for progress hears of it.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// The largest body that stands in a result; a larger one is a resource.
const INLINE_BYTES: usize = 64 * 1024;
