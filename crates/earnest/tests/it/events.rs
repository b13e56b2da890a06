//! The stream of events: who hears what, and that nobody misses or doubles anything.

use std::sync::Arc;
use std::time::Duration;

use earnest::config::Config;
use paypal_sim::{Effect, Fault, SimConfig};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::process::Installation;
use crate::world::{PATIENCE, World, client};

/// A message of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    pub id: String,
    event: String,
    pub data: Value,
    comment: bool,
}

/// Somebody who listens.
pub struct Listening {
    response: Response,
    text: String,
}

impl Listening {
    pub async fn begin(url: &str, key: &str, query: &str, last: Option<&str>) -> Self {
        let mut request = client().get(format!("{url}/v1/events{query}")).bearer_auth(key);
        request = request.header("accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        Self { response, text: String::new() }
    }

    /// The next message; `None` when the stream has ended.
    pub async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some((message, rest)) = self.text.split_once("\n\n") {
                let message = read(message);
                self.text = rest.to_owned();
                return Some(message);
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk()).await;
            let chunk = chunk.expect("the stream says something").ok()??;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    pub async fn take(&mut self, count: usize) -> Vec<Message> {
        let mut all = Vec::new();
        while all.len() < count {
            let message = self.next().await.expect("the stream goes on");
            if !message.comment {
                all.push(message);
            }
        }
        all
    }
}

fn read(text: &str) -> Message {
    let mut message = Message::default();
    for line in text.lines() {
        match line.split_once(':') {
            Some(("", _)) => message.comment = true,
            Some(("id", id)) => message.id = id.trim().to_owned(),
            Some(("event", event)) => message.event = event.trim().to_owned(),
            Some(("data", data)) => message.data = serde_json::from_str(data.trim()).unwrap(),
            _ => {}
        }
    }
    message
}

async fn listen(world: &World, role: &str, query: &str, last: Option<&str>) -> Listening {
    Listening::begin(&world.earnest.url(), &world.key(role), query, last).await
}

fn kinds(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.data["kind"].as_str().unwrap()).collect()
}

/// Everything a role may see, from the beginning.
async fn everything(world: &World, role: &str) -> Vec<Message> {
    let known = world.reader().events(0, 1_000_000).unwrap();
    let who = match role {
        "owner" => world.owner_id(),
        "agent" => world.agent_id(),
        "seller" => world.seller_id(),
        _ => String::new(),
    };
    let count = known.events.iter().filter(|it| who.is_empty() || it.event.audience.contains(&who));
    let count = count.count();
    listen(world, role, "?since=0", None).await.take(count).await
}

#[tokio::test]
async fn each_hears_what_concerns_it_and_the_operator_everything() {
    let world = World::ready().await;
    let mut streams = Vec::new();
    for role in ["operator", "owner"] {
        streams.push(listen(&world, role, "", None).await);
    }
    let stranger = world.post("operator", "/v1/owners", json!({ "name": "stranger" })).await;
    let stranger = stranger.expect(201)["id"].as_str().unwrap().to_owned();
    let key = world.post("operator", &format!("/v1/owners/{stranger}/keys"), json!({})).await;
    let key = key.expect(201)["key"].as_str().unwrap().to_owned();
    let mut strange = Listening::begin(&world.earnest.url(), &key, "", None).await;
    world.spend(100_000, "one").await;
    let operator = everything(&world, "operator").await;
    let owner = everything(&world, "owner").await;
    assert!(owner.len() < operator.len());
    assert!(owner.iter().all(|message| operator.contains(message)));
    assert!(kinds(&owner).contains(&"purchase.billed"), "{:?}", kinds(&owner));
    // What came live is what the log says.
    let live = streams[1].take(3).await;
    assert_eq!(live, owner[owner.len() - 3..], "{live:#?}");
    // Something of the stranger's own is the first thing it hears.
    world.call(&key, Method::POST, "/v1/owners/me/pause", None).await.expect(204);
    let heard = strange.take(1).await;
    assert_eq!(kinds(&heard), ["owner.paused"]);
}

