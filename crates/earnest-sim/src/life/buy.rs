//! Buying and reporting, and what must be true of each answer.

use std::collections::{BTreeMap, BTreeSet};

use earnest_core::approval::{Approval, ApprovalState};
use earnest_core::authorize::{Answer, Outcome};
use earnest_core::id::ApprovalId;
use earnest_core::policy::{Limits, Policy, PolicySubject};
use earnest_core::purchase::{Purchase, PurchaseState};
use earnest_core::quote::{Price, Quote};
use earnest_core::report::Step;
use earnest_core::time::after;
use earnest_core::voucher::{self, ReportOutcome};
use earnest_store::SubmitError;

use super::Life;
use crate::world::{Buyer, micros};

fn told(answer: &Answer) -> String {
    let said = match &answer.outcome {
        Outcome::Held(purchase) => format!("held {}", purchase.id),
        Outcome::Waiting(..) => "waiting".to_owned(),
        Outcome::Denied(_, why) => why.to_string(),
        Outcome::Resolved(purchase) => format!("is {:?}", purchase.state),
    };
    format!("{said}{}", if answer.replayed { ", again" } else { "" })
}

impl Life {
    /// Who wants what.
    fn wish(&mut self) -> (Buyer, Quote) {
        let buyer = self.buyer();
        let shop = self.random.pick(&self.shops).unwrap().clone();
        let amount = micros(self.amount());
        let price = if self.random.one_in(4) { Price::UpTo(amount) } else { Price::Fixed(amount) };
        let path = format!("/{}", self.random.below(3));
        (buyer, self.world.quote(&shop, &path, price))
    }

    pub(super) fn buy(&mut self) -> String {
        let (buyer, mut quote) = self.wish();
        if self.random.one_in(12) {
            // An offer that has run out, which may be asked for again under the same name.
            quote.expires_at = after(self.world.now(), -1);
        }
        let request_id = format!("r{}", self.count);
        self.requests.push((buyer, request_id.clone(), quote.clone()));
        self.authorize(buyer, &request_id, &quote)
    }

    pub(super) fn repeat(&mut self) -> String {
        let Some((buyer, request_id, quote)) = self.random.recent(&self.requests).cloned() else {
            return "nothing to repeat".to_owned();
        };
        let mut quote = Quote { expires_at: after(self.world.now(), 60), ..quote };
        if self.random.one_in(4) {
            quote.price = Price::Fixed(micros(self.amount()));
        }
        self.authorize(buyer, &request_id, &quote)
    }

    pub(super) fn authorize(&mut self, buyer: Buyer, request_id: &str, quote: &Quote) -> String {
        let before = self.seen.rows.approvals.clone();
        let known = self.world.bound(buyer, request_id);
        let doubtful = self.history.ask(buyer, request_id, quote);
        let result = self.world.authorize(buyer, request_id, quote);
        let what = format!("{} asks {request_id} for {:?}", buyer.agent, quote.price);
        let answer = match result {
            Ok(answer) => answer,
            Err(SubmitError::Refused(why)) => {
                self.history.refused(buyer, request_id, doubtful);
                return format!("{what}: {why}");
            }
            Err(other) => panic!("{what}: {other}"),
        };
        self.is_true(buyer, request_id, &answer, known.as_ref());
        self.judge(buyer, quote, &answer, &before);
        format!("{what}: {}", told(&answer))
    }

    /// A retry tells the truth: what was there is shown, and said to have been there.
    fn is_true(
        &mut self,
        buyer: Buyer,
        request_id: &str,
        answer: &Answer,
        known: Option<&Purchase>,
    ) {
        let (Outcome::Held(purchase)
        | Outcome::Resolved(purchase)
        | Outcome::Waiting(purchase, _)
        | Outcome::Denied(purchase, _)) = &answer.outcome;
        match known {
            None => assert!(!answer.replayed, "{request_id} is new, and said to be there"),
            Some(known) => {
                assert_eq!(known.id, purchase.id, "{request_id} is another purchase now");
                let lives = known.state == PurchaseState::Held
                    && known.voucher_lives(self.world.now())
                    || matches!(known.state, PurchaseState::Billed | PurchaseState::Unbilled);
                assert!(!lives || answer.replayed, "{request_id} was there, and is said to be new");
            }
        }
        self.history.shown(buyer, request_id, purchase);
    }

