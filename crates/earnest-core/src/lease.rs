//! Which node does what only one may do, where several run on one database.
//!
//! A lease is a row with an end: whoever holds it claims it again before that, anybody else only
//! after. Every change of hands raises the fence, by which work of an earlier holder that comes late
//! is told from work of the present one (Kleppmann, "How to do distributed locking"). The time is
//! that of the books, so that nodes whose clocks differ agree on it.

use serde::{Deserialize, Serialize};

use crate::problem::{Code, Refusal};
use crate::time::{SignedDuration, Timestamp};
use crate::unit::{Effects, Key, Record, Stop, Touches, Unit, View, rank};

/// A lease as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// What it is for.
    pub name: String,
    /// The node that holds it, or held it last.
    pub holder: String,
    /// How often it changed hands.
    pub fence: u64,
    /// From when on anybody may claim it.
    pub until: Timestamp,
}

impl Record for Lease {
    const KIND: &'static str = "lease";
    const RANK: u8 = rank::ROW;

    fn id(&self) -> String {
        self.name.clone()
    }
}

/// What a node that asked for a lease was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Whether it holds the lease now.
    pub held: bool,
    /// The fence of whoever holds it.
    pub fence: u64,
    /// How long it lasts from now on, if nobody asks for more.
    pub left: SignedDuration,
}

/// A node asks for a lease, or for more of one that it holds.
#[derive(Clone, Debug)]
pub struct Claim {
    /// What it is for.
    pub name: String,
    /// Who asks: a name that no other node ever has.
    pub node: String,
    /// For how long, in seconds.
    pub seconds: i64,
}

impl Unit for Claim {
    type Answer = Claimed;

    fn name(&self) -> &'static str {
        "claim_lease"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Lease>(&self.name);
        touches
    }

    // INVARIANT: one_node_holds_a_lease
    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Claimed>, Stop> {
        let found = view.row::<Lease>(&self.name)?;
        let running = found.filter(|lease| lease.until > now);
        let told = |lease: &Lease| Claimed {
            held: lease.holder == self.node,
            fence: lease.fence,
            left: lease.until.duration_since(now),
        };
        if let Some(lease) = running {
            // More than half of it left is enough: the log need not grow for every question.
            let left = lease.until.duration_since(now).as_millis();
            let half = left.saturating_mul(2) > i128::from(self.seconds).saturating_mul(1_000);
            if lease.holder != self.node || half {
                return Ok(Effects::answer(told(lease)));
            }
        }
        let kept = running.is_some();
        let fence = found.map_or(0, |lease| lease.fence);
        let end = now.saturating_add(SignedDuration::from_secs(self.seconds));
        let lease = Lease {
            name: self.name.clone(),
            holder: self.node.clone(),
            fence: if kept { fence } else { fence.saturating_add(1) },
            until: end.map_err(|why| Stop::Bug(why.to_string()))?,
        };
        let mut effects = Effects::answer(told(&lease));
        effects.put(lease)?;
        Ok(effects)
    }
}

/// A node that ends gives its lease back, so that another need not wait for its end.
#[derive(Clone, Debug)]
pub struct GiveBack {
    /// What it is for.
    pub name: String,
    /// Who gives it back.
    pub node: String,
}

impl Unit for GiveBack {
    type Answer = ();

    fn name(&self) -> &'static str {
        "give_lease_back"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Lease>(&self.name);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        if let Some(lease) = view.row::<Lease>(&self.name)?
            && lease.holder == self.node
            && lease.until > now
        {
            effects.put(Lease { until: now, ..lease.clone() })?;
        }
        Ok(effects)
    }
}

/// A unit that commits only while its node holds a lease: what a node does that stood still for so
/// long that another took over is refused where it would have been written.
#[derive(Clone, Debug)]
pub struct Fenced<U> {
    /// What the lease is for.
    pub lease: String,
    /// Who holds it, as far as it knows.
    pub node: String,
    /// Under which fence.
    pub fence: u64,
    /// What it wants to do.
    pub unit: U,
}

impl<U: Unit> Unit for Fenced<U> {
    type Answer = U::Answer;

    fn name(&self) -> &'static str {
        self.unit.name()
    }

    fn key(&self) -> Option<Key> {
        self.unit.key()
    }

    fn touches(&self, view: &View, now: Timestamp) -> Touches {
        let mut touches = self.unit.touches(view, now);
        touches.row::<Lease>(&self.lease);
        touches
    }

    // INVARIANT: a_node_whose_lease_passed_commits_nothing
    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<U::Answer>, Stop> {
        let lease = view.row::<Lease>(&self.lease)?;
        let holds = lease.is_some_and(|lease| {
            lease.holder == self.node && lease.fence == self.fence && lease.until > now
        });
        if !holds {
            return Err(Stop::Unheard(Box::new(passed())));
        }
        self.unit.decide(view, now)
    }
}

/// What a node is told that does not hold the lease for what it wants to do.
pub fn passed() -> Refusal {
    Refusal::new(Code::StateConflict, "another node does this now")
}
