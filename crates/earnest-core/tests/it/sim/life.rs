//! Who lives in the run, what they do, and what must be true of each answer.

use std::cell::RefCell;
use std::collections::BTreeMap;

use earnest_core::admin::{Pausable, RevokeKey, SetCredit, SetZone};
use earnest_core::answer::{RevokeGrant, Verdict};
use earnest_core::approval::{Approval, ApprovalState};
use earnest_core::authorize::{Answer, Outcome};
use earnest_core::dispute::{Case, Concerned, Stage, TellCase};
use earnest_core::id::{GrantId, PurchaseId, SettlementId, TabId};
use earnest_core::intent::{Charge, Fate, Intent, Purpose};
use earnest_core::ledger::Window;
use earnest_core::money::Micros;
use earnest_core::party::{ApiKey, Owner, Principal};
use earnest_core::policy::{Constraint, Every, Limits, Policy, PolicySubject, Rate, SellerBudget};
use earnest_core::purchase::{Purchase, PurchaseState};
use earnest_core::quote::{Price, Quote};
use earnest_core::report::{Step, Tick};
use earnest_core::reversal::Captured;
use earnest_core::settings::Settings;
use earnest_core::settlement::{ConfirmNotCharged, Settled, Settlement};
use earnest_core::tab::TabState;
use earnest_core::time::Zone;
use earnest_core::vault::Remove;
use earnest_core::voucher::{self, Claims, ReportOutcome};
use earnest_store::SubmitError;
use serde_json::json;

use super::Random;
use super::follow::Followed;
use super::paypal::PayPal;
use crate::world::{Buyer, Engine, Shop, World, hours, micros};

/// A result that somebody still has in hand, under the fence it was learnt with.
struct Stale {
    settlement: SettlementId,
    intent: earnest_core::id::IntentId,
    fence: u64,
    fate: Fate<Charge>,
}

pub struct Life {
    pub world: World,
    pub paypal: PayPal,
    random: Random,
    /// Where payers dispute: numbers of their own, so that the other lives stay what they are.
    disputing: Option<Random>,
    buyers: Vec<Buyer>,
    shops: Vec<Shop>,
    requests: Vec<(Buyer, String, Quote)>,
    vouchers: Vec<Claims>,
    stale: Vec<Stale>,
    seen: Followed,
    /// How often each purchase was answered *billed*, and at how much.
    billed: BTreeMap<PurchaseId, i64>,
    count: u64,
}

impl Life {
    pub fn begin(
        settings: Settings,
        random: Random,
        disputing: Option<Random>,
        plant: impl Fn(&mut earnest_store::Options),
    ) -> Self {
        let world = World::start(Engine::Memory, settings, plant);
        let first = world.buyer();
        let second = world.agent(first.owner);
        let third = world.buyer();
        let shops = vec![world.shop(), world.shop_with(70_000)];
        Self {
            world,
            paypal: PayPal::default(),
            disputing,
            random,
            buyers: vec![first, second, third],
            shops,
            requests: Vec::new(),
            vouchers: Vec::new(),
            stale: Vec::new(),
            seen: Followed::default(),
            billed: BTreeMap::new(),
            count: 0,
        }
    }

    pub fn check(&mut self) {
        self.seen.catch_up(&self.world);
        // What was acknowledged is on the books, at that amount.
        for (purchase, amount) in &self.billed {
            let found = self.seen.rows.purchases[purchase].billed_micros;
            assert_eq!(found.map(Micros::get), Some(*amount), "{purchase}");
        }
    }

    /// Does one thing; says what.
    pub fn step(&mut self) -> String {
        self.count += 1;
        if self.disputing.as_mut().is_some_and(|random| random.one_in(60)) {
            return self.dispute();
        }
        match self.random.below(100) {
            0..24 => self.buy(),
            24..36 => self.repeat(),
            36..56 => self.report(),
            56..59 => self.expire(),
            59..66 => self.pass(),
            66..73 => self.treasure(),
            73..84 => self.settle_up(),
            84..88 => self.answer(),
            88..90 => self.deliver_late(),
            90 => self.pause(),
            91..93 => self.limit(),
            93 => self.zone(),
            94 => self.vault(),
            95 => self.open_or_close(),
            96 => self.write_off(),
            97 => self.rotate(),
            98 => self.credit(),
            _ => {
                let deny = self.random.one_in(3);
                self.paypal.decide(deny);
                format!("PayPal decides, deny {deny}")
            }
        }
    }

