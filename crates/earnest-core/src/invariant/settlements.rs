//! Tabs, their settlements, and the PayPal calls under them.

use std::collections::{BTreeMap, BTreeSet};

use super::lines::billed;
use super::{Chain, Fold, Rows, chain_of, sum_of, wide};
use crate::chain::{self, ChainKind};
use crate::id::SettlementId;
use crate::intent::{Intent, IntentState, Purpose};
use crate::ledger::{Account, Cause, HoldState, Leg};
use crate::lost::cleared_chain;
use crate::settlement::{Settlement, SettlementState};
use crate::suspense::Suspended;
use crate::tab::{Tab, TabState};
use crate::time::after;

fn debited(leg: &Leg) -> Account {
    leg.debit.account
}

fn credited(leg: &Leg) -> Account {
    leg.credit.account
}

/// INVARIANT: a_tab_owes_its_lines
///
/// What may be collected on a tab is what is carried, plus every line that waits, plus the
/// settlement that came to nothing and is attempted again.
pub(super) fn a_tab_owes_its_lines(rows: &Rows, fold: &Fold, breaches: &mut Vec<String>) {
    let lines = rows.lines();
    for tab in rows.tabs.values() {
        let owes = fold.sums(tab.owed()).collectible();
        let retry = tab.retry.and_then(|id| rows.settlements.get(&id));
        let again = retry.map_or(0, |settlement| wide(settlement.amount_micros));
        let waiting = sum_of(&lines, &tab.unsettled());
        let expect = wide(tab.carry_micros).saturating_add(waiting).saturating_add(again);
        if owes != expect {
            breaches.push(format!("{} owes {owes}, and its parts are {expect}", tab.id));
        }
        if tab.finished && owes != 0 {
            breaches.push(format!("{} is finished and owes {owes}", tab.id));
        }
        let over = matches!(tab.state, TabState::WrittenOff | TabState::PaidOff);
        let over = over || tab.carried_to.is_some();
        if over && !tab.finished {
            breaches.push(format!("{} is over but not finished", tab.id));
        }
    }
}

/// INVARIANT: a_tab_knows_what_was_captured
///
/// The running total on a tab is the sum over its settlements.
pub(super) fn a_tab_knows_what_was_captured(rows: &Rows, _: &Fold, breaches: &mut Vec<String>) {
    let mut sums: BTreeMap<_, i128> = BTreeMap::new();
    for one in rows.settlements.values() {
        let sum = sums.entry(one.tab).or_default();
        *sum = sum.saturating_add(one.captured_micros.map_or(0, wide));
    }
    for tab in rows.tabs.values() {
        let sum = sums.get(&tab.id).copied().unwrap_or_default();
        if wide(tab.captured_micros) != sum {
            breaches.push(format!("{} captured {sum} and says {}", tab.id, tab.captured_micros));
        }
    }
}

/// INVARIANT: a_settlement_adds_up
///
/// Carry in + lines - carry out = what PayPal is asked for, in whole cents; and what was captured
/// of it is what was posted on the tab.
pub(super) fn a_settlement_adds_up(rows: &Rows, fold: &Fold, breaches: &mut Vec<String>) {
    let lines = rows.lines();
    for one in rows.settlements.values() {
        let (id, asked) = (one.id, wide(one.amount_micros));
        let sum = sum_of(&lines, &one.lines);
        if sum != wide(one.lines_micros) {
            breaches.push(format!("{id} says its lines are {} of {sum}", one.lines_micros));
        }
        let total = wide(one.carry_in_micros).saturating_add(wide(one.lines_micros));
        let total = total.saturating_add(wide(one.lost_micros));
        if total.saturating_sub(wide(one.carry_out_micros)) != asked {
            breaches.push(format!("{id} asks {asked} for {total}"));
        }
        if !one.amount_micros.is_whole_cents() || one.amount_micros.is_zero() {
            breaches.push(format!("{id} asks for {}", one.amount_micros));
        }
        let cleared = one.paypal_capture.as_ref().and_then(|id| rows.suspended.get(id));
        let wrong = match one.state {
            SettlementState::Restored => wrong_restored(one, cleared, fold),
            _ => wrong_money(one, fold),
        };
        if let Some(why) = wrong {
            breaches.push(format!("{id} is {:?}: {why}", one.state));
        }
    }
}

