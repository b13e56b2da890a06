//! A server's books from outside of the nodes that write them: looked at, copied to a file, and
//! places made for books that nobody keeps.

use std::path::{Path, PathBuf};

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::link::{Failure, Link, Server, blocking};
use super::open::known_schema;
use super::read::{Linked, get, number};
use crate::audit::AuditError;
use crate::moving::{Sink as _, copy_and_compare};
use crate::read::Source;
use crate::sqlite::{Pool, SqliteOptions, SqliteSink};
use crate::{OpenError, ReadError, Url};

/// Reads books at one moment, whether anybody writes them or not, and makes nothing.
pub(crate) fn snapshot_of_server<T>(
    url: &Url,
    read: impl FnOnce(&dyn Source) -> Result<T, ReadError>,
) -> Result<T, AuditError> {
    blocking(|| Ok(existing(url)?.at_one_moment(read)?))
}

/// A connection to books that are there, of a version that is known.
fn existing(url: &Url) -> Result<Linked, OpenError> {
    let server = Server::parse(url.expose()).map_err(OpenError::Address)?;
    let place = server.place().to_owned();
    let failed = |why: Failure| OpenError::Database { place: place.clone(), why: why.to_string() };
    let link = server.connect().map_err(failed)?;
    let found = match link.query("SELECT coalesce(max(version), 0) FROM earnest_schema", &[]) {
        Err(why) if why.state() == Some(&SqlState::UNDEFINED_TABLE) => 0,
        found => {
            let found = found.map_err(failed)?;
            let number = found.first().map_or(Ok(0), |row| number(row, 0));
            number.map_err(|why| OpenError::Damaged(why.to_string()))?
        }
    };
    let (found, known) = (i64::try_from(found).unwrap_or(i64::MAX), known_schema());
    if found == 0 {
        return Err(OpenError::NoBooks(place));
    }
    if found > known {
        return Err(OpenError::NewerSchema { place, found, known });
    }
    Ok(Linked::new(link, None))
}

/// Copies books as they stand to a new SQLite file, while nodes go on writing.
pub(crate) fn copy_of_server(url: &Url, to: &Path) -> Result<(), ReadError> {
    let unavailable = |why: String| ReadError::Unavailable(why);
    if to.exists() {
        return Err(unavailable(format!("`{}` exists", to.display())));
    }
    let linked = existing(url).map_err(|why| unavailable(why.to_string()))?;
    let mut making = to.as_os_str().to_owned();
    making.push(".copying");
    let making = PathBuf::from(making);
    let made = fill(&linked, &making).map_err(unavailable);
    // Packed, and without what a database that is written has beside it.
    let made = made.and_then(|()| Pool::new(making.clone()).backup_to(to));
    for end in ["", "-wal", "-shm", ".lock"] {
        let mut name = making.as_os_str().to_owned();
        name.push(end);
        // Some are not there; what stays is only untidy.
        let _ = std::fs::remove_file(PathBuf::from(name));
    }
    made
}

fn fill(from: &Linked, to: &Path) -> Result<(), String> {
    let meta = |name: &str| -> Result<String, String> {
        let sql = "SELECT value FROM earnest_meta WHERE name = $1";
        let found = from.link().query(sql, &[(&name, Type::TEXT)]);
        let found = found.map_err(|why| why.to_string())?;
        let value = found.first().map(|row| get(row, 0)).transpose();
        let value = value.map_err(|why: ReadError| why.to_string())?;
        value.ok_or_else(|| format!("`{name}` is missing"))
    };
    let options = SqliteOptions::copy(&meta("mode")?, &meta("epoch")?);
    let mut sink = SqliteSink::begin(to, &options).map_err(|why| why.to_string())?;
    from.in_one_moment(|raw| copy_and_compare(raw, &mut sink))?;
    sink.arrive()
}

/// A schema of its own in somebody's database, for books that nobody keeps. It stays until
/// [`Apart::remove`].
///
/// Needs a connection to the server itself: a pooler does not pass on which schema is meant.
#[derive(Debug)]
pub struct Apart {
    base: Url,
    name: String,
    url: Url,
}

impl Apart {
    /// Makes it. The name is of small letters, digits and `_`.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Database`] where there is one of that name.
    pub fn make(url: &Url, name: &str) -> Result<Self, OpenError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || !name.chars().all(plain) {
            return Err(OpenError::Address(format!("no name of a schema: `{name}`")));
        }
        run(url, &format!("CREATE SCHEMA {name}"))?;
        Ok(Self { base: url.clone(), name: name.to_owned(), url: url.in_schema(name) })
    }

    /// Where books go.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Removes it with everything in it.
    ///
    /// # Errors
    /// [`OpenError::Database`].
    pub fn remove(self) -> Result<(), OpenError> {
        let Self { base, name, .. } = self;
        run(&base, &format!("SET lock_timeout = '8s'; DROP SCHEMA {name} CASCADE"))
    }
}

fn run(url: &Url, sql: &str) -> Result<(), OpenError> {
    let server = Server::parse(url.expose()).map_err(OpenError::Address)?;
    let ran = blocking(|| server.connect().and_then(|link: Link| link.run(sql)));
    ran.map_err(|why| OpenError::Database {
        place: server.place().to_owned(),
        why: why.to_string(),
    })
}
