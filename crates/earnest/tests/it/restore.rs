//! The disk is lost, and the books come back from a backup: what they may not do then, what PayPal's
//! records and the sellers' reports give back to them, and what stops a backup or a restore.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::engine::{not_about_files, on_postgres};
use earnest::backup::{self, BOOKS, MANIFEST};
use earnest::config::Config;
use earnest::restore::{Plan, RestoreError, Restored, SEAL_KEY, restore};
use earnest_core::id::{PurchaseId, VoucherId};
use earnest_core::lost::{KeepLost, LostCapture};
use earnest_core::money::{Currency, Micros};
use earnest_core::quarantine::{
    AcceptRecords, Backup, BeginQuarantine, Import, KeepImport, Lift, Unplaced,
};
use earnest_core::quote::body_digest;
use earnest_core::report::{Step, Told};
use earnest_core::settlement::Settlement;
use earnest_core::tab::Tab;
use earnest_core::time::Timestamp;
use earnest_core::voucher::{Claims, Fate, ReportOutcome};
use paypal_sim::SimConfig;
use reqwest::Method;
use serde_json::{Value, json};

use crate::judge::{all, breaches, captures_by_invoice, differences};
use crate::world::{PATIENCE, World, fresh_id, unchanged};

/// Books that were restored once, and are sold from again; a purchase that was lost then, by its id.
pub async fn once_restored(world: &World) -> String {
    let seller = world.seller_id().parse().unwrap();
    let store = &world.earnest.app.store;
    let iat = world.clock.now().as_second();
    let claims = Claims {
        iss: "https://earnest.example".to_owned(),
        aud: seller,
        sub: PurchaseId::new(world.earnest.app.seed()),
        jti: VoucherId::new(world.earnest.app.seed()),
        iat,
        exp: iat + 120,
        amount_micros: Micros::new(20_000).unwrap(),
        max_micros: None,
        currency: Currency::Usd,
        quote: fresh_id("qte").parse().unwrap(),
        listing: "GET /weather".to_owned(),
        method: "GET".to_owned(),
        resource: "https://api.example/weather".to_owned(),
        body: body_digest(b""),
    };
    let backup = Backup {
        taken_at: world.clock.now(),
        seq: 1,
        hash: "00".repeat(32),
        epoch: "e0".to_owned(),
    };
    store
        .submit(BeginQuarantine { backup, epoch: "e1".to_owned(), replaced: Vec::new() })
        .await
        .unwrap();
    let (purchase, claimed_at) = (claims.sub, world.clock.now());
    let told = Told { seller, claims, fate: Fate::Redeemed, claimed_at, amount: None };
    let step = store.submit(KeepLost { told }).await.unwrap();
    assert!(matches!(step, Step::Done(ReportOutcome::Kept, _)), "{step:?}");
    let odd = Unplaced {
        paypal_id: "ODD1".to_owned(),
        code: "T1900".to_owned(),
        amount_micros: None,
        invoice_id: None,
        why: "it is of no known kind".to_owned(),
    };
    let import = Import { records: 1, unexplained: 1, unplaced: vec![odd], ..Import::default() };
    store.submit(KeepImport { epoch: "e1".to_owned(), import }).await.unwrap();
    let (ids, reason, by) = (vec!["ODD1".to_owned()], "known".to_owned(), "operator".to_owned());
    store.submit(AcceptRecords { ids, reason, by }).await.unwrap();
    store.submit(Lift { gap: Some("a sample".to_owned()) }).await.unwrap();
    purchase.to_string()
}

/// What an operator keeps apart from the books: the key file, the parties' keys, the backups.
pub(crate) struct Kept {
    dir: tempfile::TempDir,
}

