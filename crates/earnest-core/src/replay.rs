//! Lines of an owner, played through the treasurer's rules again, beside the cheapest settlements
//! that anybody who knew all lines beforehand could have made.
//!
//! The play is the real [`plan`] with the real settings; captures complete at once and nothing is
//! declined, so that only the rules are measured. What the [`optimum`] is bound by stands there.

mod optimum;

use serde::{Deserialize, Serialize};

use crate::id::{OwnerId, SettlementId, TabId};
use crate::ledger::Totals;
use crate::money::Micros;
use crate::party::Owner;
use crate::payer::Standing;
use crate::settings::Settings;
use crate::tab::{Tab, TabState, credit_line, room};
use crate::time::{Timestamp, Zone, after};
use crate::treasurer::{Plan, Wish, count_small_of, plan};

pub use optimum::{Ends, cheapest};

/// A line as it was posted on a tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// When it was posted.
    pub at: Timestamp,
    /// Its price.
    pub amount_micros: Micros,
}

/// The lines of one owner, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    /// What kind of use it is; figures are summed by it.
    pub shape: String,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A capture that was made in the play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture {
    /// When.
    pub at: Timestamp,
    /// How much, in whole cents.
    pub amount: Micros,
    /// What PayPal takes of it, by the fee schedule.
    pub fee: Micros,
}

/// What came of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// The lines that had room on the tab.
    pub taken: Vec<Line>,
    /// How many lines had none, and would have been refused.
    pub refused: u64,
    /// The captures, in order.
    pub captures: Vec<Capture>,
    /// Below a cent, never captured.
    pub rest: Micros,
}

impl Played {
    /// The sum of the fees.
    pub fn fees(&self) -> Micros {
        sum(self.captures.iter().map(|capture| capture.fee))
    }
}

fn sum(amounts: impl Iterator<Item = Micros>) -> Micros {
    amounts.fold(Micros::ZERO, plus)
}

/// Past the largest amount there is, figures of a replay stand still; no money moves by them.
fn plus(a: Micros, b: Micros) -> Micros {
    a.checked_add(b).unwrap_or(Micros::MAX)
}

/// Figures of one or many recordings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// How many recordings.
    pub tabs: u64,
    /// Lines that had room.
    pub lines: u64,
    /// Lines that had none.
    pub refused: u64,
    /// What the lines cost.
    pub lines_micros: Micros,
    /// The treasurer's captures.
    pub captures: u64,
    /// The treasurer's fees.
    pub fees_micros: Micros,
    /// Captures of the optimum.
    pub optimum_captures: u64,
    /// Fees of the optimum.
    pub optimum_fees_micros: Micros,
    /// Fees of an optimum that need not settle at the end of a session.
    pub unbound_fees_micros: Micros,
}

impl Figures {
    /// Plays one recording, and finds its optimum.
    pub fn of(recording: &Recording, settings: &Settings) -> Self {
        let played = play(recording, settings);
        let bound = cheapest(&played.taken, settings, Ends::Settle);
        let unbound = cheapest(&played.taken, settings, Ends::Ignore);
        Self {
            tabs: 1,
            lines: count(played.taken.len()),
            refused: played.refused,
            lines_micros: sum(played.taken.iter().map(|line| line.amount_micros)),
            captures: count(played.captures.len()),
            fees_micros: played.fees(),
            optimum_captures: bound.captures,
            optimum_fees_micros: bound.fees,
            unbound_fees_micros: unbound.fees,
        }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            tabs: self.tabs.saturating_add(other.tabs),
            lines: self.lines.saturating_add(other.lines),
            refused: self.refused.saturating_add(other.refused),
            lines_micros: plus(self.lines_micros, other.lines_micros),
            captures: self.captures.saturating_add(other.captures),
            fees_micros: plus(self.fees_micros, other.fees_micros),
            optimum_captures: self.optimum_captures.saturating_add(other.optimum_captures),
            optimum_fees_micros: plus(self.optimum_fees_micros, other.optimum_fees_micros),
            unbound_fees_micros: plus(self.unbound_fees_micros, other.unbound_fees_micros),
        }
    }

    /// The treasurer's fees over the optimum's, in millionths; 1 000 000 where there are none.
    pub fn ratio_ppm(&self) -> u64 {
        ratio(self.fees_micros, self.optimum_fees_micros)
    }

    /// The treasurer's fees over those of an optimum that ignores the ends of sessions.
    pub fn unbound_ratio_ppm(&self) -> u64 {
        ratio(self.fees_micros, self.unbound_fees_micros)
    }
}

