//! `earnest pay`: buys one thing and writes it to stdout as it comes.

use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use earnest_core::problem::{Code, Refusal};
use earnest_core::quote::{canonical_url, is_loopback};
use earnest_sdk::pay::{PayRequest, Paying, pay};
use earnest_sdk::{Asked, Buyer, OnApproval, Payment};
use http::Method;
use serde_json::{Value, json};

use super::Style;
use super::client::{Client, Reach, Role};
use super::failure::{Ended, Failure};
use super::output::{Money, plain};

/// The most that is read from a file or stdin as the body.
const MAX_DATA_BYTES: u64 = 64 * 1024 * 1024;

/// Asks for a URL, and pays for it if it has a price. The body goes to stdout, the rest to stderr.
///
/// Exit codes: 5 denied, 6 the owner has to approve first, 7 bought before under this id, 8 the
/// seller did not deliver (nothing is charged), 11 not known yet whether it was charged.
#[derive(Args)]
pub struct Pay {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// What to ask for.
    pub url: String,
    /// The most it may cost, such as '$0.25'.
    #[arg(long, allow_hyphen_values = true, value_name = "AMOUNT")]
    pub max_price: String,
    /// Your name for the one thing you want; use it again for every retry of that thing.
    #[arg(long, value_name = "ID")]
    pub request_id: String,
    /// The method; GET unless there is data.
    #[arg(long, short = 'X', value_name = "METHOD")]
    pub method: Option<String>,
    /// The body: text, or @FILE, or @- for stdin.
    #[arg(long, short = 'd', value_name = "DATA")]
    pub body: Option<String>,
    /// A header, 'name: value'; repeat it for more.
    #[arg(long = "header", short = 'H', value_name = "HEADER")]
    pub headers: Vec<String>,
    /// If the owner has to approve first, wait so many seconds for it.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub wait: u64,
    /// How to ask. --dry-run asks for the price and pays nothing; a free URL is then answered.
    #[command(flatten)]
    pub money: Money,
}

impl std::fmt::Debug for Pay {
    /// Without headers and body: credentials of the caller's stand there.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pay")
            .field("url", &self.url)
            .field("max_price", &self.max_price)
            .field("request_id", &self.request_id)
            .finish_non_exhaustive()
    }
}

/// Runs the command.
pub async fn run(command: Pay, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    let max_price = super::amount(&command.max_price)?;
    let request = request(&command)?;
    let buyer = buyer(&client, &command)?;
    if command.money.dry_run {
        quote(&buyer, &request, style).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let question = format!("buy {} {} for at most {max_price}?", request.method, request.url);
    style.consent(command.money, false, &question).await?;
    if style.json {
        let mut body = Vec::new();
        let paying = pay(&buyer, &request, &mut body).await?;
        style.data(&shown(&paying, &request, &body).to_string())?;
        return Ok(ended(&paying));
    }
    let mut stdout = tokio::io::stdout();
    let paying = pay(&buyer, &request, &mut stdout).await?;
    style.talk(&receipt_line(&paying));
    Ok(ended(&paying))
}

fn buyer(client: &Client, command: &Pay) -> Result<Buyer, Failure> {
    let mut http = reqwest::Client::builder();
    // A proxy of the environment stands between this machine and others, not between it and itself.
    if canonical_url(&command.url).is_ok_and(|url| is_loopback(&url)) {
        http = http.no_proxy();
    }
    let key = client.key(Role::Agent)?;
    let buyer = earnest_sdk::wrap(http)
        .earnest_url(client.base())
        .agent_key(&key)
        .max_price(&command.max_price)
        .build()?;
    Ok(buyer)
}

fn request(command: &Pay) -> Result<PayRequest, Failure> {
    let data = command.body.as_deref().map(read_data).transpose()?;
    let usual = if data.is_some() { "POST" } else { "GET" };
    let method = command.method.as_deref().unwrap_or(usual);
    let method = method.parse::<Method>();
    let method = method.map_err(|_| Failure::usage("--method: that is not a method"))?;
    let mut headers = Vec::new();
    for header in &command.headers {
        let parts = header.split_once(':');
        let (name, value) = parts.ok_or_else(|| {
            Failure::usage(format!("--header: `{header}` is not like 'name: value'"))
        })?;
        headers.push((name.trim().to_owned(), value.trim().to_owned()));
    }
    let on_approval = match command.wait {
        0 => OnApproval::Return,
        seconds => OnApproval::Wait(Duration::from_secs(seconds)),
    };
    Ok(PayRequest {
        method,
        headers,
        data: data.unwrap_or_default(),
        on_approval,
        ..PayRequest::get(&command.url, &command.request_id)
    })
}

fn read_data(text: &str) -> Result<Bytes, Failure> {
    let Some(path) = text.strip_prefix('@') else { return Ok(Bytes::from(text.to_owned())) };
    let path = Path::new(path);
    let failed = |why: std::io::Error| Failure::file(path, why);
    let mut bytes = Vec::new();
    let most = MAX_DATA_BYTES.saturating_add(1);
    let read = match path.to_str() {
        Some("-") => std::io::stdin().lock().take(most).read_to_end(&mut bytes),
        _ => std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)),
    };
    let length = u64::try_from(read.map_err(failed)?).unwrap_or(u64::MAX);
    if length > MAX_DATA_BYTES {
        return Err(Failure::file(path, "is larger than 64 MiB"));
    }
    Ok(bytes.into())
}

