//! The numbers an operator may set, with the defaults a careful one would choose.
//!
//! `earnest.toml.example` explains each; this is where they are read by the rules.

use serde::{Deserialize, Serialize};

use crate::fee::Schedule;
use crate::money::Micros;

/// Everything the rules take from configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The largest price that is looked at. A typo should not become a debt.
    pub max_price_micros: Micros,
    /// How long a question to the owner waits, and an unused yes counts.
    pub approval_ttl_seconds: i64,
    /// How long a browser that is not used stays signed in.
    pub sign_in_idle_seconds: i64,
    /// How long a browser stays signed in, however much it is used.
    pub sign_in_most_seconds: i64,
    /// How long after a voucher's end a hold waits for the seller's report, in seconds of report
    /// clock. A seller that lost its network for a few minutes still gets paid.
    pub report_grace_seconds: i64,
    /// The longest a hold lives past the first voucher's end: a stream or a re-issue cannot keep
    /// money reserved for ever.
    pub hold_limit_seconds: i64,
    /// After so long without a purchase a session ends and its tab is settled or carried.
    pub idle_seconds: i64,
    /// The credit line of an owner who never paid.
    pub credit_line_start_micros: Micros,
    /// How much of what an owner paid so far is added to the line, in millionths.
    pub credit_line_growth_ppm: u32,
    /// Where the line stops growing by itself.
    pub credit_line_most_micros: Micros,
    /// A tab that owes this is settled.
    pub settle_at_micros: Micros,
    /// A tab that owes less is not settled on its own account: the fee would eat it. Never counts
    /// above half the room.
    pub min_settlement_micros: Micros,
    /// A line older than this is settled whatever the minimum.
    pub exposure_seconds: i64,
    /// A tab whose room is used beyond this share is settled, in millionths.
    pub room_low_ppm: u32,
    /// After a refused or unsendable settlement, how long before the next attempt.
    pub settle_retry_seconds: i64,
    /// Above this, *not charged* needs a person's word beside the evidence.
    pub confirm_not_charged_above_micros: Micros,
    /// What PayPal will probably take.
    pub fee: Schedule,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_price_micros: Micros::constant(10_000_000_000),
            approval_ttl_seconds: 15 * 60,
            sign_in_idle_seconds: 12 * 3600,
            sign_in_most_seconds: 7 * 24 * 3600,
            report_grace_seconds: 15 * 60,
            hold_limit_seconds: 24 * 3600,
            idle_seconds: 30 * 60,
            credit_line_start_micros: Micros::constant(20_000_000),
            credit_line_growth_ppm: 500_000,
            credit_line_most_micros: Micros::constant(500_000_000),
            settle_at_micros: Micros::constant(15_000_000),
            min_settlement_micros: Micros::constant(5_000_000),
            exposure_seconds: 24 * 3600,
            room_low_ppm: 800_000,
            settle_retry_seconds: 15 * 60,
            confirm_not_charged_above_micros: Micros::constant(50_000_000),
            fee: Schedule::default(),
        }
    }
}

impl Settings {
    /// Simulated money: settle small tabs, so that a minute at the keyboard shows the whole road.
    pub fn simulated() -> Self {
        Self {
            min_settlement_micros: Micros::constant(10_000),
            settle_retry_seconds: 5,
            ..Self::default()
        }
    }
}