fn ratio(fees: Micros, least: Micros) -> u64 {
    let part = i128::from(fees.get()).saturating_mul(1_000_000);
    let ratio = part.checked_div(i128::from(least.get())).unwrap_or(1_000_000);
    u64::try_from(ratio).unwrap_or(u64::MAX)
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// What may be owed when so much was captured before.
fn room_after(captured: Micros, settings: &Settings) -> Micros {
    let mut owner = owner();
    owner.settled_micros = captured;
    room(None, credit_line(&owner, settings), Micros::ZERO)
}

/// An owner whose account pays for nobody else, and who set no limit of its own.
fn owner() -> Owner {
    let mut owner =
        Owner::new(OwnerId::from_value(1), "replay", Zone::utc(), Timestamp::UNIX_EPOCH);
    owner.payer = Standing::Own;
    owner
}

/// Plays a recording through the treasurer's rules.
pub fn play(recording: &Recording, settings: &Settings) -> Played {
    let mut player = Player {
        settings,
        owner: owner(),
        tab: None,
        totals: Totals::default(),
        seen: Timestamp::MIN,
        made: 0,
        played: Played::default(),
    };
    for line in &recording.lines {
        player.pass(line.at);
        player.take(*line);
    }
    player.pass(Timestamp::MAX);
    player.played.rest = player.totals.collectible();
    player.played
}

struct Player<'a> {
    settings: &'a Settings,
    owner: Owner,
    /// The newest tab; whatever an earlier one owed was carried to it.
    tab: Option<Tab>,
    totals: Totals,
    /// When the treasurer last looked.
    seen: Timestamp,
    /// Tabs and settlements made so far: what the next one is called.
    made: u128,
    played: Played,
}

impl Player<'_> {
    /// Lets time pass: the treasurer looks whenever time alone can change what it says.
    fn pass(&mut self, until: Timestamp) {
        while let Some(at) = self.next_look().filter(|at| *at <= until) {
            self.look(at);
        }
    }

    fn next_look(&self) -> Option<Timestamp> {
        let tab = self.tab.as_ref()?;
        let idle = after(tab.used_at, self.settings.idle_seconds);
        let idle = Some(idle).filter(|_| tab.state == TabState::Open);
        let exposed = tab.unsettled_since.map(|at| after(at, self.settings.exposure_seconds));
        [idle, exposed].into_iter().flatten().filter(|at| *at > self.seen).min()
    }

    fn look(&mut self, now: Timestamp) {
        self.seen = now;
        let room = room_after(self.owner.settled_micros, self.settings);
        let Some(tab) = &mut self.tab else { return };
        let wish = Wish::default();
        match plan(tab, &self.owner, &self.totals, room, wish, self.settings, now) {
            Plan::Wait { .. } => {}
            Plan::Carry { .. } => tab.state = TabState::Closed,
            Plan::Settle { amount_micros, ends, .. } => {
                tab.unsettled_since = None;
                if ends {
                    tab.state = TabState::Closed;
                }
                self.made = self.made.saturating_add(1);
                let id = SettlementId::from_value(self.made);
                count_small_of(&mut self.owner, id, amount_micros, self.settings, now);
                self.owner.settled_micros = plus(self.owner.settled_micros, amount_micros);
                self.totals.credits_posted = plus(self.totals.credits_posted, amount_micros);
                let fee = self.settings.fee.predict(amount_micros);
                self.played.captures.push(Capture { at: now, amount: amount_micros, fee });
            }
        }
    }

    /// The tab that a line goes on: a new one takes over what the last one owed.
    fn open(&mut self, now: Timestamp) -> Tab {
        match self.tab.take() {
            Some(tab) if tab.state == TabState::Open => tab,
            old => {
                self.made = self.made.saturating_add(1);
                let mut tab = Tab::new(TabId::from_value(self.made), self.owner.id, now);
                tab.unsettled_since = old.and_then(|old| old.unsettled_since);
                let rest = self.totals.collectible();
                self.totals = Totals { debits_posted: rest, ..Totals::default() };
                tab
            }
        }
    }

    fn take(&mut self, line: Line) {
        let room = room_after(self.owner.settled_micros, self.settings);
        let fits = plus(self.totals.collectible(), line.amount_micros) <= room;
        if !fits || line.amount_micros.is_zero() {
            self.played.refused = self.played.refused.saturating_add(1);
            return;
        }
        let mut tab = self.open(line.at);
        tab.used_at = line.at;
        tab.lines = tab.lines.saturating_add(1);
        tab.unsettled_since.get_or_insert(line.at);
        self.tab = Some(tab);
        self.totals.debits_posted = plus(self.totals.debits_posted, line.amount_micros);
        self.played.taken.push(line);
        self.look(line.at);
    }
}
