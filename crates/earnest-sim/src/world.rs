//! A small Earnest without HTTP or PayPal: the units, a clock that tests turn, ids in a row, and
//! outcomes of PayPal calls as the test wants them.

#![allow(
    missing_docs,
    reason = "a method does what the unit of that name does, which says what it is"
)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use earnest_core::admin::{
    AddKey, CreateAgent, CreateOwner, CreateSeller, Creation, NewLimits, Pausable, Pause,
    PutOrigin, SetPolicy,
};
use earnest_core::answer::{AnswerApproval, Verdict};
use earnest_core::approval::{Approval, Grant};
use earnest_core::authorize::{self, Authorize, FreshIds, Outcome};
use earnest_core::cash::CashEntry;
use earnest_core::dispute::{Disputed, Withheld};
use earnest_core::id::{
    AgentId, ApprovalId, GrantId, IntentId, KeyId, ModelCallId, OwnerId, PurchaseId, QuoteId, Seed,
    SellerId, SettlementId, TabId, TransferId, VaultId, VoucherId,
};
use earnest_core::intent::{Charge, Claim, Claimed, Evidence, Fate, Intent, Purpose};
use earnest_core::invariant::{self, Breach, Fold, Rows};
use earnest_core::ledger::{Account, AccountId, Totals};
use earnest_core::lost::KeepLost;
use earnest_core::model::{EndCall, Ended, ModelCall, NewCall};
use earnest_core::money::{Currency, Micros};
use earnest_core::party::{Agent, ApiKey, Owner, Principal};
use earnest_core::policy::{Limits, Policy, PolicySubject};
use earnest_core::problem::Refusal;
use earnest_core::purchase::Purchase;
use earnest_core::quote::{Price, Quote, Resource};
use earnest_core::reconcile::Acknowledged;
use earnest_core::report::{Expire, LateLine, Resolve, Step, Tick, Told};
use earnest_core::reversal::{Book, Captured, Note, Reversal};
use earnest_core::settings::Settings;
use earnest_core::settlement::{Marker, RecordOutcome, Settle, Settled, Settlement, Terms};
use earnest_core::suspense::Suspended;
use earnest_core::tab::{CloseByOwner, OpenByOwner, Tab, WriteOff};
use earnest_core::time::{SignedDuration, Timestamp, Zone};
use earnest_core::treasurer::AskAdvice;
use earnest_core::unit::{Record, Unit};
use earnest_core::vault::{
    self, PaymentToken, RecordSetup, RecordToken, SetupToken, Vault, VaultState,
};
use earnest_core::voucher::{self, Claims};
use earnest_store::{ReadError, Reader, Store, SubmitError};

use crate::place::{Place, Ticking};
use crate::{Arrangement, Random};

/// Everything that a run acts on.
pub struct World {
    pub settings: Arc<Settings>,
    pub(crate) place: Place,
    clock: Arc<Ticking>,
    ids: Cell<u128>,
}

/// An owner with one agent and its key.
#[derive(Clone, Copy, Debug)]
pub struct Buyer {
    pub owner: OwnerId,
    pub agent: AgentId,
    pub key: KeyId,
}

/// A seller with its proved origin.
#[derive(Clone, Debug)]
pub struct Shop {
    pub id: SellerId,
    pub origin: String,
}

/// What proves the invoices of every world.
pub fn marker() -> Marker {
    Marker::derive(&[7; 32])
}

pub fn micros(amount: i64) -> Micros {
    Micros::new(amount).unwrap()
}

pub fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The code and reason of a refusal, as `code` or `code/reason`.
pub fn said(refusal: &Refusal) -> String {
    match refusal.reason {
        Some(reason) => format!("{}/{}", refusal.code, reason.as_str()),
        None => refusal.code.to_string(),
    }
}

impl World {
    /// Over books that somebody opened, by that clock.
    pub fn over(store: Store, settings: Settings, clock: Arc<Ticking>) -> Self {
        Self::at(Place::given(store), settings, clock)
    }

