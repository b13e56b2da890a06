//! What models cost.

use std::collections::BTreeMap;

use super::{Fold, Rows, wide};
use crate::ledger::{Account, Cause, HoldState};
use crate::model::{CallState, ModelCall, cap_account};

/// INVARIANT: model_spend_is_its_calls
///
/// Every call has one hold of what was reserved, pending while the call may be under way; what was
/// posted of all its chains is what it cost; no chain belongs to no call; and the accounts, the caps
/// of the days among them, hold exactly the calls.
pub(super) fn model_spend_is_its_calls(rows: &Rows, fold: &Fold, breaches: &mut Vec<String>) {
    let mut chains = 0_usize;
    let mut spent: i128 = 0;
    let mut days: BTreeMap<_, i128> = BTreeMap::new();
    for call in rows.model_calls.values() {
        chains = chains.saturating_add(1);
        let Some(hold) = fold.chains.get(&call.hold()) else {
            breaches.push(format!("{} has no hold", call.id));
            continue;
        };
        let excess = fold.chains.get(&call.excess());
        chains = chains.saturating_add(usize::from(excess.is_some()));
        let reserved = hold.made_on(|leg| leg.debit.account, Account::ModelCosts);
        let posted: i128 = [Some(hold), excess]
            .into_iter()
            .flatten()
            .map(|chain| chain.posted_on(|leg| leg.credit.account, Account::ModelPayable))
            .sum();
        spent = spent.saturating_add(posted);
        let open = hold.state == HoldState::Pending;
        let day = days.entry(call.day).or_default();
        *day = day.saturating_add(if open { reserved } else { posted });
        if reserved != wide(call.reserved_micros) || !agrees(call, open, posted) {
            breaches.push(format!(
                "{} is {:?} and says {:?}: {reserved} reserved, {posted} posted, pending: {open}",
                call.id, call.state, call.cost_micros
            ));
        }
    }
    let known = fold.chains.values().filter(|chain| chain.cause == Cause::ModelCall).count();
    if known != chains {
        breaches.push(format!("{known} chains for calls to models, and {chains} have a call"));
    }
    let costs = fold.sums(Account::ModelCosts.usd());
    let payable = fold.sums(Account::ModelPayable.usd());
    if costs.debits_posted != spent || payable.credits_posted != spent {
        breaches.push(format!("calls cost {spent}; the accounts say {costs:?} and {payable:?}"));
    }
    for (day, sum) in days {
        let sums = fold.sums(cap_account(day));
        let counted = sums.debits_pending.saturating_add(sums.debits_posted);
        if counted != sum {
            breaches.push(format!("calls of {day} cost {sum}, and their cap counts {counted}"));
        }
    }
}

/// Whether a call says of itself what its chains say.
fn agrees(call: &ModelCall, open: bool, posted: i128) -> bool {
    match call.state {
        CallState::Reserved => open && call.cost_micros.is_none(),
        CallState::Ended => !open && call.cost_micros.map(wide) == Some(posted),
        CallState::Unknown => {
            !open
                && call.cost_micros == Some(call.reserved_micros)
                && posted == wide(call.reserved_micros)
        }
    }
}
