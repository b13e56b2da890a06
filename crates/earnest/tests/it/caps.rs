//! Caps under many at once: requests over HTTP from processes of their own, each run on fresh
//! limits.

use std::process::Stdio;
use std::sync::Arc;

use earnest_core::ledger::Account;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

use crate::judge::all;
use crate::world::{World, client};

/// How many processes buy.
const PROCESSES: usize = 8;
/// How many purchases each begins at the same moment.
const EACH: usize = 8;
/// How often it is tried.
const RUNS: usize = 200;
/// The variable that makes this test binary one of the processes.
const CHILD: &str = "EARNEST_TEST_BUYER";

/// A process that buys when told to: a line in, one line out.
struct BuyerProcess {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl BuyerProcess {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "caps::a_process_that_buys", "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { _child: child, input, output }
    }

    async fn say(&mut self, order: &Value) {
        self.input.write_all(format!("{order}\n").as_bytes()).await.unwrap();
    }

    /// What became of each purchase: `201`, or `403 code/reason`.
    async fn hear(&mut self) -> Vec<String> {
        loop {
            let line = self.output.next_line().await.unwrap().expect("the process lives");
            // The harness of the process says something too.
            if let Some(answers) = line.strip_prefix("@ ") {
                return serde_json::from_str(answers).unwrap();
            }
        }
    }
}

/// The other side of [`BuyerProcess`]; nothing unless this process was started as one.
#[tokio::test]
async fn a_process_that_buys() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let http = client();
    // Nothing else runs here while it waits for an order.
    for line in std::io::stdin().lines() {
        let order: Arc<Value> = Arc::new(serde_json::from_str(&line.unwrap()).unwrap());
        let mut buying = JoinSet::new();
        for n in 0..EACH {
            let (http, order) = (http.clone(), Arc::clone(&order));
            buying.spawn(async move {
                let request_id = format!("{}-{n}", order["name"].as_str().unwrap());
                let price = &order["quote"]["amount_micros"];
                let body = json!({ "quote": order["quote"], "max_price": price, "request_id": request_id });
                let request = http.post(order["url"].as_str().unwrap());
                let request = request.bearer_auth(order["key"].as_str().unwrap()).json(&body);
                let answer = crate::world::answer(request).await;
                match answer.status.as_u16() {
                    201 => "201".to_owned(),
                    status => format!("{status} {}", answer.refusal()),
                }
            });
        }
        println!("@ {}", json!(buying.join_all().await));
    }
}

/// Which limit leaves room for a dollar; all others leave plenty.
#[derive(Clone, Copy, Debug)]
enum Cap {
    AgentSession,
    AgentDay,
    OwnerSession,
    OwnerDay,
    TabLimit,
    CreditLine,
}

const CAPS: [Cap; 6] = [
    Cap::AgentSession,
    Cap::AgentDay,
    Cap::OwnerSession,
    Cap::OwnerDay,
    Cap::TabLimit,
    Cap::CreditLine,
];

impl Cap {
    fn reason(self) -> &'static str {
        match self {
            Self::AgentSession | Self::OwnerSession => "session_cap",
            Self::AgentDay | Self::OwnerDay => "daily_cap",
            Self::TabLimit | Self::CreditLine => "tab_limit",
        }
    }

    /// A new owner with this limit; the keys its processes buy with. A limit of the owner's counts
    /// both of its agents together.
    async fn buyers(self, world: &World, run: usize) -> (String, Vec<String>) {
        let name = json!({ "name": format!("owner {run}") });
        let owner = world.post("operator", "/v1/owners", name).await.expect(201);
        let owner = owner["id"].as_str().unwrap().to_owned();
        let key = |of: String, by: String| async move {
            let path = format!("/v1/{of}/keys");
            let made = world.post(&by, &path, json!({ "label": "test" })).await.expect(201);
            made["key"].as_str().unwrap().to_owned()
        };
        let owner_key = key(format!("owners/{owner}"), "operator".to_owned()).await;
        world.vault_as(&owner_key).await;
        let dollar = "$1.00";
        let limits = match self {
            Self::OwnerSession => json!({ "session_cap_micros": dollar }),
            Self::OwnerDay => json!({ "day_cap_micros": dollar }),
            Self::TabLimit => json!({ "tab_limit_micros": dollar }),
            _ => json!({}),
        };
        world.policy_as(&owner_key, "owner", limits).await;
        if matches!(self, Self::CreditLine) {
            let path = format!("/v1/owners/{owner}/credit");
            let line = Some(json!({ "line": dollar }));
            world.call("operator", Method::PUT, &path, line).await.expect(200);
        }
        let own = match self {
            Self::AgentSession => Some(json!({ "session_cap_micros": dollar })),
            Self::AgentDay => Some(json!({ "day_cap_micros": dollar })),
            _ => None,
        };
        let mut keys = Vec::new();
        for n in 0..if own.is_some() { 1 } else { 2 } {
            let name = json!({ "name": format!("agent {n}") });
            let agent = world.post(&owner_key, "/v1/agents", name).await.expect(201);
            let agent = agent["id"].as_str().unwrap().to_owned();
            if let Some(limits) = &own {
                world.policy_as(&owner_key, &agent, limits.clone()).await;
            }
            keys.push(key(format!("agents/{agent}"), owner_key.clone()).await);
        }
        (owner, keys)
    }
}

