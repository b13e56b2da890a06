//! `earnest audit`: whether the books are right, on a running or a copied database.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use earnest_core::problem::Code;
use earnest_store::audit::Finding;
use serde_json::{Value, json};

use super::Style;
use super::failure::{Ended, Failure};
use crate::audit::{Seen, auditor};

/// Checks every invariant of the books: exit code 1 and the first breach, or 0 and a summary.
///
/// It only reads, and all at one moment, so that Earnest may run meanwhile. On large books take a
/// copy: while it runs the write-ahead log grows.
#[derive(Debug, Args)]
pub struct Audit {
    /// The folder of the books, or a database file [default: ./earnest-data].
    #[arg(long, env = "EARNEST_DATA", value_name = "FOLDER|FILE")]
    pub data: Option<PathBuf>,
    /// Its database, where it has one.
    #[command(flatten)]
    pub database: super::DatabaseFlag,
}

/// How many breaches are shown beside the first.
const MOST_SHOWN: usize = 4;

/// Runs the command.
pub async fn run(command: Audit, style: &Style) -> Ended {
    let database = command.database.url()?;
    let place = super::books_at(database, command.data)?;
    let at = place.clone();
    // The auditor shares nothing between threads, so it lives where it works.
    let audited = tokio::task::spawn_blocking(move || {
        let (audit, seen) = auditor();
        audit.run_at(&at).map(|findings| (findings, seen.get()))
    });
    let audited = audited.await.map_err(|why| Failure::of(Code::Internal, why.to_string()))?;
    let (findings, seen) = audited.map_err(|error| super::unreadable(&place, error))?;
    report(style, &findings, seen)
}

fn report(style: &Style, findings: &[Finding], seen: Seen) -> Ended {
    let Seen { entries, accounts, purchases, settlements, reconciled, with_balance, .. } = seen;
    let compared = match (reconciled, with_balance) {
        (None, _) => "never compared with PayPal's records".to_owned(),
        (Some(at), true) => format!("as PayPal's records and balance say up to {at}"),
        (Some(at), false) => {
            format!("as PayPal's records say up to {at}; its balance is not known")
        }
    };
    let Some(first) = findings.first() else {
        let row = json!({
            "ok": true,
            "entries": entries,
            "accounts": accounts,
            "purchases": purchases,
            "settlements": settlements,
            "reconciled_until": reconciled,
            "with_balance": with_balance,
        });
        style.object(&row, || {
            format!(
                "the books are right: {entries} entries, {accounts} accounts, {purchases} \
                 purchases, {settlements} settlements; {compared}"
            )
        })?;
        return Ok(ExitCode::SUCCESS);
    };
    let unexplained = seen.unexplained_lines;
    // Those of a comparison stand worst first, so that the first few are the worst few.
    let next: Vec<&Finding> = findings.iter().skip(1).take(MOST_SHOWN).collect();
    let row = json!({
        "ok": false,
        "breach": breach(first),
        "breaches": findings.len(),
        "next": next.iter().map(|finding| breach(finding)).collect::<Vec<_>>(),
        "unexplained_lines": unexplained,
        "unexplained_micros": seen.unexplained_micros,
    });
    style.object(&row, || {
        let lines = std::iter::once(first).chain(next.iter().copied());
        let lines: Vec<String> = lines.map(ToString::to_string).collect();
        lines.join("\n")
    })?;
    let more = findings.len().saturating_sub(next.len()).saturating_sub(1);
    if more > 0 {
        style.talk(&format!("and {more} more, which may follow from those"));
    }
    if unexplained > 0 {
        let apart = super::output::dollars(seen.unexplained_micros);
        style.talk(&format!(
            "{unexplained} lines of PayPal's records are not explained, {apart} altogether"
        ));
    }
    Ok(ExitCode::from(1))
}

fn breach(finding: &Finding) -> Value {
    json!({ "invariant": finding.invariant, "detail": finding.detail, "seq": finding.seq })
}
