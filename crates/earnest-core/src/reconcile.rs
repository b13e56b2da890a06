//! PayPal's records of our money compared with ours, line by line.
//!
//! A line is matched by PayPal's own id. What only one side knows, or what the sides put
//! differently, is either *in transit* (PayPal's report ends before it, or a call of ours about it
//! is still open) or *unexplained*. Two kinds of line are explained though the books have nothing: a
//! hold and its release that net to zero, and what the operator acknowledged, which moves no money
//! that the books keep; nothing else is explained away here. Beside the lines stands one figure:
//! `paypal_cash` must be PayPal's balance, plus what is in transit and what is unexplained.
//!
//! Signs are PayPal's: money in is positive, money out and fees are negative.
//!
//! ```
//! use earnest_core::reconcile::{Compared, Sides, compare};
//! use earnest_core::time::Timestamp;
//! let now = Timestamp::UNIX_EPOCH;
//! let sides = Sides { ours: &[], theirs: &[], awaited: &|_| false, acknowledged: &|_| false,
//!     from: now, horizon: now, earlier: &[], books_micros: 0, paypal_micros: Some(0) };
//! assert!(compare(&sides).report.is_explained());
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::cash::CashEntry;
use crate::dispute::Withheld;
use crate::money::{Currency, Micros};
use crate::reversal::Reversal;
use crate::settlement::Settlement;
use crate::suspense::Suspended;
use crate::time::{SignedDuration, Timestamp};

mod acknowledge;
mod code;
mod keep;
mod pairs;

pub use acknowledge::{Acknowledge, Acknowledged, Covered, MAX_REASON};
pub use code::{EventCode, EventKind, RowStatus};
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
    /// What happened.
    pub event: EventCode,
    /// How it stands.
    pub status: RowStatus,
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
    /// PayPal's row has a status that nobody here knows: whether it moved money is not known.
    StatusUnknown,
}

impl Why {
    /// How bad it is, the worst first: money that PayPal does not have, money that the books do not
    /// have, figures that differ, and what nobody can weigh.
    const fn rank(self) -> u8 {
        match self {
            Self::MissingThere | Self::NotFinalThere => 0,
            Self::MissingHere | Self::Doubled => 1,
            Self::AmountDiffers => 2,
            Self::FeeDiffers => 3,
            Self::Unreadable | Self::StatusUnknown => 4,
            Self::OtherCurrency => 5,
            Self::AfterHorizon | Self::CallOpen => 6,
        }
    }
}

/// What moved in a currency that the books do not keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// Which.
    pub currency: String,
    /// A millionth of its unit, without the fee.
    pub gross_micros: i64,
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
    /// What PayPal says, in a currency that the books do not keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<Foreign>,
    /// When it began at PayPal, or was booked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

impl Line {
    /// What both sides are apart by, without a sign.
    pub fn at_stake(&self) -> u64 {
        let net = |side: Option<Figures>| side.map_or(0, Figures::net);
        net(self.ours).abs_diff(net(self.theirs))
    }

    /// Where it stands among others: the worst first, by amount, then by id.
    fn order(&self) -> (u8, Reverse<u64>, &str, Option<&str>) {
        (self.why.rank(), Reverse(self.at_stake()), &self.id, self.code.as_deref())
    }

