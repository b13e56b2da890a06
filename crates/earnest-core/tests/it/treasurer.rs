//! As few captures as is safe, and sums that hold whatever the amounts.

use earnest_core::fee::Schedule;
use earnest_core::intent;
use earnest_core::ledger::Account;
use earnest_core::money::Micros;
use earnest_core::purchase::Purchase;
use earnest_core::settings::Settings;
use earnest_core::settlement::{Settled, Settlement};
use earnest_core::tab::TabState;
use earnest_core::voucher::Fate;
use proptest::prelude::*;

use crate::world::{Buyer, Engine, World, each_with, hours, micros};

/// Lets the treasurer look at every tab that counts; captures what it plans. How many captures.
fn look(world: &World, buyer: Buyer) -> usize {
    let owner = world.owned(buyer);
    let tabs: Vec<_> = owner.earlier_tabs.iter().chain(&owner.open_tab).copied().collect();
    let mut captures = 0;
    for tab in tabs {
        if let Settled::Planned(settlement) = world.treasure(buyer.owner, tab, false) {
            world.capture(&settlement);
            captures += 1;
        }
    }
    captures
}

#[test]
fn forty_paid_calls_settle_in_at_most_three_captures() {
    for settings in [Settings::default(), Settings::simulated()] {
        each_with(&settings, |world| {
            let (buyer, shop) = (world.buyer(), world.shop());
            let mut captures = 0;
            for _ in 0..40 {
                world.spend(buyer, &shop, 100_000);
                world.pass(20);
                captures += look(world, buyer);
            }
            world.pass(1_800);
            captures += look(world, buyer);
            let owed =
                world.totals(Account::TabOwed(world.all::<earnest_core::tab::Tab>()[0].id).usd());
            if owed.collectible() > Micros::ZERO {
                // Below the minimum at its end: it waits for the next tab, or for a day.
                world.pass(hours(24));
                captures += look(world, buyer);
            }
            assert!((1..=3).contains(&captures), "{captures}");
            let totals = world.totals(Account::PaypalCash.usd());
            assert_eq!(totals.debits_posted, micros(4_000_000));
            let fee = captures * 490_000 + 139_600;
            let found = usize::try_from(totals.credits_posted.get()).unwrap();
            assert!(found.abs_diff(fee) <= 10_000 * captures, "{found} of about {fee}");
        });
    }
}

#[test]
fn an_end_below_the_minimum_is_carried_and_captured_with_the_next() {
    each_with(&Settings::default(), |world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 4_990_000);
        let first = world.open_tab(buyer);
        world.pass(1_800);
        let carried = world.treasure(buyer.owner, first, false);
        assert!(matches!(carried, Settled::Carried(_)), "{carried:?}");
        assert_eq!(world.tab(first).state, TabState::Closed);
        world.spend(buyer, &shop, 20_000);
        let second = world.open_tab(buyer);
        assert_eq!(world.thousandths(Account::TabOwed(second)), "0/5010/0/0");
        assert_eq!(world.thousandths(Account::TabOwed(first)), "0/4990/0/4990");
        world.pass(1_800);
        let Settled::Planned(settlement) = world.treasure(buyer.owner, second, false) else {
            panic!("together they are worth a fee");
        };
        let tabs: Vec<_> = settlement.lines.iter().map(|range| range.tab).collect();
        assert_eq!(tabs, [first, second]);
        assert_eq!(settlement.amount_micros, micros(5_010_000));
        world.capture(&settlement);
        assert!(world.tab(second).finished);
        assert_eq!(world.owned(buyer).earlier_tabs, []);
    });
}

