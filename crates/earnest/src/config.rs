//! Settings of a running Earnest. Flags and `EARNEST_*` come first, then `./earnest.toml`, then the
//! user's file, then defaults; `earnest.toml.example` explains every one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use earnest_core::settings::Settings;
use earnest_paypal::{Mode, Secret};
use earnest_store::{Place, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::app::WebhookCheck;
use crate::backup::BOOKS;
use crate::front::{FrontConfig, FrontFile};
use crate::limits::Limits;
use crate::models::{self, ModelsFile};
use crate::restore::SEAL_KEY;
use crate::watch::WatchFile;

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read or understood.
    #[error("`{}`: {why}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A setting makes no sense.
    #[error("{0}")]
    Value(String),
}

/// A settings file.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// Where to listen and be reached.
    pub server: Server,
    /// Where the books are.
    pub data: Data,
    /// PayPal.
    pub paypal: Paypal,
    /// Who may ask how often, and whom proxies speak for.
    pub front: FrontFile,
    /// How it can be watched.
    pub watch: WatchFile,
    /// Models that may be asked.
    pub models: ModelsFile,
    /// Numbers the rules use; each overrides its default.
    pub rules: toml::Table,
    /// What the process may cost; each overrides its default.
    pub limits: toml::Table,
}

/// `[server]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// `127.0.0.1:4020` unless said.
    pub listen: Option<SocketAddr>,
    /// Where people and sellers reach this Earnest; the issuer of every token.
    pub public_url: Option<String>,
}

/// `[data]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// `./earnest-data` unless said.
    pub dir: Option<PathBuf>,
    /// A PostgreSQL database for the books, without its password; a file in `dir` unless said.
    pub database: Option<String>,
    /// A file that holds the database's password.
    pub database_password_file: Option<PathBuf>,
    /// The key-encryption key; `<dir>/seal.key` unless said.
    pub key_file: Option<PathBuf>,
}

/// `[paypal]`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Paypal {
    /// `simulated` unless said, or `sandbox`, or `live`.
    pub mode: Option<Mode>,
    /// For live: that real money is meant. The exact words `real money`.
    pub confirm_live: Option<String>,
    /// The REST app's client id.
    pub client_id: Option<String>,
    /// A file that holds the REST app's secret.
    pub secret_file: Option<PathBuf>,
    /// In simulated mode: a simulator that runs already. Without it one is started.
    pub simulator_url: Option<String>,
    /// The id PayPal gave our webhook.
    pub webhook_id: Option<String>,
    /// `local` unless said, or `postback`.
    pub webhook_check: Option<WebhookCheck>,
    /// Refused: the account that calls is the one that is paid, until there are platforms.
    pub payee: Option<String>,
}

/// Settings, complete.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where people and sellers reach this Earnest; found from the listener unless said.
    pub public_url: Option<String>,
    /// Where everything local is, the books too unless they are in a database; `None` keeps nothing.
    pub data: Option<PathBuf>,
    /// The PostgreSQL database of the books, where they are in one.
    pub database: Option<Url>,
    /// The key-encryption key.
    pub key_file: Option<PathBuf>,
    /// Which PayPal.
    pub mode: Mode,
    /// The REST app's client id.
    pub client_id: Option<String>,
    /// The REST app's secret.
    pub secret: Option<Secret>,
    /// A simulator that runs already.
    pub simulator_url: Option<String>,
    /// The id PayPal gave our webhook.
    pub webhook_id: Option<String>,
    /// How webhooks are verified.
    pub webhook_check: WebhookCheck,
    /// Who may ask how often, and whom proxies speak for.
    pub front: FrontConfig,
    /// An address where figures are read without a key.
    pub metrics_listen: Option<SocketAddr>,
    /// Models that may be asked.
    pub models: models::Settings,
    /// Numbers the rules use.
    pub settings: Settings,
    /// What the process may cost.
    pub limits: Limits,
}

/// What flags and the environment say; they come before every file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// A settings file instead of `./earnest.toml`.
    pub file: Option<PathBuf>,
    /// Where to listen.
    pub listen: Option<SocketAddr>,
    /// Where people and sellers reach this Earnest.
    pub public_url: Option<String>,
    /// Where the books are.
    pub data: Option<PathBuf>,
    /// The PostgreSQL database of the books.
    pub database: Option<Url>,
    /// The key-encryption key.
    pub key_file: Option<PathBuf>,
    /// The REST app's client id.
    pub client_id: Option<String>,
    /// The REST app's secret, from its environment variable.
    pub secret: Option<Secret>,
    /// The user's own folder for settings.
    pub user_dir: Option<PathBuf>,
}

