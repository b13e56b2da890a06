//! The writer's connection: the head of the log locked first, everything written at once at the
//! end, and what to make of errors.
//!
//! All nodes write one log, so they take turns at it anyway: whoever holds the head row is the one
//! writer, exactly as with SQLite, and sees everything that was committed before. What another node
//! committed meanwhile is learnt from the log. DESIGN.md says why this and not locks on every row.

use std::collections::HashSet;
use std::time::Duration;

use earnest_core::entry::KeyLine;
use earnest_core::id::TransferId;
use earnest_core::ledger::{AccountId, Hold, Op};
use earnest_core::time::Timestamp;
use earnest_core::unit::RowKey;
use foldhash::HashMap;
use futures_util::future::{BoxFuture, FutureExt as _, join_all, join3};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::batch::{Pending, Statement, accounts_statement, rows_statements};
use super::link::{Failure, Kind, Link, Server, Typed};
use super::open::{MARK_MOVED, Opened, open};
use super::pool::Pool;
use super::read::{Linked, bytes, chain_row, get, number, packed, raw_entry, sql_number};
use crate::backend::{
    Backend, Begun, Changed, CommitFault, Dirty, Fault, Foreign, KeyAddress, Recorded, Recovered,
    Want,
};
use crate::codec::{Numbers, encode};
use crate::layer::Slot;
use crate::moving::{Raw, RawEntry};
use crate::read::{AccountRow, LogEntry, Reader, Shelf, Snapshot, Source, opening};
use crate::{Head, OpenError, ReadError};

/// What is known of another node's entries is learnt one by one up to so many; past that everything
/// is read again.
const MOST_FOREIGN: i64 = 2_000;

/// The bounds of one transaction. A node that stops while it holds the head (paused, cut off) must
/// not stop the others for longer than they wait: the server ends its session first. Set for the
/// transaction alone, since a pooler may give the session to others.
const BOUNDS: &str = "SET LOCAL lock_timeout = '8s'; SET LOCAL statement_timeout = '20s'; \
                      SET LOCAL idle_in_transaction_session_timeout = '3s'";

/// How often the end of the log is looked at while nothing is written here: how late events of
/// other nodes may come.
const FOLLOW: Duration = Duration::from_millis(100);

/// How often a lost connection is made again before the batch is given up.
const ATTEMPTS: u32 = 3;

/// Between two of them.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the fate of a lost COMMIT is looked for: a standby may have to be promoted first.
const RESOLVE: Duration = Duration::from_secs(15);

/// What of [`crate::Options`] concerns a server.
#[derive(Clone, Debug)]
pub(crate) struct PostgresOptions {
    pub(crate) mode: String,
    pub(crate) epoch: String,
    /// Whether `now` is the server's.
    pub(crate) server_clock: bool,
}

impl PostgresOptions {
    pub(crate) fn of(options: &crate::Options) -> Self {
        Self {
            mode: options.mode.clone(),
            epoch: options.epoch.clone(),
            server_clock: options.server_clock,
        }
    }
}

/// The backend.
pub(crate) struct Postgres {
    server: Server,
    options: PostgresOptions,
    epoch: String,
    linked: Option<Linked>,
    /// How many words have numbers, as committed.
    words: u64,
    batch: Pending,
    fetched: Fetched,
}

/// What was read ahead for the running batch; nobody changes it while the head is locked.
#[derive(Default)]
struct Fetched {
    keys: HashMap<KeyAddress, Option<KeyLine>>,
    rows: HashMap<RowKey, Option<Vec<u8>>>,
    holds: HashMap<TransferId, Option<Hold>>,
}

impl Postgres {
    pub(crate) fn open(server: Server, options: PostgresOptions) -> Result<Self, OpenError> {
        let Opened { epoch } = open(&server, &options)?;
        Ok(Self {
            server,
            options,
            epoch,
            linked: None,
            words: 0,
            batch: Pending::default(),
            fetched: Fetched::default(),
        })
    }

    pub(crate) fn reader(&self) -> Reader {
        Reader(std::sync::Arc::new(Shelf::Postgres(Box::new(Pool::new(self.server.clone())))))
    }

    pub(crate) fn epoch(&self) -> &str {
        &self.epoch
    }