/// The processes buy at the same moment; what each got.
async fn buy_at_once(
    world: &World,
    urls: &[String],
    processes: &mut [BuyerProcess],
    keys: &[String],
    price: i64,
) -> Vec<String> {
    let quote = world.quote("/weather", price);
    for (n, process) in processes.iter_mut().enumerate() {
        let url = format!("{}/v1/authorize", urls[n % urls.len()]);
        let name = format!("process-{n}");
        // Every key buys at every node.
        let key = &keys[(n / urls.len()) % keys.len()];
        process.say(&json!({ "url": url, "key": key, "quote": quote, "name": name })).await;
    }
    let mut answers = Vec::new();
    for process in processes {
        answers.extend(process.hear().await);
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_a_dollar_buys_three_times_thirty_cents_however_many_ask_at_once() {
    let world = World::on_disk().await;
    world.prove_origin().await;
    buy_again_and_again(&world, &[world.earnest.url()], RUNS).await;
}

/// The same at two nodes on one database, half of the connections at each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_a_dollar_buys_three_times_thirty_cents_at_two_nodes_together() {
    let [one, other] = World::nodes_on_postgres().await;
    let urls = [&one, &other].map(|node| node.earnest.url());
    buy_again_and_again(&one, &urls, RUNS / 2).await;
}

async fn buy_again_and_again(world: &World, urls: &[String], runs: usize) {
    let mut processes: Vec<BuyerProcess> = (0..PROCESSES).map(|_| BuyerProcess::start()).collect();
    for run in 0..runs {
        let cap = CAPS[run % CAPS.len()];
        let (owner, keys) = cap.buyers(world, run).await;
        let answers = buy_at_once(world, urls, &mut processes, &keys, 300_000).await;
        let granted = answers.iter().filter(|answer| *answer == "201").count();
        let refused = format!("403 policy_denied/{}", cap.reason());
        let denied = answers.iter().filter(|answer| **answer == refused).count();
        assert_eq!((granted, denied), (3, PROCESSES * EACH - 3), "run {run}, {cap:?}: {answers:?}");
        let tabs = all::<earnest_core::tab::Tab>(world.reader());
        let tab = tabs.iter().find(|tab| tab.owner.to_string() == owner).unwrap();
        let owed = world.reader().totals(&Account::TabOwed(tab.id).usd()).unwrap();
        assert_eq!(owed.debits_pending.get(), 900_000, "run {run}, {cap:?}");
    }
    world.assert_sound();
    world.assert_balanced().await;
}

/// A per-session budget, asked in parallel, is spent to the micro and no further.
#[tokio::test]
async fn ledg_02_parallel_requests_do_not_pass_a_session_cap_together() {
    let world = World::ready().await;
    world.policy("owner", json!({ "session_cap_micros": 50_000 })).await;
    let asked: Vec<_> =
        (0..8).map(|n| (world.quote("/weather", 10_000), format!("call-{n}"))).collect();
    let asking = asked.into_iter().map(|(quote, id)| {
        let world = &world;
        async move { world.authorize(quote, &id).await }
    });
    let answers = futures_util::future::join_all(asking).await;
    let (granted, denied): (Vec<_>, Vec<_>) =
        answers.iter().partition(|answer| answer.status.as_u16() == 201);
    assert_eq!((granted.len(), denied.len()), (5, 3));
    for answer in denied {
        assert_eq!(
            (answer.status.as_u16(), answer.refusal()),
            (403, "policy_denied/session_cap".to_owned())
        );
    }
    for answer in granted {
        let voucher = answer.body["voucher"].as_str().unwrap();
        assert_eq!(world.report(voucher, "redeemed").await["outcome"], "billed");
    }
    let tab = world.tab().await;
    assert_eq!((&tab["owed_micros"], &tab["held_micros"]), (&json!(50_000), &json!(0)));
    // Spent is spent: a line that is billed counts as a hold did.
    let more = world.authorize(world.quote("/weather", 1), "one-more").await;
    assert_eq!(more.refusal(), "policy_denied/session_cap");
    world.assert_sound();
    world.assert_balanced().await;
}

/// What one hold gives back, one other takes: never two.
#[tokio::test]
async fn ledg_02_room_that_is_given_back_is_given_out_once() {
    let world = World::ready().await;
    world.policy("owner", json!({ "session_cap_micros": 10_000 })).await;
    for round in 0..10 {
        let voucher = world.buy(10_000, &format!("first-{round}")).await;
        let quote = world.quote("/weather", 10_000);
        let ids: Vec<String> = (0..4).map(|n| format!("then-{round}-{n}")).collect();
        let asking =
            futures_util::future::join_all(ids.iter().map(|id| world.authorize(quote.clone(), id)));
        let (report, answers) = tokio::join!(world.report(&voucher, "failed"), asking);
        assert_eq!(report["outcome"], "released");
        let granted: Vec<&str> = answers
            .iter()
            .filter(|answer| answer.status.as_u16() == 201)
            .map(|answer| answer.body["voucher"].as_str().unwrap())
            .collect();
        assert!(granted.len() <= 1, "{answers:?}");
        for voucher in granted {
            assert_eq!(world.report(voucher, "failed").await["outcome"], "released");
        }
        assert_eq!(world.tab().await["held_micros"], 0);
    }
    world.assert_sound();
}
