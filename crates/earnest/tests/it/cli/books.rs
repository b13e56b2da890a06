//! The books by command: lists, CSV, trial balance, and the audit of what was tampered with.

use tokio::process::Command;

use super::selling::pay;
use super::{Stand, earnest, run};

#[tokio::test(flavor = "multi_thread")]
async fn the_books_are_read_as_rows_and_as_csv() {
    let stand = Stand::start().await;
    let Some(shop) = stand.shop("$0.10").await else { return };
    for n in 0..3 {
        pay(&stand, &shop, &format!("page-{n}")).await.expect(0);
    }
    let billed = |rows: &[serde_json::Value]| rows.iter().all(|row| row["status"] == "billed");
    stand.until("three lines", &["purchases"], billed).await;
    let purchases = stand.rows(&["purchases"]).await;
    let id = purchases[0]["id"].as_str().unwrap();
    assert_eq!(stand.json(&["purchases", id]).await, purchases[0]);
    assert_eq!(stand.rows(&["purchases", "--limit", "2"]).await, purchases[..2]);

    // A list that is longer than what is asked for at once is one file all the same.
    let csv = stand.run(&["purchases", "--csv", "--limit", "500"]).await.expect(0);
    let lines: Vec<&str> = csv.out.lines().collect();
    assert_eq!(lines.len(), 4, "{:?}", csv.out);
    assert!(lines[0].contains("amount_micros") && lines[1].contains(id));
    let transfers = stand.rows(&["transfers", "--limit", "500"]).await;
    let csv = stand.run(&["transfers", "--csv", "--limit", "500"]).await.expect(0);
    assert_eq!(csv.out.lines().count(), transfers.len() + 1);

    let owed = stand.rows(&["accounts", "tab:"]).await;
    assert_eq!(owed.len(), 1);
    assert_eq!(owed[0]["debits_posted_micros"], 300_000);
    let trial = stand.rows(&["trial-balance"]).await;
    assert!(trial.iter().all(|row| row["imbalance_micros"] == 0), "{trial:?}");
    assert!(stand.run(&["trial-balance", "--csv"]).await.expect(0).out.starts_with("currency,"));
    // An owner sees its own, an agent no books at all.
    let own = stand.rows(&["accounts", "--as", "owner"]).await;
    assert!(own.iter().all(|row| !row["name"].as_str().unwrap().starts_with("seller:")), "{own:?}");
    assert!(!own.is_empty());
    let agent = stand.run(&["transfers", "--as", "agent", "--json"]).await.expect(3);
    assert_eq!(agent.refusal(), "not_found");
    let table = stand.run(&["purchases"]).await.expect(0);
    assert!(table.out.starts_with("PURCHASE") && table.out.contains("$0.10"), "{:?}", table.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_names_the_first_breach() {
    let stand = Stand::start().await;
    let Some(shop) = stand.shop("$0.10").await else { return };
    pay(&stand, &shop, "page-1").await.expect(0);
    stand.until("a line", &["purchases"], |rows| rows[0]["status"] == "billed").await;
    let running = stand.json(&["audit"]).await;
    assert_eq!((&running["ok"], &running["purchases"]), (&true.into(), &1.into()));
    let folder = stand.stop().await;
    if let Some(place) = &folder.place {
        place.sql("UPDATE earnest_accounts SET debits_posted = debits_posted + 1 WHERE no = 1");
        let found = run(folder.command(&["audit", "--json"])).await.expect(1).json();
        assert_eq!(found["breach"]["invariant"], "totals_are_the_fold_of_the_log", "{found}");
        println!("skipped: on PostgreSQL the other ways of tampering");
        return;
    }

    // Tampered with by a program that is not ours; each change shows under its own name.
    for (sql, breach) in [
        (
            "UPDATE accounts SET debits_posted = debits_posted + 1 WHERE name LIKE '%tab:%'",
            "totals_are_the_fold_of_the_log",
        ),
        (
            "UPDATE rows SET body = CAST(replace(CAST(body AS TEXT), 'billed', 'denied') AS BLOB)",
            "rows_are_what_the_log_says",
        ),
        (
            "DELETE FROM lists WHERE list = (SELECT no FROM words WHERE text = 'purchases')",
            "lists_are_what_the_rows_say",
        ),
        ("DELETE FROM log WHERE seq = 5", "log_has_no_gap"),
    ] {
        let copy = format!("{breach}.db");
        std::fs::copy(folder.path().join("data/earnest.db"), folder.path().join(&copy)).unwrap();
        let program = "import sqlite3,sys\nc=sqlite3.connect(sys.argv[1])\nc.execute(sys.argv[2])\nc.commit()";
        let mut python = Command::new("python3");
        python.args(["-c", program, &copy, sql]).current_dir(folder.path());
        run(python).await.expect(0);
        let audit = |words: &[&str]| {
            let mut command = earnest(folder.path());
            command.args(["audit", "--data", &copy]).args(words);
            run(command)
        };
        let found = audit(&["--json"]).await.expect(1).json();
        assert_eq!(
            (&found["ok"], &found["breach"]["invariant"]),
            (&false.into(), &breach.into()),
            "{sql}"
        );
        let words = audit(&[]).await.expect(1);
        assert!(words.out.starts_with(breach), "{:?}", words.out);
    }
    let mut untouched = earnest(folder.path());
    untouched.args(["audit", "--data", "data"]);
    run(untouched).await.expect(0);
    let mut other = earnest(folder.path());
    other.args(["audit", "--data", "up.log", "--json"]);
    assert_eq!(run(other).await.expect(1).refusal(), "file_unusable");
}
