//! Every invariant can fail: sound books are spoiled in one place, and the one invariant that this
//! place belongs to says so.

use earnest_core::cash::{CashKind, RecordCash};
use earnest_core::chain::{ChainKind, chain_of};
use earnest_core::dispute::{BookWithheld, Concerned, Withholding};
use earnest_core::id::{PurchaseId, TransferId};
use earnest_core::intent::{Fate, IntentState};
use earnest_core::invariant::{self, Fold, INVARIANTS, Rows};
use earnest_core::ledger::{Account, Cause, HoldState, Leg, Op};
use earnest_core::model::{CallState, ModelCall, cap_account};
use earnest_core::money::Micros;
use earnest_core::policy::Limits;
use earnest_core::purchase::{Purchase, PurchaseState};
use earnest_core::reconcile::{Acknowledged, Begin, Covered, Keep, Line, Report, Why};
use earnest_core::reversal::Captured;
use earnest_core::settlement::{Settlement, SettlementState};
use earnest_core::tab::Tab;
use earnest_core::unit::{Fingerprint, Key};

use crate::world::{World, micros};

/// Books in which something of everything happened.
fn sound() -> (Rows, Fold) {
    let world = World::memory();
    let shop = world.shop_with(50_000);
    let limits = Limits { approve_above_micros: Some(micros(3_000_000)), ..Limits::default() };
    let buyer = world.buyer_with(limits);
    let quote = world.fixed(&shop, 4_000_000);
    let (_, approval) = world.ask(buyer, "granted", &quote);
    world.grant(&approval, 5_000_000, 3_600);
    let granted = world.buy_as(buyer, "granted", &quote);
    world.redeem(&world.claims(&granted));
    world.spend(buyer, &shop, 1_005_000);
    world.capture(&world.settle(buyer.owner, world.open_tab(buyer)));
    world.spend(buyer, &shop, 2_000_000);
    let failed = world.buy(buyer, &shop, 10_000);
    let claims = world.claims(&failed);
    world.report(&world.told(&claims, earnest_core::voucher::Fate::Failed));
    let sent = world.settle(buyer.owner, world.open_tab(buyer));
    world.outcome(&sent, Fate::Unknown).unwrap();
    world.spend(buyer, &shop, 30_000);
    world.buy(buyer, &shop, 50_000);
    world.ask(buyer, "waits", &world.fixed(&shop, 4_000_001));
    let back = world.buyer();
    world.spend(back, &shop, 400_000);
    let settlement = world.settle(back.owner, world.open_tab(back));
    // More than was asked, so a part of it is in suspense; and some of it went back.
    world.outcome(&settlement, Fate::Done(world.charge("ABOVE", 450_000))).unwrap();
    assert!(world.give_back(&settlement, "BACK", 60_000));
    let other = world.buyer();
    world.spend(other, &shop, 500_000);
    world.decline(&world.settle(other.owner, world.open_tab(other)));
    let third = world.buyer();
    world.spend(third, &shop, 300_000);
    let never = world.settle(third.owner, world.open_tab(third));
    world.outcome(&never, Fate::Refused { issue: "PAYEE".to_owned() }).unwrap();
    world.run(Begin { began: world.now() }).unwrap();
    let key = Key {
        scope: "operator".to_owned(),
        family: "cash",
        name: "deposit".to_owned(),
        fingerprint: Fingerprint::of(&[]),
    };
    let deposit = RecordCash {
        paypal_id: "DEPOSIT".to_owned(),
        kind: CashKind::Deposit,
        owner: None,
        amount: micros(9_000_000),
        fee: micros(250_000),
        key,
    };
    world.run(deposit).unwrap();
    let report = Report {
        from: world.now(),
        horizon: world.now(),
        books_micros: 5,
        paypal_micros: Some(5),
        in_transit_micros: 0,
        unexplained_micros: 0,
        matched: 0,
        netted_lines: 0,
        acknowledged_lines: 0,
        in_transit_lines: 0,
        in_transit: Vec::new(),
        unexplained_lines: 0,
        unexplained: Vec::new(),
    };
    let (from, next_earlier) = (world.now(), Vec::new());
    let unexplained = Vec::new();
    world.run(Keep { report, unexplained, before: None, next_from: from, next_earlier }).unwrap();
    for (way, id, amount) in
        [(Withholding::Hold, "HELD", 90_000), (Withholding::Release, "FREED", 40_000)]
    {
        let (paypal_id, amount) = (id.to_owned(), micros(amount));
        let whose =
            Captured { intent: settlement.intent, settlement: settlement.id, owner: back.owner };
        let whose = Concerned { of: Some(whose), paid_by: Vec::new() };
        let of = Some(("ABOVE".to_owned(), whose));
        world.run(BookWithheld { paypal_id, way, amount, reference: None, of }).unwrap();
    }
    let asking = world.buyer();
    world.spend(asking, &shop, 30_000);
    let tab = world.open_tab(asking);
    for cost in [Some(70), None] {
        let call = world.ask_model(tab, 0, 1_000).unwrap();
        world.end_call(call.id, cost);
    }
    world.ask_model(tab, 0, 1_000).unwrap();
    let mut fold = Fold::default();
    world.fold(&mut fold, 0);
    (world.rows(), fold)
}

