//! What goes back at PayPal without us, and what comes without being asked for.

use earnest_core::intent::{Charge, Fate, Intent};
use earnest_core::ledger::Account;
use earnest_core::party::Owner;
use earnest_core::reversal::{Book, Reversal};
use earnest_core::settlement::{Settlement, SettlementState};
use earnest_core::suspense::{BookUnasked, Suspended, Why};
use earnest_store::Reader;

use crate::world::{World, each, micros};

/// A settlement of $0.40.
fn planned(world: &World) -> Settlement {
    let (buyer, shop) = (world.buyer(), world.shop());
    world.spend(buyer, &shop, 400_000);
    world.settle(buyer.owner, world.open_tab(buyer))
}

/// A settlement of $0.40 that PayPal captured `amount` for.
fn captured(world: &World, capture: &str, amount: i64) -> Settlement {
    let settlement = planned(world);
    world.outcome(&settlement, Fate::Done(world.charge(capture, amount))).unwrap()
}

/// Debits and credits posted, in thousandths of a dollar.
fn posted(reader: &Reader, account: Account) -> (i64, i64) {
    let totals = reader.totals(&account.usd()).unwrap();
    (totals.debits_posted.get() / 1_000, totals.credits_posted.get() / 1_000)
}

#[test]
fn a_reversal_is_booked_once() {
    each(|world| {
        let settlement = captured(world, "CAP", 400_000);
        for _ in 0..3 {
            assert!(world.give_back(&settlement, "R1", 150_000));
        }
        assert_eq!(posted(world.store.reader(), Account::OwnerDebt(settlement.owner)), (150, 0));
        assert!(world.give_back(&settlement, "R2", 250_000));
        assert_eq!(posted(world.store.reader(), Account::OwnerDebt(settlement.owner)), (400, 0));
        let owner: Owner = world.row(settlement.owner.to_string());
        assert!(owner.frozen.is_some());
        assert_eq!(owner.settled_micros, micros(0));
        assert_eq!(world.breaches(), []);
    });
}

#[test]
fn no_more_goes_back_than_came() {
    each(|world| {
        let settlement = captured(world, "CAP", 400_000);
        assert!(world.give_back(&settlement, "R1", 300_000));
        assert!(!world.give_back(&settlement, "R2", 100_001), "one micro-dollar too much");
        assert!(world.give_back(&settlement, "R3", 100_000));
        assert!(!world.give_back(&settlement, "R4", 1));
        let refundable = Account::CaptureRefundable(settlement.intent);
        assert_eq!(posted(world.store.reader(), refundable), (400, 400));
        assert_eq!(world.breaches(), []);
    });
}

/// What PayPal took too much, and gives back, was never the owner's: it comes out of suspense first.
#[test]
fn what_was_captured_too_much_goes_back_out_of_suspense() {
    each(|world| {
        let settlement = captured(world, "CAP", 450_000);
        assert!(world.give_back(&settlement, "R1", 50_000));
        let owner = |_: ()| posted(world.store.reader(), Account::OwnerDebt(settlement.owner));
        assert_eq!(posted(world.store.reader(), Account::Suspense), (50, 50));
        assert_eq!(owner(()), (0, 0));
        assert!(world.give_back(&settlement, "R2", 10_000));
        assert_eq!(owner(()), (10, 0));
        let suspended: Suspended = world.row("CAP");
        assert_eq!(suspended.left_micros, micros(0));
        assert_eq!(world.breaches(), []);
    });
}

#[test]
fn a_payment_is_booked_once() {
    each(|world| {
        let unasked = |capture: &str| BookUnasked {
            capture: capture.to_owned(),
            amount: micros(950_000),
            fee: micros(520_000),
            invoice_id: None,
            claims: None,
        };
        for _ in 0..3 {
            world.run(unasked("STRANGER")).unwrap();
        }
        assert_eq!(posted(world.store.reader(), Account::Suspense), (0, 950));
        assert_eq!(posted(world.store.reader(), Account::PaypalCash), (950, 520));
        // What is in the books for a settlement is not unasked.
        let settlement = captured(world, "CAP", 400_000);
        world.run(unasked(settlement.paypal_capture.as_deref().unwrap())).unwrap();
        assert_eq!(posted(world.store.reader(), Account::Suspense), (0, 950));
        assert_eq!(world.breaches(), []);
    });
}

/// A capture that came in doubt is the settlement's after all, once PayPal's answer names it: what
/// may be given back of it, and what of it was not asked for, are booked as always.
#[test]
fn what_came_in_doubt_finds_its_settlement_when_paypal_names_it() {
    for (amount, owed, left) in [(300_000, 100, 0), (450_000, 0, 50)] {
        each(|world| {
            let settlement = planned(world);
            let claims = Some((settlement.id, settlement.intent));
            let invoice_id = Some(settlement.invoice_id.clone());
            let (fee, capture) = (micros(520_000), "DOUBT".to_owned());
            world
                .run(BookUnasked { capture, amount: micros(amount), fee, invoice_id, claims })
                .unwrap();
            let thousandths = amount / 1_000;
            assert_eq!(posted(world.store.reader(), Account::Suspense), (0, thousandths));
            let named = Fate::Done(world.charge("DOUBT", amount));
            let done = world.outcome(&settlement, named).unwrap();
            assert_eq!(done.state, SettlementState::AmountMismatch);
            let reader = world.store.reader();
            assert_eq!(posted(reader, Account::Suspense), (thousandths - left, thousandths));
            assert_eq!(posted(reader, Account::PaypalCash), (thousandths, 520));
            assert_eq!(
                posted(reader, Account::CaptureRefundable(settlement.intent)),
                (0, thousandths)
            );
            let tab = world.totals(Account::TabOwed(settlement.tab).usd());
            assert_eq!(tab.collectible().get() / 1_000, owed);
            assert_eq!(world.breaches(), []);
        });
    }
}

/// Whoever knows the ids on a receipt pays a cent under them, and takes that back: it is a payment of
/// its own, and nobody is frozen for it.
#[test]
fn a_settlement_answers_for_its_own_capture_only() {
    each(|world| {
        let settlement = captured(world, "CAP", 400_000);
        let fence = world.row::<Intent>(settlement.intent).fence;
        for (name, given_back) in [("TRICK", false), ("WORSE", true)] {
            let charge = Charge { given_back, ..world.charge(name, 10_000) };
            for _ in 0..2 {
                let fate = Fate::Done(charge.clone());
                world.record(&settlement, settlement.intent, fence, fate).unwrap();
            }
            let row: Suspended = world.row(name);
            assert_eq!((row.why, row.settlement, row.intent), (Why::Unasked, None, None));
        }
        let reader = world.store.reader();
        assert_eq!(posted(reader, Account::Suspense), (0, 20));
        assert_eq!(posted(reader, Account::CaptureRefundable(settlement.intent)), (0, 400));
        let row: Reversal = world.row("WORSE");
        assert_eq!((row.of, row.open), (None, true));
        // What goes back of it goes out of suspense.
        let (capture, id) = ("WORSE".to_owned(), "R1".to_owned());
        let (amount, fee_returned, cleared_for) = (micros(10_000), micros(0), Vec::new());
        let book = Book { capture, of: None, id, amount, fee_returned, cleared_for };
        assert!(world.run(book).unwrap());
        assert_eq!(posted(reader, Account::OwnerDebt(settlement.owner)), (0, 0));
        let owner: Owner = world.row(settlement.owner);
        assert_eq!((owner.frozen, owner.settled_micros), (None, micros(400_000)));
        assert_eq!(world.row::<Settlement>(settlement.id), settlement);
        world.check();
    });
}
