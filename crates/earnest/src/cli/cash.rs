//! `earnest reconcile`, `earnest cash`, `earnest suspense`: PayPal's balance as the operator minds it.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use serde_json::{Value, json};

use super::client::{Client, Reach, Role, id};
use super::failure::{Ended, Failure};
use super::output::{Money, dollars, facts, money, text};
use super::rows::Paging;
use super::{Style, amount};

/// Compares the books with PayPal's records, line by line: exit code 10 when something is not
/// explained.
#[derive(Debug, Args)]
pub struct Reconcile {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// Show what the last comparison found, and make none.
    #[arg(long)]
    pub last: bool,
    /// What else to do.
    #[command(subcommand)]
    pub verb: Option<ReconcileVerb>,
}

/// What to do with lines that are not explained.
#[derive(Debug, Subcommand)]
pub enum ReconcileVerb {
    /// Says that a line is known and moves no money of these books, such as a payment in another
    /// currency. What does move their money is refused: record it with `earnest cash record`.
    Acknowledge {
        /// PayPal's id of the transaction, as the comparison lists it.
        paypal_id: String,
        /// Why nothing is to be booked; kept for good.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// One key for one wish; a repeat with the same key does nothing twice.
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// How to ask.
        #[command(flatten)]
        money: Money,
    },
    /// Lists what was acknowledged, newest first.
    Acknowledged(Paging),
}

/// What the operator moved at PayPal by hand.
#[derive(Debug, Args)]
pub struct Cash {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// What to do.
    #[command(subcommand)]
    pub verb: CashVerb,
}

/// What to do with the operator's cash.
#[derive(Debug, Subcommand)]
pub enum CashVerb {
    /// Records what happened in PayPal's own pages; the comparison finds it by PayPal's id.
    Record {
        /// What it was.
        kind: Kind,
        /// How much, without the fee, such as '$50'.
        #[arg(allow_hyphen_values = true)]
        amount: String,
        /// PayPal's id of the transaction.
        #[arg(long, value_name = "ID")]
        paypal_id: String,
        /// What PayPal took of it.
        #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true)]
        fee: Option<String>,
        /// `own_…` who repaid a debt.
        #[arg(long)]
        owner: Option<String>,
        /// One key for one wish; a repeat with the same key does nothing twice.
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// How to ask.
        #[command(flatten)]
        money: Money,
    },
    /// Takes back what was recorded by mistake, once; PayPal's record is then booked as what it is.
    Void {
        /// PayPal's id that it was recorded under.
        paypal_id: String,
        /// Why, in one line; it stays with the entry.
        #[arg(long, value_name = "WHY")]
        reason: String,
        /// One key for one wish; a repeat with the same key does nothing twice.
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// How to ask.
        #[command(flatten)]
        money: Money,
    },
    /// Lists what was recorded, newest first.
    List(Paging),
}

/// What the operator moved.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Kind {
    /// Your own money in.
    Deposit,
    /// Your own money out.
    Withdrawal,
    /// An owner paid a debt.
    Repayment,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Deposit => "deposit",
            Self::Withdrawal => "withdrawal",
            Self::Repayment => "repayment",
        }
    }
}

/// Money that arrived and matches nothing.
#[derive(Debug, Args)]
pub struct Suspense {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// What to do.
    #[command(subcommand)]
    pub verb: SuspenseVerb,
}

/// What to do with suspense.
#[derive(Debug, Subcommand)]
pub enum SuspenseVerb {
    /// Lists what is in suspense, newest first.
    List(Paging),
    /// Says where a payment belongs. To give it back, refund it in PayPal's pages: it leaves by itself.
    Clear {
        /// PayPal's id of the capture.
        capture: String,
        /// Where it belongs.
        #[command(flatten)]
        to: Belongs,
        /// How much; all of it that the place takes, unless said.
        #[arg(long, allow_hyphen_values = true)]
        amount: Option<String>,
        /// One key for one wish; a repeat with the same key does nothing twice.
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// How to ask.
        #[command(flatten)]
        money: Money,
    },
}

