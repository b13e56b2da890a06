//! Settling: the treasurer, PayPal's answers, and what is lost between them.

use earnest_core::id::{IntentId, SettlementId};
use earnest_core::intent::{Charge, Fate, Intent, Purpose};
use earnest_core::settlement::{ConfirmNotCharged, Settled, Settlement};

use super::Life;

/// A result that somebody still has in hand, under the fence it was learnt with.
pub(super) struct Stale {
    settlement: SettlementId,
    intent: IntentId,
    fence: u64,
    fate: Fate<Charge>,
}

impl Life {
    pub(super) fn rounds(&mut self) -> String {
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

    pub(super) fn treasure(&mut self) -> String {
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

    pub(super) fn open_intents(&self) -> Vec<Intent> {
        let intents = self.seen.rows.intents.values();
        let settles = |intent: &&Intent| matches!(intent.purpose, Purpose::Settlement(_));
        intents.filter(|intent| intent.state.is_open()).filter(settles).cloned().collect()
    }

    pub(super) fn settle_up(&mut self) -> String {
        let open = self.open_intents();
        let Some(intent) = self.random.pick(&open).cloned() else {
            return "nothing to send".to_owned();
        };
        self.attempt(&intent)
    }

    /// Sends or reads, and records what was learnt; or loses it on the way.
    pub(super) fn attempt(&mut self, intent: &Intent) -> String {
        let Purpose::Settlement(id) = intent.purpose else { panic!("{intent:?}") };
        let settlement: Settlement = self.world.row(id);
        let now = self.world.now();
        let node = self.world.place.node();
        if intent.lease.as_ref().is_some_and(|lease| lease.until > now && lease.node != node) {
            assert!(self.world.claim(intent.id).is_err(), "{} has two senders", intent.id);
            return format!("{} is with another node", intent.id);
        }
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
    pub(super) fn deliver_late(&mut self) -> String {
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
}
