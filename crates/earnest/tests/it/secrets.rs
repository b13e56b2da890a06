//! What must not be told: keys, vouchers, PayPal's credentials and signatures, the payer's address.
//! Everything that can happen to money happens once, with every log line kept; then logs, answers,
//! the trail and the files on disk are searched for all of it.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use earnest::config::Config;
use earnest::watch::without_messages;
use paypal_sim::{Effect, Fault, SimConfig};
use reqwest::Method;
use serde_json::{Value, json};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::advisor::{Model, Reply};
use crate::forge::Tap;
use crate::openapi::OPERATIONS;
use crate::shop::Shop;
use crate::world::{World, unchanged};

/// Names the test that a process was started for.
const ALONE: &str = "EARNEST_TEST_ALONE";

/// Whether this test has the process to itself: what logs for a whole process can be set once, and
/// would hear other tests. Where it has not, it is run in one of its own, and must pass there.
#[track_caller]
pub(crate) fn alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some_and(|name| name == test) {
        return true;
    }
    let mut own = std::process::Command::new(std::env::current_exe().unwrap());
    let ran = own.args([test, "--exact", "--nocapture"]).env(ALONE, test).output().unwrap();
    let [out, error] = [ran.stdout, ran.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    assert!(ran.status.success(), "{test}:\n{out}\n{error}");
    // A name that is not there runs nothing, and succeeds.
    assert!(out.contains("1 passed"), "{test} was not run:\n{out}");
    false
}

/// Keeps everything that is logged, at every level.
#[derive(Clone, Default)]
pub(crate) struct Logs(Arc<Mutex<Vec<u8>>>);

impl Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Logs {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Logs {
    /// For the whole process: tasks that others start log too. So the test is [`alone`] in it.
    fn keep() -> Self {
        let logs = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(without_messages(EnvFilter::new("trace")))
            .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
            .with_ansi(false)
            .with_writer(logs.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("no other subscriber");
        logs
    }
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// A secret and what it is.
pub(crate) type Secret = (String, String);

#[track_caller]
pub(crate) fn assert_none(secrets: &[Secret], text: &[u8], place: &str) {
    for (what, secret) in secrets {
        assert!(secret.len() >= 6, "{what} is too short to look for: {secret}");
        let found = memchr(text, secret.as_bytes());
        if let Some(at) = found {
            let around = &text[at.saturating_sub(80)..text.len().min(at + secret.len() + 20)];
            panic!("{place} holds {what}: …{}…", String::from_utf8_lossy(around));
        }
    }
}

fn memchr(text: &[u8], part: &[u8]) -> Option<usize> {
    let first = part[0];
    let mut from = 0;
    while let Some(n) = text[from..].iter().position(|b| *b == first) {
        let at = from + n;
        if text[at..].starts_with(part) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            all.push((name, std::fs::read(&path).unwrap()));
        }
    }
    all
}

const CLIENT_SECRET: &str = "a-client-secret-of-paypals-0123456789";
const PAYER: &str = "very.private.payer@example.com";

#[tokio::test]
async fn nothing_secret_is_told_logged_or_written() {
    if !alone("secrets::nothing_secret_is_told_logged_or_written") {
        return;
    }
    let logs = Logs::keep();
    let dir = tempfile::tempdir().unwrap();
    let sim = SimConfig { client_secret: CLIENT_SECRET.to_owned(), ..SimConfig::default() };
    let sim =
        SimConfig { buyer: paypal_sim::Payer { email: PAYER.to_owned(), ..sim.buyer }, ..sim };
    let model = Model::begin(&[Reply::advice(false, "Wait.")]).await;
    let config = Config {
        data: Some(dir.path().to_owned()),
        models: model.settings(),
        secret: Some(earnest_paypal::Secret::new(CLIENT_SECRET)),
        ..Config::simulated()
    };
    let (world, tap) = Tap::world_with(config, sim, &unchanged()).await;
    let mut secrets: Vec<Secret> = ["operator", "owner", "agent", "seller"]
        .map(|role| (format!("the {role}'s key"), world.key(role)))
        .to_vec();
    secrets.push(("the key of a model".to_owned(), crate::advisor::KEY.to_owned()));
    secrets.push(("the client secret".to_owned(), CLIENT_SECRET.to_owned()));
    secrets.push(("the payer's address".to_owned(), PAYER.to_owned()));
    let basic = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        format!("sim:{CLIENT_SECRET}"),
    );
    secrets.push(("PayPal's basic credential".to_owned(), basic));

