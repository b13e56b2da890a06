//! What is over is cleared away.

use std::sync::Arc;

use super::{Delivery, DeliveryState};
use crate::id::DeliveryId;
use crate::settings::Settings;
use crate::time::{Timestamp, after};
use crate::unit::{Effects, Stop, Touches, Unit, View};

/// Clears away a delivery that ended long ago: its attempts, and its place in every list.
#[derive(Clone, Debug)]
pub struct ClearDelivery {
    /// Which.
    pub delivery: DeliveryId,
    /// Numbers the operator set.
    pub settings: Arc<Settings>,
}

impl Unit for ClearDelivery {
    type Answer = ();

    fn name(&self) -> &'static str {
        "hook.clear"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Delivery>(self.delivery);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<()>, Stop> {
        let row = view.need::<Delivery>(self.delivery)?;
        let mut effects = Effects::answer(());
        if row.state != DeliveryState::Waiting
            && !row.cleared
            && now >= after(row.created_at, self.settings.webhook_keep_seconds)
        {
            effects.put(Delivery { cleared: true, attempts: Vec::new(), ..row.clone() })?;
        }
        Ok(effects)
    }
}
