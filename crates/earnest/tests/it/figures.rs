//! What Prometheus is told: read by a reader that takes the format literally, who may read it, and
//! that figures move by exactly what happened.

use std::collections::{BTreeMap, BTreeSet};

use earnest::config::Config;
use earnest::serve::{Running, Start};
use earnest_core::alarm;
use paypal_sim::{Effect, Fault, SimConfig};
use reqwest::Method;
use serde_json::json;

use crate::world::{PATIENCE, World};

/// Every sample by its name with its labels, as they stand in the text.
#[derive(Clone, Debug)]
struct Scrape(BTreeMap<String, f64>);

/// Reads Prometheus' text format 0.0.4, and nothing that it does not allow.
fn read(text: &str) -> Scrape {
    let name = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
            && !text.as_bytes()[0].is_ascii_digit()
    };
    let (mut samples, mut types) = (BTreeMap::new(), BTreeMap::new());
    let mut family = String::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (of, words) = help.split_once(' ').unwrap();
            assert!(name(of) && !words.is_empty(), "{line}");
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (of, kind) = kind.split_once(' ').unwrap();
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
            assert!(types.insert(of.to_owned(), kind.to_owned()).is_none(), "{of} comes twice");
            family = of.to_owned();
            continue;
        }
        assert!(!line.starts_with('#'), "{line}");
        let (what, value) = line.rsplit_once(' ').unwrap();
        let (of, labels) = match what.split_once('{') {
            Some((of, labels)) => (of, labels.strip_suffix('}').unwrap()),
            None => (what, ""),
        };
        for label in labels.split("\",").filter(|label| !label.is_empty()) {
            let (key, value) = label.split_once("=\"").unwrap();
            assert!(name(key) && !value.trim_end_matches('"').contains(['"', '\n']), "{line}");
        }
        let stem = ["_bucket", "_sum", "_count"].iter().find_map(|end| of.strip_suffix(end));
        let histogram = types[&family] == "histogram";
        assert_eq!(if histogram { stem.unwrap() } else { of }, family, "{line}");
        let value: f64 = value.parse().unwrap();
        assert!(samples.insert(what.to_owned(), value).is_none(), "{what} comes twice");
    }
    Scrape(samples)
}

impl Scrape {
    async fn of(world: &World) -> Self {
        // Past the pace at which lists are read.
        world.advance(earnest::figures::books::PACE_SECONDS);
        // A scrape says when it could not wait for what happened to be counted, as on a machine that
        // does much else; then the next one tells it.
        let asked = std::time::Instant::now();
        loop {
            let answer = world.get("operator", "/metrics").await;
            assert_eq!(answer.status, 200);
            assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
            let scrape = read(std::str::from_utf8(&answer.bytes).unwrap());
            if scrape.0["earnest_events_behind"] == 0.0 {
                return scrape;
            }
            assert!(asked.elapsed() < PATIENCE, "events are not counted");
        }
    }
    fn get(&self, sample: &str) -> f64 {
        self.0.get(sample).copied().unwrap_or(0.0)
    }
    /// Everything that differs from a scrape before, but for what a scrape itself changes.
    fn since(&self, before: &Self) -> BTreeMap<String, f64> {
        let mut moved = BTreeMap::new();
        for (name, value) in &self.0 {
            let by = value - before.get(name);
            let own = [
                "http_requests",
                "books_read",
                "writer_",
                "log_head",
                "paypal_",
                "wait_seconds",
                "age_seconds",
            ];
            if by != 0.0 && !own.iter().any(|own| name.contains(own)) {
                moved.insert(name.trim_start_matches("earnest_").to_owned(), by);
            }
        }
        moved
    }
}

#[track_caller]
fn assert_moved(now: &Scrape, before: &Scrape, expect: &[(&str, f64)]) {
    let expect: BTreeMap<String, f64> =
        expect.iter().map(|(name, by)| ((*name).to_owned(), *by)).collect();
    let mut moved = now.since(before);
    // Memo accounts count rooms, one for each cap.
    moved.remove("accounts_micros{currency=\"USD\",class=\"memo\"}");
    assert_eq!(moved, expect);
}

const OWED: &str = "accounts_micros{currency=\"USD\",class=\"tab_owed\"}";
const ACCRUED: &str = "accounts_micros{currency=\"USD\",class=\"seller_accrued\"}";

