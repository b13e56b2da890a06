//! A purchase: one quote, its funding and its acceptance, on one road from hold to receipt.
//!
//! Denied and waiting purchases are rows too, with reason and numbers. A purchase posts at most
//! once, whatever happens to its holds and vouchers on the way.

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::id::{
    AgentId, ApprovalId, GrantId, OwnerId, PurchaseId, QuoteId, SellerId, TabId, TransferId,
    VoucherId,
};
use crate::money::{Currency, Micros};
use crate::problem::Refusal;
use crate::quote::{Price, Quote, Resource};
use crate::tab::line_entry;
use crate::time::{Timestamp, after};
use crate::unit::{Fingerprint, ListEntry, Record, rank};
use crate::voucher;

/// Where a purchase stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PurchaseState {
    /// Refused by policy. The same `request_id` may ask again.
    Denied,
    /// Waits for its owner; nothing is held.
    Waiting,
    /// Money is held, a voucher is out.
    Held,
    /// On the tab, for good.
    Billed,
    /// The seller failed to deliver: nothing is owed.
    Released,
    /// Nobody reported in time: nothing is owed, a late report may still book it.
    Expired,
    /// Reported late, and the owner's limits had no room: nobody pays.
    Unbilled,
}

/// The voucher that was issued last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issue {
    /// Its id.
    pub jti: VoucherId,
    /// When it was issued.
    pub issued_at: Timestamp,
    /// When it ends.
    pub expires_at: Timestamp,
}

/// A purchase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purchase {
    /// Its id.
    pub id: PurchaseId,
    /// Whose money.
    pub owner: OwnerId,
    /// Who bought.
    pub agent: AgentId,
    /// Who is paid.
    pub seller: SellerId,
    /// The agent's name for it.
    pub request_id: String,
    /// What the seller calls the thing.
    pub listing: String,
    /// The exact request.
    pub request: Resource,
    /// The price, or its ceiling.
    pub price_micros: Micros,
    /// Whether the price is a ceiling.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub up_to: bool,
    /// In which currency.
    pub currency: Currency,
    /// The quote that was accepted last.
    pub quote: QuoteId,
    /// Where it stands.
    pub state: PurchaseState,
    /// Why it was denied or waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// The question put to the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalId>,
    /// The grant it draws on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<GrantId>,
    /// The tab it is held or billed on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tab: Option<TabId>,
    /// The day its day caps count it under, fixed when the hold was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<Date>,
    /// The hold that is pending or was resolved last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<TransferId>,
    /// The commission in force when the hold was made, in millionths.
    #[serde(default)]
    pub commission_ppm: u32,
    /// The voucher issued last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voucher: Option<Issue>,
    /// When the first voucher ended: what a hold's longest life counts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_expires_at: Option<Timestamp>,
    /// The vouchers whose delivery was reported as failed, oldest first: final for each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<VoucherId>,
    /// The voucher that its seller said it still serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<VoucherId>,
    /// Until when the hold waits for a report, in milliseconds of report clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_by: Option<i64>,
    /// What was billed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billed_micros: Option<Micros>,
    /// When it was billed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billed_at: Option<Timestamp>,
    /// The number of its line on the tab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// When it was first asked for.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl Purchase {
    /// A purchase as first asked for; `state` is what the decision made of it.
    pub fn new(
        id: PurchaseId,
        owner: OwnerId,
        agent: AgentId,
        request_id: &str,
        quote: &Quote,
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            owner,
            agent,
            seller: quote.seller,
            request_id: request_id.to_owned(),
            listing: quote.listing.clone(),
            request: quote.request.clone(),
            price_micros: quote.price.most(),
            up_to: matches!(quote.price, Price::UpTo(_)),
            currency: quote.currency,
            quote: quote.id,
            state: PurchaseState::Denied,
            refusal: None,
            approval: None,
            grant: None,
            tab: None,
            day: None,
            hold: None,
            commission_ppm: 0,
            voucher: None,
            first_expires_at: None,
            failed: Vec::new(),
            serving: None,
            report_by: None,
            billed_micros: None,
            billed_at: None,
            line: None,
            created_at: now,
            updated_at: now,
        }
    }

    /// The quote it was asked for with, good until then.
    pub fn quoted(&self, expires_at: Timestamp) -> Quote {
        let price = self.price_micros;
        Quote {
            id: self.quote,
            seller: self.seller,
            listing: self.listing.clone(),
            request: self.request.clone(),
            price: if self.up_to { Price::UpTo(price) } else { Price::Fixed(price) },
            currency: self.currency,
            expires_at,
        }
    }

    /// Whether the delivery for that voucher was reported as failed.
    pub fn has_failed(&self, jti: VoucherId) -> bool {
        self.failed.contains(&jti)
    }

    /// Keeps that the delivery for a voucher failed. Each needs an authorize of its own, so the list
    /// grows no faster than the agent's rate.
    pub(crate) fn fail(&mut self, jti: VoucherId) {
        if !self.failed.contains(&jti) {
            self.failed.push(jti);
        }
    }

    /// The price as the seller named it.
    pub const fn price(&self) -> Price {
        if self.up_to { Price::UpTo(self.price_micros) } else { Price::Fixed(self.price_micros) }
    }

    /// The claims of the voucher issued last, if one is out.
    pub fn claims(&self, issuer: &str) -> Option<voucher::Claims> {
        let issue = self.voucher.as_ref()?;
        Some(voucher::Claims {
            iss: issuer.to_owned(),
            aud: self.seller,
            sub: self.id,
            jti: issue.jti,
            iat: issue.issued_at.as_second(),
            exp: issue.expires_at.as_second(),
            amount_micros: self.price_micros,
            max_micros: self.up_to.then_some(self.price_micros),
            currency: self.currency,
            quote: self.quote,
            listing: self.listing.clone(),
            method: self.request.method.clone(),
            resource: self.request.url.clone(),
            body: self.request.body_sha256.clone(),
        })
    }

    /// Issues a voucher: whole seconds, so that the claims say exactly what the row says.
    pub(crate) fn issue(&mut self, jti: VoucherId, clock: i64, grace_seconds: i64, now: Timestamp) {
        let issued_at = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let expires_at = after(issued_at, voucher::LIFE_SECONDS);
        self.voucher = Some(Issue { jti, issued_at, expires_at });
        self.first_expires_at.get_or_insert(expires_at);
        let wait = voucher::LIFE_SECONDS.saturating_add(grace_seconds).saturating_mul(1_000);
        self.report_by = Some(clock.saturating_add(wait));
        self.updated_at = now;
    }

    /// Whether asking for it again may give a voucher that is not out yet.
    pub(crate) fn wants_more(&self, now: Timestamp) -> bool {
        match self.state {
            PurchaseState::Billed | PurchaseState::Unbilled => false,
            PurchaseState::Held => !self.voucher_lives(now),
            _ => true,
        }
    }

    /// When the hold was made that is pending or was resolved last, in milliseconds since 1970: its id
    /// says.
    pub(crate) fn held_at_ms(&self) -> Option<i64> {
        self.hold.and_then(|hold| i64::try_from(hold.value() >> 80).ok())
    }

    /// Whether the voucher issued last is still accepted by sellers.
    pub fn voucher_lives(&self, now: Timestamp) -> bool {
        self.voucher.as_ref().is_some_and(|issue| now < issue.expires_at)
    }
}

