//! The state machine under every movement of money: accounts, transfers, holds.
//!
//! An account keeps four totals. A *leg* moves an amount from one account to another (written
//! `debit -> credit`); legs form *chains* that succeed or fail together. A pending chain is a
//! **hold**: it is posted once (each leg up to its pending amount, the rest released) or voided
//! once. Nothing is ever changed afterwards: a wrong transfer is corrected by another.
//!
//! [`apply`] is deterministic and does no IO. It refuses rather than bends; what it refuses moves
//! nothing. Guards stand in order of precedence, then nothing can fail any more.

use std::fmt;
use std::str::FromStr;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::id::{AgentId, GrantId, IntentId, OwnerId, SellerId, SessionId, TabId, TransferId};
use crate::money::{Currency, Micros};
use crate::policy::{Period, Tag};

/// What is counted on an account. Text forms (`tab:ID:owed`) are those of the design's table.
///
/// `disputes` and `order:ID:authorized` join with their flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Account {
    /// Our PayPal balance (debit side).
    PaypalCash,
    /// Fees PayPal took, actual (debit side).
    PaypalFees,
    /// Opening balance, deposits, withdrawals (credit side).
    OperatorFunds,
    /// Commission and fees passed on (credit side).
    PlatformRevenue,
    /// Written off (debit side).
    Losses,
    /// Money that PayPal withholds (debit side).
    Disputes,
    /// Arrived and matches nothing; listed for review (credit side).
    Suspense,
    /// What models cost (debit side).
    ModelCosts,
    /// What whoever runs the models is owed for it (credit side).
    ModelPayable,
    /// Counter-account of every other memo leg; no limit.
    Memo,
    /// Counter-account of the limit legs of one day; no limit. A purchase has several of them, so one
    /// account for all days would be full long before any account of money.
    MemoDay(Date),
    /// Prepaid credit (credit side); debits incl. pending <= credits posted.
    OwnerCredit(OwnerId),
    /// A reversal after the credit was spent (debit side).
    OwnerDebt(OwnerId),
    /// Lines not yet captured (debit side); credits incl. pending <= debits posted.
    TabOwed(TabId),
    /// Earned, not yet due (credit side); debits incl. pending <= credits posted.
    SellerAccrued(SellerId),
    /// Due; payouts draw on this only (credit side); debits incl. pending <= credits posted.
    SellerPayable(SellerId),
    /// A refund after payout; later accruals repay it first (debit side).
    SellerDebt(SellerId),
    /// Memo: what of a capture may still be given back; debits incl. pending <= credits posted.
    CaptureRefundable(IntentId),
    /// Memo: room used under a cap. The cap itself is a number carried in the leg.
    Limit(Subject, Window),
}

/// Whose cap a limit account counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// All of an owner's agents together.
    Owner(OwnerId),
    /// One agent.
    Agent(AgentId),
    /// Every call to a model that this installation makes.
    Models,
}

/// The window a cap counts in, fixed when the hold is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Window {
    /// The time a tab or credit grant is open.
    Session(SessionId),
    /// A calendar day in the owner's zone.
    Day(Date),
    /// A bounded permission: money and time.
    Grant(GrantId),
    /// A budget of a policy in one stretch of days.
    Budget(Counted, Period),
}

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counted {
    /// Money to one seller.
    Seller(SellerId),
    /// Money under a constraint.
    Spend(Tag),
    /// Purchases under a constraint, one micro-unit each.
    Uses(Tag),
}

/// What must hold on an account after every chain that touches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cover {
    /// No limit of its own.
    Free,
    /// Debits incl. pending <= credits posted.
    CreditsCoverDebits,
    /// Credits incl. pending <= debits posted.
    DebitsCoverCredits,
}

impl Account {
    /// The account in US dollars.
    pub const fn usd(self) -> AccountId {
        AccountId { account: self, currency: Currency::Usd }
    }

    /// Whether the account only keeps count and holds no money: shown apart in a trial balance.
    pub const fn is_memo(self) -> bool {
        matches!(self, Self::Memo | Self::MemoDay(_) | Self::CaptureRefundable(_) | Self::Limit(..))
    }

