//! What becomes of a settlement: every outcome, known late, twice, under an old fence, contradicted.

use earnest_core::intent::{Charge, Claim, Fate, Intent, IntentState};
use earnest_core::ledger::{Account, HoldState};
use earnest_core::settings::Settings;
use earnest_core::settlement::{ConfirmNotCharged, Settled, Settlement, SettlementState};
use earnest_core::tab::TabState;
use earnest_store::SubmitError;

use crate::world::{Buyer, Shop, World, each, each_with, hours, micros};

/// A tab with 1.234 on it, and its settlement of 1.23 planned.
fn planned(world: &World) -> (Buyer, Shop, Settlement) {
    let (buyer, shop) = (world.buyer(), world.shop());
    world.spend(buyer, &shop, 1_000_000);
    world.spend(buyer, &shop, 234_000);
    let settlement = world.settle(buyer.owner, world.open_tab(buyer));
    assert_eq!(settlement.amount_micros, micros(1_230_000));
    (buyer, shop, settlement)
}

fn charge(world: &World, amount: i64) -> Fate<Charge> {
    Fate::Done(world.charge(&format!("CAP{}", world.head()), amount))
}

fn declined(_: &World) -> Fate<Charge> {
    Fate::Declined { issue: "INSTRUMENT_DECLINED".to_owned() }
}

fn refused(_: &World) -> Fate<Charge> {
    Fate::Refused { issue: "PAYEE_ACCOUNT_RESTRICTED".to_owned() }
}

fn pending(_: &World) -> Fate<Charge> {
    Fate::Pending { paypal_order: Some("O".into()), paypal_capture: Some("C".into()) }
}

fn code<T>(result: &Result<T, SubmitError>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(why) => why.code().to_string(),
    }
}

#[test]
fn every_outcome_leaves_hold_tab_and_owner_as_it_should() {
    use SettlementState as S;
    type Made = fn(&World) -> Fate<Charge>;
    let frozen = |tab: TabState| tab == TabState::Frozen;
    let table: [(&str, Made, S, HoldState, &str, bool); 8] = [
        ("done", |w| charge(w, 1_230_000), S::Captured, HoldState::Posted, "1230/4", false),
        (
            "short",
            |w| charge(w, 1_000_000),
            S::AmountMismatch,
            HoldState::Posted,
            "1000/234",
            false,
        ),
        ("above", |w| charge(w, 2_000_000), S::AmountMismatch, HoldState::Posted, "1230/4", false),
        ("declined", declined, S::Declined, HoldState::Voided, "0/1234", true),
        ("refused", refused, S::Refused, HoldState::Voided, "0/1234", false),
        ("unknown", |_| Fate::Unknown, S::Open, HoldState::Pending, "0/4", false),
        ("pending", pending, S::Open, HoldState::Pending, "0/4", false),
        ("not run", |_| Fate::NotRun, S::Open, HoldState::Pending, "0/4", false),
    ];
    each(|world| {
        for (name, fate, state, hold, owed, freezes) in &table {
            let (buyer, shop, settlement) = planned(world);
            let done = world.outcome(&settlement, fate(world)).unwrap();
            assert_eq!(done.state, *state, "{name}");
            let found = world.store.reader().hold(settlement.hold).unwrap().unwrap();
            assert_eq!(found.hold.state, *hold, "{name}");
            let totals = world.totals(Account::TabOwed(settlement.tab).usd());
            let paid = totals.credits_posted.get() / 1_000;
            assert_eq!(format!("{paid}/{}", totals.collectible().get() / 1_000), *owed, "{name}");
            let tab = world.tab(settlement.tab);
            assert_eq!(frozen(tab.state), *freezes, "{name}");
            let word = world.word(buyer, "next", &world.fixed(&shop, 1_000));
            let expect = if *freezes { "policy_denied/tab_frozen" } else { "held" };
            assert_eq!(word, expect, "{name}");
            world.check();
        }
        assert_eq!(world.thousandths(Account::Suspense), "0/0/0/770");
    });
}

