//! Chance, drawn from a seed.

/// SplitMix64: the same numbers for the same seed, everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A source of its own, so that one part that draws more does not change what another draws.
    pub fn branch(&mut self) -> Self {
        Self(self.draw() ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `most`, which is not 0.
    pub fn below(&mut self, most: u64) -> u64 {
        self.draw() % most
    }

    /// A place in a list of that length, which is not 0.
    pub fn place(&mut self, length: usize) -> usize {
        let most = u64::try_from(length).unwrap_or(u64::MAX);
        usize::try_from(self.below(most)).unwrap_or(0)
    }

    /// One of these, if there are any.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        if from.is_empty() { None } else { from.get(self.place(from.len())) }
    }

    /// Mostly one of the last few.
    pub fn recent<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let from = if self.one_in(3) { from } else { &from[from.len().saturating_sub(6)..] };
        self.pick(from)
    }

    /// Whether one in so many.
    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}
