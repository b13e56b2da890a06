//! Watching for whoever keeps the database from its work: a transaction that somebody left open on the
//! server, a reader that holds an SQLite file's write-ahead log.

use earnest_core::strain::{Strained, Tell};
use earnest_store::Strain;

use super::paypal::FlowError;
use crate::app::App;

/// What is borne before it is an alarm.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The longest that a transaction may be open, in seconds.
    pub longest_seconds: u64,
    /// The longest that somebody may leave one idle, in seconds.
    pub idle_seconds: u64,
    /// The longest that the write-ahead log of a file may be, in bytes.
    pub log_bytes: u64,
}

/// Our own transactions end within 20 s by the bounds that each has, and are never idle; at twice that
/// length of a log writing stops.
const BOUNDS: Bounds = Bounds { longest_seconds: 60, idle_seconds: 20, log_bytes: 128 << 20 };

/// Who keeps the database from its work, in words.
fn held_by(strain: &Strain, bounds: Bounds) -> Option<String> {
    if strain.log_bytes > bounds.log_bytes {
        let mebibytes = strain.log_bytes >> 20;
        return Some(format!(
            "a reader from outside: the write-ahead log is {mebibytes} MiB long and cannot be folded"
        ));
    }
    let (age, idle) = (strain.oldest_seconds, strain.idle_seconds);
    if age <= bounds.longest_seconds && idle <= bounds.idle_seconds {
        return None;
    }
    let who = if strain.who.is_empty() { "a session" } else { strain.who.as_str() };
    Some(format!(
        "{who}: the oldest transaction is open for {age} s, the longest idle one for {idle} s"
    ))
}

/// Looks, and tells what is new. Where the books cannot be written because of it, the figures and the
/// log say so meanwhile, and it is told afterwards, if it still lasts.
///
/// # Errors
/// [`FlowError`] when the database does not say, or cannot be written.
pub async fn look(app: &App) -> Result<(), FlowError> {
    look_beyond(app, BOUNDS).await
}

/// As [`look`], beyond other bounds.
///
/// # Errors
/// As [`look`].
pub async fn look_beyond(app: &App, bounds: Bounds) -> Result<(), FlowError> {
    let strain = app.store.reader().strain()?;
    let by = held_by(&strain, bounds);
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
        let held_by = |strain: &Strain| held_by(strain, BOUNDS);
        assert_eq!(held_by(&calm), None);
        let who = "session 7 of `psql`, idle in transaction".to_owned();
        let idle = Strain { idle_seconds: 21, oldest_seconds: 30, who, ..Strain::default() };
        let by = held_by(&idle).unwrap();
        assert!(by.starts_with("session 7 of `psql`") && by.ends_with("idle one for 21 s"), "{by}");
        let long = held_by(&Strain { oldest_seconds: 61, ..Strain::default() }).unwrap();
        assert!(long.starts_with("a session:"), "{long}");
        let log = Strain { log_bytes: BOUNDS.log_bytes + 1, ..Strain::default() };
        assert!(held_by(&log).unwrap().contains("128 MiB"));
    }
}