/// What was captured in a life that was lost is on the tab, at once or later, or for lost lines.
fn wrong_restored(one: &Settlement, row: Option<&Suspended>, fold: &Fold) -> Option<String> {
    let (owed, capture) = (Account::TabOwed(one.tab), one.paypal_capture.as_deref()?);
    let posted = |id| {
        let chain = fold.chains.get(&id);
        chain.map_or(0, |chain: &super::Chain| chain.posted_on(credited, owed))
    };
    let later = (0..row.map_or(0, |row| row.times_paid)).map(|n| posted(cleared_chain(capture, n)));
    let paid = later.fold(posted(one.hold), i128::saturating_add);
    let captured = one.captured_micros.map_or(0, wide);
    let expect = captured.saturating_sub(wide(one.lost_micros));
    let lost = one.lost_micros;
    (paid != expect).then(|| format!("{captured} was captured, {lost} is lost, and {paid} paid"))
}

/// What does not fit between a settlement's state and the money on its tab.
fn wrong_money(one: &Settlement, fold: &Fold) -> Option<String> {
    let chain = chain_of(fold, Some(one.hold));
    let Some(chain) = chain else { return Some("it has no hold".to_owned()) };
    let owed = Account::TabOwed(one.tab);
    let state = match one.state {
        SettlementState::Open => HoldState::Pending,
        SettlementState::Captured | SettlementState::AmountMismatch => HoldState::Posted,
        _ => HoldState::Voided,
    };
    let (posted, found) = match cleared(one, fold) {
        Some(chain) => (chain.posted_on(credited, owed), HoldState::Posted),
        None => (chain.posted_on(credited, owed), chain.state),
    };
    if found != state {
        return Some(format!("its hold is {found:?}"));
    }
    let captured = one.captured_micros.map_or(0, wide);
    let asked = wide(one.amount_micros);
    if posted != captured.min(asked) {
        return Some(format!("{captured} was captured of {asked}, and {posted} posted"));
    }
    let equal = captured == asked;
    match one.state {
        SettlementState::Captured if !equal => Some(format!("{captured} was captured of {asked}")),
        SettlementState::AmountMismatch if equal => Some("the amounts are equal".to_owned()),
        _ => None,
    }
}

/// The chain that paid a settlement from suspense, where its capture had gone there.
fn cleared<'a>(one: &Settlement, fold: &'a Fold) -> Option<&'a super::Chain> {
    let capture = one.paypal_capture.as_ref().filter(|_| one.is_captured())?;
    chain_of(fold, Some(chain::chain_of(ChainKind::Cleared, capture)))
}

/// INVARIANT: an_open_outcome_keeps_its_hold
///
/// Until an outcome is known, its money stays reserved and nothing new starts on its tab: intent,
/// settlement, hold and tab agree that it is under way.
pub(super) fn an_open_outcome_keeps_its_hold(rows: &Rows, fold: &Fold, breaches: &mut Vec<String>) {
    for one in rows.settlements.values() {
        let intent = rows.intents.get(&one.intent);
        let open = intent.is_some_and(|intent| intent.state.is_open());
        let tab = rows.tabs.get(&one.tab);
        let under_way = tab.is_some_and(|tab| tab.open_settlement == Some(one.id));
        let expect = one.state == SettlementState::Open;
        if open != expect || under_way != expect {
            breaches.push(format!(
                "{} is {:?}, its intent open: {open}, its tab waiting: {under_way}",
                one.id, one.state
            ));
        }
    }
    for intent in rows.intents.values().filter(|intent| intent.state.is_open()) {
        let Purpose::Settlement(id) = intent.purpose else { continue };
        let own = rows.settlements.get(&id).is_some_and(|one| one.intent == intent.id);
        if !own {
            breaches.push(format!("{} is open beside a later attempt of {id}", intent.id));
        }
    }
    for tab in rows.tabs.values() {
        let known = tab.open_settlement.is_none_or(|id| rows.settlements.contains_key(&id));
        if !known {
            breaches.push(format!("{} waits for a settlement that is not there", tab.id));
        }
    }
    let holds: BTreeSet<_> = rows
        .settlements
        .values()
        .filter(|one| one.state == SettlementState::Open)
        .map(|one| one.hold)
        .collect();
    for (id, chain) in &fold.chains {
        let pending = chain.cause == Cause::Settlement && chain.state == HoldState::Pending;
        if pending && !holds.contains(id) {
            breaches.push(format!("hold {id} is pending for no settlement"));
        }
    }
}

