//! Budgets for single sellers and under constraints, on the ledger: they count holds, keep what is
//! billed, give back what is released, and begin anew with their window.

use earnest_core::ledger::{Account, Counted, Subject, Window};
use earnest_core::policy::{Constraint, Every, Limits, PolicySubject, SellerBudget};
use earnest_core::quote::Price;
use earnest_core::voucher::Fate;
use jiff::civil::date;
use serde_json::{Value, json};

use crate::world::{Buyer, Shop, World, each, micros};

fn weekly(shop: &Shop, cap: i64) -> Limits {
    let budget = SellerBudget { seller: shop.id, every: Every::Week, cap_micros: micros(cap) };
    Limits { seller_budgets: Some(vec![budget]), ..Limits::default() }
}

fn constrained(raw: Value) -> Limits {
    Limits { constraints: Some(vec![Constraint::read(raw)]), ..Limits::default() }
}

/// Buys for so much until it is refused; how often it was not, and the reason in the end.
fn buy_out(world: &World, buyer: Buyer, shop: &Shop, price: i64, name: &str) -> (usize, String) {
    for count in 0..50 {
        let word = world.word(buyer, &format!("{name}{count}"), &world.fixed(shop, price));
        if word != "held" {
            return (count, word);
        }
    }
    panic!("no budget ends it");
}

#[test]
fn a_seller_gets_no_more_than_its_budget_in_a_week() {
    each(|world| {
        world.set_clock("2026-11-30T08:00:00Z");
        let (shop, other) = (world.shop(), world.shop());
        let buyer = world.buyer();
        world.limit(PolicySubject::Owner(buyer.owner), buyer.owner, weekly(&shop, 1_000_000));
        let full = (3, "policy_denied/seller_budget".to_owned());
        assert_eq!(buy_out(world, buyer, &shop, 300_000, "a"), full);
        // All agents of an owner share it, and other sellers are not meant.
        let second = world.agent(buyer.owner);
        assert_eq!(buy_out(world, second, &shop, 300_000, "b").0, 0);
        assert_eq!(world.word(buyer, "other", &world.fixed(&other, 300_000)), "held");
        // The last day of the week counts, the Monday after does not.
        world.set_clock("2026-12-06T23:59:00Z");
        assert_eq!(buy_out(world, buyer, &shop, 300_000, "c").0, 0);
        world.set_clock("2026-12-07T00:00:00Z");
        assert_eq!(buy_out(world, buyer, &shop, 300_000, "d"), full);
        world.check();
    });
}

#[test]
fn what_is_released_or_costs_less_gives_its_room_back() {
    each(|world| {
        let (buyer, shop) = (world.buyer(), world.shop());
        world.limit(PolicySubject::Agent(buyer.agent), buyer.owner, weekly(&shop, 1_000_000));
        let quote = world.quote(&shop, "/", Price::UpTo(micros(900_000)));
        let first = world.buy_as(buyer, "first", &quote);
        let dear = world.fixed(&shop, 200_000);
        assert_eq!(world.word(buyer, "second", &dear), "policy_denied/seller_budget");
        let mut told = world.told(&world.claims(&first), Fate::Redeemed);
        told.amount = Some(micros(500_000));
        world.report(&told);
        let held = world.buy_as(buyer, "fits", &world.fixed(&shop, 500_000));
        assert_eq!(world.word(buyer, "third", &dear), "policy_denied/seller_budget");
        world.report(&world.told(&world.claims(&held), Fate::Failed));
        assert_eq!(world.word(buyer, "third", &dear), "held");
        world.check();
    });
}

#[test]
fn a_budget_under_a_constraint_has_no_end_and_goes_on_while_its_text_stays() {
    each(|world| {
        world.set_clock("2026-11-30T08:00:00Z");
        let (buyer, shop) = (world.buyer(), world.shop());
        let subject = PolicySubject::Agent(buyer.agent);
        let budget =
            |max: Value| json!({ "type": "payment.budget", "currency": "USD", "max": max });
        world.limit(subject, buyer.owner, constrained(budget(json!(1.00))));
        let full = (3, "policy_denied/constraint".to_owned());
        assert_eq!(buy_out(world, buyer, &shop, 300_000, "a"), full);
        world.set_clock("2026-12-01T08:00:00Z");
        world.limit(subject, buyer.owner, constrained(budget(json!(1.00))));
        assert_eq!(buy_out(world, buyer, &shop, 300_000, "b").0, 0, "the same promise");
        world.limit(subject, buyer.owner, constrained(budget(json!(1.01))));
        assert_eq!(buy_out(world, buyer, &shop, 300_000, "c"), full, "another one");
        world.check();
    });
}

#[test]
fn a_recurrence_counts_purchases_and_a_failed_one_was_none() {
    each(|world| {
        world.set_clock("2026-11-30T08:00:00Z");
        let (buyer, shop) = (world.buyer(), world.shop());
        let daily = json!({ "type": "payment.agent_recurrence", "frequency": "DAILY",
            "max_occurrences": 2 });
        let constraint = Constraint::read(daily.clone());
        world.limit(PolicySubject::Agent(buyer.agent), buyer.owner, constrained(daily));
        let price = world.fixed(&shop, 70_000);
        let failed = world.buy_as(buyer, "failed", &price);
        assert_eq!(world.word(buyer, "at once", &price), "policy_denied/constraint");
        world.report(&world.told(&world.claims(&failed), Fate::Failed));
        let first = world.buy_as(buyer, "first", &price);
        world.redeem(&world.claims(&first));
        assert_eq!(world.word(buyer, "same day", &price), "policy_denied/constraint");
        world.set_clock("2026-12-01T08:00:00Z");
        let price = world.fixed(&shop, 70_000);
        world.redeem(&world.claims(&world.buy_as(buyer, "second", &price)));
        world.set_clock("2026-12-02T08:00:00Z");
        let price = world.fixed(&shop, 70_000);
        assert_eq!(world.word(buyer, "third", &price), "policy_denied/constraint", "twice at most");
        let uses =
            Window::Budget(Counted::Uses(constraint.tag()), Every::Ever.of(date(2026, 12, 2)));
        let account = Account::Limit(Subject::Agent(buyer.agent), uses);
        assert_eq!(world.totals(account.usd()).debits_posted.get(), 2);
        world.check();
    });
}