/// Where money belongs.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Belongs {
    /// The owner whose prepaid credit it becomes.
    #[arg(long, value_name = "OWNER")]
    pub credit: Option<String>,
    /// The owner whose debt it repays.
    #[arg(long, value_name = "OWNER")]
    pub debt: Option<String>,
    /// The frozen or closed tab whose whole rest it pays.
    #[arg(long)]
    pub tab: Option<String>,
}

/// Runs `earnest reconcile`.
pub async fn reconcile(command: Reconcile, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    if let Some(verb) = command.verb {
        return acknowledgements(&client, style, verb).await;
    }
    let path = "/v1/reconciliation";
    let row = match command.last {
        true => client.get(Role::Operator, path).await?,
        false => client.post(Role::Operator, path, None).await?,
    };
    style.object(&row, || in_words(&row))?;
    let bad = text(&row, "status") == "unexplained";
    if bad {
        let lines = text(&row, "unexplained_lines");
        let rest = money(&row, "difference_micros");
        let accounted = row.get("difference_micros").and_then(Value::as_i64).unwrap_or(0) == 0;
        let why = match accounted {
            true => format!("{lines} lines are not explained"),
            false => format!("{lines} lines are not explained; no line accounts for {rest}"),
        };
        style.talk(&why);
    }
    Ok(ExitCode::from(if bad { 10 } else { 0 }))
}

