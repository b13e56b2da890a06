//! PayPal's records of our money compared with ours, line by line.
//!
//! A line is matched by PayPal's own id. What only one side knows, or what the sides put
//! differently, is either *in transit* (PayPal's report ends before it, or a call of ours about it
//! is still open) or *unexplained*; nothing is explained away here. Beside the lines stands one
//! figure: `paypal_cash` must be PayPal's balance, plus what is in transit and what is unexplained.
//!
//! Signs are PayPal's: money in is positive, money out and fees are negative.
//!
//! ```
//! use earnest_core::reconcile::{Compared, Sides, compare};
//! use earnest_core::time::Timestamp;
//! let now = Timestamp::UNIX_EPOCH;
//! let sides = Sides { ours: &[], theirs: &[], awaited: &|_| false, from: now, horizon: now,
//!     earlier: &[], books_micros: 0, paypal_micros: Some(0) };
//! assert!(compare(&sides).report.is_explained());
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::cash::CashEntry;
use crate::money::{Currency, Micros};
use crate::reversal::Reversal;
use crate::settlement::Settlement;
use crate::suspense::Suspended;
use crate::time::{SignedDuration, Timestamp};

mod keep;

pub use keep::{Begin, BookOpening, Keep, Reconciliation, opening_chain};

/// The most lines of a kind that are kept with a report; how many there are is kept beside them.
pub const MAX_LINES: usize = 200;

/// How far back a comparison looks once everything before is matched. A row may still change for
/// days: a refund that waits for a bank, for example.
const LOOK_BACK: SignedDuration = SignedDuration::from_hours(31 * 24);

/// One movement of `paypal_cash`, as our books know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Movement {
    /// PayPal's id.
    pub id: String,
    /// What moved, without the fee; negative for money out.
    pub gross_micros: i64,
    /// The fee; negative where PayPal took one, positive where it gave one back.
    pub fee_micros: i64,
    /// When it was booked.
    pub at: Timestamp,
}

/// One row of PayPal's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// PayPal's id. Not unique in reports.
    pub id: String,
    /// `T0006`, `T1107` …
    pub code: String,
    /// `S`, `P`, `D`, `V` or `F`.
    pub status: Option<String>,
    /// What it refers to: of a refund, the capture.
    pub reference: Option<String>,
    /// The invoice id it carries.
    pub invoice: Option<String>,
    /// Amount and currency, where they can be read.
    pub amount: Option<(i64, String)>,
    /// The fee, negative where PayPal took one.
    pub fee_micros: i64,
    /// When it began.
    pub initiated: Option<Timestamp>,
    /// When it last changed.
    pub updated: Option<Timestamp>,
}

/// What a line moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Without the fee.
    pub gross_micros: i64,
    /// The fee.
    pub fee_micros: i64,
}

impl Figures {
    const fn net(self) -> i64 {
        // Amounts stay below 2^53, so that a sum of two cannot saturate.
        self.gross_micros.saturating_add(self.fee_micros)
    }
}

/// Why a line is not matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// In transit: it happened after the report ends.
    AfterHorizon,
    /// In transit: a call of ours about it, or a look at it, is still open.
    CallOpen,
    /// PayPal has it, the books do not.
    MissingHere,
    /// The books have it, PayPal does not.
    MissingThere,
    /// Both have it, with other amounts.
    AmountDiffers,
    /// Both have it, with other fees.
    FeeDiffers,
    /// The books have it as final, PayPal as pending or denied.
    NotFinalThere,
    /// PayPal has more than one movement under this id.
    Doubled,
    /// It is in a currency that the books do not keep.
    OtherCurrency,
    /// PayPal's row names no amount that can be read.
    Unreadable,
}