    /// Over new books in that arrangement.
    pub(crate) fn build(arrangement: Arrangement, settings: Settings, random: &mut Random) -> Self {
        let clock = Arc::new(Ticking::new());
        Self::at(Place::build(arrangement, random, clock.clock()), settings, clock)
    }

    fn at(place: Place, settings: Settings, clock: Arc<Ticking>) -> Self {
        Self { settings: Arc::new(settings), place, clock, ids: Cell::new(1) }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Turns the clock on.
    pub fn pass(&self, seconds: i64) {
        self.clock.pass(seconds);
    }

    pub fn set_clock(&self, to: &str) {
        self.clock.set(at(to));
    }

    /// Turns the clock and the report clock on together, as a server that is up does.
    pub fn live(&self, seconds: i64) {
        let mut left = seconds;
        self.run(Tick).unwrap();
        while left > 0 {
            let step = left.min(10);
            self.pass(step);
            self.run(Tick).unwrap();
            left -= step;
        }
    }

    /// Lives until a hold made now is given up.
    pub fn outlive(&self) {
        self.live(120 + self.settings.report_grace_seconds);
    }

    pub fn seed(&self) -> Seed {
        let random = self.ids.get();
        self.ids.set(random + 1);
        Seed { unix_ms: u64::try_from(self.now().as_millisecond()).unwrap(), random }
    }

    pub fn run<U: Unit>(&self, unit: U) -> Result<U::Answer, SubmitError> {
        self.place.run(unit)
    }

    pub(crate) fn run_together<U: Unit>(
        &self,
        units: Vec<U>,
    ) -> Vec<Result<U::Answer, SubmitError>> {
        self.place.run_together(units)
    }

    pub fn read<T>(&self, read: impl FnOnce(&Reader) -> Result<T, ReadError>) -> T {
        self.place.read(read)
    }

    pub fn row<R: Record>(&self, id: impl std::fmt::Display) -> R {
        self.read(|reader| reader.row(id)).unwrap()
    }

    pub fn totals(&self, account: AccountId) -> Totals {
        self.read(|reader| reader.totals(&account))
    }

    /// The four totals in thousandths of a dollar, as the hand-worked vectors write them.
    pub fn thousandths(&self, account: Account) -> String {
        let totals = self.totals(account.usd());
        let thousandth = |amount: Micros| {
            assert_eq!(amount.get() % 1_000, 0, "{amount} is no whole thousandth");
            (amount.get() / 1_000).to_string()
        };
        let sides = [
            totals.debits_pending,
            totals.debits_posted,
            totals.credits_pending,
            totals.credits_posted,
        ];
        sides.map(thousandth).join("/")
    }

    pub fn head(&self) -> u64 {
        self.read(Reader::head).seq
    }

    /// The kinds of the events after that entry.
    pub fn events_since(&self, seq: u64) -> Vec<String> {
        let events = self.read(|reader| reader.events(seq, 100)).events;
        events.into_iter().map(|event| event.event.kind).collect()
    }
}

/// People.
impl World {
    pub fn creation(&self, name: &str) -> Creation {
        Creation { by: Principal::Operator, name: name.to_owned(), key: None }
    }

    pub fn owner(&self) -> OwnerId {
        let (creation, id) = (self.creation("Ada"), OwnerId::new(self.seed()));
        self.run(CreateOwner { creation, id, zone: Zone::utc() }).unwrap();
        id
    }

    pub fn agent(&self, owner: OwnerId) -> Buyer {
        let (creation, agent) = (self.creation("scout"), AgentId::new(self.seed()));
        self.run(CreateAgent { creation, owner, id: agent }).unwrap();
        let key = self.add_key(Principal::Agent(agent), Some(owner));
        Buyer { owner, agent, key: key.id }
    }

