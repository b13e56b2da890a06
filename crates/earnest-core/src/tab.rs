//! A tab: many lines, one capture.
//!
//! One open tab per owner. It opens by the owner or with the first purchase and ends by the owner
//! or after an idle while; then its lines are settled in one capture, or, where that would cost
//! more than it brings, carried to the owner's next tab. A declined settlement freezes it: no other
//! opens until an attempt succeeds or the operator writes it off.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::id::{OwnerId, SessionId, SettlementId, TabId, TransferId};
use crate::ledger::{Account, AccountId, Cause, Leg, Op, Subject, Window};
use crate::money::Micros;
use crate::party::Owner;
use crate::payer::Standing;
use crate::policy::{OpenTab, Policy, PolicySubject};
use crate::problem::{Code, Reason, Refusal};
use crate::quarantine::Quarantine;
use crate::settings::Settings;
use crate::settlement::key_conflict;
use crate::time::Timestamp;
use crate::treasurer::Advice;
use crate::unit::{Effects, Key, KeyUse, ListEntry, Record, Stop, Touches, Unit, View, rank};

/// Where a tab stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TabState {
    /// Takes purchases.
    Open,
    /// Takes no more purchases; settles once when no hold is pending.
    Closing,
    /// Takes nothing; what it still owes is being settled, or waits to be carried.
    Closed,
    /// A settlement was declined or consent revoked.
    Frozen,
    /// The operator bore what it owed.
    WrittenOff,
    /// What it owed was paid in another way than by a settlement: out of suspense.
    PaidOff,
}

/// Lines of a tab, by number: those after `from` up to and with `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineRange {
    /// Whose lines.
    pub tab: TabId,
    /// The last line before.
    pub from: u64,
    /// The last line.
    pub to: u64,
}

/// A tab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tab {
    /// Its id.
    pub id: TabId,
    /// Whose.
    pub owner: OwnerId,
    /// Where it stands.
    pub state: TabState,
    /// When it was opened.
    pub opened_at: Timestamp,
    /// When something was last bought on it.
    pub used_at: Timestamp,
    /// Whether its owner asked to close it: then the minimum does not count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub close_asked: bool,
    /// Holds not resolved yet.
    pub pending_holds: u64,
    /// Lines posted so far; their numbers count from 1.
    pub lines: u64,
    /// The last line that is in a settlement.
    pub settled_lines: u64,
    /// Lines of earlier tabs that the next settlement lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub carried_lines: Vec<LineRange>,
    /// What earlier settlements left over below a cent, and earlier tabs' such rests.
    pub carry_micros: Micros,
    /// When the oldest line that is in no settlement was posted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsettled_since: Option<Timestamp>,
    /// Settlements so far.
    pub settlements: u64,
    /// What they captured so far, as PayPal said.
    pub captured_micros: Micros,
    /// What PayPal would probably have taken, had each of its lines been captured alone.
    pub fee_if_single_micros: Micros,
    /// The one that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_settlement: Option<SettlementId>,
    /// The last one that came to nothing (not charged, refused), to be attempted again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<SettlementId>,
    /// Not before this another settlement is attempted by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Nothing is owed and nothing can be added any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finished: bool,
    /// What the advisor said last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
    /// When the advisor was last asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice_asked_at: Option<Timestamp>,
    /// The tab that its rest was carried to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried_to: Option<TabId>,
    /// Captures of a life that a restore lost which still have something for this tab: they pay
    /// before anything is settled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

impl Tab {
    /// A new open tab.
    pub fn new(id: TabId, owner: OwnerId, now: Timestamp) -> Self {
        Self {
            id,
            owner,
            state: TabState::Open,
            opened_at: now,
            used_at: now,
            close_asked: false,
            pending_holds: 0,
            lines: 0,
            settled_lines: 0,
            carried_lines: Vec::new(),
            carry_micros: Micros::ZERO,
            unsettled_since: None,
            settlements: 0,
            captured_micros: Micros::ZERO,
            fee_if_single_micros: Micros::ZERO,
            open_settlement: None,
            retry: None,
            not_before: None,
            finished: false,
            advice: None,
            advice_asked_at: None,
            carried_to: None,
            lost: Vec::new(),
        }
    }

