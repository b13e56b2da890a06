//! Random choices that a seed repeats.

/// splitmix64: small, and good enough for tests.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed of this run: `EARNEST_SEED`, or what the clock says. Printed, so that a failure can
    /// be repeated.
    pub fn seed_of_run(what: &str) -> u64 {
        let told = std::env::var("EARNEST_SEED").ok().and_then(|text| text.parse().ok());
        let seed = told.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            u64::from(now.unwrap().subsec_nanos())
        });
        println!("{what}: EARNEST_SEED={seed}");
        seed
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to one below.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True so often in a hundred.
    pub fn percent(&mut self, often: u64) -> bool {
        self.below(100) < often
    }
}
