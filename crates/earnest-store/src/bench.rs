//! The engine's own measurements: against bare SQLite writing the same rows, and one hot account
//! against many.
//!
//! Both sides of a ratio run in turns within one run, so that it means the same on any machine.
//! The unit is shaped like an authorize: a key, two guard rows, a purchase in three lists, a hold
//! of four legs under two caps, an event.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use earnest_core::id::{AgentId, OwnerId, SellerId, SessionId, TransferId};
use earnest_core::ledger::{Account, AccountId, Cause, Leg, Op, Subject, Window};
use earnest_core::money::Micros;
use earnest_core::time::Timestamp;
use earnest_core::unit::{
    Effects, Fingerprint, Key, ListEntry, Record, Stop, Touches, Unit, View, rank,
};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use crate::{Options, Store};

pub mod server;

/// What failed, in words.
pub type BenchError = Box<dyn std::error::Error + Send + Sync>;

/// One side of a comparison, once.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// How many units were carried out.
    pub units: u64,
    /// How long that took.
    pub took: Duration,
    /// Processor time of the whole process meanwhile, where the system tells.
    pub cpu: Option<Duration>,
    /// How large the database is afterwards, its write-ahead log folded.
    pub bytes: u64,
}

impl Round {
    /// Units per second.
    pub fn rate(&self) -> f64 {
        as_float(self.units) / self.took.as_secs_f64().max(1e-9)
    }

    /// Processor time a unit, in microseconds.
    pub fn cpu_micros(&self) -> Option<f64> {
        self.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / as_float(self.units.max(1)))
    }

    /// Bytes a unit.
    pub fn bytes_per_unit(&self) -> f64 {
        as_float(self.bytes) / as_float(self.units.max(1))
    }
}

/// Two sides, in turns.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Ours and the other, round by round.
    pub rounds: Vec<(Round, Round)>,
}

impl Comparison {
    /// The median over the rounds of our rate over the other's.
    pub fn ratio(&self) -> f64 {
        let mut ratios: Vec<f64> =
            self.rounds.iter().map(|(ours, other)| ours.rate() / other.rate().max(1e-9)).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied().unwrap_or(0.0)
    }
}

/// The engine with so many units in flight, against bare SQLite writing the rows that the engine
/// wrote, as many a transaction.
///
/// # Errors
/// When a database cannot be made in `folder`, or does not hold what was written.
pub fn engine_against_bare(
    folder: &Path,
    rounds: u32,
    units: u64,
    in_flight: u64,
) -> Result<Comparison, BenchError> {
    let mut comparison = Comparison::default();
    for round in 0..rounds {
        let (books, bare) = (folder.join(format!("e{round}.db")), folder.join("bare.db"));
        let ours = engine(&books, units, in_flight, 1_000)?;
        let other = bare_sqlite(&books, &bare, in_flight)?;
        comparison.rounds.push((ours, other));
        remove(&books);
        remove(&bare);
    }
    Ok(comparison)
}

/// The engine with every unit on the same owner and seller, against the same units spread over
/// 10,000 accounts.
///
/// # Errors
/// When a database cannot be made in `folder`.
pub fn hot_against_spread(
    folder: &Path,
    rounds: u32,
    units: u64,
    in_flight: u64,
) -> Result<Comparison, BenchError> {
    let mut comparison = Comparison::default();
    for _ in 0..rounds {
        let (hot, spread) = (folder.join("hot.db"), folder.join("spread.db"));
        // Two accounts of its own for every owner, and its two caps beside them.
        let ours = engine(&hot, units, in_flight, 1)?;
        let other = engine(&spread, units, in_flight, 5_000)?;
        comparison.rounds.push((ours, other));
        remove(&hot);
        remove(&spread);
    }
    Ok(comparison)
}

/// Carries out `units` authorizes over so many owners, `in_flight` at a time.
///
/// # Errors
/// When the database cannot be made, or a unit fails.
pub fn engine(path: &Path, units: u64, in_flight: u64, owners: u64) -> Result<Round, BenchError> {
    let clock = Arc::new(Timestamp::now);
    let options = Options { check_lock_order: false, ..Options::file(path, "simulated", clock) };
    let store = Store::open(options)?;
    let (took, cpu) = drive(std::slice::from_ref(&store), units, in_flight, owners)?;
    store.close();
    Ok(Round { units, took, cpu, bytes: std::fs::metadata(path)?.len() })
}

