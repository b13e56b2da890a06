//! `earnest tab`: what was bought and is settled together.

use std::time::Duration;

use clap::{Args, Subcommand};
use earnest_core::money::Micros;
use earnest_core::problem::{Code, Refusal};
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Style;
use super::client::{Client, Reach, Role, id};
use super::failure::{Ended, Failure};
use super::output::{Money, dollars, facts, money, text};
use super::rows::Paging;

/// How often the state is looked at while somebody waits for it.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Tabs.
#[derive(Debug, Args)]
pub struct Tab {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// What to do.
    #[command(subcommand)]
    pub verb: TabVerb,
}

/// What to do with tabs.
#[derive(Debug, Subcommand)]
pub enum TabVerb {
    /// Opens a tab, or shows the open one. The first purchase opens one too.
    Open,
    /// Shows a tab: the open one, or the newest, or the one named.
    Status {
        /// `tab_…`
        tab: Option<String>,
    },
    /// Lists tabs, newest first.
    List(Paging),
    /// Lists the settlements of a tab, newest first.
    Settlements {
        /// `tab_…`; the open or newest one unless said.
        tab: Option<String>,
        /// How much.
        #[command(flatten)]
        paging: Paging,
    },
    /// Closes a tab: nothing more is bought on it, and it is settled once no hold is pending.
    Close(Ending),
    /// Settles what is owed now, and leaves the tab open.
    Settle(Ending),
    /// The operator bears what a frozen or abandoned tab owes.
    WriteOff {
        /// `tab_…`
        tab: String,
        /// One key for one wish; a repeat with the same key does nothing twice.
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// How to ask.
        #[command(flatten)]
        money: Money,
    },
}

/// Which tab to end, and how long to watch.
#[derive(Debug, Args)]
pub struct Ending {
    /// `tab_…`; the open one unless said.
    pub tab: Option<String>,
    /// Wait so many seconds for the outcome.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub wait: u64,
    /// One key for one wish; a repeat with the same key does nothing twice.
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// How to ask.
    #[command(flatten)]
    pub money: Money,
}

/// Runs the command.
pub async fn run(command: Tab, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    match command.verb {
        TabVerb::Open => {
            let row = client.post(Role::Owner, "/v1/tabs", None).await?;
            let line = format!("{} {}", text(&row, "id"), text(&row, "status"));
            style.changed(&row, &line, "earnest tab status")?;
        }
        TabVerb::Status { tab } => {
            let row = find(&client, tab.as_deref()).await?;
            let last = settlements(&client, &text(&row, "id"), 1).await?.rows;
            show(style, row, last.into_iter().next())?;
        }
        TabVerb::List(paging) => {
            let listing = client.list(Role::Owner, "/v1/tabs", &[], paging.limit).await?;
            let heads = ["TAB", "STATUS", ">OWED", ">HELD", ">CAPTURED", ">LINES", "OPENED"];
            style.rows(&listing.rows, heads, |row| {
                [
                    text(row, "id"),
                    text(row, "status"),
                    money(row, "owed_micros"),
                    money(row, "held_micros"),
                    money(row, "captured_micros"),
                    text(row, "lines"),
                    text(row, "opened_at"),
                ]
            })?;
            paging.say_more(style, listing.more);
        }
        TabVerb::Settlements { tab, paging } => {
            let tab = text(&find(&client, tab.as_deref()).await?, "id");
            let listing = settlements(&client, &tab, paging.limit).await?;
            let heads =
                ["SETTLEMENT", "STATUS", ">ASKED", ">CAPTURED", ">FEE", "CAPTURE", "RECEIPT"];
            style.rows(&listing.rows, heads, |row| {
                [
                    text(row, "id"),
                    status_of_settlement(row),
                    money(row, "amount_micros"),
                    money(row, "captured_micros"),
                    fee(row),
                    text(row, "paypal_capture"),
                    text(row, "receipt_url"),
                ]
            })?;
            paging.say_more(style, listing.more);
        }
        TabVerb::Close(ending) => close(&client, style, &ending).await?,
        TabVerb::Settle(ending) => settle(&client, style, &ending).await?,
        TabVerb::WriteOff { tab, idempotency_key, money } => {
            write_off(&client, style, &tab, idempotency_key.as_deref(), money).await?;
        }
    }
    Ok(std::process::ExitCode::SUCCESS)
}

/// The tab that is meant: the one named, else the open one, else the newest.
async fn find(client: &Client, tab: Option<&str>) -> Result<Value, Failure> {
    if let Some(tab) = tab {
        return client.get(Role::Owner, format!("/v1/tabs/{}", id(tab)?)).await;
    }
    let rows = client.list(Role::Owner, "/v1/tabs", &[], 50).await?.rows;
    let open = rows.iter().find(|row| text(row, "status") == "open");
    let found = open.or_else(|| rows.first()).cloned();
    found.ok_or_else(|| {
        super::not_found("there is no tab yet").next("the first purchase opens one: earnest pay")
    })
}