    /// What kind of account it is, whosever it is: for sums that name nobody.
    pub const fn class(self) -> &'static str {
        match self {
            Self::PaypalCash => "paypal_cash",
            Self::PaypalFees => "paypal_fees",
            Self::OperatorFunds => "operator_funds",
            Self::PlatformRevenue => "platform_revenue",
            Self::Losses => "losses",
            Self::Disputes => "disputes",
            Self::Suspense => "suspense",
            Self::ModelCosts => "model_costs",
            Self::ModelPayable => "model_payable",
            Self::OwnerCredit(_) => "owner_credit",
            Self::OwnerDebt(_) => "owner_debt",
            Self::TabOwed(_) => "tab_owed",
            Self::SellerAccrued(_) => "seller_accrued",
            Self::SellerPayable(_) => "seller_payable",
            Self::SellerDebt(_) => "seller_debt",
            Self::Memo | Self::MemoDay(_) | Self::CaptureRefundable(_) | Self::Limit(..) => "memo",
        }
    }

    const fn cover(self) -> Cover {
        match self {
            Self::OwnerCredit(_)
            | Self::SellerAccrued(_)
            | Self::SellerPayable(_)
            | Self::CaptureRefundable(_) => Cover::CreditsCoverDebits,
            Self::TabOwed(_) => Cover::DebitsCoverCredits,
            _ => Cover::Free,
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PaypalCash => f.write_str("paypal_cash"),
            Self::PaypalFees => f.write_str("paypal_fees"),
            Self::OperatorFunds => f.write_str("operator_funds"),
            Self::PlatformRevenue => f.write_str("platform_revenue"),
            Self::Losses => f.write_str("losses"),
            Self::Disputes => f.write_str("disputes"),
            Self::Suspense => f.write_str("suspense"),
            Self::ModelCosts => f.write_str("model_costs"),
            Self::ModelPayable => f.write_str("model_payable"),
            Self::Memo => f.write_str("memo"),
            Self::MemoDay(day) => write!(f, "memo:{day}"),
            Self::OwnerCredit(id) => write!(f, "owner:{id}:credit"),
            Self::OwnerDebt(id) => write!(f, "owner:{id}:debt"),
            Self::TabOwed(id) => write!(f, "tab:{id}:owed"),
            Self::SellerAccrued(id) => write!(f, "seller:{id}:accrued"),
            Self::SellerPayable(id) => write!(f, "seller:{id}:payable"),
            Self::SellerDebt(id) => write!(f, "seller:{id}:debt"),
            Self::CaptureRefundable(id) => write!(f, "capture:{id}:refundable"),
            Self::Limit(subject, window) => write!(f, "limit:{subject}:{window}"),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner(id) => id.fmt(f),
            Self::Agent(id) => id.fmt(f),
            Self::Models => f.write_str(MODELS),
        }
    }
}

/// What [`Subject::Models`] is called; no id looks like it.
const MODELS: &str = "models";

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(id) => write!(f, "session:{id}"),
            Self::Day(day) => write!(f, "day:{day}"),
            Self::Grant(id) => write!(f, "grant:{id}"),
            Self::Budget(Counted::Seller(id), period) => write!(f, "seller:{id}/{period}"),
            Self::Budget(Counted::Spend(tag), period) => write!(f, "budget:{tag}/{period}"),
            Self::Budget(Counted::Uses(tag), period) => write!(f, "uses:{tag}/{period}"),
        }
    }
}

/// A text that names no account.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an account")]
pub struct UnknownAccount(pub String);

impl FromStr for Account {
    type Err = UnknownAccount;

    fn from_str(text: &str) -> Result<Self, UnknownAccount> {
        let unknown = || UnknownAccount(text.to_owned());
        let parts: Vec<&str> = text.split(':').collect();
        let account = match parts.as_slice() {
            ["paypal_cash"] => Self::PaypalCash,
            ["paypal_fees"] => Self::PaypalFees,
            ["operator_funds"] => Self::OperatorFunds,
            ["platform_revenue"] => Self::PlatformRevenue,
            ["losses"] => Self::Losses,
            ["disputes"] => Self::Disputes,
            ["suspense"] => Self::Suspense,
            ["model_costs"] => Self::ModelCosts,
            ["model_payable"] => Self::ModelPayable,
            ["memo"] => Self::Memo,
            ["memo", day] => Self::MemoDay(day.parse().map_err(|_| unknown())?),
            ["owner", id, "credit"] => Self::OwnerCredit(id.parse().map_err(|_| unknown())?),
            ["owner", id, "debt"] => Self::OwnerDebt(id.parse().map_err(|_| unknown())?),
            ["tab", id, "owed"] => Self::TabOwed(id.parse().map_err(|_| unknown())?),
            ["seller", id, "accrued"] => Self::SellerAccrued(id.parse().map_err(|_| unknown())?),
            ["seller", id, "payable"] => Self::SellerPayable(id.parse().map_err(|_| unknown())?),
            ["seller", id, "debt"] => Self::SellerDebt(id.parse().map_err(|_| unknown())?),
            ["capture", id, "refundable"] => {
                Self::CaptureRefundable(id.parse().map_err(|_| unknown())?)
            }
            ["limit", subject, kind, window] => Self::Limit(
                parse_subject(subject).ok_or_else(unknown)?,
                parse_window(kind, window).ok_or_else(unknown)?,
            ),
            _ => return Err(unknown()),
        };
        Ok(account)
    }
}

