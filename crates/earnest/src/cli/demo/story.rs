//! How the demonstration speaks: in plain words on stdout, or not at all.

use std::time::Duration;

use super::Demo;
use crate::cli::Style;

/// How long a reader gets between two steps.
const PAUSE: Duration = Duration::from_millis(900);

/// The voice of the demonstration.
pub struct Story {
    silent: bool,
    pause: Duration,
}

impl Story {
    /// Silent where only data is wanted; without pauses where time matters.
    pub fn new(command: &Demo, style: &Style) -> Self {
        let silent = style.json || style.quiet;
        Self { silent, pause: if command.fast || silent { Duration::ZERO } else { PAUSE } }
    }

    /// One line.
    pub fn say(&self, line: &str) {
        if !self.silent {
            println!("{line}");
        }
    }

    /// Time to read.
    pub async fn pause(&self) {
        if !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
    }
}
