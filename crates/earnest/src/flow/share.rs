//! Whose turn it is, where many wait for few places: each principal has a share of what is under way,
//! and whoever has the fewest comes first. Kept in memory: what is under way ends with the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How many of each are under way, by name: of a principal, of an endpoint.
#[derive(Clone, Default)]
pub struct Shares(Arc<Mutex<HashMap<String, usize>>>);

/// A share that is taken; free again when dropped.
pub struct Share {
    shares: Shares,
    names: [String; 2],
}

impl Shares {
    /// How many are under way under a name.
    pub fn under_way(&self, name: &str) -> usize {
        self.lock().get(name).copied().unwrap_or(0)
    }

    /// Takes one of a principal's at an endpoint, unless the principal has as many as it may.
    pub fn take(&self, principal: String, most: usize, endpoint: String) -> Option<Share> {
        let mut known = self.lock();
        if known.get(&principal).is_some_and(|count| *count >= most) {
            return None;
        }
        for name in [&principal, &endpoint] {
            let count = known.entry(name.clone()).or_default();
            *count = count.saturating_add(1);
        }
        Some(Share { shares: self.clone(), names: [principal, endpoint] })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut known = self.shares.lock();
        for name in &self.names {
            if let Some(count) = known.get_mut(name) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    known.remove(name);
                }
            }
        }
    }
}

/// Puts what waits in an order that is fair. Each party comes with how many it has under way and with
/// its queues; it gets as many as are left of `most`, one of each queue in turn, and the next place
/// always goes to whoever has the fewest then; among equals to what waits longest.
pub fn in_turn<T, W: Ord>(
    parties: impl Iterator<Item = (usize, Vec<Vec<T>>)>,
    most: usize,
    waits_since: impl Fn(&T) -> W,
) -> Vec<T> {
    let mut all = Vec::new();
    for (under_way, queues) in parties {
        let mut queues: Vec<_> = queues.into_iter().map(Vec::into_iter).collect();
        let mut place = under_way;
        while place < most {
            let before = place;
            for one in queues.iter_mut().filter_map(Iterator::next) {
                all.push((place, waits_since(&one), one));
                place = place.saturating_add(1);
            }
            if place == before {
                break;
            }
        }
    }
    all.retain(|(place, ..)| *place < most);
    all.sort_by(|(a, since_a, _), (b, since_b, _)| (a, since_a).cmp(&(b, since_b)));
    all.into_iter().map(|(.., one)| one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_the_fewest_under_way_comes_first() {
        let rich = vec![vec!["r1", "r2", "r3"], vec!["s1"], vec!["t1"]];
        let busy = vec![vec!["b1", "b2"]];
        let poor = vec![vec!["p1"]];
        let parties = vec![(0, rich), (3, busy), (0, poor)];
        let order = in_turn(parties.into_iter(), 4, |name| name.to_owned());
        assert_eq!(order, ["p1", "r1", "s1", "t1", "b1", "r2"]);
    }

    #[test]
    fn a_share_is_taken_and_given_back() {
        let shares = Shares::default();
        let take = || shares.take("own_1".to_owned(), 2, "whe_1".to_owned());
        let (one, two) = (take(), take());
        assert!(one.is_some() && two.is_some() && take().is_none());
        assert_eq!((shares.under_way("own_1"), shares.under_way("whe_1")), (2, 2));
        drop(one);
        assert!(take().is_some());
        drop(two);
        assert_eq!(shares.lock().len(), 0);
    }
}