#[tokio::test]
async fn ssev_01_nothing_between_may_hold_the_stream_back() {
    let world = World::ready().await;
    let request = client().get(format!("{}/v1/events", world.earnest.url()));
    let request = request.bearer_auth(world.key("owner")).header("accept-encoding", "gzip, br");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    let header = |name: &str| response.headers().get(name).map(|it| it.to_str().unwrap());
    assert_eq!(header("x-accel-buffering"), Some("no"));
    assert_eq!(header("content-type"), Some("text/event-stream"));
    assert!(header("cache-control").unwrap().contains("no-cache"));
    assert_eq!(header("content-encoding"), None);
    let refused = client().get(format!("{}/v1/events", world.earnest.url())).send().await.unwrap();
    assert_eq!(refused.status(), 401);
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
}

#[tokio::test]
async fn ssev_03_a_viewer_that_comes_back_hears_what_it_missed_once() {
    let world = World::ready().await;
    world.spend(10_000, "before").await;
    let seen = everything(&world, "owner").await;
    let last = seen.last().unwrap().id.clone();
    for n in 0..4 {
        world.authorize(world.quote("/weather", 10_000), &format!("missed-{n}")).await.expect(201);
    }
    for query in [format!("?since={last}"), String::new()] {
        let header = query.is_empty().then_some(last.as_str());
        let missed = listen(&world, "owner", &query, header).await.take(4).await;
        assert_eq!(kinds(&missed), ["purchase.held"; 4]);
        let seqs: Vec<u64> = missed.iter().map(|it| it.data["seq"].as_u64().unwrap()).collect();
        assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
        // Nothing after them: the next thing heard is the next thing that happens.
    }
    let mut stream = listen(&world, "owner", &format!("?since={last}"), None).await;
    stream.take(4).await;
    world.authorize(world.quote("/weather", 10_000), "now").await.expect(201);
    let next = stream.take(1).await.remove(0);
    let all = everything(&world, "owner").await;
    assert_eq!(all.last(), Some(&next));
    let mut ids: Vec<&str> = all.iter().map(|message| message.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all.len(), "every event has an id of its own");
}

/// Two events of one entry: whoever saw only the first goes on with the second.
#[tokio::test]
async fn a_stream_goes_on_in_the_middle_of_an_entry() {
    let world = World::ready().await;
    world.spend(100_000, "line").await;
    let declined = Effect::Issue { issue: "INSTRUMENT_DECLINED".to_owned() };
    world.sim().set_faults(vec![Fault::on("orders.create", declined)]).unwrap();
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    world.settle_down().await;
    let all = everything(&world, "owner").await;
    let first = all.iter().position(|message| message.id.contains('.')).expect("two in one entry");
    let (this, next) = (&all[first], &all[first + 1]);
    assert_eq!(this.data["seq"], next.data["seq"]);
    let mut stream = listen(&world, "owner", "", Some(&this.id)).await;
    assert_eq!(stream.take(1).await.remove(0), *next);
}

#[tokio::test]
async fn a_place_that_is_gone_is_a_reset() {
    let mut config = Config::simulated();
    config.settings.event_gap_entries = 5;
    let world = World::with(config, SimConfig::default()).await;
    let head = world.reader().head().unwrap().seq;
    assert!(head > 6);
    let epoch = world.earnest.app.store.epoch().to_owned();
    for place in ["1".to_owned(), format!("gone-{head}"), format!("{epoch}-{}", head + 1_000)] {
        let head = world.reader().head().unwrap().seq;
        let mut stream = listen(&world, "operator", "", Some(&place)).await;
        let first = stream.take(1).await.remove(0);
        assert_eq!((first.event.as_str(), &first.data["seq"]), ("reset", &json!(head)), "{place}");
        world.post("operator", "/v1/owners", json!({ "name": "next" })).await.expect(201);
        let next = stream.take(1).await.remove(0);
        assert_eq!(next.data["kind"], "owner.created", "it goes on from now");
        assert_eq!(next.id, format!("{epoch}-{}", world.reader().head().unwrap().seq));
    }
    for bad in ["x", "1.", "-4", "e1-"] {
        let path = format!("/v1/events?since={bad}");
        assert_eq!(world.get("operator", &path).await.code(), "validation_failed", "{bad}");
    }
}

/// No heartbeat that a stream could end by.
pub fn silent() -> crate::world::Change {
    Arc::new(|start| start.heartbeat = Some(Duration::from_hours(24)))
}

#[tokio::test]
async fn a_stream_says_that_it_is_alive() {
    let change: crate::world::Change =
        Arc::new(|start| start.heartbeat = Some(Duration::from_millis(20)));
    let world = World::ready_but(&change).await;
    let mut stream = listen(&world, "owner", "", None).await;
    for _ in 0..3 {
        assert!(stream.next().await.unwrap().comment);
    }
}