#[test]
fn a_declined_settlement_gives_its_lines_back_and_a_later_attempt_thaws() {
    each(|world| {
        let (buyer, shop, first) = planned(world);
        world.decline(&first);
        // The agent keeps asking; nothing is charged by itself.
        let waited = world.treasure(buyer.owner, first.tab, false);
        assert!(matches!(waited, Settled::Waited(_)));
        let again = world.settle(buyer.owner, first.tab);
        assert_eq!((again.n, again.attempt), (2, 1), "a new number");
        assert_ne!(again.invoice_id, first.invoice_id, "a new invoice");
        assert_eq!(again.lines, first.lines);
        assert_eq!(world.tab(first.tab).state, TabState::Frozen, "until it is completed");
        world.capture(&again);
        assert_eq!(world.tab(first.tab).state, TabState::Open);
        assert_eq!(world.owned(buyer).frozen_tab, None);
        assert_eq!(world.word(buyer, "next", &world.fixed(&shop, 1_000)), "held");
    });
}

#[test]
fn refused_is_tried_again_after_a_while_under_the_same_invoice() {
    each(|world| {
        let (buyer, _, first) = planned(world);
        world.outcome(&first, refused(world)).unwrap();
        assert!(matches!(world.treasure(buyer.owner, first.tab, false), Settled::Waited(_)));
        world.pass(15 * 60);
        let Settled::Planned(again) = world.treasure(buyer.owner, first.tab, false) else {
            panic!("it is time");
        };
        assert_eq!((again.id, again.n, again.attempt), (first.id, 1, 2));
        assert_eq!(again.invoice_id, first.invoice_id);
        assert_ne!(world.key_of(&again), world.key_of(&first));
        world.decline(&again);
        // Declined after all: the lines of the retry come back, those bought since beside them.
        let tab = world.tab(first.tab);
        assert_eq!((tab.settled_lines, tab.lines), (0, 2));
        world.capture(&world.settle(buyer.owner, first.tab));
    });
}

#[test]
fn lines_bought_under_an_open_settlement_wait_for_the_next() {
    each(|world| {
        let (buyer, shop, first) = planned(world);
        world.spend(buyer, &shop, 500_000);
        world.outcome(&first, refused(world)).unwrap();
        world.spend(buyer, &shop, 300_000);
        let again = world.settle(buyer.owner, first.tab);
        assert_eq!(again.amount_micros, first.amount_micros, "the same again, not more");
        world.capture(&again);
        let next = world.settle(buyer.owner, first.tab);
        assert_eq!(next.n, 2);
        assert_eq!(next.carry_in_micros, micros(4_000));
        assert_eq!(next.lines_micros, micros(800_000));
        assert_eq!(next.carry_out_micros, micros(4_000));
        world.capture(&next);
    });
}

#[test]
fn only_the_last_fence_counts_and_a_late_answer_is_evidence() {
    each(|world| {
        let (_, _, settlement) = planned(world);
        let old = world.claim(settlement.intent).unwrap().fence;
        let new = world.claim(settlement.intent).unwrap().fence;
        assert!(new > old);
        let one = world.record(&settlement, settlement.intent, old, declined(world)).unwrap();
        assert_eq!(one.state, SettlementState::Open);
        let intent: Intent = world.row(settlement.intent);
        assert_eq!(intent.evidence.last().unwrap().how, "late_answer");
        let done =
            world.record(&settlement, settlement.intent, new, charge(world, 1_230_000)).unwrap();
        assert_eq!(done.state, SettlementState::Captured);
        // The same answer five times more moves nothing.
        let before = world.totals(Account::PaypalCash.usd());
        let capture = done.paypal_capture.clone().unwrap();
        for _ in 0..5 {
            let again = Fate::Done(world.charge(&capture, 1_230_000));
            world.record(&settlement, settlement.intent, new, again).unwrap();
        }
        assert_eq!(world.totals(Account::PaypalCash.usd()), before);
        // Nor does a decline that arrives after it was captured.
        world.record(&settlement, settlement.intent, new, declined(world)).unwrap();
        assert_eq!(world.tab(settlement.tab).state, TabState::Open);
    });
}

