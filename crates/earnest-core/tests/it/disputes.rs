//! What a payer disputes: its owner is frozen at once, and what may be lost counts against him.

use earnest_core::dispute::{
    BookWithheld, Case, Concerned, Disputed, LookedDisputed, Stage, TellCase, Withholding,
};
use earnest_core::intent::Fate;
use earnest_core::ledger::Account;
use earnest_core::party::Owner;
use earnest_core::reversal::{Captured, Reversal};
use earnest_core::settlement::Settlement;

use crate::world::{World, each, micros};

/// A settlement of $0.40, captured.
fn captured(world: &World) -> Settlement {
    let (buyer, shop) = (world.buyer(), world.shop());
    world.spend(buyer, &shop, 400_000);
    let settlement = world.settle(buyer.owner, world.open_tab(buyer));
    world.outcome(&settlement, Fate::Done(world.charge("CAP", 400_000))).unwrap()
}

fn whose(of: &Settlement) -> Concerned {
    let of = Captured { intent: of.intent, settlement: of.id, owner: of.owner };
    Concerned { of: Some(of), paid_by: Vec::new() }
}

fn tell(world: &World, of: &Settlement, id: &str, stage: Stage, amount: i64) -> bool {
    let case = Case { id: id.to_owned(), stage, amount_micros: micros(amount), reason: None };
    world.run(TellCase { capture: "CAP".to_owned(), whose: whose(of), case }).unwrap()
}

fn withhold(world: &World, of: &Settlement, id: &str, way: Withholding, amount: i64) {
    let of = Some(("CAP".to_owned(), whose(of)));
    let (paypal_id, reference) = (id.to_owned(), Some("CAP".to_owned()));
    world.run(BookWithheld { paypal_id, way, amount: micros(amount), reference, of }).unwrap();
}

/// Whether the owner is frozen, and what counts against him.
fn owner(world: &World, of: &Settlement) -> (bool, i64) {
    let owner: Owner = world.row(of.owner);
    (owner.frozen.is_some(), owner.disputed_micros.get())
}

/// The operator lifts the freeze.
fn thaw(world: &World, of: &Settlement) {
    let (owner_id, line) = (of.owner, None);
    world.run(earnest_core::admin::SetCredit { owner: owner_id, line, unfreeze: true }).unwrap();
    assert!(!owner(world, of).0);
}

fn alarms(world: &World) -> usize {
    world.events_since(0).iter().filter(|kind| *kind == "alarm.dispute_opened").count()
}

#[test]
fn a_dispute_freezes_and_counts_once() {
    each(|world| {
        let of = captured(world);
        assert!(tell(world, &of, "PP-1", Stage::Open, 300_000));
        assert_eq!(owner(world, &of), (true, 300_000));
        // Told again, and withheld for it: the same money, and no reason to freeze anew.
        thaw(world, &of);
        assert!(!tell(world, &of, "PP-1", Stage::Open, 300_000));
        withhold(world, &of, "H1", Withholding::Hold, 300_000);
        assert_eq!(owner(world, &of), (false, 300_000));
        assert_eq!((alarms(world), world.breaches()), (1, Vec::new()));
        // Another dispute is another reason.
        assert!(tell(world, &of, "PP-2", Stage::Open, 100_000));
        assert_eq!(owner(world, &of), (true, 400_000));
        // Won: given back by what PayPal releases. The freeze is the operator's to lift.
        assert!(tell(world, &of, "PP-1", Stage::Won, 300_000));
        assert!(tell(world, &of, "PP-2", Stage::Won, 100_000));
        assert_eq!(owner(world, &of), (true, 300_000));
        withhold(world, &of, "R1", Withholding::Release, 300_000);
        assert_eq!(owner(world, &of), (true, 0));
        let kinds = world.events_since(0);
        assert_eq!(kinds.iter().filter(|kind| *kind == "dispute.won").count(), 2);
        assert_eq!(world.breaches(), []);
    });
}

/// The report tells first: the hold alone freezes, and the dispute that comes after it is no news.
#[test]
fn a_hold_freezes_before_its_dispute_is_known() {
    each(|world| {
        let of = captured(world);
        withhold(world, &of, "H1", Withholding::Hold, 400_000);
        assert_eq!(owner(world, &of), (true, 400_000));
        assert!(world.row::<Disputed>("CAP").lacks_a_case());
        thaw(world, &of);
        assert!(tell(world, &of, "PP-1", Stage::Open, 400_000));
        assert_eq!(owner(world, &of), (false, 400_000));
        // Reopened after it was lost: that is news.
        assert!(tell(world, &of, "PP-1", Stage::Lost, 400_000));
        withhold(world, &of, "R1", Withholding::Release, 400_000);
        assert_eq!(owner(world, &of), (false, 0));
        assert!(tell(world, &of, "PP-1", Stage::Open, 400_000));
        assert_eq!(owner(world, &of), (true, 400_000));
        assert_eq!(world.breaches(), []);
    });
}

/// Another hold than any dispute that is known: somebody else told of it before we did, or nobody.
#[test]
fn a_hold_beyond_the_disputes_that_are_known_freezes() {
    each(|world| {
        let of = captured(world);
        tell(world, &of, "PP-1", Stage::Open, 100_000);
        tell(world, &of, "PP-1", Stage::Won, 100_000);
        thaw(world, &of);
        withhold(world, &of, "H1", Withholding::Hold, 100_000);
        assert_eq!(owner(world, &of), (false, 100_000));
        withhold(world, &of, "R1", Withholding::Release, 100_000);
        withhold(world, &of, "H2", Withholding::Hold, 100_000);
        assert_eq!(owner(world, &of), (true, 100_000));
        // It is asked which dispute that is, for a day.
        let open = || world.row::<Disputed>("CAP").is_open();
        for _ in 0..30 {
            assert!(open());
            world.run(LookedDisputed { capture: "CAP".to_owned() }).unwrap();
        }
        assert!(!open());
        assert_eq!(world.breaches(), []);
    });
}

/// PayPal gives to the payer what it had withheld, under the id of the hold: it left the balance once, and
/// is the owner's debt as any reversal is.
#[test]
fn what_was_withheld_and_goes_back_is_a_reversal_and_not_recorded_by_hand() {
    each(|world| {
        let of = captured(world);
        withhold(world, &of, "H1", Withholding::Hold, 300_000);
        // Not so much was withheld: somebody has to look.
        assert!(!world.give_back(&of, "H1", 200_000));
        for _ in 0..2 {
            assert!(world.give_back(&of, "H1", 300_000));
        }
        let row: Reversal = world.row("CAP");
        assert_eq!((row.booked.len(), row.by_hand.len()), (1, 0));
        assert_eq!(world.thousandths(Account::OwnerDebt(of.owner)), "0/300/0/0");
        assert_eq!(world.thousandths(Account::Disputes), "0/300/0/300");
        assert_eq!(world.thousandths(Account::PaypalCash), "0/400/0/800");
        assert_eq!(owner(world, &of), (true, 0));
        assert_eq!(world.breaches(), []);
    });
}
