//! `earnest demo`: the real parts over loopback HTTP, offline, with nothing to configure.
//!
//! Every figure it shows is read from the books, the simulator or an answer, and compared with what
//! has to come out; the demo fails when one differs.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use earnest_core::problem::Code;
use earnest_core::reconcile;
use earnest_core::time::Timestamp;
use earnest_store::{Apart, Url};
use serde_json::{Value, json};

use super::{Style, asked_to_stop};
use crate::config::Config;
use crate::serve::{Running, Start};

pub mod scene;
pub mod story;

use scene::Scene;
use story::Story;

/// What can go wrong in a demonstration, in one sentence.
pub type Told<T> = Result<T, String>;

/// Shows an agent buying inside limits, one purchase waiting for its owner, one refused, and the tab
/// settled in one capture.
///
/// In a database its books are in a schema of their own, which is removed at the end; name the server
/// itself, since a pooler does not pass on which schema is meant.
#[derive(Debug, Args)]
pub struct Demo {
    /// No pauses between the steps.
    #[arg(long)]
    pub fast: bool,
    /// Leave everything running afterwards.
    #[arg(long)]
    pub keep: bool,
    /// Its database, where it has one.
    #[command(flatten)]
    pub database: super::DatabaseFlag,
}

/// Runs the command.
pub async fn run(command: Demo, style: &Style) -> ExitCode {
    let dir = std::env::temp_dir().join(format!("earnest-demo-{}", crate::source::random_token()));
    let shown = on_a_stage(&command, style, &dir).await;
    if let Err(why) = std::fs::remove_dir_all(&dir)
        && why.kind() != std::io::ErrorKind::NotFound
    {
        eprintln!("earnest: could not remove `{}`: {why}", dir.display());
    }
    match shown {
        Ok(code) => code,
        Err(why) => {
            eprintln!("earnest: the demonstration failed: {why}");
            ExitCode::from(1)
        }
    }
}

/// Plays it, on a database in a schema that is gone afterwards, however it went.
async fn on_a_stage(command: &Demo, style: &Style, dir: &Path) -> Told<ExitCode> {
    let url = command.database.url().map_err(|why| why.to_string())?;
    let Some(url) = url else { return play(command, style, dir, None).await };
    let name: String = crate::source::random_token().chars().take(8).collect();
    let name = format!("earnest_demo_{}", name.to_ascii_lowercase().replace('-', "_"));
    let apart = Apart::make(&url, &name).map_err(|why| why.to_string())?;
    let shown = play(command, style, dir, Some(apart.url().clone())).await;
    if let Err(why) = apart.remove() {
        eprintln!("earnest: could not remove the schema {name}: {why}");
    }
    shown
}

async fn play(command: &Demo, style: &Style, dir: &Path, database: Option<Url>) -> Told<ExitCode> {
    let story = Story::new(command, style);
    let config = Config { data: Some(dir.join("data")), database, ..Config::simulated() };
    let earnest = Running::start(config, Start::default()).await.map_err(|why| why.to_string())?;
    let scene = Scene::build(earnest, dir, &story).await?;
    let figures = tell(&scene, &story).await;
    if command.keep && figures.is_ok() {
        story.say(&format!("Still running: Earnest {}", scene.earnest.url()));
        story.say(&format!("               seller  {}", scene.origin));
        if let Some(sim) = &scene.earnest.sim {
            story.say(&format!("               PayPal  {} (simulated)", sim.base_url()));
        }
        story.say("Stop it with Ctrl-C.");
        asked_to_stop().await;
    }
    scene.stop().await;
    let figures = figures?;
    if style.json {
        println!("{figures}");
    }
    let differs = differences(&figures);
    for line in &differs {
        eprintln!("earnest: {line}");
    }
    Ok(if differs.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(10) })
}

/// What has to come out.
fn expected() -> Value {
    json!({
        "tab": {"calls": 8, "approved": 1, "denied": 1, "captures": 1, "captured": "0.95",
            "fee": "0.52", "fee_if_single": "3.93"},
        "receipt": {"valid": true, "altered_valid": false},
        "ledger": {"imbalance_micros": 0, "unexplained": 0},
    })
}

fn differences(figures: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (part, members) in expected().as_object().into_iter().flatten() {
        for (name, expect) in members.as_object().into_iter().flatten() {
            let seen = figures.get(part).and_then(|part| part.get(name));
            if seen != Some(expect) {
                let seen = seen.cloned().unwrap_or_default();
                found.push(format!("{part}.{name} is {seen} and should be {expect}"));
            }
        }
    }
    found
}

async fn tell(scene: &Scene, story: &Story) -> Told<Value> {
    story.say("An agent works for an owner. The owner's limits: $1.00 a purchase, $10.00 a day,");
    story.say("and whatever costs more than $0.20 waits for a yes.");
    story.pause().await;
    for n in 1..=7 {
        let city = ["delft", "oslo", "lima", "accra", "kyoto", "quito", "turin"];
        let city = city.get(n - 1).copied().unwrap_or("delft");
        let answer = scene.buy(&format!("/weather/{city}"), &format!("weather-{n}")).await?;
        story.say(&format!("  paid $0.10   weather in {city}: {answer}"));
    }
    story.pause().await;
    approval(scene, story).await?;
    refusal(scene, story).await?;
    replay(scene, story).await?;
    let settlement = settle(scene, story).await?;
    let (valid, altered_valid) = receipt(scene, story, &settlement).await?;
    let figures = figures(scene, valid, altered_valid).await?;
    story.say("The books balance, and every line agrees with PayPal's own.");
    Ok(figures)
}

