//! Payers dispute what was captured.

use earnest_core::admin::SetCredit;
use earnest_core::dispute::{Case, Concerned, Stage, TellCase};
use earnest_core::party::Owner;
use earnest_core::reversal::Captured;
use earnest_core::settlement::Settlement;

use super::Life;

impl Life {
    /// A payer disputes, or PayPal decides about that; now and then the operator lifts the freeze at
    /// once.
    pub(super) fn dispute(&mut self) -> String {
        let Some(random) = &mut self.disputing else { return "nobody disputes".to_owned() };
        let captured = |one: &&Settlement| one.is_captured() && one.paypal_capture.is_some();
        let all: Vec<_> = self.seen.rows.settlements.values().filter(captured).cloned().collect();
        let Some(one) = random.recent(&all).cloned() else {
            return "nothing to dispute".to_owned();
        };
        let of = Captured { intent: one.intent, settlement: one.id, owner: one.owner };
        let whose = Concerned { of: Some(of), paid_by: Vec::new() };
        let stage = *random.pick(&[Stage::Open, Stage::Open, Stage::Won, Stage::Lost]).unwrap();
        let lifts = random.one_in(2);
        let id = format!("PP-D-{}", random.below(2));
        let case = Case { id, stage, amount_micros: one.amount_micros, reason: None };
        let capture = one.paypal_capture.clone().unwrap();
        let news = self.world.run(TellCase { capture, whose, case: case.clone() }).unwrap();
        let owner: Owner = self.world.row(one.owner);
        let opened = news && stage == Stage::Open;
        assert!(!opened || owner.frozen.is_some(), "{} goes on buying", one.owner);
        if lifts {
            let lift = SetCredit { owner: one.owner, line: None, unfreeze: true };
            self.world.run(lift).unwrap();
        }
        format!("{} of {} is {stage:?}: {news}", case.id, one.id)
    }
}
