//! Disputes: what a payer claims back of a capture, and what PayPal withholds for it meanwhile.
//!
//! Whoever disputes a payment is frozen at once, and what may be lost counts against what he may owe.
//! What PayPal withholds leaves our balance and comes back, so the books move it to `disputes` and
//! back. Whose money it will have been is decided by what follows at PayPal (a reversal, or nothing),
//! and booked there.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::chain::{ChainKind, booked, chain_of, touch_booked};
use crate::id::OwnerId;
use crate::intent::stamp;
use crate::ledger::{Account, Cause, Leg, Op};
use crate::money::Micros;
use crate::party::Owner;
use crate::reconcile::Movement;
use crate::reversal::{Captured, pause_seconds};
use crate::tab::add;
use crate::time::{Timestamp, after};
use crate::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};

/// Which way it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Withholding {
    /// PayPal withholds it.
    Hold,
    /// PayPal gave it back to our balance.
    Release,
}

/// What PayPal withheld, or released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withheld {
    /// PayPal's id of the movement.
    pub paypal_id: String,
    /// Which way.
    pub way: Withholding,
    /// How much.
    pub amount_micros: Micros,
    /// What it is about: the disputed capture, where PayPal says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// When it was booked.
    pub at: Timestamp,
}

impl Withheld {
    /// How it moves `paypal_cash`, with PayPal's signs.
    pub fn movement(&self) -> Movement {
        let amount = self.amount_micros.get();
        let gross_micros = match self.way {
            Withholding::Hold => amount.saturating_neg(),
            Withholding::Release => amount,
        };
        Movement { id: self.paypal_id.clone(), gross_micros, fee_micros: 0, at: self.at }
    }
}

impl Withheld {
    /// Whether so much was withheld under this id.
    pub(crate) fn is_hold_of(&self, amount: Micros) -> bool {
        self.way == Withholding::Hold && self.amount_micros == amount
    }
}

impl Record for Withheld {
    const KIND: &'static str = "withheld";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.paypal_id.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        Vec::new()
    }
}

/// Where a dispute stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Nobody has decided.
    Open,
    /// The money stays ours.
    Won,
    /// The payer gets it: what goes back is booked as a reversal.
    Lost,
}

/// A dispute, as it was last read from PayPal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// PayPal's id of it.
    pub id: String,
    /// Where it stands.
    pub stage: Stage,
    /// What is disputed.
    pub amount_micros: Micros,
    /// Why, in PayPal's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A capture that its payer disputes, or disputed: what PayPal's disputes say, and what its records say
/// it withheld. Either may be heard of first, and each alone is reason enough to freeze.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disputed {
    /// PayPal's id of the capture.
    pub capture: String,
    /// Whose it is; `None` for a payment that nobody asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Captured>,
    /// Every dispute about it that was read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<Case>,
    /// How often something was withheld.
    pub holds: u32,
    /// What was withheld, ever.
    pub withheld_micros: Micros,
    /// What of it was released.
    pub released_micros: Micros,
    /// How often it was looked at since something new was heard.
    pub looks: u32,
    /// When to look again, while it is open.
    pub next_at: Timestamp,
    /// When it was first heard of.
    pub seen_at: Timestamp,
}

/// How often it is asked which dispute something was withheld for: over about a day.
const MAX_LOOKS: u32 = 30;

/// The most disputes of one capture that are kept; PayPal takes one or two.
const MAX_CASES: usize = 50;

fn sum(amounts: impl Iterator<Item = Micros>) -> Micros {
    let mut amounts = amounts;
    amounts.try_fold(Micros::ZERO, Micros::checked_add).unwrap_or(Micros::MAX)
}

impl Disputed {
    fn new(capture: &str, now: Timestamp) -> Self {
        Self {
            capture: capture.to_owned(),
            of: None,
            cases: Vec::new(),
            holds: 0,
            withheld_micros: Micros::ZERO,
            released_micros: Micros::ZERO,
            looks: 0,
            next_at: now,
            seen_at: now,
        }
    }

    /// What may still be lost: what is disputed, or what is withheld, whichever is more. The two tell
    /// of the same money.
    pub fn at_risk(&self) -> Micros {
        let open = self.cases.iter().filter(|case| case.stage == Stage::Open);
        let disputed = sum(open.map(|case| case.amount_micros));
        disputed.max(self.withheld_micros.saturating_sub(self.released_micros))
    }

    /// The same with so much of what was withheld gone to its payer.
    pub(crate) fn released(&self, amount: Micros) -> Result<Self, Stop> {
        let released_micros = add(self.released_micros, amount)?;
        Ok(Self { released_micros, ..self.clone() })
    }