    // A whole life: bought, refused, asked, released, settled, declined, written off.
    let path = format!("/v1/agents/{}/keys", world.agent_id());
    let made = world.post("owner", &path, json!({ "label": "second" })).await.expect(201);
    secrets.push(("a new key".to_owned(), made["key"].as_str().unwrap().to_owned()));
    for n in 0..3 {
        let voucher = world.buy(100_000, &format!("v-{n}")).await;
        secrets.push((format!("voucher {n}"), voucher.clone()));
        let signature = voucher.rsplit('.').next().unwrap().to_owned();
        secrets.push((format!("the signature of voucher {n}"), signature));
        let fate = if n == 2 { "failed" } else { "redeemed" };
        world.report(&voucher, fate).await;
        // Forged, repeated, garbled: what is refused is logged most easily.
        world.report(&format!("{voucher}x"), "redeemed").await;
        world.report(&voucher, "redeemed").await;
        let garbled = format!("{{\"reports\":[{{\"voucher\":\"{voucher}\",\"fate\":1}}]}}");
        world.json("seller", Method::POST, "/v1/vouchers/report", &[], garbled).await;
        let body = json!({ "receipt": voucher });
        world.post("", "/v1/receipts/verify", body).await.expect(200);
    }
    world.authorize(world.quote("/dear", 9_000_000), "no").await.expect(403);
    world.authorize(world.quote("/dear", 250_000), "waits").await.expect(202);
    for key in [world.key("owner") + "x", format!("ek_owner_{}", world.key("agent"))] {
        world.get(&key, "/v1/tabs").await.expect(401);
    }
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    world.settle_down().await;
    world.advance(1);
    world.spend(100_000, "second-tab").await;
    let declined = Effect::Issue { issue: "INSTRUMENT_DECLINED".to_owned() };
    world.sim().add_fault(Fault::on("orders.create", declined)).unwrap();
    let second = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{second}/close"), None).await.expect(202);
    world.settle_down().await;
    assert_eq!(world.tab().await["status"], "frozen");

    // Webhooks: one that counts, one with another signature, one whose body was changed.
    let heard = tap.heard("PAYMENT.CAPTURE.COMPLETED").await;
    let signature = heard.headers["paypal-transmission-sig"].to_str().unwrap().to_owned();
    secrets.push(("PayPal's signature".to_owned(), signature));
    assert_eq!(world.deliver(&heard).await.status, 200);
    let wrong = "c2lnbmF0dXJlLXRoYXQtaXMtd3Jvbmc".repeat(4);
    assert_eq!(
        world.deliver(&heard.with_header("paypal-transmission-sig", &wrong)).await.status,
        401
    );
    secrets.push(("a wrong signature".to_owned(), wrong));
    assert_eq!(world.deliver(&heard.with_body(b"{}".to_vec())).await.status, 401);

    // A browser that signs in, looks, answers and is told no.
    let link = crate::pages::login_link(&world, "owner").await;
    let token = link.split("token=").nth(1).unwrap().to_owned();
    let mut browser = crate::pages::Browser::of(&world, "owner").await;
    browser.get(&link).await.expect(200);
    browser.post("/login", &[("token", &token)]).await.expect(401);
    let page = browser.get("/approvals").await.expect(200);
    secrets.push(("a sign-in token".to_owned(), token));
    for (name, value) in &browser.cookies {
        secrets.push((format!("the cookie {name}"), value.clone()));
    }
    secrets.push(("the proof of a form".to_owned(), page.field("form")));

    // An agent that buys over MCP, its books in a folder of their own.
    let own = tempfile::tempdir().unwrap();
    let config = Config { data: Some(own.path().to_owned()), ..Config::simulated() };
    let shop = Shop::in_world(World::real_time(config).await).await;
    let told = crate::mcp::secrets_of_a_purchase(&shop).await;
    shop.close().await;
    for (name, bytes) in files(own.path()).iter().filter(|(name, _)| name.starts_with("earnest.db"))
    {
        assert_none(&told, bytes, name);
    }
    secrets.extend(told);

    // An endpoint that is told, by a shared secret, at an address that holds a password.
    let hook = json!({ "url": "http://127.0.0.1:9/hear?secret=hush-hush-hush", "scheme": "v1" });
    let made = world.post("owner", "/v1/webhooks", hook).await.expect(201);
    secrets.push(("a webhook's secret".to_owned(), made["secret"].as_str().unwrap().to_owned()));
    world.authorize(world.quote("/dear", 9_000_000), "told").await.expect(403);
    world.settle_down().await;

