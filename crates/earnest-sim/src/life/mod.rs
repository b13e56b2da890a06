//! Who lives in the run, what they do, and what must be true of each answer.

mod buy;
mod dispute;
mod drain;
mod history;
mod owner;
mod settle;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use earnest_core::id::PurchaseId;
use earnest_core::ledger::Account;
use earnest_core::money::Micros;
use earnest_core::purchase::PurchaseState;
use earnest_core::quote::Quote;
use earnest_core::report::Tick;
use earnest_core::settings::Settings;
use earnest_core::voucher::Claims;
use earnest_store::audit::Audit;

use crate::follow::Followed;
use crate::paypal::PayPal;
use crate::place::Lost;
use crate::world::{Buyer, Shop, World, hours, micros};
use crate::{Plan, Random};
use history::History;
use settle::Stale;

/// What was done, one line a step.
pub(crate) type Trace = Rc<RefCell<Vec<String>>>;

/// People, PayPal, and the books they act on.
pub(crate) struct Life {
    pub(crate) world: World,
    paypal: PayPal,
    random: Random,
    /// Where payers dispute: numbers of their own, so that a life stays what it is but for that.
    disputing: Option<Random>,
    trace: Trace,
    buyers: Vec<Buyer>,
    shops: Vec<Shop>,
    requests: Vec<(Buyer, String, Quote)>,
    vouchers: Vec<Claims>,
    stale: Vec<Stale>,
    seen: Followed,
    /// How often each purchase was answered *billed*, and at how much.
    billed: BTreeMap<PurchaseId, i64>,
    history: History,
    count: u64,
}

fn settings(random: &mut Random) -> Settings {
    let simulated = random.one_in(2);
    let base = if simulated { Settings::simulated() } else { Settings::default() };
    Settings {
        report_grace_seconds: 10,
        credit_line_start_micros: micros(8_000_000),
        settle_at_micros: micros(3_000_000),
        min_settlement_micros: micros(if simulated { 10_000 } else { 2_500_000 }),
        confirm_not_charged_above_micros: micros(2_000_000),
        ..base
    }
}

impl Life {
    pub(crate) fn begin(plan: &Plan, trace: Trace) -> Self {
        let mut random = Random::new(plan.seed);
        let disputing = plan.disputes.then(|| Random::new(plan.seed).branch());
        let settings = settings(&mut random);
        let world = World::build(plan.arrangement, settings, &mut random);
        let first = world.buyer();
        let second = world.agent(first.owner);
        let third = world.buyer();
        let shops = vec![world.shop(), world.shop_with(70_000)];
        let mut life = Self {
            world,
            paypal: PayPal::default(),
            random,
            disputing,
            trace,
            buyers: vec![first, second, third],
            shops,
            requests: Vec::new(),
            vouchers: Vec::new(),
            stale: Vec::new(),
            seen: Followed::default(),
            billed: BTreeMap::new(),
            history: History::default(),
            count: 0,
        };
        life.check();
        life.world.place.be_perilous(true);
        life
    }

    fn note(&self, text: String) {
        self.trace.borrow_mut().push(text);
    }

    /// Reads what was recorded since, and checks every invariant and what was acknowledged.
    pub(crate) fn check(&mut self) {
        self.seen.catch_up(&self.world);
        // What was acknowledged is on the books, at that amount.
        for (purchase, amount) in &self.billed {
            let found = self.seen.rows.purchases[purchase].billed_micros;
            assert_eq!(found.map(Micros::get), Some(*amount), "{purchase}");
        }
    }

    /// Does one thing, or a part of it; then everything is checked.
    pub(crate) fn step(&mut self) {
        self.count += 1;
        self.world.place.before_step();
        let done = catch_unwind(AssertUnwindSafe(|| self.act()));
        let (what, lost) = match done {
            Ok(what) => (what, false),
            Err(payload) => match payload.downcast::<Lost>() {
                Ok(lost) => (format!("broken off: {}", lost.0), true),
                Err(breach) => resume_unwind(breach),
            },
        };
        self.note(what);
        let stopped = self.world.place.after_step(lost);
        if let Some(how) = stopped {
            self.note(format!("{how}, and it begins again"));
            self.survived();
        }
        self.safely(|life| life.check());
    }

    /// Looks at everything while nothing goes wrong.
    fn safely(&mut self, look: impl FnOnce(&mut Self)) {
        let peril = self.world.place.pause_peril();
        look(self);
        self.world.place.resume_peril(peril);
    }

    /// What was promised is there after a stop, and nothing that nobody asked for.
    fn survived(&mut self) {
        self.safely(|life| {
            life.seen.survived(&life.world);
            if life.random.one_in(8) {
                life.audit();
            }
        });
    }

    fn audit(&self) {
        let damage = self.world.place.damage();
        assert!(damage.is_empty(), "the file is damaged: {damage:#?}");
        let audit = Audit::new().run(self.world.place.store().reader());
        let findings = audit.expect("the books can be read");
        assert!(findings.is_empty(), "{findings:#?}");
    }

    fn act(&mut self) -> String {
        if self.disputing.as_mut().is_some_and(|random| random.one_in(60)) {
            return self.dispute();
        }
        match self.random.below(100) {
            0..20 => self.buy(),
            20..24 => self.crowd(),
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
        let most = [900, 12_000, 300_000, 2_500_000][self.random.place(4)];
        i64::try_from(self.random.below(most)).unwrap() + 1
    }

    fn expire(&mut self) -> String {
        let purchases = self.seen.rows.purchases.values();
        let held = purchases.filter(|p| p.state == PurchaseState::Held);
        let held: Vec<_> = held.map(|p| p.id).collect();
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

    /// Nothing goes wrong any more: everything drains, and our books and PayPal's are the same.
    pub(crate) fn end(&mut self) {
        self.world.place.be_perilous(false);
        self.survived();
        self.drain();
        self.in_order();
        // What stands at the end still stands when the power goes.
        self.world.place.cut_power_for_good();
        self.survived();
        self.in_order();
        self.audit();
    }

    fn in_order(&mut self) {
        self.check();
        self.seen.is_all(&self.world);
        self.history.check(&self.seen.rows);
        let (amount, fee) = self.paypal.books();
        let cash = self.world.totals(Account::PaypalCash.usd());
        assert_eq!(cash.debits_posted.get(), amount, "what PayPal captured");
        assert_eq!(cash.credits_posted.get(), fee, "what PayPal took");
        assert_eq!((cash.debits_pending.get(), cash.credits_pending.get()), (0, 0), "in transit");
        for line in self.world.read(|reader| reader.trial_balance()) {
            assert_eq!((line.pending, line.posted), (0, 0), "{line:?}");
        }
    }
}