    /// The session of this tab: the time it is open.
    pub const fn session(&self) -> SessionId {
        SessionId::from_value(self.id.value())
    }

    /// The account that counts what it owes.
    pub const fn owed(&self) -> AccountId {
        Account::TabOwed(self.id).usd()
    }

    /// The lines that a settlement made now would list.
    pub fn unsettled(&self) -> Vec<LineRange> {
        let own = LineRange { tab: self.id, from: self.settled_lines, to: self.lines };
        let mut ranges = self.carried_lines.clone();
        if own.to > own.from {
            ranges.push(own);
        }
        ranges
    }

    /// Counts a line that was just posted and gives it its number; `fee` is what it would cost alone.
    pub(crate) fn post_line(&mut self, fee: Micros, now: Timestamp) -> Result<u64, Stop> {
        self.fee_if_single_micros = add(self.fee_if_single_micros, fee)?;
        self.lines = self.lines.saturating_add(1);
        self.unsettled_since.get_or_insert(now);
        Ok(self.lines)
    }

    /// Frozen no more: open again where it is still its owner's open tab, else closed.
    pub(crate) fn thaw(&mut self, open_tab: Option<TabId>) {
        if self.state == TabState::Frozen {
            let open = open_tab == Some(self.id);
            self.state = if open { TabState::Open } else { TabState::Closed };
        }
    }

    /// One hold less.
    pub fn resolve_hold(&mut self) {
        self.pending_holds = self.pending_holds.saturating_sub(1);
    }
}

impl Record for Tab {
    const KIND: &'static str = "tab";
    const RANK: u8 = rank::TAB;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![ListEntry::new("tabs", self.owner, self.id)];
        // What a treasurer looks at: everything that may still owe something.
        if !self.finished {
            lists.push(ListEntry::new("tabs.live", "", self.id));
        }
        lists
    }
}

/// The operator's credit line for an owner: set by hand, or a small start that grows with what was
/// settled. An owner whose PayPal account pays for others too, or is not told, has none but by hand.
pub fn credit_line(owner: &Owner, settings: &Settings) -> Micros {
    if let Some(line) = owner.credit_line_micros {
        return line;
    }
    if owner.payer != Standing::Own && settings.one_owner_per_payer {
        return Micros::ZERO;
    }
    let growth = owner.settled_micros.share_ppm(settings.credit_line_growth_ppm);
    let line = growth.and_then(|growth| settings.credit_line_start_micros.checked_add(growth));
    line.map_or(settings.credit_line_most_micros, |line| line.min(settings.credit_line_most_micros))
}

/// What a tab may owe: the smaller of the owner's own limit and the operator's line, less what
/// every earlier tab of that owner still owes, pending included, the owner's debt, and what is disputed.
pub fn room(own_limit: Option<Micros>, line: Micros, earlier: Micros) -> Micros {
    own_limit.map_or(line, |limit| limit.min(line)).saturating_sub(earlier)
}

/// The tab that a purchase goes on, and what comes with opening it.
pub(crate) struct Place {
    /// The tab, as it will be when the purchase stands on it.
    pub tab: Tab,
    /// Whether it is new.
    pub new: bool,
    /// Its room.
    pub open: OpenTab,
    /// Earlier tabs to be carried to it, with their rest.
    carry: Vec<(Tab, Micros)>,
}

/// Touches what [`place`] needs: earlier tabs and their accounts, the open tab or the new one and
/// the chain that carries to it.
pub(crate) fn touch_place(
    touches: &mut Touches,
    view: &View,
    owner: OwnerId,
    fresh: TabId,
    carry: TransferId,
) {
    touches.row::<Owner>(owner);
    let Some(row) = view.peek::<Owner>(owner) else { return };
    let tab = row.open_tab.unwrap_or(fresh);
    touches.row::<Tab>(tab);
    touches.account(Account::TabOwed(tab).usd());
    if row.open_tab.is_none() {
        touches.hold(carry);
    }
    for earlier in row.earlier_tabs.iter().chain(&row.frozen_tab) {
        touches.row::<Tab>(earlier);
        touches.account(Account::TabOwed(*earlier).usd());
    }
    touches.row::<Policy>(PolicySubject::Owner(owner));
    touches.account(Account::OwnerDebt(owner).usd());
}

