//! The database, where somebody beside Earnest keeps it from its work: said once while it lasts.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::time::Timestamp;
use crate::unit::{Effects, Record, Stop, Touches, Unit, View, rank};

/// How it stands with the database, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strained {
    /// Who keeps it, in words; none where nobody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Since when it is so.
    pub since: Timestamp,
}

impl Strained {
    /// There is one.
    pub const ID: &'static str = "database";
}

impl Record for Strained {
    const KIND: &'static str = "strained";
    const RANK: u8 = rank::ROW;

    fn id(&self) -> String {
        Self::ID.to_owned()
    }
}

/// Tells of it: an alarm when it begins, a notice when it is over. Every node may look and say the
/// same; it is told once.
#[derive(Clone, Debug)]
pub struct Tell {
    /// Who keeps the database from its work, if anybody.
    pub by: Option<String>,
}

impl Unit for Tell {
    type Answer = ();

    fn name(&self) -> &'static str {
        "database.strained"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Strained>(Strained::ID);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let known = view.row::<Strained>(Strained::ID)?;
        let was = known.is_some_and(|known| known.by.is_some());
        let mut effects = Effects::answer(());
        match &self.by {
            Some(by) if !was => effects.event("alarm.database_held", &[], json!({ "by": by })),
            None if was => effects.event("notice.database_free", &[], json!({})),
            _ => return Ok(effects),
        }
        effects.put(Strained { by: self.by.clone(), since: now })?;
        Ok(effects)
    }
}