    /// Counts against an owner what it puts at risk now, in the place of what it did `before`.
    pub(crate) fn count_against(
        &self,
        owner: &mut Owner,
        before: Option<&Self>,
    ) -> Result<(), Stop> {
        let was = before.map_or(Micros::ZERO, |row| row.counts_against(owner.id));
        let rest = owner.disputed_micros.saturating_sub(was);
        owner.disputed_micros = add(rest, self.counts_against(owner.id))?;
        Ok(())
    }

    /// What counts against an owner.
    pub fn counts_against(&self, owner: OwnerId) -> Micros {
        let own = self.of.is_some_and(|of| of.owner == owner);
        if own { self.at_risk() } else { Micros::ZERO }
    }

    /// Whether something of it still has to be read.
    pub fn is_open(&self) -> bool {
        self.cases.iter().any(|case| case.stage == Stage::Open)
            || (self.lacks_a_case() && self.looks < MAX_LOOKS)
    }

    /// Whether PayPal withheld something for a dispute that was not read.
    pub fn lacks_a_case(&self) -> bool {
        usize::try_from(self.holds).is_ok_and(|holds| holds > self.cases.len())
    }

    /// How much is known of it, by count and by sum: where neither grows, nothing is new. A dispute and
    /// the hold for it are one thing, in whichever order they come.
    fn known(&self) -> (usize, Micros) {
        let holds = usize::try_from(self.holds).unwrap_or(usize::MAX);
        let claimed = sum(self.cases.iter().map(|case| case.amount_micros));
        (self.cases.len().max(holds), claimed.max(self.withheld_micros))
    }

    /// Whether it tells of more than `before` did.
    fn is_news_after(&self, before: Option<&Self>) -> bool {
        let (count, micros) = before.map_or((0, Micros::ZERO), Self::known);
        let (now_count, now_micros) = self.known();
        now_count > count || now_micros > micros
    }
}

impl Record for Disputed {
    const KIND: &'static str = "disputed";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.capture.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![ListEntry::timed("disputes", "", self.seen_at)];
        if self.is_open() {
            lists.push(ListEntry::new("disputes.open", "", stamp(self.next_at)));
        }
        lists
    }
}

/// Whose a disputed capture is, by a plain read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Concerned {
    /// The settlement that it paid, and its owner.
    pub of: Option<Captured>,
    /// Whose else it is: for whom something of it was cleared out of suspense, or who repaid a debt by it.
    pub paid_by: Vec<OwnerId>,
}

impl Concerned {
    /// Every owner, once.
    fn owners(&self) -> BTreeSet<OwnerId> {
        let of = self.of.map(|of| of.owner);
        of.into_iter().chain(self.paid_by.iter().copied()).collect()
    }

    fn touch(&self, touches: &mut Touches, capture: &str) {
        touches.row::<Disputed>(capture);
        self.owners().into_iter().for_each(|owner| touches.row::<Owner>(owner));
    }

    /// Puts the row as it became, counts what is at risk against its owner, and freezes everybody
    /// whose payment it was where `freeze` says so.
    // INVARIANT: what_is_disputed_counts_against_its_owner
    fn put<A>(
        &self,
        view: &View,
        effects: &mut Effects<A>,
        row: Disputed,
        freeze: bool,
    ) -> Result<(), Stop> {
        let before = view.row::<Disputed>(&row.capture)?;
        for id in self.owners() {
            let known = view.need::<Owner>(id)?;
            let mut owner = known.clone();
            row.count_against(&mut owner, before)?;
            if freeze {
                let why = || "a payment is disputed at PayPal: see the disputes".to_owned();
                owner.frozen.get_or_insert_with(why);
            }
            if owner != *known {
                effects.put(owner)?;
            }
        }
        effects.put(row)
    }
}

/// Records what was read of a dispute. The owner whose payment it is is frozen as soon as there is one,
/// as for a reversal, and stays so until the operator lifts that, whoever wins. Recording the same
/// again changes nothing.
#[derive(Clone, Debug)]
pub struct TellCase {
    /// PayPal's id of the capture.
    pub capture: String,
    /// Whose it is.
    pub whose: Concerned,
    /// The dispute.
    pub case: Case,
}

impl Unit for TellCase {
    /// Whether anything was new.
    type Answer = bool;

