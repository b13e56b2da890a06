//! `earnest treasurer`: what the treasurer's rules cost, beside the least that anybody could pay.

mod shapes;

use earnest_core::problem::Code;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use earnest_core::purchase::{Purchase, PurchaseState};
use earnest_core::replay::{Figures, Line, Recording};
use earnest_core::settings::Settings;
use earnest_paypal::Mode;
use earnest_store::Place;
use serde_json::{Value, json};

use super::failure::{Ended, Failure};
use super::output::{money, text};
use super::{Style, Where};
use crate::config::{Config, rules_in};

/// The most tabs that are made up.
const MOST_TABS: u32 = 100_000;
/// The most lines of one recording: finding its optimum takes their square.
const MOST_LINES: usize = 20_000;

/// The treasurer.
#[derive(Debug, Subcommand)]
pub enum Treasurer {
    /// Plays tabs through the treasurer's rules, and says what they paid in fees against the
    /// cheapest settlements that anybody could have made who knew all purchases beforehand.
    ///
    /// Made-up tabs of six shapes, unless recorded ones are named. The rules are those of real
    /// money, with what your settings say.
    Replay(Replay),
}

/// Which tabs.
#[derive(Debug, Args)]
pub struct Replay {
    /// How many tabs are made up.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_TABS)))]
    pub tabs: u32,
    /// What they are made up from; the same seed makes the same tabs.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Recorded tabs instead: one JSON object a line, {"shape":"…","lines":[{"at":"…","amount_micros":1}]}.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tabs", "seed", "books"])]
    pub file: Option<PathBuf>,
    /// The purchases in the books of --data instead, owner by owner.
    #[arg(long, conflicts_with_all = ["tabs", "seed"])]
    pub books: bool,
    /// Write the tabs that would be played, and play nothing.
    #[arg(long)]
    pub export: bool,
    /// Whose settings and books.
    #[command(flatten)]
    pub place: Where,
}

/// Runs the command.
pub async fn run(command: Treasurer, style: &Style) -> Ended {
    let Treasurer::Replay(Replay { tabs, seed, file, books, export, place }) = command;
    let overrides = place.overrides()?;
    let settings = rules_in(Mode::Live, &overrides)?;
    let recordings = match &file {
        Some(path) => read(path)?,
        None if books => {
            let data = overrides.data.clone();
            let database = Config::load(overrides)?.database;
            let place = super::books_at(database, data)?;
            tokio::task::block_in_place(|| of_books(&place))?
        }
        None => shapes::recordings(tabs, seed),
    };
    if export {
        for recording in &recordings {
            style.data(&json!(recording).to_string())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let played = tokio::task::spawn_blocking(move || figures(&recordings, &settings)).await;
    let played = played.map_err(|why| Failure::of(Code::Internal, why.to_string()))?;
    show(style, played)?;
    Ok(ExitCode::SUCCESS)
}

/// The figures by shape, and of everything at the end.
fn figures(recordings: &[Recording], settings: &Settings) -> Vec<(String, Figures)> {
    let mut by_shape: BTreeMap<String, Figures> = BTreeMap::new();
    let mut all = Figures::default();
    for recording in recordings {
        let one = Figures::of(recording, settings);
        all = all.and(one);
        let sum = by_shape.entry(recording.shape.clone()).or_default();
        *sum = sum.and(one);
    }
    by_shape.into_iter().chain([("all".to_owned(), all)]).collect()
}

fn show(style: &Style, played: Vec<(String, Figures)>) -> Result<(), Failure> {
    let rows = played.into_iter().map(|(shape, figures)| {
        let mut row = json!({
            "shape": shape,
            "ratio": decimal(figures.ratio_ppm()),
            "unbound_ratio": decimal(figures.unbound_ratio_ppm()),
        });
        if let (Some(row), Value::Object(figures)) = (row.as_object_mut(), json!(figures)) {
            row.extend(figures);
        }
        row
    });
    let rows: Vec<Value> = rows.collect();
    let heads = [
        "SHAPE",
        ">TABS",
        ">PURCHASES",
        ">REFUSED",
        ">SPENT",
        ">CAPTURES",
        ">FEES",
        ">OPTIMUM",
        ">RATIO",
        ">ENDS IGNORED",
    ];
    style.rows(&rows, heads, |row| {
        let captures = format!("{} ({})", text(row, "captures"), text(row, "optimum_captures"));
        [
            text(row, "shape"),
            text(row, "tabs"),
            text(row, "lines"),
            text(row, "refused"),
            money(row, "lines_micros"),
            captures,
            money(row, "fees_micros"),
            money(row, "optimum_fees_micros"),
            text(row, "ratio"),
            text(row, "unbound_ratio"),
        ]
    })?;
    style.talk(
        "captures of the optimum in brackets; the last column is against an optimum that need not \
         settle when a session ends",
    );
    Ok(())
}

/// Millionths with three decimals.
fn decimal(ppm: u64) -> String {
    let thousandths = ppm.saturating_add(500) / 1_000;
    format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000)
}

/// Recorded tabs from a file.
fn read(path: &Path) -> Result<Vec<Recording>, Failure> {
    let content = std::fs::read_to_string(path).map_err(|why| Failure::file(path, why))?;
    let lines = (1..).zip(content.lines()).filter(|(_, line)| !line.trim().is_empty());
    let read = lines.map(|(number, line)| {
        let wrong = |why: String| Failure::file(path, format!("line {number}: {why}"));
        let recording: Recording =
            serde_json::from_str(line).map_err(|why| wrong(why.to_string()))?;
        if !recording.lines.is_sorted_by_key(|line| line.at) {
            return Err(wrong("its lines are not in the order of time".to_owned()));
        }
        if recording.lines.len() > MOST_LINES {
            return Err(wrong(format!("more than {MOST_LINES} lines")));
        }
        Ok(recording)
    });
    read.collect()
}

/// What was billed in the books, owner by owner. No id leaves them.
fn of_books(place: &Place) -> Result<Vec<Recording>, Failure> {
    let mut owners: BTreeMap<String, Vec<Line>> = BTreeMap::new();
    let looked = earnest_store::audit::look(place, |books| {
        let mut after: Option<String> = None;
        loop {
            let page = books.all::<Purchase>(after.as_deref(), 1_000)?;
            for purchase in page.items {
                let line = billed(&purchase);
                owners.entry(purchase.owner.to_string()).or_default().extend(line);
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    });
    looked.map_err(|why| super::unreadable(place, why))?;
    Ok(owners.into_values().flat_map(recorded).collect())
}

fn billed(purchase: &Purchase) -> Option<Line> {
    let billed = (purchase.state == PurchaseState::Billed).then_some(purchase.billed_micros?)?;
    Some(Line { at: purchase.billed_at?, amount_micros: billed })
}

/// The lines of one owner, in pieces of which the optimum can be found.
fn recorded(mut lines: Vec<Line>) -> Vec<Recording> {
    lines.sort_by_key(|line| line.at);
    let piece = |lines: &[Line]| Recording { shape: "recorded".to_owned(), lines: lines.to_vec() };
    lines.chunks(MOST_LINES).map(piece).collect()
}
