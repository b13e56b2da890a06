//! What this process may cost: connections, waits, calls under way. None of it decides about money;
//! what does stands in [`earnest_core::settings`].
//!
//! `earnest.toml.example` explains each.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `[limits]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// How many connections are open at a time; further ones wait to be accepted.
    pub connections: usize,
    /// How many of those one address has, unless it is a proxy or not counted.
    pub connections_per_address: usize,
    /// How long the head of a request may take to arrive; also how long a connection may idle.
    pub head_seconds: u64,
    /// How long a body may take to arrive.
    pub body_seconds: u64,
    /// The largest JSON body.
    pub body_bytes: usize,
    /// How long answers under way may take once Earnest stops.
    pub drain_seconds: u64,
    /// How often a stream of events says that it is alive.
    pub event_heartbeat_seconds: u64,
    /// How many streams of events there are at a time, and never more than half of `connections`;
    /// the operator's are not counted here.
    pub event_streams: usize,
    /// How many of those one owner, agent, seller or operator has.
    pub event_streams_per_principal: usize,
    /// How many of those the agents of one owner have together.
    pub event_streams_per_owner: usize,
    /// How many tries to sign in with what is no link one address has in
    /// `sign_in_attempt_seconds`.
    pub sign_in_attempts: u32,
    /// In how many seconds they are counted.
    pub sign_in_attempt_seconds: i64,
    /// How many PayPal calls of one kind are under way at once.
    pub paypal_calls: usize,
    /// How often PayPal's records are looked through.
    pub paypal_scan_seconds: i64,
    /// How old the last complete look may be before that alarms.
    pub paypal_scan_overdue_seconds: i64,
    /// How long the receiver of an outgoing webhook may take.
    pub webhook_seconds: u64,
    /// How many outgoing webhooks are under way at once.
    pub webhook_calls: usize,
    /// How many of those go to one endpoint.
    pub webhook_calls_per_endpoint: usize,
    /// How many of those are one owner's, seller's or the operator's.
    pub webhook_calls_per_principal: usize,
    /// How many calls of MCP tools are under way at once.
    pub mcp_calls: usize,
    /// How many of those are one agent's.
    pub mcp_calls_per_agent: usize,
    /// How many of those are one owner's agents', together.
    pub mcp_calls_per_owner: usize,
    /// The longest a call of an MCP tool lasts; what takes longer goes on without it.
    pub mcp_call_seconds: u64,
    /// How many purchases over MCP are under way at once, all agents' together.
    pub mcp_purchases: usize,
    /// How many of those are one owner's agents', together.
    pub mcp_purchases_per_owner: usize,
    /// The largest answer of a seller's that is read for an agent.
    pub mcp_answer_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 800,
            connections_per_address: 100,
            head_seconds: 15,
            body_seconds: 20,
            body_bytes: 1024 * 1024,
            drain_seconds: 30,
            event_heartbeat_seconds: 15,
            event_streams: 400,
            event_streams_per_principal: 16,
            event_streams_per_owner: 48,
            sign_in_attempts: 30,
            sign_in_attempt_seconds: 600,
            paypal_calls: 16,
            paypal_scan_seconds: 3_600,
            paypal_scan_overdue_seconds: 12 * 3_600,
            webhook_seconds: 20,
            webhook_calls: 64,
            webhook_calls_per_endpoint: 4,
            webhook_calls_per_principal: 8,
            mcp_calls: 256,
            mcp_calls_per_agent: 32,
            mcp_calls_per_owner: 64,
            mcp_call_seconds: 25,
            mcp_purchases: 64,
            mcp_purchases_per_owner: 32,
            mcp_answer_bytes: 8 * 1024 * 1024,
        }
    }
}

impl Limits {
    /// Whether each is within what makes sense, and none contradicts another.
    ///
    /// # Errors
    /// One sentence that names the setting.
    pub fn check(&self) -> Result<(), String> {
        self.check_bounds()?;
        if self.paypal_scan_overdue_seconds <= self.paypal_scan_seconds {
            let why = "`paypal_scan_overdue_seconds` is not above `paypal_scan_seconds`: each look would \
                 be late";
            return Err(why.to_owned());
        }
        let shares = [
            (
                self.webhook_calls_per_endpoint,
                "webhook_calls_per_endpoint",
                self.webhook_calls,
                "webhook_calls",
            ),
            (
                self.webhook_calls_per_principal,
                "webhook_calls_per_principal",
                self.webhook_calls,
                "webhook_calls",
            ),
            (
                self.event_streams_per_principal,
                "event_streams_per_principal",
                self.event_streams,
                "event_streams",
            ),
            (
                self.event_streams_per_owner,
                "event_streams_per_owner",
                self.event_streams,
                "event_streams",
            ),
            (self.mcp_calls_per_agent, "mcp_calls_per_agent", self.mcp_calls, "mcp_calls"),
            (self.mcp_calls_per_owner, "mcp_calls_per_owner", self.mcp_calls, "mcp_calls"),
            (
                self.mcp_purchases_per_owner,
                "mcp_purchases_per_owner",
                self.mcp_purchases,
                "mcp_purchases",
            ),
        ];
        if let Some((_, part, _, all)) = shares.iter().find(|(part, _, all, _)| part > all) {
            return Err(format!("`{part}` is above `{all}`, and would never count"));
        }
        Ok(())
    }