    fn name(&self) -> &'static str {
        "dispute.told"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        self.whose.touch(&mut touches, &self.capture);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<bool>, Stop> {
        let before = view.row::<Disputed>(&self.capture)?;
        let mut row = before.cloned().unwrap_or_else(|| Disputed::new(&self.capture, now));
        row.of = row.of.or(self.whose.of);
        let was = row.cases.iter().find(|case| case.id == self.case.id).map(|case| case.stage);
        if was.is_none() && row.cases.len() >= MAX_CASES {
            return Ok(Effects::answer(false));
        }
        match row.cases.iter_mut().find(|case| case.id == self.case.id) {
            Some(case) => *case = self.case.clone(),
            None => row.cases.push(self.case.clone()),
        }
        if before == Some(&row) {
            return Ok(Effects::answer(false));
        }
        row.looks = 0;
        row.next_at = after(now, pause_seconds(0));
        let open = self.case.stage == Stage::Open;
        let again = open && was.is_some_and(|was| was != Stage::Open);
        let news = open && (again || row.is_news_after(before));
        let mut effects = Effects::answer(true);
        let data = json!({ "dispute": self.case.id, "capture": self.capture,
            "owner": row.of.map(|of| of.owner), "settlement": row.of.map(|of| of.settlement),
            "amount_micros": self.case.amount_micros, "reason": self.case.reason });
        if open && (again || was.is_none()) {
            effects.event("alarm.dispute_opened", &[], data);
        } else if was != Some(self.case.stage) {
            let kind = if self.case.stage == Stage::Won { "dispute.won" } else { "dispute.lost" };
            effects.event(kind, &[], data);
        }
        self.whose.put(view, &mut effects, row, news)?;
        Ok(effects)
    }
}

/// Records that a disputed capture was looked at.
#[derive(Clone, Debug)]
pub struct LookedDisputed {
    /// PayPal's id of the capture.
    pub capture: String,
}

impl Unit for LookedDisputed {
    type Answer = ();

    fn name(&self) -> &'static str {
        "dispute.looked"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Disputed>(&self.capture);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let mut row = view.need::<Disputed>(&self.capture)?.clone();
        row.looks = row.looks.saturating_add(1);
        row.next_at = after(now, pause_seconds(row.looks));
        let mut effects = Effects::answer(());
        effects.put(row)?;
        Ok(effects)
    }
}

/// Books what PayPal withheld or released, once; nothing where its id is in the books already, by
/// the operator's hand for example.
#[derive(Clone, Debug)]
pub struct BookWithheld {
    /// PayPal's id of the movement.
    pub paypal_id: String,
    /// Which way.
    pub way: Withholding,
    /// How much.
    pub amount: Micros,
    /// What it is about.
    pub reference: Option<String>,
    /// The capture of ours that it is about, and whose that is, by a plain read.
    pub of: Option<(String, Concerned)>,
}

impl BookWithheld {
    /// The disputed capture as it becomes, and whether its owner has to be frozen for it.
    fn disputed(&self, view: &View, now: Timestamp) -> Result<Option<(Disputed, bool)>, Stop> {
        let Some((capture, whose)) = &self.of else { return Ok(None) };
        let before = view.row::<Disputed>(capture)?;
        let mut row = before.cloned().unwrap_or_else(|| Disputed::new(capture, now));
        row.of = row.of.or(whose.of);
        match self.way {
            Withholding::Hold => {
                row.holds = row.holds.saturating_add(1);
                row.withheld_micros = add(row.withheld_micros, self.amount)?;
                row.looks = 0;
                row.next_at = now;
            }
            Withholding::Release => row.released_micros = add(row.released_micros, self.amount)?,
        }
        let news = self.way == Withholding::Hold && row.is_news_after(before);
        Ok(Some((row, news)))
    }
}

impl Unit for BookWithheld {
    type Answer = ();

    fn name(&self) -> &'static str {
        "dispute.withheld"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Withheld>(&self.paypal_id);
        touch_booked(&mut touches, &self.paypal_id);
        touches.account(Account::PaypalCash.usd());
        touches.account(Account::Disputes.usd());
        if let Some((capture, whose)) = &self.of {
            whose.touch(&mut touches, capture);
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        if booked(view, &self.paypal_id)?.is_some() || self.amount.is_zero() {
            return Ok(effects);
        }
        let (cash, disputes) = (Account::PaypalCash.usd(), Account::Disputes.usd());
        let (leg, kind) = match self.way {
            Withholding::Hold => {
                (Leg::new(disputes, cash, self.amount), "alarm.dispute_money_withheld")
            }
            Withholding::Release => {
                (Leg::new(cash, disputes, self.amount), "dispute.money_released")
            }
        };
        let id = chain_of(ChainKind::Withheld, &self.paypal_id);
        effects.op(Op::Move { id, cause: Cause::Dispute, legs: vec![leg] });
        let row = Withheld {
            paypal_id: self.paypal_id.clone(),
            way: self.way,
            amount_micros: self.amount,
            reference: self.reference.clone(),
            at: now,
        };
        let disputed = self.disputed(view, now)?;
        let of = disputed.as_ref().and_then(|(row, _)| row.of);
        let data = json!({ "paypal_id": row.paypal_id, "amount_micros": row.amount_micros,
            "reference": row.reference, "owner": of.map(|of| of.owner),
            "settlement": of.map(|of| of.settlement) });
        effects.event(kind, &[], data);
        if let (Some((row, news)), Some((_, whose))) = (disputed, &self.of) {
            whose.put(view, &mut effects, row, news)?;
        }
        effects.put(row)?;
        Ok(effects)
    }
}
