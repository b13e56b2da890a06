//! Who has how many streams of events.
//!
//! A stream holds a connection for as long as its client likes. So one key has few of them, the
//! agents of one owner have few together, and all of them have at most half of the connections: the
//! rest is for requests that end. The operator is not counted among all, so that whoever has to look
//! after an attack can.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use earnest_core::id::OwnerId;
use earnest_core::party::Principal;
use earnest_core::problem::{Code, Refusal};
use tokio::sync::Semaphore;

use crate::app::Verified;
use crate::limits::Limits;

/// How soon whoever has too many should come back.
const RETRY_SECONDS: i64 = 15;

/// Places in the stream of events.
pub struct Seats {
    taken: Mutex<Taken>,
    most: usize,
    most_of_principal: usize,
    most_of_owner: usize,
}

#[derive(Default)]
struct Taken {
    /// Without the operator's.
    all: usize,
    principals: HashMap<String, Same>,
    /// Those of an owner's agents together.
    owners: HashMap<OwnerId, usize>,
}

/// Those who are the same.
struct Same {
    streams: usize,
    /// They read one after the other.
    turn: Arc<Semaphore>,
}

/// A place in the stream of events; free again when dropped.
pub struct Seat {
    /// Who listens.
    pub principal: Principal,
    /// The owner, where it is an agent.
    owner: Option<OwnerId>,
    turn: Arc<Semaphore>,
    seats: Arc<Seats>,
}

impl Seats {
    /// As many as the limits say.
    pub fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            taken: Mutex::default(),
            most: limits.event_streams.min(limits.connections / 2).max(1),
            most_of_principal: limits.event_streams_per_principal,
            most_of_owner: limits.event_streams_per_owner,
        })
    }

    /// A place for one more stream of this principal's.
    ///
    /// # Errors
    /// `rate_limited`, with the number that is reached.
    pub fn take(self: &Arc<Self>, who: Verified) -> Result<Seat, Refusal> {
        let principal = who.principal;
        let owner = who.owner.filter(|_| matches!(principal, Principal::Agent(_)));
        let name = principal.to_string();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.principals.get(&name).map_or(0, |same| same.streams);
        if own >= self.most_of_principal {
            return Err(too_many("this key's holder has", self.most_of_principal));
        }
        let of_owner = owner.and_then(|owner| taken.owners.get(&owner)).copied().unwrap_or(0);
        if owner.is_some() && of_owner >= self.most_of_owner {
            return Err(too_many("the agents of this owner have", self.most_of_owner));
        }
        if principal != Principal::Operator {
            if taken.all >= self.most {
                return Err(too_many("all together have", self.most));
            }
            taken.all = taken.all.saturating_add(1);
        }
        if let Some(owner) = owner {
            taken.owners.insert(owner, of_owner.saturating_add(1));
        }
        let fresh = || Same { streams: 0, turn: Arc::new(Semaphore::new(1)) };
        let same = taken.principals.entry(name).or_insert_with(fresh);
        same.streams = same.streams.saturating_add(1);
        let turn = Arc::clone(&same.turn);
        Ok(Seat { principal, owner, turn, seats: Arc::clone(self) })
    }

    /// How many streams there are.
    pub fn taken(&self) -> usize {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.principals.values().map(|same| same.streams).sum()
    }
}

fn too_many(who: &str, most: usize) -> Refusal {
    let why =
        format!("{who} {most} streams of events already: one is enough for all that is shown");
    Refusal::new(Code::RateLimited, why).with("limit", most).retry_after(RETRY_SECONDS)
}

impl Seat {
    /// What lets those who are the same read one after the other.
    pub(super) fn turn(&self) -> Arc<Semaphore> {
        Arc::clone(&self.turn)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if self.principal != Principal::Operator {
            taken.all = taken.all.saturating_sub(1);
        }
        let name = self.principal.to_string();
        if let Some(same) = taken.principals.get_mut(&name) {
            same.streams = same.streams.saturating_sub(1);
            if same.streams == 0 {
                taken.principals.remove(&name);
            }
        }
        if let Some(owner) = self.owner
            && let Some(count) = taken.owners.get_mut(&owner)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                taken.owners.remove(&owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earnest_core::id::{AgentId, SellerId};

    fn agent(of: u128, n: u128) -> Verified {
        let owner = Some(OwnerId::from_value(of));
        Verified { principal: Principal::Agent(AgentId::from_value(n)), key: None, owner }
    }

    fn plain(principal: Principal) -> Verified {
        Verified { principal, key: None, owner: None }
    }

    #[test]
    fn nobody_has_all_streams() {
        let limits = Limits {
            event_streams: 6,
            event_streams_per_principal: 2,
            event_streams_per_owner: 3,
            ..Limits::default()
        };
        let seats = Seats::new(&limits);
        let mut held = Vec::new();
        let check = |held: &mut Vec<Seat>, who: Verified, expect: bool| {
            let seat = seats.take(who);
            assert_eq!(seat.is_ok(), expect, "{who:?}: {:?}", seat.as_ref().err());
            held.extend(seat);
        };
        check(&mut held, agent(1, 1), true);
        check(&mut held, agent(1, 1), true);
        check(&mut held, agent(1, 1), false);
        check(&mut held, agent(1, 2), true);
        check(&mut held, agent(1, 2), false);
        // An owner is not shut out by its agents.
        let owner = OwnerId::from_value(1);
        let own = Verified { principal: Principal::Owner(owner), key: None, owner: Some(owner) };
        check(&mut held, own, true);
        check(&mut held, agent(2, 3), true);
        check(&mut held, plain(Principal::Seller(SellerId::from_value(1))), true);
        check(&mut held, plain(Principal::Seller(SellerId::from_value(2))), false);
        // Nor is the operator by anybody.
        check(&mut held, plain(Principal::Operator), true);
        assert_eq!(seats.taken(), 7);
        held.clear();
        assert_eq!(seats.taken(), 0);
        let taken = seats.taken.lock().unwrap();
        assert!(taken.all == 0 && taken.owners.is_empty() && taken.principals.is_empty());
    }

    #[test]
    fn requests_keep_half_of_the_connections() {
        let limits =
            Limits { connections: 10, event_streams_per_principal: 1, ..Limits::default() };
        let seats = Seats::new(&limits);
        let take = |n| seats.take(agent(n, n));
        let held: Vec<Seat> = (0..5).map(|n| take(n).unwrap()).collect();
        assert_eq!(take(5).err().map(|refusal| refusal.code), Some(Code::RateLimited));
        drop(held);
        assert!(take(5).is_ok());
    }
}