    pub fn add_key(&self, principal: Principal, owner: Option<OwnerId>) -> ApiKey {
        let id = KeyId::new(self.seed());
        let hash = format!("hash of {id}");
        let (label, created_at) = ("test".to_owned(), self.now());
        let key = ApiKey { hash, id, principal, label, created_at, revoked_at: None };
        self.run(AddKey { key: key.clone(), owner }).unwrap();
        key
    }

    /// An owner with a payment method and an agent, and no limit but those of the test.
    pub fn buyer(&self) -> Buyer {
        self.buyer_with(Limits::default())
    }

    pub fn buyer_with(&self, limits: Limits) -> Buyer {
        let buyer = self.agent(self.owner());
        self.fund(buyer.owner);
        self.limit(PolicySubject::Owner(buyer.owner), buyer.owner, limits);
        buyer
    }

    pub fn limit(&self, subject: PolicySubject, owner: OwnerId, limits: Limits) {
        let version = self.row::<Policy>(subject).version;
        let limits = NewLimits::Written(Box::new(limits));
        self.run(SetPolicy { owner, subject, version, limits }).unwrap();
    }

    pub fn shop(&self) -> Shop {
        self.shop_with(0)
    }

    pub fn shop_with(&self, commission_ppm: u32) -> Shop {
        let (creation, id) = (self.creation("Weather"), SellerId::new(self.seed()));
        let payout_recipient = Some(format!("{id}@shops.example"));
        self.run(CreateSeller { creation, id, payout_recipient, commission_ppm }).unwrap();
        let origin = format!("https://shop{}.example", self.ids.get());
        self.run(PutOrigin { seller: id, origin: origin.clone(), proved: true }).unwrap();
        Shop { id, origin }
    }

    pub fn pause(&self, subject: Pausable, paused: bool) {
        self.run(Pause { subject, paused }).unwrap();
    }
}

/// PayPal, as far as a rule can tell: a claim, then an outcome.
impl World {
    pub fn evidence(&self, how: &str) -> Evidence {
        Evidence { at: self.now(), how: how.to_owned(), said: serde_json::Value::Null }
    }

    pub fn claim(&self, intent: IntentId) -> Result<Claimed, SubmitError> {
        let known: Intent = self.row(intent);
        let body = format!("body of {}", known.key);
        let request = Some((body.clone(), format!("sha256 of {body}")));
        self.run(Claim { intent, node: self.place.node(), lease_seconds: 60, request, there: None })
    }

    /// Claims without sending.
    pub fn look(&self, intent: IntentId) -> Claimed {
        let (node, lease_seconds, request) = (self.place.node(), 60, None);
        self.run(Claim { intent, node, lease_seconds, request, there: None }).unwrap()
    }

    pub fn fund(&self, owner: OwnerId) -> VaultId {
        let vault = self.begin_vault(owner);
        let intent = self.confirm_vault(vault);
        self.finish_vault(owner, vault, intent).unwrap();
        vault
    }

    pub fn begin_vault(&self, owner: OwnerId) -> VaultId {
        let (vault, intent) = (VaultId::new(self.seed()), IntentId::new(self.seed()));
        let begin = vault::Begin {
            owner,
            vault,
            intent,
            epoch: "e1".to_owned(),
            return_url: "https://earnest.example/done".to_owned(),
            cancel_url: "https://earnest.example/no".to_owned(),
        };
        self.run(begin).unwrap();
        let fence = self.claim(intent).unwrap().fence;
        let setup = SetupToken {
            token: format!("setup of {vault}"),
            approve_url: "https://paypal.example/".to_owned(),
        };
        let (fate, evidence) = (Fate::Done(setup), self.evidence("answer"));
        self.run(RecordSetup { vault, intent, fence, fate, evidence }).unwrap();
        vault
    }

