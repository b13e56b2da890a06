//! A bounded map that forgets what was not asked for lately.

use foldhash::HashMap;
use std::hash::Hash;

/// Two generations: what is used moves to the young one; when that is full it becomes the old one,
/// and what was still in the old one is forgotten. Holds at most twice `room`.
pub(crate) struct Cache<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    room: usize,
}

impl<K: Eq + Hash, V> Cache<K, V> {
    pub(crate) fn new(room: usize) -> Self {
        Self { young: HashMap::default(), old: HashMap::default(), room: room.max(1) }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<&V> {
        if !self.young.contains_key(key) {
            let (key, value) = self.old.remove_entry(key)?;
            self.insert(key, value);
        }
        self.young.get(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.room && !self.young.contains_key(&key) {
            // Swapped, not taken: both keep their room, so neither grows again from nothing.
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }

    pub(crate) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_is_used_and_stays_bounded() {
        let mut cache = Cache::new(10);
        for key in 0..1000 {
            cache.insert(key, key);
            assert_eq!(cache.get(&0), Some(&0), "after {key}");
        }
        assert!(cache.young.len() + cache.old.len() <= 20);
        assert_eq!(cache.get(&1), None);
        assert_eq!(cache.get(&999), Some(&999));
    }

    #[test]
    fn a_newer_value_is_never_hidden_by_an_older_one() {
        let mut cache = Cache::new(2);
        for round in 0..50 {
            cache.insert(round % 5, round);
            assert_eq!(cache.get(&(round % 5)), Some(&round));
        }
    }
}
