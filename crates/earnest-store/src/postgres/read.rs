//! Reading the tables, for the writer and the readers alike.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

use earnest_core::id::TransferId;
use earnest_core::ledger::{Account, AccountId, Totals};
use earnest_core::money::Micros;
use earnest_core::time::Timestamp;
use foldhash::HashMap;
use futures_util::future::join;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

use super::link::{Failure, Kind, Link, Server, Typed};
use crate::backend::KeyAddress;
use crate::codec::{Names, Packed, decode, state_of};
use crate::moving::{Raw, RawEntry, RawPlace, RawRow};
use crate::read::{AccountRow, ChainRow, Cursor, ListQuery, ListRow, LogEntry, Source};
use crate::{Head, ReadError};

type Read<T> = Result<T, ReadError>;

/// How many accounts a connection remembers before it forgets them all.
const MOST_ACCOUNTS: usize = 50_000;

/// How often a connection that is gone is made again within one read.
const ATTEMPTS: u32 = 2;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Every statement is its own transaction.
    Loose,
    /// The next statement begins a transaction that sees one moment.
    Wanted,
    /// Inside one; whether it is the writer's does not matter here.
    Inside,
}

/// A connection and what its numbers mean.
pub(super) struct Linked {
    link: RefCell<Arc<Link>>,
    /// Where to connect again when the connection turns out to be gone before anything was read.
    again: Option<Server>,
    pub(super) names: RefCell<NameCache>,
    moment: Cell<Moment>,
    /// Whether an answer was missing or the connection ended: it is not used again.
    broken: Cell<bool>,
}

/// Words and account numbers never change their meaning once committed, so they are remembered.
#[derive(Default)]
pub(super) struct NameCache {
    pub(super) words: HashMap<u64, Cow<'static, str>>,
    pub(super) numbers: HashMap<String, u64>,
    accounts: HashMap<u64, AccountId>,
}

impl NameCache {
    pub(super) fn learn(&mut self, no: u64, word: String) {
        self.numbers.insert(word.clone(), no);
        self.words.insert(no, word.into());
    }

    /// Forgets the words after the first `known`.
    pub(super) fn keep_words(&mut self, known: u64) {
        self.words.retain(|no, _| *no <= known);
        self.numbers.retain(|_, no| *no <= known);
    }
}

impl Linked {
    pub(super) fn new(link: Link, again: Option<Server>) -> Self {
        Self {
            link: RefCell::new(Arc::new(link)),
            again,
            names: RefCell::default(),
            moment: Cell::new(Moment::Loose),
            broken: Cell::new(false),
        }
    }

    pub(super) fn link(&self) -> Arc<Link> {
        self.link.borrow().clone()
    }

    /// Whether it may be used again.
    pub(super) fn is_sound(&self) -> bool {
        !self.broken.get() && !self.link().is_closed() && self.moment.get() == Moment::Loose
    }

    /// Runs reads that see one moment.
    pub(super) fn at_one_moment<T>(&self, read: impl FnOnce(&dyn Source) -> Read<T>) -> Read<T> {
        self.in_one_moment(|books| read(books))
    }

    /// As [`Linked::at_one_moment`], for reads of what is stored as it is.
    pub(super) fn in_one_moment<T, E>(
        &self,
        read: impl FnOnce(&Self) -> Result<T, E>,
    ) -> Result<T, E> {
        self.moment.set(Moment::Wanted);
        let answer = read(self);
        if self.moment.replace(Moment::Loose) == Moment::Inside {
            // Its answer says nothing that the reads did not.
            self.link().post("COMMIT");
        }
        answer
    }

    fn query(&self, sql: &str, params: &Typed<'_>) -> Read<Vec<Row>> {
        let begin = self.moment.get() == Moment::Wanted;
        let mut left = if begin { ATTEMPTS } else { 0 };
        loop {
            let answer = self.ask(begin, sql, params);
            let lost = answer.as_ref().is_err_and(|why| why.kind() == Kind::Lost);
            match (&self.again, lost && left > 0) {
                // Nothing was read yet, so another connection does as well.
                (Some(server), true) => {
                    left -= 1;
                    if let Ok(link) = server.connect() {
                        self.link.replace(Arc::new(link));
                    }
                }
                _ => {
                    self.broken.set(self.broken.get() || lost);
                    if begin {
                        self.moment.set(Moment::Inside);
                    }
                    return answer.map_err(|why| unavailable(&why));
                }
            }
        }
    }