#[test]
fn another_process_waits_for_the_lease_and_a_closed_intent_is_never_claimed() {
    each(|world| {
        let (_, _, settlement) = planned(world);
        world.claim(settlement.intent).unwrap();
        let other = |world: &World| {
            let (intent, node) = (settlement.intent, "b".to_owned());
            world.run(Claim { intent, node, lease_seconds: 60, request: None, there: None })
        };
        assert_eq!(code(&other(world)), "state_conflict");
        world.pass(60);
        let fence = other(world).unwrap().fence;
        world.record(&settlement, settlement.intent, fence, charge(world, 1_230_000)).unwrap();
        assert_eq!(code(&other(world)), "state_conflict");
    });
}

#[test]
fn no_post_after_key_retention() {
    each(|world| {
        let (_, _, settlement) = planned(world);
        // It may wait for its first send as long as it likes.
        world.pass(hours(48));
        world.outcome(&settlement, Fate::Unknown).unwrap();
        world.pass(hours(5) + 1_799);
        world.outcome(&settlement, Fate::Unknown).unwrap();
        world.pass(1);
        let head = world.head();
        assert_eq!(code(&world.claim(settlement.intent)), "state_conflict");
        assert_eq!(world.head(), head);
        let intent: Intent = world.row(settlement.intent);
        assert_eq!((intent.sends, intent.state), (2, IntentState::Unknown));
        // Reading goes on, and a capture found by reading counts.
        let done = world.learnt(&settlement, charge(world, 1_230_000)).unwrap();
        assert_eq!(done.state, SettlementState::Captured);
    });
}

#[test]
fn the_same_key_never_carries_other_bytes() {
    each(|world| {
        let (_, _, settlement) = planned(world);
        world.outcome(&settlement, Fate::Unknown).unwrap();
        let other = Claim {
            intent: settlement.intent,
            node: "a".to_owned(),
            lease_seconds: 60,
            request: Some(("{}".to_owned(), "another hash".to_owned())),
            there: None,
        };
        assert_eq!(code(&world.run(other)), "internal");
        assert_eq!(world.row::<Intent>(settlement.intent).sends, 1);
    });
}

#[test]
fn not_charged_is_proved_only_when_the_key_is_dead() {
    each(|world| {
        let (_, _, settlement) = planned(world);
        world.outcome(&settlement, Fate::Unknown).unwrap();
        let early = world.learnt(&settlement, Fate::NotCharged).unwrap();
        assert_eq!(early.state, SettlementState::Open);
        world.pass(hours(5) + 1_799);
        let early = world.learnt(&settlement, Fate::NotCharged).unwrap();
        assert_eq!(early.state, SettlementState::Open);
        world.pass(1);
        let proved = world.learnt(&settlement, Fate::NotCharged).unwrap();
        assert_eq!(proved.state, SettlementState::NotCharged);
        // An intent that was never sent needs no proof.
        let (_, _, unsent) = planned(world);
        let proved = world.learnt(&unsent, Fate::NotCharged).unwrap();
        assert_eq!(proved.state, SettlementState::NotCharged);
        // PayPal spoke of an earlier call: nothing is sent any more. A search that shows none
        // contradicts it, so it takes a person's word as well.
        let (_, _, spoken) = planned(world);
        let issue = "DUPLICATE_INVOICE_ID".to_owned();
        world.outcome(&spoken, Fate::AlreadyDone { issue }).unwrap();
        assert_eq!(code(&world.claim(spoken.intent)), "state_conflict");
        let contradicted = world.learnt(&spoken, Fate::NotCharged).unwrap();
        assert_eq!(contradicted.state, SettlementState::Open);
        world.run(ConfirmNotCharged { intent: spoken.intent }).unwrap();
        let proved = world.learnt(&spoken, Fate::NotCharged).unwrap();
        assert_eq!(proved.state, SettlementState::NotCharged);
    });
}

