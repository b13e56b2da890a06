//! `earnest owner`: whose money it is.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Style;
use super::client::{Client, Reach, Role, id};
use super::failure::{Ended, Failure};
use super::key::KeyTo;
use super::output::{Money, facts, money, text};
use super::rows::Paging;

/// Owners.
#[derive(Debug, Args)]
pub struct Owner {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// What to do.
    #[command(subcommand)]
    pub verb: OwnerVerb,
}

/// What to do with owners.
#[derive(Debug, Subcommand)]
pub enum OwnerVerb {
    /// Creates an owner with a careful policy; prints its id and a key, which is shown once.
    Create {
        /// What people call it.
        name: String,
        /// The zone its days are counted in, such as Europe/Amsterdam; UTC unless said.
        #[arg(long)]
        zone: Option<String>,
        /// Where the key goes.
        #[command(flatten)]
        key: KeyTo,
    },
    /// Shows an owner: yourself, or the one named.
    Show {
        /// `own_…`
        owner: Option<String>,
    },
    /// Lists owners, newest first.
    List(Paging),
    /// Pauses all agents of an owner: nothing new is bought.
    Pause {
        /// `own_…`; yourself unless said.
        owner: Option<String>,
    },
    /// Lets the agents of an owner buy again.
    Resume {
        /// `own_…`; yourself unless said.
        owner: Option<String>,
    },
    /// Sets what an owner may owe at most, and lifts a freeze.
    Credit {
        /// `own_…`
        owner: String,
        /// The credit line, such as '$50'.
        #[arg(
            long,
            allow_hyphen_values = true,
            conflicts_with = "by_rules",
            value_name = "AMOUNT"
        )]
        line: Option<String>,
        /// Let the line grow by the rules again.
        #[arg(long)]
        by_rules: bool,
        /// Lift the owner's freeze.
        #[arg(long)]
        unfreeze: bool,
    },
    /// Bears what an owner owes for money that went back at PayPal. The freeze stays until it is lifted.
    ForgiveDebt {
        /// `own_…`
        owner: String,
        /// One key for one wish; a repeat with the same key does nothing twice.
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// How to ask.
        #[command(flatten)]
        money: Money,
    },
    /// Prints a link that signs a browser in, once and soon: to answer on a phone.
    Login {
        /// `own_…`; yourself unless said.
        owner: Option<String>,
    },
    /// Lists browsers that were signed in, newest first.
    SignIns {
        /// `own_…`; yourself unless said.
        owner: Option<String>,
        /// How many.
        #[command(flatten)]
        paging: Paging,
    },
    /// Signs every browser out, and ends links that are out.
    Logout {
        /// `own_…`; yourself unless said.
        owner: Option<String>,
    },
    /// Makes another key for an owner; it is shown once.
    Key {
        /// `own_…`; yourself unless said.
        owner: Option<String>,
        /// What the key is for.
        #[arg(long, default_value = "")]
        label: String,
        /// Revoke every other key of the owner.
        #[arg(long)]
        rotate: bool,
        /// Where the key goes.
        #[command(flatten)]
        to: KeyTo,
    },
}