    /// Several ask at once, some of them twice, and share a commit.
    pub(super) fn crowd(&mut self) -> String {
        let many = 2 + self.random.below(6);
        let mut asked: Vec<(Buyer, String, Quote, bool)> = Vec::new();
        for nth in 0..many {
            if let Some(last) = asked.last().cloned().filter(|_| self.random.one_in(4)) {
                asked.push(last);
                continue;
            }
            let (buyer, quote) = self.wish();
            let request_id = format!("r{}.{nth}", self.count);
            let doubtful = self.history.ask(buyer, &request_id, &quote);
            asked.push((buyer, request_id, quote, doubtful));
        }
        let units = asked.iter().map(|(buyer, id, quote, _)| self.world.unit(*buyer, id, quote));
        let answers = self.world.run_together(units.collect());
        let mut said = Vec::new();
        let mut first = BTreeSet::new();
        let mut held = Vec::new();
        for ((buyer, request_id, _, doubtful), answer) in asked.iter().zip(answers) {
            let answer = match answer {
                Ok(answer) => answer,
                Err(SubmitError::Refused(why)) => {
                    self.history.refused(*buyer, request_id, *doubtful);
                    said.push(why.to_string());
                    continue;
                }
                Err(other) => panic!("{request_id}: {other}"),
            };
            said.push(told(&answer));
            let (purchase, holds) = match &answer.outcome {
                Outcome::Held(purchase) | Outcome::Resolved(purchase) => (purchase, true),
                Outcome::Waiting(purchase, _) | Outcome::Denied(purchase, _) => (purchase, false),
            };
            self.history.shown(*buyer, request_id, purchase);
            if holds {
                let new = first.insert(purchase.id);
                assert_eq!(answer.replayed, !new, "{request_id} within one batch");
                held.push((*buyer, purchase.clone()));
                if new {
                    self.vouchers.push(self.world.claims(purchase));
                }
            }
        }
        self.seen.catch_up(&self.world);
        for (buyer, purchase) in &held {
            assert_eq!(self.seen.rows.purchases.get(&purchase.id), Some(purchase.as_ref()));
            self.within_caps(*buyer, purchase);
        }
        let ids = asked.into_iter().map(|(buyer, request_id, quote, _)| (buyer, request_id, quote));
        self.requests.extend(ids);
        format!("at once: {}", said.join("; "))
    }

    /// What must be true of an answer, told from the rows and not from the ledger.
    pub(super) fn judge(
        &mut self,
        buyer: Buyer,
        quote: &Quote,
        answer: &Answer,
        before: &BTreeMap<ApprovalId, Approval>,
    ) {
        let Outcome::Held(purchase) = &answer.outcome else { return };
        let known = self.seen.rows.purchases.get(&purchase.id);
        let fresh = known.and_then(|known| known.hold) != purchase.hold;
        let (owner, agent) =
            (&self.seen.rows.owners[&buyer.owner], &self.seen.rows.agents[&buyer.agent]);
        if !answer.replayed {
            let stopped = owner.paused || agent.paused || owner.frozen.is_some();
            assert!(!stopped && owner.frozen_tab.is_none(), "{} after a stop", purchase.id);
            assert!(agent.keys.contains(&buyer.key), "by a revoked key");
            self.vouchers.push(self.world.claims(purchase));
        }
        self.seen.catch_up(&self.world);
        let stored = &self.seen.rows.purchases[&purchase.id];
        assert_eq!(stored, purchase.as_ref(), "what was answered is what is on the books");
        assert_eq!(purchase.price_micros, quote.price.most());
        if !fresh {
            return;
        }
        self.within_caps(buyer, purchase);
        let limits = self.limits(buyer).1;
        if limits.approve_above_micros.is_some_and(|above| purchase.price_micros > above) {
            let used: Vec<_> = self
                .seen
                .rows
                .approvals
                .values()
                .filter(|now| now.state == ApprovalState::Consumed)
                .filter(|now| before.get(&now.id).is_some_and(|then| then.state != now.state))
                .collect();
            let exact = used.len() == 1 && used[0].amount_micros == purchase.price_micros;
            assert!(exact != purchase.grant.is_some(), "{} passed without a yes", purchase.id);
        }
    }

