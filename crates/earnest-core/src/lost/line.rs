//! Purchases that a restore lost, known only by their sellers' reports.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::authorize::split;
use crate::chain::{ChainKind, chain_of};
use crate::id::{PurchaseId, QuoteId, SellerId, VoucherId};
use crate::ledger::{Account, Cause, Leg, Op};
use crate::money::Micros;
use crate::party::Seller;
use crate::problem::{Code, Refusal};
use crate::purchase::{Purchase, PurchaseState};
use crate::quarantine::Quarantine;
use crate::report::{LATE_SECONDS, Step, Told};
use crate::suspense::{Suspended, Why};
use crate::time::Timestamp;
use crate::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};
use crate::voucher::{Claims, Fate, ReportOutcome};

/// What became of a lost purchase that its seller reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum LineState {
    /// The operator has not decided.
    Open,
    /// Its seller earned it, out of a capture of the life that was lost.
    PaidFromSuspense {
        /// PayPal's id of the capture.
        capture: String,
    },
    /// Its seller earned it, and the operator bears it.
    PaidByOperator,
    /// Its seller gets nothing.
    Refused,
}

/// A purchase of the life that was lost, known only by its seller's report. The voucher in it was
/// signed by us, so that it was bought; by whom it does not say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostLine {
    /// The purchase.
    pub purchase: PurchaseId,
    /// Who reports.
    pub seller: SellerId,
    /// The voucher.
    pub jti: VoucherId,
    /// The quote.
    pub quote: QuoteId,
    /// What it was.
    pub listing: String,
    /// What is due.
    pub amount_micros: Micros,
    /// When its seller claimed it.
    pub claimed_at: Timestamp,
    /// When it was reported here.
    pub reported_at: Timestamp,
    /// What became of it.
    pub state: LineState,
    /// Other purchases under the same mark: the same was asked for in more than one life that was lost,
    /// or sold by more than one seller. Each has a row of its own, under its whole id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<PurchaseId>,
    /// Whether it is one of those, and not the first under its mark.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub further: bool,
}

/// The most further purchases under one mark: lives that were lost from one copy are few.
const MAX_OTHERS: usize = 20;

impl LostLine {
    /// The row's id: what is left of a purchase's id without its time. The rest follows from who
    /// bought and under which `request_id` ([`crate::purchase::mark`]), so that the same id asked
    /// for again is recognised.
    pub fn id_of(purchase: PurchaseId) -> String {
        const MARK: u128 = (1 << 80) - 1;
        PurchaseId::from_value(purchase.value() & MARK).to_string()
    }

    /// Touches the rows that [`LostLine::find`] looks at.
    fn touch(touches: &mut Touches, purchase: PurchaseId) {
        touches.row::<Self>(Self::id_of(purchase));
        touches.row::<Self>(purchase);
    }

    /// The row of that very purchase: the first under its mark, or a further one.
    fn find(view: &View, purchase: PurchaseId) -> Result<Option<&Self>, Stop> {
        let first = view.row::<Self>(Self::id_of(purchase))?;
        match first.filter(|row| row.purchase == purchase) {
            Some(row) => Ok(Some(row)),
            None => Ok(view.row::<Self>(purchase)?.filter(|row| row.purchase == purchase)),
        }
    }

    /// Refuses what was bought under the same id in a life that was lost, and delivered, as its
    /// seller reports: buying it again would charge twice.
    ///
    /// # Errors
    /// `state_conflict`, which names the lost purchase.
    // INVARIANT: a_lost_purchase_is_not_bought_again_under_its_id
    pub(crate) fn refuse_again(view: &View, purchase: PurchaseId) -> Result<(), Stop> {
        if view.row::<Quarantine>(Quarantine::ID)?.is_none() {
            return Ok(());
        }
        let lost = view.row::<Self>(Self::id_of(purchase))?;
        // Of further ones it is not looked what became of them: a new id is always free.
        match lost.filter(|line| line.state != LineState::Refused || !line.others.is_empty()) {
            None => Ok(()),
            Some(line) => {
                let why = "this was bought and delivered before the books were restored";
                let refusal = Refusal::new(Code::StateConflict, why);
                let refusal = refusal.with("purchase", line.purchase.to_string());
                Err(refusal.next("use a new request_id to buy it again").into())
            }
        }
    }
}