impl Kept {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// A world whose disk can be lost, with a vaulted owner and a proved seller.
pub(crate) async fn world() -> (World, Kept) {
    world_with(SimConfig::default()).await
}

pub(crate) async fn world_with(sim: SimConfig) -> (World, Kept) {
    let world = World::mortal(Config::simulated(), sim, &unchanged()).await;
    world.prove_origin().await;
    world.vault().await;
    let limits = json!({ "approve_above_micros": null, "per_call_cap_micros": "$1.00" });
    world.policy("owner", limits).await;
    let kept = Kept { dir: tempfile::tempdir().unwrap() };
    for name in [SEAL_KEY, "dev-keys.json"] {
        std::fs::copy(world.data().join(name), kept.path(name)).unwrap();
    }
    (world, kept)
}

/// Backs up while everything runs.
pub(crate) async fn back_up(
    world: &World,
    to: PathBuf,
) -> Result<backup::Manifest, backup::BackupError> {
    let (data, books, now) = (world.data(), world.books(), world.clock.now());
    let taken = tokio::task::spawn_blocking(move || {
        backup::take(&books, Some(&data.join(SEAL_KEY)), &to, now)
    });
    taken.await.unwrap().map(|taken| taken.manifest)
}

pub(crate) async fn put_back(
    world: &World,
    from: PathBuf,
    key_file: Option<PathBuf>,
    force: bool,
    mode: &'static str,
) -> Result<Restored, RestoreError> {
    let (data, database, clock) = (world.data(), world.database(), world.clock.clone());
    let restored = tokio::task::spawn_blocking(move || {
        let (key_file, clock) = (key_file.as_deref(), Arc::new(move || clock.now()));
        let (from, data, database) = (from.as_path(), data.as_path(), database.as_ref());
        restore(&Plan { from, data, database, mode, key_file, key_stays: false, force, clock })
    });
    restored.await.unwrap()
}

/// The process dies with its disk, and comes back from the backup.
pub(crate) async fn lose_and_restore(world: &mut World, kept: &Kept, backup: &str) -> Restored {
    world.die().await;
    world.lose_disk();
    let key_file = Some(kept.path(SEAL_KEY));
    let restored = put_back(world, kept.path(backup), key_file, false, "simulated").await.unwrap();
    std::fs::copy(kept.path("dev-keys.json"), world.data().join("dev-keys.json")).unwrap();
    world.rise().await;
    restored
}

pub(crate) async fn settle(world: &World) {
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();
    let headers = [("idempotency-key", fresh_id("settle"))];
    let headers: Vec<(&str, &str)> = headers.iter().map(|(a, b)| (*a, b.as_str())).collect();
    let path = format!("/v1/tabs/{tab}/settle");
    world.call_with("owner", Method::POST, &path, None, &headers).await.expect(202);
    world.settle_down().await;
}

/// A seller says again what it kept: when it claimed each is its own knowledge.
pub(crate) async fn say_again(world: &World, vouchers: &[(String, Timestamp)]) -> Vec<Value> {
    let told = |(voucher, at): &(String, Timestamp)| json!({ "voucher": voucher, "fate": "redeemed", "claimed_at": at });
    let reports: Vec<Value> = vouchers.iter().map(told).collect();
    let body = json!({ "reports": reports });
    let answer = world.post("seller", "/v1/vouchers/report", body).await.expect(200);
    answer["results"].as_array().unwrap().clone()
}

pub(crate) fn outcomes(results: &[Value]) -> BTreeSet<&str> {
    results.iter().map(|result| result["outcome"].as_str().unwrap()).collect()
}

/// Lets PayPal's report get past the restore, three hours behind and with three to spare.
pub(crate) async fn import(world: &World) {
    world.jobs().await;
    let before = world.get("operator", "/v1/restore").await.expect(200);
    assert_eq!(
        (&before["status"], &before["import_complete"]),
        (&json!("quarantined"), &json!(false))
    );
    world.post("operator", "/v1/restore/lift", json!({})).await.expect(409);
    world.advance(6 * 3600 + 60);
    world.settle_down().await;
    let row = world.get("operator", "/v1/restore").await.expect(200);
    assert_eq!((&row["import_complete"], &row["unexplained"]), (&json!(true), &json!(0)), "{row}");
}

pub(crate) async fn lift(world: &World) {
    let row = world.post("operator", "/v1/restore/lift", json!({})).await.expect(200);
    assert_eq!(row["status"], "lifted");
    // A repeat shows the same.
    assert_eq!(world.post("operator", "/v1/restore/lift", json!({})).await.expect(200), row);
    let path = format!("/v1/agents/{}/resume", world.agent_id());
    let agent = world.get("owner", &format!("/v1/agents/{}", world.agent_id())).await.expect(200);
    assert_eq!(agent["paused"], true, "agents return paused");
    world.call("owner", Method::POST, &path, None).await.expect(204);
}

pub(crate) fn at_paypal(world: &World) -> i64 {
    world.sim().books().balances[0].captured.minor
}

#[tokio::test]
async fn the_disk_is_lost_after_fifty_purchases_and_two_settlements() {
    let (mut world, kept) = world().await;
    for n in 0..3 {
        world.spend(100_000, &format!("before-{n}")).await;
    }
    let held = (world.buy(100_000, "held").await, world.clock.now());
    let manifest = back_up(&world, kept.path("backup")).await.unwrap();
    assert_eq!(manifest.seq, world.reader().head().unwrap().seq);
    let tab = world.tab().await["id"].as_str().unwrap().to_owned();

    // The life that will be lost.
    let mut lost = Vec::new();
    for n in 0..50 {
        let voucher = world.buy(20_000, &format!("lost-{n}")).await;
        assert_eq!(world.report(&voucher, "redeemed").await["outcome"], "billed");
        lost.push((voucher, world.clock.now()));
        if n % 25 == 24 {
            world.advance(600);
            settle(&world).await;
        }
    }
    assert_eq!(at_paypal(&world), 80 + 50);
    assert_eq!(world.totals("paypal_cash").await.split('/').nth(1), Some("1300"));
    world.advance(60);

    let restored = lose_and_restore(&mut world, &kept, "backup").await;
    assert_eq!(restored.manifest, manifest);
    let owed = format!("tab:{tab}:owed");
    assert_eq!(world.totals(&owed).await, "100/300/0/0");

    // Quarantined: nothing is sold, settled or sent; what is read is read.
    let ready = world.get("", "/readyz").await.expect(200);
    assert_eq!(ready["status"], "quarantined");
    assert_eq!(ready["epoch"], restored.quarantine.epoch);
    assert_ne!(restored.quarantine.epoch, manifest.epoch);
    let refused = world.authorize(world.quote("/weather", 20_000), "new").await;
    assert_eq!((refused.status.as_u16(), refused.code()), (503, "quarantined"));
    assert!(refused.headers.contains_key("retry-after"));
    let repeated = world.authorize(world.quote("/weather", 100_000), "held").await;
    assert_eq!(repeated.code(), "quarantined", "no voucher is given out again either");
    let headers = [("idempotency-key", "settle-in-quarantine")];
    let path = format!("/v1/tabs/{tab}/settle");
    let refused = world.call_with("owner", Method::POST, &path, None, &headers).await;
    assert_eq!(refused.code(), "quarantined");
    let refused = world.call("owner", Method::POST, "/v1/payment-methods", None).await;
    assert_eq!(refused.code(), "quarantined");
    world.get("owner", "/v1/purchases").await.expect(200);
    let writes = |world: &World| {
        let journal = world.sim().journal();
        journal.iter().filter(|row| row.method != "GET" && !row.path.contains("oauth2")).count()
    };
    let sent = writes(&world);

    // Cut off while reading, and read again: a capture that is booked already is booked once.
    world.settle_down().await;
    let first = world.sim().books().rows[0].transaction_id.clone();
    earnest::flow::settle::capture_hinted(&world.earnest.app, &first).await.unwrap();
    assert_eq!(all::<LostCapture>(world.reader()).len(), 1);
    world.kill().await;
    import(&world).await;
    assert_eq!(writes(&world), sent, "PayPal was only read");
    assert_eq!(differences(world.reader(), &world.sim().books()), Vec::<String>::new());
    assert_eq!(breaches(world.reader()), Vec::<String>::new());
    assert_eq!(world.totals(&owed).await, "100/300/0/300");
    assert_eq!(world.totals("suspense").await, "0/0/0/1000");

    // The line that was held is reported again, hours after its voucher's end: it was never given up.
    let results = say_again(&world, &[held]).await;
    assert_eq!(outcomes(&results), BTreeSet::from(["billed"]));
    world.settle_down().await;
    assert_eq!(world.totals(&owed).await, "0/400/0/400");
    assert_eq!(world.totals("suspense").await, "0/100/0/1000");

    // Sellers say everything again, since the epoch changed: nothing of it is dropped.
    assert_eq!(outcomes(&say_again(&world, &lost).await), BTreeSet::from(["kept"]));
    assert_eq!(outcomes(&say_again(&world, &lost).await), BTreeSet::from(["kept"]));
    let lines = world.get("operator", "/v1/restore/lines?limit=500").await.expect(200);
    assert_eq!(lines["data"].as_array().unwrap().len(), 50);
    let captures = world.get("operator", "/v1/restore/captures").await.expect(200);
    let captures = captures["data"].as_array().unwrap().clone();
    assert_eq!(captures.len(), 2);
    decide_all(&world, &lines, &captures).await;
    assert_eq!(outcomes(&say_again(&world, &lost).await), BTreeSet::from(["already_billed"]));
    assert_eq!(world.totals("suspense").await, "0/1000/0/1000");
    assert_eq!(world.totals("losses").await, "0/100/0/0");
    let accrued = format!("seller:{}:accrued", world.seller_id());
    assert_eq!(world.totals(&accrued).await, "0/0/0/1400", "its seller has every cent");

    lift(&world).await;
    let repeated = world.authorize(world.quote("/weather", 20_000), "lost-7").await;
    assert_eq!(repeated.code(), "state_conflict", "bought and delivered before: not charged again");
    world.spend(250_000, "after").await;
    settle(&world).await;
    assert_eq!(at_paypal(&world), 80 + 50 + 25);
    let twice = |(_, count): &(String, usize)| *count != 1;
    let invoices = captures_by_invoice(&world.sim().books());
    assert_eq!(invoices.into_iter().find(twice), None, "nothing was captured twice");
    let newest = all::<Settlement>(world.reader()).into_iter().last().unwrap();
    assert!(newest.invoice_id.starts_with(&format!("{}:", restored.quarantine.epoch)));
    assert_eq!(newest.n, 3);
    world.assert_at_rest();
    world.assert_balanced().await;
}

/// The operator pays each lost purchase out of what was captured for it, and bears the rest.
async fn decide_all(world: &World, lines: &Value, captures: &[Value]) {
    let mut left: Vec<(String, i64)> = Vec::new();
    let suspense = world.get("operator", "/v1/suspense").await.expect(200);
    for row in suspense["data"].as_array().unwrap() {
        assert_eq!(row["why"], "restored");
        let id = row["paypal_capture"].as_str().unwrap().to_owned();
        assert!(captures.iter().any(|capture| capture["paypal_capture"] == id.as_str()));
        left.push((id, row["left_micros"].as_i64().unwrap()));
    }
    for line in lines["data"].as_array().unwrap() {
        let due = line["amount_micros"].as_i64().unwrap();
        let body = match left.iter_mut().find(|(_, left)| *left >= due) {
            Some((capture, left)) => {
                *left -= due;
                json!({ "paid_by": "suspense", "paypal_capture": capture })
            }
            None => json!({ "paid_by": "operator" }),
        };
        let path = format!("/v1/restore/lines/{}", line["purchase"].as_str().unwrap());
        world.post("operator", &path, body.clone()).await.expect(200);
        world.post("operator", &path, body).await.expect(200);
    }
}

/// What the old tab owed went to a tab that the backup does not know, and was captured there: the
/// capture names its owner, so it is not captured again.
#[tokio::test]
async fn what_was_carried_to_a_lost_tab_is_not_captured_again() {
    let (mut world, kept) = world().await;
    world.spend(4_000, "before").await;
    back_up(&world, kept.path("backup")).await.unwrap();
    let old = world.tab().await["id"].as_str().unwrap().to_owned();
    world.call("owner", Method::POST, &format!("/v1/tabs/{old}/close"), None).await.expect(202);
    world.settle_down().await;
    world.advance(1);
    world.spend(496_000, "lost").await;
    settle(&world).await;
    assert_eq!(at_paypal(&world), 50);
    lose_and_restore(&mut world, &kept, "backup").await;
    assert_eq!(world.tab().await["id"], old.as_str());
    import(&world).await;
    assert_eq!(world.totals(&format!("tab:{old}:owed")).await, "0/4/0/4");
    assert_eq!(world.totals("suspense").await, "0/0/0/496");
    lift(&world).await;
    // What comes next is paid by the rest, until that is used up.
    world.spend(500_000, "after").await;
    world.settle_down().await;
    assert_eq!(world.totals("suspense").await, "0/496/0/496");
    assert_eq!(at_paypal(&world), 50);
    let tab: Vec<Tab> = all(world.reader());
    assert!(tab[0].lost.is_empty());
    assert_eq!(differences(world.reader(), &world.sim().books()), Vec::<String>::new());
    world.assert_sound();
}

/// A charge was planned when the backup was taken, and sent afterwards: it is never sent again, and
/// PayPal's records tell what became of it.
#[tokio::test]
async fn a_charge_that_the_backup_knew_as_planned_is_resolved_by_evidence() {
    for captured in [true, false] {
        let (mut world, kept) = world().await;
        world.spend(500_000, "before").await;
        let tab = world.tab().await["id"].as_str().unwrap().to_owned();
        let headers = [("idempotency-key", "settle-1")];
        let path = format!("/v1/tabs/{tab}/settle");
        world.call_with("owner", Method::POST, &path, None, &headers).await.expect(202);
        back_up(&world, kept.path("backup")).await.unwrap();
        if captured {
            world.settle_down().await;
        }
        let taken = at_paypal(&world);
        assert_eq!(taken, if captured { 50 } else { 0 });
        lose_and_restore(&mut world, &kept, "backup").await;
        import(&world).await;
        assert_eq!(at_paypal(&world), taken, "nothing is sent");
        lift(&world).await;
        world.settle_down().await;
        assert_eq!(at_paypal(&world), 50);
        let settlements = all::<Settlement>(world.reader());
        assert_eq!(settlements.len(), 1);
        assert_eq!(settlements[0].attempt, if captured { 1 } else { 2 });
        world.assert_at_rest();
    }
}

#[tokio::test]
async fn a_quarantine_ends_on_complete_records() {
    let (mut world, kept) = world().await;
    back_up(&world, kept.path("backup")).await.unwrap();
    lose_and_restore(&mut world, &kept, "backup").await;
    let lift = |body: Value| world.post("operator", "/v1/restore/lift", body);
    assert_eq!(lift(json!({})).await.code(), "state_conflict");
    assert_eq!(lift(json!({ "accept_gap": "" })).await.code(), "validation_failed");
    assert_eq!(lift(json!({ "accept_gap": "a\nb" })).await.code(), "validation_failed");
    for role in ["owner", "agent", "seller"] {
        let refused = world.post(role, "/v1/restore/lift", json!({ "accept_gap": "mine" })).await;
        assert_eq!(refused.code(), "not_found", "{role}");
    }
    let row = lift(json!({ "accept_gap": "nothing was sold since" })).await.expect(200);
    assert_eq!((&row["status"], &row["gap"]), (&json!("lifted"), &json!("nothing was sold since")));
    world.assert_sound();
}

/// Records that nobody could explain are shown, and stand in the way until they are accepted.
#[tokio::test]
async fn a_quarantine_does_not_end_on_what_is_not_explained() {
    let (mut world, kept) = world().await;
    back_up(&world, kept.path("backup")).await.unwrap();
    lose_and_restore(&mut world, &kept, "backup").await;
    let epoch = world.get("operator", "/v1/restore").await.expect(200)["epoch"].clone();
    let epoch = epoch.as_str().unwrap().to_owned();
    let keep = async |unexplained: u64| {
        let open = Unplaced {
            paypal_id: "4XY".to_owned(),
            code: "T1900".to_owned(),
            amount_micros: None,
            invoice_id: None,
            why: "it is of no known kind".to_owned(),
        };
        let import = Import {
            complete_at: Some(world.clock.now()),
            records: 2,
            unexplained,
            unplaced: if unexplained == 0 { Vec::new() } else { vec![open] },
            ..Import::default()
        };
        let unit = KeepImport { epoch: epoch.clone(), import };
        world.earnest.app.store.submit(unit).await.unwrap();
    };
    keep(1).await;
    let lift = |body: Value| world.post("operator", "/v1/restore/lift", body);
    let refused = lift(json!({})).await;
    assert_eq!(refused.code(), "state_conflict");
    assert!(refused.body["detail"].as_str().unwrap().contains("1 of PayPal's records"));
    let shown = world.get("operator", "/v1/restore").await.expect(200);
    let record = json!({ "paypal_id": "4XY", "code": "T1900", "why": "it is of no known kind" });
    assert_eq!(
        (&shown["unexplained"], &shown["unexplained_records"]),
        (&json!(1), &json!([record]))
    );
    // Read again with everything explained, nothing has to be accepted.
    keep(0).await;
    let row = lift(json!({ "accept_gap": "nobody knows" })).await.expect(200);
    assert_eq!((&row["status"], &row["gap"]), (&json!("lifted"), &Value::Null));
    world.assert_sound();
}

/// A program that is killed as soon as something of what it makes is there.
async fn killed_at(args: &[&str], there: impl Fn() -> bool) {
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_earnest"))
        .args(args)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let began = std::time::Instant::now();
    while !there() && child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < PATIENCE, "{args:?}");
        tokio::task::yield_now().await;
    }
    // It may have ended by itself, which is as good: what must hold holds whenever it ends.
    let _ = child.start_kill();
    child.wait().await.unwrap();
}

