//! Any number of parallel authorizations spends what the cap allows, and not a micro more.

use std::sync::Barrier;

use earnest_core::authorize::{Authorize, Outcome};
use earnest_core::ledger::Account;
use earnest_core::policy::{Limits, PolicySubject};
use earnest_core::purchase::Purchase;

use crate::world::{Buyer, Shop, World, each, micros};

/// Submits 64 purchases at once from 8 threads; gives how many were held, and the reasons of the
/// others.
fn burst(world: &World, buyers: &[Buyer], shop: &Shop, price: i64) -> (usize, Vec<String>) {
    let units: Vec<Authorize> = (0..64)
        .map(|n| {
            let buyer = buyers[n % buyers.len()];
            world.unit(buyer, &format!("burst {n}").replace(' ', "-"), &world.fixed(shop, price))
        })
        .collect();
    let barrier = Barrier::new(8);
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let threads: Vec<_> = units
            .chunks(8)
            .map(|units| {
                let (barrier, store) = (&barrier, world.store.clone());
                scope.spawn(move || {
                    barrier.wait();
                    let run = |unit: &Authorize| store.submit_blocking(unit.clone()).unwrap();
                    units.iter().map(|unit| run(unit).outcome).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let held = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Held(_))).count();
    let reasons = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Denied(_, refusal) => Some(refusal.reason.unwrap().as_str().to_owned()),
        _ => None,
    });
    (held, reasons.collect())
}

#[test]
fn sixty_four_at_once_under_one_dollar_are_three() {
    type Limit = fn(&World, Buyer);
    let table: [(&str, Limit); 5] = [
        ("session_cap", |world, buyer| {
            let limits =
                Limits { session_cap_micros: Some(micros(1_000_000)), ..Limits::default() };
            world.limit(PolicySubject::Owner(buyer.owner), buyer.owner, limits);
        }),
        ("daily_cap", |world, buyer| {
            let limits = Limits { day_cap_micros: Some(micros(1_000_000)), ..Limits::default() };
            world.limit(PolicySubject::Owner(buyer.owner), buyer.owner, limits);
        }),
        ("session_cap", |world, buyer| {
            let limits =
                Limits { session_cap_micros: Some(micros(1_000_000)), ..Limits::default() };
            world.limit(PolicySubject::Agent(buyer.agent), buyer.owner, limits);
        }),
        ("daily_cap", |world, buyer| {
            let limits = Limits { day_cap_micros: Some(micros(1_000_000)), ..Limits::default() };
            world.limit(PolicySubject::Agent(buyer.agent), buyer.owner, limits);
        }),
        ("tab_limit", |world, buyer| {
            let limits = Limits { tab_limit_micros: Some(micros(1_000_000)), ..Limits::default() };
            world.limit(PolicySubject::Owner(buyer.owner), buyer.owner, limits);
        }),
    ];
    each(|world| {
        for (reason, limit) in &table {
            let (buyer, shop) = (world.buyer(), world.shop());
            limit(world, buyer);
            let (held, reasons) = burst(world, &[buyer], &shop, 300_000);
            assert_eq!(held, 3, "{reason}");
            assert_eq!(reasons.len(), 61);
            assert!(reasons.iter().all(|said| said == reason), "{reason}: {reasons:?}");
            assert_eq!(world.thousandths(Account::TabOwed(world.open_tab(buyer))), "900/0/0/0");
        }
    });
}

#[test]
fn all_agents_of_an_owner_share_the_owners_cap() {
    each(|world| {
        let limits = Limits { day_cap_micros: Some(micros(1_000_000)), ..Limits::default() };
        let (buyer, shop) = (world.buyer_with(limits), world.shop());
        let others: Vec<_> = (0..7).map(|_| world.agent(buyer.owner)).collect();
        let buyers: Vec<_> = std::iter::once(buyer).chain(others).collect();
        let (held, _) = burst(world, &buyers, &shop, 300_000);
        assert_eq!(held, 3);
    });
}

#[test]
fn the_same_request_sixty_four_times_at_once_is_one_hold() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let quote = world.fixed(&shop, 300_000);
        let units: Vec<_> = (0..64).map(|_| world.unit(buyer, "one", &quote)).collect();
        let vouchers: Vec<_> = std::thread::scope(|scope| {
            let run = |unit: Authorize| {
                let store = world.store.clone();
                scope.spawn(move || match store.submit_blocking(unit).unwrap().outcome {
                    Outcome::Held(purchase) => purchase.voucher.unwrap().jti,
                    other => panic!("{other:?}"),
                })
            };
            let threads: Vec<_> = units.into_iter().map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(vouchers.iter().all(|jti| *jti == vouchers[0]));
        assert_eq!(world.all::<Purchase>().len(), 1);
        assert_eq!(world.thousandths(Account::TabOwed(world.open_tab(buyer))), "300/0/0/0");
    });
}

/// A purchase has a leg of money and several that only count. Those must not be what refuses it:
/// near the most that an account can hold, the accounts of money say no first.
#[test]
fn what_only_counts_is_never_full_first() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        let line = Some(earnest_core::money::Micros::MAX);
        let (owner, unfreeze) = (buyer.owner, false);
        world.run(earnest_core::admin::SetCredit { owner, line, unfreeze }).unwrap();
        let most = earnest_core::money::Micros::MAX.get();
        // Five days of a sixth each: five sixths of what one account of money can hold.
        for day in 0..5 {
            world.spend(buyer, &shop, most / 6);
            world.pass(crate::world::hours(24));
            let owed = world.totals(Account::TabOwed(world.open_tab(buyer)).usd());
            assert_eq!(owed.debits_posted.get(), (day + 1) * (most / 6));
        }
        // Past that it is an account of money that says no, and the books still balance.
        let past = world.authorize(buyer, "past", &world.fixed(&shop, most / 3));
        let denied = |answer: &earnest_core::authorize::Answer| {
            matches!(answer.outcome, Outcome::Denied(..))
        };
        assert!(past.is_err() || past.is_ok_and(|answer| denied(&answer)));
    });
}
