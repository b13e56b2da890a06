//! Several nodes on the same books behave as one: what runs by itself runs once, what one of them was
//! told binds the other at once, and one that dies or stands still does no harm.
//!
//! In one memory, or on PostgreSQL where this run of the tests keeps its books there; what comes to both
//! at once always on PostgreSQL, as the caps do that both share (`caps.rs`).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use earnest::config::Config;
use earnest::lead::LEASE_SECONDS;
use earnest::serve::{Running, Start};
use earnest_core::hook::Delivery;
use earnest_core::intent::{Intent, IntentState};
use earnest_core::lease::Fenced;
use earnest_core::ledger::{Account, Op};
use earnest_core::settlement::Settlement;
use earnest_store::{Shared, Store};
use reqwest::Method;
use serde_json::{Value, json};

use crate::events::{Listening, Message};
use crate::hooks::{Receiver, hook};
use crate::judge::all;
use crate::rotation::{kid, rotate};
use crate::world::{Change, PATIENCE, World, unchanged};

async fn two() -> [World; 2] {
    World::nodes([unchanged(), unchanged()]).await
}

/// One turn of a node's jobs, whether it leads or not.
async fn look(world: &World) {
    earnest::jobs::look(&world.earnest.app).await.unwrap();
}

/// One turn of both nodes' jobs, at the same moment.
async fn both_look(one: &World, other: &World) {
    tokio::join!(look(one), look(other));
}

fn charges(world: &World) -> usize {
    let journal = world.sim().journal();
    journal.iter().filter(|call| call.operation == Some("orders.create")).count()
}

fn captures(world: &World) -> usize {
    world.sim().books().rows.iter().filter(|row| row.event_code == "T0003").count()
}

/// Buys enough for a settlement and asks for it.
async fn settlement(world: &World, name: &str) -> Settlement {
    world.policy("owner", json!({})).await;
    world.spend(950_000, name).await;
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    let headers = [("idempotency-key", name)];
    let path = format!("/v1/tabs/{tab}/settle");
    world.call_with("owner", Method::POST, &path, None, &headers).await.expect(202);
    all::<Settlement>(world.reader()).pop().unwrap()
}

async fn pause(world: &World, what: &str) {
    world.call("owner", Method::POST, &format!("/v1/{what}/pause"), None).await.expect(204);
}

async fn resume(world: &World, what: &str) {
    world.call("owner", Method::POST, &format!("/v1/{what}/resume"), None).await.expect(204);
}

/// Revokes one of the agent's keys.
async fn revoke(world: &World, key: &str) {
    let path = format!("/v1/agents/{}/keys/{key}", world.agent_id());
    world.call("owner", Method::DELETE, &path, None).await.expect(200);
}

/// A clock that jumps once, as soon as something more is in the log than when it was armed: as if the
/// process stood still right after that commit.
#[derive(Clone, Default)]
struct Jump {
    store: Arc<OnceLock<Store>>,
    /// By how many milliseconds the node is ahead.
    ahead: Arc<AtomicI64>,
    by: Arc<AtomicI64>,
    armed_at: Arc<AtomicU64>,
    armed: Arc<AtomicBool>,
}

impl Jump {
    fn change(&self) -> Change {
        let jump = self.clone();
        Arc::new(move |start: &mut Start| {
            let (clock, jump) = (start.clock.clone(), jump.clone());
            start.clock = Arc::new(move || {
                let ahead = earnest_core::time::SignedDuration::from_millis(jump.look());
                clock().saturating_add(ahead).unwrap()
            });
        })
    }

    fn look(&self) -> i64 {
        if self.armed.load(Ordering::SeqCst)
            && let Some(store) = self.store.get()
            && store.reader().head().unwrap().seq > self.armed_at.load(Ordering::SeqCst)
            && self.armed.swap(false, Ordering::SeqCst)
        {
            self.ahead.fetch_add(self.by.load(Ordering::SeqCst), Ordering::SeqCst);
        }
        self.ahead.load(Ordering::SeqCst)
    }

