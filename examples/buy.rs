//! The smallest buyer: asks for one URL, pays if it must, and writes the body out as it comes.
//!
//! ```text
//! cargo run -p earnest-sdk --example buy -- http://127.0.0.1:8080/weather/delft delft-1 '$0.25'
//! ```
//!
//! The second argument is your name for the one thing you want: under the same name it is never
//! charged twice. `EARNEST_URL` and `EARNEST_AGENT_KEY_FILE` say who buys; without them, the agent of
//! an `earnest up` that was started in the same folder. It ends as `earnest pay` does: 0 when it got
//! what it asked for, 5 denied, 8 not delivered, 11 when it is not known whether it was charged.

use std::env;
use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

use earnest_sdk::{BuyError, Buyer, wrap};
use futures_util::StreamExt as _;
use serde_json::Value;

/// Where `earnest up` keeps the keys it makes in simulated mode.
const DEV_KEYS: &str = "earnest-data/dev-keys.json";

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [url, request_id, max_price] = arguments.as_slice() else {
        return Err("usage: buy URL REQUEST_ID MAX_PRICE".into());
    };
    let earnest = env::var("EARNEST_URL").unwrap_or_else(|_| "http://127.0.0.1:4020".to_owned());
    let buyer = wrap(reqwest::Client::builder())
        .earnest_url(&earnest)
        .agent_key(&agent_key()?)
        .max_price(max_price)
        .build()?;
    match buy(&buyer, url, request_id).await {
        Ok(code) => Ok(code),
        Err(error) => {
            eprintln!("{}, paid: {:?}: {error}", error.code(), error.paid());
            Ok(ExitCode::from(error.exit_code()))
        }
    }
}

async fn buy(buyer: &Buyer, url: &str, request_id: &str) -> Result<ExitCode, BuyError> {
    let answer = buyer.get(url).request_id(request_id).send().await?;
    let (status, paid) = (answer.status(), answer.paid());
    let mut stdout = std::io::stdout();
    let mut body = answer.into_stream();
    while let Some(chunk) = body.next().await {
        if let Err(why) = stdout.write_all(&chunk?).and_then(|()| stdout.flush()) {
            eprintln!("the answer could not be written: {why}");
            return Ok(ExitCode::FAILURE);
        }
    }
    eprintln!("{status}, paid: {paid:?}");
    Ok(if status.is_success() { ExitCode::SUCCESS } else { ExitCode::from(8) })
}

/// The key of the environment, or the one that `earnest up` makes for trying things out.
fn agent_key() -> Result<String, Box<dyn Error>> {
    if let Ok(file) = env::var("EARNEST_AGENT_KEY_FILE") {
        return Ok(std::fs::read_to_string(file)?);
    }
    let text = std::fs::read_to_string(DEV_KEYS)
        .map_err(|why| format!("EARNEST_AGENT_KEY_FILE is not set, and {DEV_KEYS}: {why}"))?;
    let keys: Value = serde_json::from_str(&text)?;
    let key = keys.pointer("/agent/key").and_then(Value::as_str);
    key.map(str::to_owned).ok_or_else(|| format!("{DEV_KEYS} has no agent").into())
}
