//! `earnest treasurer replay`, and asking models from the command line.

use earnest_core::model::{CallState, ModelCall};
use earnest_store::{Options, Store};

use super::{earnest, run};
use crate::judge::all;

#[tokio::test(flavor = "multi_thread")]
async fn the_treasurer_pays_at_most_a_tenth_more_than_the_optimum() {
    let folder = tempfile::tempdir().unwrap();
    let replay = |words: &[&str]| {
        let mut command = earnest(folder.path());
        command.args(["treasurer", "replay", "--json"]).args(words);
        run(command)
    };
    let rows = replay(&["--tabs", "60", "--seed", "3"]).await.expect(0).rows();
    assert_eq!(rows.len(), 7, "six shapes and all of them: {rows:?}");
    let micros = |row: &serde_json::Value, name: &str| row[name].as_u64().unwrap();
    for row in &rows {
        assert!(micros(row, "optimum_fees_micros") <= micros(row, "fees_micros"), "{row}");
        assert!(micros(row, "unbound_fees_micros") <= micros(row, "optimum_fees_micros"), "{row}");
    }
    let all = rows.last().unwrap();
    assert_eq!(micros(all, "tabs"), 60);
    assert!(micros(all, "fees_micros") * 100 <= micros(all, "optimum_fees_micros") * 110, "{all}");
    // What is exported is what is played.
    let exported = replay(&["--tabs", "60", "--seed", "3", "--export"]).await.expect(0);
    std::fs::write(folder.path().join("tabs.jsonl"), &exported.out).unwrap();
    assert_eq!(replay(&["--file", "tabs.jsonl"]).await.expect(0).rows(), rows);
    // Settings count.
    std::fs::write(folder.path().join("earnest.toml"), "[rules]\nsettle_at_micros = 5_000_000\n")
        .unwrap();
    let often = replay(&["--file", "tabs.jsonl"]).await.expect(0).rows();
    assert!(micros(often.last().unwrap(), "captures") > micros(all, "captures"));
    // What cannot be played says where.
    std::fs::write(folder.path().join("tabs.jsonl"), "{}\n").unwrap();
    let wrong = replay(&["--file", "tabs.jsonl"]).await.expect(1);
    assert_eq!(wrong.refusal(), "file_unusable");
    assert!(wrong.err.contains("line 1"), "{}", wrong.err);
    assert_eq!(replay(&["--books"]).await.expect(3).refusal(), "not_found");
}

#[tokio::test]
async fn without_a_model_the_doctor_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = earnest(folder.path());
    command.args(["doctor", "models"]);
    let ran = run(command).await.expect(0);
    assert!(ran.out.is_empty() && ran.err.contains("no model is configured"), "{ran:?}");
    std::fs::write(
        folder.path().join("earnest.toml"),
        "[models.advisor]\nbase_url = \"http://127.0.0.1:9/v1\"\nmodel = \"m\"\n",
    )
    .unwrap();
    let mut command = earnest(folder.path());
    command.args(["doctor", "models", "--json"]);
    let row = run(command).await.expect(1).json();
    assert_eq!((&row["outcome"], &row["cost_micros"]), (&"unreachable".into(), &0.into()));
    // The call is in the books, which the doctor therefore needs to itself.
    let books = folder.path().join("earnest-data/earnest.db");
    let clock = earnest::source::machine_clock();
    let store = Store::open(Options::file(books, "simulated", clock)).unwrap();
    let calls = all::<ModelCall>(store.reader());
    let [call] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!((call.state, call.outcome.as_deref()), (CallState::Ended, Some("unreachable")));
    let mut command = earnest(folder.path());
    command.args(["doctor", "models", "--json"]);
    assert_eq!(run(command).await.expect(7).refusal(), "in_use");
    store.close();
}