    pub fn confirm_vault(&self, vault: VaultId) -> IntentId {
        let intent = IntentId::new(self.seed());
        self.run(vault::Confirm { vault, intent, epoch: "e1".to_owned() }).unwrap();
        intent
    }

    /// Ends what is left of vaulting that was broken off: PayPal says yes to what may still be
    /// sent, and knows nothing of the rest.
    pub fn end_vault(&self, vault: VaultId, intent: &Intent) -> VaultState {
        let sends = intent.may_send(self.now(), self.now());
        let fence = if sends { self.claim(intent.id).unwrap() } else { self.look(intent.id) }.fence;
        let (id, evidence) = (intent.id, self.evidence("answer"));
        let ended = match intent.purpose {
            Purpose::VaultSetup(_) => {
                let setup = SetupToken {
                    token: format!("setup of {vault}"),
                    approve_url: "https://paypal.example/".to_owned(),
                };
                let fate = if sends { Fate::Done(setup) } else { Fate::NotCharged };
                self.run(RecordSetup { vault, intent: id, fence, fate, evidence })
            }
            _ => {
                let owner = intent.owner;
                let token = PaymentToken {
                    token: format!("token of {vault}"),
                    customer: None,
                    payer_id: Some(format!("PAYER{owner}")),
                    email: None,
                };
                let replaces = self.row::<Owner>(owner).funding.map(|funding| funding.vault);
                let fate = if sends { Fate::Done(token) } else { Fate::NotCharged };
                self.run(RecordToken { owner, replaces, vault, intent: id, fence, fate, evidence })
            }
        };
        ended.unwrap().state
    }

    pub fn finish_vault(
        &self,
        owner: OwnerId,
        vault: VaultId,
        intent: IntentId,
    ) -> Result<Vault, SubmitError> {
        let payer = (Some(format!("PAYER{owner}")), Some(format!("{owner}@example.com")));
        self.finish_vault_by(owner, vault, intent, payer)
    }

    /// Puts a payment method of somebody's on file: a PayPal id, an address.
    pub fn fund_by(&self, owner: OwnerId, id: Option<&str>, address: Option<&str>) {
        let vault = self.begin_vault(owner);
        let intent = self.confirm_vault(vault);
        let payer = (id.map(str::to_owned), address.map(str::to_owned));
        self.finish_vault_by(owner, vault, intent, payer).unwrap();
    }

    fn finish_vault_by(
        &self,
        owner: OwnerId,
        vault: VaultId,
        intent: IntentId,
        (payer_id, email): (Option<String>, Option<String>),
    ) -> Result<Vault, SubmitError> {
        let fence = self.claim(intent)?.fence;
        let token =
            PaymentToken { token: format!("token of {vault}"), customer: None, payer_id, email };
        let replaces = self.row::<Owner>(owner).funding.map(|funding| funding.vault);
        let (fate, evidence) = (Fate::Done(token), self.evidence("answer"));
        self.run(RecordToken { owner, replaces, vault, intent, fence, fate, evidence })
    }

    /// A capture of exactly that, at the predicted fee.
    pub fn charge(&self, name: &str, amount: i64) -> Charge {
        let amount = micros(amount);
        Charge {
            paypal_order: Some(format!("ORDER-{name}")),
            paypal_capture: name.to_owned(),
            amount,
            fee: self.settings.fee.predict(amount),
            given_back: false,
        }
    }

    /// Sends a settlement's intent and records what became of it.
    pub fn outcome(
        &self,
        settlement: &Settlement,
        fate: Fate<Charge>,
    ) -> Result<Settlement, SubmitError> {
        let fence = self.claim(settlement.intent)?.fence;
        self.record(settlement, settlement.intent, fence, fate)
    }

    /// Records what a read-back told, without sending.
    pub fn learnt(
        &self,
        settlement: &Settlement,
        fate: Fate<Charge>,
    ) -> Result<Settlement, SubmitError> {
        let fence = self.look(settlement.intent).fence;
        self.record(settlement, settlement.intent, fence, fate)
    }

