//! The parts on stage: an Earnest with its simulated PayPal, a seller's server, an agent's buyer.

use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::extract::Path as Segment;
use axum::routing::get;
use earnest_core::authorize::ApprovalNeeded;
use earnest_core::chain::{ChainKind, chain_of};
use earnest_core::id::IntentId;
use earnest_core::intent::Intent;
use earnest_core::ledger::Account;
use earnest_core::money::Micros;
use earnest_core::quote::body_digest;
use earnest_core::reconcile::{Movement, Row, RowStatus};
use earnest_core::time::Timestamp;
use earnest_paypal::reporting::event;
use earnest_sdk::{BuyError, Buyer, Seller, SellerConfig, price, quote_in};
use http::{HeaderMap, Method, StatusCode, header};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Told;
use super::story::Story;
use crate::first::DevKeys;
use crate::serve::Running;

/// How long the demonstration waits for something that has to happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Everything that plays a part.
pub struct Scene {
    /// The Earnest.
    pub earnest: Running,
    /// The seller's half of the SDK.
    pub seller: Seller,
    /// Where the seller's server listens.
    pub origin: String,
    keys: DevKeys,
    buyer: Buyer,
    http: reqwest::Client,
    shop: JoinHandle<()>,
    stop: CancellationToken,
}

/// An amount of a JSON object, as people read it.
pub fn dollars(value: &Value, name: &str) -> String {
    let micros = value.get(name).and_then(Value::as_i64).unwrap_or(0);
    Micros::new(micros).map_or_else(|_| micros.to_string(), |amount| amount.to_string())
}

/// Micro-units as a plain decimal.
pub fn decimal(micros: i64) -> String {
    Micros::new(micros).map_or_else(|_| micros.to_string(), Micros::to_decimal)
}

/// A receipt with one digit of its captured amount changed, and nothing else.
pub fn altered(jws: &str) -> Told<String> {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let parts: Vec<&str> = jws.split('.').collect();
    let [head, claims, signature] = parts.as_slice() else {
        return Err("the receipt is not a signed statement".to_owned());
    };
    let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|why| why.to_string())?;
    let claims = String::from_utf8(claims).map_err(|why| why.to_string())?;
    let changed = claims.replace("\"captured_micros\":9", "\"captured_micros\":1");
    if changed == claims {
        return Err("the receipt has no amount to alter".to_owned());
    }
    Ok(format!("{head}.{}.{signature}", URL_SAFE_NO_PAD.encode(changed)))
}

fn text(value: &Value, name: &str) -> Told<String> {
    let text = value.get(name).and_then(Value::as_str).map(str::to_owned);
    text.ok_or_else(|| format!("`{name}` is missing in {value}"))
}

impl Scene {
    /// Starts the seller, proves its origin, vaults the owner's PayPal, sets the limits.
    pub async fn build(earnest: Running, dir: &Path, story: &Story) -> Told<Self> {
        let keys = earnest.dev.clone().ok_or("no development keys")?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(|why| why.to_string())?;
        let address = listener.local_addr().map_err(|why| why.to_string())?;
        let origin = format!("http://{address}");
        let config = SellerConfig::with_nonce_file(
            &earnest.url(),
            &keys.seller.id,
            keys.seller.key.expose(),
            &origin,
            dir.join("nonces.db"),
        );
        let seller = config.and_then(Seller::new).map_err(|why| why.to_string())?;
        let stop = CancellationToken::new();
        let routes = shop_routes(&seller, &keys.seller.id);
        let shop = tokio::spawn(serve(listener, routes, stop.clone()));
        let buyer = earnest_sdk::wrap(reqwest::Client::builder().no_proxy())
            .earnest_url(&earnest.url())
            .agent_key(keys.agent.key.expose())
            .max_price("$10.00")
            .build()
            .map_err(|why| why.to_string())?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(PATIENCE)
            .build()
            .map_err(|why| why.to_string())?;
        let scene = Self { earnest, seller, origin, keys, buyer, http, shop, stop };
        scene.furnish(story).await?;
        Ok(scene)
    }

