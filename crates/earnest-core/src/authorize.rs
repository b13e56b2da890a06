//! `POST /v1/authorize`: what an agent sends to buy, what it gets back, and the unit between.
//!
//! One road for every caller: the idempotency key first, then what a repeat means, then policy,
//! then the hold with every cap as a leg of the same chain.

mod weigh;

use std::sync::Arc;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::admin::OriginHolders;
use crate::approval::{Approval, ApprovalState, Grant, Waiting, binding};
use crate::id::{
    AgentId, ApprovalId, GrantId, KeyId, OwnerId, PurchaseId, SellerId, SessionId, TabId,
    TransferId, VoucherId,
};
use crate::ledger::{Account, AccountId, Cause, Leg, Op, Subject, Window};
use crate::lost::LostLine;
use crate::money::{AmountInput, Currency, Micros};
use crate::party::{Agent, Owner, RateWindow, Seller};
use crate::payer::{dealing, touch_dealing};
use crate::policy::{self, Budget, Caps, Decision, Facts, Policy, PolicySubject, TabFacts, Used};
use crate::problem::{Code, Reason, Refusal};
use crate::purchase::{Purchase, PurchaseState, ReportClock};
use crate::quarantine::Quarantine;
use crate::quote::{Quote, QuoteBody};
use crate::settings::Settings;
use crate::tab::{Place, Tab, TabState, limit_accounts, place, touch_place};
use crate::time::{Timestamp, after};
use crate::unit::{Effects, Fingerprint, Key, KeyUse, Stop, Touches, Unit, View};

pub use self::weigh::Foresee;

/// The longest `request_id`.
pub const MAX_REQUEST_ID_BYTES: usize = 128;

/// The body of `POST /v1/authorize`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuthorizeRequest {
    /// The seller's quote, exactly as the 402 held it.
    pub quote: QuoteBody,
    /// The most the caller wants to pay: `"$0.25"` or micro-units.
    pub max_price: AmountInput,
    /// The caller's name for the one thing it wants; reused for every retry of that thing. The
    /// header `Idempotency-Key` may stand in for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// 201: the hold exists, here is the voucher.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorized {
    /// The purchase that holds the money.
    pub purchase: PurchaseId,
    /// What the seller wants to see: `Authorization: Tab <voucher>`.
    pub voucher: String,
    /// When the voucher stops being accepted.
    pub expires_at: Timestamp,
    /// What is held.
    pub amount_micros: Micros,
    /// In which currency.
    pub currency: Currency,
}

crate::shows_only!(Authorized: purchase, expires_at, amount_micros, currency);

/// 202: the owner has to answer first. Nothing is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalNeeded {
    /// Always `approval_required`.
    pub status: String,
    /// The waiting purchase.
    pub purchase: PurchaseId,
    /// The question put to the owner.
    pub approval_id: ApprovalId,
    /// Where the owner answers it. Not pre-authenticated.
    pub approval_url: String,
    /// When the question expires.
    pub expires_at: Timestamp,
    /// How long to wait before repeating with the same `request_id`.
    pub retry_after_s: i64,
    /// Why it waits, in one sentence.
    pub detail: String,
}

