//! `earnest doctor paypal` and `earnest paypal`: what the PayPal account can do, and what the
//! operator has to do there.

use std::process::ExitCode;

use clap::Subcommand;
use earnest_core::party::Owner;
use earnest_core::problem::LocalCode;
use earnest_paypal::doctor::{self, Finding, Known};
use earnest_paypal::webhooks::{self, Webhook};
use earnest_paypal::{Client as Paypal, Mode, Outcome, Resource};
use http::Method;
use serde_json::{Value, json};

use super::client::{Client, Reach, Role, id};
use super::failure::{Ended, Failure};
use super::output::{Money, money, text};
use super::rows::Paging;
use super::{Style, Where};
use crate::config::Config;
use crate::serve::connect;
use crate::source::machine_clock;

/// Checks what Earnest relies on.
#[derive(Debug, Subcommand)]
pub enum Doctor {
    /// Whether the PayPal account of the settings can do what Earnest needs. Reads only.
    Paypal(Where),
    /// Whether the models of the settings answer as they should, and what that costs. Asks each once.
    Models(Where),
}

/// What the operator does at PayPal.
#[derive(Debug, Subcommand)]
pub enum PaypalCommand {
    /// PayPal's webhooks: they make Earnest look sooner, and are never believed.
    #[command(subcommand)]
    Webhook(WebhookVerb),
    /// Lists calls whose outcome is not known yet.
    Unknown {
        /// Which Earnest.
        #[command(flatten)]
        reach: Reach,
        /// How much.
        #[command(flatten)]
        paging: Paging,
    },
    /// Your word that a large unknown charge did not happen; counts only together with the evidence
    /// of a search.
    ConfirmNotCharged {
        /// Which Earnest.
        #[command(flatten)]
        reach: Reach,
        /// `int_…`
        intent: String,
        /// How to ask.
        #[command(flatten)]
        money: Money,
    },
}

/// What to do with webhooks.
#[derive(Debug, Subcommand)]
pub enum WebhookVerb {
    /// Registers this Earnest's address at PayPal; prints the webhook's id for the settings.
    Register {
        /// `https://…/webhooks/paypal`, reachable from the internet on port 443.
        url: String,
        /// Which PayPal.
        #[command(flatten)]
        place: Where,
    },
}

/// Runs `earnest doctor`: exit code 4 when the credentials are refused, 1 when something that
/// Earnest needs is missing.
pub async fn doctor(command: Doctor, style: &Style) -> Ended {
    let place = match command {
        Doctor::Paypal(place) => place,
        Doctor::Models(place) => return super::models::doctor(place, style).await,
    };
    let config = Config::load(place.overrides()?)?;
    let payers = payers(&config);
    let (sim, paypal) = client(&config).await?;
    let known = Known { webhook_id: config.webhook_id.as_deref(), payers: &payers };
    let checks = doctor::checks(&paypal, known).await;
    if let Some(sim) = sim {
        sim.shutdown().await;
    }
    let rows: Vec<Value> = checks.iter().map(|check| json!(check)).collect();
    style.rows(&rows, ["", "CHECK", "FOUND"], |row| {
        let sign = match text(row, "finding").as_str() {
            "good" => "ok",
            "warning" => "warning",
            "bad" => "BAD",
            _ => "skipped",
        };
        [sign.to_owned(), text(row, "name"), text(row, "detail")]
    })?;
    let bad = checks.iter().find(|check| check.finding == Finding::Bad);
    let Some(bad) = bad else { return Ok(ExitCode::SUCCESS) };
    style.talk("Earnest cannot work with this account as it is");
    Ok(ExitCode::from(if bad.name == "credentials" { 4 } else { 1 }))
}

