//! An owner's answer to a waiting purchase, and bounded grants.
//!
//! A waiting purchase holds nothing. The approval is bound to exactly what was asked (agent,
//! seller, listing, method, URL, body, amount, currency), works once, and expires by wall clock.
//! Approving books nothing: the agent repeats with the same `request_id`, policy runs again, and
//! only then the hold exists.

use serde::{Deserialize, Serialize};

use crate::id::{AgentId, ApprovalId, GrantId, OwnerId, PurchaseId, SellerId};
use crate::money::{Currency, Micros};
use crate::problem::{Code, Reason, Refusal};
use crate::quote::Quote;
use crate::time::Timestamp;
use crate::unit::{Fingerprint, ListEntry, Record, rank};

/// The most that [`approvals_waiting`](crate::settings::Settings::approvals_waiting) may be: all of
/// them stand on one row.
pub const MAX_WAITING: u32 = 200;
/// At most so many live grants stand under one agent.
pub const MAX_GRANTS: usize = 20;

/// The longest grant, in seconds: 30 days.
pub const MAX_GRANT_SECONDS: i64 = 30 * 24 * 3600;

/// One waiting approval as the agent's guard row knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The approval.
    pub approval: ApprovalId,
    /// Hex of the digest of what it is bound to: equal questions collapse.
    pub binding: String,
    /// When it stops waiting.
    pub expires_at: Timestamp,
}

/// What an approval is bound to: the quote's content, not its id or expiry.
pub fn binding(agent: AgentId, quote: &Quote) -> String {
    let amount = quote.price.most().get().to_be_bytes();
    let print = Fingerprint::of(&[
        agent.to_string().as_bytes(),
        quote.seller.to_string().as_bytes(),
        quote.listing.as_bytes(),
        quote.request.method.as_bytes(),
        quote.request.url.as_bytes(),
        quote.request.body_sha256.as_bytes(),
        &amount,
        quote.currency.code().as_bytes(),
        if matches!(quote.price, crate::quote::Price::UpTo(_)) { b"up_to" } else { b"fixed" },
    ]);
    hex::encode(print.0)
}

/// Where an approval stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    /// The owner has not answered.
    Waiting,
    /// Yes; not used yet.
    Approved,
    /// No.
    Denied,
    /// Yes, and used.
    Consumed,
}

/// A question put to an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Its id.
    pub id: ApprovalId,
    /// Who is asked.
    pub owner: OwnerId,
    /// Who wants to buy.
    pub agent: AgentId,
    /// The purchase that asked first.
    pub purchase: PurchaseId,
    /// Hex digest of what it is bound to.
    pub binding: String,
    /// The seller.
    pub seller: SellerId,
    /// What the seller calls the thing.
    pub listing: String,
    /// The method.
    pub method: String,
    /// The URL.
    pub url: String,
    /// How much.
    pub amount_micros: Micros,
    /// In which currency.
    pub currency: Currency,
    /// Why it waits, in one sentence.
    pub why: String,
    /// Whether a used-up grant is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Where it stands.
    pub state: ApprovalState,
    /// When it was asked.
    pub created_at: Timestamp,
    /// When the question, and an unused yes, stop counting.
    pub expires_at: Timestamp,
    /// When it was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<Timestamp>,
    /// The bounded grant that came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<GrantId>,
    /// For `If-Match`.
    pub version: u64,
}

