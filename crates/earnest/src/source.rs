//! Clock and randomness: the only place where this program asks for either.

use std::sync::Arc;

use earnest_core::id::Seed;
use earnest_core::time::Timestamp;

/// Where `now` comes from; tests and simulations bring their own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The machine's clock.
pub fn machine_clock() -> Clock {
    Arc::new(Timestamp::now)
}

/// Fills a buffer with random bytes from the operating system.
///
/// A machine without randomness cannot make ids, keys or tokens that nobody else has; going on
/// would be worse than stopping.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill(&mut bytes);
    bytes
}

fn fill(bytes: &mut [u8]) {
    #[expect(
        clippy::expect_used,
        reason = "without randomness every id and key would be guessable"
    )]
    getrandom::fill(bytes).expect("the operating system gives random bytes");
}

/// What a new id is made of, now.
pub fn seed(clock: &Clock) -> Seed {
    let [seed] = seeds(clock);
    seed
}

/// What so many new ids are made of, now: asked of the operating system once.
pub fn seeds<const N: usize>(clock: &Clock) -> [Seed; N] {
    let unix_ms = u64::try_from(clock().as_millisecond()).unwrap_or(0);
    let mut drawn = [[0; 16]; N];
    fill(drawn.as_flattened_mut());
    drawn.map(|random| Seed { unix_ms, random: u128::from_be_bytes(random) })
}

/// A secret or token: 256 random bits as 64 hex digits.
pub fn random_token() -> String {
    hex::encode(random_bytes::<32>())
}