    // How PayPal's access tokens begin here; the simulator keeps them to itself.
    secrets.push(("an access token".to_owned(), "Bearer A21AA".to_owned()));
    secrets.push(("an access token".to_owned(), "\"A21AA".to_owned()));
    let seal = std::fs::read_to_string(dir.path().join("seal.key")).unwrap();
    secrets.push(("the key-encryption key".to_owned(), seal.trim().to_owned()));

    // Answers: everything that can be read, by everybody.
    let ids = ids_of(&world, &tab).await;
    let mut asked = 0;
    for operation in OPERATIONS.iter().filter(|it| it.method == Method::GET && it.ends()) {
        let path = operation.filled(|parameter| {
            let described = parameter["description"].as_str().unwrap_or_default();
            let known = ids.iter().find(|(prefix, _)| described.contains(prefix.as_str()));
            known.map_or_else(|| "x".to_owned(), |(_, id)| id.clone())
        });
        for role in ["", "owner", "agent", "seller", "operator"] {
            for query in [
                "",
                &format!("?tab={tab}"),
                &format!("?tab={second}"),
                "?limit=500",
                &format!("?limit=500&owner={}", world.owner_id()),
            ] {
                let answer = world.get(role, &format!("{path}{query}")).await;
                let place = format!("GET {path}{query} as {role}");
                assert_none(&secrets, &answer.bytes, &place);
                assert_none(&secrets, format!("{:?}", answer.headers).as_bytes(), &place);
                asked += usize::from(answer.status == 200);
            }
        }
    }
    assert!(asked > 60, "only {asked} answers were read");

    // The log of a whole life is worth reading, and holds none of it.
    let text = logs.text();
    assert!(
        text.contains("http{") && (text.contains("TRACE") || text.contains("INFO")),
        "nothing was logged"
    );
    assert!(text.len() > 2_000, "{text}");
    assert_none(&secrets, text.as_bytes(), "the log");

