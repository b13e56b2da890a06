//! Leases: one holder at a time, whatever the nodes do.

use earnest_core::lease::{Claim, Claimed, GiveBack, Lease};

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
        assert_eq!(claim(world, "a"), first);
        assert_eq!(world.head(), head);
        world.pass(10);
        let renewed = claim(world, "a");
        assert!(renewed.held && renewed.fence == 1 && renewed.until > first.until);
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
