//! A whole Earnest on loopback with a clock that only tests move, a simulated PayPal on the same
//! clock, and callers for every role.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use earnest::config::Config;
use earnest::serve::{Running, Start};
use earnest_core::time::Timestamp;
use earnest_paypal::Timeouts;
use paypal_sim::{DeliveryState, Sim, SimConfig};
use pg_cluster::Schema;
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// When every test begins: a Monday, nine in the morning.
pub const BEGIN: &str = "2026-11-30T09:00:00Z";

/// A clock that stands still until it is moved.
#[derive(Clone)]
pub struct TestClock(Arc<AtomicI64>);

impl TestClock {
    pub fn new() -> Self {
        let begin: Timestamp = BEGIN.parse().unwrap();
        Self(Arc::new(AtomicI64::new(begin.as_millisecond())))
    }
    pub fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.0.load(Ordering::SeqCst)).unwrap()
    }
    pub fn advance(&self, seconds: i64) {
        self.advance_ms(seconds * 1000);
    }
    pub fn advance_ms(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

/// An Earnest with its simulator and one of each party.
pub struct World {
    pub earnest: Running,
    pub clock: TestClock,
    pub http: Client,
    /// Answers that said that something broke.
    broken: Mutex<Vec<String>>,
    apart: Option<Apart>,
    _dir: Option<tempfile::TempDir>,
    /// Dropped last, when nobody writes there any more.
    place: Option<Arc<Schema>>,
}

/// What a world that can be killed keeps outside of its Earnest: the simulator, and the runtime
/// that every task of Earnest's runs on, so that all of them can be dropped where they stand.
struct Apart {
    sim: Arc<Sim>,
    runtime: Option<Runtime>,
    config: Config,
    change: Change,
}

/// What a test changes about how Earnest starts: a bug to plant, for example.
pub type Change = Arc<dyn Fn(&mut Start) + Send + Sync>;

/// Nothing.
pub fn unchanged() -> Change {
    Arc::new(|_| ())
}

/// How long the Earnest of a mortal world waits for the answer to a charge: short enough to be
/// waited for, long enough for a busy machine.
const ANSWERED_WITHIN: Duration = Duration::from_millis(2_500);

/// The longest a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
    /// The body as it came.
    pub bytes: Vec<u8>,
}

impl Answer {
    /// The code of a problem document.
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }
    /// `code/reason`, as cases name refusals.
    pub fn refusal(&self) -> String {
        match self.body["reason"].as_str() {
            Some(reason) => format!("{}/{reason}", self.code()),
            None => self.code().to_owned(),
        }
    }
    /// Asserts the status, and shows the body where it differs.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self.body
    }
}

impl World {
    /// Books in memory: fast, for everything that does not restart.
    pub async fn new() -> Self {
        Self::with(Config::simulated(), SimConfig::default()).await
    }

    /// Books in a file of its own.
    pub async fn on_disk() -> Self {
        Self::on_disk_with(|_| ()).await
    }

    /// The same, with other limits.
    pub async fn on_disk_with(change: impl FnOnce(&mut earnest::limits::Limits)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config { data: Some(dir.path().to_owned()), ..Config::simulated() };
        change(&mut config.limits);
        let mut world = Self::with(config, SimConfig::default()).await;
        world._dir = Some(dir);
        world
    }

    pub async fn with(config: Config, sim: SimConfig) -> Self {
        Self::changed(config, sim, &unchanged()).await
    }

    pub async fn changed(config: Config, sim: SimConfig, change: &Change) -> Self {
        let (config, place) = placed(config);
        let clock = TestClock::new();
        let moved = clock.clone();
        let sim = SimConfig { start: Some(clock.now()), frozen: true, ..sim };
        let mut start = Start {
            clock: Arc::new(move || moved.now()),
            server_clock: false,
            jobs: false,
            sim,
            vault_dev_owner: false,
            ..Start::default()
        };
        start.vault_dev_owner = false;
        change(&mut start);
        let earnest = Running::start(config, start).await.unwrap();
        let broken = Mutex::default();
        Self { earnest, clock, http: client(), broken, apart: None, _dir: None, place }
    }