    async fn furnish(&self, story: &Story) -> Told<()> {
        story.say(&format!("Earnest   {}", self.earnest.url()));
        story.say(&format!(
            "Seller    {}  (a real HTTP server; every priced route answers 402)",
            self.origin
        ));
        if let Some(sim) = &self.earnest.sim {
            story.say(&format!(
                "PayPal    {}  (simulated, offline, spoken to over HTTP)",
                sim.base_url()
            ));
        }
        let origin = json!({ "origin": self.origin });
        self.post_with("seller", "/v1/sellers/me/origins", origin.clone(), &[]).await?;
        self.post_with("seller", "/v1/sellers/me/origins/prove", origin, &[]).await?;
        self.vault().await?;
        let read = self.get("owner", "/v1/policies/owner").await?;
        let version = read.get("version").cloned().unwrap_or_default();
        let limits = json!({
            "per_call_cap_micros": "$1.00",
            "session_cap_micros": "$5.00",
            "day_cap_micros": "$10.00",
            "approve_above_micros": "$0.20",
        });
        let etag = format!("\"{version}\"");
        self.send("owner", Method::PUT, "/v1/policies/owner", limits, &[("if-match", &etag)])
            .await?;
        story.say("The owner put a PayPal account on file once, on PayPal's own page.\n");
        Ok(())
    }

    /// The owner vaults a PayPal account; the payer's click is scripted.
    async fn vault(&self) -> Told<()> {
        let begun = self.post_with("owner", "/v1/payment-methods", Value::Null, &[]).await?;
        let page = text(&begun, "approve_url")?;
        let token = page.split('=').next_back().unwrap_or_default().to_owned();
        let sim = self.earnest.sim.as_ref().ok_or("no simulator")?;
        let approve = format!("{}/_sim/approve", sim.base_url());
        let approved = self.http.post(approve).json(&json!({ "token": token })).send().await;
        let approved = approved.map_err(|why| why.to_string())?;
        if !approved.status().is_success() {
            return Err(format!("the payer's page answered {}", approved.status()));
        }
        let confirm = format!("/v1/payment-methods/{}/confirm", text(&begun, "id")?);
        let method = self.post_with("owner", &confirm, Value::Null, &[]).await?;
        match text(&method, "status")?.as_str() {
            "active" => Ok(()),
            other => Err(format!("the payment method is {other}")),
        }
    }

    /// Buys a thing and gives the first line of what came.
    pub async fn buy(&self, path: &str, id: &str) -> Told<String> {
        let request = self.buyer.get(&format!("{}{path}", self.origin)).request_id(id);
        let answer = request.send().await.map_err(|why| format!("{path}: {why}"))?;
        answer.text().await.map_err(|why| format!("{path}: {why}"))
    }

    /// Asks for a thing that has to wait for its owner.
    pub async fn buy_waiting(&self, path: &str, id: &str) -> Told<ApprovalNeeded> {
        match self.buyer.get(&format!("{}{path}", self.origin)).request_id(id).send().await {
            Err(BuyError::ApprovalNeeded(needed)) => Ok(*needed),
            Err(why) => Err(format!("{path}: {why}")),
            Ok(_) => Err(format!("{path} did not wait for its owner")),
        }
    }

    /// Asks for a thing that has to be refused; the problem document.
    pub async fn buy_refused(&self, path: &str, id: &str) -> Told<Value> {
        match self.buyer.get(&format!("{}{path}", self.origin)).request_id(id).send().await {
            Err(BuyError::Denied { problem, .. }) => {
                serde_json::to_value(&*problem).map_err(|why| why.to_string())
            }
            Err(why) => Err(format!("{path}: {why}")),
            Ok(_) => Err(format!("{path} was not refused")),
        }
    }

    /// Presents a voucher that was used already; the seller's code.
    pub async fn present_again(&self, path: &str, id: &str) -> Told<String> {
        let url = format!("{}{path}", self.origin);
        let challenge = self.http.get(&url).send().await.map_err(|why| why.to_string())?;
        let quote =
            quote_in(challenge.headers()).ok_or("no quote")?.map_err(|why| why.to_string())?;
        let quote = serde_json::to_value(&quote).map_err(|why| why.to_string())?;
        let body = json!({ "quote": quote, "max_price": "$1.00", "request_id": id });
        let again = self.post_with("agent", "/v1/authorize", body, &[]).await?;
        let voucher = format!("Tab {}", text(&again, "voucher")?);
        let answer = self.http.get(&url).header(header::AUTHORIZATION, voucher).send().await;
        let problem: Value =
            answer.map_err(|why| why.to_string())?.json().await.map_err(|why| why.to_string())?;
        text(&problem, "code")
    }

