//! Watching for whoever keeps the database from its work: a transaction that somebody left open on the
//! server, a reader that holds an SQLite file's write-ahead log.

use earnest_core::strain::{Strained, Tell};
use earnest_store::Strain;

use super::paypal::FlowError;
use crate::app::App;

/// The longest that a transaction may be open before it is an alarm, in seconds. Our own end within
/// 20 by the bounds that each has.
const LONGEST_SECONDS: u64 = 60;
/// The longest that somebody may leave a transaction idle: ours are never.
const IDLE_SECONDS: u64 = 20;
/// As [`LONGEST_SECONDS`], for the write-ahead log of a file: half of where writing stops.
const LOG_BYTES: u64 = 128 << 20;

/// Who keeps the database from its work, in words.
fn held_by(strain: &Strain) -> Option<String> {
    if strain.log_bytes > LOG_BYTES {
        let mebibytes = strain.log_bytes >> 20;
        return Some(format!(
            "a reader from outside: the write-ahead log is {mebibytes} MiB long and cannot be folded"
        ));
    }
    let (age, idle) = (strain.oldest_seconds, strain.idle_seconds);
    if age <= LONGEST_SECONDS && idle <= IDLE_SECONDS {
        return None;
    }
    let who = if strain.who.is_empty() { "a session" } else { strain.who.as_str() };
    Some(format!("{who}: its transaction is open for {age} s, {idle} s of it idle"))
}

/// Looks, and tells what is new. Where the books cannot be written because of it, the figures and the
/// log say so meanwhile, and it is told afterwards, if it still lasts.
///
/// # Errors
/// [`FlowError`] when the database does not say, or cannot be written.
pub async fn look(app: &App) -> Result<(), FlowError> {
    let strain = app.store.reader().strain()?;
    let by = held_by(&strain);
    if let Some(by) = &by {
        tracing::error!(by, waiting = strain.waiting, "somebody keeps the database from its work");
    }
    let told = app.store.reader().row::<Strained>(Strained::ID)?.and_then(|row| row.by);
    if told.is_some() != by.is_some() {
        app.store.submit(Tell { by }).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_holds_the_database_is_named() {
        let calm = Strain { oldest_seconds: 60, idle_seconds: 20, waiting: 3, ..Strain::default() };
        assert_eq!(held_by(&calm), None);
        let who = "session 7 of `psql`, idle in transaction".to_owned();
        let idle = Strain { idle_seconds: 21, oldest_seconds: 30, who, ..Strain::default() };
        let by = held_by(&idle).unwrap();
        assert!(by.starts_with("session 7 of `psql`") && by.ends_with("21 s of it idle"), "{by}");
        let long = held_by(&Strain { oldest_seconds: 61, ..Strain::default() }).unwrap();
        assert!(long.starts_with("a session:"), "{long}");
        let log = Strain { log_bytes: LOG_BYTES + 1, ..Strain::default() };
        assert!(held_by(&log).unwrap().contains("128 MiB"));
    }
}