async fn acknowledgements(client: &Client, style: &Style, verb: ReconcileVerb) -> Ended {
    let path = "/v1/reconciliation/acknowledgements";
    match verb {
        ReconcileVerb::Acknowledge { paypal_id, reason, idempotency_key, money } => {
            let body = json!({ "paypal_id": paypal_id, "reason": reason });
            if money.dry_run {
                style.object(&body, || format!("would acknowledge {paypal_id}: {reason}"))?;
                return Ok(ExitCode::SUCCESS);
            }
            style.consent(money, true, &format!("acknowledge {paypal_id}, for good?")).await?;
            let call = client.call(Role::Operator, Method::POST, path).body(body);
            let row = call.key(idempotency_key.as_deref()).send().await?.json()?;
            style.changed(&row, &format!("acknowledged {paypal_id}"), "earnest reconcile")?;
        }
        ReconcileVerb::Acknowledged(paging) => {
            let listing = client.list(Role::Operator, path, &[], paging.limit).await?;
            let heads = ["PAYPAL ID", "REASON", "BY", "TIME"];
            style.rows(&listing.rows, heads, |row| {
                ["paypal_id", "reason", "by", "at"].map(|name| text(row, name))
            })?;
            paging.say_more(style, listing.more);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn in_words(row: &Value) -> String {
    let or = |name: &str, otherwise: &str| match money(row, name) {
        amount if amount.is_empty() => otherwise.to_owned(),
        amount => amount,
    };
    let missing = text(row, "opening_missing");
    let unknown = match missing.is_empty() {
        true => "not known; only movements are compared".to_owned(),
        false => format!("not known: {missing}; only movements are compared"),
    };
    let mut all = facts(&[
        ("status", text(row, "status")),
        ("compared", text(row, "at")),
        ("up to", text(row, "horizon")),
        ("from", text(row, "from")),
        ("opening balance", or("opening_micros", &unknown)),
        ("in the books", money(row, "books_micros")),
        ("at PayPal", or("paypal_micros", "not known")),
        ("in transit", money(row, "in_transit_micros")),
        ("unexplained", money(row, "unexplained_micros")),
        ("in no line", money(row, "difference_micros")),
        ("lines that agree", text(row, "matched")),
        ("holds that ended", text(row, "netted_lines")),
        ("acknowledged", text(row, "acknowledged_lines")),
        ("looked through", text(row, "looked_at")),
        ("not since, because", text(row, "look_missed")),
    ]);
    for (name, head) in [("unexplained", "not explained:"), ("in_transit", "in transit:")] {
        let lines = row.get(name).and_then(Value::as_array);
        let mut lines: Vec<String> = lines.into_iter().flatten().map(line).collect();
        let kept = u64::try_from(lines.len()).unwrap_or(u64::MAX);
        let all_lines = row.get(format!("{name}_lines")).and_then(Value::as_u64).unwrap_or(0);
        let more = all_lines.saturating_sub(kept);
        if more > 0 {
            lines.push(format!("  and {more} more, none of them worse"));
        }
        if !lines.is_empty() {
            all = format!("{all}\n\n{head}\n{}", lines.join("\n"));
        }
    }
    all
}

/// One line: PayPal's id, why it stands here, what each side says.
fn line(row: &Value) -> String {
    let side = |name: &str, says: &str| {
        let figures = row.get(name)?;
        let micros = |member: &str| figures.get(member).and_then(Value::as_i64).unwrap_or(0);
        let (gross, fee) = (dollars(micros("gross_micros")), dollars(micros("fee_micros")));
        Some(format!("{says} {gross}, fee {fee}"))
    };
    let code = text(row, "code");
    let code = (!code.is_empty()).then(|| format!("{code} {}", text(row, "code_says")));
    let parts = [
        Some(text(row, "why").replace('_', " ")),
        code,
        side("ours", "ours"),
        side("theirs", "PayPal's"),
        row.get("foreign").map(|it| {
            let micros = it.get("gross_micros").and_then(Value::as_i64).unwrap_or(0);
            let (sign, whole) = (if micros < 0 { "-" } else { "" }, micros.unsigned_abs());
            let (units, rest) = (whole / 1_000_000, whole % 1_000_000 / 10_000);
            format!("PayPal's {sign}{units}.{rest:02} {}", text(it, "currency"))
        }),
    ];
    let said: Vec<String> = parts.into_iter().flatten().collect();
    format!("  {}  {}", text(row, "id"), super::output::plain(&said.join("; ")))
}

/// Runs `earnest cash`.
pub async fn cash(command: Cash, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    let path = "/v1/cash-entries";
    match command.verb {
        CashVerb::Record {
            kind,
            amount: how_much,
            paypal_id,
            fee,
            owner,
            idempotency_key,
            money,
        } => {
            let micros = amount(&how_much)?;
            let fee = fee.as_deref().map(amount).transpose()?;
            let body = json!({
                "kind": kind.as_str(),
                "paypal_id": paypal_id,
                "amount": micros.to_decimal(),
                "fee": fee.map(earnest_core::money::Micros::to_decimal),
                "owner": owner,
            });
            let what = format!("a {} of {micros}, {paypal_id}", kind.as_str());
            if money.dry_run {
                style.object(&body, || format!("would record {what}"))?;
                return Ok(ExitCode::SUCCESS);
            }
            style.consent(money, true, &format!("record {what}?")).await?;
            let call = client.call(Role::Operator, Method::POST, path).body(body);
            let row = call.key(idempotency_key.as_deref()).send().await?.json()?;
            style.changed(&row, &format!("recorded {what}"), "earnest reconcile")?;
        }
        CashVerb::Void { paypal_id, reason, idempotency_key, money } => {
            let body = json!({ "reason": reason });
            if money.dry_run {
                style.object(&body, || format!("would take back {paypal_id}"))?;
                return Ok(ExitCode::SUCCESS);
            }
            style.consent(money, true, &format!("take back {paypal_id}, for good?")).await?;
            let path = format!("{path}/{}/void", id(&paypal_id)?);
            let call = client.call(Role::Operator, Method::POST, path).body(body);
            let row = call.key(idempotency_key.as_deref()).send().await?.json()?;
            style.changed(&row, &format!("took back {paypal_id}"), "earnest reconcile")?;
        }
        CashVerb::List(paging) => {
            let listing = client.list(Role::Operator, path, &[], paging.limit).await?;
            let heads = ["PAYPAL ID", "KIND", ">AMOUNT", ">FEE", "OWNER", "TIME", "TAKEN BACK"];
            style.rows(&listing.rows, heads, |row| {
                [
                    text(row, "paypal_id"),
                    text(row, "kind"),
                    super::output::money(row, "amount_micros"),
                    super::output::money(row, "fee_micros"),
                    text(row, "owner"),
                    text(row, "at"),
                    text(row, "void_reason"),
                ]
            })?;
            paging.say_more(style, listing.more);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `earnest suspense`.
pub async fn suspense(command: Suspense, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    match command.verb {
        SuspenseVerb::List(paging) => {
            let path = "/v1/suspense";
            let listing = client.list(Role::Operator, path, &[], paging.limit).await?;
            let heads = ["CAPTURE", "WHY", ">AMOUNT", ">LEFT", "INVOICE", "TIME"];
            style.rows(&listing.rows, heads, |row| {
                [
                    text(row, "paypal_capture"),
                    text(row, "why").replace('_', " "),
                    money(row, "amount_micros"),
                    money(row, "left_micros"),
                    text(row, "invoice_id"),
                    text(row, "at"),
                ]
            })?;
            paging.say_more(style, listing.more);
        }
        SuspenseVerb::Clear { capture, to, amount: how_much, idempotency_key, money } => {
            clear(&client, style, &capture, to, how_much, idempotency_key.as_deref(), money)
                .await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn clear(
    client: &Client,
    style: &Style,
    capture: &str,
    to: Belongs,
    how_much: Option<String>,
    key: Option<&str>,
    asks: Money,
) -> Result<(), Failure> {
    let micros = how_much.as_deref().map(amount).transpose()?;
    let places = [("credit", to.credit), ("debt", to.debt), ("tab", to.tab)];
    let mut places = places.into_iter().filter_map(|(name, whose)| Some((name, whose?)));
    let Some((place, whose)) = places.next() else {
        return Err(Failure::usage("say where it belongs: --credit, --debt or --tab"));
    };
    let sum = micros.map_or_else(|| "what fits".to_owned(), |micros| micros.to_string());
    let what = format!("{sum} of {capture} to the {place} {whose}");
    let body = json!({
        "to": place,
        "id": whose,
        "amount": micros.map(earnest_core::money::Micros::to_decimal),
    });
    if asks.dry_run {
        return style.object(&body, || format!("would clear {what}"));
    }
    style.consent(asks, true, &format!("clear {what}, for good?")).await?;
    let path = format!("/v1/suspense/{}/clear", id(capture)?);
    let call = client.call(Role::Operator, Method::POST, path).body(body).key(key);
    let row = call.send().await?.json()?;
    let left = money(&row, "left_micros");
    style.changed(&row, &format!("cleared {what}; {left} left"), "earnest suspense list")
}

/// The operator bears an owner's debt: `earnest owner forgive-debt`.
///
/// # Errors
/// What Earnest answers.
pub async fn forgive(
    client: &Client,
    style: &Style,
    owner: &str,
    key: Option<&str>,
    asks: Money,
) -> Result<(), Failure> {
    let path = format!("/v1/owners/{}", id(owner)?);
    let before = client.get(Role::Operator, path.clone()).await?;
    let debt = money(&before, "debt_micros");
    if asks.dry_run {
        return style.object(&before, || format!("would bear {debt} that {owner} owes"));
    }
    style.consent(asks, true, &format!("bear {debt} that {owner} owes, for good?")).await?;
    let call = client.call(Role::Operator, Method::POST, format!("{path}/debt/forgive"));
    let row = call.key(key).send().await?.json()?;
    let line = format!("{owner}: {debt} borne by the operator");
    style.changed(&row, &line, "earnest trial-balance")
}
