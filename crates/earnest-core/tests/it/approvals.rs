//! Questions put to owners: bound to one thing, answered once, used once; and bounded grants.

use earnest_core::admin::Pausable;
use earnest_core::answer::{AnswerApproval, RevokeGrant, Verdict};
use earnest_core::approval::{Approval, ApprovalState, MAX_GRANTS};
use earnest_core::authorize::Outcome;
use earnest_core::policy::{Limits, PolicySubject};
use earnest_core::purchase::Purchase;
use earnest_core::quote::Price;
use earnest_core::settings::Settings;
use earnest_core::time::after;
use earnest_core::voucher::Fate;
use earnest_store::SubmitError;

use crate::world::{Buyer, Shop, World, each, each_with, impatient, micros};

/// Everything above 0.20 asks.
fn asking(world: &World) -> (Buyer, Shop) {
    let limits = Limits { approve_above_micros: Some(micros(200_000)), ..Limits::default() };
    (world.buyer_with(limits), world.shop())
}

#[test]
fn an_approval_is_used_once_and_books_nothing_by_itself() {
    each(|world| {
        let (buyer, shop) = asking(world);
        let quote = world.fixed(&shop, 300_000);
        let (purchase, approval) = world.ask(buyer, "a", &quote);
        assert!(purchase.hold.is_none());
        let head = world.head();
        world.answer(&approval, Verdict::Approve).unwrap();
        let entry = &world.store.reader().log(head, 10).unwrap()[0].entry;
        assert!(entry.ops.is_empty());
        let held = world.buy_as(buyer, "a", &quote);
        assert_eq!(held.id, purchase.id);
        let approval: Approval = world.row(approval.id);
        assert_eq!(approval.state, ApprovalState::Consumed);
        // Used up: what is released and asked for again, and what is equal, asks again.
        world.report(&world.told(&world.claims(&held), Fate::Failed));
        assert_eq!(world.word(buyer, "a", &quote), "waiting");
        assert_eq!(world.word(buyer, "b", &quote), "waiting");
    });
}

#[test]
fn answers_come_once_in_time_and_from_the_owner_only() {
    each(|world| {
        let (buyer, shop) = asking(world);
        let stranger = world.buyer();
        let code = |result: Result<Approval, SubmitError>| match result {
            Ok(_) => "ok".to_owned(),
            Err(why) => why.code().to_string(),
        };
        let (_, approval) = world.ask(buyer, "a", &world.fixed(&shop, 300_000));
        let by = |owner, version| AnswerApproval {
            owner,
            agent: buyer.agent,
            approval: approval.id,
            version,
            verdict: Verdict::Approve,
        };
        assert_eq!(code(world.run(by(stranger.owner, None))), "not_found");
        assert_eq!(code(world.run(by(buyer.owner, Some(7)))), "version_conflict");
        assert_eq!(code(world.run(by(buyer.owner, Some(1)))), "ok");
        assert_eq!(code(world.answer(&approval, Verdict::Deny)), "approval_already_decided");
        world.buy_as(buyer, "a", &world.fixed(&shop, 300_000));
        assert_eq!(code(world.answer(&approval, Verdict::Deny)), "approval_consumed");
        let other = world.quote(&shop, "/b", Price::Fixed(micros(300_000)));
        let (_, approval) = world.ask(buyer, "b", &other);
        world.pass(15 * 60);
        assert_eq!(code(world.answer(&approval, Verdict::Approve)), "approval_expired");
    });
}

#[test]
fn an_unused_yes_expires_by_wall_clock_and_a_pause_keeps_it_unused() {
    each(|world| {
        let (buyer, shop) = asking(world);
        let mut quote = world.fixed(&shop, 300_000);
        let (_, approval) = world.ask(buyer, "a", &quote);
        world.answer(&approval, Verdict::Approve).unwrap();
        world.pause(Pausable::Agent(buyer.owner, buyer.agent), true);
        assert_eq!(world.word(buyer, "a", &quote), "policy_denied/agent_paused");
        world.pause(Pausable::Agent(buyer.owner, buyer.agent), false);
        world.pass(15 * 60 - 1);
        quote.expires_at = after(world.now(), 600);
        let again = world.word(buyer, "a", &quote);
        assert_eq!(again, "held", "policy said no meanwhile; the yes was not used");
        let (_, approval) = world.ask(buyer, "b", &quote);
        world.answer(&approval, Verdict::Approve).unwrap();
        world.pass(15 * 60);
        quote.expires_at = after(world.now(), 600);
        assert_eq!(world.word(buyer, "b", &quote), "waiting");
    });
}

#[test]
fn deny_and_pause_stops_the_agent() {
    each(|world| {
        let (buyer, shop) = asking(world);
        let quote = world.fixed(&shop, 300_000);
        let (_, approval) = world.ask(buyer, "a", &quote);
        world.answer(&approval, Verdict::DenyAndPause).unwrap();
        assert_eq!(world.word(buyer, "a", &quote), "again approval_denied");
        let small = world.fixed(&shop, 1_000);
        assert_eq!(world.word(buyer, "b", &small), "policy_denied/agent_paused");
        // Other agents go on.
        assert_eq!(world.word(world.agent(buyer.owner), "b", &small), "held");
    });
}

