//! Money that went back at PayPal without us: refunds made in PayPal's own pages, and reversals.
//!
//! A capture's status only hints at it, since a dispute shows as a refund too: what is booked is each
//! refund or reversal by its own id, once, as it was read. The owner's credit pays first, then it is
//! the owner's debt; what the capture may still give back shrinks with it. The owner is frozen as
//! soon as there is a hint, and stays so until the operator has looked.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cash::CashEntry;
use crate::chain::{ChainKind, booked, chain_of, touch_booked};
use crate::dispute::{Disputed, Withheld};
use crate::id::{IntentId, OwnerId, SettlementId};
use crate::intent::Charge;
use crate::ledger::{Account, Cause, Leg, Op};
use crate::money::Micros;
use crate::party::Owner;
use crate::problem::{Code, Refusal};
use crate::settlement::Settlement;
use crate::suspense::{Suspended, TakenBack};
use crate::tab::add;
use crate::time::{Timestamp, after};
use crate::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};

/// Whose capture it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// The intent that made it.
    pub intent: IntentId,
    /// The settlement it was for.
    pub settlement: SettlementId,
    /// Who paid.
    pub owner: OwnerId,
}

/// A refund or reversal that is in the books.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Booked {
    /// PayPal's id of it.
    pub id: String,
    /// What went back to the payer.
    pub amount_micros: Micros,
    /// What of it came out of suspense.
    pub from_suspense_micros: Micros,
    /// What PayPal gave us back of its fee.
    #[serde(default)]
    pub fee_returned_micros: Micros,
    /// Whether it had been withheld under the same id: then it had left the balance already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_withheld: bool,
    /// When it was booked.
    pub at: Timestamp,
}

/// A capture of which something went back, or may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reversal {
    /// PayPal's id of the capture.
    pub capture: String,
    /// Whose it was; `None` for a payment that nobody asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Captured>,
    /// Refunds and reversals that PayPal named and that are not in the books yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<String>,
    /// What is in the books.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub booked: Vec<Booked>,
    /// What the operator had recorded as a movement of its own by the time it was read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_hand: Vec<ByHand>,
    /// Whether something still has to be read.
    pub open: bool,
    /// Whether somebody was told that more went back than came.
    pub alarmed: bool,
    /// How often it was looked at since it was last opened.
    pub looks: u32,
    /// When to look again, while it is open.
    pub next_at: Timestamp,
    /// When it was first heard of.
    pub seen_at: Timestamp,
    /// When something new was last heard of it.
    pub heard_at: Timestamp,
}

/// A refund or reversal that the operator recorded by hand: it has no other effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByHand {
    /// PayPal's id of it.
    pub id: String,
    /// What went back.
    pub amount_micros: Micros,
}

/// The most names kept of what is not in the books; whatever is beyond is found by a search.
const MAX_NAMED: usize = 100;

impl Reversal {
    /// Everything that went back and is in the books, recorded by hand or not.
    pub fn booked_micros(&self) -> Micros {
        let booked = self.booked.iter().map(|one| one.amount_micros);
        let mut all = booked.chain(self.by_hand.iter().map(|one| one.amount_micros));
        all.try_fold(Micros::ZERO, Micros::checked_add).unwrap_or(Micros::MAX)
    }

    /// Whether a refund or reversal is in the books.
    pub fn has_booked(&self, id: &str) -> bool {
        self.booked.iter().any(|one| one.id == id) || self.by_hand.iter().any(|one| one.id == id)
    }

    /// When to look again after another look.
    fn backoff(&self, now: Timestamp) -> Timestamp {
        after(now, pause_seconds(self.looks))
    }

    /// The same, to be read again: what was recorded by hand under `id` was taken back.
    pub(crate) fn reopened(&self, id: &str, now: Timestamp) -> Self {
        let mut row = self.clone();
        row.by_hand.retain(|one| one.id != id);
        row.hear(Some(id), now);
        row
    }

    /// Something new was heard of it.
    fn hear(&mut self, name: Option<&str>, now: Timestamp) {
        let name = name.filter(|_| self.named.len() < MAX_NAMED);
        self.named.extend(name.map(str::to_owned));
        self.open = true;
        self.looks = 0;
        self.next_at = now;
        self.heard_at = now;
    }
}