    pub fn record(
        &self,
        settlement: &Settlement,
        intent: IntentId,
        fence: u64,
        fate: Fate<Charge>,
    ) -> Result<Settlement, SubmitError> {
        self.run(RecordOutcome {
            owner: settlement.owner,
            tab: settlement.tab,
            settlement: settlement.id,
            intent,
            fence,
            fate,
            evidence: self.evidence("answer"),
            settings: self.settings.clone(),
        })
    }

    /// Captures a settlement as asked.
    pub fn capture(&self, settlement: &Settlement) -> Settlement {
        let name = format!("CAP-{}-{}", settlement.id, settlement.attempt);
        let charge = self.charge(&name, settlement.amount_micros.get());
        self.outcome(settlement, Fate::Done(charge)).unwrap()
    }

    /// The key under which a settlement's attempt is sent.
    pub fn key_of(&self, settlement: &Settlement) -> String {
        self.row::<Intent>(settlement.intent).key
    }

    pub fn decline(&self, settlement: &Settlement) -> Settlement {
        let issue = "INSTRUMENT_DECLINED".to_owned();
        self.outcome(settlement, Fate::Declined { issue }).unwrap()
    }
}

/// Buying.
impl World {
    pub fn quote(&self, shop: &Shop, path: &str, price: Price) -> Quote {
        let url = format!("{}{path}", shop.origin);
        Quote {
            id: QuoteId::new(self.seed()),
            seller: shop.id,
            listing: "GET /*".to_owned(),
            request: Resource::new("GET", &url, b"").unwrap(),
            price,
            currency: Currency::Usd,
            expires_at: earnest_core::time::after(self.now(), 600),
        }
    }

    pub fn fixed(&self, shop: &Shop, price: i64) -> Quote {
        self.quote(shop, "/", Price::Fixed(micros(price)))
    }

    pub fn fresh_ids(&self) -> FreshIds {
        FreshIds {
            purchase: PurchaseId::new(self.seed()),
            hold: TransferId::new(self.seed()),
            voucher: VoucherId::new(self.seed()),
            tab: TabId::new(self.seed()),
            carry: TransferId::new(self.seed()),
            approval: ApprovalId::new(self.seed()),
        }
    }

    pub fn unit(&self, buyer: Buyer, request_id: &str, quote: &Quote) -> Authorize {
        Authorize {
            owner: buyer.owner,
            agent: buyer.agent,
            api_key: buyer.key,
            quote: quote.clone(),
            max_price: quote.price.most(),
            request_id: request_id.to_owned(),
            ids: self.fresh_ids(),
            settings: self.settings.clone(),
        }
    }

    pub fn authorize(
        &self,
        buyer: Buyer,
        request_id: &str,
        quote: &Quote,
    ) -> Result<authorize::Answer, SubmitError> {
        self.run(self.unit(buyer, request_id, quote))
    }

    /// What a request id is bound to, as it stands.
    pub fn bound(&self, buyer: Buyer, request_id: &str) -> Option<Purchase> {
        let scope = buyer.agent.to_string();
        let line = self.read(|reader| reader.key(&scope, "purchase", request_id))?;
        Some(self.row(line.key.bound?))
    }

    /// What an authorization comes to, in one word: `held`, `waiting`, `resolved`, or the refusal;
    /// with `again ` before it where it repeats an earlier answer.
    pub fn word(&self, buyer: Buyer, request_id: &str, quote: &Quote) -> String {
        let (outcome, replayed) = match self.authorize(buyer, request_id, quote) {
            Ok(answer) => (answer.outcome, answer.replayed),
            Err(SubmitError::Refused(refusal)) => return said(&refusal),
            Err(other) => panic!("{other}"),
        };
        let word = match outcome {
            Outcome::Held(_) => "held".to_owned(),
            Outcome::Waiting(..) => "waiting".to_owned(),
            Outcome::Resolved(_) => "resolved".to_owned(),
            Outcome::Denied(_, refusal) => said(&refusal),
        };
        if replayed { format!("again {word}") } else { word }
    }

