//! Who takes part: owners, their agents, sellers, and the keys they hold.
//!
//! The rows of owner and agent are *guards*: every unit that spends an owner's money touches them,
//! so what must be complete for a decision (the open tab, what earlier tabs still owe, approvals
//! waiting, keys revoked) stands on them and needs no search.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::approval::Waiting;
use crate::id::{AgentId, GrantId, KeyId, OwnerId, SellerId, SettlementId, TabId, VaultId};
use crate::money::Micros;
use crate::payer::Standing;
use crate::time::{Timestamp, Zone, seconds_between};
use crate::unit::{ListEntry, Record, rank};

/// Whose money it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its id.
    pub id: OwnerId,
    /// What people call it.
    pub name: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// Paused by the owner: no new hold, voucher, re-issue or use of an approval.
    pub paused: bool,
    /// Why the owner is frozen, if it is: a payment is disputed, a reversal left a debt, or a tab was
    /// written off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<String>,
    /// The one open (or closing) tab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_tab: Option<TabId>,
    /// A tab whose settlement was declined. While it stands no other opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_tab: Option<TabId>,
    /// Earlier tabs that may still owe something: in settlement, or to be carried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_tabs: Vec<TabId>,
    /// The operator's credit line, where it was set by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit_line_micros: Option<Micros>,
    /// Everything captured so far: what the credit line grows with.
    pub settled_micros: Micros,
    /// What is disputed of his payments at PayPal, or withheld for that: taken off what his tabs may
    /// owe, as a debt is.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub disputed_micros: Micros,
    /// Settlements below the minimum of the last 24 hours: what another is measured by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub small_settlements: Vec<SmallSettlement>,
    /// The vaulted way to pay that settlements use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub funding: Option<Funding>,
    /// Whether the account behind it pays for nobody else.
    #[serde(default)]
    pub payer: Standing,
    /// The zone that days are counted in.
    pub zone: Zone,
    /// A zone that takes over when the present day ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_zone: Option<(Zone, Timestamp)>,
}

/// A settlement that brought less than the operator's minimum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmallSettlement {
    /// Which.
    pub settlement: SettlementId,
    /// When it was made.
    pub at: Timestamp,
}

/// A vaulted way to pay, as far as settlements need to know.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Funding {
    /// Our row about it.
    pub vault: VaultId,
    /// PayPal's id of the payment token.
    pub token: String,
    /// The digest of PayPal's id of the payer, if it was told; see [`address_digest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payer_sha256: Option<String>,
    /// The digest of the payer's address, if it was told; see [`address_digest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email_sha256: Option<String>,
}

crate::shows_only!(Funding: vault);

impl Funding {
    /// Everything that the account behind it is known by.
    pub fn digests(&self) -> impl Iterator<Item = &str> {
        [&self.payer_sha256, &self.email_sha256].into_iter().filter_map(|known| known.as_deref())
    }
}

/// What is kept of a payer's address or PayPal id, to tell whether owner and seller are the same person. The
/// books never hold the address itself: a copy of them names nobody at a glance. It is no secret
/// from somebody who has both the copy and a list of addresses to try.
pub fn address_digest(address: &str) -> String {
    hex::encode(Sha256::digest(address.trim().to_ascii_lowercase()))
}

/// The first letter and the host of an address: `b…@example.com`.
pub fn shortened(address: &str) -> Option<String> {
    let (name, host) = address.split_once('@')?;
    Some(format!("{}…@{host}", name.chars().next()?))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
const fn is_nothing(amount: &Micros) -> bool {
    amount.is_zero()
}

impl Owner {
    /// A new owner.
    pub fn new(id: OwnerId, name: &str, zone: Zone, now: Timestamp) -> Self {
        Self {
            id,
            name: name.to_owned(),
            created_at: now,
            paused: false,
            frozen: None,
            open_tab: None,
            frozen_tab: None,
            earlier_tabs: Vec::new(),
            credit_line_micros: None,
            settled_micros: Micros::ZERO,
            disputed_micros: Micros::ZERO,
            small_settlements: Vec::new(),
            funding: None,
            payer: Standing::Own,
            zone,
            next_zone: None,
        }
    }

    /// The zone in force: a change counts from the next day on.
    pub fn zone_at(&self, now: Timestamp) -> &Zone {
        match &self.next_zone {
            Some((zone, from)) if now >= *from => zone,
            _ => &self.zone,
        }
    }
}

impl Record for Owner {
    const KIND: &'static str = "owner";
    const RANK: u8 = rank::OWNER;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        vec![ListEntry::new("owners", "", self.id)]
    }
}

/// A key of an owner's, with limits of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// Its id.
    pub id: AgentId,
    /// Whose money it spends.
    pub owner: OwnerId,
    /// What people call it.
    pub name: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// Paused by its owner.
    pub paused: bool,
    /// Its keys that count. A revoked key leaves this list in the unit that revokes it, so no hold
    /// commits for it afterwards.
    pub keys: Vec<KeyId>,
    /// Its approvals that wait, at most as many as the settings say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Waiting>,
    /// Bounded grants it may draw on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<GrantId>,
}

