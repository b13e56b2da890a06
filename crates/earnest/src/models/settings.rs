//! Which model is asked as what, and what that may cost.

use std::path::PathBuf;
use std::time::Duration;

use earnest_core::model::CALL_SECONDS;
use earnest_core::money::Micros;
use earnest_core::quote::is_loopback;
use earnest_paypal::Secret;
use serde::{Deserialize, Serialize};
use url::Url;

use super::gateway::Patience;
use crate::config::{ConfigError, read_secret};

/// What all calls of a day may cost unless said: a dollar.
const DAILY_CAP: Micros = Micros::constant(1_000_000);
/// What a call may cost unless said: a cent.
const RESERVE: Micros = Micros::constant(10_000);
/// How often a tab is asked about unless said, in seconds.
const ASK_SECONDS: i64 = 900;

/// The longest that an answer may be waited for, in seconds: a minute less than the reserve of its call is
/// kept. Beyond that the call counts as lost, and another node may ask, while this one still waits.
const MOST_PATIENCE: u64 = CALL_SECONDS.unsigned_abs() - 60;

/// `[models]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelsFile {
    /// The most that all calls of a day (UTC) may cost.
    pub daily_cap_micros: Option<Micros>,
    /// How long an answer is waited for, in seconds.
    pub patience_seconds: Option<u64>,
    /// `[models.advisor]`: advises the treasurer.
    pub advisor: RoleFile,
}

/// `[models.ROLE]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoleFile {
    /// Where the model's server is; `/chat/completions` follows.
    pub base_url: Option<String>,
    /// The name of the model, as its server knows it.
    pub model: Option<String>,
    /// A file that holds the key, where the server wants one.
    pub key_file: Option<PathBuf>,
    /// Who made the model.
    pub family: Option<String>,
    /// What is reserved for one call.
    pub reserve_micros: Option<Micros>,
    /// At most one question about a tab in so many seconds.
    pub ask_seconds: Option<i64>,
    /// What a million tokens cost.
    pub price: Option<Price>,
}

/// What a million tokens cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// A million tokens of the question.
    pub input_micros: Micros,
    /// A million tokens of the answer.
    pub output_micros: Micros,
}

/// Settings, complete.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The most that all calls of a day may cost.
    pub daily_cap: Micros,
    /// Advises the treasurer; rules alone decide without it.
    pub advisor: Option<Role>,
    /// How long to wait for answers.
    pub patience: Patience,
}

impl Default for Settings {
    /// No model at all.
    fn default() -> Self {
        Self { daily_cap: DAILY_CAP, advisor: None, patience: Patience::default() }
    }
}

/// One role, complete.
#[derive(Clone, Debug)]
pub struct Role {
    /// What the model is asked as.
    pub name: &'static str,
    /// Where its server is.
    pub base_url: Url,
    /// The name of the model.
    pub model: String,
    /// The key.
    pub key: Option<Secret>,
    /// Who made the model.
    pub family: Option<String>,
    /// What a million tokens cost, where that is known.
    pub price: Option<Price>,
    /// What is reserved for one call.
    pub reserve: Micros,
    /// At most one question about one thing in so many seconds.
    pub ask_seconds: i64,
}

impl Settings {
    /// What the files say, with defaults.
    ///
    /// # Errors
    /// When a role is half configured, its address is no place to send a key to, or an answer would be
    /// waited for longer than its call counts as under way.
    pub fn of(file: ModelsFile) -> Result<Self, ConfigError> {
        let mut patience = Patience::default();
        if let Some(seconds) = file.patience_seconds {
            if !(1..=MOST_PATIENCE).contains(&seconds) {
                return Err(ConfigError::Value(format!(
                    "[models]: `patience_seconds` is {seconds}, and may be 1 to {MOST_PATIENCE}: \
                     after {CALL_SECONDS} s a call counts as lost, and another may be made"
                )));
            }
            patience.total = Duration::from_secs(seconds);
        }
        Ok(Self {
            daily_cap: file.daily_cap_micros.unwrap_or(DAILY_CAP),
            advisor: Role::of("advisor", file.advisor)?,
            patience,
        })
    }
}