/// Spoils sound books and says which invariants noticed.
fn spoiled(spoil: impl Fn(&mut Rows, &mut Fold)) -> Vec<&'static str> {
    let (mut rows, mut fold) = sound();
    assert_eq!(invariant::check(&rows, &fold), []);
    spoil(&mut rows, &mut fold);
    let mut names: Vec<_> =
        invariant::check(&rows, &fold).into_iter().map(|breach| breach.invariant).collect();
    names.dedup();
    names
}

/// The invariant notices each of these.
fn notices(name: &str, spoils: &[fn(&mut Rows, &mut Fold)]) {
    assert!(INVARIANTS.iter().any(|(known, _)| *known == name));
    for (place, spoil) in spoils.iter().enumerate() {
        let names = spoiled(spoil);
        assert!(names.contains(&name), "{name}, case {place}: only {names:?}");
    }
}

fn purchase(rows: &mut Rows, state: PurchaseState) -> &mut Purchase {
    rows.purchases.values_mut().find(|p| p.state == state).unwrap()
}

fn settlement(rows: &mut Rows, state: SettlementState) -> &mut Settlement {
    rows.settlements.values_mut().find(|s| s.state == state).unwrap()
}

fn busy_tab(rows: &mut Rows) -> &mut Tab {
    rows.tabs.values_mut().find(|tab| tab.open_settlement.is_some()).unwrap()
}

fn chain(fold: &mut Fold, cause: Cause, state: HoldState) -> TransferId {
    let found = fold.chains.iter().find(|(_, c)| c.cause == cause && c.state == state);
    *found.unwrap().0
}

/// The captured settlement's line, twice: the books with a copy of a row.
fn copy(rows: &mut Rows, state: PurchaseState) {
    let mut copy = purchase(rows, state).clone();
    copy.id = PurchaseId::from_value(7);
    rows.purchases.insert(copy.id, copy);
}

