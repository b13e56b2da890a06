//! The program itself, as a process that can be killed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use earnest::first::DevKeys;
use pg_cluster::Schema;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::engine;
use crate::world::{PATIENCE, own_address};

/// A running `earnest` that says its address in JSON when it is ready. Killed when dropped.
pub struct Process {
    child: Child,
    /// Its first line.
    pub said: Value,
}

impl Process {
    /// Starts it, its talk appended to a file, and waits until it is ready.
    pub async fn start(args: &[&str], talk: &Path) -> Self {
        let talk = std::fs::File::options().create(true).append(true).open(talk).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_earnest"))
            .arg("--json")
            .args(args)
            .env_remove("EARNEST_CONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(talk)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = tokio::time::timeout(PATIENCE, lines.next_line()).await;
        let first = first.expect("it starts in time").unwrap().expect("it says where it is");
        Self { child, said: serde_json::from_str(&first).unwrap() }
    }

    pub fn url(&self) -> String {
        self.said["url"].as_str().unwrap().to_owned()
    }

    /// `kill -9`.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Asks it to stop, and waits until it has; its exit code.
    pub async fn stop(mut self) -> Option<i32> {
        let id = self.child.id().unwrap().to_string();
        let told = Command::new("kill").arg(id).status().await.unwrap();
        assert!(told.success());
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        ended.expect("it stops in time").unwrap().code()
    }
}

/// Runs the program to its end: exit code, stdout, stderr.
pub async fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_earnest"));
    let command = command.arg("--json").args(args).stdin(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(PATIENCE, command.output()).await;
    let ended = ended.expect("it ends in time").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (ended.status.code(), text(ended.stdout), text(ended.stderr))
}

/// An installation: its folder, its PayPal in a process beside it, and Earnest in one that comes and
/// goes at one address.
pub struct Installation {
    dir: tempfile::TempDir,
    address: SocketAddr,
    pub sim: Process,
    pub earnest: Option<Process>,
    place: Option<Schema>,
}

impl Installation {
    /// Starts both; `rules` is what `[rules]` says.
    pub async fn begin(rules: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let talk = dir.path().join("sim.log");
        let sim = Process::start(&["sim", "paypal", "--listen", "127.0.0.1:0"], &talk).await;
        let config = format!("[paypal]\nsimulator_url = \"{}\"\n\n[rules]\n{rules}\n", sim.url());
        std::fs::write(dir.path().join("earnest.toml"), config).unwrap();
        let place = engine::place();
        let mut installation = Self { dir, address: own_address(), sim, earnest: None, place };
        installation.start().await;
        let url = installation.url();
        installation.address = url.trim_start_matches("http://").parse().unwrap();
        installation
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub async fn start(&mut self) {
        assert!(self.earnest.is_none());
        let (config, data) = (self.path("earnest.toml"), self.path("data"));
        let listen = self.address.to_string();
        let args = ["up", "--config", config.to_str().unwrap(), "--data", data.to_str().unwrap()];
        let args = [args.as_slice(), &["--listen", &listen], &self.database()].concat();
        self.earnest = Some(Process::start(&args, &self.path("earnest.log")).await);
    }

    /// Where the books are, if not in the data folder.
    fn database(&self) -> Vec<&str> {
        self.place.iter().flat_map(|place| ["--database", place.url()]).collect()
    }

    pub async fn kill(&mut self) {
        self.earnest.take().unwrap().kill().await;
    }

    /// Where Earnest is, whether it runs or not.
    pub fn url(&self) -> String {
        match &self.earnest {
            Some(earnest) => earnest.url(),
            None => format!("http://{}", self.address),
        }
    }

    pub fn keys(&self) -> DevKeys {
        let text = std::fs::read_to_string(self.path("data/dev-keys.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// The exit code of `earnest audit`.
    pub async fn audit(&self) -> Option<i32> {
        let data = self.path("data");
        let args = ["audit", "--data", data.to_str().unwrap()];
        let (status, said, told) = run(&[args.as_slice(), &self.database()].concat()).await;
        println!("{said}{told}");
        status
    }

    /// What Earnest has said about itself in all its lives.
    pub fn talk(&self) -> String {
        std::fs::read_to_string(self.path("earnest.log")).unwrap()
    }
}