    /// Everything on the machine's clock, jobs running: for sellers and buyers of the SDK, who have
    /// no other.
    pub async fn in_real_time() -> Self {
        Self::real_time(Config::simulated()).await
    }

    /// The same, set up in a way of its own.
    pub async fn real_time(config: Config) -> Self {
        let (config, place) = placed(config);
        let start = Start { vault_dev_owner: false, ..Start::default() };
        let earnest = Running::start(config, start).await.unwrap();
        Self {
            earnest,
            clock: TestClock::new(),
            http: client(),
            broken: Mutex::default(),
            apart: None,
            _dir: None,
            place,
        }
    }

    /// Books in a file of its own and a simulator that outlives a [`World::kill`].
    pub async fn mortal(config: Config, sim: SimConfig, change: &Change) -> Self {
        Self::later(config, sim, change, |_, _| {}).await
    }

    /// The same at a PayPal where something happened before there was an Earnest.
    pub async fn later(
        config: Config,
        sim: SimConfig,
        change: &Change,
        before: impl FnOnce(&Sim, &TestClock),
    ) -> Self {
        let clock = TestClock::new();
        let sim = SimConfig { start: Some(clock.now()), frozen: true, ..sim };
        let sim = Sim::start(sim).await.unwrap();
        before(&sim, &clock);
        let dir = tempfile::tempdir().unwrap();
        let (config, place) = placed(config);
        let config = Config {
            listen: own_address(),
            data: Some(dir.path().to_owned()),
            simulator_url: Some(sim.base_url().to_owned()),
            ..config
        };
        let (runtime, earnest) = start_apart(&config, &clock, change).await;
        // The next life listens where this one does, so that webhooks find it.
        let config = Config { listen: earnest.address, ..config };
        let (sim, change) = (Arc::new(sim), Arc::clone(change));
        let apart = Some(Apart { sim, runtime: Some(runtime), config, change });
        let (http, broken, _dir) = (client(), Mutex::default(), Some(dir));
        Self { earnest, clock, http, broken, apart, _dir, place }
    }

    /// Two nodes on the same books, ready to buy at: one memory, or one schema where this run keeps
    /// books on PostgreSQL; behind one public address, which is the first one's. Each may be killed.
    pub async fn nodes(changes: [Change; 2]) -> [Self; 2] {
        Self::nodes_at(crate::engine::place(), changes).await
    }

    /// The same on PostgreSQL, whatever this run of the tests keeps its books in.
    pub async fn nodes_on_postgres() -> [Self; 2] {
        Self::nodes_at(Some(Schema::fresh()), [unchanged(), unchanged()]).await
    }

    async fn nodes_at(place: Option<Schema>, changes: [Change; 2]) -> [Self; 2] {
        let clock = TestClock::new();
        let sim = SimConfig { start: Some(clock.now()), frozen: true, ..SimConfig::default() };
        let sim = Arc::new(Sim::start(sim).await.unwrap());
        let mut dir = Some(tempfile::tempdir().unwrap());
        let config = Config {
            data: dir.as_ref().map(|dir| dir.path().to_owned()),
            simulator_url: Some(sim.base_url().to_owned()),
            ..Config::simulated()
        };
        let (config, place) = placed_at(place, config);
        let shared = place.is_none().then(earnest_store::Shared::default);
        let (mut nodes, mut public_url) = (Vec::new(), None);
        for change in changes {
            let shared = shared.clone();
            let change: Change = Arc::new(move |start: &mut Start| {
                start.shared.clone_from(&shared);
                change(start);
            });
            let config =
                Config { listen: own_address(), public_url: public_url.clone(), ..config.clone() };
            let (runtime, earnest) = start_apart(&config, &clock, &change).await;
            public_url.get_or_insert_with(|| earnest.url());
            let config =
                Config { listen: earnest.address, public_url: public_url.clone(), ..config };
            let apart = Some(Apart { sim: sim.clone(), runtime: Some(runtime), config, change });
            let (clock, http, broken) = (clock.clone(), client(), Mutex::default());
            let (_dir, place) = (dir.take(), place.clone());
            nodes.push(Self { earnest, clock, http, broken, apart, _dir, place });
        }
        let nodes: [Self; 2] = nodes.try_into().unwrap_or_else(|_| panic!("two"));
        nodes[0].prove_origin().await;
        nodes[0].vault().await;
        nodes
    }