    /// Buys something fresh; it must be held.
    pub fn buy(&self, buyer: Buyer, shop: &Shop, price: i64) -> Purchase {
        let request_id = format!("r{}", self.ids.get());
        self.buy_as(buyer, &request_id, &self.fixed(shop, price))
    }

    pub fn buy_as(&self, buyer: Buyer, request_id: &str, quote: &Quote) -> Purchase {
        match self.authorize(buyer, request_id, quote).unwrap().outcome {
            Outcome::Held(purchase) => *purchase,
            other => panic!("{other:?}"),
        }
    }

    /// Asks for something that has to wait for its owner.
    pub fn ask(&self, buyer: Buyer, request_id: &str, quote: &Quote) -> (Purchase, Approval) {
        match self.authorize(buyer, request_id, quote).unwrap().outcome {
            Outcome::Waiting(purchase, approval) => (*purchase, *approval),
            other => panic!("{other:?}"),
        }
    }

    pub fn answer(&self, approval: &Approval, verdict: Verdict) -> Result<Approval, SubmitError> {
        let (owner, agent, approval) = (approval.owner, approval.agent, approval.id);
        self.run(AnswerApproval { owner, agent, approval, version: None, verdict })
    }

    pub fn grant(&self, approval: &Approval, cap: i64, seconds: i64) -> GrantId {
        let id = GrantId::new(self.seed());
        self.answer(approval, Verdict::Grant { id, cap: micros(cap), seconds }).unwrap();
        id
    }

    pub fn claims(&self, purchase: &Purchase) -> Claims {
        purchase.claims("https://earnest.example").unwrap()
    }

    pub fn told(&self, claims: &Claims, fate: voucher::Fate) -> Told {
        let latest = Timestamp::from_second(claims.exp - 1).unwrap();
        let claimed_at = self.now().min(latest);
        Told { seller: claims.aud, claims: claims.clone(), fate, claimed_at, amount: None }
    }

    /// Reports as the API does: the hold first, a late line where none is pending, and what a lost
    /// life sold is kept.
    pub fn report(&self, told: &Told) -> Step {
        for _ in 0..5 {
            let purchase: Purchase = self.row(told.claims.sub);
            let (told, tab, settings) = (told.clone(), purchase.tab, self.settings.clone());
            let mut step =
                self.run(Resolve { told: told.clone(), tab, settings: settings.clone() }).unwrap();
            if step == Step::Late {
                let (owner, agent) = (purchase.owner, purchase.agent);
                let (chain, no_tab) = (TransferId::new(self.seed()), TabId::new(self.seed()));
                let told = told.clone();
                step = self.run(LateLine { told, owner, agent, chain, no_tab, settings }).unwrap();
            }
            if step == Step::Lost {
                step = self.run(KeepLost { told }).unwrap();
            }
            if step != Step::Moved {
                return step;
            }
        }
        panic!("the purchase moves for ever");
    }

    pub fn redeem(&self, claims: &Claims) -> Step {
        self.report(&self.told(claims, voucher::Fate::Redeemed))
    }

    /// Buys and redeems.
    pub fn spend(&self, buyer: Buyer, shop: &Shop, price: i64) -> Purchase {
        let purchase = self.buy(buyer, shop, price);
        let step = self.redeem(&self.claims(&purchase));
        assert_eq!(step, Step::Done(voucher::ReportOutcome::Billed, Some(micros(price))));
        self.row(purchase.id)
    }

    /// Gives up the hold of a purchase if its time has come.
    pub fn expire(&self, purchase: PurchaseId) -> bool {
        let tab = self.row::<Purchase>(purchase).tab;
        self.run(Expire { purchase, tab }).unwrap()
    }
}

/// Tabs.
impl World {
    pub fn tab(&self, tab: TabId) -> Tab {
        self.row(tab)
    }