    fn arm(&self, node: &World, seconds: i64) {
        self.store.get_or_init(|| node.earnest.app.store.clone());
        self.armed_at.store(node.reader().head().unwrap().seq, Ordering::SeqCst);
        self.by.store(seconds * 1000, Ordering::SeqCst);
        self.armed.store(true, Ordering::SeqCst);
    }

    /// The other clocks have caught up.
    fn caught_up(&self) {
        assert!(!self.armed.load(Ordering::SeqCst), "it stood still");
        self.ahead.store(0, Ordering::SeqCst);
    }
}

/// Everything that runs by itself, looked for by both nodes again and again.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_is_done_once_though_both_nodes_look() {
    let [one, other] = two().await;
    let receiver = Receiver::begin(&[]).await;
    hook(&one, "owner", json!({ "url": receiver.url })).await;
    for (n, node) in [&one, &other].into_iter().enumerate() {
        settlement(node, &format!("s-{n}")).await;
        pause(node, "owners/me").await;
        resume(node, "owners/me").await;
        for _ in 0..5 {
            both_look(&one, &other).await;
            assert_ne!(one.earnest.app.leads(), other.earnest.app.leads(), "one leads");
            one.mail().await;
        }
    }
    assert_eq!(charges(&one), 2, "each settlement was charged by one call");
    assert_eq!((all::<Settlement>(one.reader()).len(), captures(&one)), (2, 2));
    assert!(all::<Intent>(one.reader()).iter().all(|intent| !intent.state.is_open()));
    let told: Vec<String> = receiver
        .got()
        .iter()
        .map(|(headers, _)| headers["webhook-id"].to_str().unwrap().to_owned())
        .collect();
    let different: BTreeSet<&String> = told.iter().collect();
    assert_eq!(told.len(), different.len(), "nobody was told of anything twice");
    assert_eq!(told.len(), all::<Delivery>(one.reader()).len());
    assert!(told.len() > 5, "{told:?}");
    for world in [&one, &other] {
        world.assert_at_rest();
    }
    one.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_dies_another_node_follows_after_the_lease() {
    let [mut one, other] = two().await;
    let receiver = Receiver::begin(&[]).await;
    hook(&one, "owner", json!({ "url": receiver.url, "kinds": ["owner.paused"] })).await;
    one.lead().await;
    both_look(&one, &other).await;
    assert!(one.earnest.app.leads() && !other.earnest.app.leads());
    pause(&other, "owners/me").await;
    one.die().await;
    // It died without a word, so its lease goes on.
    other.advance(LEASE_SECONDS - 1);
    look(&other).await;
    assert!(!other.earnest.app.leads() && receiver.got().is_empty());
    other.advance(1);
    other.jobs().await;
    assert!(other.earnest.app.leads());
    assert_eq!(receiver.got().len(), 1, "what it left was done");
    // It comes back and is one of two.
    one.rise().await;
    look(&one).await;
    assert!(!one.earnest.app.leads());
    assert_eq!(receiver.got().len(), 1);
    other.assert_sound();
}

/// One that stood still for as long finds that another leads, and commits nothing of the leader's any
/// more.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_leader_had_begun_is_refused_when_another_leads() {
    let [one, other] = two().await;
    one.lead().await;
    let app = &one.earnest.app;
    let mut late = Fenced {
        lease: earnest::lead::JOBS.to_owned(),
        node: app.node.clone(),
        fence: 1,
        unit: earnest_core::report::Tick,
    };
    app.store.submit(late.clone()).await.unwrap();
    assert!(!earnest::lead::ask(&other.earnest.app).await);
    one.advance(LEASE_SECONDS);
    assert!(!app.leads(), "its right has run out");
    assert!(app.store.submit(late.clone()).await.is_err(), "and where it is written, too");
    other.lead().await;
    assert!(app.submit_leading(earnest_core::report::Tick).await.is_err());
    for fence in 1..=2 {
        late.fence = fence;
        assert!(app.store.submit(late.clone()).await.is_err(), "it is the other's");
    }
    look(&one).await;
    assert!(!app.leads());
    one.assert_sound();
}