    fn ask(&self, begin: bool, sql: &str, params: &Typed<'_>) -> Result<Vec<Row>, Failure> {
        let link = self.link();
        let client = link.client();
        link.wait(async {
            if !begin {
                return client.query_typed(sql, params).await;
            }
            let begun = client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
            let (begun, rows) = join(begun, client.query_typed(sql, params)).await;
            begun.and(rows)
        })
    }

    fn one<T>(
        &self,
        sql: &str,
        params: &Typed<'_>,
        read: impl FnOnce(&Row) -> Read<T>,
    ) -> Read<Option<T>> {
        self.query(sql, params)?.first().map(read).transpose()
    }

    fn many<T>(
        &self,
        sql: &str,
        params: &Typed<'_>,
        read: impl FnMut(&Row) -> Read<T>,
    ) -> Read<Vec<T>> {
        self.query(sql, params)?.iter().map(read).collect()
    }

    /// The number of a word; `None` where it was never used.
    pub(super) fn number_of(&self, word: &str) -> Read<Option<i64>> {
        if let Some(no) = self.names.borrow().numbers.get(word) {
            return Ok(Some(sql_number(*no)));
        }
        let sql = "SELECT no FROM earnest_words WHERE text = $1";
        let no = self.one(sql, &[(&word, Type::TEXT)], |row| number(row, 0))?;
        if let Some(no) = no {
            self.names.borrow_mut().learn(no, word.to_owned());
        }
        Ok(no.map(sql_number))
    }

    /// All words after the first `known`, learnt.
    pub(super) fn learn_words(&self, known: u64) -> Read<()> {
        let sql = "SELECT no, text FROM earnest_words WHERE no > $1 ORDER BY no";
        let params: &Typed<'_> = &[(&sql_number(known), Type::INT8)];
        let words = self.many(sql, params, |row| Ok((number(row, 0)?, get::<String>(row, 1)?)))?;
        let mut names = self.names.borrow_mut();
        words.into_iter().for_each(|(no, word)| names.learn(no, word));
        Ok(())
    }

    /// Entries as stored. What their numbers mean is asked for once for all of them.
    pub(super) fn decode(&self, raw: &[RawEntry]) -> Read<Vec<LogEntry>> {
        if self.names.borrow().accounts.len() >= MOST_ACCOUNTS {
            self.names.borrow_mut().accounts.clear();
        }
        let mut missing = Missing::default();
        let known = self.decode_known(raw, &mut missing)?;
        if missing.is_empty() {
            return Ok(known);
        }
        self.learn(&missing)?;
        let mut missing = Missing::default();
        let known = self.decode_known(raw, &mut missing)?;
        match missing.is_empty() {
            true => Ok(known),
            false => Err(ReadError::damaged("an entry names what is not stored")),
        }
    }

    /// What is not known yet is noted, and stands wrongly in what is given back.
    fn decode_known(&self, raw: &[RawEntry], missing: &mut Missing) -> Read<Vec<LogEntry>> {
        let names = self.names.borrow();
        let mut lookup = Lookup { names: &names, missing };
        let mut all = Vec::with_capacity(raw.len());
        for raw in raw {
            let at = Timestamp::from_microsecond(raw.at).map_err(ReadError::damaged)?;
            let entry = decode(raw.seq, at, raw.hash, &raw.body, &mut lookup);
            all.push(entry.map_err(ReadError::damaged)?);
        }
        Ok(all)
    }