/// How long to wait after so many looks at something of PayPal's: a minute, two … at most an hour.
pub(crate) fn pause_seconds(looks: u32) -> i64 {
    let minutes = 1i64.checked_shl(looks.min(6)).unwrap_or(60).min(60);
    minutes.saturating_mul(60)
}

impl Record for Reversal {
    const KIND: &'static str = "reversal";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.capture.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![ListEntry::timed("reversals", "", self.seen_at)];
        if self.open {
            lists.push(ListEntry::new("reversals.open", "", crate::intent::stamp(self.next_at)));
        }
        lists
    }
}

/// Notes that something of a capture went back, or may have: to be read, and its owner frozen.
#[derive(Clone, Debug)]
pub struct Note {
    /// PayPal's id of the capture.
    pub capture: String,
    /// Whose it was.
    pub of: Option<Captured>,
    /// The refund or reversal, where PayPal named it.
    pub named: Option<String>,
}

impl Note {
    /// The parts of a view that [`Note::effects`] looks at.
    pub(crate) fn touch(touches: &mut Touches, capture: &str, owner: Option<OwnerId>) {
        touches.row::<Reversal>(capture);
        if let Some(owner) = owner {
            touches.row::<Owner>(owner);
        }
    }

    /// The row as it becomes, if it changes.
    pub(crate) fn noted(&self, view: &View, now: Timestamp) -> Result<Option<Reversal>, Stop> {
        let known = view.row::<Reversal>(&self.capture)?;
        // Whose it is may become known while it is being read.
        if let (Some(row), Some(of)) = (known, self.of)
            && row.of.is_none()
            && self.named.as_ref().is_none_or(|name| row.named.contains(name))
        {
            return Ok(Some(Reversal { of: Some(of), ..row.clone() }));
        }
        let mut row = match known {
            Some(row) => row.clone(),
            None => Reversal {
                capture: self.capture.clone(),
                of: self.of,
                named: Vec::new(),
                booked: Vec::new(),
                by_hand: Vec::new(),
                open: false,
                alarmed: false,
                looks: 0,
                next_at: now,
                seen_at: now,
                heard_at: now,
            },
        };
        if let Some(name) = &self.named {
            if row.named.contains(name) || row.has_booked(name) {
                return Ok(None);
            }
        } else if known.is_some_and(|row| row.open || !row.booked.is_empty()) {
            return Ok(None);
        }
        row.of = row.of.or(self.of);
        row.hear(self.named.as_deref(), now);
        Ok(Some(row))
    }

    /// A capture that had been given back, at least in part, when it was booked: its reversals are
    /// still to be read, and its owner is frozen. Needs [`Note::touch`].
    pub(crate) fn when_booked<A>(
        charge: &Charge,
        of: Option<(Captured, &mut Owner)>,
        view: &View,
        effects: &mut Effects<A>,
        now: Timestamp,
    ) -> Result<(), Stop> {
        if !charge.given_back {
            return Ok(());
        }
        let (of, owner) = of.unzip();
        let note = Self { capture: charge.paypal_capture.clone(), of, named: None };
        if let Some(row) = note.noted(view, now)? {
            note.alarm(effects);
            effects.put(row)?;
        }
        owner.into_iter().for_each(freeze);
        Ok(())
    }

    fn alarm<A>(&self, effects: &mut Effects<A>) {
        let data = json!({ "capture": self.capture, "named": self.named,
            "owner": self.of.map(|of| of.owner), "settlement": self.of.map(|of| of.settlement) });
        effects.event("alarm.capture_given_back", &[], data);
    }
}

/// Freezes an owner whose money went back. Freezing a frozen owner changes nothing.
pub(crate) fn freeze(owner: &mut Owner) {
    let why = || "money was given back at PayPal: see the reversals".to_owned();
    owner.frozen.get_or_insert_with(why);
}

impl Unit for Note {
    type Answer = ();

