//! What a unit touches, as the engine looks at it.

use earnest_core::unit::{Touches, View, rank};

/// Leaves what the view has not.
pub(super) fn only_new(touches: &mut Touches, view: &View) {
    touches.rows.retain(|touch| !view.has_row(&touch.key));
    touches.holds.retain(|id| !view.has_hold(*id));
    touches.accounts.retain(|id| !view.has_account(*id));
}

/// What has to be locked first of it, by the order of ranks.
pub(super) fn lowest_rank(touches: &Touches) -> Option<u8> {
    let rows = touches.rows.iter().map(|touch| touch.rank);
    let holds = touches.holds.iter().map(|_| rank::HOLD);
    let accounts = touches.accounts.iter().map(|_| rank::ACCOUNT);
    rows.chain(holds).chain(accounts).min()
}

/// One of those, for people.
pub(super) fn describe(touches: &Touches, lowest: u8) -> String {
    let row = touches.rows.iter().find(|touch| touch.rank == lowest);
    row.map_or_else(|| "a hold or account".to_owned(), |touch| format!("row {}", touch.key))
}