    fn learn(&self, missing: &Missing) -> Read<()> {
        let numbers = |of: &BTreeSet<u64>| of.iter().map(|no| sql_number(*no)).collect::<Vec<_>>();
        if !missing.words.is_empty() {
            let sql = "SELECT w.no, f.text FROM unnest($1) AS w (no) CROSS JOIN LATERAL \
                       (SELECT text FROM earnest_words WHERE no = w.no LIMIT 1) f";
            let params: &Typed<'_> = &[(&numbers(&missing.words), Type::INT8_ARRAY)];
            let found = self.many(sql, params, |row| Ok((number(row, 0)?, get(row, 1)?)))?;
            let mut names = self.names.borrow_mut();
            found.into_iter().for_each(|(no, word)| names.learn(no, word));
        }
        if !missing.accounts.is_empty() {
            let sql = "SELECT w.no, f.name FROM unnest($1) AS w (no) CROSS JOIN LATERAL \
                       (SELECT name FROM earnest_accounts WHERE no = w.no LIMIT 1) f";
            let params: &Typed<'_> = &[(&numbers(&missing.accounts), Type::INT8_ARRAY)];
            let found = self.many(sql, params, |row| {
                Ok((number(row, 0)?, account_id(&get::<String>(row, 1)?)?))
            })?;
            self.names.borrow_mut().accounts.extend(found);
        }
        Ok(())
    }

    /// Accounts by their names, those that exist.
    pub(super) fn accounts_of(&self, ids: &[AccountId]) -> Read<Vec<AccountRow>> {
        let names: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let sql = format!(
            "SELECT f.* FROM unnest($1) AS w (name) \
             CROSS JOIN LATERAL ({ACCOUNT} WHERE name = w.name LIMIT 1) f"
        );
        self.many(&sql, &[(&names, Type::TEXT_ARRAY)], account_row)
    }
}

pub(super) fn unavailable(why: &Failure) -> ReadError {
    ReadError::Unavailable(why.to_string())
}

/// Numbers of which nothing is known here yet.
#[derive(Default)]
struct Missing {
    words: BTreeSet<u64>,
    accounts: BTreeSet<u64>,
}

impl Missing {
    fn is_empty(&self) -> bool {
        self.words.is_empty() && self.accounts.is_empty()
    }
}

struct Lookup<'a> {
    names: &'a NameCache,
    missing: &'a mut Missing,
}

impl Names for Lookup<'_> {
    fn word(&mut self, no: u64) -> Result<Cow<'static, str>, String> {
        let known = self.names.words.get(&no).cloned();
        Ok(known.unwrap_or_else(|| {
            self.missing.words.insert(no);
            Cow::Borrowed("")
        }))
    }

    fn account(&mut self, no: u64) -> Result<AccountId, String> {
        let known = self.names.accounts.get(&no).copied();
        Ok(known.unwrap_or_else(|| {
            self.missing.accounts.insert(no);
            Account::Memo.usd()
        }))
    }
}

/// An entry whose columns begin at `place`.
pub(super) fn raw_entry(row: &Row, place: usize) -> Read<RawEntry> {
    Ok(RawEntry {
        seq: number(row, place)?,
        at: get(row, place.saturating_add(1))?,
        hash: bytes(row, place.saturating_add(2))?,
        body: get(row, place.saturating_add(3))?,
    })
}

/// PostgreSQL's integers are signed; ours here count from 0 and never come near the end.
pub(super) fn sql_number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn limit_number(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, place: usize) -> Read<T> {
    row.try_get(place).map_err(ReadError::damaged)
}

pub(super) fn number(row: &Row, place: usize) -> Read<u64> {
    u64::try_from(get::<i64>(row, place)?).map_err(ReadError::damaged)
}

pub(super) fn bytes<const N: usize>(row: &Row, place: usize) -> Read<[u8; N]> {
    get::<&[u8]>(row, place)?.try_into().map_err(ReadError::damaged)
}

fn micros(row: &Row, place: usize) -> Read<Micros> {
    Micros::new(get(row, place)?).map_err(ReadError::damaged)
}

fn account_id(name: &str) -> Read<AccountId> {
    name.parse().map_err(ReadError::damaged)
}

pub(super) fn account_row(row: &Row) -> Read<AccountRow> {
    let totals = Totals {
        debits_pending: micros(row, 2)?,
        debits_posted: micros(row, 3)?,
        credits_pending: micros(row, 4)?,
        credits_posted: micros(row, 5)?,
    };
    let id = account_id(get(row, 1)?)?;
    Ok(AccountRow { no: number(row, 0)?, id, totals, last_seq: number(row, 6)? })
}