/// Touches every tab of an owner that still counts.
pub(crate) fn touch_tabs(touches: &mut Touches, view: &View, owner: OwnerId) {
    touches.row::<Owner>(owner);
    let Some(row) = view.peek::<Owner>(owner) else { return };
    for tab in row.earlier_tabs.iter().chain(&row.open_tab).chain(&row.frozen_tab) {
        touches.row::<Tab>(tab);
    }
}

/// Another tab of the owner that is frozen: while one is, no purchase passes, whatever became of
/// `but`. Needs [`touch_tabs`].
pub(crate) fn other_frozen(view: &View, owner: &Owner, but: TabId) -> Result<Option<TabId>, Stop> {
    for id in owner.earlier_tabs.iter().chain(&owner.open_tab) {
        if *id != but && view.need::<Tab>(id)?.state == TabState::Frozen {
            return Ok(Some(*id));
        }
    }
    Ok(None)
}

/// The open tab, or the new one with what it takes over.
pub(crate) fn place(
    view: &View,
    owner: &Owner,
    fresh: TabId,
    settings: &Settings,
    now: Timestamp,
) -> Result<Place, Stop> {
    let limits = view.row::<Policy>(PolicySubject::Owner(owner.id))?.and_then(Policy::limits);
    let own_limit = limits.and_then(|limits| limits.tab_limit_micros);
    let line = credit_line(owner, settings);
    // What went back and was not repaid counts like an earlier tab, once the freeze is lifted; what is
    // disputed may go the same way.
    let debt = view.totals(Account::OwnerDebt(owner.id).usd())?.collectible();
    let mut earlier = add(debt, owner.disputed_micros)?;
    let mut carry = Vec::new();
    let mut carried = Micros::ZERO;
    for id in &owner.earlier_tabs {
        let tab = view.need::<Tab>(id)?;
        let totals = view.totals(tab.owed())?;
        let rest = totals.collectible();
        let settled =
            tab.open_settlement.is_none() && tab.retry.is_none() && tab.pending_holds == 0;
        // What it owes is paid by what a lost life captured, where it stands.
        let settled = settled && (tab.lost.is_empty() || rest.is_zero());
        if owner.open_tab.is_none() && settled && tab.state == TabState::Closed {
            carry.push((tab.clone(), rest));
            carried = add(carried, rest)?;
        } else {
            earlier = add(earlier, totals.owed())?;
        }
    }
    let (tab, new) = match owner.open_tab {
        Some(id) => (view.need::<Tab>(id)?.clone(), false),
        None => (Tab::new(fresh, owner.id, now), true),
    };
    let owed = add(view.totals(tab.owed())?.owed(), carried)?;
    let open = OpenTab { owed, room: room(own_limit, line, earlier) };
    Ok(Place { tab, new, open, carry })
}

impl Place {
    /// Writes the tab and, where it is new, the owner's guard and everything carried to it. `chain`
    /// names the carrying transfers.
    pub(crate) fn record<A>(
        mut self,
        effects: &mut Effects<A>,
        owner: &mut Owner,
        chain: TransferId,
    ) -> Result<(), Stop> {
        if self.new {
            let id = self.tab.id;
            owner.open_tab = Some(id);
            let audience = owner.id;
            effects.event("tab.opened", &[&audience], json!({ "tab": id }));
            self.carry_over(effects, chain)?;
            owner
                .earlier_tabs
                .retain(|earlier| self.carry.iter().all(|(tab, _)| tab.id != *earlier));
        }
        effects.put(self.tab)
    }