#[test]
fn carried_lines_of_a_declined_settlement_are_listed_by_the_next_attempt() {
    each_with(&Settings::default(), |world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        for _ in 0..3 {
            // Three sessions, each carried to the next.
            world.spend(buyer, &shop, 1_005_000);
            world.pass(1_800);
            world.treasure(buyer.owner, world.open_tab(buyer), false);
        }
        world.spend(buyer, &shop, 1_005_000);
        let tab = world.open_tab(buyer);
        let first = world.settle(buyer.owner, tab);
        assert_eq!(first.lines.len(), 4);
        world.spend(buyer, &shop, 7_000);
        world.decline(&first);
        assert_eq!(world.tab(tab).carried_lines.len(), 3);
        let again = world.settle(buyer.owner, tab);
        assert_eq!(again.lines_micros, micros(4_027_000));
        assert_eq!(again.amount_micros, micros(4_020_000));
        assert_eq!(again.lines[3].to, 2);
        world.capture(&again);
    });
}

#[test]
fn a_small_room_lowers_the_minimum_and_exposure_ignores_it() {
    each_with(&Settings::default(), |world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let limits = earnest_core::policy::Limits {
            tab_limit_micros: Some(micros(1_000_000)),
            ..Default::default()
        };
        let subject = earnest_core::policy::PolicySubject::Owner(buyer.owner);
        world.limit(subject, buyer.owner, limits);
        world.spend(buyer, &shop, 490_000);
        let tab = world.open_tab(buyer);
        assert!(matches!(world.treasure(buyer.owner, tab, false), Settled::Waited(_)));
        world.buy(buyer, &shop, 400_000);
        // 0.89 of 1.00 is used, but only 0.49 of it could be captured: below half the room.
        assert!(matches!(world.treasure(buyer.owner, tab, false), Settled::Waited(_)));
        world.spend(buyer, &shop, 10_000);
        let Settled::Planned(settlement) = world.treasure(buyer.owner, tab, false) else {
            panic!("half the room is enough where room runs low");
        };
        assert_eq!(settlement.amount_micros, micros(500_000));
        world.capture(&settlement);
        // A line past the exposure window settles whatever the minimum, if at least a cent.
        world.spend(buyer, &shop, 9_999);
        world.pass(hours(24));
        assert!(matches!(world.treasure(buyer.owner, tab, false), Settled::Waited(_)));
        world.spend(buyer, &shop, 1);
        assert!(matches!(world.treasure(buyer.owner, tab, false), Settled::Planned(_)));
    });
}

#[test]
fn exposure_counts_from_the_oldest_line_that_is_in_no_settlement() {
    each_with(&Settings::default(), |world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        // Something is still held, so the session does not end.
        let held = world.buy(buyer, &shop, 1_000);
        world.spend(buyer, &shop, 50_000);
        let tab = world.open_tab(buyer);
        world.pass(hours(20));
        let first = world.settle(buyer.owner, tab);
        world.decline(&first);
        let again = world.settle(buyer.owner, tab);
        assert_eq!((again.since, first.since.is_some()), (first.since, true));
        world.capture(&again);
        // The old line is paid: a day begins with the new one, and is carried with it.
        world.spend(buyer, &shop, 50_000);
        world.pass(hours(23));
        assert!(matches!(world.treasure(buyer.owner, tab, false), Settled::Waited(_)));
        world.report(&world.told(&world.claims(&held), Fate::Failed));
        let ended = world.treasure(buyer.owner, tab, false);
        assert!(matches!(ended, Settled::Carried(_)), "{ended:?}");
        world.spend(buyer, &shop, 1_000);
        let next = world.open_tab(buyer);
        assert!(matches!(world.treasure(buyer.owner, next, false), Settled::Waited(_)));
        world.pass(hours(1));
        let exposed = world.treasure(buyer.owner, next, false);
        assert!(matches!(exposed, Settled::Planned(_)), "{exposed:?}");
    });
}