    pub fn owned(&self, buyer: Buyer) -> Owner {
        self.row(buyer.owner)
    }

    pub fn open_tab(&self, buyer: Buyer) -> TabId {
        self.owned(buyer).open_tab.unwrap()
    }

    pub fn open(&self, owner: OwnerId) -> Result<Tab, SubmitError> {
        let (tab, chain) = (TabId::new(self.seed()), TransferId::new(self.seed()));
        self.run(OpenByOwner { owner, tab, chain, settings: (*self.settings).clone() })
    }

    pub fn close(&self, owner: OwnerId, tab: TabId) -> Result<Tab, SubmitError> {
        self.run(CloseByOwner { owner, tab })
    }

    pub fn treasure(&self, owner: OwnerId, tab: TabId, asked: bool) -> Settled {
        let policy = self.row::<Policy>(PolicySubject::Owner(owner));
        self.run(Settle {
            owner,
            tab,
            settlement: SettlementId::new(self.seed()),
            intent: IntentId::new(self.seed()),
            hold: TransferId::new(self.seed()),
            epoch: "e1".to_owned(),
            marker: marker(),
            asked,
            key: None,
            terms: Terms::of(Some(&policy)),
            settings: self.settings.clone(),
        })
        .unwrap()
    }

    /// Settles on request, in another epoch than the first.
    pub fn treasure_in(&self, owner: OwnerId, tab: TabId, epoch: &str) -> Settlement {
        let settled = self.run(Settle {
            owner,
            tab,
            settlement: SettlementId::new(self.seed()),
            intent: IntentId::new(self.seed()),
            hold: TransferId::new(self.seed()),
            epoch: epoch.to_owned(),
            marker: marker(),
            asked: true,
            key: None,
            terms: Terms::default(),
            settings: self.settings.clone(),
        });
        match settled.unwrap() {
            Settled::Planned(settlement) => *settlement,
            other => panic!("{other:?}"),
        }
    }

    /// Settles on request; it must be worth at least a cent.
    pub fn settle(&self, owner: OwnerId, tab: TabId) -> Settlement {
        match self.treasure(owner, tab, true) {
            Settled::Planned(settlement) => *settlement,
            other => panic!("{other:?}"),
        }
    }

    /// PayPal gives a part of a settlement's capture back; whether that could be booked.
    pub fn give_back(&self, settlement: &Settlement, id: &str, amount: i64) -> bool {
        let settlement: Settlement = self.row(settlement.id.to_string());
        let capture = settlement.paypal_capture.unwrap();
        let of = Some(Captured {
            intent: settlement.intent,
            settlement: settlement.id,
            owner: settlement.owner,
        });
        self.run(Note { capture: capture.clone(), of, named: Some(id.to_owned()) }).unwrap();
        let (id, amount, fee_returned) = (id.to_owned(), micros(amount), Micros::ZERO);
        let suspended = self.read(|reader| reader.row::<Suspended>(&capture));
        let cleared = suspended.iter().flat_map(|row| &row.cleared);
        let cleared_for = cleared.map(|one| one.owner).collect();
        self.run(Book { capture, of, id, amount, fee_returned, cleared_for }).unwrap()
    }

    pub fn write_off(&self, owner: OwnerId, tab: TabId) -> Result<(Tab, Micros), SubmitError> {
        self.run(WriteOff { owner, tab, chain: TransferId::new(self.seed()), key: None })
    }
}

/// Models.
impl World {
    /// Asks the advisor about a tab, for at most 50.
    pub fn ask_model(&self, tab: TabId, interval: i64, cap: i64) -> Option<ModelCall> {
        let call = NewCall {
            id: ModelCallId::new(self.seed()),
            role: "advisor",
            model: "m".to_owned(),
            reserve: micros(50),
            daily_cap: micros(cap),
        };
        self.run(AskAdvice { tab, interval_seconds: interval, call }).unwrap()
    }