/// A `request_id` that may be used: 1 to 128 visible ASCII characters.
pub fn is_request_id(text: &str) -> bool {
    (1..=MAX_REQUEST_ID_BYTES).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

/// What a unit may need an id for; drawn beforehand, so that the decision stays pure.
#[derive(Clone, Copy, Debug)]
pub struct FreshIds {
    /// The purchase, if the key is new: of now, and of [`crate::purchase::mark`].
    pub purchase: PurchaseId,
    /// The hold, if one is made.
    pub hold: TransferId,
    /// The voucher, if one is issued.
    pub voucher: VoucherId,
    /// The tab, if one is opened.
    pub tab: TabId,
    /// The carrying chain, if something is carried to that tab.
    pub carry: TransferId,
    /// The approval, if one is asked for.
    pub approval: ApprovalId,
}

/// Buys: decides by policy, holds the money, and issues a voucher; or asks the owner; or refuses.
#[derive(Clone, Debug)]
pub struct Authorize {
    /// Whose money.
    pub owner: OwnerId,
    /// Who buys.
    pub agent: AgentId,
    /// With which key: one that was revoked meanwhile buys nothing.
    pub api_key: KeyId,
    /// The offer.
    pub quote: Quote,
    /// The most the caller wants to pay.
    pub max_price: Micros,
    /// The caller's name for it.
    pub request_id: String,
    /// Drawn beforehand.
    pub ids: FreshIds,
    /// The operator's numbers.
    pub settings: Arc<Settings>,
}

/// What became of it.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The money is held; the purchase carries the voucher to be signed.
    Held(Box<Purchase>),
    /// The owner has to answer first.
    Waiting(Box<Purchase>, Box<Approval>),
    /// The policy or the owner said no.
    Denied(Box<Purchase>, Box<Refusal>),
    /// It was resolved before: shown as it is now.
    Resolved(Box<Purchase>),
}

/// An outcome, and whether it was there before.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What became of it.
    pub outcome: Outcome,
    /// Whether this repeats an earlier answer.
    pub replayed: bool,
}

impl Unit for Authorize {
    type Answer = Answer;

    fn name(&self) -> &'static str {
        "purchase.authorize"
    }

    fn key(&self) -> Option<Key> {
        Some(Key {
            scope: self.agent.to_string(),
            family: "purchase",
            name: self.request_id.clone(),
            fingerprint: Fingerprint::of(&[binding(self.agent, &self.quote).as_bytes()]),
        })
    }

    fn touches(&self, view: &View, now: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        touches.row::<OriginHolders>(self.quote.request.origin());
        touch_dealing(&mut touches, view, self.quote.seller);
        touches.row::<ReportClock>(ReportClock::ID);
        touch_place(&mut touches, view, self.owner, self.ids.tab, self.ids.carry);
        touches.row::<Agent>(self.agent);
        // Named at once, not when the owner is known: every round of naming costs a look at all.
        touches.row::<Policy>(PolicySubject::Owner(self.owner));
        touches.row::<Policy>(PolicySubject::Agent(self.agent));
        touches.row::<RateWindow>(self.agent);
        self.touch_purchase(&mut touches, view);
        self.touch_accounts(&mut touches, view, now);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Answer>, Stop> {
        let agent = view.need::<Agent>(self.agent)?;
        if agent.owner != self.owner || !agent.keys.contains(&self.api_key) {
            let refusal = Refusal::new(Code::Unauthenticated, "the key was revoked");
            return Err(Stop::Unheard(Box::new(refusal)));
        }
        Quarantine::refuse(view)?;
        let known = match view.key().bound() {
            Some(id) => Some(view.need::<Purchase>(id)?),
            None => None,
        };
        match (view.key(), known) {
            (KeyUse::Other { .. }, known) => Err(conflict(view, known, now)?.into()),
            (_, Some(purchase)) => self.repeat(view, purchase, now),
            (_, None) => {
                LostLine::refuse_again(view, self.ids.purchase)?;
                self.ask(view, None, now)
            }
        }
    }
}

/// The key was used for something else: while the owner's answer to that is open or unused, it is
/// the question that went stale.
fn conflict(view: &View, known: Option<&Purchase>, now: Timestamp) -> Result<Refusal, Stop> {
    let waiting = known.filter(|purchase| purchase.state == PurchaseState::Waiting);
    let asked = match waiting.and_then(|purchase| purchase.approval) {
        Some(id) => view.row::<Approval>(id)?,
        None => None,
    };
    let open = |approval: &Approval| {
        matches!(approval.state, ApprovalState::Waiting | ApprovalState::Approved)
            && !approval.is_expired(now)
    };
    let (code, why) = if asked.is_some_and(open) {
        (Code::ApprovalStale, "the purchase that waits under this id is for something else")
    } else {
        (Code::IdempotencyConflict, "this id was used for another purchase")
    };
    Ok(Refusal::new(code, why).next("use a new request_id for another thing"))
}