#[test]
fn few_small_settlements_a_day() {
    each_with(&Settings::default(), |world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let asked = |cents: i64| {
            world.spend(buyer, &shop, cents * 10_000);
            let tab = world.open_tab(buyer);
            (tab, world.treasure(buyer.owner, tab, true))
        };
        for _ in 0..2 {
            let (_, settled) = asked(1);
            let Settled::Planned(settlement) = settled else { panic!("{settled:?}") };
            world.capture(&settlement);
        }
        // The third is not made, and says what it would cost.
        let (tab, third) = asked(1);
        let Settled::Waited(why) = third else { panic!("{third:?}") };
        assert!(why.contains("$0.01 would cost $0.49") && why.contains("2 in 24 h"), "{why}");
        assert_eq!(world.thousandths(Account::TabOwed(tab)), "0/30/0/20");
        // Closing is no way around it: the tab closes, and its rest goes to the next one.
        world.close(buyer.owner, tab).unwrap();
        let closed = world.treasure(buyer.owner, tab, false);
        let Settled::Carried(why) = closed else { panic!("{closed:?}") };
        assert!(why.contains("would cost $0.49"), "{why}");
        assert_eq!(world.tab(tab).state, TabState::Closed);
        let (next, fourth) = asked(1);
        assert!(matches!(fourth, Settled::Waited(_)), "{fourth:?}");
        assert_eq!(world.thousandths(Account::TabOwed(next)), "0/20/0/0");
        // What is worth a fee settles as often as anybody asks.
        let (_, worth) = asked(500);
        let Settled::Planned(settlement) = worth else { panic!("{worth:?}") };
        world.capture(&settlement);
        // A day after the first of them there is room for another.
        world.pass(hours(24));
        let (_, settled) = asked(1);
        assert!(matches!(settled, Settled::Planned(_)), "{settled:?}");
    });
}

#[test]
fn a_limit_of_the_owners_own_buys_no_more_small_settlements() {
    each_with(&Settings::default(), |world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let limits = earnest_core::policy::Limits {
            tab_limit_micros: Some(micros(20_000)),
            ..Default::default()
        };
        let subject = earnest_core::policy::PolicySubject::Owner(buyer.owner);
        world.limit(subject, buyer.owner, limits);
        for round in 0..3 {
            world.spend(buyer, &shop, 20_000);
            let captures = look(world, buyer);
            assert_eq!(captures, usize::from(round < 2), "round {round}");
        }
    });
}

#[test]
fn a_declined_small_settlement_does_not_count() {
    each_with(&Settings::default(), |world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.spend(buyer, &shop, 10_000);
        let tab = world.open_tab(buyer);
        for _ in 0..5 {
            let settlement = world.settle(buyer.owner, tab);
            world.decline(&settlement);
        }
        let settlement = world.settle(buyer.owner, tab);
        world.capture(&settlement);
        assert_eq!(world.owned(buyer).small_settlements.len(), 1);
    });
}

/// A step of the life of one owner's tabs.
#[derive(Clone, Debug)]
enum Step {
    /// Lines of these amounts.
    Spend(Vec<i64>),
    /// A settlement on request, and what becomes of it.
    Settle(End),
    /// The session ends.
    End,
    /// The owner closes the tab.
    Close,
    /// The operator gives up on a frozen tab and lifts the freeze.
    WriteOff,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Captured,
    Short(i64),
    Above(i64),
    Declined,
    Refused,
    NotCharged,
}

fn step() -> impl Strategy<Value = Step> {
    // Below a cent, around it, and above.
    let amount = prop_oneof![1..10_000i64, 9_990..10_010i64, 10_000..2_000_000i64];
    let end = prop_oneof![
        4 => Just(End::Captured),
        1 => (1i64..2_000).prop_map(End::Short),
        1 => (1i64..2_000).prop_map(End::Above),
        1 => Just(End::Declined),
        1 => Just(End::Refused),
        1 => Just(End::NotCharged),
    ];
    prop_oneof![
        5 => prop::collection::vec(amount, 1..5).prop_map(Step::Spend),
        4 => end.prop_map(Step::Settle),
        2 => Just(Step::End),
        1 => Just(Step::Close),
        1 => Just(Step::WriteOff),
    ]
}

/// What was billed, and what became of it by the outcomes as drawn: kept beside the books.
#[derive(Default)]
struct Sums {
    lines: i64,
    captured: i64,
    written_off: i64,
}

