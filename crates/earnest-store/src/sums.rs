//! What all accounts of a class hold together, kept up with every commit instead of added up when
//! somebody asks.

use std::collections::BTreeMap;

use earnest_core::ledger::{AccountId, Totals};
use earnest_core::money::{Currency, Micros};

/// Debits less credits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Net {
    /// Of what moved.
    pub posted: i128,
    /// Of what is reserved.
    pub pending: i128,
}

/// The sums of all accounts, by currency and [class](earnest_core::ledger::Account::class).
///
/// Made of the totals that accounts had before and after, not of the legs that changed them, so that
/// a unit which books one side only shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(BTreeMap<(Currency, &'static str), Net>);

impl Sums {
    /// An account's totals are others now.
    pub(crate) fn replace(&mut self, id: &AccountId, before: Totals, after: Totals) {
        let (before, after) = (net(before), net(after));
        let sum = self.0.entry((id.currency, id.account.class())).or_default();
        sum.posted += after.posted - before.posted;
        sum.pending += after.pending - before.pending;
    }

    /// Every class that has accounts.
    pub fn classes(&self) -> impl Iterator<Item = (Currency, &'static str, Net)> {
        self.0.iter().map(|((currency, class), net)| (*currency, *class, *net))
    }

    /// By how much the books do not add up: what all debits differ from all credits by, money and
    /// memo accounts each for themselves, posted and pending. 0 in books that are right.
    pub fn imbalance(&self) -> u128 {
        let mut sums: BTreeMap<(Currency, bool), Net> = BTreeMap::new();
        for (currency, class, net) in self.classes() {
            let sum = sums.entry((currency, class == "memo")).or_default();
            sum.posted += net.posted;
            sum.pending += net.pending;
        }
        sums.values().map(|sum| sum.posted.unsigned_abs() + sum.pending.unsigned_abs()).sum()
    }
}

fn net(totals: Totals) -> Net {
    let wide = |micros: Micros| i128::from(micros.get());
    Net {
        posted: wide(totals.debits_posted) - wide(totals.credits_posted),
        pending: wide(totals.debits_pending) - wide(totals.credits_pending),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use earnest_core::ledger::Account;

    #[test]
    fn one_side_only_shows() {
        let totals = |debits: i64, credits: i64| Totals {
            debits_posted: Micros::new(debits).unwrap(),
            credits_posted: Micros::new(credits).unwrap(),
            ..Totals::default()
        };
        let mut sums = Sums::default();
        let cash = Account::PaypalCash.usd();
        sums.replace(&cash, Totals::default(), totals(5, 0));
        assert_eq!(sums.imbalance(), 5);
        // A memo account does not make good for it.
        sums.replace(&Account::Memo.usd(), Totals::default(), totals(0, 5));
        assert_eq!(sums.imbalance(), 10);
        sums.replace(&Account::Memo.usd(), totals(0, 5), totals(5, 5));
        sums.replace(&Account::Suspense.usd(), Totals::default(), totals(0, 5));
        assert_eq!(sums.imbalance(), 0);
        let found: Vec<_> = sums.classes().map(|(_, class, net)| (class, net.posted)).collect();
        assert_eq!(found, [("memo", 0), ("paypal_cash", 5), ("suspense", -5)]);
    }
}
