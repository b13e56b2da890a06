//! The operator's word that a line of PayPal's is known and moves no money of these books: a payment
//! in another currency, for example. It explains exactly the lines that it was given for.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Line, Reconciliation, Row, Why};
use crate::problem::{Code, Refusal};
use crate::settlement::key_conflict;
use crate::time::Timestamp;
use crate::unit::{Effects, Key, KeyUse, ListEntry, Record, Stop, Touches, Unit, View, rank};

/// The longest reason, in characters.
pub const MAX_REASON: usize = 500;

/// A line that an acknowledgement covers. Ids are not unique in PayPal's reports: another movement
/// under the same id is not covered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Covered {
    /// PayPal's event code.
    pub code: String,
    /// The currency, never one of these books.
    pub currency: String,
    /// What moved, in a millionth of its unit.
    pub gross_micros: i64,
}

/// What the operator acknowledged of one of PayPal's ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// PayPal's id.
    pub paypal_id: String,
    /// Why nothing is to be booked, in the operator's words.
    pub reason: String,
    /// Whose key it was.
    pub by: String,
    /// What it covers.
    pub lines: Vec<Covered>,
    /// When.
    pub at: Timestamp,
}

impl Acknowledged {
    /// Whether a row is one of those lines.
    pub fn covers(&self, row: &Row) -> bool {
        let Some(foreign) = row.foreign() else { return false };
        row.id == self.paypal_id
            && self.lines.iter().any(|line| {
                line.code == row.event.text
                    && line.currency == foreign.currency
                    && line.gross_micros == foreign.gross_micros
            })
    }
}

impl Record for Acknowledged {
    const KIND: &'static str = "acknowledgement";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.paypal_id.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        vec![ListEntry::timed("acknowledgements", "", self.at)]
    }
}

/// Acknowledges every unexplained line under one of PayPal's ids, or none.
#[derive(Clone, Debug)]
pub struct Acknowledge {
    /// PayPal's id, as the last comparison names it.
    pub paypal_id: String,
    /// Why; up to [`MAX_REASON`] characters, not blank.
    pub reason: String,
    /// Whose key it was.
    pub by: String,
    /// The operator's name for this one wish.
    pub key: Key,
}

impl Acknowledge {
    fn refuse(why: &str) -> Stop {
        Refusal::new(Code::StateConflict, why).into()
    }

    /// What a line is, where an acknowledgement can honestly cover it.
    fn cover(line: &Line) -> Result<Covered, Stop> {
        let why = match (line.why, &line.ours, &line.foreign, &line.code) {
            (Why::OtherCurrency, None, Some(foreign), Some(code)) => {
                return Ok(Covered {
                    code: code.clone(),
                    currency: foreign.currency.clone(),
                    gross_micros: foreign.gross_micros,
                });
            }
            (Why::MissingHere | Why::Doubled, ..) => {
                "it moves money of these books, so it has to be booked: `earnest cash record`"
            }
            (Why::MissingThere | Why::NotFinalThere, ..) => {
                "the books have money that PayPal does not: no word of anybody's explains that"
            }
            (Why::Unreadable | Why::StatusUnknown, ..) => {
                "nobody can tell what it moved, so nobody can say that it moved nothing"
            }
            _ => "the books have it too, with other figures: no word of anybody's explains that",
        };
        Err(Self::refuse(why))
    }
}

impl Unit for Acknowledge {
    type Answer = Acknowledged;

    fn name(&self) -> &'static str {
        "reconcile.acknowledge"
    }

    fn key(&self) -> Option<Key> {
        Some(self.key.clone())
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Reconciliation>(Reconciliation::ID);
        touches.row::<Acknowledged>(&self.paypal_id);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Acknowledged>, Stop> {
        match view.key() {
            KeyUse::Other { .. } => return Err(key_conflict().into()),
            KeyUse::Same { bound: Some(id) } => {
                return Ok(Effects::answer(view.need::<Acknowledged>(id)?.clone()));
            }
            _ => {}
        }
        let reason = self.reason.trim();
        let long = reason.chars().count() > MAX_REASON;
        if reason.is_empty() || long || reason.chars().any(char::is_control) {
            let why = format!("`reason` is one line of up to {MAX_REASON} characters");
            return Err(Refusal::new(Code::ValidationFailed, why).into());
        }
        let known = view.row::<Acknowledged>(&self.paypal_id)?;
        let state = view.row::<Reconciliation>(Reconciliation::ID)?.cloned();
        let Some((mut state, mut report)) =
            state.and_then(|mut state| state.last.take().map(|report| (state, report)))
        else {
            return Err(Self::refuse("the books were never compared with PayPal's records"));
        };
        let (own, rest): (Vec<Line>, Vec<Line>) =
            report.unexplained.into_iter().partition(|line| line.id == self.paypal_id);
        if own.is_empty() {
            return Err(Self::refuse(match known {
                Some(_) => "it is acknowledged already",
                None => "the last comparison lists no unexplained line with that id",
            }));
        }
        // INVARIANT: an_acknowledgement_covers_no_money_of_ours
        let mut lines = known.map(|known| known.lines.clone()).unwrap_or_default();
        for line in &own {
            let covered = Self::cover(line)?;
            if !lines.contains(&covered) {
                lines.push(covered);
            }
        }
        // They carry no money of ours, so that no sum of the report changes.
        let count = u64::try_from(own.len()).unwrap_or(u64::MAX);
        report.unexplained = rest;
        report.unexplained_lines = report.unexplained_lines.saturating_sub(count);
        report.acknowledged_lines = report.acknowledged_lines.saturating_add(count);
        state.last = Some(report);
        let row = Acknowledged {
            paypal_id: self.paypal_id.clone(),
            reason: reason.to_owned(),
            by: self.by.clone(),
            lines,
            at: now,
        };
        let mut effects = Effects::answer(row.clone());
        effects.bind(&self.paypal_id);
        effects.event("reconciliation.acknowledged", &[], json!(row));
        effects.put(row)?;
        effects.put(state)?;
        Ok(effects)
    }
}
