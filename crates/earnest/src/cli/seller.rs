//! `earnest seller`: who is paid, and under which origins.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Style;
use super::client::{Client, Reach, Role, id};
use super::failure::{Ended, Failure};
use super::key::KeyTo;
use super::output::{facts, money, text};
use super::owner::{NewKey, create_with_key, make_key};
use super::rows::Paging;

/// Sellers.
#[derive(Debug, Args)]
pub struct Seller {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// What to do.
    #[command(subcommand)]
    pub verb: SellerVerb,
}

/// What to do with sellers.
#[derive(Debug, Subcommand)]
pub enum SellerVerb {
    /// Creates a seller; prints its id and a key, which is shown once.
    Create {
        /// What people call it.
        name: String,
        /// What the platform keeps of each price, in millionths; at most 500000.
        #[arg(long, default_value_t = 0, value_name = "PPM")]
        commission_ppm: u32,
        /// Where its earnings go: an address or a PayPal id.
        #[arg(long, value_name = "RECIPIENT")]
        payout: Option<String>,
        /// Where the key goes.
        #[command(flatten)]
        key: KeyTo,
    },
    /// Shows a seller and its earnings: yourself, or the one named.
    Show {
        /// `sel_…`
        seller: Option<String>,
    },
    /// Lists sellers, newest first.
    List(Paging),
    /// Where a seller's resources live.
    #[command(subcommand)]
    Origin(OriginVerb),
    /// Makes another key for a seller; it is shown once.
    Key {
        /// `sel_…`; yourself unless said.
        seller: Option<String>,
        /// What the key is for.
        #[arg(long, default_value = "")]
        label: String,
        /// Revoke every other key of the seller.
        #[arg(long)]
        rotate: bool,
        /// Where the key goes.
        #[command(flatten)]
        to: KeyTo,
    },
}

/// What to do with origins.
#[derive(Debug, Subcommand)]
pub enum OriginVerb {
    /// Registers an origin; quotes under it count once it is proved.
    Add {
        /// `https://host[:port]`
        url: String,
    },
    /// Registers an origin and proves it: the server there has to list your id.
    Prove {
        /// `https://host[:port]`
        url: String,
    },
}

/// Runs the command.
pub async fn run(command: Seller, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    match command.verb {
        SellerVerb::Create { name, commission_ppm, payout, key } => {
            let body = json!({
                "name": name,
                "commission_ppm": commission_ppm,
                "payout_recipient": payout,
            });
            let next = "earnest sell --upstream URL --price RULE, with EARNEST_SELLER_KEY_FILE set";
            create_with_key(&client, style, Role::Operator, "/v1/sellers", body, key, next).await?;
        }
        SellerVerb::Show { seller } => {
            let (role, path) = place(&client, seller.as_deref())?;
            let row = client.get(role, path).await?;
            style.object(&row, || in_words(&row))?;
        }
        SellerVerb::List(paging) => {
            let listing = client.list(Role::Operator, "/v1/sellers", &[], paging.limit).await?;
            let heads = ["SELLER", "NAME", ">EARNED", ">HELD", ">DUE", "ORIGINS"];
            style.rows(&listing.rows, heads, |row| {
                [
                    text(row, "id"),
                    text(row, "name"),
                    money(row, "accrued_micros"),
                    money(row, "pending_micros"),
                    money(row, "payable_micros"),
                    origins(row),
                ]
            })?;
            paging.say_more(style, listing.more);
        }
        SellerVerb::Origin(OriginVerb::Add { url }) => {
            let row = put_origin(&client, &url).await?;
            let line = format!("{} {url} registered, not proved", text(&row, "id"));
            style.changed(&row, &line, &format!("earnest seller origin prove {url}"))?;
        }
        SellerVerb::Origin(OriginVerb::Prove { url }) => {
            put_origin(&client, &url).await?;
            let row = prove_origin(&client, &url).await?;
            let line = format!("{} {url} proved", text(&row, "id"));
            style.changed(&row, &line, "earnest seller show")?;
        }
        SellerVerb::Key { seller, label, rotate, to } => {
            let (role, path) = place(&client, seller.as_deref())?;
            let next = "EARNEST_SELLER_KEY_FILE=FILE earnest seller show";
            make_key(&client, style, role, &path, &NewKey { label, rotate, to, next }).await?;
        }
    }
    Ok(std::process::ExitCode::SUCCESS)
}

fn place(client: &Client, seller: Option<&str>) -> Result<(Role, String), Failure> {
    Ok(match seller {
        None => (Role::Seller, "/v1/sellers/me".to_owned()),
        Some(seller) => {
            let role = client.first_of(&[Role::Operator, Role::Seller]);
            (role, format!("/v1/sellers/{}", id(seller)?))
        }
    })
}

/// Registers an origin of one's own.
///
/// # Errors
/// What Earnest answers.
pub async fn put_origin(client: &Client, origin: &str) -> Result<Value, Failure> {
    let body = json!({ "origin": origin });
    client.post(Role::Seller, "/v1/sellers/me/origins", Some(body)).await
}

/// Has Earnest look at an origin of one's own.
///
/// # Errors
/// What Earnest answers.
pub async fn prove_origin(client: &Client, origin: &str) -> Result<Value, Failure> {
    let body = json!({ "origin": origin });
    client.post(Role::Seller, "/v1/sellers/me/origins/prove", Some(body)).await
}

fn origins(row: &Value) -> String {
    let known = row.get("origins").and_then(Value::as_array).into_iter().flatten();
    let show = |known: &Value| {
        let proved = if text(known, "proved_at").is_empty() { "not proved" } else { "proved" };
        format!("{} ({proved})", text(known, "origin"))
    };
    known.map(show).collect::<Vec<_>>().join(", ")
}

fn in_words(row: &Value) -> String {
    facts(&[
        ("seller", text(row, "id")),
        ("name", text(row, "name")),
        ("origins", origins(row)),
        ("earned", money(row, "accrued_micros")),
        ("held", money(row, "pending_micros")),
        ("due", money(row, "payable_micros")),
        ("commission", format!("{} millionths", text(row, "commission_ppm"))),
        ("paid out to", text(row, "payout_recipient")),
        ("created", text(row, "created_at")),
    ])
}