/// Folders beside a place whose names begin with its own, with what is in each.
fn beside(place: &Path) -> Vec<(String, Vec<String>)> {
    let names = |folder: &Path| -> Vec<String> {
        let found = std::fs::read_dir(folder).into_iter().flatten();
        found.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
    };
    let own = place.file_name().unwrap().to_str().unwrap().to_owned();
    let folder = place.parent().unwrap();
    let like = names(folder).into_iter().filter(|name| name.starts_with(&own) && *name != own);
    like.map(|name| (name.clone(), names(&folder.join(name)))).collect()
}

/// A backup and a restore that are killed while they write: what has its name is whole, and the next
/// one is not hindered.
#[tokio::test(flavor = "multi_thread")]
async fn killed_while_they_write_they_leave_nothing_half_done() {
    if not_about_files("a restore is one transaction of the server's") {
        return;
    }
    let (mut world, kept) = world().await;
    world.spend(100_000, "one").await;
    world.die().await;
    let data = world.data();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    for (n, piece) in ["", BOOKS, MANIFEST].into_iter().enumerate() {
        let to = kept.path(&format!("backup-{n}"));
        let args = ["backup", &text(&to), "--data", &text(&data)];
        killed_at(&args, || {
            let made = beside(&to);
            made.iter().any(|(_, holds)| piece.is_empty() || holds.iter().any(|it| it == piece))
        })
        .await;
        if to.exists() {
            backup::verify(&to).unwrap();
        } else {
            back_up(&world, to.clone()).await.unwrap();
        }
    }
    let (from, key) = (text(&kept.path("backup-0")), text(&kept.path(SEAL_KEY)));
    let old = data.join("old");
    for piece in ["", BOOKS, SEAL_KEY, "before"] {
        std::fs::write(&old, "old").unwrap();
        let place = text(&data);
        let args = ["restore", &from, "--force", "--key-file", &key, "--data", &place];
        killed_at(&args, || {
            beside(&data).iter().any(|(name, holds)| match piece {
                "before" => name.contains(".before-"),
                _ => piece.is_empty() || holds.iter().any(|it| it == piece),
            })
        })
        .await;
        let aside = beside(&data).iter().any(|(_, holds)| holds.iter().any(|it| it == "old"));
        assert_ne!(old.exists(), aside, "{piece}: the old folder is whole in one place");
        let key = Some(kept.path(SEAL_KEY));
        put_back(&world, kept.path("backup-0"), key, true, "simulated").await.unwrap();
        for (name, _) in beside(&data) {
            std::fs::remove_dir_all(data.parent().unwrap().join(name)).unwrap();
        }
    }
    std::fs::copy(kept.path("dev-keys.json"), data.join("dev-keys.json")).unwrap();
    world.rise().await;
    assert_eq!(world.get("", "/readyz").await.expect(200)["status"], "quarantined");
}

fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Books that PayPal's records do not agree with are copied all the same, with a warning: those are the days
/// when a backup is wanted most.
#[tokio::test]
async fn a_difference_with_paypal_is_no_reason_to_go_without_a_backup() {
    let (world, kept) = world().await;
    world.sim().happen(&crate::reconcile::happening("T1500", -1_000, Some("X1"))).unwrap();
    for _ in 0..16 {
        world.advance(1_800);
        world.settle_down().await;
    }
    assert!(!breaches(world.reader()).is_empty(), "the line is not explained");
    let (books, to, now) = (world.books(), kept.path("backup"), world.clock.now());
    let taken = tokio::task::spawn_blocking(move || backup::take(&books, None, &to, now));
    let taken = taken.await.unwrap().unwrap();
    assert!(taken.differs[0].contains("not in our books"), "{:?}", taken.differs);
    assert_eq!(backup::verify(&kept.path("backup")).unwrap(), taken.manifest);
}

#[tokio::test]
async fn a_backup_is_private_whole_and_overwrites_nothing() {
    use std::os::unix::fs::PermissionsExt as _;
    let (world, kept) = world().await;
    world.spend(100_000, "one").await;
    // What a backup that was cut off leaves is in nobody's way.
    std::fs::create_dir(kept.path("backup.12345678.partial")).unwrap();
    let manifest = back_up(&world, kept.path("backup")).await.unwrap();
    let mode = |name: &str| {
        let path = kept.path("backup").join(name);
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode(""), mode(BOOKS), mode(MANIFEST)), (0o700, 0o600, 0o600));
    let names: BTreeSet<String> = std::fs::read_dir(kept.path("backup"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let expect = [BOOKS, MANIFEST].map(str::to_owned);
    assert_eq!(names, BTreeSet::from(expect), "no key file, and nothing left over");
    assert_eq!((manifest.mode.as_str(), manifest.schema), ("simulated", earnest_store::schema()));
    assert_eq!(manifest.seal_key.len(), 16);
    let secret = std::fs::read_to_string(world.data().join(SEAL_KEY)).unwrap();
    let books = std::fs::read(kept.path("backup").join(BOOKS)).unwrap();
    for key in [secret.trim(), &world.key("operator"), &world.key("agent")] {
        assert!(!books.windows(key.len()).any(|part| part == key.as_bytes()), "a key is in it");
    }
    assert_eq!(backup::verify(&kept.path("backup")).unwrap(), manifest);
    let again = back_up(&world, kept.path("backup")).await.unwrap_err();
    assert!(matches!(again, backup::BackupError::Exists(_)), "{again}");
    assert_eq!(backup::verify(&kept.path("backup")).unwrap(), manifest, "it is as it was");
    world.spend(100_000, "two").await;
    let later = back_up(&world, kept.path("later")).await.unwrap();
    assert!(later.seq > manifest.seq);
    assert_eq!(later.installation, manifest.installation);
}

/// Writers go on while the copy is made, and it is of one moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_taken_while_things_are_bought() {
    let (world, kept) = world().await;
    let buying = async {
        for n in 0..40 {
            world.spend(10_000, &format!("r-{n}")).await;
        }
    };
    let copying = async {
        let mut seqs = Vec::new();
        for n in 0..4 {
            let manifest = back_up(&world, kept.path(&format!("copy-{n}"))).await.unwrap();
            seqs.push(manifest.seq);
        }
        seqs
    };
    let ((), seqs) = tokio::join!(buying, copying);
    for (n, seq) in seqs.iter().enumerate() {
        let manifest = backup::verify(&kept.path(&format!("copy-{n}"))).unwrap();
        let entry = world.reader().entry(*seq).unwrap().unwrap();
        assert_eq!(manifest.hash, hex::encode(entry.hash), "it is our own log, cut off there");
    }
    assert!(seqs.is_sorted());
}