    fn name(&self) -> &'static str {
        "reversal.note"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Self::touch(&mut touches, &self.capture, self.of.map(|of| of.owner));
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        let Some(row) = self.noted(view, now)? else { return Ok(effects) };
        self.alarm(&mut effects);
        if let Some(of) = self.of {
            let mut owner = view.need::<Owner>(of.owner)?.clone();
            freeze(&mut owner);
            effects.put(owner)?;
        }
        effects.put(row)?;
        Ok(effects)
    }
}

/// Books one refund or reversal as it was read from PayPal. Booking it again changes nothing.
#[derive(Clone, Debug)]
pub struct Book {
    /// PayPal's id of the capture.
    pub capture: String,
    /// Whose it was, from a plain read; never changes.
    pub of: Option<Captured>,
    /// PayPal's id of the refund or reversal.
    pub id: String,
    /// What went back to the payer.
    pub amount: Micros,
    /// What PayPal gave us back of its fee.
    pub fee_returned: Micros,
    /// The owners for whom something of the capture was cleared out of suspense, from a plain read.
    pub cleared_for: Vec<OwnerId>,
}

impl Unit for Book {
    /// Whether it is in the books now: `false` when more would go back than ever came.
    type Answer = bool;

    fn name(&self) -> &'static str {
        "reversal.book"
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Note::touch(&mut touches, &self.capture, self.of.map(|of| of.owner));
        for owner in &self.cleared_for {
            touches.row::<Owner>(*owner);
        }
        touches.row::<Suspended>(&self.capture);
        for one in view.peek::<Suspended>(&self.capture).iter().flat_map(|row| &row.cleared) {
            touches.account(Account::OwnerCredit(one.owner).usd());
            touches.account(Account::OwnerDebt(one.owner).usd());
        }
        touch_booked(&mut touches, &self.id);
        touches.row::<Withheld>(&self.id);
        touches.row::<Disputed>(&self.capture);
        touches.account(Account::Disputes.usd());
        touches.hold(chain_of(ChainKind::FeeGivenBack, &self.id));
        if let Some(of) = self.of {
            touches.row::<Settlement>(of.settlement);
            touches.account(Account::OwnerCredit(of.owner).usd());
            touches.account(Account::OwnerDebt(of.owner).usd());
            touches.account(Account::CaptureRefundable(of.intent).usd());
        }
        touches.account(Account::Suspense.usd());
        touches.account(Account::PaypalCash.usd());
        touches.account(Account::PaypalFees.usd());
        touches.account(Account::Memo.usd());
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<bool>, Stop> {
        let row = view.need::<Reversal>(&self.capture)?;
        if row.of.map(|of| of.owner) != self.of.map(|of| of.owner) {
            return Err(Stop::Bug(format!("capture {} is somebody else's", self.capture)));
        }
        // INVARIANT: a_reversal_is_booked_once
        if row.has_booked(&self.id) {
            return Ok(Effects::answer(true));
        }
        match booked(view, &self.id)? {
            None => {}
            Some(ChainKind::GivenBack) => return Ok(Effects::answer(true)),
            Some(ChainKind::Cash) => return self.taken(view, row),
            Some(ChainKind::Withheld) => {}
            // Something else of PayPal's stands under its id: somebody has to look.
            Some(_) => return self.refused(row, now),
        }
        // What was withheld goes to the payer out of what was withheld, exactly.
        let withheld = view.row::<Withheld>(&self.id)?;
        if withheld.is_some_and(|held| !held.is_hold_of(self.amount)) {
            return self.refused(row, now);
        }
        let mut suspended = view.row::<Suspended>(&self.capture)?.cloned();
        let in_suspense = suspended.as_ref().map_or(Micros::ZERO, |row| row.left_micros);
        let from_suspense = self.amount.min(in_suspense);
        // What was cleared was somebody else's by then: it is taken from whoever had it.
        let rest = self.amount.saturating_sub(from_suspense);
        let mut parts = suspended.as_mut().map_or_else(Vec::new, |row| row.take_back(rest));
        if parts.iter().any(|part| !self.cleared_for.contains(&part.owner)) {
            let why = "more of it was cleared meanwhile";
            return Err(Refusal::new(Code::StateConflict, why).into());
        }
        let touched = !from_suspense.is_zero() || !parts.is_empty();
        let mut of_parts = parts.iter().map(|part| part.amount);
        let of_parts = of_parts.try_fold(Micros::ZERO, Micros::checked_add);
        let of_settlement = rest.saturating_sub(of_parts.unwrap_or(Micros::MAX));
        // INVARIANT: no_more_goes_back_than_came
        let covered = match self.of {
            Some(of) => {
                let refundable = Account::CaptureRefundable(of.intent).usd();
                self.amount <= view.totals(refundable)?.available()
            }
            None => of_settlement.is_zero(),
        };
        if !covered || self.amount.is_zero() {
            return self.refused(row, now);
        }
        if let Some(of) = self.of {
            parts.push(TakenBack { owner: of.owner, amount: of_settlement, settled: true });
        }
        self.carry_out(view, now, row, suspended.filter(|_| touched), from_suspense, &parts)
    }
}