/// A line that is not matched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// PayPal's id.
    pub id: String,
    /// Why.
    pub why: Why,
    /// PayPal's event code, where PayPal has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The code in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code_says: Option<String>,
    /// What it refers to at PayPal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// What our books say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<Figures>,
    /// What PayPal says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theirs: Option<Figures>,
    /// When it began at PayPal, or was booked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let why = match self.why {
            Why::AfterHorizon => "after the report ends",
            Why::CallOpen => "still being looked at",
            Why::MissingHere => "not in our books",
            Why::MissingThere => "not in PayPal's records",
            Why::AmountDiffers => "the amounts differ",
            Why::FeeDiffers => "the fees differ",
            Why::NotFinalThere => "booked, and not final at PayPal",
            Why::Doubled => "another movement under a known id",
            Why::OtherCurrency => "in a currency that the books do not keep",
            Why::Unreadable => "without an amount that can be read",
        };
        write!(f, "{}: {why}", self.id)?;
        if let (Some(code), Some(says)) = (&self.code, &self.code_says) {
            write!(f, " ({code}, {says})")?;
        }
        let figures = |name: &str, figures: Option<Figures>| {
            figures.map(|it| format!("; {name} {} fee {}", it.gross_micros, it.fee_micros))
        };
        for part in [figures("ours", self.ours), figures("PayPal's", self.theirs)] {
            f.write_str(&part.unwrap_or_default())?;
        }
        Ok(())
    }
}

/// What a comparison found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// From when on PayPal's rows were read; everything before was matched by an earlier report.
    pub from: Timestamp,
    /// Up to when PayPal's records are complete.
    pub horizon: Timestamp,
    /// `paypal_cash` posted, debits less credits.
    pub books_micros: i64,
    /// PayPal's balance at the horizon; none where it cannot be read, or where the books do not
    /// know the balance they began with. Then only movements are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paypal_micros: Option<i64>,
    /// What the books are ahead of PayPal's balance by lines in transit.
    pub in_transit_micros: i64,
    /// What the books are ahead of PayPal's balance by unexplained lines.
    pub unexplained_micros: i64,
    /// How many lines agree.
    pub matched: u64,
    /// How many lines are in transit.
    pub in_transit_lines: u64,
    /// Those lines, [`MAX_LINES`] at most.
    pub in_transit: Vec<Line>,
    /// How many lines are not explained.
    pub unexplained_lines: u64,
    /// Those lines, [`MAX_LINES`] at most.
    pub unexplained: Vec<Line>,
}

impl Report {
    /// What no line accounts for: the books, less PayPal's balance, less every line that differs.
    pub fn difference_micros(&self) -> Option<i64> {
        let paypal = self.paypal_micros?;
        let rest = self.books_micros.saturating_sub(paypal);
        Some(rest.saturating_sub(self.in_transit_micros).saturating_sub(self.unexplained_micros))
    }

    /// Whether every difference is accounted for.
    pub fn is_explained(&self) -> bool {
        self.unexplained_lines == 0 && self.difference_micros().is_none_or(|rest| rest == 0)
    }

    fn transit(&mut self, line: Line, micros: i64) {
        self.in_transit_lines = self.in_transit_lines.saturating_add(1);
        self.in_transit_micros = self.in_transit_micros.saturating_add(micros);
        if self.in_transit.len() < MAX_LINES {
            self.in_transit.push(line);
        }
    }

    fn unexplained(&mut self, line: Line, micros: i64) {
        self.unexplained_lines = self.unexplained_lines.saturating_add(1);
        self.unexplained_micros = self.unexplained_micros.saturating_add(micros);
        if self.unexplained.len() < MAX_LINES {
            self.unexplained.push(line);
        }
    }
}

/// What is compared.
pub struct Sides<'a> {
    /// Everything our books say moved `paypal_cash`, by PayPal's id; see [`ours`].
    pub ours: &'a [Movement],
    /// PayPal's rows from `from` to the horizon, and some beyond.
    pub theirs: &'a [Row],
    /// Whether something of ours is still open that may book a row.
    pub awaited: &'a dyn Fn(&Row) -> bool,
    /// Where PayPal's rows begin.
    pub from: Timestamp,
    /// Up to when PayPal's records are complete.
    pub horizon: Timestamp,
    /// Ids that were matched with rows before `from`, though they were booked later.
    pub earlier: &'a [String],
    /// `paypal_cash` posted, debits less credits.
    pub books_micros: i64,
    /// PayPal's balance at the horizon, where it counts.
    pub paypal_micros: Option<i64>,
}