/// The folder of the books, unless said.
pub const DATA_DIR: &str = "earnest-data";
/// The mode, unless said: one that moves nothing.
pub const MODE: Mode = Mode::Simulated;
/// How webhooks are verified, unless said.
pub const WEBHOOK_CHECK: WebhookCheck = WebhookCheck::Local;

/// Where to listen, unless said: on this machine only.
pub fn listen() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 4020))
}

impl Config {
    /// Where the books are on disk.
    pub fn data_dir(&self) -> PathBuf {
        self.data.clone().unwrap_or_else(|| PathBuf::from(DATA_DIR))
    }

    /// Where the books are.
    pub fn books(&self) -> Place {
        match (&self.database, &self.data) {
            (Some(url), _) => Place::Server(url.clone()),
            (None, Some(dir)) => Place::File(dir.join(BOOKS)),
            (None, None) => Place::Memory,
        }
    }

    /// The key file, where there is one: said, or in the data folder.
    pub fn seal_key(&self) -> Option<PathBuf> {
        self.key_file.clone().or_else(|| self.data.as_ref().map(|dir| dir.join(SEAL_KEY)))
    }

    /// Everything simulated, on a free port, books in memory: for tests and demonstrations.
    pub fn simulated() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            public_url: None,
            data: None,
            database: None,
            key_file: None,
            mode: Mode::Simulated,
            client_id: None,
            secret: None,
            simulator_url: None,
            webhook_id: None,
            webhook_check: WebhookCheck::Local,
            front: FrontConfig::open(),
            metrics_listen: None,
            models: models::Settings::default(),
            settings: Settings::simulated(),
            limits: Limits::default(),
        }
    }

    /// Reads files and puts everything together.
    ///
    /// # Errors
    /// [`ConfigError`]; live mode without its confirmation among them.
    pub fn load(overrides: Overrides) -> Result<Self, ConfigError> {
        let file = read_files(&overrides)?;
        let mode = file.paypal.mode.unwrap_or(MODE);
        if mode == Mode::Live && file.paypal.confirm_live.as_deref() != Some("real money") {
            let why =
                "live mode moves real money: set confirm_live = \"real money\" under [paypal]";
            return Err(ConfigError::Value(why.to_owned()));
        }
        if file.paypal.payee.is_some() {
            // Transaction Search shows the movements of the account that calls, and of no other:
            // a charge whose answer was lost could never be told from one that was not made.
            let why = "[paypal]: `payee` cannot be set: the account that calls is the one that is \
                       paid, because PayPal shows the payments of no other; leave it out, and use \
                       the client id and secret of the account that is to be paid";
            return Err(ConfigError::Value(why.to_owned()));
        }
        let database = database(&overrides, &file.data)?;
        let public_url = overrides.public_url.or(file.server.public_url);
        if mode != Mode::Simulated && database.is_some() && public_url.is_none() {
            // Found from where a node listens, each would issue under a name of its own.
            let why = "[server]: `public_url` is needed where the books are in a database: all \
                       nodes sign under the same name";
            return Err(ConfigError::Value(why.to_owned()));
        }
        let data = overrides.data.or(file.data.dir).unwrap_or_else(|| PathBuf::from(DATA_DIR));
        let secret = match (overrides.secret, &file.paypal.secret_file) {
            (Some(secret), _) => Some(secret),
            (None, Some(path)) => Some(read_secret(path)?),
            (None, None) => None,
        };
        let listen = overrides.listen.or(file.server.listen);
        Ok(Self {
            listen: listen.unwrap_or_else(self::listen),
            public_url,
            database,
            key_file: overrides.key_file.or(file.data.key_file),
            data: Some(data),
            mode,
            client_id: overrides.client_id.or(file.paypal.client_id),
            secret,
            simulator_url: file.paypal.simulator_url,
            webhook_id: file.paypal.webhook_id,
            webhook_check: file.paypal.webhook_check.unwrap_or(WEBHOOK_CHECK),
            front: file.front.into(),
            metrics_listen: file.watch.metrics_listen,
            models: models::Settings::of(file.models)?,
            settings: settings(mode, file.rules)?,
            limits: limits(file.limits)?,
        })
    }
}

/// The database of the books: of the flags and the environment, or of the files with its password.
fn database(overrides: &Overrides, file: &Data) -> Result<Option<Url>, ConfigError> {
    let wrong = |why: &str| ConfigError::Value(format!("[data]: `database`: {why}"));
    let said = match (&overrides.database, &file.database) {
        (Some(url), _) => Some(url.clone()),
        (None, Some(text)) => {
            let url = Url::parse(text).map_err(|why| wrong(&why))?;
            if url.has_password() {
                let why = "its password belongs in the file that `database_password_file` names";
                return Err(wrong(why));
            }
            Some(url)
        }
        (None, None) => None,
    };
    match (said, &file.database_password_file) {
        (Some(url), Some(path)) if !url.has_password() => {
            Ok(Some(url.with_password(read_secret(path)?.expose())))
        }
        (said, _) => Ok(said),
    }
}