#[tokio::test]
async fn figures_move_by_exactly_what_happened() {
    let world = World::ready().await;
    let begin = Scrape::of(&world).await;
    assert_moved(&Scrape::of(&world).await, &begin, &[]);

    // A purchase is held, then billed.
    let voucher = world.buy(100_000, "one").await;
    let held = Scrape::of(&world).await;
    assert_moved(
        &held,
        &begin,
        &[
            ("policy_decisions_total{decision=\"allow\",reason=\"\"}", 1.0),
            ("purchases_total{rail=\"tab\",state=\"held\"}", 1.0),
            ("events_total{kind=\"purchase.held\"}", 1.0),
            ("events_total{kind=\"tab.opened\"}", 1.0),
        ],
    );
    // A replay is no second purchase.
    world.buy(100_000, "one").await;
    assert_moved(&Scrape::of(&world).await, &held, &[]);
    world.report(&voucher, "redeemed").await;
    let billed = Scrape::of(&world).await;
    assert_moved(
        &billed,
        &held,
        &[
            ("purchases_total{rail=\"tab\",state=\"billed\"}", 1.0),
            ("events_total{kind=\"purchase.billed\"}", 1.0),
            ("tab_outstanding_micros{currency=\"USD\"}", 100_000.0),
            (OWED, 100_000.0),
            (ACCRUED, -100_000.0),
        ],
    );

    // One is refused, one waits for its owner.
    world.authorize(world.quote("/dear", 9_000_000), "no").await.expect(403);
    world.authorize(world.quote("/dear", 250_000), "waits").await.expect(202);
    let asked = Scrape::of(&world).await;
    assert_moved(
        &asked,
        &billed,
        &[
            ("policy_decisions_total{decision=\"deny\",reason=\"per_call_cap\"}", 1.0),
            ("policy_decisions_total{decision=\"needs_approval\",reason=\"\"}", 1.0),
            ("purchases_total{rail=\"tab\",state=\"denied\"}", 1.0),
            ("purchases_total{rail=\"tab\",state=\"waiting\"}", 1.0),
            ("events_total{kind=\"purchase.denied\"}", 1.0),
            ("events_total{kind=\"approval.waiting\"}", 1.0),
            ("approvals_waiting", 1.0),
        ],
    );
    assert_eq!(asked.get("earnest_approvals_oldest_wait_seconds"), 5.0);
    // Nobody waits for an answer that would come too late.
    world.advance(900);
    let late = Scrape::of(&world).await;
    assert_eq!(late.get("earnest_approvals_waiting"), 0.0);
    assert_eq!(late.get("earnest_approvals_oldest_wait_seconds"), 0.0);

    // A settlement whose answer is lost: unknown, then found.
    let before = Scrape::of(&world).await;
    world.sim().add_fault(Fault::on("orders.create", Effect::DropBefore)).unwrap();
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{tab}/close"), None).await.expect(202);
    world.jobs().await;
    let unknown = Scrape::of(&world).await;
    assert_eq!(unknown.get("earnest_intents_unknown") - before.get("earnest_intents_unknown"), 1.0);
    assert_eq!(unknown.get("earnest_intents_open"), 1.0);
    assert!(unknown.get("earnest_intents_unknown_oldest_seconds") >= 5.0);
    assert_eq!(
        unknown.get(
            "earnest_paypal_requests_total{operation=\"order_charge_vaulted\",outcome=\"unknown\"}"
        ),
        1.0
    );
    assert_eq!(unknown.get("earnest_tab_outstanding_micros{currency=\"USD\"}"), 100_000.0);
    world.advance(600);
    world.settle_down().await;
    let settled = Scrape::of(&world).await;
    assert_eq!(settled.get("earnest_intents_unknown"), 0.0);
    assert_eq!(settled.get("earnest_tab_outstanding_micros{currency=\"USD\"}"), 0.0);
    assert_eq!(
        settled.get("earnest_events_total{kind=\"settlement.captured\"}")
            - before.get("earnest_events_total{kind=\"settlement.captured\"}"),
        1.0
    );
    let of = |suffix: &str| {
        let name = format!("earnest_paypal_request_duration_seconds_{suffix}");
        settled.get(&format!("{name}{{operation=\"order_charge_vaulted\"}}"))
    };
    assert!(of("count") >= 1.0 && of("sum") > 0.0);
    for scrape in [&begin, &held, &billed, &asked, &unknown, &settled] {
        assert_eq!(scrape.get("earnest_ledger_imbalance_micros"), 0.0);
    }
    crate::cases::finish(&world).await;
}