/// Runs the command.
pub async fn run(command: Owner, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    match command.verb {
        OwnerVerb::Create { name, zone, key } => create(&client, style, &name, zone, key).await?,
        OwnerVerb::Show { owner } => {
            let (role, path) = place(&client, owner.as_deref())?;
            let row = client.get(role, path).await?;
            style.object(&row, || in_words(&row))?;
        }
        OwnerVerb::List(paging) => {
            let listing = client.list(Role::Operator, "/v1/owners", &[], paging.limit).await?;
            let heads = ["OWNER", "NAME", "STATUS", ">CREDIT LINE", ">PAID SO FAR", "CREATED"];
            style.rows(&listing.rows, heads, |row| {
                [
                    text(row, "id"),
                    text(row, "name"),
                    standing(row),
                    money(row, "credit_line_micros"),
                    money(row, "settled_micros"),
                    text(row, "created_at"),
                ]
            })?;
            paging.say_more(style, listing.more);
        }
        OwnerVerb::Pause { owner } => pause(&client, style, owner.as_deref(), true).await?,
        OwnerVerb::Resume { owner } => pause(&client, style, owner.as_deref(), false).await?,
        OwnerVerb::Credit { owner, line, by_rules, unfreeze } => {
            credit(&client, style, &owner, line, by_rules, unfreeze).await?;
        }
        OwnerVerb::ForgiveDebt { owner, idempotency_key, money } => {
            super::cash::forgive(&client, style, &owner, idempotency_key.as_deref(), money).await?;
        }
        OwnerVerb::Login { owner } => login(&client, style, owner.as_deref()).await?,
        OwnerVerb::SignIns { owner, paging } => {
            let (role, path) = place(&client, owner.as_deref())?;
            let listing = client.list(role, &format!("{path}/sign-ins"), &[], paging.limit).await?;
            let heads = ["SIGN-IN", "STATUS", "ASKED BY", "BEGAN", "SEEN", "ENDS"];
            style.rows(&listing.rows, heads, |row| {
                ["id", "status", "asked_by", "created_at", "seen_at", "ends_at"]
                    .map(|name| text(row, name))
            })?;
            paging.say_more(style, listing.more);
        }
        OwnerVerb::Logout { owner } => {
            let (role, path) = place(&client, owner.as_deref())?;
            client.call(role, http::Method::DELETE, format!("{path}/sign-ins")).send().await?;
            let ended = json!({ "signed_out": true });
            style.changed(&ended, "every browser is signed out", "earnest owner login")?;
        }
        OwnerVerb::Key { owner, label, rotate, to } => {
            let (role, path) = place(&client, owner.as_deref())?;
            let next = "EARNEST_OWNER_KEY_FILE=FILE earnest owner show";
            make_key(&client, style, role, &path, &NewKey { label, rotate, to, next }).await?;
        }
    }
    Ok(std::process::ExitCode::SUCCESS)
}

/// Whose key is asked with, and where the owner is: the operator names one, an owner is `me`.
fn place(client: &Client, owner: Option<&str>) -> Result<(Role, String), Failure> {
    Ok(match owner {
        None => (Role::Owner, "/v1/owners/me".to_owned()),
        Some(owner) => {
            let role = client.first_of(&[Role::Operator, Role::Owner]);
            (role, format!("/v1/owners/{}", id(owner)?))
        }
    })
}

async fn create(
    client: &Client,
    style: &Style,
    name: &str,
    zone: Option<String>,
    key: KeyTo,
) -> Result<(), Failure> {
    let body = json!({ "name": name, "zone": zone });
    let next = "earnest agent create NAME, with EARNEST_OWNER_KEY_FILE set";
    create_with_key(client, style, Role::Operator, "/v1/owners", body, key, next).await
}

/// Creates a party and its first key. Without the key the party is of no use to anybody.
///
/// # Errors
/// What Earnest answers; once the party is there the failure says so.
pub async fn create_with_key(
    client: &Client,
    style: &Style,
    role: Role,
    path: &str,
    body: Value,
    to: KeyTo,
    next: &str,
) -> Result<(), Failure> {
    let ready = to.ready()?;
    let made = match client.post(role, path, Some(body)).await {
        Ok(made) => made,
        Err(failure) => {
            ready.cancel();
            return Err(failure);
        }
    };
    let party = text(&made, "id");
    let keys = format!("{path}/{}/keys", id(&party)?);
    let label = json!({ "label": "first" });
    let mut row = made;
    match client.post(role, keys, Some(label)).await {
        Ok(key) => {
            let members = row.as_object_mut().zip(key.get("key"));
            members.map(|(row, key)| row.insert("key".to_owned(), key.clone()));
        }
        Err(failure) => {
            ready.cancel();
            return Err(failure.with("created", party));
        }
    }
    let shown = ready.put(&mut row)?;
    style.changed(&row, &format!("{party} {shown}"), next)?;
    style.talk("the key is shown once: keep it in a file, and name the file, not the key");
    Ok(())
}

