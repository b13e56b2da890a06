//! Every planted bug of the flows, and of the engine as the whole program shows it, is caught by a
//! suite that passes without it.
//!
//! `cargo nextest run -p earnest --features planted planted`

use std::pin::Pin;
use std::sync::Arc;

use earnest::planted::{FlowBug, Planted};
use earnest_core::planted::Bug;

use crate::world::Change;
use crate::{faults, reconcile, road, walks, webhooks};

type Suite = (&'static str, fn(Change) -> Pin<Box<dyn Future<Output = ()> + Send>>);

const LOST_AND_PENDING: Suite =
    ("lost and pending", |change| Box::pin(faults::lost_and_pending(change)));
const PROVED_CHARGED: Suite = ("walk c, charged", |change| Box::pin(walks::proved_charged(change)));
const PROVED_NOT_CHARGED: Suite =
    ("walk c, not charged", |change| Box::pin(walks::proved_not_charged(change)));
const FORGED_BODY: Suite = ("forged body", |change| Box::pin(webhooks::forged_body(change)));
const REQUEST_IDS: Suite = ("request ids", |change| Box::pin(road::request_ids(change)));

const AGREES: Suite = ("reconciled", |change| Box::pin(reconcile::agrees(change)));

fn flow(bug: FlowBug) -> Planted {
    Planted { flow: Some(bug), engine: None }
}

fn engine(bug: Bug) -> Planted {
    Planted { flow: None, engine: Some(bug) }
}

/// What a suite says about a bug; one that panics says no.
async fn verdict(suite: Suite, planted: Planted) -> Result<(), String> {
    let change: Change = Arc::new(move |start| start.planted = planted);
    let ended = tokio::spawn(suite.1(change)).await;
    ended.map_err(|why| why.to_string().chars().take(300).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_every_planted_bug_of_the_flows_is_caught() {
    let suites =
        [LOST_AND_PENDING, PROVED_CHARGED, PROVED_NOT_CHARGED, FORGED_BODY, REQUEST_IDS, AGREES];
    let caught_by = [
        (flow(FlowBug::CreditOnPending), LOST_AND_PENDING),
        (flow(FlowBug::ReleaseOnUnknown), LOST_AND_PENDING),
        (flow(FlowBug::NotChargedTooEarly), PROVED_CHARGED),
        (flow(FlowBug::RepostAfterRetention), PROVED_CHARGED),
        (flow(FlowBug::FreshKeyForRepeat), LOST_AND_PENDING),
        (flow(FlowBug::BookFromWebhook), FORGED_BODY),
        (flow(FlowBug::PredictedFee), AGREES),
        (engine(Bug::SkipKeyInsert), REQUEST_IDS),
        (engine(Bug::RefusalAsResult), REQUEST_IDS),
    ];
    let flows: Vec<FlowBug> = caught_by.iter().filter_map(|(planted, _)| planted.flow).collect();
    assert_eq!(flows, FlowBug::ALL);
    for suite in suites {
        assert_eq!(verdict(suite, Planted::default()).await, Ok(()), "{} without a bug", suite.0);
    }
    for (planted, suite) in caught_by {
        let said = verdict(suite, planted).await;
        let why = said.expect_err(&format!("{} did not catch {planted:?}", suite.0));
        println!("{planted:?} caught by {}: {why}", suite.0);
    }
}
