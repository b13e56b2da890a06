//! Calls to models: one client for any server that speaks OpenAI's chat completions.
//!
//! Models sit outside the money path. Whatever one says is text from a stranger until code has read
//! it by the schema that was asked for; nothing it says moves money by itself, and without any model
//! everything works by rules. Keys and questions are never logged.

pub mod advisor;
mod answer;
mod gateway;
mod settings;

use earnest_core::money::Micros;
use earnest_core::quote::is_invisible;

pub use self::answer::{Cost, ModelError, Spend, read};
pub use self::gateway::{Asked, Gateway, GatewayError, Patience, Question};
pub use self::settings::{ModelsFile, Price, Role, RoleFile, Settings};

/// The models of a running Earnest.
pub struct Models {
    /// The most that all calls of a day may cost.
    pub daily_cap: Micros,
    /// Advises the treasurer.
    pub advisor: Option<Gateway>,
}

impl Models {
    /// Clients for every role that is configured.
    ///
    /// # Errors
    /// When TLS cannot be set up, or a key is none that could be sent.
    pub fn new(settings: &Settings) -> Result<Self, GatewayError> {
        let gateway = |role: &Role| Gateway::new(role.clone(), settings.patience);
        Ok(Self {
            daily_cap: settings.daily_cap,
            advisor: settings.advisor.as_ref().map(gateway).transpose()?,
        })
    }

    /// Every role that is configured.
    pub fn all(&self) -> impl Iterator<Item = &Gateway> {
        self.advisor.iter()
    }
}

/// A stranger's text as people may be shown it: in one line, without control and other invisible
/// characters, at most so many characters long.
pub fn plain(text: &str, most: usize) -> String {
    let shown = |c: char| if is_invisible(c) { ' ' } else { c };
    let mut plain = String::new();
    for word in text.chars().map(shown).collect::<String>().split_whitespace() {
        if !plain.is_empty() {
            plain.push(' ');
        }
        plain.push_str(word);
    }
    plain.chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_becomes_plain_text() {
        assert_eq!(plain("  a\n\tb\u{1b}[2J\u{202e}c\u{0}\u{200b}d ", 300), "a b [2J c d");
        assert_eq!(plain("ééé", 2), "éé");
        assert_eq!(plain("\u{7}\n", 300), "");
    }
}