/// Whether a voucher was issued by a life that was lost, for a delivery that these books do not know:
/// they issued nothing between the copy and the restore, whatever stands in the purchase's row.
///
/// Not so where the hold of the copy is still the one that counts. A purchase posts once for any of its
/// vouchers, those of the lost life among them, and posting that hold is what the lost life did.
pub(crate) fn sold_by_a_lost_life(
    restored: Option<&Quarantine>,
    purchase: &Purchase,
    claims: &Claims,
) -> bool {
    let own = purchase.voucher.as_ref().is_some_and(|issue| issue.jti == claims.jti)
        || purchase.has_failed(claims.jti);
    let Some(restored_at) = restored.and_then(|row| row.lost_at(claims.iat)).filter(|_| !own)
    else {
        return false;
    };
    match purchase.state {
        PurchaseState::Held | PurchaseState::Billed => {
            purchase.held_at_ms().is_some_and(|held| held > restored_at.as_millisecond())
        }
        _ => true,
    }
}

impl Record for LostLine {
    const KIND: &'static str = "lost_line";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        if self.further { self.purchase.to_string() } else { Self::id_of(self.purchase) }
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![ListEntry::timed("lost_lines", "", self.reported_at)];
        if self.state == LineState::Open {
            lists.push(ListEntry::timed("lost_lines.open", "", self.reported_at));
        }
        lists
    }
}

/// Keeps a report of a delivery that these books do not know: of a purchase that is lost, or one that
/// was bought after the copy was taken, or whose late report the lost life may have booked.
#[derive(Clone, Debug)]
pub struct KeepLost {
    /// The report; its voucher's signature was checked.
    pub told: Told,
}

/// Whether nobody but the operator can tell who pays for a delivery that was reported.
fn is_for_the_operator(
    restored: Option<&Quarantine>,
    purchase: &Purchase,
    claims: &Claims,
) -> bool {
    let unpaid = !matches!(
        purchase.state,
        PurchaseState::Held | PurchaseState::Billed | PurchaseState::Unbilled
    );
    let late = unpaid && restored.is_some_and(|row| may_have_been_booked_late(row, claims));
    late || sold_by_a_lost_life(restored, purchase, claims)
}

/// Whether a life that was lost may have booked a late line for a voucher.
pub(crate) fn may_have_been_booked_late(restored: &Quarantine, claims: &Claims) -> bool {
    restored.lost_between(claims.iat, claims.exp.saturating_add(LATE_SECONDS))
}

impl Unit for KeepLost {
    type Answer = Step;

    fn name(&self) -> &'static str {
        "lost.report"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        touches.row::<Seller>(self.told.seller);
        touches.row::<Purchase>(self.told.claims.sub);
        LostLine::touch(&mut touches, self.told.claims.sub);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Step>, Stop> {
        let (told, claims) = (&self.told, &self.told.claims);
        let step = |step| Ok(Effects::answer(step));
        let restored = view.row::<Quarantine>(Quarantine::ID)?;
        let kept = LostLine::find(view, claims.sub)?;
        let lost = match view.row::<Purchase>(claims.sub)? {
            None => restored.is_some_and(|row| row.lost_at(claims.iat).is_some()),
            Some(purchase) if purchase.seller != told.seller => false,
            // Held, or resolved, between the two units.
            Some(purchase)
                if kept.is_none() && !is_for_the_operator(restored, purchase, claims) =>
            {
                return step(Step::Moved);
            }
            Some(_) => true,
        };
        if !lost || claims.aud != told.seller || view.row::<Seller>(told.seller)?.is_none() {
            return step(Step::Rejected(Code::NotFound));
        }
        if told.claimed_at.as_second() > claims.exp {
            return step(Step::Rejected(Code::VoucherExpired));
        }
        let due = match told.amount {
            None => claims.amount_micros,
            Some(amount) if amount > claims.amount_micros => {
                return step(Step::Rejected(Code::AmountOutOfRange));
            }
            Some(amount) if claims.max_micros.is_none() && amount != claims.amount_micros => {
                return step(Step::Rejected(Code::AmountInvalid));
            }
            Some(amount) => amount,
        };
        if let Some(known) = kept {
            if known.seller != told.seller {
                return step(Step::Rejected(Code::NotFound));
            }
            return step(match known.state {
                LineState::Open => Step::Done(ReportOutcome::Kept, Some(known.amount_micros)),
                LineState::Refused => Step::Done(ReportOutcome::LateUnbilled, None),
                _ => Step::Done(ReportOutcome::AlreadyBilled, Some(known.amount_micros)),
            });
        }
        match told.fate {
            Fate::Serving => return step(Step::Done(ReportOutcome::Serving, None)),
            Fate::Failed => return step(Step::Done(ReportOutcome::Released, None)),
            Fate::Redeemed if due.is_zero() => {
                return step(Step::Done(ReportOutcome::Released, None));
            }
            Fate::Redeemed => {}
        }
        self.keep(view, due, now)
    }
}

