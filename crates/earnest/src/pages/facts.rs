//! What an owner should know before answering: spent against limits, what would stand in the way of
//! a yes, the usual price, how long it still waits. What is shown is read from the ledger and from
//! rows; whether a yes would buy is not judged here, it is the decision itself that is asked.

use earnest_core::approval::Approval;
use earnest_core::authorize::Foresee;
use earnest_core::id::SessionId;
use earnest_core::ledger::{Account, AccountId, Counted, Subject, Window};
use earnest_core::money::Micros;
use earnest_core::party::{Agent, Owner};
use earnest_core::policy::{Budget, Limits, Policy, PolicySubject, budgets, in_force};
use earnest_core::purchase::{Purchase, PurchaseState};
use earnest_core::tab::{Tab, limit_accounts};
use earnest_core::time::{Timestamp, Zone, seconds_between};

use crate::api::auth::not_here;
use crate::api::error::ApiResult;
use crate::app::App;
use crate::flow::purchase::fresh;
use crate::flow::settle;

/// How many of the newest purchases the usual price is looked for in.
const LOOKED_AT: usize = 500;

/// One limit.
pub(super) struct Row {
    /// Which.
    pub(super) name: String,
    /// Used so far, holds included.
    pub(super) used: String,
    /// At most.
    pub(super) cap: String,
    /// Whether the purchase would pass it.
    pub(super) passed: bool,
}

/// Why a yes would not make the purchase, as things are: the words of the decision that its repeat
/// would get. Nothing where it would be made.
pub(super) async fn in_the_way(app: &App, approval: &Approval) -> ApiResult<Option<String>> {
    let purchase = app.store.reader().row::<Purchase>(approval.purchase)?;
    let purchase = purchase.ok_or_else(not_here)?;
    let ids = fresh(app, approval.agent, &purchase.request_id);
    let foresee = Foresee::of(approval, &purchase, ids, app.settings.clone(), app.now());
    let refusal = app.store.submit(foresee).await?;
    Ok(refusal.map(|refusal| sentence(&refusal.detail)))
}

/// A limit by its name: what was used of it, and the most, where there is one.
type Limit = (String, Micros, Option<Micros>);

/// What an agent's purchase counts against: the limits that are set. None where no policy is in force.
pub(super) fn spent(
    app: &App,
    owner: &Owner,
    agent: &Agent,
    approval: &Approval,
) -> ApiResult<Vec<Row>> {
    let reader = app.store.reader();
    let owner_policy = reader.row::<Policy>(PolicySubject::Owner(owner.id))?;
    let agent_policy = reader.row::<Policy>(PolicySubject::Agent(agent.id))?;
    let (owner_policy, agent_policy) = (owner_policy.as_ref(), agent_policy.as_ref());
    let Ok(limits) = in_force(owner_policy, agent_policy) else { return Ok(Vec::new()) };
    let mut rows = windows(app, owner, agent, &limits)?;
    let parties = (owner.id, agent.id, approval.seller);
    let today = owner.zone_at(app.now()).day(app.now());
    for budget in budgets(owner_policy, agent_policy, parties, today) {
        if let Some(name) = budget_name(&budget) {
            rows.push((name, used(app, budget.account)?, Some(budget.cap)));
        }
    }
    rows.push(tab_limit(app, owner, &limits.0)?);
    Ok(table(rows, approval.amount_micros))
}

fn used(app: &App, account: AccountId) -> ApiResult<Micros> {
    Ok(app.store.reader().totals(&account)?.debits().unwrap_or(Micros::MAX))
}

/// Session and day, of all agents and of this one.
fn windows(
    app: &App,
    owner: &Owner,
    agent: &Agent,
    (of_owner, of_agent): &(Limits, Limits),
) -> ApiResult<Vec<Limit>> {
    // Without a tab no session is open, and nothing was used in it.
    let session = SessionId::from_value(owner.open_tab.map_or(0, |tab| tab.value()));
    let zone = owner.zone_at(app.now());
    let accounts = limit_accounts(owner.id, agent.id, session, zone.day(app.now()));
    let [all_session, all_day, one_session, one_day] = accounts;
    let day = format!("Today ({zone})");
    Ok(vec![
        (format!("{day}, all agents"), used(app, all_day)?, of_owner.day_cap_micros),
        (format!("{day}, this agent"), used(app, one_day)?, of_agent.day_cap_micros),
        (
            "This session, all agents".to_owned(),
            used(app, all_session)?,
            of_owner.session_cap_micros,
        ),
        (
            "This session, this agent".to_owned(),
            used(app, one_session)?,
            of_agent.session_cap_micros,
        ),
    ])
}

/// What the tab may owe.
fn tab_limit(app: &App, owner: &Owner, of_owner: &Limits) -> ApiResult<Limit> {
    let reader = app.store.reader();
    let tab = owner.open_tab.map(|tab| reader.row::<Tab>(tab)).transpose()?.flatten();
    let (owed, room) = match &tab {
        Some(tab) => (reader.totals(&tab.owed())?.owed(), settle::room_of(app, owner, tab.id)?),
        None => {
            let line = earnest_core::tab::credit_line(owner, &app.settings);
            let debt = settle::debt_of(app, owner.id)?;
            (Micros::ZERO, earnest_core::tab::room(of_owner.tab_limit_micros, line, debt))
        }
    };
    Ok(("Tab, not settled yet".to_owned(), owed, Some(room)))
}

