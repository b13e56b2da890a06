//! Purchases and what they hold and owe.

use std::collections::{BTreeMap, BTreeSet};

use super::{Chain, Fold, Rows, chain_of, wide, within};
use crate::id::{SessionId, TabId, TransferId};
use crate::ledger::{Account, Cause, Counted, HoldState, Leg, Subject, Window};
use crate::purchase::{Purchase, PurchaseState};
use crate::settlement::{Settlement, SettlementState};
use crate::tab::{LineRange, TabState};

fn debited(leg: &Leg) -> Account {
    leg.debit.account
}

/// What a chain of a tab line puts on a tab.
fn on_tab(chain: &Chain, tab: TabId) -> i128 {
    chain.made_on(debited, Account::TabOwed(tab))
}

/// INVARIANT: held_money_has_one_purchase
///
/// A pending line belongs to one held purchase and the other way round, and a tab knows how many
/// it waits for.
pub(super) fn held_money_has_one_purchase(rows: &Rows, fold: &Fold, breaches: &mut Vec<String>) {
    let mut held: BTreeMap<TransferId, &Purchase> = BTreeMap::new();
    for purchase in rows.purchases.values().filter(|p| p.state == PurchaseState::Held) {
        let id = purchase.id;
        let Some(hold) = purchase.hold else {
            breaches.push(format!("{id} is held without a hold"));
            continue;
        };
        if held.insert(hold, purchase).is_some() {
            breaches.push(format!("hold {hold} holds for two purchases"));
        }
        let state = fold.chains.get(&hold).map(|chain| chain.state);
        if state != Some(HoldState::Pending) {
            breaches.push(format!("{id} is held by {hold}, which is {state:?}"));
        }
    }
    let mut waiting: BTreeMap<TabId, u64> = BTreeMap::new();
    for (id, chain) in &fold.chains {
        let pending = chain.state == HoldState::Pending && chain.cause == Cause::TabLine;
        if !pending {
            continue;
        }
        match held.get(id).and_then(|purchase| purchase.tab) {
            None => breaches.push(format!("hold {id} is pending for no purchase")),
            Some(tab) => {
                let count = waiting.entry(tab).or_default();
                *count = count.saturating_add(1);
            }
        }
    }
    for tab in rows.tabs.values() {
        let count = waiting.get(&tab.id).copied().unwrap_or(0);
        if tab.pending_holds != count {
            let said = tab.pending_holds;
            breaches.push(format!("{} counts {said} pending holds of {count}", tab.id));
        }
    }
}

/// INVARIANT: a_purchase_posts_at_most_once
///
/// Every posted line belongs to one billed purchase, at the amount it says: above zero, at most its
/// price.
pub(super) fn a_purchase_posts_at_most_once(rows: &Rows, fold: &Fold, breaches: &mut Vec<String>) {
    let mut billed: BTreeSet<TransferId> = BTreeSet::new();
    for purchase in rows.purchases.values() {
        let id = purchase.id;
        let state = chain_of(fold, purchase.hold).map(|chain| chain.state);
        if purchase.state != PurchaseState::Billed {
            if state == Some(HoldState::Posted) {
                breaches.push(format!("{id} is {:?}, and its hold is posted", purchase.state));
            }
            if purchase.line.is_some() || purchase.billed_micros.is_some() {
                breaches.push(format!("{id} is {:?} with a line", purchase.state));
            }
            continue;
        }
        let (Some(hold), Some(tab), Some(amount)) =
            (purchase.hold, purchase.tab, purchase.billed_micros)
        else {
            breaches.push(format!("{id} is billed without hold, tab or amount"));
            continue;
        };
        if !billed.insert(hold) {
            breaches.push(format!("chain {hold} bills two purchases"));
        }
        if amount.is_zero() || amount > purchase.price_micros {
            breaches.push(format!("{id} of {} is billed {amount}", purchase.price_micros));
        }
        let posted =
            fold.chains.get(&hold).map(|chain| chain.posted_on(debited, Account::TabOwed(tab)));
        if posted != Some(wide(amount)) {
            breaches.push(format!("{id} is billed {amount}, and {posted:?} was posted"));
        }
    }
    for (id, chain) in &fold.chains {
        let posted = chain.cause == Cause::TabLine && chain.state == HoldState::Posted;
        if posted && !billed.contains(id) {
            breaches.push(format!("chain {id} is posted for no purchase"));
        }
    }
}

