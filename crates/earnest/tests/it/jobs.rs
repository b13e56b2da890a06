//! What runs by itself goes on by itself: what dies is begun again, and said.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use earnest::app::App;
use earnest::flight::{Errand, Piece, Room, drain, fly};
use earnest::flow::paypal::FlowError;
use earnest::supervise::{apart, supervise};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::world::{PATIENCE, World, until};

fn said(world: &World) -> Vec<serde_json::Value> {
    let page = world.earnest.app.store.reader().events(0, 10_000).unwrap();
    let events = page.events.into_iter().filter(|event| event.event.kind == "alarm.job_died");
    events.map(|event| event.event.data).collect()
}

async fn figure(world: &World, name: &str) -> String {
    let text = world.get("operator", "/metrics").await.bytes;
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}"));
    line.rsplit_once(' ').unwrap().1.to_owned()
}

/// A job that panics is begun again and does its work; meanwhile that is logged, counted, an alarm,
/// and a word of `/readyz`.
#[tokio::test]
async fn a_job_that_dies_is_begun_again_and_that_is_said() {
    static TURNS: AtomicU32 = AtomicU32::new(0);
    let world = World::new().await;
    let ready = world.get("", "/readyz").await.expect(200);
    assert_eq!((&ready["status"], &ready["failing"]), (&json!("ready"), &json!([])));
    assert_eq!(figure(&world, "earnest_job_deaths_total{job=\"treasurer\"}").await, "0");
    let (app, stop) = (world.earnest.app.clone(), CancellationToken::new());
    let job = tokio::spawn({
        let stop = stop.clone();
        async move {
            let begin = || {
                let stop = stop.clone();
                async move {
                    match TURNS.fetch_add(1, Ordering::SeqCst) {
                        0 | 1 => panic!("a row that nobody expected"),
                        // Ending unasked is as bad.
                        2 => {}
                        _ => stop.cancelled().await,
                    }
                }
            };
            supervise(&app, &stop, "treasurer", begin).await;
        }
    });
    until("it is begun a fourth time", || TURNS.load(Ordering::SeqCst) == 4).await;
    let ready = world.get("", "/readyz").await.expect(200);
    assert_eq!((&ready["status"], &ready["failing"]), (&json!("degraded"), &json!(["treasurer"])));
    assert_eq!(figure(&world, "earnest_job_deaths_total{job=\"treasurer\"}").await, "3");
    assert_eq!(figure(&world, "earnest_job_deaths_total{job=\"calls\"}").await, "0");
    assert_eq!(figure(&world, "earnest_jobs_failing").await, "1");
    let of = |times| json!({ "job": "treasurer", "times": times });
    assert_eq!(said(&world), [of(1), of(3)], "at first, and when it keeps dying");
    stop.cancel();
    tokio::time::timeout(PATIENCE, job).await.expect("it ends when told to").unwrap();
    assert_eq!(TURNS.load(Ordering::SeqCst), 4);
}

/// Two pieces for ever due: one breaks whoever begins it.
struct Fragile;

static GOOD: AtomicU32 = AtomicU32::new(0);
static BAD: AtomicU32 = AtomicU32::new(0);

impl Errand for Fragile {
    type Work = bool;
    const NAME: &'static str = "calls";

    fn room(_: &App) -> Room {
        Room { all: 1, each: 1 }
    }

    fn due(_: &App) -> Result<Vec<Piece<bool>>, FlowError> {
        let piece =
            |breaks: bool| Piece { name: breaks.to_string(), place: String::new(), work: breaks };
        Ok([true, false].map(piece).into())
    }

    async fn begin(_: App, breaks: bool) {
        if breaks {
            BAD.fetch_add(1, Ordering::SeqCst);
            panic!("a row that nobody expected");
        }
        GOOD.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A piece that breaks rests, and the others have its room; drained, each is done once.
#[tokio::test]
async fn a_piece_that_breaks_leaves_room_to_others() {
    let world = World::new().await;
    let app = world.earnest.app.clone();
    world.lead().await;
    drain::<Fragile>(&app).await.unwrap();
    assert_eq!((BAD.load(Ordering::SeqCst), GOOD.load(Ordering::SeqCst)), (1, 1));
    let stop = CancellationToken::new();
    let flying = tokio::spawn({
        let (app, stop) = (app.clone(), stop.clone());
        async move { fly::<Fragile, _>(&app, &stop, app.wake.listen()).await }
    });
    app.wake.notify();
    until("the other goes on", || GOOD.load(Ordering::SeqCst) > 20).await;
    stop.cancel();
    tokio::time::timeout(PATIENCE, flying).await.expect("it ends when told to").unwrap();
    let deaths = BAD.load(Ordering::SeqCst);
    assert!(deaths < 10, "begun again at once: {deaths} times");
    let counted = figure(&world, "earnest_job_deaths_total{job=\"calls\"}").await;
    assert_eq!(counted, deaths.to_string());
}

/// A row that breaks its job is set aside and named, and every other is done, turn after turn.
#[tokio::test]
async fn a_row_that_breaks_its_job_is_set_aside() {
    let world = World::new().await;
    let app = &world.earnest.app;
    let (bad, good) = (AtomicU32::new(0), AtomicU32::new(0));
    let turn = async || {
        for row in ["tab_1", "tab_2", "tab_3"] {
            let work = async {
                if row == "tab_2" {
                    bad.fetch_add(1, Ordering::SeqCst);
                    panic!("a row that nobody expected");
                }
                good.fetch_add(1, Ordering::SeqCst);
            };
            apart(app, "treasurer", &row, work).await;
        }
    };
    for _ in 0..3 {
        turn().await;
    }
    assert_eq!((bad.load(Ordering::SeqCst), good.load(Ordering::SeqCst)), (1, 6));
    assert_eq!(said(&world), [json!({ "job": "treasurer", "row": "tab_2", "times": 1 })]);
    // Another job is not kept from it.
    apart(app, "receipts", &"tab_2", async { _ = good.fetch_add(1, Ordering::SeqCst) }).await;
    assert_eq!(good.load(Ordering::SeqCst), 7);
    // After its rest it is tried again.
    until("its rest is over", || {
        futures_util::FutureExt::now_or_never(turn());
        bad.load(Ordering::SeqCst) == 2
    })
    .await;
}

/// An owner who wants to be settled every day at ten: from the policy to the capture at PayPal.
#[tokio::test]
async fn a_schedule_in_a_policy_settles_at_its_hour() {
    let world = World::ready().await;
    world.policy("owner", json!({ "settle": { "every": "day", "hour": 10 } })).await;
    // It is nine: at a quarter to ten something is bought, too little to be settled for itself.
    world.live(45 * 60).await;
    world.spend(150_000, "one").await;
    world.live(14 * 60).await;
    world.settle_down().await;
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/tabs/{tab}/settlements");
    let settled = world.get("owner", &path).await.expect(200);
    assert_eq!(settled["data"], json!([]), "a minute before");
    world.live(60).await;
    world.settle_down().await;
    let settled = world.get("owner", &path).await.expect(200);
    let row = &settled["data"][0];
    assert_eq!((&row["status"], &row["amount_micros"]), (&json!("captured"), &json!(150_000)));
    assert!(
        row["why"].as_str().unwrap().ends_with("because the owner's schedule says so"),
        "{row}"
    );
    assert_eq!(world.sim().books().balances[0].captured.minor, 15);
    world.assert_sound();
}
