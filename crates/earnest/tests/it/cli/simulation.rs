//! `earnest sim run`: a seed is a run, and a run says how to have it again.

use super::*;

#[tokio::test]
async fn a_seed_is_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = async |arguments: &[&str]| {
        let mut command = earnest(folder.path());
        command.args(["sim", "run", "--steps", "60"]).args(arguments);
        let ended = tokio::time::timeout(PATIENCE, command.output()).await.expect("in time");
        ended.unwrap()
    };
    let once = run(&["--seed", "3"]).await;
    let talk = String::from_utf8(once.stderr).unwrap();
    assert!(once.status.success(), "{talk}");
    assert_eq!(talk.lines().next(), Some("seed 3, disk, 60 steps"));
    assert_eq!(run(&["--seed", "3"]).await.stdout, once.stdout);

    let several = run(&["--seeds", "3..5", "--jobs", "2", "--json", "--quiet"]).await;
    assert_eq!(several.stderr, b"");
    let lines = String::from_utf8(several.stdout).unwrap();
    let mut digests = Vec::new();
    for line in lines.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        digests.push(value["digest"].as_str().unwrap().to_owned());
    }
    assert_eq!(digests.len(), 2);
    let told = String::from_utf8(once.stdout).unwrap();
    assert_eq!(digests.iter().filter(|digest| told.contains(*digest)).count(), 1);
    let last = u64::MAX.to_string();
    let none: [&[&str]; 6] = [
        &["--seeds", "5..3"],
        &["--seeds", "5..5"],
        &["--count", "0"],
        &["--jobs", "0"],
        &["--seed", &last, "--count", "2"],
        &["--count", "-1"],
    ];
    for arguments in none {
        let ended = run(arguments).await;
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}");
        assert_eq!(ended.stdout, b"", "{arguments:?}");
    }
}