    fn linked(&self) -> Result<&Linked, Fault> {
        self.linked.as_ref().ok_or_else(|| Fault::Whole("the connection was lost".to_owned()))
    }

    /// What a failure means for the batch; a connection that is gone is dropped.
    fn fault(&mut self, why: &Failure) -> Fault {
        let text = why.to_string();
        match why.kind() {
            Kind::Again => Fault::Again(text),
            Kind::Lost => {
                self.linked = None;
                Fault::Whole(text)
            }
            Kind::Content | Kind::Place => Fault::Whole(text),
        }
    }

    fn read<T>(&mut self, read: impl FnOnce(&Linked) -> Result<T, ReadError>) -> Result<T, Fault> {
        let found = read(self.linked()?);
        found.map_err(|why| match why {
            ReadError::Damaged(why) => Fault::Unit(why),
            // The transaction is over, whatever it was.
            ReadError::Unavailable(why) => Fault::Whole(why),
        })
    }

    /// A connection that answers, made anew where the old one does not.
    fn connect(&mut self) -> Result<(), Failure> {
        if self.linked.as_ref().is_some_and(Linked::is_sound) {
            return Ok(());
        }
        self.linked = None;
        let link = self.server.connect()?;
        self.linked = Some(Linked::new(link, None));
        // Words are known to a connection; a new one learns them again.
        self.words = 0;
        Ok(())
    }

    /// Begins, locks the head and asks the time.
    fn lock(&self) -> Result<(Vec<Row>, Vec<Row>), Failure> {
        let Some(link) = self.linked.as_ref().map(Linked::link) else {
            return Err(Failure::Silent(Duration::ZERO));
        };
        let client = link.client();
        let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {BOUNDS}");
        let head = "SELECT seq, at, hash, words FROM earnest_head WHERE one = 1 FOR UPDATE";
        // A statement of its own, so that the time is read when the lock is held.
        let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
                   (SELECT value FROM earnest_meta WHERE name = 'moved')";
        link.wait(async {
            let (begun, head, now) = join3(
                client.batch_execute(&begin),
                client.query_typed(head, &[]),
                client.query_typed(now, &[]),
            )
            .await;
            begun?;
            Ok((head?, now?))
        })
    }

    /// As [`Postgres::lock`], connecting again where the connection turns out to be lost.
    fn lock_somehow(&mut self) -> Result<Locked, Fault> {
        let mut attempt = 0;
        loop {
            let locked = self.connect().and_then(|()| self.lock());
            match locked {
                Ok((head, now)) => {
                    let read = Locked::read(&head, &now);
                    return read.map_err(|why| Fault::Whole(why.to_string()));
                }
                Err(why) if why.waited_in_vain() => {
                    self.rollback();
                    let who = self.who_holds_the_head();
                    tracing::error!(who, "another session holds the head of the log");
                    return Err(Fault::Whole(format!("another session holds the log: {who}")));
                }
                Err(why) if why.kind() == Kind::Lost && attempt < ATTEMPTS => {
                    tracing::warn!(%why, place = self.server.place(), "connecting again");
                    self.linked = None;
                    std::thread::sleep(PAUSE.saturating_mul(attempt));
                    attempt = attempt.saturating_add(1);
                }
                Err(why) => {
                    let fault = self.fault(&why);
                    self.rollback();
                    return Err(fault);
                }
            }
        }
    }

    /// Which sessions have a lock on the head row's table, in words.
    fn who_holds_the_head(&self) -> String {
        let sql = "SELECT a.pid::text, coalesce(a.application_name, ''), coalesce(a.state, ''), \
                   extract(epoch FROM clock_timestamp() - a.xact_start)::bigint \
                   FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid() AND a.pid IN \
                   (SELECT pid FROM pg_locks WHERE granted AND mode <> 'AccessShareLock' \
                    AND relation = 'earnest_head'::regclass)";
        let Some(link) = self.linked.as_ref().map(Linked::link) else {
            return "unknown".to_owned();
        };
        let Ok(rows) = link.query(sql, &[]) else { return "unknown".to_owned() };
        let line = |row: &Row| -> Result<String, ReadError> {
            let (pid, name, state): (&str, &str, &str) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
            let since: Option<i64> = get(row, 3)?;
            let since = since.unwrap_or_default();
            Ok(format!("session {pid} of `{name}`, {state}, for {since} s"))
        };
        let lines: Vec<String> = rows.iter().filter_map(|row| line(row).ok()).collect();
        if lines.is_empty() { "unknown".to_owned() } else { lines.join("; ") }
    }

