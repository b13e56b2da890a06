//! After a restore: what may not be done until it is known what happened since the backup.
//!
//! Books that were restored do not know what was bought, settled or revoked between the backup and
//! the loss. While they are quarantined, reports are taken in and PayPal is only read: no voucher is
//! issued, nothing is sent or settled, no hold is given up. Lifting needs PayPal's own records,
//! complete past the restore, or a person who says why it goes without.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::id::{AgentId, IntentId};
use crate::intent::{Intent, IntentState, Purpose};
use crate::party::Agent;
use crate::problem::{Code, Refusal};
use crate::time::Timestamp;
use crate::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};

/// The copy that the books were restored from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// When it was taken.
    pub taken_at: Timestamp,
    /// The last entry of its log.
    pub seq: u64,
    /// The hash of the chain up to there, in hex.
    pub hash: String,
    /// The epoch of the installation then.
    pub epoch: String,
}

/// How far PayPal's records were read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// When every record up to the restore had been read and booked, in a report that was complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_at: Option<Timestamp>,
    /// How many records were looked at in the last reading.
    pub records: u64,
    /// How many of them could not be explained.
    pub unexplained: u64,
    /// Those of them, the first [`MOST_UNEXPLAINED`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<Unexplained>,
    /// When to read again, while it is not complete or does not explain everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// What the last reading said, in one sentence.
    pub said: String,
}

impl Import {
    /// Whether the records were read to the end and everything in them is explained.
    pub const fn explains_all(&self) -> bool {
        self.complete_at.is_some() && self.unexplained == 0
    }
}

/// The most records that are listed as not explained.
pub const MOST_UNEXPLAINED: usize = 100;

/// A record of PayPal's that nobody could explain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unexplained {
    /// PayPal's id of the transaction.
    pub transaction: String,
    /// PayPal's code for what it is.
    pub code: String,
    /// Why it is not explained.
    pub why: String,
}

/// The end of a quarantine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifted {
    /// When.
    pub at: Timestamp,
    /// Why it was lifted though PayPal's records were not complete, or not explained; none where they
    /// were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<String>,
}

/// The quarantine of an installation that was restored. The last one, where it was restored often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// When the books were restored.
    pub restored_at: Timestamp,
    /// The epoch that began then.
    pub epoch: String,
    /// Every epoch that ended, oldest first: what PayPal did in them may be missing here.
    pub ended: Vec<String>,
    /// The copy.
    pub backup: Backup,
    /// When the oldest copy that these books were ever restored from was taken.
    pub unsure_since: Timestamp,
    /// How far PayPal's records were read.
    pub import: Import,
    /// The end, once it is lifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifted: Option<Lifted>,
}

impl Quarantine {
    /// The one row's id. Of the usual form, so that books that were never restored know without
    /// looking that it is not there.
    pub const ID: &'static str = "qrn_00000000000000000000000000";

    /// Whether it is in force.
    pub const fn holds(&self) -> bool {
        self.lifted.is_none()
    }

    /// What a unit touches that [`Quarantine::refuse`] is asked in.
    pub fn touch(touches: &mut Touches) {
        touches.row::<Self>(Self::ID);
    }

    /// Whether the books are quarantined.
    ///
    /// # Errors
    /// [`Stop::Bug`] without [`Quarantine::touch`].
    pub fn in_force(view: &View) -> Result<bool, Stop> {
        Ok(view.row::<Self>(Self::ID)?.is_some_and(Self::holds))
    }

    /// Refuses while the books are quarantined. Nothing is recorded, not even the key's use.
    ///
    /// # Errors
    /// `quarantined`.
    // INVARIANT: a_quarantine_lets_nothing_out
    pub fn refuse(view: &View) -> Result<(), Stop> {
        if Self::in_force(view)? { Err(Stop::Unheard(Box::new(refusal()))) } else { Ok(()) }
    }
}

/// What is said to everybody meanwhile.
pub fn refusal() -> Refusal {
    let why = "the books were restored from a backup, and PayPal's records are still being read";
    Refusal::new(Code::Quarantined, why).retry_after(300).next("repeat with the same id later")
}

impl Record for Quarantine {
    const KIND: &'static str = "quarantine";
    const RANK: u8 = rank::SHARED;
    fn id(&self) -> String {
        Self::ID.to_owned()
    }
    fn lists(&self) -> Vec<ListEntry> {
        Vec::new()
    }
}

/// Puts restored books in quarantine: the first thing that is recorded in their new epoch.
#[derive(Clone, Debug)]
pub struct BeginQuarantine {
    /// The copy.
    pub backup: Backup,
    /// The epoch that begins.
    pub epoch: String,
}

impl Unit for BeginQuarantine {
    type Answer = Quarantine;

    fn name(&self) -> &'static str {
        "quarantine.begin"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Quarantine>, Stop> {
        let before = view.row::<Quarantine>(Quarantine::ID)?;
        let mut ended = before.map_or_else(Vec::new, |row| row.ended.clone());
        ended.push(self.backup.epoch.clone());
        // A backup that was itself taken in quarantine lacks all that the one before it lacked.
        let unsure = before.map_or(self.backup.taken_at, |row| row.unsure_since);
        let mut backup = self.backup.clone();
        if let Some(row) = before.filter(|row| row.holds()) {
            backup.taken_at = backup.taken_at.min(row.backup.taken_at);
        }
        let row = Quarantine {
            restored_at: now,
            epoch: self.epoch.clone(),
            ended,
            unsure_since: unsure.min(backup.taken_at),
            backup,
            import: Import::default(),
            lifted: None,
        };
        let mut effects = Effects::answer(row.clone());
        let data = json!({ "epoch": row.epoch, "backup": row.backup });
        effects.event("notice.restored", &[], data);
        effects.put(row)?;
        Ok(effects)
    }
}