/// A chain whose columns begin at 0.
pub(super) fn chain_row(row: &Row) -> Read<ChainRow> {
    let state: i16 = get(row, 1)?;
    let resolved: Option<i64> = get(row, 3)?;
    let resolved = resolved.map(u64::try_from).transpose().map_err(ReadError::damaged)?;
    Ok(ChainRow {
        id: TransferId::from_value(u128::from_be_bytes(bytes(row, 0)?)),
        state: state_of(state.into()).ok_or_else(|| ReadError::damaged("not a state"))?,
        opened: number(row, 2)?,
        resolved,
    })
}

/// As `codec::Packed` sorts: a leading byte puts texts before ids.
pub(super) fn packed(text: &str) -> Vec<u8> {
    match Packed::new(text) {
        Packed::Text(text) => {
            let mut bytes = Vec::with_capacity(text.len().saturating_add(1));
            bytes.push(0);
            bytes.extend(text.as_bytes());
            bytes
        }
        Packed::Id(id) => {
            let mut bytes = Vec::with_capacity(20);
            bytes.push(1);
            bytes.extend(id);
            bytes
        }
    }
}

fn unpacked(row: &Row, place: usize) -> Read<String> {
    let wrong = || ReadError::damaged("neither a text nor an id");
    match get::<&[u8]>(row, place)?.split_first() {
        Some((0, text)) => String::from_utf8(text.to_vec()).map_err(ReadError::damaged),
        Some((1, id)) => Ok(Packed::of_bytes(id).ok_or_else(wrong)?.text()),
        _ => Err(wrong()),
    }
}

const ACCOUNT: &str = "SELECT no, name, debits_pending, debits_posted, credits_pending, \
                       credits_posted, last_seq FROM earnest_accounts";

const ENTRY: &str = "SELECT seq, at, hash, body FROM earnest_log";

const CHAIN: &str = "SELECT id, state, opened, resolved FROM earnest_holds";

impl Source for Linked {
    fn head(&self) -> Read<Head> {
        let sql = "SELECT seq, at, hash FROM earnest_log ORDER BY seq DESC LIMIT 1";
        let found = self.one(sql, &[], |row| {
            let at = Timestamp::from_microsecond(get(row, 1)?).map_err(ReadError::damaged)?;
            Ok(Head { seq: number(row, 0)?, at, hash: bytes(row, 2)? })
        })?;
        Ok(found.unwrap_or(Head::GENESIS))
    }

    fn entry(&self, seq: u64) -> Read<Option<LogEntry>> {
        let sql = format!("{ENTRY} WHERE seq = $1");
        let params: &Typed<'_> = &[(&sql_number(seq), Type::INT8)];
        let raw = self.many(&sql, params, |row| raw_entry(row, 0))?;
        Ok(self.decode(&raw)?.pop())
    }

    fn entries(&self, after: u64, limit: usize) -> Read<Vec<LogEntry>> {
        let sql = format!("{ENTRY} WHERE seq > $1 ORDER BY seq LIMIT $2");
        let params: &Typed<'_> =
            &[(&sql_number(after), Type::INT8), (&limit_number(limit), Type::INT8)];
        let raw = self.many(&sql, params, |row| raw_entry(row, 0))?;
        self.decode(&raw)
    }

    fn account(&self, id: &AccountId) -> Read<Option<AccountRow>> {
        Ok(self.accounts_of(std::slice::from_ref(id))?.pop())
    }

    fn accounts(&self, after: u64, limit: usize) -> Read<Vec<AccountRow>> {
        let sql = format!("{ACCOUNT} WHERE no > $1 ORDER BY no LIMIT $2");
        let params: &Typed<'_> =
            &[(&sql_number(after), Type::INT8), (&limit_number(limit), Type::INT8)];
        self.many(&sql, params, account_row)
    }

    fn accounts_named(&self, prefix: &str, after: &str, limit: usize) -> Read<Vec<AccountRow>> {
        // No account's text has a letter above `z`, so this ends what begins with the prefix.
        let sql = format!(
            "{ACCOUNT} WHERE name >= $1 AND name < $1 || '~' AND name > $2 ORDER BY name LIMIT $3"
        );
        let limit = limit_number(limit);
        let params: &Typed<'_> =
            &[(&prefix, Type::TEXT), (&after, Type::TEXT), (&limit, Type::INT8)];
        self.many(&sql, params, account_row)
    }