    /// What was committed since `known` by others, or that what is here is not what we knew.
    fn foreign(&mut self, known: &Head, head: &Head) -> Result<Foreign, Fault> {
        if head == known {
            return Ok(Foreign::None);
        }
        let regressed = |what: String| {
            let why = format!(
                "the database lost what it had acknowledged: {what}. Was a standby promoted that \
                 had not received everything? See `docs/operations.md`"
            );
            Fault::Regressed(why)
        };
        if head.seq < known.seq || (head.seq == known.seq && head.hash != known.hash) {
            let (is, was) = (head.seq, known.seq);
            return Err(regressed(format!("the log ends at {is}, we knew entry {was}")));
        }
        let sql =
            "SELECT seq, at, hash, body FROM earnest_log WHERE seq >= $1 ORDER BY seq LIMIT $2";
        let most = MOST_FOREIGN.saturating_add(1);
        let (link, seq) = (self.linked()?.link(), sql_number(known.seq));
        let found = link.query(sql, &[(&seq, Type::INT8), (&most, Type::INT8)]);
        let found = found.map_err(|why| self.fault(&why))?;
        let read = |linked: &Linked| {
            let raw = found.iter().map(|row| raw_entry(row, 0)).collect::<Result<Vec<_>, _>>()?;
            linked.decode(&raw)
        };
        let mut entries = self.read(read)?;
        if known.seq > 0 {
            let first = entries.first();
            if first.is_none_or(|first| (first.entry.seq, first.hash) != (known.seq, known.hash)) {
                return Err(regressed(format!("entry {} is another one now", known.seq)));
            }
            entries.remove(0);
        }
        if entries.last().is_none_or(|last| last.entry.seq < head.seq) {
            return self.read(|linked| all_of(linked)).map(Foreign::Many);
        }
        self.changed_by(&entries).map(Foreign::Some)
    }

    fn changed_by(&mut self, entries: &[LogEntry]) -> Result<Changed, Fault> {
        let accounts: HashSet<AccountId> =
            entries.iter().flat_map(|found| found.accounts.iter().map(|(id, _)| *id)).collect();
        let accounts: Vec<AccountId> = accounts.into_iter().collect();
        let rows = self.read(|linked| linked.accounts_of(&accounts))?;
        let slot = |row: AccountRow| {
            (row.id, Slot { no: row.no, totals: row.totals, last_seq: row.last_seq })
        };
        let put = |found: &LogEntry| {
            let lines = found.entry.puts.iter();
            lines.map(|put| (put.kind.clone(), put.id.clone())).collect::<Vec<_>>()
        };
        Ok(Changed {
            accounts: rows.into_iter().map(slot).collect(),
            rows: entries.iter().flat_map(put).collect(),
            holds: entries.iter().flat_map(|found| found.entry.ops.iter().map(Op::id)).collect(),
        })
    }

    /// The statements that write the batch, each with its parameters.
    fn statements(&self, dirty: &Dirty<'_>) -> Vec<Statement> {
        let mut all = self.batch.statements();
        all.extend(accounts_statement(dirty));
        all.extend(rows_statements(dirty, |word| self.number_of(word)));
        all.extend(self.batch.head_statement(self.words));
        all
    }

    fn number_of(&self, word: &str) -> i64 {
        let known =
            self.linked.as_ref().map(|linked| linked.names.borrow().numbers.get(word).copied());
        sql_number(known.flatten().unwrap_or_default())
    }

    /// Gives a word its number, a new one within the running transaction.
    fn word(&mut self, text: &str) -> Result<u64, Fault> {
        let linked = self.linked.as_ref();
        let linked = linked.ok_or_else(|| Fault::Whole("the connection was lost".to_owned()))?;
        if let Some(no) = linked.names.borrow().numbers.get(text) {
            return Ok(*no);
        }
        // All committed words were learnt when the head was locked, so this one is new.
        let taken = u64::try_from(self.batch.words.len()).unwrap_or(u64::MAX);
        let no = self.words.saturating_add(taken).saturating_add(1);
        linked.names.borrow_mut().learn(no, text.to_owned());
        self.batch.words.push((no, text.to_owned()));
        Ok(no)
    }
}

