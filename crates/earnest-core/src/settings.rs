//! The numbers an operator may set, with the defaults a careful one would choose.
//!
//! `earnest.toml.example` explains each; this is where they are read by the rules.

use serde::{Deserialize, Serialize};

use crate::approval::MAX_WAITING;
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
    /// How long a sign-in link counts.
    pub sign_in_link_seconds: i64,
    /// How many sign-in links are made for one owner in `sign_in_link_seconds`.
    pub sign_in_links: u32,
    /// How many browsers of one owner are signed in; one more ends the oldest.
    pub sign_in_browsers: u32,
    /// How many purchases of one agent wait for its owner.
    pub approvals_waiting: u32,
    /// How many endpoints for outgoing webhooks one principal has.
    pub webhook_endpoints: u32,
    /// How many deliveries of outgoing webhooks wait for one endpoint; what comes beyond is not sent
    /// by itself.
    pub webhook_waiting: u32,
    /// How long a delivery of an outgoing webhook that ended is kept.
    pub webhook_keep_seconds: i64,
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
    /// Whether a PayPal account that pays for one owner gives a line to that one only.
    pub one_owner_per_payer: bool,
    /// Whether a seller needs a payout recipient before it is paid on a tab.
    pub sellers_need_recipient: bool,
    /// How long a seller's proof of an origin counts without being renewed.
    pub origin_life_seconds: i64,
    /// A tab that owes this is settled.
    pub settle_at_micros: Micros,
    /// How much of what an owner paid so far is added to that, in millionths.
    pub settle_growth_ppm: u32,
    /// A tab that owes less is not settled on its own account: the fee would eat it. Never counts
    /// above half the room.
    pub min_settlement_micros: Micros,
    /// How many settlements below the minimum one owner gets in any 24 hours, whoever asks for them:
    /// each costs the operator the fixed part of the fee.
    pub small_settlements_per_day: u32,
    /// A line older than this is settled whatever the minimum.
    pub exposure_seconds: i64,
    /// A tab whose room is used beyond this share is settled, in millionths.
    pub room_low_ppm: u32,
    /// After a refused or unsendable settlement, how long before the next attempt.
    pub settle_retry_seconds: i64,
    /// Above this, *not charged* needs a person's word beside the evidence.
    pub confirm_not_charged_above_micros: Micros,
    /// How many entries of the log a listener to events may have missed before it is told to begin
    /// anew: reading that many to somebody who was away for days costs more than their reading once
    /// what they show.
    pub event_gap_entries: u64,
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
            sign_in_link_seconds: 10 * 60,
            sign_in_links: 10,
            sign_in_browsers: 20,
            approvals_waiting: 20,
            webhook_endpoints: 10,
            webhook_waiting: 20_000,
            webhook_keep_seconds: 30 * 24 * 3600,
            report_grace_seconds: 15 * 60,
            hold_limit_seconds: 24 * 3600,
            idle_seconds: 30 * 60,
            credit_line_start_micros: Micros::constant(20_000_000),
            credit_line_growth_ppm: 500_000,
            credit_line_most_micros: Micros::constant(500_000_000),
            one_owner_per_payer: true,
            sellers_need_recipient: true,
            origin_life_seconds: 7 * 24 * 3600,
            settle_at_micros: Micros::constant(15_000_000),
            settle_growth_ppm: 100_000,
            min_settlement_micros: Micros::constant(5_000_000),
            small_settlements_per_day: 2,
            exposure_seconds: 24 * 3600,
            room_low_ppm: 800_000,
            settle_retry_seconds: 15 * 60,
            confirm_not_charged_above_micros: Micros::constant(50_000_000),
            event_gap_entries: 200_000,
            fee: Schedule::default(),
        }
    }
}

