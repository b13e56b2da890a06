//! What became of a voucher: posting, releasing, keeping or giving up its hold.
//!
//! A report resolves the *purchase*, once: `redeemed` for any of its vouchers posts the hold that is
//! pending, whichever voucher it was for. Posting an existing hold never fails because something
//! was frozen, paused or closed since: the money was reserved for exactly this.

use std::sync::Arc;

use serde_json::json;

use crate::approval::Grant;
use crate::authorize::{
    Chosen, audience, budgets, grant_account, legs, split, tab_facts, touch_budgets, used,
};
use crate::fee::Schedule;
use crate::id::{AgentId, OwnerId, PurchaseId, SellerId, SessionId, TabId, TransferId, VoucherId};
use crate::ledger::{Account, Cause, Hold, Op};
use crate::lost::{LostLine, may_have_been_booked_late, sold_by_a_lost_life};
use crate::money::Micros;
use crate::party::{Agent, Owner};
use crate::payer::{dealing, touch_dealing};
use crate::policy::{self, Facts, Policy, PolicySubject, counts};
use crate::problem::Code;
use crate::purchase::{Purchase, PurchaseState, ReportClock};
use crate::quarantine::Quarantine;
use crate::settings::Settings;
use crate::tab::{Tab, limit_accounts, place, touch_place};
use crate::time::{Timestamp, after, seconds_between};
use crate::unit::{Effects, Stop, Touches, Unit, View};
use crate::voucher::{Claims, Fate, ReportOutcome};

/// How long after a voucher's end a late line is still booked, in seconds.
pub const LATE_SECONDS: i64 = 24 * 3600;
/// The most that one tick adds to the report clock, in milliseconds: a longer pause is downtime.
pub const MAX_TICK_MS: i64 = 10_000;

/// One report, read and verified.
#[derive(Clone, Debug)]
pub struct Told {
    /// Who reports.
    pub seller: SellerId,
    /// The voucher's claims; its signature was checked.
    pub claims: Claims,
    /// What became of it.
    pub fate: Fate,
    /// When the seller claimed it.
    pub claimed_at: Timestamp,
    /// What is due, where the price was a ceiling.
    pub amount: Option<Micros>,
}

impl Told {
    /// What is due, if the report makes sense for that purchase.
    ///
    /// # Errors
    /// The code under which the report is rejected.
    fn due(&self, purchase: &Purchase) -> Result<Micros, Code> {
        if purchase.seller != self.seller || self.claims.aud != self.seller {
            return Err(Code::NotFound);
        }
        if self.claimed_at.as_second() > self.claims.exp {
            return Err(Code::VoucherExpired);
        }
        match self.amount {
            None => Ok(purchase.price_micros),
            Some(amount) if amount > purchase.price_micros => Err(Code::AmountOutOfRange),
            Some(amount) if !purchase.up_to && amount != purchase.price_micros => {
                Err(Code::AmountInvalid)
            }
            Some(amount) => Ok(amount),
        }
    }
}

/// What a report came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Settled.
    Done(ReportOutcome, Option<Micros>),
    /// Not acceptable; repeating it changes nothing.
    Rejected(Code),
    /// No hold is pending: [`LateLine`] has to look.
    Late,
    /// Delivered for a voucher of a life that was lost: [`crate::lost::KeepLost`] has to keep it.
    Lost,
    /// Nothing is decided while the books are quarantined: the seller says it again.
    Wait,
    /// The purchase moved to another tab meanwhile: read again.
    Moved,
}

/// Resolves the hold of a purchase by its seller's report.
#[derive(Clone, Debug)]
pub struct Resolve {
    /// The report.
    pub told: Told,
    /// The tab of the purchase, from a plain read; checked again here.
    pub tab: Option<TabId>,
    /// The operator's numbers.
    pub settings: Arc<Settings>,
}

impl Unit for Resolve {
    type Answer = Step;

