//! `earnest migrate`: moves the books to a database, and back.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use earnest_core::problem::{Code, LocalCode};
use earnest_paypal::Secret;
use earnest_store::{MoveError, OpenError, Options, Place, Store, Url};
use serde_json::{Value, json};

use super::client::{Client, Reach, Role};
use super::failure::{Ended, Failure};
use super::output::{Money, text};
use super::{Style, Where};
use crate::backup::BOOKS;
use crate::config::Config;
use crate::migrate::{MigrateError, Migrated, finish, migrate};
use crate::source::machine_clock;

/// Moves the books to a PostgreSQL database, or back to a folder, also while Earnest runs.
///
/// The old books say from then on where they went, and nothing is written or sent from there any
/// more. The same command again goes on with a move that was cut off.
#[derive(Debug, Args)]
pub struct Migrate {
    /// Where to: `postgres://…`, or a folder. Give a password in the environment, not in a flag, which
    /// everybody on the machine sees.
    #[arg(
        long,
        env = "EARNEST_MIGRATE_TO",
        hide_env_values = true,
        value_parser = super::secret,
        value_name = "URL|FOLDER"
    )]
    pub to: Secret,
    /// Where Earnest is, if the books are a file that it has open [default: http://127.0.0.1:4020].
    #[arg(long, env = "EARNEST_URL", value_name = "URL")]
    pub url: Option<String>,
    /// Whose books.
    #[command(flatten)]
    pub place: Where,
    /// How to ask.
    #[command(flatten)]
    pub money: Money,
}

impl From<MigrateError> for Failure {
    fn from(error: MigrateError) -> Self {
        let why = error.to_string();
        match error {
            MigrateError::Move(MoveError::Open(open)) => match open {
                OpenError::NotEmpty(_) | OpenError::Moved { .. } => {
                    Self::local(LocalCode::Exists, 7, why)
                        .next("name a database, schema or folder without books")
                }
                OpenError::InUse(_) => {
                    Self::local(LocalCode::InUse, 7, why).next("stop the Earnest that has it open")
                }
                OpenError::OtherMode { .. } => Self::local(LocalCode::OtherMode, 7, why),
                OpenError::Address(_) => Self::usage(why),
                _ => Self::of(Code::DatabaseUnavailable, why),
            },
            MigrateError::Breach { .. } => Self::local(LocalCode::BooksUnbalanced, 1, why)
                .next("earnest audit names what is wrong"),
            MigrateError::Aside { .. } => Self::local(LocalCode::FileUnusable, 1, why),
            MigrateError::Move(_) | MigrateError::Audit { .. } => {
                Self::of(Code::DatabaseUnavailable, why).next("the same command again is right")
            }
        }
    }
}

/// Runs the command.
pub async fn run(command: Migrate, style: &Style) -> Ended {
    let data = command.place.data.clone();
    let config = Config::load(command.place.overrides()?)?;
    let (from, to) = (config.books(), target(&command.to)?);
    if from.name() == to.name() {
        return Err(Failure::usage("the books are there already"));
    }
    if let Place::File(file) = &from
        && !file.exists()
    {
        return Err(super::not_found(&format!("there are no books at `{}`", file.display())));
    }
    if command.money.dry_run {
        let row = json!({ "dry_run": true, "from": from.name(), "to": to.name() });
        style.object(&row, || format!("{} would be moved to {}", from.name(), to.name()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let question = format!("move the books from {} to {}?", from.name(), to.name());
    style.consent(command.money, true, &question).await?;
    let mode = config.mode.as_str();
    let (at, target) = (from.clone(), to.clone());
    let moved = tokio::task::spawn_blocking(move || here(&at, &target, mode)).await;
    let moved = moved.map_err(|why| Failure::of(Code::Internal, why.to_string()))?;
    let row = match moved {
        Err(MigrateError::Move(MoveError::Open(OpenError::InUse(file)))) if is(&from, &file) => {
            ask(&command.to, &to, Reach { url: command.url, data, role: None }).await?
        }
        moved => {
            let Migrated { copied, epoch, aside } = moved?;
            if let Some(aside) = aside {
                style.talk(&format!("the file that was there is now {}", aside.display()));
            }
            json!({ "to": to.name(), "epoch": epoch, "entries": copied.entries,
                "accounts": copied.accounts, "rows": copied.rows })
        }
    };
    let line = format!("{} entries moved to {}", text(&row, "entries"), to.name());
    let how = match &to {
        Place::File(_) => "earnest up without --database, with the same key file",
        _ => "earnest up --database with that URL, and the same key file, on every node",
    };
    style.changed(&row, &line, how)?;
    Ok(ExitCode::SUCCESS)
}

fn is(place: &Place, file: &std::path::Path) -> bool {
    matches!(place, Place::File(path) if path == file)
}

fn target(said: &Secret) -> Result<Place, Failure> {
    let text = said.expose();
    if text.contains("://") {
        let url = Url::parse(text).map_err(|why| Failure::usage(format!("--to: {why}")))?;
        return Ok(Place::Server(url));
    }
    Ok(Place::File(PathBuf::from(text).join(BOOKS)))
}

/// Moves books that nobody else has open for writing, or that several may write.
fn here(from: &Place, to: &Place, mode: &str) -> Result<Migrated, MigrateError> {
    let clock = machine_clock();
    match Store::open(Options::new(from.clone(), mode, clock.clone())) {
        Ok(store) => {
            let moved = migrate(&store, to, clock);
            store.close();
            moved
        }
        // The last step of a move that was cut off, if it went there.
        Err(OpenError::Moved { to: went, .. }) if went == to.name() => finish(to, mode, clock),
        Err(why) => Err(why.into()),
    }
}

/// Has the Earnest that holds the file move it.
async fn ask(to: &Secret, place: &Place, reach: Reach) -> Result<Value, Failure> {
    if !matches!(place, Place::Server(_)) {
        let why = "Earnest has the books open, and moves them to a database only";
        return Err(Failure::local(LocalCode::InUse, 7, why).next("stop it first"));
    }
    let body = Some(json!({ "to": to.expose() }));
    Client::new(&reach)?.post(Role::Operator, "/v1/migrate", body).await
}