async fn approval(scene: &Scene, story: &Story) -> Told<()> {
    let waiting = scene.buy_waiting("/report/delft", "report-1").await?;
    story.say(&format!("  waits        a report: {}", waiting.detail));
    story.pause().await;
    let path = format!("/v1/approvals/{}", waiting.approval_id);
    let shown = scene.get("owner", &path).await?;
    let version = shown.get("version").cloned().unwrap_or_default();
    let body = json!({ "decision": "approve" });
    scene
        .post_with(
            "owner",
            &format!("{path}/decision"),
            body,
            &[("if-match", &format!("\"{version}\""))],
        )
        .await?;
    story.say("  approved     by the owner, once (scripted here; normally on a phone)");
    scene.buy("/report/delft", "report-1").await?;
    story.say("  paid $0.25   the report");
    story.pause().await;
    Ok(())
}

async fn refusal(scene: &Scene, story: &Story) -> Told<()> {
    let problem = scene.buy_refused("/archive", "archive-1").await?;
    let reason = problem.get("reason").and_then(Value::as_str).unwrap_or_default();
    if reason != "per_call_cap" {
        return Err(format!("the $9.00 call was refused for `{reason}`, not for the cap"));
    }
    let detail = problem.get("detail").and_then(Value::as_str).unwrap_or_default();
    story.say(&format!("  refused      $9.00 for the archive: {detail}"));
    story.pause().await;
    Ok(())
}

async fn replay(scene: &Scene, story: &Story) -> Told<()> {
    let code = scene.present_again("/weather/delft", "weather-1").await?;
    if code != Code::VoucherAlreadyUsed.as_str() {
        return Err(format!("a used voucher was answered `{code}`"));
    }
    story.say("  refused      a voucher presented a second time");
    story.pause().await;
    Ok(())
}

async fn settle(scene: &Scene, story: &Story) -> Told<Value> {
    if !scene.seller.flush(Duration::from_secs(10)).await {
        return Err("the seller's reports were not acknowledged".to_owned());
    }
    let tab = scene.tab().await?;
    let text = |value: &Value, name: &str| {
        value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    story.say(&format!(
        "The tab owes {}. The owner closes it.",
        scene::dollars(&tab, "owed_micros")
    ));
    scene
        .post_with("owner", &format!("/v1/tabs/{}/close", text(&tab, "id")), Value::Null, &[])
        .await?;
    let settlement = scene.settled(&text(&tab, "id")).await?;
    story.say(&format!(
        "  captured     {} in one PayPal capture, fee {} (predicted {}, {} had every line been captured alone)",
        scene::dollars(&settlement, "captured_micros"),
        scene::dollars(&settlement, "fee_micros"),
        scene::dollars(&settlement, "fee_predicted_micros"),
        scene::dollars(&scene.tab().await?, "fee_if_single_micros"),
    ));
    story.say(&format!("  why          {}", text(&settlement, "why")));
    story.pause().await;
    Ok(settlement)
}

async fn receipt(scene: &Scene, story: &Story, settlement: &Value) -> Told<(bool, bool)> {
    let jws = scene.receipt(settlement).await?;
    let valid = scene.verify(&jws).await?;
    let altered_valid = scene.verify(&scene::altered(&jws)?).await?;
    let verdict = |valid| if valid { "valid" } else { "invalid" };
    story.say(&format!(
        "  receipt      {}; the same one with an altered amount: {}",
        verdict(valid),
        verdict(altered_valid)
    ));
    Ok((valid, altered_valid))
}

/// Everything that is asserted, read from the books and the simulator.
async fn figures(scene: &Scene, valid: bool, altered_valid: bool) -> Told<Value> {
    let purchases = scene.purchases().await?;
    let count = |status: &str| {
        purchases.iter().filter(|row| row.get("status") == Some(&json!(status))).count()
    };
    let approved = purchases
        .iter()
        .filter(|row| row.get("status") == Some(&json!("billed")))
        .filter(|row| row.get("approval_id").is_some_and(|id| !id.is_null()))
        .count();
    let captures = scene.captures_at_paypal().await?;
    let tab = scene.tab().await?;
    let sum = |part: fn(&reconcile::Row) -> i64| captures.iter().map(part).sum::<i64>();
    let imbalance = scene.imbalance().await?;
    let ours = scene.captures_in_books()?;
    let compared = reconcile::compare(&reconcile::Sides {
        ours: &ours,
        theirs: &captures,
        awaited: &|_| false,
        acknowledged: &|_| false,
        from: Timestamp::UNIX_EPOCH,
        horizon: Timestamp::MAX,
        earlier: &[],
        books_micros: 0,
        paypal_micros: None,
    });
    let unexplained = compared.report.unexplained_lines;
    Ok(json!({
        "tab": {
            "calls": count("billed"),
            "approved": approved,
            "denied": count("denied"),
            "captures": captures.len(),
            "captured": scene::decimal(sum(|row| row.amount.as_ref().map_or(0, |(gross, _)| *gross))),
            "fee": scene::decimal(sum(|row| row.fee_micros.saturating_neg())),
            "fee_if_single": scene::decimal(tab.get("fee_if_single_micros").and_then(Value::as_i64).unwrap_or(0)),
        },
        "receipt": { "valid": valid, "altered_valid": altered_valid },
        "ledger": { "imbalance_micros": imbalance, "unexplained": unexplained },
    }))
}
