//! A vaulted way to pay: the owner approves once on PayPal's page, settlements charge it later.
//!
//! Two PayPal calls, each from an intent: a *setup token*, which gives a page for the payer, and
//! after the payer's consent a *payment token*, which lasts until the payer removes it.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::id::{IntentId, OwnerId, TabId, VaultId};
use crate::intent::{Evidence, Fate, Intent, Purpose};
use crate::ledger::Account;
use crate::party::{Funding, Owner, address_digest, shortened};
use crate::payer;
use crate::problem::{Code, Refusal};
use crate::tab::{Tab, TabState, touch_tabs};
use crate::time::{Timestamp, after};
use crate::unit::{Effects, ListEntry, Record, Stop, Touches, Unit, View, rank};

/// Where a vaulting stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VaultState {
    /// The page for the payer is being asked for.
    Starting,
    /// The payer has to consent on PayPal's page.
    AwaitingPayer,
    /// The payer consented; the lasting token is being asked for.
    Confirming,
    /// Settlements charge it.
    Active,
    /// It came to nothing.
    Failed,
    /// Replaced by another, or removed by the payer.
    Removed,
}

/// A vaulted way to pay.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vault {
    /// Its id.
    pub id: VaultId,
    /// Whose.
    pub owner: OwnerId,
    /// Where it stands.
    pub state: VaultState,
    /// PayPal's setup token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup_token: Option<String>,
    /// PayPal's page for the payer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approve_url: Option<String>,
    /// PayPal's payment token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payment_token: Option<String>,
    /// PayPal's customer id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub customer: Option<String>,
    /// The payer's address so far that only whoever knows it recognises it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payer: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issue: Option<String>,
    /// When it was begun.
    pub created_at: Timestamp,
}

crate::shows_only!(Vault: id, owner, state, payer, issue, created_at);

impl Record for Vault {
    const KIND: &'static str = "vault";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        let mut lists = vec![ListEntry::new("vaults", self.owner, self.id)];
        if let Some(token) = &self.setup_token {
            lists.push(ListEntry::new("vaults.setup_token", token, self.id));
        }
        if let Some(token) = &self.payment_token {
            lists.push(ListEntry::new("vaults.payment_token", token, self.id));
        }
        lists
    }
}

/// Begins vaulting: the intent asks PayPal for a page.
#[derive(Clone, Debug)]
pub struct Begin {
    /// Whose.
    pub owner: OwnerId,
    /// The id of the vault row.
    pub vault: VaultId,
    /// The id of the intent.
    pub intent: IntentId,
    /// Of this installation: part of every key.
    pub epoch: String,
    /// Where PayPal sends the payer afterwards.
    pub return_url: String,
    /// Where PayPal sends the payer who does not want to.
    pub cancel_url: String,
}

impl Unit for Begin {
    type Answer = Vault;

    fn name(&self) -> &'static str {
        "vault.begin"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Owner>(self.owner);
        touches.row::<Vault>(self.vault);
        touches.row::<Intent>(self.intent);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Vault>, Stop> {
        if view.row::<Owner>(self.owner)?.is_none() {
            return Err(Refusal::new(Code::NotFound, "no such owner").into());
        }
        let vault = Vault {
            id: self.vault,
            owner: self.owner,
            state: VaultState::Starting,
            setup_token: None,
            approve_url: None,
            payment_token: None,
            customer: None,
            payer: None,
            issue: None,
            created_at: now,
        };
        let key = format!("{}:{}:setup", self.epoch, self.vault);
        let facts = json!({ "return_url": self.return_url, "cancel_url": self.cancel_url });
        let purpose = Purpose::VaultSetup(self.vault);
        let mut effects = Effects::answer(vault.clone());
        effects.put(vault)?;
        let intent = Intent::planned(self.intent, self.owner, purpose, key, facts, now);
        effects.put(waited_for(intent, now))?;
        Ok(effects)
    }
}

/// Whoever asked waits for the answer and makes the call at once; the jobs take it up only when that
/// came to nothing. Two calls at once would each take the other's answer for one that was lost.
fn waited_for(intent: Intent, now: Timestamp) -> Intent {
    Intent { next_at: after(now, WAITED_FOR_SECONDS), ..intent }
}

/// How long the jobs leave alone what somebody waits for.
const WAITED_FOR_SECONDS: i64 = 5;

/// What a setup token brings.
#[derive(Clone, PartialEq, Eq)]
pub struct SetupToken {
    /// PayPal's id.
    pub token: String,
    /// The page for the payer.
    pub approve_url: String,
}

crate::shows_only!(SetupToken);

/// Records what became of the first call.
#[derive(Clone, Debug)]
pub struct RecordSetup {
    /// Which vault.
    pub vault: VaultId,
    /// Which intent.
    pub intent: IntentId,
    /// The fence it was claimed with.
    pub fence: u64,
    /// What became of it.
    pub fate: Fate<SetupToken>,
    /// How that was learnt.
    pub evidence: Evidence,
}