    /// Drops every task of Earnest's where it stands and starts anew on the same books.
    pub async fn kill(&mut self) {
        self.die().await;
        self.rise().await;
    }

    /// Drops every task of Earnest's where it stands; what becomes of the books is the test's.
    pub async fn die(&mut self) {
        let apart = self.apart.as_mut().unwrap();
        let runtime = apart.runtime.take().unwrap();
        let store = self.earnest.app.store.clone();
        let dead = tokio::task::spawn_blocking(move || {
            runtime.shutdown_timeout(PATIENCE);
            store.close();
        });
        dead.await.unwrap();
    }

    /// Starts on the books as they are now. The lease of the dead one has run out by then, though the
    /// clock stands still.
    pub async fn rise(&mut self) {
        let apart = self.apart.as_mut().unwrap();
        let (runtime, earnest) = start_apart(&apart.config, &self.clock, &apart.change).await;
        apart.runtime = Some(runtime);
        let dead = std::mem::replace(&mut self.earnest, earnest);
        if self.earnest.app.store.is_shared() {
            let (name, node) = (earnest::lead::JOBS.to_owned(), dead.app.node.clone());
            let unit = earnest_core::lease::GiveBack { name, node };
            self.earnest.app.store.submit(unit).await.unwrap();
        }
    }