#[tokio::test]
async fn a_restore_refuses_what_it_should_not_touch() {
    if not_about_files("another test says where a restore goes") {
        return;
    }
    let (mut world, kept) = world().await;
    back_up(&world, kept.path("backup")).await.unwrap();
    let key = || Some(kept.path(SEAL_KEY));
    let copy = |name: &str| {
        std::fs::create_dir(kept.path(name)).unwrap();
        for file in [BOOKS, MANIFEST] {
            std::fs::copy(kept.path("backup").join(file), kept.path(name).join(file)).unwrap();
        }
        kept.path(name)
    };
    let word = |done: Result<Restored, RestoreError>| done.unwrap_err().to_string();
    let before = world.reader().head().unwrap();

    let backup = kept.path("backup");
    let said = word(put_back(&world, backup.clone(), key(), false, "simulated").await);
    assert!(said.ends_with("is not empty"), "{said}");
    let said = word(put_back(&world, backup.clone(), key(), true, "simulated").await);
    assert!(said.contains("in use"), "{said}");
    assert_eq!(world.reader().head().unwrap(), before, "the running one does not notice");

    world.die().await;
    let said = word(put_back(&world, backup.clone(), key(), true, "live").await);
    assert!(said.contains("mode `simulated`"), "{said}");
    let other = kept.path("other.key");
    earnest::sealed::make_key_file(&other).unwrap();
    let said = word(put_back(&world, backup.clone(), Some(other), true, "simulated").await);
    assert!(said.contains("another key file"), "{said}");
    let said =
        word(put_back(&world, backup.clone(), Some(kept.path("no.key")), true, "simulated").await);
    assert!(said.contains("no.key"), "{said}");
    let damaged = copy("damaged");
    damage(&damaged.join(BOOKS));
    let said = word(put_back(&world, damaged.clone(), key(), true, "simulated").await);
    assert!(said.contains(&format!("damaged/{BOOKS}")), "{said}");
    let forged = copy("forged");
    let text = std::fs::read_to_string(forged.join(MANIFEST)).unwrap();
    let text = text.replace("\"seq\": ", "\"seq\": 1");
    std::fs::write(forged.join(MANIFEST), text).unwrap();
    let said = word(put_back(&world, forged, key(), true, "simulated").await);
    assert!(said.contains(&format!("forged/{MANIFEST}")), "{said}");
    let newer = copy("newer");
    set_schema(&newer).await;
    let said = word(put_back(&world, newer, key(), true, "simulated").await);
    assert!(said.contains("schema 99"), "{said}");
    let missing = kept.path("nowhere");
    assert!(word(put_back(&world, missing, key(), true, "simulated").await).contains(MANIFEST));

    // After all of that the books are as they were, and nothing of ours lies about. What others
    // put aside in the same folder meanwhile is theirs.
    let own = world.data().file_name().unwrap().to_str().unwrap().to_owned();
    let beside: Vec<_> = std::fs::read_dir(world.data().parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(&own) && *name != own)
        .collect();
    assert_eq!(beside, Vec::<String>::new());
    let restored = put_back(&world, backup, None, true, "simulated").await.unwrap();
    let aside = restored.aside.unwrap();
    assert!(aside.join(BOOKS).exists() && aside.join("dev-keys.json").exists());
    std::fs::copy(kept.path("dev-keys.json"), world.data().join("dev-keys.json")).unwrap();
    world.rise().await;
    assert_eq!(world.get("", "/readyz").await.expect(200)["status"], "quarantined");
    std::fs::remove_dir_all(aside).unwrap();
    world.assert_sound();
}