/// Says what it would cost. What named no price and was not served either fails: it is not free.
async fn quote(buyer: &Buyer, request: &PayRequest, style: &Style) -> Result<(), Failure> {
    let mut asking = buyer
        .request(request.method.clone(), &request.url)
        .request_id(&request.request_id)
        .body(request.data.clone());
    for (name, value) in &request.headers {
        asking = asking.header(name, value);
    }
    let asked = asking.quote().await?;
    match &asked {
        Asked::Priced(quote) => {
            let row = json!({ "dry_run": true, "quote": quote });
            let words = || format!("would cost {} from {}", quote.price.most(), quote.seller);
            style.object(&row, words)
        }
        Asked::Unpriced(_) if asked.is_free() => {
            let row = json!({ "dry_run": true, "quote": Value::Null });
            style.object(&row, || "free: it was answered".to_owned())
        }
        Asked::Unpriced(status) => {
            let why = format!("there is no price: the seller answered {status}");
            Err(Refusal::new(Code::UpstreamFailed, why).into())
        }
    }
}

/// 2xx is what was asked for. Anything else was not delivered, and costs nothing.
fn ended(paying: &Paying) -> ExitCode {
    if paying.status.is_success() { ExitCode::SUCCESS } else { ExitCode::from(8) }
}

const fn paid(payment: Payment) -> &'static str {
    match payment {
        Payment::No => "no",
        Payment::Yes => "yes",
        Payment::Unknown => "unknown",
    }
}

fn receipt_line(paying: &Paying) -> String {
    let status = paying.status;
    let line = match (&paying.paid_for, paying.paid) {
        (None, _) => format!("{status}, free"),
        (Some(paid_for), Payment::No) => format!("{status}, not charged: {}", paid_for.purchase),
        (Some(paid_for), _) => {
            let receipt = paying.receipt.as_ref();
            let at = receipt.map(|receipt| format!(", receipt once settled: {}", receipt.url));
            format!(
                "{status}, paid {}: {}{}",
                paid_for.held,
                paid_for.purchase,
                at.unwrap_or_default()
            )
        }
    };
    plain(&line)
}

fn shown(paying: &Paying, request: &PayRequest, body: &[u8]) -> Value {
    use base64::Engine as _;
    let mut row = json!({
        "status": paying.status.as_u16(),
        "paid": paid(paying.paid),
        "request_id": request.request_id,
        "purchase": paying.paid_for.map(|paid_for| paid_for.purchase),
        "held_micros": paying.paid_for.map(|paid_for| paid_for.held),
        "receipt_url": paying.receipt.as_ref().map(|receipt| &receipt.url),
    });
    let (name, text) = match std::str::from_utf8(body) {
        Ok(text) => ("body", text.to_owned()),
        Err(_) => ("body_base64", base64::engine::general_purpose::STANDARD.encode(body)),
    };
    if let Value::Object(members) = &mut row {
        members.insert(name.to_owned(), text.into());
    }
    row
}