    /// The call cost so much; `None` where nobody knows.
    pub fn end_call(&self, id: ModelCallId, cost: Option<i64>) -> Option<Micros> {
        let cost = cost.map(micros);
        let (input_tokens, output_tokens, outcome) = (None, None, "answered".to_owned());
        let ended = Some(Ended { cost, input_tokens, output_tokens, outcome });
        self.run(EndCall { id, ended }).unwrap()
    }
}

/// Judging.
impl World {
    /// Every row of one kind.
    pub fn all<R: Record>(&self) -> Vec<R> {
        let page = self.read(|reader| reader.all::<R>(None, 1_000_000));
        assert_eq!(page.next, None);
        page.items
    }

    fn by<R: Record, K: Ord>(&self, key: impl Fn(&R) -> K) -> BTreeMap<K, R> {
        self.all::<R>().into_iter().map(|row| (key(&row), row)).collect()
    }

    pub fn rows(&self) -> Rows {
        Rows {
            owners: self.all::<Owner>().into_iter().map(|row| (row.id, row)).collect(),
            agents: self.all::<Agent>().into_iter().map(|row| (row.id, row)).collect(),
            tabs: self.all::<Tab>().into_iter().map(|row| (row.id, row)).collect(),
            purchases: self.all::<Purchase>().into_iter().map(|row| (row.id, row)).collect(),
            approvals: self.all::<Approval>().into_iter().map(|row| (row.id, row)).collect(),
            grants: self.all::<Grant>().into_iter().map(|row| (row.id, row)).collect(),
            settlements: self.all::<Settlement>().into_iter().map(|row| (row.id, row)).collect(),
            intents: self.all::<Intent>().into_iter().map(|row| (row.id, row)).collect(),
            reversals: self.by(|row: &Reversal| row.capture.clone()),
            suspended: self.by(|row: &Suspended| row.capture.clone()),
            cash_entries: self.by(|row: &CashEntry| row.paypal_id.clone()),
            withheld: self.by(|row: &Withheld| row.paypal_id.clone()),
            disputed: self.by(|row: &Disputed| row.capture.clone()),
            acknowledged: self.by(|row: &Acknowledged| row.paypal_id.clone()),
            reconciliation: self.all().pop(),
            model_calls: self.all::<ModelCall>().into_iter().map(|row| (row.id, row)).collect(),
        }
    }

    /// Brings a fold of the log up to its head; gives how far that is.
    pub fn fold(&self, fold: &mut Fold, from: u64) -> u64 {
        let entries = self.read(|reader| reader.log(from, 1_000_000));
        for entry in &entries {
            entry.entry.ops.iter().for_each(|op| fold.take(op));
        }
        entries.last().map_or(from, |last| last.entry.seq)
    }

    /// Every breach of every invariant, in the books as they stand.
    pub fn breaches(&self) -> Vec<Breach> {
        let mut fold = Fold::default();
        self.fold(&mut fold, 0);
        self.breaches_of(&fold)
    }

    /// The same, with the log folded already.
    pub fn breaches_of(&self, fold: &Fold) -> Vec<Breach> {
        let mut breaches = invariant::check(&self.rows(), fold);
        for (account, sums) in &fold.accounts {
            let totals = self.totals(*account);
            if !sums.agrees(&totals) {
                let detail = format!("`{account}`: {sums:?} folded, {totals:?} stored");
                breaches.push(Breach { invariant: "totals_are_the_fold", detail });
            }
        }
        breaches
    }

    pub fn check(&self) {
        let breaches = self.breaches();
        assert!(breaches.is_empty(), "{breaches:#?}");
    }
}

/// What a time span is in seconds.
pub fn hours(hours: i64) -> i64 {
    SignedDuration::from_hours(hours).as_secs()
}
