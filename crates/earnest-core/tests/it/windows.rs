//! The window of a limit is fixed when the hold is made: midnight, clock changes, a change of zone,
//! sessions.

use earnest_core::admin::SetZone;
use earnest_core::ledger::{Account, Subject, Window};
use earnest_core::policy::{Limits, PolicySubject};
use earnest_core::time::Zone;
use earnest_core::voucher::Fate;

use earnest_core::settings::Settings;

use crate::world::{Buyer, World, each, each_with, impatient, micros};

fn day_cap(cap: i64) -> Limits {
    Limits { day_cap_micros: Some(micros(cap)), ..Limits::default() }
}

/// What is used of an owner's day, held and spent: `pending/posted` in thousandths.
fn used(world: &World, buyer: Buyer, day: &str) -> String {
    let window = Window::Day(day.parse().unwrap());
    let totals = world.totals(Account::Limit(Subject::Owner(buyer.owner), window).usd());
    format!("{}/{}", totals.debits_pending.get() / 1_000, totals.debits_posted.get() / 1_000)
}

fn zone(world: &World, buyer: Buyer, name: &str) {
    let zone: Zone = name.parse().unwrap();
    world.run(SetZone { owner: buyer.owner, zone }).unwrap();
}

#[test]
fn held_before_midnight_and_posted_after_counts_yesterday() {
    each(|world| {
        world.set_clock("2026-11-30T23:59:00Z");
        let (buyer, shop) = (world.buyer_with(day_cap(1_000_000)), world.shop());
        let late = world.buy(buyer, &shop, 600_000);
        let failing = world.buy(buyer, &shop, 300_000);
        assert_eq!(used(world, buyer, "2026-11-30"), "900/0");
        let refused = world.fixed(&shop, 200_000);
        assert_eq!(world.word(buyer, "more", &refused), "policy_denied/daily_cap");
        world.set_clock("2026-12-01T00:00:30Z");
        // A new day is new room, whatever is still held of the old one.
        world.buy(buyer, &shop, 1_000_000);
        assert_eq!(used(world, buyer, "2026-12-01"), "1000/0");
        world.redeem(&world.claims(&late));
        assert_eq!(used(world, buyer, "2026-11-30"), "300/600");
        // A void gives room back to yesterday, not to today.
        world.report(&world.told(&world.claims(&failing), Fate::Failed));
        assert_eq!(used(world, buyer, "2026-11-30"), "0/600");
        assert_eq!(world.word(buyer, "today", &world.fixed(&shop, 1)), "policy_denied/daily_cap");
    });
}

#[test]
fn a_reissue_stays_in_the_window_of_its_hold() {
    each(|world| {
        world.set_clock("2026-11-30T23:59:00Z");
        let (buyer, shop) = (world.buyer_with(day_cap(1_000_000)), world.shop());
        let quote = world.fixed(&shop, 600_000);
        world.buy_as(buyer, "r", &quote);
        world.set_clock("2026-12-01T00:01:30Z");
        let again = world.buy_as(buyer, "r", &quote);
        world.redeem(&world.claims(&again));
        assert_eq!(used(world, buyer, "2026-11-30"), "0/600");
        assert_eq!(used(world, buyer, "2026-12-01"), "0/0");
    });
}

#[test]
fn a_late_line_counts_today() {
    each_with(&impatient(), |world| {
        world.set_clock("2026-11-30T23:59:00Z");
        let (buyer, shop) = (world.buyer_with(day_cap(1_000_000)), world.shop());
        let purchase = world.buy(buyer, &shop, 600_000);
        let told = world.told(&world.claims(&purchase), Fate::Redeemed);
        world.outlive();
        assert!(world.expire(purchase.id));
        world.report(&told);
        assert_eq!(used(world, buyer, "2026-11-30"), "0/0");
        assert_eq!(used(world, buyer, "2026-12-01"), "0/600");
    });
}