/// What the head row and the clock said.
struct Locked {
    head: Head,
    words: u64,
    now: Timestamp,
    moved: Option<String>,
}

impl Locked {
    fn read(head: &[Row], now: &[Row]) -> Result<Self, ReadError> {
        let missing = || ReadError::damaged("the head row is missing");
        let (head, now) = (head.first().ok_or_else(missing)?, now.first().ok_or_else(missing)?);
        let time = |micros: i64| Timestamp::from_microsecond(micros).map_err(ReadError::damaged);
        let seq = number(head, 0)?;
        let at = time(get(head, 1)?)?;
        let end = if seq == 0 { Head::GENESIS } else { Head { seq, at, hash: bytes(head, 2)? } };
        Ok(Self {
            head: end,
            words: number(head, 3)?,
            now: time(get(now, 0)?)?,
            moved: get(now, 1)?,
        })
    }
}

impl Numbers for Postgres {
    type Error = Fault;

    fn word(&mut self, text: &str) -> Result<u64, Fault> {
        Self::word(self, text)
    }
}

impl Backend for Postgres {
    fn key(&mut self, address: KeyAddress) -> Result<Option<KeyLine>, Fault> {
        if let Some(found) = self.fetched.keys.get(&address) {
            return Ok(found.clone());
        }
        self.fetch(&Want { keys: vec![address], ..Want::default() })?;
        Ok(self.fetched.keys.get(&address).cloned().flatten())
    }

    fn row(&mut self, key: &RowKey) -> Result<Option<Vec<u8>>, Fault> {
        if let Some(found) = self.fetched.rows.get(key) {
            return Ok(found.clone());
        }
        self.fetch(&Want { rows: vec![key.clone()], ..Want::default() })?;
        Ok(self.fetched.rows.get(key).cloned().flatten())
    }

    fn hold(&mut self, id: TransferId) -> Result<Option<Hold>, Fault> {
        if let Some(found) = self.fetched.holds.get(&id) {
            return Ok(found.clone());
        }
        self.fetch(&Want { holds: vec![id], ..Want::default() })?;
        Ok(self.fetched.holds.get(&id).cloned().flatten())
    }

    fn is_remote(&self) -> bool {
        true
    }

    /// One round trip for all of it.
    fn fetch(&mut self, want: &Want) -> Result<(), Fault> {
        let keys: Vec<Vec<u8>> = want.keys.iter().map(|address| address.0.to_vec()).collect();
        let holds: Vec<Vec<u8>> =
            want.holds.iter().map(|id| id.value().to_be_bytes().to_vec()).collect();
        let mut kinds = Vec::with_capacity(want.rows.len());
        let mut ids = Vec::with_capacity(want.rows.len());
        for key in &want.rows {
            kinds.push(self.number_of(key.kind));
            ids.push(packed(&key.id));
        }
        // One by one through the index: of a table that is young the server would sooner read all.
        let key_sql = "SELECT w.address, f.* FROM unnest($1) AS w (address) CROSS JOIN LATERAL \
                       (SELECT l.seq, l.at, l.hash, l.body FROM earnest_keys k \
                       JOIN earnest_log l ON l.seq = k.seq WHERE k.address = w.address LIMIT 1) f";
        let row_sql = "SELECT r.kind, r.id, r.body FROM unnest($1, $2) AS w (kind, id) \
                       JOIN earnest_rows r ON r.kind = w.kind AND r.id = w.id";
        let hold_sql = "SELECT w.id, f.* FROM unnest($1) AS w (id) CROSS JOIN LATERAL \
                        (SELECT h.state, h.opened, h.resolved, l.seq, l.at, l.hash, l.body \
                        FROM earnest_holds h JOIN earnest_log l ON l.seq = h.opened \
                        WHERE h.id = w.id LIMIT 1) f";
        let link = self.linked()?.link();
        let client = link.client();
        let key_params: &Typed<'_> = &[(&keys, Type::BYTEA_ARRAY)];
        let row_params: &Typed<'_> = &[(&kinds, Type::INT8_ARRAY), (&ids, Type::BYTEA_ARRAY)];
        let hold_params: &Typed<'_> = &[(&holds, Type::BYTEA_ARRAY)];
        let ask = async |sql, params, empty: bool| {
            if empty { Ok(Vec::new()) } else { client.query_typed(sql, params).await }
        };
        let asked = link.wait(async {
            let (keys, rows, holds) = join3(
                ask(key_sql, key_params, keys.is_empty()),
                ask(row_sql, row_params, ids.is_empty()),
                ask(hold_sql, hold_params, holds.is_empty()),
            )
            .await;
            Ok((keys?, rows?, holds?))
        });
        let (found_keys, found_rows, found_holds) = asked.map_err(|why| self.fault(&why))?;
        self.keep_keys(want, &found_keys)?;
        self.keep_rows(want, &kinds, &ids, &found_rows)?;
        self.keep_holds(want, &found_holds)
    }