fn replayed(outcome: Outcome) -> Effects<Answer> {
    Effects::answer(Answer { outcome, replayed: true })
}

impl Authorize {
    fn touch_purchase(&self, touches: &mut Touches, view: &View) {
        let bound = view.key().bound();
        let id = bound.map_or_else(|| self.ids.purchase.to_string(), str::to_owned);
        touches.row::<Purchase>(&id);
        touches.hold(self.ids.hold);
        if view.peek::<Quarantine>(Quarantine::ID).is_some() {
            let known = bound.and_then(|id| id.parse().ok());
            touches.row::<LostLine>(LostLine::id_of(known.unwrap_or(self.ids.purchase)));
        }
        touches.row::<Approval>(self.ids.approval);
        if let Some(purchase) = view.peek::<Purchase>(&id) {
            if let Some(approval) = purchase.approval {
                touches.row::<Approval>(approval);
            }
            if let Some(grant) = purchase.grant {
                touches.row::<Grant>(grant);
            }
            if let Some(hold) = purchase.hold {
                touches.hold(hold);
            }
        }
        if let Some(agent) = view.peek::<Agent>(self.agent) {
            for waiting in &agent.waiting {
                touches.row::<Approval>(waiting.approval);
            }
            for grant in &agent.grants {
                touches.row::<Grant>(grant);
                touches.account(grant_account(self.agent, *grant));
            }
        }
    }

    fn touch_accounts(&self, touches: &mut Touches, view: &View, now: Timestamp) {
        touches.account(Account::SellerAccrued(self.quote.seller).usd());
        touches.account(Account::PlatformRevenue.usd());
        if let Some(owner) = view.peek::<Owner>(self.owner) {
            let session = SessionId::from_value(owner.open_tab.unwrap_or(self.ids.tab).value());
            let day = owner.zone_at(now).day(now);
            touch_budgets(touches, view, (self.owner, self.agent, self.quote.seller), day);
            for account in limit_accounts(self.owner, self.agent, session, day) {
                touches.account(account);
            }
            touches.account(Account::MemoDay(day).usd());
        }
    }

    /// The same id again: shows, re-issues, or runs what was approved.
    fn repeat(
        &self,
        view: &View,
        purchase: &Purchase,
        now: Timestamp,
    ) -> Result<Effects<Answer>, Stop> {
        if purchase.wants_more(now) {
            LostLine::refuse_again(view, purchase.id)?;
        }
        match purchase.state {
            PurchaseState::Billed | PurchaseState::Unbilled => {
                Ok(replayed(Outcome::Resolved(Box::new(purchase.clone()))))
            }
            PurchaseState::Held if purchase.voucher_lives(now) => {
                Ok(replayed(Outcome::Held(Box::new(purchase.clone()))))
            }
            PurchaseState::Held => self.reissue(view, purchase, now),
            PurchaseState::Waiting => self.waiting(view, purchase, now),
            PurchaseState::Denied | PurchaseState::Released | PurchaseState::Expired => {
                self.ask(view, Some(purchase), now)
            }
        }
    }

