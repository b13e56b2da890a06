//! When to settle a tab: as seldom as is safe, because every capture costs a fixed fee.
//!
//! Rules only, one sentence each. An advisor may bring a settlement forward, never put one off.
//!
//! Fees fall on the operator, so an owner gets few settlements below the minimum a day, whatever
//! brings them about: a wish, a closed tab, or a limit of the owner's own that leaves little room.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::id::{SettlementId, TabId};
use crate::ledger::Totals;
use crate::model::{ModelCall, NewCall};
use crate::money::{MICROS_PER_CENT, Micros};
use crate::party::{Owner, SmallSettlement};
use crate::policy::Schedule;
use crate::settings::Settings;
use crate::settlement::Settlement;
use crate::tab::{Tab, TabState};
use crate::time::{Timestamp, seconds_between};
use crate::unit::{Effects, Stop, Touches, Unit, View};

/// What to do with a tab now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Plan {
    /// Nothing yet.
    Wait {
        /// Why, in one sentence.
        why: String,
    },
    /// Capture what it owes.
    Settle {
        /// Why, in one sentence.
        why: String,
        /// The floor to the cent.
        amount_micros: Micros,
        /// Whether the tab ends with it.
        ends: bool,
    },
    /// End the tab; its rest waits for the owner's next tab.
    Carry {
        /// Why, in one sentence.
        why: String,
    },
}

fn wait(why: impl Into<String>) -> Plan {
    Plan::Wait { why: why.into() }
}

/// The smallest settlement that is made by itself: the setting, but never above half the room, so
/// that a small line cannot lock a tab for ever.
pub fn minimum(settings: &Settings, room: Micros) -> Micros {
    let half = room.share_ppm(500_000).unwrap_or(Micros::MAX);
    settings.min_settlement_micros.min(half).max(Micros::constant(MICROS_PER_CENT))
}

/// In which time an owner's small settlements are counted, in seconds.
const SMALL_SECONDS: i64 = 24 * 3600;

/// The owner's settlements below the minimum that still count.
fn small(owner: &Owner, now: Timestamp) -> impl Iterator<Item = &SmallSettlement> {
    owner.small_settlements.iter().filter(move |one| seconds_between(one.at, now) < SMALL_SECONDS)
}

/// Counts a settlement that is being made, if it is below the minimum.
pub(crate) fn count_small(
    owner: &mut Owner,
    settlement: &Settlement,
    settings: &Settings,
    now: Timestamp,
) {
    count_small_of(owner, settlement.id, settlement.amount_micros, settings, now);
}

/// The same, by its id and amount.
pub(crate) fn count_small_of(
    owner: &mut Owner,
    id: SettlementId,
    amount: Micros,
    settings: &Settings,
    now: Timestamp,
) {
    owner.small_settlements = small(owner, now).cloned().collect();
    let known = owner.small_settlements.iter().any(|one| one.settlement == id);
    if amount < settings.min_settlement_micros && !known {
        owner.small_settlements.push(SmallSettlement { settlement: id, at: now });
    }
}

/// Takes back the count of a settlement that was declined: PayPal takes no fee for those, and its
/// owner has to be able to try another way to pay.
pub(crate) fn uncount_small(owner: &mut Owner, settlement: SettlementId) {
    owner.small_settlements.retain(|one| one.settlement != settlement);
}

/// What is wished for beside the operator's rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Somebody's explicit wish: it settles below the minimum, as often as settings allow, and on a
    /// frozen tab.
    pub asked: bool,
    /// The times at which the owner's policy wants to be charged.
    pub schedule: Option<Schedule>,
}

/// What an advisor said about a tab. It may bring a settlement forward and never puts one off; the
/// sentence is kept either way. One word is good for one settlement at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// Whether to settle now.
    pub settle: bool,
    /// Why, in one sentence of at most [`MAX_SENTENCE`] characters.
    pub sentence: String,
    /// Who said so: the name of a model.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// How many settlements the tab had when the figures were read that it was given on.
    #[serde(default)]
    pub settlements: u64,
}

/// The longest sentence of an advisor that is kept, in characters.
pub const MAX_SENTENCE: usize = 300;
/// For how long an advice counts: it was given on figures that go on changing.
const ADVICE_SECONDS: i64 = 300;

impl Advice {
    /// Whether it is about the tab as it is now: nothing was settled since its figures were read,
    /// and that is not long ago. An answer may come after a settlement that was made meanwhile.
    pub fn is_fresh(&self, tab: &Tab, now: Timestamp) -> bool {
        // INVARIANT: one_advice_settles_at_most_once
        self.settlements == tab.settlements && seconds_between(self.at, now) < ADVICE_SECONDS
    }
}