#[test]
fn the_ledger_is_the_fold_of_its_operations() {
    notices(
        "the_ledger_is_the_fold_of_its_operations",
        &[
            |_, fold| {
                let id = chain(fold, Cause::Settlement, HoldState::Posted);
                fold.take(&Op::Void { id });
            },
            |_, fold| {
                let id = chain(fold, Cause::TabLine, HoldState::Pending);
                let amounts = vec![Micros::MAX; fold.chains[&id].legs.len()];
                fold.take(&Op::Post { id, amounts });
            },
            |_, fold| {
                // A capture of what nobody owes.
                let tab = fold.accounts.keys().find_map(|id| match id.account {
                    Account::TabOwed(tab) => Some(tab),
                    _ => None,
                });
                let owed = Account::TabOwed(tab.unwrap()).usd();
                let leg = Leg::new(Account::PaypalCash.usd(), owed, micros(90_000_000));
                let id = TransferId::from_value(9);
                fold.take(&Op::Hold { id, cause: Cause::Settlement, legs: vec![leg] });
            },
            |_, fold| {
                // A cap overrun.
                let legs = vec![
                    Leg::new(Account::Losses.usd(), Account::Suspense.usd(), micros(2))
                        .within(micros(1)),
                ];
                let id = TransferId::from_value(9);
                fold.take(&Op::Move { id, cause: Cause::TabLine, legs });
            },
            |_, fold| fold.accounts.get_mut(&Account::Memo.usd()).unwrap().credits_posted += 1,
        ],
    );
}

#[test]
fn held_money_has_one_purchase() {
    notices(
        "held_money_has_one_purchase",
        &[
            // Released on the row, still held in the ledger; and the other way round.
            |rows, _| purchase(rows, PurchaseState::Held).state = PurchaseState::Released,
            |_, fold| {
                let id = chain(fold, Cause::TabLine, HoldState::Pending);
                fold.take(&Op::Void { id });
            },
            |rows, _| purchase(rows, PurchaseState::Held).hold = None,
            |rows, _| copy(rows, PurchaseState::Held),
            |rows, _| busy_tab(rows).pending_holds += 1,
        ],
    );
}

#[test]
fn a_purchase_posts_at_most_once() {
    notices(
        "a_purchase_posts_at_most_once",
        &[
            |rows, _| copy(rows, PurchaseState::Billed),
            |rows, _| purchase(rows, PurchaseState::Billed).state = PurchaseState::Released,
            |rows, _| purchase(rows, PurchaseState::Billed).billed_micros = Some(micros(1)),
            |rows, _| purchase(rows, PurchaseState::Billed).price_micros = micros(1),
            |rows, _| {
                let id = purchase(rows, PurchaseState::Billed).id;
                rows.purchases.remove(&id);
            },
        ],
    );
}

#[test]
fn a_voucher_comes_with_its_hold() {
    notices(
        "a_voucher_comes_with_its_hold",
        &[
            |rows, _| purchase(rows, PurchaseState::Held).voucher = None,
            |rows, _| purchase(rows, PurchaseState::Held).price_micros = micros(50_001),
            |rows, _| {
                let held = purchase(rows, PurchaseState::Held);
                held.seller = earnest_core::id::SellerId::from_value(7);
            },
        ],
    );
}

#[test]
fn every_line_counts_under_every_cap() {
    notices(
        "every_line_counts_under_every_cap",
        &[
            |rows, _| purchase(rows, PurchaseState::Held).day = Some("2026-12-01".parse().unwrap()),
            |rows, _| {
                let drew = |p: &&mut Purchase| p.grant.is_some();
                rows.purchases.values_mut().find(drew).unwrap().grant = None;
            },
            |_, fold| {
                let id = chain(fold, Cause::TabLine, HoldState::Posted);
                fold.chains.get_mut(&id).unwrap().legs.pop();
            },
            |_, fold| {
                let id = chain(fold, Cause::TabLine, HoldState::Pending);
                fold.chains.get_mut(&id).unwrap().legs[0].room = None;
            },
        ],
    );
}

#[test]
fn each_line_stands_in_one_place() {
    notices(
        "each_line_stands_in_one_place",
        &[
            |rows, _| settlement(rows, SettlementState::Captured).lines[0].to = 1,
            |rows, _| settlement(rows, SettlementState::Open).lines[0].from = 0,
            |rows, _| busy_tab(rows).settled_lines += 1,
            |rows, _| busy_tab(rows).settled_lines -= 1,
            |rows, _| busy_tab(rows).lines += 1,
        ],
    );
}