fn parse_subject(text: &str) -> Option<Subject> {
    if text == MODELS {
        return Some(Subject::Models);
    }
    let owner = text.parse().map(Subject::Owner).ok();
    owner.or_else(|| text.parse().map(Subject::Agent).ok())
}

fn parse_window(kind: &str, text: &str) -> Option<Window> {
    match kind {
        "session" => text.parse().map(Window::Session).ok(),
        "day" => text.parse().map(Window::Day).ok(),
        "grant" => text.parse().map(Window::Grant).ok(),
        _ => {
            let (what, period) = text.split_once('/')?;
            let counted = match kind {
                "seller" => Counted::Seller(what.parse().ok()?),
                "budget" => Counted::Spend(what.parse().ok()?),
                "uses" => Counted::Uses(what.parse().ok()?),
                _ => return None,
            };
            Some(Window::Budget(counted, period.parse().ok()?))
        }
    }
}

/// An account in one currency; the same name in another currency is another account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId {
    /// What is counted.
    pub account: Account,
    /// In which currency.
    pub currency: Currency,
}

impl fmt::Display for AccountId {
    /// `USD tab:ID:owed`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.currency, self.account)
    }
}

impl FromStr for AccountId {
    type Err = UnknownAccount;
    fn from_str(text: &str) -> Result<Self, UnknownAccount> {
        let unknown = || UnknownAccount(text.to_owned());
        let (currency, account) = text.split_once(' ').ok_or_else(unknown)?;
        let currency = Currency::parse(currency).map_err(|_| unknown())?;
        Ok(Self { account: account.parse()?, currency })
    }
}

impl Serialize for AccountId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AccountId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The four totals of an account, each the sum of its transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Reserved on the debit side.
    pub debits_pending: Micros,
    /// Final on the debit side.
    pub debits_posted: Micros,
    /// Reserved on the credit side.
    pub credits_pending: Micros,
    /// Final on the credit side.
    pub credits_posted: Micros,
}

impl Totals {
    /// Debits, pending ones included; `None` on overflow.
    pub fn debits(&self) -> Option<Micros> {
        self.debits_pending.checked_add(self.debits_posted)
    }

    /// Credits, pending ones included; `None` on overflow.
    pub fn credits(&self) -> Option<Micros> {
        self.credits_pending.checked_add(self.credits_posted)
    }

    /// Credits posted less all debits, not below zero: what may still be spent from a credit-side
    /// account.
    pub fn available(&self) -> Micros {
        self.debits().map_or(Micros::ZERO, |debits| self.credits_posted.saturating_sub(debits))
    }

    /// Debits posted less all credits, not below zero: what may still be collected on a tab.
    pub fn collectible(&self) -> Micros {
        self.credits().map_or(Micros::ZERO, |credits| self.debits_posted.saturating_sub(credits))
    }

    /// All debits less credits posted, not below zero: what a tab owes, holds included.
    pub fn owed(&self) -> Micros {
        self.debits().map_or(Micros::ZERO, |debits| debits.saturating_sub(self.credits_posted))
    }
}

/// One movement within a chain, `debit -> credit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leg {
    /// The account whose debits grow.
    pub debit: AccountId,
    /// The account whose credits grow.
    pub credit: AccountId,
    /// How much; never zero.
    pub amount: Micros,
    /// Where the leg uses an account's room: after the chain, debits incl. pending of the debited
    /// account <= its credits posted + this. `None` where no room is used (a carry, a fee).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<Micros>,
}

impl Leg {
    /// A leg that uses nobody's room.
    pub const fn new(debit: AccountId, credit: AccountId, amount: Micros) -> Self {
        Self { debit, credit, amount, room: None }
    }