/// The limits that are set, as they stand below each other.
fn table(limits: Vec<Limit>, amount: Micros) -> Vec<Row> {
    let set: Vec<_> = limits
        .into_iter()
        .filter_map(|(name, used, cap)| cap.map(|cap| (name, used, cap)))
        .collect();
    let used = column(set.iter().map(|(_, used, _)| *used));
    let caps = column(set.iter().map(|(_, _, cap)| *cap));
    let rows = set.into_iter().zip(used.into_iter().zip(caps));
    rows.map(|((name, of, at_most), (used, cap))| {
        let passed = amount > at_most.saturating_sub(of);
        Row { name, used, cap, passed }
    })
    .collect()
}

/// What a budget is called on the page; `None` where it counts purchases and no money.
fn budget_name(budget: &Budget) -> Option<String> {
    let Account::Limit(subject, Window::Budget(counted, period)) = budget.account.account else {
        return None;
    };
    let whose = match subject {
        Subject::Owner(_) => "all agents",
        Subject::Agent(_) => "this agent",
        // No budget of a policy counts what models cost.
        Subject::Models => return None,
    };
    match counted {
        Counted::Seller(_) => Some(format!("This seller, this {}, {whose}", period.every.as_str())),
        Counted::Spend(_) => Some(format!("Budget, {whose}")),
        Counted::Uses(_) => None,
    }
}

/// `text` as a sentence of its own.
pub(super) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

/// Amounts below each other, with as many decimals as the longest needs.
fn column(amounts: impl Iterator<Item = Micros>) -> Vec<String> {
    let texts: Vec<String> = amounts.map(Micros::to_decimal).collect();
    let decimals = |text: &str| text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let most = texts.iter().map(|text| decimals(text)).max().unwrap_or(0);
    let padded =
        |text: &String| format!("${text}{}", "0".repeat(most.saturating_sub(decimals(text))));
    texts.iter().map(padded).collect()
}

/// The newest purchases of an owner.
pub(super) fn purchases(app: &App, owner: &Owner) -> ApiResult<Vec<Purchase>> {
    let scope = owner.id.to_string();
    Ok(app.store.reader().list::<Purchase>("purchases", &scope, None, LOOKED_AT, true)?.items)
}

/// What the owner usually paid for the same listing of the same seller: the median of what was
/// billed.
pub(super) fn usual(purchases: &[Purchase], approval: &Approval) -> String {
    let same = |purchase: &&Purchase| {
        purchase.seller == approval.seller
            && purchase.listing == approval.listing
            && purchase.state == PurchaseState::Billed
    };
    let mut paid: Vec<Micros> =
        purchases.iter().filter(same).filter_map(|purchase| purchase.billed_micros).collect();
    paid.sort_unstable();
    match median(&paid) {
        None => "first time".to_owned(),
        Some(median) if paid.len() == 1 => format!("{median} (once before)"),
        Some(median) => format!("{median} (median of {})", paid.len()),
    }
}

/// The middle of sorted amounts; between two, the millionth below their mean.
fn median(sorted: &[Micros]) -> Option<Micros> {
    let middle = sorted.len().checked_div(2)?;
    let upper = *sorted.get(middle)?;
    if sorted.len().checked_rem(2) == Some(1) {
        return Some(upper);
    }
    let lower = *sorted.get(middle.checked_sub(1)?)?;
    let half = upper.saturating_sub(lower).get().checked_div(2)?;
    lower.checked_add(Micros::new(half).ok()?)
}

/// How long until then, for people.
pub(super) fn left(now: Timestamp, until: Timestamp) -> String {
    let count = |n: i64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    match seconds_between(now, until) {
        ..=0 => "over".to_owned(),
        1..60 => "less than a minute".to_owned(),
        seconds @ 60..5400 => count(seconds.checked_div(60).unwrap_or(0), "minute"),
        seconds @ 5400..129_600 => count(seconds.checked_div(3600).unwrap_or(0), "hour"),
        seconds => count(seconds.checked_div(86_400).unwrap_or(0), "day"),
    }
}

/// A moment in the owner's zone, named.
pub(super) fn moment(zone: &Zone, at: Timestamp) -> String {
    format!("{} {zone}", zone.minute(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_between_the_middle_two() {
        let check = |paid: &[i64], expect: Option<i64>| {
            let paid: Vec<Micros> = paid.iter().map(|n| Micros::new(*n).unwrap()).collect();
            assert_eq!(median(&paid).map(Micros::get), expect, "{paid:?}");
        };
        check(&[], None);
        check(&[7], Some(7));
        check(&[1, 2], Some(1));
        check(&[10, 20], Some(15));
        check(&[1, 5, 900], Some(5));
    }

    #[test]
    fn a_column_has_one_precision() {
        let amounts = [500, 1_500_000, 0].map(|n| Micros::new(n).unwrap());
        assert_eq!(column(amounts.into_iter()), ["$0.0005", "$1.5000", "$0.0000"]);
    }

    #[test]
    fn time_left_is_said_in_one_unit() {
        let check = |seconds: i64, expect: &str| {
            let now = Timestamp::UNIX_EPOCH;
            assert_eq!(left(now, earnest_core::time::after(now, seconds)), expect);
        };
        check(0, "over");
        check(59, "less than a minute");
        check(60, "1 minute");
        check(899, "14 minutes");
        check(2 * 3600, "2 hours");
        check(3 * 86_400, "3 days");
    }
}