/// Keeps what an advisor said about a tab, whatever it said.
#[derive(Clone, Debug)]
pub struct TakeAdvice {
    /// Which tab.
    pub tab: TabId,
    /// What was said.
    pub advice: Advice,
}

impl Unit for TakeAdvice {
    type Answer = ();

    fn name(&self) -> &'static str {
        "treasurer.advice"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Tab>(self.tab);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let mut tab = view.need::<Tab>(self.tab)?.clone();
        let sentence = self.advice.sentence.chars().take(MAX_SENTENCE).collect();
        let advice = Advice { sentence, at: now, ..self.advice.clone() };
        let mut effects = Effects::answer(());
        let data = json!({ "tab": tab.id, "settle": advice.settle, "why": advice.sentence,
            "by": advice.by });
        effects.event("tab.advised", &[&tab.owner], data);
        tab.advice = Some(advice);
        effects.put(tab)?;
        Ok(effects)
    }
}

/// Asks the advisor about a tab: reserves what the question may cost, and notes when it was asked, so
/// that nobody asks again within the interval, whatever comes of it.
#[derive(Clone, Debug)]
pub struct AskAdvice {
    /// Which tab.
    pub tab: TabId,
    /// At most one question in so many seconds.
    pub interval_seconds: i64,
    /// The call.
    pub call: NewCall,
}

impl Unit for AskAdvice {
    /// The call, if it may be made.
    type Answer = Option<ModelCall>;

    fn name(&self) -> &'static str {
        "treasurer.ask"
    }

    fn touches(&self, _: &View, now: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Tab>(self.tab);
        self.call.touch(&mut touches, now);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Option<ModelCall>>, Stop> {
        let mut tab = view.need::<Tab>(self.tab)?.clone();
        let mut effects = Effects::answer(None);
        if !may_ask(&tab, self.interval_seconds, now) {
            return Ok(effects);
        }
        let call = self.call.reserve(view, &mut effects, now)?;
        if call.is_some() {
            tab.advice_asked_at = Some(now);
            effects.put(tab)?;
        }
        Ok(effects.map(|_| call))
    }
}

/// Whether the advisor may be asked about a tab: it goes on, nothing is under way, and the last
/// question is long enough ago.
pub fn may_ask(tab: &Tab, interval_seconds: i64, now: Timestamp) -> bool {
    let since = |at| seconds_between(at, now);
    let asked = tab.advice_asked_at.is_some_and(|at| since(at) < interval_seconds);
    tab.state == TabState::Open && tab.open_settlement.is_none() && !asked
}

/// Decides for one tab of an owner.
pub fn plan(
    tab: &Tab,
    owner: &Owner,
    totals: &Totals,
    room: Micros,
    wish: Wish,
    settings: &Settings,
    now: Timestamp,
) -> Plan {
    let Wish { asked, schedule } = wish;
    if let Some(why) = blocked(tab, asked, now) {
        return wait(why);
    }
    let owed = totals.collectible();
    let amount_micros = owed.floor_to_cent();
    let idle = seconds_between(tab.used_at, now) >= settings.idle_seconds;
    let over = matches!(tab.state, TabState::Closing | TabState::Closed);
    let ends = over || (tab.state == TabState::Open && idle && tab.pending_holds == 0);
    if ends && tab.pending_holds > 0 {
        return wait("the tab closes once its last hold is resolved");
    }
    if amount_micros.is_zero() {
        let rest = tab.state != TabState::Closed && ends;
        let why = "the session ended with less than a cent owed".to_owned();
        return if rest { Plan::Carry { why } } else { wait("less than a cent is owed") };
    }
    let settle = |why: String| Plan::Settle { why, amount_micros, ends };
    if tab.retry.is_some() {
        return settle(format!("settling {amount_micros} again: the last attempt was not charged"));
    }
    let exposed = |since| seconds_between(since, now) >= settings.exposure_seconds;
    if tab.unsettled_since.is_some_and(exposed) {
        let hours = settings.exposure_seconds.checked_div(3600).unwrap_or(0);
        let why = format!("settling {owed} because the oldest line is older than {hours} h");
        return settle(why);
    }
    let minimum = minimum(settings, room);
    let reason = if asked {
        Some(format!("settling {amount_micros} because it was asked for"))
    } else if tab.close_asked && ends {
        Some(format!("settling {amount_micros} because the owner closed the tab"))
    } else if owed < minimum {
        None
    } else if ends {
        Some(format!("settling {amount_micros} because the session ended"))
    } else {
        let scheduled = || {
            let since = tab.unsettled_since?;
            let due = schedule?.is_due(since, now, owner.zone_at(now));
            due.then(|| format!("settling {owed} because the owner's schedule says so"))
        };
        let advised = || {
            let advice = tab.advice.as_ref().filter(|it| it.settle && it.is_fresh(tab, now))?;
            Some(format!("settling {owed} because {} advises it", advice.by))
        };
        due(owner, totals, room, owed, settings).or_else(scheduled).or_else(advised)
    };
    // INVARIANT: few_small_settlements_a_day
    let refusal =
        if reason.is_some() { too_small(owner, amount_micros, settings, now) } else { None };
    let leaves = ends && tab.state != TabState::Closed;
    match (reason, refusal) {
        (Some(why), None) => settle(why),
        (_, Some(why)) if leaves => Plan::Carry { why: format!("carrying {owed}: {why}") },
        (_, Some(why)) => wait(why),
        (None, None) if leaves => {
            let why = format!("carrying {owed}: below the {minimum} that is worth a fee");
            Plan::Carry { why }
        }
        (None, None) => wait(format!("{owed} owed; settling at {}", threshold(owner, settings))),
    }
}