    /// The same leg, using the debited account's room up to `room`.
    #[must_use]
    pub const fn within(mut self, room: Micros) -> Self {
        self.room = Some(room);
        self
    }
}

/// Why a chain was made: the event of the design's table, kept with the chain for readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A purchase on a tab.
    TabLine,
    /// A settlement's capture.
    Settlement,
    /// A fee that PayPal took.
    PaypalFee,
    /// What a capture may still give back.
    Refundable,
    /// What an old tab owes, carried to a new one.
    Carry,
    /// Earned money becomes due.
    Due,
    /// A line contested by its owner.
    Contest,
    /// Money given back.
    Refund,
    /// The operator bears what nobody will pay.
    WriteOff,
    /// The operator's own money in.
    Deposit,
    /// The operator's own money out.
    Withdrawal,
    /// Arrived and matches nothing.
    Suspense,
    /// Money in suspense found its place.
    SuspenseCleared,
    /// A purchase that a restore lost is earned by its seller, by the operator's word.
    LostLine,
    /// A call to a model.
    ModelCall,
    /// An owner repaid a debt by hand. Books that are older hold such repayments as deposits.
    Repayment,
    /// What the operator recorded by hand, taken back.
    CashVoided,
    /// PayPal withholds money for a dispute, or releases it.
    Dispute,
}

impl Cause {
    /// Every cause, in the order of the enum: their places are their numbers on disk, so a new one
    /// joins at the end.
    pub const ALL: &'static [Self] = &[
        Self::TabLine,
        Self::Settlement,
        Self::PaypalFee,
        Self::Refundable,
        Self::Carry,
        Self::Due,
        Self::Contest,
        Self::Refund,
        Self::WriteOff,
        Self::Deposit,
        Self::Withdrawal,
        Self::Suspense,
        Self::SuspenseCleared,
        Self::LostLine,
        Self::ModelCall,
        Self::Repayment,
        Self::CashVoided,
        Self::Dispute,
    ];

    /// The name, as readers see it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TabLine => "tab_line",
            Self::Settlement => "settlement",
            Self::PaypalFee => "paypal_fee",
            Self::Refundable => "refundable",
            Self::Carry => "carry",
            Self::Due => "due",
            Self::Contest => "contest",
            Self::Refund => "refund",
            Self::WriteOff => "write_off",
            Self::Deposit => "deposit",
            Self::Withdrawal => "withdrawal",
            Self::Dispute => "dispute",
            Self::Suspense => "suspense",
            Self::SuspenseCleared => "suspense_cleared",
            Self::LostLine => "lost_line",
            Self::ModelCall => "model_call",
            Self::Repayment => "repayment",
            Self::CashVoided => "cash_voided",
        }
    }
}

/// One operation on the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// Moves the legs at once.
    Move {
        /// The chain's id, never used before.
        id: TransferId,
        /// Why.
        cause: Cause,
        /// At least one, none at zero.
        legs: Vec<Leg>,
    },
    /// Reserves the legs until posted or voided.
    Hold {
        /// The chain's id, never used before.
        id: TransferId,
        /// Why.
        cause: Cause,
        /// At least one, none at zero.
        legs: Vec<Leg>,
    },
    /// Makes a hold final: one amount for every leg, at most its pending amount; a leg at zero is
    /// voided; not all may be zero.
    Post {
        /// The hold.
        id: TransferId,
        /// An amount for every leg, in the hold's order.
        amounts: Vec<Micros>,
    },
    /// Releases every leg of a hold.
    Void {
        /// The hold.
        id: TransferId,
    },
}

impl Op {
    /// The chain it makes or resolves.
    pub const fn id(&self) -> TransferId {
        match self {
            Self::Move { id, .. }
            | Self::Hold { id, .. }
            | Self::Post { id, .. }
            | Self::Void { id } => *id,
        }
    }
}

/// A pending chain and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Why it was made.
    pub cause: Cause,
    /// The legs with their pending amounts.
    pub legs: Vec<Leg>,
    /// Whether it still reserves anything.
    pub state: HoldState,
}

/// The life of a chain's id: an id is used once, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldState {
    /// Reserving.
    Pending,
    /// Final. Chains moved at once are born so.
    Posted,
    /// Released.
    Voided,
}

