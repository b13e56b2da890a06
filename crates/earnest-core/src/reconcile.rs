//! PayPal's records of our money compared with ours, line by line.
//!
//! A line is matched by PayPal's own id. What only one side knows, or what the sides put
//! differently, is listed; nothing is explained away here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::money::Micros;

/// One movement: a capture with what PayPal took of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Movement {
    /// PayPal's id.
    pub id: String,
    /// What came in.
    pub gross_micros: Micros,
    /// What PayPal took.
    pub fee_micros: Micros,
}

/// A line on which the sides differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Difference {
    /// PayPal has it, we do not.
    MissingHere(Movement),
    /// We have it, PayPal does not.
    MissingThere(Movement),
    /// Both have it, with other figures.
    Differs {
        /// Ours.
        ours: Movement,
        /// PayPal's.
        theirs: Movement,
    },
    /// One side has an id twice.
    Doubled(Movement),
}

/// Compares two sides. Nothing is left when they agree.
pub fn compare(ours: &[Movement], theirs: &[Movement]) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut known: BTreeMap<&str, &Movement> = BTreeMap::new();
    for movement in ours {
        if known.insert(&movement.id, movement).is_some() {
            found.push(Difference::Doubled(movement.clone()));
        }
    }
    let mut seen: BTreeMap<&str, &Movement> = BTreeMap::new();
    for movement in theirs {
        if seen.insert(&movement.id, movement).is_some() {
            found.push(Difference::Doubled(movement.clone()));
            continue;
        }
        match known.remove(movement.id.as_str()) {
            None => found.push(Difference::MissingHere(movement.clone())),
            Some(own) if own != movement => {
                found.push(Difference::Differs { ours: own.clone(), theirs: movement.clone() });
            }
            Some(_) => {}
        }
    }
    found.extend(known.into_values().map(|own| Difference::MissingThere(own.clone())));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn movement(id: &str, gross: i64, fee: i64) -> Movement {
        let (gross_micros, fee_micros) = (Micros::constant(gross), Micros::constant(fee));
        Movement { id: id.to_owned(), gross_micros, fee_micros }
    }

    fn check(ours: &[Movement], theirs: &[Movement], expect: usize) {
        assert_eq!(compare(ours, theirs).len(), expect);
    }

    #[test]
    fn every_way_to_differ_is_listed() {
        let (a, b) = (|| movement("A", 950_000, 520_000), || movement("B", 1, 0));
        check(&[a(), b()], &[b(), a()], 0);
        check(&[a()], &[], 1);
        check(&[], &[a()], 1);
        check(&[a()], &[movement("A", 950_000, 510_000)], 1);
        check(&[a()], &[movement("A", 940_000, 520_000)], 1);
        check(&[a(), a()], &[a()], 1);
        check(&[a()], &[a(), a()], 1);
        check(&[a()], &[b()], 2);
    }
}