    fn waiting(
        &self,
        view: &View,
        purchase: &Purchase,
        now: Timestamp,
    ) -> Result<Effects<Answer>, Stop> {
        let approval = match purchase.approval {
            Some(id) => view.need::<Approval>(id)?,
            None => return self.ask(view, Some(purchase), now),
        };
        match approval.state {
            ApprovalState::Waiting if !approval.is_expired(now) => {
                let waiting =
                    Outcome::Waiting(Box::new(purchase.clone()), Box::new(approval.clone()));
                Ok(replayed(waiting))
            }
            ApprovalState::Denied => {
                let unsaid = || Stop::Bug(format!("approval {} is denied and not", approval.id));
                let refusal = approval.ended(now).ok_or_else(unsaid)?;
                Ok(replayed(Outcome::Denied(Box::new(purchase.clone()), Box::new(refusal))))
            }
            // Approved: policy again. Expired, or used by an equal purchase: asked anew.
            _ => self.ask(view, Some(purchase), now),
        }
    }

    /// The voucher ended and nothing was reported: another voucher on the same hold.
    fn reissue(
        &self,
        view: &View,
        purchase: &Purchase,
        now: Timestamp,
    ) -> Result<Effects<Answer>, Stop> {
        // *Nothing reported* is what makes another voucher safe: a seller that still serves the last
        // one would deliver twice on one hold.
        if purchase.serving.is_some() {
            let why = "the seller still serves this purchase";
            return Err(Refusal::new(Code::IdempotencyInFlight, why).retry_after(30).into());
        }
        let owner = view.need::<Owner>(self.owner)?;
        let agent = view.need::<Agent>(self.agent)?;
        let denied = |reason, why: &str| Err(Refusal::denied(reason, why).into());
        let place = place(view, owner, self.ids.tab, &self.settings, now)?;
        let facts = self.facts(view, owner, agent, tab_facts(owner, &place), now)?;
        policy::decide_again(&facts, &self.quote, self.max_price, now).map_err(Stop::Refused)?;
        if let Some(grant) = purchase.grant
            && !view.need::<Grant>(grant)?.covers(self.quote.seller, now)
        {
            let why = "the grant that allowed this purchase was taken back or has ended";
            return denied(Reason::GrantExhausted, why);
        }
        let tab = owner.open_tab.filter(|open| purchase.tab == Some(*open));
        let open = match tab {
            Some(id) => view.need::<Tab>(id)?.state == TabState::Open,
            None => false,
        };
        let bound = purchase.first_expires_at.map(|at| after(at, self.settings.hold_limit_seconds));
        if !open || bound.is_some_and(|bound| now >= bound) {
            return denied(Reason::TabClosed, "the hold is too old, or its tab is closing");
        }
        if now >= self.quote.expires_at {
            return Err(quote_expired().into());
        }
        let mut purchase = purchase.clone();
        purchase.quote = self.quote.id;
        let clock = view.row::<ReportClock>(ReportClock::ID)?.map_or(0, |clock| clock.elapsed_ms);
        purchase.issue(self.ids.voucher, clock, self.settings.report_grace_seconds, now);
        let outcome = Outcome::Held(Box::new(purchase.clone()));
        let mut effects = Effects::answer(Answer { outcome, replayed: false });
        effects.event(
            "purchase.reissued",
            &audience(&purchase),
            json!({ "purchase": purchase.id }),
        );
        effects.put(purchase)?;
        Ok(effects)
    }

    /// Asks the policy, for a new purchase or one that holds nothing.
    fn ask(
        &self,
        view: &View,
        known: Option<&Purchase>,
        now: Timestamp,
    ) -> Result<Effects<Answer>, Stop> {
        if now >= self.quote.expires_at {
            return Err(quote_expired().into());
        }
        let mut purchase = match known {
            Some(purchase) => purchase.clone(),
            None => Purchase::new(
                self.ids.purchase,
                self.owner,
                self.agent,
                &self.request_id,
                &self.quote,
                now,
            ),
        };
        purchase.quote = self.quote.id;
        purchase.updated_at = now;
        let approval = self.live_approval(view, &purchase, now)?;
        let weighed = self.weigh(view, approval.is_some(), now)?;
        let mut effects = match weighed.decision {
            Decision::Deny(refusal) => deny(purchase, refusal)?,
            Decision::NeedsApproval(why) => self.ask_owner(purchase, why, view, now)?,
            Decision::Allow(caps) => {
                let chosen = Chosen {
                    approval: approval.filter(|_| caps.approval),
                    grant: weighed.grant.filter(|_| caps.grant).map(|(grant, _)| grant),
                    accounts: weighed.accounts,
                    budgets: weighed.budgets,
                    day: weighed.day,
                };
                self.hold(view, purchase, weighed.place, caps, chosen, now)?
            }
        };
        self.count(&mut effects, view, view.row::<RateWindow>(self.agent)?, now)?;
        Ok(effects)
    }