/// Carries out authorizations through these stores, each lane through the next of them.
fn drive(
    stores: &[Store],
    units: u64,
    in_flight: u64,
    owners: u64,
) -> Result<(Duration, Option<Duration>), BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let (start, cpu) = (Instant::now(), cpu_time());
    runtime.block_on(async {
        let mut lanes = tokio::task::JoinSet::new();
        for (lane, store) in (0..in_flight).zip(stores.iter().cycle()) {
            let store = store.clone();
            lanes.spawn(async move {
                for n in (lane..units).step_by(usize::try_from(in_flight).unwrap_or(1)) {
                    store.submit(Authorize::new(n, owners)).await?;
                }
                Ok::<(), crate::SubmitError>(())
            });
        }
        while let Some(lane) = lanes.join_next().await {
            lane??;
        }
        Ok::<(), BenchError>(())
    })?;
    Ok((start.elapsed(), cpu_since(cpu)))
}

/// Every row of a database that the engine made, written again as it would be by hand: one
/// prepared statement a table, `batch` units a transaction, what is dirty once a transaction.
fn bare_sqlite(books: &Path, path: &Path, batch: u64) -> Result<Round, BenchError> {
    let written = Written::read(&Connection::open(books)?)?;
    let conn = Connection::open(path)?;
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "cache_size", crate::sqlite::CACHE_SIZE)?;
    conn.pragma_update(None, "wal_autocheckpoint", 8192)?;
    conn.execute_batch(include_str!("sqlite/0001_books.sql"))?;
    let (start, cpu) = (Instant::now(), cpu_time());
    let batch = usize::try_from(batch)?.max(1);
    for (place, entries) in written.entries.chunks(batch).enumerate() {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        written.write(&conn, entries, place)?;
        conn.execute_batch("COMMIT")?;
    }
    let took = start.elapsed();
    let cpu = cpu_since(cpu);
    let units = u64::try_from(written.entries.len())?;
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(Round { units, took, cpu, bytes: std::fs::metadata(path)?.len() })
}

type Blob = Vec<u8>;
type Listed = (i64, i64, rusqlite::types::Value, rusqlite::types::Value);

/// The rows of one unit.
struct WrittenEntry {
    seq: i64,
    at: i64,
    hash: Blob,
    body: Blob,
    key: Option<Blob>,
    hold: Option<Blob>,
    row: Option<(i64, Blob, Blob, Vec<Listed>)>,
}

struct Written {
    entries: Vec<WrittenEntry>,
    accounts: Vec<(i64, String, i64)>,
    guards: Vec<(i64, Blob, Blob)>,
}

impl Written {
    fn read(conn: &Connection) -> Result<Self, BenchError> {
        let all = |sql: &str| -> Result<Vec<(i64, Blob)>, rusqlite::Error> {
            let mut found = conn.prepare(sql)?;
            found.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        };
        let key = all("SELECT seq, address FROM keys ORDER BY seq")?;
        let hold = all("SELECT opened, id FROM holds ORDER BY opened")?;
        let purchase = "(SELECT no FROM words WHERE text = 'bench_purchase')";
        let mut rows = conn.prepare(&format!(
            "SELECT kind, id, body FROM rows WHERE kind = {purchase} ORDER BY id"
        ))?;
        let mut rows = rows.query([])?;
        let mut found = conn.prepare("SELECT id, list, kind, scope, at FROM lists")?;
        let mut found = found.query([])?;
        let mut lists: HashMap<Blob, Vec<Listed>> = HashMap::new();
        while let Some(place) = found.next()? {
            let listed = (place.get(1)?, place.get(2)?, place.get(3)?, place.get(4)?);
            lists.entry(place.get(0)?).or_default().push(listed);
        }
        let mut entries = Vec::new();
        let mut log = conn.prepare("SELECT seq, at, hash, body FROM log ORDER BY seq")?;
        let mut log = log.query([])?;
        let (mut key, mut hold) = (key.into_iter().peekable(), hold.into_iter().peekable());
        while let Some(found) = log.next()? {
            let seq: i64 = found.get(0)?;
            let row = match rows.next()? {
                None => None,
                Some(row) => {
                    let id: Blob = row.get(1)?;
                    let places = lists.remove(&id).unwrap_or_default();
                    Some((row.get(0)?, id, row.get(2)?, places))
                }
            };
            entries.push(WrittenEntry {
                seq,
                at: found.get(1)?,
                hash: found.get(2)?,
                body: found.get(3)?,
                key: key.next_if(|(at, _)| *at == seq).map(|(_, address)| address),
                hold: hold.next_if(|(at, _)| *at == seq).map(|(_, id)| id),
                row,
            });
        }
        let mut found = conn.prepare("SELECT no, name, debits_pending FROM accounts")?;
        let accounts = found.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let accounts = accounts.collect::<Result<_, _>>()?;
        let guard = format!("SELECT kind, id, body FROM rows WHERE kind <> {purchase}");
        let mut found = conn.prepare(&guard)?;
        let guards = found.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let guards = guards.collect::<Result<_, _>>()?;
        Ok(Self { entries, accounts, guards })
    }

