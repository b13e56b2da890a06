//! What calls to models cost, and who may be asked when.

use earnest_core::id::{ModelCallId, TabId};
use earnest_core::ledger::Account;
use earnest_core::model::{CALL_SECONDS, CallState, EndCall, ModelCall, cap_account, day_of};
use earnest_core::money::Micros;

use crate::world::{World, hours, micros};

/// An owner's open tab that owes something.
fn asked() -> (World, TabId) {
    let world = World::memory();
    let (buyer, shop) = (world.buyer(), world.shop());
    world.spend(buyer, &shop, 30_000);
    let tab = world.open_tab(buyer);
    (world, tab)
}

fn spent(world: &World) -> (i64, i64) {
    let totals = world.totals(Account::ModelCosts.usd());
    assert_eq!(world.totals(Account::ModelPayable.usd()).credits_posted, totals.debits_posted);
    (totals.debits_pending.get(), totals.debits_posted.get())
}

#[test]
fn a_call_is_reserved_before_and_booked_after() {
    let (world, tab) = asked();
    for (cost, state, booked) in [
        (Some(20), CallState::Ended, 20),
        (Some(0), CallState::Ended, 0),
        (Some(50), CallState::Ended, 50),
        // More than was thought: it is spent, so it is in the books.
        (Some(90), CallState::Ended, 90),
        (None, CallState::Unknown, 50),
    ] {
        let before = spent(&world).1;
        let call = world.ask_model(tab, 0, 1_000).unwrap();
        assert_eq!(spent(&world), (50, before));
        assert_eq!(world.end_call(call.id, cost), Some(micros(booked)));
        assert_eq!(spent(&world), (0, before + booked));
        assert_eq!(world.row::<ModelCall>(call.id).state, state);
        // An answer that comes twice, or another after it, changes nothing.
        world.end_call(call.id, Some(1));
        assert_eq!(spent(&world), (0, before + booked));
        world.check();
    }
}

#[test]
fn models_cost_at_most_their_cap() {
    let (world, tab) = asked();
    let first = world.ask_model(tab, 0, 100).unwrap();
    let second = world.ask_model(tab, 0, 100).unwrap();
    assert_eq!(world.ask_model(tab, 0, 100), None, "both are under way");
    world.end_call(first.id, Some(10));
    assert_eq!(world.ask_model(tab, 0, 100), None, "40 have room, 50 are needed");
    world.end_call(second.id, Some(40));
    let third = world.ask_model(tab, 0, 100).unwrap();
    world.end_call(third.id, Some(400));
    assert_eq!(world.ask_model(tab, 0, 100), None);
    world.check();
    // A new day has a new cap; a call counts under the day it was made on.
    world.pass(hours(24));
    let late = world.ask_model(tab, 0, 100).unwrap();
    world.pass(hours(24));
    world.end_call(late.id, Some(30));
    assert_eq!(world.totals(cap_account(late.day)).debits_posted, micros(30));
    assert_ne!(late.day, day_of(world.now()));
    // Lowering the cap below what was used means no room, and no error.
    assert_eq!(world.ask_model(tab, 0, 10), None);
    world.check();
}

#[test]
fn a_call_that_nobody_speaks_of_costs_what_was_reserved() {
    let (world, tab) = asked();
    let call = world.ask_model(tab, 0, 100).unwrap();
    let lost = |id: ModelCallId| world.run(EndCall { id, ended: None }).unwrap();
    world.pass(CALL_SECONDS - 1);
    assert_eq!(lost(call.id), None, "it may still be under way");
    assert_eq!(spent(&world), (50, 0));
    world.pass(1);
    assert_eq!(lost(call.id), Some(micros(50)));
    // Its answer came after all; nobody believes it any more.
    assert_eq!(world.end_call(call.id, Some(10)), Some(micros(50)));
    assert_eq!(spent(&world), (0, 50));
    world.check();
}

#[test]
fn a_tab_is_asked_about_once_in_an_interval() {
    let (world, tab) = asked();
    let first = world.ask_model(tab, 900, 1_000).unwrap();
    assert_eq!(world.ask_model(tab, 900, 1_000), None);
    world.end_call(first.id, None);
    world.pass(899);
    assert_eq!(world.ask_model(tab, 900, 1_000), None, "whatever came of it");
    world.pass(1);
    assert!(world.ask_model(tab, 900, 1_000).is_some());
    // A question that had no room is none: it is asked as soon as there is.
    world.pass(900);
    assert_eq!(world.ask_model(tab, 900, 10), None);
    assert!(world.ask_model(tab, 900, 1_000).is_some());
    // Nobody is asked about a tab that is being settled, or is over.
    world.pass(900);
    let owner = world.tab(tab).owner;
    let settlement = world.settle(owner, tab);
    assert_eq!(world.ask_model(tab, 900, 1_000), None);
    world.capture(&settlement);
    world.close(owner, tab).unwrap();
    assert_eq!(world.ask_model(tab, 900, 1_000), None);
    assert_eq!(spent(&world).1, 50);
    assert!(world.totals(Account::ModelCosts.usd()).debits_pending > Micros::ZERO);
    world.check();
}