    fn name(&self) -> &'static str {
        "purchase.report"
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        touches.row::<ReportClock>(ReportClock::ID);
        touch_held(&mut touches, view, self.tab, self.told.claims.sub);
        if view.peek::<Quarantine>(Quarantine::ID).is_some() {
            touches.row::<LostLine>(LostLine::id_of(self.told.claims.sub));
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Step>, Stop> {
        let step = |step| Ok(Effects::answer(step));
        let Some(purchase) = view.row::<Purchase>(self.told.claims.sub)? else {
            return step(Step::Rejected(Code::NotFound));
        };
        let due = match self.told.due(purchase) {
            Ok(due) => due,
            Err(code) => return step(Step::Rejected(code)),
        };
        if purchase.tab != self.tab {
            return step(Step::Moved);
        }
        let failed =
            self.told.fate == Fate::Failed || (self.told.fate == Fate::Redeemed && due.is_zero());
        let restored = view.row::<Quarantine>(Quarantine::ID)?;
        // INVARIANT: what_a_lost_life_sold_is_never_final_here
        if sold_by_a_lost_life(restored, purchase, &self.told.claims) {
            return step(match self.told.fate {
                Fate::Redeemed if !failed => Step::Lost,
                Fate::Serving => Step::Done(ReportOutcome::Serving, None),
                _ => Step::Done(ReportOutcome::Released, None),
            });
        }
        let latest =
            purchase.voucher.as_ref().is_some_and(|issue| issue.jti == self.told.claims.jti);
        let state = purchase.state;
        #[cfg(feature = "planted")]
        let state = match state {
            PurchaseState::Expired if crate::planted::on(crate::planted::Bug::PostAfterExpiry) => {
                PurchaseState::Held
            }
            state => state,
        };
        match state {
            PurchaseState::Billed => {
                step(Step::Done(ReportOutcome::AlreadyBilled, purchase.billed_micros))
            }
            PurchaseState::Unbilled => step(Step::Done(ReportOutcome::LateUnbilled, None)),
            // A delivery that was reported as failed stays failed, whatever was held since.
            _ if purchase.has_failed(self.told.claims.jti) => {
                step(Step::Done(ReportOutcome::Released, None))
            }
            PurchaseState::Held if failed && latest => {
                fail(view, purchase, self.told.claims.jti, now)
            }
            PurchaseState::Held if failed => step(Step::Done(ReportOutcome::Released, None)),
            PurchaseState::Held if self.told.fate == Fate::Serving => {
                self.keep(view, purchase, now)
            }
            PurchaseState::Held => bill(view, purchase, due, self.settings.fee, now),
            _ if failed && latest => note_failure(purchase, self.told.claims.jti, now),
            _ if failed => step(Step::Done(ReportOutcome::Released, None)),
            _ if self.told.fate == Fate::Serving => step(Step::Done(ReportOutcome::Serving, None)),
            _ if restored.is_some() && is_kept(view, purchase.id)? => step(Step::Lost),
            _ => step(Step::Late),
        }
    }
}

/// Whether a delivery of that purchase waits for the operator.
fn is_kept(view: &View, purchase: PurchaseId) -> Result<bool, Stop> {
    Ok(view.row::<LostLine>(LostLine::id_of(purchase))?.is_some())
}

/// Touches a purchase with its tab, its hold and the accounts of its hold.
fn touch_held(touches: &mut Touches, view: &View, tab: Option<TabId>, purchase: PurchaseId) {
    if let Some(tab) = tab {
        touches.row::<Tab>(tab);
    }
    touches.row::<Purchase>(purchase);
    if let Some(hold) = view.peek::<Purchase>(purchase).and_then(|purchase| purchase.hold) {
        touches.hold_and_accounts(hold, view);
    }
}

fn pending(view: &View, purchase: &Purchase) -> Result<(Tab, TransferId, Hold), Stop> {
    let missing = || Stop::Bug(format!("purchase {} is held without a hold", purchase.id));
    let id = purchase.hold.ok_or_else(missing)?;
    let hold = view.hold(id)?.ok_or_else(missing)?.clone();
    let tab = purchase.tab.ok_or_else(missing)?;
    Ok((view.need::<Tab>(tab)?.clone(), id, hold))
}

impl Resolve {
    /// The seller still serves: the hold waits on, but not for ever.
    fn keep(
        &self,
        view: &View,
        purchase: &Purchase,
        now: Timestamp,
    ) -> Result<Effects<Step>, Stop> {
        let mut effects = Effects::answer(Step::Done(ReportOutcome::Serving, None));
        let bound = purchase.first_expires_at.map(|at| after(at, self.settings.hold_limit_seconds));
        let left = bound.map_or(0, |bound| seconds_between(now, bound));
        let wait = self.settings.report_grace_seconds.min(left).max(0).saturating_mul(1_000);
        let clock = view.row::<ReportClock>(ReportClock::ID)?.map_or(0, |clock| clock.elapsed_ms);
        let by = clock.saturating_add(wait);
        let jti = self.told.claims.jti;
        let later = purchase.report_by.is_none_or(|known| by > known);
        if later || purchase.serving != Some(jti) {
            let mut purchase = purchase.clone();
            purchase.report_by = purchase.report_by.max(Some(by));
            purchase.serving = Some(jti);
            purchase.updated_at = now;
            effects.put(purchase)?;
        }
        Ok(effects)
    }
}

/// Posts the hold: the line is on the tab for good.
fn bill(
    view: &View,
    purchase: &Purchase,
    due: Micros,
    fee: Schedule,
    now: Timestamp,
) -> Result<Effects<Step>, Stop> {
    let (mut tab, id, hold) = pending(view, purchase)?;
    let mut purchase = purchase.clone();
    let amounts = amounts(&hold, &purchase, due)?;
    tab.resolve_hold();
    mark_billed(&mut purchase, &mut tab, due, fee, now)?;
    let mut effects = Effects::answer(Step::Done(ReportOutcome::Billed, Some(due)));
    effects.op(Op::Post { id, amounts });
    let data = json!({ "purchase": purchase.id, "amount_micros": due });
    effects.event("purchase.billed", &audience(&purchase), data);
    effects.put(tab)?;
    effects.put(purchase)?;
    Ok(effects)
}

fn mark_billed(
    purchase: &mut Purchase,
    tab: &mut Tab,
    due: Micros,
    fee: Schedule,
    now: Timestamp,
) -> Result<(), Stop> {
    purchase.state = PurchaseState::Billed;
    purchase.tab = Some(tab.id);
    purchase.billed_micros = Some(due);
    purchase.billed_at = Some(now);
    purchase.line = Some(tab.post_line(fee.predict(due), now)?);
    purchase.report_by = None;
    purchase.updated_at = now;
    Ok(())
}

/// An amount for every leg of a tab line: earned, commission, and the whole under every cap.
fn amounts(hold: &Hold, purchase: &Purchase, due: Micros) -> Result<Vec<Micros>, Stop> {
    let (earned, commission) = split(due, purchase.commission_ppm)?;
    let share = |leg: &crate::ledger::Leg| match leg.credit.account {
        Account::SellerAccrued(_) => earned,
        Account::PlatformRevenue => commission,
        _ => counts(leg.debit.account, due),
    };
    Ok(hold.legs.iter().map(share).collect())
}

/// Releases the hold: the seller did not deliver. Final for that voucher.
fn fail(
    view: &View,
    purchase: &Purchase,
    jti: VoucherId,
    now: Timestamp,
) -> Result<Effects<Step>, Stop> {
    let mut effects = release(view, purchase, PurchaseState::Released, Some(jti), now)?;
    effects.answer = Step::Done(ReportOutcome::Released, None);
    Ok(effects)
}

/// A failure that came when nothing was held any more: no later report makes a line of it.
fn note_failure(
    purchase: &Purchase,
    jti: VoucherId,
    now: Timestamp,
) -> Result<Effects<Step>, Stop> {
    let mut purchase = purchase.clone();
    purchase.fail(jti);
    purchase.updated_at = now;
    let mut effects = Effects::answer(Step::Done(ReportOutcome::Released, None));
    effects.put(purchase)?;
    Ok(effects)
}

fn release(
    view: &View,
    purchase: &Purchase,
    state: PurchaseState,
    failed: Option<VoucherId>,
    now: Timestamp,
) -> Result<Effects<Step>, Stop> {
    let (mut tab, id, _) = pending(view, purchase)?;
    let mut purchase = purchase.clone();
    tab.resolve_hold();
    purchase.state = state;
    if let Some(jti) = failed {
        purchase.fail(jti);
    }
    purchase.serving = None;
    purchase.report_by = None;
    purchase.updated_at = now;
    let mut effects = Effects::answer(Step::Done(ReportOutcome::Released, None));
    effects.op(Op::Void { id });
    let kind =
        if state == PurchaseState::Expired { "purchase.expired" } else { "purchase.released" };
    effects.event(kind, &audience(&purchase), json!({ "purchase": purchase.id }));
    effects.put(tab)?;
    effects.put(purchase)?;
    Ok(effects)
}

/// Books a line whose hold was gone, if today's caps and room allow.
#[derive(Clone, Debug)]
pub struct LateLine {
    /// The report.
    pub told: Told,
    /// Whose purchase it is, from a plain read; a purchase never changes its owner.
    pub owner: OwnerId,
    /// Who bought, from the same read; never changes either.
    pub agent: AgentId,
    /// The id of the chain.
    pub chain: TransferId,
    /// An id that no tab has: a late line opens none.
    pub no_tab: TabId,
    /// The operator's numbers.
    pub settings: Arc<Settings>,
}

impl Unit for LateLine {
    type Answer = Step;

