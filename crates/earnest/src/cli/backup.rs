//! `earnest backup` and `earnest restore`: copies of the books, and coming back from one.

use earnest_core::problem::{Code, LocalCode};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::{Client, Reach, Role, id};
use super::failure::{Ended, Failure};
use super::output::{Money, facts, money, text};
use super::rows::Paging;
use super::{Style, Where};
use crate::backup::{self, BackupError, MANIFEST, Taken};
use crate::config::Config;
use crate::restore::{Plan, RestoreError, restore};
use crate::source::machine_clock;

/// How many lines that PayPal's records do not explain a backup names.
const MOST_SAID: usize = 5;

/// Copies the books to a new folder, while Earnest runs, and audits the copy.
///
/// The key file is not in it: keep a copy of that somewhere else.
#[derive(Debug, Args)]
pub struct Backup {
    /// The new folder; its name appears when the copy is whole and checked.
    pub to: PathBuf,
    /// Whose books.
    #[command(flatten)]
    pub place: Where,
}

/// Makes a data folder, or fills an empty database, from a backup, quarantined; or looks after the quarantine of a running Earnest.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Restore {
    /// What to look at or decide.
    #[command(subcommand)]
    pub verb: Option<RestoreVerb>,
    /// The folder of the backup.
    #[arg(required = true)]
    pub from: Option<PathBuf>,
    /// Move a data folder that is not empty aside. Never one that is in use.
    #[arg(long)]
    pub force: bool,
    /// Where to.
    #[command(flatten)]
    pub place: Where,
}

/// What to look at or decide after a restore.
#[derive(Debug, Subcommand)]
pub enum RestoreVerb {
    /// Whether Earnest is quarantined, and how far PayPal's records were read.
    Status {
        /// Which Earnest.
        #[command(flatten)]
        reach: Reach,
    },
    /// Lists captures of the life that was lost, as PayPal's records showed them.
    Captures {
        /// Which Earnest.
        #[command(flatten)]
        reach: Reach,
        /// How much.
        #[command(flatten)]
        paging: Paging,
    },
    /// Lists purchases that were lost, as their sellers reported them.
    Lines {
        /// Which Earnest.
        #[command(flatten)]
        reach: Reach,
        /// How much.
        #[command(flatten)]
        paging: Paging,
    },
    /// Says who pays for a lost purchase.
    Decide {
        /// Which Earnest.
        #[command(flatten)]
        reach: Reach,
        /// `pur_…`
        purchase: String,
        /// `suspense`, `operator` or `nobody`.
        #[arg(long, value_name = "WHO")]
        paid_by: String,
        /// With `suspense`: PayPal's id of the capture that was for it.
        #[arg(long, value_name = "ID")]
        capture: Option<String>,
        /// How to ask.
        #[command(flatten)]
        money: Money,
    },
    /// Ends the quarantine, once PayPal's records were read past the restore and explained.
    Lift {
        /// Which Earnest.
        #[command(flatten)]
        reach: Reach,
        /// If they are not: what is unknown, and why you bear that.
        #[arg(long, value_name = "REASON", conflicts_with_all = ["accept", "reason"])]
        accept_gap: Option<String>,
        /// PayPal's ids of single records that have no place, and that you bear.
        #[arg(long, value_name = "ID", num_args = 1.., requires = "reason")]
        accept: Vec<String>,
        /// Why you bear them; kept for good.
        #[arg(long, value_name = "REASON", requires = "accept")]
        reason: Option<String>,
        /// How to ask.
        #[command(flatten)]
        money: Money,
    },
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Self {
        match &error {
            BackupError::Exists(_) => Self::local(LocalCode::Exists, 7, error.to_string()),
            BackupError::Damaged { .. } => Self::local(LocalCode::Damaged, 1, error.to_string()),
            _ => Self::local(LocalCode::FileUnusable, 1, error.to_string()),
        }
    }
}