    fn follow_every(&self) -> Option<Duration> {
        Some(FOLLOW)
    }

    fn end(&mut self) -> Result<u64, Fault> {
        self.connect().map_err(|why| Fault::Whole(why.to_string()))?;
        let sql = "SELECT seq, (SELECT value FROM earnest_meta WHERE name = 'moved') \
                   FROM earnest_head WHERE one = 1";
        let found = self.linked()?.link().query(sql, &[]).map_err(|why| self.fault(&why))?;
        let row =
            found.first().ok_or_else(|| Fault::Whole("the head row is missing".to_owned()))?;
        let read = || Ok((number(row, 0)?, get::<Option<String>>(row, 1)?));
        let (seq, moved) = read().map_err(|why: ReadError| Fault::Whole(why.to_string()))?;
        // Another node moved the books: nothing of them is to be shown here any more, either.
        moved.map_or(Ok(seq), |to| Err(Fault::Moved(to)))
    }

    fn ready(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn begin(&mut self, known: &Head) -> Result<Begun, Fault> {
        self.batch = Pending::default();
        self.fetched = Fetched::default();
        let Locked { head, words, now, moved } = self.lock_somehow()?;
        let begun = (|| {
            if let Some(to) = moved {
                return Err(Fault::Moved(to));
            }
            if words != self.words {
                let known = self.words.min(words);
                self.read(|linked| {
                    linked.names.borrow_mut().keep_words(known);
                    linked.learn_words(known)
                })?;
                self.words = words;
            }
            self.foreign(known, &head)
        })();
        match begun {
            Ok(foreign) => {
                let now = self.options.server_clock.then_some(now);
                Ok(Begun { now, head, foreign })
            }
            Err(fault) => {
                self.rollback();
                Err(fault)
            }
        }
    }

    fn record(&mut self, unit: &Recorded<'_>) -> Result<(), Fault> {
        let body = encode(unit.entry, unit.accounts, self)?;
        let entry = unit.entry;
        let seq = sql_number(entry.seq);
        let at = entry.at.as_microsecond();
        self.batch.log.push(RawEntry { seq: entry.seq, at, hash: unit.hash, body });
        if let Some(address) = unit.key {
            self.batch.keys.insert(address, seq);
        }
        entry.ops.iter().for_each(|op| self.batch.chain(op, entry.seq));
        self.batch.head = Some(Head { seq: entry.seq, at: entry.at, hash: unit.hash });
        Ok(())
    }

    fn commit(&mut self, dirty: &Dirty<'_>) -> Result<(), CommitFault> {
        for (key, row) in dirty.rows {
            let lists = row.lists.iter().chain(&row.before).map(|entry| entry.list);
            for word in std::iter::once(key.kind).chain(lists) {
                self.word(word).map_err(|fault| CommitFault::Whole(fault.why()))?;
            }
        }
        let statements = self.statements(dirty);
        let typed: Vec<_> = statements.iter().map(Statement::typed).collect();
        let link = self.linked().map_err(|fault| CommitFault::Whole(fault.why()))?.link();
        let client = link.client();
        // All at once, COMMIT among them: where a statement failed, a transaction does not commit.
        let sent = link.wait(async {
            let mut sent: Vec<BoxFuture<'_, Result<(), tokio_postgres::Error>>> = Vec::new();
            for (statement, params) in statements.iter().zip(&typed) {
                let ran = client.execute_typed(statement.sql(), params);
                sent.push(ran.map(|done| done.map(drop)).boxed());
            }
            sent.push(client.batch_execute("COMMIT").boxed());
            Ok(join_all(sent).await)
        });
        let taken = u64::try_from(self.batch.words.len()).unwrap_or(u64::MAX);
        match sent {
            Err(why) => {
                self.linked = None;
                Err(CommitFault::Unknown(why.to_string()))
            }
            Ok(answers) => match first_failure(answers) {
                None => {
                    self.words = self.words.saturating_add(taken);
                    Ok(())
                }
                Some(why) => Err(self.not_committed(&why)),
            },
        }
    }

    fn rollback(&mut self) {
        let words = self.words;
        let Some(linked) = &self.linked else { return };
        linked.names.borrow_mut().keep_words(words);
        if let Err(why) = linked.link().run("ROLLBACK") {
            tracing::warn!(%why, "a rollback failed; the connection is given up");
            self.linked = None;
        }
    }

    fn recover(&mut self) -> Result<Recovered, String> {
        let deadline = std::time::Instant::now() + RESOLVE;
        loop {
            let read = self.connect().map_err(|why| why.to_string()).and_then(|()| self.read_all());
            match read {
                Ok(found) => return Ok(found),
                Err(why) if std::time::Instant::now() >= deadline => return Err(why),
                Err(why) => {
                    tracing::warn!(why, place = self.server.place(), "connecting again");
                    self.linked = None;
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn settled(&mut self, end: &Head) -> Result<bool, String> {
        let deadline = std::time::Instant::now() + RESOLVE;
        loop {
            match self.look_for(end) {
                Ok(found) => return Ok(found),
                Err(why) if std::time::Instant::now() >= deadline => return Err(why),
                Err(why) => {
                    tracing::warn!(why, "looking for the fate of a batch again");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn raw(&mut self) -> Result<&dyn Raw, Fault> {
        // A copy may take long, and the head is held for all of it.
        let unbound = "SET LOCAL idle_in_transaction_session_timeout = 0; \
                       SET LOCAL statement_timeout = 0";
        self.linked()?.link().run(unbound).map_err(|why| self.fault(&why))?;
        let linked = self.linked()?;
        Ok(linked)
    }

    fn mark_moved(&mut self, to: &str) -> Result<(), Fault> {
        let sql = "INSERT INTO earnest_meta (name, value) VALUES ($1, $2)";
        let link = self.linked()?.link();
        let params = [(&MARK_MOVED as _, Type::TEXT), (&to as _, Type::TEXT)];
        let marked = link.query(sql, &params).and_then(|_| link.run("COMMIT"));
        marked.map_err(|why| self.fault(&why))
    }

    fn close(&mut self) {
        self.linked = None;
    }
}

/// Everything that is kept in memory.
fn all_of(books: &dyn Source) -> Result<Recovered, ReadError> {
    let snapshot = Snapshot(books);
    let mut accounts = Vec::new();
    snapshot.each_account(|row| {
        let slot = Slot { no: row.no, totals: row.totals, last_seq: row.last_seq };
        accounts.push((row.id, slot));
    })?;
    Ok(Recovered { accounts, head: snapshot.head()? })
}

/// What made a batch fail: the first that is not the echo of another.
fn first_failure(answers: Vec<Result<(), tokio_postgres::Error>>) -> Option<Failure> {
    let mut failures = answers.into_iter().filter_map(Result::err).map(Failure::Server);
    let first = failures.next()?;
    if first.is_an_echo() { Some(failures.next().unwrap_or(first)) } else { Some(first) }
}

impl Postgres {
    fn not_committed(&mut self, why: &Failure) -> CommitFault {
        let text = why.to_string();
        match why.kind() {
            // The word that it is lost may be the answer to COMMIT itself.
            Kind::Lost => {
                self.linked = None;
                CommitFault::Unknown(text)
            }
            // What stands in front of COMMIT failed, so COMMIT rolled back.
            Kind::Again => {
                self.forget_batch();
                CommitFault::Again(text)
            }
            Kind::Content => {
                self.forget_batch();
                CommitFault::Poison(text)
            }
            Kind::Place => {
                self.forget_batch();
                CommitFault::Whole(text)
            }
        }
    }

    fn forget_batch(&mut self) {
        if let Some(linked) = &self.linked {
            linked.names.borrow_mut().keep_words(self.words);
        }
    }

    fn read_all(&self) -> Result<Recovered, String> {
        let linked = self.linked.as_ref().ok_or("no connection")?;
        // Whatever the connection was inside of is worth nothing.
        linked.link().run("ROLLBACK").map_err(|why| why.to_string())?;
        linked.at_one_moment(all_of).map_err(|why| why.to_string())
    }

    /// Whether an entry was committed. Waits for the head, which the session that was to commit it
    /// holds as long as that is open; and writes, so that where a standby must confirm, it confirms
    /// everything before too.
    fn look_for(&mut self, end: &Head) -> Result<bool, String> {
        self.connect().map_err(|why| why.to_string())?;
        let (seq, touch) = (sql_number(end.seq), "UPDATE earnest_head SET seq = seq WHERE one = 1");
        self.lock().map_err(|why| {
            self.linked = None;
            why.to_string()
        })?;
        let sql = "SELECT hash FROM earnest_log WHERE seq = $1";
        let look = |link: &Link| -> Result<bool, Failure> {
            let found = link.query(sql, &[(&seq, Type::INT8)])?;
            link.run(touch)?;
            link.run("COMMIT")?;
            let hash = found.first().and_then(|row| row.try_get::<_, &[u8]>(0).ok());
            Ok(hash.is_some_and(|hash| hash == end.hash))
        };
        let link = self.linked.as_ref().ok_or("no connection")?.link();
        look(&link).map_err(|why| {
            let why = why.to_string();
            self.linked = None;
            why
        })
    }

    fn keep_keys(&mut self, want: &Want, found: &[Row]) -> Result<(), Fault> {
        let read = |linked: &Linked| {
            let raw = found.iter().map(|row| raw_entry(row, 1)).collect::<Result<Vec<_>, _>>()?;
            let entries = linked.decode(&raw)?;
            let address = |row: &Row| Ok(KeyAddress(bytes(row, 0)?));
            let addresses = found.iter().map(address).collect::<Result<Vec<_>, ReadError>>()?;
            Ok(addresses.into_iter().zip(entries).collect::<Vec<_>>())
        };
        let found = self.read(read)?;
        self.fetched.keys.extend(want.keys.iter().map(|address| (*address, None)));
        let lines = found.into_iter().map(|(address, found)| (address, found.entry.key));
        self.fetched.keys.extend(lines);
        Ok(())
    }

    fn keep_rows(
        &mut self,
        want: &Want,
        kinds: &[i64],
        ids: &[Vec<u8>],
        found: &[Row],
    ) -> Result<(), Fault> {
        let read = |_: &Linked| {
            let row = |row: &Row| Ok(((get(row, 0)?, get::<Vec<u8>>(row, 1)?), get(row, 2)?));
            found.iter().map(row).collect::<Result<HashMap<(i64, Vec<u8>), Vec<u8>>, ReadError>>()
        };
        let mut found = self.read(read)?;
        for ((key, kind), id) in want.rows.iter().zip(kinds).zip(ids) {
            let body = found.remove(&(*kind, id.clone()));
            self.fetched.rows.insert(key.clone(), body);
        }
        Ok(())
    }

    fn keep_holds(&mut self, want: &Want, found: &[Row]) -> Result<(), Fault> {
        let read = |linked: &Linked| {
            let raw = found.iter().map(|row| raw_entry(row, 4)).collect::<Result<Vec<_>, _>>()?;
            let mut holds = Vec::with_capacity(found.len());
            for (row, entry) in found.iter().zip(linked.decode(&raw)?) {
                let chain = chain_row(row)?;
                let missing =
                    || ReadError::damaged(format!("hold {} is not in its entry", chain.id));
                let (cause, legs) = opening(&entry.entry, chain.id).ok_or_else(missing)?;
                holds.push((chain.id, Hold { cause, legs: legs.to_vec(), state: chain.state }));
            }
            Ok(holds)
        };
        let found = self.read(read)?;
        self.fetched.holds.extend(want.holds.iter().map(|id| (*id, None)));
        self.fetched.holds.extend(found.into_iter().map(|(id, hold)| (id, Some(hold))));
        Ok(())
    }
}
