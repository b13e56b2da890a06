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
use crate::time::{Timestamp, after};
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

/// A restore that came before the last one, in the history of these books.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// The copy.
    pub backup: Backup,
    /// When the books were restored from it.
    pub restored_at: Timestamp,
}

/// One of PayPal's records that the last reading could not place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplaced {
    /// PayPal's id of it.
    pub paypal_id: String,
    /// PayPal's code of what kind of movement it is.
    pub code: String,
    /// What moved, with PayPal's sign, where it can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount_micros: Option<i64>,
    /// The invoice that it carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invoice_id: Option<String>,
    /// Why it has no place.
    pub why: String,
}

/// One of PayPal's records that has no place, and that somebody bears: the installation opens without
/// knowing what it is. It counts for nothing in the books, and the reconciliation goes on naming it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedRecord {
    /// The record, as the last reading left it.
    pub record: Unplaced,
    /// Why it is borne, in the operator's words.
    pub reason: String,
    /// Whose key it was.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

impl AcceptedRecord {
    /// Whether a record is that one. Ids are not unique in PayPal's reports: another movement under the
    /// same id is not accepted with it.
    fn covers(&self, record: &Unplaced) -> bool {
        let Unplaced { paypal_id, code, amount_micros, .. } = &self.record;
        (paypal_id, code, amount_micros) == (&record.paypal_id, &record.code, &record.amount_micros)
    }
}

/// The most records without a place that are kept by name; all of them are counted.
pub const MOST_NAMED: usize = 100;

/// How far PayPal's records were read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// When every record up to the restore had been read, in a report that was complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_at: Option<Timestamp>,
    /// How many records were looked at in the last reading.
    pub records: u64,
    /// How many of them could not be read, or have no place in the books.
    pub unexplained: u64,
    /// How many of them are in the books as money that matches nothing: listed in suspense, where they
    /// stay until somebody says where they belong. They keep nothing shut.
    #[serde(default)]
    pub in_suspense: u64,
    /// Those that have no place, the first [`MOST_NAMED`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unplaced: Vec<Unplaced>,
    /// When to read again, while it is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// What the last reading said, in one sentence.
    pub said: String,
}

impl Import {
    /// Whether everything was read, and all of it has its place.
    pub const fn is_complete(&self) -> bool {
        self.complete_at.is_some() && self.unexplained == 0
    }
}

/// The end of a quarantine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifted {
    /// When.
    pub at: Timestamp,
    /// Why it was lifted though PayPal's records were not complete; none where they were.
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
    /// Every epoch that is known to have ended, oldest first: what PayPal did in them may be missing
    /// here. A life that began with another restore of the same copy is not among them.
    pub ended: Vec<String>,
    /// The copy.
    pub backup: Backup,
    /// The restores before this one, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Past>,
    /// How far PayPal's records were read.
    pub import: Import,
    /// Records without a place that somebody bears.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<AcceptedRecord>,
    /// The end, once it is lifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifted: Option<Lifted>,
}

/// How far PayPal's clock and ours may be apart, in seconds; and how late PayPal may run a request.
const CLOCKS_DIFFER_SECONDS: i64 = 3_600;

impl Quarantine {
    /// The one row's id. Of the usual form, so that books that were never restored know without
    /// looking that it is not there.
    pub const ID: &'static str = "qrn_00000000000000000000000000";

    /// Whether a life that was lost may have done something at PayPal at that time, by PayPal's clock.
    /// Where PayPal does not say when, it may as long as the books are quarantined: later anybody may
    /// have made what bears our marks, since receipts show their form.
    pub fn is_unsure_at(&self, at: Option<Timestamp>) -> bool {
        let Some(at) = at else { return self.holds() };
        self.gaps().any(|(from, to)| {
            (after(from, -CLOCKS_DIFFER_SECONDS)..=after(to, CLOCKS_DIFFER_SECONDS)).contains(&at)
        })
    }

    /// Each span of time of which these books know nothing, oldest first: from a copy to the restore
    /// from it.
    fn gaps(&self) -> impl Iterator<Item = (Timestamp, Timestamp)> {
        let past = self.earlier.iter().map(|past| (past.backup.taken_at, past.restored_at));
        past.chain([(self.backup.taken_at, self.restored_at)])
    }

    /// When the books were restored that know nothing of a second of our own clock; none where they
    /// know all of it, or did not exist.
    pub fn lost_at(&self, second: i64) -> Option<Timestamp> {
        let gap = self.gaps().find(|gap| (gap.0.as_second()..=gap.1.as_second()).contains(&second));
        gap.map(|(_, restored_at)| restored_at)
    }

    /// Whether a life that was lost may have done something between two seconds of our own clock.
    pub fn lost_between(&self, from: i64, to: i64) -> bool {
        self.gaps().any(|gap| from <= gap.1.as_second() && to >= gap.0.as_second())
    }

    /// Whether somebody bears that a record has no place.
    pub fn accepts(&self, record: &Unplaced) -> bool {
        self.accepted.iter().any(|known| known.covers(record))
    }

    /// What is left of a reading without what is borne.
    fn without_accepted(&self, mut import: Import) -> Import {
        let before = import.unplaced.len();
        import.unplaced.retain(|record| !self.accepts(record));
        let gone = u64::try_from(before.saturating_sub(import.unplaced.len())).unwrap_or(0);
        import.unexplained = import.unexplained.saturating_sub(gone);
        import
    }