impl From<RestoreError> for Failure {
    fn from(error: RestoreError) -> Self {
        let why = error.to_string();
        match error {
            RestoreError::Backup(error) => error.into(),
            RestoreError::NotEmpty(_) => Self::local(LocalCode::Exists, 7, why)
                .next("--force moves it aside, or name another folder with --data"),
            RestoreError::Open(_) => Self::local(LocalCode::InUse, 7, why)
                .next("stop Earnest first: a restore replaces its books"),
            RestoreError::OtherMode { .. } => Self::local(LocalCode::OtherMode, 7, why)
                .next("the mode stands under [paypal] in earnest.toml"),
            RestoreError::NoKey(_) | RestoreError::Key(_) | RestoreError::OtherKeyThere(_) => {
                Self::local(LocalCode::KeyFile, 1, why)
                    .next("--key-file names the copy of the key file that is kept apart")
            }
            RestoreError::Occupied(_) => Self::local(LocalCode::Exists, 7, why)
                .next("name an empty database or schema with --database"),
            RestoreError::Stranded { .. } => Self::local(LocalCode::FileUnusable, 1, why),
            RestoreError::Books(_) => Self::of(Code::DatabaseUnavailable, why),
        }
    }
}

fn lost(why: &dyn std::fmt::Display) -> Failure {
    Failure::of(Code::Internal, why.to_string())
}

/// Runs `earnest backup`.
pub async fn run(command: Backup, style: &Style) -> Ended {
    let config = Config::load(command.place.overrides()?)?;
    let (books, key_file) = (config.books(), config.seal_key());
    let (to, now) = (command.to.clone(), (machine_clock())());
    let taken =
        tokio::task::spawn_blocking(move || backup::take(&books, key_file.as_deref(), &to, now));
    let Taken { manifest, differs } = taken.await.map_err(|why| lost(&why))??;
    style.talk(&manifest.contains);
    for line in differs.iter().take(MOST_SAID) {
        style.talk(&format!("warning: not explained against PayPal's records: {line}"));
    }
    if differs.len() > MOST_SAID {
        style.talk(&format!("warning: and {} lines more", differs.len().saturating_sub(MOST_SAID)));
    }
    style.object(&json!(manifest), || {
        let at = manifest.taken_at;
        let books = command.to.join(MANIFEST);
        let seq = manifest.seq;
        format!("{}: audited, {seq} entries, {} books as of {at}", books.display(), manifest.mode)
    })?;
    style.next("copy it to another machine, and the key file to a third place");
    Ok(ExitCode::SUCCESS)
}

