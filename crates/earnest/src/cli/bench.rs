//! `earnest bench`: how fast, as ratios against calibrations that run in turns with what is measured.
//!
//! A ratio means the same on any machine; a rate does not, so rates are only shown beside it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use clap::Args;
use earnest_core::admin::{NewLimits, PutOrigin, SetCredit, SetPolicy};
use earnest_core::authorize::{AuthorizeRequest, Authorized};
use earnest_core::id::{OwnerId, PurchaseId, Seed, SellerId, VoucherId};
use earnest_core::jws::{Purpose, Signer};
use earnest_core::money::Micros;
use earnest_core::policy::{Limits, PolicySubject};
use earnest_core::quote::body_digest;
use earnest_core::time::{Timestamp, after};
use earnest_core::voucher::Claims;
use earnest_store::bench::{Comparison, cpu_time, engine_against_bare, hot_against_spread, server};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use super::Style;
use crate::config::Config;
use crate::serve::{Running, Start};

/// What went wrong, in one sentence.
type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Measures this build on this machine.
#[derive(Debug, Args)]
pub struct Bench {
    /// Rounds of each comparison; the median counts.
    #[arg(long, default_value_t = 5)]
    pub rounds: u32,
    /// How long each side of a round of HTTP runs, in seconds.
    #[arg(long, default_value_t = 3)]
    pub seconds: u64,
    /// Connections at once.
    #[arg(long, default_value_t = 256)]
    pub connections: usize,
    /// Units of each side of a round of the engine.
    #[arg(long, default_value_t = 50_000)]
    pub units: u64,
    /// Measures the engine on this PostgreSQL database instead, in schemas of its own that it drops
    /// again: postgres://…
    #[arg(long, value_name = "URL", value_parser = super::secret)]
    pub database: Option<earnest_paypal::Secret>,
}

/// Runs the command.
pub async fn run(command: Bench, style: &Style) -> ExitCode {
    if cfg!(debug_assertions) && !style.quiet {
        eprintln!("this is a debug build: build with --release for figures that mean something");
    }
    let dir = std::env::temp_dir().join(format!("earnest-bench-{}", crate::source::random_token()));
    let measured = match &command.database {
        Some(url) => on_a_server(&command, url.expose(), style).await,
        None => measure(&command, style, &dir).await,
    };
    // There is none where a server is measured.
    if let Err(why) = std::fs::remove_dir_all(&dir)
        && why.kind() != std::io::ErrorKind::NotFound
    {
        eprintln!("earnest: could not remove `{}`: {why}", dir.display());
    }
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("earnest: {why}");
            ExitCode::from(1)
        }
    }
}

async fn measure(command: &Bench, style: &Style, dir: &Path) -> Result<(), Failed> {
    std::fs::create_dir_all(dir)?;
    let (authorize, replay) = authorize_against_sign(command, dir).await?;
    show(style, "full durable authorize over HTTP / bare parse+sign", 0.75, authorize);
    show(style, "idempotent replay / fresh authorize", 1.5, replay);
    let (rounds, units, folder) = (command.rounds, command.units, dir.to_owned());
    let compared =
        tokio::task::spawn_blocking(move || engine_against_bare(&folder, rounds, units, 1_000))
            .await?;
    show(
        style,
        "engine alone, 1,000 in flight / bare SQLite writing the same rows",
        0.75,
        of_store(&compared?),
    );
    let folder = dir.to_owned();
    let compared =
        tokio::task::spawn_blocking(move || hot_against_spread(&folder, rounds, units, 1_000))
            .await?;
    show(style, "one hot account / 10,000 accounts", 1.0, of_store(&compared?));
    Ok(())
}

