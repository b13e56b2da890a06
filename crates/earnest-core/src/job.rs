//! What runs by itself, as far as the books say anything of it.

use serde_json::json;

use crate::time::Timestamp;
use crate::unit::{Effects, Stop, Touches, Unit, View};

/// Says that a job died. It is begun again by itself; why it died is in the log.
#[derive(Clone, Copy, Debug)]
pub struct JobDied {
    /// Which.
    pub job: &'static str,
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
        effects.event("alarm.job_died", &[], json!({ "job": self.job, "times": self.times }));
        Ok(effects)
    }
}
