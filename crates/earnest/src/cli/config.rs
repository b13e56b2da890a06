//! `earnest config show`: the settings in force, and where each comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Subcommand};
use earnest_core::problem::Code;
use earnest_core::settings::Settings;
use earnest_paypal::Mode;
use serde_json::{Value, json};

use super::failure::{Ended, Failure};
use super::output::text;
use super::{Style, Where};
use crate::config::{self, Config, DATA_DIR, Overrides, tables};
use crate::front::{FrontConfig, FrontFile};
use crate::limits::Limits;
use crate::models;
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
    /// How `earnest up` would write its log.
    #[arg(long, env = "EARNEST_LOG_FORMAT", value_enum, value_name = "FORMAT")]
    pub log: Option<LogFormat>,
    /// Where `earnest up` would run, and with what.
    #[command(flatten)]
    pub place: Where,
    /// The names of those above that were given as flags, not by the environment.
    #[arg(skip)]
    pub flags: BTreeSet<String>,
}

impl Show {
    /// Takes note of which settings the command line gave, as it was read.
    pub fn note_flags(&mut self, read: &ArgMatches) {
        let ids = read.ids().map(|id| id.as_str());
        let flags = ids.filter(|id| read.value_source(id) == Some(ValueSource::CommandLine));
        self.flags = flags.map(str::to_owned).collect();
    }

    /// Where a setting that is no file's comes from.
    fn origin_of(&self, id: &str, variable: &str) -> String {
        match self.flags.contains(id) {
            true => format!("flag --{}", id.replace('_', "-")),
            false => variable.to_owned(),
        }
    }
}

/// Values with their origins, by the name of the setting.
type Known = BTreeMap<String, (String, String)>;

/// Runs the command.
pub fn run(command: ConfigCommand, style: &Style) -> Ended {
    let ConfigCommand::Show(show) = command;
    let (origin, overrides) = (show.origin, show.place.clone().overrides()?);
    // What cannot be used is said as `earnest up` says it.
    let config = Config::load(overrides.clone())?;
    let rows: Vec<Value> = known(&show, &overrides, config.mode)?
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

fn known(show: &Show, overrides: &Overrides, mode: Mode) -> Result<Known, Failure> {
    let mut known = Known::new();
    let models = models::Settings::default();
    for (name, value) in [
        ("server.listen", config::listen().to_string()),
        ("data.dir", DATA_DIR.to_owned()),
        ("paypal.mode", config::MODE.to_string()),
        ("paypal.webhook_check", config::WEBHOOK_CHECK.as_str().to_owned()),
        ("models.daily_cap_micros", models.daily_cap.get().to_string()),
        ("models.patience_seconds", models.patience.total.as_secs().to_string()),
    ] {
        known.insert(name.to_owned(), (value, "default".to_owned()));
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
    let secret_from = match std::env::var_os("EARNEST_PAYPAL_SECRET_FILE") {
        Some(_) => "EARNEST_PAYPAL_SECRET_FILE",
        None => "EARNEST_PAYPAL_SECRET",
    };
    let listen = overrides.listen.map(|listen| listen.to_string());
    let log = show.log.map(|log| log.as_str().to_owned());
    let client_id = overrides.client_id.clone();
    // Shown without its password.
    let database = overrides.database.as_ref().map(ToString::to_string);
    for (name, value, id, variable) in [
        ("server.listen", listen, "listen", "EARNEST_LISTEN"),
        ("server.public_url", overrides.public_url.clone(), "public_url", "EARNEST_PUBLIC_URL"),
        ("data.dir", said(&overrides.data), "data", "EARNEST_DATA"),
        ("data.database", database, "database", "EARNEST_DATABASE"),
        ("data.key_file", said(&overrides.key_file), "key_file", "EARNEST_KEY_FILE"),
        ("paypal.client_id", client_id, "paypal_client_id", "EARNEST_PAYPAL_CLIENT_ID"),
        ("paypal.secret", secret, "", secret_from),
        ("watch.log", log, "log", "EARNEST_LOG_FORMAT"),
    ] {
        if let Some(value) = value {
            known.insert(name.to_owned(), (value, show.origin_of(id, variable)));
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