/// The digests of the accounts of payers on file, as far as the books can be read: they may not be there yet.
fn payers(config: &Config) -> Vec<String> {
    let mut found = Vec::new();
    let read = earnest_store::audit::look(&config.books(), |books| {
        let mut after: Option<String> = None;
        loop {
            let page = books.all::<Owner>(after.as_deref(), 500)?;
            let funding = page.items.into_iter().filter_map(|owner| owner.funding);
            found.extend(funding.filter_map(|funding| funding.payer_sha256));
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    });
    if let Err(error) = read {
        tracing::debug!(%error, "the payers on file are not known");
    }
    found
}

/// A client of the PayPal that the settings name; in simulated mode without a simulator that runs
/// already, of a fresh one.
async fn client(config: &Config) -> Result<(Option<paypal_sim::Sim>, Paypal), Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::usage(format!("PayPal: {why}"));
    let connected = connect(config, paypal_sim::SimConfig::default()).await;
    let (sim, paypal) = connected.map_err(|why| Failure::usage(why.to_string()))?;
    let client = Paypal::new(&paypal).map_err(|why| failed(&why))?.beside(machine_clock());
    Ok((sim, client))
}

/// Runs `earnest paypal`.
pub async fn run(command: PaypalCommand, style: &Style) -> Ended {
    match command {
        PaypalCommand::Webhook(WebhookVerb::Register { url, place }) => {
            register(&url, place, style).await?;
        }
        PaypalCommand::Unknown { reach, paging } => {
            let client = Client::new(&reach)?;
            let path = "/v1/intents/unknown";
            let listing = client.list(Role::Operator, path, &[], paging.limit).await?;
            let heads = ["INTENT", "FOR", ">AMOUNT", "INVOICE", "FIRST SENT", "NEXT LOOK"];
            style.rows(&listing.rows, heads, |row| {
                let purpose = row.get("purpose").unwrap_or(&Value::Null);
                [
                    text(row, "id"),
                    text(purpose, "id"),
                    money(row, "amount_micros"),
                    text(row, "invoice_id"),
                    text(row, "first_sent_at"),
                    text(row, "next_at"),
                ]
            })?;
            paging.say_more(style, listing.more);
        }
        PaypalCommand::ConfirmNotCharged { reach, intent, money } => {
            let client = Client::new(&reach)?;
            let path = format!("/v1/intents/{}/confirm-not-charged", id(&intent)?);
            if money.dry_run {
                style.talk("nothing was recorded");
                return Ok(ExitCode::SUCCESS);
            }
            let question = format!("PayPal's own records show no charge for {intent}?");
            style.consent(money, true, &question).await?;
            let call = client.call(Role::Operator, Method::POST, path);
            let row = call.send().await?.json()?;
            let line = format!("{intent} {}", text(&row, "status"));
            style.changed(&row, &line, "earnest paypal unknown")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn register(url: &str, place: Where, style: &Style) -> Result<(), Failure> {
    let config = Config::load(place.overrides()?)?;
    if config.mode == Mode::Simulated && config.simulator_url.is_none() {
        let why = "in simulated mode earnest up starts a simulator and registers itself there";
        return Err(Failure::usage(why).next("set simulator_url or another mode under [paypal]"));
    }
    let (_, paypal) = client(&config).await?;
    // Registered before: PayPal would refuse a second one for the same address.
    let known = paypal.send(&webhooks::list()).await;
    let known = match &known.outcome {
        Outcome::Done { resource: Resource::Webhooks(known) } => {
            known.webhooks.iter().find(|webhook| webhook.url == url).cloned()
        }
        _ => None,
    };
    let webhook = match known {
        Some(webhook) => webhook,
        None => create(&paypal, url).await?,
    };
    let row = json!(webhook);
    let next = format!("put webhook_id = \"{}\" under [paypal] in earnest.toml", webhook.id);
    style.changed(&row, &webhook.id, &format!("{next}, then earnest doctor paypal"))
}

async fn create(paypal: &Paypal, url: &str) -> Result<Webhook, Failure> {
    let request = webhooks::create(url).map_err(|why| Failure::usage(why.to_string()))?;
    let exchange = paypal.send(&request).await;
    match &exchange.outcome {
        Outcome::Done { resource: Resource::Webhook(webhook) } => Ok(webhook.clone()),
        Outcome::Refused { issue, .. } | Outcome::Declined { issue, .. } => {
            let why = format!("PayPal refuses the webhook: {issue}");
            Err(Failure::local(LocalCode::WebhookRefused, 8, why))
        }
        other => {
            let why = format!("PayPal's answer: {}", other.issue().unwrap_or(other.as_str()));
            Err(Failure::local(LocalCode::PaypalUnreachable, 8, why)
                .next("the same command again: an address is registered once"))
        }
    }
}