impl Book {
    /// Books what was found to be right, and keeps it on every row that speaks of it.
    fn carry_out(
        &self,
        view: &View,
        now: Timestamp,
        row: &Reversal,
        suspended: Option<Suspended>,
        from_suspense: Micros,
        parts: &[TakenBack],
    ) -> Result<Effects<bool>, Stop> {
        let withheld = view.row::<Withheld>(&self.id)?;
        let mut effects = Effects::answer(true);
        self.book(view, &mut effects, from_suspense, parts, withheld.is_some())?;
        let disputed = match withheld {
            Some(_) => view.row::<Disputed>(&self.capture)?,
            None => None,
        };
        let mut row = row.clone();
        row.named.retain(|name| *name != self.id);
        row.booked.push(Booked {
            id: self.id.clone(),
            amount_micros: self.amount,
            from_suspense_micros: from_suspense,
            fee_returned_micros: if withheld.is_some() { Micros::ZERO } else { self.fee_returned },
            was_withheld: withheld.is_some(),
            at: now,
        });
        effects.put(row)?;
        let after = disputed.map(|row| row.released(self.amount)).transpose()?;
        freeze_all(view, &mut effects, parts, disputed.zip(after.as_ref()))?;
        after.map_or(Ok(()), |row| effects.put(row))?;
        if let Some(suspended) = suspended {
            effects.put(suspended.less(from_suspense))?;
        }
        if let Some(of) = self.of {
            self.tell(view, &mut effects, of)?;
        }
        Ok(effects)
    }
}

impl Book {
    /// What PayPal says went back cannot have: nothing is booked, somebody has to look.
    fn refused(&self, row: &Reversal, now: Timestamp) -> Result<Effects<bool>, Stop> {
        let mut effects = Effects::answer(false);
        // Looked at again and again; the alarm is raised once.
        if !row.alarmed {
            let data = json!({ "capture": self.capture, "reversal": self.id,
                "amount_micros": self.amount });
            effects.event("alarm.reversal_above_capture", &[], data);
        }
        let mut row = row.clone();
        row.alarmed = true;
        row.next_at = row.backoff(now);
        row.looks = row.looks.saturating_add(1);
        effects.put(row)?;
        Ok(effects)
    }

    /// Something else is in the books under this id: the operator recorded it by hand, and bears it.
    fn taken(&self, view: &View, row: &Reversal) -> Result<Effects<bool>, Stop> {
        let mut effects = Effects::answer(true);
        let data = json!({ "capture": self.capture, "reversal": self.id,
            "amount_micros": self.amount });
        effects.event("alarm.reversal_recorded_by_hand", &[], data);
        let mut row = row.clone();
        row.named.retain(|name| *name != self.id);
        row.by_hand.push(ByHand { id: self.id.clone(), amount_micros: self.amount });
        effects.put(row)?;
        // Should it be taken back, this has to be read again.
        if let Some(entry) = view.row::<CashEntry>(&self.id)? {
            effects.put(CashEntry { gave_back: Some(self.capture.clone()), ..entry.clone() })?;
        }
        Ok(effects)
    }