/// Why the ledger refused. Nothing was booked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// A chain without legs.
    #[error("chain {0} has no legs")]
    Empty(TransferId),
    /// An id that was used before.
    #[error("chain {0} exists already")]
    IdUsed(TransferId),
    /// A leg at zero.
    #[error("chain {0} has a leg at zero")]
    ZeroLeg(TransferId),
    /// A leg from an account to itself, or between two currencies.
    #[error("chain {0} has a leg between `{debit}` and `{credit}`", debit = .1.debit, credit = .1.credit)]
    BadLeg(TransferId, Box<Leg>),
    /// Post or void of a hold that is not there.
    #[error("no hold {0}")]
    NoHold(TransferId),
    /// Post or void of a hold that was resolved before.
    #[error("hold {0} was resolved before")]
    Resolved(TransferId),
    /// A post whose amounts do not fit the legs one to one, or are all zero.
    #[error("post of {0} does not name an amount for every leg")]
    Amounts(TransferId),
    /// A post above what is held.
    #[error("post of {0} is above its hold")]
    AboveHold(TransferId),
    /// More than the room under a cap.
    #[error("`{account}` has no room: {used} used of {room}")]
    NoRoom {
        /// The account.
        account: AccountId,
        /// What would be used.
        used: Micros,
        /// What may be used.
        room: Micros,
    },
    /// One side would outgrow the other that has to cover it.
    #[error("`{0}` is not covered")]
    NotCovered(AccountId),
    /// A total past what can be counted.
    #[error("`{0}` overflows")]
    Overflow(AccountId),
}

/// Where [`apply`] reads and writes: memory, or a layer over memory.
pub trait Books {
    /// The totals of an account; zeros where it never moved.
    fn totals(&self, account: &AccountId) -> Totals;
    /// The chain of that id, if the id was ever used.
    fn hold(&self, id: TransferId) -> Option<Hold>;
    /// Replaces the totals of an account.
    fn set_totals(&mut self, account: AccountId, totals: Totals);
    /// Replaces a chain.
    fn set_hold(&mut self, id: TransferId, hold: Hold);
}

/// Applies one operation, or refuses it and changes nothing.
///
/// # Errors
/// See [`Rejection`]: the guards stand in the order of its variants' use below.
pub fn apply(books: &mut impl Books, op: &Op) -> Result<(), Rejection> {
    match op {
        Op::Move { id, cause, legs } => open(books, *id, *cause, legs, HoldState::Posted),
        Op::Hold { id, cause, legs } => open(books, *id, *cause, legs, HoldState::Pending),
        Op::Post { id, amounts } => post(books, *id, amounts),
        Op::Void { id } => void(books, *id),
    }
}

fn open(
    books: &mut impl Books,
    id: TransferId,
    cause: Cause,
    legs: &[Leg],
    state: HoldState,
) -> Result<(), Rejection> {
    if legs.is_empty() {
        return Err(Rejection::Empty(id));
    }
    if books.hold(id).is_some() {
        return Err(Rejection::IdUsed(id));
    }
    for leg in legs {
        if leg.amount.is_zero() {
            return Err(Rejection::ZeroLeg(id));
        }
        if leg.debit == leg.credit || leg.debit.currency != leg.credit.currency {
            return Err(Rejection::BadLeg(id, Box::new(*leg)));
        }
    }
    let mut draft = Draft::default();
    for leg in legs {
        draft.change(books, leg.debit, |t| match state {
            HoldState::Pending => grow(&mut t.debits_pending, leg.amount),
            _ => grow(&mut t.debits_posted, leg.amount),
        })?;
        draft.change(books, leg.credit, |t| match state {
            HoldState::Pending => grow(&mut t.credits_pending, leg.amount),
            _ => grow(&mut t.credits_posted, leg.amount),
        })?;
    }
    for leg in legs {
        draft.check_room(leg)?;
    }
    draft.check_cover()?;
    // From here it must succeed.
    draft.write(books);
    books.set_hold(id, Hold { cause, legs: legs.to_vec(), state });
    Ok(())
}

