//! The real program, as people and scripts run it: every command on its own process, on free ports,
//! with a folder of its own.

mod books;
mod demo;
mod moving;
mod parties;
mod paypal;
mod refusals;
mod restoring;
mod selling;
mod settings;
mod simulation;
mod treasurer;

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use pg_cluster::Schema;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use crate::engine;

/// The longest a test waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program, without the settings of whoever runs the tests.
pub fn earnest(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_earnest"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("EARNEST_") || name.to_ascii_lowercase().ends_with("_proxy") {
            command.env_remove(name.as_ref());
        }
    }
    command.current_dir(folder).env("HOME", folder).env_remove("XDG_CONFIG_HOME");
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// A program that runs beside the test, and is killed with it.
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a program; what it says on stderr stands in a file.
    pub fn start(mut command: Command, log: &Path) -> Option<Self> {
        let log = std::fs::File::create(log).unwrap();
        let spawned = command.stdout(Stdio::piped()).stderr(log).kill_on_drop(true).spawn();
        let mut child = spawned.ok()?;
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Some(Self { child, stdout })
    }

    /// The next line it writes.
    pub async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.stdout.read_line(&mut line);
        tokio::time::timeout(PATIENCE, read).await.expect("a line in time").unwrap();
        line.trim_end().to_owned()
    }

    /// Asks it to stop, as an init system does, and waits until it has.
    pub async fn stop(mut self) -> ExitStatus {
        let pid = self.child.id().expect("it still runs").to_string();
        let told = Command::new("kill").args(["-TERM", &pid]).status().await.unwrap();
        assert!(told.success());
        tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it ends in time").unwrap()
    }
}

/// What a command that ended left.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Asserts the exit code, and shows what was said where it differs.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout {:?}\nstderr {:?}", self.out, self.err);
        self
    }

    /// One JSON object on stdout, and nothing else.
    #[track_caller]
    pub fn json(&self) -> Value {
        let read = serde_json::from_str(&self.out);
        read.unwrap_or_else(|why| panic!("{why}: {:?}\nstderr {:?}", self.out, self.err))
    }

    /// One JSON object a line.
    #[track_caller]
    pub fn rows(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// `code` or `code/reason` of the problem document on stderr.
    #[track_caller]
    pub fn refusal(&self) -> String {
        let last = self.err.lines().last().unwrap_or_default();
        let problem: Value =
            serde_json::from_str(last).unwrap_or_else(|why| panic!("{why}: stderr {:?}", self.err));
        let code = problem["code"].as_str().unwrap();
        match problem["reason"].as_str() {
            Some(reason) => format!("{code}/{reason}"),
            None => code.to_owned(),
        }
    }
}

/// Runs a command to its end.
pub async fn run(mut command: Command) -> Ran {
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = output.expect("the command ends in time").unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// `earnest up` in a folder of its own, with a simulated PayPal.
pub struct Stand {
    pub url: String,
    pub simulator: String,
    up: Running,
    folder: Folder,
}

/// Where an installation keeps everything.
pub struct Folder {
    dir: tempfile::TempDir,
    /// Of its books, where they are on PostgreSQL.
    pub place: Option<Schema>,
}

impl Folder {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), place: engine::place() }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The program there, with its books.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = earnest(self.path());
        command.env("EARNEST_DATA", self.path().join("data")).args(words);
        if let Some(place) = &self.place {
            command.env("EARNEST_DATABASE", place.url());
        }
        command
    }

    /// The disk is lost, and the next one is empty.
    pub fn lose_disk(&mut self) {
        std::fs::remove_dir_all(self.path().join("data")).unwrap();
        self.place = engine::place();
    }
}

impl Stand {
    pub async fn start() -> Self {
        Self::again(Folder::new()).await
    }

    /// In a folder where there may be books already.
    pub async fn again(folder: Folder) -> Self {
        let command = folder.command(&["up", "--json", "--listen", "127.0.0.1:0"]);
        let mut up = Running::start(command, &folder.path().join("up.log")).unwrap();
        let line = up.line().await;
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|why| {
            let log = std::fs::read_to_string(folder.path().join("up.log")).unwrap_or_default();
            panic!("{why}: {line:?}\n{log}")
        });
        let text = |name: &str| ready[name].as_str().unwrap().to_owned();
        Self { url: text("url"), simulator: text("simulator"), up, folder }
    }

    /// Stops it, and keeps the folder.
    pub async fn stop(self) -> Folder {
        assert!(self.up.stop().await.success());
        self.folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command against this Earnest.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = self.folder.command(words);
        command.env("EARNEST_URL", &self.url);
        command
    }

    pub async fn run(&self, words: &[&str]) -> Ran {
        run(self.command(words)).await
    }

    /// With `--json`, one object.
    pub async fn json(&self, words: &[&str]) -> Value {
        let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        self.run(&words).await.expect(0).json()
    }

    /// With `--json`, a list.
    pub async fn rows(&self, words: &[&str]) -> Vec<Value> {
        let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        self.run(&words).await.expect(0).rows()
    }

    /// Asks until it is as expected. Each look is a command, so no pause is needed between them.
    pub async fn until(&self, what: &str, words: &[&str], is: impl Fn(&[Value]) -> bool) {
        let waiting = async { while !is(&self.rows(words).await) {} };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    /// A file server nobody here wrote, and `earnest sell` in front of it; `None` without Python.
    pub async fn shop(&self, price: &str) -> Option<Shop> {
        let www = self.path("www");
        std::fs::create_dir_all(&www).unwrap();
        std::fs::write(www.join("page.txt"), "it rains\n").unwrap();
        let mut python = Command::new("python3");
        python.args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory"]);
        python.arg(&www);
        let Some(mut server) = Running::start(python, &self.path("python.log")) else {
            eprintln!("skipped: there is no python3");
            return None;
        };
        let said = server.line().await;
        let port = said.split_whitespace().skip_while(|word| *word != "port").nth(1);
        let port = port.unwrap_or_else(|| panic!("no port in {said:?}"));
        let upstream = format!("http://127.0.0.1:{port}");
        let rule = format!("GET /*={price}");
        let words = ["sell", "--upstream", &upstream, "--price", &rule, "--listen", "127.0.0.1:0"];
        let mut sell = Running::start(self.command(&words), &self.path("sell.log")).unwrap();
        let origin = sell.line().await;
        let log = || std::fs::read_to_string(self.path("sell.log")).unwrap_or_default();
        assert!(origin.starts_with("http://127.0.0.1:"), "{origin:?}\n{}", log());
        Some(Shop { origin, sell, _server: server })
    }
}

/// Something to buy.
pub struct Shop {
    pub origin: String,
    pub sell: Running,
    _server: Running,
}

impl Shop {
    pub fn page(&self) -> String {
        format!("{}/page.txt", self.origin)
    }
}
