//! What runs by itself, as far as the books say anything of it.

use serde_json::json;

use crate::time::Timestamp;
use crate::unit::{Effects, Stop, Touches, Unit, View};

/// Says that a job died. It is begun again by itself; why it died is in the log.
#[derive(Clone, Debug)]
pub struct JobDied {
    /// Which.
    pub job: &'static str,
    /// On which row, where it goes on without it.
    pub row: Option<String>,
    /// How often it did, never well in between.
    pub times: u32,
}

impl Unit for JobDied {
    type Answer = ();

    fn name(&self) -> &'static str {
        "job.died"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        Touches::new()
    }

    fn decide(&self, _: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        let mut data = json!({ "job": self.job, "times": self.times });
        if let (Some(row), Some(members)) = (&self.row, data.as_object_mut()) {
            members.insert("row".to_owned(), json!(row));
        }
        effects.event("alarm.job_died", &[], data);
        Ok(effects)
    }
}
