//! The end: nothing goes wrong any more, and nothing may stay open.

use earnest_core::admin::{Pausable, SetCredit};
use earnest_core::approval::ApprovalState;
use earnest_core::intent::{Fate, Intent, Purpose};
use earnest_core::ledger::{Account, Window};
use earnest_core::party::Principal;
use earnest_core::quote::Quote;
use earnest_core::settlement::ConfirmNotCharged;
use earnest_core::tab::TabState;
use earnest_core::time::after;

use super::Life;
use crate::paypal::State;
use crate::world::{hours, micros};

impl Life {
    /// PayPal is well, everybody may, and time passes: nothing stays open.
    pub(super) fn drain(&mut self) {
        self.paypal.healthy = true;
        while self.paypal.captures.values().any(|c| c.state == State::Pending) {
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
        self.ask_again();
        self.world.live(300);
        let expired = self.expire();
        self.note(expired);
        self.check();
        for _ in 0..12 {
            self.world.pass(hours(4));
            self.world.place.before_step();
            self.vaults();
            for intent in self.open_intents() {
                let attempted = self.attempt(&intent);
                self.note(attempted);
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
                let settled = self.world.treasure(owner, tab, true);
                self.note(format!("{tab}: {settled:?}"));
                self.check();
            }
        }
        self.announce();
        let open: Vec<&Intent> =
            self.seen.rows.intents.values().filter(|intent| intent.state.is_open()).collect();
        assert!(open.is_empty(), "every outcome is known: {open:#?}");
        let now = self.world.now();
        for approval in self.seen.rows.approvals.values() {
            let waits = approval.state == ApprovalState::Waiting && !approval.is_expired(now);
            assert!(!waits, "{approval:?} still waits");
        }
        for tab in self.seen.rows.tabs.values() {
            assert_eq!((tab.pending_holds, tab.open_settlement), (0, None), "{tab:?}");
            let owed = self.seen.fold.sums(tab.owed()).collectible();
            assert!(owed < 10_000, "{} still owes {owed}: {tab:?}", tab.id);
            assert_ne!(tab.state, TabState::Frozen, "{tab:?}");
        }
        for (account, sums) in &self.seen.fold.accounts {
            let limit = matches!(account.account, Account::Limit(_, Window::Grant(_)));
            assert!(!limit || sums.debits_pending == 0, "{account} still holds");
        }
    }

    /// Every client that had no answer asks once more, and is told.
    fn ask_again(&mut self) {
        for place in 0..self.buyers.len() {
            let buyer = self.buyers[place];
            if !self.seen.rows.agents[&buyer.agent].keys.contains(&buyer.key) {
                let key = self.world.add_key(Principal::Agent(buyer.agent), Some(buyer.owner));
                self.buyers[place].key = key.id;
            }
        }
        self.check();
        for (asked, request_id, quote) in self.history.doubts() {
            let buyer = self.buyers.iter().find(|buyer| buyer.agent == asked.agent);
            let buyer = *buyer.expect("agents do not go");
            let quote = Quote { expires_at: after(self.world.now(), 60), ..quote };
            let said = self.authorize(buyer, &request_id, &quote);
            self.note(said);
            self.check();
        }
    }

    /// What is left of vaulting that was broken off ends.
    fn vaults(&mut self) {
        let open = self.seen.rows.intents.values().filter(|intent| intent.state.is_open()).cloned();
        for intent in open.collect::<Vec<_>>() {
            if let Purpose::VaultSetup(vault) | Purpose::VaultToken(vault) = intent.purpose {
                let ended = self.world.end_vault(vault, &intent);
                self.note(format!("{vault} is {ended:?}"));
                self.check();
            }
        }
    }

    /// PayPal tells of every capture once more, as its webhooks do: what nobody knows yet goes to
    /// suspense, what is known moves nothing.
    fn announce(&mut self) {
        let mut captures: Vec<_> = self.paypal.captures.values().cloned().collect();
        captures.sort_by(|a, b| a.charge.paypal_capture.cmp(&b.charge.paypal_capture));
        for capture in captures {
            if capture.state != State::Completed {
                continue;
            }
            let intent: Intent = self.world.row(capture.intent);
            let Purpose::Settlement(id) = intent.purpose else { panic!("{intent:?}") };
            let (row, fate) = (self.world.row(id), Fate::Done(capture.charge));
            let one = self.world.record(&row, intent.id, intent.fence, fate).unwrap();
            self.note(format!("webhook for {}: {:?}", intent.id, one.state));
            self.check();
        }
    }
}