/// On a server: books are never replaced, and neither is a key file.
#[tokio::test]
async fn a_restore_goes_only_where_there_are_no_books() {
    if !on_postgres() {
        println!("skipped: this is about books on PostgreSQL");
        return;
    }
    let (mut world, kept) = world().await;
    world.spend(100_000, "one").await;
    back_up(&world, kept.path("backup")).await.unwrap();
    world.die().await;
    let key = || Some(kept.path(SEAL_KEY));
    let before = earnest_store::audit::look(&world.books(), |books| books.head()).unwrap();
    let there = put_back(&world, kept.path("backup"), key(), false, "simulated").await;
    assert!(matches!(there, Err(RestoreError::Occupied(_))), "{there:?}");
    let after = earnest_store::audit::look(&world.books(), |books| books.head()).unwrap();
    assert_eq!(after, before);
    world.lose_disk();
    std::fs::create_dir(world.data()).unwrap();
    earnest::sealed::make_key_file(&world.data().join(SEAL_KEY)).unwrap();
    let other = put_back(&world, kept.path("backup"), key(), false, "simulated").await;
    assert!(matches!(other, Err(RestoreError::OtherKeyThere(_))), "{other:?}");
    std::fs::remove_file(world.data().join(SEAL_KEY)).unwrap();
    put_back(&world, kept.path("backup"), key(), false, "simulated").await.unwrap();
    std::fs::copy(kept.path("dev-keys.json"), world.data().join("dev-keys.json")).unwrap();
    world.rise().await;
    assert_eq!(world.get("", "/readyz").await.expect(200)["status"], "quarantined");
    world.assert_sound();
}

