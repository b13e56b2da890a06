//! Holds of PayPal's that ended: what was withheld came back, whole, and nothing is left to explain.
//!
//! Holds for disputes are booked where they are seen (`crate::dispute`); this is for those that are
//! not: general holds, and holds in other currencies.

use std::collections::{BTreeMap, BTreeSet};

use super::{EventKind, Row};
use crate::time::Timestamp;

/// A hold and its release.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    /// The hold: money out.
    pub(super) hold: &'a Row,
    /// The release: as much money in.
    pub(super) release: &'a Row,
}

impl Pair<'_> {
    /// When the first and the last of it began.
    pub(super) fn ends(&self) -> Option<(Timestamp, Timestamp)> {
        let (hold, release) = (self.hold.initiated?, self.release.initiated?);
        Some((hold.min(release), hold.max(release)))
    }
}

/// Which holds a release can end: those of disputes end by releases of disputes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Dispute,
    General,
}

/// Whether a row withholds or releases: its family, and whether it is the hold.
fn part(row: &Row) -> Option<(Family, bool)> {
    let (gross, _) = row.amount.as_ref()?;
    if *gross == 0 || row.fee_micros != 0 || row.status.is_unknown() {
        return None;
    }
    let out = *gross < 0;
    match row.event.kind {
        EventKind::DisputeHold => out.then_some((Family::Dispute, true)),
        EventKind::DisputeRelease => (!out).then_some((Family::Dispute, false)),
        EventKind::HoldOrRelease | EventKind::ReversalOrHold => Some((Family::General, out)),
        _ => None,
    }
}

/// Whether a release ends a hold: the same sum and currency, later, and about the same thing.
// INVARIANT: only_holds_that_net_to_zero_are_explained
fn ends(hold: &Row, release: &Row) -> bool {
    let (Some((out, held_in)), Some((back, back_in))) = (&hold.amount, &release.amount) else {
        return false;
    };
    let whole = out.checked_add(*back) == Some(0) && held_in == back_in;
    // A pair without times could not be kept together when the window moves on.
    let later = matches!((hold.initiated, release.initiated), (Some(a), Some(b)) if a <= b);
    let names_it = release.reference.as_deref() == Some(hold.id.as_str());
    let same = hold.reference.is_some() && hold.reference == release.reference;
    whole && later && (names_it || same)
}

/// Takes out of `rows` each hold together with the release that ended it.
pub(super) fn take<'a>(rows: &mut Vec<&'a Row>, awaited: &dyn Fn(&Row) -> bool) -> Vec<Pair<'a>> {
    let mut holds: BTreeMap<(Option<Timestamp>, &str), (Family, &'a Row)> = BTreeMap::new();
    let mut releases: BTreeMap<(Option<Timestamp>, &str), (Family, &'a Row)> = BTreeMap::new();
    for row in rows.iter().copied().filter(|row| !awaited(row)) {
        if let Some((family, is_hold)) = part(row) {
            let side = if is_hold { &mut holds } else { &mut releases };
            side.insert((row.initiated, &row.id), (family, row));
        }
    }
    let mut pairs = Vec::new();
    // The oldest release ends the oldest hold that it can.
    for (family, release) in releases.into_values() {
        let found = holds.iter().find(|(_, (of, hold))| *of == family && ends(hold, release));
        let Some(key) = found.map(|(key, _)| *key) else { continue };
        if let Some((_, hold)) = holds.remove(&key) {
            pairs.push(Pair { hold, release });
        }
    }
    let halves = pairs.iter().flat_map(|pair: &Pair<'_>| [&pair.hold.id, &pair.release.id]);
    let taken: BTreeSet<&String> = halves.collect();
    rows.retain(|row| !taken.contains(&row.id));
    pairs
}