    fn buyer(&mut self) -> Buyer {
        *self.random.pick(&self.buyers).unwrap()
    }

    fn amount(&mut self) -> i64 {
        let most =
            [900, 12_000, 300_000, 2_500_000][usize::try_from(self.random.below(4)).unwrap()];
        i64::try_from(self.random.below(most)).unwrap() + 1
    }

    fn buy(&mut self) -> String {
        let buyer = self.buyer();
        let shop = self.random.pick(&self.shops).unwrap().clone();
        let amount = micros(self.amount());
        let price = if self.random.one_in(4) { Price::UpTo(amount) } else { Price::Fixed(amount) };
        let path = format!("/{}", self.random.below(3));
        let quote = self.world.quote(&shop, &path, price);
        let request_id = format!("r{}", self.count);
        self.requests.push((buyer, request_id.clone(), quote.clone()));
        self.authorize(buyer, &request_id, &quote)
    }

    fn repeat(&mut self) -> String {
        let Some((buyer, request_id, quote)) = self.random.recent(&self.requests).cloned() else {
            return "nothing to repeat".to_owned();
        };
        let mut quote =
            Quote { expires_at: earnest_core::time::after(self.world.now(), 60), ..quote };
        if self.random.one_in(4) {
            quote.price = Price::Fixed(micros(self.amount()));
        }
        self.authorize(buyer, &request_id, &quote)
    }

    fn authorize(&mut self, buyer: Buyer, request_id: &str, quote: &Quote) -> String {
        let before = self.seen.rows.approvals.clone();
        let result = self.world.authorize(buyer, request_id, quote);
        let what = format!("{} asks {request_id} for {:?}", buyer.agent, quote.price);
        let answer = match result {
            Ok(answer) => answer,
            Err(SubmitError::Refused(why)) => return format!("{what}: {why}"),
            Err(other) => panic!("{what}: {other}"),
        };
        let said = match &answer.outcome {
            Outcome::Held(purchase) => format!("held {}", purchase.id),
            Outcome::Waiting(..) => "waiting".to_owned(),
            Outcome::Denied(_, why) => why.to_string(),
            Outcome::Resolved(purchase) => format!("is {:?}", purchase.state),
        };
        self.judge(buyer, quote, &answer, &before);
        format!("{what}: {said}{}", if answer.replayed { ", again" } else { "" })
    }