/// Histograms are cumulative and complete; the writer's figures are the writer's.
#[tokio::test]
async fn histograms_add_up() {
    let world = World::ready().await;
    for n in 0..5 {
        world.spend(10_000, &format!("n-{n}")).await;
    }
    let scrape = Scrape::of(&world).await;
    let mut seen = 0;
    for (name, count) in scrape.0.iter().filter(|(name, _)| name.contains("le=\"+Inf\"")) {
        let (stem, labels) = name.split_once("_bucket{").unwrap();
        let labels = labels.replace("le=\"+Inf\"", "").trim_matches([',', '}']).to_owned();
        let whole = |what: &str| match labels.is_empty() {
            true => format!("{stem}_{what}"),
            false => format!("{stem}_{what}{{{labels}}}"),
        };
        assert_eq!(scrape.get(&whole("count")), *count, "{name}");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (other, value) in &scrape.0 {
            let same = other.starts_with(&format!("{stem}_bucket{{")) && other.contains(&labels);
            if let Some(bound) = other.split("le=\"").nth(1).filter(|_| same) {
                let bound = bound.split('"').next().unwrap().replace("+Inf", "inf");
                buckets.push((bound.parse().unwrap(), *value));
            }
        }
        buckets.sort_by(|a, b| a.partial_cmp(b).unwrap());
        assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name}: {buckets:?}");
        seen += 1;
    }
    assert!(seen >= 3, "{seen} histograms");
    let load = world.earnest.app.store.load();
    assert!(load.units > 10);
    assert_eq!(scrape.get("earnest_writer_batch_units_sum"), load.units as f64);
    assert_eq!(scrape.get("earnest_writer_units_total"), load.units as f64);
    assert_eq!(scrape.get("earnest_writer_queue_depth"), 0.0);
}

/// Requests are counted by their pattern: no id, no token, however they are spelt.
#[tokio::test]
async fn requests_are_counted_by_pattern() {
    let world = World::new().await;
    let before = Scrape::of(&world).await;
    for id in ["tab_1", "tab_2", "tab_3"] {
        world.get("owner", &format!("/v1/tabs/{id}")).await;
    }
    world.get("", "/v1/tabs/tab_4").await.expect(401);
    world.get("", "/no/such/place").await.expect(404);
    world.call("owner", Method::DELETE, "/healthz", None).await.expect(405);
    let after = Scrape::of(&world).await;
    let by = |method: &str, route: &str, status: &str| {
        let name = format!(
            "earnest_http_requests_total{{method=\"{method}\",route=\"{route}\",status=\"{status}\"}}"
        );
        after.get(&name) - before.get(&name)
    };
    assert_eq!(by("GET", "/v1/tabs/{id}", "4xx"), 4.0);
    assert_eq!(by("GET", "none", "4xx"), 1.0);
    assert_eq!(by("GET", "/metrics", "2xx"), 1.0);
    assert_eq!(by("DELETE", "/healthz", "4xx"), 1.0);
}

/// Labels name nobody: nothing of anybody's stands in a scrape, and its size does not grow with them.
#[tokio::test]
async fn no_label_names_anybody() {
    let world = World::ready().await;
    // Once of everything that comes again below.
    world.post("operator", "/v1/owners", json!({ "name": "First" })).await.expect(201);
    world.spend(10_000, "one").await;
    world.get("operator", "/metrics").await;
    let answer = world.get("operator", "/metrics").await;
    let before = read(std::str::from_utf8(&answer.bytes).unwrap()).0.len();
    for n in 0..5 {
        let body = json!({ "name": format!("Owner {n}") });
        world.post("operator", "/v1/owners", body).await.expect(201);
        world.spend(10_000, &format!("more-{n}")).await;
    }
    let answer = world.get("operator", "/metrics").await;
    let text = String::from_utf8(answer.bytes).unwrap();
    assert!(read(&text).0.len() <= before, "{text}");
    for (id, prefix) in [
        (world.owner_id(), "own_"),
        (world.agent_id(), "agt_"),
        (world.seller_id(), "sel_"),
        ("tab_0".to_owned(), "tab_0"),
        ("pur_".to_owned(), "pur_"),
    ] {
        assert!(!text.contains(&id) && !text.contains(&format!("\"{prefix}")), "{text}");
    }
}

/// Nobody but the operator, or whoever reaches the address that the operator set.
#[tokio::test]
async fn figures_are_for_the_operator() {
    let config =
        Config { metrics_listen: Some("127.0.0.1:0".parse().unwrap()), ..Config::simulated() };
    let world = World::with(config, SimConfig::default()).await;
    world.get("", "/metrics").await.expect(401);
    for role in ["owner", "agent", "seller"] {
        world.get(role, "/metrics").await.expect(404);
    }
    let address = world.earnest.figures_address.unwrap();
    let get = |path: &str| world.http.get(format!("http://{address}{path}")).send();
    let answer = get("/metrics").await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(read(&answer.text().await.unwrap()).get("earnest_log_head") > 0.0);
    for path in ["/", "/healthz", "/v1/tabs", "/v1/owners", "/openapi.json"] {
        assert_eq!(get(path).await.unwrap().status(), 404, "{path}");
    }
    // Without the setting there is no such address.
    assert_eq!(World::new().await.earnest.figures_address, None);
}