    /// Counts the attempt in the rate window; an attempt that the rate itself refused is not
    /// counted, or a loop would never get out of it.
    fn count(
        &self,
        effects: &mut Effects<Answer>,
        view: &View,
        rate: Option<&RateWindow>,
        now: Timestamp,
    ) -> Result<(), Stop> {
        if let Outcome::Denied(_, refusal) = &effects.answer.outcome
            && refusal.reason == Some(Reason::RateLimit)
        {
            return Ok(());
        }
        let limits = |subject| view.row::<Policy>(subject).map(|row| row.and_then(Policy::limits));
        let own = limits(PolicySubject::Agent(self.agent))?.and_then(|limits| limits.rate);
        let limit = match own {
            Some(rate) => Some(rate),
            None => limits(PolicySubject::Owner(self.owner))?.and_then(|limits| limits.rate),
        };
        let Some(limit) = limit else { return Ok(()) };
        let mut window = rate.cloned().unwrap_or_default();
        window.agent = self.agent.to_string();
        window.times.push(now);
        let most = usize::try_from(limit.count).unwrap_or(usize::MAX);
        let excess = window.times.len().saturating_sub(most);
        window.times.drain(..excess);
        effects.put(window)
    }

    /// The owner's live *yes, this once*. A yes that came as a grant counts through the grant alone:
    /// its sum includes the purchase it answered, and taking the grant back takes the yes back.
    fn live_approval(
        &self,
        view: &View,
        purchase: &Purchase,
        now: Timestamp,
    ) -> Result<Option<Approval>, Stop> {
        let Some(id) = purchase.approval else { return Ok(None) };
        let approval = view.need::<Approval>(id)?;
        let live = approval.state == ApprovalState::Approved
            && approval.grant.is_none()
            && !approval.is_expired(now)
            && approval.binding == binding(self.agent, &self.quote);
        Ok(live.then(|| approval.clone()))
    }

    /// The live grant for this seller with the most room.
    fn live_grant(
        &self,
        view: &View,
        agent: &Agent,
        now: Timestamp,
    ) -> Result<Option<(Grant, Micros)>, Stop> {
        let mut best: Option<(Grant, Micros)> = None;
        for id in &agent.grants {
            let Some(grant) = view.row::<Grant>(id)? else { continue };
            if !grant.covers(self.quote.seller, now) {
                continue;
            }
            let used = view.totals(grant_account(self.agent, *id))?.debits().unwrap_or(Micros::MAX);
            let room = grant.cap_micros.saturating_sub(used);
            if best.as_ref().is_none_or(|(_, most)| room > *most) {
                best = Some((grant.clone(), room));
            }
        }
        Ok(best)
    }