    /// One transaction: its units' rows, and the accounts and guards that they touch, once each.
    fn write(
        &self,
        conn: &Connection,
        entries: &[WrittenEntry],
        place: usize,
    ) -> Result<(), rusqlite::Error> {
        let mut log = conn.prepare_cached("INSERT INTO log VALUES (?1, ?2, ?3, ?4)")?;
        let mut key = conn.prepare_cached("INSERT INTO keys VALUES (?1, ?2)")?;
        let mut hold = conn.prepare_cached("INSERT INTO holds VALUES (?1, 0, ?2, NULL)")?;
        let upsert = "INSERT INTO rows VALUES (?1, ?2, ?3) \
                      ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body";
        let mut row = conn.prepare_cached(upsert)?;
        let mut list = conn.prepare_cached("INSERT INTO lists VALUES (?1, ?2, ?3, ?4, ?5)")?;
        for entry in entries {
            log.execute((entry.seq, entry.at, &entry.hash, &entry.body))?;
            if let Some(address) = &entry.key {
                key.execute((address, entry.seq))?;
            }
            if let Some(id) = &entry.hold {
                hold.execute((id, entry.seq))?;
            }
            if let Some((kind, id, body, places)) = &entry.row {
                row.execute((kind, id, body))?;
                for (name, kind, scope, at) in places {
                    list.execute((name, kind, scope, at, id))?;
                }
            }
        }
        // Owners come round in turn, so a transaction touches the next ones of every kind.
        let upsert = "INSERT INTO accounts VALUES (?1, ?2, ?3, 0, 0, 0, ?4) \
                      ON CONFLICT (no) DO UPDATE SET debits_pending = excluded.debits_pending, \
                      last_seq = excluded.last_seq";
        let mut account = conn.prepare_cached(upsert)?;
        let share = |all: usize, per_unit: usize| {
            let many = entries.len().saturating_mul(per_unit).min(all);
            (place.saturating_mul(many).checked_rem(all.max(1)).unwrap_or(0), many)
        };
        let last = entries.last().map(|entry| entry.seq).unwrap_or_default();
        let (from, many) = share(self.accounts.len(), 4);
        for (no, name, total) in self.accounts.iter().cycle().skip(from).take(many) {
            account.execute((no, name, total, last))?;
        }
        let (from, many) = share(self.guards.len(), 2);
        for (kind, id, body) in self.guards.iter().cycle().skip(from).take(many) {
            row.execute((kind, id, body))?;
        }
        Ok(())
    }
}

fn remove(path: &Path) {
    for end in ["", "-wal", "-shm", ".lock"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        // Not there is as good as removed.
        let _ = std::fs::remove_file(name);
    }
}

/// The process's processor time so far, user and system, in the kernel's ticks of a hundredth of a
/// second; `None` where the system does not tell.
pub fn cpu_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis(user.checked_add(system)?.checked_mul(10)?))
}

fn cpu_since(before: Option<Duration>) -> Option<Duration> {
    cpu_time()?.checked_sub(before?)
}

fn as_float(number: u64) -> f64 {
    // Figures for people; an exact count past 2^32 of anything here would take days.
    u32::try_from(number).map_or(f64::from(u32::MAX), f64::from)
}

/// A guard row of an owner or an agent.
#[derive(Clone, Serialize, Deserialize)]
struct Guard {
    owner: OwnerId,
    paused: bool,
    open_tab: Option<SessionId>,
    recent: Vec<Timestamp>,
}