/// Makes a copy one of a later version, its manifest too.
async fn set_schema(copy: &Path) {
    let program = "import sqlite3,sys,json,hashlib\nd=sys.argv[1]\nb=d+'/earnest.db'\n\
        c=sqlite3.connect(b)\nc.execute('PRAGMA journal_mode=DELETE')\n\
        c.execute('PRAGMA user_version=99')\nc.commit()\nc.close()\n\
        m=json.load(open(d+'/manifest.json'))\nx=open(b,'rb').read()\n\
        m['schema']=99\nm['files'][0]['sha256']=hashlib.sha256(x).hexdigest()\n\
        m['files'][0]['bytes']=len(x)\njson.dump(m,open(d+'/manifest.json','w'))";
    let mut python = tokio::process::Command::new("python3");
    python.args(["-c", program]).arg(copy);
    assert!(python.status().await.unwrap().success());
}

/// The machine stops while a restore is under way: what it left is no data folder, and the next
/// restore is not hindered by it.
#[tokio::test]
async fn a_restore_that_was_cut_off_is_begun_anew() {
    if not_about_files("a restore is one transaction of the server's") {
        return;
    }
    let (mut world, kept) = world().await;
    world.spend(100_000, "one").await;
    back_up(&world, kept.path("backup")).await.unwrap();
    world.die().await;
    let data = world.data();
    std::fs::remove_dir_all(&data).unwrap();
    let mut half = data.as_os_str().to_owned();
    half.push(".00000000.partial");
    let half = PathBuf::from(half);
    std::fs::create_dir(&half).unwrap();
    let books = std::fs::read(kept.path("backup").join(BOOKS)).unwrap();
    std::fs::write(half.join(BOOKS), &books[..books.len() / 2]).unwrap();
    let key = Some(kept.path(SEAL_KEY));
    put_back(&world, kept.path("backup"), key, false, "simulated").await.unwrap();
    std::fs::copy(kept.path("dev-keys.json"), data.join("dev-keys.json")).unwrap();
    world.rise().await;
    assert_eq!(world.get("", "/readyz").await.expect(200)["status"], "quarantined");
    std::fs::remove_dir_all(half).unwrap();
    world.assert_sound();
}

/// Restored twice, the second time from a backup that was taken in quarantine: what the first loss
/// left unsure is still read.
#[tokio::test]
async fn a_backup_taken_in_quarantine_is_quarantined_for_both_losses() {
    let (mut world, kept) = world().await;
    world.spend(300_000, "before").await;
    back_up(&world, kept.path("first")).await.unwrap();
    settle(&world).await;
    world.advance(3600);
    lose_and_restore(&mut world, &kept, "first").await;
    back_up(&world, kept.path("second")).await.unwrap();
    world.advance(3600);
    let restored = lose_and_restore(&mut world, &kept, "second").await;
    assert_eq!(restored.quarantine.ended.len(), 2);
    import(&world).await;
    assert_eq!(differences(world.reader(), &world.sim().books()), Vec::<String>::new());
    lift(&world).await;
    world.settle_down().await;
    assert_eq!(at_paypal(&world), 30);
    world.assert_at_rest();
}