    /// What every decision about this purchase rests on, nothing used and nothing asked yet.
    fn facts<'a>(
        &self,
        view: &'a View,
        owner: &'a Owner,
        agent: &'a Agent,
        tab: TabFacts,
        now: Timestamp,
    ) -> Result<Facts<'a>, Stop> {
        Ok(Facts {
            owner,
            agent,
            owner_policy: view.row::<Policy>(PolicySubject::Owner(self.owner))?,
            agent_policy: view.row::<Policy>(PolicySubject::Agent(self.agent))?,
            tab,
            seller_owns_url: self.seller_owns_url(view, now)?,
            dealing: dealing(view, owner, self.quote.seller, &self.settings)?,
            used: Used::default(),
            budgets: &[],
            asked: &[],
            approved: false,
            grant_room: None,
        })
    }

    fn seller_owns_url(&self, view: &View, now: Timestamp) -> Result<bool, Stop> {
        let Some(seller) = view.row::<Seller>(self.quote.seller)? else { return Ok(false) };
        let origin = self.quote.request.origin();
        let contested = view.row::<OriginHolders>(origin)?.is_some_and(|holders| holders.contested);
        Ok(!contested && seller.has_proved(origin, self.settings.origin_life_seconds, now))
    }

    /// Puts the question to the owner; equal questions collapse into one.
    fn ask_owner(
        &self,
        mut purchase: Purchase,
        why: Refusal,
        view: &View,
        now: Timestamp,
    ) -> Result<Effects<Answer>, Stop> {
        let mut agent = view.need::<Agent>(self.agent)?.clone();
        agent.waiting.retain(|waiting| now < waiting.expires_at);
        let bound = binding(self.agent, &self.quote);
        let equal = agent.waiting.iter().find(|waiting| waiting.binding == bound);
        let known = match equal {
            Some(waiting) => view.row::<Approval>(waiting.approval)?,
            None => None,
        };
        let known = known.filter(|approval| approval.state == ApprovalState::Waiting).cloned();
        let new = known.is_none();
        let most = self.settings.approvals_waiting;
        if new && agent.waiting.len() >= usize::try_from(most).unwrap_or(usize::MAX) {
            let why = format!("{most} purchases of this agent wait for their owner already");
            let refusal = Refusal::denied(Reason::RateLimit, why).retry_after(60);
            return deny(purchase, refusal);
        }
        let approval = known.unwrap_or_else(|| self.question(&purchase, &why, &bound, now));
        purchase.state = PurchaseState::Waiting;
        purchase.refusal = Some(why);
        purchase.approval = Some(approval.id);
        let outcome = Outcome::Waiting(Box::new(purchase.clone()), Box::new(approval.clone()));
        let mut effects = Effects::answer(Answer { outcome, replayed: false });
        effects.bind(purchase.id);
        if new {
            let waiting =
                Waiting { approval: approval.id, binding: bound, expires_at: approval.expires_at };
            agent.waiting.push(waiting);
            let data = json!({ "approval": approval.id, "purchase": purchase.id,
                "amount_micros": purchase.price_micros, "why": approval.why });
            effects.event("approval.waiting", &inside(&purchase), data);
            effects.put(approval)?;
            effects.put(agent)?;
        }
        effects.put(purchase)?;
        Ok(effects)
    }

    fn question(
        &self,
        purchase: &Purchase,
        why: &Refusal,
        bound: &str,
        now: Timestamp,
    ) -> Approval {
        Approval {
            id: self.ids.approval,
            owner: self.owner,
            agent: self.agent,
            purchase: purchase.id,
            binding: bound.to_owned(),
            seller: purchase.seller,
            listing: purchase.listing.clone(),
            method: purchase.request.method.clone(),
            url: purchase.request.url.clone(),
            amount_micros: purchase.price_micros,
            currency: purchase.currency,
            why: why.detail.clone(),
            reason: why.reason,
            state: ApprovalState::Waiting,
            created_at: now,
            expires_at: after(now, self.settings.approval_ttl_seconds),
            decided_at: None,
            grant: None,
            version: 1,
        }
    }

    fn hold(
        &self,
        view: &View,
        mut purchase: Purchase,
        mut place: Place,
        caps: Caps,
        chosen: Chosen,
        now: Timestamp,
    ) -> Result<Effects<Answer>, Stop> {
        let mut owner = view.need::<Owner>(self.owner)?.clone();
        let seller = view.need::<Seller>(self.quote.seller)?;
        let clock = view.row::<ReportClock>(ReportClock::ID)?.map_or(0, |clock| clock.elapsed_ms);
        place.tab.pending_holds = place.tab.pending_holds.saturating_add(1);
        place.tab.used_at = now;
        purchase.state = PurchaseState::Held;
        purchase.refusal = None;
        purchase.tab = Some(place.tab.id);
        purchase.day = Some(owner.zone_at(now).day(now));
        purchase.hold = Some(self.ids.hold);
        purchase.commission_ppm = seller.commission_ppm;
        purchase.grant = chosen.grant.as_ref().map(|grant| grant.id);
        purchase.first_expires_at = None;
        purchase.serving = None;
        purchase.issue(self.ids.voucher, clock, self.settings.report_grace_seconds, now);
        let legs = legs(&purchase, place.tab.owed(), &caps, &chosen)?;
        let outcome = Outcome::Held(Box::new(purchase.clone()));
        let mut effects = Effects::answer(Answer { outcome, replayed: false });
        effects.bind(purchase.id);
        let new_tab = place.new;
        place.record(&mut effects, &mut owner, self.ids.carry)?;
        effects.op(Op::Hold { id: self.ids.hold, cause: Cause::TabLine, legs });
        if new_tab {
            effects.put(owner)?;
        }
        if let Some(mut approval) = chosen.approval {
            approval.state = ApprovalState::Consumed;
            approval.version = approval.version.saturating_add(1);
            effects.put(approval)?;
        }
        let data = json!({ "purchase": purchase.id, "amount_micros": purchase.price_micros });
        effects.event("purchase.held", &audience(&purchase), data);
        effects.put(purchase)?;
        Ok(effects)
    }
}