    /// Runs something of Earnest's on the runtime that [`World::kill`] ends.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.apart.as_ref().unwrap().runtime.as_ref().unwrap().spawn(work);
    }

    /// The books of a mortal world, from outside.
    pub fn books(&self) -> earnest_store::Place {
        self.apart.as_ref().unwrap().config.books()
    }

    /// Takes the disk of a dead world away: its folder, and its database where it has one. The next
    /// life has another.
    pub fn lose_disk(&mut self) {
        std::fs::remove_dir_all(self.data()).unwrap();
        self.place = crate::engine::place().map(Arc::new);
        self.apart.as_mut().unwrap().config.database = self.database();
    }

    /// The database of the books, where they are in one.
    pub fn database(&self) -> Option<earnest_store::Url> {
        self.place.as_deref().map(crate::engine::url)
    }

    /// Where the local files of a mortal world are, the books too if they are a file.
    pub fn data(&self) -> std::path::PathBuf {
        self.apart.as_ref().unwrap().config.data.clone().unwrap()
    }

    pub fn sim(&self) -> &Sim {
        match &self.apart {
            Some(apart) => &apart.sim,
            None => self.earnest.sim.as_ref().unwrap(),
        }
    }

    /// Waits until every webhook that is due was tried, and what came of it has ended.
    pub async fn mail(&self) {
        let due = |delivery: &paypal_sim::Delivery| match delivery.state {
            DeliveryState::Sending => true,
            DeliveryState::Waiting => delivery.attempts.is_empty(),
            _ => false,
        };
        until("webhooks are delivered", || !self.sim().deliveries().iter().any(due)).await;
        self.earnest.app.tasks.close();
        self.earnest.app.tasks.wait().await;
    }

    /// Moves both clocks.
    pub fn advance(&self, seconds: i64) {
        self.clock.advance(seconds);
        self.sim().advance(u32::try_from(seconds).unwrap());
    }

    /// Moves both clocks and the report clock, as when everything runs.
    pub async fn live(&self, seconds: i64) {
        let mut left = seconds;
        while left > 0 {
            let step = left.min(10);
            self.advance(step);
            self.earnest.app.store.submit(earnest_core::report::Tick).await.unwrap();
            left -= step;
        }
    }

    /// This node leads from now on, as it has to where a test runs one of its jobs by hand.
    pub async fn lead(&self) {
        assert!(earnest::lead::ask(&self.earnest.app).await, "another node leads");
    }

    /// One turn of every job, of a node that leads.
    pub async fn jobs(&self) {
        earnest::jobs::look(&self.earnest.app).await.unwrap();
        assert!(self.earnest.app.leads(), "another node leads, and this one did nearly nothing");
    }

    /// Turns of the jobs until nothing changes any more; what PayPal tells meanwhile is acted upon
    /// beside them, and may leave something for them.
    pub async fn settle_down(&self) {
        for _ in 0..20 {
            let before = self.earnest.app.store.reader().head().unwrap().seq;
            self.jobs().await;
            self.mail().await;
            if self.earnest.app.store.reader().head().unwrap().seq == before {
                return;
            }
        }
        panic!("the jobs do not come to rest");
    }

    pub fn key(&self, role: &str) -> String {
        let dev = self.earnest.dev.as_ref().unwrap();
        match role {
            "operator" => &dev.operator,
            "owner" => &dev.owner,
            "agent" => &dev.agent,
            "seller" => &dev.seller,
            other => panic!("no role {other}"),
        }
        .key
        .expose()
        .to_owned()
    }

    pub fn seller_id(&self) -> String {
        self.earnest.dev.as_ref().unwrap().seller.id.clone()
    }

    pub fn agent_id(&self) -> String {
        self.earnest.dev.as_ref().unwrap().agent.id.clone()
    }

    pub fn owner_id(&self) -> String {
        self.earnest.dev.as_ref().unwrap().owner.id.clone()
    }

    /// A request as a role (or with a key that begins with `ek_`); a body makes it JSON.
    pub async fn call(
        &self,
        role: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Answer {
        self.call_with(role, method, path, body, &[]).await
    }

    pub async fn call_with(
        &self,
        role: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let asked = method.clone();
        let mut request = self.http.request(method, format!("{}{path}", self.earnest.url()));
        if role.starts_with("ek_") {
            request = request.bearer_auth(role);
        } else if !role.is_empty() {
            request = request.bearer_auth(self.key(role));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = answer(request).await;
        crate::openapi::check(&asked, path, answer.status.as_u16(), &answer.headers, &answer.bytes);
        if answer.status.is_server_error() {
            self.broken.lock().unwrap().push(format!("{path}: {}", answer.body));
        }
        answer
    }

    /// Every answer so far that said that something broke.
    pub fn broken(&self) -> Vec<String> {
        self.broken.lock().unwrap().clone()
    }

    pub async fn get(&self, role: &str, path: &str) -> Answer {
        self.call(role, Method::GET, path, None).await
    }

    pub async fn post(&self, role: &str, path: &str, body: Value) -> Answer {
        self.call(role, Method::POST, path, Some(body)).await
    }

    /// The owner vaults the simulator's buyer.
    pub async fn vault(&self) -> String {
        self.vault_as("owner").await
    }

    /// Any owner does, by role or key.
    pub async fn vault_as(&self, owner: &str) -> String {
        let begun = self.call(owner, Method::POST, "/v1/payment-methods", None).await.expect(201);
        let url = begun["approve_url"].as_str().unwrap();
        let token = url.split("approval_session_id=").nth(1).unwrap().to_owned();
        self.sim().approve(&token, None).unwrap();
        let id = begun["id"].as_str().unwrap().to_owned();
        let path = format!("/v1/payment-methods/{id}/confirm");
        let method = self.call(owner, Method::POST, &path, None).await.expect(200);
        assert_eq!(method["status"], "active");
        // PayPal tells of it, and that is followed up beside whatever comes next.
        self.mail().await;
        id
    }

    /// The seller's origin, proved without a server: these tests are about money.
    pub async fn prove_origin(&self) {
        let unit = earnest_core::admin::PutOrigin {
            seller: self.seller_id().parse().unwrap(),
            origin: ORIGIN.to_owned(),
            proved: true,
        };
        self.earnest.app.store.submit(unit).await.unwrap();
    }

    /// A vaulted owner and a proved seller: ready to buy.
    pub async fn ready() -> Self {
        Self::ready_but(&unchanged()).await
    }

    /// The same, started otherwise.
    pub async fn ready_but(change: &Change) -> Self {
        let world = Self::changed(Config::simulated(), SimConfig::default(), change).await;
        world.prove_origin().await;
        world.vault().await;
        world
    }

    /// Sets the owner's policy whole.
    pub async fn policy(&self, subject: &str, limits: Value) -> Value {
        self.policy_as("owner", subject, limits).await
    }

    /// Any owner does, by role or key.
    pub async fn policy_as(&self, owner: &str, subject: &str, limits: Value) -> Value {
        let path = format!("/v1/policies/{subject}");
        let read = self.get(owner, &path).await;
        let etag = read.headers["etag"].to_str().unwrap().to_owned();
        self.call_with(owner, Method::PUT, &path, Some(limits), &[("if-match", &etag)])
            .await
            .expect(200)
    }

    /// A quote of the seller's for a path, at a price in micro-units.
    pub fn quote(&self, path: &str, amount_micros: i64) -> Value {
        json!({
            "v": 1,
            "id": fresh_id("qte"),
            "seller": self.seller_id(),
            "listing": format!("GET {path}"),
            "method": "GET",
            "url": format!("{ORIGIN}{path}"),
            "body_sha256": earnest_core::quote::body_digest(b""),
            "amount_micros": amount_micros,
            "currency": "USD",
            "expires_at": earnest_core::time::after(self.clock.now(), 300),
        })
    }

    pub async fn authorize(&self, quote: Value, request_id: &str) -> Answer {
        let max = quote["amount_micros"].as_i64().or(quote["max_micros"].as_i64());
        let body = json!({ "quote": quote, "max_price": max, "request_id": request_id });
        self.post("agent", "/v1/authorize", body).await
    }

    /// Buys at a price; the voucher.
    pub async fn buy(&self, amount_micros: i64, request_id: &str) -> String {
        let quote = self.quote("/weather", amount_micros);
        let body = self.authorize(quote, request_id).await.expect(201);
        body["voucher"].as_str().unwrap().to_owned()
    }

    /// Reports one voucher; the result line.
    pub async fn report(&self, voucher: &str, fate: &str) -> Value {
        let report = json!({ "voucher": voucher, "fate": fate, "claimed_at": self.clock.now() });
        let body = self
            .post("seller", "/v1/vouchers/report", json!({ "reports": [report] }))
            .await
            .expect(200);
        body["results"][0].clone()
    }

    /// Buys and is served.
    pub async fn spend(&self, amount_micros: i64, request_id: &str) {
        let voucher = self.buy(amount_micros, request_id).await;
        assert_eq!(self.report(&voucher, "redeemed").await["outcome"], "billed");
    }

    /// A call of the merchant's at PayPal that Earnest did not make.
    pub async fn at_paypal(&self, path: &str, key: &str, body: Value) -> Answer {
        let base = self.sim().base_url();
        let token = self
            .http
            .post(format!("{base}/v1/oauth2/token"))
            .basic_auth("sim", Some("sim"))
            .form(&[("grant_type", "client_credentials")]);
        let token: Value = token.send().await.unwrap().json().await.unwrap();
        let call = self.http.post(format!("{base}{path}")).json(&body);
        let call = call.header("prefer", "return=representation");
        let token = token["access_token"].as_str().unwrap();
        answer(call.bearer_auth(token).header("paypal-request-id", key)).await
    }

    /// A refund in PayPal's own pages: of `cents`, or of everything that is left.
    pub async fn refund(&self, capture: &str, cents: Option<i64>) -> Answer {
        let value = |cents: i64| format!("{}.{:02}", cents / 100, cents % 100);
        let amount = |cents| json!({ "currency_code": "USD", "value": value(cents) });
        let body = cents.map_or_else(|| json!({}), |cents| json!({ "amount": amount(cents) }));
        let key = fresh_id("refund");
        self.at_paypal(&format!("/v2/payments/captures/{capture}/refund"), &key, body).await
    }

    /// The newest tab.
    pub async fn tab(&self) -> Value {
        self.get("owner", "/v1/tabs").await.expect(200)["data"][0].clone()
    }

    /// The four totals of an account in thousandths of a dollar: debits pending/posted, credits
    /// pending/posted, as the walks of the proof are written. Those begin with nothing at PayPal, so
    /// the balance that the books began with is left out.
    pub async fn totals(&self, account: &str) -> String {
        let opening = match account {
            "paypal_cash" => crate::judge::opening(self.reader()),
            _ => 0,
        };
        let path = format!("/v1/accounts?prefix={account}");
        let body = self.get("operator", &path).await.expect(200);
        let row =
            body["data"].as_array().unwrap().iter().find(|row| row["name"] == account).cloned();
        let row = row.unwrap_or_default();
        let part = |name: &str| {
            let posted = if name == "debits_posted_micros" { opening } else { 0 };
            let micros = row[name].as_i64().unwrap_or(0) - posted;
            assert_eq!(micros % 1000, 0);
            micros / 1000
        };
        format!(
            "{}/{}/{}/{}",
            part("debits_pending_micros"),
            part("debits_posted_micros"),
            part("credits_pending_micros"),
            part("credits_posted_micros")
        )
    }

    /// Books that add up.
    pub async fn assert_balanced(&self) {
        let lines = self.get("operator", "/v1/trial-balance").await.expect(200);
        for line in lines.as_array().unwrap() {
            assert_eq!(line["imbalance_micros"], 0, "{lines}");
            assert_eq!(line["pending_imbalance_micros"], 0, "{lines}");
        }
    }
}

/// Where the seller's resources live in these tests.
pub const ORIGIN: &str = "http://127.0.0.1:9";

impl Drop for World {
    fn drop(&mut self) {
        // A runtime may not be dropped where it could block others.
        if let Some(runtime) = self.apart.as_mut().and_then(|apart| apart.runtime.take()) {
            runtime.shutdown_background();
        }
    }
}

/// A client that goes nowhere but where it is sent.
pub fn client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().build().unwrap()
}