impl Agent {
    /// A new agent without keys.
    pub fn new(id: AgentId, owner: OwnerId, name: &str, now: Timestamp) -> Self {
        Self {
            id,
            owner,
            name: name.to_owned(),
            created_at: now,
            paused: false,
            keys: Vec::new(),
            waiting: Vec::new(),
            grants: Vec::new(),
        }
    }
}

impl Record for Agent {
    const KIND: &'static str = "agent";
    const RANK: u8 = rank::AGENT;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        vec![ListEntry::new("agents", self.owner, self.id)]
    }
}

/// When an agent last asked: the sliding window of its rate limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateWindow {
    /// Whose.
    pub agent: String,
    /// The latest times, oldest first, at most as many as the limit counts.
    pub times: Vec<Timestamp>,
}

impl Record for RateWindow {
    const KIND: &'static str = "rate_window";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.agent.clone()
    }
}

/// Who is paid.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seller {
    /// Its id.
    pub id: SellerId,
    /// What people call it.
    pub name: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// The origins it registered.
    pub origins: Vec<Origin>,
    /// Where its earnings go: an address or a PayPal id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payout_recipient: Option<String>,
    /// What the platform keeps of each price, in millionths.
    pub commission_ppm: u32,
    /// Its keys that count.
    pub keys: Vec<KeyId>,
}

crate::shows_only!(Seller: id, name, created_at, origins, commission_ppm, keys);

/// Where a seller's resources live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// `https://host[:port]`.
    pub origin: String,
    /// When it was proved that the seller controls it; quotes under it count from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proved_at: Option<Timestamp>,
    /// When it last listed the seller: a proof counts for a while only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Timestamp>,
    /// When it is asked again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_check_at: Option<Timestamp>,
}

impl Origin {
    /// A new one, not proved.
    pub fn new(origin: &str) -> Self {
        Self { origin: origin.to_owned(), proved_at: None, checked_at: None, next_check_at: None }
    }
}

impl Seller {
    /// A new seller without origins or keys.
    pub fn new(id: SellerId, name: &str, now: Timestamp) -> Self {
        Self {
            id,
            name: name.to_owned(),
            created_at: now,
            origins: Vec::new(),
            payout_recipient: None,
            commission_ppm: 0,
            keys: Vec::new(),
        }
    }

    /// Whether the seller proved that origin, and did so again within `life_seconds`.
    pub fn has_proved(&self, origin: &str, life_seconds: i64, now: Timestamp) -> bool {
        let fresh = |at: Timestamp| seconds_between(at, now) <= life_seconds;
        let counts = |known: &Origin| known.origin == origin && known.checked_at.is_some_and(fresh);
        self.origins.iter().any(counts)
    }
}

impl Record for Seller {
    const KIND: &'static str = "seller";
    const RANK: u8 = rank::SHARED;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![ListEntry::new("sellers", "", self.id)];
        let next = self.origins.iter().filter_map(|known| known.next_check_at).min();
        lists.extend(next.map(|at| ListEntry::timed("origins.due", "", at)));
        lists
    }
}

/// Who holds a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", content = "id", rename_all = "snake_case")]
pub enum Principal {
    /// Whoever runs this Earnest.
    Operator,
    /// Whose money it is.
    Owner(OwnerId),
    /// A key of theirs.
    Agent(AgentId),
    /// Who is paid.
    Seller(SellerId),
}

impl Principal {
    /// The prefix of its keys.
    pub const fn key_prefix(self) -> &'static str {
        match self {
            Self::Operator => "ek_operator_",
            Self::Owner(_) => "ek_owner_",
            Self::Agent(_) => "ek_agent_",
            Self::Seller(_) => "ek_seller_",
        }
    }
}

impl std::fmt::Display for Principal {
    /// Its id; `operator` for the operator. The scope of its idempotency keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Operator => f.write_str("operator"),
            Self::Owner(id) => id.fmt(f),
            Self::Agent(id) => id.fmt(f),
            Self::Seller(id) => id.fmt(f),
        }
    }
}

/// An API key: only its hash is kept. The key itself is shown once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey {
    /// SHA-256 of the key, in hex. The key holds 256 random bits, so a plain hash is enough.
    pub hash: String,
    /// What the key is called.
    pub id: KeyId,
    /// Whose it is.
    pub principal: Principal,
    /// For people.
    pub label: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stopped counting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

impl Record for ApiKey {
    const KIND: &'static str = "api_key";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.hash.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        vec![ListEntry::new("keys", self.principal, self.id)]
    }
}

/// A name that people gave: 1 to 80 characters, no control characters, no white space at the ends.
///
/// # Errors
/// `name_invalid`.
pub fn check_name(name: &str) -> Result<(), crate::problem::Refusal> {
    let plain = name.trim() == name && !name.chars().any(crate::quote::is_invisible);
    if plain && (1..=80).contains(&name.chars().count()) {
        return Ok(());
    }
    let detail = "a name has 1 to 80 characters, none of them control characters";
    Err(crate::problem::Refusal::new(crate::problem::Code::NameInvalid, detail))
}
