//! `earnest receipt` and `earnest jwks`: signed statements, and checking them without asking anyone.

use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use earnest_core::jws::{Jwks, KeySet};
use earnest_core::problem::LocalCode;
use earnest_core::receipt::{Claims, SellerLines, Verified, VerifiedLines, verify, verify_lines};
use earnest_core::time::Timestamp;
use http::Method;
use serde_json::{Value, json};

use super::Style;
use super::client::{Client, Reach, Role, id};
use super::failure::{Ended, Failure};
use super::output::{facts, text};

/// The most that is read of a receipt or key set: a receipt of 10 000 lines is about 4 MB.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
const JWKS_PATH: &str = "/.well-known/jwks.json";

/// Receipts.
#[derive(Debug, Args)]
pub struct Receipt {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
    /// What to do.
    #[command(subcommand)]
    pub verb: ReceiptVerb,
}

/// What to do with receipts.
#[derive(Debug, Subcommand)]
pub enum ReceiptVerb {
    /// Checks a receipt: offline, when the key set is a file. Exit code 9 when it does not verify.
    Verify {
        /// The signed statement, or the JSON of its public page, or the address of that page; - for
        /// stdin.
        #[arg(value_name = "FILE|URL")]
        file: String,
        /// The issuer's key set, a file or a URL; without it, that of the Earnest at --url. Nothing
        /// the receipt itself says about keys is followed.
        #[arg(long, value_name = "FILE|URL")]
        jwks: Option<String>,
        /// Accept a signature of a key that was retired since. Then only the issuer's log can show
        /// that the receipt is older than that.
        #[arg(long)]
        accept_retired: bool,
    },
    /// Fetches a signed receipt.
    Get {
        /// The token of its public page, or `set_…`.
        receipt: String,
    },
}

/// Prints the public keys of an Earnest, for checking receipts offline.
#[derive(Debug, Args)]
pub struct JwksCommand {
    /// Which Earnest.
    #[command(flatten)]
    pub reach: Reach,
}

