//! An agent that buys what it needs to answer a question, inside limits it cannot change.
//!
//! Beside the paid API of this folder and an `earnest up` that was just started in the same one:
//!
//! ```text
//! cargo run -p earnest-sdk --example research_agent -- http://127.0.0.1:8080 "how is Delft?"
//! ```
//!
//! Elsewhere `EARNEST_URL` and `EARNEST_AGENT_KEY_FILE` say who buys. By default it is scripted: it
//! buys a list of things and says what came of each. With `OPENAI_BASE_URL` and `EARNEST_MODEL` set
//! (and `OPENAI_API_KEY_FILE`, if the endpoint wants a key) any OpenAI-compatible model drives it
//! through one tool, `buy`. The model chooses what to ask for; it never sees a key, and what may be
//! spent is decided elsewhere.

use std::env;
use std::error::Error;
use std::time::Duration;

use earnest_sdk::{BuyError, Buyer, OnApproval, wrap};
use serde_json::{Value, json};

/// What the scripted agent buys; the last two are dear on purpose.
const SCRIPT: [&str; 4] = ["/weather/delft", "/weather/gouda", "/report/delft", "/archive"];
/// How long to wait for an owner's answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// The most exchanges with a model before it must have answered.
const MOST_TURNS: usize = 8;
/// The most text of one purchase a model is shown.
const MOST_TEXT: usize = 4_000;

/// Where `earnest up` keeps the keys it makes in simulated mode.
const DEV_KEYS: &str = "earnest-data/dev-keys.json";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let shop = arguments.next().unwrap_or_else(|| "http://127.0.0.1:8080".to_owned());
    let question = arguments.next().unwrap_or_else(|| "how is the weather in Delft?".to_owned());
    let earnest = env::var("EARNEST_URL").unwrap_or_else(|_| "http://127.0.0.1:4020".to_owned());
    let buyer = wrap(reqwest::Client::builder().timeout(Duration::from_secs(60)))
        .earnest_url(&earnest)
        .agent_key(&agent_key()?)
        .max_price(&env::var("MAX_PRICE").unwrap_or_else(|_| "$10.00".to_owned()))
        .build()?;
    // One run is one piece of work: the same run repeated buys nothing twice.
    let run = env::var("RUN_ID").unwrap_or_else(|_| format!("run-{}", std::process::id()));
    let agent = Agent { buyer, shop, run };
    match (env::var("OPENAI_BASE_URL"), env::var("EARNEST_MODEL")) {
        (Ok(base), Ok(model)) => println!("{}", agent.ask(&base, &model, &question).await?),
        _ => agent.follow_script().await,
    }
    Ok(())
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

struct Agent {
    buyer: Buyer,
    shop: String,
    run: String,
}

impl Agent {
    async fn follow_script(&self) {
        for path in SCRIPT {
            println!("{path}: {}", self.buy(path).await);
        }
    }

    /// Buys one path of the shop. Whatever becomes of it, in words: a refusal is something an agent
    /// can reason about, not a crash.
    async fn buy(&self, path: &str) -> String {
        let url = format!("{}{path}", self.shop);
        let id = format!("{}:{}", self.run, path.replace(|c: char| !c.is_ascii_graphic(), "_"));
        let asking = self.buyer.get(&url).request_id(&id);
        let bought = async {
            let mut answer = asking.send().await;
            if let Err(BuyError::ApprovalNeeded(question)) = &answer {
                eprintln!(
                    "{path} waits for its owner: `earnest approvals`, {}",
                    question.approval_url
                );
                answer = asking.on_approval(OnApproval::Wait(PATIENCE)).send().await;
            }
            let answer = answer?;
            let cost = answer.paid_for().map_or("nothing".to_owned(), |paid| paid.held.to_string());
            let status = answer.status();
            Ok::<_, BuyError>(format!("{status}, paid {cost}: {}", answer.text().await?))
        };
        bought.await.unwrap_or_else(|error| format!("not bought ({}): {error}", error.code()))
    }

    /// Lets a model decide what to buy until it answers in words.
    async fn ask(&self, base: &str, model: &str, question: &str) -> Result<String, Box<dyn Error>> {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(120)).build()?;
        let url = format!("{}/chat/completions", base.trim_end_matches('/'));
        let key = env::var("OPENAI_API_KEY_FILE").ok().map(std::fs::read_to_string).transpose()?;
        let mut messages = vec![
            json!({"role": "system", "content": instructions()}),
            json!({"role": "user", "content": question}),
        ];
        for _ in 0..MOST_TURNS {
            let body = json!({"model": model, "messages": messages, "tools": [tool()]});
            let mut request = client.post(&url).json(&body);
            if let Some(key) = &key {
                request = request.bearer_auth(key.trim());
            }
            let answer: Value = request.send().await?.error_for_status()?.json().await?;
            let message = answer.pointer("/choices/0/message").ok_or("no message in the answer")?;
            let calls = message.get("tool_calls").and_then(Value::as_array);
            let Some(calls) = calls.filter(|calls| !calls.is_empty()) else {
                let text = message.get("content").and_then(Value::as_str);
                return Ok(text.unwrap_or("the model said nothing").to_owned());
            };
            messages.push(message.clone());
            for call in calls {
                messages.push(self.call(call).await);
            }
        }
        Err("the model did not come to an answer".into())
    }

    async fn call(&self, call: &Value) -> Value {
        let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
        let arguments: Option<Value> = arguments.and_then(|text| serde_json::from_str(text).ok());
        let path = arguments.as_ref().and_then(|value| value.get("path")?.as_str());
        let content = match path {
            Some(path) if path.starts_with('/') => self.buy(path).await,
            _ => "the tool needs a `path` that begins with `/`".to_owned(),
        };
        let content: String = content.chars().take(MOST_TEXT).collect();
        eprintln!("{}: {content}", path.unwrap_or("?"));
        json!({"role": "tool", "tool_call_id": call.get("id"), "content": content})
    }
}

fn instructions() -> &'static str {
    "You answer questions about cities. Use `buy` to get data: /weather/CITY ($0.10) and \
     /report/CITY ($0.25). Each call costs your owner money; buy only what the question needs. \
     When a purchase is refused, do without it and say so."
}

fn tool() -> Value {
    json!({"type": "function", "function": {
        "name": "buy",
        "description": "Buys one resource and returns its content, or why it was not bought.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string", "description": "such as /weather/delft"}},
            "required": ["path"],
            "additionalProperties": false
        }
    }})
}
