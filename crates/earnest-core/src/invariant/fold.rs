//! The ledger, folded again from its first operation: sums in wide integers, no rule of `apply`.

use std::collections::BTreeMap;

use super::{Rows, wide};
use crate::id::TransferId;
use crate::ledger::{Account, AccountId, Cause, HoldState, Leg, Op, Totals};
use crate::money::Micros;

/// The four totals of an account, wide enough never to overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Reserved on the debit side.
    pub debits_pending: i128,
    /// Final on the debit side.
    pub debits_posted: i128,
    /// Reserved on the credit side.
    pub credits_pending: i128,
    /// Final on the credit side.
    pub credits_posted: i128,
}

impl Sums {
    /// Whether stored totals say the same.
    pub fn agrees(&self, totals: &Totals) -> bool {
        self.debits_pending == wide(totals.debits_pending)
            && self.debits_posted == wide(totals.debits_posted)
            && self.credits_pending == wide(totals.credits_pending)
            && self.credits_posted == wide(totals.credits_posted)
    }

    fn debits(&self) -> i128 {
        self.debits_pending.saturating_add(self.debits_posted)
    }

    fn credits(&self) -> i128 {
        self.credits_pending.saturating_add(self.credits_posted)
    }

    /// Debits posted less all credits: what may be collected on a tab.
    pub fn collectible(&self) -> i128 {
        self.debits_posted.saturating_sub(self.credits())
    }
}

/// A chain of transfers and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Why it was made.
    pub cause: Cause,
    /// Its legs, with the amounts they were made with.
    pub legs: Vec<Leg>,
    /// Pending, posted or voided.
    pub state: HoldState,
    /// What was posted on each leg; nothing while pending or voided.
    pub posted: Vec<Micros>,
}

impl Chain {
    /// What was posted on legs from or to an account.
    pub(super) fn posted_on(&self, side: impl Fn(&Leg) -> Account, account: Account) -> i128 {
        let legs = self.legs.iter().zip(&self.posted);
        legs.filter(|(leg, _)| side(leg) == account).map(|(_, amount)| wide(*amount)).sum()
    }

    /// The amounts it was made with on legs from or to an account.
    pub(super) fn made_on(&self, side: impl Fn(&Leg) -> Account, account: Account) -> i128 {
        let legs = self.legs.iter().filter(|leg| side(leg) == account);
        legs.map(|leg| wide(leg.amount)).sum()
    }
}

/// The ledger as its operations say, one after another.
#[derive(Clone, Debug, Default)]
pub struct Fold {
    /// The totals of every account that ever moved.
    pub accounts: BTreeMap<AccountId, Sums>,
    /// Every chain.
    pub chains: BTreeMap<TransferId, Chain>,
    /// What an operation broke, in order.
    broken: Vec<String>,
}

impl Fold {
    /// Takes the next operation of the log.
    pub fn take(&mut self, op: &Op) {
        match op {
            Op::Move { id, cause, legs } => {
                let posted = legs.iter().map(|leg| leg.amount).collect();
                self.open(*id, *cause, legs, HoldState::Posted, posted);
            }
            Op::Hold { id, cause, legs } => {
                self.open(*id, *cause, legs, HoldState::Pending, Vec::new());
            }
            Op::Post { id, amounts } => self.resolve(*id, Some(amounts)),
            Op::Void { id } => self.resolve(*id, None),
        }
    }

    fn open(
        &mut self,
        id: TransferId,
        cause: Cause,
        legs: &[Leg],
        state: HoldState,
        posted: Vec<Micros>,
    ) {
        for leg in legs {
            let amount = wide(leg.amount);
            if amount <= 0 || leg.debit.currency != leg.credit.currency {
                self.broken.push(format!("chain {id} has a leg that is none"));
            }
            let pending = state == HoldState::Pending;
            self.change(leg.debit, |sums| {
                let side = if pending { &mut sums.debits_pending } else { &mut sums.debits_posted };
                *side = side.saturating_add(amount);
            });
            self.change(leg.credit, |sums| {
                let side =
                    if pending { &mut sums.credits_pending } else { &mut sums.credits_posted };
                *side = side.saturating_add(amount);
            });
        }
        self.check_room(id, legs);
        self.check_cover(id, legs);
        let chain = Chain { cause, legs: legs.to_vec(), state, posted };
        if self.chains.insert(id, chain).is_some() {
            self.broken.push(format!("chain {id} was made twice"));
        }
    }

