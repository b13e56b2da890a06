//! `earnest accounts`, `earnest transfers`, `earnest trial-balance`: the books as people read them.

use std::process::ExitCode;

use clap::Args;
use earnest_core::problem::LocalCode;
use http::Method;
use serde_json::Value;

use super::Style;
use super::client::{Client, Reach, Role};
use super::failure::Ended;
use super::output::{dollars, money, text};
use super::rows::Sheet;

/// Lists accounts by name; an owner or seller sees its own.
#[derive(Debug, Args)]
pub struct Accounts {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// Accounts whose name begins so, such as `tab:`.
    #[arg(default_value = "")]
    pub prefix: String,
    /// How much, and as what.
    #[command(flatten)]
    pub sheet: Sheet,
}

/// Lists transfers in the order they were booked; an owner or seller sees those of its own accounts.
#[derive(Debug, Args)]
pub struct Transfers {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// How much, and as what.
    #[command(flatten)]
    pub sheet: Sheet,
}

/// Shows the sum of all accounts: debits less credits are 0 in books that are right.
#[derive(Debug, Args)]
pub struct TrialBalance {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// As CSV, safe to open in a spreadsheet.
    #[arg(long)]
    pub csv: bool,
}

fn usual_role(client: &Client) -> Role {
    client.first_of(&[Role::Operator, Role::Owner, Role::Seller])
}

/// Runs `earnest accounts`.
pub async fn accounts(command: Accounts, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    let (role, sheet, path) = (usual_role(&client), command.sheet, "/v1/accounts");
    let query = [("prefix", command.prefix)];
    if sheet.csv {
        sheet.write(&client, style, role, path, &query).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let listing = client.list(role, path, &query, sheet.paging.limit).await?;
    let heads = ["ACCOUNT", ">DEBITS", ">PENDING", ">CREDITS", ">PENDING", ""];
    style.rows(&listing.rows, heads, |row| {
        let memo = row.get("memo") == Some(&Value::Bool(true));
        [
            text(row, "name"),
            money(row, "debits_posted_micros"),
            money(row, "debits_pending_micros"),
            money(row, "credits_posted_micros"),
            money(row, "credits_pending_micros"),
            if memo { "memo".to_owned() } else { String::new() },
        ]
    })?;
    sheet.paging.say_more(style, listing.more);
    Ok(ExitCode::SUCCESS)
}

/// Runs `earnest transfers`.
pub async fn transfers(command: Transfers, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    let (role, sheet, path) = (usual_role(&client), command.sheet, "/v1/transfers");
    if sheet.csv {
        sheet.write(&client, style, role, path, &[]).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let listing = client.list(role, path, &[], sheet.paging.limit).await?;
    let heads = [">SEQ", "TIME", "CAUSE", "STEP", "DEBIT", "CREDIT", ">AMOUNT"];
    style.rows(&listing.rows, heads, |row| {
        [
            text(row, "seq"),
            text(row, "at"),
            text(row, "cause"),
            text(row, "step"),
            text(row, "debit"),
            text(row, "credit"),
            money(row, "amount_micros"),
        ]
    })?;
    sheet.paging.say_more(style, listing.more);
    Ok(ExitCode::SUCCESS)
}

/// Runs `earnest trial-balance`; exit code 10 when the books do not balance.
pub async fn trial_balance(command: TrialBalance, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    let path = "/v1/trial-balance";
    let rows = client.get(Role::Operator, path).await?;
    let rows = rows.as_array().cloned().unwrap_or_default();
    if command.csv {
        let call = client.call(Role::Operator, Method::GET, path).query("format", "csv");
        let answer = call.send().await?;
        style.data(String::from_utf8_lossy(&answer.body).trim_end_matches(['\r', '\n']))?;
    } else {
        let heads = ["CURRENCY", "", ">DEBITS", ">PENDING", ">IMBALANCE", ">PENDING"];
        style.rows(&rows, heads, |row| {
            let memo = row.get("memo") == Some(&Value::Bool(true));
            [
                text(row, "currency"),
                if memo { "memo".to_owned() } else { String::new() },
                money(row, "debits_posted_micros"),
                money(row, "debits_pending_micros"),
                money(row, "imbalance_micros"),
                money(row, "pending_imbalance_micros"),
            ]
        })?;
    }
    let off = |row: &&Value| {
        let is_off = |name| row.get(name).and_then(Value::as_i64) != Some(0);
        is_off("imbalance_micros") || is_off("pending_imbalance_micros")
    };
    match rows.iter().find(off) {
        None => Ok(ExitCode::SUCCESS),
        Some(row) => {
            let sum = row.get("imbalance_micros").and_then(Value::as_i64).unwrap_or(0);
            let why = format!("the books are off by {}: run earnest audit", dollars(sum));
            Err(super::failure::Failure::local(LocalCode::BooksUnbalanced, 10, why))
        }
    }
}