/// The most rows that one unit names.
pub const MOST: usize = 500;

/// Pauses agents: what their owners revoked or lowered after the backup is lost, so that each has to
/// look at keys and policies, and resume.
#[derive(Clone, Debug)]
pub struct PauseRestored {
    /// At most [`MOST`].
    pub agents: Vec<AgentId>,
}

impl Unit for PauseRestored {
    type Answer = ();

    fn name(&self) -> &'static str {
        "quarantine.pause_agents"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        self.agents.iter().for_each(|id| touches.row::<Agent>(id));
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        for id in &self.agents {
            let mut agent = view.need::<Agent>(id)?.clone();
            if !agent.paused {
                agent.paused = true;
                let data = json!({ "agent": id, "why": "restored" });
                effects.event("agent.paused", &[&agent.owner, id], data);
                effects.put(agent)?;
            }
        }
        Ok(effects)
    }
}

/// Doubts charges that were open in the backup: the life that was lost may have sent them, for the
/// first time or again, until it ended. They are never sent again, only read.
#[derive(Clone, Debug)]
pub struct DoubtCalls {
    /// At most [`MOST`].
    pub intents: Vec<IntentId>,
}

impl Unit for DoubtCalls {
    type Answer = ();

    fn name(&self) -> &'static str {
        "quarantine.doubt_calls"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        self.intents.iter().for_each(|id| touches.row::<Intent>(id));
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let until = view.need::<Quarantine>(Quarantine::ID)?.restored_at;
        let mut effects = Effects::answer(());
        for id in &self.intents {
            let mut intent = view.need::<Intent>(id)?.clone();
            // Only what moves money; a page for a payer dies by itself.
            if !intent.state.is_open() || !matches!(intent.purpose, Purpose::Settlement(_)) {
                continue;
            }
            intent.lost_until = intent.lost_until.max(Some(until));
            intent.lease = None;
            intent.next_at = now;
            if intent.state != IntentState::Pending {
                intent.state = IntentState::Unknown;
            }
            effects.put(intent)?;
        }
        Ok(effects)
    }
}

/// Records how far PayPal's records were read.
#[derive(Clone, Debug)]
pub struct KeepImport {
    /// Of the quarantine that it belongs to.
    pub epoch: String,
    /// How far.
    pub import: Import,
}

impl Unit for KeepImport {
    type Answer = ();

    fn name(&self) -> &'static str {
        "quarantine.import"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        let row = view.need::<Quarantine>(Quarantine::ID)?;
        let done = row.import.explains_all() || !row.holds();
        // What was read to the end stays so, if a later reading of it fails.
        let worse = row.import.complete_at.is_some() && self.import.complete_at.is_none();
        if worse {
            let import = Import { next_at: self.import.next_at, ..row.import.clone() };
            effects.put(Quarantine { import, ..row.clone() })?;
            return Ok(effects);
        }
        if row.epoch != self.epoch || done || row.import == self.import {
            return Ok(effects);
        }
        let found = |import: &Import| (import.complete_at.is_some(), import.unexplained);
        if self.import.complete_at.is_some() && found(&self.import) != found(&row.import) {
            let data = json!({ "records": self.import.records,
                "unexplained": self.import.unexplained });
            effects.event("quarantine.imported", &[], data);
        }
        effects.put(Quarantine { import: self.import.clone(), ..row.clone() })?;
        Ok(effects)
    }
}

/// Lifts the quarantine. Lifting what is lifted changes nothing.
#[derive(Clone, Debug)]
pub struct Lift {
    /// The operator's reason to go without PayPal's complete records, or with some that are not
    /// explained: what is unknown, and why that is borne.
    pub gap: Option<String>,
}

impl Unit for Lift {
    type Answer = Quarantine;

    fn name(&self) -> &'static str {
        "quarantine.lift"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Quarantine>, Stop> {
        let Some(row) = view.row::<Quarantine>(Quarantine::ID)? else {
            return Err(Refusal::new(Code::NotFound, "these books were never restored").into());
        };
        if !row.holds() {
            return Ok(Effects::answer(row.clone()));
        }
        // INVARIANT: a_quarantine_ends_on_complete_records
        let explained = row.import.explains_all();
        if !explained && self.gap.is_none() {
            let why = match row.import.complete_at {
                None => format!("PayPal's records are not read to the end: {}", row.import.said),
                Some(_) => {
                    let many = row.import.unexplained;
                    format!(
                        "{many} of PayPal's records are not explained: see `unexplained_records`"
                    )
                }
            };
            let refusal = Refusal::new(Code::StateConflict, why);
            return Err(refusal.next("wait, or say with `accept_gap` why it goes without").into());
        }
        let gap = self.gap.clone().filter(|_| !explained);
        let row = Quarantine { lifted: Some(Lifted { at: now, gap }), ..row.clone() };
        let mut effects = Effects::answer(row.clone());
        effects.event("notice.quarantine_lifted", &[], json!({ "lifted": row.lifted }));
        effects.put(row)?;
        Ok(effects)
    }
}
