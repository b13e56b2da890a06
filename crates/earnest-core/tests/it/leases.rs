//! Leases: one holder at a time, whatever the nodes do.

use earnest_core::lease::{Claim, Claimed, Fenced, GiveBack, Lease};
use earnest_core::problem::Code;
use earnest_core::report::Tick;
use earnest_core::time::SignedDuration;

use crate::world::{World, each};

fn claim(world: &World, node: &str) -> Claimed {
    let claim = Claim { name: "jobs".to_owned(), node: node.to_owned(), seconds: 30 };
    world.run(claim).unwrap()
}

/// INVARIANT: one_node_holds_a_lease.
#[test]
fn one_node_holds_a_lease() {
    each(|world| {
        let first = claim(world, "a");
        assert!((first.held, first.fence) == (true, 1), "{first:?}");
        assert!(!claim(world, "b").held);
        // Asked again early, nothing is written; late, it lasts longer under the same fence.
        let head = world.head();
        world.pass(10);
        let early = claim(world, "a");
        assert_eq!(early, Claimed { left: SignedDuration::from_secs(20), ..first.clone() });
        assert_eq!(world.head(), head);
        world.pass(10);
        assert_eq!(claim(world, "a"), first, "as long as at first");
        assert!(world.head() > head);
        assert!(!claim(world, "b").held);
        // Its holder stood still for too long: another has it, and the first is told so.
        world.pass(31);
        let taken = claim(world, "b");
        assert!((taken.held, taken.fence) == (true, 2), "{taken:?}");
        assert_eq!(claim(world, "a"), Claimed { held: false, ..taken.clone() });
        // The same node after its lease has ended is a new holder too: something may have happened.
        world.pass(31);
        assert_eq!(claim(world, "b").fence, 3);
    });
}

#[test]
fn what_is_given_back_is_free_at_once() {
    each(|world| {
        assert!(claim(world, "a").held);
        let back = |node: &str| GiveBack { name: "jobs".to_owned(), node: node.to_owned() };
        world.run(back("b")).unwrap();
        assert!(!claim(world, "b").held);
        world.run(back("a")).unwrap();
        let taken = claim(world, "b");
        assert!(taken.held && taken.fence == 2, "{taken:?}");
        let row: Lease = world.row("jobs");
        assert_eq!(row.holder, "b");
    });
}

/// INVARIANT: a_node_whose_lease_passed_commits_nothing.
#[test]
fn a_node_whose_lease_passed_commits_nothing() {
    each(|world| {
        let fenced = |node: &str, fence| Fenced {
            lease: "jobs".to_owned(),
            node: node.to_owned(),
            fence,
            unit: Tick,
        };
        let refused = |node, fence| {
            let head = world.head();
            let refusal = world.run(fenced(node, fence)).unwrap_err().into_refusal();
            assert_eq!(refusal.code, Code::StateConflict);
            assert_eq!(world.head(), head);
        };
        refused("a", 0);
        let fence = claim(world, "a").fence;
        world.run(fenced("a", fence)).unwrap();
        refused("b", fence);
        refused("a", fence + 1);
        // It stood still past its end: even if nobody took over.
        world.pass(31);
        refused("a", fence);
        let taken = claim(world, "b").fence;
        refused("a", taken);
        world.run(fenced("b", taken)).unwrap();
    });
}