impl Unit for RecordSetup {
    type Answer = Vault;

    fn name(&self) -> &'static str {
        "vault.record_setup"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Vault>(self.vault);
        touches.row::<Intent>(self.intent);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Vault>, Stop> {
        let mut intent = view.need::<Intent>(self.intent)?.clone();
        let mut vault = view.need::<Vault>(self.vault)?.clone();
        let counts = intent.take(self.fence, &self.fate, self.evidence.clone(), now);
        if counts && vault.state == VaultState::Starting {
            match &self.fate {
                Fate::Done(setup) => {
                    vault.state = VaultState::AwaitingPayer;
                    vault.setup_token = Some(setup.token.clone());
                    vault.approve_url = Some(setup.approve_url.clone());
                }
                Fate::Declined { issue } | Fate::Refused { issue } => fail(&mut vault, issue),
                Fate::NotCharged => fail(&mut vault, "no answer"),
                _ => {}
            }
        }
        let mut effects = Effects::answer(vault.clone());
        effects.event(
            "vault.changed",
            &[&vault.owner],
            json!({ "vault": vault.id, "state": vault.state }),
        );
        effects.put(vault)?;
        effects.put(intent)?;
        Ok(effects)
    }
}

fn fail(vault: &mut Vault, issue: &str) {
    vault.state = VaultState::Failed;
    vault.issue = Some(issue.to_owned());
}

/// The payer consented, as re-read from PayPal: the lasting token is asked for, once.
#[derive(Clone, Debug)]
pub struct Confirm {
    /// Which vault.
    pub vault: VaultId,
    /// The id of the intent.
    pub intent: IntentId,
    /// Of this installation: part of every key.
    pub epoch: String,
}

impl Unit for Confirm {
    type Answer = Vault;

    fn name(&self) -> &'static str {
        "vault.confirm"
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Vault>(self.vault);
        touches.row::<Intent>(self.intent);
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Vault>, Stop> {
        let Some(vault) = view.row::<Vault>(self.vault)? else {
            return Err(Refusal::new(Code::NotFound, "no such payment method").into());
        };
        let (VaultState::AwaitingPayer, Some(token)) = (vault.state, &vault.setup_token) else {
            return Ok(Effects::answer(vault.clone()));
        };
        let mut vault = vault.clone();
        let key = format!("{}:{}:token", self.epoch, self.vault);
        let facts = json!({ "setup_token": token });
        let purpose = Purpose::VaultToken(self.vault);
        vault.state = VaultState::Confirming;
        let mut effects = Effects::answer(vault.clone());
        let intent = Intent::planned(self.intent, vault.owner, purpose, key, facts, now);
        effects.put(waited_for(intent, now))?;
        effects.put(vault)?;
        Ok(effects)
    }
}

/// What a payment token brings.
#[derive(Clone, PartialEq, Eq)]
pub struct PaymentToken {
    /// PayPal's id: the `vault_id` of later charges.
    pub token: String,
    /// PayPal's customer id.
    pub customer: Option<String>,
    /// PayPal's id of the payer.
    pub payer_id: Option<String>,
    /// The payer's address.
    pub email: Option<String>,
}

crate::shows_only!(PaymentToken);

impl PaymentToken {
    /// What of it stands on the owner's row: of the payer only digests.
    fn funding(&self, vault: VaultId) -> Funding {
        Funding {
            vault,
            token: self.token.clone(),
            payer_sha256: self.payer_id.as_deref().map(address_digest),
            email_sha256: self.email.as_deref().map(address_digest),
        }
    }
}

/// Records what became of the second call: the owner's settlements charge this token from now on.
#[derive(Clone, Debug)]
pub struct RecordToken {
    /// Whose, from a plain read; never changes.
    pub owner: OwnerId,
    /// The owner's payment method until now, from the same read; checked again here.
    pub replaces: Option<VaultId>,
    /// Which vault.
    pub vault: VaultId,
    /// Which intent.
    pub intent: IntentId,
    /// The fence it was claimed with.
    pub fence: u64,
    /// What became of it.
    pub fate: Fate<PaymentToken>,
    /// How that was learnt.
    pub evidence: Evidence,
}

impl Unit for RecordToken {
    type Answer = Vault;

