//! Pairwise combinations: every level of every factor meets every level of every other one in some
//! row, in far fewer rows than there are combinations.

use std::collections::BTreeSet;

/// Two levels that have to meet: factor and level, twice, in order of factors.
type Pair = (usize, usize, usize, usize);

fn pairs_of(row: &[usize]) -> impl Iterator<Item = Pair> {
    (0..row.len()).flat_map(move |a| (a + 1..row.len()).map(move |b| (a, row[a], b, row[b])))
}

/// Rows over factors with so many levels each; deterministic. Greedy: each row begins with a pair
/// that has not met yet and takes, factor by factor, the level that meets most others for the
/// first time.
pub fn pairwise(levels: &[usize]) -> Vec<Vec<usize>> {
    let mut open: BTreeSet<Pair> = BTreeSet::new();
    for a in 0..levels.len() {
        for b in a + 1..levels.len() {
            for x in 0..levels[a] {
                open.extend((0..levels[b]).map(|y| (a, x, b, y)));
            }
        }
    }
    let mut rows = Vec::new();
    while let Some(&(a, x, b, y)) = open.first() {
        let mut row: Vec<Option<usize>> = vec![None; levels.len()];
        (row[a], row[b]) = (Some(x), Some(y));
        for factor in 0..levels.len() {
            if row[factor].is_none() {
                row[factor] = Some(best_level(&row, factor, levels[factor], &open, rows.len()));
            }
        }
        let row: Vec<usize> = row.into_iter().flatten().collect();
        for pair in pairs_of(&row) {
            open.remove(&pair);
        }
        rows.push(row);
    }
    rows
}

fn best_level(
    row: &[Option<usize>],
    factor: usize,
    levels: usize,
    open: &BTreeSet<Pair>,
    turn: usize,
) -> usize {
    let meets = |level: usize| {
        let others = row.iter().enumerate().filter_map(|(at, other)| Some((at, (*other)?)));
        let pairs = others.map(|(at, other)| {
            if at < factor { (at, other, factor, level) } else { (factor, level, at, other) }
        });
        pairs.filter(|pair| open.contains(pair)).count()
    };
    // Where several are as good, not always the first one.
    (0..levels).map(|n| (n + turn) % levels).max_by_key(|level| meets(*level)).unwrap_or(0)
}

#[test]
fn every_two_levels_meet_in_some_row() {
    let levels = [17, 7, 5, 2, 2];
    let rows = pairwise(&levels);
    let met: BTreeSet<Pair> = rows.iter().flat_map(|row| pairs_of(row)).collect();
    let mut expect = 0;
    for a in 0..levels.len() {
        expect += (a + 1..levels.len()).map(|b| levels[a] * levels[b]).sum::<usize>();
    }
    assert_eq!(met.len(), expect);
    let all: usize = levels.iter().product();
    assert!(rows.len() < all / 10, "{} rows of {all}", rows.len());
}