/// The engine on a server. A database that commits more quickly than a disk
/// does (`fsync=off`) makes batches worth less, and says nothing of one that keeps its word.
async fn on_a_server(command: &Bench, url: &str, style: &Style) -> Result<(), Failed> {
    let (url, style) = (url.to_owned(), style.clone());
    let plan = server::Plan {
        rounds: command.rounds,
        units: command.units,
        calls: command.units / 25,
        in_flight: 1_000,
    };
    tokio::task::spawn_blocking(move || {
        let spread = server::batched_against_calls(&url, plan, false)?;
        let name = "PostgreSQL, 10,000 accounts: batches / one call per request on 8 connections";
        show(&style, name, 10.0, of_store(&spread));
        let hot = server::batched_against_calls(&url, plan, true)?;
        let name = "PostgreSQL, one hot account: batches / one call per request on 8 connections";
        show(&style, name, 50.0, of_store(&hot));
        let hot = server::hot_against_spread(&url, plan)?;
        show(&style, "PostgreSQL: one hot account / 10,000 accounts", 0.9, of_store(&hot));
        let nodes = server::two_nodes_against_one(&url, plan)?;
        show(&style, "PostgreSQL: two nodes / one node on the same cores", 0.8, of_store(&nodes));
        Ok(())
    })
    .await?
}

/// A comparison, ready to be shown: the medians of both sides.
struct Row {
    ratio: f64,
    ours: f64,
    other: f64,
    ours_cpu: Option<f64>,
    other_cpu: Option<f64>,
}

