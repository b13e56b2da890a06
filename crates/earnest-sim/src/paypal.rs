//! PayPal as a rule may meet it: answers lost before or after the effect, effects that come late,
//! keys that replay, invoices that are refused twice, captures that wait, amounts that differ.

use std::collections::BTreeMap;

use earnest_core::id::IntentId;
use earnest_core::intent::{Charge, Fate, Intent};
use earnest_core::time::{Timestamp, after};

use crate::Random;
use crate::world::{World, hours, micros};

/// What PayPal knows of a capture.
#[derive(Clone, Debug)]
pub(crate) struct Capture {
    pub(crate) charge: Charge,
    pub(crate) state: State,
    /// When it came to be: until then nobody sees it.
    pub(crate) from: Timestamp,
    /// Whose request made it.
    pub(crate) intent: IntentId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Completed,
    Pending,
    Denied,
}

#[derive(Clone, Debug)]
enum Answer {
    Captured(String),
    Declined,
    Refused,
}

/// PayPal, with its own books.
#[derive(Default)]
pub(crate) struct PayPal {
    /// What was answered under each key, for ever.
    keys: BTreeMap<String, Answer>,
    /// The capture that carries an invoice id.
    invoices: BTreeMap<String, String>,
    pub(crate) captures: BTreeMap<String, Capture>,
    /// Nothing goes wrong any more.
    pub(crate) healthy: bool,
}

impl PayPal {
    /// Takes a request; gives what its sender learns.
    pub(crate) fn send(
        &mut self,
        intent: &Intent,
        world: &World,
        random: &mut Random,
    ) -> Fate<Charge> {
        if !self.healthy {
            match random.below(20) {
                0 | 1 => return Fate::NotRun,
                2 => return Fate::Unknown,
                // Refused before anybody looked at the key.
                3 => return Fate::Refused { issue: "NOT_AUTHORIZED".to_owned() },
                _ => {}
            }
        }
        let told = self.take(intent, world, random);
        if !self.healthy && random.below(5) == 0 { Fate::Unknown } else { told }
    }

    fn take(&mut self, intent: &Intent, world: &World, random: &mut Random) -> Fate<Charge> {
        let invoice = intent.invoice_id.clone().unwrap();
        if let Some(known) = self.keys.get(&intent.key).cloned() {
            return self.told(&known, world.now());
        }
        if self.invoices.contains_key(&invoice) {
            return Fate::AlreadyDone { issue: "DUPLICATE_INVOICE_ID".to_owned() };
        }
        let draw = if self.healthy { 0 } else { random.below(20) };
        let answer = match draw {
            17 | 18 => Answer::Declined,
            19 => Answer::Refused,
            _ => Answer::Captured(self.capture(intent, draw, world, random)),
        };
        self.keys.insert(intent.key.clone(), answer.clone());
        self.told(&answer, world.now())
    }

    fn capture(
        &mut self,
        intent: &Intent,
        draw: u64,
        world: &World,
        random: &mut Random,
    ) -> String {
        let name = format!("CAP{}", self.captures.len());
        let asked = intent.amount_micros.unwrap().get();
        let amount = match draw {
            14 => (asked - 10_000).max(10_000),
            15 => asked + 10_000,
            _ => asked,
        };
        let mut charge = world.charge(&name, amount);
        if draw == 13 {
            // A fee off the model.
            charge.fee = micros(charge.fee.get() + 10_000);
        }
        let state = if draw == 12 { State::Pending } else { State::Completed };
        let late = if draw == 11 { i64::try_from(random.below(600)).unwrap() } else { 0 };
        let from = after(world.now(), late);
        self.captures.insert(name.clone(), Capture { charge, state, from, intent: intent.id });
        self.invoices.insert(intent.invoice_id.clone().unwrap(), name.clone());
        name
    }

    fn told(&self, answer: &Answer, now: Timestamp) -> Fate<Charge> {
        match answer {
            Answer::Declined => Fate::Declined { issue: "INSTRUMENT_DECLINED".to_owned() },
            Answer::Refused => Fate::Refused { issue: "PAYEE_NOT_ENABLED".to_owned() },
            Answer::Captured(name) => self.shown(name, now).unwrap_or(Fate::Unknown),
        }
    }

    /// What a look at a capture says; nothing while it is not there yet.
    pub(crate) fn shown(&self, name: &str, now: Timestamp) -> Option<Fate<Charge>> {
        let capture = self.captures.get(name).filter(|capture| now >= capture.from)?;
        Some(match capture.state {
            State::Completed => Fate::Done(capture.charge.clone()),
            State::Pending => Fate::Pending {
                paypal_order: capture.charge.paypal_order.clone(),
                paypal_capture: Some(name.to_owned()),
            },
            State::Denied => Fate::Declined { issue: "CAPTURE_DENIED".to_owned() },
        })
    }

    /// Reads what carries the invoice; a report is complete three hours after the last send.
    pub(crate) fn read(
        &self,
        intent: &Intent,
        now: Timestamp,
        random: &mut Random,
    ) -> Fate<Charge> {
        if !self.healthy && random.below(6) == 0 {
            return Fate::Unknown;
        }
        if !self.healthy && random.below(12) == 0 {
            // A report that says it is complete, and is not.
            return Fate::NotCharged;
        }
        let found = self.invoices.get(intent.invoice_id.as_ref().unwrap());
        if let Some(fate) = found.and_then(|name| self.shown(name, now)) {
            return fate;
        }
        let complete = intent.last_sent_at.map(|sent| after(sent, hours(3)));
        match complete {
            Some(until) if now < until => Fate::NotYet { until },
            _ => Fate::NotCharged,
        }
    }

    /// What waits is decided.
    pub(crate) fn decide(&mut self, deny: bool) {
        let mut waiting: Vec<_> =
            self.captures.values_mut().filter(|c| c.state == State::Pending).collect();
        waiting.sort_by(|a, b| a.charge.paypal_capture.cmp(&b.charge.paypal_capture));
        if let Some(capture) = waiting.into_iter().next() {
            capture.state = if deny { State::Denied } else { State::Completed };
        }
    }

    /// What came in and what was taken of it.
    pub(crate) fn books(&self) -> (i64, i64) {
        let done = self.captures.values().filter(|c| c.state == State::Completed);
        done.fold((0, 0), |(amount, fee), c| {
            (amount + c.charge.amount.get(), fee + c.charge.fee.get())
        })
    }
}
