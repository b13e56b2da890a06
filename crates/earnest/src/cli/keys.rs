//! `earnest keys`: what signs vouchers and receipts, and what seals secrets.

use earnest_core::problem::{Code, LocalCode};
use earnest_store::Place;
use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use http::Method;
use serde_json::json;

use super::client::{Client, Reach, Role};
use super::failure::{Ended, Failure};
use super::output::{Money, text};
use super::{Style, Where};
use crate::config::Config;
use crate::reseal::{ResealError, Until, reseal};
use crate::restore::SEAL_KEY;
use crate::source::{machine_clock, random_token};

/// What signs vouchers and receipts, and what seals secrets.
#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Lists the signing keys.
    List {
        /// Which Earnest.
        #[command(flatten)]
        reach: Reach,
    },
    /// Makes new signing keys: published at once, signing from ten minutes later on.
    Rotate {
        /// Which Earnest.
        #[command(flatten)]
        reach: Reach,
        /// Which.
        #[arg(long = "for", value_enum, default_value = "both")]
        purpose: Which,
        /// The old key may be known to somebody: end it now.
        #[arg(long)]
        at_once: bool,
        /// Your name for this one wish, so that a repeat changes nothing more.
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// How to ask.
        #[command(flatten)]
        money: Money,
    },
    /// Replaces the key file and seals every secret anew. Earnest must not run meanwhile.
    Reseal {
        /// Whose books.
        #[command(flatten)]
        place: Where,
    },
}

/// Which keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Which {
    /// Those of vouchers.
    Voucher,
    /// Those of receipts.
    Receipt,
    /// Both.
    Both,
}

impl Which {
    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Voucher => &["voucher"],
            Self::Receipt => &["receipt"],
            Self::Both => &["voucher", "receipt"],
        }
    }
}

impl From<ResealError> for Failure {
    fn from(error: ResealError) -> Self {
        let why = error.to_string();
        match error {
            ResealError::Open(_) | ResealError::Running { .. } => {
                Self::local(LocalCode::InUse, 7, why).next("stop Earnest first")
            }
            _ => Self::local(LocalCode::KeyFile, 1, why).next("the same command again goes on"),
        }
    }
}

/// Runs the command.
pub async fn run(command: Keys, style: &Style) -> Ended {
    match command {
        Keys::List { reach } => list(&reach, style).await?,
        Keys::Rotate { reach, purpose, at_once, idempotency_key, money } => {
            if money.dry_run {
                would_rotate(&reach, purpose, style).await?;
                return Ok(ExitCode::SUCCESS);
            }
            let question = match at_once {
                true => "end the signing keys now?",
                false => "make new signing keys, which sign in ten minutes?",
            };
            style.consent(money, true, question).await?;
            let wish = idempotency_key.unwrap_or_else(random_token);
            rotate(&reach, purpose, at_once, &wish, style).await?;
        }
        Keys::Reseal { place } => seal_anew(place, style).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(reach: &Reach, style: &Style) -> Result<(), Failure> {
    let client = Client::new(reach)?;
    let listing = client.get(Role::Operator, "/v1/signing-keys").await?;
    let rows = listing.get("data").and_then(|rows| rows.as_array()).cloned().unwrap_or_default();
    style.rows(&rows, ["KEY", "FOR", "STATUS", "SIGNS FROM", "RETIRED"], |row| {
        [
            text(row, "kid"),
            text(row, "for"),
            text(row, "status"),
            text(row, "signs_from"),
            text(row, "retired_at"),
        ]
    })
}

/// Whether a rotation would be refused: one of these keys waits for its turn already.
async fn would_rotate(reach: &Reach, purpose: Which, style: &Style) -> Result<(), Failure> {
    let listing = Client::new(reach)?.get(Role::Operator, "/v1/signing-keys").await?;
    let rows = listing.get("data").and_then(|rows| rows.as_array()).cloned().unwrap_or_default();
    for name in purpose.names() {
        let of = |status: &str| {
            let mut rows = rows.iter();
            rows.find(|row| text(row, "for") == *name && text(row, "status") == status)
        };
        if let Some(waits) = of("published") {
            let (kid, from) = (text(waits, "kid"), text(waits, "signs_from"));
            let why = format!("it would be refused: {kid} signs from {from}, and is not over");
            return Err(Failure::of(Code::StateConflict, why));
        }
        let retires = of("signing").map(|row| text(row, "kid")).unwrap_or_default();
        let row = json!({ "dry_run": true, "would": "rotate", "for": name, "retires": retires });
        style.object(&row, || format!("would make a new {name} key in the place of {retires}"))?;
    }
    Ok(())
}

async fn rotate(
    reach: &Reach,
    purpose: Which,
    at_once: bool,
    wish: &str,
    style: &Style,
) -> Result<(), Failure> {
    let client = Client::new(reach)?;
    for name in purpose.names() {
        let body = json!({ "for": name, "at_once": at_once });
        let call = client.call(Role::Operator, Method::POST, "/v1/signing-keys/rotate");
        let call = call.key(Some(&format!("{wish}-{name}"))).body(body);
        let row = call.send().await?.json()?;
        let line = format!("{} {name}, signs from {}", text(&row, "kid"), text(&row, "signs_from"));
        style.object(&row, || line)?;
    }
    style.next("earnest backup: a restore from an older one does not know these keys");
    Ok(())
}

async fn seal_anew(place: Where, style: &Style) -> Result<(), Failure> {
    let config = Config::load(place.overrides()?)?;
    let key_file = config.seal_key().unwrap_or_else(|| config.data_dir().join(SEAL_KEY));
    let (books, mode, at) = (config.books(), config.mode.as_str(), key_file.clone());
    if let Place::File(path) = &books
        && !path.exists()
    {
        return Err(Failure::file(path, "there are no books"));
    }
    let shared = config.database.is_some();
    let done = tokio::task::spawn_blocking(move || {
        reseal(&books, mode, &at, machine_clock(), Until::Done)
    });
    let done = done.await.map_err(|why| Failure::of(Code::Internal, why.to_string()))??;
    let row = json!({ "secrets": done.secrets, "key_file": key_file.display().to_string(),
        "old_key_file": done.old.display().to_string() });
    let line = format!("{} secrets sealed with a new {}", done.secrets, key_file.display());
    let old = done.old.display();
    let every = if shared { "copy the new key file to every node; " } else { "" };
    let next = format!("{every}earnest backup, and keep {old} as long as older backups are kept");
    style.changed(&row, &line, &next)
}