    /// What makes it this line: when one of these changes, it is news.
    pub fn print(&self) -> String {
        let side = |side: Option<Figures>| {
            side.map(|it| format!("{}/{}", it.gross_micros, it.fee_micros)).unwrap_or_default()
        };
        let foreign = self.foreign.as_ref().map(|it| format!("{}{}", it.gross_micros, it.currency));
        format!(
            "{} {:?} {} {} {}{}",
            self.id,
            self.why,
            self.code.as_deref().unwrap_or_default(),
            side(self.ours),
            side(self.theirs),
            foreign.unwrap_or_default()
        )
    }
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
            Why::StatusUnknown => "with a status that is not known",
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
        if let Some(foreign) = &self.foreign {
            write!(f, "; PayPal's {} millionths of {}", foreign.gross_micros, foreign.currency)?;
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
    /// How many lines are halves of a hold and its release, which net to zero.
    #[serde(default)]
    pub netted_lines: u64,
    /// How many lines the operator acknowledged.
    #[serde(default)]
    pub acknowledged_lines: u64,
    /// How many lines are in transit.
    pub in_transit_lines: u64,
    /// Those lines, [`MAX_LINES`] at most, the largest first.
    pub in_transit: Vec<Line>,
    /// How many lines are not explained.
    pub unexplained_lines: u64,
    /// Those lines, [`MAX_LINES`] at most, the worst first.
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

    // Every line, until [`Report::rank`] leaves as many as are kept.
    fn transit(&mut self, line: Line, micros: i64) {
        self.in_transit_lines = self.in_transit_lines.saturating_add(1);
        self.in_transit_micros = self.in_transit_micros.saturating_add(micros);
        self.in_transit.push(line);
    }

    fn unexplained(&mut self, line: Line, micros: i64) {
        self.unexplained_lines = self.unexplained_lines.saturating_add(1);
        self.unexplained_micros = self.unexplained_micros.saturating_add(micros);
        self.unexplained.push(line);
    }

    /// Brings the worst to the front and keeps [`MAX_LINES`] of each kind; gives every unexplained
    /// line in that order.
    // INVARIANT: the_worst_lines_are_named_first
    fn rank(&mut self) -> Vec<Line> {
        for lines in [&mut self.in_transit, &mut self.unexplained] {
            lines.sort_by(|one, other| one.order().cmp(&other.order()));
        }
        self.in_transit.truncate(MAX_LINES);
        let kept = self.unexplained.iter().take(MAX_LINES).cloned().collect();
        std::mem::replace(&mut self.unexplained, kept)
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
    /// Whether the operator acknowledged a row; asked only of rows in other currencies.
    pub acknowledged: &'a dyn Fn(&Row) -> bool,
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
    /// Every line that is not explained, the worst first; the report keeps the first of them.
    pub unexplained: Vec<Line>,
    /// Where the next one may begin.
    pub next_from: Timestamp,
    /// What it must not miss then, since PayPal had it before.
    pub next_earlier: Vec<String>,
}

impl Row {
    /// Whether it moves the balance: no authorization, and neither pending nor denied.
    fn is_final(&self) -> bool {
        self.status.is_final() && self.event.kind != EventKind::Authorization
    }

    /// Whether anything may still come of it, though nothing in the books speaks of it.
    fn may_become_money(&self) -> bool {
        self.status != RowStatus::Denied && self.event.kind != EventKind::Authorization
    }

    /// What moved, where it is in a currency that the books do not keep.
    pub fn foreign(&self) -> Option<Foreign> {
        let (gross_micros, currency) = self.amount.as_ref()?;
        let other = currency != Currency::Usd.code();
        other.then(|| Foreign { currency: currency.clone(), gross_micros: *gross_micros })
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
            code: Some(self.event.text.clone()),
            code_says: Some(self.event.kind.in_words().to_owned()),
            reference: self.reference.clone(),
            ours,
            theirs: self.figures(),
            foreign: self.foreign(),
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
            foreign: None,
            at: Some(self.at),
        }
    }
}

/// Compares both sides. Every movement of either is matched, explained, in transit or unexplained.
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
        netted_lines: 0,
        acknowledged_lines: 0,
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
    let mut behind = Behind::default();
    let mut alone = Vec::new();
    for (id, row) in &rows {
        match known.remove(id) {
            Some(own) => {
                if both(&mut report, own, row, sides.horizon) {
                    behind.matched.insert(id, row);
                }
            }
            None => alone.push(*row),
        }
    }
    // What is not final may never be; what came after the horizon is seen the next time.
    alone.retain(|row| row.status.is_unknown() || row.is_final());
    alone.retain(|row| row.counts_at(sides.horizon, None));
    behind.pairs = pairs::take(&mut alone, sides.awaited);
    for pair in &behind.pairs {
        report.netted_lines = report.netted_lines.saturating_add(2);
        behind.explained.extend([pair.hold.id.as_str(), pair.release.id.as_str()]);
    }
    for row in alone {
        if theirs_alone(&mut report, row, sides) {
            behind.explained.insert(&row.id);
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
    let unexplained = report.rank();
    let (next_from, next_earlier) = next(&report, sides, &rows, &behind);
    Compared { report, unexplained, next_from, next_earlier }
}

/// What the next comparison need not see again.
#[derive(Default)]
struct Behind<'a> {
    /// Rows that the books have too.
    matched: BTreeMap<&'a str, &'a Row>,
    /// A hold and its release: both or neither.
    pairs: Vec<pairs::Pair<'a>>,
    /// Rows that the books need not have, those of pairs too.
    explained: BTreeSet<&'a str>,
}

impl Behind<'_> {
    fn has(&self, row: &Row) -> bool {
        let id = row.id.as_str();
        self.matched.contains_key(id) || self.explained.contains(id)
    }
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
            if other.foreign().is_some() {
                foreign(report, other, sides);
                continue;
            }
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
        let key = (&row.id, &row.event.text, row.amount.as_ref());
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
    if row.status.is_unknown() {
        report.unexplained(row.line(Why::StatusUnknown, Some(ours)), 0);
        return false;
    }
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

/// A line that only PayPal has; whether it is explained all the same.
fn theirs_alone(report: &mut Report, row: &Row, sides: &Sides<'_>) -> bool {
    let net = row.figures().map_or(0, Figures::net);
    if (sides.awaited)(row) {
        report.transit(row.line(Why::CallOpen, None), net.saturating_neg());
        return false;
    }
    let why = match (&row.amount, row.figures()) {
        _ if row.status.is_unknown() => {
            report.unexplained(row.line(Why::StatusUnknown, None), 0);
            return false;
        }
        (None, _) => Why::Unreadable,
        (Some(_), None) => return foreign(report, row, sides),
        (Some((0, _)), Some(figures)) if figures.fee_micros == 0 => return true,
        _ => Why::MissingHere,
    };
    report.unexplained(row.line(why, None), net.saturating_neg());
    false
}

/// A line in a currency that the books do not keep; whether the operator acknowledged it.
// INVARIANT: an_acknowledgement_covers_no_money_of_ours
fn foreign(report: &mut Report, row: &Row, sides: &Sides<'_>) -> bool {
    if (sides.acknowledged)(row) {
        report.acknowledged_lines = report.acknowledged_lines.saturating_add(1);
        return true;
    }
    report.unexplained(row.line(Why::OtherCurrency, None), 0);
    false
}

/// Where the next comparison begins: a month before this horizon once all before is explained, but
/// never behind a row that may still become money, and never between a hold and its release.
fn next(
    report: &Report,
    sides: &Sides<'_>,
    rows: &BTreeMap<&str, &Row>,
    behind: &Behind<'_>,
) -> (Timestamp, Vec<String>) {
    let keep = (sides.from, sides.earlier.to_vec());
    let Ok(month_ago) = sides.horizon.saturating_sub(LOOK_BACK) else { return keep };
    // What begins at that moment is not read again.
    let just_before = |at: Timestamp| at.saturating_sub(SignedDuration::from_secs(1)).unwrap_or(at);
    let open = |row: &&&Row| row.status == RowStatus::Pending || !behind.has(row);
    let oldest = rows.values().filter(open).filter(|row| row.may_become_money());
    let oldest = oldest.filter_map(|row| row.initiated).map(just_before);
    let mut from = oldest.fold(month_ago, Timestamp::min);
    let split = |from: Timestamp| {
        let ends = behind.pairs.iter().filter_map(pairs::Pair::ends);
        ends.filter(|(first, last)| *first <= from && *last > from).map(|(first, _)| first).min()
    };
    // Each turn goes back behind one hold more, so that it ends.
    while let Some(first) = split(from) {
        from = just_before(first);
    }
    if !report.is_explained() || from <= sides.from {
        return keep;
    }
    let matched = &behind.matched;
    let before: BTreeSet<&str> = matched
        .iter()
        .filter(|(_, row)| row.initiated.is_some_and(|at| at <= from))
        .map(|(id, _)| *id)
        .chain(sides.earlier.iter().map(String::as_str))
        .collect();
    let late = sides.ours.iter().filter(|own| own.at >= from && before.contains(own.id.as_str()));
    (from, late.map(|own| own.id.clone()).collect())
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
    /// What PayPal withheld and released.
    pub withheld: &'a mut dyn Iterator<Item = &'a Withheld>,
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
    // What was withheld first left the balance then.
    let back = sources.reversals.flat_map(|row| &row.booked).filter(|one| !one.was_withheld);
    for one in back {
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
    all.extend(sources.withheld.map(Withheld::movement));
    for movement in &mut all {
        let first = known.get(movement.id.as_str());
        movement.at = first.map_or(movement.at, |first| movement.at.min(*first));
    }
    all
}

#[cfg(test)]
mod tests;