#[test]
fn a_day_follows_the_owners_zone_through_clock_changes() {
    // Half a year passes, in which nobody asks the shop's origin again.
    let settings = Settings { origin_life_seconds: i64::MAX, ..Settings::default() };
    each_with(&settings, |world| {
        let (buyer, shop) = (world.buyer_with(day_cap(1_000_000)), world.shop());
        zone(world, buyer, "Europe/Amsterdam");
        // Spring: 29 March has 23 hours, from 23:00Z to 22:00Z.
        for (at, day) in [
            ("2027-03-27T22:59:59Z", "2027-03-27"),
            ("2027-03-27T23:00:00Z", "2027-03-28"),
            ("2027-03-28T21:59:59Z", "2027-03-28"),
            ("2027-03-28T22:00:00Z", "2027-03-29"),
            // Autumn: 31 October has 25 hours, from 22:00Z to 23:00Z.
            ("2027-10-30T21:59:59Z", "2027-10-30"),
            ("2027-10-30T22:00:00Z", "2027-10-31"),
            ("2027-10-31T22:59:59Z", "2027-10-31"),
            ("2027-10-31T23:00:00Z", "2027-11-01"),
        ] {
            world.set_clock(at);
            let purchase = world.buy(buyer, &shop, 100_000);
            assert_eq!(purchase.day.unwrap().to_string(), day, "{at}");
            world.redeem(&world.claims(&purchase));
        }
        assert_eq!(used(world, buyer, "2027-03-28"), "0/200");
        assert_eq!(used(world, buyer, "2027-10-31"), "0/200");
        // The hour that comes twice belongs to the one day.
        world.set_clock("2027-10-31T00:30:00Z");
        assert_eq!(world.buy(buyer, &shop, 1_000).day.unwrap().to_string(), "2027-10-31");
        world.set_clock("2027-10-31T01:30:00Z");
        assert_eq!(world.buy(buyer, &shop, 1_000).day.unwrap().to_string(), "2027-10-31");
    });
}

#[test]
fn a_change_of_zone_counts_from_the_next_day_and_opens_no_room_today() {
    each(|world| {
        world.set_clock("2026-11-30T10:00:00Z");
        let (buyer, shop) = (world.buyer_with(day_cap(1_000_000)), world.shop());
        world.buy(buyer, &shop, 1_000_000);
        // It is the first of December already on Kiritimati, and still the twenty-ninth on Niue.
        for name in ["Pacific/Kiritimati", "Pacific/Niue", "Asia/Tokyo", "Pacific/Kiritimati"] {
            zone(world, buyer, name);
            let refused = world.fixed(&shop, 1);
            assert_eq!(world.word(buyer, "more", &refused), "policy_denied/daily_cap", "{name}");
        }
        // The day ends when the old zone says so; from then on the new one counts.
        world.set_clock("2026-11-30T23:59:59Z");
        assert_eq!(world.word(buyer, "more", &world.fixed(&shop, 1)), "policy_denied/daily_cap");
        world.set_clock("2026-12-01T00:00:00Z");
        let purchase = world.buy(buyer, &shop, 1_000_000);
        assert_eq!(purchase.day.unwrap().to_string(), "2026-12-01");
        world.set_clock("2026-12-01T09:59:59Z");
        assert_eq!(world.word(buyer, "again", &world.fixed(&shop, 1)), "policy_denied/daily_cap");
        world.set_clock("2026-12-01T10:00:00Z");
        assert_eq!(world.buy(buyer, &shop, 1).day.unwrap().to_string(), "2026-12-02");
    });
}

#[test]
fn a_new_session_reopens_no_day_cap() {
    each(|world| {
        let limits = Limits { session_cap_micros: Some(micros(300_000)), ..day_cap(500_000) };
        let (buyer, shop) = (world.buyer_with(limits), world.shop());
        world.spend(buyer, &shop, 300_000);
        let more = world.fixed(&shop, 1);
        assert_eq!(world.word(buyer, "a", &more), "policy_denied/session_cap");
        let first = world.open_tab(buyer);
        world.close(buyer.owner, first).unwrap();
        world.capture(&world.settle(buyer.owner, first));
        world.spend(buyer, &shop, 200_000);
        assert_ne!(world.open_tab(buyer), first);
        assert_eq!(world.word(buyer, "b", &more), "policy_denied/daily_cap");
    });
}

#[test]
fn a_cap_lowered_below_use_is_no_room_and_no_error() {
    each(|world| {
        let (buyer, shop) = (world.buyer_with(day_cap(1_000_000)), world.shop());
        world.spend(buyer, &shop, 600_000);
        let held = world.buy(buyer, &shop, 300_000);
        let owner = PolicySubject::Owner(buyer.owner);
        world.limit(owner, buyer.owner, day_cap(100_000));
        assert_eq!(world.word(buyer, "a", &world.fixed(&shop, 1)), "policy_denied/daily_cap");
        world.redeem(&world.claims(&held));
        world.limit(owner, buyer.owner, day_cap(1_000_000));
        assert_eq!(world.word(buyer, "b", &world.fixed(&shop, 100_001)), "policy_denied/daily_cap");
        assert_eq!(world.word(buyer, "c", &world.fixed(&shop, 100_000)), "held");
    });
}
