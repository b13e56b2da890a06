//! Bodies too large to stand in a result: kept for a while, each readable by the agent that bought
//! it and by nobody else, under an address that is its own digest.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use earnest_core::quote::body_digest;

/// How long a body is kept: the schema of `paid_fetch` promises it, so it is no setting. Longer than
/// a purchase is remembered, so that what names a body does not outlive it.
const KEPT_FOR: Duration = Duration::from_secs(15 * 60);
/// The most that is kept for one agent, in bytes: four answers of the usual largest size.
const AGENT_BYTES: usize = 32 * 1024 * 1024;
/// The most that is kept for all, in bytes: four agents that use all of theirs, on a server with
/// little memory.
const ALL_BYTES: usize = 128 * 1024 * 1024;
/// What every address begins with.
const PREFIX: &str = "earnest://body/";

/// A body that is kept.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    agent: String,
    at: Instant,
    /// Its address.
    pub(super) uri: String,
    /// What the seller says it is.
    pub(super) content_type: Option<String>,
    /// Itself.
    pub(super) bytes: Bytes,
}

/// The bodies that are kept, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Bodies(Mutex<VecDeque<Stored>>);

impl Bodies {
    /// Keeps a body; its address. The oldest of the same agent make room, then the oldest of all.
    pub(super) fn keep(&self, agent: &str, bytes: Bytes, content_type: Option<String>) -> String {
        let uri = format!("{PREFIX}{}", body_digest(&bytes));
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = Instant::now();
        kept.retain(|body| {
            at.duration_since(body.at) < KEPT_FOR && !(body.agent == agent && body.uri == uri)
        });
        let agent = agent.to_owned();
        kept.push_back(Stored { agent: agent.clone(), at, uri: uri.clone(), content_type, bytes });
        make_room(&mut kept, AGENT_BYTES, |body| body.agent == agent);
        make_room(&mut kept, ALL_BYTES, |_| true);
        uri
    }

    /// A body of this agent's; none where it was never there, is gone, or is another's.
    pub(super) fn find(&self, agent: &str, uri: &str) -> Option<Stored> {
        self.of(agent).into_iter().find(|body| body.uri == uri)
    }

    /// Every body of this agent's, the oldest first.
    pub(super) fn of(&self, agent: &str) -> Vec<Stored> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|body| body.at.elapsed() < KEPT_FOR);
        kept.iter().filter(|body| body.agent == agent).cloned().collect()
    }
}

/// Drops the oldest of those meant until they fit; the newest always stays.
fn make_room(kept: &mut VecDeque<Stored>, most: usize, meant: impl Fn(&Stored) -> bool) {
    loop {
        let sizes = kept.iter().filter(|body| meant(body)).map(|body| body.bytes.len());
        if sizes.fold(0, usize::saturating_add) <= most {
            return;
        }
        let Some(oldest) = kept.iter().position(&meant) else { return };
        if oldest.saturating_add(1) == kept.len() {
            return;
        }
        kept.remove(oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_its_agents_and_the_oldest_make_room() {
        let bodies = Bodies::default();
        let megabytes = |n: usize, fill: u8| Bytes::from(vec![fill; n * 1024 * 1024]);
        let first = bodies.keep("one", megabytes(20, 1), None);
        assert!(bodies.find("one", &first).is_some());
        assert!(bodies.find("two", &first).is_none());
        let second = bodies.keep("one", megabytes(20, 2), Some("text/plain".to_owned()));
        assert!(bodies.find("one", &first).is_none(), "one agent has 32 MiB");
        assert_eq!(bodies.find("one", &second).unwrap().bytes.len(), 20 * 1024 * 1024);
        for n in 0..5 {
            bodies.keep(&format!("other {n}"), megabytes(25, 3), None);
        }
        assert!(bodies.find("one", &second).is_none(), "all have 128 MiB");
        assert_eq!(bodies.of("other 4").len(), 1);
    }
}