    /// In the unit that opens the new tab, not checked against room or caps: the debt exists
    /// already and only moves.
    fn carry_over<A>(&mut self, effects: &mut Effects<A>, chain: TransferId) -> Result<(), Stop> {
        let mut legs = Vec::new();
        for (old, rest) in &self.carry {
            if !rest.is_zero() {
                legs.push(Leg::new(self.tab.owed(), old.owed(), *rest));
            }
            self.tab.carried_lines.extend(old.unsettled());
            self.tab.carry_micros = add(self.tab.carry_micros, old.carry_micros)?;
            self.tab.unsettled_since = match (self.tab.unsettled_since, old.unsettled_since) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            let mut old = old.clone();
            old.carried_to = Some(self.tab.id);
            old.finished = true;
            old.settled_lines = old.lines;
            old.carried_lines.clear();
            old.carry_micros = Micros::ZERO;
            old.unsettled_since = None;
            effects.put(old)?;
        }
        if !legs.is_empty() {
            effects.op(Op::Move { id: chain, cause: Cause::Carry, legs });
        }
        Ok(())
    }
}

pub(crate) fn add(a: Micros, b: Micros) -> Result<Micros, Stop> {
    a.checked_add(b)
        .ok_or_else(|| Refusal::new(Code::AmountOutOfRange, "a total would overflow").into())
}

/// The limit accounts of one purchase: the owner's session and day, then the agent's.
pub fn limit_accounts(
    owner: OwnerId,
    agent: crate::id::AgentId,
    session: SessionId,
    day: jiff::civil::Date,
) -> [AccountId; 4] {
    let limit = |subject, window| Account::Limit(subject, window).usd();
    [
        limit(Subject::Owner(owner), Window::Session(session)),
        limit(Subject::Owner(owner), Window::Day(day)),
        limit(Subject::Agent(agent), Window::Session(session)),
        limit(Subject::Agent(agent), Window::Day(day)),
    ]
}

/// Opens a tab by its owner's wish; an open one is given back as it is.
pub struct OpenByOwner {
    /// Whose.
    pub owner: OwnerId,
    /// The id of the tab, if one is opened.
    pub tab: TabId,
    /// The id of the carrying chain, if something is carried.
    pub chain: TransferId,
    /// The operator's numbers.
    pub settings: Settings,
}

impl Unit for OpenByOwner {
    type Answer = Tab;

    fn name(&self) -> &'static str {
        "tab.open"
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        touch_place(&mut touches, view, self.owner, self.tab, self.chain);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Tab>, Stop> {
        // What an older tab owes would be carried away from what was captured for it.
        Quarantine::refuse(view)?;
        let mut owner = view.need::<Owner>(self.owner)?.clone();
        if owner.frozen_tab.is_some() {
            return Err(Refusal::denied(Reason::TabFrozen, "the owner's tab is frozen").into());
        }
        if let Some(why) = &owner.frozen {
            return Err(Refusal::denied(
                Reason::OwnerFrozen,
                format!("the owner is frozen: {why}"),
            )
            .into());
        }
        let place = place(view, &owner, self.tab, &self.settings, now)?;
        let mut effects = Effects::answer(place.tab.clone());
        if place.new {
            place.record(&mut effects, &mut owner, self.chain)?;
            effects.put(owner)?;
        }
        Ok(effects)
    }
}

/// Closes a tab by its owner's wish: no more purchases, settled once when no hold is pending,
/// whatever the minimum.
pub struct CloseByOwner {
    /// Whose.
    pub owner: OwnerId,
    /// Which tab.
    pub tab: TabId,
}

impl Unit for CloseByOwner {
    type Answer = Tab;

    fn name(&self) -> &'static str {
        "tab.close"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Tab>(self.tab);
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<Tab>, Stop> {
        let tab = view.row::<Tab>(self.tab)?.filter(|tab| tab.owner == self.owner);
        let Some(tab) = tab else {
            return Err(Refusal::new(Code::NotFound, "no such tab").into());
        };
        match tab.state {
            TabState::Open => {}
            TabState::Closing if !tab.close_asked => {}
            TabState::Closing | TabState::Closed => return Ok(Effects::answer(tab.clone())),
            TabState::Frozen | TabState::WrittenOff | TabState::PaidOff => {
                return Err(Refusal::new(Code::StateConflict, "the tab is frozen or over").into());
            }
        }
        let mut tab = tab.clone();
        tab.state = TabState::Closing;
        tab.close_asked = true;
        tab.not_before = None;
        let mut effects = Effects::answer(tab.clone());
        effects.event("tab.closing", &[&tab.owner], json!({ "tab": tab.id }));
        effects.put(tab)?;
        Ok(effects)
    }
}

