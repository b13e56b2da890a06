//! Opening the books on a server: the schema, its migrations, and whose books they are.

use std::collections::BTreeMap;

use super::link::{Failure, Server};
use super::read::{get, number};
use super::write::PostgresOptions;
use crate::{OpenError, ReadError};

/// The schema, step by step. A step that was ever released is never changed, only followed by
/// another.
const MIGRATIONS: &[&str] = &[include_str!("0001_books.sql")];

/// The name, among the books' own data, under which stands where they were moved to.
pub(super) const MARK_MOVED: &str = "moved";

/// As [`MARK_MOVED`], for a copy that is not anybody's books yet.
pub(super) const MARK_ARRIVING: &str = "arriving";

/// What was found or made.
pub(super) struct Opened {
    pub(super) epoch: String,
}

/// The latest schema that this version knows.
pub(super) fn known_schema() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// Brings the schema up to date, one node at a time while the others wait, and checks whose books
/// these are.
pub(super) fn open(server: &Server, options: &PostgresOptions) -> Result<Opened, OpenError> {
    let meta = prepare(server, options)?;
    if let Some(to) = meta.get(MARK_MOVED) {
        return Err(OpenError::Moved { place: server.place().into(), to: to.clone() });
    }
    if meta.contains_key(MARK_ARRIVING) {
        return Err(OpenError::Arriving(server.place().into()));
    }
    let missing = || OpenError::Damaged("`epoch` is missing".to_owned());
    Ok(Opened { epoch: meta.get("epoch").cloned().ok_or_else(missing)? })
}

/// As [`open`], for a place that books are to be moved to; whether a copy is arriving there.
pub(super) fn open_marked(server: &Server, options: &PostgresOptions) -> Result<bool, OpenError> {
    let meta = prepare(server, options)?;
    match meta.get(MARK_MOVED) {
        Some(to) => Err(OpenError::Moved { place: server.place().into(), to: to.clone() }),
        None => Ok(meta.contains_key(MARK_ARRIVING)),
    }
}

type Meta = BTreeMap<String, String>;

fn prepare(server: &Server, options: &PostgresOptions) -> Result<Meta, OpenError> {
    let failed = |why: String| OpenError::Database { place: server.place().to_owned(), why };
    let link = server.connect().map_err(|why| failed(why.to_string()))?;
    // Whoever comes first makes the table; the others wait for its lock, not for a session's, which
    // a pooler would give to somebody else.
    let begin = "CREATE TABLE IF NOT EXISTS earnest_schema (version bigint NOT NULL)";
    if let Err(why) = link.run(begin) {
        // Two that make the same table at once: one of them is told that it exists.
        let exists = link.query("SELECT 1 FROM earnest_schema LIMIT 1", &[]);
        exists.map_err(|_| failed(why.to_string()))?;
    }
    let whole = || -> Result<Result<Meta, OpenError>, Failure> {
        link.run(
            "BEGIN; SET LOCAL lock_timeout = '60s'; LOCK TABLE earnest_schema IN EXCLUSIVE MODE",
        )?;
        let applied = link.query("SELECT coalesce(max(version), 0) FROM earnest_schema", &[])?;
        let applied = applied.first().map_or(Ok(0), |row| number(row, 0));
        let applied = match applied {
            Ok(applied) => applied,
            Err(why) => return Ok(Err(OpenError::Damaged(why.to_string()))),
        };
        let known = known_schema();
        let found = i64::try_from(applied).unwrap_or(i64::MAX);
        if found > known {
            let place = server.place().to_owned();
            return Ok(Err(OpenError::NewerSchema { place, found, known }));
        }
        for (place, sql) in
            MIGRATIONS.iter().enumerate().skip(usize::try_from(applied).unwrap_or(0))
        {
            link.run(sql)?;
            let version = place.saturating_add(1);
            link.run(&format!("INSERT INTO earnest_schema (version) VALUES ({version})"))?;
            if place == 0 {
                use tokio_postgres::types::Type;
                let meta = "INSERT INTO earnest_meta (name, value) \
                            VALUES ('mode', $1), ('epoch', $2)";
                link.query(meta, &[(&options.mode, Type::TEXT), (&options.epoch, Type::TEXT)])?;
            }
        }
        link.run("COMMIT")?;
        Ok(check(server, &link, options))
    };
    whole().map_err(|why| failed(why.to_string()))?
}

fn check(
    server: &Server,
    link: &super::link::Link,
    options: &PostgresOptions,
) -> Result<Meta, OpenError> {
    let found = link.query("SELECT name, value FROM earnest_meta", &[]);
    let found = found.map_err(|why| OpenError::Database {
        place: server.place().to_owned(),
        why: why.to_string(),
    })?;
    let line = |row: &tokio_postgres::Row| Ok((get(row, 0)?, get(row, 1)?));
    let meta = found.iter().map(line).collect::<Result<Meta, ReadError>>();
    let meta = meta.map_err(|why| OpenError::Damaged(why.to_string()))?;
    let missing = || OpenError::Damaged("`mode` is missing".to_owned());
    let found = meta.get("mode").cloned().ok_or_else(missing)?;
    if found != options.mode {
        let (path, asked) = (server.place().into(), options.mode.clone());
        return Err(OpenError::OtherMode { path, found, asked });
    }
    Ok(meta)
}
