//! Making a data folder, or the books of an empty database, from a backup. What comes of it is quarantined: see [`earnest_core::quarantine`].
//!
//! Everything is made ready in a folder beside, and takes its name in one step at the end. A restore
//! that was cut off before leaves a folder whose name ends in `.partial`, worth nothing, and is begun
//! anew.

use std::path::{Path, PathBuf};

use earnest_core::id::{AgentId, IntentId};
use earnest_core::intent::Intent;
use earnest_core::lease::{GiveBack, Lease};
use earnest_core::party::Agent;
use earnest_core::quarantine::{
    Backup, BeginQuarantine, DoubtCalls, MOST, PauseRestored, Quarantine,
};
use earnest_core::signing::SealedKey;
use earnest_store::audit::{self, AuditError};
use earnest_store::{
    Cursor, MoveError, OpenError, Options, Place, Reader, Store, SubmitError, Url,
};

use crate::backup::{self, BOOKS, BackupError, Manifest};
use crate::sealed::{SealError, Sealer};
use crate::source::{Clock, random_bytes};

/// The key file's name in a data folder.
pub const SEAL_KEY: &str = "seal.key";

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The backup does not count, or a file cannot be read or written.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The data folder is another process's.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The backup is of another mode.
    #[error("the backup is of mode `{found}`, not `{asked}`")]
    OtherMode {
        /// Its mode.
        found: String,
        /// The mode that was asked for.
        asked: String,
    },
    /// The data folder holds something.
    #[error("`{}` is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The database holds books.
    #[error("there are books at {0} already")]
    Occupied(String),
    /// The data folder's key file is not the backup's.
    #[error("`{}` is another key file than that of the backup", .0.display())]
    OtherKeyThere(PathBuf),
    /// What is sealed in the backup does not open.
    #[error("the key file does not open what is sealed in the backup: {0}")]
    Key(#[from] SealError),
    /// No key file was named, and there is none where one is looked for.
    #[error("the key file of the backup is needed: {0}")]
    NoKey(String),
    /// The restored folder did not get its name, and the old one could not get its own back.
    #[error(
        "what was in `{}` is in `{}` now, and what was restored in `{}`: the new folder could not be \
         put in its place ({why}), nor the old one back in its own ({back}); rename one of them",
        data.display(), aside.display(), partial.display()
    )]
    Stranded {
        /// The data folder, which is not there.
        data: PathBuf,
        /// Where the old one is.
        aside: PathBuf,
        /// Where the restored one is.
        partial: PathBuf,
        /// Why the new one is not in place.
        why: String,
        /// Why the old one is not back.
        back: String,
    },
    /// The books did not take what a restore records.
    #[error("the restored books cannot be written: {0}")]
    Books(String),
}

impl From<SubmitError> for RestoreError {
    fn from(error: SubmitError) -> Self {
        Self::Books(error.to_string())
    }
}

impl From<earnest_store::ReadError> for RestoreError {
    fn from(error: earnest_store::ReadError) -> Self {
        Self::Books(error.to_string())
    }
}

impl From<AuditError> for RestoreError {
    fn from(error: AuditError) -> Self {
        Self::Backup(error.into())
    }
}

/// What to restore, and where.
pub struct Plan<'a> {
    /// The backup.
    pub from: &'a Path,
    /// The data folder.
    pub data: &'a Path,
    /// The database that the books go to, where they do not go to the data folder.
    pub database: Option<&'a Url>,
    /// The mode of the settings: the books of one are never another's.
    pub mode: &'a str,
    /// The key file that opens what is sealed; `seal.key` of the old data folder where none is named.
    pub key_file: Option<&'a Path>,
    /// Whether the settings say where the key file is: then it stays there.
    pub key_stays: bool,
    /// Whether a data folder that holds something is moved aside.
    pub force: bool,
    /// Where `now` comes from.
    pub clock: Clock,
}

/// What was restored.
#[derive(Debug)]
pub struct Restored {
    /// The backup.
    pub manifest: Manifest,
    /// The quarantine that began.
    pub quarantine: Quarantine,
    /// Where the old data folder was moved, if there was one.
    pub aside: Option<PathBuf>,
}

/// Restores a backup. The caller's thread waits for the disk.
///
/// # Errors
/// [`RestoreError`]; the data folder is as it was then, but for [`RestoreError::Stranded`], which
/// names both.
pub fn restore(plan: &Plan<'_>) -> Result<Restored, RestoreError> {
    match plan.database {
        None => into_folder(plan),
        Some(url) => into_database(plan, url),
    }
}