/// INVARIANT: an_intent_closes_on_evidence
///
/// No intent closes without something that was learnt, none is sent past its key's retention, and
/// none is *not charged* while its key could still be sent.
pub(super) fn an_intent_closes_on_evidence(rows: &Rows, _: &Fold, breaches: &mut Vec<String>) {
    for intent in rows.intents.values() {
        let id = intent.id;
        if !intent.state.is_open() && intent.evidence.is_empty() {
            breaches.push(format!("{id} is {:?} without evidence", intent.state));
        }
        let (Some(first), Some(last)) = (intent.first_sent_at, intent.last_sent_at) else {
            if intent.sends > 0 {
                breaches.push(format!("{id} was sent at no time"));
            }
            continue;
        };
        let dead = after(first, intent.purpose.repeat_seconds());
        if last >= dead {
            breaches.push(format!("{id} was sent at {last}, first at {first}"));
        }
        // What a lost life may have sent is never sent again.
        let proved = intent.read_only || intent.lost_until.is_some();
        let proved = proved || intent.evidence.iter().any(|known| known.at >= dead);
        if intent.state == IntentState::NotCharged && !proved {
            breaches.push(format!("{id} is not charged, and its key could be sent until {dead}"));
        }
        if is_settled(intent) && intent.paypal_capture.is_none() {
            breaches.push(format!("{id} is done without a capture"));
        }
    }
}

fn is_settled(intent: &Intent) -> bool {
    let settles = matches!(intent.purpose, Purpose::Settlement(_));
    settles && intent.state == IntentState::Done
}

/// INVARIANT: a_capture_has_one_effect
///
/// A PayPal capture pays one settlement, once; what may be given back of it is what it brought; and
/// all cash that came in came by settlements, went to suspense, was the operator's, was
/// released after a dispute, or was a fee given back.
pub(super) fn a_capture_has_one_effect(rows: &Rows, fold: &Fold, breaches: &mut Vec<String>) {
    let mut paid: BTreeMap<&str, SettlementId> = BTreeMap::new();
    for one in rows.settlements.values().filter(|one| one.is_captured()) {
        let Some(capture) = one.paypal_capture.as_deref() else {
            breaches.push(format!("{} is captured by nothing", one.id));
            continue;
        };
        if let Some(other) = paid.insert(capture, one.id) {
            breaches.push(format!("{capture} pays {} and {other}", one.id));
        }
        let id = chain::chain_of(ChainKind::Captured, capture);
        let refundable =
            fold.chains.get(&id).map_or(0, |chain| chain.made_on(debited, Account::Memo));
        if Some(refundable) != one.captured_micros.map(wide) {
            breaches.push(format!("{capture} may give back {refundable}"));
        }
    }
    let came = |cause: Cause| {
        let chains = fold.chains.values().filter(move |chain| chain.cause == cause);
        chains.map(|chain| chain.posted_on(debited, Account::PaypalCash)).sum::<i128>()
    };
    let explained = came(Cause::Settlement)
        .saturating_add(came(Cause::Suspense))
        .saturating_add(came(Cause::Deposit))
        .saturating_add(came(Cause::Repayment))
        .saturating_add(came(Cause::CashVoided))
        .saturating_add(came(Cause::Dispute))
        .saturating_add(came(Cause::PaypalFee));
    let cash = fold.sums(Account::PaypalCash.usd()).debits_posted;
    if cash != explained {
        breaches.push(format!("{cash} came in, and {explained} is explained"));
    }
    let sums = fold.sums(Account::Suspense.usd());
    let (held, listed) = (sums.credits_posted.saturating_sub(sums.debits_posted), {
        rows.suspended.values().map(|row| wide(row.left_micros)).sum::<i128>()
    });
    if held != listed {
        breaches.push(format!("suspense holds {held}, and its rows say {listed}"));
    }
}