    /// The newest tab.
    pub async fn tab(&self) -> Told<Value> {
        let list = self.get("owner", "/v1/tabs").await?;
        list.pointer("/data/0").cloned().ok_or_else(|| "there is no tab".to_owned())
    }

    /// Waits until the tab's settlement is captured and its receipt signed.
    pub async fn settled(&self, tab: &str) -> Told<Value> {
        let path = format!("/v1/tabs/{tab}/settlements");
        let wait = async {
            loop {
                let list = self.get("owner", &path).await?;
                if let Some(row) = list.pointer("/data/0")
                    && row.get("receipt_url").is_some_and(Value::is_string)
                {
                    return Ok(row.clone());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        waited.unwrap_or_else(|_| Err("the tab was not settled in time".to_owned()))
    }

    /// The signed receipt of a settlement, from its public address.
    pub async fn receipt(&self, settlement: &Value) -> Told<String> {
        let answer = self.http.get(text(settlement, "receipt_url")?).send().await;
        let body: Value =
            answer.map_err(|why| why.to_string())?.json().await.map_err(|why| why.to_string())?;
        text(&body, "receipt")
    }

    /// Whether a receipt verifies with the published keys, checked here and not by the server.
    pub async fn verify(&self, jws: &str) -> Told<bool> {
        let url = format!("{}/.well-known/jwks.json", self.earnest.url());
        let answer = self.http.get(url).send().await.map_err(|why| why.to_string())?;
        let jwks = answer.json().await.map_err(|why| why.to_string())?;
        let keys = earnest_core::jws::KeySet::new(&jwks);
        Ok(earnest_core::receipt::verify(jws, &keys).is_ok())
    }

    /// Every purchase.
    pub async fn purchases(&self) -> Told<Vec<Value>> {
        let list = self.get("owner", "/v1/purchases?limit=500").await?;
        Ok(list.get("data").and_then(Value::as_array).cloned().unwrap_or_default())
    }

    /// Posted and pending imbalance of all accounts, memo accounts too; 0 in books that are right.
    pub async fn imbalance(&self) -> Told<i64> {
        let lines = self.get("operator", "/v1/trial-balance").await?;
        let part = |line: &Value, name: &str| {
            line.get(name).and_then(Value::as_i64).unwrap_or(i64::MAX).abs()
        };
        let sum = |line: &Value| {
            part(line, "imbalance_micros").saturating_add(part(line, "pending_imbalance_micros"))
        };
        Ok(lines.as_array().into_iter().flatten().map(sum).fold(0, i64::saturating_add))
    }

    /// The captures that PayPal's own books show.
    pub async fn captures_at_paypal(&self) -> Told<Vec<Row>> {
        let sim = self.earnest.sim.as_ref().ok_or("no simulator")?;
        let answer = self.http.get(format!("{}/_sim/books", sim.base_url())).send().await;
        let books: Value =
            answer.map_err(|why| why.to_string())?.json().await.map_err(|why| why.to_string())?;
        let rows = books.get("rows").and_then(Value::as_array).cloned().unwrap_or_default();
        rows.iter().map(capture).collect()
    }

    /// The captures that our books show.
    pub fn captures_in_books(&self) -> Told<Vec<Movement>> {
        let reader = self.earnest.app.store.reader();
        let mut captured = Vec::new();
        let counted = reader.snapshot(|books| {
            books.each_account(|row| {
                if let Account::CaptureRefundable(intent) = row.id.account {
                    captured.push((intent, row.totals.credits_posted));
                }
            })
        });
        counted.map_err(|why| why.to_string())?;
        captured.into_iter().map(|(intent, gross)| self.capture_in_books(intent, gross)).collect()
    }

    /// One capture: its name at PayPal from the intent, everything else from the ledger.
    fn capture_in_books(&self, intent: IntentId, gross_micros: Micros) -> Told<Movement> {
        let reader = self.earnest.app.store.reader();
        let row = reader.row::<Intent>(intent).map_err(|why| why.to_string())?;
        let id = row.and_then(|row| row.paypal_capture);
        let id = id.ok_or_else(|| format!("intent {intent} names no capture"))?;
        let fee = reader.hold(chain_of(ChainKind::Fee, &id)).map_err(|why| why.to_string())?;
        let legs = fee.iter().flat_map(|chain| &chain.hold.legs);
        let fee_micros = legs.map(|leg| leg.amount).try_fold(Micros::ZERO, Micros::checked_add);
        let fee_micros = fee_micros.ok_or("the fees overflow")?;
        let (gross, fee) = (gross_micros.get(), fee_micros.get());
        let (gross, fee) = (gross, fee.saturating_neg());
        Ok(Movement { id, gross_micros: gross, fee_micros: fee, at: Timestamp::UNIX_EPOCH })
    }

    fn key(&self, role: &str) -> &str {
        match role {
            "operator" => self.keys.operator.key.expose(),
            "owner" => self.keys.owner.key.expose(),
            "agent" => self.keys.agent.key.expose(),
            _ => self.keys.seller.key.expose(),
        }
    }

    /// Reads as a role.
    pub async fn get(&self, role: &str, path: &str) -> Told<Value> {
        self.send(role, Method::GET, path, Value::Null, &[]).await
    }

    /// Writes as a role.
    pub async fn post_with(
        &self,
        role: &str,
        path: &str,
        body: Value,
        headers: &[(&str, &str)],
    ) -> Told<Value> {
        self.send(role, Method::POST, path, body, headers).await
    }

    async fn send(
        &self,
        role: &str,
        method: Method,
        path: &str,
        body: Value,
        headers: &[(&str, &str)],
    ) -> Told<Value> {
        let url = format!("{}{path}", self.earnest.url());
        let mut request = self.http.request(method, url).bearer_auth(self.key(role));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if !body.is_null() {
            request = request.json(&body);
        }
        let answer = request.send().await.map_err(|why| format!("{path}: {why}"))?;
        let status = answer.status();
        if status == StatusCode::NO_CONTENT {
            return Ok(Value::Null);
        }
        let body: Value = answer.json().await.map_err(|why| format!("{path}: {why}"))?;
        if status.is_success() { Ok(body) } else { Err(format!("{path}: {body}")) }
    }

    /// Ends everything; nothing is left running.
    pub async fn stop(self) {
        self.seller.shutdown(Duration::from_secs(5)).await;
        self.stop.cancel();
        let _ = self.shop.await;
        self.earnest.stop().await;
    }
}

/// A capture of the simulator's books.
fn capture(row: &Value) -> Told<Row> {
    let amount = |name: &str| {
        let value = row.get(name).and_then(Value::as_str);
        let value = value.ok_or_else(|| format!("`{name}` is missing in {row}"))?;
        match value.trim_start_matches('-') {
            "0.00" => Ok(Micros::ZERO),
            digits => Micros::parse(digits).map_err(|why| why.to_string()),
        }
    };
    Ok(Row {
        id: text(row, "transaction_id")?,
        event: event(&text(row, "event_code")?),
        status: RowStatus::Unsaid,
        reference: None,
        invoice: None,
        amount: Some((amount("gross")?.get(), text(row, "currency")?)),
        fee_micros: amount("fee")?.get().saturating_neg(),
        initiated: None,
        updated: None,
    })
}

async fn weather(Segment(city): Segment<String>) -> String {
    let digest = body_digest(city.as_bytes());
    let sky = ["clear", "rain", "snow", "fog"];
    let place = digest.bytes().next().map_or(0, usize::from) % sky.len();
    sky.get(place).copied().unwrap_or("clear").to_owned()
}

fn shop_routes(seller: &Seller, id: &str) -> Router {
    let id = id.to_owned();
    Router::new()
        .route("/weather/{city}", get(weather).layer(price("$0.10")))
        .route("/report/{city}", get(|| async { "twelve pages" }).layer(price("$0.25")))
        .route("/archive", get(|| async { "everything" }).layer(price("$9.00")))
        .layer(seller.layer())
        .route(
            crate::flow::origin::PROOF_PATH,
            get(move || {
                let id = id.clone();
                async move { (HeaderMap::new(), id) }
            }),
        )
}

async fn serve(listener: TcpListener, routes: Router, stop: CancellationToken) {
    let served = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await;
    if let Err(why) = served {
        tracing::error!(%why, "the seller's server failed");
    }
}
