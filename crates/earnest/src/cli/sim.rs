//! `earnest sim`: the simulated PayPal, and the simulation of the whole engine.

use std::net::SocketAddr;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Args, Subcommand};
use earnest_core::problem::{Code, LocalCode};
use earnest_sim::{Arrangement, Fallen, Lived, Plan, STEPS};
use paypal_sim::{Sim, SimConfig};
use serde_json::json;

use super::failure::{Ended, Failure};
use super::{Style, asked_to_stop};

/// Simulators.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// A simulated PayPal: client id `sim`, secret `sim`.
    Paypal(Paypal),
    /// The whole engine on a simulated disk or on two nodes, while things go wrong: one life a seed.
    Run(Run),
}

/// Runs a simulated PayPal until it is asked to stop.
#[derive(Debug, Args)]
pub struct Paypal {
    /// Where to listen; port 0 picks a free one.
    #[arg(long, default_value = "127.0.0.1:4021", value_name = "ADDRESS")]
    pub listen: SocketAddr,
}

/// Runs seeds until one finds a breach.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// The seed; the first one where there are several.
    #[arg(long, default_value_t = 1, conflicts_with = "seeds")]
    pub seed: u64,
    /// How many seeds, counted up.
    #[arg(long, default_value_t = 1, value_name = "N", conflicts_with = "seeds", value_parser = some)]
    pub count: u64,
    /// From the first seed up to, and without, the second.
    #[arg(long, value_name = "A..B", value_parser = seeds)]
    pub seeds: Option<Range<u64>>,
    /// How much is done in each life before it has to drain.
    #[arg(long, default_value_t = STEPS, value_name = "N", value_parser = some)]
    pub steps: u64,
    /// `disk`, `nodes` or `quiet`; each seed has its own unless this says otherwise.
    #[arg(long, value_parser = arrangement)]
    pub arrangement: Option<Arrangement>,
    /// How many lives at once.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = some)]
    pub jobs: u64,
    /// Tell every step.
    #[arg(long)]
    pub trace: bool,
}

fn some(text: &str) -> Result<u64, String> {
    let number = text.parse().map_err(|_| format!("`{text}` is not a whole number"))?;
    if number == 0 { Err("none would show nothing".to_owned()) } else { Ok(number) }
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let range =
        text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.filter(|range| !range.is_empty()).ok_or_else(|| format!("`{text}` is not like 1..2001"))
}

fn arrangement(text: &str) -> Result<Arrangement, String> {
    let found = Arrangement::ALL.into_iter().find(|one| one.as_str() == text);
    found.ok_or_else(|| format!("`{text}` is none of disk, nodes, quiet"))
}

/// How much of a life that fell is told.
const LAST_STEPS: usize = 20;

/// Runs the command.
pub async fn run(command: SimCommand, style: &Style) -> Ended {
    match command {
        SimCommand::Paypal(command) => run_paypal(command, style).await,
        SimCommand::Run(command) => {
            let style = style.clone();
            let ran = tokio::task::spawn_blocking(move || run_seeds(&command, &style)).await;
            ran.map_err(|why| Failure::of(Code::Internal, why.to_string()))?
        }
    }
}

/// The address is written to stdout once it serves.
async fn run_paypal(Paypal { listen }: Paypal, style: &Style) -> Ended {
    let config = SimConfig { listen, relaxed_webhook_urls: true, ..SimConfig::default() };
    let sim = Sim::start(config).await;
    let sim = sim.map_err(|why| {
        let why = format!("cannot listen on {listen}: {why}");
        Failure::local(LocalCode::StartFailed, 1, why).next(super::up::ELSEWHERE)
    })?;
    let url = sim.base_url().to_owned();
    let said = style.object(&json!({ "url": url }), || url.clone());
    style.talk(&format!("simulated PayPal at {url}; client id sim, secret sim"));
    if said.is_ok() {
        asked_to_stop().await;
    }
    sim.shutdown().await;
    said.map(|()| ExitCode::SUCCESS)
}

/// Every seed in turn, several at once if asked; the first that falls ends it.
fn run_seeds(command: &Run, style: &Style) -> Ended {
    let counted = || {
        let end = command.seed.checked_add(command.count)?;
        Some(command.seed..end)
    };
    let seeds = command.seeds.clone().or_else(counted).ok_or_else(|| {
        let why = format!("there are no {} seeds from {} on", command.count, command.seed);
        Failure::usage(why)
    })?;
    let next = AtomicU64::new(seeds.start);
    let failed = Mutex::new(None);
    let is_over = || failed.lock().map_or(true, |failed| failed.is_some());
    let work = || {
        while !is_over() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            if let Err(failure) = run_seed(seed, command, style)
                && let Ok(mut failed) = failed.lock()
            {
                failed.get_or_insert(failure);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..command.jobs {
            scope.spawn(work);
        }
        work();
    });
    match failed.into_inner() {
        Ok(None) => Ok(ExitCode::SUCCESS),
        Ok(Some(failure)) => Err(failure),
        Err(_) => Err(Failure::of(Code::Internal, "a run ended without a word")),
    }
}

fn run_seed(seed: u64, command: &Run, style: &Style) -> Result<(), Failure> {
    let arrangement = command.arrangement.unwrap_or(Arrangement::of(seed));
    let plan = Plan { steps: command.steps, arrangement, ..Plan::new(seed) };
    style.talk(&format!("seed {seed}, {arrangement}, {} steps", plan.steps));
    // What goes wrong in there is meant to, and not worth a word in the log.
    let quietly = tracing::subscriber::NoSubscriber::default();
    match tracing::subscriber::with_default(quietly, || earnest_sim::run(&plan)) {
        Ok(lived) => tell(&plan, &lived, command.trace, style),
        Err(fallen) => Err(breach(&plan, &fallen, command.trace, style)),
    }
}

fn tell(plan: &Plan, lived: &Lived, trace: bool, style: &Style) -> Result<(), Failure> {
    if trace {
        lived.trace.iter().for_each(|line| style.talk(line));
    }
    let Lived { digest, entries, power_cuts, deaths, troubles, .. } = lived;
    let (seed, arrangement) = (plan.seed, plan.arrangement.as_str());
    let value = json!({ "seed": seed, "arrangement": arrangement, "digest": digest,
        "entries": entries, "power_cuts": power_cuts, "deaths": deaths, "troubles": troubles });
    style.object(&value, || {
        format!(
            "seed {seed} {digest}: {entries} entries, {power_cuts} power cuts, {deaths} processes \
             ended, {troubles} troubles of the disk"
        )
    })
}

fn breach(plan: &Plan, fallen: &Fallen, trace: bool, style: &Style) -> Failure {
    let Plan { seed, steps, arrangement, .. } = plan;
    let from = if trace { 0 } else { fallen.trace.len().saturating_sub(LAST_STEPS) };
    fallen.trace.iter().skip(from).for_each(|line| style.talk(line));
    let again =
        format!("earnest sim run --seed {seed} --arrangement {arrangement} --steps {steps}");
    let after = fallen.trace.len();
    let why = format!("seed {seed}, {arrangement}, after {after} steps: {}", fallen.why);
    Failure::local(LocalCode::BreachFound, 1, why).next(&again)
}