fn post(books: &mut impl Books, id: TransferId, amounts: &[Micros]) -> Result<(), Rejection> {
    let mut hold = pending(books, id)?;
    if amounts.len() != hold.legs.len() || amounts.iter().all(|amount| amount.is_zero()) {
        return Err(Rejection::Amounts(id));
    }
    // INVARIANT: posted_at_most_held
    let above = hold.legs.iter().zip(amounts).any(|(leg, amount)| *amount > leg.amount);
    #[cfg(feature = "planted")]
    let above = above && !crate::planted::on(crate::planted::Bug::PostAboveHold);
    if above {
        return Err(Rejection::AboveHold(id));
    }
    let mut draft = Draft::default();
    for (leg, amount) in hold.legs.iter().zip(amounts) {
        draft.change(books, leg.debit, |t| {
            shrink(&mut t.debits_pending, leg.amount)
                .and_then(|()| grow(&mut t.debits_posted, *amount))
        })?;
        draft.change(books, leg.credit, |t| {
            shrink(&mut t.credits_pending, leg.amount)
                .and_then(|()| grow(&mut t.credits_posted, *amount))
        })?;
    }
    draft.check_cover()?;
    // From here it must succeed.
    draft.write(books);
    hold.state = HoldState::Posted;
    books.set_hold(id, hold);
    Ok(())
}

fn void(books: &mut impl Books, id: TransferId) -> Result<(), Rejection> {
    let mut hold = pending(books, id)?;
    let mut draft = Draft::default();
    for leg in &hold.legs {
        draft.change(books, leg.debit, |t| shrink(&mut t.debits_pending, leg.amount))?;
        draft.change(books, leg.credit, |t| shrink(&mut t.credits_pending, leg.amount))?;
    }
    // From here it must succeed.
    draft.write(books);
    hold.state = HoldState::Voided;
    books.set_hold(id, hold);
    Ok(())
}

/// INVARIANT: hold_resolves_once
fn pending(books: &impl Books, id: TransferId) -> Result<Hold, Rejection> {
    let Some(hold) = books.hold(id) else { return Err(Rejection::NoHold(id)) };
    let resolved = hold.state != HoldState::Pending;
    #[cfg(feature = "planted")]
    let resolved = resolved
        && !crate::planted::on(crate::planted::Bug::ResolveTwice)
        && !crate::planted::on(crate::planted::Bug::PostAfterExpiry);
    if resolved { Err(Rejection::Resolved(id)) } else { Ok(hold) }
}

fn grow(total: &mut Micros, by: Micros) -> Option<()> {
    *total = total.checked_add(by)?;
    Some(())
}

fn shrink(total: &mut Micros, by: Micros) -> Option<()> {
    *total = total.checked_sub(by)?;
    Some(())
}

/// The accounts of one chain while it is being checked; a chain touches a handful.
#[derive(Default)]
struct Draft(Vec<(AccountId, Totals)>);

impl Draft {
    fn change(
        &mut self,
        books: &impl Books,
        account: AccountId,
        change: impl FnOnce(&mut Totals) -> Option<()>,
    ) -> Result<(), Rejection> {
        let overflow = Rejection::Overflow(account);
        if let Some((_, totals)) = self.0.iter_mut().find(|(id, _)| *id == account) {
            return change(totals).ok_or(overflow);
        }
        let mut totals = books.totals(&account);
        change(&mut totals).ok_or(overflow)?;
        self.0.push((account, totals));
        Ok(())
    }

    /// INVARIANT: no_use_of_room_leaves_an_account_past_it
    fn check_room(&self, leg: &Leg) -> Result<(), Rejection> {
        let Some(room) = leg.room else { return Ok(()) };
        let overflow = Rejection::Overflow(leg.debit);
        let Some((_, totals)) = self.0.iter().find(|(id, _)| *id == leg.debit) else {
            return Ok(());
        };
        let used = totals.debits().ok_or(overflow)?;
        // Room past what can be counted is room enough.
        let most = totals.credits_posted.checked_add(room);
        if most.is_some_and(|most| used > most) {
            let used = used.saturating_sub(totals.credits_posted);
            return Err(Rejection::NoRoom { account: leg.debit, used, room });
        }
        Ok(())
    }

    /// INVARIANT: covered_accounts_stay_covered
    fn check_cover(&self) -> Result<(), Rejection> {
        for (id, totals) in &self.0 {
            let overflow = || Rejection::Overflow(*id);
            let covered = match id.account.cover() {
                Cover::Free => true,
                Cover::CreditsCoverDebits => {
                    totals.debits().ok_or_else(overflow)? <= totals.credits_posted
                }
                Cover::DebitsCoverCredits => {
                    totals.credits().ok_or_else(overflow)? <= totals.debits_posted
                }
            };
            if !covered {
                return Err(Rejection::NotCovered(*id));
            }
        }
        Ok(())
    }

    fn write(self, books: &mut impl Books) {
        for (account, totals) in self.0 {
            books.set_totals(account, totals);
        }
    }
}