#[test]
fn equal_questions_collapse_and_twenty_wait_at_most() {
    each(|world| {
        let (buyer, shop) = asking(world);
        let same = world.fixed(&shop, 300_000);
        let (_, first) = world.ask(buyer, "a", &same);
        let (_, second) = world.ask(buyer, "b", &same);
        assert_eq!(first.id, second.id);
        let price = Price::Fixed(micros(300_000));
        for n in 1..Settings::default().approvals_waiting {
            world.ask(buyer, &format!("q{n}"), &world.quote(&shop, &format!("/{n}"), price));
        }
        let more = world.quote(&shop, "/more", price);
        assert_eq!(world.word(buyer, "more", &more), "policy_denied/rate_limit");
        // Equal ones still find their question, and another agent has twenty of its own.
        assert_eq!(world.word(buyer, "c", &same), "waiting");
        assert_eq!(world.word(world.agent(buyer.owner), "more", &more), "waiting");
        // What expired makes room.
        world.pass(15 * 60);
        let mut more = more;
        more.expires_at = after(world.now(), 600);
        assert_eq!(world.word(buyer, "more", &more), "waiting");
    });
}

#[test]
fn a_grant_is_spent_to_its_sum_and_its_end_the_purchase_it_answered_included() {
    each(|world| {
        let (buyer, shop) = asking(world);
        let other = world.shop();
        let quote = world.fixed(&shop, 300_000);
        let (_, approval) = world.ask(buyer, "a", &quote);
        world.grant(&approval, 700_000, 3_600);
        assert_eq!(world.word(buyer, "a", &quote), "held");
        let second = world.buy_as(buyer, "b", &quote);
        assert_eq!(second.grant, world.row::<Purchase>(second.id).grant);
        // 0.60 of 0.70 is used.
        let too_much = world.authorize(buyer, "c", &quote).unwrap().outcome;
        let Outcome::Waiting(purchase, approval) = too_much else { panic!("{too_much:?}") };
        let reason = purchase.refusal.unwrap().reason.unwrap();
        assert_eq!(reason.as_str(), "grant_exhausted");
        assert_eq!(approval.reason, Some(reason));
        // Another seller is no part of it.
        assert_eq!(world.word(buyer, "d", &world.fixed(&other, 300_000)), "waiting");
        // Room comes back with a void, within the grant's own window.
        world.report(&world.told(&world.claims(&second), Fate::Failed));
        assert_eq!(world.word(buyer, "c", &quote), "again waiting");
        assert_eq!(world.word(buyer, "e", &quote), "held");
        world.pass(3_600);
        assert_eq!(world.word(buyer, "f", &world.fixed(&shop, 300_000)), "waiting");
    });
}

#[test]
fn a_grant_taken_back_takes_the_yes_back() {
    each(|world| {
        let (buyer, shop) = asking(world);
        let quote = world.fixed(&shop, 300_000);
        let (_, approval) = world.ask(buyer, "a", &quote);
        let grant = world.grant(&approval, 700_000, 3_600);
        let (owner, agent) = (buyer.owner, buyer.agent);
        world.run(RevokeGrant { owner, agent, grant }).unwrap();
        assert_eq!(world.word(buyer, "a", &quote), "waiting");
        // Grants that ended make room for others.
        for n in 0..=MAX_GRANTS {
            let price = Price::Fixed(micros(300_000));
            let quote = world.quote(&shop, &format!("/{n}"), price);
            let (_, approval) = world.ask(buyer, &format!("g{n}"), &quote);
            world.grant(&approval, 300_000, 1);
            world.pass(1);
        }
    });
}

#[test]
fn a_grant_never_overrides_a_cap() {
    each(|world| {
        let (buyer, shop) = asking(world);
        let quote = world.fixed(&shop, 300_000);
        let (_, approval) = world.ask(buyer, "a", &quote);
        world.grant(&approval, 5_000_000, 3_600);
        let limits = Limits {
            approve_above_micros: Some(micros(200_000)),
            day_cap_micros: Some(micros(500_000)),
            ..Limits::default()
        };
        world.limit(PolicySubject::Owner(buyer.owner), buyer.owner, limits);
        assert_eq!(world.word(buyer, "a", &quote), "held");
        assert_eq!(world.word(buyer, "b", &quote), "policy_denied/daily_cap");
    });
}

#[test]
fn a_late_line_draws_on_its_grant() {
    each_with(&impatient(), |world| {
        let (buyer, shop) = asking(world);
        let quote = world.fixed(&shop, 300_000);
        let (_, approval) = world.ask(buyer, "a", &quote);
        world.grant(&approval, 600_000, 3_600);
        let purchase = world.buy_as(buyer, "a", &quote);
        assert!(purchase.grant.is_some());
        let told = world.told(&world.claims(&purchase), Fate::Redeemed);
        world.outlive();
        assert!(world.expire(purchase.id));
        world.report(&told);
        assert_eq!(world.row::<Purchase>(purchase.id).grant, purchase.grant);
        // Its room came back with the hold and was used again by the late line: one more fits.
        assert_eq!(world.word(buyer, "b", &world.fixed(&shop, 300_000)), "held");
        assert_eq!(world.word(buyer, "c", &world.fixed(&shop, 300_000)), "waiting");
    });
}
