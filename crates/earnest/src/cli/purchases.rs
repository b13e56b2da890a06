//! `earnest purchases`: what was bought, and what was refused or waits.

use clap::Args;
use serde_json::Value;

use super::Style;
use super::client::{Client, Reach, Role, id};
use super::failure::Ended;
use super::output::{facts, money, text};
use super::rows::Sheet;

/// Lists purchases, newest first, those that were refused or wait included; or shows one.
#[derive(Debug, Args)]
pub struct Purchases {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// `pur_…`, to see one.
    pub purchase: Option<String>,
    /// For the operator: whose, `own_…`.
    #[arg(long, value_name = "OWNER")]
    pub owner: Option<String>,
    /// How much, and as what.
    #[command(flatten)]
    pub sheet: Sheet,
}

/// Runs the command.
pub async fn run(command: Purchases, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    let role = match command.owner {
        Some(_) => Role::Operator,
        None => client.first_of(&[Role::Owner, Role::Agent, Role::Seller]),
    };
    if let Some(purchase) = &command.purchase {
        let row = client.get(role, format!("/v1/purchases/{}", id(purchase)?)).await?;
        style.object(&row, || in_words(&row))?;
        return Ok(std::process::ExitCode::SUCCESS);
    }
    let query: Vec<_> = command.owner.map(|owner| ("owner", owner)).into_iter().collect();
    let (path, sheet) = ("/v1/purchases", command.sheet);
    if sheet.csv {
        sheet.write(&client, style, role, path, &query).await?;
        return Ok(std::process::ExitCode::SUCCESS);
    }
    let listing = client.list(role, path, &query, sheet.paging.limit).await?;
    let heads = ["PURCHASE", "TIME", "AGENT", "WHAT", ">PRICE", ">BILLED", "STATUS", "WHY"];
    style.rows(&listing.rows, heads, |row| {
        [
            text(row, "id"),
            text(row, "created_at"),
            text(row, "agent"),
            text(row, "listing"),
            money(row, "amount_micros"),
            money(row, "billed_micros"),
            text(row, "status"),
            why(row),
        ]
    })?;
    sheet.paging.say_more(style, listing.more);
    Ok(std::process::ExitCode::SUCCESS)
}

/// The reason of a refusal, by its name, and the numbers; of a wait the numbers alone, since nothing
/// is refused yet.
fn why(row: &Value) -> String {
    let Some(refusal) = row.get("refusal").filter(|refusal| refusal.is_object()) else {
        return String::new();
    };
    let (reason, detail) = (text(refusal, "reason"), text(refusal, "detail"));
    if text(row, "status") == "waiting" {
        return format!("asks the owner: {detail}");
    }
    let name = if reason.is_empty() { text(refusal, "code") } else { reason };
    if detail.is_empty() { name } else { format!("{name}: {detail}") }
}

fn in_words(row: &Value) -> String {
    let refusal = row.get("refusal").cloned().unwrap_or_default();
    let most = if row.get("up_to") == Some(&Value::Bool(true)) { " at most" } else { "" };
    facts(&[
        ("purchase", text(row, "id")),
        ("status", text(row, "status")),
        ("why", text(&refusal, "detail")),
        ("next", text(&refusal, "next")),
        ("what", text(row, "listing")),
        ("request", format!("{} {}", text(row, "method"), text(row, "url"))),
        ("price", format!("{}{most}", money(row, "amount_micros"))),
        ("billed", money(row, "billed_micros")),
        ("agent", text(row, "agent")),
        ("seller", text(row, "seller")),
        ("request id", text(row, "request_id")),
        ("approval", text(row, "approval_id")),
        ("tab", text(row, "tab")),
        ("line", text(row, "line")),
        ("asked", text(row, "created_at")),
        ("billed at", text(row, "billed_at")),
    ])
}