/// What an allowed purchase draws on.
pub(crate) struct Chosen {
    pub(crate) approval: Option<Approval>,
    pub(crate) grant: Option<Grant>,
    pub(crate) accounts: [AccountId; 4],
    pub(crate) budgets: Vec<Budget>,
    pub(crate) day: Date,
}

fn quote_expired() -> Refusal {
    Refusal::new(Code::QuoteExpired, "the quote has expired")
        .next("ask the seller for a fresh quote")
}

/// Who may hear why a purchase did not happen: no seller, since the numbers are the owner's.
fn inside(purchase: &Purchase) -> [&dyn std::fmt::Display; 2] {
    [&purchase.owner, &purchase.agent]
}

/// Who may hear of a purchase.
pub(crate) fn audience(purchase: &Purchase) -> [&dyn std::fmt::Display; 3] {
    [&purchase.owner, &purchase.agent, &purchase.seller]
}

pub(crate) fn grant_account(agent: AgentId, grant: GrantId) -> AccountId {
    Account::Limit(Subject::Agent(agent), Window::Grant(grant)).usd()
}

pub(crate) fn tab_facts(owner: &Owner, place: &Place) -> TabFacts {
    match place.tab.state {
        _ if owner.frozen_tab.is_some() => TabFacts::Frozen,
        TabState::Frozen => TabFacts::Frozen,
        TabState::Open => TabFacts::Open(place.open),
        TabState::Closing | TabState::Closed | TabState::WrittenOff | TabState::PaidOff => {
            TabFacts::Closed
        }
    }
}

pub(crate) fn used(view: &View, accounts: [AccountId; 4]) -> Result<Used, Stop> {
    let used = |account| view.totals(account).map(|totals| totals.debits().unwrap_or(Micros::MAX));
    let [owner_session, owner_day, agent_session, agent_day] = accounts;
    Ok(Used {
        owner_session: used(owner_session)?,
        owner_day: used(owner_day)?,
        agent_session: used(agent_session)?,
        agent_day: used(agent_day)?,
    })
}

