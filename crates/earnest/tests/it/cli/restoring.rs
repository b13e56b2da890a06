//! Backups, restores and keys, by command and by process: the scene that `docs/operations.md` tells.

use serde_json::json;

use super::selling::pay;
use super::{Stand, run};

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_is_lost_and_the_books_come_back() {
    let stand = Stand::start().await;
    let Some(shop) = stand.shop("$0.10").await else { return };
    pay(&stand, &shop, "page-1").await.expect(0);
    stand.until("a line", &["purchases"], |rows| rows[0]["status"] == "billed").await;

    let keys = stand.rows(&["keys", "list"]).await;
    assert_eq!(keys.len(), 2);
    let dry = stand.rows(&["keys", "rotate", "--dry-run"]).await;
    let would = |row: &serde_json::Value| (row["would"].clone(), row["for"].clone());
    let rotate = |name: &str| (json!("rotate"), json!(name));
    assert_eq!(dry.iter().map(would).collect::<Vec<_>>(), [rotate("voucher"), rotate("receipt")]);
    assert_eq!(stand.rows(&["keys", "list"]).await, keys, "nothing was done");
    let rotate = ["keys", "rotate", "--yes", "--idempotency-key", "wish"];
    stand.run(&rotate).await.expect(0);
    stand.run(&rotate).await.expect(0);
    let keys = stand.rows(&["keys", "list"]).await;
    let published = keys.iter().filter(|row| row["status"] == "published").count();
    assert_eq!((keys.len(), published), (4, 2), "repeated, it changes nothing more");
    let refused = stand.run(&["keys", "rotate", "--dry-run", "--json"]).await.expect(7);
    assert_eq!(refused.refusal(), "state_conflict");

    let manifest = stand.json(&["backup", "copy"]).await;
    assert_eq!((&manifest["mode"], &manifest["format"]), (&json!("simulated"), &json!(1)));
    let again = stand.run(&["backup", "copy", "--json"]).await.expect(7);
    assert_eq!(again.refusal(), "exists");
    let never = stand.json(&["restore", "status"]).await;
    assert_eq!(never["status"], "never");
    let in_use = stand.run(&["restore", "copy", "--json"]).await.expect(7);
    assert_eq!(in_use.refusal(), "exists");
    let forced = stand.run(&["restore", "copy", "--force", "--json"]).await;
    if crate::engine::on_postgres() {
        assert_eq!(forced.expect(2).refusal(), "usage", "no database is ever replaced");
    } else {
        assert_eq!(forced.expect(7).refusal(), "in_use");
        let running = stand.run(&["keys", "reseal", "--json"]).await.expect(7);
        assert_eq!(running.refusal(), "in_use");
    }
    for name in ["seal.key", "dev-keys.json"] {
        std::fs::copy(stand.path("data").join(name), stand.path(name)).unwrap();
    }

    let mut folder = stand.stop().await;
    folder.lose_disk();
    let command = |words: &[&str]| run(folder.command(&[words, &["--json"]].concat()));
    let no_key = command(&["restore", "copy"]).await.expect(1);
    assert_eq!(no_key.refusal(), "key_file_unusable");
    let restored = command(&["restore", "copy", "--key-file", "seal.key"]).await.expect(0).json();
    assert_eq!(restored["backup"], manifest);
    let audit = command(&["audit"]).await.expect(0).json();
    assert_eq!(audit["ok"], true);
    let resealed = command(&["keys", "reseal"]).await.expect(0).json();
    assert_eq!(resealed["secrets"], 4);
    let data = folder.path().join("data");
    std::fs::copy(folder.path().join("dev-keys.json"), data.join("dev-keys.json")).unwrap();

    let stand = Stand::again(folder).await;
    let status = stand.json(&["restore", "status"]).await;
    assert_eq!((&status["status"], &status["epoch"]), (&json!("quarantined"), &restored["epoch"]));
    assert_eq!(stand.rows(&["purchases"]).await.len(), 1);
    assert!(stand.rows(&["restore", "captures"]).await.is_empty());
    assert!(stand.rows(&["restore", "lines"]).await.is_empty());
    for words in [["restore", "lift", "--yes"], ["restore", "lift", "--dry-run"]] {
        let early = stand.run(&[&words[..], &["--json"]].concat()).await.expect(7);
        assert_eq!(early.refusal(), "state_conflict");
    }
    for how in ["--dry-run", "--yes"] {
        let accept = ["restore", "lift", "--accept", "NOBODY", "--reason", "known", how, "--json"];
        let nobody = stand.run(&accept).await.expect(7);
        assert_eq!(nobody.refusal(), "state_conflict");
    }
    stand.run(&["restore", "lift", "--accept", "NOBODY", "--yes"]).await.expect(2);
    for how in ["--dry-run", "--yes"] {
        let decide = ["restore", "decide", "pur_01ARZ3NDEKTSV4RRFFQ69G5FAV", "--paid-by", "nobody"];
        let nowhere = stand.run(&[&decide[..], &[how, "--json"]].concat()).await.expect(3);
        assert_eq!(nowhere.refusal(), "not_found");
    }
    let dry = ["restore", "lift", "--accept-gap", "nothing was sold", "--dry-run"];
    assert_eq!(stand.json(&dry).await["would"], "lift");
    assert_eq!(stand.json(&["restore", "status"]).await["status"], "quarantined");
    let words = ["restore", "lift", "--yes", "--accept-gap", "nothing was sold since"];
    assert_eq!(stand.json(&words).await["status"], "lifted");
    assert_eq!(stand.json(&["restore", "status"]).await["gap"], "nothing was sold since");
    stand.stop().await;
}