fn settle(world: &World, settlement: &Settlement, end: End, sums: &mut Sums) {
    let asked = settlement.amount_micros.get();
    let capture = |amount: i64| {
        let name = format!("C-{}-{}", settlement.id, settlement.attempt);
        intent::Fate::Done(world.charge(&name, amount))
    };
    let mut take = |fate, paid: i64| {
        world.outcome(settlement, fate).unwrap();
        sums.captured += paid;
    };
    match end {
        End::Captured => take(capture(asked), asked),
        End::Short(by) => {
            let paid = (asked - by * 10_000).max(10_000).min(asked);
            take(capture(paid), paid);
        }
        End::Above(by) => take(capture(asked + by * 10_000), asked),
        End::Declined => {
            take(intent::Fate::Declined { issue: "INSTRUMENT_DECLINED".to_owned() }, 0)
        }
        End::Refused => take(intent::Fate::Refused { issue: "PAYEE_NOT_ENABLED".to_owned() }, 0),
        End::NotCharged => {
            world.outcome(settlement, intent::Fate::Unknown).unwrap();
            world.pass(hours(9));
            world.learnt(settlement, intent::Fate::NotCharged).unwrap();
        }
    }
}

fn run(steps: &[Step]) {
    let settings = Settings {
        credit_line_start_micros: micros(500_000_000),
        fee: Schedule { rate_ppm: 0, fixed_micros: Micros::ZERO },
        ..Settings::default()
    };
    let world = World::new(Engine::Memory, settings);
    let (buyer, shop) = (world.buyer(), world.shop_with(30_000));
    let mut sums = Sums::default();
    for step in steps {
        let owner = world.owned(buyer);
        let some_tab = owner.open_tab.or(owner.earlier_tabs.first().copied());
        match step {
            Step::Spend(amounts) => {
                for amount in amounts {
                    let quote = world.fixed(&shop, *amount);
                    if world.word(buyer, &format!("p{}", world.head()), &quote) == "held" {
                        let purchases = world.all::<Purchase>();
                        let held = purchases.iter().find(|p| p.quote == quote.id).unwrap();
                        world.redeem(&world.claims(held));
                        sums.lines += amount;
                    }
                }
            }
            Step::Settle(end) => {
                if let Some(tab) = some_tab
                    && let Settled::Planned(one) = world.treasure(buyer.owner, tab, true)
                {
                    settle(&world, &one, *end, &mut sums);
                }
            }
            Step::End => {
                world.pass(1_800);
                if let Some(tab) = owner.open_tab
                    && let Settled::Planned(one) = world.treasure(buyer.owner, tab, false)
                {
                    settle(&world, &one, End::Captured, &mut sums);
                }
            }
            Step::Close => {
                if let Some(tab) = owner.open_tab {
                    // A frozen tab cannot be closed.
                    let _ = world.close(buyer.owner, tab);
                }
            }
            Step::WriteOff => {
                if let Some(tab) = owner.frozen_tab
                    && let Ok((_, amount)) = world.write_off(buyer.owner, tab)
                {
                    sums.written_off += amount.get();
                    let lift = earnest_core::admin::SetCredit {
                        owner: buyer.owner,
                        line: None,
                        unfreeze: true,
                    };
                    world.run(lift).unwrap();
                }
            }
        }
        let breaches = world.breaches();
        assert!(breaches.is_empty(), "after {step:?}: {breaches:#?}");
    }
    let owed: i64 = world
        .all::<earnest_core::tab::Tab>()
        .iter()
        .map(|tab| world.totals(tab.owed()))
        .map(|totals| totals.debits_posted.get() - totals.credits_posted.get())
        .sum();
    assert_eq!(sums.captured + owed + sums.written_off, sums.lines);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn captured_and_owed_and_written_off_are_the_lines(steps in prop::collection::vec(step(), 1..30)) {
        run(&steps);
    }
}
