//! `earnest trail`: what passed between Earnest and PayPal about one thing.

use clap::Args;
use http::Method;
use serde_json::Value;

use super::Style;
use super::client::{Client, Reach, Role};
use super::failure::Ended;
use super::output::{money, plain, text};

/// Shows every PayPal call, answer, debug id and webhook about one thing.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("about").required(true))]
pub struct Trail {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// About a tab.
    #[arg(long, group = "about", value_name = "TAB")]
    pub tab: Option<String>,
    /// About the tab of a purchase.
    #[arg(long, group = "about", value_name = "PURCHASE")]
    pub purchase: Option<String>,
    /// About a settlement.
    #[arg(long, group = "about", value_name = "SETTLEMENT")]
    pub settlement: Option<String>,
    /// About a way to pay.
    #[arg(long, group = "about", value_name = "METHOD")]
    pub method: Option<String>,
}

/// Runs the command.
pub async fn run(command: Trail, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    let role = client.first_of(&[Role::Owner, Role::Operator]);
    let mut call = client.call(role, Method::GET, "/v1/paypal/trail");
    let about = [
        ("tab", command.tab),
        ("purchase", command.purchase),
        ("settlement", command.settlement),
        ("payment_method", command.method),
    ];
    for (name, value) in about {
        if let Some(value) = value {
            call = call.query(name, value);
        }
    }
    let trail = call.send().await?.json()?;
    style.object(&trail, || in_words(&trail))?;
    Ok(std::process::ExitCode::SUCCESS)
}

fn members<'a>(row: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    row.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// What a call is for, such as `settlement set_…`.
fn purpose(intent: &Value) -> String {
    let purpose = intent.get("purpose").unwrap_or(&Value::Null);
    format!("{} {}", text(purpose, "for").replace('_', " "), text(purpose, "id"))
}

/// How a webhook was found to be PayPal's.
fn verified(event: &Value) -> String {
    match text(event, "verified").as_str() {
        "" => String::new(),
        how => format!("verified ({how})"),
    }
}

fn in_words(trail: &Value) -> String {
    let mut lines = Vec::new();
    for intent in members(trail, "intents") {
        let head = [
            text(intent, "id"),
            purpose(intent),
            text(intent, "status"),
            money(intent, "amount_micros"),
            text(intent, "issue"),
        ];
        lines.push(
            head.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("  "),
        );
        lines.push(format!("  sent {} times under {}", text(intent, "sends"), text(intent, "key")));
        let names =
            [("invoice", "invoice_id"), ("order", "paypal_order"), ("capture", "paypal_capture")];
        for (name, member) in names {
            let value = text(intent, member);
            if !value.is_empty() {
                lines.push(format!("  {name} {value}"));
            }
        }
        if let Some(request) = intent.get("request").filter(|request| request.is_object()) {
            let body = request.get("body").unwrap_or(&Value::Null);
            lines.push(format!("  request {} {body}", text(request, "path")));
        }
        for piece in members(intent, "evidence") {
            let said = piece.get("said").unwrap_or(&Value::Null);
            let parts = [
                text(said, "operation"),
                text(said, "status"),
                text(said, "outcome"),
                text(said, "issue"),
                text(said, "said"),
                text(said, "debug_id"),
            ];
            let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            lines.push(format!(
                "  {} {}: {}",
                text(piece, "at"),
                text(piece, "how"),
                parts.join(" ")
            ));
        }
    }
    for event in members(trail, "webhooks") {
        let parts = [
            text(event, "received_at"),
            text(event, "event_type"),
            text(event, "id"),
            text(event, "resource"),
            verified(event),
        ];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        lines.push(format!("webhook {}", parts.join("  ")));
    }
    if lines.is_empty() {
        return "PayPal was not called about that".to_owned();
    }
    lines.iter().map(|line| plain(line)).collect::<Vec<_>>().join("\n")
}