    /// What must be true of an answer, told from the rows and not from the ledger.
    fn judge(
        &mut self,
        buyer: Buyer,
        quote: &Quote,
        answer: &Answer,
        before: &BTreeMap<earnest_core::id::ApprovalId, Approval>,
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

    fn limits(&self, buyer: Buyer) -> (Limits, Limits) {
        let read = |subject| self.world.row::<Policy>(subject).limits().cloned().unwrap();
        let owner = read(PolicySubject::Owner(buyer.owner));
        let mut agent = read(PolicySubject::Agent(buyer.agent));
        agent.day_cap_micros = agent.day_cap_micros.or(owner.day_cap_micros);
        agent.session_cap_micros = agent.session_cap_micros.or(owner.session_cap_micros);
        agent.approve_above_micros = agent.approve_above_micros.or(owner.approve_above_micros);
        (owner, agent)
    }

    /// Spend under each cap, held included, is at most the cap in force now.
    fn within_caps(&self, buyer: Buyer, purchase: &Purchase) {
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

    fn report(&mut self) -> String {
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

    fn expire(&mut self) -> String {
        let held: Vec<_> = self
            .seen
            .rows
            .purchases
            .values()
            .filter(|p| p.state == PurchaseState::Held)
            .map(|p| p.id)
            .collect();
        let given_up = held.iter().filter(|id| self.world.expire(**id)).count();
        format!("{given_up} holds expire")
    }

    fn pass(&mut self) -> String {
        let seconds = match self.random.below(12) {
            0..6 => 10,
            6..9 => 140,
            9 => 1_800,
            10 => hours(3),
            _ => hours(11),
        };
        if seconds <= 140 {
            self.world.live(seconds);
        } else {
            self.world.pass(seconds);
            self.world.run(Tick).unwrap();
        }
        // Sessions end, and the treasurer looks at everything.
        let settled = if seconds >= 1_800 { self.rounds() } else { String::new() };
        format!("{seconds} s pass{settled}")
    }

    fn rounds(&mut self) -> String {
        let live: Vec<_> = self.seen.rows.tabs.values().filter(|tab| !tab.finished).collect();
        let tabs: Vec<_> = live.into_iter().map(|tab| (tab.owner, tab.id)).collect();
        let mut said = String::new();
        for (owner, tab) in tabs {
            said += &match self.world.treasure(owner, tab, false) {
                Settled::Planned(one) => format!("; {tab} settles {}", one.amount_micros),
                Settled::Carried(why) => format!("; {tab}: {why}"),
                Settled::Waited(_) => String::new(),
            };
        }
        said
    }

    fn treasure(&mut self) -> String {
        let asked = self.random.one_in(3);
        let live: Vec<_> = self.seen.rows.tabs.values().filter(|tab| !tab.finished).collect();
        let Some(tab) = self.random.pick(&live) else { return "no tab".to_owned() };
        let (owner, id) = (tab.owner, tab.id);
        match self.world.treasure(owner, id, asked) {
            Settled::Planned(one) => {
                format!("{id} settles {} as {}.{}", one.amount_micros, one.n, one.attempt)
            }
            other => format!("{id}: {other:?}"),
        }
    }

    fn open_intents(&self) -> Vec<Intent> {
        let intents = self.seen.rows.intents.values();
        let settles = |intent: &&Intent| matches!(intent.purpose, Purpose::Settlement(_));
        intents.filter(|intent| intent.state.is_open()).filter(settles).cloned().collect()
    }

    fn settle_up(&mut self) -> String {
        let open = self.open_intents();
        let Some(intent) = self.random.pick(&open).cloned() else {
            return "nothing to send".to_owned();
        };
        self.attempt(&intent)
    }

    /// Sends or reads, and records what was learnt; or loses it on the way.
    fn attempt(&mut self, intent: &Intent) -> String {
        let Purpose::Settlement(id) = intent.purpose else { panic!("{intent:?}") };
        let settlement: Settlement = self.world.row(id);
        let now = self.world.now();
        if !intent.may_send(now, now) && self.random.one_in(3) {
            // Somebody is impatient; PayPal may have forgotten the key.
            assert!(self.world.claim(intent.id).is_err(), "{} was sent again", intent.id);
        }
        let sends = intent.may_send(now, now) && (intent.sends == 0 || self.random.one_in(2));
        let (fence, fate) = if sends {
            let fence = self.world.claim(intent.id).unwrap().fence;
            (fence, self.paypal.send(intent, &self.world, &mut self.random))
        } else {
            let fence = self.world.look(intent.id).fence;
            (fence, self.paypal.read(intent, now, &mut self.random))
        };
        let what = format!("{} {} {id}: {fate:?}", if sends { "send" } else { "read" }, intent.key);
        if self.random.one_in(4) {
            let (settlement, intent, fate) = (id, intent.id, fate.clone());
            self.stale.push(Stale { settlement, intent, fence, fate });
        }
        if !self.paypal.healthy && self.random.one_in(12) {
            return format!("{what}, and its process dies");
        }
        if matches!(fate, Fate::NotCharged) && self.random.one_in(2) {
            // The operator's word, which counts for large amounts; refused while nothing is unknown.
            let _ = self.world.run(ConfirmNotCharged { intent: intent.id });
        }
        let one = self.world.record(&settlement, intent.id, fence, fate).unwrap();
        format!("{what}: {:?}", one.state)
    }

    /// An answer that was under way all the time arrives.
    fn deliver_late(&mut self) -> String {
        if self.stale.is_empty() {
            return "nothing late".to_owned();
        }
        let most = u64::try_from(self.stale.len()).unwrap();
        let place = usize::try_from(self.random.below(most)).unwrap();
        let Stale { settlement, intent, fence, fate } = &self.stale[place];
        let row: Settlement = self.world.row(settlement);
        let what = format!("late for {intent} under {fence}: {fate:?}");
        // Even twice.
        for _ in 0..2 {
            let known: Intent = self.world.row(intent);
            if known.state.is_open() && known.fence == *fence {
                break;
            }
            self.world.record(&row, *intent, *fence, fate.clone()).unwrap();
        }
        what
    }

    fn answer(&mut self) -> String {
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

    fn pause(&mut self) -> String {
        let (buyer, paused) = (self.buyer(), self.random.one_in(6));
        let subject = if self.random.one_in(2) {
            Pausable::Owner(buyer.owner)
        } else {
            Pausable::Agent(buyer.owner, buyer.agent)
        };
        self.world.pause(subject, paused);
        format!("{subject:?} paused: {paused}")
    }

    fn limit(&mut self) -> String {
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

    fn budgets(&mut self) -> Option<Vec<SellerBudget>> {
        let shop = self.random.pick(&self.shops)?.id;
        // Seldom: what is refused brings a life no further.
        if !self.random.one_in(8) {
            return None;
        }
        let every = *self.random.pick(&[Every::Day, Every::Week, Every::Month])?;
        let cap_micros = micros(i64::try_from(self.random.below(8_000_000)).unwrap());
        Some(vec![SellerBudget { seller: shop, every, cap_micros }])
    }

    fn constraints(&mut self) -> Option<Vec<Constraint>> {
        let budget = json!({ "type": "payment.budget", "currency": "USD", "max": 25 });
        let often = json!({ "type": "payment.agent_recurrence", "frequency": "WEEKLY",
            "max_occurrences": 40 });
        let demand = json!({ "type": "payment.agent_recurrence", "frequency": "ON_DEMAND",
            "max_occurrences": 30 });
        let raw = self.random.pick(&[budget, often, demand])?.clone();
        self.random.one_in(16).then(|| vec![Constraint::read(raw)])
    }

    fn zone(&mut self) -> String {
        let owner = self.buyer().owner;
        let names = ["UTC", "Europe/Amsterdam", "Pacific/Kiritimati", "Pacific/Niue"];
        let name = *self.random.pick(&names).unwrap();
        let zone: Zone = name.parse().unwrap();
        self.world.run(SetZone { owner, zone }).unwrap();
        format!("{owner} moves to {name}")
    }

    fn vault(&mut self) -> String {
        let owner = self.buyer().owner;
        match self.seen.rows.owners[&owner].funding.clone() {
            Some(funding) if self.random.one_in(4) => {
                self.world.run(Remove { owner, vault: funding.vault }).unwrap();
                format!("{owner} removes its payment method")
            }
            _ => format!("{owner} vaults {}", self.world.fund(owner)),
        }
    }

    fn open_or_close(&mut self) -> String {
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

    fn write_off(&mut self) -> String {
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

    fn rotate(&mut self) -> String {
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

    /// A payer disputes what was captured, or PayPal decides about that; now and then the operator lifts
    /// the freeze at once.
    fn dispute(&mut self) -> String {
        let Some(random) = &mut self.disputing else { return "nobody disputes".to_owned() };
        let captured = |one: &&Settlement| one.is_captured() && one.paypal_capture.is_some();
        let all: Vec<_> = self.seen.rows.settlements.values().filter(captured).cloned().collect();
        let Some(one) = random.recent(&all).cloned() else {
            return "nothing to dispute".to_owned();
        };
        let of = Captured { intent: one.intent, settlement: one.id, owner: one.owner };
        let whose = Concerned { of: Some(of), cleared_for: Vec::new() };
        let stage = *random.pick(&[Stage::Open, Stage::Open, Stage::Won, Stage::Lost]).unwrap();
        let id = format!("PP-D-{}", random.below(2));
        let case = Case { id, stage, amount_micros: one.amount_micros, reason: None };
        let capture = one.paypal_capture.clone().unwrap();
        let news = self.world.run(TellCase { capture, whose, case: case.clone() }).unwrap();
        let owner: Owner = self.world.row(one.owner);
        let opened = news && stage == Stage::Open;
        assert!(!opened || owner.frozen.is_some(), "{} goes on buying", one.owner);
        if random.one_in(2) {
            let lift = SetCredit { owner: one.owner, line: None, unfreeze: true };
            self.world.run(lift).unwrap();
        }
        format!("{} of {} is {stage:?}: {news}", case.id, one.id)
    }

    fn credit(&mut self) -> String {
        let owner = self.buyer().owner;
        let line = self.random.one_in(2).then(|| micros(self.amount() * 4));
        self.world.run(SetCredit { owner, line: Some(line), unfreeze: false }).unwrap();
        format!("the line of {owner} is {line:?}")
    }

    /// PayPal is well, everybody may, and time passes: nothing stays open.
    pub fn drain(&mut self, trace: &RefCell<Vec<String>>) {
        let note = |text: String| trace.borrow_mut().push(text);
        self.paypal.healthy = true;
        while self.paypal.captures.values().any(|c| c.state == super::paypal::State::Pending) {
            self.paypal.decide(false);
        }
        for buyer in self.buyers.clone() {
            self.world.pause(Pausable::Owner(buyer.owner), false);
            self.world.pause(Pausable::Agent(buyer.owner, buyer.agent), false);
            self.world.fund(buyer.owner);
            let line = SetCredit {
                owner: buyer.owner,
                line: Some(Some(micros(500_000_000))),
                unfreeze: true,
            };
            self.world.run(line).unwrap();
        }
        self.world.live(300);
        note(self.expire());
        self.check();
        for _ in 0..12 {
            self.world.pass(hours(4));
            for intent in self.open_intents() {
                note(self.attempt(&intent));
                // The operator is there, too.
                let _ = self.world.run(ConfirmNotCharged { intent: intent.id });
                self.check();
            }
            let tabs: Vec<_> = self
                .seen
                .rows
                .tabs
                .values()
                .filter(|tab| !tab.finished)
                .map(|tab| (tab.owner, tab.id))
                .collect();
            for (owner, tab) in tabs {
                note(format!("{tab}: {:?}", self.world.treasure(owner, tab, true)));
                self.check();
            }
        }
        self.announce(trace);
        assert_eq!(self.open_intents(), [], "every outcome is known");
        for tab in self.seen.rows.tabs.values() {
            assert_eq!((tab.pending_holds, tab.open_settlement), (0, None), "{tab:?}");
            let owed = self.seen.fold.sums(tab.owed()).collectible();
            assert!(owed < 10_000, "{} still owes {owed}: {tab:?}", tab.id);
            assert_ne!(tab.state, TabState::Frozen, "{tab:?}");
        }
        for (account, sums) in &self.seen.fold.accounts {
            let limit = matches!(
                account.account,
                earnest_core::ledger::Account::Limit(_, Window::Grant(_))
            );
            assert!(!limit || sums.debits_pending == 0, "{account} still holds");
        }
    }

    /// PayPal tells of every capture once more, as its webhooks do: what nobody knows yet goes to
    /// suspense, what is known moves nothing.
    fn announce(&mut self, trace: &RefCell<Vec<String>>) {
        let mut captures: Vec<_> = self.paypal.captures.values().cloned().collect();
        captures.sort_by(|a, b| a.charge.paypal_capture.cmp(&b.charge.paypal_capture));
        for capture in captures {
            if capture.state != super::paypal::State::Completed {
                continue;
            }
            let intent: Intent = self.world.row(capture.intent);
            let Purpose::Settlement(id) = intent.purpose else { panic!("{intent:?}") };
            let (row, fate) = (self.world.row(id), Fate::Done(capture.charge));
            let one = self.world.record(&row, intent.id, intent.fence, fate).unwrap();
            trace.borrow_mut().push(format!("webhook for {}: {:?}", intent.id, one.state));
            self.check();
        }
    }
}
