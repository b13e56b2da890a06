//! The first keys of an installation.
//!
//! A key is written to its file before the books know it: a file that cannot be written costs
//! nothing, and a start that breaks off in between is finished by the next one, with the same key.

use std::path::Path;

use earnest_core::admin::{AddKey, CreateAgent, CreateOwner, CreateSeller, Creation};
use earnest_core::id::{AgentId, OwnerId, SellerId};
use earnest_core::party::{Agent, ApiKey, Owner, Principal, Seller};
use earnest_core::time::Zone;
use earnest_paypal::Secret;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::flow::party;
use crate::serve::StartError;

/// Keys and ids of one of each, for development: `<data>/dev-keys.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DevKeys {
    /// Whoever runs this Earnest.
    pub operator: DevKey,
    /// Whose money it is.
    pub owner: DevKey,
    /// A key of theirs.
    pub agent: DevKey,
    /// Who is paid.
    pub seller: DevKey,
}

/// One key with whose it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DevKey {
    /// The holder's id; `operator` for the operator.
    pub id: String,
    /// The key.
    #[serde(with = "in_full")]
    pub key: Secret,
}

/// The one place where a secret is written as it is: into the file of keys for development.
mod in_full {
    use earnest_paypal::Secret;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(key: &Secret, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(key.expose())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Secret, D::Error> {
        String::deserialize(from).map(Secret::new)
    }
}

fn failed(why: impl std::fmt::Display) -> StartError {
    StartError::Provision(why.to_string())
}

/// One operator, owner, agent and seller, made once; their keys stand in `dev-keys.json`. None where
/// another node of a shared database made them, and its file is not here.
///
/// # Errors
/// [`StartError::Provision`].
pub async fn provision(
    app: &App,
    data: Option<&Path>,
    shared: bool,
) -> Result<Option<DevKeys>, StartError> {
    let path = data.map(|dir| dir.join("dev-keys.json"));
    let kept = path.as_deref().map(read).transpose()?.flatten();
    let keys = match kept {
        Some(text) => serde_json::from_str(&text).map_err(failed)?,
        None if shared && has_operator(app)? => {
            tracing::warn!("no dev-keys.json here: it is in the data folder of the first node");
            return Ok(None);
        }
        None => {
            let keys = draw(app);
            if let Some(path) = &path {
                let text = serde_json::to_string_pretty(&keys).map_err(failed)?;
                write_private(path, &text)?;
            }
            keys
        }
    };
    make(app, &keys).await?;
    Ok(Some(keys))
}

/// Whether somebody has a key of the operator's.
fn has_operator(app: &App) -> Result<bool, StartError> {
    let known = app.store.reader().list::<ApiKey>("keys", "operator", None, 1, true);
    Ok(!known.map_err(failed)?.items.is_empty())
}

fn draw(app: &App) -> DevKeys {
    let key = |principal: Principal| DevKey {
        id: principal.to_string(),
        key: party::draw(app, principal, LABEL).secret,
    };
    DevKeys {
        operator: key(Principal::Operator),
        owner: key(Principal::Owner(OwnerId::new(app.seed()))),
        agent: key(Principal::Agent(AgentId::new(app.seed()))),
        seller: key(Principal::Seller(SellerId::new(app.seed()))),
    }
}

const LABEL: &str = "development";

/// Makes of it what is not there yet.
async fn make(app: &App, keys: &DevKeys) -> Result<(), StartError> {
    let (reader, store) = (app.store.reader(), &app.store);
    let creation = |name: &str, by| Creation { by, name: name.to_owned(), key: None };
    let owner: OwnerId = keys.owner.id.parse().map_err(failed)?;
    if reader.row::<Owner>(owner).map_err(failed)?.is_none() {
        let creation = creation("dev owner", Principal::Operator);
        let unit = CreateOwner { creation, id: owner, zone: Zone::utc() };
        store.submit(unit).await.map_err(failed)?;
    }
    let agent: AgentId = keys.agent.id.parse().map_err(failed)?;
    if reader.row::<Agent>(agent).map_err(failed)?.is_none() {
        let creation = creation("dev agent", Principal::Owner(owner));
        store.submit(CreateAgent { creation, owner, id: agent }).await.map_err(failed)?;
    }
    let seller: SellerId = keys.seller.id.parse().map_err(failed)?;
    if reader.row::<Seller>(seller).map_err(failed)?.is_none() {
        let creation = creation("dev seller", Principal::Operator);
        let unit = CreateSeller { creation, id: seller, payout_recipient: None, commission_ppm: 0 };
        store.submit(unit).await.map_err(failed)?;
    }
    for (principal, known) in [
        (Principal::Operator, &keys.operator),
        (Principal::Owner(owner), &keys.owner),
        (Principal::Agent(agent), &keys.agent),
        (Principal::Seller(seller), &keys.seller),
    ] {
        add(app, principal, &known.key, LABEL).await?;
    }
    Ok(())
}

/// Makes a key count, unless the books know it: one that was revoked stays so.
async fn add(app: &App, of: Principal, secret: &Secret, label: &str) -> Result<(), StartError> {
    if !secret.expose().starts_with(of.key_prefix()) {
        return Err(failed(format!("what is kept as the key of {of} is no such key")));
    }
    let key = party::row_of(app, of, secret, label);
    if app.store.reader().row::<ApiKey>(&key.hash).map_err(failed)?.is_none() {
        app.store.submit(AddKey { key, owner: None }).await.map_err(failed)?;
    }
    Ok(())
}

/// The first operator key of a sandbox or live installation, in a file only its user can read.
///
/// # Errors
/// [`StartError::Provision`].
pub async fn first_operator(app: &App, data: Option<&Path>) -> Result<(), StartError> {
    if has_operator(app)? {
        return Ok(());
    }
    let Some(path) = data.map(|dir| dir.join("operator.key")) else { return Ok(()) };
    let secret = match read(&path)? {
        Some(text) => Secret::new(text.trim()),
        None => {
            let secret = party::draw(app, Principal::Operator, "first operator").secret;
            write_private(&path, secret.expose())?;
            secret
        }
    };
    add(app, Principal::Operator, &secret, "first operator").await?;
    tracing::info!(path = %path.display(), "wrote the first operator key; keep it and remove the file");
    Ok(())
}

/// What a file holds, if it is there.
fn read(path: &Path) -> Result<Option<String>, StartError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(of_file(path, &error)),
    }
}

fn of_file(path: &Path, why: &std::io::Error) -> StartError {
    failed(format!("`{}`: {why}", path.display()))
}

/// Whole or not at all: under another name first.
fn write_private(path: &Path, text: &str) -> Result<(), StartError> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let beside = path.with_extension("new");
    let write = || {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        // The name itself has to outlive a power cut, too.
        path.parent().map_or(Ok(()), |dir| std::fs::File::open(dir)?.sync_all())
    };
    write().map_err(|why: std::io::Error| of_file(path, &why))
}
