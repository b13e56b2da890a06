//! `earnest approvals`: purchases that wait for their owner.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use super::Style;
use super::client::{Client, Reach, Role, id};
use super::failure::{Ended, Failure};
use super::output::{Money, facts, money, text};
use super::rows::Paging;

/// Questions put to you, and your answers; lists those that wait unless told otherwise.
#[derive(Debug, Args)]
pub struct Approvals {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// What to do.
    #[command(subcommand)]
    pub verb: Option<ApprovalsVerb>,
}

/// What to do with questions.
#[derive(Debug, Subcommand)]
pub enum ApprovalsVerb {
    /// Lists questions that wait, newest first.
    List {
        /// Those that were answered or expired too.
        #[arg(long)]
        all: bool,
        /// How much.
        #[command(flatten)]
        paging: Paging,
    },
    /// Shows one question.
    Show {
        /// `apr_…`
        approval: String,
    },
    /// Says yes, this once. Nothing is booked: the agent asks again, and policy runs again.
    Approve {
        /// `apr_…`, one or more.
        #[arg(required = true)]
        approvals: Vec<String>,
        /// How to ask.
        #[command(flatten)]
        money: Money,
    },
    /// Says yes to this and more from the same seller, bounded in money and time.
    Grant {
        /// `apr_…`
        approval: String,
        /// How much in total, this purchase included, such as '$5'.
        #[arg(long, allow_hyphen_values = true, value_name = "AMOUNT")]
        cap: String,
        /// For how long: 90s, 30m, 2h, 7d; at most 30d.
        #[arg(long = "for", value_name = "TIME")]
        time: String,
        /// How to ask.
        #[command(flatten)]
        money: Money,
    },
    /// Says no.
    Deny {
        /// `apr_…`, one or more.
        #[arg(required = true)]
        approvals: Vec<String>,
        /// Pause the agent, too.
        #[arg(long)]
        pause: bool,
    },
    /// Lists bounded grants, newest first.
    Grants(Paging),
    /// Takes a grant back.
    Revoke {
        /// `gra_…`
        grant: String,
    },
}