/// INVARIANT: what_went_back_is_in_the_books
///
/// Each refund or reversal that PayPal made has one chain of exactly its amount; never does more of
/// a capture go back than came; and a settlement says how much of it did.
pub(super) fn what_went_back_is_in_the_books(rows: &Rows, fold: &Fold, breaches: &mut Vec<String>) {
    let mut listed: i128 = 0;
    for row in rows.reversals.values() {
        let capture = &row.capture;
        for one in &row.booked {
            let chain = fold.chains.get(&chain::chain_of(ChainKind::GivenBack, &one.id));
            let from = if one.was_withheld { Account::Disputes } else { Account::PaypalCash };
            let moved = chain.map_or(0, |chain| chain.posted_on(credited, from));
            let amount = wide(one.amount_micros);
            listed = listed.saturating_add(amount);
            if moved != amount {
                breaches.push(format!("{} of {capture} moved {moved} of {amount}", one.id));
            }
        }
        let back: i128 = row.booked.iter().map(|one| wide(one.amount_micros)).sum();
        let came = |kind, side: fn(&Leg) -> Account, account| {
            let chain = fold.chains.get(&chain::chain_of(kind, capture));
            chain.map_or(0, |chain| chain.posted_on(side, account))
        };
        let captured = came(ChainKind::Captured, debited, Account::Memo).max(came(
            ChainKind::Suspense,
            credited,
            Account::Suspense,
        ));
        if back > captured {
            breaches.push(format!("{back} of {capture} went back, and {captured} came"));
        }
        let Some(one) = row.of.and_then(|of| rows.settlements.get(&of.settlement)) else {
            continue;
        };
        let own = one.paypal_capture.as_deref() == Some(capture.as_str());
        if own && wide(one.given_back_micros) < back {
            breaches.push(format!("{} says {} of {back}", one.id, one.given_back_micros));
        }
    }
    let chains = fold.chains.values().filter(|chain| chain.cause == Cause::Refund);
    let places = [Account::PaypalCash, Account::Disputes];
    let of =
        |chain: &Chain| places.map(|place| chain.posted_on(credited, place)).iter().sum::<i128>();
    let moved: i128 = chains.map(of).sum();
    if moved != listed {
        breaches.push(format!("{moved} went back, and {listed} is listed"));
    }
}

/// INVARIANT: no_money_is_lost_or_made
///
/// All lines ever billed = captured + written off + what tabs still owe; and sellers and platform
/// earned exactly the lines.
pub(super) fn no_money_is_lost_or_made(rows: &Rows, fold: &Fold, breaches: &mut Vec<String>) {
    let lines = billed(rows);
    let owed = |tab: &Tab| {
        let sums = fold.sums(tab.owed());
        sums.debits_posted.saturating_sub(sums.credits_posted)
    };
    let still: i128 = rows.tabs.values().map(owed).sum();
    let mut paid: i128 = 0;
    let mut lost: i128 = 0;
    let mut earned: i128 = 0;
    for chain in fold.chains.values() {
        let legs = chain.legs.iter().zip(&chain.posted);
        for (leg, amount) in legs.map(|(leg, amount)| (leg, wide(*amount))) {
            let to = match (chain.cause, leg.debit.account, leg.credit.account) {
                (Cause::Settlement | Cause::SuspenseCleared, _, Account::TabOwed(_)) => &mut paid,
                (Cause::WriteOff, Account::Losses, Account::TabOwed(_)) => &mut lost,
                (Cause::TabLine, Account::TabOwed(_), _) => &mut earned,
                (Cause::Carry, Account::TabOwed(_), Account::TabOwed(_)) => continue,
                (_, Account::TabOwed(tab), _) | (_, _, Account::TabOwed(tab)) => {
                    breaches.push(format!("{tab} moved by {:?}", chain.cause));
                    continue;
                }
                _ => continue,
            };
            *to = to.saturating_add(amount);
        }
    }
    let found = paid.saturating_add(lost).saturating_add(still);
    if lines != found {
        breaches.push(format!("lines of {lines}: {paid} paid, {lost} lost, {still} owed"));
    }
    if lines != earned {
        breaches.push(format!("lines of {lines}, and {earned} earned"));
    }
}
