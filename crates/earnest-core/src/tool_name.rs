//! The name under which a tool is published to models.
//!
//! MCP lets a provider call its tool almost anything; the model APIs that clients put tools before
//! take less, and not all the same: letters, digits, `_` and `-`, 64 of them at most, and some of
//! them no digit in front. What every one of them takes is published as it is. Anything else gets a
//! name made of what is left of it and a fingerprint of what it was, so that two names that look
//! alike once cleaned stay two, and a name stays the same whoever else publishes what, and when.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::problem::{Code, Refusal};

/// The longest name that model APIs take, in characters.
pub const LONGEST: usize = 64;
/// The longest name of a provider's, in bytes: what is longer is no name.
pub const LONGEST_OF_PROVIDER: usize = 1024;
/// The characters of a fingerprint: 48 bits in hexadecimal. Names are unique within a provider,
/// who would have to search for a collision with himself.
const FINGERPRINT: usize = 12;

/// A name that every model API takes: it begins with a letter, has letters, digits, `_` and `-`, and
/// at most [`LONGEST`] of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolName(String);

impl ToolName {
    /// The name under which a provider's tool is published. It depends on that name alone.
    ///
    /// # Errors
    /// `name_invalid` when it is empty, only white space, or over [`LONGEST_OF_PROVIDER`] bytes.
    pub fn published(provider: &str) -> Result<Self, Refusal> {
        if provider.trim().is_empty() || provider.len() > LONGEST_OF_PROVIDER {
            let detail = "a tool has a name, of at most 1,024 bytes";
            return Err(Refusal::new(Code::NameInvalid, detail));
        }
        if is_taken_everywhere(provider) && !ends_like_a_fingerprint(provider) {
            return Ok(Self(provider.to_owned()));
        }
        let fingerprint = hex::encode(Sha256::digest(provider)).chars().take(FINGERPRINT).collect();
        Ok(Self([stem(provider), fingerprint].join("_")))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_taken_everywhere(name: &str) -> bool {
    name.len() <= LONGEST
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(is_plain)
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-')
}

/// Whether a name could be one that was made here. Such a name of a provider's own gets a fingerprint
/// as well; else it could be the name made for another.
fn ends_like_a_fingerprint(name: &str) -> bool {
    let tail = name.rsplit_once('_').map(|(_, tail)| tail);
    tail.is_some_and(|tail| {
        tail.len() == FINGERPRINT && tail.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
    })
}

/// What is left of a name, for a person to recognise: runs of what is not taken become one `_`.
fn stem(name: &str) -> String {
    let room = LONGEST.saturating_sub(FINGERPRINT).saturating_sub(1);
    let parts: Vec<&str> = name.split(|c| !is_plain(c)).filter(|part| !part.is_empty()).collect();
    let mut stem = parts.join("_");
    if !stem.starts_with(|first: char| first.is_ascii_alphabetic()) {
        stem.insert_str(0, "tool_");
    }
    stem.chars().take(room).collect::<String>().trim_end_matches('_').to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn name(provider: &str) -> String {
        ToolName::published(provider).unwrap().as_str().to_owned()
    }

    #[test]
    fn mcpi_14_names_of_providers_become_names_that_every_model_takes() {
        let long = "a".repeat(80);
        let given = ["21st_tool", long.as_str(), "天気"];
        let published: BTreeSet<String> = given.iter().map(|given| name(given)).collect();
        assert_eq!(published.len(), 3);
        for name in &published {
            assert!(is_taken_everywhere(name), "{name}");
        }
        for none in ["", " ", "\t\n", "\u{3000}"] {
            assert_eq!(ToolName::published(none).unwrap_err().code, Code::NameInvalid, "{none:?}");
        }
        assert!(ToolName::published(&"a".repeat(LONGEST_OF_PROVIDER + 1)).is_err());
    }

    /// What is published today is published tomorrow: these are written down, not worked out.
    #[test]
    fn a_published_name_never_changes() {
        assert_eq!(name("get_weather"), "get_weather");
        assert_eq!(name("21st_tool"), "tool_21st_tool_4c72369cb593");
        assert_eq!(name("天気"), "tool_bc79d84d3df7");
        assert_eq!(name("files/read.all"), "files_read_all_18936d676f81");
    }

    /// Names that are one once cleaned, and a name that is what was made for another.
    #[test]
    fn names_that_look_alike_once_cleaned_stay_apart() {
        let alike = ["a.b", "a/b", "a b", "a_b", "a__b", "a.b ", "a\u{301}b", "á_b", "A.b"];
        let mut given: Vec<String> = alike.iter().map(|name| (*name).to_owned()).collect();
        given.extend(alike.map(name));
        let long = "x".repeat(64);
        given.extend([format!("{long}y"), format!("{long}z"), long]);
        let given: BTreeSet<String> = given.into_iter().collect();
        let published: BTreeSet<String> = given.iter().map(|given| name(given)).collect();
        assert_eq!(published.len(), given.len(), "{published:?}");
    }

    proptest! {
        #[test]
        fn any_name_gets_one_that_every_model_takes(given in "\\PC{1,100}", other in "\\PC{1,100}") {
            prop_assume!(!given.trim().is_empty() && !other.trim().is_empty());
            let published = name(&given);
            prop_assert!(is_taken_everywhere(&published), "{published}");
            prop_assert_eq!(published == name(&other), given == other);
        }
    }
}