/// A node that is told to stop gives back what it holds: another goes on at once. One that is alone
/// writes nothing for any of this.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_is_followed_at_once() {
    let shared = Shared::default();
    let dir = tempfile::tempdir().unwrap();
    let start = |shared: Option<Shared>| {
        let config = Config { data: Some(dir.path().to_owned()), ..Config::simulated() };
        let start = Start { shared, vault_dev_owner: false, ..Start::default() };
        Running::start(config, start)
    };
    let one = start(Some(shared.clone())).await.unwrap();
    crate::world::until("one leads", || one.app.leads()).await;
    let other = start(Some(shared.clone())).await.unwrap();
    tokio::time::sleep(earnest::lead::ASK * 2).await;
    assert!(one.app.leads() && !other.app.leads());
    one.stop().await;
    crate::world::until("the other leads", || other.app.leads()).await;
    other.stop().await;

    let alone = start(None).await.unwrap();
    assert!(alone.app.leads());
    let leases = alone.app.store.reader().every::<earnest_core::lease::Lease>().unwrap();
    assert!(leases.is_empty(), "{leases:?}");
    alone.stop().await;
}

/// INVARIANT: a_node_whose_claim_passed_sends_nothing.
///
/// The node stands still right after it committed the time of sending, for longer than its claim
/// lasts: it sends nothing, and the other node does, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_claim_passed_sends_nothing() {
    let jump = Jump::default();
    let [one, other] = World::nodes([jump.change(), unchanged()]).await;
    settlement(&one, "late").await;
    jump.arm(&one, 121);
    earnest::jobs::intents(&one.earnest.app).await.unwrap();
    assert_eq!(charges(&one), 0, "nothing was sent");
    let claimed =
        all::<Intent>(one.reader()).into_iter().find(|it| it.invoice_id.is_some()).unwrap();
    assert!(claimed.state.is_open() && claimed.fence == 1, "its claim was committed: {claimed:?}");
    one.advance(121);
    jump.caught_up();
    // What did not leave is tried again, after a while.
    other.advance(3_600);
    other.settle_down().await;
    assert_eq!((charges(&one), captures(&one)), (1, 1));
    let intents = all::<Intent>(one.reader());
    let intent = intents.iter().find(|intent| intent.invoice_id.is_some()).unwrap();
    assert_eq!(intent.state, IntentState::Done, "{:?}", intent.evidence);
    one.assert_at_rest();
    one.assert_balanced().await;
}

/// The same of what endpoints are told, where the claim is a minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_claim_of_a_delivery_passed_tells_nobody() {
    let jump = Jump::default();
    let [one, other] = World::nodes([jump.change(), unchanged()]).await;
    let receiver = Receiver::begin(&[]).await;
    hook(&one, "owner", json!({ "url": receiver.url, "kinds": ["owner.paused"] })).await;
    pause(&one, "owners/me").await;
    one.lead().await;
    earnest::flow::hook::fan_out(&one.earnest.app, &mut None).await.unwrap();
    let due = earnest::flow::hook::due(&one.earnest.app).unwrap();
    jump.arm(&one, 61);
    earnest::flow::hook::deliver(&one.earnest.app, &due[0]).await;
    assert!(receiver.got().is_empty(), "nothing was sent");
    one.advance(61);
    jump.caught_up();
    assert!(!one.earnest.app.leads(), "its lease has passed as well");
    other.jobs().await;
    assert_eq!(receiver.got().len(), 1);
    // What it thinks is still to be done is refused where it would be written.
    earnest::flow::hook::deliver(&one.earnest.app, &due[0]).await;
    assert_eq!(receiver.got().len(), 1);
    one.assert_sound();
}

