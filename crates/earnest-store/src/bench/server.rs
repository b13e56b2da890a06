//! The engine on a PostgreSQL server: batches against one call a request, one hot account against
//! many, two nodes against one.
//!
//! The other side of the first two is what one would write by hand and call fast: a function in the
//! database that does everything a purchase needs in one round trip and one transaction of its own,
//! with the same rows but without the log that all of them share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use earnest_core::time::Timestamp;
use tokio_postgres::types::Type;

use super::{BenchError, Comparison, Round, cpu_since, cpu_time, drive};
use crate::postgres::{Failure, Link, Server};
use crate::{Options, Store};

/// How many connections call one by one.
const CALLERS: u64 = 8;

/// How many owners there are where work is spread: each has two accounts of its own.
const SPREAD: u64 = 5_000;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Rounds of each comparison.
    pub rounds: u32,
    /// Units of each round of the engine.
    pub units: u64,
    /// Units of each round of calls one by one, which are slower.
    pub calls: u64,
    /// Units in flight.
    pub in_flight: u64,
}

/// A place of its own for one round: dropped at the end, whatever comes of it.
struct Scratch {
    link: Link,
    name: String,
    url: String,
}

impl Scratch {
    fn new(base: &str) -> Result<Self, BenchError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("earnest_bench_{}_{count}", std::process::id());
        let link = Server::parse(base)?.connect().map_err(said)?;
        link.run(&format!("CREATE SCHEMA {name}")).map_err(said)?;
        let sign = if base.contains('?') { '&' } else { '?' };
        let url = format!("{base}{sign}options=-csearch_path%3D{name}");
        Ok(Self { link, name, url })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be dropped is named by its own name; nothing else hangs on it.
        let _ = self.link.run(&format!("DROP SCHEMA {} CASCADE", self.name));
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
fn said(why: Failure) -> BenchError {
    why.to_string().into()
}

/// Batches of the engine against one call a request over eight connections, all on one owner's
/// accounts where `hot`, else spread over 10,000.
///
/// # Errors
/// When the server refuses, or a unit fails.
pub fn batched_against_calls(url: &str, plan: Plan, hot: bool) -> Result<Comparison, BenchError> {
    let owners = if hot { 1 } else { SPREAD };
    let mut comparison = Comparison::default();
    for _ in 0..plan.rounds {
        let ours = nodes(url, 1, plan, owners)?;
        let other = calls(url, plan.calls, owners)?;
        comparison.rounds.push((ours, other));
    }
    Ok(comparison)
}

/// The engine with every unit on the same owner and seller, against the same units spread over
/// 10,000 accounts.
///
/// # Errors
/// As [`batched_against_calls`].
pub fn hot_against_spread(url: &str, plan: Plan) -> Result<Comparison, BenchError> {
    compare(plan, |owners| nodes(url, 1, plan, owners), [1, SPREAD])
}

/// Two nodes on one database against one, with as many units in flight in all and on the same
/// processors.
///
/// # Errors
/// As [`batched_against_calls`].
pub fn two_nodes_against_one(url: &str, plan: Plan) -> Result<Comparison, BenchError> {
    compare(plan, |count| nodes(url, count, plan, SPREAD), [2, 1])
}

fn compare(
    plan: Plan,
    run: impl Fn(u64) -> Result<Round, BenchError>,
    [ours, other]: [u64; 2],
) -> Result<Comparison, BenchError> {
    let rounds = (0..plan.rounds).map(|_| Ok((run(ours)?, run(other)?)));
    Ok(Comparison { rounds: rounds.collect::<Result<_, BenchError>>()? })
}

/// Carries out units over so many stores of one database.
fn nodes(base: &str, count: u64, plan: Plan, owners: u64) -> Result<Round, BenchError> {
    let scratch = Scratch::new(base)?;
    let open = |_| {
        let options = Options::server(&scratch.url, "simulated", Arc::new(Timestamp::now));
        Store::open(Options { check_lock_order: false, ..options })
    };
    let stores = (0..count).map(open).collect::<Result<Vec<_>, _>>()?;
    let (took, cpu) = drive(&stores, plan.units, plan.in_flight, owners)?;
    stores.iter().for_each(Store::close);
    let bytes = "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c \
                 JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE c.relkind = 'r' AND n.nspname = $1";
    let found = scratch.link.query(bytes, &[(&scratch.name, Type::TEXT)]).map_err(said)?;
    let bytes = found.first().map(|row| row.try_get::<_, i64>(0)).transpose()?;
    let bytes = u64::try_from(bytes.unwrap_or_default())?;
    Ok(Round { units: plan.units, took, cpu, bytes })
}

/// The tables and the function of the other side. Bodies have the sizes of the engine's own rows.
const BY_HAND: &str = "
CREATE TABLE keys (address bytea PRIMARY KEY, purchase bytea NOT NULL);
CREATE TABLE accounts (no bigint PRIMARY KEY, pending bigint NOT NULL, most bigint NOT NULL)
    WITH (fillfactor = 70);
CREATE TABLE holds (id bytea PRIMARY KEY, state smallint NOT NULL, body bytea NOT NULL);
CREATE TABLE guards (id bigint PRIMARY KEY, body bytea NOT NULL) WITH (fillfactor = 80);
CREATE TABLE purchases (id bytea PRIMARY KEY, owner bigint NOT NULL, seller bigint NOT NULL,
    body bytea NOT NULL);
CREATE INDEX ON purchases (owner, id);
CREATE INDEX ON purchases (seller, id);
CREATE TABLE events (seq bigserial PRIMARY KEY, body bytea NOT NULL);

CREATE FUNCTION buy(key bytea, purchase bytea, whose bigint, amount bigint, body bytea)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    room boolean;
BEGIN
    INSERT INTO keys VALUES (key, purchase) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM 1 FROM guards WHERE id = whose FOR UPDATE;
    -- The caps, which may refuse; in the order of their numbers, as everybody locks them.
    SELECT bool_and(pending + amount <= most) INTO room FROM
        (SELECT pending, most FROM accounts WHERE no IN (4 * whose, 4 * whose + 1)
         ORDER BY no FOR UPDATE) caps;
    IF NOT room THEN RETURN false; END IF;
    UPDATE accounts SET pending = pending + amount
        WHERE no IN (4 * whose, 4 * whose + 1, 4 * whose + 2);
    INSERT INTO holds VALUES (purchase, 0, body);
    UPDATE guards SET body = buy.body WHERE id = whose;
    INSERT INTO purchases VALUES (purchase, whose, whose, body);
    INSERT INTO events (body) VALUES (body);
    RETURN true;
END $$;
";

/// Carries out units one call each.
fn calls(base: &str, units: u64, owners: u64) -> Result<Round, BenchError> {
    let scratch = Scratch::new(base)?;
    let set = |sql: &str| scratch.link.run(sql).map_err(said);
    set(&format!("SET search_path = {}", scratch.name))?;
    set(BY_HAND)?;
    set(&format!(
        "INSERT INTO guards SELECT n, decode(repeat('61', 200), 'hex') FROM generate_series(0, {owners}) n;
         INSERT INTO accounts SELECT n, 0, {} FROM generate_series(0, 4 * {owners} + 3) n;
         ANALYZE",
        i64::MAX
    ))?;
    let servers = (0..CALLERS).map(|_| Server::parse(&scratch.url));
    let links = servers
        .map(|server| server?.connect().map_err(said))
        .collect::<Result<Vec<_>, BenchError>>()?;
    let (start, cpu) = (Instant::now(), cpu_time());
    std::thread::scope(|scope| {
        let lanes = (0..CALLERS).zip(&links).map(|(lane, link)| {
            scope.spawn(move || {
                let body = vec![b'a'; 200];
                for n in (lane..units).step_by(usize::try_from(CALLERS).unwrap_or(1)) {
                    let name = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
                    let (key, id) = (name.to_be_bytes().repeat(2), n.to_be_bytes().repeat(2));
                    let whose = i64::try_from(n.checked_rem(owners).unwrap_or(0))?;
                    let answer = link.query(
                        "SELECT buy($1, $2, $3, 20000, $4)",
                        &[
                            (&key, Type::BYTEA),
                            (&id, Type::BYTEA),
                            (&whose, Type::INT8),
                            (&body, Type::BYTEA),
                        ],
                    );
                    let answer = answer.map_err(said)?;
                    if !answer.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
                        return Err("a call did not buy".into());
                    }
                }
                Ok::<(), BenchError>(())
            })
        });
        let lanes: Vec<_> = lanes.collect();
        lanes
            .into_iter()
            .try_for_each(|lane| lane.join().map_err(|_| BenchError::from("a caller panicked"))?)
    })?;
    let (took, cpu) = (start.elapsed(), cpu_since(cpu));
    Ok(Round { units, took, cpu, bytes: 0 })
}