    fn chain(&self, id: TransferId) -> Read<Option<ChainRow>> {
        let id = id.value().to_be_bytes();
        let sql = format!("{CHAIN} WHERE id = $1");
        self.one(&sql, &[(&id.as_slice(), Type::BYTEA)], chain_row)
    }

    fn chains(&self, after: Option<TransferId>, limit: usize) -> Read<Vec<ChainRow>> {
        let after = after.map(|id| id.value().to_be_bytes().to_vec()).unwrap_or_default();
        let sql = format!("{CHAIN} WHERE id > $1 ORDER BY id LIMIT $2");
        let params: &Typed<'_> = &[(&after, Type::BYTEA), (&limit_number(limit), Type::INT8)];
        self.many(&sql, params, chain_row)
    }

    fn row(&self, kind: &str, id: &str) -> Read<Option<Vec<u8>>> {
        let Some(kind) = self.number_of(kind)? else { return Ok(None) };
        let sql = "SELECT body FROM earnest_rows WHERE kind = $1 AND id = $2";
        self.one(sql, &[(&kind, Type::INT8), (&packed(id), Type::BYTEA)], |row| get(row, 0))
    }

    fn rows(&self, kind: &str, after: Option<&str>, limit: usize) -> Read<Vec<(String, Vec<u8>)>> {
        let Some(kind) = self.number_of(kind)? else { return Ok(Vec::new()) };
        // Nothing that is stored is empty, so everything is after that.
        let after = after.map(packed).unwrap_or_default();
        let sql = "SELECT id, body FROM earnest_rows WHERE kind = $1 AND id > $2 \
                   ORDER BY id LIMIT $3";
        let limit = limit_number(limit);
        let params: &Typed<'_> =
            &[(&kind, Type::INT8), (&after, Type::BYTEA), (&limit, Type::INT8)];
        self.many(sql, params, |row| Ok((unpacked(row, 0)?, get(row, 1)?)))
    }

    fn kinds(&self) -> Read<Vec<String>> {
        let sql = "SELECT text FROM earnest_words \
                   WHERE EXISTS (SELECT 1 FROM earnest_rows WHERE kind = earnest_words.no) \
                   ORDER BY text COLLATE \"C\"";
        self.many(sql, &[], |row| get(row, 0))
    }

    fn list(&self, query: &ListQuery<'_>) -> Read<Vec<Cursor>> {
        let (Some(list), Some(kind)) = (self.number_of(query.list)?, self.number_of(query.kind)?)
        else {
            return Ok(Vec::new());
        };
        let (compare, order) = if query.newest_first { ("<", "DESC") } else { (">", "ASC") };
        let at = query.after.map(|cursor| packed(&cursor.at)).unwrap_or_default();
        let id = query.after.map(|cursor| packed(&cursor.id)).unwrap_or_default();
        // Without a cursor the condition is true of everything and names its parameters all the same.
        let beyond = match query.after {
            Some(_) => format!("(at, id) {compare} ($4, $5)"),
            None => "($4 = ''::bytea AND $5 = ''::bytea)".to_owned(),
        };
        let sql = format!(
            "SELECT at, id FROM earnest_lists WHERE list = $1 AND kind = $2 AND scope = $3 \
             AND {beyond} ORDER BY at {order}, id {order} LIMIT $6"
        );
        let (scope, limit) = (packed(query.scope), limit_number(query.limit));
        let params: &Typed<'_> = &[
            (&list, Type::INT8),
            (&kind, Type::INT8),
            (&scope, Type::BYTEA),
            (&at, Type::BYTEA),
            (&id, Type::BYTEA),
            (&limit, Type::INT8),
        ];
        self.many(&sql, params, |row| Ok(Cursor { at: unpacked(row, 0)?, id: unpacked(row, 1)? }))
    }

    fn list_rows(&self) -> Read<Vec<ListRow>> {
        let sql = "SELECT l.text, k.text, scope, at, id FROM earnest_lists \
                   JOIN earnest_words l ON l.no = list JOIN earnest_words k ON k.no = kind";
        self.many(sql, &[], |row| {
            Ok(ListRow {
                list: get(row, 0)?,
                kind: get(row, 1)?,
                scope: unpacked(row, 2)?,
                at: unpacked(row, 3)?,
                id: unpacked(row, 4)?,
            })
        })
    }

    fn key(&self, address: KeyAddress) -> Read<Option<u64>> {
        let sql = "SELECT seq FROM earnest_keys WHERE address = $1";
        self.one(sql, &[(&address.0.as_slice(), Type::BYTEA)], |row| number(row, 0))
    }

    fn keys(&self) -> Read<Vec<(KeyAddress, u64)>> {
        let sql = "SELECT address, seq FROM earnest_keys";
        self.many(sql, &[], |row| Ok((KeyAddress(bytes(row, 0)?), number(row, 1)?)))
    }
}