impl Role {
    /// A role, if it is configured.
    fn of(name: &'static str, file: RoleFile) -> Result<Option<Self>, ConfigError> {
        let wrong = |why: String| ConfigError::Value(format!("[models.{name}]: {why}"));
        let (base_url, model) = match (file.base_url, file.model) {
            (Some(base_url), Some(model)) => (base_url, model),
            (None, None) => return Ok(None),
            _ => return Err(wrong("`base_url` and `model` are set together".to_owned())),
        };
        let base_url = base_of(&base_url).map_err(|why| wrong(format!("`base_url`: {why}")))?;
        let reserve = file.reserve_micros.unwrap_or(RESERVE);
        let ask_seconds = file.ask_seconds.unwrap_or(ASK_SECONDS);
        let graphic = model.chars().all(|c| c.is_ascii_graphic());
        if !graphic || !(1..=100).contains(&model.len()) {
            return Err(wrong("`model` has 1 to 100 printable ASCII characters".to_owned()));
        }
        if reserve.is_zero() {
            return Err(wrong("`reserve_micros` is zero: no call could cost anything".to_owned()));
        }
        if ask_seconds < 60 {
            return Err(wrong("`ask_seconds` is less than a minute".to_owned()));
        }
        let key = file.key_file.as_deref().map(read_secret).transpose()?;
        let (family, price) = (file.family, file.price);
        Ok(Some(Self { name, base_url, model, key, family, price, reserve, ask_seconds }))
    }
}

/// Reads a base address: a key goes there, so it is `https`, or `http` to this very machine.
fn base_of(text: &str) -> Result<Url, String> {
    let url = Url::parse(text.trim_end_matches('/')).map_err(|why| why.to_string())?;
    let safe = url.scheme() == "https" || (url.scheme() == "http" && is_loopback(&url));
    if !safe {
        return Err("has to begin with https:// (http:// only on this machine)".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a key belongs into `key_file`".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("has no query and no fragment".to_owned());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Settings, String> {
        let file: ModelsFile = toml::from_str(text).map_err(|why| why.to_string())?;
        Settings::of(file).map_err(|why| why.to_string())
    }

    #[test]
    fn no_model_is_waited_for_as_long_as_its_call_is_under_way() {
        let patience = |text: &str| of(text).map(|settings| settings.patience);
        assert_eq!(patience("").unwrap(), Patience::default());
        assert!(patience("").unwrap().total.as_secs() <= MOST_PATIENCE);
        assert_eq!(patience("patience_seconds = 240").unwrap().total.as_secs(), 240);
        for wrong in [0, 241, 300, 86_400] {
            let said = patience(&format!("patience_seconds = {wrong}")).unwrap_err();
            assert!(said.contains("may be 1 to 240"), "{said}");
        }
    }

    #[test]
    fn a_role_is_configured_whole_or_not_at_all() {
        assert!(of("").unwrap().advisor.is_none());
        let both = "[advisor]\nbase_url = \"https://m.example/v1/\"\nmodel = \"m\"\n";
        let role = of(both).unwrap().advisor.unwrap();
        assert_eq!(role.base_url.as_str(), "https://m.example/v1");
        for (wrong, why) in [
            ("[advisor]\nmodel = \"m\"", "set together"),
            ("[advisor]\nbase_url = \"http://m.example\"\nmodel = \"m\"", "https://"),
            ("[advisor]\nbase_url = \"https://me:key@m.example\"\nmodel = \"m\"", "key_file"),
            ("[advisor]\nbase_url = \"https://m.example?a=b\"\nmodel = \"m\"", "no query"),
            ("[advisor]\nbase_url = \"file:///etc\"\nmodel = \"m\"", "https://"),
            ("[advisor]\nbase_url = \"https://m.example\"\nmodel = \"a b\"", "printable"),
            (&format!("{both}reserve_micros = 0"), "zero"),
            (&format!("{both}ask_seconds = 59"), "minute"),
            (&format!("{both}kee_file = \"x\""), "kee_file"),
        ] {
            let said = of(wrong).unwrap_err();
            assert!(said.contains(why), "{wrong}: {said}");
        }
        let near = "[advisor]\nbase_url = \"http://127.0.0.1:1234/v1\"\nmodel = \"m\"\n";
        assert!(of(near).unwrap().advisor.is_some());
    }
}