impl Record for Guard {
    const KIND: &'static str = "bench_guard";
    const RANK: u8 = rank::OWNER;
    fn id(&self) -> String {
        self.owner.to_string()
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Purchase {
    id: TransferId,
    owner: OwnerId,
    agent: AgentId,
    seller: SellerId,
    amount_micros: Micros,
    resource: String,
    state: String,
    held_at: Timestamp,
    expires_at: Timestamp,
}

impl Record for Purchase {
    const KIND: &'static str = "bench_purchase";
    const RANK: u8 = rank::ROW;
    fn id(&self) -> String {
        self.id.to_string()
    }
    fn lists(&self) -> Vec<ListEntry> {
        vec![
            ListEntry::new("bench_all", "", self.id),
            ListEntry::new("bench_of_owner", self.owner, self.id),
            ListEntry::new("bench_of_seller", self.seller, self.id),
        ]
    }
}

/// The unit of the measurements.
struct Authorize {
    id: TransferId,
    owner: OwnerId,
    agent: AgentId,
    seller: SellerId,
    name: String,
}

impl Authorize {
    fn new(n: u64, owners: u64) -> Self {
        let owner = u128::from(n.checked_rem(owners).unwrap_or(0)) + 1;
        // Random to SQLite, the same in every run; clients draw their own names.
        let name = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
        let name = format!("{name:016x}-{n:016x}");
        Self {
            id: TransferId::from_value(
                (1_790_000_000_000 + u128::from(n / 64)) << 80 | u128::from(n),
            ),
            owner: OwnerId::from_value(owner << 70),
            agent: AgentId::from_value(owner << 71),
            seller: SellerId::from_value(owner << 72),
            name,
        }
    }

    fn accounts(&self) -> [AccountId; 5] {
        let window = Window::Session(SessionId::from_value(self.owner.value()));
        [
            Account::PaypalCash.usd(),
            Account::SellerAccrued(self.seller).usd(),
            Account::Limit(Subject::Owner(self.owner), window).usd(),
            Account::Limit(Subject::Agent(self.agent), window).usd(),
            Account::Memo.usd(),
        ]
    }
}

impl Unit for Authorize {
    type Answer = TransferId;

    fn name(&self) -> &'static str {
        "bench_authorize"
    }

    fn key(&self) -> Option<Key> {
        let fingerprint = Fingerprint::of(&[self.name.as_bytes(), b"GET /weather 20000"]);
        let (scope, name) = (self.agent.to_string(), self.name.clone());
        Some(Key { scope, family: "bench", name, fingerprint })
    }

    fn touches(&self, _: &View, _: Timestamp) -> Touches {
        let mut touches = Touches::new();
        touches.row::<Guard>(self.owner);
        touches.row::<Purchase>(self.id);
        touches.hold(self.id);
        for account in self.accounts() {
            touches.account(account);
        }
        touches
    }

    fn decide(&self, view: &View, now: Timestamp) -> Result<Effects<TransferId>, Stop> {
        let guard = view.row::<Guard>(self.owner)?.cloned();
        let mut guard = guard.unwrap_or(Guard {
            owner: self.owner,
            paused: false,
            open_tab: Some(SessionId::from_value(self.owner.value())),
            recent: Vec::new(),
        });
        guard.recent.truncate(7);
        guard.recent.insert(0, now);
        let (amount, room) = (Micros::constant(20_000), Micros::MAX);
        let [cash, seller, owner_cap, agent_cap, memo] = self.accounts();
        let legs = vec![
            Leg::new(cash, seller, amount),
            Leg::new(owner_cap, memo, amount).within(room),
            Leg::new(agent_cap, memo, amount).within(room),
        ];
        let mut effects = Effects::answer(self.id);
        effects.op(Op::Hold { id: self.id, cause: Cause::TabLine, legs });
        effects.put(guard)?;
        effects.put(Purchase {
            id: self.id,
            owner: self.owner,
            agent: self.agent,
            seller: self.seller,
            amount_micros: amount,
            resource: "GET https://api.example.test/weather/amsterdam".to_owned(),
            state: "held".to_owned(),
            held_at: now,
            expires_at: earnest_core::time::after(now, 120),
        })?;
        let data = serde_json::json!({ "purchase": self.id, "amount_micros": amount });
        effects.event("bench.held", &[&self.owner, &self.agent, &self.seller], data);
        effects.bind(self.id);
        Ok(effects)
    }
}