/// The operator bears what a frozen or abandoned tab owes. The owner is frozen and its line set to
/// zero until the operator lifts both.
pub struct WriteOff {
    /// Whose.
    pub owner: OwnerId,
    /// Which tab.
    pub tab: TabId,
    /// The id of the chain.
    pub chain: TransferId,
    /// The operator's name for this one wish; a repeat shows what came of it.
    pub key: Option<Key>,
}

impl Unit for WriteOff {
    type Answer = (Tab, Micros);

    fn name(&self) -> &'static str {
        "tab.write_off"
    }

    fn key(&self) -> Option<Key> {
        self.key.clone()
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        touch_tabs(&mut touches, view, self.owner);
        touches.row::<Tab>(self.tab);
        touches.hold(self.chain);
        touches.account(Account::TabOwed(self.tab).usd());
        touches.account(Account::Losses.usd());
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<(Tab, Micros)>, Stop> {
        let tab = view.row::<Tab>(self.tab)?.filter(|tab| tab.owner == self.owner);
        let Some(tab) = tab else {
            return Err(Refusal::new(Code::NotFound, "no such tab").into());
        };
        match view.key() {
            KeyUse::Other { .. } => return Err(key_conflict().into()),
            // Bound to the amount that was written off then.
            KeyUse::Same { bound: Some(amount) } => {
                let amount = amount.parse().ok().and_then(|micros| Micros::new(micros).ok());
                return Ok(Effects::answer((tab.clone(), amount.unwrap_or(Micros::ZERO))));
            }
            _ => {}
        }
        // PayPal's records may show that it was paid.
        Quarantine::refuse(view)?;
        let owner = view.need::<Owner>(self.owner)?;
        let (tab, mut owner, rest) = over(view, tab, owner, TabState::WrittenOff)?;
        owner.frozen = Some("a tab was written off".to_owned());
        owner.credit_line_micros = Some(Micros::ZERO);
        let mut effects = Effects::answer((tab.clone(), rest));
        effects.bind(rest.get());
        let leg = Leg::new(Account::Losses.usd(), tab.owed(), rest);
        effects.op(Op::Move { id: self.chain, cause: Cause::WriteOff, legs: vec![leg] });
        let data = json!({ "tab": tab.id, "amount_micros": rest });
        effects.event("tab.written_off", &[&tab.owner], data);
        effects.put(tab)?;
        effects.put(owner)?;
        Ok(effects)
    }
}

/// Ends a frozen or closed tab whose whole rest is settled in another way than by a capture; the
/// rest. Needs [`touch_tabs`] and the tab's account.
pub(crate) fn over(
    view: &View,
    tab: &Tab,
    owner: &Owner,
    state: TabState,
) -> Result<(Tab, Owner, Micros), Stop> {
    let conflict = |why: &str| Err(Refusal::new(Code::StateConflict, why).into());
    let ended = matches!(tab.state, TabState::WrittenOff | TabState::PaidOff);
    if !ended && !matches!(tab.state, TabState::Frozen | TabState::Closed) {
        return conflict("the tab is neither frozen nor closed");
    }
    if tab.open_settlement.is_some() || tab.pending_holds > 0 || tab.carried_to.is_some() {
        return conflict("a settlement or a hold of the tab is still open");
    }
    let rest = view.totals(tab.owed())?.collectible();
    if rest.is_zero() {
        return conflict("the tab owes nothing");
    }
    let (mut tab, mut owner) = (tab.clone(), owner.clone());
    tab.state = state;
    tab.finished = true;
    tab.retry = None;
    tab.carry_micros = Micros::ZERO;
    tab.settled_lines = tab.lines;
    tab.carried_lines.clear();
    tab.unsettled_since = None;
    owner.earlier_tabs.retain(|id| *id != tab.id);
    owner.frozen_tab = other_frozen(view, &owner, tab.id)?;
    owner.open_tab = owner.open_tab.filter(|id| *id != tab.id);
    Ok((tab, owner, rest))
}

/// What a purchase is called in the list of a tab's lines.
pub(crate) fn line_entry(tab: TabId, line: u64) -> ListEntry {
    ListEntry::new("tab_lines", tab, format!("{line:012}"))
}