impl Approval {
    /// Whether it can still be answered or used.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now >= self.expires_at
            && !matches!(self.state, ApprovalState::Denied | ApprovalState::Consumed)
    }

    /// Why a purchase that waits for it will not happen, if that is certain: its owner said no, or
    /// nobody answered in time. The purchase's row still says *waiting*: many may share one question,
    /// and time passes without a unit.
    pub fn ended(&self, now: Timestamp) -> Option<Refusal> {
        if self.state == ApprovalState::Denied {
            return Some(Refusal::new(Code::ApprovalDenied, "the owner refused this purchase"));
        }
        self.is_expired(now).then(|| {
            Refusal::new(Code::ApprovalExpired, "the owner's answer did not come, or was not used")
                .next("repeat with the same request_id to ask again")
        })
    }

    /// Whether a grant of so much for so long answers it.
    ///
    /// # Errors
    /// `validation_failed` below the purchase itself, or past [`MAX_GRANT_SECONDS`].
    pub fn check_grant(&self, cap: Micros, seconds: i64) -> Result<(), Refusal> {
        if !(1..=MAX_GRANT_SECONDS).contains(&seconds) {
            let why = format!("a grant lasts from 1 to {MAX_GRANT_SECONDS} seconds, 30 days");
            return Err(Refusal::new(Code::ValidationFailed, why));
        }
        if cap < self.amount_micros {
            let least = self.amount_micros;
            let why = format!("the grant must be {least} or more: it includes this purchase");
            return Err(Refusal::new(Code::ValidationFailed, why).amount("least", least));
        }
        Ok(())
    }

    /// Whether an answer is possible now.
    ///
    /// # Errors
    /// `approval_consumed`, `approval_already_decided`, `approval_expired`.
    pub fn check_open(&self, now: Timestamp) -> Result<(), Refusal> {
        match self.state {
            ApprovalState::Consumed => {
                Err(Refusal::new(Code::ApprovalConsumed, "the approval was used before"))
            }
            ApprovalState::Approved | ApprovalState::Denied => {
                Err(Refusal::new(Code::ApprovalAlreadyDecided, "the approval was answered before"))
            }
            ApprovalState::Waiting if now >= self.expires_at => {
                Err(Refusal::new(Code::ApprovalExpired, "the question has expired")
                    .next("ask the agent to repeat the request"))
            }
            ApprovalState::Waiting => Ok(()),
        }
    }
}

impl Record for Approval {
    const KIND: &'static str = "approval";
    const RANK: u8 = rank::ROW_LATER;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![ListEntry::new("approvals", self.owner, self.id)];
        if self.state == ApprovalState::Waiting {
            lists.push(ListEntry::new("approvals.waiting", self.owner, self.id));
            // Everybody's, for whoever watches over this Earnest.
            lists.push(ListEntry::timed("approvals.open", "", self.expires_at));
        }
        lists
    }
}

/// A permission bounded in money and time: purchases above the approval threshold pass without a
/// question while it lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Its id.
    pub id: GrantId,
    /// Who gave it.
    pub owner: OwnerId,
    /// Who may use it.
    pub agent: AgentId,
    /// At which seller.
    pub seller: SellerId,
    /// How much in total. What was used stands on its limit account.
    pub cap_micros: Micros,
    /// Until when.
    pub until: Timestamp,
    /// The approval it came from.
    pub approval: ApprovalId,
    /// When it was taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

impl Grant {
    /// Whether it counts for that seller now.
    pub fn covers(&self, seller: SellerId, now: Timestamp) -> bool {
        self.seller == seller && self.revoked_at.is_none() && now < self.until
    }
}

impl Record for Grant {
    const KIND: &'static str = "grant";
    const RANK: u8 = rank::ROW_LATER;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        vec![ListEntry::new("grants", self.owner, self.id)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::QuoteId;
    use crate::quote::{Price, Resource};
    use crate::time::after;

    fn quote() -> Quote {
        Quote {
            id: QuoteId::from_value(1),
            seller: SellerId::from_value(1),
            listing: "GET /*".to_owned(),
            request: Resource::new("GET", "https://api.example/", b"").unwrap(),
            price: Price::Fixed(Micros::constant(5)),
            currency: Currency::Usd,
            expires_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn an_answer_is_bound_to_what_is_bought_and_not_to_the_quote() {
        let agent = AgentId::from_value(1);
        let own = binding(agent, &quote());
        let check = |same: bool, change: fn(&mut Quote)| {
            let mut other = quote();
            change(&mut other);
            assert_eq!(binding(agent, &other) == own, same, "{other:?}");
        };
        check(true, |quote| quote.id = QuoteId::from_value(2));
        check(true, |quote| quote.expires_at = after(quote.expires_at, 1));
        check(false, |quote| quote.seller = SellerId::from_value(2));
        check(false, |quote| quote.listing.push('x'));
        check(false, |quote| quote.request.method = "POST".to_owned());
        check(false, |quote| quote.request.url.push('x'));
        check(false, |quote| quote.request.body_sha256 = crate::quote::body_digest(b"x"));
        check(false, |quote| quote.price = Price::Fixed(Micros::constant(6)));
        check(false, |quote| quote.price = Price::UpTo(Micros::constant(5)));
        // What stands at the end of one part is not the beginning of the next.
        check(false, |quote| {
            quote.listing.push_str(&quote.request.method);
            quote.request.method.clear();
        });
        assert_ne!(binding(AgentId::from_value(2), &quote()), own);
    }
}