    /// Whether each is within what makes sense.
    fn check_bounds(&self) -> Result<(), String> {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        // A negative time is no time at all.
        let time = |n: i64| u64::try_from(n).unwrap_or(0);
        let (day, mebibyte) = (24 * 3600, 1024 * 1024);
        let bounds = [
            ("connections", count(self.connections), 1, 1_000_000),
            ("connections_per_address", count(self.connections_per_address), 1, 1_000_000),
            ("head_seconds", self.head_seconds, 1, 3_600),
            ("body_seconds", self.body_seconds, 1, 3_600),
            // Ten reports at once, and a receipt of many lines, have to fit.
            ("body_bytes", count(self.body_bytes), 16 * 1024, 64 * mebibyte),
            ("drain_seconds", self.drain_seconds, 1, 3_600),
            // Proxies close what is silent for longer.
            ("event_heartbeat_seconds", self.event_heartbeat_seconds, 1, 3_600),
            ("event_streams", count(self.event_streams), 1, 1_000_000),
            ("event_streams_per_principal", count(self.event_streams_per_principal), 1, 100_000),
            ("event_streams_per_owner", count(self.event_streams_per_owner), 1, 100_000),
            ("sign_in_attempts", u64::from(self.sign_in_attempts), 1, 1_000_000),
            ("sign_in_attempt_seconds", time(self.sign_in_attempt_seconds), 1, day),
            ("paypal_calls", count(self.paypal_calls), 1, 1_000),
            ("paypal_scan_seconds", time(self.paypal_scan_seconds), 60, day),
            // New books wait six hours for the first one.
            (
                "paypal_scan_overdue_seconds",
                time(self.paypal_scan_overdue_seconds),
                8 * 3_600,
                31 * day,
            ),
            // A claimed delivery is sent again after 60 seconds.
            ("webhook_seconds", self.webhook_seconds, 1, 50),
            ("webhook_calls", count(self.webhook_calls), 1, 1_000),
            ("webhook_calls_per_endpoint", count(self.webhook_calls_per_endpoint), 1, 1_000),
            ("webhook_calls_per_principal", count(self.webhook_calls_per_principal), 1, 1_000),
            ("mcp_calls", count(self.mcp_calls), 1, 100_000),
            ("mcp_calls_per_agent", count(self.mcp_calls_per_agent), 1, 100_000),
            ("mcp_calls_per_owner", count(self.mcp_calls_per_owner), 1, 100_000),
            // Clients give up on what takes longer, and then know nothing.
            ("mcp_call_seconds", self.mcp_call_seconds, 1, 25),
            ("mcp_purchases", count(self.mcp_purchases), 1, 100_000),
            ("mcp_purchases_per_owner", count(self.mcp_purchases_per_owner), 1, 100_000),
            ("mcp_answer_bytes", count(self.mcp_answer_bytes), 64 * 1024, 1024 * mebibyte),
        ];
        let wrong = bounds.iter().find(|(_, value, least, most)| !(least..=most).contains(&value));
        match wrong {
            Some((name, _, least, most)) => {
                Err(format!("`{name}` is not between {least} and {most}"))
            }
            None => Ok(()),
        }
    }

    /// How long the receiver of an outgoing webhook may take.
    pub fn webhook_timeout(&self) -> Duration {
        Duration::from_secs(self.webhook_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_out_of_bounds_is_named() {
        Limits::default().check().unwrap();
        let check = |named: &str, change: fn(&mut Limits)| {
            let mut limits = Limits::default();
            change(&mut limits);
            let why = limits.check().unwrap_err();
            assert!(why.starts_with(&format!("`{named}`")), "{why}");
        };
        check("connections", |l| l.connections = 0);
        check("head_seconds", |l| l.head_seconds = 3_601);
        check("sign_in_attempt_seconds", |l| l.sign_in_attempt_seconds = -1);
        check("paypal_scan_overdue_seconds", |l| l.paypal_scan_overdue_seconds = 60);
        check("paypal_scan_overdue_seconds", |l| l.paypal_scan_seconds = 12 * 3_600);
        check("webhook_seconds", |l| l.webhook_seconds = 51);
        check("webhook_calls_per_endpoint", |l| l.webhook_calls = 3);
        check("webhook_calls_per_principal", |l| l.webhook_calls = 7);
        check("event_streams_per_principal", |l| l.event_streams = 15);
        check("event_streams_per_owner", |l| l.event_streams_per_owner = 401);
        check("mcp_calls_per_agent", |l| l.mcp_calls_per_agent = 257);
        check("mcp_calls_per_owner", |l| l.mcp_calls_per_owner = 257);
        check("mcp_purchases_per_owner", |l| l.mcp_purchases = 31);
        check("mcp_call_seconds", |l| l.mcp_call_seconds = 26);
    }
}