/// The backup's manifest, if it counts and is of this mode.
fn manifest_of(plan: &Plan<'_>) -> Result<Manifest, RestoreError> {
    let manifest = backup::verify(plan.from)?;
    if manifest.mode != plan.mode {
        let (found, asked) = (manifest.mode.clone(), plan.mode.to_owned());
        return Err(RestoreError::OtherMode { found, asked });
    }
    Ok(manifest)
}

/// Made ready in a folder as any restore, then moved whole to where there are no books yet. The data
/// folder only gets the key file, if it has none.
fn into_database(plan: &Plan<'_>, url: &Url) -> Result<Restored, RestoreError> {
    let manifest = manifest_of(plan)?;
    let key_file = key_file(plan)?;
    let own = plan.data.join(SEAL_KEY);
    let put_key = !plan.key_stays && own != key_file;
    if put_key && own.exists() && Sealer::alone(&own)?.print() != Sealer::alone(&key_file)?.print()
    {
        return Err(RestoreError::OtherKeyThere(own));
    }
    let partial = backup::partial_of(plan.data);
    backup::make_folder(&partial)?;
    let made = fill(plan, &manifest, Vec::new(), &key_file, &partial).and_then(|quarantine| {
        move_to(plan, url, &partial.join(BOOKS), &quarantine.epoch)?;
        Ok(quarantine)
    });
    // The books in it are marked as moved, or worth nothing.
    let _ = std::fs::remove_dir_all(&partial);
    let quarantine = made?;
    if put_key && !own.exists() {
        backup::make_folder(plan.data)?;
        let copied = earnest_store::copy_private(&key_file, &own);
        copied.map_err(|why| BackupError::file(&own, why))?;
    }
    Ok(Restored { manifest, quarantine, aside: None })
}

fn move_to(plan: &Plan<'_>, url: &Url, books: &Path, epoch: &str) -> Result<(), RestoreError> {
    let store = Store::open(Options::file(books, plan.mode, plan.clock.clone()))?;
    let to = Place::Server(url.clone());
    let to = Options { epoch: epoch.to_owned(), ..Options::new(to, plan.mode, plan.clock.clone()) };
    let moved = store.move_to(&to);
    store.close();
    moved.map(drop).map_err(|why| match why {
        MoveError::Open(OpenError::NotEmpty(place)) => RestoreError::Occupied(place),
        MoveError::Open(why) => why.into(),
        MoveError::Failed(why) => RestoreError::Books(why),
    })
}

fn into_folder(plan: &Plan<'_>) -> Result<Restored, RestoreError> {
    let occupied = is_occupied(plan.data)?;
    if occupied && !plan.force {
        return Err(RestoreError::NotEmpty(plan.data.to_owned()));
    }
    // Held until the end, so that nothing starts on the old books meanwhile.
    let _place = match occupied {
        true => Some(earnest_store::hold_place(plan.data.join(BOOKS))?),
        false => None,
    };
    let manifest = manifest_of(plan)?;
    let replaced = if occupied { epochs_there(plan.data) } else { Vec::new() };
    let key_file = key_file(plan)?;
    let partial = backup::partial_of(plan.data);
    backup::make_folder(&partial)?;
    let made = fill(plan, &manifest, replaced, &key_file, &partial)
        .and_then(|quarantine| Ok((quarantine, put_in_place(plan, &partial, occupied)?)));
    if made.as_ref().is_err_and(|why| !matches!(why, RestoreError::Stranded { .. })) {
        // Worth nothing; if it stays it is only untidy.
        let _ = std::fs::remove_dir_all(&partial);
    }
    let (quarantine, aside) = made?;
    Ok(Restored { manifest, quarantine, aside })
}

/// Whether a folder is there and holds anything.
fn is_occupied(data: &Path) -> Result<bool, RestoreError> {
    match std::fs::read_dir(data) {
        Ok(mut found) => Ok(found.next().is_some()),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(why) => Err(BackupError::file(data, why).into()),
    }
}

/// The epochs of the books that are replaced, theirs and those that had ended for them, where they can
/// still be read: what was captured in one is recognised by it, and where not, by the tab and the time.
fn epochs_there(data: &Path) -> Vec<String> {
    let books = data.join(BOOKS);
    if !books.exists() {
        return Vec::new();
    }
    let read = earnest_store::about(&books).and_then(|about| {
        let place = Place::File(books.clone());
        let row = audit::look(&place, |books| books.row::<Quarantine>(Quarantine::ID))?;
        Ok((about.epoch, row))
    });
    match read {
        Ok((epoch, row)) => {
            let ended = row.into_iter().flat_map(|row| row.ended);
            ended.chain([epoch]).collect()
        }
        Err(why) => {
            tracing::warn!(%why, "the epochs of the books that are replaced cannot be read");
            Vec::new()
        }
    }
}