#[test]
fn a_tab_owes_its_lines() {
    notices(
        "a_tab_owes_its_lines",
        &[
            |rows, _| busy_tab(rows).carry_micros = micros(1),
            |rows, _| rows.tabs.values_mut().for_each(|tab| tab.retry = None),
            |rows, _| rows.tabs.values_mut().for_each(|tab| tab.finished = true),
        ],
    );
}

#[test]
fn a_settlement_adds_up() {
    notices(
        "a_settlement_adds_up",
        &[
            |rows, _| settlement(rows, SettlementState::Captured).lines_micros = micros(1),
            |rows, _| settlement(rows, SettlementState::Captured).carry_out_micros = micros(0),
            |rows, _| {
                let captured = settlement(rows, SettlementState::Captured);
                captured.captured_micros = Some(micros(1));
            },
            |rows, _| settlement(rows, SettlementState::Open).state = SettlementState::Declined,
            |_, fold| {
                let id = chain(fold, Cause::Settlement, HoldState::Pending);
                fold.take(&Op::Void { id });
            },
        ],
    );
}

#[test]
fn an_open_outcome_keeps_its_hold() {
    notices(
        "an_open_outcome_keeps_its_hold",
        &[
            |rows, _| busy_tab(rows).open_settlement = None,
            |rows, _| {
                let open = |intent: &&mut earnest_core::intent::Intent| intent.state.is_open();
                rows.intents.values_mut().find(open).unwrap().state = IntentState::NotCharged;
            },
            |rows, _| settlement(rows, SettlementState::Open).state = SettlementState::Captured,
            |rows, _| {
                let id = settlement(rows, SettlementState::Open).id;
                rows.settlements.remove(&id);
            },
        ],
    );
}

#[test]
fn an_intent_closes_on_evidence() {
    notices(
        "an_intent_closes_on_evidence",
        &[
            |rows, _| rows.intents.values_mut().for_each(|intent| intent.evidence.clear()),
            |rows, _| {
                rows.intents.values_mut().for_each(|intent| {
                    let first = intent.first_sent_at.unwrap();
                    intent.last_sent_at = Some(earnest_core::time::after(first, 6 * 3_600));
                });
            },
            |rows, _| {
                let unknown =
                    |i: &&mut earnest_core::intent::Intent| i.state == IntentState::Unknown;
                rows.intents.values_mut().find(unknown).unwrap().state = IntentState::NotCharged;
            },
            |rows, _| rows.intents.values_mut().for_each(|intent| intent.paypal_capture = None),
        ],
    );
}

#[test]
fn a_capture_has_one_effect() {
    notices(
        "a_capture_has_one_effect",
        &[
            |rows, _| {
                let captured = settlement(rows, SettlementState::Captured);
                captured.paypal_capture = Some("ANOTHER".to_owned());
            },
            |rows, _| {
                let mut copy = settlement(rows, SettlementState::Captured).clone();
                copy.id = earnest_core::id::SettlementId::from_value(7);
                rows.settlements.insert(copy.id, copy);
            },
            |rows, _| rows.suspended.values_mut().next().unwrap().left_micros = micros(1),
            |_, fold| {
                let (cash, funds) = (Account::PaypalCash.usd(), Account::Losses.usd());
                let legs = vec![Leg::new(cash, funds, micros(5))];
                let id = TransferId::from_value(9);
                fold.take(&Op::Move { id, cause: Cause::Due, legs });
            },
        ],
    );
}