    /// Out of suspense first; then from each whose it was, credit before debt.
    fn book(
        &self,
        view: &View,
        effects: &mut Effects<bool>,
        from_suspense: Micros,
        parts: &[TakenBack],
        was_withheld: bool,
    ) -> Result<(), Stop> {
        let from = if was_withheld { Account::Disputes } else { Account::PaypalCash };
        let cash = from.usd();
        let mut legs = Vec::new();
        let mut leg = |debit, credit, amount: Micros| {
            if !amount.is_zero() {
                legs.push(Leg::new(debit, credit, amount));
            }
        };
        leg(Account::Suspense.usd(), cash, from_suspense);
        if let Some(of) = self.of {
            let refundable = Account::CaptureRefundable(of.intent).usd();
            leg(refundable, Account::Memo.usd(), self.amount);
        }
        let mut spent: BTreeMap<OwnerId, Micros> = BTreeMap::new();
        for part in parts {
            let sum = spent.entry(part.owner).or_insert(Micros::ZERO);
            *sum = add(*sum, part.amount)?;
        }
        for (owner, sum) in spent {
            let credit = Account::OwnerCredit(owner).usd();
            let from_credit = sum.min(view.totals(credit)?.available());
            leg(credit, cash, from_credit);
            leg(Account::OwnerDebt(owner).usd(), cash, sum.saturating_sub(from_credit));
        }
        effects.op(Op::Move {
            id: chain_of(ChainKind::GivenBack, &self.id),
            cause: Cause::Refund,
            legs,
        });
        if !self.fee_returned.is_zero() && !was_withheld {
            let legs = vec![Leg::new(cash, Account::PaypalFees.usd(), self.fee_returned)];
            let id = chain_of(ChainKind::FeeGivenBack, &self.id);
            effects.op(Op::Move { id, cause: Cause::PaypalFee, legs });
        }
        Ok(())
    }

    /// The settlement and its owner learn that money which counted as settled is gone.
    fn tell(&self, view: &View, effects: &mut Effects<bool>, of: Captured) -> Result<(), Stop> {
        let mut settlement = view.need::<Settlement>(of.settlement)?.clone();
        settlement.given_back_micros = add(settlement.given_back_micros, self.amount)?;
        let data = json!({ "settlement": of.settlement, "owner": of.owner,
            "capture": self.capture, "reversal": self.id, "amount_micros": self.amount });
        effects.event("settlement.given_back", &[&of.owner], data);
        effects.put(settlement)
    }
}

/// Freezes whoever had the money that went back, and takes back what the line grew by it: it grows
/// with what was settled and stayed.
fn freeze_all(
    view: &View,
    effects: &mut Effects<bool>,
    parts: &[TakenBack],
    disputed: Option<(&Disputed, &Disputed)>,
) -> Result<(), Stop> {
    let owners: BTreeSet<OwnerId> = parts.iter().map(|part| part.owner).collect();
    for id in owners {
        let mut owner = view.need::<Owner>(id)?.clone();
        freeze(&mut owner);
        for part in parts.iter().filter(|part| part.owner == id && part.settled) {
            owner.settled_micros = owner.settled_micros.saturating_sub(part.amount);
        }
        if let Some((before, after)) = disputed {
            after.count_against(&mut owner, Some(before))?;
        }
        effects.put(owner)?;
    }
    Ok(())
}

/// Records that a capture was looked at: whether anything is left to read, and when.
#[derive(Clone, Debug)]
pub struct Looked {
    /// PayPal's id of the capture.
    pub capture: String,
    /// Names that turned out to be nothing: a refund that failed or was called off.
    pub dropped: Vec<String>,
    /// Whether everything that went back is in the books.
    pub explained: bool,
}

impl Unit for Looked {
    type Answer = ();

    fn name(&self) -> &'static str {
        "reversal.looked"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Reversal>(&self.capture);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let mut row = view.need::<Reversal>(&self.capture)?.clone();
        row.named.retain(|name| !self.dropped.contains(name));
        // What was named meanwhile has not been read.
        row.open = !self.explained || !row.named.is_empty();
        row.next_at = row.backoff(now);
        row.looks = row.looks.saturating_add(1);
        let mut effects = Effects::answer(());
        effects.put(row)?;
        Ok(effects)
    }
}
