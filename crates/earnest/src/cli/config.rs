//! `earnest config show`: the settings in force, and where each comes from.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use earnest_core::problem::Code;
use earnest_core::settings::Settings;
use earnest_paypal::Mode;
use serde_json::{Value, json};

use super::failure::{Ended, Failure};
use super::output::text;
use super::{Style, Where};
use crate::config::{Config, Overrides, tables};
use crate::front::{FrontConfig, FrontFile};
use crate::limits::Limits;
use crate::watch::{LogFormat, WatchFile};

/// Settings.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Shows every setting in force.
    Show(Show),
}

/// Which settings.
#[derive(Debug, Args)]
pub struct Show {
    /// Say where each comes from, too.
    #[arg(long)]
    pub origin: bool,
    /// Where `earnest up` would run, and with what.
    #[command(flatten)]
    pub place: Where,
}

/// Values with their origins, by the name of the setting.
type Known = BTreeMap<String, (String, String)>;

/// Runs the command.
pub fn run(command: ConfigCommand, style: &Style) -> Ended {
    let ConfigCommand::Show(Show { origin, place }) = command;
    let overrides = place.overrides()?;
    // What cannot be used is said as `earnest up` says it.
    let config = Config::load(overrides.clone())?;
    let rows: Vec<Value> = known(&overrides, config.mode)?
        .into_iter()
        .map(|(name, (value, origin))| json!({ "name": name, "value": value, "origin": origin }))
        .collect();
    if origin {
        style.rows(&rows, ["SETTING", "VALUE", "FROM"], |row| {
            [text(row, "name"), text(row, "value"), text(row, "origin")]
        })?;
    } else {
        style.rows(&rows, ["SETTING", "VALUE"], |row| [text(row, "name"), text(row, "value")])?;
    }
    Ok(ExitCode::SUCCESS)
}

fn known(overrides: &Overrides, mode: Mode) -> Result<Known, Failure> {
    let mut known = Known::new();
    for (name, value) in [
        ("server.listen", "127.0.0.1:4020"),
        ("data.dir", "earnest-data"),
        ("paypal.mode", "simulated"),
        ("paypal.webhook_check", "local"),
        ("models.daily_cap_micros", "1000000"),
    ] {
        known.insert(name.to_owned(), (value.to_owned(), "default".to_owned()));
    }
    let rules = match mode {
        Mode::Simulated => Settings::simulated(),
        Mode::Sandbox | Mode::Live => Settings::default(),
    };
    let table = |made: Result<toml::Table, toml::ser::Error>| {
        made.map_err(|why| Failure::of(Code::Internal, why.to_string()))
    };
    let front = FrontFile::from(FrontConfig::from(FrontFile::default()));
    add(&mut known, "front", table(toml::Table::try_from(front))?, "default");
    let watch = WatchFile { log: Some(LogFormat::default()), ..WatchFile::default() };
    add(&mut known, "watch", table(toml::Table::try_from(watch))?, "default");
    let rules = table(toml::Table::try_from(&rules))?;
    add(&mut known, "rules", rules, &format!("default of {mode} mode"));
    let limits = table(toml::Table::try_from(Limits::default()))?;
    add(&mut known, "limits", limits, "default");
    for (path, table) in tables(overrides)? {
        add(&mut known, "", table, &path.display().to_string());
    }
    let said = |path: &Option<std::path::PathBuf>| path.as_ref().map(|p| p.display().to_string());
    let secret = overrides.secret.as_ref().map(|_| "[not shown]".to_owned());
    for (name, value, variable) in [
        ("server.listen", overrides.listen.map(|listen| listen.to_string()), "EARNEST_LISTEN"),
        ("server.public_url", overrides.public_url.clone(), "EARNEST_PUBLIC_URL"),
        ("data.dir", said(&overrides.data), "EARNEST_DATA"),
        ("data.key_file", said(&overrides.key_file), "EARNEST_KEY_FILE"),
        ("paypal.client_id", overrides.client_id.clone(), "EARNEST_PAYPAL_CLIENT_ID"),
        ("paypal.secret", secret, "EARNEST_PAYPAL_SECRET"),
    ] {
        if let Some(value) = value {
            known.insert(name.to_owned(), (value, format!("flag or {variable}")));
        }
    }
    Ok(known)
}

/// Adds what a table says, its tables within it by their path.
fn add(known: &mut Known, prefix: &str, table: toml::Table, origin: &str) {
    for (name, value) in table {
        let name = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        match value {
            toml::Value::Table(inner) => add(known, &name, inner, origin),
            toml::Value::String(text) => {
                known.insert(name, (text, origin.to_owned()));
            }
            other => {
                known.insert(name, (other.to_string(), origin.to_owned()));
            }
        }
    }
}