/// What a comparison gives.
pub struct Compared {
    /// What was found.
    pub report: Report,
    /// Where the next one may begin.
    pub next_from: Timestamp,
    /// What it must not miss then, since PayPal had it before.
    pub next_earlier: Vec<String>,
}

impl Row {
    /// Whether it moves the balance: no authorization, and neither pending nor denied.
    fn is_final(&self) -> bool {
        let final_status = matches!(self.status.as_deref(), None | Some("S" | "V" | "F"));
        final_status && !self.is_hold()
    }

    /// An authorization or its end: nothing moves.
    fn is_hold(&self) -> bool {
        self.code.starts_with("T13")
    }

    fn figures(&self) -> Option<Figures> {
        let (gross_micros, currency) = self.amount.as_ref()?;
        let figures = Figures { gross_micros: *gross_micros, fee_micros: self.fee_micros };
        (currency == Currency::Usd.code()).then_some(figures)
    }

    /// Whether the balance at the horizon holds it. PayPal changes the time of a row when it is
    /// refunded too, so that the time it was booked helps to tell a row that became final late.
    fn counts_at(&self, horizon: Timestamp, booked: Option<Timestamp>) -> bool {
        let after = |at: Option<Timestamp>| at.is_some_and(|at| at > horizon);
        let late = after(self.updated) && booked.is_none_or(|at| at > horizon);
        !after(self.initiated) && !late
    }

    fn line(&self, why: Why, ours: Option<Figures>) -> Line {
        Line {
            id: self.id.clone(),
            why,
            code: Some(self.code.clone()),
            code_says: Some(in_words(&self.code).to_owned()),
            reference: self.reference.clone(),
            ours,
            theirs: self.figures(),
            at: self.initiated,
        }
    }
}

impl Movement {
    const fn figures(&self) -> Figures {
        Figures { gross_micros: self.gross_micros, fee_micros: self.fee_micros }
    }

    fn line(&self, why: Why) -> Line {
        Line {
            id: self.id.clone(),
            why,
            code: None,
            code_says: None,
            reference: None,
            ours: Some(self.figures()),
            theirs: None,
            at: Some(self.at),
        }
    }
}

/// Compares both sides. Every movement of either is matched, in transit or unexplained.
// INVARIANT: every_difference_is_named
pub fn compare(sides: &Sides<'_>) -> Compared {
    let mut report = Report {
        from: sides.from,
        horizon: sides.horizon,
        books_micros: sides.books_micros,
        paypal_micros: sides.paypal_micros,
        in_transit_micros: 0,
        unexplained_micros: 0,
        matched: 0,
        in_transit_lines: 0,
        in_transit: Vec::new(),
        unexplained_lines: 0,
        unexplained: Vec::new(),
    };
    let mut known: BTreeMap<&str, &Movement> = BTreeMap::new();
    for movement in sides.ours {
        if known.insert(&movement.id, movement).is_some() {
            report.unexplained(movement.line(Why::Doubled), movement.figures().net());
        }
    }
    let rows = one_an_id(&mut report, &known, sides);
    let mut matched: BTreeMap<&str, &Row> = BTreeMap::new();
    for (id, row) in &rows {
        match known.remove(id) {
            Some(own) => {
                if both(&mut report, own, row, sides.horizon) {
                    matched.insert(id, row);
                }
            }
            None => theirs_alone(&mut report, row, sides),
        }
    }
    let earlier: BTreeSet<&str> = sides.earlier.iter().map(String::as_str).collect();
    for own in known.into_values() {
        if own.at < sides.from || earlier.contains(own.id.as_str()) {
            continue;
        }
        let net = own.figures().net();
        match own.at > sides.horizon {
            true => report.transit(own.line(Why::AfterHorizon), net),
            false => report.unexplained(own.line(Why::MissingThere), net),
        }
    }
    let (next_from, next_earlier) = next(&report, sides, &rows, &matched);
    Compared { report, next_from, next_earlier }
}

