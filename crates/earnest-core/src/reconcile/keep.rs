//! What is kept between comparisons: when the books began and with what, and what the last one found.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Line, Report};
use crate::chain::{ChainKind, chain_of};
use crate::id::TransferId;
use crate::ledger::{Account, Cause, Leg, Op, Totals};
use crate::money::Micros;
use crate::time::{Timestamp, after};
use crate::unit::{Effects, Record, Stop, Touches, Unit, View, rank};

/// The most lines of one comparison that are alarmed one by one. The others are summed up in one
/// alarm more, and come in turn with the comparisons that follow.
const MAX_ALARMS: usize = 50;

/// The state of reconciling: when the books began, with what, and what the last comparison found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconciliation {
    /// From when on PayPal's movements are ours to explain.
    pub began: Timestamp,
    /// PayPal's balance then, once it is in the books.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opening_micros: Option<i64>,
    /// Why there is none, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opening_missing: Option<String>,
    /// Whether money had moved before anybody asked for the balance: then no opening balance can
    /// be booked any more without explaining something away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub began_late: bool,
    /// Where the next comparison begins.
    pub from: Timestamp,
    /// See [`super::Sides::earlier`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<String>,
    /// When the last comparison was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// What it found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Report>,
    /// Which unexplained lines were alarmed, by [`Line::print`], as long as they are unexplained.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub alarmed: BTreeSet<String>,
}

impl Reconciliation {
    /// There is one.
    pub const ID: &'static str = "paypal";

    /// The same, with the next comparison looking at everything that is ours to explain, as far back as
    /// PayPal answers; `None` where it does already.
    pub(crate) fn looking_back(&self, now: Timestamp) -> Option<Self> {
        let from = self.began.max(after(now, MOST_BACK_SECONDS.saturating_neg()));
        (from < self.from).then(|| Self { from, ..self.clone() })
    }
}

/// How far back PayPal answers searches, with a month to spare: three years.
const MOST_BACK_SECONDS: i64 = (3 * 365 - 31) * 86_400;

impl Record for Reconciliation {
    const KIND: &'static str = "reconciliation";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        Self::ID.to_owned()
    }
}

/// Notes when the books began, once.
#[derive(Clone, Copy, Debug)]
pub struct Begin {
    /// When.
    pub began: Timestamp,
}

impl Unit for Begin {
    type Answer = ();

    fn name(&self) -> &'static str {
        "reconcile.begin"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Reconciliation>(Reconciliation::ID);
        touches.account(Account::PaypalCash.usd());
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        if view.row::<Reconciliation>(Reconciliation::ID)?.is_some() {
            return Ok(effects);
        }
        let cash = view.totals(Account::PaypalCash.usd())?;
        let began_late = cash != Totals::default();
        effects.put(Reconciliation {
            began: self.began,
            opening_micros: None,
            opening_missing: None,
            began_late,
            from: self.began,
            earlier: Vec::new(),
            at: None,
            last: None,
            alarmed: BTreeSet::new(),
        })?;
        Ok(effects)
    }
}

/// Books PayPal's balance of the time the books began, once; or notes why it is not known.
#[derive(Clone, Debug)]
pub struct BookOpening {
    /// The balance, negative where the account was overdrawn; or why it cannot be read.
    pub balance: Result<i64, String>,
}

impl Unit for BookOpening {
    type Answer = ();