impl Raw for Linked {
    fn words(&self, after: u64, limit: usize) -> Read<Vec<(u64, String)>> {
        let sql = "SELECT no, text FROM earnest_words WHERE no > $1 ORDER BY no LIMIT $2";
        let params: &Typed<'_> =
            &[(&sql_number(after), Type::INT8), (&limit_number(limit), Type::INT8)];
        self.many(sql, params, |row| Ok((number(row, 0)?, get(row, 1)?)))
    }

    fn raw_entries(&self, after: u64, limit: usize) -> Read<Vec<RawEntry>> {
        let sql = format!("{ENTRY} WHERE seq > $1 ORDER BY seq LIMIT $2");
        let params: &Typed<'_> =
            &[(&sql_number(after), Type::INT8), (&limit_number(limit), Type::INT8)];
        self.many(&sql, params, |row| raw_entry(row, 0))
    }

    fn raw_rows(&self, after: Option<&RawRow>, limit: usize) -> Read<Vec<RawRow>> {
        // Kinds count from 1, so everything is after kind 0.
        let kind = after.map_or(0, |row| sql_number(row.kind));
        let id = after.map(|row| packed(&row.id)).unwrap_or_default();
        let sql = "SELECT kind, id, body FROM earnest_rows WHERE (kind, id) > ($1, $2) \
                   ORDER BY kind, id LIMIT $3";
        let limit = limit_number(limit);
        let params: &Typed<'_> = &[(&kind, Type::INT8), (&id, Type::BYTEA), (&limit, Type::INT8)];
        self.many(sql, params, |row| {
            Ok(RawRow { kind: number(row, 0)?, id: unpacked(row, 1)?, body: get(row, 2)? })
        })
    }

    fn raw_places(&self, after: Option<&RawPlace>, limit: usize) -> Read<Vec<RawPlace>> {
        let (list, kind) = after.map_or((0, 0), |p| (sql_number(p.list), sql_number(p.kind)));
        let bytes = |of: fn(&RawPlace) -> &str| after.map(|p| packed(of(p))).unwrap_or_default();
        let (scope, at, id) = (bytes(|p| &p.scope), bytes(|p| &p.at), bytes(|p| &p.id));
        let sql = "SELECT list, kind, scope, at, id FROM earnest_lists \
                   WHERE (list, kind, scope, at, id) > ($1, $2, $3, $4, $5) \
                   ORDER BY list, kind, scope, at, id LIMIT $6";
        let limit = limit_number(limit);
        let params: &Typed<'_> = &[
            (&list, Type::INT8),
            (&kind, Type::INT8),
            (&scope, Type::BYTEA),
            (&at, Type::BYTEA),
            (&id, Type::BYTEA),
            (&limit, Type::INT8),
        ];
        self.many(sql, params, |row| {
            Ok(RawPlace {
                list: number(row, 0)?,
                kind: number(row, 1)?,
                scope: unpacked(row, 2)?,
                at: unpacked(row, 3)?,
                id: unpacked(row, 4)?,
            })
        })
    }

    fn raw_keys(&self, after: Option<KeyAddress>, limit: usize) -> Read<Vec<(KeyAddress, u64)>> {
        let after = after.map(|address| address.0.to_vec()).unwrap_or_default();
        let sql = "SELECT address, seq FROM earnest_keys WHERE address > $1 \
                   ORDER BY address LIMIT $2";
        let params: &Typed<'_> = &[(&after, Type::BYTEA), (&limit_number(limit), Type::INT8)];
        self.many(sql, params, |row| Ok((KeyAddress(bytes(row, 0)?), number(row, 1)?)))
    }
}
