//! What owners and the operator do.

use earnest_core::admin::{Pausable, RevokeKey, SetCredit, SetZone};
use earnest_core::answer::{RevokeGrant, Verdict};
use earnest_core::approval::ApprovalState;
use earnest_core::id::{GrantId, TabId};
use earnest_core::party::{ApiKey, Principal};
use earnest_core::policy::{Constraint, Every, Limits, PolicySubject, Rate, SellerBudget};
use earnest_core::tab::TabState;
use earnest_core::time::Zone;
use earnest_core::vault::Remove;
use earnest_store::SubmitError;
use serde_json::json;

use super::Life;
use crate::world::{hours, micros};

impl Life {
    pub(super) fn answer(&mut self) -> String {
        let rows = &self.seen.rows;
        let waiting: Vec<_> =
            rows.approvals.values().filter(|a| a.state == ApprovalState::Waiting).collect();
        let Some(approval) = self.random.recent(&waiting).map(|a| (*a).clone()) else {
            let grants: Vec<_> =
                rows.grants.values().map(|grant| (grant.owner, grant.agent, grant.id)).collect();
            let Some((owner, agent, grant)) = self.random.pick(&grants).copied() else {
                return "nothing waits".to_owned();
            };
            self.world.run(RevokeGrant { owner, agent, grant }).unwrap();
            return format!("{grant} is taken back");
        };
        let verdict = match self.random.below(6) {
            0 => Verdict::Deny,
            1 => Verdict::DenyAndPause,
            2 | 3 => Verdict::Grant {
                id: GrantId::new(self.world.seed()),
                cap: micros(approval.amount_micros.get() + self.amount()),
                seconds: hours(2),
            },
            _ => Verdict::Approve,
        };
        let what = format!("{}: {verdict:?}", approval.id);
        match self.world.answer(&approval, verdict) {
            Ok(_) => what,
            Err(why) => format!("{what}: {why}"),
        }
    }

    pub(super) fn pause(&mut self) -> String {
        let (buyer, paused) = (self.buyer(), self.random.one_in(6));
        let subject = if self.random.one_in(2) {
            Pausable::Owner(buyer.owner)
        } else {
            Pausable::Agent(buyer.owner, buyer.agent)
        };
        self.world.pause(subject, paused);
        format!("{subject:?} paused: {paused}")
    }

    pub(super) fn limit(&mut self) -> String {
        let buyer = self.buyer();
        let of_owner = self.random.one_in(2);
        let subject = if of_owner {
            PolicySubject::Owner(buyer.owner)
        } else {
            PolicySubject::Agent(buyer.agent)
        };
        let mut some = |most: u64| {
            let given = self.random.one_in(2);
            let amount = self.random.below(most);
            given.then(|| micros(i64::try_from(amount).unwrap()))
        };
        let limits = Limits {
            per_call_cap_micros: some(4_000_000),
            session_cap_micros: some(9_000_000),
            day_cap_micros: some(12_000_000),
            approve_above_micros: some(2_000_000),
            tab_limit_micros: some(9_000_000).filter(|_| of_owner),
            rate: self.random.one_in(4).then_some(Rate { count: 5, per_seconds: 60 }),
            ..Limits::default()
        };
        let (seller_budgets, constraints) = (self.budgets(), self.constraints());
        let limits = Limits { seller_budgets, constraints, ..limits };
        let what = format!("{subject}: {limits:?}");
        self.world.limit(subject, buyer.owner, limits);
        what
    }

    pub(super) fn budgets(&mut self) -> Option<Vec<SellerBudget>> {
        let shop = self.random.pick(&self.shops)?.id;
        // Seldom: what is refused brings a life no further.
        if !self.random.one_in(8) {
            return None;
        }
        let every = *self.random.pick(&[Every::Day, Every::Week, Every::Month])?;
        let cap_micros = micros(i64::try_from(self.random.below(8_000_000)).unwrap());
        Some(vec![SellerBudget { seller: shop, every, cap_micros }])
    }