    fn name(&self) -> &'static str {
        "purchase.late_line"
    }

    fn touches(&self, view: &View, now: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        // It opens no tab, so it carries nothing either: the chain of the line stands in.
        touch_place(&mut touches, view, self.owner, self.no_tab, self.chain);
        touch_dealing(&mut touches, view, self.told.seller);
        touches.row::<Purchase>(self.told.claims.sub);
        touches.hold(self.chain);
        touches.account(Account::SellerAccrued(self.told.seller).usd());
        touches.account(Account::PlatformRevenue.usd());
        // The agent's guard comes before the purchase in the lock order, so it cannot be learnt from
        // it here: the purchase was read beforehand, and its agent never changes.
        touches.row::<Agent>(self.agent);
        touches.row::<Policy>(PolicySubject::Agent(self.agent));
        let purchase = view.peek::<Purchase>(self.told.claims.sub);
        if let Some(grant) = purchase.and_then(|purchase| purchase.grant) {
            touches.row::<Grant>(grant);
            touches.account(grant_account(self.agent, grant));
        }
        if let Some(owner) = view.peek::<Owner>(self.owner) {
            let session = SessionId::from_value(owner.open_tab.unwrap_or(self.no_tab).value());
            let day = owner.zone_at(now).day(now);
            for account in limit_accounts(owner.id, self.agent, session, day) {
                touches.account(account);
            }
            touches.account(Account::MemoDay(day).usd());
            touch_budgets(&mut touches, view, (owner.id, self.agent, self.told.seller), day);
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Step>, Stop> {
        let Some(purchase) = view.row::<Purchase>(self.told.claims.sub)? else {
            return Ok(Effects::answer(Step::Rejected(Code::NotFound)));
        };
        let due = match self.told.due(purchase) {
            Ok(due) => due,
            Err(code) => return Ok(Effects::answer(Step::Rejected(code))),
        };
        if (purchase.owner, purchase.agent) != (self.owner, self.agent) {
            return Ok(Effects::answer(Step::Moved));
        }
        match purchase.state {
            PurchaseState::Billed => {
                let outcome = Step::Done(ReportOutcome::AlreadyBilled, purchase.billed_micros);
                return Ok(Effects::answer(outcome));
            }
            PurchaseState::Unbilled => {
                return Ok(Effects::answer(Step::Done(ReportOutcome::LateUnbilled, None)));
            }
            // A hold exists after all: it was made between the two units.
            PurchaseState::Held => return Ok(Effects::answer(Step::Moved)),
            // Reported as failed between the two units.
            _ if purchase.has_failed(self.told.claims.jti) => {
                return Ok(Effects::answer(Step::Done(ReportOutcome::Released, None)));
            }
            _ => {}
        }
        let too_late = now.as_second() > self.told.claims.exp.saturating_add(LATE_SECONDS);
        let caps = if too_late { None } else { self.caps(view, due, now)? };
        let grant = self.grant(view, purchase, due)?;
        match (caps, grant) {
            (Some((caps, tab)), Ok(grant)) => {
                self.book(view, purchase, due, (caps, grant), tab, now)
            }
            _ => self.no_room(view, purchase, now),
        }
    }
}

impl LateLine {
    /// Nobody pays; unless a life that was lost may have found room, and captured it. Agents return
    /// from a restore paused, so that here there is none.
    fn no_room(
        &self,
        view: &View,
        purchase: &Purchase,
        now: Timestamp,
    ) -> Result<Effects<Step>, Stop> {
        match view.row::<Quarantine>(Quarantine::ID)? {
            Some(row) if row.holds() => Ok(Effects::answer(Step::Wait)),
            Some(row) if may_have_been_booked_late(row, &self.told.claims) => {
                Ok(Effects::answer(Step::Lost))
            }
            _ => unbilled(purchase, now),
        }
    }

    fn caps(
        &self,
        view: &View,
        due: Micros,
        now: Timestamp,
    ) -> Result<Option<(policy::Caps, Tab)>, Stop> {
        let owner = view.need::<Owner>(self.owner)?;
        let place = place(view, owner, self.no_tab, &self.settings, now)?;
        if place.new {
            return Ok(None);
        }
        let day = owner.zone_at(now).day(now);
        let accounts = limit_accounts(owner.id, self.agent, place.tab.session(), day);
        let budgets = budgets(view, (owner.id, self.agent, self.told.seller), day)?;
        let agent = view.need::<Agent>(self.agent)?;
        let facts = Facts {
            owner,
            agent,
            owner_policy: view.row::<Policy>(PolicySubject::Owner(owner.id))?,
            agent_policy: view.row::<Policy>(PolicySubject::Agent(self.agent))?,
            tab: tab_facts(owner, &place),
            seller_owns_url: true,
            dealing: dealing(view, owner, self.told.seller, &self.settings)?,
            used: used(view, accounts)?,
            budgets: &budgets,
            asked: &[],
            approved: false,
            grant_room: None,
        };
        Ok(policy::decide_late(&facts, self.told.seller, due, now)
            .ok()
            .map(|caps| (caps, place.tab)))
    }

    /// The grant that the purchase was allowed under, if it still has room: its room came back with
    /// the hold, and the owner bounded what may be spent without another question.
    fn grant(
        &self,
        view: &View,
        purchase: &Purchase,
        due: Micros,
    ) -> Result<Result<Option<Grant>, NoRoom>, Stop> {
        let Some(id) = purchase.grant else { return Ok(Ok(None)) };
        let grant = view.need::<Grant>(id)?;
        let used = view.totals(grant_account(self.agent, id))?.debits();
        let after = used.and_then(|used| used.checked_add(due));
        let fits = after.is_some_and(|after| after <= grant.cap_micros);
        Ok(if fits { Ok(Some(grant.clone())) } else { Err(NoRoom) })
    }

    fn book(
        &self,
        view: &View,
        purchase: &Purchase,
        due: Micros,
        (caps, grant): (policy::Caps, Option<Grant>),
        mut tab: Tab,
        now: Timestamp,
    ) -> Result<Effects<Step>, Stop> {
        let owner = view.need::<Owner>(self.owner)?;
        let day = owner.zone_at(now).day(now);
        let accounts = limit_accounts(owner.id, self.agent, tab.session(), day);
        let budgets = budgets(view, (owner.id, self.agent, self.told.seller), day)?;
        let budgets = budgets.into_iter().map(|(budget, _)| budget).collect();
        let chosen = Chosen { approval: None, grant, accounts, budgets, day };
        let billed = Purchase { price_micros: due, ..purchase.clone() };
        let legs = legs(&billed, tab.owed(), &caps, &chosen)?;
        let mut purchase = purchase.clone();
        mark_billed(&mut purchase, &mut tab, due, self.settings.fee, now)?;
        purchase.day = Some(day);
        purchase.hold = Some(self.chain);
        let mut effects = Effects::answer(Step::Done(ReportOutcome::LateBilled, Some(due)));
        effects.op(Op::Move { id: self.chain, cause: Cause::TabLine, legs });
        let data = json!({ "purchase": purchase.id, "amount_micros": due, "late": true });
        effects.event("purchase.billed", &audience(&purchase), data);
        effects.put(tab)?;
        effects.put(purchase)?;
        Ok(effects)
    }
}

/// A grant that has no room for the line any more.
struct NoRoom;

fn unbilled(purchase: &Purchase, now: Timestamp) -> Result<Effects<Step>, Stop> {
    let mut purchase = purchase.clone();
    purchase.state = PurchaseState::Unbilled;
    purchase.updated_at = now;
    let mut effects = Effects::answer(Step::Done(ReportOutcome::LateUnbilled, None));
    effects.event("purchase.unbilled", &audience(&purchase), json!({ "purchase": purchase.id }));
    effects.put(purchase)?;
    Ok(effects)
}

/// Gives up a hold that nobody reported in time.
#[derive(Clone, Debug)]
pub struct Expire {
    /// Which purchase.
    pub purchase: PurchaseId,
    /// Its tab, from a plain read; checked again here.
    pub tab: Option<TabId>,
}

impl Unit for Expire {
    type Answer = bool;

    fn name(&self) -> &'static str {
        "purchase.expire"
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        touches.row::<ReportClock>(ReportClock::ID);
        touch_held(&mut touches, view, self.tab, self.purchase);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<bool>, Stop> {
        let purchase = view.need::<Purchase>(self.purchase)?;
        let clock = view.row::<ReportClock>(ReportClock::ID)?.map_or(0, |clock| clock.elapsed_ms);
        let due = purchase.report_by.is_some_and(|by| clock >= by);
        let held = purchase.state == PurchaseState::Held && purchase.tab == self.tab;
        if !held || !due || Quarantine::in_force(view)? {
            return Ok(Effects::answer(false));
        }
        release(view, purchase, PurchaseState::Expired, None, now)
            .map(|effects| effects.map(|_| true))
    }
}

/// Advances the report clock, while reports are accepted.
#[derive(Clone, Copy, Debug)]
pub struct Tick;

impl Unit for Tick {
    type Answer = i64;

    fn name(&self) -> &'static str {
        "report_clock.tick"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        touches.row::<ReportClock>(ReportClock::ID);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<i64>, Stop> {
        let known = view.row::<ReportClock>(ReportClock::ID)?;
        let (elapsed, last) = known.map_or((0, now), |clock| (clock.elapsed_ms, clock.ticked_at));
        let passed = now.as_millisecond().saturating_sub(last.as_millisecond());
        // Quarantine adds nothing: sellers may not have heard yet that they have to say all again.
        let most = if Quarantine::in_force(view)? { 0 } else { MAX_TICK_MS };
        let elapsed_ms = elapsed.saturating_add(passed.clamp(0, most));
        let mut effects = Effects::answer(elapsed_ms);
        effects.put(ReportClock { elapsed_ms, ticked_at: now })?;
        Ok(effects)
    }
}