/// Runs `earnest restore`.
pub async fn run_restore(command: Restore, style: &Style) -> Ended {
    let Some(verb) = command.verb else { return from_backup(command, style).await };
    match verb {
        RestoreVerb::Status { reach } => {
            let row = Client::new(&reach)?.get(Role::Operator, "/v1/restore").await?;
            style.object(&row, || describe(&row))?;
        }
        RestoreVerb::Captures { reach, paging } => captures(&reach, paging, style).await?,
        RestoreVerb::Lines { reach, paging } => lines(&reach, paging, style).await?,
        RestoreVerb::Decide { reach, purchase, paid_by, capture, money } => {
            let body = json!({ "paid_by": paid_by, "paypal_capture": capture });
            let (client, path) = (Client::new(&reach)?, id(&purchase)?);
            if money.dry_run {
                would_decide(&client, &purchase, &paid_by, style).await?;
                return Ok(ExitCode::SUCCESS);
            }
            style.consent(money, true, &format!("{purchase} is paid by {paid_by}?")).await?;
            let path = format!("/v1/restore/lines/{path}");
            let row = client.post(Role::Operator, path, Some(body)).await?;
            let line = format!("{purchase} {}", text(&row, "status"));
            style.changed(&row, &line, "earnest restore lines")?;
        }
        RestoreVerb::Lift { reach, accept_gap, accept, reason, money } => {
            let client = Client::new(&reach)?;
            if money.dry_run {
                would_lift(&client, accept_gap.is_some(), &accept, style).await?;
                return Ok(ExitCode::SUCCESS);
            }
            let question = match &accept_gap {
                Some(_) => "sell and settle again in spite of what is not known?".to_owned(),
                None if accept.is_empty() => "sell and settle again?".to_owned(),
                None => format!("bear {}, and sell and settle again?", accept.join(", ")),
            };
            style.consent(money, true, &question).await?;
            if !accept.is_empty() {
                let body = Some(json!({ "records": accept, "reason": reason }));
                client.post(Role::Operator, "/v1/restore/accept", body).await?;
            }
            let body = Some(json!({ "accept_gap": accept_gap }));
            let row = client.post(Role::Operator, "/v1/restore/lift", body).await?;
            let next = "each owner looks at keys and policies, and resumes its agents";
            style.changed(&row, &text(&row, "status"), next)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What deciding would do, by the line as it is now.
async fn would_decide(
    client: &Client,
    purchase: &str,
    paid_by: &str,
    style: &Style,
) -> Result<(), Failure> {
    let listing = client.list(Role::Operator, "/v1/restore/lines", &[], usize::MAX / 2).await?;
    let line = listing.rows.into_iter().find(|row| text(row, "purchase") == purchase);
    let Some(line) = line else {
        return Err(Failure::of(Code::NotFound, format!("no lost purchase `{purchase}`")));
    };
    let (status, owed) = (text(&line, "status"), money(&line, "amount_micros"));
    let would = if status == "open" { "decide" } else { "nothing" };
    let row = json!({ "dry_run": true, "would": would, "purchase": purchase, "status": status,
        "amount_micros": line.get("amount_micros"), "paid_by": paid_by });
    style.object(&row, || match would {
        "decide" => format!("{owed} of {purchase} would be paid by {paid_by}"),
        _ => format!("{purchase} is {status} already"),
    })
}

/// What lifting would do, and what it would accept, by the quarantine as it is now.
async fn would_lift(
    client: &Client,
    gap: bool,
    accept: &[String],
    style: &Style,
) -> Result<(), Failure> {
    let row = client.get(Role::Operator, "/v1/restore").await?;
    let status = text(&row, "status");
    if status == "never" {
        return Err(Failure::of(Code::NotFound, "these books were never restored"));
    }
    let quarantined = status == "quarantined";
    let open = row.get("unexplained_records").and_then(Value::as_array);
    let open: Vec<&Value> = open.into_iter().flatten().collect();
    let named = |it: &&&Value| accept.contains(&text(it, "paypal_id"));
    let borne: Vec<&Value> = open.iter().filter(named).copied().collect();
    let known = |id: &&String| borne.iter().any(|it| text(it, "paypal_id") == **id);
    if let Some(id) = accept.iter().filter(|_| quarantined).find(|id| !known(id)) {
        let why = format!("it would be refused: `{id}` is not among the records without a place");
        return Err(Failure::of(Code::StateConflict, why).next("see `earnest restore status`"));
    }
    // Complete is what has a place for every record; what is borne needs none.
    let count = row.get("unexplained").and_then(Value::as_u64).unwrap_or(0);
    let left = count.saturating_sub(u64::try_from(borne.len()).unwrap_or(0));
    let read = text(&row, "read_to_the_end") == "true";
    if quarantined && !(read && left == 0) && !gap {
        let why = match read {
            false => format!("it would be refused: {}", text(&row, "import_said")),
            true => format!("it would be refused: {left} records more have no place"),
        };
        return Err(Failure::of(Code::StateConflict, why).next(
            "see `earnest restore status`; bear single records with --accept, or say with \
             --accept-gap why it goes without",
        ));
    }
    let would = if quarantined { "lift" } else { "nothing" };
    let explained = read && count == 0;
    let row = json!({ "dry_run": true, "would": would, "status": status, "explained": explained,
        "would_accept": borne });
    style.object(&row, || match would {
        "lift" => borne.iter().fold("would sell and settle again".to_owned(), |told, it| {
            format!("{told}\n  and bear {}", record(it))
        }),
        _ => "it is lifted already".to_owned(),
    })
}

/// A record that has no place, in a line.
fn record(it: &Value) -> String {
    let [id, code, why] = ["paypal_id", "code", "why"].map(|name| text(it, name));
    let moved = it.get("amount_micros").map(|_| format!(" {}", money(it, "amount_micros")));
    format!("{id} {code}{}: {why}", moved.unwrap_or_default())
}

fn describe(row: &Value) -> String {
    let told = facts(&[
        ("status", text(row, "status")),
        ("epoch", text(row, "epoch")),
        ("restored", text(row, "restored_at")),
        ("backup of", text(row, "backup_taken_at")),
        ("PayPal", text(row, "import_said")),
        ("records", text(row, "records")),
        ("unexplained", text(row, "unexplained")),
        ("in suspense", text(row, "in_suspense")),
        ("read again", text(row, "next_import_at")),
        ("lifted", text(row, "lifted_at")),
        ("in spite of", text(row, "gap")),
    ]);
    let open = row.get("unexplained_records").and_then(Value::as_array).into_iter().flatten();
    let told = open.fold(told, |told, it| format!("{told}\n  {}", record(it)));
    let borne = row.get("accepted_records").and_then(Value::as_array).into_iter().flatten();
    borne.fold(told, |told, it| {
        let what = it.get("record").map(record).unwrap_or_default();
        format!("{told}\n  borne: {what} ({}, {})", text(it, "reason"), text(it, "by"))
    })
}

async fn captures(reach: &Reach, paging: Paging, style: &Style) -> Result<(), Failure> {
    let client = Client::new(reach)?;
    let path = "/v1/restore/captures";
    let listing = client.list(Role::Operator, path, &[], paging.limit).await?;
    let heads = ["CAPTURE", "STATUS", ">AMOUNT", ">PLACED", "TAB", "PAYS", "OWNER"];
    style.rows(&listing.rows, heads, |row| {
        [
            text(row, "paypal_capture"),
            text(row, "status"),
            money(row, "amount_micros"),
            money(row, "placed_micros"),
            text(row, "tab"),
            text(row, "pays"),
            text(row, "owner"),
        ]
    })?;
    paging.say_more(style, listing.more);
    Ok(())
}

async fn lines(reach: &Reach, paging: Paging, style: &Style) -> Result<(), Failure> {
    let client = Client::new(reach)?;
    let listing = client.list(Role::Operator, "/v1/restore/lines", &[], paging.limit).await?;
    let heads = ["PURCHASE", "STATUS", ">AMOUNT", "SELLER", "LISTING", "CLAIMED"];
    style.rows(&listing.rows, heads, |row| {
        [
            text(row, "purchase"),
            text(row, "status"),
            money(row, "amount_micros"),
            text(row, "seller"),
            text(row, "listing"),
            text(row, "claimed_at"),
        ]
    })?;
    paging.say_more(style, listing.more);
    Ok(())
}

async fn from_backup(command: Restore, style: &Style) -> Ended {
    let named = command.place.key_file.clone();
    let config = Config::load(command.place.overrides()?)?;
    let data = config.data_dir();
    let from = command.from.ok_or_else(|| Failure::usage("which backup?"))?;
    let force = command.force;
    if force && config.database.is_some() {
        let why = "--force moves a folder aside; books in a database are never replaced";
        return Err(Failure::usage(why).next("name an empty database or schema"));
    }
    // A key file that only this command names is copied into the folder; one that the settings name
    // stays where it is.
    let key_stays = config.key_file.is_some() && named.is_none();
    let (mode, at, database) = (config.mode.as_str(), data.clone(), config.database.clone());
    let key_file = config.key_file.clone();
    let restored = tokio::task::spawn_blocking(move || {
        let clock = machine_clock();
        let (key_file, database) = (key_file.as_deref(), database.as_ref());
        let plan =
            Plan { from: &from, data: &at, database, mode, key_file, key_stays, force, clock };
        restore(&plan)
    });
    let restored = restored.await.map_err(|why| lost(&why))??;
    let row = json!({
        "data": data.display().to_string(),
        "database": config.database.as_ref().map(ToString::to_string),
        "epoch": restored.quarantine.epoch,
        "backup": restored.manifest,
        "moved_aside": restored.aside.as_ref().map(|path| path.display().to_string()),
    });
    if let Some(aside) = &restored.aside {
        style.talk(&format!("the folder that was there is now {}", aside.display()));
    }
    let lost = "lost: all that was done after the backup was taken. Keys revoked since then count \
                again, and every agent is paused.";
    style.talk(lost);
    let (books, epoch) = (config.books(), text(&row, "epoch"));
    let place = config.database.as_ref().map_or(data.display().to_string(), |_| books.to_string());
    let line = format!("{place}: restored, quarantined, epoch {epoch}");
    style.changed(&row, &line, "earnest up, then earnest restore status")?;
    Ok(ExitCode::SUCCESS)
}