/// INVARIANT: a_voucher_comes_with_its_hold
///
/// A held purchase has a voucher, and its hold reserves exactly the price for exactly its seller.
pub(super) fn a_voucher_comes_with_its_hold(rows: &Rows, fold: &Fold, breaches: &mut Vec<String>) {
    for purchase in rows.purchases.values().filter(|p| p.state == PurchaseState::Held) {
        let id = purchase.id;
        let (Some(chain), Some(tab)) = (chain_of(fold, purchase.hold), purchase.tab) else {
            continue;
        };
        if purchase.voucher.is_none() || purchase.report_by.is_none() {
            breaches.push(format!("{id} is held without voucher or deadline"));
        }
        if on_tab(chain, tab) != wide(purchase.price_micros) {
            breaches.push(format!(
                "{id} costs {} and holds {}",
                purchase.price_micros,
                on_tab(chain, tab)
            ));
        }
        let other = |leg: &&Leg| match leg.credit.account {
            Account::SellerAccrued(seller) => seller != purchase.seller,
            Account::PlatformRevenue | Account::MemoDay(_) => false,
            _ => true,
        };
        if chain.legs.iter().any(|leg| other(&leg)) {
            breaches.push(format!("{id} holds for somebody else than its seller"));
        }
    }
}

/// INVARIANT: every_line_counts_under_every_cap
///
/// Whatever is put on a tab is put, in the same chain, under the session and the day of owner and
/// agent, and under the grant it draws on.
pub(super) fn every_line_counts_under_every_cap(
    rows: &Rows,
    fold: &Fold,
    breaches: &mut Vec<String>,
) {
    let live = |p: &&Purchase| matches!(p.state, PurchaseState::Held | PurchaseState::Billed);
    for purchase in rows.purchases.values().filter(live) {
        let id = purchase.id;
        let (Some(chain), Some(tab), Some(day)) =
            (chain_of(fold, purchase.hold), purchase.tab, purchase.day)
        else {
            breaches.push(format!("{id} has no chain, tab or day"));
            continue;
        };
        let (owner, agent) = (Subject::Owner(purchase.owner), Subject::Agent(purchase.agent));
        let session = Window::Session(SessionId::from_value(tab.value()));
        let mut due: Vec<Account> = [owner, agent]
            .into_iter()
            .flat_map(|who| [session, Window::Day(day)].map(|window| Account::Limit(who, window)))
            .collect();
        due.extend(purchase.grant.map(|grant| Account::Limit(agent, Window::Grant(grant))));
        let amount = on_tab(chain, tab);
        let posted = chain.posted_on(debited, Account::TabOwed(tab));
        for account in &due {
            let counted = chain.made_on(debited, *account);
            if counted != amount || chain.posted_on(debited, *account) != posted {
                breaches.push(format!("{id} puts {amount} on its tab and {counted} on {account}"));
            }
        }
        let counts = |leg: &&Leg| match debited(leg) {
            Account::Limit(who, Window::Budget(counted, _)) => {
                let seller = !matches!(counted, Counted::Seller(id) if id != purchase.seller);
                let party = who == owner || who == agent;
                budget_is_kept(chain, leg, counted, amount, posted) && seller && party
            }
            account => due.contains(&account),
        };
        let mut limits = chain.legs.iter().filter(|leg| matches!(debited(leg), Account::Limit(..)));
        if !limits.all(|leg| counts(&leg)) {
            breaches.push(format!("{id} counts under other windows than {due:?}"));
        }
        if chain.legs.iter().any(|leg| leg.room.is_none()) {
            breaches.push(format!("{id} uses room without a limit"));
        }
    }
}

