//! `earnest method`: the owner's way to pay, vaulted once at PayPal.

use clap::{Args, Subcommand};
use http::Method as Verb;
use serde_json::Value;

use super::Style;
use super::client::{Client, Reach, Role, id};
use super::failure::Ended;
use super::output::{Money, text};
use super::rows::Paging;

/// Ways to pay.
#[derive(Debug, Args)]
pub struct Method {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// What to do.
    #[command(subcommand)]
    pub verb: MethodVerb,
}

/// What to do with ways to pay.
#[derive(Debug, Subcommand)]
pub enum MethodVerb {
    /// Begins vaulting a PayPal account; prints PayPal's page, where you consent.
    Add,
    /// Lists ways to pay, newest first.
    List(Paging),
    /// Finishes after you consented, if PayPal's page did not lead back by itself.
    Confirm {
        /// `vlt_…`
        method: String,
    },
    /// Removes a way to pay, at PayPal too. An open tab that relied on it is frozen.
    Remove {
        /// `vlt_…`
        method: String,
        /// How to ask.
        #[command(flatten)]
        money: Money,
    },
}

/// Runs the command.
pub async fn run(command: Method, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    match command.verb {
        MethodVerb::Add => {
            let row = client.post(Role::Owner, "/v1/payment-methods", None).await?;
            let (method, page) = (text(&row, "id"), text(&row, "approve_url"));
            let line = if page.is_empty() { in_a_line(&row) } else { page };
            let next = format!("open that page and consent, then earnest method confirm {method}");
            style.changed(&row, &line, &next)?;
        }
        MethodVerb::List(paging) => {
            let path = "/v1/payment-methods";
            let listing = client.list(Role::Owner, path, &[], paging.limit).await?;
            let heads = ["METHOD", "STATUS", "PAYER", "PAYPAL'S PAGE", "CREATED"];
            style.rows(&listing.rows, heads, |row| {
                let waits = text(row, "status") == "awaiting_payer";
                [
                    text(row, "id"),
                    status(row),
                    text(row, "payer"),
                    if waits { text(row, "approve_url") } else { String::new() },
                    text(row, "created_at"),
                ]
            })?;
            paging.say_more(style, listing.more);
        }
        MethodVerb::Confirm { method } => {
            let path = format!("/v1/payment-methods/{}/confirm", id(&method)?);
            let row = client.post(Role::Owner, path, None).await?;
            let next = match text(&row, "status").as_str() {
                "active" => "earnest pay URL --max-price '$0.25' --request-id ID".to_owned(),
                "failed" => "earnest method add".to_owned(),
                "awaiting_payer" => format!("consent at {}", text(&row, "approve_url")),
                _ => format!("earnest method confirm {method}"),
            };
            style.changed(&row, &in_a_line(&row), &next)?;
        }
        MethodVerb::Remove { method, money } => {
            let path = format!("/v1/payment-methods/{}", id(&method)?);
            let row = client.get(Role::Owner, path.clone()).await?;
            if money.dry_run {
                style.talk("nothing was removed");
                style.object(&row, || in_a_line(&row))?;
                return Ok(std::process::ExitCode::SUCCESS);
            }
            let question = format!("remove {method} {}, also at PayPal?", text(&row, "payer"));
            style.consent(money, true, &question).await?;
            let row = client.call(Role::Owner, Verb::DELETE, path).send().await?.json()?;
            style.changed(&row, &in_a_line(&row), "earnest method add")?;
        }
    }
    Ok(std::process::ExitCode::SUCCESS)
}

fn status(row: &Value) -> String {
    let issue = text(row, "issue");
    let status = text(row, "status");
    if issue.is_empty() { status } else { format!("{status}: {issue}") }
}

fn in_a_line(row: &Value) -> String {
    format!("{} {} {}", text(row, "id"), status(row), text(row, "payer")).trim_end().to_owned()
}