    // The files: dev-keys.json and the key file are what they are; nobody else may read them, and
    // the books hold none of it.
    if let Some(url) = world.database() {
        let place = earnest_store::Place::Server(url);
        earnest_store::copy(&place, dir.path().join("earnest.db")).unwrap();
    }
    let kept = files(dir.path());
    let books = || kept.iter().filter(|(name, _)| name.starts_with("earnest.db"));
    // That what is written can be found at all.
    assert!(books().any(|(_, bytes)| memchr(bytes, b"second-tab").is_some()));
    for (name, bytes) in &kept {
        match name.as_str() {
            "dev-keys.json" | "seal.key" => {
                use std::os::unix::fs::PermissionsExt as _;
                let mode = std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{name}");
            }
            _ => assert_none(&secrets, bytes, name),
        }
    }
    // Nor what the keys are made of, in any usual writing; nor the signing keys in clear.
    for (name, bytes) in books() {
        for (what, secret) in secrets.iter().filter(|(what, _)| what.ends_with("key")) {
            let token = secret.rsplit('_').next().unwrap();
            assert!(memchr(bytes, token.as_bytes()).is_none(), "{name} holds {what}");
        }
        assert!(memchr(bytes, b"\"d\":").is_none(), "{name} holds a private key");
        assert!(memchr(bytes, b"PRIVATE KEY").is_none(), "{name} holds a private key");
        assert!(memchr(bytes, b"very.private").is_none(), "{name} holds the payer's name");
    }
}

/// Ids by their prefix, for paths.
async fn ids_of(world: &World, tab: &str) -> Vec<(String, String)> {
    let list = |path: String| async move {
        world.get("owner", &path).await.expect(200)["data"][0]["id"].as_str().unwrap().to_owned()
    };
    let trail: Value = world.get("owner", &format!("/v1/paypal/trail?tab={tab}")).await.expect(200);
    assert!(!trail["intents"][0]["evidence"].as_array().unwrap().is_empty());
    let settlement = list(format!("/v1/tabs/{tab}/settlements")).await;
    let read = world.get("owner", &format!("/v1/settlements/{settlement}")).await.expect(200);
    let receipt = read["receipt_url"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    [
        ("own_", world.owner_id()),
        ("agt_", world.agent_id()),
        ("sel_", world.seller_id()),
        ("tab_", tab.to_owned()),
        ("set_", settlement),
        ("apr_", list("/v1/approvals".to_owned()).await),
        ("vlt_", list("/v1/payment-methods".to_owned()).await),
        ("pur_", list("/v1/purchases".to_owned()).await),
        ("public token", receipt),
    ]
    .map(|(prefix, id)| (prefix.to_owned(), id))
    .to_vec()
}

/// The one who pays himself on credit is known by a digest of the address alone.
#[tokio::test]
async fn who_pays_himself_is_still_found() {
    let world = World::ready().await;
    for (n, recipient) in ["buyer@example.com", "BUYER@Example.COM"].iter().enumerate() {
        let body = json!({ "name": format!("Self {n}"), "payout_recipient": recipient });
        let seller = world.post("operator", "/v1/sellers", body).await.expect(201);
        let unit = earnest_core::admin::PutOrigin {
            seller: seller["id"].as_str().unwrap().parse().unwrap(),
            origin: format!("https://self-{n}.example"),
            proved: true,
        };
        world.earnest.app.store.submit(unit).await.unwrap();
        let mut quote = world.quote("/weather", 10_000);
        quote["seller"] = seller["id"].clone();
        quote["url"] = json!(format!("https://self-{n}.example/weather"));
        let answer = world.authorize(quote, &format!("self-{n}")).await;
        assert_eq!(answer.refusal(), "policy_denied/merchant_not_allowed", "{}", answer.body);
        assert!(!answer.body.to_string().contains("example.com"), "{}", answer.body);
    }
    let methods = world.get("owner", "/v1/payment-methods").await.expect(200);
    assert_eq!(methods["data"][0]["payer"], "b…@example.com");
}

/// What holds a secret shows none when it is logged or printed in a panic.
#[tokio::test]
async fn nothing_that_holds_a_secret_shows_it() {
    let secret = || Some(earnest_paypal::Secret::new(CLIENT_SECRET));
    let config = Config { secret: secret(), ..Config::simulated() };
    let overrides = earnest::config::Overrides { secret: secret(), ..Default::default() };
    let world = World::new().await;
    let dev = world.earnest.dev.as_ref().unwrap();
    let shown = format!("{config:?} {overrides:?} {dev:?} {:#?}", dev.agent);
    assert!(!shown.contains(CLIENT_SECRET), "{shown}");
    for role in ["operator", "owner", "agent", "seller"] {
        let key = world.key(role);
        assert!(!shown.contains(&key), "the {role}'s key is shown");
        // The control: it is a key, and the file of keys for development does hold it.
        assert!(key.starts_with(&format!("ek_{role}_")));
        assert!(serde_json::to_string(dev).unwrap().contains(&key));
    }
}

/// The trail shows what was sent and what came back, webhooks and how they were verified; never who
/// pays, nor what could be charged.
#[tokio::test]
async fn the_trail_shows_requests_and_webhooks_without_payers() {
    let world = World::ready().await;
    world.spend(200_000, "a").await;
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    world.settle_down().await;
    world.mail().await;
    let methods = world.get("owner", "/v1/payment-methods").await.expect(200);
    let method = methods["data"][0]["id"].as_str().unwrap().to_owned();
    let reader = world.earnest.app.store.reader();
    let row = reader.row::<earnest_core::vault::Vault>(&method).unwrap().unwrap();
    let hidden = [row.payment_token, row.setup_token, row.customer].map(Option::unwrap);

    let trail = world.get("owner", &format!("/v1/paypal/trail?tab={tab}")).await.expect(200);
    let intent = &trail["intents"][0];
    let (request, body) = (&intent["request"], &intent["request"]["body"]);
    assert_eq!(request["operation"], "order_charge_vaulted");
    assert_eq!(request["path"], "/v2/checkout/orders");
    let unit = &body["purchase_units"][0];
    assert_eq!(unit["amount"]["value"], "0.20");
    assert_eq!(unit["invoice_id"], intent["invoice_id"]);
    assert!(unit["custom_id"].is_string(), "{body}");
    assert_eq!(body["payment_source"]["paypal"]["vault_id"], "[redacted]");
    let answer = &intent["evidence"][0]["said"];
    let known = [&intent["paypal_order"], &intent["paypal_capture"]];
    assert!(known.contains(&&answer["answer"]["id"]), "{answer}");
    assert!(answer["debug_id"].is_string());
    let event = &trail["webhooks"][0];
    assert_eq!((&event["verified"], &event["open"]), (&json!("local"), &json!(false)), "{event}");

    let vaulting = format!("/v1/paypal/trail?payment_method={method}");
    let vaulting = world.get("owner", &vaulting).await.expect(200);
    assert_eq!(vaulting["intents"].as_array().unwrap().len(), 2);
    for shown in [&trail, &vaulting] {
        let text = shown.to_string();
        for secret in hidden.iter().map(String::as_str).chain(["buyer@example.com"]) {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}