impl KeepLost {
    /// Keeps it for the operator, beside others that the same mark names.
    fn keep(&self, view: &View, due: Micros, now: Timestamp) -> Result<Effects<Step>, Stop> {
        let (told, claims) = (&self.told, &self.told.claims);
        // INVARIANT: no_lost_purchase_is_swallowed_by_another
        let first = view.row::<LostLine>(LostLine::id_of(claims.sub))?;
        if first.is_some_and(|row| row.others.len() >= MAX_OTHERS) {
            return Ok(Effects::answer(Step::Rejected(Code::NotFound)));
        }
        let mut effects = Effects::answer(Step::Done(ReportOutcome::Kept, Some(due)));
        if let Some(row) = first {
            let others = row.others.iter().copied().chain([claims.sub]).collect();
            effects.put(LostLine { others, ..row.clone() })?;
        }
        let data = json!({ "purchase": claims.sub, "amount_micros": due, "seller": told.seller });
        effects.event("alarm.lost_purchase_reported", &[&told.seller], data);
        effects.put(LostLine {
            purchase: claims.sub,
            seller: told.seller,
            jti: claims.jti,
            quote: claims.quote,
            listing: claims.listing.clone(),
            amount_micros: due,
            claimed_at: told.claimed_at,
            reported_at: now,
            state: LineState::Open,
            others: Vec::new(),
            further: first.is_some(),
        })?;
        Ok(effects)
    }
}

/// The operator's decision about a lost purchase. The same decision again changes nothing.
#[derive(Clone, Debug)]
pub struct DecideLost {
    /// The purchase.
    pub purchase: PurchaseId,
    /// Its seller, from a plain read; never changes.
    pub seller: SellerId,
    /// What becomes of it; never [`LineState::Open`].
    pub state: LineState,
}

impl Unit for DecideLost {
    type Answer = LostLine;

    fn name(&self) -> &'static str {
        "lost.decide"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Seller>(self.seller);
        LostLine::touch(&mut touches, self.purchase);
        if let LineState::PaidFromSuspense { capture } = &self.state {
            touches.row::<Suspended>(capture);
        }
        touches.hold(chain_of(ChainKind::LostEarned, &self.purchase.to_string()));
        touches.account(Account::Suspense.usd());
        touches.account(Account::Losses.usd());
        touches.account(Account::SellerAccrued(self.seller).usd());
        touches.account(Account::PlatformRevenue.usd());
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<LostLine>, Stop> {
        let conflict = |why: &str| Err(Refusal::new(Code::StateConflict, why).into());
        let Some(row) = LostLine::find(view, self.purchase)? else {
            return Err(Refusal::new(Code::NotFound, "no such lost purchase").into());
        };
        if row.state == self.state {
            return Ok(Effects::answer(row.clone()));
        }
        if row.state != LineState::Open || self.state == LineState::Open {
            return conflict("it was decided before");
        }
        let row = LostLine { state: self.state.clone(), ..row.clone() };
        let mut effects = Effects::answer(row.clone());
        let from = match &self.state {
            LineState::PaidFromSuspense { capture } => {
                let suspended = view.row::<Suspended>(capture)?;
                let Some(suspended) = suspended.filter(|row| row.why == Why::Restored) else {
                    return conflict("nothing of that capture waits for lost purchases");
                };
                if suspended.left_micros < row.amount_micros {
                    let left = suspended.left_micros;
                    let why = "less of that capture is left than the purchase cost";
                    let refusal = Refusal::new(Code::StateConflict, why);
                    return Err(refusal.amount("left_micros", left).into());
                }
                effects.put(suspended.less(row.amount_micros))?;
                Some(Account::Suspense.usd())
            }
            LineState::PaidByOperator => Some(Account::Losses.usd()),
            _ => None,
        };
        if let Some(from) = from {
            let (earned, commission) =
                split(row.amount_micros, view.need::<Seller>(self.seller)?.commission_ppm)?;
            let to = [
                (Account::SellerAccrued(self.seller).usd(), earned),
                (Account::PlatformRevenue.usd(), commission),
            ];
            let some = to.into_iter().filter(|(_, amount)| !amount.is_zero());
            let legs = some.map(|(to, amount)| Leg::new(from, to, amount)).collect();
            let id = chain_of(ChainKind::LostEarned, &self.purchase.to_string());
            effects.op(Op::Move { id, cause: Cause::LostLine, legs });
        }
        let data = json!({ "purchase": self.purchase, "state": row.state,
            "amount_micros": row.amount_micros });
        effects.event("lost_purchase.decided", &[&self.seller], data);
        effects.put(row)?;
        Ok(effects)
    }
}