impl Settings {
    /// Whether the numbers fit together: one that contradicts another would be obeyed silently.
    ///
    /// # Errors
    /// One sentence that names the settings.
    pub fn check(&self) -> Result<(), String> {
        let half = self.credit_line_start_micros.share_ppm(500_000).unwrap_or(Micros::MAX);
        let whole = 1_000_000;
        let rules = [
            (
                self.min_settlement_micros <= half,
                "`min_settlement_micros` is above half of `credit_line_start_micros`: a new owner's \
                 tab could not be settled before it is full",
            ),
            (
                self.min_settlement_micros <= self.settle_at_micros,
                "`min_settlement_micros` is above `settle_at_micros`, which would never count",
            ),
            (
                self.credit_line_start_micros <= self.credit_line_most_micros,
                "`credit_line_start_micros` is above `credit_line_most_micros`",
            ),
            (self.room_low_ppm <= whole, "`room_low_ppm` is above 1000000, the whole room"),
            (self.settle_growth_ppm <= whole, "`settle_growth_ppm` is above 1000000, all of it"),
            (self.fee.rate_ppm <= whole, "`fee.rate_ppm` is above 1000000, the whole amount"),
            (
                !self.max_price_micros.is_zero(),
                "`max_price_micros` is zero: nothing could be bought",
            ),
        ];
        let times = [
            ("approval_ttl_seconds", self.approval_ttl_seconds),
            ("sign_in_idle_seconds", self.sign_in_idle_seconds),
            ("sign_in_most_seconds", self.sign_in_most_seconds),
            ("sign_in_link_seconds", self.sign_in_link_seconds),
            ("webhook_keep_seconds", self.webhook_keep_seconds),
            ("report_grace_seconds", self.report_grace_seconds),
            ("hold_limit_seconds", self.hold_limit_seconds),
            ("idle_seconds", self.idle_seconds),
            ("exposure_seconds", self.exposure_seconds),
            ("settle_retry_seconds", self.settle_retry_seconds),
            ("origin_life_seconds", self.origin_life_seconds),
        ];
        if let Some((name, _)) = times.iter().find(|(_, seconds)| *seconds < 1) {
            return Err(format!("`{name}` is less than a second"));
        }
        if let Some((_, why)) = rules.iter().find(|(holds, _)| !holds) {
            return Err((*why).to_owned());
        }
        // Each stands on a row that is read whole.
        let counts = [
            ("sign_in_links", self.sign_in_links, 1_000),
            ("sign_in_browsers", self.sign_in_browsers, 1_000),
            ("approvals_waiting", self.approvals_waiting, MAX_WAITING),
            ("webhook_endpoints", self.webhook_endpoints, 1_000),
            ("webhook_waiting", self.webhook_waiting, 1_000_000),
        ];
        match counts.iter().find(|(_, count, most)| !(1..=*most).contains(count)) {
            Some((name, _, most)) => Err(format!("`{name}` is not between 1 and {most}")),
            None => Ok(()),
        }
    }

    /// Simulated money: settle small tabs, so that a minute at the keyboard shows the whole road; and
    /// ask nobody who he is, since one simulated buyer stands behind every owner.
    pub fn simulated() -> Self {
        Self {
            one_owner_per_payer: false,
            sellers_need_recipient: false,
            min_settlement_micros: Micros::constant(10_000),
            settle_retry_seconds: 5,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_contradict_each_other_are_named() {
        Settings::default().check().unwrap();
        Settings::simulated().check().unwrap();
        let check = |named: &str, change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            let why = settings.check().unwrap_err();
            assert!(why.starts_with(&format!("`{named}`")), "{why}");
        };
        check("min_settlement_micros", |s| {
            s.min_settlement_micros = Micros::constant(10_000_001);
        });
        check("min_settlement_micros", |s| s.settle_at_micros = Micros::constant(4_999_999));
        check("credit_line_start_micros", |s| s.credit_line_most_micros = Micros::constant(1));
        check("room_low_ppm", |s| s.room_low_ppm = 1_000_001);
        check("settle_growth_ppm", |s| s.settle_growth_ppm = 1_000_001);
        check("fee.rate_ppm", |s| s.fee.rate_ppm = 1_000_001);
        check("max_price_micros", |s| s.max_price_micros = Micros::ZERO);
        check("idle_seconds", |s| s.idle_seconds = 0);
        check("report_grace_seconds", |s| s.report_grace_seconds = -1);
        check("sign_in_link_seconds", |s| s.sign_in_link_seconds = 0);
        check("sign_in_links", |s| s.sign_in_links = 0);
        check("approvals_waiting", |s| s.approvals_waiting = MAX_WAITING + 1);
        check("webhook_endpoints", |s| s.webhook_endpoints = 1_001);
    }
}