/// One row for each id: the one that says what our books say, else one that is final. Whatever else
/// moved under that id is not explained.
fn one_an_id<'a>(
    report: &mut Report,
    known: &BTreeMap<&str, &Movement>,
    sides: &Sides<'a>,
) -> BTreeMap<&'a str, &'a Row> {
    let mut by_id: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in distinct(sides.theirs) {
        by_id.entry(&row.id).or_default().push(row);
    }
    let mut rows = BTreeMap::new();
    for (id, mut group) in by_id {
        let own = known.get(id).map(|own| own.figures());
        group.sort_by_key(|row| (own.is_none() || row.figures() != own, !row.is_final()));
        let mut group = group.into_iter();
        rows.extend(group.next().map(|main| (id, main)));
        for other in group.filter(|row| row.is_final()) {
            let counts = other.counts_at(sides.horizon, None);
            let net = other.figures().filter(|_| counts).map_or(0, Figures::net);
            report.unexplained(other.line(Why::Doubled, None), net.saturating_neg());
        }
    }
    rows
}

/// Rows without repeats: reports may show one twice while data still arrives.
fn distinct(rows: &[Row]) -> Vec<&Row> {
    let mut seen = BTreeMap::new();
    for row in rows {
        let key = (&row.id, &row.code, row.amount.as_ref().map(|(gross, _)| gross));
        let known: &mut &Row = seen.entry(key).or_insert(row);
        if row.updated > known.updated {
            *known = row;
        }
    }
    seen.into_values().collect()
}

/// A line that both have; whether it is matched.
fn both(report: &mut Report, own: &Movement, row: &Row, horizon: Timestamp) -> bool {
    let (ours, net) = (own.figures(), own.figures().net());
    let late = own.at > horizon;
    if !row.is_final() {
        let line = |why| row.line(why, Some(ours));
        match late {
            true => report.transit(line(Why::AfterHorizon), net),
            false => report.unexplained(line(Why::NotFinalThere), net),
        }
        return false;
    }
    let counts = row.counts_at(horizon, Some(own.at));
    let Some(theirs) = row.figures() else {
        let why = if row.amount.is_none() { Why::Unreadable } else { Why::OtherCurrency };
        report.unexplained(row.line(why, Some(ours)), net);
        return false;
    };
    if theirs == ours {
        match counts {
            true => report.matched = report.matched.saturating_add(1),
            false => report.transit(row.line(Why::AfterHorizon, Some(ours)), net),
        }
        return counts;
    }
    let why =
        if theirs.gross_micros == ours.gross_micros { Why::FeeDiffers } else { Why::AmountDiffers };
    let there = if counts { theirs.net() } else { 0 };
    report.unexplained(row.line(why, Some(ours)), net.saturating_sub(there));
    false
}

/// A line that only PayPal has.
fn theirs_alone(report: &mut Report, row: &Row, sides: &Sides<'_>) {
    // What is not final may never be; what came after the horizon is seen the next time.
    if !row.is_final() || !row.counts_at(sides.horizon, None) {
        return;
    }
    let net = row.figures().map_or(0, Figures::net);
    if (sides.awaited)(row) {
        return report.transit(row.line(Why::CallOpen, None), net.saturating_neg());
    }
    let why = match (&row.amount, row.figures()) {
        (None, _) => Why::Unreadable,
        (Some(_), None) => Why::OtherCurrency,
        (Some((0, _)), Some(figures)) if figures.fee_micros == 0 => return,
        _ => Why::MissingHere,
    };
    report.unexplained(row.line(why, None), net.saturating_neg());
}

/// Where the next comparison begins: a month before this horizon once all before is matched, but
/// never behind a row that may still become money.
fn next(
    report: &Report,
    sides: &Sides<'_>,
    rows: &BTreeMap<&str, &Row>,
    matched: &BTreeMap<&str, &Row>,
) -> (Timestamp, Vec<String>) {
    let keep = (sides.from, sides.earlier.to_vec());
    let Ok(month_ago) = sides.horizon.saturating_sub(LOOK_BACK) else { return keep };
    let open = |row: &&&Row| row.status.as_deref() == Some("P") || !matched.contains_key(&*row.id);
    let oldest = rows.values().filter(open).filter(|row| !row.is_hold());
    let oldest = oldest.filter(|row| row.status.as_deref() != Some("D"));
    let from = oldest.filter_map(|row| row.initiated).fold(month_ago, Timestamp::min);
    if !report.is_explained() || from <= sides.from {
        return keep;
    }
    let before: BTreeSet<&str> = matched
        .iter()
        .filter(|(_, row)| row.initiated.is_some_and(|at| at <= from))
        .map(|(id, _)| *id)
        .chain(sides.earlier.iter().map(String::as_str))
        .collect();
    let late = sides.ours.iter().filter(|own| own.at >= from && before.contains(own.id.as_str()));
    (from, late.map(|own| own.id.clone()).collect())
}