async fn settlements(
    client: &Client,
    tab: &str,
    limit: usize,
) -> Result<super::client::Listing, Failure> {
    client.list(Role::Owner, &format!("/v1/tabs/{tab}/settlements"), &[], limit).await
}

/// What would be captured, before anything is.
struct Preview {
    tab: String,
    owed: i64,
    held: i64,
    capture: i64,
    fee: i64,
}

impl Preview {
    fn of(row: &Value) -> Self {
        let micros = |name: &str| row.get(name).and_then(Value::as_i64).unwrap_or(0);
        let owed = micros("owed_micros");
        let capture = Micros::new(owed).map_or(0, |owed| owed.floor_to_cent().get());
        let (held, fee) = (micros("held_micros"), micros("fee_predicted_micros"));
        Self { tab: text(row, "id"), owed, held, capture, fee }
    }

    fn json(&self, verb: &str) -> Value {
        json!({
            "dry_run": true,
            "would": verb,
            "tab": self.tab,
            "owed_micros": self.owed,
            "held_micros": self.held,
            "capture_micros": self.capture,
            "fee_predicted_micros": self.fee,
        })
    }

    fn in_words(&self, verb: &str) -> String {
        let held = if self.held > 0 {
            format!(", and at most {} more that is still held", dollars(self.held))
        } else {
            String::new()
        };
        let (tab, owed, capture, fee) =
            (&self.tab, dollars(self.owed), dollars(self.capture), dollars(self.fee));
        format!("{verb} {tab}: owes {owed}; one capture of {capture}{held}; fee ≈ {fee}")
    }
}

async fn close(client: &Client, style: &Style, ending: &Ending) -> Result<(), Failure> {
    let before = find(client, ending.tab.as_deref()).await?;
    let preview = Preview::of(&before);
    let closed = text(&before, "status") == "closed";
    if ending.money.dry_run && closed {
        let words = || format!("{} is closed already: nothing would be done", preview.tab);
        return style.object(&preview.json("nothing"), words);
    }
    if ending.money.dry_run {
        return style.object(&preview.json("close"), || preview.in_words("would close"));
    }
    style.consent(ending.money, true, &format!("{}?", preview.in_words("close"))).await?;
    let path = format!("/v1/tabs/{}/close", preview.tab);
    let call = client.call(Role::Owner, Method::POST, path);
    let row = call.key(ending.idempotency_key.as_deref()).send().await?.json()?;
    if ending.wait == 0 {
        let line = format!("{} {}", preview.tab, text(&row, "status"));
        return style.changed(&row, &line, &format!("earnest tab status {}", preview.tab));
    }
    let (row, last) = watch_tab(client, &preview.tab, ending.wait).await?;
    let settlement = last.as_ref().map(|last| text(last, "id"));
    show(style, row, last)?;
    if let Some(settlement) = settlement {
        style.next(&format!("earnest receipt get {settlement}"));
    }
    Ok(())
}

/// A tab with its last settlement.
fn show(style: &Style, mut row: Value, last: Option<Value>) -> Result<(), Failure> {
    let words = in_words(&row, last.as_ref());
    if let Value::Object(members) = &mut row {
        members.insert("last_settlement".to_owned(), last.unwrap_or_default());
    }
    style.object(&row, || words)
}