impl Record for Purchase {
    const KIND: &'static str = "purchase";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![
            ListEntry::new("purchases", self.owner, self.id),
            // Of its own, so that neither a short page nor a cursor tells what other agents do.
            ListEntry::new("purchases.agent", self.agent, self.id),
        ];
        if let (PurchaseState::Held, Some(by)) = (self.state, self.report_by) {
            lists.push(ListEntry::new("holds.due", "", format!("{:016}", by.max(0))));
        }
        if let (Some(tab), Some(line)) = (self.tab, self.line) {
            lists.push(line_entry(tab, line));
            lists.push(ListEntry::new("seller_lines", self.seller, self.id));
        }
        lists
    }
}

/// The part of a new purchase's id that is not its time: it follows from who buys and under which
/// `request_id`, so that a purchase which a restore lost, and of which only its voucher is left, is
/// recognised when the same is asked for again. Tells nobody anything who does not know the agent.
pub fn mark(agent: AgentId, request_id: &str) -> u128 {
    let name = agent.to_string();
    let Fingerprint(print) =
        Fingerprint::of(&[b"purchase", name.as_bytes(), request_id.as_bytes()]);
    print.first_chunk::<16>().map_or(0, |bytes| u128::from_be_bytes(*bytes))
}

/// How much time passed while reports were accepted: downtime and quarantine add nothing, so a hold
/// is not given up because we were away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportClock {
    /// Milliseconds counted so far.
    pub elapsed_ms: i64,
    /// When it was last advanced.
    pub ticked_at: Timestamp,
}

impl ReportClock {
    /// The id of the one row.
    pub const ID: &'static str = "report_clock";
}

impl Record for ReportClock {
    const KIND: &'static str = "report_clock";
    const RANK: u8 = rank::SHARED;
    fn id(&self) -> String {
        Self::ID.to_owned()
    }
}