/// The key file that was named, or the one of the data folder that is replaced.
fn key_file(plan: &Plan<'_>) -> Result<PathBuf, RestoreError> {
    let path = plan.key_file.map_or_else(|| plan.data.join(SEAL_KEY), Path::to_owned);
    match path.exists() {
        true => Ok(path),
        false => Err(RestoreError::NoKey(format!("`{}` is not there", path.display()))),
    }
}

fn fill(
    plan: &Plan<'_>,
    manifest: &Manifest,
    replaced: Vec<String>,
    key_file: &Path,
    folder: &Path,
) -> Result<Quarantine, RestoreError> {
    let books = folder.join(BOOKS);
    let copied = earnest_store::copy_private(plan.from.join(BOOKS), &books);
    copied.map_err(|why| BackupError::file(&books, why))?;
    // Random, so that nothing of the new life shares a key or an invoice with any other.
    let epoch = format!("e{}", hex::encode(random_bytes::<4>()));
    earnest_store::renew_epoch(&books, &epoch)?;
    let store = Store::open(Options::file(&books, plan.mode, plan.clock.clone()))?;
    let recorded = record(&store, manifest, replaced, &epoch)
        .and_then(|quarantine| opens(store.reader(), key_file).map(|()| quarantine));
    store.close();
    let quarantine = recorded?;
    if !plan.key_stays {
        let own = folder.join(SEAL_KEY);
        let copied = earnest_store::copy_private(key_file, &own);
        copied.map_err(|why| BackupError::file(&own, why))?;
    }
    backup::sync_folder(folder)?;
    Ok(quarantine)
}

/// The quarantine first, then what follows from it. Nobody else has these books yet.
fn record(
    store: &Store,
    manifest: &Manifest,
    replaced: Vec<String>,
    epoch: &str,
) -> Result<Quarantine, RestoreError> {
    let backup = Backup {
        taken_at: manifest.taken_at,
        seq: manifest.seq,
        hash: manifest.hash.clone(),
        epoch: manifest.epoch.clone(),
    };
    let begin = BeginQuarantine { backup, epoch: epoch.to_owned(), replaced };
    let quarantine = store.submit_blocking(begin)?;
    let agents = store.reader().every::<Agent>()?;
    let agents: Vec<AgentId> = agents.into_iter().map(|agent| agent.id).collect();
    for agents in agents.chunks(MOST) {
        store.submit_blocking(PauseRestored { agents: agents.to_vec() })?;
    }
    let open: Vec<IntentId> = open_calls(store.reader())?;
    for intents in open.chunks(MOST) {
        store.submit_blocking(DoubtCalls { intents: intents.to_vec() })?;
    }
    // What a node of the lost life held it can hold no more, and nobody has to wait for its end.
    for Lease { name, holder: node, .. } in store.reader().every()? {
        store.submit_blocking(GiveBack { name, node })?;
    }
    Ok(quarantine)
}

fn open_calls(reader: &Reader) -> Result<Vec<IntentId>, RestoreError> {
    let (mut found, mut cursor) = (Vec::new(), None::<Cursor>);
    loop {
        let page = reader.list::<Intent>("intents.open", "", cursor.as_ref(), MOST, false)?;
        found.extend(page.items.iter().map(|intent| intent.id));
        cursor = page.next;
        if cursor.is_none() {
            return Ok(found);
        }
    }
}

/// Whether the key file opens the signing keys: books whose secrets stay shut are no installation.
fn opens(reader: &Reader, key_file: &Path) -> Result<(), RestoreError> {
    let sealer = Sealer::existing(key_file)?;
    for row in reader.every::<SealedKey>()? {
        sealer.open_secret(&row.jwk.kid, &row.sealed)?;
    }
    Ok(())
}