    fn name(&self) -> &'static str {
        "reconcile.opening"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Reconciliation>(Reconciliation::ID);
        touches.hold(opening_chain());
        touches.account(Account::PaypalCash.usd());
        touches.account(Account::OperatorFunds.usd());
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut row = view.need::<Reconciliation>(Reconciliation::ID)?.clone();
        let mut effects = Effects::answer(());
        // INVARIANT: the_opening_balance_is_booked_once
        if row.opening_micros.is_some() || row.began_late {
            return Ok(effects);
        }
        match &self.balance {
            Err(why) if row.opening_missing.as_ref() == Some(why) => return Ok(effects),
            Err(why) => row.opening_missing = Some(why.clone()),
            Ok(balance) => {
                row.opening_micros = Some(*balance);
                row.opening_missing = None;
                let size = i64::try_from(balance.unsigned_abs()).ok().map(Micros::new);
                let Some(Ok(size)) = size else {
                    return Err(Stop::Bug(format!("a balance of {balance}")));
                };
                let (cash, funds) = (Account::PaypalCash.usd(), Account::OperatorFunds.usd());
                let (debit, credit) = if *balance > 0 { (cash, funds) } else { (funds, cash) };
                if !size.is_zero() {
                    let (id, legs) = (opening_chain(), vec![Leg::new(debit, credit, size)]);
                    effects.op(Op::Move { id, cause: Cause::Deposit, legs });
                }
                effects.event("reconciliation.opened", &[], json!({ "balance_micros": balance }));
            }
        }
        effects.put(row)?;
        Ok(effects)
    }
}

/// The chain of the opening balance.
pub fn opening_chain() -> TransferId {
    chain_of(ChainKind::Opening, Reconciliation::ID)
}

/// Keeps what a comparison found, and alarms about each unexplained line once.
#[derive(Clone, Debug)]
pub struct Keep {
    /// What was found.
    pub report: Report,
    /// Every line that is not explained, the worst first.
    pub unexplained: Vec<Line>,
    /// When the one before it ended, as it was read when this one began: another one that ended
    /// meanwhile wins.
    pub before: Option<Timestamp>,
    /// Where the next one begins.
    pub next_from: Timestamp,
    /// See [`super::Sides::earlier`].
    pub next_earlier: Vec<String>,
}

impl Unit for Keep {
    type Answer = Reconciliation;

    fn name(&self) -> &'static str {
        "reconcile.keep"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Reconciliation>(Reconciliation::ID);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Reconciliation>, Stop> {
        let mut row = view.need::<Reconciliation>(Reconciliation::ID)?.clone();
        if row.at != self.before {
            return Ok(Effects::answer(row));
        }
        let mut effects = Effects::answer(());
        row.alarmed = self.alarm(&row.alarmed, &mut effects);
        let rest = self.report.difference_micros().filter(|rest| *rest != 0);
        let was = row.last.as_ref().and_then(Report::difference_micros);
        if let Some(rest) = rest.filter(|rest| was != Some(*rest)) {
            let data = json!({ "difference_micros": rest, "horizon": self.report.horizon });
            effects.event("alarm.balance_differs", &[], data);
        }
        row.at = Some(now);
        row.last = Some(self.report.clone());
        row.from = self.next_from;
        row.earlier.clone_from(&self.next_earlier);
        effects.put(row.clone())?;
        Ok(effects.map(|()| row))
    }
}

impl Keep {
    /// Alarms about the worst lines that were not alarmed yet, and sums up the others. Gives what is
    /// alarmed now.
    // INVARIANT: every_unexplained_line_is_alarmed_once
    fn alarm(&self, known: &BTreeSet<String>, effects: &mut Effects<()>) -> BTreeSet<String> {
        let lines = self.unexplained.iter().map(|line| (line.print(), line));
        let (mut alarmed, news): (Vec<_>, Vec<_>) =
            lines.partition(|(print, _)| known.contains(print));
        let (now, later) = news.split_at(news.len().min(MAX_ALARMS));
        for (_, line) in now {
            effects.event("alarm.reconciliation_unexplained", &[], json!(line));
        }
        if !later.is_empty() {
            let total = later.iter().map(|(_, line)| line.at_stake());
            let total = total.fold(0, u64::saturating_add);
            let data = json!({ "more_lines": later.len(), "total_micros": total,
                "horizon": self.report.horizon });
            effects.event("alarm.reconciliation_more_unexplained", &[], data);
        }
        alarmed.extend_from_slice(now);
        alarmed.into_iter().map(|(print, _)| print).collect()
    }
}