/// What a code of PayPal's says, in words.
pub fn in_words(code: &str) -> &'static str {
    match code {
        "T0001" => "mass payment",
        "T0003" => "pre-approved payment",
        "T0006" => "checkout payment",
        "T0106" => "chargeback fee",
        "T0400" => "withdrawal to a bank",
        "T1106" => "payment reversed by PayPal",
        "T1107" => "payment refunded",
        "T1108" => "fee given back",
        "T1110" => "money withheld for a dispute",
        "T1111" => "money of a dispute released",
        "T1201" => "chargeback",
        _ => match code.get(..3) {
            Some("T00") => "payment",
            Some("T01") => "fee",
            Some("T02") => "currency conversion",
            Some("T03") => "deposit from a bank",
            Some("T04") => "withdrawal to a bank",
            Some("T05") => "debit card",
            Some("T07") => "deposit from a card",
            Some("T08") => "bonus",
            Some("T11") => "reversal or hold",
            Some("T12") => "adjustment",
            Some("T13") => "authorization",
            Some("T15" | "T21") => "hold or release",
            Some("T20") => "transfer between accounts",
            _ => "a code that Earnest does not know",
        },
    }
}

/// The rows that say what moved `paypal_cash`.
pub struct Sources<'a> {
    /// Settlements.
    pub settlements: &'a mut dyn Iterator<Item = &'a Settlement>,
    /// Captures of which something is, or was, in suspense.
    pub suspended: &'a mut dyn Iterator<Item = &'a Suspended>,
    /// What went back.
    pub reversals: &'a mut dyn Iterator<Item = &'a Reversal>,
    /// What the operator recorded.
    pub entries: &'a mut dyn Iterator<Item = &'a CashEntry>,
}

/// What our books say moved `paypal_cash`, one movement for each thing of PayPal's. An id that
/// stands for two things appears twice.
pub fn ours(sources: Sources<'_>) -> Vec<Movement> {
    let mut captures: BTreeMap<&str, Movement> = BTreeMap::new();
    for row in sources.suspended {
        let (gross_micros, fee_micros) =
            (row.amount_micros.get(), row.fee_micros.get().saturating_neg());
        let movement = Movement { id: row.capture.clone(), gross_micros, fee_micros, at: row.at };
        captures.insert(&row.capture, movement);
    }
    for row in sources.settlements.filter(|row| row.is_captured()) {
        let (Some(capture), Some(at)) = (&row.paypal_capture, row.ended_at) else { continue };
        let gross_micros = row.captured_micros.map_or(0, Micros::get);
        let fee_micros = row.fee_micros.map_or(0, Micros::get).saturating_neg();
        // What of it went to suspense is a part of it, and was booked at the same time or before.
        let at = captures.get(capture.as_str()).map_or(at, |known| known.at.min(at));
        captures.insert(capture, Movement { id: capture.clone(), gross_micros, fee_micros, at });
    }
    let mut all: Vec<Movement> = captures.into_values().collect();
    for one in sources.reversals.flat_map(|row| &row.booked) {
        let (gross_micros, fee_micros) =
            (one.amount_micros.get().saturating_neg(), one.fee_returned_micros.get());
        all.push(Movement { id: one.id.clone(), gross_micros, fee_micros, at: one.at });
    }
    // What was recorded by hand first was known since then, as whatever it turned out to be.
    let mut known = BTreeMap::new();
    for entry in sources.entries {
        all.extend(entry.movement());
        known.insert(entry.paypal_id.as_str(), entry.known_at());
    }
    for movement in &mut all {
        let first = known.get(movement.id.as_str());
        movement.at = first.map_or(movement.at, |first| movement.at.min(*first));
    }
    all
}

#[cfg(test)]
mod tests;