/// Runs the command.
pub async fn run(command: Approvals, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    let waiting = ApprovalsVerb::List { all: false, paging: Paging { limit: 50 } };
    match command.verb.unwrap_or(waiting) {
        ApprovalsVerb::List { all, paging } => list(&client, style, all, paging).await?,
        ApprovalsVerb::Show { approval } => {
            let (row, _) = read(&client, &approval).await?;
            style.object(&row, || in_words(&row))?;
        }
        ApprovalsVerb::Approve { approvals, money } => {
            let body = json!({ "decision": "approve" });
            return each(&client, style, &approvals, &body, Some(("approve", money))).await;
        }
        ApprovalsVerb::Grant { approval, cap, time, money } => {
            let cap = super::amount(&cap)?;
            let seconds = read_time(&time)?;
            let body = json!({ "decision": "grant", "cap": cap.get(), "for_seconds": seconds });
            let verb = format!("allow up to {cap} for {time}, beginning with");
            return each(&client, style, &[approval], &body, Some((&verb, money))).await;
        }
        ApprovalsVerb::Deny { approvals, pause } => {
            let decision = if pause { "deny_and_pause" } else { "deny" };
            let body = json!({ "decision": decision });
            return each(&client, style, &approvals, &body, None).await;
        }
        ApprovalsVerb::Grants(paging) => {
            let listing = client.list(Role::Owner, "/v1/grants", &[], paging.limit).await?;
            let heads = ["GRANT", "AGENT", "SELLER", ">USED", ">CAP", "UNTIL", "REVOKED"];
            style.rows(&listing.rows, heads, |row| {
                [
                    text(row, "id"),
                    text(row, "agent"),
                    text(row, "seller"),
                    money(row, "used_micros"),
                    money(row, "cap_micros"),
                    text(row, "until"),
                    text(row, "revoked_at"),
                ]
            })?;
            paging.say_more(style, listing.more);
        }
        ApprovalsVerb::Revoke { grant } => {
            let path = format!("/v1/grants/{}", id(&grant)?);
            let row = client.call(Role::Owner, Method::DELETE, path).send().await?.json()?;
            let line = format!("{grant} revoked {}", text(&row, "revoked_at"));
            style.changed(&row, &line, "earnest approvals grants")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, style: &Style, all: bool, paging: Paging) -> Result<(), Failure> {
    let status = (!all).then(|| ("status", "waiting".to_owned()));
    let query: Vec<_> = status.into_iter().collect();
    let listing = client.list(Role::Owner, "/v1/approvals", &query, paging.limit).await?;
    let heads = ["APPROVAL", "AGENT", "WHAT", ">AMOUNT", "STATUS", "WHY", "EXPIRES"];
    style.rows(&listing.rows, heads, |row| {
        [
            text(row, "id"),
            text(row, "agent"),
            format!("{} {}", text(row, "method"), text(row, "url")),
            money(row, "amount_micros"),
            text(row, "status"),
            text(row, "why"),
            text(row, "expires_at"),
        ]
    })?;
    if !all && !listing.rows.is_empty() {
        style.next("earnest approvals approve ID, or deny ID");
    }
    paging.say_more(style, listing.more);
    Ok(())
}

/// A question and its `ETag`: what is answered is what was read.
async fn read(client: &Client, approval: &str) -> Result<(Value, String), Failure> {
    let path = format!("/v1/approvals/{}", id(approval)?);
    let answer = client.call(Role::Owner, Method::GET, path).send().await?;
    let etag = answer.header("etag").unwrap_or_default();
    Ok((answer.json()?, etag))
}

/// Answers questions one after another. One that cannot be answered does not keep the others from
/// it; the exit code is that of the first which could not.
async fn each(
    client: &Client,
    style: &Style,
    approvals: &[String],
    body: &Value,
    asks: Option<(&str, Money)>,
) -> Ended {
    let mut ended = ExitCode::SUCCESS;
    let mut failed = false;
    for approval in approvals {
        if let Err(failure) = answer(client, style, approval, body, asks).await {
            let code = failure.show(style);
            if !failed {
                (ended, failed) = (code, true);
            }
        }
    }
    Ok(ended)
}

async fn answer(
    client: &Client,
    style: &Style,
    approval: &str,
    body: &Value,
    asks: Option<(&str, Money)>,
) -> Result<(), Failure> {
    let (row, etag) = read(client, approval).await?;
    if let Some((verb, money)) = asks {
        let question = format!(
            "{verb} {} for {} {} by {}",
            super::output::money(&row, "amount_micros"),
            text(&row, "method"),
            text(&row, "url"),
            text(&row, "agent"),
        );
        if money.dry_run {
            let would = json!({ "dry_run": true, "approval": row, "would": body });
            return style.object(&would, || format!("would {question}"));
        }
        style.consent(money, false, &format!("{question}?")).await?;
    }
    let path = format!("/v1/approvals/{}/decision", id(approval)?);
    let call = client.call(Role::Owner, Method::POST, path).if_match(&etag).body(body.clone());
    let row = call.send().await?.json()?;
    let line = format!("{approval} {}", text(&row, "status"));
    let next = match text(&row, "status").as_str() {
        "approved" | "consumed" => "the agent repeats its request under the same request id",
        _ => "earnest approvals",
    };
    style.changed(&row, &line, next)
}

/// `90`, `90s`, `30m`, `2h`, `7d` in seconds.
fn read_time(text: &str) -> Result<i64, Failure> {
    let wrong = || Failure::usage(format!("--for: `{text}` is not like 90s, 30m, 2h or 7d"));
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..).unwrap_or_default() {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let count: i64 = digits.parse().map_err(|_| wrong())?;
    count.checked_mul(unit).filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

fn in_words(row: &Value) -> String {
    facts(&[
        ("approval", text(row, "id")),
        ("status", text(row, "status")),
        ("amount", money(row, "amount_micros")),
        ("what", text(row, "listing")),
        ("request", format!("{} {}", text(row, "method"), text(row, "url"))),
        ("why", text(row, "why")),
        ("agent", text(row, "agent")),
        ("seller", text(row, "seller")),
        ("purchase", text(row, "purchase")),
        ("asked", text(row, "created_at")),
        ("expires", text(row, "expires_at")),
        ("answered", text(row, "decided_at")),
        ("grant", text(row, "grant")),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, seconds) in
            [("90", 90), ("90s", 90), ("30m", 1_800), ("2h", 7_200), ("7d", 604_800)]
        {
            assert_eq!(read_time(text).unwrap(), seconds, "{text}");
        }
        for bad in ["", "h", "1w", "-1h", "0", "1.5h", "99999999999999999d"] {
            assert_eq!(read_time(bad).unwrap_err().exit(), 2, "{bad}");
        }
    }
}