/// Why nothing can be done with a tab now, whatever it owes.
fn blocked(tab: &Tab, asked: bool, now: Timestamp) -> Option<&'static str> {
    if tab.open_settlement.is_some() {
        return Some("a settlement is under way");
    }
    if tab.finished {
        return Some("the tab owes nothing any more");
    }
    if tab.state == TabState::Frozen && !asked {
        return Some("the tab is frozen until its owner asks for another attempt");
    }
    if tab.not_before.is_some_and(|at| now < at) && !asked {
        return Some("the last attempt came to nothing and is not repeated yet");
    }
    None
}

/// Why a settlement of so little is not made now: it is below the minimum, and the owner had its
/// share of those.
fn too_small(owner: &Owner, amount: Micros, settings: &Settings, now: Timestamp) -> Option<String> {
    let least = settings.min_settlement_micros;
    let most = settings.small_settlements_per_day;
    let made = small(owner, now).count();
    let spent = usize::try_from(most).is_ok_and(|most| made >= most);
    (amount < least && spent).then(|| {
        let fee = settings.fee.predict(amount);
        format!(
            "a capture of {amount} would cost {fee}, and of those below {least} an owner gets \
             {most} in 24 h"
        )
    })
}

/// What a tab of an owner's may owe until it is settled: the setting, and a part of what the owner
/// ever paid. Whoever pays for much is charged in larger pieces, which cost less; and what a decline
/// would cost stays a part of what came in.
pub fn threshold(owner: &Owner, settings: &Settings) -> Micros {
    let growth = owner.settled_micros.share_ppm(settings.settle_growth_ppm);
    let sum = growth.and_then(|growth| settings.settle_at_micros.checked_add(growth));
    sum.unwrap_or(Micros::MAX)
}