/// The address of figures ends with the rest.
#[tokio::test]
async fn figures_end_when_earnest_stops() {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let config = Config { metrics_listen: listen, ..Config::simulated() };
    let running = Running::start(config, Start::default()).await.unwrap();
    let address = running.figures_address.unwrap();
    tokio::net::TcpStream::connect(address).await.unwrap();
    tokio::time::timeout(PATIENCE, running.stop()).await.expect("it stops");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

/// However often somebody scrapes, the lists are read no more often than they say.
#[tokio::test]
async fn a_scrape_reads_no_list_again_at_once() {
    let world = World::ready().await;
    let first = Scrape::of(&world).await;
    world.authorize(world.quote("/dear", 250_000), "waits").await.expect(202);
    for _ in 0..20 {
        let answer = world.get("operator", "/metrics").await;
        let scrape = read(std::str::from_utf8(&answer.bytes).unwrap());
        // Counted where it happens, so at once; read from a list, so not yet.
        assert_eq!(scrape.get("earnest_events_total{kind=\"approval.waiting\"}"), 1.0);
        assert_eq!(scrape.get("earnest_approvals_waiting"), 0.0);
        let read_at = "earnest_books_read_timestamp_seconds";
        assert_eq!(scrape.get(read_at), first.get(read_at));
    }
    assert_eq!(Scrape::of(&world).await.get("earnest_approvals_waiting"), 1.0);
}

/// Every kind of alarm is on the list, and no other: an alert misses the first of a kind otherwise.
#[test]
fn the_list_of_alarms_is_what_the_source_emits() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut emitted, mut folders) = (BTreeSet::new(), Vec::new());
    for part in std::fs::read_dir(root).unwrap() {
        folders.push(part.unwrap().path().join("src"));
    }
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("earnest-core/src/alarm.rs") {
                let text = std::fs::read_to_string(path).unwrap_or_default();
                let kinds =
                    text.split("\"alarm.").skip(1).map(|rest| rest.split('"').next().unwrap());
                let whole = |kind: &&str| !kind.is_empty() && !kind.contains('*');
                emitted.extend(kinds.filter(whole).map(|kind| format!("alarm.{kind}")));
            }
        }
    }
    assert!(emitted.iter().eq(alarm::KINDS), "{emitted:#?}");
}

/// What an alert asks the increase of is there before it happens.
#[tokio::test]
async fn what_alerts_ask_for_begins_at_zero() {
    let world = World::new().await;
    let scrape = Scrape::of(&world).await;
    let mut samples: Vec<String> =
        alarm::KINDS.map(|kind| format!("events_total{{kind=\"{kind}\"}}")).to_vec();
    for operation in earnest_paypal::Operation::ALL {
        let operation = operation.as_str();
        samples.push(format!(
            "paypal_requests_total{{operation=\"{operation}\",outcome=\"unknown\"}}"
        ));
    }
    for operation in crate::openapi::OPERATIONS.iter() {
        let (method, route) = (&operation.method, &operation.path);
        samples.push(format!(
            "http_requests_total{{method=\"{method}\",route=\"{route}\",status=\"5xx\"}}"
        ));
    }
    for reason in ["per_call_cap", "policy_missing", "funding_missing"] {
        samples.push(format!("policy_decisions_total{{decision=\"deny\",reason=\"{reason}\"}}"));
    }
    assert!(samples.len() > 50, "{}", samples.len());
    for sample in samples {
        assert_eq!(scrape.0.get(&format!("earnest_{sample}")), Some(&0.0), "{sample}");
    }
}

/// What docs/operations.md would have people watch is there, and what is there stands in it.
#[tokio::test]
async fn the_documents_name_what_is_told() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let document = std::fs::read_to_string(root.join("docs/operations.md")).unwrap();
    let world = World::ready().await;
    // Accounts are there once something is in them.
    world.spend(10_000, "one").await;
    let answer = world.get("operator", "/metrics").await;
    let text = String::from_utf8(answer.bytes).unwrap();
    read(&text);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let told: BTreeSet<&str> = types.map(|line| line.split(' ').next().unwrap()).collect();

    // Names of other things: variables and places of nginx, a cluster.
    let others = ["status", "purchase", "receipt", "pay", "no", "failed", "sell"];
    let odd = |c: char| !(c.is_ascii_lowercase() || c == '_');
    let names = document.split("earnest_").skip(1).map(|part| part.split(odd).next().unwrap());
    let named: BTreeSet<String> = names
        .filter(|name| !others.contains(name))
        .map(|name| format!("earnest_{}", name.trim_end_matches("_bucket")))
        .collect();
    let missing: Vec<_> = named.iter().filter(|name| !told.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "in the documents, but not among the figures: {missing:?}");
    let missing: Vec<_> = told.iter().filter(|name| !named.contains(**name)).collect();
    assert!(missing.is_empty(), "among the figures, but not in the documents: {missing:?}");
    assert!(told.len() > 20, "{told:?}");
}