/// Names the policies and the accounts of every budget that a purchase meets.
pub(crate) fn touch_budgets(
    touches: &mut Touches,
    view: &View,
    parties: (OwnerId, AgentId, SellerId),
    day: Date,
) {
    let (owner, agent) = (PolicySubject::Owner(parties.0), PolicySubject::Agent(parties.1));
    touches.row::<Policy>(owner);
    touches.row::<Policy>(agent);
    let (owner, agent) = (view.peek::<Policy>(owner), view.peek::<Policy>(agent));
    for budget in policy::budgets(owner, agent, parties, day) {
        touches.account(budget.account);
    }
}

/// The budgets that a purchase meets, and what was used under each.
pub(crate) fn budgets(
    view: &View,
    parties: (OwnerId, AgentId, SellerId),
    day: Date,
) -> Result<Vec<(Budget, Micros)>, Stop> {
    let owner = view.row::<Policy>(PolicySubject::Owner(parties.0))?;
    let agent = view.row::<Policy>(PolicySubject::Agent(parties.1))?;
    let found = policy::budgets(owner, agent, parties, day).into_iter();
    let with_use = |budget: Budget| {
        let used = view.totals(budget.account)?.debits().unwrap_or(Micros::MAX);
        Ok((budget, used))
    };
    found.map(with_use).collect()
}

/// The chain of a tab line: what the seller earns, the commission, and every cap it counts under.
/// The same order is used when the hold is posted.
pub(crate) fn legs(
    purchase: &Purchase,
    owed: AccountId,
    caps: &Caps,
    chosen: &Chosen,
) -> Result<Vec<Leg>, Stop> {
    let price = purchase.price_micros;
    let (earned, commission) = split(price, purchase.commission_ppm)?;
    let accrued = Account::SellerAccrued(purchase.seller).usd();
    let memo = Account::MemoDay(chosen.day).usd();
    let mut legs = Vec::with_capacity(chosen.budgets.len().saturating_add(7));
    for (credit, amount) in [(accrued, earned), (Account::PlatformRevenue.usd(), commission)] {
        if !amount.is_zero() {
            legs.push(Leg::new(owed, credit, amount).within(caps.tab));
        }
    }
    let rooms = [caps.owner_session, caps.owner_day, caps.agent_session, caps.agent_day];
    for (account, room) in chosen.accounts.into_iter().zip(rooms) {
        #[cfg(feature = "planted")]
        if account == chosen.accounts[1] && crate::planted::on(crate::planted::Bug::SkipCapLeg) {
            continue;
        }
        legs.push(Leg::new(account, memo, price).within(room));
    }
    for budget in &chosen.budgets {
        legs.push(Leg::new(budget.account, memo, budget.counts(price)).within(budget.cap));
    }
    if let Some(grant) = &chosen.grant {
        legs.push(
            Leg::new(grant_account(purchase.agent, grant.id), memo, price).within(grant.cap_micros),
        );
    }
    Ok(legs)
}

/// What the seller earns of a price, and the commission: `floor(price x ppm / 1 000 000)`.
pub(crate) fn split(price: Micros, ppm: u32) -> Result<(Micros, Micros), Stop> {
    let commission = price.share_ppm(ppm).unwrap_or(Micros::ZERO).min(price);
    let earned = price.checked_sub(commission);
    let earned = earned.ok_or_else(|| Stop::Bug("commission above the price".to_owned()))?;
    Ok((earned, commission))
}

fn deny(mut purchase: Purchase, refusal: Refusal) -> Result<Effects<Answer>, Stop> {
    purchase.state = PurchaseState::Denied;
    purchase.refusal = Some(refusal.clone());
    let data =
        json!({ "purchase": purchase.id, "reason": refusal.reason, "detail": refusal.detail });
    let outcome = Outcome::Denied(Box::new(purchase.clone()), Box::new(refusal));
    let mut effects = Effects::answer(Answer { outcome, replayed: false });
    effects.bind(purchase.id);
    effects.event("purchase.denied", &inside(&purchase), data);
    effects.put(purchase)?;
    Ok(effects)
}