#[test]
fn a_known_capture_is_never_not_charged() {
    each(|world| {
        let (buyer, _, settlement) = planned(world);
        world.outcome(&settlement, pending(world)).unwrap();
        assert_eq!(code(&world.claim(settlement.intent)), "state_conflict", "it blocks a send");
        world.pass(hours(72));
        for fate in [Fate::NotCharged, Fate::Unknown, refused(world), Fate::NotRun] {
            let open = world.learnt(&settlement, fate).unwrap();
            assert_eq!(open.state, SettlementState::Open);
            let intent: Intent = world.row(settlement.intent);
            assert_eq!(intent.state, IntentState::Pending);
        }
        assert!(matches!(world.treasure(buyer.owner, settlement.tab, true), Settled::Waited(_)));
        assert_eq!(world.thousandths(Account::PaypalCash), "1230/0/0/0");
        // Days later PayPal denies it.
        let end = world.learnt(&settlement, declined(world)).unwrap();
        assert_eq!(end.state, SettlementState::Declined);
        assert_eq!(world.thousandths(Account::PaypalCash), "0/0/0/0");
    });
}

#[test]
fn a_refusal_of_a_later_send_proves_nothing_of_an_earlier_one() {
    each(|world| {
        // An answer that was lost, then a repeat that PayPal did not even look at.
        let (_, _, lost) = planned(world);
        world.outcome(&lost, Fate::Unknown).unwrap();
        let open = world.outcome(&lost, refused(world)).unwrap();
        assert_eq!(open.state, SettlementState::Open);
        // A process that died after it may have sent.
        let (_, _, died) = planned(world);
        world.claim(died.intent).unwrap();
        world.pass(61);
        let open = world.outcome(&died, refused(world)).unwrap();
        assert_eq!(open.state, SettlementState::Open);
        assert_eq!(world.row::<Intent>(died.intent).state, IntentState::Unknown);
        // Sends that certainly did not run prove nothing either way.
        let (_, _, busy) = planned(world);
        world.outcome(&busy, Fate::NotRun).unwrap();
        world.outcome(&busy, Fate::NotRun).unwrap();
        let void = world.outcome(&busy, refused(world)).unwrap();
        assert_eq!(void.state, SettlementState::Refused);
        // A decline is an answer to the key itself, whenever it comes.
        let end = world.outcome(&lost, declined(world)).unwrap();
        assert_eq!(end.state, SettlementState::Declined);
    });
}

#[test]
fn a_large_not_charged_waits_for_a_persons_word() {
    let settings =
        Settings { confirm_not_charged_above_micros: micros(1_229_999), ..Settings::default() };
    each_with(&settings, |world| {
        let (_, _, settlement) = planned(world);
        let confirm = ConfirmNotCharged { intent: settlement.intent };
        assert_eq!(code(&world.run(confirm)), "state_conflict", "nothing is unknown yet");
        world.outcome(&settlement, Fate::Unknown).unwrap();
        world.pass(hours(9));
        let open = world.learnt(&settlement, Fate::NotCharged).unwrap();
        assert_eq!(open.state, SettlementState::Open);
        let how = world.row::<Intent>(settlement.intent).evidence.pop().unwrap().how;
        assert!(how.ends_with("waiting for the operator's word"), "{how}");
        world.run(confirm).unwrap();
        let void = world.learnt(&settlement, Fate::NotCharged).unwrap();
        assert_eq!(void.state, SettlementState::NotCharged);
    });
}

/// Closes a settlement as not charged although PayPal captured it.
fn wrongly_closed(world: &World) -> (Buyer, Settlement, Charge) {
    let (buyer, _, settlement) = planned(world);
    world.outcome(&settlement, Fate::Unknown).unwrap();
    world.pass(hours(9));
    world.learnt(&settlement, Fate::NotCharged).unwrap();
    let charge = world.charge("LATE", 1_230_000);
    (buyer, settlement, charge)
}

