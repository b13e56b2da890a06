//! A small business for the tests: owners with credit, sellers, purchases under a cap.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use earnest_core::id::{AgentId, OwnerId, SellerId, SessionId, TransferId};
use earnest_core::ledger::{Account, AccountId, Cause, Leg, Op, Subject, Window};
use earnest_core::money::Micros;
use earnest_core::problem::{Code, Reason, Refusal};
use earnest_core::time::Timestamp;
use earnest_core::unit::{
    Effects, Fingerprint, Key, KeyUse, ListEntry, Record, Stop, Touches, Unit, View, rank,
};
use earnest_store::{Clock, Options, Store};
use serde::{Deserialize, Serialize};

/// A clock that goes on by a millisecond at every look, so that runs are alike.
pub fn clock() -> Clock {
    let ticks = AtomicI64::new(1_790_000_000_000);
    Arc::new(move || Timestamp::from_millisecond(ticks.fetch_add(1, Ordering::Relaxed)).unwrap())
}

pub fn memory() -> Store {
    Store::open(Options::memory("simulated", clock())).unwrap()
}

pub fn options(folder: &Path) -> Options {
    Options::file(folder.join("books.db"), "simulated", clock())
}

/// Books on a server, with the tests' clock.
pub fn server(url: &str) -> Options {
    let mut options = Options::server(url, "simulated", clock());
    options.server_clock = false;
    options
}

pub fn sqlite(folder: &Path) -> Store {
    Store::open(options(folder)).unwrap()
}

pub fn owner(n: u128) -> OwnerId {
    OwnerId::from_value(n)
}

pub fn credit(n: u128) -> AccountId {
    Account::OwnerCredit(owner(n)).usd()
}

pub fn earned(n: u128) -> AccountId {
    Account::SellerAccrued(SellerId::from_value(n)).usd()
}

pub fn cap(n: u128) -> AccountId {
    let window = Window::Session(SessionId::from_value(1));
    Account::Limit(Subject::Agent(AgentId::from_value(n)), window).usd()
}

pub fn memo() -> AccountId {
    Account::Memo.usd()
}

pub fn micros(amount: i64) -> Micros {
    Micros::new(amount).unwrap()
}

pub fn chain(n: u128) -> TransferId {
    TransferId::from_value(n)
}

/// An owner's guard row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    pub owner: OwnerId,
    pub purchases: u64,
    pub last: Option<String>,
}

impl Record for Guard {
    const KIND: &'static str = "guard";
    const RANK: u8 = rank::OWNER;
    fn id(&self) -> String {
        self.owner.to_string()
    }
}

/// A purchase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bought {
    pub id: String,
    pub owner: OwnerId,
    pub amount: Micros,
    pub state: String,
    pub at: Timestamp,
}

impl Record for Bought {
    const KIND: &'static str = "bought";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.id.clone()
    }
    fn lists(&self) -> Vec<ListEntry> {
        vec![
            ListEntry::timed("bought", "", self.at),
            ListEntry::timed("bought", self.owner, self.at),
            ListEntry::timed("bought_by_state", &self.state, self.at),
        ]
    }
}

/// The operator gives an owner credit.
pub struct Deposit {
    pub id: TransferId,
    pub owner: u128,
    pub amount: i64,
}

impl Unit for Deposit {
    type Answer = ();
    fn name(&self) -> &'static str {
        "deposit"
    }
    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.hold(self.id);
        touches.account(Account::PaypalCash.usd());
        touches.account(credit(self.owner));
        touches
    }
    fn decide(&self, _: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut effects = Effects::answer(());
        let leg = Leg::new(Account::PaypalCash.usd(), credit(self.owner), micros(self.amount));
        effects.op(Op::Move { id: self.id, cause: Cause::Deposit, legs: vec![leg] });
        Ok(effects)
    }
}

/// A purchase under a cap: a hold, a row, a guard row, an event, a key.
#[derive(Clone)]
pub struct Buy {
    pub request: Option<String>,
    pub id: u128,
    pub owner: u128,
    pub seller: u128,
    pub amount: i64,
    pub cap: i64,
}

impl Buy {
    pub fn new(id: u128, owner: u128, amount: i64) -> Self {
        let request = Some(format!("request-{id}"));
        Self { request, id, owner, seller: 1, amount, cap: 1_000_000_000 }
    }

    pub fn chain(&self) -> TransferId {
        chain(self.id)
    }

    pub fn row(&self) -> String {
        format!("pur-{:08}", self.id)
    }
}

/// What a purchase answers: its row, and whether this was the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub row: String,
    pub first: bool,
}

impl Unit for Buy {
    type Answer = Answer;