fn of_store(comparison: &Comparison) -> Row {
    let ours = comparison.rounds.iter().map(|(ours, _)| ours);
    let other = comparison.rounds.iter().map(|(_, other)| other);
    Row {
        ratio: comparison.ratio(),
        ours: median(ours.clone().map(|round| round.rate()).collect()),
        other: median(other.clone().map(|round| round.rate()).collect()),
        ours_cpu: Some(median(ours.filter_map(|round| round.cpu_micros()).collect())),
        other_cpu: Some(median(other.filter_map(|round| round.cpu_micros()).collect())),
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

fn show(style: &Style, name: &str, goal: f64, row: Row) {
    if style.json {
        println!(
            "{}",
            json!({
                "name": name, "ratio": row.ratio, "goal": goal,
                "ours_per_second": row.ours, "calibration_per_second": row.other,
                "ours_cpu_micros": row.ours_cpu, "calibration_cpu_micros": row.other_cpu,
            })
        );
        return;
    }
    let cpu = |cpu: Option<f64>| cpu.map_or_else(|| "?".to_owned(), |cpu| format!("{cpu:.0}"));
    println!("{name}");
    println!(
        "  ratio {:.2} (goal {goal:.2})   {:.0}/s against {:.0}/s   CPU {} µs against {} µs an operation",
        row.ratio,
        row.ours,
        row.other,
        cpu(row.ours_cpu),
        cpu(row.other_cpu)
    );
}

/// One side of a round.
#[derive(Clone, Copy)]
struct Side {
    rate: f64,
    cpu: Option<f64>,
}

/// How many purchases one round of replays goes through, over and over.
const REPLAYED: u64 = 1_000;

/// Fresh authorizations against the calibration, and replays against fresh authorizations.
async fn authorize_against_sign(command: &Bench, dir: &Path) -> Result<(Row, Row), Failed> {
    let config = Config { data: Some(dir.join("data")), ..Config::simulated() };
    let earnest = Running::start(config, Start::default()).await?;
    let dev = earnest.dev.clone().ok_or("no development keys")?;
    let (owner, seller): (OwnerId, SellerId) = (dev.owner.id.parse()?, dev.seller.id.parse()?);
    furnish(&earnest, owner, seller).await?;
    let body = body(seller)?;
    let bare = TcpListener::bind(("127.0.0.1", 0)).await?;
    let bare_address = bare.local_addr()?;
    let calibration = tokio::spawn(async move { axum::serve(bare, calibration()).await });
    let load = Load {
        path: "/v1/authorize",
        key: format!("Bearer {}", dev.agent.key.expose()),
        body,
        connections: command.connections,
        time: Duration::from_secs(command.seconds),
        ids: Ids::Fresh,
    };
    let (mut sides, mut replays) = (Vec::new(), Vec::new());
    // One short round of each that does not count: connections, caches, allocator.
    let warm = Load { time: Duration::from_millis(500), ..load.clone() };
    warm.run(bare_address, 201).await?;
    warm.run(earnest.address, 201).await?;
    for round in 0..command.rounds {
        let other = load.run(bare_address, 201).await?;
        let ours = load.run(earnest.address, 201).await?;
        // Of each round anew: a voucher lives shorter than all rounds together may take, and what is
        // re-issued is no replay.
        let ids = Ids::Again { round };
        let first = Load { ids: ids.once(), ..load.clone() };
        first.run(earnest.address, 201).await?;
        let replay = Load { ids, ..load.clone() }.run(earnest.address, 201).await?;
        replays.push((replay, ours));
        sides.push((ours, other));
    }
    calibration.abort();
    earnest.stop().await;
    Ok((of_sides(&sides), of_sides(&replays)))
}

fn of_sides(sides: &[(Side, Side)]) -> Row {
    Row {
        ratio: median(sides.iter().map(|(ours, other)| ours.rate / other.rate.max(1e-9)).collect()),
        ours: median(sides.iter().map(|(ours, _)| ours.rate).collect()),
        other: median(sides.iter().map(|(_, other)| other.rate).collect()),
        ours_cpu: Some(median(sides.iter().filter_map(|(ours, _)| ours.cpu).collect())),
        other_cpu: Some(median(sides.iter().filter_map(|(_, other)| other.cpu).collect())),
    }
}

/// An owner who can pay, with caps that hold every purchase without ever being reached.
async fn furnish(earnest: &Running, owner: OwnerId, seller: SellerId) -> Result<(), Failed> {
    let store = &earnest.app.store;
    let origin = "http://127.0.0.1:9".to_owned();
    store.submit(PutOrigin { seller, origin, proved: true }).await?;
    let vault = crate::flow::vault::begin(&earnest.app, owner).await?;
    let sim = earnest.sim.as_ref().ok_or("no simulator")?;
    let token = vault.setup_token.ok_or("no setup token")?;
    sim.approve(&token, None).map_err(|why| why.to_string())?;
    crate::flow::vault::confirm(&earnest.app, vault.id).await?;
    let line = Some(Micros::MAX);
    store.submit(SetCredit { owner, line: Some(line), unfreeze: false }).await?;
    let cap = Some(Micros::constant(Micros::MAX.get() / 2));
    let limits = Limits { session_cap_micros: cap, day_cap_micros: cap, ..Limits::default() };
    let limits = NewLimits::Written(Box::new(limits));
    let subject = PolicySubject::Owner(owner);
    store.submit(SetPolicy { owner, subject, version: 1, limits }).await?;
    Ok(())
}

fn body(seller: SellerId) -> Result<Bytes, Failed> {
    let quote = json!({
        "v": 1,
        "id": "qte_00000000000000000000000001",
        "seller": seller,
        "listing": "GET /weather/*",
        "method": "GET",
        "url": "http://127.0.0.1:9/weather/delft",
        "body_sha256": body_digest(b""),
        "amount_micros": 20_000,
        "currency": "USD",
        "expires_at": after(Timestamp::now(), 3_600),
    });
    let body: Value = json!({ "quote": quote, "max_price": "$0.25" });
    Ok(Bytes::from(serde_json::to_vec(&body)?))
}

/// Parses the same body and signs a voucher of the same claims; knows no key, policy or book.
fn calibration() -> Router {
    let signer = Arc::new(Signer::new(Purpose::Voucher, &[7; 32]));
    Router::new().route("/v1/authorize", post(parse_and_sign)).with_state(signer)
}

async fn parse_and_sign(
    State(signer): State<Arc<Signer>>,
    body: Bytes,
) -> Result<(http::StatusCode, Json<Authorized>), http::StatusCode> {
    let refuse = |_| http::StatusCode::BAD_REQUEST;
    let request: AuthorizeRequest = serde_json::from_slice(&body).map_err(refuse)?;
    let quote = request.quote.read(Micros::MAX).map_err(|_| http::StatusCode::BAD_REQUEST)?;
    let now = Timestamp::now();
    let seed = Seed { unix_ms: 1, random: u128::from_be_bytes(crate::source::random_bytes()) };
    let claims = Claims {
        iss: "http://127.0.0.1:4020".to_owned(),
        aud: quote.seller,
        sub: PurchaseId::new(seed),
        jti: VoucherId::new(seed),
        iat: now.as_second(),
        exp: now.as_second().saturating_add(120),
        amount_micros: quote.price.most(),
        max_micros: None,
        currency: quote.currency,
        quote: quote.id,
        listing: quote.listing,
        method: quote.request.method,
        resource: quote.request.url,
        body: quote.request.body_sha256,
    };
    let voucher = signer.sign(&claims).map_err(refuse)?;
    let answer = Authorized {
        purchase: claims.sub,
        voucher,
        expires_at: after(now, 120),
        amount_micros: claims.amount_micros,
        currency: claims.currency,
    };
    Ok((http::StatusCode::CREATED, Json(answer)))
}

/// Under which ids requests are made.
#[derive(Clone, Copy)]
enum Ids {
    /// Each under one of its own.
    Fresh,
    /// Those of a round, each once.
    Once { round: u32 },
    /// Those of a round, over and over.
    Again { round: u32 },
}

impl Ids {
    fn once(self) -> Self {
        match self {
            Self::Again { round } => Self::Once { round },
            other => other,
        }
    }

    /// The name of the `n`th request, if there is one.
    fn name(self, n: u64) -> Option<String> {
        match self {
            Self::Fresh => Some(format!("bench-{n}")),
            Self::Once { round } => (n < REPLAYED).then(|| format!("again-{round}-{n}")),
            Self::Again { round } => Some(format!("again-{round}-{}", n % REPLAYED)),
        }
    }
}

/// The same requests over and over.
#[derive(Clone)]
struct Load {
    path: &'static str,
    key: String,
    body: Bytes,
    connections: usize,
    time: Duration,
    ids: Ids,
}

impl Load {
    async fn run(&self, address: std::net::SocketAddr, expect: u16) -> Result<Side, Failed> {
        static FRESH: AtomicU64 = AtomicU64::new(0);
        let own = Arc::new(AtomicU64::new(0));
        let done = Arc::new(AtomicU64::new(0));
        let before = cpu_time();
        let begin = Instant::now();
        let until = begin + self.time;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..self.connections {
            let (load, done, own) = (self.clone(), done.clone(), own.clone());
            tasks.spawn(async move {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let (mut send, connection) =
                    hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
                let driver = tokio::spawn(connection);
                while Instant::now() < until {
                    let next = if matches!(load.ids, Ids::Fresh) { &FRESH } else { &*own };
                    let Some(id) = load.ids.name(next.fetch_add(1, Ordering::Relaxed)) else {
                        break;
                    };
                    let request = http::Request::post(load.path)
                        .header("host", "127.0.0.1")
                        .header("content-type", "application/json")
                        .header("authorization", &load.key)
                        .header("idempotency-key", id)
                        .body(Full::new(load.body.clone()))?;
                    let answer = send.send_request(request).await?;
                    let status = answer.status().as_u16();
                    let body = answer.into_body().collect().await?.to_bytes();
                    if status != expect {
                        return Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into());
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                drop(send);
                let _ = driver.await;
                Ok::<(), Failed>(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        let took = begin.elapsed().as_secs_f64();
        let count = done.load(Ordering::Relaxed);
        let used = cpu_time()
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before).as_secs_f64());
        let count = f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        Ok(Side { rate: count / took, cpu: used.map(|used| used * 1e6 / count.max(1.0)) })
    }
}
