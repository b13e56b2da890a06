//! Books that move to a database while Earnest runs, and back to a file.

use pg_cluster::Schema;
use serde_json::{Value, json};

use super::selling::pay;
use super::{Folder, Running, Stand, run};
use crate::engine;
use crate::world::client;

/// Buys something, and gives the number of purchases that are billed then.
async fn buy(stand: &Stand, request_id: &str) -> usize {
    let Some(shop) = stand.shop("$0.10").await else { return 0 };
    pay(stand, &shop, request_id).await.expect(0);
    stand.until("a line", &["purchases"], |rows| rows[0]["status"] == "billed").await;
    assert!(shop.sell.stop().await.success());
    stand.rows(&["purchases"]).await.len()
}

async fn audited(folder: &Folder) {
    let audit = run(folder.command(&["audit", "--json"])).await.expect(0).json();
    assert_eq!(audit["ok"], true, "{audit}");
}

/// Asks the running program itself, which has the file open.
#[tokio::test(flavor = "multi_thread")]
async fn running_books_move_to_a_database_and_back() {
    if engine::not_about_files("the books are there from the start") {
        return;
    }
    let place = Schema::fresh();
    let stand = Stand::start().await;
    let before = buy(&stand, "page-1").await;
    let ready = || client().get(format!("{}/readyz", stand.url)).send();
    let epoch = ready().await.unwrap().json::<Value>().await.unwrap()["epoch"].clone();

    let words = ["migrate", "--to", place.url(), "--json"];
    let dry = stand.json(&["migrate", "--to", place.url(), "--dry-run"]).await;
    assert_eq!(dry["dry_run"], true);
    let words = |more: &'static str| [words.as_slice(), &[more]].concat();
    assert_eq!(stand.run(&words("--no-input")).await.expect(2).refusal(), "usage");
    let moved = stand.run(&words("--yes")).await.expect(0).json();
    assert!(moved["entries"].as_u64().unwrap() > 0 && moved["epoch"] != epoch, "{moved}");

    // The old books are served by nobody any more, and everybody is told where they went.
    let ready = ready().await.unwrap();
    assert_eq!(ready.status(), 503);
    let why = ready.text().await.unwrap();
    assert!(why.contains("moved to postgres://") && !why.contains("postgres:@"), "{why}");
    let gone = stand.run(&["purchases", "--json"]).await.expect(8);
    assert_eq!(gone.refusal(), "database_unavailable");
    let mut folder = stand.stop().await;
    let log = folder.path().join("up.log");
    let mut again =
        Running::start(folder.command(&["up", "--listen", "127.0.0.1:0"]), &log).unwrap();
    let ended = tokio::time::timeout(super::PATIENCE, again.child.wait()).await.unwrap().unwrap();
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(!ended.success() && said.contains("were moved to postgres://"), "{said}");
    // Once more is right, whatever was left to do.
    let finished = run(folder.command(&words("--yes"))).await.expect(0).json();
    assert_eq!((&finished["entries"], &finished["epoch"]), (&json!(0), &moved["epoch"]));

    folder.place = Some(place);
    audited(&folder).await;
    let stand = Stand::again(folder).await;
    assert_eq!(stand.rows(&["purchases"]).await.len(), before);
    let after = buy(&stand, "page-2").await;

    // Back, while a node runs there: it learns of it. The file that was left is moved aside.
    let words = ["migrate", "--to", "data", "--yes", "--json"];
    let moved = stand.run(&words).await.expect(0).json();
    assert!(moved["entries"].as_u64().unwrap() > finished["entries"].as_u64().unwrap());
    let told = async {
        let ready = || client().get(format!("{}/readyz", stand.url)).send();
        while ready().await.unwrap().status() != 503 {}
    };
    tokio::time::timeout(super::PATIENCE, told).await.expect("it learns of it");
    let gone = stand.run(&["purchases", "--json"]).await.expect(8);
    assert_eq!(gone.refusal(), "database_unavailable");
    let mut folder = stand.stop().await;
    let _database = folder.place.take();
    audited(&folder).await;
    let stand = Stand::again(folder).await;
    assert_eq!(stand.rows(&["purchases"]).await.len(), after);
    buy(&stand, "page-3").await;
    audited(&stand.stop().await).await;
}

/// Somebody's books are in the way: nothing happens to either.
#[tokio::test(flavor = "multi_thread")]
async fn books_move_only_to_where_there_are_none() {
    if engine::not_about_files("the books are there from the start") {
        return;
    }
    let theirs = Folder { place: Some(Schema::fresh()), ..Folder::new() };
    let place = theirs.place.as_ref().unwrap().url().to_owned();
    let stand = Stand::again(theirs).await;
    let theirs = stand.stop().await;
    let stand = Stand::start().await;
    let words = ["migrate", "--yes", "--json", "--to"];
    let to = |place: &str| stand.command(&[words.as_slice(), &[place]].concat());
    assert_eq!(run(to(&place)).await.expect(7).refusal(), "state_conflict");
    assert_eq!(run(to("mysql://root@127.0.0.1/books")).await.expect(2).refusal(), "usage");
    // Nobody listens there.
    let nobody = "postgres://postgres:secret@127.0.0.1:9/postgres";
    let refused = run(to(nobody)).await.expect(7);
    assert_eq!(refused.refusal(), "state_conflict");
    assert!(!refused.err.contains("secret"), "{}", refused.err);
    stand.rows(&["purchases"]).await;
    audited(&stand.stop().await).await;
    audited(&theirs).await;
}