/// Reasons that settle a tab which goes on and owes enough.
fn due(
    owner: &Owner,
    totals: &Totals,
    room: Micros,
    owed: Micros,
    settings: &Settings,
) -> Option<String> {
    let threshold = threshold(owner, settings);
    if owed >= threshold {
        return Some(format!("settling {owed} because it reached {threshold}"));
    }
    let low = room.share_ppm(settings.room_low_ppm).unwrap_or(Micros::MAX);
    if totals.owed() >= low {
        return Some(format!("settling {owed} because {} of {room} is used", totals.owed()));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{OwnerId, Seed, TabId};
    use crate::policy::Every;
    use crate::tab::credit_line;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn tab() -> Tab {
        let seed = Seed { unix_ms: 1, random: 1 };
        let mut tab = Tab::new(TabId::new(seed), OwnerId::new(seed), at(0));
        tab.lines = 3;
        tab.unsettled_since = Some(at(0));
        tab
    }

    fn owner() -> Owner {
        let seed = Seed { unix_ms: 1, random: 1 };
        let zone = crate::time::Zone::default();
        Owner::new(OwnerId::new(seed), "Owner", zone, at(0))
    }

    fn check(change: impl FnOnce(&mut Tab), owed: i64, later: i64, asked: bool) -> &'static str {
        check_wish(change, owed, later, Wish { asked, schedule: None })
    }

    fn check_wish(
        change: impl FnOnce(&mut Tab),
        owed: i64,
        later: i64,
        wish: Wish,
    ) -> &'static str {
        let mut tab = tab();
        change(&mut tab);
        let totals = Totals { debits_posted: Micros::constant(owed), ..Totals::default() };
        let settings = Settings::default();
        let room = Micros::constant(20_000_000);
        let owner = owner();
        match plan(&tab, &owner, &totals, room, wish, &settings, at(later)) {
            Plan::Wait { .. } => "wait",
            Plan::Settle { ends: false, .. } => "settle",
            Plan::Settle { ends: true, .. } => "settle and end",
            Plan::Carry { .. } => "carry",
        }
    }

    #[test]
    fn settles_as_seldom_as_is_safe() {
        assert_eq!(check(|_| (), 950_000, 60, false), "wait");
        assert_eq!(check(|_| (), 950_000, 60, true), "settle");
        assert_eq!(check(|_| (), 15_000_000, 60, false), "settle");
        assert_eq!(check(|_| (), 950_000, 1_800, false), "carry");
        assert_eq!(check(|_| (), 5_000_000, 1_800, false), "settle and end");
        assert_eq!(check(|tab| tab.used_at = at(86_400), 950_000, 86_400, false), "settle");
        assert_eq!(check(|tab| tab.used_at = at(86_400), 9_999, 86_400, false), "wait");
        assert_eq!(check(|tab| tab.pending_holds = 1, 5_000_000, 1_800, false), "wait");
    }

    #[test]
    fn who_paid_for_much_is_charged_in_larger_pieces() {
        let (settings, mut owner) = (Settings::default(), owner());
        owner.settled_micros = Micros::constant(300_000_000);
        assert_eq!(threshold(&owner, &settings).get(), 45_000_000);
        let room = credit_line(&owner, &settings);
        let plan = |owed: i64, room| {
            let totals = Totals { debits_posted: Micros::constant(owed), ..Totals::default() };
            plan(&tab(), &owner, &totals, room, Wish::default(), &settings, at(60))
        };
        assert!(matches!(plan(44_990_000, room), Plan::Wait { .. }));
        assert!(matches!(plan(45_000_000, room), Plan::Settle { .. }));
        // Room that runs low still counts: the owner's own limit, say.
        assert!(matches!(plan(16_000_000, Micros::constant(20_000_000)), Plan::Settle { .. }));
    }

    #[test]
    fn an_end_waits_for_holds_and_ignores_the_minimum_when_asked() {
        let closing = |tab: &mut Tab| {
            tab.state = TabState::Closing;
            tab.close_asked = true;
        };
        assert_eq!(check(closing, 950_000, 60, false), "settle and end");
        assert_eq!(check(closing, 9_999, 60, false), "carry");
        let held = |tab: &mut Tab| {
            closing(tab);
            tab.pending_holds = 1;
        };
        assert_eq!(check(held, 950_000, 60, false), "wait");
    }

    /// 15 January 2027 is a Friday; the tests begin at 08:00 of it.
    #[test]
    fn a_schedule_brings_a_settlement_forward_and_never_puts_one_off() {
        let hour = 3_600;
        let wish = |every, hour| Wish { asked: false, schedule: Some(Schedule { every, hour }) };
        let used = |tab: &mut Tab| tab.used_at = at(3 * 86_400);
        let daily = wish(Every::Day, 18);
        assert_eq!(check_wish(used, 5_000_000, 9 * hour, daily), "wait", "17:00");
        assert_eq!(check_wish(used, 5_000_000, 10 * hour, daily), "settle", "18:00");
        assert_eq!(check_wish(used, 950_000, 10 * hour, daily), "wait", "below the minimum");
        let settled = |tab: &mut Tab| {
            tab.used_at = at(3 * 86_400);
            tab.unsettled_since = Some(at(10 * hour + 1));
        };
        assert_eq!(check_wish(settled, 5_000_000, 12 * hour, daily), "wait", "until tomorrow");
        assert_eq!(check_wish(used, 15_000_000, 1, daily), "settle", "the operator's rules stay");
        let weekly = wish(Every::Week, 0);
        assert_eq!(check_wish(used, 5_000_000, 23 * hour, weekly), "wait", "Saturday");
    }

    #[test]
    fn an_advice_counts_while_it_is_fresh_and_only_to_settle() {
        let advised = |settle, since: i64| {
            move |tab: &mut Tab| {
                let (sentence, by) = ("because".to_owned(), "model".to_owned());
                let at = at(60 - since);
                tab.advice = Some(Advice { settle, sentence, by, at, settlements: 0 });
            }
        };
        let settled_since = |tab: &mut Tab| {
            advised(true, 0)(tab);
            tab.settlements = 1;
        };
        assert_eq!(check(settled_since, 5_000_000, 60, false), "wait", "about another debt");
        assert_eq!(check(advised(true, 0), 5_000_000, 60, false), "settle");
        assert_eq!(check(advised(true, 300), 5_000_000, 60, false), "wait", "stale");
        assert_eq!(check(advised(true, 0), 950_000, 60, false), "wait", "below the minimum");
        assert_eq!(check(advised(false, 0), 15_000_000, 60, false), "settle", "never put off");
    }

    #[test]
    fn a_frozen_tab_moves_only_when_asked() {
        assert_eq!(check(|tab| tab.state = TabState::Frozen, 950_000, 60, false), "wait");
        assert_eq!(check(|tab| tab.state = TabState::Frozen, 950_000, 60, true), "settle");
    }
}