    pub(super) fn limits(&self, buyer: Buyer) -> (Limits, Limits) {
        let read = |subject| self.world.row::<Policy>(subject).limits().cloned().unwrap();
        let owner = read(PolicySubject::Owner(buyer.owner));
        let mut agent = read(PolicySubject::Agent(buyer.agent));
        agent.day_cap_micros = agent.day_cap_micros.or(owner.day_cap_micros);
        agent.session_cap_micros = agent.session_cap_micros.or(owner.session_cap_micros);
        agent.approve_above_micros = agent.approve_above_micros.or(owner.approve_above_micros);
        (owner, agent)
    }

    /// Spend under each cap, held included, is at most the cap in force now.
    pub(super) fn within_caps(&self, buyer: Buyer, purchase: &Purchase) {
        let (owner, agent) = self.limits(buyer);
        let mine = |p: &Purchase| p.owner == buyer.owner;
        let own = |p: &Purchase| p.agent == buyer.agent;
        let day = |p: &Purchase| p.day == purchase.day;
        let session = |p: &Purchase| p.tab == purchase.tab;
        let spent = [
            (owner.day_cap_micros, self.seen.spent(|p| mine(p) && day(p))),
            (owner.session_cap_micros, self.seen.spent(|p| mine(p) && session(p))),
            (agent.day_cap_micros, self.seen.spent(|p| own(p) && day(p))),
            (agent.session_cap_micros, self.seen.spent(|p| own(p) && session(p))),
        ];
        for (cap, spent) in spent {
            assert!(cap.is_none_or(|cap| spent <= cap.get()), "{spent} under {cap:?}");
        }
    }
    pub(super) fn report(&mut self) -> String {
        let Some(claims) = self.random.recent(&self.vouchers).cloned() else {
            return "nothing to report".to_owned();
        };
        let fate = match self.random.below(8) {
            0..5 => voucher::Fate::Redeemed,
            5 | 6 => voucher::Fate::Failed,
            _ => voucher::Fate::Serving,
        };
        let mut told = self.world.told(&claims, fate);
        if claims.max_micros.is_some() && self.random.one_in(2) {
            let most = u64::try_from(claims.amount_micros.get()).unwrap();
            told.amount = Some(micros(i64::try_from(self.random.below(most + 2)).unwrap()));
        }
        let before = self.seen.rows.purchases[&claims.sub].clone();
        let step = self.world.report(&told);
        if let Step::Done(outcome, amount) = &step {
            let new = matches!(outcome, ReportOutcome::Billed | ReportOutcome::LateBilled);
            if new {
                let amount = amount.unwrap().get();
                assert_eq!(self.billed.insert(claims.sub, amount), None, "{} twice", claims.sub);
                assert_ne!(fate, voucher::Fate::Failed);
            }
            self.seen.catch_up(&self.world);
            let after = self.seen.rows.purchases[&claims.sub].clone();
            if *outcome == ReportOutcome::LateBilled {
                let buyer = *self.buyers.iter().find(|b| b.agent == after.agent).unwrap();
                let owner = &self.seen.rows.owners[&after.owner];
                assert!(!owner.paused && owner.frozen.is_none() && owner.frozen_tab.is_none());
                self.within_caps(buyer, &after);
            }
            let held = before.state == PurchaseState::Held;
            let released = after.state == PurchaseState::Released;
            if held && released {
                let jti = before.voucher.map(|issue| issue.jti);
                assert_eq!(jti, Some(claims.jti), "only the last voucher's failure releases");
            }
        }
        format!("{fate:?} {} amount {:?}: {step:?}", claims.sub, told.amount)
    }
}