#[tokio::test]
async fn a_stream_ends_with_its_key_and_with_earnest() {
    let world = World::ready_but(&silent()).await;
    let agent = world.agent_id();
    let made = world.post("owner", &format!("/v1/agents/{agent}/keys"), json!({})).await;
    let made = made.expect(201);
    let key = made["key"].as_str().unwrap().to_owned();
    let mut stream = Listening::begin(&world.earnest.url(), &key, "", None).await;
    let path = format!("/v1/agents/{agent}/keys/{}", made["id"].as_str().unwrap());
    world.call("owner", Method::DELETE, &path, None).await.expect(200);
    assert!(stream.next().await.is_none(), "it ends at once");
    let mut stream = listen(&world, "owner", "", None).await;
    world.earnest.app.stopping.cancel();
    while let Some(message) = stream.next().await {
        assert!(message.comment, "{message:?}");
    }
}

/// One key cannot have all streams, nor the agents of one owner; and whoever has them stops nobody from
/// pausing it.
#[tokio::test]
async fn streams_are_few_for_each_and_requests_get_in() {
    let mut config = Config::simulated();
    config.limits.connections = 12;
    config.limits.event_streams = 5;
    config.limits.event_streams_per_principal = 2;
    config.limits.event_streams_per_owner = 3;
    config.limits.check().unwrap();
    let world = World::with(config, SimConfig::default()).await;
    let seats = &world.earnest.app.seats;
    let mut held =
        vec![listen(&world, "agent", "", None).await, listen(&world, "agent", "", None).await];
    let refused = world.get("agent", "/v1/events").await;
    assert_eq!((refused.status.as_u16(), refused.code()), (429, "rate_limited"));
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(refused.body["limit"], 2);
    let second = world.post("owner", "/v1/agents", json!({ "name": "second" })).await.expect(201);
    let path = format!("/v1/agents/{}/keys", second["id"].as_str().unwrap());
    let key =
        world.post("owner", &path, json!({})).await.expect(201)["key"].as_str().unwrap().to_owned();
    held.push(Listening::begin(&world.earnest.url(), &key, "", None).await);
    assert_eq!(world.get(&key, "/v1/events").await.code(), "rate_limited");
    // Its owner has its own, and pauses it.
    held.push(listen(&world, "owner", "", None).await);
    held.push(listen(&world, "seller", "", None).await);
    assert_eq!(world.get("seller", "/v1/events").await.code(), "rate_limited", "there are five");
    let agent = world.agent_id();
    let pause = format!("/v1/agents/{agent}/pause");
    world.call("owner", Method::POST, &pause, None).await.expect(204);
    assert_eq!(seats.taken(), 5);
    held.push(listen(&world, "operator", "", None).await);
    // A stream that ends leaves its place.
    drop(held);
    crate::world::until("the places are free", || seats.taken() == 0).await;
    listen(&world, "agent", "", None).await;
}

/// Whoever catches up reads apart from what serves requests, and only what it may see.
#[test]
fn catching_up_reads_nothing_where_requests_are_served() {
    const THREADS: usize = 8;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(THREADS).build().unwrap();
    runtime.block_on(async {
        let world = World::ready().await;
        world.spend(10_000, "one").await;
        let app = &world.earnest.app;
        let seller: earnest_core::id::SellerId = world.seller_id().parse().unwrap();
        let principal = earnest_core::party::Principal::Seller(seller);
        let who = earnest::app::Verified { principal, key: None, owner: None };
        let (place, seat) = (earnest::events::Place::after(0), app.seats.take(who).unwrap());
        let mut listener = app.feed.listen(app.store.clone(), place, seat);
        // Every thread that may wait for the books is busy, and nothing but this one is free.
        let (free, busy) = std::sync::mpsc::channel::<()>();
        let busy = Arc::new(std::sync::Mutex::new(busy));
        for _ in 0..THREADS {
            let busy = busy.clone();
            tokio::task::spawn_blocking(move || busy.lock().unwrap().recv());
        }
        {
            // With all of the log before it, a look that was made here would find a page.
            let mut next = std::pin::pin!(listener.next());
            assert!(futures_util::poll!(&mut next).is_pending(), "it was read in place");
        }
        drop(free);
        // Whoever stopped waiting goes on where it was.
        let seen = tokio::time::timeout(PATIENCE, listener.next()).await.unwrap().unwrap();
        let all = world.reader().events(0, 1_000_000).unwrap();
        let own = all.events.iter().filter(|it| it.event.audience.contains(&seller.to_string()));
        assert!(own.clone().count() > 0 && seen.after > 0);
        assert!(seen.events.iter().eq(own), "{seen:?}");
    });
}

