//! What stands on the guards of owners and agents, and what owners allowed.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fold, Rows, wide};
use crate::approval::{ApprovalState, MAX_GRANTS, MAX_WAITING};
use crate::authorize::grant_account;
use crate::id::{OwnerId, TabId};
use crate::party::Owner;
use crate::purchase::PurchaseState;
use crate::tab::{Tab, TabState};

/// INVARIANT: an_owner_knows_its_tabs
///
/// The guard names the one open tab and every earlier tab that still counts, and says that a tab
/// is frozen if and only if one is.
pub(super) fn an_owner_knows_its_tabs(rows: &Rows, _: &Fold, breaches: &mut Vec<String>) {
    for owner in rows.owners.values() {
        let named: Vec<TabId> = owner.earlier_tabs.iter().chain(&owner.open_tab).copied().collect();
        if named.iter().collect::<BTreeSet<_>>().len() != named.len() {
            breaches.push(format!("{} names a tab twice", owner.id));
        }
        for id in &named {
            match rows.tabs.get(id).filter(|tab| tab.owner == owner.id) {
                None => breaches.push(format!("{} names {id}, which is not its own", owner.id)),
                Some(tab) => breaches.extend(wrong_place(owner, tab)),
            }
        }
        let frozen = |id: &TabId| rows.tabs.get(id).is_some_and(|t| t.state == TabState::Frozen);
        let says = owner.frozen_tab.is_some_and(|id| named.contains(&id) && frozen(&id));
        if says != named.iter().any(frozen) || says != owner.frozen_tab.is_some() {
            breaches.push(format!("{} says frozen: {:?}", owner.id, owner.frozen_tab));
        }
    }
    for tab in rows.tabs.values().filter(|tab| !tab.finished) {
        let owner = rows.owners.get(&tab.owner);
        let known = owner.is_some_and(|owner| {
            owner.open_tab == Some(tab.id) || owner.earlier_tabs.contains(&tab.id)
        });
        if !known {
            breaches.push(format!("{} is forgotten by its owner", tab.id));
        }
    }
}

fn wrong_place(owner: &Owner, tab: &Tab) -> Option<String> {
    let fits = if owner.open_tab == Some(tab.id) {
        matches!(tab.state, TabState::Open | TabState::Closing | TabState::Frozen)
    } else {
        matches!(tab.state, TabState::Closed | TabState::Frozen) && tab.pending_holds == 0
    };
    let fits = fits && !tab.finished;
    (!fits).then(|| format!("{} is {:?} among the tabs of {}", tab.id, tab.state, owner.id))
}

/// INVARIANT: what_is_disputed_counts_against_its_owner
///
/// What the guard says is disputed is what the disputed captures of that owner put at risk.
pub(super) fn what_is_disputed_counts_against_its_owner(
    rows: &Rows,
    _: &Fold,
    breaches: &mut Vec<String>,
) {
    let mut sums: BTreeMap<OwnerId, i128> = BTreeMap::new();
    for row in rows.disputed.values() {
        let Some(of) = row.of else { continue };
        let sum = sums.entry(of.owner).or_default();
        *sum = sum.saturating_add(wide(row.at_risk()));
    }
    for owner in rows.owners.values() {
        let sum = sums.get(&owner.id).copied().unwrap_or_default();
        if wide(owner.disputed_micros) != sum {
            let says = owner.disputed_micros;
            breaches.push(format!("{} says {says} is disputed, and {sum} is", owner.id));
        }
    }
}

/// INVARIANT: an_approval_works_once
///
/// At most so many questions wait for one agent, each once; a waiting purchase has its question;
/// and no grant is overdrawn, what is held included.
pub(super) fn an_approval_works_once(rows: &Rows, fold: &Fold, breaches: &mut Vec<String>) {
    for agent in rows.agents.values() {
        let most = usize::try_from(MAX_WAITING).unwrap_or(usize::MAX);
        if agent.waiting.len() > most || agent.grants.len() > MAX_GRANTS {
            breaches.push(format!("{} has too many questions or grants", agent.id));
        }
        let asked: BTreeSet<&str> = agent.waiting.iter().map(|w| w.binding.as_str()).collect();
        if asked.len() != agent.waiting.len() {
            breaches.push(format!("{} asks the same twice", agent.id));
        }
        for waiting in &agent.waiting {
            let approval = rows.approvals.get(&waiting.approval);
            if approval.is_none_or(|known| known.state != ApprovalState::Waiting) {
                breaches.push(format!("{} waits for {}", agent.id, waiting.approval));
            }
        }
    }
    for purchase in rows.purchases.values().filter(|p| p.state == PurchaseState::Waiting) {
        let approval = purchase.approval.and_then(|id| rows.approvals.get(&id));
        if approval.is_none_or(|known| known.agent != purchase.agent) {
            breaches.push(format!("{} waits without a question", purchase.id));
        }
    }
    for grant in rows.grants.values() {
        let sums = fold.sums(grant_account(grant.agent, grant.id));
        let used = sums.debits_pending.saturating_add(sums.debits_posted);
        if used > wide(grant.cap_micros) {
            breaches.push(format!("{} of {} is used to {used}", grant.id, grant.cap_micros));
        }
    }
}
