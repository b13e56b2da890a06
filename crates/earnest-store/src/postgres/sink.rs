//! A server as the place books are moved to.

use tokio_postgres::types::Type;

use super::batch::{Statement, insert_accounts, insert_chains, insert_log, insert_words};
use super::link::{Failure, Server};
use super::open::{MARK_ARRIVING, open_marked};
use super::read::{Linked, number, packed, sql_number};
use super::write::PostgresOptions;
use crate::moving::{Part, Raw, Sink};
use crate::read::{AccountRow, ChainRow};
use crate::{Head, OpenError};

/// A connection that holds a transaction open until the copy is whole.
pub(crate) struct PostgresSink {
    linked: Linked,
}

impl PostgresSink {
    /// Empties what is left of a copy that was cut off. Refuses books that are anybody's.
    pub(crate) fn begin(server: &Server, options: &PostgresOptions) -> Result<Self, OpenError> {
        let place = server.place().to_owned();
        let failed =
            |why: Failure| OpenError::Database { place: place.clone(), why: why.to_string() };
        let arriving = open_marked(server, options)?;
        let link = server.connect().map_err(failed)?;
        link.run("BEGIN; SET LOCAL lock_timeout = '8s'").map_err(failed)?;
        let sql = "SELECT seq FROM earnest_head WHERE one = 1 FOR UPDATE";
        let found = link.query(sql, &[]).map_err(failed)?;
        let seq = found.first().map_or(Ok(0), |row| number(row, 0));
        let seq = seq.map_err(|why| OpenError::Damaged(why.to_string()))?;
        if seq > 0 && !arriving {
            return Err(OpenError::NotEmpty(place.clone()));
        }
        let empty = "TRUNCATE earnest_words, earnest_accounts, earnest_log, earnest_holds, \
                     earnest_rows, earnest_lists, earnest_keys";
        link.run(empty).map_err(failed)?;
        for (name, value) in
            [("mode", &*options.mode), ("epoch", &*options.epoch), (MARK_ARRIVING, "yes")]
        {
            let sql = "INSERT INTO earnest_meta (name, value) VALUES ($1, $2) \
                       ON CONFLICT (name) DO UPDATE SET value = excluded.value";
            let params = [(&name as _, Type::TEXT), (&value as _, Type::TEXT)];
            link.query(sql, &params).map_err(failed)?;
        }
        Ok(Self { linked: Linked::new(link, None) })
    }

    /// As [`PostgresSink::begin`], for a copy that is whole and has only its mark left.
    pub(crate) fn resume(server: &Server, options: &PostgresOptions) -> Result<Self, OpenError> {
        open_marked(server, options)?;
        let failed = |why: Failure| OpenError::Database {
            place: server.place().to_owned(),
            why: why.to_string(),
        };
        Ok(Self { linked: Linked::new(server.connect().map_err(failed)?, None) })
    }

    fn run(&self, statement: &Statement) -> Result<(), String> {
        let link = self.linked.link();
        let done = link.query(statement.sql(), &statement.typed());
        done.map(drop).map_err(|why| why.to_string())
    }
}

impl Sink for PostgresSink {
    fn write(&mut self, part: &Part) -> Result<(), String> {
        match part {
            Part::Words(words) => self.run(&insert_words(words)),
            Part::Accounts(rows) => {
                self.run(&insert_accounts(&rows.iter().collect::<Vec<&AccountRow>>()))
            }
            Part::Log(entries) => self.run(&insert_log(entries)),
            Part::Chains(rows) => {
                self.run(&insert_chains(&rows.iter().collect::<Vec<&ChainRow>>()))
            }
            Part::Rows(rows) => {
                let kind: Vec<i64> = rows.iter().map(|row| sql_number(row.kind)).collect();
                let id: Vec<Vec<u8>> = rows.iter().map(|row| packed(&row.id)).collect();
                let body: Vec<Vec<u8>> = rows.iter().map(|row| row.body.clone()).collect();
                let sql = "INSERT INTO earnest_rows (kind, id, body) \
                           SELECT * FROM unnest($1, $2, $3)";
                let rows = Statement::new(sql).with(kind, Type::INT8_ARRAY);
                self.run(&rows.with(id, Type::BYTEA_ARRAY).with(body, Type::BYTEA_ARRAY))
            }
            Part::Places(places) => {
                let number = |of: fn(&crate::moving::RawPlace) -> u64| -> Vec<i64> {
                    places.iter().map(|place| sql_number(of(place))).collect()
                };
                let text = |of: fn(&crate::moving::RawPlace) -> &str| -> Vec<Vec<u8>> {
                    places.iter().map(|place| packed(of(place))).collect()
                };
                let sql = "INSERT INTO earnest_lists (list, kind, scope, at, id) \
                           SELECT * FROM unnest($1, $2, $3, $4, $5)";
                let all = Statement::new(sql).with(number(|p| p.list), Type::INT8_ARRAY);
                let all = all.with(number(|p| p.kind), Type::INT8_ARRAY);
                let all = all.with(text(|p| &p.scope), Type::BYTEA_ARRAY);
                let all = all.with(text(|p| &p.at), Type::BYTEA_ARRAY);
                self.run(&all.with(text(|p| &p.id), Type::BYTEA_ARRAY))
            }
            Part::Keys(keys) => {
                let (address, seq): (Vec<Vec<u8>>, Vec<i64>) =
                    keys.iter().map(|(key, seq)| (key.0.to_vec(), sql_number(*seq))).unzip();
                let sql = "INSERT INTO earnest_keys (address, seq) SELECT * FROM unnest($1, $2)";
                let keys = Statement::new(sql).with(address, Type::BYTEA_ARRAY);
                self.run(&keys.with(seq, Type::INT8_ARRAY))
            }
        }
    }

    fn commit(&mut self, head: &Head, words: u64) -> Result<(), String> {
        let sql = "UPDATE earnest_head SET seq = $1, at = $2, hash = $3, words = $4 WHERE one = 1";
        let head = Statement::new(sql)
            .with(sql_number(head.seq), Type::INT8)
            .with(head.at.as_microsecond(), Type::INT8)
            .with(head.hash.to_vec(), Type::BYTEA)
            .with(sql_number(words), Type::INT8);
        self.run(&head)?;
        self.linked.link().run("COMMIT").map_err(|why| why.to_string())
    }

    fn copied(&self) -> &dyn Raw {
        &self.linked
    }

    fn arrive(&mut self) -> Result<(), String> {
        let sql = "DELETE FROM earnest_meta WHERE name = $1";
        self.run(&Statement::new(sql).with(MARK_ARRIVING, Type::TEXT))
    }
}