/// The rules that the files set, over the defaults of a mode other than theirs: what would hold there.
///
/// # Errors
/// [`ConfigError`].
pub fn rules_in(mode: Mode, overrides: &Overrides) -> Result<Settings, ConfigError> {
    settings(mode, read_files(overrides)?.rules)
}

/// A secret from a file, without the line end that editors add.
///
/// # Errors
/// When the file cannot be read or is empty.
pub fn read_secret(path: &Path) -> Result<Secret, ConfigError> {
    let failed = |why: String| ConfigError::File { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(|why| failed(why.to_string()))?;
    match text.trim() {
        "" => Err(failed("is empty".to_owned())),
        secret => Ok(Secret::new(secret)),
    }
}

/// The defaults of the mode, each overridden by what the files say.
fn settings(mode: Mode, rules: toml::Table) -> Result<Settings, ConfigError> {
    let defaults = match mode {
        Mode::Simulated => Settings::simulated(),
        Mode::Sandbox | Mode::Live => Settings::default(),
    };
    overridden("rules", &defaults, rules, Settings::check)
}

/// The defaults, each overridden by what the files say.
fn limits(said: toml::Table) -> Result<Limits, ConfigError> {
    overridden("limits", &Limits::default(), said, Limits::check)
}

fn overridden<T: Serialize + DeserializeOwned>(
    table: &str,
    defaults: &T,
    said: toml::Table,
    check: impl FnOnce(&T) -> Result<(), String>,
) -> Result<T, ConfigError> {
    let wrong = |why: String| ConfigError::Value(format!("[{table}]: {why}"));
    let mut all = toml::Table::try_from(defaults).map_err(|why| wrong(why.to_string()))?;
    // One after the other, so that a value of the wrong type is named.
    for (name, value) in said {
        let mut changed = all.clone();
        merge(&mut changed, toml::Table::from_iter([(name.clone(), value)]));
        if let Err(why) = changed.clone().try_into::<T>() {
            return Err(wrong(format!("`{name}`: {}", why.message())));
        }
        all = changed;
    }
    let value: T =
        all.try_into().map_err(|why: toml::de::Error| wrong(why.message().to_owned()))?;
    check(&value).map_err(wrong)?;
    Ok(value)
}

fn merge(base: &mut toml::Table, over: toml::Table) {
    for (name, value) in over {
        match (base.get_mut(&name), value) {
            (Some(toml::Value::Table(base)), toml::Value::Table(over)) => merge(base, over),
            (_, value) => {
                base.insert(name, value);
            }
        }
    }
}

/// The settings files together, the stronger over the weaker.
///
/// # Errors
/// When one cannot be read or understood, or the one that was asked for is not there.
pub fn read_files(overrides: &Overrides) -> Result<File, ConfigError> {
    let mut all = toml::Table::new();
    let mut last = PathBuf::from("earnest.toml");
    for (path, table) in tables(overrides)? {
        merge(&mut all, table);
        last = path;
    }
    all.try_into().map_err(|why: toml::de::Error| ConfigError::File {
        path: last,
        why: why.message().to_owned(),
    })
}

/// The settings files that are there, the weaker first, as they are written.
///
/// # Errors
/// When one cannot be read, or the one that was asked for is not there.
pub fn tables(overrides: &Overrides) -> Result<Vec<(PathBuf, toml::Table)>, ConfigError> {
    let mut found = Vec::new();
    if let Some(dir) = &overrides.user_dir {
        let path = dir.join("earnest.toml");
        found.extend(read_table(&path, false)?.map(|table| (path, table)));
    }
    let (path, needed) = match &overrides.file {
        Some(path) => (path.clone(), true),
        None => (PathBuf::from("earnest.toml"), false),
    };
    found.extend(read_table(&path, needed)?.map(|table| (path, table)));
    Ok(found)
}

fn read_table(path: &Path, needed: bool) -> Result<Option<toml::Table>, ConfigError> {
    let failed = |why: String| ConfigError::File { path: path.to_owned(), why };
    match std::fs::read_to_string(path) {
        Ok(text) => text.parse().map(Some).map_err(|why: toml::de::Error| failed(why.to_string())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !needed => Ok(None),
        Err(error) => Err(failed(error.to_string())),
    }
}
