//! The seeded simulation of the whole engine: people, sellers, an operator and PayPal act on real
//! books through the real rules, while nothing else is real. Clock, disk, PayPal and chance are
//! this crate's own and come from one seed, so that a run can be had again, byte for byte.
//!
//! - On a **disk** that stops, fails, fills up and forgets what was not synced ([`disk`], under
//!   SQLite by [`vfs`]).
//! - On two **nodes** that write one set of books in memory and end now and then.
//! - In **quiet**, where only PayPal loses answers: the rules alone, fast.
//!
//! Requests and answers are lost, clients ask again, twice, together and late. After each step
//! every invariant of [`earnest_core::invariant`] holds, and what was acknowledged is there. At the
//! end nothing goes wrong any more, and everything must drain: no open intent, nothing waiting,
//! tabs settled, trial balance 0, our books equal to PayPal's.
//!
//! ```
//! let plan = earnest_sim::Plan { steps: 40, ..earnest_sim::Plan::new(7) };
//! let lived = earnest_sim::run(&plan).unwrap();
//! assert_eq!(lived.digest, earnest_sim::run(&plan).unwrap().digest);
//! ```
//!
//! What is found wrong is a panic, as in a test; [`run`] makes it a [`Fallen`]. Nothing here is
//! ever on the road of real money.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a simulation that panics has found a breach, which is what it is for"
)]

mod disk;
mod follow;
mod life;
mod paypal;
mod place;
mod random;
mod vfs;
pub mod world;

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use sha2::{Digest, Sha256};

use life::{Life, Trace};

pub use disk::{Disk, Trouble};
pub use place::Ticking;
pub use random::Random;
pub use world::World;

/// Where the books of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// In memory, one node; only PayPal loses answers.
    Quiet,
    /// In memory, two nodes.
    Nodes,
    /// On a disk that fails.
    Disk,
}

impl Arrangement {
    /// Every arrangement.
    pub const ALL: [Self; 3] = [Self::Quiet, Self::Nodes, Self::Disk];

    /// The one that belongs to a seed, unless another is asked for.
    pub const fn of(seed: u64) -> Self {
        match seed % 8 {
            0 => Self::Quiet,
            2 | 5 | 7 => Self::Nodes,
            _ => Self::Disk,
        }
    }

    /// Its name, as on a command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Nodes => "nodes",
            Self::Disk => "disk",
        }
    }
}

impl fmt::Display for Arrangement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How many steps a run has, unless told otherwise.
pub const STEPS: u64 = 300;

/// What is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where all chance comes from.
    pub seed: u64,
    /// How many steps before the end.
    pub steps: u64,
    /// Where the books are.
    pub arrangement: Arrangement,
    /// Whether payers dispute. Lives apart: frozen owners buy less, and less happens in them.
    pub disputes: bool,
    /// The bug to plant, for tests of tests.
    #[cfg(feature = "planted")]
    pub planted: Option<earnest_core::planted::Bug>,
}

impl Plan {
    /// The run of a seed.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            steps: STEPS,
            arrangement: Arrangement::of(seed),
            disputes: seed % 5 == 3,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }
}

/// A run that ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lived {
    /// SHA-256 over what was done and the end of the log, in hex: the same for the same plan.
    pub digest: String,
    /// How many units were recorded.
    pub entries: u64,
    /// How often the power went.
    pub power_cuts: u64,
    /// How often a process ended by itself.
    pub deaths: u64,
    /// How often the disk failed otherwise, or stopped.
    pub troubles: u64,
    /// What was done, one line a step.
    pub trace: Vec<String>,
}

/// A run that found something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallen {
    /// What was found.
    pub why: String,
    /// What was done until then, one line a step.
    pub trace: Vec<String>,
}

/// Runs a plan from its beginning to its end, in this thread.
///
/// # Errors
/// [`Fallen`] at the first breach.
pub fn run(plan: &Plan) -> Result<Lived, Box<Fallen>> {
    #[cfg(feature = "planted")]
    earnest_core::planted::plant(plan.planted);
    let trace = Trace::default();
    let told = trace.clone();
    let ended = catch_unwind(AssertUnwindSafe(|| live(plan, told)));
    #[cfg(feature = "planted")]
    earnest_core::planted::plant(None);
    let trace =
        Rc::try_unwrap(trace).map_or_else(|kept| kept.borrow().clone(), RefCell::into_inner);
    match ended {
        Ok(lived) => Ok(Lived { trace, ..lived }),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let lost = || panic.downcast_ref::<place::Lost>().map(|lost| lost.0.clone());
            let why = text.or_else(lost).unwrap_or_else(|| "panicked".to_owned());
            Err(Box::new(Fallen { why, trace }))
        }
    }
}

fn live(plan: &Plan, trace: Trace) -> Lived {
    let mut life = Life::begin(plan, trace.clone());
    for _ in 0..plan.steps {
        life.step();
    }
    life.end();
    let head = life.world.read(|reader| reader.head());
    let (power_cuts, deaths) = life.world.place.stops();
    let mut digest = Sha256::new();
    for line in trace.borrow().iter() {
        digest.update(line.as_bytes());
        digest.update([b'\n']);
    }
    digest.update(head.hash);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Lived {
        digest: hex(&digest.finalize()),
        entries: head.seq,
        power_cuts,
        deaths,
        troubles: life.world.place.troubles(),
        trace: Vec::new(),
    }
}