#[test]
fn what_went_back_is_in_the_books() {
    notices(
        "what_went_back_is_in_the_books",
        &[
            |rows, _| {
                let row = rows.reversals.values_mut().next().unwrap();
                row.booked[0].amount_micros = micros(59_999);
            },
            |rows, _| rows.reversals.clear(),
            |rows, _| {
                let id = rows.reversals.values().next().unwrap().of.unwrap().settlement;
                rows.settlements.get_mut(&id).unwrap().given_back_micros = micros(1);
            },
            |rows, fold| {
                // More than ever came.
                let row = rows.reversals.values_mut().next().unwrap();
                let mut more = row.booked[0].clone();
                (more.id, more.amount_micros) = ("MORE".to_owned(), micros(400_000));
                row.booked.push(more);
                let legs = vec![Leg::new(
                    Account::Losses.usd(),
                    Account::PaypalCash.usd(),
                    micros(400_000),
                )];
                let id = chain_of(ChainKind::GivenBack, "MORE");
                fold.take(&Op::Move { id, cause: Cause::Refund, legs });
            },
        ],
    );
}

#[test]
fn no_money_is_lost_or_made() {
    notices(
        "no_money_is_lost_or_made",
        &[
            |rows, _| purchase(rows, PurchaseState::Billed).billed_micros = Some(micros(1)),
            |rows, _| rows.tabs.retain(|_, tab| tab.open_settlement.is_none()),
            |rows, fold| {
                // A refund that nobody declared an event for.
                let owed = rows.tabs.values().next().unwrap().owed();
                let legs = vec![Leg::new(Account::Losses.usd(), owed, micros(5))];
                let id = TransferId::from_value(9);
                fold.take(&Op::Move { id, cause: Cause::Refund, legs });
            },
        ],
    );
}

#[test]
fn an_owner_knows_its_tabs() {
    notices(
        "an_owner_knows_its_tabs",
        &[
            |rows, _| rows.owners.values_mut().for_each(|owner| owner.open_tab = None),
            |rows, _| rows.owners.values_mut().for_each(|owner| owner.frozen_tab = None),
            |rows, _| {
                let open = rows.owners.values().find_map(|owner| owner.open_tab);
                rows.owners.values_mut().for_each(|owner| owner.open_tab = open);
            },
            |rows, _| {
                rows.owners.values_mut().for_each(|owner| {
                    owner.earlier_tabs.extend(owner.open_tab);
                });
            },
        ],
    );
}

#[test]
fn what_is_disputed_counts_against_its_owner() {
    notices(
        "what_is_disputed_counts_against_its_owner",
        &[
            |rows, _| {
                rows.owners.values_mut().for_each(|owner| owner.disputed_micros = micros(1));
            },
            |rows, _| rows.disputed.clear(),
        ],
    );
}

#[test]
fn an_approval_works_once() {
    notices(
        "an_approval_works_once",
        &[
            |rows, _| rows.approvals.clear(),
            |rows, _| {
                rows.agents.values_mut().for_each(|agent| {
                    let twice = agent.waiting.clone();
                    agent.waiting.extend(twice);
                });
            },
            |rows, _| rows.grants.values_mut().for_each(|grant| grant.cap_micros = micros(1)),
        ],
    );
}

#[test]
fn a_tab_knows_what_was_captured() {
    notices(
        "a_tab_knows_what_was_captured",
        &[
            |rows, _| {
                let captured = settlement(rows, SettlementState::Captured).tab;
                rows.tabs.get_mut(&captured).unwrap().captured_micros = Micros::ZERO;
            },
            |rows, _| busy_tab(rows).captured_micros = Micros::MAX,
        ],
    );
}