    pub(super) fn constraints(&mut self) -> Option<Vec<Constraint>> {
        let budget = json!({ "type": "payment.budget", "currency": "USD", "max": 25 });
        let often = json!({ "type": "payment.agent_recurrence", "frequency": "WEEKLY",
            "max_occurrences": 40 });
        let demand = json!({ "type": "payment.agent_recurrence", "frequency": "ON_DEMAND",
            "max_occurrences": 30 });
        let raw = self.random.pick(&[budget, often, demand])?.clone();
        self.random.one_in(16).then(|| vec![Constraint::read(raw)])
    }

    pub(super) fn zone(&mut self) -> String {
        let owner = self.buyer().owner;
        let names = ["UTC", "Europe/Amsterdam", "Pacific/Kiritimati", "Pacific/Niue"];
        let name = *self.random.pick(&names).unwrap();
        let zone: Zone = name.parse().unwrap();
        self.world.run(SetZone { owner, zone }).unwrap();
        format!("{owner} moves to {name}")
    }

    pub(super) fn vault(&mut self) -> String {
        let owner = self.buyer().owner;
        match self.seen.rows.owners[&owner].funding.clone() {
            Some(funding) if self.random.one_in(4) => {
                self.world.run(Remove { owner, vault: funding.vault }).unwrap();
                format!("{owner} removes its payment method")
            }
            _ => format!("{owner} vaults {}", self.world.fund(owner)),
        }
    }

    pub(super) fn open_or_close(&mut self) -> String {
        let owner = self.buyer().owner;
        let open: Option<TabId> = self.seen.rows.owners[&owner].open_tab;
        let result = match open {
            Some(_) if !self.random.one_in(3) => return "everybody goes on".to_owned(),
            Some(tab) => self.world.close(owner, tab),
            None => self.world.open(owner),
        };
        match result {
            Ok(tab) => format!("{} is {:?}", tab.id, tab.state),
            Err(SubmitError::Refused(why)) => format!("{owner} may not: {why}"),
            Err(other) => panic!("{other}"),
        }
    }

    pub(super) fn write_off(&mut self) -> String {
        let frozen: Vec<_> = self
            .seen
            .rows
            .tabs
            .values()
            .filter(|tab| tab.state == TabState::Frozen)
            .map(|tab| (tab.owner, tab.id))
            .collect();
        let Some((owner, tab)) = self.random.pick(&frozen).copied() else {
            let owner = self.buyer().owner;
            self.world.run(SetCredit { owner, line: Some(None), unfreeze: true }).unwrap();
            return format!("{owner} is let off");
        };
        match self.world.write_off(owner, tab) {
            Ok((_, amount)) => format!("{tab} is written off: {amount}"),
            Err(SubmitError::Refused(why)) => format!("{tab} is not: {why}"),
            Err(other) => panic!("{other}"),
        }
    }

    pub(super) fn rotate(&mut self) -> String {
        let most = u64::try_from(self.buyers.len()).unwrap();
        let place = usize::try_from(self.random.below(most)).unwrap();
        let buyer = self.buyers[place];
        let principal = Principal::Agent(buyer.agent);
        let old = self.world.all::<ApiKey>().into_iter().find(|key| key.id == buyer.key).unwrap();
        let owner = Some(buyer.owner);
        self.world.run(RevokeKey { principal, hash: old.hash, owner }).unwrap();
        self.buyers[place].key = self.world.add_key(principal, owner).id;
        // Somebody keeps trying with the old one.
        let quote = self.world.fixed(&self.shops[0], 1_000);
        let word = self.world.word(buyer, &format!("old{}", self.count), &quote);
        assert_eq!(word, "unauthenticated");
        for request in &mut self.requests {
            if request.0.agent == buyer.agent {
                request.0.key = self.buyers[place].key;
            }
        }
        format!("{} has a new key", buyer.agent)
    }

    pub(super) fn credit(&mut self) -> String {
        let owner = self.buyer().owner;
        let line = self.random.one_in(2).then(|| micros(self.amount() * 4));
        self.world.run(SetCredit { owner, line: Some(line), unfreeze: false }).unwrap();
        format!("the line of {owner} is {line:?}")
    }
}