    fn name(&self) -> &'static str {
        "vault.record_token"
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touch_tabs(&mut touches, view, self.owner);
        touches.row::<Vault>(self.vault);
        touches.row::<Intent>(self.intent);
        if let Fate::Done(token) = &self.fate {
            payer::touch(&mut touches, &token.funding(self.vault));
        }
        if let Some(owner) = view.peek::<Owner>(self.owner) {
            if let Some(funding) = &owner.funding {
                touches.row::<Vault>(funding.vault);
            }
            for tab in owner.earlier_tabs.iter().chain(&owner.open_tab) {
                touches.account(Account::TabOwed(*tab).usd());
            }
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Vault>, Stop> {
        let mut owner = view.need::<Owner>(self.owner)?.clone();
        let mut intent = view.need::<Intent>(self.intent)?.clone();
        let mut vault = view.need::<Vault>(self.vault)?.clone();
        let mut effects = Effects::answer(());
        let counts = intent.take(self.fence, &self.fate, self.evidence.clone(), now);
        match &self.fate {
            _ if !counts => {}
            // Removed while PayPal was still making it: known, so that it can be removed there too,
            // but never charged.
            Fate::Done(token) if vault.state != VaultState::Confirming => {
                vault.payment_token = Some(token.token.clone());
            }
            Fate::Done(token) => {
                vault.state = VaultState::Active;
                vault.payment_token = Some(token.token.clone());
                vault.customer = token.customer.clone();
                vault.payer = token.email.as_deref().and_then(shortened);
                if let Some(old) = owner.funding.as_ref().filter(|old| old.vault != vault.id) {
                    let mut old = view.need::<Vault>(old.vault)?.clone();
                    old.state = VaultState::Removed;
                    effects.put(old)?;
                }
                payer::put_on_file(view, &mut effects, &mut owner, token.funding(vault.id))?;
                thaw(view, &mut effects, &mut owner)?;
                effects.put(owner)?;
            }
            _ if vault.state != VaultState::Confirming => {}
            Fate::Declined { issue } | Fate::Refused { issue } => fail(&mut vault, issue),
            Fate::NotCharged => fail(&mut vault, "no answer"),
            _ => {}
        }
        effects.event(
            "vault.changed",
            &[&vault.owner],
            json!({ "vault": vault.id, "state": vault.state }),
        );
        effects.put(vault.clone())?;
        effects.put(intent)?;
        Ok(effects.map(|()| vault))
    }
}

/// A new way to pay thaws tabs that owe less than a cent: there is nothing to attempt, so nothing
/// else ever would. One that owes more waits for an attempt that succeeds.
fn thaw(view: &View, effects: &mut Effects<()>, owner: &mut Owner) -> Result<(), Stop> {
    owner.frozen_tab = None;
    for id in owner.earlier_tabs.iter().chain(&owner.open_tab) {
        let tab = view.need::<Tab>(id)?;
        if tab.state != TabState::Frozen {
            continue;
        }
        let rest = view.totals(tab.owed())?.collectible();
        if tab.open_settlement.is_some() || !rest.floor_to_cent().is_zero() {
            owner.frozen_tab.get_or_insert(tab.id);
            continue;
        }
        let mut tab = tab.clone();
        tab.thaw(owner.open_tab);
        effects.event("tab.thawed", &[&owner.id], json!({ "tab": tab.id }));
        effects.put(tab)?;
    }
    Ok(())
}

/// The payer took consent back (as re-read from PayPal), or the owner removed the method: nothing
/// new is bought on credit that nobody promised to pay.
#[derive(Clone, Debug)]
pub struct Remove {
    /// Whose.
    pub owner: OwnerId,
    /// Which vault.
    pub vault: VaultId,
}

impl Unit for Remove {
    type Answer = Vault;

    fn name(&self) -> &'static str {
        "vault.remove"
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Owner>(self.owner);
        touches.row::<Vault>(self.vault);
        if let Some(tab) = view.peek::<Owner>(self.owner).and_then(|owner| owner.open_tab) {
            touches.row::<Tab>(tab);
        }
        touches
    }

    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<Vault>, Stop> {
        let vault = view.row::<Vault>(self.vault)?.filter(|vault| vault.owner == self.owner);
        let Some(vault) = vault else {
            return Err(Refusal::new(Code::NotFound, "no such payment method").into());
        };
        let mut vault = vault.clone();
        vault.state = VaultState::Removed;
        let mut effects = Effects::answer(vault.clone());
        let mut owner = view.need::<Owner>(self.owner)?.clone();
        if owner.funding.as_ref().is_some_and(|funding| funding.vault == self.vault) {
            owner.funding = None;
            if let Some(tab) = owner.open_tab {
                freeze(view, &mut effects, &mut owner, tab)?;
            }
            effects.put(owner)?;
        }
        effects.event(
            "vault.changed",
            &[&vault.owner],
            json!({ "vault": vault.id, "state": vault.state }),
        );
        effects.put(vault)?;
        Ok(effects)
    }
}

fn freeze(
    view: &View,
    effects: &mut Effects<Vault>,
    owner: &mut Owner,
    tab: TabId,
) -> Result<(), Stop> {
    let mut tab = view.need::<Tab>(tab)?.clone();
    if tab.state == TabState::Open {
        tab.state = TabState::Frozen;
        owner.frozen_tab.get_or_insert(tab.id);
        effects.event("tab.frozen", &[&owner.id], json!({ "tab": tab.id }));
        effects.put(tab)?;
    }
    Ok(())
}