#[test]
fn each_paypal_id_moves_cash_once() {
    notices(
        "each_paypal_id_moves_cash_once",
        &[
            // A fee that was booked is not the fee that the row says, and the other way round.
            |rows, _| {
                let settled = settlement(rows, SettlementState::Captured);
                settled.fee_micros = settled.fee_micros.map(|fee| fee.saturating_sub(micros(1)));
            },
            |rows, _| rows.cash_entries.get_mut("DEPOSIT").unwrap().amount_micros = micros(1),
            |rows, _| rows.withheld.get_mut("HELD").unwrap().way = Withholding::Release,
            |rows, _| {
                rows.withheld.remove("FREED");
            },
            // One id for a capture and a deposit.
            |rows, _| {
                let capture = settlement(rows, SettlementState::Captured).paypal_capture.clone();
                let mut entry = rows.cash_entries["DEPOSIT"].clone();
                entry.paypal_id = capture.unwrap();
                rows.cash_entries.insert(entry.paypal_id.clone(), entry);
            },
            |rows, _| {
                rows.reversals.values_mut().next().unwrap().booked.clear();
            },
            // Cash that moves under no id.
            |_, fold| {
                let (cash, fees) = (Account::PaypalCash.usd(), Account::PaypalFees.usd());
                let legs = vec![Leg::new(fees, cash, micros(10_000))];
                let id = TransferId::from_value(9);
                fold.take(&Op::Move { id, cause: Cause::PaypalFee, legs });
            },
        ],
    );
}

#[test]
fn an_acknowledgement_covers_no_money_of_ours() {
    fn acknowledge(rows: &mut Rows, reason: &str, currency: &str) {
        let line =
            Covered { code: "T0006".to_owned(), currency: currency.to_owned(), gross_micros: 1 };
        let row = Acknowledged {
            paypal_id: "X".to_owned(),
            reason: reason.to_owned(),
            by: "operator".to_owned(),
            lines: vec![line],
            at: earnest_core::time::Timestamp::UNIX_EPOCH,
        };
        rows.acknowledged.insert(row.paypal_id.clone(), row);
    }
    notices(
        "an_acknowledgement_covers_no_money_of_ours",
        &[|rows, _| acknowledge(rows, "known", "USD"), |rows, _| acknowledge(rows, " ", "GBP")],
    );
}

#[test]
fn every_difference_is_explained() {
    fn report(rows: &mut Rows) -> &mut Report {
        rows.reconciliation.as_mut().unwrap().last.as_mut().unwrap()
    }
    notices(
        "every_difference_is_explained",
        &[
            |rows, _| report(rows).paypal_micros = Some(6),
            // More than are kept.
            |rows, _| report(rows).unexplained_lines = 1,
            |rows, _| {
                report(rows).unexplained.push(Line {
                    id: "X".to_owned(),
                    why: Why::MissingThere,
                    code: None,
                    code_says: None,
                    reference: None,
                    ours: None,
                    theirs: None,
                    foreign: None,
                    at: None,
                });
            },
        ],
    );
}

#[test]
fn model_spend_is_its_calls() {
    notices(
        "model_spend_is_its_calls",
        &[
            |rows, _| {
                rows.model_calls.pop_first();
            },
            |rows, _| model_call(rows, CallState::Ended).cost_micros = Some(micros(1)),
            |rows, _| model_call(rows, CallState::Reserved).state = CallState::Unknown,
            |rows, _| model_call(rows, CallState::Unknown).reserved_micros = micros(1),
            |rows, fold| {
                let id = model_call(rows, CallState::Ended).hold();
                fold.chains.remove(&id);
            },
            |_, fold| {
                let costs = Account::ModelCosts.usd();
                fold.accounts.get_mut(&costs).unwrap().debits_posted += 1;
            },
            |rows, fold| {
                let day = rows.model_calls.values().next().unwrap().day;
                fold.accounts.get_mut(&cap_account(day)).unwrap().debits_posted += 1;
            },
            |_, fold| {
                // Spend that belongs to no call.
                let legs = vec![Leg::new(
                    Account::ModelCosts.usd(),
                    Account::ModelPayable.usd(),
                    micros(5),
                )];
                let id = TransferId::from_value(9);
                fold.take(&Op::Move { id, cause: Cause::ModelCall, legs });
            },
        ],
    );
}

fn model_call(rows: &mut Rows, state: CallState) -> &mut ModelCall {
    rows.model_calls.values_mut().find(|call| call.state == state).unwrap()
}