#[test]
fn a_capture_of_a_closed_intent_goes_to_suspense_and_alarms() {
    each(|world| {
        let (_, settlement, charge) = wrongly_closed(world);
        let fence = world.row::<Intent>(settlement.intent).fence;
        let head = world.head();
        for _ in 0..3 {
            let late = Fate::Done(charge.clone());
            let one = world.record(&settlement, settlement.intent, fence, late).unwrap();
            assert_eq!(one.state, SettlementState::NotCharged);
        }
        assert_eq!(world.thousandths(Account::Suspense), "0/0/0/1230");
        assert_eq!(world.thousandths(Account::PaypalCash), "0/1230/0/530");
        let events = world.store.reader().events(head, 100).unwrap().events;
        let alarms = events.iter().filter(|e| e.event.kind == "alarm.capture_of_closed_intent");
        assert_eq!(alarms.count(), 1);
    });
}

#[test]
fn a_capture_is_booked_once() {
    each(|world| {
        // It arrived late and went to suspense; then the next attempt, under the same invoice,
        // finds it.
        let (buyer, first, charge) = wrongly_closed(world);
        let fence = world.row::<Intent>(first.intent).fence;
        world.record(&first, first.intent, fence, Fate::Done(charge.clone())).unwrap();
        let again = world.settle(buyer.owner, first.tab);
        let issue = "DUPLICATE_INVOICE_ID".to_owned();
        world.outcome(&again, Fate::AlreadyDone { issue }).unwrap();
        let done = world.learnt(&again, Fate::Done(charge.clone())).unwrap();
        assert_eq!(done.state, SettlementState::Captured);
        assert_eq!(world.thousandths(Account::Suspense), "0/1230/0/1230");
        assert_eq!(world.thousandths(Account::PaypalCash), "0/1230/0/530");
        assert_eq!(world.thousandths(Account::TabOwed(first.tab)), "0/1234/0/1230");

        // The next attempt found it first; then it arrives for the closed one.
        let (buyer, first, mut charge) = wrongly_closed(world);
        charge.paypal_capture = "LATER".to_owned();
        let again = world.settle(buyer.owner, first.tab);
        world.outcome(&again, Fate::Unknown).unwrap();
        world.learnt(&again, Fate::Done(charge.clone())).unwrap();
        let fence = world.row::<Intent>(first.intent).fence;
        world.record(&first, first.intent, fence, Fate::Done(charge.clone())).unwrap();
        assert_eq!(world.thousandths(Account::PaypalCash), "0/2460/0/1060");

        // Somebody else's capture pays for nothing.
        let (_, _, other) = planned(world);
        let open = world.outcome(&other, Fate::Done(charge)).unwrap();
        assert_eq!(open.state, SettlementState::Open);
        assert_eq!(world.row::<Intent>(other.intent).state, IntentState::Unknown);
        assert_eq!(world.thousandths(Account::PaypalCash), "1230/2460/0/1060");
    });
}

#[test]
fn a_result_of_something_else_is_a_bug_and_changes_nothing() {
    each(|world| {
        let (_, _, one) = planned(world);
        let (_, _, other) = planned(world);
        let fence = world.claim(one.intent).unwrap().fence;
        let crossed = world.record(&other, one.intent, fence, charge(world, 1_230_000));
        assert_eq!(code(&crossed), "internal");
        let strange = Settlement { tab: other.tab, ..one.clone() };
        let crossed = world.record(&strange, one.intent, fence, charge(world, 1_230_000));
        assert_eq!(code(&crossed), "internal");
        assert_eq!(world.row::<Intent>(one.intent).state, IntentState::Sent);
    });
}