    /// The epoch in which an entry of the log was written. What came of entries is named by it, since
    /// lives that were lost had entries of the same numbers.
    pub fn epoch_of(&self, seq: u64) -> &str {
        let past = self.earlier.iter().map(|past| &past.backup).chain([&self.backup]);
        let ended = past.into_iter().find(|backup| seq <= backup.seq);
        ended.map_or(&self.epoch, |backup| &backup.epoch)
    }

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
    /// Epochs of other books that end with this restore: of those that it replaces.
    pub replaced: Vec<String>,
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
        for epoch in [&self.backup.epoch].into_iter().chain(&self.replaced) {
            if !ended.contains(epoch) && *epoch != self.epoch {
                ended.push(epoch.clone());
            }
        }
        let past =
            |row: &Quarantine| Past { backup: row.backup.clone(), restored_at: row.restored_at };
        let earlier = before
            .map_or_else(Vec::new, |row| row.earlier.iter().cloned().chain([past(row)]).collect());
        // A backup that was itself taken in quarantine lacks all that the one before it lacked.
        let mut backup = self.backup.clone();
        if let Some(row) = before.filter(|row| row.holds()) {
            backup.taken_at = backup.taken_at.min(row.backup.taken_at);
        }
        let row = Quarantine {
            restored_at: now,
            epoch: self.epoch.clone(),
            ended,
            backup,
            earlier,
            import: Import::default(),
            accepted: Vec::new(),
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
        let over = !row.holds() || row.import.is_complete();
        let mut import = self.import.clone();
        // A reading that saw nothing takes nothing back.
        if import.complete_at.is_none() && import.records == 0 {
            let Import { next_at, said, .. } = import;
            import = Import { next_at, said, ..row.import.clone() };
        }
        // Somebody may have accepted what this reading found while it read.
        let import = row.without_accepted(import);
        if row.epoch != self.epoch || over || row.import == import {
            return Ok(effects);
        }
        if import.is_complete() {
            effects.event("quarantine.imported", &[], json!({ "records": import.records }));
        }
        effects.put(Quarantine { import, ..row.clone() })?;
        Ok(effects)
    }
}

/// Accepts records that have no place, by PayPal's ids: each is borne, and does not keep the books shut.
/// Accepting what is accepted changes nothing.
#[derive(Clone, Debug)]
pub struct AcceptRecords {
    /// PayPal's ids of them, [`MOST_NAMED`] at most.
    pub ids: Vec<String>,
    /// Why.
    pub reason: String,
    /// Whose key it is.
    pub by: String,
}

impl Unit for AcceptRecords {
    type Answer = Quarantine;

    fn name(&self) -> &'static str {
        "quarantine.accept"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        Quarantine::touch(&mut touches);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Quarantine>, Stop> {
        let row = restored(view)?;
        let mut accepted = row.accepted.clone();
        for id in &self.ids {
            let of = |record: &&Unplaced| record.paypal_id == *id && row.holds();
            let known = row.accepted.iter().any(|one| one.record.paypal_id == *id);
            let found: Vec<&Unplaced> = row.import.unplaced.iter().filter(of).collect();
            if found.is_empty() && !known {
                if !row.holds() {
                    return Err(Refusal::new(Code::StateConflict, "it is lifted already").into());
                }
                let why = format!("`{id}` is not among the records that have no place");
                let refusal = Refusal::new(Code::StateConflict, why);
                return Err(refusal.next("see `earnest restore status`").into());
            }
            accepted.extend(found.into_iter().map(|record| AcceptedRecord {
                record: record.clone(),
                reason: self.reason.clone(),
                by: self.by.clone(),
                at: now,
            }));
        }
        if accepted.len() == row.accepted.len() {
            return Ok(Effects::answer(row.clone()));
        }
        let data = json!({ "records": self.ids, "reason": self.reason, "by": self.by });
        let row = Quarantine { accepted, ..row.clone() };
        let mut import = row.without_accepted(row.import.clone());
        if import.is_complete() {
            (import.next_at, import.said) = (None, "complete, but for what is borne".to_owned());
        }
        let row = Quarantine { import, ..row };
        let mut effects = Effects::answer(row.clone());
        effects.event("notice.records_accepted", &[], data);
        effects.put(row)?;
        Ok(effects)
    }
}

/// What is known of the restore.
fn restored(view: &View) -> Result<&Quarantine, Stop> {
    let row = view.row::<Quarantine>(Quarantine::ID)?;
    Ok(row.ok_or_else(|| Refusal::new(Code::NotFound, "these books were never restored"))?)
}

/// Lifts the quarantine. Lifting what is lifted changes nothing.
#[derive(Clone, Debug)]
pub struct Lift {
    /// The operator's reason to go without PayPal's complete records: what is unknown, and why that
    /// is borne.
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
        let row = restored(view)?;
        if !row.holds() {
            return Ok(Effects::answer(row.clone()));
        }
        // INVARIANT: a_quarantine_ends_on_complete_records
        let complete = row.import.is_complete();
        if !complete && self.gap.is_none() {
            let many = row.import.unexplained;
            let why = if row.import.complete_at.is_some() {
                format!("{many} of PayPal's records have no place: see `unexplained_records`")
            } else {
                format!("PayPal's records are not read to the end: {}", row.import.said)
            };
            let refusal = Refusal::new(Code::StateConflict, why);
            let next = "see `GET /v1/restore`, accept single records with `POST /v1/restore/accept`, \
                        or say with `accept_gap` why it goes without";
            return Err(refusal.next(next).into());
        }
        let gap = self.gap.clone().filter(|_| !complete);
        let row = Quarantine { lifted: Some(Lifted { at: now, gap }), ..row.clone() };
        let mut effects = Effects::answer(row.clone());
        effects.event("notice.quarantine_lifted", &[], json!({ "lifted": row.lifted }));
        effects.put(row)?;
        Ok(effects)
    }
}
