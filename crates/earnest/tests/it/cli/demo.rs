//! `earnest demo`, as a newcomer and a script run it.

use serde_json::{Value, json};

use super::{PATIENCE, earnest};

async fn run(arguments: &[&str]) -> (bool, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = earnest(folder.path());
    command.arg("demo").args(arguments).env("TMPDIR", folder.path());
    let ended = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "the demonstration left {left:?}");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (ended.status.success(), text(&ended.stdout), text(&ended.stderr))
}

#[tokio::test]
async fn the_demonstration_ends_with_the_figures_it_promises() {
    let (success, stdout, stderr) = run(&["--fast", "--json"]).await;
    assert!(success, "{stdout}{stderr}");
    let figures: Value = serde_json::from_str(&stdout).unwrap();
    let expect = json!({
        "tab": {"calls": 8, "approved": 1, "denied": 1, "captures": 1, "captured": "0.95",
            "fee": "0.52", "fee_if_single": "3.93"},
        "receipt": {"valid": true, "altered_valid": false},
        "ledger": {"imbalance_micros": 0, "unexplained": 0},
    });
    assert_eq!(figures, expect);
}

#[tokio::test]
async fn the_demonstration_tells_its_story_in_plain_words() {
    let (success, stdout, stderr) = run(&["--fast"]).await;
    assert!(success, "{stdout}{stderr}");
    for part in ["paid $0.25", "refused      $9.00", "a second time", "in one PayPal capture"] {
        assert!(stdout.contains(part), "`{part}` is missing in:\n{stdout}");
    }
}