/// A further key.
pub struct NewKey {
    /// What it is for.
    pub label: String,
    /// Whether the others end.
    pub rotate: bool,
    /// Where it goes.
    pub to: KeyTo,
    /// What to do with it.
    pub next: &'static str,
}

/// Makes a key for the party at `path`, and shows it once.
///
/// # Errors
/// What Earnest answers.
pub async fn make_key(
    client: &Client,
    style: &Style,
    role: Role,
    path: &str,
    new: &NewKey,
) -> Result<(), Failure> {
    let ready = new.to.ready()?;
    let body = json!({ "label": new.label, "revoke_others": new.rotate });
    let made = client.post(role, format!("{path}/keys"), Some(body)).await;
    let mut row = match made {
        Ok(row) => row,
        Err(failure) => {
            ready.cancel();
            return Err(failure);
        }
    };
    let key = text(&row, "id");
    let shown = ready.put(&mut row)?;
    style.changed(&row, &format!("{key} {shown}"), new.next)
}

async fn login(client: &Client, style: &Style, owner: Option<&str>) -> Result<(), Failure> {
    let (role, path) = place(client, owner)?;
    let row = client.post(role, format!("{path}/login-links"), None).await?;
    style.object(&row, || text(&row, "url"))?;
    let until = text(&row, "expires_at");
    style.talk(&format!("open it on the device that is to answer; it works once, until {until}"));
    style.next("earnest owner sign-ins");
    Ok(())
}

async fn pause(
    client: &Client,
    style: &Style,
    owner: Option<&str>,
    paused: bool,
) -> Result<(), Failure> {
    let (role, path) = place(client, owner)?;
    let (verb, other) = if paused { ("pause", "resume") } else { ("resume", "pause") };
    client.post(role, format!("{path}/{verb}"), None).await?;
    let row = client.get(role, path).await?;
    let line = format!("{} {}", text(&row, "id"), standing(&row));
    let named = owner.map(|owner| format!(" {owner}")).unwrap_or_default();
    style.changed(&row, &line, &format!("earnest owner {other}{named}"))
}

async fn credit(
    client: &Client,
    style: &Style,
    owner: &str,
    line: Option<String>,
    by_rules: bool,
    unfreeze: bool,
) -> Result<(), Failure> {
    let line = match (line, by_rules) {
        (Some(line), _) => Some(line),
        (None, true) => None,
        (None, false) => {
            let why = "say --line AMOUNT or --by-rules: setting a line replaces the one there is";
            return Err(Failure::usage(why));
        }
    };
    let path = format!("/v1/owners/{}/credit", id(owner)?);
    let body = json!({ "line": line, "unfreeze": unfreeze });
    let call = client.call(Role::Operator, http::Method::PUT, path).body(body);
    let row = call.send().await?.json()?;
    let line = format!("{owner} may owe {}", money(&row, "credit_line_micros"));
    style.changed(&row, &line, &format!("earnest owner show {owner}"))
}

/// The state of an owner in a word or two.
fn standing(row: &Value) -> String {
    match (row.get("frozen").and_then(Value::as_str), row.get("paused") == Some(&json!(true))) {
        (Some(why), _) => format!("frozen: {why}"),
        (None, true) => "paused".to_owned(),
        (None, false) => "active".to_owned(),
    }
}

fn in_words(row: &Value) -> String {
    let debt = match row.get("debt_micros").and_then(Value::as_i64) {
        Some(0) | None => String::new(),
        Some(_) => format!("{} for money that went back", money(row, "debt_micros")),
    };
    let funded = if row.get("funded") == Some(&json!(true)) { "yes" } else { "no" };
    facts(&[
        ("owner", text(row, "id")),
        ("name", text(row, "name")),
        ("status", standing(row)),
        ("way to pay", funded.to_owned()),
        ("open tab", text(row, "open_tab")),
        ("frozen tab", text(row, "frozen_tab")),
        ("credit line", money(row, "credit_line_micros")),
        ("paid so far", money(row, "settled_micros")),
        ("owes", debt),
        ("zone", text(row, "zone")),
        ("created", text(row, "created_at")),
    ])
}