/// The old folder aside, the new one in its place. Between the two there is none, and a restore that
/// is killed there is finished by moving the new one by hand or by restoring again.
fn put_in_place(
    plan: &Plan<'_>,
    partial: &Path,
    occupied: bool,
) -> Result<Option<PathBuf>, RestoreError> {
    let aside = occupied.then(|| {
        let stamp = (plan.clock)().strftime("%Y%m%dT%H%M%SZ").to_string();
        let mut aside = plan.data.as_os_str().to_owned();
        aside.push(format!(".before-{stamp}"));
        PathBuf::from(aside)
    });
    let parent = plan.data.parent().filter(|it| !it.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    swap(plan.data, partial, aside.as_deref(), &|from, to| {
        std::fs::rename(from, to).map_err(|why| BackupError::file(to, why))?;
        backup::sync_folder(parent)
    })?;
    Ok(aside)
}

/// Moves the old folder, if there is one, aside and the new one in its place; or leaves both where
/// they are. `rename` is the system's, which tests let fail.
fn swap(
    data: &Path,
    partial: &Path,
    aside: Option<&Path>,
    rename: &dyn Fn(&Path, &Path) -> Result<(), BackupError>,
) -> Result<(), RestoreError> {
    if let Some(aside) = aside {
        if aside.exists() {
            return Err(BackupError::Exists(aside.to_owned()).into());
        }
        rename(data, aside).or_else(|why| put_back(data, aside, partial, why, rename))?;
    }
    // An empty folder gives way to another.
    let Err(why) = rename(partial, data) else { return Ok(()) };
    // It may have been renamed and only not be known to last.
    if !partial.exists() && data.exists() {
        let _ = rename(data, partial);
    }
    match aside {
        Some(aside) => put_back(data, aside, partial, why, rename),
        None => Err(why.into()),
    }
}

/// Gives the old folder its name back, and says why that was needed.
fn put_back(
    data: &Path,
    aside: &Path,
    partial: &Path,
    why: BackupError,
    rename: &dyn Fn(&Path, &Path) -> Result<(), BackupError>,
) -> Result<(), RestoreError> {
    // Neither was moved, or the one that was is back under its name, lasting or not.
    if !aside.exists() {
        return Err(why.into());
    }
    match rename(aside, data) {
        Err(back) if aside.exists() => Err(RestoreError::Stranded {
            data: data.to_owned(),
            aside: aside.to_owned(),
            partial: partial.to_owned(),
            why: why.to_string(),
            back: back.to_string(),
        }),
        _ => Err(why.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A data folder, its name aside, and a restored one, each saying which it is.
    fn folders(dir: &Path) -> [PathBuf; 3] {
        let [data, aside, partial] = ["data", "data.before", "data.partial"].map(|it| dir.join(it));
        for (folder, holds) in [(&data, "old"), (&partial, "new")] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("holds"), holds).unwrap();
        }
        [data, aside, partial]
    }

    fn holds(folder: &Path) -> Option<String> {
        std::fs::read_to_string(folder.join("holds")).ok()
    }

    /// Renames that fail, by number from 0; `late` ones after they were made.
    fn check(fail: &[usize], late: bool) -> (Result<(), RestoreError>, [Option<String>; 3]) {
        let dir = tempfile::tempdir().unwrap();
        let [data, aside, partial] = folders(dir.path());
        let count = Cell::new(0);
        let done = swap(&data, &partial, Some(&aside), &|from, to| {
            let fails = fail.contains(&count.replace(count.get() + 1));
            if !fails || late {
                std::fs::rename(from, to).map_err(|why| BackupError::file(to, why))?;
            }
            if fails { Err(BackupError::file(to, "no")) } else { Ok(()) }
        });
        (done, [&data, &aside, &partial].map(|folder| holds(folder)))
    }

    #[test]
    fn a_restore_that_is_not_put_in_place_leaves_the_old_folder_in_its_own() {
        let (old, new) = (Some("old".to_owned()), Some("new".to_owned()));
        let (done, found) = check(&[], false);
        assert!(done.is_ok());
        assert_eq!(found, [new.clone(), old.clone(), None]);
        for (fail, late) in [(0, false), (1, false), (0, true), (1, true)] {
            let (done, found) = check(&[fail], late);
            assert!(matches!(done, Err(RestoreError::Backup(_))), "{fail} {late}: {done:?}");
            assert_eq!(found, [old.clone(), None, new.clone()], "{fail} {late}");
        }
    }

    #[test]
    fn folders_that_can_be_moved_neither_way_are_both_named() {
        let (done, found) = check(&[1, 2], false);
        assert_eq!(found, [None, Some("old".to_owned()), Some("new".to_owned())]);
        let why = done.unwrap_err();
        assert!(matches!(why, RestoreError::Stranded { .. }), "{why:?}");
        for name in ["data`", "data.before`", "data.partial`"] {
            assert!(why.to_string().contains(name), "{why}");
        }
    }

    #[test]
    fn an_empty_folder_is_replaced_or_stays() {
        let dir = tempfile::tempdir().unwrap();
        let [data, _, partial] = folders(dir.path());
        // The system refuses: it is not empty.
        let real = |from: &Path, to: &Path| {
            std::fs::rename(from, to).map_err(|why| BackupError::file(to, why))
        };
        assert!(swap(&data, &partial, None, &real).is_err());
        assert_eq!([&data, &partial].map(|it| holds(it).unwrap()), ["old", "new"]);
        std::fs::remove_file(data.join("holds")).unwrap();
        swap(&data, &partial, None, &real).unwrap();
        assert_eq!(holds(&data).unwrap(), "new");
    }
}