/// Runs `earnest receipt`.
pub async fn run(command: Receipt, style: &Style) -> Ended {
    match command.verb {
        ReceiptVerb::Verify { file, jwks, accept_retired } => {
            let bytes = match is_url(&file) {
                true => fetch(&command.reach, &file).await?,
                false => read(&file)?,
            };
            let (token, shown) = statement_in(&bytes);
            let keys = key_set(&command.reach, jwks.as_deref()).await?;
            let verified = checked(&token, &keys);
            // A page says beside the statement what it claims; people read that part.
            let verified = verified.and_then(|verified| {
                let signed = Some(verified.claims());
                match shown {
                    Some(shown) if Some(&shown) != signed.as_ref() => {
                        Err("the claims shown beside it are not the signed ones".to_owned())
                    }
                    _ => Ok(verified),
                }
            });
            let verified = verified.and_then(|verified| match verified.key_retired_at() {
                Some(at) if !accept_retired => Err(format!(
                    "its key was retired at {at}: only the issuer's log can show that it is older"
                )),
                _ => Ok(verified),
            });
            verdict(style, verified)
        }
        ReceiptVerb::Get { receipt } => {
            let client = Client::new(&command.reach)?;
            let token = match receipt.starts_with("set_") {
                true => token_of_settlement(&client, &receipt).await?,
                false => receipt,
            };
            let row = client.get_public(format!("/r/{}", id(&token)?)).await?;
            style.object(&row, || text(&row, "receipt"))?;
            style.next("earnest receipt verify FILE, with what was printed");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What a statement turned out to be.
enum Checked {
    Receipt(Box<Verified>),
    Lines(Box<VerifiedLines>),
}

fn checked(token: &str, keys: &KeySet) -> Result<Checked, String> {
    match (verify(token, keys), verify_lines(token, keys)) {
        (Ok(receipt), _) => Ok(Checked::Receipt(Box::new(receipt))),
        (_, Ok(lines)) => Ok(Checked::Lines(Box::new(lines))),
        (Err(why), Err(_)) => Err(why.to_string()),
    }
}

impl Checked {
    fn claims(&self) -> Value {
        match self {
            Self::Receipt(receipt) => json!(receipt.claims),
            Self::Lines(lines) => json!(lines.claims),
        }
    }

    fn key_retired_at(&self) -> Option<Timestamp> {
        match self {
            Self::Receipt(receipt) => receipt.key_retired_at,
            Self::Lines(lines) => lines.key_retired_at,
        }
    }
}

/// Runs `earnest jwks`: JSON in any case, since it is for programs.
pub async fn jwks(command: JwksCommand, style: &Style) -> Ended {
    let client = Client::new(&command.reach)?;
    style.data(&client.get_public(JWKS_PATH).await?.to_string())?;
    Ok(ExitCode::SUCCESS)
}

async fn token_of_settlement(client: &Client, settlement: &str) -> Result<String, Failure> {
    let role = client.first_of(&[Role::Owner, Role::Operator]);
    let row = client.get(role, format!("/v1/settlements/{}", id(settlement)?)).await?;
    let url = text(&row, "receipt_url");
    match url.rsplit_once('/') {
        Some((_, token)) => Ok(token.to_owned()),
        None => {
            let why = format!("{settlement} is {} and has no receipt", text(&row, "status"));
            Err(super::not_found(&why))
        }
    }
}

fn read(file: &str) -> Result<Vec<u8>, Failure> {
    let path = Path::new(file);
    let most = MAX_BYTES.saturating_add(1);
    let mut bytes = Vec::new();
    let read = match file {
        "-" => std::io::stdin().lock().take(most).read_to_end(&mut bytes),
        _ => std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)),
    };
    read.map_err(|why| match why.kind() {
        std::io::ErrorKind::NotFound => super::not_found(&format!("there is no file `{file}`")),
        _ => Failure::file(path, why),
    })?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_BYTES {
        return Err(Failure::file(path, "is larger than 16 MiB"));
    }
    Ok(bytes)
}

/// The signed statement in a file: bare, or the member `receipt` of its public page or `lines` of a
/// seller's answer, with the claims that are shown beside it. Anything else is taken as it is, and does not verify.
fn statement_in(bytes: &[u8]) -> (String, Option<Value>) {
    let page: Option<Value> = serde_json::from_slice(bytes).ok();
    let statement =
        page.as_ref().and_then(|page| page.get("receipt").or_else(|| page.get("lines")));
    match statement.and_then(Value::as_str) {
        Some(token) => {
            let shown = page.as_ref().and_then(|page| page.get("claims"));
            (token.to_owned(), shown.filter(|shown| !shown.is_null()).cloned())
        }
        None => (String::from_utf8_lossy(bytes).trim().to_owned(), None),
    }
}

async fn key_set(reach: &Reach, jwks: Option<&str>) -> Result<KeySet, Failure> {
    let bytes = match jwks {
        None => serde_json::to_vec(&Client::new(reach)?.get_public(JWKS_PATH).await?),
        Some(url) if is_url(url) => Ok(fetch(reach, url).await?),
        Some(file) => Ok(read(file)?),
    };
    let read = bytes.and_then(|bytes| serde_json::from_slice::<Jwks>(&bytes));
    let set = read.map_err(|why| Failure::usage(format!("--jwks: not a key set: {why}")))?;
    Ok(KeySet::new(&set))
}

fn is_url(text: &str) -> bool {
    text.starts_with("https://") || text.starts_with("http://")
}

/// What stands at an address; no key goes there.
async fn fetch(reach: &Reach, url: &str) -> Result<Vec<u8>, Failure> {
    let (base, path) = split_url(url)?;
    let client = Client::new(&Reach { url: Some(base), ..reach.clone() })?;
    Ok(client.call_public(Method::GET, path).send().await?.body)
}

/// Scheme, host and port; and the rest.
fn split_url(text: &str) -> Result<(String, String), Failure> {
    let url = earnest_core::quote::canonical_url(text).map_err(Failure::from)?;
    let path = url
        .query()
        .map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    Ok((url.origin().ascii_serialization(), path))
}

fn verdict(style: &Style, verified: Result<Checked, String>) -> Ended {
    match verified {
        Ok(checked) => {
            let (claims, key_retired_at) = (checked.claims(), checked.key_retired_at());
            let row = json!({ "valid": true, "claims": claims, "key_retired_at": key_retired_at });
            style.object(&row, || match &checked {
                Checked::Receipt(receipt) => in_words(&receipt.claims),
                Checked::Lines(lines) => lines_in_words(&lines.claims),
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Err(why) => {
            if style.json {
                style.data(&json!({ "valid": false, "error": why }).to_string())?;
            }
            Err(Failure::local(
                LocalCode::VerificationFailed,
                9,
                format!("the receipt does not verify: {why}"),
            ))
        }
    }
}

fn mode(mode: &str) -> String {
    match mode {
        "live" => "live".to_owned(),
        mode => format!("{mode}: no real money"),
    }
}

fn signed_at(iat: i64) -> String {
    Timestamp::from_second(iat).map(|at| at.to_string()).unwrap_or_default()
}

fn lines_in_words(claims: &SellerLines) -> String {
    facts(&[
        ("lines", format!("of receipt {} are valid", claims.jti)),
        ("signed by", claims.iss.clone()),
        ("signed at", signed_at(claims.iat)),
        ("mode", mode(&claims.mode)),
        ("seller", claims.seller.to_string()),
        ("lines", format!("{} for {}", claims.lines.len(), claims.lines_micros)),
        ("receipt hash", claims.receipt_sha256.clone()),
    ])
}

fn in_words(claims: &Claims) -> String {
    facts(&[
        ("receipt", format!("{} is valid", claims.jti)),
        ("signed by", claims.iss.clone()),
        ("signed at", signed_at(claims.iat)),
        ("mode", mode(&claims.mode)),
        ("tab", format!("{}, settlement {}", claims.tab, claims.n)),
        ("lines", format!("{} for {}", claims.lines.len(), claims.lines_micros)),
        ("carried in", claims.carry_in_micros.to_string()),
        ("carried out", claims.carry_out_micros.to_string()),
        ("captured", claims.captured_micros.to_string()),
        ("fee", format!("{}, {} was predicted", claims.fee_micros, claims.fee_predicted_micros)),
        ("capture", claims.paypal.capture.clone()),
        ("invoice", claims.paypal.invoice.clone()),
    ])
}
