//! What must hold of the books as the business knows it: pure functions over rows and over the
//! ledger folded from its first operation.
//!
//! The same functions run after each step of the seeded run and in `earnest audit`. They share no
//! code with the rules that they judge: sums are made again from the lines, in wide integers.
//!
//! ```
//! use earnest_core::invariant::{Fold, Rows, check};
//! assert!(check(&Rows::default(), &Fold::default()).is_empty());
//! ```

mod cash;
mod fold;
mod lines;
mod models;
mod owners;
mod settlements;

use std::collections::BTreeMap;

use crate::approval::{Approval, Grant};
use crate::cash::CashEntry;
use crate::dispute::{Disputed, Withheld};
use crate::id::{
    AgentId, ApprovalId, GrantId, IntentId, ModelCallId, OwnerId, PurchaseId, SettlementId, TabId,
    TransferId,
};
use crate::intent::Intent;
use crate::model::ModelCall;
use crate::money::Micros;
use crate::party::{Agent, Owner};
use crate::purchase::{Purchase, PurchaseState};
use crate::reconcile::{Acknowledged, Reconciliation};
use crate::reversal::Reversal;
use crate::settlement::Settlement;
use crate::suspense::Suspended;
use crate::tab::{LineRange, Tab};

pub use fold::{Chain, Fold, Sums};

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Its name, as in [`INVARIANTS`].
    pub invariant: &'static str,
    /// What was found, with ids and figures.
    pub detail: String,
}

impl std::fmt::Display for Breach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.invariant, self.detail)
    }
}

/// The rows of one moment, by id.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Guards of owners.
    pub owners: BTreeMap<OwnerId, Owner>,
    /// Guards of agents.
    pub agents: BTreeMap<AgentId, Agent>,
    /// Tabs.
    pub tabs: BTreeMap<TabId, Tab>,
    /// Purchases.
    pub purchases: BTreeMap<PurchaseId, Purchase>,
    /// Questions put to owners.
    pub approvals: BTreeMap<ApprovalId, Approval>,
    /// Bounded permissions.
    pub grants: BTreeMap<GrantId, Grant>,
    /// Settlements.
    pub settlements: BTreeMap<SettlementId, Settlement>,
    /// PayPal calls and their fate.
    pub intents: BTreeMap<IntentId, Intent>,
    /// Captures of which something went back, by PayPal's id.
    pub reversals: BTreeMap<String, Reversal>,
    /// Captures of which something is, or was, in suspense, by PayPal's id.
    pub suspended: BTreeMap<String, Suspended>,
    /// What the operator moved by hand, by PayPal's id.
    pub cash_entries: BTreeMap<String, CashEntry>,
    /// What PayPal withheld and released, by PayPal's id.
    pub withheld: BTreeMap<String, Withheld>,
    /// Captures that are or were disputed, by PayPal's id.
    pub disputed: BTreeMap<String, Disputed>,
    /// What the operator acknowledged, by PayPal's id.
    pub acknowledged: BTreeMap<String, Acknowledged>,
    /// What the last comparison with PayPal's records found.
    pub reconciliation: Option<Reconciliation>,
    /// Calls to models.
    pub model_calls: BTreeMap<ModelCallId, ModelCall>,
}

impl Rows {
    /// The billed purchases by tab and number of their line.
    fn lines(&self) -> BTreeMap<(TabId, u64), &Purchase> {
        let billed = self.purchases.values().filter(|p| p.state == PurchaseState::Billed);
        billed.filter_map(|p| Some(((p.tab?, p.line?), p))).collect()
    }
}

/// What one invariant says: a sentence for every breach.
pub type Invariant = fn(&Rows, &Fold, &mut Vec<String>);

/// The one invariant that speaks of PayPal's records too: books that break it are whole all the same.
pub const EXPLAINED: &str = "every_difference_is_explained";

/// Every invariant with its name. The ledger's own come first: where they fail, the others follow. Last
/// comes what breaks on sound books too, so that it never crowds out what does not.
pub const INVARIANTS: &[(&str, Invariant)] = &[
    ("the_ledger_is_the_fold_of_its_operations", fold::keeps_its_rules),
    ("held_money_has_one_purchase", lines::held_money_has_one_purchase),
    ("a_purchase_posts_at_most_once", lines::a_purchase_posts_at_most_once),
    ("a_voucher_comes_with_its_hold", lines::a_voucher_comes_with_its_hold),
    ("every_line_counts_under_every_cap", lines::every_line_counts_under_every_cap),
    ("each_line_stands_in_one_place", lines::each_line_stands_in_one_place),
    ("a_tab_owes_its_lines", settlements::a_tab_owes_its_lines),
    ("a_settlement_adds_up", settlements::a_settlement_adds_up),
    ("a_tab_knows_what_was_captured", settlements::a_tab_knows_what_was_captured),
    ("an_open_outcome_keeps_its_hold", settlements::an_open_outcome_keeps_its_hold),
    ("an_intent_closes_on_evidence", settlements::an_intent_closes_on_evidence),
    ("a_capture_has_one_effect", settlements::a_capture_has_one_effect),
    ("what_went_back_is_in_the_books", settlements::what_went_back_is_in_the_books),
    ("no_money_is_lost_or_made", settlements::no_money_is_lost_or_made),
    ("each_paypal_id_moves_cash_once", cash::each_paypal_id_moves_cash_once),
    (
        "an_acknowledgement_covers_no_money_of_ours",
        cash::an_acknowledgement_covers_no_money_of_ours,
    ),
    ("model_spend_is_its_calls", models::model_spend_is_its_calls),
    ("an_owner_knows_its_tabs", owners::an_owner_knows_its_tabs),
    (
        "what_is_disputed_counts_against_its_owner",
        owners::what_is_disputed_counts_against_its_owner,
    ),
    ("an_approval_works_once", owners::an_approval_works_once),
    (EXPLAINED, cash::every_difference_is_explained),
];

/// Every breach of every invariant.
pub fn check(rows: &Rows, fold: &Fold) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (invariant, holds) in INVARIANTS {
        let mut details = Vec::new();
        holds(rows, fold, &mut details);
        breaches.extend(details.into_iter().map(|detail| Breach { invariant, detail }));
    }
    breaches
}

fn wide(amount: Micros) -> i128 {
    i128::from(amount.get())
}

/// The lines within a range, in order.
fn within<'a>(
    lines: &'a BTreeMap<(TabId, u64), &'a Purchase>,
    range: &LineRange,
) -> impl Iterator<Item = ((TabId, u64), &'a Purchase)> {
    // An empty or turned range holds nothing, and may not be asked for.
    let (from, to) = (range.from.saturating_add(1), range.to);
    let some = (from <= to).then(|| lines.range((range.tab, from)..=(range.tab, to)));
    some.into_iter().flatten().map(|(at, purchase)| (*at, *purchase))
}

/// The sum of the lines within ranges.
fn sum_of(lines: &BTreeMap<(TabId, u64), &Purchase>, ranges: &[LineRange]) -> i128 {
    let inside = ranges.iter().flat_map(|range| within(lines, range));
    inside.filter_map(|(_, purchase)| purchase.billed_micros).map(wide).sum()
}

/// The chain of that id, where there is one.
fn chain_of(fold: &Fold, id: Option<TransferId>) -> Option<&Chain> {
    fold.chains.get(&id?)
}