/// One of the five hundred: it listens, comes back where it was when the stream breaks, and ends
/// when it has seen the last event.
async fn follow(url: String, key: String, last: &'static str) -> Vec<String> {
    let http = client();
    let mut seen: Vec<String> = Vec::new();
    let mut sellers = 0;
    loop {
        let from = seen.last().cloned().unwrap_or_else(|| "0".to_owned());
        let request = http.get(format!("{url}/v1/events")).bearer_auth(&key);
        let sent = request.header("last-event-id", &from).send().await;
        let Ok(response) = sent.and_then(Response::error_for_status) else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let mut listening = Listening { response, text: String::new() };
        while let Some(message) = listening.next().await {
            assert_ne!(message.event, "reset");
            if message.comment {
                continue;
            }
            seen.push(message.id);
            sellers += u32::from(message.data["kind"] == last);
            if sellers == 2 {
                return seen;
            }
        }
    }
}

/// Five hundred who listen hold no reader while nothing happens, and what happens is read for all of
/// them at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_listeners_hold_no_reader() {
    const MANY: u64 = 500;
    // As many as one holder never needs.
    let world = World::on_disk_with(|limits| {
        limits.connections = 1_200;
        limits.event_streams = 600;
        limits.event_streams_per_principal = 600;
        limits.event_streams_per_owner = 600;
    })
    .await;
    let mut listeners = Vec::new();
    for _ in 0..MANY {
        listeners.push(listen(&world, "owner", "", None).await);
    }
    // Each has caught up once it has heard of something.
    let pause = async |verb: &str| {
        let path = format!("/v1/owners/me/{verb}");
        world.call("owner", reqwest::Method::POST, &path, None).await.expect(204);
    };
    pause("pause").await;
    for listening in &mut listeners {
        assert_eq!(kinds(&listening.take(1).await), ["owner.paused"]);
    }
    let (held, before) = world.reader().lending();
    assert_eq!(held, 0, "nobody reads while nothing happens");
    pause("resume").await;
    for listening in &mut listeners {
        assert_eq!(kinds(&listening.take(1).await), ["owner.resumed"]);
    }
    let (held, after) = world.reader().lending();
    // The request's own reads, the one of the feed, and whose key is asked again meanwhile.
    let reads = after - before;
    assert!(held == 0 && reads < MANY / 5, "{reads} reads for {MANY} listeners");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_listeners_miss_and_double_nothing_over_a_kill() {
    const LAST: &str = "seller.created";
    // As many as one holder never needs.
    let limits = "[limits]\nevent_streams = 600\nevent_streams_per_principal = 600\n";
    let mut earnest = Installation::begin(limits).await;
    // The development seller is there from the start; another one is the last thing that happens.
    let keys = earnest.keys();
    let (url, key) = (earnest.url(), keys.operator.key.expose().to_owned());
    let listeners: Vec<_> =
        (0..500).map(|_| tokio::spawn(follow(url.clone(), key.clone(), LAST))).collect();
    let http = client();
    let create = async |what: &str, name: String| {
        // While it is down a creation is sent again, under its key.
        for _ in 0..400 {
            let body = json!({ "name": name });
            let request = http.post(format!("{url}/v1/{what}")).bearer_auth(&key).json(&body);
            let sent = request.header("idempotency-key", &name).send().await;
            if sent.is_ok_and(|answer| answer.status().is_success()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{name} is not created");
    };
    for n in 0..30 {
        create("owners", format!("before-{n}")).await;
    }
    earnest.kill().await;
    earnest.start().await;
    for n in 0..30 {
        create("owners", format!("after-{n}")).await;
    }
    create("sellers", "last".to_owned()).await;
    let expect = follow(url.clone(), key.clone(), LAST).await;
    assert!(expect.len() > 60);
    for listener in listeners {
        let seen = tokio::time::timeout(PATIENCE, listener).await.expect("it ends").unwrap();
        assert_eq!(seen, expect);
    }
}