/// A loopback address nobody else uses, so that its port is still free for the next life.
pub fn own_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 64 | (high & 0x3f), low, NEXT.fetch_add(1, Ordering::SeqCst)], 0))
}

/// Settings whose books are where this run of the tests keeps them.
fn placed(config: Config) -> (Config, Option<Arc<Schema>>) {
    placed_at(crate::engine::place(), config)
}

fn placed_at(place: Option<Schema>, config: Config) -> (Config, Option<Arc<Schema>>) {
    let place = place.map(Arc::new);
    let database = place.as_deref().map(crate::engine::url);
    (Config { database, ..config }, place)
}

/// Starts an Earnest whose every task runs on a runtime of its own.
async fn start_apart(config: &Config, clock: &TestClock, change: &Change) -> (Runtime, Running) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let (config, moved, change) = (config.clone(), clock.clone(), Arc::clone(change));
    let starting = runtime.spawn(async move {
        let timeouts = Timeouts { money: ANSWERED_WITHIN, ..Timeouts::default() };
        let clock = Arc::new(move || moved.now());
        let mut start =
            Start { clock, jobs: false, timeouts, vault_dev_owner: false, ..Start::default() };
        start.server_clock = false;
        change(&mut start);
        Running::start(config, start).await.unwrap()
    });
    let running = starting.await.unwrap();
    (runtime, running)
}

/// Waits until something is so; panics when it never is.
pub async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let waiting = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("never came to be: {what}");
    }
}

pub async fn answer(request: reqwest::RequestBuilder) -> Answer {
    let answer = request.send().await.unwrap();
    let (status, headers) = (answer.status(), answer.headers().clone());
    let bytes = answer.bytes().await.unwrap();
    let body = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into()));
    Answer { status, headers, body, bytes: bytes.to_vec() }
}

/// An id nobody has.
pub fn fresh_id(prefix: &str) -> String {
    static NEXT: AtomicI64 = AtomicI64::new(1);
    format!("{prefix}_{:026}", NEXT.fetch_add(1, Ordering::SeqCst))
}