/// Where a hold stands in the log, of everything after a place.
fn holds_after(world: &World, seq: u64) -> Vec<u64> {
    let log = world.reader().log(seq, 100_000).unwrap();
    let holds = |entry: &&earnest_store::LogEntry| {
        entry.entry.name == "purchase.authorize"
            && entry.entry.ops.iter().any(|op| matches!(op, Op::Hold { .. }))
    };
    log.iter().filter(holds).map(|entry| entry.entry.seq).collect()
}

/// What an owner does at one node to stop an agent, while it buys at the other; and what lets it buy
/// again.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Owner,
    Agent,
    Policy,
    AgentPolicy,
    Key,
}

const STOPS: [Stop; 5] = [Stop::Owner, Stop::Agent, Stop::Policy, Stop::AgentPolicy, Stop::Key];

impl Stop {
    async fn begin(self, node: &World, key: &str) {
        match self {
            Self::Owner => pause(node, "owners/me").await,
            Self::Agent => pause(node, &format!("agents/{}", node.agent_id())).await,
            Self::Policy => {
                node.policy("owner", json!({ "per_call_cap_micros": 999 })).await;
            }
            Self::AgentPolicy => {
                node.policy(&node.agent_id(), json!({ "per_call_cap_micros": 999 })).await;
            }
            Self::Key => revoke(node, key).await,
        }
    }

    async fn end(self, node: &World, key: &str) {
        match self {
            Self::Owner => resume(node, "owners/me").await,
            Self::Agent => resume(node, &format!("agents/{}", node.agent_id())).await,
            Self::Policy => {
                node.policy("owner", json!({})).await;
            }
            Self::AgentPolicy => {
                node.policy(&node.agent_id(), json!({})).await;
            }
            Self::Key => return,
        }
        revoke(node, key).await;
    }

    fn code(self) -> &'static str {
        match self {
            Self::Owner => "policy_denied/owner_paused",
            Self::Agent => "policy_denied/agent_paused",
            Self::Policy | Self::AgentPolicy => "policy_denied/per_call_cap",
            Self::Key => "unauthenticated",
        }
    }
}

/// After a pause, a revocation or a change of policy is answered at one node, nothing that it forbids
/// commits at the other, however many ask there at that moment.
#[tokio::test(flavor = "multi_thread")]
async fn what_one_node_answered_binds_the_other_at_once() {
    let [one, other] = two().await;
    for round in 0..5 * STOPS.len() {
        let stop = STOPS[round % STOPS.len()];
        let path = format!("/v1/agents/{}/keys", one.agent_id());
        let made = one.post("owner", &path, json!({ "label": "test" })).await.expect(201);
        let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
        let before = holds_after(&other, 0).len();
        let stopped = AtomicBool::new(false);
        let ask = async |n: usize, again: usize| {
            let quote = other.quote("/weather", 1_000);
            let name = format!("r-{round}-{n}-{again}");
            let body = json!({ "quote": quote, "max_price": 1_000, "request_id": name });
            let after = stopped.load(Ordering::SeqCst);
            let answer = other.call(key, Method::POST, "/v1/authorize", Some(body)).await;
            if after {
                assert_eq!(answer.refusal(), stop.code(), "round {round}: {}", answer.body);
            }
            (answer.status.as_u16(), after)
        };
        let ask_again = async |n: usize| {
            let (mut granted, mut again) = (0, 0);
            loop {
                let (status, after) = ask(n, again).await;
                granted += usize::from(status == 201);
                again += 1;
                if after {
                    return granted;
                }
            }
        };
        let stopping = async {
            // In the midst of it.
            crate::world::until("some were granted", || holds_after(&other, 0).len() > before + 2)
                .await;
            stop.begin(&one, id).await;
            stopped.store(true, Ordering::SeqCst);
            one.reader().head().unwrap().seq
        };
        let asking = futures_util::future::join_all((0..8).map(ask_again));
        let (seq, granted) = tokio::join!(stopping, asking);
        assert!(granted.iter().sum::<usize>() > 0, "round {round}");
        assert_eq!(holds_after(&one, seq), Vec::<u64>::new(), "round {round}, {stop:?}");
        stop.end(&one, id).await;
    }
    one.assert_sound();
}