/// Whether a budget counts what is on the tab, or one purchase where it counts those.
fn budget_is_kept(chain: &Chain, leg: &Leg, counted: Counted, amount: i128, posted: i128) -> bool {
    let account = debited(leg);
    let (made, kept) = (chain.made_on(debited, account), chain.posted_on(debited, account));
    match counted {
        Counted::Uses(_) => made == 1 && kept == i128::from(posted > 0),
        Counted::Seller(_) | Counted::Spend(_) => made == amount && kept == posted,
    }
}

/// The settlements that a line may stand in for good or for now: what was declined gave its lines
/// back.
fn takes_lines(settlement: &Settlement) -> bool {
    settlement.state != SettlementState::Declined
}

/// INVARIANT: each_line_stands_in_one_place
///
/// A posted line is listed by one settlement, or waits on one tab, or was written off with it;
/// lines of a tab are numbered from 1 without a gap.
pub(super) fn each_line_stands_in_one_place(rows: &Rows, _: &Fold, breaches: &mut Vec<String>) {
    let lines = rows.lines();
    let mut places: BTreeMap<(TabId, u64), (u64, u64)> = BTreeMap::new();
    let mut put = |range: &LineRange, place: fn(&mut (u64, u64)) -> &mut u64| {
        let mut count: u64 = 0;
        for (at, _) in within(&lines, range) {
            count = count.saturating_add(1);
            let known = place(places.entry(at).or_default());
            *known = known.saturating_add(1);
        }
        if count != range.to.saturating_sub(range.from) {
            breaches.push(format!("{range:?} names {count} lines"));
        }
    };
    for settlement in rows.settlements.values().filter(|settlement| takes_lines(settlement)) {
        settlement.lines.iter().for_each(|range| put(range, |(listed, _)| listed));
    }
    for tab in rows.tabs.values() {
        tab.unsettled().iter().for_each(|range| put(range, |(_, waits)| waits));
    }
    let lost: BTreeSet<TabId> = written_off(rows);
    for (at, purchase) in &lines {
        let (tab, line) = at;
        let (listed, waits) = places.get(at).copied().unwrap_or_default();
        let count = listed.saturating_add(waits);
        let expect = if count == 0 && lost.contains(tab) { 0 } else { 1 };
        if count != expect {
            breaches.push(format!(
                "{} is line {line} of {tab}: in {listed} settlements, waiting on {waits} tabs",
                purchase.id
            ));
        }
    }
    for tab in rows.tabs.values() {
        let count = lines.range((tab.id, 0)..=(tab.id, u64::MAX)).count();
        let last = lines.range((tab.id, 0)..=(tab.id, u64::MAX)).last().map_or(0, |(at, _)| at.1);
        if u64::try_from(count) != Ok(tab.lines) || last != tab.lines {
            breaches.push(format!("{} counts {} lines of {count} to {last}", tab.id, tab.lines));
        }
    }
}

/// Tabs whose waiting lines were written off, or paid without a settlement: their own, or those of a tab they were carried to.
fn written_off(rows: &Rows) -> BTreeSet<TabId> {
    let gone = rows.tabs.values();
    let gone = gone.filter(|tab| matches!(tab.state, TabState::WrittenOff | TabState::PaidOff));
    let mut lost: BTreeSet<TabId> = gone.map(|tab| tab.id).collect();
    loop {
        let known = lost.len();
        // Ids rise with time and a rest is carried forward, so one round backwards finds nearly all.
        for tab in rows.tabs.values().rev() {
            if tab.carried_to.is_some_and(|next| lost.contains(&next)) {
                lost.insert(tab.id);
            }
        }
        if lost.len() == known {
            return lost;
        }
    }
}

/// The sum of all lines ever billed.
pub(super) fn billed(rows: &Rows) -> i128 {
    rows.purchases.values().filter_map(|p| p.billed_micros).map(wide).sum::<i128>()
}