    fn name(&self) -> &'static str {
        "buy"
    }

    fn key(&self) -> Option<Key> {
        let name = self.request.clone()?;
        let amount = self.amount.to_be_bytes();
        let fingerprint = Fingerprint::of(&[&amount, &self.seller.to_be_bytes()]);
        let scope = AgentId::from_value(self.owner).to_string();
        Some(Key { scope, family: "purchase", name, fingerprint })
    }

    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Guard>(owner(self.owner));
        // Known only once the guard was read, as the rows of a tab would be.
        if view.has_row(&earnest_core::unit::RowKey {
            kind: Guard::KIND,
            id: owner(self.owner).to_string(),
        }) {
            touches.row::<Bought>(view.key().bound().unwrap_or(&self.row()));
        }
        touches.hold(self.chain());
        for account in [credit(self.owner), earned(self.seller), cap(self.owner), memo()] {
            touches.account(account);
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<Answer>, Stop> {
        if let KeyUse::Other { .. } = view.key() {
            return Err(Refusal::new(Code::IdempotencyConflict, "used before").into());
        }
        if let Some(bound) = view.key().bound() {
            let row = view.need::<Bought>(bound)?.id.clone();
            return Ok(Effects::answer(Answer { row, first: false }));
        }
        let amount = micros(self.amount);
        let room = micros(self.cap);
        let used = view.totals(cap(self.owner))?.debits().unwrap_or(Micros::MAX);
        if used.checked_add(amount).is_none_or(|sum| sum > room) {
            let why = Refusal::denied(Reason::DailyCap, "above the cap");
            return Err(why.amount("used", used).into());
        }
        if view.totals(credit(self.owner))?.available() < amount {
            return Err(Refusal::new(Code::InsufficientCredit, "not enough").into());
        }
        let mut effects = Effects::answer(Answer { row: self.row(), first: true });
        let legs = vec![
            Leg::new(credit(self.owner), earned(self.seller), amount),
            Leg::new(cap(self.owner), memo(), amount).within(room),
        ];
        effects.op(Op::Hold { id: self.chain(), cause: Cause::TabLine, legs });
        let (id, owner) = (self.row(), owner(self.owner));
        let guard = view.row::<Guard>(owner)?;
        let purchases = guard.map_or(0, |guard| guard.purchases) + 1;
        effects.put(Guard { owner, purchases, last: Some(id.clone()) })?;
        effects.put(Bought { id: id.clone(), owner, amount, state: "held".into(), at: now })?;
        effects.event("bought.held", &[&owner], serde_json::json!({ "id": id, "n": purchases }));
        effects.bind(id);
        Ok(effects)
    }
}

/// The end of a purchase: posted up to what was held, or voided at 0.
pub struct Finish {
    pub buy: Buy,
    pub amount: i64,
}

impl Unit for Finish {
    type Answer = ();
    fn name(&self) -> &'static str {
        "finish"
    }
    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Bought>(self.buy.row());
        touches.hold_and_accounts(self.buy.chain(), view);
        touches
    }
    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<()>, Stop> {
        let mut row = view.need::<Bought>(self.buy.row())?.clone();
        let mut effects = Effects::answer(());
        let id = self.buy.chain();
        if self.amount == 0 {
            effects.op(Op::Void { id });
            row.state = "voided".into();
        } else {
            effects.op(Op::Post { id, amounts: vec![micros(self.amount); 2] });
            row.state = "posted".into();
        }
        effects.put(row)?;
        Ok(effects)
    }
}

type Decide = Box<dyn Fn(&View) -> Result<Effects<String>, Stop> + Send>;
type Touch = Box<dyn Fn(&View) -> Touches + Send>;

/// A unit made up on the spot.
pub struct Script {
    pub key: Option<Key>,
    pub touch: Touch,
    pub decide: Decide,
}

impl Script {
    pub fn new(
        touch: impl Fn(&View) -> Touches + Send + 'static,
        decide: impl Fn(&View) -> Result<Effects<String>, Stop> + Send + 'static,
    ) -> Self {
        Self { key: None, touch: Box::new(touch), decide: Box::new(decide) }
    }

    pub fn keyed(mut self, name: &str, argument: &str) -> Self {
        let fingerprint = Fingerprint::of(&[argument.as_bytes()]);
        self.key =
            Some(Key { scope: "me".into(), family: "script", name: name.into(), fingerprint });
        self
    }
}

impl Unit for Script {
    type Answer = String;
    fn name(&self) -> &'static str {
        "script"
    }
    fn key(&self) -> Option<Key> {
        self.key.clone()
    }
    fn touches(&self, view: &View, _: Timestamp) -> Touches {
        (self.touch)(view)
    }
    fn decide(&self, view: &View, _: Timestamp) -> Result<Effects<String>, Stop> {
        (self.decide)(view)
    }
}

/// A small generator, so that a run is told by its seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// Everything the world's audits know of rows.
pub fn audit(store: &Store) -> Result<(), String> {
    let audit = earnest_store::audit::Audit::new().kind::<Guard>().kind::<Bought>();
    let found = audit.run(store.reader()).map_err(|why| why.to_string())?;
    match found.first() {
        None => Ok(()),
        Some(first) => Err(first.to_string()),
    }
}

/// Says why a suite fails, so that the same suite can be shown to fail on a planted bug.
pub fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