/// What was begun before the pause: a voucher that ran out is not issued anew at the other node, and a
/// yes is not used there, until the pause is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_at_one_node_holds_back_what_was_begun_at_the_other() {
    let [one, other] = two().await;
    one.policy("owner", json!({ "approve_above_micros": 200_000 })).await;
    for (round, stop) in [Stop::Owner, Stop::Agent].into_iter().enumerate() {
        let [begun, dear] = ["begun", "dear"].map(|name| format!("{name}-{round}"));
        let begun = async || other.authorize(other.quote("/weather", 1_000), &begun).await;
        let dear = async || other.authorize(other.quote("/dear", 250_000), &dear).await;
        let first = begun().await.expect(201);
        let approval = dear().await.expect(202)["approval_id"].as_str().unwrap().to_owned();
        let path = format!("/v1/approvals/{approval}/decision");
        let (yes, version) = (Some(json!({ "decision": "approve" })), [("if-match", "\"1\"")]);
        one.call_with("owner", Method::POST, &path, yes, &version).await.expect(200);
        one.advance(130);
        match stop {
            Stop::Owner => pause(&one, "owners/me").await,
            _ => pause(&one, &format!("agents/{}", one.agent_id())).await,
        }
        let seq = one.reader().head().unwrap().seq;
        for _ in 0..3 {
            assert_eq!(begun().await.refusal(), stop.code());
            assert_eq!(dear().await.refusal(), stop.code());
        }
        assert_eq!(holds_after(&one, seq), Vec::<u64>::new());
        let question = one.get("owner", &format!("/v1/approvals/{approval}")).await.expect(200);
        assert_eq!(question["status"], "approved", "it waits");
        match stop {
            Stop::Owner => resume(&one, "owners/me").await,
            _ => resume(&one, &format!("agents/{}", one.agent_id())).await,
        }
        let again = begun().await.expect(201);
        assert_eq!(again["purchase"], first["purchase"]);
        assert_ne!(again["voucher"], first["voucher"]);
        dear().await.expect(201);
    }
    one.assert_sound();
}

/// An owner's key that was revoked at one node changes nothing more at the other, from the answer on;
/// and reads nothing more a moment later.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_changes_nothing_at_any_node() {
    let [one, other] = two().await;
    let path = format!("/v1/owners/{}/keys", one.owner_id());
    let mut key = one.key("owner");
    for round in 0..10 {
        // The other node remembers it.
        other.get(&key, "/v1/tabs").await.expect(200);
        let body = json!({ "label": "test", "revoke_others": true });
        let made = one.post("operator", &path, body).await.expect(201);
        let told = other.call(&key, Method::POST, "/v1/owners/me/pause", None).await;
        assert_eq!(told.code(), "unauthenticated", "round {round}");
        let reads = async {
            while other.get(&key, "/v1/tabs").await.status != 401 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, reads).await.expect("it is told");
        key = made["key"].as_str().unwrap().to_owned();
    }
}

/// A stream at one node ends with a key that is revoked at the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_its_key_wherever_that_is_revoked() {
    let [one, other] = World::nodes([unchanged(), crate::events::silent()]).await;
    let path = format!("/v1/agents/{}/keys", one.agent_id());
    let made = one.post("owner", &path, json!({})).await.expect(201);
    let key = made["key"].as_str().unwrap();
    let mut stream = Listening::begin(&other.earnest.url(), key, "", None).await;
    revoke(&one, made["id"].as_str().unwrap()).await;
    assert!(stream.next().await.is_none(), "it ends at once");
}