    fn resolve(&mut self, id: TransferId, amounts: Option<&Vec<Micros>>) {
        let Some(mut chain) = self.chains.remove(&id) else {
            return self.broken.push(format!("hold {id} was resolved before it was made"));
        };
        if chain.state != HoldState::Pending {
            self.broken.push(format!("hold {id} was resolved twice"));
        }
        let nothing = vec![Micros::ZERO; chain.legs.len()];
        let posted = amounts.unwrap_or(&nothing);
        if posted.len() != chain.legs.len() {
            self.broken.push(format!("hold {id} was posted by other legs"));
        }
        if amounts.is_some() && posted.iter().all(|amount| amount.is_zero()) {
            self.broken.push(format!("hold {id} was posted at nothing"));
        }
        for (leg, amount) in chain.legs.iter().zip(posted) {
            if amount > &leg.amount {
                self.broken.push(format!("hold {id} was posted at more than it held"));
            }
            let (held, amount) = (wide(leg.amount), wide(*amount));
            self.change(leg.debit, |sums| {
                sums.debits_pending = sums.debits_pending.saturating_sub(held);
                sums.debits_posted = sums.debits_posted.saturating_add(amount);
            });
            self.change(leg.credit, |sums| {
                sums.credits_pending = sums.credits_pending.saturating_sub(held);
                sums.credits_posted = sums.credits_posted.saturating_add(amount);
            });
        }
        self.check_cover(id, &chain.legs);
        chain.state = if amounts.is_some() { HoldState::Posted } else { HoldState::Voided };
        chain.posted = amounts.cloned().unwrap_or_default();
        self.chains.insert(id, chain);
    }

    fn change(&mut self, account: AccountId, change: impl FnOnce(&mut Sums)) {
        change(self.accounts.entry(account).or_default());
    }

    /// The totals of an account; zeros where it never moved.
    pub fn sums(&self, account: AccountId) -> Sums {
        self.accounts.get(&account).copied().unwrap_or_default()
    }

    /// Whoever used an account's room left it within the limit that was carried in the leg.
    fn check_room(&mut self, id: TransferId, legs: &[Leg]) {
        for leg in legs {
            let Some(room) = leg.room else { continue };
            let sums = self.sums(leg.debit);
            if sums.debits() > sums.credits_posted.saturating_add(wide(room)) {
                self.broken.push(format!("chain {id} took `{}` past {room}", leg.debit));
            }
        }
    }

    /// Accounts whose one side has to cover the other, as the table of accounts says.
    fn check_cover(&mut self, id: TransferId, legs: &[Leg]) {
        for account in legs.iter().flat_map(|leg| [leg.debit, leg.credit]) {
            let sums = self.sums(account);
            let covered = match account.account {
                Account::OwnerCredit(_)
                | Account::SellerAccrued(_)
                | Account::SellerPayable(_)
                | Account::CaptureRefundable(_) => sums.debits() <= sums.credits_posted,
                Account::TabOwed(_) => sums.credits() <= sums.debits_posted,
                _ => true,
            };
            let negative = [sums.debits_pending, sums.credits_pending].iter().any(|s| *s < 0);
            if !covered || negative {
                self.broken.push(format!("chain {id} left `{account}` uncovered: {sums:?}"));
            }
        }
    }
}

/// INVARIANT: the_ledger_is_the_fold_of_its_operations
pub(super) fn keeps_its_rules(_: &Rows, fold: &Fold, breaches: &mut Vec<String>) {
    breaches.extend(fold.broken.iter().cloned());
    let mut balance: BTreeMap<&str, (i128, i128)> = BTreeMap::new();
    for (account, sums) in &fold.accounts {
        let (pending, posted) = balance.entry(account.currency.code()).or_default();
        let net = |debits: i128, credits: i128| debits.saturating_sub(credits);
        *pending = pending.saturating_add(net(sums.debits_pending, sums.credits_pending));
        *posted = posted.saturating_add(net(sums.debits_posted, sums.credits_posted));
    }
    for (currency, (pending, posted)) in balance {
        if (pending, posted) != (0, 0) {
            breaches.push(format!(
                "debits less credits in {currency}: {pending} pending, {posted} posted"
            ));
        }
    }
}