/// Looks until a closing tab has come to its end.
async fn watch_tab(
    client: &Client,
    tab: &str,
    seconds: u64,
) -> Result<(Value, Option<Value>), Failure> {
    let deadline = deadline(seconds);
    loop {
        let row = client.get(Role::Owner, format!("/v1/tabs/{tab}")).await?;
        let last = settlements(client, tab, 1).await?.rows.into_iter().next();
        let micros = |name: &str| row.get(name).and_then(Value::as_i64).unwrap_or(0);
        let rest = micros("owed_micros").saturating_add(micros("settling_micros"));
        let over = text(&row, "status") != "closing" && rest < earnest_core::money::MICROS_PER_CENT;
        if text(&row, "status") == "frozen" {
            return Err(last.as_ref().map_or_else(|| declined(&row), declined));
        }
        if over && last.as_ref().is_none_or(has_receipt) {
            return Ok((row, last));
        }
        if Instant::now() >= deadline {
            return Err(still_open(tab, last.as_ref()));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// A receipt is signed a moment after the capture is recorded.
fn has_receipt(settlement: &Value) -> bool {
    text(settlement, "status") != "captured" || !text(settlement, "receipt_url").is_empty()
}

async fn settle(client: &Client, style: &Style, ending: &Ending) -> Result<(), Failure> {
    let before = find(client, ending.tab.as_deref()).await?;
    let preview = Preview::of(&before);
    if ending.money.dry_run {
        return style.object(&preview.json("settle"), || preview.in_words("would settle"));
    }
    style.consent(ending.money, true, &format!("{}?", preview.in_words("settle"))).await?;
    let path = format!("/v1/tabs/{}/settle", preview.tab);
    let call = client.call(Role::Owner, Method::POST, path);
    let mut row = call.key(ending.idempotency_key.as_deref()).send().await?.json()?;
    let settlement = text(&row, "id");
    if ending.wait > 0 {
        row = watch_settlement(client, &settlement, ending.wait).await?;
    }
    let line =
        format!("{settlement} {} {}", status_of_settlement(&row), money(&row, "amount_micros"));
    let next = match text(&row, "receipt_url").is_empty() {
        true => format!("earnest tab settlements {}", preview.tab),
        false => format!("earnest receipt get {settlement}"),
    };
    style.changed(&row, &line, &next)
}

async fn watch_settlement(client: &Client, id: &str, seconds: u64) -> Result<Value, Failure> {
    let deadline = deadline(seconds);
    loop {
        let row = client.get(Role::Owner, format!("/v1/settlements/{id}")).await?;
        match text(&row, "status").as_str() {
            "open" | "unknown" => {}
            "captured" | "amount_mismatch" if has_receipt(&row) => return Ok(row),
            "captured" => {}
            _ => return Err(declined(&row)),
        }
        if Instant::now() >= deadline {
            return Err(still_open(id, Some(&row)));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn deadline(seconds: u64) -> Instant {
    let day = Duration::from_secs(24 * 3600);
    let now = Instant::now();
    now.checked_add(Duration::from_secs(seconds).min(day)).unwrap_or(now)
}

/// The owner's own bank said no; nothing was captured.
fn declined(row: &Value) -> Failure {
    let issue = text(row, "issue");
    let why = format!("{} is {}: {issue}", text(row, "id"), text(row, "status"));
    let refusal = Refusal::new(Code::PaypalDeclined, why.trim_end_matches([':', ' ']));
    Failure::from(refusal.next("earnest method add, then earnest tab settle"))
}

/// Nobody knows yet, which is not the same as *no*.
fn still_open(what: &str, last: Option<&Value>) -> Failure {
    let unknown = last.is_some_and(|row| text(row, "status") == "unknown");
    let (code, why) = match unknown {
        true => (Code::PaymentOutcomeUnknown, "what PayPal did is not known yet"),
        false => (Code::CapturePending, "it is not settled yet"),
    };
    let refusal = Refusal::new(code, format!("{what}: {why}; nothing is charged twice"));
    Failure::from(refusal.next("earnest tab status"))
}

async fn write_off(
    client: &Client,
    style: &Style,
    tab: &str,
    key: Option<&str>,
    money: Money,
) -> Result<(), Failure> {
    let path = format!("/v1/tabs/{}", id(tab)?);
    let before = client.get(Role::Operator, path.clone()).await?;
    let preview = Preview::of(&before);
    let owed = dollars(preview.owed);
    if money.dry_run {
        return style
            .object(&preview.json("write_off"), || format!("would write off {owed} of {tab}"));
    }
    style.consent(money, true, &format!("write off {owed} of {tab}, for good?")).await?;
    let call = client.call(Role::Operator, Method::POST, format!("{path}/write-off"));
    let row = call.key(key).send().await?.json()?;
    let line = format!("{tab} {}: {owed} borne by the operator", text(&row, "status"));
    style.changed(&row, &line, "earnest trial-balance")
}

fn status_of_settlement(row: &Value) -> String {
    let issue = text(row, "issue");
    let status = text(row, "status");
    if issue.is_empty() { status } else { format!("{status}: {issue}") }
}

/// Predicted until PayPal has reported it.
fn fee(row: &Value) -> String {
    let actual = money(row, "fee_micros");
    if actual.is_empty() { format!("≈ {}", money(row, "fee_predicted_micros")) } else { actual }
}

fn in_words(row: &Value, last: Option<&Value>) -> String {
    let single = money(row, "fee_if_single_micros");
    let mut all = vec![
        ("tab", text(row, "id")),
        ("status", text(row, "status")),
        ("owed", money(row, "owed_micros")),
        ("held", money(row, "held_micros")),
        ("under capture", money(row, "settling_micros")),
        ("captured", money(row, "captured_micros")),
        ("carried", money(row, "carry_micros")),
        ("may owe", money(row, "room_micros")),
        ("lines", text(row, "lines")),
        ("fee now", format!("≈ {} predicted", money(row, "fee_predicted_micros"))),
        ("fee if single", format!("≈ {single} for every line captured alone")),
        ("treasurer", text(row, "treasurer")),
        ("carried to", text(row, "carried_to")),
        ("opened", text(row, "opened_at")),
    ];
    if let Some(last) = last {
        let captured = money(last, "captured_micros");
        let asked = money(last, "amount_micros");
        let amount = if captured.is_empty() { asked } else { captured };
        all.push(("settlement", text(last, "id")));
        all.push(("", String::new()));
        all.push((
            "  outcome",
            format!("{} {amount}, fee {}", status_of_settlement(last), fee(last)),
        ));
        all.push(("  capture", text(last, "paypal_capture")));
        all.push(("  receipt", text(last, "receipt_url")));
    }
    facts(&all)
}