/// INVARIANT: a_voucher_is_signed_by_the_key_of_its_moment.
///
/// A key that may be known to somebody is replaced at one node: the next voucher of the other is
/// signed with the new one, and either verifies what the other signed.
#[tokio::test(flavor = "multi_thread")]
async fn a_voucher_is_signed_by_the_key_of_its_moment() {
    let [one, other] = two().await;
    for round in 0..10 {
        let [rotates, buys] = if round % 2 == 0 { [&one, &other] } else { [&other, &one] };
        let made = rotate(rotates, "voucher", true, &format!("rotate-{round}")).await.expect(200);
        let voucher = buys.buy(1_000, &format!("buy-{round}")).await;
        assert_eq!(made["kid"], kid(&voucher), "round {round}");
        // At once, before that node has heard of anything.
        assert_eq!(rotates.report(&voucher, "redeemed").await["outcome"], "billed");
        one.advance(1);
    }
    one.assert_sound();
}

/// The same purchase, the same report, at both nodes at the same moment: once.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_to_both_nodes_at_once_counts_once() {
    let [one, other] = World::nodes_on_postgres().await;
    const ROUNDS: i64 = 30;
    for round in 0..ROUNDS {
        let (quote, name) = (one.quote("/weather", 10_000), format!("same-{round}"));
        let (a, b) =
            tokio::join!(one.authorize(quote.clone(), &name), other.authorize(quote, &name));
        let (a, b) = (a.expect(201), b.expect(201));
        assert_eq!(a, b, "one purchase, one voucher");
        let voucher = a["voucher"].as_str().unwrap();
        let (a, b) =
            tokio::join!(one.report(voucher, "redeemed"), other.report(voucher, "redeemed"));
        let mut outcomes = [&a, &b].map(|told| told["outcome"].as_str().unwrap());
        outcomes.sort_unstable();
        assert_eq!(outcomes, ["already_billed", "billed"], "round {round}");
    }
    let tab = one.tab().await;
    assert_eq!(tab["owed_micros"], ROUNDS * 10_000);
    assert_eq!(tab["held_micros"], 0);
    let tab: earnest_core::tab::Tab = all(one.reader()).pop().unwrap();
    let owed = other.reader().totals(&Account::TabOwed(tab.id).usd()).unwrap();
    assert_eq!(owed.debits_posted.get(), ROUNDS * 10_000);
    one.assert_sound();
    one.assert_balanced().await;
}

/// A listener goes from node to node while both write: every event, in order, once.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_at_another_node() {
    let [one, other] = two().await;
    let key = one.key("operator");
    let done = AtomicBool::new(false);
    let writing = async {
        for n in 0..60 {
            let node = if n % 2 == 0 { &one } else { &other };
            node.spend(1_000, &format!("n-{n}")).await;
        }
        done.store(true, Ordering::SeqCst);
    };
    let listening = async {
        let mut heard = Vec::<Message>::new();
        for turn in 0.. {
            let over = done.load(Ordering::SeqCst);
            let node = if turn % 2 == 0 { &one } else { &other };
            let left = left(&one, heard.len());
            if left == 0 && over {
                break;
            }
            if left == 0 {
                tokio::task::yield_now().await;
                continue;
            }
            let at = heard.last().map_or("0", |message| &message.id).to_owned();
            let mut listener = Listening::begin(&node.earnest.url(), &key, "", Some(&at)).await;
            heard.extend(listener.take(left.min(7)).await);
        }
        heard
    };
    let ((), heard) = tokio::join!(writing, listening);
    let mut whole = Listening::begin(&other.earnest.url(), &key, "?since=0", None).await;
    let whole = whole.take(heard.len()).await;
    assert!(heard.iter().map(|it| &it.id).eq(whole.iter().map(|it| &it.id)));
    let page = one.reader().events(0, 1_000_000).unwrap();
    let expected: Vec<(u64, Value)> =
        page.events.iter().map(|it| (it.seq, it.event.data.clone())).collect();
    let heard: Vec<(u64, Value)> = heard
        .iter()
        .map(|message| (message.data["seq"].as_u64().unwrap(), message.data["data"].clone()))
        .collect();
    assert_eq!(heard, expected);
}

/// How many events there are beyond so many.
fn left(world: &World, heard: usize) -> usize {
    world.reader().events(0, 1_000_000).unwrap().events.len() - heard
}