#[test]
fn two_declined_tabs_freeze_until_both_are_paid() {
    let settings = Settings { small_settlements_per_day: 9, ..Settings::default() };
    each_with(&settings, |world| {
        let (buyer, shop, first) = planned(world);
        // The first tab ends with its settlement under way; another opens.
        world.close(buyer.owner, first.tab).unwrap();
        world.outcome(&first, pending(world)).unwrap();
        world.pass(1_800);
        let open = world.learnt(&first, Fate::Unknown).unwrap();
        assert_eq!(open.state, SettlementState::Open);
        assert_eq!(world.tab(first.tab).state, TabState::Closing);
        assert_eq!(world.word(buyer, "n", &world.fixed(&shop, 1_000)), "policy_denied/tab_closed");
        world.learnt(&first, declined(world)).unwrap();
        assert_eq!(world.word(buyer, "n", &world.fixed(&shop, 1_000)), "policy_denied/tab_frozen");
        world.capture(&world.settle(buyer.owner, first.tab));

        // Closed for good with the attempt pending, so that the next opens beside it.
        let tab = world.open_tab(buyer);
        world.spend(buyer, &shop, 500_000);
        world.close(buyer.owner, tab).unwrap();
        let a = world.settle(buyer.owner, tab);
        world.spend(buyer, &shop, 700_000);
        let b = world.settle(buyer.owner, world.open_tab(buyer));
        assert_ne!(a.tab, b.tab);
        world.decline(&a);
        world.decline(&b);
        world.capture(&world.settle(buyer.owner, b.tab));
        assert_eq!(world.owned(buyer).frozen_tab, Some(a.tab));
        let asked = world.fixed(&shop, 1_000);
        assert_eq!(world.word(buyer, "x", &asked), "policy_denied/tab_frozen");
        world.capture(&world.settle(buyer.owner, a.tab));
        assert_eq!(world.word(buyer, "x", &asked), "held");
    });
}

#[test]
fn a_write_off_is_for_tabs_that_owe_and_have_nothing_under_way() {
    each(|world| {
        let (buyer, shop, settlement) = planned(world);
        let tab = settlement.tab;
        assert_eq!(code(&world.write_off(buyer.owner, tab)), "state_conflict", "it is open");
        world.decline(&settlement);
        let held = {
            let other = world.buyer();
            let purchase = world.buy(other, &shop, 100_000);
            world.close(other.owner, world.open_tab(other)).unwrap();
            (other, purchase.tab.unwrap())
        };
        assert_eq!(code(&world.write_off(held.0.owner, held.1)), "state_conflict");
        assert_eq!(code(&world.write_off(held.0.owner, tab)), "not_found", "another's");
        let again = world.settle(buyer.owner, tab);
        assert_eq!(code(&world.write_off(buyer.owner, tab)), "state_conflict", "under way");
        world.decline(&again);
        let (_, amount) = world.write_off(buyer.owner, tab).unwrap();
        assert_eq!(amount, micros(1_234_000));
        assert_eq!(code(&world.write_off(buyer.owner, tab)), "state_conflict", "once");
        let owner = world.owned(buyer);
        assert_eq!((owner.credit_line_micros, owner.open_tab), (Some(micros(0)), None));
        assert!(owner.frozen.is_some());
        // A capture that turns up afterwards is nobody's, until the operator looks.
        let fence = world.row::<Intent>(again.intent).fence;
        world.record(&again, again.intent, fence, charge(world, 1_230_000)).unwrap();
        assert_eq!(world.thousandths(Account::Suspense), "0/0/0/1230");
    });
}

/// What came for a closed attempt and was found by the next one goes back like any other capture.
#[test]
fn what_a_later_attempt_found_in_suspense_can_go_back() {
    each(|world| {
        let (buyer, first, charge) = wrongly_closed(world);
        let fence = world.row::<Intent>(first.intent).fence;
        world.record(&first, first.intent, fence, Fate::Done(charge.clone())).unwrap();
        let again = world.settle(buyer.owner, first.tab);
        let issue = "DUPLICATE_INVOICE_ID".to_owned();
        world.outcome(&again, Fate::AlreadyDone { issue }).unwrap();
        let done = world.learnt(&again, Fate::Done(charge)).unwrap();
        assert_eq!(done.state, SettlementState::Captured);
        assert!(world.give_back(&done, "R1", 1_230_000));
        assert_eq!(world.thousandths(Account::OwnerDebt(buyer.owner)), "0/1230/0/0");
        assert_eq!(world.thousandths(Account::PaypalCash), "0/1230/0/1760");
        assert!(!world.give_back(&done, "R2", 1));
        assert_eq!(world.breaches(), []);
    });
}
